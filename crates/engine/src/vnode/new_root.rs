//! What the root directory of a new fileset is like.
//!
//! # Invariants
//!
//! - NR1: It has the placement that was asked for; else that of the root directory of the fileset
//!   above it, of the first fileset if there is none, as it has that one's block size (PC1).

use format::anode::{Anode, AnodeKind, ROOT_ANODE};
use format::placement::Placement;
use runtime::planted::{self, Planted};

use super::Core;
use super::filesets::{NewFileset, key_of};
use super::placement::handed_down;
use crate::error::FsResult;
use crate::fileset::birth::NewRoot;
use crate::fileset::moved::AnodeAt;
use crate::fileset::table::TableGuard;

impl Core {
    /// Returns what the root directory of a fileset below the one in slot `above` is to be like.
    pub(super) fn new_root(
        &self,
        index: &TableGuard<'_>,
        above: u32,
        new: &NewFileset,
    ) -> FsResult<NewRoot> {
        let asked = new.placement.filter(|_| !planted::is(Planted::FilesetPlacementForgotten));
        let placement = asked.unwrap_or_else(|| self.inherited(index, above));
        let key = key_of(&new.random);
        Ok(NewRoot { owner: new.owner, key, created: self.now(), placement })
    }

    /// Returns what the root directory of a fileset below the one in slot `above` inherits.
    fn inherited(&self, index: &TableGuard<'_>, above: u32) -> Placement {
        // A preference is no reason to refuse a fileset.
        let root = self.root_of_slot(index, above).unwrap_or_else(|error| {
            tracing::warn!("a new fileset has no placement: the one above cannot be read: {error}");
            None
        });
        root.map_or(Placement::Any, |root| handed_down(&root, AnodeKind::Directory))
    }

    fn root_of_slot(&self, index: &TableGuard<'_>, slot: u32) -> FsResult<Option<Anode>> {
        let entry = index.read_entry(&self.store, slot)?;
        let found = AnodeAt::find(&self.store, &entry.table_anode(), ROOT_ANODE)?;
        Ok(found.map(|at| at.read(&self.store, entry.family)).transpose()?.flatten())
    }

    /// Returns the placement of the root directory of the fileset or clone in `slot`; `None`: it
    /// has none, for it is being freed.
    pub(crate) fn placement_of_root(&self, slot: u32) -> FsResult<Option<Placement>> {
        let index = self.filesets.table.lock(&self.store)?;
        Ok(self.root_of_slot(&index, slot)?.map(|root| root.placement))
    }
}
