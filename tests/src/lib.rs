//! Fixtures of the integration tests: real processes, and traces of them.
//!
//! Run them by `cargo xtask test`, which makes the sandbox and sets the environment. They need root
//! and a kernel with uprobes.

pub mod child;
pub mod steps;
pub mod trace;
pub mod tracer;

use std::{
    env,
    ops::RangeInclusive,
    path::{Path, PathBuf},
};

use tracer_user::discover::library::{LibraryFile, LibraryKind};

/// The interpreter of the sandbox with the current PyTorch.
///
/// # Panics
///
/// When the tests are not run by `cargo xtask test`.
pub fn sandbox_python() -> PathBuf {
    variable("CUDATRACE_SANDBOX_PYTHON")
}

/// The interpreters of every sandbox: with the current PyTorch, and with 2.3.1.
///
/// # Panics
///
/// When the tests are not run by `cargo xtask test`; without `CI`, the old PyTorch may be missing.
pub fn sandbox_pythons() -> Vec<PathBuf> {
    const OLD: &str = "CUDATRACE_SANDBOX_PYTHON_2_3";
    let mut pythons = vec![sandbox_python()];
    if env::var_os(OLD).is_some() || env::var_os("CI").is_some() {
        pythons.push(variable(OLD));
    } else {
        println!("skipped: PyTorch 2.3.1 ({OLD} is not set)");
    }
    pythons
}

/// The `cudatrace` program.
///
/// # Panics
///
/// When the tests are not run by `cargo xtask test`.
pub fn cudatrace() -> PathBuf {
    variable("CUDATRACE_BIN")
}

/// The paths in a variable that `cargo xtask test` sets, separated by colons.
///
/// # Panics
///
/// When the tests are not run by it.
pub fn list(name: &str) -> Vec<PathBuf> {
    env::split_paths(&variable(name)).collect()
}

/// The vendor's own libraries: a folder for each.
///
/// # Panics
///
/// When the tests are not run by `cargo xtask test`.
pub fn vendor_libraries() -> PathBuf {
    variable("CUDATRACE_VENDOR_LIBRARIES")
}

fn variable(name: &str) -> PathBuf {
    match env::var_os(name) {
        Some(value) => value.into(),
        None => panic!("{name} is not set: run the tests by `cargo xtask test`"),
    }
}

/// Where an environment has its packages, given its interpreter.
///
/// # Panics
///
/// When it has none.
pub fn packages(python: &Path) -> PathBuf {
    let lib = python.with_file_name("../lib");
    let folders = std::fs::read_dir(&lib).into_iter().flatten().flatten();
    let mut found = folders.map(|entry| entry.path().join("site-packages"));
    match found.find(|folder| folder.exists()) {
        Some(folder) => folder,
        None => panic!("no packages below `{}`", lib.display()),
    }
}

/// The library of a kind in a folder.
///
/// # Panics
///
/// When there is none.
pub fn library_in(folder: &Path, kind: LibraryKind) -> LibraryFile {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut paths = entries.map(|entry| entry.path());
    match paths.find(|path| LibraryKind::of(path) == Some(kind)) {
        Some(path) => {
            LibraryFile { kind, path: path.clone(), open_path: path, mapped: true, inode: 0 }
        }
        None => panic!("no {kind:?} in `{}`", folder.display()),
    }
}

/// A file of `tests/workloads`.
pub fn workload(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("workloads").join(name)
}

/// The simulated driver of the sandbox with the current PyTorch.
pub fn simulated_driver() -> PathBuf {
    simulated(&sandbox_python(), "libcuda.so.1")
}

/// The simulated runtime of a sandbox.
pub fn simulated_runtime(python: &Path) -> PathBuf {
    simulated(python, "libcudart.so.")
}

/// A simulated library of a sandbox, by how its file name begins.
///
/// # Panics
///
/// When it is not there.
pub fn simulated(python: &Path, name: &str) -> PathBuf {
    let lib = python.with_file_name("").join("../lib");
    let entries = |folder: &Path| std::fs::read_dir(folder).into_iter().flatten().flatten();
    let found = entries(&lib)
        .flat_map(|version| entries(&version.path().join("site-packages/torch/lib")))
        .find(|library| library.file_name().to_string_lossy().starts_with(name));
    match found.and_then(|library| library.path().canonicalize().ok()) {
        Some(path) => path,
        None => panic!("no {name} below `{}`: run `cargo xtask sandbox`", lib.display()),
    }
}

/// The interpreters that `cargo xtask pythons` makes: launchers by name.
///
/// # Panics
///
/// In CI, when the tests are not run by `cargo xtask test`.
pub fn made_pythons() -> Vec<PathBuf> {
    const FOLDER: &str = "CUDATRACE_PYTHONS";
    if env::var_os(FOLDER).is_none() && env::var_os("CI").is_none() {
        println!("skipped: what `cargo xtask pythons` makes ({FOLDER} is not set)");
        return Vec::new();
    }
    let entries = std::fs::read_dir(variable(FOLDER)).into_iter().flatten().flatten();
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
    paths.sort();
    paths
}

/// The folder with greenlet for every version.
///
/// # Panics
///
/// In CI, when the tests are not run by `cargo xtask test`.
pub fn greenlets() -> Option<PathBuf> {
    const FOLDER: &str = "CUDATRACE_GREENLETS";
    if env::var_os(FOLDER).is_none() && env::var_os("CI").is_none() {
        println!("skipped: greenlets ({FOLDER} is not set)");
        return None;
    }
    Some(variable(FOLDER))
}

/// Interpreters of other versions that this machine has: `(3.x, path)`, by version. Looked for with
/// pyenv, and by name.
pub fn other_pythons(minors: RangeInclusive<u8>) -> Vec<(String, PathBuf)> {
    minors
        .map(|minor| format!("3.{minor}"))
        .flat_map(|version| {
            let mut paths = pyenv_pythons(&version);
            paths.push(PathBuf::from(format!("/usr/bin/python{version}")));
            paths.retain(|path| path.exists());
            paths.into_iter().map(move |path| (version.clone(), path))
        })
        .collect()
}

/// Those of a version, such as `2.7`, below `PYENV_ROOT` or `~/.pyenv`.
pub fn pyenv_pythons(version: &str) -> Vec<PathBuf> {
    let root = env::var_os("PYENV_ROOT")
        .map(PathBuf::from)
        .or_else(|| env::var_os("HOME").map(|home| PathBuf::from(home).join(".pyenv")));
    let prefix = format!("{version}.");
    let folders = root.and_then(|root| std::fs::read_dir(root.join("versions")).ok());
    folders
        .into_iter()
        .flatten()
        .flatten()
        .filter(|entry| entry.file_name().to_string_lossy().starts_with(&prefix))
        .map(|entry| entry.path().join("bin/python"))
        .filter(|path| path.exists())
        .collect()
}
