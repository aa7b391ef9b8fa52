//! The ABI between the two halves.
#![no_std]
