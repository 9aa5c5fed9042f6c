//! Access to single pointers of a map page, without copying and comparing the whole page.

use std::ops::Range;

use format::ids::Place;
use format::map::{FLAGS_RANGE, encode_pointer, first_pointer, pointers_range, says_split};
use format::page::{BIRTH_MAX_OFFSET, PageBytes, PageKind, PageOwner, read_u64, write_u64};
use format::pointer::{BlockPointer, POINTER_BYTES};

use crate::error::FsResult;
use crate::store::{Change, Store};

/// Flags and highest birth of the header, as whole words.
const HEADER_RANGE: Range<usize> = 16..BIRTH_MAX_OFFSET + 8;
const _: () = assert!(HEADER_RANGE.start <= FLAGS_RANGE.start);

#[derive(Clone, Copy, Debug)]
pub(crate) struct MapPage {
    pub(super) place: Place,
    pub(super) owner: PageOwner,
}

impl MapPage {
    pub(super) fn new(place: Place, owner: PageOwner) -> MapPage {
        MapPage { place, owner }
    }

    /// Returns pointer `slot` as seen by `change`, `None` for a hole.
    pub(super) fn pointer(
        self,
        store: &Store,
        change: Option<&Change<'_>>,
        slot: usize,
    ) -> FsResult<Option<BlockPointer>> {
        let at = (self.place, PageKind::Map, self.owner);
        store.peek(change, at, pointers_range(slot..slot + 1), first_pointer)
    }

    /// Returns pointer `slot`. For a pointer that is changed next: saves a lookup.
    pub(super) fn pointer_to_change(
        self,
        change: &mut Change<'_>,
        slot: usize,
    ) -> FsResult<Option<BlockPointer>> {
        Ok(first_pointer(self.edit_range(change, pointers_range(slot..slot + 1))?))
    }

    /// Returns whether the page is a split leaf, as seen by `change`.
    pub(super) fn is_split(self, store: &Store, change: &Change<'_>) -> FsResult<bool> {
        store.peek(Some(change), (self.place, PageKind::Map, self.owner), FLAGS_RANGE, says_split)
    }

    /// Returns the whole page, to set many pointers.
    pub(super) fn edit<'c>(self, change: &'c mut Change<'_>) -> FsResult<&'c mut PageBytes> {
        change.edit(self.place, PageKind::Map, self.owner)
    }

    pub(super) fn set(
        self,
        change: &mut Change<'_>,
        slot: usize,
        pointer: Option<&BlockPointer>,
    ) -> FsResult<()> {
        self.replace(change, slot..slot + 1, |_, _| pointer.copied())
    }

    /// Replaces pointers by `new(position, old)`.
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
