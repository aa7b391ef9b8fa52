//! Atomic operations on map values. `core::sync::atomic` offers none for the BPF target, though
//! the instruction set (v3) has them.

use core::intrinsics::{AtomicOrdering::SeqCst, atomic_xadd, atomic_xchg};

/// Stores `value` and returns what was there.
///
/// # Safety
///
/// `place` must be valid and only be touched atomically by others.
#[inline(always)]
pub unsafe fn exchange<T: Copy>(place: *mut T, value: T) -> T {
    // SAFETY: the caller's.
    unsafe { atomic_xchg::<T, { SeqCst }>(place, value) }
}

/// Adds `value` and returns what was there.
///
/// # Safety
///
/// As for [`exchange`].
#[inline(always)]
pub unsafe fn fetch_add(place: *mut u64, value: u64) -> u64 {
    // SAFETY: the caller's.
    unsafe { atomic_xadd::<u64, u64, { SeqCst }>(place, value) }
}

/// Adds `value`.
///
/// # Safety
///
/// As for [`exchange`].
#[inline(always)]
pub unsafe fn add(place: *mut u64, value: u64) {
    // SAFETY: the caller's.
    unsafe { fetch_add(place, value) };
}
