//! Packages of the distribution, unpacked without installing them.
//!
//! apt gets a state of its own below `target`, so that the machine's configuration stays as it is.
//! The mirror is the machine's own.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result};

use crate::{
    command::{output, run},
    workspace::Workspace,
};

/// An apt with a private state, which is removed when this is dropped.
pub struct PrivateApt {
    state: PathBuf,
    /// A line of `sources.list` between its kind and the suite.
    source: String,
}

impl PrivateApt {
    /// Makes the state; `name` tells it from others.
    ///
    /// # Errors
    ///
    /// When the machine's apt knows no mirror of Debian, or the state cannot be made.
    pub fn new(workspace: &Workspace, name: &str) -> Result<Self> {
        let source = mirror()?;
        let state = workspace.target("apt").join(name);
        for folder in ["lists/partial", "cache/archives/partial", "download"] {
            fs::create_dir_all(state.join(folder))
                .with_context(|| format!("cannot make `{}`", state.display()))?;
        }
        Ok(Self { state, source })
    }

    /// Turns to a component (`main`, `non-free`) of a suite: what follows is about its packages alone.
    ///
    /// # Errors
    ///
    /// When its index cannot be had.
    pub fn select(&self, suite: &str, component: &str) -> Result<()> {
        self.select_kind("deb", suite, component)
    }

    /// The same for packages of source.
    ///
    /// # Errors
    ///
    /// When its index cannot be had.
    pub fn select_source(&self, suite: &str, component: &str) -> Result<()> {
        self.select_kind("deb-src", suite, component)
    }

    fn select_kind(&self, kind: &str, suite: &str, component: &str) -> Result<()> {
        let line = format!("{kind} {} {suite} {component}\n", self.source);
        fs::write(self.state.join("sources.list"), line)?;
        run(self.apt("apt-get").args(["update", "-qq"]))
    }

    /// The versions of a package, newest first; none when the suite does not have it.
    ///
    /// # Errors
    ///
    /// When apt fails.
    pub fn versions(&self, package: &str) -> Result<Vec<String>> {
        let listing = output(self.apt("apt-cache").args(["madison", package]))?;
        let versions = listing.lines().filter_map(|line| line.split('|').nth(1));
        Ok(versions.map(|version| version.trim().to_owned()).collect())
    }

    /// A field of a package's newest version.
    ///
    /// # Errors
    ///
    /// When the suite has no such package, or it no such field.
    pub fn field(&self, package: &str, field: &str) -> Result<String> {
        let shown = output(self.apt("apt-cache").args(["show", package]))?;
        let start = format!("{field}: ");
        let value = shown.lines().find_map(|line| line.strip_prefix(&start));
        Ok(value.with_context(|| format!("`{package}` has no `{field}`"))?.to_owned())
    }

    /// Downloads a package and unpacks it into a folder.
    ///
    /// # Errors
    ///
    /// When it cannot be downloaded or unpacked.
    pub fn unpack(&self, package: &str, version: &str, into: &Path) -> Result<()> {
        let download = self.state.join("download");
        fs::remove_dir_all(&download)?;
        fs::create_dir_all(&download)?;
        run(self.apt("apt-get").current_dir(&download).args([
            "download",
            "-qq",
            &format!("{package}={version}"),
        ]))?;
        let archive = fs::read_dir(&download)?
            .filter_map(|entry| Some(entry.ok()?.path()))
            .find(|path| path.extension().is_some_and(|extension| extension == "deb"))
            .context("apt downloaded no package")?;
        run(Command::new("dpkg-deb").arg("-x").arg(&archive).arg(into))?;
        fs::remove_file(&archive)?;
        Ok(())
    }

    /// Downloads the source that a package was made from, as its authors published it, and unpacks it into
    /// a folder.
    ///
    /// # Errors
    ///
    /// When it cannot be downloaded or unpacked.
    pub fn unpack_source(&self, package: &str, into: &Path) -> Result<()> {
        let download = self.state.join("download");
        fs::remove_dir_all(&download)?;
        fs::create_dir_all(&download)?;
        run(self.apt("apt-get").current_dir(&download).args([
            "source",
            "-qq",
            "--download-only",
            package,
        ]))?;
        let archive = fs::read_dir(&download)?
            .filter_map(|entry| Some(entry.ok()?.path()))
            .find(|path| {
                path.to_string_lossy().contains(".orig.tar.")
                    && path.extension() != Some("asc".as_ref())
            })
            .context("apt downloaded no source")?;
        run(Command::new("tar")
            .arg("-xf")
            .arg(&archive)
            .arg("-C")
            .arg(into)
            .arg("--strip-components=1"))
    }

    fn apt(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        for (key, path) in [
            ("Dir::Etc::sourcelist", "sources.list"),
            ("Dir::State::lists", "lists"),
            ("Dir::Cache", "cache"),
        ] {
            command.arg("-o").arg(format!("{key}={}", self.state.join(path).display()));
        }
        for option in [
            "Dir::Etc::sourceparts=/dev/null",
            "APT::Sandbox::User=root",
            "Acquire::Languages=none",
            // An index that cannot be had is an error, not a warning.
            "APT::Update::Error-Mode=any",
            "Acquire::IndexTargets::deb::DEP-11::DefaultEnabled=false",
        ] {
            command.args(["-o", option]);
        }
        command
    }
}

impl Drop for PrivateApt {
    fn drop(&mut self) {
        // What stays behind lies below `target`, and is written over next time.
        let _ = fs::remove_dir_all(&self.state);
    }
}

/// Debian's mirror, as the machine's own apt knows it: a line of `sources.list` between its kind and the suite.
fn mirror() -> Result<String> {
    let targets = |filters: &[&str]| {
        output(
            Command::new("apt-get")
                .args(["indextargets", "--format", "$(REPO_URI) $(SIGNED_BY)"])
                .arg("Created-By: Packages")
                .args(filters),
        )
    };
    let mut listing = targets(&["Origin: Debian"])?;
    // Without the index of a suite apt knows no origin; take the configured entries then.
    if listing.trim().is_empty() {
        listing = targets(&[])?;
    }
    let (uri, signed_by) = listing
        .lines()
        .filter_map(|line| line.split_once(' '))
        .find(|(uri, _)| uri.trim_end_matches('/').ends_with("/debian"))
        .context("apt knows no mirror of Debian")?;
    // apt leaves the placeholder where an entry names no key.
    let signed_by = if signed_by.is_empty() || signed_by.starts_with("$(") {
        String::new()
    } else {
        format!("[signed-by={signed_by}] ")
    };
    Ok(format!("{signed_by}{uri}"))
}
