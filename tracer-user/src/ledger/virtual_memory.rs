//! Virtual memory management: physical memory, its handles, and where it is mapped.
//!
//! Physical memory counts from its creation until every hold on its handle is let go of *and* it is
//! mapped nowhere. Reserved addresses cost nothing and are not followed.

use std::collections::BTreeMap;

use rustc_hash::FxHashMap;

use super::driver::Memory;
use crate::model::PoolId;

/// A piece of physical memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Physical {
    id: u64,
    /// What it is; `None` for another process's, which does not count here.
    pub memory: Option<Memory>,
    handles: u32,
    mappings: u32,
}

/// A range of addresses with memory behind it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Mapping {
    /// Bytes.
    pub size: u64,
    /// The pool that has blocks there.
    pub owner: Option<PoolId>,
    /// Its memory; `None` for another process's, or from before attach.
    physical: Option<u64>,
}

/// What an unmapping took away.
#[derive(Debug, Default)]
pub(super) struct Unmapped {
    /// By address.
    pub mappings: Vec<(u64, Mapping)>,
    /// Memory that nothing holds any more.
    pub gone: Vec<Physical>,
}

/// What letting go of a handle took away.
#[derive(Debug)]
pub(super) struct Released {
    handle: u64,
    /// The memory that had the handle, if it is known.
    id: Option<u64>,
    /// That memory, if nothing holds it any more.
    pub gone: Option<Physical>,
}

/// All of it. Memory has ids of its own, because the driver may give a handle's value to another
/// piece while the first is still mapped.
#[derive(Debug, Default)]
pub(super) struct VirtualMemory {
    physical: FxHashMap<u64, Physical>,
    handles: FxHashMap<u64, u64>,
    mappings: BTreeMap<u64, Mapping>,
    unowned: usize,
    last_id: u64,
}

impl VirtualMemory {
    /// Memory that was created here, or another process's (`None`), with its first handle.
    pub fn create(&mut self, handle: u64, memory: Option<Memory>) {
        self.last_id += 1;
        let id = self.last_id;
        self.handles.insert(handle, id);
        self.physical.insert(id, Physical { id, memory, handles: 1, mappings: 0 });
    }

    /// Takes another hold of the memory that is mapped at `address`, which may have no handle by now.
    pub fn retain(&mut self, handle: u64, address: u64) {
        let mapped = self.mappings.range(..=address).next_back();
        let mapped = mapped.filter(|(start, mapping)| address - **start < mapping.size);
        let id = mapped
            .and_then(|(_, mapping)| mapping.physical)
            .or_else(|| self.handles.get(&handle).copied());
        if let Some(memory) = id.and_then(|id| self.physical.get_mut(&id)) {
            memory.handles = memory.handles.saturating_add(1);
            self.handles.insert(handle, memory.id);
        }
    }

    /// How many pieces of other processes' memory are held or mapped.
    pub fn imported(&self) -> usize {
        self.physical.values().filter(|physical| physical.memory.is_none()).count()
    }

    /// Lets go of a handle.
    pub fn release(&mut self, handle: u64) -> Released {
        let id = self.handles.get(&handle).copied();
        let memory = id.and_then(|id| self.physical.get_mut(&id));
        if let Some(memory) = memory {
            memory.handles = memory.handles.saturating_sub(1);
            if memory.handles == 0 {
                self.handles.remove(&handle);
            }
        }
        Released { handle, id, gone: id.and_then(|id| self.drop_if_unheld(id)) }
    }

    pub fn release_failed(&mut self, released: Released) {
        self.restore(released.gone);
        let Some(id) = released.id else { return };
        if let Some(memory) = self.physical.get_mut(&id) {
            memory.handles = memory.handles.saturating_add(1);
            // Unless the handle was given to other memory since.
            self.handles.entry(released.handle).or_insert(id);
        }
    }

    /// Maps memory; returns the mapping that was at the address before, whose end was not seen: its
    /// start and owner.
    pub fn map(&mut self, address: u64, size: u64, handle: u64) -> Option<(u64, Option<PoolId>)> {
        let stale = self.take(address).map(|mapping| (address, mapping.owner));
        let physical = self.handles.get(&handle).copied();
        if let Some(memory) = physical.and_then(|id| self.physical.get_mut(&id)) {
            memory.mappings = memory.mappings.saturating_add(1);
        }
        self.mappings.insert(address, Mapping { size, owner: None, physical });
        self.unowned += 1;
        stale
    }

    /// Unmaps everything that starts in a range.
    pub fn unmap(&mut self, address: u64, size: u64) -> Unmapped {
        let end = address.saturating_add(size);
        let starts: Vec<u64> = self.mappings.range(address..end).map(|(start, _)| *start).collect();
        let mut unmapped = Unmapped::default();
        for start in starts {
            if let Some(mapping) = self.take(start) {
                unmapped.mappings.push((start, mapping));
                unmapped.gone.extend(mapping.physical.and_then(|id| self.drop_if_unheld(id)));
            }
        }
        unmapped
    }

    pub fn unmap_failed(&mut self, unmapped: Unmapped) {
        self.restore(unmapped.gone);
        for (start, mapping) in unmapped.mappings {
            if let Some(memory) = mapping.physical.and_then(|id| self.physical.get_mut(&id)) {
                memory.mappings = memory.mappings.saturating_add(1);
            }
            self.unowned += usize::from(mapping.owner.is_none());
            self.mappings.insert(start, mapping);
        }
    }

    /// Gives a pool the mappings that its block lies in, as far as they have no owner; returns their
    /// starts and sizes, and the memory behind them that was in no pool yet.
    pub fn claim(
        &mut self,
        address: u64,
        size: u64,
        pool: PoolId,
    ) -> Vec<(u64, u64, Option<Memory>)> {
        if self.unowned == 0 {
            return Vec::new();
        }
        let first =
            self.mappings.range(..=address).next_back().map_or(address, |(start, _)| *start);
        let end = address.saturating_add(size.max(1));
        let mut claimed = Vec::new();
        for (&start, mapping) in self.mappings.range_mut(first..end) {
            let reaches = start.saturating_add(mapping.size) > address;
            if mapping.owner.is_none() && reaches {
                mapping.owner = Some(pool);
                let memory = mapping
                    .physical
                    .and_then(|id| self.physical.get_mut(&id))
                    .and_then(|physical| physical.memory.as_mut())
                    .filter(|memory| !memory.pooled)
                    .map(|memory| {
                        memory.pooled = true;
                        *memory
                    });
                claimed.push((start, mapping.size, memory));
            }
        }
        self.unowned -= claimed.len();
        claimed
    }

    fn take(&mut self, start: u64) -> Option<Mapping> {
        let mapping = self.mappings.remove(&start)?;
        self.unowned -= usize::from(mapping.owner.is_none());
        if let Some(memory) = mapping.physical.and_then(|id| self.physical.get_mut(&id)) {
            memory.mappings = memory.mappings.saturating_sub(1);
        }
        Some(mapping)
    }

    fn drop_if_unheld(&mut self, id: u64) -> Option<Physical> {
        let memory = self.physical.get(&id)?;
        if memory.handles > 0 || memory.mappings > 0 {
            return None;
        }
        self.physical.remove(&id)
    }

    fn restore(&mut self, gone: impl IntoIterator<Item = Physical>) {
        for memory in gone {
            self.physical.insert(memory.id, memory);
        }
    }
}
