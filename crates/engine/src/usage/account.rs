//! What one user, group or project has in a fileset, and how much it may have.
//!
//! The counts on disk lie in a record of the fileset's quotas and change in the transaction that
//! changes an anode. These are the same in memory, with what was accepted and is in no map yet.
//!
//! # Invariants
//!
//! - QA1: `used` is the count on disk, as the transactions that have ended left it.
//! - QA2: `accepted` is what waits beyond that: blocks until they are installed, and what changes
//!   that are about to end were let in with. Nothing that was accepted is refused later.
//! - QA3: A grace begins with what passes the soft limit, and ends with what goes back below it.
//!
//! # Concurrency
//!
//! One lock for each account, under which nothing else is taken.
//!
//! Not here: who counts what, and the records (`fileset::quota`).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use format::quota::{GRACE_SECONDS, QuotaKind, QuotaLimits, QuotaRecord};
use runtime::planted::{self, Planted};

use crate::error::{FsError, FsResult};
use crate::sync::Mutex;

/// The accounts of a file's owner, group and project.
pub(crate) type Owners = Arc<[Arc<Account>; 3]>;

/// What holds for all accounts of a fileset.
#[derive(Debug)]
pub(crate) struct Terms {
    /// Whether all anodes are counted: before that nobody is refused.
    is_enforced: AtomicBool,
    /// Seconds for which the soft limits of fragments and of inodes may be passed.
    graces: [AtomicU64; 2],
    /// Whether a grace has begun or ended that no record says.
    has_stale: AtomicBool,
}

impl Default for Terms {
    fn default() -> Terms {
        Terms {
            is_enforced: AtomicBool::new(false),
            graces: [AtomicU64::new(GRACE_SECONDS), AtomicU64::new(GRACE_SECONDS)],
            has_stale: AtomicBool::new(false),
        }
    }
}

impl Terms {
    pub(crate) fn set(&self, is_enforced: bool, graces: [u64; 2]) {
        for (own, seconds) in self.graces.iter().zip(graces) {
            own.store(seconds, Ordering::Relaxed);
        }
        self.is_enforced.store(is_enforced, Ordering::Release);
    }

    /// Whether a grace has begun or ended since this was asked last.
    pub(crate) fn take_stale(&self) -> bool {
        self.has_stale.swap(false, Ordering::AcqRel)
    }

    /// Says so again: what was to be written was not.
    pub(crate) fn note_stale(&self) {
        self.has_stale.store(true, Ordering::Release);
    }

    fn is_enforced(&self) -> bool {
        self.is_enforced.load(Ordering::Acquire) || planted::is(Planted::LimitsBeforeAllCounted)
    }
}

/// Who asks for more.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asker {
    /// Whether he may be refused: a user who is not privileged.
    pub(crate) may_be_refused: bool,
    /// Seconds since 1970.
    pub(crate) now: u64,
}

/// What is counted of fragments, or of inodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Counted {
    used: u64,
    accepted: u64,
    /// 0: no limit.
    soft: u64,
    /// 0: no limit.
    hard: u64,
    /// 0: the soft limit is not passed.
    grace_end: u64,
}

impl Counted {
    fn total(&self) -> u64 {
        self.used.saturating_add(self.accepted)
    }

    fn is_refused(&self, now: u64) -> bool {
        let is_past = |limit: u64| limit > 0 && self.total() > limit;
        let is_over = self.grace_end > 0 && now >= self.grace_end;
        is_past(self.hard) || is_past(self.soft) && is_over
    }

    fn is_past_soft(&self) -> bool {
        self.soft > 0 && self.total() > self.soft
    }

    /// QA3. Returns whether the grace begins or ends.
    fn note_grace(&mut self, now: u64, grace_seconds: u64) -> bool {
        let is_past = self.is_past_soft();
        if is_past == (self.grace_end > 0) {
            return false;
        }
        // 1 at least: 0 says that there is none.
        self.grace_end = if is_past { now.saturating_add(grace_seconds).max(1) } else { 0 };
        true
    }
}

#[derive(Debug, Default)]
struct State {
    /// Of fragments, then of inodes.
    counts: [Counted; 2],
    /// Whether the record has other ends of graces.
    is_stale: bool,
}

/// What a user, a group or a project has.
#[derive(Debug)]
pub(crate) struct Account {
    pub(crate) kind: QuotaKind,
    pub(crate) id: u32,
    /// Number of its record.
    pub(crate) record: u64,
    terms: Arc<Terms>,
    state: Mutex<State>,
}

/// What an account has, and may have, in fragments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AccountFacts {
    pub(crate) kind: QuotaKind,
    pub(crate) id: u32,
    /// Fragments, with what waits.
    pub(crate) fragments: u64,
    pub(crate) inodes: u64,
    pub(crate) limits: QuotaLimits,
}

impl Account {
    pub(crate) fn new(record: &QuotaRecord, number: u64, terms: &Arc<Terms>) -> Account {
        let account = Account {
            kind: record.kind,
            id: record.id,
            record: number,
            terms: Arc::clone(terms),
            state: Mutex::new(State::default()),
        };
        {
            let mut state = account.state.lock();
            set(&mut state, &record.limits);
            state.counts[0].used = record.fragments;
            state.counts[1].used = record.inodes;
            let ends = [record.limits.fragments_grace_end, record.limits.inodes_grace_end];
            for (counted, end) in state.counts.iter_mut().zip(ends) {
                counted.grace_end = end;
            }
        }
        account
    }

    fn change<T>(&self, now: u64, change: impl FnOnce(&mut State) -> T) -> T {
        let mut state = self.state.lock();
        let result = change(&mut state);
        if self.terms.is_enforced() {
            let graces = self.terms.graces.iter().map(|grace| grace.load(Ordering::Relaxed));
            let State { counts, is_stale } = &mut *state;
            for (counted, grace) in counts.iter_mut().zip(graces) {
                *is_stale |= counted.note_grace(now, grace);
            }
            if state.is_stale {
                self.terms.note_stale();
            }
        }
        result
    }

    /// Counts `more` fragments in the place of `instead` that were accepted before, and inodes.
    ///
    /// # Errors
    ///
    /// [`FsError::QuotaExceeded`] if that passes a limit: nothing is counted.
    pub(crate) fn accept(
        &self,
        (more, instead): (u64, u64),
        inodes: u64,
        asker: Asker,
    ) -> FsResult<()> {
        let is_held = asker.may_be_refused && self.id != 0 && self.terms.is_enforced();
        self.change(asker.now, |state| {
            let mut counts = state.counts;
            counts[0].accepted = counts[0].accepted.saturating_add(more).saturating_sub(instead);
            counts[1].accepted = counts[1].accepted.saturating_add(inodes);
            let is_refused = more > instead && counts[0].is_refused(asker.now)
                || inodes > 0 && counts[1].is_refused(asker.now);
            if is_held && is_refused {
                return Err(FsError::QuotaExceeded);
            }
            if !planted::is(Planted::WaitingOfUserNotCounted) {
                state.counts = counts;
            }
            Ok(())
        })
    }

    /// Counts no longer what was accepted.
    pub(crate) fn give_back(&self, fragments: u64, inodes: u64) {
        let mut state = self.state.lock();
        let State { counts, is_stale } = &mut *state;
        for (counted, less) in counts.iter_mut().zip([fragments, inodes]) {
            counted.accepted = counted.accepted.saturating_sub(less);
            // QA3: what goes may have been all that was past it.
            let is_over = counted.grace_end > 0 && !counted.is_past_soft();
            if is_over && !planted::is(Planted::GraceOutlivesUse) {
                counted.grace_end = 0;
                *is_stale = true;
                self.terms.note_stale();
            }
        }
    }

    /// A transaction has ended that changed what the account has, and that `accepted` was counted
    /// for.
    pub(crate) fn settle(&self, change: [i64; 2], accepted: [u64; 2], now: u64) {
        self.change(now, |state| {
            for ((counted, change), accepted) in state.counts.iter_mut().zip(change).zip(accepted) {
                counted.used = counted.used.saturating_add_signed(change);
                counted.accepted = counted.accepted.saturating_sub(accepted);
            }
        });
    }

    /// Sets the limits; graces begin and end as they say.
    pub(crate) fn set_limits(&self, limits: &QuotaLimits, now: u64) {
        self.change(now, |state| {
            set(state, limits);
            for counted in &mut state.counts {
                counted.grace_end = 0;
            }
            state.is_stale = true;
        });
    }

    /// All anodes are counted: who is past a soft limit has from now on until the grace ends.
    pub(crate) fn begin_graces(&self, now: u64) {
        self.change(now, |_| ());
    }

    /// Nothing is counted any more.
    pub(crate) fn clear(&self) {
        let mut state = self.state.lock();
        for counted in &mut state.counts {
            counted.used = 0;
        }
    }

    /// Returns the limits, with the ends of graces, that the record does not say; `None`: it does.
    pub(crate) fn take_stale(&self) -> Option<QuotaLimits> {
        let mut state = self.state.lock();
        std::mem::take(&mut state.is_stale).then(|| limits_of(&state))
    }

    /// The record was not written.
    pub(crate) fn note_stale(&self) {
        self.state.lock().is_stale = true;
    }

    pub(crate) fn facts(&self) -> AccountFacts {
        let state = self.state.lock();
        AccountFacts {
            kind: self.kind,
            id: self.id,
            fragments: state.counts[0].total(),
            inodes: state.counts[1].total(),
            limits: limits_of(&state),
        }
    }
}

fn set(state: &mut State, limits: &QuotaLimits) {
    let [fragments, inodes] = &mut state.counts;
    (fragments.soft, fragments.hard) = (limits.fragments_soft, limits.fragments_hard);
    (inodes.soft, inodes.hard) = (limits.inodes_soft.into(), limits.inodes_hard.into());
}

fn limits_of(state: &State) -> QuotaLimits {
    let [fragments, inodes] = &state.counts;
    let narrow = |limit: u64| u32::try_from(limit).unwrap_or(u32::MAX);
    QuotaLimits {
        fragments_soft: fragments.soft,
        fragments_hard: fragments.hard,
        inodes_soft: narrow(inodes.soft),
        inodes_hard: narrow(inodes.hard),
        fragments_grace_end: fragments.grace_end,
        inodes_grace_end: inodes.grace_end,
    }
}

/// Counts blocks of a file with its owner, group and project, or with none of them.
///
/// # Errors
///
/// As [`Account::accept`].
pub(crate) fn accept_all(owners: &Owners, fragments: (u64, u64), asker: Asker) -> FsResult<()> {
    for (index, account) in owners.iter().enumerate() {
        if let Err(error) = account.accept(fragments, 0, asker) {
            let back = Asker { may_be_refused: false, now: asker.now };
            for account in &owners[..index] {
                // Never refused.
                let _ = account.accept((fragments.1, fragments.0), 0, back);
            }
            return Err(error);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const USER: Asker = Asker { may_be_refused: true, now: 1000 };
    const LATER: Asker = Asker { may_be_refused: true, now: 1100 };
    const ROOT: Asker = Asker { may_be_refused: false, now: 1000 };

    fn account(limits: QuotaLimits) -> Account {
        let terms = Arc::new(Terms::default());
        terms.set(true, [100, 100]);
        let record = QuotaRecord { kind: QuotaKind::User, id: 7, fragments: 0, inodes: 0, limits };
        Account::new(&record, 1, &terms)
    }

    #[test]
    fn hard_limits_refuse_at_once_and_soft_ones_when_the_grace_is_over() {
        let limits = QuotaLimits { fragments_soft: 4, fragments_hard: 8, ..Default::default() };
        let account = account(limits);
        account.accept((4, 0), 0, USER).expect("at the soft limit");
        assert_eq!(account.take_stale(), None, "no grace has begun");
        account.accept((2, 0), 0, USER).expect("in the grace");
        assert_eq!(account.facts().limits.fragments_grace_end, 1100);
        assert_eq!(account.take_stale().map(|it| it.fragments_grace_end), Some(1100));
        assert_eq!(account.accept((3, 0), 0, USER), Err(FsError::QuotaExceeded));
        assert_eq!(account.accept((1, 0), 0, LATER), Err(FsError::QuotaExceeded));
        account.accept((1, 1), 0, LATER).expect("a block in the place of another");
        account.accept((9, 0), 0, ROOT).expect("the privileged");
        account.settle([5, 0], [15, 0], 1100);
        account.settle([-1, 0], [0, 0], 1100);
        assert_eq!(account.facts().limits.fragments_grace_end, 0, "back below it");
        account.accept((4, 0), 0, LATER).expect("a new grace");
        assert_eq!(account.accept((0, 0), 1, LATER), Ok(()), "inodes have no limit");
    }

    #[test]
    fn a_grace_ends_with_what_waited_and_is_given_back() {
        let limits = QuotaLimits { fragments_soft: 4, inodes_soft: 1, ..Default::default() };
        let account = account(limits);
        account.accept((6, 0), 2, USER).expect("in the grace");
        assert_eq!(account.facts().limits.fragments_grace_end, 1100);
        account.give_back(1, 0);
        assert_eq!(account.facts().limits.fragments_grace_end, 1100, "still past it");
        account.give_back(1, 1);
        let ends = account.take_stale().map(|it| (it.fragments_grace_end, it.inodes_grace_end));
        assert_eq!(ends, Some((0, 0)));
        account.accept((2, 0), 0, LATER).expect("a grace of its own");
    }

    #[test]
    fn nobody_is_refused_before_all_is_counted_nor_root_ever() {
        let limits = QuotaLimits { inodes_hard: 1, fragments_hard: 1, ..Default::default() };
        let mut one = account(limits);
        one.accept((0, 0), 1, USER).expect("the first");
        assert_eq!(one.accept((0, 0), 1, USER), Err(FsError::QuotaExceeded));
        one.terms.set(false, [100, 100]);
        one.accept((0, 0), 1, USER).expect("not all is counted");
        one.terms.set(true, [100, 100]);
        one.id = 0;
        one.accept((9, 0), 9, USER).expect("id 0 has no limits");
    }
}
