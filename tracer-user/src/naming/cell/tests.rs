//! Runs of made-up cells against made-up looks at a history.

use std::sync::Arc;

use super::{hash::murmur2, *};

const SECOND: u64 = 1_000_000_000;

/// A kernel that runs cells, and a tracer that sees them.
#[derive(Default)]
struct Kernel {
    cells: Cells,
    runs: Runs,
    now: u64,
    count: u32,
    session: u64,
    unread: Vec<HistoryRow>,
}

fn file(text: &str) -> Arc<str> {
    format!("/tmp/ipykernel_7/{}.py", murmur2(text.as_bytes())).into()
}

fn line(line: u32) -> LineSpan {
    LineSpan { first: line, last: line, column: None }
}

/// The same where columns are known.
fn column(line: u32, column: u32) -> LineSpan {
    LineSpan { first: line, last: line, column: Some(column) }
}

impl Kernel {
    /// One whose every run is told.
    fn told() -> Self {
        let mut kernel = Self { now: SECOND, session: 1, ..Self::default() };
        kernel.look();
        kernel.now += SECOND;
        kernel.cells.note_told(kernel.now);
        kernel
    }

    fn row(&self, text: &str) -> HistoryRow {
        let text = text.to_owned();
        HistoryRow {
            session: self.session,
            count: self.count,
            transformed: text.clone(),
            raw: text,
        }
    }

    /// The cell is written to the history, and counted.
    fn store(&mut self, text: &str) {
        self.count += 1;
        self.unread.push(self.row(text));
    }

    /// One piece of a cell runs.
    fn piece(&mut self, text: &str, span: LineSpan) -> RunId {
        self.now += 1_000_000;
        let began = Began { after: self.now, before: self.now };
        self.cells.begin(&file(text), span, began, &mut self.runs).0
    }

    /// A cell of one line.
    fn run(&mut self, text: &str) -> RunId {
        self.store(text);
        self.piece(text, line(1))
    }

    /// A function of a cell is called.
    fn call(&mut self, text: &str) -> RunId {
        self.now += 1_000_000;
        let now = Began { after: self.now, before: self.now };
        self.cells.defined(&file(text), now, &mut self.runs)
    }

    fn look(&mut self) {
        self.now += 1_000_000;
        let rows = std::mem::take(&mut self.unread);
        let page = HistoryPage { read_ns: self.now, done_ns: self.now, rows, foreign: Vec::new() };
        self.cells.note_history(page, &mut self.runs);
    }

    /// Looks until nothing more will come.
    fn settle(&mut self) {
        for _ in 0..30 {
            self.now += SECOND / 10;
            self.look();
        }
    }

    fn number(&self, run: RunId) -> Option<u32> {
        self.runs.get(run).unwrap().cell()
    }
}

#[test]
fn equal_cells_are_told_apart_by_their_order() {
    let mut kernel = Kernel::told();
    let runs: Vec<RunId> = ["a", "b", "a", "a", "b"].map(|text| kernel.run(text)).into();
    kernel.look();
    let numbers: Vec<Option<u32>> = runs.iter().map(|&run| kernel.number(run)).collect();
    assert_eq!(numbers, [1, 2, 3, 4, 5].map(Some));
}

/// A row is written by a thread of the kernel, in its own time.
#[test]
fn a_row_may_come_late() {
    let mut kernel = Kernel::told();
    let first = kernel.run("a");
    kernel.look();
    let again = kernel.piece("a", line(1));
    kernel.look();
    assert_eq!((kernel.number(first), kernel.number(again)), (Some(1), None));
    kernel.store("a");
    kernel.look();
    assert_eq!(kernel.number(again), Some(2));
}

/// Two statements of one line, run again at once.
#[test]
fn columns_tell_statements_of_a_line_apart() {
    let mut kernel = Kernel::told();
    let text = "a; b";
    let mut runs = Vec::new();
    for _ in 0..2 {
        kernel.store(text);
        runs.push([0, 3].map(|at| kernel.piece(text, column(1, at))));
    }
    kernel.look();
    assert!(runs.iter().all(|[first, second]| first == second));
    let numbers: Vec<Option<u32>> = runs.iter().map(|[first, _]| kernel.number(*first)).collect();
    assert_eq!(numbers, [1, 2].map(Some));
}

#[test]
fn pieces_of_a_cell_are_one_run() {
    let mut kernel = Kernel::told();
    let text = "a\nb\nc";
    kernel.store(text);
    let runs = [1, 2, 3].map(|number| kernel.piece(text, line(number)));
    assert!(runs.iter().all(|run| *run == runs[0]));
    let again = kernel.run(text);
    kernel.look();
    assert_eq!((kernel.number(runs[0]), kernel.number(again)), (Some(1), Some(2)));
}

/// Two statements on one line look as a cell that is run twice.
#[test]
fn a_semicolon_is_no_second_run() {
    let mut kernel = Kernel::told();
    let text = "a; b";
    let first = kernel.run(text);
    let second = kernel.piece(text, line(1));
    kernel.settle();
    assert_eq!((kernel.number(first), kernel.number(second)), (Some(1), Some(1)));
    // Twice at once: which of the four pieces is of which run cannot be told.
    let third = kernel.run(text);
    kernel.piece(text, line(1));
    kernel.settle();
    assert!(matches!(kernel.number(third), None | Some(2)));
}

/// Code that runs without being kept: no number of another cell is taken for it.
#[test]
fn what_is_not_kept_has_no_number() {
    let mut kernel = Kernel::told();
    kernel.run("a");
    kernel.run("b");
    kernel.settle();
    let silent = kernel.piece("c", line(1));
    let silent_twin = kernel.piece("a", line(1));
    kernel.settle();
    let next = kernel.run("a");
    kernel.look();
    assert_eq!([silent, silent_twin, next].map(|run| kernel.number(run)), [None, None, Some(3)]);
}

#[test]
fn functions_are_of_the_last_run_before() {
    let mut kernel = Kernel { now: SECOND, session: 1, ..Kernel::default() };
    let define = "def f(): pass";
    kernel.store(define);
    kernel.store("x");
    kernel.store(define);
    kernel.look();
    kernel.now += SECOND;
    kernel.cells.note_told(kernel.now);
    let early = kernel.call(define);
    kernel.look();
    assert_eq!(kernel.number(early), Some(3));
    kernel.run(define);
    let late = kernel.call(define);
    kernel.look();
    assert_eq!((kernel.number(early), kernel.number(late)), (Some(3), Some(4)));
}

/// A cell that has run for long when the tracer comes.
#[test]
fn a_cell_that_runs_already() {
    let mut kernel = Kernel { now: SECOND, session: 1, ..Kernel::default() };
    kernel.store("a");
    kernel.store("a\nb");
    kernel.look();
    kernel.now += SECOND;
    kernel.cells.note_told(kernel.now);
    let run = kernel.piece("a\nb", line(2));
    kernel.look();
    assert_eq!(kernel.number(run), None, "its row may be a new one");
    kernel.settle();
    assert_eq!(kernel.number(run), Some(2));
}

/// Without the kernel half's word a run may have been missed.
#[test]
fn where_runs_may_be_missed_nothing_is_guessed() {
    let mut kernel = Kernel::told();
    kernel.cells.note_gap();
    kernel.store("a");
    let run = kernel.run("a");
    kernel.settle();
    assert_eq!(kernel.number(run), None);
    assert_eq!(kernel.runs.get(run).unwrap().line(1).unwrap().text, "a", "the text is the same");
}

/// Two kernels of one user write to one database.
#[test]
fn rows_of_another_kernel_are_not_taken() {
    let mut kernel = Kernel::told();
    let run = kernel.run("a");
    kernel.look();
    assert_eq!(kernel.number(run), Some(1), "the session is proven");
    let other = HistoryRow { session: 2, count: 9, ..kernel.row("b") };
    kernel.unread.push(other);
    let run = kernel.run("b");
    kernel.look();
    assert_eq!(kernel.number(run), Some(2));
    // Before anything is proven, two that could be are none.
    let mut kernel = Kernel::told();
    kernel.unread.push(HistoryRow { session: 2, count: 9, ..kernel.row("b") });
    let run = kernel.run("b");
    kernel.settle();
    assert_eq!(kernel.number(run), None);
}

/// IPython begins another session when it is told to forget everything.
#[test]
fn a_session_may_be_followed_by_another() {
    let mut kernel = Kernel::told();
    kernel.run("a");
    kernel.settle();
    (kernel.session, kernel.count) = (2, 0);
    let run = kernel.run("b");
    kernel.settle();
    assert_eq!(kernel.number(run), Some(1));
}

#[test]
fn a_saved_notebook_tells_what_no_history_does() {
    let mut kernel = Kernel { now: SECOND, ..Kernel::default() };
    kernel.cells.note_told(kernel.now);
    let once = kernel.piece("once", line(1));
    let twice = kernel.piece("twice", line(1));
    let cell = |source: &str, count| NotebookCell { source: source.to_owned(), count };
    let cells = vec![cell("once", Some(3)), cell("twice", Some(4)), cell("twice", Some(5))];
    let page = NotebookPage { saved_ns: SECOND, cells: cells.clone() };
    kernel.cells.note_notebook(page, &mut kernel.runs);
    assert_eq!((kernel.number(once), kernel.number(twice)), (None, None), "saved before they ran");
    let page = NotebookPage { saved_ns: kernel.now + 1, cells };
    kernel.cells.note_notebook(page, &mut kernel.runs);
    assert_eq!((kernel.number(once), kernel.number(twice)), (Some(3), None));
    let text = |run| kernel.runs.get(run).unwrap().line(1).unwrap().text.to_owned();
    assert_eq!((text(once), text(twice)), ("once".to_owned(), "twice".to_owned()));
}

/// What is remembered of any number of executions has bounds, and no number is wrong.
#[test]
fn a_long_life_needs_the_same_memory() {
    let mut kernel = Kernel::told();
    for number in 1..=30_000 {
        // Every tenth is the same cell.
        let text = if number % 10 == 0 { "same".to_owned() } else { format!("x = {number}") };
        let run = kernel.run(&text);
        if number % 3 == 0 {
            kernel.look();
            assert_eq!(kernel.number(run), Some(number));
        }
    }
    kernel.look();
    let (rows, hashes, bytes) = kernel.cells.history.sizes();
    assert!(rows <= 8 * 1024 && hashes <= 4 * 11 * 1024, "{rows} {hashes}");
    assert!(
        bytes <= 16 << 20 && kernel.cells.files.len() <= MAX_FILES && !kernel.cells.is_waiting()
    );
}
