//! Captured stacks against `sys._getframe()`.

use std::{
    collections::BTreeMap,
    fs::File,
    os::unix::fs::FileExt as _,
    path::{Path, PathBuf},
    process::Command,
};

use cudatrace_tests::{
    child::Talker, greenlets, made_pythons, other_pythons, pyenv_pythons, simulated_driver,
    trace::Trace, workload,
};
use serde_json::Value;
use tracer_user::{
    bpf::LoadOptions,
    model::{ProcessSnapshot, Snapshot},
};

/// Name, qualified name (from 3.11 on), file, line; innermost first.
type Stack = Vec<(String, Option<String>, String, u64)>;

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_else(|| panic!("no text: {value}")).to_owned()
}

/// What Python says: bytes by stack.
fn expected(answer: &Value) -> BTreeMap<Stack, u64> {
    let stacks = answer["stacks"].as_array().unwrap();
    stacks
        .iter()
        .map(|stack| {
            let frames = stack["frames"].as_array().unwrap().iter().map(|frame| {
                let qualified = frame[1].as_str().map(str::to_owned);
                (text(&frame[0]), qualified, text(&frame[2]), frame[3].as_u64().unwrap())
            });
            (frames.collect(), stack["bytes"].as_u64().unwrap())
        })
        .collect()
}

/// What was captured: bytes by stack, and bytes without one.
fn captured(process: &ProcessSnapshot) -> (BTreeMap<Stack, u64>, u64) {
    let mut stacks = BTreeMap::new();
    let mut untold = 0;
    for site in &process.sites {
        if site.frames.is_empty() {
            assert_eq!(site.frames_note.as_deref(), Some("no Python stack was taken"));
            untold += site.total_bytes;
            continue;
        }
        assert_eq!(site.frames_note, None);
        let frames = site.frames.iter().map(|frame| {
            let line = u64::from(frame.line.unwrap_or(0));
            (frame.function.clone(), frame.qualified_name.clone(), frame.file.clone(), line)
        });
        // More than one site, where it allocated also on threads without a current device.
        *stacks.entry(frames.collect()).or_default() += site.total_bytes;
    }
    (stacks, untold)
}

/// An interpreter that waits to be told to allocate.
struct Waiting {
    python: PathBuf,
    talker: Talker,
}

impl Waiting {
    fn start(python: &Path, env: &[(&str, &str)]) -> Self {
        let driver = simulated_driver();
        let mut args = vec![driver.to_str().unwrap()];
        let greenlets = greenlets();
        args.extend(greenlets.as_ref().map(|folder| folder.to_str().unwrap()));
        let mut talker = Talker::python(python, &workload("stacks.py"), &args, env);
        assert_eq!(talker.line()["ready"], true, "{}", python.display());
        Self { python: python.to_owned(), talker }
    }

    /// Lets it run, and returns what it says.
    fn run(&mut self, trace: &mut Trace) -> Value {
        self.talker.say("go");
        trace.line(&mut self.talker)
    }

    /// Compares what it said with what was captured; returns how many stacks there were.
    fn check(&self, answer: &Value, snapshot: &Snapshot) -> usize {
        let pid = self.talker.pid();
        let process = snapshot.processes.iter().find(|process| process.pid.0 == pid).unwrap();
        assert_eq!(process.python_note, None, "{}", self.python.display());
        let (expected, (captured, untold)) = (expected(answer), captured(process));
        let mut wrong = 0;
        for (stack, bytes) in &expected {
            if captured.get(stack) != Some(bytes) {
                wrong += 1;
                eprintln!("not captured, or other bytes than {bytes}: {stack:#?}");
            }
        }
        for stack in captured.keys().filter(|stack| !expected.contains_key(*stack)) {
            wrong += 1;
            eprintln!("captured, but Python knows no such stack: {stack:#?}");
        }
        assert_eq!(wrong, 0, "of {} stacks of {}", expected.len(), self.python.display());
        assert_eq!(Some(untold), answer["untold"].as_u64(), "{}", self.python.display());
        assert!(expected.len() > 500, "the scenario has lost its stacks");
        assert_eq!(answer["greenlets"], greenlets().is_some(), "{}", self.python.display());
        println!(
            "{}: CPython {}, {} stacks, all equal",
            self.python.display(),
            process.python.as_deref().unwrap_or("?"),
            expected.len()
        );
        expected.len()
    }
}

/// Interpreters of one trace, one after the other: attaching is what takes long.
fn check(mut waiting: Vec<Waiting>) {
    let pids: Vec<u32> = waiting.iter().map(|waiting| waiting.talker.pid()).collect();
    let mut trace = Trace::attach_all(&pids, &LoadOptions::default());
    let answers: Vec<Value> = waiting.iter_mut().map(|waiting| waiting.run(&mut trace)).collect();
    let snapshot = trace.snapshot();
    assert_eq!(snapshot.tracer.dropped, 0);
    assert_eq!(snapshot.tracer.truncated_stacks, 0);
    for (waiting, answer) in waiting.iter().zip(&answers) {
        waiting.check(answer, &snapshot);
    }
    for waiting in &mut waiting {
        waiting.talker.say("end");
        assert!(waiting.talker.wait().success(), "{}", waiting.python.display());
    }
}

/// Every CPython that this machine has, and those that `cargo xtask pythons` makes.
#[test]
fn every_captured_stack_is_the_one_that_python_sees() {
    let pythons = other_pythons(8..=15);
    let minors: Vec<&str> = pythons.iter().map(|(minor, _)| minor.as_str()).collect();
    for required in ["3.8", "3.9", "3.10", "3.11", "3.12", "3.13"] {
        if !minors.contains(&required) {
            assert!(std::env::var_os("CI").is_none(), "no CPython {required}");
            println!("skipped: no CPython {required} on this machine");
        }
    }
    let pythons = pythons.into_iter().map(|(_, path)| path).chain(made_pythons());
    check(pythons.map(|python| Waiting::start(&python, &[])).collect());
}

/// The names of symbols are gone from what the library exports, and then from its local symbols too: what is
/// looked for is found by its section, and in a frame.
#[test]
fn an_interpreter_need_not_export_itself() {
    let Some(python) = pyenv_pythons("3.12").pop() else {
        assert!(std::env::var_os("CI").is_none(), "no CPython 3.12");
        println!("skipped: no CPython 3.12 on this machine");
        return;
    };
    let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let waiting = folders.iter().zip(["--strip-debug", "--strip-all"]).map(|(folder, strip)| {
        const LIBRARY: &str = "libpython3.12.so.1.0";
        let copy = folder.path().join(LIBRARY);
        let library = python.with_file_name("../lib").join(LIBRARY);
        let status = Command::new("strip").arg(strip).arg("-o").arg(&copy).arg(library).status();
        assert!(status.unwrap().success());
        let home = python.with_file_name("..");
        let env = [
            ("LD_LIBRARY_PATH", folder.path().to_str().unwrap()),
            ("PYTHONHOME", home.to_str().unwrap()),
        ];
        let waiting = Waiting::start(&python, &env);
        // Its extension modules are loaded by now, and were linked.
        hide(&copy, &["_PyRuntime", "PyCode_Type", "Py_Version"]);
        waiting
    });
    check(waiting.collect());
}

/// Takes names of symbols out of the first table in a file, which is that of the exported ones.
fn hide(library: &Path, names: &[&str]) {
    let file = File::options().read(true).write(true).open(library).unwrap();
    let bytes = std::fs::read(library).unwrap();
    for name in names {
        let name = [b"\0", name.as_bytes(), b"\0"].concat();
        let at = bytes.windows(name.len()).position(|window| window == name).unwrap();
        file.write_all_at(b"?", at as u64 + 1).unwrap();
    }
}
