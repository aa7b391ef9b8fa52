//! The interpreter of a process: version, thread state, and where code objects are freed.

use std::{iter, path::PathBuf};

use thiserror::Error;
use tracer_common::{
    ReadMem as _,
    config::{ThreadStateSource, thread_state_kind},
    python::{
        layout::PythonLayout,
        table::{self, PythonVersion},
        walk::thread_state,
    },
};

use super::{
    elf::{Elf, ElfError},
    maps::{MappedFile, mapped_files},
    memory::ProcessMemory,
    process::ProcessError,
};
use crate::{bpf::Program, model::Pid};

/// CPython's global state.
const RUNTIME: &str = "_PyRuntime";
/// The same as a section (3.10 and later), for files whose symbols are trimmed.
const RUNTIME_SECTION: &str = ".PyRuntime";
/// Version as a number, from 3.11 on.
const VERSION: &str = "Py_Version";
/// The type of code objects.
const CODE_TYPE: &str = "PyCode_Type";
/// The function that frees code objects, which has no symbol of its own.
const CODE_DEALLOC: &str = "PyCode_Type.tp_dealloc";
/// What `exec` comes to.
const EVAL_CODE: &str = "PyEval_EvalCode";
/// glibc's own description of where a thread keeps its values for pthread keys.
const PTHREAD_SPECIFIC: &str = "_thread_db_pthread_specific";

/// `_Py_DebugOffsets` starts with this, from 3.13 on.
const DEBUG_COOKIE: u64 = u64::from_le_bytes(*b"xdebugpy");

/// Values of pthread keys that glibc keeps together.
const KEYS_PER_BLOCK: u32 = 32;

/// Most thread states that are looked through.
const MAX_THREADS: usize = 4096;

/// Why Python stacks are not to be had.
#[derive(Debug, Error)]
pub enum PythonError {
    /// No interpreter is mapped.
    #[error("process {0} is not a Python process")]
    NotPython(Pid),
    /// Its structures are not known.
    #[error(
        "CPython {0} is not supported (3.8 to 3.14 are): call sites will be without Python frames"
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
    /// Where threads have their thread state.
    pub thread_state: ThreadStateSource,
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

/// Finds and checks the interpreter of a process.
///
/// # Errors
///
/// [`PythonError`]; after [`PythonError::NotInitialised`] it is worth another try.
pub fn find(pid: Pid) -> Result<PythonTarget, PythonError> {
    let files = mapped_files(pid)?;
    let (file, elf, bias) = interpreter(pid, &files)?;
    let memory = ProcessMemory::open(pid).map_err(|error| PythonError::Memory(pid, error))?;
    let runtime = elf
        .symbol(RUNTIME)
        .map(|symbol| symbol.address)
        .or_else(|| elf.section(RUNTIME_SECTION))
        .ok_or(PythonError::NotPython(pid))?
        .wrapping_add(bias);
    let identity = identity(&elf, bias, runtime, file, &files, &memory)
        .ok_or_else(|| PythonError::UnknownVersion("of unknown version".to_owned()))?;
    let known = table::find(identity.minor, identity.free_threaded)
        .ok_or_else(|| PythonError::UnknownVersion(identity.text()))?;
    check_debug_offsets(known, &identity, runtime, &memory)?;
    let ways = thread_state_sources(pid, known, runtime, &files, &memory)?;
    let source = ways
        .into_iter()
        .map(|way| validate(pid, known, runtime, &way, &memory).map(|()| way))
        .reduce(Result::or)
        .unwrap_or(Err(PythonError::NotInitialised(pid)))?;
    let code_dealloc = code_dealloc(pid, known, &elf, bias, &files, &memory)?;
    let eval_code = elf.symbol(EVAL_CODE).map(|symbol| Function {
        symbol: EVAL_CODE,
        path: file.path.clone(),
        open_path: file.open_path.clone(),
        address: symbol.address,
    });
    Ok(PythonTarget {
        version: identity.text(),
        minor: identity.minor,
        thread_state: source,
        layout: known.layout,
        code_dealloc,
        eval_code,
    })
}

/// The file that holds the interpreter: a shared libpython, else the program, else anything.
fn interpreter(pid: Pid, files: &[MappedFile]) -> Result<(&MappedFile, Elf, u64), PythonError> {
    let mut candidates: Vec<&MappedFile> =
        files.iter().filter(|file| file.ranges.iter().any(|range| range.executable)).collect();
    candidates.sort_by_key(|file| {
        let name = file.file_name();
        if name.starts_with("libpython3") {
            0
        } else if name.starts_with("python") {
            1
        } else {
            2
        }
    });
    for file in candidates {
        let names = [RUNTIME, VERSION, CODE_TYPE, EVAL_CODE];
        // A malformed or vanished library is somebody else's trouble.
        let Ok(elf) = Elf::open(&file.open_path, &names) else { continue };
        if elf.symbol(RUNTIME).is_none() && elf.section(RUNTIME_SECTION).is_none() {
            continue;
        }
        if let Some(bias) = elf.load_bias(file) {
            return Ok((file, elf, bias));
        }
    }
    Err(PythonError::NotPython(pid))
}

/// Version and flavour.
struct Identity {
    minor: u8,
    micro: Option<u8>,
    free_threaded: bool,
}

impl Identity {
    fn from_hex(version: u64, free_threaded: bool) -> Option<Self> {
        (version >> 24 == 3).then_some(Self {
            minor: (version >> 16) as u8,
            micro: Some((version >> 8) as u8),
            free_threaded,
        })
    }

    fn text(&self) -> String {
        let micro = self.micro.map_or(String::new(), |micro| format!(".{micro}"));
        let flavour = if self.free_threaded { "t" } else { "" };
        format!("3.{}{micro}{flavour}", self.minor)
    }
}

fn identity(
    elf: &Elf,
    bias: u64,
    runtime: u64,
    file: &MappedFile,
    files: &[MappedFile],
    memory: &ProcessMemory,
) -> Option<Identity> {
    if memory.read_u64(runtime) == Some(DEBUG_COOKIE) {
        let free_threaded = memory.read_u64(runtime.wrapping_add(16))? != 0;
        return Identity::from_hex(memory.read_u64(runtime.wrapping_add(8))?, free_threaded);
    }
    if let Some(symbol) = elf.symbol(VERSION) {
        let version = memory.read_u32(symbol.address.wrapping_add(bias))?;
        return Identity::from_hex(version.into(), false);
    }
    // Before 3.11 nothing in the file says it: `libpython3.10.so.1.0`, `python3.10`, or an extension
    // module like `_ssl.cpython-310-x86_64-linux-gnu.so`.
    let minor = minor_after(&file.file_name(), "python3.")
        .or_else(|| files.iter().find_map(|file| minor_after(&file.file_name(), ".cpython-3")))?;
    Some(Identity { minor, micro: None, free_threaded: false })
}

/// The number that follows `prefix` in `name`.
fn minor_after(name: &str, prefix: &str) -> Option<u8> {
    let rest = name.split_once(prefix)?.1;
    let digits = rest.len() - rest.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    rest[..digits].parse().ok()
}

/// From 3.13 on the interpreter says where its fields are: the table has to agree.
fn check_debug_offsets(
    known: &PythonVersion,
    identity: &Identity,
    runtime: u64,
    memory: &ProcessMemory,
) -> Result<(), PythonError> {
    for slot in known.debug_offsets {
        let found =
            memory.read_u64(runtime.wrapping_add(u64::from(slot.position))).unwrap_or(u64::MAX);
        if found != u64::from(slot.expected) {
            return Err(PythonError::OtherStructures {
                version: identity.text(),
                field: slot.name,
                found,
                expected: slot.expected.into(),
            });
        }
    }
    Ok(())
}

/// Where threads have their thread state: the pthread key that CPython made, resolved as glibc does. The
/// shortest way comes first.
fn thread_state_sources(
    pid: Pid,
    known: &PythonVersion,
    runtime: u64,
    files: &[MappedFile],
    memory: &ProcessMemory,
) -> Result<Vec<ThreadStateSource>, PythonError> {
    let error = |why: &str| PythonError::NoThreadState { pid, why: why.to_owned() };
    let slot =
        known.runtime.auto_tss_key.ok_or_else(|| error("this version keeps it elsewhere"))?;
    let at = runtime.wrapping_add(u64::from(slot));
    let initialised = memory.read_u32(at).ok_or_else(|| error("_PyRuntime is not readable"))?;
    if initialised == 0 {
        return Err(PythonError::NotInitialised(pid));
    }
    let key = memory.read_u32(at.wrapping_add(4)).filter(|&key| key < 1024);
    let key = key.ok_or_else(|| error("its pthread key is out of range"))?;
    // The C library; before glibc 2.34 threads were in a library of their own.
    let block = files
        .iter()
        .filter(|file| {
            let name = file.file_name();
            name.starts_with("libc.so")
                || name.starts_with("libpthread")
                || name.starts_with("libc-")
        })
        .find_map(|file| {
            let elf = Elf::open(&file.open_path, &[PTHREAD_SPECIFIC]).ok()?;
            let symbol = elf.symbol(PTHREAD_SPECIFIC)?;
            // Three ints: bits of an entry, number of entries, offset in the thread's descriptor.
            let bytes = elf.bytes(symbol.address, 12).ok()?;
            let offset: [u8; 4] = bytes.get(8..12)?.try_into().ok()?;
            Some(u32::from_le_bytes(offset))
        })
        .ok_or_else(|| error("its C library is not glibc"))?;
    let (block, slot) =
        (i64::from(block) + 8 * i64::from(key / KEYS_PER_BLOCK), 16 * (key % KEYS_PER_BLOCK) + 8);
    let by_table = ThreadStateSource { kind: thread_state_kind::PTHREAD_KEY, slot, offset: block };
    // A thread has the first block of values in its own descriptor, just before the table of blocks.
    let inside = block - i64::from(KEYS_PER_BLOCK * 16) + i64::from(slot);
    let inside = ThreadStateSource { kind: thread_state_kind::TLS, slot: 0, offset: inside };
    Ok((key < KEYS_PER_BLOCK).then_some(inside).into_iter().chain([by_table]).collect())
}

/// Checks, on the threads that the interpreter lists, that the way found leads to the thread state
/// that the interpreter has for that very thread.
fn validate(
    pid: Pid,
    known: &PythonVersion,
    runtime: u64,
    source: &ThreadStateSource,
    memory: &ProcessMemory,
) -> Result<(), PythonError> {
    let layout = &known.runtime;
    let field = |base: u64, offset: u16| memory.read_u64(base.wrapping_add(u64::from(offset)));
    let interpreter = field(runtime, layout.interpreters_head).filter(|&head| head != 0);
    let interpreter = interpreter.ok_or(PythonError::NotInitialised(pid))?;
    let mut tstate = field(interpreter, layout.interpreter_threads).unwrap_or(0);
    if tstate == 0 {
        return Err(PythonError::NotInitialised(pid));
    }
    for _ in 0..MAX_THREADS {
        if tstate == 0 {
            break;
        }
        // On x86-64 glibc `pthread_self()`, which is what `thread_id` holds, is the thread pointer.
        let thread = field(tstate, layout.tstate_thread_id).unwrap_or(0);
        let owner = field(tstate, layout.tstate_interpreter);
        if owner == Some(interpreter) && thread_state(source, thread, memory) == Some(tstate) {
            return Ok(());
        }
        tstate = field(tstate, layout.tstate_next).unwrap_or(0);
    }
    Err(PythonError::NoThreadState {
        pid,
        why: "no thread of the interpreter is found through its pthread key".to_owned(),
    })
}

/// `PyCode_Type.tp_dealloc`, as it is in memory, back to a place in a file.
fn code_dealloc(
    pid: Pid,
    known: &PythonVersion,
    elf: &Elf,
    bias: u64,
    files: &[MappedFile],
    memory: &ProcessMemory,
) -> Result<Function, PythonError> {
    let error = |why: &str| PythonError::NoThreadState { pid, why: why.to_owned() };
    let code_type = elf.symbol(CODE_TYPE).ok_or_else(|| error("PyCode_Type is not exported"))?;
    let dealloc = u64::from(known.runtime.type_dealloc);
    let slot = code_type.address.wrapping_add(bias).wrapping_add(dealloc);
    let function = memory.read_u64(slot).ok_or_else(|| error("PyCode_Type is not readable"))?;
    for file in files {
        let Some(range) = file
            .ranges
            .iter()
            .find(|range| range.executable && (range.start..range.end).contains(&function))
        else {
            continue;
        };
        let offset = (function - range.start).wrapping_add(range.offset);
        let elf = Elf::open(&file.open_path, &[])?;
        if let Some(address) = elf.address_of_offset(offset) {
            return Ok(Function {
                symbol: CODE_DEALLOC,
                path: file.path.clone(),
                open_path: file.open_path.clone(),
                address,
            });
        }
    }
    Err(error("the function that frees code objects lies in no mapped file"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn minors_in_file_names() {
        assert_eq!(minor_after("libpython3.10.so.1.0", "python3."), Some(10));
        assert_eq!(minor_after("python3.9", "python3."), Some(9));
        assert_eq!(minor_after("_ssl.cpython-38-x86_64-linux-gnu.so", ".cpython-3"), Some(8));
        assert_eq!(minor_after("python", "python3."), None);
        assert_eq!(minor_after("python3.x", "python3."), None);
    }

    /// A build whose structures differ in one field is refused by that field's name, not misread.
    #[test]
    fn other_structures_are_refused() {
        let pid = Pid(std::process::id());
        let memory = ProcessMemory::open(pid).unwrap();
        for known in table::VERSIONS.iter().filter(|version| !version.debug_offsets.is_empty()) {
            let identity =
                Identity { minor: known.minor, micro: None, free_threaded: known.free_threaded };
            let mut runtime = vec![0u64; 200];
            for slot in known.debug_offsets {
                runtime[usize::from(slot.position) / 8] = slot.expected.into();
            }
            let address = runtime.as_ptr() as u64;
            assert!(check_debug_offsets(known, &identity, address, &memory).is_ok());
            for slot in known.debug_offsets {
                let index = usize::from(slot.position) / 8;
                runtime[index] += 8;
                let error = check_debug_offsets(known, &identity, address, &memory).unwrap_err();
                assert!(error.to_string().contains(slot.name), "{error}");
                runtime[index] -= 8;
            }
        }
    }

    #[test]
    fn versions_as_text() {
        let release = Identity::from_hex(0x030b_07f0, false).unwrap();
        assert_eq!((release.text().as_str(), release.minor), ("3.11.7", 11));
        assert_eq!(Identity::from_hex(0x030d_05f0, true).unwrap().text(), "3.13.5t");
        assert!(Identity::from_hex(0x0207_12f0, false).is_none());
    }
}
