//! The trace from start to final report.

use std::{
    fs::File,
    io::{IsTerminal as _, Read as _},
    path::PathBuf,
    slice,
    time::Duration,
};

use anyhow::{Context as _, Result};
use thiserror::Error;
use time::OffsetDateTime;
use tokio::{
    signal::unix::{SignalKind, signal},
    time::{Instant, MissedTickBehavior, interval_at, sleep_until},
};
use tracing_subscriber::EnvFilter;

use super::{
    UsageError,
    args::{Args, Format, TraceArgs, Verb},
    output::{self, OutputFile},
};
use crate::{
    bpf::LoadOptions,
    discover::plan::Extras,
    model::{Pid, Snapshot},
    report::{MAX_SUPPRESSIONS, Options, Suppressions, leaks, sanitize},
    session::{Session, Tap},
    sys::privilege,
};

/// Time between two drains of the ring buffer. The kernel half never wakes us (docs/abi.md).
const DRAIN_INTERVAL: Duration = Duration::from_millis(20);

/// What the arguments mean.
struct Plan<'a> {
    trace: &'a TraceArgs,
    /// How standard output looks, if anything goes there.
    standard_output: Option<Format>,
    files: Vec<OutputFile>,
    events: Option<Tap>,
    /// What may grow, if growth is to be a failure.
    known: Option<Suppressions>,
    /// Time between reports on standard output, if there are any before the last.
    interval: Option<Duration>,
}

/// Runs a trace.
pub fn run(args: &Args) -> Result<()> {
    let plan = plan(args)?;
    start_log(plan.trace.log_ebpf);
    let command: Vec<String> = std::env::args().collect();
    privilege::check(&command)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start the event loop")?;
    runtime.block_on(follow(plan))
}

fn plan(args: &Args) -> Result<Plan<'_>> {
    let events = |trace: &TraceArgs| trace.events.as_deref().map(output::event_log).transpose();
    Ok(match &args.verb {
        Some(Verb::Flamegraph { trace, output }) => Plan {
            trace,
            standard_output: None,
            files: files(slice::from_ref(output), Some(Format::Flamegraph))?,
            events: events(trace)?,
            known: known(trace)?,
            interval: None,
        },
        _ => {
            // A format that is asked for goes to the files if there are any; without one, people
            // read text while the files are being made.
            let standard_output = match args.format {
                Some(_) if !args.output.is_empty() => None,
                format => Some(format.unwrap_or(Format::Text)),
            };
            Plan {
                trace: &args.trace,
                standard_output,
                files: files(&args.output, args.format)?,
                events: events(&args.trace)?,
                known: known(&args.trace)?,
                interval: (standard_output == Some(Format::Text)).then_some(args.interval),
            }
        }
    })
}

/// The files to write, each with its format.
fn files(paths: &[PathBuf], format: Option<Format>) -> Result<Vec<OutputFile>> {
    let mut files: Vec<OutputFile> = Vec::new();
    for path in paths {
        let Some(format) = format.or_else(|| Format::of_file(path)) else {
            let path = path.display();
            let message = format!("no format is known by the name of `{path}`; add `--format …`");
            return Err(UsageError(message).into());
        };
        let file = OutputFile::create(path, format)?;
        if files.iter().any(|other| other.path() == file.path() && file.is_whole()) {
            let message = format!("`{}` is given twice as an output", path.display());
            return Err(UsageError(message).into());
        }
        files.push(file);
    }
    Ok(files)
}

fn start_log(log_ebpf: bool) {
    let default = if log_ebpf { "warn,tracer_ebpf=trace,cudatrace_ebpf=trace" } else { "warn" };
    let filter =
        EnvFilter::try_from_env("CUDATRACE_LOG").unwrap_or_else(|_| EnvFilter::new(default));
    // An error means that there is a log already.
    let _ = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(std::io::stderr().is_terminal())
        .with_writer(std::io::stderr)
        .try_init();
}

async fn follow(plan: Plan<'_>) -> Result<()> {
    // Before the first probe, so that Ctrl-C always ends in a report.
    let mut interrupt = signal(SignalKind::interrupt()).context("cannot listen for Ctrl-C")?;
    let mut terminate = signal(SignalKind::terminate()).context("cannot listen for SIGTERM")?;
    let mut hang_up = signal(SignalKind::hangup()).context("cannot listen for SIGHUP")?;

    let options = Options {
        top: plan.trace.top,
        min_bytes: plan.trace.min_bytes.0,
        full_stacks: plan.trace.full_stacks,
    };
    let mut numbers = plan.trace.pid.clone();
    numbers.sort_unstable();
    numbers.dedup();
    let pids: Vec<Pid> = numbers.iter().copied().map(Pid).collect();
    let load = LoadOptions {
        ring_bytes: plan.trace.ring_size,
        log: plan.trace.log_ebpf,
        follow: plan.trace.follow_fork,
        full_stacks: plan.trace.full_stacks,
    };
    let mut session = Session::start(&pids, &load, Extras { cpu: plan.trace.cpu })?;
    if let Some(tap) = plan.events {
        session.set_tap(tap);
    }
    for warning in session.warnings() {
        eprintln!("cudatrace: {warning}");
    }
    eprintln!("cudatrace: attached to {}; Ctrl-C ends the trace", listed(&numbers));

    let now = Instant::now();
    let mut drain = interval_at(now + DRAIN_INTERVAL, DRAIN_INTERVAL);
    drain.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let period = plan.interval.unwrap_or(Duration::from_secs(3600));
    let mut report = interval_at(now + period, period);
    let end = plan.trace.duration.map(|duration| now + duration);
    loop {
        tokio::select! {
            _ = drain.tick() => {
                session.tick();
                if !session.is_active() {
                    break;
                }
            }
            _ = report.tick(), if plan.interval.is_some() => {
                session.tick();
                output::print(&session.snapshot(), Format::Text, &options)?;
                println!();
            }
            () = sleep_until(end.unwrap_or(now)), if end.is_some() => break,
            _ = interrupt.recv() => break,
            _ = terminate.recv() => break,
            _ = hang_up.recv() => break,
        }
    }
    let snapshot = session.finish();
    for file in plan.files {
        file.write(&snapshot, &options)?;
    }
    if let Some(format) = plan.standard_output {
        output::print(&snapshot, format, &options)?;
    }
    // The kernel takes some time for each probe (docs/overhead.md); the target is not held up.
    eprintln!("cudatrace: detaching");
    match plan.known {
        Some(known) => refuse_leaks(&snapshot, &known),
        None => Ok(()),
    }
}

/// What is known to grow, if growth is to be a failure.
fn known(trace: &TraceArgs) -> Result<Option<Suppressions>> {
    if !trace.fail_on_leak {
        return Ok(None);
    }
    let Some(path) = &trace.suppressions else { return Ok(Some(Suppressions::default())) };
    let context = || format!("cannot read the suppressions in `{}`", path.display());
    let file = File::open(path).with_context(context)?;
    let mut text = String::new();
    file.take(MAX_SUPPRESSIONS).read_to_string(&mut text).with_context(context)?;
    match Suppressions::parse(&text) {
        Ok(known) => Ok(Some(known)),
        Err(error) => Err(UsageError(format!("{}: {error}", path.display())).into()),
    }
}

/// Something grows.
#[derive(Debug, Error)]
#[error(
    "something grows: {0} call sites (--fail-on-leak); those that are meant to can be listed with --suppressions"
)]
pub struct LeaksFound(usize);

/// Call sites that are named one by one.
const NAMED: usize = 10;

fn refuse_leaks(snapshot: &Snapshot, known: &Suppressions) -> Result<()> {
    let today = OffsetDateTime::now_utc().date();
    for pattern in known.expired(today) {
        eprintln!("cudatrace: the suppression `{}` has expired", sanitize(pattern));
    }
    if !snapshot.tracer.exact {
        eprintln!("cudatrace: the report is incomplete, and so is what is known of growth");
    }
    let leaks = leaks(snapshot, known, today);
    leaks.iter().take(NAMED).for_each(|leak| eprintln!("cudatrace: {leak}"));
    if leaks.is_empty() { Ok(()) } else { Err(LeaksFound(leaks.len()).into()) }
}

fn listed(pids: &[u32]) -> String {
    let noun = if pids.len() == 1 { "process" } else { "processes" };
    let list: Vec<String> = pids.iter().map(u32::to_string).collect();
    format!("{noun} {}", list.join(", "))
}
