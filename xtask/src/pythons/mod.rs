//! `pythons`: interpreters of versions and builds that a machine has not, for the tests of stacks.
//!
//! Each is a launcher in `target/pythons`, a script that starts it. What is downloaded or built lies in the
//! cache: 50 MB to download, two minutes to build, once.

mod debian;
mod free_threaded;
mod greenlets;
mod moved;

use std::{
    env,
    ffi::{OsStr, OsString},
    fs,
    os::unix::{ffi::OsStrExt as _, fs::PermissionsExt as _},
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result};

use crate::{
    command::{output, run},
    workspace::Workspace,
};

/// A way to start an interpreter.
pub struct Launcher {
    /// What the tests call it.
    name: String,
    /// Variables that it needs.
    variables: Vec<(&'static str, OsString)>,
    /// The program and its first arguments.
    words: Vec<OsString>,
}

/// Makes the launchers, and returns their folder. One that cannot be had is left out.
///
/// # Errors
///
/// When the folder cannot be written, or, in CI, when an interpreter cannot be had.
pub fn ensure(workspace: &Workspace) -> Result<PathBuf> {
    let folder = workspace.target("pythons");
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).with_context(|| format!("cannot make `{}`", folder.display()))?;
    let trees = debian::TREES.iter().map(|tree| (tree.name(), tree.launchers(workspace)));
    let others = [
        ("3.13t", free_threaded::launchers(workspace)),
        ("of an unpacked distribution", moved::launchers(workspace)),
        ("of a venv", virtual_environment(workspace)),
    ];
    let others = others.map(|(name, made)| (name.to_owned(), made));
    for (name, made) in trees.chain(others) {
        match made.with_context(|| format!("cannot have CPython {name}")) {
            Ok(launchers) => launchers.iter().try_for_each(|launcher| launcher.write(&folder))?,
            Err(error) if env::var_os("CI").is_some() => return Err(error),
            Err(error) => println!("skipped: {error:#}"),
        }
    }
    Ok(folder)
}

pub use greenlets::ensure as greenlets;

impl Launcher {
    fn write(&self, folder: &Path) -> Result<()> {
        let variables = self.variables.iter().map(|(name, value)| {
            let mut word = OsString::from(name);
            word.push("=");
            word.push(value);
            word
        });
        let mut script = b"#!/bin/sh\nexec env".to_vec();
        for word in variables.chain(self.words.iter().cloned()) {
            script.push(b' ');
            script.extend(quoted(&word));
        }
        script.extend(b" \"$@\"\n");
        let path = folder.join(&self.name);
        fs::write(&path, script)?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755))?;
        // So that the tests do not have to tell a broken interpreter from a broken tracer.
        let seen =
            output(Command::new(&path).args(["-c", "import ctypes, sys; print(sys.version)"]))
                .with_context(|| format!("`{}` does not run", self.name))?;
        eprintln!("{}: {}", self.name, seen.trim());
        Ok(())
    }
}

/// For a shell, whatever is in it.
fn quoted(word: &OsStr) -> Vec<u8> {
    let mut quoted = vec![b'\''];
    for &byte in word.as_bytes() {
        match byte {
            b'\'' => quoted.extend(br"'\''"),
            _ => quoted.push(byte),
        }
    }
    quoted.push(b'\'');
    quoted
}

/// One of the machine's own interpreter.
fn virtual_environment(workspace: &Workspace) -> Result<Vec<Launcher>> {
    let folder = workspace.target("venv");
    let host = env::var_os("CUDATRACE_PYTHON").unwrap_or_else(|| "python3".into());
    run(Command::new(host).args(["-m", "venv", "--clear", "--without-pip"]).arg(&folder))?;
    let words = vec![folder.join("bin/python").into()];
    Ok(vec![Launcher { name: "venv".to_owned(), variables: Vec::new(), words }])
}

/// An empty folder to fill; rename it to what it is for when it is complete.
fn partial(cache: &Path, name: &str) -> Result<PathBuf> {
    let partial = cache.join(format!("{name}.partial"));
    let _ = fs::remove_dir_all(&partial);
    fs::create_dir_all(&partial)
        .with_context(|| format!("cannot make the folder `{}`", partial.display()))?;
    Ok(partial)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_word_passes_through_the_shell() {
        let folder = tempfile::tempdir().unwrap();
        let words = ["a b", "it's", "$HOME", "\"", "\\", "", "new\nline"];
        let path = folder.path().join("it's a script");
        let mut script = b"#!/bin/sh\nprintf '%s|'".to_vec();
        for word in words {
            script.push(b' ');
            script.extend(quoted(OsStr::new(word)));
        }
        fs::write(&path, script).unwrap();
        let printed = output(Command::new("sh").arg(&path)).unwrap();
        assert_eq!(printed, words.map(|word| format!("{word}|")).concat());
    }
}
