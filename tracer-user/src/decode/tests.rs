//! The decoder against records as the kernel half writes them, and against anything else.

use bytemuck::bytes_of;
use proptest::prelude::*;
use tracer_common::wire::{
    CallEvent, CodeFreedRecord, CodeRecord, LINES_CHUNK, LinesRecord, LossRecord, MAX_FRAMES,
    MemoryEvent, ProcessRecord, RecordHeader, StackFrame as WireFrame, StackRecord, WireString,
    phase, probe, process_kind, stack_flag, tag,
};

use super::*;
use crate::model::{
    AllocatorTotals, CodeAddress, CodeId, Device, DriverCall, EventKind, Level, Phase, Pid,
    PoolFacts, PoolId, StackId, StackRef,
};

fn header(tag: u16, detail: u16) -> RecordHeader {
    RecordHeader { tag, detail, tgid: 42 }
}

fn event() -> MemoryEvent {
    MemoryEvent {
        header: header(tag::MEMORY, 0),
        time_ns: 5,
        tid: 43,
        probe: probe::TORCH_REPORT,
        phase: phase::DONE,
        flags: 0,
        device: 1,
        address: 0x7000,
        size: 512,
        stack: 9,
        extra: [1024, 2048],
    }
}

fn memory(event: &MemoryEvent) -> crate::model::AllocationEvent {
    match decode(bytes_of(event)) {
        Ok(Record::Memory(event)) => event,
        other => panic!("{other:?}"),
    }
}

fn string<const N: usize>(text: &str, width: usize) -> WireString<N> {
    let mut bytes = [0; N];
    let units: Vec<u8> =
        text.chars().flat_map(|c| u32::from(c).to_le_bytes()[..width].to_vec()).collect();
    let filled = units.len().min(N);
    bytes[..filled].copy_from_slice(&units[..filled]);
    WireString {
        length: text.chars().count() as u32,
        filled: filled as u16,
        width: width as u8,
        pad: 0,
        bytes,
    }
}

#[test]
fn an_event_of_pytorch_has_device_and_totals() {
    let facts = PoolFacts {
        pool: PoolId::pytorch(Device(1)),
        totals: Some(AllocatorTotals { allocated: 1024, reserved: 2048 }),
        requested: None,
    };
    let alloc = memory(&event());
    assert_eq!((alloc.kind, alloc.size), (EventKind::PoolAlloc(facts), 512));
    assert_eq!(alloc.caller, None, "there the second value is a total");
    assert_eq!(alloc.stack, StackRef::Id(StackId(9)));
    let free = memory(&MemoryEvent { size: -512, ..event() });
    assert_eq!((free.kind, free.size), (EventKind::PoolFree(facts), 512));
}

#[test]
fn pools_without_totals_are_told_by_device_or_address() {
    let facts = |pool| PoolFacts { pool, totals: None, requested: None };
    let of_cupy = facts(PoolId::cupy(Device(1)));
    let alloc = memory(&MemoryEvent { probe: probe::CUPY_MALLOC, ..event() });
    assert_eq!((alloc.kind, alloc.size), (EventKind::PoolAlloc(of_cupy), 512));
    let free = memory(&MemoryEvent { probe: probe::CUPY_FREE, size: -512, ..event() });
    assert_eq!((free.kind, free.size), (EventKind::PoolFree(of_cupy), 512));
    let arena = facts(PoolId { level: Level::Onnxruntime, instance: 1024 });
    let alloc = memory(&MemoryEvent { probe: probe::ARENA_ALLOC, device: -1, ..event() });
    assert_eq!((alloc.kind, alloc.size), (EventKind::PoolAlloc(arena), 512));
    let free = memory(&MemoryEvent { probe: probe::ARENA_FREE, device: -1, size: 0, ..event() });
    assert_eq!((free.kind, free.size), (EventKind::PoolFree(arena), 0));
}

#[test]
fn an_event_of_the_driver_has_its_call_and_error() {
    let call = DriverCall::by_symbol("cuMemHostAlloc").unwrap();
    let index =
        tracer_common::calls::CALLS.iter().position(|c| c.symbol == "cuMemHostAlloc").unwrap();
    let event = memory(&MemoryEvent {
        probe: index as u8,
        phase: phase::FAILED,
        device: -1,
        stack: 0,
        flags: stack_flag::NO_PYTHON,
        extra: [2, 0xffff],
        ..event()
    });
    assert_eq!(event.kind, EventKind::Driver { call, phase: Phase::Failed(2), aux: 2 });
    assert_eq!((event.stack, event.caller), (StackRef::NoPython, Some(CodeAddress(0xffff))));
}

#[test]
fn the_size_of_an_array_is_worked_out() {
    let call = DriverCall::by_symbol("cuArrayCreate_v2").unwrap();
    let event =
        MemoryEvent { header: header(tag::CALL, 0), probe: call.index(), size: 0, ..event() };
    let record = CallEvent { event, arguments: [0; 6], words: [100, 7, 0x20 | 2 << 32, 0, 0] };
    let Ok(Record::Memory(found)) = decode(bytes_of(&record)) else { panic!() };
    assert_eq!(found.size, 100 * 7 * 8);
    // Only calls have one.
    let pool = MemoryEvent { probe: probe::TORCH_REPORT, ..record.event };
    assert!(decode(bytes_of(&CallEvent { event: pool, ..record })).is_err());
    assert!(decode(&bytes_of(&record)[..64]).is_err());
}

#[test]
fn strings_of_every_width_and_cut_ones() {
    let code = CodeRecord {
        header: header(tag::CODE, 0),
        code: 7,
        address: 1,
        first_line: 3,
        line_table_size: 2,
        name: string("größe", 1),
        qualname: string("数据.😀", 4),
        filename: WireString { length: 600, ..string("tail.py", 1) },
    };
    let Ok(Record::Code(found)) = decode(bytes_of(&code)) else { panic!() };
    assert_eq!(found.name.as_deref(), Some("größe"));
    assert_eq!(found.qualified_name.as_deref(), Some("数据.😀"));
    assert_eq!(found.filename.as_deref(), Some("…tail.py"));
    let unreadable = CodeRecord { name: WireString { width: 0, ..code.name }, ..code };
    let Ok(Record::Code(found)) = decode(bytes_of(&unreadable)) else { panic!() };
    assert_eq!(found.name, None);
    let surrogate = CodeRecord { name: string("\u{20}", 2), ..code };
    let mut lone = surrogate;
    lone.name.bytes[..2].copy_from_slice(&0xd800u16.to_le_bytes());
    let Ok(Record::Code(found)) = decode(bytes_of(&lone)) else { panic!() };
    assert_eq!(found.name.as_deref(), Some("\u{fffd}"));
}

#[test]
fn a_stack_is_as_long_as_it_says() {
    let mut stack = StackRecord {
        header: header(tag::STACK, 2),
        stack: 5,
        flags: u32::from(stack_flag::TRUNCATED | stack_flag::BACKWARD),
        pad: 0,
        outer: 7,
        frames: [WireFrame { code: 0, address: 0, instruction: 0, pad: 0 }; MAX_FRAMES],
    };
    stack.frames[0] = WireFrame { code: 1, address: 2, instruction: 4, pad: 0 };
    let sent = StackRecord::FIXED_SIZE + 2 * size_of::<WireFrame>();
    let Ok(Record::Stack(found)) = decode(&bytes_of(&stack)[..sent]) else { panic!() };
    assert_eq!((found.stack, found.truncated, found.faulted), (StackId(5), true, false));
    assert_eq!((found.backward, found.outer), (true, Some(StackId(7))));
    assert_eq!(found.frames.len(), 2);
    assert_eq!(found.frames[0], StackFrame { code: Some(CodeId(1)), instruction: 4 });
    assert_eq!(found.frames[1].code, None);
    assert!(decode(&bytes_of(&stack)[..sent - 1]).is_err());
    stack.header.detail = MAX_FRAMES as u16 + 1;
    assert!(decode(bytes_of(&stack)).is_err());
}

#[test]
fn the_small_records() {
    let freed = CodeFreedRecord { header: header(tag::CODE_FREED, 0), code: 8 };
    assert_eq!(decode(bytes_of(&freed)), Ok(Record::CodeFreed(Pid(42), CodeId(8))));
    let loss = LossRecord { header: header(tag::LOSS, 0), time_ns: 1, dropped: 3 };
    assert_eq!(decode(bytes_of(&loss)), Ok(Record::Loss { dropped: 3 }));
    let exit =
        ProcessRecord { header: header(tag::PROCESS, process_kind::EXIT), time_ns: 1, value: 9 };
    let change = ProcessChange::Exit { status: 9 };
    assert_eq!(decode(bytes_of(&exit)), Ok(Record::Process { pid: Pid(42), time_ns: 1, change }));
    let lines = LinesRecord {
        header: header(tag::LINES, 0),
        code: 8,
        offset: 1024,
        filled: 3,
        bytes: [1; LINES_CHUNK],
    };
    let Ok(Record::Lines(piece)) = decode(bytes_of(&lines)) else { panic!() };
    assert_eq!((piece.offset, piece.bytes), (1024, vec![1, 1, 1]));
    assert!(decode(bytes_of(&LinesRecord { filled: LINES_CHUNK as u32 + 1, ..lines })).is_err());
}

#[test]
fn what_is_unknown_is_named() {
    let unknown = |event: MemoryEvent| decode(bytes_of(&event)).unwrap_err().to_string();
    assert_eq!(unknown(MemoryEvent { probe: 99, ..event() }), "unknown probe `99`");
    assert_eq!(unknown(MemoryEvent { probe: 0, phase: 77, ..event() }), "unknown phase `77`");
    let other = RecordHeader { tag: 500, detail: 0, tgid: 1 };
    assert_eq!(decode(bytes_of(&other)).unwrap_err().to_string(), "unknown record tag `500`");
    assert_eq!(decode(&[1, 0]), Err(DecodeError::Short { tag: 0, length: 2 }));
}

proptest! {
    #[test]
    fn any_bytes_are_survived(
        tag in 0..9u16,
        detail in any::<u16>(),
        mut bytes in prop::collection::vec(any::<u8>(), 0..4000),
    ) {
        if let Some(start) = bytes.get_mut(..4) {
            start[..2].copy_from_slice(&tag.to_le_bytes());
            start[2..].copy_from_slice(&detail.to_le_bytes());
        }
        let _ = decode(&bytes);
    }
}
