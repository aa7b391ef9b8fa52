//! Who called the driver, or the runtime above it: the file that the code is in.

use std::process::Command;

use cudatrace_tests::{
    child::Talker,
    sandbox_python,
    trace::{Trace, only_process},
    workload,
};
use tracer_user::{
    bpf::LoadOptions,
    model::{Level, ProcessSnapshot},
};

/// Level, live bytes and caller of every site below the pool's.
fn callers(process: &ProcessSnapshot) -> Vec<(Level, u64, Option<&str>)> {
    let mut sites: Vec<_> = process
        .sites
        .iter()
        .filter(|site| site.level != Level::Pytorch)
        .map(|site| (site.level, site.live_bytes, site.caller.as_deref()))
        .collect();
    sites.sort();
    sites
}

/// PyTorch, and a library that was loaded after attach and is gone again. Where the runtime is
/// between, it is not the caller, and what it allocates counts once.
#[test]
fn the_caller_is_the_file_that_called_the_runtime() {
    let folder = tempfile::tempdir().unwrap();
    let library = folder.path().join("libcaller.so");
    let status = Command::new("cc")
        .args(["-shared", "-fPIC", "-O1", "-o"])
        .args([&library, &workload("caller.c")])
        .status()
        .unwrap();
    assert!(status.success());
    let mut talker = Talker::python(
        &sandbox_python(),
        &workload("callers.py"),
        &[library.to_str().unwrap()],
        &[],
    );
    assert_eq!(talker.line()["ready"], true);
    let mut trace = Trace::attach(talker.pid(), &LoadOptions::default());
    talker.say("go");
    let answer = trace.line(&mut talker);
    assert_eq!(answer["results"], serde_json::json!([0, 0, 0, 2]));
    talker.say("unload");
    assert_eq!(trace.line(&mut talker)["unloaded"], true);

    let snapshot = trace.snapshot();
    let process = only_process(&snapshot);
    let library = Some("libcaller.so");
    assert_eq!(
        callers(process),
        [
            (Level::Pinned, 7 << 20, library),
            // cuMemAlloc_v2 and cudaMalloc, from the same line.
            (Level::Driver, 6 << 20, library),
            (Level::Driver, 20 << 20, Some("libc10_cuda.so")),
        ]
    );
    let failures: Vec<_> = process
        .failures
        .iter()
        .map(|failure| (failure.call.as_str(), failure.bytes, failure.caller.as_deref()))
        .collect();
    assert_eq!(failures, [("cuMemAlloc_v2", 1 << 60, library)]);
    talker.say("end");
}
