//! cudatrace's own verbs. Each does all of its own set-up from a fresh clone.

mod apt;
mod bench;
mod command;
mod cuda_sim;
mod demo;
mod ebpf;
mod frameworks;
mod kernels;
mod layers;
mod notebooks;
mod pythons;
mod sandbox;
mod test;
mod vendor;
mod workspace;

use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};

use crate::workspace::Workspace;

/// Build, test and demo verbs of the cudatrace workspace.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// Build the kernel half from source into the committed object
    BuildEbpf {
        /// Compare with the committed object instead of replacing it
        #[arg(long)]
        check: bool,
    },
    /// Make the Python environment of the tests: real PyTorch on simulated CUDA libraries
    Sandbox {
        /// Which PyTorch
        #[arg(value_parser = sandbox::ALL.map(|sandbox| sandbox.name), default_value = sandbox::CURRENT.name)]
        pytorch: String,
    },
    /// Show the whole thing: a leaking notebook, traced
    Demo,
    /// Trace on other kernels: boot Debian's in an emulator, and compare with the simulator's count
    Kernels {
        /// Look for newer kernels than those in the cache
        #[arg(long)]
        refresh: bool,
        /// Only the kernels of these suites
        suites: Vec<String>,
    },
    /// Write docs/drivers.md from the vendor's own driver libraries
    Drivers,
    /// Check the direction of dependence between crates and modules
    Layers,
    /// Measure what a traced program pays, and write docs/overhead.md
    Bench {
        /// Only these parts, and write nothing: hook, notebook, peers, torch, core, drops
        parts: Vec<String>,
    },
    /// Get interpreters of other versions and builds, for the tests of stacks
    Pythons,
    /// Make the environments of the notebook tests, and print their variable
    Notebooks,
    /// Run every test that this machine can run
    Test,
}

fn main() -> ExitCode {
    match run(&Args::parse().verb) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(verb: &Verb) -> Result<()> {
    let workspace = Workspace::find()?;
    match verb {
        Verb::BuildEbpf { check: true } => ebpf::check(&workspace),
        Verb::BuildEbpf { check: false } => ebpf::build(&workspace),
        Verb::Demo => demo::run(&workspace),
        Verb::Kernels { refresh, suites } => kernels::run(&workspace, *refresh, suites),
        Verb::Drivers => test::write_drivers(&workspace),
        Verb::Bench { parts } => bench::measure(&workspace, parts),
        Verb::Layers => layers::check(&workspace),
        Verb::Notebooks => {
            let (name, value) = notebooks::variable(&workspace)?;
            println!("{name}={}", value.display());
            Ok(())
        }
        Verb::Test => test::all(&workspace),
        Verb::Pythons => {
            println!("{}", pythons::greenlets(&workspace)?.display());
            println!("{}", pythons::ensure(&workspace)?.display());
            Ok(())
        }
        Verb::Sandbox { pytorch } => {
            for sandbox in sandbox::ALL.iter().filter(|sandbox| sandbox.name == pytorch) {
                println!("{}", sandbox.ensure(&workspace)?.display());
            }
            Ok(())
        }
    }
}
