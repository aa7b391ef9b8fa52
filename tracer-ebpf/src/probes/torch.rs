//! PyTorch's caching allocator: `c10::reportMemoryUsageToProfiler(void* ptr, int64_t size,
//! size_t allocated, size_t reserved, c10::Device device)`.
//!
//! Called for every allocation (size > 0) and free (size < 0) of the native caching allocator, with
//! or without a profiler, under the allocator's lock: events of one device are in order, and the
//! totals are those after the event. Same mangled name from 2.0.1 to 2.15. A single entry probe.

use aya_ebpf::{helpers::bpf_ktime_get_ns, macros::uprobe, programs::ProbeContext};
use tracer_common::wire::{MemoryEvent, RecordHeader, phase, probe, tag};

use crate::{
    emit::{self, Class},
    stack,
    target::Target,
};

/// `c10::DeviceType::CUDA`.
const DEVICE_TYPE_CUDA: u8 = 1;

#[uprobe]
pub fn torch_report(ctx: ProbeContext) -> u32 {
    let _ = try_report(&ctx);
    0
}

#[inline(always)]
fn try_report(ctx: &ProbeContext) -> Option<()> {
    let target = Target::current()?;
    let device: u64 = ctx.arg(4)?;
    if device as u8 != DEVICE_TYPE_CUDA {
        return None;
    }
    let stack = stack::take(&target);
    let event = MemoryEvent {
        header: RecordHeader { tag: tag::MEMORY, detail: 0, tgid: target.tgid() },
        // SAFETY: a helper without arguments.
        time_ns: unsafe { bpf_ktime_get_ns() },
        tid: target.tid(),
        probe: probe::TORCH_REPORT,
        phase: phase::DONE,
        flags: stack.flags,
        device: (device >> 8) as i8,
        address: ctx.arg(0)?,
        size: ctx.arg(1)?,
        stack: stack.id,
        extra: [ctx.arg(2)?, ctx.arg(3)?],
    };
    emit::record(target.tgid(), Class::Event, &event);
    Some(())
}
