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
    Endianness, ReadCache, ReadRef as _,
    elf::{ELF_NOTE_GNU, FileHeader64, NT_GNU_BUILD_ID, PF_X, PT_LOAD, SHT_DYNSYM, SHT_SYMTAB},
    read::elf::{FileHeader as _, ProgramHeader as _, SectionHeader as _, SectionTable},
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

/// The headers of a file's sections.
type Sections<'a> = SectionTable<'a, FileHeader64<Endianness>, &'a ReadCache<File>>;

/// Sections of a file that is looked at; one with a section for each of its functions has fewer.
const MAX_SECTIONS: usize = 1 << 18;

/// Bytes of a section of notes that is looked into.
const MAX_NOTES: u64 = 1 << 16;

/// The build id, if the file has one.
fn build_id<'a>(
    sections: &Sections<'a>,
    endian: Endianness,
    file: &'a ReadCache<File>,
) -> Option<&'a [u8]> {
    let small = sections.iter().filter(|section| section.sh_size(endian) <= MAX_NOTES);
    small.filter_map(|section| section.notes(endian, file).ok().flatten()).find_map(|mut notes| {
        while let Ok(Some(note)) = notes.next() {
            if note.name() == ELF_NOTE_GNU && note.n_type(endian) == NT_GNU_BUILD_ID {
                return Some(note.desc());
            }
        }
        None
    })
}

/// The table of this kind, if the file has one.
fn table(sections: &Sections<'_>, endian: Endianness, kind: u32) -> Option<Table> {
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
        let mut elf = Self::of(open_regular(path).map_err(read)?, path)?;
        let patterns: Vec<Pattern> = names.iter().copied().map(Pattern::Exact).collect();
        elf.symbols = elf.search(elf.exported, &patterns)?;
        Ok(elf)
    }

    /// The same of an open file, for no symbols; `path` is only for messages.
    ///
    /// # Errors
    ///
    /// As [`Self::open`].
    pub fn of(file: File, path: &Path) -> Result<Self, ElfError> {
        let read = |source| ElfError::Read { path: path.to_owned(), source };
        let malformed = |source| ElfError::Malformed { path: path.to_owned(), source };
        let cache = ReadCache::new(file.try_clone().map_err(read)?);
        // Not as an `ElfFile`, which reads whole symbol tables into memory.
        let header = FileHeader64::<Endianness>::parse(&cache).map_err(malformed)?;
        let endian = header.endian().map_err(malformed)?;
        let sections_in_all = header.shnum(endian, &cache).map_err(malformed)?;
        if sections_in_all > MAX_SECTIONS {
            let source = io::Error::other(format!("it has {sections_in_all} sections"));
            return Err(read(source));
        }
        let segments = header.program_headers(endian, &cache).map_err(malformed)?.iter();
        let segments = segments
            .filter(|segment| segment.p_type(endian) == PT_LOAD)
            .map(|segment| {
                let (offset, file_size) = segment.file_range(endian);
                Segment {
                    address: segment.p_vaddr(endian),
                    offset,
                    file_size,
                    executable: segment.p_flags(endian) & PF_X != 0,
                }
            })
            .collect();
        let table_of_sections = header.sections(endian, &cache).map_err(malformed)?;
        let sections = table_of_sections
            .iter()
            .filter_map(|section| {
                let (offset, size) = section.file_range(endian)?;
                let name = table_of_sections.section_name(endian, section).ok()?;
                let name = String::from_utf8(name.to_owned()).ok()?;
                Some((name, (section.sh_addr(endian), Range { offset, size })))
            })
            .collect();
        let identity = match build_id(&table_of_sections, endian, &cache) {
            Some(id) => id.to_vec(),
            None => made_up_identity(&file).map_err(read)?,
        };
        let tables = [SHT_DYNSYM, SHT_SYMTAB].map(|kind| table(&table_of_sections, endian, kind));
        Ok(Self {
            path: path.to_owned(),
            file,
            cache,
            segments,
            symbols: HashMap::new(),
            sections,
            exported: tables[0],
            local: tables[1],
            identity,
        })
    }

    /// The file.
    pub(super) fn file(&self) -> &File {
        &self.file
    }

    /// Its symbol tables, that of all symbols first, if it was not stripped of it.
    pub(super) fn tables(&self) -> impl Iterator<Item = Table> {
        [self.local, self.exported].into_iter().flatten()
    }

    /// That it cannot be read.
    pub(super) fn unreadable(&self, source: io::Error) -> ElfError {
        ElfError::Read { path: self.path.clone(), source }
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

    /// Virtual address of the code at an offset in the file.
    pub fn code_address(&self, offset: u64) -> Option<u64> {
        self.segments.iter().filter(|segment| segment.executable).find_map(|segment| {
            let into = offset.checked_sub(segment.offset)?;
            (into < segment.file_size).then(|| segment.address.checked_add(into))?
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
