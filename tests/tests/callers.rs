//! Who called the driver, or the runtime above it: the file that the code is in.

use std::{
    ops::Range,
    path::{Path, PathBuf},
    process::Command,
};

use cudatrace_tests::{
    child::Talker,
    sandbox_python,
    trace::{Trace, only_process},
    workload,
};
use tracer_user::{
    bpf::LoadOptions,
    model::{Level, ProcessSnapshot, Site},
};

/// `caller.c`, stripped, and where its function without a name is.
fn library(folder: &Path) -> (PathBuf, Range<u64>) {
    let library = folder.join("libcaller.so");
    let run = |command: &mut Command| {
        let output = command.output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    run(Command::new("cc")
        .args(["-shared", "-fPIC", "-O1", "-o"])
        .args([&library, &workload("caller.c")]));
    let symbols = run(Command::new("nm").arg("-S").arg(&library));
    let line = symbols.lines().find(|line| line.ends_with(" hidden")).unwrap();
    let numbers: Vec<u64> =
        line.split(' ').take(2).map(|word| u64::from_str_radix(word, 16).unwrap()).collect();
    run(Command::new("strip").arg(&library));
    (library, numbers[0]..numbers[0] + numbers[1])
}

/// Functions of a site's caller: those with a name, and virtual addresses of those without.
fn functions(site: &Site) -> (Vec<&str>, Vec<u64>) {
    let (addresses, names): (Vec<&str>, Vec<&str>) =
        site.caller_functions.iter().map(String::as_str).partition(|name| name.starts_with('+'));
    let address = |name: &str| u64::from_str_radix(name.strip_prefix("+0x").unwrap(), 16).unwrap();
    (names, addresses.into_iter().map(address).collect())
}

/// Level, live bytes and caller of every site below the pool's.
fn callers(process: &ProcessSnapshot) -> Vec<(Level, u64, Option<&str>)> {
    let mut sites: Vec<_> = process
        .sites
        .iter()
        .filter(|site| site.level != Level::Pytorch)
        .map(|site| (site.level, site.live_bytes, site.caller.as_deref()))
        .collect();
    sites.sort();
    sites
}

/// PyTorch, and a library that was loaded after attach and is gone again. Where the runtime is
/// between, it is not the caller, and what it allocates counts once.
#[test]
fn the_caller_is_the_file_that_called_the_runtime() {
    let folder = tempfile::tempdir().unwrap();
    let (library, hidden) = library(folder.path());
    let mut talker = Talker::python(
        &sandbox_python(),
        &workload("callers.py"),
        &[library.to_str().unwrap()],
        &[],
    );
    assert_eq!(talker.line()["ready"], true);
    let mut trace = Trace::attach(talker.pid(), &LoadOptions::default());
    talker.say("go");
    let answer = trace.line(&mut talker);
    assert_eq!(answer["results"], serde_json::json!([0, 0, 0, 0, 2]));
    talker.say("unload");
    assert_eq!(trace.line(&mut talker)["unloaded"], true);

    // What is mapped, or was, counts, not what is at its path.
    std::fs::remove_file(&library).unwrap();
    std::fs::write(&library, "another file").unwrap();
    talker.say("end");
    while trace.is_active() {
        trace.tick();
    }

    let snapshot = trace.snapshot();
    let process = only_process(&snapshot);
    let library = Some("libcaller.so");
    assert_eq!(
        callers(process),
        [
            (Level::Pinned, 7 << 20, library),
            // cuMemAlloc_v2 and cudaMalloc, from the same line, by three functions.
            (Level::Driver, 6 << 20, library),
            (Level::Driver, 20 << 20, Some("libc10_cuda.so")),
        ]
    );
    let failures: Vec<_> = process
        .failures
        .iter()
        .map(|failure| {
            let caller = (failure.caller.as_deref(), failure.caller_function.as_deref());
            (failure.call.as_str(), failure.bytes, caller)
        })
        .collect();
    assert_eq!(failures, [("cuMemAlloc_v2", 1 << 60, (library, Some("library::other")))]);

    let site = |level, bytes| {
        let mut sites = process.sites.iter();
        sites.find(|site| site.level == level && site.live_bytes == bytes).unwrap()
    };
    let (names, addresses) = functions(site(Level::Driver, 6 << 20));
    assert_eq!(names, ["call", "library::other"]);
    assert!(matches!(addresses[..], [one] if hidden.contains(&one)), "{addresses:x?} {hidden:x?}");
    assert_eq!(functions(site(Level::Pinned, 7 << 20)), (vec!["call"], vec![]));
    let (names, addresses) = functions(site(Level::Driver, 20 << 20));
    assert!(addresses.is_empty(), "{addresses:x?}");
    assert!(names.iter().all(|name| name.starts_with("c10::cuda::")), "{names:?}");
    assert!(!names.is_empty());
}
