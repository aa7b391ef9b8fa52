//! One program per entry point.

mod driver;
mod process;
mod python;
mod runtime;
mod torch;
