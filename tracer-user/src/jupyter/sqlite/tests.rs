//! A database that CPython's sqlite3 has made, and damaged copies of it.

use std::process::Command;

use proptest::prelude::*;

use super::*;

impl ReadAt for Vec<u8> {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> bool {
        let Ok(start) = usize::try_from(offset) else { return false };
        match self.get(start..start.saturating_add(buffer.len())) {
            Some(bytes) => {
                buffer.copy_from_slice(bytes);
                true
            }
            None => false,
        }
    }
}

const MAKE: &str = "
import sqlite3, sys
db = sqlite3.connect(sys.argv[1])
db.execute('PRAGMA page_size = ' + sys.argv[2])
db.execute('CREATE TABLE history (session integer, line integer, source text, source_raw text, PRIMARY KEY (session, line))')
for line in range(1, 3001):
    db.execute('INSERT INTO history VALUES (?, ?, ?, ?)', (-7 if line % 2 else 1 << 40, line, 'x' * (line * 7 % 9000), 'größe %d' % line))
db.commit()
";

fn database(page_size: &str) -> Option<Vec<u8>> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("history.sqlite");
    let made = Command::new("python3").args(["-c", MAKE]).arg(&path).arg(page_size).status();
    if !made.is_ok_and(|status| status.success()) {
        assert!(std::env::var_os("CI").is_none(), "no python3 with sqlite3");
        println!("skipped: no python3 with sqlite3");
        return None;
    }
    Some(std::fs::read(&path).unwrap())
}

#[test]
fn every_row_is_read_from_any_place_on() {
    for page_size in ["512", "4096", "65536"] {
        let Some(bytes) = database(page_size) else { return };
        let mut database = Database::open(&bytes).unwrap();
        let table = database.table("history").unwrap();
        assert_eq!(database.last_id(table), Ok(3000));
        for after in [0, 1, 1234, 2999, 3000] {
            // 512-byte pages need more of them than one look goes through.
            database.budget = usize::MAX;
            let rows = database.rows_after(table, after).unwrap();
            assert_eq!(rows.len() as i64, 3000 - after);
            for (row, id) in rows.iter().zip(after + 1..) {
                let session = if id % 2 == 1 { -7 } else { 1 << 40 };
                let text = "x".repeat(id as usize * 7 % 9000);
                let raw = Value::Text(format!("größe {id}"));
                assert_eq!((row.id, &row.values[0]), (id, &Value::Integer(session)));
                assert_eq!(row.values[1..], [Value::Integer(id), Value::Text(text), raw]);
            }
        }
        assert_eq!(database.table("sessions"), Err(SqliteError::NoTable("sessions")));
    }
}

#[test]
fn what_is_no_database_is_refused() {
    for bytes in [Vec::new(), b"SQLite format 3\0".to_vec(), vec![0; 4096], vec![0xff; 200]] {
        assert!(matches!(Database::open(&bytes), Err(SqliteError::NotSqlite)));
    }
}

/// Pages that lead to each other.
#[test]
fn a_circle_has_an_end() {
    let Some(mut bytes) = database("512") else { return };
    let table = Database::open(&bytes).unwrap().table("history").unwrap();
    let root = (table as usize - 1) * 512;
    bytes[root + 8..root + 12].copy_from_slice(&table.to_be_bytes());
    let mut database = Database::open(&bytes).unwrap();
    assert_eq!(database.last_id(table), Err(SqliteError::Damaged));
    assert!(database.rows_after(table, 2999).is_err());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(8))]

    /// Nothing that is in the file makes it panic or run for long.
    #[test]
    fn damage_is_an_error_or_another_row(seed in any::<u64>()) {
        let Some(bytes) = database("512") else { return Ok(()) };
        let mut state = seed | 1;
        for _ in 0..25 {
            let mut damaged = bytes.clone();
            for _ in 0..64 {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let at = HEADER + (state >> 20) as usize % (damaged.len().min(40_000) - HEADER);
                damaged[at] = (state >> 8) as u8;
            }
            damaged.truncate(damaged.len() - (state >> 60) as usize * 1000);
            let Ok(mut database) = Database::open(&damaged) else { continue };
            if let Ok(table) = database.table("history") {
                let _ = database.last_id(table);
                let _ = database.rows_after(table, 2950);
            }
        }
    }
}
