//! Placement of files in an open pool, set and queried by path.

use format::fileset::FilesetName;
use format::placement::Placement;

use super::{DiskGroupError, Pool};
use crate::alloc::{PlacementError, Urgency};
use crate::api::{Caller, FileKind, FileSystem, XattrMode};
use crate::error::FsResult;

impl Pool {
    /// Checks that files can have `placement` at present.
    ///
    /// # Errors
    ///
    /// See [`PlacementError`].
    pub fn check_placement(&self, placement: Placement) -> Result<(), PlacementError> {
        self.core.store.alloc.check_placement(placement)
    }

    /// Returns the placement of the root directory in `slot`. `None` if it is being freed.
    ///
    /// # Errors
    ///
    /// Corruption of the fileset's pages.
    pub fn placement_of_root(&self, slot: u32) -> FsResult<Option<Placement>> {
        self.core.placement_of_root(slot)
    }

    /// Sets the placement of new data at `path`, and with `is_recursive` of everything below,
    /// durably. Files created there inherit the placement. Stored data stays where it is. Returns
    /// the count of files changed.
    ///
    /// # Errors
    ///
    /// See [`DiskGroupError`]. [`FsError::NotFound`](crate::error::FsError::NotFound) if the path
    /// does not exist.
    pub fn set_placement(
        &self,
        name: &FilesetName,
        path: &[&[u8]],
        (placement, is_recursive): (Placement, bool),
    ) -> Result<u64, DiskGroupError> {
        self.core.store.alloc.check_placement(placement)?;
        let root = Caller::root();
        let mut count = 0;
        self.fileset_admin().each_below(name, path, is_recursive, |ino| {
            let kind = self.getattr(&root, ino)?.kind;
            // Other kinds of files have no placement. They are skipped below `path`, and refused as
            // `path`.
            let has_none = !matches!(kind, FileKind::Regular | FileKind::Directory);
            if has_none && count > 0 {
                return Ok(());
            }
            count += 1;
            let files = self.core.files_of(ino)?;
            let set = (placement, XattrMode::Set);
            files.unsharing(Urgency::User, || files.set_placement(&root, ino, set, None))
        })?;
        Ok(count)
    }

    /// Returns the placement of the file at `path`.
    ///
    /// # Errors
    ///
    /// [`FsError::NotFound`](crate::error::FsError::NotFound) if the path does not exist.
    pub fn placement(&self, name: &FilesetName, path: &[&[u8]]) -> FsResult<Placement> {
        self.fileset_admin().within(name, path, |ino| self.core.enter(ino)?.placement(ino))
    }
}
