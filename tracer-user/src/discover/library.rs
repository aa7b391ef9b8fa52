//! Libraries worth probing: those that are mapped, and those that the process will load.
//!
//! A library is chosen by its name and place, never because it exports a CUDA name: TensorFlow and
//! JAX export stubs of the same names.

use std::{
    collections::HashSet,
    fs,
    io::{self, Read as _},
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
};

use super::{
    elf::open_regular,
    maps::{MappedFile, in_root},
    process::{PROC, command_line, environment},
    python::PythonTarget,
};
use crate::model::{Level, Pid};

/// What a library is to us.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum LibraryKind {
    /// The CUDA driver.
    Driver,
    /// The CUDA runtime, as a library of its own.
    Runtime,
    /// PyTorch's base library.
    TorchC10,
    /// PyTorch's caching allocator.
    TorchCuda,
    /// PyTorch's autograd engine.
    TorchAutograd,
    /// TensorFlow's framework, which has its BFC allocators.
    Tensorflow,
    /// JAX's plugin for CUDA, which has its own.
    Jax,
    /// CuPy's module with its memory pool.
    Cupy,
    /// ONNX Runtime, as a library or as Python's module.
    Onnxruntime,
    /// The dynamic loader.
    Loader,
}

impl LibraryKind {
    /// By file name, and where that says little, by the folders.
    pub fn of(path: &Path) -> Option<Self> {
        let file_name = path.file_name()?.to_str()?;
        match file_name {
            name if name.starts_with("memory.cpython-") => {
                path.parent()?.ends_with("cupy/cuda").then_some(Self::Cupy)
            }
            name if name.starts_with("libonnxruntime.so") => Some(Self::Onnxruntime),
            name if name.starts_with("onnxruntime_pybind11_state.") => Some(Self::Onnxruntime),
            "libc10.so" => Some(Self::TorchC10),
            "libc10_cuda.so" => Some(Self::TorchCuda),
            "libtorch_cpu.so" => Some(Self::TorchAutograd),
            "xla_cuda_plugin.so" => Some(Self::Jax),
            name if name.starts_with("libtensorflow_framework.so") => Some(Self::Tensorflow),
            name if name == "libcuda.so.1" || is_driver_file(name) => Some(Self::Driver),
            name if is_runtime_file(name) => Some(Self::Runtime),
            name if name.starts_with("ld-linux") || is_old_loader(name) => Some(Self::Loader),
            _ => None,
        }
    }
}

impl LibraryKind {
    /// The level of its pools, if they cannot tell what they had before attach.
    pub const fn untold_pools(self) -> Option<Level> {
        match self {
            Self::Tensorflow => Some(Level::Tensorflow),
            Self::Jax => Some(Level::Jax),
            Self::Cupy => Some(Level::Cupy),
            Self::Onnxruntime => Some(Level::Onnxruntime),
            _ => None,
        }
    }
}

/// `libcuda.so.550.163.01`: what `libcuda.so.1` is a link to, and what is shown as mapped.
fn is_driver_file(name: &str) -> bool {
    name.strip_prefix("libcuda.so.").is_some_and(|version| {
        version.contains('.') && version.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.')
    })
}

/// `libcudart.so.13`, `libcudart.so.12.9.79`, and `libcudart-d0da41ae.so.11.0`, as some wheels call it.
fn is_runtime_file(name: &str) -> bool {
    name.starts_with("libcudart.so.") || name.starts_with("libcudart-") && name.contains(".so.")
}

/// `ld-2.31.so`, before glibc 2.34.
fn is_old_loader(name: &str) -> bool {
    name.starts_with("ld-2.") && name.ends_with(".so")
}

/// A library to probe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LibraryFile {
    /// What it is.
    pub kind: LibraryKind,
    /// Its path as the process sees it.
    pub path: PathBuf,
    /// The path to open.
    pub open_path: PathBuf,
    /// Whether it is mapped already.
    pub mapped: bool,
    /// Identity of the file.
    pub inode: u64,
}

/// The libraries of interest among the mapped files.
pub fn mapped(files: &[MappedFile]) -> Vec<LibraryFile> {
    files
        .iter()
        .filter(|file| file.ranges.iter().any(|range| range.executable))
        .filter_map(|file| {
            Some(LibraryFile {
                kind: LibraryKind::of(&file.path.with_file_name(file.file_name()))?,
                path: file.path.clone(),
                open_path: file.open_path.clone(),
                mapped: true,
                inode: file.inode,
            })
        })
        .collect()
}

/// The libraries that the process is going to load when it imports a framework: those of every
/// installation on its import path, and the system's driver. What is already in `known` is left out.
pub fn loadable(
    pid: Pid,
    python: Option<&PythonTarget>,
    known: &[LibraryFile],
) -> Vec<LibraryFile> {
    let environment = Environment::of(pid);
    let mut seen: HashSet<(LibraryKind, u64)> =
        known.iter().map(|library| (library.kind, library.inode)).collect();
    let mut found = Vec::new();
    let mut consider = |kind: LibraryKind, path: PathBuf| {
        let open_path = in_root(pid, &path);
        let Ok(metadata) = fs::metadata(&open_path) else { return };
        if metadata.is_file() && seen.insert((kind, metadata.ino())) {
            found.push(LibraryFile { kind, path, open_path, mapped: false, inode: metadata.ino() });
        }
    };
    let suffix =
        format!("cpython-3{}-x86_64-linux-gnu.so", python.map_or(0, |python| python.minor));
    let folders = python.map(|python| import_path(pid, python.minor, &python.file, &environment));
    for folder in folders.unwrap_or_default() {
        consider(LibraryKind::TorchC10, folder.join("torch/lib/libc10.so"));
        consider(LibraryKind::TorchCuda, folder.join("torch/lib/libc10_cuda.so"));
        consider(LibraryKind::TorchAutograd, folder.join("torch/lib/libtorch_cpu.so"));
        consider(LibraryKind::Driver, folder.join("torch/lib/libcuda.so.1"));
        consider(LibraryKind::Tensorflow, folder.join("tensorflow/libtensorflow_framework.so.2"));
        for version in ["xla_cuda12", "xla_cuda13"] {
            let plugin = folder.join("jax_plugins").join(version).join("xla_cuda_plugin.so");
            consider(LibraryKind::Jax, plugin);
        }
        for runtime in RUNTIMES {
            consider(LibraryKind::Runtime, folder.join(runtime));
        }
        consider(LibraryKind::Cupy, folder.join(format!("cupy/cuda/memory.{suffix}")));
        let module = format!("onnxruntime/capi/onnxruntime_pybind11_state.{suffix}");
        consider(LibraryKind::Onnxruntime, folder.join(module));
    }
    for folder in environment.folders("LD_LIBRARY_PATH").into_iter().chain(system_folders(pid)) {
        consider(LibraryKind::Driver, folder.join("libcuda.so.1"));
    }
    found
}

/// Where the runtime that PyTorch loads is, in a folder of packages.
const RUNTIMES: [&str; 4] = [
    "nvidia/cu13/lib/libcudart.so.13",
    "nvidia/cuda_runtime/lib/libcudart.so.12",
    "torch/lib/libcudart.so.13",
    "torch/lib/libcudart.so.12",
];

/// What the process was started with.
struct Environment(Vec<(String, String)>);

impl Environment {
    fn of(pid: Pid) -> Self {
        Self(environment(pid))
    }

    fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(found, _)| found == name).map(|(_, value)| value.as_str())
    }

    fn folders(&self, name: &str) -> Vec<PathBuf> {
        let list = self.get(name).unwrap_or_default();
        list.split(':').filter(|folder| folder.starts_with('/')).map(PathBuf::from).collect()
    }
}

/// Words of a command line that are looked at for the interpreter.
const MAX_WORDS: usize = 16;

/// Folders from which the interpreter imports packages, as far as they can be told from outside.
fn import_path(pid: Pid, minor: u8, interpreter: &Path, environment: &Environment) -> Vec<PathBuf> {
    let mut prefixes: Vec<PathBuf> = Vec::new();
    let above = |path: &Path| path.parent().and_then(Path::parent).map(Path::to_owned);
    // How it was called: inside a virtual environment this is the environment's own link.
    let words = command_line(pid);
    if let Some(first) = words.first() {
        let path = PathBuf::from(first);
        if path.is_absolute() {
            prefixes.extend(above(&path));
        } else if path.components().count() == 1 {
            // Looked up on PATH; a shell or a launcher would have found the first one.
            prefixes.extend(
                environment
                    .folders("PATH")
                    .iter()
                    .filter(|folder| in_root(pid, &folder.join(first)).exists())
                    .filter_map(|folder| folder.parent().map(Path::to_owned)),
            );
        } else if let Ok(folder) = fs::read_link(format!("{PROC}/{}/cwd", pid.0)) {
            prefixes.extend(above(&folder.join(path)));
        }
    }
    // What was started may be the loader, given the interpreter as an argument, or a program with one in it.
    let named = words.iter().take(MAX_WORDS).map(Path::new).filter(|word| {
        let name = word.file_name().unwrap_or_default();
        word.is_absolute() && name.as_encoded_bytes().starts_with(b"python")
    });
    prefixes.extend(named.filter_map(above));
    prefixes.extend(above(interpreter));
    prefixes.extend(interpreter.parent().and_then(above));
    prefixes.extend(["VIRTUAL_ENV", "CONDA_PREFIX", "PYTHONHOME"].iter().filter_map(|name| {
        environment.get(name).filter(|value| value.starts_with('/')).map(PathBuf::from)
    }));
    if let Ok(program) = fs::read_link(format!("{PROC}/{}/exe", pid.0)) {
        prefixes.extend(above(&program));
    }
    prefixes.extend(["/usr/local", "/usr"].map(PathBuf::from));

    let mut folders = environment.folders("PYTHONPATH");
    for prefix in prefixes {
        for lib in ["lib", "lib64"] {
            folders.push(prefix.join(format!("{lib}/python3.{minor}/site-packages")));
            folders.push(prefix.join(format!("{lib}/python3.{minor}/dist-packages")));
            folders.push(prefix.join(format!("{lib}/python3/dist-packages")));
        }
    }
    if let Some(home) = environment.get("HOME").filter(|home| home.starts_with('/')) {
        folders.push(Path::new(home).join(format!(".local/lib/python3.{minor}/site-packages")));
    }
    folders
}

/// Where distributions and container tool kits put the driver.
fn system_folders(pid: Pid) -> Vec<PathBuf> {
    let mut folders: Vec<PathBuf> = [
        "/usr/lib/x86_64-linux-gnu",
        "/usr/lib/x86_64-linux-gnu/nvidia/current",
        "/usr/lib64",
        "/usr/lib",
        "/lib/x86_64-linux-gnu",
        "/usr/local/cuda/compat",
        "/usr/local/nvidia/lib64",
        "/usr/lib/wsl/lib",
        "/run/opengl-driver/lib",
    ]
    .map(PathBuf::from)
    .to_vec();
    // What the loader's configuration adds, one folder a line.
    let Ok(entries) = fs::read_dir(in_root(pid, Path::new("/etc/ld.so.conf.d"))) else {
        return folders;
    };
    for entry in entries.flatten().take(64) {
        let text = read_regular(&entry.path()).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let lines = text.lines().map(str::trim).filter(|line| line.starts_with('/'));
        folders.extend(lines.map(PathBuf::from));
    }
    folders
}

/// Bytes that are read of a configuration file.
const MAX_CONFIGURATION: u64 = 64 * 1024;

/// The first bytes of a file in the target's root, if it is a regular file: it may as well be a pipe
/// that nobody writes to.
fn read_regular(path: &Path) -> io::Result<Vec<u8>> {
    let file = open_regular(path)?;
    let mut bytes = Vec::new();
    file.take(MAX_CONFIGURATION).read_to_end(&mut bytes)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pipe_in_the_place_of_a_file_is_not_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let pipe = folder.path().join("x.conf");
        let status = std::process::Command::new("mkfifo").arg(&pipe).status().unwrap();
        assert!(status.success());
        assert!(read_regular(&pipe).is_err());
        let file = folder.path().join("y.conf");
        fs::write(&file, vec![b'x'; 100_000]).unwrap();
        assert_eq!(read_regular(&file).unwrap().len() as u64, MAX_CONFIGURATION);
    }

    /// The program of such a process is the loader, and says nothing about where packages are.
    #[test]
    fn packages_are_found_of_an_interpreter_that_the_loader_was_given() {
        let prefix = tempfile::tempdir().unwrap();
        let (bin, lib) = (prefix.path().join("bin"), prefix.path().join("lib"));
        fs::create_dir(&bin).unwrap();
        let program = bin.join("python3.12");
        fs::copy("/bin/sleep", &program).unwrap();
        let loader = "/lib64/ld-linux-x86-64.so.2";
        let mut child = std::process::Command::new(loader).arg(&program).arg("60").spawn().unwrap();
        let pid = Pid(child.id());
        // The parent goes on a moment before the words of the new program are there.
        while command_line(pid).len() < 3 {
            std::thread::yield_now();
        }
        let packages = lib.join("python3.12/site-packages");
        for interpreter in [Path::new("/elsewhere/program"), &lib.join("x/libpython3.12.so.1.0")] {
            let folders = import_path(pid, 12, interpreter, &Environment(Vec::new()));
            assert!(folders.contains(&packages), "{folders:?}");
        }
        child.kill().unwrap();
        child.wait().unwrap();
        let folders = import_path(pid, 12, &lib.join("x/libpython.so"), &Environment(Vec::new()));
        assert!(folders.contains(&packages), "{folders:?}");
    }

    #[test]
    fn libraries_are_told_by_their_names() {
        for (name, kind) in [
            ("libcuda.so.1", Some(LibraryKind::Driver)),
            ("libcuda.so.550.163.01", Some(LibraryKind::Driver)),
            ("libc10.so", Some(LibraryKind::TorchC10)),
            ("ld-linux-x86-64.so.2", Some(LibraryKind::Loader)),
            ("ld-2.31.so", Some(LibraryKind::Loader)),
            ("libcudart.so.13", Some(LibraryKind::Runtime)),
            ("libcudart.so.12.9.79", Some(LibraryKind::Runtime)),
            ("libcudart-d0da41ae.so.11.0", Some(LibraryKind::Runtime)),
            ("libcudart_static.a", None),
            ("libc10_cuda.so", Some(LibraryKind::TorchCuda)),
            ("libtorch_cpu.so", Some(LibraryKind::TorchAutograd)),
            ("libtensorflow_framework.so.2", Some(LibraryKind::Tensorflow)),
            ("libtensorflow_cc.so.2", None),
            ("xla_cuda_plugin.so", Some(LibraryKind::Jax)),
            ("/x/cupy/cuda/memory.cpython-311-x86_64-linux-gnu.so", Some(LibraryKind::Cupy)),
            ("/x/other/cuda/memory.cpython-311-x86_64-linux-gnu.so", None),
            ("libonnxruntime.so.1.31.1", Some(LibraryKind::Onnxruntime)),
            ("libonnxruntime_providers_cuda.so", None),
        ] {
            assert_eq!(LibraryKind::of(Path::new(name)), kind, "{name}");
        }
    }
}
