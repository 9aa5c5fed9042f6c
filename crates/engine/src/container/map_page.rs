//! One map page as a change sees it: a pointer is looked at and set alone, for what a change takes
//! of a page is copied, and compared at its end.

use std::ops::Range;

use format::ids::Place;
use format::map::{FLAGS_RANGE, encode_pointer, first_pointer, pointers_range, says_split};
use format::page::{BIRTH_MAX_OFFSET, PageBytes, PageKind, PageOwner, read_u64, write_u64};
use format::pointer::{BlockPointer, POINTER_BYTES};

use crate::error::FsResult;
use crate::store::{Change, Store};

/// Bytes of the header that a change takes together, whole words: the flags and the highest birth.
const HEADER_RANGE: Range<usize> = 16..BIRTH_MAX_OFFSET + 8;
const _: () = assert!(HEADER_RANGE.start <= FLAGS_RANGE.start);

/// Where a map page is, and whose it is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MapPage {
    pub(super) place: Place,
    pub(super) owner: PageOwner,
}

impl MapPage {
    pub(super) fn new(place: Place, owner: PageOwner) -> MapPage {
        MapPage { place, owner }
    }

    /// Returns pointer `slot` as `change` sees it, or as everyone does; `None` for a hole.
    pub(super) fn pointer(
        self,
        store: &Store,
        change: Option<&Change<'_>>,
        slot: usize,
    ) -> FsResult<Option<BlockPointer>> {
        let at = (self.place, PageKind::Map, self.owner);
        store.peek(change, at, pointers_range(slot..slot + 1), first_pointer)
    }

    /// Returns pointer `slot` as `change` sees it, which goes on to change the page: where it has
    /// some of the page already, nobody looks for it again.
    pub(super) fn pointer_to_change(
        self,
        change: &mut Change<'_>,
        slot: usize,
    ) -> FsResult<Option<BlockPointer>> {
        Ok(first_pointer(self.edit_range(change, pointers_range(slot..slot + 1))?))
    }

    /// Whether the page is a leaf that is split, as `change` sees it.
    pub(super) fn is_split(self, store: &Store, change: &Change<'_>) -> FsResult<bool> {
        store.peek(Some(change), (self.place, PageKind::Map, self.owner), FLAGS_RANGE, says_split)
    }

    /// Returns the whole page, to change: for whoever sets many of its pointers.
    pub(super) fn edit<'c>(self, change: &'c mut Change<'_>) -> FsResult<&'c mut PageBytes> {
        change.edit(self.place, PageKind::Map, self.owner)
    }

    /// Sets pointer `slot`.
    pub(super) fn set(
        self,
        change: &mut Change<'_>,
        slot: usize,
        pointer: Option<&BlockPointer>,
    ) -> FsResult<()> {
        self.replace(change, slot..slot + 1, |_, _| pointer.copied())
    }

    /// Sets each pointer of `slots` to what `new` says, which is told how many lie before it in
    /// `slots`, and what it was.
    pub(super) fn replace(
        self,
        change: &mut Change<'_>,
        slots: Range<usize>,
        mut new: impl FnMut(usize, Option<BlockPointer>) -> Option<BlockPointer>,
    ) -> FsResult<()> {
        let bytes = self.edit_range(change, pointers_range(slots))?;
        for (nth, field) in bytes.as_chunks_mut::<POINTER_BYTES>().0.iter_mut().enumerate() {
            *field = encode_pointer(new(nth, BlockPointer::decode(field)).as_ref());
        }
        Ok(())
    }

    /// Raises the highest birth that the header tells of to that of `change`.
    pub(super) fn raise_birth_max(self, change: &mut Change<'_>) -> FsResult<()> {
        let birth = change.epoch().0;
        let header = self.edit_range(change, HEADER_RANGE)?;
        let at = BIRTH_MAX_OFFSET - HEADER_RANGE.start;
        if read_u64(header, at) < birth {
            write_u64(header, at, birth);
        }
        Ok(())
    }

    fn edit_range<'c>(
        self,
        change: &'c mut Change<'_>,
        range: Range<usize>,
    ) -> FsResult<&'c mut [u8]> {
        change.edit_range(self.place, PageKind::Map, self.owner, range)
    }
}
