//! CuPy's pool against its own count; its segments are the simulated driver's.

use std::{fs, path::Path};

use cudatrace_tests::{
    child::Talker,
    library_in, list, packages, simulated_driver,
    trace::{Trace, device, number, only_process},
    workload,
};
use tracer_user::{
    bpf::LoadOptions,
    discover::{
        library::LibraryKind,
        plan::{Extras, for_library},
    },
    model::{Device, Level, PoolSnapshot, Snapshot},
};

fn start(python: &Path, args: &[&str]) -> Talker {
    let driver = simulated_driver();
    let mut all = vec![driver.to_str().unwrap()];
    all.extend(args);
    let devices = [("CUDASIM_DEVICES", "2")];
    let mut talker = Talker::python(python, &workload("cupy_pool.py"), &all, &devices);
    assert_eq!(talker.line()["ready"], true);
    talker
}

fn pool(snapshot: &Snapshot) -> &PoolSnapshot {
    match only_process(snapshot).pools.as_slice() {
        [pool] if pool.level == Level::Cupy => pool,
        pools => panic!("{pools:?}"),
    }
}

/// Blocks, segments and what can be returned are those of the pool itself, at every quiet point.
#[test]
fn attached_from_the_start() {
    for python in list("CUDATRACE_CUPY_PYTHONS") {
        let mut talker = start(&python, &[]);
        let mut trace = Trace::attach(talker.pid(), &LoadOptions::default());
        talker.say("go");
        let mut releasable = None;
        loop {
            let truth = trace.line(&mut talker);
            if truth["done"] == true {
                break;
            }
            let snapshot = trace.snapshot();
            assert!(snapshot.tracer.exact, "{truth}: {:?}", snapshot.tracer);
            let (used, total) = (number(&truth, "/used"), number(&truth, "/total"));
            let pool = pool(&snapshot);
            assert_eq!(pool.device, Some(Device(1)));
            assert_eq!(pool.allocated_bytes, Some(used), "{truth}");
            assert_eq!(pool.reserved_bytes, Some(total), "{truth}");
            let device = device(only_process(&snapshot), 1);
            assert_eq!((device.driver_bytes, device.cached_bytes), (total, Some(total - used)));
            match truth["quiet"].as_str() {
                Some("leaked") => check_leak(&snapshot, number(&truth, "/requested")),
                Some("freed") => releasable = device.releasable_bytes.map(|bytes| (bytes, total)),
                Some("returned") => {
                    let (bytes, before) = releasable.unwrap();
                    assert_eq!(bytes, before - total, "what `free_all_blocks` returned");
                    assert!(bytes > 0);
                }
                _ => {}
            }
            talker.say("go");
        }
    }
}

fn check_leak(snapshot: &Snapshot, requested: u64) {
    let source = fs::read_to_string(workload("cupy_pool.py")).unwrap();
    let line = source.lines().position(|line| line.contains("# the leak")).unwrap() as u32 + 1;
    let leak = only_process(snapshot)
        .sites
        .iter()
        .find(|site| site.level == Level::Cupy && site.live_blocks == 30)
        .unwrap();
    assert!(leak.frames.iter().any(|frame| frame.line == Some(line)), "{:?}", leak.frames);
    assert_eq!(leak.requested_bytes, Some(requested));
    assert!(leak.live_bytes > requested);
}

/// Attached to a pool that has blocks already: what is not known is null, what is traced is right.
#[test]
fn attached_late() {
    for python in list("CUDATRACE_CUPY_PYTHONS") {
        let mut talker = start(&python, &["--warm"]);
        let mut trace = Trace::attach(talker.pid(), &LoadOptions::default());
        let (first, second) = (trace.go(&mut talker), trace.go(&mut talker));
        let snapshot = trace.snapshot();
        let pool = pool(&snapshot);
        assert_eq!(pool.allocated_bytes, None);
        assert_eq!(pool.traced_bytes, number(&second, "/used") - number(&first, "/used"));
        trace.go(&mut talker);
        let snapshot = trace.snapshot();
        assert_eq!(snapshot.tracer.unmatched_frees, 0, "blocks from before may go");
        assert!(snapshot.tracer.exact, "{:?}", snapshot.tracer);
    }
}

/// Both functions, and the clones that CuPy calls.
#[test]
fn the_plan() {
    for python in list("CUDATRACE_CUPY_PYTHONS") {
        let library = library_in(&packages(&python).join("cupy/cuda"), LibraryKind::Cupy);
        let (sites, gaps) = for_library(&library, Extras::default());
        assert!(gaps.is_empty(), "{gaps:?}");
        for name in ["SingleDeviceMemoryPool_malloc", "PooledMemory_free"] {
            let of_it: Vec<_> = sites.iter().filter(|site| site.symbol.contains(name)).collect();
            assert_eq!(of_it.len(), 2, "{of_it:?}");
            assert!(of_it.iter().any(|site| site.symbol.contains(".constprop.")));
        }
        assert_eq!(sites.len(), 4);
    }
}
