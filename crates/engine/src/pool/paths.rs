//! Where members were last, as the labels tell it.

use super::Pool;
use crate::error::FsResult;

impl Pool {
    /// Members and spares that are not there were last at none of `paths`, where others are now:
    /// whoever names one of them later means those. A pool that takes no changes stays as it is.
    ///
    /// # Errors
    ///
    /// What a device said: the pool has stopped writing.
    pub fn forget_paths(&self, paths: &[Vec<u8>]) -> FsResult<()> {
        let Some(members) = self.volume().members().filter(|_| !paths.is_empty()) else {
            return Ok(());
        };
        if self.check_members_change().is_err() {
            return Ok(());
        }
        members.forget_paths(paths).map_err(|error| self.core.store.journal.fail(&error))
    }
}
