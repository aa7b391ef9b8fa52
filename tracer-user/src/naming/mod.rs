//! From ids to names: code objects, their line tables, and stacks by content. Pure.

mod gap;
mod intern;
mod line_table;
mod modules;
mod process;

use std::{ops::Range, sync::Arc};

use rustc_hash::FxHashMap;

pub use self::line_table::{LineIndex, LineTable, LineTableKind};
use self::{
    gap::{Absence, Outer},
    intern::{Location, Locations, Stack, Stacks, Strings},
    process::{Code, ProcessNames},
};
use crate::{
    decode::{CodeDefinition, LinesPiece, StackDefinition},
    model::{CodeAddress, CodeId, Frame, FrameKind, Pid, StackIndex, StackRef},
};

/// Names of everything that was defined.
///
/// Stacks are interned by content: frames are resolved to function, file and line when the stack is
/// defined, so equal stacks of different cell runs share one [`StackIndex`]. An id whose definition
/// was dropped gets a placeholder, which [`Naming::merged`] leads to the right stack should the
/// definition come later.
///
/// What can grow: strings, places and stacks, with the program that is traced. What cannot: code
/// objects (dropped when freed, at most 65,536 a process), ids of stacks (dropped 64
/// generations after their own) and placeholders (65,536 in all).
#[derive(Debug)]
pub struct Naming {
    processes: FxHashMap<Pid, ProcessNames>,
    strings: Strings,
    locations: Locations,
    stacks: Stacks,
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
        }
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
        let process = self.processes.entry(definition.pid).or_default();
        let locations = &mut self.locations;
        let frames = definition.frames.iter().map(|f| process.locate(f, locations)).collect();
        let outer = if definition.truncated {
            Outer::Truncated
        } else if definition.faulted {
            Outer::NotResident
        } else {
            Outer::Complete
        };
        let index = self.stacks.intern(Stack::Taken { frames, outer });
        if let Some(before) = process.remember(definition.stack, index) {
            self.stacks.resolve(before, index);
        }
        index
    }

    /// A code object is gone, and with it, some generations later, the stack ids of its process.
    pub fn free_code(&mut self, pid: Pid, code: CodeId) {
        if let Some(process) = self.processes.get_mut(&pid) {
            for index in process.free_code(code) {
                self.stacks.resolve(index, self.stacks.dropped());
            }
        }
    }

    /// Code of a file that a process has mapped at a range of addresses.
    pub fn map_code(&mut self, pid: Pid, range: Range<u64>, file: &str) {
        let file = self.strings.intern(file);
        self.processes.entry(pid).or_default().modules.map(range, file);
    }

    /// Code that is in no file.
    pub fn note_foreign_code(&mut self, pid: Pid, address: CodeAddress) {
        self.processes.entry(pid).or_default().modules.note_foreign(address);
    }

    /// Whether it is known which file an address is in, or not worth asking.
    pub fn is_code_settled(&self, pid: Pid, address: CodeAddress) -> bool {
        self.processes.get(&pid).is_some_and(|process| process.modules.is_settled(address))
    }

    /// The stack of an event, together with the file that called.
    pub fn stack(&mut self, pid: Pid, stack: StackRef, caller: Option<CodeAddress>) -> StackIndex {
        let stack = self.python_stack(pid, stack);
        let file = caller.and_then(|address| self.processes.get(&pid)?.modules.find(address));
        match file {
            Some(file) => self.stacks.intern_call(stack, file.clone()),
            None => stack,
        }
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

    /// Its frames, innermost first. A frame whose code object is not known has the function and the
    /// file `?`.
    pub fn frames(&self, index: StackIndex) -> Vec<Frame> {
        let frames = self.stacks.get(index).map_or(&[][..], Stack::frames);
        frames.iter().filter_map(|&frame| self.locations.get(frame)).map(frame).collect()
    }

    /// Why frames, or the names of some, are missing, if they are.
    pub fn note(&self, index: StackIndex) -> Option<String> {
        self.stacks.get(index)?.note(&self.locations)
    }

    /// Forgets the ids and code objects of a process; its stacks stay for reports.
    pub fn forget_process(&mut self, pid: Pid) {
        if let Some(process) = self.processes.remove(&pid) {
            for index in process.indices() {
                self.stacks.resolve(index, self.stacks.dropped());
            }
        }
    }
}

fn frame(location: &Location) -> Frame {
    Frame {
        kind: FrameKind::Python,
        function: location.function.to_string(),
        qualified_name: location.qualified_name.as_deref().map(str::to_owned),
        file: location.file.to_string(),
        line: location.line,
        cell: None,
        source: None,
    }
}

#[cfg(test)]
mod tests;
