//! `target/bench/bench.json` and `docs/overhead.md`.

use std::{fmt::Write as _, fs, io, path::Path, process::Command};

use crate::measure::Measure;

const BEFORE: &str = "\
# Overhead

Written by `cargo xtask bench`, which measures anew. Each figure is the median of several rounds; a ratio is to
an *empty probe*: a program that does nothing, on the same instruction of the same process, in the same round.
That is the least that any tracer costs that runs there.

A hit of the hook of PyTorch's allocator is measured without an allocator around it, by a function that consists
of its first instructions, called from C below a Python stack of so many frames. `torch_…` is the real thing: a
`torch.empty` on the device and its end, on the simulated driver, which costs nothing itself.

";

const AFTER: &str = "
## What a hit does

An allocation: 1 look for the process, 1 for what was asked for, 1 for the stack's id; the thread pointer, from
the task itself; 4 reads of user memory on CPython 3.11 and 3.12 (slot of the thread state, thread state, its C
frame, and the page with the innermost frame; from 3.13 on there is no C frame to read), 1 more for each further
page that has frames; 1 record. Up to CPython 3.10 every frame is an object by itself, and 1 read. A free: 1 look
for the process, and 1 record. A read of user memory costs about an eighth of an empty probe where these figures
were taken, whatever its length: that is why frames are read a page at a time, and why a notebook's stack, which
stops at IPython's `run_code`, costs what the frames of the cell cost.

The thread state is not cached by thread: a thread of C that leaves Python (`PyGILState_Release`) frees it, and
the memory may be another's when the thread allocates next. A wrong line is worse than 100 ns.
";

/// Writes both.
pub fn write(root: &Path, measures: &[Measure]) -> io::Result<()> {
    let folder = root.join("target/bench");
    fs::create_dir_all(&folder)?;
    fs::write(folder.join("bench.json"), serde_json::to_vec_pretty(measures)?)?;
    let text = format!("{BEFORE}Taken on {}.\n\n{}{AFTER}", machine(), table(measures));
    fs::write(root.join("docs/overhead.md"), text)?;
    println!("{}", folder.join("bench.json").display());
    Ok(())
}

/// A line for each.
pub fn table(measures: &[Measure]) -> String {
    let mut text =
        "| measure | median | unit | ratio to the empty probe | |\n|---|---|---|---|---|\n"
            .to_owned();
    for measure in measures {
        let ratio = measure.ratio_to_empty_uprobe;
        let _ = writeln!(
            text,
            "| `{}` | {} | {} | {} | {} |",
            measure.name,
            measure.median.map_or("-".to_owned(), figure),
            measure.unit,
            ratio.map_or(String::new(), |ratio| format!("{ratio:.2}")),
            measure.reason.as_deref().unwrap_or_default().replace('|', "\\|"),
        );
    }
    text
}

fn figure(value: f64) -> String {
    match value {
        value if value >= 100.0 => format!("{value:.0}"),
        value if value >= 10.0 => format!("{value:.1}"),
        value => format!("{value:.2}"),
    }
}

/// What the figures are true of.
fn machine() -> String {
    let processors = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model =
        processors.lines().find_map(|line| line.strip_prefix("model name")?.split(": ").nth(1));
    let count = processors.lines().filter(|line| line.starts_with("processor")).count();
    let kernel = Command::new("uname").arg("-r").output();
    let kernel =
        kernel.map_or(String::new(), |output| String::from_utf8_lossy(&output.stdout).into());
    let hypervisor = processors.contains(" hypervisor ");
    format!(
        "{count} cores of {}{}, Linux {}",
        model.unwrap_or("an unknown processor"),
        if hypervisor { ", in a virtual machine" } else { "" },
        kernel.trim()
    )
}
