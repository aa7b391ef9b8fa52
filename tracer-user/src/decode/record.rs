//! Records.

use bytemuck::Pod;
use thiserror::Error;
use tracer_common::wire::{
    BlockEvent, CallEvent, CellRecord, CodeFreedRecord, CodeRecord, LINES_CHUNK, LinesRecord,
    LossRecord, MAX_FRAMES, MemoryEvent, PoolRecord, ProcessRecord, RecordHeader,
    StackFrame as WireFrame, StackRecord, UNKNOWN_REQUEST, phase, probe, process_kind, stack_flag,
    tag,
};

use super::string::{Kept, text};
use crate::model::{
    AllocationEvent, AllocatorTotals, CodeAddress, CodeId, Device, DeviceAddress, DriverCall,
    EventKind, Level, Phase, Pid, PoolFacts, PoolId, StackId, StackRef, Tid,
};

/// A record that cannot be decoded: the two halves disagree on the ABI.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum DecodeError {
    /// Too short for its tag.
    #[error("record with tag {tag} is {length} bytes long, too short")]
    Short {
        /// Its tag, 0 if even that is missing.
        tag: u16,
        /// Its length.
        length: usize,
    },
    /// A tag, probe or kind that this version does not know.
    #[error("unknown {what} `{value}`")]
    Unknown {
        /// What it should have been.
        what: &'static str,
        /// The value.
        value: u16,
    },
}

/// What travels through the ring buffer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Record {
    /// An allocation or free.
    Memory(AllocationEvent),
    /// A code object's names.
    Code(CodeDefinition),
    /// A piece of a code object's line table.
    Lines(LinesPiece),
    /// A stack.
    Stack(StackDefinition),
    /// The name of a pool.
    Pool(PoolDefinition),
    /// A code object is gone.
    CodeFreed(Pid, CodeId),
    /// IPython begins to run a code object of a cell.
    Cell(CellStart),
    /// Records were dropped before this place in the stream.
    Loss {
        /// Number of records.
        dropped: u64,
    },
    /// Something happened to the whole process.
    Process {
        /// The process.
        pid: Pid,
        /// When, in nanoseconds of `CLOCK_MONOTONIC`.
        time_ns: u64,
        /// What.
        change: ProcessChange,
    },
}

/// IPython begins to run a code object of a cell: the whole cell, or one of its statements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CellStart {
    /// The process.
    pub pid: Pid,
    /// The thread.
    pub tid: Tid,
    /// When, in nanoseconds of `CLOCK_MONOTONIC`.
    pub time_ns: u64,
    /// The code object, if it could be defined.
    pub code: Option<CodeId>,
}

/// What happened to a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProcessChange {
    /// Its last thread exited.
    Exit {
        /// Its wait status.
        status: u32,
    },
    /// It replaced its program.
    Exec,
    /// The dynamic loader added or removed libraries.
    LibrariesChanged,
    /// It made a child, which is traced.
    Fork {
        /// The child.
        child: Pid,
    },
}

/// The name of a pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolDefinition {
    /// The process.
    pub pid: Pid,
    /// The pool.
    pub pool: PoolId,
    /// As the framework named it.
    pub name: String,
}

/// A code object's names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CodeDefinition {
    /// The process.
    pub pid: Pid,
    /// Its id.
    pub code: CodeId,
    /// `co_name`, if it could be read.
    pub name: Option<String>,
    /// `co_qualname`, from CPython 3.11 on.
    pub qualified_name: Option<String>,
    /// `co_filename`, if it could be read.
    pub filename: Option<String>,
    /// `co_firstlineno`.
    pub first_line: i32,
    /// Bytes of the whole line table.
    pub line_table_size: u32,
}

/// A piece of a line table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinesPiece {
    /// The process.
    pub pid: Pid,
    /// The code object.
    pub code: CodeId,
    /// Where the piece starts.
    pub offset: u32,
    /// The piece.
    pub bytes: Vec<u8>,
}

/// A stack.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StackDefinition {
    /// The process.
    pub pid: Pid,
    /// Its id.
    pub stack: StackId,
    /// Outer frames are missing: there were too many.
    pub truncated: bool,
    /// Outer frames are missing: memory was not resident.
    pub faulted: bool,
    /// It began a backward pass, which allocated.
    pub backward: bool,
    /// The stack that goes on where this one ends.
    pub outer: Option<StackId>,
    /// Innermost first.
    pub frames: Vec<StackFrame>,
}

/// A frame of a stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct StackFrame {
    /// The code object, if it could be defined.
    pub code: Option<CodeId>,
    /// Byte offset of the instruction in the bytecode.
    pub instruction: i32,
}

/// Decodes one record.
///
/// # Errors
///
/// [`DecodeError`] if it is too short for its tag, or a tag, probe or kind is unknown.
pub fn decode(bytes: &[u8]) -> Result<Record, DecodeError> {
    let header: RecordHeader = read(bytes, 0)?;
    let pid = Pid(header.tgid);
    Ok(match header.tag {
        tag::MEMORY => Record::Memory(memory(&read(bytes, tag::MEMORY)?, None)?),
        tag::BLOCK => {
            let record: BlockEvent = read(bytes, tag::BLOCK)?;
            let requested = Some(record.requested).filter(|&bytes| bytes != UNKNOWN_REQUEST);
            Record::Memory(memory(&record.event, requested)?)
        }
        tag::CALL => Record::Memory(sized(&read(bytes, tag::CALL)?)?),
        tag::POOL => Record::Pool(pool_definition(pid, &read(bytes, tag::POOL)?)?),
        tag::CODE => Record::Code(code(pid, &read(bytes, tag::CODE)?)),
        tag::LINES => Record::Lines(lines(pid, bytes)?),
        tag::STACK => Record::Stack(stack(pid, bytes, header.detail)?),
        tag::CODE_FREED => {
            let record: CodeFreedRecord = read(bytes, tag::CODE_FREED)?;
            Record::CodeFreed(pid, CodeId(record.code))
        }
        tag::CELL => {
            let record: CellRecord = read(bytes, tag::CELL)?;
            Record::Cell(CellStart {
                pid,
                tid: Tid(record.tid),
                time_ns: record.time_ns,
                code: (record.code != 0).then_some(CodeId(record.code)),
            })
        }
        tag::LOSS => {
            let record: LossRecord = read(bytes, tag::LOSS)?;
            Record::Loss { dropped: record.dropped }
        }
        tag::PROCESS => {
            let record: ProcessRecord = read(bytes, tag::PROCESS)?;
            let change = match record.header.detail {
                process_kind::EXIT => ProcessChange::Exit { status: record.value as u32 },
                process_kind::EXEC => ProcessChange::Exec,
                process_kind::LIBRARIES_CHANGED => ProcessChange::LibrariesChanged,
                process_kind::FORK => ProcessChange::Fork { child: Pid(record.value as u32) },
                value => return Err(DecodeError::Unknown { what: "process change", value }),
            };
            Record::Process { pid, time_ns: record.time_ns, change }
        }
        value => return Err(DecodeError::Unknown { what: "record tag", value }),
    })
}

fn read<T: Pod>(bytes: &[u8], tag: u16) -> Result<T, DecodeError> {
    bytes
        .get(..size_of::<T>())
        .map(bytemuck::pod_read_unaligned)
        .ok_or(DecodeError::Short { tag, length: bytes.len() })
}

fn memory(event: &MemoryEvent, requested: Option<u64>) -> Result<AllocationEvent, DecodeError> {
    let kind = match event.probe {
        probe::TORCH_REPORT if event.size < 0 => EventKind::PoolFree(pool(event, requested)?),
        probe::TORCH_REPORT => EventKind::PoolAlloc(pool(event, requested)?),
        probe::TORCH_OUT_OF_MEMORY => EventKind::PoolOutOfMemory(pool(event, requested)?),
        probe::TORCH_SEGMENT_FREED => {
            EventKind::SegmentFreed(u8::try_from(event.device).ok().map(Device))
        }
        probe::TORCH_SEGMENT_PRIVATE => EventKind::SegmentPrivate(device(event)?),
        probe::TORCH_CPU_NEW => EventKind::CpuAlloc,
        probe::TORCH_CPU_DELETE => EventKind::CpuFree,
        probe => match pool_level(probe) {
            Some(level) => {
                let pool = match level {
                    Level::Cupy => PoolId::cupy(device(event)?),
                    _ => PoolId { level, instance: event.extra[0] },
                };
                let facts = PoolFacts { pool, totals: None, requested };
                if event.size < 0 || probe == probe::ARENA_FREE {
                    EventKind::PoolFree(facts)
                } else {
                    EventKind::PoolAlloc(facts)
                }
            }
            None => driver(event)?,
        },
    };
    let stack = if event.stack != 0 {
        StackRef::Id(StackId(event.stack))
    } else if event.flags & stack_flag::NO_PYTHON != 0 {
        StackRef::NoPython
    } else {
        StackRef::NotTaken
    };
    let size = match kind {
        EventKind::PoolAlloc(_) | EventKind::PoolFree(_) => event.size.unsigned_abs(),
        // Unsigned in these interfaces.
        _ => event.size as u64,
    };
    let caller = match kind {
        EventKind::Driver { .. } if event.extra[1] != 0 => Some(CodeAddress(event.extra[1])),
        _ => None,
    };
    Ok(AllocationEvent {
        time_ns: event.time_ns,
        pid: Pid(event.header.tgid),
        tid: Tid(event.tid),
        kind,
        address: DeviceAddress(event.address),
        size,
        stack,
        caller,
    })
}

/// A call whose size has to be worked out.
fn sized(record: &CallEvent) -> Result<AllocationEvent, DecodeError> {
    let event = memory(&record.event, None)?;
    let EventKind::Driver { call, phase, .. } = event.kind else {
        return Err(DecodeError::Unknown { what: "probe", value: record.event.probe.into() });
    };
    let failed = matches!(phase, Phase::Failed(_));
    Ok(AllocationEvent { size: call.size(failed, &record.arguments, &record.words), ..event })
}

fn pool(event: &MemoryEvent, requested: Option<u64>) -> Result<PoolFacts, DecodeError> {
    let totals = AllocatorTotals { allocated: event.extra[0], reserved: event.extra[1] };
    Ok(PoolFacts { pool: PoolId::pytorch(device(event)?), totals: Some(totals), requested })
}

fn pool_definition(pid: Pid, record: &PoolRecord) -> Result<PoolDefinition, DecodeError> {
    let detail = record.header.detail;
    let level = u8::try_from(detail).ok().and_then(pool_level);
    let level = level.ok_or(DecodeError::Unknown { what: "pool", value: detail })?;
    let name = record.name.split(|&byte| byte == 0).next().unwrap_or_default();
    Ok(PoolDefinition {
        pid,
        pool: PoolId { level, instance: record.pool },
        name: String::from_utf8_lossy(name).into_owned(),
    })
}

/// The level of the pools that a probe sees, of those without totals.
fn pool_level(probe: u8) -> Option<Level> {
    match probe {
        probe::CUPY_MALLOC | probe::CUPY_FREE => Some(Level::Cupy),
        probe::ARENA_ALLOC | probe::ARENA_FREE => Some(Level::Onnxruntime),
        probe::BFC_TENSORFLOW => Some(Level::Tensorflow),
        probe::BFC_JAX => Some(Level::Jax),
        _ => None,
    }
}

fn device(event: &MemoryEvent) -> Result<Device, DecodeError> {
    u8::try_from(event.device)
        .map(Device)
        .map_err(|_negative| DecodeError::Unknown { what: "device", value: event.device as u16 })
}

fn driver(event: &MemoryEvent) -> Result<EventKind, DecodeError> {
    let call = DriverCall::new(event.probe)
        .ok_or(DecodeError::Unknown { what: "probe", value: event.probe.into() })?;
    let phase = match event.phase {
        phase::DONE => Phase::Done,
        phase::BEGUN => Phase::Begun,
        phase::FAILED => Phase::Failed(event.extra[0] as u32),
        value => return Err(DecodeError::Unknown { what: "phase", value: value.into() }),
    };
    Ok(EventKind::Driver { call, phase, aux: event.extra[0] })
}

fn code(pid: Pid, record: &CodeRecord) -> CodeDefinition {
    CodeDefinition {
        pid,
        code: CodeId(record.code),
        name: text(&record.name, Kept::Head),
        qualified_name: text(&record.qualname, Kept::Head),
        filename: text(&record.filename, Kept::Tail),
        first_line: record.first_line,
        line_table_size: record.line_table_size,
    }
}

fn lines(pid: Pid, bytes: &[u8]) -> Result<LinesPiece, DecodeError> {
    let short = DecodeError::Short { tag: tag::LINES, length: bytes.len() };
    let (fixed, rest) = bytes.split_at_checked(LinesRecord::FIXED_SIZE).ok_or(short.clone())?;
    let code: u64 = read(&fixed[core::mem::offset_of!(LinesRecord, code)..], tag::LINES)?;
    let offset: u32 = read(&fixed[core::mem::offset_of!(LinesRecord, offset)..], tag::LINES)?;
    let filled: u32 = read(&fixed[core::mem::offset_of!(LinesRecord, filled)..], tag::LINES)?;
    let piece = rest.get(..filled as usize).filter(|piece| piece.len() <= LINES_CHUNK);
    Ok(LinesPiece { pid, code: CodeId(code), offset, bytes: piece.ok_or(short)?.to_vec() })
}

fn stack(pid: Pid, bytes: &[u8], depth: u16) -> Result<StackDefinition, DecodeError> {
    let short = DecodeError::Short { tag: tag::STACK, length: bytes.len() };
    let depth = usize::from(depth);
    if depth > MAX_FRAMES {
        return Err(DecodeError::Unknown { what: "stack depth", value: depth as u16 });
    }
    let fixed = bytes.get(..StackRecord::FIXED_SIZE).ok_or(short.clone())?;
    let id: u64 = read(&fixed[core::mem::offset_of!(StackRecord, stack)..], tag::STACK)?;
    let flags: u32 = read(&fixed[core::mem::offset_of!(StackRecord, flags)..], tag::STACK)?;
    let outer: u64 = read(&fixed[core::mem::offset_of!(StackRecord, outer)..], tag::STACK)?;
    let frames = bytes
        .get(StackRecord::FIXED_SIZE..)
        .and_then(|rest| rest.get(..depth * size_of::<WireFrame>()))
        .ok_or(short)?;
    let frames = frames
        .chunks_exact(size_of::<WireFrame>())
        .map(|bytes| {
            let frame: WireFrame = bytemuck::pod_read_unaligned(bytes);
            StackFrame {
                code: (frame.code != 0).then_some(CodeId(frame.code)),
                instruction: frame.instruction,
            }
        })
        .collect();
    Ok(StackDefinition {
        pid,
        stack: StackId(id),
        truncated: flags & u32::from(stack_flag::TRUNCATED) != 0,
        faulted: flags & u32::from(stack_flag::FAULT) != 0,
        backward: flags & u32::from(stack_flag::BACKWARD) != 0,
        outer: (outer != 0).then_some(StackId(outer)),
        frames,
    })
}
