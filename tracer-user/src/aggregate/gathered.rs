//! Everything of a site in a report, which may be several of the ledger's.

use std::{
    collections::{BTreeSet, hash_map::Entry},
    sync::Arc,
};

use crate::ledger::{Ages, History, SiteTotals};

/// What was found of a site.
#[derive(Debug)]
pub(super) struct Gathered {
    pub(super) totals: SiteTotals,
    pub(super) history: History,
    pub(super) ages: Ages,
    /// Functions of its caller.
    pub(super) functions: BTreeSet<Arc<str>>,
}

impl Gathered {
    pub(super) fn new(totals: &SiteTotals, history: &History, ages: Option<&Ages>) -> Self {
        let (history, ages) = (history.clone(), ages.cloned().unwrap_or_default());
        Self { totals: *totals, history, ages, functions: BTreeSet::new() }
    }

    pub(super) fn merge(&mut self, other: Self) {
        self.totals.merge(&other.totals);
        self.history.merge(&other.history);
        self.ages.merge(&other.ages);
        self.functions.extend(other.functions);
    }

    /// Adds it to what is there.
    pub(super) fn add_to<K>(self, entry: Entry<'_, K, Self>) {
        match entry {
            Entry::Occupied(mut entry) => entry.get_mut().merge(self),
            Entry::Vacant(entry) => {
                entry.insert(self);
            }
        }
    }
}
