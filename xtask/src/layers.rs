//! `layers`: the direction of dependence, which the compiler does not check.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result, bail};
use syn::{Attribute, ItemMod, ItemUse, UseTree, visit::Visit};

use crate::workspace::Workspace;

/// Modules of tracer-user that are pure: bytes and values in, values out.
const PURE: [&str; 6] = ["aggregate", "decode", "ledger", "model", "naming", "report"];

/// Which other modules of tracer-user a pure one may use. `report` sees only snapshots.
const MAY_USE: [(&str, &[&str]); 6] = [
    ("model", &[]),
    ("decode", &["model"]),
    ("naming", &["model", "decode"]),
    ("ledger", &["model"]),
    ("aggregate", &["model", "decode", "naming", "ledger"]),
    ("report", &["model"]),
];

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
    for module in PURE {
        for file in rust_files(&source.join(module))? {
            let text = fs::read_to_string(&file)?;
            let found = module_violations(module, &text)
                .with_context(|| format!("cannot parse `{}`", file.display()))?;
            let shown = file.strip_prefix(workspace.root()).unwrap_or(&file);
            violations.extend(found.into_iter().map(|v| format!("{}: {v}", shown.display())));
        }
    }
    if !violations.is_empty() {
        bail!("dependences in the wrong direction:\n  {}", violations.join("\n  "));
    }
    println!(
        "layers: {} pure modules and {} crates keep their direction",
        PURE.len(),
        CRATES.len()
    );
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

fn rust_files(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    let entries = fs::read_dir(folder).with_context(|| format!("no `{}`", folder.display()))?;
    for entry in entries {
        let path = entry?.path();
        if path.is_dir() {
            files.extend(rust_files(&path)?);
        } else if path.extension().is_some_and(|extension| extension == "rs")
            && !path.ends_with("tests.rs")
        {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

/// What a file of the pure module `module` uses and must not.
fn module_violations(module: &str, text: &str) -> Result<Vec<String>> {
    let mut paths = Paths::default();
    paths.visit_file(&syn::parse_file(text)?);
    let allowed = MAY_USE.iter().find(|(name, _)| *name == module).map_or(&[][..], |row| row.1);
    let mut violations = Vec::new();
    for path in paths.0 {
        let starts = |prefix: &str| path == prefix || path.starts_with(&format!("{prefix}::"));
        if IMPURE.iter().any(|prefix| starts(prefix)) {
            violations.push(format!("`{module}` is pure and must not use `{path}`"));
        }
        if let Some(rest) = path.strip_prefix("crate::") {
            let other = rest.split("::").next().unwrap_or_default();
            let is_module = other.chars().next().is_some_and(char::is_lowercase);
            if is_module && other != module && !allowed.contains(&other) {
                violations.push(format!("`{module}` must not use `{path}`"));
            }
        }
    }
    Ok(violations)
}

/// Every path that a file names, outside of its tests.
#[derive(Default)]
struct Paths(Vec<String>);

impl<'ast> Visit<'ast> for Paths {
    fn visit_item_mod(&mut self, item: &'ast ItemMod) {
        if !is_test(&item.attrs) {
            syn::visit::visit_item_mod(self, item);
        }
    }

    fn visit_item_use(&mut self, item: &'ast ItemUse) {
        if !is_test(&item.attrs) {
            self.tree(String::new(), &item.tree);
        }
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let segments: Vec<String> = path.segments.iter().map(|s| s.ident.to_string()).collect();
        if segments.len() > 1 {
            self.0.push(segments.join("::"));
        }
        syn::visit::visit_path(self, path);
    }
}

impl Paths {
    fn tree(&mut self, prefix: String, tree: &UseTree) {
        let join = |name: String| {
            if prefix.is_empty() { name } else { format!("{prefix}::{name}") }
        };
        match tree {
            UseTree::Path(path) => self.tree(join(path.ident.to_string()), &path.tree),
            UseTree::Name(name) => self.0.push(join(name.ident.to_string())),
            UseTree::Rename(name) => self.0.push(join(name.ident.to_string())),
            UseTree::Glob(_) => self.0.push(prefix),
            UseTree::Group(group) => {
                for tree in &group.items {
                    self.tree(prefix.clone(), tree);
                }
            }
        }
    }
}

fn is_test(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        attribute.path().is_ident("cfg")
            && matches!(&attribute.meta, syn::Meta::List(list) if list.tokens.to_string() == "test")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn violations(module: &str, text: &str) -> usize {
        module_violations(module, text).unwrap().len()
    }

    #[test]
    fn the_system_is_noticed_however_it_is_named() {
        for text in [
            "use std::fs;",
            "use std::{collections::HashMap, fs::{self, File}};",
            "use std::time::{Duration, Instant as Clock};",
            "fn f() { let _ = std::env::var(\"X\"); }",
            "mod inner { fn f() -> std::process::Child { loop {} } }",
            "use tokio::time::sleep;",
            "use std::os::*;",
        ] {
            assert!(violations("ledger", text) > 0, "{text}");
        }
    }

    #[test]
    fn the_rim_and_other_layers_are_noticed() {
        assert_eq!(violations("report", "use crate::ledger::Ledger;"), 1);
        assert_eq!(violations("model", "use crate::{bpf::Kernel};"), 1);
        assert_eq!(violations("naming", "fn f() { crate::sys::monotonic_ns(); }"), 1);
    }

    #[test]
    fn what_is_allowed_passes() {
        let text = "use std::{fmt, io, time::Duration}; use crate::model::Pid; use super::x::Y;
                    #[cfg(test)] mod tests { use std::fs; }";
        assert_eq!(violations("report", text), 0);
        assert_eq!(violations("aggregate", "use crate::{ledger::Ledger, naming::Naming};"), 0);
    }
}
