//! Events as they come, one JSON object a line: for tests and for finding faults, not a contract.

use std::io;

use serde_json::{Value, json};

use crate::model::{AllocationEvent, DriverCall, EventKind, Phase, PoolFacts, StackRef};

/// Writes one event. Keys depend on its kind; addresses and sizes are those of the call.
///
/// # Errors
///
/// Those of the writer.
pub fn write_event(event: &AllocationEvent, out: &mut impl io::Write) -> io::Result<()> {
    let mut line = json!({
        "time_ns": event.time_ns,
        "pid": event.pid.0,
        "tid": event.tid.0,
        "address": event.address.0,
        "size": event.size,
        "stack": match event.stack {
            StackRef::Id(id) => Some(id.0),
            StackRef::NoPython | StackRef::NotTaken => None,
        },
        "caller": event.caller.map(|address| address.0),
    });
    match event.kind {
        EventKind::Driver { call, phase, aux } => add_call(&mut line, call, phase, aux),
        EventKind::PoolAlloc(facts) => add_pool(&mut line, "alloc", &facts),
        EventKind::PoolFree(facts) => add_pool(&mut line, "free", &facts),
        EventKind::PoolOutOfMemory(facts) => add_pool(&mut line, "out of memory", &facts),
        EventKind::SegmentFreed(device) => {
            line["pool"] = "segment freed".into();
            line["device"] = device.map(|device| device.0).into();
        }
        EventKind::SegmentPrivate(device) => {
            line["pool"] = "segment private".into();
            line["device"] = device.0.into();
        }
        EventKind::CpuAlloc => line["cpu"] = "alloc".into(),
        EventKind::CpuFree => line["cpu"] = "free".into(),
    }
    writeln!(out, "{line}")
}

fn add_call(line: &mut Value, call: DriverCall, phase: Phase, aux: u64) {
    line["call"] = call.symbol().into();
    match phase {
        Phase::Done => line["phase"] = "done".into(),
        Phase::Begun => line["phase"] = "begun".into(),
        Phase::Failed(error) => {
            line["phase"] = "failed".into();
            line["error"] = error.into();
            return;
        }
    }
    line["aux"] = aux.into();
}

fn add_pool(line: &mut Value, what: &str, facts: &PoolFacts) {
    line["pool"] = what.into();
    line["level"] = facts.pool.level.name().into();
    line["instance"] = facts.pool.instance.into();
    line["allocated"] = facts.totals.map(|totals| totals.allocated).into();
    line["reserved"] = facts.totals.map(|totals| totals.reserved).into();
    line["requested"] = facts.requested.into();
}
