//! Other tools on the same function, and one for host memory.

use std::{
    fs,
    process::{Child, Command, Stdio},
    thread::sleep,
    time::{Duration, Instant},
};

use cudatrace_tests::{
    child::Talker,
    sandbox_python,
    trace::{Trace, number},
    workload,
};
use serde_json::json;
use tracer_user::bpf::LoadOptions;

use crate::{
    hook::{self, HOOK, Target, USUAL_DEPTH},
    measure::{Measure, median},
};

const ROUNDS: usize = 5;
const REPEATS: usize = 5;
/// How long a tool may take to begin.
const PATIENCE: Duration = Duration::from_secs(30);

/// Takes them.
pub fn measure() -> Vec<Measure> {
    let mut measures = at_endbr();
    measures.push(memleak());
    measures.extend(memray());
    measures
}

/// A function that begins with `endbr64`, which the kernel has to single-step: a tool that probes its entry
/// pays for that; the tracer probes the instruction behind it.
fn at_endbr() -> Vec<Measure> {
    const NAME: &str = "bpftrace_entry";
    const OURS: &str = "event_at_endbr";
    let mut plain = Target::start(&[]);
    let mut target = Target::start(&["-DENDBR"]);
    let (mut empty, mut counted, mut traced) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let probe = plain.attach_empty();
        empty.extend(runs(&mut plain, None));
        drop(probe);
        let mut trace = Trace::attach(target.talker.pid(), &LoadOptions::default());
        traced.extend(runs(&mut target, Some(&mut trace)));
        drop(trace);
        match bpftrace(&target) {
            Ok(mut tool) => {
                counted.extend(runs(&mut target, None));
                let _ = tool.kill();
                let _ = tool.wait();
            }
            Err(error) => {
                let ours = Measure::of_rounds(OURS, &traced, &empty);
                return vec![ours, Measure::missing(NAME, "ns", error)];
            }
        }
    }
    vec![
        Measure::of_rounds(OURS, &traced, &empty),
        Measure::of_rounds(NAME, &counted, &empty).noting("counts only; no stack, no record"),
    ]
}

fn runs(target: &mut Target, mut trace: Option<&mut Trace>) -> Option<f64> {
    let runs: Vec<f64> =
        (0..REPEATS).map(|_| target.run(USUAL_DEPTH, trace.as_deref_mut()).0).collect();
    median(&runs)
}

/// Starts it, and waits until calls take longer.
fn bpftrace(target: &Target) -> Result<Child, String> {
    let program = format!("uprobe:{}:{HOOK} {{ @ = count(); }}", target.library.display());
    let log = target.library.with_file_name("bpftrace");
    let output = fs::File::create(&log).map_err(|error| error.to_string())?;
    let mut tool = Command::new("bpftrace")
        .args(["-e", &program, "-p", &target.talker.pid().to_string()])
        .stdin(Stdio::null())
        .stdout(output.try_clone().map_err(|error| error.to_string())?)
        .stderr(output)
        .spawn()
        .map_err(|error| format!("bpftrace cannot be started: {error}"))?;
    let start = Instant::now();
    loop {
        let said = fs::read_to_string(&log).unwrap_or_default();
        if said.contains("Attaching") {
            // It says so before it does it.
            sleep(Duration::from_secs(2));
            return Ok(tool);
        }
        if start.elapsed() > PATIENCE || !matches!(tool.try_wait(), Ok(None)) {
            let _ = tool.kill();
            let _ = tool.wait();
            return Err(format!("bpftrace did not attach: {}", said.trim()));
        }
        sleep(Duration::from_millis(50));
    }
}

/// bcc's memleak knows the C library's functions only: a `malloc` and its `free`.
fn memleak() -> Measure {
    const NAME: &str = "memleak";
    let mut target = Target::start(&[]);
    let tool = Command::new("memleak-bpfcc")
        .args(["-p", &target.talker.pid().to_string(), "3600"])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn();
    let mut tool = match tool {
        Ok(tool) => tool,
        Err(error) => {
            let why = format!("memleak-bpfcc cannot be started: {error}");
            return Measure::missing(NAME, "ns", why);
        }
    };
    sleep(PATIENCE / 3);
    if !matches!(tool.try_wait(), Ok(None)) {
        let output = tool.wait_with_output();
        let errors = output.map_or(String::new(), |o| String::from_utf8_lossy(&o.stderr).into());
        let why = errors.lines().find(|line| line.starts_with("Unable") || line.contains("rror"));
        let why = why.unwrap_or("it ended at once").to_owned();
        return Measure::missing(NAME, "ns", format!("memleak-bpfcc does not run here: {why}"));
    }
    let watched = malloc_pairs(&mut target.talker);
    let _ = tool.kill();
    let _ = tool.wait();
    Measure::of(NAME, &watched, "ns").noting("malloc and free; native stacks")
}

/// Nanoseconds of a `malloc` and its `free`, by round.
fn malloc_pairs(talker: &mut Talker) -> Vec<f64> {
    const CALLS: u64 = 20_000;
    (0..ROUNDS * REPEATS)
        .map(|_| {
            talker.say(&json!({ "malloc": CALLS, "depth": USUAL_DEPTH }).to_string());
            number(&talker.line(), "/malloc") as f64 / CALLS as f64
        })
        .collect()
}

/// memray on host memory, from inside the process: what a `malloc` and its `free` cost there.
fn memray() -> Vec<Measure> {
    const NAME: &str = "memray";
    let Ok(packages) = std::env::var("CUDATRACE_BENCH_MEMRAY") else {
        return vec![Measure::missing(NAME, "ns", "memray is not installed")];
    };
    let folder = tempfile::tempdir().expect("a temporary folder");
    let library = folder.path().join("libc10.so");
    hook::build(&library, &[]);
    let (library, results) = (library.display().to_string(), folder.path().join("memray"));
    let times = [false, true].map(|watched| {
        let results = results.display().to_string();
        let arguments = [library.as_str(), results.as_str()];
        let arguments = &arguments[..1 + usize::from(watched)];
        let environment = [("PYTHONPATH", packages.as_str())];
        let script = workload("overhead.py");
        let mut talker = Talker::python(&sandbox_python(), &script, arguments, &environment);
        talker.line();
        malloc_pairs(&mut talker)
    });
    let [alone, watched] = times;
    vec![
        Measure::of("malloc_pair", &alone, "ns").noting("malloc and free, nobody watches"),
        Measure::of(NAME, &watched, "ns")
            .noting("malloc and free, recorded from inside the process"),
    ]
}
