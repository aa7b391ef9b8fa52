//! An unpacked distribution: an interpreter with a shared library, away from where it was installed, and
//! stripped of every symbol that it does not export.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result};

use super::Launcher;
use crate::{command::run, workspace::Workspace};

/// The version that is taken, of those that pyenv has.
const VERSION: &str = "3.12";

pub(super) fn launchers(workspace: &Workspace) -> Result<Vec<Launcher>> {
    let installed = installed().with_context(|| format!("pyenv has no CPython {VERSION}"))?;
    let folder = workspace.target("moved");
    fs::create_dir_all(&folder)?;
    let (program, library) = (format!("python{VERSION}"), format!("libpython{VERSION}.so.1.0"));
    for (from, name) in [("bin", &program), ("lib", &library)] {
        let from = installed.join(from).join(name);
        run(Command::new("strip").arg("--strip-all").arg("-o").arg(folder.join(name)).arg(&from))?;
    }
    let variables = vec![
        ("LD_LIBRARY_PATH", folder.clone().into()),
        // Its modules stay where they are.
        ("PYTHONHOME", installed.into()),
    ];
    let words = vec![folder.join(program).into()];
    Ok(vec![Launcher { name: format!("moved-{VERSION}"), variables, words }])
}

fn installed() -> Option<PathBuf> {
    let root = env::var_os("PYENV_ROOT").map(PathBuf::from);
    let root = root.or_else(|| Some(Path::new(&env::var_os("HOME")?).join(".pyenv")))?;
    let versions = fs::read_dir(root.join("versions")).ok()?;
    let prefix = format!("{VERSION}.");
    versions
        .flatten()
        .find(|entry| entry.file_name().to_string_lossy().starts_with(&prefix))
        .map(|entry| entry.path())
}
