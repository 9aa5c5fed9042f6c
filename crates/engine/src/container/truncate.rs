//! Truncation in bounded steps, one transaction each. After a crash between steps, it is completed
//! later.

use std::ops::Range;

use format::anode::Anode;
use format::defect::DefectCode;
use format::ids::{Epoch, Place};
use format::map::{
    FINE_PER_COARSE, FINE_SHIFT, POINTERS_PER_PAGE, capacity_of_height, fine_slot, page_slot,
    root_slot, set_pointer, span_of_pointer,
};
use format::page::PageKind;
use format::pointer::BlockPointer;
use runtime::if_planted;

use super::data::{check_split, fine_owner};
use super::map_page::MapPage;
use super::{content_owner, map_owner};
use crate::alloc::Extent;
use crate::buffer::corrupt;
use crate::convert::{index_wide, wide};
use crate::error::FsResult;
use crate::store::{Change, Store};

/// Pointers examined per step.
const POINTERS_PER_STEP: usize = 1024;
const EXTENTS_PER_STEP: usize = 96;
const GROUPS_PER_STEP: usize = 16;
const PAGES_PER_STEP: usize = 80;

/// The remaining limits of a step, and its extents.
#[derive(Debug)]
pub(crate) struct TruncateStep {
    /// Snapshots share everything born in this epoch or before.
    shared_epoch: Epoch,
    pointers: usize,
    extents: Vec<Extent>,
    groups: Vec<u32>,
}

impl TruncateStep {
    pub(crate) fn new(change: &Change<'_>) -> TruncateStep {
        let shared_epoch = change.shared_epoch();
        TruncateStep {
            shared_epoch,
            pointers: POINTERS_PER_STEP,
            extents: Vec::new(),
            groups: Vec::new(),
        }
    }

    /// Returns whether a transaction that has changed `pages` pages may free another.
    pub(crate) fn has_room_for_page(pages: usize) -> bool {
        pages <= PAGES_PER_STEP
    }

    /// Returns whether the step can drop all pointers of a shared leaf.
    fn has_room_for_leaf(&self, pages: usize) -> bool {
        let has_pages = pages + self.groups.len() * 4 <= PAGES_PER_STEP;
        has_pages && self.pointers >= index_wide(POINTERS_PER_PAGE)
    }

    pub(crate) fn extents(&self) -> &[Extent] {
        &self.extents
    }

    /// Notes one more unit and its block to free. False if the limits forbid it.
    pub(crate) fn take_unit(&mut self, stored: Option<BlockPointer>, pages: usize) -> bool {
        if let Some(pointer) = stored.filter(|pointer| pointer.birth > self.shared_epoch) {
            return self.take(pointer.place, pointer.fragments, pages);
        }
        if self.pointers == 0 || pages + self.groups.len() * 4 > PAGES_PER_STEP {
            return false;
        }
        self.pointers -= 1;
        true
    }

    /// Notes one more unit and its extents to free. False if the limits forbid it.
    pub(crate) fn take_parts(&mut self, parts: &[Extent], pages: usize) -> bool {
        match parts {
            [] => self.take_unit(None, pages),
            // At most four parts of one block.
            [first, rest @ ..] => {
                let is_taken = self.take(first.place, first.fragments, pages);
                if is_taken {
                    self.extents.extend_from_slice(rest);
                }
                is_taken
            }
        }
    }

    /// Notes one more block to free. False if the limits forbid it.
    fn take(&mut self, place: Place, fragments: u32, pages: usize) -> bool {
        let extent = Extent { place, fragments };
        let joins = self.extents.last().is_some_and(|last| last.touches(extent));
        let is_known = self.groups.contains(&place.group());
        let is_over = self.pointers == 0
            || pages + self.groups.len() * 4 > PAGES_PER_STEP
            || (!joins && self.extents.len() >= EXTENTS_PER_STEP)
            || (!is_known && self.groups.len() >= GROUPS_PER_STEP);
        if is_over {
            return false;
        }
        self.pointers -= 1;
        if !is_known {
            self.groups.push(place.group());
        }
        match self.extents.last_mut() {
            Some(last) if joins => last.join(extent),
            _ => self.extents.push(extent),
        }
        true
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ContainerContent {
    Data,
    Pages(PageKind),
}

impl ContainerContent {
    pub(crate) fn of(anode: &Anode) -> ContainerContent {
        anode.content_kind().map_or(ContainerContent::Data, ContainerContent::Pages)
    }
}

#[derive(Clone, Copy, Debug)]
struct TruncatePoint {
    /// The block that contains the new end.
    index: u64,
    /// The first freed block.
    first: u64,
    /// The first freed block of 4 KiB, below split leaves.
    fine: u64,
}

impl TruncatePoint {
    fn at(size_bytes: u64, anode: &Anode) -> TruncatePoint {
        TruncatePoint {
            index: size_bytes / anode.block_bytes(),
            first: size_bytes.div_ceil(anode.block_bytes()),
            fine: size_bytes.div_ceil(1 << FINE_SHIFT),
        }
    }
}

impl Store {
    /// Frees blocks past `size_bytes`, from the end, within one transaction. Returns whether all
    /// are freed. If not, call again in another transaction.
    pub(crate) fn truncate_blocks(
        &self,
        change: &mut Change<'_>,
        anode: &mut Anode,
        size_bytes: u64,
        content: ContainerContent,
    ) -> FsResult<bool> {
        let cut = TruncatePoint::at(size_bytes, anode);
        let mut step = TruncateStep::new(change);
        let is_done = self.truncate_root(change, anode, cut, content, &mut step)?;
        change.free(&step.extents)?;
        if_planted!(DoubleFree, change.free(&step.extents)?);
        Ok(is_done)
    }

    fn truncate_root(
        &self,
        change: &mut Change<'_>,
        anode: &mut Anode,
        cut: TruncatePoint,
        content: ContainerContent,
        step: &mut TruncateStep,
    ) -> FsResult<bool> {
        if cut.index >= capacity_of_height(anode.height) {
            return Ok(true);
        }
        let lowest = root_slot(cut.index, anode.height);
        for slot in (lowest..8).rev() {
            let Some(pointer) = anode.root_pointer(slot) else { continue };
            let base = wide(slot) * span_of_pointer(anode.height);
            let height = anode.height;
            let is_gone =
                self.truncate_below(change, anode, pointer, height, base, cut, content, step)?;
            match is_gone {
                PointerOutcome::Gone => anode.set_root_pointer(slot, None),
                PointerOutcome::Kept => {}
                PointerOutcome::Stopped => return Ok(false),
            }
        }
        if cut.first == 0 && (0..8).all(|slot| anode.root_pointer(slot).is_none()) {
            anode.height = 0;
        }
        Ok(true)
    }

    /// Truncates below `pointer`, `height` levels above block `base`.
    #[expect(clippy::too_many_arguments, reason = "one recursion, all of it changes on the way")]
    fn truncate_below(
        &self,
        change: &mut Change<'_>,
        anode: &mut Anode,
        pointer: BlockPointer,
        height: u8,
        base: u64,
        cut: TruncatePoint,
        content: ContainerContent,
        step: &mut TruncateStep,
    ) -> FsResult<PointerOutcome> {
        if height == 0 && base < cut.first {
            return Ok(PointerOutcome::Kept);
        }
        if height == 0 {
            return match content {
                ContainerContent::Data => {
                    let shift = anode.block_shift;
                    self.free_data(change, anode, pointer, shift, step)
                }
                ContainerContent::Pages(kind) => {
                    self.free_content(change, anode, pointer, base, kind)
                }
            };
        }
        let level = height - 1;
        let owner = map_owner(anode, base, level);
        let span = span_of_pointer(level);
        let lowest = if cut.index <= base { 0 } else { page_slot(cut.index, level) };
        let page = MapPage::new(pointer.place, owner);
        let is_split =
            content == ContainerContent::Data && level == 0 && page.is_split(self, change)?;
        let slots = if is_split { lowest..lowest } else { lowest..index_wide(POINTERS_PER_PAGE) };
        // A shared leaf is not copied only to be emptied: one step drops all its pointers, or none.
        let is_whole = level == 0 && !is_split && cut.first <= base;
        let is_left_as_is = is_whole && change.is_shared(page.place, PageKind::Map, owner)?;
        if is_left_as_is && !step.has_room_for_leaf(change.page_count()) {
            return Ok(PointerOutcome::Stopped);
        }
        if is_split && !self.truncate_split(change, anode, page, cut, step)? {
            return Ok(PointerOutcome::Stopped);
        }
        for slot in slots.rev() {
            let Some(child) = page.pointer(self, Some(change), slot)? else { continue };
            let child_base = base + wide(slot) * span;
            let outcome =
                self.truncate_below(change, anode, child, level, child_base, cut, content, step)?;
            match outcome {
                PointerOutcome::Gone if is_left_as_is => {}
                PointerOutcome::Gone => {
                    set_pointer(page.edit(change)?, slot, None);
                }
                // Not expected, since the limits were checked for the whole leaf.
                PointerOutcome::Stopped if is_left_as_is => {
                    page.edit(change)?;
                    return Ok(PointerOutcome::Stopped);
                }
                PointerOutcome::Kept => {}
                PointerOutcome::Stopped => return Ok(PointerOutcome::Stopped),
            }
        }
        if cut.first > base {
            return Ok(PointerOutcome::Kept);
        }
        change.free_page(pointer.place, PageKind::Map, owner)?;
        take_off(&mut anode.fragments, u64::from(pointer.fragments), DefectCode::AN004)?;
        Ok(PointerOutcome::Gone)
    }

    /// Frees the blocks wholly in `range`, from its start, within one transaction. Returns where
    /// the next transaction continues. Keeps map pages.
    pub(crate) fn punch_blocks(
        &self,
        change: &mut Change<'_>,
        anode: &mut Anode,
        range: Range<u64>,
    ) -> FsResult<Option<u64>> {
        let mut step = TruncateStep::new(change);
        let (mut at, mut rest) = (range.start, None);
        while let Some(unit) = self.next_held(anode, at)?.filter(|unit| unit.end() <= range.end) {
            at = unit.end();
            if unit.start < range.start {
                continue;
            }
            if !step.take_unit(unit.pointer, change.page_count()) {
                rest = Some(unit.start);
                break;
            }
            self.clear_unit(change, anode, &unit)?;
            let stored = unit.pointer.map_or(0, |pointer| pointer.fragments);
            take_off(&mut anode.fragments, u64::from(stored), DefectCode::AN004)?;
        }
        change.free(&step.extents)?;
        Ok(rest)
    }

    /// Frees blocks past the cut below a split leaf, and empty fine leaves. Returns whether all are
    /// freed.
    fn truncate_split(
        &self,
        change: &mut Change<'_>,
        anode: &mut Anode,
        above: MapPage,
        cut: TruncatePoint,
        step: &mut TruncateStep,
    ) -> FsResult<bool> {
        check_split(anode)?;
        for slot in (0..index_wide(FINE_PER_COARSE)).rev() {
            let first = above.owner.index * FINE_PER_COARSE + wide(slot) * POINTERS_PER_PAGE;
            let leaf = above.pointer(self, Some(change), slot)?;
            let Some(leaf) = leaf.filter(|_| first + POINTERS_PER_PAGE > cut.fine) else {
                continue;
            };
            let below = MapPage::new(leaf.place, fine_owner(anode, first));
            for fine in (first.max(cut.fine)..first + POINTERS_PER_PAGE).rev() {
                let block = below.pointer(self, Some(change), fine_slot(fine))?;
                let Some(block) = block else { continue };
                let outcome = self.free_data(change, anode, block, FINE_SHIFT, step)?;
                if matches!(outcome, PointerOutcome::Stopped) {
                    return Ok(false);
                }
                set_pointer(below.edit(change)?, fine_slot(fine), None);
            }
            if first >= cut.fine {
                change.free_page(leaf.place, PageKind::Map, below.owner)?;
                take_off(&mut anode.fragments, u64::from(leaf.fragments), DefectCode::AN004)?;
                above.set(change, slot, None)?;
            }
        }
        Ok(true)
    }

    /// Frees a block of `1 << shift` bytes, and its reservation.
    fn free_data(
        &self,
        change: &mut Change<'_>,
        anode: &mut Anode,
        pointer: BlockPointer,
        shift: u8,
        step: &mut TruncateStep,
    ) -> FsResult<PointerOutcome> {
        if !step.take_unit(pointer.stored(), change.page_count()) {
            return Ok(PointerOutcome::Stopped);
        }
        self.count_reserved(change, anode, shift, Some(pointer), None)?;
        take_off(&mut anode.fragments, u64::from(pointer.fragments), DefectCode::AN004)?;
        Ok(PointerOutcome::Gone)
    }

    fn free_content(
        &self,
        change: &mut Change<'_>,
        anode: &mut Anode,
        pointer: BlockPointer,
        index: u64,
        kind: PageKind,
    ) -> FsResult<PointerOutcome> {
        if !TruncateStep::has_room_for_page(change.page_count()) {
            return Ok(PointerOutcome::Stopped);
        }
        change.free_page(pointer.place, kind, content_owner(anode, index))?;
        take_off(&mut anode.pages, 1, DefectCode::AN005)?;
        take_off(&mut anode.fragments, u64::from(pointer.fragments), DefectCode::AN004)?;
        Ok(PointerOutcome::Gone)
    }
}

/// Subtracts freed fragments from `count` (CT1).
pub(crate) fn take_off(count: &mut u64, freed: u64, code: DefectCode) -> FsResult<()> {
    let rest = count.checked_sub(freed);
    *count =
        rest.ok_or_else(|| corrupt(code.found("an anode counts less than its map leads to")))?;
    Ok(())
}

/// The result of truncating below a pointer.
enum PointerOutcome {
    /// Freed, with all below it.
    Gone,
    /// Needed for blocks before the cut.
    Kept,
    /// The limits of the step are reached.
    Stopped,
}
