//! The ledger against a naive model of a caching allocator that knows the truth.

mod cases;

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::model::{
    AllocatedReserved, AllocatorTotals, DeviceAddress, DeviceSnapshot, Pid, StackRef, Tid,
};

const SEGMENT: u64 = 2 << 20;

/// What a random run does.
#[derive(Clone, Debug)]
enum Step {
    Alloc { device: u8, thread: u8, size: u64, stack: u32 },
    Free { which: prop::sample::Index, thread: u8 },
    EmptyCache { device: u8, thread: u8 },
    FailedAlloc { thread: u8 },
    FailedFree { which: prop::sample::Index, thread: u8 },
}

fn step() -> impl Strategy<Value = Step> {
    let size = prop_oneof![1..5000u64, 100_000..SEGMENT, SEGMENT..8 * SEGMENT];
    prop_oneof![
        8 => (0..2u8, 0..3u8, size, 1..6u32)
            .prop_map(|(device, thread, size, stack)| Step::Alloc { device, thread, size, stack }),
        7 => (any::<prop::sample::Index>(), 0..3u8)
            .prop_map(|(which, thread)| Step::Free { which, thread }),
        1 => (0..2u8, 0..3u8).prop_map(|(device, thread)| Step::EmptyCache { device, thread }),
        1 => (0..3u8).prop_map(|thread| Step::FailedAlloc { thread }),
        1 => (any::<prop::sample::Index>(), 0..3u8)
            .prop_map(|(which, thread)| Step::FailedFree { which, thread }),
    ]
}

struct Block {
    device: u8,
    address: u64,
    size: u64,
    stack: u32,
    /// Its allocation was delivered.
    traced: bool,
}

struct Segment {
    device: u8,
    address: u64,
    size: u64,
    used: u64,
    /// Its physical memory, for an expandable one; 0 for a plain block.
    handle: u64,
}

/// The model, and the ledger that is fed with what it does.
struct Model {
    blocks: Vec<Block>,
    segments: Vec<Segment>,
    /// Addresses of freed segments, to be used again.
    holes: Vec<(u64, u64)>,
    next_address: u64,
    time: u64,
    ledger: Ledger,
    attached: bool,
    /// Which of the next events are dropped.
    drops: Vec<bool>,
    pending_loss: bool,
    lossy: bool,
    /// Devices whose pool has reported since attach.
    reported: [bool; 2],
    /// Whether segments are made by virtual memory management.
    expandable: bool,
    /// Whether the pool tells of segments that it returns, and with their device.
    tells: Option<Tells>,
    last_handle: u64,
}

/// How a pool tells of a segment that it returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tells {
    BeforeTheCall,
    AfterIt,
}

fn tells() -> impl Strategy<Value = Option<Tells>> {
    prop_oneof![Just(None), Just(Some(Tells::BeforeTheCall)), Just(Some(Tells::AfterIt))]
}

impl Model {
    fn new(drops: Vec<bool>) -> Self {
        Self {
            blocks: Vec::new(),
            segments: Vec::new(),
            holes: Vec::new(),
            next_address: 0x5000_0000_0000,
            time: 0,
            ledger: Ledger::default(),
            attached: false,
            drops,
            pending_loss: false,
            lossy: false,
            reported: [false; 2],
            expandable: false,
            tells: None,
            last_handle: 0,
        }
    }

    /// Driver memory for a new segment; returns its handle, 0 for a plain block.
    fn make_segment(&mut self, thread: u8, device: u8, address: u64, size: u64, stack: u32) -> u64 {
        if !self.expandable {
            self.driver_alloc(thread, address, size, stack);
            return 0;
        }
        self.last_handle += 1;
        let handle = self.last_handle;
        self.call(thread, "cuMemCreate", Phase::Done, handle, size, device.into(), stack);
        self.call(thread, "cuMemMap", Phase::Done, address, size, handle, 0);
        handle
    }

    fn tell(&mut self, thread: u8, segment: &Segment, now: Tells) {
        if self.tells == Some(now) {
            let kind = EventKind::SegmentFreed(Some(Device(segment.device)));
            let event = self.event(thread, kind, segment.address, segment.size);
            self.deliver(event, 0);
        }
    }

    fn free_segment(&mut self, thread: u8, segment: &Segment) {
        self.tell(thread, segment, Tells::BeforeTheCall);
        if segment.handle == 0 {
            self.driver_free(thread, Phase::Begun, segment.address);
        } else {
            self.call(thread, "cuMemUnmap", Phase::Begun, segment.address, segment.size, 0, 0);
            self.call(thread, "cuMemRelease", Phase::Begun, segment.handle, 0, 0, 0);
        }
        self.tell(thread, segment, Tells::AfterIt);
    }

    fn allocated(&self, device: u8) -> u64 {
        self.blocks.iter().filter(|b| b.device == device).map(|b| b.size).sum()
    }

    fn reserved(&self, device: u8) -> u64 {
        self.segments.iter().filter(|s| s.device == device).map(|s| s.size).sum()
    }

    /// Hands an event to the ledger, unless it is dropped; says whether it arrived.
    fn deliver(&mut self, event: AllocationEvent, stack: u32) -> bool {
        if !self.attached {
            return false;
        }
        if self.drops.pop().unwrap_or(false) {
            self.pending_loss = true;
            self.lossy = true;
            return false;
        }
        if std::mem::take(&mut self.pending_loss) {
            self.ledger.note_loss();
        }
        self.ledger.apply(&event, StackIndex(stack));
        true
    }

    fn event(&mut self, thread: u8, kind: EventKind, address: u64, size: u64) -> AllocationEvent {
        self.time += 1;
        AllocationEvent {
            caller: None,
            time_ns: self.time,
            pid: Pid(1),
            tid: Tid(u32::from(thread)),
            kind,
            address: DeviceAddress(address),
            size,
            stack: StackRef::NotTaken,
        }
    }

    /// A driver call: its name, how far it is, address or handle, size, further value.
    #[expect(clippy::too_many_arguments, reason = "a call has that many facts")]
    fn call(
        &mut self,
        thread: u8,
        symbol: &str,
        phase: Phase,
        address: u64,
        size: u64,
        aux: u64,
        stack: u32,
    ) -> bool {
        let call = DriverCall::by_symbol(symbol).unwrap();
        let event = self.event(thread, EventKind::Driver { call, phase, aux }, address, size);
        self.deliver(event, stack)
    }

    fn driver_alloc(&mut self, thread: u8, address: u64, size: u64, stack: u32) {
        self.call(thread, "cuMemAlloc_v2", Phase::Done, address, size, 0, stack);
    }

    fn driver_free(&mut self, thread: u8, phase: Phase, address: u64) {
        self.call(thread, "cuMemFree_v2", phase, address, 0, 0, 0);
    }

    /// The pool's report, with the totals that are true by now; `stack` for an allocation.
    fn report(
        &mut self,
        device: u8,
        thread: u8,
        address: u64,
        size: u64,
        stack: Option<u32>,
    ) -> bool {
        let facts = PoolFacts {
            pool: PoolId::pytorch(Device(device)),
            totals: Some(AllocatorTotals {
                allocated: self.allocated(device),
                reserved: self.reserved(device),
            }),
            requested: stack.map(|_| size - 1),
        };
        let kind = match stack {
            Some(_) => EventKind::PoolAlloc(facts),
            None => EventKind::PoolFree(facts),
        };
        let event = self.event(thread, kind, address, size);
        let arrived = self.deliver(event, stack.unwrap_or(0));
        if arrived {
            self.reported[usize::from(device)] = true;
            self.check_report(device);
        }
        arrived
    }

    fn run(&mut self, step: &Step) {
        match step {
            Step::Alloc { device, thread, size, stack } => {
                self.alloc(*device, *thread, *size, *stack)
            }
            Step::Free { which, thread } if !self.blocks.is_empty() => {
                let block = self.blocks.swap_remove(which.index(self.blocks.len()));
                let owner = self
                    .segments
                    .iter_mut()
                    .find(|s| (s.address..s.address + s.size).contains(&block.address));
                owner.unwrap().used -= block.size;
                self.report(block.device, *thread, block.address, block.size, None);
            }
            Step::EmptyCache { device, thread } => {
                let (free, kept): (Vec<_>, Vec<_>) = std::mem::take(&mut self.segments)
                    .into_iter()
                    .partition(|s| s.device == *device && s.used == 0);
                self.segments = kept;
                for segment in free {
                    self.holes.push((segment.address, segment.size));
                    self.free_segment(*thread, &segment);
                }
            }
            Step::FailedAlloc { thread } => {
                self.call(*thread, "cuMemAlloc_v2", Phase::Failed(2), 0, 1 << 40, 2, 9);
            }
            Step::FailedFree { which, thread } if !self.segments.is_empty() => {
                let segment = &self.segments[which.index(self.segments.len())];
                let (address, size, expandable) =
                    (segment.address, segment.size, segment.handle != 0);
                // Both or neither: a lost half is another test's matter.
                let drops = std::mem::take(&mut self.drops);
                for phase in [Phase::Begun, Phase::Failed(1)] {
                    if expandable {
                        self.call(*thread, "cuMemUnmap", phase, address, size, 0, 0);
                    } else {
                        self.driver_free(*thread, phase, address);
                    }
                }
                self.drops = drops;
            }
            _ => {}
        }
    }

    fn alloc(&mut self, device: u8, thread: u8, size: u64, stack: u32) {
        let size = size.div_ceil(512) * 512;
        // A segment is only used from its start: no two live blocks can overlap.
        let free =
            self.segments.iter().position(|s| s.device == device && s.used == 0 && s.size >= size);
        let index = free.unwrap_or_else(|| {
            let bytes = size.div_ceil(SEGMENT) * SEGMENT;
            let hole = self.holes.iter().position(|(_, size)| *size == bytes);
            let address = match hole {
                Some(hole) => self.holes.swap_remove(hole).0,
                None => {
                    self.next_address += bytes;
                    self.next_address - bytes
                }
            };
            let handle = self.make_segment(thread, device, address, bytes, stack);
            self.segments.push(Segment { device, address, size: bytes, used: 0, handle });
            self.segments.len() - 1
        });
        let address = self.segments[index].address;
        self.segments[index].used += size;
        self.blocks.push(Block { device, address, size, stack, traced: false });
        let traced = self.report(device, thread, address, size, Some(stack));
        if let Some(block) = self.blocks.last_mut() {
            block.traced = traced;
        }
    }

    fn device(&self, device: u8) -> Option<DeviceSnapshot> {
        self.ledger.devices().into_iter().find(|d| d.index == Some(Device(device)))
    }

    /// What holds right after a report, also when something was dropped: the allocator's word.
    fn check_report(&self, device: u8) {
        let seen = self.device(device).unwrap();
        assert_eq!(seen.allocated_bytes, Some(self.allocated(device)));
        assert_eq!(seen.reserved_bytes, Some(self.reserved(device)));
        assert!(!seen.reserved_is_upper_bound);
    }

    /// What holds always while nothing was dropped.
    fn check_exact(&self) {
        for device in 0..2u8 {
            if !self.reported[usize::from(device)] {
                continue;
            }
            let seen = self.device(device).unwrap();
            assert_eq!(seen.allocated_bytes, Some(self.allocated(device)));
            assert_eq!(seen.lost_bytes, 0);
            let live = self.live(Some(Device(device)));
            let traced: u64 = live.values().sum();
            assert_eq!(
                seen.before_attach.unwrap().allocated_bytes + traced,
                self.allocated(device)
            );
            if seen.reserved_is_upper_bound {
                assert_eq!(self.tells, None, "known at once where the pool tells");
                assert!(seen.reserved_bytes >= Some(self.reserved(device)));
            } else {
                assert_eq!(seen.reserved_bytes, Some(self.reserved(device)));
            }
            let mut expected: BTreeMap<u32, u64> = BTreeMap::new();
            for block in self.blocks.iter().filter(|b| b.device == device && b.traced) {
                *expected.entry(block.stack).or_default() += block.size;
            }
            assert_eq!(live, expected);
            // Every request was one byte less than its block.
            for (key, totals) in self.ledger.sites().filter(|(key, _)| key.level == Level::Pytorch)
            {
                let expected = totals.live_bytes - totals.live_blocks;
                assert_eq!(totals.requested_bytes(), Some(expected), "{key:?}");
            }
        }
        assert_eq!(self.ledger.accuracy(), Accuracy::default());
    }

    /// Live bytes of the pool's sites by stack.
    fn live(&self, device: Option<Device>) -> BTreeMap<u32, u64> {
        self.ledger
            .sites()
            .filter(|(key, totals)| {
                key.level == Level::Pytorch && key.device == device && totals.live_bytes > 0
            })
            .map(|(key, totals)| (key.stack.0, totals.live_bytes))
            .collect()
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// Attached at a random moment, nothing dropped: everything is exact at every moment.
    #[test]
    fn exact_while_nothing_is_dropped(
        steps in prop::collection::vec(step(), 1..200),
        attach_at in 0..100usize,
        expandable in any::<bool>(),
        tells in tells(),
    ) {
        let mut model = Model::new(Vec::new());
        model.expandable = expandable;
        model.tells = tells;
        for (number, step) in steps.iter().enumerate() {
            model.attached |= number >= attach_at;
            model.run(step);
            if model.attached {
                model.check_exact();
            }
        }
    }

    /// Attached from the start: the driver level too, and `releasable` is what empty_cache returns.
    #[test]
    fn whole_from_the_start(
        steps in prop::collection::vec(step(), 1..200),
        expandable in any::<bool>(),
        tells in tells(),
    ) {
        let mut model = Model::new(Vec::new());
        model.tells = tells;
        model.expandable = expandable;
        model.attached = true;
        for step in &steps {
            model.run(step);
        }
        let reported = model.reported;
        for device in (0..2u8).filter(|&d| reported[usize::from(d)]) {
            let seen = model.device(device).unwrap();
            prop_assert_eq!(seen.before_attach, Some(AllocatedReserved::default()));
            prop_assert_eq!(seen.driver_bytes, model.reserved(device));
            let before = model.reserved(device);
            model.run(&Step::EmptyCache { device, thread: 0 });
            prop_assert_eq!(seen.releasable_bytes, Some(before - model.reserved(device)));
        }
        let unclaimed: u64 = model
            .ledger
            .sites()
            .filter(|(key, _)| key.level == Level::Driver)
            .map(|(_, totals)| totals.live_bytes - totals.pooled_bytes)
            .sum();
        prop_assert_eq!(unclaimed, 0, "every driver block is a segment of a pool");
    }

    /// Random drops: with every report that arrives the totals are the allocator's, and the parts
    /// add up to them.
    #[test]
    fn totals_recover_after_drops(
        steps in prop::collection::vec(step(), 1..200),
        drops in prop::collection::vec(prop::bool::weighted(0.2), 0..300),
        attach_at in 0..50usize,
        expandable in any::<bool>(),
        tells in tells(),
    ) {
        let mut model = Model::new(drops);
        model.expandable = expandable;
        model.tells = tells;
        for (number, step) in steps.iter().enumerate() {
            model.attached |= number >= attach_at;
            model.run(step);
        }
        for device in model.ledger.devices() {
            let Some(allocated) = device.allocated_bytes else { continue };
            let live: u64 = model.live(device.index).values().sum();
            let parts = i128::from(device.before_attach.unwrap().allocated_bytes)
                + i128::from(live)
                + i128::from(device.lost_bytes);
            prop_assert_eq!(parts, i128::from(allocated));
        }
        prop_assert_eq!(model.ledger.accuracy().mismatches, 0);
        if !model.lossy {
            model.check_exact();
        }
    }

    /// Whatever a hostile process makes up: no panic, no overflow.
    #[test]
    fn hostile_numbers_are_survived(
        events in prop::collection::vec(
            (0..60u8, 0..3u8, 0..4u64, any::<u64>(), any::<u64>(), any::<u64>(), 0..3u8), 0..120),
    ) {
        let mut model = Model::new(Vec::new());
        for (call, phase, small, size, allocated, reserved, device) in events {
            let facts = PoolFacts {
                pool: PoolId::pytorch(Device(device)),
                totals: Some(AllocatorTotals { allocated, reserved }),
                requested: Some(size),
            };
            let kind = match DriverCall::new(call) {
                Some(call) => EventKind::Driver {
                    call,
                    phase: [Phase::Done, Phase::Begun, Phase::Failed(1)][usize::from(phase)],
                    aux: small,
                },
                None if phase == 0 => EventKind::PoolFree(facts),
                None => EventKind::PoolAlloc(facts),
            };
            // Few addresses, so that they meet; sizes of any kind.
            let event = model.event(device, kind, small << 20, size);
            model.ledger.apply(&event, StackIndex(1));
            let _ = model.ledger.devices();
        }
    }
}
