//! Records in, snapshots out: the one owner of ledgers and names. Pure.

mod cells;
mod finished;
mod gathered;
mod judge;
mod site_id;
mod sources;
#[cfg(test)]
mod tests;

use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet, hash_map::Entry},
    ops::Range,
    sync::Arc,
};

use rustc_hash::{FxHashMap, FxHashSet};
use time::{OffsetDateTime, format_description::well_known::Rfc3339};
use tracer_common::counters::Counters;

use self::{
    cells::{Cells, Listing},
    finished::{Ended, Ends},
    gathered::Gathered,
    judge::Judge,
    sources::Sources,
};
use crate::{
    decode::{ProcessChange, Record},
    ledger::{self, Ledger, SiteKey, SiteTotals, error_name},
    model::{
        CodeAddress, Coverage, Device, DeviceSnapshot, Failure, Frame, GpuUse, HostSnapshot,
        Judgement, Level, Pid, ProcessSnapshot, ProcessState, SCHEMA, Site, Snapshot, StackIndex,
        Tid, Tracer, ending,
    },
    naming::{CodeFile, Function, HistoryPage, Naming, NewPlace, NotebookPage, PlaceIndex},
};

/// What is known of a process besides its memory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProcessFacts {
    /// When it started, RFC 3339, unless it was forked while traced.
    pub start_time: Option<String>,
    /// The process that it was forked from while traced.
    pub parent: Option<Pid>,
    /// Whether its children are traced, and what it becomes by `execve`.
    pub follow: bool,
    /// Its command line.
    pub command: String,
    /// Version of its CPython.
    pub python: Option<String>,
    /// The `x` of CPython 3.x.
    pub python_minor: Option<u8>,
    /// Why it has no Python stacks, or in what they are less certain.
    pub python_note: Option<String>,
    /// Path of its notebook.
    pub notebook: Option<String>,
    /// Jupyter's id of the kernel.
    pub kernel_id: Option<String>,
    /// Its container.
    pub container: Option<String>,
    /// Its user.
    pub user: Option<String>,
    /// Whether host memory of tensors is traced.
    pub cpu: bool,
    /// Whether it had no CUDA driver loaded when the trace began.
    pub whole: bool,
    /// Levels whose pools may have had blocks before that.
    pub late: BTreeSet<Level>,
}

/// When a snapshot is made.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Moment {
    /// RFC 3339.
    pub generated_at: String,
    /// Nanoseconds of `CLOCK_MONOTONIC`.
    pub now_ns: u64,
    /// When the trace began, on the same clock.
    pub start_ns: u64,
    /// Nanoseconds from the beginning of that clock to that of the calendar's (1970).
    pub epoch_ns: i128,
}

#[derive(Debug)]
struct Process {
    facts: ProcessFacts,
    ledger: Ledger,
    /// What runs of its cells do.
    cells: Cells,
    /// Memory events taken.
    events: u64,
    /// What NVML counts for it.
    gpus: Vec<GpuUse>,
    /// Files that its frames are in.
    sources: Sources,
    /// When it was forked, or replaced its program, on the clock of events.
    began_ns: Option<u64>,
}

impl Process {
    fn new(facts: ProcessFacts, began_ns: Option<u64>) -> Self {
        let mut ledger = Ledger::default();
        if facts.whole {
            ledger.note_whole();
        }
        facts.late.iter().for_each(|&level| ledger.note_late(level));
        let (gpus, sources) = (Vec::new(), Sources::default());
        Self { facts, ledger, cells: Cells::default(), events: 0, gpus, sources, began_ns }
    }
}

/// The pure core.
#[derive(Debug, Default)]
pub struct Aggregator {
    naming: Naming,
    /// Those that run. A pid is one of them at most: its end comes before it is used again.
    processes: BTreeMap<Pid, Process>,
    ends: Ends,
    coverage: Vec<Coverage>,
    counters: Counters,
    events: u64,
    announced_drops: u64,
    undecodable: u64,
}

impl Aggregator {
    /// A process to keep a ledger for, or new facts about it.
    pub fn set_process(&mut self, pid: Pid, facts: ProcessFacts) {
        if let Some(minor) = facts.python_minor {
            self.naming.set_python_minor(pid, minor);
        }
        match self.processes.get_mut(&pid) {
            Some(process) => process.facts = facts,
            None => {
                self.processes.insert(pid, Process::new(facts, None));
            }
        }
    }

    /// Libraries were found in a process after they had been loaded: their pools may have blocks.
    pub fn note_late(&mut self, pid: Pid, levels: impl IntoIterator<Item = Level>) {
        if let Some(process) = self.processes.get_mut(&pid) {
            for level in levels {
                process.facts.late.insert(level);
                process.ledger.note_late(level);
            }
        }
    }

    /// Threads that a process had when its trace began.
    pub fn note_threads(&mut self, pid: Pid, threads: impl IntoIterator<Item = Tid>) {
        if let Some(process) = self.processes.get_mut(&pid) {
            process.ledger.note_threads(threads);
        }
    }

    /// Records that are taken from now on were made before this moment, in nanoseconds of
    /// `CLOCK_MONOTONIC`.
    pub fn note_drained(&mut self, now_ns: u64) {
        self.naming.note_drained(now_ns);
    }

    /// Records that are taken from now on were made after this moment, on the same clock.
    pub fn note_time(&mut self, now_ns: u64) {
        self.naming.note_event(now_ns);
    }

    /// A look at the history of a process that is a notebook's kernel.
    pub fn note_history(&mut self, pid: Pid, page: HistoryPage) {
        self.naming.note_history(pid, page);
    }

    /// A look at the file of its notebook.
    pub fn note_notebook(&mut self, pid: Pid, page: NotebookPage) {
        self.naming.note_notebook(pid, page);
    }

    /// What Jupyter says of a process.
    pub fn note_kernel(&mut self, pid: Pid, kernel_id: Option<String>, notebook: Option<String>) {
        if let Some(process) = self.processes.get_mut(&pid) {
            process.facts.kernel_id = kernel_id;
            process.facts.notebook = notebook;
        }
    }

    /// Whether cells of a process were seen whose numbers are not known yet.
    pub fn is_waiting(&self, pid: Pid) -> bool {
        self.naming.is_waiting(pid)
    }

    /// Forgets what nobody can ask for any more, where there is much of it. Call it about once a second.
    pub fn tidy(&mut self) {
        if !self.naming.is_large() {
            return;
        }
        let others = self.naming.forgotten();
        let naming = &self.naming;
        for Process { ledger, cells, .. } in self.processes.values_mut() {
            ledger.tidy(others, |key, site| cells.forget_site(key, site, naming));
        }
        if !self.naming.is_sweep_due() {
            return;
        }
        let ended = self.ends.iter().map(|ended| &ended.process.ledger);
        let ledgers = self.processes.values().map(|process| &process.ledger).chain(ended);
        let stacks: Vec<StackIndex> = ledgers.flat_map(Ledger::stacks).collect();
        let ended = self.ends.iter_mut().map(|ended| &mut ended.process.cells);
        let cells = self.processes.values_mut().map(|process| &mut process.cells).chain(ended);
        // Which runs are parts of one is not known any more when they are gone.
        let cells: Vec<_> = cells.map(|cells| (cells.executions(&self.naming), cells)).collect();
        let gone = self.naming.sweep(stacks.into_iter());
        cells.into_iter().for_each(|(executions, cells)| cells.forget_runs(&gone, executions));
    }

    /// Files of running processes whose text a report would show, and that were not asked for yet.
    pub fn unread_sources(&self) -> BTreeSet<(Pid, String)> {
        let mut unread = BTreeSet::new();
        for (&pid, process) in &self.processes {
            let stacks: FxHashSet<StackIndex> =
                process.ledger.sites().map(|(key, _)| key.stack).collect();
            for file in stacks.into_iter().flat_map(|stack| self.naming.files(stack)) {
                if process.sources.is_unread(file) {
                    unread.insert((pid, file.to_owned()));
                }
            }
        }
        unread
    }

    /// The text of a file that a process has loaded; `None` if it is not to be had.
    pub fn note_source(&mut self, pid: Pid, file: String, text: Option<&str>) {
        if let Some(process) = self.processes.get_mut(&pid) {
            process.sources.add(file, text);
        }
    }

    /// Takes a record. Those of processes without a ledger are ignored.
    pub fn apply(&mut self, record: Record) {
        match record {
            Record::Memory(event) => {
                self.events += 1;
                self.naming.note_event(event.time_ns);
                let names = &mut self.naming;
                let stack = if event.failed() {
                    names.failed_stack(event.pid, event.stack, event.asker())
                } else {
                    names.stack(event.pid, event.stack, event.asker())
                };
                if let Some(process) = self.processes.get_mut(&event.pid) {
                    process.events += 1;
                    process.ledger.apply(&event, stack);
                }
            }
            Record::Pool(definition) => {
                if let Some(process) = self.processes.get_mut(&definition.pid) {
                    process.ledger.define_pool(definition.pool, definition.name);
                }
            }
            Record::Code(definition) => self.naming.define_code(definition),
            Record::Lines(piece) => self.naming.add_lines(piece),
            Record::Stack(definition) => {
                self.naming.define_stack(&definition);
            }
            Record::Cell(start) => {
                self.naming.note_event(start.time_ns);
                let piece = self.naming.begin_cell(&start);
                if let Some(Process { cells, ledger, .. }) = self.processes.get_mut(&start.pid) {
                    cells.begin(piece, start.time_ns, ledger, &self.naming);
                }
            }
            Record::CodeFreed(pid, code) => self.naming.free_code(pid, code),
            Record::Loss { dropped } => {
                self.announced_drops += dropped;
                self.naming.note_loss();
                // The ring buffer is shared, so any process may have lost something.
                for process in self.processes.values_mut() {
                    process.ledger.note_loss();
                    process.cells.note_gap();
                }
            }
            Record::Process { pid, change, time_ns } => match change {
                ProcessChange::Exit { status } => {
                    self.end(pid, ProcessState::Exited, Some(ending(status)));
                }
                ProcessChange::Exec => self.replace(pid, time_ns),
                ProcessChange::Fork { child } => self.fork(pid, child, time_ns),
                ProcessChange::LibrariesChanged => {}
            },
        }
    }

    /// A child begins with an empty ledger: what its parent holds on the GPU stays the parent's.
    fn fork(&mut self, parent: Pid, child: Pid, time_ns: u64) {
        // The end of who had the pid before was dropped.
        self.end(child, ProcessState::Exited, None);
        let Some(process) = self.processes.get(&parent) else { return };
        let mut facts = process.facts.clone();
        // Their blocks in host memory are the child's as well.
        facts.late.extend(process.ledger.pools().iter().map(|pool| pool.level));
        let facts = ProcessFacts { start_time: None, parent: Some(parent), whole: true, ..facts };
        if let Some(minor) = facts.python_minor {
            self.naming.set_python_minor(child, minor);
        }
        self.naming.fork(parent, child);
        self.processes.insert(child, Process::new(facts, Some(time_ns)));
    }

    /// A program that is followed begins anew; what it is has to be found out.
    fn replace(&mut self, pid: Pid, time_ns: u64) {
        let facts = self.processes.get(&pid).map(|process| process.facts.clone());
        self.end(pid, ProcessState::Replaced, None);
        if let Some(facts) = facts.filter(|facts| facts.follow) {
            let facts = ProcessFacts {
                python: None,
                python_minor: None,
                python_note: None,
                notebook: None,
                kernel_id: None,
                whole: true,
                late: BTreeSet::new(),
                ..facts
            };
            self.processes.insert(pid, Process::new(facts, Some(time_ns)));
        }
    }

    fn end(&mut self, pid: Pid, state: ProcessState, exit: Option<String>) {
        if let Some(process) = self.processes.remove(&pid) {
            self.naming.forget_process(pid);
            self.ends.add(Ended { pid, process, state, exit });
        }
    }

    /// Code that a process has mapped at a range of addresses, from an offset in a file on: who calls
    /// the driver.
    pub fn map_code(&mut self, pid: Pid, range: Range<u64>, file: &CodeFile, offset: u64) {
        self.naming.map_code(pid, range, file, offset);
    }

    /// Places that have called the driver for the first time since it was last asked.
    pub fn take_new_places(&mut self) -> Vec<NewPlace> {
        self.naming.take_new_places()
    }

    /// What was found at a place.
    pub fn name_place(&mut self, place: PlaceIndex, function: Function<'_>) {
        self.naming.name_place(place, function);
    }

    /// Code that is in no file.
    pub fn note_foreign_code(&mut self, pid: Pid, address: CodeAddress) {
        self.naming.note_foreign_code(pid, address);
    }

    /// Whether it is known which file an address is in, or not worth asking.
    pub fn is_code_settled(&self, pid: Pid, address: CodeAddress) -> bool {
        self.naming.is_code_settled(pid, address)
    }

    /// What NVML counts for processes now; a process that it does not name keeps nothing.
    pub fn set_gpus(&mut self, uses: Vec<(Pid, GpuUse)>) {
        self.processes.values_mut().for_each(|process| process.gpus.clear());
        for (pid, gpu) in uses {
            if let Some(process) = self.processes.get_mut(&pid) {
                process.gpus.push(gpu);
            }
        }
    }

    /// A record could not be decoded.
    pub fn note_undecodable(&mut self) {
        self.undecodable += 1;
    }

    /// What the kernel half counted so far.
    pub fn set_counters(&mut self, counters: Counters) {
        self.counters = counters;
    }

    /// What is attached.
    pub fn set_coverage(&mut self, coverage: Vec<Coverage>) {
        self.coverage = coverage;
    }

    /// The process has ended, by what is known as `exit`, and there was no record of it.
    pub fn set_exit(&mut self, pid: Pid, exit: Option<String>) {
        self.end(pid, ProcessState::Exited, exit);
    }

    /// Whether it runs, as far as is known.
    pub fn is_running(&self, pid: Pid) -> bool {
        self.processes.contains_key(&pid)
    }

    /// Every process that runs.
    pub fn running(&self) -> impl Iterator<Item = Pid> {
        self.processes.keys().copied()
    }

    /// What is known of a running process.
    pub fn facts(&self, pid: Pid) -> Option<&ProcessFacts> {
        self.processes.get(&pid).map(|process| &process.facts)
    }

    /// Memory events taken.
    pub fn events(&self) -> u64 {
        self.events
    }

    /// The picture at a moment.
    pub fn snapshot(&self, moment: &Moment) -> Snapshot {
        let seconds = |ns: u64| ns.saturating_sub(moment.start_ns) as f64 / 1e9;
        let ended = self
            .ends
            .iter()
            .map(|ended| (ended.pid, &ended.process, ended.state, ended.exit.as_ref()));
        let running = self.processes.iter().map(|(&pid, p)| (pid, p, ProcessState::Running, None));
        let mut lives: Vec<_> = ended.chain(running).collect();
        // Stable: of one pid those that have ended come in their order, before the one that runs.
        lives.sort_by_key(|(pid, ..)| *pid);
        let accuracies = || {
            let listed = lives.iter().map(|(_, process, ..)| process.ledger.accuracy());
            listed.chain([self.ends.unlisted_accuracy()])
        };
        let counters = &self.counters;
        let dropped = counters.dropped_events + counters.dropped_definitions + self.undecodable;
        let dropped = dropped.max(self.announced_drops);
        let unmatched_frees = accuracies().map(|accuracy| accuracy.unmatched_frees).sum();
        let mismatches = accuracies().map(|accuracy| accuracy.mismatches).sum();
        let processes: Vec<ProcessSnapshot> = lives
            .iter()
            .map(|&(pid, process, state, exit)| ProcessSnapshot {
                state,
                exit: exit.cloned(),
                ..self.process(pid, process, moment, &seconds)
            })
            .collect();
        let lost = processes.iter().flat_map(|p| &p.devices).any(|d| d.lost_bytes != 0);
        Snapshot {
            schema: SCHEMA,
            generated_at: moment.generated_at.clone(),
            duration_s: seconds(moment.now_ns),
            tracer: Tracer {
                version: env!("CARGO_PKG_VERSION").to_owned(),
                events: self.events,
                dropped,
                dropped_at_end: counters.unannounced,
                exact: dropped == 0
                    && unmatched_frees == 0
                    && mismatches == 0
                    && counters.processes_full == 0
                    && !lost,
                truncated_stacks: counters.truncated_stacks + counters.faulted_stacks,
                unmatched_frees,
                mismatches,
                untraced_children: counters.processes_full,
                coverage: self.coverage.clone(),
            },
            processes,
            finished: self.ends.totals(),
        }
    }

    fn process(
        &self,
        pid: Pid,
        process: &Process,
        moment: &Moment,
        seconds: &dyn Fn(u64) -> f64,
    ) -> ProcessSnapshot {
        let facts = &process.facts;
        let sites = self.sites(process, moment, seconds);
        let failures = process.ledger.failures().last();
        let failures =
            failures.map(|failure| self.failure(failure, process, &sites, seconds)).collect();
        let devices = process.ledger.devices();
        let Listing { cells, unlisted } =
            process.cells.list(&process.ledger, &self.naming, seconds);
        ProcessSnapshot {
            pid,
            parent: facts.parent,
            start_time: facts.start_time.clone().or_else(|| {
                let nanoseconds = moment.epoch_ns + i128::from(process.began_ns?);
                let seconds = i64::try_from(nanoseconds / 1_000_000_000).ok()?;
                OffsetDateTime::from_unix_timestamp(seconds).ok()?.format(&Rfc3339).ok()
            }),
            command: facts.command.clone(),
            python: facts.python.clone(),
            python_note: facts.python_note.clone(),
            notebook: facts.notebook.clone(),
            kernel_id: facts.kernel_id.clone(),
            container: facts.container.clone(),
            user: facts.user.clone(),
            state: ProcessState::Running,
            exit: None,
            counted_at: process.ledger.counted_at().collect(),
            residual_bytes: residual(&process.gpus, &devices),
            devices,
            gpus: process.gpus.clone(),
            pools: process.ledger.pools(),
            host: HostSnapshot {
                pinned_bytes: Some(process.ledger.pinned_bytes()),
                cpu_bytes: facts.cpu.then(|| process.ledger.cpu_bytes()),
                imported: process.ledger.imported(),
            },
            sites,
            cells,
            cells_unlisted: unlisted,
            failures,
        }
    }

    /// Sites, those of pools before those of the driver (a pool's segments are no second holder of
    /// the same bytes), most live bytes first; equal ones by total and id, so that the order is
    /// always the same.
    fn sites(&self, process: &Process, moment: &Moment, seconds: &dyn Fn(u64) -> f64) -> Vec<Site> {
        let ages = process.ledger.ages(moment.now_ns);
        let mut merged: FxHashMap<(SiteKey, Option<&Arc<str>>), Gathered> = FxHashMap::default();
        for (key, totals, history) in process.ledger.histories() {
            let caller = self.naming.caller(key.stack);
            let mut found = Gathered::new(totals, history, ages.get(key));
            found.functions = self.naming.caller_functions(key.stack);
            let key = SiteKey { stack: self.naming.merged(key.stack), ..*key };
            found.add_to(merged.entry((key, caller)));
        }
        // What is told apart while it is captured may turn out to be the same: two pieces of one run.
        let mut by_content: FxHashMap<Content, (SiteKey, Gathered)> = FxHashMap::default();
        for ((key, caller), found) in merged {
            let (frames, note) = self.stack(process, key.stack);
            let caller = caller.map(ToString::to_string);
            let backward_pass = self.naming.is_backward(key.stack);
            let content = (key.level, key.device, caller, frames, note, backward_pass);
            match by_content.entry(content) {
                Entry::Occupied(mut entry) => entry.get_mut().1.merge(found),
                Entry::Vacant(entry) => {
                    entry.insert((key, found));
                }
            }
        }
        let judge = Judge::new(&process.ledger, moment.now_ns);
        let mut sites: Vec<Site> = by_content
            .into_iter()
            .map(|((.., caller, frames, note, backward_pass), (key, found))| Site {
                caller_functions: found.functions.iter().map(ToString::to_string).collect(),
                judgement: judge.by_itself(&found, &frames),
                ..site(&key, caller, frames, note, backward_pass, &found.totals, seconds)
            })
            .collect();
        judge::by_runs(&mut sites);
        sites.sort_by(|a, b| {
            b.level
                .cmp(&a.level)
                .then(b.live_bytes.cmp(&a.live_bytes))
                .then(b.total_bytes.cmp(&a.total_bytes))
                .then_with(|| a.id.cmp(&b.id))
        });
        sites
    }

    fn failure(
        &self,
        failure: &ledger::Failure,
        process: &Process,
        sites: &[Site],
        seconds: &dyn Fn(u64) -> f64,
    ) -> Failure {
        let (frames, frames_note) = self.stack(process, failure.stack);
        // Pools come first.
        let backward_pass = self.naming.is_backward(failure.stack);
        let site = sites.iter().find(|site| {
            site.frames == frames && site.backward_pass == backward_pass && !frames.is_empty()
        });
        Failure {
            time_s: seconds(failure.time_ns),
            call: failure.call.to_owned(),
            bytes: failure.bytes,
            error: failure
                .error
                .map_or(Cow::Borrowed("limit of the pool"), error_name)
                .into_owned(),
            user_visible: failure.user_visible,
            caller: self.naming.caller(failure.stack).map(ToString::to_string),
            caller_function: self
                .naming
                .caller_functions(failure.stack)
                .first()
                .map(ToString::to_string),
            site: site.map(|site| site.id.clone()),
            frames,
            frames_note,
            backward_pass,
        }
    }

    /// The frames of a stack, and why some are missing.
    fn stack(&self, process: &Process, stack: StackIndex) -> (Vec<Frame>, Option<String>) {
        let note = if stack == StackIndex::NONE { None } else { self.naming.note(stack) };
        let mut frames = self.naming.frames(stack);
        frames.iter_mut().for_each(|frame| process.sources.complete(frame));
        (frames, note)
    }
}

/// What makes a site in a report: level, device, caller, frames and their note, and whether a backward pass
/// that they began allocated.
type Content = (Level, Option<Device>, Option<String>, Vec<Frame>, Option<String>, bool);

fn site(
    key: &SiteKey,
    caller: Option<String>,
    frames: Vec<Frame>,
    note: Option<String>,
    backward_pass: bool,
    totals: &SiteTotals,
    seconds: &dyn Fn(u64) -> f64,
) -> Site {
    Site {
        id: site_id::site_id(key, caller.as_deref(), &frames, note.as_deref(), backward_pass),
        level: key.level,
        device: key.device,
        caller,
        caller_functions: Vec::new(),
        live_bytes: totals.live_bytes,
        live_blocks: totals.live_blocks,
        total_bytes: totals.total_bytes,
        total_blocks: totals.total_blocks,
        requested_bytes: totals.requested_bytes(),
        pooled_bytes: totals.pooled_bytes,
        peak_bytes: totals.peak_bytes(),
        first_seen_s: seconds(totals.first_ns),
        last_seen_s: seconds(totals.last_ns),
        judgement: Judgement::default(),
        frames,
        frames_note: note,
        backward_pass,
    }
}

/// What NVML counts beyond what the driver handed out, where both are known.
fn residual(gpus: &[GpuUse], devices: &[DeviceSnapshot]) -> Option<i64> {
    if gpus.is_empty() {
        return None;
    }
    let used: i128 = gpus.iter().map(|gpu| gpu.used_bytes.map(i128::from)).sum::<Option<_>>()?;
    let handed_out: i128 = devices.iter().map(|device| i128::from(device.driver_bytes)).sum();
    i64::try_from(used - handed_out).ok()
}
