//! Copying what clones hold: before a page of a container is changed that a clone has as well, the
//! container gets a copy of its own, and copies of what leads there.
//!
//! What a container has for itself has nothing shared above it: so the pages to copy are the last
//! ones of a path, and the page above them is changed where it is.

use format::anode::Anode;
use format::ids::{Epoch, Place};
use format::map::{FINE_LEVEL, FINE_PER_COARSE, page_slot, root_slot, split_slot};
use format::page::{PageKind, PageOwner};
use format::pointer::{BlockPointer, SplitHint};

use runtime::planted::{self, Planted};

use super::data::fine_owner;
use super::map_page::MapPage;
use super::{content_owner, map_owner};
use crate::error::FsResult;
use crate::store::{Change, Store};

/// Where a path through a map ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// At the map page of this level.
    Map(u8),
    /// At the fine leaf that has this block of 4 KiB.
    Fine(u64),
    /// At the page of content of this kind.
    Content(PageKind),
}

/// What leads to a page: a slot of the anode, or of a map page.
#[derive(Clone, Copy)]
enum Above {
    Anode(usize),
    Map(MapPage, usize),
}

impl Above {
    fn set(
        self,
        change: &mut Change<'_>,
        anode: &mut Anode,
        pointer: &BlockPointer,
    ) -> FsResult<()> {
        match self {
            Above::Anode(slot) => {
                anode.set_root_pointer(slot, Some(pointer));
                Ok(())
            }
            Above::Map(page, slot) => {
                page.raise_birth_max(change)?;
                page.set(change, slot, Some(pointer))
            }
        }
    }
}

impl Store {
    /// Copies what was born in `shared_epoch` or before it of the way to the page of a container
    /// that `kind` and `owner` name, that page included. The anode is changed in memory; its count
    /// of fragments stays.
    pub(crate) fn unshare_path(
        &self,
        change: &mut Change<'_>,
        anode: &mut Anode,
        shared_epoch: Epoch,
        (kind, owner): (PageKind, PageOwner),
    ) -> FsResult<()> {
        let (index, end) = match (kind, owner.level) {
            (PageKind::Map, FINE_LEVEL) => (owner.index / FINE_PER_COARSE, End::Fine(owner.index)),
            (PageKind::Map, level) => (owner.index, End::Map(level)),
            (kind, _) => (owner.index, End::Content(kind)),
        };
        let slot = root_slot(index, anode.height);
        let mut above = Above::Anode(slot);
        let mut pointer = anode.root_pointer(slot);
        for level in (0..anode.height).rev() {
            let Some(found) = pointer else { return Ok(()) };
            let page = (PageKind::Map, map_owner(anode, index, level));
            let place = self.unshare_page(change, anode, shared_epoch, (found, above), page)?;
            if end == End::Map(level) {
                return Ok(());
            }
            let page = MapPage::new(place, page.1);
            let slot = match end {
                End::Fine(fine) if level == 0 => split_slot(fine),
                End::Map(_) | End::Fine(_) | End::Content(_) => page_slot(index, level),
            };
            above = Above::Map(page, slot);
            pointer = page.pointer(self, Some(change), slot)?;
        }
        let Some(found) = pointer else { return Ok(()) };
        let page = match end {
            End::Map(_) => return Ok(()),
            End::Fine(fine) => (PageKind::Map, fine_owner(anode, fine)),
            End::Content(kind) => (kind, content_owner(anode, index)),
        };
        let place = self.unshare_page(change, anode, shared_epoch, (found, above), page)?;
        if place != found.place && page.0 == PageKind::Directory {
            self.unshare_hint(change, anode, shared_epoch, index, (found.place, place))?;
        }
        Ok(())
    }

    /// Returns where the page of a container is that `kind` and `owner` name; `None`: there is
    /// none.
    pub(crate) fn place_of_page(
        &self,
        anode: &Anode,
        page: (PageKind, PageOwner),
    ) -> FsResult<Option<Place>> {
        Ok(self.locate_page(None, anode, page)?.map(|(_, pointer)| pointer.place))
    }

    /// Copies a page if it is shared; returns where it is then.
    fn unshare_page(
        &self,
        change: &mut Change<'_>,
        anode: &mut Anode,
        shared_epoch: Epoch,
        (found, above): (BlockPointer, Above),
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

    /// Page `number` of a directory was copied: the pointer to the page that it once split off, if
    /// that tells where it is, tells of the copy (N4).
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
        let Some(hint) = hint.filter(|_| !planted::is(Planted::SplitHintOutlivesCopy)) else {
            return Ok(());
        };
        if anode.height > 0 {
            let leaf = (PageKind::Map, map_owner(anode, before, 0));
            self.unshare_path(change, anode, shared_epoch, leaf)?;
        }
        let hint = SplitHint { sibling: Some(copy), ..hint };
        self.set_block(change, anode, before, Some(&pointer.with_split_hint(Some(hint))))?;
        Ok(())
    }
}
