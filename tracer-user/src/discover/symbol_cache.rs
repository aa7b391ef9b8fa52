//! What was found in large symbol tables, by the file's identity: its build id, if it has one.
//!
//! A build id is whatever the file says, and the file may be anybody's. So what is remembered is only
//! where in the table to look: a hint that is checked against the file itself, and dropped if its name is
//! not there.

use std::{
    collections::HashMap,
    env,
    fmt::Write as _,
    fs::{self, DirBuilder, File},
    io::Read as _,
    os::unix::fs::DirBuilderExt as _,
    path::PathBuf,
};

use super::{
    elf::open_regular,
    symbols::{self, Pattern, Symbol, Table},
};

/// Bytes of an identity: linkers make build ids of 16 or 20.
const MAX_IDENTITY: usize = 64;

/// Bytes of a file in the cache.
const MAX_ENTRY: u64 = 64 * 1024;

/// The symbols for the patterns, if all of them are where they were, or were missing, in the file with
/// this identity.
pub(super) fn load(
    file: &File,
    identity: &[u8],
    table: &Table,
    patterns: &[Pattern],
) -> Option<HashMap<Pattern, Symbol>> {
    let mut text = String::new();
    let entry = open_regular(&path(identity)?).ok()?;
    entry.take(MAX_ENTRY).read_to_string(&mut text).ok()?;
    let known: HashMap<&str, &str> =
        text.lines().filter_map(|line| line.split_once(' ')).map(|(i, name)| (name, i)).collect();
    let mut found = HashMap::new();
    for &pattern in patterns {
        let index = known.get(pattern.text())?;
        if *index != MISSING {
            let symbol = symbols::at(file, table, index.parse().ok()?, pattern)?;
            found.insert(pattern, symbol);
        }
    }
    Some(found)
}

/// In the place of an index.
const MISSING: &str = "-";

/// Remembers what was found. A cache that cannot be written is none.
pub(super) fn store(identity: &[u8], patterns: &[Pattern], found: &HashMap<Pattern, Symbol>) {
    let Some(path) = path(identity) else { return };
    let Some(folder) = path.parent() else { return };
    let mut text = String::new();
    for pattern in patterns {
        let index = found.get(pattern).map(|symbol| symbol.index.to_string());
        let _ = writeln!(text, "{} {}", index.as_deref().unwrap_or(MISSING), pattern.text());
    }
    // Complete or not at all: another tracer may read it now.
    let partial = path.with_extension(std::process::id().to_string());
    let written = DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(folder)
        .and_then(|()| fs::write(&partial, text))
        .and_then(|()| fs::rename(&partial, &path));
    if let Err(error) = written {
        tracing::debug!("cannot remember symbols in `{}`: {error}", path.display());
    }
}

/// `XDG_CACHE_HOME`, else `~/.cache` of the user who runs the tracer.
fn path(identity: &[u8]) -> Option<PathBuf> {
    if identity.is_empty() || identity.len() > MAX_IDENTITY {
        return None;
    }
    let absolute = |name| env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let cache = absolute("XDG_CACHE_HOME").or_else(|| Some(absolute("HOME")?.join(".cache")))?;
    let name: String = identity.iter().map(|byte| format!("{byte:02x}")).collect();
    Some(cache.join("cudatrace/symbols").join(name))
}
