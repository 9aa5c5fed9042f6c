//! Write amplification of cleaning, since the mount and in the last ten minutes.

use std::collections::VecDeque;

const RECENT_NS: u64 = 10 * 60 * 1_000_000_000;
const STEP_NS: u64 = RECENT_NS / 10;
/// Samples kept. The oldest is at most [`RECENT_NS`] old, and at least one step less.
const LOOKS_MAX: usize = 11;

/// Counts of writes to data segments and of the cleaner's reads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CleanerCounts {
    /// Segments emptied.
    pub segments: u64,
    /// Fragments read by the cleaner.
    pub read_fragments: u64,
    /// Fragments of blocks moved by the cleaner.
    pub moved_fragments: u64,
    /// Fragments of blocks written by users.
    pub user_fragments: u64,
    /// All fragments written, including summaries.
    pub written_fragments: u64,
}

impl CleanerCounts {
    /// Returns bytes written per byte of users, in hundredths. `None` if users wrote nothing.
    #[must_use]
    pub fn written_hundredths(&self) -> Option<u64> {
        self.written_fragments.saturating_mul(100).checked_div(self.user_fragments)
    }

    fn since(&self, before: &CleanerCounts) -> CleanerCounts {
        CleanerCounts {
            segments: self.segments - before.segments,
            read_fragments: self.read_fragments - before.read_fragments,
            moved_fragments: self.moved_fragments - before.moved_fragments,
            user_fragments: self.user_fragments - before.user_fragments,
            written_fragments: self.written_fragments - before.written_fragments,
        }
    }
}

/// Cost of cleaning.
#[derive(Clone, Copy, Debug)]
pub struct CleanerGauge {
    /// Since the mount.
    pub since_mount: CleanerCounts,
    /// In the recent past.
    pub recent: CleanerCounts,
    /// Length of the recent past in nanoseconds, at most ten minutes.
    pub recent_ns: u64,
}

#[derive(Debug, Default)]
pub(super) struct CleanerSamples {
    looks: VecDeque<(u64, CleanerCounts)>,
}

impl CleanerSamples {
    pub(super) fn note(&mut self, now_ns: u64, counts: CleanerCounts) {
        if self.looks.back().is_some_and(|(last_ns, _)| now_ns.saturating_sub(*last_ns) < STEP_NS) {
            return;
        }
        if self.looks.len() == LOOKS_MAX {
            self.looks.pop_front();
        }
        self.looks.push_back((now_ns, counts));
    }

    pub(super) fn read(&self, now_ns: u64, since_mount: CleanerCounts) -> CleanerGauge {
        let mut looks = self.looks.iter();
        let oldest = looks.find(|(then_ns, _)| now_ns.saturating_sub(*then_ns) <= RECENT_NS);
        let (then_ns, before) = oldest.copied().unwrap_or((now_ns, since_mount));
        CleanerGauge {
            since_mount,
            recent: since_mount.since(&before),
            recent_ns: now_ns.saturating_sub(then_ns),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(user_fragments: u64, moved_fragments: u64) -> CleanerCounts {
        let written_fragments = user_fragments + moved_fragments;
        CleanerCounts { user_fragments, moved_fragments, written_fragments, ..Default::default() }
    }

    #[test]
    fn of_late_forgets_what_was_before() {
        let mut gauge = CleanerSamples::default();
        assert_eq!(gauge.read(5, counts(1, 1)).recent.written_hundredths(), None);
        // Twenty minutes with as many moves as writes, then twenty without moves.
        for step in 0..40 {
            let (user, moved) = (100 * step, 100 * step.min(20));
            gauge.note(step * STEP_NS, counts(user, moved));
            gauge.note(step * STEP_NS + 1, CleanerCounts::default());
        }
        assert_eq!(gauge.looks.len(), LOOKS_MAX);
        let told = gauge.read(40 * STEP_NS, counts(4000, 2000));
        assert_eq!(told.since_mount.written_hundredths(), Some(150));
        assert_eq!(told.recent.written_hundredths(), Some(100));
        assert_eq!((told.recent.user_fragments, told.recent_ns), (1000, RECENT_NS));
    }

    #[test]
    fn after_a_long_silence_nothing_is_told_of_late() {
        let mut gauge = CleanerSamples::default();
        gauge.note(0, counts(100, 100));
        let told = gauge.read(RECENT_NS + 1, counts(200, 100));
        assert_eq!((told.recent_ns, told.recent), (0, CleanerCounts::default()));
    }
}
