//! Whose calls are going to tell of a process's GPU memory.
//!
//! Nothing depends on it: what is counted where is found out call by call, in the kernel. It is for people,
//! who should know beforehand what will be missed.

use crate::{
    discover::{
        library::{LibraryFile, LibraryKind},
        maps::MappedFile,
    },
    model::Layer,
};

/// The layer whose calls are probed; `None` if neither's are. `libraries` come with whether they can be
/// probed.
pub(super) fn counted_at<'a>(
    libraries: impl IntoIterator<Item = (&'a LibraryFile, bool)>,
    uses_gpu: bool,
) -> Option<Layer> {
    let libraries: Vec<_> = libraries.into_iter().collect();
    let of = |kind| libraries.iter().filter(move |(library, _)| library.kind == kind);
    let mapped = |kind| of(kind).any(|(library, _)| library.mapped);
    // A driver that is loaded is the one that is used, whatever others there are.
    let loaded = mapped(LibraryKind::Driver) || uses_gpu;
    let probed = |kind, loaded: bool| {
        of(kind).any(|(library, probed)| *probed && (library.mapped || !loaded))
    };
    if probed(LibraryKind::Driver, loaded) {
        Some(Layer::Driver)
    } else {
        probed(LibraryKind::Runtime, mapped(LibraryKind::Runtime)).then_some(Layer::Runtime)
    }
}

/// Whether a process has a GPU's device file mapped: its driver is at work, by whatever name.
pub(super) fn uses_gpu(files: &[MappedFile]) -> bool {
    files.iter().any(|file| {
        let path = file.path.to_string_lossy();
        path.starts_with("/dev/nvidia") || path == "/dev/dxg"
    })
}

/// What that means.
pub(super) fn meaning(layer: Option<Layer>) -> &'static str {
    match layer {
        Some(Layer::Driver) => "GPU memory counts at the calls of the CUDA driver",
        Some(Layer::Runtime) => {
            "GPU memory counts at the calls of the CUDA runtime, as none of the driver can be probed: what \
             libraries get from the driver directly is missed"
        }
        None => {
            "no call of the CUDA driver or runtime can be probed: what is allocated below the pools is missed"
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn library(kind: LibraryKind, mapped: bool) -> LibraryFile {
        LibraryFile { kind, path: "x".into(), open_path: "x".into(), mapped, inode: 0 }
    }

    #[test]
    fn the_driver_that_is_loaded_decides() {
        use LibraryKind::{Driver, Runtime};
        for (libraries, uses_gpu, expected) in [
            (vec![(Driver, true, true), (Runtime, true, true)], true, Some(Layer::Driver)),
            (vec![(Driver, true, false), (Runtime, true, true)], true, Some(Layer::Runtime)),
            // Another one lies in a system folder.
            (
                vec![(Driver, true, false), (Driver, false, true), (Runtime, true, true)],
                true,
                Some(Layer::Runtime),
            ),
            // It is loaded under a name that says nothing.
            (vec![(Driver, false, true), (Runtime, true, true)], true, Some(Layer::Runtime)),
            (vec![(Driver, false, true), (Runtime, true, true)], false, Some(Layer::Driver)),
            (vec![(Runtime, false, true)], false, Some(Layer::Runtime)),
            (vec![(Runtime, true, false), (Runtime, false, true)], true, None),
            (vec![(LibraryKind::Loader, true, true)], false, None),
        ] {
            let files: Vec<_> = libraries
                .iter()
                .map(|&(kind, mapped, probed)| (library(kind, mapped), probed))
                .collect();
            let found = counted_at(files.iter().map(|(file, probed)| (file, *probed)), uses_gpu);
            assert_eq!(found, expected, "{libraries:?}");
        }
    }
}
