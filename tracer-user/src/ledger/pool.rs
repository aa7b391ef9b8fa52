//! A pool: its blocks, its segments, and its own totals if it tells them.

use std::collections::BTreeMap;

use rustc_hash::{FxHashMap, FxHashSet};

use super::{
    block::{Block, Packed},
    driver::Block as DriverBlock,
};
use crate::model::{AllocatedReserved, AllocatorTotals, Device};

/// A range of driver memory that the pool cuts its blocks out of.
#[derive(Clone, Copy, Debug)]
struct Segment {
    size: u64,
    /// The driver's block; `None` for a mapping, whose memory is counted elsewhere.
    block: Option<DriverBlock>,
}

/// A pool.
#[derive(Debug, Default)]
pub struct Pool {
    /// As the framework named it.
    pub(super) name: Option<String>,
    /// Whose memory it hands out; `None`: the host's, or not known.
    pub(super) device: Option<Device>,
    /// It tells no totals, and may have had blocks before the trace began.
    pub(super) is_late: bool,
    seen: bool,
    blocks: FxHashMap<u64, Packed>,
    live_bytes: u64,
    segments: BTreeMap<u64, Segment>,
    segment_bytes: u64,
    /// Ranges of private pools' segments: start and end.
    private: BTreeMap<u64, u64>,
    /// There are private pools, and which segments are theirs is not known.
    has_unknown_private: bool,
    /// Bytes in live blocks before the first event.
    first_allocated: u64,
    /// What was there before the first event, and still is.
    before: AllocatedReserved,
    /// Bytes of live blocks whose events were dropped, less those of dead ones.
    lost_bytes: i64,
    /// Bytes of segments that came by calls without a probe.
    untraced_reserved: i64,
    /// A segment from before was freed, whose size is not known.
    reserved_is_upper_bound: bool,
    reported: Option<AllocatorTotals>,
    peak_allocated: u64,
    /// Highest `live_bytes`.
    peak_traced: u64,
}

impl Pool {
    pub(super) fn new(device: Option<Device>, is_late: bool) -> Self {
        Self { device, is_late, ..Self::default() }
    }

    /// At the first event: whatever the totals hold beyond this event was there before.
    pub(super) fn note_first(
        &mut self,
        is_alloc: bool,
        size: u64,
        totals: Option<&AllocatorTotals>,
    ) {
        self.seen = true;
        let (None, Some(totals)) = (self.reported, totals) else { return };
        let allocated_bytes = if is_alloc {
            totals.allocated.saturating_sub(size)
        } else {
            totals.allocated.saturating_add(size)
        };
        self.peak_allocated = allocated_bytes;
        self.first_allocated = allocated_bytes;
        self.before = AllocatedReserved {
            allocated_bytes,
            reserved_bytes: totals.reserved.saturating_sub(self.segment_bytes),
        };
    }

    /// Adds a block; returns the one that was at its address, whose free was not seen.
    pub(super) fn insert(&mut self, address: u64, block: Block) -> Option<Block> {
        let stale = self.blocks.insert(address, block.into()).map(Block::from);
        if let Some(stale) = stale {
            self.live_bytes = self.live_bytes.saturating_sub(stale.size);
        }
        self.live_bytes = self.live_bytes.saturating_add(block.size);
        self.peak_traced = self.peak_traced.max(self.live_bytes);
        stale
    }

    pub(super) fn remove(&mut self, address: u64) -> Option<Block> {
        let block = Block::from(self.blocks.remove(&address)?);
        self.live_bytes = self.live_bytes.saturating_sub(block.size);
        Some(block)
    }

    /// A block of `size` bytes was freed whose allocation was not seen; `false` if none can have
    /// been there.
    pub(super) fn free_unknown(&mut self, size: u64) -> bool {
        if self.is_late {
            return true;
        }
        // A pool that does not tell the size tells no totals: nothing is known to have been there.
        if size == 0 {
            return false;
        }
        let signed = i64::try_from(size).unwrap_or(i64::MAX);
        if self.lost_bytes >= signed {
            self.lost_bytes -= signed;
            return true;
        }
        let covered = self.before.allocated_bytes >= size;
        self.before.allocated_bytes = self.before.allocated_bytes.saturating_sub(size);
        covered
    }

    pub(super) fn add_segment(&mut self, address: u64, size: u64, block: Option<DriverBlock>) {
        self.segments.insert(address, Segment { size, block });
        self.segment_bytes = self.segment_bytes.saturating_add(size);
    }

    /// Segments in this range, which are not seen yet, are a private pool's; of size 0, some are.
    pub(super) fn note_private(&mut self, address: u64, size: u64) {
        self.has_unknown_private |= size == 0;
        if size > 0 {
            self.forget_private(address, size);
            self.private.insert(address, address.saturating_add(size));
        }
    }

    /// Segments in this range are nobody's any more.
    fn forget_private(&mut self, address: u64, size: u64) {
        let end = address.saturating_add(size);
        let before = self.private.range(..address).next_back().map(|(start, _)| *start);
        let touched: Vec<(u64, u64)> = self
            .private
            .range(before.unwrap_or(address)..end)
            .map(|(start, end)| (*start, *end))
            .filter(|(_, last)| *last > address)
            .collect();
        for (first, last) in touched {
            self.private.remove(&first);
            if first < address {
                self.private.insert(first, address);
            }
            if last > end {
                self.private.insert(end, last);
            }
        }
    }

    fn is_private(&self, address: u64) -> bool {
        self.private.range(..=address).next_back().is_some_and(|(_, end)| address < *end)
    }

    /// Removes the segment that is the driver's block at this address.
    pub(super) fn remove_block(&mut self, address: u64) -> Option<DriverBlock> {
        let block = self.segments.get(&address)?.block?;
        self.remove_segment(address);
        Some(block)
    }

    /// Removes a segment of any kind.
    pub(super) fn remove_segment(&mut self, address: u64) {
        if let Some(segment) = self.segments.remove(&address) {
            self.segment_bytes = self.segment_bytes.saturating_sub(segment.size);
            self.forget_private(address, segment.size);
        }
    }

    /// Removes the segments of a context that is gone.
    pub(super) fn remove_context(&mut self, context: u64) -> Vec<DriverBlock> {
        let of_context =
            |segment: &Segment| segment.block.is_some_and(|block| block.context == context);
        let gone: Vec<u64> = self
            .segments
            .iter()
            .filter(|(_, segment)| of_context(segment))
            .map(|(address, _)| *address)
            .collect();
        gone.into_iter().filter_map(|address| self.remove_block(address)).collect()
    }

    pub(super) fn note_unknown_segment_freed(&mut self) {
        self.reserved_is_upper_bound |= self.before.reserved_bytes > 0;
    }

    /// A segment of this size from before attach is gone.
    pub(super) fn free_segment_from_before(&mut self, size: u64) {
        self.before.reserved_bytes = self.before.reserved_bytes.saturating_sub(size);
    }

    /// The sizes of all segments that went are known.
    pub(super) fn note_segments_known(&mut self) {
        self.reserved_is_upper_bound = false;
    }

    /// Bytes of the traced segments that begin in this range.
    pub(super) fn segment_bytes_in(&self, address: u64, size: u64) -> u64 {
        let end = address.saturating_add(size.max(1));
        let sizes = self.segments.range(address..end).map(|(_, segment)| segment.size);
        sizes.fold(0, u64::saturating_add)
    }

    /// Compares with the pool's own totals, which win; `false` if `allocated` differed.
    pub(super) fn reconcile(&mut self, totals: &AllocatorTotals) -> bool {
        self.reported = Some(*totals);
        self.peak_allocated = self.peak_allocated.max(totals.allocated);

        let known = self.before.allocated_bytes.saturating_add(self.live_bytes);
        let lost = difference(totals.allocated, known);
        let agrees = lost == self.lost_bytes;
        self.lost_bytes = lost;

        if self.reserved_is_upper_bound {
            let others = signed_add(self.segment_bytes, self.untraced_reserved);
            self.before.reserved_bytes =
                totals.reserved.saturating_sub(others).min(self.before.reserved_bytes);
            self.reserved_is_upper_bound = false;
        }
        let traced = self.before.reserved_bytes.saturating_add(self.segment_bytes);
        self.untraced_reserved = difference(totals.reserved, traced);
        agrees
    }

    /// Bytes in live blocks.
    pub(super) fn allocated(&self) -> u64 {
        signed_add(self.before.allocated_bytes.saturating_add(self.live_bytes), self.lost_bytes)
    }

    /// Bytes in segments.
    pub(super) fn reserved(&self) -> u64 {
        signed_add(
            self.before.reserved_bytes.saturating_add(self.segment_bytes),
            self.untraced_reserved,
        )
    }

    /// Bytes in segments without a live block and of no private pool; `None` where that is not known
    /// of every segment.
    pub(super) fn releasable(&self) -> Option<u64> {
        let all_traced = self.seen
            && !self.is_late
            && self.before == AllocatedReserved::default()
            && self.lost_bytes == 0
            && !self.has_unknown_private
            && self.untraced_reserved == 0;
        if !all_traced {
            return None;
        }
        let mut used: FxHashSet<u64> = FxHashSet::default();
        for (&address, &block) in &self.blocks {
            let block = Block::from(block);
            // A block may span several mappings.
            let (&first, _) = self.segments.range(..=address).next_back()?;
            let end = address.saturating_add(block.size.max(1));
            used.extend(self.segments.range(first..end).map(|(start, _)| *start));
        }
        let free = self
            .segments
            .iter()
            .filter(|(start, _)| !used.contains(start) && !self.is_private(**start));
        Some(free.fold(0u64, |sum, (_, segment)| sum.saturating_add(segment.size)))
    }

    /// The live blocks that were traced.
    pub(super) fn blocks(&self) -> impl Iterator<Item = Block> {
        self.blocks.values().map(|block| Block::from(*block))
    }

    /// Whether an event of it has come.
    pub(super) fn seen(&self) -> bool {
        self.seen
    }

    /// Bytes in the live blocks that were traced, and how many these are.
    pub(super) fn traced(&self) -> (u64, u64) {
        (self.live_bytes, self.blocks.len() as u64)
    }

    /// Bytes of the segments that were traced.
    pub(super) fn segment_bytes(&self) -> u64 {
        self.segment_bytes
    }

    pub(super) fn first_allocated(&self) -> u64 {
        self.first_allocated
    }

    pub(super) fn before(&self) -> AllocatedReserved {
        self.before
    }

    pub(super) fn lost_bytes(&self) -> i64 {
        self.lost_bytes
    }

    pub(super) fn untraced_reserved(&self) -> i64 {
        self.untraced_reserved
    }

    pub(super) fn reserved_is_upper_bound(&self) -> bool {
        self.reserved_is_upper_bound
    }

    pub(super) fn reported(&self) -> Option<AllocatorTotals> {
        self.reported
    }

    pub(super) fn peak_allocated(&self) -> u64 {
        if self.reported.is_some() { self.peak_allocated } else { self.peak_traced }
    }
}

/// `a - b`, kept in range.
fn difference(a: u64, b: u64) -> i64 {
    i64::try_from(i128::from(a) - i128::from(b)).unwrap_or(if a > b { i64::MAX } else { i64::MIN })
}

/// `a + b`, kept in range.
pub(super) fn signed_add(a: u64, b: i64) -> u64 {
    a.saturating_add_signed(b)
}
