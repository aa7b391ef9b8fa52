//! What the ledger is fed with: allocations and frees, decoded and typed.

use tracer_common::calls::{CALLS, Call, FIRST_RUNTIME, extent, op, when};

use super::ids::{CodeAddress, Device, DeviceAddress, Layer, Level, Pid, PoolId, StackId, Tid};

/// An entry point of the CUDA driver, or of the runtime above it: its place in [`CALLS`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DriverCall(u8);

impl DriverCall {
    /// By its place in the table.
    pub fn new(index: u8) -> Option<Self> {
        (usize::from(index) < CALLS.len()).then_some(Self(index))
    }

    /// By its exported name.
    pub fn by_symbol(symbol: &str) -> Option<Self> {
        CALLS.iter().position(|call| call.symbol == symbol).map(|index| Self(index as u8))
    }

    /// Its place in the table.
    pub fn index(self) -> u8 {
        self.0
    }

    /// Every one.
    pub fn all() -> impl Iterator<Item = Self> {
        (0..CALLS.len()).map(|index| Self(index as u8))
    }

    /// Whether it is one of the runtime's.
    pub fn is_runtime(self) -> bool {
        usize::from(self.0) >= FIRST_RUNTIME
    }

    /// The layer that it belongs to.
    pub fn layer(self) -> Layer {
        if self.is_runtime() { Layer::Runtime } else { Layer::Driver }
    }

    /// Whether its result is looked at when it returns.
    pub fn is_followed(self) -> bool {
        CALLS.get(usize::from(self.0)).is_some_and(|call| call.shape.when != when::ENTRY_ONLY)
    }

    /// Its size, where that is one of dimensions.
    pub(crate) fn size(self, failed: bool, arguments: &[u64; 6], words: &[u64; 5]) -> u64 {
        let size = |call: &Call| extent::size(call.shape.size, failed, arguments, words);
        CALLS.get(usize::from(self.0)).map_or(0, size)
    }

    /// Its exported name.
    pub fn symbol(self) -> &'static str {
        CALLS.get(usize::from(self.0)).map_or("unknown", |call| call.symbol)
    }

    /// One of [`tracer_common::calls::op`].
    pub fn op(self) -> u8 {
        CALLS.get(usize::from(self.0)).map_or(0, |call| call.shape.op)
    }
}

/// How far a driver call is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// It has succeeded.
    Done,
    /// It has begun: everything that frees is told then, and taken back by [`Phase::Failed`].
    Begun,
    /// It has failed with this `CUresult`.
    Failed(u32),
}

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventKind {
    /// A call of the CUDA driver. Addresses, sizes and the further value `aux` as in
    /// [`tracer_common::calls::op`].
    Driver {
        /// The entry point.
        call: DriverCall,
        /// How far it is.
        phase: Phase,
        /// The further value.
        aux: u64,
    },
    /// A pool handed out a block (of `size` bytes: the request rounded up).
    PoolAlloc(PoolFacts),
    /// A pool took a block back.
    PoolFree(PoolFacts),
    /// A pool tells the user that it cannot have this many bytes.
    PoolOutOfMemory(PoolFacts),
    /// A pool gives a segment of this address and size back to the driver, just before or after the
    /// driver's call. Some versions do not tell the device.
    SegmentFreed(Option<Device>),
    /// A segment of this address and size is a private pool's; of size 0, some segments are, and it is
    /// not known which.
    SegmentPrivate(Device),
    /// Host memory of a tensor.
    CpuAlloc,
    /// Its end.
    CpuFree,
}

/// What a pool says along with an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolFacts {
    /// Which pool.
    pub pool: PoolId,
    /// Its totals after the event, if it tells them.
    pub totals: Option<AllocatorTotals>,
    /// Bytes that were asked for, if known: a block is the request rounded up.
    pub requested: Option<u64>,
}

/// What the pool itself says of one device, after the event.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AllocatorTotals {
    /// Bytes in live blocks (`torch.cuda.memory_allocated`).
    pub allocated: u64,
    /// Bytes in the pool's segments (`torch.cuda.memory_reserved`).
    pub reserved: u64,
}

/// The stack of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StackRef {
    /// Defined by a stack record that came before.
    Id(StackId),
    /// The thread has no Python frames.
    NoPython,
    /// The stack could not be taken.
    NotTaken,
}

/// One allocation or free, at one level.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AllocationEvent {
    /// Nanoseconds of `CLOCK_MONOTONIC`.
    pub time_ns: u64,
    /// The process.
    pub pid: Pid,
    /// The thread. A block may be freed by another thread than the one that allocated it.
    pub tid: Tid,
    /// What happened.
    pub kind: EventKind,
    /// The block, handle or context.
    pub address: DeviceAddress,
    /// Bytes; 0 where the call has none.
    pub size: u64,
    /// Who did it.
    pub stack: StackRef,
    /// Of a call of the driver, where it returns to: who called the runtime if that is between. `None`
    /// if it could not be read, and at the level of a pool.
    pub caller: Option<CodeAddress>,
}

impl AllocationEvent {
    /// The caller of a call of the driver that asks for memory, and the level that this counts at. Who
    /// frees is not asked.
    pub fn asker(&self) -> Option<(Level, CodeAddress)> {
        let EventKind::Driver { call, .. } = self.kind else { return None };
        let level = match call.op() {
            op::ALLOC | op::CREATE => Level::Driver,
            op::PIN => Level::Pinned,
            _ => return None,
        };
        Some((level, self.caller?))
    }

    /// Whether it is a call of the driver that has failed.
    pub fn failed(&self) -> bool {
        matches!(self.kind, EventKind::Driver { phase: Phase::Failed(_), .. })
    }
}
