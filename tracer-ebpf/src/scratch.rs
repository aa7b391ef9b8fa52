//! Work space that is too big for the BPF stack.
//!
//! A uprobe program can be preempted by another thread whose uprobe then runs on the same CPU, so
//! a per-CPU buffer alone is not exclusive. There are [`SLOTS`] per CPU, each with its own flag,
//! taken and given back by atomic exchange.

use tracer_common::{
    python::walk::WalkState,
    wire::{CodeRecord, LinesRecord, StackRecord},
};

use crate::{atomic, define::Cursor, maps::SCRATCH, pending::Pending};

/// Slots per CPU: how many preempted probes can be in the middle of a walk at once.
pub const SLOTS: u32 = 4;

/// One slot.
#[repr(C)]
pub struct Scratch {
    busy: u32,
    pad: u32,
    /// The thread that has it, as `bpf_get_current_pid_tgid` gives it.
    thread: u64,
    /// A record that waits for its stack.
    pub pending: Pending,
    /// Id of the stack that goes on where the walk ends, 0 for none.
    pub outer: u64,
    /// The walk and its result.
    pub walk: WalkState,
    /// Where a definition stands.
    pub cursor: Cursor,
    /// A code definition being made.
    pub code: CodeRecord,
    /// A piece of a line table being read.
    pub lines: LinesRecord,
    /// A stack definition being made.
    pub stack: StackRecord,
}

/// Takes a free slot of this CPU for a thread; `None` when all are in use. Give it back with [`release`].
#[inline(always)]
pub fn acquire(thread: u64) -> Option<&'static mut Scratch> {
    for slot in 0..SLOTS {
        let scratch = SCRATCH.get_ptr_mut(slot)?;
        // SAFETY: the pointer is to a map value, which lives as long as the program; `busy` is
        // only touched atomically.
        if unsafe { atomic::exchange(&raw mut (*scratch).busy, 1) } == 0 {
            // SAFETY: the flag makes this the only user of the slot.
            let scratch = unsafe { &mut *scratch };
            scratch.thread = thread;
            return Some(scratch);
        }
    }
    None
}

/// The slot of this CPU that the thread has taken: a program that goes on where another left off has no other
/// way to it. Programs do not move to another CPU.
#[inline(always)]
pub fn held_by(thread: u64) -> Option<&'static mut Scratch> {
    for slot in 0..SLOTS {
        let scratch = SCRATCH.get_ptr_mut(slot)?;
        // SAFETY: the pointer is to a map value, which lives as long as the program.
        if unsafe { (&raw const (*scratch).thread).read_volatile() } == thread {
            // SAFETY: the thread has taken it, and this is that thread.
            return Some(unsafe { &mut *scratch });
        }
    }
    None
}

/// Gives a slot back.
#[inline(always)]
pub fn release(scratch: &'static mut Scratch) {
    scratch.thread = 0;
    // SAFETY: as in `acquire`.
    unsafe { atomic::exchange(&raw mut scratch.busy, 0) };
}
