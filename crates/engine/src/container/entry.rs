//! Pointers to blocks of files: what becomes of one, and the room that it reserves.
//!
//! A pointer may say that room for its whole block is reserved. What of the block is not stored is
//! then counted, in the anode (CT1) and in the pool (CT3), and nobody else can have it: so a write
//! finds room that was taken ahead, though every version of a block takes a new place. The room
//! stays with the pointer through versions and splits, until it becomes a hole.

use std::ops::Range;

use format::anode::{Anode, StorageMode};
use format::defect::DefectCode;
use format::map::{
    FINE_PER_COARSE, FINE_SHIFT, POINTERS_PER_PAGE, page_index, page_slot, root_slot,
};
use format::pointer::BlockPointer;
use runtime::planted::{self, Planted};

use super::data::Unit;
use super::map_page::MapPage;
use super::take_off;
use crate::alloc::Urgency;
use crate::error::FsResult;
use crate::store::{Change, Store};

/// What becomes of a pointer to a block.
#[derive(Clone, Copy)]
pub(super) enum Entry<'p> {
    /// It leads to another version of the block; `None`: to nothing. Room that is kept stays so.
    Version(Option<&'p BlockPointer>),
    /// It leads where it did, and room for the whole block is kept.
    Reserved,
    /// It leads where it did, and no room is kept beside what is stored.
    Stored,
    /// It leads to nothing, and no room is kept.
    Hole,
}

impl Entry<'_> {
    /// Returns the pointer that takes the place of `old`.
    pub(super) fn after(self, old: Option<BlockPointer>) -> Option<BlockPointer> {
        let was_reserved =
            old.is_some_and(|old| old.is_reserved) && !planted::is(Planted::ReservationForgotten);
        match self {
            Entry::Version(Some(pointer)) => {
                let is_reserved = pointer.is_reserved || was_reserved;
                Some(BlockPointer { is_reserved, ..*pointer })
            }
            Entry::Version(None) => was_reserved.then_some(BlockPointer::RESERVED),
            Entry::Reserved => {
                let old = old.unwrap_or(BlockPointer::RESERVED);
                Some(BlockPointer { is_reserved: true, ..old })
            }
            Entry::Stored => {
                let stored = old.and_then(BlockPointer::stored);
                stored.map(|old| BlockPointer { is_reserved: false, ..old })
            }
            Entry::Hole => None,
        }
    }

    /// Returns what `old` led to and nothing leads to any more; the caller frees it (CT2).
    pub(super) fn dropped(self, old: Option<BlockPointer>) -> Option<BlockPointer> {
        match self {
            Entry::Version(_) | Entry::Hole => old.and_then(BlockPointer::stored),
            Entry::Reserved | Entry::Stored => None,
        }
    }
}

/// Fragments that pointers of one leaf reserve after a change, and did not before, or the reverse.
pub(super) struct Reserved {
    /// Size of the blocks: binary logarithm.
    shift: u8,
    fragment_shift: u8,
    more: u32,
    less: u32,
}

impl Reserved {
    pub(super) fn new(shift: u8, fragment_shift: u8) -> Reserved {
        Reserved { shift, fragment_shift, more: 0, less: 0 }
    }

    /// The pointer `old` becomes `new`.
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
    /// Makes a hole of a unit; the caller frees what that led to (CT2).
    pub(super) fn clear_unit(
        &self,
        change: &mut Change<'_>,
        anode: &mut Anode,
        unit: &Unit,
    ) -> FsResult<()> {
        self.set_unit(change, anode, unit.start, unit.shift, Entry::Hole).map(drop)
    }

    /// Sets the pointer of a unit of `1 << shift` bytes, the size that its leaf has. Returns what
    /// nothing leads to any more.
    pub(super) fn set_unit(
        &self,
        change: &mut Change<'_>,
        anode: &mut Anode,
        start: u64,
        shift: u8,
        entry: Entry<'_>,
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

    /// Sets pointer `index` of `leaf`, which is to be edited and not split; returns what nothing
    /// leads to any more.
    pub(super) fn set_coarse(
        &self,
        change: &mut Change<'_>,
        anode: &mut Anode,
        leaf: MapPage,
        index: u64,
        entry: Entry<'_>,
    ) -> FsResult<Option<BlockPointer>> {
        let (slot, mut old, mut new) = (page_slot(index, 0), None, None);
        leaf.replace(change, slot..slot + 1, |_, was| {
            (old, new) = (was, entry.after(was));
            new
        })?;
        self.count_reserved(change, anode, anode.block_shift, old, new)?;
        Ok(entry.dropped(old))
    }

    /// CT1, CT3: what is reserved for a block of `1 << shift` bytes was what `old` says and is what
    /// `new` says.
    pub(super) fn count_reserved(
        &self,
        change: &mut Change<'_>,
        anode: &mut Anode,
        shift: u8,
        old: Option<BlockPointer>,
        new: Option<BlockPointer>,
    ) -> FsResult<()> {
        let mut reserved = Reserved::new(shift, self.geometry().fragment_shift);
        reserved.note(old, new);
        self.count(change, anode, reserved)
    }

    /// CT1, CT3: counts what is reserved from now on, and what no longer.
    pub(super) fn count(
        &self,
        change: &mut Change<'_>,
        anode: &mut Anode,
        reserved: Reserved,
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

    /// Keeps room for the blocks that `range` touches below its first leaf; `own` fragments are
    /// kept free for the fileset. Returns where to go on
    /// in another transaction, and for which ranges no room was kept before.
    ///
    /// # Errors
    ///
    /// [`FsError::NoSpace`](crate::error::FsError::NoSpace): nothing is changed.
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
        // Blocks can't have what is free of the others.
        let pages = self.alloc.pages_beyond_spare(map_pages);
        let pages = pages * u64::from(self.geometry().page_fragments());
        // Held until reservations and pages count themselves.
        self.alloc.promise(wanted + pages, Urgency::User, own)?;
        if anode.storage == StorageMode::Inline {
            anode.storage = StorageMode::Blocked;
            anode.root.fill(0);
        }
        let reserved = units.iter().try_for_each(|unit| {
            let set = self.set_unit(change, anode, unit.start, unit.shift, Entry::Reserved);
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

    /// Keeps no room any more for the blocks that lie in `range` below its first leaf, beside what
    /// is stored of them; map pages that lead nowhere then go. Returns where to go on in another
    /// transaction. Takes no room.
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
            self.set_unit(change, anode, unit.start, unit.shift, Entry::Stored)?;
        }
        self.drop_empty_map_pages(change, anode, first)?;
        if (0..8).all(|slot| anode.root_pointer(slot).is_none()) {
            anode.height = 0;
        }
        Ok(end)
    }
}

/// Returns where the part of the file ends, in bytes, that lies below the leaf of block `index`.
fn end_of_leaf(anode: &Anode, index: u64) -> u64 {
    let first = page_index(index, 0) + POINTERS_PER_PAGE;
    first.saturating_mul(anode.block_bytes())
}
