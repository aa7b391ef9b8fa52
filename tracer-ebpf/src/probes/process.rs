//! Life of a process: fork, exec, exit, and libraries loaded or unloaded.
//!
//! Raw tracepoints, which need no tracefs. A child is entered, and a process that has ended is removed,
//! here: before the child runs, and before the pid can be used again. `_dl_debug_state` is the function
//! that the dynamic loader calls for debuggers whenever the set of loaded libraries has changed.

use core::mem::offset_of;

use aya_ebpf::{
    EbpfContext as _,
    helpers::{bpf_get_current_task, bpf_ktime_get_ns, bpf_probe_read_kernel},
    macros::{raw_tracepoint, uprobe},
    programs::{ProbeContext, RawTracePointContext},
};
use aya_log_ebpf::debug;
use tracer_common::{
    config::thread_state_kind,
    counters::Counters,
    wire::{ProcessRecord, RecordHeader, process_kind, tag},
};

use crate::{
    emit::{self, Class},
    maps::{self, PROCESSES},
    target::Target,
};

/// Offsets in the kernel's `task_struct` and `signal_struct`; user space sets them from the kernel's
/// BTF. [`TASK_TGID`] is 0 when they are not known: then ends and forks are not reported.
#[unsafe(no_mangle)]
static TASK_TGID: u32 = 0;
#[unsafe(no_mangle)]
static TASK_SIGNAL: u32 = 0;
#[unsafe(no_mangle)]
static TASK_EXIT_CODE: u32 = 0;
#[unsafe(no_mangle)]
static SIGNAL_LIVE: u32 = 0;

#[raw_tracepoint(tracepoint = "sched_process_fork")]
pub fn process_fork(ctx: RawTracePointContext) -> i32 {
    if let Some(child) = try_fork(&ctx) {
        debug!(&ctx, "fork of {}", child);
    }
    0
}

#[raw_tracepoint(tracepoint = "sched_process_exit")]
pub fn process_exit(ctx: RawTracePointContext) -> i32 {
    if try_exit().is_some() {
        debug!(&ctx, "exit");
    }
    0
}

#[raw_tracepoint(tracepoint = "sched_process_exec")]
pub fn process_exec(ctx: RawTracePointContext) -> i32 {
    if try_exec().is_some() {
        debug!(&ctx, "exec");
    }
    0
}

#[uprobe]
pub fn libraries_changed(ctx: ProbeContext) -> u32 {
    if try_libraries_changed().is_some() {
        debug!(&ctx, "libraries changed");
    }
    0
}

/// The parent is the current process, and the child (second argument) has not run yet.
#[inline(always)]
fn try_fork(ctx: &RawTracePointContext) -> Option<u32> {
    let target = Target::current()?;
    // SAFETY: a map value, which is removed only once this process has ended.
    let config = unsafe { &*target.config };
    let tgid_offset = constant(&TASK_TGID);
    if config.follow == 0 || tgid_offset == 0 {
        return None;
    }
    // SAFETY: the context of a raw tracepoint is its arguments.
    let child = unsafe { *ctx.as_ptr().cast::<u64>().add(1) };
    let tgid: u32 = field(child, tgid_offset)?;
    if tgid == target.tgid() {
        // A thread.
        return None;
    }
    let mut copy = *config;
    copy.life = maps::next_id()?;
    copy.generation = 0;
    if PROCESSES.insert(tgid, copy, 0).is_err() {
        emit::count(offset_of!(Counters, processes_full));
        return None;
    }
    if !report(&target, process_kind::FORK, tgid.into()) {
        // Nobody would know whose its events are; the lost record is counted.
        let _ = PROCESSES.remove(tgid);
        return None;
    }
    Some(tgid)
}

/// The exit of the last thread: the count of live ones is 0 before the tracepoint.
#[inline(always)]
fn try_exit() -> Option<()> {
    let target = Target::current()?;
    if constant(&TASK_TGID) == 0 {
        return None;
    }
    // SAFETY: a helper without arguments.
    let task = unsafe { bpf_get_current_task() };
    let signal: u64 = field(task, constant(&TASK_SIGNAL))?;
    let live: u32 = field(signal, constant(&SIGNAL_LIVE))?;
    if live != 0 {
        return None;
    }
    let status: u32 = field(task, constant(&TASK_EXIT_CODE))?;
    report(&target, process_kind::EXIT, status.into());
    let _ = PROCESSES.remove(target.tgid());
    Some(())
}

/// What is known of the interpreter is not true any more.
#[inline(always)]
fn try_exec() -> Option<()> {
    let target = Target::current()?;
    report(&target, process_kind::EXEC, 0);
    // SAFETY: a map value, and this is the only thread of its process.
    let config = unsafe { &mut *target.config };
    match (config.follow, maps::next_id()) {
        (1, Some(life)) => {
            config.thread_state.kind = thread_state_kind::NONE;
            config.life = life;
            config.generation = 0;
            config.answered = 0;
            config.boundary = 0;
        }
        _ => {
            let _ = PROCESSES.remove(target.tgid());
        }
    }
    Some(())
}

#[inline(always)]
fn try_libraries_changed() -> Option<()> {
    report(&Target::current()?, process_kind::LIBRARIES_CHANGED, 0);
    Some(())
}

/// A field of a structure of the kernel's.
#[inline(always)]
fn field<T>(base: u64, offset: u32) -> Option<T> {
    // SAFETY: the helper checks what it reads.
    unsafe { bpf_probe_read_kernel(base.wrapping_add(offset.into()) as *const T).ok() }
}

/// A constant that the loader has patched.
#[inline(always)]
fn constant(place: &'static u32) -> u32 {
    // SAFETY: a reference.
    unsafe { core::ptr::read_volatile(place) }
}

#[inline(always)]
fn report(target: &Target, kind: u16, value: u64) -> bool {
    let record = ProcessRecord {
        header: RecordHeader { tag: tag::PROCESS, detail: kind, tgid: target.tgid() },
        // SAFETY: a helper without arguments.
        time_ns: unsafe { bpf_ktime_get_ns() },
        value,
    };
    emit::record(target.tgid(), Class::Definition, &record)
}
