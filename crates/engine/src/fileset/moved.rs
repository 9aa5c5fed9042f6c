//! For whoever moves what the nodes of a family have: anodes as their pages have them, and the
//! places that are in memory.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use format::anode::{Anode, StorageMode, page_and_slot};
use format::ids::{AnodeNo, FilesetId, Place};
use format::map::ROOT_POINTERS;
use format::page::{PageKind, PageOwner};
use format::pointer::BlockPointer;
use runtime::planted::{self, Planted};

use super::table::{Index, write_table};
use super::{FilesetGuard, MountedFileset, decode_slot, slot_range};
use crate::buffer::corrupt;
use crate::container::{PointerAt, content_owner, with_sibling};
use crate::convert::index_wide;
use crate::error::FsResult;
use crate::store::{Change, Store};

/// The page of an anode table that has the slot of an anode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct AnodeAt {
    pub(crate) place: Place,
    pub(crate) owner: PageOwner,
    pub(crate) number: AnodeNo,
}

impl AnodeAt {
    /// Finds the page in an anode table; `None`: the anode is free.
    pub(crate) fn find(store: &Store, table: &Anode, number: AnodeNo) -> FsResult<Option<AnodeAt>> {
        AnodeAt::find_in(store, None, table, number)
    }

    /// As [`AnodeAt::find`], as `change` has it.
    pub(crate) fn find_in(
        store: &Store,
        change: Option<&Change<'_>>,
        table: &Anode,
        number: AnodeNo,
    ) -> FsResult<Option<AnodeAt>> {
        let (page, _) = page_and_slot(number);
        let owner = content_owner(table, page);
        let pointer = store.block(change, table, page)?;
        Ok(pointer.map(|pointer| AnodeAt { place: pointer.place, owner, number }))
    }

    /// Returns the anode; `None` if it is free.
    pub(crate) fn read(self, store: &Store, family: FilesetId) -> FsResult<Option<Anode>> {
        self.read_in(store, None, family)
    }

    /// As [`AnodeAt::read`], as `change` has it.
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

    /// Lets pointer `root_slot` of the anode, as the page has it, lead to `place`.
    pub(crate) fn set_place(
        self,
        change: &mut Change<'_>,
        root_slot: usize,
        place: Place,
    ) -> FsResult<()> {
        self.edit(change, root_slot, |pointer| BlockPointer { place, ..pointer })
    }

    /// Lets pointer `root_slot` of the anode, to a page of a directory, tell that the one that
    /// split off it is at `sibling`.
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

/// Where pages that were moved are now, by where they were.
#[derive(Debug, Default)]
pub(crate) struct MovedPages(BTreeMap<Place, Place>);

impl MovedPages {
    pub(crate) fn note(&mut self, from: Place, to: Place) {
        self.0.insert(from, to);
    }

    /// Returns the places that were left.
    pub(crate) fn left(&self) -> impl Iterator<Item = Place> {
        self.0.keys().copied()
    }

    /// Lets the root of an anode in memory lead where its pages are now, hints too.
    pub(crate) fn tell(&self, anode: &mut Anode) {
        if anode.storage != StorageMode::Blocked || planted::is(Planted::PageMoveRootKept) {
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
    /// Lets all that is in memory of the fileset, or of a clone, lead where its pages are now: the
    /// change that moved them has ended. What a vnode has is told by whoever has locked it.
    pub(crate) fn tell_moved(mut self, moved: &MovedPages) {
        let mut table = Anode::clone(&self.table);
        moved.tell(&mut table);
        let state = &mut *self.state;
        state.entry.set_table_anode(&table);
        moved.tell(&mut state.map_anode);
        moved.tell(&mut state.orphan_anode);
        self.fileset.quotas.tell_moved(moved);
        // Always another one, as for a copy: a page below it may have moved though the root did
        // not, and whoever has looked for it meanwhile sees that he must look again.
        *self.fileset.table.write() = Arc::new(table);
    }

    /// The page of the fileset table that has the entry, and was at `from`, is at `to`.
    pub(crate) fn tell_entry_moved(&self, from: Place, to: Place) {
        let place = &self.fileset.entry_place;
        let _ = place.compare_exchange(from.bits(), to.bits(), Ordering::AcqRel, Ordering::Acquire);
    }
}

impl MountedFileset {
    /// Whether the page of the fileset table that has the entry is at `place`.
    pub(crate) fn is_entry_at(&self, place: Place) -> bool {
        self.entry_place() == place
    }
}

impl Index {
    /// Lets root pointer `root_slot` of the anode table of the node in `slot` lead to `place`.
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

    /// Returns where the pointer to a page of the table itself is, or of its map.
    pub(crate) fn locate_own(
        &self,
        store: &Store,
        page: (PageKind, PageOwner),
    ) -> FsResult<Option<(PointerAt, BlockPointer)>> {
        store.locate_page(None, &self.table, page)
    }

    /// Lets root pointer `root_slot` of the table itself lead to `place`; returns the table as it
    /// is then. Nothing is noted before [`Index::note_grown`].
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
