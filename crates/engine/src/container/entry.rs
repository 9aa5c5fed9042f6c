//! Changes of block pointers, and the reservations in them.
//!
//! A pointer may reserve space for its whole block. The part not stored is counted in the anode
//! (CT1) and in the pool (CT3), so that an overwrite, which takes a new place, finds space. A
//! reservation survives overwrites and splits, and ends when its range becomes a hole.

use std::ops::Range;

use format::anode::{Anode, StorageMode};
use format::defect::DefectCode;
use format::map::{
    FINE_PER_COARSE, FINE_SHIFT, POINTERS_PER_PAGE, page_index, page_slot, root_slot,
};
use format::pointer::BlockPointer;

use super::data::PointerRange;
use super::map_page::MapPage;
use super::take_off;
use crate::alloc::Urgency;
use crate::error::FsResult;
use crate::store::{Change, Store};

#[derive(Clone, Copy)]
pub(super) enum PointerChange<'p> {
    /// Another stored block, or none. Keeps a reservation.
    Version(Option<&'p BlockPointer>),
    /// Adds a reservation.
    Reserved,
    /// Drops a reservation.
    Stored,
    /// Drops block and reservation.
    Hole,
}

impl PointerChange<'_> {
    pub(super) fn after(self, old: Option<BlockPointer>) -> Option<BlockPointer> {
        let was_reserved = old.is_some_and(|old| old.is_reserved);
        match self {
            PointerChange::Version(Some(pointer)) => {
                let is_reserved = pointer.is_reserved || was_reserved;
                Some(BlockPointer { is_reserved, ..*pointer })
            }
            PointerChange::Version(None) => was_reserved.then_some(BlockPointer::RESERVED),
            PointerChange::Reserved => {
                let old = old.unwrap_or(BlockPointer::RESERVED);
                Some(BlockPointer { is_reserved: true, ..old })
            }
            PointerChange::Stored => {
                let stored = old.and_then(BlockPointer::stored);
                stored.map(|old| BlockPointer { is_reserved: false, ..old })
            }
            PointerChange::Hole => None,
        }
    }

    /// Returns the block that the caller must free (CT2).
    pub(super) fn dropped(self, old: Option<BlockPointer>) -> Option<BlockPointer> {
        match self {
            PointerChange::Version(_) | PointerChange::Hole => old.and_then(BlockPointer::stored),
            PointerChange::Reserved | PointerChange::Stored => None,
        }
    }
}

/// The change of reserved fragments in one leaf.
pub(super) struct ReservationChange {
    /// Binary logarithm of the block size.
    shift: u8,
    fragment_shift: u8,
    more: u32,
    less: u32,
}

impl ReservationChange {
    pub(super) fn new(shift: u8, fragment_shift: u8) -> ReservationChange {
        ReservationChange { shift, fragment_shift, more: 0, less: 0 }
    }

    pub(super) fn note(&mut self, old: Option<BlockPointer>, new: Option<BlockPointer>) {
        let reserved = |pointer: Option<BlockPointer>| {
            pointer.map_or(0, |p| p.reserved_fragments(self.shift, self.fragment_shift))
        };
        let (before, after) = (reserved(old), reserved(new));
        self.more += after.saturating_sub(before);
        self.less += before.saturating_sub(after);
    }
}

impl Store {
    /// Makes a unit a hole. The caller frees its block (CT2).
    pub(super) fn clear_unit(
        &self,
        change: &mut Change<'_>,
        anode: &mut Anode,
        unit: &PointerRange,
    ) -> FsResult<()> {
        self.set_unit(change, anode, unit.start, unit.shift, PointerChange::Hole).map(drop)
    }

    /// Changes a unit's pointer. Returns the block to free.
    pub(super) fn set_unit(
        &self,
        change: &mut Change<'_>,
        anode: &mut Anode,
        start: u64,
        shift: u8,
        entry: PointerChange<'_>,
    ) -> FsResult<Option<BlockPointer>> {
        let index = start >> anode.block_shift;
        self.grow(change, anode, index)?;
        if anode.height == 0 {
            let slot = root_slot(index, 0);
            let old = anode.root_pointer(slot);
            let new = entry.after(old);
            anode.set_root_pointer(slot, new.as_ref());
            self.count_reserved(change, anode, shift, old, new)?;
            return Ok(entry.dropped(old));
        }
        let leaf = self.leaf_to_edit(change, anode, index)?;
        if shift < anode.block_shift {
            let (fine, mut old) = (start >> FINE_SHIFT, None);
            self.set_fine(change, anode, leaf, fine, &[entry], |pointer| old = Some(pointer))?;
            return Ok(old);
        }
        self.set_coarse(change, anode, leaf, index, entry)
    }

    /// Changes a pointer of an unsplit leaf. Returns the block to free.
    pub(super) fn set_coarse(
        &self,
        change: &mut Change<'_>,
        anode: &mut Anode,
        leaf: MapPage,
        index: u64,
        entry: PointerChange<'_>,
    ) -> FsResult<Option<BlockPointer>> {
        let (slot, mut old, mut new) = (page_slot(index, 0), None, None);
        leaf.replace(change, slot..slot + 1, |_, was| {
            (old, new) = (was, entry.after(was));
            new
        })?;
        self.count_reserved(change, anode, anode.block_shift, old, new)?;
        Ok(entry.dropped(old))
    }

    /// Counts the change of a reservation (CT1, CT3).
    pub(super) fn count_reserved(
        &self,
        change: &mut Change<'_>,
        anode: &mut Anode,
        shift: u8,
        old: Option<BlockPointer>,
        new: Option<BlockPointer>,
    ) -> FsResult<()> {
        let mut reserved = ReservationChange::new(shift, self.geometry().fragment_shift);
        reserved.note(old, new);
        self.count(change, anode, reserved)
    }

    pub(super) fn count(
        &self,
        change: &mut Change<'_>,
        anode: &mut Anode,
        reserved: ReservationChange,
    ) -> FsResult<()> {
        if reserved.more > 0 {
            anode.fragments += u64::from(reserved.more);
            change.reserve(reserved.more);
        }
        if reserved.less > 0 {
            take_off(&mut anode.fragments, u64::from(reserved.less), DefectCode::AN004)?;
            change.unreserve(reserved.less);
        }
        Ok(())
    }

    /// Reserves space in `range`, up to the end of its first leaf. `own` is the fileset's unused
    /// reservation. Returns where the next transaction continues, and the ranges newly reserved.
    ///
    /// # Errors
    ///
    /// [`FsError::NoSpace`](crate::error::FsError::NoSpace): nothing has changed.
    pub(crate) fn reserve_blocks(
        &self,
        change: &mut Change<'_>,
        anode: &mut Anode,
        range: Range<u64>,
        (own, is_tight): (u64, bool),
    ) -> FsResult<(u64, Vec<Range<u64>>)> {
        let first = range.start >> anode.block_shift;
        let end = end_of_leaf(anode, first).min(range.end);
        let mut units = self.units(anode, range.start, end)?;
        units.retain(|unit| !unit.is_reserved);
        let fragment_shift = self.geometry().fragment_shift;
        let wanted: u64 =
            units.iter().map(|unit| u64::from(unit.reserved_fragments(true, fragment_shift))).sum();
        let is_fine = units.iter().any(|unit| unit.is_fine(anode));
        let fine_leaves = if is_fine { FINE_PER_COARSE } else { 0 };
        let map_pages = self.missing_map_pages(anode, first)? + fine_leaves;
        if is_tight {
            self.alloc.open_fronts(map_pages)?;
        }
        // Spare pages cost no room for blocks.
        let pages = self.alloc.pages_beyond_spare(map_pages);
        let pages = pages * u64::from(self.geometry().page_fragments());
        // Promised until the reservations and pages are counted.
        self.alloc.promise(wanted + pages, Urgency::User, own)?;
        if anode.storage == StorageMode::Inline {
            anode.storage = StorageMode::Blocked;
            anode.root.fill(0);
        }
        let reserved = units.iter().try_for_each(|unit| {
            let set = self.set_unit(change, anode, unit.start, unit.shift, PointerChange::Reserved);
            set.map(drop)
        });
        self.alloc.unpromise(wanted + pages);
        reserved?;
        let mut ranges: Vec<Range<u64>> = Vec::new();
        for unit in &units {
            match ranges.last_mut() {
                Some(last) if last.end == unit.start => last.end = unit.end(),
                _ => ranges.push(unit.start..unit.end()),
            }
        }
        Ok((end, ranges))
    }

    /// Drops reservations in `range`, up to the end of its first leaf, and map pages that become
    /// empty. Returns where the next transaction continues. Takes no space.
    pub(crate) fn release_blocks(
        &self,
        change: &mut Change<'_>,
        anode: &mut Anode,
        range: Range<u64>,
    ) -> FsResult<u64> {
        let first = range.start >> anode.block_shift;
        let end = end_of_leaf(anode, first).min(range.end);
        let mut units = self.units(anode, range.start, end)?;
        units.retain(|unit| unit.is_reserved);
        for unit in units {
            self.set_unit(change, anode, unit.start, unit.shift, PointerChange::Stored)?;
        }
        self.drop_empty_map_pages(change, anode, first)?;
        if (0..8).all(|slot| anode.root_pointer(slot).is_none()) {
            anode.height = 0;
        }
        Ok(end)
    }
}

fn end_of_leaf(anode: &Anode, index: u64) -> u64 {
    let first = page_index(index, 0) + POINTERS_PER_PAGE;
    first.saturating_mul(anode.block_bytes())
}
