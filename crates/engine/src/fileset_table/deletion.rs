//! Frees a deleted fileset or snapshot by a post-order walk, in steps of one transaction each. A
//! step changes no page of the walked tree except those that it frees, so it needs no space. The
//! same walk counts the blocks held only by a snapshot in use.
//!
//! # Invariants
//!
//! - DL1: Everything at or before the cursor is free and never read. Everything past it is
//!   unchanged since the deletion. Each step frees and moves the cursor in one transaction.
//! - DL2: The step that frees the last page of the anode table clears the entry.
//! - DL3: A block is freed only if neither the previous snapshot nor the next node holds it at the
//!   same position. Both are unchanged meanwhile. A deleted node has at most one child.

use std::ops::ControlFlow;

use format::anode::{Anode, StorageMode};
use format::fileset::{Cursor, Fileset};
use format::ids::{AnodeNo, Epoch, FilesetId};
use format::page::{PageKind, SLOTS_PER_PAGE};
use runtime::{if_planted, planted};

use super::read_anode_in;
use super::table::{FilesetIndex, FilesetNode, FilesetTable};
use crate::alloc::Extent;
use crate::container::{
    ContainerContent, ExclusivePageSearch, PointerTarget, PointerVisit, PointerVisitor,
    TruncateStep,
};
use crate::convert::wide;
use crate::error::FsResult;
use crate::journal::LogCredits;
use crate::store::{Change, Store};

/// Anodes examined per step. Bounds the time under the lock.
const ANODES_PER_STEP: usize = 4096;
const POINTERS_PER_COUNT: usize = 4096;
const PAGES_PER_STEP: usize = 1 << 16;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DeletionProgress {
    More,
    /// Everything that only this node held is free. The entry remains, since the node has a child.
    Whole,
    Gone,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum UnsharedCount {
    /// Fragments counted, and the cursor where the next call continues. `None` at the end.
    Part(u64, Option<Cursor>),
    /// A writable child is not among those that the caller keeps unchanged.
    Open,
    Gone,
}

/// What other nodes of the family hold, which must not be freed.
struct OtherNodeHoldings {
    /// The previous snapshot holds blocks born in this epoch or earlier.
    shared_epoch: Epoch,
    /// Anode tables of the children: at most one for a deleted node (DL3).
    child_tables: Vec<Anode>,
    /// Whether shared pointers may carry reservations to release, and must be visited.
    has_reserved: bool,
}

enum DeletionMode<'s, 'c> {
    Free { change: &'c mut Change<'s>, step: TruncateStep },
    Count { fragments: u64, pointers_left: usize },
}

struct DeletionWalk<'s, 'c> {
    store: &'s Store,
    with: DeletionMode<'s, 'c>,
    cursor: Cursor,
    others: Option<&'c OtherNodeHoldings>,
    is_snapshot: bool,
    /// The current container as the children have it.
    twins: Vec<Anode>,
}

impl DeletionWalk<'_, '_> {
    fn has_reserved(&self) -> bool {
        self.others.is_some_and(|others| others.has_reserved)
    }

    /// Whether another node has this page of the current container at the same place.
    fn is_page_kept(&self, visit: &PointerVisit) -> FsResult<bool> {
        let Some(others) = self.others else { return Ok(false) };
        if visit.pointer.birth <= others.shared_epoch {
            return Ok(true);
        }
        let PointerTarget::Page { kind, owner } = visit.target else { return Ok(false) };
        for twin in &self.twins {
            if self.store.place_of_page(twin, (kind, owner))? == Some(visit.pointer.place) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn own_parts(&self, visit: &PointerVisit, shift: u8) -> FsResult<Vec<Extent>> {
        let Some(stored) = visit.pointer.stored() else { return Ok(Vec::new()) };
        let all = Extent { place: stored.place, fragments: stored.fragments };
        let Some(others) = self.others else { return Ok(vec![all]) };
        if stored.birth <= others.shared_epoch {
            return Ok(Vec::new());
        }
        let start = visit.at.end.saturating_sub(1 << shift);
        let mut units = Vec::new();
        for twin in &self.twins {
            units.extend(self.store.units(twin, start, visit.at.end)?);
        }
        let kept: Vec<Extent> = units
            .iter()
            .filter_map(|unit| unit.pointer)
            .map(|pointer| Extent { place: pointer.place, fragments: pointer.fragments })
            .collect();
        Ok(without(all, &kept))
    }
}

fn without(all: Extent, kept: &[Extent]) -> Vec<Extent> {
    let is_kept = |bits: u64| {
        kept.iter().any(|extent| {
            let first = extent.place.bits();
            (first..first + u64::from(extent.fragments)).contains(&bits)
        })
    };
    let mut runs: Vec<Extent> = Vec::new();
    for offset in 0..all.fragments {
        let one = Extent { place: all.place.advance(offset), fragments: 1 };
        match runs.last_mut() {
            _ if is_kept(one.place.bits()) => {}
            Some(last) if last.touches(one) => last.join(one),
            _ => runs.push(one),
        }
    }
    runs
}

impl PointerVisitor for DeletionWalk<'_, '_> {
    fn enters(&mut self, page: &PointerVisit) -> FsResult<bool> {
        let is_skipped = !self.has_reserved() && self.is_page_kept(page)?;
        if is_skipped {
            self.cursor = page.at;
        }
        Ok(!is_skipped)
    }

    /// Frees or counts the target of a pointer. Breaks at the limit of the step.
    fn visit(&mut self, visit: &PointerVisit) -> FsResult<ControlFlow<()>> {
        let is_taken = match visit.target {
            // Map pages were checked before their subtree, in [`PointerVisitor::enters`].
            PointerTarget::Page { kind, .. }
                if (kind != PageKind::Map || self.has_reserved())
                    && self.is_page_kept(visit)? =>
            {
                true
            }
            PointerTarget::Page { kind, owner } => match &mut self.with {
                DeletionMode::Free { change, .. } => {
                    let has_room = TruncateStep::has_room_for_page(change.page_count());
                    if has_room {
                        change.free_page(visit.pointer.place, kind, owner)?;
                    }
                    has_room
                }
                DeletionMode::Count { fragments, pointers_left } => {
                    let of_page = u64::from(self.store.geometry().page_fragments());
                    *fragments += of_page;
                    take_one(pointers_left)
                }
            },
            PointerTarget::Data { shift } => {
                let parts = self.own_parts(visit, shift)?;
                self.take_parts(&parts, visit, shift)
            }
        };
        if !is_taken {
            return Ok(ControlFlow::Break(()));
        }
        self.cursor = visit.at;
        Ok(ControlFlow::Continue(()))
    }
}

fn take_one(pointers_left: &mut usize) -> bool {
    let is_left = *pointers_left > 0;
    *pointers_left = pointers_left.saturating_sub(1);
    is_left
}

impl DeletionWalk<'_, '_> {
    fn take_parts(&mut self, parts: &[Extent], visit: &PointerVisit, shift: u8) -> bool {
        match &mut self.with {
            DeletionMode::Free { change, step } => {
                let is_taken = step.take_parts(parts, change.page_count());
                // Reservations in a snapshot's pointers are not counted.
                let fragment_shift = self.store.geometry().fragment_shift;
                let kept = visit.pointer.reserved_fragments(shift, fragment_shift);
                if is_taken && kept > 0 && !self.is_snapshot {
                    change.unreserve(kept);
                }
                is_taken
            }
            DeletionMode::Count { fragments, pointers_left } => {
                let is_taken = take_one(pointers_left);
                if is_taken {
                    *fragments += parts.iter().map(|it| u64::from(it.fragments)).sum::<u64>();
                }
                is_taken
            }
        }
    }
}

impl FilesetTable {
    /// Frees part of the deleted fileset in `slot`. The caller holds no lock.
    pub(crate) fn free_some(&self, store: &Store, slot: u32) -> FsResult<DeletionProgress> {
        let mut change = store.begin_pool(LogCredits::LARGE)?;
        let mut index = self.lock(store)?;
        if index.node(slot).is_none() {
            return Ok(DeletionProgress::Gone);
        }
        let mut entry = index.read_entry(store, slot)?;
        let Some(cursor) = entry.state.cursor() else { return Ok(DeletionProgress::Gone) };
        let others = others_of(store, &index, &entry)?;
        let step = TruncateStep::new(&change);
        let others = others.as_ref();
        let is_snapshot = entry.state.is_of_snapshot();
        let with = DeletionMode::Free { change: &mut change, step };
        let mut walking =
            DeletionWalk { store, with, cursor, others, is_snapshot, twins: Vec::new() };
        let is_whole = walk_from(store, &entry, &mut walking)?.is_continue();
        let DeletionWalk { with, cursor: reached, .. } = walking;
        let DeletionMode::Free { step, .. } = with else { return Ok(DeletionProgress::More) };
        change.free(step.extents())?;
        if is_whole && others.is_some_and(|others| !others.child_tables.is_empty()) {
            entry.state = entry.state.freed_to(reached);
            index.write_entry(store, &mut change, &entry, None)?;
            change.end();
            index.note(&entry);
            return Ok(DeletionProgress::Whole);
        }
        if is_whole {
            if !is_snapshot {
                let used = i64::try_from(entry.anodes_used).unwrap_or(0);
                change.count_anodes(-used);
            }
            index.clear_entry(store, &mut change, slot)?;
            change.end();
            index.note_cleared(slot);
            return Ok(DeletionProgress::Gone);
        }
        let moved = if planted!(DeletionCursorKept) { cursor } else { reached };
        entry.state = entry.state.freed_to(moved);
        index.write_entry(store, &mut change, &entry, None)?;
        change.end();
        index.note(&entry);
        Ok(DeletionProgress::More)
    }

    /// Counts some of the fragments past `cursor` that only one snapshot holds. The caller keeps
    /// the writable children in `still` unchanged.
    pub(crate) fn count_own(
        &self,
        store: &Store,
        (slot, id): (u32, FilesetId),
        cursor: Cursor,
        still: &[u32],
    ) -> FsResult<UnsharedCount> {
        let index = self.lock(store)?;
        if !index.node(slot).is_some_and(|node| node.id == id && node.is_snapshot()) {
            return Ok(UnsharedCount::Gone);
        }
        let changes = |child: &FilesetNode| child.is_live() || child.is_receiving();
        let is_open = |child: &FilesetNode| changes(child) && !still.contains(&child.slot);
        if index.children_in_family(slot).any(is_open) {
            return Ok(UnsharedCount::Open);
        }
        let entry = index.read_entry(store, slot)?;
        let others = others_of(store, &index, &entry)?;
        let with = DeletionMode::Count { fragments: 0, pointers_left: POINTERS_PER_COUNT };
        let (others, twins) = (others.as_ref(), Vec::new());
        let mut walking = DeletionWalk { store, with, cursor, others, is_snapshot: true, twins };
        let is_whole = walk_from(store, &entry, &mut walking)?.is_continue();
        let DeletionWalk { with, cursor, .. } = walking;
        let fragments =
            if let DeletionMode::Count { fragments, .. } = with { fragments } else { 0 };
        Ok(UnsharedCount::Part(fragments, (!is_whole).then_some(cursor)))
    }
}

fn others_of(
    store: &Store,
    index: &FilesetIndex,
    entry: &Fileset,
) -> FsResult<Option<OtherNodeHoldings>> {
    let mut child_tables = Vec::new();
    // A deleted child holds no blocks of a snapshot in use.
    let is_asked = |child: &&FilesetNode| entry.state.cursor().is_some() || !child.is_deleted();
    for child in index.children_in_family(entry.slot).filter(is_asked) {
        child_tables.push(index.read_entry(store, child.slot)?.table_anode());
    }
    if child_tables.is_empty() && entry.parent.is_none() {
        return Ok(None);
    }
    if_planted!(DeletionForgetsChild, child_tables.clear());
    let shared_epoch = if planted!(DeletionForgetsParent) { Epoch(0) } else { entry.shared_epoch };
    // The pool counts every reservation, so a count of zero means that there is none.
    let is_any_reserved = entry.may_reserve && store.alloc.counts().reserved > 0;
    let has_reserved = !entry.state.is_of_snapshot() && is_any_reserved;
    Ok(Some(OtherNodeHoldings { shared_epoch, child_tables, has_reserved }))
}

fn walk_from(
    store: &Store,
    entry: &Fileset,
    walking: &mut DeletionWalk<'_, '_>,
) -> FsResult<ControlFlow<()>> {
    let table = entry.table_anode();
    if walking.cursor.container != Cursor::TABLE
        && walk_containers(store, entry, &table, walking)?.is_break()
    {
        return Ok(ControlFlow::Break(()));
    }
    let from = walking.cursor;
    let content = ContainerContent::Pages(PageKind::Anode);
    walking.twins = walking.others.map(|others| others.child_tables.clone()).unwrap_or_default();
    store.walk_container((&table, Cursor::TABLE), content, from, walking)
}

fn walk_containers(
    store: &Store,
    entry: &Fileset,
    table: &Anode,
    walking: &mut DeletionWalk<'_, '_>,
) -> FsResult<ControlFlow<()>> {
    let first = walking.cursor.container;
    let per_page = wide(SLOTS_PER_PAGE);
    let (mut seen, mut looked) = (0, 0);
    // A node with the same table page also has all containers of its anodes.
    let others = walking.others.filter(|others| !others.has_reserved);
    let own = ExclusivePageSearch {
        anode: table,
        shared_epoch: others.map_or(Epoch(0), |others| others.shared_epoch),
        others: others.map_or(&[], |others| &others.child_tables),
    };
    // By pages: the table of a received fileset may have holes of any size.
    store.own_pages(own, first / per_page, &mut |page, _| {
        let last = (page + 1) * per_page - 1;
        for number in (page * per_page).max(first.max(1))..=last {
            let Some(walked) = walk_one(store, entry, table, (number, walking))? else { continue };
            if walked.is_break() {
                return Ok(ControlFlow::Break(()));
            }
            seen += 1;
            if seen >= ANODES_PER_STEP {
                walking.cursor = Cursor { container: number, end: u64::MAX, height: u8::MAX };
                return Ok(ControlFlow::Break(()));
            }
        }
        looked += 1;
        if looked >= PAGES_PER_STEP {
            walking.cursor = Cursor { container: last, end: u64::MAX, height: u8::MAX };
            return Ok(ControlFlow::Break(()));
        }
        Ok(ControlFlow::Continue(()))
    })
}

fn walk_one(
    store: &Store,
    entry: &Fileset,
    table: &Anode,
    (number, walking): (u64, &mut DeletionWalk<'_, '_>),
) -> FsResult<Option<ControlFlow<()>>> {
    let read = |table: &Anode| read_anode_in(store, table, None, entry.family, AnodeNo(number));
    let Some(anode) = read(table)? else { return Ok(None) };
    walking.twins.clear();
    // An inline anode has no pointers to compare.
    if anode.storage != StorageMode::Inline {
        let children = walking.others.map_or(&[][..], |others| &others.child_tables);
        for child in children {
            walking.twins.extend(read(child)?);
        }
    }
    let (from, content) = (walking.cursor, ContainerContent::of(&anode));
    store.walk_container((&anode, number), content, from, walking).map(Some)
}
