//! Allocations that failed.

use std::io;

use super::{fit::Paragraph, lines};
use crate::{
    model::Failure,
    report::label::{number, size},
};

/// Failures that are shown, the last ones.
const SHOWN: usize = 10;

/// One line for each, but those that are the same again (a pool asks twice) together.
pub(super) fn write(failures: &[Failure], out: &mut impl io::Write) -> io::Result<()> {
    let groups: Vec<&[Failure]> = failures.chunk_by(is_again).collect();
    let earlier: usize =
        groups[..groups.len().saturating_sub(SHOWN)].iter().map(|group| group.len()).sum();
    if earlier > 0 {
        writeln!(out, "  {} earlier failures (--format json)", number(earlier as u64))?;
    }
    for group in groups.iter().rev().take(SHOWN).rev() {
        write_group(group, out)?;
    }
    Ok(())
}

fn is_again(a: &Failure, b: &Failure) -> bool {
    a.user_visible == b.user_visible
        && (&a.call, a.bytes, &a.error, &a.caller, &a.caller_function, &a.site)
            == (&b.call, b.bytes, &b.error, &b.caller, &b.caller_function, &b.site)
}

fn write_group(group: &[Failure], out: &mut impl io::Write) -> io::Result<()> {
    let [first, ..] = group else { return Ok(()) };
    let times = match group.len() {
        1 => String::new(),
        count => format!(" ({} calls)", number(count as u64)),
    };
    let mut line = Paragraph::new(&format!("  failed at {:.1} s{times}:", first.time_s), 4);
    line.add(" ", &format!("{} of {}:", first.call, size(first.bytes)));
    line.add(" ", &first.error);
    for word in lines::place(&first.frames, first.frames_note.as_deref(), first.backward_pass) {
        line.add(" ", &word);
    }
    if let Some(file) = &first.caller {
        let colon = if first.caller_function.is_some() { ":" } else { "" };
        line.add(" ", &format!("by {file}{colon}"));
    }
    if let Some(function) = &first.caller_function {
        line.add(" ", function);
    }
    if group.iter().all(|failure| failure.user_visible == Some(false)) {
        line.add_words("(a second try succeeded: the program was not told)");
    }
    line.write(out)
}
