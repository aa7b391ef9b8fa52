//! A corpus of programs that leak and of programs that do not, with what is to be said of each
//! (tests/corpus/README.md).

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    thread,
    time::Duration,
};

use cudatrace_tests::{
    child::Talker,
    sandbox_python,
    trace::{Trace, only_process, text},
    workload,
};
use serde::Deserialize;
use serde_json::Value;
use tracer_user::{
    bpf::LoadOptions,
    model::{HintKind, Level, ProcessSnapshot, Site, Verdict},
};

/// Programs that run at a time: they sleep most of it.
const AT_A_TIME: usize = 6;

/// What is to be said of a program.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Expectation {
    leaks: bool,
    /// Texts of lines: at least one that has one of them has to grow.
    growing_any_of: Vec<String>,
    /// Further ones that hold what is leaked.
    may_grow: Vec<String>,
}

struct Program {
    path: PathBuf,
    lines: Vec<String>,
    expectation: Expectation,
}

impl Program {
    fn read(path: PathBuf) -> Self {
        let text = fs::read_to_string(&path).unwrap();
        let lines: Vec<String> = text.lines().map(str::to_owned).collect();
        let expectation = lines[0].strip_prefix("# expect: ").unwrap();
        let expectation = serde_json::from_str(expectation).unwrap();
        Self { path, lines, expectation }
    }

    fn name(&self) -> &str {
        self.path.file_stem().unwrap().to_str().unwrap()
    }

    /// Texts of the corpus's lines in a site's stack, innermost first.
    fn texts<'a>(&'a self, site: &Site, rig: &'a [String]) -> Vec<&'a str> {
        let text = |frame: &tracer_user::model::Frame| {
            let file = Path::new(&frame.file);
            let lines = match file {
                file if file == self.path => &self.lines[..],
                file if file.ends_with("corpus/rig.py") => rig,
                _ => return None,
            };
            Some(lines.get(frame.line? as usize - 1)?.trim())
        };
        site.frames.iter().filter_map(text).collect()
    }
}

/// What was found of a program.
struct Outcome {
    name: String,
    leaks: bool,
    /// Whether anything was said to grow that may not.
    alarm: bool,
    /// Whether the leak was found at its line.
    found: bool,
    growing: BTreeSet<String>,
}

impl Outcome {
    fn of(program: &Program, process: &ProcessSnapshot, rig: &[String]) -> Self {
        let expectation = &program.expectation;
        let has = |text: &str, words: &[String]| words.iter().any(|word| text.contains(word));
        let mut outcome = Self {
            name: program.name().to_owned(),
            leaks: expectation.leaks,
            alarm: false,
            found: false,
            growing: BTreeSet::new(),
        };
        for site in &process.sites {
            if site.judgement.verdict != Verdict::Growing {
                continue;
            }
            let own = program.texts(site, rig).first().copied().unwrap_or("?").to_owned();
            let is_culprit = has(&own, &expectation.growing_any_of);
            outcome.found |= is_culprit;
            outcome.alarm |= !is_culprit && !has(&own, &expectation.may_grow);
            outcome.growing.insert(own);
        }
        outcome
    }

    fn is_right(&self) -> bool {
        !self.alarm && self.found == self.leaks
    }
}

/// Whether a program did what it is there for, by PyTorch's own count after each repetition.
fn check_held(program: &Program, answer: &Value) {
    let held: Vec<u64> = answer["allocated"]
        .as_array()
        .unwrap()
        .iter()
        .map(|bytes| bytes.as_u64().unwrap())
        .collect();
    let name = program.name();
    // What a loop's variables hold comes and goes: the lowest of some repetitions.
    let low = |from: usize| held[from..(from + 3).min(held.len())].iter().min().copied().unwrap();
    if program.expectation.leaks {
        let (middle, last) = (low(held.len() * 2 / 5), low(held.len() - 2));
        assert!(last as f64 > 1.2 * middle as f64, "{name} does not leak: {held:?}");
    }
}

/// Runs programs under one trace.
fn run(programs: &[Program], rig: &[String]) -> Vec<Outcome> {
    let python = sandbox_python();
    let corpus = workload("../corpus");
    let env = [("PYTHONPATH", corpus.to_str().unwrap()), ("PYTHONDONTWRITEBYTECODE", "1")];
    let mut running: Vec<Talker> =
        programs.iter().map(|program| Talker::python(&python, &program.path, &[], &env)).collect();
    for talker in &mut running {
        assert_eq!(talker.line()["ready"], true);
    }
    let pids: Vec<u32> = running.iter().map(Talker::pid).collect();
    let mut trace = Trace::attach_all(&pids, &LoadOptions::default());
    running.iter_mut().for_each(|talker| talker.say("go"));
    for (program, talker) in programs.iter().zip(&mut running) {
        check_held(program, &trace.line(talker));
    }
    let snapshot = trace.snapshot();
    assert!(snapshot.tracer.exact, "{:?}", snapshot.tracer);
    let outcomes = programs.iter().zip(&pids).map(|(program, pid)| {
        let process = snapshot.processes.iter().find(|process| process.pid.0 == *pid).unwrap();
        Outcome::of(program, process, rig)
    });
    let outcomes = outcomes.collect();
    running.iter_mut().for_each(Talker::kill);
    outcomes
}

/// Every program of a part of the corpus: what was said of it, and how often that was right.
fn judge(part: &str) {
    let corpus = fs::canonicalize(workload("../corpus")).unwrap();
    let rig = fs::read_to_string(corpus.join("rig.py")).unwrap();
    let rig: Vec<String> = rig.lines().map(str::to_owned).collect();
    let files = fs::read_dir(corpus.join(part)).unwrap().map(|entry| entry.unwrap().path());
    let mut files: Vec<PathBuf> = files.filter(|path| path.extension().is_some()).collect();
    files.sort();
    let programs: Vec<Program> = files.into_iter().map(Program::read).collect();
    let outcomes: Vec<Outcome> =
        programs.chunks(AT_A_TIME).flat_map(|some| run(some, &rig)).collect();

    for outcome in &outcomes {
        let right = if outcome.is_right() { "right" } else { "WRONG" };
        let expected = if outcome.leaks { "leaks" } else { "clean" };
        println!("{right}  {expected}  {:<32} grows: {:?}", outcome.name, outcome.growing);
    }
    let count = |what: fn(&Outcome) -> bool| outcomes.iter().filter(|o| what(o)).count() as f64;
    let found = count(|o| o.leaks && o.found);
    let alarms = count(|o| o.alarm);
    let (precision, recall) = (found / (found + alarms), found / count(|o| o.leaks));
    println!("{part}: {} programs, precision {precision:.3}, recall {recall:.3}", outcomes.len());
    assert!(precision >= 0.95 && recall >= 0.95, "precision {precision}, recall {recall}");
}

#[test]
fn tuned() {
    judge("tuned");
}

/// A notebook: what a loop in an earlier cell leaves, cells that are run again, a cell's value, a traceback.
#[test]
fn cells_of_a_notebook() {
    const SET_UP: &str = "import torch, rig\nnet = rig.Net().cuda()\nstored, models = [], []\n\
                          class Shown:\n    def __init__(self, data): self.data = data";
    const LOOP: &str =
        "for _ in range(60):\n    stored.append(net(rig.batch()))\n    rig.step(0.02)";
    const TRAIN: &str = "def train(steps):\n    for step in range(steps):\n        \
                         x = rig.batch(512)\n        net(x).sum().backward()\n        \
                         net.zero_grad()\n        if step == 39: raise ValueError(step)\n        rig.step(0.02)";
    let corpus = fs::canonicalize(workload("../corpus")).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let env = [
        ("PYTHONPATH", corpus.to_str().unwrap()),
        ("IPYTHONDIR", folder.path().to_str().unwrap()),
        ("JUPYTER_RUNTIME_DIR", folder.path().to_str().unwrap()),
    ];
    let arguments = ["--colors=NoColor"];
    let mut kernel =
        Talker::python(&sandbox_python(), &workload("kernel_driver.py"), &arguments, &env);
    let pid = kernel.line()["pid"].as_u64().unwrap() as u32;
    let mut trace = Trace::attach(pid, &LoadOptions::default());
    let mut run = |source: &str, trace: &mut Trace| {
        kernel.say(&serde_json::json!({ "run": source }).to_string());
        trace.line(&mut kernel)["status"].as_str().unwrap().to_owned()
    };
    let mut ok = |source: &str, trace: &mut Trace| assert_eq!(run(source, trace), "ok", "{source}");
    ok(SET_UP, &mut trace);
    ok(LOOP, &mut trace);
    // Other cells run for longer.
    ok("for _ in range(100):\n    y = net(rig.batch()).detach()\n    rig.step(0.02)", &mut trace);
    for _ in 0..4 {
        ok("again = rig.Net().cuda(); models.append(again)", &mut trace);
        ok("rebound = rig.batch(300)", &mut trace);
        ok("Shown(rig.batch(700))", &mut trace);
    }
    ok(TRAIN, &mut trace);
    assert_eq!(run("train(60)", &mut trace), "error");
    let mut ok = |source: &str, trace: &mut Trace| assert_eq!(run(source, trace), "ok", "{source}");
    ok("kept_aside = 1", &mut trace);
    thread::sleep(Duration::from_millis(1200));

    let snapshot = trace.snapshot();
    let process = only_process(&snapshot);
    // Sites of the cell's line with this text that hold something.
    let sites = |text: &str| {
        let has = |site: &&Site| {
            let own = site.frames.iter().filter_map(|frame| frame.source.as_deref());
            site.level == Level::Pytorch
                && site.live_bytes > 0
                && own.into_iter().any(|s| s.contains(text))
        };
        process.sites.iter().filter(has).map(|site| &site.judgement).collect::<Vec<_>>()
    };
    let report = text(&snapshot);
    let stored = sites("stored.append");
    assert!(stored.iter().any(|found| found.verdict == Verdict::Growing), "{stored:?}\n{report}");
    let again = sites("models.append");
    assert!(again.len() >= 4, "{report}");
    for found in again {
        assert_eq!(found.verdict, Verdict::Growing, "{found:?}\n{report}");
        assert!(found.growth_bytes_per_run > Some(0));
        assert_eq!(found.hint_kind, Some(HintKind::RerunCell));
    }
    let rebound = sites("rebound =");
    assert_eq!(rebound.len(), 1, "only the last is held\n{report}");
    assert_eq!((rebound[0].verdict, rebound[0].hint_kind), (Verdict::OneOff, None), "{report}");
    for found in sites("rig.batch(700)") {
        assert_eq!(found.hint_kind, Some(HintKind::CellResult), "{report}");
        assert_eq!(found.verdict, Verdict::Growing, "{report}");
    }
    let left = sites("x = rig.batch(512)");
    assert_eq!(left.len(), 1, "{report}");
    assert_eq!(left[0].hint_kind, Some(HintKind::Traceback), "{left:?}\n{report}");
    assert!(left[0].hint.as_ref().is_some_and(|hint| hint.contains("sys.last_traceback")));
}
