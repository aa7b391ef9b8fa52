//! IPython's history: the database that a kernel has open, read as the kernel sees it (whatever folder,
//! profile or container that is in), without a lock and without a change.

use std::{
    fs::{self, File},
    os::{fd::AsRawFd as _, unix::fs::FileExt as _},
    path::{Path, PathBuf},
};

use super::sqlite::{Database, ReadAt, Row, SqliteError};
use crate::naming::HistoryRow;

/// Open files of a process that are looked at.
const MAX_FILES: usize = 4096;

/// Rows of the first look: what was run before the tracer came.
const FIRST_ROWS: i64 = 8_000;

/// Sessions that are looked at, the last ones.
const SESSIONS: i64 = 1000;

/// A database that was found.
pub struct History {
    file: File,
    /// As the process sees it.
    path: PathBuf,
    /// Number of the last transaction that was read, and the last row.
    read: Option<(u32, i64)>,
}

/// A session of IPython.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Session {
    /// Its number.
    pub number: u64,
    /// When it began, in the kernel's own time zone, as IPython writes it.
    pub start: String,
    /// Whether it has ended.
    pub ended: bool,
}

/// What a look found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Look {
    /// Rows that were not there at the look before.
    pub rows: Vec<HistoryRow>,
    /// The last sessions.
    pub sessions: Vec<Session>,
}

impl ReadAt for File {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> bool {
        self.read_exact_at(buffer, offset).is_ok()
    }
}

impl History {
    /// The history that a process has open, given its folder in the process file system.
    pub fn find(process: &Path) -> Option<Self> {
        let entries = fs::read_dir(process.join("fd")).ok()?;
        let mut links: Vec<PathBuf> =
            entries.take(MAX_FILES).flatten().map(|entry| entry.path()).collect();
        links.sort();
        links.iter().find_map(|link| Self::open(link))
    }

    /// The database behind an open file, if it is one with a history.
    fn open(link: &Path) -> Option<Self> {
        // A device or a pipe may do anything when it is opened.
        let is_file = |metadata: fs::Metadata| metadata.is_file() && metadata.len() > 0;
        let path = fs::read_link(link).ok()?;
        let looks_right = path.extension().is_some_and(|end| end == "sqlite" || end == "db");
        if !looks_right || !fs::metadata(link).is_ok_and(is_file) {
            return None;
        }
        let file = File::open(link).ok()?;
        let history = Self { file, path, read: None };
        let mut database = Database::open(&history.file).ok()?;
        (database.table("history").is_ok() && database.table("sessions").is_ok()).then_some(history)
    }

    /// Where it is, as the process sees it.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What is new. `None` while somebody writes: nothing is certain then.
    ///
    /// # Errors
    ///
    /// [`SqliteError`] when it cannot be read.
    pub fn look(&mut self) -> Result<Option<Look>, SqliteError> {
        if is_being_written(&self.file) {
            return Ok(None);
        }
        let mut database = Database::open(&self.file)?;
        let change = database.change();
        if self.read.is_some_and(|(read, _)| read == change) {
            return Ok(Some(Look::default()));
        }
        let history = database.table("history")?;
        let last = database.last_id(history)?;
        let after = self.read.map_or(last.saturating_sub(FIRST_ROWS), |(_, row)| row);
        let rows = last_rows(&self.file, history, after, last)?;
        let sessions = database.table("sessions")?;
        let first = database.last_id(sessions)?.saturating_sub(SESSIONS);
        let sessions = database.rows_after(sessions, first)?;
        // What was written meanwhile may be there in part.
        let again = Database::open(&self.file)?.change();
        if again != change || is_being_written(&self.file) {
            return Ok(None);
        }
        self.read = Some((change, last));
        Ok(Some(Look {
            rows: rows.iter().filter_map(row).collect(),
            sessions: sessions.iter().map(session).collect(),
        }))
    }
}

/// Rows after one of them; of more than one look may read, the last ones.
fn last_rows(file: &File, table: u32, after: i64, last: i64) -> Result<Vec<Row>, SqliteError> {
    let mut result = Err(SqliteError::TooLarge);
    for most in [FIRST_ROWS, FIRST_ROWS / 10, FIRST_ROWS / 100, FIRST_ROWS / 1000] {
        result = Database::open(file)?.rows_after(table, after.max(last.saturating_sub(most)));
        if result != Err(SqliteError::TooLarge) {
            break;
        }
    }
    result
}

/// `(session, line, source, source_raw)`, as IPython makes the table (`IPython/core/history.py`).
fn row(row: &Row) -> Option<HistoryRow> {
    let [session, line, source, raw, ..] = row.values.as_slice() else { return None };
    Some(HistoryRow {
        session: u64::try_from(session.integer()?).ok()?,
        count: u32::try_from(line.integer()?).ok()?,
        transformed: source.text()?.to_owned(),
        raw: raw.text()?.to_owned(),
    })
}

/// `(session, start, end, …)`, of which the first is the id of the row.
fn session(row: &Row) -> Session {
    let text = |index: usize| row.values.get(index).and_then(|value| value.text());
    Session {
        number: row.id as u64,
        start: text(1).unwrap_or_default().to_owned(),
        ended: text(2).is_some(),
    }
}

/// Whether somebody changes pages of the file: SQLite locks these bytes then
/// (<https://www.sqlite.org/lockingv3.html>). Only asked for, never taken.
fn is_being_written(file: &File) -> bool {
    const PENDING: i64 = 0x4000_0000;
    const SHARED: i64 = PENDING + 2;
    const SHARED_SIZE: i64 = 510;
    // SAFETY: all zeros is a lock of no process.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = libc::F_RDLCK as libc::c_short;
    lock.l_whence = libc::SEEK_SET as libc::c_short;
    lock.l_start = SHARED;
    lock.l_len = SHARED_SIZE;
    // SAFETY: the descriptor is open, and the lock is ours to be written to.
    let asked = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GETLK, &raw mut lock) };
    // A file system without locks: SQLite relies on them, so nobody writes.
    asked == 0 && lock.l_type != libc::F_UNLCK as libc::c_short
}

/// The error of a look, in words.
pub fn describe(path: &Path, error: &SqliteError) -> String {
    format!("IPython's history `{}` is not used: {error}", path.display())
}

#[cfg(test)]
mod tests {
    use std::{
        io::{BufRead as _, BufReader, Write as _},
        process::{Command, Stdio},
    };

    use super::*;

    /// Makes tables as IPython 9 does, then writes a cell for each line that it reads; `lock` locks the
    /// database, `unlock` writes that down.
    const WRITER: &str = "
import sqlite3, sys
db = sqlite3.connect(sys.argv[1], isolation_level=None)
db.execute('CREATE TABLE sessions (session integer primary key autoincrement, start timestamp, end timestamp, num_cmds integer, remark text)')
db.execute('CREATE TABLE history (session integer, line integer, source text, source_raw text, PRIMARY KEY (session, line))')
db.execute('INSERT INTO sessions VALUES (NULL, ?, NULL, NULL, ?)', ('2026-12-01 17:03:29.123456', ''))
print('ready', flush=True)
for line, text in enumerate(sys.stdin, 1):
    text = text.strip()
    if text == 'lock':
        db.execute('BEGIN EXCLUSIVE')
    elif text == 'unlock':
        db.execute('COMMIT')
    else:
        db.execute('INSERT INTO history VALUES (1, ?, ?, ?)', (line, text.upper(), text))
    print('done', flush=True)
";

    #[test]
    fn what_is_new_is_read_and_nothing_is_touched() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("history.sqlite");
        let spawned = Command::new("python3")
            .args(["-c", WRITER])
            .arg(&path)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn();
        let Ok(mut writer) = spawned else {
            assert!(std::env::var_os("CI").is_none(), "no python3");
            println!("skipped: no python3");
            return;
        };
        let mut input = writer.stdin.take().unwrap();
        let mut output = BufReader::new(writer.stdout.take().unwrap()).lines();
        assert_eq!(output.next().unwrap().unwrap(), "ready");
        let process = PathBuf::from(format!("/proc/{}", writer.id()));
        let mut history = History::find(&process).unwrap();
        assert_eq!(history.path(), path);
        let mut write = |text: &str| {
            writeln!(input, "{text}").unwrap();
            output.next().unwrap().unwrap();
        };
        let mut texts = || {
            history.look().unwrap().map(|look| {
                look.rows
                    .into_iter()
                    .map(|row| (row.count, row.transformed, row.raw))
                    .collect::<Vec<_>>()
            })
        };
        assert_eq!(texts(), Some(Vec::new()));
        write("a");
        write("b");
        let row =
            |count, transformed: &str, raw: &str| (count, transformed.to_owned(), raw.to_owned());
        assert_eq!(texts(), Some(vec![row(1, "A", "a"), row(2, "B", "b")]));
        assert_eq!(texts(), Some(Vec::new()));
        write("lock");
        assert_eq!(texts(), None, "somebody writes");
        write("unlock");
        write("c");
        let before = fs::metadata(&path).unwrap();
        assert_eq!(texts(), Some(vec![row(5, "C", "c")]));
        let after = fs::metadata(&path).unwrap();
        assert_eq!(before.modified().unwrap(), after.modified().unwrap());
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
        drop(input);
        writer.wait().unwrap();
    }
}
