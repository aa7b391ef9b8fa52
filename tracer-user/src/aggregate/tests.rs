//! Lives of processes.

use super::*;
use crate::{
    decode::{CodeDefinition, StackDefinition, StackFrame},
    model::{
        AllocationEvent, CodeId, DeviceAddress, DriverCall, EventKind, Phase, StackId, StackRef,
        Tid,
    },
};

const PARENT: Pid = Pid(100);
const CHILD: Pid = Pid(200);

fn tracing(follow: bool) -> Aggregator {
    let mut core = Aggregator::default();
    core.set_process(PARENT, ProcessFacts { follow, whole: true, ..ProcessFacts::default() });
    core
}

fn change(core: &mut Aggregator, pid: Pid, change: ProcessChange) {
    core.apply(Record::Process { pid, time_ns: 1, change });
}

fn allocate(core: &mut Aggregator, pid: Pid, size: u64) {
    let call = DriverCall::by_symbol("cuMemAlloc_v2").unwrap();
    core.apply(Record::Memory(AllocationEvent {
        time_ns: 1,
        pid,
        tid: Tid(pid.0),
        kind: EventKind::Driver { call, phase: Phase::Done, aux: 0 },
        // The same in every life: it is another address space.
        address: DeviceAddress(0x7000),
        size,
        stack: StackRef::NotTaken,
        caller: None,
    }));
}

/// Pid, how it ended, and bytes held by the driver's sites, of every process.
fn lives(snapshot: &Snapshot) -> Vec<(u32, Option<&str>, u64)> {
    let held = |process: &ProcessSnapshot| process.sites.iter().map(|site| site.live_bytes).sum();
    snapshot.processes.iter().map(|p| (p.pid.0, p.exit.as_deref(), held(p))).collect()
}

#[test]
fn a_pid_that_is_used_again_is_another_process() {
    let mut core = tracing(true);
    allocate(&mut core, PARENT, 7);
    for (size, status) in [(1, 3 << 8), (2, 9)] {
        change(&mut core, PARENT, ProcessChange::Fork { child: CHILD });
        allocate(&mut core, CHILD, size);
        change(&mut core, CHILD, ProcessChange::Exit { status });
        // Nobody's.
        allocate(&mut core, CHILD, 1000);
    }
    change(&mut core, PARENT, ProcessChange::Fork { child: CHILD });
    let snapshot = core.snapshot(&Moment::default());
    assert_eq!(
        lives(&snapshot),
        [(100, None, 7), (200, Some("exit 3"), 1), (200, Some("signal 9"), 2), (200, None, 0)]
    );
    assert!(snapshot.processes[1..].iter().all(|process| process.parent == Some(PARENT)));
    assert_eq!(snapshot.processes[3].state, ProcessState::Running);
}

#[test]
fn any_number_of_children_needs_the_same_memory() {
    let mut core = tracing(true);
    for number in 0..1000 {
        change(&mut core, PARENT, ProcessChange::Fork { child: CHILD });
        if number % 2 == 0 {
            allocate(&mut core, CHILD, number);
        }
        change(&mut core, CHILD, ProcessChange::Exit { status: 0 });
    }
    let snapshot = core.snapshot(&Moment::default());
    let held: Vec<u64> = lives(&snapshot)[1..].iter().map(|(.., bytes)| *bytes).collect();
    assert_eq!(held, (872..1000).step_by(2).collect::<Vec<u64>>());
    let finished = snapshot.finished;
    let unlisted = (0..872).step_by(2);
    assert_eq!((finished.children, finished.unlisted), (1000, 936));
    assert_eq!(finished.unlisted_total_blocks, unlisted.clone().count() as u64);
    assert_eq!(finished.unlisted_total_bytes, unlisted.clone().sum::<u64>());
    assert_eq!(finished.unlisted_held_bytes, unlisted.sum::<u64>());
}

#[test]
fn a_replaced_program_is_a_further_life_only_if_it_is_followed() {
    for follow in [false, true] {
        let mut core = tracing(follow);
        allocate(&mut core, PARENT, 7);
        change(&mut core, PARENT, ProcessChange::Exec);
        allocate(&mut core, PARENT, 8);
        let snapshot = core.snapshot(&Moment::default());
        let expected = [(100, None, 7), (100, None, 8)];
        assert_eq!(lives(&snapshot), expected[..1 + usize::from(follow)]);
        assert_eq!(snapshot.processes[0].state, ProcessState::Replaced);
        assert_eq!(core.is_running(PARENT), follow);
    }
}

/// The record of an end can be dropped; the next life of the pid tells.
#[test]
fn a_fork_ends_who_had_the_pid() {
    let mut core = tracing(true);
    for size in [1, 2] {
        change(&mut core, PARENT, ProcessChange::Fork { child: CHILD });
        allocate(&mut core, CHILD, size);
    }
    let snapshot = core.snapshot(&Moment::default());
    assert_eq!(lives(&snapshot), [(100, None, 0), (200, None, 1), (200, None, 2)]);
    assert_eq!(snapshot.processes[1].state, ProcessState::Exited);
}

/// A call of the driver from the cell with this number.
fn call(core: &mut Aggregator, number: u64, symbol: &str, phase: Phase) {
    core.apply(Record::Memory(AllocationEvent {
        time_ns: number,
        pid: PARENT,
        tid: Tid(PARENT.0),
        kind: EventKind::Driver { call: DriverCall::by_symbol(symbol).unwrap(), phase, aux: 0 },
        address: DeviceAddress(0x10000 * number),
        size: number,
        stack: StackRef::Id(StackId(number)),
        caller: None,
    }));
}

/// A kernel runs ever new cells. Most free what they allocate; every thousandth keeps it.
#[test]
fn a_long_life_is_remembered_by_what_it_holds() {
    let mut core = tracing(false);
    core.naming.set_python_minor(PARENT, 11);
    let (mut largest, count) = (0, 60_000);
    for number in 1..=count {
        core.apply(Record::Code(CodeDefinition {
            pid: PARENT,
            code: CodeId(number),
            name: Some("<module>".to_owned()),
            qualified_name: None,
            filename: Some(format!("<ipython-input-{number}-0123456789ab>")),
            first_line: 1,
            line_table_size: 0,
        }));
        core.apply(Record::Stack(StackDefinition {
            pid: PARENT,
            stack: StackId(number),
            truncated: false,
            faulted: false,
            backward: false,
            outer: None,
            frames: vec![StackFrame { code: Some(CodeId(number)), instruction: 0 }],
        }));
        call(&mut core, number, "cuMemAlloc_v2", Phase::Done);
        if number % 1000 != 0 {
            call(&mut core, number, "cuMemFree_v2", Phase::Begun);
            call(&mut core, number, "cuMemFree_v2", Phase::Done);
        }
        core.apply(Record::CodeFreed(PARENT, CodeId(number)));
        if number % 100 == 0 {
            core.tidy();
            largest = largest.max(core.naming.size());
        }
    }
    assert!(largest < 60_000, "of 120,000 stacks and runs: {largest}");
    let snapshot = core.snapshot(&Moment::default());
    let sites = &snapshot.processes[0].sites;
    let total: u64 = sites.iter().map(|site| site.total_blocks).sum();
    assert_eq!(total, count, "what was forgotten is still counted");
    for number in (1000..=count).step_by(1000) {
        let kept = sites.iter().find(|site| site.live_bytes == number).unwrap();
        assert_eq!(kept.frames[0].cell, Some(number as u32));
    }
    let others = sites.iter().filter(|site| site.frames.is_empty());
    let notes: Vec<&str> = others.filter_map(|site| site.frames_note.as_deref()).collect();
    assert_eq!(notes.len(), 1, "{notes:?}");
}
