//! `kernels`: the tracer on other kernels than this machine's, in an emulator.
//!
//! Each kernel boots with a file system in memory: a Python process allocates through the simulated
//! driver, cudatrace traces it, and the report is compared with the simulator's own count.

mod boot;
mod check;
mod image;
mod packages;

use std::{collections::BTreeSet, fs, iter, time::Instant};

use anyhow::{Result, bail, ensure};

use self::check::Outcome;
use crate::workspace::Workspace;

/// A kernel to run on.
struct Kernel {
    /// Debian's suite that has it.
    suite: &'static str,
    /// How its release must start; empty for whatever is newest.
    series: &'static str,
    /// Whether cudatrace promises to run there.
    required: bool,
}

const KERNELS: [Kernel; 4] = [
    // Older than the floor of 5.15, which comes from attach cookies: what happens there is shown.
    Kernel { suite: "bullseye", series: "5.10.", required: false },
    Kernel { suite: "bookworm", series: "6.1.", required: true },
    Kernel { suite: "trixie", series: "6.12.", required: true },
    Kernel { suite: "sid", series: "", required: true },
];

/// A row of the table at the end.
struct Row {
    release: String,
    required: bool,
    seconds: f64,
    result: Result<Outcome>,
}

/// Runs on every kernel, or on those of the suites named.
///
/// # Errors
///
/// When something needed cannot be had, or cudatrace fails on a required kernel.
pub fn run(workspace: &Workspace, refresh: bool, suites: &[String]) -> Result<()> {
    for suite in suites {
        ensure!(
            KERNELS.iter().any(|kernel| kernel.suite == suite),
            "no kernel of the suite `{suite}`; there are {}",
            KERNELS.map(|kernel| kernel.suite).join(", ")
        );
    }
    let tools = packages::tools()?;
    let kernels: Vec<_> = KERNELS
        .iter()
        .filter(|kernel| suites.is_empty() || suites.iter().any(|suite| suite == kernel.suite))
        .map(|kernel| Ok((kernel, packages::kernel(workspace, kernel, refresh)?)))
        .collect::<Result<_>>()?;
    let folder = workspace.target("kernels");
    fs::create_dir_all(&folder)?;
    let image = image::build(workspace, &tools, &folder)?;

    let mut rows = Vec::new();
    for (kernel, package) in kernels {
        let folder = folder.join(&package.release);
        fs::create_dir_all(&folder)?;
        let console = folder.join("console.log");
        eprintln!("booting {} (console: {})", package.release, console.display());
        let begin = Instant::now();
        let result = boot::boot_patiently(&tools, &package.image, &image, &console)
            .and_then(|()| check::check(&console));
        let seconds = begin.elapsed().as_secs_f64();
        if let Err(error) = &result {
            eprintln!("\n{}: {error:#}; the end of its console:\n", package.release);
            eprintln!("{}\n", boot::tail(&console));
        }
        rows.push(Row { release: package.release, required: kernel.required, seconds, result });
    }
    print(&rows);
    print_programs(&rows);
    let failed: Vec<_> = rows
        .iter()
        .filter(|row| row.required && row.result.is_err())
        .map(|row| row.release.as_str())
        .collect();
    if !failed.is_empty() {
        bail!("cudatrace fails on {}", failed.join(", "));
    }
    Ok(())
}

fn print(rows: &[Row]) {
    println!(
        "\n{:<28} {:>6} {:>6} {:>8} {:>9} {:>9}  result",
        "kernel", "boot s", "all s", "programs", "verified", "largest"
    );
    for row in rows {
        let release = &row.release;
        match &row.result {
            Ok(outcome) => println!(
                "{release:<28} {:>6.1} {:>6.1} {:>8} {:>9} {:>9}  {outcome}",
                outcome.booted_s,
                row.seconds,
                outcome.programs.len(),
                shown(outcome.programs.values().copied().sum()),
                shown(outcome.programs.values().copied().flatten().max()),
            ),
            Err(error) => {
                let verdict = if row.required { "FAILED" } else { "does not run (not required)" };
                let reason = error.to_string();
                println!(
                    "{release:<28} {:>6} {:>6.1} {:>8} {:>9} {:>9}  {verdict}: {reason}",
                    "-", row.seconds, "-", "-", "-"
                );
            }
        }
    }
}

/// What the verifier went through, by program and kernel.
fn print_programs(rows: &[Row]) {
    let passed: Vec<(&str, &Outcome)> = rows
        .iter()
        .filter_map(|row| Some((row.release.as_str(), row.result.as_ref().ok()?)))
        .collect();
    let names: BTreeSet<&String> =
        passed.iter().flat_map(|(_, outcome)| outcome.programs.keys()).collect();
    let cells = |cells: Vec<String>| println!("| {} |", cells.join(" | "));
    println!();
    let releases = passed.iter().map(|(release, _)| (*release).to_owned());
    cells(iter::once("verified instructions".to_owned()).chain(releases).collect());
    cells(vec!["---".to_owned(); passed.len() + 1]);
    for name in names {
        let counts =
            passed.iter().map(|(_, outcome)| shown(outcome.programs.get(name).copied().flatten()));
        cells(iter::once(format!("`{name}`")).chain(counts).collect());
    }
}

/// A number of instructions, if the kernel tells it.
fn shown(instructions: Option<u64>) -> String {
    instructions.map_or_else(|| "-".to_owned(), |count| count.to_string())
}
