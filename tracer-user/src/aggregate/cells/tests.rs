//! Notebooks at random, against a model that knows whose every block is.

use std::collections::BTreeMap;

use proptest::prelude::*;

use crate::{
    aggregate::{Aggregator, Moment, ProcessFacts},
    decode::{
        CellStart, CodeDefinition, LinesPiece, ProcessChange, Record, StackDefinition, StackFrame,
    },
    model::{
        AllocationEvent, AllocatorTotals, Cell, CodeId, Device, DeviceAddress, DriverCall,
        EventKind, Execution, Phase, Pid, PoolFacts, PoolId, ProcessSnapshot, StackId, StackRef,
        Tid,
    },
};

const KERNEL: Pid = Pid(100);
const TEXTS: usize = 4;

/// What happens in a notebook.
#[derive(Clone, Debug)]
enum Step {
    /// A cell begins to run.
    Run {
        text: usize,
    },
    /// It comes to its next statement.
    Statement,
    /// A thread of an earlier run, or the run itself if `back` is 0, allocates.
    Alloc {
        back: usize,
        line: u32,
        device: u8,
        size: u64,
        where_: Where,
    },
    Free {
        which: prop::sample::Index,
    },
    Tidy,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Where {
    /// A block of a pool, in a new segment.
    Pool,
    /// The driver's memory, and no pool's.
    Driver,
    /// Page-locked memory of the host.
    Pinned,
}

fn step() -> impl Strategy<Value = Step> {
    let place =
        prop_oneof![4 => Just(Where::Pool), 1 => Just(Where::Driver), 1 => Just(Where::Pinned)];
    let alloc = (0..4usize, 1..4u32, 0..2u8, 1..1_000_000u64, place);
    prop_oneof![
        3 => (0..TEXTS).prop_map(|text| Step::Run { text }),
        2 => Just(Step::Statement),
        6 => alloc.prop_map(|(back, line, device, size, where_)| Step::Alloc { back, line, device, size, where_ }),
        5 => any::<prop::sample::Index>().prop_map(|which| Step::Free { which }),
        1 => Just(Step::Tidy),
    ]
}

#[derive(Clone, Debug, Default)]
struct Run {
    text: usize,
    file: String,
    began_ns: u64,
    allocated: u64,
    freed: u64,
    freed_later: u64,
    change: BTreeMap<u8, i64>,
    /// Pieces so far.
    pieces: u32,
}

struct Block {
    address: u64,
    size: u64,
    device: u8,
    where_: Where,
    run: usize,
}

/// A kernel, what is true of it, and the tracer that hears of it.
struct Notebook {
    core: Aggregator,
    runs: Vec<Run>,
    blocks: Vec<Block>,
    /// What pools hold.
    totals: [u64; 2],
    time: u64,
    last_id: u64,
    /// Code of the pieces of the last run.
    pieces: Vec<CodeId>,
    /// Whether cells have names by text, and no number, or numbers.
    is_named: bool,
}

impl Notebook {
    /// A kernel that holds something when the tracer comes.
    fn new(held: [u64; 2], is_named: bool) -> Self {
        let mut core = Aggregator::default();
        let facts = ProcessFacts { python_minor: Some(10), ..ProcessFacts::default() };
        core.set_process(KERNEL, facts);
        let (runs, blocks, pieces) = (Vec::new(), Vec::new(), Vec::new());
        Self { core, runs, blocks, totals: held, time: 0, last_id: 0, pieces, is_named }
    }

    fn id(&mut self) -> u64 {
        self.last_id += 1;
        self.last_id
    }

    fn code(&mut self, name: &str, file: &str, line: u32) -> CodeId {
        let code = CodeId(self.id());
        self.core.apply(Record::Code(CodeDefinition {
            pid: KERNEL,
            code,
            name: Some(name.to_owned()),
            qualified_name: None,
            filename: Some(file.to_owned()),
            first_line: line as i32,
            line_table_size: 2,
        }));
        let bytes = vec![200, 0];
        self.core.apply(Record::Lines(LinesPiece { pid: KERNEL, code, offset: 0, bytes }));
        code
    }

    fn piece(&mut self, file: &str, line: u32) {
        let code = self.code("<module>", file, line);
        self.pieces.push(code);
        self.time += 1;
        let (time_ns, tid) = (self.time, Tid(KERNEL.0));
        self.core.apply(Record::Cell(CellStart { pid: KERNEL, tid, time_ns, code: Some(code) }));
    }

    fn run(&mut self, text: usize) {
        for code in std::mem::take(&mut self.pieces) {
            self.core.apply(Record::CodeFreed(KERNEL, code));
        }
        let count = self.runs.len() + 1;
        // The digest is that of the text.
        let file = match self.is_named {
            true => format!("<command-{text}>"),
            false => format!("<ipython-input-{count}-0000000{text:05}>"),
        };
        self.piece(&file, 1);
        self.runs.push(Run { text, file, began_ns: self.time, pieces: 1, ..Run::default() });
    }

    fn statement(&mut self) {
        if let Some(run) = self.runs.last_mut() {
            run.pieces += 1;
            let (file, line) = (run.file.clone(), run.pieces);
            self.piece(&file, line);
        }
    }

    /// A stack whose outermost frame in a cell is of this run.
    fn stack(&mut self, run: usize, line: u32) -> StackRef {
        let is_last = run + 1 == self.runs.len();
        let file = self.runs[run].file.clone();
        let outermost = match self.pieces.last() {
            Some(&piece) if is_last => piece,
            _ => self.code("work", &file, 1),
        };
        // It may call what another cell has defined.
        let other = self.runs[run / 2].file.clone();
        let codes = [self.code("train", &other, line), outermost];
        let frames = codes.map(|code| StackFrame { code: Some(code), instruction: 0 }).into();
        let stack = StackId(self.id());
        self.core.apply(Record::Stack(StackDefinition {
            pid: KERNEL,
            stack,
            truncated: false,
            faulted: false,
            backward: false,
            outer: None,
            frames,
        }));
        self.core.apply(Record::CodeFreed(KERNEL, codes[0]));
        if Some(&outermost) != self.pieces.last() {
            self.core.apply(Record::CodeFreed(KERNEL, outermost));
        }
        StackRef::Id(stack)
    }

    fn event(&mut self, kind: EventKind, address: u64, size: u64, stack: StackRef) {
        self.time += 1;
        let (time_ns, tid) = (self.time, Tid(KERNEL.0));
        self.core.apply(Record::Memory(AllocationEvent {
            time_ns,
            pid: KERNEL,
            tid,
            kind,
            address: DeviceAddress(address),
            size,
            stack,
            caller: None,
        }));
    }

    fn call(&mut self, symbol: &str, phase: Phase, address: u64, size: u64, stack: StackRef) {
        let call = DriverCall::by_symbol(symbol).unwrap();
        self.event(EventKind::Driver { call, phase, aux: 0 }, address, size, stack);
    }

    fn facts(&self, device: u8) -> PoolFacts {
        let allocated = self.totals[usize::from(device)];
        PoolFacts {
            pool: PoolId::pytorch(Device(device)),
            totals: Some(AllocatorTotals { allocated, reserved: allocated }),
            requested: None,
        }
    }

    fn change(&mut self, device: u8, bytes: i64) {
        let total = &mut self.totals[usize::from(device)];
        *total = total.checked_add_signed(bytes).unwrap();
        if let Some(run) = self.runs.last_mut() {
            *run.change.entry(device).or_default() += bytes;
        }
    }

    fn alloc(&mut self, back: usize, line: u32, device: u8, size: u64, where_: Where) {
        let Some(mut run) = self.runs.len().checked_sub(1 + back) else { return };
        if self.is_named {
            // Functions that were not seen before are taken for the last run's of their cell.
            let text = self.runs[run].text;
            run = self.runs.iter().rposition(|run| run.text == text).unwrap();
        }
        let stack = self.stack(run, line);
        let address = self.id() << 24;
        match where_ {
            Where::Pool => {
                self.call("cuMemAlloc_v2", Phase::Done, address, size, stack);
                self.change(device, size as i64);
                self.event(EventKind::PoolAlloc(self.facts(device)), address, size, stack);
            }
            Where::Driver => self.call("cuMemAlloc_v2", Phase::Done, address, size, stack),
            Where::Pinned => self.call("cuMemHostAlloc", Phase::Done, address, size, stack),
        }
        if where_ != Where::Pinned {
            self.runs[run].allocated += size;
        }
        self.blocks.push(Block { address, size, device, where_, run });
    }

    fn free(&mut self, which: usize) {
        let Block { address, size, device, where_, run } = self.blocks.swap_remove(which);
        match where_ {
            Where::Pool => {
                self.change(device, -(size as i64));
                let facts = self.facts(device);
                self.event(EventKind::PoolFree(facts), address, size, StackRef::NotTaken);
                // The pool gives its segment back at once.
                self.call("cuMemFree_v2", Phase::Begun, address, 0, StackRef::NotTaken);
            }
            Where::Driver => {
                self.call("cuMemFree_v2", Phase::Begun, address, 0, StackRef::NotTaken)
            }
            Where::Pinned => {
                self.call("cuMemFreeHost", Phase::Begun, address, 0, StackRef::NotTaken)
            }
        }
        if where_ != Where::Pinned {
            let is_last = run + 1 == self.runs.len();
            let run = &mut self.runs[run];
            run.freed += size;
            run.freed_later += if is_last { 0 } else { size };
        }
    }

    fn take(&mut self, step: &Step) {
        match *step {
            Step::Run { text } => self.run(text),
            Step::Statement => self.statement(),
            Step::Alloc { back, line, device, size, where_ } => {
                self.alloc(back, line, device, size, where_);
            }
            Step::Free { which } if !self.blocks.is_empty() => {
                self.free(which.index(self.blocks.len()));
            }
            Step::Free { .. } => {}
            Step::Tidy => self.core.tidy(),
        }
    }

    fn snapshot(&self) -> ProcessSnapshot {
        self.core.snapshot(&Moment::default()).processes.remove(0)
    }

    /// What a run has to be listed as.
    fn expected(&self, run: usize) -> Execution {
        let cell = (!self.is_named).then_some(run as u32 + 1);
        let run = &self.runs[run];
        let devices: Vec<(Device, i64)> = run
            .change
            .iter()
            .filter(|(_, bytes)| **bytes != 0)
            .map(|(&device, &bytes)| (Device(device), bytes))
            .collect();
        Execution {
            cell,
            started_s: Some(run.began_ns as f64 / 1e9),
            allocated_bytes: run.allocated,
            freed_bytes: run.freed,
            freed_later_bytes: Some(run.freed_later),
            left_bytes: run.allocated - run.freed,
            change_bytes: Some(devices.iter().map(|(_, bytes)| bytes).sum()),
            devices: devices
                .into_iter()
                .map(|(index, bytes)| crate::model::DeviceChange {
                    index,
                    change_bytes: Some(bytes),
                })
                .collect(),
        }
    }
}

/// Which run it is: no two begin at once.
fn run_of(notebook: &Notebook, execution: &Execution) -> usize {
    let began_ns = (execution.started_s.unwrap() * 1e9).round() as u64;
    notebook.runs.binary_search_by_key(&began_ns, |run| run.began_ns).unwrap()
}

/// With devices in order.
fn sorted(execution: &Execution) -> Execution {
    let mut execution = execution.clone();
    execution.devices.sort_by_key(|device| device.index);
    execution
}

fn sum(cells: &[Cell], value: impl Fn(&Cell) -> i64) -> i64 {
    cells.iter().map(value).sum()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Every run is listed with exactly what it did.
    #[test]
    fn every_run_is_accounted_for(
        held in (0..9u64, 0..9u64),
        is_named: bool,
        steps in prop::collection::vec(step(), 0..150),
    ) {
        let mut notebook = Notebook::new([held.0 << 20, held.1 << 20], is_named);
        steps.iter().for_each(|step| notebook.take(step));
        let process = notebook.snapshot();
        prop_assert_eq!(process.cells_unlisted.runs, 0);
        let mut listed = 0;
        for cell in &process.cells {
            let of_cell: Vec<usize> =
                cell.executions.iter().map(|execution| run_of(&notebook, execution)).collect();
            let text = notebook.runs[of_cell[0]].text;
            let all = (0..notebook.runs.len()).filter(|&run| notebook.runs[run].text == text);
            prop_assert_eq!(&of_cell, &all.collect::<Vec<usize>>());
            prop_assert_eq!(cell.runs, of_cell.len() as u64);
            let last = of_cell[of_cell.len() - 1] as u32;
            prop_assert_eq!(cell.cell, (!is_named).then_some(last + 1));
            prop_assert_eq!(cell.cell_seen.is_some(), is_named);
            for (execution, &run) in cell.executions.iter().zip(&of_cell) {
                prop_assert_eq!(sorted(execution), notebook.expected(run));
            }
            let sums = |value: fn(&Execution) -> i64| cell.executions.iter().map(value).sum::<i64>();
            prop_assert_eq!(cell.left_bytes as i64, sums(|e| e.left_bytes as i64));
            prop_assert_eq!(cell.freed_later_bytes.unwrap() as i64, sums(|e| e.freed_later_bytes.unwrap() as i64));
            prop_assert_eq!(cell.change_bytes.unwrap(), sums(|e| e.change_bytes.unwrap()));
            listed += of_cell.len();
        }
        prop_assert_eq!(listed, notebook.runs.len());
    }
}

/// A small generator: the same numbers every time.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, end: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % end
    }
}

/// In a long life the ledger and naming forget most: the sums stay those of everything, what holds memory is
/// listed as it is, and the tracer remembers no more than at the beginning.
#[test]
fn a_long_life_loses_no_byte() {
    let mut notebook = Notebook::new([0, 0], true);
    let mut numbers = Numbers(7);
    let (mut largest, count) = (0, 40_000usize);
    for number in 0..count {
        // Some texts are run again and again, most are new.
        let text = if number % 3 == 0 { numbers.below(5) as usize } else { 5 + number };
        notebook.run(text);
        for line in 0..numbers.below(4) as u32 {
            let size = 1 + numbers.below(1 << 20);
            let place = if numbers.below(5) == 0 { Where::Driver } else { Where::Pool };
            notebook.alloc(0, line + 1, numbers.below(2) as u8, size, place);
        }
        // A few keep what they have for long.
        while notebook.blocks.len() > 300 {
            let which = numbers.below(notebook.blocks.len() as u64) as usize;
            notebook.free(which);
        }
        if number % 100 == 0 {
            notebook.core.tidy();
            largest = largest.max(notebook.core.processes[&KERNEL].cells.len());
        }
    }
    assert!(largest < 25_000, "of {count} runs: {largest}");
    let process = notebook.snapshot();
    let unlisted = process.cells_unlisted;
    let runs = &notebook.runs;
    assert!(unlisted.runs > 1000, "{unlisted:?}");
    let cells = &process.cells;
    assert_eq!(sum(cells, |cell| cell.runs as i64) + unlisted.runs as i64, count as i64);
    let total: u64 = runs.iter().map(|run| run.allocated).sum();
    let listed = sum(cells, |cell| cell.allocated_bytes as i64);
    assert_eq!(listed + unlisted.allocated_bytes as i64, total as i64);
    let held: u64 = notebook.blocks.iter().map(|block| block.size).sum();
    assert_eq!(sum(cells, |cell| cell.left_bytes as i64), held as i64);
    let change = sum(cells, |cell| cell.change_bytes.unwrap()) + unlisted.change_bytes.unwrap();
    assert_eq!(change, notebook.totals.iter().sum::<u64>() as i64);
    let mut seen = 0;
    for execution in cells.iter().flat_map(|cell| &cell.executions) {
        let run = run_of(&notebook, execution);
        assert_eq!(sorted(execution), notebook.expected(run));
        seen += 1;
    }
    assert!(seen > 1000, "{seen}");
    for cell in cells.iter().filter(|cell| cell.runs > 1000) {
        assert_eq!(cell.executions.len(), 64);
    }
    assert_eq!(cells.iter().filter(|cell| cell.runs > 1000).count(), 5);
}

/// A notebook whose one cell is run again and again.
fn again(runs: &[&dyn Fn(&mut Notebook)]) -> Option<u64> {
    let mut notebook = Notebook::new([0, 0], false);
    for run in runs {
        notebook.run(0);
        run(&mut notebook);
    }
    let process = notebook.snapshot();
    process.cells[0].again_bytes
}

#[test]
fn what_a_further_run_leaves() {
    let alloc = |size| move |notebook: &mut Notebook| notebook.alloc(0, 1, 0, size, Where::Pool);
    // The name is bound anew, and what it had is freed.
    let replace = |size| {
        move |notebook: &mut Notebook| {
            notebook.alloc(0, 1, 0, size, Where::Pool);
            notebook.free(0);
        }
    };
    let (keep, first, rebind) = (alloc(10), alloc(25), replace(10));
    let nothing = |_: &mut Notebook| {};
    assert_eq!(again(&[&keep]), None, "it has run once");
    assert_eq!(again(&[&keep, &keep]), Some(10));
    assert_eq!(again(&[&keep, &rebind]), Some(0));
    // What the first run sets up is not what a further one leaves.
    assert_eq!(again(&[&first, &keep, &keep]), Some(10));
    assert_eq!(again(&[&first, &rebind, &rebind, &rebind]), Some(0));
    // Seldom is not usually.
    assert_eq!(again(&[&keep, &nothing, &keep, &nothing]), Some(0));
    // Another one has freed it.
    let free_all = |notebook: &mut Notebook| {
        while !notebook.blocks.is_empty() {
            notebook.free(0);
        }
    };
    assert_eq!(again(&[&keep, &keep, &free_all]), Some(0));
}

/// Records were dropped: what is not known is not made up.
#[test]
fn a_gap_makes_no_number_up() {
    let mut notebook = Notebook::new([0, 0], false);
    notebook.run(0);
    notebook.alloc(0, 1, 0, 10, Where::Pool);
    notebook.core.apply(Record::Loss { dropped: 1 });
    notebook.alloc(0, 1, 0, 20, Where::Pool);
    notebook.run(1);
    notebook.alloc(0, 1, 0, 30, Where::Pool);
    let process = notebook.snapshot();
    let [first, second] = process.cells.as_slice() else { panic!("{:?}", process.cells) };
    assert_eq!((first.allocated_bytes, first.left_bytes), (30, 30), "as far as it was seen");
    assert_eq!((first.change_bytes, first.freed_later_bytes), (None, None));
    assert_eq!((second.change_bytes, second.freed_later_bytes), (Some(30), Some(0)));
}

/// What a child allocates is the run's that forked it; it runs no cells of its own.
#[test]
fn children_have_no_runs_of_their_own() {
    let mut notebook = Notebook::new([0, 0], false);
    notebook.run(0);
    let child = Pid(200);
    let change = ProcessChange::Fork { child };
    notebook.core.apply(Record::Process { pid: KERNEL, time_ns: 9, change });
    let snapshot = notebook.core.snapshot(&Moment::default());
    assert_eq!(snapshot.processes[0].cells.len(), 1);
    assert_eq!(snapshot.processes[1].cells, []);
}
