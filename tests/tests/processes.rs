//! Children of a traced process: each of them from its first allocation on, any number of them.

use std::{fs, process::Command, time::Duration};

use cudatrace_tests::{
    child::Talker,
    sandbox_python, simulated_driver,
    trace::{Trace, number},
    workload,
};
use serde_json::Value;
use tracer_user::{
    bpf::{LoadOptions, Occupancy},
    model::{Level, ProcessSnapshot, ProcessState, Snapshot},
};

const FOLLOW: LoadOptions = LoadOptions {
    ring_bytes: tracer_user::bpf::DEFAULT_RING_BYTES,
    log: false,
    follow: true,
    full_stacks: false,
};

fn start(args: &[&str]) -> Talker {
    let driver = simulated_driver();
    let mut talker = Talker::start(
        Command::new(sandbox_python())
            .arg(workload("processes.py"))
            .arg(&driver)
            .arg("--wait")
            .args(args),
    );
    assert_eq!(talker.line()["ready"], true);
    talker
}

/// Bytes of this process, which is the tracer, that are in memory.
fn resident() -> u64 {
    let status = fs::read_to_string("/proc/self/statm").unwrap();
    let pages: u64 = status.split(' ').nth(1).unwrap().parse().unwrap();
    pages * 4096
}

fn driver_sites(process: &ProcessSnapshot) -> impl Iterator<Item = &tracer_user::model::Site> {
    process.sites.iter().filter(|site| site.level == Level::Driver)
}

/// What all children together were given, and what they held at their end.
fn sums(snapshot: &Snapshot) -> (u64, u64) {
    let listed = snapshot.processes.iter().filter(|process| process.parent.is_some());
    let (mut given, mut held) =
        (snapshot.finished.unlisted_total_bytes, snapshot.finished.unlisted_held_bytes);
    for site in listed.flat_map(driver_sites) {
        given += site.total_bytes;
        held += site.live_bytes;
    }
    (given, held)
}

fn assert_counted(snapshot: &Snapshot, truth: &Value) {
    assert_eq!(sums(snapshot), (number(truth, "/given"), number(truth, "/held")), "{truth}");
}

/// Follows to the end of the workload; `check` is called at every report.
fn follow(trace: &mut Trace, talker: &mut Talker, mut check: impl FnMut(&mut Trace, &Value)) {
    loop {
        let line = trace.line(talker);
        if line["done"] == true {
            return;
        }
        check(trace, &line);
        talker.say("go");
    }
}

/// 10,000 children under 8 pids: every byte of every one is counted, under its own line of code; the
/// tracer needs no more memory for 10,000 than for 2,000; nothing of them is left in the kernel.
#[test]
fn ten_thousand_children_with_few_pids() {
    let mut talker = start(&["--children", "10000", "--pids", "8", "--report", "1000"]);
    let parent = talker.pid();
    let mut trace = Trace::attach(parent, &FOLLOW);
    talker.say("go");
    let mut memory = Vec::new();
    follow(&mut trace, &mut talker, |trace, truth| {
        let snapshot = trace.snapshot();
        let children = number(truth, "/children");
        assert!(snapshot.tracer.exact, "{:?}", snapshot.tracer);
        assert!(number(truth, "/pids") < 100, "pids are used again: {truth}");
        assert_eq!(snapshot.finished.children, children);
        assert_counted(&snapshot, truth);
        let ended: Vec<_> =
            snapshot.processes.iter().filter(|p| p.state == ProcessState::Exited).collect();
        assert_eq!(ended.len(), 64);
        for process in ended {
            assert_eq!(process.parent.map(|pid| pid.0), Some(parent));
            assert!(matches!(process.exit.as_deref(), Some("exit 0" | "signal 9")));
            assert_eq!(
                process
                    .devices
                    .iter()
                    .map(|d| d.before_attach.unwrap_or_default().allocated_bytes)
                    .sum::<u64>(),
                0
            );
            let functions: Vec<&str> =
                driver_sites(process).map(|s| s.frames[1].function.as_str()).collect();
            assert_eq!(functions, ["child"; 2], "{process:?}");
        }
        memory.push((children, resident()));
    });
    let at = |children| memory.iter().find(|(count, _)| *count == children).unwrap().1;
    eprintln!("resident: {memory:?}");
    assert!(at(10_000) < at(2_000) + (3 << 20), "memory grows: {memory:?}");

    talker.say("go");
    assert!(talker.wait().success());
    for _ in 0..100 {
        trace.tick();
        if !trace.is_active() {
            break;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    assert!(!trace.is_active());
    std::thread::sleep(Duration::from_millis(300));
    trace.tick();
    assert_eq!(trace.occupancy(), Occupancy::default(), "entries of processes that have ended");
}

/// Children that become another Python by `execve`: what they allocate is counted and has its Python
/// stack, and what they were before held nothing.
#[test]
fn children_that_replace_their_program() {
    for (how, pids) in [("clone3-exec", 2), ("subprocess", 6)] {
        let mut talker = start(&["--children", "6", "--pids", "2", "--report", "6", "--by", how]);
        let mut trace = Trace::attach(talker.pid(), &FOLLOW);
        talker.say("go");
        follow(&mut trace, &mut talker, |trace, truth| {
            let snapshot = trace.snapshot();
            assert!(snapshot.tracer.exact, "{:?}", snapshot.tracer);
            assert!(number(truth, "/pids") <= pids);
            assert_counted(&snapshot, truth);
            // Two lives each, of which the first has allocated nothing.
            assert_eq!((snapshot.finished.children, snapshot.finished.unlisted), (12, 6), "{how}");
            let ended: Vec<_> = snapshot.processes.iter().filter(|p| p.parent.is_some()).collect();
            assert_eq!(ended.len(), 6);
            for process in ended {
                assert!(process.command.contains(" --one "), "{}", process.command);
                assert!(process.python.is_some());
                assert!(
                    driver_sites(process).all(|s| s.frames.iter().any(|f| f.function == "child"))
                );
            }
        });
    }
}

/// Workers of `multiprocessing`, which allocate as soon as they can: with `spawn` they are new programs,
/// with `forkserver` children of a new program.
#[test]
fn workers_of_every_start_method() {
    for method in ["fork", "spawn", "forkserver"] {
        let mut talker = start(&["--children", "6", "--report", "6", "--by", method]);
        let parent = talker.pid();
        let mut trace = Trace::attach(parent, &FOLLOW);
        talker.say("go");
        follow(&mut trace, &mut talker, |trace, truth| {
            let snapshot = trace.snapshot();
            assert!(snapshot.tracer.exact, "{method}: {:?}", snapshot.tracer);
            assert_counted(&snapshot, truth);
            let mut ends: Vec<_> = snapshot
                .processes
                .iter()
                .filter(|process| driver_sites(process).next().is_some())
                .map(|process| {
                    assert_ne!(process.parent.map(|pid| pid.0), None);
                    assert_eq!(process.parent.map(|p| p.0) == Some(parent), method != "forkserver");
                    assert_eq!(process.state, ProcessState::Exited);
                    process.exit.clone().unwrap_or_default()
                })
                .collect();
            ends.sort();
            assert_eq!(ends, [["exit 0"; 4].as_slice(), &["signal 9"; 2]].concat(), "{method}");
        });
    }
}

/// Without `--follow-fork` children are nobody's: their calls do not show.
#[test]
fn children_are_left_alone_unless_asked_for() {
    let mut talker = start(&["--children", "20", "--report", "20"]);
    let mut trace = Trace::attach(talker.pid(), &LoadOptions::default());
    talker.say("go");
    follow(&mut trace, &mut talker, |trace, _| {
        let snapshot = trace.snapshot();
        assert_eq!(snapshot.tracer.events, 0);
        assert_eq!(snapshot.processes.len(), 1);
    });
}
