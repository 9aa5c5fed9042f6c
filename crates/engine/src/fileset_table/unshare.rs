//! Copy-on-write of a fileset's own pages, and of the path to an anode, where snapshots share them.

use std::sync::Arc;

use format::anode::{ANODE_MAP_ANODE, Anode, ORPHAN_ANODE, page_and_slot};
use format::ids::{AnodeNo, Epoch};
use format::page::{PageKind, PageOwner};

use super::{FilesetGuard, MountedFileset};
use crate::container::content_owner;
use crate::error::{FsError, FsResult};
use crate::store::{Change, Store};

impl MountedFileset {
    /// Refuses to change anode `number` if its page was born in `shared_epoch` or earlier.
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
    /// Copies the shared pages on the path to a page of the anode table (`Store::unshare_path`).
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
        // A fresh `Arc` even if the root is unchanged: its identity makes concurrent readers retry.
        self.set_table(change, table)?;
        self.write_entry(change)
    }

    /// Copies the shared pages on the path to a page of an anode's container, including the page of
    /// its slot. Returns the anode, or `None` if it is free.
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
        // Read from the page, so that unwritten changes of the vnode are not written here.
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
