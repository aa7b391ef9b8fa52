//! One program per entry point.

mod driver;
mod pool;
mod process;
mod python;
mod torch;
