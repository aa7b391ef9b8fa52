//! Every entry point of the driver and of the runtime, in random order, against the simulator's own
//! count.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use cudatrace_tests::{
    child::Talker,
    sandbox_pythons, simulated, simulated_driver, simulated_runtime,
    trace::{Trace, live_bytes, number, only_process},
    workload,
};
use serde_json::Value;
use tracer_user::{
    bpf::LoadOptions,
    model::{Level, ProcessSnapshot},
};

/// Calls of the driver: as many as the ledger is meant to be right for.
const DRIVER_CALLS: &str = "1000000";

/// Calls of each runtime.
const RUNTIME_CALLS: &str = "200000";

/// Calls of which one in the middle of the run fails. Others fail as they should: memory that is not
/// there, frees of what was not allocated.
const FAILING: [&str; 29] = [
    "cuMemAlloc",
    "cuMemAlloc_v2",
    "cuMemAllocManaged",
    "cuMemAllocPitch_v2",
    "cuMemAllocAsync",
    "cuMemAllocAsync_ptsz",
    "cuMemAllocFromPoolAsync",
    "cuMemAllocFromPoolAsync_ptsz",
    "cuArrayCreate_v2",
    "cuArray3DCreate_v2",
    "cuMemAllocHost",
    "cuMemAllocHost_v2",
    "cuMemHostAlloc",
    "cuMemHostRegister",
    "cuMemHostRegister_v2",
    "cuMemCreate",
    "cuMemRetainAllocationHandle",
    "cuMemMap",
    "cuMemImportFromShareableHandle",
    "cuIpcOpenMemHandle_v2",
    "cuImportExternalMemory",
    "cuMemFree",
    "cuMemFree_v2",
    "cuMemFreeAsync",
    "cuArrayDestroy",
    "cuMemFreeHost",
    "cuMemHostUnregister",
    "cuMemRelease",
    "cuMemUnmap",
];

/// A C program without Python: random calls of every allocating and freeing entry point from several
/// threads on two devices, some of which fail. At every quiet point the ledger is the simulator's
/// count, to the byte and to the block.
#[test]
fn every_entry_point_in_random_order() {
    let driver = simulated_driver();
    follow("driver_calls.c", &[driver], DRIVER_CALLS);
}

/// The same through each version of the runtime, whose calls end in the driver's: each allocation is
/// counted once.
#[test]
fn every_entry_point_of_the_runtime() {
    for python in sandbox_pythons() {
        let libraries = [simulated_runtime(&python), simulated(&python, "libcuda.so.1")];
        follow("runtime_calls.c", &libraries, RUNTIME_CALLS);
    }
}

/// Runs a workload to its end, and compares at every quiet point.
fn follow(source: &str, libraries: &[PathBuf], calls: &str) {
    let folder = tempfile::tempdir().unwrap();
    let failing: Vec<String> = FAILING.iter().map(|call| format!("{call}#500")).collect();
    let mut talker = Talker::start(
        Command::new(compile(source, libraries, folder.path()))
            .args(["--wait", "--calls", calls])
            .env("CUDASIM_DEVICES", "2")
            .env("CUDASIM_MEMORY", "16G")
            .env("CUDASIM_FAIL", failing.join(",")),
    );
    assert_eq!(talker.line()["ready"], true);
    let mut trace = Trace::attach(talker.pid(), &LoadOptions::default());
    talker.say("go");
    let mut points = 0;
    loop {
        let truth = trace.line(&mut talker);
        if truth["done"] == true {
            break;
        }
        let snapshot = trace.snapshot();
        assert_eq!(snapshot.tracer.dropped, 0);
        check(only_process(&snapshot), &truth);
        points += 1;
        talker.say("go");
    }
    assert!(talker.wait().success());
    assert_eq!(points, 11);
}

fn check(process: &ProcessSnapshot, truth: &Value) {
    for index in 0..2 {
        let driver = number(truth, &format!("/devices/{index}/driver"));
        assert_eq!(live_bytes(process, Level::Driver, index), driver, "device {index}: {truth}");
        let seen =
            process.devices.iter().find(|d| d.index.is_some_and(|i| usize::from(i.0) == index));
        assert_eq!(seen.map_or(0, |device| device.driver_bytes), driver, "device {index}: {truth}");
    }
    assert!(process.devices.iter().all(|device| device.index.is_some()), "{:?}", process.devices);
    assert_eq!(process.host.pinned_bytes, Some(number(truth, "/pinned")), "{truth}");
    assert_eq!(process.host.imported, number(truth, "/imported"), "{truth}");
    for (level, blocks) in [(Level::Driver, "/device_blocks"), (Level::Pinned, "/pinned_blocks")] {
        let sites = process.sites.iter().filter(|site| site.level == level);
        let counted: u64 = sites.map(|site| site.total_blocks).sum();
        assert_eq!(counted, number(truth, blocks), "{level:?}: {truth}");
    }
    assert!(number(truth, "/failed") > 0 && !process.failures.is_empty());
}

fn compile(source: &str, libraries: &[PathBuf], folder: &Path) -> PathBuf {
    let program = folder.join("program");
    let status = Command::new("cc")
        .args(["-O1", "-pthread", "-I"])
        .arg(workload("../cuda-sim"))
        .arg(workload(source))
        .args(libraries)
        .arg(format!("-Wl,-rpath,{}", libraries[0].parent().unwrap().display()))
        .arg("-o")
        .arg(&program)
        .status()
        .unwrap();
    assert!(status.success());
    program
}
