//! Taking and deleting snapshots.
//!
//! A fileset is quiesced when its maps have all accepted writes, and its gate is closed. Writers
//! wait meanwhile, so most dirty blocks are mapped before the gate closes. The rest is mapped
//! behind the closed gate, with log credits reserved in advance (decision 0047).

use crate::file::Snapshotter;
use crate::fileset::pin::check_deletable;
use format::fileset::{Cursor, Fileset as Entry, FilesetState, NamePart};
use format::geometry::BLOCK_SHIFTS;
use format::ids::{Epoch, FilesetId};

use crate::error::{FsError, FsResult};
use crate::file::OpenFileset;
use crate::file::enter::QuiescedSnapshot;
use crate::file::flush::ChangeSource;
use crate::file::half_freed::tolerate;
use crate::fileset_table::deletion::DeletionProgress;
use crate::fileset_table::family::Family;
use crate::fileset_table::table::{FilesetIndex, FilesetNode, HOLDS_MAX};
use crate::gate::ClosedGate;
use crate::journal::LogCredits;
use crate::store::{Change, ReservedLogCredits};
use runtime::{if_planted, planted, unless_planted};

/// Changes for which log credits are reserved behind the closed gate, each for up to 32 files.
const POT_CHANGES: usize = 4;
const TRIES: usize = 8;

/// Most filesets in one operation, since their entries are written back together.
const SNAPSHOTS_AT_ONCE: usize = 16;

/// Quiesced filesets, until dropped.
#[derive(Debug)]
pub struct QuiescedFilesets<'c> {
    /// Log credits for the holder's changes, released after the gates are opened.
    pub(crate) pot: ReservedLogCredits<'c>,
    closed: Vec<(&'c OpenFileset, ClosedGate<'c>)>,
}

impl<'c> QuiescedFilesets<'c> {
    pub(crate) fn share(&self, epoch: Epoch) {
        self.closed.iter().for_each(|(_, closed)| closed.share(epoch));
    }

    pub(super) fn begin(
        &mut self,
        fileset: &OpenFileset,
        reservation: LogCredits,
    ) -> FsResult<Change<'c>> {
        let change = self.pot.begin(reservation, fileset.gate.shared_epoch());
        change.ok_or(FsError::TryLater)
    }
}

impl<'c> Snapshotter<'c> {
    /// Takes a snapshot, durable on return. Also returns the pause of writers in nanoseconds.
    pub(crate) fn create_snapshot(
        &self,
        path: &[NamePart],
        name: &NamePart,
        random: [u8; 16],
    ) -> FsResult<(FilesetNode, u64)> {
        let slot = self.filesets.table.lock(&self.store)?.slot_of(path)?;
        let (mut made, paused_ns) = self.create_snapshots(&[slot], name, &mut || random)?;
        Ok((made.pop().ok_or(FsError::Invalid)?, paused_ns))
    }

    pub(crate) fn create_snapshots_below(
        &self,
        path: &[NamePart],
        name: &NamePart,
        random: &mut dyn FnMut() -> [u8; 16],
    ) -> FsResult<(Vec<FilesetNode>, u64)> {
        let slots = {
            let index = self.filesets.table.lock(&self.store)?;
            let slot = index.slot_of(path)?;
            let (mut slots, mut looked) = (vec![slot], 0);
            while let Some(above) = slots.get(looked).copied() {
                let below = index.children(above).filter(|node| node.is_live());
                slots.extend(below.map(|node| node.slot));
                looked += 1;
                if slots.len() > SNAPSHOTS_AT_ONCE {
                    let by = format!(
                        "more than {SNAPSHOTS_AT_ONCE} filesets are at and below it: take \
                         snapshots of parts, or of each"
                    );
                    return Err(FsError::FilesetInUse { name: index.path_of(slot), by });
                }
            }
            slots
        };
        self.create_snapshots(&slots, name, random)
    }

    pub(crate) fn create_snapshots(
        &self,
        slots: &[u32],
        name: &NamePart,
        random: &mut dyn FnMut() -> [u8; 16],
    ) -> FsResult<(Vec<FilesetNode>, u64)> {
        self.check_writable()?;
        // Checked before any flush, and again in the transaction.
        self.filesets.table.lock(&self.store)?.check_count(slots.len())?;
        self.grow_table()?;
        let mut filesets = Vec::new();
        for slot in slots {
            filesets.push(self.open_fileset(*slot)?);
            check_snapshot_name(&*self.filesets.table.lock(&self.store)?, *slot, name)?;
        }
        let mut still = self.hold_all_still(&filesets)?;
        let since_ns = self.store.clock.monotonic_ns();
        let made = self.take_roots(&mut still, name, random);
        drop(still);
        let paused_ns = self.store.clock.monotonic_ns().saturating_sub(since_ns);
        let made = made?;
        // All classes, since the snapshot's content may be in any of them.
        unless_planted!(SnapshotCommitsItsClassAlone, self.store.journal.commit_all()?);
        if_planted!(SnapshotCommitsItsClassAlone, self.store.journal.commit(made.1)?);
        Ok((made.0, paused_ns))
    }

    /// Refuses another member of a family if moving a block that all share could exceed a
    /// transaction.
    pub(crate) fn check_family_room(
        &self,
        index: &FilesetIndex,
        family: FilesetId,
        beside: usize,
    ) -> FsResult<()> {
        let most = self.store.journal.moved_members_max();
        if Family::of(index, family).len() + beside < most {
            return Ok(());
        }
        let of_family = index.nodes().find(|node| node.family == family && node.is_live());
        let name = of_family.map_or_else(String::new, |node| index.path_of(node.slot));
        let by = format!(
            "{most} snapshots and filesets have blocks in common with it, which is all that the \
             log of this pool can move together: delete a snapshot first"
        );
        Err(FsError::FilesetInUse { name, by })
    }

    /// Writes the entries of snapshots; returns them, and the class.
    ///
    /// CRASH: the next change of the fileset copies a path up to its entry, which is on a page of
    /// this transaction. So no crash keeps that change and loses the snapshot.
    fn take_roots(
        &self,
        still: &mut QuiescedFilesets<'_>,
        name: &NamePart,
        random: &mut dyn FnMut() -> [u8; 16],
    ) -> FsResult<(Vec<FilesetNode>, u64)> {
        let change = still.pot.begin(LogCredits::SMALL, Epoch(0));
        let mut change = change.ok_or(FsError::TryLater)?;
        let mut index = self.filesets.table.lock(&self.store)?;
        index.check_count(still.closed.len())?;
        let epoch = change.epoch();
        let (mut snapshots, mut guards, mut entries) = (Vec::new(), Vec::new(), Vec::new());
        let (mut places, mut last) = (Vec::new(), None);
        // LOCK: filesets by rising slot.
        for (fileset, _) in &still.closed {
            check_snapshot_name(&index, fileset.anodes.slot, name)?;
            fileset.check_current()?;
            let is_beside = |snapshot: &Entry| snapshot.family == fileset.anodes.family;
            let beside = snapshots.iter().filter(|(snapshot, _)| is_beside(snapshot)).count();
            self.transfers().check_clonable(&index, (fileset, beside), name)?;
            let taken = index.take_slot_after(&self.store, &mut change, last.as_ref())?;
            let mut guard = fileset.anodes.lock();
            let snapshot = self.snapshot_of(&guard.entry(), (epoch, taken.slot), (name, random()));
            index.write_entry(&self.store, &mut change, &snapshot, Some(&taken))?;
            let entry = guard.change_entry(&mut change, |entry| {
                (entry.parent, entry.shared_epoch) = (Some(taken.slot), epoch);
            })?;
            places.push(guard.entry_place());
            places.push(index.entry_place(&self.store, &change, &taken)?);
            guards.push(guard);
            entries.push(entry);
            snapshots.push((snapshot, taken.clone()));
            last = Some(taken);
        }
        // GT5: the entries are written back together.
        if !change.tx_mut().moves_among(&places, 0) {
            return Err(FsError::TryLater);
        }
        let applied = change.end();
        guards.into_iter().for_each(|guard| guard.settle(applied.lsn));
        still.share(epoch);
        let mut made = Vec::new();
        for ((snapshot, taken), entry) in snapshots.into_iter().zip(entries) {
            index.note_new(&snapshot, taken);
            index.note(&entry);
            made.push(index.node(snapshot.slot).cloned().ok_or(FsError::Invalid)?);
        }
        Ok((made, applied.class))
    }

    fn snapshot_of(
        &self,
        entry: &Entry,
        (epoch, slot): (Epoch, u32),
        (name, random): (&NamePart, [u8; 16]),
    ) -> Entry {
        let mut snapshot = entry.clone();
        // Limits are meaningless for a snapshot.
        (snapshot.quota_bytes, snapshot.reservation_bytes) = (0, 0);
        (snapshot.id, snapshot.slot, snapshot.state) =
            (FilesetId(epoch.0), slot, FilesetState::Snapshot);
        (snapshot.above, snapshot.name) = (Some(entry.slot), name.clone());
        (snapshot.origin, snapshot.moving) = ([0; 16], None);
        snapshot.created_seconds = u64::try_from(self.store.now().seconds).unwrap_or(0);
        snapshot.uuid = random;
        snapshot
    }

    /// Adds or removes a user hold, which prevents deletion. Durable on return.
    pub(crate) fn hold_snapshot(
        &self,
        (path, snapshot): (&[NamePart], &NamePart),
        name: &NamePart,
        is_held: bool,
    ) -> FsResult<()> {
        self.check_writable()?;
        let mut change = self.store.begin_pool(LogCredits::SMALL)?;
        let mut index = self.filesets.table.lock(&self.store)?;
        let slot = index.slot_of_node(path, Some(snapshot))?;
        let known = index.hold_of(slot, name);
        let shown = format!("{} held by {}", index.path_of(slot), name.as_str());
        let class = if is_held {
            if known.is_some() {
                return Err(FsError::FilesetExists { name: shown });
            }
            if index.holds_of(slot).count() >= HOLDS_MAX {
                let by = format!("it has {HOLDS_MAX} holds: release one first");
                return Err(FsError::FilesetInUse { name: index.path_of(slot), by });
            }
            let family = index.node(slot).ok_or(FsError::Invalid)?.family;
            let taken = index.take_slot(&self.store, &mut change)?;
            let id = FilesetId(change.epoch().0);
            let mut hold = Entry::new(id, taken.slot, name.clone(), *BLOCK_SHIFTS.start());
            (hold.family, hold.state, hold.above) = (family, FilesetState::Hold, Some(slot));
            hold.created_seconds = u64::try_from(self.store.now().seconds).unwrap_or(0);
            index.write_entry(&self.store, &mut change, &hold, Some(&taken))?;
            let applied = change.end();
            index.note_new(&hold, taken);
            applied.class
        } else {
            let known = known.ok_or(FsError::NoFileset { name: shown })?;
            index.clear_entry(&self.store, &mut change, known)?;
            let applied = change.end();
            index.note_cleared(known);
            applied.class
        };
        drop(index);
        self.store.journal.commit(class)
    }

    /// Deletes a snapshot, and shuts out its operations; durable on return. Returns its slot. A job
    /// frees unshared blocks if there is a later snapshot; else they are freed on return, with
    /// writers paused.
    pub(crate) fn delete_snapshot(&self, path: &[NamePart], name: &NamePart) -> FsResult<u32> {
        self.delete_snapshot_at(&|index| index.slot_of_node(path, Some(name)))
    }

    /// Deletes the snapshot in the slot that `find` returns. `find` is called again at each
    /// attempt.
    pub(crate) fn delete_snapshot_at(
        &self,
        find: &dyn Fn(&FilesetIndex) -> FsResult<u32>,
    ) -> FsResult<u32> {
        self.check_writable()?;
        for _ in 0..TRIES {
            let slot = {
                let index = self.filesets.table.lock(&self.store)?;
                let slot = find(&index)?;
                check_deletable(&index, slot)?;
                slot
            };
            let opened = self.filesets.by_slot(slot);
            let mut put_out = opened.map(|snapshot| self.put_out(snapshot)).transpose()?;
            let Some((live, class)) = self.mark_deleted(find, slot, put_out.as_mut())? else {
                continue;
            };
            drop(put_out);
            self.store.journal.commit(class)?;
            self.scales.forget(slot);
            if let Some(live) = live {
                self.free_under_gate(self.open_fileset(live)?)?;
            }
            return Ok(slot);
        }
        Err(FsError::TryLater)
    }

    /// Marks a snapshot as deleted. Returns the live successor, if any, and the class. `None` if
    /// the snapshot was opened or renamed since the lookup: retry.
    fn mark_deleted(
        &self,
        find: &dyn Fn(&FilesetIndex) -> FsResult<u32>,
        slot: u32,
        put_out: Option<&mut QuiescedSnapshot<'_>>,
    ) -> FsResult<Option<(Option<u32>, u64)>> {
        // Keeps the snapshot unopened, and its blocks in place, until its files have left memory.
        let _unopened = self.filesets.keep_all_unopened();
        if self.filesets.by_slot(slot).is_some() != put_out.is_some() {
            return Ok(None);
        }
        let mut change = self.store.begin_pool(LogCredits::SMALL)?;
        let mut index = self.filesets.table.lock(&self.store)?;
        if find(&index)? != slot {
            return Ok(None);
        }
        check_deletable(&index, slot)?;
        let live = index.children_in_family(slot).find(|child| child.is_live());
        let live = live.map(|child| child.slot);
        let mut entry = index.read_entry(&self.store, slot)?;
        entry.state = entry.state.freed_to(Cursor::START);
        index.write_entry(&self.store, &mut change, &entry, None)?;
        let applied = change.end();
        index.note(&entry);
        drop(index);
        if let Some(put_out) = put_out {
            put_out.is_deleted = true;
            self.filesets.forget(put_out.snapshot);
            self.table.remove_all_of(slot);
        }
        Ok(Some((live, applied.class)))
    }

    pub(crate) fn free_deleted(&self, slot: u32) -> FsResult<DeletionProgress> {
        let child = {
            let index = self.filesets.table.lock(&self.store)?;
            index.children_in_family(slot).next().cloned()
        };
        match child {
            Some(child) if child.is_live() => {
                self.free_under_gate(self.open_fileset(child.slot)?)?;
                // A snapshot taken before the gate was closed may be the successor now: then retry.
                let is_there = self.filesets.table.lock(&self.store)?.node(slot).is_some();
                Ok(if is_there { DeletionProgress::More } else { DeletionProgress::Gone })
            }
            child => {
                let progress = self.filesets.table.free_some(&self.store, slot)?;
                if progress == DeletionProgress::Whole
                    && let Some(child) = child
                {
                    self.end_snapshot(slot, child.slot, None)?;
                    return Ok(DeletionProgress::Gone);
                }
                Ok(progress)
            }
        }
    }

    /// Returns the fragments that deleting this snapshot alone would free. While a part of it is
    /// counted, the gates of its successors are closed.
    pub(crate) fn own_fragments(&self, path: &[NamePart], snapshot: &NamePart) -> FsResult<u64> {
        let pinned = self.snapshotter().pin_snapshot(path, snapshot)?;
        let (mut total, mut next) = (0, Some(Cursor::START));
        while let Some(cursor) = next {
            self.check_walk()?;
            match self.space_reclaim().count_part((pinned.slot, pinned.entry.id), cursor) {
                Err(FsError::TryLater) => self.filesets.wait_until_unopened(),
                counted => {
                    let (fragments, left) = counted?.ok_or(FsError::Stale)?;
                    total += fragments;
                    next = left;
                }
            }
        }
        Ok(total)
    }

    /// Frees the fileset's newest snapshot, if it is marked as deleted.
    fn free_under_gate(&self, fileset: &OpenFileset) -> FsResult<()> {
        let closed = fileset.gate.close();
        self.finish_snapshot_deletion(fileset, &closed)
    }

    /// Completes a deletion of the main fileset's newest snapshot after a crash. Returns whether
    /// the fileset is writable.
    pub(crate) fn finish_main_deletion(&self) -> FsResult<bool> {
        let main = &self.filesets.main;
        if main.anodes.shared_epoch() != Epoch(0) {
            tolerate(self.free_under_gate(main))?;
        }
        Ok(!main.is_half_freed())
    }

    /// Performs [`Snapshotter::free_under_gate`], with the gate closed by the caller.
    ///
    /// CRASH: the fileset's own frees are durable before the walk compares maps, and the walk's
    /// frees before the fileset changes. Otherwise a crash could undo one without the other, and
    /// free a block twice, or leave a free one in use.
    pub(crate) fn finish_snapshot_deletion(
        &self,
        fileset: &OpenFileset,
        closed: &ClosedGate<'_>,
    ) -> FsResult<()> {
        let slot = {
            let index = self.filesets.table.lock(&self.store)?;
            let parent = index.node(fileset.anodes.slot).and_then(|node| node.parent);
            let deleted = parent.and_then(|slot| index.node(slot)).filter(|node| node.is_deleted());
            let Some(deleted) = deleted else { return Ok(()) };
            deleted.slot
        };
        let freed = self.free_newest(slot, fileset);
        match freed {
            Ok(shared_epoch) => closed.share(shared_epoch),
            // The next open repeats the walk, so the fileset must not change until then.
            Err(_) => fileset.note_half_freed(),
        }
        freed.map(drop)
    }

    fn free_newest(&self, slot: u32, fileset: &OpenFileset) -> FsResult<Epoch> {
        self.store.journal.commit_all()?;
        while self.filesets.table.free_some(&self.store, slot)? == DeletionProgress::More {}
        let shared_epoch = self.end_snapshot(slot, fileset.anodes.slot, Some(fileset))?;
        self.store.journal.commit_all()?;
        Ok(shared_epoch)
    }

    /// Removes a freed snapshot's entry. `child`, a fileset if `writable`, gets the snapshot's
    /// parent. Returns the child's shared epoch.
    fn end_snapshot(
        &self,
        slot: u32,
        child: u32,
        writable: Option<&OpenFileset>,
    ) -> FsResult<Epoch> {
        let mut change = self.store.begin_pool(LogCredits::SMALL)?;
        let mut index = self.filesets.table.lock(&self.store)?;
        let entry = index.read_entry(&self.store, slot)?;
        let (parent, shared_epoch) = (entry.parent, entry.shared_epoch);
        index.clear_entry(&self.store, &mut change, slot)?;
        let places = [slot, child].map(|slot| index.place_of_entry(&self.store, slot));
        let [cleared, changed] = places;
        // The entries are written back together.
        if !change.tx_mut().moves_among(&[cleared?, changed?], 0) {
            return Err(FsError::TryLater);
        }
        if let Some(fileset) = writable {
            let mut guard = fileset.anodes.lock();
            let entry = guard.change_entry(&mut change, |entry| {
                (entry.parent, entry.shared_epoch) = (parent, shared_epoch);
            })?;
            let applied = change.end();
            guard.settle(applied.lsn);
            index.note(&entry);
        } else {
            let mut entry = index.read_entry(&self.store, child)?;
            (entry.parent, entry.shared_epoch) = (parent, shared_epoch);
            index.write_entry(&self.store, &mut change, &entry, None)?;
            change.end();
            index.note(&entry);
        }
        index.note_cleared(slot);
        Ok(shared_epoch)
    }

    pub(crate) fn hold_still_named(&self, path: &[NamePart]) -> FsResult<QuiescedFilesets<'c>> {
        self.check_writable()?;
        let slot = self.filesets.table.lock(&self.store)?.slot_of(path)?;
        self.hold_still(self.0.open_fileset(slot)?)
    }

    /// Quiesces a fileset. Called with no lock held.
    pub(crate) fn hold_still(&self, fileset: &'c OpenFileset) -> FsResult<QuiescedFilesets<'c>> {
        self.hold_all_still(&[fileset])
    }

    pub(crate) fn hold_all_still(
        &self,
        filesets: &[&'c OpenFileset],
    ) -> FsResult<QuiescedFilesets<'c>> {
        let mut filesets = filesets.to_vec();
        filesets.sort_by_key(|fileset| fileset.anodes.slot);
        let slot_of = |fileset: &&OpenFileset| fileset.anodes.slot;
        for _ in 0..TRIES {
            self.segments.seal();
            self.writeback().install_waiting()?;
            for slot in filesets.iter().map(slot_of) {
                self.writeback().install_dirty(slot, &mut ChangeSource::Waiting)?;
            }
            let (mut pot, closed) = self.close_with_pot(&filesets)?;
            self.segments.seal();
            let mut is_all = true;
            let waiting = filesets.iter().filter(|_| !planted!(SnapshotLeavesBlocksWaiting));
            for slot in waiting.map(slot_of) {
                is_all = is_all
                    && self.writeback().install_dirty(slot, &mut ChangeSource::Pot(&mut pot))?;
            }
            if is_all {
                return Ok(QuiescedFilesets { pot, closed });
            }
        }
        let slot = filesets.first().map_or(0, slot_of);
        let name = self.filesets.table.lock(&self.store)?.path_of(slot);
        let by = "it changes faster than it can be written: try again when it is quieter";
        Err(FsError::FilesetInUse { name, by: by.to_owned() })
    }
}

impl<'c> Snapshotter<'c> {
    /// Closes the gates by rising slot, with log credits for the changes behind them.
    fn close_with_pot(
        &self,
        filesets: &[&'c OpenFileset],
    ) -> FsResult<(ReservedLogCredits<'c>, Vec<(&'c OpenFileset, ClosedGate<'c>)>)> {
        loop {
            let pot = self.0.store.fill_pot(POT_CHANGES)?;
            let mut closed = Vec::new();
            // LOCK: by rising slot. A thread inside one gate never waits at another.
            let is_closed_by_other = filesets.iter().find(|fileset| {
                let own = fileset.gate.try_close();
                let is_other = own.is_none();
                closed.extend(own.map(|own| (**fileset, own)));
                is_other
            });
            let Some(other) = is_closed_by_other else { return Ok((pot, closed)) };
            // GT4: releases everything first, since the closer of the other gate may wait for the
            // log.
            drop((closed, pot));
            other.gate.wait_until_open();
        }
    }
}

fn check_snapshot_name(index: &FilesetIndex, of: u32, name: &NamePart) -> FsResult<()> {
    match index.snapshot_of(of, name) {
        Some(node) => Err(FsError::FilesetExists { name: index.path_of(node.slot) }),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    use format::fileset::NamePart;
    use runtime::clock::ManualClock;
    use runtime::prng::Prng;
    use storage::device::{Device, DeviceOperation, IoPurpose, MemoryDevice, SharedDevice};

    use super::ChangeSource;
    use crate::api::{Caller, FileKind, FileSystem, FsError, Ino, NewInode, RenameMode, SetAttr};
    use crate::convert::index_wide;
    use crate::file::{Files, FilesOptions};
    use crate::{Pool, PoolCreateOptions, PoolOpenOptions};

    const POOL_BYTES: u64 = 64 << 20;
    const NAMES: u64 = 40;

    type Tree = BTreeMap<Vec<u8>, (u64, u16, Vec<u8>)>;

    fn open(device: SharedDevice) -> Pool {
        let files = FilesOptions { no_atime: true, ..FilesOptions::default() };
        let options = PoolOpenOptions { files, ..PoolOpenOptions::default() };
        Pool::open(device, Arc::new(ManualClock::new()), options).expect("it opens")
    }

    fn done<T>(result: Result<T, FsError>) {
        let error = result.err();
        assert!(!matches!(error, Some(FsError::TryLater | FsError::Corrupt { .. })), "{error:?}");
    }

    fn change_something(pool: &Pool, prng: &mut Prng, names: u64) {
        let caller = Caller::root();
        let name = |number: u64| format!("f{number}").into_bytes();
        let (one, other) = (name(prng.below(names)), name(prng.below(names)));
        let root = pool.root();
        let found = pool.lookup(&caller, root, &one);
        match (prng.below(8), found) {
            (0, Ok(_)) => done(pool.unlink(&caller, root, &one, None)),
            (1, Ok(_)) => {
                done(pool.rename(&caller, (root, &one), (root, &other), RenameMode::Replace, None));
            }
            (2, Ok(file)) => {
                let set = SetAttr { size_bytes: Some(prng.below(30_000)), ..SetAttr::default() };
                done(pool.setattr(&caller, file.ino, &set, None));
            }
            (3, Ok(file)) => done(pool.fsync(&caller, file.ino, false)),
            (_, Ok(file)) => {
                let length = if prng.below(2) == 0 { 90 } else { prng.below(20_000) };
                let data = vec![prng.next_u64().to_le_bytes()[0]; index_wide(length)];
                done(pool.write(&caller, file.ino, prng.below(40_000) * (length / 100), &data));
            }
            _ => {
                let new = NewInode::new(FileKind::Regular, 0o644);
                done(pool.create(&caller, root, &one, new, None));
            }
        }
    }

    fn tree_of(pool: &Pool, root: Ino) -> Tree {
        let caller = Caller::root();
        let mut names = Vec::new();
        let each = &mut |entry: &crate::api::DirEntry| {
            names.push((entry.name.clone(), entry.ino));
            true
        };
        pool.readdir(&caller, root, 0, each).expect("the root is there");
        let is_file = |(name, _): &(Vec<u8>, Ino)| !name.starts_with(b".");
        let content = |(name, ino): (Vec<u8>, Ino)| {
            let attr = pool.lookup(&caller, root, &name).expect("it is listed");
            assert_eq!(attr.ino, ino, "it is listed so");
            pool.forget(ino, 1);
            let mut bytes = Vec::new();
            pool.read(&caller, ino, 0, 1 << 20, &mut bytes).expect("it can be read");
            (name, (attr.size_bytes, attr.mode, bytes))
        };
        names.into_iter().filter(is_file).map(content).collect()
    }

    fn copy_of(device: &dyn Device) -> SharedDevice {
        let copy = MemoryDevice::new("copy", POOL_BYTES);
        for offset in (0..POOL_BYTES).step_by(1 << 20) {
            let bytes =
                device.read(IoPurpose::Check, offset, 1 << 20).expect("memory does not fail");
            let write = DeviceOperation::Write { offset, data: vec![bytes.into()] };
            copy.submit(IoPurpose::Check, write).wait().expect("memory does not fail");
        }
        copy
    }

    /// Method: three threads change files; the fileset is quiesced and committed repeatedly, and a
    /// copy of the device, opened as after a crash, has the visible tree.
    #[test]
    fn a_quiesced_fileset_has_all_accepted_writes_in_its_maps() {
        let device: SharedDevice = MemoryDevice::new("memory", POOL_BYTES);
        let options = PoolCreateOptions::new(POOL_BYTES, [7; 64]);
        Pool::create(&device, &ManualClock::new(), &options).expect("a pool fits");
        let pool = open(Arc::clone(&device));
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for seed in 0..3 {
                let (pool, is_over) = (&pool, &is_over);
                scope.spawn(move || {
                    let mut prng = Prng::from_seed(seed);
                    while !is_over.load(Ordering::Relaxed) {
                        change_something(pool, &mut prng, NAMES);
                    }
                });
            }
            for _ in 0..60 {
                let core = pool.core();
                let still =
                    core.snapshotter().hold_still(&core.filesets.main).expect("a few files");
                let slot = core.filesets.main_slot();
                let dirty = core.table.dirty_of(slot);
                let tree = tree_of(&pool, pool.root());
                core.store.journal.commit_all().expect("memory does not fail");
                let copy = copy_of(device.as_ref());
                drop(still);
                let copy = open(copy);
                let found = tree_of(&copy, copy.root());
                if !dirty.is_empty() || found != tree {
                    is_over.store(true, Ordering::Relaxed);
                    let names = |tree: &Tree| tree.keys().cloned().collect::<Vec<_>>();
                    assert_eq!(names(&found), names(&tree), "after a crash, and as it was");
                    let differ = tree.iter().find(|(name, file)| found.get(*name) != Some(file));
                    panic!("{} dirty; {:?}", dirty.len(), differ.map(|(name, _)| name));
                }
            }
            is_over.store(true, Ordering::Relaxed);
        });
    }

    fn new_pool() -> (SharedDevice, Pool) {
        let device: SharedDevice = MemoryDevice::new("memory", 4 * POOL_BYTES);
        let options = PoolCreateOptions::new(4 * POOL_BYTES, [7; 64]);
        Pool::create(&device, &ManualClock::new(), &options).expect("a pool fits");
        (Arc::clone(&device), open(device))
    }

    fn snapshot_tree(pool: &Pool, name: &str) -> Tree {
        let (root, snapshot) =
            ("root".parse().expect("a name"), NamePart::new(name).expect("a name"));
        let uuid = pool.fileset_admin().hold_snapshot(&root, &snapshot).expect("it is there");
        tree_of(pool, pool.root_of(uuid).expect("it is held"))
    }

    /// Goal: zeros that are placed before a file grows are in a snapshot taken before their map
    /// update, since their block may be sealed already. Method: a clean file stores bytes past its
    /// end; the gate closes between placing and mapping.
    #[test]
    fn zeros_that_a_file_places_before_it_grows_are_in_a_snapshot_that_comes_between() {
        let (_device, pool) = new_pool();
        let caller = Caller::root();
        let new = NewInode::new(FileKind::Regular, 0o644);
        let file = pool.create(&caller, pool.root(), b"file", new, None).expect("room").ino;
        pool.write(&caller, file, 0, &[7; 8_000]).expect("there is room");
        pool.sync().expect("memory does not fail");
        let cut = SetAttr { size_bytes: Some(5_000), ..SetAttr::default() };
        pool.setattr(&caller, file, &cut, None).expect("it is smaller");
        pool.sync().expect("memory does not fail");
        let core = pool.core();
        let fileset = &core.filesets.main;
        let files = Files { core, fileset };
        let vnode = core.table.find(file).expect("it is referred to");
        let (change, mut state) = files.begin_settled(&vnode).expect("there is room");
        assert!(state.pending.is_empty(), "it is clean");
        files.writeback().prepare_growth(&mut state, &vnode, 100_000).expect("there is room");
        assert_eq!(state.pending.len(), 1, "its last block has bytes behind the end");
        drop((state, change));
        let (mut pot, _closed) =
            core.snapshotter().close_with_pot(&[fileset]).expect("there is room");
        core.segments.seal();
        let installed =
            core.writeback().install_dirty(fileset.anodes.slot, &mut ChangeSource::Pot(&mut pot));
        assert_eq!(installed, Ok(true), "the pot has room for one file");
        assert!(vnode.state.read().pending.is_empty(), "a snapshot would lack the zeros");
    }

    /// Method: many changes between snapshots, and a reopening; trees are compared with copies.
    #[test]
    fn a_snapshot_stays_what_its_fileset_was_like() {
        for (seed, names, steps) in [(1, 20, 120), (2, 300, 500), (3, 3_000, 3_000)] {
            let (device, pool) = new_pool();
            let mut prng = Prng::from_seed(seed);
            let mut kept: Vec<(String, Tree)> = Vec::new();
            for number in 0..5 {
                for _ in 0..steps {
                    change_something(&pool, &mut prng, names);
                }
                let name = format!("c{number}");
                let before = tree_of(&pool, pool.root());
                let snapshot = NamePart::new(&name).expect("a name");
                let root = "root".parse().expect("a name");
                pool.fileset_admin()
                    .create_snapshot(&root, &snapshot, [number; 16])
                    .expect("there is room");
                kept.push((name, before));
                for (name, tree) in &kept {
                    assert!(snapshot_tree(&pool, name) == *tree, "seed {seed}: {name} of {number}");
                }
            }
            for _ in 0..steps {
                change_something(&pool, &mut prng, names);
            }
            let last = tree_of(&pool, pool.root());
            pool.close().expect("memory does not fail");
            drop(pool);
            let pool = open(device);
            assert!(tree_of(&pool, pool.root()) == last, "seed {seed}: the fileset");
            for (name, tree) in &kept {
                assert!(snapshot_tree(&pool, name) == *tree, "seed {seed}: {name} at the end");
            }
        }
    }
}
