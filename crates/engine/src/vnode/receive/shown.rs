//! What was received is shown: one transaction makes it the fileset, and takes the clone of it.

use std::sync::atomic::Ordering;

use format::fileset::{Fileset as Entry, FilesetState, Moving, joined};
use format::ids::{Epoch, FilesetId};
use runtime::planted::{self, Planted};

use super::super::Fileset;
use super::super::clone::Still;
use super::target::Base;
use super::{Arrival, Done, Receiving};
use crate::error::{FsError, FsResult};
use crate::fileset::reserved::reserved_of;
use crate::fileset::table::Index;
use crate::journal::Reservation;
use crate::store::Change;

/// Times that a fileset is held still, before the answer is that others open filesets all the time.
const TRIES: usize = 64;

impl Receiving<'_> {
    /// Shows what was received.
    ///
    /// CRASH: all of it is durable before the transaction that shows it begins: no crash shows a
    /// part.
    pub(super) fn show(&self, random: &[u8; 32]) -> Done<()> {
        let core = self.core;
        core.emptier.wait();
        core.sync_all()?;
        for _ in 0..TRIES {
            // LOCK: both at once, by rising slot: whoever counts what the clone holds alone closes
            // the gates of both, too.
            let there = self.opened_there()?;
            let is_planted = planted::is(Planted::ShowWaitsWithLog);
            let held = [Some(self.files.fileset), there.filter(|_| !is_planted)];
            let held: Vec<_> = held.into_iter().flatten().collect();
            let mut still = core.hold_all_still(&held)?;
            core.store.journal.commit_all()?;
            // What the stream begins from may have changed while it came.
            let target = core.check_target(&self.target, &self.begin, self.arrival)?;
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
            core.sync_all()?;
        }
        Err(FsError::TryLater.into())
    }

    /// Returns the fileset that has the name of what was received, if it is opened and nobody uses
    /// it.
    fn opened_there(&self) -> FsResult<Option<&Fileset>> {
        let filesets = &self.core.filesets;
        let slot = filesets.table.lock(&self.core.store)?.find(&self.target).map(|it| it.slot);
        let slot = slot.filter(|slot| !filesets.is_used(*slot));
        Ok(slot.and_then(|slot| filesets.by_slot_current(slot)))
    }

    /// The fileset that the stream begins from gets what was received. Nobody uses it, and nobody
    /// opens it while its entry changes; `None`: somebody opens one. It is held still, too, if it
    /// was opened (`there`).
    fn show_in_place_of(
        &self,
        still: &mut Still<'_>,
        random: &[u8; 32],
        (base, there): (&Base, Option<&Fileset>),
    ) -> Done<Option<u64>> {
        let (core, slot) = (self.core, base.fileset.slot);
        let reserved = reserved_of(&core.store, &base.clone)?;
        let Some(_unopened) = core.filesets.keep_unopened() else { return Ok(None) };
        let opened = core.filesets.by_slot_current(slot);
        if opened.map(std::ptr::from_ref) != there.map(std::ptr::from_ref) {
            // Somebody has opened it since.
            return Ok(None);
        }
        if let Some(opened) = opened {
            let by = "it is served: end its server first".to_owned();
            let name = joined(&self.target);
            opened.close_to_fronts().map_err(|()| FsError::FilesetInUse { name, by })?;
        }
        let is_planted = planted::is(Planted::ShowWaitsWithLog);
        let _closed = opened.filter(|_| is_planted).map(|opened| opened.gate.close());
        if let Some(opened) = opened.filter(|_| !core.table.dirty_of(slot).is_empty()) {
            // Somebody has held it, written and given it back since all was synced: it has changed,
            // and its entry says so once that is in its maps.
            opened.is_gone.store(false, Ordering::SeqCst);
            return Ok(None);
        }
        // All of it is in its maps by now: what it draws on is the fileset's own again.
        self.files.fileset.anodes.usage.end_borrowing();
        let kept = opened.map(|fileset| fileset.anodes.usage.counts().kept);
        let shown = self.show_next(still, random, (kept, reserved));
        if let Some(opened) = opened {
            // As of a fileset that was restored: who opens it next finds what it is now.
            match &shown {
                Ok(_) => {
                    opened.anodes.end();
                    opened.is_superseded.store(true, Ordering::SeqCst);
                }
                Err(_) => opened.is_gone.store(false, Ordering::SeqCst),
            }
        }
        let class = shown?;
        // Its slot is free now, and all that it had is the fileset's and the clone's.
        self.files.fileset.anodes.end();
        core.filesets.forget(self.files.fileset);
        core.table.remove_all_of(self.files.fileset.anodes.slot);
        core.table.remove_all_of(slot);
        Ok(Some(class))
    }

    /// FM3: what arrives is all here from this transaction on, if the stream is its last.
    fn arrive_as(&self, entry: &mut Entry) {
        let Some(Arrival { token, end: Some(end) }) = self.arrival else { return };
        entry.moving = Some(Moving::Arrived { token, from: end.from.0 });
        entry.uuid = end.uuid;
        (entry.is_read_only, entry.quota_bytes) = (end.is_read_only, end.quota_bytes);
    }

    /// Returns the entry of the clone.
    fn clone_entry(&self, of: &Entry, slot: u32, fileset: u32, random: &[u8; 32]) -> Entry {
        let mut clone = Entry { slot, state: FilesetState::Clone, ..of.clone() };
        // Limits of what never changes would say nothing.
        (clone.quota_bytes, clone.reservation_bytes) = (0, 0);
        (clone.above, clone.name) = (Some(fileset), self.begin.to_name.clone());
        clone.uuid.copy_from_slice(&random[16..]);
        (clone.origin, clone.moving) = (self.begin.to, None);
        clone
    }

    /// The receiving fileset becomes the fileset. Returns the transaction's class.
    fn show_new(&self, still: &mut Still<'_>, random: &[u8; 32]) -> FsResult<u64> {
        let core = self.core;
        let change = still.pot.begin(Reservation::SMALL, Epoch(0));
        let mut change = change.ok_or(FsError::TryLater)?;
        let mut index = core.filesets.table.lock(&core.store)?;
        check_free(&index, self)?;
        let taken = index.take_slot(&core.store, &mut change)?;
        let mut guard = self.files.fileset.anodes.lock();
        let (epoch, received) = (change.epoch(), guard.entry());
        let mut clone = self.clone_entry(&received, taken.slot, received.slot, random);
        clone.id = FilesetId(epoch.0);
        index.write_entry(&core.store, &mut change, &clone, Some(&taken))?;
        let entry = guard.change_entry(&mut change, |entry| {
            entry.state = FilesetState::Writable;
            (entry.parent, entry.shared_epoch) = (Some(taken.slot), epoch);
            entry.origin = [0; 16];
            self.arrive_as(entry);
        })?;
        let places = [guard.entry_place(), index.entry_place(&core.store, &change, &taken)?];
        // GT5.
        if !change.tx_mut().moves_among(&places, 0) {
            return Err(FsError::TryLater);
        }
        let applied = change.end();
        guard.settle(applied.lsn);
        still.share(epoch);
        index.note_new(&clone, taken);
        index.note(&entry);
        Ok(applied.class)
    }

    /// The fileset gets what the receiving one has, which is gone then. `kept` is what is kept free
    /// for it, if somebody has it open; its files reserved `reserved` until now.
    fn show_next(
        &self,
        still: &mut Still<'_>,
        random: &[u8; 32],
        (kept, reserved): (Option<u64>, u64),
    ) -> Done<u64> {
        let (core, store) = (self.core, &self.core.store);
        let change = still.pot.begin(Reservation::SMALL, Epoch(0));
        let mut change = change.ok_or(FsError::TryLater)?;
        let mut index = core.filesets.table.lock(store)?;
        // Nobody changes it any more, but somebody may have, a moment ago.
        let base = core.base_of_stream(&index, &self.target, &self.begin, self.arrival)?;
        let before = base.ok_or(FsError::Stale)?.fileset;
        let taken = index.take_slot(store, &mut change)?;
        let received = self.files.fileset.anodes.lock().entry();
        let (epoch, slot) = (change.epoch(), before.slot);
        let mut clone = self.clone_entry(&received, taken.slot, slot, random);
        clone.id = FilesetId(epoch.0);
        let mut entry = before.clone();
        entry.set_table_anode(&received.table_anode());
        (entry.anodes_used, entry.anodes_end) = (received.anodes_used, received.anodes_end);
        (entry.fragments, entry.may_reserve) = (received.fragments, received.may_reserve);
        entry.generation_base = received.generation_base;
        (entry.parent, entry.shared_epoch) = (Some(taken.slot), epoch);
        self.arrive_as(&mut entry);
        index.write_entry(store, &mut change, &clone, Some(&taken))?;
        // With its counts.
        index.write_entry(store, &mut change, &entry, Some(&taken))?;
        if !planted::is(Planted::PartialKept) {
            index.clear_entry(store, &mut change, received.slot)?;
        }
        give_back(&mut change, &before, reserved);
        let places = [
            index.entry_place(store, &change, &taken)?,
            index.place_of_entry(store, slot)?,
            index.place_of_entry(store, received.slot)?,
        ];
        // GT5.
        if !change.tx_mut().moves_among(&places, 0) {
            return Err(FsError::TryLater.into());
        }
        let applied = change.end();
        let kept_of = |index: &Index| {
            index.node(slot).map_or(0, |node| node.kept(store.geometry().fragment_shift))
        };
        let kept = kept.unwrap_or_else(|| kept_of(&index));
        index.note_new(&clone, taken);
        index.note(&entry);
        index.note_cleared(received.slot);
        store.alloc.kept.change(kept, kept_of(&index));
        Ok(applied.class)
    }
}

/// The pool does not count any more what a fileset had, and what its files reserved.
fn give_back(change: &mut Change<'_>, before: &Entry, mut reserved: u64) {
    change.count_anodes(-i64::try_from(before.anodes_used).unwrap_or(0));
    while reserved > 0 {
        let some = u32::try_from(reserved).unwrap_or(u32::MAX);
        change.unreserve(some);
        reserved -= u64::from(some);
    }
}

/// Refuses to show a fileset whose name somebody else has taken.
fn check_free(index: &Index, receiving: &Receiving<'_>) -> FsResult<()> {
    match index.find(&receiving.target) {
        Some(node) => Err(FsError::FilesetExists { name: index.path_of(node.slot) }),
        None => Ok(()),
    }
}
