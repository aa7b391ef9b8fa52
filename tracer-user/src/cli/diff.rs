//! `diff`: two reports compared.

use std::{
    fs::File,
    io::{self, Read as _, Write as _},
    path::Path,
};

use anyhow::{Context as _, Result, bail};

use super::args::DiffArgs;
use crate::report::{Report, compare, write_diff, write_diff_json};

/// Bytes of a report that are read.
const MAX_REPORT: u64 = 1 << 30;

/// Compares them.
pub fn run(args: &DiffArgs) -> Result<()> {
    let (before, after) = (read(&args.before)?, read(&args.after)?);
    let mut all = compare(&before, &after);
    all.retain(|one| one.before_bytes.abs_diff(one.after_bytes) >= args.min_bytes.0);
    let mut out = io::BufWriter::new(io::stdout().lock());
    if args.json { write_diff_json(&all, &mut out) } else { write_diff(&all, args.top, &mut out) }
        .and_then(|()| out.flush())
        .context("cannot write to standard output")
}

fn read(path: &Path) -> Result<Report> {
    let context = || format!("cannot read `{}`", path.display());
    let file = File::open(path).with_context(context)?;
    let mut text = String::new();
    file.take(MAX_REPORT + 1).read_to_string(&mut text).with_context(context)?;
    if text.len() as u64 > MAX_REPORT {
        bail!("`{}` is larger than 1 GiB: no report is", path.display());
    }
    Report::parse(&text).with_context(context)
}
