//! What the root directory of a new fileset is like.
//!
//! # Invariants
//!
//! - NR1: It has the placement of the root directory of the fileset above it, of the first fileset
//!   if there is none, as it has that one's block size (PC1).

use format::anode::{Anode, AnodeKind, ROOT_ANODE};
use format::placement::Placement;

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
        let entry = index.read_entry(&self.store, above)?;
        let root = || -> FsResult<Option<Anode>> {
            let found = AnodeAt::find(&self.store, &entry.table_anode(), ROOT_ANODE)?;
            Ok(found.map(|at| at.read(&self.store, entry.family)).transpose()?.flatten())
        };
        // A preference is no reason to refuse a fileset.
        let root = root().unwrap_or_else(|error| {
            tracing::warn!("a new fileset has no placement: the one above cannot be read: {error}");
            None
        });
        let placement =
            root.map_or(Placement::Any, |root| handed_down(&root, AnodeKind::Directory));
        let key = key_of(&new.random);
        Ok(NewRoot { owner: new.owner, key, created: self.now(), placement })
    }
}
