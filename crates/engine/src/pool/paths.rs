//! The last known paths of members, as recorded in the labels.

use super::Pool;
use crate::error::FsResult;

impl Pool {
    /// Removes `paths`, which belong to other devices by now, from the labels of absent members and
    /// spares: a path there would name the absent device. Does nothing in a read-only pool.
    ///
    /// # Errors
    ///
    /// A device error. The pool has stopped writing.
    pub fn forget_paths(&self, paths: &[Vec<u8>]) -> FsResult<()> {
        let Some(members) = self.volume().members().filter(|_| !paths.is_empty()) else {
            return Ok(());
        };
        if self.devices().check_members_change().is_err() {
            return Ok(());
        }
        members.forget_paths(paths).map_err(|error| self.core.store.journal.fail(&error))
    }
}
