//! One program per entry point.

mod driver;
mod pool;
mod process;
mod python;
mod runtime;
mod torch;
