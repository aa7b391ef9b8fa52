//! Records that wait for the Python stack.

use core::{mem::offset_of, ptr};

use aya_ebpf::EbpfContext;
use tracer_common::{
    counters::Counters,
    wire::{BlockEvent, CallEvent, CellRecord, MemoryEvent, RecordHeader, stack_flag, tag},
};

use crate::{
    define::define,
    emit::{self, Class},
    scratch, stack,
    target::Target,
};

/// A record in a scratch slot. Which one, its tag says.
#[repr(C)]
pub union Pending {
    header: RecordHeader,
    event: MemoryEvent,
    block: BlockEvent,
    call: CallEvent,
    cell: CellRecord,
}

// SAFETY (of every access below): all of them are plain data of words, which begin with a header, and all events
// with a `MemoryEvent`.
impl Pending {
    /// Which record it is.
    #[inline(always)]
    pub fn tag(&self) -> u16 {
        // SAFETY: see above.
        unsafe { self.header.tag }
    }

    /// The stack of an event.
    #[inline(always)]
    pub fn stack(&self) -> u64 {
        // SAFETY: see above.
        unsafe { self.event.stack }
    }

    /// The code object of a cell.
    #[inline(always)]
    pub fn set_code(&mut self, code: u64) {
        self.cell.code = code;
    }

    /// Takes a record, word by word: the compiler would call a function that copies bytes.
    #[inline(always)]
    pub fn set<T: Waiting>(&mut self, record: &T) {
        const { assert!(size_of::<T>().is_multiple_of(8) && size_of::<T>() <= size_of::<Self>()) };
        let (to, from) = (ptr::from_mut(self).cast::<u64>(), ptr::from_ref(record).cast::<u64>());
        for word in 0..size_of::<T>() / 8 {
            // SAFETY: both are as long, and aligned to words.
            unsafe { to.add(word).write_volatile(from.add(word).read_volatile()) };
        }
    }

    /// Sends it, as long as its kind is.
    #[inline(always)]
    pub fn send(&self, tgid: u32) {
        // SAFETY: see above.
        unsafe {
            match self.tag() {
                tag::BLOCK => emit::record(tgid, Class::Event, &self.block),
                tag::CALL => emit::record(tgid, Class::Event, &self.call),
                tag::CELL => emit::record(tgid, Class::Definition, &self.cell),
                // Its stack was all that was wanted.
                tag::STACK => return,
                _ => emit::record(tgid, Class::Event, &self.event),
            }
        };
    }
}

/// A record that can wait.
///
/// # Safety
///
/// It is one of those in [`Pending`].
pub unsafe trait Waiting {}

// SAFETY: they are.
unsafe impl Waiting for BlockEvent {}
// SAFETY: they are.
unsafe impl Waiting for CallEvent {}
// SAFETY: they are.
unsafe impl Waiting for CellRecord {}
// SAFETY: they are.
unsafe impl Waiting for MemoryEvent {}

/// An event that begins with a [`MemoryEvent`].
pub trait Event: Waiting {
    /// What it begins with.
    fn event(&mut self) -> &mut MemoryEvent;

    /// Sends it by itself.
    fn send(&self, tgid: u32);
}

impl Event for BlockEvent {
    #[inline(always)]
    fn event(&mut self) -> &mut MemoryEvent {
        &mut self.event
    }

    #[inline(always)]
    fn send(&self, tgid: u32) {
        emit::record(tgid, Class::Event, self);
    }
}

impl Event for CallEvent {
    #[inline(always)]
    fn event(&mut self) -> &mut MemoryEvent {
        &mut self.event
    }

    /// Only a size that has to be worked out needs more than the event.
    #[inline(always)]
    fn send(&self, tgid: u32) {
        if self.event.header.tag == tag::CALL {
            emit::record(tgid, Class::Event, self);
        } else {
            emit::record(tgid, Class::Event, &self.event);
        }
    }
}

/// Sends an event with the Python stack of the current thread.
#[inline(always)]
pub fn send_with_stack<T: Event>(ctx: &impl EbpfContext, target: &Target, event: &mut T) {
    let Some(scratch) = scratch::acquire(target.thread) else {
        emit::count(offset_of!(Counters, busy_stacks));
        event.event().flags = stack_flag::BUSY;
        event.send(target.tgid());
        return;
    };
    // From here on nothing tells one event from another, so that the verifier goes through the walk once.
    scratch.pending.set(event);
    let taken = stack::take(target, scratch);
    // SAFETY: an event, as `T` is.
    let memory = unsafe { &mut scratch.pending.event };
    memory.stack = taken.id;
    memory.flags = taken.flags;
    if taken.is_new() {
        define(ctx, scratch);
    }
    scratch.pending.send(target.tgid());
    scratch::release(scratch);
}
