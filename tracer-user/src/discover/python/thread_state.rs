//! Where threads have their Python thread state, and whether it is really there.

use tracer_common::{
    ReadMem as _,
    config::{ThreadStateSource, thread_state_kind},
    python::{table::RuntimeLayout, walk::thread_state},
};

use super::{
    PythonError,
    interpreter::{Interpreter, THIS_THREAD_STATE},
    thread_local::{LOOKED_AT, ThreadLocal, returned_by},
};
use crate::discover::{elf::Elf, maps::MappedFile, symbols::Pattern};

/// glibc's own description of where a thread keeps its values for pthread keys.
const PTHREAD_SPECIFIC: Pattern = Pattern::Exact("_thread_db_pthread_specific");

/// What it says in every version that was looked at, 2.31 to 2.43; for a glibc that was stripped of it. If it
/// is wrong, no thread state is found.
const USUAL_BLOCKS: u32 = 1296;

/// Values of pthread keys that glibc keeps together.
const KEYS_PER_BLOCK: u32 = 32;

/// Bytes of an entry of a thread's vector of TLS blocks, in glibc.
const TLS_VECTOR_ENTRY: u64 = 16;

/// Most modules with thread-local variables that a process can be believed to have.
const MAX_TLS_MODULES: u64 = 1 << 20;

/// Finds the place, and checks it on the threads that the interpreter lists: for one of them at least it
/// has to lead to the thread state that the interpreter has for that very thread. Returns that one too.
pub(super) fn find(
    interpreter: &Interpreter<'_>,
    layout: &RuntimeLayout,
) -> Result<(ThreadStateSource, u64), PythonError> {
    let sources = match layout.auto_tss_key {
        Some(key) => of_key(interpreter, key)?,
        None => vec![of_variable(interpreter)?],
    };
    let states = interpreter.thread_states(layout)?;
    for source in sources {
        for &(owner, state) in &states {
            // On x86-64 glibc `pthread_self()`, which is what `thread_id` holds, is the thread pointer.
            let thread = interpreter.field(state, layout.tstate_thread_id).unwrap_or(0);
            if interpreter.field(state, layout.tstate_interpreter) == Some(owner)
                && thread_state(&source, thread, interpreter.memory) == Some(state)
            {
                return Ok((source, state));
            }
        }
    }
    Err(interpreter.no_thread_state("none of the interpreter's threads has it where it should be"))
}

/// The pthread key that CPython made, resolved as glibc does. The shortest way comes first.
fn of_key(interpreter: &Interpreter<'_>, key: u16) -> Result<Vec<ThreadStateSource>, PythonError> {
    let error = |why| interpreter.no_thread_state(why);
    let runtime = interpreter.runtime.ok_or(PythonError::NotPython(interpreter.pid))?;
    let at = runtime.wrapping_add(u64::from(key));
    let initialised = interpreter.memory.read_u32(at);
    if initialised.ok_or_else(|| error("_PyRuntime is not readable"))? == 0 {
        return Err(PythonError::NotInitialised(interpreter.pid));
    }
    let key = interpreter.memory.read_u32(at.wrapping_add(4)).filter(|&key| key < 1024);
    let key = key.ok_or_else(|| error("its pthread key is out of range"))?;
    let blocks =
        glibc_blocks(interpreter.files).ok_or_else(|| error("its C library is not glibc"))?;
    let (block, slot) =
        (i64::from(blocks) + 8 * i64::from(key / KEYS_PER_BLOCK), 16 * (key % KEYS_PER_BLOCK) + 8);
    let by_table = ThreadStateSource { kind: thread_state_kind::PTHREAD_KEY, slot, offset: block };
    // A thread has the first block of values in its own descriptor, just before the table of blocks.
    let inside = block - i64::from(KEYS_PER_BLOCK * 16) + i64::from(slot);
    let inside = ThreadStateSource { kind: thread_state_kind::TLS, slot: 0, offset: inside };
    Ok((key < KEYS_PER_BLOCK).then_some(inside).into_iter().chain([by_table]).collect())
}

/// Where glibc has a thread's blocks of values for keys, from its descriptor.
fn glibc_blocks(files: &[MappedFile]) -> Option<u32> {
    let mut libraries = files
        .iter()
        .filter(|file| {
            let name = file.file_name();
            // Before 2.34 threads were in a library of their own.
            ["libc.so.6", "libc-2.", "libpthread-2."].iter().any(|start| name.starts_with(start))
        })
        .peekable();
    libraries.peek()?;
    let published = libraries.find_map(|file| {
        let elf = Elf::open(&file.open_path, &[]).ok()?;
        // Exported since 2.34; before, a local symbol.
        let symbol = elf.functions(&[PTHREAD_SPECIFIC]).ok()?.remove(&PTHREAD_SPECIFIC)?;
        // Three ints: bits of an entry, number of entries, offset in the thread's descriptor.
        let bytes = elf.bytes(symbol.address, 12).ok()?;
        let offset: [u8; 4] = bytes.get(8..12)?.try_into().ok()?;
        Some(u32::from_le_bytes(offset))
    });
    Some(published.unwrap_or(USUAL_BLOCKS))
}

/// The thread-local variable, as the interpreter's own function finds it.
fn of_variable(interpreter: &Interpreter<'_>) -> Result<ThreadStateSource, PythonError> {
    let error = |why| interpreter.no_thread_state(why);
    let function = interpreter.address(THIS_THREAD_STATE);
    let code = interpreter.code(THIS_THREAD_STATE, LOOKED_AT);
    let (Some(function), Some(code)) = (function, code) else {
        return Err(error("PyGILState_GetThisThreadState is not exported"));
    };
    let word = |offset: i64| {
        interpreter
            .memory
            .read_u64(function.wrapping_add_signed(offset))
            .ok_or_else(|| error("its table of thread-local variables is not readable"))
    };
    let variable = returned_by(code)
        .ok_or_else(|| error("PyGILState_GetThisThreadState is not understood"))?;
    let (kind, slot, offset) = match variable {
        ThreadLocal::Offset(offset) => (thread_state_kind::TLS, 0, offset),
        ThreadLocal::OffsetAt(at) => (thread_state_kind::TLS, 0, word(at)?.cast_signed()),
        ThreadLocal::InBlock { index, offset } => {
            let module = word(index)?;
            let module = Some(module).filter(|module| (1..MAX_TLS_MODULES).contains(module));
            let module = module.ok_or_else(|| error("its library has no TLS block"))?;
            let slot = (TLS_VECTOR_ENTRY * module) as u32;
            let offset = word(index + 8)?.cast_signed().wrapping_add(offset);
            (thread_state_kind::TLS_OF_LIBRARY, slot, offset)
        }
    };
    Ok(ThreadStateSource { kind, slot, offset })
}
