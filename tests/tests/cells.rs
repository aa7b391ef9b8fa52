//! Notebooks in real kernels of several generations: every allocation has the number, the line and the text
//! that IPython's own list of inputs has for it.

use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::OsString,
    fs,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use cudatrace_tests::{
    child::Talker,
    list, simulated_driver,
    trace::{Trace, only_process, text},
    workload,
};
use serde_json::{Value, json};
use tracer_user::{
    bpf::LoadOptions,
    model::{Frame, ProcessSnapshot},
};

/// Cell, line and text.
type Place = (Option<u64>, Option<u64>, Option<String>);

/// Any argument will do: without one the kernel's history is in memory.
const WITH_HISTORY: [&str; 1] = ["--colors=NoColor"];

/// A kernel in a folder of its own.
struct Kernel {
    driver: Talker,
    pid: u32,
    folder: tempfile::TempDir,
}

impl Kernel {
    fn start(python: &Path, arguments: &[&str]) -> Self {
        Self::start_by(&[], python, arguments)
    }

    /// Starts it by a command, in whose words `{}` stands for the folder.
    fn start_by(command: &[&str], python: &Path, arguments: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let text = folder.path().to_str().unwrap().to_owned();
        let library = simulated_driver();
        let workloads = workload("");
        let env = [
            ("IPYTHONDIR", text.as_str()),
            ("JUPYTER_RUNTIME_DIR", text.as_str()),
            ("PYTHONPATH", workloads.to_str().unwrap()),
            ("MARKS_LIBCUDA", library.to_str().unwrap()),
            ("CUDASIM_DEVICES", "1"),
            ("PYDEVD_DISABLE_FILE_VALIDATION", "1"),
        ];
        let command = command.iter().map(|word| OsString::from(word.replace("{}", &text)));
        let mut words = command.chain([python.into(), workload("kernel_driver.py").into()]);
        let mut command = Command::new(words.next().unwrap());
        let mut driver = Talker::start(command.args(words).args(arguments).envs(env));
        let pid = driver.line()["pid"].as_u64().unwrap() as u32;
        // It loads the driver, which nobody could foresee where it is.
        driver.say(&json!({ "run": "from marks import take" }).to_string());
        assert_eq!(driver.line()["status"], "ok");
        Self { driver, pid, folder }
    }

    fn request(&mut self, trace: &mut Trace, request: &Value) -> Value {
        self.driver.say(&request.to_string());
        trace.line(&mut self.driver)
    }

    /// Runs a cell that has to succeed; returns what it printed.
    fn run(&mut self, trace: &mut Trace, source: &str) -> String {
        let answer = self.request(trace, &json!({ "run": source }));
        assert_eq!(answer["status"], "ok", "{source}: {answer}");
        answer["stdout"].as_str().unwrap().to_owned()
    }

    /// Bytes by place, as the notebook itself says.
    fn truth(&mut self, trace: &mut Trace) -> BTreeMap<Place, u64> {
        let printed = self.run(trace, "import json, marks; print(json.dumps(marks.truth()))");
        let truth: Value = serde_json::from_str(&printed).unwrap();
        let mut places = BTreeMap::new();
        for entry in truth.as_array().unwrap() {
            let text = entry[2].as_str().map(str::to_owned);
            let place = (entry[0].as_u64(), entry[1].as_u64(), text);
            *places.entry(place).or_default() += entry[3].as_u64().unwrap();
        }
        places
    }
}

/// The innermost frame in a cell.
fn in_cell(frames: &[Frame]) -> Option<&Frame> {
    frames.iter().find(|frame| frame.cell.is_some() || frame.cell_seen.is_some())
}

/// Bytes by place, as captured.
fn captured(process: &ProcessSnapshot) -> BTreeMap<Place, u64> {
    let mut places = BTreeMap::new();
    for site in &process.sites {
        let frame = in_cell(&site.frames);
        let place = frame.map_or((None, None, None), |frame| {
            (frame.cell.map(u64::from), frame.cell_line.map(u64::from), frame.source.clone())
        });
        *places.entry(place).or_default() += site.total_bytes;
    }
    places
}

fn kernels() -> Vec<PathBuf> {
    list("CUDATRACE_NOTEBOOK_PYTHONS")
}

/// What people do in notebooks. A mark occurs once in a cell.
const CELLS: [&str; 39] = [
    r#"x = take("plain")"#,
    "# a comment\n\nx = 1\n\nx = take(\"fourth\")\n",
    "def f():\n    y = 2\n    return take(\"in f\")",
    "f()",
    // Equal to others, next to each other and apart.
    r#"x = take("plain")"#,
    r#"x = take("plain")"#,
    "f()",
    r#"x = take("plain")"#,
    // Edited, and run again.
    "def f():\n\n\n    return take(\"in f\")",
    "f()",
    "for i in range(3):\n    take(\"loop\")",
    "for i in range(3):\n    take(\"loop\")",
    // Magics.
    r#"%time take("time")"#,
    "y = 1\n%time z = take(\"time of a statement\")",
    "%%time\n\ny = 1\ntake(\"body of time\")",
    "%%time\nz = take(\"body of time\")\ny = 2\n",
    "%%time\nz = take(\"body of time\")\ny = 2\n",
    r#"%timeit -n1 -r1 take("timeit")"#,
    "%%timeit -n1 -r1\npass\ntake(\"body of timeit\")",
    "%%capture out\na = 1\ntake(\"body of capture\")",
    "%%capture out\na = 1\ntake(\"body of capture\")",
    "%%capture\n%%time\nb = 1\nb = take(\"nested\")",
    "\n  \n\n# after empty lines\nx = take(\"blank\")",
    r#"exec('take("exec")')"#,
    "y = 1\n%run -i {}/script.py",
    // Asynchronous.
    "import asyncio\nasync def g():\n    await asyncio.sleep(0)\n    return take(\"in g\")\nawait g()",
    "await g()",
    "await asyncio.sleep(0)\nx = take(\"after await\")",
    // Other kinds of code.
    "class C:\n    x = take(\"in a class\")\n    def m(self):\n        return take(\"in a method\")\nC().m()",
    "c = C()\nc.m()",
    "x = [take(\"comprehension\") for _ in range(2)]\nx = (lambda: take(\"lambda\"))()",
    "x = sum(1 for _ in [0] if not\n        take(\"generator\"))",
    "import threading\nt = threading.Thread(target=lambda: take(\"thread\"))\nt.start()\nt.join()",
    r#"p = take("first"); q = take("second")"#,
    "s = '\u{1b}[31m größe 数'; x = take(\"escape\")  # \u{202e}\u{7}",
    "if True:\n    try:\n        raise KeyError\n    except KeyError:\n        x = take(\"handler\")\n",
    "x = 1\nx = 2\nx = 3\nx = take(\"statements\")\nx = 5\nx = take(\"more\")",
    "x = 1\nx = 2\nx = 3\nx = take(\"statements\")\nx = 5\nx = take(\"more\")",
    "x = take(\"last\")\nx",
];

/// A notebook of 50 cells, with errors, an interrupt, and cells without a number.
#[test]
fn every_allocation_is_in_its_cell() {
    for python in kernels() {
        println!("{}", python.display());
        let mut kernel = Kernel::start(&python, &WITH_HISTORY);
        fs::write(
            kernel.folder.path().join("script.py"),
            "import marks\nmarks.take('script.py')\n",
        )
        .unwrap();
        let mut trace = Trace::attach(kernel.pid, &LoadOptions::default());
        for source in CELLS {
            let source = source.replace("{}", kernel.folder.path().to_str().unwrap());
            let answer = kernel.request(&mut trace, &json!({ "run": source }));
            if answer["status"] != "ok" {
                panic!("{source}: {answer}");
            }
        }
        for source in ["take(\"before an error\")\nraise ValueError(1)", "take(\"never\"", "1 / 0"]
        {
            for _ in 0..2 {
                let answer = kernel.request(&mut trace, &json!({ "run": source }));
                assert_eq!(answer["status"], "error", "{source}");
            }
        }
        let source = "import time\ntake(\"interrupted\")\nprint('now', flush=True)\ntime.sleep(60)";
        for _ in 0..2 {
            let answer = kernel.request(&mut trace, &json!({ "run": source, "interrupt": "now" }));
            assert_eq!(answer["status"], "error", "{answer}");
        }
        let huge = format!("{}x = take(\"far below\")", "# a comment\n".repeat(20_000));
        kernel.run(&mut trace, &huge);
        let truth = kernel.truth(&mut trace);
        let snapshot = trace.finish();
        let process = only_process(&snapshot);
        compare(&truth, &captured(process));
        assert!(truth.len() > 40, "the notebook has lost its allocations: {}", truth.len());
    }
}

/// That both are the same, with everything that is not.
fn compare(truth: &BTreeMap<Place, u64>, captured: &BTreeMap<Place, u64>) {
    let mut wrong = 0;
    for (place, bytes) in truth {
        if captured.get(place) != Some(bytes) {
            wrong += 1;
            eprintln!("{place:?}: {:?} instead of {bytes}", captured.get(place));
        }
    }
    for (place, bytes) in captured.iter().filter(|(place, _)| !truth.contains_key(*place)) {
        wrong += 1;
        eprintln!("{place:?} is nowhere: {bytes}");
    }
    assert_eq!(wrong, 0, "of {} places", truth.len());
}

/// The kernel's own list of inputs says the number; where nobody outside can know it, none is made up.
fn without_numbers(trace: Trace, truth: &BTreeMap<Place, u64>) {
    let snapshot = trace.finish();
    for (number, line, _) in captured(only_process(&snapshot)).keys() {
        assert_eq!((*number, *line), (None, None));
    }
    let seen: BTreeSet<Option<u32>> = only_process(&snapshot)
        .sites
        .iter()
        .filter_map(|site| in_cell(&site.frames))
        .map(|frame| frame.cell_seen)
        .collect();
    assert!(truth.len() >= 2 && !seen.contains(&None), "{seen:?}");
    let text = text(&snapshot);
    assert!(text.contains("cell #1:1") && !text.contains("In[1"), "{text}");
    assert!(text.contains("order in which cudatrace first saw them"), "{text}");
}

/// A history that is not there, or that cannot be read, gives no number; the kernel runs on.
#[test]
fn without_a_history_no_number_is_made_up() {
    let python = kernels().pop().unwrap();
    for argument in ["--HistoryManager.enabled=False", "--HistoryManager.hist_file=:memory:"] {
        let mut kernel = Kernel::start(&python, &[argument]);
        let mut trace = Trace::attach(kernel.pid, &LoadOptions::default());
        kernel.run(&mut trace, "x = take(\"one\")");
        kernel.run(&mut trace, "x = take(\"two\")");
        let truth = kernel.truth(&mut trace);
        without_numbers(trace, &truth);
    }
}

/// Where the kernel keeps its history.
fn history(kernel: &Kernel) -> PathBuf {
    kernel.folder.path().join("profile_default/history.sqlite")
}

/// Another program holds the database: the kernel itself cannot write what it runs.
#[test]
fn a_locked_history_holds_up_nobody() {
    let python = kernels().pop().unwrap();
    let mut kernel = Kernel::start(&python, &WITH_HISTORY);
    let path = history(&kernel);
    let script = "import sqlite3, sys; db = sqlite3.connect(sys.argv[1]); \
                  db.execute('BEGIN EXCLUSIVE'); print('true', flush=True); sys.stdin.read()";
    let mut holder = Talker::start(Command::new(&python).args(["-c", script]).arg(&path));
    assert_eq!(holder.line(), true);
    let mut trace = Trace::attach(kernel.pid, &LoadOptions::default());
    kernel.run(&mut trace, "x = take(\"one\")");
    kernel.run(&mut trace, "x = take(\"two\")");
    let truth = kernel.truth(&mut trace);
    without_numbers(trace, &truth);
}

/// Tracing neither locks the database nor changes it, whatever the kernel does with it.
#[test]
fn a_damaged_history_is_left_alone() {
    let python = kernels().pop().unwrap();
    let mut kernel = Kernel::start(&python, &WITH_HISTORY);
    let path = history(&kernel);
    let mut bytes = fs::read(&path).unwrap();
    // The kernel has it open; everything but the name of the format is nonsense now.
    bytes.iter_mut().enumerate().skip(100).for_each(|(at, byte)| *byte = (at * 7) as u8);
    fs::write(&path, &bytes).unwrap();
    let mut trace = Trace::attach(kernel.pid, &LoadOptions::default());
    kernel.run(&mut trace, "x = take(\"one\")");
    kernel.run(&mut trace, "x = take(\"two\")");
    let truth = kernel.truth(&mut trace);
    without_numbers(trace, &truth);
    assert_eq!(fs::read(&path).unwrap().len(), bytes.len());
}

/// Attached in the middle of a session, with cells before, and one that gets no number.
#[test]
fn what_ran_before_the_tracer_came_is_known() {
    for python in kernels() {
        println!("{}", python.display());
        let mut kernel = Kernel::start(&python, &WITH_HISTORY);
        let before =
            ["def f():\n    return take(\"in f\")", "x = 1", "def f():\n    return take(\"in f\")"];
        for source in before {
            kernel.driver.say(&json!({ "run": source }).to_string());
            assert_eq!(kernel.driver.line()["status"], "ok");
        }
        let mut trace = Trace::attach(kernel.pid, &LoadOptions::default());
        kernel.run(&mut trace, "f()");
        kernel.run(&mut trace, "x = 1");
        kernel.run(&mut trace, "x = take(\"again\")");
        let silent = json!({ "run": "x = take(\"silent\")", "store_history": false });
        kernel.request(&mut trace, &silent);
        kernel.run(&mut trace, "x = take(\"again\")");
        let truth = kernel.truth(&mut trace);
        let snapshot = trace.finish();
        let captured = captured(only_process(&snapshot));
        // The list of inputs does not have it, nor has it a text.
        let unknown = (None, None, None);
        let silent = truth.get(&unknown);
        assert!(silent.is_some() && captured.get(&unknown) == silent, "{captured:?}");
        compare(&truth, &captured);
    }
}

/// Another user's kernel, whose history is where nobody else can see it: on a file system that is mounted
/// for it alone.
#[test]
fn another_users_kernel_in_a_mount_namespace() {
    let python = kernels().pop().unwrap();
    let script = "mount -t tmpfs -o mode=777 none {} && exec setpriv --reuid 65534 --regid 65534 \
                  --clear-groups --inh-caps +dac_read_search --ambient-caps +dac_read_search \
                  env HOME={} JUPYTER_RUNTIME_DIR={}/runtime JPY_SESSION_NAME={}/work.ipynb \"$@\"";
    let command = ["unshare", "--mount", "sh", "-c", script, "sh"];
    let mut kernel = Kernel::start_by(&command, &python, &WITH_HISTORY);
    let mut trace = Trace::attach(kernel.pid, &LoadOptions::default());
    kernel.run(&mut trace, "x = take(\"one\")");
    kernel.run(&mut trace, "x = take(\"two\")");
    let truth = kernel.truth(&mut trace);
    let snapshot = trace.finish();
    let process = only_process(&snapshot);
    compare(&truth, &captured(process));
    assert_eq!(fs::read_dir(kernel.folder.path()).unwrap().count(), 0, "it is not to be seen here");
    assert_eq!(process.user.as_deref(), Some("nobody"));
    assert_eq!(process.notebook, Some(format!("{}/work.ipynb", kernel.folder.path().display())));
    assert!(process.kernel_id.is_some());
}

/// Two kernels of one user keep one history, and run the same notebook. Numbers are those of the one that
/// is traced: none before it is known which session that is, all from then on.
#[test]
fn two_kernels_with_one_history() {
    let python = kernels().pop().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let file = format!("--HistoryManager.hist_file={}/history.sqlite", folder.path().display());
    let mut other = Kernel::start(&python, &[&file]);
    let mut kernel = Kernel::start(&python, &[&file]);
    let mut trace = Trace::attach(kernel.pid, &LoadOptions::default());
    let mut run_other = |trace: &mut Trace, source: &str| {
        other.driver.say(&json!({ "run": source }).to_string());
        assert_eq!(trace.line(&mut other.driver)["status"], "ok");
    };
    run_other(&mut trace, "x = 1");
    for source in ["x = take(\"one\")", "x = take(\"two\")"] {
        run_other(&mut trace, source);
        kernel.run(&mut trace, source);
    }
    kernel.run(&mut trace, "x = take(\"only here\")");
    for source in ["x = take(\"three\")", "x = take(\"one\")"] {
        run_other(&mut trace, source);
        kernel.run(&mut trace, source);
    }
    let truth = kernel.truth(&mut trace);
    let snapshot = trace.finish();
    let captured = captured(only_process(&snapshot));
    for (place, bytes) in captured.iter().filter(|((number, ..), _)| number.is_some()) {
        assert_eq!(truth.get(place), Some(bytes), "{place:?}");
    }
    for (place, bytes) in truth.iter().filter(|((number, ..), _)| *number > Some(3)) {
        assert_eq!(captured.get(place), Some(bytes), "{place:?} of {captured:?}");
    }
}

/// The usual case: something takes too long, or too much memory, and only then somebody looks.
#[test]
fn the_cell_that_runs_when_the_tracer_comes() {
    let python = kernels().pop().unwrap();
    let mut kernel = Kernel::start(&python, &WITH_HISTORY);
    let loops = "import time\nfor _ in range(1000):\n    take(\"loop\")\n    time.sleep(0.02)";
    kernel.driver.say(&json!({ "run": "x = 1" }).to_string());
    assert_eq!(kernel.driver.line()["status"], "ok");
    kernel.driver.say(&json!({ "start": loops }).to_string());
    assert_eq!(kernel.driver.line()["status"], "started");
    std::thread::sleep(Duration::from_millis(500));
    let mut trace = Trace::attach(kernel.pid, &LoadOptions::default());
    for _ in 0..200 {
        trace.tick();
        std::thread::sleep(Duration::from_millis(10));
    }
    let snapshot = trace.finish();
    let places: Vec<Place> = captured(only_process(&snapshot)).into_keys().collect();
    assert_eq!(places, [(Some(3), Some(3), Some("take(\"loop\")".to_owned()))]);
}

/// Without a history the notebook's file, which the Jupyter server knows, tells texts, and the numbers that were saved after the runs.
#[test]
fn the_notebooks_file_tells_what_no_history_does() {
    let python = kernels().pop().unwrap();
    let mut kernel = Kernel::start(&python, &["--HistoryManager.enabled=False"]);
    let folder = kernel.folder.path().to_str().unwrap().to_owned();
    let arguments = [folder.as_str(), &folder, "sub/work.ipynb"];
    let mut server = Talker::python(&python, &workload("jupyter_server.py"), &arguments, &[]);
    assert_eq!(server.line(), true);
    let mut trace = Trace::attach(kernel.pid, &LoadOptions::default());
    let sources = ["# a comment\nx = take(\"one\")", "x = take(\"two\")", "x = take(\"three\")"];
    sources.iter().for_each(|source| drop(kernel.run(&mut trace, source)));
    let mut truth = kernel.truth(&mut trace);
    // The last one was edited before the file was saved.
    let cells: Vec<Value> = [sources[0], sources[1], "x = 3"]
        .iter()
        .zip(2..)
        .map(|(source, count)| json!({ "cell_type": "code", "source": source, "execution_count": count }))
        .collect();
    let file = json!({ "nbformat": 4, "cells": cells }).to_string();
    fs::create_dir(kernel.folder.path().join("sub")).unwrap();
    fs::write(kernel.folder.path().join("sub/work.ipynb"), file).unwrap();
    for _ in 0..300 {
        trace.tick();
        std::thread::sleep(Duration::from_millis(10));
    }
    let snapshot = trace.finish();
    let process = only_process(&snapshot);
    assert_eq!(process.notebook, Some(format!("{folder}/sub/work.ipynb")));
    server.kill();
    let edited = truth.remove(&(Some(4), Some(1), Some("x = take(\"three\")".to_owned())));
    truth.insert((None, None, None), edited.unwrap());
    compare(&truth, &captured(process));
}

/// Bytes of memory that this process has for itself: the ring buffer is the kernel's.
fn own_memory() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
}

/// A long notebook life: 100,000 executions of cells, most of them with a text of their own, every
/// hundredth an old one again, every thousandth keeping what it allocates. Takes minutes:
/// `cargo test -- --ignored`.
#[test]
#[ignore = "takes minutes"]
fn a_long_life_needs_no_more_memory_and_confuses_nothing() {
    const LIFE: &str = "
import marks
shell = get_ipython()
def live(start, end):
    for number in range(start, end):
        if number % 1000 == 0:
            text = 'x = %d\\ntake(\"kept\")  # %d' % (number, number)
        elif number % 100 == 0:
            text = 'freed(\"again\")'
        else:
            text = 'freed(\"freed\")  # %d' % number
        result = shell.run_cell(text, store_history=True)
        assert result.success
";
    const PARTS: usize = 20;
    for python in kernels() {
        println!("{}", python.display());
        let mut kernel = Kernel::start(&python, &WITH_HISTORY);
        let mut trace = Trace::attach(kernel.pid, &LoadOptions::default());
        kernel.run(&mut trace, "from marks import take, freed");
        kernel.run(&mut trace, LIFE);
        let mut memory = Vec::new();
        for part in 0..PARTS {
            kernel
                .run(&mut trace, &format!("live({}, {})", part * 5000 + 1, (part + 1) * 5000 + 1));
            memory.push(own_memory() >> 10);
            println!("{} executions: {} KiB", (part + 1) * 5000, own_memory() >> 10);
        }
        let truth = kernel.truth(&mut trace);
        let snapshot = trace.finish();
        let process = only_process(&snapshot);
        let listed: u64 = process.cells.iter().map(|cell| cell.runs).sum();
        // Every execution, the cells that make them, two before and one after.
        assert_eq!(listed + process.cells_unlisted.runs, 100_000 + PARTS as u64 + 3);
        let left: u64 = process.cells.iter().map(|cell| cell.left_bytes).sum();
        assert_eq!(left, truth.values().sum::<u64>());
        let captured = captured(process);
        let is_kept = |((.., text), _): &(Place, u64)| {
            text.as_ref().is_some_and(|text| text.starts_with("take("))
        };
        compare(&truth, &captured.into_iter().filter(is_kept).collect());
        let (early, late) = (memory[memory.len() / 2], memory[memory.len() - 1]);
        assert!(late <= early + early / 10, "it grows: {memory:?} KiB");
    }
}
