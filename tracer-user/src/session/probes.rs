//! What is attached, and for whom.

use std::{collections::HashMap, fs, os::unix::fs::MetadataExt as _};

use tracer_common::config::ProcessConfig;

use crate::{
    bpf::{Kernel, LoadOptions, Place, Program, Scope},
    discover::{
        library::{LibraryFile, LibraryKind},
        plan::{self, Extras, ProbeSite},
        python::PythonTarget,
    },
    model::{Coverage, Pid},
};

/// What has its probes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Probed {
    /// A library, by its inode.
    Library(LibraryKind, u64),
    /// A function of an interpreter, by inode and address.
    Python(Program, u64, u64),
}

/// The probes of a trace.
pub(super) struct Probes {
    /// If children are traced, probes are for all processes, so that they have them too.
    pub options: LoadOptions,
    /// What is traced besides what always is.
    pub extras: Extras,
    /// What was tried, and whether any probe of it is there.
    done: HashMap<(Scope, Probed), bool>,
    /// Every entry point.
    pub coverage: Vec<Coverage>,
}

impl Probes {
    pub fn new(options: LoadOptions, extras: Extras) -> Self {
        Self { options, extras, done: HashMap::new(), coverage: Vec::new() }
    }

    fn scope(&self, pid: Pid) -> Scope {
        if self.options.follow { Scope::AllProcesses } else { Scope::Process(pid) }
    }

    /// Whether a library of a process was looked at.
    pub fn knows(&self, pid: Pid, library: &LibraryFile) -> bool {
        let probed = Probed::Library(library.kind, library.inode);
        self.done.contains_key(&(self.scope(pid), probed))
    }

    /// Whether any probe of a library of a process is there.
    pub fn has(&self, pid: Pid, library: &LibraryFile) -> bool {
        let probed = Probed::Library(library.kind, library.inode);
        self.done.get(&(self.scope(pid), probed)).is_some_and(|&there| there)
    }

    /// Attaches everything that libraries of a process offer, and notes what they do not. Returns
    /// whether any probe is there.
    pub fn attach_libraries(
        &mut self,
        kernel: &mut Kernel,
        pid: Pid,
        libraries: &[LibraryFile],
    ) -> bool {
        let scope = self.scope(pid);
        let mut any = false;
        let mut new = Vec::new();
        let mut sites = Vec::new();
        for library in libraries {
            let key = (scope, Probed::Library(library.kind, library.inode));
            if let Some(there) = self.done.get(&key) {
                any |= there;
                continue;
            }
            let (found, gaps) = plan::for_library(library, self.extras);
            self.coverage.extend(gaps);
            self.done.insert(key, false);
            new.push((key, found.len()));
            sites.extend(found);
        }
        let mut attached = self.attach_sites(kernel, scope, &sites).into_iter();
        for (key, count) in new {
            let there = attached.by_ref().take(count).fold(false, |any, there| any | there);
            self.done.insert(key, there);
            any |= there;
        }
        any
    }

    /// Attaches to the functions of an interpreter. Returns whether what Python stacks need is there: the
    /// hook on freed code.
    fn attach_python(&mut self, kernel: &mut Kernel, pid: Pid, python: &PythonTarget) -> bool {
        let mut names_are_safe = false;
        for (function, program) in python.functions() {
            let inode = fs::metadata(&function.open_path).map_or(0, |metadata| metadata.ino());
            let key = (self.scope(pid), Probed::Python(program, inode, function.address));
            let there = self.done.get(&key).copied().unwrap_or_else(|| {
                match plan::for_python(function, program) {
                    Ok(site) => self.attach_sites(kernel, key.0, &[site]) == [true],
                    Err(gap) => {
                        self.coverage.push(gap);
                        false
                    }
                }
            });
            self.done.insert(key, there);
            names_are_safe |= there && program == Program::CodeDealloc;
        }
        names_are_safe
    }

    /// What the kernel half has to know of a process. Python stacks only where everything that makes
    /// them right is there.
    pub fn config(
        &mut self,
        kernel: &mut Kernel,
        pid: Pid,
        python: Option<&PythonTarget>,
    ) -> ProcessConfig {
        let mut config = ProcessConfig {
            follow: self.options.follow.into(),
            full_stacks: self.options.full_stacks.into(),
            ..ProcessConfig::default()
        };
        if let Some(python) = python
            && self.attach_python(kernel, pid, python)
        {
            config.thread_state = python.thread_state;
            config.interpreters = python.interpreters;
            config.layout = python.layout;
        }
        config
    }

    /// Attaches all programs of all sites at once. Where one program of a site fails, the others stay:
    /// what they report is true, and the coverage says what is missing.
    fn attach_sites(
        &mut self,
        kernel: &mut Kernel,
        scope: Scope,
        sites: &[ProbeSite],
    ) -> Vec<bool> {
        let places: Vec<Place> = sites.iter().flat_map(ProbeSite::places).collect();
        let mut results = kernel.attach(&places, scope).into_iter();
        let mut attached = Vec::new();
        for site in sites {
            let results: Vec<_> = results.by_ref().take(site.programs.len()).collect();
            let result = results
                .into_iter()
                .try_for_each(|result| result.map_err(|e| format!("{:#}", anyhow::Error::from(e))));
            attached.push(result.is_ok());
            self.coverage.push(site.coverage(result));
        }
        attached
    }
}
