//! Failure of the journal: the first one makes the pool read-only until it is opened again (T5).

use std::sync::atomic::Ordering;

use format::defect::Defect;
use storage::device::DeviceError;

use super::Journal;
use crate::error::{FsError, FsResult};

impl Journal {
    /// Records the first failure and makes the pool read-only (T5). Returns the error for the
    /// caller.
    pub(crate) fn fail(&self, error: &DeviceError) -> FsError {
        let cause = error.to_string();
        self.fail_with(&cause);
        FsError::io(cause)
    }

    /// Fails the journal because of a defect (T5).
    pub(super) fn fail_of(&self, defect: &Defect) {
        self.fail_with(&defect.to_string());
    }

    /// Fails the journal for a reason that is no device error (T5).
    pub(super) fn fail_with(&self, reason: &str) {
        let mut failure = self.failure.lock();
        if failure.is_none() {
            tracing::error!(
                reason,
                "the pool is read-only from now on: unmount, check, mount again"
            );
            *failure = Some(reason.to_owned());
        }
        self.has_failed.store(true, Ordering::Release);
        self.volume.mend_no_more();
        self.space.notify_all();
        self.came.notify_one();
    }

    /// Fails the journal because structures on disk contradict each other: further writes could
    /// destroy intact data (T5).
    pub(crate) fn fail_corrupt(&self, defect: Defect) -> FsError {
        self.fail_with(&defect.to_string());
        FsError::from(defect)
    }

    /// Returns [`FsError::ReadOnly`] if the journal has failed.
    pub(crate) fn check_alive(&self) -> FsResult<()> {
        if !self.has_failed.load(Ordering::Acquire) {
            return Ok(());
        }
        let reason = self.failure.lock().clone().unwrap_or_default();
        Err(FsError::ReadOnly { reason })
    }
}
