//! Which run of which notebook cell a piece of code is from.
//!
//! From ipykernel 6 on the name of a cell's code is a hash of its text: equal for equal cells, and without
//! the execution count. IPython's history has the texts by count, in the order of the runs, but without
//! a time. So runs are told apart by what is seen of them (the top of every run of a cell is a code object
//! of its own), and led to the rows of the history by hash and by order: a row is written when its cell
//! begins to run, and cells run one after the other.

mod hash;
mod history;
mod notebook;
mod run;
mod text;

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
};

use rustc_hash::{FxHashMap, FxHashSet};

use self::{
    history::{History, Row},
    notebook::Notebook,
    text::PartText,
};
pub use self::{
    history::{HistoryPage, HistoryRow},
    notebook::{NotebookCell, NotebookPage},
    run::{RunFacts, RunId},
};
pub(super) use self::{
    run::{Run, Runs},
    text::Part,
};
use crate::model::CellFile;

/// Cells of a process that are told apart.
const MAX_FILES: usize = 8 * 1024;

/// Runs that wait for their row.
const MAX_WAITING: usize = 8 * 1024;

/// How long after its cell has begun a row may be written: IPython does it in a thread, at once, but for
/// a disk that is slow.
const WRITE_LATENCY: u64 = 30_000_000_000;

/// The same where the row may as well be that of a later run of the cell.
const SHORT_LATENCY: u64 = 2_000_000_000;

/// How long a row that was there before is not taken for the cell that runs: its own may come.
const SETTLE: u64 = 1_000_000_000;

/// Of a piece of code at the top of a cell, the lines that it has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LineSpan {
    pub(super) first: u32,
    pub(super) last: u32,
    /// The leftmost column, from CPython 3.11 on.
    pub(super) column: Option<u32>,
}

impl LineSpan {
    /// Whether both are one line, and the same.
    fn is_line_of(self, other: Self) -> bool {
        self.first == self.last && (self.first, self.last) == (other.first, other.last)
    }
}

/// Between which moments something began, in nanoseconds of `CLOCK_MONOTONIC`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Began {
    pub(super) after: u64,
    pub(super) before: u64,
}

/// A cell by the name of its code.
#[derive(Debug)]
struct Cell {
    seen: u32,
    /// The run of it that was seen last, and the lines of its last piece.
    last: Option<(RunId, LineSpan)>,
    /// Where functions are from that were there before any run was seen.
    earlier: Option<RunId>,
    used: u64,
}

/// How sure it is that a run is not the one before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Novelty {
    /// Its code is another cell's, or above that of the run before.
    New,
    /// It may be another statement of the line that the run before has come to.
    Perhaps,
    /// Functions that a run before the first one that was seen has left.
    Earlier,
}

/// A run whose row is not known yet.
#[derive(Debug)]
struct Waiting {
    run: RunId,
    span: LineSpan,
    began: Began,
    novelty: Novelty,
    /// The run of the same cell that was before it.
    before: Option<RunId>,
    /// Whether every run since the one before is known: the kernel half tells them.
    complete: bool,
    /// Whether all is known of it that will be. It stays for those that began before and wait.
    is_done: bool,
}

/// The cells of a process.
#[derive(Debug, Default)]
pub(super) struct Cells {
    files: FxHashMap<Arc<str>, Cell>,
    /// Cells seen so far.
    seen: u32,
    clock: u64,
    /// In the order in which they began.
    waiting: VecDeque<Waiting>,
    history: History,
    notebook: Notebook,
    /// The session that rows were proven to be of.
    session: Option<u64>,
    /// The count of the last run before those that wait.
    last_count: Option<u32>,
    /// Since when every run is told.
    told_since: Option<u64>,
}

impl Cells {
    /// From now on the kernel half tells of every run.
    pub(super) fn note_told(&mut self, time_ns: u64) {
        self.told_since.get_or_insert(time_ns);
    }

    /// Runs may have been missed.
    pub(super) fn note_gap(&mut self) {
        self.told_since = None;
        self.waiting.iter_mut().for_each(|waiting| waiting.complete = false);
    }

    /// A piece of code at the top of a cell is run: the run that it belongs to, and whether it is the first
    /// piece of it.
    pub(super) fn begin(
        &mut self,
        file: &Arc<str>,
        span: LineSpan,
        began: Began,
        runs: &mut Runs,
    ) -> (RunId, bool) {
        let cell = self.cell(file);
        let before = cell.last;
        let novelty = match before {
            Some((run, last)) if span.first > last.last => {
                cell.last = Some((run, span));
                return (run, false);
            }
            // `a = f(); b = f()` are two pieces of one run, and twice `a = f()` one of two.
            Some((run, last)) if span.is_line_of(last) => match (span.column, last.column) {
                (Some(column), Some(before)) if column > before => {
                    cell.last = Some((run, span));
                    return (run, false);
                }
                (Some(_), Some(_)) => Novelty::New,
                _ => Novelty::Perhaps,
            },
            _ => Novelty::New,
        };
        let seen = cell.seen;
        let run = runs.add(file.clone(), seen);
        self.cell(file).last = Some((run, span));
        let complete = self.told_since.is_some_and(|since| since <= began.after);
        let before = before.map(|(run, _)| run);
        self.wait(Waiting { run, span, began, novelty, before, complete, is_done: false }, runs);
        (run, true)
    }

    /// A function of a cell is run: the run that defined it, as far as can be told the last one before.
    pub(super) fn defined(&mut self, file: &Arc<str>, now: Began, runs: &mut Runs) -> RunId {
        let told = self.told_since.is_some();
        let cell = self.cell(file);
        let known = cell.last.map(|(run, _)| run).or(cell.earlier.filter(|_| told));
        if let Some(run) = known {
            return run;
        }
        let run = runs.add(file.clone(), cell.seen);
        cell.earlier = Some(run);
        let (novelty, span) = (Novelty::Earlier, LineSpan { first: 0, last: 0, column: None });
        let complete = told;
        self.wait(
            Waiting { run, span, began: now, novelty, before: None, complete, is_done: false },
            runs,
        );
        run
    }

    fn cell(&mut self, file: &Arc<str>) -> &mut Cell {
        self.clock += 1;
        if self.files.len() >= MAX_FILES && !self.files.contains_key(file) {
            let mut used: Vec<u64> = self.files.values().map(|cell| cell.used).collect();
            let (_, &mut median, _) = used.select_nth_unstable(MAX_FILES / 2);
            self.files.retain(|_, cell| cell.used > median);
        }
        let (seen, used) = (&mut self.seen, self.clock);
        let cell = self.files.entry(file.clone()).or_insert_with(|| {
            *seen += 1;
            Cell { seen: *seen, last: None, earlier: None, used }
        });
        cell.used = used;
        cell
    }

    fn wait(&mut self, waiting: Waiting, runs: &mut Runs) {
        if self.waiting.len() == MAX_WAITING {
            self.waiting.pop_front();
        }
        self.waiting.push_back(waiting);
        // Of the others nothing new is known.
        self.resolve(self.waiting.len() - 1, runs);
    }

    /// Runs that are still asked for.
    pub(super) fn runs(&self) -> impl Iterator<Item = RunId> {
        let waiting = self.waiting.iter().flat_map(|waiting| [Some(waiting.run), waiting.before]);
        let last = |cell: &Cell| [cell.last.map(|(run, _)| run), cell.earlier];
        waiting.chain(self.files.values().flat_map(last)).flatten()
    }

    /// Whether a run waits for its row.
    pub(super) fn is_waiting(&self) -> bool {
        self.waiting.iter().any(|waiting| !waiting.is_done)
    }

    /// Takes a look at the history.
    pub(super) fn note_history(&mut self, page: HistoryPage, runs: &mut Runs) {
        self.history.add(page);
        self.resolve(0, runs);
    }

    /// Takes the cells of the notebook's file.
    pub(super) fn note_notebook(&mut self, page: NotebookPage, runs: &mut Runs) {
        self.notebook = Notebook::new(page);
        self.resolve(0, runs);
    }

    /// Leads runs to their rows, in the order in which they began, from one of those that wait on.
    fn resolve(&mut self, from: usize, runs: &mut Runs) {
        let mut undecided: FxHashSet<Arc<str>> = FxHashSet::default();
        let mut last_count = self.last_count;
        for index in 0..self.waiting.len() {
            let Some(waiting) = self.waiting.get(index) else { break };
            let Some(run) = runs.get(waiting.run) else { continue };
            let is_earlier = waiting.novelty == Novelty::Earlier;
            if !waiting.is_done {
                let file = run.file.clone();
                // Which row is left for a run depends on the runs of the same cell before it.
                let has_rival = || {
                    let later = self.waiting.iter().skip(index + 1);
                    let mut later = later.filter(|w| !w.is_done && w.novelty != Novelty::Earlier);
                    later.any(|w| runs.get(w.run).is_some_and(|run| run.file == file))
                };
                let found = if index < from || undecided.contains(&file) {
                    Found::Undecided(None)
                } else {
                    let latency = if has_rival() { SHORT_LATENCY } else { WRITE_LATENCY };
                    self.find(waiting, &file, last_count, latency, runs)
                };
                if matches!(found, Found::Undecided(_)) && !is_earlier {
                    undecided.insert(file);
                }
                self.settle(index, found, runs);
            }
            let Some(waiting) = self.waiting.get(index) else { break };
            if !is_earlier && let Some(count) = runs.get(waiting.run).and_then(|run| run.count) {
                last_count = last_count.max(Some(count));
            }
        }
        while let Some(first) = self.waiting.pop_front_if(|first| first.is_done) {
            if first.novelty != Novelty::Earlier
                && let Some(count) = runs.get(first.run).and_then(|run| run.count)
            {
                self.last_count = self.last_count.max(Some(count));
            }
        }
    }

    fn settle(&mut self, index: usize, found: Found, runs: &mut Runs) {
        let Some(waiting) = self.waiting.get_mut(index) else { return };
        let Some(run) = runs.get_mut(waiting.run) else { return };
        waiting.is_done = !matches!(found, Found::Undecided(_));
        match found {
            Found::Row { session, count, text } => {
                run.count = Some(count);
                run.text = text.or(run.text.take());
                if session.is_some() && session != self.session {
                    self.session = session;
                    self.last_count = None;
                }
            }
            Found::Nothing(text) => {
                // Also where its name has one: a cell that is not to be kept gets the next cell's.
                run.count = None;
                run.text = text.or(run.text.take());
            }
            Found::Undecided(text) => {
                if self.history.read_ns.is_some() {
                    run.count = None;
                }
                run.text = text.or(run.text.take());
            }
        }
    }

    fn find(
        &self,
        waiting: &Waiting,
        file: &Arc<str>,
        last_count: Option<u32>,
        latency: u64,
        runs: &Runs,
    ) -> Found {
        let Some(name) = CellFile::of(file) else { return Found::Nothing(None) };
        if matches!(name, CellFile::Named { .. }) {
            return Found::Nothing(None);
        }
        let began = waiting.began.before;
        let matches = self.history.matches(&name);
        if let CellFile::Numbered { count, .. } = name {
            return self.find_numbered(waiting, count, &matches);
        }
        let text = matches.iter().rev().find_map(|(row, part)| Some((row.text.clone()?, *part)));
        let Some(read_ns) = self.history.read_ns else {
            return self.find_saved(waiting, file, &name);
        };
        let is_over = read_ns > began.saturating_add(latency);
        let mut sessions: BTreeMap<u64, Vec<(&Row, Part)>> = BTreeMap::new();
        for (row, part) in matches {
            sessions.entry(row.session).or_default().push((row, part));
        }
        if let Some(proven) = self.session {
            if sessions.contains_key(&proven) {
                sessions.retain(|session, _| *session == proven);
            } else {
                // A kernel begins a new one when it is told to forget everything.
                let settled = read_ns > began.saturating_add(SETTLE);
                sessions.retain(|session, _| settled && *session > proven);
            }
        }
        let mut picks: Vec<(&Row, Part, bool)> = Vec::new();
        for (session, rows) in &sessions {
            match self.pick(*session, rows, waiting, last_count, latency, runs) {
                Pick::Row(row, part, fresh) => picks.push((row, part, fresh)),
                Pick::Wait if !is_over => return Found::Undecided(text),
                Pick::Wait | Pick::None => {}
            }
        }
        match picks.as_slice() {
            [(row, part, fresh)] => Found::row(row, *part, fresh.then_some(row.session)),
            [(row, part, _), others @ ..] if others.iter().all(|(o, ..)| o.count == row.count) => {
                Found::row(row, *part, None)
            }
            _ if !is_over || (waiting.novelty == Novelty::Earlier && !picks.is_empty()) => {
                Found::Undecided(text)
            }
            _ if text.is_some() => Found::Nothing(text),
            _ => self.find_saved(waiting, file, &name),
        }
    }

    /// The name has the number. What a cell magic runs as a cell of its own is part of the cell that ran
    /// at the time: some versions have counted it already, and give its body the next number.
    fn find_numbered(&self, waiting: &Waiting, count: u32, matches: &[(&Row, Part)]) -> Found {
        if let Some((row, part)) = matches.iter().rev().find(|(row, _)| row.count == count) {
            return Found::row(row, *part, None);
        }
        let after = |time: u64| {
            let from = waiting.began.before.saturating_add(time);
            self.history.read_ns.is_some_and(|read| read > from)
        };
        let body = matches.iter().rev().find(|(_, part)| *part != Part::WHOLE);
        match body.filter(|_| after(SETTLE)) {
            Some((row, part)) => Found::row(row, *part, None),
            None if after(SHORT_LATENCY) => Found::Nothing(None),
            None => Found::Undecided(None),
        }
    }

    /// The row of a session that a run is led to.
    fn pick<'a>(
        &self,
        session: u64,
        rows: &[(&'a Row, Part)],
        waiting: &Waiting,
        last_count: Option<u32>,
        latency: u64,
        runs: &Runs,
    ) -> Pick<'a> {
        let read_ns = self.history.read_ns.unwrap_or(0);
        let Began { after, before } = waiting.began;
        let possible =
            |row: &Row| row.missed_ns.is_none_or(|missed| missed <= before.saturating_add(latency));
        if waiting.novelty == Novelty::Earlier {
            // IPython itself takes a name for that of its last run.
            let last = rows.iter().rev().find(|(row, _)| possible(row));
            return match last {
                _ if read_ns <= before => Pick::Wait,
                Some(&(row, part)) => Pick::Row(row, part, false),
                None => Pick::None,
            };
        }
        let before_count = waiting.before.and_then(|run| runs.get(run)?.count);
        // Only where there is a semicolon can a line have two statements.
        let is_one = |row: &Row, part: Part| {
            let line = row.text.as_ref().and_then(|text| text.line(part, waiting.span.first));
            line.is_none_or(|line| line.text.contains(';'))
        };
        let perhaps = waiting.novelty == Novelty::Perhaps
            && rows.iter().any(|&(row, part)| is_one(row, part));
        let floor = last_count.filter(|_| self.session == Some(session)).unwrap_or(0);
        let follows = |row: &Row| {
            row.count >= floor
                && before_count.is_none_or(|count| row.count > count)
                && possible(row)
        };
        let is_fresh = |row: &Row| row.missed_ns.is_some() && row.found_ns > after;
        let mut fresh = rows.iter().filter(|(row, _)| follows(row) && is_fresh(row));
        let settled = read_ns > before.saturating_add(SETTLE);
        match (fresh.next(), fresh.next()) {
            (Some(_), _) if perhaps => Pick::None,
            (Some(&(row, part)), None) => Pick::Row(row, part, true),
            (Some(&(row, part)), Some(_)) if waiting.complete => Pick::Row(row, part, true),
            (Some(_), Some(_)) => Pick::None,
            (None, _) if !settled => Pick::Wait,
            (None, _) => {
                // The cell that ran already when the tracer came, or what runs inside of it.
                let running = self.history.height_before(session, after);
                let still = rows.iter().rev().find(|(row, _)| {
                    let again = perhaps && before_count == Some(row.count);
                    again || (follows(row) && Some(row.count) == running)
                });
                still.map_or(Pick::None, |&(row, part)| Pick::Row(row, part, false))
            }
        }
    }

    /// By the notebook's file. Its count is that of the run if that was the cell's last one when the
    /// file was saved.
    fn find_saved(&self, waiting: &Waiting, file: &Arc<str>, name: &CellFile<'_>) -> Found {
        let Some((text, count)) = self.notebook.find(name) else { return Found::Undecided(None) };
        let is_last = self.files.get(file).is_some_and(|cell| {
            cell.last.map(|(run, _)| run).or(cell.earlier) == Some(waiting.run)
        });
        match count {
            Some(count) if is_last && self.notebook.saved_ns > waiting.began.before => {
                Found::Row { session: None, count, text: Some(text) }
            }
            _ => Found::Undecided(Some(text)),
        }
    }
}

/// What is known of a run.
enum Found {
    /// Its row.
    Row { session: Option<u64>, count: u32, text: Option<PartText> },
    /// It has none, or it cannot be told which; all that it may be have the same text.
    Nothing(Option<PartText>),
    /// It may still come.
    Undecided(Option<PartText>),
}

impl Found {
    fn row(row: &Row, part: Part, session: Option<u64>) -> Self {
        Self::Row { session, count: row.count, text: row.text.clone().map(|text| (text, part)) }
    }
}

/// What a session's rows say of a run.
enum Pick<'a> {
    /// It is this one; whether the row came while it was waited for.
    Row(&'a Row, Part, bool),
    /// It may still come.
    Wait,
    /// None of them, or several.
    None,
}

#[cfg(test)]
mod tests;
