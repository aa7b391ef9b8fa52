//! The command line: arguments as typed, then as meant, then the trace.

mod args;
mod diff;
mod doctor;
mod output;
mod trace;

use std::{io, process::ExitCode};

use anyhow::Error;
use clap::{CommandFactory as _, Parser as _, error::ErrorKind};

pub use self::args::Args;
use self::args::Verb;
use crate::{
    bpf::LoadError,
    session::SessionError,
    sys::{lock::LockError, privilege::PrivilegeError},
};

/// Exit codes, which scripts rely on.
mod code {
    pub const FAILED: u8 = 1;
    pub const USAGE: u8 = 2;
    pub const MISSING: u8 = 3;
    pub const NOTHING: u8 = 4;
    pub const LEAK: u8 = 5;
}

/// Runs the program on the arguments of the process.
pub fn main() -> ExitCode {
    let args = Args::try_parse().unwrap_or_else(|error| refuse(error));
    let result = match &args.verb {
        Some(Verb::Diff(args)) => diff::run(args),
        Some(Verb::Doctor(args)) => doctor::run(args),
        _ => trace::run(&args),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("cudatrace: {error:#}");
            ExitCode::from(exit_code(&error))
        }
    }
}

/// Ends with usage, or help.
fn refuse(error: clap::Error) -> ! {
    let pid = std::env::args().nth(1).filter(|first| first.parse::<u32>().is_ok());
    match (error.kind(), pid) {
        (ErrorKind::InvalidSubcommand | ErrorKind::UnknownArgument, Some(pid)) => {
            let message = format!("`{pid}` is no verb; to trace a process write `--pid {pid}`");
            Args::command().error(ErrorKind::InvalidSubcommand, message).exit()
        }
        _ => error.exit(),
    }
}

/// Arguments that are well-formed but cannot be meant.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct UsageError(String);

/// The reader of our output has gone away: it has what it wanted.
fn is_broken_pipe(error: &Error) -> bool {
    error
        .chain()
        .filter_map(|cause| cause.downcast_ref::<io::Error>())
        .any(|error| error.kind() == io::ErrorKind::BrokenPipe)
}

fn exit_code(error: &Error) -> u8 {
    for cause in error.chain() {
        if cause.is::<PrivilegeError>() || cause.is::<doctor::Unable>() {
            return code::MISSING;
        }
        if cause.is::<trace::LeaksFound>() {
            return code::LEAK;
        }
        if cause.is::<UsageError>() {
            return code::USAGE;
        }
        match cause.downcast_ref::<SessionError>() {
            Some(SessionError::Load(error)) => return load_code(error),
            Some(SessionError::Lock(LockError::Held { .. } | LockError::Io { .. })) => {
                return code::FAILED;
            }
            Some(SessionError::CannotFollow(_)) => return code::MISSING,
            Some(SessionError::NoProbe { .. }) => return code::FAILED,
            Some(_) => return code::NOTHING,
            None => {}
        }
    }
    code::FAILED
}

fn load_code(error: &LoadError) -> u8 {
    if error.is_missing_feature() { code::MISSING } else { code::FAILED }
}
