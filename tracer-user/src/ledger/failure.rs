//! Allocations that failed.

use std::{borrow::Cow, collections::VecDeque};

use crate::model::{AllocationEvent, DriverCall, StackIndex, Tid};

/// Failures that are kept; older ones are only counted.
const KEPT: usize = 1000;

/// Of these, the last ones that may not be settled.
const OPEN: usize = 64;

/// One failed allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failure {
    /// Nanoseconds of `CLOCK_MONOTONIC`.
    pub time_ns: u64,
    /// The entry point.
    pub call: &'static str,
    /// Bytes asked for.
    pub bytes: u64,
    /// The `CUresult`; `None` if the pool refused without asking the driver.
    pub error: Option<u32>,
    /// Who asked.
    pub stack: StackIndex,
    /// Whether the pool passed it on to the user; `None` while not known.
    pub user_visible: Option<bool>,
    /// The thread.
    tid: Tid,
}

/// The last failures. A pool that is refused memory returns its cache and asks again: what comes next
/// from the same thread tells whether the user saw it.
#[derive(Debug, Default)]
pub struct Failures {
    last: VecDeque<Failure>,
    count: u64,
}

impl Failures {
    pub(super) fn add(
        &mut self,
        event: &AllocationEvent,
        call: DriverCall,
        error: u32,
        stack: StackIndex,
    ) {
        self.push(event, call.symbol(), Some(error), stack, None);
    }

    /// A pool refused by a limit of its own.
    pub(super) fn add_pools_own(&mut self, event: &AllocationEvent, stack: StackIndex) {
        self.push(event, "PyTorch's allocator", None, stack, Some(true));
    }

    fn push(
        &mut self,
        event: &AllocationEvent,
        call: &'static str,
        error: Option<u32>,
        stack: StackIndex,
        user_visible: Option<bool>,
    ) {
        if self.last.len() == KEPT {
            self.last.pop_front();
        }
        self.count += 1;
        let tid = event.tid;
        self.last.push_back(Failure {
            time_ns: event.time_ns,
            call,
            bytes: event.size,
            error,
            stack,
            user_visible,
            tid,
        });
    }

    /// The thread has got memory after all (`false`), or its pool has told the user (`true`).
    /// Returns whether there was a failure to be settled.
    pub(super) fn settle(&mut self, tid: Tid, user_visible: bool) -> bool {
        let open = |failure: &&mut Failure| failure.tid == tid && failure.user_visible.is_none();
        let mut any = false;
        for failure in self.last.iter_mut().rev().take(OPEN).filter(open) {
            failure.user_visible = Some(user_visible);
            any = true;
        }
        any
    }

    /// The last ones, oldest first.
    pub fn last(&self) -> impl Iterator<Item = &Failure> {
        self.last.iter()
    }

    /// How many there were.
    pub fn count(&self) -> u64 {
        self.count
    }
}

/// The name of a `CUresult`, from the public API's documentation.
pub fn error_name(error: u32) -> Cow<'static, str> {
    Cow::Borrowed(match error {
        1 => "CUDA_ERROR_INVALID_VALUE",
        2 => "CUDA_ERROR_OUT_OF_MEMORY",
        3 => "CUDA_ERROR_NOT_INITIALIZED",
        4 => "CUDA_ERROR_DEINITIALIZED",
        // The runtime's own; the others are the same numbers in both.
        35 => "cudaErrorInsufficientDriver",
        100 => "CUDA_ERROR_NO_DEVICE",
        101 => "CUDA_ERROR_INVALID_DEVICE",
        201 => "CUDA_ERROR_INVALID_CONTEXT",
        400 => "CUDA_ERROR_INVALID_HANDLE",
        700 => "CUDA_ERROR_ILLEGAL_ADDRESS",
        709 => "CUDA_ERROR_CONTEXT_IS_DESTROYED",
        712 => "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED",
        719 => "CUDA_ERROR_LAUNCH_FAILED",
        801 => "CUDA_ERROR_NOT_SUPPORTED",
        999 => "CUDA_ERROR_UNKNOWN",
        other => return Cow::Owned(format!("CUresult {other}")),
    })
}
