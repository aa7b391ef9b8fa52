//! Interpreters that cannot be walked: no Python frames, and the report says why. Never wrong ones.

use std::{fs::File, os::unix::fs::FileExt as _, path::Path};

use cudatrace_tests::{
    child::Talker,
    pyenv_pythons, simulated_driver,
    trace::{Trace, text},
    workload,
};
use tracer_user::{
    bpf::LoadOptions,
    discover::{elf::Elf, maps::mapped_files},
    model::Pid,
};

fn start(python: &Path) -> Talker {
    let driver = simulated_driver();
    let script = workload("allocations.py");
    let mut talker = Talker::python(python, &script, &[driver.to_str().unwrap()], &[]);
    assert_eq!(talker.line()["ready"], true);
    talker
}

/// Traces what they allocate: everything is there, without a frame, and for the reason that goes with each.
fn check(targets: Vec<(Talker, String)>) {
    let pids: Vec<u32> = targets.iter().map(|(talker, _)| talker.pid()).collect();
    let mut trace = Trace::attach_all(&pids, &LoadOptions::default());
    for (mut talker, why) in targets {
        trace.go(&mut talker);
        let snapshot = trace.snapshot();
        let process = snapshot.processes.iter().find(|process| process.pid.0 == talker.pid());
        let process = process.unwrap();
        assert_eq!(process.python, None);
        let note = process.python_note.as_deref().unwrap();
        assert!(note.starts_with("no Python stacks: ") && note.contains(&why), "{note}, not {why}");
        assert!(process.sites.iter().all(|site| site.frames.is_empty() && site.caller.is_some()));
        assert_eq!(process.sites.iter().map(|site| site.total_blocks).sum::<u64>(), 10);
        let report = text(&snapshot).split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(report.contains(note), "{report}");
        talker.say("end");
        assert!(talker.wait().success());
    }
}

#[test]
fn old_versions_are_told_by_name() {
    let mut targets = Vec::new();
    for version in ["2.7", "3.6", "3.7"] {
        let Some(python) = pyenv_pythons(version).pop() else {
            assert!(std::env::var_os("CI").is_none(), "no Python {version}");
            println!("skipped: no Python {version} on this machine");
            continue;
        };
        let why = format!("CPython {version} is not supported (3.8 to 3.15 are)");
        targets.push((start(&python), why));
    }
    check(targets);
}

/// A change in the memory of an interpreter, which knows nothing of it.
struct Lie {
    minor: u8,
    /// Where: an offset from a symbol.
    symbol: &'static str,
    offset: u64,
    /// What is written there.
    value: u32,
    /// What is said then.
    why: &'static str,
}

impl Lie {
    fn tell(&self, pid: u32) {
        let files = mapped_files(Pid(pid)).unwrap();
        let address = files.iter().find_map(|file| {
            let elf = Elf::open(&file.open_path, &[self.symbol]).ok()?;
            Some(elf.symbol(self.symbol)?.address.wrapping_add(elf.load_bias(file)?))
        });
        let memory = File::options().write(true).open(format!("/proc/{pid}/mem")).unwrap();
        memory.write_all_at(&self.value.to_le_bytes(), address.unwrap() + self.offset).unwrap();
    }
}

#[test]
fn an_unknown_version_or_structure_has_no_frames() {
    let unknown = "CPython 3.16.0 is not supported (3.8 to 3.15 are)";
    let lies = [
        Lie { minor: 12, symbol: "Py_Version", offset: 0, value: 0x0310_00f0, why: unknown },
        Lie { minor: 13, symbol: "_PyRuntime", offset: 8, value: 0x0310_00f0, why: unknown },
        // A known version, but not this one: 3.14 on 3.13, 3.11 on 3.12.
        Lie {
            minor: 13,
            symbol: "_PyRuntime",
            offset: 8,
            value: 0x030e_00f0,
            why: "`runtime_state.",
        },
        Lie { minor: 12, symbol: "Py_Version", offset: 0, value: 0x030b_00f0, why: "" },
        // Without the GIL, as it says.
        Lie {
            minor: 13,
            symbol: "_PyRuntime",
            offset: 16,
            value: 1,
            why: "`code_object.filename` is",
        },
        Lie {
            minor: 13,
            symbol: "_PyRuntime",
            offset: 288,
            value: 128,
            why: "says that `code_object.name` is 128, not 120",
        },
    ];
    let mut targets = Vec::new();
    for lie in lies {
        let pythons = pyenv_pythons(&format!("3.{}", lie.minor));
        assert!(
            !pythons.is_empty() || std::env::var_os("CI").is_none(),
            "no CPython 3.{}",
            lie.minor
        );
        for python in pythons {
            let talker = start(&python);
            lie.tell(talker.pid());
            targets.push((talker, lie.why.to_owned()));
        }
    }
    check(targets);
}
