//! The vendor's own libraries, which tests look at and call: seven driver versions from the
//! distribution's non-free packages, two runtime versions from wheels: 70 MB to download, once. Unpacked, never
//! installed and never committed.

use std::{
    env, fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, bail};

use crate::{
    apt::PrivateApt,
    command::{output, run},
    workspace::Workspace,
};

/// A version of the driver library, and where Debian has it. A suite has one version at a time, so
/// each branch comes from another one.
struct Driver {
    version: &'static str,
    suite: &'static str,
    /// The package with `libcuda.so.1`, then those with what it is linked to.
    packages: &'static [&'static str],
}

const fn driver(
    version: &'static str,
    suite: &'static str,
    packages: &'static [&'static str],
) -> Driver {
    Driver { version, suite, packages }
}

const DRIVERS: [Driver; 7] = [
    driver(
        "390.157",
        "bullseye",
        &["libnvidia-legacy-390xx-cuda1", "libnvidia-legacy-390xx-fatbinaryloader"],
    ),
    driver("450.248.02", "bullseye", &["libnvidia-tesla-450-cuda1"]),
    driver("470.256.02", "bullseye", &["libcuda1"]),
    driver("525.147.05", "bookworm", &["libnvidia-tesla-cuda1"]),
    driver("535.261.03", "bookworm", &["libcuda1"]),
    driver("550.163.01", "trixie", &["libcuda1"]),
    driver("555.58.02", "experimental", &["libcuda1"]),
];

/// A version of the runtime library, and its wheel.
struct Runtime {
    major: &'static str,
    requirement: &'static str,
}

const RUNTIMES: [Runtime; 2] = [
    Runtime { major: "12", requirement: "nvidia-cuda-runtime-cu12==12.9.79" },
    Runtime { major: "13", requirement: "nvidia-cuda-runtime==13.5.37" },
];

/// The file that says why a library is not there.
const MISSING: &str = "missing";

/// Makes `target/vendor-libraries` with one folder for each library (`driver-550.163.01`,
/// `runtime-12`) and returns it. One that cannot be had has a file `missing` with the reason
/// instead, which the tests repeat.
///
/// # Errors
///
/// When the folder cannot be written, or, in CI, when a library cannot be had.
pub fn ensure(workspace: &Workspace) -> Result<PathBuf> {
    let folder = workspace.target("vendor-libraries");
    for library in &DRIVERS {
        let name = format!("driver-{}", library.version);
        prepare(workspace, &folder, &name, |cache| download_driver(workspace, library, cache))?;
    }
    for library in &RUNTIMES {
        let name = format!("runtime-{}", library.major);
        prepare(workspace, &folder, &name, |cache| download_runtime(library, cache))?;
    }
    Ok(folder)
}

/// Copies a library's files from the cache, where `download` puts them if need be. Both folders are
/// there complete or not at all.
fn prepare(
    workspace: &Workspace,
    folder: &Path,
    name: &str,
    download: impl FnOnce(&Path) -> Result<()>,
) -> Result<()> {
    let into = folder.join(name);
    if into.is_dir() && !into.join(MISSING).exists() {
        return Ok(());
    }
    let into_partial = empty(folder, name)?;
    let cache = workspace.cache("vendor")?;
    if !cache.join(name).is_dir() {
        let partial = empty(&cache, name)?;
        if let Err(error) = download(&partial) {
            if env::var_os("CI").is_some() {
                return Err(error.context(format!("cannot have the vendor's {name}")));
            }
            println!("skipped {name}: {error:#}");
            fs::write(into_partial.join(MISSING), format!("{error:#}"))?;
        } else {
            fs::rename(&partial, cache.join(name))?;
        }
    }
    if let Ok(entries) = fs::read_dir(cache.join(name)) {
        for entry in entries {
            let entry = entry?;
            fs::copy(entry.path(), into_partial.join(entry.file_name()))?;
            // As the distribution does it: the file has the whole version, the loader's name is a link.
            if entry.file_name().to_string_lossy().starts_with("libcuda.so.") {
                symlink(entry.file_name(), into_partial.join("libcuda.so.1"))?;
            }
        }
    }
    let _ = fs::remove_dir_all(&into);
    Ok(fs::rename(&into_partial, &into)?)
}

/// An empty folder to fill, beside the place that it is for.
fn empty(folder: &Path, name: &str) -> Result<PathBuf> {
    let partial = folder.join(format!("{name}.partial"));
    let _ = fs::remove_dir_all(&partial);
    fs::create_dir_all(&partial)
        .with_context(|| format!("cannot make the folder `{}`", partial.display()))?;
    Ok(partial)
}

fn download_driver(workspace: &Workspace, library: &Driver, cache: &Path) -> Result<()> {
    let apt = PrivateApt::new(workspace, "vendor")?;
    apt.select(library.suite, "non-free")
        .with_context(|| format!("the packages of {} cannot be listed", library.suite))?;
    let unpacked = cache.join("unpacked");
    for package in library.packages {
        let versions = apt.versions(package)?;
        let wanted = format!("{}-", library.version);
        let Some(version) = versions.iter().find(|version| version.starts_with(&wanted)) else {
            bail!(
                "Debian {} has no {package} {} any more, but {versions:?}",
                library.suite,
                library.version
            );
        };
        apt.unpack(package, version, &unpacked)?;
    }
    keep_libraries(&unpacked, cache)
}

fn download_runtime(library: &Runtime, cache: &Path) -> Result<()> {
    let unpacked = cache.join("unpacked");
    let python = env::var_os("CUDATRACE_PYTHON").unwrap_or_else(|| "python3".into());
    run(Command::new(python)
        .args(["-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--no-deps"])
        .args(["--root-user-action", "ignore"])
        .args(["--only-binary", ":all:", "--target"])
        .arg(&unpacked)
        .arg(library.requirement))
    .with_context(|| format!("pip does not have {}", library.requirement))?;
    keep_libraries(&unpacked, cache)
}

/// Moves the shared libraries out of an unpacked package, and removes the rest.
fn keep_libraries(unpacked: &Path, into: &Path) -> Result<()> {
    let found =
        output(Command::new("find").arg(unpacked).args(["-type", "f", "-name", "lib*.so.*"]))?;
    let files: Vec<&Path> = found.lines().map(Path::new).collect();
    if files.is_empty() {
        bail!("no library in `{}`", unpacked.display());
    }
    for file in files {
        fs::rename(file, into.join(file.file_name().context("a library without a name")?))?;
    }
    fs::remove_dir_all(unpacked)?;
    Ok(())
}
