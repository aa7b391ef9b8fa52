//! What a traced program pays, and what the tracer needs: `cargo xtask bench`.
//!
//! Times of a hit are taken as ratios to an empty probe on the same instruction, in the same process, in the
//! same run, round about: machines differ, and so do minutes.

mod core;
mod empty;
mod hook;
mod measure;
mod notebook;
mod peers;
mod report;
mod torch;

use std::{env, path::PathBuf, process::ExitCode};

fn main() -> ExitCode {
    // `cargo test --benches` would run this too.
    if !env::args().any(|argument| argument == "--bench") {
        println!("skipped: it is run by `cargo xtask bench`");
        return ExitCode::SUCCESS;
    }
    let seconds = env::var("CUDATRACE_BENCH_SECONDS").ok().and_then(|text| text.parse().ok());
    let mut measures = hook::measure();
    measures.extend(notebook::measure());
    measures.extend(peers::measure());
    measures.extend(torch::measure());
    measures.extend(core::measure());
    measures.push(hook::drops(seconds.unwrap_or(60)));
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("..");
    match report::write(&root, &measures) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("cannot write the results: {error}");
            ExitCode::FAILURE
        }
    }
}
