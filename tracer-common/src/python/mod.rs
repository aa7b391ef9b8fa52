//! CPython from outside: structure offsets as data, the frame walk, and code-object definitions.

pub mod code;
pub mod layout;
pub mod published;
pub mod subinterpreters;
pub mod table;
pub mod walk;
