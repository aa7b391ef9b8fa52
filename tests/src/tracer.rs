//! The program `cudatrace`, while it traces.

use std::{
    io::{BufRead as _, BufReader},
    process::{Child, Command, Output, Stdio},
    thread::{self, JoinHandle},
};

/// A running `cudatrace`. Its standard error is read on, so that it never blocks.
pub struct Tracer {
    /// The process.
    pub child: Child,
    errors: JoinHandle<String>,
}

/// Starts the program and waits until it says that it is attached.
///
/// # Panics
///
/// When it ends before.
pub fn attach(command: &mut Command) -> Tracer {
    let mut child = match command.stderr(Stdio::piped()).spawn() {
        Ok(child) => child,
        Err(error) => panic!("cannot start {command:?}: {error}"),
    };
    let Some(stderr) = child.stderr.take() else { panic!("standard error was just piped") };
    let mut lines = BufReader::new(stderr).lines().map_while(Result::ok);
    let mut text = String::new();
    loop {
        let Some(line) = lines.next() else { panic!("it ended before it was attached: {text}") };
        text.push_str(&line);
        text.push('\n');
        if line.contains("attached to") {
            break;
        }
    }
    let errors = thread::spawn(move || {
        lines.for_each(|line| {
            text.push_str(&line);
            text.push('\n');
        });
        text
    });
    Tracer { child, errors }
}

impl Tracer {
    /// Waits for its end; standard output and error.
    ///
    /// # Panics
    ///
    /// When it cannot be waited for.
    pub fn finish(self) -> Output {
        match (self.child.wait_with_output(), self.errors.join()) {
            (Ok(mut output), Ok(errors)) => {
                output.stderr = errors.into_bytes();
                output
            }
            (output, _) => panic!("cannot wait for the tracer: {output:?}"),
        }
    }
}
