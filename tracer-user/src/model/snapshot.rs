//! The immutable picture that every report is made from, and at the same time the JSON contract
//! `cudatrace.report/1` (docs/formats.md): a fact that is not known is `null`, never 0. Sizes are
//! bytes, times `_s` are seconds since the trace began.

use serde::Serialize;

use super::{
    ids::{Device, Layer, Level, Pid},
    judgement::Judgement,
};

/// Name and version of the JSON schema.
pub const SCHEMA: &str = "cudatrace.report/1";

/// Everything known at one moment.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Snapshot {
    /// [`SCHEMA`].
    pub schema: &'static str,
    /// When it was made, RFC 3339.
    pub generated_at: String,
    /// Since the trace began.
    pub duration_s: f64,
    /// How well the tracer itself did.
    pub tracer: Tracer,
    /// By pid, and lives of the same pid in their order.
    pub processes: Vec<ProcessSnapshot>,
    /// Children that have ended (`--follow-fork`).
    pub finished: Finished,
}

/// Children that have ended: those that allocated last are among the processes, the others only
/// counted here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Finished {
    /// How many have ended.
    pub children: u64,
    /// Of these, how many are not listed: they allocated nothing, or there were too many.
    pub unlisted: u64,
    /// What the unlisted ones were given by the driver, in bytes.
    pub unlisted_total_bytes: u64,
    /// The same in blocks.
    pub unlisted_total_blocks: u64,
    /// Of these bytes, what they held at their end, and the driver took back.
    pub unlisted_held_bytes: u64,
}

/// How well the tracer itself did. Anything but zeros makes numbers below inexact, and says so.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Tracer {
    /// Program version.
    pub version: String,
    /// Memory events received.
    pub events: u64,
    /// Records (events and definitions) that found no space in the ring buffer.
    pub dropped: u64,
    /// Of these, records after the last one received: totals are as of that one.
    pub dropped_at_end: u64,
    /// Whether every number is exact: nothing dropped, and the ledger agreed with the allocators'
    /// own totals at every event.
    pub exact: bool,
    /// Stacks cut at the outer end.
    pub truncated_stacks: u64,
    /// Frees of addresses that were neither traced nor allocated before attach.
    pub unmatched_frees: u64,
    /// Events whose totals disagreed with the ledger without a drop that explains it.
    pub mismatches: u64,
    /// Children that were not traced because too many were traced at that moment.
    pub untraced_children: u64,
    /// What was attached, and what was not and why.
    pub coverage: Vec<Coverage>,
}

/// One entry point of one library.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Coverage {
    /// Path of the library as the process sees it.
    pub library: String,
    /// The symbol.
    pub symbol: String,
    /// Whether a probe is there.
    pub attached: bool,
    /// Where and why, or why not.
    pub note: Option<String>,
}

impl Coverage {
    /// The note of an entry point that this version of the library does not have. Nothing is missed.
    pub const ABSENT: &str = "this version of the library does not have it";

    /// Whether something may be missed here.
    pub fn is_gap(&self) -> bool {
        !self.attached && self.note.as_deref() != Some(Self::ABSENT)
    }
}

/// How a process ended, by its wait status: `exit 0` or `signal 9`.
pub fn ending(status: u32) -> String {
    match status & 0x7f {
        0 => format!("exit {}", status >> 8 & 0xff),
        signal => format!("signal {signal}"),
    }
}

/// Life of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ProcessState {
    /// Alive.
    Running,
    /// Gone; what it held was returned by the driver.
    Exited,
    /// Replaced its program.
    Replaced,
}

/// One traced process.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ProcessSnapshot {
    /// Process id.
    pub pid: Pid,
    /// The process that it was forked from while traced. Its ledger starts empty then: what the parent
    /// held on the GPU stays the parent's.
    pub parent: Option<Pid>,
    /// When it started, RFC 3339.
    pub start_time: Option<String>,
    /// Its command line.
    pub command: String,
    /// Version of its CPython, such as `3.11.7`.
    pub python: Option<String>,
    /// Why it has no Python stacks, or in what they are less certain.
    pub python_note: Option<String>,
    /// Path of its notebook.
    pub notebook: Option<String>,
    /// Jupyter's id of the kernel.
    pub kernel_id: Option<String>,
    /// Id of its container.
    pub container: Option<String>,
    /// Name of its user.
    pub user: Option<String>,
    /// Life.
    pub state: ProcessState,
    /// How it ended, such as `exit 0` or `signal 9`, if known.
    pub exit: Option<String>,
    /// Whose calls told of what was allocated below the pools, since attach; empty while nothing was.
    pub counted_at: Vec<Layer>,
    /// By index; the one without index holds driver memory whose device is not known.
    pub devices: Vec<DeviceSnapshot>,
    /// Pools, of which a device's totals are the sums.
    pub pools: Vec<PoolSnapshot>,
    /// What NVML counts for it, by GPU; empty where NVML is not there or does not know it.
    pub gpus: Vec<GpuUse>,
    /// What NVML counts beyond the `driver_bytes` of all devices: the CUDA context, code, and what was
    /// allocated before attach outside of pools. `null` where one of the two is not known; negative
    /// where the driver has not got around to it yet.
    pub residual_bytes: Option<i64>,
    /// Host memory.
    pub host: HostSnapshot,
    /// Call sites, most live bytes first.
    pub sites: Vec<Site>,
    /// Notebook cells, in the order in which the first run that is listed began.
    pub cells: Vec<Cell>,
    /// Runs of cells that are not listed any more.
    pub cells_unlisted: UnlistedCells,
    /// Failed allocations, oldest first.
    pub failures: Vec<Failure>,
}

/// A pair of the pool's two totals.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct AllocatedReserved {
    /// Bytes in live blocks.
    pub allocated_bytes: u64,
    /// Bytes in segments.
    pub reserved_bytes: u64,
}

/// One device of one process.
///
/// `allocated_bytes` = live bytes of pool sites + `before_attach.allocated_bytes` + `lost_bytes`;
/// `reserved_bytes` = `allocated_bytes` + `cached_bytes`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct DeviceSnapshot {
    /// Device index, `null` for driver memory whose device is not known.
    pub index: Option<Device>,
    /// Bytes that the driver handed to this process: traced, and reserved by pools before attach.
    pub driver_bytes: u64,
    /// Bytes in the pools' segments; like the other keys of a pool `null` while no pool has reported.
    pub reserved_bytes: Option<u64>,
    /// Whether a segment from before attach was returned since the pool last reported:
    /// `reserved_bytes` is then an upper bound until its next allocation.
    pub reserved_is_upper_bound: bool,
    /// Part of `reserved_bytes` that came by calls without a probe; negative when it went by such.
    pub untraced_reserved_bytes: i64,
    /// Bytes in live blocks of pools.
    pub allocated_bytes: Option<u64>,
    /// Free bytes inside segments.
    pub cached_bytes: Option<u64>,
    /// Bytes in wholly free segments, which `torch.cuda.empty_cache()` would return.
    pub releasable_bytes: Option<u64>,
    /// Highest `allocated_bytes` seen.
    pub peak_allocated_bytes: Option<u64>,
    /// What already existed when the tracer attached, and still does; `null` where a pool cannot tell
    /// (then neither is the sum known).
    pub before_attach: Option<AllocatedReserved>,
    /// Bytes that cannot be given to a site because records were dropped; negative when frees were
    /// dropped.
    pub lost_bytes: i64,
    /// The allocator's own totals at its last event; `null` before the first.
    pub allocator_reported: Option<AllocatedReserved>,
}

/// What NVML counts for a process on one GPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct GpuUse {
    /// As NVML numbers GPUs: all of the machine's, by their place on the bus. CUDA may number those
    /// that a process sees in another way.
    pub index: u32,
    /// Its UUID, as in `CUDA_VISIBLE_DEVICES`.
    pub uuid: Option<String>,
    /// Its name.
    pub name: Option<String>,
    /// Bytes; `null` where the driver does not tell them.
    pub used_bytes: Option<u64>,
}

/// One pool of one process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PoolSnapshot {
    /// The level of its blocks.
    pub level: Level,
    /// As the framework named it; `null` where pools have no names.
    pub name: Option<String>,
    /// Whose memory it hands out; `null`: the host's.
    pub device: Option<Device>,
    /// Bytes in live blocks; `null` where it may have had some before the tracer attached and does not
    /// tell.
    pub allocated_bytes: Option<u64>,
    /// Bytes in its segments; `null` where that is not known, as in host memory.
    pub reserved_bytes: Option<u64>,
    /// Free bytes inside segments.
    pub cached_bytes: Option<u64>,
    /// Highest `allocated_bytes` seen.
    pub peak_allocated_bytes: Option<u64>,
    /// Bytes in the live blocks that were allocated since attach.
    pub traced_bytes: u64,
    /// How many these are.
    pub traced_blocks: u64,
    /// Bytes of driver memory allocated since attach that it cuts its blocks out of.
    pub traced_segment_bytes: u64,
    /// Whether only the end of the process returns its reserve.
    pub keeps_reserve: bool,
}

/// Host memory of one process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct HostSnapshot {
    /// Page-locked bytes that were allocated or registered since attach; `null` while pinned memory is
    /// not traced.
    pub pinned_bytes: Option<u64>,
    /// Bytes of tensors in host memory that were allocated since attach; `null` without `--cpu`.
    pub cpu_bytes: Option<u64>,
    /// Handles and pointers of other processes' memory that are open here, since attach.
    pub imported: u64,
}

/// A call site: one stack, at one level, on one device.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Site {
    /// Stable between snapshots of one trace.
    pub id: String,
    /// Where it is counted.
    pub level: Level,
    /// The device, if known.
    pub device: Option<Device>,
    /// Name of the file whose code called the driver, or the runtime above it; `null` if not known, and
    /// at the level of a pool.
    pub caller: Option<String>,
    /// The functions of that file that called for memory of this level from this stack, by name: 16
    /// places in it at most. One without a symbol is where the call returns to, as a virtual address of
    /// the file after a `+`; those that are not known are left out.
    pub caller_functions: Vec<String>,
    /// Bytes allocated here and not freed.
    pub live_bytes: u64,
    /// Blocks allocated here and not freed.
    pub live_blocks: u64,
    /// Bytes ever allocated here.
    pub total_bytes: u64,
    /// Blocks ever allocated here.
    pub total_blocks: u64,
    /// Bytes asked for in the live blocks, which a pool rounds up; `null` if not known of all.
    pub requested_bytes: Option<u64>,
    /// Of `live_bytes`, those out of which a pool cuts its blocks: the pool's own sites hold them. 0 at
    /// the level of a pool.
    pub pooled_bytes: u64,
    /// Highest `live_bytes`.
    pub peak_bytes: u64,
    /// First allocation.
    pub first_seen_s: f64,
    /// Last allocation.
    pub last_seen_s: f64,
    /// What its behaviour says; the keys are the site's own.
    #[serde(flatten)]
    pub judgement: Judgement,
    /// Innermost first; empty when the thread had no Python frame or the stack is not known.
    pub frames: Vec<Frame>,
    /// Why frames are missing, if they are.
    pub frames_note: Option<String>,
    /// Whether it was allocated by a backward pass that these frames began, on whichever thread, and not by
    /// Python code inside of it.
    pub backward_pass: bool,
}

/// What a frame is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum FrameKind {
    /// A Python function.
    Python,
}

/// One frame.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
pub struct Frame {
    /// What it is.
    pub kind: FrameKind,
    /// `co_name`.
    pub function: String,
    /// `co_qualname`, from CPython 3.11 on.
    pub qualified_name: Option<String>,
    /// `co_filename`; starts with `…` when only its tail was captured.
    pub file: String,
    /// Line being executed; `null` for an instruction without one.
    pub line: Option<u32>,
    /// Execution count `In[n]` of the cell.
    pub cell: Option<u32>,
    /// Line of the cell as the notebook shows it. It differs from `line` where IPython has dropped
    /// empty lines at the top, and in the body of a cell magic.
    pub cell_line: Option<u32>,
    /// Of a cell whose execution count is not known: its place in the order in which the tracer first
    /// saw the cells of the process.
    pub cell_seen: Option<u32>,
    /// Text of the line.
    pub source: Option<String>,
    /// Whether that is the last line of a cell, and an expression: IPython keeps its value in `Out[n]`.
    pub cell_result: bool,
    /// Whether it is of the machinery that runs notebooks or calls modules, which other formats than
    /// JSON leave out by default.
    pub folded: bool,
}

/// One notebook cell: a text, with all of its runs. Sizes are of device memory, that of pools and that of the
/// driver which no pool has, so that no byte is counted twice.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Cell {
    /// Execution count `In[n]` of its last run whose count is known.
    pub cell: Option<u32>,
    /// Where none is known: its place in the order in which the tracer first saw the cells of the process.
    pub cell_seen: Option<u32>,
    /// What its code is called, as in [`Frame::file`].
    pub file: String,
    /// The first line of its text that is not empty.
    pub source: Option<String>,
    /// Times it ran.
    pub runs: u64,
    /// Bytes allocated by its code: what is outermost on the stack, on whichever thread.
    pub allocated_bytes: u64,
    /// Of these, bytes freed.
    pub freed_bytes: u64,
    /// Of these, bytes freed after the next run of a cell had begun; `null` if not known of all runs.
    pub freed_later_bytes: Option<u64>,
    /// Of these, bytes left.
    pub left_bytes: u64,
    /// What pools held more at the end of its runs than at their begin; `null` if not known of all.
    pub change_bytes: Option<i64>,
    /// What a further run leaves; `null` if it has not been run again.
    pub again_bytes: Option<u64>,
    /// Its last runs, in the order in which they began.
    pub executions: Vec<Execution>,
}

/// One run of a cell. Sizes as those of [`Cell`].
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Execution {
    /// Execution count `In[n]`, if it has one and that is known.
    pub cell: Option<u32>,
    /// When it began; `null` if that was not seen.
    pub started_s: Option<f64>,
    /// Bytes allocated by it.
    pub allocated_bytes: u64,
    /// Of these, bytes freed.
    pub freed_bytes: u64,
    /// Of these, bytes freed after the next run had begun.
    pub freed_later_bytes: Option<u64>,
    /// Of the allocated ones, bytes left.
    pub left_bytes: u64,
    /// What pools have held more when the next run began (of the last run: now) than when it began.
    pub change_bytes: Option<i64>,
    /// The same by device; of a device that is not named nothing has changed.
    pub devices: Vec<DeviceChange>,
}

/// What has changed on a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct DeviceChange {
    /// Device index.
    pub index: Device,
    /// Bytes in live blocks of pools that were added; `null` where a pool does not tell its total.
    pub change_bytes: Option<i64>,
}

/// Runs of cells that are in no cell's entry: the code of these cells is gone, and nothing is left of what it
/// allocated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct UnlistedCells {
    /// How many.
    pub runs: u64,
    /// Bytes allocated by them, all of which were freed.
    pub allocated_bytes: u64,
    /// As in [`Cell::change_bytes`].
    pub change_bytes: Option<i64>,
}

/// One failed allocation.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Failure {
    /// When.
    pub time_s: f64,
    /// The call.
    pub call: String,
    /// Bytes asked for.
    pub bytes: u64,
    /// Name of the error.
    pub error: String,
    /// Whether the user saw it (a pool may free its cache and succeed at a second try); `null` where
    /// that is not known.
    pub user_visible: Option<bool>,
    /// As in [`Site::caller`].
    pub caller: Option<String>,
    /// The function of that file that called; as in [`Site::caller_functions`].
    pub caller_function: Option<String>,
    /// Id of the site with the same stack; `null` if nothing was ever allocated there.
    pub site: Option<String>,
    /// Innermost first.
    pub frames: Vec<Frame>,
    /// Why frames are missing, if they are.
    pub frames_note: Option<String>,
    /// As in [`Site::backward_pass`].
    pub backward_pass: bool,
}

impl Site {
    /// Bytes that are held here and by no pool.
    pub fn own_bytes(&self) -> u64 {
        self.live_bytes.saturating_sub(self.pooled_bytes)
    }
}
