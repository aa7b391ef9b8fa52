//! The Python stack of the current thread: walk, id, and definitions at first sight.
//!
//! Definitions are made here, inside the hit, because a notebook cell's code object is gone as soon
//! as the cell ends: user space would come too late (docs/python-frames.md).

use core::mem::offset_of;

use tracer_common::{
    config::{ProcessConfig, thread_state_kind},
    counters::Counters,
    python::{
        code::{describe, read_lines},
        walk::{RawFrame, instruction_offset, mix, thread_state, walk},
    },
    wire::{
        LINES_CHUNK, LinesRecord, MAX_FRAMES, MAX_LINES_CHUNKS, RecordHeader, StackFrame,
        StackRecord, stack_flag, tag,
    },
};

use crate::{
    emit::{self, Class},
    maps::{self, CODES, CodeKey, STACKS},
    memory::{CurrentProcess, thread_pointer},
    scratch::Scratch,
    target::Target,
};

/// A stack as an event carries it.
#[derive(Clone, Copy)]
pub struct Taken {
    /// Id, or 0 for none.
    pub id: u64,
    /// Bits of [`stack_flag`].
    pub flags: u8,
}

/// Takes the Python stack of the current thread, in work space that the caller has.
#[inline(always)]
pub fn take_in(target: &Target, scratch: &mut Scratch) -> Taken {
    // SAFETY: a map value, which user space replaces as a whole but never frees under a program.
    let config = unsafe { &*target.config };
    if config.thread_state.kind == thread_state_kind::NONE {
        return Taken { id: 0, flags: 0 };
    }
    let Some(tstate) = current_thread_state(config) else {
        return Taken { id: 0, flags: stack_flag::NO_PYTHON };
    };
    take_with(target.tgid(), config, tstate, scratch)
}

/// The current thread's Python thread state.
#[inline(always)]
pub fn current_thread_state(config: &ProcessConfig) -> Option<u64> {
    thread_state(&config.thread_state, thread_pointer()?, &CurrentProcess)
}

#[inline(always)]
fn take_with(tgid: u32, config: &ProcessConfig, tstate: u64, scratch: &mut Scratch) -> Taken {
    // SAFETY: the generation changes under us at most once per freed code object; any value read
    // is one that was current during this hit.
    let generation = unsafe { core::ptr::read_volatile(&raw const config.generation) };
    // SAFETY: as for the generation.
    let boundary = unsafe { core::ptr::read_volatile(&raw const config.boundary) };
    let boundary = if config.full_stacks == 0 { boundary } else { 0 };
    scratch.walk.reset(mix(config.life, generation), boundary);
    walk(&config.layout, tstate, &mut scratch.walk, &CurrentProcess);

    let flags = scratch.walk.flags as u8;
    if flags & stack_flag::TRUNCATED != 0 {
        emit::count(offset_of!(Counters, truncated_stacks));
    }
    if flags & stack_flag::FAULT != 0 {
        emit::count(offset_of!(Counters, faulted_stacks));
    }
    if scratch.walk.depth == 0 {
        return Taken { id: 0, flags };
    }
    // A stack cut by a fault must not share its id with the whole one; ids are never 0.
    let id = mix(scratch.walk.hash, u64::from(flags)) | 1;
    if STACKS.get_ptr(id).is_none() && define(tgid, id, config, scratch) {
        // Known only once it was written: a definition that was dropped is sent again.
        let _ = STACKS.insert(id, 1, 0);
    }
    Taken { id, flags }
}

/// Most steps of a definition: one for each frame, and one for each further piece of a line table.
/// A definition that needs more is not marked as known and goes on at the next hit.
const MAX_STEPS: usize = MAX_FRAMES + 2 * MAX_LINES_CHUNKS;

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

/// Sends the definition of one code object, unless user space knows it; returns its id, 0 if it has none.
#[inline(always)]
pub fn define_code(target: &Target, address: u64, scratch: &mut Scratch) -> u64 {
    // SAFETY: a map value, which user space replaces as a whole but never frees under a program.
    let config = unsafe { &*target.config };
    scratch.walk.set_single(RawFrame { code: address, instruction: 0 });
    if !define_codes(target.tgid(), config, scratch) {
        return 0;
    }
    scratch.stack.frames[0].code
}

/// Sends the definition of a stack and of every code object in it that user space does not know.
#[inline(always)]
fn define(tgid: u32, id: u64, config: &ProcessConfig, scratch: &mut Scratch) -> bool {
    let depth = scratch.walk.depth as usize;
    if depth > MAX_FRAMES || !define_codes(tgid, config, scratch) {
        return false;
    }
    scratch.stack.header = RecordHeader { tag: tag::STACK, detail: depth as u16, tgid };
    scratch.stack.stack = id;
    scratch.stack.flags = scratch.walk.flags;
    scratch.stack.pad = 0;
    let size = StackRecord::FIXED_SIZE + depth * size_of::<StackFrame>();
    emit::front(tgid, Class::Definition, &scratch.stack, size) && scratch.cursor.incomplete == 0
}

/// Defines the code objects of the frames that were found; `false` if that has to go on at the next hit.
#[inline(always)]
fn define_codes(tgid: u32, config: &ProcessConfig, scratch: &mut Scratch) -> bool {
    scratch.cursor = Cursor { frame: 0, sent: 0, code: 0, table: 0, incomplete: 0 };
    for _ in 0..MAX_STEPS {
        if !define_step(tgid, config, scratch) {
            break;
        }
    }
    scratch.cursor.frame >= scratch.walk.depth
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
            finish(frame, known, config, scratch);
            return true;
        }
        let Some(code) = maps::next_id() else { return false };
        scratch.cursor.table =
            describe(&config.layout, raw.code, &mut scratch.code, &CurrentProcess);
        scratch.cursor.sent = 0;
        scratch.code.header = RecordHeader { tag: tag::CODE, detail: 0, tgid };
        scratch.code.code = code;
        if !emit::record(tgid, Class::Definition, &scratch.code) {
            finish(frame, 0, config, scratch);
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
            finish(frame, 0, config, scratch);
            return true;
        }
        if size - sent > LINES_CHUNK as u32 {
            scratch.cursor.sent = sent + LINES_CHUNK as u32;
            scratch.cursor.code = code;
            return true;
        }
    }
    if CODES.insert(key, code, 0).is_ok() {
        finish(frame, code, config, scratch);
    } else {
        // The end of this code object could not be noticed: no stack may rely on its name.
        emit::count(offset_of!(Counters, codes_full));
        finish(frame, 0, config, scratch);
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
fn finish(frame: usize, code: u64, config: &ProcessConfig, scratch: &mut Scratch) {
    if frame >= MAX_FRAMES {
        return;
    }
    let raw = scratch.walk.frames[frame];
    scratch.stack.frames[frame] = StackFrame {
        code,
        address: raw.code,
        instruction: instruction_offset(&config.layout, &raw),
        pad: 0,
    };
    scratch.cursor.incomplete += u64::from(code == 0);
    scratch.cursor.code = 0;
    scratch.cursor.frame = frame as u32 + 1;
}
