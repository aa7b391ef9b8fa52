//! The CUDA driver: one pair of programs for every entry point, which the attach cookie names.
//! [`tracer_common::calls`] says what each one's arguments mean and when it is reported. Attach
//! cookies need kernel 5.15.

use core::mem::offset_of;

use aya_ebpf::{
    EbpfContext as _,
    bindings::pt_regs,
    helpers::{bpf_ktime_get_ns, generated::bpf_get_attach_cookie},
    macros::{uprobe, uretprobe},
    programs::{ProbeContext, RetProbeContext},
};
use tracer_common::{
    ReadMem as _,
    calls::{CallShape, MAX_CALLS, SHAPES, place, when},
    counters::Counters,
    wire::{MemoryEvent, RecordHeader, phase, tag},
};

use crate::{
    emit::{self, Class},
    maps::{Call, CallKey, IN_FLIGHT},
    memory::CurrentProcess,
    probes::runtime,
    stack::{self, Taken},
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
        // SAFETY: a map value of this thread's own call.
        unsafe {
            call.caller = (*outer).call.caller;
            // What takes a stack is what allocates.
            (*outer).asked |= u64::from(shape.stack);
        }
    }
    if shape.when != when::ENTRY_ONLY {
        let key = CallKey { thread: target.thread, call: index as u64 };
        if IN_FLIGHT.insert(key, call, 0).is_err() {
            emit::count(offset_of!(Counters, inflight_full));
        }
    }
    if shape.when != when::RETURN {
        let phase = if shape.when == when::ENTRY { phase::BEGUN } else { phase::DONE };
        report(&target, index, &shape, &call, phase, 0, Taken { id: 0, flags: 0 });
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
    // Before anything branches on the result: the verifier would go through the walk for each case.
    let stack = if shape.stack != 0 { stack::take(&target) } else { Taken { id: 0, flags: 0 } };
    let result: u64 = ctx.ret();
    let error = result as u32;
    let phase = if error == 0 { phase::DONE } else { phase::FAILED };
    if error == 0 && shape.when != when::RETURN {
        // Reported at the entry, and it came true.
        return None;
    }
    report(&target, index, &shape, &call, phase, error, stack);
    Some(())
}

impl Call {
    /// What a function was called with, at an instruction where the stack is as the call left it.
    #[inline(always)]
    pub fn of(registers: &pt_regs) -> Self {
        Self {
            arguments: [registers.rdi, registers.rsi, registers.rdx, registers.rcx, registers.r8],
            caller: CurrentProcess.read_u64(registers.rsp).unwrap_or(0),
        }
    }
}

/// Writes the event of a call.
#[inline(always)]
pub fn report(
    target: &Target,
    index: usize,
    shape: &CallShape,
    call: &Call,
    phase: u8,
    error: u32,
    stack: Taken,
) {
    let failed = phase == phase::FAILED;
    // What a failed call would have written is not there.
    let address = if failed && shape.when == when::RETURN { 0 } else { value(shape.address, call) };
    // The pitch is not known then, but what was asked for is.
    let size = if failed && shape.size == place::PITCHED {
        call.arguments[2].wrapping_mul(call.arguments[3])
    } else {
        value(shape.size, call)
    };
    let extra = if failed { u64::from(error) } else { value(shape.aux, call) };
    let event = MemoryEvent {
        header: RecordHeader { tag: tag::MEMORY, detail: 0, tgid: target.tgid() },
        // SAFETY: a helper without arguments.
        time_ns: unsafe { bpf_ktime_get_ns() },
        tid: target.tid(),
        probe: index as u8,
        phase,
        flags: stack.flags,
        device: -1,
        address,
        size: size as i64,
        stack: stack.id,
        extra: [extra, call.caller],
    };
    emit::record(target.tgid(), Class::Event, &event);
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
        // struct { width, height, format, channels }.
        place::ARRAY => extent(argument, 2),
        // struct { width, height, depth, format, channels, flags }.
        place::ARRAY_3D => extent(argument, 3),
        place::PITCHED => {
            let pitch = CurrentProcess.read_u64(call.arguments[1]).unwrap_or(0);
            pitch.wrapping_mul(call.arguments[3])
        }
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

/// Bytes of an array: its dimensions (0 means unused) times channels times the size of its format.
/// The driver may pad it, so this is a lower bound.
#[inline(always)]
fn extent(descriptor: u64, dimensions: u64) -> u64 {
    let mut bytes = 1u64;
    for index in 0..3 {
        if index < dimensions {
            let length = CurrentProcess.read_u64(descriptor + 8 * index).unwrap_or(0);
            bytes = bytes.wrapping_mul(if length == 0 { 1 } else { length });
        }
    }
    let rest = descriptor + 8 * dimensions;
    let width = match CurrentProcess.read_u32(rest).unwrap_or(0) {
        0x02 | 0x09 | 0x10 => 2,
        0x03 | 0x0a | 0x20 => 4,
        _ => 1,
    };
    let channels = CurrentProcess.read_u32(rest + 4).unwrap_or(1);
    bytes.wrapping_mul(width).wrapping_mul(channels.into())
}
