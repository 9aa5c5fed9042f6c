//! The filesets of a pool: listed, made, changed, deleted.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Write};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use format::fileset::{FilesetName, Moving, NamePart};
use format::ids::FilesetId;
use format::stream::Totals;

use super::Pool;
use crate::error::{FsError, FsResult};
use crate::fileset::table::Node;
use crate::jobs::Deletion;
use crate::stream::{ResumeToken, SendError};
use crate::vnode::api::FilesetUuid;
use crate::vnode::{
    Difference, FilesetChange, Fullness, NewFileset, ReceiveFailure, Received, Restored, Still,
    needed_by,
};

/// What a pool tells of one of its filesets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FilesetInfo {
    /// Its name, with slashes.
    pub name: String,
    /// Slot in the table of filesets: the upper bits of its inode numbers.
    pub slot: u32,
    /// What handles name it by.
    pub uuid: FilesetUuid,
    /// Default size of blocks.
    pub block_bytes: u32,
    /// Whether it is a clone.
    pub is_clone: bool,
    /// Whether it receives a stream: nobody finds it.
    pub is_receiving: bool,
    /// What it is on its way to another pool.
    pub moving: Option<Moving>,
    /// Whether nobody may change what is in it.
    pub is_read_only: bool,
    /// When it was made: seconds since 1970.
    pub created_seconds: u64,
    /// Inodes in use.
    pub inodes: u64,
    /// Bytes that it references: those of its files and of its metadata.
    pub referenced_bytes: u64,
    /// Most that it may reference; 0: no limit.
    pub quota_bytes: u64,
    /// Kept free for it, less what it references; 0: nothing.
    pub reservation_bytes: u64,
    /// Of a deleted fileset: how much of it is freed, in parts of 1,000. `None`: it is in use.
    pub freed_permille: Option<u64>,
    /// Of a clone: by whom it is held.
    pub holds: Vec<String>,
    /// In a list, of a clone: what needs it, so that it can't be deleted. `None`: nothing.
    pub needed_by: Option<String>,
    /// In a list: whether one of its family is being freed. None of its clones can be deleted until
    /// that is done.
    pub is_family_freed: bool,
    /// In a list: how many more clones and forks its family may have ([`Pool::clones_max`]).
    pub clones_left: usize,
    /// In a list: the clone that it goes back to, its own last one or the one that it was forked
    /// from.
    pub origin: Option<String>,
}

impl Pool {
    fn fileset_info(&self, name: String, node: &Node) -> FilesetInfo {
        let fragment_shift = self.core.store.geometry().fragment_shift;
        FilesetInfo {
            name,
            slot: node.slot,
            uuid: FilesetUuid(u128::from_le_bytes(node.uuid)),
            block_bytes: 1 << node.block_shift,
            is_clone: node.is_clone(),
            is_receiving: node.is_receiving(),
            moving: node.moving,
            is_read_only: node.is_read_only || node.is_clone(),
            created_seconds: node.created_seconds,
            inodes: node.anodes_used,
            referenced_bytes: node.fragments << fragment_shift,
            quota_bytes: node.quota_bytes,
            reservation_bytes: node.reservation_bytes,
            holds: Vec::new(),
            needed_by: None,
            is_family_freed: false,
            clones_left: 0,
            origin: None,
            freed_permille: node.freed().map(|(done, total)| done.saturating_mul(1000) / total),
        }
    }

    /// Returns how many clones a fileset may have at most: the log moves a block that all of them
    /// hold in one transaction. Forks of them count too.
    #[must_use]
    pub fn clones_max(&self) -> usize {
        self.core.store.journal.moved_members_max().saturating_sub(1)
    }

    /// Returns every fileset of the pool, those too that are being freed.
    ///
    /// # Errors
    ///
    /// [`crate::error::FsError::Corrupt`] if the table of filesets can't be read.
    pub fn filesets(&self) -> FsResult<Vec<FilesetInfo>> {
        self.filesets_from(0, usize::MAX)
    }

    /// Returns the filesets in slot `from` and the next ones, by slot, `count` at most.
    ///
    /// # Errors
    ///
    /// As [`Pool::filesets`].
    pub fn filesets_from(&self, from: u32, count: usize) -> FsResult<Vec<FilesetInfo>> {
        let all = self.core.list_filesets(from, count)?;
        let index = self.core.filesets.table.lock(&self.core.store)?;
        // Of the families in this part of the list alone: a list in parts costs what it has.
        let families: BTreeSet<FilesetId> = all.iter().map(|(_, node)| node.family).collect();
        let of_family = |family: FilesetId| {
            let is_freed = index.family(family).any(Node::is_deleted);
            (family, (index.family(family).count(), is_freed))
        };
        let families: BTreeMap<FilesetId, (usize, bool)> =
            families.into_iter().map(of_family).collect();
        let info = |(name, node): (String, Node)| {
            let slot = node.slot;
            let holds = index.holds_of(slot).map(|hold| hold.as_str().to_owned()).collect();
            let origin = index.origin_of(slot).map(|origin| index.path_of(origin));
            let is_clone = node.is_clone() && !node.is_deleted();
            let needed_by = is_clone.then(|| needed_by(&index, slot)).flatten();
            let family = families.get(&node.family).copied();
            let (count, is_family_freed) = family.unwrap_or_default();
            let clones_left = (self.clones_max() + 1).saturating_sub(count);
            let info = self.fileset_info(name, &node);
            FilesetInfo { holds, origin, needed_by, is_family_freed, clones_left, ..info }
        };
        Ok(all.into_iter().map(info).collect())
    }

    /// Makes a fileset. It is durable when this returns.
    ///
    /// # Errors
    ///
    /// [`crate::error::FsError::FilesetExists`], [`crate::error::FsError::NoFileset`] if the one
    /// above it is not there, [`crate::error::FsError::NoSpace`] in a full pool,
    /// [`crate::error::FsError::TooManyFilesets`], [`crate::error::FsError::Invalid`] for a
    /// placement that [`Pool::check_placement`] refuses.
    pub fn create_fileset(&self, name: &FilesetName, new: &NewFileset) -> FsResult<FilesetInfo> {
        let is_served = |placement| self.check_placement(placement).is_ok();
        if !new.placement.is_none_or(is_served) {
            return Err(FsError::Invalid);
        }
        let node = self.core.create_fileset(name.parts(), new)?;
        Ok(self.fileset_info(name.to_string(), &node))
    }

    /// Changes what a fileset is like, or its name. It is durable when this returns.
    ///
    /// # Errors
    ///
    /// As [`Pool::create_fileset`]; [`crate::error::FsError::FilesetInUse`] for a name below
    /// itself.
    pub fn change_fileset(&self, name: &FilesetName, change: &FilesetChange) -> FsResult<()> {
        self.core.change_fileset(name.parts(), change)
    }

    /// Deletes a fileset: it is out of reach when this returns. What it held is freed in the
    /// background, by a job ([`Pool::tick`], [`Pool::jobs`]). One that has begun to arrive from
    /// another pool goes with the clones that its move needs: where it comes from it stays.
    ///
    /// # Errors
    ///
    /// [`crate::error::FsError::FilesetInUse`] while it is mounted, or others are below it.
    pub fn delete_fileset(&self, name: &FilesetName) -> FsResult<()> {
        if self.delete_if_arriving(name)? {
            return Ok(());
        }
        let slot = self.core.delete_fileset(name.parts())?;
        self.free_by_job(slot, &name.to_string());
        Ok(())
    }

    /// Has what was deleted freed by a job.
    pub(super) fn free_by_job(&self, slot: u32, name: &str) {
        // Before the first tick it is found there, with those that were interrupted.
        if self.has_resumed.load(Ordering::Relaxed) {
            self.jobs.add(&self.core, Arc::new(Deletion::new(slot, name)));
        }
    }

    /// Puts all that was accepted of a fileset in its maps, and keeps everybody waiting who would
    /// change it, until what this returns is dropped: what a clone begins with. The caller must not
    /// change the fileset meanwhile himself.
    ///
    /// # Errors
    ///
    /// [`crate::error::FsError::NoFileset`]; [`crate::error::FsError::FilesetInUse`] if it changes
    /// faster than it can be written: try again later.
    pub fn hold_still(&self, name: &FilesetName) -> FsResult<Still<'_>> {
        self.core.hold_still_named(name.parts())
    }

    /// Deletes the clone of `name` that is called `clone`: it is out of reach when this returns,
    /// and whoever looked into it through the directory of clones is told that it is stale. Of the
    /// newest clone all that it alone held is free then, and nobody could change the fileset
    /// meanwhile; of an older one a job frees it.
    ///
    /// # Errors
    ///
    /// [`crate::error::FsError::NoFileset`], [`crate::error::FsError::FilesetInUse`] while it is
    /// mounted, or another clone of the fileset is being freed.
    pub fn delete_clone(&self, name: &FilesetName, clone: &NamePart) -> FsResult<()> {
        let slot = self.core.delete_clone(name.parts(), clone)?;
        self.free_by_job(slot, &format!("{name}@{}", clone.as_str()));
        Ok(())
    }

    /// As [`Pool::delete_clone`], of the clone that `uuid` identifies and no other: one that was
    /// taken anew by this name since somebody looked stays.
    ///
    /// # Errors
    ///
    /// As [`Pool::delete_clone`]; [`crate::error::FsError::FilesetInUse`] if it is another one.
    pub fn delete_this_clone(
        &self,
        name: &FilesetName,
        clone: &NamePart,
        uuid: FilesetUuid,
    ) -> FsResult<()> {
        let slot = self.core.delete_this_clone(name.parts(), clone, uuid)?;
        self.free_by_job(slot, &format!("{name}@{}", clone.as_str()));
        Ok(())
    }

    /// Returns how many bytes only the clone of `name` that is called `clone` holds: what deleting
    /// it, and no other, would give back. Costs a look at what it has differently from the clone
    /// before it; whoever changes a fileset that goes back to it waits a few milliseconds now and
    /// then.
    ///
    /// # Errors
    ///
    /// [`crate::error::FsError::NoFileset`].
    pub fn unique_bytes(&self, name: &FilesetName, clone: &NamePart) -> FsResult<u64> {
        let fragments = self.core.own_fragments(name.parts(), clone)?;
        Ok(fragments << self.core.store.geometry().fragment_shift)
    }

    /// Returns what to say of a pool that has refused something right now for want of space: its
    /// clones are weighed for it, as far as that is soon done. `None`: there is space.
    ///
    /// # Errors
    ///
    /// [`crate::error::FsError::Corrupt`] if what clones hold can't be read.
    pub fn weigh_clones(&self) -> FsResult<Option<Fullness>> {
        self.core.weigh_now()
    }

    /// Opens a fileset besides the main one, so that its files can be asked for
    /// ([`crate::vnode::api::FileSystem::root_of`]). It can't be deleted until whoever holds it
    /// has given it back ([`Pool::release_fileset`]), as often as it was held.
    ///
    /// # Errors
    ///
    /// [`crate::error::FsError::NoFileset`].
    pub fn hold_fileset(&self, name: &FilesetName) -> FsResult<FilesetUuid> {
        self.core.hold_fileset(name.parts(), None)
    }

    /// As [`Pool::hold_fileset`], of the clone of `name` that is called `clone`.
    ///
    /// # Errors
    ///
    /// [`crate::error::FsError::NoFileset`].
    pub fn hold_clone(&self, name: &FilesetName, clone: &NamePart) -> FsResult<FilesetUuid> {
        self.core.hold_fileset(name.parts(), Some(clone))
    }

    /// As [`Pool::hold_fileset`], of the main fileset. Whoever opened the pool holds that already,
    /// once: he may give it back too, and then whoever asks for its files holds it.
    pub fn hold_main_fileset(&self) -> FilesetUuid {
        self.core.hold_main()
    }

    /// Gives a fileset back that was held. Whoever held it asks for nothing more of it and has no
    /// request under way; what he has not given back of references goes with the last hold.
    pub fn release_fileset(&self, fileset: FilesetUuid) {
        self.core.release_fileset(fileset);
    }

    /// Takes a clone of a fileset: what it is like now, which nobody can change. It takes no space
    /// but for what the fileset changes from now on. It is durable when this returns.
    ///
    /// # Errors
    ///
    /// [`crate::error::FsError::FilesetExists`] for a name that is taken,
    /// [`crate::error::FsError::FilesetInUse`] if the fileset changes too fast: try again.
    pub fn create_clone(
        &self,
        name: &FilesetName,
        clone: &NamePart,
        random: [u8; 16],
    ) -> FsResult<FilesetInfo> {
        let (node, _) = self.core.create_clone(name.parts(), clone, random)?;
        Ok(self.fileset_info(format!("{name}@{}", clone.as_str()), &node))
    }

    /// As [`Pool::create_clone`], of a fileset and of all below it, at one moment: all or none.
    /// `random` gives each its own bits. Returns their names.
    ///
    /// # Errors
    ///
    /// As [`Pool::create_clone`]; [`crate::error::FsError::FilesetInUse`] if there are too many.
    pub fn create_clones_below(
        &self,
        name: &FilesetName,
        clone: &NamePart,
        random: &mut dyn FnMut() -> [u8; 16],
    ) -> FsResult<Vec<String>> {
        let (made, _) = self.core.create_clones_below(name.parts(), clone, random)?;
        let index = self.core.filesets.table.lock(&self.core.store)?;
        Ok(made.into_iter().map(|node| index.path_of(node.slot)).collect())
    }

    /// Keeps a clone from being deleted, by the name `hold`, or takes that back if it is not to be
    /// held any more. It is durable when this returns.
    ///
    /// # Errors
    ///
    /// [`crate::error::FsError::FilesetExists`] if it is held by that name already,
    /// [`crate::error::FsError::NoFileset`] if there is no such clone or hold,
    /// [`crate::error::FsError::FilesetInUse`] if it has too many.
    pub fn set_hold(
        &self,
        (name, clone): (&FilesetName, &NamePart),
        hold: &NamePart,
        is_held: bool,
    ) -> FsResult<()> {
        self.core.hold_clone((name.parts(), clone), hold, is_held)
    }

    /// Makes the fileset `new` that begins as a clone is. It takes no space but for what it
    /// changes. It is durable when this returns.
    ///
    /// # Errors
    ///
    /// As [`Pool::create_fileset`]; [`crate::error::FsError::NoSpace`] if there is no room for what
    /// the clone's files reserve.
    pub fn fork_clone(
        &self,
        (name, clone): (&FilesetName, &NamePart),
        new: &FilesetName,
        random: [u8; 16],
    ) -> FsResult<FilesetInfo> {
        let node = self.core.create_fork((name.parts(), clone), new.parts(), random)?;
        Ok(self.fileset_info(new.to_string(), &node))
    }

    /// Makes a fileset what its clone is: it keeps its name, its number and its handles. What it
    /// held since is freed in the background. It is durable when this returns.
    ///
    /// # Errors
    ///
    /// [`crate::error::FsError::FilesetInUse`] while it is mounted or served, or a clone of it is
    /// being freed; as [`Pool::fork_clone`].
    pub fn restore_fileset(&self, name: &FilesetName, clone: &NamePart) -> FsResult<Restored> {
        let restored = self.core.restore_fileset((name.parts(), clone))?;
        if self.has_resumed.load(Ordering::Relaxed) {
            let name = format!("{name} before its restore");
            self.jobs.add(&self.core, Arc::new(Deletion::new(restored.old_slot, &name)));
        }
        Ok(restored)
    }

    /// Gives a fork the clones that it goes back to; returns their new names.
    ///
    /// # Errors
    ///
    /// [`crate::error::FsError::FilesetInUse`] if there are none,
    /// [`crate::error::FsError::FilesetExists`] if it has a clone of the same name itself.
    pub fn promote_fileset(&self, name: &FilesetName) -> FsResult<Vec<String>> {
        self.core.promote_fileset(name.parts())
    }

    /// Tells of each path that two clones have differently, by rising path; `to` may be the fileset
    /// itself, as it is now: then a clone of it is taken for that, called `diff-` and some digits
    /// of `random`, and deleted again.
    ///
    /// # Errors
    ///
    /// [`crate::error::FsError::NoFileset`]; [`crate::error::FsError::Invalid`] if the two are not
    /// of one family.
    pub fn diff(
        &self,
        from: (&FilesetName, &NamePart),
        to: (&FilesetName, Option<&NamePart>),
        random: [u8; 16],
        tell: &mut dyn FnMut(&Difference) -> ControlFlow<()>,
    ) -> FsResult<()> {
        let compare = |to: (&FilesetName, &NamePart), tell| {
            let before = self.core.pin_clone(from.0.parts(), from.1)?;
            let after = self.core.pin_clone(to.0.parts(), to.1)?;
            self.core.differences(&before.node, &after.node, tell)
        };
        let Some(clone) = to.1 else {
            let digits = u64::from_le_bytes(random[..8].try_into().expect("8 of 16 bytes"));
            let made = NamePart::new(&format!("diff-{digits:016x}")).expect("digits make a name");
            self.create_clone(to.0, &made, random)?;
            let done = compare((to.0, &made), tell);
            let deleted = self.delete_clone(to.0, &made);
            return done.and(deleted);
        };
        compare((to.0, clone), tell)
    }

    /// Sends a clone: writes to `out` what makes it of `from`, an earlier clone, or of nothing.
    /// `resume` is where an earlier stream of the two broke off. `progress` is told which anode is
    /// sent, and below which number all are.
    ///
    /// # Errors
    ///
    /// [`SendError::Write`] if `out` refuses; else what the pool says.
    pub fn send(
        &self,
        (name, clone): (&FilesetName, &NamePart),
        from: Option<&NamePart>,
        resume: Option<ResumeToken>,
        out: &mut dyn Write,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Totals, SendError> {
        let from = from.map(|from| self.core.pin_clone(name.parts(), from)).transpose()?;
        let to = self.core.pin_clone(name.parts(), clone)?;
        self.core.send(from.as_ref(), &to, resume, out, progress)
    }

    /// Receives a stream: makes the fileset of this name of it, or its next state, and the clone
    /// that was sent. Nobody sees anything of it before it is whole.
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
        let done = self.core.receive(name.parts(), (input, None, false), random, progress);
        self.free_given_up()?;
        done
    }

    /// As [`Pool::receive`]; what came of another stream to the same name is given up.
    ///
    /// # Errors
    ///
    /// As [`Pool::receive`].
    pub fn receive_in_place(
        &self,
        name: &FilesetName,
        input: &mut dyn Read,
        random: [u8; 32],
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Received, ReceiveFailure> {
        let done = self.core.receive(name.parts(), (input, None, true), random, progress);
        self.free_given_up()?;
        done
    }

    /// Reads a stream to its end, verifies it, and looks whether the fileset of this name could
    /// receive it. Changes nothing.
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
        self.core.verify_stream(name.parts(), input, progress)
    }

    /// Gives up what came of a stream to the fileset of this name; a job frees it. Returns whether
    /// anything had come.
    ///
    /// # Errors
    ///
    /// [`crate::error::FsError::FilesetInUse`] while somebody sends to it.
    pub fn abort_receiving(&self, name: &FilesetName) -> FsResult<bool> {
        let slot = self.core.abort_receiving(name.parts())?;
        self.free_given_up()?;
        Ok(slot.is_some())
    }

    /// Has freed by jobs what was given up of streams.
    pub(super) fn free_given_up(&self) -> FsResult<()> {
        for (slot, name) in self.core.filesets.take_given_up() {
            // Before the first tick it is found there, with what was interrupted.
            if self.has_resumed.load(Ordering::Relaxed) {
                self.jobs.add(&self.core, Arc::new(Deletion::new(slot, &name)));
            }
        }
        Ok(())
    }

    /// Goes on with deletions that a crash or a close has interrupted.
    pub(super) fn resume_deletions(&self) -> FsResult<()> {
        for (slot, name) in self.core.deleted_filesets()? {
            self.jobs.add(&self.core, Arc::new(Deletion::new(slot, &name)));
        }
        Ok(())
    }

    /// Whether a deleted fileset is not all freed yet.
    ///
    /// # Errors
    ///
    /// As [`Pool::filesets`].
    pub fn is_freeing(&self) -> FsResult<bool> {
        self.core.has_deleted_filesets()
    }
}
