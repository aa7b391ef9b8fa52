//! `test`: every ring of tests that this machine can run.

use std::{env, path::Path, process::Command};

use anyhow::{Result, bail};

use crate::{
    command::{output, run},
    frameworks, sandbox,
    workspace::Workspace,
};

/// Runs them.
///
/// # Errors
///
/// When a test fails, or, in CI, when a ring has to be skipped.
pub fn all(workspace: &Workspace) -> Result<()> {
    eprintln!("ring 1: pure, no privileges");
    run(cargo(workspace).args(["test", "--quiet"]))?;
    eprintln!("ring 3: real kernel, real Python, real PyTorch on the simulated driver");
    if let Some(reason) = cannot_trace()? {
        if env::var_os("CI").is_some() {
            bail!("ring 3 cannot run: {reason}");
        }
        println!("skipped ring 3: {reason}");
        return Ok(());
    }
    let python = sandbox::ensure(workspace)?;
    let frameworks = frameworks::variables(workspace, &python)?;
    let program = program(workspace)?;
    run(cargo(workspace)
        .args(["test", "--quiet", "--package", "cudatrace-tests", "--"])
        // One trace at a time: tests measure what the kernel has loaded.
        .arg("--test-threads=1")
        .env("CUDATRACE_SANDBOX_PYTHON", python)
        .envs(frameworks)
        .env("CUDATRACE_BIN", program))?;
    println!("skipped ring 5 (a GPU): no result here is from a real driver");
    Ok(())
}

/// Builds `cudatrace` and returns its path.
///
/// # Errors
///
/// When the build fails.
pub fn program(workspace: &Workspace) -> Result<std::path::PathBuf> {
    run(cargo(workspace).args(["build", "--quiet", "--package", "tracer-user"]))?;
    Ok(workspace.target("debug/cudatrace"))
}

fn cargo(workspace: &Workspace) -> Command {
    let mut command = Command::new("cargo");
    command.current_dir(workspace.root()).arg("--locked").env_remove("CARGO_TARGET_DIR");
    command
}

/// Why probes cannot be attached here, if so.
fn cannot_trace() -> Result<Option<String>> {
    if output(Command::new("id").arg("-u"))?.trim() != "0" {
        return Ok(Some("it needs root: run `sudo -E cargo xtask test`".to_owned()));
    }
    if !Path::new("/sys/bus/event_source/devices/uprobe").exists() {
        return Ok(Some("this kernel has no uprobes".to_owned()));
    }
    Ok(None)
}
