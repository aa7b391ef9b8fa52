//! A real Jupyter kernel.

use std::collections::BTreeMap;

use cudatrace_tests::{
    child::Talker,
    sandbox_python,
    trace::{Trace, device, only_process},
    workload,
};
use serde_json::{Value, json};
use tracer_user::{
    bpf::LoadOptions,
    model::{Level, Site},
};

struct Kernel {
    driver: Talker,
    pid: u32,
}

impl Kernel {
    fn start() -> Self {
        let env = [("CUDASIM_DEVICES", "2"), ("CUDASIM_MEMORY", "8G")];
        let mut driver =
            Talker::python(&sandbox_python(), &workload("kernel_driver.py"), &[], &env);
        let pid = driver.line()["pid"].as_u64().unwrap() as u32;
        Self { driver, pid }
    }

    /// Runs a cell while the trace goes on; returns what it printed.
    fn run(&mut self, trace: &mut Trace, source: &str) -> String {
        self.driver.say(&json!({ "run": source }).to_string());
        let answer = trace.line(&mut self.driver);
        assert_eq!(answer["status"], "ok", "{answer}");
        answer["stdout"].as_str().unwrap().trim().to_owned()
    }
}

/// Attached to an idle kernel that has not imported torch: nothing is missed.
#[test]
fn idle_kernel_before_import() {
    let mut kernel = Kernel::start();
    let mut trace = Trace::attach(kernel.pid, &LoadOptions::default());
    let printed = kernel.run(
        &mut trace,
        "import torch, json\n\
         kept = [torch.empty(1000 * (i + 1), device=f'cuda:{i % 2}') for i in range(50)]\n\
         print(json.dumps([[torch.cuda.memory_allocated(i), torch.cuda.memory_reserved(i)] for i in range(2)]))",
    );
    let truth: Value = serde_json::from_str(&printed).unwrap();
    let snapshot = trace.snapshot();
    assert!(snapshot.tracer.exact);
    let process = only_process(&snapshot);
    for index in 0..2 {
        let device = device(process, index);
        assert_eq!(device.before_attach.unwrap_or_default().allocated_bytes, 0);
        assert_eq!(device.before_attach.unwrap_or_default().reserved_bytes, 0);
        assert_eq!(device.allocated_bytes, truth[index][0].as_u64());
        assert_eq!(device.reserved_bytes, truth[index][1].as_u64());
    }
    let blocks: u64 = pool_sites(&process.sites).map(|site| site.total_blocks).sum();
    assert_eq!(blocks, 50);
    assert!(!snapshot.tracer.coverage.iter().any(|entry| entry.is_gap()), "{:?}", snapshot.tracer);
}

fn pool_sites(sites: &[Site]) -> impl Iterator<Item = &Site> {
    sites.iter().filter(|site| site.level == Level::Pytorch)
}

/// Cells that differ only in one line, each compiled where the last one was freed: every one keeps
/// its own file and line.
#[test]
fn cells_at_the_same_address_are_not_confused() {
    let mut kernel = Kernel::start();
    let mut trace = Trace::attach(kernel.pid, &LoadOptions::default());
    kernel.run(&mut trace, "import torch, sys\nkept = []");
    let mut expected = BTreeMap::new();
    for number in 0..40u64 {
        let bytes = 512 * (number + 1);
        let source = format!(
            "{}for _ in range(1):\n    kept.append(torch.empty({bytes}, dtype=torch.uint8, device='cuda'))\n\
             print(sys._getframe().f_code.co_filename)",
            "pass\n".repeat(number as usize % 5),
        );
        let file = kernel.run(&mut trace, &source);
        expected.insert((file, number % 5 + 2), bytes);
    }
    let snapshot = trace.snapshot();
    let captured: BTreeMap<(String, u64), u64> = pool_sites(&only_process(&snapshot).sites)
        .map(|site| {
            let frame = &site.frames[0];
            assert_eq!(frame.function, "<module>");
            assert_eq!(site.frames.len(), 1, "what is outside the cell is not taken");
            ((frame.file.clone(), u64::from(frame.line.unwrap())), site.live_bytes)
        })
        .collect();
    assert_eq!(captured, expected);
}

/// To their end, stacks go through IPython and the kernel's loop.
#[test]
fn full_stacks_go_to_the_end() {
    let mut kernel = Kernel::start();
    let options = LoadOptions { full_stacks: true, ..LoadOptions::default() };
    let mut trace = Trace::attach(kernel.pid, &options);
    kernel.run(&mut trace, "import torch\nkept = torch.empty(512, device='cuda')");
    let snapshot = trace.snapshot();
    let site = pool_sites(&only_process(&snapshot).sites).next().unwrap();
    let functions: Vec<&str> = site.frames.iter().map(|frame| frame.function.as_str()).collect();
    assert!(functions.contains(&"run_code"), "{functions:?}");
    assert!(functions.last().unwrap().starts_with("_run_module"), "{functions:?}");
    assert_eq!(site.frames_note, None);
}

/// An error of a traced call reaches the report, and the notebook.
#[test]
fn out_of_memory_is_a_failure_with_its_size() {
    let mut kernel = Kernel::start();
    let mut trace = Trace::attach(kernel.pid, &LoadOptions::default());
    let printed = kernel.run(
        &mut trace,
        "import torch\n\
         try:\n    torch.empty(20 << 30, dtype=torch.uint8, device='cuda')\n\
         except torch.OutOfMemoryError as error: print('raised')",
    );
    assert_eq!(printed, "raised");
    let snapshot = trace.snapshot();
    let failures = &only_process(&snapshot).failures;
    assert!(!failures.is_empty());
    for failure in failures {
        assert_eq!(failure.error, "CUDA_ERROR_OUT_OF_MEMORY");
        assert_eq!(failure.bytes, 20 << 30);
    }
}

/// torch is imported by a thread, and allocates 50 ms later: nothing is missed, neither with the
/// libraries foreseen nor where they come from a folder that nobody could foresee.
#[test]
fn a_late_import_in_a_thread_misses_nothing() {
    let packages = cudatrace_tests::simulated_driver();
    let (lib, packages) = (packages.parent().unwrap(), packages.ancestors().nth(3).unwrap());
    let (lib, packages) = (lib.to_str().unwrap(), packages.to_str().unwrap());
    let hidden = std::fs::read_link(sandbox_python()).unwrap();
    let hidden = sandbox_python().parent().unwrap().join(hidden).canonicalize().unwrap();
    // The sandbox's interpreter finds torch by itself; the one that it was made from does not, and
    // only its driver is foreseen, by the loader's path.
    for (python, path) in [(sandbox_python(), ""), (hidden, packages)] {
        let env = [("LD_LIBRARY_PATH", lib), ("CUDASIM_DEVICES", "1")];
        let mut talker = Talker::python(&python, &workload("late_import.py"), &[path], &env);
        assert_eq!(talker.line()["ready"], true);
        let mut trace = Trace::attach(talker.pid(), &LoadOptions::default());
        talker.say("go");
        let truth = trace.line(&mut talker);
        let snapshot = trace.snapshot();
        let process = only_process(&snapshot);
        assert!(snapshot.tracer.exact, "{:?}", snapshot.tracer);
        assert_eq!(pool_sites(&process.sites).map(|site| site.total_blocks).sum::<u64>(), 1000);
        let device = device(process, 0);
        assert_eq!(device.before_attach.unwrap_or_default().allocated_bytes, 0);
        assert_eq!(device.allocated_bytes, truth["allocated"].as_u64());
        talker.say("end");
    }
}
