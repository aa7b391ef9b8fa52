//! vLLM's allocator on the simulated driver: seen at the driver's level, each call once.

use std::path::Path;

use cudatrace_tests::{
    child::Talker,
    list, sandbox_python,
    trace::{Trace, device, number, only_process},
    workload,
};
use tracer_user::{
    bpf::LoadOptions,
    model::{Level, Snapshot},
};

fn start(extension: &Path) -> Talker {
    let (python, script) = (sandbox_python(), workload("vllm_cumem.py"));
    let devices = [("CUDASIM_DEVICES", "1")];
    let mut talker = Talker::python(&python, &script, &[extension.to_str().unwrap()], &devices);
    assert_eq!(talker.line()["quiet"], "ready");
    talker
}

/// Memory counts while it is there: not while vLLM sleeps, which keeps the addresses. What PyTorch takes
/// from it is in PyTorch's pool.
#[test]
fn the_memory_that_is_held() {
    for extension in list("CUDATRACE_VLLM_EXTENSIONS") {
        let mut talker = start(&extension);
        let mut trace = Trace::attach(talker.pid(), &LoadOptions::default());
        loop {
            talker.say("go");
            let truth = trace.line(&mut talker);
            if truth["done"] == true {
                break;
            }
            let snapshot = trace.snapshot();
            assert!(snapshot.tracer.exact, "{truth}: {:?}", snapshot.tracer);
            let held = number(&truth, "/held");
            let process = only_process(&snapshot);
            let driver: u64 = process.devices.iter().map(|device| device.driver_bytes).sum();
            assert_eq!(driver, held, "{truth}");
            match truth["quiet"].as_str() {
                Some("allocated") => check_line(&snapshot, held, 10),
                Some("awake") => check_line(&snapshot, 0, 10),
                Some("tensors") => assert_eq!(device(process, 0).reserved_bytes, Some(held)),
                _ => {}
            }
        }
    }
}

/// What the line that allocates holds, and how often it has allocated.
fn check_line(snapshot: &Snapshot, live: u64, calls: u64) {
    let source = std::fs::read_to_string(workload("vllm_cumem.py")).unwrap();
    let line =
        source.lines().position(|line| line.contains("# the user's line")).unwrap() as u32 + 1;
    let sites: Vec<_> = only_process(snapshot)
        .sites
        .iter()
        .filter(|site| site.frames.iter().any(|frame| frame.line == Some(line)))
        .collect();
    let [site] = sites[..] else { panic!("{sites:?}") };
    assert_eq!((site.level, site.live_bytes, site.total_blocks), (Level::Driver, live, calls));
}
