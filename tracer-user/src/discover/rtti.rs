//! Tables of virtual functions of a class, in a library that was stripped of its symbols.
//!
//! What C++ needs at run time stays: the class's name, its type information, which points to the name, and
//! its table, which points to the type information and then to the functions. The pointers are filled in when
//! the library is loaded, by its relocations; those are read in pieces, once for each step.

use std::collections::HashMap;

use super::{
    elf::{Elf, ElfError},
    symbols::le_u64,
};

/// Type of a relocation that is the library's place in memory plus a virtual address.
const R_X86_64_RELATIVE: u64 = 8;

/// Bytes of an `Elf64_Rela`.
const RELOCATION_BYTES: usize = 24;

/// More classes of one name, or references to one, than there are.
const MAX_FOUND: usize = 16;

/// The first `N` functions of each table of the class with this name, mangled as `typeid` has it.
///
/// # Errors
///
/// [`ElfError::Read`] if a section cannot be read.
pub(super) fn tables<const N: usize>(elf: &Elf, class: &str) -> Result<Vec<[u64; N]>, ElfError> {
    // Type information is a table of its own, the name, and the bases.
    let types: Vec<u64> = pointers_to(elf, &names(elf, class)?)?.map(|at| at - 8).collect();
    // Before the type information a table has the offset to the whole object; the functions come after it.
    let tables: Vec<u64> = pointers_to(elf, &types)?.map(|at| at + 8).collect();
    let mut slots = HashMap::new();
    relocations(elf, |at, target| {
        if tables.iter().any(|table| (*table..table + 8 * N as u64).contains(&at)) {
            slots.insert(at, target);
        }
    })?;
    let functions = |table: &u64| {
        let mut functions = [0; N];
        for (at, function) in (*table..).step_by(8).zip(&mut functions) {
            *function = slots.get(&at).copied().filter(|&address| elf.is_code(address))?;
        }
        Some(functions)
    };
    Ok(tables.iter().filter_map(functions).collect())
}

/// Where the name is.
fn names(elf: &Elf, class: &str) -> Result<Vec<u64>, ElfError> {
    let wanted = [b"\0", class.as_bytes(), b"\0"].concat();
    let mut found = Vec::new();
    elf.for_section(".rodata", wanted.len(), |start, bytes| {
        let places = memchr::memmem::find_iter(bytes, &wanted).take(MAX_FOUND);
        found.extend(places.map(|place| start + place as u64 + 1));
    })?;
    // What lies where two pieces overlap is seen twice.
    found.dedup();
    found.truncate(MAX_FOUND);
    Ok(found)
}

/// Where there are pointers to any of these addresses.
fn pointers_to(elf: &Elf, targets: &[u64]) -> Result<impl Iterator<Item = u64>, ElfError> {
    let mut found = Vec::new();
    relocations(elf, |at, target| {
        if targets.contains(&target) && found.len() < MAX_FOUND && (8..1 << 47).contains(&at) {
            found.push(at);
        }
    })?;
    Ok(found.into_iter())
}

/// Every pointer that the library has to itself: where it is, and to where it points.
fn relocations(elf: &Elf, mut see: impl FnMut(u64, u64)) -> Result<(), ElfError> {
    elf.for_section(".rela.dyn", 0, |_, bytes| {
        for entry in bytes.chunks_exact(RELOCATION_BYTES) {
            if le_u64(&entry[8..16]) == R_X86_64_RELATIVE {
                see(le_u64(&entry[..8]), le_u64(&entry[16..]));
            }
        }
    })
}
