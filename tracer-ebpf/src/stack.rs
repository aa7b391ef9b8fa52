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
    probes::autograd,
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
    /// Whether its frames are in the work space.
    pub is_walked: bool,
}

impl Taken {
    /// No stack, for this reason.
    #[inline(always)]
    pub const fn none(flags: u8) -> Self {
        Self { id: 0, flags, is_walked: false }
    }

    /// Whether user space does not know it yet, and can be told.
    #[inline(always)]
    pub fn is_new(&self) -> bool {
        self.is_walked && STACKS.get_ptr(self.id).is_none()
    }
}

/// Takes the Python stack of the current thread, in work space that the caller has.
#[inline(always)]
pub fn take(target: &Target, scratch: &mut Scratch) -> Taken {
    take_labelled(target, scratch, 0)
}

/// The same, but as a stack that means something else: with a bit of [`stack_flag`] in its definition, and an id
/// of its own.
#[inline(always)]
pub fn take_labelled(target: &Target, scratch: &mut Scratch, label: u8) -> Taken {
    // SAFETY: a map value, which user space replaces as a whole but never frees under a program.
    let config = unsafe { &*target.config };
    if config.thread_state.kind == thread_state_kind::NONE {
        return Taken::none(0);
    }
    let tstate = current_thread_state(config);
    let node = autograd::node(target);
    if let Some(taken) = node.inherited(config, tstate) {
        return taken;
    }
    let tstate = match tstate {
        Ok(tstate) => tstate,
        Err(flags) => return Taken::none(flags),
    };
    // SAFETY: both change under us, at most once per freed code object; any value that is read is one that
    // was current during this hit.
    let (generation, boundary) = unsafe {
        (read_volatile(&raw const config.generation), read_volatile(&raw const config.boundary))
    };
    let boundary = if config.full_stacks == 0 { boundary } else { 0 };
    let outer;
    (scratch.outer, outer) = node.outer();
    scratch.walk.reset(mix(config.life, generation), boundary, outer);
    walk(&config.layout, tstate, &mut scratch.walk, &CurrentProcess);
    if !scratch.walk.is_at_end() {
        scratch.outer = 0;
    }
    scratch.walk.flags |= u32::from(label);

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
    let id = mix(scratch.walk.hash ^ scratch.outer, u64::from(flags)) | 1;
    Taken { id, flags, is_walked: true }
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
