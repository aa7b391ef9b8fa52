//! `_Py_DebugOffsets`: what an interpreter says of its own structures, from 3.13 on.
//!
//! It is the first field of `_PyRuntime`: a cookie, the version, whether the GIL is missing, then a `u64`
//! for each field. Where a slot lies is fixed within a minor version, and differs between them.

use super::{layout::PythonLayout, table::RuntimeLayout};

/// One slot and the value that it must have for the table to be right.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DebugOffset {
    /// Name as in CPython's source.
    pub name: &'static str,
    /// Byte position of the slot from the start of `_PyRuntime`.
    pub position: u16,
    /// The value.
    pub expected: u16,
}

/// Where the slots lie, in the order of [`NAMES`]. 3.13 has neither of the last two.
pub(super) const SLOTS_3_13: [u16; 22] = [
    40, 64, 72, 168, 176, 184, 192, 232, 240, 248, 264, 280, 288, 296, 304, 312, 344, 520, 528,
    544, 552, 560,
];
pub(super) const SLOTS_3_14: [u16; 24] = [
    40, 64, 72, 192, 200, 208, 216, 256, 264, 272, 288, 320, 328, 336, 344, 352, 384, 600, 608,
    624, 632, 640, 304, 392,
];
pub(super) const SLOTS_3_15: [u16; 24] = [
    40, 64, 72, 192, 200, 208, 240, 320, 328, 336, 352, 384, 392, 400, 408, 416, 448, 696, 704,
    720, 728, 736, 368, 456,
];

const NAMES: [&str; 24] = [
    "runtime_state.interpreters_head",
    "interpreter_state.next",
    "interpreter_state.threads_head",
    "thread_state.next",
    "thread_state.interp",
    "thread_state.current_frame",
    "thread_state.thread_id",
    "interpreter_frame.previous",
    "interpreter_frame.executable",
    "interpreter_frame.instr_ptr",
    "interpreter_frame.owner",
    "code_object.filename",
    "code_object.name",
    "code_object.qualname",
    "code_object.linetable",
    "code_object.firstlineno",
    "code_object.co_code_adaptive",
    "bytes_object.ob_size",
    "bytes_object.ob_sval",
    "unicode_object.state",
    "unicode_object.length",
    "unicode_object.asciiobject_size",
    "interpreter_frame.tlbc_index",
    "code_object.co_tlbc",
];

/// What an interpreter with these structures publishes, given where the slots lie.
pub(super) const fn published<const N: usize>(
    positions: [u16; N],
    layout: &PythonLayout,
    runtime: &RuntimeLayout,
) -> [DebugOffset; N] {
    let values = [
        runtime.interpreters_head,
        runtime.interpreter_next,
        runtime.interpreter_threads,
        runtime.tstate_next,
        runtime.tstate_interpreter,
        layout.tstate_frame,
        runtime.tstate_thread_id,
        layout.frame_previous,
        layout.frame_code,
        layout.frame_instruction,
        layout.frame_owner,
        layout.code_filename,
        layout.code_name,
        layout.code_qualname,
        layout.code_line_table,
        layout.code_first_line,
        layout.code_instructions,
        layout.bytes_size,
        layout.bytes_data,
        layout.string_state,
        layout.string_length,
        layout.string_ascii_data,
        layout.frame_copy,
        layout.code_copies,
    ];
    let mut slots = [DebugOffset { name: "", position: 0, expected: 0 }; N];
    let mut index = 0;
    while index < N {
        slots[index] =
            DebugOffset { name: NAMES[index], position: positions[index], expected: values[index] };
        index += 1;
    }
    slots
}
