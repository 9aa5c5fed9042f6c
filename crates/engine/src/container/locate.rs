//! Where the pointers are that lead to a block, or to a page: for whoever moves it, and points
//! there where it is then.

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

/// What has a pointer.
#[derive(Clone, Copy, Debug)]
pub(crate) enum PointerAt {
    /// The anode, in this slot of its root.
    Anode(usize),
    /// A map page, in this slot.
    Map(MapPage, usize),
}

/// A pointer to a block, or to a quarter of it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Located {
    /// Where what it leads to begins in the file, in bytes.
    pub(crate) start: u64,
    /// How much that is: binary logarithm.
    pub(crate) shift: u8,
    pub(crate) pointer: BlockPointer,
    pub(crate) at: PointerAt,
}

impl Store {
    /// Returns the pointers of a file to what is stored of the `1 << shift` bytes at `start`, which
    /// are one block of it, or of those that it was divided into.
    pub(crate) fn locate(&self, anode: &Anode, start: u64, shift: u8) -> FsResult<Vec<Located>> {
        let index = start >> anode.block_shift;
        let is_inline = anode.storage == StorageMode::Inline;
        if is_inline || shift > anode.block_shift || index >= capacity_of_height(anode.height) {
            return Ok(Vec::new());
        }
        let one = |pointer: Option<BlockPointer>, at| {
            let pointer = pointer.and_then(BlockPointer::stored);
            pointer
                .filter(|_| shift == anode.block_shift)
                .map(|pointer| vec![Located { start, shift, pointer, at }])
        };
        let slot = root_slot(index, anode.height);
        let mut pointer = anode.root_pointer(slot);
        if anode.height == 0 {
            return Ok(one(pointer, PointerAt::Anode(slot)).unwrap_or_default());
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
                return Ok(one(pointer, PointerAt::Map(page, slot)).unwrap_or_default());
            }
        }
        Ok(Vec::new())
    }

    /// Does so below a split leaf: `above` returns its pointer to the fine leaf that has a block.
    fn locate_fine(
        &self,
        anode: &Anode,
        start: u64,
        shift: u8,
        above: impl Fn(u64) -> Option<BlockPointer>,
    ) -> FsResult<Vec<Located>> {
        check_split(anode)?;
        let first = start >> FINE_SHIFT;
        // The quarters of a block have the same fine leaf.
        let Some(leaf) = above(first) else { return Ok(Vec::new()) };
        let page = MapPage::new(leaf.place, fine_owner(anode, first));
        let view = self.view(None, page.place, PageKind::Map, page.owner)?;
        let parts = (first..first + (1 << shift.saturating_sub(FINE_SHIFT))).filter_map(|fine| {
            let pointer = pointer_at(&view, fine_slot(fine)).and_then(BlockPointer::stored)?;
            let at = PointerAt::Map(page, fine_slot(fine));
            Some(Located { start: fine << FINE_SHIFT, shift: FINE_SHIFT, pointer, at })
        });
        Ok(parts.collect())
    }
}

/// Where a path through a map ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// At the map page of this level.
    Map(u8),
    /// At the fine leaf that has this block of 4 KiB.
    Fine(u64),
    /// At a page of content.
    Content,
}

impl Store {
    /// Returns where the pointer is, as `change` has it, to the page of a container that `kind` and
    /// `owner` name, and the pointer; `None`: there is none.
    pub(crate) fn locate_page(
        &self,
        change: Option<&Change<'_>>,
        anode: &Anode,
        (kind, owner): (PageKind, PageOwner),
    ) -> FsResult<Option<(PointerAt, BlockPointer)>> {
        let (index, end) = match (kind, owner.level) {
            (PageKind::Map, FINE_LEVEL) => (owner.index / FINE_PER_COARSE, End::Fine(owner.index)),
            (PageKind::Map, level) => (owner.index, End::Map(level)),
            _ => (owner.index, End::Content),
        };
        if anode.storage == StorageMode::Inline || index >= capacity_of_height(anode.height) {
            return Ok(None);
        }
        let slot = root_slot(index, anode.height);
        let mut at = PointerAt::Anode(slot);
        let mut pointer = anode.root_pointer(slot);
        for level in (0..anode.height).rev() {
            let Some(found) = pointer else { return Ok(None) };
            if end == End::Map(level) {
                return Ok(Some((at, found)));
            }
            let page = MapPage::new(found.place, map_owner(anode, index, level));
            let view = self.view(change, found.place, PageKind::Map, page.owner)?;
            let is_fine = level == 0 && matches!(end, End::Fine(_));
            if level == 0 && is_split(&view) != is_fine {
                return Ok(None);
            }
            let slot = match end {
                End::Fine(fine) if level == 0 => split_slot(fine),
                End::Map(_) | End::Fine(_) | End::Content => page_slot(index, level),
            };
            (at, pointer) = (PointerAt::Map(page, slot), pointer_at(&view, slot));
        }
        let is_there =
            !matches!(end, End::Map(_)) && (anode.height > 0 || !matches!(end, End::Fine(_)));
        Ok(pointer.filter(|_| is_there).map(|pointer| (at, pointer)))
    }
}

/// Returns a pointer to a page of a directory that tells that the one that split off it is at
/// `sibling`.
pub(crate) fn with_sibling(pointer: BlockPointer, sibling: Place) -> BlockPointer {
    let hint = pointer.split_hint().map(|hint| SplitHint { sibling: Some(sibling), ..hint });
    pointer.with_split_hint(hint)
}

impl MapPage {
    /// Returns where the page is.
    pub(crate) fn place(self) -> Place {
        self.place
    }

    /// Lets pointer `slot` lead to `place`: nothing else of it changes, nor of the page.
    pub(crate) fn set_place(
        self,
        change: &mut Change<'_>,
        slot: usize,
        place: Place,
    ) -> FsResult<()> {
        self.replace(change, slot..slot + 1, |_, old| old.map(|old| BlockPointer { place, ..old }))
    }

    /// Lets pointer `slot`, to a page of a directory, tell that the one that split off it is at
    /// `sibling`: nothing else of it changes.
    pub(crate) fn set_sibling(
        self,
        change: &mut Change<'_>,
        slot: usize,
        sibling: Place,
    ) -> FsResult<()> {
        self.replace(change, slot..slot + 1, |_, old| old.map(|old| with_sibling(old, sibling)))
    }
}
