//! `demo`: from a fresh clone to the line that leaks, in one command.

use std::{
    fs,
    io::{BufRead as _, BufReader, Write as _},
    path::Path,
    process::{Child, ChildStdout, Command, Stdio},
    time::Instant,
};

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::{Value, json};

use crate::{command::output, sandbox, test, workspace::Workspace};

/// How long the leaking cell is watched, as `cudatrace --duration` takes it.
const WATCH: &str = "8s";

/// Starts a notebook kernel whose cell leaks, traces it, and shows what came out.
///
/// # Errors
///
/// When something cannot be built or started, or the report's first site is not the leaking line.
pub fn run(workspace: &Workspace) -> Result<()> {
    let begin = Instant::now();
    if output(Command::new("id").arg("-u"))?.trim() != "0" {
        bail!("attaching probes needs root: run `sudo -E cargo xtask demo`");
    }
    let program = test::program(workspace)?;
    let python = sandbox::CURRENT.ensure(workspace)?;
    let ready = begin.elapsed();
    let folder = workspace.target("demo");
    fs::create_dir_all(&folder)?;

    let cell = fs::read_to_string(workspace.root().join("tests/workloads/demo_cell.py"))?;
    let mut kernel = Kernel::start(workspace, &python, &folder.join("history.sqlite"))?;
    println!("\nA Jupyter kernel (process {}) on a simulated driver runs this cell:\n", kernel.pid);
    for (number, line) in cell.lines().enumerate() {
        println!("  {:>2} | {line}", number + 1);
    }
    kernel.start_cell(&cell)?;

    let (json, svg) = (folder.join("report.json"), folder.join("leak.svg"));
    println!(
        "\n$ sudo cudatrace --pid {} --duration {WATCH} -o report.json -o leak.svg\n",
        kernel.pid
    );
    let status = Command::new(&program)
        .args(["--pid", &kernel.pid.to_string(), "--duration", WATCH, "--interval", "1h"])
        .arg("-o")
        .arg(&json)
        .arg("-o")
        .arg(&svg)
        .status()
        .with_context(|| format!("cannot start `{}`", program.display()))?;
    ensure!(status.success(), "cudatrace ended with {status}");
    drop(kernel);

    check(&serde_json::from_str(&fs::read_to_string(&json)?)?, &cell)?;
    println!("\nThe line above is the cell's `losses.append(…)`: the report's first site.");
    println!("wrote {}\nwrote {}", json.display(), svg.display());
    println!(
        "(set-up {:.0} s, in all {:.0} s)",
        ready.as_secs_f64(),
        begin.elapsed().as_secs_f64()
    );
    Ok(())
}

/// The report's first site must be the leaking line of the cell.
fn check(report: &Value, cell: &str) -> Result<()> {
    let leak = cell.lines().position(|line| line.contains("losses.append"));
    let leak = leak.context("the demo's cell has no leaking line")? + 1;
    let site = &report["processes"][0]["sites"][0];
    let frame = &site["frames"][0];
    let source = frame["source"].as_str().unwrap_or_default();
    ensure!(
        frame["cell"] == 1 && frame["cell_line"] == leak && source.contains("losses.append"),
        "the report's first site is {frame}, not line {leak} of the cell"
    );
    ensure!(report["tracer"]["exact"] == true, "the report is not exact: {}", report["tracer"]);
    Ok(())
}

/// A Jupyter kernel and the client that drives it; both end when it is dropped.
struct Kernel {
    driver: Child,
    /// Kept open: the driver ends when nobody reads it.
    _answers: BufReader<ChildStdout>,
    pid: u64,
}

impl Kernel {
    /// `history` is where IPython keeps what it runs, so that the user's own stays as it is.
    fn start(workspace: &Workspace, python: &Path, history: &Path) -> Result<Self> {
        let mut driver = Command::new(python)
            .arg(workspace.root().join("tests/workloads/kernel_driver.py"))
            .arg(format!("--HistoryManager.hist_file={}", history.display()))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .env("CUDASIM_MEMORY", "8G")
            .spawn()
            .context("cannot start the Jupyter kernel")?;
        let output = driver.stdout.take().context("the Jupyter kernel has no output")?;
        let mut answers = BufReader::new(output);
        let mut line = String::new();
        answers.read_line(&mut line)?;
        let answer: Value =
            serde_json::from_str(&line).context("the Jupyter kernel did not start")?;
        let pid = answer["pid"].as_u64().context("the Jupyter kernel has no pid")?;
        Ok(Self { driver, _answers: answers, pid })
    }

    fn start_cell(&mut self, source: &str) -> Result<()> {
        let input = self.driver.stdin.as_mut().context("the Jupyter kernel has no input")?;
        writeln!(input, "{}", json!({ "start": source })).context("the Jupyter kernel has ended")
    }
}

impl Drop for Kernel {
    fn drop(&mut self) {
        // The driver ends its kernel when its input closes.
        drop(self.driver.stdin.take());
        let _ = self.driver.wait();
    }
}
