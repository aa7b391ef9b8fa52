//! Where reports go.

use std::{
    fs::{self, File},
    io::{self, Write as _},
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result};

use super::args::Format;
use crate::{
    model::Snapshot,
    report::{self, Options},
};

/// Renders a snapshot.
pub fn render(
    snapshot: &Snapshot,
    format: Format,
    options: &Options,
    out: &mut impl io::Write,
) -> io::Result<()> {
    match format {
        Format::Text => report::write_text(snapshot, options, out),
        Format::Json => report::write_json(snapshot, options, out),
        Format::Folded => report::write_folded(snapshot, options, out),
        Format::Flamegraph => report::write_flamegraph(snapshot, options, out),
    }
}

/// Renders to standard output.
pub fn print(snapshot: &Snapshot, format: Format, options: &Options) -> Result<()> {
    let mut out = io::BufWriter::new(io::stdout().lock());
    render(snapshot, format, options, &mut out)?;
    out.flush()?;
    Ok(())
}

/// A file that is there complete or not at all: written beside its place, then renamed. Opened
/// before the trace, so that a wrong path is told at once.
pub struct OutputFile {
    format: Format,
    path: PathBuf,
    partial: PathBuf,
    file: File,
}

impl OutputFile {
    /// Makes the partial file.
    ///
    /// # Errors
    ///
    /// When the folder is not there or not writable.
    pub fn create(path: &Path, format: Format) -> Result<Self> {
        let mut name = path.file_name().context("the output has no file name")?.to_owned();
        name.push(format!(".partial-{}", std::process::id()));
        let partial = path.with_file_name(name);
        let file = File::create(&partial)
            .with_context(|| format!("cannot write to `{}`", path.display()))?;
        Ok(Self { format, path: path.to_owned(), partial, file })
    }

    /// Renders into it and puts it in its place.
    ///
    /// # Errors
    ///
    /// When it cannot be written.
    pub fn write(self, snapshot: &Snapshot, options: &Options) -> Result<()> {
        let mut out = io::BufWriter::new(&self.file);
        render(snapshot, self.format, options, &mut out)
            .and_then(|()| out.flush())
            .and_then(|()| fs::rename(&self.partial, &self.path))
            .with_context(|| format!("cannot write `{}`", self.path.display()))
    }
}

impl Drop for OutputFile {
    fn drop(&mut self) {
        // Gone already if it was put in its place.
        let _ = fs::remove_file(&self.partial);
    }
}
