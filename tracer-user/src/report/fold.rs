//! Frames that say nothing about who holds memory: the machinery that runs notebooks, threads and scripts,
//! and the plumbing between a call of a module and its `forward`. They are left out by default
//! (`--full-stacks` shows them); JSON has them all, marked.

use crate::model::{Frame, is_cell_top};

/// Where such frames are.
struct Rule {
    /// How the file's path ends, or, with a `/` at its end, a folder in it. In angle brackets: how the
    /// name of code without a file begins.
    file: &'static str,
    /// The functions; all of them where there are none.
    functions: &'static [&'static str],
}

const fn all(file: &'static str) -> Rule {
    Rule { file, functions: &[] }
}

const fn only(file: &'static str, functions: &'static [&'static str]) -> Rule {
    Rule { file, functions }
}

/// All rules, by name and function as of IPython 7 to 9, ipykernel 5 to 7, tornado 6, CPython 3.8 to 3.14,
/// PyTorch 2, Keras 2 and 3.
const RULES: [Rule; 48] = [
    // Notebooks and their event loops.
    all("/IPython/core/interactiveshell.py"),
    all("/IPython/core/async_helpers.py"),
    all("/IPython/core/magic.py"),
    all("/IPython/core/magics/"),
    all("/IPython/core/shellapp.py"),
    all("/IPython/terminal/"),
    all("/IPython/__init__.py"),
    all("/ipykernel/"),
    all("/ipykernel_launcher.py"),
    all("/traitlets/config/application.py"),
    all("/tornado/gen.py"),
    all("/tornado/ioloop.py"),
    all("/tornado/platform/asyncio.py"),
    all("/zmq/eventloop/zmqstream.py"),
    all("/nest_asyncio.py"),
    all("/nest_asyncio2.py"),
    all("/decorator.py"),
    all("/decorator/__init__.py"),
    all("<decorator-gen-"),
    all("<magic-timeit>"),
    all("/asyncio/base_events.py"),
    all("/asyncio/events.py"),
    all("/asyncio/runners.py"),
    all("/asyncio/tasks.py"),
    all("/asyncio/selector_events.py"),
    all("/asyncio/unix_events.py"),
    all("/anyio/_backends/_asyncio.py"),
    // How a script or a thread begins.
    all("/runpy.py"),
    all("<frozen runpy>"),
    all("<frozen importlib"),
    only("/threading.py", &["run", "_bootstrap", "_bootstrap_inner"]),
    only("/concurrent/futures/thread.py", &["run", "_worker"]),
    only("/multiprocessing/process.py", &["run", "_bootstrap"]),
    all("/multiprocessing/popen_fork.py"),
    all("/multiprocessing/spawn.py"),
    all("/multiprocessing/forkserver.py"),
    all("/multiprocessing/context.py"),
    // What is between a call and the function that it is meant for.
    only("/torch/nn/modules/module.py", &["_wrapped_call_impl", "_call_impl"]),
    only("/torch/optim/optimizer.py", &["wrapper", "_use_grad"]),
    only("/torch/optim/lr_scheduler.py", &["wrapper"]),
    only("/torch/utils/_contextlib.py", &["decorate_context", "generator_context"]),
    only("/torch/autograd/__init__.py", &["backward", "grad"]),
    only("/torch/autograd/graph.py", &["_engine_run_backward"]),
    only(
        "/torch/_dynamo/eval_frame.py",
        &["_fn", "_wrapped_call_impl", "compile_wrapper", "__call__"],
    ),
    only("/torch/_dynamo/external_utils.py", &["inner", "nonrecursive_disable_wrapper"]),
    only("/utils/traceback_utils.py", &["error_handler"]),
    only("/tensorflow/python/util/traceback_utils.py", &["error_handler"]),
    only("/contextlib.py", &["inner", "__enter__", "__exit__"]),
];

impl Rule {
    fn covers(&self, frame: &Frame) -> bool {
        let file = match self.file.as_bytes() {
            [b'<', ..] => frame.file.starts_with(self.file),
            [.., b'/'] => frame.file.contains(self.file),
            // A file that was started by a relative path.
            _ => frame.file.ends_with(self.file) || frame.file == self.file[1..],
        };
        file && (self.functions.is_empty() || self.functions.contains(&frame.function.as_str()))
    }
}

/// Of each frame of a stack, innermost first, whether it is left out. One at least is not.
pub(super) fn folded(frames: &[Frame]) -> Vec<bool> {
    let outer = frames.iter().skip(1).map(Some).chain([None]);
    let mut folded: Vec<bool> =
        frames.iter().zip(outer).map(|(frame, outer)| is_folded(frame, outer)).collect();
    if folded.iter().all(|folded| *folded)
        && let Some(innermost) = folded.first_mut()
    {
        *innermost = false;
    }
    folded
}

fn is_folded(frame: &Frame, outer: Option<&Frame>) -> bool {
    // Code that a cell gave to `exec`: where that is says the cell's own frame.
    let place = |frame: &Frame| (frame.cell, frame.cell_seen, frame.cell_line);
    let is_in_cell = frame.cell.is_some() || frame.cell_seen.is_some();
    let is_again = is_in_cell
        && is_cell_top(&frame.function)
        && outer.is_some_and(|outer| place(outer) == place(frame) && outer.file != frame.file);
    // What is in a cell is the user's own.
    is_again || (!is_in_cell && RULES.iter().any(|rule| rule.covers(frame)))
}

/// The frames that are shown.
pub(super) fn shown(frames: &[Frame], full: bool) -> impl DoubleEndedIterator<Item = &Frame> {
    let folded = if full { vec![false; frames.len()] } else { folded(frames) };
    let shown: Vec<&Frame> =
        frames.iter().zip(folded).filter(|(_, folded)| !folded).map(|(frame, _)| frame).collect();
    shown.into_iter()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::tests::frame;

    #[test]
    fn what_a_notebook_is_run_by_is_left_out() {
        let packages = "/opt/env/lib/python3.11/site-packages";
        let frames = [
            frame("Linear.forward", &format!("{packages}/torch/nn/modules/linear.py"), 125),
            frame("Module._call_impl", &format!("{packages}/torch/nn/modules/module.py"), 1750),
            frame("Module.register_buffer", &format!("{packages}/torch/nn/modules/module.py"), 9),
            frame("train", "/tmp/ipykernel_1/2.py", 3),
            frame("<module>", "/tmp/ipykernel_1/3.py", 1),
            frame("run_code", &format!("{packages}/IPython/core/interactiveshell.py"), 3600),
            frame("dispatch_shell", &format!("{packages}/ipykernel/kernelbase.py"), 400),
            frame("Handle._run", "/usr/lib/python3.11/asyncio/events.py", 84),
            frame("_run_module_as_main", "<frozen runpy>", 198),
        ];
        let shown: Vec<&str> = shown(&frames, false).map(|frame| frame.function.as_str()).collect();
        assert_eq!(shown, ["forward", "register_buffer", "train", "<module>"]);
        assert_eq!(super::shown(&frames, true).count(), frames.len());
    }

    #[test]
    fn something_is_always_left() {
        let frames = [
            frame("Thread._bootstrap_inner", "/usr/lib/python3.11/threading.py", 1045),
            frame("Thread._bootstrap", "/usr/lib/python3.11/threading.py", 1002),
        ];
        assert_eq!(folded(&frames), [false, true]);
        assert!(folded(&[]).is_empty());
    }

    /// Functions of the same file that hold memory themselves, and files of the user's own.
    #[test]
    fn only_what_is_listed() {
        for (function, file) in [
            ("Condition.wait", "/usr/lib/python3.11/threading.py"),
            ("run", "/home/ada/threading_helpers.py"),
            ("main", "/home/ada/my_ipykernel/x.py"),
            ("wrapper", "/home/ada/train.py"),
            ("<module>", "<string>"),
        ] {
            assert!(!is_folded(&frame(function, file, 1), None), "{function} {file}");
        }
    }
}
