//! The list of cells in a snapshot.

use std::collections::BTreeMap;

use rustc_hash::{FxHashMap, FxHashSet};

use super::{Cells, Noted, Sums, bytes, identity};
use crate::{
    ledger::{Ledger, PoolChange},
    model::{Cell, DeviceChange, Execution, UnlistedCells},
    naming::{Naming, RunFacts, RunId},
};

/// Runs of a cell that are listed one by one, the last ones.
const MAX_EXECUTIONS: usize = 64;

/// Characters of a cell's first line.
const MAX_SOURCE: usize = 200;

/// What a snapshot says of cells.
#[derive(Debug)]
pub(in crate::aggregate) struct Listing {
    pub cells: Vec<Cell>,
    pub unlisted: UnlistedCells,
}

/// Of the call sites of a run: bytes allocated, and left.
type Held = FxHashMap<RunId, (u64, u64)>;

/// One cell while it is put together.
#[derive(Default)]
struct Found<'a> {
    /// Of its last run that has a number, or of its last one.
    facts: Option<RunFacts>,
    /// Its runs.
    executions: Vec<(Execution, Sums)>,
    earlier: Option<&'a Sums>,
}

impl Cells {
    /// All cells that are known to have run.
    pub fn list(&self, ledger: &Ledger, naming: &Naming, seconds: &dyn Fn(u64) -> f64) -> Listing {
        let held = held(ledger, naming);
        let now = ledger.change();
        let mut cells: Vec<Found<'_>> = Vec::new();
        let mut by_identity: FxHashMap<String, usize> = FxHashMap::default();
        let others: FxHashSet<RunId> = held.keys().copied().collect();
        for parts in executions(&self.runs, &others, naming) {
            let Some(noted) = self.merged(&parts, &now, naming) else { continue };
            let Some(facts) = parts.first().and_then(|&run| naming.run(run)) else { continue };
            let key = identity(&noted.file);
            let index = *by_identity.entry(key.to_owned()).or_insert_with(|| {
                cells.push(Found { earlier: self.earlier.get(key), ..Found::default() });
                cells.len() - 1
            });
            let is_current = parts.iter().any(|&run| self.is_current(run));
            let found = &mut cells[index];
            found.executions.push(execution(&noted, &facts, &parts, &held, is_current, seconds));
            let facts = RunFacts { file: noted.file, seen: noted.seen, ..facts };
            if facts.cell.is_some() || found.facts.as_ref().is_none_or(|known| known.cell.is_none())
            {
                found.facts = Some(facts);
            }
        }
        let mut unlisted = self.unlisted.clone();
        if let Some(current) = self.current.as_ref().filter(|current| current.run.is_none()) {
            super::add_change(&mut unlisted.change, Some(&now.since(&current.base)));
        }
        Listing {
            cells: cells.into_iter().filter_map(cell).collect(),
            unlisted: UnlistedCells {
                runs: unlisted.runs,
                allocated_bytes: unlisted.allocated,
                change_bytes: unlisted.change.and_then(|change| change.total()),
            },
        }
    }

    fn is_current(&self, run: RunId) -> bool {
        self.current.as_ref().is_some_and(|current| current.run == Some(run))
    }

    /// What is noted of a run's parts, until now.
    fn merged(&self, parts: &[RunId], now: &PoolChange, naming: &Naming) -> Option<Noted> {
        let noted = |&run: &RunId| {
            let mut noted = match self.runs.get(&run) {
                Some(noted) => noted.clone(),
                None => Noted::new(&naming.run(run)?, 0),
            };
            if let Some(current) = self.current.as_ref().filter(|_| self.is_current(run)) {
                super::add_change(&mut noted.change, Some(&now.since(&current.base)));
            }
            Some(noted)
        };
        let mut all = parts.iter().filter_map(noted);
        let mut first = all.next()?;
        all.for_each(|other| first.merge(&other));
        Some(first)
    }
}

/// By run, over all call sites.
fn held(ledger: &Ledger, naming: &Naming) -> Held {
    let mut held = Held::default();
    for (key, site) in ledger.sites() {
        let (allocated, left) = bytes(key, site);
        if let Some(run) = naming.run_of(key.stack).filter(|_| allocated > 0) {
            let sum = held.entry(run).or_default();
            *sum = (sum.0.saturating_add(allocated), sum.1.saturating_add(left));
        }
    }
    held
}

/// Runs in the order in which they began, those first whose begin was not seen. What is told apart while it
/// is captured may be parts of one run: statements of one line, and what the cell magic at its top runs.
pub(super) fn executions(
    noted: &FxHashMap<RunId, Noted>,
    others: &FxHashSet<RunId>,
    naming: &Naming,
) -> Vec<Vec<RunId>> {
    // Began or not, order, first sight.
    let mut runs: BTreeMap<(bool, u64, u32, RunId), RunFacts> = BTreeMap::new();
    let all: FxHashSet<RunId> = noted.keys().chain(others).copied().collect();
    for run in all {
        let known = noted.get(&run);
        if let Some(facts) = naming.run(run) {
            let is_begun = known.is_some_and(|noted| noted.began_ns.is_some());
            let order = known.filter(|_| is_begun).map_or(0, |noted| noted.order);
            runs.insert((is_begun, order, facts.seen, run), facts);
        }
    }
    let mut groups: Vec<Vec<RunId>> = Vec::new();
    let mut last: Option<RunFacts> = None;
    for ((is_begun, .., run), facts) in runs {
        let is_same = |last: &RunFacts| {
            facts.cell.is_some()
                && facts.cell == last.cell
                && (facts.is_body || facts.file == last.file)
        };
        match groups.last_mut().filter(|_| is_begun && last.as_ref().is_some_and(is_same)) {
            Some(group) => group.push(run),
            None => {
                groups.push(vec![run]);
                last = is_begun.then_some(facts);
            }
        }
    }
    groups
}

fn execution(
    noted: &Noted,
    facts: &RunFacts,
    parts: &[RunId],
    held: &Held,
    is_current: bool,
    seconds: &dyn Fn(u64) -> f64,
) -> (Execution, Sums) {
    let sum = |sums: (u64, u64), run: &RunId| {
        let (allocated, left) = held.get(run).copied().unwrap_or_default();
        (sums.0.saturating_add(allocated), sums.1.saturating_add(left))
    };
    let (allocated, left) = parts.iter().fold((noted.forgotten, 0), sum);
    let freed = allocated.saturating_sub(left);
    let is_open = is_current && noted.began_ns.is_some() && !noted.is_resumed;
    let freed_later = match noted.freed_at_end {
        // Nothing comes after it.
        _ if is_open => Some(0),
        at_end => at_end.map(|at_end| freed.saturating_sub(at_end)),
    };
    let change = noted.change.clone();
    let devices = change.iter().flat_map(PoolChange::devices);
    let execution = Execution {
        cell: facts.cell,
        started_s: noted.began_ns.map(seconds),
        allocated_bytes: allocated,
        freed_bytes: freed,
        freed_later_bytes: freed_later,
        left_bytes: left,
        change_bytes: change.as_ref().and_then(PoolChange::total),
        devices: devices
            .map(|(index, change_bytes)| DeviceChange { index, change_bytes })
            .collect(),
    };
    (execution, Sums { runs: 1, allocated, freed, freed_later, change })
}

fn cell(found: Found<'_>) -> Option<Cell> {
    let facts = found.facts?;
    let mut sums = found.earlier.cloned().unwrap_or_default();
    found.executions.iter().for_each(|(_, execution)| sums.add(execution));
    let over = found.executions.len().saturating_sub(MAX_EXECUTIONS);
    let executions: Vec<Execution> =
        found.executions.into_iter().skip(over).map(|(execution, _)| execution).collect();
    let source = facts.source.map(|line| line.chars().take(MAX_SOURCE).collect());
    Some(Cell {
        cell: facts.cell,
        cell_seen: facts.cell.is_none().then_some(facts.seen),
        file: facts.file.to_string(),
        source,
        runs: sums.runs,
        allocated_bytes: sums.allocated,
        freed_bytes: sums.freed,
        freed_later_bytes: sums.freed_later,
        left_bytes: sums.allocated.saturating_sub(sums.freed),
        change_bytes: sums.change.and_then(|change| change.total()),
        again_bytes: again(sums.runs, &executions),
        executions,
    })
}

/// What a further run leaves: the lower median, over those that are listed, of what it has added to the
/// pools' totals as far as it is left. So what a further run replaces, or another cell frees, is not counted.
fn again(runs: u64, executions: &[Execution]) -> Option<u64> {
    let is_first_listed = runs == executions.len() as u64;
    let further = executions.iter().skip(usize::from(is_first_listed));
    let mut left: Vec<u64> = further
        .filter_map(|run| Some(run.left_bytes.min(u64::try_from(run.change_bytes?).unwrap_or(0))))
        .collect();
    left.sort_unstable();
    left.get(left.len().checked_sub(1)? / 2).copied()
}
