//! The members of an open pool: what they are, one that fails on demand, one that is replaced,
//! attached or removed; and spares.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use format::members::{Member, Spare};
use format::reshape::{LastGroups, Towards};
use storage::device::{DeviceError, SharedDevice};
use storage::volume::{
    AttachError, DetachError, Detached, MemberCounts, NarrowError, ReplaceError, Reshaping,
    ReturnError, SpareError,
};

use super::Pool;
use super::disk_groups::DiskGroupError;
use crate::error::{FsError, FsResult};
use crate::jobs::{
    Rebuild, RebuildCounts, RebuildReport, Scrub, ScrubError, ScrubReport, scrub_lacks,
};

/// What `status` tells of a member.
#[derive(Clone, Debug)]
pub struct MemberStatus {
    /// Its slot.
    pub slot: usize,
    /// What its label and the table say.
    pub member: Member,
    /// What happened to it since the pool was opened.
    pub counts: MemberCounts,
    /// What the last rebuild since then has done, if it was of this slot.
    pub rebuilt: Option<RebuildReport>,
}

/// What `status` tells of a spare.
#[derive(Clone, Debug)]
pub struct SpareStatus {
    /// What the labels say of it.
    pub spare: Spare,
    /// Whether it is there, and can be taken.
    pub is_there: bool,
}

impl Pool {
    /// Returns the members, by slot, where there are several.
    #[must_use]
    pub fn members(&self) -> Vec<MemberStatus> {
        let Some(set) = self.volume().members() else { return Vec::new() };
        let table = set.label().map_or_else(Vec::new, |label| label.members);
        let view = set.all();
        let report = self.rebuild_report();
        let both = table.into_iter().zip(view.iter()).enumerate();
        both.filter(|(_, (member, _))| !member.is_gone())
            .map(|(slot, (member, at))| {
                let rebuilt = report.clone().filter(|report| report.slot == slot);
                MemberStatus { slot, member, counts: at.counts(), rebuilt }
            })
            .collect()
    }

    /// Counts the errors of the member in `slot` anew, and forgets the devices that failed there
    /// and for which another stands; `None`: of all members.
    pub fn clear_errors(&self, slot: Option<usize>) {
        self.volume().clear_errors(slot);
    }

    /// Returns the spares.
    #[must_use]
    pub fn spares(&self) -> Vec<SpareStatus> {
        let Some(set) = self.volume().members() else { return Vec::new() };
        let status = |(spare, is_there)| SpareStatus { spare, is_there };
        set.spares().into_iter().map(status).collect()
    }

    /// Makes `device` a spare, called `id` from now on: it takes the place of the first member that
    /// fails or is missing.
    ///
    /// # Errors
    ///
    /// See [`SpareError`].
    pub fn add_spare(&self, device: SharedDevice, id: [u8; 16]) -> Result<(), SpareError> {
        self.volume().add_spare(device, id).inspect_err(|error| self.stop_after_spare(error))
    }

    /// T5: a label could not be written where it must be: nothing may be acknowledged any more.
    pub(super) fn stop_writing(&self, cause: &DeviceError) {
        let _ = self.core.store.journal.fail(cause);
    }

    fn stop_after(&self, error: &ReplaceError) {
        if let ReplaceError::Device(cause) = error {
            self.stop_writing(cause);
        }
    }

    fn stop_after_return(&self, error: &ReturnError) {
        if let ReturnError::Device(cause) | ReturnError::Unfit(ReplaceError::Device(cause)) = error
        {
            self.stop_writing(cause);
        }
    }

    fn stop_after_spare(&self, error: &SpareError) {
        if let SpareError::Device(cause) | SpareError::Unfit(ReplaceError::Device(cause)) = error {
            self.stop_writing(cause);
        }
    }

    /// Refuses a change of members or disk groups where the pool takes none: it has stopped
    /// writing, and then another machine may have it by now, or it is open for reading alone.
    ///
    /// # Errors
    ///
    /// [`FsError::ReadOnly`], or why the pool has stopped.
    pub fn check_members_change(&self) -> FsResult<()> {
        self.core.store.journal.check_alive()?;
        if self.is_read_only {
            let reason = "it was opened read-only".to_owned();
            return Err(FsError::ReadOnly { reason });
        }
        Ok(())
    }

    /// Makes the spare called `id` one no longer, and takes its label off.
    ///
    /// # Errors
    ///
    /// See [`SpareError`].
    pub fn remove_spare(&self, id: [u8; 16]) -> Result<(), SpareError> {
        self.volume().remove_spare(id).inspect_err(|error| self.stop_after_spare(error))
    }

    /// Puts a spare into the place of a member that has failed or is missing, if there are both.
    pub(super) fn take_spare(&self) -> FsResult<()> {
        self.core.store.journal.check_alive()?;
        let taken = self.volume().take_spare();
        let taken = taken.map_err(|error| self.core.store.journal.fail(&error))?;
        if let Some(taken) = taken {
            self.add_rebuild(taken.slot, 0);
        }
        Ok(())
    }

    /// Brings back the member that `device` is: it gets every write from now on, and a job makes
    /// anew what it missed.
    ///
    /// # Errors
    ///
    /// See [`ReturnError`].
    pub fn return_member(&self, device: SharedDevice) -> Result<(), ReturnError> {
        let begun = self.volume().begin_return(device);
        let slot = begun.inspect_err(|error| self.stop_after_return(error))?;
        self.begin_rebuild(slot);
        Ok(())
    }

    /// The same of the member in `slot`, whose device is there.
    ///
    /// # Errors
    ///
    /// See [`ReturnError`].
    pub fn return_member_in(&self, slot: usize) -> Result<(), ReturnError> {
        let begun = self.volume().begin_return_of(slot);
        begun.inspect_err(|error| self.stop_after_return(error))?;
        self.begin_rebuild(slot);
        Ok(())
    }

    /// Lets go of the device of the member in `slot`, if that is away, so that it can be opened
    /// anew. Returns what it is called.
    ///
    /// # Errors
    ///
    /// [`ReturnError::Unanswered`].
    pub fn let_go_of_member(&self, slot: usize) -> Result<Option<String>, ReturnError> {
        let members = self.volume().members().ok_or(ReplaceError::NotSeveral)?;
        let name = || {
            let view = members.all();
            let device = view.get(slot).and_then(|slot| slot.device.as_ref());
            device.map_or_else(String::new, |device| device.info().name.clone())
        };
        let unanswered = |requests| ReturnError::Unanswered { device: name(), requests };
        members.let_go(slot).map_err(unanswered)
    }

    /// Brings back a member that was missing and was found at the open. One that cannot come back
    /// is left alone from then on.
    pub(super) fn take_back(&self) -> FsResult<()> {
        let Some(slot) = self.volume().found_again() else { return Ok(()) };
        if self.volume().joining().is_some() {
            return Ok(());
        }
        self.core.store.journal.check_alive()?;
        match self.return_member_in(slot) {
            Ok(()) => {
                tracing::warn!(slot, "a member is back, and gets what it has missed");
                Ok(())
            }
            Err(ReturnError::Device(error)) => Err(self.core.store.journal.fail(&error)),
            Err(error) => {
                tracing::warn!(slot, "{error}; the member stays away");
                let _ = self.let_go_of_member(slot);
                Ok(())
            }
        }
    }

    /// Leaves the member in `slot` behind, as if a write to it had failed. The labels say so,
    /// durably, when this returns.
    ///
    /// # Errors
    ///
    /// [`ReplaceError::Needed`] and others: see [`ReplaceError`].
    pub fn fail_member(&self, slot: usize) -> Result<(), ReplaceError> {
        let members = self.volume().members().ok_or(ReplaceError::NotSeveral)?;
        let (set, own) = members.of_slot(slot).ok_or(ReplaceError::NoSlot { slot })?;
        let view = set.view();
        let at = view.get(own).ok_or(ReplaceError::NoSlot { slot })?;
        if !set.can_lose(at) {
            let joining = self.volume().joining().map(|(joining, _)| joining);
            let joining = joining.filter(|joining| *joining != slot);
            let wait = joining.map(|slot| ReplaceError::Joins { slot });
            return Err(wait.unwrap_or(ReplaceError::Needed { slot }));
        }
        let Some(device) = at.writable() else { return Ok(()) };
        let name = device.info().name.clone();
        let error = DeviceError::Failed { device: name.clone() };
        set.fail(own, at, error).map_err(|failed| {
            if matches!(&failed, DeviceError::Failed { device } if *device == name) {
                // Another was lost meanwhile, and nothing is changed.
                return ReplaceError::Needed { slot };
            }
            self.stop_writing(&failed);
            ReplaceError::Device(failed)
        })
    }

    /// Puts `device` in the place of the member in `slot`. A job makes all anew that it should have
    /// ([`Pool::jobs`]); it has every write from the moment this returns.
    ///
    /// # Errors
    ///
    /// See [`ReplaceError`].
    pub fn replace_member(
        &self,
        slot: usize,
        device: SharedDevice,
        id: [u8; 16],
    ) -> Result<(), ReplaceError> {
        let begun = self.volume().begin_replace(slot, device, id);
        begun.inspect_err(|error| self.stop_after(error))?;
        self.begin_rebuild(slot);
        Ok(())
    }

    /// Makes `device` a further member of the disk group that has the member in slot `beside`: a
    /// single becomes a mirror of two, a mirror of two one of three. A job makes all anew that it
    /// should have ([`Pool::jobs`]); it has every write from the moment this returns. Returns its
    /// slot.
    ///
    /// # Errors
    ///
    /// See [`AttachError`].
    pub fn attach_member(
        &self,
        beside: usize,
        device: SharedDevice,
        id: [u8; 16],
    ) -> Result<usize, AttachError> {
        let mut superblock = self.superblock.lock();
        let attached = self.volume().changing().attach(&mut superblock, beside, device, id);
        drop(superblock);
        self.begin_attached(attached)
    }

    /// Begins to make a further member whole, if there is one.
    fn begin_attached(&self, attached: Result<usize, AttachError>) -> Result<usize, AttachError> {
        let slot = attached.inspect_err(|error| {
            if let AttachError::Unfit(error) = error {
                self.stop_after(error);
            }
        })?;
        self.begin_rebuild(slot);
        Ok(slot)
    }

    /// Makes `device` a further member of the raid5 that has the member in slot `beside`. A job
    /// moves its segments, one after the other, to stripes over all members ([`Pool::jobs`]); when
    /// all are moved it has more room. Returns the slot of the device.
    ///
    /// # Errors
    ///
    /// See [`AttachError`].
    pub fn widen(
        &self,
        beside: usize,
        device: SharedDevice,
        id: [u8; 16],
    ) -> Result<usize, AttachError> {
        let mut superblock = self.superblock.lock();
        let widened = self.volume().changing().widen(&mut superblock, beside, device, id);
        drop(superblock);
        let slot = self.begin_attached(widened)?;
        if self.has_resumed.load(Ordering::Relaxed) {
            self.resume_reshape();
        }
        Ok(slot)
    }

    /// Returns how far the disk group is that gets a member more, or one less; `None`: there is
    /// none.
    #[must_use]
    pub fn reshaping(&self) -> Option<Reshaping> {
        self.volume().reshaping()
    }

    /// Returns the allocation groups that are given up before a disk group has a member less;
    /// `None`: there are none.
    #[must_use]
    pub fn given_up(&self) -> Option<LastGroups> {
        self.volume().geometry().last_groups
    }

    /// Goes on with the move of segments to stripes of another width, and what comes before it.
    pub(super) fn resume_reshape(&self) {
        let given_up = self.given_up().map(|last| (last.disk_group, Towards::Narrow));
        let reshaping = self.volume().reshaping().map(|it| it.reshape);
        let reshaping = reshaping.map(|reshape| (reshape.disk_group, reshape.towards));
        if let Some((disk_group, towards)) = given_up.or(reshaping) {
            let job = self.jobs.reshape(&self.core, disk_group, towards);
            self.jobs.add(&self.core, job);
        }
    }

    /// Begins to take the member in `slot` out of its disk group, a raid5: the labels say so,
    /// durably, and a job moves what is there to the others. It goes on after a crash, and when the
    /// pool is opened again; the member is gone, and its device of no pool, when it ends.
    ///
    /// # Errors
    ///
    /// See [`NarrowError`], and [`DiskGroupError::NoRoom`].
    pub fn narrow(&self, slot: usize) -> Result<(), DiskGroupError> {
        self.check_members_change()?;
        // What was freed, and what memory holds, counts as it is.
        self.core.sync_all()?;
        self.checkpoint()?;
        let mut superblock = self.superblock.lock();
        let volume = self.volume();
        let changing = volume.changing();
        let stop = |error: NarrowError| {
            if let NarrowError::Device(cause) = &error {
                self.stop_writing(cause);
            }
            DiskGroupError::from(error)
        };
        let planned = changing.plan_narrowing(slot).map_err(stop)?;
        let number = planned.disk_group();
        let shift = volume.geometry().fragment_shift;
        self.core.store.alloc.begin_giving_up(planned.geometry(), |missing| {
            if missing > 0 {
                return Err(DiskGroupError::NoRoom { number, missing_bytes: missing << shift });
            }
            changing.begin_giving_up(&planned, &mut superblock).map_err(stop)
        })?;
        drop((changing, superblock));
        // Before the first tick it is found there.
        if self.has_resumed.load(Ordering::Relaxed) {
            self.resume_reshape();
        }
        Ok(())
    }

    /// Takes the member in `slot` out again that a raid5 is only getting: nothing was moved yet.
    /// `None`: it is none, or something was. Its label is to be blanked ([`Detached::blank`]).
    ///
    /// # Errors
    ///
    /// What a member said that the layout needs: the pool stops writing.
    pub fn take_member_back(&self, slot: usize) -> Result<Option<Detached>, DeviceError> {
        let mut superblock = self.superblock.lock();
        let changing = self.volume().changing();
        let taken = changing.take_back(slot).inspect_err(|error| self.stop_writing(error))?;
        if let Some(label) = self.volume().members().and_then(|members| members.label()) {
            superblock.geometry.clone_from(&label.geometry);
        }
        Ok(taken)
    }

    /// Takes the member in `slot` out of its disk group, a mirror: of two only where
    /// `accepts_single`, for then each byte is on one device alone. Nothing goes to it when this
    /// returns, and its label is to be blanked ([`Detached::blank`]).
    ///
    /// # Errors
    ///
    /// See [`DetachError`].
    pub fn detach_member(
        &self,
        slot: usize,
        accepts_single: bool,
    ) -> Result<Detached, DetachError> {
        self.volume().detach(slot, accepts_single).inspect_err(|error| {
            if let DetachError::Device(cause) = error {
                self.stop_writing(cause);
            }
        })
    }

    fn begin_rebuild(&self, slot: usize) {
        // Before the first tick it is found there.
        if self.has_resumed.load(Ordering::Relaxed) {
            self.add_rebuild(slot, 0);
        }
    }

    fn add_rebuild(&self, slot: usize, done_mib: u32) {
        let (counts, stay) = (self.new_rebuild(slot), self.volume().stay_in(slot));
        let view = self.volume().members().map(|members| members.all());
        let device = view.and_then(|view| view.get(slot)?.device.clone());
        let device = device.map_or_else(String::new, |device| device.info().name.clone());
        let is_back = self.volume().is_returning(slot);
        let what = if is_back { "bringing back" } else { "rebuilding" };
        let what = format!("{what} {device}");
        let rebuild = Rebuild::new(&self.core, (slot, stay), what, done_mib, &counts);
        self.jobs.add(&self.core, Arc::new(rebuild));
    }

    /// Returns what the last rebuild since the open has done; `None`: there was none.
    #[must_use]
    pub fn rebuild_report(&self) -> Option<RebuildReport> {
        self.rebuild.lock().as_ref().map(|counts| counts.report())
    }

    fn new_rebuild(&self, slot: usize) -> Arc<RebuildCounts> {
        Arc::clone(self.rebuild.lock().insert(Arc::new(RebuildCounts::of(slot))))
    }

    /// Begins to hold against each other whatever the pool is kept in, by a job, or goes on with
    /// one that was interrupted. Returns whether it began: one that is under way goes on.
    ///
    /// # Errors
    ///
    /// See [`ScrubError`].
    pub fn scrub(&self) -> Result<bool, ScrubError> {
        self.begin_scrub(true)
    }

    /// `accepts_away`: without a device of a raid5 that is away now it looks at what it can.
    fn begin_scrub(&self, accepts_away: bool) -> Result<bool, ScrubError> {
        let mut last = self.scrub.lock();
        let lacks = |accepts_away| scrub_lacks(self.volume(), accepts_away);
        let is_away = accepts_away && matches!(lacks(false), Some(ScrubError::Away));
        if let Some(counts) = last.as_ref().filter(|counts| !counts.report().is_done) {
            if is_away {
                counts.accept_away();
            }
            return Ok(false);
        }
        if let Some(lacks) = lacks(is_away) {
            return Err(lacks);
        }
        let at = self.volume().begin_scrub();
        let at = at.inspect_err(|error| self.stop_writing(error))?;
        let counts = last.insert(Arc::default());
        if is_away {
            counts.accept_away();
        }
        self.jobs.add(&self.core, Arc::new(Scrub::new(&self.core, at, counts)));
        Ok(true)
    }

    /// Goes on with a scrub that a crash or a close has interrupted, once there is something to
    /// hold what the pool has against.
    pub(super) fn resume_scrub(&self) -> FsResult<()> {
        let wants = |counts: &Arc<RebuildCounts>| counts.take_wants_scrub();
        // A scrub does not read a device that is joining, so it begins after the rebuild.
        let is_over = self.volume().joining().is_none();
        if is_over && self.rebuild.lock().as_ref().is_some_and(wants) {
            self.has_left_scrub.store(true, Ordering::Relaxed);
        }
        let is_left = self.has_left_scrub.load(Ordering::Relaxed);
        if !is_left || scrub_lacks(self.volume(), false).is_some() {
            return Ok(());
        }
        match self.begin_scrub(false) {
            Ok(_) => self.has_left_scrub.store(false, Ordering::Relaxed),
            Err(error @ ScrubError::Device(_)) => {
                return Err(FsError::io(error.to_string()));
            }
            // The scrub goes on when the members that it needs are there.
            Err(
                ScrubError::NotSeveral | ScrubError::Alone | ScrubError::Away | ScrubError::Joins,
            ) => {}
        }
        Ok(())
    }

    /// Returns what the last scrub since the open has found; `None`: there was none.
    #[must_use]
    pub fn scrub_report(&self) -> Option<ScrubReport> {
        let (mut report, accepts_away) = {
            let last = self.scrub.lock();
            let counts = last.as_ref()?;
            (counts.report(), counts.accepts_away())
        };
        let lacks = (!report.is_done).then(|| scrub_lacks(self.volume(), accepts_away)).flatten();
        report.waits = lacks.map(|lacks| lacks.to_string());
        Some(report)
    }

    /// Goes on with a rebuild that a crash or a close has interrupted.
    pub(super) fn resume_rebuild(&self) {
        if let Some((slot, copied)) = self.volume().joining() {
            self.add_rebuild(slot, copied.done_mib);
        }
    }
}
