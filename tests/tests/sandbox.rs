//! The sandboxes are what the other tests take them for.

use std::process::Command;

use cudatrace_tests::{sandbox_pythons, workload};

/// Real PyTorch, whose allocator and arithmetic run on the simulated libraries.
#[test]
fn real_pytorch_on_a_simulated_device() {
    for python in sandbox_pythons() {
        let output = Command::new(&python)
            .args(["-W", "ignore"])
            .arg(workload("sandbox_check.py"))
            .env("CUDASIM_DEVICES", "2")
            .env("CUDASIM_MEMORY", "8G:16G")
            .output()
            .unwrap();
        let (said, error) =
            (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success() && said.ends_with("ok\n"), "{said}{error}");
    }
}
