//! Segments that a pool gives back to the driver: the driver's call tells the address, the pool tells
//! address and size, and either may be first. Only together they say how much of a segment from before
//! attach is gone.

use std::collections::BTreeMap;

/// Halves that wait for the other one. It comes at once from the same thread, if it has a probe, so few
/// are kept.
const KEPT: usize = 4096;

/// What is known of such segments.
#[derive(Debug, Default)]
pub(super) struct Returned {
    /// Freed by the driver, by address: the size if it was traced. One that the pool tells as a whole
    /// may go in pieces.
    freed: BTreeMap<u64, Option<u64>>,
    /// Told by the pool and then still there: address and size.
    told: BTreeMap<u64, u64>,
}

impl Returned {
    /// The driver frees memory, of this size if it was traced; returns whether its pool has told of it.
    pub fn freed(&mut self, address: u64, size: Option<u64>) -> bool {
        let before = self.told.range(..=address).next_back();
        if before.is_some_and(|(&start, &size)| address - start < size) {
            return true;
        }
        if self.freed.len() >= KEPT {
            self.freed.clear();
        }
        self.freed.insert(address, size);
        false
    }

    /// The driver has refused to free it.
    pub fn not_freed(&mut self, address: u64) {
        self.freed.remove(&address);
    }

    /// The pool tells of a segment; returns the bytes that the driver has freed of it and that were
    /// traced.
    pub fn told(&mut self, address: u64, size: u64) -> u64 {
        let range = address..address.saturating_add(size.max(1));
        let pieces: Vec<(u64, Option<u64>)> =
            self.freed.range(range).map(|(&piece, &size)| (piece, size)).collect();
        for (piece, _) in &pieces {
            self.freed.remove(piece);
        }
        if pieces.is_empty() {
            if self.told.len() >= KEPT {
                self.told.clear();
            }
            self.told.insert(address, size);
        }
        pieces.iter().filter_map(|(_, size)| *size).fold(0, u64::saturating_add)
    }

    /// Every pool has told its totals since: what is not told of now is no pool's.
    pub fn forget_unknown(&mut self) {
        self.freed.retain(|_, size| size.is_some());
    }

    /// Whether the driver has freed something of which the size is not known yet.
    pub fn has_unknown(&self) -> bool {
        self.freed.values().any(Option::is_none)
    }
}
