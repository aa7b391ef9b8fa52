//! The files that a process has mapped.

use std::{
    collections::HashMap,
    ffi::OsString,
    fs,
    os::unix::{ffi::OsStringExt as _, fs::MetadataExt as _},
    path::{Path, PathBuf},
};

use super::process::{PROC, ProcessError};
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
    /// The device that it lies on, as the kernel's list of mappings has it: major and minor number.
    pub device: u64,
    /// Inode; unique in its file system.
    pub inode: u64,
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

/// Lines of a process's maps that are looked at; the kernel allows 65,530 mappings unless told
/// otherwise.
const MAX_LINES: usize = 1 << 20;

/// Every mapped file, in order of first address.
///
/// # Errors
///
/// [`ProcessError`] when the process is gone or its maps may not be read.
pub fn mapped_files(pid: Pid) -> Result<Vec<MappedFile>, ProcessError> {
    let path = PathBuf::from(format!("{PROC}/{}/maps", pid.0));
    let text = fs::read(&path).map_err(|source| match source.raw_os_error() {
        Some(libc::ENOENT | libc::ESRCH) => ProcessError::NotFound(pid),
        _ => ProcessError::Unreadable { path, source },
    })?;
    let mut files: Vec<MappedFile> = Vec::new();
    let mut known: HashMap<(u64, u64), usize> = HashMap::new();
    for line in text.split(|&byte| byte == b'\n').take(MAX_LINES).filter_map(parse) {
        let index = *known.entry((line.device, line.inode)).or_insert_with(|| {
            files.push(MappedFile {
                open_path: open_path(pid, &line.path, &line.range, line.inode),
                path: line.path,
                device: line.device,
                inode: line.inode,
                ranges: Vec::new(),
            });
            files.len() - 1
        });
        files[index].ranges.push(line.range);
    }
    Ok(files)
}

/// A line of `/proc/PID/maps` that is a file's.
struct Line {
    range: Range,
    device: u64,
    inode: u64,
    path: PathBuf,
}

/// `start-end perms offset major:minor inode path`. Names are bytes, and whatever their owner likes;
/// the kernel writes a newline in them as `\012`.
fn parse(line: &[u8]) -> Option<Line> {
    let mut fields = line.splitn(6, |&byte| byte == b' ');
    let mut text = || std::str::from_utf8(fields.next()?).ok();
    let (start, end) = text()?.split_once('-')?;
    let range = Range {
        start: u64::from_str_radix(start, 16).ok()?,
        end: u64::from_str_radix(end, 16).ok()?,
        executable: text()?.as_bytes().get(2) == Some(&b'x'),
        offset: u64::from_str_radix(text()?, 16).ok()?,
    };
    let device = device_number(text()?)?;
    let inode = text()?.parse().ok().filter(|&inode| inode != 0)?;
    let path = fields.next()?;
    let path = path.get(path.iter().position(|&byte| byte != b' ')?..)?;
    if path.first() != Some(&b'/') {
        return None;
    }
    let mut bytes = Vec::with_capacity(path.len());
    let mut rest = path;
    while let Some((&byte, after)) = rest.split_first() {
        match rest.strip_prefix(br"\012") {
            Some(after) => {
                bytes.push(b'\n');
                rest = after;
            }
            None => {
                bytes.push(byte);
                rest = after;
            }
        }
    }
    Some(Line { range, device, inode, path: OsString::from_vec(bytes).into() })
}

/// `major:minor`, hexadecimal.
fn device_number(text: &str) -> Option<u64> {
    let (major, minor) = text.split_once(':')?;
    let number = |digits| u32::from_str_radix(digits, 16).ok().map(u64::from);
    Some(number(major)? << 32 | number(minor)?)
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

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStrExt as _;

    use super::*;

    #[test]
    fn names_of_any_kind() {
        let cases: [(&[u8], &[u8]); 4] = [
            (b"/usr/lib/libc.so.6", b"/usr/lib/libc.so.6"),
            (b"/a folder/x (deleted)", b"/a folder/x (deleted)"),
            (b"/new\\012line", b"/new\nline"),
            (b"/not/\xff\xfe/utf-8", b"/not/\xff\xfe/utf-8"),
        ];
        for (name, path) in cases {
            let line = [b"7f00-7f10 r-xp 00001000 fe:01 42      ", name].concat();
            let line = parse(&line).unwrap();
            assert_eq!(line.path.as_os_str().as_bytes(), path);
            let range = Range { start: 0x7f00, end: 0x7f10, offset: 0x1000, executable: true };
            assert_eq!((line.range, line.device, line.inode), (range, 0xfe_0000_0001, 42));
        }
    }

    #[test]
    fn what_is_no_file_is_left_out() {
        for line in [
            &b"7f00-7f10 rw-p 00000000 00:00 0"[..],
            b"7f00-7f10 rw-p 00000000 00:00 0                  [heap]",
            b"7f00-7f10 rw-s 00000000 00:01 7                  anon_inode:[perf_event]",
            b"garbage",
            b"",
        ] {
            assert!(parse(line).is_none(), "{}", String::from_utf8_lossy(line));
        }
    }

    #[test]
    fn this_program_maps_itself() {
        let files = mapped_files(Pid(std::process::id())).unwrap();
        let program = std::env::current_exe().unwrap();
        let file = files.iter().find(|file| file.path == program).unwrap();
        assert!(file.ranges.iter().any(|range| range.executable));
        assert_eq!(fs::metadata(&file.open_path).unwrap().ino(), file.inode);
    }
}
