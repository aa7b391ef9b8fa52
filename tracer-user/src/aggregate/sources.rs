//! Texts of source files, as far as reports need them. Pure.

use rustc_hash::FxHashMap;

use crate::model::{CellFile, Frame};

/// Files of a process that are remembered.
const MAX_FILES: usize = 512;

/// Bytes of them.
const MAX_BYTES: usize = 16 << 20;

/// Longest line that is shown, in characters.
const MAX_LINE: usize = 400;

/// The files of one process.
#[derive(Debug, Default)]
pub(super) struct Sources {
    /// By path: the text, or that it is not to be had.
    files: FxHashMap<String, Option<Box<str>>>,
    bytes: usize,
}

impl Sources {
    /// Whether a file is worth asking for: it may be one, and nothing is known of it.
    pub(super) fn is_unread(&self, file: &str) -> bool {
        // What begins with `…` has lost its beginning.
        let is_path = file.starts_with('/') && CellFile::of(file).is_none();
        is_path && self.files.len() < MAX_FILES && !self.files.contains_key(file)
    }

    pub(super) fn add(&mut self, file: String, text: Option<&str>) {
        let text = text.filter(|text| self.bytes + text.len() <= MAX_BYTES);
        self.bytes += text.map_or(0, str::len);
        self.files.insert(file, text.map(Into::into));
    }

    /// Adds the line's text to a frame that has none.
    pub(super) fn complete(&self, frame: &mut Frame) {
        if frame.source.is_none()
            && let Some(Some(text)) = self.files.get(&frame.file)
        {
            let index = frame.line.and_then(|line| (line as usize).checked_sub(1));
            let line = index.and_then(|index| text.lines().nth(index)).map(str::trim);
            frame.source = line.filter(|line| !line.is_empty()).map(str::to_owned);
        }
        if let Some(source) = &mut frame.source
            && source.chars().count() > MAX_LINE
        {
            *source = source.chars().take(MAX_LINE - 1).chain(['…']).collect();
        }
    }
}
