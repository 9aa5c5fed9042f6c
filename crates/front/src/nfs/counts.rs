//! How many calls there were, how many failed, and how long their answers took: by procedure.
//!
//! A call is counted when its answer is given to its sink: after the commit that it waits for.
//! Calls that are not carried out (retransmissions, made-up procedures, credentials that say
//! nothing) are not counted.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use super::protocol::PROCEDURE_NAMES;

/// Procedures of NFSv3, NULL among them.
const PROCEDURES: usize = PROCEDURE_NAMES.len();

/// Upper bounds of the buckets of a histogram, in microseconds: what memory answers, what a write
/// of a log takes, what is stuck. What takes longer is in one more bucket.
pub const LATENCY_BOUNDS_US: [u64; 14] = [
    10, 25, 50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 100_000, 1_000_000, 10_000_000,
];
const BUCKETS: usize = LATENCY_BOUNDS_US.len() + 1;

#[derive(Debug, Default)]
struct Count {
    failed: AtomicU64,
    latency_ns: AtomicU64,
    buckets: [AtomicU64; BUCKETS],
}

/// Counts of a service.
#[derive(Debug, Default)]
pub(super) struct Counts([Count; PROCEDURES]);

/// What is told of the calls of one procedure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcedureCounts {
    /// Its name, as RFC 1813 has it.
    pub name: &'static str,
    /// Calls that were answered.
    pub answered: u64,
    /// Those among them whose answer was an error.
    pub failed: u64,
    /// How long all of them took together.
    pub latency_ns: u64,
    /// How many took at most as long as each of [`LATENCY_BOUNDS_US`], and longer than the bound
    /// before it; the last: longer than all.
    pub buckets: [u64; BUCKETS],
}

impl Counts {
    /// Returns what is counted by now.
    pub(super) fn get(&self) -> Vec<ProcedureCounts> {
        let get = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let of = |(&name, count): (&&'static str, &Count)| {
            let buckets = count.buckets.each_ref().map(get);
            ProcedureCounts {
                name,
                answered: buckets.iter().sum(),
                failed: get(&count.failed),
                latency_ns: get(&count.latency_ns),
                buckets,
            }
        };
        PROCEDURE_NAMES.iter().zip(&self.0).map(of).collect()
    }
}

/// A call that is being carried out.
#[derive(Debug)]
pub(super) struct Running {
    counts: Arc<Counts>,
    procedure: u32,
    begun: Instant,
}

impl Running {
    pub(super) fn new(counts: &Arc<Counts>, procedure: u32) -> Running {
        Running { counts: Arc::clone(counts), procedure, begun: Instant::now() }
    }

    /// It is answered.
    pub(super) fn end(&self, is_failed: bool) {
        let index = usize::try_from(self.procedure).unwrap_or(usize::MAX);
        let Some(count) = self.counts.0.get(index) else { return };
        let took = self.begun.elapsed();
        let bucket =
            LATENCY_BOUNDS_US.partition_point(|&bound| u128::from(bound) < took.as_micros());
        count.buckets[bucket].fetch_add(1, Ordering::Relaxed);
        let took_ns = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        count.latency_ns.fetch_add(took_ns, Ordering::Relaxed);
        if is_failed {
            count.failed.fetch_add(1, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_is_in_one_bucket_and_what_is_no_procedure_in_none() {
        let counts = Arc::<Counts>::default();
        Running::new(&counts, 1).end(false);
        Running::new(&counts, 1).end(true);
        Running::new(&counts, 22).end(true);
        Running::new(&counts, u32::MAX).end(true);
        let all = counts.get();
        assert_eq!(all.len(), PROCEDURES);
        assert_eq!((all[1].name, all[1].answered, all[1].failed), ("GETATTR", 2, 1));
        assert!(all[1].latency_ns > 0);
        assert_eq!(all.iter().map(|count| count.answered).sum::<u64>(), 2);
        assert!(LATENCY_BOUNDS_US.is_sorted());
    }
}
