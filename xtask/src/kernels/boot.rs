//! Boots a kernel in the emulator.

use std::{
    fs,
    path::Path,
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail, ensure};

use super::packages::Tools;

/// How long a kernel may take from start to power-off, on a busy machine.
const PATIENCE: Duration = Duration::from_secs(180);

/// Lines of the console that are shown when something failed.
const TAIL_LINES: usize = 40;

/// How often a kernel is started that does not get to its first process: on an emulated processor some
/// die now and then while they set themselves up, long before anything of ours runs.
const STARTS: usize = 3;

/// What the first process says first.
const FIRST_WORDS: &str = "==cudatrace release";

/// Boots `kernel` as [`boot`] does, and again if it did not get to its first process.
///
/// # Errors
///
/// Those of [`boot`].
pub fn boot_patiently(tools: &Tools, kernel: &Path, image: &Path, console: &Path) -> Result<()> {
    for start in 1..=STARTS {
        boot(tools, kernel, image, console)?;
        let text = fs::read(console).unwrap_or_default();
        if String::from_utf8_lossy(&text).contains(FIRST_WORDS) {
            break;
        }
        eprintln!("start {start} of {STARTS} ended before the first process:\n{}", tail(console));
    }
    Ok(())
}

/// Boots `kernel` and waits until it has powered itself off; its console is written to a file.
///
/// Software emulation: the same everywhere, with or without `/dev/kvm`.
///
/// # Errors
///
/// When the emulator fails or the time is over.
fn boot(tools: &Tools, kernel: &Path, image: &Path, console: &Path) -> Result<()> {
    let mut emulator = Command::new(&tools.qemu)
        .args(["-accel", "tcg", "-cpu", "max", "-smp", "2", "-m", "1024"])
        .args(["-no-reboot", "-nic", "none", "-display", "none", "-monitor", "none"])
        .arg("-serial")
        .arg(format!("file:{}", console.display()))
        .arg("-kernel")
        .arg(kernel)
        .arg("-initrd")
        .arg(image)
        .args(["-append", "console=ttyS0 quiet panic=-1"])
        .stdin(Stdio::null())
        .spawn()
        .with_context(|| format!("cannot start `{}`", tools.qemu.display()))?;
    let begin = Instant::now();
    loop {
        if let Some(status) = emulator.try_wait()? {
            ensure!(status.success(), "the emulator ended with {status}");
            return Ok(());
        }
        if begin.elapsed() > PATIENCE {
            // An error means that it has just ended by itself.
            let _ = emulator.kill();
            emulator.wait()?;
            bail!("not done after {} s", PATIENCE.as_secs());
        }
        thread::sleep(Duration::from_millis(50));
    }
}

/// The end of a console's log.
pub fn tail(console: &Path) -> String {
    let bytes = fs::read(console).unwrap_or_default();
    let text = String::from_utf8_lossy(&bytes);
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(TAIL_LINES)..].join("\n")
}
