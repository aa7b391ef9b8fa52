//! The pools of a process.

use std::collections::{BTreeMap, BTreeSet};

use super::{Pool, driver, pool_name};
use crate::model::{Device, Level, PoolId};

/// By id.
#[derive(Debug, Default)]
pub(super) struct Pools {
    pools: BTreeMap<PoolId, Pool>,
    /// Levels whose pools may have had blocks before the trace began, and do not tell.
    late: BTreeSet<Level>,
}

impl Pools {
    pub fn note_late(&mut self, level: Level) {
        self.late.insert(level);
    }

    /// The pool, which is made if it is heard of for the first time.
    pub fn entry(&mut self, id: PoolId) -> &mut Pool {
        let is_late = self.late.contains(&id.level);
        self.pools.entry(id).or_insert_with(|| Pool::new(id.device(), is_late))
    }

    /// Names a pool, which says whose memory it hands out.
    pub fn define(&mut self, id: PoolId, name: String) {
        let pool = self.entry(id);
        // Blocks that are there already are counted without the device.
        if !pool.seen() {
            pool.device = pool_name::device(&name);
        }
        pool.name = Some(name);
    }

    pub fn get_mut(&mut self, id: PoolId) -> Option<&mut Pool> {
        self.pools.get_mut(&id)
    }

    /// PyTorch's pool of a device; the only one, where that is not told.
    pub fn pytorch(&mut self, device: Option<Device>) -> Option<&mut Pool> {
        let mut all = self.pools.keys().filter(|id| id.level == Level::Pytorch);
        let only = all.next().filter(|_| all.next().is_none()).copied();
        self.pools.get_mut(&device.map(PoolId::pytorch).or(only)?)
    }

    /// Those of which an event has come.
    pub fn seen(&self) -> impl Iterator<Item = (Level, &Pool)> {
        self.pools.iter().filter(|(_, pool)| pool.seen()).map(|(id, pool)| (id.level, pool))
    }

    pub fn values(&self) -> impl Iterator<Item = &Pool> {
        self.pools.values()
    }

    pub fn values_mut(&mut self) -> impl Iterator<Item = &mut Pool> {
        self.pools.values_mut()
    }

    /// Removes the segment that is the driver's block at this address, from whichever pool it is of.
    pub fn remove_block(&mut self, address: u64) -> Option<(driver::Block, PoolId)> {
        self.pools.iter_mut().find_map(|(&id, pool)| Some((pool.remove_block(address)?, id)))
    }
}
