//! What the kernel half counts, per CPU. User space sums over CPUs.

use crate::plain_data;

/// Counters of one CPU. Nothing that the kernel half gives up on is lost silently: it is here.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Memory events written to the ring buffer.
    pub events: u64,
    /// Memory events that found no space.
    pub dropped_events: u64,
    /// Definitions (code, lines, stack) and process records that found no space.
    pub dropped_definitions: u64,
    /// Drops not yet announced by a [`crate::wire::LossRecord`].
    pub unannounced: u64,
    /// Stacks with more frames than [`crate::wire::MAX_FRAMES`].
    pub truncated_stacks: u64,
    /// Stacks cut because memory was not resident.
    pub faulted_stacks: u64,
    /// Events without a stack because no scratch buffer was free.
    pub busy_stacks: u64,
    /// Driver calls whose entry found no space in the table of calls in flight.
    pub inflight_full: u64,
    /// Returns of driver calls whose entry was not seen.
    pub unpaired_returns: u64,
    /// Code objects that found no space in the table of known ones.
    pub codes_full: u64,
    /// Children of followed processes that found no space in the table of processes.
    pub processes_full: u64,
}

impl Counters {
    /// Adds another CPU's counters.
    pub fn add(&mut self, other: &Self) {
        self.events += other.events;
        self.dropped_events += other.dropped_events;
        self.dropped_definitions += other.dropped_definitions;
        self.unannounced += other.unannounced;
        self.truncated_stacks += other.truncated_stacks;
        self.faulted_stacks += other.faulted_stacks;
        self.busy_stacks += other.busy_stacks;
        self.inflight_full += other.inflight_full;
        self.unpaired_returns += other.unpaired_returns;
        self.codes_full += other.codes_full;
        self.processes_full += other.processes_full;
    }
}

plain_data! { Counters = 88 }
