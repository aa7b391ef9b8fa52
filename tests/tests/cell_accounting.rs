//! What runs of cells allocate, free and leave, in a real kernel with real PyTorch, compared with what the
//! notebook measures itself, to the byte.

use cudatrace_tests::{
    child::Talker,
    sandbox_python,
    trace::{Trace, only_process, text},
    workload,
};
use serde_json::{Value, json};
use tracer_user::{
    bpf::LoadOptions,
    model::{Cell, Execution, ProcessSnapshot},
};

struct Kernel {
    driver: Talker,
    pid: u32,
    _folder: tempfile::TempDir,
}

impl Kernel {
    /// A kernel that keeps a history, and has PyTorch and some memory.
    fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().to_str().unwrap();
        let workloads = workload("");
        let env = [
            ("IPYTHONDIR", path),
            ("JUPYTER_RUNTIME_DIR", path),
            ("PYTHONPATH", workloads.to_str().unwrap()),
            ("CUDASIM_DEVICES", "2"),
            ("CUDASIM_MEMORY", "8G"),
        ];
        // Any argument will do: without one the history is in memory.
        let arguments = ["--colors=NoColor"];
        let mut driver =
            Talker::python(&sandbox_python(), &workload("kernel_driver.py"), &arguments, &env);
        let pid = driver.line()["pid"].as_u64().unwrap() as u32;
        let mut kernel = Self { driver, pid, _folder: folder };
        for source in [
            "import asyncio, gc, json, threading, time, torch, cell_totals\n\
             from cell_totals import mark, resume, take, own",
            "cell_totals.install(get_ipython())\n\
             before = [torch.empty(100_000, device=f'cuda:{device}') for device in range(2)]",
        ] {
            kernel.driver.say(&json!({ "run": source }).to_string());
            let answer = kernel.driver.line();
            assert_eq!(answer["status"], "ok", "{answer}");
        }
        kernel
    }

    fn request(&mut self, trace: &mut Trace, request: &Value) -> Value {
        self.driver.say(&request.to_string());
        trace.line(&mut self.driver)
    }

    fn run(&mut self, trace: &mut Trace, source: &str) -> String {
        let answer = self.request(trace, &json!({ "run": source }));
        assert_eq!(answer["status"], "ok", "{source}: {answer}");
        answer["stdout"].as_str().unwrap().to_owned()
    }

    fn truth(&mut self, trace: &mut Trace) -> Truth {
        let printed = self.run(trace, "mark()\nprint(json.dumps(cell_totals.truth()))");
        let truth: Value = serde_json::from_str(&printed).unwrap();
        assert_eq!(truth["hooks_agree"], true);
        let runs = truth["runs"].as_array().unwrap().iter().map(|run| Run {
            cell: run["cell"].as_u64().map(|cell| cell as u32),
            change: run["change"].as_array().unwrap().iter().map(|n| n.as_i64().unwrap()).collect(),
            allocated: run["allocated"].as_u64().unwrap(),
            left: run["left"].as_u64().unwrap(),
        });
        Truth { runs: runs.collect(), total: truth["total"].as_i64().unwrap() }
    }
}

/// What the notebook says.
struct Truth {
    /// In their order.
    runs: Vec<Run>,
    /// `memory_allocated()` of all devices at the end.
    total: i64,
}

#[derive(Debug, PartialEq, Eq)]
struct Run {
    cell: Option<u32>,
    /// By device.
    change: Vec<i64>,
    allocated: u64,
    left: u64,
}

fn run(execution: &Execution) -> Run {
    let mut change = vec![0; 2];
    for device in &execution.devices {
        change[usize::from(device.index.0)] = device.change_bytes.unwrap();
    }
    assert_eq!(execution.change_bytes, Some(change.iter().sum()));
    assert_eq!(execution.freed_bytes, execution.allocated_bytes - execution.left_bytes);
    assert!(execution.freed_later_bytes.is_none_or(|bytes| bytes <= execution.freed_bytes));
    Run {
        cell: execution.cell,
        change,
        allocated: execution.allocated_bytes,
        left: execution.left_bytes,
    }
}

/// Those whose begin was seen, in their order.
fn runs(process: &ProcessSnapshot) -> Vec<Run> {
    let executions = process.cells.iter().flat_map(|cell| &cell.executions);
    let begun = executions.filter(|execution| execution.started_s.is_some());
    let mut executions: Vec<&Execution> = begun.collect();
    executions.sort_by(|a, b| a.started_s.partial_cmp(&b.started_s).unwrap());
    executions.into_iter().map(run).collect()
}

/// What people do in notebooks: some cells are run again, some are edited.
const CELLS: &[&str] = &[
    "mark()\na = take(1000)",
    "mark()\nb = [take(2000, 1) for _ in range(3)]",
    "mark()\ndef load(n):\n    return take(n)\nmodel = load(5000)",
    // A function of another cell; what the name had is freed.
    "mark()\nmodel = load(6000)",
    "mark()\nlosses = []\ndef step():\n    losses.append(take(700))",
    "mark()\nstep()",
    "mark()\nstep()",
    "mark()\nstep()",
    "mark()\na = take(1000)",
    "mark()\na = take(1000)",
    "mark()\na = take(1000)  # edited",
    "%%time\nmark()\ntimed = take(1500)",
    "mark()\n%time x = take(800)",
    "%%capture out\nmark()\ncaptured = take(900)",
    "%%capture out\nmark()\ncaptured = take(900)",
    "run = mark(); one = take(640)",
    "run = mark(); one = take(640)",
    "mark()\nasync def g():\n    await asyncio.sleep(0)\n    return take(1200)\nr = await g()",
    "mark()\nr = await g()",
    // Displayed, and kept by IPython.
    "mark()\ntype('Kept', (), {'tensor': take(333)})()",
    "run = mark()\ngo, done = threading.Event(), threading.Event()\nthreaded = []\n\
     def work(run=run):\n    go.wait()\n    threaded.append(take(2500, 1, run))\n    done.set()\n\
     thread = threading.Thread(target=work)\nthread.start()",
    "mark()\ngo.set()\ndone.wait()\nthread.join()",
    "mark()\nw = take(4096).requires_grad_()\nloss = own((w * 2).sum())\nloss.backward()\n_ = own(w.grad)",
    "mark()\nw = take(4096).requires_grad_()\nloss = own((w * 2).sum())\nloss.backward()\n_ = own(w.grad)",
    // Another run goes on in the middle of this one.
    "run = mark()\nx = take(50)\nget_ipython().run_cell('mark(False)\\ny = take(60)')\n\
     resume(run)\nz = take(70)",
    "mark()\nbig = take(8 << 20)",
    "mark()\nbig = None\ntorch.cuda.empty_cache()",
    "mark()\ndel a, b\ngc.collect()",
    "mark()\ndel before[1]",
];

/// A notebook with errors, interrupts, and cells without a number.
#[test]
fn every_run_is_what_the_notebook_measures() {
    let mut kernel = Kernel::start();
    let mut trace = Trace::attach(kernel.pid, &LoadOptions::default());
    for source in CELLS {
        kernel.run(&mut trace, source);
    }
    let failing = "mark()\ndef fail():\n    t = take(9000)\n    raise ValueError(t.shape)\nfail()";
    for source in [failing, failing, "mark(", "mark()\n1 / 0"] {
        let answer = kernel.request(&mut trace, &json!({ "run": source }));
        assert_eq!(answer["status"], "error", "{answer}");
    }
    // The first one's traceback is kept no more.
    kernel.run(&mut trace, "mark()\n_ = gc.collect()");
    let source = "mark()\nheld = take(4000)\nprint('now', flush=True)\ntime.sleep(60)\nmore = 1";
    for _ in 0..2 {
        let answer = kernel.request(&mut trace, &json!({ "run": source, "interrupt": "now" }));
        assert_eq!(answer["status"], "error", "{answer}");
    }
    for _ in 0..2 {
        let silent = json!({ "run": "mark(False)\nquiet = take(3000)", "store_history": false });
        let answer = kernel.request(&mut trace, &silent);
        assert_eq!(answer["status"], "ok", "{answer}");
    }
    let truth = kernel.truth(&mut trace);
    let snapshot = trace.finish();
    assert!(snapshot.tracer.exact, "{:?}", snapshot.tracer);
    let process = only_process(&snapshot);
    let seen = runs(process);
    for (number, (seen, run)) in seen.iter().zip(&truth.runs).enumerate() {
        assert_eq!(seen, run, "run {number}");
    }
    assert_eq!(seen.len(), truth.runs.len());
    assert!(seen.len() > 35, "the notebook has lost its cells: {}", seen.len());
    totals(process, &truth);
    cells(process);
    let text = text(&snapshot);
    println!("{text}");
    assert!(text.contains("running it again leaves +3.0 KiB (3 runs: In[8], In[9], In[10])"));
}

/// Every byte is in one cell.
fn totals(process: &ProcessSnapshot, truth: &Truth) {
    let device = process.devices.iter().map(|device| device.allocated_bytes.unwrap() as i64);
    assert_eq!(device.sum::<i64>(), truth.total);
    let left: u64 = process.cells.iter().map(|cell| cell.left_bytes).sum();
    let live = process.sites.iter().map(|site| site.own_bytes()).sum::<u64>();
    assert_eq!(left, live);
    assert_eq!(process.cells_unlisted.runs, 0);
}

/// How runs are put together, and what is said of a cell.
fn cells(process: &ProcessSnapshot) {
    let cell = |source: &str| -> &Cell {
        let mut found = process.cells.iter().filter(|cell| {
            let numbers = cell.executions.iter().filter_map(|run| run.cell);
            let texts: Vec<&str> =
                numbers.filter_map(|number| CELLS.get(number as usize - 3)).copied().collect();
            texts.first() == Some(&source)
        });
        found.next().unwrap()
    };
    let of = |source| {
        let cell = cell(source);
        (cell.cell, cell.runs, cell.again_bytes)
    };
    assert_eq!(of("mark()\nstep()"), (Some(10), 3, Some(3072)));
    // Bound anew.
    assert_eq!(of("mark()\na = take(1000)"), (Some(12), 3, Some(0)));
    assert_eq!(of("mark()\na = take(1000)  # edited"), (Some(13), 1, None));
    assert_eq!(of("%%capture out\nmark()\ncaptured = take(900)"), (Some(17), 2, Some(0)));
    assert_eq!(of("run = mark(); one = take(640)"), (Some(19), 2, Some(0)));
    assert_eq!(
        cell("%%capture out\nmark()\ncaptured = take(900)").source.as_deref(),
        Some("%%capture out")
    );
    let silent: Vec<&Cell> = process.cells.iter().filter(|cell| cell.cell.is_none()).collect();
    let silent: Vec<(u64, bool)> =
        silent.iter().map(|cell| (cell.runs, cell.cell_seen.is_some())).collect();
    // The one inside of another cell, and the one that is run twice.
    assert_eq!(silent, [(1, true), (2, true)]);
    // What went later: what was replaced in the runs after it.
    let later: Vec<Option<u64>> =
        cell("mark()\na = take(1000)").executions.iter().map(|run| run.freed_later_bytes).collect();
    assert_eq!(later, [Some(4096); 3]);
}
