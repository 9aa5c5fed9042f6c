//! Space accounting of a fileset: its references, its quota, and its reservation.
//!
//! The count on disk is beside the fileset's entry and changes in one transaction with an anode
//! (`fileset`). The count in memory also includes accepted blocks. The quota is checked at
//! acceptance, so no accepted block is refused later.
//!
//! # Invariants
//!
//! - QT1: `used` equals the count on disk, with all transactions that have ended.
//! - QT2: `accepted` is the most that dirty blocks will add to `used`, without their map pages. So
//!   map pages may exceed the quota.
//! - QT3: A block moves from `accepted` to `used` in one step, at its map update.
//! - QT4: What `used` and `accepted` leave of each reservation is in the pool's count of kept
//!   space, which other filesets cannot use ([`UnusedReservations`]).
//! - QT5: A stream being received draws on the reservation of the fileset that it will replace (the
//!   *lender*). The unused part is the reservation less the larger total of the two.
//!
//! # Concurrency
//!
//! One lock, a leaf. A borrower updates its lender under its own `lender` lock, which is above the
//! locks of both counts.
//!
//! Not here: the events counted (`fileset`), accounts of users (`account`), and the pool's space
//! (`alloc`).

mod account;

pub(crate) use self::account::{
    Account, AccountReport, OwnerAccounts, QuotaTerms, SpaceRequest, accept_all,
};

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use runtime::unless_planted;

use crate::error::{FsError, FsResult};
use crate::sync::Mutex;

/// The accounts of a block before its map update.
#[derive(Clone, Debug)]
pub(crate) struct BlockAccounts<'u> {
    pub(crate) usage: &'u Arc<Usage>,
    /// Owner, group and project, if they are counted.
    pub(crate) owners: Option<OwnerAccounts>,
    pub(crate) asker: SpaceRequest,
}

impl<'u> BlockAccounts<'u> {
    /// Returns the fileset's account, without accounts of users.
    pub(crate) fn fileset(usage: &'u Arc<Usage>) -> BlockAccounts<'u> {
        BlockAccounts { usage, owners: None, asker: SpaceRequest { may_be_refused: false, now: 0 } }
    }
}

/// Fragments kept for filesets of a pool: the rests of their reservations.
#[derive(Clone, Debug, Default)]
pub(crate) struct UnusedReservations(Arc<AtomicU64>);

impl UnusedReservations {
    pub(crate) fn fragments(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    pub(crate) fn change(&self, before: u64, after: u64) {
        self.0.fetch_add(after.wrapping_sub(before), Ordering::Relaxed);
    }
}

/// The references of a fileset, in fragments.
#[derive(Debug)]
pub(crate) struct Usage {
    state: Mutex<UsageState>,
    kept: UnusedReservations,
    /// Whether `lender` is set, to be read without its lock.
    has_lender: AtomicBool,
    /// The fileset whose reservation this one uses (QT5). Locked before the states of both.
    lender: Mutex<Option<Arc<Usage>>>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct UsageState {
    used: u64,
    accepted: u64,
    /// The borrower's total, if this is a lender (QT5).
    borrowed: u64,
    limits: FilesetLimits,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct FilesetLimits {
    pub(crate) quota: Option<u64>,
    /// Fragments guaranteed to the fileset, its present contents included.
    pub(crate) reservation: u64,
}

impl UsageState {
    fn total(&self) -> u64 {
        self.used.saturating_add(self.accepted)
    }

    fn rest(&self) -> u64 {
        self.limits.reservation.saturating_sub(self.total().max(self.borrowed))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct UsageCounts {
    /// Fragments of its anodes and its anode table.
    pub(crate) used: u64,
    /// Fragments that dirty blocks will add.
    pub(crate) accepted: u64,
    pub(crate) quota: Option<u64>,
    /// Fragments kept free for it, including the unused reservation of its lender.
    pub(crate) kept: u64,
}

impl UsageCounts {
    pub(crate) fn left(&self) -> Option<u64> {
        self.quota.map(|quota| quota.saturating_sub(self.used + self.accepted))
    }
}

impl Usage {
    /// Returns the counts of a fileset. `kept` must already include its unused reservation.
    pub(crate) fn new(used: u64, limits: FilesetLimits, kept: UnusedReservations) -> Usage {
        Usage {
            state: Mutex::new(UsageState { used, accepted: 0, borrowed: 0, limits }),
            kept,
            has_lender: AtomicBool::new(false),
            lender: Mutex::new(None),
        }
    }

    /// Begins to draw on the reservation of `lender` (QT5).
    pub(crate) fn borrow_from(&self, lender: &Arc<Usage>) {
        let mut own = self.lender.lock();
        *own = Some(Arc::clone(lender));
        self.has_lender.store(true, Ordering::Release);
        lender.lend(self.total());
    }

    pub(crate) fn end_borrowing(&self) {
        self.has_lender.store(false, Ordering::Release);
        let mut own = self.lender.lock();
        if let Some(lender) = own.take() {
            lender.lend(0);
        }
    }

    fn total(&self) -> u64 {
        self.state.lock().total()
    }

    /// Updates the lender under the `lender` lock, so that the last update is current and none
    /// follows the end of borrowing.
    fn tell_lender(&self) {
        if !self.has_lender.load(Ordering::Acquire) {
            return;
        }
        let own = self.lender.lock();
        if let Some(lender) = &*own {
            lender.lend(self.total());
        }
    }

    fn lend(&self, borrowed: u64) {
        self.change(|state| state.borrowed = borrowed);
    }

    fn lender(&self) -> Option<Arc<Usage>> {
        self.has_lender.load(Ordering::Acquire).then(|| self.lender.lock().clone()).flatten()
    }

    /// Returns counts without a fileset, for moved blocks, which add nothing.
    pub(crate) fn nobodys() -> Usage {
        Usage::new(0, FilesetLimits::default(), UnusedReservations::default())
    }

    fn change<T>(&self, change: impl FnOnce(&mut UsageState) -> T) -> T {
        let mut state = self.state.lock();
        let before = state.rest();
        let result = change(&mut state);
        if before != state.rest() {
            self.kept.change(before, state.rest());
        }
        drop(state);
        self.tell_lender();
        result
    }

    /// Accepts `more` fragments instead of `instead` that were accepted before.
    ///
    /// # Errors
    ///
    /// [`FsError::QuotaExceeded`] if a user's block would exceed the quota: nothing is counted.
    pub(crate) fn accept(&self, more: u64, instead: u64, is_users: bool) -> FsResult<()> {
        self.change(|state| {
            let accepted = (state.accepted + more).saturating_sub(instead);
            let is_past = state.limits.quota.is_some_and(|quota| state.used + accepted > quota);
            if is_past && is_users && more > instead {
                return Err(FsError::QuotaExceeded);
            }
            unless_planted!(AcceptedNotCounted, state.accepted = accepted);
            Ok(())
        })
    }

    /// Gives back accepted fragments.
    pub(crate) fn give_back(&self, fragments: u64) {
        self.change(|state| state.accepted = state.accepted.saturating_sub(fragments));
    }

    /// Counts an ended transaction. `accepted` is what had been accepted for its mapped blocks.
    pub(crate) fn settle(&self, change: i64, accepted: u64) {
        self.change(|state| {
            // Saturating: a damaged count may contradict the anodes.
            state.used = state.used.saturating_add_signed(change);
            state.accepted = state.accepted.saturating_sub(accepted);
        });
    }

    /// Checks that the quota has room for `fragments` more.
    ///
    /// # Errors
    ///
    /// [`FsError::QuotaExceeded`] if not.
    pub(crate) fn check(&self, fragments: u64) -> FsResult<()> {
        let left = self.counts().left();
        if left.is_some_and(|left| left < fragments) {
            return Err(FsError::QuotaExceeded);
        }
        Ok(())
    }

    pub(crate) fn set_limits(&self, limits: FilesetLimits) {
        self.change(|state| state.limits = limits);
    }

    pub(crate) fn counts(&self) -> UsageCounts {
        let lent = self.lender().map_or(0, |lender| lender.state.lock().rest());
        let state = *self.state.lock();
        let UsageState { used, accepted, limits, .. } = state;
        UsageCounts { used, accepted, quota: limits.quota, kept: state.rest() + lent }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_accepted_counts_until_it_is_used_and_no_more_is_accepted_than_the_quota() {
        let limits = |quota| FilesetLimits { quota, reservation: 0 };
        let usage = Usage::new(10, limits(Some(20)), UnusedReservations::default());
        usage.accept(8, 0, true).expect("18 of 20");
        assert_eq!(usage.accept(3, 0, true), Err(FsError::QuotaExceeded));
        usage.accept(3, 1, true).expect("a block in the place of another");
        usage.settle(10, 10);
        let full = UsageCounts { used: 20, accepted: 0, quota: Some(20), kept: 0 };
        assert_eq!((usage.counts(), usage.check(1)), (full, Err(FsError::QuotaExceeded)));
        usage.accept(2, 2, true).expect("an overwrite");
        usage.accept(2, 0, false).expect("what must go on");
        usage.give_back(2);
        usage.settle(-15, 0);
        assert_eq!(usage.check(13), Ok(()));
        usage.set_limits(limits(Some(3)));
        assert_eq!(usage.accept(1, 0, true), Err(FsError::QuotaExceeded), "a quota below use");
        usage.set_limits(limits(None));
        usage.accept(1 << 40, 0, true).expect("no quota");
    }

    #[test]
    fn what_receives_a_stream_draws_on_the_reservation_and_gives_back_what_it_has_not() {
        let kept = UnusedReservations::default();
        kept.change(0, 20);
        let lender = FilesetLimits { quota: None, reservation: 30 };
        let lender = Arc::new(Usage::new(10, lender, kept.clone()));
        let receiving = Usage::new(10, FilesetLimits::default(), kept.clone());
        assert_eq!(receiving.counts().kept, 0);
        receiving.borrow_from(&lender);
        assert_eq!((kept.fragments(), receiving.counts().kept), (20, 20), "what both have");
        receiving.accept(5, 0, true).expect("no quota");
        assert_eq!((kept.fragments(), receiving.counts().kept), (15, 15));
        receiving.settle(12, 5);
        assert_eq!((kept.fragments(), lender.counts().kept), (8, 8));
        receiving.settle(-20, 0);
        assert_eq!(kept.fragments(), 20, "the lender has what it had");
        receiving.settle(50, 0);
        assert_eq!(kept.fragments(), 0, "no more than there is");
        receiving.end_borrowing();
        receiving.settle(1, 0);
        assert_eq!((kept.fragments(), receiving.counts().kept), (20, 0));
    }

    #[test]
    fn nothing_stays_lent_whoever_counts_while_the_borrowing_ends() {
        let kept = UnusedReservations::default();
        kept.change(0, 30);
        let lender = FilesetLimits { quota: None, reservation: 30 };
        let lender = Arc::new(Usage::new(0, lender, kept.clone()));
        let receiving = Usage::new(0, FilesetLimits::default(), kept.clone());
        let is_done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !is_done.load(Ordering::Acquire) {
                    receiving.accept(20, 0, false).expect("no quota");
                    receiving.give_back(10);
                    receiving.give_back(10);
                }
            });
            for round in 0..20_000 {
                receiving.borrow_from(&lender);
                std::hint::spin_loop();
                receiving.end_borrowing();
                if lender.state.lock().borrowed != 0 || kept.fragments() != 30 {
                    // The scope waits for the other thread before it panics.
                    is_done.store(true, Ordering::Release);
                    panic!("round {round}: it stays lent");
                }
            }
            is_done.store(true, Ordering::Release);
        });
    }

    #[test]
    fn the_rest_of_a_reservation_is_kept_until_it_is_used() {
        let kept = UnusedReservations::default();
        kept.change(0, 20);
        let usage = Usage::new(10, FilesetLimits { quota: None, reservation: 30 }, kept.clone());
        usage.accept(15, 0, true).expect("no quota");
        assert_eq!((kept.fragments(), usage.counts().kept), (5, 5));
        usage.settle(16, 15);
        assert_eq!(kept.fragments(), 4);
        usage.settle(-20, 0);
        assert_eq!(kept.fragments(), 24);
        usage.set_limits(FilesetLimits::default());
        assert_eq!(kept.fragments(), 0);
    }
}
