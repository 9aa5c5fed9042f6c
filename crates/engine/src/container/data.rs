//! Maps of files: blocks of the file's own size, and blocks of 4 KiB below split leaves.
//!
//! A leaf of 16 KiB blocks is split at the first map update with a 4 KiB block below it: fine
//! leaves of 4 KiB pointers follow it. The four checks in each pointer become those of four
//! pointers, so no data is read ([`format::map`], M3). A later block of 16 KiB becomes four
//! pointers too.
//!
//! Not here: the block size of a write (`vnode`).

use format::anode::{Anode, StorageMode};
use format::defect::DefectCode;
use format::map::{
    COARSE_SHIFT, FINE_LEVEL, FINE_PER_COARSE, FINE_SHIFT, POINTERS_PER_PAGE, ROOT_POINTERS,
    fine_index, fine_slot, is_split, page_slot, pointer_at, span_of_pointer,
};
use format::page::{PageBytes, PageKind, PageOwner};
use format::pointer::BlockPointer;

use super::leaves::LeafCursor;
use super::map_owner;
use crate::buffer::corrupt;
use crate::convert::{index_wide, wide};
use crate::error::FsResult;
use crate::store::Store;

/// A *unit*: the file range of one pointer, which may be a hole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PointerRange {
    /// Offset in the file, in bytes.
    pub(crate) start: u64,
    /// Binary logarithm of the block size.
    pub(crate) shift: u8,
    /// The stored block. `None` reads as zeros.
    pub(crate) pointer: Option<BlockPointer>,
    /// Space for the whole block is reserved.
    pub(crate) is_reserved: bool,
}

impl PointerRange {
    pub(super) fn new(start: u64, shift: u8, pointer: Option<BlockPointer>) -> PointerRange {
        let is_reserved = pointer.is_some_and(|pointer| pointer.is_reserved);
        PointerRange { start, shift, pointer: pointer.and_then(BlockPointer::stored), is_reserved }
    }

    pub(super) fn is_hole(&self) -> bool {
        self.pointer.is_none() && !self.is_reserved
    }

    /// Returns the fragments that a reservation counts beside the stored ones.
    pub(super) fn reserved_fragments(&self, is_reserved: bool, fragment_shift: u8) -> u32 {
        let stored = self.pointer.unwrap_or(BlockPointer::RESERVED);
        let pointer = BlockPointer { is_reserved, ..stored };
        pointer.reserved_fragments(self.shift, fragment_shift)
    }

    /// Returns the fragments stored or reserved.
    pub(super) fn held_fragments(&self, fragment_shift: u8) -> u32 {
        let stored = self.pointer.map_or(0, |pointer| pointer.fragments);
        stored + self.reserved_fragments(self.is_reserved, fragment_shift)
    }

    /// Returns the part of `1 << shift` bytes at `start`, as after a split of the leaf.
    pub(super) fn quarter_at(
        &self,
        start: u64,
        shift: u8,
        fragment_shift: u8,
    ) -> Option<PointerRange> {
        if shift >= self.shift {
            return None;
        }
        let quarter = index_wide(start.checked_sub(self.start)? >> shift);
        let pointer = self.pointer.and_then(|pointer| pointer.quarter(quarter, fragment_shift));
        Some(PointerRange { start, shift, pointer, is_reserved: self.is_reserved })
    }

    pub(crate) fn end(&self) -> u64 {
        self.start.saturating_add(1 << self.shift)
    }

    /// Returns whether the unit is below a split leaf.
    pub(crate) fn is_fine(&self, anode: &Anode) -> bool {
        self.shift < anode.block_shift
    }
}

pub(super) fn fine_owner(anode: &Anode, fine: u64) -> PageOwner {
    PageOwner {
        fileset: anode.fileset,
        anode: anode.number,
        index: fine_index(fine),
        level: FINE_LEVEL,
    }
}

/// Refuses a split leaf in a container whose blocks are not 16 KiB (M3).
pub(super) fn check_split(anode: &Anode) -> FsResult<()> {
    if anode.block_shift == COARSE_SHIFT {
        return Ok(());
    }
    Err(corrupt(
        DefectCode::MP003
            .found("a split leaf in a map of other blocks")
            .of(anode.fileset, anode.number),
    ))
}

impl Store {
    /// Returns the units that overlap a byte range, in order.
    pub(crate) fn units(&self, anode: &Anode, start: u64, end: u64) -> FsResult<Vec<PointerRange>> {
        let mut units = Vec::new();
        LeafCursor::new(self).look(anode, start..end, |unit| units.push(unit))?;
        Ok(units)
    }

    pub(crate) fn unit(&self, anode: &Anode, offset: u64) -> FsResult<PointerRange> {
        LeafCursor::new(self).unit(anode, offset)
    }

    /// Returns the first stored unit that ends after byte `from`. Skips holes without reading
    /// pages.
    pub(crate) fn next_data(&self, anode: &Anode, from: u64) -> FsResult<Option<PointerRange>> {
        self.next_unit(anode, from, |unit| unit.pointer.is_some())
    }

    /// Returns the first unit stored or reserved that ends after byte `from`.
    pub(crate) fn next_held(&self, anode: &Anode, from: u64) -> FsResult<Option<PointerRange>> {
        self.next_unit(anode, from, |unit| !unit.is_hole())
    }

    fn next_unit(
        &self,
        anode: &Anode,
        from: u64,
        is_wanted: fn(&PointerRange) -> bool,
    ) -> FsResult<Option<PointerRange>> {
        if anode.storage == StorageMode::Inline {
            return Ok(None);
        }
        let span = span_of_pointer(anode.height);
        for slot in 0..index_wide(ROOT_POINTERS) {
            let base = wide(slot).saturating_mul(span);
            let Some(pointer) = anode.root_pointer(slot) else { continue };
            if base.saturating_add(span) <= from >> anode.block_shift {
                continue;
            }
            let found = self.next_below(anode, pointer, anode.height, base, from, is_wanted)?;
            if found.is_some() {
                return Ok(found);
            }
        }
        Ok(None)
    }

    /// Searches below `pointer`, `height` levels above block `base`.
    fn next_below(
        &self,
        anode: &Anode,
        pointer: BlockPointer,
        height: u8,
        base: u64,
        from: u64,
        is_wanted: fn(&PointerRange) -> bool,
    ) -> FsResult<Option<PointerRange>> {
        let shift = anode.block_shift;
        let Some(level) = height.checked_sub(1) else {
            let start = base.saturating_mul(1 << shift);
            let unit = PointerRange::new(start, shift, Some(pointer));
            return Ok(Some(unit).filter(|unit| unit.end() > from && is_wanted(unit)));
        };
        let page = self.view(None, pointer.place, PageKind::Map, map_owner(anode, base, level))?;
        if level == 0 && is_split(&page) {
            return self.next_fine(anode, &page, base, from, is_wanted);
        }
        let first = from >> shift;
        let lowest = if first <= base { 0 } else { page_slot(first, level) };
        for slot in lowest..index_wide(POINTERS_PER_PAGE) {
            let Some(child) = pointer_at(&page, slot) else { continue };
            let base = base.saturating_add(wide(slot).saturating_mul(span_of_pointer(level)));
            let found = self.next_below(anode, child, level, base, from, is_wanted)?;
            if found.is_some() {
                return Ok(found);
            }
        }
        Ok(None)
    }

    /// Searches below a split leaf at block `base`.
    fn next_fine(
        &self,
        anode: &Anode,
        page: &PageBytes,
        base: u64,
        from: u64,
        is_wanted: fn(&PointerRange) -> bool,
    ) -> FsResult<Option<PointerRange>> {
        check_split(anode)?;
        for slot in 0..FINE_PER_COARSE {
            let first =
                base.saturating_mul(FINE_PER_COARSE).saturating_add(slot * POINTERS_PER_PAGE);
            let lowest = first.max(from >> FINE_SHIFT);
            let Some(leaf) = pointer_at(page, index_wide(slot)) else { continue };
            if lowest >= first.saturating_add(POINTERS_PER_PAGE) {
                continue;
            }
            let leaf = self.view(None, leaf.place, PageKind::Map, fine_owner(anode, first))?;
            for fine in lowest..first.saturating_add(POINTERS_PER_PAGE) {
                let start = fine.saturating_mul(1 << FINE_SHIFT);
                let unit = PointerRange::new(start, FINE_SHIFT, pointer_at(&leaf, fine_slot(fine)));
                if is_wanted(&unit) {
                    return Ok(Some(unit));
                }
            }
        }
        Ok(None)
    }
}
