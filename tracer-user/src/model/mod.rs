//! The words of the field as types: ids, events, snapshots.

mod cell_file;
mod event;
mod ids;
mod judgement;
mod snapshot;
mod user_frame;

pub use cell_file::{CellFile, is_cell_top};
pub use event::{
    AllocationEvent, AllocatorTotals, DriverCall, EventKind, Phase, PoolFacts, StackRef,
};
pub use ids::{
    CodeAddress, CodeId, Device, DeviceAddress, Layer, Level, Pid, PoolId, StackId, StackIndex, Tid,
};
pub use judgement::{Ages, Confidence, HintKind, Judgement, Verdict};
pub use snapshot::{
    AllocatedReserved, Cell, Coverage, DeviceChange, DeviceSnapshot, Execution, Failure, Finished,
    Frame, FrameKind, GpuUse, HostSnapshot, PoolSnapshot, ProcessSnapshot, ProcessState, SCHEMA,
    Site, Snapshot, Tracer, UnlistedCells, ending,
};
pub use user_frame::{is_user, is_user_file, user_frame, user_position};
