//! Moving blocks that clones hold: each once, whole, and all pointers to it in one transaction.
//!
//! What a fileset alone holds is moved as a rewrite would be ([`super::relocate`]). A block that
//! others of its family hold too has a pointer in the map of each, in pages of their own or of
//! several. So it is copied first and waits, in no file, until its write is under way. Then all who
//! hold it are found again, and each page that leads to it is changed where it is, in clones too:
//! only places change, so what a clone holds stays what it was.
//!
//! # Invariants
//!
//! - MV1: A block that was moved has the birth that it had, in every pointer and in its summary.
//! - MV2: All pointers of all who hold a block change in one transaction, or none. One that the
//!   walk of a deletion will not follow again is none.
//! - MV3: A move changes nobody's content, counts or threshold; only places.
//! - MV4: From the look that decides to the end, the files in memory of all who hold the block are
//!   locked: no reader has an old place behind it.
//! - MV5: A fragment is freed by a move if anybody held it, once; nobody holds it then.
//!
//! # Crashes
//!
//! The transaction depends on the write of the copy. Without its commit nothing leads to the copy;
//! with it nothing leads to the old place, which is given out again only behind the checkpoint that
//! took the pages home. Who decided by the cursor of a deletion is of the class of the step that
//! set it, for both change the page of its entry.
//!
//! # Concurrency
//!
//! Nobody opens a fileset meanwhile, so a clone that is not opened has no file in memory. Then, in
//! this order: the gates of the writable ones, by trial; files, by rising number; the table of
//! filesets, which is the family's lock: a step of a deletion and a new clone take it too; the
//! writable filesets. A copy of a shared path is made behind a closed gate.

use std::collections::BTreeSet;
use std::collections::btree_map::{BTreeMap, Entry};
use std::sync::Arc;

use format::anode::Anode;
use format::fileset::Cursor;
use format::ids::{AnodeNo, FilesetId, Place};
use format::placement::Placement;
use format::pointer::BlockPointer;
use format::summary::SummaryEntry;
use runtime::planted::{self, Planted};
use runtime::sync::RwLockWriteGuard;

use super::api::Ino;
use super::relocate::Content;
use super::{Core, Files, Fileset, Vnode, VnodeState};
use crate::alloc::{Extent, Extents};
use crate::container::{Located, PointerAt};
use crate::convert::index_wide;
use crate::error::{FsError, FsResult};
use crate::fileset::family::{Family, Member};
use crate::fileset::moved::AnodeAt;
use crate::fileset::table::TableGuard;
use crate::gate::Gate;
use crate::journal::Reservation;
use crate::segment::{Block, BlockOwner, Claim, Origin};
use crate::store::Change;
use crate::usage::{Payer, Usage};

/// Blocks that are looked at, and moved, under one taking of all locks.
const BLOCKS_PER_MOVE: usize = 64;
/// Pages that one move may change beside one of each who holds a block.
const PAGES_PER_MOVE: usize = 24;
/// Pointers that one move may change: each is some 32 bytes of log.
const POINTERS_PER_MOVE: usize = 1500;
/// Blocks that could not be read of which moves tell.
const UNREAD_MAX: usize = 1024;
/// Times that a closed gate, or a fileset that was made meanwhile, is waited for.
const TRIES: usize = 3;

/// Blocks that were copied and wait for the pointers to them to change, and those that cannot be
/// read.
#[derive(Debug, Default)]
pub(crate) struct Moves {
    waiting: Vec<Moving>,
    unread: Vec<Unread>,
}

/// A block that is to be moved and cannot be read, as its summary lists it: it stays where it is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Unread {
    pub(crate) entry: SummaryEntry,
    pub(crate) place: Place,
}

impl Moves {
    /// Notes a block that stays where it is.
    pub(crate) fn note_unread(&mut self, entry: &SummaryEntry, place: Place) {
        if self.unread.len() < UNREAD_MAX {
            self.unread.push(Unread { entry: *entry, place });
        }
    }

    /// Returns the blocks that could not be read, the first of them if they are many.
    pub(crate) fn unread(self) -> Vec<Unread> {
        self.unread
    }
}

#[derive(Debug)]
struct Moving {
    entry: SummaryEntry,
    /// Where it was.
    from: Place,
    block: Arc<Block>,
}

/// One who holds a block, and its pointers to it.
struct Holder {
    slot: u32,
    anode_at: AnodeAt,
    parent: AnodeNo,
    placement: Placement,
    pointers: Vec<Located>,
}

/// A family with some of its files, locked.
struct Locked<'l> {
    core: &'l Core,
    index: TableGuard<'l>,
    family: Family,
    states: BTreeMap<Ino, RwLockWriteGuard<'l, VnodeState>>,
    /// Anode tables, by slot.
    tables: BTreeMap<u32, Anode>,
    /// Anodes as their pages have them.
    anodes: BTreeMap<AnodeAt, Option<Anode>>,
}

impl Locked<'_> {
    /// Returns the pointers of one of the family that lead to the block at `from`.
    fn look(&mut self, slot: u32, entry: &SummaryEntry, from: Place) -> FsResult<Option<Holder>> {
        let store = &self.core.store;
        let table = match self.tables.entry(slot) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(free) => free.insert(self.index.read_entry(store, slot)?.table_anode()),
        };
        let Some(anode_at) = AnodeAt::find(store, table, entry.anode)? else { return Ok(None) };
        let anode = match self.anodes.entry(anode_at) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(free) => free.insert(anode_at.read(store, entry.fileset)?),
        };
        let Some(anode) = anode.as_ref().filter(|anode| anode.generation == entry.generation)
        else {
            return Ok(None);
        };
        let Some(start) = entry.index.checked_mul(1 << entry.block_shift) else { return Ok(None) };
        let fragment_shift = store.geometry().fragment_shift;
        let mut pointers = store.locate(anode, start, entry.block_shift)?;
        pointers.retain(|it| {
            let before = (it.start - start) >> fragment_shift;
            // Behind the end of the block lies another, be it of the same range of the same file.
            let is_within = before + u64::from(it.pointer.fragments) <= entry.fragments.into()
                || planted::is(Planted::MoveTakesNeighbour);
            is_within && it.pointer.place.bits() == from.bits() + before
        });
        let (parent, placement) = (anode.parent, anode.placement);
        let holder = Holder { slot, anode_at, parent, placement, pointers };
        Ok(Some(holder).filter(|holder| !holder.pointers.is_empty()))
    }

    /// Returns one who holds the block at `from`.
    fn any_holder(&mut self, entry: &SummaryEntry, from: Place) -> FsResult<Option<Holder>> {
        let tops: Vec<Member> = self.family.tops(entry.birth).copied().collect();
        for member in tops {
            if let Some(holder) = self.look(member.slot, entry, from)? {
                return Ok(Some(holder).filter(|holder| !self.is_being_cut(holder)));
            }
        }
        Ok(None)
    }

    /// Returns all who hold the block at `from`; none: it is not to be moved.
    fn holders(&mut self, entry: &SummaryEntry, from: Place) -> FsResult<Vec<Holder>> {
        let family = self.family.clone();
        let look = |member: &Member| self.look(member.slot, entry, from);
        let mut holders = family.holders(entry.birth, look)?;
        if holders.iter().any(|holder| self.is_being_cut(holder)) {
            return Ok(Vec::new());
        }
        if !holders.is_empty() {
            for (slot, cursor) in family.deleted() {
                holders.extend(self.look_ahead(slot, cursor, entry, from)?);
            }
        }
        Ok(holders)
    }

    /// Returns the pointers of a deleted node that lie past its cursor: what lies before it may be
    /// anything (WK3).
    fn look_ahead(
        &mut self,
        slot: u32,
        cursor: Cursor,
        entry: &SummaryEntry,
        from: Place,
    ) -> FsResult<Option<Holder>> {
        let is_ignored = planted::is(Planted::MoveIgnoresCursor);
        let is_ahead = |index: u64, shift: u8| {
            is_ignored || Cursor::at(entry.anode.0, (index, 1), shift, 0) > cursor
        };
        if !is_ahead(entry.index, entry.block_shift) {
            return Ok(None);
        }
        let Some(mut holder) = self.look(slot, entry, from)? else { return Ok(None) };
        holder.pointers.retain(|it| is_ahead(it.start >> it.shift, it.shift));
        Ok(Some(holder).filter(|holder| !holder.pointers.is_empty()))
    }

    /// V5: whether a truncate is under way in the file of a writable holder.
    fn is_being_cut(&self, holder: &Holder) -> bool {
        let state = self.states.get(&ino_of(holder.slot, holder.anode_at.number));
        state.is_some_and(|state| state.is_being_cut)
    }

    /// The files in memory of those who hold a block read it where it is now.
    fn tell(&mut self, told: &[(Ino, usize, Place)]) {
        if planted::is(Planted::MoveVnodeNotTold) {
            return;
        }
        for (ino, root_slot, place) in told {
            let anode = self.states.get_mut(ino).and_then(|state| state.anode.as_mut());
            let Some(anode) = anode else { continue };
            if let Some(pointer) = anode.root_pointer(*root_slot) {
                let pointer = BlockPointer { place: *place, ..pointer };
                anode.set_root_pointer(*root_slot, Some(&pointer));
            }
        }
    }
}

pub(super) fn ino_of(slot: u32, number: AnodeNo) -> Ino {
    Ino(u64::from(slot) << super::api::ANODE_BITS | number.0)
}

/// What one transaction moves.
#[derive(Default)]
struct Plan {
    /// Where the blocks were: each is moved once, whatever summaries say.
    from: BTreeSet<Place>,
    /// Pages with pointers to them: of one with several the whole is taken.
    pages: BTreeSet<Place>,
    pointers: usize,
    taken: Extents,
    freed: Extents,
    /// Root pointers of files, and where they lead now.
    told: Vec<(Ino, usize, Place)>,
    /// Fragments of each block, from the front of what was asked for, that somebody holds.
    kept: Vec<u32>,
}

impl Plan {
    /// Whether the transaction can change what leads to one more block, of `members` at most.
    fn has_room(&self, holders: &[Holder], members: usize) -> bool {
        let pages: BTreeSet<Place> = holders.iter().flat_map(Holder::pages).collect();
        let pages = self.pages.union(&pages).count();
        let pointers: usize = holders.iter().map(|holder| holder.pointers.len()).sum();
        self.kept.is_empty()
            || (pages <= members + PAGES_PER_MOVE && self.pointers + pointers <= POINTERS_PER_MOVE)
    }

    /// Lets all pointers of `holders` lead to the copy.
    fn add(
        &mut self,
        change: &mut Change<'_>,
        moving: &Moving,
        holders: &[Holder],
    ) -> FsResult<()> {
        let (from, to) = (moving.from, moving.block.place);
        let mut done = BTreeSet::new();
        let mut is_held = vec![false; crate::convert::index(moving.entry.fragments)];
        for holder in holders {
            for located in &holder.pointers {
                let before = located.pointer.place.bits() - from.bits();
                let before = u32::try_from(before).map_err(|_| FsError::Invalid)?;
                let place = to.advance(before);
                let first = crate::convert::index(before);
                let count = crate::convert::index(located.pointer.fragments);
                let held = is_held.get_mut(first..first.saturating_add(count));
                held.ok_or(FsError::Invalid)?.fill(true);
                match located.at {
                    PointerAt::Map(page, slot) => {
                        if done.insert((page.place(), slot)) {
                            self.take(change, page.place());
                            page.set_place(change, slot, place)?;
                            self.pointers += 1;
                        }
                    }
                    PointerAt::Anode(slot) => {
                        let number = holder.anode_at.number;
                        self.told.push((ino_of(holder.slot, number), slot, place));
                        if done.insert((holder.anode_at.place, slot)) {
                            self.take(change, holder.anode_at.place);
                            holder.anode_at.set_place(change, slot, place)?;
                            self.pointers += 1;
                        }
                    }
                }
            }
        }
        self.note_fragments(from, to, &is_held);
        Ok(())
    }

    /// A pointer in the page at `place` is about to change.
    fn take(&mut self, change: &mut Change<'_>, place: Place) {
        if !self.pages.insert(place) {
            change.take_whole(place);
        }
    }

    /// MV5: takes and frees what somebody holds.
    fn note_fragments(&mut self, from: Place, to: Place, is_held: &[bool]) {
        let mut kept = 0;
        let is_whole = planted::is(Planted::MoveFreesWholeBlock);
        for (offset, is_held) in (0..).zip(is_held) {
            if *is_held {
                kept += 1;
                self.taken.add(Extent { place: to.advance(offset), fragments: 1 });
            }
            if *is_held || is_whole {
                self.freed.add(Extent { place: from.advance(offset), fragments: 1 });
            }
        }
        self.kept.push(kept);
    }
}

impl Holder {
    /// Returns the pages that have its pointers.
    fn pages(&self) -> impl Iterator<Item = Place> {
        self.pointers.iter().map(|located| match located.at {
            PointerAt::Map(page, _) => page.place(),
            PointerAt::Anode(_) => self.anode_at.place,
        })
    }
}

impl Core {
    /// Copies those of `entries`, of one segment, that somebody holds; they wait in `moves`.
    /// Called with no lock held.
    pub(crate) fn copy_held(
        &self,
        content: &Content,
        entries: &[SummaryEntry],
        moves: &mut Moves,
    ) -> FsResult<()> {
        let mut bad = None;
        for of_family in entries.chunk_by(|one, next| one.fileset == next.fileset) {
            for batch in of_family.chunks(BLOCKS_PER_MOVE) {
                bad = self.copy_batch(content, batch, moves)?.or(bad);
            }
        }
        bad.map_or(Ok(()), Err)
    }

    /// Copies some blocks of one family. Returns what is wrong with one that stays where it is.
    fn copy_batch(
        &self,
        content: &Content,
        batch: &[SummaryEntry],
        moves: &mut Moves,
    ) -> FsResult<Option<FsError>> {
        let Some(first) = batch.first() else { return Ok(None) };
        let numbers: BTreeSet<AnodeNo> = batch.iter().map(|entry| entry.anode).collect();
        let find = |mut locked: Locked<'_>, _: Option<Change<'_>>| {
            let mut found = Vec::new();
            for entry in batch {
                let from = content.start.advance(entry.offset);
                found.extend(locked.any_holder(entry, from)?.map(|holder| (entry, holder)));
            }
            Ok(found)
        };
        let Some(found) = self.in_family(first.fileset, &numbers, false, find)? else {
            return Ok(None);
        };
        let (nobodys, mut bad) = (Arc::new(Usage::nobodys()), None);
        for (entry, holder) in found {
            let from = content.start.advance(entry.offset);
            let data = match self.read_held(content, entry, from, &holder.pointers) {
                Ok(data) => data,
                Err(error) => {
                    bad = Some(error);
                    moves.note_unread(entry, from);
                    continue;
                }
            };
            let owner = BlockOwner {
                fileset: entry.fileset,
                anode: entry.anode,
                generation: entry.generation,
                index: entry.index,
                block_shift: entry.block_shift,
                directory: holder.parent,
                placement: holder.placement,
            };
            // Who holds it has counted it, and goes on so.
            let counted_fragments = u64::from(entry.fragments);
            let claim = Claim { counted_fragments, previous: Some(from), ..Claim::default() };
            let length = self.stored_bytes(entry.fragments);
            let origin = Origin::Cleaner(entry.birth);
            let payer = Payer::fileset(&nobodys);
            let origin = (origin, &payer);
            let block = self.segments.place(origin, owner, data.into(), length, claim)?;
            moves.waiting.push(Moving { entry: *entry, from, block });
        }
        Ok(bad)
    }

    /// Lets the pointers to all that waits in `moves` lead to the copies. Called with no lock held.
    pub(crate) fn settle_held(&self, moves: &mut Moves) -> FsResult<()> {
        let is_under_way = |it: &Moving| it.block.sealed().is_some_and(|(_, write)| write != 0);
        if !moves.waiting.iter().all(is_under_way) {
            self.segments.seal();
        }
        let mut most = BLOCKS_PER_MOVE;
        while let Some(first) = moves.waiting.first() {
            let family = first.entry.fileset;
            let is_other = |it: &Moving| it.entry.fileset != family;
            let count = moves.waiting.iter().position(is_other).unwrap_or(moves.waiting.len());
            let batch = &moves.waiting[..count.min(most)];
            let kept = match self.move_batch(batch) {
                // Where nothing was decided it stays where it was.
                Ok(kept) => kept.unwrap_or_else(|| vec![0; batch.len()]),
                // One page that can't be read must not keep other blocks from being moved.
                Err(error @ (FsError::Corrupt { .. } | FsError::Io { .. })) => {
                    self.store.journal.check_alive()?;
                    if batch.len() > 1 {
                        most = 1;
                        continue;
                    }
                    let anode = first.entry.anode.0;
                    tracing::warn!(%error, anode, "a block that clones hold is not moved");
                    vec![0]
                }
                Err(error) => return Err(error),
            };
            let moved = batch.iter().zip(&kept).filter(|(_, kept)| **kept > 0);
            self.segments.installed(moved.map(|(moving, kept)| (&moving.block, *kept)));
            let done: Vec<Moving> = moves.waiting.drain(..kept.len()).collect();
            for (moving, _) in done.iter().zip(&kept).filter(|(_, kept)| **kept == 0) {
                self.segments.kill(&moving.block);
            }
        }
        Ok(())
    }

    /// Gives up what waits in `moves`: it stays where it was.
    pub(crate) fn give_up_held(&self, moves: &mut Moves) {
        for moving in moves.waiting.drain(..) {
            self.segments.kill(&moving.block);
        }
    }

    /// Moves blocks of one family, as many from the front as one transaction can. Returns how many
    /// fragments of each somebody holds; `None`: they can't be moved now.
    fn move_batch(&self, batch: &[Moving]) -> FsResult<Option<Vec<u32>>> {
        let Some(first) = batch.first() else { return Ok(None) };
        let numbers: BTreeSet<AnodeNo> = batch.iter().map(|it| it.entry.anode).collect();
        let work = |mut locked: Locked<'_>, change: Option<Change<'_>>| {
            let mut change = change.ok_or(FsError::Invalid)?;
            let mut plan = Plan::default();
            for moving in batch {
                let mut holders = locked.holders(&moving.entry, moving.from)?;
                if !self.are_of(moving, &holders) {
                    holders.clear();
                }
                if !plan.has_room(&holders, locked.family.len()) {
                    break;
                }
                let is_held = !holders.is_empty() && plan.from.insert(moving.from);
                let Some((_, sequence)) = moving.block.sealed().filter(|_| is_held) else {
                    plan.kept.push(0);
                    continue;
                };
                plan.add(&mut change, moving, &holders)?;
                change.tx_mut().depends_on_data(sequence);
            }
            for (slot, _) in locked.family.deleted() {
                locked.index.note_entry(&self.store, &mut change, slot)?;
            }
            change.install(&std::mem::take(&mut plan.taken).in_order())?;
            change.free(&std::mem::take(&mut plan.freed).in_order())?;
            change.end();
            locked.tell(&plan.told);
            Ok(plan.kept)
        };
        self.in_family(first.entry.fileset, &numbers, true, work)
    }

    /// Whether what was copied is what all of `holders` lead to: since it was copied the place may
    /// have been freed and used again, for a block of the same range of the same file too; and what
    /// one of them does not have was not verified then.
    fn are_of(&self, moving: &Moving, holders: &[Holder]) -> bool {
        let data = moving.block.data();
        let shift = self.store.geometry().fragment_shift;
        let mut pointers = holders.iter().flat_map(|holder| &holder.pointers);
        let is_of = |it: &Located| {
            let before = it.pointer.place.bits().saturating_sub(moving.from.bits());
            let start = index_wide(before << shift);
            let part = data.get(start..start + self.stored_bytes(it.pointer.fragments));
            let is_born_then = it.pointer.birth == moving.entry.birth;
            is_born_then && part.is_some_and(|part| it.pointer.verifies(part))
        };
        // Who takes a neighbour for a part of a block takes it unseen.
        let is_planted = planted::is(Planted::MoveTakesWhatLiesThereNow)
            || planted::is(Planted::MoveTakesNeighbour);
        pointers.all(is_of) || is_planted
    }

    /// Does `work` with the files `numbers` of a whole family locked, in a transaction if one is
    /// wanted. `None`: nobody of the family is in use, or it can't be locked now. Called with no
    /// lock held.
    fn in_family<T>(
        &self,
        family: FilesetId,
        numbers: &BTreeSet<AnodeNo>,
        is_changing: bool,
        work: impl FnOnce(Locked<'_>, Option<Change<'_>>) -> FsResult<T>,
    ) -> FsResult<Option<T>> {
        for _ in 0..TRIES {
            let wanted = Family::of(&*self.filesets.table.lock(&self.store)?, family);
            // A pool may be opened with a smaller log than the one that its clones were taken with.
            let is_too_large = wanted.len() > self.store.journal.moved_members_max();
            if wanted.members().next().is_none() || is_too_large {
                return Ok(None);
            }
            for member in wanted.members().filter(|member| member.is_writable) {
                match self.open_for_job(member.slot) {
                    Ok(Some(_)) | Err(FsError::Stale) => {}
                    Ok(None) => return Ok(None),
                    Err(error) => return Err(error),
                }
            }
            let Some(opening) = self.filesets.keep_unopened() else { return Ok(None) };
            let opened = self.opened_in(&wanted)?;
            let gates = opened.iter().filter(|it| !it.is_clone()).map(|it| &it.gate);
            let gates: Vec<&Gate> = gates.collect();
            let (change, _inside) = if is_changing {
                let reservation = Reservation::for_move(wanted.len());
                match self.store.begin_inside(&gates, reservation)? {
                    Some((change, inside)) => (Some(change), inside),
                    None => {
                        drop(opening);
                        gates.iter().for_each(|gate| gate.wait_until_open());
                        continue;
                    }
                }
            } else {
                let inside: Vec<_> = gates.iter().map_while(|gate| gate.try_enter()).collect();
                if inside.len() < gates.len() {
                    drop((inside, opening));
                    gates.iter().for_each(|gate| gate.wait_until_open());
                    continue;
                }
                (None, inside)
            };
            let vnodes = self.vnodes_of(&opened, numbers)?;
            let states = vnodes.iter().map(|(ino, vnode)| (*ino, vnode.state.write())).collect();
            let index = self.filesets.table.lock(&self.store)?;
            if opened.iter().any(|fileset| fileset.check_current().is_err()) {
                // One was restored meanwhile: its slot has another tree.
                continue;
            }
            let family = Family::of(&index, family);
            let is_known = |it: &Member| !it.is_writable || wanted.has(it.slot);
            if !family.members().all(is_known) || family.len() > wanted.len() {
                // A fileset was made of a clone meanwhile, or a clone was taken.
                continue;
            }
            let writable = opened.iter().filter(|fileset| !fileset.is_clone());
            let _guards: Vec<_> = writable.map(|fileset| fileset.anodes.lock()).collect();
            let (tables, anodes) = (BTreeMap::new(), BTreeMap::new());
            let locked = Locked { core: self, index, family, states, tables, anodes };
            return work(locked, change).map(Some);
        }
        Ok(None)
    }

    /// Returns those of `wanted` that are opened and still in use. Called while nobody opens a
    /// fileset: so nobody puts a clone out of use either, and the files of none that is being
    /// freed are loaded (PO1).
    pub(super) fn opened_in(&self, wanted: &Family) -> FsResult<Vec<&Fileset>> {
        let index = self.filesets.table.lock(&self.store)?;
        let is_used = |slot: u32| index.node(slot).is_some_and(|node| !node.is_deleted());
        let used = wanted.members().filter(|it| is_used(it.slot));
        Ok(used.filter_map(|it| self.filesets.by_slot(it.slot)).collect())
    }

    /// Returns the vnodes of the files `numbers` of each fileset, by rising number.
    pub(super) fn vnodes_of(
        &self,
        filesets: &[&Fileset],
        numbers: &BTreeSet<AnodeNo>,
    ) -> FsResult<BTreeMap<Ino, Arc<Vnode>>> {
        let mut vnodes = BTreeMap::new();
        for fileset in filesets {
            for number in numbers {
                match (Files { core: self, fileset }).vnode_of(*number) {
                    Ok(vnode) => drop(vnodes.insert(vnode.ino, vnode)),
                    Err(FsError::Stale) => {}
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(vnodes)
    }
}

#[cfg(test)]
mod tests;
