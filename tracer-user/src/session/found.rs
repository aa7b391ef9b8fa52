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
    /// Why there are no Python stacks, or in what they are less certain.
    pub python_note: Option<String>,
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
        let found = match patient_find(pid) {
            Err(PythonError::Process(ProcessError::NotFound(_))) => {
                return Err(SessionError::Vanished(pid));
            }
            Err(PythonError::Process(error)) => return Err(error.into()),
            found => found,
        };
        let is_python = !matches!(found, Err(PythonError::NotPython(_)));
        let (python, python_note) = with_note(found);
        let files = mapped_files(pid)?;
        let mut libraries = library::mapped(&files);
        let cuda = |libraries: &[LibraryFile]| {
            libraries.iter().any(|library| library.kind != LibraryKind::Loader)
        };
        if !is_python && !cuda(&libraries) {
            return Err(SessionError::NotPython(pid));
        }
        libraries.extend(library::loadable(pid, python.as_ref(), &libraries));
        if !cuda(&libraries) {
            return Err(SessionError::NoCuda(pid));
        }
        Ok(Self { info, pidfd, python, python_note, libraries, files })
    }
}

/// The interpreter, if there is one that can be walked, and what a reader of the report has to know of it.
pub(super) fn with_note(
    found: Result<PythonTarget, PythonError>,
) -> (Option<PythonTarget>, Option<String>) {
    match found {
        Ok(target) => {
            let note = target.note.map(str::to_owned);
            (Some(target), note)
        }
        Err(PythonError::NotPython(_)) => {
            (None, Some("no Python stacks: not a Python process".to_owned()))
        }
        Err(error) => (None, Some(format!("no Python stacks: {error}"))),
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
