//! Where reports go.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Write as _},
    os::unix::fs::{MetadataExt as _, fchown},
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result, bail};

use super::args::Format;
use crate::{
    model::Snapshot,
    report::{self, Options},
    session::Tap,
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
    render(snapshot, format, options, &mut out)
        .and_then(|()| out.flush())
        .context("cannot write to standard output")
}

/// What writes every event to a file, a line each, as it comes.
///
/// # Errors
///
/// When the file cannot be made.
pub fn event_log(path: &Path) -> Result<Tap> {
    let file = File::create(path)
        .with_context(|| format!("cannot write events to `{}`", path.display()))?;
    let mut out = Some(io::LineWriter::new(file));
    Ok(Box::new(move |event| {
        if let Some(Err(error)) = out.as_mut().map(|out| report::write_event(event, out)) {
            tracing::warn!("events are no longer written: {error}");
            out = None;
        }
    }))
}

/// Where a final report goes. A regular file is there complete or not at all: written beside its
/// place, then renamed, with the owner's mode kept. Anything else (a device, a pipe) is written to.
/// Opened before the trace, so that a wrong path is told at once.
pub struct OutputFile {
    format: Format,
    path: PathBuf,
    partial: Option<PathBuf>,
    file: File,
}

impl OutputFile {
    /// Opens it.
    ///
    /// # Errors
    ///
    /// When the folder is not there or not writable, or the path is a folder.
    pub fn create(path: &Path, format: Format) -> Result<Self> {
        let context = || format!("cannot write to `{}`", path.display());
        if path == Path::new("-") {
            bail!("`-` is no file: without `--output` the report goes to standard output");
        }
        let existing = fs::metadata(path).ok();
        if let Some(metadata) = existing.as_ref().filter(|metadata| !metadata.is_file()) {
            if metadata.is_dir() {
                bail!("cannot write to `{}`: it is a folder", path.display());
            }
            let file = OpenOptions::new().write(true).open(path).with_context(context)?;
            return Ok(Self { format, path: path.to_owned(), partial: None, file });
        }
        // A link is followed, not replaced.
        let path = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
        // A new file's folder may be named in several ways.
        let name = path.file_name().context("the output has no file name")?;
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
        let folder = fs::canonicalize(folder.unwrap_or(Path::new("."))).with_context(context)?;
        let path = folder.join(name);
        let mut name = name.to_owned();
        name.push(format!(".partial-{}", std::process::id()));
        let partial = path.with_file_name(name);
        let file = File::create(&partial).with_context(context)?;
        if let Some(metadata) = existing {
            file.set_permissions(metadata.permissions()).with_context(context)?;
            // Only root can give a file away, and only then it was another's.
            let _ = fchown(&file, Some(metadata.uid()), Some(metadata.gid()));
        }
        Ok(Self { format, path, partial: Some(partial), file })
    }

    /// Where it goes, with links followed if it is a regular file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether it is a regular file, which holds one report.
    pub fn is_whole(&self) -> bool {
        self.partial.is_some()
    }

    /// Renders into it and puts it in its place.
    ///
    /// # Errors
    ///
    /// When it cannot be written.
    pub fn write(self, snapshot: &Snapshot, options: &Options) -> Result<()> {
        let mut out = io::BufWriter::new(&self.file);
        let written = render(snapshot, self.format, options, &mut out).and_then(|()| out.flush());
        written
            .and_then(|()| match &self.partial {
                Some(partial) => fs::rename(partial, &self.path),
                None => Ok(()),
            })
            .with_context(|| format!("cannot write `{}`", self.path.display()))
    }
}

impl Drop for OutputFile {
    fn drop(&mut self) {
        if let Some(partial) = &self.partial {
            // Gone already if it was put in its place.
            let _ = fs::remove_file(partial);
        }
    }
}
