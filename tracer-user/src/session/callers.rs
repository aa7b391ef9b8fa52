//! The functions that call the driver.
//!
//! A file is opened when a place in it calls for the first time, and looked into when a snapshot is
//! made: by then its process, or the file itself, may be gone.

use std::{collections::HashMap, fs::File, os::unix::fs::MetadataExt as _, path::Path, sync::Arc};

use crate::{
    aggregate::Aggregator,
    discover::{
        elf::{Elf, open_regular},
        functions::{Found, functions},
        maps::mapped_files,
    },
    model::Pid,
    naming::{CodeFile, Function, NewPlace, PlaceIndex},
};

/// Files that are open at once. What calls from one more is known by its file alone.
const MAX_FILES: usize = 128;

/// A file, and the places in it that have no name yet: with their offsets.
struct Caller {
    file: Arc<File>,
    places: Vec<(PlaceIndex, u64)>,
}

/// Files whose code called the driver.
#[derive(Default)]
pub(super) struct Callers {
    files: HashMap<Arc<CodeFile>, Caller>,
}

/// Places in one file, to be looked up.
pub(super) struct Unnamed {
    file: Arc<File>,
    code: Arc<CodeFile>,
    places: Vec<(PlaceIndex, u64)>,
}

impl Callers {
    /// Places have called for the first time, a moment ago.
    pub(super) fn note(&mut self, new: Vec<NewPlace>) {
        for NewPlace { index, pid, file, offset } in new {
            if let Some(caller) = self.files.get_mut(&file) {
                caller.places.push((index, offset));
            } else if self.files.len() < MAX_FILES
                && let Some(open) = open(pid, &file)
            {
                let caller = Caller { file: open.into(), places: vec![(index, offset)] };
                self.files.insert(file, caller);
            }
        }
    }

    /// What has no name yet. It is asked for once: what is not found then is not there.
    pub(super) fn take_unnamed(&mut self) -> Vec<Unnamed> {
        let files = self.files.iter_mut().filter(|(_, caller)| !caller.places.is_empty());
        files
            .map(|(code, caller)| Unnamed {
                file: caller.file.clone(),
                code: code.clone(),
                places: std::mem::take(&mut caller.places),
            })
            .collect()
    }

    /// Closes every file that has nothing to be looked up: an open one keeps its file system from being
    /// unmounted, as that of a container that has ended.
    pub(super) fn close(&mut self) {
        self.files.retain(|_, caller| !caller.places.is_empty());
    }
}

impl Unnamed {
    /// Looks into the file; `between` is called after each piece of it.
    pub(super) fn find(&self, between: &mut dyn FnMut()) -> Vec<Option<Found>> {
        let offsets: Vec<u64> = self.places.iter().map(|(_, offset)| *offset).collect();
        let mut find = || {
            let elf = Elf::of(self.file.try_clone()?, Path::new(&*self.code.name))?;
            anyhow::Ok(functions(&elf, &offsets, between)?)
        };
        find().unwrap_or_else(|error| {
            tracing::debug!("no names of functions: {error:#}");
            Vec::new()
        })
    }

    /// Tells what was found.
    pub(super) fn name(&self, found: &[Option<Found>], core: &mut Aggregator) {
        for ((place, _), found) in self.places.iter().zip(found) {
            let Some(found) = found else { continue };
            let address = Function::Address(found.address);
            core.name_place(*place, found.symbol.as_deref().map_or(address, Function::Symbol));
        }
    }
}

/// The file itself, through the mapping that its process has of it.
fn open(pid: Pid, code: &CodeFile) -> Option<File> {
    let files = mapped_files(pid).ok()?;
    let mapped =
        files.iter().find(|file| file.device == code.device && file.inode == code.inode)?;
    let file = open_regular(&mapped.open_path).ok()?;
    // What was opened by its path may be another one by now.
    (file.metadata().ok()?.ino() == code.inode).then_some(file)
}
