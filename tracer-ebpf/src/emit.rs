//! Writing records, and accounting for those that find no space.
//!
//! Records never wake user space: it drains the buffer on a timer, which spares the target an
//! interrupt per event (docs/abi.md).

use core::{hint::black_box, ptr::from_ref};

use aya_ebpf::{
    bindings::BPF_RB_NO_WAKEUP,
    helpers::{bpf_ktime_get_ns, generated::bpf_ringbuf_output},
};
use tracer_common::{
    counters::Counters,
    wire::{LossRecord, RecordHeader, tag},
};

use crate::{
    atomic,
    maps::{COUNTERS, EVENTS},
};

/// What a record is, for the accounts.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Class {
    /// A memory event.
    Event,
    /// A definition or a process record.
    Definition,
}

/// Adds 1 to the counter of this CPU that lies at `offset` in [`Counters`].
#[inline(always)]
pub fn count(offset: usize) {
    if let Some(counters) = COUNTERS.get_ptr_mut(0) {
        // SAFETY: a field of a map value; only touched atomically.
        unsafe { atomic::add(counters.byte_add(offset).cast(), 1) };
    }
}

/// Writes a record; `false`, and counted, if there is no space.
#[inline(always)]
pub fn record<T>(tgid: u32, class: Class, record: &T) -> bool {
    // SAFETY: the reference covers the size.
    write(tgid, class, || unsafe { output(from_ref(record).cast(), size_of::<T>() as u64) })
}

/// Writes the first `size` bytes of a record; `false`, and counted, if there is no space.
#[inline(always)]
pub fn front<T>(tgid: u32, class: Class, record: &T, size: usize) -> bool {
    write(tgid, class, || {
        // Compared where it is used: 6.1 forgets the bound of a value that has lain on the stack.
        let size = black_box(size);
        // SAFETY: the reference covers the size.
        size <= size_of::<T>() && unsafe { output(from_ref(record).cast(), size as u64) }
    })
}

#[inline(always)]
fn write(tgid: u32, class: Class, output: impl FnOnce() -> bool) -> bool {
    let Some(counters) = COUNTERS.get_ptr_mut(0) else { return false };
    // SAFETY: counters are a map value, only touched atomically but for this first look, whose
    // result is checked by the exchange.
    unsafe {
        // Only before events: it keeps the definitions' loop small for the verifier.
        if class == Class::Event && (*counters).unannounced != 0 {
            announce(tgid, counters);
        }
        if output() {
            if class == Class::Event {
                atomic::add(&raw mut (*counters).events, 1);
            }
            return true;
        }
        match class {
            Class::Event => atomic::add(&raw mut (*counters).dropped_events, 1),
            Class::Definition => atomic::add(&raw mut (*counters).dropped_definitions, 1),
        }
        atomic::add(&raw mut (*counters).unannounced, 1);
    }
    false
}

/// Tells user space at this place in the stream how many records are missing before it.
#[inline(always)]
unsafe fn announce(tgid: u32, counters: *mut Counters) {
    // SAFETY: as in `write`.
    unsafe {
        let dropped = atomic::exchange(&raw mut (*counters).unannounced, 0u64);
        let loss = LossRecord {
            header: RecordHeader { tag: tag::LOSS, detail: 0, tgid },
            time_ns: bpf_ktime_get_ns(),
            dropped,
        };
        if !output((&raw const loss).cast(), size_of::<LossRecord>() as u64) {
            atomic::add(&raw mut (*counters).unannounced, dropped);
        }
    }
}

#[inline(always)]
unsafe fn output(data: *const u8, size: u64) -> bool {
    // SAFETY: the caller vouches for `data`.
    unsafe {
        bpf_ringbuf_output(
            (&raw const EVENTS).cast_mut().cast(),
            data.cast_mut().cast(),
            size,
            u64::from(BPF_RB_NO_WAKEUP),
        ) == 0
    }
}
