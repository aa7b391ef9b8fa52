//! Entry points of the CUDA driver, and of the runtime above it, as data: which registers hold what,
//! and when to look.
//!
//! One program reads every entry point by this table; the place in it travels as the attach cookie
//! and as [`crate::wire::MemoryEvent::probe`]. Signatures are those of the public APIs.

/// What a call does ([`CallShape::op`]).
pub mod op {
    /// Allocates device memory: address, size.
    pub const ALLOC: u8 = 1;
    /// Frees it: address.
    pub const FREE: u8 = 2;
    /// Allocates or registers page-locked host memory: address, size.
    pub const PIN: u8 = 3;
    /// Frees or unregisters it: address.
    pub const UNPIN: u8 = 4;
    /// Creates physical memory of virtual memory management: handle, size; aux is the device.
    pub const CREATE: u8 = 5;
    /// Lets go of a handle: handle. The memory lives on while it is mapped.
    pub const RELEASE: u8 = 6;
    /// Takes another hold of the memory that is mapped at an address: handle; aux is the address.
    pub const RETAIN: u8 = 7;
    /// Maps physical memory: address, size; aux is the handle.
    pub const MAP: u8 = 8;
    /// Unmaps everything in a range: address, size.
    pub const UNMAP: u8 = 9;
    /// Opens another process's memory: address.
    pub const IMPORT: u8 = 10;
    /// Opens another process's physical memory: handle, of which one lets go by [`RELEASE`].
    pub const IMPORT_HANDLE: u8 = 20;
    /// Closes it: address.
    pub const UNIMPORT: u8 = 11;
    /// A device's primary context was retained: address is the context, aux the device.
    pub const CONTEXT_RETAINED: u8 = 12;
    /// A context was created and is the thread's current one: address is the context, aux the device.
    pub const CONTEXT_CREATED: u8 = 19;
    /// The thread's current context: address.
    pub const CONTEXT_SET: u8 = 13;
    /// Another current context on top of the thread's stack of them: address.
    pub const CONTEXT_PUSHED: u8 = 14;
    /// Back to the one below.
    pub const CONTEXT_POPPED: u8 = 15;
    /// A context is destroyed, with all its memory: address is the context.
    pub const CONTEXT_DESTROYED: u8 = 16;
    /// A device's primary context is reset, with all its memory: aux is the device.
    pub const DEVICE_RESET: u8 = 17;
    /// A device's primary context is let go of: aux is the device.
    pub const DEVICE_RELEASED: u8 = 18;
}

/// Where a value is ([`CallShape::address`] and others): a kind, plus the number of an argument.
pub mod place {
    /// Nowhere.
    pub const NONE: u8 = 0;
    /// The argument itself.
    pub const ARGUMENT: u8 = 0x10;
    /// The `u64` that the argument points to, once the call has returned.
    pub const OUT: u8 = 0x20;
    /// The `u32` that the argument points to, once the call has returned (first version of the API).
    pub const OUT32: u8 = 0x30;
    /// The device in the `CUmemAllocationProp` that the argument points to.
    pub const PROPERTY_DEVICE: u8 = 0x40;
    /// The bytes of an array by the descriptor (two dimensions) that the argument points to.
    pub const ARRAY: u8 = 0x50;
    /// The same with three dimensions.
    pub const ARRAY_3D: u8 = 0x60;
    /// The pitch that argument 1 points to, times the height in argument 3; of a failed call, which
    /// has no pitch, the width in argument 2 times the height.
    pub const PITCHED: u8 = 0x70;
}

/// When a call is reported ([`CallShape::when`]).
pub mod when {
    /// At its entry; a failure at its return takes it back. For everything that frees.
    pub const ENTRY: u8 = 1;
    /// At its return. For everything whose result is only known then.
    pub const RETURN: u8 = 2;
    /// At its entry, without looking at the result: for contexts, which are switched often.
    pub const ENTRY_ONLY: u8 = 3;
    /// At its return, if it failed before it asked the driver. For entry points of the runtime, whose
    /// allocations are those of the driver's calls inside.
    pub const RUNTIME: u8 = 4;
}

/// How to read one entry point.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallShape {
    /// One of [`op`]; 0 for an unused place in the table.
    pub op: u8,
    /// One of [`when`].
    pub when: u8,
    /// Where the address or handle is.
    pub address: u8,
    /// Where the size is.
    pub size: u8,
    /// Where the further value is.
    pub aux: u8,
    /// Whether the Python stack is taken (0 or 1).
    pub stack: u8,
    /// Zero.
    pub pad: [u8; 2],
}

/// One entry point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Call {
    /// Its exported name.
    pub symbol: &'static str,
    /// How to read it.
    pub shape: CallShape,
}

use op::*;
use place::{ARGUMENT as ARG, ARRAY, ARRAY_3D, NONE, OUT, OUT32, PITCHED, PROPERTY_DEVICE};
use when::{ENTRY, ENTRY_ONLY, RETURN, RUNTIME};

const fn call(symbol: &'static str, op: u8, when: u8, address: u8, size: u8, aux: u8) -> Call {
    let stack =
        (op == ALLOC || op == PIN || op == CREATE || op == IMPORT || op == IMPORT_HANDLE) as u8;
    Call { symbol, shape: CallShape { op, when, address, size, aux, stack, pad: [0; 2] } }
}

/// Every entry point that is probed. The order is part of the ABI between the two halves only.
pub const CALLS: [Call; 64] = [
    call("cuMemAlloc_v2", ALLOC, RETURN, OUT, ARG + 1, NONE),
    call("cuMemAlloc", ALLOC, RETURN, OUT32, ARG + 1, NONE),
    call("cuMemAllocManaged", ALLOC, RETURN, OUT, ARG + 1, NONE),
    call("cuMemAllocPitch_v2", ALLOC, RETURN, OUT, PITCHED, NONE),
    call("cuMemAllocAsync", ALLOC, RETURN, OUT, ARG + 1, NONE),
    call("cuMemAllocAsync_ptsz", ALLOC, RETURN, OUT, ARG + 1, NONE),
    call("cuMemAllocFromPoolAsync", ALLOC, RETURN, OUT, ARG + 1, NONE),
    call("cuMemAllocFromPoolAsync_ptsz", ALLOC, RETURN, OUT, ARG + 1, NONE),
    call("cuArrayCreate_v2", ALLOC, RETURN, OUT, ARRAY + 1, NONE),
    call("cuArray3DCreate_v2", ALLOC, RETURN, OUT, ARRAY_3D + 1, NONE),
    call("cuMemFree_v2", FREE, ENTRY, ARG, NONE, NONE),
    call("cuMemFree", FREE, ENTRY, ARG, NONE, NONE),
    call("cuMemFreeAsync", FREE, ENTRY, ARG, NONE, NONE),
    call("cuMemFreeAsync_ptsz", FREE, ENTRY, ARG, NONE, NONE),
    call("cuArrayDestroy", FREE, ENTRY, ARG, NONE, NONE),
    call("cuMemAllocHost_v2", PIN, RETURN, OUT, ARG + 1, NONE),
    call("cuMemAllocHost", PIN, RETURN, OUT, ARG + 1, NONE),
    call("cuMemHostAlloc", PIN, RETURN, OUT, ARG + 1, NONE),
    call("cuMemHostRegister_v2", PIN, RETURN, ARG, ARG + 1, NONE),
    call("cuMemHostRegister", PIN, RETURN, ARG, ARG + 1, NONE),
    call("cuMemFreeHost", UNPIN, ENTRY, ARG, NONE, NONE),
    call("cuMemHostUnregister", UNPIN, ENTRY, ARG, NONE, NONE),
    call("cuMemCreate", CREATE, RETURN, OUT, ARG + 1, PROPERTY_DEVICE + 2),
    call("cuMemRelease", RELEASE, ENTRY, ARG, NONE, NONE),
    call("cuMemRetainAllocationHandle", RETAIN, RETURN, OUT, NONE, ARG + 1),
    call("cuMemMap", MAP, RETURN, ARG, ARG + 1, ARG + 3),
    call("cuMemUnmap", UNMAP, ENTRY, ARG, ARG + 1, NONE),
    call("cuIpcOpenMemHandle_v2", IMPORT, RETURN, OUT, NONE, NONE),
    call("cuIpcOpenMemHandle", IMPORT, RETURN, OUT, NONE, NONE),
    call("cuIpcCloseMemHandle", UNIMPORT, ENTRY, ARG, NONE, NONE),
    call("cuMemImportFromShareableHandle", IMPORT_HANDLE, RETURN, OUT, NONE, NONE),
    call("cuImportExternalMemory", IMPORT, RETURN, OUT, NONE, NONE),
    call("cuDestroyExternalMemory", UNIMPORT, ENTRY, ARG, NONE, NONE),
    call("cuDevicePrimaryCtxRetain", CONTEXT_RETAINED, RETURN, OUT, NONE, ARG + 1),
    call("cuCtxCreate", CONTEXT_CREATED, RETURN, OUT, NONE, ARG + 2),
    call("cuCtxCreate_v2", CONTEXT_CREATED, RETURN, OUT, NONE, ARG + 2),
    call("cuCtxCreate_v3", CONTEXT_CREATED, RETURN, OUT, NONE, ARG + 4),
    call("cuCtxCreate_v4", CONTEXT_CREATED, RETURN, OUT, NONE, ARG + 3),
    call("cuCtxSetCurrent", CONTEXT_SET, ENTRY_ONLY, ARG, NONE, NONE),
    call("cuCtxPushCurrent_v2", CONTEXT_PUSHED, ENTRY_ONLY, ARG, NONE, NONE),
    call("cuCtxPushCurrent", CONTEXT_PUSHED, ENTRY_ONLY, ARG, NONE, NONE),
    call("cuCtxPopCurrent_v2", CONTEXT_POPPED, ENTRY_ONLY, NONE, NONE, NONE),
    call("cuCtxPopCurrent", CONTEXT_POPPED, ENTRY_ONLY, NONE, NONE, NONE),
    call("cuCtxDestroy_v2", CONTEXT_DESTROYED, ENTRY_ONLY, ARG, NONE, NONE),
    call("cuCtxDestroy", CONTEXT_DESTROYED, ENTRY_ONLY, ARG, NONE, NONE),
    call("cuDevicePrimaryCtxReset_v2", DEVICE_RESET, ENTRY_ONLY, NONE, NONE, ARG),
    call("cuDevicePrimaryCtxReset", DEVICE_RESET, ENTRY_ONLY, NONE, NONE, ARG),
    call("cuDevicePrimaryCtxRelease_v2", DEVICE_RELEASED, ENTRY_ONLY, NONE, NONE, ARG),
    call("cuDevicePrimaryCtxRelease", DEVICE_RELEASED, ENTRY_ONLY, NONE, NONE, ARG),
    call("cudaMalloc", ALLOC, RUNTIME, NONE, ARG + 1, NONE),
    call("cudaMallocManaged", ALLOC, RUNTIME, NONE, ARG + 1, NONE),
    call("cudaMallocPitch", ALLOC, RUNTIME, NONE, PITCHED, NONE),
    // The size is a struct that is passed in memory.
    call("cudaMalloc3D", ALLOC, RUNTIME, NONE, NONE, NONE),
    // In elements, whose size is in a struct.
    call("cudaMallocArray", ALLOC, RUNTIME, NONE, NONE, NONE),
    call("cudaMalloc3DArray", ALLOC, RUNTIME, NONE, NONE, NONE),
    call("cudaMallocAsync", ALLOC, RUNTIME, NONE, ARG + 1, NONE),
    call("cudaMallocAsync_ptsz", ALLOC, RUNTIME, NONE, ARG + 1, NONE),
    call("cudaMallocFromPoolAsync", ALLOC, RUNTIME, NONE, ARG + 1, NONE),
    call("cudaMallocFromPoolAsync_ptsz", ALLOC, RUNTIME, NONE, ARG + 1, NONE),
    call("cudaMallocHost", PIN, RUNTIME, NONE, ARG + 1, NONE),
    call("cudaHostAlloc", PIN, RUNTIME, NONE, ARG + 1, NONE),
    call("cudaHostRegister", PIN, RUNTIME, ARG, ARG + 1, NONE),
    call("cudaIpcOpenMemHandle", IMPORT, RUNTIME, NONE, NONE, NONE),
    call("cudaImportExternalMemory", IMPORT, RUNTIME, NONE, NONE, NONE),
];

/// Places in [`SHAPES`]; a power of two, because cookies are masked.
pub const MAX_CALLS: usize = 128;

/// The shapes of [`CALLS`], for the kernel half.
pub static SHAPES: [CallShape; MAX_CALLS] = shapes();

const fn shapes() -> [CallShape; MAX_CALLS] {
    let unused = CallShape { op: 0, when: 0, address: 0, size: 0, aux: 0, stack: 0, pad: [0; 2] };
    let mut shapes = [unused; MAX_CALLS];
    let mut index = 0;
    while index < CALLS.len() {
        shapes[index] = CALLS[index].shape;
        index += 1;
    }
    shapes
}
