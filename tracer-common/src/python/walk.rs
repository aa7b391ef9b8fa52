//! The frame walk.
//!
//! All state of the loop lives in [`WalkState`], which in the kernel is a map value: the verifier
//! then does not track it per iteration and accepts a plain bounded loop (docs/python-frames.md).

use super::layout::{PythonLayout, entry_kind, instruction_kind};
use crate::{
    ReadMem,
    config::{ThreadStateSource, thread_state_kind},
    wire::{MAX_FRAMES, stack_flag},
};

/// Steps of the walk: frames plus the shims between them.
const MAX_STEPS: usize = MAX_FRAMES + MAX_FRAMES / 2;

/// Room for the fixed part of one frame; a power of two, because offsets into it are masked.
const FRAME_WINDOW: usize = 128;

/// One frame as it lies in memory.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RawFrame {
    /// Address of the code object.
    pub code: u64,
    /// As the interpreter keeps it: see [`instruction_kind`].
    pub instruction: u64,
}

/// State and result of a walk.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WalkState {
    /// Hash of the frames found so far; start it with a seed.
    pub hash: u64,
    /// Frames found.
    pub depth: u32,
    /// Bits of [`stack_flag`].
    pub flags: u32,
    /// Address of the next frame.
    next: u64,
    /// Copy of the frame being looked at.
    window: [u8; FRAME_WINDOW],
    /// Innermost first; valid up to `depth`.
    pub frames: [RawFrame; MAX_FRAMES],
}

impl WalkState {
    /// A state for a walk whose hash starts at `seed`.
    pub fn new(seed: u64) -> Self {
        Self {
            hash: seed,
            depth: 0,
            flags: 0,
            next: 0,
            window: [0; FRAME_WINDOW],
            frames: [RawFrame::default(); MAX_FRAMES],
        }
    }

    /// Makes the state ready for another walk.
    #[inline(always)]
    pub fn reset(&mut self, seed: u64) {
        self.hash = seed;
        self.depth = 0;
        self.flags = 0;
        self.next = 0;
    }

    #[inline(always)]
    fn window_u64(&self, offset: u16) -> u64 {
        let at = offset as usize & (FRAME_WINDOW - 8);
        // SAFETY: the mask keeps `at + 8` within the window; `u64` reads need no alignment here.
        unsafe { self.window.as_ptr().add(at).cast::<u64>().read_unaligned() }
    }

    #[inline(always)]
    fn window_u32(&self, offset: u16) -> u32 {
        let at = offset as usize & (FRAME_WINDOW - 4);
        // SAFETY: the mask keeps `at + 4` within the window.
        unsafe { self.window.as_ptr().add(at).cast::<u32>().read_unaligned() }
    }

    #[inline(always)]
    fn window_u8(&self, offset: u16) -> u8 {
        let at = offset as usize & (FRAME_WINDOW - 1);
        // SAFETY: the mask keeps `at` within the window.
        unsafe { *self.window.as_ptr().add(at) }
    }
}

/// Folds `value` into `hash`. Not cryptographic: stacks of one process only have to differ.
#[inline(always)]
pub fn mix(hash: u64, value: u64) -> u64 {
    let folded = (hash ^ value).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    folded ^ (folded >> 29)
}

/// The Python thread state of the thread whose thread pointer is `thread_pointer`; `None` if the
/// thread has none.
#[inline(always)]
pub fn thread_state(
    source: &ThreadStateSource,
    thread_pointer: u64,
    mem: &impl ReadMem,
) -> Option<u64> {
    let first = mem.read_u64(thread_pointer.wrapping_add_signed(source.offset))?;
    let tstate = match source.kind {
        thread_state_kind::PTHREAD_KEY if first != 0 => {
            mem.read_u64(first.wrapping_add(u64::from(source.slot)))?
        }
        thread_state_kind::TLS => first,
        _ => 0,
    };
    (tstate != 0).then_some(tstate)
}

/// Walks the Python frames of the thread with thread state `tstate` into `state`, innermost first.
#[inline(always)]
pub fn walk(layout: &PythonLayout, tstate: u64, state: &mut WalkState, mem: &impl ReadMem) {
    let Some(mut entry) = mem.read_u64(tstate.wrapping_add(u64::from(layout.tstate_frame))) else {
        state.flags |= u32::from(stack_flag::FAULT);
        return;
    };
    if layout.entry == entry_kind::CFRAME && entry != 0 {
        match mem.read_u64(entry.wrapping_add(u64::from(layout.cframe_frame))) {
            Some(frame) => entry = frame,
            None => {
                state.flags |= u32::from(stack_flag::FAULT);
                return;
            }
        }
    }
    state.next = entry;

    for _ in 0..MAX_STEPS {
        if !step(layout, state, mem) {
            break;
        }
    }
    if state.next != 0 && state.flags & u32::from(stack_flag::FAULT) == 0 {
        state.flags |= u32::from(stack_flag::TRUNCATED);
    }
    if state.depth == 0 && state.flags == 0 {
        state.flags |= u32::from(stack_flag::NO_PYTHON);
    }
}

/// Looks at one frame; `false` when the walk is over.
#[inline(always)]
fn step(layout: &PythonLayout, state: &mut WalkState, mem: &impl ReadMem) -> bool {
    if state.next == 0 {
        return false;
    }
    let size = u32::from(layout.frame_size) & (FRAME_WINDOW as u32 - 1);
    // SAFETY: `size` is less than the window.
    if !unsafe { mem.read(state.next, state.window.as_mut_ptr(), size) } {
        state.flags |= u32::from(stack_flag::FAULT);
        return false;
    }
    let shim = layout.shim_owner != 0 && state.window_u8(layout.frame_owner) >= layout.shim_owner;
    if !shim {
        let depth = state.depth as usize;
        if depth >= MAX_FRAMES {
            return false;
        }
        // 3.14 tags references in the low bits; code objects are at least 8-aligned everywhere.
        let code = state.window_u64(layout.frame_code) & !7;
        let instruction = if layout.instruction == instruction_kind::POINTER {
            state.window_u64(layout.frame_instruction)
        } else {
            u64::from(state.window_u32(layout.frame_instruction))
        };
        // SAFETY: `depth` is less than the number of frames.
        unsafe {
            *state.frames.as_mut_ptr().add(depth & (MAX_FRAMES - 1)) =
                RawFrame { code, instruction }
        };
        state.hash = mix(mix(state.hash, code), instruction);
        state.depth = depth as u32 + 1;
    }
    state.next = state.window_u64(layout.frame_previous);
    true
}

/// Byte offset of a frame's instruction from the start of its bytecode.
#[inline(always)]
pub fn instruction_offset(layout: &PythonLayout, frame: &RawFrame) -> i32 {
    match layout.instruction {
        instruction_kind::POINTER => frame
            .instruction
            .wrapping_sub(frame.code)
            .wrapping_sub(u64::from(layout.code_instructions))
            as i32,
        instruction_kind::UNITS => (frame.instruction as i32).wrapping_mul(2),
        _ => frame.instruction as i32,
    }
}
