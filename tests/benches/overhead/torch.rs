//! The real PyTorch, on the simulated driver.

use std::time::Instant;

use cudatrace_tests::{
    child::Talker,
    sandbox_python,
    trace::{Trace, number},
    workload,
};
use serde_json::json;
use tracer_user::bpf::LoadOptions;

use crate::measure::{Measure, median};

const ROUNDS: usize = 5;
const REPEATS: usize = 5;
const PAIRS: u64 = 5_000;

/// Takes them: an allocation and its free by nobody, by the tracer and by PyTorch itself watched, and how
/// long it takes to attach.
pub fn measure() -> Vec<Measure> {
    let mut talker = Talker::python(&sandbox_python(), &workload("overhead_torch.py"), &[], &[]);
    talker.line();
    let [mut alone, mut traced, mut recorded, mut attach] = [const { Vec::new() }; 4];
    for _ in 0..ROUNDS {
        alone.extend(pairs(&mut talker, None));
        let start = Instant::now();
        let mut trace = Trace::attach(talker.pid(), &LoadOptions::default());
        attach.push(start.elapsed().as_secs_f64() * 1e3);
        traced.extend(pairs(&mut talker, Some(&mut trace)));
        assert_eq!(trace.finish().tracer.dropped, 0, "every event is seen");
        for history in [true, false] {
            talker.say(&json!({ "history": history }).to_string());
            talker.line();
            if history {
                recorded.extend(pairs(&mut talker, None));
            }
        }
    }
    vec![
        Measure::of("torch_pair", &alone, "ns").noting("nobody watches"),
        Measure::of("torch_traced", &traced, "ns"),
        Measure::of("torch_history", &recorded, "ns")
            .noting("`_record_memory_history(stacks=\"python\")`"),
        Measure::of("attach_ms", &attach, "ms"),
    ]
}

/// Nanoseconds of `torch.empty` on the device and of its end.
fn pairs(talker: &mut Talker, mut trace: Option<&mut Trace>) -> Option<f64> {
    let runs: Vec<f64> = (0..REPEATS)
        .map(|_| {
            talker.say(&json!({ "pairs": PAIRS }).to_string());
            let answer = match trace.as_deref_mut() {
                Some(trace) => trace.line(talker),
                None => talker.line(),
            };
            number(&answer, "/nanoseconds") as f64 / PAIRS as f64
        })
        .collect();
    median(&runs)
}
