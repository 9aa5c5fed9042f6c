//! What clones hold too of a fileset's own pages, and of the ways to its anodes, is copied.

use std::sync::Arc;

use format::anode::{ANODE_MAP_ANODE, Anode, ORPHAN_ANODE, page_and_slot};
use format::ids::{AnodeNo, Epoch};
use format::page::{PageKind, PageOwner};

use super::{FilesetGuard, MountedFileset};
use crate::container::content_owner;
use crate::error::{FsError, FsResult};
use crate::store::{Change, Store};

impl MountedFileset {
    /// Refuses to change anode `number` if its page was born in `shared_epoch` or before it.
    pub(crate) fn check_own(
        &self,
        store: &Store,
        number: AnodeNo,
        shared_epoch: Epoch,
    ) -> FsResult<()> {
        let (page, _) = page_and_slot(number);
        loop {
            let table = Arc::clone(&self.table.read());
            let pointer = store.block(None, &table, page);
            if !self.is_still(&table) {
                continue;
            }
            if pointer?.is_none_or(|pointer| pointer.birth > shared_epoch) {
                return Ok(());
            }
            let owner = content_owner(&table, page);
            return Err(FsError::Shared { kind: PageKind::Anode, owner });
        }
    }
}

impl FilesetGuard<'_> {
    /// Copies what clones hold of the way to a page of the anode table (`Store::unshare_path`).
    pub(crate) fn unshare_table(
        &mut self,
        store: &Store,
        change: &mut Change<'_>,
        shared_epoch: Epoch,
        page: (PageKind, PageOwner),
    ) -> FsResult<()> {
        self.save();
        let mut table = Anode::clone(&self.table);
        store.unshare_path(change, &mut table, shared_epoch, page)?;
        self.table_page = None;
        // Always another one: whoever has read a page of it meanwhile sees that he must look again.
        self.set_table(change, table)?;
        self.write_entry(change)
    }

    /// Copies what clones hold of the way to a page of the container of an anode, the page of its
    /// own slot included; returns the anode as it will be. `None`: it is free.
    pub(crate) fn unshare_container(
        &mut self,
        store: &Store,
        change: &mut Change<'_>,
        shared_epoch: Epoch,
        (kind, owner): (PageKind, PageOwner),
    ) -> FsResult<Option<Anode>> {
        let (page, _) = page_and_slot(owner.anode);
        let slot_page = content_owner(&self.table, page);
        self.unshare_table(store, change, shared_epoch, (PageKind::Anode, slot_page))?;
        // As the page has it: what a file in memory has not written yet is not written here.
        let Some(mut anode) = self.read_anode(store, change, owner.anode)? else {
            return Ok(None);
        };
        store.unshare_path(change, &mut anode, shared_epoch, (kind, owner))?;
        self.write_anode(store, change, &anode)?;
        if owner.anode == ORPHAN_ANODE {
            let (state, saved) = self.saved();
            saved.orphan_anode.get_or_insert_with(|| state.orphan_anode.clone());
            state.orphan_anode = anode.clone();
        } else if owner.anode == ANODE_MAP_ANODE {
            let (state, saved) = self.saved();
            saved.map_anode.get_or_insert_with(|| state.map_anode.clone());
            state.map_anode = anode.clone();
        }
        Ok(Some(anode))
    }
}
