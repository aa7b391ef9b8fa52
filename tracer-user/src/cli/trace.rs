//! The trace from start to final report.

use std::{io::IsTerminal as _, path::PathBuf, slice, time::Duration};

use anyhow::{Context as _, Result};
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
    model::Pid,
    report::Options,
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
    Ok(())
}

fn listed(pids: &[u32]) -> String {
    let noun = if pids.len() == 1 { "process" } else { "processes" };
    let list: Vec<String> = pids.iter().map(u32::to_string).collect();
    format!("{noun} {}", list.join(", "))
}
