//! How far functions reach, by what C++ needs to unwind the stack, which stays in stripped libraries: the
//! sorted table in `.eh_frame_hdr`, of the form that linkers make.

use super::elf::Elf;

/// Version 1; then how the header's three parts are encoded: 4 bytes from here, 4 bytes, 4 bytes from the
/// header's begin.
const HEADER: [u8; 4] = [1, 0x1b, 0x03, 0x3b];

/// Where the table begins, and the bytes of an entry: a function and its description, as offsets.
const TABLE: u64 = 12;
const ENTRY_BYTES: u64 = 8;

/// Bytes of the function that begins at an address; `None` if that is not known.
pub(super) fn extent(elf: &Elf, function: u64) -> Option<u64> {
    let header = elf.section(".eh_frame_hdr")?;
    let word = |address: u64| -> Option<u32> {
        Some(u32::from_le_bytes(elf.bytes(address, 4).ok()?.try_into().ok()?))
    };
    // An offset with a sign, from `base`.
    let from = |base: u64, address: u64| -> Option<u64> {
        Some(base.wrapping_add_signed(i64::from(word(address)?.cast_signed())))
    };
    if elf.bytes(header, 4).ok()? != HEADER {
        return None;
    }
    let (mut low, mut high) = (0, u64::from(word(header.checked_add(8)?)?));
    while low < high {
        let middle = low + (high - low) / 2;
        let entry = header.checked_add(TABLE + middle * ENTRY_BYTES)?;
        let begin = from(header, entry)?;
        if begin == function {
            // Length, place of the shared part, begin (relative to itself), bytes.
            let description = from(header, entry.checked_add(4)?)?;
            let begin = description.checked_add(8)?;
            let is_it = from(begin, begin)? == function;
            return word(begin.checked_add(4)?).filter(|_| is_it).map(u64::from);
        }
        if begin < function {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    None
}
