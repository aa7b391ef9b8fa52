//! Life of a process: exit, exec, and libraries loaded or unloaded.
//!
//! Raw tracepoints, which need no tracefs. `_dl_debug_state` is the function that the dynamic
//! loader calls for debuggers whenever the set of loaded libraries has changed.

use aya_ebpf::{
    helpers::bpf_ktime_get_ns,
    macros::{raw_tracepoint, uprobe},
    programs::{ProbeContext, RawTracePointContext},
};
use aya_log_ebpf::debug;
use tracer_common::wire::{ProcessRecord, RecordHeader, process_kind, tag};

use crate::{
    emit::{self, Class},
    target::Target,
};

#[raw_tracepoint(tracepoint = "sched_process_exit")]
pub fn process_exit(ctx: RawTracePointContext) -> i32 {
    if try_exit().is_some() {
        debug!(&ctx, "exit");
    }
    0
}

#[raw_tracepoint(tracepoint = "sched_process_exec")]
pub fn process_exec(ctx: RawTracePointContext) -> i32 {
    if try_report(process_kind::EXEC).is_some() {
        debug!(&ctx, "exec");
    }
    0
}

#[uprobe]
pub fn libraries_changed(ctx: ProbeContext) -> u32 {
    if try_report(process_kind::LIBRARIES_CHANGED).is_some() {
        debug!(&ctx, "libraries changed");
    }
    0
}

/// The exit of the first thread; user space makes sure by the process's pidfd.
#[inline(always)]
fn try_exit() -> Option<()> {
    let target = Target::current()?;
    if target.tid() != target.tgid() {
        return None;
    }
    report(&target, process_kind::EXIT)
}

#[inline(always)]
fn try_report(kind: u16) -> Option<()> {
    report(&Target::current()?, kind)
}

#[inline(always)]
fn report(target: &Target, kind: u16) -> Option<()> {
    let record = ProcessRecord {
        header: RecordHeader { tag: tag::PROCESS, detail: kind, tgid: target.tgid() },
        // SAFETY: a helper without arguments.
        time_ns: unsafe { bpf_ktime_get_ns() },
    };
    emit::record(target.tgid(), Class::Definition, &record);
    Some(())
}
