//! The ABI between cudatrace's kernel half (`tracer-ebpf`) and its user half (`tracer-user`).
//!
//! Everything here is `no_std`, allocates nothing and performs no I/O:
//!
//! - [`wire`]: the records that travel through the ring buffer;
//! - [`calls`]: the CUDA driver's entry points, as data;
//! - [`config`]: what user space tells the kernel half about a traced process;
//! - [`counters`]: what the kernel half counts instead of losing silently;
//! - [`python`]: CPython's structure offsets as data, and the frame walk. The walk is generic over
//!   [`ReadMem`], so the same code runs in the kernel, under property tests, and against a live
//!   process through `/proc/PID/mem`.
//!
//! Addresses inside a traced process are plain integers (`u64`): they are never dereferenced here.

#![no_std]

pub mod calls;
pub mod config;
pub mod counters;
pub mod python;
pub mod wire;

/// Reads the memory of a traced process.
///
/// An implementation must not fault, must not write more than `len` bytes, and must either fill
/// the whole destination or report failure.
pub trait ReadMem {
    /// Copies `len` bytes at `addr` of the traced process to `dst`; `false` if any byte is not
    /// readable (in the kernel: not resident, since a probe cannot fault pages in).
    ///
    /// # Safety
    ///
    /// `dst` must be valid for writing `len` bytes.
    unsafe fn read(&self, addr: u64, dst: *mut u8, len: u32) -> bool;

    /// Reads a `u64` at `addr`.
    #[inline(always)]
    fn read_u64(&self, addr: u64) -> Option<u64> {
        let mut value = 0u64;
        // SAFETY: `value` is eight writable bytes.
        unsafe { self.read(addr, (&raw mut value).cast(), 8) }.then_some(value)
    }

    /// Reads a `u32` at `addr`.
    #[inline(always)]
    fn read_u32(&self, addr: u64) -> Option<u32> {
        let mut value = 0u32;
        // SAFETY: `value` is four writable bytes.
        unsafe { self.read(addr, (&raw mut value).cast(), 4) }.then_some(value)
    }
}

/// Implements `bytemuck::Pod` for wire and map structs (feature `user`), after checking at compile
/// time that the struct has exactly the given size.
macro_rules! plain_data {
    ($($ty:ty = $size:expr),+ $(,)?) => {$(
        const _: () = assert!(core::mem::size_of::<$ty>() == $size, "size of the ABI changed");
        const _: () = assert!(core::mem::align_of::<$ty>() <= 8);
        // SAFETY: `repr(C)`, only integers and arrays of them, and padding is explicit: the field
        // sizes add up to the asserted size.
        #[cfg(feature = "user")]
        unsafe impl bytemuck::Zeroable for $ty {}
        // SAFETY: as above; every bit pattern is valid.
        #[cfg(feature = "user")]
        unsafe impl bytemuck::Pod for $ty {}
    )+};
}
pub(crate) use plain_data;
