//! A process: who it is.

use std::{
    ffi::OsString,
    fs::{self, File},
    io::{self, Read as _},
    os::unix::ffi::OsStringExt as _,
    path::PathBuf,
};

use thiserror::Error;

use crate::model::{self, Pid, Tid};

/// Where the process file system is mounted.
pub const PROC: &str = "/proc";

/// Bytes that are read of one of a process's files.
const MAX_FILE: u64 = 4 << 20;

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
    #[error("cannot read `{}`{}", path.display(), advice(source))]
    Unreadable {
        /// What.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
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

/// What to do about it.
fn advice(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::PermissionDenied => {
            " (run cudatrace by `sudo`; as root already: the process is protected by a security \
             module, or cudatrace runs in a container that may not see into it)"
        }
        _ => "",
    }
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
    /// The same in seconds since 1970.
    pub started_s: Option<i64>,
    /// Its command line, or its name in brackets.
    pub command: String,
    /// The name of its user, or the number.
    pub user: Option<String>,
    /// The id of its container, as its control group tells.
    pub container: Option<String>,
    /// The number of pid namespaces that it is in beyond this one.
    pub nested_namespaces: usize,
}

/// Reads a file of a process below [`PROC`]. Its text is bytes: names in it are whatever the process
/// likes.
fn read(pid: Pid, file: &str) -> Result<Vec<u8>, ProcessError> {
    let path = PathBuf::from(format!("{PROC}/{}/{file}", pid.0));
    let opened = File::open(&path).and_then(|file| {
        let mut bytes = Vec::new();
        file.take(MAX_FILE).read_to_end(&mut bytes)?;
        Ok(bytes)
    });
    opened.map_err(|source| match source.raw_os_error() {
        Some(libc::ENOENT | libc::ESRCH) => ProcessError::NotFound(pid),
        _ => ProcessError::Unreadable { path, source },
    })
}

/// The threads of a process, as far as it lives.
pub fn threads(pid: Pid) -> Vec<Tid> {
    let Ok(entries) = fs::read_dir(format!("{PROC}/{}/task", pid.0)) else { return Vec::new() };
    entries
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .map(Tid)
        .collect()
}

/// What the kernel says in `/proc/PID/stat`, by proc(5).
struct Stat {
    name: String,
    state: char,
    flags: u64,
    start_ticks: u64,
    exit_code: Option<i32>,
}

impl Stat {
    fn read(pid: Pid) -> Result<Self, ProcessError> {
        let bytes = read(pid, "stat")?;
        Self::parse(&bytes).ok_or(ProcessError::NotFound(pid))
    }

    /// `pid (name) state …`; the name may hold anything, also parentheses.
    fn parse(bytes: &[u8]) -> Option<Self> {
        let open = bytes.iter().position(|&byte| byte == b'(')?;
        let close = bytes.iter().rposition(|&byte| byte == b')')?;
        let name = bytes.get(open + 1..close)?;
        let rest = std::str::from_utf8(bytes.get(close + 1..)?).ok()?;
        let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
        // The first of them is the third of proc(5).
        let field = |number: usize| fields.get(number - 3).copied();
        Some(Self {
            name: String::from_utf8_lossy(name).into_owned(),
            state: field(3)?.chars().next()?,
            flags: field(9)?.parse().ok()?,
            start_ticks: field(22)?.parse().ok()?,
            exit_code: field(52).and_then(|code| code.parse().ok()),
        })
    }

    fn is_dead(&self) -> bool {
        matches!(self.state, 'Z' | 'X')
    }
}

/// The words that the process was started with.
pub(super) fn command_line(pid: Pid) -> Vec<OsString> {
    words(read(pid, "cmdline").unwrap_or_default())
}

/// The variables that the process was started with, as far as they are text.
pub(super) fn environment(pid: Pid) -> Vec<(String, String)> {
    let variables = words(read(pid, "environ").unwrap_or_default());
    let text = variables.into_iter().filter_map(|variable| variable.into_string().ok());
    text.filter_map(|variable| {
        variable.split_once('=').map(|(name, value)| (name.to_owned(), value.to_owned()))
    })
    .collect()
}

fn words(bytes: Vec<u8>) -> Vec<OsString> {
    let words = bytes.split(|&byte| byte == 0).filter(|word| !word.is_empty());
    words.map(|word| OsString::from_vec(word.to_vec())).collect()
}

/// Looks a process up.
///
/// # Errors
///
/// [`ProcessError`] when it is gone, a thread, a zombie or a kernel thread.
pub fn inspect(pid: Pid) -> Result<ProcessInfo, ProcessError> {
    let status = read(pid, "status")?;
    let status = String::from_utf8_lossy(&status);
    let numbers = |name: &str| -> Vec<u32> {
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        line.map_or(Vec::new(), |line| {
            line.split_ascii_whitespace().filter_map(|word| word.parse().ok()).collect()
        })
    };
    if let Some(&process) = numbers("Tgid:").first()
        && process != pid.0
    {
        return Err(ProcessError::Thread { thread: pid, process: Pid(process) });
    }
    let stat = Stat::read(pid)?;
    if stat.is_dead() {
        return Err(ProcessError::Zombie(pid));
    }
    const PF_KTHREAD: u64 = 0x0020_0000;
    if stat.flags & PF_KTHREAD != 0 {
        return Err(ProcessError::KernelThread(pid));
    }
    let command: Vec<String> =
        command_line(pid).iter().map(|word| word.to_string_lossy().into_owned()).collect();
    let command = if command.is_empty() { format!("[{}]", stat.name) } else { command.join(" ") };
    let started_s = epoch_seconds(stat.start_ticks);
    let groups = read(pid, "cgroup").unwrap_or_default();
    Ok(ProcessInfo {
        pid,
        start_ticks: stat.start_ticks,
        start_time: started_s.and_then(date),
        started_s,
        command: command.chars().take(MAX_COMMAND).collect(),
        // Real, effective, saved, file system.
        user: numbers("Uid:").get(1).map(|&uid| user_name(uid)),
        container: String::from_utf8_lossy(&groups)
            .lines()
            .find_map(container_id)
            .map(str::to_owned),
        nested_namespaces: numbers("NSpid:").len().saturating_sub(1),
    })
}

/// Whether the pid still means the process that started at `start_ticks`, and it is alive.
pub fn is_same(pid: Pid, start_ticks: u64) -> bool {
    Stat::read(pid).is_ok_and(|stat| stat.start_ticks == start_ticks && !stat.is_dead())
}

/// How a process ended, such as `exit 0` or `signal 9`, while its parent has not collected it.
pub fn ending(pid: Pid) -> Option<String> {
    let stat = Stat::read(pid).ok().filter(|stat| stat.state == 'Z')?;
    let status = stat.exit_code?;
    Some(model::ending(status as u32))
}

/// Clock ticks since boot in seconds since 1970.
fn epoch_seconds(ticks: u64) -> Option<i64> {
    let boot = fs::read_to_string(format!("{PROC}/stat")).ok()?;
    let boot: u64 =
        boot.lines().find_map(|line| line.strip_prefix("btime "))?.trim().parse().ok()?;
    let seconds = boot.checked_add(ticks / rustix::param::clock_ticks_per_second().max(1))?;
    i64::try_from(seconds).ok()
}

/// Seconds since 1970 as a date.
fn date(seconds: i64) -> Option<String> {
    let date = time::OffsetDateTime::from_unix_timestamp(seconds).ok()?;
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
    fn a_name_may_hold_anything() {
        let fields = "S 1 2 3 4 5 4194304 7 8 9 10 11 12 13 14 15 16 17 18 4711 21 22";
        for name in [&b"python"[..], b"a) R (b", b"new\nline", b"\xff\xfe"] {
            let stat = [b"42 (", name, b") ", fields.as_bytes()].concat();
            let stat = Stat::parse(&stat).unwrap();
            assert_eq!(stat.name, String::from_utf8_lossy(name));
            assert_eq!((stat.state, stat.flags, stat.start_ticks), ('S', 4_194_304, 4711));
            assert_eq!(stat.exit_code, None);
        }
        assert!(Stat::parse(b"42 (x").is_none() && Stat::parse(b"").is_none());
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
