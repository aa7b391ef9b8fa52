//! What IPython's history says of the cells that were run, as far as it has been read.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
};

use rustc_hash::FxHashMap;

use super::text::{CellText, Part};
use crate::model::CellFile;

/// Cells that are remembered. Code of earlier ones has no number.
const MAX_ROWS: usize = 8 * 1024;

/// Bytes of cells that are remembered; of more than that the oldest ones have numbers, but no text.
const MAX_TEXT: usize = 16 << 20;

/// Runs of one cell that are looked at.
const MAX_MATCHES: usize = 256;

/// A row of IPython's table `history`: it is written when the cell begins to run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HistoryRow {
    /// The session of IPython: a kernel has one, or several one after the other.
    pub session: u64,
    /// The execution count.
    pub count: u32,
    /// The source after IPython's transformations.
    pub transformed: String,
    /// The source as typed.
    pub raw: String,
}

/// One look at the history.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HistoryPage {
    /// When the look began, in nanoseconds of `CLOCK_MONOTONIC`.
    pub read_ns: u64,
    /// When it ended.
    pub done_ns: u64,
    /// Rows that were not there at the look before, in their order.
    pub rows: Vec<HistoryRow>,
    /// Sessions that this process cannot have: they have ended, or began before it did.
    pub foreign: Vec<u64>,
}

/// A cell that was run.
#[derive(Clone, Debug)]
pub(super) struct Row {
    pub(super) session: u64,
    pub(super) count: u32,
    pub(super) text: Option<Arc<CellText>>,
    /// End of the look that first found it: it has begun to run before.
    pub(super) found_ns: u64,
    /// Begin of the look before, which did not find it; `None` at the first look.
    pub(super) missed_ns: Option<u64>,
}

/// Everything that was read.
#[derive(Debug, Default)]
pub(super) struct History {
    rows: VecDeque<Row>,
    /// Rows that are not remembered any more: the number of the first one of `rows`.
    forgotten: u64,
    /// By ipykernel's hash: numbers of rows, and the part.
    by_hash: FxHashMap<u32, Vec<(u64, Part)>>,
    by_count: BTreeMap<u32, Vec<u64>>,
    /// The first row that still has its text.
    first_text: u64,
    text_bytes: usize,
    foreign: Vec<u64>,
    /// Begin of the last look.
    pub(super) read_ns: Option<u64>,
    /// Highest count of each session, by the end of the look that found it.
    heights: BTreeMap<u64, VecDeque<(u64, u32)>>,
}

/// Heights of a session that are remembered.
const MAX_HEIGHTS: usize = 64;

/// Sessions of which anything is remembered.
const MAX_SESSIONS: usize = 256;

impl History {
    pub(super) fn add(&mut self, page: HistoryPage) {
        let before = self.read_ns.replace(page.read_ns);
        self.foreign = page.foreign;
        for row in page.rows {
            let text = Arc::new(CellText::new(&row.raw, Some(&row.transformed)));
            let number = self.forgotten + self.rows.len() as u64;
            for (hash, part) in text.hashes() {
                self.by_hash.entry(hash).or_default().push((number, part));
            }
            self.by_count.entry(row.count).or_default().push(number);
            self.text_bytes += text.size();
            self.note_height(row.session, page.done_ns, row.count);
            self.rows.push_back(Row {
                session: row.session,
                count: row.count,
                text: Some(text),
                found_ns: page.done_ns,
                missed_ns: before,
            });
            self.forget();
        }
    }

    fn note_height(&mut self, session: u64, done_ns: u64, count: u32) {
        if self.heights.len() >= MAX_SESSIONS && !self.heights.contains_key(&session) {
            self.heights.pop_first();
        }
        let heights = self.heights.entry(session).or_default();
        match heights.back_mut() {
            Some((at, height)) if *at == done_ns => *height = count.max(*height),
            _ => heights.push_back((done_ns, count)),
        }
        if heights.len() > MAX_HEIGHTS {
            heights.pop_front();
        }
    }

    fn forget(&mut self) {
        while self.text_bytes > MAX_TEXT {
            let Some(index) = self.first_text.checked_sub(self.forgotten) else {
                self.first_text = self.forgotten;
                continue;
            };
            let Some(row) = self.rows.get_mut(index as usize) else { break };
            self.text_bytes -= row.text.take().map_or(0, |text| text.size());
            self.first_text += 1;
        }
        while self.rows.len() > MAX_ROWS {
            let Some(row) = self.rows.pop_front() else { break };
            self.text_bytes -= row.text.as_ref().map_or(0, |text| text.size());
            self.forgotten += 1;
            if self.forgotten.is_multiple_of(MAX_ROWS as u64 / 4) {
                let first = self.forgotten;
                self.by_hash.retain(|_, rows| {
                    rows.retain(|(number, _)| *number >= first);
                    !rows.is_empty()
                });
                self.by_count.retain(|_, rows| {
                    rows.retain(|number| *number >= first);
                    !rows.is_empty()
                });
            }
        }
    }

    fn row(&self, number: u64) -> Option<&Row> {
        self.rows.get(usize::try_from(number.checked_sub(self.forgotten)?).ok()?)
    }

    /// The last runs of a cell of this name, in their order, but those of foreign sessions.
    pub(super) fn matches(&self, file: &CellFile<'_>) -> Vec<(&Row, Part)> {
        let found: Vec<(u64, Part)> = match file {
            CellFile::Hashed(hash) => {
                let rows = self.by_hash.get(hash).map_or(&[][..], Vec::as_slice);
                rows[rows.len().saturating_sub(MAX_MATCHES)..].to_vec()
            }
            CellFile::Numbered { count, .. } => {
                // A cell of its own inside of one gets the next number from some versions.
                let near = self.by_count.range(count.saturating_sub(1)..=*count);
                let rows = near.flat_map(|(_, rows)| rows).filter_map(|&number| {
                    Some((number, self.row(number)?.text.as_ref()?.part_named(file)?))
                });
                rows.collect()
            }
            CellFile::Named { .. } => Vec::new(),
        };
        let rows = found.into_iter().filter_map(|(number, part)| Some((self.row(number)?, part)));
        rows.filter(|(row, _)| !self.foreign.contains(&row.session)).collect()
    }

    /// The highest count of a session before a moment: the cell that began last.
    pub(super) fn height_before(&self, session: u64, time_ns: u64) -> Option<u32> {
        let heights = self.heights.get(&session)?;
        heights.iter().rev().find(|(done_ns, _)| *done_ns < time_ns).map(|(_, height)| *height)
    }

    #[cfg(test)]
    pub(super) fn sizes(&self) -> (usize, usize, usize) {
        (self.rows.len(), self.by_hash.len(), self.text_bytes)
    }
}
