//! Anodes as the pages of one node of a family have them, for whoever moves what they lead to.

use format::anode::{Anode, page_and_slot};
use format::ids::{AnodeNo, FilesetId, Place};
use format::page::{PageKind, PageOwner};
use format::pointer::BlockPointer;

use super::{decode_slot, slot_range};
use crate::buffer::corrupt;
use crate::container::content_owner;
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
        let (page, _) = page_and_slot(number);
        let owner = content_owner(table, page);
        let pointer = store.block(None, table, page)?;
        Ok(pointer.map(|pointer| AnodeAt { place: pointer.place, owner, number }))
    }

    /// Returns the anode; `None` if it is free.
    pub(crate) fn read(self, store: &Store, family: FilesetId) -> FsResult<Option<Anode>> {
        let (_, slot) = page_and_slot(self.number);
        let view = store.view(None, self.place, PageKind::Anode, self.owner)?;
        decode_slot(&view, family, self.number, slot)
    }

    /// Lets pointer `root_slot` of the anode, as the page has it, lead to `place`.
    pub(crate) fn set_place(
        self,
        change: &mut Change<'_>,
        root_slot: usize,
        place: Place,
    ) -> FsResult<()> {
        let (_, slot) = page_and_slot(self.number);
        let bytes = change.edit_range(self.place, PageKind::Anode, self.owner, slot_range(slot))?;
        let old = bytes.first_chunk().expect("it is a slot");
        let anode = Anode::decode(old, self.owner.fileset, self.number).map_err(corrupt)?;
        let Some(mut anode) = anode else { return Ok(()) };
        if let Some(pointer) = anode.root_pointer(root_slot) {
            anode.set_root_pointer(root_slot, Some(&BlockPointer { place, ..pointer }));
            bytes.copy_from_slice(&anode.encode());
        }
        Ok(())
    }
}
