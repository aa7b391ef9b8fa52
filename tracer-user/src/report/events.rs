//! Events as they come, one JSON object a line: for tests and for finding faults, not a contract.

use std::io;

use serde_json::json;

use crate::model::{AllocationEvent, EventKind, Phase, StackRef};

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
    });
    match event.kind {
        EventKind::Driver { call, phase, aux } => {
            line["call"] = call.symbol().into();
            match phase {
                Phase::Done => line["phase"] = "done".into(),
                Phase::Begun => line["phase"] = "begun".into(),
                Phase::Failed(error) => {
                    line["phase"] = "failed".into();
                    line["error"] = error.into();
                }
            }
            if !matches!(phase, Phase::Failed(_)) {
                line["aux"] = aux.into();
            }
        }
        EventKind::PoolAlloc(facts) | EventKind::PoolFree(facts) => {
            let free = matches!(event.kind, EventKind::PoolFree(_));
            line["pool"] = if free { "free" } else { "alloc" }.into();
            line["device"] = facts.device.0.into();
            line["allocated"] = facts.totals.allocated.into();
            line["reserved"] = facts.totals.reserved.into();
        }
    }
    writeln!(out, "{line}")
}
