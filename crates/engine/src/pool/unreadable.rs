//! A member that fails too many reads is failed, while the others have all.
//!
//! What it does not give others do, and it is written again to it: of a sector that has gone bad
//! nothing is left then. A device that goes on failing reads is about to go, and each costs the
//! reader its patience.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use format::members::MemberState;
use runtime::planted::{self, Planted};
use storage::volume::Stay;

use super::Pool;

/// Seconds of an hour in which a member may fail reads. A run of bad sectors that is read and
/// written again takes a few; a fault of a cable or a controller that passes, some more.
const BAD_SECONDS_MAX: usize = 60;
const SECOND_NS: u64 = 1_000_000_000;
const HOUR_NS: u64 = 3_600_000_000_000;

/// What one member failed in the last hour.
#[derive(Debug)]
struct Failed {
    stay: Stay,
    counted: u64,
    /// When, the earliest first: once a second, at most one more than [`BAD_SECONDS_MAX`].
    at_ns: VecDeque<u64>,
}

impl Failed {
    /// Takes in that `errors` were counted until now; returns whether they are too many.
    fn note(&mut self, errors: u64, now_ns: u64) -> bool {
        let is_new = errors > self.counted;
        self.counted = errors;
        let is_later = |last: &u64| now_ns.saturating_sub(*last) >= SECOND_NS;
        if is_new && self.at_ns.back().is_none_or(is_later) {
            self.at_ns.push_back(now_ns);
        }
        let is_old = |at: &u64| now_ns.saturating_sub(*at) > HOUR_NS;
        while self.at_ns.front().is_some_and(is_old) || self.at_ns.len() > BAD_SECONDS_MAX + 1 {
            self.at_ns.pop_front();
        }
        self.at_ns.len() > BAD_SECONDS_MAX
    }
}

/// What each member failed, by slot.
#[derive(Debug, Default)]
pub(super) struct Unreadable(BTreeMap<usize, Failed>);

impl Unreadable {
    fn note(&mut self, slot: usize, stay: Stay, errors: u64, now_ns: u64) -> bool {
        let new = || Failed { stay: stay.clone(), counted: 0, at_ns: VecDeque::new() };
        let failed = self.0.entry(slot).or_insert_with(new);
        if failed.stay != stay {
            *failed = new();
        }
        failed.note(errors, now_ns)
    }
}

impl Unreadable {
    /// Whether a member has failed a read in the last hour.
    fn has_failed(&self, slot: usize) -> bool {
        self.0.get(&slot).is_some_and(|failed| !failed.at_ns.is_empty())
    }
}

impl Pool {
    /// Fails members that fail too many reads, if the others have all.
    pub(super) fn fail_unreadable(&self) {
        let volume = self.volume();
        let Some(members) = volume.members().filter(|_| volume.read_errors() > 0) else { return };
        if self.check_members_change().is_err() || planted::is(Planted::UnreadableKept) {
            return;
        }
        let now_ns = self.core.store.clock.monotonic_ns();
        let (all, mut too_many, mut failing) = (members.all(), Vec::new(), Vec::new());
        {
            let mut unreadable = self.unreadable.lock();
            let online = all.iter().enumerate().filter(|(_, at)| at.state == MemberState::Online);
            for (slot, at) in online {
                if unreadable.note(slot, at.stay(), at.counts().read_errors, now_ns) {
                    too_many.push(slot);
                }
                if unreadable.has_failed(slot) {
                    failing.push(slot);
                }
            }
        }
        // Of two that fail reads each may have what the other does not give.
        let own = |slot: usize| members.of_slot(slot).map(|(set, _)| Arc::as_ptr(&set));
        let is_alone = |slot: &usize| {
            let mut others = failing.iter().filter(|other| *other != slot);
            others.all(|other| own(*other) != own(*slot))
        };
        for slot in too_many.into_iter().filter(is_alone) {
            // It stays where the others have not all; where they fail too the pool has stopped.
            if self.fail_member(slot).is_ok() {
                let words = "it has failed reads in too many seconds of this hour";
                tracing::error!(slot, most = BAD_SECONDS_MAX, words);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_with_errors_count_for_an_hour() {
        let stay = storage::volume::Slot::new(None, MemberState::Online).stay();
        let mut failed = Failed { stay, counted: 0, at_ns: VecDeque::new() };
        let most = u64::try_from(BAD_SECONDS_MAX).expect("few");
        assert!(!failed.note(1 << 40, 10), "a burst counts once");
        for second in 1..most {
            assert!(!failed.note((1 << 40) + second, 10 + second * SECOND_NS));
        }
        assert_eq!(failed.at_ns.len(), BAD_SECONDS_MAX);
        assert!(!failed.note((1 << 40) + most - 1, HOUR_NS), "none is new");
        assert!(failed.note((1 << 40) + most, HOUR_NS), "one more in the same hour");
        assert!(!failed.note((1 << 40) + most, HOUR_NS + 11), "the first is of before");
    }
}
