//! A disk group is added to an open pool.
//!
//! # Crashes
//!
//! Three updates of the labels, each durable before the next begins:
//!
//! 1. The labels of all members that the pool has say *adding*: members and disk group are in the
//!    table, and no allocation group is theirs (DG3). The new members have no label yet.
//! 2. What an earlier pool may have left where descriptors will lie is overwritten, and the new
//!    members get the same label.
//! 3. The labels of all say *online*. Only then does anybody see the groups.
//!
//! Whatever can fail is done before the third: the table that the labels will have is made first of
//! all, and between the second and the third whoever opened the pool looks at what it must know of
//! the new groups ([`Changing::add_group`]). Where that fails, or a new device does, also in the
//! third, the labels of the members that the pool had take the disk group out again, durably, and
//! then those of the new devices are blanked, as far as these do as they are told. So they can be
//! added again, to this pool or another. A cut between leaves a device with a label that nobody
//! lists: it is of no pool, and whoever adds it again says that it may be overwritten. Were they
//! blanked first, a cut could leave a pool that says *adding*, which an open mends as well; but one
//! of the old members that does not do as it is told would leave the pool read-only with new
//! devices that have no label.
//!
//! An open that finds *adding* takes the disk group out again: nothing lies there. It finds it even
//! where no new member is there. Where one label says *online* already, all new members have one
//! that says *adding* at least, with an epoch that is in the history: the pool has the disk group.
//! So a pool has all of a disk group or none of it. The old members are told first, so that no new
//! member has a newer epoch than all of them: else its label, old in all else, could be believed
//! later.

use std::sync::Arc;

use format::disk_group::{DiskGroup, DiskGroupState, Roles};
use format::geometry::{Geometry, POOL_BYTES_MIN};
use format::members::{LAYOUT_SLOTS_MAX, Layout, MEMBERS_MAX, Member, MemberState};
use format::page::PAGE_BYTES;
use format::slots::Slots;
use format::superblock::{DISK_GROUPS_MAX, Superblock, SuperblockError};
use runtime::planted::{self, Planted};
use runtime::sync::MutexGuard;

use super::attaching::AttachError;
use super::composite::Composite;
use super::groups::{Groups, Part};
use super::journal_apart::{check_sectors, plan_journal};
use super::lanes::{Lane, named, not_a_lane};
use super::open::{layout_over, needed_of, parts_over};
use super::set::{Change, MemberSet, take_table};
use super::slot::Slot;
use super::spares::blank_label;
use super::{EDITIONS_MAX, Edition, Volume};
use crate::convert::{to_u64, to_usize};
use crate::device::{
    AlignedBuffer, DeviceError, Operation, Purpose, SharedBytes, SharedDevice, Ticket,
};

/// How often disk groups change until one that was added is gone: it leaves, and is taken out.
const CHANGES_TO_LEAVE: usize = 2;
/// All that may be there at an open can go.
const _: () = assert!(DISK_GROUPS_MAX * CHANGES_TO_LEAVE < EDITIONS_MAX);

/// Descriptors that are overwritten at one time.
pub(super) const WIPED_AT_ONCE: usize = 64;

/// What is to be added.
#[derive(Clone, Debug)]
pub struct NewGroup {
    /// How it lies on its devices.
    pub layout: Layout,
    /// Its devices, with the identity that each gets.
    pub devices: Vec<(SharedDevice, [u8; 16])>,
    /// What may lie there: the journal alone, or anything. With metadata it has room for the fixed
    /// regions.
    pub roles: Roles,
}

/// Why a disk group cannot be added.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AddGroupError {
    /// Remove one first.
    #[error("a pool has at most {DISK_GROUPS_MAX} disk groups: remove one first")]
    TooMany,
    /// Remove some first.
    #[error("a pool has at most {MEMBERS_MAX} devices: remove some first")]
    TooManyMembers,
    /// Give another number of devices.
    #[error("a {kind} of {found} devices: it has {least} to {most}")]
    Width {
        /// Which layout.
        kind: &'static str,
        /// How many were given.
        found: usize,
        /// How many it has at least.
        least: usize,
        /// How many it has at most.
        most: usize,
    },
    /// Copy the files to a new pool.
    #[error(
        "the pool has fragments of {bytes} bytes, and a disk group can be added only where they \
         have 4096: copy the files to a new pool (holdfast send)"
    )]
    Fragment {
        /// What the pool has.
        bytes: u64,
    },
    /// Give a larger one.
    #[error(
        "{device}: {found_bytes} bytes are too few for an allocation group of this pool \
         ({group_bytes} bytes): give a larger device"
    )]
    TooSmall {
        /// The smallest.
        device: String,
        /// Its bytes.
        found_bytes: u64,
        /// Those of a whole group.
        group_bytes: u64,
    },
    /// Remove that first.
    #[error("disk group {number} has the journal already: remove it first (holdfast group remove)")]
    Journal {
        /// Which one.
        number: u8,
    },
    /// Make it a single or a mirror.
    #[error("the journal cannot lie on a {kind}: give it a single or a mirror")]
    JournalLayout {
        /// What it was to lie on.
        kind: &'static str,
    },
    /// Make it something else.
    #[error("metadata cannot lie on a round-robin, where nothing is twice: give it a mirror")]
    MetadataOnRoundRobin,
    /// Give another device.
    #[error(
        "{device}: its sectors have {found_bytes} bytes, and the log of this pool is written in \
         sectors of {most_bytes}: give a device with smaller sectors"
    )]
    JournalSectors {
        /// Its name.
        device: String,
        /// Of the device.
        found_bytes: u32,
        /// Of the pool.
        most_bytes: u32,
    },
    /// Nothing was changed.
    #[error("{0}; the journal is where it was")]
    JournalNotMoved(DeviceError),
    /// Nothing was changed.
    #[error("{0}; the metadata is where it was")]
    MainNotMoved(DeviceError),
    /// Give a larger device.
    #[error(
        "{device}: {found_bytes} bytes, and a device for the journal of this pool has \
         {needed_bytes}: give a larger one"
    )]
    JournalTooSmall {
        /// The smallest.
        device: String,
        /// Its bytes.
        found_bytes: u64,
        /// What each needs.
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
        /// Its name.
        device: String,
        /// Of the device.
        bytes: u32,
    },
    /// Close the pool and open it again.
    #[error(
        "the disk groups of this pool have changed {EDITIONS_MAX} times since it was opened: \
         unmount it and mount it again"
    )]
    Often,
    /// The table would be none: a bug, or malice.
    #[error(transparent)]
    Superblock(#[from] SuperblockError),
    /// What a device said. Nothing was added.
    #[error("{0}; nothing was added")]
    NewDevice(DeviceError),
    /// What a device said on which the pool lies: it must stop writing.
    #[error(transparent)]
    Device(#[from] DeviceError),
}

/// Whoever has it changes the disk groups, and nobody else does.
#[derive(Debug)]
pub struct Changing<'v> {
    volume: &'v Volume,
    _held: MutexGuard<'v, ()>,
}

impl Changing<'_> {
    pub(super) fn volume(&self) -> &Volume {
        self.volume
    }

    /// Says in the labels that a disk group leaves, durably: an open goes on with that.
    ///
    /// # Errors
    ///
    /// See [`AddGroupError`]; only after [`AddGroupError::Device`] must the pool stop writing.
    pub fn begin_leaving(&self, disk_group: u8) -> Result<(), AddGroupError> {
        self.volume.say_leaving(disk_group)
    }

    /// Makes `device` a further member of the disk group that has the member in slot `beside`: see
    /// [`Volume::begin_attach`]. `superblock`, the current label, becomes what the labels say.
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
        self.volume.lay_over(superblock).map_err(|_| AttachError::Often)?;
        let slot = self.volume.begin_attach(beside, device, id)?;
        self.volume.take_label(superblock);
        Ok(slot)
    }

    /// Adds a disk group to an open pool; `superblock`, the current label, becomes what the labels
    /// say. Before they say that it is there `look` is asked, with the geometry that the pool has
    /// then: if it fails nothing is added. Returns the number of the disk group. See the module's
    /// header.
    ///
    /// # Errors
    ///
    /// That of `look`, and see [`AddGroupError`]; only after [`AddGroupError::Device`] must the
    /// pool stop writing.
    pub fn add_group<E: From<AddGroupError>>(
        &self,
        superblock: &mut Superblock,
        new: &NewGroup,
        look: impl FnOnce(&Geometry) -> Result<(), E>,
    ) -> Result<u8, E> {
        let plan = |superblock: &Superblock| Ok((Volume::plan_group(superblock, new)?, None));
        self.add_planned(superblock, new, plan, |addition| look(addition.geometry()))
    }

    /// Adds what is planned: a disk group, for data or the journal, or the device of one as a
    /// member of a round-robin. `look` is asked, or does what else is needed, when the new members
    /// have their labels.
    pub(super) fn add_planned<E: From<AddGroupError>>(
        &self,
        superblock: &mut Superblock,
        new: &NewGroup,
        plan: impl FnOnce(&Superblock) -> Result<(DiskGroup, Option<Lane>), E>,
        look: impl FnOnce(&Addition<'_>) -> Result<(), E>,
    ) -> Result<u8, E> {
        let old_parts = self.volume.parts_now(superblock);
        let planned = plan(superblock)?;
        let addition = self.volume.begin_adding(superblock, new, old_parts, planned)?;
        let prepared = addition.prepare().map_err(AddGroupError::NewDevice).map_err(E::from);
        let looked = prepared.and_then(|()| look(&addition));
        if let Err(error) = looked.and_then(|()| Ok(addition.say_online()?)) {
            addition.give_up(superblock)?;
            return Err(error);
        }
        Ok(self.volume.end_adding(addition, superblock))
    }
}

/// A disk group that is being added.
pub(super) struct Addition<'n> {
    new: &'n NewGroup,
    /// The edition of the volume that has it.
    edition: usize,
    set: Arc<MemberSet>,
    plan: DiskGroup,
    /// What its device becomes, if it is to be one of another disk group.
    lane: Option<Lane>,
    old_parts: Vec<Part>,
    new_parts: Vec<Part>,
    /// The label when it is there.
    coming: Superblock,
}

impl Addition<'_> {
    /// Returns the geometry that the pool has when it is there.
    pub(super) fn geometry(&self) -> &Geometry {
        &self.coming.geometry
    }

    pub(super) fn new_parts(&self) -> &[Part] {
        &self.new_parts
    }

    /// Overwrites what may lie where descriptors will, and writes the labels of the new members.
    fn prepare(&self) -> Result<(), DeviceError> {
        let Addition { plan, new_parts: parts, .. } = self;
        let geometry = &self.coming.geometry;
        let stripe = plan.layout.stripe(plan.slots.len());
        let on = (geometry.offset_in(plan), plan.member_bytes);
        let range = geometry.range_on((plan.number, plan.first_group), on, stripe);
        let range = range.filter(|_| !plan.has_journal);
        let group_bytes = u64::from(geometry.group_fragments) << geometry.fragment_shift;
        let count = range.map_or(0, |range| range.count);
        let offsets = (0..u64::from(count)).map(|group| on.0 + group * group_bytes);
        let mut places = parts.iter().flat_map(|part| offsets.clone().map(move |at| (part, at)));
        let wipe = |(part, offset): (&Part, u64)| {
            let data = vec![SharedBytes::from(AlignedBuffer::zeroed(PAGE_BYTES))];
            part.composite.submit(Purpose::Home, Operation::Write { offset, data })
        };
        loop {
            let tickets: Vec<Ticket> = places.by_ref().take(WIPED_AT_ONCE).map(wipe).collect();
            if tickets.is_empty() {
                break;
            }
            tickets.into_iter().try_for_each(|ticket| ticket.wait().map(drop))?;
        }
        parts.iter().try_for_each(|part| part.composite.flush(Purpose::Home))?;
        let Some(label) = self.set.label() else { return Ok(()) };
        if planted::is(Planted::AddedBeforeAdding) {
            return Ok(());
        }
        parts.iter().try_for_each(|part| part.composite.members().write_own_labels(&label))
    }

    /// Says in the labels of all members that the disk group is there, durably.
    fn say_online(&self) -> Result<(), AddGroupError> {
        let Addition { new, set, plan, new_parts, .. } = self;
        new_parts.iter().for_each(|part| part.composite.members().join_roster());
        let (mut placed, mut written) = (Ok(()), Ok(()));
        let said = set.change(|slots, label| {
            if self.lane.is_some() && !planted::is(Planted::LaneOfOlderLabel) {
                // CRASH: from now on its label is held against those of the other members of the
                // round-robin, which somebody may have written since it got one.
                let own = new_parts.iter().map(|part| part.composite.members());
                written = own.into_iter().try_for_each(|own| own.write_own_labels(label));
                if written.is_err() {
                    return Change::Nothing;
                }
            }
            note_paths(label, slots);
            if label.added.iter().all(|group| group.number != plan.number) {
                add_to(label, new, plan);
            }
            placed = go_online(label, plan.number, self.lane);
            if placed.is_ok() { Change::States } else { Change::Nothing }
        });
        // Whoever gives up writes the labels of the others once more: if one of these has failed it
        // says so then.
        said.and(written).map_err(AddGroupError::NewDevice)?;
        Ok(placed?)
    }

    /// Takes the disk group out of the labels again, durably, and then the labels off its devices.
    fn give_up(self, superblock: &mut Superblock) -> Result<(), AddGroupError> {
        if !planted::is(Planted::AddedLeftBehind) {
            self.new_parts.iter().for_each(|part| part.composite.members().leave_roster());
        }
        self.set.change(|_, label| {
            if self.lane.is_some() {
                not_a_lane(label, &self.plan);
            }
            label.take_out(self.plan.number);
            Change::States
        })?;
        if let Some(label) = self.set.label() {
            superblock.sequence = label.sequence;
            take_table(superblock, &label);
        }
        // CRASH: no label lists them any more; what is left on them is believed by nobody.
        for (device, _) in &self.new.devices {
            if let Err(error) = blank_label(device) {
                tracing::warn!("{error}; the device is of no pool, and may still have a label");
            }
        }
        Ok(())
    }
}

impl Volume {
    /// Says what adding `new` would make of the pool whose label is `superblock`.
    ///
    /// # Errors
    ///
    /// See [`AddGroupError`]. Nothing was written.
    pub fn plan_group(superblock: &Superblock, new: &NewGroup) -> Result<DiskGroup, AddGroupError> {
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
        // What can be the main one can have the log.
        let takes_log = check_sectors(superblock, infos().cloned());
        let has_sectors = takes_log.is_ok();
        if new.roles.metadata || new.roles.journal {
            takes_log?;
        }
        if new.roles == Roles::JOURNAL {
            return plan_journal(superblock, new.layout, (number, slots), smallest);
        }
        let group_bytes = u64::from(geometry.group_fragments) << geometry.fragment_shift;
        let too_small = || AddGroupError::TooSmall {
            device: smallest.name.clone(),
            found_bytes: smallest.size_bytes,
            group_bytes,
        };
        let roles = match has_sectors {
            true => geometry.with_room(new.roles, new.layout, smallest.size_bytes),
            false => new.roles,
        };
        let on = (geometry.offset_for(roles), smallest.size_bytes);
        let fits = geometry.range_on((number, 0), on, stripe).is_some();
        if !fits || smallest.size_bytes < POOL_BYTES_MIN {
            return Err(too_small());
        }
        let kind = (new.layout, roles);
        let plan = geometry.plan_added(number, kind, slots, smallest.size_bytes);
        plan.ok_or(AddGroupError::TableFull)
    }

    /// Returns the disk groups as parts of a space; the table of `superblock` becomes what the
    /// labels say.
    pub(super) fn parts_now(&self, superblock: &mut Superblock) -> Vec<Part> {
        let parts = self.parts_of(superblock);
        let label = parts.first().and_then(|first| first.composite.members().label());
        if let Some(label) = label {
            superblock.sequence = superblock.sequence.max(label.sequence);
            take_table(superblock, &label);
        }
        parts
    }

    /// Says in the labels of the members that there are that a disk group is being added, durably.
    fn begin_adding<'n>(
        &self,
        superblock: &mut Superblock,
        new: &'n NewGroup,
        old_parts: Vec<Part>,
        (plan, lane): (DiskGroup, Option<Lane>),
    ) -> Result<Addition<'n>, AddGroupError> {
        let Some(first) = old_parts.first() else { return Err(AddGroupError::TableFull) };
        let set = Arc::clone(first.composite.members());
        // It leaves some day, too.
        let edition = self.next_edition(changes_to_come(superblock) + CHANGES_TO_LEAVE)?;
        let new_parts = parts_of_new(&set, superblock, new, &plan)?;
        let mut coming = superblock.clone();
        add_to(&mut coming, new, &plan);
        go_online(&mut coming, plan.number, lane)?;
        if !planted::is(Planted::AddedBeforeAdding) {
            set.change(|slots, label| {
                note_paths(label, slots);
                add_to(label, new, &plan);
                Change::States
            })?;
        }
        Ok(Addition { new, edition, set, plan, lane, old_parts, new_parts, coming })
    }

    /// Shows a disk group that the labels say is there.
    fn end_adding(&self, addition: Addition<'_>, superblock: &mut Superblock) -> u8 {
        let Addition { edition, set, plan, old_parts: mut parts, new_parts, .. } = addition;
        if let Some(label) = set.label() {
            superblock.sequence = label.sequence;
            take_table(superblock, &label);
        }
        parts.extend(new_parts);
        self.set_parts(edition, named(parts, superblock), superblock);
        plan.number
    }

    /// Returns the number of the next edition, if `kept` more are left behind it.
    pub(super) fn next_edition(&self, kept: usize) -> Result<usize, AddGroupError> {
        let number = self.editions.current.load(std::sync::atomic::Ordering::Acquire) + 1;
        if number + kept < EDITIONS_MAX { Ok(number) } else { Err(AddGroupError::Often) }
    }

    /// Waits for whoever changes the disk groups, and lets nobody else begin until the answer is
    /// dropped. LOCK: above that of the allocator, for an addition holds it while it writes.
    #[must_use]
    pub fn changing(&self) -> Changing<'_> {
        Changing { volume: self, _held: self.editions.changing.lock() }
    }

    /// See [`Changing::begin_leaving`].
    fn say_leaving(&self, disk_group: u8) -> Result<(), AddGroupError> {
        // What is kept for the others an addition has seen to.
        let number = self.next_edition(CHANGES_TO_LEAVE - 1)?;
        let Some(set) = self.members() else { return Ok(()) };
        let mut placed = Ok(());
        set.change(|_, label| {
            for group in label.added.iter_mut().filter(|group| group.number == disk_group) {
                group.state = DiskGroupState::Leaving;
            }
            placed = label.place_added();
            Change::States
        })?;
        placed?;
        if let Some(label) = set.label() {
            self.set_parts(number, self.now().parts.clone(), &label);
        }
        Ok(())
    }

    /// Takes a disk group out in which nothing is in use: the labels of all that remain say so,
    /// durably, and then those of its own members are blanked.
    ///
    /// # Errors
    ///
    /// See [`AddGroupError`]; after [`AddGroupError::Device`], what a member said that remains, the
    /// pool must stop writing.
    pub fn take_group_out(&self, disk_group: u8) -> Result<(), AddGroupError> {
        self.take_group_out_with(&self.changing(), disk_group)
    }

    /// The same for who changes the disk groups already.
    pub(super) fn take_group_out_with(
        &self,
        _changing: &Changing<'_>,
        disk_group: u8,
    ) -> Result<(), AddGroupError> {
        let Some(set) = self.members() else { return Ok(()) };
        let main = self.geometry().main;
        let of = |part: &&Part| part.disk_group == disk_group && disk_group != main;
        let leaving: Vec<Part> = self.now().parts.iter().filter(of).cloned().collect();
        if leaving.is_empty() {
            return Ok(());
        }
        let number = self.next_edition(0)?;
        leaving.iter().for_each(|part| part.composite.members().leave_roster());
        set.change(|_, label| {
            label.take_out(disk_group);
            Change::States
        })?;
        let mut parts = self.now().parts.clone();
        parts.retain(|part| part.disk_group != disk_group);
        if let Some(label) = set.label() {
            self.set_parts(number, parts, &label);
        }
        // CRASH: no label lists them any more; what is left on them is believed by nobody.
        let asked = |part: &&Part| !part.composite.members().is_lost();
        let (asked, lost): (Vec<&Part>, Vec<&Part>) = leaving.iter().partition(asked);
        lost.iter().for_each(|part| drop(part.composite.members().let_go_of_all()));
        let devices = asked.iter().flat_map(|part| part.composite.members().let_go_of_all());
        for device in devices {
            if let Err(error) = blank_label(&device) {
                tracing::warn!("{error}; the device is of no pool any more, and has its label");
            }
        }
        Ok(())
    }

    /// Returns the disk groups as parts of a space; the first of a pool that had one device becomes
    /// one.
    pub(super) fn parts_of(&self, superblock: &Superblock) -> Vec<Part> {
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
            let slots = vec![Slot::new(Some(device), MemberState::Online)];
            let label = Some((superblock.clone(), superblock.sequence));
            let needed = needed_of(Layout::Single, 1);
            let slots = (superblock.slots.clone(), slots);
            let set = MemberSet::new(slots, label, needed, &superblock.geometry);
            if let Some(lone) = lone {
                set.note_before(lone.before());
            }
            layout_over(superblock, None, set).ok()
        });
        let part = |composite| Part { disk_group: superblock.geometry.main, lane: None, composite };
        composite.into_iter().map(part).collect()
    }

    /// What is still asked of the one device that the pool lay on goes from now on to the one of
    /// `parts` that has it, which has allocation group 0.
    fn hand_over(&self, parts: &[Part], geometry: &Geometry) {
        if let Some(lone) = self.editions.lone.get() {
            let number = geometry.disk_group_of(0);
            let own = parts.iter().find(|part| Some(part.disk_group) == number);
            let layout =
                |part: &Part| -> SharedDevice { Arc::<dyn Composite>::clone(&part.composite) };
            lone.hand_over(own.map(layout));
        }
    }

    /// Lays a layout over the one device of a pool, to which others can come then.
    fn lay_over(&self, superblock: &Superblock) -> Result<(), AddGroupError> {
        if self.composite().is_some() || self.below().is_some() {
            return Ok(());
        }
        let number = self.next_edition(changes_to_come(superblock))?;
        let parts = self.parts_of(superblock);
        let Some(first) = parts.first().cloned() else { return Ok(()) };
        self.hand_over(&parts, self.geometry());
        let (composite, geometry) = (Some(Arc::clone(&first.composite)), self.geometry().clone());
        let device: SharedDevice = first.composite;
        self.set_edition(number, Edition { device, composite, below: None, parts, geometry });
        Ok(())
    }

    /// The pool lies on `parts` from now on, as `superblock` says.
    pub(super) fn set_parts(&self, number: usize, parts: Vec<Part>, superblock: &Superblock) {
        let geometry = superblock.geometry.clone();
        let Some((first, added)) = parts.split_first() else { return };
        self.hand_over(&parts, &geometry);
        let groups = Arc::new(Groups::new(first.clone(), added, &geometry));
        let composite: Arc<dyn Composite> = Arc::<Groups>::clone(&groups);
        let device: SharedDevice = groups;
        let (composite, below) = (Some(composite), None);
        self.set_edition(number, Edition { device, composite, below, parts, geometry });
    }
}

/// Times that a disk group changes which is reshaped until it lies as any other: as what it has
/// become, and as long as it can be.
const CHANGES_TO_END_RESHAPE: usize = 2;

/// Returns how many times disk groups will change until all that were added are gone, and what is
/// reshaped lies as any other.
pub(super) fn changes_to_come(superblock: &Superblock) -> usize {
    let of = |group: &DiskGroup| match group.state {
        DiskGroupState::Online => CHANGES_TO_LEAVE,
        DiskGroupState::Adding | DiskGroupState::Leaving => CHANGES_TO_LEAVE - 1,
    };
    let geometry = &superblock.geometry;
    let to_end = match (geometry.reshape, geometry.last_groups) {
        (Some(_), _) => CHANGES_TO_END_RESHAPE,
        (None, Some(_)) => CHANGES_TO_END_RESHAPE + 1,
        (None, None) => 0,
    };
    superblock.added.iter().map(of).sum::<usize>() + to_end
}

/// Returns the lowest slots that nobody is in.
fn free_slots(members: &[Member], width: usize) -> Slots {
    let is_free = |slot: &usize| members.get(*slot).is_none_or(Member::is_gone);
    (0..).filter(is_free).take(width).collect()
}

/// Notes where the members that are there were opened.
pub(super) fn note_paths(label: &mut Superblock, slots: &[Slot]) {
    for (member, slot) in label.members.iter_mut().zip(slots) {
        let name = slot.device.as_ref().map(|device| device.info().name.as_bytes());
        if let Some(name) = name.filter(|name| name.starts_with(b"/")) {
            member.set_path(name);
        }
    }
}

/// Adds members and disk group to the table of a label.
fn add_to(label: &mut Superblock, new: &NewGroup, plan: &DiskGroup) {
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
    new: &NewGroup,
    plan: &DiskGroup,
) -> Result<Vec<Part>, AddGroupError> {
    debug_assert!(new.devices.len() <= LAYOUT_SLOTS_MAX);
    let slot = |(device, _): &(SharedDevice, [u8; 16])| {
        Slot::new(Some(Arc::clone(device)), MemberState::Online)
    };
    let slots: Vec<Slot> = new.devices.iter().map(slot).collect();
    Ok(parts_over(first, superblock, plan, slots)?)
}

/// Says in a label that a disk group is there, and where its groups are; or that its device is one
/// of another disk group.
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
