//! cudatrace, the user half: which Python line holds which bytes of GPU memory.
//!
//! Pure modules (no file, clock, process, thread or environment; `cargo xtask layers` checks it):
//! [`model`], [`decode`], [`naming`], [`ledger`], [`verdict`], [`aggregate`], [`report`]. Records go in,
//! immutable snapshots come out. Everything else is the rim that touches the system.

pub mod aggregate;
pub mod decode;
pub mod ledger;
pub mod model;
pub mod naming;
pub mod report;
pub mod verdict;

pub mod bpf;
pub mod cli;
pub mod discover;
pub mod jupyter;
pub mod session;
pub mod sys;
