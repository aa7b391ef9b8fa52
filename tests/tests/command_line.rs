//! The program itself: formats, files, exit codes, and what it says when something is wrong.

use std::{
    collections::BTreeSet,
    fs,
    io::{BufRead as _, BufReader},
    os::unix::process::CommandExt as _,
    path::Path,
    process::{Command, Output, Stdio},
    thread,
    time::Duration,
};

use aya::{
    maps::loaded_maps,
    programs::{loaded_links, loaded_programs},
};
use cudatrace_tests::{
    child::Talker, cudatrace, other_pythons, sandbox_python, simulated_driver, tracer::attach,
    workload,
};
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

/// Ids of the BPF programs, links and maps that a process holds, as the kernel tells of its
/// descriptors: kind and id.
fn bpf_objects_of(pid: u32) -> BTreeSet<(String, u32)> {
    let folder = fs::read_dir(format!("/proc/{pid}/fdinfo")).unwrap();
    let texts = folder.flatten().filter_map(|entry| fs::read_to_string(entry.path()).ok());
    let lines: Vec<String> =
        texts.flat_map(|text| text.lines().map(str::to_owned).collect::<Vec<_>>()).collect();
    let object = |line: &String| {
        let (kind, id) = line.split_once(":\t")?;
        let kind =
            kind.strip_suffix("_id").filter(|kind| ["prog", "link", "map"].contains(kind))?;
        Some((kind.to_owned(), id.trim().parse().ok()?))
    };
    lines.iter().filter_map(object).collect()
}

/// Every program, link and map that the kernel has.
fn bpf_objects() -> BTreeSet<(String, u32)> {
    let programs = loaded_programs().flatten().map(|info| ("prog".to_owned(), info.id()));
    let links = loaded_links().flatten().map(|info| ("link".to_owned(), info.id()));
    let maps = loaded_maps().flatten().map(|info| ("map".to_owned(), info.id()));
    programs.chain(links).chain(maps).collect()
}

#[test]
fn wrong_usage_is_2() {
    assert_refused(&run(&[]), 2, "--pid");
    assert_refused(&run(&["--pid", "x"]), 2, "invalid value");
    assert_refused(&run(&["--pid", "1", "--duration", "5"]), 2, "write `5s`");
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
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("missing/x.json").display().to_string();
    let output = run(&["--pid", &target.pid().to_string(), "-o", &path]);
    assert_refused(&output, 1, &format!("cannot write to `{path}`"));
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
    let tracer = attach(
        Command::new(cudatrace())
            .args(["flamegraph", "--pid", &target.pid().to_string(), "-o"])
            .arg(&svg),
    );
    thread::sleep(Duration::from_secs(1));
    // SAFETY: our own child, which has not been waited for.
    unsafe { libc::kill(tracer.child.id() as i32, libc::SIGINT) };
    assert!(tracer.finish().status.success(), "Ctrl-C is a normal end");
    assert!(fs::read_to_string(&svg).unwrap().contains("step (leak.py:"));
}

/// Every `bpf(BPF_MAP_CREATE)` fails as on a kernel that does not know the kind of map.
fn without_ring_buffer(command: &mut Command) -> &mut Command {
    const fn op(code: u32, k: u32, jt: u8, jf: u8) -> libc::sock_filter {
        libc::sock_filter { code: code as u16, jt, jf, k }
    }
    const LOAD: u32 = libc::BPF_LD | libc::BPF_W | libc::BPF_ABS;
    const EQUAL: u32 = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
    const RETURN: u32 = libc::BPF_RET | libc::BPF_K;
    let install = || {
        // struct seccomp_data: the call's number at 0, its first argument at 16.
        let mut filter = [
            op(LOAD, 0, 0, 0),
            op(EQUAL, libc::SYS_bpf as u32, 0, 3),
            op(LOAD, 16, 0, 0),
            op(EQUAL, 0, 0, 1),
            op(RETURN, libc::SECCOMP_RET_ERRNO | libc::EINVAL as u32, 0, 0),
            op(RETURN, libc::SECCOMP_RET_ALLOW, 0, 0),
        ];
        let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
        // SAFETY: only system calls, on a program that is valid until the call returns.
        let failed = unsafe {
            libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0
                || libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program)
                    != 0
        };
        if failed { Err(std::io::Error::last_os_error()) } else { Ok(()) }
    };
    // SAFETY: the closure only makes system calls.
    unsafe { command.pre_exec(install) }
}

#[test]
fn a_kernel_without_ring_buffer_is_3() {
    let target = leaking();
    let mut command = Command::new(cudatrace());
    command.args(["--pid", &target.pid().to_string()]);
    let output = without_ring_buffer(&mut command).output().unwrap();
    assert_refused(&output, 3, "has no BPF ring buffer; cudatrace needs Linux 5.15");
}

/// A version whose structures are not known: traced, but without names, and said so.
#[test]
fn an_unknown_python_is_traced_without_python_frames() {
    let Some((_, python)) = other_pythons(7..=7).pop() else {
        println!("skipped: no CPython 3.7 on this machine");
        return;
    };
    let driver = simulated_driver();
    let script = workload("allocations.py");
    let mut target = Talker::python(&python, &script, &[driver.to_str().unwrap()], &[]);
    assert_eq!(target.line()["ready"], true);
    let tracer = attach(
        Command::new(cudatrace())
            .args(["--pid", &target.pid().to_string(), "--duration", "3s", "--format", "json"])
            .stdout(Stdio::piped()),
    );
    target.say("go");
    let output = tracer.finish();
    assert!(output.status.success());
    assert!(stderr(&output).contains("CPython 3.7 is not supported"), "{}", stderr(&output));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let site = &report["processes"][0]["sites"][0];
    assert_eq!(site["frames"], Value::Array(Vec::new()));
    assert_eq!(site["total_blocks"], 10, "{site}");
    target.line();
}

#[test]
fn a_second_tracer_is_refused() {
    let target = leaking();
    let pid = target.pid().to_string();
    let mut first = attach(Command::new(cudatrace()).args(["--pid", &pid]).stdout(Stdio::null()));
    let output = run(&["--pid", &pid]);
    first.child.kill().unwrap();
    let message = format!("already traced by cudatrace (pid {})", first.child.id());
    first.finish();
    assert_refused(&output, 1, &message);
}

#[test]
fn a_leak_can_be_a_failure() {
    let mut target = leaking();
    let pid = target.pid().to_string();
    let known = tempfile::NamedTempFile::new().unwrap();
    let file = known.path().to_str().unwrap();
    let trace = |more: &[&str]| {
        let arguments = ["--pid", &pid, "--duration", "3s", "--fail-on-leak"];
        run(&[&arguments, more].concat())
    };

    let output = trace(&[]);
    assert_refused(&output, 5, "something grows");
    assert!(stderr(&output).contains("leak.py:18 holds "), "{}", stderr(&output));
    let report = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(report.contains("GROWING") && report.contains("losses.append"), "{report}");

    fs::write(known.path(), "# as it is meant to be\nleak:leak.py:18\n").unwrap();
    let output = trace(&["--suppressions", file]);
    assert!(output.status.success(), "{}", stderr(&output));

    fs::write(known.path(), "leak:leak.py until:2026-01-01\n").unwrap();
    let output = trace(&["--suppressions", file]);
    assert_refused(&output, 5, "the suppression `leak.py` has expired");

    fs::write(known.path(), "losses\n").unwrap();
    assert_refused(&trace(&["--suppressions", file]), 2, "line 1: it does not begin with `leak:`");
    assert_refused(&trace(&["--suppressions", "/nowhere"]), 1, "cannot read the suppressions");
    assert_refused(&run(&["--pid", &pid, "--suppressions", file]), 2, "--fail-on-leak");
    target.kill();
}

#[test]
fn two_reports_are_compared() {
    let folder = tempfile::tempdir().unwrap();
    let report = |name: &str, target: &Talker| {
        let file = folder.path().join(name).to_str().unwrap().to_owned();
        let pid = target.pid().to_string();
        let output = run(&["--pid", &pid, "--duration", "2s", "-o", &file]);
        assert!(output.status.success(), "{}", stderr(&output));
        file
    };
    let mut target = leaking();
    let before = report("before.json", &target);
    target.kill();
    let mut other = Talker::python(&sandbox_python(), &workload("pytorch_steps.py"), &[], &[]);
    assert_eq!(other.line()["ready"], true);
    let after = report("after.json", &other);
    other.kill();

    let output = run(&["diff", &before, &after]);
    assert!(output.status.success(), "{}", stderr(&output));
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(text.contains("leak.py:18 in step  grows no more"), "{text}");
    let output = run(&["diff", &before, &after, "--json"]);
    let found: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(found["lines"][0]["change"], "gone");
    assert!(found["lines"][0]["before_bytes"].as_u64().unwrap() > 1 << 20);
    assert!(
        String::from_utf8_lossy(&run(&["diff", &before, &before]).stdout).contains("every line")
    );
    fs::write(&after, "{}").unwrap();
    assert_refused(&run(&["diff", &before, &after]), 1, "it is no report in JSON");
    assert_refused(&run(&["diff", &before, "/nowhere"]), 1, "cannot read `/nowhere`");
}

/// `kill -9` of the tracer while four threads allocate as fast as they can.
#[test]
fn a_killed_tracer_leaves_nothing_behind() {
    let args = ["--allocs", "100000000", "--quiet-points", "1"];
    let mut target = Talker::python(
        &sandbox_python(),
        &workload("random_allocs.py"),
        &args,
        &[("CUDASIM_DEVICES", "2"), ("CUDASIM_MEMORY", "64G")],
    );
    assert_eq!(target.line()["ready"], true);
    thread::sleep(Duration::from_secs(2));
    let pid = target.pid().to_string();
    let mut tracer = attach(Command::new(cudatrace()).args(["--pid", &pid]).stdout(Stdio::null()));
    let ours = bpf_objects_of(tracer.child.id());
    for kind in ["prog", "link", "map"] {
        assert!(ours.iter().any(|(found, _)| found == kind), "no {kind} in {ours:?}");
    }
    assert!(ours.is_subset(&bpf_objects()));
    tracer.child.kill().unwrap();
    tracer.finish();
    // The kernel frees programs and maps after a grace period. Whoever lists maps just then, when the array of
    // programs is being emptied, makes it begin that anew, and Linux 6.18 then forgets a reference: so not
    // at once (docs/kernels.md).
    thread::sleep(Duration::from_secs(1));
    for _ in 0..300 {
        if bpf_objects().is_disjoint(&ours) {
            break;
        }
        thread::sleep(Duration::from_millis(100));
    }
    let all = bpf_objects();
    let left: Vec<_> = all.intersection(&ours).collect();
    assert!(left.is_empty(), "the kernel has not dropped {left:?}");
    assert!(target.is_running(), "the target goes on");

    let output = run(&["--pid", &pid, "--duration", "1s", "--format", "json"]);
    assert!(output.status.success(), "{}", stderr(&output));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    // Four threads at full speed may be faster than a tracer that has to share two cores with them.
    let tracer = &report["tracer"];
    assert!(tracer["exact"] == true || tracer["dropped"].as_u64() > Some(0), "{tracer}");
    assert_eq!(tracer["mismatches"], 0);
    assert!(tracer["events"].as_u64().unwrap() > 10_000);
    assert!(target.is_running());
    target.kill();
}

/// Targets that end or replace themselves at any moment of attaching.
#[test]
fn a_target_may_vanish_at_any_moment() {
    for delay in 0..12u64 {
        let script = "import time; time.sleep(0.3)";
        let path = simulated_driver();
        let load = format!("import ctypes; ctypes.CDLL({:?}); {script}", path.to_str().unwrap());
        let then = if delay % 2 == 0 {
            ""
        } else {
            "; import os; os.execv('/bin/sleep', ['sleep', '0.2'])"
        };
        let mut python = Command::new(sandbox_python()).arg("-c").arg(load + then).spawn().unwrap();
        thread::sleep(Duration::from_millis(200 + 15 * delay));
        let output = run(&["--pid", &python.id().to_string(), "--duration", "2s"]);
        python.wait().unwrap();
        let text = stderr(&output);
        assert!(matches!(output.status.code(), Some(0 | 4)), "{:?} {text}", output.status);
        assert!(!text.contains("panicked"), "{text}");
    }
}

#[test]
fn the_end_of_the_target_ends_in_its_last_report() {
    let mut target = leaking();
    let pid = target.pid();
    let tracer = attach(
        Command::new(cudatrace())
            .args(["--pid", &pid.to_string(), "--format", "json"])
            .stdout(Stdio::piped()),
    );
    thread::sleep(Duration::from_secs(1));
    // SAFETY: our own child, which has not been waited for.
    unsafe { libc::kill(pid as i32, libc::SIGKILL) };
    let output = tracer.finish();
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
    let tracer = attach(
        Command::new(cudatrace())
            .args(["--pid", &target.pid().to_string(), "--format", "json"])
            .stdout(Stdio::piped()),
    );
    thread::sleep(Duration::from_secs(1));
    target.say("exec");
    let output = tracer.finish();
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

/// A target that does what it can to be in the way: names that are no text, a library mapped as data,
/// files that are no files.
#[test]
fn a_hostile_target_is_traced_all_the_same() {
    let mut target =
        Talker::python(&sandbox_python(), &workload("hostile.py"), &["\u{1b}[2Jarg"], &[]);
    assert_eq!(target.line()["ready"], true);
    let output = run(&["--pid", &target.pid().to_string(), "--duration", "1s"]);
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(text.contains("CPython 3.") && text.contains("hostile.py"), "{text}");
    assert!(!text.contains('\u{1b}'), "{text}");
}

/// What would be traced is told, with the place of every probe.
#[test]
fn doctor_tells_what_would_be_traced() {
    let mut python = Command::new(sandbox_python())
        .args(["-c", "import time; print(flush=True); time.sleep(60)"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    BufReader::new(python.stdout.take().unwrap()).read_line(&mut String::new()).unwrap();
    let pid = python.id().to_string();
    let output = run(&["doctor", "--pid", &pid, "--json"]);
    let text = run(&["doctor", "--pid", &pid, "--all"]);
    python.kill().unwrap();
    python.wait().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["schema"], "cudatrace.doctor/1");
    assert!(report["machine"].as_array().unwrap().iter().all(|check| check["state"] == "ok"));
    assert_eq!(report["process"]["counted_at"], "driver");
    let libraries = report["process"]["libraries"].as_array().unwrap();
    let driver = libraries
        .iter()
        .find(|library| library["path"].as_str().unwrap().ends_with("libcuda.so.1"))
        .unwrap();
    assert_eq!(driver["mapped"], false);
    let probe = &driver["probes"][0];
    assert_eq!(probe["symbol"], "cuMemAlloc_v2");
    assert!(probe["offset"].as_u64().unwrap() > 0);
    let text = String::from_utf8(text.stdout).unwrap();
    assert!(text.contains("cuMemAlloc_v2") && text.contains("CPython 3."), "{text}");
}

#[test]
fn doctor_tells_of_the_machine_also_where_a_process_cannot_be_traced() {
    let output = run(&["doctor", "--pid", "4194304"]);
    assert_refused(&output, 4, "no process with pid 4194304");
    assert!(String::from_utf8_lossy(&output.stdout).contains("privileges    ok"));
}

/// What `nvidia-smi` shows is in the report, and what of it nobody allocated by a call.
#[test]
fn the_number_of_nvidia_smi_is_explained() {
    let processes = tempfile::tempdir().unwrap();
    let library = simulated_driver();
    let environment =
        [("CUDASIM_PROCESSES", processes.path()), ("LD_LIBRARY_PATH", library.parent().unwrap())];
    let mut python = Command::new(sandbox_python())
        .args([
            "-c",
            "import torch; x = torch.empty(50 << 20, dtype=torch.uint8, device='cuda')\n\
                      print(flush=True); input()",
        ])
        .envs(environment)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    BufReader::new(python.stdout.take().unwrap()).read_line(&mut String::new()).unwrap();
    let pid = python.id().to_string();
    let traced = |environment: &[(&str, &Path)]| -> Value {
        let output = Command::new(cudatrace())
            .args(["--pid", &pid, "--duration", "300ms", "--format", "json"])
            .envs(environment.iter().copied())
            .output()
            .unwrap();
        serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{}", stderr(&output)))
    };
    let with = traced(&environment);
    let without = traced(&[]);
    python.kill().unwrap();
    python.wait().unwrap();
    let process = &with["processes"][0];
    // Nothing was allocated since attach, so the block is part of what is not known.
    assert_eq!(process["gpus"][0]["used_bytes"], (256 + 50) << 20);
    assert_eq!(process["gpus"][0]["name"], "CUDA simulator 0");
    assert_eq!(process["residual_bytes"], (256 + 50) << 20);
    assert_eq!(without["processes"][0]["gpus"], serde_json::json!([]));
    assert_eq!(without["processes"][0]["residual_bytes"], Value::Null);
}
