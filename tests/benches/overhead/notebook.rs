//! The same hook, called from a cell of a real Jupyter kernel.

use cudatrace_tests::{child::Talker, sandbox_python, trace::Trace, workload};
use serde_json::{Value, json};
use tracer_user::bpf::LoadOptions;

use crate::{
    empty::EmptyProbe,
    hook,
    measure::{Measure, median},
};

const NAME: &str = "event_notebook";
const ROUNDS: usize = 7;
const CALLS: u64 = 10_000;

/// Takes it.
pub fn measure() -> Vec<Measure> {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let library = folder.path().join("libc10.so");
    hook::build(&library, &[]);
    let mut kernel = Talker::python(&sandbox_python(), &workload("kernel_driver.py"), &[], &[]);
    let pid = kernel.line()["pid"].as_u64().and_then(|pid| u32::try_from(pid).ok());
    let Some(pid) = pid else { return vec![Measure::missing(NAME, "ns", "no kernel")] };
    let cell = format!(
        "import ctypes\n\
         library = ctypes.CDLL({:?})\n\
         def step(name):\n\
         \x20   function = getattr(library, name)\n\
         \x20   function.argtypes, function.restype = [ctypes.c_uint64], ctypes.c_uint64\n\
         \x20   return function({CALLS})",
        library.display().to_string()
    );
    run(&mut kernel, None, &cell);
    let (mut empty, mut traced) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let probe = EmptyProbe::attach(&library, hook::probed_offset(&library), pid);
        empty.extend(median(&cells(&mut kernel, None)));
        drop(probe);
        let mut trace = Trace::attach(pid, &LoadOptions::default());
        traced.extend(median(&cells(&mut kernel, Some(&mut trace))));
        assert_eq!(trace.finish().tracer.dropped, 0, "every event is seen");
    }
    vec![Measure::of_rounds(NAME, &traced, &empty)]
}

/// Nanoseconds of a report, of several cells.
fn cells(kernel: &mut Talker, mut trace: Option<&mut Trace>) -> Vec<f64> {
    let cell = "print([step('allocate'), step('release')][0])";
    let times = (0..7).map(|_| run(kernel, trace.as_deref_mut(), cell));
    times.filter_map(|time| Some(time.trim().parse::<f64>().ok()? / CALLS as f64)).collect()
}

fn run(kernel: &mut Talker, trace: Option<&mut Trace>, cell: &str) -> String {
    kernel.say(&json!({ "run": cell }).to_string());
    let answer: Value = match trace {
        Some(trace) => trace.line(kernel),
        None => kernel.line(),
    };
    assert_eq!(answer["status"], "ok", "{answer}");
    answer["stdout"].as_str().unwrap_or_default().to_owned()
}
