//! A flamegraph of unfreed allocations, as SVG.

use std::io;

use inferno::flamegraph::{self, TextTruncateDirection, color::BasicPalette, color::Palette};

use super::{Options, folded, label};
use crate::model::Snapshot;

/// Writes the flamegraph. Widths are live bytes; a tooltip has the exact number.
///
/// # Errors
///
/// Those of the writer.
pub fn write_flamegraph(
    snapshot: &Snapshot,
    options: &Options,
    out: &mut impl io::Write,
) -> io::Result<()> {
    let stacks = folded::stacks(snapshot, options);
    let bytes = label::sum(stacks.values().copied());
    // A hostile process can make sizes up, and the renderer adds them.
    let most = (u64::MAX >> 1) / stacks.len().max(1) as u64;
    let mut lines: Vec<String> =
        stacks.iter().map(|(stack, bytes)| format!("{stack} {}", bytes.min(&most))).collect();
    if lines.is_empty() {
        lines.push("nothing is allocated 1".to_owned());
    }

    let mut style = flamegraph::Options::default();
    style.title = "Unfreed GPU memory by Python line".to_owned();
    let accuracy = if snapshot.tracer.exact { "exact" } else { "INCOMPLETE, see the report" };
    style.subtitle = Some(format!("{} live ({accuracy})", label::size(bytes)));
    style.count_name = "bytes".to_owned();
    style.name_type = "Line:".to_owned();
    style.colors = Palette::Basic(BasicPalette::Mem);
    style.hash = true;
    style.text_truncate_direction = TextTruncateDirection::Right;
    style.min_width = 0.1;
    flamegraph::from_lines(&mut style, lines.iter().map(String::as_str), out)
        .map_err(|error| io::Error::other(error.to_string()))
}
