//! Processes that tests start, and end whatever happens.

use std::{
    io::{BufRead as _, BufReader, Write as _},
    path::Path,
    process::{Child, ChildStdin, Command, Stdio},
    sync::mpsc::{Receiver, RecvTimeoutError, channel},
    thread,
    time::Duration,
};

use serde_json::Value;

/// How long an answer is waited for.
const PATIENCE: Duration = Duration::from_secs(180);

/// A process that answers with JSON lines. Killed when dropped.
pub struct Talker {
    child: Child,
    input: Option<ChildStdin>,
    lines: Receiver<String>,
}

impl Talker {
    /// Starts it.
    ///
    /// # Panics
    ///
    /// When it does not start.
    pub fn start(command: &mut Command) -> Self {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .env("PYTHONDONTWRITEBYTECODE", "1")
            .spawn()
            .unwrap_or_else(|error| panic!("cannot start {command:?}: {error}"));
        let input = child.stdin.take();
        let (sender, lines) = channel();
        if let Some(output) = child.stdout.take() {
            thread::spawn(move || {
                for line in BufReader::new(output).lines().map_while(Result::ok) {
                    if sender.send(line).is_err() {
                        break;
                    }
                }
            });
        }
        Self { child, input, lines }
    }

    /// A Python script with arguments.
    pub fn python(python: &Path, script: &Path, args: &[&str], env: &[(&str, &str)]) -> Self {
        Self::start(Command::new(python).arg(script).args(args).envs(env.iter().copied()))
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Writes a line to it.
    ///
    /// # Panics
    ///
    /// When it does not read any more.
    pub fn say(&mut self, line: &str) {
        let Some(input) = &mut self.input else { panic!("its standard input is closed") };
        if let Err(error) = writeln!(input, "{line}").and_then(|()| input.flush()) {
            panic!("the process reads no more: {error}");
        }
    }

    /// The next line, if it has come; ends the test if the process has closed its output.
    pub fn try_line(&mut self, wait: Duration) -> Option<Value> {
        match self.lines.recv_timeout(wait) {
            Ok(line) => match serde_json::from_str(&line) {
                Ok(value) => Some(value),
                Err(error) => panic!("not JSON ({error}): {line}"),
            },
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => {
                panic!("the process ended: {:?}", self.child.wait())
            }
        }
    }

    /// The next line.
    ///
    /// # Panics
    ///
    /// When none comes in time.
    pub fn line(&mut self) -> Value {
        match self.try_line(PATIENCE) {
            Some(line) => line,
            None => panic!("no answer within {PATIENCE:?}"),
        }
    }

    /// Ends it at once.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Waits for its end.
    ///
    /// # Panics
    ///
    /// When it cannot be waited for.
    pub fn wait(&mut self) -> std::process::ExitStatus {
        self.input = None;
        match self.child.wait() {
            Ok(status) => status,
            Err(error) => panic!("cannot wait: {error}"),
        }
    }

    /// Whether it is still there.
    pub fn is_running(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }
}

impl Drop for Talker {
    fn drop(&mut self) {
        // A driver of another process ends that one when its input closes.
        self.input = None;
        for _ in 0..50 {
            if !self.is_running() {
                return;
            }
            thread::sleep(Duration::from_millis(20));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
