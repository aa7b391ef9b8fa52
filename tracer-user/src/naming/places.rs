//! Places in code that called the driver, and what their functions are called. Pure.

use std::sync::Arc;

use rustc_hash::FxHashMap;

use super::demangle::demangle;
use crate::model::Pid;

/// Places that are remembered. A program has a few hundred; one that makes up return addresses has as
/// many as it likes.
const MAX_PLACES: usize = 16 * 1024;

/// Places of one file that are remembered.
const MAX_PLACES_OF_FILE: usize = 512;

/// A file with code, as the kernel tells files apart.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct CodeFile {
    /// Its name, without folders.
    pub name: Arc<str>,
    /// The device that it lies on, as in `/proc/PID/maps`.
    pub device: u64,
    /// Its inode there.
    pub inode: u64,
}

/// A [`CodeFile`] in [`Places`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct FileIndex(pub(super) u32);

/// A place in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PlaceIndex(u32);

/// A place that has called for the first time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewPlace {
    /// Which.
    pub index: PlaceIndex,
    /// The process that called, or the first one.
    pub pid: Pid,
    /// The file.
    pub file: Arc<CodeFile>,
    /// Offset in the file that the call returns to.
    pub offset: u64,
}

/// What is found at a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Function<'a> {
    /// The function with this symbol.
    Symbol(&'a [u8]),
    /// No symbol: the virtual address as linked, by which a debugger finds it.
    Address(u64),
}

/// Files with code, and the places in them that called.
#[derive(Debug, Default)]
pub(super) struct Places {
    files: Vec<(Arc<CodeFile>, usize)>,
    by_file: FxHashMap<Arc<CodeFile>, FileIndex>,
    /// What each place is called, once that is known.
    names: Vec<Option<Arc<str>>>,
    by_place: FxHashMap<(FileIndex, u64), PlaceIndex>,
    new: Vec<NewPlace>,
}

impl Places {
    pub(super) fn file(&mut self, file: &CodeFile) -> FileIndex {
        if let Some(&index) = self.by_file.get(file) {
            return index;
        }
        let file = Arc::new(file.clone());
        let index = FileIndex(self.files.len() as u32);
        self.files.push((file.clone(), 0));
        self.by_file.insert(file, index);
        index
    }

    pub(super) fn file_name(&self, index: FileIndex) -> Option<&Arc<str>> {
        self.files.get(index.0 as usize).map(|(file, _)| &file.name)
    }

    /// A place that called; `None` if there are too many.
    pub(super) fn place(&mut self, pid: Pid, file: FileIndex, offset: u64) -> Option<PlaceIndex> {
        if let Some(&index) = self.by_place.get(&(file, offset)) {
            return Some(index);
        }
        let (code, places) = self.files.get_mut(file.0 as usize)?;
        if *places == MAX_PLACES_OF_FILE || self.names.len() == MAX_PLACES {
            return None;
        }
        *places += 1;
        let index = PlaceIndex(self.names.len() as u32);
        self.new.push(NewPlace { index, pid, file: code.clone(), offset });
        self.names.push(None);
        self.by_place.insert((file, offset), index);
        Some(index)
    }

    /// Places that have called for the first time since it was last asked.
    pub(super) fn take_new(&mut self) -> Vec<NewPlace> {
        std::mem::take(&mut self.new)
    }

    pub(super) fn set_name(&mut self, index: PlaceIndex, function: Function<'_>) {
        if let Some(name) = self.names.get_mut(index.0 as usize) {
            *name = Some(match function {
                Function::Symbol(symbol) => demangle(symbol).into(),
                Function::Address(address) => format!("+{address:#x}").into(),
            });
        }
    }

    /// The name of the function, or where it is in the file, if either is known.
    pub(super) fn name(&self, index: PlaceIndex) -> Option<&Arc<str>> {
        self.names.get(index.0 as usize)?.as_ref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(name: &str) -> CodeFile {
        CodeFile { name: name.into(), device: 1, inode: 2 }
    }

    #[test]
    fn a_place_is_told_of_once() {
        let mut places = Places::default();
        let (a, b) = (places.file(&file("a")), places.file(&file("b")));
        assert_eq!(places.file(&file("a")), a);
        let first = places.place(Pid(1), a, 0x10).unwrap();
        assert_eq!(places.place(Pid(2), a, 0x10), Some(first), "another process, the same file");
        let other = places.place(Pid(2), b, 0x10).unwrap();
        let new = places.take_new();
        let told: Vec<_> = new.iter().map(|p| (p.index, p.pid.0, &*p.file.name)).collect();
        assert_eq!(told, [(first, 1, "a"), (other, 2, "b")]);
        assert!(places.take_new().is_empty());
        assert_eq!(places.name(first), None);
        places.set_name(first, Function::Symbol(b"_Z3foov"));
        places.set_name(other, Function::Address(0x12));
        assert_eq!([first, other].map(|p| places.name(p).unwrap().to_string()), ["foo", "+0x12"]);
    }

    #[test]
    fn made_up_places_take_no_more_memory() {
        let mut places = Places::default();
        for name in 0..2 * MAX_PLACES / MAX_PLACES_OF_FILE {
            let file = places.file(&file(&name.to_string()));
            for offset in 0..2 * MAX_PLACES_OF_FILE as u64 {
                places.place(Pid(1), file, offset);
            }
        }
        assert_eq!((places.names.len(), places.new.len()), (MAX_PLACES, MAX_PLACES));
        let first = places.file(&file("0"));
        assert_eq!(places.by_place.keys().filter(|key| key.0 == first).count(), MAX_PLACES_OF_FILE);
    }
}
