//! Clones (writable filesets that start from a snapshot) and restores, which put a clone in the
//! place of the snapshot's own fileset.
//!
//! # Invariants
//!
//! - FK1: A clone needs only that its snapshot's entry is durable. It shares all pages of the
//!   snapshot: everything born in its epoch or earlier counts as shared (GT1).
//! - FK2: A restore changes two entries in one transaction, and they are written back together.
//!   Slot, name and handles continue with the clone. The old tree gets another slot, marked as
//!   deleted.
//! - FK3: An [`OpenFileset`] obtained before a restore, deletion or receive can't change anything:
//!   locking it fails. Its successor is opened only after the old files have left memory.
//!
//! # Crashes
//!
//! The first change of a clone copies a path up to its entry. The entry's page was written by the
//! transaction that made the clone, so no crash keeps the change and loses the clone. Until a
//! restore is durable the fileset is unchanged.
//!
//! # Concurrency
//!
//! The snapshot is pinned. A fileset being restored is closed to fronts until the restore ends.

use crate::file::Snapshotter;
use std::sync::atomic::Ordering;

use format::fileset::{Cursor, Fileset as Entry, FilesetState, NamePart, joined};
use format::ids::{Epoch, FilesetId};
use runtime::{if_planted, unless_planted};

use crate::alloc::Urgency;
use crate::error::{FsError, FsResult};
use crate::file::OpenFileset;
use crate::fileset::lifecycle::{check_live, check_new_name, check_settled};
use crate::fileset::pin::SnapshotPin;
use crate::fileset_table::reserved::reserved_of;
use crate::fileset_table::table::{FilesetIndex, FilesetNode};
use crate::journal::LogCredits;
use crate::store::Change;
use crate::usage::FilesetLimits;
const RENAMES_PER_STEP: usize = 16;
/// Most names of one branch in an error message, and most nodes visited for them.
const BRANCH_NAMES_MAX: usize = 8;
const BRANCH_NODES_MAX: usize = 1024;

/// Result of a restore.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RestoreReport {
    /// Younger snapshots of the fileset, which stay.
    pub later: Vec<String>,
    pub(crate) old_slot: u32,
}

impl Snapshotter<'_> {
    /// Returns a snapshot's durable entry, and the fragments that its files reserve.
    fn clone_source(&self, snapshot: &SnapshotPin<'_>) -> FsResult<(Entry, u64)> {
        // FK1: commits the entry, since the snapshot may have been taken just now.
        self.store.journal.commit_all()?;
        let entry =
            self.filesets.table.lock(&self.store)?.read_entry(&self.store, snapshot.slot)?;
        let reserved = reserved_of(&self.store, &entry)?;
        self.store.alloc.check_room(reserved, Urgency::User, 0)?;
        Ok((entry, reserved))
    }

    pub(crate) fn create_clone(
        &self,
        (path, snapshot): (&[NamePart], &NamePart),
        new: &[NamePart],
        random: [u8; 16],
    ) -> FsResult<FilesetNode> {
        self.check_writable()?;
        let pinned = self.snapshotter().pin_snapshot(path, snapshot)?;
        let (source, reserved) = self.clone_source(&pinned)?;
        let mut change = self.store.begin_pool(LogCredits::SMALL)?;
        let mut index = self.filesets.table.lock(&self.store)?;
        let (above, name) = check_new_name(&index, None, new)?;
        self.check_family_room(&index, source.family, 0)?;
        let taken = index.take_slot(&self.store, &mut change)?;
        let mut clone = clone_of(&source, change.epoch());
        (clone.slot, clone.above, clone.name, clone.uuid) = (taken.slot, above, name, random);
        clone.created_seconds = u64::try_from(self.store.now().seconds).unwrap_or(0);
        index.write_entry(&self.store, &mut change, &clone, Some(&taken))?;
        take_on(&mut change, &clone, reserved);
        let applied = change.end();
        index.note_new(&clone, taken);
        let made = index.node(clone.slot).cloned().ok_or(FsError::Invalid)?;
        drop(index);
        self.store.journal.commit(applied.class)?;
        Ok(made)
    }

    /// Restores an unused fileset to its snapshot, durable on return. A job frees the old tree.
    pub(crate) fn restore_fileset(
        &self,
        (path, snapshot): (&[NamePart], &NamePart),
    ) -> FsResult<RestoreReport> {
        self.check_writable()?;
        let pinned = self.snapshotter().pin_snapshot(path, snapshot)?;
        let slot = self.filesets.table.lock(&self.store)?.slot_of(path)?;
        let in_use = |by: &str| FsError::FilesetInUse { name: joined(path), by: by.to_owned() };
        if slot == self.filesets.main_slot() {
            return Err(in_use("it is mounted: unmount it, and restore it then"));
        }
        let source = self.clone_source(&pinned)?;
        let fileset = self.open_fileset(slot)?;
        fileset.close_to_fronts().map_err(|()| in_use("it is served: end its server first"))?;
        self.emptier.wait();
        let done = self.put_clone(fileset, &source);
        if done.is_err() {
            fileset.is_gone.store(false, Ordering::SeqCst);
        }
        let (restored, class) = done?;
        self.store.journal.commit(class)?;
        Ok(restored)
    }

    /// Replaces an unused fileset by a clone. Returns the result and the transaction's class.
    fn put_clone(
        &self,
        fileset: &OpenFileset,
        (source, reserved): &(Entry, u64),
    ) -> FsResult<(RestoreReport, u64)> {
        fileset.wait_for_reapers();
        // The old tree must be mapped and written back: the walk that frees it reads only maps.
        self.writeback().sync_all()?;
        self.store.journal.checkpoint()?;
        let slot = fileset.anodes.slot;
        let mut change = self.store.begin_in(&fileset.gate, LogCredits::SMALL)?;
        let mut index = self.filesets.table.lock(&self.store)?;
        check_live(&index, slot)?;
        // A move to another pool may have begun since the lookup of the name.
        index.check_here(slot)?;
        fileset.check_current()?;
        if index.is_snapshot_freed(source.family) {
            let by = "a snapshot is being freed: try again when that is done".to_owned();
            return Err(FsError::FilesetInUse { name: index.path_of(slot), by });
        }
        self.check_family_room(&index, source.family, 0)?;
        let mut guard = fileset.anodes.lock_current()?;
        let now = guard.entry();
        check_settled(&index, slot)?;
        let taken = index.take_slot(&self.store, &mut change)?;
        let mut old = now.clone();
        (old.slot, old.state) = (taken.slot, FilesetState::Deleted(Cursor::START));
        (old.quota_bytes, old.reservation_bytes, old.moving) = (0, 0, None);
        let mut new = clone_of(source, change.epoch());
        (new.slot, new.above, new.name, new.uuid) = (slot, now.above, now.name.clone(), now.uuid);
        (new.is_read_only, new.created_seconds) = (now.is_read_only, now.created_seconds);
        (new.quota_bytes, new.reservation_bytes) = (now.quota_bytes, now.reservation_bytes);
        // The old tree's space is freed later, so until then the reservation needs additional room.
        let kept_before = fileset.anodes.usage.counts().kept;
        self.check_reservation(&index.path_of(slot), &new, (kept_before, *reserved))?;
        // Generations of an inode number are never reused.
        new.generation_base = new.generation_base.max(now.generation_base);
        index.write_entry(&self.store, &mut change, &old, Some(&taken))?;
        index.write_entry(&self.store, &mut change, &new, Some(&taken))?;
        let places = [guard.entry_place(), index.entry_place(&self.store, &change, &taken)?];
        // FK2: the entries are written back together.
        if !change.tx_mut().moves_among(&places, 0) {
            return Err(FsError::TryLater);
        }
        take_on(&mut change, &new, *reserved);
        let applied = change.end();
        // FK3: later locks of the replaced [`OpenFileset`] fail.
        guard.end_fileset();
        drop(guard);
        index.note(&new);
        index.note_new(&old, taken);
        // QT4: the kept space is charged to the successor from now on.
        let kept =
            index.node(slot).map_or(0, |node| node.kept(self.store.geometry().fragment_shift));
        self.store.alloc.kept.change(0, kept);
        fileset.anodes.usage.set_limits(FilesetLimits::default());
        fileset.is_superseded.store(true, Ordering::SeqCst);
        // FK3: no successor is open yet, since opening it waits for the lock of the table.
        unless_planted!(RestoredFilesKept, self.table.remove_all_of(slot));
        let is_later = |node: &&FilesetNode| node.id.0 > source.id.0;
        let later = index.snapshots_of(slot).filter(is_later);
        let later = later.map(|node| index.path_of(node.slot)).collect();
        Ok((RestoreReport { later, old_slot: old.slot }, applied.class))
    }

    /// Promotes a clone: the snapshots on its path become its own. Returns their new names. Each
    /// step stands alone, so after a crash the promotion is simply repeated.
    pub(crate) fn promote_fileset(&self, path: &[NamePart]) -> FsResult<Vec<String>> {
        self.check_writable()?;
        let slot = self.filesets.table.lock(&self.store)?.slot_of(path)?;
        self.promote_slot(slot, path)
    }

    pub(super) fn promote_slot(&self, slot: u32, path: &[NamePart]) -> FsResult<Vec<String>> {
        let mut names = Vec::new();
        loop {
            let mut change = self.store.begin_pool(LogCredits::LARGE)?;
            let mut index = self.filesets.table.lock(&self.store)?;
            check_live(&index, slot)?;
            index.check_here(slot)?;
            let others = snapshots_of_others(&index, slot)?;
            if others.is_empty() {
                break;
            }
            let mut renamed = Vec::new();
            // Oldest first, so that after a crash each fileset's snapshots are still contiguous on
            // the path.
            for snapshot in others.into_iter().take(RENAMES_PER_STEP) {
                let mut entry = index.read_entry(&self.store, snapshot)?;
                entry.above = Some(slot);
                index.write_entry(&self.store, &mut change, &entry, None)?;
                renamed.push(entry);
            }
            let applied = change.end();
            for entry in renamed {
                index.note(&entry);
                names.push(index.path_of(entry.slot));
            }
            drop(index);
            self.store.journal.commit(applied.class)?;
        }
        if names.is_empty() {
            let by = "it has no snapshots of another fileset to take over: it is no clone, or was \
                      promoted"
                .to_owned();
            return Err(FsError::FilesetInUse { name: joined(path), by });
        }
        Ok(names)
    }
}

pub(super) fn branches_of(index: &FilesetIndex, slot: u32) -> Vec<String> {
    let names_of = |child: &FilesetNode| {
        let (mut names, mut left, mut looked) = (Vec::new(), vec![child.slot], 0);
        while let Some(slot) = left.pop().filter(|_| looked < BRANCH_NODES_MAX) {
            looked += 1;
            if names.len() < BRANCH_NAMES_MAX {
                names.push(index.path_of(slot));
            }
            left.extend(index.children_in_family(slot).map(|node| node.slot));
        }
        let more = match looked - names.len() {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        format!("[{}{more}]", names.join(", "))
    };
    index.children_in_family(slot).map(names_of).collect()
}

/// Returns the snapshots on the fileset's path that belong to other filesets, oldest first. Refuses
/// name collisions.
fn snapshots_of_others(index: &FilesetIndex, slot: u32) -> FsResult<Vec<u32>> {
    let (mut others, mut names) = (Vec::new(), Vec::new());
    let mut next = index.node(slot).and_then(|node| node.parent);
    // FT4: epochs fall on the way to the first node, so this ends.
    while let Some(snapshot) = next.and_then(|slot| index.node(slot)) {
        // A snapshot being freed has no name, but older ones may precede it.
        if snapshot.is_snapshot() && snapshot.above != Some(slot) {
            let is_taken = index.snapshot_of(slot, &snapshot.name).is_some();
            if is_taken || names.contains(&&snapshot.name) {
                let name = format!("{}@{}", index.path_of(slot), snapshot.name.as_str());
                return Err(FsError::FilesetExists { name });
            }
            names.push(&snapshot.name);
            others.push(snapshot.slot);
        }
        let parent = snapshot.parent.and_then(|slot| index.node(slot));
        next = parent.filter(|parent| parent.id.0 < snapshot.id.0).map(|parent| parent.slot);
    }
    others.reverse();
    Ok(others)
}

fn clone_of(source: &Entry, epoch: Epoch) -> Entry {
    let mut clone = source.clone();
    (clone.id, clone.state) = (FilesetId(epoch.0), FilesetState::Writable);
    clone.is_read_only = false;
    (clone.quota_bytes, clone.reservation_bytes) = (0, 0);
    clone.origin = [0; 16];
    (clone.parent, clone.shared_epoch) = (Some(source.slot), Epoch(source.id.0));
    if_planted!(CloneOwnsItsSnapshot, clone.shared_epoch = source.shared_epoch);
    clone
}

pub(crate) fn take_on(change: &mut Change<'_>, clone: &Entry, mut reserved: u64) {
    change.count_anodes(i64::try_from(clone.anodes_used).unwrap_or(0));
    while reserved > 0 {
        let some = u32::try_from(reserved).unwrap_or(u32::MAX);
        change.reserve(some);
        reserved -= u64::from(some);
    }
}

#[cfg(test)]
mod tests {
    use format::anode::QUOTA_ANODE;
    use format::ids::PoolId;
    use format::page::PageKind;
    use format::quota::QuotaKind;

    use crate::container::content_owner;
    use crate::error::FsError;
    use crate::fileset_table::quota::QuotaChange;
    use crate::transfer::leave::snapshot_prefix;
    use crate::transfer::leave::tests::{TOKEN, part, pool_with_one};

    /// Goal: once a move has begun, a restore is refused: the old tree would get a deleted entry
    /// marked as moving, which no decoder accepts.
    #[test]
    fn a_fileset_that_has_begun_to_leave_is_not_restored() {
        let (pool, slot) = pool_with_one();
        let core = pool.core();
        let snapshot = part(&format!("{}1", snapshot_prefix(TOKEN)));
        let pinned = core.snapshotter().pin_snapshot(&[part("a")], &snapshot).expect("it is there");
        let source = core.snapshotter().clone_source(&pinned).expect("there is room");
        let fileset = core.open_fileset(slot).expect("it can be read");
        core.transfers().leave(slot, (TOKEN, PoolId([9; 16])), 0).expect("nobody uses it");
        let refused = core.snapshotter().put_clone(fileset, &source).map(drop);
        assert!(matches!(refused, Err(FsError::FilesetInUse { .. })), "{refused:?}");
        let left = core
            .transfers()
            .find_moving(&[part("a")])
            .expect("it can be read")
            .expect("it is there");
        assert_eq!(left.moving.map(|moving| moving.token()), Some(TOKEN));
    }

    /// Goal: FK3. Method: all quota operations, begun before the restore and ended after it.
    #[test]
    fn who_found_a_fileset_before_its_restore_changes_nothing() {
        let (pool, slot) = pool_with_one();
        let core = pool.core();
        let (path, snapshot) = ([part("a")], part("c"));
        core.quotas().switch_quotas(&path, true).expect("there is room");
        while core.quotas().count_quotas_named(&path).expect("there is room") {}
        core.snapshotter().create_snapshot(&path, &snapshot, [3; 16]).expect("there is room");
        let fileset = core.open_fileset(slot).expect("it can be read");
        core.snapshotter().restore_fileset((&path, &snapshot)).expect("nobody uses it");
        let entry = || {
            let index = core.filesets.table.lock(&core.store).expect("it can be read");
            index.read_entry(&core.store, slot).expect("it can be read")
        };
        let restored = entry();
        let container = fileset.anodes.read_anode(&core.store, QUOTA_ANODE);
        let container = container.expect("it can be read").expect("quotas are on");
        let page = (PageKind::Quota, content_owner(&container, 0));
        let who = (QuotaKind::User, 77);
        assert_eq!(core.unshare(fileset, page), Err(FsError::Stale));
        assert_eq!(core.quotas().add_account(fileset, who), Err(FsError::Stale));
        assert_eq!(
            core.quotas().set_quota_of(fileset, who, QuotaChange::default()),
            Err(FsError::Stale)
        );
        assert_eq!(core.quotas().set_quota_graces_of(fileset, [Some(9); 2]), Err(FsError::Stale));
        assert_eq!(core.quotas().switch_quotas_of(fileset, false), Err(FsError::Stale));
        assert_eq!(entry(), restored);
    }
}
