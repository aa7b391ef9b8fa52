//! The attach plan: from libraries to probes, with the reason for each place and each gap.

use std::path::PathBuf;

use tracer_common::wire::{probe, trace_action, trace_facts};

use super::{
    arena::{self, Allocating},
    bfc,
    calls::calls,
    elf::Elf,
    entry::{ENTRY_BYTES, choose},
    library::{LibraryFile, LibraryKind},
    python::Function,
    returns,
    symbols::{Pattern, Symbol},
    unwind,
};
use crate::{
    bpf::{Place, PoolFunction, Program},
    model::{Coverage, DriverCall},
};

/// A place to attach one or more programs to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProbeSite {
    /// What to attach.
    pub programs: Vec<Program>,
    /// The library as the process sees it.
    pub library: PathBuf,
    /// The file to open.
    pub open_path: PathBuf,
    /// The function.
    pub symbol: String,
    /// Offset in the file.
    pub offset: u64,
    /// Where and why.
    pub note: String,
}

impl ProbeSite {
    /// Each of its programs, and where it goes.
    pub fn places(&self) -> impl Iterator<Item = Place> {
        self.programs.iter().map(|&program| Place {
            program,
            path: self.open_path.clone(),
            offset: self.offset,
        })
    }

    /// The entry in a report, given how the attachment went.
    pub fn coverage(&self, result: Result<(), String>) -> Coverage {
        Coverage {
            library: self.library.display().to_string(),
            symbol: self.symbol.clone(),
            attached: result.is_ok(),
            note: Some(result.err().unwrap_or_else(|| self.note.clone())),
        }
    }
}

/// What is traced besides what always is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Extras {
    /// Tensors in host memory.
    pub cpu: bool,
}

/// A method of the native allocator of PyTorch that no version exports; its arguments changed.
const RECORD_TRACE: &str =
    "_ZN3c104cuda20CUDACachingAllocator6Native22DeviceCachingAllocator12record_trace";

/// `torch::autograd::Engine::execute_with_graph_task`, which a backward pass runs in.
const BACKWARD: &str = "_ZN5torch8autograd6Engine23execute_with_graph_taskERKSt10shared_ptrI";

/// `torch::autograd::Engine::evaluate_function`, which runs a node of one.
const BACKWARD_NODE: &str = "_ZN5torch8autograd6Engine17evaluate_functionERSt10shared_ptrI";

/// `tsl::BFCAllocator::AddTraceMe(string_view, const void*, int64_t, int64_t)`; the overload with two
/// arguments ends in it.
const BFC_ADD_TRACE_ME: &str =
    "_ZN3tsl12BFCAllocator10AddTraceMeESt17basic_string_viewIcSt11char_traitsIcEEPKvll";

/// `tsl::BFCAllocator::Name()`.
const BFC_NAME: &str = "_ZN3tsl12BFCAllocator4NameB5cxx11Ev";

/// `SingleDeviceMemoryPool.malloc` of CuPy: CuPy itself calls a clone of it.
const CUPY_MALLOC: &str = "_ZL59__pyx_f_4cupy_4cuda_6memory_22SingleDeviceMemoryPool_mallocP52__pyx_obj_4cupy_4cuda_6memory_SingleDeviceMemoryPoolmi";

/// `PooledMemory.free`, which the end of a `PooledMemory` calls as well.
const CUPY_FREE: &str = "_ZL47__pyx_f_4cupy_4cuda_6memory_12PooledMemory_freeP42__pyx_obj_4cupy_4cuda_6memory_PooledMemoryi";

/// The method that begins to use a private pool, of a CUDA graph or of the user's.
const POOL_BEGINS: &str =
    "_ZN3c104cuda20CUDACachingAllocator6Native22NativeCachingAllocator19beginAllocateToPool";

/// What `record_trace` tells, by its arguments behind that for the stream.
fn facts_of(mangled: &str) -> u64 {
    if mangled.contains("P11CUstream_staSt4pairIyyE") {
        trace_facts::DEVICE | trace_facts::POOL
    } else if mangled.contains("P11CUstream_sta") {
        trace_facts::DEVICE
    } else {
        0
    }
}

/// Exported functions of interest by library.
fn functions(kind: LibraryKind, extras: Extras) -> Vec<(&'static str, Vec<Program>)> {
    match kind {
        LibraryKind::Driver => DriverCall::all()
            .filter(|call| !call.is_runtime())
            .map(|call| {
                let mut programs = vec![Program::DriverEntry(call)];
                if call.is_followed() {
                    programs.push(Program::DriverReturn(call));
                }
                (call.symbol(), programs)
            })
            .collect(),
        LibraryKind::Runtime => DriverCall::all()
            .filter(|call| call.is_runtime())
            .map(|call| {
                (call.symbol(), vec![Program::RuntimeEntry(call), Program::RuntimeReturn(call)])
            })
            .collect(),
        LibraryKind::TorchC10 => {
            let mut hooks = vec![
                (
                    "_ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE",
                    vec![Program::Hook(probe::TORCH_REPORT)],
                ),
                (
                    "_ZN3c1027reportOutOfMemoryToProfilerElmmNS_6DeviceE",
                    vec![Program::Hook(probe::TORCH_OUT_OF_MEMORY)],
                ),
            ];
            if extras.cpu {
                hooks.extend([
                    (
                        "_ZN3c1025ProfiledCPUMemoryReporter3NewEPvm",
                        vec![Program::Hook(probe::TORCH_CPU_NEW)],
                    ),
                    ("_ZN3c1025ProfiledCPUMemoryReporter6DeleteEPv", vec![Program::TorchCpuDelete]),
                ]);
            }
            hooks
        }
        LibraryKind::TorchCuda
        | LibraryKind::TorchAutograd
        | LibraryKind::Tensorflow
        | LibraryKind::Jax
        | LibraryKind::Cupy
        | LibraryKind::Onnxruntime => Vec::new(),
        LibraryKind::Loader => vec![("_dl_debug_state", vec![Program::LibrariesChanged])],
    }
}

/// The probes for one library, and what cannot be probed in it.
pub fn for_library(library: &LibraryFile, extras: Extras) -> (Vec<ProbeSite>, Vec<Coverage>) {
    let wanted = functions(library.kind, extras);
    let names: Vec<&'static str> = wanted.iter().map(|(name, _)| *name).collect();
    let mut plan = Plan { library, sites: Vec::new(), gaps: Vec::new() };
    let elf = match Elf::open(&library.open_path, &names) {
        Ok(elf) => elf,
        Err(error) => {
            names.iter().for_each(|name| plan.miss(name, error.to_string()));
            return (Vec::new(), plan.gaps);
        }
    };
    for (name, programs) in wanted {
        match elf.symbol(name) {
            Some(symbol) => plan.add(&elf, name, symbol.address, programs),
            // The table has every version's entry points, and no version has them all.
            None if matches!(library.kind, LibraryKind::Driver | LibraryKind::Runtime) => {
                plan.miss(name, Coverage::ABSENT.into());
            }
            None => plan.miss(name, "the library does not export it".into()),
        }
    }
    match library.kind {
        LibraryKind::TorchCuda => plan.add_native_allocator(&elf),
        LibraryKind::TorchAutograd => plan.add_autograd(&elf),
        LibraryKind::Tensorflow => plan.add_bfc(&elf, probe::BFC_TENSORFLOW),
        LibraryKind::Jax => plan.add_bfc(&elf, probe::BFC_JAX),
        LibraryKind::Cupy => plan.add_cupy(&elf),
        LibraryKind::Onnxruntime => plan.add_arena(&elf),
        _ => {}
    }
    (plan.sites, plan.gaps)
}

/// The calls of `record_trace` that tell of what is used; `None` if they may not be all.
fn trace_calls(elf: &Elf, callee: u64) -> Option<Vec<u64>> {
    let mut found = Vec::new();
    for (start, length) in unwind::functions(elf)? {
        let calls = calls(elf.bytes(start, length).ok()?, start, callee)?;
        let used = calls
            .into_iter()
            .filter(|call| call.second.is_none_or(|action| trace_action::USED.contains(&action)));
        found.extend(used.map(|call| call.address));
    }
    Some(found)
}

/// The offsets in a function of the instructions that return; `None` if there are none, or it is too long.
fn ends(elf: &Elf, function: &Symbol) -> Option<Vec<u64>> {
    let length = (1..MAX_FUNCTION).contains(&function.size).then_some(function.size)?;
    let ends = returns::returns(elf.bytes(function.address, length).ok()?);
    (!ends.is_empty()).then_some(ends)
}

/// More bytes than the function has that runs a backward pass: 1.2 KiB.
const MAX_FUNCTION: u64 = 64 * 1024;

/// What is missed without the autograd engine.
const NO_BACKWARD: &str = "what backward passes allocate on threads of their own has no stack";

/// What is missed without `record_trace`.
const STRIPPED: &str = "no such symbol: sizes asked for are unknown, and segments from before attach that \
                        are returned show at the pool's next report";

/// What is missed without the functions of a pool.
const POOL_STRIPPED: &str =
    "no such symbol: this pool's blocks are not seen, only what it takes from the driver";

/// The plan for a library in the making.
struct Plan<'a> {
    library: &'a LibraryFile,
    sites: Vec<ProbeSite>,
    gaps: Vec<Coverage>,
}

impl Plan<'_> {
    /// PyTorch's caching allocator, whose methods are local symbols.
    fn add_native_allocator(&mut self, elf: &Elf) {
        let [trace, begins] = [RECORD_TRACE, POOL_BEGINS].map(Pattern::Prefix);
        let mut found = match elf.local(&[trace, begins]) {
            Ok(found) => found,
            Err(error) => return self.miss(RECORD_TRACE, error.to_string()),
        };
        let Some(symbol) = found.remove(&trace) else {
            return self.miss(RECORD_TRACE, STRIPPED.into());
        };
        let facts = facts_of(&symbol.name);
        self.add_trace(elf, &symbol, facts);
        // Only if the segments do not tell their pool.
        if let Some(symbol) = found.remove(&begins).filter(|_| facts & trace_facts::POOL == 0) {
            let program = Program::TorchTrace(trace_facts::POOL_BEGINS);
            self.add(elf, &symbol.name, symbol.address, vec![program]);
        }
    }

    /// `record_trace` at its calls, or, where they are not all found, at its entry.
    fn add_trace(&mut self, elf: &Elf, symbol: &Symbol, facts: u64) {
        let calls = trace_calls(elf, symbol.address).unwrap_or_default();
        for call in &calls {
            let offset = elf.file_offset(*call);
            let place = offset.map(|offset| (offset, "at a call of it, emulated".to_owned()));
            self.add_at(
                &symbol.name,
                place,
                vec![Program::TorchTrace(facts | trace_facts::AT_CALL)],
            );
        }
        if calls.is_empty() {
            self.add(elf, &symbol.name, symbol.address, vec![Program::TorchTrace(facts)]);
        }
    }

    /// PyTorch's autograd engine, whose functions are exported; their arguments changed. Either all three
    /// places are probed or none.
    fn add_autograd(&mut self, elf: &Elf) {
        let [begin, node] = [BACKWARD, BACKWARD_NODE].map(Pattern::Prefix);
        let found = match elf.exported(&[begin, node]) {
            Ok(found) => found,
            Err(error) => return self.miss(BACKWARD, error.to_string()),
        };
        let (Some(begin), Some(node)) = (found.get(&begin), found.get(&node)) else {
            return self.miss(BACKWARD, NO_BACKWARD.into());
        };
        let Some(ends) = ends(elf, begin) else {
            return self.miss(BACKWARD, format!("where it returns is not known: {NO_BACKWARD}"));
        };
        self.add(elf, &begin.name, begin.address, vec![Program::BackwardBegins]);
        self.add(elf, &node.name, node.address, vec![Program::BackwardNode]);
        for end in ends {
            let note = format!("`ret` at +{end:#x}: it may throw, so its return is left alone");
            let offset = elf.file_offset(begin.address.wrapping_add(end));
            let place = offset.map(|offset| (offset, note));
            self.add_at(&begin.name, place, vec![Program::BackwardEnds]);
        }
    }

    fn miss(&mut self, symbol: &str, why: String) {
        self.gaps.push(Coverage {
            library: self.library.path.display().to_string(),
            symbol: symbol.to_owned(),
            attached: false,
            note: Some(why),
        });
    }

    /// TensorFlow exports the functions of its BFC allocator, plugins of JAX keep them to themselves.
    fn add_bfc(&mut self, elf: &Elf, probe: u8) {
        let patterns = [BFC_ADD_TRACE_ME, BFC_NAME].map(Pattern::Exact);
        let found = match elf.functions(&patterns) {
            Ok(found) => found,
            Err(error) => return self.miss(BFC_ADD_TRACE_ME, error.to_string()),
        };
        let Some(hook) = found.get(&patterns[0]) else {
            return self.miss(BFC_ADD_TRACE_ME, POOL_STRIPPED.to_owned());
        };
        let name_offset = found
            .get(&patterns[1])
            .and_then(|name| elf.bytes(name.address, bfc::NAME_BYTES).ok())
            .and_then(bfc::name_offset);
        if name_offset.is_none() {
            self.miss(
                BFC_NAME,
                "not understood: the devices of its pools are not known".to_owned(),
            );
        }
        let program = Program::Bfc { probe, name_offset: name_offset.unwrap_or(0) };
        self.add(elf, BFC_ADD_TRACE_ME, hook.address, vec![program]);
    }

    /// CuPy's functions are compiled C with every symbol; exceptions of Python's leave them by a null.
    fn add_cupy(&mut self, elf: &Elf) {
        let malloc = PoolFunction { probe: probe::CUPY_MALLOC, name_offset: 0 };
        let malloc = vec![Program::PoolEntry(malloc), Program::PoolReturn(malloc)];
        let free = vec![Program::Hook(probe::CUPY_FREE)];
        for (name, programs) in [(CUPY_MALLOC, malloc), (CUPY_FREE, free)] {
            match elf.all_local(Pattern::Clones(name)) {
                Ok(found) if found.is_empty() => self.miss(name, POOL_STRIPPED.to_owned()),
                Ok(found) => {
                    for symbol in found {
                        self.add(elf, &symbol.name, symbol.address, programs.clone());
                    }
                }
                Err(error) => self.miss(name, error.to_string()),
            }
        }
    }

    fn add_arena(&mut self, elf: &Elf) {
        const CLASS: &str = "onnxruntime::BFCArena";
        let arena = match arena::find(elf) {
            Ok(arena) => arena,
            Err(why) => return self.miss(CLASS, why),
        };
        let function = PoolFunction { probe: probe::ARENA_ALLOC, name_offset: arena::NAME_OFFSET };
        for Allocating { name, entry, exits } in arena.allocating {
            let name = format!("{CLASS}::{name}");
            self.add(elf, &name, entry, vec![Program::PoolEntry(function)]);
            for exit in exits {
                let note = format!(
                    "`ret` at +{:#x}: it throws, so its return is left alone",
                    exit - entry
                );
                let place = elf.file_offset(exit).map(|offset| (offset, note));
                self.add_at(&name, place, vec![Program::PoolExit(function)]);
            }
        }
        let free = vec![Program::Hook(probe::ARENA_FREE)];
        self.add(elf, &format!("{CLASS}::Free"), arena.free, free);
    }

    fn add(&mut self, elf: &Elf, symbol: &str, address: u64, programs: Vec<Program>) {
        self.add_at(symbol, site(elf, address, self.library.mapped), programs);
    }

    /// `place`: the offset in the file, and why there.
    fn add_at(&mut self, symbol: &str, place: Option<(u64, String)>, programs: Vec<Program>) {
        match place {
            Some((offset, note)) => self.sites.push(ProbeSite {
                programs,
                library: self.library.path.clone(),
                open_path: self.library.open_path.clone(),
                symbol: symbol.to_owned(),
                offset,
                note,
            }),
            None => self.miss(symbol, "its code is not in the file".to_owned()),
        }
    }
}

/// The probe on a function of the interpreter.
///
/// # Errors
///
/// The gap, when its file cannot be read.
pub fn for_python(function: &Function, program: Program) -> Result<ProbeSite, Coverage> {
    let found =
        Elf::open(&function.open_path, &[]).map_err(|error| error.to_string()).and_then(|elf| {
            site(&elf, function.address, true).ok_or("its code is not in the file".into())
        });
    match found {
        Ok((offset, note)) => Ok(ProbeSite {
            programs: vec![program],
            library: function.path.clone(),
            open_path: function.open_path.clone(),
            symbol: function.symbol.to_owned(),
            offset,
            note,
        }),
        Err(why) => Err(Coverage {
            library: function.path.display().to_string(),
            symbol: function.symbol.to_owned(),
            attached: false,
            note: Some(why),
        }),
    }
}

/// Offset in the file of the best instruction of the function at a virtual address, and why.
fn site(elf: &Elf, address: u64, mapped: bool) -> Option<(u64, String)> {
    let code = elf.bytes(address, ENTRY_BYTES).ok()?;
    let chosen = choose(code);
    let offset = elf.file_offset(address.checked_add(chosen.offset)?)?;
    let when = if mapped { "" } else { "; before the process loads it" };
    Some((offset, format!("{}{when}", chosen.reason)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The whole names in PyTorch's own builds.
    #[test]
    fn what_record_trace_tells_by_version() {
        let name = |arguments| facts_of(&format!("{RECORD_TRACE}{arguments}"));
        let torch_2_3 =
            "ENS1_10TraceEntry6ActionElmP11CUstream_staSt10shared_ptrINS_15GatheredContextEE";
        let torch_2_15 = "ENS_22CachingDeviceAllocator10TraceEntry6ActionEmmP11CUstream_staSt4pairIyyESt10shared_ptrINS_15GatheredContextEESt8optionalINSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEEE";
        assert_eq!(name(torch_2_3), trace_facts::DEVICE);
        assert_eq!(name(torch_2_15), trace_facts::DEVICE | trace_facts::POOL);
    }
}
