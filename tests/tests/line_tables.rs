//! Line tables against CPython itself: every instruction of many standard modules, and the lines of
//! running frames. Needs no root and no sandbox, only the interpreters.

use std::{
    collections::BTreeSet,
    fs::File,
    io::{BufRead as _, BufReader},
    path::{Path, PathBuf},
    process::Command,
};

use cudatrace_tests::{made_pythons, other_pythons, workload};
use serde::Deserialize;
use tracer_user::naming::{LineTable, LineTableKind};

/// A code object as `line_tables.py` writes it.
#[derive(Deserialize)]
struct Code {
    name: String,
    /// `static` (every instruction, by `co_lines` or `findlinestarts`) or `live` (`f_lineno`).
    kind: String,
    first_line: i32,
    table: Vec<u8>,
    at: Vec<(i32, Option<u32>)>,
}

/// Instructions that were looked at.
#[derive(Default)]
struct Compared {
    instructions: u64,
    without_line: u64,
    running: u64,
    not_begun: u64,
}

/// Compares one interpreter.
fn compare(minor: u8, python: &Path) -> Compared {
    let folder = tempfile::tempdir().unwrap();
    let dump = folder.path().join("lines.json");
    let status = Command::new(python).arg(workload("line_tables.py")).arg(&dump).status().unwrap();
    assert!(status.success());
    let mut compared = Compared::default();
    for line in BufReader::new(File::open(&dump).unwrap()).lines() {
        let code: Code = serde_json::from_str(&line.unwrap()).unwrap();
        let table = LineTable {
            kind: LineTableKind::of_minor(minor),
            first_line: code.first_line,
            bytes: &code.table,
        };
        for (offset, expected) in code.at {
            let found = table.line(offset, true);
            assert_eq!(found, expected, "3.{minor} {} {} at {offset}", code.kind, code.name);
            compared.instructions += 1;
            compared.without_line += u64::from(expected.is_none());
            compared.running += u64::from(code.kind == "live");
            compared.not_begun += u64::from(offset < 0);
        }
    }
    compared
}

/// The `x` of 3.x that an interpreter says it is.
fn minor_of(python: &Path) -> u8 {
    let script = "import sys; print(sys.version_info[1])";
    let output = Command::new(python).args(["-c", script]).output().unwrap();
    String::from_utf8(output.stdout).unwrap().trim().parse().unwrap()
}

#[test]
fn every_instruction_has_the_line_that_python_gives_it() {
    let machines = other_pythons(8..=15).into_iter().map(|(_, python)| (minor_of(&python), python));
    let machines: Vec<(u8, PathBuf)> = machines.collect();
    let mut minors: BTreeSet<u8> = machines.iter().map(|(minor, _)| *minor).collect();
    // A version's tables are the same in all its builds.
    let made = made_pythons().into_iter().map(|python| (minor_of(&python), python));
    let made: Vec<(u8, PathBuf)> = made.filter(|(minor, _)| minors.insert(*minor)).collect();
    for (minor, python) in machines.into_iter().chain(made) {
        let compared = compare(minor, &python);
        println!(
            "{}: {} instructions equal, {} of them without line, {} of running frames, \
             {} before the first instruction",
            python.display(),
            compared.instructions,
            compared.without_line,
            compared.running,
            compared.not_begun,
        );
        assert!(compared.instructions > 100_000 && compared.running > 100);
        // Up to 3.9 every instruction has a line; from 3.11 on every frame that can be seen has begun.
        assert_eq!(compared.without_line > 0, minor >= 10);
        assert_eq!(compared.not_begun > 0, minor <= 10);
    }
    for minor in (8..=15).filter(|minor| !minors.contains(minor)) {
        assert!(std::env::var_os("CI").is_none(), "no CPython 3.{minor}");
        println!("skipped: no CPython 3.{minor} below PYENV_ROOT, ~/.pyenv or /usr/bin");
    }
}
