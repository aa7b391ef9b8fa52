//! `layers`: the direction of dependence, which the compiler does not check.

mod paths;

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result, bail};

use crate::{layers::paths::Paths, workspace::Workspace};

/// A module of tracer-user, and what it may name.
struct Layer {
    module: &'static str,
    /// Bytes and values in, values out: nothing of [`IMPURE`].
    pure: bool,
    uses: Uses,
}

/// Which other modules of tracer-user a module may use.
enum Uses {
    Only(&'static [&'static str]),
    AllBut(&'static [&'static str]),
}

/// Every module of tracer-user: one that is not here is an error, so that none escapes the check.
/// Those of the design that are not written yet are here already. `report` and `tui` see only the
/// model's snapshots, never the ledger.
const LAYERS: [Layer; 16] = [
    pure("model", &[]),
    pure("decode", &["model"]),
    pure("naming", &["model", "decode"]),
    pure("ledger", &["model"]),
    pure("verdict", &["model", "ledger"]),
    pure("capture", &["model", "decode"]),
    pure("aggregate", &["model", "decode", "naming", "ledger", "verdict"]),
    pure("report", &["model"]),
    rim("bpf", &[]),
    rim("discover", &[]),
    rim("jupyter", &[]),
    rim("tui", &["ledger"]),
    rim("serve", &[]),
    rim("sys", &[]),
    rim("session", &[]),
    rim("cli", &[]),
];

const fn pure(module: &'static str, uses: &'static [&'static str]) -> Layer {
    Layer { module, pure: true, uses: Uses::Only(uses) }
}

const fn rim(module: &'static str, not: &'static [&'static str]) -> Layer {
    Layer { module, pure: false, uses: Uses::AllBut(not) }
}

/// What touches the system, and what brings it along.
const IMPURE: [&str; 13] = [
    "std::fs",
    "std::process",
    "std::thread",
    "std::env",
    "std::net",
    "std::os",
    "std::time::Instant",
    "std::time::SystemTime",
    "tokio",
    "aya",
    "procfs",
    "rustix",
    "libc",
];

/// Crates that must not depend on each other: the dependent, and what it must not name.
const CRATES: [(&str, &[&str]); 3] = [
    ("tracer-common", &["tracer-ebpf", "tracer-user", "aya", "aya-ebpf"]),
    ("tracer-ebpf", &["tracer-user", "aya"]),
    ("tracer-user", &["tracer-ebpf", "aya-ebpf"]),
];

/// Checks everything.
///
/// # Errors
///
/// Names each file and what it must not use.
pub fn check(workspace: &Workspace) -> Result<()> {
    let mut violations = crate_violations(workspace)?;
    let source = workspace.root().join("tracer-user/src");
    let mut modules = BTreeSet::new();
    for (file, module) in files(&source)? {
        let Some(top) = module.first() else { continue };
        let shown = file.strip_prefix(workspace.root()).unwrap_or(&file).display().to_string();
        let Some(layer) = LAYERS.iter().find(|layer| layer.module == top) else {
            violations.push(format!("{shown}: `{top}` is in no layer: add it to xtask/src/layers"));
            continue;
        };
        modules.insert(layer.module);
        let text = fs::read_to_string(&file)?;
        let paths = Paths::of(&text, &module).with_context(|| format!("cannot parse `{shown}`"))?;
        violations.extend(layer.violations(&paths).into_iter().map(|v| format!("{shown}: {v}")));
    }
    if !violations.is_empty() {
        bail!("dependences in the wrong direction:\n  {}", violations.join("\n  "));
    }
    println!("layers: {} modules and {} crates keep their direction", modules.len(), CRATES.len());
    Ok(())
}

fn crate_violations(workspace: &Workspace) -> Result<Vec<String>> {
    let metadata = cargo_metadata::MetadataCommand::new()
        .current_dir(workspace.root())
        .no_deps()
        .other_options(["--locked".to_owned(), "--offline".to_owned()])
        .exec()?;
    let mut violations = Vec::new();
    for (name, forbidden) in CRATES {
        let package = metadata.packages.iter().find(|package| package.name.as_str() == name);
        let package = package.with_context(|| format!("no crate `{name}`"))?;
        for dependency in &package.dependencies {
            if forbidden.contains(&dependency.name.as_str()) {
                violations.push(format!("{name} must not depend on {}", dependency.name));
            }
        }
    }
    Ok(violations)
}

/// The library's files with their module paths, as the compiler finds them: what only tests
/// declare is left out.
fn files(source: &Path) -> Result<Vec<(PathBuf, Vec<String>)>> {
    let mut found = Vec::new();
    let mut next = vec![(source.join("lib.rs"), source.to_owned(), Vec::new())];
    while let Some((file, folder, module)) = next.pop() {
        let text = fs::read_to_string(&file)
            .with_context(|| format!("cannot read `{}`", file.display()))?;
        let children = paths::child_modules(&text)
            .with_context(|| format!("cannot parse `{}`", file.display()))?;
        for child in children {
            let inner = folder.join(child.join("/"));
            let flat = inner.with_extension("rs");
            let file = if flat.exists() { flat } else { inner.join("mod.rs") };
            let module = [module.clone(), child].concat();
            next.push((file, inner, module));
        }
        found.push((file, module));
    }
    found.sort();
    Ok(found)
}

impl Layer {
    fn violations(&self, paths: &Paths) -> Vec<String> {
        let name = self.module;
        let mut violations = Vec::new();
        for path in paths.all() {
            let impure = |thing: &&str| covers(thing, path) || globs(path, thing);
            if self.pure && IMPURE.iter().any(impure) {
                violations.push(format!("`{name}` is pure and must not use `{path}`"));
            }
            let Some(other) = path.strip_prefix("crate::") else { continue };
            let other = other.split("::").next().unwrap_or_default();
            let allowed = match self.uses {
                Uses::Only(allowed) => allowed.contains(&other),
                Uses::AllBut(not) => not.is_empty() || (other != "*" && !not.contains(&other)),
            };
            if other != name && !allowed {
                violations.push(format!("`{name}` must not use `{path}`"));
            }
        }
        violations
    }
}

/// Is `path` the thing or something in it?
fn covers(thing: &str, path: &str) -> bool {
    path.strip_prefix(thing).is_some_and(|rest| rest.is_empty() || rest.starts_with("::"))
}

/// Does `path` end in a `*` that brings the thing in?
fn globs(path: &str, thing: &str) -> bool {
    path.strip_suffix('*').is_some_and(|prefix| thing.starts_with(prefix))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn violations(module: &str, text: &str) -> Vec<String> {
        let layer = LAYERS.iter().find(|layer| layer.module == module).unwrap();
        layer.violations(&Paths::of(text, &[module.to_owned()]).unwrap())
    }

    #[test]
    fn the_system_is_noticed_however_it_is_named() {
        for text in [
            "use std::fs;",
            "use std::{collections::HashMap, fs::{self, File}};",
            "use std::time::{Duration, Instant as Clock};",
            "fn f() { let _ = std::env::var(\"X\"); }",
            "fn f() { let _ = ::std::env::var(\"X\"); }",
            "mod inner { fn f() -> std::process::Child { loop {} } }",
            "use tokio::time::sleep;",
            "use ::tokio;",
            "extern crate tokio;",
            "extern crate tokio as t;",
            "use std::os::*;",
            "use std::*;",
            "use std::time::*;",
            "fn f() { println!(\"{:?}\", std::env::var(\"X\")); }",
            "fn f() { vec![Some({ std::fs::read(\"x\") })]; }",
            "macro_rules! m { () => { std::thread::yield_now() } }",
            "#[derive(Clone)] struct A { at: std::time::SystemTime }",
            "impl From<std::net::IpAddr> for A {}",
        ] {
            assert!(!violations("ledger", text).is_empty(), "{text}");
        }
    }

    #[test]
    fn another_name_hides_nothing() {
        for text in [
            "use std as s; fn f() { s::fs::read(\"x\"); }",
            "use std::time; fn f() { time::Instant::now(); }",
            "use std::{self as s}; use s::fs;",
            "use std::time::{self as t}; fn f() { t::SystemTime::now(); }",
            "fn f() { use std::time as t; print!(\"{:?}\", t::Instant::now()); }",
            "extern crate std as s; use s::env;",
            "use crate as c; fn f() { c::bpf::load(); }",
        ] {
            assert!(!violations("ledger", text).is_empty(), "{text}");
        }
    }

    #[test]
    fn the_rim_and_other_layers_are_noticed() {
        for (module, text) in [
            ("report", "use crate::ledger::Ledger;"),
            ("tui", "use crate::ledger::Ledger;"),
            ("tui", "use crate::*;"),
            ("model", "use crate::{bpf::Kernel};"),
            ("naming", "fn f() { crate::sys::monotonic_ns(); }"),
            ("naming", "fn f() { vec![crate::sys::monotonic_ns()]; }"),
            ("ledger", "use super::bpf::Kernel;"),
            ("ledger", "mod inner { use super::super::bpf::Kernel; }"),
            ("ledger", "use crate::*;"),
            ("ledger", "pub(in crate::bpf) fn f() {}"),
        ] {
            assert_eq!(violations(module, text).len(), 1, "{text}");
        }
    }

    #[test]
    fn what_is_allowed_passes() {
        for (module, text) in [
            ("report", "use std::{fmt, io, time::Duration}; use crate::model::Pid;"),
            ("aggregate", "use crate::{ledger::Ledger, naming::Naming};"),
            ("ledger", "use self::pool::Pool; use crate::ledger::Site; mod pool {}"),
            ("ledger", "mod pool { use super::Site; fn f() { super::site(); } }"),
            ("ledger", "fn f() { let fs = 1; println!(\"std::fs {}\", fs); }"),
            ("ledger", "pub(crate) fn f() {} pub(super) fn g() {}"),
            ("ledger", "use std::time::Duration; use std::collections::*;"),
            ("tui", "use crate::model::Snapshot; use std::time::Instant;"),
            ("bpf", "use crate::*; use std::fs;"),
        ] {
            assert_eq!(violations(module, text), Vec::<String>::new(), "{text}");
        }
    }

    #[test]
    fn what_is_compiled_for_tests_alone_is_free() {
        for text in [
            "#[cfg(test)] mod tests { use std::fs; }",
            "#[cfg(test)] use std::fs;",
            "#[cfg(test)] fn f() { std::fs::read(\"x\"); }",
            "#[test] fn f() { std::fs::read(\"x\"); }",
            "struct A; #[cfg(test)] impl A { fn f() { std::fs::read(\"x\"); } }",
            "struct A; impl A { #[cfg(test)] fn f() { std::fs::read(\"x\"); } }",
            "#[cfg(all(test, unix))] mod t { use std::fs; }",
        ] {
            assert_eq!(violations("ledger", text), Vec::<String>::new(), "{text}");
        }
        for text in ["#[cfg(not(test))] use std::fs;", "#[cfg(any(test, unix))] use std::fs;"] {
            assert_eq!(violations("ledger", text).len(), 1, "{text}");
        }
    }

    #[test]
    fn modules_are_followed_as_the_compiler_does() {
        let folder = tempfile::tempdir().unwrap();
        for (file, text) in [
            ("lib.rs", "mod flat; mod deep;"),
            ("flat.rs", "mod inner; #[cfg(test)] mod tests;"),
            ("flat/inner.rs", ""),
            ("flat/tests.rs", ""),
            ("deep/mod.rs", "mod here { mod below; }"),
            ("deep/here/below.rs", ""),
            ("forgotten.rs", ""),
        ] {
            let file = folder.path().join(file);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, text).unwrap();
        }
        let found = files(folder.path()).unwrap();
        let mut modules: Vec<String> = found.iter().map(|(_, m)| m.join("::")).collect();
        modules.sort();
        assert_eq!(modules, ["", "deep", "deep::here::below", "flat", "flat::inner"]);
    }
}
