//! Post-order walk of a container: the targets below a pointer come before it.
//!
//! Read-only, and resumable at any position. Pages at or before that position may be freed already,
//! so they are never read.
//!
//! # Invariants
//!
//! - WK1: Positions rise: by the end of the byte range, then by the height above the content.
//! - WK2: A pointer at or before `from` is neither followed nor reported.

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
use super::truncate::ContainerContent;
use super::{content_owner, map_owner};
use crate::convert::{index_wide, wide};
use crate::error::FsResult;
use crate::store::Store;

const _: () = assert!(1 << FINE_SHIFT == PAGE_BYTES);

#[derive(Clone, Copy, Debug)]
pub(crate) enum PointerTarget {
    /// A data block of `1 << shift` bytes, stored or reserved.
    Data {
        shift: u8,
    },
    Page {
        kind: PageKind,
        owner: PageOwner,
    },
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct PointerVisit {
    /// Position in the order of the walk.
    pub(crate) at: Cursor,
    pub(crate) pointer: BlockPointer,
    pub(crate) target: PointerTarget,
}

pub(crate) trait PointerVisitor {
    /// Returns whether to walk below a map page and then visit it.
    fn enters(&mut self, page: &PointerVisit) -> FsResult<bool>;

    /// Handles a pointer. A break stops the walk before this pointer.
    fn visit(&mut self, visit: &PointerVisit) -> FsResult<ControlFlow<()>>;
}

struct ContainerWalk<'w> {
    store: &'w Store,
    anode: &'w Anode,
    content: ContainerContent,
    container: u64,
    from: Cursor,
}

/// A pointer in the map, and its range.
#[derive(Clone, Copy)]
struct ChildPointer {
    pointer: BlockPointer,
    /// Levels of map pages down to the blocks.
    height: u8,
    /// First block, in blocks of the container's size.
    base: u64,
}

impl Store {
    /// Visits each pointer past `from`. Positions contain the number `container`.
    pub(crate) fn walk_container(
        &self,
        (anode, container): (&Anode, u64),
        content: ContainerContent,
        from: Cursor,
        visitor: &mut dyn PointerVisitor,
    ) -> FsResult<ControlFlow<()>> {
        if anode.storage == StorageMode::Inline {
            return Ok(ControlFlow::Continue(()));
        }
        let walk = ContainerWalk { store: self, anode, content, container, from };
        for slot in 0..index_wide(ROOT_POINTERS) {
            let Some(pointer) = anode.root_pointer(slot) else { continue };
            let base = wide(slot).saturating_mul(span_of_pointer(anode.height));
            let below = ChildPointer { pointer, height: anode.height, base };
            if walk.below(below, visitor)?.is_break() {
                return Ok(ControlFlow::Break(()));
            }
        }
        Ok(ControlFlow::Continue(()))
    }
}

impl ContainerWalk<'_> {
    fn shift(&self) -> u8 {
        match self.content {
            ContainerContent::Data => self.anode.block_shift,
            ContainerContent::Pages(_) => FINE_SHIFT,
        }
    }

    fn at(&self, first: u64, blocks: u64, shift: u8, height: u8) -> Cursor {
        Cursor::at(self.container, (first, blocks), shift, height)
    }

    fn below(
        &self,
        below: ChildPointer,
        visitor: &mut dyn PointerVisitor,
    ) -> FsResult<ControlFlow<()>> {
        let ChildPointer { pointer, height, base } = below;
        let at = self.at(base, span_of_pointer(height), self.shift(), Cursor::height_of(height));
        if at <= self.from {
            return Ok(ControlFlow::Continue(()));
        }
        let Some(level) = height.checked_sub(1) else {
            return visitor.visit(&PointerVisit { at, pointer, target: self.content_target(base) });
        };
        let owner = map_owner(self.anode, base, level);
        let visit = PointerVisit {
            at,
            pointer,
            target: PointerTarget::Page { kind: PageKind::Map, owner },
        };
        if !visitor.enters(&visit)? {
            return Ok(ControlFlow::Continue(()));
        }
        let page = self.store.view(None, pointer.place, PageKind::Map, owner)?;
        let done = if self.content == ContainerContent::Data && level == 0 && is_split(&page) {
            self.fine_leaves(&page, base, visitor)?
        } else {
            self.children(&page, (base, level), visitor)?
        };
        if done.is_break() {
            return Ok(done);
        }
        visitor.visit(&visit)
    }

    fn content_target(&self, index: u64) -> PointerTarget {
        match self.content {
            ContainerContent::Data => PointerTarget::Data { shift: self.anode.block_shift },
            ContainerContent::Pages(kind) => {
                PointerTarget::Page { kind, owner: content_owner(self.anode, index) }
            }
        }
    }

    fn children(
        &self,
        page: &PageBytes,
        (base, level): (u64, u8),
        visitor: &mut dyn PointerVisitor,
    ) -> FsResult<ControlFlow<()>> {
        for slot in 0..index_wide(POINTERS_PER_PAGE) {
            let Some(pointer) = pointer_at(page, slot) else { continue };
            let first = base.saturating_add(wide(slot).saturating_mul(span_of_pointer(level)));
            let below = ChildPointer { pointer, height: level, base: first };
            if self.below(below, visitor)?.is_break() {
                return Ok(ControlFlow::Break(()));
            }
        }
        Ok(ControlFlow::Continue(()))
    }

    /// Walks below a split leaf at block `base`.
    fn fine_leaves(
        &self,
        page: &PageBytes,
        base: u64,
        visitor: &mut dyn PointerVisitor,
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
            let visit = PointerVisit {
                at,
                pointer,
                target: PointerTarget::Page { kind: PageKind::Map, owner },
            };
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
        visitor: &mut dyn PointerVisitor,
    ) -> FsResult<ControlFlow<()>> {
        for slot in 0..POINTERS_PER_PAGE {
            let Some(pointer) = pointer_at(leaf, index_wide(slot)) else { continue };
            let at = self.at(first.saturating_add(slot), 1, FINE_SHIFT, 0);
            let target = PointerTarget::Data { shift: FINE_SHIFT };
            if at > self.from && visitor.visit(&PointerVisit { at, pointer, target })?.is_break() {
                return Ok(ControlFlow::Break(()));
            }
        }
        Ok(ControlFlow::Continue(()))
    }
}
