//! Memory by address: driver allocations that no pool has claimed (yet), page-locked host memory, and
//! frees under way.

use std::collections::BTreeMap;

use rustc_hash::FxHashMap;

use super::virtual_memory::{Released, Unmapped};
use crate::model::{Device, PoolId, StackIndex, Tid};

/// A piece of memory that the driver handed out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Memory {
    /// Bytes.
    pub size: u64,
    /// Who asked for it.
    pub stack: StackIndex,
    /// Where, if known.
    pub device: Option<Device>,
    /// Whether a pool cuts its blocks out of it.
    pub pooled: bool,
}

/// Memory with an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Block {
    /// What it is.
    pub memory: Memory,
    /// The context, 0 if not known.
    pub context: u64,
}

/// What a thread's last announced call frees, until its next one: it may still fail.
#[derive(Debug)]
pub(super) enum Announced {
    /// Device memory; `owner` is the pool whose segment it was.
    Block { address: u64, block: Block, owner: Option<PoolId> },
    /// Host memory.
    Pinned { address: u64, memory: Memory },
    /// A hold on a handle.
    Release(Released),
    /// Mappings.
    Unmap(Unmapped),
    /// Another process's memory, by pointer.
    Imported { address: u64 },
    /// Memory from before attach.
    Unknown { address: u64 },
}

/// Blocks by address. Segments of pools are with their pool.
#[derive(Debug, Default)]
pub(super) struct Driver {
    unclaimed: BTreeMap<u64, Block>,
    pinned: FxHashMap<u64, Memory>,
    announced: FxHashMap<Tid, Announced>,
}

impl Driver {
    pub fn contains(&self, address: u64) -> bool {
        self.unclaimed.contains_key(&address)
    }

    pub fn insert(&mut self, address: u64, block: Block) {
        self.unclaimed.insert(address, block);
    }

    pub fn remove(&mut self, address: u64) -> Option<Block> {
        self.unclaimed.remove(&address)
    }

    /// Takes the block that the address lies in, for the pool that has a block there.
    pub fn claim(&mut self, address: u64) -> Option<(u64, Block)> {
        let (&start, block) = self.unclaimed.range(..=address).next_back()?;
        if address - start >= block.memory.size {
            return None;
        }
        self.remove(start).map(|block| (start, block))
    }

    pub fn remove_context(&mut self, context: u64) -> Vec<Block> {
        let gone: Vec<u64> = self
            .unclaimed
            .iter()
            .filter(|(_, block)| block.context == context)
            .map(|(address, _)| *address)
            .collect();
        gone.into_iter().filter_map(|address| self.unclaimed.remove(&address)).collect()
    }

    pub fn is_pinned(&self, address: u64) -> bool {
        self.pinned.contains_key(&address)
    }

    /// Returns what was pinned there before, whose end was not seen.
    pub fn pin(&mut self, address: u64, memory: Memory) -> Option<Memory> {
        self.pinned.insert(address, memory)
    }

    pub fn unpin(&mut self, address: u64) -> Option<Memory> {
        self.pinned.remove(&address)
    }

    pub fn announce(&mut self, tid: Tid, what: Announced) {
        self.announced.insert(tid, what);
    }

    pub fn forget_announced(&mut self, tid: Tid) {
        self.announced.remove(&tid);
    }

    pub fn take_announced(&mut self, tid: Tid) -> Option<Announced> {
        self.announced.remove(&tid)
    }
}
