//! How a journal fails: once, for good, and everyone is told (T5).

use std::sync::atomic::Ordering;

use format::defect::Defect;
use storage::device::DeviceError;

use super::Journal;
use crate::error::{FsError, FsResult};

impl Journal {
    /// T5: remembers the first failure; from now on the pool is read-only.
    pub(crate) fn fail(&self, error: &DeviceError) -> FsError {
        let cause = error.to_string();
        self.fail_with(&cause);
        FsError::io(cause)
    }

    /// T5: as [`Journal::fail`], for a defect.
    pub(super) fn fail_of(&self, defect: &Defect) {
        self.fail_with(&defect.to_string());
    }

    /// T5: as [`Journal::fail`], for what is no device's fault.
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

    /// T5: as [`Journal::fail`], for a contradiction on the disk: to go on writing could destroy
    /// what is whole.
    pub(crate) fn fail_corrupt(&self, defect: Defect) -> FsError {
        self.fail_with(&defect.to_string());
        FsError::from(defect)
    }

    /// Returns an error if the journal has failed.
    pub(crate) fn check_alive(&self) -> FsResult<()> {
        if !self.has_failed.load(Ordering::Acquire) {
            return Ok(());
        }
        let reason = self.failure.lock().clone().unwrap_or_default();
        Err(FsError::ReadOnly { reason })
    }
}
