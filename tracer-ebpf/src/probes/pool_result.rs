//! Pools whose blocks are only known when a function returns: one pair of programs, the second of which
//! hangs on the return, or on the instructions that return where the return must not be touched.
//!
//! - [`probe::CUPY_MALLOC`]: `SingleDeviceMemoryPool.malloc(self, size_t size)`, which returns a
//!   `MemoryPointer`.
//! - [`probe::ARENA_ALLOC`]: `onnxruntime::BFCArena::AllocateRawInternal(this, size_t bytes, ...)` and
//!   `Reserve(this, size_t bytes)`, which return the address and throw if there is no memory: no C++
//!   exception passes a return that the kernel has hooked.
//!
//! The rest of the cookie is where in an arena its name is.

use core::{mem::offset_of, ptr::read_volatile};

use aya_ebpf::{
    EbpfContext as _, bindings::pt_regs, helpers::bpf_get_attach_cookie, macros::uprobe,
    programs::ProbeContext,
};
use tracer_common::{
    counters::Counters,
    wire::{BlockEvent, probe, tag},
};

use super::{cupy, pool};
use crate::{
    emit,
    maps::{Call, CallKey, IN_FLIGHT},
    stack::Taken,
    target::Target,
};

#[uprobe]
pub fn pool_entry(ctx: ProbeContext) -> u32 {
    let _ = try_entry(&ctx);
    0
}

#[uprobe]
pub fn pool_result(ctx: ProbeContext) -> u32 {
    let _ = try_result(&ctx);
    0
}

/// The call of this thread that a hit belongs to.
#[inline(always)]
fn call_key(ctx: &ProbeContext, target: &Target) -> CallKey {
    // SAFETY: the context is that of the program.
    CallKey { thread: target.thread, call: unsafe { bpf_get_attach_cookie(ctx.as_ptr()) } }
}

#[inline(always)]
fn try_entry(ctx: &ProbeContext) -> Option<()> {
    let target = Target::current()?;
    let call = Call { arguments: pool::arguments(ctx), caller: 0, told: 0 };
    if IN_FLIGHT.insert(call_key(ctx, &target), call, 0).is_err() {
        emit::count(offset_of!(Counters, inflight_full));
    }
    Some(())
}

#[inline(always)]
fn try_result(ctx: &ProbeContext) -> Option<()> {
    let target = Target::current()?;
    let block = block(ctx, &target)?;
    pool::report(ctx, &target, block)
}

#[inline(always)]
fn block(ctx: &ProbeContext, target: &Target) -> Option<BlockEvent> {
    let key = call_key(ctx, target);
    let Some(call) = IN_FLIGHT.get_ptr(key) else {
        emit::count(offset_of!(Counters, unpaired_returns));
        return None;
    };
    // SAFETY: a map value of this thread's own call, copied before it is removed.
    let [pool, requested, ..] = unsafe { (*call).arguments };
    let _ = IN_FLIGHT.remove(key);
    // SAFETY: the context of a uprobe is the registers.
    let result = unsafe { read_volatile(&raw const (*ctx.as_ptr().cast::<pt_regs>()).rax) };
    let probe = key.call as u8;
    let mut event = pool::event(target, probe, Taken::none(0));
    event.header.tag = tag::BLOCK;
    match probe {
        probe::CUPY_MALLOC => cupy::allocated(&mut event, result)?,
        probe::ARENA_ALLOC => {
            event.address = (result != 0).then_some(result)?;
            event.size = requested as i64;
            event.extra[0] = pool;
            pool::define_pool(target, probe, pool, key.call >> 8);
        }
        _ => return None,
    }
    Some(BlockEvent { event, requested })
}
