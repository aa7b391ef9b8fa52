//! The CUDA runtime: who called it, and what it did where the driver inside cannot be probed.
//!
//! Whatever the runtime allocates or frees comes to the driver, whose calls tell more ([`super::driver`]).
//! Which of them are probed is not asked but seen, call by call:
//!
//! - What is told at a return is told by the runtime only if no call of the driver inside has told of it.
//! - What frees has to be told at the entry, before it is known whether the driver will. The first time
//!   the runtime tells of it, and a probed call of the driver inside, which frees the same, does not. From
//!   then on that entry point of the runtime leaves it to the driver ([`ProcessConfig::answered`]).
//!
//! So each call counts once, whatever is probed in a process, and also when that changes.
//!
//! [`ProcessConfig::answered`]: tracer_common::config::ProcessConfig::answered

use aya_ebpf::{
    EbpfContext as _,
    bindings::pt_regs,
    helpers::generated::bpf_get_attach_cookie,
    macros::{uprobe, uretprobe},
    programs::{ProbeContext, RetProbeContext},
};
use tracer_common::{
    ReadMem as _,
    calls::{CallShape, FIRST_RUNTIME, MAX_CALLS, SHAPES, when},
    wire::phase,
};

use super::driver;
use crate::{
    emit::{self, Class},
    maps::{Call, RUNTIME, RuntimeCall},
    memory::CurrentProcess,
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
    let index = unsafe { bpf_get_attach_cookie(ctx.as_ptr()) } as usize & (MAX_CALLS - 1);
    // SAFETY: the context of a uprobe is the registers.
    let registers = unsafe { &*ctx.as_ptr().cast::<pt_regs>() };
    let stack_pointer = registers.rsp;
    // Where the runtime calls itself, the outer call is the one that counts.
    if outer(target.thread, stack_pointer).is_some() {
        return None;
    }
    let shape = SHAPES[index];
    let mut call = Call::of(registers);
    if shape.extent != 0 {
        take_extent(&mut call, stack_pointer);
    }
    // SAFETY: a map value, as in `answers`.
    let answered = unsafe { (*target.config).answered } & bit(index as u64);
    call.told = (shape.when == when::ENTRY && answered == 0).into();
    let op = shape.op.into();
    let outer = RuntimeCall { call, index: index as u64, op, stack_pointer, answered: 0 };
    // Without room the driver's calls are all that is seen.
    if RUNTIME.insert(target.thread, outer, 0).is_ok() && call.told != 0 {
        let event = driver::event(&target, index, &shape, &call, phase::BEGUN, 0)?;
        emit::record(target.tgid(), Class::Event, &event);
    }
    Some(())
}

#[inline(always)]
fn try_return(ctx: &RetProbeContext) -> Option<()> {
    let target = Target::current()?;
    // SAFETY: the context is that of the program.
    let index = unsafe { bpf_get_attach_cookie(ctx.as_ptr()) } as usize & (MAX_CALLS - 1);
    let outer = RUNTIME.get_ptr(target.thread)?;
    // SAFETY: a map value of this thread's own call, copied before it is removed.
    let outer = unsafe { *outer };
    if outer.index != index as u64 {
        return None;
    }
    let _ = RUNTIME.remove(target.thread);
    if outer.answered != 0 {
        return None;
    }
    let shape = SHAPES[index];
    let result: u64 = ctx.ret();
    let error = result as u32;
    let at_entry = shape.when == when::ENTRY;
    // What was told at the entry and has come true, or was not told and has failed.
    if at_entry && (outer.call.told != 0) == (error == 0) {
        return None;
    }
    let phase = match (error, at_entry) {
        (0, false) => phase::DONE,
        // The driver should have told of it, and has not.
        (0, true) => phase::BEGUN,
        _ => phase::FAILED,
    };
    driver::report(ctx, &target, index, &shape, &outer.call, phase, error)
}

/// A call of the driver begins inside of one of the runtime: who called is who called the runtime, and
/// what was told is not told again.
#[inline(always)]
pub fn enter_driver(target: &Target, outer: *mut RuntimeCall, shape: &CallShape, call: &mut Call) {
    // SAFETY: a map value of this thread's own call.
    let RuntimeCall { call: outer_call, op, index, .. } = unsafe { *outer };
    call.caller = outer_call.caller;
    if op != u64::from(shape.op) || shape.when != when::ENTRY {
        return;
    }
    if outer_call.told == 0 {
        answer(outer, shape);
    } else if outer_call.arguments[0] == call.arguments[0] {
        // Of the same address, so not what a call that was left by a jump was to free.
        call.told = 1;
        answers(target, index);
    }
}

/// A call of the driver tells of what the runtime's around it does.
#[inline(always)]
pub fn answer(outer: *mut RuntimeCall, shape: &CallShape) {
    // SAFETY: a map value of this thread's own call.
    unsafe { (*outer).answered |= u64::from((*outer).op == u64::from(shape.op)) };
}

/// Calls of the driver are probed inside of this entry point of the runtime.
#[inline(always)]
fn answers(target: &Target, index: u64) {
    // SAFETY: a map value, which user space replaces as a whole but never frees under a program. Of a bit
    // that another thread's write takes away the loss is that it is found out again.
    unsafe { (*target.config).answered |= bit(index) };
}

/// The bit of an entry point of the runtime.
#[inline(always)]
fn bit(index: u64) -> u64 {
    1 << (index.wrapping_sub(FIRST_RUNTIME as u64) & 63)
}

/// Puts an extent that was passed by value where the table has it ([`CallShape::extent`]). Read now,
/// because that memory is the function's own to change.
#[inline(always)]
fn take_extent(call: &mut Call, stack_pointer: u64) {
    let [_, _, third, fourth, ..] = call.arguments;
    call.arguments[2] = third & 0xffff_ffff | fourth << 32;
    for index in 0..3 {
        let address = stack_pointer + 8 * (index as u64 + 1);
        call.arguments[3 + index] = CurrentProcess.read_u64(address).unwrap_or(0);
    }
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
