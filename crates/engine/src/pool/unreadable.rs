//! Fails a member with too many read errors, if the other members have all its data.
//!
//! After a read error the data is read from the other members and rewritten, which repairs a bad
//! sector. A device with repeated read errors is about to fail, and each error delays a reader.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use format::members::MemberState;
use storage::volume::MemberTenure;

use super::Pool;

/// Most seconds with read errors in an hour. Rewriting a run of bad sectors causes errors in a few
/// seconds, and a transient fault of a cable or controller in some more.
const BAD_SECONDS_MAX: usize = 60;
const SECOND_NS: u64 = 1_000_000_000;
const HOUR_NS: u64 = 3_600_000_000_000;

#[derive(Debug)]
struct MemberReadErrors {
    stay: MemberTenure,
    counted: u64,
    /// Times of errors, earliest first, at most one a second and [`BAD_SECONDS_MAX`] plus one.
    at_ns: VecDeque<u64>,
}

impl MemberReadErrors {
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

#[derive(Debug, Default)]
pub(super) struct ReadErrorHistory(BTreeMap<usize, MemberReadErrors>);

impl ReadErrorHistory {
    fn note(&mut self, slot: usize, stay: MemberTenure, errors: u64, now_ns: u64) -> bool {
        let new = || MemberReadErrors { stay: stay.clone(), counted: 0, at_ns: VecDeque::new() };
        let failed = self.0.entry(slot).or_insert_with(new);
        if failed.stay != stay {
            *failed = new();
        }
        failed.note(errors, now_ns)
    }
}

impl ReadErrorHistory {
    fn has_failed(&self, slot: usize) -> bool {
        self.0.get(&slot).is_some_and(|failed| !failed.at_ns.is_empty())
    }
}

impl Pool {
    pub(super) fn fail_unreadable(&self) {
        let volume = self.volume();
        let Some(members) = volume.members().filter(|_| volume.read_errors() > 0) else { return };
        if self.devices().check_members_change().is_err() {
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
        // Two members of one set that fail reads stay: each may have blocks that the other has
        // lost.
        let own = |slot: usize| members.of_slot(slot).map(|(set, _)| Arc::as_ptr(&set));
        let is_alone = |slot: &usize| {
            let mut others = failing.iter().filter(|other| *other != slot);
            others.all(|other| own(*other) != own(*slot))
        };
        for slot in too_many.into_iter().filter(is_alone) {
            // Refused if the others lack data. After a device error the pool has stopped already.
            if self.devices().fail_member(slot).is_ok() {
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
        let stay = storage::volume::MemberSlot::new(None, MemberState::Online).stay();
        let mut failed = MemberReadErrors { stay, counted: 0, at_ns: VecDeque::new() };
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
