//! Definitions of code objects: names and where the line table lies.

use core::hint::black_box;

use super::{
    layout::{PythonLayout, instruction_kind},
    walk::RawFrame,
};
use crate::{
    ReadMem,
    wire::{CodeRecord, FILENAME_BYTES, LINES_CHUNK, LinesRecord, WireString},
};

/// Which end of a string is kept when it does not fit.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Keep {
    Head,
    Tail,
}

/// Fills `record` with the names of the code object at `code`, and returns the address of its line
/// table's bytes. A part that cannot be read is left empty (`width` 0, size 0), never guessed.
#[inline(always)]
pub fn describe(
    layout: &PythonLayout,
    code: u64,
    record: &mut CodeRecord,
    mem: &impl ReadMem,
) -> u64 {
    record.address = code;
    record.first_line =
        mem.read_u32(code.wrapping_add(u64::from(layout.code_first_line))).unwrap_or(0) as i32;
    read_string(layout, code, layout.code_name, Keep::Head, &mut record.name, mem);
    read_string(layout, code, layout.code_qualname, Keep::Head, &mut record.qualname, mem);
    read_string(layout, code, layout.code_filename, Keep::Tail, &mut record.filename, mem);
    record.line_table_size = 0;
    let Some(bytes) = mem.read_u64(code.wrapping_add(u64::from(layout.code_line_table))) else {
        return 0;
    };
    match mem.read_u64(bytes.wrapping_add(u64::from(layout.bytes_size))) {
        Some(size) if size <= u64::from(u32::MAX) => record.line_table_size = size as u32,
        _ => {}
    }
    bytes.wrapping_add(u64::from(layout.bytes_data))
}

/// Whether the name of the code object at `code` is these eight ASCII characters.
#[inline(always)]
pub fn has_name(layout: &PythonLayout, code: u64, name: u64, mem: &impl ReadMem) -> bool {
    let field = |base: u64, offset: u16| mem.read_u64(base.wrapping_add(u64::from(offset)));
    let Some(object) = field(code, layout.code_name) else { return false };
    field(object, layout.string_length) == Some(8)
        && field(object, layout.string_ascii_data) == Some(name)
}

/// Fills `record` with the piece of the line table at `table` that starts at `offset`; `false` when
/// it cannot be read. `size` is the size of the whole table.
#[inline(always)]
pub fn read_lines(
    table: u64,
    size: u32,
    offset: u32,
    record: &mut LinesRecord,
    mem: &impl ReadMem,
) -> bool {
    let left = size.wrapping_sub(offset);
    let filled = if left > LINES_CHUNK as u32 { LINES_CHUNK as u32 } else { left };
    record.offset = offset;
    record.filled = filled;
    read_bytes(table.wrapping_add(u64::from(offset)), filled, &mut record.bytes, mem)
}

/// An instruction whose place in its code is not known: behind every line.
pub const UNKNOWN_INSTRUCTION: i32 = i32::MAX;

/// Byte offset of a frame's instruction from the start of its bytecode.
#[inline(always)]
pub fn instruction_offset(layout: &PythonLayout, frame: &RawFrame, mem: &impl ReadMem) -> i32 {
    match layout.instruction {
        instruction_kind::POINTER => match start_of_bytecode(layout, frame, mem) {
            Some(start) => frame.instruction.wrapping_sub(start) as i32,
            None => UNKNOWN_INSTRUCTION,
        },
        instruction_kind::UNITS => (frame.instruction as i32).wrapping_mul(2),
        _ => frame.instruction as i32,
    }
}

/// Without the GIL every thread but the first runs a copy of the bytecode from 3.14 on. The list of them,
/// `_PyCodeArray`, is its length and that many pointers, the first to the bytecode in the code object.
#[inline(always)]
fn start_of_bytecode(layout: &PythonLayout, frame: &RawFrame, mem: &impl ReadMem) -> Option<u64> {
    if layout.code_copies == 0 {
        return Some(frame.code.wrapping_add(u64::from(layout.code_instructions)));
    }
    // Zero where it is not readable: nothing to branch on, which verifiers like.
    let read = |addr: u64| {
        let mut value = 0u64;
        // SAFETY: `value` is eight writable bytes.
        unsafe { mem.read(addr, (&raw mut value).cast(), 8) };
        value
    };
    let copies = read(frame.code.wrapping_add(u64::from(layout.code_copies)));
    let count = read(copies);
    let copy = u64::from(frame.copy);
    let start = read(copies.wrapping_add(8 + 8 * copy));
    (copy < count && start != 0).then_some(start)
}

/// Fills the first `length` bytes of `bytes`.
///
/// Verifiers of older kernels (6.1 among them) lose the bound of a length when the compiler compares
/// one register and passes on a copy of another, as it does for a minimum. So the value is made
/// opaque and compared just before it is used.
#[inline(always)]
fn read_bytes<const N: usize>(
    addr: u64,
    length: u32,
    bytes: &mut [u8; N],
    mem: &impl ReadMem,
) -> bool {
    let length = black_box(length);
    if length > N as u32 {
        return false;
    }
    // SAFETY: `length` is at most the length of `bytes`.
    unsafe { mem.read(addr, bytes.as_mut_ptr(), length) }
}

#[inline(always)]
fn read_string<const N: usize>(
    layout: &PythonLayout,
    code: u64,
    field: u16,
    keep: Keep,
    string: &mut WireString<N>,
    mem: &impl ReadMem,
) {
    const { assert!(N <= FILENAME_BYTES && N.is_power_of_two()) };
    string.length = 0;
    string.filled = 0;
    string.width = 0;
    string.pad = 0;
    if field == 0 {
        return;
    }
    let Some(object) = mem.read_u64(code.wrapping_add(u64::from(field))) else { return };
    let Some(length) = mem.read_u64(object.wrapping_add(u64::from(layout.string_length))) else {
        return;
    };
    let Some(state) = mem.read_u32(object.wrapping_add(u64::from(layout.string_state))) else {
        return;
    };
    let width = (state >> (layout.string_kind_shift & 31)) & 7;
    // `compact` and `ascii` follow `kind` (three bits).
    let flags = state >> ((layout.string_kind_shift + 3) & 31);
    let (compact, ascii) = (flags & 1 != 0, flags & 2 != 0);
    if !compact || !(width == 1 || width == 2 || width == 4) || length > u64::from(u32::MAX) {
        return;
    }
    let data = u64::from(if ascii { layout.string_ascii_data } else { layout.string_compact_data });
    let total = length.wrapping_mul(u64::from(width));
    let filled = if total > N as u64 { N as u32 } else { total as u32 };
    let skipped = if keep == Keep::Tail { total - u64::from(filled) } else { 0 };
    let start = object.wrapping_add(data).wrapping_add(skipped);
    if read_bytes(start, filled, &mut string.bytes, mem) {
        string.length = length as u32;
        string.filled = filled as u16;
        string.width = width as u8;
    }
}
