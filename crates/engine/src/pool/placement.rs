//! Placement of the files of an open pool: set and told by their paths.

use format::fileset::FilesetName;
use format::placement::Placement;

use super::{DiskGroupError, Pool};
use crate::alloc::{PlacementError, Urgency};
use crate::error::FsResult;
use crate::vnode::api::{Caller, FileKind, FileSystem, XattrMode};

impl Pool {
    /// Says whether files can have a placement now.
    ///
    /// # Errors
    ///
    /// See [`PlacementError`].
    pub fn check_placement(&self, placement: Placement) -> Result<(), PlacementError> {
        self.core.store.alloc.check_placement(placement)
    }

    /// Returns the placement of the root directory of the fileset or clone in `slot`, which
    /// what is made in it inherits; `None`: it is being freed.
    ///
    /// # Errors
    ///
    /// What its pages say.
    pub fn placement_of_root(&self, slot: u32) -> FsResult<Option<Placement>> {
        self.core.placement_of_root(slot)
    }

    /// Sets which disk group new data of the file at `path` in a fileset should come from, and of
    /// all that is below it if it is a directory and `is_recursive`; what is made in it from then
    /// on has that too. What is stored already stays where it is. Returns how many files and
    /// directories that were. It is durable when this returns.
    ///
    /// # Errors
    ///
    /// See [`DiskGroupError`]; [`FsError::NotFound`](crate::error::FsError::NotFound) for no such
    /// path.
    pub fn set_placement(
        &self,
        name: &FilesetName,
        path: &[&[u8]],
        (placement, is_recursive): (Placement, bool),
    ) -> Result<u64, DiskGroupError> {
        self.core.store.alloc.check_placement(placement)?;
        let root = Caller::root();
        let mut count = 0;
        self.each_below(name, path, is_recursive, |ino| {
            let kind = self.getattr(&root, ino)?.kind;
            // Of what is below, the others have no placement; what is named must have one.
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

    /// Returns which disk group new data of the file at `path` should come from.
    ///
    /// # Errors
    ///
    /// [`FsError::NotFound`](crate::error::FsError::NotFound) for no such path.
    pub fn placement(&self, name: &FilesetName, path: &[&[u8]]) -> FsResult<Placement> {
        self.within(name, path, |ino| self.core.enter(ino)?.placement(ino))
    }
}
