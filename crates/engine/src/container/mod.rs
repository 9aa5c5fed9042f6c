//! Containers: maps from the index of a block to its place.
//!
//! Everything stored is a container described by an anode (Chutani and others, "The Episode File
//! System", 1992). This layer walks and changes maps, whatever the blocks contain.
//!
//! # Invariants
//!
//! - M1, M2 of [`format::map`].
//! - CT1: `anode.fragments` counts the fragments of the container's blocks, map pages and
//!   reservations.
//! - CT2: The target of a replaced or removed pointer is freed in the same transaction.
//! - CT3: The pool's count of reserved fragments is the sum over all block pointers, and changes in
//!   the same transaction.
//!
//! # Concurrency
//!
//! The caller holds the container's lock: its vnode's, or the fileset's for internal containers.

mod data;
mod diff;
mod entry;
mod install;
mod leaves;
mod locate;
mod map_page;
mod own;
mod truncate;
mod unshare;
mod walk;

pub(crate) use data::PointerRange;
pub(crate) use diff::{ChangedPage, ChangedRange, ContainerVersions, is_one_file};
pub(crate) use install::{MapUpdateStep, NewBlock};
pub(crate) use leaves::LeafCursor;
pub(crate) use locate::{LocatedPointer, PointerLocation, with_sibling};
pub(crate) use own::ExclusivePageSearch;
pub(crate) use truncate::{ContainerContent, TruncateStep, take_off};
pub(crate) use walk::{PointerTarget, PointerVisit, PointerVisitor};

use format::anode::{Anode, StorageMode};
use format::defect::DefectCode;
use format::ids::Place;
use format::map::{
    HEIGHT_MAX, POINTERS_PER_PAGE, capacity_of_height, height_for, page_index, page_slot,
    pointer_at, root_slot, set_pointer,
};
use format::page::{PageBytes, PageKind, PageOwner};
use format::pointer::BlockPointer;

use self::map_page::MapPage;
use crate::buffer::corrupt;
use crate::convert::index_wide;
use crate::error::{FsError, FsResult};
use crate::store::{Change, PageView, Store};

fn map_owner(anode: &Anode, index: u64, level: u8) -> PageOwner {
    PageOwner {
        fileset: anode.fileset,
        anode: anode.number,
        index: page_index(index, level),
        level,
    }
}

pub(crate) fn content_owner(anode: &Anode, index: u64) -> PageOwner {
    PageOwner { fileset: anode.fileset, anode: anode.number, index, level: 0 }
}

impl Store {
    /// Returns the pointer to block `index`, `None` for a hole.
    pub(crate) fn block(
        &self,
        change: Option<&Change<'_>>,
        anode: &Anode,
        index: u64,
    ) -> FsResult<Option<BlockPointer>> {
        if anode.storage == StorageMode::Inline || index >= capacity_of_height(anode.height) {
            return Ok(None);
        }
        let mut pointer = anode.root_pointer(root_slot(index, anode.height));
        for level in (0..anode.height).rev() {
            let Some(found) = pointer else { return Ok(None) };
            let page = MapPage::new(found.place, map_owner(anode, index, level));
            pointer = page.pointer(self, change, page_slot(index, level))?;
        }
        Ok(pointer)
    }

    /// Returns the map pages missing for block `index`.
    pub(crate) fn missing_map_pages(&self, anode: &Anode, index: u64) -> FsResult<u64> {
        if index >= capacity_of_height(anode.height) {
            let has_any = (0..8).any(|slot| anode.root_pointer(slot).is_some());
            let (wanted, height) = (u64::from(height_for(index)), u64::from(anode.height));
            return Ok(wanted + if has_any { wanted - height } else { 0 });
        }
        let mut pointer = anode.root_pointer(root_slot(index, anode.height));
        for level in (0..anode.height).rev() {
            let Some(found) = pointer else { return Ok(u64::from(level) + 1) };
            let page = MapPage::new(found.place, map_owner(anode, index, level));
            pointer = page.pointer(self, None, page_slot(index, level))?;
        }
        Ok(0)
    }

    /// Returns the map pages on the path to a block, as seen by `change`.
    pub(crate) fn map_path(
        &self,
        change: &Change<'_>,
        anode: &Anode,
        index: u64,
    ) -> FsResult<Vec<Place>> {
        let mut path = Vec::new();
        if index >= capacity_of_height(anode.height) {
            return Ok(path);
        }
        let mut pointer = anode.root_pointer(root_slot(index, anode.height));
        for level in (0..anode.height).rev() {
            let Some(found) = pointer else { break };
            path.push(found.place);
            let page = MapPage::new(found.place, map_owner(anode, index, level));
            pointer = page.pointer(self, Some(change), page_slot(index, level))?;
        }
        Ok(path)
    }

    /// Sets a pointer, and grows the map if necessary. Returns the old one, whose target the caller
    /// frees (CT2) and counts (CT1).
    pub(crate) fn set_block(
        &self,
        change: &mut Change<'_>,
        anode: &mut Anode,
        index: u64,
        pointer: Option<&BlockPointer>,
    ) -> FsResult<Option<BlockPointer>> {
        self.grow(change, anode, index)?;
        if anode.height == 0 {
            let slot = root_slot(index, anode.height);
            let old = anode.root_pointer(slot);
            anode.set_root_pointer(slot, pointer);
            return Ok(old);
        }
        let leaf = self.leaf_to_edit(change, anode, index)?;
        let (slot, mut old) = (page_slot(index, 0), None);
        leaf.replace(change, slot..slot + 1, |_, was| {
            old = was;
            pointer.copied()
        })?;
        Ok(old)
    }

    /// Returns the leaf of a block. The map must cover the block, and its height must be at least
    /// 1. Adds missing pages, and raises the highest birth along the path.
    fn leaf_to_edit(
        &self,
        change: &mut Change<'_>,
        anode: &mut Anode,
        index: u64,
    ) -> FsResult<MapPage> {
        let slot = root_slot(index, anode.height);
        let top = anode.height - 1;
        let mut place = match anode.root_pointer(slot) {
            Some(found) => found.place,
            None => {
                let page = self.add_map_page(change, anode, index, top)?;
                anode.set_root_pointer(slot, Some(&page));
                page.place
            }
        };
        for level in (1..=top).rev() {
            let page = MapPage::new(place, map_owner(anode, index, level));
            page.raise_birth_max(change)?;
            let slot = page_slot(index, level);
            let child = match page.pointer_to_change(change, slot)? {
                Some(child) => child,
                None => {
                    let child = self.add_map_page(change, anode, index, level - 1)?;
                    page.set(change, slot, Some(&child))?;
                    child
                }
            };
            place = child.place;
        }
        let leaf = MapPage::new(place, map_owner(anode, index, 0));
        leaf.raise_birth_max(change)?;
        Ok(leaf)
    }

    fn add_map_page(
        &self,
        change: &mut Change<'_>,
        anode: &mut Anode,
        index: u64,
        level: u8,
    ) -> FsResult<BlockPointer> {
        let place = change.add_page(PageKind::Map, map_owner(anode, index, level))?;
        let fragments = self.geometry().page_fragments();
        anode.fragments += u64::from(fragments);
        Ok(BlockPointer::to_page(place, fragments, change.epoch()))
    }

    /// Raises the map until it covers block `index`.
    fn grow(&self, change: &mut Change<'_>, anode: &mut Anode, index: u64) -> FsResult<()> {
        if index >= capacity_of_height(HEIGHT_MAX) {
            return Err(FsError::FileTooLarge);
        }
        let wanted = height_for(index);
        while anode.height < wanted {
            self.raise(change, anode)?;
        }
        Ok(())
    }

    fn raise(&self, change: &mut Change<'_>, anode: &mut Anode) -> FsResult<()> {
        let pointers: Vec<_> = (0..8).map(|slot| anode.root_pointer(slot)).collect();
        if pointers.iter().any(Option::is_some) {
            let level = anode.height;
            let page = self.add_map_page(change, anode, 0, level)?;
            let bytes = change.edit(page.place, PageKind::Map, map_owner(anode, 0, level))?;
            for (slot, pointer) in pointers.iter().enumerate() {
                set_pointer(bytes, slot, pointer.as_ref());
            }
            for slot in 0..8 {
                anode.set_root_pointer(slot, None);
            }
            anode.set_root_pointer(0, Some(&page));
        }
        anode.height += 1;
        Ok(())
    }

    pub(crate) fn content<'a>(
        &self,
        change: Option<&'a Change<'_>>,
        anode: &Anode,
        index: u64,
        kind: PageKind,
    ) -> FsResult<Option<PageView<'a>>> {
        let Some(pointer) = self.block(change, anode, index)? else { return Ok(None) };
        self.view(change, pointer.place, kind, content_owner(anode, index)).map(Some)
    }

    pub(crate) fn edit_content<'c>(
        &self,
        change: &'c mut Change<'_>,
        anode: &Anode,
        index: u64,
        kind: PageKind,
    ) -> FsResult<Option<&'c mut PageBytes>> {
        let Some(pointer) = self.block(Some(change), anode, index)? else { return Ok(None) };
        change.edit(pointer.place, kind, content_owner(anode, index)).map(Some)
    }

    /// Adds content page `index`, for the caller to fill.
    pub(crate) fn add_content<'c>(
        &self,
        change: &'c mut Change<'_>,
        anode: &mut Anode,
        index: u64,
        kind: PageKind,
    ) -> FsResult<&'c mut PageBytes> {
        let owner = content_owner(anode, index);
        let place = change.add_page(kind, owner)?;
        let fragments = self.geometry().page_fragments();
        let pointer = BlockPointer::to_page(place, fragments, change.epoch());
        let old = self.set_block(change, anode, index, Some(&pointer))?;
        if old.is_some() {
            // The map is inconsistent: another path found no such page.
            return Err(corrupt(
                DefectCode::MP007.found(format!("page {index}")).of(anode.fileset, anode.number),
            ));
        }
        anode.fragments += u64::from(fragments);
        anode.pages += 1;
        change.edit(place, kind, owner)
    }

    pub(crate) fn remove_content(
        &self,
        change: &mut Change<'_>,
        anode: &mut Anode,
        index: u64,
        kind: PageKind,
    ) -> FsResult<()> {
        let old = self.set_block(change, anode, index, None)?;
        let old = old.ok_or_else(|| no_page(anode, index))?;
        change.free_page(old.place, kind, content_owner(anode, index))?;
        let fragments = u64::from(old.fragments);
        anode.fragments = anode.fragments.saturating_sub(fragments);
        anode.pages = anode.pages.saturating_sub(1);
        self.drop_empty_map_pages(change, anode, index)
    }

    /// Frees empty map pages on a path, because each keeps a segment from use for data.
    fn drop_empty_map_pages(
        &self,
        change: &mut Change<'_>,
        anode: &mut Anode,
        index: u64,
    ) -> FsResult<()> {
        let slot = root_slot(index, anode.height);
        let mut path = Vec::new();
        let mut pointer = anode.root_pointer(slot);
        for level in (0..anode.height).rev() {
            let Some(found) = pointer else { return Ok(()) };
            let owner = map_owner(anode, index, level);
            let page = self.view(Some(change), found.place, PageKind::Map, owner)?;
            pointer = pointer_at(&page, page_slot(index, level));
            let leads_on = (0..index_wide(POINTERS_PER_PAGE))
                .filter(|slot| *slot != page_slot(index, level))
                .any(|slot| pointer_at(&page, slot).is_some());
            path.push((level, found, leads_on));
        }
        if pointer.is_some() {
            return Ok(());
        }
        for (level, page, leads_on) in path.into_iter().rev() {
            let owner = map_owner(anode, index, level);
            if leads_on {
                return MapPage::new(page.place, owner).set(change, page_slot(index, level), None);
            }
            change.free_page(page.place, PageKind::Map, owner)?;
            take_off(&mut anode.fragments, u64::from(page.fragments), DefectCode::AN004)?;
        }
        anode.set_root_pointer(slot, None);
        Ok(())
    }
}

pub(crate) fn no_page(anode: &Anode, index: u64) -> FsError {
    let what = format!("page {index}");
    corrupt(DefectCode::MP006.found(what).of(anode.fileset, anode.number))
}
