//! The kernel half from user space: load, attach, configure, drain.
//!
//! The object is built by `cargo xtask build-ebpf` and embedded. Dropping [`Kernel`] closes every
//! descriptor, and with that the kernel removes every probe; so does the death of the tracer.

mod error;

use std::{
    error::Error,
    num::NonZeroU32,
    panic::resume_unwind,
    path::{Path, PathBuf},
    thread,
};

use aya::{
    Ebpf, EbpfLoader,
    maps::{HashMap, MapData, PerCpuArray, RingBuf},
    programs::{
        RawTracePoint, UProbe,
        uprobe::{UProbeAttachLocation, UProbeAttachPoint, UProbeLink, UProbeScope},
    },
};
use tracer_common::{config::ProcessConfig, counters::Counters};

pub use self::error::{AttachError, LoadError};
use crate::{
    model::{DriverCall, Pid},
    sys::btf::{self, BtfError},
};

/// Bytes of the ring buffer: room for 230,000 events between two drains.
pub const DEFAULT_RING_BYTES: u32 = 16 * 1024 * 1024;

static OBJECT: &[u8] = aya::include_bytes_aligned!("../../../tracer-ebpf/cudatrace.bpf.o");

const CONFIG_SIZE: usize = size_of::<ProcessConfig>();
const COUNTERS_SIZE: usize = size_of::<Counters>();

/// Programs of the kernel half that hang on a function of a library. The names are those of the
/// functions in `tracer-ebpf/src/probes`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Program {
    /// Entry of a call of the CUDA driver.
    DriverEntry(DriverCall),
    /// Its return.
    DriverReturn(DriverCall),
    /// Entry of a call of the CUDA runtime.
    RuntimeEntry(DriverCall),
    /// Its return.
    RuntimeReturn(DriverCall),
    /// A hook of PyTorch's that takes the stack: one of [`tracer_common::wire::probe`].
    Torch(u8),
    /// PyTorch's trace of requests and segments, and whether it has an argument for the device.
    TorchTrace(bool),
    /// The end of a tensor in host memory.
    TorchCpuDelete,
    /// CPython's `code_dealloc`.
    CodeDealloc,
    /// The dynamic loader's `_dl_debug_state`.
    LibrariesChanged,
}

/// The names of all programs on functions.
const UPROBES: [&str; 9] = [
    "driver_entry",
    "driver_return",
    "runtime_entry",
    "runtime_return",
    "torch_report",
    "torch_trace",
    "torch_cpu_delete",
    "code_dealloc",
    "libraries_changed",
];

impl Program {
    const fn name(self) -> &'static str {
        match self {
            Self::DriverEntry(_) => "driver_entry",
            Self::DriverReturn(_) => "driver_return",
            Self::RuntimeEntry(_) => "runtime_entry",
            Self::RuntimeReturn(_) => "runtime_return",
            Self::Torch(_) => "torch_report",
            Self::TorchTrace(_) => "torch_trace",
            Self::TorchCpuDelete => "torch_cpu_delete",
            Self::CodeDealloc => "code_dealloc",
            Self::LibrariesChanged => "libraries_changed",
        }
    }

    /// What the program is told at each hit: which call it is.
    fn cookie(self) -> Option<u64> {
        match self {
            Self::DriverEntry(call)
            | Self::DriverReturn(call)
            | Self::RuntimeEntry(call)
            | Self::RuntimeReturn(call) => Some(call.index().into()),
            Self::Torch(probe) => Some(probe.into()),
            Self::TorchTrace(has_device) => Some(has_device.into()),
            _ => None,
        }
    }
}

/// Raw tracepoints: program and tracepoint.
const TRACEPOINTS: [(&str, &str); 2] =
    [("process_exit", "sched_process_exit"), ("process_exec", "sched_process_exec")];

/// How to load.
#[derive(Clone, Debug)]
pub struct LoadOptions {
    /// Bytes of the ring buffer: a power of two and a multiple of the page size.
    pub ring_bytes: u32,
    /// Forward the kernel half's log records (`--log-ebpf`).
    pub log: bool,
}

impl Default for LoadOptions {
    fn default() -> Self {
        Self { ring_bytes: DEFAULT_RING_BYTES, log: false }
    }
}

/// The loaded kernel half.
pub struct Kernel {
    ebpf: Ebpf,
    links: Vec<UProbeLink>,
    events: RingBuf<MapData>,
    processes: HashMap<MapData, u32, [u8; CONFIG_SIZE]>,
    counters: PerCpuArray<MapData, [u8; COUNTERS_SIZE]>,
    log: Option<aya_log::EbpfLogger<&'static dyn log::Log>>,
    fsbase: Result<u32, BtfError>,
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
        let fsbase = btf::fsbase_offset(Path::new(btf::KERNEL_BTF));
        let offset = *fsbase.as_ref().unwrap_or(&0);
        let log_level = u8::from(options.log) * 5;
        let mut ebpf = EbpfLoader::new()
            .override_global("FSBASE_OFFSET", &offset, true)
            .override_global("AYA_LOG_LEVEL", &log_level, false)
            .map_max_entries("EVENTS", options.ring_bytes)
            .load(OBJECT)
            .map_err(LoadError::from_aya)?;
        let log = if options.log { aya_log::EbpfLogger::init(&mut ebpf).ok() } else { None };

        let mut take = |name: &'static str| ebpf.take_map(name).ok_or(LoadError::Object(name));
        let events = RingBuf::try_from(take("EVENTS")?).map_err(LoadError::map)?;
        let processes = HashMap::try_from(take("PROCESSES")?).map_err(LoadError::map)?;
        let counters = PerCpuArray::try_from(take("COUNTERS")?).map_err(LoadError::map)?;
        let mut kernel = Self { ebpf, links: Vec::new(), events, processes, counters, log, fsbase };
        for name in UPROBES {
            kernel.uprobe(name)?.load().map_err(|e| LoadError::program(name, e))?;
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
        Ok(kernel)
    }

    fn uprobe(&mut self, name: &'static str) -> Result<&mut UProbe, LoadError> {
        self.ebpf
            .program_mut(name)
            .and_then(|program| program.try_into().ok())
            .ok_or(LoadError::Object(name))
    }

    /// Why Python stacks cannot be taken on this kernel, if so.
    pub fn python_stacks_unavailable(&self) -> Option<&BtfError> {
        self.fsbase.as_ref().err()
    }

    /// Attaches programs to places in files, for one process, and says of each how it went. A file need
    /// not be mapped yet: the probe is there from its first mapping on.
    pub fn attach(&mut self, places: &[Place], pid: Pid) -> Vec<Result<(), AttachError>> {
        let Some(scope) = NonZeroU32::new(pid.0).map(UProbeScope::OneProcess) else {
            return places.iter().map(|place| Err(place.error("pid 0"))).collect();
        };
        let prepared: Vec<_> = places.iter().map(|place| (place, self.handle(place))).collect();
        // The kernel waits for a grace period at each; threads wait for the same one.
        let results = in_parallel(prepared, |(place, handle)| attach_one(place, handle?, scope));
        results.into_iter().map(|result| result.map(|link| self.links.push(link))).collect()
    }

    /// Another handle to a loaded program, so that several threads can attach it.
    fn handle(&mut self, place: &Place) -> Result<UProbe, AttachError> {
        let name = place.program.name();
        let program = self.uprobe(name).map_err(|e| place.error(e))?;
        let kind = program.kind();
        let info = program.info().map_err(|e| place.error(e))?;
        // SAFETY: the program is one of ours, and of the kind that it was loaded as.
        unsafe { UProbe::from_program_info(info, name.into(), kind) }.map_err(|e| place.error(e))
    }

    /// Starts, or changes, the tracing of a process.
    ///
    /// # Errors
    ///
    /// When the map is full.
    pub fn set_process(&mut self, pid: Pid, config: &ProcessConfig) -> Result<(), LoadError> {
        let mut value = [0u8; CONFIG_SIZE];
        value.copy_from_slice(bytemuck::bytes_of(config));
        self.processes.insert(pid.0, value, 0).map_err(LoadError::map)
    }

    /// Stops the tracing of a process. Probes stay until the kernel half is dropped, but they report
    /// nothing.
    pub fn remove_process(&mut self, pid: Pid) {
        // An error means that it was not traced.
        let _ = self.processes.remove(&pid.0);
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

/// A program and where to attach it.
#[derive(Clone, Debug)]
pub struct Place {
    /// The program.
    pub program: Program,
    /// The file.
    pub path: PathBuf,
    /// Offset in the file.
    pub offset: u64,
}

impl Place {
    fn error(&self, source: impl Into<Box<dyn Error + Send + Sync>>) -> AttachError {
        AttachError { path: self.path.clone(), offset: self.offset, source: source.into() }
    }
}

fn attach_one(
    place: &Place,
    mut program: UProbe,
    scope: UProbeScope,
) -> Result<UProbeLink, AttachError> {
    let point = UProbeAttachPoint {
        location: UProbeAttachLocation::AbsoluteOffset(place.offset),
        cookie: place.program.cookie(),
    };
    let link = program.attach(point, &place.path, scope).map_err(|e| place.error(e))?;
    program.take_link(link).map_err(|e| place.error(e))
}

/// Threads that wait for the kernel.
const WORKERS: usize = 32;

/// Runs `work` on every item, on many threads, and returns the results in order.
fn in_parallel<T: Send, R: Send>(items: Vec<T>, work: impl Fn(T) -> R + Sync) -> Vec<R> {
    let size = items.len().div_ceil(WORKERS).max(1);
    let mut items = items.into_iter();
    let chunks = std::iter::from_fn(|| {
        let chunk: Vec<T> = items.by_ref().take(size).collect();
        (!chunk.is_empty()).then_some(chunk)
    });
    thread::scope(|scope| {
        let threads: Vec<_> = chunks
            .map(|chunk| scope.spawn(|| chunk.into_iter().map(&work).collect::<Vec<R>>()))
            .collect();
        threads
            .into_iter()
            .flat_map(|thread| thread.join().unwrap_or_else(|panic| resume_unwind(panic)))
            .collect()
    })
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
