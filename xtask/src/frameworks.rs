//! Frameworks besides PyTorch, which tests run or look at: TensorFlow in environments of their own, and
//! the library of a JAX plugin, which is only read.

use std::{
    ffi::OsString,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result};

use crate::{
    command::run,
    sandbox::{install, is_installed, pip},
    workspace::Workspace,
};

/// TensorFlow by the files with their packages in `tests/frameworks`: the current version, and the last
/// one before its allocators moved.
const TENSORFLOW: [&str; 2] = ["tensorflow-2.21", "tensorflow-2.15"];

/// The wheel with JAX's plugin.
const JAX: &str = "jax-cuda12-pjrt==0.12.0.1";

/// What the tests are told: the interpreters with TensorFlow, and the plugins of JAX. `host` is the
/// interpreter that the environments are made with.
///
/// # Errors
///
/// When something is neither in the cache nor to be downloaded.
pub fn variables(workspace: &Workspace, host: &Path) -> Result<[(&'static str, OsString); 2]> {
    let mut tensorflow = Vec::new();
    for name in TENSORFLOW {
        tensorflow.push(environment(workspace, host, name)?);
    }
    let jax = jax_plugin(workspace, host)?;
    Ok([
        ("CUDATRACE_TENSORFLOW_PYTHONS", std::env::join_paths(tensorflow)?),
        ("CUDATRACE_JAX_PLUGINS", jax.into()),
    ])
}

fn environment(workspace: &Workspace, host: &Path, name: &str) -> Result<PathBuf> {
    let folder = workspace.target(name);
    let interpreter = folder.join("bin/python");
    let requirements = workspace.root().join(format!("tests/frameworks/{name}.txt"));
    if !is_installed(&interpreter, &requirements) {
        install(workspace, host, &folder, &requirements)?;
    }
    Ok(interpreter)
}

fn jax_plugin(workspace: &Workspace, host: &Path) -> Result<PathBuf> {
    let folder = workspace.target("jax-plugin");
    let library = folder.join("jax_plugins/xla_cuda12/xla_cuda_plugin.so");
    if library.exists() {
        return Ok(library);
    }
    let wheels = workspace.cache("wheels")?;
    let cached = || -> Option<PathBuf> {
        let prefix = JAX.replace('-', "_").replace("==", "-");
        let entries = fs::read_dir(&wheels).ok()?.flatten().map(|entry| entry.path());
        entries.into_iter().find(|path| {
            path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(&prefix))
        })
    };
    if cached().is_none() {
        run(pip(host, "download").arg("-d").arg(&wheels).arg(JAX))?;
    }
    let wheel = cached().context("the plugin of JAX was downloaded, but is not there")?;
    // Complete or not at all.
    let partial = workspace.target("jax-plugin.partial");
    run(Command::new(host).args(["-m", "zipfile", "-e"]).arg(wheel).arg(&partial))?;
    fs::rename(&partial, &folder)?;
    Ok(library)
}
