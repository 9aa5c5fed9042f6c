//! The root directory of a new fileset.
//!
//! # Invariants
//!
//! - NR1: A new root directory has the requested placement, or else that of the parent fileset's
//!   root directory (PC1). Without a parent, the pool's first fileset supplies both placement and
//!   block size.

use format::anode::{Anode, AnodeKind, ROOT_ANODE};
use format::placement::Placement;

use crate::error::FsResult;
use crate::file::Core;
use crate::file::open_filesets::NewFileset;
use crate::file::placement::handed_down;
use crate::fileset::lifecycle::key_of;
use crate::fileset_table::birth::NewRoot;
use crate::fileset_table::moved::AnodeLocation;
use crate::fileset_table::table::TableGuard;

impl Core {
    /// Returns the attributes of a new root directory. `above` is the slot of the parent fileset.
    pub(crate) fn new_root(
        &self,
        index: &TableGuard<'_>,
        above: u32,
        new: &NewFileset,
    ) -> FsResult<NewRoot> {
        let placement = new.placement.unwrap_or_else(|| self.inherited(index, above));
        let key = key_of(&new.random);
        Ok(NewRoot { owner: new.owner, key, created: self.now(), placement })
    }

    fn inherited(&self, index: &TableGuard<'_>, above: u32) -> Placement {
        // A placement is only a preference, so an unreadable parent directory does not matter.
        let root = self.root_of_slot(index, above).unwrap_or_else(|error| {
            tracing::warn!("a new fileset has no placement: the one above cannot be read: {error}");
            None
        });
        root.map_or(Placement::Any, |root| handed_down(&root, AnodeKind::Directory))
    }

    fn root_of_slot(&self, index: &TableGuard<'_>, slot: u32) -> FsResult<Option<Anode>> {
        let entry = index.read_entry(&self.store, slot)?;
        let found = AnodeLocation::find(&self.store, &entry.table_anode(), ROOT_ANODE)?;
        Ok(found.map(|at| at.read(&self.store, entry.family)).transpose()?.flatten())
    }

    /// Returns the placement of a root directory; `None` if the directory is being freed.
    pub(crate) fn placement_of_root(&self, slot: u32) -> FsResult<Option<Placement>> {
        let index = self.filesets.table.lock(&self.store)?;
        Ok(self.root_of_slot(&index, slot)?.map(|root| root.placement))
    }
}
