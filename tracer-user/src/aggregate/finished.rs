//! Processes that have ended, within bounds. Pure.

use std::collections::VecDeque;

use super::Process;
use crate::{
    ledger::{Accuracy, Ledger},
    model::{Finished, Level, Pid, ProcessState},
};

/// Children that have ended and are still listed one by one.
const LISTED_CHILDREN: usize = 64;

/// A process that has ended.
#[derive(Debug)]
pub(super) struct Ended {
    pub pid: Pid,
    pub process: Process,
    pub state: ProcessState,
    /// How it ended, if known.
    pub exit: Option<String>,
}

/// All that have ended. Those that were asked for by name stay; of children only the last that
/// allocated, so that any number of them needs the same memory.
#[derive(Debug, Default)]
pub(super) struct Ends {
    asked_for: Vec<Ended>,
    children: VecDeque<Ended>,
    totals: Finished,
    /// What kept the unlisted ones from being exact.
    unlisted: Accuracy,
}

impl Ends {
    pub fn add(&mut self, ended: Ended) {
        if ended.process.facts.parent.is_none() {
            self.asked_for.push(ended);
            return;
        }
        self.totals.children += 1;
        if ended.process.events == 0 {
            self.fold(&ended.process.ledger);
            return;
        }
        if self.children.len() == LISTED_CHILDREN
            && let Some(oldest) = self.children.pop_front()
        {
            self.fold(&oldest.process.ledger);
        }
        self.children.push_back(ended);
    }

    /// Counts what is not listed any more.
    fn fold(&mut self, ledger: &Ledger) {
        let totals = &mut self.totals;
        totals.unlisted += 1;
        for (_, site) in ledger.sites().filter(|(key, _)| key.level == Level::Driver) {
            totals.unlisted_total_bytes =
                totals.unlisted_total_bytes.saturating_add(site.total_bytes);
            totals.unlisted_total_blocks += site.total_blocks;
            totals.unlisted_held_bytes = totals.unlisted_held_bytes.saturating_add(site.live_bytes);
        }
        let accuracy = ledger.accuracy();
        self.unlisted.unmatched_frees += accuracy.unmatched_frees;
        self.unlisted.mismatches += accuracy.mismatches;
    }

    /// Those that are listed.
    pub fn iter(&self) -> impl Iterator<Item = &Ended> {
        self.asked_for.iter().chain(&self.children)
    }

    /// The same.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut Ended> {
        self.asked_for.iter_mut().chain(&mut self.children)
    }

    pub fn totals(&self) -> Finished {
        self.totals
    }

    pub fn unlisted_accuracy(&self) -> Accuracy {
        self.unlisted
    }
}
