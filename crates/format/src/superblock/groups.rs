//! The disk groups of a superblock: decoding and changes.

use super::reshape::narrower;
use super::{DISK_GROUPS_MAX, DiskGroupDisk, Superblock, SuperblockDisk, SuperblockError};

use crate::disk_group::{DiskGroup, DiskGroupState, GroupRange, may_have_journal};
use crate::geometry::Geometry;
use crate::ids::SEQUENCE_MAX;
use crate::lanes::{Lanes, lanes_of};
use crate::layout::{Layout, LayoutDisk, layout_of};
use crate::members::Member;
use crate::reshape::Reshape;
use crate::slots::Slots;

/// Bits of the roles of a disk group.
pub(super) const ROLES_DATA: u8 = 1;
const ROLES_METADATA: u8 = 2;
const ROLES_JOURNAL: u8 = 4;

/// Returns the first use of the format that this software lacks, members excepted.
pub(super) fn not_implemented(disk: &SuperblockDisk) -> Option<&'static str> {
    let main = main_of(disk);
    let known = ROLES_DATA | ROLES_METADATA | ROLES_JOURNAL;
    let has_known_roles = |(number, group): (usize, &DiskGroupDisk)| {
        let roles = group.roles;
        let is_main = number == usize::from(main);
        roles & !known == 0 && (is_main || roles & ROLES_JOURNAL == 0 || roles == ROLES_JOURNAL)
    };
    let of_main = disk.disk_groups.get(usize::from(main)).map_or(0, |group| group.roles);
    let checks = [
        (of_main & ROLES_METADATA != 0, "a main disk group without metadata"),
        (
            disk.disk_groups.iter().enumerate().all(has_known_roles),
            "the journal beside data or metadata that is not where the fixed regions are",
        ),
        (disk.consistency == 0, "another way to commit than by a journal"),
    ];
    checks.iter().find(|(holds, _)| !holds).map(|&(_, what)| what)
}

pub(super) fn main_of(disk: &SuperblockDisk) -> u8 {
    disk.disk_groups[0].main
}

fn added_up(roles: [(bool, u8); 3]) -> u8 {
    roles.into_iter().filter(|(has, _)| *has).map(|(_, role)| role).sum()
}

pub(super) fn roles_of_main(geometry: &Geometry) -> u8 {
    let has_journal = geometry.journal_group.is_none();
    added_up([
        (geometry.main_has_data, ROLES_DATA),
        (true, ROLES_METADATA),
        (has_journal, ROLES_JOURNAL),
    ])
}

pub(super) fn roles_of(group: &DiskGroup) -> u8 {
    added_up([
        (group.has_data, ROLES_DATA),
        (group.has_metadata, ROLES_METADATA),
        (group.has_journal, ROLES_JOURNAL),
    ])
}

/// Decodes the added disk groups.
pub(super) fn added_of(disk: &SuperblockDisk) -> Result<Vec<DiskGroup>, SuperblockError> {
    let bad = SuperblockError::BadField { field: "disk_groups" };
    let mut added = Vec::new();
    for (number, found) in (0..).zip(&disk.disk_groups) {
        if found.roles == 0 || number == main_of(disk) {
            continue;
        }
        let layout = disk.layouts.get(usize::from(found.layout)).filter(|_| found.layout == number);
        let own = layout.ok_or_else(|| bad.clone())?;
        let (layout, slots) = layout_of(own)?;
        let lanes = lanes_of(own, (layout, slots.len()))?;
        let state = DiskGroupState::of_number(found.state).ok_or_else(|| bad.clone())?;
        let (first_group, member_bytes) = (found.first_group.get(), found.member_bytes.get());
        let has = |role: u8| found.roles & role != 0;
        added.push(DiskGroup {
            number,
            layout,
            state,
            has_journal: has(ROLES_JOURNAL),
            has_data: has(ROLES_DATA),
            has_metadata: has(ROLES_METADATA),
            slots,
            first_group,
            member_bytes,
            lanes,
        });
    }
    Ok(added)
}

/// Decodes layout and slots of the main disk group.
pub(super) fn main_layout_of(disk: &SuperblockDisk) -> Result<(Layout, Slots), SuperblockError> {
    let layout: Option<&LayoutDisk> = disk.layouts.get(usize::from(main_of(disk)));
    let (layout, slots) =
        layout_of(layout.ok_or(SuperblockError::BadField { field: "disk_groups" })?)?;
    if layout == Layout::RoundRobin {
        return Err(SuperblockError::NotImplemented { what: "metadata on a round-robin" });
    }
    Ok((layout, slots))
}

/// Checks that each member is in one disk group (DG2).
pub(super) fn has_own_members(superblock: &Superblock) -> bool {
    let mut owners = vec![0; superblock.members.len()];
    let slots = superblock.added.iter().map(|group| group.slots.clone());
    for slot in slots.flatten().chain(superblock.slots.iter()) {
        match owners.get_mut(slot) {
            Some(owner) => *owner += 1,
            None => return false,
        }
    }
    let members = superblock.members.iter().zip(owners);
    members.into_iter().all(|(member, owners)| owners == usize::from(!member.is_gone()))
}

/// Returns the ranges of the disk groups, except those being added (DG3).
pub(super) fn ranges_of(
    geometry: &Geometry,
    added: &[DiskGroup],
    reshape: Option<&Reshape>,
) -> Result<Vec<GroupRange>, SuperblockError> {
    let mut ranges = Vec::new();
    let has_range =
        |group: &&DiskGroup| group.state != DiskGroupState::Adding && !group.has_journal;
    for group in added.iter().filter(has_range) {
        let members = group.slots.len() - narrower(reshape, group.number);
        let stripe = group.layout.stripe(members);
        if stripe.is_some() && !geometry.can_have_stripes() {
            return Err(SuperblockError::BadField { field: "fragment_shift" });
        }
        let own = geometry.group_layout().ranges_of(group, members);
        let own = own.ok_or(SuperblockError::BadField { field: "disk_groups" })?;
        let is_leaving = group.state == DiskGroupState::Leaving;
        ranges.extend(own.into_iter().map(|range| GroupRange { is_leaving, ..range }));
    }
    Ok(ranges)
}

/// Returns the online disk group with the journal alone (DG4).
pub(super) fn journal_group_of(
    geometry: &Geometry,
    added: &[DiskGroup],
) -> Result<Option<u8>, SuperblockError> {
    let mut own = added.iter().filter(|group| group.has_journal);
    let Some(group) = own.next() else { return Ok(None) };
    let is_large_enough = group.member_bytes >= geometry.group_layout().journal_member_bytes();
    if own.next().is_some() || !may_have_journal(group.layout) || !is_large_enough {
        return Err(SuperblockError::BadField { field: "disk_groups" });
    }
    Ok((group.state == DiskGroupState::Online).then_some(group.number))
}

/// Margin of counters for an open: more than a hundred years of updates.
const RISES_LEFT_MIN: u64 = 1 << 40;

impl Superblock {
    /// Returns the first counter that is too near its maximum for an open. Only a forged label has
    /// one.
    #[must_use]
    pub fn worn(&self) -> Option<&'static str> {
        let end = SEQUENCE_MAX - RISES_LEFT_MIN;
        let fields = [
            (self.sequence >= end, "sequence"),
            (self.membership().number >= end, "memberships"),
            (self.mount_count >= end, "mount_count"),
            (self.writer_term >= u32::MAX - 1, "writer_term"),
        ];
        fields.into_iter().find(|(is_worn, _)| *is_worn).map(|(_, field)| field)
    }

    /// Recomputes the ranges after a change of the disk groups.
    ///
    /// # Errors
    ///
    /// [`SuperblockError`] if they are invalid; nothing is changed.
    pub fn place_added(&mut self) -> Result<(), SuperblockError> {
        let mut geometry = self.geometry.clone();
        geometry.added = ranges_of(&geometry, &self.added, geometry.reshape.as_ref())?;
        geometry.journal_group = journal_group_of(&geometry, &self.added)?;
        geometry.verify().map_err(|field| SuperblockError::BadField { field })?;
        self.geometry = geometry;
        Ok(())
    }

    /// Makes disk group `number` the main one, without moving any allocation group.
    ///
    /// # Errors
    ///
    /// [`SuperblockError`] if it is unsuitable; nothing is changed.
    pub fn make_main(&mut self, number: u8) -> Result<(), SuperblockError> {
        let bad = || SuperblockError::BadField { field: "disk_groups" };
        let mut made = self.clone();
        let now = &self.geometry;
        let at = made.added.iter().position(|group| group.number == number);
        let coming = made.added.remove(at.ok_or_else(bad)?);
        let can = coming.has_metadata
            && coming.layout != Layout::RoundRobin
            && coming.state == DiskGroupState::Online;
        if !can || now.reshape.is_some() || now.last_groups.is_some() {
            return Err(bad());
        }
        let ranges = now.group_layout().ranges_of(&coming, coming.slots.len()).ok_or_else(bad)?;
        let [range] = ranges.as_slice() else { return Err(bad()) };
        made.added.push(DiskGroup {
            number: now.main,
            layout: self.layout,
            state: DiskGroupState::Online,
            has_journal: false,
            has_data: now.main_has_data,
            has_metadata: true,
            slots: self.slots.clone(),
            first_group: now.main_first,
            member_bytes: now.member_bytes(),
            lanes: Lanes::of_new(self.layout, self.slots.len()),
        });
        made.added.sort_by_key(|group| group.number);
        let geometry = &mut made.geometry;
        (geometry.main, geometry.main_first) = (number, range.first);
        geometry.group_count = range.count;
        geometry.main_stripe = range.stripe;
        geometry.main_has_data = coming.has_data;
        geometry.device_bytes = range.stripe.map_or(coming.member_bytes, |shape| {
            now.striped_bytes(coming.member_bytes, now.groups_offset, shape)
        });
        (made.layout, made.slots) = (coming.layout, coming.slots);
        made.place_added()?;
        let is_same = |group: u32| {
            made.geometry.fragments_of(group) == now.fragments_of(group)
                && (!now.group_layout().has_group(group)
                    || made.geometry.group_layout().stripe_of(group)
                        == now.group_layout().stripe_of(group))
        };
        let end =
            now.group_layout().group_numbers().max(made.geometry.group_layout().group_numbers());
        if !(0..end).all(is_same) {
            return Err(bad());
        }
        *self = made;
        Ok(())
    }

    /// Removes disk group `number` and its members.
    ///
    /// # Panics
    ///
    /// If it is the main one.
    pub fn take_out(&mut self, number: u8) {
        assert_ne!(number, self.geometry.main, "the main disk group stays");
        let out = self.added.extract_if(.., |group| group.number == number);
        let out: Vec<usize> = out.flat_map(|group| group.slots).collect();
        out.into_iter().for_each(|slot| self.free_slot(slot));
        self.geometry.added.retain(|range| range.disk_group != number);
        self.geometry.journal_group.take_if(|journal| *journal == number);
        // A reshape of the disk group ends with it.
        self.geometry.reshape.take_if(|reshape| reshape.disk_group == number);
        self.geometry.last_groups.take_if(|last| last.disk_group == number);
    }

    /// Frees `slot`, and trims the table to end with a member.
    pub(super) fn free_slot(&mut self, slot: usize) {
        if let Some(member) = self.members.get_mut(slot) {
            *member = Member::gone();
        }
        while self.members.last().is_some_and(Member::is_gone) {
            self.members.pop();
        }
    }

    /// Returns number, layout and slots of the disk group with the member in `slot`.
    #[must_use]
    pub fn group_of_slot(&self, slot: usize) -> Option<(u8, Layout, &Slots)> {
        let added = self.added.iter().map(|group| (group.number, group.layout, &group.slots));
        let main = (self.geometry.main, self.layout, &self.slots);
        let mut all = std::iter::once(main).chain(added);
        all.find(|(.., slots)| slots.contains(slot))
    }

    /// Sets the layout of disk group `number`, and changes its slots.
    pub(super) fn relayout(&mut self, number: u8, layout: Layout, change: impl FnOnce(&mut Slots)) {
        let own = self.added.iter_mut().find(|group| group.number == number);
        let (own_layout, slots) = match own {
            Some(group) => (&mut group.layout, &mut group.slots),
            None => (&mut self.layout, &mut self.slots),
        };
        *own_layout = layout;
        change(slots);
    }

    /// Adds a member in the lowest free slot, which makes the disk group a mirror. Returns the
    /// slot.
    pub fn attach(&mut self, number: u8, member: Member) -> usize {
        self.attach_as(number, Layout::Mirror, member)
    }

    /// Adds a member, which makes the disk group a `layout`. Returns the slot.
    pub(super) fn attach_as(&mut self, number: u8, layout: Layout, member: Member) -> usize {
        let free = self.members.iter().position(Member::is_gone);
        let slot = free.unwrap_or(self.members.len());
        match self.members.get_mut(slot) {
            Some(at) => *at = member,
            None => self.members.push(member),
        }
        self.relayout(number, layout, |slots| slots.push(slot));
        slot
    }

    /// Removes a member of a mirror. A mirror of two becomes a single.
    pub fn detach(&mut self, slot: usize) {
        let Some((number, layout, slots)) = self.group_of_slot(slot) else { return };
        let layout = if slots.len() == 2 { Layout::Single } else { layout };
        self.relayout(number, layout, |slots| slots.remove(slot));
        self.free_slot(slot);
    }

    /// Returns the lowest free disk group number, if any.
    #[must_use]
    pub fn free_group_number(&self) -> Option<u8> {
        let taken = |number: &u8| {
            let main = self.geometry.main;
            *number == main || self.added.iter().any(|group| group.number == *number)
        };
        (0..u8::try_from(DISK_GROUPS_MAX).unwrap_or(1)).find(|number| !taken(number))
    }

    /// Splits a member off its round-robin, as disk group `number` in state leaving. A round-robin
    /// of two becomes a single.
    ///
    /// # Errors
    ///
    /// [`SuperblockError`] if the member is in no round-robin.
    pub fn split_off(&mut self, slot: usize, number: u8) -> Result<(), SuperblockError> {
        let bad = SuperblockError::BadField { field: "disk_groups" };
        let of = self.added.iter_mut().find(|group| group.slots.contains(slot));
        let of =
            of.filter(|group| group.layout == Layout::RoundRobin).ok_or_else(|| bad.clone())?;
        let on = (self.geometry.group_layout().offset_in(of), of.member_bytes);
        let count = self.geometry.group_layout().range_on((of.number, of.first_group), on, None);
        let count = count.ok_or_else(|| bad.clone())?.count;
        let base = of.first_group;
        let first_of = |lane: Option<u8>| Geometry::first_of_lane(base, lane?, count);
        let at = of.slots.position(slot).ok_or_else(|| bad.clone())?;
        let first_group = first_of(of.lanes.get(at)).ok_or_else(|| bad.clone())?;
        let left = of.lanes.get(usize::from(at == 0));
        let first_of_left = first_of(left).ok_or(bad)?;
        of.slots.remove(slot);
        of.lanes.remove(at);
        if of.slots.len() == 1 {
            (of.layout, of.first_group) = (Layout::Single, first_of_left);
            of.lanes = Lanes::in_a_row(1);
        }
        let group = DiskGroup {
            has_journal: false,
            has_data: of.has_data,
            has_metadata: of.has_metadata,
            number,
            layout: Layout::Single,
            state: DiskGroupState::Leaving,
            slots: std::iter::once(slot).collect(),
            first_group,
            member_bytes: of.member_bytes,
            lanes: Lanes::in_a_row(1),
        };
        self.added.push(group);
        self.added.sort_by_key(|group| group.number);
        self.place_added()
    }

    /// Moves the member of `number`, a single in state adding, into `into` as range `lane`; `into`
    /// becomes a round-robin.
    ///
    /// # Errors
    ///
    /// [`SuperblockError`] if the result is invalid.
    pub fn join_as_lane(&mut self, number: u8, into: u8, lane: u8) -> Result<(), SuperblockError> {
        let bad = || SuperblockError::BadField { field: "disk_groups" };
        let coming = self.added.iter().position(|group| group.number == number);
        let coming = self.added.remove(coming.ok_or_else(bad)?);
        let into = self.added.iter_mut().find(|group| group.number == into).ok_or_else(bad)?;
        into.layout = Layout::RoundRobin;
        coming.slots.iter().for_each(|slot| into.slots.push(slot));
        into.lanes.push(lane);
        self.place_added()
    }

    /// Returns the bytes used of this label's member.
    #[must_use]
    pub fn own_bytes(&self) -> u64 {
        self.member_bytes(usize::from(self.device_index))
    }

    /// Returns the bytes used of the member in `slot`.
    #[must_use]
    pub fn member_bytes(&self, slot: usize) -> u64 {
        let group = self.added.iter().find(|group| group.slots.contains(slot));
        group.map_or_else(|| self.geometry.member_bytes(), |group| group.member_bytes)
    }
}
