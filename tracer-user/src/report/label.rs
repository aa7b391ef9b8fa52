//! Words for frames, sites and sizes.

use bytesize::ByteSize;

use super::user_frame::cell_of_file;
use crate::model::{Device, Frame};

/// Where a frame is: `cell 3409123:3`, `In[7]:3` or `train.py:12`; the whole path only if asked.
pub(super) fn place(frame: &Frame, whole_path: bool) -> String {
    let file = match (frame.cell, cell_of_file(&frame.file)) {
        (Some(number), _) => format!("In[{number}]"),
        (None, Some(cell)) => cell,
        (None, None) if whole_path => frame.file.clone(),
        (None, None) => frame.file.rsplit('/').next().unwrap_or_default().to_owned(),
    };
    match frame.line {
        Some(line) => format!("{file}:{line}"),
        None => format!("{file}:?"),
    }
}

/// The name of a frame's function, with its class where known; `None` for the top of a script or of a
/// cell (which some versions of IPython call `<cell line: 1>`).
pub(super) fn function(frame: &Frame) -> Option<&str> {
    let name = frame.qualified_name.as_deref().unwrap_or(&frame.function);
    (name != "<module>" && !name.starts_with("<cell line: ")).then_some(name)
}

/// A frame in a flamegraph: `train_step (cell 3409123:3)`, or just the place for the top of a cell
/// or script.
pub(super) fn frame(frame: &Frame) -> String {
    match function(frame) {
        None => place(frame, false),
        Some(name) => format!("{name} ({})", place(frame, false)),
    }
}

/// A device: `cuda:0`.
pub(super) fn device(device: Option<Device>) -> String {
    device.map_or_else(|| "device unknown".to_owned(), |device| format!("cuda:{}", device.0))
}

/// A size: `1.2 GiB`.
pub(super) fn size(bytes: u64) -> String {
    ByteSize(bytes).display().iec().to_string()
}

/// A number with its thousands apart.
pub(super) fn number(value: u64) -> String {
    let digits = value.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A sum that a hostile process cannot make overflow.
pub(super) fn sum(sizes: impl Iterator<Item = u64>) -> u64 {
    sizes.fold(0, u64::saturating_add)
}
