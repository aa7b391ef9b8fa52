//! What a call site's behaviour says: is it a leak? Pure, and decided by its history alone; docs/verdicts.md
//! has the rules in words.

mod growth;
mod hint;
mod runs;
#[cfg(test)]
mod tests;

use self::growth::{Growth, growth};
pub use self::{
    hint::{Subject, hint},
    runs::{RunShare, growth_by_run},
};
use crate::{
    ledger::Timeline,
    model::{Confidence, Judgement, Verdict},
};

/// Nanoseconds in which a site cannot be judged yet, unless it repeats.
const TOO_NEW: u64 = 1_000_000_000;

/// Of its peak, what a site may hold on to and still give everything back.
const REMAINDER: f64 = 0.05;

/// Of all blocks, the part that is live where they were allocated to be kept.
const MOSTLY: f64 = 0.5;

/// What is known of a site.
#[derive(Clone, Debug)]
pub struct Evidence {
    /// From its first event to the end of its phase: the run of the cell that it is in, or now.
    pub timeline: Timeline,
    /// Whether that phase is over.
    pub is_over: bool,
    /// Live bytes now.
    pub live_bytes: u64,
    /// Live blocks now.
    pub live_blocks: u64,
    /// Blocks ever allocated.
    pub total_blocks: u64,
    /// Of the live bytes, those that a pool's sites hold.
    pub pooled_bytes: u64,
    /// As [`Judgement::repetitions`].
    pub repetitions: u64,
    /// Nanoseconds from its first allocation to its last.
    pub span_ns: u64,
    /// Nanoseconds from its first allocation to now.
    pub age_ns: u64,
    /// Whether a whole is set up here of many parts: a model of its layers. Parts are no repetitions.
    pub is_setup: bool,
    /// Whether events were lost.
    pub lossy: bool,
}

/// Judges a site by itself.
pub fn judge(evidence: &Evidence) -> Judgement {
    let survival = survival(evidence);
    let growth = growth(evidence);
    let verdict = verdict(evidence, growth.as_ref(), survival);
    let is_judged = verdict != Verdict::Unknown;
    let grows = growth.filter(|_| verdict == Verdict::Growing);
    let repetitions = grows.as_ref().map_or(evidence.repetitions, |growth| growth.repetitions);
    Judgement {
        growth_bytes_per_s: match &grows {
            Some(growth) => Some(growth.bytes as f64 * 1e9 / evidence.span_ns.max(1) as f64),
            None => is_judged.then_some(0.0),
        },
        growth_bytes_per_repetition: grows.map(|growth| growth.bytes / growth.repetitions.max(1)),
        repetitions,
        survival,
        is_leftover: verdict == Verdict::Steady && is_leftover(evidence),
        verdict,
        confidence: is_judged.then(|| confidence(repetitions, evidence.lossy)),
        ..Judgement::default()
    }
}

fn verdict(evidence: &Evidence, growth: Option<&Growth>, survival: f64) -> Verdict {
    if evidence.pooled_bytes > 0 && evidence.pooled_bytes >= evidence.live_bytes / 2 {
        return Verdict::Cache;
    }
    if evidence.live_bytes == 0 {
        return Verdict::Transient;
    }
    if growth.is_some() {
        return Verdict::Growing;
    }
    if evidence.age_ns < TOO_NEW {
        return Verdict::Unknown;
    }
    if gives_back(evidence) && !is_leftover(evidence) {
        return Verdict::Transient;
    }
    if survival >= MOSTLY { Verdict::OneOff } else { Verdict::Steady }
}

/// Whether what it holds is the last of what it went through in a phase that is over.
fn is_leftover(evidence: &Evidence) -> bool {
    let peak = evidence.timeline.pieces.iter().map(|piece| piece.high).max().unwrap_or(0);
    evidence.is_over
        && evidence.live_bytes as f64 > peak as f64 * REMAINDER
        && survival(evidence) < MOSTLY
}

/// Of all blocks, the part that is live.
fn survival(evidence: &Evidence) -> f64 {
    match evidence.total_blocks {
        0 => 0.0,
        total => evidence.live_blocks as f64 / total as f64,
    }
}

/// Whether it came down to almost nothing in the second half of its time.
fn gives_back(evidence: &Evidence) -> bool {
    let pieces = &evidence.timeline.pieces;
    let peak = pieces.iter().map(|piece| piece.high).max().unwrap_or(0);
    let later = pieces.iter().skip(pieces.len() / 2);
    let low = later.map(|piece| piece.low).min().unwrap_or(0);
    // At its very first piece everything begins with nothing.
    pieces.len() > 1 && (low as f64) <= peak as f64 * REMAINDER
}

/// By how often it was seen.
pub fn confidence(repetitions: u64, lossy: bool) -> Confidence {
    match repetitions {
        _ if lossy => Confidence::Low,
        0..8 => Confidence::Low,
        8..30 => Confidence::Medium,
        _ => Confidence::High,
    }
}
