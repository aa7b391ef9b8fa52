//! A pool besides PyTorch's, which is what its device has.

use std::io;

use super::fit::Paragraph;
use crate::{
    model::PoolSnapshot,
    report::{
        label::{self, number, size},
        sanitize,
    },
};

pub(super) fn write(pool: &PoolSnapshot, out: &mut impl io::Write) -> io::Result<()> {
    let name = pool.name.as_deref().map_or("without a name".into(), sanitize);
    let mut line = Paragraph::new(&format!("  {} pool {name}", pool.level), 4);
    if pool.device.is_some() {
        line.add(" ", &format!("({})", label::device(pool.device)));
    }
    line.add("", ":");
    let blocks = number(pool.traced_blocks);
    match (pool.allocated_bytes, pool.reserved_bytes) {
        (Some(allocated), Some(reserved)) => {
            line.add(" ", &format!("allocated {} in {blocks} blocks", size(allocated)));
            line.add(" / ", &format!("reserved {}", size(reserved)));
        }
        (Some(allocated), None) => {
            line.add(" ", &format!("allocated {} in {blocks} blocks", size(allocated)));
        }
        _ => {
            line.add(" ", &format!("{} in {blocks} blocks since attach;", size(pool.traced_bytes)));
            line.add_words("what it had before is not known");
        }
    }
    line.write(out)?;
    if pool.keeps_reserve {
        writeln!(out, "    keeps its reserve until the process ends")?;
    }
    Ok(())
}
