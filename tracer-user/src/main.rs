//! The `cudatrace` program.

use std::process::ExitCode;

fn main() -> ExitCode {
    tracer_user::cli::main()
}
