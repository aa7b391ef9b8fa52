//! Notebook kernels of several generations, each in an environment of its own with the CPython of its time.

use std::{
    env,
    ffi::OsString,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Result, bail};

use crate::{
    command::output,
    sandbox::{install, is_installed},
    workspace::Workspace,
};

/// What tells the tests their interpreters.
const VARIABLE: &str = "CUDATRACE_NOTEBOOK_PYTHONS";

/// By the files with their packages in `tests/notebooks`: the version of ipykernel, and the minor version
/// of CPython 3.
const KERNELS: [(&str, u32); 4] = [
    ("ipykernel-5.5-py3.8", 8),
    ("ipykernel-6.17-py3.10", 10),
    ("ipykernel-6.29-py3.12", 12),
    ("ipykernel-7.4-py3.11", 11),
];

/// The interpreters of the environments.
///
/// # Errors
///
/// When a package is neither in the cache nor to be downloaded; in CI also when a CPython is missing.
pub fn variable(workspace: &Workspace) -> Result<(&'static str, OsString)> {
    let mut interpreters = Vec::new();
    for (name, minor) in KERNELS {
        let folder = workspace.target(&format!("notebooks/{name}"));
        let interpreter = folder.join("bin/python");
        let requirements = workspace.root().join(format!("tests/notebooks/{name}.txt"));
        if !is_installed(&interpreter, &requirements) {
            let Some(host) = python(minor) else {
                if env::var_os("CI").is_some() {
                    bail!("no CPython 3.{minor} for {name}");
                }
                println!("skipped {name}: no CPython 3.{minor} on this machine");
                continue;
            };
            fs::create_dir_all(workspace.target("notebooks"))?;
            install(workspace, &host, &folder, &requirements)?;
        }
        interpreters.push(interpreter);
    }
    Ok((VARIABLE, env::join_paths(interpreters)?))
}

/// CPython 3.`minor` of pyenv (`PYENV_ROOT`, else `~/.pyenv`), else of the system, that can make
/// environments.
fn python(minor: u32) -> Option<PathBuf> {
    let home = || env::var_os("HOME").map(|home| Path::new(&home).join(".pyenv"));
    let root = env::var_os("PYENV_ROOT").map(PathBuf::from).or_else(home);
    let versions = root.and_then(|root| fs::read_dir(root.join("versions")).ok());
    let prefix = format!("3.{minor}.");
    let fits = |entry: &fs::DirEntry| entry.file_name().to_string_lossy().starts_with(&prefix);
    let found = versions.into_iter().flatten().flatten().filter(fits);
    let mut candidates: Vec<PathBuf> = found.map(|entry| entry.path().join("bin/python")).collect();
    candidates.sort();
    candidates.push(PathBuf::from(format!("/usr/bin/python3.{minor}")));
    let works =
        |path: &PathBuf| output(Command::new(path).args(["-c", "import venv, ensurepip"])).is_ok();
    candidates.into_iter().find(works)
}
