//! PyTorch's hooks that need no stack; the others are in `pool.rs`.

use aya_ebpf::{
    EbpfContext as _, bindings::pt_regs, helpers::bpf_get_attach_cookie, macros::uprobe,
    programs::ProbeContext,
};
use tracer_common::{
    ReadMem as _,
    wire::{MemoryEvent, probe, trace_action, trace_facts},
};

use super::pool;
use crate::{
    emit::{self, Class},
    maps::{REQUESTED, Requested},
    memory::CurrentProcess,
    stack::Taken,
    target::Target,
};

/// `DeviceCachingAllocator::record_trace(this, TraceEntry::Action action, size_t addr, size_t size, …)`:
/// called with or without a recording of the allocator's history. Of an allocation it tells what was
/// asked for, just before the report. What it tells besides is up to the version: the attach cookie says so
/// by [`trace_facts`]. Where its calls are found, those are probed that tell of what is used here; two of
/// three do not.
#[uprobe]
pub fn torch_trace(ctx: ProbeContext) -> u32 {
    let _ = try_trace(&ctx);
    0
}

/// `c10::ProfiledCPUMemoryReporter::Delete(this, void* ptr)`.
#[uprobe]
pub fn torch_cpu_delete(ctx: ProbeContext) -> u32 {
    let _ = try_cpu_delete(&ctx);
    0
}

/// What was asked for, if `record_trace` told it of this very block.
#[inline(always)]
pub fn requested(target: &Target, event: &MemoryEvent) -> Option<u64> {
    if event.size <= 0 {
        return None;
    }
    // SAFETY: a map value of this thread.
    let requested = unsafe { *REQUESTED.get_ptr(target.thread)? };
    (requested.address == event.address).then_some(requested.bytes)
}

#[inline(always)]
fn try_trace(ctx: &ProbeContext) -> Option<()> {
    // SAFETY: the context is that of the program.
    let facts = unsafe { bpf_get_attach_cookie(ctx.as_ptr()) };
    // Argument 0 is the allocator itself.
    let action: u32 = ctx.arg(1)?;
    let target = Target::current()?;
    if facts & trace_facts::POOL_BEGINS != 0 {
        let mut event = pool::event(&target, probe::TORCH_SEGMENT_PRIVATE, Taken::none(0));
        event.device = action as i8;
        emit::record(target.tgid(), Class::Event, &event);
        return Some(());
    }
    let (address, bytes): (u64, u64) = (ctx.arg(2)?, ctx.arg(3)?);
    let probe = match action {
        trace_action::ALLOC => {
            let requested = Requested { address, bytes };
            match REQUESTED.get_ptr_mut(target.thread) {
                // In place: to insert costs several times as much.
                // SAFETY: a map value of this thread.
                Some(place) => unsafe { *place = requested },
                // A full table leaves the size unknown.
                None => drop(REQUESTED.insert(target.thread, requested, 0)),
            }
            return Some(());
        }
        trace_action::SEGMENT_FREE | trace_action::SEGMENT_UNMAP => probe::TORCH_SEGMENT_FREED,
        trace_action::SEGMENT_ALLOC | trace_action::SEGMENT_MAP
            if facts & trace_facts::POOL != 0 && is_private(ctx, facts) =>
        {
            probe::TORCH_SEGMENT_PRIVATE
        }
        _ => return None,
    };
    let mut event = pool::event(&target, probe, Taken::none(0));
    event.address = address;
    event.size = bytes as i64;
    if facts & trace_facts::DEVICE != 0 {
        event.device = ctx.arg(5)?;
    }
    emit::record(target.tgid(), Class::Event, &event);
    Some(())
}

/// Whether the pool's id, the first argument that is passed in memory, is not that of the common pool,
/// (0, 0).
#[inline(always)]
fn is_private(ctx: &ProbeContext, facts: u64) -> bool {
    // SAFETY: the context of a uprobe is the registers.
    let stack = unsafe { (*ctx.as_ptr().cast::<pt_regs>()).rsp };
    // At the entry the return address comes first: the probe sits where the stack is untouched.
    let first = if facts & trace_facts::AT_CALL == 0 { 8 } else { 0 };
    let word = |at: u64| CurrentProcess.read_u64(stack.wrapping_add(first + at)).unwrap_or(0);
    word(0) | word(8) != 0
}

#[inline(always)]
fn try_cpu_delete(ctx: &ProbeContext) -> Option<()> {
    let target = Target::current()?;
    let mut event = pool::event(&target, probe::TORCH_CPU_DELETE, Taken::none(0));
    event.address = ctx.arg(1)?;
    emit::record(target.tgid(), Class::Event, &event);
    Some(())
}
