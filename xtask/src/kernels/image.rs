//! The file system of the emulated machine: an archive that the kernel unpacks into memory.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, ensure};

use super::packages::Tools;
use crate::{
    command::{output, run},
    cuda_sim, test,
    workspace::Workspace,
};

/// It has to fit into the emulated machine twice.
const MAX_BYTES: usize = 150 << 20;

/// Builds it into a folder, and returns its path.
///
/// # Errors
///
/// When a part cannot be built or read.
pub fn build(workspace: &Workspace, tools: &Tools, folder: &Path) -> Result<PathBuf> {
    let program = folder.join("cudatrace");
    // Without its debug information it is a tenth of the size.
    run(Command::new("strip").arg("-o").arg(&program).arg(test::program(workspace)?))?;
    let driver = cuda_sim::build_driver(workspace, folder, &[])?;
    let workload = workspace.root().join("tests/workloads/kernel_matrix.py");
    let listing = output(Command::new("python3").args(["-I", "-S"]).arg(&workload).arg("--files"))
        .context("the kernel matrix needs a `python3` with ctypes")?;
    let python: Vec<PathBuf> = listing.lines().map(PathBuf::from).collect();
    let interpreter = python.first().context("python3 did not say where it is")?;

    let mut files = BTreeMap::new();
    let mut add = |path: &str, source: &Path| {
        files.insert(path.trim_start_matches('/').to_owned(), source.to_owned());
    };
    add("bin/busybox", &tools.busybox);
    add("cudatrace", &program);
    add("libcuda.so.1", &driver);
    add("kernel_matrix.py", &workload);
    for path in &python {
        add(&path.to_string_lossy(), path);
    }
    let linked = python.iter().chain([&program, &driver, &tools.busybox]);
    for library in libraries(linked)? {
        add(&library.to_string_lossy(), &library);
    }

    let mut archive = Archive::default();
    let init = include_str!("init.sh").replace("@PYTHON@", &interpreter.to_string_lossy());
    archive.add_file("init", 0o755, init.as_bytes());
    for (path, source) in &files {
        let read = || Ok::<_, std::io::Error>((fs::metadata(source)?, fs::read(source)?));
        let (metadata, data) =
            read().with_context(|| format!("cannot read `{}`", source.display()))?;
        archive.add_file(path, metadata.permissions().mode() & 0o777, &data);
    }
    let bytes = archive.finish();
    ensure!(bytes.len() <= MAX_BYTES, "the image has {} MiB", bytes.len() >> 20);
    let image = folder.join("initramfs.cpio");
    fs::write(&image, bytes).with_context(|| format!("cannot write `{}`", image.display()))?;
    Ok(image)
}

/// The shared libraries of some ELF files, and the dynamic loader, by the paths at which they are
/// looked for.
fn libraries<'a>(files: impl Iterator<Item = &'a PathBuf>) -> Result<BTreeSet<PathBuf>> {
    let mut found = BTreeSet::new();
    for file in files {
        let start = fs::read(file).with_context(|| format!("cannot read `{}`", file.display()))?;
        if !start.starts_with(b"\x7fELF") {
            continue;
        }
        // It fails on files that are linked statically.
        let Ok(listing) = output(Command::new("ldd").arg(file)) else { continue };
        let path = |line: &str| {
            let path = line.rsplit("=> ").next()?.trim().split(' ').next()?;
            path.starts_with('/').then(|| PathBuf::from(path))
        };
        found.extend(listing.lines().filter_map(path));
    }
    Ok(found)
}

/// A cpio archive in the format `newc`, which the kernel reads.
#[derive(Default)]
struct Archive {
    bytes: Vec<u8>,
    folders: BTreeSet<String>,
    entries: u32,
}

impl Archive {
    /// Adds a file and the folders above it.
    fn add_file(&mut self, path: &str, mode: u32, data: &[u8]) {
        for (end, _) in path.match_indices('/') {
            let folder = &path[..end];
            if self.folders.insert(folder.to_owned()) {
                self.entry(folder, 0o040_755, &[]);
            }
        }
        self.entry(path, 0o100_000 | mode, data);
    }

    fn entry(&mut self, path: &str, mode: u32, data: &[u8]) {
        self.entries += 1;
        // Inode, mode, uid, gid, links, time, size, device and special device, name's length, sum.
        let name_size = path.len() as u32 + 1;
        let fields = [self.entries, mode, 0, 0, 1, 0, data.len() as u32, 0, 0, 0, 0, name_size, 0];
        self.bytes.extend_from_slice(b"070701");
        for field in fields {
            self.bytes.extend_from_slice(format!("{field:08x}").as_bytes());
        }
        self.bytes.extend_from_slice(path.as_bytes());
        self.bytes.push(0);
        self.align();
        self.bytes.extend_from_slice(data);
        self.align();
    }

    fn align(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }

    fn finish(mut self) -> Vec<u8> {
        self.entry("TRAILER!!!", 0, &[]);
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_is_laid_out_as_the_kernel_reads_it() {
        let mut archive = Archive::default();
        archive.add_file("a/b", 0o644, b"hello");
        let bytes = archive.finish();
        let text = String::from_utf8(bytes).unwrap();
        let folder = "070701\
            00000001000041ed00000000000000000000000100000000\
            0000000000000000000000000000000000000000\
            0000000200000000a\0";
        assert_eq!(&text[..folder.len()], folder);
        // Header and name of the first end at a multiple of four; so does everything after it.
        let file = &text[folder.len().next_multiple_of(4)..];
        assert!(file.starts_with("07070100000002000081a4"));
        assert_eq!(&file[54..62], "00000005");
        assert_eq!(&file[94..102], "00000004");
        assert_eq!(&file[110..121], "a/b\0\0\0hello");
        assert!(text.contains("TRAILER!!!\0"));
        assert_eq!(text.len() % 4, 0);
    }
}
