//! The Python stack of the current thread: the walk, and its id.

use core::{mem::offset_of, ptr::read_volatile};

use tracer_common::{
    config::{ProcessConfig, thread_state_kind},
    counters::Counters,
    python::{
        subinterpreters::running,
        walk::{mix, thread_state, walk},
    },
    wire::stack_flag,
};

use crate::{
    emit,
    maps::STACKS,
    memory::{CurrentProcess, thread_pointer},
    scratch::Scratch,
    target::Target,
};

/// A stack as an event carries it.
#[derive(Clone, Copy)]
pub struct Taken {
    /// Id, or 0 for none.
    pub id: u64,
    /// Bits of [`stack_flag`].
    pub flags: u8,
}

impl Taken {
    /// No stack, for this reason.
    #[inline(always)]
    pub const fn none(flags: u8) -> Self {
        Self { id: 0, flags }
    }

    /// Whether user space does not know it yet.
    #[inline(always)]
    pub fn is_new(&self) -> bool {
        self.id != 0 && STACKS.get_ptr(self.id).is_none()
    }
}

/// Takes the Python stack of the current thread, in work space that the caller has.
#[inline(always)]
pub fn take(target: &Target, scratch: &mut Scratch) -> Taken {
    // SAFETY: a map value, which user space replaces as a whole but never frees under a program.
    let config = unsafe { &*target.config };
    if config.thread_state.kind == thread_state_kind::NONE {
        return Taken::none(0);
    }
    let tstate = match current_thread_state(config) {
        Ok(tstate) => tstate,
        Err(flags) => return Taken::none(flags),
    };
    // SAFETY: both change under us, at most once per freed code object; any value that is read is one that
    // was current during this hit.
    let (generation, boundary) = unsafe {
        (read_volatile(&raw const config.generation), read_volatile(&raw const config.boundary))
    };
    let boundary = if config.full_stacks == 0 { boundary } else { 0 };
    scratch.walk.reset(mix(config.life, generation), boundary);
    walk(&config.layout, tstate, &mut scratch.walk, &CurrentProcess);

    let flags = scratch.walk.flags as u8;
    if flags & stack_flag::TRUNCATED != 0 {
        emit::count(offset_of!(Counters, truncated_stacks));
    }
    if flags & stack_flag::FAULT != 0 {
        emit::count(offset_of!(Counters, faulted_stacks));
    }
    if scratch.walk.depth == 0 {
        return Taken::none(flags);
    }
    // A stack cut by a fault must not share its id with the whole one; ids are never 0.
    Taken { id: mix(scratch.walk.hash, u64::from(flags)) | 1, flags }
}

/// The current thread's Python thread state; the flags of a stack if there is none.
#[inline(always)]
pub fn current_thread_state(config: &ProcessConfig) -> Result<u64, u8> {
    let pointer = thread_pointer().ok_or(stack_flag::NO_PYTHON)?;
    let slot = thread_state(&config.thread_state, pointer, &CurrentProcess);
    let slot = slot.ok_or(stack_flag::NO_PYTHON)?;
    // It is not known which of its interpreters the thread runs: no stack is better than a wrong one.
    running(&config.interpreters, pointer, slot, &CurrentProcess).ok_or(0)
}
