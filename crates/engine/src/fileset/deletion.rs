//! A deleted fileset is freed: by a walk in post-order, in steps that are one transaction each. It
//! changes none of the pages that it walks but for those that it frees, so it needs no space.
//!
//! # Invariants
//!
//! - DL1: What lies at or before the cursor is free, and nobody reads it; what lies past it is as
//!   the fileset left it. Each step frees and moves the cursor in one transaction.
//! - DL2: The entry is cleared by the step that has freed the last of the anode table.

use std::ops::ControlFlow;

use format::anode::Anode;
use format::fileset::{Cursor, Fileset, FilesetState};
use format::ids::AnodeNo;
use format::page::{PageKind, SLOTS_PER_PAGE};
use runtime::planted::{self, Planted};

use super::read_anode_in;
use super::table::FilesetTable;
use crate::container::{Content, Step, Target, Visit};
use crate::convert::wide;
use crate::error::FsResult;
use crate::journal::Reservation;
use crate::store::{Change, Store};

/// Anodes that one step looks at, so that many without blocks do not hold the lock for long.
const ANODES_PER_STEP: usize = 4096;

/// What a step has left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Progress {
    /// More is to be freed.
    More,
    /// The fileset is gone.
    Gone,
}

/// One step under way.
struct Freeing<'s, 'c> {
    change: &'c mut Change<'s>,
    step: Step,
    cursor: Cursor,
    fragment_shift: u8,
}

impl Freeing<'_, '_> {
    /// Frees what a pointer leads to; breaks if the transaction may free no more.
    fn visit(&mut self, visit: &Visit) -> FsResult<ControlFlow<()>> {
        let pages = self.change.page_count();
        match visit.target {
            Target::Page { kind, owner } => {
                if !Step::has_room_for_page(pages) {
                    return Ok(ControlFlow::Break(()));
                }
                self.change.free_page(visit.pointer.place, kind, owner)?;
            }
            Target::Data { shift } => {
                if !self.step.take_unit(visit.pointer.stored(), pages) {
                    return Ok(ControlFlow::Break(()));
                }
                let kept = visit.pointer.reserved_fragments(shift, self.fragment_shift);
                if kept > 0 {
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
        let fragment_shift = store.geometry().fragment_shift;
        let step = Step::new(&change);
        let mut freeing = Freeing { change: &mut change, step, cursor, fragment_shift };
        let is_whole = free_from(store, &entry, &mut freeing)?.is_continue();
        let Freeing { step, cursor: reached, .. } = freeing;
        change.free(step.extents())?;
        if is_whole {
            let used = i64::try_from(entry.anodes_used).unwrap_or(0);
            change.count_anodes(-used);
            index.clear_entry(store, &mut change, slot)?;
            change.end();
            index.note_cleared(slot);
            return Ok(Progress::Gone);
        }
        let moved = if planted::is(Planted::DeletionCursorKept) { cursor } else { reached };
        entry.state = FilesetState::Deleted(moved);
        index.write_entry(store, &mut change, &entry, None)?;
        change.end();
        index.note(&entry);
        Ok(Progress::More)
    }
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
    store.walk_container((&table, Cursor::TABLE), content, from, &mut |visit| freeing.visit(visit))
}

fn free_containers(
    store: &Store,
    entry: &Fileset,
    table: &Anode,
    freeing: &mut Freeing<'_, '_>,
) -> FsResult<ControlFlow<()>> {
    let first = freeing.cursor.container;
    let per_page = wide(SLOTS_PER_PAGE);
    let mut seen = 0;
    for page in first / per_page..entry.anodes_end.div_ceil(per_page) {
        if store.block(None, table, page)?.is_none() {
            continue;
        }
        for number in (page * per_page).max(first.max(1))..(page + 1) * per_page {
            let anode = read_anode_in(store, table, None, entry.family, AnodeNo(number))?;
            let Some(anode) = anode else { continue };
            let from = freeing.cursor;
            let walked = store.walk_container(
                (&anode, number),
                Content::of(&anode),
                from,
                &mut |visit| freeing.visit(visit),
            )?;
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
