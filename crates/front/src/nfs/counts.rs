//! How many calls there were, how many failed, and how long their answers took: by procedure.
//!
//! A call is counted when its answer is given to its sink: after the commit that it waits for.
//! Calls that are not carried out (retransmissions, made-up procedures, credentials that say
//! nothing) are not counted. A watch is told of a call, once one is set, if it is about a file.

use std::sync::{Arc, OnceLock};
use std::time::Instant;

use engine::vnode::api::Ino;

use super::protocol::PROCEDURE_NAMES;
use crate::counts::{Count, OperationCounts};
use crate::watch::{Answered, Asker, Place, Watch};

/// Procedures of NFSv3, NULL among them.
const PROCEDURES: usize = PROCEDURE_NAMES.len();

/// Counts of a service.
#[derive(Debug, Default)]
pub(super) struct Counts {
    by_procedure: [Count; PROCEDURES],
    watch: OnceLock<Arc<Watch>>,
}

/// Which file a call is about, and through which export.
pub(super) type About = (Arc<Place>, Ino);

impl Counts {
    /// From now on `watch` sees calls. The first that is set stays.
    pub(super) fn watched_by(&self, watch: &Arc<Watch>) {
        // A service is in one server, which has one watch.
        let _ = self.watch.set(Arc::clone(watch));
    }

    /// Returns what is counted by now.
    pub(super) fn get(&self) -> Vec<OperationCounts> {
        PROCEDURE_NAMES
            .iter()
            .zip(&self.by_procedure)
            .map(|(name, count)| count.get(name))
            .collect()
    }
}

/// A call that is being carried out.
#[derive(Debug)]
pub(super) struct Running {
    counts: Arc<Counts>,
    procedure: u32,
    begun: Instant,
    asker: Asker,
    /// `None`: it is about no file, or that is not known yet.
    pub(super) about: Option<About>,
}

impl Running {
    pub(super) fn new(counts: &Arc<Counts>, procedure: u32, asker: Asker) -> Running {
        let counts = Arc::clone(counts);
        Running { counts, procedure, begun: Instant::now(), asker, about: None }
    }

    /// It is answered.
    pub(super) fn end(&self, is_failed: bool) {
        let index = usize::try_from(self.procedure).unwrap_or(usize::MAX);
        let Some(count) = self.counts.by_procedure.get(index) else { return };
        let took = self.begun.elapsed();
        count.add(took, is_failed);
        if let (Some(watch), Some((place, ino))) = (self.counts.watch.get(), &self.about)
            && watch.wants(took)
        {
            let operation = PROCEDURE_NAMES[index];
            let (asker, ino) = (self.asker, *ino);
            let answered = Answered { place, asker, operation, ino, took, is_failed };
            watch.tell(&answered, Instant::now());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_is_in_one_bucket_and_what_is_no_procedure_in_none() {
        let (counts, asker) = (Arc::<Counts>::default(), Asker::default());
        Running::new(&counts, 1, asker).end(false);
        Running::new(&counts, 1, asker).end(true);
        Running::new(&counts, 22, asker).end(true);
        Running::new(&counts, u32::MAX, asker).end(true);
        let all = counts.get();
        assert_eq!(all.len(), PROCEDURES);
        assert_eq!((all[1].name, all[1].answered, all[1].failed), ("GETATTR", 2, 1));
        assert!(all[1].latency_ns > 0);
        assert_eq!(all.iter().map(|count| count.answered).sum::<u64>(), 2);
        assert!(crate::counts::LATENCY_BOUNDS_US.is_sorted());
    }
}
