//! The hook of PyTorch's allocator, without an allocator around it.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    process::Command,
};

use cudatrace_tests::{
    child::Talker,
    library_in, sandbox_python,
    trace::{Trace, number},
    workload,
};
use serde_json::json;
use tempfile::TempDir;
use tracer_user::{
    bpf::LoadOptions,
    discover::{
        library::LibraryKind,
        plan::{Extras, for_library},
    },
};

use crate::{
    empty::EmptyProbe,
    measure::{Measure, median},
};

/// The hook, as PyTorch exports it.
pub const HOOK: &str = "_ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE";
/// Frames of the Python stack.
const DEPTHS: [(usize, &str); 4] = [
    (5, "event_depth_5"),
    (10, "event_depth_10"),
    (30, "event_depth_30"),
    (100, "event_depth_100"),
];
/// Where depth does not matter.
pub const USUAL_DEPTH: usize = 30;
const ROUNDS: usize = 7;
/// Runs of each depth in a round, of which the median counts.
const REPEATS: usize = 7;
/// Calls of a run: fewer than the ring buffer holds between two drains.
const CALLS: u64 = 10_000;

/// A library with nothing but the hook, and a process that calls it.
pub struct Target {
    /// The library.
    pub library: PathBuf,
    /// The process.
    pub talker: Talker,
    _folder: TempDir,
}

impl Target {
    /// Builds the library by these options of the compiler, and starts the process.
    pub fn start(options: &[&str]) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let library = folder.path().join("libc10.so");
        build(&library, options);
        let argument = library.to_str().expect("a path of text");
        let python = sandbox_python();
        let mut talker = Talker::python(&python, &workload("overhead.py"), &[argument], &[]);
        talker.line();
        Self { library, talker, _folder: folder }
    }

    /// Nanoseconds of an allocation's and of a free's report.
    pub fn run(&mut self, depth: usize, trace: Option<&mut Trace>) -> (f64, f64) {
        self.talker.say(&json!({ "depth": depth, "calls": CALLS }).to_string());
        let answer = match trace {
            Some(trace) => trace.line(&mut self.talker),
            None => self.talker.line(),
        };
        let each = |pointer| number(&answer, pointer) as f64 / CALLS as f64;
        (each("/allocate"), each("/release"))
    }

    /// Hangs a program that does nothing where the tracer would hang its own.
    pub fn attach_empty(&self) -> EmptyProbe {
        let offset = probed_offset(&self.library);
        EmptyProbe::attach(&self.library, offset, self.talker.pid()).expect("an empty probe")
    }
}

/// Compiles the library.
pub fn build(library: &Path, options: &[&str]) {
    let built = Command::new("cc")
        .args(["-shared", "-fPIC", "-O2", "-fcf-protection=none", "-fvisibility=hidden"])
        .args(options)
        .arg("-o")
        .args([library, &workload("overhead.c")])
        .status();
    assert!(built.is_ok_and(|status| status.success()), "cannot compile overhead.c");
}

/// Where the tracer would probe it.
pub fn probed_offset(library: &Path) -> u64 {
    let folder = library.parent().expect("a folder");
    let file = library_in(folder, LibraryKind::TorchC10);
    let (sites, _) = for_library(&file, Extras::default());
    sites.iter().find(|site| site.symbol == HOOK).expect("the hook is there").offset
}

/// Who watches.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Watch {
    Nobody,
    Empty,
    Tracer,
}

/// Takes the costs of events.
pub fn measure() -> Vec<Measure> {
    let mut target = Target::start(&[]);
    let mut allocations: BTreeMap<(Watch, usize), Vec<f64>> = BTreeMap::new();
    let mut frees: BTreeMap<Watch, Vec<f64>> = BTreeMap::new();
    for _ in 0..ROUNDS {
        for watch in [Watch::Nobody, Watch::Empty, Watch::Tracer] {
            let empty = (watch == Watch::Empty).then(|| target.attach_empty());
            let mut trace = (watch == Watch::Tracer)
                .then(|| Trace::attach(target.talker.pid(), &LoadOptions::default()));
            for (depth, _) in DEPTHS {
                let runs: Vec<(f64, f64)> =
                    (0..REPEATS).map(|_| target.run(depth, trace.as_mut())).collect();
                let (taken, given): (Vec<f64>, Vec<f64>) = runs.into_iter().unzip();
                allocations.entry((watch, depth)).or_default().extend(median(&taken));
                if depth == USUAL_DEPTH {
                    frees.entry(watch).or_default().extend(median(&given));
                }
            }
            drop(empty);
            if let Some(trace) = trace {
                let tracer = trace.finish().tracer;
                let events = 2 * CALLS * (DEPTHS.len() * REPEATS) as u64;
                assert_eq!((tracer.events, tracer.dropped), (events, 0), "every event is seen");
            }
        }
    }
    let of = |watch, depth| allocations[&(watch, depth)].as_slice();
    let empty = of(Watch::Empty, USUAL_DEPTH);
    let nobody = of(Watch::Nobody, USUAL_DEPTH);
    let mut measures = vec![
        Measure::of_rounds("no_tracing", nobody, empty),
        Measure::of_rounds("empty_uprobe", empty, empty),
    ];
    measures.extend(DEPTHS.map(|(depth, name)| {
        Measure::of_rounds(name, of(Watch::Tracer, depth), of(Watch::Empty, depth))
    }));
    measures.push(Measure::of_rounds("free", &frees[&Watch::Tracer], &frees[&Watch::Empty]));
    measures
}

/// Events that are lost while a thread does nothing but report allocations and frees.
pub fn drops(seconds: u64) -> Measure {
    const NAME: &str = "drops_60s";
    let mut target = Target::start(&[]);
    let mut trace = Trace::attach(target.talker.pid(), &LoadOptions::default());
    target.talker.say(&json!({ "churn": seconds * 1_000_000_000 }).to_string());
    let pairs = number(&trace.line(&mut target.talker), "/pairs");
    let tracer = trace.finish().tracer;
    let rate = 2 * pairs / seconds.max(1);
    let note = format!("{} events in {seconds} s, {rate} a second", 2 * pairs);
    let complete = tracer.events + tracer.dropped >= 2 * pairs;
    if complete {
        Measure::plain(NAME, tracer.dropped as f64, "events").noting(note)
    } else {
        Measure::missing(NAME, "events", format!("{note}; {} were seen", tracer.events))
    }
}
