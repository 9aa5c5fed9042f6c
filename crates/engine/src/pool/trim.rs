//! Trim on demand: discards all free segments of a pool.

use super::PoolDevices;
use std::sync::Arc;

use crate::jobs::{DiscardCounts, Trim, TrimCounts, TrimError, TrimReport};

impl PoolDevices<'_> {
    /// Starts a job that discards all free segments, including those whose free is deferred.
    /// Returns `false` if such a job is running.
    ///
    /// # Errors
    ///
    /// See [`TrimError`].
    pub fn trim(&self) -> Result<bool, TrimError> {
        if self.is_read_only {
            return Err(TrimError::ReadOnly);
        }
        let volume = self.volume();
        if !volume.geometry().group_layout().groups().any(|group| volume.may_discard(group)) {
            return Err(TrimError::Stripes);
        }
        let mut last = self.trim.lock();
        if last.as_ref().is_some_and(|counts| !counts.report().is_done) {
            return Ok(false);
        }
        self.core.segments.tidy();
        self.checkpoint()?;
        let counts = Arc::<TrimCounts>::default();
        self.jobs.add(&self.core, Arc::new(Trim::new(&counts, self.jobs.discard_counters())));
        *last = Some(counts);
        Ok(true)
    }

    /// Returns the report of the last trim since the open, if any.
    #[must_use]
    pub fn trim_report(&self) -> Option<TrimReport> {
        self.trim.lock().as_ref().map(|counts| counts.report())
    }

    /// Returns the figures of discards since the open.
    #[must_use]
    pub fn discard_counts(&self) -> DiscardCounts {
        self.jobs.discard_counters().counts(&self.core)
    }
}
