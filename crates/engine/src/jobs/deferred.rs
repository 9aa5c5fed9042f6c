//! Deferred frees: what was freed is given out again, and counts as available, behind a checkpoint
//! (K3). On a pool that writes little none is due for long, so one is taken because space waits:
//!
//! | what waits | and | then |
//! |---|---|---|
//! | a thousandth of the pool | nothing changes for a second | at once |
//! | a part in 32 of the pool | it waits for five seconds, whatever happens | at once |
//! | anything | nothing changes for five seconds | at most once in a minute |
//!
//! So `df` tells soon of a large delete, and a program that rewrites a file now and then costs no
//! checkpoint each time.

use super::{Budget, Job, Step};
use crate::alloc::SpaceCounts;
use crate::error::FsResult;
use crate::sync::Mutex;
use crate::vnode::Core;

const SECOND_NS: u64 = 1_000_000_000;
/// Of how many parts of the pool one must wait before a second of quiet is enough.
const NOTICED_PART: u64 = 1000;
/// Of how many parts of the pool one must wait for a checkpoint among other work.
const LARGE_PART: u64 = 32;
/// How long that part may wait, and how long nothing must change for less.
const WAIT_NS: u64 = 5 * SECOND_NS;
/// Between two checkpoints for little.
const LITTLE_EVERY_NS: u64 = 60 * SECOND_NS;

/// What the ticks have seen.
#[derive(Debug, Default)]
pub(crate) struct DeferredFrees(Mutex<Seen>);

#[derive(Debug, Default)]
struct Seen {
    /// When space was first seen to wait.
    waits_since_ns: Option<u64>,
    /// Transactions so far, and since when there are so many.
    transactions: u64,
    quiet_since_ns: u64,
    /// When the last checkpoint for little was taken.
    little_ns: Option<u64>,
    /// Transactions when the last checkpoint for space was over: another one frees no more.
    tried: Option<u64>,
}

impl Seen {
    /// Notes what there is at `now_ns`. Returns whether a checkpoint is due.
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

    /// Takes a checkpoint if one is due for space that waits for it.
    fn step(&self, core: &Core, now_ns: u64, _budget: Budget) -> FsResult<Step> {
        let transactions = || core.store.journal.counts().transactions;
        let space = core.store.alloc.counts();
        if self.0.lock().is_due(now_ns, transactions(), &space) {
            core.store.journal.checkpoint()?;
            self.0.lock().tried = Some(transactions());
        }
        Ok(Step::Wait)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CAPACITY: u64 = 100_000;

    /// Returns at which of the seconds from 0 to 200 a checkpoint is due, where `pending` fragments
    /// wait for each and a transaction ends every `every` seconds.
    fn due(pending: u64, every: u64) -> Vec<u64> {
        let mut seen = Seen::default();
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

    /// Nothing is due again where a checkpoint has not helped.
    #[test]
    fn a_checkpoint_that_frees_nothing_is_not_taken_twice() {
        let mut seen = Seen { tried: Some(7), ..Seen::default() };
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
