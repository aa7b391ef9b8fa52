//! From ids to names: code objects, their line tables, and stacks by content. Pure.

mod cell;
mod demangle;
mod frames;
mod gap;
mod intern;
mod line_table;
mod modules;
mod places;
mod process;

use std::{
    collections::{BTreeSet, VecDeque},
    ops::Range,
    sync::Arc,
};

use rustc_hash::{FxHashMap, FxHashSet};
use tracer_common::wire::MAX_FRAMES;

use self::{
    cell::{Began, Cells, Run, Runs},
    gap::{Absence, Outer},
    intern::{Locations, Stack, Stacks, Strings},
    places::Places,
    process::{Code, ProcessNames},
};
pub use self::{
    cell::{HistoryPage, HistoryRow, NotebookCell, NotebookPage, RunFacts, RunId},
    line_table::{LineIndex, LineTable, LineTableKind},
    places::{CodeFile, Function, NewPlace, PlaceIndex},
};
use crate::{
    decode::{CellStart, CodeDefinition, LinesPiece, StackDefinition},
    model::{CodeAddress, CodeId, Frame, Level, Pid, StackIndex, StackRef},
};

/// Processes that have ended whose cells may still get their numbers.
const MAX_ENDED: usize = 16;

/// Stacks and runs of cells that may be new before it is looked for what can be forgotten.
const SWEEP: usize = 8 * 1024;

/// Most frames of a stack that others go on from: passes inside of passes.
const MAX_JOINED: usize = 4 * MAX_FRAMES;

/// A piece of a cell that IPython begins to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Piece {
    /// It belongs to this run.
    Of {
        /// The run.
        run: RunId,
        /// Whether it is the run's first piece.
        is_new: bool,
    },
    /// It is of no cell, or of no process that is known.
    Nobodys,
    /// Its definition was dropped.
    Unknown,
}

/// Names of everything that was defined.
///
/// Stacks are interned by content: frames are resolved to function, file and line when the stack is
/// defined, so equal stacks of different cell runs share one [`StackIndex`]. An id whose definition
/// was dropped gets a placeholder, which [`Naming::merged`] leads to the right stack should the
/// definition come later.
///
/// What grows with the program that is traced, strings, lines, stacks and runs of cells, is forgotten by
/// [`Naming::sweep`] when nobody asks for it any more. What does not grow: files, code
/// objects (dropped when freed, at most 65,536 a process), ids of stacks (dropped 64
/// generations after their own; those of backward passes once there are 4,096 more), placeholders (65,536 in
/// all) and places that call the driver (16,384 in all).
#[derive(Debug)]
pub struct Naming {
    processes: FxHashMap<Pid, ProcessNames>,
    strings: Strings,
    locations: Locations,
    stacks: Stacks,
    runs: Runs,
    /// Stacks and runs that the last sweep has left.
    swept: usize,
    /// Cells of processes that have ended while some waited for their numbers.
    ended: VecDeque<(Pid, Cells)>,
    /// What is seen now happened between these moments.
    now: Began,
    places: Places,
}

impl Default for Naming {
    fn default() -> Self {
        Self::new()
    }
}

impl Naming {
    /// Nothing is defined yet.
    pub fn new() -> Self {
        Self {
            processes: FxHashMap::default(),
            strings: Strings::default(),
            locations: Locations::new(),
            stacks: Stacks::new(),
            runs: Runs::default(),
            swept: 0,
            ended: VecDeque::new(),
            now: Began { after: 0, before: 0 },
            places: Places::default(),
        }
    }

    /// Everything that is seen from now on was recorded before this moment, in nanoseconds of
    /// `CLOCK_MONOTONIC`.
    pub fn note_drained(&mut self, now_ns: u64) {
        self.now.before = now_ns;
    }

    /// Everything that is seen from now on happened after this moment.
    pub fn note_event(&mut self, time_ns: u64) {
        self.now.after = self.now.after.max(time_ns);
        self.now.before = self.now.before.max(self.now.after);
    }

    /// A process has all that its parent has defined.
    pub fn fork(&mut self, parent: Pid, child: Pid) {
        let cells_of = self.processes.get(&parent).and_then(|process| process.cells_of);
        self.processes.entry(child).or_default().cells_of = Some(cells_of.unwrap_or(parent));
    }

    /// A look at IPython's history.
    pub fn note_history(&mut self, pid: Pid, page: HistoryPage) {
        if let Some(cells) = cells(&mut self.processes, &mut self.ended, pid) {
            cells.note_history(page, &mut self.runs);
        }
    }

    /// A look at the notebook's file.
    pub fn note_notebook(&mut self, pid: Pid, page: NotebookPage) {
        if let Some(cells) = cells(&mut self.processes, &mut self.ended, pid) {
            cells.note_notebook(page, &mut self.runs);
        }
    }

    /// Whether cells of a process were seen whose numbers are not known yet.
    pub fn is_waiting(&self, pid: Pid) -> bool {
        match self.processes.get(&pid) {
            Some(process) => process.cells.is_waiting(),
            None => self.ended.iter().any(|(ended, cells)| *ended == pid && cells.is_waiting()),
        }
    }

    /// Records were dropped: a cell may have run that was not seen.
    pub fn note_loss(&mut self) {
        self.processes.values_mut().for_each(|process| process.cells.note_gap());
    }

    /// Which CPython a process runs: its line tables are read accordingly. Until it is known, frames
    /// have no line.
    pub fn set_python_minor(&mut self, pid: Pid, minor: u8) {
        self.processes.entry(pid).or_default().python_minor = Some(minor);
    }

    /// Takes a code object's names.
    pub fn define_code(&mut self, definition: CodeDefinition) {
        let code = Code {
            function: self.strings.intern(definition.name.as_deref().unwrap_or("?")),
            qualified_name: definition.qualified_name.map(|name| self.strings.intern(&name)),
            file: self.strings.intern(definition.filename.as_deref().unwrap_or("?")),
            first_line: definition.first_line,
            table_size: definition.line_table_size,
            table: Vec::new(),
            is_cell: false,
            run: None,
            used: 0,
        };
        self.processes.entry(definition.pid).or_default().define_code(definition.code, code);
    }

    /// Takes a piece of a line table. Pieces come in order; one after a gap is useless.
    pub fn add_lines(&mut self, piece: LinesPiece) {
        if let Some(process) = self.processes.get_mut(&piece.pid) {
            process.add_lines(piece);
        }
    }

    /// Takes a stack, whose code objects were defined before it.
    pub fn define_stack(&mut self, definition: &StackDefinition) -> StackIndex {
        // The outermost first: a cell begins before what it defines is called.
        for code in definition.frames.iter().rev().filter_map(|frame| frame.code) {
            self.find_run(definition.pid, code);
        }
        let process = self.processes.entry(definition.pid).or_default();
        let locations = &mut self.locations;
        let mut frames: Vec<_> =
            definition.frames.iter().map(|f| process.locate(f, locations)).collect();
        let mut outer = if definition.truncated {
            Outer::Truncated
        } else if definition.faulted {
            Outer::NotResident
        } else {
            Outer::Complete
        };
        if let Some(id) = definition.outer {
            match process.index(id).and_then(|index| self.stacks.get(index)) {
                Some(Stack::Taken { frames: more, outer: end, .. }) => {
                    frames.extend(more);
                    outer = *end;
                }
                _ => outer = Outer::Dropped,
            }
        }
        if frames.len() > MAX_JOINED {
            frames.truncate(MAX_JOINED);
            outer = Outer::Truncated;
        }
        let (frames, backward) = (frames.into_boxed_slice(), definition.backward);
        let index = self.stacks.intern(Stack::Taken { frames, outer, backward });
        if let Some(before) = process.remember(definition.stack, index) {
            self.stacks.resolve(before, index);
        }
        index
    }

    /// IPython begins to run a piece of a cell. From the first one on every one is told.
    pub fn begin_cell(&mut self, start: &CellStart) -> Piece {
        let Some(process) = self.processes.get_mut(&start.pid) else { return Piece::Nobodys };
        process.cells.note_told(start.time_ns);
        let began = Began { after: start.time_ns, before: start.time_ns };
        match start.code {
            Some(code) if process.cells_of.is_none() => {
                match process.begin(code, began, &mut self.runs) {
                    Some((run, is_new)) => Piece::Of { run, is_new },
                    None => Piece::Nobodys,
                }
            }
            Some(_) => Piece::Nobodys,
            // It could not be defined.
            None => {
                process.cells.note_gap();
                Piece::Unknown
            }
        }
    }

    /// The run whose code is the outermost of a cell's on a stack: what is outside of it is the same for
    /// every cell.
    pub fn run_of(&self, index: StackIndex) -> Option<RunId> {
        let frames = self.stacks.get(index)?.frames();
        frames.iter().rev().find_map(|&frame| self.locations.get(frame)?.run)
    }

    /// What is known of a run.
    pub fn run(&self, run: RunId) -> Option<RunFacts> {
        self.runs.get(run).map(Run::facts)
    }

    /// A cell's code object is seen for the first time: it is from a run.
    fn find_run(&mut self, pid: Pid, code: CodeId) {
        let Some(process) = self.processes.get_mut(&pid) else { return };
        let Some(file) = process.cell_without_run(code) else { return };
        // A child runs no cells of its own: also its top is from before the fork.
        let parent = process.cells_of.filter(|parent| self.processes.contains_key(parent));
        match parent.and_then(|parent| self.processes.get_mut(&parent)) {
            Some(parent) => {
                let run = parent.cells.defined(&file, self.now, &mut self.runs);
                if let Some(process) = self.processes.get_mut(&pid) {
                    process.set_run(code, run);
                }
            }
            None => {
                if let Some(process) = self.processes.get_mut(&pid) {
                    let _ = process.begin(code, self.now, &mut self.runs);
                }
            }
        }
    }

    /// A code object is gone, and with it, some generations later, the stack ids of its process.
    pub fn free_code(&mut self, pid: Pid, code: CodeId) {
        if let Some(process) = self.processes.get_mut(&pid) {
            let stacks = &self.stacks;
            let is_backward = |index| stacks.get(index).is_some_and(Stack::is_backward);
            for index in process.free_code(code, is_backward) {
                self.stacks.resolve(index, self.stacks.dropped());
            }
        }
    }

    /// Code that a process has mapped at a range of addresses, from an offset in a file on.
    pub fn map_code(&mut self, pid: Pid, range: Range<u64>, file: &CodeFile, offset: u64) {
        let file = self.places.file(file);
        self.processes.entry(pid).or_default().modules.map(range, file, offset);
    }

    /// Code that is in no file.
    pub fn note_foreign_code(&mut self, pid: Pid, address: CodeAddress) {
        self.processes.entry(pid).or_default().modules.note_foreign(address);
    }

    /// Whether it is known which file an address is in, or not worth asking.
    pub fn is_code_settled(&self, pid: Pid, address: CodeAddress) -> bool {
        self.processes.get(&pid).is_some_and(|process| process.modules.is_settled(address))
    }

    /// The stack of an event, together with the file that called. All functions of a file that call
    /// from the same stack for memory of the same level are one: [`Naming::caller_functions`].
    pub fn stack(
        &mut self,
        pid: Pid,
        stack: StackRef,
        caller: Option<(Level, CodeAddress)>,
    ) -> StackIndex {
        let (call, place) = self.call(pid, stack, caller);
        if let Some(place) = place {
            self.stacks.add_place(call, place);
        }
        call
    }

    /// The stack of a call that failed, together with the one place that called.
    pub fn failed_stack(
        &mut self,
        pid: Pid,
        stack: StackRef,
        caller: Option<(Level, CodeAddress)>,
    ) -> StackIndex {
        let (call, place) = self.call(pid, stack, caller);
        place.map_or(call, |place| self.stacks.intern_failure(call, place))
    }

    /// The stack with the file that called and the place in it; only the stack if that is in no file.
    fn call(
        &mut self,
        pid: Pid,
        stack: StackRef,
        caller: Option<(Level, CodeAddress)>,
    ) -> (StackIndex, Option<PlaceIndex>) {
        let stack = self.python_stack(pid, stack);
        let Some((level, address)) = caller else { return (stack, None) };
        let modules = self.processes.get(&pid).map(|process| &process.modules);
        let code = modules.and_then(|modules| modules.find(address));
        let Some((file, offset)) = code else { return (stack, None) };
        let Some(name) = self.places.file_name(file).cloned() else { return (stack, None) };
        let place = self.places.place(pid, file, offset);
        (self.stacks.intern_call(stack, level, name), place)
    }

    fn python_stack(&mut self, pid: Pid, stack: StackRef) -> StackIndex {
        let absence = match stack {
            StackRef::Id(id) => {
                let process = self.processes.entry(pid).or_default();
                if let Some(index) = process.index(id) {
                    return index;
                }
                let Some(index) = self.stacks.placeholder() else { return self.stacks.dropped() };
                process.remember(id, index);
                return index;
            }
            StackRef::NoPython => Absence::NoPython,
            StackRef::NotTaken => Absence::NotTaken,
        };
        self.stacks.intern(Stack::Absent(absence))
    }

    /// The index of the stack with the same content, as far as known now: that of a definition that
    /// came late; for all that are not defined the same one; else `index` itself. Without its
    /// [`Naming::caller`].
    pub fn merged(&self, index: StackIndex) -> StackIndex {
        self.stacks.canonical(index)
    }

    /// The name of the file that called from it, at the level of the driver, if known.
    pub fn caller(&self, index: StackIndex) -> Option<&Arc<str>> {
        self.stacks.caller(index)
    }

    /// The functions of that file that called, as far as known, by name; of a place in no function,
    /// its virtual address in the file after a `+`.
    pub fn caller_functions(&self, index: StackIndex) -> BTreeSet<Arc<str>> {
        let places = self.stacks.places(index).iter();
        places.filter_map(|&place| self.places.name(place).cloned()).collect()
    }

    /// Places that have called for the first time since it was last asked.
    pub fn take_new_places(&mut self) -> Vec<NewPlace> {
        self.places.take_new()
    }

    /// What was found at a place.
    pub fn name_place(&mut self, place: PlaceIndex, function: Function<'_>) {
        self.places.set_name(place, function);
    }

    /// Its frames, innermost first. A frame whose code object is not known has the function and the
    /// file `?`.
    pub fn frames(&self, index: StackIndex) -> Vec<Frame> {
        let frames = self.stacks.get(index).map_or(&[][..], Stack::frames);
        frames::frames(frames, &self.locations, &self.runs)
    }

    /// The files of its frames.
    pub fn files(&self, index: StackIndex) -> impl Iterator<Item = &str> {
        let frames = self.stacks.get(index).map_or(&[][..], Stack::frames);
        frames.iter().filter_map(|&frame| Some(&*self.locations.get(frame)?.file))
    }

    /// Why frames, or the names of some, are missing, if they are.
    pub fn note(&self, index: StackIndex) -> Option<String> {
        self.stacks.get(index)?.note(&self.locations)
    }

    /// Whether what allocated is a backward pass that the stack began.
    pub fn is_backward(&self, index: StackIndex) -> bool {
        self.stacks.get(index).is_some_and(Stack::is_backward)
    }

    /// The stack of everything that is not told apart any more.
    pub fn forgotten(&self) -> StackIndex {
        self.stacks.forgotten()
    }

    /// Whether so much is remembered that it may be worth it to forget something.
    pub fn is_large(&self) -> bool {
        self.size() > SWEEP
    }

    /// Whether so much is new since the last sweep that another one is worth it.
    pub fn is_sweep_due(&self) -> bool {
        self.size() > self.swept + self.swept / 2 + SWEEP
    }

    /// How many stacks and runs of cells are remembered.
    pub fn size(&self) -> usize {
        self.stacks.len() + self.runs.len()
    }

    /// Forgets every stack that is not one of `used`, nor can still be named by an id, with all that only
    /// those have. Returns the runs that are gone: their ids will be those of others.
    pub fn sweep(&mut self, used: impl Iterator<Item = StackIndex>) -> FxHashSet<RunId> {
        let ids = self.processes.values().flat_map(ProcessNames::indices);
        let places = self.stacks.sweep(used.chain(ids));
        self.locations.sweep(&places);
        let runs = self.processes.values().flat_map(ProcessNames::runs);
        let ended = self.ended.iter().flat_map(|(_, cells)| cells.runs());
        let used: FxHashSet<RunId> = runs.chain(ended).chain(self.locations.runs()).collect();
        let gone = self.runs.sweep(&used);
        self.strings.sweep();
        self.swept = self.size();
        gone
    }

    /// Forgets the ids and code objects of a process; its stacks stay for reports.
    pub fn forget_process(&mut self, pid: Pid) {
        if let Some(process) = self.processes.remove(&pid) {
            for index in process.indices() {
                self.stacks.resolve(index, self.stacks.dropped());
            }
            if process.cells.is_waiting() {
                self.ended.truncate(MAX_ENDED - 1);
                self.ended.push_front((pid, process.cells));
            }
        }
    }
}

/// The cells of a process, also of one that has just ended.
fn cells<'a>(
    processes: &'a mut FxHashMap<Pid, ProcessNames>,
    ended: &'a mut VecDeque<(Pid, Cells)>,
    pid: Pid,
) -> Option<&'a mut Cells> {
    match processes.get_mut(&pid) {
        Some(process) => Some(&mut process.cells),
        None => ended.iter_mut().find(|(other, _)| *other == pid).map(|(_, cells)| cells),
    }
}

#[cfg(test)]
mod tests;
