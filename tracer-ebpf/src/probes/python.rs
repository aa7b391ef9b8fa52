//! `code_dealloc`, CPython's `PyCode_Type.tp_dealloc`: a code object is freed.
//!
//! Its address may be reused at once. Forgetting it and bumping the generation, which seeds every
//! stack's id, makes sure that no stack is ever named after a code object that is gone.

use aya_ebpf::{macros::uprobe, programs::ProbeContext};
use aya_log_ebpf::debug;
use tracer_common::wire::{CodeFreedRecord, RecordHeader, tag};

use crate::{
    atomic,
    emit::{self, Class},
    maps::{CODES, CodeKey},
    target::Target,
};

#[uprobe]
pub fn code_dealloc(ctx: ProbeContext) -> u32 {
    if let Some(code) = try_dealloc(&ctx) {
        debug!(&ctx, "code {} freed", code);
    }
    0
}

#[inline(always)]
fn try_dealloc(ctx: &ProbeContext) -> Option<u64> {
    let target = Target::current()?;
    // SAFETY: a map value; a life ends only when all threads are gone.
    let life = unsafe { (*target.config).life };
    let key = CodeKey { address: ctx.arg(0)?, life };
    // SAFETY: a map value; IPython may be loaded anew.
    unsafe {
        let boundary = &raw mut (*target.config).boundary;
        if boundary.read_volatile() == key.address {
            boundary.write_volatile(0);
        }
    }
    // SAFETY: a map value, copied before it is removed.
    let code = unsafe { *CODES.get_ptr(key)? };
    let _ = CODES.remove(key);
    // SAFETY: a map value; the generation is only touched atomically.
    unsafe { atomic::add(&raw mut (*target.config).generation, 1) };
    let freed = CodeFreedRecord {
        header: RecordHeader { tag: tag::CODE_FREED, detail: 0, tgid: target.tgid() },
        code,
    };
    emit::record(target.tgid(), Class::Definition, &freed);
    Some(code)
}
