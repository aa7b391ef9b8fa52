//! The file that holds an interpreter, and what it says where.

use std::collections::HashMap;

use tracer_common::{ReadMem as _, python::table::RuntimeLayout};

use super::{Function, PythonError};
use crate::{
    discover::{
        elf::Elf,
        maps::MappedFile,
        memory::ProcessMemory,
        symbols::{Pattern, Symbol},
    },
    model::Pid,
};

/// CPython's global state.
pub(super) const RUNTIME: &str = "_PyRuntime";
/// The same as a section (3.10 and later), for files whose symbols are trimmed.
pub(super) const RUNTIME_SECTION: &str = ".PyRuntime";
/// Version as a number, from 3.11 on.
pub(super) const VERSION: &str = "Py_Version";
/// What `sys.implementation.cache_tag` says: `cpython-38`. Exported up to 3.8.
pub(super) const CACHE_TAG: &str = "_PySys_ImplCacheTag";
/// The type of code objects.
pub(super) const CODE_TYPE: &str = "PyCode_Type";
/// The function that returns what is to be found: the calling thread's gilstate slot.
pub(super) const THIS_THREAD_STATE: &str = "PyGILState_GetThisThreadState";
/// Every interpreter of every version has it.
const INITIALIZE: &str = "Py_Initialize";

/// What `exec` and `eval` come to.
pub(super) const EVAL_CODE: &str = "PyEval_EvalCode";

const NAMES: [&str; 7] =
    [RUNTIME, VERSION, CACHE_TAG, CODE_TYPE, THIS_THREAD_STATE, INITIALIZE, EVAL_CODE];

/// A mapped file that holds an interpreter, and the memory that it runs in.
pub(super) struct Interpreter<'a> {
    pub pid: Pid,
    pub file: &'a MappedFile,
    pub files: &'a [MappedFile],
    pub memory: &'a ProcessMemory,
    /// Address of `_PyRuntime` in the process; `None` before 3.7.
    pub runtime: Option<u64>,
    elf: Elf,
    /// Symbols that the file has, but does not export.
    local: HashMap<Pattern, Symbol>,
    bias: u64,
}

impl<'a> Interpreter<'a> {
    /// Opens a file; `None` if there is no interpreter in it.
    pub fn open(
        pid: Pid,
        file: &'a MappedFile,
        files: &'a [MappedFile],
        memory: &'a ProcessMemory,
    ) -> Option<Self> {
        // A malformed or vanished library is somebody else's trouble.
        let elf = Elf::open(&file.open_path, &NAMES).ok()?;
        let section = elf.section(RUNTIME_SECTION);
        if elf.symbol(RUNTIME).or(elf.symbol(INITIALIZE)).is_none() && section.is_none() {
            return None;
        }
        let bias = elf.load_bias(file)?;
        // A program that an interpreter was linked into need not export it.
        let local = if elf.symbol(CODE_TYPE).is_none() {
            elf.local(&NAMES.map(Pattern::Exact)).unwrap_or_default()
        } else {
            HashMap::new()
        };
        let mut found = Self { pid, file, files, memory, runtime: None, elf, local, bias };
        found.runtime = found.address(RUNTIME).or_else(|| section.map(|at| at.wrapping_add(bias)));
        Some(found)
    }

    /// Virtual address of a symbol as linked.
    fn linked(&self, name: &'static str) -> Option<u64> {
        let local = || self.local.get(&Pattern::Exact(name));
        self.elf.symbol(name).or_else(local).map(|symbol| symbol.address)
    }

    /// Address of a symbol in the process.
    pub fn address(&self, name: &'static str) -> Option<u64> {
        self.linked(name).map(|address| address.wrapping_add(self.bias))
    }

    /// A function by its symbol.
    pub fn function(&self, symbol: &'static str) -> Option<Function> {
        let address = self.linked(symbol)?;
        let (path, open_path) = (self.file.path.clone(), self.file.open_path.clone());
        Some(Function { symbol, path, open_path, address })
    }

    /// The first bytes of a function, as they are in the file.
    pub fn code(&self, name: &'static str, length: u64) -> Option<&[u8]> {
        self.elf.bytes(self.linked(name)?, length).ok()
    }

    /// Whether the file has the section that 3.10 introduced.
    pub fn has_runtime_section(&self) -> bool {
        self.elf.section(RUNTIME_SECTION).is_some()
    }

    /// The `u64` in a structure of the process.
    pub fn field(&self, base: u64, offset: u16) -> Option<u64> {
        self.memory.read_u64(base.wrapping_add(u64::from(offset)))
    }

    /// The text at an address, up to its zero byte; at most as long as such texts are.
    pub fn text(&self, address: u64) -> Option<String> {
        let words =
            [self.memory.read_u64(address)?, self.memory.read_u64(address.wrapping_add(8))?];
        let bytes = words.map(u64::to_le_bytes).concat();
        let end = bytes.iter().position(|&byte| byte == 0)?;
        String::from_utf8(bytes[..end].to_vec()).ok()
    }

    /// Every thread state of every interpreter, with the interpreter.
    pub fn thread_states(&self, layout: &RuntimeLayout) -> Result<Vec<(u64, u64)>, PythonError> {
        let runtime = self.runtime.ok_or(PythonError::NotPython(self.pid))?;
        let mut found = Vec::new();
        let mut interpreter = self.field(runtime, layout.interpreters_head).unwrap_or(0);
        for _ in 0..MAX_INTERPRETERS {
            if interpreter == 0 {
                break;
            }
            let mut state = self.field(interpreter, layout.interpreter_threads).unwrap_or(0);
            while state != 0 && found.len() < MAX_THREADS {
                found.push((interpreter, state));
                state = self.field(state, layout.tstate_next).unwrap_or(0);
            }
            interpreter = self.field(interpreter, layout.interpreter_next).unwrap_or(0);
        }
        // The first ones are made while it starts.
        if found.is_empty() { Err(PythonError::NotInitialised(self.pid)) } else { Ok(found) }
    }
}

/// Most interpreters, and thread states, that are looked through.
const MAX_INTERPRETERS: usize = 256;
const MAX_THREADS: usize = 4096;

/// The files that may hold an interpreter, likeliest first: a shared libpython, the program, anything.
pub(super) fn candidates(files: &[MappedFile]) -> Vec<&MappedFile> {
    let mut candidates: Vec<&MappedFile> =
        files.iter().filter(|file| file.ranges.iter().any(|range| range.executable)).collect();
    candidates.sort_by_key(|file| {
        let name = file.file_name();
        if name.starts_with("libpython") {
            0
        } else if name.starts_with("python") {
            1
        } else {
            2
        }
    });
    candidates
}
