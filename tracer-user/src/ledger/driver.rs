//! The driver level: allocations that no pool has claimed (yet), and frees under way.

use std::collections::BTreeMap;

use rustc_hash::FxHashMap;

use crate::model::{Device, StackIndex, Tid};

/// One block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Block {
    /// Bytes.
    pub size: u64,
    /// Who allocated it.
    pub stack: StackIndex,
}

/// Driver allocations. Segments of pools are with their pool.
#[derive(Debug, Default)]
pub(super) struct Driver {
    unclaimed: BTreeMap<u64, Block>,
    unclaimed_bytes: u64,
    /// The last free that each thread announced, until its next one: it may still fail.
    announced: FxHashMap<Tid, (u64, Block, Option<Device>)>,
}

impl Driver {
    pub fn unclaimed_bytes(&self) -> u64 {
        self.unclaimed_bytes
    }

    pub fn contains(&self, address: u64) -> bool {
        self.unclaimed.contains_key(&address)
    }

    pub fn insert(&mut self, address: u64, size: u64, stack: StackIndex) {
        self.unclaimed.insert(address, Block { size, stack });
        self.unclaimed_bytes = self.unclaimed_bytes.saturating_add(size);
    }

    pub fn remove(&mut self, address: u64) -> Option<Block> {
        let block = self.unclaimed.remove(&address)?;
        self.unclaimed_bytes = self.unclaimed_bytes.saturating_sub(block.size);
        Some(block)
    }

    /// Takes the block that the address lies in, for the pool that has a block there.
    pub fn claim(&mut self, address: u64) -> Option<(u64, Block)> {
        let (&start, block) = self.unclaimed.range(..=address).next_back()?;
        if address - start >= block.size {
            return None;
        }
        self.remove(start).map(|block| (start, block))
    }

    pub fn announce_free(&mut self, tid: Tid, address: u64, block: Block, device: Option<Device>) {
        self.announced.insert(tid, (address, block, device));
    }

    pub fn forget_announced(&mut self, tid: Tid) {
        self.announced.remove(&tid);
    }

    pub fn take_announced(&mut self, tid: Tid) -> Option<(u64, Block, Option<Device>)> {
        self.announced.remove(&tid)
    }
}
