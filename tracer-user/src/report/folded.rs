//! Folded stacks: `root;…;leaf bytes`, a line per call site with live bytes, sorted.

use std::{collections::BTreeMap, io};

use super::{Options, label, sanitize};
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
    let mut stacks: BTreeMap<String, u64> = BTreeMap::new();
    let mut add = |stack: Vec<String>, bytes: u64| {
        if bytes > 0 {
            let key = stack.iter().map(|frame| escape(frame)).collect::<Vec<_>>().join(";");
            let total = stacks.entry(key).or_default();
            *total = total.saturating_add(bytes);
        }
    };
    for process in &snapshot.processes {
        let root = format!("process {}", process.pid);
        let shown = holders(process).filter(|site| site.own_bytes() >= options.min_bytes);
        for site in shown.take(options.top.unwrap_or(usize::MAX)) {
            add(stack(&root, site), site.own_bytes());
        }
        for device in &process.devices {
            let before = device.before_attach.allocated_bytes;
            add(
                vec![root.clone(), label::device(device.index), "before attach".to_owned()],
                before,
            );
        }
    }
    stacks
}

/// The sites that hold device memory of their own: those of pools, and those of the driver as far as
/// no pool has it. Page-locked host memory is another kind.
pub(super) fn holders(process: &ProcessSnapshot) -> impl Iterator<Item = &Site> {
    process.sites.iter().filter(|site| site.level != Level::Pinned && site.own_bytes() > 0)
}

fn stack(root: &str, site: &Site) -> Vec<String> {
    let place = match site.level {
        Level::Pinned => "pinned host memory".to_owned(),
        Level::Driver => format!("driver, no pool, {}", label::device(site.device)),
        Level::Pytorch => label::device(site.device),
    };
    let mut stack = vec![root.to_owned(), place];
    stack.extend(site.frames.iter().rev().map(label::frame));
    if let Some(note) = &site.frames_note {
        // What is missing is missing at the outer end.
        stack.insert(2, format!("[{note}]"));
    }
    stack
}

/// Semicolons separate frames, and a line is a stack.
fn escape(frame: &str) -> String {
    sanitize(frame).replace(';', "\\u{3b}")
}
