//! A trace: processes, kernel half and pure core put together.

mod callers;
mod diagnosis;
mod found;
mod layer;
mod names;
mod probes;

use std::{
    collections::{BTreeSet, VecDeque},
    io,
    os::fd::OwnedFd,
    path::Path,
};

use rustix::event::{PollFd, PollFlags, poll};
use thiserror::Error;
use time::{OffsetDateTime, format_description::well_known::Rfc3339};

pub use self::diagnosis::{Check, Diagnosis, LibraryDiagnosis, ProcessDiagnosis, State, diagnose};
use self::{
    callers::Callers,
    found::{Found, START_PATIENCE, with_note},
    names::Names,
    probes::Probes,
};
use crate::{
    aggregate::{Aggregator, Moment, ProcessFacts},
    bpf::{Kernel, LoadError, LoadOptions, Occupancy},
    decode::{ProcessChange, Record, decode},
    discover::{
        library::{self, LibraryFile, LibraryKind},
        maps::{MappedFile, mapped_files},
        plan::Extras,
        process::{self, ProcessError, ProcessInfo},
        python::{self, PythonError, PythonTarget},
    },
    model::{AllocationEvent, Layer, Level, Pid, Snapshot},
    naming::CodeFile,
    sys::{
        self,
        lock::{LOCK_DIRECTORY, LockError, TraceLock},
        nvml::Nvml,
    },
};

/// New programs that are looked at between two drains.
const LOOKS_PER_TICK: usize = 4;

/// Nanoseconds between two removals of what ended processes left in the kernel half.
const SWEEP_INTERVAL: u64 = 250_000_000;

/// Nanoseconds between two looks for names that can be forgotten.
const TIDY_INTERVAL: u64 = 1_000_000_000;

/// Nanoseconds between two looks for ends whose record was lost.
const CHECK_INTERVAL: u64 = 1_000_000_000;

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
    /// Children cannot be followed.
    #[error("`--follow-fork` needs the kernel's type information: {0}")]
    CannotFollow(String),
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
    /// What is missed below the pools.
    layer_gap: Option<&'static str>,
    alive: bool,
}

/// Sees every event, before the ledger does.
pub type Tap = Box<dyn FnMut(&AllocationEvent)>;

/// A running trace.
pub struct Session {
    kernel: Kernel,
    core: Aggregator,
    targets: Vec<Target>,
    /// Followed processes that have replaced their program: until when to look what they are.
    looking: VecDeque<(Pid, u64)>,
    probes: Probes,
    names: Names,
    callers: Callers,
    tap: Option<Tap>,
    nvml: Option<Nvml>,
    start_ns: u64,
    /// When what ended processes left in the kernel half was last removed.
    swept_ns: u64,
    ended_since_sweep: bool,
    /// When it was last checked that no end was lost.
    checked_ns: u64,
    /// When it was last looked for what can be forgotten.
    tidied_ns: u64,
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
        if let (true, Some(error)) = (options.follow, kernel.types_unavailable()) {
            return Err(SessionError::CannotFollow(error.to_string()));
        }
        let mut session = Self {
            kernel,
            core: Aggregator::default(),
            targets: Vec::new(),
            looking: VecDeque::new(),
            probes: Probes::new(options.clone(), extras),
            names: Names::new(),
            callers: Callers::default(),
            tap: None,
            nvml: Nvml::load(),
            start_ns: sys::monotonic_ns(),
            swept_ns: 0,
            ended_since_sweep: false,
            checked_ns: 0,
            tidied_ns: 0,
        };
        for (found, lock) in locked {
            session.add(found, lock)?;
        }
        session.start_ns = sys::monotonic_ns();
        Ok(session)
    }

    /// Attaches every probe of a process, then lets events of it through.
    fn add(&mut self, found: Found, lock: TraceLock) -> Result<(), SessionError> {
        let Found { info, pidfd, python, python_note, libraries, files } = found;
        let pid = info.pid;
        let unavailable = self.kernel.types_unavailable();
        let unavailable = unavailable.map(|error| format!("no Python stacks: {error}"));
        let python_note = unavailable.or(python_note);
        let uses_gpu = layer::uses_gpu(&files);
        let in_use =
            uses_gpu || libraries.iter().any(|l| l.kind == LibraryKind::Driver && l.mapped);
        let earlier = self.probes.coverage.len();
        let any = self.probes.attach_libraries(&mut self.kernel, pid, &libraries);
        let config = self.probes.config(&mut self.kernel, pid, python.as_ref());
        let late = late(&libraries).collect();
        let facts = self.facts(&info, python.as_ref(), python_note);
        let facts = ProcessFacts { whole: !in_use, late, ..facts };
        self.core.set_process(pid, facts);
        if python.is_some() {
            self.names.attach(&mut self.core, &info);
        }
        // Nothing of it is older.
        self.core.note_time(sys::monotonic_ns());
        self.kernel.set_process(pid, &config)?;
        // From here on an exit or exec is an event; what happened before shows in the process itself.
        if !process::is_same(pid, info.start_ticks) || !still_maps(pid, &files) {
            return Err(SessionError::Vanished(pid));
        }
        if !any {
            let why = self.probes.coverage[earlier..].iter().find_map(|entry| entry.note.clone());
            return Err(SessionError::NoProbe { pid, why: why.unwrap_or_default() });
        }
        // Those that begin from here on are seen from their first call on.
        self.core.note_threads(pid, process::threads(pid));
        map_code(&mut self.core, pid, &files);
        let probed = libraries.iter().map(|library| (library, self.probes.has(pid, library)));
        let layer = layer::counted_at(probed, uses_gpu);
        // What is not in use may yet be loaded from somewhere.
        let layer_gap = (in_use && layer != Some(Layer::Driver)).then(|| layer::meaning(layer));
        self.targets.push(Target { info, pidfd, _lock: lock, layer_gap, alive: true });
        Ok(())
    }

    /// From here on `tap` sees every event.
    pub fn set_tap(&mut self, tap: Tap) {
        self.tap = Some(tap);
    }

    /// Takes everything that the kernel half has recorded, and reacts to what happened to the
    /// processes. Call it many times a second: the ring buffer holds a quarter of a million events.
    pub fn tick(&mut self) {
        self.drain();
        self.notice_ends();
        self.notice_lost_ends();
        self.look_at_new_programs();
        self.names.tick(&mut self.core);
        let now = sys::monotonic_ns();
        if now > self.tidied_ns + TIDY_INTERVAL {
            self.tidied_ns = now;
            self.core.tidy();
        }
        if self.ended_since_sweep && sys::monotonic_ns() > self.swept_ns + SWEEP_INTERVAL {
            self.sweep();
        }
    }

    fn drain(&mut self) {
        let mut changed: Vec<(Pid, ProcessChange)> = Vec::new();
        let (core, tap) = (&mut self.core, &mut self.tap);
        core.note_drained(sys::monotonic_ns());
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
        self.callers.note(self.core.take_new_places());
        let mut loading = BTreeSet::new();
        for (pid, change) in changed {
            match change {
                ProcessChange::LibrariesChanged => {
                    loading.insert(pid);
                }
                ProcessChange::Exec => self.replaced(pid),
                ProcessChange::Exit { .. } => self.ended(pid),
                ProcessChange::Fork { child } => self.forked(pid, child),
            }
        }
        for pid in loading {
            self.rescan(pid);
        }
    }

    /// Whether any process is still traced.
    pub fn is_active(&self) -> bool {
        self.core.running().next().is_some()
    }

    /// Finds out what the functions are called that called the driver since it was last asked. Events
    /// are taken meanwhile: a large library takes a while.
    fn name_callers(&mut self) {
        for unnamed in self.callers.take_unnamed() {
            let found = unnamed.find(&mut || self.drain());
            unnamed.name(&found, &mut self.core);
        }
    }

    /// The picture now.
    pub fn snapshot(&mut self) -> Snapshot {
        self.name_callers();
        if let Ok(counters) = self.kernel.counters() {
            self.core.set_counters(counters);
        }
        self.update_coverage();
        if let Some(nvml) = &self.nvml {
            self.core.set_gpus(nvml.processes());
        }
        self.names.find_sources(&mut self.core);
        let now = OffsetDateTime::now_utc();
        let now_ns = sys::monotonic_ns();
        self.core.snapshot(&Moment {
            generated_at: now.format(&Rfc3339).unwrap_or_default(),
            now_ns,
            start_ns: self.start_ns,
            epoch_ns: now.unix_timestamp_nanos() - i128::from(now_ns),
        })
    }

    /// Stops events, takes the last ones, and gives the final picture.
    pub fn finish(&mut self) -> Snapshot {
        self.kernel.remove_all_processes();
        self.drain();
        self.sweep();
        self.names.settle(&mut self.core);
        self.snapshot()
    }

    /// How full the kernel half's tables are: nothing of a process that has ended stays there for
    /// longer than a moment.
    pub fn occupancy(&self) -> Occupancy {
        self.kernel.occupancy()
    }

    /// What a person should know before the first report, one line each.
    pub fn warnings(&self) -> Vec<String> {
        let mut warnings = Vec::new();
        for target in &self.targets {
            let facts = self.core.facts(target.info.pid);
            warnings.extend(facts.and_then(|facts| facts.python_note.clone()));
            warnings.extend(target.layer_gap.map(str::to_owned));
            if target.info.nested_namespaces > 0 {
                tracing::debug!("process {} is in a pid namespace", target.info.pid);
            }
        }
        warnings
    }

    /// Libraries were loaded: those that had not been foreseen get their probes now. What they
    /// allocated in between shows as `before attach`.
    fn rescan(&mut self, pid: Pid) {
        let Some(facts) = self.core.facts(pid) else { return };
        if facts.follow && facts.python.is_none() {
            // A new program's interpreter may be one of them.
            self.look_soon(pid);
        }
        let Ok(files) = mapped_files(pid) else { return };
        map_code(&mut self.core, pid, &files);
        let new: Vec<LibraryFile> = library::mapped(&files)
            .into_iter()
            .filter(|library| !self.probes.knows(pid, library))
            .collect();
        if !new.is_empty() {
            self.probes.attach_libraries(&mut self.kernel, pid, &new);
            self.core.note_late(pid, late(&new));
        }
    }

    /// The program was replaced: what it held is gone. Of one that is not followed the kernel half
    /// reports nothing from then on.
    fn replaced(&mut self, pid: Pid) {
        self.ended(pid);
        if self.core.is_running(pid) {
            if let Some(target) = self.targets.iter_mut().rev().find(|t| t.info.pid == pid) {
                target.alive = true;
            }
            self.look_soon(pid);
        }
    }

    /// A child has its parent's program and interpreter. Where those are not known yet, as after an
    /// `execve` a moment ago, the child is looked at itself.
    fn forked(&mut self, parent: Pid, child: Pid) {
        if self.looking.iter().any(|(looked, _)| *looked == parent) {
            self.look_soon(child);
        }
    }

    /// A process has ended, and the kernel half has removed it.
    fn ended(&mut self, pid: Pid) {
        self.ended_since_sweep = true;
        self.looking.retain(|(looked, _)| *looked != pid);
        self.names.ended(pid);
        if let Some(target) = self.targets.iter_mut().find(|t| t.alive && t.info.pid == pid) {
            target.alive = false;
        }
    }

    /// Where the kernel publishes no types there are no records of ends; and a record can be lost.
    fn notice_ends(&mut self) {
        let gone = |target: &Target| target.alive && has_ended(&target.pidfd);
        if !self.targets.iter().any(gone) {
            return;
        }
        let gone: Vec<Pid> =
            self.targets.iter().filter(|t| gone(t)).map(|target| target.info.pid).collect();
        // Everything that they recorded is in the ring buffer by now.
        self.drain();
        for pid in gone {
            if !self.targets.iter().any(|target| target.alive && target.info.pid == pid) {
                continue;
            }
            self.ended(pid);
            if self.kernel.types_unavailable().is_some() {
                self.kernel.remove_process(pid);
            }
            // Unless a child has the pid by now.
            if self.core.facts(pid).is_some_and(|facts| facts.parent.is_none()) {
                self.core.set_exit(pid, process::ending(pid));
            }
        }
    }

    /// Children whose end was dropped are known by what the kernel half does not trace any more.
    fn notice_lost_ends(&mut self) {
        let now = sys::monotonic_ns();
        if !self.probes.options.follow || now < self.checked_ns + CHECK_INTERVAL {
            return;
        }
        self.checked_ns = now;
        if self.kernel.counters().is_ok_and(|counters| counters.dropped_definitions == 0) {
            return;
        }
        let gone: Vec<Pid> =
            self.core.running().filter(|&pid| !self.kernel.has_process(pid)).collect();
        self.drain();
        for pid in gone {
            let child = self.core.facts(pid).is_some_and(|facts| facts.parent.is_some());
            if child && !self.kernel.has_process(pid) {
                self.ended(pid);
                self.core.set_exit(pid, None);
            }
        }
    }

    fn look_soon(&mut self, pid: Pid) {
        if !self.looking.iter().any(|(looked, _)| *looked == pid) {
            self.looking.push_back((pid, sys::monotonic_ns() + START_PATIENCE.as_nanos() as u64));
        }
    }

    /// Finds out what followed processes have become by `execve`, a few at a time. Their calls of the
    /// driver are seen from the first on, their Python stacks from here on.
    fn look_at_new_programs(&mut self) {
        for _ in 0..self.looking.len().min(LOOKS_PER_TICK) {
            let Some((pid, deadline)) = self.looking.pop_front() else { return };
            if !self.look_at(pid) && sys::monotonic_ns() < deadline {
                self.looking.push_back((pid, deadline));
            }
        }
    }

    /// `false` if it is too early.
    fn look_at(&mut self, pid: Pid) -> bool {
        let Ok(info) = process::inspect(pid) else { return true };
        let found = python::find(pid);
        if matches!(found, Err(PythonError::NotInitialised(_))) {
            return false;
        }
        let (python, python_note) = with_note(found);
        let Ok(files) = mapped_files(pid) else { return true };
        map_code(&mut self.core, pid, &files);
        let mut libraries = library::mapped(&files);
        libraries.extend(library::loadable(pid, python.as_ref(), &libraries));
        self.probes.attach_libraries(&mut self.kernel, pid, &libraries);
        let config = self.probes.config(&mut self.kernel, pid, python.as_ref());
        let Some(before) = self.core.facts(pid).cloned() else { return true };
        if process::is_same(pid, info.start_ticks)
            && self.kernel.change_process(pid, &config).is_ok()
        {
            let facts = self.facts(&info, python.as_ref(), python_note);
            let facts = ProcessFacts { parent: before.parent, whole: before.whole, ..facts };
            self.core.set_process(pid, facts);
            self.core.note_late(pid, late(&libraries));
            if python.is_some() {
                self.names.attach(&mut self.core, &info);
            }
        }
        true
    }

    fn sweep(&mut self) {
        self.kernel.sweep();
        self.name_callers();
        self.callers.close();
        self.swept_ns = sys::monotonic_ns();
        self.ended_since_sweep = false;
    }

    fn update_coverage(&mut self) {
        self.core.set_coverage(self.probes.coverage.clone());
    }

    fn facts(
        &self,
        info: &ProcessInfo,
        python: Option<&PythonTarget>,
        python_note: Option<String>,
    ) -> ProcessFacts {
        ProcessFacts {
            start_time: info.start_time.clone(),
            parent: None,
            follow: self.probes.options.follow,
            command: info.command.clone(),
            python: python.map(|python| python.version.clone()),
            python_minor: python.map(|python| python.minor),
            python_note,
            notebook: None,
            kernel_id: None,
            container: info.container.clone(),
            user: info.user.clone(),
            cpu: self.probes.extras.cpu,
            whole: false,
            late: BTreeSet::new(),
        }
    }
}

/// Levels whose pools may have had blocks before their probes were there, and do not tell.
fn late(libraries: &[LibraryFile]) -> impl Iterator<Item = Level> {
    let loaded = libraries.iter().filter(|library| library.mapped);
    loaded.filter_map(|library| library.kind.untold_pools())
}

/// The first file that a process has mapped is its program: another after exec.
fn still_maps(pid: Pid, before: &[MappedFile]) -> bool {
    let program = |files: &[MappedFile]| files.first().map(|file| file.inode);
    mapped_files(pid).is_ok_and(|files| program(&files) == program(before))
}

/// Where code of files lies, so that a caller can be named also when it is gone.
fn map_code(core: &mut Aggregator, pid: Pid, files: &[MappedFile]) {
    for file in files {
        let code =
            CodeFile { name: file.file_name().into(), device: file.device, inode: file.inode };
        for range in file.ranges.iter().filter(|range| range.executable) {
            core.map_code(pid, range.start..range.end, &code, range.offset);
        }
    }
}

/// Looks where the code is that called, unless that is known.
fn find_caller(core: &mut Aggregator, event: &AllocationEvent) {
    let Some((_, caller)) = event.asker() else { return };
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
