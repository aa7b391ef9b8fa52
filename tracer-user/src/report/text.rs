//! The report for a person at a terminal.

use std::{collections::BTreeMap, io};

use super::{
    Options,
    folded::holders,
    label::{self, sum},
    sanitize,
    user_frame::{is_user_file, user_frame},
};
use crate::model::{DeviceSnapshot, Level, ProcessSnapshot, ProcessState, Site, Snapshot};

/// Lines shown if the user does not say.
const DEFAULT_TOP: usize = 20;

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
        if tracer.exact { "exact" } else { "INCOMPLETE (see below)" },
    )?;
    for process in &snapshot.processes {
        writeln!(out)?;
        write_process(process, options, out)?;
    }
    write_accuracy(snapshot, out)
}

fn write_process(
    process: &ProcessSnapshot,
    options: &Options,
    out: &mut impl io::Write,
) -> io::Result<()> {
    let state = match (process.state, &process.exit) {
        (ProcessState::Running, _) => "running".to_owned(),
        (ProcessState::Exited, Some(how)) => format!("ended ({how}); as it was at its end"),
        (ProcessState::Exited, None) => "ended; as it was at its end".to_owned(),
        (ProcessState::Replaced, _) => "replaced its program; as it was before".to_owned(),
    };
    let mut about = vec![state];
    about.extend(process.python.as_ref().map(|version| format!("CPython {version}")));
    about.extend(process.user.as_ref().map(|user| format!("user {user}")));
    about.extend(process.container.as_ref().map(|id| format!("container {:.12}", id)));
    writeln!(out, "process {} · {}", process.pid, sanitize(&about.join(" · ")))?;
    writeln!(out, "  {}", shortened(&sanitize(&process.command), 76))?;
    for device in &process.devices {
        write_device(device, out)?;
    }

    if let Some(pinned) = process.host.pinned_bytes.filter(|&bytes| bytes > 0) {
        writeln!(out, "  host: {} page-locked", label::size(pinned))?;
    }
    let lines = by_line(process);
    let total = sum(lines.iter().map(|line| line.bytes));
    let shown: Vec<&Line<'_>> = lines
        .iter()
        .filter(|line| line.bytes > 0 && line.bytes >= options.min_bytes)
        .take(options.top.unwrap_or(DEFAULT_TOP))
        .collect();
    if process.devices.is_empty() && lines.is_empty() {
        writeln!(out, "  no GPU allocation seen yet")?;
    } else if total == 0 {
        writeln!(out, "  nothing that was allocated since attach is still held")?;
    } else {
        writeln!(out, "\n  {:>10}  {:>8}  {:>5}  held by", "live", "blocks", "share")?;
    }
    for line in &shown {
        writeln!(
            out,
            "  {:>10}  {:>8}  {:>4.0}%  {}",
            label::size(line.bytes),
            label::number(line.blocks),
            100.0 * line.bytes as f64 / total.max(1) as f64,
            sanitize(&line.name),
        )?;
        for way in line.largest.iter().flat_map(|site| ways(site)) {
            writeln!(out, "  {:>29}{}", "", sanitize(&way))?;
        }
    }
    let hidden = lines.iter().filter(|line| line.bytes > 0).count() - shown.len();
    if hidden > 0 {
        let rest = total.saturating_sub(sum(shown.iter().map(|line| line.bytes)));
        writeln!(out, "  {:>10}  in {hidden} more lines (--top, --min-bytes)", label::size(rest))?;
    }
    for failure in &process.failures {
        writeln!(
            out,
            "  failed at {:.1} s: {} of {}: {}",
            failure.time_s,
            failure.call,
            label::size(failure.bytes),
            failure.error
        )?;
    }
    Ok(())
}

fn write_device(device: &DeviceSnapshot, out: &mut impl io::Write) -> io::Result<()> {
    let size = label::size;
    if device.index.is_none() {
        return writeln!(
            out,
            "  driver: {} on a device that is not known",
            size(device.driver_bytes)
        );
    }
    let bound = if device.reserved_is_upper_bound { "at most " } else { "" };
    write!(
        out,
        "  {}: allocated {} / cached {bound}{} / reserved {bound}{}, peak {}",
        label::device(device.index),
        size(device.allocated_bytes),
        size(device.cached_bytes),
        size(device.reserved_bytes),
        size(device.peak_allocated_bytes),
    )?;
    writeln!(out)?;
    if let Some(releasable) = device.releasable_bytes.filter(|&bytes| bytes > 0) {
        writeln!(out, "    torch.cuda.empty_cache() would return {}", size(releasable))?;
    }
    let before = &device.before_attach;
    if before.allocated_bytes > 0 || before.reserved_bytes > 0 {
        writeln!(
            out,
            "    before attach: {} allocated, {} reserved, call sites unknown",
            size(before.allocated_bytes),
            size(before.reserved_bytes)
        )?;
    }
    if device.untraced_reserved_bytes != 0 {
        writeln!(
            out,
            "    {} reserved by calls without a probe",
            signed(device.untraced_reserved_bytes)
        )?;
    }
    if device.lost_bytes != 0 {
        writeln!(
            out,
            "    {} of the allocated bytes belong to dropped records, call sites unknown",
            signed(device.lost_bytes)
        )?;
    }
    Ok(())
}

fn signed(bytes: i64) -> String {
    let sign = if bytes < 0 { "-" } else { "" };
    format!("{sign}{}", label::size(bytes.unsigned_abs()))
}

/// All call sites with the same line of the user's own code.
struct Line<'a> {
    name: String,
    bytes: u64,
    blocks: u64,
    /// The site with most live bytes.
    largest: Option<&'a Site>,
}

/// Most bytes first; equal ones by name.
fn by_line(process: &ProcessSnapshot) -> Vec<Line<'_>> {
    let mut lines: BTreeMap<String, Line<'_>> = BTreeMap::new();
    for site in holders(process) {
        let name = line_name(site);
        let line =
            lines.entry(name.clone()).or_insert(Line { name, bytes: 0, blocks: 0, largest: None });
        line.bytes = line.bytes.saturating_add(site.own_bytes());
        line.blocks = line.blocks.saturating_add(site.live_blocks);
        if line.largest.is_none_or(|largest| site.own_bytes() > largest.own_bytes()) {
            line.largest = Some(site);
        }
    }
    let mut lines: Vec<Line<'_>> = lines.into_values().collect();
    lines.sort_by(|a, b| b.bytes.cmp(&a.bytes).then_with(|| a.name.cmp(&b.name)));
    lines
}

fn line_name(site: &Site) -> String {
    let device = match site.level {
        Level::Pinned => "pinned host memory".to_owned(),
        Level::Driver => format!("driver, {}", label::device(site.device)),
        Level::Pytorch => label::device(site.device),
    };
    let frame = user_frame(&site.frames).or(site.frames.first());
    match (frame, &site.frames_note) {
        (Some(frame), _) => {
            let function = match label::function(frame) {
                "<module>" => String::new(),
                name => format!(" in {name}"),
            };
            format!("{}{function}  [{device}]", label::place(frame, true))
        }
        (None, Some(note)) => format!("({note})  [{device}]"),
        (None, None) => format!("(no stack)  [{device}]"),
    }
}

/// How the largest part of a line came about: the user's own frame that called the line's function,
/// and the library frames between the line and the allocation (the outermost and the innermost one).
fn ways(site: &Site) -> Vec<String> {
    let Some(position) = site.frames.iter().position(|frame| is_user_file(&frame.file)) else {
        return Vec::new();
    };
    let inner: Vec<String> = site.frames[..position].iter().map(label::frame).collect();
    let mut ways = Vec::new();
    if let Some(caller) = user_frame(&site.frames[position + 1..]) {
        ways.push(format!("from {}", label::frame(caller)));
    }
    match inner.as_slice() {
        [] => {}
        [only] => ways.push(format!("└ {only}")),
        [innermost, .., outermost] => ways.push(format!("└ {outermost} … {innermost}")),
    }
    ways
}

fn write_accuracy(snapshot: &Snapshot, out: &mut impl io::Write) -> io::Result<()> {
    let tracer = &snapshot.tracer;
    let gaps: Vec<_> = tracer.coverage.iter().filter(|entry| entry.is_gap()).collect();
    if !tracer.exact || !gaps.is_empty() || tracer.truncated_stacks > 0 {
        writeln!(out)?;
    }
    if tracer.dropped > 0 {
        writeln!(
            out,
            "INCOMPLETE: {} records were dropped because the ring buffer was full. Totals per device \
             are the allocator's own; call sites lack what was dropped.",
            label::number(tracer.dropped)
        )?;
    }
    if tracer.unmatched_frees > 0 {
        writeln!(out, "{} frees matched no allocation", label::number(tracer.unmatched_frees))?;
    }
    if tracer.mismatches > 0 {
        writeln!(
            out,
            "{} times the allocator's totals differed from the traced ones",
            label::number(tracer.mismatches)
        )?;
    }
    if tracer.truncated_stacks > 0 {
        writeln!(out, "{} stacks lack outer frames", label::number(tracer.truncated_stacks))?;
    }
    for gap in gaps {
        writeln!(
            out,
            "not traced: {} in {}: {}",
            sanitize(&gap.symbol),
            sanitize(&gap.library),
            sanitize(gap.note.as_deref().unwrap_or("unknown reason"))
        )?;
    }
    Ok(())
}

/// The first `width` characters.
fn shortened(text: &str, width: usize) -> String {
    if text.chars().count() <= width {
        return text.to_owned();
    }
    text.chars().take(width - 1).chain(['…']).collect()
}
