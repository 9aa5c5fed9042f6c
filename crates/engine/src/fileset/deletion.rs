//! A deleted fileset, or clone, is freed: by a walk in post-order, in steps that are one
//! transaction each. It changes none of the pages that it walks but for those that it frees, so it
//! needs no space.
//!
//! # Invariants
//!
//! - DL1: What lies at or before the cursor is free, and nobody reads it; what lies past it is as
//!   the fileset left it. Each step frees and moves the cursor in one transaction.
//! - DL2: The entry is cleared by the step that has freed the last of the anode table.
//! - DL3: Only that is freed which neither the clone before it holds, nor the one after it at the
//!   same position. Neither changes meanwhile. What is deleted has one child at most.

use std::ops::ControlFlow;

use format::anode::Anode;
use format::fileset::{Cursor, Fileset};
use format::ids::{AnodeNo, Epoch};
use format::page::{PageKind, SLOTS_PER_PAGE};
use runtime::planted::{self, Planted};

use super::read_anode_in;
use super::table::{FilesetTable, Index};
use crate::alloc::Extent;
use crate::container::{Content, Step, Target, Visit, Visitor};
use crate::convert::wide;
use crate::error::FsResult;
use crate::journal::Reservation;
use crate::store::{Change, Store};

/// Anodes that one step looks at, so that many without blocks do not hold the lock for long.
const ANODES_PER_STEP: usize = 4096;
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

/// What others of the family hold of what is deleted: that stays.
struct Others {
    /// What was born in this epoch or before it, the clone before it holds.
    shared_epoch: Epoch,
    /// Anode table of the one after it, if there is one.
    child_table: Option<Anode>,
    /// Whether what stays may reserve room that nobody gives back but this: then it is looked at.
    has_reserved: bool,
}

/// One step under way.
struct Freeing<'s, 'c> {
    store: &'s Store,
    change: &'c mut Change<'s>,
    step: Step,
    cursor: Cursor,
    others: Option<&'c Others>,
    is_clone: bool,
    /// The container in hand as the one after has it.
    twin: Option<Anode>,
}

impl Freeing<'_, '_> {
    fn has_reserved(&self) -> bool {
        self.others.is_some_and(|others| others.has_reserved)
    }

    /// Whether others of the family have a page that the container in hand has, at the same place.
    fn is_page_kept(&self, visit: &Visit) -> FsResult<bool> {
        let Some(others) = self.others else { return Ok(false) };
        if visit.pointer.birth <= others.shared_epoch {
            return Ok(true);
        }
        let (Target::Page { kind, owner }, Some(twin)) = (visit.target, &self.twin) else {
            return Ok(false);
        };
        Ok(self.store.place_of_page(twin, (kind, owner))? == Some(visit.pointer.place))
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
        let units = match &self.twin {
            Some(twin) => self.store.units(twin, start, visit.at.end)?,
            None => Vec::new(),
        };
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

impl Visitor for Freeing<'_, '_> {
    fn enters(&mut self, page: &Visit) -> FsResult<bool> {
        let is_skipped = !self.has_reserved() && self.is_page_kept(page)?;
        if is_skipped {
            self.cursor = page.at;
        }
        Ok(!is_skipped)
    }

    /// Frees what a pointer leads to; breaks if the transaction may free no more.
    fn visit(&mut self, visit: &Visit) -> FsResult<ControlFlow<()>> {
        let pages = self.change.page_count();
        match visit.target {
            // A page of the map was looked at before what lies below it.
            Target::Page { kind, .. }
                if (kind != PageKind::Map || self.has_reserved())
                    && self.is_page_kept(visit)? => {}
            Target::Page { kind, owner } => {
                if !Step::has_room_for_page(pages) {
                    return Ok(ControlFlow::Break(()));
                }
                self.change.free_page(visit.pointer.place, kind, owner)?;
            }
            Target::Data { shift } => {
                let parts = self.own_parts(visit, shift)?;
                if !self.step.take_parts(&parts, pages) {
                    return Ok(ControlFlow::Break(()));
                }
                // A clone reserves nothing.
                let fragment_shift = self.store.geometry().fragment_shift;
                let kept = visit.pointer.reserved_fragments(shift, fragment_shift);
                if kept > 0 && !self.is_clone {
                    self.change.unreserve(kept);
                }
            }
        }
        self.cursor = visit.at;
        Ok(ControlFlow::Continue(()))
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
        let change_ref = &mut change;
        let mut freeing =
            Freeing { store, change: change_ref, step, cursor, others, is_clone, twin: None };
        let is_whole = free_from(store, &entry, &mut freeing)?.is_continue();
        let Freeing { step, cursor: reached, .. } = freeing;
        change.free(step.extents())?;
        if is_whole && others.is_some_and(|others| others.child_table.is_some()) {
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
}

/// Returns what others hold of what is deleted; `None`: nothing.
fn others_of(store: &Store, index: &Index, entry: &Fileset) -> FsResult<Option<Others>> {
    let child = index.children_in_family(entry.slot).next();
    if child.is_none() && entry.parent.is_none() {
        return Ok(None);
    }
    let read = |slot| index.read_entry(store, slot).map(|child| child.table_anode());
    let mut child_table = child.map(|child| read(child.slot)).transpose()?;
    if let Some(table) = &mut child_table
        && planted::is(Planted::DeletionForgetsChild)
    {
        table.root.fill(0);
    }
    let is_planted = planted::is(Planted::DeletionForgetsParent);
    let shared_epoch = if is_planted { Epoch(0) } else { entry.shared_epoch };
    // What it reserves, the pool counts.
    let is_any_reserved = entry.may_reserve && store.alloc.counts().reserved > 0;
    let has_reserved = !entry.state.is_of_clone() && is_any_reserved;
    Ok(Some(Others { shared_epoch, child_table, has_reserved }))
}

/// Frees what lies past the cursor; breaks if the transaction may free no more.
fn free_from(
    store: &Store,
    entry: &Fileset,
    freeing: &mut Freeing<'_, '_>,
) -> FsResult<ControlFlow<()>> {
    let table = entry.table_anode();
    if freeing.cursor.container != Cursor::TABLE
        && free_containers(store, entry, &table, freeing)?.is_break()
    {
        return Ok(ControlFlow::Break(()));
    }
    let from = freeing.cursor;
    let content = Content::Pages(PageKind::Anode);
    freeing.twin = freeing.others.and_then(|others| others.child_table.clone());
    store.walk_container((&table, Cursor::TABLE), content, from, freeing)
}

fn free_containers(
    store: &Store,
    entry: &Fileset,
    table: &Anode,
    freeing: &mut Freeing<'_, '_>,
) -> FsResult<ControlFlow<()>> {
    let first = freeing.cursor.container;
    let per_page = wide(SLOTS_PER_PAGE);
    let (mut seen, mut looked) = (0, 0);
    let mut next = first / per_page;
    // A table that a stream has made may have holes of any size.
    while let Some((page, found)) = store.next_page(table, next)? {
        next = page + 1;
        let (mut child, mut is_kept) = (None, false);
        if let Some(others) = freeing.others {
            child = others.child_table.as_ref();
            let twin = child.map(|child| store.block(None, child, page)).transpose()?.flatten();
            // Who has the page has all that its anodes lead to.
            is_kept = !others.has_reserved
                && (found.birth <= others.shared_epoch
                    || twin.is_some_and(|twin| twin.place == found.place));
        }
        looked += 1;
        if is_kept {
            let last = (page + 1) * per_page - 1;
            freeing.cursor = Cursor { container: last, end: u64::MAX, height: u8::MAX };
            if looked >= PAGES_PER_STEP {
                return Ok(ControlFlow::Break(()));
            }
            continue;
        }
        for number in (page * per_page).max(first.max(1))..(page + 1) * per_page {
            let anode = read_anode_in(store, table, None, entry.family, AnodeNo(number))?;
            let Some(anode) = anode else { continue };
            freeing.twin = match child {
                Some(child) => read_anode_in(store, child, None, entry.family, AnodeNo(number))?,
                None => None,
            };
            let from = freeing.cursor;
            let content = Content::of(&anode);
            let walked = store.walk_container((&anode, number), content, from, freeing)?;
            if walked.is_break() {
                return Ok(ControlFlow::Break(()));
            }
            seen += 1;
            if seen >= ANODES_PER_STEP {
                freeing.cursor = Cursor { container: number, end: u64::MAX, height: u8::MAX };
                return Ok(ControlFlow::Break(()));
            }
        }
    }
    Ok(ControlFlow::Continue(()))
}
