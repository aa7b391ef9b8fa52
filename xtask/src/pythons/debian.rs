//! Interpreters of other suites of the distribution, unpacked and run with their own loader and C library:
//! the program, and the shared library inside another program.

use std::{
    ffi::OsString,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result};

use super::{Launcher, partial};
use crate::{apt::PrivateApt, command::run, cuda_sim, workspace::Workspace};

/// A version of CPython in a suite.
pub(super) struct Tree {
    suite: &'static str,
    /// The `x` of 3.x.
    minor: u8,
    /// Libraries whose packages are not called the same in every suite, or that only some need.
    libraries: &'static [&'static str],
    /// Whether the suite's C library is older than this machine's, so that the sandbox's driver does not run
    /// with it.
    is_old: bool,
}

pub(super) const TREES: [Tree; 4] = [
    Tree { suite: "bullseye", minor: 9, libraries: &["libffi7"], is_old: true },
    Tree { suite: "trixie", minor: 13, libraries: &["libffi8"], is_old: false },
    Tree { suite: "sid", minor: 14, libraries: &["libffi8"], is_old: false },
    Tree { suite: "sid", minor: 15, libraries: &["libffi8", "libzstd1"], is_old: false },
];

/// Libraries that every one needs, or its extension modules.
const LIBRARIES: [&str; 5] = ["libc6", "libgcc-s1", "libstdc++6", "libexpat1", "zlib1g"];

/// Where libraries are in a suite, the older ones last.
const LIBRARY_FOLDERS: [&str; 2] = ["usr/lib/x86_64-linux-gnu", "lib/x86_64-linux-gnu"];

/// The loader, likewise; where it is called by its own version, its usual name is a link out of the tree.
const LOADERS: [&str; 2] = ["usr/lib64/ld-linux-x86-64.so.2", "lib/x86_64-linux-gnu/ld-2.31.so"];

impl Tree {
    pub fn name(&self) -> String {
        format!("{}-3.{}", self.suite, self.minor)
    }

    /// The program, and where that is possible one that is linked to the library.
    pub fn launchers(&self, workspace: &Workspace) -> Result<Vec<Launcher>> {
        let cache = workspace.cache("pythons")?;
        let root = cache.join(self.name());
        if !root.is_dir() {
            let partial = partial(&cache, &self.name())?;
            self.unpack(workspace, &partial)?;
            fs::rename(partial, &root)?;
        }
        let own = workspace.target(&format!("pythons-own/{}", self.name()));
        fs::create_dir_all(&own)?;
        let mut variables = Vec::new();
        if self.is_old {
            let driver = cuda_sim::build_driver(workspace, &own, &c_library(&root)?)?;
            variables.push(("CUDATRACE_DRIVER", driver.into()));
        }
        let program = root.join(format!("usr/bin/python3.{}", self.minor));
        let alone = launcher(&root, self.name(), &program, variables.clone())?;
        let program = self.embedding_program(workspace, &root, &own)?;
        // It does not lie where an interpreter would look for its modules from.
        variables.push(("PYTHONHOME", root.join("usr").into()));
        let name = format!("embedded-3.{}", self.minor);
        Ok(vec![alone, launcher(&root, name, &program, variables)?])
    }

    fn unpack(&self, workspace: &Workspace, root: &Path) -> Result<()> {
        let apt = PrivateApt::new(workspace, "pythons")?;
        apt.select(self.suite, "main")?;
        let own = [
            "python3.{}-minimal",
            "libpython3.{}-minimal",
            "libpython3.{}-stdlib",
            "libpython3.{}",
        ]
        .map(|name| name.replace("{}", &self.minor.to_string()));
        let libraries = LIBRARIES.iter().chain(self.libraries).copied();
        for package in own.iter().map(String::as_str).chain(libraries) {
            let versions = apt.versions(package)?;
            let version = versions
                .first()
                .with_context(|| format!("Debian {} has no {package}", self.suite))?;
            apt.unpack(package, version, root)?;
        }
        for folder in ["usr/share", "etc", "var"] {
            let _ = fs::remove_dir_all(root.join(folder));
        }
        Ok(())
    }

    /// Builds `tests/workloads/embed.c` for the suite's library.
    fn embedding_program(
        &self,
        workspace: &Workspace,
        root: &Path,
        into: &Path,
    ) -> Result<PathBuf> {
        let program = into.join("embed");
        let library = format!("libpython3.{}.so.1.0", self.minor);
        run(Command::new("cc")
            .args(["-O1", "-Wall", "-Wextra", "-o"])
            .arg(&program)
            .arg(workspace.root().join("tests/workloads/embed.c"))
            .arg(root.join(LIBRARY_FOLDERS[0]).join(library))
            .args(c_library(root)?))?;
        Ok(program)
    }
}

/// Links something to the C library that it will run with, instead of the machine's.
fn c_library(root: &Path) -> Result<Vec<OsString>> {
    let folder = LIBRARY_FOLDERS.map(|folder| root.join(folder));
    let folder = folder.iter().find(|folder| folder.join("libc.so.6").exists());
    let folder = folder.with_context(|| format!("`{}` has no C library", root.display()))?;
    let libraries =
        ["libc.so.6", "libpthread.so.0", "libdl.so.2"].map(|name| folder.join(name).into());
    let options = ["-nodefaultlibs", "-Wl,--allow-shlib-undefined"].map(OsString::from);
    Ok([options.to_vec(), libraries.to_vec()].concat())
}

/// A program of a suite, by the suite's loader and with its libraries.
fn launcher(
    root: &Path,
    name: String,
    program: &Path,
    variables: Vec<(&'static str, OsString)>,
) -> Result<Launcher> {
    let loader = LOADERS.map(|loader| root.join(loader)).into_iter().find(|path| path.exists());
    let loader = loader.with_context(|| format!("`{}` has no loader", root.display()))?;
    let folders = LIBRARY_FOLDERS.map(|folder| root.join(folder));
    let path = std::env::join_paths(folders.iter().filter(|folder| folder.is_dir()))?;
    let words = vec![loader.into(), "--library-path".into(), path, program.into()];
    Ok(Launcher { name, variables, words })
}
