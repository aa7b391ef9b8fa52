//! What there is to trace in a process.

use std::{os::fd::OwnedFd, time::Duration};

use super::SessionError;
use crate::{
    discover::{
        library::{self, LibraryFile, LibraryKind},
        maps::{MappedFile, mapped_files},
        process::{self, ProcessError, ProcessInfo},
        python::{self, PythonError, PythonTarget},
    },
    model::Pid,
    sys,
};

/// How long an interpreter that is just starting is waited for.
pub(super) const START_PATIENCE: Duration = Duration::from_secs(3);

/// What there is to trace in a process.
pub(super) struct Found {
    pub info: ProcessInfo,
    pub pidfd: OwnedFd,
    pub python: Option<PythonTarget>,
    /// Why there are no Python stacks.
    pub python_gap: Option<String>,
    /// Those that are mapped, and those that it can be foreseen to load.
    pub libraries: Vec<LibraryFile>,
    /// What it has mapped.
    pub files: Vec<MappedFile>,
}

impl Found {
    /// Looks at a process.
    ///
    /// # Errors
    ///
    /// When it cannot be traced, or there is nothing to trace in it.
    pub fn look(pid: Pid) -> Result<Self, SessionError> {
        let info = process::inspect(pid)?;
        let pidfd = sys::pidfd(pid).map_err(|_gone| ProcessError::NotFound(pid))?;
        if !process::is_same(pid, info.start_ticks) {
            return Err(SessionError::Vanished(pid));
        }
        let (python, python_gap, is_python) = match patient_find(pid) {
            Ok(target) => (Some(target), None, true),
            Err(PythonError::NotPython(_)) => {
                (None, Some("not a Python process".to_owned()), false)
            }
            Err(PythonError::Process(ProcessError::NotFound(_))) => {
                return Err(SessionError::Vanished(pid));
            }
            Err(PythonError::Process(error)) => return Err(error.into()),
            Err(error) => (None, Some(error.to_string()), true),
        };
        let files = mapped_files(pid)?;
        let mut libraries = library::mapped(&files);
        let cuda = |libraries: &[LibraryFile]| {
            libraries.iter().any(|library| library.kind != LibraryKind::Loader)
        };
        if !is_python && !cuda(&libraries) {
            return Err(SessionError::NotPython(pid));
        }
        libraries.extend(library::loadable(pid, python.as_ref().map(|p| p.minor), &libraries));
        if !cuda(&libraries) {
            return Err(SessionError::NoCuda(pid));
        }
        Ok(Self { info, pidfd, python, python_gap, libraries, files })
    }
}

/// An interpreter that is still starting is given some time.
fn patient_find(pid: Pid) -> Result<PythonTarget, PythonError> {
    let deadline = sys::monotonic_ns() + START_PATIENCE.as_nanos() as u64;
    loop {
        match python::find(pid) {
            Err(PythonError::NotInitialised(_)) if sys::monotonic_ns() < deadline => {
                std::thread::sleep(Duration::from_millis(20));
            }
            result => return result,
        }
    }
}
