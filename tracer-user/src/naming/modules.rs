//! Which file the code at an address is from.

use std::{collections::BTreeMap, ops::Range, sync::Arc};

use crate::model::CodeAddress;

/// Pages in no file that are remembered as such.
const MAX_FOREIGN: usize = 1024;

const PAGE: u64 = 4096;

/// What is known of a process's code. A library may be gone when one of its calls is looked at, so
/// what was mapped once stays until something else is there.
#[derive(Debug, Default)]
pub(super) struct Modules {
    /// By first address: the first one after it, and the file, if it is one.
    ranges: BTreeMap<u64, (u64, Option<Arc<str>>)>,
    foreign: usize,
}

impl Modules {
    /// Code of a file that is mapped at a range.
    pub(super) fn map(&mut self, range: Range<u64>, file: Arc<str>) {
        self.set(range, Some(file));
    }

    /// Code that is in no file.
    pub(super) fn note_foreign(&mut self, address: CodeAddress) {
        if self.get(address).is_none() {
            let start = address.0 & !(PAGE - 1);
            self.foreign += 1;
            self.set(start..start.saturating_add(PAGE), None);
        }
    }

    /// Whether there is nothing to be found out about an address: it is known, or too many already
    /// were in no file.
    pub(super) fn is_settled(&self, address: CodeAddress) -> bool {
        self.get(address).is_some() || self.foreign >= MAX_FOREIGN
    }

    /// The file that an address is in.
    pub(super) fn find(&self, address: CodeAddress) -> Option<&Arc<str>> {
        self.get(address)?.as_ref()
    }

    fn get(&self, address: CodeAddress) -> Option<&Option<Arc<str>>> {
        let (_, (end, file)) = self.ranges.range(..=address.0).next_back()?;
        (address.0 < *end).then_some(file)
    }

    /// What overlaps was there before.
    fn set(&mut self, range: Range<u64>, file: Option<Arc<str>>) {
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
        self.ranges.insert(range.start, (range.end, file));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_mapped_later_is_there_now() {
        let mut modules = Modules::default();
        modules.map(0x1000..0x3000, "liba.so".into());
        modules.map(0x3000..0x4000, "libb.so".into());
        let find = |modules: &Modules, address| {
            modules.find(CodeAddress(address)).map(ToString::to_string)
        };
        assert_eq!(find(&modules, 0xfff), None);
        assert_eq!(find(&modules, 0x2fff).as_deref(), Some("liba.so"));
        assert_eq!(find(&modules, 0x3000).as_deref(), Some("libb.so"));
        assert_eq!(find(&modules, 0x4000), None);
        modules.map(0x2000..0x3800, "libc.so".into());
        assert_eq!(find(&modules, 0x2fff).as_deref(), Some("libc.so"));
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
        modules.map(0x5000..0x6000, "liba.so".into());
        assert_eq!(modules.find(address).map(|file| &**file), Some("liba.so"));
        for page in 0..2 * MAX_FOREIGN as u64 {
            let address = CodeAddress(0x10_0000 + page * PAGE);
            if !modules.is_settled(address) {
                modules.note_foreign(address);
            }
        }
        assert_eq!(modules.foreign, MAX_FOREIGN);
    }
}
