//! Hooks of pools that take the Python stack.
//!
//! One program for all of them, because the walk is what the verifier spends its time on. Which hook it
//! is, is the attach cookie: its lowest byte is one of [`probe`].
//!
//! PyTorch calls the hooks of one device under that device's lock, so its events are in order, as are
//! those of one BFC allocator. Same mangled names from PyTorch 2.0.1 to 2.15.
//!
//! - [`probe::TORCH_REPORT`]: `c10::reportMemoryUsageToProfiler(void* ptr, int64_t size, size_t
//!   allocated, size_t reserved, c10::Device device)`: every allocation (size > 0) and free (size < 0),
//!   with or without a profiler; the totals are those after the event.
//! - [`probe::TORCH_OUT_OF_MEMORY`]: `c10::reportOutOfMemoryToProfiler(int64_t size, size_t allocated,
//!   size_t reserved, c10::Device device)`: after every retry, just before the exception.
//! - [`probe::TORCH_CPU_NEW`]: `c10::ProfiledCPUMemoryReporter::New(this, void* ptr, size_t nbytes)`.
//! - [`probe::BFC_TENSORFLOW`], [`probe::BFC_JAX`]: `tsl::BFCAllocator::AddTraceMe(this, string_view
//!   name, const void* chunk, int64_t requested, int64_t allocated)`: every allocation and free, with or
//!   without a profiler. The rest of the cookie is where in the allocator its name is, 0 if not known.
//! - [`probe::CUPY_FREE`], CuPy's `PooledMemory.free(self)`.
//! - [`probe::ARENA_FREE`], `onnxruntime::BFCArena::Free(this, void* p)`.
//!
//! Pools whose blocks are only known when a function returns are in `pool_result.rs`.

use core::ptr::read_volatile;

use aya_ebpf::{
    EbpfContext as _,
    bindings::pt_regs,
    helpers::{bpf_get_attach_cookie, bpf_ktime_get_ns, bpf_probe_read_user_str_bytes},
    macros::uprobe,
    programs::ProbeContext,
};
use tracer_common::{
    ReadMem as _,
    wire::{
        BlockEvent, MemoryEvent, POOL_NAME_BYTES, PoolRecord, RecordHeader, UNKNOWN_REQUEST, phase,
        probe, tag,
    },
};

use super::{cupy, torch};
use crate::{
    emit::{self, Class},
    maps::{POOLS, PoolKey},
    memory::CurrentProcess,
    pending::send_with_stack,
    stack::Taken,
    target::Target,
};

/// `c10::DeviceType::CUDA`.
const DEVICE_TYPE_CUDA: u8 = 1;

/// Length of `MemoryAllocation`, as `AddTraceMe` names it.
const BFC_ALLOCATION: u64 = 16;
/// Length of `MemoryDeallocation`.
const BFC_FREE: u64 = 18;

#[uprobe]
pub fn pool_hook(ctx: ProbeContext) -> u32 {
    let _ = try_hook(&ctx);
    0
}

#[inline(always)]
fn try_hook(ctx: &ProbeContext) -> Option<()> {
    let target = Target::current()?;
    let block = block(ctx, &target)?;
    report(ctx, &target, block)
}

/// Sends an event of a pool's, with the stack if it is an allocation.
#[inline(always)]
pub fn report(ctx: &ProbeContext, target: &Target, mut block: BlockEvent) -> Option<()> {
    if block.event.size < 0 || block.event.probe == probe::ARENA_FREE {
        // Who frees a block is not asked for.
        emit::record(target.tgid(), Class::Event, &block);
    } else {
        send_with_stack(ctx, target, &mut block);
    }
    Some(())
}

/// What a hook tells, without the stack.
#[inline(always)]
fn block(ctx: &ProbeContext, target: &Target) -> Option<BlockEvent> {
    // SAFETY: the context is that of the program.
    let cookie = unsafe { bpf_get_attach_cookie(ctx.as_ptr()) };
    let probe = cookie as u8;
    let arguments = arguments(ctx);
    let mut event = event(target, probe, Taken::none(0));
    event.header.tag = tag::BLOCK;
    let mut requested = UNKNOWN_REQUEST;
    match probe {
        probe::TORCH_REPORT => {
            event.device = cuda_device(arguments[4])?;
            event.address = arguments[0];
            event.size = arguments[1] as i64;
            event.extra = [arguments[2], arguments[3]];
            requested = torch::requested(target, &event).unwrap_or(UNKNOWN_REQUEST);
        }
        probe::TORCH_OUT_OF_MEMORY => {
            event.device = cuda_device(arguments[3])?;
            event.size = arguments[0] as i64;
            event.extra = [arguments[1], arguments[2]];
        }
        probe::TORCH_CPU_NEW => {
            event.address = arguments[1];
            event.size = arguments[2] as i64;
        }
        probe::BFC_TENSORFLOW | probe::BFC_JAX => {
            let name_length = arguments[1];
            if name_length != BFC_ALLOCATION && name_length != BFC_FREE {
                return None;
            }
            let size = arguments[5] as i64;
            event.address = arguments[3];
            event.size = if name_length == BFC_FREE { -size } else { size };
            event.extra[0] = arguments[0];
            requested = arguments[4];
            define_pool(target, probe, arguments[0], cookie >> 8);
        }
        probe::CUPY_FREE => cupy::freed(&mut event, arguments[0])?,
        probe::ARENA_FREE => {
            event.address = (arguments[1] != 0).then_some(arguments[1])?;
            event.extra[0] = arguments[0];
        }
        _ => return None,
    }
    Some(BlockEvent { event, requested })
}

/// The index in a `c10::Device`, if it is a CUDA device.
#[inline(always)]
fn cuda_device(device: u64) -> Option<i8> {
    (device as u8 == DEVICE_TYPE_CUDA).then_some((device >> 8) as i8)
}

/// Sends the name of an allocator at first sight: a `std::string` at `offset` in it.
#[inline(always)]
pub fn define_pool(target: &Target, probe: u8, pool: u64, offset: u64) {
    let tgid = target.tgid();
    let key = PoolKey { pool, life: target.life() };
    if offset == 0 || POOLS.get_ptr(key).is_some() {
        return;
    }
    let Some(text) = CurrentProcess.read_u64(pool.wrapping_add(offset)) else { return };
    let mut record = PoolRecord {
        header: RecordHeader { tag: tag::POOL, detail: u16::from(probe), tgid },
        pool,
        name: [0; POOL_NAME_BYTES],
    };
    // SAFETY: reads at most the length of the buffer, and fails where nothing is mapped.
    let read = unsafe { bpf_probe_read_user_str_bytes(text as *const u8, &mut record.name) };
    if read.is_ok() && emit::record(tgid, Class::Definition, &record) {
        let _ = POOLS.insert(key, 1, 0);
    }
}

/// The arguments that registers carry. All are read, and before any branch: of reads in branches the
/// compiler makes one read of a register that is chosen, which the verifier refuses.
#[inline(always)]
pub fn arguments(ctx: &ProbeContext) -> [u64; 6] {
    let registers = ctx.as_ptr().cast::<pt_regs>();
    // SAFETY: the context of a uprobe is the registers.
    unsafe {
        [
            read_volatile(&raw const (*registers).rdi),
            read_volatile(&raw const (*registers).rsi),
            read_volatile(&raw const (*registers).rdx),
            read_volatile(&raw const (*registers).rcx),
            read_volatile(&raw const (*registers).r8),
            read_volatile(&raw const (*registers).r9),
        ]
    }
}

/// An event of this thread, with neither address nor size.
#[inline(always)]
pub fn event(target: &Target, probe: u8, stack: Taken) -> MemoryEvent {
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
