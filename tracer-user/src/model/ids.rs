//! Ids and addresses, each its own type, so that no two of them can be mixed up.

use std::fmt;

use serde::{Serialize, Serializer};

/// Process id: the kernel's tgid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(transparent)]
pub struct Pid(pub u32);

/// Thread id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Tid(pub u32);

/// CUDA device index, as the process numbers its devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(transparent)]
pub struct Device(pub u8);

/// Device pointer: an address on the GPU. Never dereferenced.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DeviceAddress(pub u64);

/// Address of an instruction of the traced process. Never dereferenced.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CodeAddress(pub u64);

/// Id of a stack as the kernel half hands it out: stable while no code object of it is freed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StackId(pub u64);

/// Id of one life of a code object as the kernel half hands it out; never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CodeId(pub u64);

/// A stack by content: equal stacks (same functions, files and lines) have the same index. Index 0
/// is the empty stack ([`StackIndex::NONE`]).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StackIndex(pub u32);

impl StackIndex {
    /// No stack was taken, or the thread had no Python frame.
    pub const NONE: Self = Self(0);
}

/// Whose calls tell of the memory that the driver hands out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Layer {
    /// The driver's own.
    Driver,
    /// The runtime's, where those of the driver inside are not probed. What comes from the driver in
    /// another way is not seen then.
    Runtime,
}

/// The level at which an allocation is counted. A pool's blocks lie inside driver allocations, so
/// levels are never added up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Level {
    /// Host memory of tensors (`--cpu`).
    Cpu,
    /// Page-locked host memory: `cuMemHostAlloc` and its kin.
    Pinned,
    /// The CUDA driver: `cuMemAlloc_v2` and its kin.
    Driver,
    /// PyTorch's caching allocator.
    Pytorch,
    /// TensorFlow's BFC allocators.
    Tensorflow,
    /// JAX's BFC allocators.
    Jax,
    /// CuPy's memory pools.
    Cupy,
    /// ONNX Runtime's arenas.
    Onnxruntime,
}

impl Level {
    /// Whether it is a pool's, which cuts its blocks out of the driver's.
    pub const fn is_pool(self) -> bool {
        match self {
            Self::Pytorch | Self::Tensorflow | Self::Jax | Self::Cupy | Self::Onnxruntime => true,
            Self::Driver | Self::Pinned | Self::Cpu => false,
        }
    }

    /// Whether what is counted at it, on this device if known, is host memory.
    pub const fn is_host(self, device: Option<Device>) -> bool {
        match self {
            Self::Pinned | Self::Cpu => true,
            Self::Tensorflow | Self::Jax | Self::Onnxruntime => device.is_none(),
            Self::Driver | Self::Pytorch | Self::Cupy => false,
        }
    }

    /// The name in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Cpu => "cpu",
            Self::Pinned => "pinned",
            Self::Driver => "driver",
            Self::Pytorch => "pytorch",
            Self::Tensorflow => "tensorflow",
            Self::Jax => "jax",
            Self::Cupy => "cupy",
            Self::Onnxruntime => "onnxruntime",
        }
    }
}

/// A pool of a process: one allocator of a framework, for one device or for host memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PoolId {
    /// The level of its blocks, one of a pool.
    pub level: Level,
    /// PyTorch, CuPy: the index of the device. Others: the address of the allocator.
    pub instance: u64,
}

impl PoolId {
    /// PyTorch's pool of a device.
    pub const fn pytorch(device: Device) -> Self {
        Self { level: Level::Pytorch, instance: device.0 as u64 }
    }

    /// CuPy's pools of a device.
    pub const fn cupy(device: Device) -> Self {
        Self { level: Level::Cupy, instance: device.0 as u64 }
    }

    /// The device, if the id tells it.
    pub fn device(self) -> Option<Device> {
        let is_told = matches!(self.level, Level::Pytorch | Level::Cupy);
        u8::try_from(self.instance).ok().filter(|_| is_told).map(Device)
    }
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl Serialize for Level {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

impl fmt::Display for Pid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
