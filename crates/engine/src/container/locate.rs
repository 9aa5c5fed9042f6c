//! Finds the pointers to a block or page, so that a move can redirect them.

use format::anode::{Anode, StorageMode};
use format::ids::Place;
use format::map::{
    FINE_LEVEL, FINE_PER_COARSE, FINE_SHIFT, capacity_of_height, fine_slot, is_split, page_slot,
    pointer_at, root_slot, split_slot,
};
use format::page::{PageKind, PageOwner};
use format::pointer::{BlockPointer, SplitHint};

use super::data::{check_split, fine_owner};
use super::map_owner;
use super::map_page::MapPage;
use crate::error::FsResult;
use crate::store::{Change, Store};

#[derive(Clone, Copy, Debug)]
pub(crate) enum PointerLocation {
    Anode(usize),
    Map(MapPage, usize),
}

/// A pointer to a block, or to one part of a divided block.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LocatedPointer {
    /// Offset in the file, in bytes.
    pub(crate) start: u64,
    /// Binary logarithm of the length.
    pub(crate) shift: u8,
    pub(crate) pointer: BlockPointer,
    pub(crate) at: PointerLocation,
}

impl Store {
    /// Returns the pointers to the stored parts of a block, which may have been divided.
    pub(crate) fn locate(
        &self,
        anode: &Anode,
        start: u64,
        shift: u8,
    ) -> FsResult<Vec<LocatedPointer>> {
        let index = start >> anode.block_shift;
        let is_inline = anode.storage == StorageMode::Inline;
        if is_inline || shift > anode.block_shift || index >= capacity_of_height(anode.height) {
            return Ok(Vec::new());
        }
        let one = |pointer: Option<BlockPointer>, at| {
            let pointer = pointer.and_then(BlockPointer::stored);
            pointer
                .filter(|_| shift == anode.block_shift)
                .map(|pointer| vec![LocatedPointer { start, shift, pointer, at }])
        };
        let slot = root_slot(index, anode.height);
        let mut pointer = anode.root_pointer(slot);
        if anode.height == 0 {
            return Ok(one(pointer, PointerLocation::Anode(slot)).unwrap_or_default());
        }
        for level in (0..anode.height).rev() {
            let Some(found) = pointer else { return Ok(Vec::new()) };
            let page = MapPage::new(found.place, map_owner(anode, index, level));
            let view = self.view(None, page.place, PageKind::Map, page.owner)?;
            if level == 0 && is_split(&view) {
                let above = |fine| pointer_at(&view, split_slot(fine));
                return self.locate_fine(anode, start, shift, above);
            }
            let slot = page_slot(index, level);
            pointer = pointer_at(&view, slot);
            if level == 0 {
                return Ok(one(pointer, PointerLocation::Map(page, slot)).unwrap_or_default());
            }
        }
        Ok(Vec::new())
    }

    /// Searches below a split leaf. `above` returns its pointers.
    fn locate_fine(
        &self,
        anode: &Anode,
        start: u64,
        shift: u8,
        above: impl Fn(u64) -> Option<BlockPointer>,
    ) -> FsResult<Vec<LocatedPointer>> {
        check_split(anode)?;
        let first = start >> FINE_SHIFT;
        // The parts of a block share a fine leaf.
        let Some(leaf) = above(first) else { return Ok(Vec::new()) };
        let page = MapPage::new(leaf.place, fine_owner(anode, first));
        let view = self.view(None, page.place, PageKind::Map, page.owner)?;
        let parts = (first..first + (1 << shift.saturating_sub(FINE_SHIFT))).filter_map(|fine| {
            let pointer = pointer_at(&view, fine_slot(fine)).and_then(BlockPointer::stored)?;
            let at = PointerLocation::Map(page, fine_slot(fine));
            Some(LocatedPointer { start: fine << FINE_SHIFT, shift: FINE_SHIFT, pointer, at })
        });
        Ok(parts.collect())
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MapPathEnd {
    /// A map page, by level.
    Map(u8),
    /// The fine leaf that covers this 4 KiB block.
    Fine(u64),
    Content,
}

impl Store {
    /// Returns location and value of the pointer to a page, as seen by `change`.
    pub(crate) fn locate_page(
        &self,
        change: Option<&Change<'_>>,
        anode: &Anode,
        (kind, owner): (PageKind, PageOwner),
    ) -> FsResult<Option<(PointerLocation, BlockPointer)>> {
        let (index, end) = match (kind, owner.level) {
            (PageKind::Map, FINE_LEVEL) => {
                (owner.index / FINE_PER_COARSE, MapPathEnd::Fine(owner.index))
            }
            (PageKind::Map, level) => (owner.index, MapPathEnd::Map(level)),
            _ => (owner.index, MapPathEnd::Content),
        };
        if anode.storage == StorageMode::Inline || index >= capacity_of_height(anode.height) {
            return Ok(None);
        }
        let slot = root_slot(index, anode.height);
        let mut at = PointerLocation::Anode(slot);
        let mut pointer = anode.root_pointer(slot);
        for level in (0..anode.height).rev() {
            let Some(found) = pointer else { return Ok(None) };
            if end == MapPathEnd::Map(level) {
                return Ok(Some((at, found)));
            }
            let page = MapPage::new(found.place, map_owner(anode, index, level));
            let view = self.view(change, found.place, PageKind::Map, page.owner)?;
            let is_fine = level == 0 && matches!(end, MapPathEnd::Fine(_));
            if level == 0 && is_split(&view) != is_fine {
                return Ok(None);
            }
            let slot = match end {
                MapPathEnd::Fine(fine) if level == 0 => split_slot(fine),
                MapPathEnd::Map(_) | MapPathEnd::Fine(_) | MapPathEnd::Content => {
                    page_slot(index, level)
                }
            };
            (at, pointer) = (PointerLocation::Map(page, slot), pointer_at(&view, slot));
        }
        let is_there = !matches!(end, MapPathEnd::Map(_))
            && (anode.height > 0 || !matches!(end, MapPathEnd::Fine(_)));
        Ok(pointer.filter(|_| is_there).map(|pointer| (at, pointer)))
    }
}

/// Returns a pointer with the split hint `sibling`, the page that split off.
pub(crate) fn with_sibling(pointer: BlockPointer, sibling: Place) -> BlockPointer {
    let hint = pointer.split_hint().map(|hint| SplitHint { sibling: Some(sibling), ..hint });
    pointer.with_split_hint(hint)
}

impl MapPage {
    pub(crate) fn place(self) -> Place {
        self.place
    }

    /// Changes the place in pointer `slot`, and nothing else.
    pub(crate) fn set_place(
        self,
        change: &mut Change<'_>,
        slot: usize,
        place: Place,
    ) -> FsResult<()> {
        self.replace(change, slot..slot + 1, |_, old| old.map(|old| BlockPointer { place, ..old }))
    }

    /// Changes the split hint in pointer `slot`, and nothing else.
    pub(crate) fn set_sibling(
        self,
        change: &mut Change<'_>,
        slot: usize,
        sibling: Place,
    ) -> FsResult<()> {
        self.replace(change, slot..slot + 1, |_, old| old.map(|old| with_sibling(old, sibling)))
    }
}
