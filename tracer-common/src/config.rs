//! What user space tells the kernel half about a traced process.

use crate::{plain_data, python::layout::PythonLayout};

/// Where a thread finds its Python thread state ([`ThreadStateSource::kind`]).
pub mod thread_state_kind {
    /// Python stacks are off.
    pub const NONE: u32 = 0;
    /// The pthread key `autoTSSkey` (CPython 3.8–3.14 on glibc): two dependent reads.
    pub const PTHREAD_KEY: u32 = 1;
    /// A thread-local variable at a fixed offset from the thread pointer (CPython 3.15, in a program).
    pub const TLS: u32 = 2;
    /// A thread-local variable of a library (CPython 3.15), whose block is found through the thread's
    /// vector of blocks: three dependent reads.
    pub const TLS_OF_LIBRARY: u32 = 3;
}

/// How to find the Python thread state of the current thread from its thread pointer (fs base).
///
/// The *gilstate slot* is used, not the current thread state: the latter is null, or another
/// thread's, whenever the GIL is released, as it is at most allocations of PyTorch.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ThreadStateSource {
    /// One of [`thread_state_kind`].
    pub kind: u32,
    /// Pthread key: offset of the value inside the second-level block. Of a library: offset of its
    /// block's pointer in the vector.
    pub slot: u32,
    /// Pthread key: offset from the thread pointer of the pointer to the second-level block.
    /// TLS: offset of the variable from the thread pointer; of a library's, in its block.
    pub offset: i64,
}

/// How to tell which interpreter a thread runs, up to CPython 3.11 ([`crate::python::subinterpreters`]).
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Interpreters {
    /// Address of `_PyRuntime.gilstate.tstate_current`; 0 where the slot is always right.
    pub current: u64,
    /// Address of `_PyRuntime.interpreters.head`.
    pub head: u64,
    /// The main interpreter.
    pub main: u64,
    /// `PyThreadState.thread_id`.
    pub thread_id: u32,
    /// Zero.
    pub pad: u32,
}

/// Value of the `PROCESSES` map, by tgid. A process that is not in the map is not traced.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProcessConfig {
    /// Where the thread state is.
    pub thread_state: ThreadStateSource,
    /// Which of its thread states a thread runs.
    pub interpreters: Interpreters,
    /// Bumped by the kernel half whenever a known code object is freed; seeds the stack hash, so
    /// that a stack id never names a code object that took the address of a freed one.
    pub generation: u64,
    /// Number of this life of the process, never reused while the tracer runs: a pid is. It is part
    /// of the key of every code object, and seeds the stack hash.
    pub life: u64,
    /// Entry points of the runtime, a bit each ([`crate::calls::FIRST_RUNTIME`] is the lowest), inside of
    /// which the driver's were seen to do the work. The kernel half finds that out.
    pub answered: u64,
    /// Whether its children are traced, and what it becomes by `execve` (0 or 1).
    pub follow: u32,
    /// Whether stacks are taken to their end, and not only up to the boundary (0 or 1).
    pub full_stacks: u32,
    /// Code object of IPython's `run_code`, which runs the cells of a notebook; 0 as long as it is not
    /// known. The kernel half finds it.
    pub boundary: u64,
    /// Offsets inside the interpreter's structures.
    pub layout: PythonLayout,
}

/// Lives that user space hands out have this bit; the kernel half numbers those of children.
pub const USER_LIFE: u64 = 1 << 63;

plain_data! {
    ThreadStateSource = 16,
    Interpreters = 32,
    ProcessConfig = 88 + 56,
}
