//! Policy of reading around a miss: how much, and in which segments.
//!
//! Names, inodes and small files of a tree are created together and stored together. So after a
//! second miss in a segment, the surroundings of the missed page are read too, as long as they get
//! used.

use std::collections::{BTreeMap, VecDeque};

use format::ids::Place;

const FEWEST_BYTES: u64 = 32 << 10;
/// While windows are off, one miss in this many reads a window on trial.
const MISSES_PER_TRIAL: u32 = 64;
/// Windows between changes of the window size.
const WINDOWS_PER_STEP: u32 = 8;
const MISSED_SEGMENTS_MAX: usize = 1024;

pub(crate) trait AroundPolicy {
    /// Returns the window size; 0 reads the page alone. `is_second` if the segment had another
    /// miss.
    fn bytes(&mut self, is_second: bool) -> u64;

    /// Reports that `used_bytes` of `read_bytes` read ahead were used.
    fn learn(&mut self, used_bytes: u64, read_bytes: u64);
}

/// Reads around the second and later misses of a segment, with a window that follows its use:
///
/// 1. The first miss in a segment is read alone.
/// 2. Later misses read a window. It doubles, up to a limit, after half of the last windows was
///    used, and halves after less than an eighth was used.
/// 3. Below the smallest window, one miss of [`MISSES_PER_TRIAL`] reads that window.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReadAround {
    window_bytes: u64,
    longest_bytes: u64,
    used_bytes: u64,
    read_bytes: u64,
    windows: u32,
    misses: u32,
}

impl ReadAround {
    pub(crate) fn new(first_bytes: u64, longest_bytes: u64) -> ReadAround {
        ReadAround {
            window_bytes: first_bytes.min(longest_bytes),
            longest_bytes,
            used_bytes: 0,
            read_bytes: 0,
            windows: 0,
            misses: 0,
        }
    }
}

impl AroundPolicy for ReadAround {
    fn bytes(&mut self, is_second: bool) -> u64 {
        if !is_second {
            return 0;
        }
        if self.window_bytes >= FEWEST_BYTES {
            return self.window_bytes;
        }
        self.misses = (self.misses + 1) % MISSES_PER_TRIAL;
        if self.misses == 0 { FEWEST_BYTES } else { 0 }
    }

    fn learn(&mut self, used_bytes: u64, read_bytes: u64) {
        self.used_bytes = self.used_bytes.saturating_add(used_bytes);
        self.read_bytes = self.read_bytes.saturating_add(read_bytes);
        self.windows += 1;
        if self.windows < WINDOWS_PER_STEP {
            return;
        }
        if self.used_bytes.saturating_mul(2) >= self.read_bytes {
            let longer = self.window_bytes.saturating_mul(2).max(FEWEST_BYTES);
            self.window_bytes = longer.min(self.longest_bytes);
        } else if self.used_bytes.saturating_mul(8) < self.read_bytes {
            self.window_bytes = (self.window_bytes / 2).max(FEWEST_BYTES / 2);
        }
        (self.used_bytes, self.read_bytes, self.windows) = (0, 0, 0);
    }
}

#[derive(Debug, Default)]
pub(crate) struct RecentMisses {
    last: BTreeMap<Place, Place>,
    order: VecDeque<Place>,
}

impl RecentMisses {
    /// Records a miss; returns whether another place of the segment was missed recently.
    pub(crate) fn note(&mut self, segment: Place, place: Place) -> bool {
        if let Some(last) = self.last.insert(segment, place) {
            return last != place;
        }
        self.order.push_back(segment);
        // A forgotten segment stays in `order`, which alone is bounded.
        if self.order.len() > MISSED_SEGMENTS_MAX
            && let Some(oldest) = self.order.pop_front()
        {
            self.last.remove(&oldest);
        }
        false
    }

    pub(crate) fn forget(&mut self, segment: Place) {
        self.last.remove(&segment);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SEGMENT_BYTES: u64 = 1 << 20;

    fn at(fragment: u32) -> Place {
        Place::new(0, 1, fragment)
    }

    #[test]
    fn windows_follow_what_is_used() {
        let mut policy = ReadAround::new(128 << 10, SEGMENT_BYTES);
        assert_eq!((policy.bytes(false), policy.bytes(true)), (0, 128 << 10));
        let learn = |policy: &mut ReadAround, used: u64| {
            (0..WINDOWS_PER_STEP).for_each(|_| policy.learn(used, 100));
            policy.bytes(true)
        };
        let longer = [50, 90, 100, 100].map(|used| learn(&mut policy, used));
        assert_eq!(longer, [256 << 10, 512 << 10, SEGMENT_BYTES, SEGMENT_BYTES]);
        assert_eq!(learn(&mut policy, 20), SEGMENT_BYTES, "neither much nor little");
        for _ in 0..10 {
            learn(&mut policy, 12);
        }
        let tried = (0..1000).filter(|_| policy.bytes(true) > 0).count();
        assert!((14..=16).contains(&tried), "{tried} of 1000 while nothing is used");
        assert_eq!(learn(&mut policy, 100), FEWEST_BYTES);
    }

    #[test]
    fn a_second_place_of_a_segment_is_told_from_the_first_again() {
        let mut missed = RecentMisses::default();
        assert!(!missed.note(at(0), at(5)));
        assert!(!missed.note(at(0), at(5)), "the same place");
        assert!(missed.note(at(0), at(6)));
        missed.forget(at(0));
        assert!(!missed.note(at(0), at(7)));
        for segment in 1..=2 * u32::try_from(MISSED_SEGMENTS_MAX).expect("few") {
            missed.note(at(256 * segment), at(256 * segment));
        }
        assert!(!missed.note(at(0), at(8)), "forgotten");
        assert!(missed.last.len() <= MISSED_SEGMENTS_MAX);
        assert!(missed.order.len() <= MISSED_SEGMENTS_MAX);
    }
}
