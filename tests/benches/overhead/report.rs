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

| helper of the kernel's | an allocation | a free |
|---|---|---|
| table looked into | 6: process, what was asked for, work space, node of a backward pass, stack's id, counters | 2: process, counters |
| read of user memory | slot of the thread state; up to 3.11 the list of interpreters; thread state; on 3.11 and 3.12 its C frame; each page that has frames (up to 3.10: each frame) | none |
| others | thread and process, cookie, clock, task | thread and process, cookie, clock |
| record written | 1, of 72 bytes | 1, of 72 bytes |

So an allocation by 30 frames of CPython 3.11 takes 5 or 6 reads, and 4 or 5 from 3.13 on. A read of user memory costs
about an eighth of an empty probe where these figures were taken, whatever its length: that is why frames are read a
page at a time, and why a notebook's stack, which stops at IPython's `run_code`, costs what the frames of the cell
cost. A frame in a page that was read costs an eightieth of an empty probe.

The aims were 1.8 times an empty probe for 30 frames, 2.8 for 100, 1.6 for a notebook, 1.2 for a free. What is beyond
them is the reads above, and of a free the record, which alone is 0.16 to 0.18. To spare one read, the thread state
could be kept by thread. It is not: a thread of C that leaves Python (`PyGILState_Release`) frees it, a thread enters
another interpreter, and the memory may be another's when the thread allocates next. A wrong line is worse than 100 ns.

PyTorch's own history (`torch_history`) is cheaper for an allocation and its free than this tracer, because it needs no
trap into the kernel: the three hits of a pair (the report of each, and what was asked for) are three traps. It has to
be switched on in the program, before.
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
