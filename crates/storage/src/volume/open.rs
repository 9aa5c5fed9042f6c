//! Opening a pool: judges the labels of its devices, and puts a layout over the members of each
//! disk group.

use std::sync::Arc;

use format::disk_group::{DiskGroup, DiskGroupState};
use format::members::{Layout, MemberState};
use format::page::PAGE_BYTES;
use format::reshape::StripeMapping;
use format::slots::Slots;
use format::superblock::{Superblock, SuperblockError};
use runtime::{if_planted, planted};

use super::below::OverlayBase;
use super::composite::Composite;
use super::groups::{Groups, PoolPart};
use super::mirror::Mirror;
use super::set::MemberSet;
use super::slot::MemberSlot;
use super::striped::Striped;
use super::{Edition, Volume};
use crate::convert::to_u64;
use crate::device::{DeviceInfo, OverlayDevice, SharedDevice};
use crate::members::{self, LabelledDevice, MemberAssessment};
use crate::pool::{PoolError, read_superblock};

/// The devices to open, and the options.
#[derive(Clone, Debug)]
pub struct VolumeDevices {
    /// All devices found of one pool.
    pub devices: Vec<SharedDevice>,
    /// Whether to accept fewer than half of the current members, with possible loss of data.
    pub accepts_missing: bool,
}

impl VolumeDevices {
    /// Returns the opening of one device, which may be the last of several.
    #[must_use]
    pub fn of_one(device: SharedDevice) -> VolumeDevices {
        VolumeDevices { devices: vec![device], accepts_missing: false }
    }
}

impl Volume {
    /// Opens a pool from the labels of the devices. Returns its space, and the newest label. Writes
    /// nothing: see [`Volume::begin_writing`].
    ///
    /// # Errors
    ///
    /// An error of [`read_superblock`], or [`PoolError::Members`] if the devices do not make a
    /// pool.
    pub fn open_members(opening: VolumeDevices) -> Result<(Volume, Superblock), PoolError> {
        let mut found = Vec::with_capacity(opening.devices.len());
        for device in &opening.devices {
            found.push(LabelledDevice::new(
                device.info().name.clone(),
                read_superblock(device.as_ref())?,
            ));
        }
        let members::AuthoritativeLabel { judged, label: mut superblock, begun } =
            members::believe(&found, opening.accepts_missing)?;
        if let Some(begun) = begun {
            // Reserves the sequence number and epochs of the interrupted update. So the next update
            // first overwrites its copies, and not those with the label chosen here.
            superblock.sequence = begun.sequence + 1;
            superblock.memberships = begun.memberships;
            tracing::warn!("a change of members that a crash left only begun is given up");
        }
        leave_out_adding(&mut superblock);
        if superblock.members.len() == 1 && superblock.geometry.main_first == 0 {
            let device = match judged.slots.first() {
                Some(members::MemberSlotState::Current(at)) => opening.devices.into_iter().nth(*at),
                Some(_) | None => None,
            };
            let device = device.ok_or(members::MembersError::Nothing)?;
            superblock.device_index = 0;
            return Ok((Volume::alone(device, superblock.geometry.clone()), superblock));
        }
        let slots = slots_of(&mut superblock, &judged, &opening.devices);
        let spares = spares_of(&mut superblock, &judged, &opening.devices);
        let label = Some((superblock.clone(), judged.settled));
        let volume = Volume::over(slots, &superblock, label)?;
        if let Some(members) = volume.members() {
            members.spare_devices().add(spares);
        }
        Ok((volume, superblock))
    }

    /// Returns the paths of absent members without which data is lost. A pool that lacks any is
    /// opened by [`Volume::in_memory`].
    #[must_use]
    pub fn lost_with(&self, superblock: &Superblock) -> Option<String> {
        let slots = self.members()?.all();
        let coming = superblock.coming_slot().map(|(_, slot)| slot);
        let is_away = |slot: &usize| slots.get(*slot).is_none_or(|it| it.readable().is_none());
        let is_lost = |slot: &usize| Some(*slot) != coming && is_away(slot);
        let lost_of = |(layout, own): (Layout, &Slots)| -> Vec<usize> {
            let away: Vec<usize> = own.iter().filter(is_lost).collect();
            let spared = spared_by(layout).unwrap_or(usize::MAX);
            if away.len() > spared { away } else { Vec::new() }
        };
        let lost = members::disk_groups(superblock)
            .flat_map(lost_of)
            .filter_map(|slot| superblock.members.get(slot));
        let lost = members::paths_of(lost);
        (!lost.is_empty()).then_some(lost)
    }

    /// Returns the space under an overlay: the log is replayed in memory only.
    #[must_use]
    pub fn in_memory(&self) -> Volume {
        if_planted!(LackingPoolWritten, return self.clone());
        let over = Arc::new(OverlayDevice::new(Arc::clone(self.device())));
        let device: SharedDevice = Arc::<OverlayDevice>::clone(&over);
        let composite = self.composite();
        let below = composite.map(|it| OverlayBase { over, composite: Arc::clone(it) });
        let volume = Volume { editions: Arc::default() };
        let (composite, parts, geometry) = (None, Vec::new(), self.geometry().clone());
        volume.set_edition(Edition { device, composite, below, parts, geometry });
        volume
    }

    /// Returns the space of a pool that is being created on `devices`.
    ///
    /// # Errors
    ///
    /// [`PoolError::Superblock`] for an unsupported layout.
    pub fn of_new(devices: &[SharedDevice], superblock: &Superblock) -> Result<Volume, PoolError> {
        match devices {
            [device] => Ok(Volume::new(Arc::clone(device), superblock.geometry.clone())),
            _ => {
                let slot = |device: &SharedDevice| {
                    MemberSlot::new(Some(Arc::clone(device)), MemberState::Online)
                };
                Volume::over(devices.iter().map(slot).collect(), superblock, None)
            }
        }
    }

    fn over(
        slots: Vec<MemberSlot>,
        superblock: &Superblock,
        label: Option<(Superblock, u64)>,
    ) -> Result<Volume, PoolError> {
        let own =
            |slots_of: &Slots| -> Vec<MemberSlot> { slots_of.pick(&slots).cloned().collect() };
        let in_use = |error| PoolError::Superblock { device: info_name(&slots), cause: error };
        let geometry = &superblock.geometry;
        let of_main = (geometry.main, superblock.layout);
        let needed = needed_in(superblock, of_main, superblock.slots.len());
        let of_first = (superblock.slots.clone(), own(&superblock.slots));
        let set = MemberSet::new(of_first, label, needed.0, geometry);
        set.need(needed.0, needed.1);
        let composite = layout_over(superblock, None, Arc::clone(&set)).map_err(in_use)?;
        let mut parts = vec![PoolPart { disk_group: geometry.main, lane: None, composite }];
        for group in &superblock.added {
            let added = parts_over(&set, superblock, group, own(&group.slots)).map_err(in_use)?;
            added.iter().for_each(|part| part.composite.members().join_roster());
            parts.extend(added);
        }
        let composite = match parts.as_slice() {
            [first] if geometry.main_first == 0 => Arc::clone(&first.composite),
            [first, added @ ..] => {
                Arc::new(Groups::new(first.clone(), added, &superblock.geometry))
            }
            [] => return Err(members::MembersError::Nothing.into()),
        };
        let geometry = superblock.geometry.clone();
        let volume = Volume { editions: Arc::default() };
        let device: SharedDevice = Arc::<dyn Composite>::clone(&composite);
        let (composite, below) = (Some(composite), None);
        volume.set_edition(Edition { device, composite, below, parts, geometry });
        Ok(volume)
    }
}

/// Takes out disk groups whose addition a crash interrupted: they have no contents (DG3).
fn leave_out_adding(superblock: &mut Superblock) {
    let is_adding = |group: &&DiskGroup| group.state == DiskGroupState::Adding;
    let adding: Vec<u8> =
        superblock.added.iter().filter(is_adding).map(|group| group.number).collect();
    for number in adding {
        superblock.take_out(number);
        superblock.add_membership();
    }
}

/// Returns the layouts of an added disk group: one, or one per round-robin member. Their members
/// get no labels before [`MemberSet::join_roster`].
pub(super) fn parts_over(
    first: &Arc<MemberSet>,
    superblock: &Superblock,
    group: &DiskGroup,
    slots: Vec<MemberSlot>,
) -> Result<Vec<PoolPart>, SuperblockError> {
    let lanes = group.layout.lanes(group.slots.len());
    let each = slots.len() / usize::from(lanes);
    let part = |(lane, slots): (u8, &[MemberSlot])| {
        let numbers = group.slots.iter().skip(usize::from(lane) * each).take(each).collect();
        let needed = needed_in(superblock, (group.number, group.layout), slots.len());
        let set = first.beside(numbers, slots.to_vec(), needed.0);
        set.need(needed.0, needed.1);
        let composite = layout_over(superblock, Some(group), set)?;
        let lane = (lanes > 1).then_some(lane);
        Ok(PoolPart { disk_group: group.number, lane, composite })
    };
    (0..lanes).zip(slots.chunks(each.max(1))).map(part).collect()
}

/// Returns the number of needed members, and the own slot of an idle one (`set/needs.rs`).
fn needed_in(
    superblock: &Superblock,
    (number, layout): (u8, Layout),
    width: usize,
) -> (usize, Option<usize>) {
    let coming = superblock.coming_slot().filter(|(of, _)| *of == number);
    let idle = coming.and(superblock.geometry.reshape).map(|it| usize::from(it.member));
    (needed_of(layout, width - usize::from(idle.is_some())), idle)
}

pub(super) fn needed_of(layout: Layout, width: usize) -> usize {
    match layout {
        // Each round-robin member is a set by itself.
        Layout::Single | Layout::Mirror | Layout::RoundRobin => 1,
        // A stripe needs every member (R7).
        Layout::Stripe { .. } if planted!(StripeDoneWithout) => width - 1,
        Layout::Stripe { .. } => width,
        Layout::Raid5 { .. } => width.saturating_sub(1),
    }
}

/// Returns how many members may be absent before data is lost. `None` where `needed_of` covers it.
fn spared_by(layout: Layout) -> Option<usize> {
    match layout {
        Layout::Single | Layout::Mirror | Layout::RoundRobin => None,
        Layout::Stripe { .. } => Some(0),
        Layout::Raid5 { .. } => Some(1),
    }
}

/// Puts the layout of `added`, or of the main disk group, over its members.
pub(super) fn layout_over(
    superblock: &Superblock,
    added: Option<&DiskGroup>,
    set: Arc<MemberSet>,
) -> Result<Arc<dyn Composite>, SuperblockError> {
    let geometry = &superblock.geometry;
    let layout = added.map_or(superblock.layout, |group| group.layout);
    let number = added.map_or(geometry.main, |group| group.number);
    let is_reshaped = superblock.geometry.is_reshaped(number);
    let width = added.map_or(superblock.slots.len(), |group| group.slots.len());
    let width = width - usize::from(is_reshaped);
    let not = |what| SuperblockError::NotImplemented { what };
    let stripe = layout.stripe(width);
    let bytes = match (added, stripe) {
        (None, _) => geometry.device_bytes,
        (Some(group), None) => group.member_bytes,
        (Some(group), Some(shape)) => geometry.striped_bytes(
            group.member_bytes,
            geometry.group_layout().offset_in(group),
            shape,
        ),
    };
    let groups_offset = match added {
        None => geometry.groups_offset,
        // The journal is a fixed region.
        Some(group) if group.has_journal => group.member_bytes,
        Some(group) => geometry.group_layout().offset_in(group),
    };
    let mut info = info_of(&set.view(), bytes);
    // With too many members absent, writes would be lost (R7), so the group is read-only. A member
    // without segments does not count.
    let coming = superblock.coming_slot().and_then(|(_, slot)| set.own_of(slot));
    let is_away = |(own, slot): (usize, &MemberSlot)| {
        Some(own) != coming && slot.state != MemberState::Gone && slot.writable().is_none()
    };
    let away = set.view().iter().enumerate().filter(|slot| is_away(*slot)).count();
    let is_short = spared_by(layout).is_some_and(|spared| away > spared);
    info.is_read_only |= is_short && !planted!(LackingPoolWritten);
    match (layout, stripe) {
        (Layout::Mirror, _) if geometry.fragment_bytes() != to_u64(PAGE_BYTES) => {
            Err(not("a mirror of fragments smaller than 4 KiB"))
        }
        // A single device has no other copy, and otherwise behaves as a mirror.
        (Layout::Single | Layout::Mirror | Layout::RoundRobin, _) => {
            Ok(Arc::new(Mirror::new(info, set, groups_offset)))
        }
        (Layout::Stripe { .. } | Layout::Raid5 { .. }, Some(shape)) => {
            let stripes = match added {
                Some(group) => Some(
                    geometry
                        .group_layout()
                        .added_stripes(shape, geometry.group_layout().offset_in(group)),
                ),
                None => geometry.stripes(),
            };
            let stripes = stripes.ok_or_else(|| not("a layout without its stripes"))?;
            // If the set was open before, its own layout is more recent.
            if let (None, Some(lay)) =
                (set.lay(), superblock.geometry.lay_of(number).filter(StripeMapping::is_reshaped))
            {
                set.set_lay(lay);
            }
            Ok(Arc::new(Striped::new(info, set, stripes)))
        }
        (Layout::Stripe { .. } | Layout::Raid5 { .. }, None) => {
            Err(not("a layout without its stripes"))
        }
    }
}

fn slots_of(
    superblock: &mut Superblock,
    judged: &MemberAssessment,
    devices: &[SharedDevice],
) -> Vec<MemberSlot> {
    let mut slots = Vec::with_capacity(superblock.members.len());
    for (member, slot) in superblock.members.iter_mut().zip(&judged.slots) {
        let device = match slot {
            // A stale device is kept, but neither read nor written before it returns (MJ3).
            members::MemberSlotState::Current(at)
            | members::MemberSlotState::Joining(at)
            | members::MemberSlotState::Stale(at)
            | members::MemberSlotState::Older(at) => devices.get(*at),
            members::MemberSlotState::Absent | members::MemberSlotState::Free => None,
        };
        // Gone if the addition of its disk group was undone.
        let device = device.filter(|_| !member.is_gone());
        if let Some(device) = device.filter(|device| device.info().name.starts_with('/')) {
            member.set_path(device.info().name.as_bytes());
        }
        let mut at = MemberSlot::new(device.map(Arc::clone), member.state);
        at.missed = member.missed;
        if let (members::MemberSlotState::Older(_), Some(device)) = (slot, device) {
            tracing::warn!(
                device = device.info().name,
                "its label is older than one that all members had: an older copy is in its place, \
                 or it has lost writes; it is not read, and gets all that the pool holds"
            );
            // The labels mark it missing before the first write (MJ7).
            (at.state, at.missed) = (MemberState::Missing, None);
        }
        slots.push(at);
    }
    slots
}

fn spares_of(
    superblock: &mut Superblock,
    judged: &MemberAssessment,
    devices: &[SharedDevice],
) -> Vec<([u8; 16], SharedDevice)> {
    let mut found = Vec::new();
    for (spare, at) in superblock.spares.iter_mut().zip(&judged.spares) {
        let Some(device) = at.and_then(|at| devices.get(at)) else { continue };
        if device.info().name.starts_with('/') {
            spare.set_path(device.info().name.as_bytes());
        }
        found.push((spare.id, Arc::clone(device)));
    }
    found
}

fn info_name(slots: &[MemberSlot]) -> String {
    let in_use = slots.iter().filter(|slot| !slot.is_away());
    let names = in_use.filter_map(|slot| Some(slot.device.as_ref()?.info().name.as_str()));
    names.collect::<Vec<&str>>().join(", ")
}

/// Combines the members: the largest sectors, and the features that all of them have.
fn info_of(slots: &[MemberSlot], size_bytes: u64) -> DeviceInfo {
    let in_use = slots.iter().filter(|slot| !slot.is_away());
    let infos: Vec<&DeviceInfo> =
        in_use.filter_map(|slot| Some(slot.device.as_ref()?.info())).collect();
    DeviceInfo {
        name: info_name(slots),
        size_bytes,
        sector_bytes: infos.iter().map(|info| info.sector_bytes).max().unwrap_or(512),
        is_read_only: infos.iter().any(|info| info.is_read_only),
        has_write_through: infos.iter().all(|info| info.has_write_through),
        is_sparse: infos.iter().all(|info| info.is_sparse),
        transport: infos.first().map_or("none", |info| info.transport),
    }
}
