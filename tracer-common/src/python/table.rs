//! Structure offsets of every supported CPython, as data.
//!
//! Source: compiled against each build's own headers, and checked at run time on x86-64 (CPython
//! 3.8.18, 3.9.18, 3.10.13, 3.11.2, 3.11.7, 3.12.1, 3.13.0, 3.13.5, 3.14; free-threaded 3.13.5).
//! Offsets are fixed within a minor version. From 3.13 on an interpreter publishes many of them as
//! `_Py_DebugOffsets`, the first field of `_PyRuntime`; [`PythonVersion::debug_offsets`] lists the
//! values that must agree, so that a build with other structures is refused instead of misread.

use super::layout::{PythonLayout, entry_kind, instruction_kind};

/// Offsets that only user space needs, to find and check the thread state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RuntimeLayout {
    /// `_PyRuntimeState.interpreters.head`.
    pub interpreters_head: u16,
    /// The pthread key: `gilstate.autoTSSkey` (to 3.11) or `autoTSSkey`. Two ints: whether it was
    /// initialised, then the key. `None` when the version has a thread-local variable instead.
    pub auto_tss_key: Option<u16>,
    /// `PyInterpreterState.next`.
    pub interpreter_next: u16,
    /// `PyInterpreterState.tstate_head` or `.threads.head`.
    pub interpreter_threads: u16,
    /// `PyThreadState.next`.
    pub tstate_next: u16,
    /// `PyThreadState.interp`.
    pub tstate_interpreter: u16,
    /// `PyThreadState.thread_id`: `pthread_self()`, which on x86-64 glibc is the thread pointer.
    pub tstate_thread_id: u16,
    /// `PyTypeObject.tp_dealloc`.
    pub type_dealloc: u16,
}

/// One slot of `_Py_DebugOffsets` and the value it must have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DebugOffset {
    /// Name as in CPython's source.
    pub name: &'static str,
    /// Byte position of the slot, a `u64`, from the start of `_PyRuntime`.
    pub position: u16,
    /// The value.
    pub expected: u16,
}

/// Everything known about one CPython minor version and build flavour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PythonVersion {
    /// The `x` of CPython 3.x.
    pub minor: u8,
    /// Whether the build has no GIL (`Py_GIL_DISABLED`).
    pub free_threaded: bool,
    /// What the kernel half reads.
    pub layout: PythonLayout,
    /// What user space reads.
    pub runtime: RuntimeLayout,
    /// What the interpreter itself must say.
    pub debug_offsets: &'static [DebugOffset],
}

/// Looks a version up; `None` when its structures are unknown.
pub fn find(minor: u8, free_threaded: bool) -> Option<&'static PythonVersion> {
    VERSIONS.iter().find(|v| v.minor == minor && v.free_threaded == free_threaded)
}

/// All versions, oldest first.
pub static VERSIONS: [PythonVersion; 8] = [
    PythonVersion {
        minor: 8,
        free_threaded: false,
        layout: PythonLayout {
            instruction: instruction_kind::BYTES,
            frame_instruction: 104,
            ..BEFORE_3_11
        },
        runtime: RuntimeLayout { auto_tss_key: Some(1392), ..RUNTIME_BEFORE_3_11 },
        debug_offsets: &[],
    },
    PythonVersion {
        minor: 9,
        free_threaded: false,
        layout: PythonLayout {
            instruction: instruction_kind::BYTES,
            frame_instruction: 104,
            ..BEFORE_3_11
        },
        runtime: RuntimeLayout { auto_tss_key: Some(584), ..RUNTIME_BEFORE_3_11 },
        debug_offsets: &[],
    },
    PythonVersion {
        minor: 10,
        free_threaded: false,
        layout: BEFORE_3_11,
        runtime: RuntimeLayout { auto_tss_key: Some(584), ..RUNTIME_BEFORE_3_11 },
        debug_offsets: &[],
    },
    PythonVersion {
        minor: 11,
        free_threaded: false,
        layout: PythonLayout {
            entry: entry_kind::CFRAME,
            tstate_frame: 56,
            cframe_frame: 8,
            frame_previous: 48,
            frame_code: 32,
            // 3.11 has no shim frames: a boundary to C is a flag of the Python frame.
            shim_owner: 0,
            code_first_line: 72,
            code_instructions: 184,
            string_ascii_data: 48,
            string_compact_data: 72,
            ..SINCE_3_12
        },
        runtime: RuntimeLayout {
            interpreters_head: 40,
            auto_tss_key: Some(592),
            interpreter_next: 0,
            interpreter_threads: 16,
            tstate_next: 8,
            tstate_interpreter: 16,
            tstate_thread_id: 152,
            type_dealloc: 48,
        },
        debug_offsets: &[],
    },
    PythonVersion {
        minor: 12,
        free_threaded: false,
        layout: SINCE_3_12,
        runtime: RuntimeLayout {
            interpreters_head: 40,
            auto_tss_key: Some(1544),
            interpreter_next: 0,
            interpreter_threads: 72,
            tstate_next: 8,
            tstate_interpreter: 16,
            tstate_thread_id: 136,
            type_dealloc: 48,
        },
        debug_offsets: &[],
    },
    PythonVersion {
        minor: 13,
        free_threaded: false,
        layout: LAYOUT_3_13,
        runtime: RUNTIME_3_13,
        debug_offsets: &[
            DebugOffset { name: "runtime_state.interpreters_head", position: 40, expected: 632 },
            DebugOffset { name: "interpreter_state.threads_head", position: 72, expected: 7344 },
            DebugOffset { name: "thread_state.current_frame", position: 184, expected: 72 },
            DebugOffset { name: "interpreter_frame.previous", position: 232, expected: 8 },
            DebugOffset { name: "interpreter_frame.executable", position: 240, expected: 0 },
            DebugOffset { name: "interpreter_frame.instr_ptr", position: 248, expected: 56 },
            DebugOffset { name: "interpreter_frame.owner", position: 264, expected: 70 },
            DebugOffset { name: "code_object.filename", position: 280, expected: 112 },
            DebugOffset { name: "code_object.name", position: 288, expected: 120 },
            DebugOffset { name: "code_object.qualname", position: 296, expected: 128 },
            DebugOffset { name: "code_object.linetable", position: 304, expected: 136 },
            DebugOffset { name: "code_object.firstlineno", position: 312, expected: 68 },
            DebugOffset { name: "code_object.co_code_adaptive", position: 344, expected: 200 },
            DebugOffset { name: "bytes_object.ob_size", position: 520, expected: 16 },
            DebugOffset { name: "bytes_object.ob_sval", position: 528, expected: 32 },
            DebugOffset { name: "unicode_object.state", position: 544, expected: 32 },
            DebugOffset { name: "unicode_object.length", position: 552, expected: 16 },
            DebugOffset { name: "unicode_object.asciiobject_size", position: 560, expected: 40 },
        ],
    },
    PythonVersion {
        minor: 13,
        free_threaded: true,
        layout: PythonLayout {
            code_filename: 128,
            code_name: 136,
            code_qualname: 144,
            code_first_line: 84,
            code_line_table: 152,
            code_instructions: 216,
            string_length: 32,
            string_state: 48,
            string_ascii_data: 56,
            string_compact_data: 72,
            bytes_size: 32,
            bytes_data: 48,
            ..LAYOUT_3_13
        },
        runtime: RuntimeLayout { type_dealloc: 64, ..RUNTIME_3_13 },
        debug_offsets: &[
            DebugOffset { name: "runtime_state.interpreters_head", position: 40, expected: 632 },
            DebugOffset { name: "interpreter_state.threads_head", position: 72, expected: 7344 },
            DebugOffset { name: "thread_state.current_frame", position: 184, expected: 72 },
            DebugOffset { name: "interpreter_frame.previous", position: 232, expected: 8 },
            DebugOffset { name: "interpreter_frame.executable", position: 240, expected: 0 },
            DebugOffset { name: "interpreter_frame.instr_ptr", position: 248, expected: 56 },
            DebugOffset { name: "interpreter_frame.owner", position: 264, expected: 70 },
            DebugOffset { name: "code_object.filename", position: 280, expected: 128 },
            DebugOffset { name: "code_object.name", position: 288, expected: 136 },
            DebugOffset { name: "code_object.qualname", position: 296, expected: 144 },
            DebugOffset { name: "code_object.linetable", position: 304, expected: 152 },
            DebugOffset { name: "code_object.firstlineno", position: 312, expected: 84 },
            DebugOffset { name: "code_object.co_code_adaptive", position: 344, expected: 216 },
            DebugOffset { name: "bytes_object.ob_size", position: 520, expected: 32 },
            DebugOffset { name: "bytes_object.ob_sval", position: 528, expected: 48 },
            DebugOffset { name: "unicode_object.state", position: 544, expected: 48 },
            DebugOffset { name: "unicode_object.length", position: 552, expected: 32 },
            DebugOffset { name: "unicode_object.asciiobject_size", position: 560, expected: 56 },
        ],
    },
    PythonVersion {
        minor: 14,
        free_threaded: false,
        layout: PythonLayout {
            frame_size: 80,
            frame_owner: 74,
            code_instructions: 208,
            ..LAYOUT_3_13
        },
        runtime: RuntimeLayout {
            interpreters_head: 808,
            auto_tss_key: Some(2336),
            interpreter_next: 7272,
            ..RUNTIME_3_13
        },
        debug_offsets: &[
            DebugOffset { name: "runtime_state.interpreters_head", position: 40, expected: 808 },
            DebugOffset { name: "interpreter_state.threads_head", position: 72, expected: 7344 },
            DebugOffset { name: "thread_state.current_frame", position: 208, expected: 72 },
            DebugOffset { name: "interpreter_frame.previous", position: 256, expected: 8 },
            DebugOffset { name: "interpreter_frame.executable", position: 264, expected: 0 },
            DebugOffset { name: "interpreter_frame.instr_ptr", position: 272, expected: 56 },
            DebugOffset { name: "interpreter_frame.owner", position: 288, expected: 74 },
            DebugOffset { name: "code_object.filename", position: 320, expected: 112 },
            DebugOffset { name: "code_object.name", position: 328, expected: 120 },
            DebugOffset { name: "code_object.qualname", position: 336, expected: 128 },
            DebugOffset { name: "code_object.linetable", position: 344, expected: 136 },
            DebugOffset { name: "code_object.firstlineno", position: 352, expected: 68 },
            DebugOffset { name: "code_object.co_code_adaptive", position: 384, expected: 208 },
            DebugOffset { name: "bytes_object.ob_size", position: 600, expected: 16 },
            DebugOffset { name: "bytes_object.ob_sval", position: 608, expected: 32 },
            DebugOffset { name: "unicode_object.state", position: 624, expected: 32 },
            DebugOffset { name: "unicode_object.length", position: 632, expected: 16 },
            DebugOffset { name: "unicode_object.asciiobject_size", position: 640, expected: 40 },
        ],
    },
];

/// 3.10; 3.8 and 3.9 differ in `f_lasti` only.
const BEFORE_3_11: PythonLayout = PythonLayout {
    entry: entry_kind::DIRECT,
    instruction: instruction_kind::UNITS,
    shim_owner: 0,
    string_kind_shift: 2,
    tstate_frame: 24,
    cframe_frame: 0,
    frame_size: 112,
    frame_previous: 24,
    frame_code: 32,
    frame_instruction: 96,
    frame_owner: 0,
    code_filename: 104,
    code_name: 112,
    code_qualname: 0,
    code_first_line: 40,
    code_line_table: 120,
    code_instructions: 0,
    string_length: 16,
    string_state: 32,
    string_ascii_data: 48,
    string_compact_data: 72,
    bytes_size: 16,
    bytes_data: 32,
    pad: [0; 7],
};

const SINCE_3_12: PythonLayout = PythonLayout {
    entry: entry_kind::CFRAME,
    instruction: instruction_kind::POINTER,
    shim_owner: 3,
    string_kind_shift: 2,
    tstate_frame: 56,
    cframe_frame: 0,
    frame_size: 72,
    frame_previous: 8,
    frame_code: 0,
    frame_instruction: 56,
    frame_owner: 70,
    code_filename: 112,
    code_name: 120,
    code_qualname: 128,
    code_first_line: 68,
    code_line_table: 136,
    code_instructions: 192,
    string_length: 16,
    string_state: 32,
    string_ascii_data: 40,
    string_compact_data: 56,
    bytes_size: 16,
    bytes_data: 32,
    pad: [0; 7],
};

const LAYOUT_3_13: PythonLayout = PythonLayout {
    entry: entry_kind::DIRECT,
    tstate_frame: 72,
    code_instructions: 200,
    ..SINCE_3_12
};

const RUNTIME_BEFORE_3_11: RuntimeLayout = RuntimeLayout {
    interpreters_head: 32,
    auto_tss_key: None,
    interpreter_next: 0,
    interpreter_threads: 8,
    tstate_next: 8,
    tstate_interpreter: 16,
    tstate_thread_id: 176,
    type_dealloc: 48,
};

const RUNTIME_3_13: RuntimeLayout = RuntimeLayout {
    interpreters_head: 632,
    auto_tss_key: Some(2160),
    interpreter_next: 7264,
    interpreter_threads: 7344,
    tstate_next: 8,
    tstate_interpreter: 16,
    tstate_thread_id: 152,
    type_dealloc: 48,
};
