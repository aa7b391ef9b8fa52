//! Arguments as typed.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use bytesize::ByteSize;
use clap::{Parser, Subcommand, ValueEnum};

use crate::bpf::DEFAULT_RING_BYTES;

const EXAMPLES: &str = "\
Examples:
  sudo cudatrace --pid 4242                              report every 5 s until Ctrl-C
  sudo cudatrace --pid 4242 --duration 30s               one report after half a minute
  sudo cudatrace --pid 4242 --duration 30s -o report.json -o leak.svg
  sudo cudatrace flamegraph --pid 4242 -o leak.svg       picture of what is not freed, at Ctrl-C
  cudatrace diff before.json after.json                  which lines hold more, and which less
  sudo cudatrace doctor --pid 4242                       what would be traced, and what is missing

Exit codes: 0 done, 1 failed, 2 wrong usage, 3 missing privilege or kernel feature,
4 no such process or nothing to trace, 5 something grows (--fail-on-leak).";

/// Which Python line holds which bytes of GPU memory, in a process that is already running.
///
/// Attaches to a Jupyter kernel, a training job or a server without restarting or changing it, and
/// reports what it allocates on the GPU from then on, by call site.
#[derive(Debug, Parser)]
#[command(name = "cudatrace", version, after_help = EXAMPLES, args_conflicts_with_subcommands = true)]
#[command(subcommand_negates_reqs = true, max_term_width = 100)]
pub struct Args {
    /// What to do instead of reporting
    #[command(subcommand)]
    pub verb: Option<Verb>,
    /// What to trace
    #[command(flatten)]
    pub trace: TraceArgs,
    /// How the report looks [default: text; for a file by its extension: .txt, .json, .folded, .svg]
    #[arg(long, value_enum)]
    pub format: Option<Format>,
    /// Write the final report to this file; may be given several times
    #[arg(long, short, value_name = "FILE")]
    pub output: Vec<PathBuf>,
    /// Time between reports on standard output (text only; other formats are written once, at the end)
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = duration)]
    pub interval: Duration,
}

/// Verbs.
#[derive(Debug, Subcommand)]
pub enum Verb {
    /// Write a flamegraph of unfreed allocations (SVG)
    Flamegraph {
        /// What to trace
        #[command(flatten)]
        trace: TraceArgs,
        /// The picture
        #[arg(long, short, value_name = "FILE")]
        output: PathBuf,
    },
    /// Show what can be traced here, and what to do about each gap; attaches nothing
    Doctor(DoctorArgs),
    /// Compare two reports in JSON, line by line: what holds more, what less
    Diff(DiffArgs),
}

/// What to compare.
#[derive(Clone, Debug, clap::Args)]
pub struct DiffArgs {
    /// The earlier report
    #[arg(value_name = "BEFORE.json")]
    pub before: PathBuf,
    /// The later one
    #[arg(value_name = "AFTER.json")]
    pub after: PathBuf,
    /// Leave out smaller differences, such as 1MiB
    #[arg(long, value_name = "SIZE", default_value = "0")]
    pub min_bytes: ByteSize,
    /// Show at most this many lines
    #[arg(long, value_name = "N", default_value_t = 20)]
    pub top: usize,
    /// As JSON: the schema cudatrace.diff/1
    #[arg(long)]
    pub json: bool,
}

/// What to look at.
#[derive(Clone, Debug, clap::Args)]
pub struct DoctorArgs {
    /// Process to look at; nothing is attached to it
    #[arg(long, value_name = "PID", value_parser = clap::value_parser!(u32).range(1..))]
    pub pid: Option<u32>,
    /// Show every probe and where it goes
    #[arg(long)]
    pub all: bool,
    /// With the probes of `--cpu`
    #[arg(long)]
    pub cpu: bool,
    /// As JSON: the schema cudatrace.doctor/1
    #[arg(long)]
    pub json: bool,
}

/// What to trace, and for how long.
#[derive(Clone, Debug, clap::Args)]
pub struct TraceArgs {
    /// Process to trace; several separated by commas
    #[arg(long, value_name = "PID", value_delimiter = ',', required = true)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..))]
    pub pid: Vec<u32>,
    /// Trace children that it makes from then on as well, and what they become by exec
    #[arg(long)]
    pub follow_fork: bool,
    /// Stop after this time, such as 500ms, 30s or 2m; without it at Ctrl-C or the process's end
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub duration: Option<Duration>,
    /// Show at most this many lines or sites (text: 20 unless given)
    #[arg(long, value_name = "N")]
    pub top: Option<usize>,
    /// Leave out sites with fewer live bytes, such as 1MiB
    #[arg(long, value_name = "SIZE", default_value = "0")]
    pub min_bytes: ByteSize,
    /// Trace PyTorch's tensors in host memory as well
    #[arg(long)]
    pub cpu: bool,
    /// Show every frame: also those of IPython, ipykernel, event loops and module calls
    #[arg(long)]
    pub full_stacks: bool,
    /// End with 5 if anything grows (docs/verdicts.md), after the last report
    #[arg(long)]
    pub fail_on_leak: bool,
    /// What is known to grow and no reason to fail: a file of lines `leak:PATTERN`, with a date from which
    /// on it is one, `leak:PATTERN until:2027-01-31`, if there is one
    #[arg(long, value_name = "FILE", requires = "fail_on_leak")]
    pub suppressions: Option<PathBuf>,
    /// Show the log of the programs in the kernel
    #[arg(long)]
    pub log_ebpf: bool,
    /// Size of the ring buffer, a power of two of at least a page (for tests)
    #[arg(long, value_name = "SIZE", hide = true, value_parser = ring_size)]
    #[arg(default_value_t = DEFAULT_RING_BYTES)]
    pub ring_size: u32,
    /// Write every event to this file, a JSON object a line (for tests and for finding faults)
    #[arg(long, value_name = "FILE", hide = true)]
    pub events: Option<PathBuf>,
}

/// How a report looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// For people
    Text,
    /// For programs: the schema cudatrace.report/1
    Json,
    /// Folded stacks by live bytes, for flamegraph tools
    Folded,
    /// A flamegraph as SVG
    Flamegraph,
}

impl Format {
    /// The format that a file's extension stands for, text where there is none; `None` for an
    /// extension that stands for nothing here.
    pub fn of_file(path: &Path) -> Option<Self> {
        match path.extension().map(|extension| extension.to_str()) {
            None | Some(Some("txt" | "log")) => Some(Self::Text),
            Some(Some("json")) => Some(Self::Json),
            Some(Some("folded")) => Some(Self::Folded),
            Some(Some("svg")) => Some(Self::Flamegraph),
            Some(_) => None,
        }
    }
}

/// A longer time is this one: a century.
const LONGEST: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

fn duration(text: &str) -> Result<Duration, String> {
    match humantime::parse_duration(text) {
        Ok(duration) if duration.is_zero() => Err("must be longer than 0".to_owned()),
        // As good as endless, and no clock overflows.
        Ok(duration) => Ok(duration.min(LONGEST)),
        Err(error) if text.bytes().all(|byte| byte.is_ascii_digit()) && !text.is_empty() => {
            Err(format!("{error}; for seconds write `{text}s`"))
        }
        Err(error) => Err(format!("{error}; write it like `500ms`, `30s` or `2m`")),
    }
}

fn ring_size(text: &str) -> Result<u32, String> {
    let size: ByteSize = text.parse()?;
    let page = rustix::param::page_size() as u64;
    match u32::try_from(size.0) {
        Ok(bytes) if size.0 >= page && size.0.is_power_of_two() => Ok(bytes),
        _ => Err(format!("must be a power of two, at least {page} bytes and less than 4 GiB")),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn the_definition_is_consistent() {
        Args::command().debug_assert();
    }

    #[test]
    fn sizes_and_times() {
        let args = Args::try_parse_from([
            "cudatrace",
            "--pid",
            "1,2",
            "--duration",
            "1m",
            "--min-bytes",
            "1MiB",
            "--ring-size",
            "4KiB",
        ]);
        let trace = args.unwrap().trace;
        assert_eq!(trace.pid, [1, 2]);
        assert_eq!(trace.duration, Some(Duration::from_secs(60)));
        assert_eq!(trace.min_bytes.0, 1 << 20);
        assert_eq!(trace.ring_size, 4096);
        assert_eq!(duration("18446744073709551615s"), Ok(LONGEST));
        for wrong in
            [["--pid", "0"], ["--duration", "0s"], ["--duration", "30"], ["--ring-size", "5000"]]
        {
            let line = ["cudatrace", "--pid", "1"].into_iter().chain(wrong);
            assert!(Args::try_parse_from(line).is_err(), "{wrong:?}");
        }
    }
}
