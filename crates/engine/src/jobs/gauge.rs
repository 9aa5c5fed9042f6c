//! What cleaning costs: data written for each byte that users gave, since the mount and of late.

use std::collections::VecDeque;

/// How far back "of late" reaches.
const RECENT_NS: u64 = 10 * 60 * 1_000_000_000;
/// Time between two looks at the counts.
const STEP_NS: u64 = RECENT_NS / 10;
/// Looks that are kept: the oldest is as far back as told of, or one step less.
const LOOKS_MAX: usize = 11;

/// What was written to data segments and read by the cleaner, in fragments.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CleanerCounts {
    /// Segments emptied.
    pub segments: u64,
    /// Read by the cleaner.
    pub read_fragments: u64,
    /// Written in blocks that the cleaner moved.
    pub moved_fragments: u64,
    /// Written in blocks of users.
    pub user_fragments: u64,
    /// Written altogether, with summaries.
    pub written_fragments: u64,
}

impl CleanerCounts {
    /// Returns hundredths of a byte written for each byte of users; `None` if they wrote nothing.
    #[must_use]
    pub fn written_hundredths(&self) -> Option<u64> {
        self.written_fragments.saturating_mul(100).checked_div(self.user_fragments)
    }

    /// Returns what was counted since `before`.
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

/// What cleaning has cost.
#[derive(Clone, Copy, Debug)]
pub struct CleanerGauge {
    /// Since the mount.
    pub since_mount: CleanerCounts,
    /// Of late.
    pub recent: CleanerCounts,
    /// How long that is, in nanoseconds: ten minutes at most.
    pub recent_ns: u64,
}

/// Counts as they were at some times.
#[derive(Debug, Default)]
pub(super) struct Gauge {
    looks: VecDeque<(u64, CleanerCounts)>,
}

impl Gauge {
    /// Keeps `counts`, which are those of `now_ns`, if the last are old enough.
    pub(super) fn note(&mut self, now_ns: u64, counts: CleanerCounts) {
        if self.looks.back().is_some_and(|(last_ns, _)| now_ns.saturating_sub(*last_ns) < STEP_NS) {
            return;
        }
        if self.looks.len() == LOOKS_MAX {
            self.looks.pop_front();
        }
        self.looks.push_back((now_ns, counts));
    }

    /// Returns what `since_mount`, the counts of `now_ns`, are, and what they were of late.
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
        let mut gauge = Gauge::default();
        assert_eq!(gauge.read(5, counts(1, 1)).recent.written_hundredths(), None);
        // Twenty minutes in which as much was moved as written, then twenty without moves.
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
        let mut gauge = Gauge::default();
        gauge.note(0, counts(100, 100));
        let told = gauge.read(RECENT_NS + 1, counts(200, 100));
        assert_eq!((told.recent_ns, told.recent), (0, CleanerCounts::default()));
    }
}
