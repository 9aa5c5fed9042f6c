//! A device comes to a round-robin of an open pool, or leaves it.
//!
//! Each device of a round-robin is a part of the space by itself, as a disk group of one device is.
//! So nothing beneath changes when one comes or goes: what changes is of which disk group the part
//! is. One that comes is a disk group of its own while it is being added, and becomes one of the
//! round-robin by the update of the labels that would make that one online. One that leaves becomes
//! a disk group of its own, that leaves, by one update of the labels; it is emptied and taken out
//! as any other.
//!
//! # Invariants
//!
//! - DT1: A part has the same allocation groups before and after: no place means another byte.
//! - DT2: The labels say that a device leaves before any block of it moves, and that it has come
//!   before any block goes there.
//!
//! # Crashes
//!
//! *Coming*: as in `growth.rs`: an open that finds *adding* takes the device out again. *Leaving*:
//! one update, whichever label is newest says of which disk group the device is, and either has
//! the same allocation groups on it (DT1). Decision 0101 has the argument.

use format::disk_group::{DiskGroup, DiskGroupState, Roles};
use format::geometry::Geometry;
use format::members::{Layout, MEMBERS_MAX, ROUND_ROBIN_WIDTH_MAX};
use format::superblock::{DISK_GROUPS_MAX, Superblock};
use runtime::planted::{self, Planted};

use super::groups::Part;
use super::growth::{AddGroupError, Addition, Changing, NewGroup, changes_to_come};
use super::set::Change;
use crate::device::SharedDevice;

/// What the device of a disk group that is being added is to become.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Lane {
    /// The number of the round-robin.
    pub(super) into: u8,
    /// Which range it has there: see [`format::lanes`].
    pub(super) at: u8,
}

/// Why a device cannot come to a round-robin, or leave it.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LaneError {
    /// Name another.
    #[error("there is no member in slot {slot}")]
    NoSlot {
        /// Which was named.
        slot: usize,
    },
    /// Add another disk group.
    #[error(
        "disk group {number} is a {kind}, and only a round-robin, or a single that holds data \
         alone, has files on one device or another: add a disk group (holdfast group add)"
    )]
    Kind {
        /// Its number.
        number: u8,
        /// What it is.
        kind: &'static str,
    },
    /// Add another disk group.
    #[error(
        "disk group {number} has {ROUND_ROBIN_WIDTH_MAX} devices, the most of a round-robin: add \
         another disk group (holdfast group add)"
    )]
    Wide {
        /// Its number.
        number: u8,
    },
    /// Wait until it is gone.
    #[error("disk group {number} leaves the pool, with all of its devices")]
    Leaving {
        /// Its number.
        number: u8,
    },
    /// Give a larger one.
    #[error(
        "{device}: {found_bytes} bytes, and disk group {number} uses {member_bytes} of each of its \
         devices: give a larger device"
    )]
    Small {
        /// The device.
        device: String,
        /// Its bytes.
        found_bytes: u64,
        /// The disk group.
        number: u8,
        /// What it uses of each member.
        member_bytes: u64,
    },
    /// Remove a disk group, or wait until one is gone.
    #[error(
        "a device that leaves a round-robin is a disk group of its own until it is gone, and a \
         pool has at most {DISK_GROUPS_MAX}: remove one first, or wait until one that leaves is \
         gone"
    )]
    TooMany,
    /// Bring it back.
    #[error(
        "disk group {number} lacks a device, and another can come or go only while all are there"
    )]
    Lacking {
        /// Its number.
        number: u8,
    },
    /// See the cause.
    #[error(transparent)]
    Group(#[from] AddGroupError),
}

/// Takes a device that has come to a round-robin out of that again, if a label says so already.
pub(super) fn not_a_lane(label: &mut Superblock, plan: &DiskGroup) {
    for slot in plan.slots.iter() {
        let _ = label.split_off(slot, plan.number);
    }
}

/// Says of each part of the space of which disk group it is, as the label does.
pub(super) fn named(parts: Vec<Part>, label: &Superblock) -> Vec<Part> {
    let of_label = |part: Part| {
        let has = |slot| part.composite.members().own_of(slot).is_some();
        let own = label.added.iter().find_map(|group| {
            let at = group.slots.iter().position(has)?;
            let has_lanes = group.layout.lanes(group.slots.len()) > 1;
            let lane = u8::try_from(at).ok().filter(|_| has_lanes);
            Some((group.number, lane))
        });
        let (disk_group, lane) = own.unwrap_or((part.disk_group, part.lane));
        Part { disk_group, lane, ..part }
    };
    parts.into_iter().map(of_label).collect()
}

/// A device that is to leave a round-robin.
#[derive(Debug)]
pub struct LeavingLane {
    slot: usize,
    /// Which disk group it is to be.
    number: u8,
    /// That of the round-robin.
    of: u8,
    lane: u8,
}

impl LeavingLane {
    /// Returns the number of the disk group that the device is until it is gone.
    #[must_use]
    pub fn number(&self) -> u8 {
        self.number
    }

    /// Returns the round-robin, and which part of it leaves.
    #[must_use]
    pub fn part(&self) -> (u8, u8) {
        (self.of, self.lane)
    }
}

fn online_group(label: &Superblock, slot: usize) -> Result<&DiskGroup, LaneError> {
    let kind = |number, layout: Layout| LaneError::Kind { number, kind: layout.word() };
    let (number, layout, _) = label.group_of_slot(slot).ok_or(LaneError::NoSlot { slot })?;
    let group = label.added.iter().find(|group| group.number == number);
    let group = group.ok_or_else(|| kind(number, layout))?;
    if !matches!(group.layout, Layout::RoundRobin | Layout::Single) || !group.has_data {
        return Err(kind(number, layout));
    }
    let is_online = |slot: usize| label.members.get(slot).is_some_and(|it| it.is_online());
    if group.state != DiskGroupState::Online {
        return Err(LaneError::Leaving { number });
    }
    if !group.slots.iter().all(is_online) {
        return Err(LaneError::Lacking { number });
    }
    Ok(group)
}

fn plan_lane(
    superblock: &Superblock,
    beside: usize,
    new: &NewGroup,
) -> Result<(DiskGroup, Option<Lane>), LaneError> {
    let group = online_group(superblock, beside)?;
    let number = group.number;
    if group.slots.len() >= ROUND_ROBIN_WIDTH_MAX {
        return Err(LaneError::Wide { number });
    }
    if superblock.members.len() + superblock.spares.len() >= MEMBERS_MAX {
        return Err(AddGroupError::TooManyMembers.into());
    }
    let plan = super::Volume::plan_group(superblock, new)?;
    let infos = new.devices.iter().map(|(device, _)| device.info());
    let small = infos.into_iter().find(|info| info.size_bytes < group.member_bytes);
    if let Some(info) = small {
        let (device, found_bytes) = (info.name.clone(), info.size_bytes);
        let member_bytes = group.member_bytes;
        return Err(LaneError::Small { device, found_bytes, number, member_bytes });
    }
    let geometry = &superblock.geometry;
    let on = (geometry.offset_in(group), group.member_bytes);
    let one = geometry.range_on((number, group.first_group), on, None);
    let (at, range) =
        one.and_then(|one| geometry.free_lane(&one)).ok_or(AddGroupError::TableFull)?;
    let (member_bytes, has_metadata) = (group.member_bytes, group.has_metadata);
    let plan = DiskGroup { first_group: range.first, member_bytes, has_metadata, ..plan };
    Ok((plan, Some(Lane { into: number, at })))
}

impl Changing<'_> {
    /// Makes `device` a further member of the round-robin, or of the single, that has the member in
    /// slot `beside`: see [`Changing::add_group`].
    ///
    /// # Errors
    ///
    /// That of `look`, and see [`LaneError`].
    pub fn add_lane<E: From<AddGroupError> + From<LaneError>>(
        &self,
        superblock: &mut Superblock,
        beside: usize,
        (device, id): (SharedDevice, [u8; 16]),
        look: impl FnOnce(&Geometry) -> Result<(), E>,
    ) -> Result<(), E> {
        let new =
            NewGroup { layout: Layout::Single, devices: vec![(device, id)], roles: Roles::DATA };
        let plan = |superblock: &Superblock| Ok(plan_lane(superblock, beside, &new)?);
        let look = |addition: &Addition<'_>| look(addition.geometry());
        self.add_planned(superblock, &new, plan, look).map(drop)
    }

    /// Says what becomes of the device in `slot` that is to leave its round-robin. Writes nothing.
    ///
    /// # Errors
    ///
    /// See [`LaneError`].
    pub fn plan_leaving(&self, slot: usize) -> Result<LeavingLane, LaneError> {
        let volume = self.volume();
        let label = volume.members().and_then(|set| set.label());
        let label = label.ok_or(LaneError::NoSlot { slot })?;
        let group = online_group(&label, slot)?;
        let (of, kind) = (group.number, group.layout);
        let lane = group.slots.position(slot).filter(|_| kind == Layout::RoundRobin);
        let lane = lane.and_then(|lane| u8::try_from(lane).ok());
        let lane = lane.ok_or(LaneError::Kind { number: of, kind: kind.word() })?;
        let number = label.free_group_number().ok_or(LaneError::TooMany)?;
        let mut coming = label.clone();
        coming.split_off(slot, number).map_err(AddGroupError::from)?;
        volume.next_edition(changes_to_come(&coming))?;
        Ok(LeavingLane { slot, number, of, lane })
    }

    /// Says in the labels that a device leaves its round-robin, durably (DT2): an open goes on with
    /// that.
    ///
    /// # Errors
    ///
    /// See [`AddGroupError`]; only after [`AddGroupError::Device`] must the pool stop writing.
    pub fn begin_leaving_lane(&self, leaving: &LeavingLane) -> Result<(), AddGroupError> {
        let volume = self.volume();
        let edition = volume.next_edition(0)?;
        let Some(set) = volume.members() else { return Ok(()) };
        let mut split = Ok(());
        let is_planted = planted::is(Planted::LaneLeavesUnsaid);
        if !is_planted {
            set.change(|_, label| {
                split = label.split_off(leaving.slot, leaving.number);
                if split.is_ok() { Change::States } else { Change::Nothing }
            })?;
        }
        split?;
        let Some(mut label) = set.label() else { return Ok(()) };
        if is_planted {
            label.split_off(leaving.slot, leaving.number)?;
        }
        volume.set_parts(edition, named(volume.now().parts.clone(), &label), &label);
        Ok(())
    }
}
