//! How far a process has come: a clock that stands while it does nothing.

use std::collections::VecDeque;

/// Nanoseconds that a pause counts for at most: a process that waits for its user does not repeat
/// anything meanwhile.
const LONGEST_PAUSE: u64 = 250_000_000;

/// Phases whose beginning is kept.
const MAX_PHASES: usize = 4096;

/// Nanoseconds of activity since the first event.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Active(pub u64);

/// What a process has done so far.
#[derive(Debug, Default)]
pub struct Activity {
    now: Active,
    /// Of the last event, on the clock of events.
    last_ns: Option<u64>,
    /// Blocks that were freed, anywhere.
    frees: u64,
    /// When phases began: runs of notebook cells.
    phases: VecDeque<Active>,
}

impl Activity {
    /// Something has happened. Events of several processors can come a little out of order.
    pub(super) fn note(&mut self, time_ns: u64) {
        let pause = self.last_ns.map_or(0, |last| time_ns.saturating_sub(last));
        self.now.0 += pause.min(LONGEST_PAUSE);
        self.last_ns = self.last_ns.max(Some(time_ns));
    }

    pub(super) fn note_free(&mut self) {
        self.frees += 1;
    }

    /// What comes now is another run of a cell than what was before.
    pub(super) fn note_phase(&mut self) {
        if self.phases.len() == MAX_PHASES {
            self.phases.pop_front();
        }
        // Later than what was last before.
        self.now.0 += 1;
        self.phases.push_back(self.now);
    }

    /// Now.
    pub fn now(&self) -> Active {
        self.now
    }

    /// How many blocks were freed so far.
    pub(super) fn frees(&self) -> u64 {
        self.frees
    }

    /// Whether another phase has begun since a moment.
    pub fn is_over(&self, moment: Active) -> bool {
        self.phases.back().is_some_and(|begin| *begin > moment)
    }

    /// When the phase ended that this moment is in; now, if that is this one.
    pub fn end_of_phase(&self, moment: Active) -> Active {
        let next = self.phases.partition_point(|begin| *begin <= moment);
        match self.phases.get(next) {
            // Of what is too old only that much is known.
            Some(_) if next == 0 && self.phases.len() == MAX_PHASES => moment,
            Some(begin) => *begin,
            None => self.now,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pause_counts_little() {
        let mut activity = Activity::default();
        for time in [1_000, 2_000, 1_500, 3_600_000_000_000] {
            activity.note(time);
        }
        assert_eq!(activity.now(), Active(1_000 + LONGEST_PAUSE));
    }

    #[test]
    fn phases_end_where_the_next_begins() {
        let mut activity = Activity::default();
        activity.note(0);
        activity.note_phase();
        activity.note(10);
        activity.note_phase();
        activity.note(30);
        let end = |moment| activity.end_of_phase(Active(moment));
        // The clock: 0, phase at 1, 11, phase at 12, 32.
        assert_eq!((end(0), end(1), end(11)), (Active(1), Active(12), Active(12)));
        assert_eq!((end(12), end(32)), (Active(32), Active(32)));
        assert!(activity.is_over(Active(11)) && !activity.is_over(Active(12)));
    }

    #[test]
    fn phases_are_bounded() {
        let mut activity = Activity::default();
        for time in 0..2 * MAX_PHASES as u64 {
            activity.note(time);
            activity.note_phase();
        }
        assert_eq!(activity.phases.len(), MAX_PHASES);
        assert_eq!(activity.end_of_phase(Active(3)), Active(3));
    }
}
