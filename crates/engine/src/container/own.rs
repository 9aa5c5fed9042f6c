//! The pages that only one version of a container has. A read-only walk over all maps skips shared
//! parts.
//!
//! Each level of the walk reads ahead exactly the pages that it needs on the next.
//!
//! # Invariants
//!
//! - OW1: A page is reported unless it was born in the shared epoch or before, or another version
//!   has the page, or a map page above it, at the same place.
//! - OW2: Reports are in ascending order.

use std::ops::ControlFlow;

use format::anode::Anode;
use format::ids::Epoch;
use format::map::{POINTERS_PER_PAGE, span_of_pointer};
use format::pointer::BlockPointer;

use super::diff::MapPart;
use crate::convert::{index_wide, wide};
use crate::error::FsResult;
use crate::store::{PageView, Store};

/// Divisor of the cache size that limits one readahead.
const CACHE_SHARE: usize = 8;

/// A version whose exclusive pages are searched, and the other versions.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ExclusivePageSearch<'a> {
    pub(crate) anode: &'a Anode,
    /// An earlier version has everything born in this epoch or before.
    pub(crate) shared_epoch: Epoch,
    pub(crate) others: &'a [Anode],
}

type ExclusivePageCallback<'t> = &'t mut dyn FnMut(u64, &BlockPointer) -> FsResult<ControlFlow<()>>;

/// One range of the map, in each version.
struct VersionParts<'a> {
    own: MapPart<'a>,
    others: Vec<MapPart<'a>>,
}

struct VersionPages {
    own: Option<PageView<'static>>,
    others: Vec<Option<PageView<'static>>>,
}

impl<'a> VersionParts<'a> {
    fn pages(&self, store: &Store, (base, height): (u64, u8)) -> FsResult<VersionPages> {
        let page = |part: &MapPart<'a>| part.page(store, base, height);
        let others: FsResult<Vec<_>> = self.others.iter().map(page).collect();
        Ok(VersionPages { own: page(&self.own)?, others: others? })
    }

    fn child(&self, pages: &VersionPages, height: u8, slot: usize) -> VersionParts<'a> {
        let others = self.others.iter().zip(&pages.others);
        let others = others.map(|(part, page)| part.child(page.as_ref(), height, slot));
        let own = self.own.child(pages.own.as_ref(), height, slot);
        VersionParts { own, others: others.collect() }
    }

    /// Returns whether no other version shares this part (OW1).
    fn is_own(&self, shared_epoch: Epoch) -> bool {
        let Some(pointer) = self.own.pointer() else { return self.own.is_there() };
        let has_it =
            |part: &MapPart<'_>| part.pointer().is_some_and(|it| it.place == pointer.place);
        pointer.birth > shared_epoch && !self.others.iter().any(has_it)
    }
}

impl Store {
    /// Reports each exclusive page of the version, from page `from` on.
    pub(crate) fn own_pages(
        &self,
        own: ExclusivePageSearch<'_>,
        from: u64,
        tell: ExclusivePageCallback<'_>,
    ) -> FsResult<ControlFlow<()>> {
        let heights = own.others.iter().map(|anode| anode.height);
        let top = heights.fold(own.anode.height, u8::max) + 1;
        let others = own.others.iter().map(|anode| MapPart::of(Some(anode))).collect();
        let parts = VersionParts { own: MapPart::of(Some(own.anode)), others };
        self.own_below(&parts, (0, top), (own.shared_epoch, from), tell)
    }

    fn own_below(
        &self,
        parts: &VersionParts<'_>,
        (base, height): (u64, u8),
        (shared_epoch, from): (Epoch, u64),
        tell: ExclusivePageCallback<'_>,
    ) -> FsResult<ControlFlow<()>> {
        let Some(below) = height.checked_sub(1) else {
            return match parts.own.pointer() {
                Some(pointer) => tell(base, &pointer),
                None => Ok(ControlFlow::Continue(())),
            };
        };
        let pages = parts.pages(self, (base, height))?;
        let span = span_of_pointer(below);
        let first = |slot: usize| base.saturating_add(wide(slot).saturating_mul(span));
        let children: Vec<_> = (0..index_wide(POINTERS_PER_PAGE))
            .map(|slot| (first(slot), parts.child(&pages, height, slot)))
            .filter(|(first, _)| first.saturating_add(span) > from)
            .filter(|(_, child)| child.is_own(shared_epoch))
            .collect();
        self.bring_in_parts(&children, below);
        for (first, child) in &children {
            let done = self.own_below(child, (*first, below), (shared_epoch, from), tell)?;
            if done.is_break() {
                return Ok(ControlFlow::Break(()));
            }
        }
        Ok(ControlFlow::Continue(()))
    }

    /// Reads ahead the next level. Content pages are needed of the version alone.
    fn bring_in_parts(&self, parts: &[(u64, VersionParts<'_>)], height: u8) {
        let mut places = Vec::new();
        for (_, part) in parts {
            places.extend(part.own.pointer().map(|pointer| pointer.place));
            let others = part.others.iter().filter(|_| height > 0);
            places.extend(others.filter_map(|other| other.pointer()).map(|it| it.place));
        }
        places.truncate(self.cache.limit_pages() / CACHE_SHARE);
        self.cache.bring_in(places);
    }
}
