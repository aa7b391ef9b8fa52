//! Words for frames, sites and sizes.

use std::collections::{BTreeMap, BTreeSet};

use bytesize::ByteSize;

use crate::model::{CellFile, Device, Frame, Snapshot, is_cell_top};

/// Names of files, short, and yet no two alike: `model.py`, or `a/model.py` and `b/model.py` where
/// there are several of that name.
#[derive(Debug, Default)]
pub(super) struct FileNames<'a>(BTreeMap<&'a str, &'a str>);

impl<'a> FileNames<'a> {
    /// Of all the frames of a report.
    pub(super) fn of(snapshot: &'a Snapshot) -> Self {
        let frames = snapshot.processes.iter().flat_map(|process| {
            let failed = process.failures.iter().flat_map(|failure| &failure.frames);
            process.sites.iter().flat_map(|site| &site.frames).chain(failed)
        });
        let files: BTreeSet<&str> = frames.map(|frame| frame.file.as_str()).collect();
        let mut short = BTreeMap::new();
        let mut open: Vec<&str> = files.into_iter().collect();
        let mut parts = 1;
        while !open.is_empty() {
            let mut users: BTreeMap<&str, usize> = BTreeMap::new();
            for &file in &open {
                *users.entry(tail(file, parts)).or_default() += 1;
            }
            open.retain(|&file| {
                let name = tail(file, parts);
                let is_settled = users.get(name) == Some(&1) || name == file;
                if is_settled {
                    short.insert(file, name);
                }
                !is_settled
            });
            parts += 1;
        }
        Self(short)
    }

    /// Where a frame is: `cell 3409123:3`, `In[7]:3` or `train.py:12`.
    pub(super) fn place(&self, frame: &Frame) -> String {
        let file = frame.file.as_str();
        place(frame, self.0.get(file).copied().unwrap_or_else(|| tail(file, 1)))
    }

    /// A frame in a flamegraph: `train_step (cell 3409123:3)`, or just the place for the top of a cell
    /// or script.
    pub(super) fn frame(&self, frame: &Frame) -> String {
        match function(frame) {
            None => self.place(frame),
            Some(name) => format!("{name} ({})", self.place(frame)),
        }
    }

    /// The same with the text of the line, of a notebook cell's frame: its own file is nowhere else to be
    /// looked at.
    pub(super) fn line(&self, frame: &Frame) -> String {
        let is_cell = frame.cell.is_some() || frame.cell_seen.is_some();
        match frame.source.as_deref().filter(|source| is_cell && !source.is_empty()) {
            Some(source) => format!("{} {}", self.frame(frame), cut(source, LABEL_SOURCE)),
            None => self.frame(frame),
        }
    }
}

/// Characters of a line's text that are in the name of a frame.
const LABEL_SOURCE: usize = 80;

/// The first `width` characters.
pub(super) fn cut(text: &str, width: usize) -> String {
    if text.chars().count() <= width {
        return text.to_owned();
    }
    text.chars().take(width.saturating_sub(1)).chain(['…']).collect()
}

/// The last `parts` parts of a path.
fn tail(path: &str, parts: usize) -> &str {
    let cut = path.rmatch_indices('/').nth(parts - 1);
    cut.map_or(path, |(slash, _)| &path[slash + 1..])
}

/// Where a frame is, with the whole path of its file.
pub(super) fn whole_place(frame: &Frame) -> String {
    place(frame, &frame.file)
}

/// A cell: `In[7]`; `cell #2` by the order of first sight; `None` where the file is no cell's.
pub(super) fn cell(number: Option<u32>, seen: Option<u32>, file: &str) -> Option<String> {
    match (number, seen, CellFile::of(file)) {
        (Some(number), ..) => Some(format!("In[{number}]")),
        // Other hosts have names of their own for their cells.
        (None, _, Some(cell @ CellFile::Named { .. })) => Some(cell.label()),
        (None, Some(seen), _) => Some(format!("cell #{seen}")),
        (None, None, Some(cell)) => Some(cell.label()),
        (None, None, None) => None,
    }
}

fn place(frame: &Frame, file: &str) -> String {
    let file = cell(frame.cell, frame.cell_seen, &frame.file).unwrap_or_else(|| file.to_owned());
    // Where the text is known, and yet not the line, a transformation has joined lines.
    let line = match frame.cell_line {
        None if frame.source.is_some() && frame.cell.is_some() => None,
        None => frame.line,
        line => line,
    };
    match line {
        Some(line) => format!("{file}:{line}"),
        None => format!("{file}:?"),
    }
}

/// Of memory that a backward pass allocated.
pub(super) const BACKWARD_PASS: &str = "its backward pass";

/// The name of a frame's function, with its class where known; `None` for the top of a script or of a
/// cell (which some versions of IPython call `<cell line: 1>`).
pub(super) fn function(frame: &Frame) -> Option<&str> {
    let name = frame.qualified_name.as_deref().unwrap_or(&frame.function);
    // `%timeit` wraps what it runs into a function.
    (!is_cell_top(name) && frame.file != "<magic-timeit>").then_some(name)
}

/// A device: `cuda:0`.
pub(super) fn device(device: Option<Device>) -> String {
    device.map_or_else(|| "device unknown".to_owned(), |device| format!("cuda:{}", device.0))
}

/// A size: `1.2 GiB`.
pub(super) fn size(bytes: u64) -> String {
    ByteSize(bytes).display().iec().to_string()
}

/// A difference: `+1.2 GiB`.
pub(super) fn difference(bytes: i64) -> String {
    let sign = match bytes {
        0 => "",
        1.. => "+",
        _ => "-",
    };
    format!("{sign}{}", size(bytes.unsigned_abs()))
}

/// A number with its thousands apart.
pub(super) fn number(value: u64) -> String {
    let digits = value.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A sum that a hostile process cannot make overflow.
pub(super) fn sum(sizes: impl Iterator<Item = u64>) -> u64 {
    sizes.fold(0, u64::saturating_add)
}
