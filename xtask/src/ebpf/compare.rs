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
            None => lines.push(format!("`{name}` is only in the committed object")),
            Some(other) if other != content => lines.push(format!("`{name}` differs")),
            Some(_) => {}
        }
    }
    for name in built.keys().filter(|name| !committed.contains_key(*name)) {
        lines.push(format!("`{name}` is only in the built object"));
    }
    Ok(lines)
}

/// Bytes of every section, with its relocations by symbol name.
fn contents(data: &[u8]) -> Result<BTreeMap<String, Vec<u8>>> {
    let file = object::File::parse(data)?;
    let mut contents = BTreeMap::new();
    for section in file.sections() {
        let name = section.name()?;
        if IRRELEVANT.contains(&name) || name.starts_with(".debug") || name.starts_with(".rel") {
            continue;
        }
        let mut content = section.uncompressed_data()?.into_owned();
        for (offset, relocation) in section.relocations() {
            content.extend(offset.to_le_bytes());
            if let RelocationTarget::Symbol(index) = relocation.target() {
                let symbol = file.symbol_by_index(index)?;
                content.extend(symbol.name()?.bytes());
                content.extend(symbol.address().to_le_bytes());
            }
        }
        contents.insert(name.to_owned(), content);
    }
    Ok(contents)
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
            assert_eq!(lines, [format!("`{section}` differs")]);
        }
    }

    #[test]
    fn what_is_not_an_object_is_an_error() {
        assert!(differences(b"not an object", &object()).is_err());
    }
}
