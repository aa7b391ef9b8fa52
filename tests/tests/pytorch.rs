//! What PyTorch's hooks tell besides blocks: segments that go, memory that is refused, host memory.

use std::path::Path;

use cudatrace_tests::{
    sandbox_python, sandbox_pythons,
    steps::Steps,
    trace::{Trace, device, only_process, text},
};
use tracer_user::{
    bpf::LoadOptions,
    discover::plan::Extras,
    model::{Failure, Level, Site},
};

/// Nobody tells what was there before: neither the driver nor an allocator that keeps no totals of ours.
#[test]
fn what_nobody_tells_is_not_known() {
    let python = sandbox_python();
    let conf = [("PYTORCH_CUDA_ALLOC_CONF", "backend:cudaMallocAsync")];
    let mut steps = Steps::start(&python, &conf);
    let new =
        "import torch\nnew = lambda mib: torch.empty(mib << 20, dtype=torch.uint8, device='cuda')";
    steps.run(&format!("{new}\nold = [new(100), new(200)]"));
    let mut trace = Trace::attach(steps.pid(), &LoadOptions::default());
    steps.run("kept = [new(1) for _ in range(3)]\ndel old[0]");
    let snapshot = trace.snapshot();
    let seen = &only_process(&snapshot).devices;
    assert_eq!(seen.iter().map(|device| device.driver_bytes).sum::<u64>(), 3 << 20);
    assert!(seen.iter().all(|device| device.before_attach.is_none()), "{seen:?}");
    let text = text(&snapshot);
    assert!(text.contains("(since attach;"), "{text}");
}

/// Blocks and segments that were there before the tracer came: what `empty_cache()` returns is gone
/// from `reserved` at once, without any further allocation.
#[test]
fn empty_cache_after_a_late_attach_shows_at_once() {
    let confs = ["", "expandable_segments:True"];
    let runs = sandbox_pythons().into_iter().flat_map(|python| confs.map(|c| (python.clone(), c)));
    for (python, conf) in runs {
        let mut steps = Steps::start(&python, &[("PYTORCH_CUDA_ALLOC_CONF", conf)]);
        steps.run(
            "import torch\n\
             new = lambda mib: torch.empty(mib << 20, dtype=torch.uint8, device='cuda')\n\
             kept = [new(30), new(50)]\nfreed = [new(100), new(7)]",
        );
        let mut trace = Trace::attach(steps.pid(), &LoadOptions::default());
        let before = steps.run("del freed");
        let snapshot = trace.snapshot();
        let seen = device(only_process(&snapshot), 0);
        assert_eq!(seen.reserved_bytes, before["reserved"].as_u64(), "{conf}");
        let after = steps.run("torch.cuda.empty_cache()");
        assert!(after["reserved"].as_u64() < before["reserved"].as_u64());
        let snapshot = trace.snapshot();
        let seen = device(only_process(&snapshot), 0);
        assert_eq!(seen.reserved_bytes, after["reserved"].as_u64(), "{conf}");
        assert!(!seen.reserved_is_upper_bound, "{conf}");
        assert_eq!(seen.allocated_bytes, after["allocated"].as_u64(), "{conf}");
    }
}

fn failures_of(python: &Path, code: &str) -> Vec<Failure> {
    let mut steps = Steps::start(python, &[]);
    let mut trace = Trace::attach(steps.pid(), &LoadOptions::default());
    let answer = steps.run(&format!("import torch\n{code}"));
    assert_eq!(answer["printed"], "ok");
    let snapshot = trace.snapshot();
    assert!(snapshot.tracer.exact, "{:?}", snapshot.tracer);
    only_process(&snapshot).failures.clone()
}

/// The driver refuses, the pool returns its cache, and the second try succeeds: nobody is told.
#[test]
fn a_second_try_that_succeeds_is_not_shown_to_the_user() {
    for python in sandbox_pythons() {
        let failures = failures_of(
            &python,
            "x = torch.empty(5 << 30, dtype=torch.uint8, device='cuda')\ndel x\n\
             y = torch.empty(6 << 30, dtype=torch.uint8, device='cuda')\nprint('ok')",
        );
        assert!(!failures.is_empty());
        assert!(failures.iter().all(|f| f.user_visible == Some(false)), "{failures:?}");
        assert!(failures.iter().all(|f| f.bytes == 6 << 30), "{failures:?}");
    }
}

const REFUSED: &str = "try: torch.empty(20 << 30, dtype=torch.uint8, device='cuda')\n\
                       except torch.cuda.OutOfMemoryError: print('ok')";

#[test]
fn memory_that_the_user_is_refused_is() {
    for python in sandbox_pythons() {
        let failures = failures_of(&python, REFUSED);
        assert!(!failures.is_empty());
        for failure in &failures {
            assert_eq!(failure.user_visible, Some(true), "{failures:?}");
            let said = (failure.bytes, failure.error.as_str());
            assert_eq!(said, (20 << 30, "CUDA_ERROR_OUT_OF_MEMORY"));
        }
    }
}

/// The pool has a limit of its own; the driver is not asked.
#[test]
fn a_limit_of_the_pool_is_a_failure() {
    let code = format!("torch.cuda.set_per_process_memory_fraction(0.1)\n{REFUSED}");
    for python in sandbox_pythons() {
        let failures = failures_of(&python, &code.replace("20 << 30", "1 << 30"));
        assert_eq!(failures.len(), 1, "{failures:?}");
        assert_eq!(failures[0].user_visible, Some(true));
        assert_eq!((failures[0].bytes, failures[0].error.as_str()), (1 << 30, "limit of the pool"));
        assert_eq!(failures[0].frames[0].file, "<step>");
    }
}

/// Host memory: page-locked always, tensors where they are asked for.
#[test]
fn host_memory_by_line() {
    for cpu in [false, true] {
        let mut steps = Steps::start(&sandbox_python(), &[]);
        let mut trace = Trace::attach_with(steps.pid(), &LoadOptions::default(), Extras { cpu });
        steps.run("import torch\ntorch.cuda.init()");
        steps.run(
            "\n\nkept = [torch.empty(1 << 20, dtype=torch.uint8) for _ in range(3)]\n\
             locked = torch.empty(1 << 22, dtype=torch.uint8, pin_memory=True)\n\
             gone = torch.empty(1 << 23, dtype=torch.uint8)\ndel gone",
        );
        let snapshot = trace.snapshot();
        let process = only_process(&snapshot);
        let live = |level| -> Vec<&Site> {
            process.sites.iter().filter(|s| s.level == level && s.live_bytes > 0).collect()
        };
        let (tensors, locked) = (live(Level::Cpu), live(Level::Pinned));
        assert_eq!(process.host.pinned_bytes, Some(1 << 22));
        assert_eq!(locked[0].frames[0].line, Some(4));
        assert_eq!(process.host.cpu_bytes.is_some(), cpu);
        if !cpu {
            assert!(tensors.is_empty());
            continue;
        }
        let kept: Vec<_> = tensors.iter().filter(|site| site.live_bytes == 3 << 20).collect();
        assert_eq!(kept.len(), 1, "{tensors:?}");
        assert_eq!(
            (kept[0].live_blocks, kept[0].frames.last().unwrap().file.ends_with("steps.py")),
            (3, true)
        );
        assert!(!tensors.iter().any(|site| site.live_bytes >= 1 << 23), "{tensors:?}");
        assert_eq!(process.host.cpu_bytes, Some(tensors.iter().map(|s| s.live_bytes).sum()));
    }
}
