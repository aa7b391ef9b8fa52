//! ONNX Runtime's arena (`onnxruntime::BFCArena`), in libraries without symbols: by its table of virtual
//! functions, and that of the variant that knows streams.

use std::collections::BTreeMap;

use super::{
    elf::{Elf, ElfError},
    returns, rtti, unwind,
};

/// Classes, as `typeid` names them.
const CLASSES: [&str; 2] = ["N11onnxruntime8BFCArenaE", "N11onnxruntime19StreamAwareBFCArenaE"];

/// Places in the table of `onnxruntime::IAllocator` (1.31), behind two destructors.
mod slot {
    pub const ALLOC: usize = 2;
    pub const IS_STREAM_AWARE: usize = 3;
    pub const ALLOC_ON_STREAM: usize = 4;
    pub const FREE: usize = 5;
    pub const RESERVE: usize = 6;
    pub const COUNT: usize = 7;
}

/// Where in an allocator its name is: a string, first in what describes the memory, behind the pointer to
/// the table.
pub const NAME_OFFSET: u64 = 8;

/// Bytes of a function that are looked at to tell what it is.
const FIRST_BYTES: u64 = 32;

/// More than any function of an arena has.
const MAX_BYTES: u64 = 64 * 1024;

/// Where an arena is to be probed, by virtual address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Arena {
    /// What allocates, by the name of the first virtual function that ends in it.
    pub allocating: Vec<Allocating>,
    /// What frees.
    pub free: u64,
}

/// A function that returns a block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Allocating {
    /// Its name.
    pub name: &'static str,
    /// Its first instruction.
    pub entry: u64,
    /// The instructions of it that return.
    pub exits: Vec<u64>,
}

/// Finds it; the reason if that is not possible.
///
/// # Errors
///
/// Why not, for people.
pub fn find(elf: &Elf) -> Result<Arena, String> {
    let mut tables = Vec::new();
    for class in CLASSES {
        let found = rtti::tables::<{ slot::COUNT }>(elf, class);
        tables.extend(found.map_err(|error: ElfError| error.to_string())?);
    }
    let [first, ..] = tables[..] else { return Err("no such class".into()) };
    let mut allocating: BTreeMap<u64, &'static str> = BTreeMap::new();
    for table in &tables {
        let is_known = code(elf, table[slot::IS_STREAM_AWARE]).is_some_and(returns::is_constant);
        if !is_known || table[slot::FREE] != first[slot::FREE] {
            return Err("its table of virtual functions is not as in the versions known".into());
        }
        for (slot, name) in [(slot::ALLOC, "Alloc"), (slot::RESERVE, "Reserve")] {
            allocating.entry(last(elf, table[slot])).or_insert(name);
        }
        // That of an arena without streams calls `Alloc` through the table.
        let on_stream = table[slot::ALLOC_ON_STREAM];
        if let Some(target) = code(elf, on_stream).and_then(|c| returns::jump_target(c, on_stream))
        {
            allocating.entry(target).or_insert("AllocOnStream");
        }
    }
    let allocating: Option<Vec<_>> = allocating
        .into_iter()
        .map(|(entry, name)| Some(Allocating { name, entry, exits: exits(elf, entry)? }))
        .collect();
    let allocating = allocating.ok_or("where its functions return is not known")?;
    Ok(Arena { allocating, free: first[slot::FREE] })
}

fn code(elf: &Elf, address: u64) -> Option<&[u8]> {
    elf.bytes(address, FIRST_BYTES).ok()
}

/// Where a virtual function ends up: some only pass their arguments on.
fn last(elf: &Elf, function: u64) -> u64 {
    code(elf, function).and_then(|c| returns::jump_target(c, function)).unwrap_or(function)
}

fn exits(elf: &Elf, function: u64) -> Option<Vec<u64>> {
    let length = unwind::extent(elf, function).filter(|&length| length <= MAX_BYTES)?;
    let exits = returns::returns(elf.bytes(function, length).ok()?);
    (!exits.is_empty()).then(|| exits.into_iter().map(|offset| function + offset).collect())
}
