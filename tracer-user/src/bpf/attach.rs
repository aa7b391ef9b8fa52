//! Where programs go: one place by one link, or many by a few, on as many threads as it takes.

use std::{
    collections::BTreeMap,
    error::Error,
    iter,
    os::fd::OwnedFd,
    panic::resume_unwind,
    path::{Path, PathBuf},
    thread,
};

use aya::programs::{
    UProbe,
    uprobe::{UProbeAttachLocation, UProbeAttachPoint, UProbeLink, UProbeScope},
};

use super::{AttachError, Program, multi::MultiPrograms};
use crate::model::Pid;

/// What keeps probes in place; they go when this is dropped.
#[expect(dead_code, reason = "held to be dropped")]
pub(super) enum Link {
    /// Of one place.
    One(UProbeLink),
    /// Of several.
    Many(OwnedFd),
}

/// Whose hits of a probe run a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Scope {
    /// Those of one process.
    Process(Pid),
    /// Everyone's: the program looks itself whether the process is traced.
    AllProcesses,
}

/// A program and where to attach it.
#[derive(Clone, Debug)]
pub struct Place {
    /// The program.
    pub program: Program,
    /// The file.
    pub path: PathBuf,
    /// Offset in the file.
    pub offset: u64,
}

impl Place {
    pub(super) fn error(&self, source: impl Into<Box<dyn Error + Send + Sync>>) -> AttachError {
        AttachError { path: self.path.clone(), offset: self.offset, source: source.into() }
    }
}

/// Hangs a program on one place.
pub(super) fn attach_one(
    place: &Place,
    mut program: UProbe,
    scope: UProbeScope,
) -> Result<UProbeLink, AttachError> {
    let point = UProbeAttachPoint {
        location: UProbeAttachLocation::AbsoluteOffset(place.offset),
        cookie: place.program.cookie(),
    };
    let link = program.attach(point, &place.path, scope).map_err(|e| place.error(e))?;
    program.take_link(link).map_err(|e| place.error(e))
}

/// What a place has got: nothing for all but the first of those that share a link.
pub(super) type Linked = Result<Option<OwnedFd>, AttachError>;

/// Attaches every program to its places in a file by a few links: attaching waits for a grace period at
/// each place, and threads wait for the same one.
pub(super) fn attach_many(multi: &MultiPrograms, places: &[Place], scope: Scope) -> Vec<Linked> {
    let pid = match scope {
        Scope::AllProcesses => 0,
        Scope::Process(pid) if pid.0 == 0 => {
            return places.iter().map(|place| Err(place.error("pid 0"))).collect();
        }
        Scope::Process(pid) => pid.0,
    };
    let mut groups: BTreeMap<(&str, bool, &Path), Vec<usize>> = BTreeMap::new();
    for (index, place) in places.iter().enumerate() {
        let key = (place.program.name(), place.program.at_return(), place.path.as_path());
        groups.entry(key).or_default().push(index);
    }
    let size = places.len().div_ceil(WORKERS).max(1);
    let groups = groups.values().flat_map(|group| group.chunks(size)).map(<[_]>::to_vec).collect();
    let results = in_parallel(groups, |group| attach_group(multi, places, group, pid));
    let mut results: Vec<(usize, Linked)> = results.into_iter().flatten().collect();
    results.sort_by_key(|(index, _)| *index);
    results.into_iter().map(|(_, result)| result).collect()
}

fn attach_group(
    multi: &MultiPrograms,
    places: &[Place],
    group: Vec<usize>,
    pid: u32,
) -> Vec<(usize, Linked)> {
    let together: Vec<&Place> = group.iter().map(|&index| &places[index]).collect();
    match multi.link(&together, pid) {
        Ok(link) => {
            let links = iter::once(Some(link)).chain(iter::repeat_with(|| None));
            group.into_iter().zip(links.map(Ok)).collect()
        }
        // One bad place spoils the link for all.
        Err(_) if group.len() > 1 => group
            .into_iter()
            .flat_map(|index| attach_group(multi, places, vec![index], pid))
            .collect(),
        Err(error) => {
            let alone = group.first().map(|&index| (index, Err(places[index].error(error))));
            alone.into_iter().collect()
        }
    }
}

/// Threads that wait for the kernel.
const WORKERS: usize = 32;

/// Runs `work` on every item, on many threads, and returns the results in order.
pub(super) fn in_parallel<T: Send, R: Send>(items: Vec<T>, work: impl Fn(T) -> R + Sync) -> Vec<R> {
    let size = items.len().div_ceil(WORKERS).max(1);
    let mut items = items.into_iter();
    let chunks = iter::from_fn(|| {
        let chunk: Vec<T> = items.by_ref().take(size).collect();
        (!chunk.is_empty()).then_some(chunk)
    });
    thread::scope(|scope| {
        let threads: Vec<_> = chunks
            .map(|chunk| scope.spawn(|| chunk.into_iter().map(&work).collect::<Vec<R>>()))
            .collect();
        threads
            .into_iter()
            .flat_map(|thread| thread.join().unwrap_or_else(|panic| resume_unwind(panic)))
            .collect()
    })
}
