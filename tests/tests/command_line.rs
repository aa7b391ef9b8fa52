//! The program itself: formats, files, exit codes, and what it says when something is wrong.

use std::{
    fs,
    os::unix::process::CommandExt as _,
    process::{Command, Output, Stdio},
    thread,
    time::Duration,
};

use cudatrace_tests::{child::Talker, cudatrace, sandbox_python, workload};
use serde_json::Value;

fn run(args: &[&str]) -> Output {
    Command::new(cudatrace()).args(args).stdin(Stdio::null()).output().unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// The exit code and what the last line of standard error contains.
fn assert_refused(output: &Output, code: i32, message: &str) {
    let text = stderr(output);
    assert_eq!(output.status.code(), Some(code), "{text}");
    assert!(text.contains(message), "{text}");
    assert!(!text.contains("panicked"), "{text}");
}

/// A process that leaks 4 MB every 20 ms, after a first line.
fn leaking() -> Talker {
    let mut talker = Talker::python(&sandbox_python(), &workload("leak.py"), &[], &[]);
    assert_eq!(talker.line()["ready"], true);
    talker
}

/// Programs of ours that the kernel has.
fn our_programs() -> usize {
    aya::programs::loaded_programs()
        .filter_map(Result::ok)
        .filter(|info| info.name_as_str().is_some_and(|name| name == "torch_report"))
        .count()
}

#[test]
fn wrong_usage_is_2() {
    assert_refused(&run(&[]), 2, "--pid");
    assert_refused(&run(&["--pid", "x"]), 2, "invalid value");
    assert_refused(&run(&["--pid", "1", "--duration", "5"]), 2, "30s");
}

#[test]
fn no_such_process_is_4() {
    assert_refused(&run(&["--pid", "4194304"]), 4, "no process with pid 4194304");
}

#[test]
fn a_process_without_python_and_cuda_is_4() {
    let mut sleeper = Command::new("sleep").arg("30").spawn().unwrap();
    let output = run(&["--pid", &sleeper.id().to_string()]);
    let alive = matches!(sleeper.try_wait(), Ok(None));
    sleeper.kill().unwrap();
    sleeper.wait().unwrap();
    assert_refused(&output, 4, "is not a Python process");
    assert!(alive, "the target is untouched");
}

#[test]
fn a_python_that_can_load_no_cuda_library_is_4() {
    // An interpreter whose import path has no torch, on a machine without a driver.
    let mut python = Command::new("/usr/bin/python3")
        .args(["-c", "import time; time.sleep(30)"])
        .env_clear()
        .spawn()
        .unwrap();
    thread::sleep(Duration::from_millis(300));
    let output = run(&["--pid", &python.id().to_string()]);
    python.kill().unwrap();
    python.wait().unwrap();
    assert_refused(&output, 4, "has no CUDA library loaded");
}

#[test]
fn without_privileges_is_3_and_says_what_to_type() {
    let target = leaking();
    let mut command = Command::new(cudatrace());
    command.args(["--pid", &target.pid().to_string()]).uid(65534).gid(65534);
    let output = command.output().unwrap();
    assert_refused(&output, 3, "run `sudo ");
}

#[test]
fn an_unwritable_output_is_told_before_the_trace() {
    let target = leaking();
    let output = run(&["--pid", &target.pid().to_string(), "-o", "/nonexistent/x.json"]);
    assert_refused(&output, 1, "cannot write to `/nonexistent/x.json`");
}

#[test]
fn every_format_in_one_trace() {
    let target = leaking();
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (json, svg, folded) = (file("r.json"), file("r.svg"), file("r.folded"));
    let pid = target.pid().to_string();
    let output = run(&["--pid", &pid, "--duration", "2s", "-o", &json, "-o", &svg, "-o", &folded]);
    assert!(output.status.success(), "{}", stderr(&output));

    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("leak.py:") && text.contains("in step"), "{text}");
    let report: Value = serde_json::from_str(&fs::read_to_string(&json).unwrap()).unwrap();
    assert_eq!(report["schema"], "cudatrace.report/1");
    let site = &report["processes"][0]["sites"][0];
    assert_eq!(site["level"], "pytorch");
    assert_eq!(site["frames"][0]["function"], "step");
    let folded = fs::read_to_string(&folded).unwrap();
    let line = folded.lines().find(|line| line.contains("step (leak.py:")).unwrap();
    assert!(line.ends_with(&format!(" {}", site["live_bytes"])), "{line} {site}");
    let svg = fs::read_to_string(&svg).unwrap();
    assert!(svg.starts_with("<?xml") && svg.contains("step (leak.py:"));
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 3, "no partial files");
}

#[test]
fn flamegraph_verb_writes_at_ctrl_c() {
    let target = leaking();
    let folder = tempfile::tempdir().unwrap();
    let svg = folder.path().join("leak.svg");
    let mut tracer = Command::new(cudatrace())
        .args(["flamegraph", "--pid", &target.pid().to_string(), "-o"])
        .arg(&svg)
        .spawn()
        .unwrap();
    thread::sleep(Duration::from_secs(2));
    // SAFETY: our own child, which has not been waited for.
    unsafe { libc::kill(tracer.id() as i32, libc::SIGINT) };
    assert!(tracer.wait().unwrap().success(), "Ctrl-C is a normal end");
    assert!(fs::read_to_string(&svg).unwrap().contains("step (leak.py:"));
}

#[test]
fn a_second_tracer_is_refused_and_a_killed_one_leaves_nothing() {
    let mut target = leaking();
    let pid = target.pid().to_string();
    let start = || {
        let tracer = Command::new(cudatrace()).args(["--pid", &pid]).stdout(Stdio::null()).spawn();
        thread::sleep(Duration::from_millis(1500));
        tracer.unwrap()
    };
    let mut first = start();
    assert_eq!(our_programs(), 1);
    assert_refused(
        &run(&["--pid", &pid]),
        1,
        &format!("already traced by cudatrace (pid {})", first.id()),
    );

    first.kill().unwrap();
    first.wait().unwrap();
    thread::sleep(Duration::from_millis(300));
    assert_eq!(our_programs(), 0, "the kernel has dropped our programs");
    assert!(target.is_running(), "the target goes on");

    let output = run(&["--pid", &pid, "--duration", "1s", "--format", "json"]);
    assert!(output.status.success(), "{}", stderr(&output));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["tracer"]["exact"], true);
    assert!(report["tracer"]["events"].as_u64().unwrap() > 0);
}

#[test]
fn the_end_of_the_target_ends_in_its_last_report() {
    let mut target = leaking();
    let pid = target.pid();
    let tracer = Command::new(cudatrace())
        .args(["--pid", &pid.to_string(), "--format", "json"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    thread::sleep(Duration::from_secs(2));
    // SAFETY: our own child, which has not been waited for.
    unsafe { libc::kill(pid as i32, libc::SIGKILL) };
    let output = tracer.wait_with_output().unwrap();
    assert!(output.status.success());
    target.wait();
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let process = &report["processes"][0];
    assert_eq!(process["state"], "exited");
    assert!(process["sites"][0]["live_bytes"].as_u64().unwrap() > 4_000_000, "{process}");
}

#[test]
fn exec_ends_the_trace_and_keeps_what_was_seen() {
    let mut target = Talker::python(&sandbox_python(), &workload("leak.py"), &["--then-exec"], &[]);
    assert_eq!(target.line()["ready"], true);
    let tracer = Command::new(cudatrace())
        .args(["--pid", &target.pid().to_string(), "--format", "json"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    thread::sleep(Duration::from_secs(2));
    target.say("exec");
    let output = tracer.wait_with_output().unwrap();
    assert!(output.status.success());
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let process = &report["processes"][0];
    assert_eq!(process["state"], "replaced");
    assert!(process["sites"][0]["live_bytes"].as_u64().unwrap() > 4_000_000, "{process}");
    assert!(target.is_running(), "the new program goes on");
}

#[test]
fn a_closed_pipe_is_success() {
    let target = leaking();
    let mut tracer = Command::new(cudatrace())
        .args(["--pid", &target.pid().to_string(), "--interval", "200ms"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    drop(tracer.stdout.take());
    assert!(tracer.wait().unwrap().success());
}
