//! PyTorch's allocators.
//!
//! The pool of one device calls its hooks under its own lock: events of one device are in order.
//! Same mangled names from 2.0.1 to 2.15, but for `record_trace`, whose arguments stay.

use core::ptr::read_volatile;

use aya_ebpf::{
    EbpfContext as _,
    bindings::pt_regs,
    helpers::{bpf_get_attach_cookie, bpf_ktime_get_ns},
    macros::uprobe,
    programs::ProbeContext,
};
use tracer_common::wire::{BlockEvent, MemoryEvent, RecordHeader, phase, probe, tag};

use crate::{
    emit::{self, Class},
    maps::{REQUESTED, Requested},
    stack::{self, Taken},
    target::Target,
};

/// `c10::DeviceType::CUDA`.
const DEVICE_TYPE_CUDA: u8 = 1;

/// The hooks that take the Python stack; which one it is, is the attach cookie, one of [`probe`]. One
/// program for all, because the walk is what the verifier spends its time on.
///
/// - [`probe::TORCH_REPORT`]: `c10::reportMemoryUsageToProfiler(void* ptr, int64_t size, size_t
///   allocated, size_t reserved, c10::Device device)`: every allocation (size > 0) and free (size < 0),
///   with or without a profiler; the totals are those after the event.
/// - [`probe::TORCH_OUT_OF_MEMORY`]: `c10::reportOutOfMemoryToProfiler(int64_t size, size_t allocated,
///   size_t reserved, c10::Device device)`: after every retry, just before the exception.
/// - [`probe::TORCH_CPU_NEW`]: `c10::ProfiledCPUMemoryReporter::New(this, void* ptr, size_t nbytes)`.
#[uprobe]
pub fn torch_report(ctx: ProbeContext) -> u32 {
    let _ = try_report(&ctx);
    0
}

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

#[inline(always)]
fn try_report(ctx: &ProbeContext) -> Option<()> {
    let target = Target::current()?;
    // SAFETY: the context is that of the program.
    let probe = unsafe { bpf_get_attach_cookie(ctx.as_ptr()) } as u8;
    let arguments = arguments(ctx);
    let device = match probe {
        probe::TORCH_REPORT => arguments[4],
        probe::TORCH_OUT_OF_MEMORY => arguments[3],
        _ => 0,
    };
    let is_cuda = device as u8 == DEVICE_TYPE_CUDA;
    if !is_cuda && probe != probe::TORCH_CPU_NEW {
        return None;
    }
    let mut event = event(&target, probe, stack::take(&target));
    match probe {
        probe::TORCH_REPORT => {
            event.device = (device >> 8) as i8;
            event.address = arguments[0];
            event.size = arguments[1] as i64;
            event.extra = [arguments[2], arguments[3]];
            if let Some(requested) = requested(&target, &event) {
                event.header.tag = tag::BLOCK;
                emit::record(target.tgid(), Class::Event, &BlockEvent { event, requested });
                return Some(());
            }
        }
        probe::TORCH_OUT_OF_MEMORY => {
            event.device = (device >> 8) as i8;
            event.size = arguments[0] as i64;
            event.extra = [arguments[1], arguments[2]];
        }
        _ => {
            event.address = arguments[1];
            event.size = arguments[2] as i64;
        }
    }
    emit::record(target.tgid(), Class::Event, &event);
    Some(())
}

/// The first five arguments. All are read, and before any branch: of reads in branches the compiler
/// makes one read of a register that is chosen, which the verifier refuses.
#[inline(always)]
fn arguments(ctx: &ProbeContext) -> [u64; 5] {
    let registers = ctx.as_ptr().cast::<pt_regs>();
    // SAFETY: the context of a uprobe is the registers.
    unsafe {
        [
            read_volatile(&raw const (*registers).rdi),
            read_volatile(&raw const (*registers).rsi),
            read_volatile(&raw const (*registers).rdx),
            read_volatile(&raw const (*registers).rcx),
            read_volatile(&raw const (*registers).r8),
        ]
    }
}

/// What was asked for, if `record_trace` told it of this very block.
#[inline(always)]
fn requested(target: &Target, event: &MemoryEvent) -> Option<u64> {
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
    let mut event = event(&target, probe::TORCH_SEGMENT_FREED, Taken { id: 0, flags: 0 });
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
    let mut event = event(&target, probe::TORCH_CPU_DELETE, Taken { id: 0, flags: 0 });
    event.address = ctx.arg(1)?;
    emit::record(target.tgid(), Class::Event, &event);
    Some(())
}

#[inline(always)]
fn event(target: &Target, probe: u8, stack: Taken) -> MemoryEvent {
    MemoryEvent {
        header: RecordHeader { tag: tag::MEMORY, detail: 0, tgid: target.tgid() },
        // SAFETY: a helper without arguments.
        time_ns: unsafe { bpf_ktime_get_ns() },
        tid: target.tid(),
        probe,
        phase: phase::DONE,
        flags: stack.flags,
        device: -1,
        address: 0,
        size: 0,
        stack: stack.id,
        extra: [0; 2],
    }
}
