//! TensorFlow's pool against its own statistics, with the current version and with 2.15.

use std::path::Path;

use cudatrace_tests::{
    child::Talker,
    list,
    trace::{Trace, number, only_process, text},
    workload,
};
use tracer_user::{
    bpf::LoadOptions,
    model::{Level, PoolSnapshot, ProcessSnapshot, Snapshot},
};

fn start(python: &Path, args: &[&str]) -> Talker {
    let mut talker = Talker::python(python, &workload("tensorflow_pool.py"), args, &[]);
    assert_eq!(talker.line()["ready"], true);
    talker
}

/// The only pool that has blocks: that for the host.
fn pool(snapshot: &Snapshot) -> &PoolSnapshot {
    match only_process(snapshot).pools.as_slice() {
        [pool] => pool,
        pools => panic!("{pools:?}"),
    }
}

/// Blocks ever allocated, by all sites of the pool.
fn allocations(process: &ProcessSnapshot) -> u64 {
    let sites = process.sites.iter().filter(|site| site.level == Level::Tensorflow);
    sites.map(|site| site.total_blocks).sum()
}

/// Attached before TensorFlow is loaded: bytes in use, their peak, and the number of allocations are the
/// allocator's own, and the report says who holds them and that the reserve stays.
#[test]
fn attached_from_the_start() {
    for python in list("CUDATRACE_TENSORFLOW_PYTHONS") {
        let mut talker = start(&python, &[]);
        let mut trace = Trace::attach(talker.pid(), &LoadOptions::default());
        talker.say("go");
        loop {
            let truth = trace.line(&mut talker);
            if truth["done"] == true {
                break;
            }
            let snapshot = trace.snapshot();
            assert!(snapshot.tracer.exact, "{:?}", snapshot.tracer);
            let pool = pool(&snapshot);
            assert_eq!(pool.name.as_deref(), Some("bfc_cpu_allocator_for_gpu"));
            assert_eq!(pool.allocated_bytes, Some(number(&truth, "/in_use")), "{truth}");
            assert_eq!(pool.peak_allocated_bytes, Some(number(&truth, "/peak")), "{truth}");
            assert_eq!(allocations(only_process(&snapshot)), number(&truth, "/allocations"));
            if truth["quiet"] == "leaked" {
                check_leak(&snapshot);
            }
            talker.say("go");
        }
    }
}

fn check_leak(snapshot: &Snapshot) {
    let leak = only_process(snapshot)
        .sites
        .iter()
        .find(|site| site.live_blocks == 30 && site.live_bytes > 6_000_000)
        .unwrap();
    let source = std::fs::read_to_string(workload("tensorflow_pool.py")).unwrap();
    let line = source.lines().position(|line| line.contains("# the leak")).unwrap() as u32 + 1;
    assert!(leak.frames.iter().any(|frame| frame.line == Some(line)), "{:?}", leak.frames);
    let text = text(snapshot);
    assert!(text.contains("keeps its reserve until the process ends"), "{text}");
    assert!(text.contains(&format!("tensorflow_pool.py:{line}")), "{text}");
}

/// Attached to a pool that has blocks already and cannot tell: what is not known is null, what was
/// allocated since is exact.
#[test]
fn attached_halfway() {
    for python in list("CUDATRACE_TENSORFLOW_PYTHONS") {
        let mut talker = start(&python, &["--warm"]);
        let mut trace = Trace::attach(talker.pid(), &LoadOptions::default());
        let (first, second) = (trace.go(&mut talker), trace.go(&mut talker));
        let snapshot = trace.snapshot();
        let pool = pool(&snapshot);
        assert_eq!((pool.allocated_bytes, pool.peak_allocated_bytes), (None, None));
        let grown = number(&second, "/in_use") - number(&first, "/in_use");
        assert_eq!(pool.traced_bytes, grown, "nothing from before has been freed yet");
        assert_eq!(snapshot.tracer.unmatched_frees, 0);
        trace.go(&mut talker);
        let snapshot = trace.snapshot();
        assert_eq!(snapshot.tracer.unmatched_frees, 0, "blocks from before may go");
        assert!(snapshot.tracer.exact, "{:?}", snapshot.tracer);
    }
}
