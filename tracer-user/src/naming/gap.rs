//! Why frames are missing, in words.

use tracer_common::wire::{LINES_CHUNK, MAX_LINES_CHUNKS};

/// What is missing at the outer end of a stack that was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Outer {
    /// Nothing.
    Complete,
    /// More frames than are captured.
    Truncated,
    /// Frames in memory that could not be read.
    NotResident,
    /// Those that began the backward pass which the others are inside of.
    Dropped,
}

impl Outer {
    pub(super) fn note(self) -> Option<&'static str> {
        match self {
            Self::Complete => None,
            Self::Truncated => Some("too deep: the outermost frames are missing"),
            Self::NotResident => Some("outer frames were not resident in memory"),
            Self::Dropped => {
                Some("what began the outer backward pass was dropped: the ring buffer was full")
            }
        }
    }
}

/// Why there is no frame at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Absence {
    /// The thread runs no Python.
    NoPython,
    /// The kernel half could not take it.
    NotTaken,
    /// Its definition found no space in the ring buffer.
    Dropped,
    /// It is one of many that were forgotten.
    Forgotten,
}

impl Absence {
    pub(super) fn note(self) -> &'static str {
        match self {
            Self::NoPython => "native thread, no Python frame",
            Self::NotTaken => "no Python stack was taken",
            Self::Dropped => "its definition was dropped: the ring buffer was full",
            Self::Forgotten => "call sites that held nothing for long, not told apart any more",
        }
    }
}

/// Of a line that lies too far into its function, module or cell.
pub(super) const LINES_CUT: &str =
    "a line shown as `?` lies beyond the first 128 KiB of its line table";

const _: () = assert!(LINES_CHUNK * MAX_LINES_CHUNKS == 128 * 1024);

/// Of a frame whose code object is not known.
pub(super) const UNNAMED: &str = "frames shown as `?` have no name: its definition is missing";
