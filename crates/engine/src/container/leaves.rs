//! Looking at the map of a file, at each leaf once for all that lies below it.

use std::ops::Range;

use format::anode::{Anode, StorageMode};
use format::defect::DefectCode;
use format::ids::{Epoch, Place};
use format::map::{
    FINE_PER_COARSE, FINE_SHIFT, capacity_of_height, fine_index, fine_slot, is_split, page_index,
    page_slot, pointer_at, root_slot, split_slot,
};
use format::page::PageKind;

use super::data::{Unit, check_split, fine_owner};
use super::map_owner;
use crate::buffer::{PageRef, corrupt, page_of};
use crate::error::FsResult;
use crate::store::{Store, View};

/// Pages on the way from a fileset's entry to an anode: those of the highest map, and its own.
const TABLE_PATH_PAGES: u64 = 4;

/// What a file needs to have a block written.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Room {
    /// Map pages that may be made; more the higher the map grows.
    pub(crate) map_pages: u64,
    /// Fragments that the file gives back for it, stored or reserved: not what clones hold too.
    pub(crate) held_fragments: u64,
    /// Fragments that the file counts for it already.
    pub(crate) counted_fragments: u64,
    /// Where what is stored of it begins.
    pub(crate) stored: Option<Place>,
}

/// What is on the way to a block where its leaf belongs.
enum Leaf {
    There(View<'static>),
    /// So many map pages are missing, the leaf among them.
    Missing(u64),
}

/// A look at the map of one file, which keeps the last leaf that it has seen: from left to right,
/// each is looked at once.
///
/// The caller holds the lock of the container from the first look to the last, and changes nothing
/// of the map between them.
pub(crate) struct Leaves<'s> {
    store: &'s Store,
    /// By the first block that it covers.
    leaf: Option<(u64, Leaf)>,
    /// The same of a fine leaf; `None` in it: there is none.
    fine: Option<(u64, Option<View<'static>>)>,
}

impl<'s> Leaves<'s> {
    pub(crate) fn new(store: &'s Store) -> Leaves<'s> {
        Leaves { store, leaf: None, fine: None }
    }

    /// Calls `visit` with the units that overlap the bytes of `range`, in order.
    pub(super) fn look(
        &mut self,
        anode: &Anode,
        range: Range<u64>,
        mut visit: impl FnMut(Unit),
    ) -> FsResult<()> {
        let shift = anode.block_shift;
        for index in range.start >> shift..range.end.div_ceil(anode.block_bytes()) {
            if anode.height == 0 || index >= capacity_of_height(anode.height) {
                let pointer = self.store.block(None, anode, index)?;
                visit(Unit::new(index << shift, shift, pointer));
                continue;
            }
            let Leaf::There(page) = seen(&mut self.leaf, self.store, anode, index)? else {
                visit(Unit::new(index << shift, shift, None));
                continue;
            };
            if !is_split(page) {
                let pointer = pointer_at(page, page_slot(index, 0));
                visit(Unit::new(index << shift, shift, pointer));
                continue;
            }
            check_split(anode)?;
            for fine in index * FINE_PER_COARSE..(index + 1) * FINE_PER_COARSE {
                let unit = Unit::new(fine << FINE_SHIFT, FINE_SHIFT, None);
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
                visit(Unit::new(unit.start, FINE_SHIFT, pointer));
            }
        }
        Ok(())
    }

    /// Returns the unit that has the byte at `offset`.
    pub(crate) fn unit(&mut self, anode: &Anode, offset: u64) -> FsResult<Unit> {
        let mut found = None;
        self.look(anode, offset..offset.saturating_add(1), |unit| found = Some(unit))?;
        found.ok_or_else(|| corrupt(DefectCode::AN002.found("its size leads past every map")))
    }

    /// Returns what installing a block of `1 << shift` bytes at `start` may need in a fileset of
    /// which clones hold what was born in `shared_epoch` or before it.
    pub(crate) fn room_for(
        &mut self,
        anode: &Anode,
        start: u64,
        shift: u8,
        shared_epoch: Epoch,
    ) -> FsResult<Room> {
        let fragment_shift = self.store.geometry().fragment_shift;
        let (mut has_hole, mut is_fine, mut is_shared) = (false, false, false);
        let mut room = Room { map_pages: 0, held_fragments: 0, counted_fragments: 0, stored: None };
        self.look(anode, start..start.saturating_add(1 << shift), |unit| {
            has_hole |= unit.is_hole();
            is_fine |= unit.is_fine(anode);
            let stored = unit.pointer.filter(|pointer| pointer.birth <= shared_epoch);
            is_shared |= stored.is_some();
            // What clones hold is not given back when a new version takes its place.
            let shared = stored.map_or(0, |pointer| pointer.fragments);
            room.held_fragments += u64::from(unit.held_fragments(fragment_shift) - shared);
            let part = unit.quarter_at(start, shift, fragment_shift).unwrap_or(unit);
            room.counted_fragments += u64::from(part.held_fragments(fragment_shift));
            room.stored = room.stored.or(unit.pointer.map(|pointer| pointer.place));
        })?;
        room.map_pages = match (is_fine, shift < anode.block_shift) {
            (false, true) => FINE_PER_COARSE + u64::from(anode.height == 0),
            // Its quarters may lie below two fine leaves.
            (true, false) if has_hole => 2,
            (false, false) if has_hole => self.missing_map_pages(anode, start >> shift)?,
            _ => u64::from(has_hole),
        };
        if shared_epoch > Epoch(0) && (has_hole || is_shared) {
            // The way to it may have to be copied: its map, and that of the anode table.
            room.map_pages += u64::from(anode.height) + 1 + TABLE_PATH_PAGES;
        }
        Ok(room)
    }

    /// Returns how many fragments the file has for the block of `1 << shift` bytes at `start`, and
    /// how many it will have once a version of `fragments` is installed there: what is reserved
    /// stays reserved.
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

    /// Returns how many map pages a first block at `index` needs.
    fn missing_map_pages(&mut self, anode: &Anode, index: u64) -> FsResult<u64> {
        if anode.height == 0 || index >= capacity_of_height(anode.height) {
            return self.store.missing_map_pages(anode, index);
        }
        match seen(&mut self.leaf, self.store, anode, index)? {
            Leaf::There(_) => Ok(0),
            Leaf::Missing(pages) => Ok(*pages),
        }
    }
}

/// Returns what is on the way to block `index`, of a map that is high enough and not all in the
/// anode, where its leaf belongs: `last`, if it is the same, or what it becomes.
fn seen<'l>(
    last: &'l mut Option<(u64, Leaf)>,
    store: &Store,
    anode: &Anode,
    index: u64,
) -> FsResult<&'l Leaf> {
    let first = page_index(index, 0);
    let leaf = match last.take().filter(|(at, _)| *at == first) {
        Some((_, leaf)) => leaf,
        None => store.leaf_of(anode, index)?,
    };
    Ok(&last.insert((first, leaf)).1)
}

impl Store {
    /// Returns where those of the blocks `indexes` are that are there, each with its index. Of a
    /// rising sequence each map page is looked at once. What lies below one that can't be read is
    /// left to whoever asks for it.
    pub(crate) fn places_of(
        &self,
        anode: &Anode,
        indexes: impl IntoIterator<Item = u64>,
    ) -> Vec<(u64, Place)> {
        let mut way = vec![None; usize::from(anode.height)];
        let place = |index| Some((index, self.place_on(&mut way, anode, index)?));
        indexes.into_iter().filter_map(place).collect()
    }

    /// Returns where block `index` is. `way` has the map pages that led to the last one, by level,
    /// each with the first block that it covers.
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

    /// Returns what is on the way to block `index` where its leaf belongs.
    fn leaf_of(&self, anode: &Anode, index: u64) -> FsResult<Leaf> {
        let mut pointer = anode.root_pointer(root_slot(index, anode.height));
        for level in (1..anode.height).rev() {
            let Some(found) = pointer else { return Ok(Leaf::Missing(u64::from(level) + 1)) };
            let owner = map_owner(anode, index, level);
            let page = self.view(None, found.place, PageKind::Map, owner)?;
            pointer = pointer_at(&page, page_slot(index, level));
        }
        let Some(found) = pointer else { return Ok(Leaf::Missing(1)) };
        self.view(None, found.place, PageKind::Map, map_owner(anode, index, 0)).map(Leaf::There)
    }
}
