//! One device of a caching allocator: its blocks, its segments, and its own totals.

use std::collections::BTreeMap;

use rustc_hash::FxHashMap;

use super::driver::Block;
use crate::model::{
    AllocatedReserved, AllocationEvent, AllocatorTotals, Device, DeviceSnapshot, EventKind,
    StackIndex,
};

/// The pool of one device.
#[derive(Debug, Default)]
pub struct Pool {
    blocks: FxHashMap<u64, Block>,
    live_bytes: u64,
    segments: BTreeMap<u64, Block>,
    segment_bytes: u64,
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
}

impl Pool {
    /// At the first event: whatever the totals hold beyond this event was there before.
    pub(super) fn note_first(&mut self, event: &AllocationEvent, totals: &AllocatorTotals) {
        if self.reported.is_some() {
            return;
        }
        self.before = AllocatedReserved {
            allocated_bytes: match event.kind {
                EventKind::Alloc => totals.allocated.saturating_sub(event.size),
                _ => totals.allocated.saturating_add(event.size),
            },
            reserved_bytes: totals.reserved.saturating_sub(self.segment_bytes),
        };
    }

    /// Adds a block; returns the one that was at its address, whose free was not seen.
    pub(super) fn insert(&mut self, address: u64, size: u64, stack: StackIndex) -> Option<Block> {
        let stale = self.blocks.insert(address, Block { size, stack });
        if let Some(stale) = stale {
            self.live_bytes = self.live_bytes.saturating_sub(stale.size);
        }
        self.live_bytes = self.live_bytes.saturating_add(size);
        stale
    }

    pub(super) fn remove(&mut self, address: u64) -> Option<Block> {
        let block = self.blocks.remove(&address)?;
        self.live_bytes = self.live_bytes.saturating_sub(block.size);
        Some(block)
    }

    /// A block of `size` bytes was freed whose allocation was not seen; `false` if none can have
    /// been there.
    pub(super) fn free_unknown(&mut self, size: u64) -> bool {
        let signed = i64::try_from(size).unwrap_or(i64::MAX);
        if self.lost_bytes >= signed {
            self.lost_bytes -= signed;
            return true;
        }
        let covered = self.before.allocated_bytes >= size;
        self.before.allocated_bytes = self.before.allocated_bytes.saturating_sub(size);
        covered
    }

    pub(super) fn add_segment(&mut self, address: u64, block: Block) {
        self.segments.insert(address, block);
        self.segment_bytes = self.segment_bytes.saturating_add(block.size);
    }

    pub(super) fn remove_segment(&mut self, address: u64) -> Option<Block> {
        let block = self.segments.remove(&address)?;
        self.segment_bytes = self.segment_bytes.saturating_sub(block.size);
        Some(block)
    }

    pub(super) fn note_unknown_segment_freed(&mut self) {
        self.reserved_is_upper_bound |= self.before.reserved_bytes > 0;
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
    fn allocated(&self) -> u64 {
        signed_add(self.before.allocated_bytes.saturating_add(self.live_bytes), self.lost_bytes)
    }

    /// Bytes in segments.
    fn reserved(&self) -> u64 {
        signed_add(
            self.before.reserved_bytes.saturating_add(self.segment_bytes),
            self.untraced_reserved,
        )
    }

    /// Bytes in segments without a live block; `None` where a segment may hold blocks that were not
    /// traced.
    fn releasable(&self) -> Option<u64> {
        let all_traced = self.before == AllocatedReserved::default()
            && self.lost_bytes == 0
            && self.untraced_reserved == 0;
        if !all_traced {
            return None;
        }
        let mut used: FxHashMap<u64, ()> = FxHashMap::default();
        for address in self.blocks.keys() {
            let (&start, _) = self.segments.range(..=*address).next_back()?;
            used.insert(start, ());
        }
        let free = self.segments.iter().filter(|(start, _)| !used.contains_key(start));
        Some(free.fold(0u64, |sum, (_, segment)| sum.saturating_add(segment.size)))
    }

    /// The picture of it.
    pub(super) fn snapshot(&self, device: Device) -> DeviceSnapshot {
        let (allocated, reserved) = (self.allocated(), self.reserved());
        DeviceSnapshot {
            index: Some(device),
            driver_bytes: reserved,
            reserved_bytes: reserved,
            reserved_is_upper_bound: self.reserved_is_upper_bound,
            untraced_reserved_bytes: self.untraced_reserved,
            allocated_bytes: allocated,
            cached_bytes: reserved.saturating_sub(allocated),
            releasable_bytes: self.releasable(),
            peak_allocated_bytes: self.peak_allocated,
            before_attach: self.before,
            lost_bytes: self.lost_bytes,
            allocator_reported: self.reported.map(|totals| AllocatedReserved {
                allocated_bytes: totals.allocated,
                reserved_bytes: totals.reserved,
            }),
        }
    }
}

/// `a - b`, kept in range.
fn difference(a: u64, b: u64) -> i64 {
    i64::try_from(i128::from(a) - i128::from(b)).unwrap_or(if a > b { i64::MAX } else { i64::MIN })
}

/// `a + b`, kept in range.
fn signed_add(a: u64, b: i64) -> u64 {
    a.saturating_add_signed(b)
}
