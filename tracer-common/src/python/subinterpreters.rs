//! Which of a thread's thread states runs, where there are several interpreters.
//!
//! From 3.12 on the gilstate slot follows a thread into another interpreter. Before, it keeps the thread
//! state that the thread had first, and only the runtime's current thread state is the other interpreter's,
//! as long as the thread holds the GIL.

use crate::{ReadMem, config::Interpreters};

/// The thread state that runs on the thread with this thread pointer, given what its slot holds; `None` if
/// that cannot be told.
#[inline(always)]
pub fn running(
    interpreters: &Interpreters,
    thread_pointer: u64,
    slot: u64,
    mem: &impl ReadMem,
) -> Option<u64> {
    if interpreters.current == 0 {
        return Some(slot);
    }
    // New interpreters come first in the list, the main one is the last: mostly it is the only one.
    if mem.read_u64(interpreters.head) == Some(interpreters.main) {
        return Some(slot);
    }
    let current = mem.read_u64(interpreters.current).unwrap_or(0);
    if current == slot {
        return Some(slot);
    }
    let its_thread = current.wrapping_add(u64::from(interpreters.thread_id));
    // Else the thread does not hold the GIL.
    let is_its = current != 0 && mem.read_u64(its_thread) == Some(thread_pointer);
    is_its.then_some(current)
}
