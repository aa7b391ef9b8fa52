//! Names that are not in the traced process's code: numbers and texts of cells, its notebook, and lines of
//! source files. Asks for them in time, without waiting.

use std::{
    collections::{HashMap, HashSet},
    path::Path,
    time::Duration,
};

use time::OffsetDateTime;

use crate::{
    aggregate::Aggregator,
    discover::process::{PROC, ProcessInfo},
    jupyter::{Answer, Clocks, Watcher},
    model::Pid,
    sys,
};

/// Time between two looks at a history while cells wait for their numbers.
const LOOK_INTERVAL: u64 = 50_000_000;

/// The same while none does.
const IDLE_INTERVAL: u64 = 2_000_000_000;

/// How long the first look is waited for.
const FIRST_LOOK: Duration = Duration::from_millis(500);

/// How long the last looks are waited for: IPython writes its history a moment after a cell has begun.
const LAST_LOOKS: Duration = Duration::from_millis(1500);

/// How long texts of files are waited for.
const SOURCES: Duration = Duration::from_millis(500);

/// When a process was last looked at.
#[derive(Debug, Default)]
struct Looked {
    /// A look was asked for, and there is no answer.
    is_open: bool,
    at_ns: u64,
    /// Whether a look can tell anything.
    has_history: bool,
    /// The process has ended; until when to look on for what it ran last.
    until_ns: Option<u64>,
}

/// What asks for names.
pub(super) struct Names {
    watcher: Watcher,
    looks: HashMap<Pid, Looked>,
    /// Files that were asked for.
    sources: HashSet<(Pid, String)>,
}

impl Names {
    pub fn new() -> Self {
        let clocks = Clocks {
            monotonic_ns: sys::monotonic_ns,
            epoch_ns: || OffsetDateTime::now_utc().unix_timestamp_nanos(),
        };
        let watcher = Watcher::start(Path::new(PROC).to_owned(), clocks);
        Self { watcher, looks: HashMap::new(), sources: HashSet::new() }
    }

    /// A process is traced from now on: what its history has now was there before.
    pub fn attach(&mut self, core: &mut Aggregator, info: &ProcessInfo) {
        self.forget(info.pid);
        self.looks.insert(info.pid, Looked { is_open: true, ..Looked::default() });
        let answers = self.watcher.attach(info.pid, info.started_s.unwrap_or(0), FIRST_LOOK);
        self.take(core, answers);
    }

    /// A process has ended.
    pub fn ended(&mut self, pid: Pid) {
        if let Some(looked) = self.looks.get_mut(&pid) {
            looked.until_ns = Some(sys::monotonic_ns() + 2 * LAST_LOOKS.as_nanos() as u64);
        }
    }

    fn forget(&mut self, pid: Pid) {
        self.sources.retain(|(other, _)| *other != pid);
        if self.looks.remove(&pid).is_some() {
            self.watcher.forget(pid);
        }
    }

    /// Takes what was found, and asks for more where it is time.
    pub fn tick(&mut self, core: &mut Aggregator) {
        let answers = self.watcher.answers();
        self.take(core, answers);
        let now = sys::monotonic_ns();
        let over = self.looks.iter().filter(|(_, l)| l.until_ns.is_some_and(|until| until < now));
        let over: Vec<Pid> = over.map(|(&pid, _)| pid).collect();
        over.into_iter().for_each(|pid| self.forget(pid));
        for (&pid, looked) in &mut self.looks {
            let interval = if core.is_waiting(pid) { LOOK_INTERVAL } else { IDLE_INTERVAL };
            if !looked.is_open && now > looked.at_ns + interval {
                *looked = Looked { is_open: true, at_ns: now, ..*looked };
                self.watcher.look(pid);
            }
        }
    }

    /// Goes on looking for a moment while cells wait for their numbers.
    pub fn settle(&mut self, core: &mut Aggregator) {
        let deadline = sys::monotonic_ns() + LAST_LOOKS.as_nanos() as u64;
        while self
            .looks
            .iter()
            .any(|(&pid, l)| l.is_open || (l.has_history && core.is_waiting(pid)))
            && sys::monotonic_ns() < deadline
        {
            let is_look = |answer: &Answer| matches!(answer, Answer::Looked(..));
            let found = self.watcher.wait(Duration::from_nanos(LOOK_INTERVAL), is_look);
            self.take(core, found);
            self.tick(core);
        }
    }

    /// Asks for the texts of files that a report is going to show.
    pub fn find_sources(&mut self, core: &mut Aggregator) {
        let mut open: HashSet<(Pid, String)> = HashSet::new();
        for (pid, file) in core.unread_sources() {
            if self.looks.contains_key(&pid) && self.sources.insert((pid, file.clone())) {
                self.watcher.source(pid, &file);
                open.insert((pid, file));
            }
        }
        if open.is_empty() {
            return;
        }
        let is_last = |answer: &Answer| {
            if let Answer::Source(pid, file, _) = answer {
                open.remove(&(*pid, file.clone()));
            }
            open.is_empty()
        };
        let found = self.watcher.wait(SOURCES, is_last);
        self.take(core, found);
    }

    fn take(&mut self, core: &mut Aggregator, answers: Vec<Answer>) {
        for answer in answers {
            match answer {
                Answer::Looked(pid, has_history) => {
                    if let Some(looked) = self.looks.get_mut(&pid) {
                        *looked = Looked { is_open: false, has_history, ..*looked };
                    }
                }
                Answer::History(pid, page) => core.note_history(pid, page),
                Answer::Notebook(pid, page) => core.note_notebook(pid, page),
                Answer::Facts(pid, facts) => {
                    let notebook = facts.notebook.map(|path| path.display().to_string());
                    core.note_kernel(pid, facts.kernel_id, notebook);
                }
                Answer::Source(pid, file, text) => core.note_source(pid, file, text.as_deref()),
            }
        }
    }
}
