//! The account of a user, group or project in a fileset, with its limits.
//!
//! The counts on disk are in a quota record, and change in one transaction with an anode. The
//! counts in memory also include accepted blocks.
//!
//! # Invariants
//!
//! - QA1: `used` equals the count on disk, with all transactions that have ended.
//! - QA2: `accepted` is what dirty blocks, and admitted transactions that have not ended, will add.
//!   Nothing accepted is refused later.
//! - QA3: A grace period begins when the total passes the soft limit, and ends when it no longer
//!   exceeds the limit.
//!
//! # Concurrency
//!
//! One lock for each account, a leaf.
//!
//! Not here: the events counted, and the records (`fileset::quota`).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use format::quota::{GRACE_SECONDS, QuotaKind, QuotaLimits, QuotaRecord};
use runtime::unless_planted;

use crate::error::{FsError, FsResult};
use crate::sync::Mutex;

/// The accounts of a file's owner, group and project.
pub(crate) type OwnerAccounts = Arc<[Arc<Account>; 3]>;

/// Settings for all accounts of a fileset.
#[derive(Debug)]
pub(crate) struct QuotaTerms {
    /// Whether all anodes are counted. Until then nothing is refused.
    is_enforced: AtomicBool,
    /// Grace periods in seconds, for fragments and inodes.
    graces: [AtomicU64; 2],
    /// Whether a grace period has begun or ended since the records were written.
    has_stale: AtomicBool,
}

impl Default for QuotaTerms {
    fn default() -> QuotaTerms {
        QuotaTerms {
            is_enforced: AtomicBool::new(false),
            graces: [AtomicU64::new(GRACE_SECONDS), AtomicU64::new(GRACE_SECONDS)],
            has_stale: AtomicBool::new(false),
        }
    }
}

impl QuotaTerms {
    pub(crate) fn set(&self, is_enforced: bool, graces: [u64; 2]) {
        for (own, seconds) in self.graces.iter().zip(graces) {
            own.store(seconds, Ordering::Relaxed);
        }
        self.is_enforced.store(is_enforced, Ordering::Release);
    }

    /// Returns and clears the flag of unwritten changes.
    pub(crate) fn take_stale(&self) -> bool {
        self.has_stale.swap(false, Ordering::AcqRel)
    }

    /// Sets the flag again after a failed write.
    pub(crate) fn note_stale(&self) {
        self.has_stale.store(true, Ordering::Release);
    }

    fn is_enforced(&self) -> bool {
        self.is_enforced.load(Ordering::Acquire)
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct SpaceRequest {
    /// False for privileged users.
    pub(crate) may_be_refused: bool,
    /// Seconds since 1970.
    pub(crate) now: u64,
}

/// Counts and limits of fragments, or of inodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct LimitedCount {
    used: u64,
    accepted: u64,
    /// 0 without a limit.
    soft: u64,
    /// 0 without a limit.
    hard: u64,
    /// End of the grace period, in seconds since 1970. 0 below the soft limit.
    grace_end: u64,
}

impl LimitedCount {
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

    /// Begins or ends the grace period (QA3). Returns true if it did.
    fn note_grace(&mut self, now: u64, grace_seconds: u64) -> bool {
        let is_past = self.is_past_soft();
        if is_past == (self.grace_end > 0) {
            return false;
        }
        // At least 1, as 0 means no grace period.
        self.grace_end = if is_past { now.saturating_add(grace_seconds).max(1) } else { 0 };
        true
    }
}

#[derive(Debug, Default)]
struct AccountState {
    /// Fragments, then inodes.
    counts: [LimitedCount; 2],
    /// Whether limits or a grace period have changed since the record was written.
    is_stale: bool,
}

#[derive(Debug)]
pub(crate) struct Account {
    pub(crate) kind: QuotaKind,
    pub(crate) id: u32,
    /// Number of its record.
    pub(crate) record: u64,
    terms: Arc<QuotaTerms>,
    state: Mutex<AccountState>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AccountReport {
    pub(crate) kind: QuotaKind,
    pub(crate) id: u32,
    /// Fragments, dirty blocks included.
    pub(crate) fragments: u64,
    pub(crate) inodes: u64,
    pub(crate) limits: QuotaLimits,
}

impl Account {
    pub(crate) fn new(record: &QuotaRecord, number: u64, terms: &Arc<QuotaTerms>) -> Account {
        let account = Account {
            kind: record.kind,
            id: record.id,
            record: number,
            terms: Arc::clone(terms),
            state: Mutex::new(AccountState::default()),
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

    fn change<T>(&self, now: u64, change: impl FnOnce(&mut AccountState) -> T) -> T {
        let mut state = self.state.lock();
        let result = change(&mut state);
        if self.terms.is_enforced() {
            let graces = self.terms.graces.iter().map(|grace| grace.load(Ordering::Relaxed));
            let AccountState { counts, is_stale } = &mut *state;
            for (counted, grace) in counts.iter_mut().zip(graces) {
                *is_stale |= counted.note_grace(now, grace);
            }
            if state.is_stale {
                self.terms.note_stale();
            }
        }
        result
    }

    /// Accepts `more` fragments instead of `instead` that were accepted before, and inodes.
    ///
    /// # Errors
    ///
    /// [`FsError::QuotaExceeded`] beyond a limit: nothing is counted.
    pub(crate) fn accept(
        &self,
        (more, instead): (u64, u64),
        inodes: u64,
        asker: SpaceRequest,
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
            unless_planted!(WaitingOfUserNotCounted, state.counts = counts);
            Ok(())
        })
    }

    pub(crate) fn give_back(&self, fragments: u64, inodes: u64) {
        let mut state = self.state.lock();
        let AccountState { counts, is_stale } = &mut *state;
        for (counted, less) in counts.iter_mut().zip([fragments, inodes]) {
            counted.accepted = counted.accepted.saturating_sub(less);
            // The total may no longer exceed the soft limit (QA3).
            let is_over = counted.grace_end > 0 && !counted.is_past_soft();
            if is_over {
                counted.grace_end = 0;
                *is_stale = true;
                self.terms.note_stale();
            }
        }
    }

    /// Counts an ended transaction. `accepted` is what had been accepted for it.
    pub(crate) fn settle(&self, change: [i64; 2], accepted: [u64; 2], now: u64) {
        self.change(now, |state| {
            for ((counted, change), accepted) in state.counts.iter_mut().zip(change).zip(accepted) {
                counted.used = counted.used.saturating_add_signed(change);
                counted.accepted = counted.accepted.saturating_sub(accepted);
            }
        });
    }

    /// Sets the limits, and restarts grace periods.
    pub(crate) fn set_limits(&self, limits: &QuotaLimits, now: u64) {
        self.change(now, |state| {
            set(state, limits);
            for counted in &mut state.counts {
                counted.grace_end = 0;
            }
            state.is_stale = true;
        });
    }

    /// Begins the grace periods of accounts past a soft limit, once all anodes are counted.
    pub(crate) fn begin_graces(&self, now: u64) {
        self.change(now, |_| ());
    }

    pub(crate) fn clear(&self) {
        let mut state = self.state.lock();
        for counted in &mut state.counts {
            counted.used = 0;
        }
    }

    /// If the record is out of date, returns its new content and marks it as current.
    pub(crate) fn take_stale(&self) -> Option<QuotaLimits> {
        let mut state = self.state.lock();
        std::mem::take(&mut state.is_stale).then(|| limits_of(&state))
    }

    pub(crate) fn note_stale(&self) {
        self.state.lock().is_stale = true;
    }

    pub(crate) fn facts(&self) -> AccountReport {
        let state = self.state.lock();
        AccountReport {
            kind: self.kind,
            id: self.id,
            fragments: state.counts[0].total(),
            inodes: state.counts[1].total(),
            limits: limits_of(&state),
        }
    }
}

fn set(state: &mut AccountState, limits: &QuotaLimits) {
    let [fragments, inodes] = &mut state.counts;
    (fragments.soft, fragments.hard) = (limits.fragments_soft, limits.fragments_hard);
    (inodes.soft, inodes.hard) = (limits.inodes_soft.into(), limits.inodes_hard.into());
}

fn limits_of(state: &AccountState) -> QuotaLimits {
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

/// Accepts fragments in the accounts of owner, group and project, or in none.
///
/// # Errors
///
/// As [`Account::accept`].
pub(crate) fn accept_all(
    owners: &OwnerAccounts,
    fragments: (u64, u64),
    asker: SpaceRequest,
) -> FsResult<()> {
    for (index, account) in owners.iter().enumerate() {
        if let Err(error) = account.accept(fragments, 0, asker) {
            let back = SpaceRequest { may_be_refused: false, now: asker.now };
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

    const USER: SpaceRequest = SpaceRequest { may_be_refused: true, now: 1000 };
    const LATER: SpaceRequest = SpaceRequest { may_be_refused: true, now: 1100 };
    const ROOT: SpaceRequest = SpaceRequest { may_be_refused: false, now: 1000 };

    fn account(limits: QuotaLimits) -> Account {
        let terms = Arc::new(QuotaTerms::default());
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
