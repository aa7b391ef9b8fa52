//! What notebook cells leave: those that hold something, or have changed what is held.

use std::{cmp::Reverse, io};

use super::fit::{Paragraph, WIDTH};
use crate::{
    model::{Cell, ProcessSnapshot},
    report::{
        Options,
        label::{self, cut, difference, number, size},
    },
};

/// Cells shown if the user does not say.
const DEFAULT_TOP: usize = 10;

/// Numbers of a cell's runs that are named, the last ones.
const NUMBERS: usize = 5;

/// Nothing where no cell has held anything, as in programs that are no notebooks.
pub(super) fn write(
    process: &ProcessSnapshot,
    options: &Options,
    out: &mut impl io::Write,
) -> io::Result<()> {
    let mut cells: Vec<&Cell> = process.cells.iter().filter(|cell| is_shown(cell)).collect();
    if cells.is_empty() {
        return Ok(());
    }
    cells.sort_by_key(|cell| (Reverse(cell.left_bytes), Reverse(change(cell))));
    let shown = cells.iter().filter(|cell| weight(cell) >= options.min_bytes);
    let shown: Vec<&Cell> = shown.take(options.top.unwrap_or(DEFAULT_TOP)).copied().collect();
    writeln!(out, "\n  cells, by what is left of what their code allocated:")?;
    for cell in &shown {
        write_cell(cell, out)?;
    }
    let hidden = cells.len() - shown.len();
    if hidden > 0 {
        let noun = if hidden == 1 { "cell" } else { "cells" };
        writeln!(out, "  and {} more {noun} (--top, --min-bytes)", number(hidden as u64))?;
    }
    Ok(())
}

/// Whether a cell holds something, or has changed what is held.
pub(super) fn is_shown(cell: &Cell) -> bool {
    weight(cell) > 0
}

fn change(cell: &Cell) -> u64 {
    cell.change_bytes.unwrap_or(0).unsigned_abs()
}

fn weight(cell: &Cell) -> u64 {
    cell.left_bytes.max(change(cell))
}

fn write_cell(cell: &Cell, out: &mut impl io::Write) -> io::Result<()> {
    let mut line = Paragraph::new(&format!("  {}", name(cell)), 6);
    line.add("  ", &format!("left {}", size(cell.left_bytes)));
    line.add(" ", &format!("(allocated {},", size(cell.allocated_bytes)));
    match cell.freed_later_bytes.filter(|&later| later > 0) {
        Some(later) => {
            line.add(" ", &format!("freed {},", size(cell.freed_bytes)));
            line.add(" ", &format!("of that {} after the next cell began)", size(later)));
        }
        None => line.add(" ", &format!("freed {})", size(cell.freed_bytes))),
    }
    line.write(out)?;
    if let Some(source) = &cell.source {
        let source = cut(source, WIDTH - 8);
        Paragraph::new(&format!("      │ {source}"), 6).write(out)?;
    }
    // Where it is the same, it says nothing new.
    if let Some(change) =
        cell.change_bytes.filter(|&bytes| i128::from(bytes) != cell.left_bytes.into())
    {
        let runs = if cell.runs == 1 { "its run" } else { "its runs" };
        let mut line = Paragraph::new("      the pools' total changed by", 6);
        line.add(" ", &difference(change));
        line.add_words(&format!("in {runs}"));
        line.write(out)?;
    }
    if let Some(again) = cell.again_bytes.filter(|&bytes| bytes > 0) {
        let mut line =
            Paragraph::new(&format!("      running it again leaves +{}", size(again)), 6);
        line.add(" ", &format!("({} runs", number(cell.runs)));
        write_numbers(cell, &mut line);
        line.write(out)?;
    }
    Ok(())
}

/// The numbers of its last runs.
fn write_numbers(cell: &Cell, line: &mut Paragraph) {
    let numbers: Vec<u32> = cell.executions.iter().filter_map(|run| run.cell).collect();
    let shown = &numbers[numbers.len().saturating_sub(NUMBERS)..];
    if shown.is_empty() {
        return line.add("", ")");
    }
    line.add("", if (shown.len() as u64) < cell.runs { ", the last" } else { ":" });
    for (index, count) in shown.iter().enumerate() {
        let end = if index + 1 == shown.len() { ")" } else { "," };
        line.add(" ", &format!("In[{count}]{end}"));
    }
}

fn name(cell: &Cell) -> String {
    label::cell(cell.cell, cell.cell_seen, &cell.file).unwrap_or_else(|| cell.file.clone())
}
