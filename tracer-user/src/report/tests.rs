//! Every format against its golden file. `INSTA_UPDATE=always cargo test` blesses.

use proptest::prelude::*;

use super::*;
use crate::model::{
    AllocatedReserved, Cell, Coverage, Device, DeviceSnapshot, Execution, Failure, Finished, Frame,
    FrameKind, GpuUse, HostSnapshot, Judgement, Layer, Level, Pid, ProcessSnapshot, ProcessState,
    SCHEMA, Site, Snapshot, Tracer, UnlistedCells,
};

pub(super) fn frame(function: &str, file: &str, line: u32) -> Frame {
    Frame {
        kind: FrameKind::Python,
        function: function.rsplit('.').next().unwrap_or(function).to_owned(),
        qualified_name: Some(function.to_owned()),
        file: file.to_owned(),
        line: Some(line),
        cell: None,
        cell_line: None,
        cell_seen: None,
        source: None,
        cell_result: false,
        folded: false,
    }
}

fn site(id: &str, level: Level, device: Option<u8>, bytes: u64, frames: Vec<Frame>) -> Site {
    Site {
        id: id.to_owned(),
        level,
        device: device.map(Device),
        caller: (level == Level::Driver).then(|| "libcublas.so.13".to_owned()),
        caller_functions: Vec::new(),
        live_bytes: bytes,
        live_blocks: bytes / 1000,
        total_bytes: bytes.saturating_mul(2),
        total_blocks: bytes / 500,
        requested_bytes: Some(bytes),
        pooled_bytes: if level == Level::Driver && device.is_some() { bytes } else { 0 },
        peak_bytes: bytes,
        first_seen_s: 0.5,
        last_seen_s: 9.5,
        judgement: Judgement::default(),
        frames,
        frames_note: None,
        backward_pass: false,
    }
}

fn device() -> DeviceSnapshot {
    DeviceSnapshot {
        index: Some(Device(0)),
        driver_bytes: 1_610_612_736,
        reserved_bytes: Some(1_610_612_736),
        reserved_is_upper_bound: false,
        untraced_reserved_bytes: 0,
        allocated_bytes: Some(1_288_490_188),
        cached_bytes: Some(322_122_548),
        releasable_bytes: Some(209_715_200),
        peak_allocated_bytes: Some(1_400_000_000),
        before_attach: Some(AllocatedReserved::default()),
        lost_bytes: 0,
        allocator_reported: Some(AllocatedReserved {
            allocated_bytes: 1_288_490_188,
            reserved_bytes: 1_610_612_736,
        }),
    }
}

fn process() -> ProcessSnapshot {
    let cell = |function: &str, line| frame(function, "/tmp/ipykernel_4242/3409123.py", line);
    let torch = "/env/lib/python3.11/site-packages/torch/nn/modules";
    let shell = frame(
        "InteractiveShell.run_code",
        "/env/lib/python3.11/site-packages/IPython/core/interactiveshell.py",
        3823,
    );
    ProcessSnapshot {
        pid: Pid(4242),
        parent: None,
        start_time: Some("2026-12-01T03:50:06Z".to_owned()),
        command: "/env/bin/python -m ipykernel_launcher -f kernel.json".to_owned(),
        python: Some("3.11.7".to_owned()),
        python_note: None,
        notebook: None,
        kernel_id: None,
        container: None,
        user: Some("ada".to_owned()),
        state: ProcessState::Running,
        exit: None,
        devices: vec![device()],
        pools: Vec::new(),
        gpus: Vec::new(),
        counted_at: vec![Layer::Driver],
        residual_bytes: None,
        host: HostSnapshot::default(),
        sites: vec![
            site(
                "01",
                Level::Pytorch,
                Some(0),
                1_200_000_000,
                vec![
                    frame("Linear.forward", &format!("{torch}/linear.py"), 125),
                    frame("Module._call_impl", &format!("{torch}/module.py"), 1750),
                    cell("train_step", 3),
                    cell("<module>", 9),
                    shell.clone(),
                ],
            ),
            site(
                "02",
                Level::Pytorch,
                Some(0),
                80_000_000,
                vec![cell("train_step", 3), cell("<module>", 9), shell.clone()],
            ),
            site(
                "03",
                Level::Pytorch,
                Some(0),
                8_490_188,
                vec![cell("<module>", 2), shell.clone()],
            ),
            site(
                "04",
                Level::Driver,
                Some(0),
                1_610_612_736,
                vec![cell("train_step", 3), cell("<module>", 9), shell],
            ),
        ],
        cells: Vec::new(),
        cells_unlisted: UnlistedCells::default(),
        failures: Vec::new(),
    }
}

fn snapshot(processes: Vec<ProcessSnapshot>) -> Snapshot {
    Snapshot {
        schema: SCHEMA,
        generated_at: "2026-12-01T04:00:00Z".to_owned(),
        duration_s: 10.0,
        tracer: Tracer {
            version: "0.0.0".to_owned(),
            events: 1_234_567,
            dropped: 0,
            dropped_at_end: 0,
            exact: true,
            truncated_stacks: 0,
            unmatched_frees: 0,
            mismatches: 0,
            untraced_children: 0,
            coverage: vec![Coverage {
                library: "/env/lib/libcuda.so.1".to_owned(),
                symbol: "cuMemAlloc_v2".to_owned(),
                attached: true,
                note: Some("`push` at the entry is emulated".to_owned()),
            }],
        },
        processes,
        finished: Finished::default(),
    }
}

/// A trace in which everything went wrong, of a process with hostile names.
fn troubled() -> Snapshot {
    let mut process = process();
    process.command = "python \u{1b}[2J<script>alert(1)</script>\u{202e}evil".to_owned();
    process.state = ProcessState::Exited;
    process.exit = Some("signal 9".to_owned());
    process.container = Some("0123456789abcdef".repeat(4));
    process.devices[0].before_attach =
        Some(AllocatedReserved { allocated_bytes: 12 << 20, reserved_bytes: 20 << 20 });
    process.devices[0].lost_bytes = -(5 << 20);
    process.devices[0].reserved_is_upper_bound = true;
    process.devices[0].untraced_reserved_bytes = 40 << 20;
    process.devices[0].releasable_bytes = None;
    process.devices.push(DeviceSnapshot {
        index: None,
        driver_bytes: 7 << 20,
        ..process.devices[0]
    });
    let hostile = "a;b <script>\n\u{1b}]0;owned\u{7} 77";
    process.sites.push(site(
        "05",
        Level::Pytorch,
        Some(0),
        u64::MAX / 4,
        vec![
            frame(hostile, "/home/\u{202e}ada/<b>.py", 7),
            frame("<module>", "/home/ada/\"quoted\" & 'more'.py", 1),
        ],
    ));
    process.sites.push(site("08", Level::Pytorch, Some(0), u64::MAX, vec![frame("f", "/y.py", 1)]));
    process.sites.push(site("09", Level::Pytorch, Some(0), u64::MAX, vec![frame("f", "/y.py", 1)]));
    let mut native = site("06", Level::Pytorch, Some(0), 4096, Vec::new());
    native.frames_note = Some("native thread, no Python frame".to_owned());
    process.sites.push(native);
    let mut pass = site("10", Level::Pytorch, Some(0), 8192, vec![frame("f", "/y.py", 1)]);
    pass.backward_pass = true;
    process.sites.push(pass);
    process.sites.push(site(
        "07",
        Level::Driver,
        None,
        7 << 20,
        vec![frame("run", "/home/ada/x.py", 1)],
    ));
    let failure = Failure {
        time_s: 3.25,
        call: "cuMemAlloc_v2".to_owned(),
        bytes: 21_474_836_480,
        error: "CUDA_ERROR_OUT_OF_MEMORY".to_owned(),
        user_visible: Some(true),
        caller: Some("libc10_cuda.so".to_owned()),
        caller_function: Some("allocate\u{202e}\u{1b}[31m".to_owned()),
        site: Some("01".to_owned()),
        frames: vec![frame("train_step", "/tmp/ipykernel_4242/3409123.py", 3)],
        frames_note: None,
        backward_pass: false,
    };
    process.failures.extend([failure.clone(), failure.clone()]);
    let retried = Failure { bytes: 2 << 20, user_visible: Some(false), ..failure };
    process.failures.push(retried);
    let mut snapshot = snapshot(vec![process]);
    snapshot.tracer.exact = false;
    snapshot.tracer.dropped = 1_000;
    snapshot.tracer.dropped_at_end = 400;
    snapshot.tracer.unmatched_frees = 2;
    snapshot.tracer.mismatches = 3;
    snapshot.tracer.truncated_stacks = 4;
    snapshot.tracer.coverage.push(Coverage {
        library: "/x/\u{1b}[31mlibc10.so".to_owned(),
        symbol: "report".to_owned(),
        attached: false,
        note: Some("the library does not export it".to_owned()),
    });
    snapshot
}

fn render(
    write: impl Fn(&Snapshot, &Options, &mut Vec<u8>) -> std::io::Result<()>,
    snapshot: &Snapshot,
) -> String {
    let mut out = Vec::new();
    write(snapshot, &Options::default(), &mut out).unwrap();
    String::from_utf8(out).unwrap()
}

#[test]
fn text() {
    insta::assert_snapshot!("text", render(write_text, &snapshot(vec![process()])));
    insta::assert_snapshot!("text_troubled", render(write_text, &troubled()));
    insta::assert_snapshot!(
        "text_nothing",
        render(
            write_text,
            &snapshot(vec![ProcessSnapshot {
                devices: Vec::new(),
                sites: Vec::new(),
                ..process()
            }])
        )
    );
    let mut host = process();
    host.gpus.push(GpuUse {
        index: 3,
        uuid: Some("GPU-0".to_owned()),
        name: Some("H\u{1b}[2J200".to_owned()),
        used_bytes: Some(2 << 30),
    });
    host.residual_bytes = Some(537 << 20);
    let line = || vec![frame("load", "/home/ada/data.py", 12)];
    host.sites.push(site("10", Level::Pinned, None, 64 << 20, line()));
    host.sites.push(site("11", Level::Cpu, None, 3 << 20, line()));
    insta::assert_snapshot!("text_host", render(write_text, &snapshot(vec![host])));
    let runtime = ProcessSnapshot { counted_at: vec![Layer::Runtime], ..process() };
    let both = ProcessSnapshot { counted_at: vec![Layer::Driver, Layer::Runtime], ..process() };
    insta::assert_snapshot!("text_runtime", render(write_text, &snapshot(vec![runtime, both])));
    insta::assert_snapshot!("text_no_process", render(write_text, &snapshot(Vec::new())));
}

#[test]
fn text_fits_80_columns_as_far_as_names_allow() {
    for line in render(write_text, &snapshot(vec![process()])).lines() {
        assert!(line.chars().count() <= 80, "{line}");
    }
    let mut process = process();
    let name = "x".repeat(100_000);
    process.command = name.clone();
    process.sites =
        vec![site("01", Level::Pytorch, Some(0), 5, vec![frame(&name, &format!("/{name}"), 7)])];
    let text = render(write_text, &snapshot(vec![process]));
    assert!(text.lines().all(|line| line.chars().count() < 300), "no name floods the terminal");
    assert!(text.contains("x:7"), "the line is kept: {text}");
}

#[test]
fn empty_states_are_said_in_words() {
    let none = ProcessSnapshot { devices: Vec::new(), sites: Vec::new(), ..process() };
    let ended = ProcessSnapshot { state: ProcessState::Exited, ..none.clone() };
    let freed = ProcessSnapshot { sites: Vec::new(), ..process() };
    for (process, words) in [
        (none, "no GPU allocation seen yet; it shows here once there is one"),
        (ended, "no GPU allocation seen\n"),
        (freed, "nothing that was allocated since attach is still held"),
    ] {
        let text = render(write_text, &snapshot(vec![process]));
        assert!(text.contains(words), "{text}");
    }
}

/// A drop is said at the top, over the numbers, and at the end.
#[test]
fn what_is_incomplete_cannot_be_missed() {
    let text = render(write_text, &troubled());
    let lines: Vec<&str> = text.lines().filter(|line| line.contains("INCOMPLETE")).collect();
    assert_eq!(lines.len(), 3, "{text}");
    assert!(!text.contains("exact"), "{text}");
    let mut gap = snapshot(vec![process()]);
    gap.tracer.coverage = troubled().tracer.coverage;
    assert!(render(write_text, &gap).contains("exact as far as traced (see below):"));
}

#[test]
fn json() {
    insta::assert_snapshot!("json", render(write_json, &snapshot(vec![process()])));
    let text = render(write_json, &troubled());
    let value: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(value["processes"][0]["sites"][4]["live_bytes"], u64::MAX / 4);
}

#[test]
fn folded_stacks() {
    insta::assert_snapshot!("folded", render(write_folded, &snapshot(vec![process()])));
    insta::assert_snapshot!("folded_troubled", render(write_folded, &troubled()));
}

/// Title, colour and text of each frame: all of a flamegraph that is ours.
fn frames_of(svg: &str) -> String {
    let between = |text: &str, start: &str, end: &str| {
        let rest = text.split_once(start)?.1;
        Some(rest.split_once(end)?.0.to_owned())
    };
    let frames = svg.split("<g>").skip(1).filter_map(|group| {
        let title = between(group, "<title>", "</title>")?;
        Some(format!("{} {title}", between(group, "fill=\"", "\"")?))
    });
    frames.collect::<Vec<_>>().join("\n")
}

#[test]
fn flamegraph() {
    let svg = render(write_flamegraph, &snapshot(vec![process()]));
    insta::assert_snapshot!("flamegraph", frames_of(&svg));
    assert!(svg.contains("1.2 GiB live (exact)"));
    let troubled = render(write_flamegraph, &troubled());
    insta::assert_snapshot!("flamegraph_troubled", frames_of(&troubled));
    assert!(troubled.contains("NOT TO SCALE"), "sizes that were made up are not shown as true");
    insta::assert_snapshot!("flamegraph_empty", render(write_flamegraph, &snapshot(Vec::new())));
}

#[test]
fn flamegraphs_are_harmless_xml() {
    for snapshot in [snapshot(vec![process()]), troubled(), snapshot(Vec::new())] {
        let svg = render(write_flamegraph, &snapshot);
        assert!(svg.starts_with("<?xml"), "{svg}");
        assert!(!svg.contains("<script>alert"), "hostile names stay text");
        assert!(!svg.contains('\u{1b}') && !svg.contains('\u{202e}'));
    }
}

#[test]
fn small_sites_are_left_out_where_asked_and_totals_stay() {
    let options = Options { top: Some(1), min_bytes: 1 << 20, full_stacks: false };
    let mut out = Vec::new();
    write_json(&snapshot(vec![process()]), &options, &mut out).unwrap();
    let value: serde_json::Value = serde_json::from_slice(&out).unwrap();
    assert_eq!(value["processes"][0]["sites"].as_array().unwrap().len(), 1);
    assert_eq!(value["processes"][0]["devices"][0]["allocated_bytes"], 1_288_490_188u64);
    let mut out = Vec::new();
    write_text(&snapshot(vec![process()]), &options, &mut out).unwrap();
    assert!(String::from_utf8(out).unwrap().contains("in 1 more line ("));
    let mut out = Vec::new();
    write_folded(&snapshot(vec![process()]), &options, &mut out).unwrap();
    let folded = String::from_utf8(out).unwrap();
    let sum: u64 =
        folded.lines().map(|l| l.rsplit(' ').next().unwrap().parse::<u64>().unwrap()).sum();
    assert_eq!((folded.lines().count(), sum), (2, 1_288_490_188), "{folded}");
}

#[test]
fn files_of_the_same_name_are_told_apart() {
    let mut process = process();
    let at = |file: &str| vec![frame("build", file, 3)];
    process.sites = ["/a/x/model.py", "/a/y/model.py", "/b/x/model.py", "train.py", "model.py"]
        .iter()
        .enumerate()
        .map(|(i, file)| site(&i.to_string(), Level::Pytorch, Some(0), 7, at(file)))
        .collect();
    process.devices.clear();
    let folded = render(write_folded, &snapshot(vec![process]));
    let names: Vec<&str> = folded.lines().filter_map(|l| l.split(['(', ')']).nth(1)).collect();
    assert_eq!(
        names,
        ["/a/x/model.py:3", "/b/x/model.py:3", "model.py:3", "train.py:3", "y/model.py:3"]
            .map(|name| name.strip_prefix('/').unwrap_or(name))
    );
}

/// Sites of one line and file are one line of the table, with the functions of all of them.
#[test]
fn functions_that_called_are_named() {
    let mut process = process();
    process.sites = (1..=5_u64)
        .map(|n| Site {
            caller_functions: vec![format!("f{n}"), "\u{1b}[31m\u{202e}".to_owned()],
            pooled_bytes: 0,
            ..site(
                &n.to_string(),
                Level::Driver,
                Some(0),
                n << 20,
                vec![frame("f", "/u/a.py", n as u32)],
            )
        })
        .collect();
    let mut same = process.sites[4].clone();
    same.id = "6".to_owned();
    same.caller_functions = vec!["g".to_owned()];
    process.sites.push(same);
    let text = render(write_text, &snapshot(vec![process]));
    let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(words.contains("by libcublas.so.13: \\u{1b}[31m\\u{202e}, f5, g "), "{words}");
    assert!(!text.contains('\u{1b}') && !text.contains('\u{202e}'));
}

#[test]
fn every_caller_of_a_line_counts() {
    let mut process = process();
    let called = |line| vec![frame("new", "/u/lib.py", 9), frame("main", "/u/main.py", line)];
    process.sites = (1..=5)
        .map(|n| site(&n.to_string(), Level::Pytorch, Some(0), u64::from(n) << 20, called(n)))
        .collect();
    let text = render(write_text, &snapshot(vec![process]));
    for part in [
        "from main (main.py:5) 5.0 MiB",
        "from main (main.py:3) 3.0 MiB",
        "from 2 other callers 3.0 MiB",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
}

/// A notebook: a function of one cell called in another, the body of a cell magic, code given to `exec`,
/// and a cell whose number is not known.
#[test]
fn notebook_cells() {
    let cell = |frame: Frame, number: Option<u32>, line: u32, source: &str| Frame {
        cell: number,
        cell_seen: number.is_none().then_some(2),
        cell_line: Some(line),
        source: Some(source.to_owned()),
        ..frame
    };
    let packages = "/home/ada/env/lib/python3.11/site-packages";
    let run_code = frame("run_code", &format!("{packages}/IPython/core/interactiveshell.py"), 3600);
    let append = cell(
        frame("train", "/tmp/ipykernel_4242/31.py", 4),
        Some(3),
        4,
        "losses.append(loss(model(x), y) * some_very_long_weight_that_fills_the_line_to_its_end)",
    );
    let top =
        |line| cell(frame("<module>", "/tmp/ipykernel_4242/32.py", 1), Some(9), line, "train()");
    let timed = cell(frame("<module>", "<timed exec>", 2), Some(10), 4, "x = model(x)");
    let magic = cell(frame("<module>", "/tmp/ipykernel_4242/33.py", 1), Some(10), 1, "%%time");
    let given = cell(frame("<module>", "<string>", 1), None, 7, "exec(\"a()\")");
    let unknown = cell(frame("<module>", "/tmp/ipykernel_4242/34.py", 7), None, 7, "exec(\"a()\")");
    let mut notebook = process();
    notebook.sites = [
        (500, vec![append.clone(), top(1), run_code.clone()]),
        (400, vec![append, top(2), run_code.clone()]),
        (300, vec![timed, magic, run_code.clone()]),
        (200, vec![given, unknown, run_code]),
    ]
    .into_iter()
    .enumerate()
    .map(|(id, (mebibytes, frames))| {
        site(&id.to_string(), Level::Pytorch, Some(0), mebibytes << 20, frames)
    })
    .collect();
    let run = |cell, left_bytes| Execution {
        cell,
        started_s: Some(2.5),
        allocated_bytes: 700 << 20,
        freed_bytes: (700 << 20) - left_bytes,
        freed_later_bytes: Some(0),
        left_bytes,
        change_bytes: Some(0),
        devices: Vec::new(),
    };
    notebook.cells = vec![
        Cell {
            cell: Some(9),
            cell_seen: None,
            file: "/tmp/ipykernel_4242/32.py".to_owned(),
            source: Some("train(\u{1b}[2J)".to_owned()),
            runs: 7,
            allocated_bytes: 3 << 30,
            freed_bytes: 1 << 30,
            freed_later_bytes: Some(1 << 20),
            left_bytes: 2 << 30,
            change_bytes: Some(-(5 << 20)),
            again_bytes: Some(300 << 20),
            executions: (3..10).map(|count| run(Some(count), 300 << 20)).collect(),
        },
        Cell {
            cell: None,
            cell_seen: Some(2),
            file: "/tmp/ipykernel_4242/34.py".to_owned(),
            source: None,
            runs: 1,
            allocated_bytes: 200 << 20,
            freed_bytes: 0,
            freed_later_bytes: None,
            left_bytes: 200 << 20,
            change_bytes: None,
            again_bytes: None,
            executions: vec![run(None, 200 << 20)],
        },
    ];
    let snapshot = snapshot(vec![notebook]);
    insta::assert_snapshot!("text_cells", render(write_text, &snapshot));
    insta::assert_snapshot!("folded_cells", render(write_folded, &snapshot));
    let mut full = Vec::new();
    let options = Options { full_stacks: true, ..Options::default() };
    write_folded(&snapshot, &options, &mut full).unwrap();
    assert!(String::from_utf8(full).unwrap().contains("run_code (interactiveshell.py:3600)"));
    let json: serde_json::Value = serde_json::from_str(&render(write_json, &snapshot)).unwrap();
    let folded = |site: usize| -> Vec<bool> {
        let frames = json["processes"][0]["sites"][site]["frames"].as_array().unwrap();
        frames.iter().map(|frame| frame["folded"].as_bool().unwrap()).collect()
    };
    assert_eq!(folded(0), [false, false, true]);
    assert_eq!(folded(3), [true, false, true]);
}

#[test]
fn cells_by_number_and_by_older_names() {
    let names = label::FileNames::default();
    let mut known = frame("train_step", "/tmp/ipykernel_1/2.py", 3);
    known.cell = Some(7);
    assert_eq!(names.frame(&known), "train_step (In[7]:3)");
    assert_eq!(names.frame(&frame("f", "<ipython-input-4-0123456789ab>", 3)), "f (In[4]:3)");
    assert_eq!(names.frame(&frame("<cell line: 1>", "/tmp/ipykernel_1/2.py", 3)), "cell 2:3");
    // The number of the cell says that it is one, whatever its file is called.
    let host = Frame { file: "/site-packages/x".to_owned(), ..known };
    assert!(crate::model::is_user(&host));
}

proptest! {
    /// Whatever the names are, a folded line is one line, nothing has characters that a terminal
    /// obeys or XML refuses, and JSON gives the name back.
    #[test]
    fn no_name_breaks_out(name in any::<String>(), file in any::<String>()) {
        let mut process = process();
        process.sites = vec![site("01", Level::Pytorch, Some(0), 5, vec![frame(&name, &file, 1)])];
        process.command = name.clone();
        let snapshot = snapshot(vec![process]);
        let folded = render(write_folded, &snapshot);
        prop_assert_eq!(folded.lines().count(), 1);
        prop_assert_eq!(folded.matches(';').count(), 2);
        prop_assert!(folded.ends_with(" 5\n"));
        let json = render(write_json, &snapshot);
        let value: serde_json::Value = serde_json::from_str(&json).unwrap();
        let frame = &value["processes"][0]["sites"][0]["frames"][0];
        prop_assert_eq!(frame["qualified_name"].as_str(), Some(name.as_str()));
        prop_assert_eq!(frame["file"].as_str(), Some(file.as_str()));
        let svg = render(write_flamegraph, &snapshot);
        for text in [folded, json, svg, render(write_text, &snapshot)] {
            let bad = text.chars().find(|&c| !matches!(c, '\n' | '\t') && sanitize::is_dangerous(c));
            prop_assert_eq!(bad, None);
        }
    }

    /// The characters that random strings hardly ever have.
    #[test]
    fn no_dangerous_character_breaks_out(name in "[\u{0}-\u{1f}\u{7f}-\u{9f}\u{200b}-\u{206f}\u{fffe}\u{ffff}\u{e0001};<>&\"' ()0-9]{1,20}") {
        let mut process = process();
        process.sites = vec![site("01", Level::Pytorch, Some(0), 5, vec![frame(&name, &name, 1)])];
        let snapshot = snapshot(vec![process]);
        let svg = render(write_flamegraph, &snapshot);
        prop_assert!(svg.contains("(5 bytes, 5 B, 100.00%)</title>"), "{}", frames_of(&svg));
        for text in [svg, render(write_json, &snapshot), render(write_text, &snapshot)] {
            let bad = text.chars().find(|&c| !matches!(c, '\n' | '\t') && sanitize::is_dangerous(c));
            prop_assert_eq!(bad, None);
        }
    }
}
