//! Definitions at first sight: of a stack, and of the code objects in it.
//!
//! They are made inside the hit, because a notebook cell's code object is gone as soon as the cell ends:
//! user space would come too late (docs/python-frames.md). A program of its own makes them, by a few steps at a
//! time, and calls itself for more: the verifier goes through them once, and not once for every hook.

use core::mem::offset_of;

use aya_ebpf::{
    EbpfContext, helpers::bpf_get_current_pid_tgid, macros::uprobe, programs::ProbeContext,
};
use tracer_common::{
    config::ProcessConfig,
    counters::Counters,
    python::code::{describe, instruction_offset, read_lines},
    wire::{
        LINES_CHUNK, LinesRecord, MAX_FRAMES, MAX_LINES_CHUNKS, RecordHeader, StackFrame,
        StackRecord, tag,
    },
};

use crate::{
    emit::{self, Class},
    maps::{self, CODES, CodeKey, PROGRAMS, STACKS},
    memory::CurrentProcess,
    scratch::{self, Scratch},
    target::Target,
};

/// The program's place in [`PROGRAMS`].
const DEFINE: u32 = 0;

/// Steps of one run: one for each frame, and one for each further piece of a line table. Up to 33 runs follow
/// each other. A definition that needs more is not marked as known and goes on at the next hit.
const STEPS: usize = 32;

/// Where a definition stands. It lies in the scratch slot, like the walk's state and for the same
/// reason: one flat loop over it is cheap to verify, nested loops with their state in registers are
/// refused (more than a million instructions looked at).
#[repr(C)]
pub struct Cursor {
    /// The frame being defined.
    frame: u32,
    /// Bytes of its line table that were sent.
    sent: u32,
    /// Id of its code object while its line table is being sent; 0 otherwise.
    code: u64,
    /// Address of its line table.
    table: u64,
    /// Frames without a definition.
    incomplete: u64,
}

/// Defines the frames that were found, sends the record that waits in the slot, and gives the slot back. Comes
/// back, with nothing done, only if that program cannot be called.
#[inline(always)]
pub fn define(ctx: &impl EbpfContext, scratch: &mut Scratch) {
    let Cursor { frame, sent, code, table, incomplete } = &mut scratch.cursor;
    (*frame, *sent, *code, *table, *incomplete) = (0, 0, 0, 0, 0);
    // SAFETY: the slot is found again by the thread.
    unsafe { PROGRAMS.tail_call(ctx, DEFINE) };
}

#[uprobe]
pub fn define_stack(ctx: ProbeContext) -> u32 {
    let Some(scratch) = scratch::held_by(bpf_get_current_pid_tgid()) else { return 0 };
    if let Some(target) = Target::current() {
        // SAFETY: a map value, which user space replaces as a whole but never frees under a program.
        let config = unsafe { &*target.config };
        for _ in 0..STEPS {
            if !define_step(target.tgid(), config, scratch) {
                break;
            }
        }
        if scratch.cursor.frame < scratch.walk.depth {
            // SAFETY: as in `define`.
            unsafe { PROGRAMS.tail_call(&ctx, DEFINE) };
        }
        finish(&target, scratch);
    }
    scratch::release(scratch);
    0
}

/// Sends the stack, if its frames are defined, and then what waits for it.
#[inline(always)]
fn finish(target: &Target, scratch: &mut Scratch) {
    let (tgid, depth) = (target.tgid(), scratch.walk.depth as usize);
    let is_done = scratch.cursor.frame as usize >= depth && depth <= MAX_FRAMES;
    if scratch.pending.tag() == tag::CELL {
        scratch.pending.set_code(if is_done { scratch.stack.frames[0].code } else { 0 });
    } else if is_done {
        let stack = scratch.pending.stack();
        scratch.stack.header = RecordHeader { tag: tag::STACK, detail: depth as u16, tgid };
        scratch.stack.stack = stack;
        scratch.stack.flags = scratch.walk.flags;
        scratch.stack.pad = 0;
        scratch.stack.outer = scratch.outer;
        let size = StackRecord::FIXED_SIZE + depth * size_of::<StackFrame>();
        let is_sent = emit::front(tgid, Class::Definition, &scratch.stack, size);
        if is_sent && scratch.cursor.incomplete == 0 {
            // Known only once it was written: a definition that was dropped is sent again.
            let _ = STACKS.insert(stack, 1, 0);
        }
    }
    scratch.pending.send(tgid);
}

/// Sends at most one piece; `false` when every frame is done.
#[inline(always)]
fn define_step(tgid: u32, config: &ProcessConfig, scratch: &mut Scratch) -> bool {
    let frame = scratch.cursor.frame as usize;
    if frame >= scratch.walk.depth as usize || frame >= MAX_FRAMES {
        return false;
    }
    let raw = scratch.walk.frames[frame];
    let key = CodeKey { address: raw.code, life: config.life };
    let code = if scratch.cursor.code == 0 {
        if let Some(known) = CODES.get_ptr(key) {
            // SAFETY: a map value.
            let known = unsafe { *known };
            settle(frame, known, config, scratch);
            return true;
        }
        let Some(code) = maps::next_id() else { return false };
        scratch.cursor.table =
            describe(&config.layout, raw.code, &mut scratch.code, &CurrentProcess);
        scratch.cursor.sent = 0;
        scratch.code.header = RecordHeader { tag: tag::CODE, detail: 0, tgid };
        scratch.code.code = code;
        if !emit::record(tgid, Class::Definition, &scratch.code) {
            settle(frame, 0, config, scratch);
            return true;
        }
        code
    } else {
        scratch.cursor.code
    };
    let (sent, size) = (scratch.cursor.sent, scratch.code.line_table_size);
    if sent < size && sent < (MAX_LINES_CHUNKS * LINES_CHUNK) as u32 {
        scratch.lines.header = RecordHeader { tag: tag::LINES, detail: 0, tgid };
        scratch.lines.code = code;
        // A piece that cannot be read leaves its lines unknown; the names stay.
        if read_lines(scratch.cursor.table, size, sent, &mut scratch.lines, &CurrentProcess)
            && !send_lines(tgid, scratch)
        {
            settle(frame, 0, config, scratch);
            return true;
        }
        if size - sent > LINES_CHUNK as u32 {
            scratch.cursor.sent = sent + LINES_CHUNK as u32;
            scratch.cursor.code = code;
            return true;
        }
    }
    if CODES.insert(key, code, 0).is_ok() {
        settle(frame, code, config, scratch);
    } else {
        // The end of this code object could not be noticed: no stack may rely on its name.
        emit::count(offset_of!(Counters, codes_full));
        settle(frame, 0, config, scratch);
    }
    true
}

/// Sends the piece of a line table that was read, as long as it is.
#[inline(always)]
fn send_lines(tgid: u32, scratch: &Scratch) -> bool {
    let size = LinesRecord::FIXED_SIZE + scratch.lines.filled as usize;
    emit::front(tgid, Class::Definition, &scratch.lines, size)
}

/// Notes a frame's code object (0: it has no definition) and goes on to the next.
#[inline(always)]
fn settle(frame: usize, code: u64, config: &ProcessConfig, scratch: &mut Scratch) {
    if frame >= MAX_FRAMES {
        return;
    }
    let raw = scratch.walk.frames[frame];
    scratch.stack.frames[frame] = StackFrame {
        code,
        address: raw.code,
        instruction: instruction_offset(&config.layout, &raw, &CurrentProcess),
        pad: 0,
    };
    scratch.cursor.incomplete += u64::from(code == 0);
    scratch.cursor.code = 0;
    scratch.cursor.frame = frame as u32 + 1;
}
