//! How the totals of pools change.

use super::{Ledger, Pool};
use crate::model::Device;

/// By how much the blocks of pools have become more, by device; `None` where no pool can tell.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PoolChange(Vec<(Device, Option<i64>)>);

impl PoolChange {
    /// What has been added to `earlier`.
    pub fn since(&self, earlier: &Self) -> Self {
        let by_device = self.0.iter().map(|&(device, now)| {
            let then = earlier.get(device);
            (device, now.zip(then).map(|(now, then)| now.saturating_sub(then)))
        });
        Self(by_device.filter(|(_, bytes)| *bytes != Some(0)).collect())
    }

    /// Adds another one.
    pub fn add(&mut self, other: &Self) {
        for &(device, bytes) in &other.0 {
            let sum = |known: Option<i64>| Some(known?.saturating_add(bytes?));
            match self.0.iter_mut().find(|(known, _)| *known == device) {
                Some((_, known)) => *known = sum(*known),
                None => self.0.push((device, bytes)),
            }
        }
    }

    /// Of every device; of one that is not named nothing has changed.
    pub fn devices(&self) -> impl Iterator<Item = (Device, Option<i64>)> {
        self.0.iter().copied()
    }

    /// Of all devices together.
    pub fn total(&self) -> Option<i64> {
        self.0.iter().try_fold(0i64, |sum, (_, bytes)| Some(sum.saturating_add((*bytes)?)))
    }

    fn get(&self, device: Device) -> Option<i64> {
        self.0.iter().find(|(known, _)| *known == device).map_or(Some(0), |(_, bytes)| *bytes)
    }
}

impl Ledger {
    /// Since pools were first heard of. What they had then has not changed before: every change of theirs
    /// is told.
    pub fn change(&self) -> PoolChange {
        let mut change = PoolChange::default();
        for (_, pool) in self.pools.seen() {
            if let Some(device) = pool.device {
                let bytes = (!pool.is_late).then(|| pool.change());
                change.add(&PoolChange(vec![(device, bytes)]));
            }
        }
        change
    }
}

impl Pool {
    fn change(&self) -> i64 {
        let change = i128::from(self.allocated()) - i128::from(self.first_allocated());
        i64::try_from(change).unwrap_or(if change < 0 { i64::MIN } else { i64::MAX })
    }
}
