//! Structure offsets of every supported CPython, as data.
//!
//! Source: compiled against each build's own headers on x86-64, and checked at run time against the builds
//! that docs/python-frames.md lists; 3.14 and 3.15 without the GIL were never run. Offsets are fixed within
//! a minor version. From 3.13 on an interpreter publishes many of them; [`PythonVersion::debug_offsets`]
//! lists the values that must agree, so that a build with other structures is refused instead of misread.

use super::{
    layout::{PythonLayout, entry_kind, instruction_kind},
    published::{DebugOffset, SLOTS_3_13, SLOTS_3_14, SLOTS_3_15, published},
};

/// Offsets that only user space needs, to find and check the thread state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RuntimeLayout {
    /// `_PyRuntimeState.interpreters.head`; `.main` follows it.
    pub interpreters_head: u16,
    /// `_PyRuntimeState.gilstate.tstate_current`, up to 3.11: from then on the slot follows a thread into
    /// another interpreter.
    pub tstate_current: Option<u16>,
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
    /// `PyObject.ob_type`.
    pub object_type: u16,
    /// `PyTypeObject.tp_name`.
    pub type_name: u16,
    /// `PyTypeObject.tp_dealloc`.
    pub type_dealloc: u16,
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
pub static VERSIONS: [PythonVersion; 11] = [
    PythonVersion {
        minor: 8,
        free_threaded: false,
        layout: PythonLayout {
            instruction: instruction_kind::BYTES,
            frame_instruction: 104,
            ..BEFORE_3_11
        },
        runtime: RuntimeLayout {
            tstate_current: Some(1368),
            auto_tss_key: Some(1392),
            ..RUNTIME_BEFORE_3_11
        },
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
        runtime: RuntimeLayout {
            tstate_current: Some(568),
            auto_tss_key: Some(584),
            ..RUNTIME_BEFORE_3_11
        },
        debug_offsets: &[],
    },
    PythonVersion {
        minor: 10,
        free_threaded: false,
        layout: BEFORE_3_11,
        runtime: RuntimeLayout {
            tstate_current: Some(568),
            auto_tss_key: Some(584),
            ..RUNTIME_BEFORE_3_11
        },
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
            tstate_current: Some(576),
            auto_tss_key: Some(592),
            interpreter_next: 0,
            interpreter_threads: 16,
            tstate_next: 8,
            tstate_interpreter: 16,
            tstate_thread_id: 152,
            object_type: 8,
            type_name: 24,
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
            tstate_current: None,
            auto_tss_key: Some(1544),
            interpreter_next: 0,
            interpreter_threads: 72,
            tstate_next: 8,
            tstate_interpreter: 16,
            tstate_thread_id: 136,
            object_type: 8,
            type_name: 24,
            type_dealloc: 48,
        },
        debug_offsets: &[],
    },
    PythonVersion {
        minor: 13,
        free_threaded: false,
        layout: LAYOUT_3_13,
        runtime: RUNTIME_3_13,
        debug_offsets: &published(SLOTS_3_13, &LAYOUT_3_13, &RUNTIME_3_13),
    },
    PythonVersion {
        minor: 13,
        free_threaded: true,
        layout: LAYOUT_3_13T,
        runtime: RUNTIME_3_13T,
        debug_offsets: &published(SLOTS_3_13, &LAYOUT_3_13T, &RUNTIME_3_13T),
    },
    PythonVersion {
        minor: 14,
        free_threaded: false,
        layout: LAYOUT_3_14,
        runtime: RUNTIME_3_14,
        debug_offsets: &published(SLOTS_3_14, &LAYOUT_3_14, &RUNTIME_3_14),
    },
    PythonVersion {
        minor: 14,
        free_threaded: true,
        layout: LAYOUT_3_14T,
        runtime: RUNTIME_3_14T,
        debug_offsets: &published(SLOTS_3_14, &LAYOUT_3_14T, &RUNTIME_3_14T),
    },
    PythonVersion {
        minor: 15,
        free_threaded: false,
        layout: LAYOUT_3_14,
        runtime: RUNTIME_3_15,
        debug_offsets: &published(SLOTS_3_15, &LAYOUT_3_14, &RUNTIME_3_15),
    },
    PythonVersion {
        minor: 15,
        free_threaded: true,
        layout: LAYOUT_3_14T,
        runtime: RUNTIME_3_15T,
        debug_offsets: &published(SLOTS_3_15, &LAYOUT_3_14T, &RUNTIME_3_15T),
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
    code_copies: 0,
    frame_copy: 0,
    pad: [0; 5],
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
    code_copies: 0,
    frame_copy: 0,
    pad: [0; 5],
};

const LAYOUT_3_13: PythonLayout = PythonLayout {
    entry: entry_kind::DIRECT,
    tstate_frame: 72,
    code_instructions: 200,
    ..SINCE_3_12
};

/// Without the GIL an object's header has 32 bytes, 16 more than with it.
const LAYOUT_3_13T: PythonLayout = PythonLayout {
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
};

/// Also 3.15.
const LAYOUT_3_14: PythonLayout =
    PythonLayout { frame_size: 80, frame_owner: 74, code_instructions: 208, ..LAYOUT_3_13 };

/// Also 3.15.
const LAYOUT_3_14T: PythonLayout = PythonLayout {
    frame_size: 80,
    frame_owner: 78,
    code_instructions: 232,
    code_copies: 224,
    frame_copy: 72,
    // `interned` is a byte of its own there.
    string_kind_shift: 8,
    ..LAYOUT_3_13T
};

const RUNTIME_BEFORE_3_11: RuntimeLayout = RuntimeLayout {
    interpreters_head: 32,
    tstate_current: None,
    auto_tss_key: None,
    interpreter_next: 0,
    interpreter_threads: 8,
    tstate_next: 8,
    tstate_interpreter: 16,
    tstate_thread_id: 176,
    object_type: 8,
    type_name: 24,
    type_dealloc: 48,
};

const RUNTIME_3_13: RuntimeLayout = RuntimeLayout {
    interpreters_head: 632,
    tstate_current: None,
    auto_tss_key: Some(2160),
    interpreter_next: 7264,
    interpreter_threads: 7344,
    tstate_next: 8,
    tstate_interpreter: 16,
    tstate_thread_id: 152,
    object_type: 8,
    type_name: 24,
    type_dealloc: 48,
};

const RUNTIME_3_13T: RuntimeLayout =
    RuntimeLayout { object_type: 24, type_name: 40, type_dealloc: 64, ..RUNTIME_3_13 };

const RUNTIME_3_14: RuntimeLayout = RuntimeLayout {
    interpreters_head: 808,
    auto_tss_key: Some(2336),
    interpreter_next: 7272,
    ..RUNTIME_3_13
};

const RUNTIME_3_14T: RuntimeLayout =
    RuntimeLayout { object_type: 24, type_name: 40, type_dealloc: 64, ..RUNTIME_3_14 };

const RUNTIME_3_15: RuntimeLayout = RuntimeLayout {
    interpreters_head: 936,
    auto_tss_key: None,
    interpreter_threads: 7336,
    tstate_thread_id: 176,
    ..RUNTIME_3_13
};

const RUNTIME_3_15T: RuntimeLayout =
    RuntimeLayout { object_type: 24, type_name: 40, type_dealloc: 64, ..RUNTIME_3_15 };
