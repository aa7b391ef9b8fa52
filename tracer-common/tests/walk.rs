//! The walk and the definitions over made-up memory, in every layout of the table.

use std::collections::BTreeMap;

use proptest::prelude::*;
use tracer_common::{
    ReadMem,
    config::{Interpreters, ThreadStateSource, thread_state_kind},
    python::{
        code::{UNKNOWN_INSTRUCTION, describe, has_name, instruction_offset, read_lines},
        layout::{PythonLayout, entry_kind, instruction_kind},
        subinterpreters::running,
        table::{self, VERSIONS},
        walk::{RawFrame, WalkState, innermost, thread_state, walk},
    },
    wire::{
        CodeRecord, LINES_CHUNK, LinesRecord, MAX_FRAMES, RecordHeader, WireString, stack_flag,
    },
};

const PAGE: u64 = 4096;

/// Memory as a process has it: in pages. A page on which nothing was written is not readable.
#[derive(Default)]
struct FakeMemory(BTreeMap<u64, Vec<u8>>);

impl FakeMemory {
    fn write(&mut self, at: u64, bytes: &[u8]) {
        for (address, byte) in (at..).zip(bytes) {
            let page = self.0.entry(address / PAGE).or_insert_with(|| vec![0xaa; PAGE as usize]);
            page[(address % PAGE) as usize] = *byte;
        }
    }

    fn write_u64(&mut self, at: u64, value: u64) {
        self.write(at, &value.to_le_bytes());
    }

    fn byte(&self, at: u64) -> Option<u8> {
        Some(self.0.get(&(at / PAGE))?[(at % PAGE) as usize])
    }
}

impl ReadMem for FakeMemory {
    unsafe fn read(&self, addr: u64, dst: *mut u8, len: u32) -> bool {
        let bytes = (0..u64::from(len)).map(|i| self.byte(addr.wrapping_add(i)));
        let Some(bytes) = bytes.collect::<Option<Vec<u8>>>() else { return false };
        // SAFETY: the caller vouches for `dst`.
        unsafe { dst.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
        true
    }
}

const TSTATE: u64 = 0x10_0000;
const CFRAME: u64 = 0x20_0000;
/// Where the data stack begins: outer frames lie lower.
const FRAMES: u64 = 0x30_0000;
const HEAP: u64 = 0x1000_0000;
/// Nothing is here.
const HOLE: u64 = 0x2000_0000;
const CODES: u64 = 0x4000_0000;

/// A frame to build: its code object and instruction, or a shim.
#[derive(Clone, Copy, Debug)]
struct Made {
    code: u64,
    instruction: u32,
    shim: bool,
    /// Bytes of its variables, after its fixed part; `None` if it is an object by itself, as a generator's.
    variables: Option<u64>,
}

fn made() -> impl Strategy<Value = Made> {
    let variables = prop::option::weighted(0.8, (0..200u64).prop_map(|words| 8 * words));
    (1..1000u64, 0..5000u32, prop::bool::weighted(0.2), variables).prop_map(
        |(code, instruction, shim, variables)| Made {
            code: CODES + 64 * code,
            instruction: 2 * instruction,
            shim,
            variables,
        },
    )
}

/// Where frames lie, innermost first, and 0 after the last.
fn addresses(layout: &PythonLayout, frames: &[Made], hole: Option<usize>) -> Vec<u64> {
    let size = u64::from(layout.frame_size).next_multiple_of(8);
    let mut top = FRAMES;
    let mut addresses: Vec<u64> = frames
        .iter()
        .enumerate()
        .rev()
        .map(|(index, frame)| match frame.variables {
            _ if Some(index) == hole => HOLE,
            Some(variables) => {
                let address = top;
                top += size + variables;
                address
            }
            None => HEAP + 8 * 77 * index as u64,
        })
        .collect();
    addresses.reverse();
    addresses.push(0);
    addresses
}

/// Lays frames out, innermost first; leaves the one at `hole` unreadable.
fn lay_out(layout: &PythonLayout, frames: &[Made], hole: Option<usize>) -> FakeMemory {
    let mut memory = FakeMemory::default();
    let addresses = addresses(layout, frames, hole);
    if layout.entry == entry_kind::CFRAME {
        memory.write_u64(TSTATE + u64::from(layout.tstate_frame), CFRAME);
        memory.write_u64(CFRAME + u64::from(layout.cframe_frame), addresses[0]);
    } else {
        memory.write_u64(TSTATE + u64::from(layout.tstate_frame), addresses[0]);
    }
    for (index, frame) in frames.iter().enumerate().filter(|(index, _)| Some(*index) != hole) {
        let at = addresses[index];
        memory.write(at, &vec![0xaa; usize::from(layout.frame_size)]);
        memory.write_u64(at + u64::from(layout.frame_previous), addresses[index + 1]);
        // 3.14 tags its references.
        let tag = u64::from(layout.frame_owner == 74);
        memory.write_u64(at + u64::from(layout.frame_code), frame.code | tag);
        let place = at + u64::from(layout.frame_instruction);
        match layout.instruction {
            instruction_kind::POINTER => {
                let mut start = frame.code + u64::from(layout.code_instructions);
                if layout.code_copies != 0 {
                    let copy = frame.instruction % COPIES;
                    start = write_copies(layout, frame.code, &mut memory)[copy as usize];
                    memory.write(at + u64::from(layout.frame_copy), &copy.to_le_bytes());
                }
                memory.write_u64(place, start + u64::from(frame.instruction));
            }
            instruction_kind::UNITS => memory.write(place, &(frame.instruction / 2).to_le_bytes()),
            _ => memory.write(place, &frame.instruction.to_le_bytes()),
        }
        if layout.shim_owner != 0 {
            let owner = if frame.shim { layout.shim_owner } else { 0 };
            memory.write(at + u64::from(layout.frame_owner), &[owner]);
        }
    }
    memory
}

/// Copies of the bytecode that every code object has, where there are copies.
const COPIES: u32 = 3;

/// Lays out the list of the copies of a code object's bytecode: its own, and others far away.
fn write_copies(
    layout: &PythonLayout,
    code: u64,
    memory: &mut FakeMemory,
) -> [u64; COPIES as usize] {
    let list = 0x5000_0000 + code;
    let starts = [code + u64::from(layout.code_instructions), 3 * code, 0x7_0000_0000 + code];
    memory.write_u64(code + u64::from(layout.code_copies), list);
    memory.write_u64(list, COPIES.into());
    for (index, start) in (1..).zip(starts) {
        memory.write_u64(list + 8 * index, start);
    }
    starts
}

fn walked(layout: &PythonLayout, memory: &FakeMemory) -> WalkState {
    let mut state = WalkState::new(1);
    walk(layout, TSTATE, &mut state, memory);
    state
}

/// What the walk should find: `(code, byte offset)` of every frame that is no shim.
fn expected(layout: &PythonLayout, frames: &[Made]) -> Vec<(u64, i32)> {
    frames
        .iter()
        .filter(|frame| !(frame.shim && layout.shim_owner != 0))
        .map(|frame| (frame.code, frame.instruction as i32))
        .collect()
}

fn found(layout: &PythonLayout, state: &WalkState, memory: &FakeMemory) -> Vec<(u64, i32)> {
    state.frames[..state.depth as usize]
        .iter()
        .map(|frame| (frame.code, instruction_offset(layout, frame, memory)))
        .collect()
}

fn version() -> impl Strategy<Value = &'static PythonLayout> {
    (0..VERSIONS.len()).prop_map(|index| &VERSIONS[index].layout)
}

proptest! {
    #[test]
    fn every_frame_is_found(layout in version(), frames in prop::collection::vec(made(), 1..100)) {
        let memory = lay_out(layout, &frames, None);
        let state = walked(layout, &memory);
        prop_assert_eq!(found(layout, &state, &memory), expected(layout, &frames));
        let none = expected(layout, &frames).is_empty();
        prop_assert_eq!(state.flags, if none { u32::from(stack_flag::NO_PYTHON) } else { 0 });
    }

    #[test]
    fn a_deep_stack_keeps_its_inner_frames(layout in version(), more in 1..100usize) {
        let frames: Vec<Made> = (0..MAX_FRAMES + more)
            .map(|i| Made {
                code: CODES + 64 * i as u64,
                instruction: 0,
                shim: false,
                variables: Some(8 * i as u64),
            })
            .collect();
        let memory = lay_out(layout, &frames, None);
        let state = walked(layout, &memory);
        prop_assert_eq!(found(layout, &state, &memory), &expected(layout, &frames)[..MAX_FRAMES]);
        prop_assert_eq!(state.flags, u32::from(stack_flag::TRUNCATED));
    }

    #[test]
    fn a_missing_page_ends_the_walk_and_is_told(
        layout in version(),
        frames in prop::collection::vec(made(), 1..60),
        hole in any::<prop::sample::Index>(),
    ) {
        let hole = hole.index(frames.len());
        let memory = lay_out(layout, &frames, Some(hole));
        let state = walked(layout, &memory);
        prop_assert_eq!(found(layout, &state, &memory), expected(layout, &frames[..hole]));
        prop_assert_eq!(state.flags, u32::from(stack_flag::FAULT));
    }

    /// The walk stops at the innermost frame of the function that it is told, and says so.
    #[test]
    fn the_boundary_and_what_is_outside_are_left_out(
        layout in version(),
        frames in prop::collection::vec(made(), 1..60),
        at in any::<prop::sample::Index>(),
    ) {
        let at = at.index(frames.len());
        let mut frames = frames;
        frames[at] = Made { code: CODES, shim: false, ..frames[at] };
        let mut state = WalkState::new(1);
        state.reset(1, CODES, 0);
        let memory = lay_out(layout, &frames, None);
        walk(layout, TSTATE, &mut state, &memory);
        prop_assert_eq!(found(layout, &state, &memory), expected(layout, &frames[..at]));
        prop_assert_eq!(state.flags, u32::from(stack_flag::BOUNDARY));
    }

    /// The walk stops at the frame that it is told, if that is one of the stack.
    #[test]
    fn a_frame_and_what_is_outside_are_left_out(
        layout in version(),
        frames in prop::collection::vec(made(), 1..60),
        at in any::<prop::sample::Index>(),
    ) {
        let at = at.index(frames.len());
        let memory = lay_out(layout, &frames, None);
        let mut state = WalkState::new(1);
        let mut frame = innermost(layout, TSTATE, &memory).unwrap();
        for _ in 0..at {
            frame = memory.read_u64(frame + u64::from(layout.frame_previous)).unwrap();
        }
        state.reset(1, 0, frame);
        walk(layout, TSTATE, &mut state, &memory);
        let inside = expected(layout, &frames[..at]);
        let nothing = if inside.is_empty() { stack_flag::NO_PYTHON } else { 0 };
        prop_assert_eq!(found(layout, &state, &memory), inside);
        prop_assert_eq!(state.flags, u32::from(nothing));
        state.reset(1, 0, 8);
        walk(layout, TSTATE, &mut state, &memory);
        prop_assert_eq!(found(layout, &state, &memory), expected(layout, &frames));
    }

    /// Stacks that differ in one place have different hashes, and the seed counts.
    #[test]
    fn hashes_differ(layout in version(), frames in prop::collection::vec(made(), 2..30), at in any::<prop::sample::Index>()) {
        let frames: Vec<Made> = frames.into_iter().map(|f| Made { shim: false, ..f }).collect();
        let hash = |frames: &[Made], seed| {
            let mut state = WalkState::new(seed);
            walk(layout, TSTATE, &mut state, &lay_out(layout, frames, None));
            state.hash
        };
        let mut other = frames.clone();
        other[at.index(frames.len())].instruction += 2;
        prop_assert_ne!(hash(&frames, 1), hash(&other, 1));
        prop_assert_ne!(hash(&frames, 1), hash(&frames, 2));
        prop_assert_eq!(hash(&frames, 1), hash(&frames, 1));
    }

    /// Whatever lies in memory, the walk ends.
    #[test]
    fn any_memory_is_survived(layout in version(), words in prop::collection::vec(0..64u64, 512)) {
        let mut memory = FakeMemory::default();
        for (index, word) in words.iter().enumerate() {
            memory.write_u64(TSTATE + 8 * index as u64, TSTATE + 8 * word);
        }
        let state = walked(layout, &memory);
        prop_assert!(state.depth as usize <= MAX_FRAMES);
    }

    #[test]
    fn names_of_every_width(
        layout in version(),
        name in prop_oneof!["\\PC{0,300}", Just("run_code".to_owned()), "run_cod[a-z]e?"],
        file in "\\PC{0,700}",
        table in prop::collection::vec(any::<u8>(), 0..3000),
    ) {
        const CODE: u64 = 0x50_0000;
        let mut memory = FakeMemory::default();
        let mut next = 0x60_0000;
        memory.write(CODE + u64::from(layout.code_first_line), &77i32.to_le_bytes());
        let mut string = |text: &str, field: u16, memory: &mut FakeMemory| {
            let widest = text.chars().map(u32::from).max().unwrap_or(0);
            let (width, ascii) = match widest { 0..=127 => (1, 1), 128..=255 => (1, 0), 256..=0xffff => (2, 0), _ => (4, 0) };
            let object = next;
            next += 0x10_000;
            memory.write_u64(CODE + u64::from(field), object);
            memory.write_u64(object + u64::from(layout.string_length), text.chars().count() as u64);
            let state = (width << layout.string_kind_shift) | (1 << (layout.string_kind_shift + 3)) | (ascii << (layout.string_kind_shift + 4));
            memory.write(object + u64::from(layout.string_state), &(state as u32).to_le_bytes());
            let data = if ascii == 1 { layout.string_ascii_data } else { layout.string_compact_data };
            let bytes: Vec<u8> = text.chars().flat_map(|c| u32::from(c).to_le_bytes()[..width].to_vec()).collect();
            memory.write(object + u64::from(data), &bytes);
            bytes
        };
        let name_bytes = string(&name, layout.code_name, &mut memory);
        let file_bytes = string(&file, layout.code_filename, &mut memory);
        memory.write_u64(CODE + u64::from(layout.code_line_table), 0x55_0000);
        memory.write_u64(0x55_0000 + u64::from(layout.bytes_size), table.len() as u64);
        memory.write(0x55_0000 + u64::from(layout.bytes_data), &table);

        let mut record = empty_code();
        let lines = describe(layout, CODE, &mut record, &memory);
        prop_assert_eq!(record.first_line, 77);
        let kept = name_bytes.len().min(record.name.bytes.len());
        prop_assert_eq!(&record.name.bytes[..usize::from(record.name.filled)], &name_bytes[..kept]);
        let skipped = file_bytes.len().saturating_sub(record.filename.bytes.len());
        prop_assert_eq!(&record.filename.bytes[..usize::from(record.filename.filled)], &file_bytes[skipped..]);
        prop_assert_eq!(record.filename.length as usize, file.chars().count());
        prop_assert_eq!(record.qualname.width, 0, "not there, so empty");
        let run_code = u64::from_le_bytes(*b"run_code");
        prop_assert_eq!(has_name(layout, CODE, run_code, &memory), name == "run_code");

        let mut read: Vec<u8> = Vec::new();
        while read.len() < table.len() {
            let mut piece = LinesRecord { header: record.header, code: 1, offset: 0, filled: 0, bytes: [0; LINES_CHUNK] };
            prop_assert!(read_lines(lines, record.line_table_size, read.len() as u32, &mut piece, &memory));
            read.extend(&piece.bytes[..piece.filled as usize]);
        }
        prop_assert_eq!(read, table);
    }
}

fn empty_code() -> CodeRecord {
    fn string<const N: usize>() -> WireString<N> {
        WireString { length: 0, filled: 0, width: 0, pad: 0, bytes: [0; N] }
    }
    CodeRecord {
        header: RecordHeader { tag: 0, detail: 0, tgid: 0 },
        code: 0,
        address: 0,
        first_line: 0,
        line_table_size: 0,
        name: string(),
        qualname: string(),
        filename: string(),
    }
}

#[test]
fn the_thread_state_is_found_by_its_pthread_key() {
    let mut memory = FakeMemory::default();
    // Key 37: the second-level block 1, its entry 5.
    let source = ThreadStateSource {
        kind: thread_state_kind::PTHREAD_KEY,
        slot: 16 * 5 + 8,
        offset: 1296 + 8,
    };
    memory.write_u64(0x7000 + 1304, 0x9000);
    memory.write_u64(0x9000 + 88, TSTATE);
    assert_eq!(thread_state(&source, 0x7000, &memory), Some(TSTATE));
    assert_eq!(thread_state(&source, 0x8000, &memory), None, "another thread");
    memory.write_u64(0x7000 + 1304, 0);
    assert_eq!(thread_state(&source, 0x7000, &memory), None, "no such block yet");
}

#[test]
fn the_thread_state_is_found_in_the_block_of_a_library() {
    let mut memory = FakeMemory::default();
    // Module 3; the variable is 40 bytes into its block.
    let source =
        ThreadStateSource { kind: thread_state_kind::TLS_OF_LIBRARY, slot: 16 * 3, offset: 40 };
    memory.write_u64(0x7000 + 8, 0xa000);
    memory.write_u64(0xa000 + 48, 0xb000);
    memory.write_u64(0xb000 + 40, TSTATE);
    assert_eq!(thread_state(&source, 0x7000, &memory), Some(TSTATE));
    assert_eq!(thread_state(&source, 0x8000, &memory), None, "another thread");
    memory.write_u64(0xa000 + 48, u64::MAX);
    assert_eq!(thread_state(&source, 0x7000, &memory), None, "a block that was not used yet");
}

#[test]
fn the_thread_state_is_found_at_its_variable() {
    let mut memory = FakeMemory::default();
    let source = ThreadStateSource { kind: thread_state_kind::TLS, slot: 0, offset: -40 };
    memory.write_u64(0x7000 - 40, TSTATE);
    assert_eq!(thread_state(&source, 0x7000, &memory), Some(TSTATE));
    memory.write_u64(0x7000 - 40, 0);
    assert_eq!(thread_state(&source, 0x7000, &memory), None, "a thread without Python");
}

/// Up to 3.11 the slot of a thread stays with the interpreter that the thread was in first.
#[test]
fn the_running_interpreter_is_the_current_one_if_its_thread_is_this() {
    const CURRENT: u64 = 0x1000;
    const HEAD: u64 = 0x1008;
    const MAIN: u64 = 0xa000;
    let of = Interpreters { current: CURRENT, head: HEAD, main: MAIN, thread_id: 152, pad: 0 };
    let other = TSTATE + 0x1000;
    // Current thread state, the thread of `other`, the newest interpreter; what runs on thread 7.
    for (current, thread, head, expected) in [
        (TSTATE, 7, MAIN, Some(TSTATE)),
        (TSTATE, 7, 0xb000, Some(TSTATE)),
        (other, 7, 0xb000, Some(other)),
        (other, 8, MAIN, Some(TSTATE)),
        (0, 7, MAIN, Some(TSTATE)),
        (other, 8, 0xb000, None),
        (0, 7, 0xb000, None),
    ] {
        let mut memory = FakeMemory::default();
        memory.write_u64(CURRENT, current);
        memory.write_u64(HEAD, head);
        memory.write_u64(other + 152, thread);
        assert_eq!(running(&of, 7, TSTATE, &memory), expected, "{current:#x} {thread} {head:#x}");
    }
    let always_right = Interpreters::default();
    assert_eq!(running(&always_right, 7, TSTATE, &FakeMemory::default()), Some(TSTATE));
}

/// A copy that the list does not have, or a list that is gone: no place is better than a wrong one.
#[test]
fn an_instruction_in_a_copy_that_is_not_there_has_no_place() {
    let layout = &table::find(14, true).unwrap().layout;
    let mut memory = FakeMemory::default();
    let code = 0x4000_0000;
    let starts = write_copies(layout, code, &mut memory);
    let frame = |copy| RawFrame { code, instruction: starts[2] + 6, copy, pad: 0 };
    assert_eq!(instruction_offset(layout, &frame(2), &memory), 6);
    for copy in [COPIES, u32::MAX] {
        assert_eq!(instruction_offset(layout, &frame(copy), &memory), UNKNOWN_INSTRUCTION);
    }
    let empty = FakeMemory::default();
    assert_eq!(instruction_offset(layout, &frame(2), &empty), UNKNOWN_INSTRUCTION);
}

#[test]
fn the_table_has_no_field_outside_of_what_is_read() {
    for version in &VERSIONS {
        let layout = &version.layout;
        assert!(layout.frame_size < 128);
        for field in [layout.frame_previous, layout.frame_code] {
            assert!(field + 8 <= layout.frame_size, "3.{}", version.minor);
        }
        let width = if layout.instruction == instruction_kind::POINTER { 8 } else { 4 };
        assert!(layout.frame_instruction + width <= layout.frame_size, "3.{}", version.minor);
        assert!(layout.code_copies == 0 || layout.frame_copy + 4 <= layout.frame_size);
        assert!(layout.shim_owner == 0 || layout.frame_owner < layout.frame_size);
        assert_eq!(version.debug_offsets.is_empty(), version.minor < 13);
    }
    for minor in 8..=15 {
        assert!(table::find(minor, false).is_some(), "3.{minor}");
        assert_eq!(table::find(minor, true).is_some(), minor >= 13, "3.{minor}t");
    }
    assert!(table::find(7, false).is_none() && table::find(16, false).is_none());
}
