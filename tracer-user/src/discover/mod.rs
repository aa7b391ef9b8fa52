//! What is there to trace: the process, its interpreter, its libraries, and the plan of probes.
//!
//! Everything read here comes from a traced process and is hostile: reads are bounded, nothing
//! panics, and a file is opened through the mapping that the process itself has of it.

pub mod arena;
pub mod bfc;
mod calls;
pub mod elf;
pub mod entry;
pub mod functions;
pub mod library;
pub mod maps;
pub mod memory;
pub mod plan;
pub mod process;
pub mod python;
mod returns;
mod rtti;
mod symbol_cache;
pub mod symbols;
mod unwind;
