//! The report for a person at a terminal, 80 columns wide where names allow.

mod accuracy;
mod cells;
mod device;
mod failures;
mod fit;
mod gpu;
mod layer;
mod lines;
mod pool;
mod verdicts;

use std::{collections::BTreeSet, io};

use self::fit::Paragraph;
use super::{
    Options,
    folded::{holders, is_host, is_pool},
    label::{self, FileNames, cut},
    sanitize,
};
use crate::model::{CellFile, Finished, Level, ProcessSnapshot, ProcessState, Snapshot};

/// Writes the report.
///
/// # Errors
///
/// Those of the writer.
pub fn write_text(
    snapshot: &Snapshot,
    options: &Options,
    out: &mut impl io::Write,
) -> io::Result<()> {
    let tracer = &snapshot.tracer;
    writeln!(
        out,
        "cudatrace {} · {:.1} s · {} events · {}",
        tracer.version,
        snapshot.duration_s,
        label::number(tracer.events),
        if tracer.exact { "exact" } else { "INCOMPLETE (see the end)" },
    )?;
    if snapshot.processes.is_empty() {
        writeln!(out, "\nno process was traced")?;
    }
    let names = FileNames::of(snapshot);
    for process in &snapshot.processes {
        writeln!(out)?;
        write_process(process, options, tracer.exact, &names, out)?;
    }
    write_finished(&snapshot.finished, out)?;
    writeln!(out)?;
    accuracy::write(tracer, out)
}

/// Children that have ended, as far as they are not listed.
fn write_finished(finished: &Finished, out: &mut impl io::Write) -> io::Result<()> {
    if finished.unlisted == 0 {
        return Ok(());
    }
    writeln!(out)?;
    let count = label::number(finished.unlisted);
    let mut line = Paragraph::new(&format!("{count} more children have ended:"), 2);
    line.add_words(&format!(
        "the driver gave them {} in {} blocks, of which they held {} at their end",
        label::size(finished.unlisted_total_bytes),
        label::number(finished.unlisted_total_blocks),
        label::size(finished.unlisted_held_bytes),
    ));
    line.write(out)
}

fn write_process(
    process: &ProcessSnapshot,
    options: &Options,
    exact: bool,
    names: &FileNames<'_>,
    out: &mut impl io::Write,
) -> io::Result<()> {
    let state = match (process.state, &process.exit) {
        (ProcessState::Running, _) => "running".to_owned(),
        (ProcessState::Exited, Some(how)) => format!("ended ({how}); as it was at its end"),
        (ProcessState::Exited, None) => "ended; as it was at its end".to_owned(),
        (ProcessState::Replaced, _) => "replaced its program; as it was before".to_owned(),
    };
    let mut about = Paragraph::new(&format!("process {}", process.pid), 2);
    about.add(" · ", &state);
    for (what, value) in [("CPython", &process.python), ("user", &process.user)] {
        if let Some(value) = value {
            about.add(" · ", &format!("{what} {value}"));
        }
    }
    if let Some(id) = &process.container {
        about.add(" · ", &format!("container {id:.12}"));
    }
    if let Some(parent) = process.parent {
        about.add(" · ", &format!("child of {parent}"));
        about.add_words("(starts empty: GPU memory from before the fork is its parent's)");
    }
    about.write(out)?;
    writeln!(out, "  {}", cut(&sanitize(&process.command), 76))?;
    if let Some(note) = &process.python_note {
        let mut words = Paragraph::new(" ", 2);
        words.add_words(note);
        words.write(out)?;
    }
    for device in &process.devices {
        device::write(device, process.state == ProcessState::Running, out)?;
    }
    layer::write(&process.counted_at, out)?;
    gpu::write(process, out)?;
    for pool in process.pools.iter().filter(|pool| pool.level != Level::Pytorch) {
        pool::write(pool, out)?;
    }
    write_holders(process, options, exact, names, out)?;
    for (level, title) in [
        (Level::Pinned, "page-locked host memory (PyTorch keeps what its tensors free)"),
        (Level::Cpu, "tensors in host memory"),
        (Level::Tensorflow, "TensorFlow's pools in host memory"),
        (Level::Jax, "JAX's pools in host memory"),
        (Level::Onnxruntime, "ONNX Runtime's arenas in host memory, or of an unknown device"),
    ] {
        write_host(process, level, title, options, names, out)?;
    }
    cells::write(process, options, out)?;
    write_cell_note(process, out)?;
    failures::write(&process.failures, out)
}

/// What `cell #n` means.
fn write_cell_note(process: &ProcessSnapshot, out: &mut impl io::Write) -> io::Result<()> {
    let frames = process.sites.iter().flat_map(|site| &site.frames);
    let cells = process.cells.iter().filter(|cell| cells::is_shown(cell));
    let cells = cells.map(|cell| (cell.cell_seen, &cell.file));
    let mut all = frames.map(|frame| (frame.cell_seen, &frame.file)).chain(cells);
    let is_named = |file: &str| matches!(CellFile::of(file), Some(CellFile::Named { .. }));
    if !all.any(|(seen, file)| seen.is_some() && !is_named(file)) {
        return Ok(());
    }
    let mut line = Paragraph::new("  cell #n:", 4);
    line.add_words(
        "in the order in which cudatrace first saw them run; IPython's own numbers In[n] of these cells \
         are not known",
    );
    line.write(out)
}

/// What holds memory: lines of the pools first, then those of the driver as far as no pool has it.
fn write_holders(
    process: &ProcessSnapshot,
    options: &Options,
    exact: bool,
    names: &FileNames<'_>,
    out: &mut impl io::Write,
) -> io::Result<()> {
    let lines = lines::by_line(holders(process));
    let running = process.state == ProcessState::Running;
    if process.devices.is_empty() && lines.is_empty() {
        let until = if running { "seen yet; it shows here once there is one" } else { "seen" };
        return writeln!(out, "  no GPU allocation {until}");
    }
    if lines.is_empty() {
        return writeln!(out, "  nothing that was allocated since attach is still held");
    }
    let held = if exact { "held by" } else { "held by (INCOMPLETE, see the end)" };
    let before = process.devices.iter().filter_map(|device| device.before_attach);
    let before = label::sum(before.map(|before| before.allocated_bytes));
    let table = lines::Table::new(&lines, before);
    writeln!(out)?;
    if let Some(summary) = verdicts::summary(&lines) {
        writeln!(out, "  {summary}")?;
    }
    table.write_header(held, out)?;
    let mut told = BTreeSet::new();
    let (pools, driver): (Vec<_>, Vec<_>) = lines.iter().partition(|line| is_pool(line.level));
    table.write(&pools, options, names, &mut told, out)?;
    if !driver.is_empty() {
        let title = if pools.is_empty() { "outside any pool:" } else { "and outside any pool:" };
        writeln!(out, "  {title}")?;
        table.write(&driver, options, names, &mut told, out)?;
    }
    Ok(())
}

/// What holds one kind of host memory, if anything does.
fn write_host(
    process: &ProcessSnapshot,
    level: Level,
    title: &str,
    options: &Options,
    names: &FileNames<'_>,
    out: &mut impl io::Write,
) -> io::Result<()> {
    let sites = process
        .sites
        .iter()
        .filter(|site| site.level == level && is_host(site) && site.live_bytes > 0);
    let lines = lines::by_line(sites);
    if lines.is_empty() {
        return Ok(());
    }
    let table = lines::Table::new(&lines, 0);
    writeln!(out, "\n  {title}: {}", label::size(table.total()))?;
    table.write_header("held by", out)?;
    let all: Vec<_> = lines.iter().collect();
    table.write(&all, options, names, &mut BTreeSet::new(), out)
}
