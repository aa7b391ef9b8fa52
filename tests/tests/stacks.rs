//! Captured stacks against `sys._getframe()`.

use std::{collections::BTreeMap, path::Path};

use cudatrace_tests::{
    child::Talker,
    other_pythons, simulated_driver,
    trace::{Trace, only_process},
    workload,
};
use serde_json::Value;
use tracer_user::bpf::LoadOptions;

/// Name, qualified name (from 3.11 on), file, line; innermost first.
type Stack = Vec<(String, Option<String>, String, u64)>;

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_else(|| panic!("no text: {value}")).to_owned()
}

/// What Python says: bytes by stack.
fn expected(answer: &Value) -> BTreeMap<Stack, u64> {
    let stacks = answer["stacks"].as_array().unwrap();
    stacks
        .iter()
        .map(|stack| {
            let frames = stack["frames"].as_array().unwrap().iter().map(|frame| {
                let qualified = frame[1].as_str().map(str::to_owned);
                (text(&frame[0]), qualified, text(&frame[2]), frame[3].as_u64().unwrap())
            });
            (frames.collect(), stack["bytes"].as_u64().unwrap())
        })
        .collect()
}

/// What was captured: bytes by stack.
fn captured(trace: &mut Trace) -> BTreeMap<Stack, u64> {
    let snapshot = trace.snapshot();
    assert_eq!(snapshot.tracer.dropped, 0);
    assert_eq!(snapshot.tracer.truncated_stacks, 0);
    let sites = &only_process(&snapshot).sites;
    sites
        .iter()
        .map(|site| {
            assert_eq!(site.frames_note, None);
            let frames = site.frames.iter().map(|frame| {
                let line = u64::from(frame.line.unwrap_or(0));
                (frame.function.clone(), frame.qualified_name.clone(), frame.file.clone(), line)
            });
            (frames.collect(), site.total_bytes)
        })
        .collect()
}

fn check(python: &Path) {
    let driver = simulated_driver();
    let driver = driver.to_str().unwrap();
    let mut talker = Talker::python(python, &workload("stacks.py"), &[driver], &[]);
    assert_eq!(talker.line()["ready"], true);
    let mut trace = Trace::attach(talker.pid(), &LoadOptions::default());
    talker.say("go");
    let answer = trace.line(&mut talker);
    let (expected, captured) = (expected(&answer), captured(&mut trace));
    let mut wrong = 0;
    for (stack, bytes) in &expected {
        if captured.get(stack) != Some(bytes) {
            wrong += 1;
            eprintln!("not captured, or other bytes than {bytes}: {stack:#?}");
        }
    }
    for stack in captured.keys().filter(|stack| !expected.contains_key(*stack)) {
        wrong += 1;
        eprintln!("captured, but Python knows no such stack: {stack:#?}");
    }
    assert_eq!(wrong, 0, "of {} stacks of {}", expected.len(), python.display());
    assert!(expected.len() > 400, "the scenario has lost its stacks");
    println!("{}: {} stacks, all equal", python.display(), expected.len());
    talker.say("end");
    assert!(talker.wait().success());
}

/// Every CPython that this machine has.
#[test]
fn every_captured_stack_is_the_one_that_python_sees() {
    let pythons = other_pythons(8..=14);
    let minors: Vec<&str> = pythons.iter().map(|(minor, _)| minor.as_str()).collect();
    for (_, python) in &pythons {
        check(python);
    }
    for required in ["3.10", "3.11", "3.12", "3.13"] {
        if !minors.contains(&required) {
            assert!(std::env::var_os("CI").is_none(), "no CPython {required}");
            println!("skipped: no CPython {required} on this machine");
        }
    }
}
