//! One process that may be a kernel: its history, and the files that it reads, from outside.

use std::{
    fs::{self, File},
    io::{self, Read as _},
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    thread,
    time::{Duration, UNIX_EPOCH},
};

use super::{
    history::{History, Session, describe},
    locate::Locator,
    notebook,
};
use crate::{
    naming::{HistoryPage, NotebookPage},
    sys::identity::{Borrowed, Identity, open_in_root},
};

/// Bytes of a notebook that are read: its outputs are in it.
const MAX_NOTEBOOK: u64 = 64 << 20;

/// Bytes of other files that are read.
pub(super) const MAX_FILE: u64 = 1 << 20;

/// Times that a look is tried while somebody writes, which takes a moment.
const ATTEMPTS: usize = 20;

/// Time between two of them.
const BETWEEN_ATTEMPTS: Duration = Duration::from_millis(2);

/// How long after its process a session of IPython begins, in seconds.
const STARTING: i64 = 60;

/// Clocks, as a caller has them.
#[derive(Clone, Copy, Debug)]
pub struct Clocks {
    /// Nanoseconds of `CLOCK_MONOTONIC`.
    pub monotonic_ns: fn() -> u64,
    /// Nanoseconds since 1970.
    pub epoch_ns: fn() -> i128,
}

/// A process that may be a kernel.
pub struct Kernel {
    /// Its folder in the process file system.
    process: PathBuf,
    identity: Identity,
    /// When it started, in seconds since 1970.
    started_s: i64,
    clocks: Clocks,
    history: Option<History>,
    /// Numbers of sessions of which the first look knew.
    known: Option<u64>,
    notebook: Option<PathBuf>,
    /// When the notebook's file that was read was saved, in nanoseconds since 1970.
    saved: Option<i128>,
}

impl Kernel {
    /// Looks at a process, given its folder in the process file system.
    ///
    /// # Errors
    ///
    /// When it is gone.
    pub fn find(process: &Path, started_s: i64, clocks: Clocks) -> io::Result<Self> {
        let status = fs::read_to_string(process.join("status"))?;
        let identity = Identity::parse(&status).ok_or(io::ErrorKind::InvalidData)?;
        let mut kernel = Self {
            process: process.to_owned(),
            identity,
            started_s,
            clocks,
            history: None,
            known: None,
            notebook: None,
            saved: None,
        };
        kernel.find_history();
        Ok(kernel)
    }

    /// Looks for the history once more, if there is none yet.
    pub fn find_history(&mut self) {
        if self.history.is_none()
            && let Ok(_user) = Borrowed::take(&self.identity)
        {
            self.history = History::find(&self.process);
        }
    }

    /// Whether it has one.
    pub fn has_history(&self) -> bool {
        self.history.is_some()
    }

    /// What is new in the history; `None` if nothing can be said now.
    ///
    /// # Errors
    ///
    /// In words, when it cannot be read.
    pub fn look(&mut self) -> Result<Option<HistoryPage>, String> {
        let Some(history) = &mut self.history else { return Ok(None) };
        let (mut look, mut read_ns) = (None, 0);
        for _ in 0..ATTEMPTS {
            read_ns = (self.clocks.monotonic_ns)();
            look = history.look().map_err(|error| describe(history.path(), &error))?;
            if look.is_some() {
                break;
            }
            thread::sleep(BETWEEN_ATTEMPTS);
        }
        let Some(look) = look else { return Ok(None) };
        let last = look.sessions.iter().map(|session| session.number).max();
        let known = *self.known.get_or_insert(last.unwrap_or(0));
        let foreign = look
            .sessions
            .iter()
            .filter(|session| is_foreign(session, self.started_s, known))
            .map(|session| session.number);
        let done_ns = (self.clocks.monotonic_ns)();
        Ok(Some(HistoryPage { read_ns, done_ns, foreign: foreign.collect(), rows: look.rows }))
    }

    /// What finds out which notebook it runs.
    pub fn locator(&self) -> Locator {
        Locator { process: self.process.clone(), identity: self.identity.clone() }
    }

    /// The notebook is this one from now on.
    pub fn set_notebook(&mut self, notebook: Option<PathBuf>) {
        if self.notebook != notebook {
            self.notebook = notebook;
            self.saved = None;
        }
    }

    /// The cells of the notebook's file, if it was saved since it was last asked for.
    pub fn notebook(&mut self) -> Option<NotebookPage> {
        let path = self.notebook.as_ref()?;
        let _user = Borrowed::take(&self.identity).ok()?;
        let file = open_in_root(&self.process.join("root"), path).ok()?;
        let saved = file.metadata().ok()?.modified().ok()?;
        let saved = saved.duration_since(UNIX_EPOCH).ok()?.as_nanos() as i128;
        if self.saved == Some(saved) {
            return None;
        }
        self.saved = Some(saved);
        let cells = notebook::cells(&read(file, MAX_NOTEBOOK)?)?;
        let since_boot =
            saved - (self.clocks.epoch_ns)() + i128::from((self.clocks.monotonic_ns)());
        Some(NotebookPage { saved_ns: u64::try_from(since_boot).unwrap_or(0), cells })
    }

    /// The text of a file that the process has loaded code from, if it cannot have changed since: it is
    /// older than the process.
    pub fn source(&self, path: &Path) -> Option<String> {
        let _user = Borrowed::take(&self.identity).ok()?;
        let file = open_in_root(&self.process.join("root"), path).ok()?;
        let metadata = file.metadata().ok()?;
        let is_older = metadata.mtime() < self.started_s && metadata.ctime() < self.started_s;
        let text = is_older.then(|| read(file, 4 * MAX_FILE)).flatten()?;
        Some(String::from_utf8_lossy(&text).into_owned())
    }
}

/// A file that is not longer than `most` bytes.
pub(super) fn read(file: File, most: u64) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    file.take(most + 1).read_to_end(&mut bytes).ok()?;
    (bytes.len() as u64 <= most).then_some(bytes)
}

/// Whether a session cannot be of a process that started at a moment. Its own begins within a minute of
/// that, by the clock of a time zone that is not known, but is some quarters of an hour away from ours;
/// or later, after the first look, when the kernel is told to forget everything.
fn is_foreign(session: &Session, started_s: i64, known: u64) -> bool {
    const QUARTER: i64 = 15 * 60;
    const DAY: i64 = 24 * 3600;
    if session.ended {
        return true;
    }
    let Some(start) = seconds(&session.start) else { return true };
    let late = start - started_s;
    if session.number > known {
        return late < -DAY;
    }
    late.abs() > DAY || (late + 2).rem_euclid(QUARTER) > STARTING + 2
}

/// `2026-12-01 17:03:29.123456` in seconds since 1970, as if it were UTC.
fn seconds(text: &str) -> Option<i64> {
    let number = |range: std::ops::Range<usize>| text.get(range)?.parse::<i64>().ok();
    let (year, month, day) = (number(0..4)?, number(5..7)?, number(8..10)?);
    let date = time::Date::from_calendar_date(
        i32::try_from(year).ok()?,
        time::Month::try_from(u8::try_from(month).ok()?).ok()?,
        u8::try_from(day).ok()?,
    );
    let midnight = date.ok()?.midnight().assume_utc().unix_timestamp();
    Some(midnight + number(11..13)? * 3600 + number(14..16)? * 60 + number(17..19)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn session(number: u64, start: &str, ended: bool) -> Session {
        Session { number, start: start.to_owned(), ended }
    }

    #[test]
    fn sessions_of_other_processes() {
        // 2026-12-01 17:03:20 UTC.
        let started = 1_796_144_600;
        let foreign =
            |number, start: &str, ended| is_foreign(&session(number, start, ended), started, 10);
        assert_eq!(seconds("2026-12-01 17:03:20"), Some(started));
        // The same moment in three time zones.
        for start in ["2026-12-01 17:03:21.5", "2026-12-01 22:33:22", "2026-12-01 12:03:23"] {
            assert!(!foreign(10, start, false), "{start}");
            assert!(foreign(10, start, true), "it has ended");
        }
        for start in ["2026-12-01 17:02:00", "2026-12-01 17:10:00", "2026-11-28 17:03:21", "", "x"]
        {
            assert!(foreign(10, start, false), "{start}");
        }
        assert!(!foreign(11, "2026-12-01 19:47:00", false), "begun while it was traced");
    }
}
