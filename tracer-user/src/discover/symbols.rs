//! Names in a symbol table, found without holding the table: some libraries have hundreds of megabytes
//! of them.
//!
//! Two passes, each in one buffer: over the strings, for the places where a wanted name is; then over the
//! symbols, for those that point to such a place.

use std::{collections::HashMap, fs::File, io, os::unix::fs::FileExt as _};

use memchr::memmem::Finder;

/// Bytes that are read at once.
pub(super) const CHUNK: usize = 1 << 20;

/// Longer names are cut; the longest one that is looked for is a tenth of it.
const MAX_NAME: usize = 1024;

/// Bytes of an `Elf64_Sym`.
pub(super) const SYMBOL_BYTES: usize = 24;

/// A symbol with an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Symbol {
    /// Its whole name.
    pub name: String,
    /// Virtual address as linked.
    pub address: u64,
    /// Bytes; 0 when the file does not say.
    pub size: u64,
    /// Its place in the table.
    pub index: u64,
}

/// What is looked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Pattern {
    /// This name.
    Exact(&'static str),
    /// A function whose name begins like this.
    Prefix(&'static str),
    /// A function of this name, and every copy that the compiler has made of it for constant arguments.
    Clones(&'static str),
}

impl Pattern {
    /// The name or its beginning.
    pub const fn text(self) -> &'static str {
        match self {
            Self::Exact(text) | Self::Prefix(text) | Self::Clones(text) => text,
        }
    }

    /// `rest`: what follows the text in the table.
    fn allows(self, rest: &[u8]) -> bool {
        match self {
            Self::Exact(_) => rest.first() == Some(&0),
            // Not `….cold` or `….part.0`, which are pieces of a function.
            Self::Prefix(_) => !rest.iter().take_while(|&&byte| byte != 0).any(|&b| b == b'.'),
            Self::Clones(_) => is_clone(rest),
        }
    }
}

/// Whether a name that goes on like this is that of the whole function: nothing, or `.constprop.306`.
fn is_clone(rest: &[u8]) -> bool {
    let rest = rest.split(|&byte| byte == 0).next().unwrap_or_default();
    let number = rest.strip_prefix(b".constprop.");
    rest.is_empty() || number.is_some_and(|number| number.iter().all(u8::is_ascii_digit))
}

/// A range of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    /// Where it begins.
    pub offset: u64,
    /// Its bytes.
    pub size: u64,
}

/// A symbol table and its names.
#[derive(Clone, Copy, Debug)]
pub struct Table {
    /// The symbols.
    pub symbols: Range,
    /// Their names.
    pub strings: Range,
}

/// The first defined symbol for each pattern that has one.
///
/// # Errors
///
/// When the file cannot be read; a range that goes past its end is an error as well.
pub fn find(
    file: &File,
    table: &Table,
    patterns: &[Pattern],
) -> io::Result<HashMap<Pattern, Symbol>> {
    let mut found = HashMap::new();
    each(file, table, patterns, |pattern, symbol| {
        found.entry(pattern).or_insert(symbol);
    })?;
    Ok(found)
}

/// Every defined symbol that a pattern allows, in the order of the table.
///
/// # Errors
///
/// As [`find`].
pub fn find_all(file: &File, table: &Table, pattern: Pattern) -> io::Result<Vec<Symbol>> {
    let mut found = Vec::new();
    each(file, table, &[pattern], |_, symbol| found.push(symbol))?;
    Ok(found)
}

fn each(
    file: &File,
    table: &Table,
    patterns: &[Pattern],
    mut see: impl FnMut(Pattern, Symbol),
) -> io::Result<()> {
    let names = places(file, table.strings, patterns)?;
    if names.is_empty() {
        return Ok(());
    }
    let chunk = CHUNK / SYMBOL_BYTES * SYMBOL_BYTES;
    windows(file, table.symbols, chunk, 0, |start, bytes| {
        let first = start / SYMBOL_BYTES as u64;
        for (index, entry) in (first..).zip(bytes.chunks_exact(SYMBOL_BYTES)) {
            let Some((pattern, name)) = names.get(&le_u32(&entry[..4])) else { continue };
            if let Some(symbol) = symbol(entry, index, *pattern, name) {
                see(*pattern, symbol);
            }
        }
    })
}

/// The symbol at a place in the table, if it is there and fits the pattern: what [`find`] would say of
/// it.
pub fn at(file: &File, table: &Table, index: u64, pattern: Pattern) -> Option<Symbol> {
    let place = index.checked_mul(SYMBOL_BYTES as u64).filter(|&at| at < table.symbols.size)?;
    let mut entry = [0; SYMBOL_BYTES];
    file.read_exact_at(&mut entry, table.symbols.offset.checked_add(place)?).ok()?;
    let place = u64::from(le_u32(&entry[..4]));
    let length = table.strings.size.checked_sub(place)?.min(MAX_NAME as u64) as usize;
    let mut name = vec![0; length];
    file.read_exact_at(&mut name, table.strings.offset.checked_add(place)?).ok()?;
    let rest = name.strip_prefix(pattern.text().as_bytes())?;
    if !pattern.allows(rest) {
        return None;
    }
    let name = name.split(|&byte| byte == 0).next().unwrap_or_default();
    symbol(&entry, index, pattern, &String::from_utf8_lossy(name))
}

/// An entry of the table, if it is defined and of the kind that the pattern wants.
fn symbol(entry: &[u8], index: u64, pattern: Pattern, name: &str) -> Option<Symbol> {
    let section = u16::from_le_bytes([entry[6], entry[7]]);
    let is_code = entry[4] & 0xf == STT_FUNC;
    (section != SHN_UNDEF && (is_code || matches!(pattern, Pattern::Exact(_)))).then(|| Symbol {
        name: name.to_owned(),
        address: le_u64(&entry[8..16]),
        size: le_u64(&entry[16..24]),
        index,
    })
}

pub(super) const SHN_UNDEF: u16 = 0;
pub(super) const STT_FUNC: u8 = 2;

/// Where in the strings names begin that a pattern allows.
fn places(
    file: &File,
    strings: Range,
    patterns: &[Pattern],
) -> io::Result<HashMap<u32, (Pattern, String)>> {
    let finders: Vec<_> = patterns.iter().map(|p| (*p, Finder::new(p.text()))).collect();
    let mut names = HashMap::new();
    windows(file, strings, CHUNK, MAX_NAME, |start, bytes| {
        for (pattern, finder) in &finders {
            for place in finder.find_iter(bytes) {
                let rest = &bytes[place + pattern.text().len()..];
                // A later window has what begins in the overlap, with the whole name.
                let Ok(offset) = u32::try_from(start + place as u64) else { continue };
                if place < CHUNK && pattern.allows(rest) {
                    let name = bytes[place..].split(|&byte| byte == 0).next().unwrap_or_default();
                    let name = String::from_utf8_lossy(name).into_owned();
                    names.insert(offset, (*pattern, name));
                }
            }
        }
    })?;
    Ok(names)
}

/// Reads a range in pieces of `step` bytes, each with up to `overlap` bytes of what follows it.
pub(super) fn windows(
    file: &File,
    range: Range,
    step: usize,
    overlap: usize,
    mut see: impl FnMut(u64, &[u8]),
) -> io::Result<()> {
    let mut buffer = vec![0; step + overlap];
    let mut start = 0;
    while start < range.size {
        let length = (range.size - start).min(buffer.len() as u64) as usize;
        let offset = range.offset.checked_add(start).ok_or(io::ErrorKind::InvalidData)?;
        file.read_exact_at(&mut buffer[..length], offset)?;
        see(start, &buffer[..length]);
        start += step as u64;
    }
    Ok(())
}

pub(super) fn le_u32(bytes: &[u8]) -> u32 {
    bytes.try_into().map_or(0, u32::from_le_bytes)
}

pub(super) fn le_u64(bytes: &[u8]) -> u64 {
    bytes.try_into().map_or(0, u64::from_le_bytes)
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use proptest::prelude::*;

    use super::*;

    /// A file of strings and then symbols, each a name, a section and an address.
    fn table(names: &[(String, u16, u8)]) -> (File, Table) {
        let (mut strings, mut symbols) = (vec![0_u8], Vec::new());
        for (index, (name, section, kind)) in names.iter().enumerate() {
            let at = strings.len() as u32;
            strings.extend(name.bytes().chain([0]));
            symbols.extend(at.to_le_bytes());
            symbols.extend([*kind, 0]);
            symbols.extend(section.to_le_bytes());
            symbols.extend((0x1000 + index as u64).to_le_bytes());
            symbols.extend(16_u64.to_le_bytes());
        }
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&strings).unwrap();
        file.write_all(&symbols).unwrap();
        let split = strings.len() as u64;
        let (symbols, strings) =
            (Range { offset: split, size: symbols.len() as u64 }, Range { offset: 0, size: split });
        (file, Table { symbols, strings })
    }

    #[test]
    fn a_name_across_two_windows_is_found() {
        for fill in CHUNK - 20..CHUNK + 4 {
            let names = [("f".repeat(fill), 1, STT_FUNC), ("wanted".to_owned(), 1, STT_FUNC)];
            let (file, table) = table(&names);
            let found = find(&file, &table, &[Pattern::Exact("wanted")]).unwrap();
            assert_eq!(found[&Pattern::Exact("wanted")].address, 0x1001);
        }
    }

    proptest! {
        #[test]
        fn the_same_as_looking_at_every_symbol(
            names in proptest::collection::vec(("[ab.]{0,5}", 0_u16..2, 1_u8..3), 0..40),
        ) {
            let (file, table) = table(&names);
            let patterns = [Pattern::Exact("ab"), Pattern::Prefix("aa"), Pattern::Exact("b")];
            let found = find(&file, &table, &patterns).unwrap();
            for pattern in patterns {
                let expected = names.iter().position(|(name, section, kind)| *section != 0 && match pattern {
                    Pattern::Exact(text) => name == text,
                    Pattern::Prefix(text) => name.starts_with(text) && !name[text.len()..].contains('.') && *kind == STT_FUNC,
                    Pattern::Clones(_) => unreachable!(),
                });
                let address = found.get(&pattern).map(|symbol| symbol.address);
                prop_assert_eq!(address, expected.map(|index| 0x1000 + index as u64));
                for index in 0..names.len() as u64 + 1 {
                    let again = at(&file, &table, index, pattern);
                    if let Some(found) = found.get(&pattern).filter(|found| found.index == index) {
                        prop_assert_eq!(again.as_ref(), Some(found));
                    } else if let Some(other) = again {
                        prop_assert!(other.name.starts_with(pattern.text()));
                    }
                }
            }
        }
    }

    #[test]
    fn clones_of_a_function_but_no_pieces_of_it() {
        let names = [
            "f",
            "f.constprop.3",
            "f.constprop.12.cold",
            "f.cold.4",
            "f.part.0",
            "fg",
            "f.constprop.x",
        ]
        .map(|name| (name.to_owned(), 1, STT_FUNC));
        let (file, table) = table(&names);
        let found = find_all(&file, &table, Pattern::Clones("f")).unwrap();
        let found: Vec<&str> = found.iter().map(|symbol| symbol.name.as_str()).collect();
        assert_eq!(found, ["f", "f.constprop.3"]);
    }

    #[test]
    fn a_table_that_ends_too_early_is_an_error() {
        let (file, mut table) = table(&[("a".to_owned(), 1, STT_FUNC)]);
        table.symbols.size += 24;
        assert!(find(&file, &table, &[Pattern::Exact("a")]).is_err());
    }
}
