//! PyTorch's backward passes, whose work is done on threads that have no Python frame: which line began
//! the work that a thread is doing.
//!
//! - [`backward_begins`], `Engine::execute_with_graph_task(this, const shared_ptr<GraphTask>&, …)`: on the
//!   thread that called `.backward()` or `torch.autograd.grad`, which waits in it until the pass is over. It
//!   returns an object, so its arguments come after the address for that.
//! - [`backward_node`], `Engine::evaluate_function(this, shared_ptr<GraphTask>&, …)`: a thread begins with a
//!   node of the graph: one of the device's, or the one that waits.
//! - [`backward_ends`], where the first of these returns. It may throw, so that its return is left alone; then
//!   the engine has run no node.
//!
//! A thread that waits takes up other nodes, also those of other passes: a node in Python can begin a pass of
//! its own on a thread of a device's, where the nodes of everybody's passes queue. Its Python frames say
//! nothing about those. So what tells is the innermost frame: as long as it is the one that it was when the
//! node began, no Python runs inside of the node, and what it allocates is due to who began its pass. The
//! stack of Python that does run inside goes on, at that frame, with the stack that began the pass.
//!
//! A pass that began before the tracer came is not known, nor one of `torch.distributed.autograd`, which
//! has an engine of its own: what they allocate has no stack.

use core::{mem::offset_of, ptr::read_volatile};

use aya_ebpf::{
    EbpfContext as _,
    bindings::pt_regs,
    macros::{map, uprobe},
    maps::LruHashMap,
    programs::ProbeContext,
};
use tracer_common::{
    ReadMem as _,
    config::{ProcessConfig, thread_state_kind},
    counters::Counters,
    python::walk::innermost,
    wire::{stack_flag, tag},
};

use super::pool;
use crate::{
    define::define,
    emit,
    memory::CurrentProcess,
    scratch,
    stack::{self, Taken},
    target::Target,
};

/// Passes that are going on.
#[map]
static PASSES: LruHashMap<PassKey, Pass> = LruHashMap::with_max_entries(16 * 1024, 0);

/// What a thread does for a pass, by thread.
#[map]
static WORK: LruHashMap<u64, Work> = LruHashMap::with_max_entries(16 * 1024, 0);

/// A pass of a process.
#[repr(C)]
#[derive(Clone, Copy)]
struct PassKey {
    /// Address of its `GraphTask`.
    task: u64,
    /// The life of the process ([`ProcessConfig::life`]).
    life: u64,
}

/// A pass.
#[repr(C)]
#[derive(Clone, Copy)]
struct Pass {
    /// Id of the stack that began it; 0: not known.
    stack: u64,
    /// What its thread was doing before.
    outer: Work,
}

/// What a thread does.
#[repr(C)]
#[derive(Clone, Copy)]
struct Work {
    /// Id of the stack that began the pass of its node; 0: not known.
    stack: u64,
    /// The innermost frame when it took up the node, 0 for none; [`NO_NODE`].
    frame: u64,
    /// The pass that it waits for, the last one if there are several; 0: none.
    waits_for: u64,
    /// The life of the process. Thread ids are used again.
    life: u64,
}

impl Work {
    /// None.
    #[inline(always)]
    const fn idle(life: u64) -> Self {
        Self { stack: 0, frame: NO_NODE, waits_for: 0, life }
    }
}

/// In the place of a frame: it has taken up no node yet.
const NO_NODE: u64 = u64::MAX;

#[uprobe]
pub fn backward_begins(ctx: ProbeContext) -> u32 {
    let _ = try_begins(&ctx);
    0
}

#[uprobe]
pub fn backward_node(ctx: ProbeContext) -> u32 {
    let _ = try_node(&ctx);
    0
}

#[uprobe]
pub fn backward_ends(_ctx: ProbeContext) -> u32 {
    let _ = try_end();
    0
}

/// The node that the current thread is in, if any, as far as stacks go.
#[derive(Clone, Copy)]
pub struct Node {
    /// Id of the stack that began its pass; 0: not known.
    stack: u64,
    /// The innermost frame when it was taken up, 0 for none; [`NO_NODE`].
    frame: u64,
}

/// The node that the current thread is in.
#[inline(always)]
pub fn node(target: &Target) -> Node {
    let idle = Work::idle(0);
    let Work { stack, frame, .. } = work(target).unwrap_or(idle);
    Node { stack, frame }
}

impl Node {
    /// The stack, if no Python runs inside of the node.
    #[inline(always)]
    pub fn inherited(&self, config: &ProcessConfig, tstate: Result<u64, u8>) -> Option<Taken> {
        if self.frame == NO_NODE || self.frame != innermost_frame(config, tstate)? {
            return None;
        }
        let flags = match (self.stack, self.frame) {
            (0, 0) => stack_flag::NO_PYTHON,
            (0, _) => 0,
            _ => stack_flag::BACKWARD,
        };
        Some(Taken { id: self.stack, flags, is_walked: false })
    }

    /// For Python inside of it: the stack that goes on outside, and the frame at which it does. Both are 0 if
    /// there is none.
    #[inline(always)]
    pub fn outer(&self) -> (u64, u64) {
        if self.frame == NO_NODE || self.stack == 0 { (0, 0) } else { (self.stack, self.frame) }
    }
}

/// What the current thread is doing.
#[inline(always)]
fn work(target: &Target) -> Option<Work> {
    // SAFETY: a map value of this thread's own.
    let work = unsafe { *WORK.get_ptr(target.thread)? };
    (work.life == target.life()).then_some(work)
}

/// The innermost Python frame, 0 if there is none, also for a thread without a thread state; `None` if
/// that is not known.
#[inline(always)]
fn innermost_frame(config: &ProcessConfig, tstate: Result<u64, u8>) -> Option<u64> {
    match tstate {
        Ok(tstate) => innermost(&config.layout, tstate, &CurrentProcess),
        Err(stack_flag::NO_PYTHON) => Some(0),
        Err(_) => None,
    }
}

/// The configuration of a process whose Python stacks are taken.
#[inline(always)]
fn config(target: &Target) -> Option<&ProcessConfig> {
    // SAFETY: a map value, which user space replaces as a whole but never frees under a program.
    let config = unsafe { &*target.config };
    (config.thread_state.kind != thread_state_kind::NONE).then_some(config)
}

/// The `GraphTask` in the `shared_ptr` that an argument refers to.
#[inline(always)]
fn key(target: &Target, pointer: u64) -> Option<PassKey> {
    let task = CurrentProcess.read_u64(pointer)?;
    (task != 0).then(|| PassKey { task, life: target.life() })
}

#[inline(always)]
fn try_begins(ctx: &ProbeContext) -> Option<()> {
    let target = Target::current()?;
    config(&target)?;
    let key = key(&target, ctx.arg(2)?)?;
    let outer = work(&target).unwrap_or(Work::idle(key.life));
    // An earlier pass at this address is over.
    if PASSES.insert(key, Pass { stack: 0, outer }, 0).is_err() {
        let _ = PASSES.remove(key);
    }
    take_stack(ctx, &target, key);
    Some(())
}

/// Notes the stack for the pass, and that the thread waits for it: in this order, as what the thread was
/// doing may be where the stack is from. A function of few values, so that the verifier goes through the walk
/// once.
#[inline(always)]
fn take_stack(ctx: &ProbeContext, target: &Target, key: PassKey) {
    let waits = Work { waits_for: key.task, ..Work::idle(key.life) };
    let Some(scratch) = scratch::acquire(target.thread) else {
        // The pass stays without a stack.
        emit::count(offset_of!(Counters, busy_stacks));
        let _ = WORK.insert(target.thread, waits, 0);
        return;
    };
    let taken = stack::take_labelled(target, scratch, stack_flag::BACKWARD);
    if let Some(pass) = PASSES.get_ptr_mut(key) {
        // SAFETY: a map value; no other thread knows the pass yet.
        unsafe { (*pass).stack = taken.id };
    }
    let _ = WORK.insert(target.thread, waits, 0);
    if taken.is_new() {
        let mut event = pool::event(target, 0, taken);
        event.header.tag = tag::STACK;
        scratch.pending.set(&event);
        define(ctx, scratch);
    }
    scratch::release(scratch);
}

#[inline(always)]
fn try_node(ctx: &ProbeContext) -> Option<()> {
    // SAFETY: the context of a uprobe is the registers.
    let pointer = unsafe { read_volatile(&raw const (*ctx.as_ptr().cast::<pt_regs>()).rsi) };
    let target = Target::current()?;
    let config = config(&target)?;
    // SAFETY: a map value; only the thread that began the pass changes it.
    let stack = key(&target, pointer)
        .and_then(|key| PASSES.get_ptr(key))
        .map_or(0, |pass| unsafe { (*pass).stack });
    let tstate = stack::current_thread_state(config);
    let frame = innermost_frame(config, tstate).unwrap_or(NO_NODE);
    match WORK.get_ptr_mut(target.thread) {
        // SAFETY: a map value of this thread's own.
        Some(work) if unsafe { (*work).life } == target.life() => unsafe {
            (*work).stack = stack;
            (*work).frame = frame;
        },
        _ => {
            let work = Work { stack, frame, waits_for: 0, life: target.life() };
            let _ = WORK.insert(target.thread, work, 0);
        }
    }
    Some(())
}

/// The thread is again where it was before.
#[inline(always)]
fn try_end() -> Option<()> {
    let target = Target::current()?;
    let work = work(&target)?;
    let key = PassKey { task: work.waits_for, life: work.life };
    // SAFETY: a map value, copied before it is removed.
    let outer = PASSES.get_ptr(key).map(|pass| unsafe { (*pass).outer });
    let _ = PASSES.remove(key);
    match outer {
        Some(outer) if outer.frame != NO_NODE || outer.waits_for != 0 => {
            let _ = WORK.insert(target.thread, outer, 0);
        }
        _ => {
            let _ = WORK.remove(target.thread);
        }
    }
    Some(())
}
