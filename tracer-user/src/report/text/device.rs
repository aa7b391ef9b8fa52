//! One device: what it holds, and how far that is known.

use std::io;

use super::fit::Paragraph;
use crate::{
    model::DeviceSnapshot,
    report::label::{self, number, size},
};

/// Of a number that does not hold what nobody tells.
const SINCE_ATTACH: &str = "(since attach; what it had before is not known)";

/// `running`: whether there is anybody to follow advice.
pub(super) fn write(
    device: &DeviceSnapshot,
    running: bool,
    out: &mut impl io::Write,
) -> io::Result<()> {
    if device.index.is_none() {
        let mut line = Paragraph::new("  driver:", 4);
        line.add(" ", &format!("{} on a device that is not known", size(device.driver_bytes)));
        if device.before_attach.is_none() {
            line.add_words(SINCE_ATTACH);
        }
        return line.write(out);
    }
    let (Some(allocated), Some(cached), Some(reserved), Some(peak)) = (
        device.allocated_bytes,
        device.cached_bytes,
        device.reserved_bytes,
        device.peak_allocated_bytes,
    ) else {
        let mut line = Paragraph::new(&format!("  {}:", label::device(device.index)), 4);
        line.add(" ", &format!("{} from the driver", size(device.driver_bytes)));
        line.add_words(match device.before_attach {
            Some(_) => "(no caching allocator has reported yet, or this one does not report)",
            None => {
                "since attach; what it had before is not known (no allocator has told its totals)"
            }
        });
        return line.write(out);
    };
    let bound = if device.reserved_is_upper_bound { "at most " } else { "" };
    let mut totals = Paragraph::new(&format!("  {}:", label::device(device.index)), 4);
    totals.add(" ", &format!("allocated {}", size(allocated)));
    totals.add(" / ", &format!("cached {bound}{}", size(cached)));
    totals.add(" / ", &format!("reserved {bound}{},", size(reserved)));
    totals.add(" ", &format!("peak {}", size(peak)));
    totals.write(out)?;
    // A size in binary units is rounded.
    let mut bytes = Paragraph::new("    in bytes:", 6);
    bytes.add(" ", &number(allocated));
    bytes.add(" / ", &format!("{bound}{}", number(cached)));
    bytes.add(" / ", &format!("{bound}{},", number(reserved)));
    bytes.add(" ", &format!("peak {}", number(peak)));
    bytes.write(out)?;

    if let Some(releasable) = device.releasable_bytes.filter(|&bytes| bytes > 0 && running) {
        writeln!(out, "    torch.cuda.empty_cache() would return {}", size(releasable))?;
    }
    let before = device.before_attach.unwrap_or_default();
    if before.allocated_bytes > 0 || before.reserved_bytes > 0 {
        writeln!(
            out,
            "    before attach: {} allocated, {} reserved, call sites unknown",
            size(before.allocated_bytes),
            size(before.reserved_bytes)
        )?;
    }
    if device.untraced_reserved_bytes != 0 {
        let bytes = signed(device.untraced_reserved_bytes);
        writeln!(out, "    {bytes} reserved by calls without a probe")?;
    }
    if device.lost_bytes != 0 {
        let bytes = signed(device.lost_bytes);
        writeln!(out, "    lost: {bytes} allocated in dropped records, call sites unknown")?;
    }
    Ok(())
}

fn signed(bytes: i64) -> String {
    let sign = if bytes < 0 { "-" } else { "" };
    format!("{sign}{}", size(bytes.unsigned_abs()))
}
