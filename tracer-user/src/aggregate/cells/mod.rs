//! What runs of notebook cells allocate, free and leave. Pure.
//!
//! By stack: an allocation is the run's whose code is outermost on its stack, whenever it is freed. The
//! ledger's call sites have that already; what is kept here is of sites that the ledger forgets. By time:
//! what the pools' totals change by from the begin of a run to that of the next one, which is what the
//! notebook itself measures.

mod listing;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use rustc_hash::{FxHashMap, FxHashSet};

pub(super) use self::listing::Listing;
use crate::{
    ledger::{Ledger, PoolChange, SiteKey, SiteTotals},
    model::CellFile,
    naming::{Naming, Piece, RunFacts, RunId},
};

/// Sums over runs.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Sums {
    runs: u64,
    allocated: u64,
    freed: u64,
    /// Of these, after the next run had begun.
    freed_later: Option<u64>,
    change: Option<PoolChange>,
}

impl Default for Sums {
    fn default() -> Self {
        let change = Some(PoolChange::default());
        Self { runs: 0, allocated: 0, freed: 0, freed_later: Some(0), change }
    }
}

impl Sums {
    fn add(&mut self, other: &Self) {
        self.runs += other.runs;
        self.allocated = self.allocated.saturating_add(other.allocated);
        self.freed = self.freed.saturating_add(other.freed);
        let later = self.freed_later.zip(other.freed_later);
        self.freed_later = later.map(|(a, b)| a.saturating_add(b));
        add_change(&mut self.change, other.change.as_ref());
    }
}

/// The sum is known if both are.
fn add_change(sum: &mut Option<PoolChange>, change: Option<&PoolChange>) {
    match (sum.as_mut(), change) {
        (Some(known), Some(change)) => known.add(change),
        _ => *sum = None,
    }
}

/// What is noted of a run.
#[derive(Clone, Debug)]
struct Noted {
    /// What the code of its cell is called.
    file: Arc<str>,
    /// Place of the cell in the order of first sight.
    seen: u32,
    /// Its place in the order in which runs were noted.
    order: u64,
    /// When it began, in nanoseconds of `CLOCK_MONOTONIC`, if that was seen.
    began_ns: Option<u64>,
    /// What has changed until the run was over, or last another one began.
    change: Option<PoolChange>,
    /// Bytes of its allocations that were freed when it was over; `None` also while it is not.
    freed_at_end: Option<u64>,
    /// Whether others have run in the middle of it: what was freed at its end is not known then.
    is_resumed: bool,
    /// Bytes allocated and freed at call sites that the ledger has forgotten.
    forgotten: u64,
}

impl Noted {
    /// One whose begin was not seen.
    fn new(facts: &RunFacts, order: u64) -> Self {
        Self {
            file: facts.file.clone(),
            seen: facts.seen,
            order,
            began_ns: None,
            change: None,
            freed_at_end: None,
            is_resumed: false,
            forgotten: 0,
        }
    }

    /// Takes over what is noted of a run that is a part of the same.
    fn merge(&mut self, other: &Self) {
        if other.order < self.order {
            self.file = other.file.clone();
            self.seen = other.seen;
            self.order = other.order;
            self.began_ns = other.began_ns;
        }
        add_change(&mut self.change, other.change.as_ref());
        let freed = self.freed_at_end.zip(other.freed_at_end);
        self.freed_at_end = freed.map(|(a, b)| a.saturating_add(b));
        self.is_resumed |= other.is_resumed;
        self.forgotten = self.forgotten.saturating_add(other.forgotten);
    }
}

/// The run that began last.
#[derive(Debug)]
struct Current {
    /// `None`: it cannot be named any more.
    run: Option<RunId>,
    /// Of the pools, when it began.
    base: PoolChange,
}

/// The runs of a process's cells. As many as naming knows.
#[derive(Debug, Default)]
pub(super) struct Cells {
    runs: FxHashMap<RunId, Noted>,
    noted: u64,
    current: Option<Current>,
    /// Runs that naming has forgotten, by cell, as long as others of the cell are known.
    earlier: FxHashMap<Box<str>, Sums>,
    /// Those of which no other is.
    unlisted: Sums,
}

impl Cells {
    /// IPython begins to run a piece of a cell.
    pub fn begin(&mut self, piece: Piece, time_ns: u64, ledger: &mut Ledger, naming: &Naming) {
        let (run, is_new) = match piece {
            Piece::Of { run, is_new } => (run, is_new),
            Piece::Nobodys => return,
            // Whose it is: it may have been another run's.
            Piece::Unknown => return self.note_gap(),
        };
        if self.current.as_ref().is_some_and(|current| current.run == Some(run)) {
            return;
        }
        let Some(facts) = naming.run(run) else { return };
        let now = ledger.change();
        ledger.note_phase();
        self.end_current(&now, ledger, naming);
        let noted = self.noted(run, &facts);
        if is_new {
            noted.began_ns = Some(time_ns);
            noted.change = Some(PoolChange::default());
        } else {
            noted.is_resumed = true;
            noted.freed_at_end = None;
        }
        self.current = Some(Current { run: Some(run), base: now });
    }

    /// Records were dropped: another run may have begun.
    pub fn note_gap(&mut self) {
        let Some(current) = self.current.take() else { return };
        match current.run.and_then(|run| self.runs.get_mut(&run)) {
            Some(noted) => {
                noted.change = None;
                noted.is_resumed = true;
            }
            None => self.unlisted.change = None,
        }
    }

    /// The ledger is about to forget a call site that holds nothing.
    pub fn forget_site(&mut self, key: &SiteKey, site: &SiteTotals, naming: &Naming) {
        let Some(run) = naming.run_of(key.stack) else { return };
        let Some(facts) = naming.run(run) else { return };
        let (allocated, _) = bytes(key, site);
        let noted = self.noted(run, &facts);
        noted.forgotten = noted.forgotten.saturating_add(allocated);
    }

    /// The runs that are noted, each with its parts.
    pub fn executions(&self, naming: &Naming) -> Vec<Vec<RunId>> {
        listing::executions(&self.runs, &FxHashSet::default(), naming)
    }

    /// Naming has forgotten runs: nothing of them is left, nor can anything come, and their ids will be
    /// those of others. `executions` is from before.
    pub fn forget_runs(&mut self, gone: &FxHashSet<RunId>, executions: Vec<Vec<RunId>>) {
        if !self.runs.keys().any(|run| gone.contains(run)) {
            return;
        }
        if let Some(current) = &mut self.current {
            current.run = current.run.filter(|run| !gone.contains(run));
        }
        for parts in executions {
            let (lost, left): (Vec<RunId>, Vec<RunId>) =
                parts.iter().partition(|run| gone.contains(run));
            let mut lost = lost.iter().filter_map(|run| self.runs.remove(run));
            let Some(mut noted) = lost.next() else { continue };
            lost.for_each(|other| noted.merge(&other));
            match left.first().and_then(|run| self.runs.get_mut(run)) {
                Some(part) => part.merge(&noted),
                None => self.earlier.entry(identity(&noted.file).into()).or_default().add(&Sums {
                    runs: 1,
                    allocated: noted.forgotten,
                    freed: noted.forgotten,
                    freed_later: noted
                        .freed_at_end
                        .map(|bytes| noted.forgotten.saturating_sub(bytes)),
                    change: noted.change,
                }),
            }
        }
        let known: FxHashSet<&str> =
            self.runs.values().map(|noted| identity(&noted.file)).collect();
        let unlisted = &mut self.unlisted;
        self.earlier.retain(|cell, sums| {
            let is_known = known.contains(&**cell);
            if !is_known {
                unlisted.add(sums);
            }
            is_known
        });
    }

    fn noted(&mut self, run: RunId, facts: &RunFacts) -> &mut Noted {
        let order = self.noted;
        self.noted += 1;
        self.runs.entry(run).or_insert_with(|| Noted::new(facts, order))
    }

    /// Another run begins.
    fn end_current(&mut self, now: &PoolChange, ledger: &mut Ledger, naming: &Naming) {
        let fresh = ledger.take_fresh();
        let Some(current) = self.current.take() else { return };
        let change = now.since(&current.base);
        let Some((run, noted)) = current.run.and_then(|run| Some((run, self.runs.get_mut(&run)?)))
        else {
            add_change(&mut self.unlisted.change, Some(&change));
            return;
        };
        add_change(&mut noted.change, Some(&change));
        let freed = |key: &SiteKey| {
            let site = ledger.site(key).filter(|_| naming.run_of(key.stack) == Some(run))?;
            let (allocated, left) = bytes(key, site);
            Some(allocated.saturating_sub(left))
        };
        let fresh = fresh.filter(|_| !noted.is_resumed && noted.began_ns.is_some());
        noted.freed_at_end = fresh
            .map(|keys| keys.iter().filter_map(freed).fold(noted.forgotten, u64::saturating_add));
    }

    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.runs.len() + self.earlier.len()
    }
}

/// Device memory that a call site has allocated, and what is left of it; without what a pool hands out in
/// blocks, which are the pool's sites'.
fn bytes(key: &SiteKey, site: &SiteTotals) -> (u64, u64) {
    if key.level.is_host(key.device) {
        return (0, 0);
    }
    (
        site.total_bytes.saturating_sub(site.pooled_total_bytes),
        site.live_bytes.saturating_sub(site.pooled_bytes),
    )
}

/// What runs of the same cell have in common: the name of its code, which is a hash of the text, or the
/// part of it that is.
fn identity(file: &str) -> &str {
    match CellFile::of(file) {
        Some(CellFile::Numbered { digest: Some(digest), .. }) => digest,
        _ => file,
    }
}
