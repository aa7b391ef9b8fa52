//! Symbols, segments and bytes of an ELF file, read as far as needed and no further.

use std::{
    collections::HashMap,
    fs::{File, OpenOptions},
    io,
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
};

use object::{
    Endianness, Object as _, ObjectSection as _, ObjectSegment as _, ObjectSymbol as _, ReadCache,
    ReadRef as _, SegmentFlags,
    elf::{FileHeader64, PF_X},
    read::elf::ElfFile,
};
use thiserror::Error;

use super::maps::MappedFile;

/// Why a file does not give what is asked of it.
#[derive(Debug, Error)]
pub enum ElfError {
    /// Not readable.
    #[error("cannot read `{}`", path.display())]
    Read {
        /// Its path.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// Not a well-formed 64-bit ELF file.
    #[error("`{}` is not a well-formed 64-bit ELF file", path.display())]
    Malformed {
        /// Its path.
        path: PathBuf,
        /// Why.
        #[source]
        source: object::Error,
    },
}

/// A symbol with an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Symbol {
    /// Virtual address as linked.
    pub address: u64,
    /// Bytes; 0 when the file does not say.
    pub size: u64,
}

/// A loadable segment.
#[derive(Clone, Copy, Debug)]
struct Segment {
    address: u64,
    offset: u64,
    file_size: u64,
    executable: bool,
}

/// Opens a file that lies in a traced process's reach: only a regular one, and without waiting.
///
/// # Errors
///
/// When it is not there or not a regular file.
pub fn open_regular(path: &Path) -> io::Result<File> {
    let file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("not a regular file"));
    }
    Ok(file)
}

/// What was asked of a file.
#[derive(Debug)]
pub struct Elf {
    path: PathBuf,
    cache: ReadCache<File>,
    segments: Vec<Segment>,
    symbols: HashMap<String, Symbol>,
    sections: HashMap<String, u64>,
}

impl Elf {
    /// Opens a file and looks up the dynamic symbols `names` and the addresses of its sections.
    ///
    /// # Errors
    ///
    /// [`ElfError`] if it cannot be read or is malformed.
    pub fn open(path: &Path, names: &[&str]) -> Result<Self, ElfError> {
        let read = |source| ElfError::Read { path: path.to_owned(), source };
        let malformed = |source| ElfError::Malformed { path: path.to_owned(), source };
        let file = open_regular(path).map_err(read)?;
        let cache = ReadCache::new(file);
        let elf: ElfFile<'_, FileHeader64<Endianness>, _> =
            ElfFile::parse(&cache).map_err(malformed)?;
        let segments = elf
            .segments()
            .map(|segment| {
                let (offset, file_size) = segment.file_range();
                Segment {
                    address: segment.address(),
                    offset,
                    file_size,
                    executable: matches!(segment.flags(), SegmentFlags::Elf { p_flags } if p_flags & PF_X != 0),
                }
            })
            .collect();
        let mut symbols = HashMap::new();
        for symbol in elf.dynamic_symbols().filter(|symbol| !symbol.is_undefined()) {
            let Ok(name) = symbol.name() else { continue };
            if names.contains(&name) {
                let found = Symbol { address: symbol.address(), size: symbol.size() };
                symbols.insert(name.to_owned(), found);
            }
        }
        let sections = elf
            .sections()
            .filter_map(|section| Some((section.name().ok()?.to_owned(), section.address())))
            .collect();
        Ok(Self { path: path.to_owned(), cache, segments, symbols, sections })
    }

    /// One of the symbols asked for, if the file defines it.
    pub fn symbol(&self, name: &str) -> Option<Symbol> {
        self.symbols.get(name).copied()
    }

    /// Virtual address of a section.
    pub fn section(&self, name: &str) -> Option<u64> {
        self.sections.get(name).copied().filter(|&address| address != 0)
    }

    /// Offset in the file of a virtual address.
    pub fn file_offset(&self, address: u64) -> Option<u64> {
        self.segments.iter().find_map(|segment| {
            let into = address.checked_sub(segment.address)?;
            (into < segment.file_size).then(|| segment.offset.checked_add(into))?
        })
    }

    /// Virtual address of an offset in the file.
    pub fn address_of_offset(&self, offset: u64) -> Option<u64> {
        self.segments.iter().find_map(|segment| {
            let into = offset.checked_sub(segment.offset)?;
            (into < segment.file_size).then(|| segment.address.checked_add(into))?
        })
    }

    /// What has to be added to a virtual address to get the address in the process that has mapped
    /// the file.
    pub fn load_bias(&self, mapped: &MappedFile) -> Option<u64> {
        // Only code: a process may map the same file again, as data, at any offset.
        mapped.ranges.iter().filter(|range| range.executable).find_map(|range| {
            self.segments.iter().filter(|segment| segment.executable).find_map(|segment| {
                // A mapping starts at the page of its segment's first byte.
                let page = segment.offset & !0xfff;
                let first = segment.address.wrapping_sub(segment.offset - page);
                (page == range.offset).then(|| range.start.wrapping_sub(first))
            })
        })
    }

    /// Bytes at a virtual address: at most `length`, fewer at the end of a segment.
    ///
    /// # Errors
    ///
    /// [`ElfError::Read`] if the address is in no segment.
    pub fn bytes(&self, address: u64, length: u64) -> Result<&[u8], ElfError> {
        let missing = || ElfError::Read {
            path: self.path.clone(),
            source: io::Error::other(format!("no byte at virtual address {address:#x}")),
        };
        let offset = self.file_offset(address).ok_or_else(missing)?;
        let end =
            self.segments.iter().filter(|s| offset >= s.offset).map(|s| s.offset + s.file_size);
        let left = end.filter(|&end| end > offset).min().ok_or_else(missing)? - offset;
        (&self.cache).read_bytes_at(offset, length.min(left)).map_err(|()| missing())
    }
}
