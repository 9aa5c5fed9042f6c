//! Copy-on-write: a page shared with a snapshot is copied before it changes, together with the
//! shared map pages above it.
//!
//! Above an unshared page no page is shared. So the copies are the lower end of a path, and the
//! page above them is changed in place.

use format::anode::Anode;
use format::ids::{Epoch, Place};
use format::map::{FINE_LEVEL, FINE_PER_COARSE, page_slot, root_slot, split_slot};
use format::page::{PageKind, PageOwner};
use format::pointer::{BlockPointer, SplitHint};

use super::data::fine_owner;
use super::map_page::MapPage;
use super::{content_owner, map_owner};
use crate::error::FsResult;
use crate::store::{Change, Store};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum UnsharePathEnd {
    Map(u8),
    /// The fine leaf that covers this 4 KiB block.
    Fine(u64),
    Content(PageKind),
}

/// The pointer to a page: a slot of the anode or of a map page.
#[derive(Clone, Copy)]
enum ParentSlot {
    Anode(usize),
    Map(MapPage, usize),
}

impl ParentSlot {
    fn set(
        self,
        change: &mut Change<'_>,
        anode: &mut Anode,
        pointer: &BlockPointer,
    ) -> FsResult<()> {
        match self {
            ParentSlot::Anode(slot) => {
                anode.set_root_pointer(slot, Some(pointer));
                Ok(())
            }
            ParentSlot::Map(page, slot) => {
                page.raise_birth_max(change)?;
                page.set(change, slot, Some(pointer))
            }
        }
    }
}

impl Store {
    /// Copies a page and the pages on the path to it, where they are shared. Changes `anode` in
    /// memory, except its count of fragments.
    pub(crate) fn unshare_path(
        &self,
        change: &mut Change<'_>,
        anode: &mut Anode,
        shared_epoch: Epoch,
        (kind, owner): (PageKind, PageOwner),
    ) -> FsResult<()> {
        let (index, end) = match (kind, owner.level) {
            (PageKind::Map, FINE_LEVEL) => {
                (owner.index / FINE_PER_COARSE, UnsharePathEnd::Fine(owner.index))
            }
            (PageKind::Map, level) => (owner.index, UnsharePathEnd::Map(level)),
            (kind, _) => (owner.index, UnsharePathEnd::Content(kind)),
        };
        let slot = root_slot(index, anode.height);
        let mut above = ParentSlot::Anode(slot);
        let mut pointer = anode.root_pointer(slot);
        for level in (0..anode.height).rev() {
            let Some(found) = pointer else { return Ok(()) };
            let page = (PageKind::Map, map_owner(anode, index, level));
            let place = self.unshare_page(change, anode, shared_epoch, (found, above), page)?;
            if end == UnsharePathEnd::Map(level) {
                return Ok(());
            }
            let page = MapPage::new(place, page.1);
            let slot = match end {
                UnsharePathEnd::Fine(fine) if level == 0 => split_slot(fine),
                UnsharePathEnd::Map(_) | UnsharePathEnd::Fine(_) | UnsharePathEnd::Content(_) => {
                    page_slot(index, level)
                }
            };
            above = ParentSlot::Map(page, slot);
            pointer = page.pointer(self, Some(change), slot)?;
        }
        let Some(found) = pointer else { return Ok(()) };
        let page = match end {
            UnsharePathEnd::Map(_) => return Ok(()),
            UnsharePathEnd::Fine(fine) => (PageKind::Map, fine_owner(anode, fine)),
            UnsharePathEnd::Content(kind) => (kind, content_owner(anode, index)),
        };
        let place = self.unshare_page(change, anode, shared_epoch, (found, above), page)?;
        if place != found.place && page.0 == PageKind::Directory {
            self.unshare_hint(change, anode, shared_epoch, index, (found.place, place))?;
        }
        Ok(())
    }

    pub(crate) fn place_of_page(
        &self,
        anode: &Anode,
        page: (PageKind, PageOwner),
    ) -> FsResult<Option<Place>> {
        Ok(self.locate_page(None, anode, page)?.map(|(_, pointer)| pointer.place))
    }

    /// Copies a page if it is shared. Returns its current place.
    fn unshare_page(
        &self,
        change: &mut Change<'_>,
        anode: &mut Anode,
        shared_epoch: Epoch,
        (found, above): (BlockPointer, ParentSlot),
        (kind, owner): (PageKind, PageOwner),
    ) -> FsResult<Place> {
        if found.birth > shared_epoch {
            return Ok(found.place);
        }
        let place = change.copy_page(found.place, kind, owner)?;
        let pointer = BlockPointer { place, birth: change.epoch(), ..found };
        above.set(change, anode, &pointer)?;
        Ok(place)
    }

    /// Updates the split hint that names a copied directory page (N4).
    fn unshare_hint(
        &self,
        change: &mut Change<'_>,
        anode: &mut Anode,
        shared_epoch: Epoch,
        number: u64,
        (old, copy): (Place, Place),
    ) -> FsResult<()> {
        let Some(highest) = number.checked_ilog2() else { return Ok(()) };
        let before = number & !(1 << highest);
        let Some(pointer) = self.block(Some(change), anode, before)? else { return Ok(()) };
        let hint = pointer.split_hint().filter(|hint| hint.sibling == Some(old));
        let Some(hint) = hint else { return Ok(()) };
        if anode.height > 0 {
            let leaf = (PageKind::Map, map_owner(anode, before, 0));
            self.unshare_path(change, anode, shared_epoch, leaf)?;
        }
        let hint = SplitHint { sibling: Some(copy), ..hint };
        self.set_block(change, anode, before, Some(&pointer.with_split_hint(Some(hint))))?;
        Ok(())
    }
}
