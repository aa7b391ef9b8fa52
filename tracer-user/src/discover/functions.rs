//! Which functions of a file addresses are in.
//!
//! Looked for piece by piece with bounded reads, where other symbolizers map the file: the owner of a mapped
//! file ends its reader (`SIGBUS`) by making the file shorter. Nor does it take memory by the size of the
//! table, which of some libraries has a million entries.

use std::{fs::File, io, os::unix::fs::FileExt as _};

use super::{
    elf::{Elf, ElfError},
    symbols::{self, CHUNK, SHN_UNDEF, STT_FUNC, SYMBOL_BYTES, Table, le_u32, le_u64},
};

/// Bytes of a symbol table that are gone through: ten million symbols.
const MAX_TABLE: u64 = 256 << 20;

/// Bytes of a symbol that are read; those of templates are long.
const MAX_NAME: u64 = 8192;

/// Bits of a symbol's information that are its binding.
const BINDING_SHIFT: u8 = 4;
const STB_LOCAL: u8 = 0;
const STB_GLOBAL: u8 = 1;

/// The address of a call in a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// Virtual address as linked that the call returns to.
    pub address: u64,
    /// The symbol of the function that it is in; only one whose size says so.
    pub symbol: Option<Vec<u8>>,
}

/// Finds the functions of calls that return to these offsets in a file; `None` for what is no code.
/// Calls `between` after every piece that was read.
///
/// # Errors
///
/// [`ElfError`] if the file cannot be read or is malformed.
pub fn functions(
    elf: &Elf,
    offsets: &[u64],
    between: &mut dyn FnMut(),
) -> Result<Vec<Option<Found>>, ElfError> {
    let found = |&offset: &u64| {
        // A call of what does not return may be the last instruction of its function.
        let address = elf.code_address(offset.checked_sub(1)?)?.checked_add(1)?;
        Some(Found { address, symbol: None })
    };
    let mut places: Vec<Option<Found>> = offsets.iter().map(found).collect();
    for table in elf.tables() {
        let mut wanted: Vec<&mut Found> =
            places.iter_mut().flatten().filter(|place| place.symbol.is_none()).collect();
        if !wanted.is_empty() {
            wanted.sort_by_key(|place| place.address);
            name(elf.file(), &table, &mut wanted, between).map_err(|e| elf.unreadable(e))?;
        }
    }
    Ok(places)
}

/// The best symbol so far: the smallest function around an address (an inner label has a size of its
/// own), then what is exported, as the name that others call it by, then the first in the table.
type Best = (u64, u8, u64, u32);

fn name(
    file: &File,
    table: &Table,
    places: &mut [&mut Found],
    between: &mut dyn FnMut(),
) -> io::Result<()> {
    let mut best: Vec<Option<Best>> = vec![None; places.len()];
    let size = table.symbols.size.min(MAX_TABLE);
    let range = symbols::Range { size, ..table.symbols };
    symbols::windows(file, range, CHUNK / SYMBOL_BYTES * SYMBOL_BYTES, 0, |start, bytes| {
        let first = start / SYMBOL_BYTES as u64;
        for (index, entry) in (first..).zip(bytes.chunks_exact(SYMBOL_BYTES)) {
            let Some((begin, size)) = function(entry) else { continue };
            let end = begin.saturating_add(size);
            let candidate = (size, binding(entry), index, le_u32(&entry[..4]));
            // An address that a call returns to is past the call.
            let from = places.partition_point(|place| place.address <= begin);
            for (place, best) in places.iter().zip(&mut best).skip(from) {
                if place.address > end {
                    break;
                }
                if best.is_none_or(|best| candidate < best) {
                    *best = Some(candidate);
                }
            }
        }
        between();
    })?;
    for (place, best) in places.iter_mut().zip(best) {
        if let Some((.., name)) = best {
            place.symbol = symbol_name(file, table, name.into())?;
        }
    }
    Ok(())
}

/// Where a symbol's function begins, and its bytes, if it is a function here.
fn function(entry: &[u8]) -> Option<(u64, u64)> {
    let section = u16::from_le_bytes([entry[6], entry[7]]);
    let (begin, size) = (le_u64(&entry[8..16]), le_u64(&entry[16..24]));
    (entry[4] & 0xf == STT_FUNC && section != SHN_UNDEF && size > 0).then_some((begin, size))
}

fn binding(entry: &[u8]) -> u8 {
    match entry[4] >> BINDING_SHIFT {
        STB_GLOBAL => 0,
        STB_LOCAL => 2,
        _ => 1,
    }
}

/// A name in the table of strings; none if it is empty or not there.
fn symbol_name(file: &File, table: &Table, place: u64) -> io::Result<Option<Vec<u8>>> {
    let Some(left) = table.strings.size.checked_sub(place) else { return Ok(None) };
    let mut name = vec![0; left.min(MAX_NAME) as usize];
    let offset = table.strings.offset.checked_add(place).ok_or(io::ErrorKind::InvalidData)?;
    file.read_exact_at(&mut name, offset)?;
    if let Some(end) = name.iter().position(|&byte| byte == 0) {
        name.truncate(end);
    }
    Ok((!name.is_empty()).then_some(name))
}

#[cfg(test)]
mod tests {
    use std::{io::Write as _, path::Path};

    use super::*;
    use crate::discover::symbols::Range;

    /// A file of names and then symbols: name, address, size, binding and kind, section.
    fn table(symbols: &[(&str, u64, u64, u8, u16)]) -> (File, Table) {
        let (mut strings, mut entries) = (vec![0_u8], Vec::new());
        for (name, address, size, info, section) in symbols {
            let at = strings.len() as u32;
            strings.extend(name.bytes().chain([0]));
            entries.extend(at.to_le_bytes());
            entries.extend([*info, 0]);
            entries.extend(section.to_le_bytes());
            entries.extend(address.to_le_bytes());
            entries.extend(size.to_le_bytes());
        }
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&[strings.clone(), entries.clone()].concat()).unwrap();
        let offset = strings.len() as u64;
        let strings = Range { offset: 0, size: offset };
        (file, Table { symbols: Range { offset, size: entries.len() as u64 }, strings })
    }

    /// The symbol at each address, all looked up at once.
    fn names(file: &File, table: &Table, addresses: &[u64]) -> io::Result<Vec<Option<String>>> {
        let found = |&address| Found { address, symbol: None };
        let mut places: Vec<Found> = addresses.iter().map(found).collect();
        let mut wanted: Vec<&mut Found> = places.iter_mut().collect();
        name(file, table, &mut wanted, &mut || {})?;
        let text = |symbol| String::from_utf8(symbol).unwrap();
        Ok(places.into_iter().map(|place| place.symbol.map(text)).collect())
    }

    const LOCAL: u8 = STT_FUNC;
    const GLOBAL: u8 = STB_GLOBAL << BINDING_SHIFT | STT_FUNC;
    const WEAK: u8 = 2 << BINDING_SHIFT | STT_FUNC;

    #[test]
    fn the_function_around_an_address() {
        let (file, table) = table(&[
            ("local", 0x100, 0x10, LOCAL, 1),
            ("weak", 0x100, 0x10, WEAK, 1),
            ("global", 0x100, 0x10, GLOBAL, 1),
            ("again", 0x100, 0x10, GLOBAL, 1),
            ("next", 0x110, 0x40, GLOBAL, 1),
            ("inner", 0x120, 0x8, LOCAL, 1),
            ("no size", 0x200, 0, GLOBAL, 1),
            ("undefined", 0x300, 0x10, GLOBAL, 0),
            ("data", 0x400, 0x10, STB_GLOBAL << BINDING_SHIFT | 1, 1),
            ("", 0x500, 0x10, GLOBAL, 1),
            ("last", u64::MAX - 1, u64::MAX, GLOBAL, 1),
        ]);
        for (address, name) in [
            (0x100, None),
            (0x101, Some("global")),
            // A call in a function's end returns to what follows it.
            (0x110, Some("global")),
            (0x111, Some("next")),
            (0x120, Some("next")),
            (0x124, Some("inner")),
            (0x129, Some("next")),
            (0x150, Some("next")),
            (0x151, None),
            (0x204, None),
            (0x304, None),
            (0x404, None),
            (0x504, None),
            (u64::MAX, Some("last")),
        ] {
            let found = names(&file, &table, &[address]).unwrap();
            assert_eq!(found, [name.map(str::to_owned)], "{address:#x}");
        }
        let many = names(&file, &table, &[0x101, 0x124, 0x150, 0x151]).unwrap();
        let many: Vec<_> = many.iter().map(Option::as_deref).collect();
        assert_eq!(many, [Some("global"), Some("inner"), Some("next"), None]);
    }

    #[test]
    fn a_table_that_is_not_there_is_an_error_or_nothing() {
        let (file, good) = table(&[("f", 0x100, 0x10, GLOBAL, 1)]);
        let end = good.symbols.offset + good.symbols.size;
        for symbols in [Range { offset: end, size: 24 }, Range { offset: u64::MAX - 8, size: 48 }] {
            assert!(names(&file, &Table { symbols, ..good }, &[0x104]).is_err());
        }
        for (strings, is_error) in [
            (Range { offset: 0, size: 0 }, false),
            (Range { offset: end, size: 100 }, true),
            (Range { offset: u64::MAX, size: 100 }, true),
        ] {
            match names(&file, &Table { strings, ..good }, &[0x104]) {
                Ok(found) => assert!(!is_error && found == [None]),
                Err(_) => assert!(is_error),
            }
        }
    }

    /// The return address of a call in this test, by the file that it is in.
    #[test]
    fn a_call_in_this_program() {
        let path = std::env::current_exe().unwrap();
        let elf = Elf::open(&path, &[]).unwrap();
        let offset = |address| elf.file_offset(address);
        let symbol = elf.local(&[symbols::Pattern::Exact("main")]).unwrap();
        let main = symbol.values().next().unwrap().address;
        let mut pieces = 0;
        let offsets = [offset(main).unwrap() + 1, 0, u64::MAX];
        let found = functions(&elf, &offsets, &mut || pieces += 1).unwrap();
        let address = main + 1;
        let symbol = Some(b"main".to_vec());
        assert_eq!(found, [Some(Found { address, symbol }), None, None]);
        assert!(pieces > 0);
    }

    #[test]
    fn what_is_no_elf_file_is_an_error() {
        let (file, _) = table(&[("f", 0x100, 0x10, GLOBAL, 1)]);
        assert!(Elf::of(file, Path::new("f")).is_err());
    }

    /// A file that says it has a terabyte of symbols, and is as long as that.
    #[test]
    fn a_table_without_end_takes_neither_memory_nor_time() {
        const HUGE: u64 = 1 << 40;
        let mut bytes = vec![0_u8; 320];
        let mut put = |at: usize, value: &[u8]| bytes[at..at + value.len()].copy_from_slice(value);
        put(0, b"\x7fELF\x02\x01\x01");
        put(16, &[3, 0, 0x3e, 0, 1]);
        put(32, &64_u64.to_le_bytes());
        put(40, &128_u64.to_le_bytes());
        // Sizes and numbers of headers: of the file, one segment, three sections.
        for (index, value) in [64_u16, 56, 1, 64, 3, 2].into_iter().enumerate() {
            put(52 + 2 * index, &value.to_le_bytes());
        }
        let mut put_words = |at: usize, words: &[u64]| {
            for (index, word) in words.iter().enumerate() {
                put(at + 8 * index, &word.to_le_bytes());
            }
        };
        // A segment that can be executed; symbols; their names.
        put_words(64, &[5 << 32 | 1, 0, 0, 0, 0x1000, 0x1000, 0x1000]);
        put_words(192, &[2 << 32, 0, 0, 0x1000, HUGE, 2, 8, 24]);
        put_words(256, &[3 << 32, 0, 0, 0x1000, HUGE, 0, 1, 0]);
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&bytes).unwrap();
        file.set_len(2 * HUGE).unwrap();
        let elf = Elf::of(file, Path::new("huge")).unwrap();
        let mut pieces = 0;
        let found = functions(&elf, &[0x11], &mut || pieces += 1).unwrap();
        assert_eq!(found, [Some(Found { address: 0x11, symbol: None })]);
        assert_eq!(pieces, MAX_TABLE.div_ceil((CHUNK / SYMBOL_BYTES * SYMBOL_BYTES) as u64));
    }
}
