//! Offsets that the kernel half needs. A layout is plain data, chosen by user space from
//! [`super::table`] and handed over in [`crate::config::ProcessConfig`].

use crate::plain_data;

/// Where the thread state points to the innermost frame ([`PythonLayout::entry`]).
pub mod entry_kind {
    /// The thread state holds the frame: `frame` up to 3.10, `current_frame` from 3.13 on.
    pub const DIRECT: u8 = 0;
    /// The thread state holds a `_PyCFrame`, and that the frame (3.11, 3.12).
    pub const CFRAME: u8 = 1;
}

/// How a frame says which instruction it is at ([`PythonLayout::instruction`]).
pub mod instruction_kind {
    /// `f_lasti`, a byte offset (3.8, 3.9).
    pub const BYTES: u8 = 0;
    /// `f_lasti`, in units of two bytes (3.10).
    pub const UNITS: u8 = 1;
    /// A pointer into the bytecode (3.11 and later), which lies inside the code object, or, where threads
    /// have copies of it, outside ([`super::PythonLayout::code_copies`]).
    pub const POINTER: u8 = 2;
}

/// Offsets in bytes of the fields that the kernel half reads, for one CPython minor version and
/// build flavour.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PythonLayout {
    /// One of [`entry_kind`].
    pub entry: u8,
    /// One of [`instruction_kind`].
    pub instruction: u8,
    /// Frames whose owner is at least this are shims between C and Python and are skipped; 0 when
    /// the version has none.
    pub shim_owner: u8,
    /// Bit position of the `kind` field in a string's state word.
    pub string_kind_shift: u8,
    /// `PyThreadState.frame`, `.cframe` or `.current_frame`.
    pub tstate_frame: u16,
    /// `_PyCFrame.current_frame`.
    pub cframe_frame: u16,
    /// Bytes of a frame that are read: up to the last field needed; less than 128.
    pub frame_size: u16,
    /// `PyFrameObject.f_back` or `_PyInterpreterFrame.previous`.
    pub frame_previous: u16,
    /// `f_code` or `f_executable`.
    pub frame_code: u16,
    /// `f_lasti`, `prev_instr` or `instr_ptr`.
    pub frame_instruction: u16,
    /// `_PyInterpreterFrame.owner`; unused when `shim_owner` is 0.
    pub frame_owner: u16,
    /// `PyCodeObject.co_filename`.
    pub code_filename: u16,
    /// `PyCodeObject.co_name`.
    pub code_name: u16,
    /// `PyCodeObject.co_qualname`; 0 before 3.11.
    pub code_qualname: u16,
    /// `PyCodeObject.co_firstlineno`.
    pub code_first_line: u16,
    /// `PyCodeObject.co_lnotab` or `co_linetable`.
    pub code_line_table: u16,
    /// `PyCodeObject.co_code_adaptive`; 0 before 3.11.
    pub code_instructions: u16,
    /// `PyASCIIObject.length`.
    pub string_length: u16,
    /// `PyASCIIObject.state`.
    pub string_state: u16,
    /// Where the characters of an ASCII string start.
    pub string_ascii_data: u16,
    /// Where the characters of another compact string start.
    pub string_compact_data: u16,
    /// `PyBytesObject.ob_size`.
    pub bytes_size: u16,
    /// `PyBytesObject.ob_sval`.
    pub bytes_data: u16,
    /// `PyCodeObject.co_tlbc`: copies of the bytecode by thread (free-threaded, 3.14 and later); 0 when
    /// the version has none.
    pub code_copies: u16,
    /// `_PyInterpreterFrame.tlbc_index`: which of them the frame runs; unused without them.
    pub frame_copy: u16,
    /// Zero.
    pub pad: [u16; 5],
}

plain_data! { PythonLayout = 56 }
