//! What goes on from a clone: a fork is a fileset of its own that begins as the clone is; a restore
//! puts one in the place of the fileset that the clone was taken of.
//!
//! # Invariants
//!
//! - FK1: A clone whose entry is durable is all that a fork needs: its pages are those of the
//!   clone, and what was born in the clone's epoch or before it is shared (GT1).
//! - FK2: A restore changes two entries in one transaction, and neither is at home without the
//!   other: the fileset's slot, name and handles go on with a fork of the clone, and what it held
//!   until then is in a slot of its own, deleted.
//! - FK3: Whoever found a fileset before it was restored, deleted or received changes nothing by
//!   it: its lock says that it is over. What its slot has since then is opened when nothing of it
//!   is in memory any more.
//!
//! # Crashes
//!
//! The first change of a fork copies a path up to its entry, on a page that the fork's transaction
//! has changed: no crash keeps such a change and loses the fork. Until the transaction of a restore
//! is durable the fileset is as it was.
//!
//! # Concurrency
//!
//! The clone is pinned, so nobody deletes it meanwhile. A fileset that is restored is entered by
//! nobody: no front holds it, its name leads to it again only when all is done.

use std::sync::atomic::Ordering;

use format::fileset::{Cursor, Fileset as Entry, FilesetState, NamePart, joined};
use format::ids::{Epoch, FilesetId};
use runtime::planted::{self, Planted};

use super::diff::Pinned;
use super::filesets::{check_live, check_new_name, check_settled};
use super::{Core, Fileset};
use crate::alloc::Urgency;
use crate::error::{FsError, FsResult};
use crate::fileset::reserved::reserved_of;
use crate::fileset::table::{Index, Node};
use crate::journal::Reservation;
use crate::store::Change;
use crate::usage::Limits;

/// Clones that one transaction of a promotion renames.
const RENAMES_PER_STEP: usize = 16;
/// Names of one branch that a refusal tells, and those that it looks at: a family has no more.
const BRANCH_NAMES_MAX: usize = 8;
const BRANCH_NODES_MAX: usize = 1024;

/// What a restore has left.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Restored {
    /// Clones of the fileset that are younger than the one it went back to: they stay.
    pub later: Vec<String>,
    /// Slot of what the fileset held until then: it is being freed.
    pub(crate) old_slot: u32,
}

impl Core {
    /// Returns the entry of a pinned clone, durable, and what its files reserve.
    fn fork_source(&self, clone: &Pinned<'_>) -> FsResult<(Entry, u64)> {
        // FK1: the clone may have been taken a moment ago.
        self.store.journal.commit_all()?;
        let entry = self.filesets.table.lock(&self.store)?.read_entry(&self.store, clone.slot)?;
        let reserved = reserved_of(&self.store, &entry)?;
        self.store.alloc.check_room(reserved, Urgency::User, 0)?;
        Ok((entry, reserved))
    }

    /// Makes a fileset that begins as a clone is; it is durable when this returns.
    pub(crate) fn create_fork(
        &self,
        (path, clone): (&[NamePart], &NamePart),
        new: &[NamePart],
        random: [u8; 16],
    ) -> FsResult<Node> {
        self.check_writable()?;
        let pinned = self.pin_clone(path, clone)?;
        let (source, reserved) = self.fork_source(&pinned)?;
        let mut change = self.store.begin_pool(Reservation::SMALL)?;
        let mut index = self.filesets.table.lock(&self.store)?;
        let (above, name) = check_new_name(&index, None, new)?;
        self.check_family_room(&index, source.family, 0)?;
        let taken = index.take_slot(&self.store, &mut change)?;
        let mut fork = fork_of(&source, change.epoch());
        (fork.slot, fork.above, fork.name, fork.uuid) = (taken.slot, above, name, random);
        fork.created_seconds = u64::try_from(self.store.now().seconds).unwrap_or(0);
        index.write_entry(&self.store, &mut change, &fork, Some(&taken))?;
        take_on(&mut change, &fork, reserved);
        let applied = change.end();
        index.note_new(&fork, taken);
        let made = index.node(fork.slot).cloned().ok_or(FsError::Invalid)?;
        drop(index);
        self.store.journal.commit(applied.class)?;
        Ok(made)
    }

    /// Makes a fileset that nobody uses what its clone is; durable when this returns. What it held
    /// since is freed by a job.
    pub(crate) fn restore_fileset(
        &self,
        (path, clone): (&[NamePart], &NamePart),
    ) -> FsResult<Restored> {
        self.check_writable()?;
        let pinned = self.pin_clone(path, clone)?;
        let slot = self.filesets.table.lock(&self.store)?.slot_of(path)?;
        let in_use = |by: &str| FsError::FilesetInUse { name: joined(path), by: by.to_owned() };
        if slot == self.filesets.main_slot() {
            return Err(in_use("it is mounted: unmount it, and restore it then"));
        }
        let source = self.fork_source(&pinned)?;
        let fileset = self.open_fileset(slot)?;
        fileset.close_to_fronts().map_err(|()| in_use("it is served: end its server first"))?;
        self.emptier.wait();
        let done = self.put_fork(fileset, &source);
        if done.is_err() {
            fileset.is_gone.store(false, Ordering::SeqCst);
        }
        let (restored, class) = done?;
        self.store.journal.commit(class)?;
        Ok(restored)
    }

    /// Puts a fork of a clone in the place of a fileset that nobody uses; returns what that has
    /// left, and the transaction's class.
    fn put_fork(
        &self,
        fileset: &Fileset,
        (source, reserved): &(Entry, u64),
    ) -> FsResult<(Restored, u64)> {
        fileset.wait_for_reapers();
        // As before a deletion: the walk looks at nothing but maps.
        self.sync_all()?;
        self.store.journal.checkpoint()?;
        let slot = fileset.anodes.slot;
        let mut change = self.store.begin_in(&fileset.gate, Reservation::SMALL)?;
        let mut index = self.filesets.table.lock(&self.store)?;
        check_live(&index, slot)?;
        // It may have begun to leave since its name was looked up.
        index.check_here(slot)?;
        fileset.check_current()?;
        if index.is_clone_freed(source.family) {
            let by = "a clone is being freed: try again when that is done".to_owned();
            return Err(FsError::FilesetInUse { name: index.path_of(slot), by });
        }
        self.check_family_room(&index, source.family, 0)?;
        let mut guard = fileset.anodes.lock_current()?;
        let now = guard.entry();
        check_settled(&index, slot)?;
        let taken = index.take_slot(&self.store, &mut change)?;
        let mut old = now.clone();
        (old.slot, old.state) = (taken.slot, FilesetState::Deleted(Cursor::START));
        // What is freed is on its way nowhere, and nothing is kept free for it.
        (old.quota_bytes, old.reservation_bytes, old.moving) = (0, 0, None);
        let mut new = fork_of(source, change.epoch());
        (new.slot, new.above, new.name, new.uuid) = (slot, now.above, now.name.clone(), now.uuid);
        (new.is_read_only, new.created_seconds) = (now.is_read_only, now.created_seconds);
        (new.quota_bytes, new.reservation_bytes) = (now.quota_bytes, now.reservation_bytes);
        // What it held stays held until it is freed: more is kept free at once, or it is refused.
        let kept_before = fileset.anodes.usage.counts().kept;
        self.check_reservation(&index.path_of(slot), &new, (kept_before, *reserved))?;
        // No generation is given twice to a file of one number.
        new.generation_base = new.generation_base.max(now.generation_base);
        index.write_entry(&self.store, &mut change, &old, Some(&taken))?;
        index.write_entry(&self.store, &mut change, &new, Some(&taken))?;
        let places = [guard.entry_place(), index.entry_place(&self.store, &change, &taken)?];
        // FK2: neither is at home without the other.
        if !change.tx_mut().moves_among(&places, 0) {
            return Err(FsError::TryLater);
        }
        take_on(&mut change, &new, *reserved);
        let applied = change.end();
        // FK3.
        guard.end_fileset();
        drop(guard);
        index.note(&new);
        index.note_new(&old, taken);
        // QT4: the rest is that of what the fileset is now.
        let kept =
            index.node(slot).map_or(0, |node| node.kept(self.store.geometry().fragment_shift));
        self.store.alloc.kept.change(0, kept);
        fileset.anodes.usage.set_limits(Limits::default());
        fileset.is_superseded.store(true, Ordering::SeqCst);
        if !planted::is(Planted::RestoredFilesKept) {
            // FK3: whoever opens what it is now waits for the lock of the table.
            self.table.remove_all_of(slot);
        }
        let is_later = |node: &&Node| node.id.0 > source.id.0;
        let later = index.clones_of(slot).filter(is_later);
        let later = later.map(|node| index.path_of(node.slot)).collect();
        Ok((Restored { later, old_slot: old.slot }, applied.class))
    }

    /// Gives a fork the clones on its path: they are called after it from then on. Returns their
    /// new names. Each step stands by itself, so one that a crash cuts is begun again.
    pub(crate) fn promote_fileset(&self, path: &[NamePart]) -> FsResult<Vec<String>> {
        self.check_writable()?;
        let slot = self.filesets.table.lock(&self.store)?.slot_of(path)?;
        self.promote_slot(slot, path)
    }

    /// As [`Core::promote_fileset`], of the one in `slot`, which was called `path` a moment ago.
    pub(super) fn promote_slot(&self, slot: u32, path: &[NamePart]) -> FsResult<Vec<String>> {
        let mut names = Vec::new();
        loop {
            let mut change = self.store.begin_pool(Reservation::LARGE)?;
            let mut index = self.filesets.table.lock(&self.store)?;
            check_live(&index, slot)?;
            index.check_here(slot)?;
            let others = clones_of_others(&index, slot)?;
            if others.is_empty() {
                break;
            }
            let mut renamed = Vec::new();
            // The oldest first: what a crash leaves is a path of which the rest is the others'.
            for clone in others.into_iter().take(RENAMES_PER_STEP) {
                let mut entry = index.read_entry(&self.store, clone)?;
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
            let by = "it has no clones of another fileset to take over: it is no fork, or was \
                      promoted"
                .to_owned();
            return Err(FsError::FilesetInUse { name: joined(path), by });
        }
        Ok(names)
    }
}

/// Returns the branches that go back to the clone in `slot`, each with the names of all that is in
/// it: forks, and forks of forks.
pub(super) fn branches_of(index: &Index, slot: u32) -> Vec<String> {
    let names_of = |child: &Node| {
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

/// Returns the clones on the path of the fileset in `slot` that are another's, the oldest first.
/// Refused if it can't have all their names: it has a clone of one already, or two have the same.
fn clones_of_others(index: &Index, slot: u32) -> FsResult<Vec<u32>> {
    let (mut others, mut names) = (Vec::new(), Vec::new());
    let mut next = index.node(slot).and_then(|node| node.parent);
    // FT4: epochs fall towards the first, so this ends.
    while let Some(clone) = next.and_then(|slot| index.node(slot)) {
        if planted::is(Planted::PromotionStopsAtFreed) && !clone.is_clone() {
            break;
        }
        // One that is being freed has no name any more; older ones still lie before it.
        if clone.is_clone() && clone.above != Some(slot) {
            let is_taken = index.clone_of(slot, &clone.name).is_some();
            if is_taken || names.contains(&&clone.name) {
                let name = format!("{}@{}", index.path_of(slot), clone.name.as_str());
                return Err(FsError::FilesetExists { name });
            }
            names.push(&clone.name);
            others.push(clone.slot);
        }
        let parent = clone.parent.and_then(|slot| index.node(slot));
        next = parent.filter(|parent| parent.id.0 < clone.id.0).map(|parent| parent.slot);
    }
    others.reverse();
    Ok(others)
}

/// Returns the entry of a fork of a clone, but for its slot and names.
fn fork_of(source: &Entry, epoch: Epoch) -> Entry {
    let mut fork = source.clone();
    (fork.id, fork.state) = (FilesetId(epoch.0), FilesetState::Writable);
    fork.is_read_only = false;
    (fork.quota_bytes, fork.reservation_bytes) = (0, 0);
    fork.origin = [0; 16];
    let shared = if planted::is(Planted::ForkOwnsItsClone) {
        source.shared_epoch
    } else {
        Epoch(source.id.0)
    };
    (fork.parent, fork.shared_epoch) = (Some(source.slot), shared);
    fork
}

/// The pool counts a fork's anodes, and what it reserves.
pub(super) fn take_on(change: &mut Change<'_>, fork: &Entry, mut reserved: u64) {
    change.count_anodes(i64::try_from(fork.anodes_used).unwrap_or(0));
    if planted::is(Planted::ForkReservesNothing) {
        return;
    }
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
    use crate::fileset::quota::QuotaChange;
    use crate::vnode::leave::clone_prefix;
    use crate::vnode::leave::tests::{TOKEN, part, pool_with_one};

    /// Goal: a fileset that begins to leave while it is restored is not: no entry says that
    /// something deleted leaves, which could not be read.
    #[test]
    fn a_fileset_that_has_begun_to_leave_is_not_restored() {
        let (pool, slot) = pool_with_one();
        let core = pool.core();
        let clone = part(&format!("{}1", clone_prefix(TOKEN)));
        let pinned = core.pin_clone(&[part("a")], &clone).expect("it is there");
        let source = core.fork_source(&pinned).expect("there is room");
        let fileset = core.open_fileset(slot).expect("it can be read");
        core.leave(slot, (TOKEN, PoolId([9; 16])), 0).expect("nobody uses it");
        let refused = core.put_fork(fileset, &source).map(drop);
        assert!(matches!(refused, Err(FsError::FilesetInUse { .. })), "{refused:?}");
        let left = core.find_moving(&[part("a")]).expect("it can be read").expect("it is there");
        assert_eq!(left.moving.map(|moving| moving.token()), Some(TOKEN));
    }

    /// Goal: who found a fileset before it was restored changes nothing by what he found: neither
    /// the entry, which is that of what it is now, nor pages, which are being freed. Method: all
    /// that keepers of quotas do, each begun before the restore and ended behind it.
    #[test]
    fn who_found_a_fileset_before_its_restore_changes_nothing() {
        let (pool, slot) = pool_with_one();
        let core = pool.core();
        let (path, clone) = ([part("a")], part("c"));
        core.switch_quotas(&path, true).expect("there is room");
        while core.count_quotas_named(&path).expect("there is room") {}
        core.create_clone(&path, &clone, [3; 16]).expect("there is room");
        let fileset = core.open_fileset(slot).expect("it can be read");
        core.restore_fileset((&path, &clone)).expect("nobody uses it");
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
        assert_eq!(core.add_account(fileset, who), Err(FsError::Stale));
        assert_eq!(core.set_quota_of(fileset, who, QuotaChange::default()), Err(FsError::Stale));
        assert_eq!(core.set_quota_graces_of(fileset, [Some(9); 2]), Err(FsError::Stale));
        assert_eq!(core.switch_quotas_of(fileset, false), Err(FsError::Stale));
        assert_eq!(entry(), restored);
    }
}
