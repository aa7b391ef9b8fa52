//! cudatrace's own verbs. Each does all of its own set-up from a fresh clone.

use anyhow::Result;
use clap::{Parser, Subcommand};

/// Build, test and demo verbs of the cudatrace workspace.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {}

fn main() -> Result<()> {
    match Args::parse().verb {}
}
