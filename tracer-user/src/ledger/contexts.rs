//! CUDA contexts: which device a thread allocates on.

use rustc_hash::{FxHashMap, FxHashSet};

use crate::model::{Device, Layer, Tid};

/// Contexts that were seen, and the current one of each thread. A context from before attach is not
/// known until it is made current or retained again.
#[derive(Debug, Default)]
pub(super) struct Contexts {
    device: FxHashMap<u64, Device>,
    /// The primary context of a device, and how often it was retained and not released.
    primary: FxHashMap<Device, (u64, u64)>,
    /// Green contexts by handle.
    green: FxHashMap<u64, Device>,
    /// Contexts that stand for one: what is allocated in them is the primary context's.
    of_green: FxHashMap<u64, Device>,
    /// Each thread's stack of current contexts, the top last.
    current: FxHashMap<Tid, Vec<u64>>,
    /// The device that a thread has told the runtime, and what its current context was then.
    chosen: FxHashMap<Tid, (Device, u64)>,
    /// Threads that may have told it one before the trace began.
    early: FxHashSet<Tid>,
    whole: bool,
}

/// Stands for the primary context of a device where the driver is not seen: no context has this address.
fn unseen(device: Device) -> u64 {
    u64::MAX - u64::from(device.0)
}

impl Contexts {
    pub fn note_whole(&mut self) {
        self.whole = true;
    }

    /// The current context of a thread, 0 if none is known.
    pub fn current(&self, tid: Tid) -> u64 {
        self.current.get(&tid).and_then(|stack| stack.last()).copied().unwrap_or(0)
    }

    /// The context in which a thread's call allocates, 0 if it is not known: the current one or, where that
    /// is from before attach, the primary one of the device that the thread has chosen since. For the
    /// runtime a thread begins with device 0.
    pub fn of_call(&self, tid: Tid, layer: Layer) -> u64 {
        let current = self.current(tid);
        if let Some(&device) = self.of_green.get(&current) {
            return unseen(device);
        }
        if self.device(current).is_some() {
            return current;
        }
        match self.chosen.get(&tid) {
            Some(&(device, context)) if context == current => unseen(device),
            None if layer == Layer::Runtime && current == 0 && self.is_new(tid) => {
                unseen(Device(0))
            }
            _ => current,
        }
    }

    /// Whether all that a thread ever did was seen.
    fn is_new(&self, tid: Tid) -> bool {
        self.whole || !self.early.contains(&tid)
    }

    pub fn device(&self, context: u64) -> Option<Device> {
        let unseen = || u8::try_from(u64::MAX - context).ok().map(Device);
        self.device.get(&context).copied().or_else(unseen)
    }

    /// The primary context of a device, as the driver's calls tell it and as the runtime's do.
    pub fn primaries(&self, device: Device) -> impl Iterator<Item = u64> + use<> {
        let seen = self.primary.get(&device).map(|(context, _)| *context);
        seen.into_iter().chain([unseen(device)])
    }

    pub fn choose(&mut self, tid: Tid, device: Option<Device>) {
        if let Some(device) = device {
            self.chosen.insert(tid, (device, self.current(tid)));
        }
    }

    pub fn note_early(&mut self, tid: Tid) {
        self.early.insert(tid);
    }

    pub fn retained(&mut self, context: u64, device: Option<Device>) {
        let Some(device) = device else { return };
        self.device.insert(context, device);
        let (primary, count) = self.primary.entry(device).or_default();
        (*primary, *count) = (context, *count + 1);
    }

    pub fn green_created(&mut self, handle: u64, device: Option<Device>) {
        let Some(device) = device else { return };
        self.green.insert(handle, device);
        self.primary.entry(device).or_default().1 += 1;
    }

    pub fn green_context(&mut self, context: u64, handle: u64) {
        if let Some(&device) = self.green.get(&handle) {
            self.of_green.insert(context, device);
        }
    }

    /// The device whose primary context goes with it.
    pub fn green_destroyed(&mut self, handle: u64) -> Option<Device> {
        let device = self.green.remove(&handle)?;
        self.released(device).then_some(device)
    }

    /// Whether the context goes with this release; not if it lives on, or if that cannot be known because
    /// it may have been retained before attach.
    pub fn released(&mut self, device: Device) -> bool {
        let Some((_, count)) = self.primary.get_mut(&device) else { return false };
        *count = count.saturating_sub(1);
        *count == 0 && self.whole
    }

    pub fn created(&mut self, tid: Tid, context: u64, device: Option<Device>) {
        self.of_green.remove(&context);
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
