//! Python strings as they lie in memory.

use tracer_common::wire::WireString;

/// Which end of a string was kept.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Kept {
    Head,
    Tail,
}

/// Decodes a string; `None` if it could not be read. A part that did not fit is shown as `…`; code
/// points that are not characters (lone surrogates) become U+FFFD.
pub(super) fn text<const N: usize>(string: &WireString<N>, kept: Kept) -> Option<String> {
    let width = usize::from(string.width);
    if !matches!(width, 1 | 2 | 4) {
        return None;
    }
    let bytes = string.bytes.get(..usize::from(string.filled))?;
    let mut text: String = bytes
        .chunks_exact(width)
        .map(|unit| {
            let mut point = [0u8; 4];
            point[..width].copy_from_slice(unit);
            char::from_u32(u32::from_le_bytes(point)).unwrap_or(char::REPLACEMENT_CHARACTER)
        })
        .collect();
    if bytes.len() / width < string.length as usize {
        match kept {
            Kept::Head => text.push('…'),
            Kept::Tail => text.insert(0, '…'),
        }
    }
    Some(text)
}
