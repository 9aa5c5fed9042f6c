//! How much is read around what is not in memory, and of which segments that is worth it.
//!
//! What was made together lies together: names, inodes and small files of a tree. So when a second
//! part of a segment is asked for, what lies around it is read with it, as long as that turns out
//! to be of use.

use std::collections::{BTreeMap, VecDeque};

use format::ids::Place;

/// The least that is worth reading around something.
const FEWEST_BYTES: u64 = 32 << 10;
/// Of this many misses one is tried all the same while nothing read around was used.
const MISSES_PER_TRIAL: u32 = 64;
/// Windows after which the next ones may be longer or shorter.
const WINDOWS_PER_STEP: u32 = 8;
/// Segments of which a miss is remembered: those of 1 GiB.
const MISSED_SEGMENTS_MAX: usize = 1024;

/// Says how much is read around what is not in memory.
pub(crate) trait AroundPolicy {
    /// Returns the length of the window around it; 0: nothing around it. `is_second`: another part
    /// of its segment was missed lately.
    fn bytes(&mut self, is_second: bool) -> u64;

    /// A window of `read_bytes` was held for a while, and `used_bytes` of it were asked for.
    fn learn(&mut self, used_bytes: u64, read_bytes: u64);
}

/// Reads around the second miss in a segment, the more the more was of use:
///
/// 1. The first miss in a segment is read alone.
/// 2. Around others a window is read: twice as long, up to a limit, once a half of the last windows
///    was used, half as long once less than an eighth was.
/// 3. While the shortest window is too long, one miss of 64 tries it.
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
    /// Returns the policy whose first window has `first_bytes` and whose longest `longest_bytes`.
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

/// The segments of which something was missed lately, with the last place that was.
#[derive(Debug, Default)]
pub(crate) struct Missed {
    last: BTreeMap<Place, Place>,
    /// Segments, the one that was missed first first.
    order: VecDeque<Place>,
}

impl Missed {
    /// Remembers a miss of `place` in the segment at `segment`; returns whether another place of it
    /// was missed lately.
    pub(crate) fn note(&mut self, segment: Place, place: Place) -> bool {
        if let Some(last) = self.last.insert(segment, place) {
            return last != place;
        }
        self.order.push_back(segment);
        // What was forgotten since is in the order once more than it is known.
        if self.order.len() > MISSED_SEGMENTS_MAX
            && let Some(oldest) = self.order.pop_front()
        {
            self.last.remove(&oldest);
        }
        false
    }

    /// The segment is used anew.
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
        let mut missed = Missed::default();
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
