//! The memory of another process, for reading.

use std::{fs::File, io, os::unix::fs::FileExt as _};

use tracer_common::ReadMem;

use super::process::PROC;
use crate::model::Pid;

/// `/proc/PID/mem`, opened. It keeps meaning the same address space, also after exec.
pub struct ProcessMemory(File);

impl ProcessMemory {
    /// Opens it.
    ///
    /// # Errors
    ///
    /// When the process is gone or its memory may not be read.
    pub fn open(pid: Pid) -> io::Result<Self> {
        File::open(format!("{PROC}/{}/mem", pid.0)).map(Self)
    }
}

impl ReadMem for ProcessMemory {
    unsafe fn read(&self, addr: u64, dst: *mut u8, len: u32) -> bool {
        // SAFETY: the caller vouches for `dst`.
        let buffer = unsafe { std::slice::from_raw_parts_mut(dst, len as usize) };
        self.0.read_exact_at(buffer, addr).is_ok()
    }
}
