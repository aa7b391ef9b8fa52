//! How a call site came to hold what it holds: the lowest and the highest live bytes of a bounded number
//! of equal pieces of the time between its first event and its last. Pieces get longer as that time does.

use super::activity::{Active, Activity};

/// Pieces at most.
pub const PIECES: usize = 64;

/// The shortest piece is 2 to the power of this many nanoseconds: half a millisecond.
const FIRST_SHIFT: u8 = 19;

/// What was in one piece of time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Piece {
    index: u8,
    low: u64,
    high: u64,
    /// At its end.
    live: u64,
}

impl Piece {
    fn at(index: u8, live: u64) -> Self {
        Self { index, low: live, high: live, live }
    }

    fn add(&mut self, live: u64) {
        self.low = self.low.min(live);
        self.high = self.high.max(live);
        self.live = live;
    }
}

/// What happened at a site.
#[derive(Clone, Debug)]
pub struct History {
    /// Its first event.
    origin: Active,
    last: Active,
    shift: u8,
    /// Those that are over and in which something happened.
    over: Vec<Piece>,
    current: Piece,
    /// Allocations before which something was freed since the last one, anywhere.
    repetitions: u64,
    frees: u64,
}

/// Lowest and highest live bytes in a piece of time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Extent {
    /// The lowest.
    pub low: u64,
    /// The highest.
    pub high: u64,
}

/// A history written out: as many equal pieces as there are between two moments.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Timeline {
    /// Nanoseconds of a piece.
    pub piece_ns: u64,
    /// In their order.
    pub pieces: Vec<Extent>,
}

impl History {
    pub(super) fn new(activity: &Activity) -> Self {
        let origin = activity.now();
        Self {
            origin,
            last: origin,
            shift: FIRST_SHIFT,
            over: Vec::new(),
            current: Piece::at(0, 0),
            repetitions: 0,
            frees: activity.frees(),
        }
    }

    /// The site holds this many bytes from now on.
    pub(super) fn note(&mut self, live: u64, activity: &Activity) {
        self.last = activity.now();
        let index = self.index();
        if index != self.current.index {
            self.over.push(self.current);
            self.current = Piece::at(index, self.current.live);
        }
        self.current.add(live);
    }

    /// What it holds was allocated, not given back to it.
    pub(super) fn note_alloc(&mut self, activity: &Activity) {
        if self.repetitions == 0 || self.frees != activity.frees() {
            self.repetitions += 1;
            self.frees = activity.frees();
        }
    }

    /// The piece of the last event; makes pieces longer where there would be too many.
    fn index(&mut self) -> u8 {
        let since = self.last.0.saturating_sub(self.origin.0);
        loop {
            match u8::try_from(since >> self.shift) {
                Ok(index) if usize::from(index) < PIECES => return index,
                _ => self.coarsen(),
            }
        }
    }

    fn coarsen(&mut self) {
        self.shift += 1;
        let mut over: Vec<Piece> = Vec::with_capacity(self.over.len() / 2 + 1);
        for piece in self.over.drain(..).chain([self.current]) {
            let index = piece.index / 2;
            match over.last_mut() {
                Some(before) if before.index == index => {
                    before.low = before.low.min(piece.low);
                    before.high = before.high.max(piece.high);
                    before.live = piece.live;
                }
                _ => over.push(Piece { index, ..piece }),
            }
        }
        // There is the current one at least.
        if let Some(current) = over.pop() {
            self.current = current;
        }
        self.over = over;
    }

    /// When it began.
    pub fn origin(&self) -> Active {
        self.origin
    }

    /// Its last event.
    pub fn last(&self) -> Active {
        self.last
    }

    /// Passes of a loop, as far as memory can tell: allocations before which something was freed since
    /// the last one.
    pub fn repetitions(&self) -> u64 {
        self.repetitions
    }

    /// Adds what happened at another site that turned out to be the same. Where both change in a piece
    /// of time, the lowest of it is a lower bound and the highest an upper one.
    pub fn merge(&mut self, other: &Self) {
        let (from, to) = (self.origin.min(other.origin), self.last.max(other.last));
        let mut shift = self.shift.max(other.shift);
        while (to.0 - from.0) >> shift >= PIECES as u64 {
            shift += 1;
        }
        let count = ((to.0 - from.0) >> shift) as usize + 1;
        let (mine, others) = (self.spread(from, shift, count), other.spread(from, shift, count));
        let mut pieces = mine.into_iter().zip(others).enumerate().map(|(index, (a, b))| Piece {
            index: index as u8,
            low: a.low.saturating_add(b.low),
            high: a.high.saturating_add(b.high),
            live: a.live.saturating_add(b.live),
        });
        let last = pieces.next_back().unwrap_or(self.current);
        let over = pieces.collect();
        *self = Self {
            origin: from,
            last: to,
            shift,
            over,
            current: last,
            repetitions: self.repetitions.saturating_add(other.repetitions),
            frees: self.frees.max(other.frees),
        };
    }

    /// From its first event to a moment that is not before its last one.
    pub fn timeline(&self, end: Active) -> Timeline {
        let end = end.max(self.last);
        let mut shift = self.shift;
        while (end.0 - self.origin.0) >> shift >= PIECES as u64 {
            shift += 1;
        }
        let count = ((end.0 - self.origin.0) >> shift) as usize + 1;
        let pieces = self.spread(self.origin, shift, count);
        let extent = |piece: Piece| Extent { low: piece.low, high: piece.high };
        Timeline { piece_ns: 1 << shift, pieces: pieces.into_iter().map(extent).collect() }
    }

    /// Every piece of a grid that is not finer and begins not later.
    fn spread(&self, from: Active, shift: u8, count: usize) -> Vec<Piece> {
        let mut pieces: Vec<Option<Piece>> = vec![None; count];
        for piece in self.over.iter().chain([&self.current]) {
            let begin = self.origin.0 + (u64::from(piece.index) << self.shift);
            // The current one ends with the last event.
            let end = (begin + (1 << self.shift) - 1).min(self.last.0).max(begin);
            let place = |moment: u64| ((moment - from.0) >> shift) as usize;
            for index in place(begin)..=place(end).min(count - 1) {
                let Some(slot) = pieces.get_mut(index) else { break };
                match slot {
                    Some(before) => {
                        before.low = before.low.min(piece.low);
                        before.high = before.high.max(piece.high);
                        before.live = piece.live;
                    }
                    None => *slot = Some(Piece { index: index as u8, ..*piece }),
                }
            }
        }
        let mut live = 0;
        let fill = |(index, slot): (usize, Option<Piece>)| {
            let piece = match slot {
                // What was there when the piece began is in it.
                Some(piece) => piece,
                None => Piece::at(index as u8, live),
            };
            live = piece.live;
            piece
        };
        pieces.into_iter().enumerate().map(fill).collect()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Every change of a site with its time; nothing is forgotten.
    type Changes = Vec<(u64, u64)>;

    fn history(changes: &Changes) -> (History, Activity) {
        let mut activity = Activity::default();
        activity.note(0);
        let mut history = History::new(&activity);
        let mut time = 0;
        for &(after, live) in changes {
            // Longer pauses count as this one.
            time += after.min(200_000_000);
            activity.note(time);
            history.note(live, &activity);
        }
        (history, activity)
    }

    /// The lowest and the highest in each piece, found by looking at all changes.
    fn naive(changes: &Changes, timeline: &Timeline) -> Vec<Extent> {
        let mut at: Vec<(u64, u64)> = vec![(0, 0)];
        for &(after, live) in changes {
            at.push((at.last().map_or(0, |(time, _)| *time) + after.min(200_000_000), live));
        }
        let level = |time: u64| {
            at.iter().take_while(|(t, _)| *t < time).last().map_or(0, |(_, live)| *live)
        };
        (0..timeline.pieces.len() as u64)
            .map(|index| {
                let (from, to) = (index * timeline.piece_ns, (index + 1) * timeline.piece_ns);
                let inside = at.iter().filter(|(time, _)| (from..to).contains(time));
                let levels: Vec<u64> = inside.map(|(_, live)| *live).chain([level(from)]).collect();
                let low = levels.iter().copied().min().unwrap_or(0);
                Extent { low, high: levels.iter().copied().max().unwrap_or(0) }
            })
            .collect()
    }

    fn changes() -> impl Strategy<Value = Changes> {
        let pause = prop_oneof![0..1000u64, 0..1_000_000u64, 0..200_000_000u64];
        prop::collection::vec((pause, 0..1u64 << 40), 1..120)
    }

    proptest! {
        #[test]
        fn it_is_what_all_changes_say(changes in changes()) {
            let (history, activity) = history(&changes);
            let timeline = history.timeline(activity.now());
            prop_assert!(timeline.pieces.len() <= PIECES);
            prop_assert_eq!(naive(&changes, &timeline), timeline.pieces);
        }

        /// A site that is two in the ledger: bounds hold for the sum, and at the end it is exact.
        #[test]
        fn merged_ones_bound_the_sum(a in changes(), b in changes()) {
            let mut activity = Activity::default();
            activity.note(0);
            let (mut first, mut second) = (History::new(&activity), History::new(&activity));
            let (mut time, mut levels) = (0, (0, 0));
            let mut sums = Vec::new();
            for (index, &(after, live)) in a.iter().chain(&b).enumerate() {
                time += after.min(200_000_000);
                activity.note(time);
                if index % 2 == 0 {
                    levels.0 = live;
                    first.note(live, &activity);
                } else {
                    levels.1 = live;
                    second.note(live, &activity);
                }
                sums.push((time, levels.0 + levels.1));
            }
            let live = first.current.live + second.current.live;
            first.merge(&second);
            prop_assert_eq!(first.current.live, live);
            let timeline = first.timeline(activity.now());
            for (time, sum) in sums {
                let piece = timeline.pieces[(time / timeline.piece_ns) as usize];
                prop_assert!(piece.low <= sum && sum <= piece.high, "{sum} at {time}: {piece:?}");
            }
        }
    }

    #[test]
    fn it_is_bounded() {
        let mut activity = Activity::default();
        let mut history = History::new(&activity);
        for step in 0..1_000_000 {
            activity.note(step * 1_000_000);
            history.note_alloc(&activity);
            history.note(step, &activity);
        }
        assert!(history.over.len() < PIECES);
        assert_eq!(history.repetitions(), 1, "nothing was freed");
    }
}
