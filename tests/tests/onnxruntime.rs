//! ONNX Runtime's arena: found without symbols, and its blocks are those that outputs lie in.

use std::{collections::BTreeSet, path::Path};

use cudatrace_tests::{
    child::Talker,
    library_in, list, packages,
    trace::{Trace, only_process},
    workload,
};
use serde_json::Value;
use tracer_user::{
    bpf::LoadOptions,
    discover::{
        library::LibraryKind,
        plan::{Extras, for_library},
    },
    model::{Level, ProcessSnapshot},
};

fn start(python: &Path, args: &[&str]) -> Talker {
    let mut talker = Talker::python(python, &workload("onnxruntime_arena.py"), args, &[]);
    assert_eq!(talker.line()["ready"], true);
    talker
}

/// Bytes of the outputs that the process has kept.
fn kept(truth: &Value) -> u64 {
    let blocks = truth["blocks"].as_array().unwrap();
    blocks.iter().map(|block| block[1].as_u64().unwrap()).sum()
}

/// Bytes held by the line of the workload that runs the session, and how many blocks were ever
/// allocated there.
fn held_by_runs(process: &ProcessSnapshot) -> (u64, u64) {
    let source = std::fs::read_to_string(workload("onnxruntime_arena.py")).unwrap();
    let line =
        source.lines().position(|line| line.contains("# the user's line")).unwrap() as u32 + 1;
    let runs = process.sites.iter().filter(|site| {
        site.level == Level::Onnxruntime && site.frames.iter().any(|frame| frame.line == Some(line))
    });
    runs.fold((0, 0), |(live, total), site| (live + site.live_bytes, total + site.total_blocks))
}

/// What the runs hold is at every quiet point what the outputs take that were kept, and goes with them. An
/// arena that throws for want of memory throws as if it were not traced.
#[test]
fn attached_from_the_start() {
    for python in list("CUDATRACE_ONNXRUNTIME_PYTHONS") {
        let mut talker = start(&python, &[]);
        let mut trace = Trace::attach(talker.pid(), &LoadOptions::default());
        talker.say("go");
        let mut last = 0;
        loop {
            let truth = trace.line(&mut talker);
            if truth["done"] == true {
                break;
            }
            let snapshot = trace.snapshot();
            assert!(snapshot.tracer.exact, "{truth}: {:?}", snapshot.tracer);
            let process = only_process(&snapshot);
            let (live, total) = held_by_runs(process);
            assert_eq!(live, kept(&truth), "{truth}");
            // The output of each run, and what lies between.
            match truth["quiet"].as_str() {
                Some("kept") => assert!(total >= last + 20, "{total} blocks after {last}"),
                Some("ran") => assert!(total >= last + 200, "{total} blocks after {last}"),
                Some("refused") => {
                    let error = truth["error"].as_str().unwrap();
                    assert!(error.contains("Available memory of"), "{error}");
                    assert_eq!(process.pools.len(), 2, "{:?}", process.pools);
                }
                Some("nothing") => {
                    let held = process.pools.iter().map(|pool| pool.traced_bytes).sum::<u64>();
                    assert_eq!(held, 0, "the session is gone: {:?}", process.pools);
                }
                _ => {}
            }
            last = total;
            for pool in &process.pools {
                assert_eq!((pool.level, pool.device), (Level::Onnxruntime, None));
                assert_eq!(pool.name.as_deref(), Some("Cpu"));
                assert_eq!(pool.allocated_bytes, Some(pool.traced_bytes));
            }
            talker.say("go");
        }
    }
}

/// What was there before is not known, and may go.
#[test]
fn attached_late() {
    for python in list("CUDATRACE_ONNXRUNTIME_PYTHONS") {
        let mut talker = start(&python, &["--warm"]);
        let mut trace = Trace::attach(talker.pid(), &LoadOptions::default());
        let (first, second) = (trace.go(&mut talker), trace.go(&mut talker));
        let snapshot = trace.snapshot();
        let process = only_process(&snapshot);
        assert_eq!(process.pools[0].allocated_bytes, None);
        assert_eq!(held_by_runs(process).0, kept(&second) - kept(&first));
        for _ in 0..4 {
            trace.go(&mut talker);
        }
        let snapshot = trace.snapshot();
        assert_eq!(snapshot.tracer.unmatched_frees, 0);
        assert_eq!(held_by_runs(only_process(&snapshot)).0, 0);
    }
}

/// The arena's functions in builds with and without CUDA.
#[test]
fn the_plan() {
    let of_gpu = list("CUDATRACE_ONNXRUNTIME_LIBRARIES").into_iter();
    let of_gpu = of_gpu.map(|path| path.parent().unwrap().to_owned());
    let of_cpu = list("CUDATRACE_ONNXRUNTIME_PYTHONS").into_iter();
    let of_cpu = of_cpu.map(|python| packages(&python).join("onnxruntime/capi"));
    for folder in of_gpu.chain(of_cpu) {
        let library = library_in(&folder, LibraryKind::Onnxruntime);
        let (sites, gaps) = for_library(&library, Extras::default());
        assert!(gaps.is_empty(), "{gaps:?}");
        let names: BTreeSet<_> = sites.iter().map(|site| site.symbol.as_str()).collect();
        let wanted =
            ["Alloc", "Free", "Reserve"].map(|name| format!("onnxruntime::BFCArena::{name}"));
        assert_eq!(names, wanted.iter().map(String::as_str).collect(), "{sites:?}");
        // An entry and at least one exit of what allocates.
        assert!(sites.len() >= 5, "{sites:?}");
    }
}
