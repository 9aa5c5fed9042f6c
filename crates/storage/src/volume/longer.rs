//! A disk group of an open pool uses more of its members: those have become longer, or were
//! replaced by larger ones.
//!
//! Nothing moves. `format::geometry` says what a disk group has then (`Geometry::grown`).
//!
//! # Crashes
//!
//! 1. Each member is asked how long it is, and uses all of it from then on. The last two copies of
//!    its superblock belong at the new end from this moment: an update writes them there, and an
//!    open looks for them there. The copies at the front stay where they are, and an update never
//!    writes both of them between two flushes (S1), so one of these is whole at each moment.
//! 2. What an earlier pool may have left where descriptors will lie is overwritten, durably, past
//!    all that the pool uses. Where a member has no room below it for that, nothing was changed.
//! 3. The labels of all members say the new length, durably. An open finds the one or the other:
//!    nothing lies in the new space yet.
//! 4. The copies at the old ends are overwritten. They lie in allocation groups now. Nobody looks
//!    there unless the device is cut to its old length, and even then the copies at the front say
//!    that it was.
//! 5. Only then does anybody see the new space. Its allocation groups come into being one by one,
//!    each by a transaction, as those of a disk group that was added.
//!
//! Maps of what members have missed go by parts of the pool, which follow its length. So no member
//! of the main disk group may be away: there is no map then, and later ones are of the new parts.
//!
//! Not here: the last allocation group, which may become longer (`engine::alloc`).

use std::sync::Arc;

use format::disk_group::{DiskGroupState, GroupRange};
use format::geometry::{Geometry, GrowthLimit, SUPERBLOCK_COPIES};
use format::members::{Layout, Member, MemberState};
use format::page::PAGE_BYTES;
use format::reshape::Towards;
use format::stripes::Stripes;
use format::superblock::{SUPERBLOCK_BYTES, SUPERBLOCK_HEAD_BYTES, Superblock, SuperblockError};
use format::text::shown;
use runtime::planted::{self, Planted};

use super::growth::{AddGroupError, Changing, WIPED_AT_ONCE, changes_to_come};
use super::open::layout_over;
use super::set::{Change, take_table};
use super::slot::{Slot, way_to_online};
use super::{Edition, Volume};
use crate::convert::to_u64;
use crate::device::{
    AlignedBuffer, DeviceError, Operation, Purpose, SharedBytes, SharedDevice, Ticket,
};
use crate::pool::update_all_superblocks;

/// The copies of the superblock that lie at the end of a device.
const COPIES_AT_END: std::ops::Range<u16> = 2..SUPERBLOCK_COPIES;

/// What a disk group can use of its members.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Room {
    /// Its number.
    pub disk_group: u8,
    /// How it lies on its members.
    pub layout: Layout,
    /// Bytes that it uses of each.
    pub member_bytes: u64,
    /// Bytes that it can use of each.
    pub usable_bytes: u64,
    /// Bytes that its allocation groups have more then.
    pub more_bytes: u64,
    /// The smallest of its members.
    pub smallest: String,
    /// How long that is.
    pub smallest_bytes: u64,
    /// Why it cannot use all of that.
    pub limit: Option<GrowthLimit>,
}

/// Why a disk group does not grow. Nothing was changed, but for [`GrowError::Device`].
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GrowError {
    /// Name another.
    #[error("there is no disk group {disk_group}")]
    NoGroup {
        /// Which was named.
        disk_group: u8,
    },
    /// Nothing is to be done.
    #[error(
        "disk group {disk_group} has the journal, which is as long as it was made: it does not grow"
    )]
    Journal {
        /// Its number.
        disk_group: u8,
    },
    /// Wait until it is gone.
    #[error("disk group {disk_group} leaves the pool: it does not grow")]
    Leaving {
        /// Its number.
        disk_group: u8,
    },
    /// Wait until it is gone: it grows then by itself.
    #[error(
        "disk group {disk_group} is losing a device: wait until all has moved (holdfast job list), \
         it grows then as far as it can"
    )]
    Narrowing {
        /// Its number.
        disk_group: u8,
    },
    /// Bring the member back, or replace it, and wait until it has all.
    #[error(
        "disk group {disk_group} grows when all of its devices are online, and {path} is {state}: \
         {}",
        way_to_online(.state)
    )]
    Away {
        /// Which disk group.
        disk_group: u8,
        /// Path of the member.
        path: String,
        /// What it is.
        state: &'static str,
    },
    /// Make its devices longer.
    #[error(
        "disk group {disk_group} uses all that its devices have: the smallest, {smallest}, has \
         {smallest_bytes} bytes. Make it longer first (a file: truncate -s, a logical volume: \
         lvextend), or put a larger one in its place (holdfast device replace)"
    )]
    NothingMore {
        /// Its number.
        disk_group: u8,
        /// The smallest device.
        smallest: String,
        /// How long that is.
        smallest_bytes: u64,
    },
    /// Add a disk group.
    #[error(
        "disk group {disk_group} cannot use more of its devices, though the smallest, {smallest}, \
         has {smallest_bytes} bytes: {}. Another disk group can (holdfast group add)",
        why_no_more(*limit)
    )]
    NoNumbers {
        /// Its number.
        disk_group: u8,
        /// The smallest device.
        smallest: String,
        /// How long that is.
        smallest_bytes: u64,
        /// What is in its way.
        limit: GrowthLimit,
    },
    /// Try again.
    #[error(
        "a device of disk group {disk_group} was replaced while it was about to grow: try again"
    )]
    Replaced {
        /// Its number.
        disk_group: u8,
    },
    /// Close the pool and open it again.
    #[error(transparent)]
    Often(AddGroupError),
    /// The label would be none: a bug, or malice.
    #[error(transparent)]
    Superblock(#[from] SuperblockError),
    /// What a device said of its new end.
    #[error("{0}; nothing was changed")]
    NewEnd(DeviceError),
    /// What a device said on which the pool lies: it must stop writing.
    #[error(transparent)]
    Device(#[from] DeviceError),
}

/// Says what is in the way of a disk group that cannot use all of its members.
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

/// A disk group that is about to use more of its members: all that can fail but the labels is
/// done.
#[derive(Debug)]
pub struct Growing {
    edition: usize,
    room: Room,
    /// The label as it will be.
    coming: Superblock,
    /// Those whose lengths were planned with, in the order of their slots.
    devices: Vec<SharedDevice>,
    /// Where copies of the superblock were that lie in the new space.
    old_copies: Vec<(SharedDevice, u64)>,
}

impl Growing {
    /// Returns the geometry that the pool will have.
    #[must_use]
    pub fn geometry(&self) -> &Geometry {
        &self.coming.geometry
    }

    /// Returns what is gained.
    #[must_use]
    pub fn room(&self) -> &Room {
        &self.room
    }
}

impl Changing<'_> {
    /// Prepares that a disk group uses all that its members have, or as much of it as there is room
    /// for: see the module's header. `superblock` is the current label.
    ///
    /// # Errors
    ///
    /// See [`GrowError`].
    pub fn begin_growth(
        &self,
        superblock: &Superblock,
        disk_group: u8,
    ) -> Result<Growing, GrowError> {
        let volume = self.volume();
        let label = volume.current_label(superblock);
        let edition = volume.next_edition(changes_to_come(&label)).map_err(GrowError::Often)?;
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
        if !planted::is(Planted::GrownUnwiped) {
            wipe(&label.geometry, &coming, &devices, disk_group).map_err(GrowError::NewEnd)?;
        }
        let devices = devices.into_iter().map(|(_, device)| device).collect();
        Ok(Growing { edition, room, coming, devices, old_copies })
    }

    /// Says in the labels of all members that the disk group is longer, durably, and shows it;
    /// `superblock` becomes what they say.
    ///
    /// # Errors
    ///
    /// See [`GrowError`]; after [`GrowError::Device`] the pool must stop writing.
    pub fn end_growth(
        &self,
        growing: Growing,
        superblock: &mut Superblock,
    ) -> Result<Room, GrowError> {
        let Growing { edition, room, coming, devices, old_copies } = growing;
        let volume = self.volume();
        if planted::is(Planted::GrownNotLabelled) {
            superblock.geometry.clone_from(&coming.geometry);
        } else {
            volume.write_longer((&room, &devices), &coming, superblock)?;
        }
        // CRASH: the labels say so; what is overwritten here nobody has looked at since.
        for (device, offset) in old_copies {
            let blank = AlignedBuffer::zeroed(SUPERBLOCK_HEAD_BYTES);
            let blanked = if planted::is(Planted::OldEndLeft) {
                Ok(())
            } else {
                device.write(Purpose::Superblock, offset, blank)
            };
            if let Err(error) = blanked {
                tracing::warn!("{error}; an old copy of the superblock stays where data will lie");
            }
        }
        volume.show(edition, superblock)?;
        Ok(room)
    }
}

impl Volume {
    /// Returns what each disk group can use of its members, by number, or why it cannot be told.
    #[must_use]
    pub fn rooms(&self, superblock: &Superblock) -> Vec<Result<Room, GrowError>> {
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

    /// Returns the members of all disk groups, by slot of the pool; of one device that.
    fn all_slots(&self) -> Vec<Slot> {
        match self.members() {
            Some(members) => members.all(),
            None => vec![Slot::new(Some(Arc::clone(self.device())), MemberState::Online)],
        }
    }

    /// Writes the labels of a disk group that is longer from now on.
    fn write_longer(
        &self,
        (room, planned): (&Room, &[SharedDevice]),
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
                return Change::Nothing;
            }
            if room.disk_group == label.geometry.main {
                set.cut_anew(&label.geometry);
            }
            Change::Table
        })?;
        made?;
        if let Some(label) = set.label() {
            superblock.sequence = label.sequence;
            take_table(superblock, &label);
        }
        Ok(())
    }

    /// The pool lies on the same members, as `superblock` says, from now on.
    pub(super) fn show(&self, number: usize, superblock: &Superblock) -> Result<(), GrowError> {
        let edition = self.now();
        if self.members().is_none() {
            let (device, geometry) = (Arc::clone(&edition.device), superblock.geometry.clone());
            let (composite, below, parts) = (None, None, Vec::new());
            self.set_edition(number, Edition { device, composite, below, parts, geometry });
            return Ok(());
        }
        let mut parts = self.parts_of(superblock);
        for part in &mut parts {
            let added = superblock.added.iter().find(|group| group.number == part.disk_group);
            let set = Arc::clone(part.composite.members());
            part.composite = layout_over(superblock, added, set)?;
        }
        self.set_parts(number, parts, superblock);
        Ok(())
    }
}

/// How long a device is taken to be.
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

/// Returns the members of a disk group, each with its device, if all are there and have all.
fn devices_of(
    label: &Superblock,
    slots: &[Slot],
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

/// Returns what a disk group can use of its members, and the label when it does.
fn plan(
    label: &Superblock,
    slots: &[Slot],
    disk_group: u8,
    length_of: LengthOf,
) -> Result<(Room, Superblock), GrowError> {
    let geometry = &label.geometry;
    let narrowing = geometry.reshape.filter(|reshape| reshape.towards == Towards::Narrow);
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
            let (bytes, limit) = label.geometry.grown_added(group, smallest_bytes);
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
    let room = Room {
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

/// Refuses a growth that gives nothing.
fn check_gain(room: &Room) -> Result<(), GrowError> {
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

/// Refuses a disk group that has other devices now than when it was planned how long it becomes:
/// those may be shorter.
fn check_same(
    now: &[(Member, SharedDevice)],
    planned: &[SharedDevice],
    disk_group: u8,
) -> Result<(), GrowError> {
    let is_same =
        |((_, now), planned): (&(Member, SharedDevice), &SharedDevice)| Arc::ptr_eq(now, planned);
    let are_same = now.len() == planned.len() && now.iter().zip(planned).all(is_same);
    if are_same || planted::is(Planted::GrownOverReplaced) {
        return Ok(());
    }
    Err(GrowError::Replaced { disk_group })
}

/// Makes `label` what `coming` says of the lengths of disk groups, and of how long devices are. All
/// else stays: members may have come and gone since `coming` was planned.
fn make_longer(
    label: &mut Superblock,
    coming: &Superblock,
    slots: &[Slot],
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

/// Whether a page at `offset` lies in a copy of the superblock at the end of a device of
/// `size_bytes`.
fn meets_copies(offset: u64, size_bytes: u64) -> bool {
    let mut copies = COPIES_AT_END.map(|copy| Geometry::superblock_offset(size_bytes, copy));
    copies.any(|at| {
        offset < at + to_u64(SUPERBLOCK_BYTES) && at < offset + to_u64(SUPERBLOCK_HEAD_BYTES)
    })
}

/// Writes where copies of the superblock will lie, so that there is room for them below the device.
fn reserve_end(device: &SharedDevice) -> Result<(), DeviceError> {
    let size_bytes = device.info().size_bytes;
    for copy in COPIES_AT_END {
        let zeros = AlignedBuffer::zeroed(SUPERBLOCK_BYTES);
        let offset = Geometry::superblock_offset(size_bytes, copy);
        device.write(Purpose::Superblock, offset, zeros)?;
    }
    device.flush(Purpose::Superblock)
}

/// Overwrites what may lie where the descriptors of new allocation groups will, durably.
fn wipe(
    before: &Geometry,
    coming: &Superblock,
    devices: &[(Member, SharedDevice)],
    disk_group: u8,
) -> Result<(), DeviceError> {
    let geometry = &coming.geometry;
    let is_new = |number: &u32| {
        !before.has_group(*number) && geometry.disk_group_of(*number) == Some(disk_group)
    };
    let range = geometry.added.iter().find(|range| range.disk_group == disk_group);
    let stripes = match range {
        None => geometry.stripes(),
        Some(range) => range.stripe.map(|shape| geometry.added_stripes(shape, range.offset)),
    };
    let offsets = geometry.groups().filter(is_new).map(|number| offset_of(geometry, range, number));
    let mut places = offsets.flat_map(|offset| places_of(stripes.as_ref(), offset, devices.len()));
    let submit = |(member, offset): (usize, u64)| {
        let data = vec![SharedBytes::from(AlignedBuffer::zeroed(PAGE_BYTES))];
        let device = devices.get(member).map(|(_, device)| device);
        device.map(|it| it.submit(Purpose::Home, Operation::Write { offset, data }))
    };
    loop {
        let tickets: Vec<Ticket> = places.by_ref().take(WIPED_AT_ONCE).filter_map(submit).collect();
        if tickets.is_empty() {
            break;
        }
        tickets.into_iter().try_for_each(|ticket| ticket.wait().map(drop))?;
    }
    devices.iter().try_for_each(|(_, device)| device.flush(Purpose::Home))
}

/// Returns the byte of a disk group at which an allocation group of it begins.
fn offset_of(geometry: &Geometry, range: Option<&GroupRange>, number: u32) -> u64 {
    let (first, offset) = range
        .map_or((geometry.main_first, geometry.groups_offset), |range| (range.first, range.offset));
    geometry.group_offset(number) - geometry.group_offset(first) + offset
}

/// Returns where a page at byte `offset` of a disk group lies: members, and bytes of these.
fn places_of(stripes: Option<&Stripes>, offset: u64, members: usize) -> Vec<(usize, u64)> {
    let Some(stripes) = stripes else { return (0..members).map(|at| (at, offset)).collect() };
    let Some(first) = stripes.locate(offset) else { return Vec::new() };
    let second = stripes.second_copy(&first);
    std::iter::once((first.member, first.member_offset)).chain(second).collect()
}
