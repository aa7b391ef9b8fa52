//! The memory of the current process, and the thread pointer.

use aya_ebpf::helpers::generated::{bpf_get_current_task_btf, bpf_probe_read_user};
use tracer_common::ReadMem;

/// Offset of `thread.fsbase` in the kernel's `task_struct`; user space sets it from the kernel's
/// BTF. 0 when it is not known: then there are no Python stacks.
#[unsafe(no_mangle)]
static FSBASE_OFFSET: u32 = 0;

/// The current process. Pages that are not resident are not readable.
pub struct CurrentProcess;

impl ReadMem for CurrentProcess {
    #[inline(always)]
    unsafe fn read(&self, addr: u64, dst: *mut u8, len: u32) -> bool {
        // SAFETY: the caller vouches for `dst`; the helper checks `addr`.
        unsafe { bpf_probe_read_user(dst.cast(), len, addr as *const _) == 0 }
    }
}

/// The current thread's thread pointer (fs base), which glibc sets for every thread.
#[inline(always)]
pub fn thread_pointer() -> Option<u64> {
    // SAFETY: a volatile read of a constant that the loader has patched.
    let offset = unsafe { core::ptr::read_volatile(&raw const FSBASE_OFFSET) };
    if offset == 0 {
        return None;
    }
    // SAFETY: a field of the task that the program runs in, which the verifier knows by its type, and
    // whose offset is constant to it.
    unsafe {
        let task = bpf_get_current_task_btf();
        Some(task.cast::<u64>().byte_add(offset as usize).read_volatile())
    }
}
