//! Pools beside PyTorch's own: those of CUDA graphs and `MemPool`, allocators that are plugged in, and
//! blocks that other streams still use. To the byte, at every step.

use std::{path::Path, process::Command};

use cudatrace_tests::{
    sandbox_python, sandbox_pythons, simulated_runtime,
    steps::Steps,
    trace::{Trace, device, live_bytes, only_process},
    workload,
};
use serde_json::Value;
use tracer_user::{
    bpf::LoadOptions,
    model::{Level, Snapshot},
};

const NEW: &str = "import torch\n\
                   new = lambda mib: torch.empty(mib << 20, dtype=torch.uint8, device='cuda')";

const EXPANDABLE: &str = "expandable_segments:True";

/// What a traced process says about itself, next to the trace.
struct Told {
    steps: Steps,
    trace: Trace,
}

impl Told {
    fn start(python: &Path) -> Self {
        Self::start_with(python, "")
    }

    fn start_with(python: &Path, conf: &str) -> Self {
        let mut steps = Steps::start(python, &[("PYTORCH_CUDA_ALLOC_CONF", conf)]);
        let trace = Trace::attach(steps.pid(), &LoadOptions::default());
        steps.run(NEW);
        Self { steps, trace }
    }

    /// Runs code, after which the trace has to agree with PyTorch and the driver.
    fn step(&mut self, code: &str) -> (Value, Snapshot) {
        let truth = self.steps.run(code);
        let snapshot = self.trace.snapshot();
        let process = only_process(&snapshot);
        let seen = device(process, 0);
        assert!(snapshot.tracer.exact, "{:?}", snapshot.tracer);
        assert_eq!(seen.allocated_bytes, truth["allocated"].as_u64(), "{code}: {truth}");
        assert_eq!(seen.reserved_bytes, truth["reserved"].as_u64(), "{code}: {truth}");
        assert_eq!(Some(seen.driver_bytes), truth["driver"].as_u64(), "{code}: {truth}");
        assert_eq!(Some(live_bytes(process, Level::Driver, 0)), truth["driver"].as_u64(), "{code}");
        assert_eq!(Some(live_bytes(process, Level::Pytorch, 0)), truth["allocated"].as_u64());
        // Of blocks that another stream still uses, PyTorch counts the bytes asked for until that is
        // done, but not the block.
        if truth["active"] == truth["allocated"] {
            let blocks = process.sites.iter().filter(|site| site.level == Level::Pytorch);
            let requested: Option<u64> = blocks.map(|site| site.requested_bytes).sum();
            assert_eq!(requested, truth["requested"].as_u64(), "{code}: {truth}");
        }
        (truth, snapshot)
    }

    /// `empty_cache()` returns what the trace had called releasable, if it can know.
    fn empty_cache(&mut self, is_known: bool) {
        let (before, snapshot) = self.step("");
        let releasable = device(only_process(&snapshot), 0).releasable_bytes;
        let (after, snapshot) = self.step("torch.cuda.empty_cache()");
        let returned = before["reserved"].as_u64().zip(after["reserved"].as_u64());
        let returned = returned.map(|(before, after)| before - after);
        assert_eq!(releasable, returned.filter(|_| is_known), "{before} {after}");
        let left = device(only_process(&snapshot), 0).releasable_bytes;
        assert_eq!(left, is_known.then_some(0));
    }
}

/// Blocks of all sizes, half of them free: in whole segments, and in pages of expandable ones.
#[test]
fn what_empty_cache_returns() {
    for (python, conf) in sandbox_pythons().iter().flat_map(|p| ["", EXPANDABLE].map(|c| (p, c))) {
        let mut told = Told::start_with(python, conf);
        told.step("import random\nchooser, live = random.Random(7), [new(1)]");
        for _ in 0..4 {
            told.step(
                "for _ in range(150):\n  size = int(2 ** chooser.uniform(0, 26))\n  \
                 live.append(torch.empty(size, dtype=torch.uint8, device='cuda'))\n\
                 chooser.shuffle(live)\ndel live[:120]",
            );
            told.empty_cache(true);
        }
    }
}

/// A block that another stream uses is free for its owner at once, and kept until that stream is done.
#[test]
fn blocks_that_other_streams_use() {
    for python in sandbox_pythons() {
        let mut told = Told::start(&python);
        told.step("side = torch.cuda.Stream()\nx, y = new(30), new(3)");
        told.step("x.record_stream(side)\ny.record_stream(side)");
        told.step("del x, y");
        told.step("z = new(30)");
        told.step("z.record_stream(side)\ndel z");
        told.empty_cache(true);
    }
}

/// The memory of a captured graph is kept for its replays, and `empty_cache()` does not return it
/// before the graph is gone.
#[test]
fn pools_of_graphs() {
    for python in sandbox_pythons() {
        // 2.3.1 tells that there are private pools, and not which segments are theirs.
        let tells_pool = python == sandbox_python();
        let mut told = Told::start(&python);
        told.step("kept, freed = new(50), new(70)\ndel freed");
        told.step("graph = torch.cuda.CUDAGraph()");
        told.step(
            "with torch.cuda.graph(graph):\n  inner, result = new(40), new(25)\n  small = new(1)\n  del inner",
        );
        told.step("for _ in range(3): graph.replay()");
        told.step("other = new(40)");
        told.step("del other");
        told.empty_cache(tells_pool);
        told.step("del result, small");
        told.empty_cache(tells_pool);
        told.step("graph.reset()\ndel graph\nimport gc\ngc.collect()");
        told.step("torch.cuda.empty_cache()");
        told.step("kept = None");
        told.empty_cache(tells_pool);
    }
}

/// A pool of the user's own, which only the current PyTorch has: with PyTorch's way to the driver, and
/// with an allocator that is plugged in below it.
#[test]
fn pools_of_the_user() {
    let folder = tempfile::tempdir().unwrap();
    let library = plugin(&sandbox_python(), folder.path());
    let plugged = format!(
        "torch.cuda.memory.CUDAPluggableAllocator('{}', 'take', 'give')",
        library.display()
    );
    for below in ["None", "plugged.allocator()"] {
        let mut told = Told::start(&sandbox_python());
        told.step(&format!("plugged = {plugged}\nkept = new(30)"));
        told.step(&format!("pool = torch.cuda.MemPool({below})"));
        told.step("with torch.cuda.use_mem_pool(pool): a, b, c = new(30), new(5), new(1)");
        told.step("del a");
        told.step("other = new(30)\ndel other");
        told.empty_cache(true);
        told.step("with torch.cuda.use_mem_pool(pool): a = new(30)");
        told.step("del a, b, c");
        told.empty_cache(true);
        told.step("del pool");
        told.step("torch.cuda.empty_cache()");
        told.step("kept = None");
        told.empty_cache(true);
    }
}

/// An allocator in C that is plugged in reports no blocks: all is at the driver level, once, by line.
#[test]
fn an_allocator_that_is_plugged_in() {
    for python in sandbox_pythons() {
        let folder = tempfile::tempdir().unwrap();
        let library = plugin(&python, folder.path());
        let mut steps = Steps::start(&python, &[]);
        let mut trace = Trace::attach(steps.pid(), &LoadOptions::default());
        steps.run(&format!(
            "{NEW}\nplugged = torch.cuda.memory.CUDAPluggableAllocator('{}', 'take', 'give')\n\
             torch.cuda.memory.change_current_allocator(plugged)",
            library.display()
        ));
        for code in [
            "kept = [new(n) for n in range(1, 20)]",
            "del kept[3:9]",
            "kept.append(torch.zeros(1 << 20, device='cuda') + 1)",
            "kept.clear()",
        ] {
            let truth = steps.run(code);
            let snapshot = trace.snapshot();
            let process = only_process(&snapshot);
            assert!(snapshot.tracer.exact, "{:?}", snapshot.tracer);
            assert_eq!(
                Some(live_bytes(process, Level::Driver, 0)),
                truth["driver"].as_u64(),
                "{code}"
            );
            assert!(process.sites.iter().all(|site| site.own_bytes() == site.live_bytes));
            let of_list = process.sites.iter().find(|site| site.total_blocks == 19);
            let live = of_list.map(|site| (site.live_blocks, site.frames.len() > 1));
            let expected = match code {
                "kept = [new(n) for n in range(1, 20)]" => 19,
                "kept.clear()" => 0,
                _ => 13,
            };
            assert_eq!(live, Some((expected, true)), "{code}");
        }
    }
}

/// Compiles the allocator for a sandbox's runtime.
fn plugin(python: &Path, folder: &Path) -> std::path::PathBuf {
    let library = folder.join("plugged.so");
    let status = Command::new("cc")
        .args(["-shared", "-fPIC", "-O1"])
        .arg(workload("pluggable.c"))
        .arg(simulated_runtime(python))
        .arg("-o")
        .arg(&library)
        .status()
        .unwrap();
    assert!(status.success());
    library
}
