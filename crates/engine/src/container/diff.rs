//! Differences of two versions of a container. Read-only: walks both maps and skips shared pages.
//!
//! # Invariants
//!
//! - VD1: Each block or page that only one version has, or that has different places, is reported.
//!   At the same place, versions share the page or block and all below it.
//! - VD2: Reports are in ascending order.

use std::ops::{ControlFlow, Range};

use format::anode::{Anode, StorageMode};
use format::ids::Place;
use format::map::{POINTERS_PER_PAGE, ROOT_POINTERS, pointer_at, span_of_pointer};
use format::page::PageKind;
use format::pointer::BlockPointer;

use super::data::PointerRange;
use super::map_owner;
use crate::convert::{index_wide, wide};
use crate::error::FsResult;
use crate::store::{PageView, Store};

#[derive(Clone, Copy, Debug)]
pub(crate) struct ContainerVersions<'a> {
    before: Option<&'a Anode>,
    after: Option<&'a Anode>,
}

/// A page with different places in the versions.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ChangedPage {
    pub(crate) index: u64,
    pub(crate) before: Option<BlockPointer>,
    pub(crate) after: Option<BlockPointer>,
}

/// A file range with different places in the versions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ChangedRange {
    pub(crate) bytes: Range<u64>,
    /// Whether the range is a hole in the later version.
    pub(crate) is_hole: bool,
}

/// The part of one version's map in a range.
#[derive(Clone, Copy)]
pub(super) enum MapPart<'a> {
    Nothing,
    /// The root of a lower map, in this range or below its first slot.
    Whole(&'a Anode),
    Below(&'a Anode, BlockPointer),
}

impl<'a> MapPart<'a> {
    pub(super) fn of(anode: Option<&'a Anode>) -> MapPart<'a> {
        match anode {
            Some(anode) if anode.storage == StorageMode::Blocked => MapPart::Whole(anode),
            _ => MapPart::Nothing,
        }
    }

    pub(super) fn pointer(self) -> Option<BlockPointer> {
        match self {
            MapPart::Below(_, pointer) => Some(pointer),
            MapPart::Nothing | MapPart::Whole(_) => None,
        }
    }

    fn place(self) -> Option<Place> {
        self.pointer().map(|pointer| pointer.place)
    }

    pub(super) fn is_there(self) -> bool {
        !matches!(self, MapPart::Nothing)
    }

    /// Returns the map page `height` levels above the blocks.
    pub(super) fn page(
        self,
        store: &Store,
        base: u64,
        height: u8,
    ) -> FsResult<Option<PageView<'static>>> {
        let (MapPart::Below(anode, pointer), Some(level)) = (self, height.checked_sub(1)) else {
            return Ok(None);
        };
        let owner = map_owner(anode, base, level);
        store.view(None, pointer.place, PageKind::Map, owner).map(Some)
    }

    /// Returns the part in `slot` of `page`.
    pub(super) fn child(self, page: Option<&PageView<'_>>, height: u8, slot: usize) -> MapPart<'a> {
        let pointer = match (self, page) {
            (MapPart::Whole(anode), _) if anode.height + 1 == height => {
                (slot < index_wide(ROOT_POINTERS)).then(|| anode.root_pointer(slot)).flatten()
            }
            (MapPart::Whole(_), _) if slot == 0 => return self,
            (MapPart::Below(..), Some(page)) => pointer_at(page, slot),
            _ => None,
        };
        match (self, pointer) {
            (MapPart::Whole(anode) | MapPart::Below(anode, _), Some(pointer)) => {
                MapPart::Below(anode, pointer)
            }
            _ => MapPart::Nothing,
        }
    }
}

impl<'a> ContainerVersions<'a> {
    /// Pairs two versions. An earlier version of another file (other generation) is ignored.
    pub(crate) fn new(
        before: Option<&'a Anode>,
        after: Option<&'a Anode>,
    ) -> ContainerVersions<'a> {
        let is_one = |before: &&Anode| after.is_none_or(|after| is_one_file(before, after));
        ContainerVersions { before: before.filter(is_one), after }
    }
}

pub(crate) fn is_one_file(before: &Anode, after: &Anode) -> bool {
    before.generation == after.generation
        && before.kind == after.kind
        && before.block_shift == after.block_shift
}

impl Store {
    /// Reports the blocks that may differ, leaf by leaf, from block `from` on.
    fn differing_leaves(
        &self,
        versions: ContainerVersions<'_>,
        from: u64,
        tell: &mut dyn FnMut(Range<u64>) -> FsResult<ControlFlow<()>>,
    ) -> FsResult<ControlFlow<()>> {
        let height = |anode: Option<&Anode>| anode.map_or(0, |anode| anode.height);
        let top = height(versions.before).max(height(versions.after)) + 1;
        let both = (MapPart::of(versions.before), MapPart::of(versions.after));
        self.differing_below(both, (0, top), from, tell)
    }

    fn differing_below(
        &self,
        (before, after): (MapPart<'_>, MapPart<'_>),
        (base, height): (u64, u8),
        from: u64,
        tell: &mut dyn FnMut(Range<u64>) -> FsResult<ControlFlow<()>>,
    ) -> FsResult<ControlFlow<()>> {
        let end = base.saturating_add(span_of_pointer(height));
        let is_nothing = matches!((before, after), (MapPart::Nothing, MapPart::Nothing));
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

    /// Reports each differing page from page `from` on.
    pub(crate) fn differing_pages(
        &self,
        versions: ContainerVersions<'_>,
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

    /// Returns the first page from page `from` on, past any holes.
    pub(crate) fn next_page(
        &self,
        anode: &Anode,
        from: u64,
    ) -> FsResult<Option<(u64, BlockPointer)>> {
        let mut found = None;
        let _ =
            self.differing_pages(ContainerVersions::new(None, Some(anode)), from, &mut |page| {
                found = page.after.map(|pointer| (page.index, pointer));
                Ok(ControlFlow::Break(()))
            })?;
        Ok(found)
    }

    /// Reports each differing range within the later size, from byte `from` on.
    pub(crate) fn differing_ranges(
        &self,
        versions: ContainerVersions<'_>,
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

    fn ranges_below(
        &self,
        versions: ContainerVersions<'_>,
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
            let seek = |units: &[PointerRange], next: &mut usize| {
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
            let part = |unit: Option<PointerRange>| {
                let unit = unit?;
                unit.quarter_at(start, shift, fragment_shift).unwrap_or(unit).pointer
            };
            let (old, new) = (part(old), part(new));
            let key = |pointer: Option<BlockPointer>| pointer.map(|it| (it.place, it.fragments));
            if key(old) != key(new) {
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
