//! Adding a device to a round-robin of an open pool, or removing one.
//!
//! Each member of a round-robin is a part of the space by itself ([`PoolPart`]), so joining or
//! leaving only changes the disk group of a part. During its addition a device is a disk group of
//! its own. It joins the round-robin in the label update that puts it online. One label update
//! makes a removed device a leaving disk group of its own, which is then emptied and taken out like
//! any other.
//!
//! # Invariants
//!
//! - DT1: A part has the same allocation groups before and after, so each place stays at its byte.
//! - DT2: The labels list a device as leaving before any block is moved off it, and as added before
//!   any block is stored on it.
//!
//! # Crashes
//!
//! *Adding*: as in `growth.rs`: an open that finds state *adding* takes the device out again.
//! *Removing*: one update. The newest label decides the disk group of the device, with the same
//! allocation groups either way (DT1). Decision 0101 has the argument.

use format::disk_group::{DiskGroup, DiskGroupRoles, DiskGroupState};
use format::geometry::Geometry;
use format::members::{Layout, MEMBERS_MAX, ROUND_ROBIN_WIDTH_MAX};
use format::superblock::{DISK_GROUPS_MAX, Superblock};

use super::groups::PoolPart;
use super::growth::{AddGroupError, DiskGroupAddition, DiskGroupSpec, LayoutChangeGuard};
use super::set::LabelChange;
use crate::device::SharedDevice;

/// The round-robin and lane of an added device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Lane {
    pub(super) into: u8,
    /// See [`format::lanes`].
    pub(super) at: u8,
}

/// Why a device cannot join or leave a round-robin.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LaneError {
    /// Name another slot.
    #[error("there is no member in slot {slot}")]
    NoSlot {
        /// Slot.
        slot: usize,
    },
    /// Add another disk group.
    #[error(
        "disk group {number} is a {kind}, and only a round-robin, or a single that holds data \
         alone, has files on one device or another: add a disk group (`holdfast group add POOL \
         KIND:NEW,...`)"
    )]
    Kind {
        /// Disk group.
        number: u8,
        /// Kind.
        kind: &'static str,
    },
    /// Add another disk group.
    #[error(
        "disk group {number} has {ROUND_ROBIN_WIDTH_MAX} devices, the most of a round-robin: add \
         another disk group (`holdfast group add POOL KIND:NEW,...`)"
    )]
    Wide {
        /// Disk group.
        number: u8,
    },
    /// Wait until the group is gone.
    #[error("disk group {number} leaves the pool, with all of its devices")]
    Leaving {
        /// Disk group.
        number: u8,
    },
    /// Give a larger device.
    #[error(
        "{device}: {found_bytes} bytes, and disk group {number} uses {member_bytes} of each of its \
         devices: give a larger device"
    )]
    Small {
        /// Device name.
        device: String,
        /// Size.
        found_bytes: u64,
        /// Disk group.
        number: u8,
        /// Bytes in use on each member.
        member_bytes: u64,
    },
    /// Remove a disk group first.
    #[error(
        "a device that leaves a round-robin is a disk group of its own until it is gone, and a \
         pool has at most {DISK_GROUPS_MAX}: remove one first, or wait until one that leaves is \
         gone"
    )]
    TooMany,
    /// Bring the absent device back.
    #[error(
        "disk group {number} lacks a device, and another can come or go only while all are there"
    )]
    Lacking {
        /// Disk group.
        number: u8,
    },
    /// See the cause.
    #[error(transparent)]
    Group(#[from] AddGroupError),
}

/// Undoes the joining of a device to a round-robin, if `label` has it already.
pub(super) fn not_a_lane(label: &mut Superblock, plan: &DiskGroup) {
    for slot in plan.slots.iter() {
        let _ = label.split_off(slot, plan.number);
    }
}

/// Sets the disk group and lane of each part from the label.
pub(super) fn named(parts: Vec<PoolPart>, label: &Superblock) -> Vec<PoolPart> {
    let of_label = |part: PoolPart| {
        let has = |slot| part.composite.members().own_of(slot).is_some();
        let own = label.added.iter().find_map(|group| {
            let at = group.slots.iter().position(has)?;
            let has_lanes = group.layout.lanes(group.slots.len()) > 1;
            let lane = u8::try_from(at).ok().filter(|_| has_lanes);
            Some((group.number, lane))
        });
        let (disk_group, lane) = own.unwrap_or((part.disk_group, part.lane));
        PoolPart { disk_group, lane, ..part }
    };
    parts.into_iter().map(of_label).collect()
}

/// A device that is to leave a round-robin.
#[derive(Debug)]
pub struct LaneRemoval {
    slot: usize,
    /// Number of the disk group that it becomes.
    number: u8,
    /// Number of the round-robin.
    of: u8,
    lane: u8,
}

impl LaneRemoval {
    /// Returns the number of the disk group that the device becomes.
    #[must_use]
    pub fn number(&self) -> u8 {
        self.number
    }

    /// Returns the number of the round-robin, and the lane that leaves.
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
    new: &DiskGroupSpec,
) -> Result<(DiskGroup, Option<Lane>), LaneError> {
    let group = online_group(superblock, beside)?;
    let number = group.number;
    if group.slots.len() >= ROUND_ROBIN_WIDTH_MAX {
        return Err(LaneError::Wide { number });
    }
    if superblock.members.len() + superblock.spares.len() >= MEMBERS_MAX {
        return Err(AddGroupError::TooManyMembers.into());
    }
    let plan = super::Membership::plan_group(superblock, new)?;
    let infos = new.devices.iter().map(|(device, _)| device.info());
    let small = infos.into_iter().find(|info| info.size_bytes < group.member_bytes);
    if let Some(info) = small {
        let (device, found_bytes) = (info.name.clone(), info.size_bytes);
        let member_bytes = group.member_bytes;
        return Err(LaneError::Small { device, found_bytes, number, member_bytes });
    }
    let geometry = &superblock.geometry;
    let on = (geometry.group_layout().offset_in(group), group.member_bytes);
    let one = geometry.group_layout().range_on((number, group.first_group), on, None);
    let (at, range) =
        one.and_then(|one| geometry.free_lane(&one)).ok_or(AddGroupError::TableFull)?;
    let (member_bytes, has_metadata) = (group.member_bytes, group.has_metadata);
    let plan = DiskGroup { first_group: range.first, member_bytes, has_metadata, ..plan };
    Ok((plan, Some(Lane { into: number, at })))
}

impl LayoutChangeGuard<'_> {
    /// Adds `device` to the round-robin, or single, of the member in slot `beside`: see
    /// [`LayoutChangeGuard::add_group`].
    ///
    /// # Errors
    ///
    /// An error of `look`, or see [`LaneError`].
    pub fn add_lane<E: From<AddGroupError> + From<LaneError>>(
        &self,
        superblock: &mut Superblock,
        beside: usize,
        (device, id): (SharedDevice, [u8; 16]),
        look: impl FnOnce(&Geometry) -> Result<(), E>,
    ) -> Result<(), E> {
        let new = DiskGroupSpec {
            layout: Layout::Single,
            devices: vec![(device, id)],
            roles: DiskGroupRoles::DATA,
        };
        let plan = |superblock: &Superblock| Ok(plan_lane(superblock, beside, &new)?);
        let look = |addition: &DiskGroupAddition<'_>| look(addition.geometry());
        self.add_planned(superblock, &new, plan, look).map(drop)
    }

    /// Plans the removal of the device in `slot` from its round-robin. Writes nothing.
    ///
    /// # Errors
    ///
    /// See [`LaneError`].
    pub fn plan_leaving(&self, slot: usize) -> Result<LaneRemoval, LaneError> {
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
        Ok(LaneRemoval { slot, number, of, lane })
    }

    /// Marks a device as leaving its round-robin, durably (DT2). An open resumes the removal.
    ///
    /// # Errors
    ///
    /// See [`AddGroupError`]. Only after [`AddGroupError::Device`] must the pool stop writing.
    pub fn begin_leaving_lane(&self, leaving: &LaneRemoval) -> Result<(), AddGroupError> {
        let volume = self.volume();
        let Some(set) = volume.members() else { return Ok(()) };
        let mut split = Ok(());
        set.change(|_, label| {
            split = label.split_off(leaving.slot, leaving.number);
            if split.is_ok() { LabelChange::States } else { LabelChange::Nothing }
        })?;
        split?;
        let Some(label) = set.label() else { return Ok(()) };
        volume.membership().set_parts(named(volume.now().parts.clone(), &label), &label);
        Ok(())
    }
}
