//! Counts and latencies of calls by procedure.
//!
//! A call is counted when its reply is passed to its sink, after the commit it waits for. Calls
//! that are not executed (retransmissions, unknown procedures, invalid credentials) are not
//! counted. A [`Watch`], once set, gets calls about files.

use std::sync::{Arc, OnceLock};
use std::time::Instant;

use engine::api::Ino;

use super::protocol::{PROCEDURE_NAMES, procedure};
use crate::counts::{Count, OperationCounts};
use crate::watch::{AccessPoint, AnsweredRequest, RequestSource, Watch};

const PROCEDURES: usize = PROCEDURE_NAMES.len();

#[derive(Debug, Default)]
pub(super) struct NfsCounts {
    by_procedure: [Count; PROCEDURES],
    watch: OnceLock<Arc<Watch>>,
}

pub(super) type NfsCallSubject = (Arc<AccessPoint>, Ino);

impl NfsCounts {
    /// Sets the watch. Only the first call has an effect.
    pub(super) fn watched_by(&self, watch: &Arc<Watch>) {
        // A service has one server, and the server has one watch.
        let _ = self.watch.set(Arc::clone(watch));
    }

    pub(super) fn get(&self) -> Vec<OperationCounts> {
        PROCEDURE_NAMES
            .iter()
            .zip(&self.by_procedure)
            .map(|(name, count)| count.get(name))
            .collect()
    }
}

#[derive(Debug)]
pub(super) struct RunningCall {
    counts: Arc<NfsCounts>,
    procedure: u32,
    begun: Instant,
    asker: RequestSource,
    /// Bytes of the call.
    received: usize,
    /// `None` if the call has no file, or its handle is not read yet.
    pub(super) about: Option<NfsCallSubject>,
}

impl RunningCall {
    pub(super) fn new(
        counts: &Arc<NfsCounts>,
        procedure: u32,
        asker: RequestSource,
        received: usize,
    ) -> RunningCall {
        let counts = Arc::clone(counts);
        RunningCall { counts, procedure, begun: Instant::now(), asker, received, about: None }
    }

    /// Counts the call, whose reply has `sent` bytes.
    pub(super) fn end(&self, is_failed: bool, sent: usize) {
        let index = usize::try_from(self.procedure).unwrap_or(usize::MAX);
        let Some(count) = self.counts.by_procedure.get(index) else { return };
        let took = self.begun.elapsed();
        let bytes = match self.procedure {
            procedure::READ if !is_failed => sent,
            procedure::WRITE if !is_failed => self.received,
            _ => 0,
        };
        count.add(took, is_failed, bytes);
        if let (Some(watch), Some((place, ino))) = (self.counts.watch.get(), &self.about)
            && watch.wants(took)
        {
            let operation = PROCEDURE_NAMES[index];
            let (asker, ino) = (self.asker, *ino);
            let answered = AnsweredRequest { place, asker, operation, ino, took, is_failed };
            watch.tell(&answered, Instant::now());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_is_in_one_bucket_and_what_is_no_procedure_in_none() {
        let (counts, asker) = (Arc::<NfsCounts>::default(), RequestSource::default());
        RunningCall::new(&counts, 1, asker, 90).end(false, 100);
        RunningCall::new(&counts, 1, asker, 90).end(true, 100);
        RunningCall::new(&counts, 22, asker, 90).end(true, 100);
        RunningCall::new(&counts, u32::MAX, asker, 90).end(true, 100);
        RunningCall::new(&counts, procedure::READ, asker, 90).end(false, 4200);
        RunningCall::new(&counts, procedure::READ, asker, 90).end(true, 80);
        RunningCall::new(&counts, procedure::WRITE, asker, 4300).end(false, 80);
        let all = counts.get();
        assert_eq!(all.len(), PROCEDURES);
        assert_eq!((all[1].name, all[1].answered, all[1].failed), ("GETATTR", 2, 1));
        assert!(all[1].latency_ns > 0);
        assert_eq!(all.iter().map(|count| count.answered).sum::<u64>(), 5);
        assert_eq!((all[6].name, all[6].bytes), ("READ", 4200));
        assert_eq!((all[7].name, all[7].bytes), ("WRITE", 4300));
        assert_eq!(all.iter().map(|count| count.bytes).sum::<u64>(), 8500);
        assert!(crate::counts::LATENCY_BOUNDS_US.is_sorted());
    }
}
