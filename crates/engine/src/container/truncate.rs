//! Freeing what lies past a block: in bounded steps, so that a large file costs many small
//! transactions and a crash between two of them loses nothing but time.

use format::anode::Anode;
use format::ids::Place;
use format::map::{
    POINTERS_PER_PAGE, capacity_of_height, page_slot, pointer_at, root_slot, set_pointer,
    span_of_pointer,
};
use format::page::PageKind;
use format::pointer::BlockPointer;

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
struct Step {
    pointers: usize,
    extents: Vec<Extent>,
    groups: Vec<u32>,
}

impl Step {
    /// Whether the step may free one more block; if so, it is noted.
    fn take(&mut self, place: Place, fragments: u32, pages: usize) -> bool {
        let joins = self.extents.last().is_some_and(|last| {
            last.place.group() == place.group()
                && (last.place.advance(last.fragments) == place
                    || place.advance(fragments) == last.place)
        });
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
            Some(last) if joins => {
                if place < last.place {
                    last.place = place;
                }
                last.fragments += fragments;
            }
            _ => self.extents.push(Extent { place, fragments }),
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

impl Store {
    /// Frees blocks at and past `first`, from the end, as many as one transaction can. Returns
    /// whether all are gone; if not, call again in another transaction.
    pub(crate) fn truncate_blocks(
        &self,
        change: &mut Change<'_>,
        anode: &mut Anode,
        first: u64,
        content: Content,
    ) -> FsResult<bool> {
        let mut step =
            Step { pointers: POINTERS_PER_STEP, extents: Vec::new(), groups: Vec::new() };
        let is_done = self.truncate_root(change, anode, first, content, &mut step)?;
        for extent in step.extents {
            change.free(extent)?;
        }
        Ok(is_done)
    }

    fn truncate_root(
        &self,
        change: &mut Change<'_>,
        anode: &mut Anode,
        first: u64,
        content: Content,
        step: &mut Step,
    ) -> FsResult<bool> {
        if first >= capacity_of_height(anode.height) {
            return Ok(true);
        }
        let lowest = root_slot(first, anode.height);
        for slot in (lowest..8).rev() {
            let Some(pointer) = anode.root_pointer(slot) else { continue };
            let base = wide(slot) * span_of_pointer(anode.height);
            let height = anode.height;
            let is_gone =
                self.truncate_below(change, anode, pointer, height, base, first, content, step)?;
            match is_gone {
                Outcome::Gone => anode.set_root_pointer(slot, None),
                Outcome::Kept => {}
                Outcome::Stopped => return Ok(false),
            }
        }
        if first == 0 && (0..8).all(|slot| anode.root_pointer(slot).is_none()) {
            anode.height = 0;
        }
        Ok(true)
    }

    /// Frees what `pointer`, `height` levels above the blocks and beginning at block `base`, leads
    /// to at and past `first`.
    #[expect(clippy::too_many_arguments, reason = "one recursion, all of it changes on the way")]
    fn truncate_below(
        &self,
        change: &mut Change<'_>,
        anode: &mut Anode,
        pointer: BlockPointer,
        height: u8,
        base: u64,
        first: u64,
        content: Content,
        step: &mut Step,
    ) -> FsResult<Outcome> {
        if height == 0 {
            return self.free_block(change, anode, pointer, base, content, step);
        }
        let level = height - 1;
        let owner = map_owner(anode, base, level);
        let span = span_of_pointer(level);
        let lowest = if first <= base { 0 } else { page_slot(first, level) };
        for slot in (lowest..index_wide(POINTERS_PER_PAGE)).rev() {
            let child = {
                let page = self.view(Some(change), pointer.place, PageKind::Map, owner)?;
                pointer_at(&page, slot)
            };
            let Some(child) = child else { continue };
            let child_base = base + wide(slot) * span;
            let outcome =
                self.truncate_below(change, anode, child, level, child_base, first, content, step)?;
            match outcome {
                Outcome::Gone => {
                    set_pointer(change.edit(pointer.place, PageKind::Map, owner)?, slot, None);
                }
                Outcome::Kept => {}
                Outcome::Stopped => return Ok(Outcome::Stopped),
            }
        }
        if first > base {
            return Ok(Outcome::Kept);
        }
        change.free_page(pointer.place, PageKind::Map, owner)?;
        take_off(&mut anode.fragments, u64::from(pointer.fragments))?;
        Ok(Outcome::Gone)
    }

    fn free_block(
        &self,
        change: &mut Change<'_>,
        anode: &mut Anode,
        pointer: BlockPointer,
        index: u64,
        content: Content,
        step: &mut Step,
    ) -> FsResult<Outcome> {
        let pages = change.page_count();
        match content {
            Content::Data => {
                if !step.take(pointer.place, pointer.fragments, pages) {
                    return Ok(Outcome::Stopped);
                }
            }
            Content::Pages(kind) => {
                if pages > PAGES_PER_STEP {
                    return Ok(Outcome::Stopped);
                }
                change.free_page(pointer.place, kind, content_owner(anode, index))?;
                take_off(&mut anode.pages, 1)?;
            }
        }
        take_off(&mut anode.fragments, u64::from(pointer.fragments))?;
        Ok(Outcome::Gone)
    }
}

/// C1: takes what is freed off a count of the anode.
pub(crate) fn take_off(count: &mut u64, freed: u64) -> FsResult<()> {
    let rest = count.checked_sub(freed);
    *count = rest.ok_or_else(|| corrupt("AN005: an anode counts less than its map leads to"))?;
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
