//! A live block, in as few bytes as it takes: a program may have millions.

use hdrhistogram::Histogram;

use crate::model::{self, StackIndex};

/// A block that a pool handed out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Block {
    /// Bytes.
    pub size: u64,
    /// Who allocated it.
    pub stack: StackIndex,
    /// Bytes that were asked for, if known: at most its size.
    pub requested: Option<u64>,
    /// When.
    pub born: Born,
}

/// Bits of a size: addresses of today's processors have no more.
const SIZE_BITS: u32 = 48;
const MAX: u64 = (1 << SIZE_BITS) - 1;

/// The same in 16 bytes. Of a size of 256 TiB and more, which no memory has, only that much is kept; and
/// what was asked for is not known where it is less than the size by 4 GiB or more.
#[derive(Clone, Copy, Debug)]
pub(super) struct Packed {
    /// The size, and above it when.
    size: u64,
    /// What was not asked for; [`u32::MAX`] if not known.
    rest: u32,
    stack: StackIndex,
}

impl From<Block> for Packed {
    fn from(block: Block) -> Self {
        let size = block.size.min(MAX);
        let rest = block.requested.map(|requested| size.saturating_sub(requested));
        let rest = rest.and_then(|rest| u32::try_from(rest).ok()).unwrap_or(u32::MAX);
        Self { size: size | u64::from(block.born.0) << SIZE_BITS, rest, stack: block.stack }
    }
}

impl From<Packed> for Block {
    fn from(packed: Packed) -> Self {
        let size = packed.size & MAX;
        let requested = (packed.rest != u32::MAX).then(|| size - u64::from(packed.rest).min(size));
        let born = Born((packed.size >> SIZE_BITS) as u16);
        Self { size, stack: packed.stack, requested, born }
    }
}

/// Milliseconds from the first event of the ledger, less at most a thousandth of them: 5 bits say how often
/// the other 11 are to be doubled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Born(u16);

const MANTISSA_BITS: u32 = 11;

impl Born {
    /// So many nanoseconds after the first event.
    pub fn at(since_ns: u64) -> Self {
        let milliseconds = since_ns / 1_000_000;
        let doubled = (u64::BITS - milliseconds.leading_zeros()).saturating_sub(MANTISSA_BITS);
        Self((doubled << MANTISSA_BITS) as u16 | (milliseconds >> doubled) as u16)
    }

    /// Milliseconds from then to so many nanoseconds after the first event.
    pub fn age(self, since_ns: u64) -> u64 {
        let mantissa = u64::from(self.0) & ((1 << MANTISSA_BITS) - 1);
        (since_ns / 1_000_000).saturating_sub(mantissa << (self.0 >> MANTISSA_BITS))
    }
}

/// How old blocks are, in milliseconds and to a hundredth.
#[derive(Clone, Debug, Default)]
pub struct Ages(Option<Histogram<u64>>);

impl Ages {
    pub(super) fn add(&mut self, milliseconds: u64) {
        if self.0.is_none() {
            // Two digits are allowed.
            self.0 = Histogram::new(2).ok();
        }
        if let Some(histogram) = &mut self.0 {
            // It grows.
            let _ = histogram.record(milliseconds);
        }
    }

    /// Adds those of another site.
    pub fn merge(&mut self, other: &Self) {
        match (&mut self.0, &other.0) {
            // Both grow, so nothing can be too large.
            (Some(mine), Some(others)) => mine.add(others).unwrap_or_default(),
            (None, Some(others)) => self.0 = Some(others.clone()),
            (_, None) => {}
        }
    }

    /// In seconds; `None` if there are no blocks.
    pub fn summary(&self) -> Option<model::Ages> {
        let histogram = self.0.as_ref().filter(|histogram| !histogram.is_empty())?;
        let seconds = |milliseconds: u64| milliseconds as f64 / 1000.0;
        Some(model::Ages {
            min: seconds(histogram.min()),
            median: seconds(histogram.value_at_quantile(0.5)),
            p90: seconds(histogram.value_at_quantile(0.9)),
            max: seconds(histogram.max()),
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const NEVER: Born = Born(0);

    proptest! {
        #[test]
        fn nothing_is_lost(size in 0..MAX, rest in prop::option::of(0..u32::MAX), stack: u32, born: u16) {
            let requested = rest.map(|rest| size.saturating_sub(u64::from(rest)));
            let block = Block { size, stack: StackIndex(stack), requested, born: Born(born) };
            prop_assert_eq!(Block::from(Packed::from(block)), block);
        }

        #[test]
        fn ages_are_right_to_a_thousandth(born in 0u64..1 << 40, age in 0u64..1 << 40) {
            let found = Born::at(born * 1_000_000).age((born + age) * 1_000_000);
            prop_assert!(age <= found && found <= age + born / 1000, "{born} {age}: {found}");
        }
    }

    #[test]
    fn it_is_small_and_bounded() {
        assert_eq!(size_of::<Packed>(), 16);
        let (stack, requested) = (StackIndex(1), Some(u64::MAX));
        let kept =
            Block::from(Packed::from(Block { size: u64::MAX, stack, requested, born: NEVER }));
        assert_eq!((kept.size, kept.requested), (MAX, Some(MAX)));
        let requested = Some(1 << 33);
        let kept =
            Block::from(Packed::from(Block { size: 1 << 34, stack, requested, born: NEVER }));
        assert_eq!((kept.size, kept.requested), (1 << 34, None));
    }

    #[test]
    fn ages_of_blocks() {
        let mut ages = Ages::default();
        assert_eq!(ages.summary(), None);
        let mut other = Ages::default();
        (0..=99).for_each(|tenths| other.add(tenths * 100));
        ages.merge(&other);
        ages.merge(&Ages::default());
        let summary = ages.summary().unwrap();
        let near = |value: f64, expected: f64| (value - expected).abs() <= expected / 50.0;
        assert!(summary.min == 0.0 && near(summary.median, 4.9), "{summary:?}");
        assert!(near(summary.p90, 8.9) && near(summary.max, 9.9), "{summary:?}");
    }
}
