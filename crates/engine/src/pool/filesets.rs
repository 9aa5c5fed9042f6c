//! The filesets of a pool: listing, creation, change, deletion, snapshots, clones and streams.

use super::PoolFilesets;
use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Write};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use format::fileset::{FilesetName, MoveState, NamePart};
use format::ids::FilesetId;
use format::stream::StreamTotals;

use crate::api::FilesetUuid;
use crate::error::{FsError, FsResult};
use crate::file::fullness::Fullness;
use crate::file::open_filesets::NewFileset;
use crate::fileset::clone::RestoreReport;
use crate::fileset::pin::needed_by;
use crate::fileset::properties::FilesetChange;
use crate::fileset::snapshot::QuiescedFilesets;
use crate::fileset_table::table::FilesetNode;
use crate::jobs::Deletion;
use crate::stream::{ResumeToken, SendError};
use crate::transfer::diff::Difference;
use crate::transfer::receive::{ReceiveFailure, Received};

/// Description of a fileset or snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FilesetInfo {
    /// Full name, with slashes.
    pub name: String,
    /// Slot in the fileset table: the upper bits of inode numbers.
    pub slot: u32,
    /// Identity in file handles.
    pub uuid: FilesetUuid,
    /// Default block size.
    pub block_bytes: u32,
    /// Whether this is a snapshot.
    pub is_snapshot: bool,
    /// Whether it is receiving a stream, and therefore invisible to users.
    pub is_receiving: bool,
    /// State of a move to another pool.
    pub moving: Option<MoveState>,
    /// Whether its contents are read-only.
    pub is_read_only: bool,
    /// Creation time: seconds since 1970.
    pub created_seconds: u64,
    /// Inodes in use.
    pub inodes: u64,
    /// Bytes referenced: data of its files, and metadata.
    pub referenced_bytes: u64,
    /// In a list: bytes that it may still take. 0 for a snapshot.
    pub available_bytes: u64,
    /// Upper bound of referenced bytes. 0 for no limit.
    pub quota_bytes: u64,
    /// Bytes reserved, referenced ones included. 0 for none.
    pub reservation_bytes: u64,
    /// Freed share of a deleted fileset, in thousandths. `None` unless deleted.
    pub freed_permille: Option<u64>,
    /// Names of the holds on a snapshot.
    pub holds: Vec<String>,
    /// In a list, for a snapshot: the reason why it can't be deleted. `None` if it can.
    pub needed_by: Option<String>,
    /// In a list: whether a member of its family is being freed. Until then the family's snapshots
    /// can't be deleted.
    pub is_family_freed: bool,
    /// In a list: how many more snapshots and clones its family may have.
    pub snapshots_left: usize,
    /// In a list: the snapshot that it descends from.
    pub origin: Option<String>,
}

impl FilesetInfo {
    /// Returns what the fileset may still take of a pool with `available` bytes, as statfs(2).
    fn available(&self, available: u64) -> u64 {
        let reserved = self.reservation_bytes.saturating_sub(self.referenced_bytes);
        let left = self.quota_bytes.saturating_sub(self.referenced_bytes);
        let left = if self.quota_bytes == 0 { u64::MAX } else { left };
        available.saturating_add(reserved).min(left)
    }
}

impl PoolFilesets<'_> {
    fn fileset_info(&self, name: String, node: &FilesetNode) -> FilesetInfo {
        let fragment_shift = self.core.store.geometry().fragment_shift;
        FilesetInfo {
            name,
            slot: node.slot,
            uuid: FilesetUuid(u128::from_le_bytes(node.uuid)),
            block_bytes: 1 << node.block_shift,
            is_snapshot: node.is_snapshot(),
            is_receiving: node.is_receiving(),
            moving: node.moving,
            is_read_only: node.is_read_only || node.is_snapshot(),
            created_seconds: node.created_seconds,
            inodes: node.anodes_used,
            referenced_bytes: node.fragments << fragment_shift,
            available_bytes: 0,
            quota_bytes: node.quota_bytes,
            reservation_bytes: node.reservation_bytes,
            holds: Vec::new(),
            needed_by: None,
            is_family_freed: false,
            snapshots_left: 0,
            origin: None,
            freed_permille: node.freed().map(|(done, total)| done.saturating_mul(1000) / total),
        }
    }

    /// Returns the most snapshots of a fileset, clones included. One transaction moves a block that
    /// all of them share, and the log bounds its size.
    #[must_use]
    pub fn snapshots_max(&self) -> usize {
        self.core.store.journal.moved_members_max().saturating_sub(1)
    }

    /// Returns every fileset of the pool, including those being freed.
    ///
    /// # Errors
    ///
    /// [`crate::error::FsError::Corrupt`] if the fileset table can't be read.
    pub fn filesets(&self) -> FsResult<Vec<FilesetInfo>> {
        self.filesets_from(0, usize::MAX)
    }

    /// Returns up to `count` filesets by slot, from slot `from` on.
    ///
    /// # Errors
    ///
    /// [`crate::error::FsError::Corrupt`] if the fileset table can't be read.
    pub fn filesets_from(&self, from: u32, count: usize) -> FsResult<Vec<FilesetInfo>> {
        let all = self.core.list_filesets(from, count)?;
        let index = self.core.filesets.table.lock(&self.core.store)?;
        // Reads only these families, so that a part of the list costs no more than its length.
        let families: BTreeSet<FilesetId> = all.iter().map(|(_, node)| node.family).collect();
        let of_family = |family: FilesetId| {
            let is_freed = index.family(family).any(FilesetNode::is_deleted);
            (family, (index.family(family).count(), is_freed))
        };
        let families: BTreeMap<FilesetId, (usize, bool)> =
            families.into_iter().map(of_family).collect();
        let fragments = self.core.store.alloc.counts().available;
        let available = fragments << self.core.store.geometry().fragment_shift;
        let info = |(name, node): (String, FilesetNode)| {
            let slot = node.slot;
            let holds = index.holds_of(slot).map(|hold| hold.as_str().to_owned()).collect();
            let origin = index.origin_of(slot).map(|origin| index.path_of(origin));
            let is_snapshot = node.is_snapshot() && !node.is_deleted();
            let needed_by = is_snapshot.then(|| needed_by(&index, slot)).flatten();
            let family = families.get(&node.family).copied();
            let (count, is_family_freed) = family.unwrap_or_default();
            let snapshots_left = (self.snapshots_max() + 1).saturating_sub(count);
            let info = self.fileset_info(name, &node);
            let available_bytes = if node.is_snapshot() { 0 } else { info.available(available) };
            FilesetInfo {
                available_bytes,
                holds,
                origin,
                needed_by,
                is_family_freed,
                snapshots_left,
                ..info
            }
        };
        Ok(all.into_iter().map(info).collect())
    }

    /// Creates a fileset, durably.
    ///
    /// # Errors
    ///
    /// [`crate::error::FsError::FilesetExists`], [`crate::error::FsError::NoFileset`] if its parent
    /// does not exist, [`crate::error::FsError::NoSpace`] in a full pool,
    /// [`crate::error::FsError::TooManyFilesets`], [`crate::error::FsError::Invalid`] for a
    /// placement that `Pool::check_placement` refuses.
    pub fn create_fileset(&self, name: &FilesetName, new: &NewFileset) -> FsResult<FilesetInfo> {
        let is_served = |placement| self.check_placement(placement).is_ok();
        if !new.placement.is_none_or(is_served) {
            return Err(FsError::Invalid);
        }
        let node = self.core.create_fileset(name.parts(), new)?;
        Ok(self.fileset_info(name.to_string(), &node))
    }

    /// Changes properties or the name of a fileset, durably.
    ///
    /// # Errors
    ///
    /// As [`PoolFilesets::create_fileset`](crate::pool::PoolFilesets::create_fileset).
    /// [`crate::error::FsError::FilesetInUse`] for a name below itself.
    pub fn change_fileset(&self, name: &FilesetName, change: &FilesetChange) -> FsResult<()> {
        self.core.change_fileset(name.parts(), change)
    }

    /// Deletes a fileset. A job frees its contents ([`Pool::jobs`](crate::Pool::jobs)). A fileset
    /// still arriving from another pool is deleted here, with the snapshots of its move. The source
    /// pool keeps the fileset, and is not contacted.
    ///
    /// # Errors
    ///
    /// [`crate::error::FsError::FilesetInUse`] while it is mounted, or has filesets below it.
    pub fn delete_fileset(&self, name: &FilesetName) -> FsResult<()> {
        if self.delete_if_arriving(name)? {
            return Ok(());
        }
        let slot = self.core.delete_fileset(name.parts())?;
        self.free_by_job(slot, &name.to_string());
        Ok(())
    }

    pub(super) fn free_by_job(&self, slot: u32, name: &str) {
        // If not, the first tick adds the job.
        if self.has_resumed.load(Ordering::Relaxed) {
            self.jobs.add(&self.core, Arc::new(Deletion::new(slot, name)));
        }
    }

    /// Writes all accepted data of a fileset and blocks its writers until the guard is dropped.
    /// While holding the guard, the caller must not change the fileset.
    ///
    /// # Errors
    ///
    /// [`crate::error::FsError::NoFileset`]. [`crate::error::FsError::FilesetInUse`] if it changes
    /// faster than it can be written: try again later.
    pub fn hold_still(&self, name: &FilesetName) -> FsResult<QuiescedFilesets<'_>> {
        self.core.snapshotter().hold_still_named(name.parts())
    }

    /// Deletes a snapshot. Its open files become stale. Blocks held only by the newest snapshot are
    /// freed before the return, while writers wait. A job frees the blocks of an older snapshot.
    ///
    /// # Errors
    ///
    /// [`crate::error::FsError::NoFileset`]. [`crate::error::FsError::FilesetInUse`] while it is
    /// mounted, or another snapshot of the fileset is being freed.
    pub fn delete_snapshot(&self, name: &FilesetName, snapshot: &NamePart) -> FsResult<()> {
        let slot = self.core.snapshotter().delete_snapshot(name.parts(), snapshot)?;
        self.free_by_job(slot, &format!("{name}@{}", snapshot.as_str()));
        Ok(())
    }

    /// Deletes a snapshot if its identity is `uuid`, so that a later snapshot of this name
    /// survives.
    ///
    /// # Errors
    ///
    /// As `Pool::delete_snapshot`. [`crate::error::FsError::FilesetInUse`] if the identity
    /// differs.
    pub fn delete_this_snapshot(
        &self,
        name: &FilesetName,
        snapshot: &NamePart,
        uuid: FilesetUuid,
    ) -> FsResult<()> {
        let slot = self.core.delete_this_snapshot(name.parts(), snapshot, uuid)?;
        self.free_by_job(slot, &format!("{name}@{}", snapshot.as_str()));
        Ok(())
    }

    /// Returns the bytes that deleting this snapshot alone would free. Walks its differences from
    /// the previous snapshot, and pauses writers for some milliseconds at a time.
    ///
    /// # Errors
    ///
    /// [`crate::error::FsError::NoFileset`].
    pub fn unique_bytes(&self, name: &FilesetName, snapshot: &NamePart) -> FsResult<u64> {
        let fragments = self.core.snapshotter().own_fragments(name.parts(), snapshot)?;
        Ok(fragments << self.core.store.geometry().fragment_shift)
    }

    /// Weighs the snapshots of a full pool, for a second at most. `None` if the pool has space.
    ///
    /// # Errors
    ///
    /// [`crate::error::FsError::Corrupt`] if metadata of a snapshot can't be read.
    pub fn weigh_snapshots(&self) -> FsResult<Option<Fullness>> {
        self.core.space_reclaim().weigh_now()
    }

    /// Opens a fileset for access to its files ([`crate::api::FileSystem::root_of`]). It
    /// can't be deleted until each hold has been released
    /// ([`PoolFilesets::release_fileset`](crate::pool::PoolFilesets::release_fileset)).
    ///
    /// # Errors
    ///
    /// [`crate::error::FsError::NoFileset`].
    pub fn hold_fileset(&self, name: &FilesetName) -> FsResult<FilesetUuid> {
        self.core.hold_fileset(name.parts(), None)
    }

    /// Opens a snapshot for access to its files, like
    /// [`PoolFilesets::hold_fileset`](crate::pool::PoolFilesets::hold_fileset).
    ///
    /// # Errors
    ///
    /// [`crate::error::FsError::NoFileset`].
    pub fn hold_snapshot(&self, name: &FilesetName, snapshot: &NamePart) -> FsResult<FilesetUuid> {
        self.core.hold_fileset(name.parts(), Some(snapshot))
    }

    /// Holds the main fileset. The open counts as one hold, which may be released too.
    pub fn hold_main_fileset(&self) -> FilesetUuid {
        self.core.hold_main()
    }

    /// Releases a hold, after the last request of its holder. The last release drops all references
    /// to files.
    pub fn release_fileset(&self, fileset: FilesetUuid) {
        self.core.release_fileset(fileset);
    }

    /// Takes a read-only snapshot of a fileset, durably. It takes space only as the fileset
    /// changes.
    ///
    /// # Errors
    ///
    /// [`crate::error::FsError::FilesetExists`] for a name in use.
    /// [`crate::error::FsError::FilesetInUse`] if the fileset changes too fast: try again.
    pub fn create_snapshot(
        &self,
        name: &FilesetName,
        snapshot: &NamePart,
        random: [u8; 16],
    ) -> FsResult<FilesetInfo> {
        let (node, _) = self.core.snapshotter().create_snapshot(name.parts(), snapshot, random)?;
        Ok(self.fileset_info(format!("{name}@{}", snapshot.as_str()), &node))
    }

    /// Takes snapshots of a fileset and all filesets below it at one moment, all or none. Returns
    /// their names.
    ///
    /// # Errors
    ///
    /// As `Pool::create_snapshot`. [`crate::error::FsError::FilesetInUse`] for too many filesets.
    pub fn create_snapshots_below(
        &self,
        name: &FilesetName,
        snapshot: &NamePart,
        random: &mut dyn FnMut() -> [u8; 16],
    ) -> FsResult<Vec<String>> {
        let (made, _) =
            self.core.snapshotter().create_snapshots_below(name.parts(), snapshot, random)?;
        let index = self.core.filesets.table.lock(&self.core.store)?;
        Ok(made.into_iter().map(|node| index.path_of(node.slot)).collect())
    }

    /// Adds or removes a hold, which prevents deletion of a snapshot, durably.
    ///
    /// # Errors
    ///
    /// [`crate::error::FsError::FilesetExists`] if the hold exists,
    /// [`crate::error::FsError::NoFileset`] if the snapshot or the hold does not exist,
    /// [`crate::error::FsError::FilesetInUse`] for too many holds.
    pub fn set_hold(
        &self,
        (name, snapshot): (&FilesetName, &NamePart),
        hold: &NamePart,
        is_held: bool,
    ) -> FsResult<()> {
        self.core.snapshotter().hold_snapshot((name.parts(), snapshot), hold, is_held)
    }

    /// Creates a clone of a snapshot, durably. Only the clone's own changes take space.
    ///
    /// # Errors
    ///
    /// As [`PoolFilesets::create_fileset`](crate::pool::PoolFilesets::create_fileset).
    /// [`crate::error::FsError::NoSpace`] if there is no room for the reservations of the
    /// snapshot's files.
    pub fn create_clone(
        &self,
        (name, snapshot): (&FilesetName, &NamePart),
        new: &FilesetName,
        random: [u8; 16],
    ) -> FsResult<FilesetInfo> {
        let node =
            self.core.snapshotter().create_clone((name.parts(), snapshot), new.parts(), random)?;
        Ok(self.fileset_info(new.to_string(), &node))
    }

    /// Reverts a fileset to its snapshot, durably, with its name, slot and handles. A job frees the
    /// former contents.
    ///
    /// # Errors
    ///
    /// As `Pool::create_clone`. [`crate::error::FsError::FilesetInUse`] while it is mounted or
    /// served, or a snapshot of it is being freed.
    pub fn restore_fileset(
        &self,
        name: &FilesetName,
        snapshot: &NamePart,
    ) -> FsResult<RestoreReport> {
        let restored = self.core.snapshotter().restore_fileset((name.parts(), snapshot))?;
        if self.has_resumed.load(Ordering::Relaxed) {
            let name = format!("{name} before its restore");
            self.jobs.add(&self.core, Arc::new(Deletion::new(restored.old_slot, &name)));
        }
        Ok(restored)
    }

    /// Transfers to a clone the snapshots that it descends from. Returns their new names.
    ///
    /// # Errors
    ///
    /// [`crate::error::FsError::FilesetInUse`] if there are none,
    /// [`crate::error::FsError::FilesetExists`] if the clone has a snapshot of an equal name.
    pub fn promote_fileset(&self, name: &FilesetName) -> FsResult<Vec<String>> {
        self.core.snapshotter().promote_fileset(name.parts())
    }

    /// Passes each path that differs between two snapshots to `tell`, in order of paths. Without a
    /// snapshot in `to`, takes a temporary one, called `diff-` and digits of `random`.
    ///
    /// # Errors
    ///
    /// [`crate::error::FsError::NoFileset`]. [`crate::error::FsError::Invalid`] for different
    /// families.
    pub fn diff(
        &self,
        from: (&FilesetName, &NamePart),
        to: (&FilesetName, Option<&NamePart>),
        random: [u8; 16],
        tell: &mut dyn FnMut(&Difference) -> ControlFlow<()>,
    ) -> FsResult<()> {
        let compare = |to: (&FilesetName, &NamePart), tell| {
            let before = self.core.snapshotter().pin_snapshot(from.0.parts(), from.1)?;
            let after = self.core.snapshotter().pin_snapshot(to.0.parts(), to.1)?;
            self.core.transfers().differences(&before.node, &after.node, tell)
        };
        let Some(snapshot) = to.1 else {
            let digits = u64::from_le_bytes(random[..8].try_into().expect("8 of 16 bytes"));
            let made = NamePart::new(&format!("diff-{digits:016x}")).expect("digits make a name");
            self.create_snapshot(to.0, &made, random)?;
            let done = compare((to.0, &made), tell);
            let deleted = self.delete_snapshot(to.0, &made);
            return done.and(deleted);
        };
        compare((to.0, snapshot), tell)
    }

    /// Writes a stream of a snapshot to `out`, whole or as the difference from `from`. `resume`
    /// continues an interrupted stream. `progress` gets the number of the anode being sent, and the
    /// bound of all numbers.
    ///
    /// # Errors
    ///
    /// [`SendError::Write`] if `out` fails, otherwise an error of the pool.
    pub fn send(
        &self,
        (name, snapshot): (&FilesetName, &NamePart),
        from: Option<&NamePart>,
        resume: Option<ResumeToken>,
        out: &mut dyn Write,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<StreamTotals, SendError> {
        let from = from
            .map(|from| self.core.snapshotter().pin_snapshot(name.parts(), from))
            .transpose()?;
        let to = self.core.snapshotter().pin_snapshot(name.parts(), snapshot)?;
        self.core.transfers().send(from.as_ref(), &to, resume, out, progress)
    }

    /// Receives a stream: creates or updates the fileset `name`, and creates the snapshot that was
    /// sent. Nothing of it is visible until complete.
    ///
    /// # Errors
    ///
    /// See [`ReceiveFailure`].
    pub fn receive(
        &self,
        name: &FilesetName,
        input: &mut dyn Read,
        random: [u8; 32],
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Received, ReceiveFailure> {
        let done =
            self.core.transfers().receive(name.parts(), (input, None, false), random, progress);
        self.free_given_up()?;
        done
    }

    /// Receives a stream as `Pool::receive` does, after discarding the partial state of another
    /// stream to `name`.
    ///
    /// # Errors
    ///
    /// See [`ReceiveFailure`].
    pub fn receive_in_place(
        &self,
        name: &FilesetName,
        input: &mut dyn Read,
        random: [u8; 32],
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Received, ReceiveFailure> {
        let done =
            self.core.transfers().receive(name.parts(), (input, None, true), random, progress);
        self.free_given_up()?;
        done
    }

    /// Reads and verifies a whole stream, and checks whether the fileset `name` could receive it.
    /// Changes nothing.
    ///
    /// # Errors
    ///
    /// See [`ReceiveFailure`].
    pub fn verify_stream(
        &self,
        name: &FilesetName,
        input: &mut dyn Read,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Received, ReceiveFailure> {
        self.core.transfers().verify_stream(name.parts(), input, progress)
    }

    /// Discards the partial state of a stream to the fileset `name`, which a job frees. Returns
    /// whether there was such state.
    ///
    /// # Errors
    ///
    /// [`crate::error::FsError::FilesetInUse`] while a stream is being received.
    pub fn abort_receiving(&self, name: &FilesetName) -> FsResult<bool> {
        let slot = self.core.transfers().abort_receiving(name.parts())?;
        self.free_given_up()?;
        Ok(slot.is_some())
    }

    pub(super) fn free_given_up(&self) -> FsResult<()> {
        for (slot, name) in self.core.filesets.take_given_up() {
            // If not, the first tick adds the jobs.
            if self.has_resumed.load(Ordering::Relaxed) {
                self.jobs.add(&self.core, Arc::new(Deletion::new(slot, &name)));
            }
        }
        Ok(())
    }

    pub(super) fn resume_deletions(&self) -> FsResult<()> {
        for (slot, name) in self.core.deleted_filesets()? {
            self.jobs.add(&self.core, Arc::new(Deletion::new(slot, &name)));
        }
        Ok(())
    }

    /// Whether a deleted fileset is still being freed.
    ///
    /// # Errors
    ///
    /// As [`PoolFilesets::filesets`](crate::pool::PoolFilesets::filesets).
    pub fn is_freeing(&self) -> FsResult<bool> {
        self.core.has_deleted_filesets()
    }
}
