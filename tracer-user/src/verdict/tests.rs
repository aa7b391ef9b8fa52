//! Programs as their memory looks, and what is said of them.

use proptest::prelude::*;

use super::*;
use crate::ledger::{Extent, PIECES};

const MIB: u64 = 1 << 20;

/// A site by its live bytes at equal steps of time, and how often each step repeats what it does.
fn site(levels: &[u64], transient: u64, per_step: u64) -> Evidence {
    let pieces: Vec<Extent> = levels
        .iter()
        .scan(0, |before, &level| {
            let low = level.min(*before);
            *before = level;
            Some(Extent { low, high: level + transient })
        })
        .collect();
    let live_bytes = levels.last().copied().unwrap_or(0);
    let steps = levels.len() as u64;
    Evidence {
        timeline: Timeline { piece_ns: 1 << 28, pieces },
        is_over: false,
        live_bytes,
        live_blocks: live_bytes.div_ceil(MIB),
        total_blocks: (steps * per_step).max(live_bytes.div_ceil(MIB)),
        pooled_bytes: 0,
        repetitions: steps * per_step,
        span_ns: steps << 28,
        age_ns: steps << 28,
        is_setup: false,
        lossy: false,
    }
}

/// Live bytes by step.
fn levels(count: usize, level: impl Fn(u64) -> u64) -> Vec<u64> {
    (0..count as u64).map(level).collect()
}

fn verdict_of(evidence: &Evidence) -> Verdict {
    judge(evidence).verdict
}

/// Nothing was ever given back.
fn kept(evidence: Evidence) -> Evidence {
    Evidence { total_blocks: evidence.live_blocks, ..evidence }
}

#[test]
fn leaks() {
    let cases: [(&str, Evidence); 7] = [
        ("every step", site(&levels(60, |step| step * MIB), 0, 10)),
        ("beside what is given back", site(&levels(60, |step| step * MIB), 500 * MIB, 10)),
        ("on top of what is kept", site(&levels(60, |step| (1000 + step) * MIB), 0, 10)),
        ("every tenth step", site(&levels(60, |step| step / 10 * MIB), 64 * MIB, 10)),
        ("at the end of five epochs", site(&levels(60, |step| step / 12 * 900 * MIB), 0, 100)),
        ("of sizes that vary", site(&levels(60, |step| (step * step % 7 + 20 * step) * MIB), 0, 1)),
        ("in waves", site(&levels(60, |step| (step + step % 6 * 10) * MIB), 0, 10)),
    ];
    for (name, evidence) in cases {
        let judgement = judge(&evidence);
        assert_eq!(judgement.verdict, Verdict::Growing, "{name}");
        assert!(judgement.growth_bytes_per_s > Some(0.0), "{name}");
        assert!(judgement.growth_bytes_per_repetition.is_some(), "{name}");
    }
}

#[test]
fn what_is_none() {
    let cases: [(&str, Verdict, Evidence); 9] = [
        ("weights", Verdict::OneOff, kept(site(&levels(60, |_| 900 * MIB), 0, 0))),
        (
            "a model that is built for a tenth of the time",
            Verdict::OneOff,
            kept(site(&levels(60, |step| step.min(6) * 100 * MIB), 0, 10)),
        ),
        ("activations", Verdict::Transient, site(&levels(60, |_| 0), 500 * MIB, 10)),
        (
            "activations, in the midst of a step",
            Verdict::Transient,
            site(&levels(60, |step| step / 59 * 500 * MIB), 500 * MIB, 10),
        ),
        (
            "what an epoch collects, in the midst of one",
            Verdict::Transient,
            site(&levels(60, |step| step % 17 * 10 * MIB), 0, 10),
        ),
        (
            "a cache with a bound",
            Verdict::Steady,
            site(&levels(60, |step| step.min(25) * 10 * MIB), 0, 50),
        ),
        ("a queue", Verdict::Steady, site(&levels(60, |step| (3 + step % 2) * 64 * MIB), 0, 10)),
        ("a model built anew before the old one goes", Verdict::Steady, {
            site(&levels(60, |step| (1 + u64::from(step % 10 == 0)) * 300 * MIB), 0, 50)
        }),
        ("a bound that was reached late", Verdict::Steady, {
            site(&levels(60, |step| step.min(45) * 10 * MIB), 0, 50)
        }),
    ];
    for (name, expected, evidence) in cases {
        assert_eq!(verdict_of(&evidence), expected, "{name}");
        assert_eq!(judge(&evidence).growth_bytes_per_s, Some(0.0), "{name}");
    }
}

#[test]
fn too_little_is_known() {
    let fast = Evidence { age_ns: 9_000_000, span_ns: 1_000, ..site(&[0, 5 * MIB], 0, 1) };
    let judgement = judge(&fast);
    assert_eq!((judgement.verdict, judgement.confidence), (Verdict::Unknown, None));
    assert_eq!(judgement.growth_bytes_per_s, None);
    // Twenty layers within a moment.
    let layers = Evidence { span_ns: 50_000_000, ..site(&levels(20, |step| step * MIB), 0, 1) };
    assert_eq!(verdict_of(&kept(layers)), Verdict::OneOff);
    // Two hundred of a model's, one after the other.
    let model = Evidence { is_setup: true, ..site(&levels(60, |step| step * MIB), 0, 4) };
    assert_eq!(verdict_of(&kept(model)), Verdict::OneOff);
    // A model again and again, trained between.
    let models =
        Evidence { is_setup: true, ..site(&levels(60, |step| step / 8 * 100 * MIB), 0, 4) };
    assert_eq!(verdict_of(&models), Verdict::Growing);
}

#[test]
fn what_is_left_of_a_run() {
    let step = site(&levels(60, |step| step / 59 * 500 * MIB), 500 * MIB, 50);
    let over = judge(&Evidence { is_over: true, ..step });
    assert_eq!((over.verdict, over.is_leftover), (Verdict::Steady, true));
    assert_eq!(verdict_of(&site(&[0, 0], 9, 1)), Verdict::Transient, "nothing is left");
}

#[test]
fn a_pools_reserve() {
    let segments = site(&levels(60, |step| step * MIB), 0, 10);
    let pooled_bytes = segments.live_bytes;
    assert_eq!(verdict_of(&Evidence { pooled_bytes, ..segments }), Verdict::Cache);
}

#[test]
fn runs_of_a_cell() {
    let run = |live_bytes, peak_bytes| RunShare { live_bytes, peak_bytes };
    let (kept, freed) = (run(100, 100), run(0, 100));
    assert_eq!(growth_by_run(&[kept, kept, kept]), Some(100));
    assert_eq!(growth_by_run(&[kept, freed, kept, kept, kept]), Some(75));
    for runs in [
        &[] as &[RunShare],
        &[kept],
        &[kept, kept],
        &[freed, freed, freed, kept],
        &[kept, freed, freed, freed, kept],
        // A loss of the last step.
        &[run(5, 100), run(5, 100), run(5, 100)],
    ] {
        assert_eq!(growth_by_run(runs), None, "{runs:?}");
    }
}

proptest! {
    /// Whatever the history is: something is said, and what it says of growth is not more than is held.
    #[test]
    fn it_is_total(
        pieces in prop::collection::vec((0..1u64 << 40, 0..1u64 << 40), 0..=PIECES),
        numbers in prop::array::uniform6(0..1u64 << 40),
        flags: [bool; 3],
    ) {
        let [live_bytes, live_blocks, more_blocks, pooled_bytes, repetitions, span_ns] = numbers;
        let extent = |(low, more): (u64, u64)| Extent { low, high: low + more };
        let evidence = Evidence {
            timeline: Timeline { piece_ns: 1, pieces: pieces.into_iter().map(extent).collect() },
            live_bytes,
            live_blocks,
            total_blocks: live_blocks + more_blocks,
            pooled_bytes,
            repetitions,
            span_ns,
            age_ns: span_ns,
            is_over: flags[0],
            is_setup: flags[1],
            lossy: flags[2],
        };
        let judgement = judge(&evidence);
        let highest = evidence.timeline.pieces.iter().map(|piece| piece.high).max().unwrap_or(0);
        prop_assert!((0.0..=1.0).contains(&judgement.survival));
        prop_assert!(judgement.growth_bytes_per_repetition.unwrap_or(0) <= highest);
        prop_assert_eq!(
            judgement.growth_bytes_per_repetition.is_some(),
            judgement.verdict == Verdict::Growing
        );
        prop_assert_eq!(judgement.confidence.is_none(), judgement.verdict == Verdict::Unknown);
    }

    /// What always comes back to nothing within a third of the time never grows.
    #[test]
    fn what_comes_back_does_not_grow(
        heights in prop::collection::vec(1..1u64 << 40, PIECES),
        period in 2..PIECES / 3,
    ) {
        let level = |(index, height): (usize, &u64)| if index % period == 0 { 0 } else { *height };
        let levels: Vec<u64> = heights.iter().enumerate().map(level).collect();
        prop_assert_ne!(verdict_of(&site(&levels, 0, 10)), Verdict::Growing);
    }
}
