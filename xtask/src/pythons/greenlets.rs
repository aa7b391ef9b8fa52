//! greenlet, which switches stacks inside a thread, for every version of the tests.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result};

use super::partial;
use crate::{command::run, sandbox::pip, workspace::Workspace};

/// Versions by the tag of the interpreter's ABI: the newest that has a wheel for it.
const WHEELS: [(&str, &str); 9] = [
    ("cp38", "3.1.1"),
    ("cp39", "3.2.5"),
    ("cp310", "3.5.6"),
    ("cp311", "3.5.6"),
    ("cp312", "3.5.6"),
    ("cp313", "3.5.6"),
    ("cp313t", "3.2.2"),
    ("cp314", "3.5.6"),
    ("cp315", "3.5.6"),
];

/// Unpacks the wheels in the cache, a folder for each ABI, and returns the folder of them all.
///
/// # Errors
///
/// When a wheel is neither there nor to be downloaded.
pub fn ensure(workspace: &Workspace) -> Result<PathBuf> {
    let cache = workspace.cache("greenlet")?;
    for (abi, version) in WHEELS {
        let folder = cache.join(abi);
        if !folder.is_dir() {
            let partial = partial(&cache, abi)?;
            download(&partial, abi, version)
                .with_context(|| format!("cannot have greenlet {version} for {abi}"))?;
            fs::rename(partial, folder)?;
        }
    }
    Ok(cache)
}

fn download(folder: &Path, abi: &str, version: &str) -> Result<()> {
    let host = PathBuf::from(env::var_os("CUDATRACE_PYTHON").unwrap_or_else(|| "python3".into()));
    let number = abi.trim_start_matches("cp").trim_end_matches('t');
    run(pip(&host, "download")
        .args(["--python-version", number, "--abi", abi, "-d"])
        .arg(folder)
        .arg(format!("greenlet=={version}")))?;
    let wheel = fs::read_dir(folder)?.next().context("pip downloaded no wheel")??.path();
    run(Command::new(&host).args(["-m", "zipfile", "-e"]).arg(&wheel).arg(folder))?;
    Ok(fs::remove_file(wheel)?)
}
