//! What the tracer asks of the machine itself.

pub mod btf;
pub mod identity;
pub mod lock;
pub mod nvml;
pub mod privilege;

use std::{fs, io, os::fd::OwnedFd};

use rustix::process::{Pid as RawPid, PidfdFlags, pidfd_open};

use crate::model::Pid;

/// Nanoseconds of `CLOCK_MONOTONIC`, the clock of every event.
pub fn monotonic_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    (now.tv_sec as u64).wrapping_mul(1_000_000_000).wrapping_add(now.tv_nsec as u64)
}

/// A descriptor that becomes readable when the process ends, and never means another process.
///
/// # Errors
///
/// `ESRCH` when there is no such process.
pub fn pidfd(pid: Pid) -> io::Result<OwnedFd> {
    let raw = RawPid::from_raw(pid.0 as i32).ok_or(io::ErrorKind::InvalidInput)?;
    Ok(pidfd_open(raw, PidfdFlags::NONBLOCK)?)
}

/// The kernel's release, such as `6.12.1-amd64`.
pub fn kernel_release() -> String {
    fs::read_to_string("/proc/sys/kernel/osrelease")
        .map_or_else(|_| "unknown".to_owned(), |text| text.trim().to_owned())
}
