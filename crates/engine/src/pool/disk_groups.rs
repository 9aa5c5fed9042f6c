//! The disk groups of an open pool: status, addition, growth and removal.

use super::PoolDevices;
use std::sync::atomic::Ordering;

use format::disk_group::{DiskGroup, DiskGroupRoles, DiskGroupState};
use format::geometry::Geometry;
use format::members::Layout;
use format::slots::Slots;
use format::superblock::Superblock;
use storage::device::SharedDevice;
use storage::volume::{
    AddGroupError, DiskGroupSpec, GrowError, LaneError, LayoutChangeGuard, MainGroupError,
    NarrowError, PossibleGrowth,
};

use crate::alloc::{GroupsInUse, LeavingDiskGroup, PlacementError, RemovalVerdict};
use crate::error::{FsError, FsResult};

/// Allocation group descriptors read per status: as many as a disk delivers in two seconds.
const COUNTED_FOR_STATUS: u32 = 128;

/// Why a change of disk groups was refused or failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DiskGroupError {
    /// See the cause.
    #[error(transparent)]
    Add(#[from] AddGroupError),
    /// See the cause.
    #[error(transparent)]
    Grow(#[from] GrowError),
    /// See the cause.
    #[error(transparent)]
    Narrow(#[from] NarrowError),
    /// See the cause.
    #[error(transparent)]
    Lane(#[from] LaneError),
    /// See the cause.
    #[error(transparent)]
    CannotBeMain(#[from] MainGroupError),
    /// Retry with `holdfast group metadata`, or remove the disk group.
    #[error(
        "{cause}; disk group {number} was added and the metadata is where it was: `holdfast group \
         metadata POOL {number}` tries again"
    )]
    NotMain {
        /// Number of the added disk group.
        number: u8,
        /// The cause.
        cause: Box<DiskGroupError>,
    },
    /// Name an existing disk group or kind.
    #[error(transparent)]
    Placement(#[from] PlacementError),
    /// Name another disk group.
    #[error("there is no disk group {number}: `holdfast group list POOL` shows them")]
    None {
        /// Number of the disk group.
        number: u8,
    },
    /// Add another disk group first.
    #[error(
        "disk group {number} has the metadata, and no other has room for it: add one first \
         (`holdfast group add POOL KIND:NEW,...=data,metadata,journal`)"
    )]
    Main {
        /// Number of the disk group.
        number: u8,
    },
    /// Add another disk group first.
    #[error(
        "disk group {number} is the last that data may lie in: add another first (`holdfast \
         group add POOL KIND:NEW,...`)"
    )]
    LastForData {
        /// Number of the disk group.
        number: u8,
    },
    /// Free so much space, or add another disk group first.
    #[error(
        "what disk group {number} holds does not fit elsewhere: {missing_bytes} bytes are missing; \
         remove files or snapshots, or add another disk group first"
    )]
    NoRoom {
        /// Number of the disk group.
        number: u8,
        /// Shortage in bytes.
        missing_bytes: u64,
    },
    /// Free so much space, or give a larger disk group.
    #[error(
        "disk group {number} has too little room for the metadata: {missing_bytes} bytes are \
         missing; remove files, or add a larger one"
    )]
    NoRoomForMetadata {
        /// Number of the disk group.
        number: u8,
        /// Shortage in bytes.
        missing_bytes: u64,
    },
    /// Free so much space, or add another device or disk group first.
    #[error(
        "what the device in slot {slot} holds does not fit elsewhere: {missing_bytes} bytes are \
         missing; remove files or snapshots, or add another device or disk group first"
    )]
    NoRoomForLane {
        /// Slot of the device.
        slot: usize,
        /// Shortage in bytes.
        missing_bytes: u64,
    },
    /// The pool takes no changes, or its maps cannot be read.
    #[error(transparent)]
    Files(#[from] FsError),
}

impl DiskGroupError {
    /// Whether labels may list the addition despite the error.
    #[must_use]
    pub fn may_be_listed(&self) -> bool {
        matches!(
            self,
            DiskGroupError::Add(AddGroupError::Device(_))
                | DiskGroupError::Lane(LaneError::Group(AddGroupError::Device(_)))
                | DiskGroupError::NotMain { .. }
        )
    }
}

/// Reads the group table entries that are about to be added, at their places in the new geometry.
type GroupEntryReader<'l> = &'l mut dyn FnMut(&Geometry) -> Result<(), DiskGroupError>;

/// Status of a disk group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiskGroupStatus {
    /// Number of the disk group.
    pub number: u8,
    /// Layout on its members.
    pub layout: Layout,
    /// State in the pool.
    pub state: DiskGroupState,
    /// Slots of its members.
    pub slots: Slots,
    /// Whether it is the main one, with the fixed regions and new metadata.
    pub is_main: bool,
    /// Whether it may hold metadata.
    pub has_metadata: bool,
    /// Whether it holds the journal.
    pub has_journal: bool,
    /// Whether it may hold data.
    pub has_data: bool,
    /// Count of its allocation groups.
    pub allocation_groups: u32,
    /// Bytes used of each member.
    pub member_bytes: u64,
    /// Capacity in bytes.
    pub total_bytes: u64,
    /// Bytes in use.
    pub used_bytes: u64,
    /// Whether `used_bytes` is complete. Frequent status calls count in parts.
    pub is_counted: bool,
}

impl DiskGroupStatus {
    /// Whether it could become the main disk group.
    #[must_use]
    pub fn can_be_main(&self) -> bool {
        self.has_metadata
            && self.layout != Layout::RoundRobin
            && self.state == DiskGroupState::Online
    }
}

impl PoolDevices<'_> {
    /// Returns the disk groups, by number, fully counted.
    ///
    /// # Errors
    ///
    /// Corruption of a group's maps.
    pub fn disk_groups(&self) -> FsResult<Vec<DiskGroupStatus>> {
        let found = self.groups_within(&mut { u32::MAX });
        found.into_iter().map(|(group, failure)| failure.map_or(Ok(group), Err)).collect()
    }

    /// Returns the disk groups. Reads few descriptors, so `used_bytes` may be incomplete.
    pub(super) fn groups_for_status(&self) -> Vec<DiskGroupStatus> {
        let is_one = self.volume().geometry().added.is_empty();
        let mut budget = if is_one { 0 } else { COUNTED_FOR_STATUS };
        let found = self.groups_within(&mut budget);
        let mut groups: Vec<DiskGroupStatus> = found.into_iter().map(|(group, _)| group).collect();
        // The first has all that the pool uses: a disk group for the journal has no capacity.
        if let Some(only) = groups.first_mut().filter(|_| is_one) {
            let space = self.core.store.alloc.counts();
            only.used_bytes = space.used << self.volume().geometry().fragment_shift;
            only.is_counted = true;
        }
        groups
    }

    fn groups_within(&self, budget: &mut u32) -> Vec<(DiskGroupStatus, Option<FsError>)> {
        let (layout, slots, added) = self.disk_group_table();
        let geometry = self.volume().geometry();
        let of = |group: Option<&DiskGroup>| {
            let number = group.map_or(geometry.main, |group| group.number);
            let numbers = geometry.group_layout().groups_of(number);
            let allocation_groups = u32::try_from(numbers.clone().count()).unwrap_or(u32::MAX);
            let space = self.core.store.alloc.group_space().space_within(numbers, budget);
            let bytes = |fragments: u64| fragments << geometry.fragment_shift;
            let status = DiskGroupStatus {
                number,
                layout: group.map_or(layout, |group| group.layout),
                state: group.map_or(DiskGroupState::Online, |group| group.state),
                slots: group.map_or_else(|| slots.clone(), |group| group.slots.clone()),
                has_metadata: group.is_none_or(|group| group.has_metadata),
                is_main: group.is_none(),
                has_journal: match geometry.journal_group {
                    Some(journal) => group.is_some_and(|group| group.number == journal),
                    None => group.is_none(),
                },
                has_data: group.map_or(geometry.main_has_data, |group| group.has_data),
                allocation_groups,
                member_bytes: group.map_or(geometry.member_bytes(), |group| group.member_bytes),
                total_bytes: bytes(space.capacity),
                used_bytes: bytes(space.used),
                is_counted: space.is_counted,
            };
            (status, space.failure)
        };
        let mut groups: Vec<_> =
            std::iter::once(None).chain(added.iter().map(Some)).map(of).collect();
        groups.sort_by_key(|(group, _)| group.number);
        groups
    }

    fn disk_group_table(&self) -> (Layout, Slots, Vec<DiskGroup>) {
        match self.volume().members().and_then(|members| members.label()) {
            Some(label) => (label.layout, label.slots, label.added),
            None => {
                let superblock = self.superblock.lock();
                (superblock.layout, superblock.slots.clone(), superblock.added.clone())
            }
        }
    }

    /// Begins the removal of a disk group. The labels record it durably, and a job moves the
    /// contents elsewhere. The job resumes after a crash. A removal in progress continues.
    ///
    /// # Errors
    ///
    /// See [`DiskGroupError`].
    pub fn remove_disk_group(&self, number: u8) -> Result<(), DiskGroupError> {
        self.check_members_change()?;
        if number == self.volume().geometry().main {
            self.give_metadata_up(number)?;
        }
        let state = || {
            let (.., added) = self.disk_group_table();
            let group = added.into_iter().find(|group| group.number == number);
            group.map(|group| group.state).ok_or(DiskGroupError::None { number })
        };
        if state()? == DiskGroupState::Leaving {
            return Ok(());
        }
        if self.volume().geometry().journal_group == Some(number) {
            return self.take_journal_back(number);
        }
        // Synced first, so that dirty data and deferred frees are counted.
        self.core.writeback().sync_all()?;
        self.checkpoint()?;
        let volume = self.volume();
        let changing = volume.membership().changing();
        // Another thread may have begun the removal.
        if state()? == DiskGroupState::Leaving {
            return Ok(());
        }
        let shift = self.volume().geometry().fragment_shift;
        let going = LeavingDiskGroup { disk_group: number, lane: None };
        self.core.store.alloc.group_space().begin_leaving(going, |answer| match answer {
            RemovalVerdict::LastForData => Err(DiskGroupError::LastForData { number }),
            RemovalVerdict::NoRoom { fragments } => {
                Err(DiskGroupError::NoRoom { number, missing_bytes: fragments << shift })
            }
            RemovalVerdict::Yes => Ok(self.stop_if_needed(changing.begin_leaving(number))?),
        })?;
        // If not, the first tick adds the job.
        if self.has_resumed.load(Ordering::Relaxed) {
            self.jobs.add(&self.core, self.jobs.evacuation(number));
        }
        Ok(())
    }

    /// Begins the removal of the member in `slot` from its round-robin. In the labels the member
    /// becomes a leaving disk group, which is emptied and removed as by
    /// [`PoolDevices::remove_disk_group`](crate::pool::PoolDevices::remove_disk_group). Returns the
    /// number of that disk group. A round-robin of two becomes a single.
    ///
    /// # Errors
    ///
    /// See [`DiskGroupError`].
    pub fn remove_lane(&self, slot: usize) -> Result<u8, DiskGroupError> {
        self.check_members_change()?;
        // Synced first, so that dirty data and deferred frees are counted.
        self.core.writeback().sync_all()?;
        self.checkpoint()?;
        let volume = self.volume();
        let changing = volume.membership().changing();
        let leaving = changing.plan_leaving(slot)?;
        let ((disk_group, lane), number) = (leaving.part(), leaving.number());
        let going = LeavingDiskGroup { disk_group, lane: Some(lane) };
        let shift = volume.geometry().fragment_shift;
        self.core.store.alloc.group_space().begin_leaving(going, |answer| match answer {
            RemovalVerdict::LastForData => Err(DiskGroupError::LastForData { number: disk_group }),
            RemovalVerdict::NoRoom { fragments } => {
                Err(DiskGroupError::NoRoomForLane { slot, missing_bytes: fragments << shift })
            }
            RemovalVerdict::Yes => Ok(self.stop_if_needed(changing.begin_leaving_lane(&leaving))?),
        })?;
        drop(changing);
        // If not, the first tick adds the job.
        if self.has_resumed.load(Ordering::Relaxed) {
            self.jobs.add(&self.core, self.jobs.evacuation(number));
        }
        Ok(number)
    }

    fn stop_if_needed<T>(&self, done: Result<T, AddGroupError>) -> Result<T, AddGroupError> {
        done.inspect_err(|error| {
            if let AddGroupError::Device(cause) = error {
                self.stop_writing(cause);
            }
        })
    }

    fn take_journal_back(&self, number: u8) -> Result<(), DiskGroupError> {
        self.checkpoint()?;
        let moved = self.core.store.journal.while_at_rest(|active| {
            let volume = self.volume();
            let changing = volume.membership().changing();
            // Another thread may have moved the journal.
            if volume.geometry().journal_group != Some(number) {
                return Err(DiskGroupError::None { number });
            }
            self.stop_if_needed(changing.take_journal_back(active))?;
            self.core.store.journal.lost_log().keep_no_log();
            Ok(())
        });
        moved?
    }

    fn add_journal(&self, new: &DiskGroupSpec) -> Result<u8, DiskGroupError> {
        let journal = &self.core.store.journal;
        // A checkpoint first, so that little log is copied.
        self.checkpoint()?;
        let moved = journal.while_at_rest(|active| {
            let mut superblock = self.superblock.lock();
            let volume = self.volume();
            let changing = volume.membership().changing();
            // A journal with its own disk group stays there.
            let comes = volume.geometry().journal_group.is_none();
            if comes {
                journal.lost_log().keep_log().map_err(AddGroupError::JournalNotMoved)?;
            }
            let added = changing.add_journal(&mut superblock, new, active);
            match &added {
                Ok(_) => journal.lost_log().forget_lost(),
                Err(_) if comes => journal.lost_log().keep_no_log(),
                Err(_) => {}
            }
            Ok(self.stop_if_needed(added)?)
        });
        moved?
    }

    pub(super) fn resume_evacuations(&self) {
        let (.., added) = self.disk_group_table();
        for group in added.iter().filter(|group| group.state == DiskGroupState::Leaving) {
            self.jobs.add(&self.core, self.jobs.evacuation(group.number));
        }
    }

    /// Adds a disk group, durably, and makes its space available. A crash leaves all of it or
    /// nothing. If the group table is unreadable, nothing is added, and the devices stay blank. If
    /// the disk group is for the journal, the journal moves there, and commits wait until then.
    ///
    /// # Errors
    ///
    /// See [`DiskGroupError`].
    pub fn add_disk_group(&self, new: &DiskGroupSpec) -> Result<u8, DiskGroupError> {
        if new.roles == DiskGroupRoles::JOURNAL {
            self.check_members_change()?;
            return self.add_journal(new);
        }
        let number =
            self.add_with(|changing, superblock, look| changing.add_group(superblock, new, look))?;
        if new.roles.metadata {
            // On failure the metadata stays in the old main disk group.
            self.make_main(number)
                .map_err(|error| DiskGroupError::NotMain { number, cause: Box::new(error) })?;
        }
        Ok(number)
    }

    /// Moves the metadata from the leaving disk group `number` to the eligible one with most free
    /// space, if all other contents fit elsewhere.
    fn give_metadata_up(&self, number: u8) -> Result<(), DiskGroupError> {
        let can = |group: &DiskGroupStatus| group.number != number && group.can_be_main();
        let mut others: Vec<_> = self.disk_groups()?.into_iter().filter(can).collect();
        others.sort_by_key(|group| group.total_bytes.saturating_sub(group.used_bytes));
        if others.is_empty() {
            return Err(DiskGroupError::Main { number });
        }
        self.core.writeback().sync_all()?;
        self.checkpoint()?;
        match self.core.store.alloc.group_space().main_can_leave()? {
            RemovalVerdict::LastForData => return Err(DiskGroupError::LastForData { number }),
            RemovalVerdict::NoRoom { fragments } => {
                let missing_bytes = fragments << self.volume().geometry().fragment_shift;
                return Err(DiskGroupError::NoRoom { number, missing_bytes });
            }
            RemovalVerdict::Yes => {}
        }
        let mut done = Err(DiskGroupError::Main { number });
        while let Some(other) = others.pop() {
            done = self.make_main(other.number);
            let is_refused = matches!(
                &done,
                Err(DiskGroupError::NoRoomForMetadata { .. } | DiskGroupError::CannotBeMain(_))
            );
            if !is_refused {
                break;
            }
        }
        done
    }

    /// Adds `device` to the round-robin of the member in slot `beside`, and makes its space
    /// available. A single for data alone becomes a round-robin.
    ///
    /// # Errors
    ///
    /// See [`DiskGroupError`].
    pub fn add_lane(
        &self,
        beside: usize,
        device: SharedDevice,
        id: [u8; 16],
    ) -> Result<(), DiskGroupError> {
        self.add_with(|changing, superblock, look| {
            changing.add_lane(superblock, beside, (device, id), look)
        })
    }

    fn add_with<T>(
        &self,
        add: impl FnOnce(
            &LayoutChangeGuard<'_>,
            &mut Superblock,
            GroupEntryReader<'_>,
        ) -> Result<T, DiskGroupError>,
    ) -> Result<T, DiskGroupError> {
        self.check_members_change()?;
        let mut superblock = self.superblock.lock();
        let (volume, alloc) = (self.volume(), &self.core.store.alloc);
        let changing = volume.membership().changing();
        let mut coming = GroupsInUse::default();
        let mut look = |geometry: &Geometry| {
            coming = alloc.group_space().look_at_coming(geometry)?;
            Ok::<(), DiskGroupError>(())
        };
        let added = add(&changing, &mut superblock, &mut look);
        drop(superblock);
        let added = added.inspect_err(|error| {
            if let DiskGroupError::Add(AddGroupError::Device(cause))
            | DiskGroupError::Lane(LaneError::Group(AddGroupError::Device(cause))) = error
            {
                self.stop_writing(cause);
            }
        })?;
        alloc.group_space().note_coming(coming);
        Ok(added)
    }

    /// Extends a disk group to the length of its members, or as far as possible, durably, and makes
    /// the space available. Returns the gain.
    ///
    /// # Errors
    ///
    /// See [`DiskGroupError`].
    pub fn grow_disk_group(&self, number: u8) -> Result<PossibleGrowth, DiskGroupError> {
        self.check_members_change()?;
        let mut superblock = self.superblock.lock();
        let volume = self.volume();
        let changing = volume.membership().changing();
        let growing = changing.begin_growth(&superblock, number)?;
        let (coming, mut grown) = (growing.geometry().clone(), None);
        self.core.store.alloc.group_space().become_longer(&coming, || {
            let ended = changing.end_growth(growing, &mut superblock);
            grown = Some(ended.inspect_err(|error| {
                if let GrowError::Device(cause) = error {
                    self.stop_writing(cause);
                }
            })?);
            Ok::<(), DiskGroupError>(())
        })?;
        grown.ok_or(DiskGroupError::None { number })
    }

    /// Returns the usable but unused space of each disk group's members, by number. Sends no device
    /// request.
    #[must_use]
    pub fn rooms(&self) -> Vec<Result<PossibleGrowth, GrowError>> {
        self.volume().rooms(&self.superblock.lock())
    }
}
