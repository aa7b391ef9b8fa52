//! How exact the numbers are, and what they miss. The last words of a report.

use std::io;

use super::fit::Paragraph;
use crate::{model::Tracer, report::label::number};

pub(super) fn write(tracer: &Tracer, out: &mut impl io::Write) -> io::Result<()> {
    let gaps: Vec<_> = tracer.coverage.iter().filter(|entry| entry.is_gap()).collect();
    if tracer.exact {
        let scope = if gaps.is_empty() { "exact" } else { "exact as far as traced (see below)" };
        let mut line = Paragraph::new(&format!("{scope}:"), 0);
        line.add_words("no record was dropped, and no total differs from the allocator's own");
        line.write(out)?;
    }
    if tracer.dropped > 0 {
        let dropped = number(tracer.dropped);
        let since = number(tracer.dropped_at_end);
        writeln!(
            out,
            "INCOMPLETE: {dropped} records were dropped because the ring buffer was full."
        )?;
        match tracer.dropped_at_end {
            0 => writeln!(
                out,
                "Totals per device are the allocator's own; call sites lack what was dropped."
            )?,
            _ => writeln!(
                out,
                "{since} of them came after the last record received: totals per device are as of\n\
                 that record, until the next allocation."
            )?,
        }
    } else if !tracer.exact {
        writeln!(out, "INCOMPLETE: call sites do not add up to the totals.")?;
    }
    for (count, what) in [
        (tracer.unmatched_frees, ["free matched no allocation", "frees matched no allocation"]),
        (
            tracer.mismatches,
            [
                "time the allocator's totals differed from the traced ones",
                "times the allocator's totals differed from the traced ones",
            ],
        ),
        (tracer.truncated_stacks, ["stack lacks outer frames", "stacks lack outer frames"]),
        (
            tracer.untraced_children,
            [
                "child was not traced: too many at once",
                "children were not traced: too many at once",
            ],
        ),
    ] {
        if count > 0 {
            writeln!(out, "{} {}", number(count), what[usize::from(count > 1)])?;
        }
    }
    for gap in gaps {
        let mut line = Paragraph::new(&format!("not traced: {}", gap.symbol), 2);
        line.add(" ", &format!("in {}:", gap.library));
        line.add_words(gap.note.as_deref().unwrap_or("unknown reason"));
        line.write(out)?;
    }
    Ok(())
}
