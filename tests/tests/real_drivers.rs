//! The vendor's own driver libraries, of seven versions, and runtime libraries, of two. Without a GPU
//! their calls all fail, but they are called as any program calls them, and each has to be seen exactly
//! as it was.

use std::{
    collections::BTreeMap,
    env,
    fmt::Write as _,
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use cudatrace_tests::{child::Talker, cudatrace, tracer::attach, vendor_libraries, workload};
use serde_json::Value;
use tempfile::TempDir;
use tracer_common::calls::{CALLS, Call, CallShape, FIRST_RUNTIME, op, place, when};

const DRIVERS: [&str; 7] =
    ["390.157", "450.248.02", "470.256.02", "525.147.05", "535.261.03", "550.163.01", "555.58.02"];

/// Where the workload has memory to point to (`real_driver.c`).
const SCRATCH: u64 = 0x5a00_0000_0000;

/// A vendor's library, or none, said aloud, when it could not be had.
fn vendor_library(folder: &str, file: &str) -> Option<PathBuf> {
    let folder = vendor_libraries().join(folder);
    if let Ok(reason) = fs::read_to_string(folder.join("missing")) {
        eprintln!("skipped {}: {reason}", folder.display());
        return None;
    }
    let path = folder.join(file);
    assert!(path.exists(), "no `{}`: run the tests by `cargo xtask test`", path.display());
    Some(path)
}

fn compile(folder: &TempDir) -> PathBuf {
    let program = folder.path().join("real_driver");
    let status = Command::new("cc")
        .args(["-O1", "-o"])
        .args([&program, &workload("real_driver.c")])
        .arg("-ldl")
        .status()
        .unwrap();
    assert!(status.success());
    program
}

/// The entry points of the driver, or of the runtime, with their places in the table.
fn calls(of_runtime: bool) -> impl Iterator<Item = (usize, &'static Call)> {
    CALLS.iter().enumerate().filter(move |(index, _)| (*index >= FIRST_RUNTIME) == of_runtime)
}

/// The workload with libraries loaded, and a tracer of it that writes every event down.
struct Traced {
    talker: Talker,
    tracer: cudatrace_tests::tracer::Tracer,
    init: i64,
    folder: TempDir,
}

impl Traced {
    fn start(libraries: &[&Path]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let program = compile(&folder);
        let mut command = Command::new(program);
        // No GPU, also where there is one: its driver would take what comes as real.
        command.args(libraries).env("CUDA_VISIBLE_DEVICES", "");
        if let Some(folder) = libraries[0].parent() {
            command.env("LD_LIBRARY_PATH", folder);
        }
        let mut talker = Talker::start(&mut command);
        let init = talker.line()["init"].as_i64().unwrap();
        let tracer = attach(
            Command::new(cudatrace())
                .args(["--pid", &talker.pid().to_string(), "--events"])
                .arg(folder.path().join("events"))
                .arg("-o")
                .arg(folder.path().join("report.json"))
                .stdout(Stdio::null()),
        );
        Self { talker, tracer, init, folder }
    }

    fn ask(&mut self, command: &str) -> Value {
        self.talker.say(command);
        self.talker.line()
    }

    /// Writes words to addresses.
    fn poke(&mut self, memory: &[(u64, u64)]) {
        for (address, value) in memory {
            self.talker.say(&format!("poke {address:x} {value:x}"));
        }
    }

    /// Ends both. The events, and the report.
    fn finish(mut self) -> (Vec<Value>, Value) {
        assert!(self.talker.wait().success());
        let output = self.tracer.finish();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let read = |name| fs::read_to_string(self.folder.path().join(name)).unwrap();
        let events =
            read("events").lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        (events, serde_json::from_str(&read("report.json")).unwrap())
    }
}

/// Arguments for a call that nothing else has: pointers into the scratch memory, and numbers where
/// the table says that the argument is one. Behind five arguments come three words that are passed in
/// memory. And what the pointers have to point to.
fn arguments(index: usize, shape: &CallShape) -> ([u64; 8], Vec<(u64, u64)>) {
    let number = index as u64;
    let slot = |argument: u8| SCRATCH + 0x1000 * number + 0x200 * u64::from(argument);
    let mut values = [0, 1, 2, 3, 4, 5, 6, 7].map(slot);
    let mut memory = Vec::new();
    let mut describe =
        |words: &[u64]| memory.extend((slot(1)..).step_by(8).zip(words.iter().copied()));
    let last = |at: u8| usize::from(at & 0xf);
    match shape.size & 0xf0 {
        place::ARGUMENT => values[last(shape.size)] = 0x1_2345_0000 + number,
        place::PITCHED | place::PITCHED_V1 => (values[2], values[3]) = (500 + number, 100 + number),
        place::ARRAY => describe(&[100 + number, 7, FLOATS]),
        place::ARRAY_3D => describe(&[100 + number, 7, 3, FLOATS]),
        place::ARRAY_V1 => describe(&[(100 + number) | (7 << 32), FLOATS]),
        place::ARRAY_3D_V1 => {
            describe(&[(100 + number) | (7 << 32), 3 | FLOATS << 32, FLOATS >> 32])
        }
        place::MIPMAPPED => {
            describe(&[100 + number, 7, 3, FLOATS]);
            values[2] = 2;
        }
        place::CHANNELS => {
            describe(&[BITS]);
            (values[2], values[3]) = (100 + number, 7);
        }
        place::CHANNELS_3D => describe(&[BITS]),
        place::CHANNELS_MIPMAPPED => {
            describe(&[BITS]);
            (values[2], values[3]) = (2, 0);
        }
        _ => {}
    }
    if shape.extent != 0 {
        values[5..].copy_from_slice(&[100 + number, 7, 3]);
    }
    if shape.aux & 0xf0 == place::ARGUMENT && shape.op != op::RETAIN {
        values[last(shape.aux)] = number + 1;
    }
    (values, memory)
}

/// An element of two channels of 32-bit floats, as the driver describes it and as the runtime does.
const FLOATS: u64 = 0x20 | 2 << 32;
const BITS: u64 = 32 | 32 << 32;

/// The events of a call that answers `error`: call, phase, error, address, size, further value.
fn expected(call: &Call, index: usize, error: i64) -> Vec<Value> {
    let shape = &call.shape;
    let number = index as u64;
    let (arguments, _) = arguments(index, shape);
    let argument = |at: u8| match at & 0xf0 {
        place::ARGUMENT => arguments[usize::from(at & 0xf)],
        _ => 0,
    };
    let size = match shape.size & 0xf0 {
        place::PITCHED | place::PITCHED_V1 => (500 + number) * (100 + number),
        place::PITCHED_3D => (100 + number) * 7 * 3,
        place::ARRAY | place::ARRAY_V1 | place::CHANNELS => (100 + number) * 7 * 8,
        place::ARRAY_3D | place::ARRAY_3D_V1 | place::CHANNELS_3D => (100 + number) * 7 * 3 * 8,
        place::MIPMAPPED | place::CHANNELS_MIPMAPPED => {
            ((100 + number) * 7 * 3 + (100 + number) / 2 * 3) * 8
        }
        _ => argument(shape.size),
    };
    let event = |phase: &str, address: u64| {
        let (error, aux) = match phase {
            "failed" => (Some(error), None),
            _ => (None, Some(argument(shape.aux))),
        };
        serde_json::json!([call.symbol, phase, error, address, size, aux])
    };
    match shape.when {
        when::RETURN => vec![event("failed", 0)],
        when::ENTRY => {
            vec![event("begun", argument(shape.address)), event("failed", argument(shape.address))]
        }
        _ => vec![event("done", argument(shape.address))],
    }
}

/// What is expected of an event.
fn seen(event: &Value) -> Value {
    ["call", "phase", "error", "address", "size", "aux"]
        .map(|key| event.get(key).cloned().unwrap_or_default())
        .into_iter()
        .collect()
}

/// The name that `cuGetProcAddress` knows an export by.
fn base_name(symbol: &str) -> &str {
    let symbol = symbol.strip_suffix("_ptsz").unwrap_or(symbol);
    ["_v2", "_v3", "_v4"].iter().find_map(|end| symbol.strip_suffix(end)).unwrap_or(symbol)
}

/// What was found out about one version.
#[derive(Default)]
struct Findings {
    /// Instruction and offset of the probe, by entry point; none where the driver lacks it.
    places: BTreeMap<&'static str, String>,
    by_name: usize,
    by_getter: usize,
    /// Exports that the getter hands out for our names and that are not probed.
    unprobed: Vec<String>,
    results: BTreeMap<i64, usize>,
    events: usize,
}

fn examine(version: &str, library: &Path) -> Findings {
    let mut traced = Traced::start(&[library]);
    assert_ne!(traced.init, 0, "{version} finds a GPU that was hidden from it");
    let mut findings = Findings::default();
    let mut wanted = Vec::new();
    for (index, call) in calls(false) {
        let (values, memory) = arguments(index, &call.shape);
        traced.poke(&memory);
        let values = values.map(|value| format!("{value:x}")).join(" ");
        let symbol = call.symbol;
        let answer = traced.ask(&format!("dlsym {symbol} {values}"));
        let Some(error) = answer["result"].as_i64() else { continue };
        let mut note = |error: i64| {
            assert_ne!(error, 0, "{version}: {symbol} cannot succeed without a GPU");
            wanted.extend(expected(call, index, error));
            *findings.results.entry(error).or_default() += 1;
        };
        note(error);
        findings.places.insert(symbol, String::new());
        findings.by_name += 1;
        for getter in ["cuGetProcAddress", "cuGetProcAddress_v2"] {
            let base = base_name(symbol);
            let answer = traced.ask(&format!("proc {getter} {symbol} {base} {values}"));
            if let Some(error) = answer["result"].as_i64() {
                note(error);
                findings.by_getter += 1;
            }
            let answer = traced.ask(&format!("resolve {getter} {base}"));
            for name in answer["names"].as_array().unwrap() {
                let name = name.as_str().unwrap();
                assert_ne!(name, "?", "{version}: {getter} has a {base} that is not exported");
                if !CALLS.iter().any(|call| call.symbol == name) {
                    findings.unprobed.push(name.to_owned());
                }
            }
        }
    }
    findings.unprobed.sort();
    findings.unprobed.dedup();
    let (events, report) = traced.finish();
    assert_eq!(report["tracer"]["dropped"], 0);
    let events: Vec<Value> = events.iter().map(seen).collect();
    for (event, wanted) in events.iter().zip(&wanted) {
        assert_eq!(event, wanted, "{version}");
    }
    assert_eq!(events.len(), wanted.len(), "{version}: events beyond, or too few");
    findings.events = events.len();

    let file = format!("/libcuda.so.{version}");
    for entry in report["tracer"]["coverage"].as_array().unwrap() {
        if !entry["library"].as_str().unwrap().ends_with(&file) {
            continue;
        }
        let symbol = entry["symbol"].as_str().unwrap();
        match findings.places.get_mut(symbol) {
            Some(place) => {
                assert_eq!(entry["attached"], true, "{version}: {entry}");
                *place = short(entry["note"].as_str().unwrap());
            }
            None => assert_eq!(entry["attached"], false, "{version}: {entry}"),
        }
    }
    // From 470 on every export is the same thunk; before, the functions themselves (docs/drivers.md).
    if version.split('.').next().unwrap().parse::<u32>().unwrap() >= 470 {
        for (symbol, place) in &findings.places {
            assert_eq!(place, "je +0xa", "{version}: {symbol}");
        }
    }
    findings
}

/// Instruction and offset out of the reason that is given for a probe's place.
fn short(note: &str) -> String {
    let instruction = note.split('`').nth(1).unwrap_or("?");
    let offset = note.split_whitespace().find(|word| word.starts_with("+0x")).unwrap_or("+0x0");
    let stepped = if note.contains("single-stepped") { " stepped" } else { "" };
    format!("{instruction} {offset}{stepped}")
}

/// The whole of docs/drivers.md.
fn document(all: &[(&str, Findings)]) -> String {
    let mut text = String::from(
        "# The driver's entry points by version\n\n\
         Written by `cargo xtask drivers`, checked by `cargo xtask test`; do not edit. From the vendor's own\n\
         `libcuda.so.1`, called on a machine without a GPU: every call fails, with the `CUresult` that is\n\
         counted below.\n\n\
         Every entry point that a version exports was called through `dlsym` and, where the driver has it,\n\
         through each of `cuGetProcAddress` and `cuGetProcAddress_v2`. Each call was seen exactly once at its\n\
         return or, for what frees, once at its entry and once as failed, with its arguments and result;\n\
         nothing else was seen. Whatever a getter answers for these names is the start of an export.\n\n",
    );
    let row = |text: &mut String, head: &str, cell: &dyn Fn(&Findings) -> String| {
        let cells: Vec<String> = all.iter().map(|(_, findings)| cell(findings)).collect();
        writeln!(text, "| {head} | {} |", cells.join(" | ")).unwrap();
    };
    let versions: Vec<&str> = all.iter().map(|(version, _)| *version).collect();
    let heads = |text: &mut String, what: &str| {
        writeln!(text, "| {what} | {} |", versions.join(" | ")).unwrap();
        writeln!(text, "|---|{}", "---|".repeat(versions.len())).unwrap();
    };
    heads(&mut text, "");
    row(&mut text, "called through `dlsym`", &|f| f.by_name.to_string());
    row(&mut text, "called through a getter", &|f| f.by_getter.to_string());
    row(&mut text, "events", &|f| f.events.to_string());
    row(&mut text, "`CUresult` × calls", &|f| {
        let results: Vec<String> =
            f.results.iter().map(|(error, count)| format!("{error} × {count}")).collect();
        results.join(", ")
    });
    text.push_str(
        "\nWhere the probe is: the instruction, and its distance from the export. `push +0x0`: the first\n\
         instruction, which the kernel emulates. `je +0xa`: behind the `cmpl` that every thunk begins with, which\n\
         would be single-stepped; it leaves arguments and stack as they are. Empty: this version does not have\n\
         it.\n\n",
    );
    heads(&mut text, "entry point");
    for (_, call) in calls(false) {
        row(&mut text, &format!("`{}`", call.symbol), &|f| {
            f.places.get(call.symbol).cloned().unwrap_or_default()
        });
    }
    text.push_str("\nA getter also hands out, for the same names in old versions of the API, and not probed:\n");
    let mut unprobed: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (version, findings) in all {
        for name in &findings.unprobed {
            unprobed.entry(name).or_default().push(version);
        }
    }
    for (name, versions) in unprobed {
        writeln!(text, "- `{name}` ({})", versions.join(", ")).unwrap();
    }
    text
}

/// Each version's exports of ours, called in every way there is: one event each, with the arguments
/// and the error. The table of docs/drivers.md is what was found.
#[test]
fn every_export_of_every_version_is_seen_once() {
    let found: Vec<(&str, Findings)> = DRIVERS
        .iter()
        .filter_map(|version| {
            let library = vendor_library(&format!("driver-{version}"), "libcuda.so.1")?;
            Some((*version, examine(version, &library)))
        })
        .collect();
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/drivers.md");
    let text = document(&found);
    if found.len() < DRIVERS.len() {
        assert!(env::var_os("CUDATRACE_WRITE_DOCS").is_none(), "not every version is there");
        eprintln!("skipped the comparison with docs/drivers.md: not every version is there");
    } else if env::var_os("CUDATRACE_WRITE_DOCS").is_some() {
        fs::write(path, text).unwrap();
    } else {
        let committed = fs::read_to_string(path).unwrap();
        assert_eq!(committed, text, "docs/drivers.md is old: run `cargo xtask drivers`");
    }
}

/// Without a GPU the runtime finds out that there is none, or that the driver is too old for it, before
/// it asks the driver for memory. Each call is one failure all the same, and the program is the caller.
#[test]
fn every_call_of_the_runtime_is_seen_once() {
    for (runtime, driver) in [("12", "450.248.02"), ("12", "550.163.01"), ("13", "555.58.02")] {
        let file = format!("libcudart.so.{runtime}");
        let (Some(library), Some(driver)) = (
            vendor_library(&format!("runtime-{runtime}"), &file),
            vendor_library(&format!("driver-{driver}"), "libcuda.so.1"),
        ) else {
            continue;
        };
        let mut traced = Traced::start(&[&driver, &library]);
        let mut wanted = Vec::new();
        for (index, call) in calls(true) {
            let (values, memory) = arguments(index, &call.shape);
            traced.poke(&memory);
            let values = values.map(|value| format!("{value:x}")).join(" ");
            let answer = traced.ask(&format!("dlsym {} {values}", call.symbol));
            let error = answer["result"].as_i64().unwrap();
            assert_ne!(error, 0, "{file}: {} cannot succeed without a GPU", call.symbol);
            wanted.extend(expected(call, index, error));
        }
        let (events, report) = traced.finish();
        let events: Vec<Value> = events.iter().map(seen).collect();
        assert_eq!(events, wanted, "{file} on {}", driver.display());
        for failure in report["processes"][0]["failures"].as_array().unwrap() {
            assert_eq!(failure["caller"], "real_driver", "{failure}");
        }
    }
}
