//! The cells of the notebook's file: texts where there is no history, and the counts that were saved.

use std::sync::Arc;

use rustc_hash::FxHashMap;

use super::text::{CellText, Part, PartText};
use crate::model::CellFile;

/// Cells of a file that are looked at.
const MAX_CELLS: usize = 16 * 1024;

/// A code cell of a notebook's file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotebookCell {
    /// Its text, as it was when the file was saved.
    pub source: String,
    /// The execution count of its last run at that time.
    pub count: Option<u32>,
}

/// A notebook's file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NotebookPage {
    /// When it was saved, in nanoseconds of `CLOCK_MONOTONIC`.
    pub saved_ns: u64,
    /// Its code cells, in their order.
    pub cells: Vec<NotebookCell>,
}

/// A notebook's file, ready to be asked.
#[derive(Debug, Default)]
pub(super) struct Notebook {
    pub(super) saved_ns: u64,
    cells: Vec<(Arc<CellText>, Option<u32>)>,
    /// By ipykernel's hash: cells and their parts.
    by_hash: FxHashMap<u32, Vec<(usize, Part)>>,
}

impl Notebook {
    pub(super) fn new(page: NotebookPage) -> Self {
        let mut notebook = Self { saved_ns: page.saved_ns, ..Self::default() };
        for (index, cell) in page.cells.into_iter().take(MAX_CELLS).enumerate() {
            let text = Arc::new(CellText::new(&cell.source, None));
            for (hash, part) in text.hashes() {
                notebook.by_hash.entry(hash).or_default().push((index, part));
            }
            notebook.cells.push((text, cell.count));
        }
        notebook
    }

    /// The text of a cell of this name, and its count if there is only one such cell.
    pub(super) fn find(&self, file: &CellFile<'_>) -> Option<(PartText, Option<u32>)> {
        let CellFile::Hashed(hash) = file else { return None };
        let found = self.by_hash.get(hash)?;
        let (index, part) = *found.first()?;
        let (text, count) = self.cells.get(index)?;
        Some(((text.clone(), part), count.filter(|_| found.len() == 1)))
    }
}
