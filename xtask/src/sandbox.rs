//! `sandbox`: Python environments with real PyTorch on the simulated CUDA libraries.

use std::{
    env, fs,
    hash::{DefaultHasher, Hash as _, Hasher as _},
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, bail};

use crate::{
    command::{output, run},
    cuda_sim,
    workspace::Workspace,
};

/// The oldest Python 3 that the packages of every sandbox support.
const MIN_MINOR: u32 = 11;

/// Bytes that PyTorch takes unpacked, with some air.
const DISK_BYTES: u64 = 3 << 30;

/// A version of PyTorch, in an environment of its own.
pub struct Sandbox {
    /// What it is asked for by.
    pub name: &'static str,
    /// Its folder below `target`.
    folder: &'static str,
    /// Its packages, one per line, in `tests/cuda-sim`.
    requirements: &'static str,
    /// The newest Python 3 that all of them support, if there is one.
    newest_minor: Option<u32>,
    /// What tells the tests its interpreter.
    pub variable: &'static str,
}

/// The current PyTorch, on CUDA 13, with a notebook kernel.
pub const CURRENT: Sandbox = Sandbox {
    name: "current",
    folder: "sandbox",
    requirements: "requirements.txt",
    newest_minor: None,
    variable: "CUDATRACE_SANDBOX_PYTHON",
};

/// An old PyTorch, on CUDA 12, and nothing else.
pub const TORCH_2_3: Sandbox = Sandbox {
    name: "2.3.1",
    folder: "sandbox-2.3.1",
    requirements: "requirements-2.3.1.txt",
    newest_minor: Some(12),
    variable: "CUDATRACE_SANDBOX_PYTHON_2_3",
};

/// Every sandbox.
pub const ALL: [Sandbox; 2] = [CURRENT, TORCH_2_3];

impl Sandbox {
    /// Makes it below `target` if it is not there or no longer fits its inputs, and returns the path
    /// of its interpreter.
    ///
    /// # Errors
    ///
    /// When there is no suitable Python, no disk space, or a package is neither cached nor to be had.
    pub fn ensure(&self, workspace: &Workspace) -> Result<PathBuf> {
        let folder = workspace.target(self.folder);
        let interpreter = folder.join("bin/python");
        let host = self.host_python()?;
        let stamp = folder.join("cudatrace-stamp");
        let requirements = workspace.root().join("tests/cuda-sim").join(self.requirements);
        let wanted = fingerprint(workspace, &host, &requirements)?;
        if fs::read_to_string(&stamp).is_ok_and(|found| found == wanted) && interpreter.exists() {
            return Ok(interpreter);
        }

        check_disk(workspace)?;
        if !is_installed(&interpreter, &requirements) {
            install(workspace, &host, &folder, &requirements)?;
        }
        let torch_lib = output(Command::new(&interpreter).args([
            "-c",
            "import importlib.util, os; print(os.path.join(os.path.dirname(importlib.util.find_spec('torch').origin), 'lib'))",
        ]))?;
        cuda_sim::build(workspace, Path::new(torch_lib.trim()))?;
        let seen = output(
            Command::new(&interpreter)
                .args([
                    "-c",
                    "import torch; print(torch.__version__, torch.cuda.get_device_name(0))",
                ])
                .env("CUDASIM_DEVICES", "1"),
        )
        .context("the sandbox is there, but PyTorch does not see the simulated device")?;
        eprintln!("PyTorch, and what it sees: {}", seen.trim());
        fs::write(&stamp, wanted)?;
        Ok(interpreter)
    }

    /// `CUDATRACE_PYTHON`, `python3` and others by name: the first that the packages support.
    fn host_python(&self) -> Result<PathBuf> {
        let named = env::var_os("CUDATRACE_PYTHON").map(PathBuf::from);
        let others = ["python3", "python3.13", "python3.12", "python3.11"].map(PathBuf::from);
        let fits = |minor: u32| {
            minor >= MIN_MINOR && self.newest_minor.is_none_or(|newest| minor <= newest)
        };
        let mut tried = Vec::new();
        for candidate in named.into_iter().chain(others) {
            let script =
                "import sys, venv, ensurepip; print(sys.version_info.minor, sys.executable)";
            match output(Command::new(&candidate).args(["-c", script])) {
                Err(error) => tried.push(format!("{error:#}")),
                Ok(answer) => match answer.trim().split_once(' ') {
                    Some((minor, path)) if minor.parse().is_ok_and(fits) => {
                        return Ok(PathBuf::from(path));
                    }
                    _ => tried.push(format!(
                        "`{}` is Python 3.{}",
                        candidate.display(),
                        answer.trim()
                    )),
                },
            }
        }
        let newest =
            self.newest_minor.map_or("newer".to_owned(), |minor| format!("up to 3.{minor}"));
        bail!(
            "the sandbox with PyTorch {} needs Python 3.{MIN_MINOR} or {newest} with venv; name one by \
             CUDATRACE_PYTHON=/path/to/python3. Tried: {}",
            self.name,
            tried.join("; ")
        )
    }
}

/// Everything that a sandbox is made from.
fn fingerprint(workspace: &Workspace, host: &Path, requirements: &Path) -> Result<String> {
    let mut hasher = DefaultHasher::new();
    output(Command::new(host).arg("-VV"))?.hash(&mut hasher);
    host.hash(&mut hasher);
    let mut files = cuda_sim::sources(workspace)?;
    files.push(requirements.to_owned());
    for file in files {
        fs::read(&file)
            .with_context(|| format!("cannot read `{}`", file.display()))?
            .hash(&mut hasher);
    }
    Ok(format!("{:016x}", hasher.finish()))
}

fn check_disk(workspace: &Workspace) -> Result<()> {
    let target = workspace.target("");
    fs::create_dir_all(&target)?;
    let answer = output(Command::new("df").args(["--output=avail", "-B1"]).arg(&target))?;
    let free: u64 = answer.lines().last().and_then(|l| l.trim().parse().ok()).unwrap_or(u64::MAX);
    if free < DISK_BYTES {
        bail!(
            "`{}` has {} MiB free, the sandbox needs {} MiB",
            target.display(),
            free >> 20,
            DISK_BYTES >> 20
        );
    }
    Ok(())
}

/// Whether the interpreter has exactly the pinned packages.
pub fn is_installed(interpreter: &Path, requirements: &Path) -> bool {
    let script = "
import importlib.metadata, sys
for line in open(sys.argv[1]):
    line = line.split('#')[0].strip()
    if line:
        name, version = line.split('==')
        assert importlib.metadata.version(name) == version, name
";
    interpreter.exists()
        && output(Command::new(interpreter).args(["-c", script]).arg(requirements)).is_ok()
}

/// A fresh environment, from wheels that are downloaded once into the user's cache.
///
/// # Errors
///
/// When a package is neither there nor to be downloaded.
pub fn install(
    workspace: &Workspace,
    host: &Path,
    sandbox: &Path,
    requirements: &Path,
) -> Result<()> {
    if sandbox.exists() {
        fs::remove_dir_all(sandbox)?;
    }
    run(Command::new(host).args(["-m", "venv"]).arg(sandbox))?;
    let interpreter = sandbox.join("bin/python");
    let wheels = workspace.cache("wheels")?;
    let from_cache = || {
        let mut command = pip(&interpreter, "install");
        command.args(["--no-index", "--find-links"]).arg(&wheels).arg("-r").arg(requirements);
        command
    };
    if output(&mut from_cache()).is_ok() {
        return Ok(());
    }
    run(pip(&interpreter, "download").arg("-d").arg(&wheels).arg("-r").arg(requirements)).context(
        "a Python package is neither in the cache nor to be downloaded: run the same command again \
         with access to the Python package index",
    )?;
    run(&mut from_cache())
}

/// A call of pip that takes wheels only, and no packages that were not asked for.
pub fn pip(interpreter: &Path, verb: &str) -> Command {
    let mut command = Command::new(interpreter);
    command
        .args(["-m", "pip", "--disable-pip-version-check", verb, "--quiet", "--no-deps"])
        .args(["--only-binary", ":all:"])
        .env("PYTHONDONTWRITEBYTECODE", "1");
    command
}
