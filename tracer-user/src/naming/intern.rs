//! Every string, place and stack once: a frame of a stack costs four bytes.

use std::sync::Arc;

use rustc_hash::{FxHashMap, FxHashSet};

use super::{
    cell::RunId,
    gap::{Absence, LINES_CUT, Outer, UNNAMED},
    places::PlaceIndex,
};
use crate::model::{Level, StackIndex};

/// Strings.
#[derive(Debug, Default)]
pub(super) struct Strings(FxHashSet<Arc<str>>);

impl Strings {
    pub(super) fn intern(&mut self, text: &str) -> Arc<str> {
        if let Some(known) = self.0.get(text) {
            return known.clone();
        }
        let text: Arc<str> = text.into();
        self.0.insert(text.clone());
        text
    }

    /// Forgets those that nobody else has.
    pub(super) fn sweep(&mut self) {
        self.0.retain(|text| Arc::strong_count(text) > 1);
    }
}

/// A line of a function.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Location {
    pub(super) function: Arc<str>,
    pub(super) qualified_name: Option<Arc<str>>,
    pub(super) file: Arc<str>,
    pub(super) line: Option<u32>,
    /// The run of the cell that it is in.
    pub(super) run: Option<RunId>,
    /// The line lies beyond the part of the line table that was captured.
    pub(super) is_cut: bool,
}

/// A [`Location`] in [`Locations`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct LocationIndex(u32);

impl LocationIndex {
    /// The frame of a code object that was not defined.
    pub(super) const UNKNOWN: Self = Self(0);
}

/// Locations.
#[derive(Debug)]
pub(super) struct Locations {
    places: Vec<Location>,
    by_content: FxHashMap<Location, LocationIndex>,
    /// Places that nobody has any more.
    free: Vec<LocationIndex>,
}

impl Locations {
    pub(super) fn new() -> Self {
        let mark: Arc<str> = "?".into();
        let unknown = Location {
            function: mark.clone(),
            qualified_name: None,
            file: mark,
            line: None,
            run: None,
            is_cut: false,
        };
        // Not in the map: a defined code object whose names are `?` is another one.
        Self { places: vec![unknown], by_content: FxHashMap::default(), free: Vec::new() }
    }

    pub(super) fn intern(&mut self, location: Location) -> LocationIndex {
        if let Some(&index) = self.by_content.get(&location) {
            return index;
        }
        let index = match self.free.pop() {
            Some(index) => {
                if let Some(place) = self.places.get_mut(index.0 as usize) {
                    *place = location.clone();
                }
                index
            }
            None => {
                self.places.push(location.clone());
                LocationIndex(self.places.len() as u32 - 1)
            }
        };
        self.by_content.insert(location, index);
        index
    }

    /// Forgets every place but those that are used.
    pub(super) fn sweep(&mut self, used: &FxHashSet<LocationIndex>) {
        let (places, free) = (&mut self.places, &mut self.free);
        self.by_content.retain(|_, index| {
            let is_used = used.contains(index);
            if !is_used && let Some(place) = places.get(LocationIndex::UNKNOWN.0 as usize).cloned()
            {
                places[index.0 as usize] = place;
                free.push(*index);
            }
            is_used
        });
    }

    /// Runs of cells that places are of.
    pub(super) fn runs(&self) -> impl Iterator<Item = RunId> {
        self.by_content.keys().filter_map(|location| location.run)
    }

    pub(super) fn get(&self, index: LocationIndex) -> Option<&Location> {
        self.places.get(index.0 as usize)
    }
}

/// A stack by content.
#[derive(Debug, PartialEq, Eq, Hash)]
pub(super) enum Stack {
    /// Its frames, innermost first; and whether it is not they that allocate, but a backward pass that they
    /// began.
    Taken { frames: Box<[LocationIndex]>, outer: Outer, backward: bool },
    /// None.
    Absent(Absence),
}

impl Stack {
    pub(super) fn frames(&self) -> &[LocationIndex] {
        match self {
            Self::Taken { frames, .. } => frames,
            Self::Absent(_) => &[],
        }
    }

    pub(super) fn is_backward(&self) -> bool {
        matches!(self, Self::Taken { backward: true, .. })
    }

    /// What is missing from it.
    pub(super) fn note(&self, locations: &Locations) -> Option<String> {
        match self {
            Self::Absent(absence) => Some(absence.note().to_owned()),
            Self::Taken { frames, outer, .. } => {
                let unnamed = frames.contains(&LocationIndex::UNKNOWN).then_some(UNNAMED);
                let is_cut =
                    |&frame: &LocationIndex| locations.get(frame).is_some_and(|at| at.is_cut);
                let cut = frames.iter().any(is_cut).then_some(LINES_CUT);
                let parts: Vec<&str> = [unnamed, cut, outer.note()].into_iter().flatten().collect();
                (!parts.is_empty()).then(|| parts.join("; "))
            }
        }
    }
}

#[derive(Debug)]
enum Entry {
    Known(Arc<Stack>),
    /// A placeholder: the definition has not come.
    Undefined,
    /// It came later, or it cannot come any more.
    Moved(StackIndex),
    /// A stack and the file that called from it, and the places in the file that did.
    Call(StackIndex, Arc<str>, Vec<PlaceIndex>),
    /// A call that failed, and the one place that made it.
    Failure(StackIndex, [PlaceIndex; 1]),
    /// Nobody has this index any more.
    Free,
}

/// Places that are kept of a stack and a file: what is in one line of Python calls from few.
const MAX_PLACES: usize = 16;

/// Stacks, and placeholders of those that are not defined.
#[derive(Debug)]
pub(super) struct Stacks {
    entries: Vec<Entry>,
    by_content: FxHashMap<Arc<Stack>, StackIndex>,
    by_call: FxHashMap<(StackIndex, Level, Arc<str>), StackIndex>,
    by_failure: FxHashMap<(StackIndex, PlaceIndex), StackIndex>,
    placeholders: usize,
    dropped: StackIndex,
    forgotten: StackIndex,
    free: Vec<StackIndex>,
}

impl Stacks {
    /// Placeholders that are handed out in all. An index stays with the ledger for good, so they
    /// cannot be taken back; past this, every undefined stack is the one dropped stack at once.
    const MAX_PLACEHOLDERS: usize = 64 * 1024;

    pub(super) fn new() -> Self {
        let mut stacks = Self {
            entries: Vec::new(),
            by_content: FxHashMap::default(),
            by_call: FxHashMap::default(),
            by_failure: FxHashMap::default(),
            placeholders: 0,
            dropped: StackIndex::NONE,
            forgotten: StackIndex::NONE,
            free: Vec::new(),
        };
        // The first is `StackIndex::NONE`.
        let frames = Box::new([]);
        stacks.intern(Stack::Taken { frames, outer: Outer::Complete, backward: false });
        stacks.dropped = stacks.intern(Stack::Absent(Absence::Dropped));
        stacks.forgotten = stacks.intern(Stack::Absent(Absence::Forgotten));
        stacks
    }

    pub(super) fn intern(&mut self, stack: Stack) -> StackIndex {
        if let Some(&index) = self.by_content.get(&stack) {
            return index;
        }
        let stack = Arc::new(stack);
        let index = self.push(Entry::Known(stack.clone()));
        self.by_content.insert(stack, index);
        index
    }

    /// A stack (a placeholder, maybe) together with the file that called from it for
    /// memory of a level.
    pub(super) fn intern_call(
        &mut self,
        stack: StackIndex,
        level: Level,
        file: Arc<str>,
    ) -> StackIndex {
        let call = (stack, level, file);
        if let Some(&index) = self.by_call.get(&call) {
            return index;
        }
        let index = self.push(Entry::Call(stack, call.2.clone(), Vec::new()));
        self.by_call.insert(call, index);
        index
    }

    /// A place of a call's file has made it.
    pub(super) fn add_place(&mut self, call: StackIndex, place: PlaceIndex) {
        if let Some(Entry::Call(_, _, places)) = self.entries.get_mut(call.0 as usize)
            && !places.contains(&place)
            && places.len() < MAX_PLACES
        {
            places.push(place);
        }
    }

    /// A call together with the place that made it.
    pub(super) fn intern_failure(&mut self, call: StackIndex, place: PlaceIndex) -> StackIndex {
        if let Some(&index) = self.by_failure.get(&(call, place)) {
            return index;
        }
        let index = self.push(Entry::Failure(call, [place]));
        self.by_failure.insert((call, place), index);
        index
    }

    /// The file that called from a stack.
    pub(super) fn caller(&self, index: StackIndex) -> Option<&Arc<str>> {
        match self.entries.get(index.0 as usize)? {
            Entry::Call(_, file, _) => Some(file),
            Entry::Failure(call, _) => self.caller(*call),
            _ => None,
        }
    }

    /// The places in that file that called.
    pub(super) fn places(&self, index: StackIndex) -> &[PlaceIndex] {
        match self.entries.get(index.0 as usize) {
            Some(Entry::Call(_, _, places)) => places,
            Some(Entry::Failure(_, place)) => place,
            _ => &[],
        }
    }

    /// An index for a stack whose definition may still come, while there are any left.
    pub(super) fn placeholder(&mut self) -> Option<StackIndex> {
        if self.placeholders == Self::MAX_PLACEHOLDERS {
            return None;
        }
        self.placeholders += 1;
        Some(self.push(Entry::Undefined))
    }

    /// Leads a placeholder to its stack. Anything else stays what it is.
    pub(super) fn resolve(&mut self, placeholder: StackIndex, to: StackIndex) {
        if let Some(entry @ Entry::Undefined) = self.entries.get_mut(placeholder.0 as usize) {
            *entry = Entry::Moved(to);
        }
    }

    /// The stack of which nothing will be known.
    pub(super) fn dropped(&self) -> StackIndex {
        self.dropped
    }

    /// Where an index leads at this moment; placeholders to the dropped stack, calls to their stack.
    pub(super) fn canonical(&self, index: StackIndex) -> StackIndex {
        match self.entries.get(index.0 as usize) {
            Some(Entry::Moved(to)) => *to,
            Some(Entry::Call(stack, ..) | Entry::Failure(stack, _)) => self.canonical(*stack),
            Some(Entry::Undefined) => self.dropped,
            Some(Entry::Known(_) | Entry::Free) | None => index,
        }
    }

    pub(super) fn get(&self, index: StackIndex) -> Option<&Stack> {
        match self.entries.get(self.canonical(index).0 as usize) {
            Some(Entry::Known(stack)) => Some(stack),
            _ => None,
        }
    }

    /// The stack of all that are not told apart any more.
    pub(super) fn forgotten(&self) -> StackIndex {
        self.forgotten
    }

    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.entries.len() - self.free.len()
    }

    /// Forgets every stack but those that are used, and what they lead to. Returns the places that are
    /// left.
    pub(super) fn sweep(
        &mut self,
        used: impl Iterator<Item = StackIndex>,
    ) -> FxHashSet<LocationIndex> {
        let mut keep = vec![false; self.entries.len()];
        let mut next: Vec<StackIndex> = used.collect();
        next.extend([StackIndex::NONE, self.dropped, self.forgotten]);
        let mut places = FxHashSet::default();
        while let Some(index) = next.pop() {
            let at = index.0 as usize;
            if keep.get(at) != Some(&false) {
                continue;
            }
            keep[at] = true;
            match &self.entries[at] {
                Entry::Known(stack) => places.extend(stack.frames()),
                Entry::Moved(to) | Entry::Call(to, ..) | Entry::Failure(to, _) => next.push(*to),
                Entry::Undefined | Entry::Free => {}
            }
        }
        self.by_content.retain(|_, index| keep[index.0 as usize]);
        self.by_call.retain(|_, index| keep[index.0 as usize]);
        self.by_failure.retain(|_, index| keep[index.0 as usize]);
        for (at, entry) in self.entries.iter_mut().enumerate().filter(|(at, _)| !keep[*at]) {
            if !matches!(entry, Entry::Free) {
                *entry = Entry::Free;
                self.free.push(StackIndex(at as u32));
            }
        }
        places
    }

    fn push(&mut self, entry: Entry) -> StackIndex {
        if let Some(index) = self.free.pop() {
            self.entries[index.0 as usize] = entry;
            return index;
        }
        self.entries.push(entry);
        StackIndex(self.entries.len() as u32 - 1)
    }
}
