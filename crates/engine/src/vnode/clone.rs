//! Clones: a fileset is held still, and its roots are taken.
//!
//! Held still means that all that was accepted is in its maps, and that nobody changes it. The
//! writers of the fileset wait meanwhile, so little is left to do then: what was accepted before is
//! installed first, and what came in between, with room that was reserved for it, once the gate is
//! closed (decision 0047).

use format::fileset::{Cursor, Fileset as Entry, FilesetState, NamePart};
use format::geometry::BLOCK_SHIFTS;
use format::ids::{Epoch, FilesetId};

use super::enter::PutOut;
use super::flush::Changes;
use super::fork::branches_of;
use super::half_freed::tolerate;
use super::{Core, Fileset};
use crate::error::{FsError, FsResult};
use crate::fileset::deletion::Progress;
use crate::fileset::family::Family;
use crate::fileset::table::{HOLDS_MAX, Index, Node};
use crate::gate::Closed;
use crate::journal::Reservation;
use crate::store::{Change, Pot};
use crate::vnode::api::ANOTHER_IS_FREED;
use runtime::planted::{self, Planted};

/// Large changes that may be needed while the gate is closed: each enters up to 32 small files.
const POT_CHANGES: usize = 4;
/// Times that a fileset is flushed to be held still, before the answer is that it is too busy.
const TRIES: usize = 8;

/// Most filesets of which clones are taken at one moment: their entries go home together.
const CLONES_AT_ONCE: usize = 16;

/// Filesets that are held still until this is dropped.
#[derive(Debug)]
pub struct Still<'c> {
    /// Room for what its holder does; given back after the gates are open.
    pub(super) pot: Pot<'c>,
    closed: Vec<(&'c Fileset, Closed<'c>)>,
}

impl<'c> Still<'c> {
    /// What was born up to now others hold too.
    pub(super) fn share(&self, epoch: Epoch) {
        self.closed.iter().for_each(|(_, closed)| closed.share(epoch));
    }

    /// Starts a change of a fileset that is held still.
    pub(super) fn begin(
        &mut self,
        fileset: &Fileset,
        reservation: Reservation,
    ) -> FsResult<Change<'c>> {
        let change = self.pot.begin(reservation, fileset.gate.shared_epoch());
        change.ok_or(FsError::TryLater)
    }
}

impl Core {
    /// Takes a clone of a fileset; it is durable when this returns. Returns also for how long
    /// nobody could change the fileset, in nanoseconds.
    pub(crate) fn create_clone(
        &self,
        path: &[NamePart],
        name: &NamePart,
        random: [u8; 16],
    ) -> FsResult<(Node, u64)> {
        let slot = self.filesets.table.lock(&self.store)?.slot_of(path)?;
        let (mut made, paused_ns) = self.create_clones(&[slot], name, &mut || random)?;
        Ok((made.pop().ok_or(FsError::Invalid)?, paused_ns))
    }

    /// As [`Core::create_clone`], of a fileset and of all below it, at one moment.
    pub(crate) fn create_clones_below(
        &self,
        path: &[NamePart],
        name: &NamePart,
        random: &mut dyn FnMut() -> [u8; 16],
    ) -> FsResult<(Vec<Node>, u64)> {
        let slots = {
            let index = self.filesets.table.lock(&self.store)?;
            let slot = index.slot_of(path)?;
            let (mut slots, mut looked) = (vec![slot], 0);
            while let Some(above) = slots.get(looked).copied() {
                let below = index.children(above).filter(|node| node.is_live());
                slots.extend(below.map(|node| node.slot));
                looked += 1;
                if slots.len() > CLONES_AT_ONCE {
                    let by = format!(
                        "more than {CLONES_AT_ONCE} filesets are at and below it: take clones of \
                         parts, or of each"
                    );
                    return Err(FsError::FilesetInUse { name: index.path_of(slot), by });
                }
            }
            slots
        };
        self.create_clones(&slots, name, random)
    }

    /// Takes clones of the filesets in `slots` at one moment, all or none.
    pub(super) fn create_clones(
        &self,
        slots: &[u32],
        name: &NamePart,
        random: &mut dyn FnMut() -> [u8; 16],
    ) -> FsResult<(Vec<Node>, u64)> {
        self.check_writable()?;
        // Before anything is flushed for it; asked again under the lock of the transaction.
        self.filesets.table.lock(&self.store)?.check_count(slots.len())?;
        self.grow_table()?;
        let mut filesets = Vec::new();
        for slot in slots {
            filesets.push(self.open_fileset(*slot)?);
            check_clone_name(&*self.filesets.table.lock(&self.store)?, *slot, name)?;
        }
        let mut still = self.hold_all_still(&filesets)?;
        let since_ns = self.store.clock.monotonic_ns();
        let made = self.take_roots(&mut still, name, random);
        drop(still);
        let paused_ns = self.store.clock.monotonic_ns().saturating_sub(since_ns);
        let made = made?;
        if planted::is(Planted::CloneCommitsItsClassAlone) {
            return self.store.journal.commit(made.1).map(|()| (made.0, paused_ns));
        }
        // All classes: what the clone holds may be in any of them.
        self.store.journal.commit_all()?;
        Ok((made.0, paused_ns))
    }

    /// Refuses one more of a family of which a move might have to change more pages than a
    /// transaction can.
    pub(super) fn check_family_room(
        &self,
        index: &Index,
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
            "{most} clones and filesets have blocks in common with it, which is all that the log \
             of this pool can move together: delete a clone first"
        );
        Err(FsError::FilesetInUse { name, by })
    }

    /// Makes the entries of clones of filesets that are held still; returns them, and their class.
    ///
    /// CRASH: the first change of the fileset after it copies a path up to the fileset's entry, on
    /// a page that this transaction has changed. So no crash keeps a later change and loses the
    /// clone.
    fn take_roots(
        &self,
        still: &mut Still<'_>,
        name: &NamePart,
        random: &mut dyn FnMut() -> [u8; 16],
    ) -> FsResult<(Vec<Node>, u64)> {
        let change = still.pot.begin(Reservation::SMALL, Epoch(0));
        let mut change = change.ok_or(FsError::TryLater)?;
        let mut index = self.filesets.table.lock(&self.store)?;
        index.check_count(still.closed.len())?;
        let epoch = change.epoch();
        let (mut clones, mut guards, mut entries) = (Vec::new(), Vec::new(), Vec::new());
        let (mut places, mut last) = (Vec::new(), None);
        // Filesets are locked by rising slot.
        for (fileset, _) in &still.closed {
            check_clone_name(&index, fileset.anodes.slot, name)?;
            fileset.check_current()?;
            let is_beside = |clone: &Entry| clone.family == fileset.anodes.family;
            let beside = clones.iter().filter(|(clone, _)| is_beside(clone)).count();
            self.check_clonable(&index, (fileset, beside), name)?;
            let taken = index.take_slot_after(&self.store, &mut change, last.as_ref())?;
            let mut guard = fileset.anodes.lock();
            let clone = self.clone_of(&guard.entry(), (epoch, taken.slot), (name, random()));
            index.write_entry(&self.store, &mut change, &clone, Some(&taken))?;
            let entry = guard.change_entry(&mut change, |entry| {
                (entry.parent, entry.shared_epoch) = (Some(taken.slot), epoch);
            })?;
            places.push(guard.entry_place());
            places.push(index.entry_place(&self.store, &change, &taken)?);
            guards.push(guard);
            entries.push(entry);
            clones.push((clone, taken.clone()));
            last = Some(taken);
        }
        // GT5: no entry is at home without the others.
        if !change.tx_mut().moves_among(&places, 0) {
            return Err(FsError::TryLater);
        }
        let applied = change.end();
        guards.into_iter().for_each(|guard| guard.settle(applied.lsn));
        still.share(epoch);
        let mut made = Vec::new();
        for ((clone, taken), entry) in clones.into_iter().zip(entries) {
            index.note_new(&clone, taken);
            index.note(&entry);
            made.push(index.node(clone.slot).cloned().ok_or(FsError::Invalid)?);
        }
        Ok((made, applied.class))
    }

    /// Returns the entry of a clone of `entry` that is taken now.
    fn clone_of(
        &self,
        entry: &Entry,
        (epoch, slot): (Epoch, u32),
        (name, random): (&NamePart, [u8; 16]),
    ) -> Entry {
        let mut clone = entry.clone();
        if planted::is(Planted::CloneCountsNothing) {
            clone.fragments = 0;
        }
        // Limits of what never changes would say nothing.
        (clone.quota_bytes, clone.reservation_bytes) = (0, 0);
        (clone.id, clone.slot, clone.state) = (FilesetId(epoch.0), slot, FilesetState::Clone);
        (clone.above, clone.name) = (Some(entry.slot), name.clone());
        (clone.origin, clone.moving) = ([0; 16], None);
        clone.created_seconds = u64::try_from(self.store.now().seconds).unwrap_or(0);
        clone.uuid = random;
        clone
    }

    /// Keeps a clone from being deleted, by a name, or takes that back; it is durable when this
    /// returns.
    pub(crate) fn hold_clone(
        &self,
        (path, clone): (&[NamePart], &NamePart),
        name: &NamePart,
        is_held: bool,
    ) -> FsResult<()> {
        self.check_writable()?;
        let mut change = self.store.begin_pool(Reservation::SMALL)?;
        let mut index = self.filesets.table.lock(&self.store)?;
        let slot = index.slot_of_node(path, Some(clone))?;
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

    /// Deletes a clone: it is out of reach, and that is durable, when this returns. Whoever entered
    /// it through the directory of clones is put out. Returns its slot. Where the clone after it is
    /// there, a job frees what it alone held; of the newest clone all is free when this returns,
    /// and nobody could change the fileset meanwhile.
    pub(crate) fn delete_clone(&self, path: &[NamePart], name: &NamePart) -> FsResult<u32> {
        self.delete_clone_at(&|index| index.slot_of_node(path, Some(name)))
    }

    /// As [`Core::delete_clone`], of the one that `find` finds, whenever it is asked.
    pub(super) fn delete_clone_at(&self, find: &dyn Fn(&Index) -> FsResult<u32>) -> FsResult<u32> {
        self.check_writable()?;
        for _ in 0..TRIES {
            let slot = {
                let index = self.filesets.table.lock(&self.store)?;
                let slot = find(&index)?;
                check_deletable(&index, slot)?;
                slot
            };
            let opened = self.filesets.by_slot(slot);
            let mut put_out = opened.map(|clone| self.put_out(clone)).transpose()?;
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

    /// Notes in its entry that a clone is deleted. Returns the fileset that goes back to it next,
    /// if no clone does, and the class. `None`: somebody has opened it meanwhile, or named it anew.
    fn mark_deleted(
        &self,
        find: &dyn Fn(&Index) -> FsResult<u32>,
        slot: u32,
        put_out: Option<&mut PutOut<'_>>,
    ) -> FsResult<Option<(Option<u32>, u64)>> {
        // Until its files are out of memory nobody opens it, and nobody moves blocks for it.
        let _unopened = self.filesets.keep_all_unopened();
        if self.filesets.by_slot(slot).is_some() != put_out.is_some() {
            return Ok(None);
        }
        let mut change = self.store.begin_pool(Reservation::SMALL)?;
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
            self.filesets.forget(put_out.clone);
            self.table.remove_all_of(slot);
        }
        Ok(Some((live, applied.class)))
    }

    /// Frees a part of a fileset or a clone that was deleted.
    pub(crate) fn free_deleted(&self, slot: u32) -> FsResult<Progress> {
        let child = {
            let index = self.filesets.table.lock(&self.store)?;
            index.children_in_family(slot).next().cloned()
        };
        match child {
            Some(child) if child.is_live() => {
                self.free_under_gate(self.open_fileset(child.slot)?)?;
                // A clone that was taken just before the gate closed has come between.
                let is_there = self.filesets.table.lock(&self.store)?.node(slot).is_some();
                Ok(if is_there { Progress::More } else { Progress::Gone })
            }
            child => {
                let progress = self.filesets.table.free_some(&self.store, slot)?;
                if progress == Progress::Whole
                    && let Some(child) = child
                {
                    self.end_clone(slot, child.slot, None)?;
                    return Ok(Progress::Gone);
                }
                Ok(progress)
            }
        }
    }

    /// Returns how many fragments only a clone holds: its deletion would give them back. Who
    /// changes a fileset that goes back to it waits for each part of the walk.
    pub(crate) fn own_fragments(&self, path: &[NamePart], clone: &NamePart) -> FsResult<u64> {
        let pinned = self.pin_clone(path, clone)?;
        let (mut total, mut next) = (0, Some(Cursor::START));
        while let Some(cursor) = next {
            self.check_walk()?;
            match self.count_part((pinned.slot, pinned.entry.id), cursor) {
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

    /// Frees what only the newest clone of a fileset held, if that was deleted.
    fn free_under_gate(&self, fileset: &Fileset) -> FsResult<()> {
        let closed = fileset.gate.close();
        self.finish_clone_deletion(fileset, &closed)
    }

    /// Frees what only the newest clone of the main fileset held, if a crash has interrupted that.
    /// Returns whether the fileset may be changed.
    pub(crate) fn finish_main_deletion(&self) -> FsResult<bool> {
        let main = &self.filesets.main;
        if main.anodes.shared_epoch() != Epoch(0) {
            tolerate(self.free_under_gate(main))?;
        }
        Ok(!main.is_half_freed())
    }

    /// Does so for whoever keeps the gate of the fileset closed.
    ///
    /// CRASH: what the fileset has given up is durable before the walk looks at what it has, and
    /// what was freed is before the fileset goes on: else a crash that undoes one and not the other
    /// would have a block freed twice, or a free one in use.
    pub(super) fn finish_clone_deletion(
        &self,
        fileset: &Fileset,
        closed: &Closed<'_>,
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
            Ok(_) if planted::is(Planted::SharedAfterDeletion) => {}
            Ok(shared_epoch) => closed.share(shared_epoch),
            // The walk goes on at the next open. Until then nothing may change what it compares.
            Err(_) => fileset.note_half_freed(),
        }
        freed.map(drop)
    }

    fn free_newest(&self, slot: u32, fileset: &Fileset) -> FsResult<Epoch> {
        self.store.journal.commit_all()?;
        while self.filesets.table.free_some(&self.store, slot)? == Progress::More {}
        let shared_epoch = self.end_clone(slot, fileset.anodes.slot, Some(fileset))?;
        self.store.journal.commit_all()?;
        Ok(shared_epoch)
    }

    /// Takes the entry of a clone away of which all is free; the clone before it becomes the parent
    /// of `child`, the fileset if it is `writable`. Returns the epoch up to which that is shared.
    fn end_clone(&self, slot: u32, child: u32, writable: Option<&Fileset>) -> FsResult<Epoch> {
        let mut change = self.store.begin_pool(Reservation::SMALL)?;
        let mut index = self.filesets.table.lock(&self.store)?;
        let entry = index.read_entry(&self.store, slot)?;
        let (parent, shared_epoch) = (entry.parent, entry.shared_epoch);
        index.clear_entry(&self.store, &mut change, slot)?;
        let places = [slot, child].map(|slot| index.place_of_entry(&self.store, slot));
        let [cleared, changed] = places;
        // Neither entry is at home without the other.
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

    /// As [`Core::hold_still`], of the fileset of this name.
    pub(crate) fn hold_still_named(&self, path: &[NamePart]) -> FsResult<Still<'_>> {
        self.check_writable()?;
        let slot = self.filesets.table.lock(&self.store)?.slot_of(path)?;
        self.hold_still(self.open_fileset(slot)?)
    }

    /// Puts all that was accepted of a fileset in its maps and keeps everybody out who would change
    /// it. Called with no lock held.
    pub(crate) fn hold_still<'c>(&'c self, fileset: &'c Fileset) -> FsResult<Still<'c>> {
        self.hold_all_still(&[fileset])
    }

    /// As [`Core::hold_still`], of several filesets at one moment: the gates are closed one after
    /// the other, by rising slot, and from the last on none of them changes.
    pub(super) fn hold_all_still<'c>(&'c self, filesets: &[&'c Fileset]) -> FsResult<Still<'c>> {
        let mut filesets = filesets.to_vec();
        filesets.sort_by_key(|fileset| fileset.anodes.slot);
        let slot_of = |fileset: &&Fileset| fileset.anodes.slot;
        for _ in 0..TRIES {
            self.segments.seal();
            self.install_waiting()?;
            for slot in filesets.iter().map(slot_of) {
                self.install_dirty(slot, &mut Changes::Waiting)?;
            }
            let (mut pot, closed) = self.close_with_pot(&filesets)?;
            self.segments.seal();
            let mut is_all = true;
            if !planted::is(Planted::CloneLeavesBlocksWaiting) {
                for slot in filesets.iter().map(slot_of) {
                    is_all = is_all && self.install_dirty(slot, &mut Changes::Pot(&mut pot))?;
                }
            }
            if is_all {
                return Ok(Still { pot, closed });
            }
        }
        let slot = filesets.first().map_or(0, slot_of);
        let name = self.filesets.table.lock(&self.store)?.path_of(slot);
        let by = "it changes faster than it can be written: try again when it is quieter";
        Err(FsError::FilesetInUse { name, by: by.to_owned() })
    }
}

impl Core {
    /// Closes the gates of filesets, by rising slot, with room in the log for what is done then.
    fn close_with_pot<'c>(
        &'c self,
        filesets: &[&'c Fileset],
    ) -> FsResult<(Pot<'c>, Vec<(&'c Fileset, Closed<'c>)>)> {
        loop {
            let pot = self.store.fill_pot(POT_CHANGES)?;
            let mut closed = Vec::new();
            // LOCK: by rising slot, and nobody inside one of them waits at another.
            let is_closed_by_other = filesets.iter().find(|fileset| {
                let own = fileset.gate.try_close();
                let is_other = own.is_none();
                closed.extend(own.map(|own| (**fileset, own)));
                is_other
            });
            let Some(other) = is_closed_by_other else { return Ok((pot, closed)) };
            // GT4: who has closed it may wait for the log.
            drop((closed, pot));
            other.gate.wait_until_open();
        }
    }
}

/// Refuses to delete a clone that something depends on.
fn check_deletable(index: &Index, slot: u32) -> FsResult<()> {
    let in_use = |by: String| FsError::FilesetInUse { name: index.path_of(slot), by };
    if index.node(slot).is_some_and(|node| index.is_family_freed(node.family)) {
        return Err(in_use(ANOTHER_IS_FREED.to_owned()));
    }
    needed_by(index, slot).map_or(Ok(()), |by| Err(in_use(by)))
}

/// Returns what needs a clone, so that it can't be deleted, and what to do. `None`: nothing.
pub(crate) fn needed_by(index: &Index, slot: u32) -> Option<String> {
    let holds: Vec<_> = index.holds_of(slot).map(NamePart::as_str).collect();
    if !holds.is_empty() && !planted::is(Planted::HoldIgnored) {
        return Some(format!("it is held by {}: release it first", holds.join(", ")));
    }
    if index.is_pinned(slot) {
        return Some("it is being read: try again when that is done".to_owned());
    }
    let is_receiving = |child: &Node| child.is_receiving();
    if let Some(child) = index.children_in_family(slot).find(|child| is_receiving(child)) {
        let to = index.path_of(child.slot);
        return Some(format!(
            "a stream to {to} that begins from it comes, or broke off: receive the rest, or give \
             up what came (`holdfast receive POOL:{to} --abort`)"
        ));
    }
    // DL3: each of two would hold what the other does not. One that is being freed holds nothing
    // for long.
    let children = index.children_in_family(slot).filter(|child| !child.is_deleted());
    if children.count() < 2 {
        return None;
    }
    let branches = branches_of(index, slot);
    let which = if branches.len() == 2 { "all of one of them" } else { "all of them but one" };
    let (count, branches) = (branches.len(), branches.join(", "));
    Some(format!("{count} branches go back to it, {branches}: delete {which} first"))
}

fn check_clone_name(index: &Index, of: u32, name: &NamePart) -> FsResult<()> {
    match index.clone_of(of, name) {
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
    use storage::device::{Device, MemoryDevice, Operation, Purpose, SharedDevice};

    use super::Changes;
    use crate::convert::index_wide;
    use crate::vnode::api::{
        Caller, FileKind, FileSystem, FsError, Ino, NewInode, RenameMode, SetAttr,
    };
    use crate::vnode::{Files, FilesOptions};
    use crate::{CreateOptions, OpenOptions, Pool};

    const POOL_BYTES: u64 = 64 << 20;
    const NAMES: u64 = 40;

    type Tree = BTreeMap<Vec<u8>, (u64, u16, Vec<u8>)>;

    fn open(device: SharedDevice) -> Pool {
        let files = FilesOptions { no_atime: true, ..FilesOptions::default() };
        let options = OpenOptions { files, ..OpenOptions::default() };
        Pool::open(device, Arc::new(ManualClock::new()), options).expect("it opens")
    }

    /// What can go wrong does not matter, but for what never should.
    fn done<T>(result: Result<T, FsError>) {
        let error = result.err();
        assert!(!matches!(error, Some(FsError::TryLater | FsError::Corrupt { .. })), "{error:?}");
    }

    /// One operation on a few names; most that can go wrong do, and it does not matter.
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
        let each = &mut |entry: &crate::vnode::api::DirEntry| {
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
            let bytes = device.read(Purpose::Check, offset, 1 << 20).expect("memory does not fail");
            let write = Operation::Write { offset, data: vec![bytes.into()] };
            copy.submit(Purpose::Check, write).wait().expect("memory does not fail");
        }
        copy
    }

    /// Goal: what is in the maps when a fileset is held still is all that was accepted. Method:
    /// three threads change files; now and then the fileset is held still and what its classes have
    /// logged is committed; the device as it is then, opened as after a crash, has the tree that
    /// programs see at that moment.
    #[test]
    fn a_fileset_that_is_held_still_has_all_that_was_accepted_in_its_maps() {
        let device: SharedDevice = MemoryDevice::new("memory", POOL_BYTES);
        let options = CreateOptions::new(POOL_BYTES, [7; 64]);
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
                let still = core.hold_still(&core.filesets.main).expect("a few files");
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
        let options = CreateOptions::new(4 * POOL_BYTES, [7; 64]);
        Pool::create(&device, &ManualClock::new(), &options).expect("a pool fits");
        (Arc::clone(&device), open(device))
    }

    fn clone_tree(pool: &Pool, name: &str) -> Tree {
        let (root, clone) = ("root".parse().expect("a name"), NamePart::new(name).expect("a name"));
        let uuid = pool.hold_clone(&root, &clone).expect("it is there");
        tree_of(pool, pool.root_of(uuid).expect("it is held"))
    }

    /// Goal: what a file places before it grows is in the map of a clone that is taken before it is
    /// installed: it is sealed by then, and so it is older than the clone. Method: the file is
    /// clean, and its last block stores bytes behind its end; the gate closes between the steps.
    #[test]
    fn zeros_that_a_file_places_before_it_grows_are_in_a_clone_that_comes_between() {
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
        files.prepare_growth(&mut state, &vnode, 100_000).expect("there is room");
        assert_eq!(state.pending.len(), 1, "its last block has bytes behind the end");
        drop((state, change));
        let (mut pot, _closed) = core.close_with_pot(&[fileset]).expect("there is room");
        core.segments.seal();
        let installed = core.install_dirty(fileset.anodes.slot, &mut Changes::Pot(&mut pot));
        assert_eq!(installed, Ok(true), "the pot has room for one file");
        assert!(vnode.state.read().pending.is_empty(), "a clone would lack the zeros");
    }

    /// Goal: a clone is what the fileset was like when it was taken, whatever is changed since, and
    /// after a reopening. Method: many changes between clones; each tree is kept and compared.
    #[test]
    fn a_clone_stays_what_its_fileset_was_like() {
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
                let clone = NamePart::new(&name).expect("a name");
                let root = "root".parse().expect("a name");
                pool.create_clone(&root, &clone, [number; 16]).expect("there is room");
                kept.push((name, before));
                for (name, tree) in &kept {
                    assert!(clone_tree(&pool, name) == *tree, "seed {seed}: {name} of {number}");
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
                assert!(clone_tree(&pool, name) == *tree, "seed {seed}: {name} at the end");
            }
        }
    }
}
