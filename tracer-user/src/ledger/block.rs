//! A live block, in as few bytes as it takes: a program may have millions.

use crate::model::StackIndex;

/// A block that a pool handed out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Block {
    /// Bytes.
    pub size: u64,
    /// Who allocated it.
    pub stack: StackIndex,
    /// Bytes that were asked for, if known: at most its size.
    pub requested: Option<u64>,
}

/// Bits of a size: addresses of today's processors have no more.
const SIZE_BITS: u32 = 48;
const MAX: u64 = (1 << SIZE_BITS) - 1;

/// The same in 16 bytes. Of a size of 256 TiB and more, which no memory has, only that much is kept.
#[derive(Clone, Copy, Debug)]
pub(super) struct Packed {
    /// The size, and above it the high bits of the rest.
    size: u64,
    /// What was not asked for: the low bits of the rest; [`MAX`] if not known.
    rest: u32,
    stack: StackIndex,
}

impl From<Block> for Packed {
    fn from(block: Block) -> Self {
        let size = block.size.min(MAX);
        let rest = block.requested.map_or(MAX, |requested| size.saturating_sub(requested));
        Self { size: size | rest >> 32 << SIZE_BITS, rest: rest as u32, stack: block.stack }
    }
}

impl From<Packed> for Block {
    fn from(packed: Packed) -> Self {
        let size = packed.size & MAX;
        let rest = packed.size >> SIZE_BITS << 32 | u64::from(packed.rest);
        let requested = (rest != MAX).then(|| size.saturating_sub(rest));
        Self { size, stack: packed.stack, requested }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn nothing_is_lost(size in 0..MAX, asked in prop::option::of(0.0..=1.0), stack: u32) {
            let requested = asked.map(|part: f64| (size as f64 * part) as u64).map(|r| r.min(size));
            let block = Block { size, stack: StackIndex(stack), requested };
            prop_assert_eq!(Block::from(Packed::from(block)), block);
        }
    }

    #[test]
    fn it_is_small_and_bounded() {
        assert_eq!(size_of::<Packed>(), 16);
        let block = Block { size: u64::MAX, stack: StackIndex(1), requested: Some(u64::MAX) };
        let kept = Block::from(Packed::from(block));
        assert_eq!((kept.size, kept.requested), (MAX, Some(MAX)));
    }
}
