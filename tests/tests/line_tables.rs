//! Line tables against CPython itself: every instruction of many standard modules.

use std::{fs, process::Command};

use cudatrace_tests::{other_pythons, workload};
use serde_json::Value;
use tracer_user::naming::{LineTable, LineTableKind};

/// Compares one interpreter; returns how many instructions were looked at.
fn compare(minor: u8, python: &std::path::Path) -> u64 {
    let folder = tempfile::tempdir().unwrap();
    let dump = folder.path().join("lines.json");
    let status = Command::new(python).arg(workload("line_tables.py")).arg(&dump).status().unwrap();
    assert!(status.success());
    let mut compared = 0;
    for line in fs::read_to_string(&dump).unwrap().lines() {
        let code: Value = serde_json::from_str(line).unwrap();
        let bytes: Vec<u8> = serde_json::from_value(code["table"].clone()).unwrap();
        let table = LineTable {
            kind: LineTableKind::of_minor(minor),
            first_line: code["first_line"].as_i64().unwrap() as i32,
            bytes: &bytes,
        };
        for (index, expected) in code["lines"].as_array().unwrap().iter().enumerate() {
            let found = table.line(2 * index as i32, true).map(u64::from);
            assert_eq!(found, expected.as_u64(), "3.{minor} {} at {}", code["name"], 2 * index);
            compared += 1;
        }
    }
    compared
}

#[test]
fn every_instruction_has_the_line_that_python_gives_it() {
    for (version, python) in other_pythons(8..=14) {
        let minor: u8 = version.trim_start_matches("3.").parse().unwrap();
        let compared = compare(minor, &python);
        println!("{}: {compared} instructions", python.display());
        assert!(compared > 100_000, "{compared}");
    }
}
