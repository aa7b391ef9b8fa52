//! Every entry point of the driver and of the runtime, in random order, against the simulator's own
//! count: with only the driver to be probed, only the runtime, and both.

use std::{fs, os::unix::fs::symlink, path::PathBuf, process::Command};

use cudatrace_tests::{
    child::Talker,
    cudatrace, sandbox_pythons, simulated, simulated_driver, simulated_runtime,
    trace::{Trace, live_bytes, number, only_process, text},
    workload,
};
use serde_json::Value;
use tempfile::TempDir;
use tracer_user::{
    bpf::LoadOptions,
    model::{Layer, Level, ProcessSnapshot, Snapshot},
};

/// As many calls as the ledger is meant to be right for.
const CALLS: u32 = 1_000_000;

/// Calls of which one in the middle of the run fails. Others fail as they should: memory that is not
/// there, frees of what was not allocated.
const FAILING: [&str; 37] = [
    "cuMemAlloc",
    "cuMemAlloc_v2",
    "cuMemAllocManaged",
    "cuMemAllocPitch",
    "cuMemAllocPitch_v2",
    "cuMemAllocAsync",
    "cuMemAllocAsync_ptsz",
    "cuMemAllocFromPoolAsync",
    "cuMemAllocFromPoolAsync_ptsz",
    "cuArrayCreate",
    "cuArrayCreate_v2",
    "cuArray3DCreate",
    "cuArray3DCreate_v2",
    "cuMipmappedArrayCreate",
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
    "cuMipmappedArrayDestroy",
    "cuMemFreeHost",
    "cuMemHostUnregister",
    "cuMemRelease",
    "cuMemUnmap",
    "cuGreenCtxCreate",
    "cuCtxFromGreenCtx",
    "cuGreenCtxDestroy",
];

/// A C program without Python: random calls of every allocating and freeing entry point from several
/// threads on two devices, some of which fail. At every quiet point the ledger is the simulator's
/// count, to the byte and to the block.
#[test]
fn every_entry_point_of_the_driver() {
    let libraries = Libraries::of(&[simulated_driver()], &[]);
    let snapshot = Workload::new("driver_calls.c", CALLS).run(&libraries);
    assert_eq!(only_process(&snapshot).counted_at, [Layer::Driver]);
}

/// The same through each version of the runtime, whose calls end in the driver's: each allocation is
/// counted once, at the driver's call.
#[test]
fn every_entry_point_of_the_runtime() {
    for (libraries, share) in runtimes(&[]) {
        let snapshot = Workload::new("runtime_calls.c", share).run(&libraries);
        assert_eq!(only_process(&snapshot).counted_at, [Layer::Driver]);
    }
}

/// A driver whose file does not tell what it is: the runtime's calls count.
#[test]
fn every_entry_point_of_the_runtime_with_no_driver_to_be_probed() {
    for (libraries, share) in runtimes(&["libcuda.so.1"]) {
        let snapshot = Workload::new("runtime_calls.c", share).run(&libraries);
        assert_eq!(only_process(&snapshot).counted_at, [Layer::Runtime]);
        let text = text(&snapshot);
        assert!(text.contains("counted at the calls of the CUDA runtime"), "{text}");
    }
}

#[test]
fn doctor_tells_whose_calls_would_count() {
    for (hidden, expected) in [(&[][..], "driver"), (&["libcuda.so.1"], "runtime")] {
        let (libraries, _) = runtimes(hidden).remove(0);
        let talker = Workload::new("runtime_calls.c", 1).start(&libraries);
        let doctor = Command::new(cudatrace())
            .args(["doctor", "--json", "--pid", &talker.pid().to_string()])
            .output()
            .unwrap();
        let report: Value = serde_json::from_slice(&doctor.stdout).unwrap();
        let process = &report["process"];
        // A driver that this machine has may be loaded yet.
        let libraries = process["libraries"].as_array().unwrap();
        let other = libraries.iter().any(|library| {
            library["mapped"] == false && library["path"].as_str().unwrap().contains("libcuda.so")
        });
        assert_eq!(process["counted_at"], if other { "driver" } else { expected });
        assert!(process["counts"].as_str().unwrap().contains("calls of the CUDA"), "{process}");
    }
}

/// The other way round, as where the runtime is linked into a library.
#[test]
fn every_entry_point_of_the_runtime_with_no_runtime_to_be_probed() {
    let (libraries, _) = runtimes(&["libcudart.so"]).remove(0);
    let snapshot = Workload::new("runtime_calls.c", CALLS / 5).run(&libraries);
    assert_eq!(only_process(&snapshot).counted_at, [Layer::Driver]);
}

/// The driver gets its probes in the middle: what the runtime's calls told of is freed by the driver's,
/// and the other way round.
#[test]
fn a_driver_that_is_probed_later_takes_over() {
    let (libraries, _) = runtimes(&["libcuda.so.1"]).remove(0);
    let (driver, name) = (libraries.hidden("libcuda.so.1"), libraries.file("libcuda.so.1.0"));
    let other = libraries.file("other.so");
    let status =
        Command::new("cc").args(["-shared", "-x", "c", "/dev/null", "-o"]).arg(&other).status();
    assert!(status.unwrap().success());
    let mut workload = Workload::new("runtime_calls.c", CALLS / 5);
    workload.arguments = vec![driver, name, other];
    let snapshot = workload.run(&libraries);
    assert_eq!(only_process(&snapshot).counted_at, [Layer::Driver, Layer::Runtime]);
}

/// Copies of libraries in a folder of their own.
struct Libraries {
    folder: TempDir,
    paths: Vec<PathBuf>,
}

impl Libraries {
    /// Those whose names begin with one of `hidden` are links to a file of another name.
    fn of(originals: &[PathBuf], hidden: &[&str]) -> Self {
        let mut libraries = Self { folder: tempfile::tempdir().unwrap(), paths: Vec::new() };
        for original in originals {
            let name = original.file_name().unwrap().to_str().unwrap();
            let path = libraries.file(name);
            if hidden.iter().any(|prefix| name.starts_with(prefix)) {
                fs::copy(original, libraries.hidden(name)).unwrap();
                symlink(libraries.hidden(name), &path).unwrap();
            } else {
                fs::copy(original, &path).unwrap();
            }
            libraries.paths.push(path);
        }
        libraries
    }

    fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// What a hidden library is a link to.
    fn hidden(&self, name: &str) -> PathBuf {
        self.file(&format!("nothing-like-{name}"))
    }
}

/// Each version of the runtime with its driver, and its share of the calls.
fn runtimes(hidden: &[&str]) -> Vec<(Libraries, u32)> {
    let pythons = sandbox_pythons();
    let libraries = |python: &PathBuf| {
        let originals = [simulated_runtime(python), simulated(python, "libcuda.so.1")];
        Libraries::of(&originals, hidden)
    };
    let share = CALLS / pythons.len() as u32;
    pythons.iter().map(|python| (libraries(python), share)).collect()
}

/// A program, and what it is run with.
struct Workload {
    source: &'static str,
    calls: u32,
    arguments: Vec<PathBuf>,
}

impl Workload {
    fn new(source: &'static str, calls: u32) -> Self {
        Self { source, calls, arguments: Vec::new() }
    }

    /// Runs it to its end, and compares at every quiet point. Returns the last picture.
    fn run(&self, libraries: &Libraries) -> Snapshot {
        let mut talker = self.start(libraries);
        let mut trace = Trace::attach(talker.pid(), &LoadOptions::default());
        talker.say("go");
        let mut last = None;
        let mut points = 0;
        loop {
            let truth = trace.line(&mut talker);
            if truth["done"] == true {
                break;
            }
            let snapshot = trace.snapshot();
            assert_eq!(snapshot.tracer.dropped, 0);
            check(only_process(&snapshot), &truth);
            last = Some(snapshot);
            points += 1;
            talker.say("go");
        }
        assert!(talker.wait().success());
        assert_eq!(points, 11);
        last.unwrap()
    }

    /// Starts it; it waits before its first call.
    fn start(&self, libraries: &Libraries) -> Talker {
        let failing: Vec<String> = FAILING.iter().map(|call| format!("{call}#500")).collect();
        let mut talker = Talker::start(
            Command::new(compile(self.source, libraries))
                .args(["--wait", "--calls", &self.calls.to_string()])
                .args(&self.arguments)
                .env("CUDASIM_DEVICES", "2")
                .env("CUDASIM_MEMORY", "16G")
                .env("CUDASIM_FAIL", failing.join(",")),
        );
        assert_eq!(talker.line()["ready"], true);
        talker
    }
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

fn compile(source: &str, libraries: &Libraries) -> PathBuf {
    let program = libraries.file("program");
    let status = Command::new("cc")
        .args(["-O1", "-pthread", "-I"])
        .arg(workload("../cuda-sim"))
        .arg(workload(source))
        .args(&libraries.paths)
        .arg(format!("-Wl,-rpath,{}", libraries.folder.path().display()))
        .arg("-o")
        .arg(&program)
        .status()
        .unwrap();
    assert!(status.success());
    program
}
