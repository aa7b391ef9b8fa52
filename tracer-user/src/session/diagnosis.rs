//! What could be traced here, and what stands in the way; nothing is attached.

use std::{collections::BTreeMap, path::Path};

use serde::Serialize;

use super::{SessionError, found::Found, layer};
use crate::{
    bpf::{Kernel, LoadError, LoadOptions},
    discover::{
        library::LibraryFile,
        plan::{self, Extras},
    },
    model::{Coverage, Layer, Pid},
    sys::{btf, kernel_release, privilege},
};

/// What `cudatrace doctor` finds out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Diagnosis {
    /// `cudatrace.doctor/1`.
    pub schema: &'static str,
    /// Version of the program.
    pub version: &'static str,
    /// About this machine and the rights of this user.
    pub machine: Vec<Check>,
    /// The programs that were loaded for a try, and the instructions that the verifier went through for
    /// each.
    pub programs: BTreeMap<String, Option<u64>>,
    /// About the process that was asked for, if it can be traced.
    pub process: Option<ProcessDiagnosis>,
}

/// Whether something is as it has to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// As it should be.
    Ok,
    /// Tracing works, with less in it.
    Limited,
    /// Tracing does not work.
    Missing,
}

/// One thing that tracing depends on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Check {
    /// What.
    pub name: &'static str,
    /// Whether it is there.
    pub state: State,
    /// What was found.
    pub found: String,
    /// What to do about it.
    pub help: Option<String>,
}

/// What would be traced in a process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ProcessDiagnosis {
    /// Its id.
    pub pid: Pid,
    /// Its command line.
    pub command: String,
    /// Its user.
    pub user: Option<String>,
    /// Its container.
    pub container: Option<String>,
    /// Version of its CPython.
    pub python: Option<String>,
    /// Why there would be no Python stacks, or in what they are less certain.
    pub python_note: Option<String>,
    /// Whose calls would tell of GPU memory; `null` if neither the driver's nor the runtime's can be probed.
    pub counted_at: Option<Layer>,
    /// What that means, in words.
    pub counts: &'static str,
    /// Its libraries, and those that it can be foreseen to load.
    pub libraries: Vec<LibraryDiagnosis>,
}

/// What would be traced in a library.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LibraryDiagnosis {
    /// As the process sees it.
    pub path: String,
    /// Whether it is mapped already.
    pub mapped: bool,
    /// The probes that would be attached.
    pub probes: Vec<Planned>,
    /// What cannot be probed, and why.
    pub gaps: Vec<Coverage>,
}

/// A probe that would be attached.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Planned {
    /// The function.
    pub symbol: String,
    /// Offset in the file.
    pub offset: u64,
    /// Why there.
    pub note: String,
}

/// Looks at this machine, and at a process if one is given; says as well why that one cannot be traced.
pub fn diagnose(pid: Option<Pid>, extras: Extras) -> (Diagnosis, Result<(), SessionError>) {
    let (process, result) = match pid.map(|pid| process(pid, extras)) {
        Some(Ok(process)) => (Some(process), Ok(())),
        Some(Err(error)) => (None, Err(error)),
        None => (None, Ok(())),
    };
    let (schema, version) = ("cudatrace.doctor/1", env!("CARGO_PKG_VERSION"));
    let (machine, programs) = machine();
    (Diagnosis { schema, version, machine, programs, process }, result)
}

fn machine() -> (Vec<Check>, BTreeMap<String, Option<u64>>) {
    let mut checks = vec![Check {
        name: "kernel",
        state: State::Ok,
        found: format!("Linux {}", kernel_release()),
        help: None,
    }];
    checks.push(match privilege::check(&[]) {
        Ok(()) => ok("privileges", "may load BPF programs and read other processes"),
        Err(error) => Check {
            name: "privileges",
            state: State::Missing,
            found: format!("missing {}", error.missing),
            help: Some(
                "run it by `sudo`; in Docker start the container with `--privileged --pid=host`"
                    .into(),
            ),
        },
    });
    checks.push(match btf::task_offsets(Path::new(btf::KERNEL_BTF)) {
        Ok(_) => ok("kernel types", "the kernel publishes them (BTF)"),
        Err(error) => Check {
            name: "kernel types",
            state: State::Limited,
            found: error.to_string(),
            help: Some(
                "without them there are no Python stacks; boot a kernel with CONFIG_DEBUG_INFO_BTF"
                    .into(),
            ),
        },
    });
    if checks.iter().any(|check| check.state == State::Missing) {
        return (checks, BTreeMap::new());
    }
    let (found, programs) = programs();
    checks.extend(found);
    (checks, programs)
}

/// Loads the kernel half and throws it away.
fn programs() -> (Vec<Check>, BTreeMap<String, Option<u64>>) {
    let kernel = Kernel::load(&LoadOptions::default());
    let programs = kernel.as_ref().map(Kernel::verified).unwrap_or_default();
    let checks = match kernel {
        Ok(kernel) => vec![
            ok("programs", "the kernel accepts all of them"),
            if kernel.attaches_many() {
                ok("attaching", "many probes by one link")
            } else {
                Check {
                    name: "attaching",
                    state: State::Ok,
                    found: "one link for each probe: attaching and detaching take seconds".into(),
                    help: Some("a kernel of 6.10 or newer does it at once".into()),
                }
            },
        ],
        Err(error) => {
            let help = match &error {
                LoadError::NoRingBuffer(_) => "boot Linux 5.15 or newer",
                LoadError::NotPermitted(_) => {
                    "run as root, outside of a container without `--privileged`"
                }
                _ => "please report it with this output",
            };
            let found = format!("{:#}", anyhow::Error::from(error));
            let first = found.lines().next().unwrap_or_default().to_owned();
            vec![Check {
                name: "programs",
                state: State::Missing,
                found: first,
                help: Some(help.to_owned()),
            }]
        }
    };
    (checks, programs.into_iter().collect())
}

fn ok(name: &'static str, found: &str) -> Check {
    Check { name, state: State::Ok, found: found.to_owned(), help: None }
}

fn process(pid: Pid, extras: Extras) -> Result<ProcessDiagnosis, SessionError> {
    let found = Found::look(pid)?;
    let mut libraries: Vec<LibraryDiagnosis> =
        found.libraries.iter().map(|library| plan(library, extras)).collect();
    let probed = libraries.iter().map(|library| !library.probes.is_empty());
    let counted_at =
        layer::counted_at(found.libraries.iter().zip(probed), layer::uses_gpu(&found.files));
    if let Some(python) = &found.python {
        let mut diagnosis = LibraryDiagnosis {
            path: python.code_dealloc.path.display().to_string(),
            mapped: true,
            probes: Vec::new(),
            gaps: Vec::new(),
        };
        for (function, program) in python.functions() {
            match plan::for_python(function, program) {
                Ok(site) => diagnosis.probes.push(planned(site)),
                Err(gap) => diagnosis.gaps.push(gap),
            }
        }
        libraries.push(diagnosis);
    }
    Ok(ProcessDiagnosis {
        pid,
        command: found.info.command,
        user: found.info.user,
        container: found.info.container,
        python: found.python.map(|python| python.version),
        python_note: found.python_note,
        counted_at,
        counts: layer::meaning(counted_at),
        libraries,
    })
}

fn plan(library: &LibraryFile, extras: Extras) -> LibraryDiagnosis {
    let (sites, gaps) = plan::for_library(library, extras);
    LibraryDiagnosis {
        path: library.path.display().to_string(),
        mapped: library.mapped,
        probes: sites.into_iter().map(planned).collect(),
        gaps,
    }
}

fn planned(site: plan::ProbeSite) -> Planned {
    Planned { symbol: site.symbol, offset: site.offset, note: site.note }
}
