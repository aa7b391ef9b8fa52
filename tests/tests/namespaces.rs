//! A process in mount and pid namespaces of its own, as in a container.

use std::{fs, os::unix::fs::symlink, path::Path, process::Command};

use cudatrace_tests::{
    child::Talker,
    simulated_driver,
    trace::{Trace, only_process},
    workload,
};
use tracer_user::{bpf::LoadOptions, model::Site};

/// Copies a file into a root, with every shared library that it loads.
fn copy_with_libraries(root: &Path, file: &Path) {
    copy(root, file);
    let output = Command::new("ldd").arg(file).output().unwrap();
    for word in String::from_utf8_lossy(&output.stdout).split_whitespace() {
        if word.starts_with('/') {
            copy(root, Path::new(word));
        }
    }
}

fn copy(root: &Path, file: &Path) {
    let to = root.join(file.strip_prefix("/").unwrap());
    fs::create_dir_all(to.parent().unwrap()).unwrap();
    fs::copy(file, to).unwrap();
}

/// Debian's interpreter and simulated driver in a chroot that has nothing else, started in new mount
/// and pid namespaces; attached by its pid in ours.
#[test]
fn a_container_is_attached_by_its_host_pid() {
    let python = Path::new("/usr/bin/python3.11");
    if !python.exists() {
        assert!(std::env::var_os("CI").is_none(), "no {}", python.display());
        println!("skipped: no {}", python.display());
        return;
    }
    let root = tempfile::tempdir().unwrap();
    let root = root.path();
    copy_with_libraries(root, python);
    let driver = simulated_driver();
    copy_with_libraries(root, &driver);
    let modules = Path::new("/usr/lib/python3.11/lib-dynload");
    for entry in fs::read_dir(modules).unwrap().flatten() {
        copy_with_libraries(root, &entry.path());
    }
    let status =
        Command::new("cp").args(["-r", "--parents", "/usr/lib/python3.11"]).arg(root).status();
    assert!(status.unwrap().success());
    fs::copy(workload("stacks.py"), root.join("stacks.py")).unwrap();
    fs::create_dir_all(root.join("hidden")).unwrap();
    let inside = root.join("hidden/libcuda.so.1");
    fs::rename(root.join(driver.strip_prefix("/").unwrap()), &inside).unwrap();
    let _ = symlink("/hidden/libcuda.so.1", root.join("usr/lib/x86_64-linux-gnu/libcuda.so.1"));

    // `unshare` forks for the new pid namespace; the child is the one that is traced.
    let mut talker = Talker::start(
        Command::new("unshare")
            .args(["--mount", "--pid", "--fork", "--kill-child", "chroot"])
            .arg(root)
            .args(["/usr/bin/python3.11", "/stacks.py", "/hidden/libcuda.so.1"]),
    );
    assert_eq!(talker.line()["ready"], true);
    let children = format!("/proc/{0}/task/{0}/children", talker.pid());
    let pid: u32 = fs::read_to_string(children).unwrap().trim().parse().unwrap();
    let mut trace = Trace::attach(pid, &LoadOptions::default());
    talker.say("go");
    let truth = trace.line(&mut talker);
    let snapshot = trace.snapshot();
    let process = only_process(&snapshot);
    assert_eq!(process.python.as_deref().map(|version| &version[..4]), Some("3.11"));
    // Some of CPython 3.11's subinterpreters have no stack (docs/python-frames.md).
    let (named, untold): (Vec<_>, Vec<_>) =
        process.sites.iter().partition(|site| !site.frames.is_empty());
    let bytes = |sites: &[&Site]| sites.iter().map(|site| site.total_bytes).sum::<u64>();
    let stacks = truth["stacks"].as_array().unwrap();
    let expected: u64 = stacks.iter().map(|stack| stack["bytes"].as_u64().unwrap()).sum();
    assert_eq!((named.len(), bytes(&named)), (stacks.len(), expected));
    assert_eq!(Some(bytes(&untold)), truth["untold"].as_u64());
    let driver: Vec<_> =
        snapshot.tracer.coverage.iter().filter(|entry| entry.symbol == "cuMemAlloc_v2").collect();
    assert!(
        driver
            .iter()
            .any(|entry| entry.attached && entry.library.ends_with("/hidden/libcuda.so.1"))
    );
    talker.say("end");
}
