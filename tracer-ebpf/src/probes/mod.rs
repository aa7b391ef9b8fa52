//! One program per entry point.

pub mod autograd;
mod cell;
mod cupy;
mod driver;
mod pool;
mod pool_result;
mod process;
mod python;
mod runtime;
mod torch;
