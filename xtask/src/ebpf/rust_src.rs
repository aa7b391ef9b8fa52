//! The standard library's source, which `-Z build-std` compiles for the BPF target.

use std::{
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, bail};

use crate::{apt::PrivateApt, command::run, workspace::Workspace};

/// Suites whose `rust-src` packages are looked at, besides those that the machine is set up for.
const SUITES: [&str; 3] = ["trixie-backports", "sid", "forky"];

/// Makes sure that `<sysroot>/lib/rustlib/src/rust` is there: by rustup, else from the
/// distribution's package of the same version.
///
/// # Errors
///
/// When neither has it.
pub fn ensure(workspace: &Workspace, sysroot: &Path, version: &str) -> Result<()> {
    let place = sysroot.join("lib/rustlib/src/rust");
    if place.join("library/core").is_dir() {
        return Ok(());
    }
    let cached = workspace.cache(&format!("rust-src-{version}"))?;
    let by_rustup = || run(Command::new("rustup").args(["component", "add", "rust-src"]));
    if find(&cached).is_none() {
        if by_rustup().is_ok() && place.join("library/core").is_dir() {
            return Ok(());
        }
        eprintln!("rustup cannot provide rust-src; looking for the distribution's package");
        from_distribution(workspace, version, &cached).with_context(|| {
            format!(
                "no source of Rust {version}'s standard library: run `rustup component add \
                 rust-src` on a machine with access to it"
            )
        })?;
    }
    let source =
        find(&cached).with_context(|| format!("`{}` holds no Rust source", cached.display()))?;
    let parent = sysroot.join("lib/rustlib/src");
    fs::create_dir_all(&parent).and_then(|()| symlink(&source, &place)).with_context(|| {
        format!("cannot link `{}`: run as the owner of the toolchain", place.display())
    })
}

/// The unpacked source in a cache folder.
fn find(cached: &Path) -> Option<PathBuf> {
    let entries = fs::read_dir(cached.join("usr/src")).ok()?;
    entries
        .filter_map(|entry| Some(entry.ok()?.path()))
        .find(|path| path.join("library/core").is_dir())
}

/// Unpacks (does not install) the distribution's package of the same release.
fn from_distribution(workspace: &Workspace, version: &str, cached: &Path) -> Result<()> {
    let apt = PrivateApt::new(workspace, "rust-src")?;
    for suite in SUITES {
        if apt.select(suite, "main").is_err() {
            continue;
        }
        let versions = apt.versions("rust-src")?;
        let release = format!("{version}+");
        if let Some(found) = versions.iter().find(|found| found.starts_with(&release)) {
            return apt.unpack("rust-src", found, cached);
        }
    }
    bail!("no `rust-src` {version} in {}", SUITES.join(", "))
}
