//! Records of the ring buffer.
//!
//! Every record starts with a [`RecordHeader`] whose `tag` says which struct follows. Structs are
//! `repr(C)`, fixed width, with explicit padding; tags are plain integers that the decoder checks.
//! Times are nanoseconds of `CLOCK_MONOTONIC` (`bpf_ktime_get_ns`).
//!
//! Definitions travel separately and once: a [`MemoryEvent`] names its stack by id; the
//! [`StackRecord`] with that id and the [`CodeRecord`]s that it refers to come before it. A
//! definition that found no space is sent again at the next hit, because the kernel half marks it
//! as known only after it was written.

use crate::plain_data;

/// Record tags, the first field of every record.
pub mod tag {
    /// [`super::MemoryEvent`]
    pub const MEMORY: u16 = 1;
    /// [`super::CodeRecord`]
    pub const CODE: u16 = 2;
    /// [`super::LinesRecord`]
    pub const LINES: u16 = 3;
    /// [`super::StackRecord`]
    pub const STACK: u16 = 4;
    /// [`super::LossRecord`]
    pub const LOSS: u16 = 5;
    /// [`super::ProcessRecord`]
    pub const PROCESS: u16 = 6;
    /// [`super::CodeFreedRecord`]
    pub const CODE_FREED: u16 = 7;
    /// [`super::BlockEvent`]
    pub const BLOCK: u16 = 8;
    /// [`super::PoolRecord`]
    pub const POOL: u16 = 9;
    /// [`super::CallEvent`]
    pub const CALL: u16 = 10;
    /// [`super::CellRecord`]
    pub const CELL: u16 = 11;
}

/// Which probe saw an event ([`MemoryEvent::probe`]): below [`crate::calls::MAX_CALLS`] the place of
/// the driver's entry point in [`crate::calls::CALLS`].
pub mod probe {
    /// `c10::reportMemoryUsageToProfiler` of PyTorch's libc10.
    pub const TORCH_REPORT: u8 = 200;
    /// `c10::reportOutOfMemoryToProfiler`: PyTorch tells the user that there is no memory.
    pub const TORCH_OUT_OF_MEMORY: u8 = 201;
    /// `record_trace` of PyTorch's caching allocator: a segment goes back to the driver.
    pub const TORCH_SEGMENT_FREED: u8 = 202;
    /// `c10::ProfiledCPUMemoryReporter::New`: host memory of a tensor.
    pub const TORCH_CPU_NEW: u8 = 203;
    /// `c10::ProfiledCPUMemoryReporter::Delete`.
    pub const TORCH_CPU_DELETE: u8 = 204;
    /// `record_trace`: a segment of a private pool comes, which `empty_cache()` does not return while
    /// that pool lives. Of size 0 where the version only tells that there are such pools.
    pub const TORCH_SEGMENT_PRIVATE: u8 = 208;
    /// `tsl::BFCAllocator::AddTraceMe` of TensorFlow.
    pub const BFC_TENSORFLOW: u8 = 210;
    /// The same function in a plugin of JAX.
    pub const BFC_JAX: u8 = 211;
    /// `SingleDeviceMemoryPool.malloc` of CuPy.
    pub const CUPY_MALLOC: u8 = 220;
    /// `PooledMemory.free` of CuPy.
    pub const CUPY_FREE: u8 = 221;
    /// What `onnxruntime::BFCArena` allocates by.
    pub const ARENA_ALLOC: u8 = 222;
    /// `onnxruntime::BFCArena::Free`.
    pub const ARENA_FREE: u8 = 223;
}

/// What `record_trace` of this version of PyTorch tells (attach cookie, bits).
pub mod trace_facts {
    /// The sixth argument is the device.
    pub const DEVICE: u64 = 1;
    /// The seventh is the id of the pool: two words in memory.
    pub const POOL: u64 = 2;
    /// It is another function: a private pool of the device in the second argument is used.
    pub const POOL_BEGINS: u64 = 4;
    /// The probe is at a call of it, and not at its entry: there is no return address yet.
    pub const AT_CALL: u64 = 8;
}

/// `TraceEntry::Action` of PyTorch: what `record_trace` is told, in its second argument. Those of use here.
pub mod trace_action {
    /// A block is handed out.
    pub const ALLOC: u32 = 0;
    /// A segment comes from the driver.
    pub const SEGMENT_ALLOC: u32 = 3;
    /// A segment goes back to it.
    pub const SEGMENT_FREE: u32 = 4;
    /// Memory is mapped into an expandable segment.
    pub const SEGMENT_MAP: u32 = 5;
    /// It is unmapped.
    pub const SEGMENT_UNMAP: u32 = 6;
    /// All of them.
    pub const USED: [u32; 5] = [ALLOC, SEGMENT_ALLOC, SEGMENT_FREE, SEGMENT_MAP, SEGMENT_UNMAP];
}

/// How far a call is ([`MemoryEvent::phase`]).
pub mod phase {
    /// It has succeeded. Everything that allocates is reported then, because only then the address
    /// is known; nobody else can free it before.
    pub const DONE: u8 = 1;
    /// It has begun. Everything that frees is reported then, because once it is done another thread
    /// may be given the address and report it first.
    pub const BEGUN: u8 = 2;
    /// It has failed with the error in `extra[0]`; if it was reported as begun, it did not happen.
    pub const FAILED: u8 = 3;
}

/// What happened to a process (`detail` of a [`ProcessRecord`]).
pub mod process_kind {
    /// Its last thread exited; `value` is its wait status. The kernel half has forgotten it.
    pub const EXIT: u16 = 1;
    /// The process replaced its program (`execve`): every mapping and allocation is gone. The kernel
    /// half has forgotten it, or what it knew of the program if the process is followed.
    pub const EXEC: u16 = 2;
    /// The dynamic loader changed the set of loaded libraries (`_dl_debug_state`).
    pub const LIBRARIES_CHANGED: u16 = 3;
    /// A followed process made a child, which is traced from its first instruction: `value` is its
    /// pid.
    pub const FORK: u16 = 4;
}

/// Bits of [`MemoryEvent::flags`] and [`StackRecord::flags`].
pub mod stack_flag {
    /// The stack had more frames than [`super::MAX_FRAMES`]; the outermost are missing.
    pub const TRUNCATED: u8 = 1;
    /// A frame could not be read (page not resident); the frames outside it are missing.
    pub const FAULT: u8 = 2;
    /// The thread has no Python thread state, or no Python frame: a native thread.
    pub const NO_PYTHON: u8 = 4;
    /// No scratch buffer was free (preempted probes on this CPU); the stack was not taken.
    pub const BUSY: u8 = 8;
    /// The frames outside IPython's `run_code`, which runs a cell, were not taken.
    pub const BOUNDARY: u8 = 16;
    /// The stack began a backward pass of PyTorch's, which allocated on whichever thread.
    pub const BACKWARD: u8 = 32;
}

/// Most frames of a stack that are captured; the outermost ones beyond it are dropped and the
/// stack is marked [`stack_flag::TRUNCATED`].
pub const MAX_FRAMES: usize = 128;

/// Most bytes of one line-table piece ([`LinesRecord`]).
pub const LINES_CHUNK: usize = 8192;

/// Most pieces of one line table; longer tables are cut and their later lines are unknown.
pub const MAX_LINES_CHUNKS: usize = 16;

/// The start of every record.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordHeader {
    /// One of [`tag`].
    pub tag: u16,
    /// Depends on the record; 0 where unused.
    pub detail: u16,
    /// Process id (the kernel's tgid, in the initial pid namespace).
    pub tgid: u32,
}

/// One allocation or free, at one level.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryEvent {
    /// `tag` is [`tag::MEMORY`]; `detail` is unused.
    pub header: RecordHeader,
    /// Time of the event.
    pub time_ns: u64,
    /// Thread id.
    pub tid: u32,
    /// One of [`probe`].
    pub probe: u8,
    /// One of [`phase`].
    pub phase: u8,
    /// Bits of [`stack_flag`].
    pub flags: u8,
    /// CUDA device index; -1 when the probe cannot tell.
    pub device: i8,
    /// Device address of the block; for driver calls as in [`crate::calls::op`].
    pub address: u64,
    /// Size in bytes, 0 where the call has none. Of pools the block size (rounded up by the allocator),
    /// negative for a free; ONNX Runtime's tells only what was asked for, and nothing at a free.
    pub size: i64,
    /// Id of the stack, or 0 for none (see `flags`).
    pub stack: u64,
    /// [`probe::TORCH_REPORT`] and [`probe::TORCH_OUT_OF_MEMORY`]: bytes allocated and reserved on this
    /// device after the event, by the allocator's own count. TensorFlow, JAX, ONNX Runtime: the pool's
    /// id ([`PoolRecord::pool`]). Driver calls: the further value of [`crate::calls::op`], or the
    /// `CUresult` of a failed call; and the return address, of a call of the runtime around it if there is one.
    pub extra: [u64; 2],
}

/// A [`MemoryEvent`] of a pool, and what was asked for.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockEvent {
    /// The event; its `tag` is [`tag::BLOCK`].
    pub event: MemoryEvent,
    /// Bytes asked for, at most those of the block; [`UNKNOWN_REQUEST`] where that is not known.
    pub requested: u64,
}

/// A [`MemoryEvent`] of a call whose size is one of dimensions ([`crate::calls::extent`]).
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallEvent {
    /// The event; its `tag` is [`tag::CALL`], its `size` 0.
    pub event: MemoryEvent,
    /// The arguments of the call, an extent among them ([`crate::calls::CallShape::extent`]).
    pub arguments: [u64; 6],
    /// What is at [`crate::calls::CallShape::words`]; 0 where it was not readable.
    pub words: [u64; 5],
}

/// In the place of a number of bytes.
pub const UNKNOWN_REQUEST: u64 = u64::MAX;

/// Bytes kept of the name of a pool.
pub const POOL_NAME_BYTES: usize = 64;

/// Definition of a pool that has a name.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolRecord {
    /// `tag` is [`tag::POOL`], `detail` one of [`probe`].
    pub header: RecordHeader,
    /// Its id: the address of the allocator.
    pub pool: u64,
    /// Its name, up to a zero byte.
    pub name: [u8; POOL_NAME_BYTES],
}

/// A piece of a Python string as it lies in memory: code points of 1, 2 or 4 bytes.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WireString<const N: usize> {
    /// Length of the whole string, in code points; may be more than `bytes` holds.
    pub length: u32,
    /// Bytes of `bytes` that are filled.
    pub filled: u16,
    /// Bytes per code point (1, 2 or 4); 0 when the string could not be read.
    pub width: u8,
    /// Zero.
    pub pad: u8,
    /// The code points, little-endian. Names keep their head, file names their tail.
    pub bytes: [u8; N],
}

/// Bytes kept of `co_name`.
pub const NAME_BYTES: usize = 128;
/// Bytes kept of `co_qualname`.
pub const QUALNAME_BYTES: usize = 256;
/// Bytes kept of `co_filename` (its tail).
pub const FILENAME_BYTES: usize = 512;

/// Definition of a code object. Its [`LinesRecord`]s follow before any stack that uses it.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CodeRecord {
    /// `tag` is [`tag::CODE`].
    pub header: RecordHeader,
    /// Id of this life of the code object; never reused while the tracer runs.
    pub code: u64,
    /// Its address.
    pub address: u64,
    /// `co_firstlineno`.
    pub first_line: i32,
    /// Size of its line table in bytes (`co_lnotab` up to 3.9, `co_linetable` from 3.10 on); may be
    /// more than the pieces sent.
    pub line_table_size: u32,
    /// `co_name`.
    pub name: WireString<NAME_BYTES>,
    /// `co_qualname`; `width` is 0 before CPython 3.11, which has none.
    pub qualname: WireString<QUALNAME_BYTES>,
    /// `co_filename`.
    pub filename: WireString<FILENAME_BYTES>,
}

/// A piece of a code object's line table. Only the first `filled` bytes are sent: a record is
/// [`LinesRecord::FIXED_SIZE`] plus that many bytes long.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinesRecord {
    /// `tag` is [`tag::LINES`].
    pub header: RecordHeader,
    /// Id of the code object.
    pub code: u64,
    /// Where in the table this piece starts, in bytes.
    pub offset: u32,
    /// Bytes of `bytes` that are filled.
    pub filled: u32,
    /// The piece.
    pub bytes: [u8; LINES_CHUNK],
}

impl LinesRecord {
    /// Bytes before the piece.
    pub const FIXED_SIZE: usize = core::mem::offset_of!(LinesRecord, bytes);
}

/// One frame of a [`StackRecord`].
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StackFrame {
    /// Id of the code object, or 0 when it could not be defined (then `address` still tells
    /// frames apart, but has no name).
    pub code: u64,
    /// Address of the code object.
    pub address: u64,
    /// Byte offset of the instruction being executed from the start of the bytecode; negative
    /// before the first.
    pub instruction: i32,
    /// Zero.
    pub pad: u32,
}

/// Definition of a stack. Only the first `header.detail` frames are sent: a record is
/// [`StackRecord::FIXED_SIZE`] plus that many [`StackFrame`]s long.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StackRecord {
    /// `tag` is [`tag::STACK`]; `detail` is the number of frames.
    pub header: RecordHeader,
    /// Id of the stack.
    pub stack: u64,
    /// Bits of [`stack_flag`].
    pub flags: u32,
    /// Zero.
    pub pad: u32,
    /// Id of the stack that goes on where this one ends, 0 for none: these frames ran inside of the backward
    /// pass that it began.
    pub outer: u64,
    /// Innermost frame first.
    pub frames: [StackFrame; MAX_FRAMES],
}

impl StackRecord {
    /// Bytes before the first frame.
    pub const FIXED_SIZE: usize = core::mem::offset_of!(StackRecord, frames);
}

/// Records that found no space in the ring buffer on one CPU since its last such record. It marks
/// the place in the stream from which on the ledger cannot be exact.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LossRecord {
    /// `tag` is [`tag::LOSS`]; `tgid` is the process whose event noticed the loss.
    pub header: RecordHeader,
    /// Time at which space was found again.
    pub time_ns: u64,
    /// Records of any kind that were dropped.
    pub dropped: u64,
}

/// Something happened to the process as a whole.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcessRecord {
    /// `tag` is [`tag::PROCESS`]; `detail` is one of [`process_kind`].
    pub header: RecordHeader,
    /// Time of the event.
    pub time_ns: u64,
    /// By [`process_kind`]; 0 where unused.
    pub value: u64,
}

/// A code object that was defined has been freed: its id is not used by any later stack.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CodeFreedRecord {
    /// `tag` is [`tag::CODE_FREED`].
    pub header: RecordHeader,
    /// Id of the code object.
    pub code: u64,
}

/// IPython begins to run a code object of a cell: the whole cell, or one of its statements. Its
/// [`CodeRecord`] comes before it.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CellRecord {
    /// `tag` is [`tag::CELL`].
    pub header: RecordHeader,
    /// Time of the call.
    pub time_ns: u64,
    /// Thread id.
    pub tid: u32,
    /// Zero.
    pub pad: u32,
    /// Id of the code object; 0 if it could not be defined.
    pub code: u64,
}

plain_data! {
    RecordHeader = 8,
    MemoryEvent = 64,
    BlockEvent = 72,
    CallEvent = 152,
    PoolRecord = 16 + POOL_NAME_BYTES,
    WireString<NAME_BYTES> = 8 + NAME_BYTES,
    WireString<QUALNAME_BYTES> = 8 + QUALNAME_BYTES,
    WireString<FILENAME_BYTES> = 8 + FILENAME_BYTES,
    CodeRecord = 32 + 24 + NAME_BYTES + QUALNAME_BYTES + FILENAME_BYTES,
    LinesRecord = 24 + LINES_CHUNK,
    StackFrame = 24,
    StackRecord = 32 + 24 * MAX_FRAMES,
    LossRecord = 24,
    ProcessRecord = 24,
    CodeFreedRecord = 16,
    CellRecord = 32,
}
