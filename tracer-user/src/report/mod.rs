//! Snapshots to text, JSON, folded stacks and flamegraphs. Pure: each format is a function from an
//! immutable snapshot to a writer, and its output depends on nothing else. Single events to lines of
//! JSON likewise.

mod diff;
mod events;
mod flamegraph;
mod fold;
mod folded;
mod json;
mod label;
mod leaks;
mod sanitize;
mod text;

pub use self::{
    diff::{Change, Difference, Report, ReportError, compare, write_diff, write_diff_json},
    events::write_event,
    flamegraph::write_flamegraph,
    folded::write_folded,
    json::write_json,
    leaks::{Leak, MAX_SUPPRESSIONS, SuppressionError, Suppressions, leaks},
    sanitize::sanitize,
    text::write_text,
};

pub use crate::model::is_user_file;

/// What to leave out. Totals always cover everything: those of devices and of text are of all call
/// sites, and folded stacks and flamegraphs have a stack for the call sites that are left out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Most lines or sites to show; by default 20 in text and all elsewhere.
    pub top: Option<usize>,
    /// Sites with fewer live bytes are left out.
    pub min_bytes: u64,
    /// Whether frames of the machinery are shown as well.
    pub full_stacks: bool,
}

#[cfg(test)]
mod tests;
