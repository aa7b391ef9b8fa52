//! What can go wrong on the way into the kernel, in words that end in what to do.

use std::{error::Error, io, path::PathBuf};

use aya::{EbpfError, maps::MapError};
use thiserror::Error;

use crate::sys::kernel_release;

/// What was behind it.
pub(super) type Cause = Box<dyn Error + Send + Sync>;

/// The kernel half could not be loaded.
#[derive(Debug, Error)]
pub enum LoadError {
    /// The kernel has no BPF ring buffer.
    #[error(
        "kernel {0} has no BPF ring buffer; cudatrace needs Linux 5.15 or newer: boot a newer \
         kernel, then run it again"
    )]
    NoRingBuffer(String),
    /// The kernel refuses BPF to this process.
    #[error(
        "the kernel does not allow BPF here ({0}); run as root, outside of a container without `--privileged`"
    )]
    NotPermitted(io::Error),
    /// The verifier or the kernel refused a program.
    #[error(
        "kernel {kernel} refused the program `{name}`; please report it with the output of `cudatrace doctor`"
    )]
    Program {
        /// Its name.
        name: String,
        /// The kernel's release.
        kernel: String,
        /// Why.
        #[source]
        source: Cause,
    },
    /// A map could not be made or used.
    #[error("kernel refused a BPF map")]
    Map(#[source] Box<MapError>),
    /// The embedded object lacks something.
    #[error("the embedded BPF object has no `{0}`: rebuild it by `cargo xtask build-ebpf`")]
    Object(&'static str),
    /// The object could not be loaded.
    #[error("cannot load the BPF object")]
    Load(#[source] Cause),
}

impl LoadError {
    pub(super) fn from_aya(error: EbpfError) -> Self {
        match error {
            EbpfError::MapError(error) => Self::map(error),
            other => Self::Load(Box::new(other)),
        }
    }

    pub(super) fn map(error: MapError) -> Self {
        Self::Map(Box::new(error))
    }

    pub(super) fn program(name: &str, error: impl Into<Cause>) -> Self {
        Self::Program { name: name.to_owned(), kernel: kernel_release(), source: error.into() }
    }

    /// Whether a privilege or a kernel feature is missing (exit code 3).
    pub fn is_missing_feature(&self) -> bool {
        matches!(self, Self::NoRingBuffer(_) | Self::NotPermitted(_) | Self::Program { .. })
    }
}

/// A probe could not be attached.
#[derive(Debug, Error)]
#[error("cannot attach to `{}` at offset {offset:#x}", path.display())]
pub struct AttachError {
    pub(super) path: PathBuf,
    pub(super) offset: u64,
    #[source]
    pub(super) source: Cause,
}

const BPF_MAP_CREATE: libc::c_long = 0;
const BPF_MAP_TYPE_RINGBUF: u32 = 27;

/// The first words of `union bpf_attr` for `BPF_MAP_CREATE`.
#[repr(C)]
struct MapCreate {
    map_type: u32,
    key_size: u32,
    value_size: u32,
    max_entries: u32,
    map_flags: u32,
}

/// Makes a small ring buffer and throws it away.
pub(super) fn check_ring_buffer() -> Result<(), LoadError> {
    let page = rustix::param::page_size() as u32;
    let attr = MapCreate {
        map_type: BPF_MAP_TYPE_RINGBUF,
        key_size: 0,
        value_size: 0,
        max_entries: page,
        map_flags: 0,
    };
    // SAFETY: `attr` is valid for the size given; the kernel takes the rest as zero.
    let fd = unsafe {
        libc::syscall(libc::SYS_bpf, BPF_MAP_CREATE, &raw const attr, size_of::<MapCreate>())
    };
    if fd >= 0 {
        // SAFETY: a descriptor that nobody else has.
        unsafe { libc::close(fd as libc::c_int) };
        return Ok(());
    }
    let error = io::Error::last_os_error();
    match error.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => Err(LoadError::NotPermitted(error)),
        _ => Err(LoadError::NoRingBuffer(kernel_release())),
    }
}
