//! `PyEval_EvalCode`, which `exec` and `eval` come to: IPython's `run_code` begins to run a cell.
//!
//! A cell that allocates nothing has no other sign. `run_code` is known by its name and file; its code
//! object is where walks stop from then on, as what is outside it is the same for every cell.

use aya_ebpf::{helpers::bpf_ktime_get_ns, macros::uprobe, programs::ProbeContext};
use tracer_common::{
    config::{ProcessConfig, thread_state_kind},
    python::{
        code::{describe, has_name},
        walk::{RawFrame, frame_code, innermost},
    },
    wire::{CellRecord, FILENAME_BYTES, RecordHeader, WireString, tag},
};

use crate::{
    define::define,
    memory::CurrentProcess,
    scratch::{self, Scratch},
    stack,
    target::Target,
};

/// The function's name, as it lies in memory.
const FUNCTION: u64 = u64::from_le_bytes(*b"run_code");
/// The end of its file's name, in words: an array would be data, which a program cannot point to.
const FILE_0: u64 = u64::from_le_bytes(*b"IPython/");
const FILE_1: u64 = u64::from_le_bytes(*b"core/int");
const FILE_2: u64 = u64::from_le_bytes(*b"eractive");
const FILE_3: u64 = u64::from_le_bytes(*b"shell.py");
/// Bytes of all of them.
const FILE: usize = 32;

#[uprobe]
pub fn cell_starts(ctx: ProbeContext) -> u32 {
    let _ = try_cell(&ctx);
    0
}

/// `PyObject* PyEval_EvalCode(PyObject* co, PyObject* globals, PyObject* locals)`.
#[inline(always)]
fn try_cell(ctx: &ProbeContext) -> Option<()> {
    let target = Target::current()?;
    // SAFETY: a map value, which user space replaces as a whole but never frees under a program.
    let config = unsafe { &*target.config };
    if config.thread_state.kind == thread_state_kind::NONE {
        return None;
    }
    let code: u64 = ctx.arg(0)?;
    let tstate = stack::current_thread_state(config).ok()?;
    let frame = innermost(&config.layout, tstate, &CurrentProcess)?;
    let caller = frame_code(&config.layout, frame, &CurrentProcess)?;
    // SAFETY: as above; any value that is read is one that was current during this hit.
    let boundary = unsafe { core::ptr::read_volatile(&raw const config.boundary) };
    if caller != boundary && !has_name(&config.layout, caller, FUNCTION, &CurrentProcess) {
        return None;
    }
    let scratch = scratch::acquire(target.thread)?;
    if caller == boundary || is_run_code(config, caller, scratch) {
        // SAFETY: as above. Only ever set to what it is.
        unsafe { core::ptr::write_volatile(&raw mut (*target.config).boundary, caller) };
        report(ctx, &target, code, scratch);
    }
    scratch::release(scratch);
    Some(())
}

/// Whether a code object of that name is IPython's.
#[inline(always)]
fn is_run_code(config: &ProcessConfig, code: u64, scratch: &mut Scratch) -> bool {
    describe(&config.layout, code, &mut scratch.code, &CurrentProcess);
    ends_with(&scratch.code.filename)
}

#[inline(always)]
fn ends_with(name: &WireString<FILENAME_BYTES>) -> bool {
    let Some(start) = usize::from(name.filled).checked_sub(FILE) else { return false };
    if name.width != 1 || start > FILENAME_BYTES - FILE {
        return false;
    }
    // SAFETY: at most the last word of the name's room; bytes need no alignment.
    let word =
        |at: usize| unsafe { name.bytes.as_ptr().add(start + at).cast::<u64>().read_unaligned() };
    word(0) == FILE_0 && word(8) == FILE_1 && word(16) == FILE_2 && word(24) == FILE_3
}

/// Comes back only if the code object cannot be defined.
#[inline(always)]
fn report(ctx: &ProbeContext, target: &Target, code: u64, scratch: &mut Scratch) {
    scratch.pending.set(&CellRecord {
        header: RecordHeader { tag: tag::CELL, detail: 0, tgid: target.tgid() },
        // SAFETY: a helper without arguments.
        time_ns: unsafe { bpf_ktime_get_ns() },
        tid: target.tid(),
        pad: 0,
        code: 0,
    });
    scratch.walk.set_single(RawFrame { code, ..RawFrame::default() });
    define(ctx, scratch);
    scratch.pending.send(target.tgid());
}
