//! What a version of a container of pages has alone: a walk of its map and of those of the others
//! at once, which goes into no part that an other has at the same place. It changes nothing.
//!
//! What it will come to is known a level ahead, so it is read before, many pages at once, and
//! nothing else is.
//!
//! # Invariants
//!
//! - OW1: A page is told unless it was born in the shared epoch or before it, or an other has it,
//!   or a page of the map above it, at the same position.
//! - OW2: Indexes rise.

use std::ops::ControlFlow;

use format::anode::Anode;
use format::ids::Epoch;
use format::map::{POINTERS_PER_PAGE, span_of_pointer};
use format::pointer::BlockPointer;

use super::diff::Part;
use crate::convert::{index_wide, wide};
use crate::error::FsResult;
use crate::store::{Store, View};

/// Of the pages that the cache may hold, the part that is read ahead at once.
const CACHE_SHARE: usize = 8;

/// A version of a container, and those who may have a part of it too.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Own<'a> {
    pub(crate) anode: &'a Anode,
    /// What was born in this epoch or before it, an earlier version has.
    pub(crate) shared_epoch: Epoch,
    /// Other versions.
    pub(crate) others: &'a [Anode],
}

/// Who is told of a page.
type Tell<'t> = &'t mut dyn FnMut(u64, &BlockPointer) -> FsResult<ControlFlow<()>>;

/// A part of the map as all versions have it.
struct Parts<'a> {
    own: Part<'a>,
    others: Vec<Part<'a>>,
}

/// The pages of the map that these lead to.
struct Pages {
    own: Option<View<'static>>,
    others: Vec<Option<View<'static>>>,
}

impl<'a> Parts<'a> {
    fn pages(&self, store: &Store, (base, height): (u64, u8)) -> FsResult<Pages> {
        let page = |part: &Part<'a>| part.page(store, base, height);
        let others: FsResult<Vec<_>> = self.others.iter().map(page).collect();
        Ok(Pages { own: page(&self.own)?, others: others? })
    }

    fn child(&self, pages: &Pages, height: u8, slot: usize) -> Parts<'a> {
        let others = self.others.iter().zip(&pages.others);
        let others = others.map(|(part, page)| part.child(page.as_ref(), height, slot));
        let own = self.own.child(pages.own.as_ref(), height, slot);
        Parts { own, others: others.collect() }
    }

    /// OW1: whether some of it is the version's alone.
    fn is_own(&self, shared_epoch: Epoch) -> bool {
        let Some(pointer) = self.own.pointer() else { return self.own.is_there() };
        let has_it = |part: &Part<'_>| part.pointer().is_some_and(|it| it.place == pointer.place);
        pointer.birth > shared_epoch && !self.others.iter().any(has_it)
    }
}

impl Store {
    /// Tells of each page of a container, from page `from` on, that the version has alone.
    pub(crate) fn own_pages(
        &self,
        own: Own<'_>,
        from: u64,
        tell: Tell<'_>,
    ) -> FsResult<ControlFlow<()>> {
        let heights = own.others.iter().map(|anode| anode.height);
        let top = heights.fold(own.anode.height, u8::max) + 1;
        let others = own.others.iter().map(|anode| Part::of(Some(anode))).collect();
        let parts = Parts { own: Part::of(Some(own.anode)), others };
        self.own_below(&parts, (0, top), (own.shared_epoch, from), tell)
    }

    fn own_below(
        &self,
        parts: &Parts<'_>,
        (base, height): (u64, u8),
        (shared_epoch, from): (Epoch, u64),
        tell: Tell<'_>,
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

    /// Reads what is gone into next: of the pages themselves only the version's.
    fn bring_in_parts(&self, parts: &[(u64, Parts<'_>)], height: u8) {
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
