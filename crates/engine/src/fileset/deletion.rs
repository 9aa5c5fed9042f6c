//! A deleted fileset, or clone, is freed: by a walk in post-order, in steps that are one
//! transaction each. It changes none of the pages that it walks but for those that it frees, so it
//! needs no space. The same walk counts what a clone that is in use holds alone.
//!
//! # Invariants
//!
//! - DL1: What lies at or before the cursor is free, and nobody reads it; what lies past it is as
//!   the fileset left it. Each step frees and moves the cursor in one transaction.
//! - DL2: The entry is cleared by the step that has freed the last of the anode table.
//! - DL3: Only that is freed which neither the clone before it holds, nor the one after it at the
//!   same position. Neither changes meanwhile. What is deleted has one child at most.

use std::ops::ControlFlow;

use format::anode::{Anode, StorageMode};
use format::fileset::{Cursor, Fileset};
use format::ids::{AnodeNo, Epoch, FilesetId};
use format::page::{PageKind, SLOTS_PER_PAGE};
use runtime::planted::{self, Planted};

use super::read_anode_in;
use super::table::{FilesetTable, Index, Node};
use crate::alloc::Extent;
use crate::container::{Content, Own, Step, Target, Visit, Visitor};
use crate::convert::wide;
use crate::error::FsResult;
use crate::journal::Reservation;
use crate::store::{Change, Store};

/// Anodes that one step looks at, so that many without blocks do not hold the lock for long.
const ANODES_PER_STEP: usize = 4096;
/// Pointers that one step of a count looks at.
const POINTERS_PER_COUNT: usize = 4096;
/// Pages of the anode table that one step looks at.
const PAGES_PER_STEP: usize = 1 << 16;

/// What a step has left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Progress {
    /// More is to be freed.
    More,
    /// All that only a clone held is free; its entry is still there.
    Whole,
    /// The fileset is gone.
    Gone,
}

/// What counting a part of a clone has found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Counted {
    /// So many fragments, and where to go on; `None`: that was all.
    Part(u64, Option<Cursor>),
    /// Somebody who goes back to it may change.
    Open,
    /// It is no clone in use any more.
    Gone,
}

/// What others of the family hold of what is deleted: that stays.
struct Others {
    /// What was born in this epoch or before it, the clone before it holds.
    shared_epoch: Epoch,
    /// Anode tables of those after it: of what is deleted one at most (DL3).
    child_tables: Vec<Anode>,
    /// Whether what stays may reserve room that nobody gives back but this: then it is looked at.
    has_reserved: bool,
}

/// What is done with what nobody else of the family holds.
enum Use<'s, 'c> {
    /// It is freed.
    Free { change: &'c mut Change<'s>, step: Step },
    /// It is counted.
    Count { fragments: u64, pointers_left: usize },
}

/// One step under way.
struct Walking<'s, 'c> {
    store: &'s Store,
    with: Use<'s, 'c>,
    cursor: Cursor,
    others: Option<&'c Others>,
    is_clone: bool,
    /// The container in hand as those after have it.
    twins: Vec<Anode>,
}

impl Walking<'_, '_> {
    fn has_reserved(&self) -> bool {
        self.others.is_some_and(|others| others.has_reserved)
    }

    /// Whether others of the family have a page that the container in hand has, at the same place.
    fn is_page_kept(&self, visit: &Visit) -> FsResult<bool> {
        let Some(others) = self.others else { return Ok(false) };
        if visit.pointer.birth <= others.shared_epoch {
            return Ok(true);
        }
        let Target::Page { kind, owner } = visit.target else { return Ok(false) };
        for twin in &self.twins {
            if self.store.place_of_page(twin, (kind, owner))? == Some(visit.pointer.place) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Returns what of the data that a pointer leads to nobody else of the family has.
    fn own_parts(&self, visit: &Visit, shift: u8) -> FsResult<Vec<Extent>> {
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
        if planted::is(Planted::DeletionComparesWholeBlocks) && !kept.is_empty() {
            return Ok(Vec::new());
        }
        Ok(without(all, &kept))
    }
}

/// Returns the runs of fragments of `all` that lie in none of `kept`.
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

impl Visitor for Walking<'_, '_> {
    fn enters(&mut self, page: &Visit) -> FsResult<bool> {
        let is_skipped = !self.has_reserved() && self.is_page_kept(page)?;
        if is_skipped {
            self.cursor = page.at;
        }
        Ok(!is_skipped)
    }

    /// Frees what a pointer leads to, or counts it; breaks if the step may do no more.
    fn visit(&mut self, visit: &Visit) -> FsResult<ControlFlow<()>> {
        let is_taken = match visit.target {
            // A page of the map was looked at before what lies below it.
            Target::Page { kind, .. }
                if (kind != PageKind::Map || self.has_reserved())
                    && self.is_page_kept(visit)? =>
            {
                true
            }
            Target::Page { kind, owner } => match &mut self.with {
                Use::Free { change, .. } => {
                    let has_room = Step::has_room_for_page(change.page_count());
                    if has_room {
                        change.free_page(visit.pointer.place, kind, owner)?;
                    }
                    has_room
                }
                Use::Count { fragments, pointers_left } => {
                    let of_page = u64::from(self.store.geometry().page_fragments());
                    *fragments += of_page;
                    take_one(pointers_left)
                }
            },
            Target::Data { shift } => {
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

/// Whether one more pointer may be looked at.
fn take_one(pointers_left: &mut usize) -> bool {
    let is_left = *pointers_left > 0;
    *pointers_left = pointers_left.saturating_sub(1);
    is_left
}

impl Walking<'_, '_> {
    /// Frees or counts parts of a block; returns whether the step may.
    fn take_parts(&mut self, parts: &[Extent], visit: &Visit, shift: u8) -> bool {
        match &mut self.with {
            Use::Free { change, step } => {
                let is_taken = step.take_parts(parts, change.page_count());
                // A clone reserves nothing.
                let fragment_shift = self.store.geometry().fragment_shift;
                let kept = visit.pointer.reserved_fragments(shift, fragment_shift);
                if is_taken && kept > 0 && !self.is_clone {
                    change.unreserve(kept);
                }
                is_taken
            }
            Use::Count { fragments, pointers_left } => {
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
    /// Frees a part of the deleted fileset in `slot`. Called with no lock held.
    pub(crate) fn free_some(&self, store: &Store, slot: u32) -> FsResult<Progress> {
        let mut change = store.begin_pool(Reservation::LARGE)?;
        let mut index = self.lock(store)?;
        if index.node(slot).is_none() {
            return Ok(Progress::Gone);
        }
        let mut entry = index.read_entry(store, slot)?;
        let Some(cursor) = entry.state.cursor() else { return Ok(Progress::Gone) };
        let others = others_of(store, &index, &entry)?;
        let step = Step::new(&change);
        let others = others.as_ref();
        let is_clone = entry.state.is_of_clone();
        let with = Use::Free { change: &mut change, step };
        let mut walking = Walking { store, with, cursor, others, is_clone, twins: Vec::new() };
        let is_whole = walk_from(store, &entry, &mut walking)?.is_continue();
        let Walking { with, cursor: reached, .. } = walking;
        let Use::Free { step, .. } = with else { return Ok(Progress::More) };
        change.free(step.extents())?;
        if is_whole && others.is_some_and(|others| !others.child_tables.is_empty()) {
            entry.state = entry.state.freed_to(reached);
            index.write_entry(store, &mut change, &entry, None)?;
            change.end();
            index.note(&entry);
            return Ok(Progress::Whole);
        }
        if is_whole {
            if !is_clone {
                let used = i64::try_from(entry.anodes_used).unwrap_or(0);
                change.count_anodes(-used);
            }
            index.clear_entry(store, &mut change, slot)?;
            change.end();
            index.note_cleared(slot);
            return Ok(Progress::Gone);
        }
        let moved = if planted::is(Planted::DeletionCursorKept) { cursor } else { reached };
        entry.state = entry.state.freed_to(moved);
        index.write_entry(store, &mut change, &entry, None)?;
        change.end();
        index.note(&entry);
        Ok(Progress::More)
    }

    /// Counts the fragments that only a clone holds, past `cursor`, a part of them: what its
    /// deletion would give back. Those who go back to it and are in `still` do not change
    /// meanwhile.
    pub(crate) fn count_own(
        &self,
        store: &Store,
        (slot, id): (u32, FilesetId),
        cursor: Cursor,
        still: &[u32],
    ) -> FsResult<Counted> {
        let index = self.lock(store)?;
        if !index.node(slot).is_some_and(|node| node.id == id && node.is_clone()) {
            return Ok(Counted::Gone);
        }
        let changes = |child: &Node| child.is_live() || child.is_receiving();
        let is_open = |child: &Node| changes(child) && !still.contains(&child.slot);
        if index.children_in_family(slot).any(is_open) {
            return Ok(Counted::Open);
        }
        let entry = index.read_entry(store, slot)?;
        let others = others_of(store, &index, &entry)?;
        let with = Use::Count { fragments: 0, pointers_left: POINTERS_PER_COUNT };
        let (others, twins) = (others.as_ref(), Vec::new());
        let mut walking = Walking { store, with, cursor, others, is_clone: true, twins };
        let is_whole = walk_from(store, &entry, &mut walking)?.is_continue();
        let Walking { with, cursor, .. } = walking;
        let fragments = if let Use::Count { fragments, .. } = with { fragments } else { 0 };
        Ok(Counted::Part(fragments, (!is_whole).then_some(cursor)))
    }
}

/// Returns what others hold of what is deleted; `None`: nothing.
fn others_of(store: &Store, index: &Index, entry: &Fileset) -> FsResult<Option<Others>> {
    let mut child_tables = Vec::new();
    // What is being freed holds nothing of one that is in use.
    let is_asked = |child: &&Node| entry.state.cursor().is_some() || !child.is_deleted();
    for child in index.children_in_family(entry.slot).filter(is_asked) {
        child_tables.push(index.read_entry(store, child.slot)?.table_anode());
    }
    if child_tables.is_empty() && entry.parent.is_none() {
        return Ok(None);
    }
    if planted::is(Planted::DeletionForgetsChild) {
        child_tables.iter_mut().for_each(|table| table.root.fill(0));
    }
    let is_planted = planted::is(Planted::DeletionForgetsParent);
    let shared_epoch = if is_planted { Epoch(0) } else { entry.shared_epoch };
    // What it reserves, the pool counts.
    let is_any_reserved = entry.may_reserve && store.alloc.counts().reserved > 0;
    let has_reserved = !entry.state.is_of_clone() && is_any_reserved;
    Ok(Some(Others { shared_epoch, child_tables, has_reserved }))
}

/// Walks what lies past the cursor; breaks if the step may do no more.
fn walk_from(
    store: &Store,
    entry: &Fileset,
    walking: &mut Walking<'_, '_>,
) -> FsResult<ControlFlow<()>> {
    let table = entry.table_anode();
    if walking.cursor.container != Cursor::TABLE
        && walk_containers(store, entry, &table, walking)?.is_break()
    {
        return Ok(ControlFlow::Break(()));
    }
    let from = walking.cursor;
    let content = Content::Pages(PageKind::Anode);
    walking.twins = walking.others.map(|others| others.child_tables.clone()).unwrap_or_default();
    store.walk_container((&table, Cursor::TABLE), content, from, walking)
}

fn walk_containers(
    store: &Store,
    entry: &Fileset,
    table: &Anode,
    walking: &mut Walking<'_, '_>,
) -> FsResult<ControlFlow<()>> {
    let first = walking.cursor.container;
    let per_page = wide(SLOTS_PER_PAGE);
    let (mut seen, mut looked) = (0, 0);
    // Who has a page of the table has all that its anodes lead to.
    let others = walking.others.filter(|others| !others.has_reserved);
    let own = Own {
        anode: table,
        shared_epoch: others.map_or(Epoch(0), |others| others.shared_epoch),
        others: others.map_or(&[], |others| &others.child_tables),
    };
    // A table that a stream has made may have holes of any size.
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

/// Walks the container of the anode of this number; `None`: there is no such anode.
fn walk_one(
    store: &Store,
    entry: &Fileset,
    table: &Anode,
    (number, walking): (u64, &mut Walking<'_, '_>),
) -> FsResult<Option<ControlFlow<()>>> {
    let read = |table: &Anode| read_anode_in(store, table, None, entry.family, AnodeNo(number));
    let Some(anode) = read(table)? else { return Ok(None) };
    walking.twins.clear();
    // What leads to nothing need not be held against anything.
    if anode.storage != StorageMode::Inline {
        let children = walking.others.map_or(&[][..], |others| &others.child_tables);
        for child in children {
            walking.twins.extend(read(child)?);
        }
    }
    let (from, content) = (walking.cursor, Content::of(&anode));
    store.walk_container((&anode, number), content, from, walking).map(Some)
}
