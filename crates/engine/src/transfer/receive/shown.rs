//! Completion of a receive: one transaction makes the received state visible, and takes a snapshot.

use std::sync::atomic::Ordering;

use format::fileset::{Fileset as Entry, FilesetState, MoveState, joined};
use format::ids::{Epoch, FilesetId};

use super::target::StreamBase;
use super::{FilesetArrival, ReceiveResult, ReceiveState};
use crate::error::{FsError, FsResult};
use crate::file::OpenFileset;
use crate::fileset::snapshot::QuiescedFilesets;
use crate::fileset_table::reserved::reserved_of;
use crate::fileset_table::table::FilesetIndex;
use crate::journal::LogCredits;
use crate::store::Change;

const TRIES: usize = 64;

impl ReceiveState<'_> {
    /// Makes the received state visible.
    ///
    /// CRASH: all of it is durable before the transaction, so no crash shows a part.
    pub(super) fn show(&self, random: &[u8; 32]) -> ReceiveResult<()> {
        let core = self.core;
        core.emptier.wait();
        core.writeback().sync_all()?;
        for _ in 0..TRIES {
            // LOCK: both gates at once, by rising slot, since the weigher also closes both.
            let there = self.opened_there()?;
            let held = [Some(self.files.fileset), there];
            let held: Vec<_> = held.into_iter().flatten().collect();
            let mut still = core.snapshotter().hold_all_still(&held)?;
            core.store.journal.commit_all()?;
            // The base of the stream may have changed since the fileset was begun.
            let target = core.transfers().check_target(&self.target, &self.begin, self.arrival)?;
            let shown = match &target.base {
                None => Some(self.show_new(&mut still, random)?),
                Some(base) => self.show_in_place_of(&mut still, random, (base, there))?,
            };
            drop(still);
            if let Some(class) = shown {
                core.store.journal.commit(class)?;
                return Ok(core.store.journal.commit_all()?);
            }
            core.filesets.wait_until_unopened();
            core.writeback().sync_all()?;
        }
        Err(FsError::TryLater.into())
    }

    fn opened_there(&self) -> FsResult<Option<&OpenFileset>> {
        let filesets = &self.core.filesets;
        let slot = filesets.table.lock(&self.core.store)?.find(&self.target).map(|it| it.slot);
        let slot = slot.filter(|slot| !filesets.is_used(*slot));
        Ok(slot.and_then(|slot| filesets.by_slot_current(slot)))
    }

    /// Puts the received state in place of the base fileset. That must be unused and, if open
    /// (`there`), quiesced. `None` if a fileset is being opened, or the target was opened or
    /// written since: retry.
    fn show_in_place_of(
        &self,
        still: &mut QuiescedFilesets<'_>,
        random: &[u8; 32],
        (base, there): (&StreamBase, Option<&OpenFileset>),
    ) -> ReceiveResult<Option<u64>> {
        let (core, slot) = (self.core, base.fileset.slot);
        let reserved = reserved_of(&core.store, &base.snapshot)?;
        let Some(_unopened) = core.filesets.keep_unopened() else { return Ok(None) };
        let opened = core.filesets.by_slot_current(slot);
        if opened.map(std::ptr::from_ref) != there.map(std::ptr::from_ref) {
            // A front has opened the fileset since.
            return Ok(None);
        }
        if let Some(opened) = opened {
            let by = "it is served: end its server first".to_owned();
            let name = joined(&self.target);
            opened.close_to_fronts().map_err(|()| FsError::FilesetInUse { name, by })?;
        }
        if let Some(opened) = opened.filter(|_| !core.table.dirty_of(slot).is_empty()) {
            // A front wrote here since the sync. Once mapped, that changes the entry, and the retry
            // fails.
            opened.is_gone.store(false, Ordering::SeqCst);
            return Ok(None);
        }
        // All blocks are mapped: the receiving fileset borrows no reservation from here on.
        self.files.fileset.anodes.usage.end_borrowing();
        let kept = opened.map(|fileset| fileset.anodes.usage.counts().kept);
        let shown = self.show_next(still, random, (kept, reserved));
        if let Some(opened) = opened {
            // As after a restore, the next open of the slot finds the received tree.
            match &shown {
                Ok(_) => {
                    opened.anodes.end();
                    opened.is_superseded.store(true, Ordering::SeqCst);
                }
                Err(_) => opened.is_gone.store(false, Ordering::SeqCst),
            }
        }
        let class = shown?;
        // The entry of the receiving fileset is cleared, and its content belongs to the target.
        self.files.fileset.anodes.end();
        core.filesets.forget(self.files.fileset);
        core.table.remove_all_of(self.files.fileset.anodes.slot);
        core.table.remove_all_of(slot);
        Ok(Some(class))
    }

    /// FM3: marks the fileset as arrived with its last stream.
    fn arrive_as(&self, entry: &mut Entry) {
        let Some(FilesetArrival { token, end: Some(end) }) = self.arrival else { return };
        entry.moving = Some(MoveState::Arrived { token, from: end.from.0 });
        entry.uuid = end.uuid;
        (entry.is_read_only, entry.quota_bytes) = (end.is_read_only, end.quota_bytes);
    }

    fn snapshot_entry(&self, of: &Entry, slot: u32, fileset: u32, random: &[u8; 32]) -> Entry {
        let mut snapshot = Entry { slot, state: FilesetState::Snapshot, ..of.clone() };
        // Limits are meaningless for a snapshot.
        (snapshot.quota_bytes, snapshot.reservation_bytes) = (0, 0);
        (snapshot.above, snapshot.name) = (Some(fileset), self.begin.to_name.clone());
        snapshot.uuid.copy_from_slice(&random[16..]);
        (snapshot.origin, snapshot.moving) = (self.begin.to, None);
        snapshot
    }

    /// Turns the receiving fileset into the target. Returns the transaction's class.
    fn show_new(&self, still: &mut QuiescedFilesets<'_>, random: &[u8; 32]) -> FsResult<u64> {
        let core = self.core;
        let change = still.pot.begin(LogCredits::SMALL, Epoch(0));
        let mut change = change.ok_or(FsError::TryLater)?;
        let mut index = core.filesets.table.lock(&core.store)?;
        check_free(&index, self)?;
        let taken = index.take_slot(&core.store, &mut change)?;
        let mut guard = self.files.fileset.anodes.lock();
        let (epoch, received) = (change.epoch(), guard.entry());
        let mut snapshot = self.snapshot_entry(&received, taken.slot, received.slot, random);
        snapshot.id = FilesetId(epoch.0);
        index.write_entry(&core.store, &mut change, &snapshot, Some(&taken))?;
        let entry = guard.change_entry(&mut change, |entry| {
            entry.state = FilesetState::Writable;
            (entry.parent, entry.shared_epoch) = (Some(taken.slot), epoch);
            entry.origin = [0; 16];
            self.arrive_as(entry);
        })?;
        let places = [guard.entry_place(), index.entry_place(&core.store, &change, &taken)?];
        // GT5: the entries are written back together.
        if !change.tx_mut().moves_among(&places, 0) {
            return Err(FsError::TryLater);
        }
        let applied = change.end();
        guard.settle(applied.lsn);
        still.share(epoch);
        index.note_new(&snapshot, taken);
        index.note(&entry);
        Ok(applied.class)
    }

    /// Moves the received tree to the target's entry, and clears the receiving entry. `kept` is the
    /// target's kept space if it is open. `reserved` is what the files of its old tree reserve.
    fn show_next(
        &self,
        still: &mut QuiescedFilesets<'_>,
        random: &[u8; 32],
        (kept, reserved): (Option<u64>, u64),
    ) -> ReceiveResult<u64> {
        let (core, store) = (self.core, &self.core.store);
        let change = still.pot.begin(LogCredits::SMALL, Epoch(0));
        let mut change = change.ok_or(FsError::TryLater)?;
        let mut index = core.filesets.table.lock(store)?;
        // The base may have changed between the check and the closing of its gate.
        let base =
            core.transfers().base_of_stream(&index, &self.target, &self.begin, self.arrival)?;
        let before = base.ok_or(FsError::Stale)?.fileset;
        let taken = index.take_slot(store, &mut change)?;
        let received = self.files.fileset.anodes.lock().entry();
        let (epoch, slot) = (change.epoch(), before.slot);
        let mut snapshot = self.snapshot_entry(&received, taken.slot, slot, random);
        snapshot.id = FilesetId(epoch.0);
        let mut entry = before.clone();
        entry.set_table_anode(&received.table_anode());
        (entry.anodes_used, entry.anodes_end) = (received.anodes_used, received.anodes_end);
        (entry.fragments, entry.may_reserve) = (received.fragments, received.may_reserve);
        entry.generation_base = received.generation_base;
        (entry.parent, entry.shared_epoch) = (Some(taken.slot), epoch);
        self.arrive_as(&mut entry);
        index.write_entry(store, &mut change, &snapshot, Some(&taken))?;
        // With `Some`, also writes the counters: they are those of the received tree.
        index.write_entry(store, &mut change, &entry, Some(&taken))?;
        index.clear_entry(store, &mut change, received.slot)?;
        give_back(&mut change, &before, reserved);
        let places = [
            index.entry_place(store, &change, &taken)?,
            index.place_of_entry(store, slot)?,
            index.place_of_entry(store, received.slot)?,
        ];
        // GT5: the entries are written back together.
        if !change.tx_mut().moves_among(&places, 0) {
            return Err(FsError::TryLater.into());
        }
        let applied = change.end();
        let kept_of = |index: &FilesetIndex| {
            index.node(slot).map_or(0, |node| node.kept(store.geometry().fragment_shift))
        };
        let kept = kept.unwrap_or_else(|| kept_of(&index));
        index.note_new(&snapshot, taken);
        index.note(&entry);
        index.note_cleared(received.slot);
        store.alloc.kept.change(kept, kept_of(&index));
        Ok(applied.class)
    }
}

fn give_back(change: &mut Change<'_>, before: &Entry, mut reserved: u64) {
    change.count_anodes(-i64::try_from(before.anodes_used).unwrap_or(0));
    while reserved > 0 {
        let some = u32::try_from(reserved).unwrap_or(u32::MAX);
        change.unreserve(some);
        reserved -= u64::from(some);
    }
}

fn check_free(index: &FilesetIndex, receiving: &ReceiveState<'_>) -> FsResult<()> {
    match index.find(&receiving.target) {
        Some(node) => Err(FsError::FilesetExists { name: index.path_of(node.slot) }),
        None => Ok(()),
    }
}
