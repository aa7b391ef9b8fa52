//! cudatrace's kernel half: captures facts once and cheaply, and decides nothing.
//!
//! One program per entry point ([`probes`]); the path of an event is
//! probe → [`target`] (is the process traced?) → [`pending`] → [`stack`] (Python walk) → [`define`] (at first
//! sight) → [`emit`] (ring buffer, loss accounting). Minimum kernel: 5.15 (ring buffer 5.8, atomics with a result
//! 5.12).

#![no_std]
#![no_main]
#![feature(core_intrinsics)]
#![allow(
    internal_features,
    reason = "atomic exchange and add are only to be had as intrinsics for BPF"
)]

mod atomic;
mod define;
mod emit;
mod maps;
mod memory;
mod pending;
mod probes;
mod scratch;
mod stack;
mod target;

#[panic_handler]
fn panic(_info: &core::panic::PanicInfo<'_>) -> ! {
    // Never reached: the verifier would refuse the loop.
    loop {}
}

#[unsafe(link_section = "license")]
#[unsafe(no_mangle)]
static LICENSE: [u8; 13] = *b"Dual MIT/GPL\0";
