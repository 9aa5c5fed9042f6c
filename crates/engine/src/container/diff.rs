//! Where two versions of a container differ: a walk of both maps at once, which goes into no page
//! that both have at the same place. It changes nothing, and knows nothing of nodes: who asks says
//! which two anodes are versions of one container.
//!
//! # Invariants
//!
//! - VD1: Whatever one has and the other has not, or has elsewhere, is told: two versions have a
//!   page or block at the same place only if they share it, and then all below it.
//! - VD2: Indexes rise.

use std::ops::{ControlFlow, Range};

use format::anode::{Anode, StorageMode};
use format::ids::Place;
use format::map::{POINTERS_PER_PAGE, ROOT_POINTERS, pointer_at, span_of_pointer};
use format::page::PageKind;
use format::pointer::BlockPointer;
use runtime::planted::{self, Planted};

use super::data::Unit;
use super::map_owner;
use crate::convert::{index_wide, wide};
use crate::error::FsResult;
use crate::store::{Store, View};

/// Two versions of one container; `None`: there is none.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Versions<'a> {
    before: Option<&'a Anode>,
    after: Option<&'a Anode>,
}

/// A page of a container that the two versions have at different places.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ChangedPage {
    pub(crate) index: u64,
    pub(crate) before: Option<BlockPointer>,
    pub(crate) after: Option<BlockPointer>,
}

/// A range of a file that the two versions have at different places.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ChangedRange {
    pub(crate) bytes: Range<u64>,
    /// Whether the later version reads as zeros there.
    pub(crate) is_hole: bool,
}

/// What one version has of a part of the map.
#[derive(Clone, Copy)]
pub(super) enum Part<'a> {
    Nothing,
    /// A map that is not so high: all of it, or nothing, lies here.
    Whole(&'a Anode),
    Below(&'a Anode, BlockPointer),
}

impl<'a> Part<'a> {
    pub(super) fn of(anode: Option<&'a Anode>) -> Part<'a> {
        match anode {
            Some(anode) if anode.storage == StorageMode::Blocked => Part::Whole(anode),
            _ => Part::Nothing,
        }
    }

    /// Returns the pointer that leads to it.
    pub(super) fn pointer(self) -> Option<BlockPointer> {
        match self {
            Part::Below(_, pointer) => Some(pointer),
            Part::Nothing | Part::Whole(_) => None,
        }
    }

    fn place(self) -> Option<Place> {
        self.pointer().map(|pointer| pointer.place)
    }

    /// Whether there may be anything.
    pub(super) fn is_there(self) -> bool {
        !matches!(self, Part::Nothing)
    }

    /// Returns the page that it leads to, `height` levels above the blocks, if it is one.
    pub(super) fn page(
        self,
        store: &Store,
        base: u64,
        height: u8,
    ) -> FsResult<Option<View<'static>>> {
        let (Part::Below(anode, pointer), Some(level)) = (self, height.checked_sub(1)) else {
            return Ok(None);
        };
        let owner = map_owner(anode, base, level);
        store.view(None, pointer.place, PageKind::Map, owner).map(Some)
    }

    /// Returns what is below it in `slot`; `page` is what it leads to.
    pub(super) fn child(self, page: Option<&View<'_>>, height: u8, slot: usize) -> Part<'a> {
        let pointer = match (self, page) {
            (Part::Whole(anode), _) if anode.height + 1 == height => {
                (slot < index_wide(ROOT_POINTERS)).then(|| anode.root_pointer(slot)).flatten()
            }
            (Part::Whole(_), _) if slot == 0 => return self,
            (Part::Below(..), Some(page)) => pointer_at(page, slot),
            _ => None,
        };
        match (self, pointer) {
            (Part::Whole(anode) | Part::Below(anode, _), Some(pointer)) => {
                Part::Below(anode, pointer)
            }
            _ => Part::Nothing,
        }
    }
}

impl<'a> Versions<'a> {
    /// Returns the two versions; of anodes that are not of one file only the later one counts.
    pub(crate) fn new(before: Option<&'a Anode>, after: Option<&'a Anode>) -> Versions<'a> {
        let is_one = |before: &&Anode| after.is_none_or(|after| is_one_file(before, after));
        Versions { before: before.filter(is_one), after }
    }
}

/// Whether two anodes of one number are versions of one file.
pub(crate) fn is_one_file(before: &Anode, after: &Anode) -> bool {
    before.generation == after.generation
        && before.kind == after.kind
        && before.block_shift == after.block_shift
}

impl Store {
    /// Tells of each range of blocks, from block `from` on, below whose leaf the versions may
    /// differ.
    fn differing_leaves(
        &self,
        versions: Versions<'_>,
        from: u64,
        tell: &mut dyn FnMut(Range<u64>) -> FsResult<ControlFlow<()>>,
    ) -> FsResult<ControlFlow<()>> {
        let height = |anode: Option<&Anode>| anode.map_or(0, |anode| anode.height);
        let top = height(versions.before).max(height(versions.after)) + 1;
        let both = (Part::of(versions.before), Part::of(versions.after));
        self.differing_below(both, (0, top), from, tell)
    }

    fn differing_below(
        &self,
        (before, after): (Part<'_>, Part<'_>),
        (base, height): (u64, u8),
        from: u64,
        tell: &mut dyn FnMut(Range<u64>) -> FsResult<ControlFlow<()>>,
    ) -> FsResult<ControlFlow<()>> {
        let end = base.saturating_add(span_of_pointer(height));
        let is_nothing = matches!((before, after), (Part::Nothing, Part::Nothing));
        let is_shared = before.place().is_some() && before.place() == after.place();
        if is_nothing || is_shared || end <= from {
            return Ok(ControlFlow::Continue(()));
        }
        if height == 1 {
            return tell(base.max(from)..end);
        }
        let pages = (before.page(self, base, height)?, after.page(self, base, height)?);
        for slot in 0..index_wide(POINTERS_PER_PAGE) {
            let children = (
                before.child(pages.0.as_ref(), height, slot),
                after.child(pages.1.as_ref(), height, slot),
            );
            let first = wide(slot).saturating_mul(span_of_pointer(height - 1));
            let below = (base.saturating_add(first), height - 1);
            if self.differing_below(children, below, from, tell)?.is_break() {
                return Ok(ControlFlow::Break(()));
            }
        }
        Ok(ControlFlow::Continue(()))
    }

    /// Tells of each page of a container of pages, from page `from` on, that the versions have at
    /// different places.
    pub(crate) fn differing_pages(
        &self,
        versions: Versions<'_>,
        from: u64,
        tell: &mut dyn FnMut(&ChangedPage) -> FsResult<ControlFlow<()>>,
    ) -> FsResult<ControlFlow<()>> {
        let pointer = |anode: Option<&Anode>, index| match anode {
            Some(anode) => self.block(None, anode, index),
            None => Ok(None),
        };
        self.differing_leaves(versions, from, &mut |leaf| {
            for index in leaf {
                let before = pointer(versions.before, index)?;
                let after = pointer(versions.after, index)?;
                let is_same = before.map(|it| it.place) == after.map(|it| it.place);
                if !is_same && tell(&ChangedPage { index, before, after })?.is_break() {
                    return Ok(ControlFlow::Break(()));
                }
            }
            Ok(ControlFlow::Continue(()))
        })
    }

    /// Returns the first page of a container from page `from` on, past whatever holes there are.
    pub(crate) fn next_page(
        &self,
        anode: &Anode,
        from: u64,
    ) -> FsResult<Option<(u64, BlockPointer)>> {
        let mut found = None;
        let _ = self.differing_pages(Versions::new(None, Some(anode)), from, &mut |page| {
            found = page.after.map(|pointer| (page.index, pointer));
            Ok(ControlFlow::Break(()))
        })?;
        Ok(found)
    }

    /// Tells of each range of a file's first bytes, as many as its later version has, that the
    /// versions have at different places, from byte `from` on.
    pub(crate) fn differing_ranges(
        &self,
        versions: Versions<'_>,
        from: u64,
        tell: &mut dyn FnMut(ChangedRange) -> FsResult<ControlFlow<()>>,
    ) -> FsResult<ControlFlow<()>> {
        let Some(after) = versions.after.filter(|it| it.storage == StorageMode::Blocked) else {
            return Ok(ControlFlow::Continue(()));
        };
        let (shift, size) = (after.block_shift, after.size_bytes);
        self.differing_leaves(versions, from >> shift, &mut |leaf| {
            let start = leaf.start.saturating_mul(1 << shift).max(from);
            let end = leaf.end.saturating_mul(1 << shift).min(size);
            if start >= end {
                return Ok(ControlFlow::Continue(()));
            }
            for range in self.ranges_below(versions, after, start..end)? {
                if tell(range)?.is_break() {
                    return Ok(ControlFlow::Break(()));
                }
            }
            Ok(ControlFlow::Continue(()))
        })
    }

    /// Returns what of `bytes`, which lie below one leaf, the versions have at different places.
    fn ranges_below(
        &self,
        versions: Versions<'_>,
        after: &Anode,
        bytes: Range<u64>,
    ) -> FsResult<Vec<ChangedRange>> {
        let earlier = match versions.before {
            Some(before) => self.units(before, bytes.start, bytes.end)?,
            None => Vec::new(),
        };
        let later = self.units(after, bytes.start, bytes.end)?;
        let fragment_shift = self.geometry().fragment_shift;
        let mut ranges: Vec<ChangedRange> = Vec::new();
        let (mut at, mut before, mut now) = (bytes.start, 0, 0);
        while at < bytes.end {
            let seek = |units: &[Unit], next: &mut usize| {
                while units.get(*next).is_some_and(|unit| unit.end() <= at) {
                    *next += 1;
                }
                units.get(*next).copied().filter(|unit| unit.start <= at)
            };
            let (old, new) = (seek(&earlier, &mut before), seek(&later, &mut now));
            let shift = [old, new].iter().flatten().map(|unit| unit.shift).min();
            let shift = shift.unwrap_or(after.block_shift);
            let start = at >> shift << shift;
            let end = (start + (1 << shift)).min(bytes.end);
            let part = |unit: Option<Unit>| {
                let unit = unit?;
                unit.quarter_at(start, shift, fragment_shift).unwrap_or(unit).pointer
            };
            let (old, new) = (part(old), part(new));
            let key = |pointer: Option<BlockPointer>| pointer.map(|it| (it.place, it.fragments));
            let is_same = if planted::is(Planted::DiffComparesWholeBlocks) {
                old.is_some() == new.is_some()
            } else {
                key(old) == key(new)
            };
            if !is_same {
                let is_hole = new.is_none();
                match ranges.last_mut() {
                    Some(last) if last.bytes.end == at && last.is_hole == is_hole => {
                        last.bytes.end = end;
                    }
                    _ => ranges.push(ChangedRange { bytes: at..end, is_hole }),
                }
            }
            at = end;
        }
        Ok(ranges)
    }
}
