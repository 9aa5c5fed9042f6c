//! Space that is refused at a moment that somebody chooses, as a full pool refuses it: so that a
//! test can ask what becomes of an operation whose n-th need of space is not met, whichever it is.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::error::{FsError, FsResult};
use crate::sync::Mutex;

/// Which need of space is not met. None, until [`Shortage::begin`].
///
/// One thread asks for space at a time: under the allocator's lock.
#[derive(Debug)]
pub struct Shortage {
    /// Needs of space that are met before one is not.
    left: AtomicU64,
    persists: AtomicBool,
    refused: AtomicU64,
    /// Allocation groups that give no pages.
    barred: Mutex<BTreeSet<u32>>,
}

impl Default for Shortage {
    fn default() -> Shortage {
        let (persists, refused) = (AtomicBool::new(false), AtomicU64::new(0));
        let (left, barred) = (AtomicU64::new(u64::MAX), Mutex::default());
        Shortage { left, persists, refused, barred }
    }
}

impl Shortage {
    /// From here on the need number `nth`, from 0, is not met, nor any after it if it `persists`.
    pub fn begin(&self, nth: u64, persists: bool) {
        self.left.store(nth, Ordering::SeqCst);
        self.persists.store(persists, Ordering::SeqCst);
    }

    /// From here on these allocation groups give no pages, and all others do.
    pub fn bar(&self, groups: impl IntoIterator<Item = u32>) {
        *self.barred.lock() = groups.into_iter().collect();
    }

    pub(super) fn barred(&self) -> BTreeSet<u32> {
        self.barred.lock().clone()
    }

    /// From here on all needs are met.
    pub fn end(&self) {
        self.begin(u64::MAX, false);
    }

    /// Returns how many needs were not met.
    #[must_use]
    pub fn refused(&self) -> u64 {
        self.refused.load(Ordering::SeqCst)
    }

    /// Counts a need.
    ///
    /// # Errors
    ///
    /// [`FsError::NoSpace`] if it is the one, or one after it.
    pub(super) fn need(&self) -> FsResult<()> {
        let left = self.left.load(Ordering::SeqCst);
        if left > 0 {
            self.left.store(left - 1, Ordering::SeqCst);
            return Ok(());
        }
        if !self.persists.load(Ordering::SeqCst) {
            self.left.store(u64::MAX, Ordering::SeqCst);
        }
        self.refused.fetch_add(1, Ordering::SeqCst);
        Err(FsError::NoSpace)
    }
}
