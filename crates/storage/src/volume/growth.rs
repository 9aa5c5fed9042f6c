//! Adding a disk group to an open pool, or taking one out.
//!
//! # Crashes
//!
//! An addition takes three label updates, each durable before the next:
//!
//! 1. The old members' labels get the state *adding*: members and disk group are in the table,
//!    without allocation groups (DG3).
//! 2. Zeros are written where the descriptors will be, and the added members get that label.
//! 3. All labels get the state *online*. Only then does the volume use the disk group.
//!
//! Everything that can fail comes before the third update: the label is built first, and the
//! caller's `look` runs after the second ([`LayoutChangeGuard::add_group`]). After any failure, the
//! old labels drop the disk group, durably, and then the added devices are blanked. A crash between
//! the two leaves a device with a label that no table lists: it is of no pool, and adding it again
//! requires the option to overwrite. In the reverse order, a failure of an old member could leave a
//! read-only pool, and added devices without a label.
//!
//! An open that finds *adding* takes the disk group out again, even without its members, since it
//! has no contents. If one label has *online*, every added member has at least a label with
//! *adding*, of an epoch in the history. So a pool has all of a disk group or none of it. The old
//! members are written first: otherwise the label of an added member could have the newest epoch,
//! and be authoritative, though the rest of it is stale.

use super::Membership;
use std::sync::Arc;

use format::disk_group::{DiskGroup, DiskGroupRoles, DiskGroupState};
use format::geometry::{Geometry, POOL_BYTES_MIN};
use format::members::{LAYOUT_SLOTS_MAX, Layout, MEMBERS_MAX, Member, MemberState};
use format::page::PAGE_BYTES;
use format::slots::Slots;
use format::superblock::{DISK_GROUPS_MAX, Superblock, SuperblockError};
use runtime::planted;
use runtime::sync::MutexGuard;

use super::attaching::AttachError;
use super::composite::Composite;
use super::groups::{Groups, PoolPart};
use super::journal_apart::{check_sectors, plan_journal};
use super::lanes::{Lane, named, not_a_lane};
use super::open::{layout_over, needed_of, parts_over};
use super::set::{LabelChange, MemberSet, take_table};
use super::slot::MemberSlot;
use super::spares::blank_label;
use super::{Edition, Volume};
use crate::convert::{to_u64, to_usize};
use crate::device::{
    AlignedBuffer, DeviceError, DeviceOperation, IoPurpose, SharedBytes, SharedDevice, Ticket,
};

pub(super) const WIPED_AT_ONCE: usize = 64;

/// A disk group to add.
#[derive(Clone, Debug)]
pub struct DiskGroupSpec {
    /// Layout over the devices.
    pub layout: Layout,
    /// Devices, each with its identity.
    pub devices: Vec<(SharedDevice, [u8; 16])>,
    /// Roles: the journal alone, or any others. With metadata there is room for the fixed regions.
    pub roles: DiskGroupRoles,
}

/// Why a disk group cannot be added.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AddGroupError {
    /// Remove a disk group first.
    #[error("a pool has at most {DISK_GROUPS_MAX} disk groups: remove one first")]
    TooMany,
    /// Remove devices first.
    #[error("a pool has at most {MEMBERS_MAX} devices: remove some first")]
    TooManyMembers,
    /// Give another number of devices.
    #[error("a {kind} of {found} devices: it has {least} to {most}")]
    Width {
        /// Layout.
        kind: &'static str,
        /// Number of devices given.
        found: usize,
        /// Fewest devices.
        least: usize,
        /// Most devices.
        most: usize,
    },
    /// Copy the files to a new pool.
    #[error(
        "the pool has fragments of {bytes} bytes, and a disk group can be added only where they \
         have 4096: copy the files to a new pool (`holdfast send`)"
    )]
    Fragment {
        /// Fragment bytes of the pool.
        bytes: u64,
    },
    /// Give a larger device.
    #[error(
        "{device}: {found_bytes} bytes are too few for an allocation group of this pool \
         ({group_bytes} bytes): give a larger device"
    )]
    TooSmall {
        /// Smallest device.
        device: String,
        /// Bytes of the device.
        found_bytes: u64,
        /// Bytes of a full group.
        group_bytes: u64,
    },
    /// Remove that disk group first.
    #[error(
        "disk group {number} has the journal already: remove it first (`holdfast group \
         remove POOL {number}`)"
    )]
    Journal {
        /// Disk group with the journal.
        number: u8,
    },
    /// Use a single or a mirror.
    #[error("the journal cannot lie on a {kind}: give it a single or a mirror")]
    JournalLayout {
        /// Layout in the request.
        kind: &'static str,
    },
    /// Use a mirror.
    #[error("metadata cannot lie on a round-robin, where nothing is twice: give it a mirror")]
    MetadataOnRoundRobin,
    /// Give another device.
    #[error(
        "{device}: its sectors have {found_bytes} bytes, and the log of this pool is written in \
         sectors of {most_bytes}: give a device with smaller sectors"
    )]
    JournalSectors {
        /// Device name.
        device: String,
        /// Sector bytes of the device.
        found_bytes: u32,
        /// Sector bytes of the pool.
        most_bytes: u32,
    },
    /// The journal could not be copied. Nothing was changed.
    #[error("{0}; the journal is where it was")]
    JournalNotMoved(DeviceError),
    /// The fixed regions could not be copied. Nothing was changed.
    #[error("{0}; the metadata is where it was")]
    MainNotMoved(DeviceError),
    /// Give a larger device.
    #[error(
        "{device}: {found_bytes} bytes, and a device for the journal of this pool has \
         {needed_bytes}: give a larger one"
    )]
    JournalTooSmall {
        /// Smallest device.
        device: String,
        /// Bytes of the device.
        found_bytes: u64,
        /// Bytes required.
        needed_bytes: u64,
    },
    /// The group table is full.
    #[error("the group table of the pool is full: nothing can be added to it")]
    TableFull,
    /// Give another device.
    #[error(
        "{device}: its sectors have {bytes} bytes, and a pool has pages of {PAGE_BYTES}: give a \
         device with smaller sectors"
    )]
    Sectors {
        /// Device name.
        device: String,
        /// Sector bytes of the device.
        bytes: u32,
    },
    /// The planned label is invalid: a bug, or a forged label.
    #[error(transparent)]
    Superblock(#[from] SuperblockError),
    /// An added device failed. Nothing was added.
    #[error("{0}; nothing was added")]
    NewDevice(DeviceError),
    /// An old member failed: the pool must stop writing.
    #[error(transparent)]
    Device(#[from] DeviceError),
}

/// Exclusive right to change the disk groups.
#[derive(Debug)]
pub struct LayoutChangeGuard<'v> {
    volume: &'v Volume,
    _held: MutexGuard<'v, ()>,
}

impl LayoutChangeGuard<'_> {
    pub(super) fn volume(&self) -> &Volume {
        self.volume
    }

    /// Marks a disk group as leaving, durably. An open resumes the removal.
    ///
    /// # Errors
    ///
    /// See [`AddGroupError`]. Only after [`AddGroupError::Device`] must the pool stop writing.
    pub fn begin_leaving(&self, disk_group: u8) -> Result<(), AddGroupError> {
        self.volume.membership().say_leaving(disk_group)
    }

    /// Attaches `device` to the disk group of the member in slot `beside`: see
    /// [`Membership::begin_attach`](crate::volume::membership::Membership::begin_attach). Sets
    /// `superblock`, the current label, to the written one.
    ///
    /// # Errors
    ///
    /// See [`AttachError`].
    pub fn attach(
        &self,
        superblock: &mut Superblock,
        beside: usize,
        device: SharedDevice,
        id: [u8; 16],
    ) -> Result<usize, AttachError> {
        self.volume.membership().lay_over(superblock);
        let slot = self.volume.membership().begin_attach(beside, device, id)?;
        self.volume.membership().take_label(superblock);
        Ok(slot)
    }

    /// Adds a disk group, and returns its number. `look` gets the geometry with the disk group
    /// before the labels get *online*, and may cancel by an error. Sets `superblock`, the current
    /// label, to the written one.
    ///
    /// # Errors
    ///
    /// The error of `look`, or see [`AddGroupError`]. Only after [`AddGroupError::Device`] must the
    /// pool stop writing.
    pub fn add_group<E: From<AddGroupError>>(
        &self,
        superblock: &mut Superblock,
        new: &DiskGroupSpec,
        look: impl FnOnce(&Geometry) -> Result<(), E>,
    ) -> Result<u8, E> {
        let plan = |superblock: &Superblock| Ok((Membership::plan_group(superblock, new)?, None));
        self.add_planned(superblock, new, plan, |addition| look(addition.geometry()))
    }

    /// Adds a disk group, or a round-robin member. `look` runs when the added members have labels.
    pub(super) fn add_planned<E: From<AddGroupError>>(
        &self,
        superblock: &mut Superblock,
        new: &DiskGroupSpec,
        plan: impl FnOnce(&Superblock) -> Result<(DiskGroup, Option<Lane>), E>,
        look: impl FnOnce(&DiskGroupAddition<'_>) -> Result<(), E>,
    ) -> Result<u8, E> {
        let old_parts = self.volume.membership().parts_now(superblock);
        let planned = plan(superblock)?;
        let addition =
            self.volume.membership().begin_adding(superblock, new, old_parts, planned)?;
        let prepared = addition.prepare().map_err(AddGroupError::NewDevice).map_err(E::from);
        let looked = prepared.and_then(|()| look(&addition));
        if let Err(error) = looked.and_then(|()| Ok(addition.say_online()?)) {
            addition.give_up(superblock)?;
            return Err(error);
        }
        Ok(self.volume.membership().end_adding(addition, superblock))
    }
}

pub(super) struct DiskGroupAddition<'n> {
    new: &'n DiskGroupSpec,
    set: Arc<MemberSet>,
    plan: DiskGroup,
    /// The round-robin that the device joins, if any.
    lane: Option<Lane>,
    old_parts: Vec<PoolPart>,
    new_parts: Vec<PoolPart>,
    coming: Superblock,
}

impl DiskGroupAddition<'_> {
    pub(super) fn geometry(&self) -> &Geometry {
        &self.coming.geometry
    }

    pub(super) fn new_parts(&self) -> &[PoolPart] {
        &self.new_parts
    }

    fn prepare(&self) -> Result<(), DeviceError> {
        let DiskGroupAddition { plan, new_parts: parts, .. } = self;
        let geometry = &self.coming.geometry;
        let stripe = plan.layout.stripe(plan.slots.len());
        let on = (geometry.group_layout().offset_in(plan), plan.member_bytes);
        let range = geometry.group_layout().range_on((plan.number, plan.first_group), on, stripe);
        let range = range.filter(|_| !plan.has_journal);
        let group_bytes = u64::from(geometry.group_fragments) << geometry.fragment_shift;
        let count = range.map_or(0, |range| range.count);
        let offsets = (0..u64::from(count)).map(|group| on.0 + group * group_bytes);
        let mut places = parts.iter().flat_map(|part| offsets.clone().map(move |at| (part, at)));
        let wipe = |(part, offset): (&PoolPart, u64)| {
            let data = vec![SharedBytes::from(AlignedBuffer::zeroed(PAGE_BYTES))];
            part.composite.submit(IoPurpose::Home, DeviceOperation::Write { offset, data })
        };
        loop {
            let tickets: Vec<Ticket> = places.by_ref().take(WIPED_AT_ONCE).map(wipe).collect();
            if tickets.is_empty() {
                break;
            }
            tickets.into_iter().try_for_each(|ticket| ticket.wait().map(drop))?;
        }
        parts.iter().try_for_each(|part| part.composite.flush(IoPurpose::Home))?;
        let Some(label) = self.set.label() else { return Ok(()) };
        parts.iter().try_for_each(|part| part.composite.members().write_own_labels(&label))
    }

    fn say_online(&self) -> Result<(), AddGroupError> {
        let DiskGroupAddition { new, set, plan, new_parts, .. } = self;
        new_parts.iter().for_each(|part| part.composite.members().join_roster());
        let (mut placed, mut written) = (Ok(()), Ok(()));
        let said = set.change(|slots, label| {
            if self.lane.is_some() && !planted!(LaneOfOlderLabel) {
                // CRASH: from this update on an open compares the label with those of the other
                // round-robin members, which may have been written since the label *adding*.
                let own = new_parts.iter().map(|part| part.composite.members());
                written = own.into_iter().try_for_each(|own| own.write_own_labels(label));
                if written.is_err() {
                    return LabelChange::Nothing;
                }
            }
            note_paths(label, slots);
            if label.added.iter().all(|group| group.number != plan.number) {
                add_to(label, new, plan);
            }
            placed = go_online(label, plan.number, self.lane);
            if placed.is_ok() { LabelChange::States } else { LabelChange::Nothing }
        });
        // The caller's `give_up` finds out whether an old member failed.
        said.and(written).map_err(AddGroupError::NewDevice)?;
        Ok(placed?)
    }

    /// Drops the disk group from the labels, durably, and then blanks its devices.
    fn give_up(self, superblock: &mut Superblock) -> Result<(), AddGroupError> {
        self.new_parts.iter().for_each(|part| part.composite.members().leave_roster());
        self.set.change(|_, label| {
            if self.lane.is_some() {
                not_a_lane(label, &self.plan);
            }
            label.take_out(self.plan.number);
            LabelChange::States
        })?;
        if let Some(label) = self.set.label() {
            superblock.sequence = label.sequence;
            take_table(superblock, &label);
        }
        // CRASH: no label lists the devices, so an open does not use a label left on them.
        for (device, _) in &self.new.devices {
            if let Err(error) = blank_label(device) {
                tracing::warn!("{error}; the device is of no pool, and may still have a label");
            }
        }
        Ok(())
    }
}

impl<'a> Membership<'a> {
    /// Plans the addition of `new`.
    ///
    /// # Errors
    ///
    /// See [`AddGroupError`]. Nothing was written.
    pub fn plan_group(
        superblock: &Superblock,
        new: &DiskGroupSpec,
    ) -> Result<DiskGroup, AddGroupError> {
        let (geometry, width) = (&superblock.geometry, new.devices.len());
        let widths = new.layout.widths();
        if !widths.contains(&width) {
            let (least, most) = (*widths.start(), *widths.end());
            return Err(AddGroupError::Width {
                kind: new.layout.word(),
                found: width,
                least,
                most,
            });
        }
        if geometry.fragment_bytes() != to_u64(PAGE_BYTES) {
            return Err(AddGroupError::Fragment { bytes: geometry.fragment_bytes() });
        }
        let stripe = new.layout.stripe(width);
        let infos = || new.devices.iter().map(|(device, _)| device.info());
        if let Some(info) = infos().find(|info| to_usize(info.sector_bytes.into()) > PAGE_BYTES) {
            let (device, bytes) = (info.name.clone(), info.sector_bytes);
            return Err(AddGroupError::Sectors { device, bytes });
        }
        let number = superblock.free_group_number().ok_or(AddGroupError::TooMany)?;
        let slots = free_slots(&superblock.members, width);
        if slots.end().max(superblock.members.len()) + superblock.spares.len() > MEMBERS_MAX {
            return Err(AddGroupError::TooManyMembers);
        }
        let smallest = infos().min_by_key(|info| info.size_bytes);
        let smallest = smallest.ok_or(AddGroupError::TooManyMembers)?;
        if new.roles.metadata && new.layout == Layout::RoundRobin {
            return Err(AddGroupError::MetadataOnRoundRobin);
        }
        // A group that can become the main one must take the log.
        let takes_log = check_sectors(superblock, infos().cloned());
        let has_sectors = takes_log.is_ok();
        if new.roles.metadata || new.roles.journal {
            takes_log?;
        }
        if new.roles == DiskGroupRoles::JOURNAL {
            return plan_journal(superblock, new.layout, (number, slots), smallest);
        }
        let group_bytes = u64::from(geometry.group_fragments) << geometry.fragment_shift;
        let too_small = || AddGroupError::TooSmall {
            device: smallest.name.clone(),
            found_bytes: smallest.size_bytes,
            group_bytes,
        };
        let roles = match has_sectors {
            true => geometry.group_layout().with_room(new.roles, new.layout, smallest.size_bytes),
            false => new.roles,
        };
        let on = (geometry.group_layout().offset_for(roles), smallest.size_bytes);
        let fits = geometry.group_layout().range_on((number, 0), on, stripe).is_some();
        if !fits || smallest.size_bytes < POOL_BYTES_MIN {
            return Err(too_small());
        }
        let kind = (new.layout, roles);
        let plan = geometry.group_layout().plan_added(number, kind, slots, smallest.size_bytes);
        plan.ok_or(AddGroupError::TableFull)
    }

    /// Returns the disk groups as parts, and copies the label's table to `superblock`.
    pub(super) fn parts_now(&self, superblock: &mut Superblock) -> Vec<PoolPart> {
        let parts = self.parts_of(superblock);
        let label = parts.first().and_then(|first| first.composite.members().label());
        if let Some(label) = label {
            superblock.sequence = superblock.sequence.max(label.sequence);
            take_table(superblock, &label);
        }
        parts
    }

    fn begin_adding<'n>(
        &self,
        superblock: &mut Superblock,
        new: &'n DiskGroupSpec,
        old_parts: Vec<PoolPart>,
        (plan, lane): (DiskGroup, Option<Lane>),
    ) -> Result<DiskGroupAddition<'n>, AddGroupError> {
        let Some(first) = old_parts.first() else { return Err(AddGroupError::TableFull) };
        let set = Arc::clone(first.composite.members());
        let new_parts = parts_of_new(&set, superblock, new, &plan)?;
        let mut coming = superblock.clone();
        add_to(&mut coming, new, &plan);
        go_online(&mut coming, plan.number, lane)?;
        set.change(|slots, label| {
            note_paths(label, slots);
            add_to(label, new, &plan);
            LabelChange::States
        })?;
        Ok(DiskGroupAddition { new, set, plan, lane, old_parts, new_parts, coming })
    }

    fn end_adding(&self, addition: DiskGroupAddition<'_>, superblock: &mut Superblock) -> u8 {
        let DiskGroupAddition { set, plan, old_parts: mut parts, new_parts, .. } = addition;
        if let Some(label) = set.label() {
            superblock.sequence = label.sequence;
            take_table(superblock, &label);
        }
        parts.extend(new_parts);
        self.set_parts(named(parts, superblock), superblock);
        plan.number
    }

    /// Waits for the exclusive right to change disk groups. LOCK: taken before the allocator's
    /// lock.
    #[must_use]
    pub fn changing(&self) -> LayoutChangeGuard<'a> {
        LayoutChangeGuard { volume: self.0, _held: self.0.editions.changing.lock() }
    }

    fn say_leaving(&self, disk_group: u8) -> Result<(), AddGroupError> {
        let Some(set) = self.members() else { return Ok(()) };
        let mut placed = Ok(());
        set.change(|_, label| {
            for group in label.added.iter_mut().filter(|group| group.number == disk_group) {
                group.state = DiskGroupState::Leaving;
            }
            placed = label.place_added();
            LabelChange::States
        })?;
        placed?;
        if let Some(label) = set.label() {
            self.set_parts(self.now().parts.clone(), &label);
        }
        Ok(())
    }

    /// Takes out an unused disk group: first the remaining labels drop it, durably, then its own
    /// labels are blanked.
    ///
    /// # Errors
    ///
    /// See [`AddGroupError`]. After [`AddGroupError::Device`] the pool must stop writing.
    pub fn take_group_out(&self, disk_group: u8) -> Result<(), AddGroupError> {
        self.take_group_out_with(&self.changing(), disk_group)
    }

    /// Takes out an unused disk group, with the exclusive right held.
    pub(super) fn take_group_out_with(
        &self,
        _changing: &LayoutChangeGuard<'_>,
        disk_group: u8,
    ) -> Result<(), AddGroupError> {
        let Some(set) = self.members() else { return Ok(()) };
        let main = self.geometry().main;
        let of = |part: &&PoolPart| part.disk_group == disk_group && disk_group != main;
        let leaving: Vec<PoolPart> = self.now().parts.iter().filter(of).cloned().collect();
        if leaving.is_empty() {
            return Ok(());
        }
        leaving.iter().for_each(|part| part.composite.members().leave_roster());
        set.change(|_, label| {
            label.take_out(disk_group);
            LabelChange::States
        })?;
        let mut parts = self.now().parts.clone();
        parts.retain(|part| part.disk_group != disk_group);
        if let Some(label) = set.label() {
            self.set_parts(parts, &label);
        }
        // CRASH: no label lists the devices, so an open does not use a label left on them.
        let asked = |part: &&PoolPart| !part.composite.members().is_lost();
        let (asked, lost): (Vec<&PoolPart>, Vec<&PoolPart>) = leaving.iter().partition(asked);
        lost.iter().for_each(|part| drop(part.composite.members().let_go_of_all()));
        let devices = asked.iter().flat_map(|part| part.composite.members().let_go_of_all());
        for device in devices {
            if let Err(error) = blank_label(&device) {
                tracing::warn!("{error}; the device is of no pool any more, and has its label");
            }
        }
        Ok(())
    }

    /// Returns the disk groups as parts. A single device first gets a layout.
    pub(super) fn parts_of(&self, superblock: &Superblock) -> Vec<PoolPart> {
        let edition = self.now();
        if !edition.parts.is_empty() {
            return edition.parts.clone();
        }
        let composite = edition.composite.clone().or_else(|| {
            let lone = self.editions.lone.get();
            let device = match lone {
                Some(lone) => lone.own()?,
                None => Arc::clone(&edition.device),
            };
            let slots = vec![MemberSlot::new(Some(device), MemberState::Online)];
            let label = Some((superblock.clone(), superblock.sequence));
            let needed = needed_of(Layout::Single, 1);
            let slots = (superblock.slots.clone(), slots);
            let set = MemberSet::new(slots, label, needed, &superblock.geometry);
            if let Some(lone) = lone {
                set.note_before(lone.before());
            }
            layout_over(superblock, None, set).ok()
        });
        let part =
            |composite| PoolPart { disk_group: superblock.geometry.main, lane: None, composite };
        composite.into_iter().map(part).collect()
    }

    /// Redirects late requests for the single device to the part with allocation group 0.
    fn hand_over(&self, parts: &[PoolPart], geometry: &Geometry) {
        if let Some(lone) = self.editions.lone.get() {
            let number = geometry.group_layout().disk_group_of(0);
            let own = parts.iter().find(|part| Some(part.disk_group) == number);
            let layout =
                |part: &PoolPart| -> SharedDevice { Arc::<dyn Composite>::clone(&part.composite) };
            lone.hand_over(own.map(layout));
        }
    }

    /// Puts a layout over a single device, so that others can be attached.
    fn lay_over(&self, superblock: &Superblock) {
        if self.composite().is_some() || self.below().is_some() {
            return;
        }
        let parts = self.parts_of(superblock);
        let Some(first) = parts.first().cloned() else { return };
        self.hand_over(&parts, self.geometry());
        let (composite, geometry) = (Some(Arc::clone(&first.composite)), self.geometry().clone());
        let device: SharedDevice = first.composite;
        self.set_edition(Edition { device, composite, below: None, parts, geometry });
    }

    /// Makes `parts`, with the geometry of `superblock`, the current edition.
    pub(super) fn set_parts(&self, parts: Vec<PoolPart>, superblock: &Superblock) {
        let geometry = superblock.geometry.clone();
        let Some((first, added)) = parts.split_first() else { return };
        self.hand_over(&parts, &geometry);
        let groups = Arc::new(Groups::new(first.clone(), added, &geometry));
        let composite: Arc<dyn Composite> = Arc::<Groups>::clone(&groups);
        let device: SharedDevice = groups;
        let (composite, below) = (Some(composite), None);
        self.set_edition(Edition { device, composite, below, parts, geometry });
    }
}

fn free_slots(members: &[Member], width: usize) -> Slots {
    let is_free = |slot: &usize| members.get(*slot).is_none_or(Member::is_gone);
    (0..).filter(is_free).take(width).collect()
}

/// Stores the current paths of present members in the label.
pub(super) fn note_paths(label: &mut Superblock, slots: &[MemberSlot]) {
    for (member, slot) in label.members.iter_mut().zip(slots) {
        let name = slot.device.as_ref().map(|device| device.info().name.as_bytes());
        if let Some(name) = name.filter(|name| name.starts_with(b"/")) {
            member.set_path(name);
        }
    }
}

fn add_to(label: &mut Superblock, new: &DiskGroupSpec, plan: &DiskGroup) {
    while label.members.len() < plan.slots.end() {
        label.members.push(Member::gone());
    }
    for (slot, (device, id)) in plan.slots.iter().zip(&new.devices) {
        let info = device.info();
        let Some(member) = label.members.get_mut(slot) else { continue };
        *member = Member::new(*id, info.size_bytes);
        if info.name.starts_with('/') {
            member.set_path(info.name.as_bytes());
        }
    }
    label.added.push(plan.clone());
    label.added.sort_by_key(|group| group.number);
}

fn parts_of_new(
    first: &Arc<MemberSet>,
    superblock: &Superblock,
    new: &DiskGroupSpec,
    plan: &DiskGroup,
) -> Result<Vec<PoolPart>, AddGroupError> {
    debug_assert!(new.devices.len() <= LAYOUT_SLOTS_MAX);
    let slot = |(device, _): &(SharedDevice, [u8; 16])| {
        MemberSlot::new(Some(Arc::clone(device)), MemberState::Online)
    };
    let slots: Vec<MemberSlot> = new.devices.iter().map(slot).collect();
    Ok(parts_over(first, superblock, plan, slots)?)
}

/// Puts a disk group online in a label, or joins its device to round-robin `lane`.
fn go_online(
    label: &mut Superblock,
    number: u8,
    lane: Option<Lane>,
) -> Result<(), SuperblockError> {
    if let Some(Lane { into, at }) = lane {
        return label.join_as_lane(number, into, at);
    }
    for group in label.added.iter_mut().filter(|group| group.number == number) {
        group.state = DiskGroupState::Online;
    }
    label.place_added()
}
