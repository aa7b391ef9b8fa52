//! Programs on functions: their names, and what each is told at a hit.

use crate::model::DriverCall;

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
    /// A hook of a pool's: one of [`tracer_common::wire::probe`].
    Hook(u8),
    /// A hook of a BFC allocator's: one of [`tracer_common::wire::probe`], and where in the allocator its
    /// name is (0: not known).
    Bfc {
        /// Which framework.
        probe: u8,
        /// Bytes from the start of the allocator.
        name_offset: u64,
    },
    /// Entry of a pool's function whose result is needed.
    PoolEntry(PoolFunction),
    /// Its return.
    PoolReturn(PoolFunction),
    /// An instruction of it that returns, in the place of the return.
    PoolExit(PoolFunction),
    /// PyTorch's trace of requests and segments, and what it tells: bits of
    /// [`tracer_common::wire::trace_facts`].
    TorchTrace(u64),
    /// A backward pass of PyTorch's begins.
    BackwardBegins,
    /// A thread takes up a node of it.
    BackwardNode,
    /// It is over: an instruction of the function that returns.
    BackwardEnds,
    /// The end of a tensor in host memory.
    TorchCpuDelete,
    /// CPython's `code_dealloc`.
    CodeDealloc,
    /// CPython's `PyEval_EvalCode`, by which IPython runs a cell.
    CellStarts,
    /// The dynamic loader's `_dl_debug_state`.
    LibrariesChanged,
}

/// A function of a pool's that returns a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PoolFunction {
    /// One of [`tracer_common::wire::probe`].
    pub probe: u8,
    /// Where in the pool, which is the first argument, its name is; 0: nowhere.
    pub name_offset: u64,
}

impl PoolFunction {
    fn cookie(self) -> u64 {
        u64::from(self.probe) | self.name_offset << 8
    }
}

/// The map of programs that others go on to.
pub(super) const PROGRAMS: &str = "PROGRAMS";

/// The one that defines stacks: its place there, and its name.
pub(super) const DEFINE: (u32, &str) = (0, "define_stack");

/// The names of all programs on functions, and of what they go on to.
pub(super) const UPROBES: [&str; 16] = [
    "driver_entry",
    "driver_return",
    "runtime_entry",
    "runtime_return",
    "pool_hook",
    "pool_entry",
    "pool_result",
    "torch_trace",
    "backward_begins",
    "backward_node",
    "backward_ends",
    "torch_cpu_delete",
    "code_dealloc",
    "cell_starts",
    "libraries_changed",
    DEFINE.1,
];

impl Program {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::DriverEntry(_) => "driver_entry",
            Self::DriverReturn(_) => "driver_return",
            Self::RuntimeEntry(_) => "runtime_entry",
            Self::RuntimeReturn(_) => "runtime_return",
            Self::Hook(_) | Self::Bfc { .. } => "pool_hook",
            Self::PoolEntry(_) => "pool_entry",
            Self::PoolReturn(_) | Self::PoolExit(_) => "pool_result",
            Self::TorchTrace(_) => "torch_trace",
            Self::BackwardBegins => "backward_begins",
            Self::BackwardNode => "backward_node",
            Self::BackwardEnds => "backward_ends",
            Self::TorchCpuDelete => "torch_cpu_delete",
            Self::CodeDealloc => "code_dealloc",
            Self::CellStarts => "cell_starts",
            Self::LibrariesChanged => "libraries_changed",
        }
    }

    /// Whether it runs when the function has returned, to wherever that is.
    pub(super) const fn at_return(self) -> bool {
        matches!(self, Self::DriverReturn(_) | Self::RuntimeReturn(_) | Self::PoolReturn(_))
    }

    /// What the program is told at each hit: which call it is.
    pub(super) fn cookie(self) -> Option<u64> {
        match self {
            Self::DriverEntry(call)
            | Self::DriverReturn(call)
            | Self::RuntimeEntry(call)
            | Self::RuntimeReturn(call) => Some(call.index().into()),
            Self::Hook(probe) => Some(probe.into()),
            Self::Bfc { probe, name_offset } => Some(PoolFunction { probe, name_offset }.cookie()),
            Self::PoolEntry(function) | Self::PoolReturn(function) | Self::PoolExit(function) => {
                Some(function.cookie())
            }
            Self::TorchTrace(facts) => Some(facts),
            _ => None,
        }
    }
}
