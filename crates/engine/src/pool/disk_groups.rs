//! The disk groups of an open pool: what they are, one that is added, one that becomes longer.

use std::sync::atomic::Ordering;

use format::disk_group::{DiskGroup, DiskGroupState, Roles};
use format::geometry::Geometry;
use format::members::Layout;
use format::slots::Slots;
use format::superblock::Superblock;
use runtime::planted::{self, Planted};
use storage::device::SharedDevice;
use storage::volume::{
    AddGroupError, Changing, GrowError, LaneError, MainError, NarrowError, NewGroup, Room,
};

use super::Pool;
use crate::alloc::{CanLeave, Found, Going, PlacementError};
use crate::error::{FsError, FsResult};

/// Descriptors of allocation groups that one status reads: a disk has them in two seconds.
const COUNTED_FOR_STATUS: u32 = 128;

/// Why a disk group was not added.
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
    CannotBeMain(#[from] MainError),
    /// Try again (`holdfast group metadata`), or remove it.
    #[error(
        "{cause}; disk group {number} was added and the metadata is where it was: `holdfast group \
         metadata POOL {number}` tries again"
    )]
    NotMain {
        /// Its number.
        number: u8,
        /// Why.
        cause: Box<DiskGroupError>,
    },
    /// Name what is there.
    #[error(transparent)]
    Placement(#[from] PlacementError),
    /// Name another.
    #[error("there is no disk group {number}: `holdfast group list` shows them")]
    None {
        /// Which was named.
        number: u8,
    },
    /// Add another first.
    #[error(
        "disk group {number} has the metadata, and no other has room for it: add one first \
         (holdfast group add POOL KIND:DEVICE,...=data,metadata,journal), or put other devices in \
         the place of its own (holdfast device replace)"
    )]
    Main {
        /// Which was named.
        number: u8,
    },
    /// Add another first.
    #[error(
        "disk group {number} is the last that data may lie in: add another first (holdfast group \
         add)"
    )]
    LastForData {
        /// Which was named.
        number: u8,
    },
    /// Free so much, or add another first.
    #[error(
        "what disk group {number} holds does not fit elsewhere: {missing_bytes} bytes are missing; \
         remove files or clones, or add another disk group first"
    )]
    NoRoom {
        /// Which was named.
        number: u8,
        /// How many bytes are missing.
        missing_bytes: u64,
    },
    /// Free so much, or give a larger one.
    #[error(
        "disk group {number} has too little room for the metadata: {missing_bytes} bytes are \
         missing; remove files, or add a larger one"
    )]
    NoRoomForMetadata {
        /// Which was named.
        number: u8,
        /// How many bytes are missing.
        missing_bytes: u64,
    },
    /// Free so much, or add another first.
    #[error(
        "what the device in slot {slot} holds does not fit elsewhere: {missing_bytes} bytes are \
         missing; remove files or clones, or add another device or disk group first"
    )]
    NoRoomForLane {
        /// Its slot.
        slot: usize,
        /// How many bytes are missing.
        missing_bytes: u64,
    },
    /// The pool takes no changes, or its maps cannot be read.
    #[error(transparent)]
    Files(#[from] FsError),
}

impl DiskGroupError {
    /// Whether labels may list what was to be added, or do.
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

/// What reads what must be known of allocation groups that come, by the geometry that the pool
/// will have.
type Look<'l> = &'l mut dyn FnMut(&Geometry) -> Result<(), DiskGroupError>;

/// What is told of a disk group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiskGroupStatus {
    /// Its number.
    pub number: u8,
    /// How it lies on its members.
    pub layout: Layout,
    /// What it is to the pool.
    pub state: DiskGroupState,
    /// Slots of its members.
    pub slots: Slots,
    /// Whether it is the main one: it has the fixed regions but the journal, and new metadata.
    pub is_main: bool,
    /// Whether it may have metadata: the main one, one that was it, and one that can be.
    pub has_metadata: bool,
    /// Whether it has the journal.
    pub has_journal: bool,
    /// Whether data may lie there.
    pub has_data: bool,
    /// Its allocation groups.
    pub allocation_groups: u32,
    /// Bytes that it uses of each member.
    pub member_bytes: u64,
    /// What it has room for.
    pub total_bytes: u64,
    /// What of it is in use.
    pub used_bytes: u64,
    /// Whether that is all: what is asked for often is counted a part at a time.
    pub is_counted: bool,
}

impl DiskGroupStatus {
    /// Whether it could be the main one.
    #[must_use]
    pub fn can_be_main(&self) -> bool {
        self.has_metadata
            && self.layout != Layout::RoundRobin
            && self.state == DiskGroupState::Online
    }
}

impl Pool {
    /// Returns the disk groups, by number.
    ///
    /// # Errors
    ///
    /// What is wrong with the maps of their groups: each is looked at.
    pub fn disk_groups(&self) -> FsResult<Vec<DiskGroupStatus>> {
        let found = self.groups_within(&mut { u32::MAX });
        found.into_iter().map(|(group, failure)| failure.map_or(Ok(group), Err)).collect()
    }

    /// Returns the disk groups, each as far as it is counted: this reads a few descriptors at most.
    pub(super) fn groups_for_status(&self) -> Vec<DiskGroupStatus> {
        let is_one = self.volume().geometry().added.is_empty();
        let mut budget = if is_one { 0 } else { COUNTED_FOR_STATUS };
        let found = self.groups_within(&mut budget);
        let mut groups: Vec<DiskGroupStatus> = found.into_iter().map(|(group, _)| group).collect();
        // One for the journal has no room of its own.
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
            let numbers = geometry.groups_of(number);
            let allocation_groups = u32::try_from(numbers.clone().count()).unwrap_or(u32::MAX);
            let space = self.core.store.alloc.space_within(numbers, budget);
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

    /// Returns layout and slots of the main disk group, and the others.
    fn disk_group_table(&self) -> (Layout, Slots, Vec<DiskGroup>) {
        match self.volume().members().and_then(|members| members.label()) {
            Some(label) => (label.layout, label.slots, label.added),
            None => {
                let superblock = self.superblock.lock();
                (superblock.layout, superblock.slots.clone(), superblock.added.clone())
            }
        }
    }

    /// Begins to take a disk group out: the labels say so, durably, nothing new goes there, and a
    /// job moves what is there elsewhere. It goes on after a crash, and when the pool is opened
    /// again; the disk group is gone when it ends. One that leaves already goes on.
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
        // What was freed, and what memory holds, counts as it is.
        self.core.sync_all()?;
        self.checkpoint()?;
        let volume = self.volume();
        let changing = volume.changing();
        // Somebody else may have had it before.
        if state()? == DiskGroupState::Leaving {
            return Ok(());
        }
        let shift = self.volume().geometry().fragment_shift;
        let going = Going { disk_group: number, lane: None };
        self.core.store.alloc.begin_leaving(going, |answer| match answer {
            CanLeave::LastForData => Err(DiskGroupError::LastForData { number }),
            CanLeave::NoRoom { fragments } => {
                Err(DiskGroupError::NoRoom { number, missing_bytes: fragments << shift })
            }
            CanLeave::Yes => Ok(self.stop_if_needed(changing.begin_leaving(number))?),
        })?;
        // Before the first tick it is found there.
        if self.has_resumed.load(Ordering::Relaxed) {
            self.jobs.add(&self.core, self.jobs.evacuation(number));
        }
        Ok(())
    }

    /// Begins to take the member in `slot` out of its round-robin: the labels say that it is a disk
    /// group of its own that leaves, durably, and the rest is as of [`Pool::remove_disk_group`].
    /// Returns the number of that disk group. Of two the other is a single from then on.
    ///
    /// # Errors
    ///
    /// See [`DiskGroupError`].
    pub fn remove_lane(&self, slot: usize) -> Result<u8, DiskGroupError> {
        self.check_members_change()?;
        // What was freed, and what memory holds, counts as it is.
        self.core.sync_all()?;
        self.checkpoint()?;
        let volume = self.volume();
        let changing = volume.changing();
        let leaving = changing.plan_leaving(slot)?;
        let ((disk_group, lane), number) = (leaving.part(), leaving.number());
        let going = Going { disk_group, lane: Some(lane) };
        let shift = volume.geometry().fragment_shift;
        self.core.store.alloc.begin_leaving(going, |answer| match answer {
            CanLeave::LastForData => Err(DiskGroupError::LastForData { number: disk_group }),
            CanLeave::NoRoom { fragments } => {
                Err(DiskGroupError::NoRoomForLane { slot, missing_bytes: fragments << shift })
            }
            CanLeave::Yes => Ok(self.stop_if_needed(changing.begin_leaving_lane(&leaving))?),
        })?;
        drop(changing);
        // Before the first tick it is found there.
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

    /// Moves the journal to the main disk group; the one that had it is gone when this returns.
    fn take_journal_back(&self, number: u8) -> Result<(), DiskGroupError> {
        self.checkpoint()?;
        let moved = self.core.store.journal.while_at_rest(|active| {
            let volume = self.volume();
            let changing = volume.changing();
            // Somebody else may have had it before.
            if volume.geometry().journal_group != Some(number) {
                return Err(DiskGroupError::None { number });
            }
            self.stop_if_needed(changing.take_journal_back(active))?;
            self.core.store.journal.keep_no_log();
            Ok(())
        });
        moved?
    }

    /// Makes `new` the disk group that has the journal.
    fn add_journal(&self, new: &NewGroup) -> Result<u8, DiskGroupError> {
        let journal = &self.core.store.journal;
        // So that little is copied.
        self.checkpoint()?;
        let moved = journal.while_at_rest(|active| {
            let mut superblock = self.superblock.lock();
            let volume = self.volume();
            let changing = volume.changing();
            // Where it is apart already it stays, and is kept.
            let comes = volume.geometry().journal_group.is_none();
            if comes {
                journal.keep_log().map_err(AddGroupError::JournalNotMoved)?;
            }
            let added = changing.add_journal(&mut superblock, new, active);
            match &added {
                Ok(_) => journal.forget_lost(),
                Err(_) if comes => journal.keep_no_log(),
                Err(_) => {}
            }
            Ok(self.stop_if_needed(added)?)
        });
        moved?
    }

    /// Goes on with disk groups that leave.
    pub(super) fn resume_evacuations(&self) {
        let (.., added) = self.disk_group_table();
        for group in added.iter().filter(|group| group.state == DiskGroupState::Leaving) {
            self.jobs.add(&self.core, self.jobs.evacuation(group.number));
        }
    }

    /// Adds a disk group. Its room counts, and data goes there, when this returns. The labels say
    /// so then, durably; a crash before leaves the pool with all of it or as it was. What can't be
    /// read of the group table is found before: then nothing is added, and the devices are blank.
    /// One for the journal has it when this returns; who waits for a commit waits meanwhile.
    ///
    /// # Errors
    ///
    /// See [`DiskGroupError`].
    pub fn add_disk_group(&self, new: &NewGroup) -> Result<u8, DiskGroupError> {
        if new.roles == Roles::JOURNAL {
            self.check_members_change()?;
            return self.add_journal(new);
        }
        let number =
            self.add_with(|changing, superblock, look| changing.add_group(superblock, new, look))?;
        if new.roles.metadata {
            // It stays where it is if this fails, and has room for it.
            self.make_main(number)
                .map_err(|error| DiskGroupError::NotMain { number, cause: Box::new(error) })?;
        }
        Ok(number)
    }

    /// Moves the metadata from disk group `number`, which is to go, to the one that can have it
    /// with most room free, if all that is left then fits elsewhere.
    fn give_metadata_up(&self, number: u8) -> Result<(), DiskGroupError> {
        let can = |group: &DiskGroupStatus| group.number != number && group.can_be_main();
        let mut others: Vec<_> = self.disk_groups()?.into_iter().filter(can).collect();
        others.sort_by_key(|group| group.total_bytes.saturating_sub(group.used_bytes));
        if others.is_empty() {
            return Err(DiskGroupError::Main { number });
        }
        self.core.sync_all()?;
        self.checkpoint()?;
        match self.core.store.alloc.main_can_leave()? {
            CanLeave::LastForData => return Err(DiskGroupError::LastForData { number }),
            CanLeave::NoRoom { fragments } => {
                let missing_bytes = fragments << self.volume().geometry().fragment_shift;
                return Err(DiskGroupError::NoRoom { number, missing_bytes });
            }
            CanLeave::Yes => {}
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

    /// Makes `device` a further member of the round-robin that has the member in slot `beside`; a
    /// single that holds data alone is a round-robin of two from then on. As of
    /// [`Pool::add_disk_group`], its room counts, and data goes there, when this returns.
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
        add: impl FnOnce(&Changing<'_>, &mut Superblock, Look<'_>) -> Result<T, DiskGroupError>,
    ) -> Result<T, DiskGroupError> {
        self.check_members_change()?;
        let mut superblock = self.superblock.lock();
        let (volume, alloc) = (self.volume(), &self.core.store.alloc);
        let changing = volume.changing();
        let mut coming = Found::default();
        let is_late = planted::is(Planted::AddedBeforeLookedAt);
        let mut look = |geometry: &Geometry| {
            if !is_late {
                coming = alloc.look_at_coming(geometry)?;
            }
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
        if is_late {
            alloc.note_disk_groups()?;
        } else {
            alloc.note_coming(coming);
        }
        Ok(added)
    }

    /// Makes a disk group as long as its members are, or as much of it as there is room for. What
    /// it has more counts, and data goes there, when this returns; the labels say so then, durably.
    /// A crash before leaves it as long as it was, or longer. Returns what was gained.
    ///
    /// # Errors
    ///
    /// See [`DiskGroupError`].
    pub fn grow_disk_group(&self, number: u8) -> Result<Room, DiskGroupError> {
        self.check_members_change()?;
        let mut superblock = self.superblock.lock();
        let volume = self.volume();
        let changing = volume.changing();
        let growing = changing.begin_growth(&superblock, number)?;
        let (coming, mut grown) = (growing.geometry().clone(), None);
        self.core.store.alloc.become_longer(&coming, || {
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

    /// Returns what each disk group can use of its members that it does not use, by number, or why
    /// it cannot be told. Takes no request of any device.
    #[must_use]
    pub fn rooms(&self) -> Vec<Result<Room, GrowError>> {
        self.volume().rooms(&self.superblock.lock())
    }
}
