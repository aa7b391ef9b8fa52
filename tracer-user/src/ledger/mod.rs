//! Who holds what: two levels that reconcile. Pure.
//!
//! The driver level counts what the CUDA driver handed out; the pool level counts the blocks that a
//! pool cut out of it. They are never added up. Driver memory belongs to a pool as soon as one of the
//! pool's blocks is seen inside it: it is then a *segment* of that pool, on the block's device.
//!
//! At every event that carries the pool's own totals,
//! `allocated = before attach + live + lost` is checked; the totals win.

mod activity;
mod block;
mod change;
mod contexts;
mod driver;
mod failure;
mod fresh;
mod history;
mod pool;
mod pool_name;
mod pools;
mod returned;
mod sites;
mod snapshot;
mod virtual_memory;

use std::collections::{BTreeMap, BTreeSet};

use rustc_hash::{FxHashMap, FxHashSet};
use tracer_common::calls::op;

pub use self::{
    activity::{Active, Activity},
    block::Ages,
    change::PoolChange,
    failure::{Failure, Failures, error_name},
    history::{Extent, History, PIECES, Timeline},
    pool::Pool,
    sites::{SiteKey, SiteTotals, Sites},
};
use self::{
    block::Born,
    contexts::Contexts,
    driver::{Announced, Block, Driver, Memory},
    pools::Pools,
    returned::Returned,
    virtual_memory::VirtualMemory,
};
use crate::model::{
    AllocationEvent, Device, DriverCall, EventKind, Layer, Level, Phase, PoolFacts, PoolId,
    StackIndex, Tid,
};

/// The ledger of one process.
#[derive(Debug, Default)]
pub struct Ledger {
    contexts: Contexts,
    /// Whose calls told of memory.
    layers: BTreeSet<Layer>,
    /// Everything since the driver was loaded has been seen.
    whole: bool,
    driver: Driver,
    memory: VirtualMemory,
    pools: Pools,
    sites: Sites,
    failures: Failures,
    accuracy: Accuracy,
    /// Bytes that the driver handed out, by device.
    driver_bytes: BTreeMap<Option<Device>, u64>,
    /// Bytes of page-locked host memory.
    pinned_bytes: u64,
    /// Host memory of tensors by address.
    cpu: FxHashMap<u64, block::Packed>,
    cpu_bytes: u64,
    returned: Returned,
    /// When its first event was.
    begin_ns: Option<u64>,
    /// Memory of other processes that this one has opened by pointer and not closed.
    imported: FxHashSet<u64>,
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
    /// The driver was not loaded when the trace began: every retain of a context is seen, so the
    /// last release is known to destroy it.
    pub fn note_whole(&mut self) {
        self.whole = true;
        self.contexts.note_whole();
    }

    /// Threads that were there when the trace began: they may have chosen a device before.
    pub fn note_threads(&mut self, threads: impl IntoIterator<Item = Tid>) {
        threads.into_iter().for_each(|tid| self.contexts.note_early(tid));
    }

    /// The library of this level's pools was loaded before the trace began.
    pub fn note_late(&mut self, level: Level) {
        self.pools.note_late(level);
    }

    /// The name of a pool, which says whose memory it hands out.
    pub fn define_pool(&mut self, id: PoolId, name: String) {
        self.pools.define(id, name);
    }

    /// Takes an event, whose stack is `stack`.
    pub fn apply(&mut self, event: &AllocationEvent, stack: StackIndex) {
        self.sites.note_time(event.time_ns);
        self.begin_ns.get_or_insert(event.time_ns);
        match event.kind {
            EventKind::Driver { call, phase, aux } => {
                self.driver_event(event, call, phase, aux, stack)
            }
            EventKind::PoolAlloc(facts) => self.pool_event(event, &facts, Some(stack)),
            EventKind::PoolFree(facts) => self.pool_event(event, &facts, None),
            EventKind::PoolOutOfMemory(facts) => self.pool_refused(event, &facts, stack),
            EventKind::SegmentFreed(device) => {
                self.segment_freed(device, event.address.0, event.size)
            }
            EventKind::SegmentPrivate(device) => {
                let pool = self.pools.entry(PoolId::pytorch(device));
                pool.note_private(event.address.0, event.size);
            }
            EventKind::CpuAlloc => self.cpu_alloc(event, stack),
            EventKind::CpuFree => self.cpu_free(event.address.0),
        }
    }

    /// Records were dropped: from here on differences are losses, not mismatches.
    pub fn note_loss(&mut self) {
        self.accuracy.lossy = true;
    }

    /// Whose calls told of what was allocated below the pools.
    pub fn counted_at(&self) -> impl Iterator<Item = Layer> {
        self.layers.iter().copied()
    }

    /// How exact it is.
    pub fn accuracy(&self) -> Accuracy {
        self.accuracy
    }

    /// Another run of a notebook's cell begins.
    pub fn note_phase(&mut self) {
        self.sites.note_phase();
    }

    /// Every call site that ever allocated.
    pub fn sites(&self) -> impl Iterator<Item = (&SiteKey, &SiteTotals)> {
        self.sites.iter()
    }

    /// The same, with how they came to be what they are.
    pub fn histories(&self) -> impl Iterator<Item = (&SiteKey, &SiteTotals, &History)> {
        self.sites.histories()
    }

    /// What the process has done.
    pub fn activity(&self) -> &Activity {
        self.sites.activity()
    }

    /// How old the live blocks of sites of pools and of host tensors are at a moment.
    pub fn ages(&self, now_ns: u64) -> FxHashMap<SiteKey, Ages> {
        let mut ages: FxHashMap<SiteKey, Ages> = FxHashMap::default();
        let now_ns = now_ns.saturating_sub(self.begin_ns.unwrap_or(now_ns));
        for (level, pool) in self.pools.seen() {
            for block in pool.blocks() {
                let key = SiteKey { level, device: pool.device, stack: block.stack };
                ages.entry(key).or_default().add(block.born.age(now_ns));
            }
        }
        for block in self.cpu.values().map(|block| block::Block::from(*block)) {
            ages.entry(cpu(block.stack)).or_default().add(block.born.age(now_ns));
        }
        ages
    }

    /// Every stack that is named anywhere.
    pub fn stacks(&self) -> impl Iterator<Item = StackIndex> {
        let sites = self.sites.iter().map(|(key, _)| key.stack);
        sites.chain(self.failures.last().map(|failure| failure.stack))
    }

    /// Sites that have held nothing for a while, if there are very many, become those of the stack
    /// `others`; each is told to `forget` before.
    pub fn tidy(&mut self, others: StackIndex, forget: impl FnMut(&SiteKey, &SiteTotals)) {
        self.sites.tidy(others, forget);
    }

    /// Call sites that are new since this was last asked; `None` if there were too many. The first time
    /// there are none: it is not known which are.
    pub fn take_fresh(&mut self) -> Option<Vec<SiteKey>> {
        self.sites.fresh.take()
    }

    /// A call site.
    pub fn site(&self, key: &SiteKey) -> Option<&SiteTotals> {
        self.sites.get(key)
    }

    /// Failed allocations.
    pub fn failures(&self) -> &Failures {
        &self.failures
    }

    /// Bytes of page-locked host memory allocated or registered since attach.
    pub fn pinned_bytes(&self) -> u64 {
        self.pinned_bytes
    }

    /// Bytes of tensors in host memory allocated since attach.
    pub fn cpu_bytes(&self) -> u64 {
        self.cpu_bytes
    }

    /// Memory of other processes that is open here: number of handles and pointers.
    pub fn imported(&self) -> u64 {
        let pointers = self.imported.len();
        pointers.saturating_add(self.memory.imported()).try_into().unwrap_or(u64::MAX)
    }

    fn driver_event(
        &mut self,
        event: &AllocationEvent,
        call: DriverCall,
        phase: Phase,
        aux: u64,
        stack: StackIndex,
    ) {
        let (address, size) = (event.address.0, event.size);
        // An `int`: what is above it in a register is nobody's.
        let device = u8::try_from(aux as u32).ok().map(Device);
        let allocates = [op::ALLOC, op::PIN, op::CREATE, op::IMPORT, op::IMPORT_HANDLE];
        if phase == Phase::Done && allocates.contains(&call.op()) {
            self.layers.insert(call.layer());
        }
        match (call.op(), phase) {
            (op::ALLOC | op::PIN | op::CREATE, Phase::Failed(error)) => {
                self.failures.add(event, call, error, stack);
            }
            (op::ALLOC, Phase::Done) => {
                self.failures.settle(event.tid, false);
                let context = self.contexts.of_call(event.tid, call.layer());
                self.allocate(event, context, stack);
            }
            (op::FREE, Phase::Begun) => self.free(event),
            (op::PIN, Phase::Done) => self.pin(event, stack),
            (op::UNPIN, Phase::Begun) => self.unpin(event),
            (op::CREATE, Phase::Done) => {
                self.failures.settle(event.tid, false);
                let memory = Memory { size, stack, device, pooled: false };
                self.memory.create(address, Some(memory));
                self.count_alloc(&memory, event.time_ns);
            }
            (op::RETAIN, Phase::Done) => self.memory.retain(address, aux),
            (op::RELEASE, Phase::Begun) => {
                let released = self.memory.release(address);
                self.count_frees(released.gone.and_then(|physical| physical.memory));
                self.driver.announce(event.tid, Announced::Release(released));
            }
            (op::MAP, Phase::Done) => {
                if let Some((start, owner)) = self.memory.map(address, size, aux) {
                    // What was mapped there before: its unmapping was not seen.
                    self.remove_segment(owner, start);
                }
            }
            (op::UNMAP, Phase::Begun) => self.unmap(event),
            (op::FREE | op::UNPIN | op::RELEASE | op::UNMAP | op::UNIMPORT, Phase::Failed(_)) => {
                self.take_back(event)
            }
            (op::IMPORT, Phase::Done) => {
                self.imported.insert(address);
            }
            (op::IMPORT_HANDLE, Phase::Done) => self.memory.create(address, None),
            (op::UNIMPORT, Phase::Begun) => {
                self.driver.forget_announced(event.tid);
                if self.imported.remove(&address) {
                    self.driver.announce(event.tid, Announced::Imported { address });
                }
            }
            (op::CONTEXT_RETAINED, Phase::Done) => self.contexts.retained(address, device),
            (op::CONTEXT_CREATED, Phase::Done) => self.contexts.created(event.tid, address, device),
            (op::CONTEXT_SET, Phase::Done) => self.contexts.set(event.tid, address),
            (op::CONTEXT_PUSHED, Phase::Done) => self.contexts.push(event.tid, address),
            (op::CONTEXT_POPPED, Phase::Done) => self.contexts.pop(event.tid),
            (op::CONTEXT_DESTROYED, Phase::Done) => self.destroy(address),
            (op::GREEN_CREATED, Phase::Done) => self.contexts.green_created(address, device),
            (op::GREEN_CONTEXT, Phase::Done) => self.contexts.green_context(address, aux),
            (op::GREEN_DESTROYED, Phase::Done) => {
                let ended = self.contexts.green_destroyed(address);
                self.reset(ended);
            }
            (op::DEVICE_SET, Phase::Done) => self.contexts.choose(event.tid, device),
            (op::DEVICE_RESET, Phase::Done) => {
                let device = match call.layer() {
                    Layer::Driver => device,
                    Layer::Runtime => {
                        self.contexts.device(self.contexts.of_call(event.tid, Layer::Runtime))
                    }
                };
                self.reset(device);
            }
            (op::DEVICE_RELEASED, Phase::Done) => {
                let ended = device.filter(|&device| self.contexts.released(device));
                self.reset(ended);
            }
            _ => {}
        }
    }

    fn allocate(&mut self, event: &AllocationEvent, context: u64, stack: StackIndex) {
        // The address of a block whose free was not seen: the driver would not hand it out twice.
        if let Some((block, _)) = self.take_block(event.address.0) {
            self.count_frees([block.memory]);
        }
        let device = self.contexts.device(context);
        let memory = Memory { size: event.size, stack, device, pooled: false };
        self.driver.insert(event.address.0, Block { memory, context });
        self.count_alloc(&memory, event.time_ns);
    }

    fn free(&mut self, event: &AllocationEvent) {
        let address = event.address.0;
        let Some((block, owner)) = self.take_block(address) else {
            return self.free_unknown(event);
        };
        self.count_frees([block.memory]);
        if owner.is_some() {
            self.returned.freed(address, Some(block.memory.size));
        }
        self.driver.announce(event.tid, Announced::Block { address, block, owner });
    }

    /// A segment from before attach is gone. Unless its pool says how large it was, `reserved` is an
    /// upper bound until the next report; of every pool, since any may have had it.
    fn free_unknown(&mut self, event: &AllocationEvent) {
        let address = event.address.0;
        if address == 0 {
            return self.driver.forget_announced(event.tid);
        }
        self.driver.announce(event.tid, Announced::Unknown { address });
        if !self.returned.freed(address, None) {
            self.pools.values_mut().for_each(Pool::note_unknown_segment_freed);
        }
    }

    /// Nothing of unknown size is gone any more, if that is so.
    fn note_segments_known(&mut self) {
        if !self.returned.has_unknown() {
            self.pools.values_mut().for_each(Pool::note_segments_known);
        }
    }

    /// A pool tells the size of a segment that it gives back: what of it was not traced is from before.
    fn segment_freed(&mut self, device: Option<Device>, address: u64, size: u64) {
        let there = self.pools.values().map(|pool| pool.segment_bytes_in(address, size));
        let traced =
            there.fold(0, u64::saturating_add).saturating_add(self.returned.told(address, size));
        // A pool that has not reported yet will say what it has then.
        if let Some(pool) = self.pools.pytorch(device) {
            pool.free_segment_from_before(size.saturating_sub(traced));
        }
        self.note_segments_known();
    }

    fn pin(&mut self, event: &AllocationEvent, stack: StackIndex) {
        let memory = Memory { size: event.size, stack, device: None, pooled: false };
        if let Some(stale) = self.driver.pin(event.address.0, memory) {
            self.pinned_bytes = self.pinned_bytes.saturating_sub(stale.size);
            self.sites.free(&pinned(stale.stack), stale.size, Some(stale.size));
        }
        self.pinned_bytes = self.pinned_bytes.saturating_add(event.size);
        self.sites.alloc(pinned(stack), event.size, Some(event.size), event.time_ns);
    }

    fn unpin(&mut self, event: &AllocationEvent) {
        let address = event.address.0;
        self.driver.forget_announced(event.tid);
        if let Some(memory) = self.driver.unpin(address) {
            self.pinned_bytes = self.pinned_bytes.saturating_sub(memory.size);
            self.sites.free(&pinned(memory.stack), memory.size, Some(memory.size));
            self.driver.announce(event.tid, Announced::Pinned { address, memory });
        }
    }

    fn unmap(&mut self, event: &AllocationEvent) {
        let unmapped = self.memory.unmap(event.address.0, event.size);
        if unmapped.mappings.is_empty() {
            return self.free_unknown(event);
        }
        for (start, mapping) in &unmapped.mappings {
            self.remove_segment(mapping.owner, *start);
            if mapping.owner.is_some() {
                self.returned.freed(*start, Some(mapping.size));
            }
        }
        self.count_frees(unmapped.gone.iter().filter_map(|physical| physical.memory));
        self.driver.announce(event.tid, Announced::Unmap(unmapped));
    }

    /// A call that had been announced has failed: what it was to free is there after all.
    fn take_back(&mut self, event: &AllocationEvent) {
        match self.driver.take_announced(event.tid) {
            Some(Announced::Block { address, block, owner }) if !self.driver.contains(address) => {
                self.count_restore(&block.memory);
                match owner.and_then(|id| self.pools.get_mut(id)) {
                    Some(pool) => pool.add_segment(address, block.memory.size, Some(block)),
                    None => self.driver.insert(address, block),
                }
            }
            Some(Announced::Pinned { address, memory }) if !self.driver.is_pinned(address) => {
                self.pinned_bytes = self.pinned_bytes.saturating_add(memory.size);
                self.sites.restore(&pinned(memory.stack), memory.size, Some(memory.size));
                self.driver.pin(address, memory);
            }
            Some(Announced::Release(released)) => {
                if let Some(memory) = released.gone.and_then(|physical| physical.memory) {
                    self.count_restore(&memory);
                }
                self.memory.release_failed(released);
            }
            Some(Announced::Imported { address }) => {
                self.imported.insert(address);
            }
            Some(Announced::Unmap(unmapped)) => {
                for memory in unmapped.gone.iter().filter_map(|physical| physical.memory) {
                    self.count_restore(&memory);
                }
                for (start, mapping) in &unmapped.mappings {
                    if let Some(pool) = mapping.owner.and_then(|id| self.pools.get_mut(id)) {
                        pool.add_segment(*start, mapping.size, None);
                    }
                }
                self.memory.unmap_failed(unmapped);
            }
            Some(Announced::Unknown { address }) => {
                self.returned.not_freed(address);
                self.note_segments_known();
            }
            _ => {}
        }
    }

    /// The primary context of a device has ended.
    fn reset(&mut self, device: Option<Device>) {
        let contexts = device.map(|device| self.contexts.primaries(device));
        contexts.into_iter().flatten().for_each(|context| self.destroy(context));
    }

    /// Everything that was allocated in a context goes with it.
    fn destroy(&mut self, context: u64) {
        if context == 0 {
            return;
        }
        let mut gone = self.driver.remove_context(context);
        for pool in self.pools.values_mut() {
            gone.extend(pool.remove_context(context));
        }
        self.count_frees(gone.iter().map(|block| block.memory));
        self.contexts.destroyed(context);
    }

    /// Removes a driver block from wherever it is: unclaimed, or a segment of a pool.
    fn take_block(&mut self, address: u64) -> Option<(Block, Option<PoolId>)> {
        if let Some(block) = self.driver.remove(address) {
            return Some((block, None));
        }
        self.pools.remove_block(address).map(|(block, id)| (block, Some(id)))
    }

    fn remove_segment(&mut self, owner: Option<PoolId>, start: u64) {
        if let Some(pool) = owner.and_then(|id| self.pools.get_mut(id)) {
            pool.remove_segment(start);
        }
    }

    /// A pool has told the user that there is no memory. The driver may not have been asked: a pool
    /// can have a limit of its own.
    fn pool_refused(&mut self, event: &AllocationEvent, facts: &PoolFacts, stack: StackIndex) {
        if !self.failures.settle(event.tid, true) {
            self.failures.add_pools_own(event, stack);
        }
        if let (Some(pool), Some(totals)) = (self.pools.get_mut(facts.pool), &facts.totals) {
            pool.reconcile(totals);
        }
    }

    fn cpu_alloc(&mut self, event: &AllocationEvent, stack: StackIndex) {
        self.cpu_free(event.address.0);
        let born = self.born(event.time_ns);
        let block = block::Block { size: event.size, stack, requested: Some(event.size), born };
        self.cpu.insert(event.address.0, block.into());
        self.cpu_bytes = self.cpu_bytes.saturating_add(event.size);
        self.sites.alloc(cpu(stack), event.size, Some(event.size), event.time_ns);
    }

    fn born(&self, time_ns: u64) -> Born {
        Born::at(time_ns.saturating_sub(self.begin_ns.unwrap_or(time_ns)))
    }

    fn cpu_free(&mut self, address: u64) {
        if let Some(block) = self.cpu.remove(&address).map(block::Block::from) {
            self.cpu_bytes = self.cpu_bytes.saturating_sub(block.size);
            self.sites.free(&cpu(block.stack), block.size, block.requested);
        }
    }

    fn pool_event(
        &mut self,
        event: &AllocationEvent,
        facts: &PoolFacts,
        alloc: Option<StackIndex>,
    ) {
        self.claim(event.address.0, event.size, facts.pool, event.time_ns);
        let born = self.born(event.time_ns);
        let pool = self.pools.entry(facts.pool);
        let (level, device) = (facts.pool.level, pool.device);
        let key = |stack| SiteKey { level, device, stack };
        pool.note_first(alloc.is_some(), event.size, facts.totals.as_ref());
        match alloc {
            Some(stack) => {
                let (size, requested) = (event.size, facts.requested);
                let block = block::Block { size, stack, requested, born };
                if let Some(stale) = pool.insert(event.address.0, block) {
                    self.sites.free(&key(stale.stack), stale.size, stale.requested);
                }
                self.sites.alloc(key(stack), event.size, facts.requested, event.time_ns);
            }
            None => match pool.remove(event.address.0) {
                Some(block) => self.sites.free(&key(block.stack), block.size, block.requested),
                None => {
                    if !pool.free_unknown(event.size) {
                        self.accuracy.unmatched_frees += 1;
                    }
                }
            },
        }
        let agrees = facts.totals.as_ref().is_none_or(|totals| pool.reconcile(totals));
        if !agrees && !self.accuracy.lossy {
            self.accuracy.mismatches += 1;
        }
        if !self.pools.values().any(Pool::reserved_is_upper_bound) {
            self.returned.forget_unknown();
        }
    }

    /// Gives a pool the driver memory that its block lies in.
    fn claim(&mut self, address: u64, size: u64, id: PoolId, time_ns: u64) {
        let pool = self.pools.entry(id);
        let mut device = pool.device;
        if let Some((start, mut block)) = self.driver.claim(address) {
            let memory = &mut block.memory;
            // Blocks that are there already are counted without the device.
            if device.is_none() && !pool.seen() {
                pool.device = memory.device;
                device = memory.device;
            }
            if device.is_some() && memory.device != device {
                let to = Memory { device, ..*memory };
                self.sites.move_block(&site(memory), site(&to), memory.size, time_ns);
                self.add_driver_bytes(memory.device, -i128::from(memory.size));
                self.add_driver_bytes(device, i128::from(memory.size));
                *memory = to;
            }
            memory.pooled = true;
            self.sites.claim(&site(memory), memory.size);
            let size = memory.size;
            self.pools.entry(id).add_segment(start, size, Some(block));
        }
        for (start, size, memory) in self.memory.claim(address, size, id) {
            if let Some(memory) = memory {
                self.sites.claim(&site(&memory), memory.size);
            }
            self.pools.entry(id).add_segment(start, size, None);
        }
    }

    fn count_alloc(&mut self, memory: &Memory, time_ns: u64) {
        self.sites.alloc(site(memory), memory.size, Some(memory.size), time_ns);
        self.add_driver_bytes(memory.device, i128::from(memory.size));
    }

    fn count_frees(&mut self, gone: impl IntoIterator<Item = Memory>) {
        for memory in gone {
            self.sites.free(&site(&memory), memory.size, Some(memory.size));
            if memory.pooled {
                self.sites.pool(&site(&memory), memory.size, false);
            }
            self.add_driver_bytes(memory.device, -i128::from(memory.size));
        }
    }

    fn count_restore(&mut self, memory: &Memory) {
        self.sites.restore(&site(memory), memory.size, Some(memory.size));
        if memory.pooled {
            self.sites.pool(&site(memory), memory.size, true);
        }
        self.add_driver_bytes(memory.device, i128::from(memory.size));
    }

    fn add_driver_bytes(&mut self, device: Option<Device>, bytes: i128) {
        let sum = self.driver_bytes.entry(device).or_default();
        *sum = (i128::from(*sum) + bytes).clamp(0, i128::from(u64::MAX)) as u64;
    }
}

fn site(memory: &Memory) -> SiteKey {
    SiteKey { level: Level::Driver, device: memory.device, stack: memory.stack }
}

fn cpu(stack: StackIndex) -> SiteKey {
    SiteKey { level: Level::Cpu, device: None, stack }
}

fn pinned(stack: StackIndex) -> SiteKey {
    SiteKey { level: Level::Pinned, device: None, stack }
}

#[cfg(test)]
mod tests;
