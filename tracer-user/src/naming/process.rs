//! What one process has defined: code objects and ids of stacks, both forgotten in time.

use std::{collections::VecDeque, sync::Arc};

use rustc_hash::FxHashMap;
use tracer_common::wire::{LINES_CHUNK, MAX_LINES_CHUNKS};

use super::{
    cell::{Began, Cells, LineSpan, RunId, Runs},
    intern::{Location, LocationIndex, Locations},
    line_table::{LineIndex, LineTable, LineTableKind},
    modules::Modules,
};
use crate::{
    decode::{LinesPiece, StackFrame},
    model::{CellFile, CodeId, Pid, StackId, StackIndex, is_cell_top},
};

/// Generations of stack ids that are remembered.
pub(super) const KEPT_GENERATIONS: usize = 64;

/// Older ids that are remembered, of stacks that began backward passes.
pub(super) const KEPT_PASSES: usize = 4096;

/// Code objects that are remembered. The kernel half knows 32,768 at once (`CODES`), so more than
/// that means that records of freed ones were dropped.
pub(super) const MAX_CODES: usize = 64 * 1024;

/// Bytes of a line table from which on it is worth an index.
const LARGE_TABLE: usize = 512;

/// Indices that are kept.
const KEPT_INDICES: usize = 8;

/// A defined code object.
#[derive(Debug)]
pub(super) struct Code {
    pub(super) function: Arc<str>,
    pub(super) qualified_name: Option<Arc<str>>,
    pub(super) file: Arc<str>,
    pub(super) first_line: i32,
    pub(super) table_size: u32,
    pub(super) table: Vec<u8>,
    /// Whether it is a notebook cell's.
    pub(super) is_cell: bool,
    /// The run of the cell that it is from, once it was seen.
    pub(super) run: Option<RunId>,
    /// When a stack last used it.
    pub(super) used: u64,
}

/// One process.
#[derive(Debug)]
pub(super) struct ProcessNames {
    pub(super) python_minor: Option<u8>,
    pub(super) modules: Modules,
    pub(super) cells: Cells,
    /// The process that it was forked from, whose cells it has.
    pub(super) cells_of: Option<Pid>,
    codes: FxHashMap<CodeId, Code>,
    ids: FxHashMap<StackId, StackIndex>,
    /// Ids by generation, the current one last. Freeing code in one process must not make another's
    /// ids old, so each process has its own.
    generations: VecDeque<Vec<StackId>>,
    /// Ids of generations that are gone which may be in use yet, the newest last: those of the stacks that
    /// began backward passes, however much code is freed while one lasts.
    passes: VecDeque<StackId>,
    /// Line tables that were gone through, by code object and bytes of its table that were there: a
    /// long script allocates at thousands of places of one code object.
    indices_of_lines: VecDeque<((CodeId, usize), LineIndex)>,
    /// Stacks and code objects defined so far: the clock of [`Code::used`].
    clock: u64,
}

impl Default for ProcessNames {
    fn default() -> Self {
        Self {
            python_minor: None,
            modules: Modules::default(),
            cells: Cells::default(),
            cells_of: None,
            codes: FxHashMap::default(),
            ids: FxHashMap::default(),
            generations: VecDeque::from([Vec::new()]),
            passes: VecDeque::new(),
            indices_of_lines: VecDeque::new(),
            clock: 0,
        }
    }
}

impl ProcessNames {
    pub(super) fn define_code(&mut self, id: CodeId, mut code: Code) {
        if self.codes.len() >= MAX_CODES {
            self.drop_unused_codes();
        }
        self.clock += 1;
        code.used = self.clock;
        code.is_cell = CellFile::of(&code.file).is_some();
        self.codes.insert(id, code);
    }

    /// Finds out which run of its cell a code object is from, if it is a cell's. The top of a run is a code
    /// object of its own; functions are from the last run before. Returns it, and whether it begins with
    /// this code.
    pub(super) fn begin(
        &mut self,
        id: CodeId,
        began: Began,
        runs: &mut Runs,
    ) -> Option<(RunId, bool)> {
        let code = self.codes.get(&id).filter(|code| code.is_cell)?;
        if let Some(run) = code.run {
            return Some((run, false));
        }
        let span = is_cell_top(&code.function).then(|| self.span(code)).flatten();
        let file = code.file.clone();
        let (run, is_new) = match span {
            Some(span) => self.cells.begin(&file, span, began, runs),
            None => (self.cells.defined(&file, began, runs), false),
        };
        self.set_run(id, run);
        Some((run, is_new))
    }

    /// The file of a cell's code object whose run is not known.
    pub(super) fn cell_without_run(&self, id: CodeId) -> Option<Arc<str>> {
        let code = self.codes.get(&id)?;
        (code.is_cell && code.run.is_none()).then(|| code.file.clone())
    }

    pub(super) fn set_run(&mut self, id: CodeId, run: RunId) {
        if let Some(code) = self.codes.get_mut(&id) {
            code.run = Some(run);
        }
    }

    /// The lines of a code object, as far as its table is known.
    fn span(&self, code: &Code) -> Option<LineSpan> {
        let kind = LineTableKind::of_minor(self.python_minor?);
        let table = LineTable { kind, first_line: code.first_line, bytes: &code.table };
        let (first, last, column) = table.span()?;
        Some(LineSpan { first, last, column })
    }

    /// Half of them, those that no stack has used for longest.
    fn drop_unused_codes(&mut self) {
        let mut used: Vec<u64> = self.codes.values().map(|code| code.used).collect();
        let (_, &mut median, _) = used.select_nth_unstable(MAX_CODES / 2);
        self.codes.retain(|_, code| code.used >= median);
    }

    /// Pieces come in order; one after a gap is useless.
    pub(super) fn add_lines(&mut self, piece: LinesPiece) {
        const MOST: usize = LINES_CHUNK * MAX_LINES_CHUNKS;
        if let Some(code) = self.codes.get_mut(&piece.code)
            && code.table.len() == piece.offset as usize
            && code.table.len() + piece.bytes.len() <= MOST
        {
            code.table.extend(piece.bytes);
        }
    }

    /// The kernel half seeds stack ids with a generation that has just changed, so no id from before
    /// is handed out any more; but a thread that was in the middle of a hit may still use one, so
    /// they are forgotten some generations later, and those that are kept, later still. Returns those.
    pub(super) fn free_code(
        &mut self,
        id: CodeId,
        is_kept: impl Fn(StackIndex) -> bool,
    ) -> Vec<StackIndex> {
        self.codes.remove(&id);
        self.generations.push_back(Vec::new());
        if self.generations.len() <= KEPT_GENERATIONS {
            return Vec::new();
        }
        let old = self.generations.pop_front().unwrap_or_default();
        let (kept, mut old): (Vec<_>, Vec<_>) =
            old.into_iter().partition(|id| self.index(*id).is_some_and(&is_kept));
        self.passes.extend(kept);
        let over = self.passes.len().saturating_sub(KEPT_PASSES);
        old.extend(self.passes.drain(..over));
        old.iter().filter_map(|id| self.ids.remove(id)).collect()
    }

    pub(super) fn index(&self, id: StackId) -> Option<StackIndex> {
        self.ids.get(&id).copied()
    }

    /// Every index that an id leads to.
    pub(super) fn indices(&self) -> impl Iterator<Item = StackIndex> {
        self.ids.values().copied()
    }

    /// Runs of cells that are still asked for.
    pub(super) fn runs(&self) -> impl Iterator<Item = RunId> {
        self.cells.runs().chain(self.codes.values().filter_map(|code| code.run))
    }

    /// Returns what the id led to before.
    pub(super) fn remember(&mut self, id: StackId, index: StackIndex) -> Option<StackIndex> {
        let before = self.ids.insert(id, index);
        if before.is_none()
            && let Some(current) = self.generations.back_mut()
        {
            current.push(id);
        }
        before
    }

    pub(super) fn locate(
        &mut self,
        frame: &StackFrame,
        locations: &mut Locations,
    ) -> LocationIndex {
        self.clock += 1;
        let Some(code) = frame.code.and_then(|id| self.codes.get_mut(&id)) else {
            return LocationIndex::UNKNOWN;
        };
        code.used = self.clock;
        // A table whose end is missing still tells the lines of its beginning.
        let complete = code.table.len() >= code.table_size as usize;
        // Without the version the encoding is not known, and a wrong line is worse than none.
        let line = self.python_minor.and_then(|minor| {
            let kind = LineTableKind::of_minor(minor);
            let table = LineTable { kind, first_line: code.first_line, bytes: &code.table };
            if code.table.len() < LARGE_TABLE {
                return table.line(frame.instruction, complete);
            }
            let key = (frame.code?, code.table.len());
            let known = self.indices_of_lines.iter().position(|(other, _)| *other == key);
            let place = known.unwrap_or_else(|| {
                if self.indices_of_lines.len() == KEPT_INDICES {
                    self.indices_of_lines.pop_front();
                }
                self.indices_of_lines.push_back((key, table.index(complete)));
                self.indices_of_lines.len() - 1
            });
            self.indices_of_lines.get(place)?.1.line(frame.instruction)
        });
        locations.intern(Location {
            function: code.function.clone(),
            qualified_name: code.qualified_name.clone(),
            file: code.file.clone(),
            line,
            run: code.run,
            is_cut: line.is_none() && code.table_size as usize > LINES_CHUNK * MAX_LINES_CHUNKS,
        })
    }

    #[cfg(test)]
    pub(super) fn sizes(&self) -> (usize, usize) {
        (self.codes.len(), self.ids.len())
    }
}
