//! The end of a mounted fileset, when it is deleted, restored, or updated from a stream. Its slot
//! then has another entry or none, and its pages belong to others, so remaining references must
//! change neither.

use super::{FilesetGuard, MountedFileset};
use crate::error::{FsError, FsResult};
use runtime::planted;

impl MountedFileset {
    /// Takes the fileset's lock, as [`MountedFileset::lock`] does.
    ///
    /// # Errors
    ///
    /// [`FsError::Stale`] if the fileset has ended.
    pub(crate) fn lock_current(&self) -> FsResult<FilesetGuard<'_>> {
        let guard = self.lock();
        guard.check_current()?;
        Ok(guard)
    }

    /// Ends the fileset. Its closed gate excludes changes in progress.
    pub(crate) fn end(&self) {
        self.lock().end_fileset();
    }
}

impl FilesetGuard<'_> {
    pub(crate) fn end_fileset(&mut self) {
        self.state.is_over = !planted!(EndedFilesetChanged);
    }

    pub(super) fn check_current(&self) -> FsResult<()> {
        if self.state.is_over { Err(FsError::Stale) } else { Ok(()) }
    }
}
