//! The members and spares of an open pool: status, failure on demand, replacement, attachment,
//! removal, scrub and rebuild.

use super::{PoolDevices, PoolOpenError};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use format::members::{Member, Spare};
use format::reshape::{EvacuatingGroups, ReshapeDirection};
use format::superblock::label_of;
use storage::device::{DeviceError, SharedDevice};
use storage::volume::{
    AttachError, DetachError, Detached, MemberCounts, NarrowError, ReplaceError, ReshapeProgress,
    ReturnError, SpareError,
};

use super::disk_groups::DiskGroupError;
use crate::error::{FsError, FsResult};
use crate::jobs::{
    Rebuild, RebuildCounts, RebuildReport, Scrub, ScrubError, ScrubReport, scrub_lacks,
};

/// Status of a member.
#[derive(Clone, Debug)]
pub struct MemberStatus {
    /// Slot of the member.
    pub slot: usize,
    /// Record in the labels.
    pub member: Member,
    /// Events since the open.
    pub counts: MemberCounts,
    /// Report of the last rebuild since the open, if it was of this slot.
    pub rebuilt: Option<RebuildReport>,
}

/// Status of a spare.
#[derive(Clone, Debug)]
pub struct SpareStatus {
    /// Record in the labels.
    pub spare: Spare,
    /// Whether the device is present and usable.
    pub is_there: bool,
}

impl PoolDevices<'_> {
    /// Returns the members, by slot. Empty for a pool on one device.
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

    /// Resets error counts, and drops the records of failed devices that have been replaced.
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

    /// Adds `device` as hot spare `id`.
    ///
    /// # Errors
    ///
    /// See [`SpareError`].
    pub fn add_spare(&self, device: SharedDevice, id: [u8; 16]) -> Result<(), SpareError> {
        self.volume()
            .membership()
            .add_spare(device, id)
            .inspect_err(|error| self.stop_after_spare(error))
    }

    /// Stops the pool after a label could not be written: nothing is acknowledged from here on
    /// (T5).
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

    /// Refuses changes of members or disk groups in a pool that is read-only or has failed: another
    /// machine may own a failed pool.
    ///
    /// # Errors
    ///
    /// [`FsError::ReadOnly`], or the error that stopped the pool.
    pub fn check_members_change(&self) -> FsResult<()> {
        self.core.store.journal.check_alive()?;
        if self.is_read_only {
            let reason = "it was opened read-only".to_owned();
            return Err(FsError::ReadOnly { reason });
        }
        Ok(())
    }

    /// Gives the pool another name, durably.
    ///
    /// # Errors
    ///
    /// [`PoolOpenError::Label`]: choose another name. Otherwise the pool is read-only or failed.
    pub fn rename(&self, name: &str) -> Result<(), PoolOpenError> {
        let label = label_of(name)?;
        self.check_members_change()?;
        let mut superblock = self.superblock.lock();
        superblock.label = label;
        let written = self.volume().update_superblocks(&mut superblock);
        Ok(written.map_err(|error| self.core.store.journal.fail(&error))?)
    }

    /// Removes the spare with identity `id`, and blanks its label.
    ///
    /// # Errors
    ///
    /// See [`SpareError`].
    pub fn remove_spare(&self, id: [u8; 16]) -> Result<(), SpareError> {
        self.volume()
            .membership()
            .remove_spare(id)
            .inspect_err(|error| self.stop_after_spare(error))
    }

    pub(super) fn take_spare(&self) -> FsResult<()> {
        self.core.store.journal.check_alive()?;
        let taken = self.volume().membership().take_spare();
        let taken = taken.map_err(|error| self.core.store.journal.fail(&error))?;
        if let Some(taken) = taken {
            self.add_rebuild(taken.slot, 0);
        }
        Ok(())
    }

    /// Brings a returned member back. It gets all writes, and a job rebuilds its stale ranges.
    ///
    /// # Errors
    ///
    /// See [`ReturnError`].
    pub fn return_member(&self, device: SharedDevice) -> Result<(), ReturnError> {
        let begun = self.volume().membership().begin_return(device);
        let slot = begun.inspect_err(|error| self.stop_after_return(error))?;
        self.begin_rebuild(slot);
        Ok(())
    }

    /// Brings back the member in `slot`, from its present device.
    ///
    /// # Errors
    ///
    /// See [`ReturnError`].
    pub fn return_member_in(&self, slot: usize) -> Result<(), ReturnError> {
        let begun = self.volume().membership().begin_return_of(slot);
        begun.inspect_err(|error| self.stop_after_return(error))?;
        self.begin_rebuild(slot);
        Ok(())
    }

    /// Releases the device of an absent member for a reopen. Returns its name.
    ///
    /// # Errors
    ///
    /// [`ReturnError::Unanswered`] while the device has outstanding requests.
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

    pub(super) fn take_back(&self) -> FsResult<()> {
        let Some(slot) = self.volume().membership().found_again() else { return Ok(()) };
        if self.volume().membership().joining().is_some() {
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

    /// Fails the member in `slot`, durably, as a write error would.
    ///
    /// # Errors
    ///
    /// See [`ReplaceError`].
    pub fn fail_member(&self, slot: usize) -> Result<(), ReplaceError> {
        let members = self.volume().members().ok_or(ReplaceError::NotSeveral)?;
        let (set, own) = members.of_slot(slot).ok_or(ReplaceError::NoSlot { slot })?;
        let view = set.view();
        let at = view.get(own).ok_or(ReplaceError::NoSlot { slot })?;
        let needed = || match members.label() {
            Some(label) => ReplaceError::needed(&label, slot),
            None => ReplaceError::NoSlot { slot },
        };
        if !set.can_lose(at) {
            let joining = self.volume().membership().joining().map(|(joining, _)| joining);
            let joining = joining.filter(|joining| *joining != slot);
            let wait = joining.map(|slot| ReplaceError::Joins { slot });
            return Err(wait.unwrap_or_else(needed));
        }
        let Some(device) = at.writable() else { return Ok(()) };
        let name = device.info().name.clone();
        let error = DeviceError::Failed { device: name.clone() };
        set.fail(own, at, error).map_err(|failed| {
            if matches!(&failed, DeviceError::Failed { device } if *device == name) {
                // Another member has been lost since. Nothing has changed.
                return needed();
            }
            self.stop_writing(&failed);
            ReplaceError::Device(failed)
        })
    }

    /// Replaces the member in `slot`. `device` gets all writes, and a job rebuilds its contents
    /// ([`Pool::jobs`](crate::Pool::jobs)).
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
        let begun = self.volume().membership().begin_replace(slot, device, id);
        begun.inspect_err(|error| self.stop_after(error))?;
        self.begin_rebuild(slot);
        Ok(())
    }

    /// Attaches `device` to the single or mirror of the member in slot `beside`. The device gets
    /// all writes, and a job rebuilds its contents ([`Pool::jobs`](crate::Pool::jobs)). Returns its
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
        let attached =
            self.volume().membership().changing().attach(&mut superblock, beside, device, id);
        drop(superblock);
        self.begin_attached(attached)
    }

    fn begin_attached(&self, attached: Result<usize, AttachError>) -> Result<usize, AttachError> {
        let slot = attached.inspect_err(|error| {
            if let AttachError::Unfit(error) = error {
                self.stop_after(error);
            }
        })?;
        self.begin_rebuild(slot);
        Ok(slot)
    }

    /// Adds `device` to the raid5 of the member in slot `beside`. A job moves all segments to wider
    /// stripes ([`Pool::jobs`](crate::Pool::jobs)). The space is available at the end of that job.
    /// Returns the device's slot.
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
        let widened =
            self.volume().membership().changing().widen(&mut superblock, beside, device, id);
        drop(superblock);
        let slot = self.begin_attached(widened)?;
        if self.has_resumed.load(Ordering::Relaxed) {
            self.resume_reshape();
        }
        Ok(slot)
    }

    /// Returns the progress of a reshape, if one is running.
    #[must_use]
    pub fn reshaping(&self) -> Option<ReshapeProgress> {
        self.volume().membership().reshaping()
    }

    /// Returns the allocation groups given up by a shrinking disk group, if any.
    #[must_use]
    pub fn given_up(&self) -> Option<EvacuatingGroups> {
        self.volume().geometry().last_groups
    }

    pub(super) fn resume_reshape(&self) {
        let given_up = self.given_up().map(|last| (last.disk_group, ReshapeDirection::Narrow));
        let reshaping = self.volume().membership().reshaping().map(|it| it.reshape);
        let reshaping = reshaping.map(|reshape| (reshape.disk_group, reshape.towards));
        if let Some((disk_group, towards)) = given_up.or(reshaping) {
            let job = self.jobs.reshape(&self.core, disk_group, towards);
            self.jobs.add(&self.core, job);
        }
    }

    /// Begins the removal of the member in `slot` from its raid5 or stripe, durably. A job moves
    /// its contents to the others, and resumes after a crash. At its end the device belongs to no
    /// pool.
    ///
    /// # Errors
    ///
    /// See [`NarrowError`], and [`DiskGroupError::NoRoom`].
    pub fn narrow(&self, slot: usize) -> Result<(), DiskGroupError> {
        self.check_members_change()?;
        // Synced first, so that dirty data and deferred frees are counted.
        self.core.writeback().sync_all()?;
        self.checkpoint()?;
        let mut superblock = self.superblock.lock();
        let volume = self.volume();
        let changing = volume.membership().changing();
        let stop = |error: NarrowError| {
            if let NarrowError::Device(cause) = &error {
                self.stop_writing(cause);
            }
            DiskGroupError::from(error)
        };
        let planned = changing.plan_narrowing(slot).map_err(stop)?;
        let number = planned.disk_group();
        let shift = volume.geometry().fragment_shift;
        self.core.store.alloc.group_space().begin_giving_up(planned.geometry(), |missing| {
            if missing > 0 {
                return Err(DiskGroupError::NoRoom { number, missing_bytes: missing << shift });
            }
            changing.begin_giving_up(&planned, &mut superblock).map_err(stop)
        })?;
        drop((changing, superblock));
        // If not, the first tick adds the job.
        if self.has_resumed.load(Ordering::Relaxed) {
            self.resume_reshape();
        }
        Ok(())
    }

    /// Cancels the addition of a raid5 member before any segment has moved. `None` in other states.
    /// The caller blanks its label ([`Detached::blank`]).
    ///
    /// # Errors
    ///
    /// A device error of a needed member. The pool stops writing.
    pub fn take_member_back(&self, slot: usize) -> Result<Option<Detached>, DeviceError> {
        let mut superblock = self.superblock.lock();
        let changing = self.volume().membership().changing();
        let taken = changing.take_back(slot).inspect_err(|error| self.stop_writing(error))?;
        if let Some(label) = self.volume().members().and_then(|members| members.label()) {
            superblock.geometry.clone_from(&label.geometry);
        }
        Ok(taken)
    }

    /// Detaches the member in `slot` from its mirror. A mirror of two needs `accepts_single`. The
    /// member gets no more writes, and the caller blanks its label ([`Detached::blank`]).
    ///
    /// # Errors
    ///
    /// See [`DetachError`].
    pub fn detach_member(
        &self,
        slot: usize,
        accepts_single: bool,
    ) -> Result<Detached, DetachError> {
        self.volume().membership().detach(slot, accepts_single).inspect_err(|error| {
            if let DetachError::Device(cause) = error {
                self.stop_writing(cause);
            }
        })
    }

    fn begin_rebuild(&self, slot: usize) {
        // If not, the first tick adds the job.
        if self.has_resumed.load(Ordering::Relaxed) {
            self.add_rebuild(slot, 0);
        }
    }

    fn add_rebuild(&self, slot: usize, done_mib: u32) {
        let (counts, stay) = (self.new_rebuild(slot), self.volume().membership().stay_in(slot));
        let view = self.volume().members().map(|members| members.all());
        let device = view.and_then(|view| view.get(slot)?.device.clone());
        let device = device.map_or_else(String::new, |device| device.info().name.clone());
        let is_back = self.volume().membership().is_returning(slot);
        let what = if is_back { "bringing back" } else { "rebuilding" };
        let what = format!("{what} {device}");
        let rebuild = Rebuild::new(&self.core, (slot, stay), what, done_mib, &counts);
        self.jobs.add(&self.core, Arc::new(rebuild));
    }

    /// Returns the report of the last rebuild since the open, if any.
    #[must_use]
    pub fn rebuild_report(&self) -> Option<RebuildReport> {
        self.rebuild.lock().as_ref().map(|counts| counts.report())
    }

    fn new_rebuild(&self, slot: usize) -> Arc<RebuildCounts> {
        Arc::clone(self.rebuild.lock().insert(Arc::new(RebuildCounts::of(slot))))
    }

    /// Starts a scrub job, or resumes an interrupted one. Returns `false` if one is running.
    ///
    /// # Errors
    ///
    /// See [`ScrubError`].
    pub fn scrub(&self) -> Result<bool, ScrubError> {
        self.begin_scrub(true)
    }

    /// With `accepts_away`, a raid5 with an absent device is scrubbed as far as possible.
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

    pub(super) fn resume_scrub(&self) -> FsResult<()> {
        let wants = |counts: &Arc<RebuildCounts>| counts.take_wants_scrub();
        // A scrub does not read a joining device, so it begins after the rebuild.
        let is_over = self.volume().membership().joining().is_none();
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
            // The scrub resumes once its members are online.
            Err(
                ScrubError::NotSeveral | ScrubError::Alone | ScrubError::Away | ScrubError::Joins,
            ) => {}
        }
        Ok(())
    }

    /// Returns the report of the last scrub since the open, if any.
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

    pub(super) fn resume_rebuild(&self) {
        if let Some((slot, copied)) = self.volume().membership().joining() {
            self.add_rebuild(slot, copied.done_mib);
        }
    }
}
