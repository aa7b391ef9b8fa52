//! Frames with everything that is known of them.

use super::{
    cell::{Run, Runs},
    intern::{Location, LocationIndex, Locations},
};
use crate::model::{Frame, FrameKind};

/// The frames of a stack, innermost first.
pub(super) fn frames(stack: &[LocationIndex], locations: &Locations, runs: &Runs) -> Vec<Frame> {
    let mut frames: Vec<Frame> = Vec::with_capacity(stack.len());
    // The cell that the frames from here inwards were called in, as long as only IPython's magics and
    // code without a file are between.
    let mut enclosing: Option<(&Run, Frame)> = None;
    for location in stack.iter().rev().filter_map(|&index| locations.get(index)) {
        let mut frame = frame(location);
        if let Some(run) = location.run.and_then(|run| runs.get(run)) {
            set_cell(&mut frame, run);
            enclosing = Some((run, frame.clone()));
        } else if is_nameless(&location.file) {
            if let Some((run, caller)) = &enclosing {
                set_enclosing(&mut frame, run, caller);
            }
        } else if !is_magic(&location.file) {
            enclosing = None;
        }
        frames.push(frame);
    }
    frames.reverse();
    frames
}

fn frame(location: &Location) -> Frame {
    Frame {
        kind: FrameKind::Python,
        function: location.function.to_string(),
        qualified_name: location.qualified_name.as_deref().map(str::to_owned),
        file: location.file.to_string(),
        line: location.line,
        cell: None,
        cell_line: None,
        cell_seen: None,
        source: None,
        cell_result: false,
        folded: false,
    }
}

fn set_cell(frame: &mut Frame, run: &Run) {
    frame.cell = run.cell();
    frame.cell_seen = frame.cell.is_none().then_some(run.seen);
    if let Some(line) = frame.line.and_then(|line| run.line(line)) {
        frame.cell_line = line.number;
        frame.source = Some(line.text.trim().to_owned());
        frame.cell_result = line.is_result;
    }
}

/// Code that a magic or `exec` was given: it is where it was given, or in the body of the cell magic.
fn set_enclosing(frame: &mut Frame, run: &Run, caller: &Frame) {
    frame.cell = caller.cell;
    frame.cell_seen = caller.cell_seen;
    frame.cell_line = caller.cell_line;
    frame.source.clone_from(&caller.source);
    let is_body = run.has_body() && is_of_magic(&frame.file);
    if is_body && let Some(line) = frame.line.and_then(|line| run.body_line(line)) {
        frame.cell_line = line.number;
        frame.source = Some(line.text.trim().to_owned());
    }
}

/// What `%time` and `%timeit` call the code that they run (`IPython/core/magics/execution.py`).
fn is_of_magic(file: &str) -> bool {
    matches!(file, "<timed exec>" | "<timed eval>" | "<magic-timeit>")
}

/// Code without a text of its own.
fn is_nameless(file: &str) -> bool {
    is_of_magic(file) || file == "<string>"
}

/// Frames between a cell and the code that it gives to a magic.
fn is_magic(file: &str) -> bool {
    // The package `decorator` is what makes magics of functions up to IPython 7.
    const FILES: [&str; 5] =
        ["/decorator.py", "/decorator/__init__.py", "/timeit.py", "/cProfile.py", "/profile.py"];
    file.contains("/IPython/core/")
        || file.starts_with("<decorator-gen-")
        || FILES.iter().any(|name| file.ends_with(name))
}
