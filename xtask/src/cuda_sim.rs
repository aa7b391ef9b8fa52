//! The simulated CUDA libraries (`tests/cuda-sim`), compiled for one installation of PyTorch.
//!
//! What torch imports and no source of ours defines becomes a generated stub, because Python loads
//! torch with every symbol bound at once.

use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::OsString,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, bail};
use object::{
    Endianness, Object as _, ObjectSymbol as _,
    elf::{DT_NEEDED, FileHeader64},
    read::elf::{Dyn as _, ElfFile, FileHeader as _, ProgramHeader as _},
};

use crate::{command::run, workspace::Workspace};

/// A library of the vendor's: how its file name starts, how its functions' names start, our
/// sources, and what a stub answers. The first row whose prefix fits owns a function.
struct Library {
    stem: &'static str,
    prefixes: &'static [&'static str],
    sources: &'static [&'static str],
    answer: i32,
}

/// `CUDA_ERROR_NOT_SUPPORTED` and `cudaErrorNotSupported`.
const NOT_SUPPORTED: i32 = 801;

const DRIVER_SOURCES: [&str; 6] =
    ["driver.c", "config.c", "accounts.c", "context.c", "memory.c", "vmm.c"];

const RUNTIME_SOURCES: [&str; 3] = ["runtime.c", "runtime_memory.c", "runtime_streams.c"];

const LIBRARIES: [Library; 16] = [
    library("libcudart.so", &["cuda", "__cuda"], &RUNTIME_SOURCES, NOT_SUPPORTED),
    library("libcublasLt.so", &["cublasLt"], &["math.c"], 0),
    library("libcublas.so", &["cublas"], &["math.c"], 0),
    library("libcudnn.so", &["cudnn"], &["math.c"], 0),
    library("libcusparseLt.so", &["cusparseLt"], &[], 0),
    library("libcusparse.so", &["cusparse"], &["math.c"], 0),
    library("libcurand.so", &["curand"], &[], 0),
    library("libcusolver.so", &["cusolver"], &["math.c"], 0),
    library("libcufft.so", &["cufft"], &[], 0),
    library("libcufile.so", &["cuFile"], &[], 0),
    library("libcupti.so", &["cupti"], &[], 0),
    library("libnccl.so", &["nccl"], &["math.c"], 0),
    library("libnvrtc.so", &["nvrtc"], &["math.c"], 0),
    library("libnvshmem_host.so", &["nvshmem"], &[], 0),
    library("libnvToolsExt.so", &["nvtx"], &[], 0),
    // Last: its prefix fits nearly all of the others.
    library("libcuda.so", &["cu"], &DRIVER_SOURCES, NOT_SUPPORTED),
];

const fn library(
    stem: &'static str,
    prefixes: &'static [&'static str],
    sources: &'static [&'static str],
    answer: i32,
) -> Library {
    Library { stem, prefixes, sources, answer }
}

/// Sources whose change makes a new build necessary.
pub fn sources(workspace: &Workspace) -> Result<Vec<PathBuf>> {
    let folder = workspace.root().join("tests/cuda-sim");
    let mut sources = vec![workspace.root().join("xtask/src/cuda_sim.rs")];
    for entry in fs::read_dir(&folder)? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "c" || extension == "h") {
            sources.push(path);
        }
    }
    sources.sort();
    Ok(sources)
}

/// Compiles every library that the files in `torch_lib` need, into that folder: torch's libraries
/// look beside themselves first, so no environment variable is needed.
///
/// # Errors
///
/// When a file of torch's cannot be read or the C compiler fails.
pub fn build(workspace: &Workspace, torch_lib: &Path) -> Result<()> {
    let source = workspace.root().join("tests/cuda-sim");
    let generated = workspace.target("cuda-sim");
    fs::create_dir_all(&generated)?;
    let imports = imports(torch_lib)?;
    let major = |name: &String| name.strip_prefix("libcudart.so.").map(str::to_owned);
    let major = imports.needed.iter().find_map(major).context("torch needs no CUDA runtime")?;
    let mut order: Vec<&Library> = LIBRARIES.iter().collect();
    // The runtime links against the driver.
    order.rotate_right(1);
    for library in order {
        let Some(soname) = imports.needed.iter().find(|name| name.starts_with(library.stem)) else {
            continue;
        };
        let stubs = generated.join(format!("{soname}.c"));
        fs::write(&stubs, stub_source(library, &imports.undefined))?;
        let mut command = compiler(&source, torch_lib, soname);
        command
            .arg(format!("-DCUDA_MAJOR={major}"))
            .args(library.sources.iter().map(|name| source.join(name)))
            .arg(&stubs);
        if let Some(version) = imports.versions.get(soname) {
            // glibc refuses a library without the version that its name is asked for.
            let script = generated.join(format!("{soname}.map"));
            fs::write(&script, format!("{version} {{ global: *; }};\n"))?;
            command.arg(format!("-Wl,--version-script={}", script.display()));
        }
        if library.stem == "libcudart.so" {
            command.arg(torch_lib.join("libcuda.so.1")).arg("-Wl,-rpath,$ORIGIN");
        }
        run(&mut command)?;
    }
    run(compiler(&source, torch_lib, "libnvidia-ml.so.1").arg(source.join("nvml.c")))
}

/// Compiles the simulated driver alone, `libcuda.so.1`, into a folder: enough for programs that know
/// only the driver. `linked` are further arguments of the linker's.
///
/// # Errors
///
/// When the C compiler fails.
pub fn build_driver(workspace: &Workspace, into: &Path, linked: &[OsString]) -> Result<PathBuf> {
    let source = workspace.root().join("tests/cuda-sim");
    let sources = DRIVER_SOURCES.iter().map(|name| source.join(name));
    run(compiler(&source, into, "libcuda.so.1").args(sources).args(linked))?;
    Ok(into.join("libcuda.so.1"))
}

fn compiler(source: &Path, into: &Path, soname: &str) -> Command {
    let mut command = Command::new("cc");
    command
        .args(["-shared", "-fPIC", "-O1", "-g0", "-Wall", "-Wextra", "-fvisibility=hidden"])
        .arg("-fcf-protection=none")
        .arg("-I")
        .arg(source)
        .arg(format!("-Wl,-soname,{soname}"))
        .arg("-o")
        .arg(into.join(soname))
        .arg("-pthread");
    command
}

/// Weak functions, which ours override.
fn stub_source(library: &Library, undefined: &BTreeSet<String>) -> String {
    let mut text = String::from("/* generated by xtask/src/cuda_sim.rs */\n");
    for name in undefined.iter().filter(|name| owner(name).is_some_and(|o| o.stem == library.stem))
    {
        text.push_str(&format!(
            "__attribute__((weak, visibility(\"default\"))) long {name}(void) {{ return {}; }}\n",
            library.answer
        ));
    }
    text
}

/// The library that a function belongs to, by its name; none for functions of others.
fn owner(name: &str) -> Option<&'static Library> {
    let fits = |prefix: &str| {
        name.strip_prefix(prefix).is_some_and(|rest| {
            // `cu` must be followed by an upper-case letter: `curl_…` is nobody's.
            prefix != "cu" || rest.starts_with(|c: char| c.is_ascii_uppercase())
        })
    };
    LIBRARIES.iter().find(|library| library.prefixes.iter().any(|prefix| fits(prefix)))
}

struct Imports {
    needed: BTreeSet<String>,
    undefined: BTreeSet<String>,
    /// The symbol version that is asked of a library, by its file name.
    versions: BTreeMap<String, String>,
}

/// What the shared objects in a folder need from elsewhere.
fn imports(torch_lib: &Path) -> Result<Imports> {
    let mut needed = BTreeSet::new();
    let mut symbols = BTreeMap::new();
    let mut versions = BTreeMap::new();
    for entry in fs::read_dir(torch_lib)? {
        let path = entry?.path();
        let is_library =
            path.file_name().is_some_and(|name| name.to_string_lossy().contains(".so"))
                && path.is_file();
        // Our own, from an earlier run.
        let ours = path.file_name().is_some_and(|name| {
            let name = name.to_string_lossy();
            name.starts_with("libnvidia-ml.so")
                || LIBRARIES.iter().any(|l| name.starts_with(l.stem))
        });
        if !is_library || ours {
            continue;
        }
        // Only the dynamic section and symbols are looked at: do not read a gigabyte.
        let file = fs::File::open(&path)?;
        let data = object::ReadCache::new(file);
        let elf: ElfFile<'_, FileHeader64<Endianness>, _> = ElfFile::parse(&data)
            .with_context(|| format!("`{}` is not a 64-bit ELF file", path.display()))?;
        for symbol in elf.dynamic_symbols() {
            let Ok(name) = symbol.name() else { continue };
            if owner(name).is_some() {
                let defined = !symbol.is_undefined();
                *symbols.entry(name.to_owned()).or_insert(false) |= defined;
            }
        }
        needed.extend(needed_by(&elf, &data)?);
        versions.extend(versions_by(&elf, &data)?);
    }
    if needed.is_empty() {
        bail!("`{}` holds no shared libraries", torch_lib.display());
    }
    let undefined = symbols.into_iter().filter(|(_, defined)| !defined).map(|(name, _)| name);
    Ok(Imports { needed, undefined: undefined.collect(), versions })
}

/// The `DT_NEEDED` names of a file.
fn needed_by<'data, R: object::ReadRef<'data>>(
    elf: &ElfFile<'data, FileHeader64<Endianness>, R>,
    data: R,
) -> Result<Vec<String>> {
    let endian = elf.endian();
    let sections = elf.elf_section_table();
    let mut names = Vec::new();
    for segment in elf.elf_header().program_headers(endian, data)? {
        let Some(entries) = segment.dynamic(endian, data)? else { continue };
        let Some((_, link)) = sections.dynamic(endian, data)? else { continue };
        let strings = sections.strings(endian, data, link)?;
        for entry in entries.iter().filter(|entry| entry.tag32(endian) == Some(DT_NEEDED)) {
            let name = entry.val32(endian).and_then(|offset| strings.get(offset).ok());
            names
                .push(String::from_utf8_lossy(name.context("a DT_NEEDED name is missing")?).into());
        }
    }
    Ok(names)
}

/// The symbol versions that a file asks of others: their file names, and the version's name.
fn versions_by<'data, R: object::ReadRef<'data>>(
    elf: &ElfFile<'data, FileHeader64<Endianness>, R>,
    data: R,
) -> Result<Vec<(String, String)>> {
    let endian = elf.endian();
    let sections = elf.elf_section_table();
    let mut versions = Vec::new();
    let Some((mut needs, link)) = sections.gnu_verneed(endian, data)? else { return Ok(versions) };
    let strings = sections.strings(endian, data, link)?;
    while let Some((need, mut names)) = needs.next()? {
        let file = String::from_utf8_lossy(need.file(endian, strings)?).into_owned();
        while let Some(name) = names.next()? {
            let name = String::from_utf8_lossy(name.name(endian, strings)?).into_owned();
            versions.push((file.clone(), name));
        }
    }
    Ok(versions)
}
