//! How many operations there were, how many failed, and how long they took: by kind. Both fronts
//! count so.
//!
//! # Concurrency
//!
//! Counting is relaxed atomic additions, without a lock; who reads meanwhile finds an operation in
//! one count and not yet in another.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Upper bounds of the buckets of a histogram, in microseconds: what memory answers, what a write
/// of a log takes, what is stuck. What takes longer is in one more bucket.
pub const LATENCY_BOUNDS_US: [u64; 14] = [
    10, 25, 50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 100_000, 1_000_000, 10_000_000,
];
const BUCKETS: usize = LATENCY_BOUNDS_US.len() + 1;

/// What is told of the operations of one kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OperationCounts {
    /// Its name, as its protocol has it.
    pub name: &'static str,
    /// How many were answered.
    pub answered: u64,
    /// Those among them whose answer was an error.
    pub failed: u64,
    /// How long all of them took together.
    pub latency_ns: u64,
    /// How many took at most as long as each of [`LATENCY_BOUNDS_US`], and longer than the bound
    /// before it; the last: longer than all.
    pub buckets: [u64; BUCKETS],
}

impl OperationCounts {
    /// Returns that of a kind of which there was none.
    #[must_use]
    pub fn none(name: &'static str) -> OperationCounts {
        OperationCounts { name, answered: 0, failed: 0, latency_ns: 0, buckets: [0; BUCKETS] }
    }

    /// Adds those of the same kind that were counted elsewhere.
    pub fn add(&mut self, other: &OperationCounts) {
        self.answered += other.answered;
        self.failed += other.failed;
        self.latency_ns += other.latency_ns;
        for (own, more) in self.buckets.iter_mut().zip(other.buckets) {
            *own += more;
        }
    }
}

/// Counts operations of one kind.
#[derive(Debug, Default)]
pub(crate) struct Count {
    failed: AtomicU64,
    latency_ns: AtomicU64,
    buckets: [AtomicU64; BUCKETS],
}

impl Count {
    /// One was answered.
    pub(crate) fn add(&self, took: Duration, is_failed: bool) {
        let bucket =
            LATENCY_BOUNDS_US.partition_point(|&bound| u128::from(bound) < took.as_micros());
        self.buckets[bucket].fetch_add(1, Ordering::Relaxed);
        let took_ns = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        self.latency_ns.fetch_add(took_ns, Ordering::Relaxed);
        if is_failed {
            self.failed.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Returns what is counted by now.
    pub(crate) fn get(&self, name: &'static str) -> OperationCounts {
        let get = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let buckets = self.buckets.each_ref().map(get);
        OperationCounts {
            name,
            answered: buckets.iter().sum(),
            failed: get(&self.failed),
            latency_ns: get(&self.latency_ns),
            buckets,
        }
    }
}
