//! JSON: the contract `cudatrace.report/1` (docs/formats.md).

use std::io;

use super::{Options, fold, sanitize::is_dangerous};
use crate::model::{Frame, Snapshot};

/// Writes the snapshot as one JSON document. [`Options`] shorten the list of sites only; every total is
/// that of all of them.
///
/// # Errors
///
/// Those of the writer.
pub fn write_json(
    snapshot: &Snapshot,
    options: &Options,
    out: &mut impl io::Write,
) -> io::Result<()> {
    let mut shown = snapshot.clone();
    for process in &mut shown.processes {
        process.sites.retain(|site| site.live_bytes >= options.min_bytes);
        process.sites.truncate(options.top.unwrap_or(usize::MAX));
        process.sites.iter_mut().for_each(|site| mark(&mut site.frames));
        process.failures.iter_mut().for_each(|failure| mark(&mut failure.frames));
    }
    writeln!(out, "{}", escape(&serde_json::to_string_pretty(&shown)?))
}

/// Says of each frame whether other formats leave it out.
fn mark(frames: &mut [Frame]) {
    let folded = fold::folded(frames);
    frames.iter_mut().zip(folded).for_each(|(frame, folded)| frame.folded = folded);
}

/// JSON may hold raw what a terminal obeys (C1 controls, changes of direction). Such characters can
/// only be inside of strings, where `\u` means the same to a parser.
pub(super) fn escape(json: &str) -> String {
    let mut safe = String::with_capacity(json.len());
    for character in json.chars() {
        if character == '\n' || !is_dangerous(character) {
            safe.push(character);
        } else {
            let mut units = [0; 2];
            for unit in character.encode_utf16(&mut units) {
                safe.push_str(&format!("\\u{unit:04x}"));
            }
        }
    }
    safe
}
