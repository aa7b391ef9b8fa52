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

/// Most bytes of the fixed part of a frame; a power of two, because offsets into it are masked.
const FRAME: usize = 128;

/// Memory is read up to the end of a frame from the start of the page that the frame begins on: no other
/// page is touched than those that the frame lies on.
const PAGE: u64 = 4096;

/// Room for that, in words.
const WINDOW: usize = (PAGE as usize + FRAME) / 8;

/// One frame as it lies in memory.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RawFrame {
    /// Address of the code object.
    pub code: u64,
    /// As the interpreter keeps it: see [`instruction_kind`].
    pub instruction: u64,
    /// Which copy of the bytecode it points into, where there are copies.
    pub copy: u32,
    /// Zero.
    pub pad: u32,
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
    /// Code object of the function that the walk stops at, 0 for none.
    boundary: u64,
    /// Address of the frame that it stops at, 0 for none.
    stop: u64,
    /// Address of the next frame.
    next: u64,
    /// Address of the memory in the window.
    start: u64,
    /// Bytes of it.
    filled: u32,
    /// Zero.
    pad: u32,
    /// Copy of memory. From CPython 3.11 on most frames of a thread lie one after the other, so that one
    /// read gets many.
    window: [u64; WINDOW],
    /// Innermost first; valid up to `depth`.
    pub frames: [RawFrame; MAX_FRAMES],
}

impl WalkState {
    /// A state for a walk whose hash starts at `seed`, and which stops at no function.
    pub fn new(seed: u64) -> Self {
        Self {
            hash: seed,
            depth: 0,
            flags: 0,
            boundary: 0,
            stop: 0,
            next: 0,
            start: 0,
            filled: 0,
            pad: 0,
            window: [0; WINDOW],
            frames: [RawFrame::default(); MAX_FRAMES],
        }
    }

    /// Makes the state ready for another walk, which stops at the function with the code object at
    /// `boundary`, and at the frame at `stop`, unless these are 0.
    #[inline(always)]
    pub fn reset(&mut self, seed: u64, boundary: u64, stop: u64) {
        self.hash = seed;
        self.depth = 0;
        self.flags = 0;
        self.boundary = boundary;
        self.stop = stop;
        self.next = 0;
        self.filled = 0;
    }

    /// Makes it what a walk finds that finds one frame.
    #[inline(always)]
    pub fn set_single(&mut self, frame: RawFrame) {
        self.frames[0] = frame;
        self.depth = 1;
        self.flags = 0;
    }

    /// The field at `offset` of the frame that lies `at` in the window. It is aligned: loads that need not be are
    /// made of single bytes on BPF.
    #[inline(always)]
    fn field<T: Copy>(&self, at: u32, offset: u16) -> T {
        let at = at as usize & (PAGE as usize - 8);
        let offset = offset as usize & (FRAME - size_of::<T>());
        // SAFETY: both are masked, and the window is as long as both together; fields are integers of a power
        // of two of bytes, which the mask aligns.
        unsafe { *self.window.as_ptr().byte_add(at).byte_add(offset).cast::<T>() }
    }

    /// Whether the walk has come to where it was to stop: at a frame, or where there is no further one.
    #[inline(always)]
    pub fn is_at_end(&self) -> bool {
        self.next == self.stop
    }

    /// Puts the next frame into the window, unless it is there already, and says where; `None` if it cannot be
    /// read.
    #[inline(always)]
    fn load(&mut self, layout: &PythonLayout, mem: &impl ReadMem) -> Option<u32> {
        // Frames are aligned; anything else is none.
        if self.next & 7 != 0 {
            return None;
        }
        let size = u64::from(layout.frame_size) & (FRAME as u64 - 1);
        let inside = self.next.wrapping_sub(self.start);
        if inside < PAGE && inside + size <= u64::from(self.filled) {
            return Some(inside as u32);
        }
        // Up to 3.10 every frame is an object by itself.
        let contiguous = layout.instruction == instruction_kind::POINTER;
        let before = if contiguous { self.next & (PAGE - 1) } else { 0 };
        self.start = self.next.wrapping_sub(before);
        self.filled = (before + size) as u32;
        // SAFETY: a page and a frame fit into the window.
        let read = unsafe { mem.read(self.start, self.window.as_mut_ptr().cast(), self.filled) };
        if !read {
            self.filled = 0;
            return None;
        }
        Some(self.next.wrapping_sub(self.start) as u32)
    }
}

/// Folds `value` into `hash`. Not cryptographic: stacks of one process only have to differ.
#[inline(always)]
pub fn mix(hash: u64, value: u64) -> u64 {
    let folded = (hash ^ value).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    folded ^ (folded >> 29)
}

/// Keeps a code object and an instruction, whose addresses are alike, apart in one value.
const SPREAD: u64 = 0xd6e8_feb8_6659_fd93;

/// Where a thread has the pointer to its vector of TLS blocks, from its thread pointer: fixed by the ABI
/// of x86-64 (`_thread_db_pthread_dtvp` of glibc).
const TLS_VECTOR: u64 = 8;

/// The Python thread state of the thread whose thread pointer is `thread_pointer`; `None` if the
/// thread has none.
#[inline(always)]
pub fn thread_state(
    source: &ThreadStateSource,
    thread_pointer: u64,
    mem: &impl ReadMem,
) -> Option<u64> {
    let tstate = match source.kind {
        thread_state_kind::PTHREAD_KEY => {
            match mem.read_u64(thread_pointer.wrapping_add_signed(source.offset))? {
                0 => 0,
                block => mem.read_u64(block.wrapping_add(u64::from(source.slot)))?,
            }
        }
        thread_state_kind::TLS => {
            mem.read_u64(thread_pointer.wrapping_add_signed(source.offset))?
        }
        thread_state_kind::TLS_OF_LIBRARY => {
            let vector = mem.read_u64(thread_pointer.wrapping_add(TLS_VECTOR))?;
            // -1 when this thread has not used the block yet: then there is nothing to read at it.
            let block = mem.read_u64(vector.wrapping_add(u64::from(source.slot)))?;
            mem.read_u64(block.wrapping_add_signed(source.offset))?
        }
        _ => 0,
    };
    (tstate != 0).then_some(tstate)
}

/// The innermost frame of the thread with thread state `tstate`: its address, 0 if there is none, `None`
/// if it cannot be read.
#[inline(always)]
pub fn innermost(layout: &PythonLayout, tstate: u64, mem: &impl ReadMem) -> Option<u64> {
    let entry = mem.read_u64(tstate.wrapping_add(u64::from(layout.tstate_frame)))?;
    if layout.entry == entry_kind::CFRAME && entry != 0 {
        return mem.read_u64(entry.wrapping_add(u64::from(layout.cframe_frame)));
    }
    Some(entry)
}

/// The code object of the frame at an address.
#[inline(always)]
pub fn frame_code(layout: &PythonLayout, frame: u64, mem: &impl ReadMem) -> Option<u64> {
    mem.read_u64(frame.wrapping_add(u64::from(layout.frame_code))).map(untagged)
}

/// 3.14 tags references in the low bits; code objects are at least 8-aligned everywhere.
#[inline(always)]
fn untagged(reference: u64) -> u64 {
    reference & !7
}

/// Walks the Python frames of the thread with thread state `tstate` into `state`, innermost first.
#[inline(always)]
pub fn walk(layout: &PythonLayout, tstate: u64, state: &mut WalkState, mem: &impl ReadMem) {
    let Some(frame) = innermost(layout, tstate, mem) else {
        state.flags |= u32::from(stack_flag::FAULT);
        return;
    };
    state.next = frame;

    for _ in 0..MAX_STEPS {
        if !step(layout, state, mem) {
            break;
        }
    }
    let ended = u32::from(stack_flag::FAULT | stack_flag::BOUNDARY);
    if state.next != 0 && !state.is_at_end() && state.flags & ended == 0 {
        state.flags |= u32::from(stack_flag::TRUNCATED);
    }
    if state.depth == 0 && state.flags == 0 {
        state.flags |= u32::from(stack_flag::NO_PYTHON);
    }
}

/// Looks at one frame; `false` when the walk is over.
#[inline(always)]
fn step(layout: &PythonLayout, state: &mut WalkState, mem: &impl ReadMem) -> bool {
    if state.next == 0 || state.is_at_end() {
        return false;
    }
    let Some(at) = state.load(layout, mem) else {
        state.flags |= u32::from(stack_flag::FAULT);
        return false;
    };
    let owner: u8 = state.field(at, layout.frame_owner);
    let shim = layout.shim_owner != 0 && owner >= layout.shim_owner;
    if !shim {
        let code = untagged(state.field(at, layout.frame_code));
        if code == state.boundary && code != 0 {
            state.flags |= u32::from(stack_flag::BOUNDARY);
            return false;
        }
        let depth = state.depth as usize;
        if depth >= MAX_FRAMES {
            return false;
        }
        let instruction = if layout.instruction == instruction_kind::POINTER {
            state.field(at, layout.frame_instruction)
        } else {
            u64::from(state.field::<u32>(at, layout.frame_instruction))
        };
        // Some other field where there are no copies, and not looked at then: one branch less to verify.
        let copy = state.field(at, layout.frame_copy);
        // SAFETY: `depth` is less than the number of frames.
        unsafe {
            *state.frames.as_mut_ptr().add(depth & (MAX_FRAMES - 1)) =
                RawFrame { code, instruction, copy, pad: 0 }
        };
        state.hash = mix(state.hash, code.wrapping_mul(SPREAD) ^ instruction);
        state.depth = depth as u32 + 1;
    }
    state.next = state.field(at, layout.frame_previous);
    true
}
