//! `build-ebpf`: the kernel half from source to the committed object, and the check that they agree.

mod compare;
mod rust_src;
mod strip;

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, bail};

use crate::{
    command::{output, run},
    workspace::Workspace,
};

/// The linker's version: the last one that takes rustc's own LLVM (docs/toolchain.md).
const BPF_LINKER: &str = "0.10.3";

/// The committed object, relative to the workspace.
const OBJECT: &str = "tracer-ebpf/cudatrace.bpf.o";

/// Builds the object and puts it in its committed place.
///
/// # Errors
///
/// When a tool cannot be had or the build fails.
pub fn build(workspace: &Workspace) -> Result<()> {
    let built = strip::strip(&compile(workspace, false)?)?;
    fs::write(workspace.root().join(OBJECT), &built)
        .with_context(|| format!("cannot write `{OBJECT}`"))?;
    println!("{OBJECT}: {} bytes", built.len());
    Ok(())
}

/// Lints and builds the object, and compares it with the committed one.
///
/// # Errors
///
/// Also when they differ: names the sections.
pub fn check(workspace: &Workspace) -> Result<()> {
    let committed = workspace.root().join(OBJECT);
    let committed = fs::read(&committed).with_context(|| format!("cannot read `{OBJECT}`"))?;
    let built = strip::strip(&compile(workspace, true)?)?;
    let differences = compare::differences(&committed, &built)?;
    if !differences.is_empty() {
        bail!(
            "`{OBJECT}` is not what tracer-ebpf builds to:\n  {}\nrun `cargo xtask build-ebpf` and commit the object",
            differences.join("\n  ")
        );
    }
    println!("{OBJECT}: matches its source");
    Ok(())
}

/// Compiles and links, after clippy if `lint`; returns the object.
fn compile(workspace: &Workspace, lint: bool) -> Result<Vec<u8>> {
    let sysroot = PathBuf::from(output(rustc(workspace).args(["--print", "sysroot"]))?.trim());
    let version = rustc_version(workspace)?;
    rust_src::ensure(workspace, &sysroot, &version)?;
    let linker = linker(workspace, &version)?;
    let target = workspace.target("ebpf");
    let cargo_home = env::var_os("CARGO_HOME").map_or_else(
        || PathBuf::from(env::var_os("HOME").unwrap_or_default()).join(".cargo"),
        PathBuf::from,
    );
    let remap = |path: &Path, to: &str| format!("--remap-path-prefix={}={to}", path.display());
    let mut flags = vec![
        format!("-Clinker={}", linker.display()),
        "-Ctarget-cpu=v3".into(),
        "-Cdebuginfo=2".into(),
        "-Clink-arg=--btf".into(),
        // Paths go into panic messages and BTF; the object must not depend on where it is built.
        remap(workspace.root(), "."),
        remap(&cargo_home, "cargo"),
        remap(&fs::canonicalize(sysroot.join("lib/rustlib/src/rust"))?, "rust"),
        remap(&sysroot.join("lib/rustlib/src/rust"), "rust"),
    ];
    // The last prefix that fits counts. A registry's folder is named after its host, so a mirror
    // would change the object. xtask's own crates come from it: it is there.
    for registry in folders(&cargo_home.join("registry/src"))? {
        flags.push(remap(&registry, "cargo"));
    }
    let cargo = |verb: &str, more: &[&str]| {
        run(Command::new("cargo")
            .current_dir(workspace.root())
            .args([verb, "--locked", "--release", "--package", "tracer-ebpf"])
            .args(["--target", "bpfel-unknown-none", "-Zbuild-std=core"])
            .arg("--target-dir")
            .arg(&target)
            .args(more)
            .env("RUSTC_BOOTSTRAP", "1")
            .env("CARGO_ENCODED_RUSTFLAGS", flags.join("\u{1f}"))
            .env_remove("RUSTFLAGS"))
    };
    if lint {
        cargo("clippy", &["--", "-Dwarnings"])?;
    }
    cargo("build", &[])?;
    let object = target.join("bpfel-unknown-none/release/cudatrace-ebpf");
    fs::read(&object).with_context(|| format!("cannot read `{}`", object.display()))
}

fn rustc(workspace: &Workspace) -> Command {
    let mut command = Command::new("rustc");
    command.current_dir(workspace.root());
    command
}

fn rustc_version(workspace: &Workspace) -> Result<String> {
    let verbose = output(rustc(workspace).arg("-vV"))?;
    let release = verbose.lines().find_map(|line| line.strip_prefix("release: "));
    Ok(release.context("`rustc -vV` names no release")?.to_owned())
}

/// The folders in a folder, in order; none when it is not there.
fn folders(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut folders = Vec::new();
    if folder.is_dir() {
        for entry in fs::read_dir(folder)? {
            folders.push(entry?.path());
        }
    }
    folders.sort();
    Ok(folders)
}

/// bpf-linker in `target/tools`, from the user's cache or built there.
fn linker(workspace: &Workspace, rustc: &str) -> Result<PathBuf> {
    let key = format!("bpf-linker-{BPF_LINKER}-rustc-{rustc}");
    let tools = workspace.target("tools").join(&key);
    let binary = tools.join("bpf-linker");
    if binary.exists() {
        return Ok(binary);
    }
    let cached = workspace.cache(&key)?;
    if !cached.join("bin/bpf-linker").exists() {
        // It loads the LLVM of the rustc that built it, so the toolchain is part of the key.
        run(Command::new("cargo")
            .current_dir(workspace.root())
            .args(["install", "bpf-linker", "--locked", "--version", BPF_LINKER, "--root"])
            .arg(&cached)
            .arg("--target-dir")
            .arg(workspace.target("bpf-linker")))?;
    }
    fs::create_dir_all(&tools)?;
    // Under another name first: half a copy must not be taken for the linker.
    let partial = tools.join("partial");
    fs::copy(cached.join("bin/bpf-linker"), &partial)
        .and_then(|_| fs::rename(&partial, &binary))
        .with_context(|| format!("cannot copy bpf-linker to `{}`", binary.display()))?;
    Ok(binary)
}
