//! The interpreter of a process: version, thread state, and where code objects are freed.

mod code_dealloc;
mod identity;
mod interpreter;
mod thread_local;
mod thread_state;

use std::{iter, path::PathBuf};

use thiserror::Error;
use tracer_common::{
    config::{Interpreters, ThreadStateSource},
    python::{
        layout::PythonLayout,
        table::{self, RuntimeLayout},
    },
};

use self::{identity::Identity, interpreter::Interpreter};
use super::{elf::ElfError, maps::mapped_files, memory::ProcessMemory, process::ProcessError};
use crate::{bpf::Program, model::Pid};

/// Why Python stacks are not to be had.
#[derive(Debug, Error)]
pub enum PythonError {
    /// No interpreter is mapped.
    #[error("process {0} is not a Python process")]
    NotPython(Pid),
    /// Its structures are not known.
    #[error(
        "CPython {0} is not supported (3.8 to 3.15 are): call sites will be without Python frames"
    )]
    UnknownVersion(String),
    /// It says itself that its structures are others.
    #[error(
        "this build of CPython {version} says that `{field}` is {found}, not {expected}: its \
         structures are not the known ones, so call sites will be without Python frames"
    )]
    OtherStructures {
        /// Its version.
        version: String,
        /// The field.
        field: &'static str,
        /// What it says.
        found: u64,
        /// What the table says.
        expected: u64,
    },
    /// It is still starting.
    #[error("the interpreter of process {0} is still starting")]
    NotInitialised(Pid),
    /// The thread state cannot be found as expected.
    #[error("cannot find the Python thread state of process {pid}: {why}")]
    NoThreadState {
        /// The process.
        pid: Pid,
        /// Why.
        why: String,
    },
    /// Memory cannot be read.
    #[error("cannot read the memory of process {0}")]
    Memory(Pid, #[source] std::io::Error),
    /// The process is gone.
    #[error(transparent)]
    Process(#[from] ProcessError),
    /// A file is malformed.
    #[error(transparent)]
    Elf(#[from] ElfError),
}

/// An interpreter that can be walked.
#[derive(Clone, Debug)]
pub struct PythonTarget {
    /// Version, such as `3.11.7`; only `3.10` where the interpreter does not say more.
    pub version: String,
    /// The `x` of 3.x.
    pub minor: u8,
    /// The file that holds it, as the process sees it.
    pub file: PathBuf,
    /// What is less certain than with other versions.
    pub note: Option<&'static str>,
    /// Where threads have their thread state.
    pub thread_state: ThreadStateSource,
    /// Which of its thread states a thread runs.
    pub interpreters: Interpreters,
    /// Offsets in its structures.
    pub layout: PythonLayout,
    /// The function that frees code objects: what `PyCode_Type.tp_dealloc` points to.
    pub code_dealloc: Function,
    /// The function that runs a code object, as `exec` does, unless its symbol is trimmed.
    pub eval_code: Option<Function>,
}

impl PythonTarget {
    /// The functions that are probed.
    pub fn functions(&self) -> impl Iterator<Item = (&Function, Program)> {
        let eval_code = self.eval_code.iter().map(|function| (function, Program::CellStarts));
        iter::once((&self.code_dealloc, Program::CodeDealloc)).chain(eval_code)
    }
}

/// A function of the interpreter, in a mapped file.
#[derive(Clone, Debug)]
pub struct Function {
    /// What it is called.
    pub symbol: &'static str,
    /// The file as the process sees it.
    pub path: PathBuf,
    /// The file to open.
    pub open_path: PathBuf,
    /// Virtual address as linked.
    pub address: u64,
}

/// What is said where the bytecode is copied for each thread: structures and walk are the known ones, but no
/// such build was there to be tried.
const BEST_EFFORT: &str = "CPython without the GIL from 3.14 on: call sites are best effort";

/// Finds and checks the interpreter of a process.
///
/// # Errors
///
/// [`PythonError`]; after [`PythonError::NotInitialised`] it is worth another try.
pub fn find(pid: Pid) -> Result<PythonTarget, PythonError> {
    let files = mapped_files(pid)?;
    let memory = ProcessMemory::open(pid).map_err(|error| PythonError::Memory(pid, error))?;
    let mut first = None;
    // More than one may be mapped: a program with an interpreter of its own, and a module that was linked to
    // the shared one, which then never starts.
    for file in interpreter::candidates(&files) {
        let Some(interpreter) = Interpreter::open(pid, file, &files, &memory) else { continue };
        match examine(&interpreter) {
            Err(error) => first = first.or(Some(error)),
            found => return found,
        }
    }
    Err(first.unwrap_or(PythonError::NotPython(pid)))
}

fn examine(interpreter: &Interpreter<'_>) -> Result<PythonTarget, PythonError> {
    let identity = Identity::of(interpreter)
        .ok_or_else(|| PythonError::UnknownVersion("of unknown version".to_owned()))?;
    let unknown = || PythonError::UnknownVersion(identity.text());
    let known = table::find(identity.minor, identity.free_threaded).ok_or_else(unknown)?;
    let runtime = interpreter.runtime.filter(|_| identity.major == 3).ok_or_else(unknown)?;
    identity::check_debug_offsets(known, &identity, |at| interpreter.field(runtime, at))?;
    let (thread_state, state) = thread_state::find(interpreter, &known.runtime)?;
    let code_dealloc = code_dealloc::find(interpreter, known, state)?;
    Ok(PythonTarget {
        version: identity.text(),
        minor: identity.minor,
        file: interpreter.file.path.clone(),
        note: (known.layout.code_copies != 0).then_some(BEST_EFFORT),
        thread_state,
        interpreters: interpreter.switching(runtime, &known.runtime),
        layout: known.layout,
        code_dealloc,
        eval_code: interpreter.function(interpreter::EVAL_CODE),
    })
}

impl Interpreter<'_> {
    /// What tells the interpreter that a thread runs.
    fn switching(&self, runtime: u64, layout: &RuntimeLayout) -> Interpreters {
        let Some(current) = layout.tstate_current else { return Interpreters::default() };
        let head = runtime.wrapping_add(u64::from(layout.interpreters_head));
        Interpreters {
            current: runtime.wrapping_add(u64::from(current)),
            head,
            main: self.field(head, 8).unwrap_or(0),
            thread_id: layout.tstate_thread_id.into(),
            pad: 0,
        }
    }

    fn no_thread_state(&self, why: &str) -> PythonError {
        PythonError::NoThreadState { pid: self.pid, why: why.to_owned() }
    }
}
