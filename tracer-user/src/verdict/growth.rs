//! Whether what stays at a site grows.
//!
//! What stays at a moment is the lowest that the site's live bytes come to from then on: an *envelope* from
//! below, which never falls. A site grows if its envelope rises in every third of its time, in several steps,
//! and up to its end.

use super::Evidence;
use crate::ledger::Extent;

/// Steps in which an envelope has to rise.
const MIN_STEPS: usize = 3;

/// The same where nothing is ever freed.
const MIN_STEPS_UNREPEATED: usize = 8;

/// Repetitions that a growth is believed after, if it has lasted for [`MIN_SPAN`].
const MIN_REPETITIONS: u64 = 5;

/// Repetitions that are believed however fast they were.
const MANY_REPETITIONS: u64 = 40;

/// Nanoseconds.
const MIN_SPAN: u64 = 1_000_000_000;

/// Nanoseconds that something has to grow for where nothing is ever freed, so that there are no repetitions
/// to be seen: a model that is being loaded does so, too.
const MIN_SPAN_UNREPEATED: u64 = 2_000_000_000;

/// One part in so many of the time, its first, is left out.
const WARM_UP: usize = 10;

/// Part of the whole growth that each third has to have.
const THIRD: f64 = 0.1;

/// Part of the time that it may stand still at the end, unless its steps are as far apart.
const PAUSE: f64 = 0.15;

/// How a site grows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Growth {
    /// By how many bytes.
    pub bytes: u64,
    /// In how many repetitions.
    pub repetitions: u64,
}

/// `None` if it does not, or not enough is known.
pub(super) fn growth(evidence: &Evidence) -> Option<Growth> {
    let envelope = envelope(&evidence.timeline.pieces);
    // What is there from the beginning is no growth.
    let envelope = envelope.get((envelope.len() / WARM_UP).max(1)..)?;
    let (first, last) = (*envelope.first()?, *envelope.last()?);
    let bytes = last.checked_sub(first).filter(|bytes| *bytes > 0)?;
    let steps = steps(envelope);
    if !rises_throughout(envelope, bytes) || !rises_still(&steps, envelope.len()) {
        return None;
    }
    let bursts = bursts(&steps);
    let repetitions = if evidence.is_setup { bursts } else { evidence.repetitions };
    let is_repeated = steps.len() >= MIN_STEPS
        && (repetitions >= MANY_REPETITIONS
            || (repetitions >= MIN_REPETITIONS && evidence.span_ns >= MIN_SPAN));
    let is_long = !evidence.is_setup
        && steps.len() >= MIN_STEPS_UNREPEATED
        && evidence.span_ns >= MIN_SPAN_UNREPEATED;
    let repetitions = if is_repeated { repetitions } else { steps.len() as u64 };
    (is_repeated || is_long).then_some(Growth { bytes, repetitions })
}

/// What stays, by piece of time: the lowest from there on.
fn envelope(pieces: &[Extent]) -> Vec<u64> {
    let mut lowest = u64::MAX;
    let mut envelope: Vec<u64> = pieces
        .iter()
        .rev()
        .map(|piece| {
            lowest = lowest.min(piece.low);
            lowest
        })
        .collect();
    envelope.reverse();
    envelope
}

/// The pieces at which it rises.
fn steps(envelope: &[u64]) -> Vec<usize> {
    let pairs = envelope.windows(2).enumerate();
    pairs.filter(|(_, pair)| pair[1] > pair[0]).map(|(index, _)| index + 1).collect()
}

/// Whether each third of the time has its part of the growth.
fn rises_throughout(envelope: &[u64], bytes: u64) -> bool {
    let at = |part: usize| envelope.get((envelope.len() - 1) * part / 3).copied().unwrap_or(0);
    let has_part = |part| (at(part + 1) - at(part)) as f64 >= bytes as f64 * THIRD;
    (0..3).all(has_part)
}

/// Whether the next step is not overdue.
fn rises_still(steps: &[usize], length: usize) -> bool {
    let [first, .., last] = steps else { return false };
    let apart = (last - first) as f64 / (steps.len() - 1) as f64;
    let pause = (length - 1 - last) as f64;
    pause <= (length as f64 * PAUSE).max(2.5 * apart)
}

/// Groups of steps with pieces between that have none.
fn bursts(steps: &[usize]) -> u64 {
    let pairs = steps.windows(2);
    1 + pairs.filter(|pair| pair[1] - pair[0] > 1).count() as u64
}
