//! The CUDA runtime: who called it, and what failed before it came to the driver. Whatever it
//! allocates is seen at the driver's calls inside ([`super::driver`]).

use aya_ebpf::{
    EbpfContext as _,
    bindings::pt_regs,
    helpers::generated::bpf_get_attach_cookie,
    macros::{uprobe, uretprobe},
    programs::{ProbeContext, RetProbeContext},
};
use tracer_common::{
    calls::{MAX_CALLS, SHAPES},
    wire::phase,
};

use super::driver;
use crate::{
    maps::{Call, RUNTIME, RuntimeCall},
    stack,
    target::Target,
};

#[uprobe]
pub fn runtime_entry(ctx: ProbeContext) -> u32 {
    let _ = try_entry(&ctx);
    0
}

#[uretprobe]
pub fn runtime_return(ctx: RetProbeContext) -> u32 {
    let _ = try_return(&ctx);
    0
}

#[inline(always)]
fn try_entry(ctx: &ProbeContext) -> Option<()> {
    let target = Target::current()?;
    // SAFETY: the context is that of the program.
    let index = unsafe { bpf_get_attach_cookie(ctx.as_ptr()) } & (MAX_CALLS as u64 - 1);
    // SAFETY: the context of a uprobe is the registers.
    let registers = unsafe { &*ctx.as_ptr().cast::<pt_regs>() };
    // Where the runtime calls itself, the outer call says who called.
    if outer(target.thread, registers.rsp).is_none() {
        let stack_pointer = registers.rsp;
        let call = RuntimeCall { call: Call::of(registers), index, stack_pointer, asked: 0 };
        // Without room the runtime itself is the caller.
        let _ = RUNTIME.insert(target.thread, call, 0);
    }
    Some(())
}

#[inline(always)]
fn try_return(ctx: &RetProbeContext) -> Option<()> {
    let target = Target::current()?;
    // SAFETY: the context is that of the program.
    let index = unsafe { bpf_get_attach_cookie(ctx.as_ptr()) } as usize & (MAX_CALLS - 1);
    let call = RUNTIME.get_ptr(target.thread)?;
    // SAFETY: a map value of this thread's own call, copied before it is removed.
    let call = unsafe { *call };
    if call.index != index as u64 {
        return None;
    }
    let _ = RUNTIME.remove(target.thread);
    let result: u64 = ctx.ret();
    if result as u32 == 0 || call.asked != 0 {
        return None;
    }
    let stack = stack::take(&target);
    let shape = SHAPES[index];
    driver::report(&target, index, &shape, &call.call, phase::FAILED, result as u32, stack);
    Some(())
}

/// The call of the runtime that this thread is in, seen from a call whose return address lies at
/// `stack_pointer`.
#[inline(always)]
pub fn outer(thread: u64, stack_pointer: u64) -> Option<*mut RuntimeCall> {
    let call = RUNTIME.get_ptr_mut(thread)?;
    // One that was left by a jump (an exception) is still there. Its return address lies below those
    // of most calls that come after.
    // SAFETY: a map value of this thread's own call.
    (unsafe { (*call).stack_pointer } > stack_pointer).then_some(call)
}
