//! Lookups in the map of a file that read each leaf once.

use std::ops::Range;

use format::anode::{Anode, StorageMode};
use format::defect::DefectCode;
use format::ids::{Epoch, Place};
use format::map::{
    FINE_PER_COARSE, FINE_SHIFT, capacity_of_height, fine_index, fine_slot, is_split, page_index,
    page_slot, pointer_at, root_slot, split_slot,
};
use format::page::PageKind;

use super::data::{PointerRange, check_split, fine_owner};
use super::map_owner;
use crate::buffer::{PageRef, corrupt, page_of};
use crate::error::FsResult;
use crate::store::{PageView, Store};

/// Pages from a fileset's entry to an anode: the highest map, and the anode's page.
const TABLE_PATH_PAGES: u64 = 4;

/// Space needed to write one block.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BlockSpaceNeeds {
    /// Map pages that may be added. A growing map needs more.
    pub(crate) map_pages: u64,
    /// Fragments that its map update frees, not shared with snapshots.
    pub(crate) held_fragments: u64,
    /// Fragments that the file counts already for the block's range.
    pub(crate) counted_fragments: u64,
    pub(crate) stored: Option<Place>,
}

enum LeafLookup {
    There(PageView<'static>),
    /// The number of missing map pages, including the leaf.
    Missing(u64),
}

/// A cursor over the map of one file that keeps the last leaf. The caller holds the container's
/// lock, and changes nothing until the drop.
pub(crate) struct LeafCursor<'s> {
    store: &'s Store,
    /// The leaf, with the first block that it covers.
    leaf: Option<(u64, LeafLookup)>,
    /// The fine leaf, with its first 4 KiB block. The inner `None` is a missing leaf.
    fine: Option<(u64, Option<PageView<'static>>)>,
}

impl<'s> LeafCursor<'s> {
    pub(crate) fn new(store: &'s Store) -> LeafCursor<'s> {
        LeafCursor { store, leaf: None, fine: None }
    }

    pub(super) fn look(
        &mut self,
        anode: &Anode,
        range: Range<u64>,
        mut visit: impl FnMut(PointerRange),
    ) -> FsResult<()> {
        let shift = anode.block_shift;
        for index in range.start >> shift..range.end.div_ceil(anode.block_bytes()) {
            if anode.height == 0 || index >= capacity_of_height(anode.height) {
                let pointer = self.store.block(None, anode, index)?;
                visit(PointerRange::new(index << shift, shift, pointer));
                continue;
            }
            let LeafLookup::There(page) = seen(&mut self.leaf, self.store, anode, index)? else {
                visit(PointerRange::new(index << shift, shift, None));
                continue;
            };
            if !is_split(page) {
                let pointer = pointer_at(page, page_slot(index, 0));
                visit(PointerRange::new(index << shift, shift, pointer));
                continue;
            }
            check_split(anode)?;
            for fine in index * FINE_PER_COARSE..(index + 1) * FINE_PER_COARSE {
                let unit = PointerRange::new(fine << FINE_SHIFT, FINE_SHIFT, None);
                if unit.end() <= range.start || unit.start >= range.end {
                    continue;
                }
                let first = fine_index(fine);
                if self.fine.as_ref().is_none_or(|(at, _)| *at != first) {
                    let place = pointer_at(page, split_slot(fine)).map(|pointer| pointer.place);
                    let owner = fine_owner(anode, fine);
                    let view = |place| self.store.view(None, place, PageKind::Map, owner);
                    self.fine = Some((first, place.map(view).transpose()?));
                }
                let leaf = self.fine.as_ref().and_then(|(_, leaf)| leaf.as_ref());
                let pointer = leaf.and_then(|leaf| pointer_at(leaf, fine_slot(fine)));
                visit(PointerRange::new(unit.start, FINE_SHIFT, pointer));
            }
        }
        Ok(())
    }

    pub(crate) fn unit(&mut self, anode: &Anode, offset: u64) -> FsResult<PointerRange> {
        let mut found = None;
        self.look(anode, offset..offset.saturating_add(1), |unit| found = Some(unit))?;
        found.ok_or_else(|| corrupt(DefectCode::AN002.found("its size leads past every map")))
    }

    /// Returns what a map update at `start` needs. Snapshots share all blocks born up to
    /// `shared_epoch`.
    pub(crate) fn room_for(
        &mut self,
        anode: &Anode,
        start: u64,
        shift: u8,
        shared_epoch: Epoch,
    ) -> FsResult<BlockSpaceNeeds> {
        let fragment_shift = self.store.geometry().fragment_shift;
        let (mut has_hole, mut is_fine, mut is_shared) = (false, false, false);
        let mut room =
            BlockSpaceNeeds { map_pages: 0, held_fragments: 0, counted_fragments: 0, stored: None };
        self.look(anode, start..start.saturating_add(1 << shift), |unit| {
            has_hole |= unit.is_hole();
            is_fine |= unit.is_fine(anode);
            let stored = unit.pointer.filter(|pointer| pointer.birth <= shared_epoch);
            is_shared |= stored.is_some();
            // A replaced block that a snapshot shares is not freed.
            let shared = stored.map_or(0, |pointer| pointer.fragments);
            room.held_fragments += u64::from(unit.held_fragments(fragment_shift) - shared);
            let part = unit.quarter_at(start, shift, fragment_shift).unwrap_or(unit);
            room.counted_fragments += u64::from(part.held_fragments(fragment_shift));
            room.stored = room.stored.or(unit.pointer.map(|pointer| pointer.place));
        })?;
        room.map_pages = match (is_fine, shift < anode.block_shift) {
            (false, true) => FINE_PER_COARSE + u64::from(anode.height == 0),
            // The parts of a divided block may be below two fine leaves.
            (true, false) if has_hole => 2,
            (false, false) if has_hole => self.missing_map_pages(anode, start >> shift)?,
            _ => u64::from(has_hole),
        };
        if shared_epoch > Epoch(0) && (has_hole || is_shared) {
            // Both the file's map and the anode table may need copies.
            room.map_pages += u64::from(anode.height) + 1 + TABLE_PATH_PAGES;
        }
        Ok(room)
    }

    /// Returns the counted fragments of a block before and after a map update, which keeps a
    /// reservation.
    pub(crate) fn held_by_version(
        &mut self,
        anode: &Anode,
        start: u64,
        shift: u8,
        fragments: u32,
    ) -> FsResult<(u64, u64)> {
        let fragment_shift = self.store.geometry().fragment_shift;
        let (mut held, mut reserved) = (0, 0);
        self.look(anode, start..start.saturating_add(1 << shift), |unit| {
            let part = unit.quarter_at(start, shift, fragment_shift).unwrap_or(unit);
            let part_held = u64::from(part.held_fragments(fragment_shift));
            held += part_held;
            reserved += if part.is_reserved { part_held } else { 0 };
        })?;
        Ok((held, reserved.max(fragments.into())))
    }

    fn missing_map_pages(&mut self, anode: &Anode, index: u64) -> FsResult<u64> {
        if anode.height == 0 || index >= capacity_of_height(anode.height) {
            return self.store.missing_map_pages(anode, index);
        }
        match seen(&mut self.leaf, self.store, anode, index)? {
            LeafLookup::There(_) => Ok(0),
            LeafLookup::Missing(pages) => Ok(*pages),
        }
    }
}

/// Returns the leaf of block `index`, from `last` or from the cache. The map must cover `index`,
/// and its height must be at least 1.
fn seen<'l>(
    last: &'l mut Option<(u64, LeafLookup)>,
    store: &Store,
    anode: &Anode,
    index: u64,
) -> FsResult<&'l LeafLookup> {
    let first = page_index(index, 0);
    let leaf = match last.take().filter(|(at, _)| *at == first) {
        Some((_, leaf)) => leaf,
        None => store.leaf_of(anode, index)?,
    };
    Ok(&last.insert((first, leaf)).1)
}

impl Store {
    /// Returns the places of existing blocks. Sorted indexes read each map page once. Blocks below
    /// unreadable pages are skipped, and fail at their use.
    pub(crate) fn places_of(
        &self,
        anode: &Anode,
        indexes: impl IntoIterator<Item = u64>,
    ) -> Vec<(u64, Place)> {
        let mut way = vec![None; usize::from(anode.height)];
        let place = |index| Some((index, self.place_on(&mut way, anode, index)?));
        indexes.into_iter().filter_map(place).collect()
    }

    /// Returns the place of a block. `way` holds the last path: by level, a map page and its first
    /// block.
    fn place_on(
        &self,
        way: &mut [Option<(u64, PageRef)>],
        anode: &Anode,
        index: u64,
    ) -> Option<Place> {
        if anode.storage == StorageMode::Inline || index >= capacity_of_height(anode.height) {
            return None;
        }
        let mut pointer = anode.root_pointer(root_slot(index, anode.height))?;
        for (level, seen) in (0..anode.height).zip(way).rev() {
            let first = page_index(index, level);
            let page = match seen.take().filter(|(at, _)| *at == first) {
                Some((_, page)) => page,
                None => {
                    let owner = map_owner(anode, index, level);
                    self.cache.bytes(pointer.place, PageKind::Map, owner).ok()?
                }
            };
            let below = pointer_at(page_of(&page), page_slot(index, level));
            *seen = Some((first, page));
            pointer = below?;
        }
        Some(pointer.place)
    }

    fn leaf_of(&self, anode: &Anode, index: u64) -> FsResult<LeafLookup> {
        let mut pointer = anode.root_pointer(root_slot(index, anode.height));
        for level in (1..anode.height).rev() {
            let Some(found) = pointer else { return Ok(LeafLookup::Missing(u64::from(level) + 1)) };
            let owner = map_owner(anode, index, level);
            let page = self.view(None, found.place, PageKind::Map, owner)?;
            pointer = pointer_at(&page, page_slot(index, level));
        }
        let Some(found) = pointer else { return Ok(LeafLookup::Missing(1)) };
        self.view(None, found.place, PageKind::Map, map_owner(anode, index, 0))
            .map(LeafLookup::There)
    }
}
