//! Every map. Names are what user space asks for (`tracer-user/src/bpf`).

use aya_ebpf::{
    macros::map,
    maps::{Array, HashMap, LruHashMap, PerCpuArray, ProgramArray, RingBuf},
};
use tracer_common::{config::ProcessConfig, counters::Counters};

use crate::{
    atomic,
    scratch::{SLOTS, Scratch},
};

/// Records to user space ([`tracer_common::wire`]). User space sets the size.
#[map]
pub static EVENTS: RingBuf = RingBuf::with_byte_size(16 * 1024 * 1024, 0);

/// Traced processes, by tgid. User space fills it; the kernel half adds children of followed
/// processes and removes what ends, because only here it is known before the pid is used again.
#[map]
pub static PROCESSES: HashMap<u32, ProcessConfig> = HashMap::with_max_entries(4096, 0);

/// Counters, one per CPU.
#[map]
pub static COUNTERS: PerCpuArray<Counters> = PerCpuArray::with_max_entries(1, 0);

/// Work space for walks and definitions.
#[map]
pub static SCRATCH: PerCpuArray<Scratch> = PerCpuArray::with_max_entries(SLOTS, 0);

/// Programs that others go on to; user space fills it.
#[map]
pub static PROGRAMS: ProgramArray = ProgramArray::with_max_entries(1, 0);

/// Stacks that user space knows. Eviction only makes a definition travel again.
#[map]
pub static STACKS: LruHashMap<u64, u32> = LruHashMap::with_max_entries(16 * 1024, 0);

/// Code objects that user space knows. Not LRU: an evicted entry would hide that its code object
/// was freed, and a later one at the same address would get its name.
#[map]
pub static CODES: HashMap<CodeKey, u64> = HashMap::with_max_entries(32 * 1024, 0);

/// The last id handed out, to a code object or to the life of a process.
#[map]
pub static LAST_ID: Array<u64> = Array::with_max_entries(1, 0);

/// Driver calls between entry and return, by thread.
#[map]
pub static IN_FLIGHT: HashMap<CallKey, Call> = HashMap::with_max_entries(8 * 1024, 0);

/// What the allocation that a thread is in the middle of was asked for, by thread.
#[map]
pub static REQUESTED: LruHashMap<u64, Requested> = LruHashMap::with_max_entries(16 * 1024, 0);

/// A request of a pool's.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Requested {
    /// The block that it got.
    pub address: u64,
    /// What was asked for.
    pub bytes: u64,
}

/// Pools that user space has the names of.
#[map]
pub static POOLS: LruHashMap<PoolKey, u8> = LruHashMap::with_max_entries(4 * 1024, 0);

/// A pool of a process.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct PoolKey {
    /// Address of the allocator.
    pub pool: u64,
    /// The life of the process ([`ProcessConfig::life`]).
    pub life: u64,
}
/// Calls of the runtime between entry and return, by thread. LRU: a thread can end inside of one.
#[map]
pub static RUNTIME: LruHashMap<u64, RuntimeCall> = LruHashMap::with_max_entries(8 * 1024, 0);

/// A code object of a process.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct CodeKey {
    /// Address of the code object.
    pub address: u64,
    /// The life of the process ([`ProcessConfig::life`]).
    pub life: u64,
}

/// A driver call in progress.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct CallKey {
    /// Thread and process, as `bpf_get_current_pid_tgid` gives them.
    pub thread: u64,
    /// Its place in [`tracer_common::calls::CALLS`].
    pub call: u64,
}

/// What the entry of a driver call saw.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Call {
    /// The arguments.
    pub arguments: [u64; 6],
    /// Return address.
    pub caller: u64,
    /// Not 0 if the runtime's call around it has told of it already.
    pub told: u64,
}

/// An id that was not handed out before.
#[inline(always)]
pub fn next_id() -> Option<u64> {
    let last = LAST_ID.get_ptr_mut(0)?;
    // SAFETY: a map value, only touched atomically.
    Some(unsafe { atomic::fetch_add(last, 1) } + 1)
}

/// What the entry of a call of the runtime saw.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct RuntimeCall {
    /// Arguments and return address.
    pub call: Call,
    /// Its place in [`tracer_common::calls::CALLS`].
    pub index: u64,
    /// What it does ([`tracer_common::calls::op`]).
    pub op: u64,
    /// Where its return address lies: calls inside have theirs below.
    pub stack_pointer: u64,
    /// Not 0 once a call of the driver inside has told of it.
    pub answered: u64,
}
