//! Growth from run to run of a cell.

/// Runs that have to leave something.
const MIN_RUNS: usize = 3;

/// Of all runs, the part that has to leave something.
const MOST: f64 = 2.0 / 3.0;

/// Of what a run held at its peak, the part that counts as left.
const LEFT: f64 = 0.1;

/// What one run of a cell holds at a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunShare {
    /// Bytes that are live now.
    pub live_bytes: u64,
    /// The most that were live at a time.
    pub peak_bytes: u64,
}

/// Bytes by which a cell's line grows with every run, by all its runs in their order; `None` if it does not.
/// The last run does not count: its cell may be at work, and what it made is what the user has now.
pub fn growth_by_run(runs: &[RunShare]) -> Option<u64> {
    let (_, earlier) = runs.split_last()?;
    let is_left = |run: &&RunShare| {
        run.live_bytes > 0 && run.live_bytes as f64 >= run.peak_bytes as f64 * LEFT
    };
    let left: Vec<u64> = earlier.iter().filter(is_left).map(|run| run.live_bytes).collect();
    let enough = left.len() + 1 >= MIN_RUNS && left.len() as f64 >= earlier.len() as f64 * MOST;
    let sum = left.iter().fold(0, |sum: u64, bytes| sum.saturating_add(*bytes));
    enough.then(|| sum / earlier.len() as u64)
}
