//! What NVML counts: the number that `nvidia-smi` shows, and what of it is not ours to name.

use std::io;

use super::fit::Paragraph;
use crate::{
    model::ProcessSnapshot,
    report::{label::size, sanitize},
};

pub(super) fn write(process: &ProcessSnapshot, out: &mut impl io::Write) -> io::Result<()> {
    for gpu in &process.gpus {
        let mut line = Paragraph::new(&format!("  nvidia-smi, GPU {}", gpu.index), 4);
        if let Some(name) = &gpu.name {
            line.add(" ", &format!("({})", sanitize(name)));
        }
        match gpu.used_bytes {
            Some(bytes) => line.add(": ", &size(bytes)),
            None => line.add(": ", "does not tell bytes"),
        }
        line.write(out)?;
    }
    match process.residual_bytes {
        Some(bytes @ 1..) => writeln!(
            out,
            "    {} of it outside of what is listed here: CUDA context and code, and\n    what was \
             allocated before attach outside of pools",
            size(bytes.unsigned_abs())
        ),
        _ => Ok(()),
    }
}
