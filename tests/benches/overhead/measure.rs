//! A measure, and how several rounds become one.

use serde::Serialize;

/// One line of `bench.json`.
#[derive(Clone, Debug, Serialize)]
pub struct Measure {
    /// What was measured.
    pub name: &'static str,
    /// The median of the rounds; `None` if it could not be taken.
    pub median: Option<f64>,
    /// Of what.
    pub unit: &'static str,
    /// The median of what each round's is to that round's empty probe, where that makes sense.
    pub ratio_to_empty_uprobe: Option<f64>,
    /// Why it could not be taken, or what has to be known about it.
    pub reason: Option<String>,
}

impl Measure {
    /// Nanoseconds of several rounds, in order, and those of the empty probe.
    pub fn of_rounds(name: &'static str, rounds: &[f64], empty: &[f64]) -> Self {
        let ratios: Vec<f64> =
            rounds.iter().zip(empty).map(|(round, empty)| round / empty).collect();
        Self { ratio_to_empty_uprobe: median(&ratios), ..Self::of(name, rounds, "ns") }
    }

    /// Several rounds of something else.
    pub fn of(name: &'static str, rounds: &[f64], unit: &'static str) -> Self {
        let median = median(rounds);
        Self { name, median, unit, ratio_to_empty_uprobe: None, reason: None }
    }

    /// One figure.
    pub fn plain(name: &'static str, value: f64, unit: &'static str) -> Self {
        Self::of(name, &[value], unit)
    }

    /// One that could not be taken.
    pub fn missing(name: &'static str, unit: &'static str, reason: impl ToString) -> Self {
        Self::of(name, &[], unit).noting(reason)
    }

    /// With what has to be known about it.
    pub fn noting(self, note: impl ToString) -> Self {
        Self { reason: Some(note.to_string()), ..self }
    }
}

/// The middle one, or the mean of the two in the middle.
pub fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    match sorted.len() {
        0 => None,
        length if length % 2 == 1 => sorted.get(middle).copied(),
        _ => Some((sorted[middle - 1] + sorted[middle]) / 2.0),
    }
}
