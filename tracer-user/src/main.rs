//! The `cudatrace` program.
fn main() {}
