//! The CUDA driver: `cuMemAlloc_v2(CUdeviceptr* dptr, size_t bytes)` and
//! `cuMemFree_v2(CUdeviceptr dptr)`.
//!
//! An allocation is reported when it returns, because only then is the address known; nobody else
//! can free it before. A free is reported when it is *entered*, because once it is done another
//! thread may be given the address and report it first; if it then fails, that is reported too.

use core::mem::offset_of;

use aya_ebpf::{
    EbpfContext as _,
    helpers::bpf_ktime_get_ns,
    macros::{uprobe, uretprobe},
    programs::{ProbeContext, RetProbeContext},
};
use tracer_common::{
    ReadMem as _,
    counters::Counters,
    wire::{MemoryEvent, RecordHeader, memory_kind, probe, tag},
};

use crate::{
    emit::{self, Class},
    maps::{Call, CallKey, IN_FLIGHT},
    memory::CurrentProcess,
    stack::{self, Taken},
    target::Target,
};

#[uprobe]
pub fn cu_mem_alloc(ctx: ProbeContext) -> u32 {
    let _ = try_alloc(&ctx);
    0
}

#[uretprobe]
pub fn cu_mem_alloc_return(ctx: RetProbeContext) -> u32 {
    let _ = try_alloc_return(&ctx);
    0
}

#[uprobe]
pub fn cu_mem_free(ctx: ProbeContext) -> u32 {
    let _ = try_free(&ctx);
    0
}

#[uretprobe]
pub fn cu_mem_free_return(ctx: RetProbeContext) -> u32 {
    let _ = try_free_return(&ctx);
    0
}

#[inline(always)]
fn try_alloc(ctx: &ProbeContext) -> Option<()> {
    let target = Target::current()?;
    let call = Call { first: ctx.arg(0)?, size: ctx.arg(1)?, caller: caller(ctx) };
    enter(&target, probe::CU_MEM_ALLOC, &call);
    Some(())
}

#[inline(always)]
fn try_alloc_return(ctx: &RetProbeContext) -> Option<()> {
    let target = Target::current()?;
    let call = leave(&target, probe::CU_MEM_ALLOC)?;
    let result: u64 = ctx.ret();
    let error = result as u32;
    let address = if error == 0 { CurrentProcess.read_u64(call.first).unwrap_or(0) } else { 0 };
    let kind = if error == 0 { memory_kind::ALLOC } else { memory_kind::ALLOC_FAILED };
    let stack = stack::take(&target);
    report(&target, probe::CU_MEM_ALLOC, kind, address, &call, error, stack);
    Some(())
}

#[inline(always)]
fn try_free(ctx: &ProbeContext) -> Option<()> {
    let target = Target::current()?;
    let call = Call { first: ctx.arg(0)?, size: 0, caller: caller(ctx) };
    if call.first == 0 {
        // Freeing null does nothing.
        return None;
    }
    enter(&target, probe::CU_MEM_FREE, &call);
    let none = Taken { id: 0, flags: 0 };
    report(&target, probe::CU_MEM_FREE, memory_kind::FREE, call.first, &call, 0, none);
    Some(())
}

#[inline(always)]
fn try_free_return(ctx: &RetProbeContext) -> Option<()> {
    let target = Target::current()?;
    let call = leave(&target, probe::CU_MEM_FREE)?;
    let result: u64 = ctx.ret();
    if result as u32 != 0 {
        let none = Taken { id: 0, flags: 0 };
        let error = result as u32;
        report(
            &target,
            probe::CU_MEM_FREE,
            memory_kind::FREE_FAILED,
            call.first,
            &call,
            error,
            none,
        );
    }
    Some(())
}

/// The return address: who called. Valid because the probe sits where the stack is untouched.
#[inline(always)]
fn caller(ctx: &ProbeContext) -> u64 {
    // SAFETY: the context of a uprobe is the registers.
    let stack_pointer = unsafe { (*ctx.as_ptr().cast::<aya_ebpf::bindings::pt_regs>()).rsp };
    CurrentProcess.read_u64(stack_pointer).unwrap_or(0)
}

#[inline(always)]
fn enter(target: &Target, probe: u8, call: &Call) {
    let key = CallKey { thread: target.thread, probe: u64::from(probe) };
    if IN_FLIGHT.insert(key, call, 0).is_err() {
        emit::count(offset_of!(Counters, inflight_full));
    }
}

#[inline(always)]
fn leave(target: &Target, probe: u8) -> Option<Call> {
    let key = CallKey { thread: target.thread, probe: u64::from(probe) };
    // SAFETY: a map value of this thread's own call, copied before it is removed.
    let call = IN_FLIGHT.get_ptr(key).map(|call| unsafe { *call });
    if call.is_none() {
        emit::count(offset_of!(Counters, unpaired_returns));
    }
    let _ = IN_FLIGHT.remove(key);
    call
}

#[inline(always)]
fn report(
    target: &Target,
    probe: u8,
    kind: u8,
    address: u64,
    call: &Call,
    error: u32,
    stack: Taken,
) {
    let event = MemoryEvent {
        header: RecordHeader { tag: tag::MEMORY, detail: 0, tgid: target.tgid() },
        // SAFETY: a helper without arguments.
        time_ns: unsafe { bpf_ktime_get_ns() },
        tid: target.tid(),
        probe,
        kind,
        flags: stack.flags,
        device: -1,
        address,
        size: call.size,
        stack: stack.id,
        extra: [u64::from(error), call.caller],
    };
    emit::record(target.tgid(), Class::Event, &event);
}
