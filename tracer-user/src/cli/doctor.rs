//! `doctor`: what could be traced here, and what to do about each gap.

use std::io::{self, Write};

use anyhow::Result;

use super::args::DoctorArgs;
use crate::{
    discover::plan::Extras,
    model::Pid,
    report::sanitize,
    session::{Diagnosis, LibraryDiagnosis, ProcessDiagnosis, State, diagnose},
};

/// Prints the diagnosis; of a process also where tracing does not work.
pub fn run(args: &DoctorArgs) -> Result<()> {
    let (diagnosis, result) = diagnose(args.pid.map(Pid), Extras { cpu: args.cpu });
    let mut out = io::stdout().lock();
    if args.json {
        serde_json::to_writer_pretty(&mut out, &diagnosis)?;
        writeln!(out)?;
    } else {
        write(&diagnosis, args, &mut out)?;
    }
    if diagnosis.machine.iter().any(|check| check.state == State::Missing) {
        return Err(Unable.into());
    }
    Ok(result?)
}

/// Tracing does not work here.
#[derive(Debug, thiserror::Error)]
#[error("tracing does not work here; see above for what to do")]
pub struct Unable;

fn write(diagnosis: &Diagnosis, args: &DoctorArgs, out: &mut impl Write) -> io::Result<()> {
    writeln!(out, "cudatrace {}", diagnosis.version)?;
    for check in &diagnosis.machine {
        let state = match check.state {
            State::Ok => "ok",
            State::Limited => "limited",
            State::Missing => "MISSING",
        };
        writeln!(out, "  {:<13} {state:<8} {}", check.name, sanitize(&check.found))?;
        if let Some(help) = &check.help {
            writeln!(out, "  {:<13} {:<8} → {help}", "", "")?;
        }
    }
    match &diagnosis.process {
        Some(process) => write_process(process, args.all, out),
        None if args.pid.is_some() => Ok(()),
        None => writeln!(out, "\nto see what is traced in a process: cudatrace doctor --pid PID"),
    }
}

fn write_process(process: &ProcessDiagnosis, all: bool, out: &mut impl Write) -> io::Result<()> {
    writeln!(out, "\nprocess {}", process.pid)?;
    writeln!(out, "  {}", sanitize(&process.command))?;
    for (name, value) in [("user", &process.user), ("container", &process.container)] {
        if let Some(value) = value {
            writeln!(out, "  {name} {}", sanitize(value))?;
        }
    }
    if let Some(version) = &process.python {
        writeln!(out, "  CPython {}: Python stacks", sanitize(version))?;
    }
    if let Some(note) = &process.python_note {
        writeln!(out, "  {}", sanitize(note))?;
    }
    writeln!(out, "  {}", process.counts)?;
    for library in &process.libraries {
        write_library(library, all, out)?;
    }
    Ok(())
}

fn write_library(library: &LibraryDiagnosis, all: bool, out: &mut impl Write) -> io::Result<()> {
    let when = if library.mapped { "" } else { " (not loaded yet)" };
    let count = library.probes.len();
    let noun = if count == 1 { "probe" } else { "probes" };
    writeln!(out, "\n  {}{when}: {count} {noun}", sanitize(&library.path))?;
    if all {
        for probe in &library.probes {
            let (symbol, note) = (sanitize(&probe.symbol), sanitize(&probe.note));
            writeln!(out, "    {:#010x}  {symbol}: {note}", probe.offset)?;
        }
    }
    let absent = library.gaps.iter().filter(|gap| !gap.is_gap()).count();
    for gap in library.gaps.iter().filter(|gap| all || gap.is_gap()) {
        let why = gap.note.as_deref().unwrap_or("not known why");
        writeln!(out, "    missing: {}: {}", sanitize(&gap.symbol), sanitize(why))?;
    }
    if !all && absent > 0 {
        writeln!(out, "    {absent} entry points are of other versions (--all shows everything)")?;
    }
    Ok(())
}
