//! A member that fails too many reads is failed, while the others have all.
//!
//! What it does not give others do, and it is written again to it: of a sector that has gone bad
//! nothing is left then. A device that goes on failing reads is about to go, and each costs the
//! reader its patience.

use std::collections::{BTreeMap, VecDeque};

use format::members::MemberState;
use runtime::planted::{self, Planted};
use storage::volume::Stay;

use super::Pool;

/// Reads that a member may fail in an hour. A bad sector is asked for about three times until it is
/// written again, so this is some twenty of them.
const READ_ERRORS_MAX: usize = 60;
const HOUR_NS: u64 = 3_600_000_000_000;

/// What one member failed in the last hour.
#[derive(Debug)]
struct Failed {
    stay: Stay,
    counted: u64,
    /// When, the earliest first; at most one more than [`READ_ERRORS_MAX`].
    at_ns: VecDeque<u64>,
}

impl Failed {
    /// Takes in that `errors` were counted until now; returns whether they are too many.
    fn note(&mut self, errors: u64, now_ns: u64) -> bool {
        let new = errors.saturating_sub(self.counted);
        self.counted = errors;
        for _ in 0..new.min(u64::try_from(READ_ERRORS_MAX + 1).unwrap_or(u64::MAX)) {
            self.at_ns.push_back(now_ns);
        }
        let is_old = |at: &u64| now_ns.saturating_sub(*at) > HOUR_NS;
        while self.at_ns.front().is_some_and(is_old) || self.at_ns.len() > READ_ERRORS_MAX + 1 {
            self.at_ns.pop_front();
        }
        self.at_ns.len() > READ_ERRORS_MAX
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

impl Pool {
    /// Fails members that fail too many reads, if the others have all.
    pub(super) fn fail_unreadable(&self) {
        let volume = self.volume();
        let Some(members) = volume.members().filter(|_| volume.read_errors() > 0) else { return };
        if self.check_members_change().is_err() || planted::is(Planted::UnreadableKept) {
            return;
        }
        let now_ns = self.core.store.clock.monotonic_ns();
        let (all, mut too_many) = (members.all(), Vec::new());
        {
            let mut unreadable = self.unreadable.lock();
            let online = all.iter().enumerate().filter(|(_, at)| at.state == MemberState::Online);
            for (slot, at) in online {
                if unreadable.note(slot, at.stay(), at.counts().read_errors, now_ns) {
                    too_many.push(slot);
                }
            }
        }
        for slot in too_many {
            // It stays where the others have not all; where they fail too the pool has stopped.
            if self.fail_member(slot).is_ok() {
                tracing::error!(slot, "it has failed more than {READ_ERRORS_MAX} reads in an hour");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_count_for_an_hour() {
        let stay = storage::volume::Slot::new(None, MemberState::Online).stay();
        let mut failed = Failed { stay, counted: 0, at_ns: VecDeque::new() };
        let most = u64::try_from(READ_ERRORS_MAX).expect("few");
        assert!(!failed.note(most, 10));
        assert!(!failed.note(most, HOUR_NS), "none is new");
        assert!(failed.note(most + 1, HOUR_NS + 10), "one more in the same hour");
        assert!(!failed.note(most + 1, HOUR_NS + 11), "the first are of before");
        assert!(failed.note(1 << 40, HOUR_NS + 12));
        assert_eq!(failed.at_ns.len(), READ_ERRORS_MAX + 1);
    }
}
