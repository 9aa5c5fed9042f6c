//! Moves pages that several nodes of a family share: edits anodes in their table pages, and block
//! places held in memory.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use format::anode::{Anode, StorageMode, page_and_slot};
use format::ids::{AnodeNo, FilesetId, Place};
use format::map::ROOT_POINTERS;
use format::page::{PageKind, PageOwner};
use format::pointer::BlockPointer;
use runtime::planted;

use super::table::{FilesetIndex, write_table};
use super::{FilesetGuard, MountedFileset, decode_slot, slot_range};
use crate::buffer::corrupt;
use crate::container::{PointerLocation, content_owner, with_sibling};
use crate::convert::index_wide;
use crate::error::FsResult;
use crate::store::{Change, Store};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct AnodeLocation {
    pub(crate) place: Place,
    pub(crate) owner: PageOwner,
    pub(crate) number: AnodeNo,
}

impl AnodeLocation {
    pub(crate) fn find(
        store: &Store,
        table: &Anode,
        number: AnodeNo,
    ) -> FsResult<Option<AnodeLocation>> {
        AnodeLocation::find_in(store, None, table, number)
    }

    /// [`AnodeLocation::find`], reading through the pages dirtied by `change`.
    pub(crate) fn find_in(
        store: &Store,
        change: Option<&Change<'_>>,
        table: &Anode,
        number: AnodeNo,
    ) -> FsResult<Option<AnodeLocation>> {
        let (page, _) = page_and_slot(number);
        let owner = content_owner(table, page);
        let pointer = store.block(change, table, page)?;
        Ok(pointer.map(|pointer| AnodeLocation { place: pointer.place, owner, number }))
    }

    pub(crate) fn read(self, store: &Store, family: FilesetId) -> FsResult<Option<Anode>> {
        self.read_in(store, None, family)
    }

    /// [`AnodeLocation::read`], reading through the pages dirtied by `change`.
    pub(crate) fn read_in(
        self,
        store: &Store,
        change: Option<&Change<'_>>,
        family: FilesetId,
    ) -> FsResult<Option<Anode>> {
        let (_, slot) = page_and_slot(self.number);
        let view = store.view(change, self.place, PageKind::Anode, self.owner)?;
        decode_slot(&view, family, self.number, slot)
    }

    pub(crate) fn set_place(
        self,
        change: &mut Change<'_>,
        root_slot: usize,
        place: Place,
    ) -> FsResult<()> {
        self.edit(change, root_slot, |pointer| BlockPointer { place, ..pointer })
    }

    pub(crate) fn set_sibling(
        self,
        change: &mut Change<'_>,
        root_slot: usize,
        sibling: Place,
    ) -> FsResult<()> {
        self.edit(change, root_slot, |pointer| with_sibling(pointer, sibling))
    }

    fn edit(
        self,
        change: &mut Change<'_>,
        root_slot: usize,
        edit: impl FnOnce(BlockPointer) -> BlockPointer,
    ) -> FsResult<()> {
        let (_, slot) = page_and_slot(self.number);
        let bytes = change.edit_range(self.place, PageKind::Anode, self.owner, slot_range(slot))?;
        let old = bytes.first_chunk().expect("it is a slot");
        let anode = Anode::decode(old, self.owner.fileset, self.number).map_err(corrupt)?;
        let Some(mut anode) = anode else { return Ok(()) };
        if let Some(pointer) = anode.root_pointer(root_slot) {
            anode.set_root_pointer(root_slot, Some(&edit(pointer)));
            bytes.copy_from_slice(&anode.encode());
        }
        Ok(())
    }
}

#[derive(Debug, Default)]
pub(crate) struct PageRelocations(BTreeMap<Place, Place>);

impl PageRelocations {
    pub(crate) fn note(&mut self, from: Place, to: Place) {
        self.0.insert(from, to);
    }

    pub(crate) fn left(&self) -> impl Iterator<Item = Place> {
        self.0.keys().copied()
    }

    pub(crate) fn tell(&self, anode: &mut Anode) {
        if anode.storage != StorageMode::Blocked || planted!(PageMoveRootKept) {
            return;
        }
        for slot in 0..index_wide(ROOT_POINTERS) {
            let Some(mut pointer) = anode.root_pointer(slot) else { continue };
            let sibling = pointer.split_hint().and_then(|hint| hint.sibling);
            if let Some(to) = sibling.and_then(|at| self.0.get(&at)) {
                pointer = with_sibling(pointer, *to);
            }
            if let Some(to) = self.0.get(&pointer.place) {
                pointer.place = *to;
            }
            anode.set_root_pointer(slot, Some(&pointer));
        }
    }
}

impl FilesetGuard<'_> {
    /// Updates the fileset's state in memory after a move. Vnodes are updated under their own
    /// locks.
    pub(crate) fn tell_moved(mut self, moved: &PageRelocations) {
        let mut table = Anode::clone(&self.table);
        moved.tell(&mut table);
        let state = &mut *self.state;
        state.entry.set_table_anode(&table);
        moved.tell(&mut state.map_anode);
        moved.tell(&mut state.orphan_anode);
        self.fileset.quotas.tell_moved(moved);
        // A fresh `Arc` even if the root is unchanged: its identity makes concurrent readers retry.
        *self.fileset.table.write() = Arc::new(table);
    }

    pub(crate) fn tell_entry_moved(&self, from: Place, to: Place) {
        let place = &self.fileset.entry_place;
        let _ = place.compare_exchange(from.bits(), to.bits(), Ordering::AcqRel, Ordering::Acquire);
    }
}

impl MountedFileset {
    pub(crate) fn is_entry_at(&self, place: Place) -> bool {
        self.entry_place() == place
    }
}

impl FilesetIndex {
    pub(crate) fn set_table_place(
        &self,
        store: &Store,
        change: &mut Change<'_>,
        (slot, root_slot): (u32, usize),
        place: Place,
    ) -> FsResult<()> {
        let mut entry = self.read_entry_in(store, Some(change), slot)?;
        let mut table = entry.table_anode();
        if let Some(pointer) = table.root_pointer(root_slot) {
            table.set_root_pointer(root_slot, Some(&BlockPointer { place, ..pointer }));
        }
        entry.set_table_anode(&table);
        self.write_entry(store, change, &entry, None)
    }

    /// Returns the location of the pointer to a page of the fileset table or of its map.
    pub(crate) fn locate_own(
        &self,
        store: &Store,
        page: (PageKind, PageOwner),
    ) -> FsResult<Option<(PointerLocation, BlockPointer)>> {
        store.locate_page(None, &self.table, page)
    }

    /// Points root pointer `root_slot` of the fileset table to `place`.
    /// [`FilesetIndex::note_grown`] follows the end of the change.
    pub(crate) fn set_own_place(
        &self,
        store: &Store,
        change: &mut Change<'_>,
        root_slot: usize,
        place: Place,
    ) -> FsResult<Anode> {
        let mut table = self.table.clone();
        if let Some(pointer) = table.root_pointer(root_slot) {
            table.set_root_pointer(root_slot, Some(&BlockPointer { place, ..pointer }));
        }
        write_table(store, change, &table)?;
        Ok(table)
    }
}
