//! JSON: the contract `cudatrace.report/1` (docs/formats.md).

use std::io;

use super::Options;
use crate::model::Snapshot;

/// Writes the snapshot as one JSON document.
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
    }
    serde_json::to_writer_pretty(&mut *out, &shown)?;
    writeln!(out)
}
