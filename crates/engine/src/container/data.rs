//! Maps of files: blocks of the file's own size, and blocks of 4 KiB below leaves that are split.
//!
//! The block size is a property of a leaf. A leaf of blocks of 16 KiB is split at the first block
//! of 4 KiB that is installed below it: the four checks of each pointer become the checks of four
//! pointers, so that no data is read ([`format::map`], M3). A block of 16 KiB that is installed
//! below a split leaf becomes four pointers in the same way.
//!
//! Not here: which size a write takes (`vnode`).

use format::anode::{Anode, StorageMode};
use format::ids::Place;
use format::map::{
    COARSE_SHIFT, FINE_LEVEL, FINE_PER_COARSE, FINE_SHIFT, POINTERS_PER_PAGE, ROOT_POINTERS,
    capacity_of_height, fine_index, fine_slot, is_split, page_index, page_slot, pointer_at,
    set_pointer, span_of_pointer, split, split_slot,
};
use format::page::{PageBytes, PageKind, PageOwner};
use format::pointer::BlockPointer;

use super::entry::Entry;
use super::{map_owner, replace_pointer};
use crate::buffer::corrupt;
use crate::convert::{index_wide, wide};
use crate::error::FsResult;
use crate::store::{Change, Store, View, raise_birth_max};

/// A range of a file that has one pointer, or could have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Unit {
    /// Where it begins in the file, in bytes.
    pub(crate) start: u64,
    /// Block size: binary logarithm.
    pub(crate) shift: u8,
    /// What is stored; `None`: it reads as zeros.
    pub(crate) pointer: Option<BlockPointer>,
    /// Whether room for all of it is kept.
    pub(crate) is_reserved: bool,
}

impl Unit {
    fn new(start: u64, shift: u8, pointer: Option<BlockPointer>) -> Unit {
        let is_reserved = pointer.is_some_and(|pointer| pointer.is_reserved);
        Unit { start, shift, pointer: pointer.and_then(BlockPointer::stored), is_reserved }
    }

    /// Whether nothing is stored and no room is kept.
    pub(super) fn is_hole(&self) -> bool {
        self.pointer.is_none() && !self.is_reserved
    }

    /// Returns the fragments kept for the unit beside what is stored, if all of it `is_reserved`.
    pub(super) fn reserved_fragments(&self, is_reserved: bool, fragment_shift: u8) -> u32 {
        let stored = self.pointer.unwrap_or(BlockPointer::RESERVED);
        let pointer = BlockPointer { is_reserved, ..stored };
        pointer.reserved_fragments(self.shift, fragment_shift)
    }

    /// Returns the fragments that the file has for the unit: stored or reserved.
    pub(super) fn held_fragments(&self, fragment_shift: u8) -> u32 {
        let stored = self.pointer.map_or(0, |pointer| pointer.fragments);
        stored + self.reserved_fragments(self.is_reserved, fragment_shift)
    }

    /// Returns where the unit ends in the file, in bytes.
    pub(crate) fn end(&self) -> u64 {
        self.start.saturating_add(1 << self.shift)
    }

    /// Whether its leaf is split.
    pub(crate) fn is_fine(&self, anode: &Anode) -> bool {
        self.shift < anode.block_shift
    }
}

/// What installing a block has changed.
#[derive(Debug, Default)]
pub(crate) struct Replaced {
    /// Pointers that are no longer in the map; the caller frees what they point to (C2).
    pub(crate) pointers: Vec<BlockPointer>,
    /// Whether a leaf was split.
    pub(crate) is_split: bool,
    /// Fragments of the new block, from its front, that the map leads to: all of them, unless it is
    /// divided and ends past the end of the file.
    pub(crate) kept_fragments: u32,
}

/// Returns the owner of the fine leaf on the way to block `fine` of 4 KiB.
pub(super) fn fine_owner(anode: &Anode, fine: u64) -> PageOwner {
    PageOwner {
        fileset: anode.fileset,
        anode: anode.number,
        index: fine_index(fine),
        level: FINE_LEVEL,
    }
}

/// Refuses a split leaf where there can't be one (M3).
pub(super) fn check_split(anode: &Anode) -> FsResult<()> {
    if anode.block_shift == COARSE_SHIFT {
        return Ok(());
    }
    Err(corrupt(format!("MP003: a split leaf in a map of {} of other blocks", anode.number)))
}

/// Walks the leaves of a file's map from left to right, each once.
struct Leaves<'s> {
    store: &'s Store,
    anode: &'s Anode,
    leaf: Option<(u64, Option<View<'static>>)>,
    fine: Option<(u64, Option<View<'static>>)>,
}

impl Leaves<'_> {
    /// Adds the units of block `index` that begin before `end` and end behind `start`.
    fn units_of(
        &mut self,
        index: u64,
        start: u64,
        end: u64,
        units: &mut Vec<Unit>,
    ) -> FsResult<()> {
        let (store, anode) = (self.store, self.anode);
        let shift = anode.block_shift;
        if anode.height == 0 || index >= capacity_of_height(anode.height) {
            let pointer = store.block(None, anode, index)?;
            units.push(Unit::new(index << shift, shift, pointer));
            return Ok(());
        }
        let first = page_index(index, 0);
        if self.leaf.as_ref().is_none_or(|(at, _)| *at != first) {
            self.leaf = Some((first, store.leaf_of(anode, index)?));
        }
        let page = self.leaf.as_ref().and_then(|(_, page)| page.as_ref());
        let Some(page) = page.filter(|page| is_split(page)) else {
            let pointer = page.and_then(|page| pointer_at(page, page_slot(index, 0)));
            units.push(Unit::new(index << shift, shift, pointer));
            return Ok(());
        };
        check_split(anode)?;
        for fine in index * FINE_PER_COARSE..(index + 1) * FINE_PER_COARSE {
            let unit = Unit::new(fine << FINE_SHIFT, FINE_SHIFT, None);
            if unit.end() <= start || unit.start >= end {
                continue;
            }
            let first = fine_index(fine);
            if self.fine.as_ref().is_none_or(|(at, _)| *at != first) {
                let place = pointer_at(page, split_slot(fine)).map(|pointer| pointer.place);
                let owner = fine_owner(anode, fine);
                let leaf = place.map(|place| store.view(None, place, PageKind::Map, owner));
                self.fine = Some((first, leaf.transpose()?));
            }
            let leaf = self.fine.as_ref().and_then(|(_, leaf)| leaf.as_ref());
            let pointer = leaf.and_then(|leaf| pointer_at(leaf, fine_slot(fine)));
            units.push(Unit::new(unit.start, FINE_SHIFT, pointer));
        }
        Ok(())
    }
}

impl Store {
    /// Returns the units of a file that overlap the bytes from `start` to before `end`, in order.
    pub(crate) fn units(&self, anode: &Anode, start: u64, end: u64) -> FsResult<Vec<Unit>> {
        let mut units = Vec::new();
        let mut leaves = Leaves { store: self, anode, leaf: None, fine: None };
        for index in start >> anode.block_shift..end.div_ceil(anode.block_bytes()) {
            leaves.units_of(index, start, end, &mut units)?;
        }
        Ok(units)
    }

    /// Returns the unit of a file that has the byte at `offset`.
    pub(crate) fn unit(&self, anode: &Anode, offset: u64) -> FsResult<Unit> {
        let mut units = self.units(anode, offset, offset.saturating_add(1))?;
        units.pop().ok_or_else(|| corrupt("MP003: an offset past every map"))
    }

    /// Returns the first unit of which something is stored and that ends behind byte `from`;
    /// `None`: only a hole follows. Looks at no page below a hole.
    pub(crate) fn next_data(&self, anode: &Anode, from: u64) -> FsResult<Option<Unit>> {
        self.next_unit(anode, from, |unit| unit.pointer.is_some())
    }

    /// Does so of units for which room is kept, too.
    pub(crate) fn next_held(&self, anode: &Anode, from: u64) -> FsResult<Option<Unit>> {
        self.next_unit(anode, from, |unit| !unit.is_hole())
    }

    fn next_unit(
        &self,
        anode: &Anode,
        from: u64,
        is_wanted: fn(&Unit) -> bool,
    ) -> FsResult<Option<Unit>> {
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

    /// Does so below `pointer`, `height` levels above the blocks, which begins at block `base`.
    fn next_below(
        &self,
        anode: &Anode,
        pointer: BlockPointer,
        height: u8,
        base: u64,
        from: u64,
        is_wanted: fn(&Unit) -> bool,
    ) -> FsResult<Option<Unit>> {
        let shift = anode.block_shift;
        let Some(level) = height.checked_sub(1) else {
            let start = base.saturating_mul(1 << shift);
            let unit = Unit::new(start, shift, Some(pointer));
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

    /// Does so below the split leaf in `page`, which begins at block `base`.
    fn next_fine(
        &self,
        anode: &Anode,
        page: &PageBytes,
        base: u64,
        from: u64,
        is_wanted: fn(&Unit) -> bool,
    ) -> FsResult<Option<Unit>> {
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
                let unit = Unit::new(start, FINE_SHIFT, pointer_at(&leaf, fine_slot(fine)));
                if is_wanted(&unit) {
                    return Ok(Some(unit));
                }
            }
        }
        Ok(None)
    }

    /// Points the map of a file to a block of `1 << shift` bytes at byte `start`; splits the leaf
    /// if the block is smaller than those of the leaf. What would become a block of 4 KiB past the
    /// end of the file is dropped: a truncate has left it there.
    pub(crate) fn set_data(
        &self,
        change: &mut Change<'_>,
        anode: &mut Anode,
        start: u64,
        shift: u8,
        pointer: &BlockPointer,
    ) -> FsResult<Replaced> {
        let index = start >> anode.block_shift;
        let mut replaced = Replaced { kept_fragments: pointer.fragments, ..Replaced::default() };
        if anode.storage == StorageMode::Inline {
            // The first block has what the anode had (I1 of the vnodes).
            anode.storage = StorageMode::Blocked;
            anode.root.fill(0);
        }
        self.grow(change, anode, index)?;
        let version = Entry::Version(Some(pointer));
        if anode.height == 0 {
            if shift == anode.block_shift {
                replaced.pointers.extend(self.set_unit(change, anode, start, shift, version)?);
                return Ok(replaced);
            }
            self.raise(change, anode)?;
        }
        let place = self.leaf_to_edit(change, anode, index)?;
        let owner = map_owner(anode, index, 0);
        if !is_split(change.edit(place, PageKind::Map, owner)?) {
            if shift == anode.block_shift {
                replaced.pointers.extend(self.set_coarse(change, anode, place, index, version)?);
                return Ok(replaced);
            }
            self.split_leaf(change, anode, owner, place, &mut replaced.pointers)?;
            replaced.is_split = true;
        }
        check_split(anode)?;
        let fine = start >> FINE_SHIFT;
        if shift == FINE_SHIFT {
            let old = self.set_fine(change, anode, owner, place, fine, version)?;
            replaced.pointers.extend(old);
            return Ok(replaced);
        }
        let fragment_shift = self.geometry().fragment_shift;
        let end = anode.size_bytes.div_ceil(1 << FINE_SHIFT);
        replaced.kept_fragments = 0;
        for quarter in 0..FINE_PER_COARSE {
            let part = pointer.quarter(index_wide(quarter), fragment_shift);
            let part = part.filter(|_| fine + quarter < end);
            replaced.kept_fragments += part.map_or(0, |part| part.fragments);
            let part = Entry::Version(part.as_ref());
            let old = self.set_fine(change, anode, owner, place, fine + quarter, part)?;
            replaced.pointers.extend(old);
        }
        Ok(replaced)
    }

    /// Makes the leaf at `place` the page over four fine leaves.
    fn split_leaf(
        &self,
        change: &mut Change<'_>,
        anode: &mut Anode,
        owner: PageOwner,
        place: Place,
        dropped: &mut Vec<BlockPointer>,
    ) -> FsResult<()> {
        check_split(anode)?;
        let fragment_shift = self.geometry().fragment_shift;
        let page = change.edit(place, PageKind::Map, owner)?;
        let pointers: Vec<Option<BlockPointer>> =
            (0..index_wide(POINTERS_PER_PAGE)).map(|slot| pointer_at(page, slot)).collect();
        let mut stored = pointers.iter().flatten().filter_map(|pointer| pointer.stored());
        if stored.any(|pointer| !pointer.is_divisible()) {
            return Err(corrupt(format!("MP003: a block of {} has no quarters", anode.number)));
        }
        split(page);
        let end = anode.size_bytes.div_ceil(1 << FINE_SHIFT);
        let mut fine = owner.index * FINE_PER_COARSE;
        for pointer in pointers {
            self.count_reserved(change, anode, COARSE_SHIFT, pointer, None)?;
            let is_reserved = pointer.is_some_and(|pointer| pointer.is_reserved);
            for quarter in 0..index_wide(FINE_PER_COARSE) {
                let part = pointer.as_ref().and_then(|p| p.quarter(quarter, fragment_shift));
                dropped.extend(part.filter(|_| fine >= end));
                let part = part.filter(|_| fine < end);
                let entry = part.as_ref().map(|part| Entry::Version(Some(part)));
                if let Some(entry) = entry.or(is_reserved.then_some(Entry::Reserved)) {
                    self.set_fine(change, anode, owner, place, fine, entry)?;
                }
                fine += 1;
            }
        }
        Ok(())
    }

    /// Sets pointer `fine` below the split leaf at `place`; returns what nothing leads to any more.
    pub(super) fn set_fine(
        &self,
        change: &mut Change<'_>,
        anode: &mut Anode,
        owner: PageOwner,
        place: Place,
        fine: u64,
        entry: Entry<'_>,
    ) -> FsResult<Option<BlockPointer>> {
        let birth = change.epoch();
        let slot = split_slot(fine);
        let page = change.edit(place, PageKind::Map, owner)?;
        raise_birth_max(page, birth);
        let below = fine_owner(anode, fine);
        let leaf = match pointer_at(page, slot) {
            Some(found) => found.place,
            None if entry.after(None).is_none() => return Ok(None),
            None => {
                let leaf = change.add_page(PageKind::Map, below)?;
                let fragments = self.geometry().page_fragments();
                anode.fragments += u64::from(fragments);
                let to_leaf = BlockPointer::to_page(leaf, fragments, birth);
                let page = change.edit(place, PageKind::Map, owner)?;
                set_pointer(page, slot, Some(&to_leaf));
                leaf
            }
        };
        let page = change.edit(leaf, PageKind::Map, below)?;
        let slot = fine_slot(fine);
        let old = pointer_at(page, slot);
        let new = entry.after(old);
        replace_pointer(page, slot, new.as_ref(), birth);
        self.count_reserved(change, anode, FINE_SHIFT, old, new)?;
        Ok(entry.dropped(old))
    }
}
