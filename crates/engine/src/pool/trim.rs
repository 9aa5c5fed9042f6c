//! Discarding all that is free, because somebody asks for it.

use std::sync::Arc;

use super::Pool;
use crate::jobs::{DiscardCounts, Trim, TrimCounts, TrimError, TrimReport};

impl Pool {
    /// Begins to discard all free segments, unless that goes on already: a job does it. What was
    /// freed so far is free then. Returns whether it was begun.
    ///
    /// # Errors
    ///
    /// See [`TrimError`].
    pub fn trim(&self) -> Result<bool, TrimError> {
        if self.is_read_only {
            return Err(TrimError::ReadOnly);
        }
        let volume = self.volume();
        if !volume.geometry().groups().any(|group| volume.may_discard(group)) {
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

    /// Returns what the last trim since the open has done; `None`: there was none.
    #[must_use]
    pub fn trim_report(&self) -> Option<TrimReport> {
        self.trim.lock().as_ref().map(|counts| counts.report())
    }

    /// Returns what discards have come to since the open.
    #[must_use]
    pub fn discard_counts(&self) -> DiscardCounts {
        self.jobs.discard_counters().counts(&self.core)
    }
}
