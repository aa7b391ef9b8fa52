//! CUDA contexts: which device a thread allocates on.

use rustc_hash::FxHashMap;

use crate::model::{Device, Tid};

/// Contexts that were seen, and the current one of each thread. A context from before attach is not
/// known until it is made current or retained again.
#[derive(Debug, Default)]
pub(super) struct Contexts {
    device: FxHashMap<u64, Device>,
    /// The primary context of a device, and how often it was retained and not released.
    primary: FxHashMap<Device, (u64, u64)>,
    /// Each thread's stack of current contexts, the top last.
    current: FxHashMap<Tid, Vec<u64>>,
    whole: bool,
}

impl Contexts {
    pub fn note_whole(&mut self) {
        self.whole = true;
    }

    /// The current context of a thread, 0 if none is known.
    pub fn current(&self, tid: Tid) -> u64 {
        self.current.get(&tid).and_then(|stack| stack.last()).copied().unwrap_or(0)
    }

    pub fn device(&self, context: u64) -> Option<Device> {
        self.device.get(&context).copied()
    }

    pub fn primary(&self, device: Device) -> Option<u64> {
        self.primary.get(&device).map(|(context, _)| *context)
    }

    pub fn retained(&mut self, context: u64, device: Option<Device>) {
        let Some(device) = device else { return };
        self.device.insert(context, device);
        let primary = self.primary.entry(device).or_insert((context, 0));
        *primary = (context, primary.1 + 1);
    }

    /// The context that goes with the last release; `None` while it lives on, or if it cannot be
    /// known because it may have been retained before attach.
    pub fn released(&mut self, device: Device) -> Option<u64> {
        let (context, count) = self.primary.get_mut(&device)?;
        *count = count.saturating_sub(1);
        (*count == 0 && self.whole).then_some(*context)
    }

    pub fn created(&mut self, tid: Tid, context: u64, device: Option<Device>) {
        if let Some(device) = device {
            self.device.insert(context, device);
        }
        self.push(tid, context);
    }

    pub fn set(&mut self, tid: Tid, context: u64) {
        let stack = self.current.entry(tid).or_default();
        stack.pop();
        if context != 0 {
            stack.push(context);
        }
    }

    pub fn push(&mut self, tid: Tid, context: u64) {
        let stack = self.current.entry(tid).or_default();
        // Nobody nests that deep; a hostile process shall not make it grow.
        if stack.len() < 1024 {
            stack.push(context);
        }
    }

    pub fn pop(&mut self, tid: Tid) {
        if let Some(stack) = self.current.get_mut(&tid) {
            stack.pop();
        }
    }

    pub fn destroyed(&mut self, context: u64) {
        // A primary context keeps its address, and can be retained again.
        if !self.primary.values().any(|(primary, _)| *primary == context) {
            self.device.remove(&context);
        }
        for stack in self.current.values_mut() {
            if stack.last() == Some(&context) {
                stack.pop();
            }
        }
    }
}
