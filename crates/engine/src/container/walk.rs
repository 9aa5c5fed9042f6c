//! The walk of a container in post-order: what lies below a pointer comes before it. It changes
//! nothing, goes on at any position, and never reads a page that lies at or before the position
//! from which it goes on: such a page may be freed already.
//!
//! # Invariants
//!
//! - WK1: Positions rise: by the end of the byte range, then by the height above the content.
//! - WK2: A pointer at or before `from` is not followed, and not told.

use std::ops::ControlFlow;

use format::anode::{Anode, StorageMode};
use format::fileset::Cursor;
use format::map::{
    FINE_PER_COARSE, FINE_SHIFT, POINTERS_PER_PAGE, ROOT_POINTERS, is_split, pointer_at,
    span_of_pointer,
};
use format::page::{PAGE_BYTES, PageBytes, PageKind, PageOwner};
use format::pointer::BlockPointer;

use super::data::{check_split, fine_owner};
use super::truncate::Content;
use super::{content_owner, map_owner};
use crate::convert::{index_wide, wide};
use crate::error::FsResult;
use crate::store::Store;

const _: () = assert!(1 << FINE_SHIFT == PAGE_BYTES);

/// What a pointer of a container leads to.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Target {
    /// Data of a file: a block of `1 << shift` bytes, or room that is kept for one.
    Data {
        /// Block size: binary logarithm.
        shift: u8,
    },
    /// A page.
    Page {
        /// Its kind.
        kind: PageKind,
        /// Whose it is.
        owner: PageOwner,
    },
}

/// A pointer that the walk has come to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Visit {
    /// Where it is in the order of the walk.
    pub(crate) at: Cursor,
    /// The pointer.
    pub(crate) pointer: BlockPointer,
    /// What it leads to.
    pub(crate) target: Target,
}

/// Who is told of each pointer.
pub(crate) trait Visitor {
    /// Whether to look at what lies below a page of the map, and at the page.
    fn enters(&mut self, page: &Visit) -> FsResult<bool>;

    /// Is told of a pointer; breaks to stop the walk before it.
    fn visit(&mut self, visit: &Visit) -> FsResult<ControlFlow<()>>;
}

/// A walk of one container.
struct Walk<'w> {
    store: &'w Store,
    anode: &'w Anode,
    content: Content,
    container: u64,
    from: Cursor,
}

/// A pointer in the map, and what it spans.
#[derive(Clone, Copy)]
struct Below {
    pointer: BlockPointer,
    /// Levels of map pages from the pointer down to the blocks.
    height: u8,
    /// First block, in blocks of the container's size.
    base: u64,
}

impl Store {
    /// Tells `visitor` in post-order of each pointer of `anode` past `from`. `container` is how
    /// positions name it.
    pub(crate) fn walk_container(
        &self,
        (anode, container): (&Anode, u64),
        content: Content,
        from: Cursor,
        visitor: &mut dyn Visitor,
    ) -> FsResult<ControlFlow<()>> {
        if anode.storage == StorageMode::Inline {
            return Ok(ControlFlow::Continue(()));
        }
        let walk = Walk { store: self, anode, content, container, from };
        for slot in 0..index_wide(ROOT_POINTERS) {
            let Some(pointer) = anode.root_pointer(slot) else { continue };
            let base = wide(slot).saturating_mul(span_of_pointer(anode.height));
            let below = Below { pointer, height: anode.height, base };
            if walk.below(below, visitor)?.is_break() {
                return Ok(ControlFlow::Break(()));
            }
        }
        Ok(ControlFlow::Continue(()))
    }
}

impl Walk<'_> {
    fn shift(&self) -> u8 {
        match self.content {
            Content::Data => self.anode.block_shift,
            Content::Pages(_) => FINE_SHIFT,
        }
    }

    fn at(&self, first: u64, blocks: u64, shift: u8, height: u8) -> Cursor {
        Cursor::at(self.container, (first, blocks), shift, height)
    }

    fn below(&self, below: Below, visitor: &mut dyn Visitor) -> FsResult<ControlFlow<()>> {
        let Below { pointer, height, base } = below;
        let at = self.at(base, span_of_pointer(height), self.shift(), Cursor::height_of(height));
        if at <= self.from {
            return Ok(ControlFlow::Continue(()));
        }
        let Some(level) = height.checked_sub(1) else {
            return visitor.visit(&Visit { at, pointer, target: self.content_target(base) });
        };
        let owner = map_owner(self.anode, base, level);
        let visit = Visit { at, pointer, target: Target::Page { kind: PageKind::Map, owner } };
        if !visitor.enters(&visit)? {
            return Ok(ControlFlow::Continue(()));
        }
        let page = self.store.view(None, pointer.place, PageKind::Map, owner)?;
        let done = if self.content == Content::Data && level == 0 && is_split(&page) {
            self.fine_leaves(&page, base, visitor)?
        } else {
            self.children(&page, (base, level), visitor)?
        };
        if done.is_break() {
            return Ok(done);
        }
        visitor.visit(&visit)
    }

    fn content_target(&self, index: u64) -> Target {
        match self.content {
            Content::Data => Target::Data { shift: self.anode.block_shift },
            Content::Pages(kind) => Target::Page { kind, owner: content_owner(self.anode, index) },
        }
    }

    fn children(
        &self,
        page: &PageBytes,
        (base, level): (u64, u8),
        visitor: &mut dyn Visitor,
    ) -> FsResult<ControlFlow<()>> {
        for slot in 0..index_wide(POINTERS_PER_PAGE) {
            let Some(pointer) = pointer_at(page, slot) else { continue };
            let first = base.saturating_add(wide(slot).saturating_mul(span_of_pointer(level)));
            let below = Below { pointer, height: level, base: first };
            if self.below(below, visitor)?.is_break() {
                return Ok(ControlFlow::Break(()));
            }
        }
        Ok(ControlFlow::Continue(()))
    }

    /// Goes on below the split leaf in `page`, which begins at block `base`.
    fn fine_leaves(
        &self,
        page: &PageBytes,
        base: u64,
        visitor: &mut dyn Visitor,
    ) -> FsResult<ControlFlow<()>> {
        check_split(self.anode)?;
        for slot in 0..FINE_PER_COARSE {
            let Some(pointer) = pointer_at(page, index_wide(slot)) else { continue };
            let first =
                base.saturating_mul(FINE_PER_COARSE).saturating_add(slot * POINTERS_PER_PAGE);
            let at = self.at(first, POINTERS_PER_PAGE, FINE_SHIFT, Cursor::FINE_LEAF_HEIGHT);
            if at <= self.from {
                continue;
            }
            let owner = fine_owner(self.anode, first);
            let visit = Visit { at, pointer, target: Target::Page { kind: PageKind::Map, owner } };
            if !visitor.enters(&visit)? {
                continue;
            }
            let leaf = self.store.view(None, pointer.place, PageKind::Map, owner)?;
            if self.fine_blocks(&leaf, first, visitor)?.is_break() {
                return Ok(ControlFlow::Break(()));
            }
            if visitor.visit(&visit)?.is_break() {
                return Ok(ControlFlow::Break(()));
            }
        }
        Ok(ControlFlow::Continue(()))
    }

    fn fine_blocks(
        &self,
        leaf: &PageBytes,
        first: u64,
        visitor: &mut dyn Visitor,
    ) -> FsResult<ControlFlow<()>> {
        for slot in 0..POINTERS_PER_PAGE {
            let Some(pointer) = pointer_at(leaf, index_wide(slot)) else { continue };
            let at = self.at(first.saturating_add(slot), 1, FINE_SHIFT, 0);
            let target = Target::Data { shift: FINE_SHIFT };
            if at > self.from && visitor.visit(&Visit { at, pointer, target })?.is_break() {
                return Ok(ControlFlow::Break(()));
            }
        }
        Ok(ControlFlow::Continue(()))
    }
}
