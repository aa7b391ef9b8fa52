//! The files that a process has mapped.

use std::{
    collections::HashMap,
    fs,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
};

use procfs::process::{MMPermissions, MMapPath};

use super::process::{PROC, ProcessError, open};
use crate::model::Pid;

/// One range of a mapped file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    /// First address.
    pub start: u64,
    /// First address after it.
    pub end: u64,
    /// Offset in the file of the first byte.
    pub offset: u64,
    /// Whether it can be executed.
    pub executable: bool,
}

/// A file that a process has mapped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MappedFile {
    /// Path as the process sees it; may be gone or mean another file by now.
    pub path: PathBuf,
    /// A path that opens exactly this file, in whatever mount namespace it lies.
    pub open_path: PathBuf,
    /// Inode, unique together with the device.
    pub inode: u64,
    /// Device as the kernel numbers it: major, minor.
    pub device: (i32, i32),
    /// Its ranges, by address.
    pub ranges: Vec<Range>,
}

impl MappedFile {
    /// The name without folders, and without the mark of a deleted file.
    pub fn file_name(&self) -> String {
        let name = self.path.file_name().map(|name| name.to_string_lossy().into_owned());
        let name = name.unwrap_or_default();
        name.strip_suffix(" (deleted)").map(str::to_owned).unwrap_or(name)
    }
}

/// Every mapped file, in order of first address.
///
/// # Errors
///
/// [`ProcessError`] when the process is gone or its maps may not be read.
pub fn mapped_files(pid: Pid) -> Result<Vec<MappedFile>, ProcessError> {
    let maps = open(pid)?.maps().map_err(|source| match source {
        procfs::ProcError::NotFound(_) => ProcessError::NotFound(pid),
        source => {
            ProcessError::Unreadable { path: format!("{PROC}/{}/maps", pid.0).into(), source }
        }
    })?;
    let mut files: Vec<MappedFile> = Vec::new();
    let mut known: HashMap<((i32, i32), u64), usize> = HashMap::new();
    for map in maps {
        let MMapPath::Path(path) = map.pathname else { continue };
        if map.inode == 0 {
            continue;
        }
        let range = Range {
            start: map.address.0,
            end: map.address.1,
            offset: map.offset,
            executable: map.perms.contains(MMPermissions::EXECUTE),
        };
        let index = *known.entry((map.dev, map.inode)).or_insert_with(|| {
            files.push(MappedFile {
                open_path: open_path(pid, &path, &range, map.inode),
                path,
                inode: map.inode,
                device: map.dev,
                ranges: Vec::new(),
            });
            files.len() - 1
        });
        files[index].ranges.push(range);
    }
    Ok(files)
}

/// The mapping's own link opens the very file, also one that was deleted or replaced; it needs
/// privileges that a test may lack, so the path in the process's root is the fall-back.
fn open_path(pid: Pid, path: &Path, range: &Range, inode: u64) -> PathBuf {
    let link = format!("{PROC}/{}/map_files/{:x}-{:x}", pid.0, range.start, range.end);
    if fs::metadata(&link).is_ok_and(|metadata| metadata.ino() == inode) {
        return link.into();
    }
    in_root(pid, path)
}

/// A path as the process sees it, opened from here.
pub fn in_root(pid: Pid, path: &Path) -> PathBuf {
    let relative = path.strip_prefix("/").unwrap_or(path);
    PathBuf::from(format!("{PROC}/{}/root", pid.0)).join(relative)
}
