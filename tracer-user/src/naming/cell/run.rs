//! Runs of cells: what each of them is known to be.

use std::sync::Arc;

use rustc_hash::FxHashSet;

use super::text::{CellLine, Part, PartText};
use crate::model::CellFile;

/// The id of a run. It is used again once the run is forgotten.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RunId(u32);

/// What is known of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunFacts {
    /// What its code is called.
    pub file: Arc<str>,
    /// Place of its cell in the order in which the tracer first saw the cells of the process.
    pub seen: u32,
    /// The execution count, if known.
    pub cell: Option<u32>,
    /// The first line of its cell that is not empty, if the text is known.
    pub source: Option<String>,
    /// Whether it is what a cell magic at the top of its cell ran.
    pub is_body: bool,
}

/// One run of one cell, or what is known of the runs that a function may be from.
#[derive(Clone, Debug)]
pub(in crate::naming) struct Run {
    /// What the cell's code is called.
    pub(in crate::naming) file: Arc<str>,
    /// Place of the cell in the order in which the tracer first saw the cells of the process.
    pub(in crate::naming) seen: u32,
    /// The execution count, once it is known.
    pub(in crate::naming) count: Option<u32>,
    /// Its text, once it is known.
    pub(in crate::naming) text: Option<PartText>,
}

impl Run {
    /// The number of the cell.
    pub(in crate::naming) fn cell(&self) -> Option<u32> {
        self.count
    }

    /// All that others may know of it.
    pub(in crate::naming) fn facts(&self) -> RunFacts {
        let text = self.text.as_ref();
        RunFacts {
            file: self.file.clone(),
            seen: self.seen,
            cell: self.count,
            source: text.and_then(|(text, _)| text.head()).map(str::to_owned),
            is_body: text.is_some_and(|(_, part)| *part != Part::WHOLE),
        }
    }

    /// A line of its code.
    pub(in crate::naming) fn line(&self, line: u32) -> Option<CellLine<'_>> {
        let (text, part) = self.text.as_ref()?;
        text.line(*part, line)
    }

    /// A line of code that the cell magic at the top of it ran: of the body, if it has one.
    pub(in crate::naming) fn body_line(&self, line: u32) -> Option<CellLine<'_>> {
        let (text, part) = self.text.as_ref()?;
        text.line(part.body(), line)
    }

    /// Whether it begins with a cell magic.
    pub(in crate::naming) fn has_body(&self) -> bool {
        self.text.as_ref().is_some_and(|(text, part)| text.has_body(*part))
    }
}

/// Runs of every process; they stay for reports when a process has ended.
#[derive(Debug, Default)]
pub(in crate::naming) struct Runs {
    /// Those that nobody has any more are `None`.
    runs: Vec<Option<Run>>,
    free: Vec<RunId>,
}

impl Runs {
    pub(super) fn add(&mut self, file: Arc<str>, seen: u32) -> RunId {
        let count = match CellFile::of(&file) {
            // Unless the history knows better.
            Some(CellFile::Numbered { count, .. }) => Some(count),
            _ => None,
        };
        let run = Run { file, seen, count, text: None };
        if let Some(id) = self.free.pop() {
            self.runs[id.0 as usize] = Some(run);
            return id;
        }
        self.runs.push(Some(run));
        RunId(self.runs.len() as u32 - 1)
    }

    pub(in crate::naming) fn get(&self, id: RunId) -> Option<&Run> {
        self.runs.get(id.0 as usize)?.as_ref()
    }

    pub(super) fn get_mut(&mut self, id: RunId) -> Option<&mut Run> {
        self.runs.get_mut(id.0 as usize)?.as_mut()
    }

    /// Forgets every run but those that are used. Returns the others, whose ids will be used again.
    pub(in crate::naming) fn sweep(&mut self, used: &FxHashSet<RunId>) -> FxHashSet<RunId> {
        let mut gone = FxHashSet::default();
        for (index, run) in self.runs.iter_mut().enumerate() {
            let id = RunId(index as u32);
            if run.is_some() && !used.contains(&id) {
                *run = None;
                self.free.push(id);
                gone.insert(id);
            }
        }
        gone
    }

    /// How many there are.
    pub(in crate::naming) fn len(&self) -> usize {
        self.runs.len() - self.free.len()
    }
}
