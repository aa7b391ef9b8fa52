//! The CUDA driver: one pair of programs for every entry point, which the attach cookie names.
//! [`tracer_common::calls`] says what each one's arguments mean and when it is reported. Attach
//! cookies need kernel 5.15.

use core::{mem::offset_of, ptr};

use aya_ebpf::{
    EbpfContext,
    bindings::pt_regs,
    helpers::generated::bpf_get_attach_cookie,
    macros::{uprobe, uretprobe},
    programs::{ProbeContext, RetProbeContext},
};
use tracer_common::{
    ReadMem as _,
    calls::{CallShape, MAX_CALLS, SHAPES, place, when},
    counters::Counters,
    wire::{CallEvent, MemoryEvent, phase, tag},
};

use crate::{
    emit::{self, Class},
    maps::{Call, CallKey, IN_FLIGHT},
    memory::CurrentProcess,
    pending::send_with_stack,
    probes::{pool, runtime},
    stack::Taken,
    target::Target,
};

#[uprobe]
pub fn driver_entry(ctx: ProbeContext) -> u32 {
    let _ = try_entry(&ctx);
    0
}

#[uretprobe]
pub fn driver_return(ctx: RetProbeContext) -> u32 {
    let _ = try_return(&ctx);
    0
}

#[inline(always)]
fn try_entry(ctx: &ProbeContext) -> Option<()> {
    let target = Target::current()?;
    // SAFETY: the context is that of the program.
    let index = unsafe { bpf_get_attach_cookie(ctx.as_ptr()) } as usize & (MAX_CALLS - 1);
    let shape = SHAPES[index];
    // SAFETY: the context of a uprobe is the registers.
    let registers = unsafe { &*ctx.as_ptr().cast::<pt_regs>() };
    let mut call = Call::of(registers);
    if let Some(outer) = runtime::outer(target.thread, registers.rsp) {
        runtime::enter_driver(&target, outer, &shape, &mut call);
    }
    if shape.when != when::ENTRY_ONLY {
        let key = CallKey { thread: target.thread, call: index as u64 };
        if IN_FLIGHT.insert(key, call, 0).is_err() {
            emit::count(offset_of!(Counters, inflight_full));
        }
    }
    if shape.when != when::RETURN && call.told == 0 {
        let phase = if shape.when == when::ENTRY { phase::BEGUN } else { phase::DONE };
        let event = event(&target, index, &shape, &call, phase, 0)?;
        emit::record(target.tgid(), Class::Event, &event);
    }
    Some(())
}

#[inline(always)]
fn try_return(ctx: &RetProbeContext) -> Option<()> {
    let target = Target::current()?;
    // SAFETY: the context is that of the program.
    let index = unsafe { bpf_get_attach_cookie(ctx.as_ptr()) } as usize & (MAX_CALLS - 1);
    let shape = SHAPES[index];
    let key = CallKey { thread: target.thread, call: index as u64 };
    let Some(call) = IN_FLIGHT.get_ptr(key) else {
        emit::count(offset_of!(Counters, unpaired_returns));
        return None;
    };
    // SAFETY: a map value of this thread's own call, copied before it is removed.
    let call = unsafe { *call };
    let _ = IN_FLIGHT.remove(key);
    if call.told != 0 {
        return None;
    }
    let result: u64 = ctx.ret();
    let error = result as u32;
    let phase = if error == 0 { phase::DONE } else { phase::FAILED };
    if error == 0 && shape.when != when::RETURN {
        // Reported at the entry, and it came true.
        return None;
    }
    // SAFETY: the context of a uprobe is the registers.
    let registers = unsafe { &*ctx.as_ptr().cast::<pt_regs>() };
    // The return address is gone from the stack.
    if let Some(outer) = runtime::outer(target.thread, registers.rsp.wrapping_sub(8)) {
        runtime::answer(outer, &shape);
    }
    report(ctx, &target, index, &shape, &call, phase, error)
}

impl Call {
    /// What a function was called with, at an instruction where the stack is as the call left it.
    #[inline(always)]
    pub fn of(registers: &pt_regs) -> Self {
        let pt_regs { rdi, rsi, rdx, rcx, r8, r9, rsp, .. } = *registers;
        Self {
            arguments: [rdi, rsi, rdx, rcx, r8, r9],
            caller: CurrentProcess.read_u64(rsp).unwrap_or(0),
            told: 0,
        }
    }
}

/// Sends the event of a call that has returned, with the stack if it is one that allocates.
#[inline(always)]
pub fn report(
    ctx: &impl EbpfContext,
    target: &Target,
    index: usize,
    shape: &CallShape,
    call: &Call,
    phase: u8,
    error: u32,
) -> Option<()> {
    let event = event(target, index, shape, call, phase, error)?;
    if shape.stack == 0 {
        emit::record(target.tgid(), Class::Event, &event);
        return Some(());
    }
    let mut record = CallEvent { event, arguments: call.arguments, words: [0; 5] };
    if shape.words != 0 {
        record.event.header.tag = tag::CALL;
        let words = argument(shape.words & 0xf, call);
        for (index, word) in record.words.iter_mut().enumerate() {
            let address = words.wrapping_add(8 * index as u64);
            // SAFETY: eight writable bytes, which the helper clears if it cannot read.
            unsafe { CurrentProcess.read(address, ptr::from_mut(word).cast(), 8) };
        }
    }
    send_with_stack(ctx, target, &mut record);
    Some(())
}

/// The event of a call, without its stack.
#[inline(always)]
pub fn event(
    target: &Target,
    index: usize,
    shape: &CallShape,
    call: &Call,
    phase: u8,
    error: u32,
) -> Option<MemoryEvent> {
    let failed = phase == phase::FAILED;
    // What a failed call would have written is not there.
    let address = if failed && shape.when == when::RETURN { 0 } else { value(shape.address, call) };
    if address == 0 && phase == phase::DONE && shape.stack != 0 {
        // The runtime answers a request for 0 bytes so.
        return None;
    }
    let extra = if failed { u64::from(error) } else { value(shape.aux, call) };
    let nowhere = Taken::none(0);
    Some(MemoryEvent {
        phase,
        address,
        size: value(shape.size, call) as i64,
        extra: [extra, call.caller],
        ..pool::event(target, index as u8, nowhere)
    })
}

/// The value at a [`place`]; 0 where it is not readable.
#[inline(always)]
fn value(at: u8, call: &Call) -> u64 {
    let argument = argument(at & 0xf, call);
    match at & 0xf0 {
        place::ARGUMENT => argument,
        place::OUT => CurrentProcess.read_u64(argument).unwrap_or(0),
        place::OUT32 => CurrentProcess.read_u32(argument).unwrap_or(0).into(),
        // struct { type, handle types, location { type, id } }: the device is the fourth int.
        place::PROPERTY_DEVICE => CurrentProcess.read_u32(argument + 12).unwrap_or(0).into(),
        _ => 0,
    }
}

#[inline(always)]
fn argument(number: u8, call: &Call) -> u64 {
    match number {
        0 => call.arguments[0],
        1 => call.arguments[1],
        2 => call.arguments[2],
        3 => call.arguments[3],
        _ => call.arguments[4],
    }
}
