//! Entry points of the CUDA driver, and of the runtime above it, as data: which registers hold what,
//! and when to look.
//!
//! Both layers are described in the same way, because either may be the one that can be probed. Where
//! both are, the kernel half sees to it that a call of the runtime and the driver's inside of it count
//! once (`tracer-ebpf/src/probes/runtime.rs`).
//!
//! One program reads every entry point by this table; the place in it travels as the attach cookie
//! and as [`crate::wire::MemoryEvent::probe`]. Signatures are those of the public APIs.

mod driver;
pub mod extent;
mod runtime;

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
    /// A device's primary context is reset, with all its memory: aux is the device, or for the runtime,
    /// which is not told one, the thread's.
    pub const DEVICE_RESET: u8 = 17;
    /// A device's primary context is let go of: aux is the device.
    pub const DEVICE_RELEASED: u8 = 18;
    /// A green context was created, which retains a primary one: address is its handle, aux the device.
    pub const GREEN_CREATED: u8 = 22;
    /// A context that stands for a green one: address is the context, aux the handle.
    pub const GREEN_CONTEXT: u8 = 23;
    /// A green context was destroyed, and lets go of the primary one: address is its handle.
    pub const GREEN_DESTROYED: u8 = 24;
    /// The thread's device, for the runtime: aux is the device.
    pub const DEVICE_SET: u8 = 21;
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

    /// From here on: dimensions, which user space multiplies ([`super::extent`]). The pitch that argument 1
    /// points to, times the height in argument 3; of a failed call, which has no pitch, the width in
    /// argument 2 times the height.
    pub const PITCHED: u8 = 0x50;
    /// The same of an extent ([`super::CallShape::extent`]), with the pitch in what argument 0 points to.
    pub const PITCHED_3D: u8 = 0x60;
    /// [`PITCHED`] in the first version of the API, whose numbers have 32 bits.
    pub const PITCHED_V1: u8 = 0x70;

    /// The bytes of an array by the descriptor (two dimensions) that the argument points to.
    pub const ARRAY: u8 = 0x80;
    /// The same with three dimensions.
    pub const ARRAY_3D: u8 = 0x90;
    /// [`ARRAY`] in the first version.
    pub const ARRAY_V1: u8 = 0xa0;
    /// [`ARRAY_3D`] in the first version.
    pub const ARRAY_3D_V1: u8 = 0xb0;
    /// [`ARRAY_3D`] with as many levels as argument 2 says.
    pub const MIPMAPPED: u8 = 0xc0;
    /// By the `cudaChannelFormatDesc` that the argument points to, with width and height in arguments 2
    /// and 3.
    pub const CHANNELS: u8 = 0xd0;
    /// The same with an extent.
    pub const CHANNELS_3D: u8 = 0xe0;
    /// The same with as many levels as argument 2 says.
    pub const CHANNELS_MIPMAPPED: u8 = 0xf0;
}

/// When a call is reported ([`CallShape::when`]).
pub mod when {
    /// At its entry; a failure at its return takes it back. For everything that frees.
    pub const ENTRY: u8 = 1;
    /// At its return. For everything whose result is only known then.
    pub const RETURN: u8 = 2;
    /// At its entry, without looking at the result: for contexts, which are switched often.
    pub const ENTRY_ONLY: u8 = 3;
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
    /// Whether an extent is passed by value behind the return address (0 or 1): three words, which are
    /// taken for arguments 3 to 5, and what was argument 3 for the upper half of argument 2.
    pub extent: u8,
    /// Where the words are that its size needs ([`place::ARGUMENT`]).
    pub words: u8,
}

/// One entry point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Call {
    /// Its exported name.
    pub symbol: &'static str,
    /// How to read it.
    pub shape: CallShape,
}

use op::{ALLOC, CREATE, IMPORT, IMPORT_HANDLE, PIN};

/// Where the words are that a size needs.
const fn words(size: u8) -> u8 {
    match size & 0xf0 {
        place::PITCHED | place::PITCHED_V1 => place::ARGUMENT + 1,
        place::PITCHED_3D => place::ARGUMENT,
        place::ARRAY..=place::CHANNELS_MIPMAPPED => place::ARGUMENT + (size & 0xf),
        _ => place::NONE,
    }
}

const fn call(symbol: &'static str, op: u8, when: u8, address: u8, size: u8, aux: u8) -> Call {
    let stack =
        (op == ALLOC || op == PIN || op == CREATE || op == IMPORT || op == IMPORT_HANDLE) as u8;
    Call {
        symbol,
        shape: CallShape { op, when, address, size, aux, stack, extent: 0, words: words(size) },
    }
}

/// Every entry point that is probed, those of the driver first. The order is part of the ABI between the
/// two halves only.
pub const CALLS: [Call; FIRST_RUNTIME + runtime::CALLS.len()] = calls();

/// Where those of the runtime begin in [`CALLS`].
pub const FIRST_RUNTIME: usize = driver::CALLS.len();

// Each has a bit in `ProcessConfig::answered`.
const _: () = assert!(runtime::CALLS.len() <= 64);

const fn calls() -> [Call; FIRST_RUNTIME + runtime::CALLS.len()] {
    let mut calls = [driver::CALLS[0]; FIRST_RUNTIME + runtime::CALLS.len()];
    let mut index = 0;
    while index < calls.len() {
        calls[index] = if index < FIRST_RUNTIME {
            driver::CALLS[index]
        } else {
            runtime::CALLS[index - FIRST_RUNTIME]
        };
        index += 1;
    }
    calls
}

/// Places in [`SHAPES`]; a power of two, because cookies are masked.
pub const MAX_CALLS: usize = 128;

/// The shapes of [`CALLS`], for the kernel half.
pub static SHAPES: [CallShape; MAX_CALLS] = shapes();

const fn shapes() -> [CallShape; MAX_CALLS] {
    let unused =
        CallShape { op: 0, when: 0, address: 0, size: 0, aux: 0, stack: 0, extent: 0, words: 0 };
    let mut shapes = [unused; MAX_CALLS];
    let mut index = 0;
    while index < CALLS.len() {
        shapes[index] = CALLS[index].shape;
        index += 1;
    }
    shapes
}
