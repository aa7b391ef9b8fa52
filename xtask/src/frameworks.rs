//! Frameworks besides PyTorch, which tests run or look at: some in environments of their own, and single
//! files out of the wheels of others.

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

/// CuPy, whose pool runs without a GPU if it is told where segments come from.
const CUPY: [&str; 1] = ["cupy-14.2"];

/// ONNX Runtime for the CPU, with the same arena as for CUDA.
const ONNXRUNTIME: [&str; 1] = ["onnxruntime-1.31"];

/// The module of ONNX Runtime for CUDA, which is only read.
const ONNXRUNTIME_GPU: Part =
    Part { wheel: "onnxruntime-gpu==1.31.1", file: "onnxruntime/capi/onnxruntime_pybind11_state." };

/// vLLM's allocator, which runs on the simulated driver.
const VLLM: Part = Part { wheel: "vllm==0.33.0", file: "vllm/cumem_allocator." };

/// What the tests are told: interpreters of environments, and libraries. `host` is the interpreter that
/// the environments are made with.
///
/// # Errors
///
/// When something is neither in the cache nor to be downloaded.
pub fn variables(workspace: &Workspace, host: &Path) -> Result<Vec<(&'static str, OsString)>> {
    let mut variables: Vec<(&'static str, OsString)> = vec![
        ("CUDATRACE_JAX_PLUGINS", jax_plugin(workspace, host)?.into()),
        ("CUDATRACE_ONNXRUNTIME_LIBRARIES", part(workspace, host, &ONNXRUNTIME_GPU)?.into()),
        ("CUDATRACE_VLLM_EXTENSIONS", part(workspace, host, &VLLM)?.into()),
    ];
    for (variable, names) in [
        ("CUDATRACE_TENSORFLOW_PYTHONS", TENSORFLOW.as_slice()),
        ("CUDATRACE_CUPY_PYTHONS", &CUPY),
        ("CUDATRACE_ONNXRUNTIME_PYTHONS", &ONNXRUNTIME),
    ] {
        let interpreters: Result<Vec<PathBuf>> =
            names.iter().map(|name| environment(workspace, host, name)).collect();
        variables.push((variable, std::env::join_paths(interpreters?)?));
    }
    Ok(variables)
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

/// A file out of a wheel.
struct Part {
    /// The package, as pip is asked for it.
    wheel: &'static str,
    /// How the file's path begins; the rest tells the version of Python.
    file: &'static str,
}

/// The file, which is kept in the cache; the wheel, hundreds of megabytes, is not.
fn part(workspace: &Workspace, host: &Path, part: &Part) -> Result<PathBuf> {
    const UNPACK: &str = "
import pathlib, sys, zipfile
[wheel] = pathlib.Path(sys.argv[1]).glob('*.whl')
names = zipfile.ZipFile(wheel).namelist()
[name] = [name for name in names if name.startswith(sys.argv[2])]
pathlib.Path(sys.argv[1], name.split('/')[-1]).write_bytes(zipfile.ZipFile(wheel).read(name))
wheel.unlink()
";
    let parts = workspace.cache("parts")?;
    let folder = parts.join(part.wheel);
    if !folder.exists() {
        // Complete or not at all.
        let partial = parts.join(format!("{}.partial", part.wheel));
        if partial.exists() {
            fs::remove_dir_all(&partial)?;
        }
        run(pip(host, "download").arg("--no-cache-dir").arg("-d").arg(&partial).arg(part.wheel))?;
        run(Command::new(host).args(["-c", UNPACK]).arg(&partial).arg(part.file))?;
        fs::rename(&partial, &folder)?;
    }
    let entry = fs::read_dir(&folder)?.next();
    Ok(entry.with_context(|| format!("nothing in `{}`", folder.display()))??.path())
}
