//! How many calls there were, how many failed, and how long their answers took: by procedure.
//!
//! A call is counted when its answer is given to its sink: after the commit that it waits for.
//! Calls that are not carried out (retransmissions, made-up procedures, credentials that say
//! nothing) are not counted.

use std::sync::Arc;
use std::time::Instant;

use super::protocol::PROCEDURE_NAMES;
use crate::counts::{Count, OperationCounts};

/// Procedures of NFSv3, NULL among them.
const PROCEDURES: usize = PROCEDURE_NAMES.len();

/// Counts of a service.
#[derive(Debug, Default)]
pub(super) struct Counts([Count; PROCEDURES]);

impl Counts {
    /// Returns what is counted by now.
    pub(super) fn get(&self) -> Vec<OperationCounts> {
        PROCEDURE_NAMES.iter().zip(&self.0).map(|(name, count)| count.get(name)).collect()
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
        count.add(self.begun.elapsed(), is_failed);
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
        assert!(crate::counts::LATENCY_BOUNDS_US.is_sorted());
    }
}
