//! The kernel half from user space: load, attach, configure, drain.
//!
//! The object is built by `cargo xtask build-ebpf` and embedded. Dropping [`Kernel`] closes every
//! descriptor, and with that the kernel removes every probe; so does the death of the tracer.

mod attach;
mod error;
mod multi;
mod program;

use std::{
    collections::HashSet,
    fs,
    num::NonZeroU32,
    os::fd::{AsFd as _, AsRawFd as _, BorrowedFd},
    path::Path,
};

use aya::{
    Ebpf, EbpfLoader,
    maps::{HashMap, MapData, PerCpuArray, ProgramArray, RingBuf},
    programs::{ProbeKind, RawTracePoint, UProbe, uprobe::UProbeScope},
};
use tracer_common::{
    config::{ProcessConfig, USER_LIFE},
    counters::Counters,
};

use self::{
    attach::{Link, attach_many, attach_one, in_parallel},
    multi::MultiPrograms,
    program::{DEFINE, PROGRAMS, UPROBES},
};
pub use self::{
    attach::{Place, Scope},
    error::{AttachError, LoadError},
    program::{PoolFunction, Program},
};
use crate::{
    model::Pid,
    sys::btf::{self, BtfError, TaskOffsets},
};

/// Bytes of the ring buffer: room for 230,000 events between two drains.
pub const DEFAULT_RING_BYTES: u32 = 16 * 1024 * 1024;

static OBJECT: &[u8] = aya::include_bytes_aligned!("../../../tracer-ebpf/cudatrace.bpf.o");

const CONFIG_SIZE: usize = size_of::<ProcessConfig>();
const COUNTERS_SIZE: usize = size_of::<Counters>();

/// Raw tracepoints: program and tracepoint.
const TRACEPOINTS: [(&str, &str); 3] = [
    ("process_fork", "sched_process_fork"),
    ("process_exec", "sched_process_exec"),
    ("process_exit", "sched_process_exit"),
];

/// How to load.
#[derive(Clone, Debug)]
pub struct LoadOptions {
    /// Bytes of the ring buffer: a power of two and a multiple of the page size.
    pub ring_bytes: u32,
    /// Forward the kernel half's log records (`--log-ebpf`).
    pub log: bool,
    /// Trace the children of the traced processes as well (`--follow-fork`). Probes are then attached
    /// for whoever maps a library, and the kernel half picks out whose hits count.
    pub follow: bool,
    /// Take the stacks of a notebook to their end, and not only up to IPython's `run_code`, outside of
    /// which they are all the same (`--full-stacks`).
    pub full_stacks: bool,
}

impl Default for LoadOptions {
    fn default() -> Self {
        Self { ring_bytes: DEFAULT_RING_BYTES, log: false, follow: false, full_stacks: false }
    }
}

/// The loaded kernel half.
pub struct Kernel {
    ebpf: Ebpf,
    links: Vec<Link>,
    /// Unless the kernel is too old for them.
    multi: Option<MultiPrograms>,
    events: RingBuf<MapData>,
    processes: HashMap<MapData, u32, [u8; CONFIG_SIZE]>,
    counters: PerCpuArray<MapData, [u8; COUNTERS_SIZE]>,
    codes: HashMap<MapData, [u64; 2], u64>,
    in_flight: HashMap<MapData, [u64; 2], [u64; 8]>,
    requested: HashMap<MapData, u64, [u64; 2]>,
    /// Lives handed out.
    lives: u64,
    log: Option<aya_log::EbpfLogger<&'static dyn log::Log>>,
    offsets: Result<TaskOffsets, BtfError>,
}

/// Entries of the kernel half's tables that belong to processes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Occupancy {
    /// Traced processes.
    pub processes: usize,
    /// Code objects that are known.
    pub codes: usize,
    /// Driver calls between entry and return.
    pub in_flight: usize,
    /// Requests of pools between two hooks.
    pub requested: usize,
}

impl Kernel {
    /// Loads maps and programs, and attaches the tracepoints.
    ///
    /// # Errors
    ///
    /// [`LoadError`] says which privilege or kernel feature is missing.
    pub fn load(options: &LoadOptions) -> Result<Self, LoadError> {
        raise_memlock_limit();
        error::check_ring_buffer()?;
        let offsets = btf::task_offsets(Path::new(btf::KERNEL_BTF));
        let known = offsets.as_ref().copied().unwrap_or_default();
        let log_level = u8::from(options.log) * 5;
        let mut ebpf = EbpfLoader::new()
            .override_global("FSBASE_OFFSET", &known.fsbase, true)
            .override_global("TASK_TGID", &known.tgid, true)
            .override_global("TASK_SIGNAL", &known.signal, true)
            .override_global("TASK_EXIT_CODE", &known.exit_code, true)
            .override_global("SIGNAL_LIVE", &known.live, true)
            .override_global("AYA_LOG_LEVEL", &log_level, false)
            .map_max_entries("EVENTS", options.ring_bytes)
            .load(OBJECT)
            .map_err(LoadError::from_aya)?;
        let log = if options.log { aya_log::EbpfLogger::init(&mut ebpf).ok() } else { None };

        let multi = match multi::check_links() {
            Ok(()) => Some(MultiPrograms::load(OBJECT, &ebpf, &UPROBES)?),
            Err(error) => {
                tracing::debug!("each probe is attached by itself: {error}");
                None
            }
        };
        let mut take = |name: &'static str| ebpf.take_map(name).ok_or(LoadError::Object(name));
        let events = RingBuf::try_from(take("EVENTS")?).map_err(LoadError::map)?;
        let processes = HashMap::try_from(take("PROCESSES")?).map_err(LoadError::map)?;
        let counters = PerCpuArray::try_from(take("COUNTERS")?).map_err(LoadError::map)?;
        let codes = HashMap::try_from(take("CODES")?).map_err(LoadError::map)?;
        let in_flight = HashMap::try_from(take("IN_FLIGHT")?).map_err(LoadError::map)?;
        let requested = HashMap::try_from(take("REQUESTED")?).map_err(LoadError::map)?;
        let mut kernel = Self {
            ebpf,
            links: Vec::new(),
            multi,
            events,
            processes,
            counters,
            codes,
            in_flight,
            requested,
            lives: 0,
            log,
            offsets,
        };
        let single = if kernel.multi.is_none() { UPROBES.as_slice() } else { &[] };
        for &name in single {
            kernel.uprobe(name)?.load().map_err(|e| LoadError::program(name, e))?;
            tracing::debug!("loaded `{name}`");
        }
        if kernel.multi.is_none() {
            let (index, name) = DEFINE;
            let define = kernel.uprobe(name)?.fd().map_err(|e| LoadError::program(name, e))?;
            let define = define.try_clone().map_err(|e| LoadError::program(name, e))?;
            // The kernel empties such a map once nobody outside has it: it stays with the others.
            let map = kernel.ebpf.map_mut(PROGRAMS).ok_or(LoadError::Object(PROGRAMS))?;
            let mut programs = ProgramArray::try_from(map).map_err(LoadError::map)?;
            programs.set(index, &define, 0).map_err(LoadError::map)?;
        }
        for (name, tracepoint) in TRACEPOINTS {
            let program: &mut RawTracePoint = kernel
                .ebpf
                .program_mut(name)
                .and_then(|program| program.try_into().ok())
                .ok_or(LoadError::Object(name))?;
            program.load().map_err(|e| LoadError::program(name, e))?;
            program.attach(tracepoint).map_err(|e| LoadError::program(name, e))?;
        }
        for (name, verified) in kernel.verified() {
            tracing::debug!("program {name}: {} instructions verified", verified.unwrap_or(0));
        }
        Ok(kernel)
    }

    fn uprobe(&mut self, name: &'static str) -> Result<&mut UProbe, LoadError> {
        self.ebpf
            .program_mut(name)
            .and_then(|program| program.try_into().ok())
            .ok_or(LoadError::Object(name))
    }

    /// Every program, and how many instructions the verifier went through for it; kernels before 5.16 do
    /// not tell.
    pub fn verified(&self) -> Vec<(String, Option<u64>)> {
        let single = self.ebpf.programs().filter_map(|(name, program)| {
            Some((name.to_owned(), verified_instructions(program.fd().ok()?.as_fd())))
        });
        let multi = self.multi.iter().flat_map(MultiPrograms::descriptors);
        let mut programs: Vec<(String, Option<u64>)> = single
            .chain(multi.map(|(name, fd)| (name.to_owned(), verified_instructions(fd))))
            .collect();
        programs.sort_unstable();
        programs
    }

    /// Whether many probes are attached at once.
    pub fn attaches_many(&self) -> bool {
        self.multi.is_some()
    }

    /// Why there are no Python stacks on this kernel, and no records of forks and exits, if so.
    pub fn types_unavailable(&self) -> Option<&BtfError> {
        self.offsets.as_ref().err()
    }

    /// Attaches programs to places in files, for one process or for all, and says of each how it went.
    /// A file need not be mapped yet: the probe is there from its first mapping on.
    pub fn attach(&mut self, places: &[Place], scope: Scope) -> Vec<Result<(), AttachError>> {
        if let Some(multi) = &self.multi {
            let results = attach_many(multi, places, scope);
            return results
                .into_iter()
                .map(|result| result.map(|link| self.links.extend(link.map(Link::Many))))
                .collect();
        }
        let scope = match scope {
            Scope::AllProcesses => UProbeScope::AllProcesses,
            Scope::Process(pid) => match NonZeroU32::new(pid.0) {
                Some(pid) => UProbeScope::OneProcess(pid),
                None => return places.iter().map(|place| Err(place.error("pid 0"))).collect(),
            },
        };
        let prepared: Vec<_> = places.iter().map(|place| (place, self.handle(place))).collect();
        // The kernel waits for a grace period at each; threads wait for the same one.
        let results = in_parallel(prepared, |(place, handle)| attach_one(place, handle?, scope));
        results
            .into_iter()
            .map(|result| result.map(|link| self.links.push(Link::One(link))))
            .collect()
    }

    /// Another handle to a loaded program, so that several threads can attach it.
    fn handle(&mut self, place: &Place) -> Result<UProbe, AttachError> {
        let name = place.program.name();
        let program = self.uprobe(name).map_err(|e| place.error(e))?;
        let kind = if place.program.at_return() { ProbeKind::Return } else { ProbeKind::Entry };
        let info = program.info().map_err(|e| place.error(e))?;
        // SAFETY: the program is one of ours; at an entry and at a return it is of the same type.
        unsafe { UProbe::from_program_info(info, name.into(), kind) }.map_err(|e| place.error(e))
    }

    /// Starts the tracing of a process.
    ///
    /// # Errors
    ///
    /// When the map is full.
    pub fn set_process(&mut self, pid: Pid, config: &ProcessConfig) -> Result<(), LoadError> {
        self.put_process(pid, config, 0)
    }

    /// Changes what is known of a process; an error if it is not traced any more.
    ///
    /// # Errors
    ///
    /// When it is not in the map.
    pub fn change_process(&mut self, pid: Pid, config: &ProcessConfig) -> Result<(), LoadError> {
        const BPF_EXIST: u64 = 2;
        self.put_process(pid, config, BPF_EXIST)
    }

    fn put_process(
        &mut self,
        pid: Pid,
        config: &ProcessConfig,
        flags: u64,
    ) -> Result<(), LoadError> {
        self.lives += 1;
        let config = ProcessConfig { life: USER_LIFE | self.lives, ..*config };
        let mut value = [0u8; CONFIG_SIZE];
        value.copy_from_slice(bytemuck::bytes_of(&config));
        self.processes.insert(pid.0, value, flags).map_err(LoadError::map)
    }

    /// Whether a process is traced. Those that end are removed by the kernel half itself.
    pub fn has_process(&self, pid: Pid) -> bool {
        self.processes.get(&pid.0, 0).is_ok()
    }

    /// Stops the tracing of a process. Probes stay until the kernel half is dropped, but they report
    /// nothing.
    pub fn remove_process(&mut self, pid: Pid) {
        // An error means that it was not traced.
        let _ = self.processes.remove(&pid.0);
    }

    /// Stops the tracing of every process.
    pub fn remove_all_processes(&mut self) {
        let pids: Vec<u32> = self.processes.keys().flatten().collect();
        for pid in pids {
            self.remove_process(Pid(pid));
        }
    }

    /// Removes what processes that are not traced any more have left in the tables.
    pub fn sweep(&mut self) {
        // First what there is, then who is still alive: what a new process adds is not looked at.
        let codes: Vec<[u64; 2]> = self.codes.keys().flatten().collect();
        let calls: Vec<[u64; 2]> = self.in_flight.keys().flatten().collect();
        let requests: Vec<u64> = self.requested.keys().flatten().collect();
        let mut lives = HashSet::new();
        let mut pids = HashSet::new();
        for (pid, value) in self.processes.iter().flatten() {
            lives.insert(bytemuck::pod_read_unaligned::<ProcessConfig>(&value).life);
            pids.insert(u64::from(pid));
        }
        // `CodeKey` and `CallKey` of the kernel half: address and life; thread (with the process in
        // its upper half) and call.
        for key in codes.iter().filter(|[_, life]| !lives.contains(life)) {
            let _ = self.codes.remove(key);
        }
        for key in calls.iter().filter(|[thread, _]| !pids.contains(&(thread >> 32))) {
            let _ = self.in_flight.remove(key);
        }
        for thread in requests.iter().filter(|thread| !pids.contains(&(*thread >> 32))) {
            let _ = self.requested.remove(thread);
        }
    }

    /// How full the tables are.
    pub fn occupancy(&self) -> Occupancy {
        Occupancy {
            processes: self.processes.keys().count(),
            codes: self.codes.keys().count(),
            in_flight: self.in_flight.keys().count(),
            requested: self.requested.keys().count(),
        }
    }

    /// Hands every record that is in the ring buffer to `sink`, oldest first; returns how many.
    pub fn drain(&mut self, mut sink: impl FnMut(&[u8])) -> usize {
        let mut count = 0;
        while let Some(record) = self.events.next() {
            sink(&record);
            count += 1;
        }
        if let Some(log) = &mut self.log {
            log.flush();
        }
        count
    }

    /// The kernel half's counters, summed over CPUs.
    ///
    /// # Errors
    ///
    /// When the map cannot be read.
    pub fn counters(&self) -> Result<Counters, LoadError> {
        let mut sum = Counters::default();
        let values = self.counters.get(&0, 0).map_err(LoadError::map)?;
        for value in values.iter() {
            sum.add(&bytemuck::pod_read_unaligned(value));
        }
        Ok(sum)
    }
}

impl Drop for Kernel {
    fn drop(&mut self) {
        // Each takes a grace period of the kernel's.
        in_parallel(std::mem::take(&mut self.links), drop);
    }
}

/// What the kernel says about the descriptor of a program.
fn verified_instructions(program: BorrowedFd<'_>) -> Option<u64> {
    let path = format!("/proc/self/fdinfo/{}", program.as_raw_fd());
    let text = fs::read_to_string(path).ok()?;
    let field = text.lines().find_map(|line| line.strip_prefix("verified_insns:"))?;
    field.trim().parse().ok()
}

/// Kernels before 5.11 charge maps to `RLIMIT_MEMLOCK`. Where it cannot be raised and is needed,
/// loading fails and says so; where it is not needed, nothing is lost.
fn raise_memlock_limit() {
    let unlimited = libc::rlimit { rlim_cur: libc::RLIM_INFINITY, rlim_max: libc::RLIM_INFINITY };
    // SAFETY: the argument is a valid struct; failure is allowed.
    if unsafe { libc::setrlimit(libc::RLIMIT_MEMLOCK, &raw const unlimited) } != 0 {
        tracing::debug!("RLIMIT_MEMLOCK cannot be raised; kernels since 5.11 do not need it");
    }
}
