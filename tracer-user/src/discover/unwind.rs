//! How far functions reach, by what C++ needs to unwind the stack, which stays in stripped libraries: the
//! sorted table in `.eh_frame_hdr`, of the form that linkers make.

use super::elf::Elf;

/// Version 1; then how the header's three parts are encoded: 4 bytes from here, 4 bytes, 4 bytes from the
/// header's begin.
const HEADER: [u8; 4] = [1, 0x1b, 0x03, 0x3b];

/// Where the table begins, and the bytes of an entry: a function and its description, as offsets.
const TABLE: u64 = 12;
const ENTRY_BYTES: u64 = 8;

/// Most functions of a library that are looked through: those of PyTorch's allocator are 2,000.
const MOST: u64 = 100_000;

/// The table of an open file.
struct Table<'a> {
    elf: &'a Elf,
    header: u64,
    length: u64,
}

impl<'a> Table<'a> {
    fn open(elf: &'a Elf) -> Option<Self> {
        let header = elf.section(".eh_frame_hdr")?;
        let mut table = Self { elf, header, length: 0 };
        if elf.bytes(header, 4).ok()? != HEADER {
            return None;
        }
        table.length = table.word(header.checked_add(8)?)?.into();
        Some(table)
    }

    fn word(&self, address: u64) -> Option<u32> {
        Some(u32::from_le_bytes(self.elf.bytes(address, 4).ok()?.try_into().ok()?))
    }

    /// An offset with a sign, from `base`.
    fn from(&self, base: u64, address: u64) -> Option<u64> {
        Some(base.wrapping_add_signed(i64::from(self.word(address)?.cast_signed())))
    }

    /// Where the function of an entry begins.
    fn begin(&self, index: u64) -> Option<u64> {
        self.from(self.header, self.entry(index)?)
    }

    fn entry(&self, index: u64) -> Option<u64> {
        self.header.checked_add(index.checked_mul(ENTRY_BYTES)?.checked_add(TABLE)?)
    }

    /// Bytes of the function of an entry.
    fn length_of(&self, index: u64) -> Option<u64> {
        // Length, place of the shared part, begin (relative to itself), bytes.
        let description = self.from(self.header, self.entry(index)?.checked_add(4)?)?;
        let begin = description.checked_add(8)?;
        let is_it = self.from(begin, begin)? == self.begin(index)?;
        self.word(begin.checked_add(4)?).filter(|_| is_it).map(u64::from)
    }
}

/// Bytes of the function that begins at an address; `None` if that is not known.
pub(super) fn extent(elf: &Elf, function: u64) -> Option<u64> {
    let table = Table::open(elf)?;
    let (mut low, mut high) = (0, table.length);
    while low < high {
        let middle = low + (high - low) / 2;
        let begin = table.begin(middle)?;
        if begin == function {
            return table.length_of(middle);
        }
        if begin < function {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    None
}

/// Every function, or piece of one: where it begins, and its bytes. `None` if they are not all known.
pub(super) fn functions(elf: &Elf) -> Option<Vec<(u64, u64)>> {
    let table = Table::open(elf).filter(|table| table.length <= MOST)?;
    (0..table.length).map(|index| Some((table.begin(index)?, table.length_of(index)?))).collect()
}
