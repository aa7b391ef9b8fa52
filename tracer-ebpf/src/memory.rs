//! The memory of the current process, and the thread pointer.

use aya_ebpf::helpers::{
    bpf_get_current_task, bpf_probe_read_kernel, generated::bpf_probe_read_user,
};
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
    // SAFETY: helpers check what they read.
    unsafe {
        let task = bpf_get_current_task();
        bpf_probe_read_kernel((task.wrapping_add(u64::from(offset))) as *const u64).ok()
    }
}
