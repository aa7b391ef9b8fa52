//! `test`: every ring of tests that this machine can run.

use std::{env, path::Path, process::Command};

use anyhow::{Result, bail};

use crate::{
    command::{output, run},
    frameworks, notebooks, pythons, sandbox, vendor,
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
    let python = sandbox::CURRENT.ensure(workspace)?;
    let frameworks = frameworks::variables(workspace, &python)?;
    let kernels = notebooks::variable(workspace)?;
    let mut pythons = vec![
        (sandbox::CURRENT.variable, python),
        ("CUDATRACE_PYTHONS", pythons::ensure(workspace)?),
        ("CUDATRACE_GREENLETS", pythons::greenlets(workspace)?),
    ];
    match sandbox::TORCH_2_3.ensure(workspace) {
        Ok(python) => pythons.push((sandbox::TORCH_2_3.variable, python)),
        Err(error) if env::var_os("CI").is_some() => return Err(error),
        Err(error) => println!("skipped PyTorch {}: {error:#}", sandbox::TORCH_2_3.name),
    }
    run(integration(workspace, &[])?.envs(pythons).envs(frameworks).envs([kernels]))?;
    println!("skipped ring 5 (a GPU): no result here is from a real driver");
    Ok(())
}

/// Writes docs/drivers.md, by the test that else checks it.
///
/// # Errors
///
/// When the test fails, or no probe can be attached here.
pub fn write_drivers(workspace: &Workspace) -> Result<()> {
    require_tracing()?;
    run(integration(workspace, &["--test", "real_drivers"])?.env("CUDATRACE_WRITE_DOCS", "1"))
}

/// The integration tests, or one of them.
fn integration(workspace: &Workspace, which: &[&str]) -> Result<Command> {
    let program = program(workspace)?;
    let vendor = vendor::ensure(workspace)?;
    let mut command = cargo(workspace);
    command
        .args(["test", "--quiet", "--package", "cudatrace-tests"])
        .args(which)
        // One trace at a time: tests measure what the kernel has loaded.
        .args(["--", "--test-threads=1"])
        .env("CUDATRACE_BIN", program)
        .env("CUDATRACE_VENDOR_LIBRARIES", vendor);
    Ok(command)
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

/// `cargo` in the workspace, with the dependencies that it is locked to.
pub fn cargo(workspace: &Workspace) -> Command {
    let mut command = Command::new("cargo");
    command.current_dir(workspace.root()).arg("--locked").env_remove("CARGO_TARGET_DIR");
    command
}

/// Makes sure that probes can be attached.
///
/// # Errors
///
/// Why they cannot.
pub fn require_tracing() -> Result<()> {
    match cannot_trace()? {
        Some(reason) => bail!("no probe can be attached: {reason}"),
        None => Ok(()),
    }
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
