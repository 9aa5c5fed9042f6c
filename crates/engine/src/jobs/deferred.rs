//! Checkpoints for deferred frees: freed space is available for allocation only after a checkpoint
//! (K3). A pool with few writes may have no other reason for a checkpoint for long. The policy:
//!
//! | deferred | and | then |
//! |---|---|---|
//! | a thousandth of the pool | no change for a second | at once |
//! | a part in 32 of the pool | deferred for five seconds, despite changes | at once |
//! | anything | no change for five seconds | at most once a minute |
//!
//! So `df` soon shows a large delete, and occasional rewrites of a file cost no checkpoint each.

use super::{Job, StepBudget, StepOutcome};
use crate::alloc::SpaceCounts;
use crate::error::FsResult;
use crate::file::Core;
use crate::sync::Mutex;

const SECOND_NS: u64 = 1_000_000_000;
/// Divisor of the pool: so much deferred space needs only a second of quiet.
const NOTICED_PART: u64 = 1000;
/// Divisor of the pool: so much deferred space needs no quiet.
const LARGE_PART: u64 = 32;
/// Longest wait of a large part, and quiet time for a small one.
const WAIT_NS: u64 = 5 * SECOND_NS;
/// Time between two checkpoints for small parts.
const LITTLE_EVERY_NS: u64 = 60 * SECOND_NS;

#[derive(Debug, Default)]
pub(crate) struct DeferredFrees(Mutex<DeferredFreesState>);

#[derive(Debug, Default)]
struct DeferredFreesState {
    waits_since_ns: Option<u64>,
    transactions: u64,
    quiet_since_ns: u64,
    little_ns: Option<u64>,
    /// Count of transactions after the last checkpoint for space. While it is unchanged, another
    /// checkpoint would free nothing.
    tried: Option<u64>,
}

impl DeferredFreesState {
    fn is_due(&mut self, now_ns: u64, transactions: u64, space: &SpaceCounts) -> bool {
        if transactions != self.transactions {
            (self.transactions, self.quiet_since_ns) = (transactions, now_ns);
        }
        if space.pending == 0 || self.tried == Some(transactions) {
            self.waits_since_ns = None;
            return false;
        }
        let since_ns = *self.waits_since_ns.get_or_insert(now_ns);
        let (waits_ns, quiet_ns) = (now_ns - since_ns, now_ns - self.quiet_since_ns);
        let is_part = |part: u64| space.pending.saturating_mul(part) >= space.capacity;
        let is_much_due = is_part(LARGE_PART) && waits_ns >= WAIT_NS
            || is_part(NOTICED_PART) && quiet_ns >= SECOND_NS;
        let had_little = self.little_ns.is_some_and(|last| now_ns - last < LITTLE_EVERY_NS);
        let is_little_due = quiet_ns >= WAIT_NS && !had_little;
        if !is_much_due && is_little_due {
            self.little_ns = Some(now_ns);
        }
        if is_much_due || is_little_due {
            self.waits_since_ns = None;
        }
        is_much_due || is_little_due
    }
}

impl Job for DeferredFrees {
    fn name(&self) -> &'static str {
        "deferred frees"
    }

    fn step(&self, core: &Core, now_ns: u64, _budget: StepBudget) -> FsResult<StepOutcome> {
        let transactions = || core.store.journal.counts().transactions;
        let space = core.store.alloc.counts();
        if self.0.lock().is_due(now_ns, transactions(), &space) {
            core.store.journal.checkpoint()?;
            self.0.lock().tried = Some(transactions());
        }
        Ok(StepOutcome::Wait)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CAPACITY: u64 = 100_000;

    /// Returns the seconds up to 200 at which a checkpoint is due, if `pending` fragments are
    /// deferred every `every` seconds.
    fn due(pending: u64, every: u64) -> Vec<u64> {
        let mut seen = DeferredFreesState::default();
        let mut waits = pending;
        let is_due = |second: &u64| {
            let transactions = 1 + second / every;
            let (capacity, free) = (CAPACITY, 0);
            if second.is_multiple_of(every) {
                waits = pending;
            }
            let space = SpaceCounts {
                capacity,
                used: free,
                promised: free,
                reserved: free,
                reserve: free,
                pending: waits,
                spare: free,
                kept: 0,
                metadata_free: 0,
                available: free,
            };
            let is_due = seen.is_due(second * SECOND_NS, transactions, &space);
            if is_due {
                waits = 0;
                seen.tried = Some(transactions);
            }
            is_due
        };
        (0..=200).filter(is_due).collect()
    }

    #[test]
    fn much_waits_for_a_second_of_quiet_and_little_for_five_and_a_minute() {
        assert_eq!(due(0, 1000), []);
        assert_eq!(due(100, 1000), [1], "a thousandth");
        assert_eq!(due(99, 1000), [5], "less");
        assert_eq!(due(99, 6), [5, 65, 125, 185], "less, again and again");
        assert_eq!(due(99, 3), [], "never quiet");
        assert_eq!(due(3124, 1), [], "much, and never quiet");
        assert_eq!(due(3125, 1)[..2], [5, 11], "very much, and never quiet");
    }

    /// A checkpoint that frees nothing is not repeated.
    #[test]
    fn a_checkpoint_that_frees_nothing_is_not_taken_twice() {
        let mut seen = DeferredFreesState { tried: Some(7), ..DeferredFreesState::default() };
        let space = SpaceCounts {
            capacity: CAPACITY,
            used: 0,
            promised: 0,
            reserved: 0,
            reserve: 0,
            pending: CAPACITY,
            spare: 0,
            kept: 0,
            metadata_free: 0,
            available: 0,
        };
        assert!((0..100).all(|second| !seen.is_due(second * SECOND_NS, 7, &space)));
        assert!((100..110).any(|second| seen.is_due(second * SECOND_NS, 8, &space)));
    }
}
