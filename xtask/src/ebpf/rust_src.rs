//! The standard library's source, which `-Z build-std` compiles for the BPF target.

use std::{
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, bail};

use crate::{
    command::{output, run},
    workspace::Workspace,
};

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

/// Downloads and unpacks (does not install) the package, with a private apt state, so that the
/// machine's own configuration stays as it is. The mirror is the machine's own.
fn from_distribution(workspace: &Workspace, version: &str, cached: &Path) -> Result<()> {
    let mirror = output(Command::new("apt-get").args([
        "indextargets",
        "--format",
        "$(REPO_URI) $(SIGNED_BY)",
        "Created-By: Packages",
        "Origin: Debian",
    ]))?;
    // Without the index of a suite apt knows no origin; take the configured entries then.
    let mirror = if mirror.trim().is_empty() {
        output(Command::new("apt-get").args([
            "indextargets",
            "--format",
            "$(REPO_URI) $(SIGNED_BY)",
            "Created-By: Packages",
        ]))?
    } else {
        mirror
    };
    let (uri, signed_by) = mirror
        .lines()
        .filter_map(|line| line.split_once(' '))
        .find(|(uri, _)| uri.trim_end_matches('/').ends_with("/debian"))
        .context("apt knows no mirror of Debian")?;
    let signed_by =
        if signed_by.is_empty() { String::new() } else { format!("[signed-by={signed_by}] ") };

    let state = workspace.target("apt");
    for folder in ["lists/partial", "cache/archives/partial", "download"] {
        fs::create_dir_all(state.join(folder))?;
    }
    for suite in SUITES {
        fs::write(state.join("sources.list"), format!("deb {signed_by}{uri} {suite} main\n"))?;
        if run(apt("apt-get", &state).arg("update")).is_err() {
            continue;
        }
        let listing = output(apt("apt-cache", &state).args(["madison", "rust-src"]))?;
        let Some(found) = listing
            .lines()
            .filter_map(|line| line.split('|').nth(1).map(str::trim))
            .find(|found| found.starts_with(&format!("{version}+")))
        else {
            continue;
        };
        let download = state.join("download");
        run(apt("apt-get", &state)
            .current_dir(&download)
            .args(["download", &format!("rust-src={found}")]))?;
        let package = fs::read_dir(&download)?
            .filter_map(|entry| Some(entry.ok()?.path()))
            .find(|path| path.extension().is_some_and(|extension| extension == "deb"))
            .context("apt downloaded no package")?;
        run(Command::new("dpkg-deb").arg("-x").arg(&package).arg(cached))?;
        fs::remove_dir_all(&state)?;
        return Ok(());
    }
    bail!("no `rust-src` {version} in {}", SUITES.join(", "))
}

fn apt(program: &str, state: &Path) -> Command {
    let mut command = Command::new(program);
    for (key, path) in [
        ("Dir::Etc::sourcelist", "sources.list"),
        ("Dir::State::lists", "lists"),
        ("Dir::Cache", "cache"),
    ] {
        command.arg("-o").arg(format!("{key}={}", state.join(path).display()));
    }
    command.args(["-o", "Dir::Etc::sourceparts=/dev/null", "-o", "APT::Sandbox::User=root"]);
    command
}
