//! Freeing what lies past a block: in bounded steps, so that a large file costs many small
//! transactions and a crash between two of them loses nothing but time.

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
use runtime::planted::{self, Planted};

use super::data::{check_split, fine_owner};
use super::map_page::MapPage;
use super::{content_owner, map_owner};
use crate::alloc::Extent;
use crate::buffer::corrupt;
use crate::convert::{index_wide, wide};
use crate::error::FsResult;
use crate::store::{Change, Store};

/// Most pointers that one step looks at.
const POINTERS_PER_STEP: usize = 1024;
/// Most runs of fragments that one step frees.
const EXTENTS_PER_STEP: usize = 96;
/// Most allocation groups that one step touches.
const GROUPS_PER_STEP: usize = 16;
/// Most pages that one step touches before it stops.
const PAGES_PER_STEP: usize = 80;

/// What a step may still do, and what it has found.
#[derive(Debug)]
pub(crate) struct Step {
    /// What was born in this epoch or before it, clones hold too: it is not freed.
    shared_epoch: Epoch,
    pointers: usize,
    extents: Vec<Extent>,
    groups: Vec<u32>,
}

impl Step {
    /// A step of `change` that has done nothing yet.
    pub(crate) fn new(change: &Change<'_>) -> Step {
        let shared_epoch = change.shared_epoch();
        Step { shared_epoch, pointers: POINTERS_PER_STEP, extents: Vec::new(), groups: Vec::new() }
    }

    /// Whether a transaction that touches so many pages may free one more.
    pub(crate) fn has_room_for_page(pages: usize) -> bool {
        pages <= PAGES_PER_STEP
    }

    /// Whether the step may give up all that a leaf leads to of which it frees nothing.
    fn has_room_for_leaf(&self, pages: usize) -> bool {
        let has_pages = pages + self.groups.len() * 4 <= PAGES_PER_STEP;
        has_pages && self.pointers >= index_wide(POINTERS_PER_PAGE)
    }

    /// Returns the runs of fragments that were taken.
    pub(crate) fn extents(&self) -> &[Extent] {
        &self.extents
    }

    /// Whether the step may give up one more unit of a file, of which `stored` is stored; if so, it
    /// is noted.
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

    /// Whether the step may give up one more unit of a file, of which `parts` are to be freed; if
    /// so, they are noted.
    pub(crate) fn take_parts(&mut self, parts: &[Extent], pages: usize) -> bool {
        match parts {
            [] => self.take_unit(None, pages),
            // Of one block: its quarters are few.
            [first, rest @ ..] => {
                let is_taken = self.take(first.place, first.fragments, pages);
                if is_taken {
                    self.extents.extend_from_slice(rest);
                }
                is_taken
            }
        }
    }

    /// Whether the step may free one more block; if so, it is noted.
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

/// What the blocks of a container are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Content {
    /// Data of a file.
    Data,
    /// Pages of this kind.
    Pages(PageKind),
}

impl Content {
    /// Returns what the blocks of the container of `anode` are.
    pub(crate) fn of(anode: &Anode) -> Content {
        anode.content_kind().map_or(Content::Data, Content::Pages)
    }
}

/// Where a container is cut.
#[derive(Clone, Copy, Debug)]
struct Cut {
    /// The block in which the cut lies.
    index: u64,
    /// The first block that is gone.
    first: u64,
    /// The first block of 4 KiB that is gone, below leaves that are split.
    fine: u64,
}

impl Cut {
    fn at(size_bytes: u64, anode: &Anode) -> Cut {
        Cut {
            index: size_bytes / anode.block_bytes(),
            first: size_bytes.div_ceil(anode.block_bytes()),
            fine: size_bytes.div_ceil(1 << FINE_SHIFT),
        }
    }
}

impl Store {
    /// Frees the blocks that lie past the first `size_bytes`, from the end, as many as one
    /// transaction can. Returns whether all are gone; if not, call again in another transaction.
    pub(crate) fn truncate_blocks(
        &self,
        change: &mut Change<'_>,
        anode: &mut Anode,
        size_bytes: u64,
        content: Content,
    ) -> FsResult<bool> {
        let cut = Cut::at(size_bytes, anode);
        let mut step = Step::new(change);
        let is_done = self.truncate_root(change, anode, cut, content, &mut step)?;
        change.free(&step.extents)?;
        if planted::is(Planted::DoubleFree) {
            change.free(&step.extents)?;
        }
        Ok(is_done)
    }

    fn truncate_root(
        &self,
        change: &mut Change<'_>,
        anode: &mut Anode,
        cut: Cut,
        content: Content,
        step: &mut Step,
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
                Outcome::Gone => anode.set_root_pointer(slot, None),
                Outcome::Kept => {}
                Outcome::Stopped => return Ok(false),
            }
        }
        if cut.first == 0 && (0..8).all(|slot| anode.root_pointer(slot).is_none()) {
            anode.height = 0;
        }
        Ok(true)
    }

    /// Frees what `pointer`, `height` levels above the blocks and beginning at block `base`, leads
    /// to past the cut.
    #[expect(clippy::too_many_arguments, reason = "one recursion, all of it changes on the way")]
    fn truncate_below(
        &self,
        change: &mut Change<'_>,
        anode: &mut Anode,
        pointer: BlockPointer,
        height: u8,
        base: u64,
        cut: Cut,
        content: Content,
        step: &mut Step,
    ) -> FsResult<Outcome> {
        if height == 0 && base < cut.first {
            return Ok(Outcome::Kept);
        }
        if height == 0 {
            return match content {
                Content::Data => {
                    let shift = anode.block_shift;
                    self.free_data(change, anode, pointer, shift, step)
                }
                Content::Pages(kind) => self.free_content(change, anode, pointer, base, kind),
            };
        }
        let level = height - 1;
        let owner = map_owner(anode, base, level);
        let span = span_of_pointer(level);
        let lowest = if cut.index <= base { 0 } else { page_slot(cut.index, level) };
        let page = MapPage::new(pointer.place, owner);
        let is_split = content == Content::Data && level == 0 && page.is_split(self, change)?;
        let slots = if is_split { lowest..lowest } else { lowest..index_wide(POINTERS_PER_PAGE) };
        // A leaf that clones hold too and of which nothing is left is not copied to be emptied: in
        // one step all that it leads to is given up, or nothing.
        let is_planted = planted::is(Planted::LeafCopiedToEmpty);
        let is_whole = level == 0 && !is_split && cut.first <= base && !is_planted;
        let is_left_as_is = is_whole && change.is_shared(page.place, PageKind::Map, owner)?;
        if is_left_as_is && !step.has_room_for_leaf(change.page_count()) {
            return Ok(Outcome::Stopped);
        }
        if is_split && !self.truncate_split(change, anode, page, cut, step)? {
            return Ok(Outcome::Stopped);
        }
        for slot in slots.rev() {
            let Some(child) = page.pointer(self, Some(change), slot)? else { continue };
            let child_base = base + wide(slot) * span;
            let outcome =
                self.truncate_below(change, anode, child, level, child_base, cut, content, step)?;
            match outcome {
                Outcome::Gone if is_left_as_is => {}
                Outcome::Gone => {
                    set_pointer(page.edit(change)?, slot, None);
                }
                // A leaf that was left as it is has room for all: what stops has no business there.
                Outcome::Stopped if is_left_as_is => {
                    page.edit(change)?;
                    return Ok(Outcome::Stopped);
                }
                Outcome::Kept => {}
                Outcome::Stopped => return Ok(Outcome::Stopped),
            }
        }
        if cut.first > base {
            return Ok(Outcome::Kept);
        }
        change.free_page(pointer.place, PageKind::Map, owner)?;
        take_off(&mut anode.fragments, u64::from(pointer.fragments), DefectCode::AN004)?;
        Ok(Outcome::Gone)
    }

    /// Frees the blocks that lie wholly in `range`, from its front, as many as one transaction can.
    /// Returns where to go on in another transaction; `None`: all are gone. The map pages stay.
    pub(crate) fn punch_blocks(
        &self,
        change: &mut Change<'_>,
        anode: &mut Anode,
        range: Range<u64>,
    ) -> FsResult<Option<u64>> {
        let mut step = Step::new(change);
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

    /// Frees the blocks of 4 KiB below the split leaf `above` that lie past the cut, and the fine
    /// leaves that hold no others. Returns whether all are gone.
    fn truncate_split(
        &self,
        change: &mut Change<'_>,
        anode: &mut Anode,
        above: MapPage,
        cut: Cut,
        step: &mut Step,
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
                if matches!(outcome, Outcome::Stopped) {
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

    /// Gives up a block of a file, of `1 << shift` bytes, and the room that is reserved for it.
    fn free_data(
        &self,
        change: &mut Change<'_>,
        anode: &mut Anode,
        pointer: BlockPointer,
        shift: u8,
        step: &mut Step,
    ) -> FsResult<Outcome> {
        if !step.take_unit(pointer.stored(), change.page_count()) {
            return Ok(Outcome::Stopped);
        }
        self.count_reserved(change, anode, shift, Some(pointer), None)?;
        take_off(&mut anode.fragments, u64::from(pointer.fragments), DefectCode::AN004)?;
        Ok(Outcome::Gone)
    }

    /// Gives up page `index` of a container of pages.
    fn free_content(
        &self,
        change: &mut Change<'_>,
        anode: &mut Anode,
        pointer: BlockPointer,
        index: u64,
        kind: PageKind,
    ) -> FsResult<Outcome> {
        if !Step::has_room_for_page(change.page_count()) {
            return Ok(Outcome::Stopped);
        }
        change.free_page(pointer.place, kind, content_owner(anode, index))?;
        take_off(&mut anode.pages, 1, DefectCode::AN005)?;
        take_off(&mut anode.fragments, u64::from(pointer.fragments), DefectCode::AN004)?;
        Ok(Outcome::Gone)
    }
}

/// CT1: takes what is freed off a count of the anode.
pub(crate) fn take_off(count: &mut u64, freed: u64, code: DefectCode) -> FsResult<()> {
    let rest = count.checked_sub(freed);
    *count =
        rest.ok_or_else(|| corrupt(code.found("an anode counts less than its map leads to")))?;
    Ok(())
}

/// What became of a pointer.
enum Outcome {
    /// All below it is freed, and so is it.
    Gone,
    /// Part of what it leads to lies before the cut.
    Kept,
    /// The step has done all it may.
    Stopped,
}
