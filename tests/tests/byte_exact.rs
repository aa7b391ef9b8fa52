//! The ledger against PyTorch's allocator and the simulated driver, to the byte.

use std::path::Path;

use cudatrace_tests::{
    child::Talker,
    sandbox_python, sandbox_pythons,
    trace::{Trace, device, live_bytes, number, only_process, text},
    workload,
};
use serde_json::Value;
use tracer_user::{
    bpf::LoadOptions,
    model::{Level, Snapshot},
};

const ENVIRONMENT: [(&str, &str); 2] = [("CUDASIM_DEVICES", "2"), ("CUDASIM_MEMORY", "64G")];

fn start(python: &Path, args: &[&str]) -> Talker {
    start_with(python, args, &[])
}

fn start_with(python: &Path, args: &[&str], more: &[(&str, &str)]) -> Talker {
    println!("{}", python.display());
    let mut all = vec!["--wait"];
    all.extend(args);
    let environment = [&ENVIRONMENT, more].concat();
    let mut talker = Talker::python(python, &workload("random_allocs.py"), &all, &environment);
    assert_eq!(talker.line()["ready"], true);
    talker
}

/// Everything that must hold at a quiet point of a trace that has seen everything.
fn check_whole(snapshot: &Snapshot, truth: &Value) {
    let process = only_process(snapshot);
    assert!(snapshot.tracer.exact, "{:?}", snapshot.tracer);
    assert_eq!(snapshot.tracer.dropped, 0);
    for index in 0..2 {
        let says = |what: &str| number(truth, &format!("/devices/{index}/{what}"));
        let device = device(process, index);
        assert_eq!(live_bytes(process, Level::Pytorch, index), says("allocated"), "{truth}");
        assert_eq!(device.allocated_bytes, Some(says("allocated")), "{truth}");
        assert_eq!(device.reserved_bytes, Some(says("reserved")), "{truth}");
        assert_eq!(device.driver_bytes, says("driver"), "{truth}");
        assert_eq!(live_bytes(process, Level::Driver, index), says("driver"), "{truth}");
        assert_eq!(device.before_attach.unwrap_or_default().allocated_bytes, 0);
        assert_eq!(device.before_attach.unwrap_or_default().reserved_bytes, 0);
        assert!(
            device.releasable_bytes.is_some() && device.releasable_bytes <= device.cached_bytes
        );
        let requested: Option<u64> = process
            .sites
            .iter()
            .filter(|site| site.level == Level::Pytorch && site.device == device.index)
            .map(|site| site.requested_bytes)
            .sum();
        assert_eq!(requested, Some(says("requested")), "{truth}");
    }
}

/// What can be returned, and what cannot because live blocks share its segments.
fn check_fragmentation(snapshot: &Snapshot, truth: &Value) {
    for index in 0..2 {
        let says = |what: &str| number(truth, &format!("/devices/{index}/{what}"));
        let device = device(only_process(snapshot), index);
        assert_eq!(device.cached_bytes, Some(says("reserved") - says("allocated")), "{truth}");
        assert_eq!(device.releasable_bytes, Some(says("releasable")), "{truth}");
        let split = device.cached_bytes.zip(device.releasable_bytes).map(|(all, free)| all - free);
        assert_eq!(split, Some(says("split")), "{truth}");
    }
}

/// Runs to the end; `check` is called at every quiet point.
fn follow(
    trace: &mut Trace,
    talker: &mut Talker,
    mut check: impl FnMut(&Snapshot, &Value),
) -> usize {
    let mut points = 0;
    loop {
        let line = trace.line(talker);
        if line["done"] == true {
            assert_eq!(line["out_of_memory"], 0, "the workload is meant to fit");
            return points;
        }
        check(&trace.snapshot(), &line);
        points += 1;
        talker.say("go");
    }
}

/// 200,000 allocations (60,000 by the old PyTorch) of 1 B to 1 GiB by four threads on two devices:
/// attached before torch is imported, every quiet point agrees to the byte.
#[test]
fn attached_from_the_start() {
    for python in sandbox_pythons() {
        let allocs = if python == sandbox_python() { 200_000 } else { 60_000 };
        let mut talker = start(&python, &["--snapshot", "--allocs", &allocs.to_string()]);
        let mut trace = Trace::attach(talker.pid(), &LoadOptions::default());
        talker.say("go");
        let points = follow(&mut trace, &mut talker, |snapshot, truth| {
            check_whole(snapshot, truth);
            check_fragmentation(snapshot, truth);
        });
        assert_eq!(points, 11);
        assert!(talker.wait().success());
        let last = trace.finish();
        let blocks = only_process(&last).sites.iter().filter(|site| site.level == Level::Pytorch);
        assert_eq!(blocks.map(|site| site.total_blocks).sum::<u64>(), allocs);
    }
}

/// Segments made by virtual memory management: the same, to the byte.
#[test]
fn expandable_segments() {
    let conf = [("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")];
    for python in sandbox_pythons() {
        let args = ["--allocs", "60000", "--quiet-points", "6"];
        let mut talker = start_with(&python, &args, &conf);
        let mut trace = Trace::attach(talker.pid(), &LoadOptions::default());
        talker.say("go");
        assert_eq!(follow(&mut trace, &mut talker, check_whole), 7);
    }
}

/// Allocators that report no blocks: everything is at the driver level, by call site and device.
#[test]
fn allocators_that_do_not_report() {
    let confs = [
        ("PYTORCH_CUDA_ALLOC_CONF", "backend:cudaMallocAsync"),
        ("PYTORCH_NO_CUDA_MEMORY_CACHING", "1"),
    ];
    let runs = sandbox_pythons().into_iter().flat_map(|python| confs.map(|c| (python.clone(), c)));
    for (python, conf) in runs {
        let args = ["--allocs", "20000", "--quiet-points", "4"];
        let mut talker = start_with(&python, &args, &[conf]);
        let mut trace = Trace::attach(talker.pid(), &LoadOptions::default());
        talker.say("go");
        let mut most = 0;
        follow(&mut trace, &mut talker, |snapshot, truth| {
            assert!(snapshot.tracer.exact, "{:?}", snapshot.tracer);
            let process = only_process(snapshot);
            for index in 0..2 {
                let driver = number(truth, &format!("/devices/{index}/driver"));
                assert_eq!(live_bytes(process, Level::Driver, index), driver, "{conf:?} {truth}");
                let sites = process.sites.iter().filter(|site| site.live_bytes > 0);
                assert!(sites.clone().all(|site| site.own_bytes() == site.live_bytes));
                most = most.max(driver);
            }
        });
        assert!(most > 1 << 30, "the workload is meant to hold something");
    }
}

/// Attached when 300 blocks are there already, which are freed in the middle of the trace.
#[test]
fn attached_halfway() {
    sandbox_pythons().iter().for_each(|python| halfway(python));
}

fn halfway(python: &Path) {
    let args = ["--keep", "300", "--allocs", "40000", "--quiet-points", "6"];
    let mut talker = start(python, &args);
    talker.say("go");
    let kept = talker.line();
    let mut trace = Trace::attach(talker.pid(), &LoadOptions::default());
    talker.say("go");
    let mut before = Vec::new();
    let points = follow(&mut trace, &mut talker, |snapshot, truth| {
        let process = only_process(snapshot);
        assert!(snapshot.tracer.exact, "{:?}", snapshot.tracer);
        for index in 0..2 {
            let says = |what: &str| number(truth, &format!("/devices/{index}/{what}"));
            let device = device(process, index);
            let traced = live_bytes(process, Level::Pytorch, index);
            assert_eq!(
                device.before_attach.unwrap_or_default().allocated_bytes + traced,
                says("allocated"),
                "{truth}"
            );
            assert_eq!(device.allocated_bytes, Some(says("allocated")), "{truth}");
            // Segments from before attach as well: the pool tells their size when it returns them.
            assert!(!device.reserved_is_upper_bound);
            assert_eq!(device.reserved_bytes, Some(says("reserved")), "{truth}");
            assert_eq!(device.driver_bytes, says("driver"), "{truth}");
            before.push((index, device.before_attach.unwrap_or_default().allocated_bytes));
        }
    });
    assert_eq!(points, 7);
    for index in 0..2 {
        let kept = number(&kept, &format!("/devices/{index}/allocated"));
        let values: Vec<u64> = before.iter().filter(|(i, _)| *i == index).map(|b| b.1).collect();
        assert_eq!(values.first(), Some(&kept), "all of it is from before at first");
        assert_eq!(values.last(), Some(&0), "and freed at last");
    }
}

/// A ring buffer of one page: events are dropped, the report says so, and totals are right again
/// with the next event.
#[test]
fn dropped_events_are_told_and_totals_recover() {
    let mut talker = start(&sandbox_python(), &["--allocs", "40000", "--quiet-points", "4"]);
    let options = LoadOptions { ring_bytes: 4096, ..LoadOptions::default() };
    let mut trace = Trace::attach(talker.pid(), &options);
    talker.say("go");
    let mut dropped = 0;
    follow(&mut trace, &mut talker, |snapshot, _| {
        assert!(!snapshot.tracer.exact);
        assert!(snapshot.tracer.dropped > dropped, "more at every point");
        dropped = snapshot.tracer.dropped;
        let process = only_process(snapshot);
        for index in 0..2 {
            // What was dropped last is unknown, but the last report that came is the allocator's
            // word, and the parts add up to it.
            let device = device(process, index);
            let reported = device.allocator_reported.as_ref().map(|r| r.allocated_bytes);
            assert_eq!(device.allocated_bytes, reported);
            let traced = live_bytes(process, Level::Pytorch, index);
            let parts = i128::from(device.before_attach.unwrap_or_default().allocated_bytes)
                + i128::from(traced)
                + i128::from(device.lost_bytes);
            assert_eq!(Some(parts), device.allocated_bytes.map(i128::from));
        }
        let text = text(snapshot);
        assert!(text.contains("INCOMPLETE"), "{text}");
        assert!(text.contains("records were dropped"), "{text}");
    });
    assert!(talker.wait().success());
}
