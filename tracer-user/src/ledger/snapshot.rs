//! Pictures of pools and devices.

use super::{Ledger, Pool, pool::signed_add};
use crate::model::{AllocatedReserved, Device, DeviceSnapshot, Level, PoolSnapshot};

impl Ledger {
    /// Every device by index; last, if there is any, driver memory whose device is not known.
    pub fn devices(&self) -> Vec<DeviceSnapshot> {
        let of_pools = self.pools.seen().filter_map(|(_, pool)| pool.device);
        let mut indices: Vec<Option<Device>> = of_pools.map(Some).collect();
        indices.extend(self.driver_bytes.iter().filter(|(_, bytes)| **bytes > 0).map(|(d, _)| *d));
        // None sorts first; it is to be last.
        indices.sort_by_key(|index| (index.is_none(), *index));
        indices.dedup();
        indices.into_iter().map(|index| self.device(index)).collect()
    }

    /// Every pool that has been heard of, by level, device and name.
    pub fn pools(&self) -> Vec<PoolSnapshot> {
        let mut pools: Vec<PoolSnapshot> =
            self.pools.seen().map(|(level, pool)| pool.snapshot(level)).collect();
        pools.sort_by(|a, b| (a.level, a.device, &a.name).cmp(&(b.level, b.device, &b.name)));
        pools
    }

    /// The sums of a device's pools. What is not known of one of them is not known of the device.
    fn device(&self, index: Option<Device>) -> DeviceSnapshot {
        let traced = self.driver_bytes.get(&index).copied().unwrap_or(0);
        let of_device = |(_, pool): &(Level, &Pool)| pool.device == index && index.is_some();
        let pools: Vec<(Level, &Pool)> = self.pools.seen().filter(of_device).collect();
        let is_known = !pools.is_empty() && !pools.iter().any(|(_, pool)| pool.is_late);
        let total = |value: fn(&Pool) -> u64| {
            pools.iter().fold(0, |sum: u64, (_, pool)| sum.saturating_add(value(pool)))
        };
        let signed = |value: fn(&Pool) -> i64| {
            pools.iter().fold(0, |sum: i64, (_, pool)| sum.saturating_add(value(pool)))
        };
        let known = |value: fn(&Pool) -> u64| is_known.then(|| total(value));
        let before = AllocatedReserved {
            allocated_bytes: total(|pool| pool.before().allocated_bytes),
            reserved_bytes: total(|pool| pool.before().reserved_bytes),
        };
        let untraced = signed(Pool::untraced_reserved);
        let releasable = pools
            .iter()
            .filter(|(level, _)| gives_back(*level))
            .map(|(_, pool)| pool.releasable())
            .sum();
        let reported: Vec<_> = pools.iter().filter_map(|(_, pool)| pool.reported()).collect();
        DeviceSnapshot {
            index,
            driver_bytes: signed_add(traced.saturating_add(before.reserved_bytes), untraced),
            reserved_bytes: known(Pool::reserved),
            reserved_is_upper_bound: pools.iter().any(|(_, pool)| pool.reserved_is_upper_bound()),
            untraced_reserved_bytes: untraced,
            allocated_bytes: known(Pool::allocated),
            cached_bytes: known(Pool::cached),
            releasable_bytes: if is_known { releasable } else { None },
            peak_allocated_bytes: known(Pool::peak_allocated),
            before_attach: (is_known || (pools.is_empty() && self.whole)).then_some(before),
            lost_bytes: signed(Pool::lost_bytes),
            allocator_reported: (!reported.is_empty()).then(|| AllocatedReserved {
                allocated_bytes: reported.iter().fold(0, |sum, t| t.allocated.saturating_add(sum)),
                reserved_bytes: reported.iter().fold(0, |sum, t| t.reserved.saturating_add(sum)),
            }),
        }
    }
}

impl Pool {
    /// Free bytes inside segments.
    fn cached(&self) -> u64 {
        self.reserved().saturating_sub(self.allocated())
    }

    fn snapshot(&self, level: Level) -> PoolSnapshot {
        let (traced_bytes, traced_blocks) = self.traced();
        let known = |bytes: u64| (!self.is_late).then_some(bytes);
        // Blocks of a pool in host memory lie in no memory of the driver's.
        let reserved = |bytes: u64| known(bytes).filter(|_| self.device.is_some());
        PoolSnapshot {
            level,
            name: self.name.clone(),
            device: self.device,
            allocated_bytes: known(self.allocated()),
            reserved_bytes: reserved(self.reserved()),
            cached_bytes: reserved(self.cached()),
            peak_allocated_bytes: known(self.peak_allocated()),
            traced_bytes,
            traced_blocks,
            traced_segment_bytes: self.segment_bytes(),
            keeps_reserve: matches!(level, Level::Tensorflow | Level::Jax),
        }
    }
}

/// Whether the user can make a pool return the segments that no block needs: `empty_cache()`,
/// `free_all_blocks()`.
fn gives_back(level: Level) -> bool {
    matches!(level, Level::Pytorch | Level::Cupy)
}
