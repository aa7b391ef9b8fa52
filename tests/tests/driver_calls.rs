//! Every entry point of the driver, in random order, against the simulator's own count.

use std::process::Command;

use cudatrace_tests::{
    child::Talker,
    simulated_driver,
    trace::{Trace, number, only_process},
    workload,
};
use tracer_user::bpf::LoadOptions;

/// A C program without Python: random calls of every allocating and freeing entry point from several
/// threads on two devices, some of which fail. At every quiet point the ledger is the simulator's
/// count, to the byte.
#[test]
fn every_entry_point_in_random_order() {
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("driver_calls");
    let driver = simulated_driver();
    let libraries = driver.parent().unwrap();
    let status = Command::new("cc")
        .args(["-O1", "-pthread", "-I"])
        .arg(workload("../cuda-sim"))
        .arg(workload("driver_calls.c"))
        .arg(&driver)
        .arg(format!("-Wl,-rpath,{}", libraries.display()))
        .arg("-o")
        .arg(&program)
        .status()
        .unwrap();
    assert!(status.success());
    let mut talker = Talker::start(
        Command::new(&program)
            .args(["--wait", "--calls", "60000"])
            .env("CUDASIM_DEVICES", "2")
            .env("CUDASIM_MEMORY", "16G"),
    );
    assert_eq!(talker.line()["ready"], true);
    let mut trace = Trace::attach(talker.pid(), &LoadOptions::default());
    talker.say("go");
    let mut points = 0;
    loop {
        let truth = trace.line(&mut talker);
        if truth["done"] == true {
            break;
        }
        let snapshot = trace.snapshot();
        assert_eq!(snapshot.tracer.dropped, 0);
        let process = only_process(&snapshot);
        let driver: u64 = process.devices.iter().map(|device| device.driver_bytes).sum();
        let expected: u64 =
            (0..2).map(|index| number(&truth, &format!("/devices/{index}/driver"))).sum();
        assert_eq!(driver, expected, "{truth}");
        assert_eq!(process.host.pinned_bytes, Some(number(&truth, "/pinned")), "{truth}");
        points += 1;
        talker.say("go");
    }
    assert!(points > 2, "{points} quiet points");
}
