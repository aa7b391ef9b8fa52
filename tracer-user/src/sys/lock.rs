//! One tracer for each process: a lock file that the kernel releases when its owner dies.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Read as _, Seek as _, Write as _},
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
};

use rustix::fs::{FlockOperation, flock};
use thiserror::Error;

/// Where lock files lie. Only root can write there, so that nobody else can keep a tracer out.
pub const LOCK_DIRECTORY: &str = "/run/cudatrace";

/// Why a process cannot be claimed.
#[derive(Debug, Error)]
pub enum LockError {
    /// Another tracer has it.
    #[error("process {pid} is already traced by cudatrace (pid {owner}); stop that one first")]
    Held {
        /// The process to trace.
        pid: u32,
        /// The tracer that has it, if it said so.
        owner: String,
    },
    /// The file cannot be made.
    #[error("cannot make the lock file `{path}`")]
    Io {
        /// Its path.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
}

/// The claim on a process; given up when dropped, or when the tracer dies in whatever way.
#[derive(Debug)]
pub struct TraceLock {
    path: PathBuf,
    _file: File,
}

impl TraceLock {
    /// Claims the process `pid` that started at `start_ticks` (pids are reused).
    ///
    /// # Errors
    ///
    /// [`LockError::Held`] if another tracer has it, [`LockError::Io`] if the file cannot be made.
    pub fn acquire(directory: &Path, pid: u32, start_ticks: u64) -> Result<Self, LockError> {
        let path = directory.join(format!("{pid}-{start_ticks}.lock"));
        let io_error = |source: io::Error| LockError::Io { path: path.clone(), source };
        fs::DirBuilder::new().recursive(true).mode(0o700).create(directory).map_err(io_error)?;
        remove_left(directory);
        loop {
            let mut file = OpenOptions::new()
                .create(true)
                .truncate(false)
                .read(true)
                .write(true)
                .mode(0o600)
                .custom_flags(libc::O_NOFOLLOW)
                .open(&path)
                .map_err(io_error)?;
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => {}
                Err(rustix::io::Errno::WOULDBLOCK) => {
                    let mut owner = String::new();
                    let _ = (&file).take(32).read_to_string(&mut owner);
                    return Err(LockError::Held { pid, owner: owner.trim().to_owned() });
                }
                Err(errno) => return Err(io_error(errno.into())),
            }
            // The previous owner may have removed the name between our open and our lock.
            if !is_same_file(&file, &path) {
                continue;
            }
            file.set_len(0).and_then(|()| file.rewind()).map_err(io_error)?;
            writeln!(file, "{}", std::process::id()).map_err(io_error)?;
            return Ok(Self { path, _file: file });
        }
    }
}

impl Drop for TraceLock {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

/// Removes the files of tracers that were killed.
fn remove_left(directory: &Path) {
    for entry in fs::read_dir(directory).into_iter().flatten().flatten().take(MOST_LEFT) {
        let path = entry.path();
        let file = OpenOptions::new().read(true).custom_flags(libc::O_NOFOLLOW).open(&path);
        let Ok(file) = file else { continue };
        if flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok()
            && is_same_file(&file, &path)
        {
            let _ = fs::remove_file(&path);
        }
    }
}

/// Files that are looked at for that.
const MOST_LEFT: usize = 1024;

fn is_same_file(file: &File, path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt as _;
    match (file.metadata(), fs::metadata(path)) {
        (Ok(ours), Ok(named)) => (ours.dev(), ours.ino()) == (named.dev(), named.ino()),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn second_claim_names_the_owner_and_a_dropped_one_frees() {
        let directory = tempfile::tempdir().unwrap();
        let first = TraceLock::acquire(directory.path(), 7, 100).unwrap();
        let error = TraceLock::acquire(directory.path(), 7, 100).unwrap_err();
        assert!(error.to_string().contains(&std::process::id().to_string()), "{error}");
        // The same pid in another life is another process.
        TraceLock::acquire(directory.path(), 7, 101).unwrap();
        drop(first);
        TraceLock::acquire(directory.path(), 7, 100).unwrap();
        // What a killed tracer left goes with the next claim.
        fs::write(directory.path().join("9-9.lock"), "1\n").unwrap();
        TraceLock::acquire(directory.path(), 8, 100).unwrap();
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
    }
}
