//! Whose calls told of memory, where that were not the driver's.

use std::io;

use super::fit::Paragraph;
use crate::model::Layer;

pub(super) fn write(counted_at: &[Layer], out: &mut impl io::Write) -> io::Result<()> {
    if !counted_at.contains(&Layer::Runtime) {
        return Ok(());
    }
    let mut line = match counted_at {
        [Layer::Runtime] => Paragraph::new("  counted at the calls of the CUDA runtime:", 4),
        _ => Paragraph::new("  counted in part at the calls of the CUDA runtime:", 4),
    };
    line.add_words(
        "the driver's inside were not probed, so what libraries get from the driver directly is \
         missed there",
    );
    line.write(out)
}
