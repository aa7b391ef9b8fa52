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

use self::measure::Measure;

/// Seconds for which events come as fast as they can.
const DROPS_SECONDS: u64 = 60;

/// Takes some measures.
type Part = fn() -> Vec<Measure>;

/// What is measured, by name, in this order.
const PARTS: [(&str, Part); 6] = [
    ("hook", hook::measure),
    ("notebook", notebook::measure),
    ("peers", peers::measure),
    ("torch", torch::measure),
    ("core", core::measure),
    ("drops", || vec![hook::drops(DROPS_SECONDS)]),
];

fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    // `cargo test --benches` would run this too.
    if !arguments.iter().any(|argument| argument == "--bench") {
        println!("skipped: it is run by `cargo xtask bench`");
        return ExitCode::SUCCESS;
    }
    let wanted: Vec<&String> = arguments.iter().filter(|name| *name != "--bench").collect();
    let is_wanted = |name: &str| wanted.is_empty() || wanted.iter().any(|wanted| *wanted == name);
    let parts = PARTS.iter().filter(|(name, _)| is_wanted(name));
    let measures: Vec<Measure> = parts.flat_map(|(_, measure)| measure()).collect();
    print!("{}", report::table(&measures));
    if !wanted.is_empty() {
        return ExitCode::SUCCESS;
    }
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("..");
    match report::write(&root, &measures) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("cannot write the results: {error}");
            ExitCode::FAILURE
        }
    }
}
