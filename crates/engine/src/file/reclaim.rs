//! Space for writers: map updates, release of freed space, cleaning.
//!
//! Policy: a writer reclaims when fewer than [`FEW_SEGMENTS`] are free. An operation without space
//! reclaims everything once and retries. A reclaim that left the same [`SpaceVersion`] is not
//! repeated until that changes.

use crate::file::SpaceReclaim;
use std::fmt::Debug;

use crate::alloc::{FEW_SEGMENTS, LOW_SEGMENTS, PROMISED_SEGMENTS};
use crate::error::{FsError, FsResult};
use crate::file::Core;
use crate::sync::Mutex;

/// The cleaner, which is in a layer above this one. Called with no lock held.
pub(crate) trait SegmentReclaimer: Debug + Send + Sync {
    /// Empties segments until `enough` are free, nothing is left to gain, or a step is over.
    fn empty_some(&self, core: &Core, enough: u32) -> FsResult<()>;

    /// Empties segments until `enough` are free or nothing is gained. Slower, but reserved space
    /// must be usable.
    fn empty_thoroughly(&self, core: &Core, enough: u32) -> FsResult<()>;

    /// Waits for the end of a pass in progress. Later passes see the caller's changes.
    fn wait(&self);
}

/// State of the pool: any release or use of space advances one of the counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SpaceVersion {
    transactions: u64,
    pub(crate) blocks_placed: u64,
    writes_answered: u64,
}

#[derive(Debug, Default)]
pub(crate) struct FruitlessReclaim(Mutex<Option<SpaceVersion>>);

impl SpaceReclaim<'_> {
    pub(crate) fn moment(&self) -> SpaceVersion {
        SpaceVersion {
            transactions: self.store.journal.counts().transactions,
            blocks_placed: self.segments.placed(),
            writes_answered: self.store.journal.data_answered(),
        }
    }

    /// Prepares a write: bounds dirty data, and provides free segments. Called with no lock held.
    pub(crate) fn make_room(&self) -> FsResult<()> {
        self.segments.throttle()?;
        if self.segments.has_installable() {
            self.writeback().install_waiting()?;
        }
        if self.store.alloc.free_segments(FEW_SEGMENTS)? < FEW_SEGMENTS {
            self.reclaim()?;
        }
        Ok(())
    }

    /// Runs deferred work; see [`crate::api::FileSystem::run_deferred_work`]. Called with no lock
    /// held.
    pub(crate) fn run_deferred_work(&self) -> FsResult<()> {
        if self.segments.seal_full() { self.make_room() } else { Ok(()) }
    }

    /// Runs `operation`, and again after a reclaim if there was no space. Called with no lock held.
    pub(crate) fn with_reclaim<T>(
        &self,
        mut operation: impl FnMut() -> FsResult<T>,
    ) -> FsResult<T> {
        match operation() {
            Err(FsError::NoSpace) => {
                self.reclaim_promised()?;
                let again = operation();
                if matches!(again, Err(FsError::NoSpace)) {
                    self.note_refused();
                }
                again
            }
            other => other,
        }
    }

    /// Reclaims all freed space, however fragmented, so that reserved space is usable.
    pub(crate) fn reclaim_promised(&self) -> FsResult<()> {
        let before = self.moment();
        if *self.barren.0.lock() == Some(before) {
            return Ok(());
        }
        self.reclaim_all()?;
        let has_found = self.moment() != before;
        *self.barren.0.lock() = (!has_found).then_some(before);
        Ok(())
    }

    fn reclaim_all(&self) -> FsResult<()> {
        self.reap_all_doomed();
        // Map updates release most of the map pages that are reserved for dirty blocks.
        self.segments.seal();
        self.settle_space()?;
        self.emptier.empty_thoroughly(self, PROMISED_SEGMENTS)
    }

    /// Empties every segment that gives anything back. Called with no lock held.
    pub(crate) fn clean(&self) -> FsResult<()> {
        self.settle_space()?;
        self.emptier.empty_thoroughly(self, u32::MAX)
    }

    fn settle_space(&self) -> FsResult<()> {
        self.segments.seal_full();
        self.writeback().install_waiting()?;
        self.store.journal.checkpoint()?;
        self.segments.tidy();
        Ok(())
    }

    /// Reclaims until [`LOW_SEGMENTS`] are free. Called with no lock held.
    pub(crate) fn reclaim(&self) -> FsResult<()> {
        self.reclaim_until(LOW_SEGMENTS)
    }

    /// Reclaims until `enough` segments are free. Called with no lock held.
    pub(crate) fn reclaim_until(&self, enough: u32) -> FsResult<()> {
        self.settle_space()?;
        self.emptier.empty_some(self, enough)
    }
}
