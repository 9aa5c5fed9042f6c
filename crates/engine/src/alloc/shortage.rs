//! Refuses space requests on purpose, to test the failure of each request of an operation.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::error::{FsError, FsResult};
use crate::sync::Mutex;

/// A fault plan for space requests. Refuses none until [`Shortage::begin`].
///
/// Requests are serial, under the allocator's lock.
#[derive(Debug)]
pub struct Shortage {
    /// Requests to grant before the first refusal.
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
    /// Refuses the `nth` request after this call, from 0, and all later ones if `persists`.
    pub fn begin(&self, nth: u64, persists: bool) {
        self.left.store(nth, Ordering::SeqCst);
        self.persists.store(persists, Ordering::SeqCst);
    }

    /// Lets exactly these allocation groups refuse pages.
    pub fn bar(&self, groups: impl IntoIterator<Item = u32>) {
        *self.barred.lock() = groups.into_iter().collect();
    }

    pub(super) fn barred(&self) -> BTreeSet<u32> {
        self.barred.lock().clone()
    }

    /// Grants all further requests.
    pub fn end(&self) {
        self.begin(u64::MAX, false);
    }

    /// Returns the number of refusals.
    #[must_use]
    pub fn refused(&self) -> u64 {
        self.refused.load(Ordering::SeqCst)
    }

    /// Counts a request.
    ///
    /// # Errors
    ///
    /// [`FsError::NoSpace`] if the request is to be refused.
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
