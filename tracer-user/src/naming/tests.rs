//! Names against made-up definitions.

use super::{
    process::{KEPT_GENERATIONS, KEPT_PASSES, MAX_CODES},
    *,
};
use crate::{
    decode::StackFrame,
    model::{Level, StackId, StackRef},
};

const PID: Pid = Pid(7);
const OTHER: Pid = Pid(8);

fn code(id: u64, name: &str) -> CodeDefinition {
    CodeDefinition {
        pid: PID,
        code: CodeId(id),
        name: Some(name.to_owned()),
        qualified_name: Some(format!("C.{name}")),
        filename: Some("/tmp/x.py".to_owned()),
        first_line: 10,
        line_table_size: 2,
    }
}

fn stack(id: u64, code: u64) -> StackDefinition {
    StackDefinition {
        pid: PID,
        stack: StackId(id),
        truncated: false,
        faulted: false,
        backward: false,
        outer: None,
        frames: vec![StackFrame { code: Some(CodeId(code)), instruction: 0 }],
    }
}

fn event(naming: &mut Naming, id: u64) -> StackIndex {
    naming.stack(PID, StackRef::Id(StackId(id)), None)
}

#[test]
fn equal_stacks_of_two_lives_of_a_function_are_one() {
    let mut naming = Naming::new();
    naming.define_code(code(1, "f"));
    let first = naming.define_stack(&stack(100, 1));
    naming.free_code(PID, CodeId(1));
    naming.define_code(code(2, "f"));
    assert_eq!(naming.define_stack(&stack(200, 2)), first);
    naming.define_code(code(3, "g"));
    assert_ne!(naming.define_stack(&stack(300, 3)), first);
    assert_eq!(naming.frames(first)[0].qualified_name.as_deref(), Some("C.f"));
}

#[test]
fn a_late_definition_finds_its_events() {
    let mut naming = Naming::new();
    let early = event(&mut naming, 100);
    assert!(naming.note(early).unwrap().contains("dropped"));
    naming.define_code(code(1, "f"));
    let late = naming.define_stack(&stack(100, 1));
    assert_eq!(naming.merged(early), late);
    assert_eq!(naming.frames(early), naming.frames(late));
    assert_eq!(event(&mut naming, 100), late);
}

/// In a report they are one call site: nothing tells them apart.
#[test]
fn all_undefined_stacks_merge_until_they_are_defined() {
    let mut naming = Naming::new();
    let (a, b) = (event(&mut naming, 100), event(&mut naming, 200));
    assert_ne!(a, b);
    assert_eq!(naming.merged(a), naming.merged(b));
    naming.define_code(code(1, "f"));
    naming.define_stack(&stack(200, 1));
    assert_ne!(naming.merged(a), naming.merged(b));
}

#[test]
fn ids_of_old_generations_are_forgotten() {
    let mut naming = Naming::new();
    for round in 0..1000 {
        naming.define_code(code(round, "f"));
        naming.define_stack(&stack(round + 1, round));
        naming.free_code(PID, CodeId(round));
    }
    let (codes, ids) = naming.processes[&PID].sizes();
    assert_eq!(codes, 0);
    assert!(ids <= KEPT_GENERATIONS, "{ids}");
    assert_eq!(naming.stacks.len(), 4, "none, dropped, forgotten, and the one");
}

/// The kernel half bumps the generation of the process that freed, and sends nobody else's
/// definitions again.
#[test]
fn freeing_code_in_one_process_leaves_the_ids_of_another() {
    let mut naming = Naming::new();
    naming.define_code(code(1, "f"));
    let defined = naming.define_stack(&stack(100, 1));
    for round in 0..10 * KEPT_GENERATIONS as u64 {
        naming.define_code(CodeDefinition { pid: OTHER, ..code(round, "cell") });
        naming.free_code(OTHER, CodeId(round));
    }
    assert_eq!(event(&mut naming, 100), defined);
}

/// A backward pass lasts, and a compiler that runs inside of it frees code by the thousands.
#[test]
fn the_stack_that_began_a_pass_outlives_code() {
    let mut naming = Naming::new();
    naming.define_code(code(1, "step"));
    let plain = naming.define_stack(&stack(100, 1));
    let pass = naming.define_stack(&StackDefinition { backward: true, ..stack(101, 1) });
    assert_ne!(plain, pass, "what the line allocates itself is another site");
    assert_eq!(naming.frames(plain), naming.frames(pass));
    assert!(naming.is_backward(pass) && !naming.is_backward(plain));
    for round in 0..10 * KEPT_GENERATIONS as u64 {
        naming.free_code(PID, CodeId(1000 + round));
    }
    assert_eq!(event(&mut naming, 101), pass);
    assert_ne!(event(&mut naming, 100), plain);
    // One pass after the other, each in code of its own.
    for round in 0..2 * KEPT_PASSES as u64 {
        naming.define_code(code(2000 + round, "step"));
        naming
            .define_stack(&StackDefinition { backward: true, ..stack(9000 + round, 2000 + round) });
        naming.free_code(PID, CodeId(2000 + round));
    }
    let (_, ids) = naming.processes[&PID].sizes();
    assert!(ids <= KEPT_PASSES + KEPT_GENERATIONS + 1, "{ids}");
}

#[test]
fn a_pass_inside_of_a_pass_goes_on_in_the_outer_one() {
    let mut naming = Naming::new();
    naming.define_code(code(1, "step"));
    naming.define_code(code(2, "inner"));
    naming.define_stack(&StackDefinition { backward: true, ..stack(100, 1) });
    let within =
        |id, outer| StackDefinition { backward: true, outer: Some(StackId(outer)), ..stack(id, 2) };
    let inner = naming.define_stack(&within(101, 100));
    let names = |frames: Vec<Frame>| frames.iter().map(|f| f.function.clone()).collect::<Vec<_>>();
    assert_eq!(names(naming.frames(inner)), ["inner", "step"]);
    assert_eq!(naming.note(inner), None);
    let lost = naming.define_stack(&within(102, 99));
    assert_eq!(names(naming.frames(lost)), ["inner"]);
    assert!(naming.note(lost).unwrap().contains("dropped"));
    naming.define_stack(&within(3000, 101));
    let deepest = (3000..5000).map(|id| naming.define_stack(&within(id + 1, id))).last().unwrap();
    assert_eq!(naming.frames(deepest).len(), MAX_JOINED);
    assert!(naming.note(deepest).unwrap().contains("too deep"));
}

#[test]
fn a_placeholder_that_is_too_old_stays_dropped() {
    let mut naming = Naming::new();
    let early = event(&mut naming, 100);
    for round in 0..=KEPT_GENERATIONS as u64 {
        naming.free_code(PID, CodeId(round));
    }
    naming.define_code(code(1, "f"));
    let late = naming.define_stack(&stack(100, 1));
    assert_ne!(naming.merged(early), late, "the id may mean another stack by now");
    assert!(naming.note(early).unwrap().contains("dropped"));
}

#[test]
fn placeholders_run_out_and_the_rest_is_one() {
    let mut naming = Naming::new();
    for id in 1..200_000 {
        event(&mut naming, id);
    }
    assert!(naming.stacks.len() < 70_000);
    let last = event(&mut naming, 199_999);
    assert!(naming.note(last).unwrap().contains("dropped"));
    naming.define_code(code(1, "f"));
    let late = naming.define_stack(&stack(199_999, 1));
    assert_eq!(event(&mut naming, 199_999), late, "events from now on have their stack");
}

#[test]
fn code_objects_whose_end_was_dropped_do_not_pile_up() {
    let mut naming = Naming::new();
    naming.define_code(code(0, "hot"));
    for round in 1..3 * MAX_CODES as u64 {
        naming.define_code(code(round, "f"));
        if round % 1000 == 0 {
            naming.define_stack(&stack(1, 0));
        }
    }
    assert!(naming.processes[&PID].sizes().0 <= MAX_CODES);
    let index = naming.define_stack(&stack(2, 0));
    assert_eq!(naming.frames(index)[0].function, "hot", "what is in use stays");
}

#[test]
fn an_undefined_code_object_is_a_question_mark_with_a_note() {
    let mut naming = Naming::new();
    let undefined = StackFrame { code: None, instruction: 4 };
    naming.define_code(code(1, "f"));
    let mut definition = stack(100, 9);
    definition.frames.push(undefined);
    definition.frames.push(StackFrame { code: Some(CodeId(1)), instruction: 0 });
    let index = naming.define_stack(&definition);
    let names: Vec<_> = naming.frames(index).into_iter().map(|f| (f.function, f.file)).collect();
    let expected = [("?", "?"), ("?", "?"), ("f", "/tmp/x.py")];
    assert_eq!(names, expected.map(|(function, file)| (function.to_owned(), file.to_owned())));
    assert!(naming.note(index).unwrap().contains("`?`"));
    // Names that could not be read are not the same as none.
    naming.define_code(CodeDefinition {
        name: None,
        qualified_name: None,
        filename: None,
        ..code(2, "")
    });
    let unread = naming.define_stack(&stack(200, 2));
    assert_eq!(naming.frames(unread)[0].function, "?");
    assert_eq!(naming.note(unread), None);
}

#[test]
fn every_gap_has_its_note() {
    let mut naming = Naming::new();
    naming.define_code(code(1, "f"));
    let truncated = naming.define_stack(&StackDefinition { truncated: true, ..stack(1, 1) });
    let faulted = naming.define_stack(&StackDefinition { faulted: true, ..stack(2, 1) });
    let both = naming.define_stack(&StackDefinition { truncated: true, ..stack(3, 9) });
    let native = naming.stack(PID, StackRef::NoPython, None);
    let not_taken = naming.stack(PID, StackRef::NotTaken, None);
    let whole = naming.define_stack(&stack(4, 1));
    for (index, words) in [
        (truncated, &["outermost frames are missing"][..]),
        (faulted, &["not resident"]),
        (both, &["`?`", "outermost frames are missing"]),
        (native, &["native thread, no Python frame"]),
        (not_taken, &["no Python stack was taken"]),
    ] {
        let note = naming.note(index).unwrap();
        assert!(words.iter().all(|word| note.contains(word)), "{note}");
    }
    assert_eq!(naming.note(whole), None);
    assert_eq!(naming.note(StackIndex::NONE), None);
    assert_eq!(naming.frames(StackIndex::NONE), []);
    assert_eq!(naming.frames(StackIndex(u32::MAX)), []);
}

#[test]
fn lines_follow_the_version_and_are_not_guessed_without() {
    let table = [6, 1, 4, 0xff];
    let lines = |minor: Option<u8>| {
        let mut naming = Naming::new();
        if let Some(minor) = minor {
            naming.set_python_minor(PID, minor);
        }
        naming.define_code(CodeDefinition { line_table_size: 4, ..code(1, "f") });
        for (offset, bytes) in [(0, &table[..2]), (2, &table[2..]), (9, &[1, 2][..])] {
            let bytes = bytes.to_vec();
            naming.add_lines(LinesPiece { pid: PID, code: CodeId(1), offset, bytes });
        }
        let mut definition = stack(1, 1);
        definition.frames[0].instruction = 6;
        let index = naming.define_stack(&definition);
        naming.frames(index)[0].line
    };
    assert_eq!(lines(Some(9)), Some(11));
    assert_eq!(lines(Some(10)), Some(10));
    assert_eq!(lines(None), None);
}

#[test]
fn a_process_that_is_forgotten_leaves_its_stacks_for_reports() {
    let mut naming = Naming::new();
    naming.define_code(code(1, "f"));
    let named = naming.define_stack(&stack(100, 1));
    let early = event(&mut naming, 200);
    naming.forget_process(PID);
    assert!(!naming.processes.contains_key(&PID));
    assert_eq!(naming.frames(named)[0].function, "f");
    // Another process of that pid: its code object of the same id has not been defined.
    let next = naming.define_stack(&stack(200, 1));
    assert_eq!(naming.frames(next)[0].function, "?");
    assert_ne!(naming.merged(early), next);
}

/// The same stack is another one for each file that called from it, also when it is defined late.
#[test]
fn callers_are_told_apart() {
    let mut naming = Naming::new();
    naming.map_code(PID, 0x1000..0x2000, &code_file("liba.so"), 0);
    naming.map_code(PID, 0x2000..0x3000, &code_file("libb.so"), 0x7000);
    let call = |naming: &mut Naming, id, address| {
        naming.stack(PID, StackRef::Id(StackId(id)), Some((Level::Driver, CodeAddress(address))))
    };
    let (a, b) = (call(&mut naming, 1, 0x1000), call(&mut naming, 1, 0x2fff));
    let (again, nobody) = (call(&mut naming, 1, 0x1800), call(&mut naming, 1, 0x3000));
    assert_eq!(a, again);
    assert!(a != b && a != nobody && b != nobody);
    let defined = naming.define_stack(&stack(1, 1));
    assert!([a, b, nobody].iter().all(|&index| naming.merged(index) == defined));
    let callers = [a, b, nobody].map(|index| naming.caller(index).map(|file| file.to_string()));
    assert_eq!(callers, [Some("liba.so".to_owned()), Some("libb.so".to_owned()), None]);
    assert_eq!(naming.frames(a), naming.frames(defined));
}

fn code_file(name: &str) -> CodeFile {
    CodeFile { name: name.into(), device: 1, inode: 2 }
}

/// Functions of one file that call from the same stack are one site, which names them all; of failures
/// each names its own.
#[test]
fn functions_of_a_caller_are_listed() {
    let mut naming = Naming::new();
    naming.map_code(PID, 0x1000..0x2000, &code_file("liba.so"), 0x4000);
    let id = StackRef::Id(StackId(1));
    let at = |address| Some((Level::Driver, CodeAddress(address)));
    let site = naming.stack(PID, id, at(0x1100));
    assert_eq!(naming.stack(PID, id, at(0x1200)), site);
    assert_eq!(naming.stack(PID, id, at(0x1100)), site);
    let failure = naming.failed_stack(PID, id, at(0x1300));
    let again = naming.failed_stack(PID, id, at(0x1100));
    assert!(failure != again && naming.failed_stack(PID, id, at(0x1300)) == failure);
    assert!(naming.caller_functions(site).is_empty());
    let new = naming.take_new_places();
    assert_eq!(new.iter().map(|p| p.offset).collect::<Vec<_>>(), [0x4100, 0x4200, 0x4300]);
    naming.name_place(new[0].index, Function::Symbol(b"_Z5firstv"));
    naming.name_place(new[1].index, Function::Address(0x4200));
    naming.name_place(new[2].index, Function::Symbol(b"third"));
    let functions = |naming: &Naming, index| {
        let names = naming.caller_functions(index);
        names.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    assert_eq!(functions(&naming, site), ["+0x4200", "first"]);
    assert_eq!(functions(&naming, failure), ["third"]);
    assert_eq!(functions(&naming, again), ["first"]);
    assert_eq!(naming.caller(failure).map(|file| &**file), Some("liba.so"));
    assert_eq!(naming.merged(failure), naming.merged(site));
    let pinned = naming.stack(PID, id, Some((Level::Pinned, CodeAddress(0x1100))));
    assert!(pinned != site && naming.merged(pinned) == naming.merged(site));
    assert_eq!(functions(&naming, pinned), ["first"]);
    // One that makes up places: their number stays small.
    for address in 0x1400..0x1fff {
        naming.stack(PID, id, at(address));
    }
    assert!(naming.stacks.places(site).len() <= 16);
}
