//! Who holds what: two levels that reconcile. Pure.
//!
//! The driver level counts what `cuMemAlloc_v2` handed out; the pool level counts the blocks that a
//! pool cut out of it. They are never added up. A driver allocation belongs to a pool as soon as one
//! of the pool's blocks is seen inside it: it is then a *segment* of that pool, on the block's device.
//!
//! At every event that carries the pool's own totals,
//! `allocated = before attach + live + lost` is checked; the totals win.

mod driver;
mod failure;
mod pool;
mod sites;

use std::collections::BTreeMap;

use self::driver::Driver;
pub use self::{
    failure::{Failures, error_name},
    pool::Pool,
    sites::{SiteKey, SiteTotals, Sites},
};
use crate::model::{
    AllocatedReserved, AllocationEvent, Device, DeviceSnapshot, EventKind, Level, StackIndex,
};

/// The ledger of one process.
#[derive(Debug, Default)]
pub struct Ledger {
    driver: Driver,
    pools: BTreeMap<Device, Pool>,
    sites: Sites,
    failures: Failures,
    accuracy: Accuracy,
}

/// What keeps the numbers from being exact.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Accuracy {
    /// Records were dropped at some time.
    pub lossy: bool,
    /// Frees by a pool of blocks that were neither traced nor there before.
    pub unmatched_frees: u64,
    /// Events whose totals disagreed with the ledger although nothing had been dropped.
    pub mismatches: u64,
}

impl Ledger {
    /// Takes an event, whose stack is `stack`.
    pub fn apply(&mut self, event: &AllocationEvent, stack: StackIndex) {
        match (event.probe.level(), event.kind) {
            (_, EventKind::AllocFailed(error)) => self.failures.add(event, error, stack),
            (Level::Driver, EventKind::Alloc) => self.driver_alloc(event, stack),
            (Level::Driver, EventKind::Free) => self.driver_free(event),
            (Level::Driver, EventKind::FreeFailed(_)) => self.driver_free_failed(event),
            (Level::Pytorch, EventKind::Alloc | EventKind::Free) => self.pool_event(event, stack),
            // A pool's free cannot fail.
            (Level::Pytorch, EventKind::FreeFailed(_)) => {}
        }
    }

    /// Records were dropped: from here on differences are losses, not mismatches.
    pub fn note_loss(&mut self) {
        self.accuracy.lossy = true;
    }

    /// How exact it is.
    pub fn accuracy(&self) -> Accuracy {
        self.accuracy
    }

    /// Every call site that ever allocated.
    pub fn sites(&self) -> impl Iterator<Item = (&SiteKey, &SiteTotals)> {
        self.sites.iter()
    }

    /// Failed allocations.
    pub fn failures(&self) -> &Failures {
        &self.failures
    }

    /// Driver allocations that are no pool's: bytes and blocks.
    pub fn unclaimed_driver_bytes(&self) -> u64 {
        self.driver.unclaimed_bytes()
    }

    /// Every device by index; last, if there is any, driver memory whose device is not known.
    pub fn devices(&self) -> Vec<DeviceSnapshot> {
        let mut devices: Vec<DeviceSnapshot> =
            self.pools.iter().map(|(&device, pool)| pool.snapshot(device)).collect();
        if self.driver.unclaimed_bytes() > 0 {
            devices.push(DeviceSnapshot {
                index: None,
                driver_bytes: self.driver.unclaimed_bytes(),
                reserved_bytes: 0,
                reserved_is_upper_bound: false,
                untraced_reserved_bytes: 0,
                allocated_bytes: 0,
                cached_bytes: 0,
                releasable_bytes: None,
                peak_allocated_bytes: 0,
                before_attach: AllocatedReserved::default(),
                lost_bytes: 0,
                allocator_reported: None,
            });
        }
        devices
    }

    fn driver_alloc(&mut self, event: &AllocationEvent, stack: StackIndex) {
        // The address of a block whose free was not seen: the driver would not hand it out twice.
        if let Some((block, device)) = self.take_driver_block(event.address.0) {
            self.sites
                .free(&SiteKey { level: Level::Driver, device, stack: block.stack }, block.size);
        }
        self.driver.insert(event.address.0, event.size, stack);
        let key = SiteKey { level: Level::Driver, device: None, stack };
        self.sites.alloc(key, event.size, event.time_ns);
    }

    fn driver_free(&mut self, event: &AllocationEvent) {
        if let Some((block, device)) = self.take_driver_block(event.address.0) {
            let key = SiteKey { level: Level::Driver, device, stack: block.stack };
            self.sites.free(&key, block.size);
            self.driver.announce_free(event.tid, event.address.0, block, device);
            return;
        }
        self.driver.forget_announced(event.tid);
        // A segment from before attach, of unknown size: `reserved` is an upper bound until the
        // pool's next report.
        for pool in self.pools.values_mut() {
            pool.note_unknown_segment_freed();
        }
    }

    fn driver_free_failed(&mut self, event: &AllocationEvent) {
        let Some((address, block, device)) = self.driver.take_announced(event.tid) else { return };
        if address != event.address.0 || self.driver.contains(address) {
            return;
        }
        let key = SiteKey { level: Level::Driver, device, stack: block.stack };
        self.sites.restore(&key, block.size);
        match device.and_then(|device| self.pools.get_mut(&device)) {
            Some(pool) => pool.add_segment(address, block),
            None => self.driver.insert(address, block.size, block.stack),
        }
    }

    /// Removes a driver block from wherever it is: unclaimed, or a segment of a pool.
    fn take_driver_block(&mut self, address: u64) -> Option<(driver::Block, Option<Device>)> {
        if let Some(block) = self.driver.remove(address) {
            return Some((block, None));
        }
        self.pools
            .iter_mut()
            .find_map(|(&device, pool)| Some((pool.remove_segment(address)?, Some(device))))
    }

    fn pool_event(&mut self, event: &AllocationEvent, stack: StackIndex) {
        let (Some(device), Some(totals)) = (event.device, event.totals) else { return };
        let pool = self.pools.entry(device).or_default();
        if let Some((address, block)) = self.driver.claim(event.address.0) {
            self.sites.move_block(
                &SiteKey { level: Level::Driver, device: None, stack: block.stack },
                SiteKey { level: Level::Driver, device: Some(device), stack: block.stack },
                block.size,
            );
            pool.add_segment(address, block);
        }
        let key = |stack| SiteKey { level: Level::Pytorch, device: Some(device), stack };
        pool.note_first(event, &totals);
        match event.kind {
            EventKind::Alloc => {
                if let Some(stale) = pool.insert(event.address.0, event.size, stack) {
                    self.sites.free(&key(stale.stack), stale.size);
                }
                self.sites.alloc(key(stack), event.size, event.time_ns);
            }
            _ => match pool.remove(event.address.0) {
                Some(block) => self.sites.free(&key(block.stack), block.size),
                None => {
                    if !pool.free_unknown(event.size) {
                        self.accuracy.unmatched_frees += 1;
                    }
                }
            },
        }
        if !pool.reconcile(&totals) && !self.accuracy.lossy {
            self.accuracy.mismatches += 1;
        }
    }
}

#[cfg(test)]
mod tests;
