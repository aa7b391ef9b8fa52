//! What the emulator needs and the machine may not have: itself, busybox, and kernels.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, bail, ensure};

use super::Kernel;
use crate::{
    apt::PrivateApt,
    command::{output, run},
    workspace::Workspace,
};

/// Programs of the machine.
pub struct Tools {
    /// The emulator.
    pub qemu: PathBuf,
    /// The shell and tools of the emulated machine.
    pub busybox: PathBuf,
}

/// Finds the tools, and installs them if they are missing and this is root.
///
/// # Errors
///
/// When one is missing and cannot be installed.
pub fn tools() -> Result<Tools> {
    const NEEDED: [(&str, &str); 2] =
        [("qemu-system-x86_64", "qemu-system-x86"), ("busybox", "busybox-static")];
    let missing: Vec<&str> = NEEDED
        .iter()
        .filter(|(program, _)| on_path(program).is_none())
        .map(|(_, package)| *package)
        .collect();
    if !missing.is_empty() {
        let command = format!("apt-get install --no-install-recommends {}", missing.join(" "));
        if output(Command::new("id").arg("-u"))?.trim() != "0" {
            bail!("the kernel matrix needs {}: run `sudo {command}`", missing.join(" and "));
        }
        eprintln!("missing: {}; installing by apt-get", missing.join(", "));
        install(&missing).with_context(|| format!("run `{command}` by hand"))?;
    }
    let find = |program| on_path(program).with_context(|| format!("no `{program}` on PATH"));
    Ok(Tools { qemu: find(NEEDED[0].0)?, busybox: find(NEEDED[1].0)? })
}

fn install(packages: &[&str]) -> Result<()> {
    let install = || {
        run(Command::new("apt-get")
            .args(["install", "-qq", "--yes", "--no-install-recommends"])
            .args(packages)
            .env("DEBIAN_FRONTEND", "noninteractive"))
    };
    if install().is_ok() {
        return Ok(());
    }
    // The index may be missing or old.
    run(Command::new("apt-get").args(["update", "-qq"]))?;
    install()
}

fn on_path(program: &str) -> Option<PathBuf> {
    env::split_paths(&env::var_os("PATH")?)
        .map(|folder| folder.join(program))
        .find(|path| path.is_file())
}

/// A kernel in the cache.
pub struct Package {
    /// Its release, as `uname -r` says it.
    pub release: String,
    /// What is booted.
    pub image: PathBuf,
}

/// The kernel of a suite: from the cache, else the newest of the suite's index.
///
/// # Errors
///
/// When it is not in the cache and cannot be had.
pub fn kernel(workspace: &Workspace, kernel: &Kernel, refresh: bool) -> Result<Package> {
    let cache = workspace.cache(&format!("kernels/{}", kernel.suite))?;
    if refresh || cached(&cache).is_none() {
        download(workspace, kernel, &cache).with_context(|| {
            format!("no kernel of Debian {}: run it again with access to a mirror", kernel.suite)
        })?;
    }
    cached(&cache).with_context(|| format!("`{}` holds no kernel", cache.display()))
}

fn cached(cache: &Path) -> Option<Package> {
    let release = fs::read_to_string(cache.join("release")).ok()?;
    let image = cache.join(format!("vmlinuz-{release}"));
    image.is_file().then_some(Package { release, image })
}

/// What a suite's metapackage for virtual machines stands for, unpacked; only the kernel is kept.
fn download(workspace: &Workspace, kernel: &Kernel, cache: &Path) -> Result<()> {
    let apt = PrivateApt::new(workspace, "kernels")?;
    apt.select(kernel.suite, "main")?;
    let depends = apt.field("linux-image-cloud-amd64", "Depends")?;
    let release = depends
        .split([',', ' '])
        .find_map(|word| word.strip_prefix("linux-image-"))
        .with_context(|| format!("the metapackage names no kernel: {depends}"))?;
    // Newer suites keep the kernel apart from the package that installs it.
    let mut found = None;
    for package in [format!("linux-binary-{release}"), format!("linux-image-{release}")] {
        if let Some(version) = apt.versions(&package)?.first() {
            found = Some((package, version.clone()));
            break;
        }
    }
    let (package, version) = found.with_context(|| format!("no package has {release}"))?;
    // `6.1.0-50` is a release, `6.1.176-1` the version: the series is the same.
    ensure!(version.starts_with(kernel.series), "{package} {version} is not {}", kernel.series);

    let unpacked = cache.join("unpacked");
    if unpacked.exists() {
        fs::remove_dir_all(&unpacked)?;
    }
    fs::create_dir_all(&unpacked)?;
    apt.unpack(&package, &version, &unpacked)?;
    let image = [
        format!("boot/vmlinuz-{release}"),
        format!("usr/lib/modules/{release}/vmlinuz"),
        format!("lib/modules/{release}/vmlinuz"),
    ]
    .map(|path| unpacked.join(path))
    .into_iter()
    .find(|path| path.is_file())
    .with_context(|| format!("{package} {version} has no kernel in it"))?;
    fs::rename(&image, cache.join(format!("vmlinuz-{release}")))?;
    fs::write(cache.join("release"), release)?;
    fs::remove_dir_all(&unpacked)?;
    eprintln!("Debian {}: {package} {version}", kernel.suite);
    Ok(())
}
