//! Is the current process traced?

use aya_ebpf::helpers::bpf_get_current_pid_tgid;
use tracer_common::config::ProcessConfig;

use crate::maps::PROCESSES;

/// The current thread of a traced process.
pub struct Target {
    /// Thread and process as the kernel packs them.
    pub thread: u64,
    /// What user space said about the process.
    pub config: *mut ProcessConfig,
}

impl Target {
    /// The current thread; `None` if its process is not traced.
    #[inline(always)]
    pub fn current() -> Option<Self> {
        let thread = bpf_get_current_pid_tgid();
        let config = PROCESSES.get_ptr_mut((thread >> 32) as u32)?;
        Some(Self { thread, config })
    }

    /// This life of the process ([`ProcessConfig::life`]).
    #[inline(always)]
    pub fn life(&self) -> u64 {
        // SAFETY: a map value, which user space replaces as a whole but never frees under a program.
        unsafe { (*self.config).life }
    }

    /// Process id.
    #[inline(always)]
    pub fn tgid(&self) -> u32 {
        (self.thread >> 32) as u32
    }

    /// Thread id.
    #[inline(always)]
    pub fn tid(&self) -> u32 {
        self.thread as u32
    }
}
