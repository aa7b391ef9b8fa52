//! The pure core: bytes of records in, reports out, on one thread.

use std::{fs, time::Instant};

use bytemuck::Zeroable as _;
use tracer_common::wire::{
    BlockEvent, CodeRecord, MemoryEvent, RecordHeader, StackFrame, StackRecord, UNKNOWN_REQUEST,
    phase, probe, tag,
};
use tracer_user::{
    aggregate::{Aggregator, Moment, ProcessFacts},
    decode::decode,
    model::Pid,
    report::{Options, write_text},
};

use crate::measure::Measure;

const ROUNDS: usize = 5;
const PID: u32 = 1;
const STACKS: u64 = 1_000;
const OUTSTANDING: u64 = 1_000_000;
const BLOCK: u64 = 512;

/// Takes them.
pub fn measure() -> Vec<Measure> {
    let mut core = Aggregator::default();
    core.set_process(Pid(PID), ProcessFacts { whole: true, ..ProcessFacts::default() });
    for stack in 1..=STACKS {
        apply(&mut core, bytemuck::bytes_of(&code_record(stack)));
        apply(&mut core, &stack_record(stack));
    }
    // Both ways once, so that what is needed anyhow is there.
    events(&mut core, 0..1_000, 1);
    events(&mut core, 0..1_000, -1);

    let before = resident();
    events(&mut core, 0..OUTSTANDING, 1);
    let bytes = resident().saturating_sub(before) as f64 / OUTSTANDING as f64;

    let (mut rates, mut renders) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let start = Instant::now();
        let mut text = Vec::new();
        let snapshot = core.snapshot(&Moment::default());
        write_text(&snapshot, &Options::default(), &mut text).expect("memory can be written to");
        renders.push(start.elapsed().as_secs_f64() * 1e3);

        let start = Instant::now();
        events(&mut core, 0..OUTSTANDING, -1);
        events(&mut core, 0..OUTSTANDING, 1);
        rates.push(2.0 * OUTSTANDING as f64 / start.elapsed().as_secs_f64());
    }
    vec![
        Measure::of("events_per_s", &rates, "events/s"),
        Measure::plain("bytes_per_outstanding", bytes, "bytes"),
        Measure::of("render_1m_ms", &renders, "ms"),
    ]
}

/// Allocations (`sign` 1) or frees (-1) of these blocks.
fn events(core: &mut Aggregator, blocks: std::ops::Range<u64>, sign: i64) {
    for block in blocks {
        let allocated = if sign > 0 { (block + 1) * BLOCK } else { 0 };
        let event = MemoryEvent {
            header: RecordHeader { tag: tag::BLOCK, detail: 0, tgid: PID },
            time_ns: block,
            tid: PID,
            probe: probe::TORCH_REPORT,
            phase: phase::DONE,
            flags: 0,
            device: 0,
            address: 0x7f00_0000_0000 + BLOCK * block,
            size: sign * BLOCK as i64,
            stack: if sign > 0 { 1 + block % STACKS } else { 0 },
            extra: [allocated, OUTSTANDING * BLOCK],
        };
        let record = BlockEvent { event, requested: UNKNOWN_REQUEST };
        apply(core, bytemuck::bytes_of(&record));
    }
}

/// A function of its own for each stack.
fn code_record(code: u64) -> CodeRecord {
    let mut record = CodeRecord::zeroed();
    record.header = RecordHeader { tag: tag::CODE, detail: 0, tgid: PID };
    record.code = code;
    let name = format!("function_{code}");
    record.name.bytes[..name.len()].copy_from_slice(name.as_bytes());
    record.name.length = name.len() as u32;
    record.name.filled = name.len() as u16;
    record.name.width = 1;
    record
}

fn stack_record(stack: u64) -> Vec<u8> {
    let header = RecordHeader { tag: tag::STACK, detail: 1, tgid: PID };
    let mut bytes = Vec::new();
    bytes.extend(bytemuck::bytes_of(&header));
    bytes.extend(stack.to_le_bytes());
    bytes.resize(StackRecord::FIXED_SIZE, 0);
    let frame = StackFrame { code: stack, address: stack, instruction: 0, pad: 0 };
    bytes.extend(bytemuck::bytes_of(&frame));
    bytes
}

fn apply(core: &mut Aggregator, bytes: &[u8]) {
    core.apply(decode(bytes).expect("a record of this version"));
}

/// Bytes of memory that this process has.
fn resident() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kilobytes = line.and_then(|line| line.trim().strip_suffix(" kB")?.trim().parse().ok());
    kilobytes.unwrap_or(0u64) * 1024
}
