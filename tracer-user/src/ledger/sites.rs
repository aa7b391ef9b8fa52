//! Call sites and their totals.

use std::collections::HashSet;

use rustc_hash::{FxBuildHasher, FxHashMap};

use super::{activity::Activity, fresh::Fresh, history::History};
use crate::model::{Device, Level, StackIndex};

/// What makes a call site: one stack, at one level, on one device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SiteKey {
    /// Where it is counted.
    pub level: Level,
    /// The device, if known.
    pub device: Option<Device>,
    /// The stack.
    pub stack: StackIndex,
}

/// Totals of a call site, in bytes, blocks and nanoseconds of `CLOCK_MONOTONIC`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SiteTotals {
    /// Bytes allocated and not freed.
    pub live_bytes: u64,
    /// Blocks allocated and not freed.
    pub live_blocks: u64,
    /// Bytes ever allocated.
    pub total_bytes: u64,
    /// Blocks ever allocated.
    pub total_blocks: u64,
    /// Of `live_bytes`, those that were asked for, where known.
    requested_bytes: u64,
    /// Live blocks of which that is not known.
    unknown_requests: u64,
    /// Of `live_bytes`, those out of which a pool cuts its blocks: they are held by the pool's sites.
    pub pooled_bytes: u64,
    /// The same of `total_bytes`.
    pub pooled_total_bytes: u64,
    /// Highest `live_bytes` before the last change; see [`SiteTotals::peak_bytes`].
    earlier_peak: u64,
    /// Time of the first allocation.
    pub first_ns: u64,
    /// Time of the last allocation.
    pub last_ns: u64,
}

impl SiteTotals {
    /// Highest `live_bytes`.
    pub fn peak_bytes(&self) -> u64 {
        self.earlier_peak.max(self.live_bytes)
    }

    /// Bytes asked for in the live blocks; `None` if not known of all.
    pub fn requested_bytes(&self) -> Option<u64> {
        (self.unknown_requests == 0).then_some(self.requested_bytes)
    }

    fn add_request(&mut self, requested: Option<u64>) {
        match requested {
            Some(bytes) => self.requested_bytes = self.requested_bytes.saturating_add(bytes),
            None => self.unknown_requests += 1,
        }
    }

    fn remove_request(&mut self, requested: Option<u64>) {
        match requested {
            Some(bytes) => self.requested_bytes = self.requested_bytes.saturating_sub(bytes),
            None => self.unknown_requests = self.unknown_requests.saturating_sub(1),
        }
    }

    /// Adds the totals of another site that turned out to be the same one. Its peak is then a lower
    /// bound: the two peaks may not have been at one time.
    pub fn merge(&mut self, other: &Self) {
        let peak = self.peak_bytes().max(other.peak_bytes());
        let first = match (self.total_blocks, other.total_blocks) {
            (0, _) => other.first_ns,
            (_, 0) => self.first_ns,
            _ => self.first_ns.min(other.first_ns),
        };
        *self = Self {
            live_bytes: self.live_bytes.saturating_add(other.live_bytes),
            live_blocks: self.live_blocks + other.live_blocks,
            total_bytes: self.total_bytes.saturating_add(other.total_bytes),
            total_blocks: self.total_blocks + other.total_blocks,
            requested_bytes: self.requested_bytes.saturating_add(other.requested_bytes),
            unknown_requests: self.unknown_requests + other.unknown_requests,
            pooled_bytes: self.pooled_bytes.saturating_add(other.pooled_bytes),
            pooled_total_bytes: self.pooled_total_bytes.saturating_add(other.pooled_total_bytes),
            earlier_peak: peak,
            first_ns: first,
            last_ns: self.last_ns.max(other.last_ns),
        };
    }
}

/// Sites that are kept apart although they hold nothing any more.
const MAX_EMPTY: usize = 8 * 1024;

/// A site, and how it came to be what it is.
#[derive(Debug)]
struct Entry {
    totals: SiteTotals,
    history: History,
}

impl Entry {
    fn note(&mut self, activity: &Activity) {
        self.history.note(self.totals.live_bytes, activity);
    }
}

/// Every site of a process.
#[derive(Debug, Default)]
pub struct Sites {
    all: FxHashMap<SiteKey, Entry>,
    activity: Activity,
    /// Those that held nothing when this was last looked at: by then no free of theirs can be taken back.
    empty: HashSet<SiteKey, FxBuildHasher>,
    /// Those that are new.
    pub(super) fresh: Fresh,
}

impl Sites {
    pub(super) fn get(&self, key: &SiteKey) -> Option<&SiteTotals> {
        self.all.get(key).map(|entry| &entry.totals)
    }

    /// In no particular order.
    pub fn iter(&self) -> impl Iterator<Item = (&SiteKey, &SiteTotals)> {
        self.all.iter().map(|(key, entry)| (key, &entry.totals))
    }

    /// The same, with what happened at them.
    pub fn histories(&self) -> impl Iterator<Item = (&SiteKey, &SiteTotals, &History)> {
        self.all.iter().map(|(key, entry)| (key, &entry.totals, &entry.history))
    }

    /// What the process has done.
    pub fn activity(&self) -> &Activity {
        &self.activity
    }

    /// Something has happened, whether or not to a site.
    pub(super) fn note_time(&mut self, time_ns: u64) {
        self.activity.note(time_ns);
    }

    /// Another run of a cell begins.
    pub(super) fn note_phase(&mut self) {
        self.activity.note_phase();
    }

    /// Adds sites that have held nothing for a while to those of `others`, from too many on: half of them,
    /// those that allocated last longest ago. Each is told to `forget` before.
    pub(super) fn tidy(
        &mut self,
        others: StackIndex,
        mut forget: impl FnMut(&SiteKey, &SiteTotals),
    ) {
        let is_empty = |site: &SiteTotals| site.live_blocks == 0 && site.live_bytes == 0;
        let empty =
            self.all.iter().filter(|(key, entry)| is_empty(&entry.totals) && key.stack != others);
        let mut old: Vec<(u64, SiteKey)> =
            empty.map(|(key, entry)| (entry.totals.last_ns, *key)).collect();
        let before = std::mem::take(&mut self.empty);
        self.empty.extend(old.iter().map(|(_, key)| *key));
        old.retain(|(_, key)| before.contains(key));
        if old.len() <= MAX_EMPTY {
            return;
        }
        old.sort_unstable();
        for (_, key) in &old[..old.len() - MAX_EMPTY / 2] {
            if let Some(site) = self.all.remove(key) {
                forget(key, &site.totals);
                let key = SiteKey { stack: others, ..*key };
                entry(&mut self.all, key, &self.activity).totals.merge(&site.totals);
            }
        }
    }

    pub(super) fn alloc(&mut self, key: SiteKey, size: u64, requested: Option<u64>, time_ns: u64) {
        let entry = entry(&mut self.all, key, &self.activity);
        let site = &mut entry.totals;
        site.earlier_peak = site.peak_bytes();
        if site.total_blocks == 0 {
            site.first_ns = time_ns;
            self.fresh.note(key);
        }
        site.last_ns = time_ns;
        site.live_bytes = site.live_bytes.saturating_add(size);
        site.live_blocks += 1;
        site.total_bytes = site.total_bytes.saturating_add(size);
        site.total_blocks += 1;
        site.add_request(requested);
        entry.history.note_alloc(&self.activity);
        entry.note(&self.activity);
    }

    pub(super) fn free(&mut self, key: &SiteKey, size: u64, requested: Option<u64>) {
        self.activity.note_free();
        if let Some(entry) = self.all.get_mut(key) {
            let site = &mut entry.totals;
            site.earlier_peak = site.peak_bytes();
            site.live_bytes = site.live_bytes.saturating_sub(size);
            site.live_blocks = site.live_blocks.saturating_sub(1);
            site.remove_request(requested);
            entry.note(&self.activity);
        }
    }

    /// Changes how much of a site is a pool's.
    pub(super) fn pool(&mut self, key: &SiteKey, size: u64, is_pooled: bool) {
        if let Some(site) = self.all.get_mut(key).map(|entry| &mut entry.totals) {
            site.pooled_bytes = if is_pooled {
                site.pooled_bytes.saturating_add(size)
            } else {
                site.pooled_bytes.saturating_sub(size)
            };
        }
    }

    /// A pool cuts its blocks out of this much of a site from now on.
    pub(super) fn claim(&mut self, key: &SiteKey, size: u64) {
        self.pool(key, size, true);
        if let Some(site) = self.all.get_mut(key).map(|entry| &mut entry.totals) {
            site.pooled_total_bytes = site.pooled_total_bytes.saturating_add(size);
        }
    }

    /// Takes a free back.
    pub(super) fn restore(&mut self, key: &SiteKey, size: u64, requested: Option<u64>) {
        if let Some(entry) = self.all.get_mut(key) {
            let site = &mut entry.totals;
            site.live_bytes = site.live_bytes.saturating_add(size);
            site.live_blocks += 1;
            site.add_request(requested);
            entry.note(&self.activity);
        }
    }

    /// A block that has just been allocated belongs to another site after all: it leaves no trace at
    /// the first.
    pub(super) fn move_block(&mut self, from: &SiteKey, to: SiteKey, size: u64, time_ns: u64) {
        let Some(entry) = self.all.get_mut(from) else { return };
        let site = &mut entry.totals;
        site.live_bytes = site.live_bytes.saturating_sub(size);
        site.live_blocks = site.live_blocks.saturating_sub(1);
        site.total_bytes = site.total_bytes.saturating_sub(size);
        site.total_blocks = site.total_blocks.saturating_sub(1);
        site.remove_request(Some(size));
        entry.note(&self.activity);
        if entry.totals.total_blocks == 0 {
            self.all.remove(from);
        }
        self.alloc(to, size, Some(size), time_ns);
    }
}

fn entry<'a>(
    all: &'a mut FxHashMap<SiteKey, Entry>,
    key: SiteKey,
    activity: &Activity,
) -> &'a mut Entry {
    let new = || Entry { totals: SiteTotals::default(), history: History::new(activity) };
    all.entry(key).or_insert_with(new)
}
