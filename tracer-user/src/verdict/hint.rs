//! What to try, where a stack and its behaviour show a usual cause. A suggestion: what keeps an object alive
//! is not to be seen from outside.

use crate::model::{
    Frame, HintKind, Level, Verdict, is_cell_top, is_user, user_frame, user_position,
};

/// A site that a hint is wanted for.
#[derive(Clone, Copy, Debug)]
pub struct Subject<'a> {
    /// Innermost first.
    pub frames: &'a [Frame],
    /// Where it is counted.
    pub level: Level,
    /// What it holds.
    pub live_bytes: u64,
    /// Whether a backward pass allocated that these frames began.
    pub backward_pass: bool,
    /// What its behaviour says.
    pub verdict: Verdict,
    /// Bytes that earlier runs of the same cell still hold here.
    pub earlier_bytes: u64,
    /// Whether it used to give everything back, and what it holds now is left from a run that is over.
    pub is_leftover: bool,
    /// Whether the process runs backward passes.
    pub trains: bool,
}

/// The first cause that fits.
pub fn hint(subject: &Subject<'_>) -> Option<(HintKind, &'static str)> {
    let kind = kind(subject)?;
    Some((kind, text(kind, subject)))
}

fn kind(subject: &Subject<'_>) -> Option<HintKind> {
    let is_held = subject.live_bytes > 0 && subject.verdict != Verdict::Cache;
    if !is_held || subject.level == Level::Driver {
        return None;
    }
    let grows = subject.verdict == Verdict::Growing;
    if subject.earlier_bytes > 0 {
        let kind =
            if in_result(subject.frames) { HintKind::CellResult } else { HintKind::RerunCell };
        return Some(kind);
    }
    if subject.is_leftover {
        return is_in_function(subject.frames).then_some(HintKind::Traceback);
    }
    match subject.verdict {
        Verdict::OneOff if subject.backward_pass => return Some(HintKind::KeptGradients),
        Verdict::OneOff if is_result(subject.frames) => return Some(HintKind::CellResult),
        _ if !grows => return None,
        _ => {}
    }
    if mentions(subject.frames, &["retain_graph=True", "create_graph=True"]) {
        return Some(HintKind::RetainGraph);
    }
    if is_in_hook(subject.frames) {
        return Some(HintKind::Hook);
    }
    let of_graph = subject.backward_pass || is_forward(subject.frames);
    match of_graph {
        true if evaluates(subject.frames) || !subject.trains => Some(HintKind::NoGrad),
        true => Some(HintKind::KeptGraph),
        false if mentions(subject.frames, &["loss"]) => Some(HintKind::KeptGraph),
        false => Some(HintKind::Collection),
    }
}

fn text(kind: HintKind, subject: &Subject<'_>) -> &'static str {
    match kind {
        HintKind::KeptGraph => {
            "each step's graph stays: something keeps a loss or an output, as `losses.append(loss)`, \
             `total += loss`, a hook or a state that is carried on do; keep `loss.item()` or \
             `x.detach()` instead"
        }
        HintKind::NoGrad if subject.trains => {
            "outputs of an evaluation stay with their graphs: run it in `torch.no_grad()` or \
             `torch.inference_mode()`, and keep results as `.cpu()` or `.item()`"
        }
        HintKind::NoGrad => {
            "outputs stay with their graphs, and no backward pass was seen: run the model in \
             `torch.inference_mode()`, and keep results as `.cpu()` or `.item()`"
        }
        HintKind::RetainGraph => {
            "the graph is retained: leave out `retain_graph=True` or `create_graph=True` where nothing \
             needs the graph again, and keep no gradient that was made with it"
        }
        HintKind::Hook => {
            "a hook of a module allocates this and something keeps it: remove the hook with its \
             `handle.remove()`, register it once, and keep `.cpu()` or a number"
        }
        HintKind::CellResult => {
            "the value of a cell's last line stays in `Out[n]` and `_`: end the line with `;`, give the \
             value a name, or clear them with `%reset -f out`"
        }
        HintKind::Traceback => {
            "left by a function that has ended: after an exception or an interrupt, the traceback keeps \
             the variables of its frames until the next one; `%xmode Minimal` does not help, \
             `sys.last_traceback = sys.last_value = None` does; else its result holds it"
        }
        HintKind::RerunCell => {
            "earlier runs of this cell still hold memory here: something keeps what they made (a list, \
             `Out[n]`, another name); delete it before running the cell again"
        }
        HintKind::KeptGradients => {
            "gradients stay between the steps: `optimizer.zero_grad(set_to_none=True)` gives them back \
             until the next backward pass"
        }
        HintKind::Collection => {
            "each repetition leaves something: look for a list, a dict, a cache or an attribute that is \
             added to and never emptied"
        }
    }
}

/// Whether it is in the forward pass of a module.
fn is_forward(frames: &[Frame]) -> bool {
    frames.iter().any(is_module_call)
}

fn is_module_call(frame: &Frame) -> bool {
    frame.file.ends_with("/torch/nn/modules/module.py")
        && ["_call_impl", "_wrapped_call_impl", "inner"].contains(&frame.function.as_str())
}

/// Whether a module's call has called something of the user's that is not its `forward`.
fn is_in_hook(frames: &[Frame]) -> bool {
    frames.windows(2).any(|pair| {
        let [inner, outer] = pair else { return false };
        is_user(inner) && inner.function != "forward" && is_module_call(outer)
    })
}

/// Whether a function of the user's is called like one that evaluates.
fn evaluates(frames: &[Frame]) -> bool {
    const NAMES: [&str; 5] = ["eval", "valid", "test", "predict", "infer"];
    let is_named = |frame: &Frame| {
        let name = frame.function.to_ascii_lowercase();
        NAMES.iter().any(|part| name.contains(part)) && !name.contains("train")
    };
    frames.iter().any(|frame| is_user(frame) && is_named(frame))
}

/// Whether a line of the user's has one of these words.
fn mentions(frames: &[Frame], words: &[&str]) -> bool {
    let has = |source: &str| words.iter().any(|word| source.contains(word));
    frames.iter().any(|frame| is_user(frame) && frame.source.as_deref().is_some_and(has))
}

/// Whether the top of a cell has called a function that allocated.
fn is_in_function(frames: &[Frame]) -> bool {
    user_frame(frames).is_some_and(|frame| !is_cell_top(&frame.function))
}

/// Whether it was allocated while the value of a cell's last line was made.
fn in_result(frames: &[Frame]) -> bool {
    frames.iter().any(|frame| frame.cell_result && is_cell_top(&frame.function))
}

/// Whether it is, by all that is seen, the value of a cell's last line itself.
fn is_result(frames: &[Frame]) -> bool {
    let Some(own) = user_position(frames).and_then(|position| frames.get(position)) else {
        return false;
    };
    own.cell_result && is_cell_top(&own.function)
}
