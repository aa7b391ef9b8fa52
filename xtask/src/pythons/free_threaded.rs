//! CPython without the GIL, which no suite has as a package: built from a suite's source, as far as the
//! tests need it.

use std::{fs, path::Path, process::Command, thread};

use anyhow::{Context as _, Result};

use super::{Launcher, partial};
use crate::{apt::PrivateApt, command::run, workspace::Workspace};

/// Where the source is from. Newer suites do not have theirs on every mirror.
const SUITE: &str = "trixie";
const PACKAGE: &str = "python3.13";
const NAME: &str = "python3.13t";

/// Extension modules that take long to build, and that nothing here imports.
const UNUSED: &str = "_bz2 _codecs_cn _codecs_hk _codecs_iso2022 _codecs_jp _codecs_kr _codecs_tw _curses \
                      _curses_panel _dbm _decimal _elementtree _gdbm _hashlib _lsprof _lzma _multibytecodec \
                      _multiprocessing _posixshmem _sqlite3 _ssl _tkinter _uuid cmath grp mmap nis ossaudiodev \
                      pyexpat readline resource spwd syslog termios";

pub(super) fn launchers(workspace: &Workspace) -> Result<Vec<Launcher>> {
    let cache = workspace.cache("pythons")?;
    let root = cache.join(NAME);
    if !root.is_dir() {
        let partial = partial(&cache, NAME)?;
        build(workspace, &partial)?;
        fs::rename(partial, &root)?;
    }
    let words = vec![root.join("bin").join(NAME).into()];
    // An extension module that does not know of it, as greenlet's older ones, would switch the GIL on.
    let variables = vec![("PYTHON_GIL", "0".into())];
    Ok(vec![Launcher { name: "source-3.13t".to_owned(), variables, words }])
}

fn build(workspace: &Workspace, root: &Path) -> Result<()> {
    let source = root.join("source");
    fs::create_dir(&source)?;
    let apt = PrivateApt::new(workspace, "pythons")?;
    apt.select_source(SUITE, "main")?;
    apt.unpack_source(PACKAGE, &source)?;
    fs::write(source.join("Modules/Setup.local"), format!("*disabled*\n{UNUSED}\n"))?;
    run(Command::new("./configure")
        .current_dir(&source)
        .args(["--quiet", "--disable-gil", "--disable-test-modules", "--with-ensurepip=no"])
        // Less optimisation builds faster; the structures are the same.
        .arg("OPT=-O1"))?;
    let jobs = thread::available_parallelism().map_or(1, usize::from);
    run(Command::new("make").current_dir(&source).args([
        "--silent",
        &format!("-j{jobs}"),
        "python",
        "sharedmods",
    ]))
    .context("the build of CPython needs a C compiler, make, and libffi-dev")?;
    install(&source, root)?;
    Ok(fs::remove_dir_all(source)?)
}

/// The program, its modules in Python, and those in C, where it looks for them from its own place.
fn install(source: &Path, root: &Path) -> Result<()> {
    let modules = root.join("lib").join(NAME);
    fs::create_dir(root.join("bin"))?;
    fs::create_dir(root.join("lib"))?;
    fs::rename(source.join("python"), root.join("bin").join(NAME))?;
    fs::rename(source.join("Lib"), &modules)?;
    let _ = fs::remove_dir_all(modules.join("test"));
    let built = fs::read_to_string(source.join("pybuilddir.txt"))?;
    let extensions = modules.join("lib-dynload");
    fs::create_dir(&extensions)?;
    for entry in fs::read_dir(source.join(built.trim()))? {
        let entry = entry?;
        // Links into the tree of the source.
        fs::copy(entry.path(), extensions.join(entry.file_name()))?;
    }
    Ok(())
}
