//! The attach plan: from libraries to probes, with the reason for each place and each gap.

use std::path::PathBuf;

use super::{
    elf::Elf,
    entry::{ENTRY_BYTES, choose},
    library::{LibraryFile, LibraryKind},
    python::Function,
};
use crate::{
    bpf::{Place, Program},
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

/// The name in reports of the function that frees code objects.
pub const CODE_DEALLOC: &str = "PyCode_Type.tp_dealloc";

/// Functions of interest by library.
fn functions(kind: LibraryKind) -> Vec<(&'static str, Vec<Program>)> {
    match kind {
        LibraryKind::Driver => DriverCall::all()
            .map(|call| {
                let mut programs = vec![Program::DriverEntry(call)];
                if call.is_followed() {
                    programs.push(Program::DriverReturn(call));
                }
                (call.symbol(), programs)
            })
            .collect(),
        LibraryKind::TorchC10 => vec![(
            "_ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE",
            vec![Program::TorchReport],
        )],
        LibraryKind::Loader => vec![("_dl_debug_state", vec![Program::LibrariesChanged])],
    }
}

/// The probes for one library, and what cannot be probed in it.
pub fn for_library(library: &LibraryFile) -> (Vec<ProbeSite>, Vec<Coverage>) {
    let wanted = functions(library.kind);
    let names: Vec<&str> = wanted.iter().map(|(name, _)| *name).collect();
    let missing = |symbol: &str, why: String| Coverage {
        library: library.path.display().to_string(),
        symbol: symbol.to_owned(),
        attached: false,
        note: Some(why),
    };
    let elf = match Elf::open(&library.open_path, &names) {
        Ok(elf) => elf,
        Err(error) => {
            let gaps = names.iter().map(|name| missing(name, error.to_string())).collect();
            return (Vec::new(), gaps);
        }
    };
    let (mut sites, mut gaps) = (Vec::new(), Vec::new());
    for (name, programs) in &wanted {
        let Some(symbol) = elf.symbol(name) else {
            let why = match library.kind {
                // The table has every version's entry points, and no version has them all.
                LibraryKind::Driver => Coverage::ABSENT,
                _ => "the library does not export it",
            };
            gaps.push(missing(name, why.to_owned()));
            continue;
        };
        match site(&elf, symbol.address, library.mapped) {
            Some((offset, note)) => sites.push(ProbeSite {
                programs: programs.clone(),
                library: library.path.clone(),
                open_path: library.open_path.clone(),
                symbol: (*name).to_owned(),
                offset,
                note,
            }),
            None => gaps.push(missing(name, "its code is not in the file".to_owned())),
        }
    }
    (sites, gaps)
}

/// The probe on the function that frees code objects.
///
/// # Errors
///
/// The gap, when its file cannot be read.
pub fn for_code_dealloc(function: &Function) -> Result<ProbeSite, Coverage> {
    let found =
        Elf::open(&function.open_path, &[]).map_err(|error| error.to_string()).and_then(|elf| {
            site(&elf, function.address, true).ok_or("its code is not in the file".into())
        });
    match found {
        Ok((offset, note)) => Ok(ProbeSite {
            programs: vec![Program::CodeDealloc],
            library: function.path.clone(),
            open_path: function.open_path.clone(),
            symbol: CODE_DEALLOC.to_owned(),
            offset,
            note,
        }),
        Err(why) => Err(Coverage {
            library: function.path.display().to_string(),
            symbol: CODE_DEALLOC.to_owned(),
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
