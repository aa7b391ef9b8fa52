//! Leaves DWARF out of the committed object: the kernel and aya read BTF.

use anyhow::Result;
use object::build::elf::{Builder, SectionData};
use object::elf::SHT_STRTAB;

/// The object without its `.debug_*` sections and what relocates them.
///
/// # Errors
///
/// When it is not an ELF object.
pub fn strip(object: &[u8]) -> Result<Vec<u8>> {
    let mut builder = Builder::read(object)?;
    for section in &mut builder.sections {
        let name = section.name.to_string();
        section.delete = name.strip_prefix(".rel").unwrap_or(&name).starts_with(".debug_");
    }
    // LLVM keeps the names of sections and symbols in one table, the writer in two.
    let names = builder.sections.add();
    names.name = ".shstrtab".into();
    names.sh_type = SHT_STRTAB;
    names.sh_addralign = 1;
    names.data = SectionData::SectionString;
    builder.delete_orphans();
    let mut stripped = Vec::new();
    builder.write(&mut stripped)?;
    Ok(stripped)
}
