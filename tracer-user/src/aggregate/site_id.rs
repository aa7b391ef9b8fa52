//! Ids of call sites: the same site has the same id in every snapshot, and in another trace.

use std::hash::{Hash as _, Hasher as _};

use rustc_hash::FxHasher;

use crate::{ledger::SiteKey, model::Frame};

/// Sixteen hexadecimal digits over everything that makes a site.
pub(super) fn site_id(
    key: &SiteKey,
    caller: Option<&str>,
    frames: &[Frame],
    note: Option<&str>,
    backward_pass: bool,
) -> String {
    let mut hasher = FxHasher::default();
    key.level.name().hash(&mut hasher);
    key.device.hash(&mut hasher);
    caller.hash(&mut hasher);
    note.hash(&mut hasher);
    backward_pass.hash(&mut hasher);
    for frame in frames {
        frame.function.hash(&mut hasher);
        frame.qualified_name.hash(&mut hasher);
        frame.file.hash(&mut hasher);
        frame.line.hash(&mut hasher);
        // Runs of equal cells are told apart by it alone.
        frame.cell.hash(&mut hasher);
    }
    format!("{:016x}", hasher.finish())
}
