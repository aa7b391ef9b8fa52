//! From ids to names: code objects, their line tables, and stacks by content. Pure.

mod line_table;

use std::{collections::VecDeque, sync::Arc};

use rustc_hash::{FxHashMap, FxHashSet};

pub use self::line_table::{LineTable, LineTableKind};
use crate::{
    decode::{CodeDefinition, LinesPiece, StackDefinition, StackFrame},
    model::{CodeId, Frame, FrameKind, Pid, StackId, StackIndex, StackRef},
};

/// Generations of stack ids that are remembered.
const KEPT_GENERATIONS: usize = 64;

/// Names of everything that was defined.
///
/// Stacks are interned by content: frames are resolved to function, file and line when the stack is
/// defined, so equal stacks of different cell runs share one [`StackIndex`]. An id whose definition
/// was dropped gets a placeholder, which [`Naming::merged`] leads to the right stack should the
/// definition come later.
#[derive(Debug)]
pub struct Naming {
    python_minor: FxHashMap<Pid, u8>,
    codes: FxHashMap<(Pid, CodeId), Code>,
    strings: FxHashSet<Arc<str>>,
    ids: FxHashMap<(Pid, StackId), StackIndex>,
    /// Ids by generation, the current one last: see [`Naming::free_code`].
    generations: VecDeque<Vec<(Pid, StackId)>>,
    by_content: FxHashMap<Stack, StackIndex>,
    stacks: Vec<Entry>,
}

/// A defined code object.
#[derive(Debug)]
struct Code {
    function: Arc<str>,
    qualified_name: Option<Arc<str>>,
    file: Arc<str>,
    first_line: i32,
    table_size: u32,
    table: Vec<u8>,
}

/// A frame with its names.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Location {
    function: Arc<str>,
    qualified_name: Option<Arc<str>>,
    file: Arc<str>,
    line: Option<u32>,
}

/// A stack by content.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Stack {
    frames: Vec<Location>,
    gap: Option<Gap>,
}

/// Why frames are missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Gap {
    Truncated,
    NotResident,
    NoPython,
    NotTaken,
}

#[derive(Debug)]
enum Entry {
    Known(Stack),
    /// The definition was dropped.
    Undefined,
    /// It came later.
    Moved(StackIndex),
}

impl Default for Naming {
    fn default() -> Self {
        Self::new()
    }
}

impl Naming {
    /// Nothing is defined yet.
    pub fn new() -> Self {
        let mut naming = Self {
            python_minor: FxHashMap::default(),
            codes: FxHashMap::default(),
            strings: FxHashSet::default(),
            ids: FxHashMap::default(),
            generations: VecDeque::from([Vec::new()]),
            by_content: FxHashMap::default(),
            stacks: Vec::new(),
        };
        naming.intern_stack(Stack::default());
        naming
    }

    /// Which CPython a process runs: its line tables are read accordingly.
    pub fn set_python_minor(&mut self, pid: Pid, minor: u8) {
        self.python_minor.insert(pid, minor);
    }

    /// Takes a code object's names.
    pub fn define_code(&mut self, definition: CodeDefinition) {
        let unknown = || "?".to_owned();
        let code = Code {
            function: self.intern(definition.name.unwrap_or_else(unknown)),
            qualified_name: definition.qualified_name.map(|name| self.intern(name)),
            file: self.intern(definition.filename.unwrap_or_else(unknown)),
            first_line: definition.first_line,
            table_size: definition.line_table_size,
            table: Vec::new(),
        };
        self.codes.insert((definition.pid, definition.code), code);
    }

    /// Takes a piece of a line table. Pieces come in order; one after a gap is useless.
    pub fn add_lines(&mut self, piece: LinesPiece) {
        if let Some(code) = self.codes.get_mut(&(piece.pid, piece.code))
            && code.table.len() == piece.offset as usize
        {
            code.table.extend(piece.bytes);
        }
    }

    /// Takes a stack, whose code objects were defined before it.
    pub fn define_stack(&mut self, definition: &StackDefinition) -> StackIndex {
        let pid = definition.pid;
        let frames = definition.frames.iter().map(|frame| self.locate(pid, frame)).collect();
        let gap = if definition.truncated {
            Some(Gap::Truncated)
        } else if definition.faulted {
            Some(Gap::NotResident)
        } else {
            None
        };
        let index = self.intern_stack(Stack { frames, gap });
        if let Some(old) = self.ids.get(&(pid, definition.stack))
            && let Some(entry @ Entry::Undefined) = self.stacks.get_mut(old.0 as usize)
        {
            *entry = Entry::Moved(index);
        }
        self.remember(pid, definition.stack, index);
        index
    }

    /// A code object is gone. The kernel half seeds stack ids with a generation that has just
    /// changed, so no id from before is handed out any more; but a thread that was in the middle of
    /// a hit may still use one, so they are forgotten some generations later.
    pub fn free_code(&mut self, pid: Pid, code: CodeId) {
        self.codes.remove(&(pid, code));
        self.generations.push_back(Vec::new());
        if self.generations.len() > KEPT_GENERATIONS
            && let Some(old) = self.generations.pop_front()
        {
            for id in old {
                self.ids.remove(&id);
            }
        }
    }

    /// The stack of an event.
    pub fn stack(&mut self, pid: Pid, stack: StackRef) -> StackIndex {
        let gap = match stack {
            StackRef::Id(id) => {
                if let Some(&index) = self.ids.get(&(pid, id)) {
                    return index;
                }
                let index = self.push(Entry::Undefined);
                self.remember(pid, id, index);
                return index;
            }
            StackRef::NoPython => Gap::NoPython,
            StackRef::NotTaken => Gap::NotTaken,
        };
        self.intern_stack(Stack { frames: Vec::new(), gap: Some(gap) })
    }

    /// The index of the stack with the same content, if a definition came late; else the same.
    pub fn merged(&self, index: StackIndex) -> StackIndex {
        match self.stacks.get(index.0 as usize) {
            Some(Entry::Moved(to)) => *to,
            _ => index,
        }
    }

    /// Its frames, innermost first.
    pub fn frames(&self, index: StackIndex) -> Vec<Frame> {
        match self.stacks.get(self.merged(index).0 as usize) {
            Some(Entry::Known(stack)) => stack.frames.iter().map(frame).collect(),
            _ => Vec::new(),
        }
    }

    /// Why frames are missing, if they are.
    pub fn note(&self, index: StackIndex) -> Option<String> {
        let text = match self.stacks.get(self.merged(index).0 as usize)? {
            Entry::Undefined => "its definition was dropped: the ring buffer was full",
            Entry::Moved(_) => return None,
            Entry::Known(stack) => match stack.gap? {
                Gap::Truncated => "too deep: the outermost frames are missing",
                Gap::NotResident => "outer frames were not resident in memory",
                Gap::NoPython => "native thread, no Python frame",
                Gap::NotTaken => "no Python stack was taken",
            },
        };
        Some(text.to_owned())
    }

    /// Forgets the ids of a process; its stacks stay for reports.
    pub fn forget_process(&mut self, pid: Pid) {
        self.codes.retain(|(owner, _), _| *owner != pid);
        self.ids.retain(|(owner, _), _| *owner != pid);
        self.python_minor.remove(&pid);
    }

    fn remember(&mut self, pid: Pid, id: StackId, index: StackIndex) {
        if self.ids.insert((pid, id), index).is_none()
            && let Some(current) = self.generations.back_mut()
        {
            current.push((pid, id));
        }
    }

    fn locate(&self, pid: Pid, frame: &StackFrame) -> Location {
        let code = frame.code.and_then(|code| self.codes.get(&(pid, code)));
        let Some(code) = code else {
            return Location {
                function: "?".into(),
                qualified_name: None,
                file: "?".into(),
                line: None,
            };
        };
        let kind = LineTableKind::of_minor(self.python_minor.get(&pid).copied().unwrap_or(11));
        // A table whose end is missing still tells the lines of its beginning.
        let complete = code.table.len() >= code.table_size as usize;
        let line = LineTable { kind, first_line: code.first_line, bytes: &code.table }
            .line(frame.instruction, complete);
        Location {
            function: code.function.clone(),
            qualified_name: code.qualified_name.clone(),
            file: code.file.clone(),
            line,
        }
    }

    fn intern(&mut self, text: String) -> Arc<str> {
        if let Some(known) = self.strings.get(text.as_str()) {
            return known.clone();
        }
        let text: Arc<str> = text.into();
        self.strings.insert(text.clone());
        text
    }

    fn intern_stack(&mut self, stack: Stack) -> StackIndex {
        if let Some(&index) = self.by_content.get(&stack) {
            return index;
        }
        let index = self.push(Entry::Known(stack.clone()));
        self.by_content.insert(stack, index);
        index
    }

    fn push(&mut self, entry: Entry) -> StackIndex {
        self.stacks.push(entry);
        StackIndex(self.stacks.len() as u32 - 1)
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
mod tests {
    use super::*;

    const PID: Pid = Pid(7);

    fn code(id: u64, name: &str) -> CodeDefinition {
        CodeDefinition {
            pid: PID,
            code: CodeId(id),
            name: Some(name.to_owned()),
            qualified_name: Some(format!("C.{name}")),
            filename: Some("/tmp/x.py".to_owned()),
            first_line: 10,
            line_table_size: 2,
        }
    }

    fn stack(id: u64, code: u64) -> StackDefinition {
        StackDefinition {
            pid: PID,
            stack: StackId(id),
            truncated: false,
            faulted: false,
            frames: vec![StackFrame { code: Some(CodeId(code)), instruction: 0 }],
        }
    }

    #[test]
    fn equal_stacks_of_two_lives_of_a_function_are_one() {
        let mut naming = Naming::new();
        naming.define_code(code(1, "f"));
        let first = naming.define_stack(&stack(100, 1));
        naming.free_code(PID, CodeId(1));
        naming.define_code(code(2, "f"));
        assert_eq!(naming.define_stack(&stack(200, 2)), first);
        naming.define_code(code(3, "g"));
        assert_ne!(naming.define_stack(&stack(300, 3)), first);
        assert_eq!(naming.frames(first)[0].qualified_name.as_deref(), Some("C.f"));
    }

    #[test]
    fn a_late_definition_finds_its_events() {
        let mut naming = Naming::new();
        let early = naming.stack(PID, StackRef::Id(StackId(100)));
        assert!(naming.note(early).unwrap().contains("dropped"));
        naming.define_code(code(1, "f"));
        let late = naming.define_stack(&stack(100, 1));
        assert_eq!(naming.merged(early), late);
        assert_eq!(naming.frames(early), naming.frames(late));
        assert_eq!(naming.stack(PID, StackRef::Id(StackId(100))), late);
    }

    #[test]
    fn ids_of_old_generations_are_forgotten() {
        let mut naming = Naming::new();
        for round in 0..1000 {
            naming.define_code(code(round, "f"));
            naming.define_stack(&stack(round + 1, round));
            naming.free_code(PID, CodeId(round));
        }
        assert!(naming.ids.len() <= KEPT_GENERATIONS + 1, "{}", naming.ids.len());
        assert!(naming.codes.is_empty());
        assert_eq!(naming.stacks.len(), 2);
    }

    #[test]
    fn an_undefined_code_object_is_a_question_mark_and_no_other_name() {
        let mut naming = Naming::new();
        let index = naming.define_stack(&stack(100, 9));
        assert_eq!(naming.frames(index)[0].function, "?");
    }
}
