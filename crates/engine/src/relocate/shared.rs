//! Moving blocks that snapshots share: each once, whole, and all pointers to it in one transaction.
//!
//! An unshared block is moved by rewriting it ([`crate::relocate::block`]). A shared one has a
//! pointer in the map of each *holder*, which is a node of the family. The block is copied first,
//! outside of any file. Once the write of the copy is under way, all holders are determined again,
//! and their pointers are changed in place, in snapshots too.
//!
//! # Invariants
//!
//! - MV1: A moved block keeps its birth, in every pointer and in its summary.
//! - MV2: All pointers of all holders change in one transaction, or none does. Pointers that the
//!   walk of a deletion has passed do not count: they are undefined.
//! - MV3: A move changes only places: no content, counts or threshold.
//! - MV4: From the lookup that decides on the holders to the end of the transaction, their files in
//!   memory are locked, so no reader keeps an old place.
//! - MV5: A move frees each held fragment of the old place once. No node holds the old place then.
//! # Crashes
//!
//! The transaction depends on the write of the copy. Before its commit nothing points to the copy,
//! and after it nothing points to the old place. The old place is reused only after the checkpoint
//! that writes the pointers back. A lookup that relies on the cursor of a deletion is in the class
//! of the step that set the cursor, since both change the page of the deleted node's entry.
//!
//! # Concurrency
//!
//! No fileset can be opened during a move, so an unopened snapshot has no file in memory. Lock
//! order: the gates of the writable filesets, by trial; files, by rising number; the table of
//! filesets, which is also the lock for deletions in the family and its new snapshots; the writable
//! filesets. A shared path is copied behind a closed gate.

use crate::file::BlockMover;
use std::collections::BTreeSet;
use std::collections::btree_map::{BTreeMap, Entry};
use std::sync::Arc;

use format::anode::Anode;
use format::fileset::Cursor;
use format::ids::{AnodeNo, FilesetId, Place};
use format::placement::Placement;
use format::pointer::BlockPointer;
use format::summary::SummaryEntry;
use runtime::planted;
use runtime::sync::RwLockWriteGuard;

use crate::alloc::{Extent, Extents};
use crate::api::Ino;
use crate::container::{LocatedPointer, PointerLocation};
use crate::convert::index_wide;
use crate::error::{FsError, FsResult};
use crate::file::{Core, Files, OpenFileset, Vnode, VnodeState};
use crate::fileset_table::family::{Family, FamilyNode};
use crate::fileset_table::moved::AnodeLocation;
use crate::fileset_table::table::TableGuard;
use crate::gate::FilesetGate;
use crate::journal::LogCredits;
use crate::relocate::block::SegmentContent;
use crate::segment::{Block, BlockAccounting, BlockOrigin, BlockOwner};
use crate::store::Change;
use crate::usage::{BlockAccounts, Usage};

/// Blocks that are moved while the locks are held once.
const BLOCKS_PER_MOVE: usize = 64;
/// Pages that a move may change besides one per holder.
const PAGES_PER_MOVE: usize = 24;
/// Pointers that a move may change, about 32 bytes of log each.
const POINTERS_PER_MOVE: usize = 1500;
const UNREAD_MAX: usize = 1024;
const TRIES: usize = 3;

/// Copied blocks to which no pointer leads yet, and unreadable blocks.
#[derive(Debug, Default)]
pub(crate) struct BlockMoves {
    waiting: Vec<BlockMove>,
    unread: Vec<UnreadableBlock>,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct UnreadableBlock {
    pub(crate) entry: SummaryEntry,
    pub(crate) place: Place,
}

impl BlockMoves {
    pub(crate) fn note_unread(&mut self, entry: &SummaryEntry, place: Place) {
        if self.unread.len() < UNREAD_MAX {
            self.unread.push(UnreadableBlock { entry: *entry, place });
        }
    }

    pub(crate) fn unread(self) -> Vec<UnreadableBlock> {
        self.unread
    }
}

#[derive(Debug)]
struct BlockMove {
    entry: SummaryEntry,
    from: Place,
    block: Arc<Block>,
}

/// A node with pointers to a block that is to be moved.
struct BlockHolder {
    slot: u32,
    anode_at: AnodeLocation,
    parent: AnodeNo,
    placement: Placement,
    pointers: Vec<LocatedPointer>,
}

struct LockedHolders<'l> {
    core: &'l Core,
    index: TableGuard<'l>,
    family: Family,
    states: BTreeMap<Ino, RwLockWriteGuard<'l, VnodeState>>,
    tables: BTreeMap<u32, Anode>,
    /// Anodes as stored in their pages.
    anodes: BTreeMap<AnodeLocation, Option<Anode>>,
}

impl LockedHolders<'_> {
    /// Returns the node in `slot` with its pointers to the block at `from`; `None` if it has none.
    fn look(
        &mut self,
        slot: u32,
        entry: &SummaryEntry,
        from: Place,
    ) -> FsResult<Option<BlockHolder>> {
        let store = &self.core.store;
        let table = match self.tables.entry(slot) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(free) => free.insert(self.index.read_entry(store, slot)?.table_anode()),
        };
        let Some(anode_at) = AnodeLocation::find(store, table, entry.anode)? else {
            return Ok(None);
        };
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
            // The fragments after the block's end belong to another block, possibly of the same
            // range of the file.
            let is_within = before + u64::from(it.pointer.fragments) <= entry.fragments.into();
            is_within && it.pointer.place.bits() == from.bits() + before
        });
        let (parent, placement) = (anode.parent, anode.placement);
        let holder = BlockHolder { slot, anode_at, parent, placement, pointers };
        Ok(Some(holder).filter(|holder| !holder.pointers.is_empty()))
    }

    fn any_holder(&mut self, entry: &SummaryEntry, from: Place) -> FsResult<Option<BlockHolder>> {
        let tops: Vec<FamilyNode> = self.family.tops(entry.birth).copied().collect();
        for member in tops {
            if let Some(holder) = self.look(member.slot, entry, from)? {
                return Ok(Some(holder).filter(|holder| !self.is_being_cut(holder)));
            }
        }
        Ok(None)
    }

    /// Returns all holders; none if the block must not be moved.
    fn holders(&mut self, entry: &SummaryEntry, from: Place) -> FsResult<Vec<BlockHolder>> {
        let family = self.family.clone();
        let look = |member: &FamilyNode| self.look(member.slot, entry, from);
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

    /// Returns the pointers that the walk of a deleted node has yet to pass. Those behind its
    /// cursor are undefined.
    fn look_ahead(
        &mut self,
        slot: u32,
        cursor: Cursor,
        entry: &SummaryEntry,
        from: Place,
    ) -> FsResult<Option<BlockHolder>> {
        let is_ahead =
            |index: u64, shift: u8| Cursor::at(entry.anode.0, (index, 1), shift, 0) > cursor;
        if !is_ahead(entry.index, entry.block_shift) {
            return Ok(None);
        }
        let Some(mut holder) = self.look(slot, entry, from)? else { return Ok(None) };
        holder.pointers.retain(|it| is_ahead(it.start >> it.shift, it.shift));
        Ok(Some(holder).filter(|holder| !holder.pointers.is_empty()))
    }

    /// V5: whether a truncate is in progress in the holder's file.
    fn is_being_cut(&self, holder: &BlockHolder) -> bool {
        let state = self.states.get(&ino_of(holder.slot, holder.anode_at.number));
        state.is_some_and(|state| state.is_being_cut)
    }

    /// Puts new places into the files in memory.
    fn tell(&mut self, told: &[(Ino, usize, Place)]) {
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
    Ino(u64::from(slot) << crate::api::ANODE_BITS | number.0)
}

#[derive(Default)]
struct BlockMovePlan {
    /// Old places of the blocks in this plan. A block that summaries list twice is skipped the
    /// second time.
    from: BTreeSet<Place>,
    /// Changed pages. A page with several pointers is logged whole.
    pages: BTreeSet<Place>,
    pointers: usize,
    taken: Extents,
    freed: Extents,
    /// Root pointers of files, and new places.
    told: Vec<(Ino, usize, Place)>,
    /// Number of held fragments of each block in the plan, in order of the batch.
    kept: Vec<u32>,
}

impl BlockMovePlan {
    fn has_room(&self, holders: &[BlockHolder], members: usize) -> bool {
        let pages: BTreeSet<Place> = holders.iter().flat_map(BlockHolder::pages).collect();
        let pages = self.pages.union(&pages).count();
        let pointers: usize = holders.iter().map(|holder| holder.pointers.len()).sum();
        self.kept.is_empty()
            || (pages <= members + PAGES_PER_MOVE && self.pointers + pointers <= POINTERS_PER_MOVE)
    }

    fn add(
        &mut self,
        change: &mut Change<'_>,
        moving: &BlockMove,
        holders: &[BlockHolder],
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
                    PointerLocation::Map(page, slot) => {
                        if done.insert((page.place(), slot)) {
                            self.take(change, page.place());
                            page.set_place(change, slot, place)?;
                            self.pointers += 1;
                        }
                    }
                    PointerLocation::Anode(slot) => {
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

    fn take(&mut self, change: &mut Change<'_>, place: Place) {
        if !self.pages.insert(place) {
            change.take_whole(place);
        }
    }

    /// MV5: allocates and frees the held fragments.
    fn note_fragments(&mut self, from: Place, to: Place, is_held: &[bool]) {
        let mut kept = 0;
        for (offset, is_held) in (0..).zip(is_held) {
            if *is_held {
                kept += 1;
                self.taken.add(Extent { place: to.advance(offset), fragments: 1 });
                self.freed.add(Extent { place: from.advance(offset), fragments: 1 });
            }
        }
        self.kept.push(kept);
    }
}

impl BlockHolder {
    fn pages(&self) -> impl Iterator<Item = Place> {
        self.pointers.iter().map(|located| match located.at {
            PointerLocation::Map(page, _) => page.place(),
            PointerLocation::Anode(_) => self.anode_at.place,
        })
    }
}

impl BlockMover<'_> {
    /// Copies those of a segment's blocks that a file or snapshot still holds. Called with no lock
    /// held.
    pub(crate) fn copy_held(
        &self,
        content: &SegmentContent,
        entries: &[SummaryEntry],
        moves: &mut BlockMoves,
    ) -> FsResult<()> {
        let mut bad = None;
        for of_family in entries.chunk_by(|one, next| one.fileset == next.fileset) {
            for batch in of_family.chunks(BLOCKS_PER_MOVE) {
                bad = self.copy_batch(content, batch, moves)?.or(bad);
            }
        }
        bad.map_or(Ok(()), Err)
    }

    /// Copies blocks of one family. Returns the error of an unreadable one.
    fn copy_batch(
        &self,
        content: &SegmentContent,
        batch: &[SummaryEntry],
        moves: &mut BlockMoves,
    ) -> FsResult<Option<FsError>> {
        let Some(first) = batch.first() else { return Ok(None) };
        let numbers: BTreeSet<AnodeNo> = batch.iter().map(|entry| entry.anode).collect();
        let find = |mut locked: LockedHolders<'_>, _: Option<Change<'_>>| {
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
            // Not counted again: the holders are charged for the block already.
            let counted_fragments = u64::from(entry.fragments);
            let claim = BlockAccounting {
                counted_fragments,
                previous: Some(from),
                ..BlockAccounting::default()
            };
            let length = self.reader().stored_bytes(entry.fragments);
            let origin = BlockOrigin::Cleaner(entry.birth);
            let payer = BlockAccounts::fileset(&nobodys);
            let origin = (origin, &payer);
            let block = self.segments.place(origin, owner, data.into(), length, claim)?;
            moves.waiting.push(BlockMove { entry: *entry, from, block });
        }
        Ok(bad)
    }

    /// Changes the pointers of all copied blocks to their copies. Called with no lock held.
    pub(crate) fn settle_held(&self, moves: &mut BlockMoves) -> FsResult<()> {
        let is_under_way = |it: &BlockMove| it.block.sealed().is_some_and(|(_, write)| write != 0);
        if !moves.waiting.iter().all(is_under_way) {
            self.segments.seal();
        }
        let mut most = BLOCKS_PER_MOVE;
        while let Some(first) = moves.waiting.first() {
            let family = first.entry.fileset;
            let is_other = |it: &BlockMove| it.entry.fileset != family;
            let count = moves.waiting.iter().position(is_other).unwrap_or(moves.waiting.len());
            let batch = &moves.waiting[..count.min(most)];
            let kept = match self.move_batch(batch) {
                Ok(kept) => kept.unwrap_or_else(|| vec![0; batch.len()]),
                // One unreadable page must not stop other moves.
                Err(error @ (FsError::Corrupt { .. } | FsError::Io { .. })) => {
                    self.store.journal.check_alive()?;
                    if batch.len() > 1 {
                        most = 1;
                        continue;
                    }
                    let anode = first.entry.anode.0;
                    tracing::warn!(%error, anode, "a block that snapshots hold is not moved");
                    vec![0]
                }
                Err(error) => return Err(error),
            };
            let moved = batch.iter().zip(&kept).filter(|(_, kept)| **kept > 0);
            self.segments.installed(moved.map(|(moving, kept)| (&moving.block, *kept)));
            let done: Vec<BlockMove> = moves.waiting.drain(..kept.len()).collect();
            for (moving, _) in done.iter().zip(&kept).filter(|(_, kept)| **kept == 0) {
                self.segments.kill(&moving.block);
            }
        }
        Ok(())
    }

    /// Drops all copies: the blocks stay in place.
    pub(crate) fn give_up_held(&self, moves: &mut BlockMoves) {
        for moving in moves.waiting.drain(..) {
            self.segments.kill(&moving.block);
        }
    }

    /// Moves a prefix of the batch, as far as one transaction permits. Returns the number of held
    /// fragments of each block; `None` if the family can't be locked.
    fn move_batch(&self, batch: &[BlockMove]) -> FsResult<Option<Vec<u32>>> {
        let Some(first) = batch.first() else { return Ok(None) };
        let numbers: BTreeSet<AnodeNo> = batch.iter().map(|it| it.entry.anode).collect();
        let work = |mut locked: LockedHolders<'_>, change: Option<Change<'_>>| {
            let mut change = change.ok_or(FsError::Invalid)?;
            let mut plan = BlockMovePlan::default();
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

    /// Whether all `holders` point to the copied content. The old place may have been reused since,
    /// even for the same range of the file. Parts that one holder lacks were not verified at the
    /// copy.
    fn are_of(&self, moving: &BlockMove, holders: &[BlockHolder]) -> bool {
        let data = moving.block.data();
        let shift = self.store.geometry().fragment_shift;
        let mut pointers = holders.iter().flat_map(|holder| &holder.pointers);
        let is_of = |it: &LocatedPointer| {
            let before = it.pointer.place.bits().saturating_sub(moving.from.bits());
            let start = index_wide(before << shift);
            let part = data.get(start..start + self.reader().stored_bytes(it.pointer.fragments));
            let is_born_then = it.pointer.birth == moving.entry.birth;
            is_born_then && part.is_some_and(|part| it.pointer.verifies(part))
        };
        pointers.all(is_of) || planted!(MoveTakesWhatLiesThereNow)
    }

    /// Runs `work` with the files `numbers` of all nodes locked, in a transaction if `is_changing`.
    /// `None` if no node of the family is left, or if they can't be locked. Called with no lock
    /// held.
    fn in_family<T>(
        &self,
        family: FilesetId,
        numbers: &BTreeSet<AnodeNo>,
        is_changing: bool,
        work: impl FnOnce(LockedHolders<'_>, Option<Change<'_>>) -> FsResult<T>,
    ) -> FsResult<Option<T>> {
        for _ in 0..TRIES {
            let wanted = Family::of(&*self.filesets.table.lock(&self.store)?, family);
            // A family may exceed the log: the log may be smaller since a reopening.
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
            let gates = opened.iter().filter(|it| !it.is_snapshot()).map(|it| &it.gate);
            let gates: Vec<&FilesetGate> = gates.collect();
            let (change, _inside) = if is_changing {
                let reservation = LogCredits::for_move(wanted.len());
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
                // A restore has replaced a tree since the lookup.
                continue;
            }
            let family = Family::of(&index, family);
            let is_known = |it: &FamilyNode| !it.is_writable || wanted.has(it.slot);
            if !family.members().all(is_known) || family.len() > wanted.len() {
                // A clone or snapshot was created since the lookup.
                continue;
            }
            let writable = opened.iter().filter(|fileset| !fileset.is_snapshot());
            let _guards: Vec<_> = writable.map(|fileset| fileset.anodes.lock()).collect();
            let (tables, anodes) = (BTreeMap::new(), BTreeMap::new());
            let locked = LockedHolders { core: self, index, family, states, tables, anodes };
            return work(locked, change).map(Some);
        }
        Ok(None)
    }

    /// Returns the open nodes of the family, except deleted ones: no files of a snapshot being
    /// freed may be loaded (PO1). Filesets are kept unopened, so no deletion can begin.
    pub(super) fn opened_in(&self, wanted: &Family) -> FsResult<Vec<&OpenFileset>> {
        let index = self.filesets.table.lock(&self.store)?;
        let is_used = |slot: u32| index.node(slot).is_some_and(|node| !node.is_deleted());
        let used = wanted.members().filter(|it| is_used(it.slot));
        Ok(used.filter_map(|it| self.filesets.by_slot(it.slot)).collect())
    }

    pub(super) fn vnodes_of(
        &self,
        filesets: &[&OpenFileset],
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
