//! A trace: processes, kernel half and pure core put together.

use std::{collections::HashSet, io, os::fd::OwnedFd, path::Path, time::Duration};

use rustix::event::{PollFd, PollFlags, poll};
use thiserror::Error;
use time::{OffsetDateTime, format_description::well_known::Rfc3339};
use tracer_common::config::ProcessConfig;

use crate::{
    aggregate::{Aggregator, Moment, ProcessFacts},
    bpf::{Kernel, LoadError, LoadOptions, Place},
    decode::{ProcessChange, Record, decode},
    discover::{
        library::{self, LibraryFile, LibraryKind},
        maps::{MappedFile, mapped_files},
        plan::{self, Extras, ProbeSite},
        process::{self, ProcessError, ProcessInfo},
        python::{self, PythonError, PythonTarget},
    },
    model::{AllocationEvent, Coverage, Pid, Snapshot},
    sys::{
        self,
        lock::{LOCK_DIRECTORY, LockError, TraceLock},
    },
};

/// How long an interpreter that is just starting is waited for.
const START_PATIENCE: Duration = Duration::from_secs(3);

/// A trace that cannot begin.
#[derive(Debug, Error)]
pub enum SessionError {
    /// The process cannot be traced.
    #[error(transparent)]
    Process(#[from] ProcessError),
    /// Nothing in it to trace.
    #[error("process {0} is not a Python process and has no CUDA library loaded: nothing to trace")]
    NotPython(Pid),
    /// Python, but no CUDA.
    #[error(
        "process {0} has no CUDA library loaded, and there is none on its import path or in the \
         system's library folders: nothing to trace; if it loads one from elsewhere, attach once it has"
    )]
    NoCuda(Pid),
    /// No probe could be attached.
    #[error("no probe could be attached to process {pid}: {why}")]
    NoProbe {
        /// The process.
        pid: Pid,
        /// The first reason.
        why: String,
    },
    /// It ended meanwhile.
    #[error("process {0} ended or replaced its program while cudatrace was attaching")]
    Vanished(Pid),
    /// Another tracer has it.
    #[error(transparent)]
    Lock(#[from] LockError),
    /// The kernel half does not load.
    #[error(transparent)]
    Load(#[from] LoadError),
}

/// One traced process.
struct Target {
    info: ProcessInfo,
    pidfd: OwnedFd,
    _lock: TraceLock,
    python: Option<PythonTarget>,
    /// Why Python stacks are off.
    python_gap: Option<String>,
    /// Libraries that have their probes.
    attached: HashSet<(LibraryKind, u64)>,
    coverage: Vec<Coverage>,
    /// No driver was loaded when the trace began.
    whole: bool,
    alive: bool,
}

/// Sees every event, before the ledger does.
pub type Tap = Box<dyn FnMut(&AllocationEvent)>;

/// A running trace.
pub struct Session {
    kernel: Kernel,
    core: Aggregator,
    targets: Vec<Target>,
    extras: Extras,
    tap: Option<Tap>,
    start_ns: u64,
}

impl Session {
    /// Attaches to processes.
    ///
    /// # Errors
    ///
    /// [`SessionError`]; nothing stays attached then.
    pub fn start(
        pids: &[Pid],
        options: &LoadOptions,
        extras: Extras,
    ) -> Result<Self, SessionError> {
        // First what needs no privilege and leaves no trace, so that a wrong pid is told at once.
        let mut found = Vec::new();
        for &pid in pids {
            found.push(Found::look(pid)?);
        }
        let mut locked = Vec::new();
        for found in found {
            let lock = TraceLock::acquire(
                Path::new(LOCK_DIRECTORY),
                found.info.pid.0,
                found.info.start_ticks,
            )?;
            locked.push((found, lock));
        }
        let kernel = Kernel::load(options)?;
        let mut session = Self {
            kernel,
            core: Aggregator::default(),
            targets: Vec::new(),
            extras,
            tap: None,
            start_ns: sys::monotonic_ns(),
        };
        for (found, lock) in locked {
            session.add(found, lock)?;
        }
        session.update_coverage();
        session.start_ns = sys::monotonic_ns();
        Ok(session)
    }

    /// Attaches every probe of a process, then lets events of it through.
    fn add(&mut self, found: Found, lock: TraceLock) -> Result<(), SessionError> {
        let Found { info, pidfd, python, python_gap, libraries, files } = found;
        let pid = info.pid;
        let unavailable = self.kernel.python_stacks_unavailable().map(ToString::to_string);
        let mut target = Target {
            info,
            pidfd,
            _lock: lock,
            python,
            python_gap: unavailable.or(python_gap),
            attached: HashSet::new(),
            coverage: Vec::new(),
            whole: !libraries.iter().any(|l| l.kind == LibraryKind::Driver && l.mapped),
            alive: true,
        };
        attach_libraries(&mut self.kernel, &mut target, &libraries, self.extras);
        attach_code_dealloc(&mut self.kernel, &mut target);
        self.kernel.set_process(pid, &config(&target))?;
        // From here on an exit or exec is an event; what happened before shows in the process itself.
        if !process::is_same(pid, target.info.start_ticks) || !still_maps(pid, &files) {
            return Err(SessionError::Vanished(pid));
        }
        if !target.coverage.iter().any(|entry| entry.attached) {
            let why = target.coverage.into_iter().find_map(|entry| entry.note);
            return Err(SessionError::NoProbe { pid, why: why.unwrap_or_default() });
        }
        self.core.set_process(pid, facts(&target, self.extras));
        map_code(&mut self.core, pid, &files);
        self.targets.push(target);
        Ok(())
    }

    /// From here on `tap` sees every event.
    pub fn set_tap(&mut self, tap: Tap) {
        self.tap = Some(tap);
    }

    /// Takes everything that the kernel half has recorded, and reacts to what happened to the
    /// processes. Call it many times a second: the ring buffer holds a quarter of a million events.
    pub fn tick(&mut self) {
        let mut changed: Vec<(Pid, ProcessChange)> = Vec::new();
        let (core, tap) = (&mut self.core, &mut self.tap);
        self.kernel.drain(|bytes| match decode(bytes) {
            Ok(record) => {
                if let Record::Process { pid, change, .. } = record {
                    changed.push((pid, change));
                }
                if let Record::Memory(event) = &record {
                    find_caller(core, event);
                    if let Some(tap) = tap {
                        tap(event);
                    }
                }
                core.apply(record);
            }
            Err(error) => {
                tracing::warn!("{error}");
                core.note_undecodable();
            }
        });
        for (pid, change) in changed {
            match change {
                ProcessChange::LibrariesChanged => self.rescan(pid),
                ProcessChange::Exec => self.end(pid),
                // The pidfd tells when the whole process is gone.
                ProcessChange::Exit => {}
            }
        }
        self.notice_ends();
    }

    /// Whether any process is still traced.
    pub fn is_active(&self) -> bool {
        self.targets.iter().any(|target| target.alive)
    }

    /// The picture now.
    pub fn snapshot(&mut self) -> Snapshot {
        if let Ok(counters) = self.kernel.counters() {
            self.core.set_counters(counters);
        }
        self.core.snapshot(&Moment {
            generated_at: OffsetDateTime::now_utc().format(&Rfc3339).unwrap_or_default(),
            now_ns: sys::monotonic_ns(),
            start_ns: self.start_ns,
        })
    }

    /// Stops events, takes the last ones, and gives the final picture.
    pub fn finish(&mut self) -> Snapshot {
        for target in &self.targets {
            self.kernel.remove_process(target.info.pid);
        }
        self.tick();
        self.snapshot()
    }

    /// What a person should know before the first report, one line each.
    pub fn warnings(&self) -> Vec<String> {
        let mut warnings = Vec::new();
        for target in &self.targets {
            warnings.extend(target.python_gap.iter().map(|why| format!("no Python stacks: {why}")));
            if target.info.nested_namespaces > 0 {
                tracing::debug!("process {} is in a pid namespace", target.info.pid);
            }
        }
        warnings
    }

    /// Libraries were loaded: those that had not been foreseen get their probes now. What they
    /// allocated in between shows as `before attach`.
    fn rescan(&mut self, pid: Pid) {
        let Some(target) = self.targets.iter_mut().find(|t| t.info.pid == pid && t.alive) else {
            return;
        };
        let Ok(files) = mapped_files(pid) else { return };
        map_code(&mut self.core, pid, &files);
        let new: Vec<LibraryFile> = library::mapped(&files)
            .into_iter()
            .filter(|library| !target.attached.contains(&(library.kind, library.inode)))
            .collect();
        if !new.is_empty() {
            attach_libraries(&mut self.kernel, target, &new, self.extras);
            self.update_coverage();
        }
    }

    /// The program was replaced: what it held is gone, and the probes with it.
    fn end(&mut self, pid: Pid) {
        if let Some(target) = self.targets.iter_mut().find(|target| target.info.pid == pid) {
            target.alive = false;
            self.kernel.remove_process(pid);
        }
    }

    fn notice_ends(&mut self) {
        for target in &mut self.targets {
            if target.alive && has_ended(&target.pidfd) {
                target.alive = false;
                self.kernel.remove_process(target.info.pid);
                self.core.set_exit(target.info.pid, process::ending(target.info.pid));
            }
        }
    }

    fn update_coverage(&mut self) {
        let entries = self.targets.iter().flat_map(|target| target.coverage.iter().cloned());
        self.core.set_coverage(entries.collect());
    }
}

/// What there is to trace in a process.
struct Found {
    info: ProcessInfo,
    pidfd: OwnedFd,
    python: Option<PythonTarget>,
    python_gap: Option<String>,
    libraries: Vec<LibraryFile>,
    /// What it has mapped.
    files: Vec<MappedFile>,
}

impl Found {
    fn look(pid: Pid) -> Result<Self, SessionError> {
        let info = process::inspect(pid)?;
        let pidfd = sys::pidfd(pid).map_err(|_gone| ProcessError::NotFound(pid))?;
        if !process::is_same(pid, info.start_ticks) {
            return Err(SessionError::Vanished(pid));
        }
        let (python, python_gap, is_python) = match patient_find(pid) {
            Ok(target) => (Some(target), None, true),
            Err(PythonError::NotPython(_)) => {
                (None, Some("not a Python process".to_owned()), false)
            }
            Err(PythonError::Process(ProcessError::NotFound(_))) => {
                return Err(SessionError::Vanished(pid));
            }
            Err(PythonError::Process(error)) => return Err(error.into()),
            Err(error) => (None, Some(error.to_string()), true),
        };
        let files = mapped_files(pid)?;
        let mut libraries = library::mapped(&files);
        let cuda = |libraries: &[LibraryFile]| {
            libraries.iter().any(|library| library.kind != LibraryKind::Loader)
        };
        if !is_python && !cuda(&libraries) {
            return Err(SessionError::NotPython(pid));
        }
        libraries.extend(library::loadable(pid, python.as_ref().map(|p| p.minor), &libraries));
        if !cuda(&libraries) {
            return Err(SessionError::NoCuda(pid));
        }
        Ok(Self { info, pidfd, python, python_gap, libraries, files })
    }
}

/// An interpreter that is still starting is given some time.
fn patient_find(pid: Pid) -> Result<PythonTarget, PythonError> {
    let deadline = sys::monotonic_ns() + START_PATIENCE.as_nanos() as u64;
    loop {
        match python::find(pid) {
            Err(PythonError::NotInitialised(_)) if sys::monotonic_ns() < deadline => {
                std::thread::sleep(Duration::from_millis(20));
            }
            result => return result,
        }
    }
}

/// Attaches everything that libraries offer, and notes what they do not.
fn attach_libraries(
    kernel: &mut Kernel,
    target: &mut Target,
    libraries: &[LibraryFile],
    extras: Extras,
) {
    let mut sites = Vec::new();
    for library in libraries {
        let (found, gaps) = plan::for_library(library, extras);
        target.coverage.extend(gaps);
        target.attached.insert((library.kind, library.inode));
        sites.extend(found);
    }
    attach_sites(kernel, target, &sites);
}

fn attach_code_dealloc(kernel: &mut Kernel, target: &mut Target) {
    let Some(python) = &target.python else { return };
    match plan::for_code_dealloc(&python.code_dealloc) {
        Ok(site) => attach_sites(kernel, target, &[site]),
        Err(gap) => target.coverage.push(gap),
    }
}

/// Attaches all programs of all sites at once. Where one program of a site fails, the others stay:
/// what they report is true, and the coverage says what is missing.
fn attach_sites(kernel: &mut Kernel, target: &mut Target, sites: &[ProbeSite]) {
    let places: Vec<Place> = sites.iter().flat_map(ProbeSite::places).collect();
    let mut results = kernel.attach(&places, target.info.pid).into_iter();
    for site in sites {
        let results: Vec<_> = results.by_ref().take(site.programs.len()).collect();
        let result = results
            .into_iter()
            .try_for_each(|result| result.map_err(|e| format!("{:#}", anyhow::Error::from(e))));
        target.coverage.push(site.coverage(result));
    }
}

fn facts(target: &Target, extras: Extras) -> ProcessFacts {
    ProcessFacts {
        start_time: target.info.start_time.clone(),
        command: target.info.command.clone(),
        python: target.python.as_ref().map(|python| python.version.clone()),
        python_minor: target.python.as_ref().map(|python| python.minor),
        container: target.info.container.clone(),
        user: target.info.user.clone(),
        cpu: extras.cpu,
        whole: target.whole,
    }
}

/// Python stacks only where everything that makes them right is there: also the hook on freed code.
fn config(target: &Target) -> ProcessConfig {
    let dealloc =
        target.coverage.iter().any(|entry| entry.attached && entry.symbol == plan::CODE_DEALLOC);
    match &target.python {
        Some(python) if dealloc => ProcessConfig {
            thread_state: python.thread_state,
            generation: 0,
            layout: python.layout,
        },
        _ => ProcessConfig::default(),
    }
}

/// The first file that a process has mapped is its program: another after exec.
fn still_maps(pid: Pid, before: &[MappedFile]) -> bool {
    let program = |files: &[MappedFile]| files.first().map(|file| file.inode);
    mapped_files(pid).is_ok_and(|files| program(&files) == program(before))
}

/// Where code of files lies, so that a caller can be named also when it is gone.
fn map_code(core: &mut Aggregator, pid: Pid, files: &[MappedFile]) {
    for file in files {
        let name = file.file_name();
        for range in file.ranges.iter().filter(|range| range.executable) {
            core.map_code(pid, range.start..range.end, &name);
        }
    }
}

/// Looks where the code is that called, unless that is known.
fn find_caller(core: &mut Aggregator, event: &AllocationEvent) {
    let Some(caller) = event.caller else { return };
    if !core.is_code_settled(event.pid, caller) {
        map_code(core, event.pid, &mapped_files(event.pid).unwrap_or_default());
        core.note_foreign_code(event.pid, caller);
    }
}

fn has_ended(pidfd: &OwnedFd) -> bool {
    let mut fds = [PollFd::new(pidfd, PollFlags::IN)];
    let now = rustix::time::Timespec { tv_sec: 0, tv_nsec: 0 };
    matches!(poll(&mut fds, Some(&now)).map_err(io::Error::from), Ok(count) if count > 0)
}
