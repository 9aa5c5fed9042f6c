//! Room for writers: what waits is installed, what was freed is released, segments are emptied.
//!
//! Policy: a writer begins to look when fewer than [`FEW_SEGMENTS`] are free. Who finds no space at
//! all releases everything that waits once, and tries again. A reclaim that began and ended in the
//! same state of the pool (its [`Moment`]) has found nothing; until that changes, none is made.

use std::fmt::Debug;

use super::Core;
use crate::alloc::{FEW_SEGMENTS, LOW_SEGMENTS, PROMISED_SEGMENTS};
use crate::error::{FsError, FsResult};
use crate::sync::Mutex;

/// Who empties segments: a job, above this layer. Called with no lock held.
pub(crate) trait Empties: Debug + Send + Sync {
    /// Empties segments until `enough` are free, or nothing is left to gain, or as many as a step
    /// may.
    fn empty_some(&self, core: &Core, enough: u32) -> FsResult<()>;

    /// Empties segments until `enough` are free or none gives anything back: what was promised must
    /// be found.
    fn empty_thoroughly(&self, core: &Core, enough: u32) -> FsResult<()>;

    /// Waits until what is being emptied is: whoever comes later sees what the caller has set.
    fn wait(&self);
}

/// How far a pool is: what gives space back or takes it moves one of the three on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Moment {
    transactions: u64,
    pub(crate) blocks_placed: u64,
    writes_answered: u64,
}

/// When a reclaim found nothing last.
#[derive(Debug, Default)]
pub(crate) struct Barren(Mutex<Option<Moment>>);

impl Core {
    /// Returns how far the pool is.
    pub(crate) fn moment(&self) -> Moment {
        Moment {
            transactions: self.store.journal.counts().transactions,
            blocks_placed: self.segments.placed(),
            writes_answered: self.store.journal.data_answered(),
        }
    }

    /// Before a write: bounds what is in memory and sees to it that there are segments to write
    /// to. Called with no lock held.
    pub(crate) fn make_room(&self) -> FsResult<()> {
        self.segments.throttle()?;
        if self.segments.has_installable() {
            self.install_waiting()?;
        }
        if self.store.alloc.free_segments(FEW_SEGMENTS)? < FEW_SEGMENTS {
            self.reclaim()?;
        }
        Ok(())
    }

    /// Does what the last writers have left to others: see
    /// [`super::api::FileSystem::run_deferred_work`]. Called with no lock held.
    pub(crate) fn run_deferred_work(&self) -> FsResult<()> {
        if self.segments.seal_full() { self.make_room() } else { Ok(()) }
    }

    /// Does `operation`, and if there is no space once more after a reclaim: space that waits for a
    /// checkpoint or for the cleaner may be enough. Called with no lock held.
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

    /// Makes freed space usable, however little each segment gives back: what the pool has promised
    /// is there, if only in pieces.
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
        // Each block that waits holds the map pages that it may need: what is installed does not.
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
        self.install_waiting()?;
        self.store.journal.checkpoint()?;
        self.segments.tidy();
        Ok(())
    }

    /// Makes freed space usable: a checkpoint, and segments are emptied until there are enough or
    /// nothing is left to gain. Called with no lock held.
    pub(crate) fn reclaim(&self) -> FsResult<()> {
        self.reclaim_until(LOW_SEGMENTS)
    }

    /// The same, until `enough` segments are free.
    pub(crate) fn reclaim_until(&self, enough: u32) -> FsResult<()> {
        self.settle_space()?;
        self.emptier.empty_some(self, enough)
    }
}
