//! Growing a disk group of an open pool whose members became longer or were replaced by larger
//! ones. No data moves. `format::geometry` computes the result (`Geometry::grown`).
//!
//! # Crashes
//!
//! 1. From now on each member is used up to its new length, and the last two superblock copies
//!    belong at the new end: updates write them there, and an open reads them there. An update
//!    never writes both front copies between two flushes (S1), so one front copy is whole at each
//!    moment.
//! 2. Zeros are written where the descriptors of the added groups will be, durably. If a
//!    thin-provisioned member has no room for that, nothing was changed.
//! 3. All labels get the new length, durably. An open finds the old or the new length, with the
//!    added space unused.
//! 4. The copies at the old ends, which lie in allocation groups now, are overwritten. An open
//!    reads them only if the device is cut to its old length, and the front copies reveal that.
//! 5. Only then does the volume use the added space. A transaction creates each allocation group in
//!    it.
//!
//! Maps of stale parts depend on the length of the pool. So all members of the main disk group must
//! be online, without a map.
//!
//! Not here: growth of the last, shorter allocation group (`engine::alloc`).

use std::sync::Arc;

use format::disk_group::{DiskGroupState, GroupRange};
use format::geometry::{Geometry, GrowthLimit, SUPERBLOCK_COPIES};
use format::members::{Layout, Member, MemberState};
use format::page::PAGE_BYTES;
use format::reshape::ReshapeDirection;
use format::stripes::Stripes;
use format::superblock::{SUPERBLOCK_BYTES, SUPERBLOCK_HEAD_BYTES, Superblock, SuperblockError};
use format::text::shown;
use runtime::planted;

use super::growth::{LayoutChangeGuard, WIPED_AT_ONCE};
use super::open::layout_over;
use super::set::{LabelChange, take_table};
use super::slot::{MemberSlot, way_to_online};
use super::{Edition, Volume};
use crate::convert::to_u64;
use crate::device::{
    AlignedBuffer, DeviceError, DeviceOperation, IoPurpose, SharedBytes, SharedDevice, Ticket,
};
use crate::pool::update_all_superblocks;

const COPIES_AT_END: std::ops::Range<u16> = 2..SUPERBLOCK_COPIES;

/// The possible growth of a disk group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PossibleGrowth {
    /// Disk group.
    pub disk_group: u8,
    /// Layout.
    pub layout: Layout,
    /// Bytes used on each member.
    pub member_bytes: u64,
    /// Bytes usable on each member.
    pub usable_bytes: u64,
    /// Growth of the allocation groups in bytes.
    pub more_bytes: u64,
    /// Name of the smallest member.
    pub smallest: String,
    /// Bytes of the smallest member.
    pub smallest_bytes: u64,
    /// Why part of the members cannot be used.
    pub limit: Option<GrowthLimit>,
}

/// Why a disk group does not grow. Nothing was changed, except after [`GrowError::Device`].
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GrowError {
    /// Name another disk group.
    #[error("there is no disk group {disk_group}")]
    NoGroup {
        /// Disk group.
        disk_group: u8,
    },
    /// A journal does not grow.
    #[error(
        "disk group {disk_group} has the journal, which is as long as it was made: it does not grow"
    )]
    Journal {
        /// Disk group.
        disk_group: u8,
    },
    /// Wait until the group is gone.
    #[error("disk group {disk_group} leaves the pool: it does not grow")]
    Leaving {
        /// Disk group.
        disk_group: u8,
    },
    /// Wait until the device is gone: then the group grows by itself.
    #[error(
        "disk group {disk_group} is losing a device: wait until all has moved (`holdfast job \
         list POOL`), it grows then as far as it can"
    )]
    Narrowing {
        /// Disk group.
        disk_group: u8,
    },
    /// Wait until all members are online.
    #[error(
        "disk group {disk_group} grows when all of its devices are online, and {path} is {state}: \
         {}",
        way_to_online(.state)
    )]
    Away {
        /// Disk group.
        disk_group: u8,
        /// Path of the member.
        path: String,
        /// State.
        state: &'static str,
    },
    /// Make the devices longer.
    #[error(
        "disk group {disk_group} uses all that its devices have: the smallest, {smallest}, has \
         {smallest_bytes} bytes. Make it longer first (a file: truncate -s, a logical volume: \
         lvextend), or put a larger one in its place (`holdfast device replace POOL OLD NEW`)"
    )]
    NothingMore {
        /// Disk group.
        disk_group: u8,
        /// Smallest device.
        smallest: String,
        /// Bytes of the smallest device.
        smallest_bytes: u64,
    },
    /// Add a disk group.
    #[error(
        "disk group {disk_group} cannot use more of its devices, though the smallest, {smallest}, \
         has {smallest_bytes} bytes: {}. Another disk group can (`holdfast group \
         add POOL KIND:NEW,...`)",
        why_no_more(*limit)
    )]
    NoNumbers {
        /// Disk group.
        disk_group: u8,
        /// Smallest device.
        smallest: String,
        /// Bytes of the smallest device.
        smallest_bytes: u64,
        /// The obstacle.
        limit: GrowthLimit,
    },
    /// Try again.
    #[error(
        "a device of disk group {disk_group} was replaced while it was about to grow: try again"
    )]
    Replaced {
        /// Disk group.
        disk_group: u8,
    },
    /// The planned label is invalid: a bug, or a forged label.
    #[error(transparent)]
    Superblock(#[from] SuperblockError),
    /// A device failed at its new end. Nothing was changed.
    #[error("{0}; nothing was changed")]
    NewEnd(DeviceError),
    /// A member error: the pool must stop writing.
    #[error(transparent)]
    Device(#[from] DeviceError),
}

/// Describes the obstacle of a disk group that cannot use all of its members.
#[must_use]
pub fn why_no_more(limit: GrowthLimit) -> String {
    match limit {
        GrowthLimit::Range { disk_group } => {
            format!("the numbers behind its allocation groups are those of disk group {disk_group}")
        }
        GrowthLimit::Table => {
            "the group table of the pool has no room for more allocation groups".to_owned()
        }
        GrowthLimit::Lanes => "the numbers of a round-robin's allocation groups lie member behind \
                               member"
            .to_owned(),
    }
}

/// A prepared growth. Only the label update can still fail.
#[derive(Debug)]
pub struct PreparedGrowth {
    room: PossibleGrowth,
    coming: Superblock,
    /// The devices when the growth was planned, by slot.
    devices: Vec<SharedDevice>,
    /// Old superblock copies in the added space.
    old_copies: Vec<(SharedDevice, u64)>,
}

impl PreparedGrowth {
    /// Returns the geometry afterwards.
    #[must_use]
    pub fn geometry(&self) -> &Geometry {
        &self.coming.geometry
    }

    /// Returns the growth.
    #[must_use]
    pub fn room(&self) -> &PossibleGrowth {
        &self.room
    }
}

impl LayoutChangeGuard<'_> {
    /// Prepares the growth of a disk group to all usable bytes.
    ///
    /// # Errors
    ///
    /// See [`GrowError`].
    pub fn begin_growth(
        &self,
        superblock: &Superblock,
        disk_group: u8,
    ) -> Result<PreparedGrowth, GrowError> {
        let volume = self.volume();
        let label = volume.current_label(superblock);
        let slots = volume.all_slots();
        let (room, _) = plan(&label, &slots, disk_group, length_now_of)?;
        check_gain(&room)?;
        let devices = devices_of(&label, &slots, disk_group)?;
        let mut old_copies = Vec::new();
        for (member, device) in &devices {
            let before = device.info().size_bytes;
            device.lengthen().map_err(GrowError::NewEnd)?;
            let now = device.info().size_bytes;
            for was in [before, member.size_bytes].into_iter().filter(|was| *was < now) {
                let offsets = COPIES_AT_END.map(|copy| Geometry::superblock_offset(was, copy));
                let is_free = |offset: &u64| !meets_copies(*offset, now);
                old_copies.extend(offsets.filter(is_free).map(|at| (Arc::clone(device), at)));
            }
            if before < now {
                reserve_end(device).map_err(GrowError::NewEnd)?;
            }
        }
        let (room, coming) = plan(&label, &slots, disk_group, size_of)?;
        check_gain(&room)?;
        wipe(&label.geometry, &coming, &devices, disk_group).map_err(GrowError::NewEnd)?;
        let devices = devices.into_iter().map(|(_, device)| device).collect();
        Ok(PreparedGrowth { room, coming, devices, old_copies })
    }

    /// Writes the longer disk group to all labels, durably, and then uses it. Sets `superblock` to
    /// the written label.
    ///
    /// # Errors
    ///
    /// See [`GrowError`]. After [`GrowError::Device`] the pool must stop writing.
    pub fn end_growth(
        &self,
        growing: PreparedGrowth,
        superblock: &mut Superblock,
    ) -> Result<PossibleGrowth, GrowError> {
        let PreparedGrowth { room, coming, devices, old_copies } = growing;
        let volume = self.volume();
        volume.write_longer((&room, &devices), &coming, superblock)?;
        // CRASH: the labels have the new length, so no open reads these copies.
        for (device, offset) in old_copies {
            let blank = AlignedBuffer::zeroed(SUPERBLOCK_HEAD_BYTES);
            if let Err(error) = device.write(IoPurpose::Superblock, offset, blank) {
                tracing::warn!("{error}; an old copy of the superblock stays where data will lie");
            }
        }
        volume.show(superblock)?;
        Ok(room)
    }
}

impl Volume {
    /// Returns the possible growth of each disk group, by number, or why it is unknown.
    #[must_use]
    pub fn rooms(&self, superblock: &Superblock) -> Vec<Result<PossibleGrowth, GrowError>> {
        let (label, slots) = (self.current_label(superblock), self.all_slots());
        let added = label.added.iter().filter(|group| !group.has_journal);
        let added = added.map(|group| group.number);
        let mut numbers: Vec<u8> = std::iter::once(label.geometry.main).chain(added).collect();
        numbers.sort_unstable();
        let room = |number: u8| plan(&label, &slots, number, length_now_of).map(|(room, _)| room);
        numbers.into_iter().map(room).collect()
    }

    fn current_label(&self, superblock: &Superblock) -> Superblock {
        let label = self.members().and_then(|members| members.label());
        label.unwrap_or_else(|| superblock.clone())
    }

    fn all_slots(&self) -> Vec<MemberSlot> {
        match self.members() {
            Some(members) => members.all(),
            None => vec![MemberSlot::new(Some(Arc::clone(self.device())), MemberState::Online)],
        }
    }

    fn write_longer(
        &self,
        (room, planned): (&PossibleGrowth, &[SharedDevice]),
        coming: &Superblock,
        superblock: &mut Superblock,
    ) -> Result<(), GrowError> {
        let Some(set) = self.members().map(Arc::clone) else {
            let before = superblock.clone();
            let slots = self.all_slots();
            make_longer(superblock, coming, &slots)?;
            return update_all_superblocks(self.device(), superblock).map_err(|error| {
                *superblock = before;
                error.into()
            });
        };
        let mut made = Ok(());
        set.change(|slots, label| {
            made = devices_of(label, slots, room.disk_group)
                .and_then(|now| check_same(&now, planned, room.disk_group))
                .and_then(|()| make_longer(label, coming, slots));
            if made.is_err() {
                return LabelChange::Nothing;
            }
            if room.disk_group == label.geometry.main {
                set.cut_rebuild(&label.geometry);
            }
            LabelChange::Table
        })?;
        made?;
        if let Some(label) = set.label() {
            superblock.sequence = label.sequence;
            take_table(superblock, &label);
        }
        Ok(())
    }

    pub(super) fn show(&self, superblock: &Superblock) -> Result<(), SuperblockError> {
        let edition = self.now();
        if self.members().is_none() {
            let (device, geometry) = (Arc::clone(&edition.device), superblock.geometry.clone());
            let (composite, below, parts) = (None, None, Vec::new());
            self.set_edition(Edition { device, composite, below, parts, geometry });
            return Ok(());
        }
        let mut parts = self.membership().parts_of(superblock);
        for part in &mut parts {
            let added = superblock.added.iter().find(|group| group.number == part.disk_group);
            let set = Arc::clone(part.composite.members());
            part.composite = layout_over(superblock, added, set)?;
        }
        self.membership().set_parts(parts, superblock);
        Ok(())
    }
}

type LengthOf = fn(&SharedDevice) -> Result<u64, DeviceError>;

fn length_now_of(device: &SharedDevice) -> Result<u64, DeviceError> {
    let (now, used) = (device.length_now()?, device.info().size_bytes);
    if now < used {
        let device = device.info().name.clone();
        return Err(DeviceError::Shortened { device, size_bytes: used });
    }
    Ok(now)
}

fn size_of(device: &SharedDevice) -> Result<u64, DeviceError> {
    Ok(device.info().size_bytes)
}

fn devices_of(
    label: &Superblock,
    slots: &[MemberSlot],
    disk_group: u8,
) -> Result<Vec<(Member, SharedDevice)>, GrowError> {
    let group = label.added.iter().find(|group| group.number == disk_group);
    let own = match group {
        None if disk_group != label.geometry.main => return Err(GrowError::NoGroup { disk_group }),
        None => label.slots.clone(),
        Some(group) if group.state == DiskGroupState::Leaving => {
            return Err(GrowError::Leaving { disk_group });
        }
        Some(group) if group.has_journal => return Err(GrowError::Journal { disk_group }),
        Some(group) => group.slots.clone(),
    };
    let away = |member: &Member, state| {
        let path = match member.path.as_slice() {
            [] => "one of them".to_owned(),
            path => shown(path),
        };
        GrowError::Away { disk_group, path, state }
    };
    let found = own.iter().map(|at| {
        let member = label.members.get(at).ok_or(GrowError::NoGroup { disk_group })?;
        let slot = slots.get(at).ok_or_else(|| away(member, "missing"))?;
        match &slot.device {
            Some(device) if slot.state == MemberState::Online => {
                Ok((member.clone(), Arc::clone(device)))
            }
            Some(_) => Err(away(member, slot.state.word())),
            None => Err(away(member, "missing")),
        }
    });
    found.collect()
}

fn plan(
    label: &Superblock,
    slots: &[MemberSlot],
    disk_group: u8,
    length_of: LengthOf,
) -> Result<(PossibleGrowth, Superblock), GrowError> {
    let geometry = &label.geometry;
    let narrowing = geometry.reshape.filter(|reshape| reshape.towards == ReshapeDirection::Narrow);
    let narrowing = narrowing.map(|reshape| reshape.disk_group);
    if narrowing.or(geometry.last_groups.map(|last| last.disk_group)) == Some(disk_group) {
        return Err(GrowError::Narrowing { disk_group });
    }
    let devices = devices_of(label, slots, disk_group)?;
    let mut lengths = Vec::with_capacity(devices.len());
    for (_, device) in &devices {
        let bytes = length_of(device).map_err(GrowError::NewEnd)?;
        lengths.push((bytes, device.info().name.clone()));
    }
    let smallest = lengths.into_iter().min_by_key(|(bytes, _)| *bytes);
    let (smallest_bytes, smallest) = smallest.ok_or(GrowError::NoGroup { disk_group })?;
    let mut coming = label.clone();
    let group = coming.added.iter_mut().find(|group| group.number == disk_group);
    let (layout, limit) = match group {
        None => {
            let (geometry, limit) = label.geometry.grown(smallest_bytes);
            coming.geometry = geometry;
            (label.layout, limit)
        }
        Some(group) => {
            let (bytes, limit) = label.geometry.group_layout().grown_added(group, smallest_bytes);
            group.member_bytes = bytes;
            (group.layout, limit)
        }
    };
    coming.place_added()?;
    let slot = devices_slot(label, disk_group);
    let gained = match coming.geometry == label.geometry {
        true => 0,
        false => coming.geometry.fragments_in_all() - label.geometry.fragments_in_all(),
    };
    let room = PossibleGrowth {
        disk_group,
        layout,
        member_bytes: label.member_bytes(slot),
        usable_bytes: coming.member_bytes(slot),
        more_bytes: gained << label.geometry.fragment_shift,
        smallest,
        smallest_bytes,
        limit,
    };
    Ok((room, coming))
}

fn devices_slot(label: &Superblock, disk_group: u8) -> usize {
    let group = label.added.iter().find(|group| group.number == disk_group);
    group.map_or(&label.slots, |group| &group.slots).iter().next().unwrap_or(0)
}

fn check_gain(room: &PossibleGrowth) -> Result<(), GrowError> {
    if room.more_bytes > 0 {
        return Ok(());
    }
    let (disk_group, smallest) = (room.disk_group, room.smallest.clone());
    let smallest_bytes = room.smallest_bytes;
    Err(match room.limit {
        None => GrowError::NothingMore { disk_group, smallest, smallest_bytes },
        Some(limit) => GrowError::NoNumbers { disk_group, smallest, smallest_bytes, limit },
    })
}

/// Refuses devices other than the planned ones, which may be shorter.
fn check_same(
    now: &[(Member, SharedDevice)],
    planned: &[SharedDevice],
    disk_group: u8,
) -> Result<(), GrowError> {
    let is_same =
        |((_, now), planned): (&(Member, SharedDevice), &SharedDevice)| Arc::ptr_eq(now, planned);
    let are_same = now.len() == planned.len() && now.iter().zip(planned).all(is_same);
    if are_same || planted!(GrownOverReplaced) {
        return Ok(());
    }
    Err(GrowError::Replaced { disk_group })
}

/// Copies the lengths of disk groups and devices into `label`, and nothing else, because members
/// may have changed since the plan.
fn make_longer(
    label: &mut Superblock,
    coming: &Superblock,
    slots: &[MemberSlot],
) -> Result<(), GrowError> {
    let mut made = label.clone();
    made.geometry.device_bytes = coming.geometry.device_bytes;
    made.geometry.group_count = coming.geometry.group_count;
    for group in &mut made.added {
        let planned = coming.added.iter().find(|planned| planned.number == group.number);
        group.member_bytes = planned.map_or(group.member_bytes, |planned| planned.member_bytes);
    }
    for (member, slot) in made.members.iter_mut().zip(slots) {
        if let Some(device) = slot.device.as_ref().filter(|_| slot.state == MemberState::Online) {
            member.size_bytes = device.info().size_bytes;
        }
    }
    made.place_added()?;
    *label = made;
    Ok(())
}

/// Whether a page at `offset` overlaps a superblock copy at the end.
fn meets_copies(offset: u64, size_bytes: u64) -> bool {
    let mut copies = COPIES_AT_END.map(|copy| Geometry::superblock_offset(size_bytes, copy));
    copies.any(|at| {
        offset < at + to_u64(SUPERBLOCK_BYTES) && at < offset + to_u64(SUPERBLOCK_HEAD_BYTES)
    })
}

/// Writes zeros to the superblock copies at the new end, for which a thin-provisioned device then
/// allocates space.
fn reserve_end(device: &SharedDevice) -> Result<(), DeviceError> {
    let size_bytes = device.info().size_bytes;
    for copy in COPIES_AT_END {
        let zeros = AlignedBuffer::zeroed(SUPERBLOCK_BYTES);
        let offset = Geometry::superblock_offset(size_bytes, copy);
        device.write(IoPurpose::Superblock, offset, zeros)?;
    }
    device.flush(IoPurpose::Superblock)
}

fn wipe(
    before: &Geometry,
    coming: &Superblock,
    devices: &[(Member, SharedDevice)],
    disk_group: u8,
) -> Result<(), DeviceError> {
    let geometry = &coming.geometry;
    let is_new = |number: &u32| {
        !before.group_layout().has_group(*number)
            && geometry.group_layout().disk_group_of(*number) == Some(disk_group)
    };
    let range = geometry.added.iter().find(|range| range.disk_group == disk_group);
    let stripes = match range {
        None => geometry.stripes(),
        Some(range) => {
            range.stripe.map(|shape| geometry.group_layout().added_stripes(shape, range.offset))
        }
    };
    let offsets = geometry
        .group_layout()
        .groups()
        .filter(is_new)
        .map(|number| offset_of(geometry, range, number));
    let mut places = offsets.flat_map(|offset| places_of(stripes.as_ref(), offset, devices.len()));
    let submit = |(member, offset): (usize, u64)| {
        let data = vec![SharedBytes::from(AlignedBuffer::zeroed(PAGE_BYTES))];
        let device = devices.get(member).map(|(_, device)| device);
        device.map(|it| it.submit(IoPurpose::Home, DeviceOperation::Write { offset, data }))
    };
    loop {
        let tickets: Vec<Ticket> = places.by_ref().take(WIPED_AT_ONCE).filter_map(submit).collect();
        if tickets.is_empty() {
            break;
        }
        tickets.into_iter().try_for_each(|ticket| ticket.wait().map(drop))?;
    }
    devices.iter().try_for_each(|(_, device)| device.flush(IoPurpose::Home))
}

fn offset_of(geometry: &Geometry, range: Option<&GroupRange>, number: u32) -> u64 {
    let (first, offset) = range
        .map_or((geometry.main_first, geometry.groups_offset), |range| (range.first, range.offset));
    geometry.group_offset(number) - geometry.group_offset(first) + offset
}

/// Returns the member and offset of each copy of the page at byte `offset` of a disk group.
fn places_of(stripes: Option<&Stripes>, offset: u64, members: usize) -> Vec<(usize, u64)> {
    let Some(stripes) = stripes else { return (0..members).map(|at| (at, offset)).collect() };
    let Some(first) = stripes.locate(offset) else { return Vec::new() };
    let second = stripes.second_copy(&first);
    std::iter::once((first.member, first.member_offset)).chain(second).collect()
}
