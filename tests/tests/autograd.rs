//! Whose line a backward pass is: real PyTorch, two devices, compared with what the program knows.

use std::{collections::BTreeMap, path::Path};

use cudatrace_tests::{
    child::Talker,
    sandbox_pythons,
    steps::Steps,
    trace::{Trace, device, only_process, text},
    workload,
};
use serde_json::Value;
use tracer_user::{
    bpf::LoadOptions,
    model::{Level, ProcessSnapshot, Site},
};

/// Device, the workload's own frames, and whether a pass that they began allocated.
type Key = (u8, Vec<(String, u32)>, bool);

const SCRIPT: &str = "autograd.py";

fn key(site: &Site) -> Key {
    let own = site.frames.iter().filter(|frame| frame.file.ends_with(SCRIPT));
    let frames = own.map(|frame| {
        let name = frame.qualified_name.as_ref().unwrap_or(&frame.function);
        (name.clone(), frame.line.unwrap_or(0))
    });
    (site.device.unwrap().0, frames.collect(), site.backward_pass)
}

/// Live bytes of PyTorch's blocks.
fn seen(process: &ProcessSnapshot) -> BTreeMap<Key, u64> {
    let mut sites = BTreeMap::new();
    for site in process.sites.iter().filter(|s| s.level == Level::Pytorch && s.live_bytes > 0) {
        *sites.entry(key(site)).or_default() += site.live_bytes;
    }
    sites
}

fn expected(answer: &Value) -> BTreeMap<Key, u64> {
    let frame =
        |frame: &Value| (frame[0].as_str().unwrap().to_owned(), frame[1].as_u64().unwrap() as u32);
    let sites = answer["sites"].as_array().unwrap();
    sites
        .iter()
        .map(|site| {
            let frames = site["frames"].as_array().unwrap().iter().map(frame).collect();
            let device = site["device"].as_u64().unwrap() as u8;
            let key = (device, frames, site["backward_pass"].as_bool().unwrap());
            (key, site["bytes"].as_u64().unwrap())
        })
        .collect()
}

fn start(python: &Path) -> Talker {
    println!("{}", python.display());
    let env = [("CUDASIM_DEVICES", "2"), ("CUDASIM_MEMORY", "8G")];
    let mut talker = Talker::python(python, &workload(SCRIPT), &[], &env);
    assert_eq!(talker.line()["ready"], true);
    talker
}

/// Every pass: by lines, functions and threads at once, by `torch.autograd.grad`, inside of another pass,
/// twice over one graph, after one that failed; Python in its nodes stays what it is.
#[test]
fn a_pass_is_the_line_that_began_it() {
    for python in sandbox_pythons() {
        let mut talker = start(&python);
        let mut trace = Trace::attach(talker.pid(), &LoadOptions::default());
        let answer = trace.go(&mut talker);
        let snapshot = trace.snapshot();
        assert!(snapshot.tracer.exact, "{:?}", snapshot.tracer);
        let process = only_process(&snapshot);
        for index in 0..2 {
            let allocated = answer["allocated"][index].as_u64();
            assert_eq!(device(process, index).allocated_bytes, allocated);
        }
        let (seen, expected) = (seen(process), expected(&answer));
        let is_pass = |(key, _): &(&Key, &u64)| key.2;
        let passes: BTreeMap<_, _> = seen.iter().filter(is_pass).collect();
        let expected_passes: BTreeMap<_, _> = expected.iter().filter(is_pass).collect();
        assert!(expected_passes.len() > 40, "{}", expected_passes.len());
        assert_eq!(passes, expected_passes);
        for (key, bytes) in expected.iter().filter(|site| !is_pass(site)) {
            assert_eq!(seen.get(key), Some(bytes), "{key:?}");
        }
        // Nor did anything that is gone come from nowhere.
        let unknown = process.sites.iter().filter(|site| site.frames.is_empty());
        assert_eq!(unknown.map(|site| site.total_bytes).sum::<u64>(), 0);
        assert!(text(&snapshot).contains("(its backward pass)"));
        talker.say("go");
        assert!(talker.wait().success());
    }
}

/// A pass that was going on when the tracer came: what it allocates from then on is nobody's. The next one, from the same
/// line, is that line's.
#[test]
fn a_pass_from_before_attach_is_not_guessed() {
    for python in sandbox_pythons() {
        let mut steps = Steps::start(&python, &[]);
        steps.run(
            "import threading, torch\n\
             begun, go = threading.Event(), threading.Event()\n\
             class Waits(torch.autograd.Function):\n\
            \x20   @staticmethod\n\
            \x20   def forward(ctx, x): return x * 2\n\
            \x20   @staticmethod\n\
            \x20   def backward(ctx, grad):\n\
            \x20       begun.set()\n\
            \x20       go.wait()\n\
            \x20       return grad * 2\n\
             leaves = [torch.ones(1000 * (i + 1), device='cuda', requires_grad=True) for i in range(2)]\n\
             def work():\n\
            \x20   for leaf in leaves:\n\
            \x20       Waits.apply(leaf * 3).sum().backward()\n\
             thread = threading.Thread(target=work)\n\
             thread.start()\n\
             begun.wait()",
        );
        let mut trace = Trace::attach(steps.pid(), &LoadOptions::default());
        steps.run("go.set()\nthread.join()");
        let snapshot = trace.snapshot();
        assert!(snapshot.tracer.exact, "{:?}", snapshot.tracer);
        let live = only_process(&snapshot)
            .sites
            .iter()
            .filter(|site| site.level == Level::Pytorch && site.live_bytes > 0);
        let live: BTreeMap<u64, &Site> = live.map(|site| (site.live_bytes, site)).collect();
        let [first, second] = [4096, 8192].map(|bytes| live[&bytes]);
        assert!(first.frames.is_empty() && !first.backward_pass, "{first:?}");
        assert!(first.frames_note.is_some());
        let line = second.frames.iter().find(|frame| frame.function == "work");
        assert_eq!(line.and_then(|frame| frame.line), Some(14), "{second:?}");
        assert!(second.backward_pass);
    }
}
