//! Which file the code at an address is from.

use std::{collections::BTreeMap, ops::Range};

use super::places::FileIndex;
use crate::model::CodeAddress;

/// Pages in no file that are remembered as such.
const MAX_FOREIGN: usize = 1024;

const PAGE: u64 = 4096;

/// Code of a file.
#[derive(Clone, Copy, Debug)]
struct Code {
    file: FileIndex,
    /// Offset in the file of the range's first byte.
    offset: u64,
}

/// What is known of a process's code. A library may be gone when one of its calls is looked at, so
/// what was mapped once stays until something else is there.
#[derive(Debug, Default)]
pub(super) struct Modules {
    /// By first address: the first one after it, and the code, if it is a file's.
    ranges: BTreeMap<u64, (u64, Option<Code>)>,
    foreign: usize,
}

impl Modules {
    /// Code that is mapped at a range, from an offset in a file on.
    pub(super) fn map(&mut self, range: Range<u64>, file: FileIndex, offset: u64) {
        self.set(range, Some(Code { file, offset }));
    }

    /// Code that is in no file.
    pub(super) fn note_foreign(&mut self, address: CodeAddress) {
        if self.range(address).is_none() {
            let start = address.0 & !(PAGE - 1);
            self.foreign += 1;
            self.set(start..start.saturating_add(PAGE), None);
        }
    }

    /// Whether there is nothing to be found out about an address: it is known, or too many already
    /// were in no file.
    pub(super) fn is_settled(&self, address: CodeAddress) -> bool {
        self.range(address).is_some() || self.foreign >= MAX_FOREIGN
    }

    /// The file that an address is in, and its offset there.
    pub(super) fn find(&self, address: CodeAddress) -> Option<(FileIndex, u64)> {
        let (start, code) = self.range(address)?;
        let Code { file, offset } = code?;
        Some((file, offset.saturating_add(address.0 - start)))
    }

    /// What is known around an address, and where that begins.
    fn range(&self, address: CodeAddress) -> Option<(u64, Option<Code>)> {
        let (&start, &(end, code)) = self.ranges.range(..=address.0).next_back()?;
        (address.0 < end).then_some((start, code))
    }

    /// What overlaps was there before.
    fn set(&mut self, range: Range<u64>, code: Option<Code>) {
        let before = self.ranges.range(..range.end).rev();
        let old: Vec<u64> = before
            .take_while(|(_, (end, _))| *end > range.start)
            .map(|(start, _)| *start)
            .collect();
        for start in old {
            if let Some((_, None)) = self.ranges.remove(&start) {
                self.foreign -= 1;
            }
        }
        self.ranges.insert(range.start, (range.end, code));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_mapped_later_is_there_now() {
        let mut modules = Modules::default();
        let [a, b, c] = [0, 1, 2].map(FileIndex);
        modules.map(0x1000..0x3000, a, 0x5000);
        modules.map(0x3000..0x4000, b, 0);
        let find = |modules: &Modules, address| modules.find(CodeAddress(address));
        assert_eq!(find(&modules, 0xfff), None);
        assert_eq!(find(&modules, 0x2fff), Some((a, 0x6fff)));
        assert_eq!(find(&modules, 0x3000), Some((b, 0)));
        assert_eq!(find(&modules, 0x4000), None);
        modules.map(0x2000..0x3800, c, u64::MAX);
        assert_eq!(find(&modules, 0x2fff), Some((c, u64::MAX)));
        assert_eq!(find(&modules, 0x1000), None, "its library is gone");
        assert_eq!(find(&modules, 0x3900), None);
    }

    #[test]
    fn code_in_no_file_is_asked_for_once() {
        let mut modules = Modules::default();
        let address = CodeAddress(0x5123);
        assert!(!modules.is_settled(address));
        modules.note_foreign(address);
        assert!(modules.is_settled(CodeAddress(0x5fff)) && modules.find(address).is_none());
        modules.map(0x5000..0x6000, FileIndex(0), 0);
        assert_eq!(modules.find(address), Some((FileIndex(0), 0x123)));
        for page in 0..2 * MAX_FOREIGN as u64 {
            let address = CodeAddress(0x10_0000 + page * PAGE);
            if !modules.is_settled(address) {
                modules.note_foreign(address);
            }
        }
        assert_eq!(modules.foreign, MAX_FOREIGN);
    }
}
