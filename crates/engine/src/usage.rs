//! What a fileset references, how much it may (its quota), and what is kept free for it (its
//! reservation).
//!
//! The count on disk lies beside the fileset's entry and changes in the transaction that changes
//! an anode (`fileset`). This is the same count in memory, with what was accepted and is in no map
//! yet, held against the quota: what is accepted counts at once, so nothing accepted is refused
//! later.
//!
//! # Invariants
//!
//! - QT1: `used` is the count on disk, as the transactions that have ended left it.
//! - QT2: `accepted` is the sum of what the blocks that wait will add to `used` at most, map pages
//!   aside: those may take a fileset past its quota by what they take.
//! - QT3: A block that is installed leaves `accepted` in the step in which it enters `used`.
//! - QT4: Of each reservation the rest, what it is above both, is in the pool's count of what is
//!   kept: nobody else gets it ([`Kept`]).
//! - QT5: What receives a stream for a fileset draws on that fileset's reservation: the rest is
//!   what the reservation is above the larger of the two, for one takes the place of the other.
//!
//! # Concurrency
//!
//! One lock, under which nothing else is taken; who draws on another's reservation tells the other
//! with the lock of his lender alone held, which is taken before that of either count.
//!
//! Not here: who counts what (`fileset`), what users have of it (`account`), and what the pool has
//! (`alloc`).

mod account;

pub(crate) use self::account::{Account, AccountFacts, Asker, Owners, Terms, accept_all};

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use runtime::planted::{self, Planted};

use crate::error::{FsError, FsResult};
use crate::sync::Mutex;

/// Whom a block counts for until it is installed.
#[derive(Clone, Debug)]
pub(crate) struct Payer<'u> {
    /// The fileset.
    pub(crate) usage: &'u Arc<Usage>,
    /// Owner, group and project, where they are counted.
    pub(crate) owners: Option<Owners>,
    /// Who asks, where they are.
    pub(crate) asker: Asker,
}

impl<'u> Payer<'u> {
    /// Returns a fileset that counts for nobody else.
    pub(crate) fn fileset(usage: &'u Arc<Usage>) -> Payer<'u> {
        Payer { usage, owners: None, asker: Asker { may_be_refused: false, now: 0 } }
    }
}

/// Fragments that are kept free for filesets of a pool: the rests of their reservations.
#[derive(Clone, Debug, Default)]
pub(crate) struct Kept(Arc<AtomicU64>);

impl Kept {
    pub(crate) fn fragments(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// Counts the rest of a reservation that was `before` and is `after`.
    pub(crate) fn change(&self, before: u64, after: u64) {
        self.0.fetch_add(after.wrapping_sub(before), Ordering::Relaxed);
    }
}

/// What a fileset references, in fragments.
#[derive(Debug)]
pub(crate) struct Usage {
    state: Mutex<State>,
    kept: Kept,
    /// Whether there is a lender: asked without a lock.
    has_lender: AtomicBool,
    /// On whose reservation this draws. Taken before this one's state and the lender's.
    lender: Mutex<Option<Arc<Usage>>>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct State {
    used: u64,
    accepted: u64,
    /// What one has that draws on the reservation (QT5).
    borrowed: u64,
    limits: Limits,
}

/// What is said of a fileset's use, in fragments.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Limits {
    /// Most that it may have.
    pub(crate) quota: Option<u64>,
    /// Kept free for it, less what it has.
    pub(crate) reservation: u64,
}

impl State {
    fn total(&self) -> u64 {
        self.used.saturating_add(self.accepted)
    }

    fn rest(&self) -> u64 {
        self.limits.reservation.saturating_sub(self.total().max(self.borrowed))
    }
}

/// A fileset's use of the pool, in fragments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct UsageCounts {
    /// What its anodes and its anode table take.
    pub(crate) used: u64,
    /// What blocks that wait will add.
    pub(crate) accepted: u64,
    /// Most that both may be.
    pub(crate) quota: Option<u64>,
    /// What is kept free for it, on whose reservation it may be.
    pub(crate) kept: u64,
}

impl UsageCounts {
    /// Returns how much more it may take; `None`: as much as there is.
    pub(crate) fn left(&self) -> Option<u64> {
        self.quota.map(|quota| quota.saturating_sub(self.used + self.accepted))
    }
}

impl Usage {
    /// Returns the use of a fileset that has `used` fragments; the rest of its reservation is in
    /// `kept` already.
    pub(crate) fn new(used: u64, limits: Limits, kept: Kept) -> Usage {
        Usage {
            state: Mutex::new(State { used, accepted: 0, borrowed: 0, limits }),
            kept,
            has_lender: AtomicBool::new(false),
            lender: Mutex::new(None),
        }
    }

    /// QT5: draws on the reservation of `lender` from now on.
    pub(crate) fn borrow_from(&self, lender: &Arc<Usage>) {
        if planted::is(Planted::StreamHasNoReservation) {
            return;
        }
        let mut own = self.lender.lock();
        *own = Some(Arc::clone(lender));
        self.has_lender.store(true, Ordering::Release);
        lender.lend(self.total());
    }

    /// Draws on nobody's reservation any more: the lender has it for himself.
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

    /// Tells the lender what this has. His lock is held over both, so that what is told last is
    /// what is, and nothing once he has it for himself.
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

    /// Returns the use of nobody: for blocks that are moved, which add nothing.
    pub(crate) fn nobodys() -> Usage {
        Usage::new(0, Limits::default(), Kept::default())
    }

    fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
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

    /// Counts `more` fragments of a block that was accepted in the place of others, of which
    /// `instead` were counted.
    ///
    /// # Errors
    ///
    /// [`FsError::QuotaExceeded`] if a user's block would go past the quota: nothing is counted.
    pub(crate) fn accept(&self, more: u64, instead: u64, is_users: bool) -> FsResult<()> {
        self.change(|state| {
            let accepted = (state.accepted + more).saturating_sub(instead);
            let is_past = state.limits.quota.is_some_and(|quota| state.used + accepted > quota);
            if is_past && is_users && more > instead {
                return Err(FsError::QuotaExceeded);
            }
            if !planted::is(Planted::AcceptedNotCounted) {
                state.accepted = accepted;
            }
            Ok(())
        })
    }

    /// Counts blocks no longer that were accepted, and wait no more.
    pub(crate) fn give_back(&self, fragments: u64) {
        self.change(|state| state.accepted = state.accepted.saturating_sub(fragments));
    }

    /// A transaction has ended that changed what the fileset takes, and installed blocks of which
    /// `accepted` was counted.
    pub(crate) fn settle(&self, change: i64, accepted: u64) {
        self.change(|state| {
            // Saturating: the count is the disk's, and the anodes that contradict it are too.
            state.used = state.used.saturating_add_signed(change);
            state.accepted = state.accepted.saturating_sub(accepted);
        });
    }

    /// Whether `fragments` more are too many.
    ///
    /// # Errors
    ///
    /// [`FsError::QuotaExceeded`] if they are.
    pub(crate) fn check(&self, fragments: u64) -> FsResult<()> {
        let left = self.counts().left();
        if left.is_some_and(|left| left < fragments) {
            return Err(FsError::QuotaExceeded);
        }
        Ok(())
    }

    pub(crate) fn set_limits(&self, limits: Limits) {
        self.change(|state| state.limits = limits);
    }

    pub(crate) fn counts(&self) -> UsageCounts {
        let lent = self.lender().map_or(0, |lender| lender.state.lock().rest());
        let state = *self.state.lock();
        let State { used, accepted, limits, .. } = state;
        UsageCounts { used, accepted, quota: limits.quota, kept: state.rest() + lent }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_accepted_counts_until_it_is_used_and_no_more_is_accepted_than_the_quota() {
        let limits = |quota| Limits { quota, reservation: 0 };
        let usage = Usage::new(10, limits(Some(20)), Kept::default());
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
        let kept = Kept::default();
        kept.change(0, 20);
        let lender = Limits { quota: None, reservation: 30 };
        let lender = Arc::new(Usage::new(10, lender, kept.clone()));
        let receiving = Usage::new(10, Limits::default(), kept.clone());
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
        let kept = Kept::default();
        kept.change(0, 30);
        let lender = Limits { quota: None, reservation: 30 };
        let lender = Arc::new(Usage::new(0, lender, kept.clone()));
        let receiving = Usage::new(0, Limits::default(), kept.clone());
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
                    // Whoever counts ends first.
                    is_done.store(true, Ordering::Release);
                    panic!("round {round}: it stays lent");
                }
            }
            is_done.store(true, Ordering::Release);
        });
    }

    #[test]
    fn the_rest_of_a_reservation_is_kept_until_it_is_used() {
        let kept = Kept::default();
        kept.change(0, 20);
        let usage = Usage::new(10, Limits { quota: None, reservation: 30 }, kept.clone());
        usage.accept(15, 0, true).expect("no quota");
        assert_eq!((kept.fragments(), usage.counts().kept), (5, 5));
        usage.settle(16, 15);
        assert_eq!(kept.fragments(), 4);
        usage.settle(-20, 0);
        assert_eq!(kept.fragments(), 24);
        usage.set_limits(Limits::default());
        assert_eq!(kept.fragments(), 0);
    }
}
