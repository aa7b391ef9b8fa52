//! Symbols, segments and bytes of an ELF file, read as far as needed and no further.

use std::{
    collections::HashMap,
    fs::{File, OpenOptions},
    hash::{Hash as _, Hasher as _},
    io,
    os::unix::fs::{FileExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
};

use object::{
    Endianness, Object as _, ObjectSection as _, ObjectSegment as _, ReadCache, ReadRef as _,
    SegmentFlags,
    elf::{FileHeader64, PF_X, SHT_DYNSYM, SHT_SYMTAB},
    read::elf::{ElfFile, SectionHeader as _},
};
use rustc_hash::FxHasher;
use thiserror::Error;

use super::{
    maps::MappedFile,
    symbol_cache,
    symbols::{self, Pattern, Range, Symbol, Table},
};

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

/// A loadable segment.
#[derive(Clone, Copy, Debug)]
struct Segment {
    address: u64,
    offset: u64,
    file_size: u64,
    executable: bool,
}

/// For a file without a build id, as the linkers of some projects make them: its size, and a hash of its
/// first page, which has the sizes of its segments.
fn made_up_identity(file: &File) -> io::Result<Vec<u8>> {
    let mut page = [0; 4096];
    let size = file.metadata()?.len();
    let length = size.min(page.len() as u64) as usize;
    file.read_exact_at(&mut page[..length], 0)?;
    let mut hasher = FxHasher::default();
    page.hash(&mut hasher);
    Ok([size.to_be_bytes(), hasher.finish().to_be_bytes()].concat())
}

/// The table of this kind, if the file has one.
fn table<'a>(
    elf: &ElfFile<'a, FileHeader64<Endianness>, &'a ReadCache<File>>,
    kind: u32,
) -> Option<Table> {
    let endian = elf.endian();
    let sections = elf.elf_section_table();
    let range = |(offset, size)| Range { offset, size };
    let symbols = sections.iter().find(|section| section.sh_type(endian) == kind)?;
    let strings = sections.section(symbols.link(endian)).ok()?;
    Some(Table {
        symbols: range(symbols.file_range(endian)?),
        strings: range(strings.file_range(endian)?),
    })
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
    file: File,
    cache: ReadCache<File>,
    segments: Vec<Segment>,
    symbols: HashMap<Pattern, Symbol>,
    sections: HashMap<String, (u64, Range)>,
    exported: Option<Table>,
    local: Option<Table>,
    /// What tells its contents from others, if only likely.
    identity: Vec<u8>,
}

/// Bytes of a section that are read at once: a multiple of the size of every kind of entry.
pub const SECTION_PIECE: usize = 3 << 18;

/// Bytes of a symbol table from which on it is worth remembering what was found in it.
const LARGE_TABLE: u64 = 4 << 20;

impl Elf {
    /// Opens a file and looks up the exported symbols `names` and the addresses of its sections.
    ///
    /// # Errors
    ///
    /// [`ElfError`] if it cannot be read or is malformed.
    pub fn open(path: &Path, names: &[&'static str]) -> Result<Self, ElfError> {
        let read = |source| ElfError::Read { path: path.to_owned(), source };
        let malformed = |source| ElfError::Malformed { path: path.to_owned(), source };
        let file = open_regular(path).map_err(read)?;
        let cache = ReadCache::new(file.try_clone().map_err(read)?);
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
        let sections = elf
            .sections()
            .filter_map(|section| {
                let (offset, size) = section.file_range()?;
                Some((section.name().ok()?.to_owned(), (section.address(), Range { offset, size })))
            })
            .collect();
        let identity = match elf.build_id() {
            Ok(Some(id)) => id.to_vec(),
            _ => made_up_identity(&file).map_err(read)?,
        };
        let tables = [SHT_DYNSYM, SHT_SYMTAB].map(|kind| table(&elf, kind));
        let mut elf = Self {
            path: path.to_owned(),
            file,
            cache,
            segments,
            symbols: HashMap::new(),
            sections,
            exported: tables[0],
            local: tables[1],
            identity,
        };
        let patterns: Vec<Pattern> = names.iter().copied().map(Pattern::Exact).collect();
        elf.symbols = elf.search(tables[0], &patterns)?;
        Ok(elf)
    }

    /// Looks up functions that the library has, exported or not, unless it was stripped of their names.
    ///
    /// # Errors
    ///
    /// [`ElfError::Read`] if the table cannot be read.
    pub fn local(&self, patterns: &[Pattern]) -> Result<HashMap<Pattern, Symbol>, ElfError> {
        let Some(table) = self.local else { return Ok(HashMap::new()) };
        let read = |source| ElfError::Read { path: self.path.clone(), source };
        let find = || symbols::find(&self.file, &table, patterns).map_err(read);
        if table.symbols.size < LARGE_TABLE {
            return find();
        }
        if let Some(found) = symbol_cache::load(&self.file, &self.identity, &table, patterns) {
            return Ok(found);
        }
        let found = find()?;
        symbol_cache::store(&self.identity, patterns, &found);
        Ok(found)
    }

    /// Looks up every function that one pattern allows, exported or not.
    ///
    /// # Errors
    ///
    /// [`ElfError::Read`] if the table cannot be read.
    pub fn all_local(&self, pattern: Pattern) -> Result<Vec<Symbol>, ElfError> {
        let Some(table) = self.local else { return Ok(Vec::new()) };
        symbols::find_all(&self.file, &table, pattern)
            .map_err(|source| ElfError::Read { path: self.path.clone(), source })
    }

    /// The same as [`Self::local`], but first among the exported ones, which are fewer.
    ///
    /// # Errors
    ///
    /// [`ElfError::Read`] if a table cannot be read.
    pub fn functions(&self, patterns: &[Pattern]) -> Result<HashMap<Pattern, Symbol>, ElfError> {
        let exported = self.search(self.exported, patterns)?;
        if exported.len() == patterns.len() { Ok(exported) } else { self.local(patterns) }
    }

    /// Looks up exported functions of which only the beginning of the name is known.
    ///
    /// # Errors
    ///
    /// [`ElfError::Read`] if the table cannot be read.
    pub fn exported(&self, patterns: &[Pattern]) -> Result<HashMap<Pattern, Symbol>, ElfError> {
        self.search(self.exported, patterns)
    }

    fn search(
        &self,
        table: Option<Table>,
        patterns: &[Pattern],
    ) -> Result<HashMap<Pattern, Symbol>, ElfError> {
        match table {
            Some(table) if !patterns.is_empty() => symbols::find(&self.file, &table, patterns)
                .map_err(|source| ElfError::Read { path: self.path.clone(), source }),
            _ => Ok(HashMap::new()),
        }
    }

    /// One of the symbols asked for, if the file exports it.
    pub fn symbol(&self, name: &'static str) -> Option<&Symbol> {
        self.symbols.get(&Pattern::Exact(name))
    }

    /// Virtual address of a section.
    pub fn section(&self, name: &str) -> Option<u64> {
        self.sections.get(name).map(|(address, _)| *address).filter(|&address| address != 0)
    }

    /// Hands the bytes of a section to `see` in pieces: the virtual address of each, and its bytes with up
    /// to `overlap` of those that follow. Nothing, if there is no such section.
    ///
    /// # Errors
    ///
    /// [`ElfError::Read`] if it cannot be read.
    pub fn for_section(
        &self,
        name: &str,
        overlap: usize,
        mut see: impl FnMut(u64, &[u8]),
    ) -> Result<(), ElfError> {
        let Some(&(address, range)) = self.sections.get(name) else { return Ok(()) };
        symbols::windows(&self.file, range, SECTION_PIECE, overlap, |start, bytes| {
            see(address.wrapping_add(start), bytes);
        })
        .map_err(|source| ElfError::Read { path: self.path.clone(), source })
    }

    /// Whether there is code at a virtual address.
    pub fn is_code(&self, address: u64) -> bool {
        self.segments.iter().any(|segment| {
            let into = address.checked_sub(segment.address);
            segment.executable && into.is_some_and(|into| into < segment.file_size)
        })
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
