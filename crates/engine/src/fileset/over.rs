//! A fileset that is over: it was deleted, or restored, or got what a stream brought. The entry in
//! its slot and its pages are not its any more, and whoever found it before changes neither.

use super::{FilesetGuard, MountedFileset};
use crate::error::{FsError, FsResult};
use runtime::planted::{self, Planted};

impl MountedFileset {
    /// As [`MountedFileset::lock`], unless it is over.
    ///
    /// # Errors
    ///
    /// [`FsError::Stale`].
    pub(crate) fn lock_current(&self) -> FsResult<FilesetGuard<'_>> {
        let guard = self.lock();
        guard.check_current()?;
        Ok(guard)
    }

    /// It is over. Nobody is in the middle of a change of it: its gate is closed.
    pub(crate) fn end(&self) {
        self.lock().end_fileset();
    }
}

impl FilesetGuard<'_> {
    /// It is over, from the moment on that somebody else can lock it.
    pub(crate) fn end_fileset(&mut self) {
        self.state.is_over = !planted::is(Planted::EndedFilesetChanged);
    }

    pub(super) fn check_current(&self) -> FsResult<()> {
        if self.state.is_over { Err(FsError::Stale) } else { Ok(()) }
    }
}
