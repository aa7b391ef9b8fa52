//! From an instruction to its line, in the three encodings that CPython has used. Total: hostile
//! bytes give `None` or a wrong line, never a panic or an endless loop.

/// Which encoding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LineTableKind {
    /// `co_lnotab` (to 3.9): pairs of address increment and signed line increment.
    /// CPython 3.9, `Objects/lnotab_notes.txt`.
    Lnotab,
    /// `co_linetable` of 3.10: pairs of range length and signed line increment, -128 for a range
    /// without line. PEP 626.
    Linetable,
    /// `co_linetable` from 3.11 on: location entries. CPython 3.11, `Objects/locations.md`.
    Locations,
}

impl LineTableKind {
    /// The encoding of CPython 3.`minor`.
    pub const fn of_minor(minor: u8) -> Self {
        match minor {
            ..=9 => Self::Lnotab,
            10 => Self::Linetable,
            _ => Self::Locations,
        }
    }
}

/// A code object's line table.
#[derive(Clone, Copy, Debug)]
pub struct LineTable<'a> {
    /// Its encoding.
    pub kind: LineTableKind,
    /// `co_firstlineno`.
    pub first_line: i32,
    /// Its bytes.
    pub bytes: &'a [u8],
}

impl LineTable<'_> {
    /// The line of the instruction at byte offset `instruction`, as `frame.f_lineno` gives it: a
    /// negative one, before the first instruction, is on `co_firstlineno` (`PyCode_Addr2Line`).
    /// `None` if it has none, or lies beyond a table that is not `complete`.
    pub fn line(&self, instruction: i32, complete: bool) -> Option<u32> {
        let Ok(at) = u64::try_from(instruction) else {
            return u32::try_from(self.first_line).ok();
        };
        let mut found = None;
        self.ranges(complete, |end, line| {
            found = line.filter(|_| at < end);
            at >= end
        });
        found
    }

    /// Everything that it says, for many questions.
    pub fn index(&self, complete: bool) -> LineIndex {
        let mut index = LineIndex {
            first_line: u32::try_from(self.first_line).ok(),
            ends: Vec::new(),
            lines: Vec::new(),
        };
        self.ranges(complete, |end, line| {
            // An empty range is nobody's.
            if index.ends.last().is_none_or(|&last| last < end) {
                index.ends.push(end);
                index.lines.push(line);
            }
            true
        });
        index
    }

    /// The first and the last line that code was written on. What the compiler adds at the top has line 0,
    /// or that of the whole from 3.11 on, without columns. With it the leftmost column, where there are any:
    /// of two statements on one line the later one's is larger.
    pub fn span(&self) -> Option<(u32, u32, Option<u32>)> {
        let mut with_columns: Option<(u32, u32)> = None;
        let mut leftmost: Option<u32> = None;
        let mut any: Option<(u32, u32)> = None;
        let widen = |span: &mut Option<(u32, u32)>, line: u32| {
            *span = Some(span.map_or((line, line), |(a, b)| (a.min(line), b.max(line))));
        };
        let mut last_end = 0;
        let mut see = |end, line: Option<i64>, column: Option<u32>| {
            // An empty range is nobody's.
            if let Some(line) = line.and_then(|line| u32::try_from(line).ok())
                && line > 0
                && end > last_end
            {
                widen(&mut any, line);
                if let Some(column) = column {
                    widen(&mut with_columns, line);
                    leftmost = Some(leftmost.map_or(column, |known| known.min(column)));
                }
            }
            last_end = end;
            true
        };
        match self.kind {
            LineTableKind::Lnotab => self.lnotab(true, |end, line| see(end, line, None)),
            LineTableKind::Linetable => self.linetable(|end, line| see(end, line, None)),
            LineTableKind::Locations => {
                self.locations(see);
            }
        }
        let (first, last) = with_columns.or(any)?;
        Some((first, last, leftmost))
    }

    /// Hands every range to `see`: its end, a byte offset, and its line, if it has one. Ranges come in
    /// order; `false` ends it.
    fn ranges(&self, complete: bool, mut see: impl FnMut(u64, Option<u32>) -> bool) {
        let see = |end, line: Option<i64>| see(end, line.and_then(|line| u32::try_from(line).ok()));
        match self.kind {
            LineTableKind::Lnotab => self.lnotab(complete, see),
            LineTableKind::Linetable => self.linetable(see),
            LineTableKind::Locations => {
                let mut see = see;
                self.locations(|end, line, _| see(end, line));
            }
        }
    }

    fn lnotab(&self, complete: bool, mut see: impl FnMut(u64, Option<i64>) -> bool) {
        let mut address = 0u64;
        let mut line = i64::from(self.first_line);
        for pair in self.bytes.chunks_exact(2) {
            address += u64::from(pair[0]);
            if !see(address, Some(line)) {
                return;
            }
            line += i64::from(pair[1] as i8);
        }
        // The last line goes on to the end of the code.
        see(u64::MAX, complete.then_some(line));
    }

    fn linetable(&self, mut see: impl FnMut(u64, Option<i64>) -> bool) {
        let mut end = 0u64;
        let mut line = i64::from(self.first_line);
        for pair in self.bytes.chunks_exact(2) {
            end += u64::from(pair[0]);
            let delta = pair[1] as i8;
            if delta != -128 {
                line += i64::from(delta);
            }
            if !see(end, (delta != -128).then_some(line)) {
                return;
            }
        }
    }

    /// `None` where it is cut or malformed.
    fn locations(&self, mut see: impl FnMut(u64, Option<i64>, Option<u32>) -> bool) -> Option<()> {
        let mut bytes = self.bytes.iter().copied();
        let mut end = 0u64;
        let mut line = i64::from(self.first_line);
        while let Some(first) = bytes.next() {
            // The first byte of an entry has the top bit, its code, and the length in code units.
            let code = (first >> 3) & 15;
            end += 2 * (u64::from(first & 7) + 1);
            let column = match code {
                13 | 15 => None,
                14 => {
                    line += signed_varint(&mut bytes)?;
                    varint(&mut bytes)?;
                    // One more than it is.
                    let column = varint(&mut bytes)?.saturating_sub(1);
                    varint(&mut bytes)?;
                    Some(u32::try_from(column).unwrap_or(u32::MAX))
                }
                10..=12 => {
                    line += i64::from(code - 10);
                    let column = bytes.next()?;
                    bytes.next()?;
                    Some(column.into())
                }
                _ => Some(u32::from(code) * 8 + u32::from(bytes.next()? >> 4 & 7)),
            };
            if code == 13 {
                line += signed_varint(&mut bytes)?;
            }
            if !see(end, (code != 15).then_some(line), column) {
                break;
            }
        }
        Some(())
    }
}

/// A line table that was gone through once: a question costs a binary search.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LineIndex {
    first_line: Option<u32>,
    /// Where each range ends.
    ends: Vec<u64>,
    lines: Vec<Option<u32>>,
}

impl LineIndex {
    /// What [`LineTable::line`] says.
    pub fn line(&self, instruction: i32) -> Option<u32> {
        let Ok(at) = u64::try_from(instruction) else { return self.first_line };
        let range = self.ends.partition_point(|&end| end <= at);
        self.lines.get(range).copied().flatten()
    }
}

/// Six bits a byte, least significant first; bit 6 says that more follow.
fn varint(bytes: &mut impl Iterator<Item = u8>) -> Option<u64> {
    let mut value = 0u64;
    for shift in (0..60).step_by(6) {
        let byte = bytes.next()?;
        value |= u64::from(byte & 63) << shift;
        if byte & 64 == 0 {
            return Some(value);
        }
    }
    None
}

/// The sign is the lowest bit.
fn signed_varint(bytes: &mut impl Iterator<Item = u8>) -> Option<i64> {
    let value = varint(bytes)?;
    let magnitude = (value >> 1) as i64;
    Some(if value & 1 == 1 { -magnitude } else { magnitude })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn lines(kind: LineTableKind, bytes: &[u8], offsets: &[i32]) -> Vec<Option<u32>> {
        let table = LineTable { kind, first_line: 10, bytes };
        offsets.iter().map(|&offset| table.line(offset, true)).collect()
    }

    #[test]
    fn lnotab_goes_forth_and_back() {
        let bytes = [0, 1, 6, 1, 4, 0xff];
        let found = lines(LineTableKind::Lnotab, &bytes, &[-1, 0, 4, 6, 8, 10, 99]);
        assert_eq!(found, [10, 11, 11, 12, 12, 11, 11].map(Some));
    }

    #[test]
    fn linetable_has_ranges_without_line() {
        let bytes = [4, 1, 2, 0x80, 6, 2];
        let found = lines(LineTableKind::Linetable, &bytes, &[0, 2, 4, 6, 10, 12]);
        assert_eq!(found, [Some(11), Some(11), None, Some(13), Some(13), None]);
    }

    #[test]
    fn locations_of_every_form() {
        // Short (code 0, 1 unit), one-line (code 11, 2 units, +1), no columns (13, +2), long (14,
        // -1), none (15).
        let bytes = [0x80, 0x00, 0xd9, 0x01, 0x02, 0xe8, 0x04, 0xf0, 0x03, 0x00, 0x01, 0x01, 0xf8];
        let found = lines(LineTableKind::Locations, &bytes, &[0, 2, 4, 6, 8, 10, 12]);
        assert_eq!(found, [Some(10), Some(11), Some(11), Some(13), Some(12), None, None]);
    }

    /// A frame that has not begun is on the line of its first decorator, whatever the table says.
    #[test]
    fn before_the_first_instruction_is_the_first_line() {
        for kind in [LineTableKind::Lnotab, LineTableKind::Linetable, LineTableKind::Locations] {
            for bytes in [&[][..], &[0, 3, 6, 1], &[0xd8, 0x01, 0x02]] {
                assert_eq!(lines(kind, bytes, &[-1, i32::MIN]), [Some(10), Some(10)]);
            }
        }
    }

    /// The lines before a cut are right, those after it are not known.
    #[test]
    fn a_table_that_is_cut_tells_its_beginning() {
        let table = |kind, bytes| LineTable { kind, first_line: 10, bytes };
        let lnotab = table(LineTableKind::Lnotab, &[0, 1, 6]);
        assert_eq!([0, 6].map(|at| lnotab.line(at, false)), [None, None]);
        let lnotab = table(LineTableKind::Lnotab, &[0, 1, 6, 1]);
        assert_eq!([0, 4, 6].map(|at| lnotab.line(at, false)), [Some(11), Some(11), None]);
        let linetable = table(LineTableKind::Linetable, &[4, 1, 6]);
        assert_eq!([0, 4].map(|at| linetable.line(at, false)), [Some(11), None]);
        let locations = table(LineTableKind::Locations, &[0x80, 0x00, 0xf0, 0x02, 0x00]);
        assert_eq!([0, 2].map(|at| locations.line(at, false)), [Some(10), None]);
    }

    proptest! {
        #[test]
        fn any_bytes_are_survived(
            bytes in proptest::collection::vec(any::<u8>(), 0..300),
            first_line in any::<i32>(),
            at in any::<i32>(),
            complete in any::<bool>(),
        ) {
            for kind in [LineTableKind::Lnotab, LineTableKind::Linetable, LineTableKind::Locations] {
                let table = LineTable { kind, first_line, bytes: &bytes };
                let index = table.index(complete);
                for at in [at, at % 1000, -1] {
                    prop_assert_eq!(index.line(at), table.line(at, complete));
                }
            }
        }
    }
}
