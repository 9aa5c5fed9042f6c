//! Walk of one container's map: verifies every map page, claims every fragment, and passes pages of
//! content to a visitor.
//!
//! Only a first claim of a fragment is followed. So a cyclic map ends, and the work is bounded by
//! the fragments of the pool.
//!
//! A block shared with a snapshot was verified through the snapshot's pointer. If the page with the
//! pointer is shared too, that is the same pointer. In a page of the fileset's own the pointer was
//! written separately and may be wrong, so the block is verified against this pointer as well.

use format::anode::{Anode, StorageMode};
use format::fileset::Cursor;
use format::ids::Place;
use format::map::{
    COARSE_SHIFT, FINE_LEVEL, FINE_PER_COARSE, FINE_SHIFT, POINTERS_PER_PAGE, ROOT_POINTERS,
    is_split, pointer_at, span_of_pointer,
};
use format::page::{PageBytes, PageKind, PageOwner};
use format::pointer::{BlockPointer, CheckKind};

use crate::context::{Check, UncheckedBlock};
use crate::convert::{to_u64, to_usize};
use crate::reader::PageRequest;
use crate::space::{FragmentClaim, FragmentUse};
use format::defect::{DefectCode, Subject};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MapContent {
    Pages(PageKind),
    Data,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct MapWalkTotals {
    /// Fragments of blocks and map pages, reserved ones included.
    pub(crate) fragments: u64,
    pub(crate) blocks: u64,
    pub(crate) is_whole: bool,
}

/// Visitor of pages, with their index and pointer.
pub(crate) type Visit<'visit, 'run> = &'visit mut dyn FnMut(&mut Check<'run>, &Indexed, &PageBytes);

/// A pointer and the first block that it covers.
pub type Indexed = (u64, BlockPointer);

struct MapWalk<'walk> {
    anode: &'walk Anode,
    content: MapContent,
    subject: Subject,
    walked: MapWalkTotals,
    /// For a deleted fileset: everything at or before this is freed and skipped.
    past: Option<FreedCursor>,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct FreedCursor {
    pub(crate) container: u64,
    pub(crate) cursor: Cursor,
    /// Whether to verify the bytes of blocks; false for a fileset being freed.
    pub(crate) has_bytes: bool,
}

impl MapWalk<'_> {
    /// Returns whether the target of a pointer to `blocks` blocks of `1 << shift` bytes is freed.
    fn is_freed(&self, first: u64, blocks: u64, shift: u8, height: u8) -> bool {
        let at = |past: FreedCursor| Cursor::at(past.container, (first, blocks), shift, height);
        self.past.is_some_and(|past| at(past) <= past.cursor)
    }

    fn not_freed(&self, pointers: &[Indexed], level: u8) -> Vec<Indexed> {
        let shift = match self.content {
            MapContent::Data => self.anode.block_shift,
            MapContent::Pages(_) => FINE_SHIFT,
        };
        let height = Cursor::height_of(level);
        let span = span_of_pointer(level);
        let is_kept = |(first, _): &&Indexed| !self.is_freed(*first, span, shift, height);
        pointers.iter().filter(is_kept).copied().collect()
    }
}

pub(crate) fn subject_of(anode: &Anode) -> Subject {
    Subject { fileset: anode.fileset, anode: anode.number }
}

/// Returns the pointers in the anode.
pub fn root_pointers(anode: &Anode) -> Vec<Indexed> {
    if anode.storage == StorageMode::Inline {
        return Vec::new();
    }
    let span = span_of_pointer(anode.height);
    let slots = 0..to_usize(ROOT_POINTERS);
    slots
        .filter_map(|slot| Some((to_u64(slot).saturating_mul(span), anode.root_pointer(slot)?)))
        .collect()
}

pub(crate) fn page_pointers(page: &PageBytes, first: u64, level: u8) -> Vec<Indexed> {
    let span = span_of_pointer(level);
    let slots = 0..to_usize(POINTERS_PER_PAGE);
    slots
        .filter_map(|slot| {
            let index = first.saturating_add(to_u64(slot).saturating_mul(span));
            Some((index, pointer_at(page, slot)?))
        })
        .collect()
}

/// Returns the pointers to fine leaves, each with its first 4 KiB block.
pub(crate) fn split_pointers(page: &PageBytes, first: u64) -> Vec<Indexed> {
    let first = first.saturating_mul(FINE_PER_COARSE);
    let slots = 0..to_usize(FINE_PER_COARSE);
    slots
        .filter_map(|slot| {
            let index = first.saturating_add(to_u64(slot) * POINTERS_PER_PAGE);
            Some((index, pointer_at(page, slot)?))
        })
        .collect()
}

/// Whether `anode` may have split leaves, and this one has no excess pointers (M3).
fn is_split_well(anode: &Anode, content: MapContent, page: &PageBytes) -> bool {
    let mut rest = to_usize(FINE_PER_COARSE)..to_usize(POINTERS_PER_PAGE);
    content == MapContent::Data
        && anode.block_shift == COARSE_SHIFT
        && rest.all(|slot| pointer_at(page, slot).is_none())
}

/// Returns the page expected under a pointer of `anode`, at `level` (0 for a page of content).
pub fn wanted_page(
    anode: &Anode,
    kind: PageKind,
    level: u8,
    (index, pointer): &Indexed,
) -> PageRequest {
    let owner = PageOwner { fileset: anode.fileset, anode: anode.number, index: *index, level };
    PageRequest { place: pointer.place, kind, owner: Some(owner) }
}

impl<'run> Check<'run> {
    pub(crate) fn walk(
        &mut self,
        anode: &Anode,
        content: MapContent,
        visit: Visit<'_, 'run>,
    ) -> MapWalkTotals {
        self.walk_past(anode, content, None, visit)
    }

    /// [`Check::walk`] without the part of the map that is freed.
    pub(crate) fn walk_past(
        &mut self,
        anode: &Anode,
        content: MapContent,
        past: Option<FreedCursor>,
        visit: Visit<'_, 'run>,
    ) -> MapWalkTotals {
        let walked = MapWalkTotals { is_whole: true, ..MapWalkTotals::default() };
        let mut walk = MapWalk { anode, content, subject: subject_of(anode), walked, past };
        let of_anode = self.is_own_page;
        self.pointers(&mut walk, &root_pointers(anode), (anode.height, of_anode), visit);
        self.is_own_page = of_anode;
        walk.walked
    }

    /// Follows pointers from `level` above the blocks. `is_own` is false in a page shared with
    /// another fileset.
    fn pointers(
        &mut self,
        walk: &mut MapWalk<'_>,
        pointers: &[Indexed],
        (level, is_own): (u8, bool),
        visit: Visit<'_, 'run>,
    ) {
        let kept;
        let pointers = if walk.past.is_some() {
            kept = walk.not_freed(pointers, level);
            &kept[..]
        } else {
            pointers
        };
        let kind = match (level, walk.content) {
            (0, MapContent::Data) => {
                return self.blocks(walk, pointers, (walk.anode.block_shift, is_own));
            }
            (0, MapContent::Pages(kind)) => kind,
            _ => PageKind::Map,
        };
        let (anode, page_level) = (walk.anode, level.saturating_sub(1));
        let claim = |indexed| Some((indexed, self.claim_page(walk, indexed)?));
        let claimed: Vec<(&Indexed, bool)> = pointers.iter().filter_map(claim).collect();
        let page_of = |pointer| wanted_page(anode, kind, page_level, pointer);
        let wanted: Vec<PageRequest> =
            claimed.iter().map(|(pointer, _)| page_of(pointer)).collect();
        if level == 0 {
            walk.walked.blocks += to_u64(pointers.len());
        }
        let mut asked = self.ask(&wanted);
        for (position, ((indexed, is_own), wanted)) in claimed.into_iter().zip(&wanted).enumerate()
        {
            match self.asked(&mut asked, position, wanted) {
                Ok(page) if level == 0 => {
                    self.report.totals.pages += 1;
                    self.is_own_page = is_own;
                    visit(self, indexed, &page);
                }
                Ok(page) if page_level == 0 && is_split(&page) => {
                    self.report.totals.pages += 1;
                    self.split_leaf(walk, indexed.1.place, indexed.0, &page);
                }
                Ok(page) => {
                    self.report.totals.pages += 1;
                    let below = page_pointers(&page, indexed.0, page_level);
                    self.pointers(walk, &below, (page_level, is_own), visit);
                }
                Err(error) => {
                    walk.walked.is_whole = false;
                    self.bad_page(walk.subject, indexed.1.place, error);
                }
            }
        }
    }

    fn split_leaf(&mut self, walk: &mut MapWalk<'_>, place: Place, first: u64, page: &PageBytes) {
        if !is_split_well(walk.anode, walk.content, page) {
            let what = format!("the map page from block {first} on is split, which it can't be");
            walk.walked.is_whole = false;
            self.is_incomplete = true;
            self.defect(DefectCode::MP003, walk.subject, Some(place), what);
            return;
        }
        let anode = walk.anode;
        let mut leaves = split_pointers(page, first);
        let height = Cursor::FINE_LEAF_HEIGHT;
        let is_freed = |fine| walk.is_freed(fine, POINTERS_PER_PAGE, FINE_SHIFT, height);
        leaves.retain(|(fine, _)| !is_freed(*fine));
        let claim = |indexed| Some((indexed, self.claim_page(walk, indexed)?));
        let claimed: Vec<(&Indexed, bool)> = leaves.iter().filter_map(claim).collect();
        let page_of = |pointer| wanted_page(anode, PageKind::Map, FINE_LEVEL, pointer);
        let wanted: Vec<PageRequest> =
            claimed.iter().map(|(pointer, _)| page_of(pointer)).collect();
        let mut asked = self.ask(&wanted);
        for (position, ((_, is_own), wanted)) in claimed.into_iter().zip(&wanted).enumerate() {
            match self.asked(&mut asked, position, wanted) {
                Ok(page) => {
                    self.report.totals.pages += 1;
                    let index = wanted.owner.map_or(0, |owner| owner.index);
                    let mut blocks = page_pointers(&page, index, 0);
                    blocks.retain(|(fine, _)| !walk.is_freed(*fine, 1, FINE_SHIFT, 0));
                    self.blocks(walk, &blocks, (FINE_SHIFT, is_own));
                }
                Err(error) => {
                    walk.walked.is_whole = false;
                    self.bad_page(walk.subject, wanted.place, error);
                }
            }
        }
    }

    /// Claims a page. Returns whether it is this fileset's alone; `None` if it must not be read.
    fn claim_page(&mut self, walk: &mut MapWalk<'_>, (index, pointer): &Indexed) -> Option<bool> {
        let fragments = self.reader.geometry.page_fragments();
        let is_page = pointer.check_kind == CheckKind::Page && pointer.fragments == fragments;
        if !is_page || !pointer.is_plain() || pointer.is_reserved {
            let what = format!("pointer to page {index} is not one to a page: {pointer:?}");
            self.refuse(walk, pointer, what);
            return None;
        }
        walk.walked.fragments += u64::from(fragments);
        match self.claim(FragmentUse::Page, pointer, walk.subject) {
            FragmentClaim::First => Some(true),
            FragmentClaim::Shared => Some(false),
            FragmentClaim::Refused => {
                walk.walked.is_whole = false;
                self.is_incomplete = true;
                None
            }
        }
    }

    fn refuse(&mut self, walk: &mut MapWalk<'_>, pointer: &BlockPointer, what: String) {
        walk.walked.is_whole = false;
        self.is_incomplete = true;
        self.defect(DefectCode::MP003, walk.subject, Some(pointer.place), what);
    }

    /// Claims blocks of `1 << shift` bytes, and queues them for verification, but not shared blocks
    /// with pointers in a shared page.
    fn blocks(
        &mut self,
        walk: &mut MapWalk<'_>,
        pointers: &[Indexed],
        (shift, is_own): (u8, bool),
    ) {
        let has_bytes = self.options.data && walk.past.is_none_or(|past| past.has_bytes);
        for indexed in pointers {
            let claim = self.claim_block(walk, indexed, shift);
            let is_read = claim == FragmentClaim::First || claim == FragmentClaim::Shared && is_own;
            if has_bytes && is_read {
                let &(index, pointer) = indexed;
                self.wait_for_block(UncheckedBlock { subject: walk.subject, index, pointer });
            }
        }
    }

    fn claim_block(
        &mut self,
        walk: &mut MapWalk<'_>,
        (index, pointer): &Indexed,
        shift: u8,
    ) -> FragmentClaim {
        let block_bytes = 1 << shift;
        let fragment_shift = self.reader.geometry.fragment_shift;
        let reserved = u64::from(pointer.reserved_fragments(shift, fragment_shift));
        self.space.fragments_reserved += if self.is_snapshot { 0 } else { reserved };
        walk.walked.fragments += reserved;
        if pointer.stored().is_none() {
            return FragmentClaim::Refused;
        }
        let stored = u64::from(pointer.fragments) * self.reader.geometry.fragment_bytes();
        let is_data = matches!(pointer.check_kind, CheckKind::Whole | CheckKind::Quarters);
        if !is_data || !pointer.is_plain() || stored > block_bytes {
            let what = format!("block {index}: {pointer:?} in blocks of {block_bytes} bytes");
            self.refuse(walk, pointer, what);
            return FragmentClaim::Refused;
        }
        // A file in the orphan list may have blocks past its end (F2).
        let is_past = *index >= walk.anode.size_bytes.div_ceil(block_bytes);
        if is_past && walk.anode.orphan_slot.is_none() {
            let size = walk.anode.size_bytes;
            let what = format!("block {index} of {block_bytes} bytes in a file of {size}");
            self.defect(DefectCode::MP004, walk.subject, Some(pointer.place), what);
        }
        walk.walked.blocks += 1;
        walk.walked.fragments += u64::from(pointer.fragments);
        self.report.totals.blocks += 1;
        self.claim(FragmentUse::Block, pointer, walk.subject)
    }

    pub(crate) fn compare_counts(
        &mut self,
        anode: &Anode,
        content: MapContent,
        walked: &MapWalkTotals,
    ) {
        if !walked.is_whole {
            return;
        }
        let subject = subject_of(anode);
        if anode.fragments != walked.fragments {
            let what = format!("says {} fragments, has {}", anode.fragments, walked.fragments);
            self.defect(DefectCode::AN004, subject, None, what);
        }
        if content != MapContent::Data && anode.pages != walked.blocks {
            let what = format!("says {} pages, has {}", anode.pages, walked.blocks);
            self.defect(DefectCode::AN005, subject, None, what);
        }
    }
}
