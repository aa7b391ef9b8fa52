//! Do two BPF objects say the same? Pure, over their bytes.

use std::collections::BTreeMap;

use anyhow::Result;
use object::{Object as _, ObjectSection as _, ObjectSymbol as _, RelocationTarget};

/// Sections that do not change what the kernel loads.
const IRRELEVANT: [&str; 6] = [".strtab", ".symtab", ".shstrtab", ".llvm_addrsig", ".comment", ""];

/// What differs in sections, relocations and symbols, one line each; empty when nothing does.
///
/// # Errors
///
/// When one of the two is not an ELF object.
pub fn differences(committed: &[u8], built: &[u8]) -> Result<Vec<String>> {
    let (committed, built) = (contents(committed)?, contents(built)?);
    let mut lines = Vec::new();
    for (name, content) in &committed {
        match built.get(name) {
            None => lines.push(format!("{name} is only in the committed object")),
            Some(other) if other != content => lines.push(format!("{name} differs")),
            Some(_) => {}
        }
    }
    for name in built.keys().filter(|name| !committed.contains_key(*name)) {
        lines.push(format!("{name} is only in the built object"));
    }
    Ok(lines)
}

/// What the loader reads, by what to call it in a message: the bytes of every section with its
/// relocations, and the place of every symbol that has a name for others (programs and maps).
fn contents(data: &[u8]) -> Result<BTreeMap<String, Vec<u8>>> {
    let file = object::File::parse(data)?;
    let mut contents: BTreeMap<String, Vec<u8>> = BTreeMap::new();
    for section in file.sections() {
        let name = section.name()?;
        if IRRELEVANT.contains(&name) || name.starts_with(".debug") || name.starts_with(".rel") {
            continue;
        }
        // Two sections may share a name.
        let content = contents.entry(format!("section `{name}`")).or_default();
        content.extend(section.uncompressed_data()?.iter());
        for (offset, relocation) in section.relocations() {
            content.extend(offset.to_le_bytes());
            content.extend(relocation.addend().to_le_bytes());
            content.extend(format!("{:?}", relocation.flags()).bytes());
            if let RelocationTarget::Symbol(index) = relocation.target() {
                content.extend(place(&file, &file.symbol_by_index(index)?)?.bytes());
            }
        }
    }
    for symbol in file.symbols().filter(|symbol| symbol.is_global() && symbol.is_definition()) {
        let place = format!("{} {:?}", place(&file, &symbol)?, symbol.kind());
        contents.insert(format!("symbol `{}`", symbol.name()?), place.into_bytes());
    }
    Ok(contents)
}

/// Name, section, offset and size. The section belongs to it: its own symbol has no name.
fn place(file: &object::File<'_>, symbol: &object::Symbol<'_, '_>) -> Result<String> {
    let section = match symbol.section_index() {
        Some(index) => file.section_by_index(index)?.name()?.to_owned(),
        None => String::new(),
    };
    Ok(format!("{} {section} {} {};", symbol.name()?, symbol.address(), symbol.size()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The committed object: the comparison has to work on the real thing.
    fn object() -> Vec<u8> {
        std::fs::read(concat!(env!("CARGO_MANIFEST_DIR"), "/../tracer-ebpf/cudatrace.bpf.o"))
            .unwrap()
    }

    /// Where a section's bytes lie in the object.
    fn range(data: &[u8], section: &str) -> (usize, usize) {
        let file = object::File::parse(data).unwrap();
        let (start, size) = file.section_by_name(section).unwrap().file_range().unwrap();
        (start as usize, size as usize)
    }

    #[test]
    fn an_object_equals_itself() {
        assert_eq!(differences(&object(), &object()).unwrap(), Vec::<String>::new());
    }

    #[test]
    fn one_changed_bit_in_code_or_types_is_noticed() {
        for section in ["uprobe", "uretprobe", ".BTF", ".rodata", "maps"] {
            let mut changed = object();
            let (start, size) = range(&changed, section);
            changed[start + size / 2] ^= 1;
            let lines = differences(&object(), &changed).unwrap();
            assert_eq!(lines, [format!("section `{section}` differs")]);
        }
    }

    #[test]
    fn every_byte_of_an_instruction_counts() {
        let (start, _) = range(&object(), "uprobe");
        for byte in 0..8 {
            let mut changed = object();
            changed[start + byte] ^= 0x10;
            let lines = differences(&object(), &changed).unwrap();
            assert_eq!(lines, ["section `uprobe` differs"], "byte {byte}");
        }
    }

    /// The entries of `.reluprobe` are 16 bytes: offset, then type and symbol in 32 bits each.
    #[test]
    fn a_relocation_elsewhere_of_another_type_or_to_another_symbol_is_noticed() {
        let data = object();
        let (start, size) = range(&data, ".reluprobe");
        let other = data[start..start + size]
            .chunks(16)
            .find(|entry| entry[12..] != data[start + 12..start + 16])
            .unwrap();
        for (at, bytes) in [(0, &[8][..]), (8, &[2]), (12, &other[12..])] {
            let mut changed = data.clone();
            assert_ne!(&changed[start + at..start + at + bytes.len()], bytes);
            changed[start + at..start + at + bytes.len()].copy_from_slice(bytes);
            let lines = differences(&data, &changed).unwrap();
            assert_eq!(lines, ["section `uprobe` differs"], "field at {at}");
        }
    }

    /// In `.text` and `.rodata` alike the section's own symbol has no name and lies at 0.
    #[test]
    fn a_relocation_to_another_section_is_noticed() {
        let data = object();
        let file = object::File::parse(&*data).unwrap();
        let section = |name| file.section_by_name(name).unwrap().index();
        let symbol = |section| {
            let symbols = file.symbols();
            symbols
                .filter(|s| s.kind() == object::SymbolKind::Section)
                .find(|s| s.section_index() == Some(section))
                .unwrap()
        };
        let places = [".text", ".rodata"].map(|n| place(&file, &symbol(section(n))).unwrap());
        assert_ne!(places[0], places[1]);
    }

    #[test]
    fn a_renamed_program_or_map_is_noticed() {
        let data = object();
        for name in ["pool_hook", "PROCESSES"] {
            let (start, size) = range(&data, ".strtab");
            let at =
                data[start..start + size].windows(name.len()).position(|w| w == name.as_bytes());
            let mut changed = data.clone();
            changed[start + at.unwrap()] = b'x';
            let lines = differences(&data, &changed).unwrap();
            assert!(lines.contains(&format!("symbol `{name}` is only in the committed object")));
            assert!(
                lines.contains(&format!("symbol `x{}` is only in the built object", &name[1..]))
            );
        }
    }

    #[test]
    fn what_is_not_an_object_is_an_error() {
        assert!(differences(b"not an object", &object()).is_err());
    }
}
