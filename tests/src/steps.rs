//! A Python process that runs PyTorch code as it is told to.

use std::path::Path;

use serde_json::Value;

use crate::{child::Talker, workload};

/// The process.
pub struct Steps(Talker);

impl Steps {
    /// Starts it with one device of 8 GiB, before torch is imported.
    ///
    /// # Panics
    ///
    /// When it does not start.
    pub fn start(python: &Path, env: &[(&str, &str)]) -> Self {
        println!("{}", python.display());
        let env = [&[("CUDASIM_DEVICES", "1"), ("CUDASIM_MEMORY", "8G")], env].concat();
        let mut talker = Talker::python(python, &workload("pytorch_steps.py"), &[], &env);
        assert_eq!(talker.line()["ready"], true);
        Self(talker)
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.0.pid()
    }

    /// Runs a piece of code; returns what it printed, and what PyTorch and the driver say then.
    pub fn run(&mut self, code: &str) -> Value {
        self.0.say(&Value::from(code).to_string());
        self.0.line()
    }
}
