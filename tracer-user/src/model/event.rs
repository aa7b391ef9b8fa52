//! What the ledger is fed with: allocations and frees, decoded and typed.

use super::ids::{Device, DeviceAddress, Level, Pid, StackId, Tid};

/// The entry point at which an event was seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Probe {
    /// `cuMemAlloc_v2`
    CuMemAlloc,
    /// `cuMemFree_v2`
    CuMemFree,
    /// `c10::reportMemoryUsageToProfiler`
    TorchReport,
}

impl Probe {
    /// The level at which this entry point counts.
    pub const fn level(self) -> Level {
        match self {
            Self::CuMemAlloc | Self::CuMemFree => Level::Driver,
            Self::TorchReport => Level::Pytorch,
        }
    }

    /// The name of the entry point.
    pub const fn call(self) -> &'static str {
        match self {
            Self::CuMemAlloc => "cuMemAlloc_v2",
            Self::CuMemFree => "cuMemFree_v2",
            Self::TorchReport => "c10::reportMemoryUsageToProfiler",
        }
    }
}

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventKind {
    /// The block exists from now on.
    Alloc,
    /// The block is about to be gone. For the driver level this is announced at the *entry* of the
    /// call; [`EventKind::FreeFailed`] of the same thread takes it back.
    Free,
    /// The allocation failed with this `CUresult`.
    AllocFailed(u32),
    /// The free that the same thread announced last failed with this `CUresult`.
    FreeFailed(u32),
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
    /// Where it was seen.
    pub probe: Probe,
    /// What happened.
    pub kind: EventKind,
    /// The device, if the probe can tell.
    pub device: Option<Device>,
    /// The block.
    pub address: DeviceAddress,
    /// Its size in bytes; for a driver free, whose call carries no size, 0. For PyTorch the block
    /// size: the request rounded up.
    pub size: u64,
    /// Who did it.
    pub stack: StackRef,
    /// The pool's own totals for `device` after the event, where the probe carries them.
    pub totals: Option<AllocatorTotals>,
}
