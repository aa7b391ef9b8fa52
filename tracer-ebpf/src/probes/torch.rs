//! PyTorch's hooks that need no stack; the others are in `pool.rs`.

use aya_ebpf::{
    EbpfContext as _, helpers::bpf_get_attach_cookie, macros::uprobe, programs::ProbeContext,
};
use tracer_common::wire::{MemoryEvent, probe};

use super::pool;
use crate::{
    emit::{self, Class},
    maps::{REQUESTED, Requested},
    stack::Taken,
    target::Target,
};

/// `DeviceCachingAllocator::record_trace(this, TraceEntry::Action action, size_t addr, size_t size, …)`:
/// called with or without a recording of the allocator's history. Of an allocation it tells what was
/// asked for, just before the report. From 2.3 on the sixth argument is the device; the attach cookie says
/// so by 1.
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

/// `TraceEntry::Action`.
mod action {
    pub const ALLOC: u32 = 0;
    pub const SEGMENT_FREE: u32 = 4;
    pub const SEGMENT_UNMAP: u32 = 6;
}

#[inline(always)]
fn try_trace(ctx: &ProbeContext) -> Option<()> {
    // Argument 0 is the allocator itself.
    let action: u32 = ctx.arg(1)?;
    if !matches!(action, action::ALLOC | action::SEGMENT_FREE | action::SEGMENT_UNMAP) {
        return None;
    }
    let target = Target::current()?;
    let (address, bytes): (u64, u64) = (ctx.arg(2)?, ctx.arg(3)?);
    if action == action::ALLOC {
        // A full table leaves the size unknown.
        let _ = REQUESTED.insert(target.thread, Requested { address, bytes }, 0);
        return Some(());
    }
    let mut event = pool::event(&target, probe::TORCH_SEGMENT_FREED, Taken { id: 0, flags: 0 });
    event.address = address;
    event.size = bytes as i64;
    // SAFETY: the context is that of the program.
    if unsafe { bpf_get_attach_cookie(ctx.as_ptr()) } == 1 {
        event.device = ctx.arg(5)?;
    }
    emit::record(target.tgid(), Class::Event, &event);
    Some(())
}

#[inline(always)]
fn try_cpu_delete(ctx: &ProbeContext) -> Option<()> {
    let target = Target::current()?;
    let mut event = pool::event(&target, probe::TORCH_CPU_DELETE, Taken { id: 0, flags: 0 });
    event.address = ctx.arg(1)?;
    emit::record(target.tgid(), Class::Event, &event);
    Some(())
}
