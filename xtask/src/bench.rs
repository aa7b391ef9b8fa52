//! `bench`: what a traced program pays, and what the tracer needs.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::Result;

use crate::{command::run, sandbox, test, workspace::Workspace};

/// The version of memray that is measured beside.
const MEMRAY: &str = "memray==1.20.0";

/// Measures, and writes `target/bench/bench.json` and `docs/overhead.md`; or measures only these parts.
///
/// # Errors
///
/// When no probe can be attached, or something cannot be built.
pub fn measure(workspace: &Workspace, parts: &[String]) -> Result<()> {
    test::require_tracing()?;
    let python = sandbox::CURRENT.ensure(workspace)?;
    let mut command = test::cargo(workspace);
    command
        .args(["bench", "--quiet", "--package", "cudatrace-tests", "--bench", "overhead", "--"])
        .args(parts)
        .env(sandbox::CURRENT.variable, &python);
    match memray(workspace, &python) {
        Ok(folder) => {
            command.env("CUDATRACE_BENCH_MEMRAY", folder);
        }
        Err(error) => println!("memray is not measured: {error:#}"),
    }
    run(&mut command)
}

/// Installs memray beside the sandbox.
fn memray(workspace: &Workspace, python: &Path) -> Result<PathBuf> {
    let folder = workspace.target("bench/memray");
    if !folder.join("memray").exists() {
        let mut pip = Command::new(python);
        pip.args(["-m", "pip", "install", "--quiet", "--target"]).arg(&folder).arg(MEMRAY);
        run(&mut pip)?;
    }
    Ok(folder)
}
