//! Creation and deletion of filesets.

use std::sync::atomic::Ordering;

use format::fileset::{
    Cursor, Fileset as Entry, FilesetState, MoveState, NamePart, ROOT_SLOT, joined,
};
use format::ids::FilesetId;
use runtime::planted;

use crate::api::FilesetUuid;
use crate::error::{FsError, FsResult};
use crate::file::Core;
use crate::fileset_table::birth::make_first_pages;
use crate::fileset_table::i64_of;
use crate::fileset_table::table::{FilesetIndex, FilesetNode};
use crate::journal::LogCredits;
use crate::usage::FilesetLimits;

use crate::file::open_filesets::{NewFileset, OpenFileset};

impl Core {
    pub(crate) fn create_fileset(
        &self,
        path: &[NamePart],
        new: &NewFileset,
    ) -> FsResult<FilesetNode> {
        self.check_writable()?;
        self.check_block_shift(new.block_shift)?;
        self.grow_table()?;
        let mut change = self.store.begin_pool(LogCredits::LARGE)?;
        let mut index = self.filesets.table.lock(&self.store)?;
        let (above, name) = check_new_name(&index, None, path)?;
        let model = index.node(above.unwrap_or(ROOT_SLOT)).ok_or(FsError::Invalid)?;
        let (above_slot, block_shift) = (model.slot, new.block_shift.unwrap_or(model.block_shift));
        let inherited = above.is_some() && model.is_read_only;
        let taken = index.take_slot(&self.store, &mut change)?;
        let id = FilesetId(change.epoch().0);
        let mut entry = Entry::new(id, taken.slot, name, block_shift);
        entry.above = above;
        entry.is_read_only = new.is_read_only.unwrap_or(inherited);
        (entry.quota_bytes, entry.reservation_bytes) = (new.quota_bytes, new.reservation_bytes);
        self.check_reservation(&joined(path), &entry, (0, 0))?;
        change.count_reservations(i64_of(entry.reservation_bytes));
        entry.created_seconds = u64::try_from(self.store.now().seconds).unwrap_or(0);
        entry.uuid.copy_from_slice(&new.random[..16]);
        let root = self.new_root(&index, above_slot, new)?;
        make_first_pages(&self.store, &mut change, &mut entry, &root)?;
        index.write_entry(&self.store, &mut change, &entry, Some(&taken))?;
        let applied = change.end();
        index.note_new(&entry, taken);
        let made = index.node(entry.slot).cloned().ok_or(FsError::Invalid)?;
        self.store.alloc.kept.change(0, made.kept(self.store.geometry().fragment_shift));
        drop(index);
        self.store.journal.commit(applied.class)?;
        Ok(made)
    }

    /// Deletes a snapshot if its UUID matches, which the deleting transaction checks.
    pub(crate) fn delete_this_snapshot(
        &self,
        path: &[NamePart],
        name: &NamePart,
        uuid: FilesetUuid,
    ) -> FsResult<u32> {
        self.snapshotter().delete_snapshot_at(&|index| {
            let slot = index.slot_of_node(path, Some(name))?;
            let found = index.node(slot).map(|node| u128::from_le_bytes(node.uuid));
            if found == Some(uuid.0) || planted!(SnapshotDeletedByName) {
                return Ok(slot);
            }
            let by = "it is another snapshot than the one that was to be deleted: somebody has \
                      taken it anew by this name, and it stays";
            Err(FsError::FilesetInUse { name: index.path_of(slot), by: by.to_owned() })
        })
    }

    /// Deletes an unused fileset, durable on return. A job frees its content. Returns its slot.
    pub(crate) fn delete_fileset(&self, path: &[NamePart]) -> FsResult<u32> {
        self.check_writable()?;
        let slot = self.filesets.table.lock(&self.store)?.slot_of(path)?;
        self.delete_slot(slot, joined(path))
    }

    pub(crate) fn delete_slot(&self, slot: u32, name: String) -> FsResult<u32> {
        let in_use = |by: &str| FsError::FilesetInUse { name: name.clone(), by: by.to_owned() };
        if slot == ROOT_SLOT {
            return Err(in_use("it is the first of the pool, which always has one"));
        }
        if slot == self.filesets.main.anodes.slot {
            return Err(in_use("it is mounted: unmount it first"));
        }
        let fileset = self.open_fileset(slot)?;
        {
            let index = self.filesets.table.lock(&self.store)?;
            check_settled(&index, slot)?;
            check_childless(&index, slot)?;
        }
        fileset.close_to_fronts().map_err(|()| in_use("it is served: end its server first"))?;
        self.emptier.wait();
        let done = self.make_unreachable(fileset);
        if done.is_err() {
            fileset.is_gone.store(false, Ordering::Release);
        }
        done.map(|()| slot)
    }

    fn make_unreachable(&self, fileset: &OpenFileset) -> FsResult<()> {
        fileset.wait_for_reapers();
        // Everything must be mapped and written back: the walk that frees the fileset reads only
        // maps.
        self.writeback().sync_all()?;
        self.store.journal.checkpoint()?;
        let mut change = self.store.begin_in(&fileset.gate, LogCredits::SMALL)?;
        let mut index = self.filesets.table.lock(&self.store)?;
        // A child or a snapshot may have been created since the first check.
        check_live(&index, fileset.anodes.slot)?;
        fileset.check_current()?;
        check_childless(&index, fileset.anodes.slot)?;
        check_no_snapshot_freed(&index, fileset)?;
        let mut guard = fileset.anodes.lock();
        check_settled(&index, fileset.anodes.slot)?;
        let reservation = guard.entry().reservation_bytes;
        let entry = guard.change_entry(&mut change, |entry| {
            entry.state = FilesetState::Deleted(Cursor::START);
            entry.moving = None;
            (entry.quota_bytes, entry.reservation_bytes) = (0, 0);
        })?;
        change.count_reservations(-i64_of(reservation));
        let applied = change.end();
        guard.end_fileset();
        guard.settle(applied.lsn);
        fileset.anodes.usage.set_limits(FilesetLimits::default());
        index.note(&entry);
        drop(index);
        self.store.journal.commit(applied.class)
    }
}

pub(crate) fn check_live(index: &FilesetIndex, slot: u32) -> FsResult<()> {
    if index.node(slot).is_some_and(FilesetNode::is_live) { Ok(()) } else { Err(FsError::Stale) }
}

/// FM4: refuses while the source pool has not seen the fileset's arrival, so that its record stays.
pub(crate) fn check_settled(index: &FilesetIndex, slot: u32) -> FsResult<()> {
    let moving = index.node(slot).and_then(|node| node.moving);
    if !matches!(moving, Some(MoveState::Arrived { .. })) {
        return Ok(());
    }
    let by = "it has come from another pool, which does not know yet: serve both by one server, or \
              give the `holdfast fileset move` again";
    Err(FsError::FilesetInUse { name: index.path_of(slot), by: by.to_owned() })
}

/// DL3: refuses while a snapshot is freed by a walk that compares it with this fileset.
fn check_no_snapshot_freed(index: &FilesetIndex, fileset: &OpenFileset) -> FsResult<()> {
    if !index.is_snapshot_freed(fileset.anodes.family) {
        return Ok(());
    }
    let by =
        "a snapshot that it goes back to is being freed: try again when that is done".to_owned();
    Err(FsError::FilesetInUse { name: index.path_of(fileset.anodes.slot), by })
}

/// FT2: refuses a fileset with snapshots or children.
pub(crate) fn check_childless(index: &FilesetIndex, slot: u32) -> FsResult<()> {
    let snapshots: Vec<_> = index.snapshots_of(slot).map(|node| index.path_of(node.slot)).collect();
    if !snapshots.is_empty() {
        let by = format!("it has snapshots: {}: delete these first", snapshots.join(", "));
        return Err(FsError::FilesetInUse { name: index.path_of(slot), by });
    }
    let below: Vec<_> = index.children(slot).map(|node| index.path_of(node.slot)).collect();
    if below.is_empty() {
        return Ok(());
    }
    let by = format!("these are below it: {}", below.join(", "));
    Err(FsError::FilesetInUse { name: index.path_of(slot), by })
}

pub(crate) fn place_of_name(
    index: &FilesetIndex,
    path: &[NamePart],
) -> FsResult<(Option<u32>, NamePart)> {
    let (name, above) = path.split_last().ok_or(FsError::Invalid)?;
    let above = match above {
        [] => None,
        above => Some(index.slot_of(above)?),
    };
    Ok((above, name.clone()))
}

/// Checks a new name of the fileset in `slot`, or of a new one. Returns the parent and the last
/// part.
pub(crate) fn check_new_name(
    index: &FilesetIndex,
    slot: Option<u32>,
    path: &[NamePart],
) -> FsResult<(Option<u32>, NamePart)> {
    let (above, name) = place_of_name(index, path)?;
    let is_taken = index.child(above, &name).is_some_and(|node| Some(node.slot) != slot);
    if is_taken {
        return Err(FsError::FilesetExists { name: joined(path) });
    }
    let mut next = above;
    while let Some(at) = next {
        if Some(at) == slot {
            let by = "it can't be below itself".to_owned();
            return Err(FsError::FilesetInUse { name: joined(path), by });
        }
        next = index.node(at).and_then(|node| node.above);
    }
    Ok((above, name))
}

pub(crate) fn key_of(random: &[u8; 32]) -> [u64; 2] {
    let word = |from: usize| {
        random[from..].first_chunk().map_or(0, |bytes: &[u8; 8]| u64::from_le_bytes(*bytes))
    };
    [word(16), word(24)]
}
