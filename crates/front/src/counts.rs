//! Operation counters and latency histograms by kind of operation, shared by both fronts.
//!
//! # Concurrency
//!
//! Counting is relaxed atomic additions without a lock. A concurrent reader may find an operation
//! in one counter but not yet in another.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Upper bounds of the histogram buckets, in microseconds. Longer operations are in one more
/// bucket. The range covers memory hits, log writes and stuck requests.
pub const LATENCY_BOUNDS_US: [u64; 14] = [
    10, 25, 50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 100_000, 1_000_000, 10_000_000,
];
const BUCKETS: usize = LATENCY_BOUNDS_US.len() + 1;

/// Counters of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OperationCounts {
    /// Operation name in its protocol.
    pub name: &'static str,
    /// Operations answered, errors included.
    pub answered: u64,
    /// Operations answered with an error, other than that a name or an attribute does not exist.
    pub failed: u64,
    /// Sum of latencies.
    pub latency_ns: u64,
    /// Bytes of reads and writes, with the headers of the messages that carry the data. 0 for other
    /// operations.
    pub bytes: u64,
    /// Operations by latency: bucket `i` counts those above bound `i - 1` and up to bound `i` of
    /// [`LATENCY_BOUNDS_US`]. The last bucket has no upper bound.
    pub buckets: [u64; BUCKETS],
}

impl OperationCounts {
    /// Returns zero counters.
    #[must_use]
    pub fn none(name: &'static str) -> OperationCounts {
        let buckets = [0; BUCKETS];
        OperationCounts { name, answered: 0, failed: 0, latency_ns: 0, bytes: 0, buckets }
    }

    /// Adds counters of the same operation from another source.
    pub fn add(&mut self, other: &OperationCounts) {
        self.answered += other.answered;
        self.failed += other.failed;
        self.latency_ns += other.latency_ns;
        self.bytes += other.bytes;
        for (own, more) in self.buckets.iter_mut().zip(other.buckets) {
            *own += more;
        }
    }
}

#[derive(Debug, Default)]
pub(crate) struct Count {
    failed: AtomicU64,
    latency_ns: AtomicU64,
    bytes: AtomicU64,
    buckets: [AtomicU64; BUCKETS],
}

impl Count {
    pub(crate) fn add(&self, took: Duration, is_failed: bool, bytes: usize) {
        let bucket =
            LATENCY_BOUNDS_US.partition_point(|&bound| u128::from(bound) < took.as_micros());
        self.buckets[bucket].fetch_add(1, Ordering::Relaxed);
        let took_ns = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        self.latency_ns.fetch_add(took_ns, Ordering::Relaxed);
        if bytes > 0 {
            self.bytes.fetch_add(u64::try_from(bytes).unwrap_or(0), Ordering::Relaxed);
        }
        if is_failed {
            self.failed.fetch_add(1, Ordering::Relaxed);
        }
    }

    pub(crate) fn get(&self, name: &'static str) -> OperationCounts {
        let get = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let buckets = self.buckets.each_ref().map(get);
        OperationCounts {
            name,
            answered: buckets.iter().sum(),
            failed: get(&self.failed),
            latency_ns: get(&self.latency_ns),
            bytes: get(&self.bytes),
            buckets,
        }
    }
}
