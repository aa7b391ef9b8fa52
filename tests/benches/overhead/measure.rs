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
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

impl Measure {
    /// From the rounds, in order, and those of the empty probe.
    pub fn of_rounds(name: &'static str, unit: &'static str, rounds: &[f64], empty: &[f64]) -> Self {
        let ratios: Vec<f64> = rounds.iter().zip(empty).map(|(round, empty)| round / empty).collect();
        Self {
            name,
            median: median(rounds),
            unit,
            ratio_to_empty_uprobe: median(&ratios),
            reason: None,
        }
    }

    /// One that could not be taken.
    pub fn missing(name: &'static str, unit: &'static str, reason: impl ToString) -> Self {
        let reason = Some(reason.to_string());
        Self { name, median: None, unit, ratio_to_empty_uprobe: None, reason }
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
