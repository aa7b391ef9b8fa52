//! The hook of PyTorch's allocator, without an allocator around it.

use std::{collections::BTreeMap, path::{Path, PathBuf}, process::Command};

use cudatrace_tests::{child::Talker, sandbox_python, trace::{Trace, number}, workload};
use serde_json::json;
use tracer_user::{bpf::LoadOptions, discover::{library::{LibraryFile, LibraryKind}, plan::{Extras, for_library}}};

use crate::{empty::EmptyProbe, measure::Measure};

/// Frames of the Python stack.
const DEPTHS: [usize; 4] = [5, 10, 30, 100];
const ROUNDS: usize = 5;
/// Fewer than the ring buffer holds.
const CALLS: u64 = 10_000;
const REPEATS: usize = 10;

/// Builds the library as PyTorch's is named.
pub fn build(folder: &Path, options: &[&str]) -> PathBuf {
    let library = folder.join("libc10.so");
    let built = Command::new("cc")
        .args(["-shared", "-fPIC", "-O2", "-fno-omit-frame-pointer", "-fvisibility=hidden"])
        .args(options)
        .arg("-o")
        .args([library.as_path(), &workload("overhead.c")])
        .status();
    assert!(built.is_ok_and(|status| status.success()), "cannot compile overhead.c");
    library
}

/// Where the tracer would probe it.
pub fn probed_offset(library: &Path) -> u64 {
    let file = LibraryFile {
        kind: LibraryKind::TorchC10,
        path: library.to_owned(),
        open_path: library.to_owned(),
        inode: 0,
        mapped: true,
    };
    let (sites, _) = for_library(&file, Extras::default());
    let site = sites.iter().find(|site| site.symbol.contains("reportMemoryUsage"));
    println!("{sites:?}");
    site.expect("the hook is there").offset
}

#[derive(Default)]
struct Rounds(BTreeMap<(&'static str, usize), Vec<f64>>);

impl Rounds {
    fn take(&mut self, what: &'static str, depth: usize, talker: &mut Talker, trace: &mut Option<Trace>) {
        talker.say(&json!({ "depth": depth, "calls": CALLS }).to_string());
        let answer = match trace {
            Some(trace) => trace.line(talker),
            None => talker.line(),
        };
        let each = |name| number(&answer, name) as f64 / CALLS as f64;
        self.0.entry((what, depth)).or_default().push(each("/allocate"));
        if depth == DEPTHS[0] {
            self.0.entry((what, 0)).or_default().push(each("/release"));
        }
    }

    fn of(&self, what: &'static str, depth: usize) -> &[f64] {
        &self.0[&(what, depth)]
    }
}

/// Takes them.
pub fn measure() -> Vec<Measure> {
    let folder = tempfile::tempdir().unwrap();
    let library = build(folder.path(), &["-fcf-protection=none"]);
    let offset = probed_offset(&library);
    let path = library.to_str().unwrap();
    let mut talker = Talker::python(&sandbox_python(), &workload("overhead.py"), &[path], &[]);
    talker.line();
    let mut rounds = Rounds::default();
    let mut dropped = 0;
    for _ in 0..ROUNDS {
        for what in ["none", "empty", "traced"] {
            let _empty = (what == "empty").then(|| EmptyProbe::attach(&library, offset, talker.pid()).unwrap());
            let mut trace = (what == "traced").then(|| Trace::attach(talker.pid(), &LoadOptions::default()));
            for depth in DEPTHS.into_iter().cycle().take(DEPTHS.len() * REPEATS) {
                rounds.take(what, depth, &mut talker, &mut trace);
            }
            if let Some(trace) = trace {
                let snapshot = trace.finish();
                dropped += snapshot.tracer.dropped;
                assert_eq!(snapshot.tracer.events, 2 * CALLS * (REPEATS * DEPTHS.len()) as u64);
            }
        }
    }
    println!("dropped {dropped}");
    if std::env::var_os("MINIMA").is_some() {
        let minimum = |what, depth| rounds.of(what, depth).iter().copied().fold(f64::MAX, f64::min);
        for depth in [0, 5, 10, 30, 100] {
            let (empty, traced) = (minimum("empty", depth), minimum("traced", depth));
            println!("{{ depth {depth}: empty {empty:.0} traced {traced:.0} ratio {:.2}", traced / empty);
        }
    }
    let mut measures = Vec::new();
    let empty = rounds.of("empty", 30);
    measures.push(Measure::of_rounds("no_tracing", "ns", rounds.of("none", 30), empty));
    measures.push(Measure::of_rounds("empty_uprobe", "ns", empty, empty));
    for (name, depth) in ["event_depth_5", "event_depth_10", "event_depth_30", "event_depth_100"].into_iter().zip(DEPTHS) {
        measures.push(Measure::of_rounds(name, "ns", rounds.of("traced", depth), rounds.of("empty", depth)));
    }
    measures.push(Measure::of_rounds("free", "ns", rounds.of("traced", 0), rounds.of("empty", 0)));
    measures
}
