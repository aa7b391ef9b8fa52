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
        writeln!(
            out,
            "INCOMPLETE: {dropped} records were dropped because the ring buffer was full.\n\
             Totals per device are the allocator's own; call sites lack what was dropped."
        )?;
    } else if !tracer.exact {
        writeln!(out, "INCOMPLETE: call sites do not add up to the totals.")?;
    }
    for (count, what) in [
        (tracer.unmatched_frees, "frees matched no allocation"),
        (tracer.mismatches, "times the allocator's totals differed from the traced ones"),
        (tracer.truncated_stacks, "stacks lack outer frames"),
    ] {
        if count > 0 {
            writeln!(out, "{} {what}", number(count))?;
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
