//! Folded stacks: `root;…;leaf bytes`, a line per call site with live bytes, sorted.

use std::{collections::BTreeMap, io};

use super::{
    Options, fold,
    label::{self, FileNames},
    sanitize,
};
use crate::model::{Level, ProcessSnapshot, Site, Snapshot};

/// Writes live bytes by stack, roots first.
///
/// # Errors
///
/// Those of the writer.
pub fn write_folded(
    snapshot: &Snapshot,
    options: &Options,
    out: &mut impl io::Write,
) -> io::Result<()> {
    for (stack, bytes) in stacks(snapshot, options) {
        writeln!(out, "{stack} {bytes}")?;
    }
    Ok(())
}

/// Live bytes by folded stack, in order.
pub(super) fn stacks(snapshot: &Snapshot, options: &Options) -> BTreeMap<String, u64> {
    let names = FileNames::of(snapshot);
    let mut stacks: BTreeMap<String, u64> = BTreeMap::new();
    let mut add = |stack: Vec<String>, bytes: u64| {
        if bytes > 0 {
            let key = stack.iter().map(|frame| escape(frame)).collect::<Vec<_>>().join(";");
            let total = stacks.entry(key).or_default();
            *total = total.saturating_add(bytes);
        }
    };
    for process in &snapshot.processes {
        let root = root(process);
        let most = options.top.unwrap_or(usize::MAX);
        let mut shown = 0;
        for site in holders(process) {
            if shown < most && site.own_bytes() >= options.min_bytes {
                shown += 1;
                add(stack(&root, site, options, &names), site.own_bytes());
            } else {
                add(vec![root.clone(), OTHERS.to_owned()], site.own_bytes());
            }
        }
        for device in &process.devices {
            let before = device.before_attach.unwrap_or_default().allocated_bytes;
            add(vec![root.clone(), label::device(device.index), BEFORE_ATTACH.to_owned()], before);
        }
    }
    stacks
}

/// The sites that hold device memory of their own: those of pools, and those of the driver as far as
/// no pool has it. Host memory is another kind.
pub(super) fn holders(process: &ProcessSnapshot) -> impl Iterator<Item = &Site> {
    process.sites.iter().filter(|site| !is_host(site) && site.own_bytes() > 0)
}

/// Whether this level is a pool's, which cuts its blocks out of the driver's.
pub(super) fn is_pool(level: Level) -> bool {
    level.is_pool()
}

/// Whether a site holds host memory.
pub(super) fn is_host(site: &Site) -> bool {
    site.level.is_host(site.device)
}

/// The stack of what was there when the tracer came.
pub(super) const BEFORE_ATTACH: &str = "before attach";

/// The stack of all call sites that [`Options`] leave out, so that the sum stays that of everything.
pub(super) const OTHERS: &str = "[other call sites: --top, --min-bytes]";

/// The outermost frame of a process.
pub(super) fn root(process: &ProcessSnapshot) -> String {
    format!("process {}", process.pid)
}

/// The frame below those of Python: where the memory is.
pub(super) fn place(site: &Site) -> String {
    let device = label::device(site.device);
    match site.level {
        Level::Pinned => "pinned host memory".to_owned(),
        Level::Cpu => "tensors in host memory".to_owned(),
        Level::Driver => format!("driver, no pool, {device}"),
        Level::Pytorch => device,
        level if site.device.is_none() => format!("{level}'s pool in host memory"),
        level => format!("{level}, {device}"),
    }
}

/// The frame that stands for those that are missing, or that are none of Python's.
pub(super) fn gap(note: &str) -> String {
    format!("[{note}]")
}

fn stack(root: &str, site: &Site, options: &Options, names: &FileNames<'_>) -> Vec<String> {
    let mut stack = vec![root.to_owned(), place(site)];
    // What is missing is missing at the outer end.
    stack.extend(site.frames_note.as_deref().map(gap));
    let shown = fold::shown(&site.frames, options.full_stacks);
    stack.extend(shown.rev().map(|frame| names.line(frame)));
    stack.extend(site.backward_pass.then(|| gap(label::BACKWARD_PASS)));
    stack
}

/// Semicolons separate frames, and a line is a stack.
pub(super) fn escape(frame: &str) -> String {
    sanitize(frame).replace(';', "\\u{3b}")
}
