//! A process: who it is.

use std::{fs, path::PathBuf};

use procfs::process::Process;
use thiserror::Error;

use crate::model::Pid;

/// Where the process file system is mounted.
pub const PROC: &str = "/proc";

/// Longest command line that is kept, in characters.
const MAX_COMMAND: usize = 400;

/// No such process, or not one that can be traced.
#[derive(Debug, Error)]
pub enum ProcessError {
    /// There is none.
    #[error(
        "no process with pid {0}; list Jupyter kernels by `ps -C python3 -o pid,args | grep ipykernel`"
    )]
    NotFound(Pid),
    /// It is there, but not readable.
    #[error("cannot read `{path}`")]
    Unreadable {
        /// What.
        path: PathBuf,
        /// Why.
        #[source]
        source: procfs::ProcError,
    },
    /// A thread's id was given.
    #[error("{thread} is a thread of process {process}; run it with `--pid {process}`")]
    Thread {
        /// The thread.
        thread: Pid,
        /// Its process.
        process: Pid,
    },
    /// It has ended, and its parent has not noticed yet.
    #[error("process {0} has already ended (zombie)")]
    Zombie(Pid),
    /// It has no user space.
    #[error("process {0} is a kernel thread")]
    KernelThread(Pid),
}

/// Who a process is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProcessInfo {
    /// Its id.
    pub pid: Pid,
    /// When it started, in clock ticks since boot: with the pid, its identity.
    pub start_ticks: u64,
    /// When it started, RFC 3339.
    pub start_time: Option<String>,
    /// Its command line, or its name in brackets.
    pub command: String,
    /// The name of its user, or the number.
    pub user: Option<String>,
    /// The id of its container, as its control group tells.
    pub container: Option<String>,
    /// The number of pid namespaces that it is in beyond this one.
    pub nested_namespaces: usize,
}

/// The handle to a process below [`PROC`].
///
/// # Errors
///
/// [`ProcessError::NotFound`].
pub fn open(pid: Pid) -> Result<Process, ProcessError> {
    Process::new(pid.0 as i32).map_err(|error| match error {
        procfs::ProcError::NotFound(_) => ProcessError::NotFound(pid),
        source => unreadable(pid, "", source),
    })
}

fn unreadable(pid: Pid, file: &str, source: procfs::ProcError) -> ProcessError {
    match source {
        procfs::ProcError::NotFound(_) => ProcessError::NotFound(pid),
        source => {
            ProcessError::Unreadable { path: format!("{PROC}/{}/{file}", pid.0).into(), source }
        }
    }
}

/// Looks a process up.
///
/// # Errors
///
/// [`ProcessError`] when it is gone, a thread, a zombie or a kernel thread.
pub fn inspect(pid: Pid) -> Result<ProcessInfo, ProcessError> {
    let process = open(pid)?;
    let status = process.status().map_err(|e| unreadable(pid, "status", e))?;
    if status.tgid != status.pid {
        return Err(ProcessError::Thread { thread: pid, process: Pid(status.tgid as u32) });
    }
    let stat = process.stat().map_err(|e| unreadable(pid, "stat", e))?;
    if matches!(stat.state, 'Z' | 'X') {
        return Err(ProcessError::Zombie(pid));
    }
    const PF_KTHREAD: u32 = 0x0020_0000;
    if stat.flags & PF_KTHREAD != 0 {
        return Err(ProcessError::KernelThread(pid));
    }
    let command = process.cmdline().unwrap_or_default().join(" ");
    let command = if command.is_empty() { format!("[{}]", stat.comm) } else { command };
    Ok(ProcessInfo {
        pid,
        start_ticks: stat.starttime,
        start_time: start_time(stat.starttime),
        command: command.chars().take(MAX_COMMAND).collect(),
        user: Some(user_name(status.euid)),
        container: process.cgroups().ok().and_then(|groups| {
            groups.0.iter().find_map(|group| container_id(&group.pathname).map(str::to_owned))
        }),
        nested_namespaces: status.nspid.map_or(0, |ids| ids.len().saturating_sub(1)),
    })
}

/// Whether the pid still means the process that started at `start_ticks`, and it is alive.
pub fn is_same(pid: Pid, start_ticks: u64) -> bool {
    open(pid)
        .and_then(|process| process.stat().map_err(|e| unreadable(pid, "stat", e)))
        .is_ok_and(|stat| stat.starttime == start_ticks && !matches!(stat.state, 'Z' | 'X'))
}

/// How a process ended, such as `exit 0` or `signal 9`, while its parent has not collected it.
pub fn ending(pid: Pid) -> Option<String> {
    let stat = open(pid).ok()?.stat().ok()?;
    if stat.state != 'Z' {
        return None;
    }
    let status = stat.exit_code?;
    Some(match status & 0x7f {
        0 => format!("exit {}", status >> 8 & 0xff),
        signal => format!("signal {signal}"),
    })
}

/// Clock ticks since boot as a date.
fn start_time(ticks: u64) -> Option<String> {
    let boot = fs::read_to_string(format!("{PROC}/stat")).ok()?;
    let boot: u64 =
        boot.lines().find_map(|line| line.strip_prefix("btime "))?.trim().parse().ok()?;
    let seconds = boot + ticks / procfs::ticks_per_second();
    let date = time::OffsetDateTime::from_unix_timestamp(seconds as i64).ok()?;
    date.format(&time::format_description::well_known::Rfc3339).ok()
}

/// The name of a user by the host's `/etc/passwd`, else the number.
fn user_name(uid: u32) -> String {
    let passwd = fs::read_to_string("/etc/passwd").unwrap_or_default();
    let name = passwd.lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        (fields.nth(1)? == uid.to_string()).then(|| name.to_owned())
    });
    name.unwrap_or_else(|| uid.to_string())
}

/// The 64 hexadecimal digits by which container engines name their control groups.
fn container_id(group: &str) -> Option<&str> {
    group
        .split(['/', '-', '.', ':'])
        .find(|part| part.len() == 64 && part.bytes().all(|byte| byte.is_ascii_hexdigit()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_is_found_and_a_thread_is_told_apart() {
        let pid = Pid(std::process::id());
        let info = inspect(pid).unwrap();
        assert!(info.start_time.is_some() && !info.command.is_empty());
        assert!(is_same(pid, info.start_ticks));
        assert!(!is_same(pid, info.start_ticks + 1));
        let thread = std::thread::spawn(|| {
            let tid = Pid(rustix::thread::gettid().as_raw_nonzero().get() as u32);
            inspect(tid).unwrap_err().to_string()
        });
        let error = thread.join().unwrap();
        assert!(error.ends_with(&format!("--pid {pid}`")), "{error}");
    }

    #[test]
    fn a_pid_that_nobody_has_is_not_found() {
        assert!(matches!(inspect(Pid(4_194_304)), Err(ProcessError::NotFound(_))));
    }

    #[test]
    fn container_ids_are_found_in_every_style() {
        let id = "0123456789abcdef".repeat(4);
        for group in [
            format!("/docker/{id}"),
            format!("/system.slice/docker-{id}.scope"),
            format!("/kubepods.slice/kubepods-pod1.slice/cri-containerd-{id}.scope"),
        ] {
            assert_eq!(container_id(&group), Some(id.as_str()), "{group}");
        }
        assert_eq!(container_id("/user.slice/session-1.scope"), None);
    }
}
