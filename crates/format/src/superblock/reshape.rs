//! Reshape of a disk group in the superblock: decoding, and its steps.

use super::{Superblock, SuperblockDisk, SuperblockError};
use crate::disk_group::DiskGroup;
use crate::geometry::{Geometry, SUPERBLOCK_AREA_BYTES};
use crate::members::{Layout, Member};
use crate::reshape::{EvacuatingGroups, Reshape, ReshapeDirection, ReshapeDisk, StripeMapping};
use crate::slots::Slots;
use crate::stripes::StripeShape;

/// Decodes the reshape in progress, or the groups to empty before one.
pub(super) fn reshape_of(
    disk: &SuperblockDisk,
) -> Result<(Option<Reshape>, Option<EvacuatingGroups>), SuperblockError> {
    let bad = SuperblockError::BadField { field: "reshape" };
    let towards = |towards| Reshape::from_disk(&disk.reshape, towards).map(Some).ok_or(bad.clone());
    match disk.reshaping {
        0 => Ok((None, None)),
        1 => Ok((towards(ReshapeDirection::Wide)?, None)),
        2 => Ok((None, Some(EvacuatingGroups::from_disk(&disk.reshape).ok_or(bad)?))),
        3 => Ok((towards(ReshapeDirection::Narrow)?, None)),
        _ => Err(bad),
    }
}

pub(super) fn reshape_to_disk(geometry: &Geometry) -> (u8, ReshapeDisk) {
    match (geometry.reshape, geometry.last_groups) {
        (Some(reshape), _) => {
            let towards = match reshape.towards {
                ReshapeDirection::Wide => 1,
                ReshapeDirection::Narrow => 3,
            };
            (towards, reshape.to_disk())
        }
        (None, Some(last)) => (2, last.to_disk()),
        (None, None) => (0, ReshapeDisk::default()),
    }
}

/// Returns the number of members without narrow segments: 1 in a disk group under reshape, else 0.
pub(super) fn narrower(reshape: Option<&Reshape>, number: u8) -> usize {
    usize::from(reshape.is_some_and(|reshape| reshape.disk_group == number))
}

/// Checks the reshape, and names the field at fault.
pub(super) fn verify_reshape(
    geometry: &Geometry,
    ((layout, slots), added): ((Layout, &Slots), &[DiskGroup]),
) -> Result<(), &'static str> {
    let disk_group = match (&geometry.reshape, &geometry.last_groups) {
        (Some(reshape), _) => reshape.disk_group,
        (None, Some(last)) => last.disk_group,
        (None, None) => return Ok(()),
    };
    let group = added.iter().find(|group| group.number == disk_group);
    let (layout, slots) = match group {
        Some(group) => (group.layout, &group.slots),
        None if disk_group == geometry.main => (layout, slots),
        None => return Err("reshape"),
    };
    let can_lack = |member: u8| {
        layout.spreads()
            && slots.len().checked_sub(1).is_some_and(|narrow| layout.widths().contains(&narrow))
            && usize::from(member) < slots.len()
    };
    let is_one = |reshape: &Reshape| {
        let segments = geometry.segments_in(disk_group);
        let is_kept_behind = |at: u64| reshape.moved < at && at < segments;
        can_lack(reshape.member)
            && reshape.moved <= segments
            && geometry.lay_of(disk_group).is_some_and(|lay| lay.gains())
            && reshape.kept.is_none_or(|kept| is_kept_behind(kept.at))
    };
    let are_some = |last: &EvacuatingGroups| {
        let numbers = geometry.group_layout().numbers_of(disk_group);
        can_lack(last.member) && numbers.start < last.first && last.first <= numbers.end
    };
    let is_right = geometry.reshape.as_ref().is_none_or(is_one)
        && geometry.last_groups.as_ref().is_none_or(are_some);
    if is_right { Ok(()) } else { Err("reshape") }
}

impl Geometry {
    /// Whether a reshape of the disk group is in progress.
    #[must_use]
    pub fn is_reshaped(&self, disk_group: u8) -> bool {
        self.reshape.is_some_and(|reshape| reshape.disk_group == disk_group)
    }

    /// Whether allocation group `number` is being emptied.
    #[must_use]
    pub fn leaves(&self, number: u32) -> bool {
        let is_last = |last: EvacuatingGroups| {
            number >= last.first
                && self.group_layout().numbers_of(last.disk_group).contains(&number)
        };
        self.group_layout().range_of(number).is_some_and(|range| range.is_leaving)
            || self.last_groups.is_some_and(is_last)
    }

    /// Returns the end of the allocation groups that are not being emptied.
    #[must_use]
    pub fn staying_in(&self, disk_group: u8) -> u32 {
        let end = self.group_layout().numbers_of(disk_group).end;
        let last = self.last_groups.filter(|last| last.disk_group == disk_group);
        last.map_or(end, |last| last.first.min(end))
    }

    /// Returns the end of the allocation groups that fit with one member less, if any do.
    #[must_use]
    pub fn staying_without_one(&self, disk_group: u8, member_bytes: u64) -> Option<u32> {
        let range = self.added.iter().find(|range| range.disk_group == disk_group);
        let (shape, ends) = match range {
            Some(range) => (range.stripe?, range.offset + 2 * SUPERBLOCK_AREA_BYTES),
            None => (self.main_stripe?, self.groups_offset + 2 * SUPERBLOCK_AREA_BYTES),
        };
        let narrow = shape.narrower();
        let rows = member_bytes.saturating_sub(ends) >> shape.unit_shift;
        let mut room = rows / narrow.segment_rows(self.segment_bytes());
        let numbers = self.group_layout().numbers_of(disk_group);
        let mut end = numbers.start;
        for number in numbers.clone() {
            let Some(left) = room.checked_sub(self.segments_of(number).into()) else { break };
            (room, end) = (left, number + 1);
        }
        (end > numbers.start).then_some(end)
    }

    /// Returns the stripe mapping of a disk group, if it is striped.
    #[must_use]
    pub fn lay_of(&self, disk_group: u8) -> Option<StripeMapping> {
        let range = self.added.iter().find(|range| range.disk_group == disk_group);
        let narrow = match range {
            Some(range) => self.group_layout().added_stripes(range.stripe?, range.offset),
            None if disk_group == self.main => self.stripes()?,
            None => return None,
        };
        let reshape = self.reshape.filter(|reshape| reshape.disk_group == disk_group);
        Some(reshape.map_or_else(
            || StripeMapping::from(narrow),
            |reshape| StripeMapping::of(narrow, &reshape),
        ))
    }

    /// Returns the segments of a disk group.
    #[must_use]
    pub fn segments_in(&self, disk_group: u8) -> u64 {
        let own = self.added.iter().filter(|range| range.disk_group == disk_group);
        let added: u64 = own
            .flat_map(|range| range.numbers())
            .map(|group| self.segments_of(group))
            .map(u64::from)
            .sum();
        if disk_group != self.main {
            return added;
        }
        self.group_layout().main_numbers().map(|group| u64::from(self.segments_of(group))).sum()
    }
}

impl Superblock {
    /// Returns the disk group under reshape, and the slot of its added or leaving member. `None` if
    /// that member has segments.
    #[must_use]
    pub fn coming_slot(&self) -> Option<(u8, usize)> {
        let reshape = self.geometry.reshape.filter(|it| it.moved == 0 && it.kept.is_none())?;
        let group = self.added.iter().find(|group| group.number == reshape.disk_group);
        let slots = group.map_or(&self.slots, |group| &group.slots);
        let slot = slots.iter().nth(usize::from(reshape.member))?;
        Some((reshape.disk_group, slot))
    }

    /// Adds `member`, still empty, to a raid5 or stripe. Returns its slot.
    pub fn begin_reshape(&mut self, number: u8, member: Member) -> usize {
        let layout = self.added.iter().find(|group| group.number == number);
        let layout = layout.map_or(self.layout, |group| group.layout);
        let slot = self.attach_as(number, layout, member);
        let group = self.added.iter().find(|group| group.number == number);
        let slots = group.map_or(&self.slots, |group| &group.slots);
        let last = u8::try_from(slots.len().saturating_sub(1)).unwrap_or(u8::MAX);
        let (kept, towards) = (None, ReshapeDirection::Wide);
        let reshape = Reshape { disk_group: number, member: last, moved: 0, kept, towards };
        self.geometry.reshape = Some(reshape);
        slot
    }

    /// Ends a reshape when all segments are wide, and uses less of each member.
    ///
    /// # Errors
    ///
    /// See [`Superblock::place_added`].
    pub fn end_reshape(&mut self) -> Result<(), SuperblockError> {
        let Some(reshape) = self.geometry.reshape else { return Ok(()) };
        let number = reshape.disk_group;
        let Some(lay) = self.geometry.lay_of(number) else { return Ok(()) };
        self.geometry.reshape = None;
        let (wide, segment_bytes) = (lay.wide.shape, self.geometry.segment_bytes());
        let bytes = self.geometry.segments_in(number).saturating_mul(segment_bytes);
        let rows = wide.rows_of_bytes(bytes, segment_bytes);
        self.use_rows(number, wide, (rows, bytes));
        self.place_added()
    }

    /// Sets the length of a disk group, and its rows of each member.
    fn use_rows(&mut self, number: u8, shape: StripeShape, (rows, bytes): (u64, u64)) {
        match self.added.iter_mut().find(|group| group.number == number) {
            Some(group) => {
                let ends =
                    self.geometry.group_layout().offset_in(group) + 2 * SUPERBLOCK_AREA_BYTES;
                group.member_bytes = ends + (rows << shape.unit_shift);
            }
            None => self.geometry.reshape_main(shape, bytes),
        }
    }

    /// Begins a removal from a raid5 or stripe: groups from `first` on are to be emptied.
    pub fn begin_giving_up(&mut self, slot: usize, first: u32) {
        let Some((disk_group, _, own)) = self.group_of_slot(slot) else { return };
        let Some(member) = own.iter().position(|at| at == slot) else { return };
        let member = u8::try_from(member).unwrap_or(u8::MAX);
        self.geometry.last_groups = Some(EvacuatingGroups { disk_group, member, first });
    }

    /// Drops the emptied groups, and begins the narrowing of the others.
    ///
    /// # Errors
    ///
    /// See [`Superblock::place_added`].
    pub fn begin_narrowing(&mut self) -> Result<(), SuperblockError> {
        let Some(last) = self.geometry.last_groups.take() else { return Ok(()) };
        let (number, segment_bytes) = (last.disk_group, self.geometry.segment_bytes());
        let Some(lay) = self.geometry.lay_of(number) else { return Ok(()) };
        let staying = self.geometry.group_layout().numbers_of(number).start..last.first;
        let moved = staying.map(|group| u64::from(self.geometry.segments_of(group))).sum();
        let shape = lay.wide.shape.narrower();
        let bytes = moved * segment_bytes;
        if number == self.geometry.main {
            self.geometry.group_count = last.first - self.geometry.main_first;
        }
        let (member, kept, towards) = (last.member, None, ReshapeDirection::Narrow);
        let reshape = Reshape { disk_group: number, member, moved, kept, towards };
        self.geometry.reshape = Some(reshape);
        self.use_rows(number, shape, (shape.rows_of_bytes(bytes, segment_bytes), bytes));
        self.place_added()
    }

    /// Ends a reshape with all segments narrow, and removes the empty member. Returns its slot.
    pub fn end_narrowing(&mut self) -> Option<usize> {
        let (number, slot) = self.coming_slot()?;
        let layout = self.group_of_slot(slot)?.1;
        self.geometry.reshape = None;
        self.relayout(number, layout, |slots| slots.remove(slot));
        self.free_slot(slot);
        Some(slot)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk_group::{DiskGroupRoles, DiskGroupState};
    use crate::geometry::{AdditionalDiskGroups, GeometryOptions};
    use crate::superblock::tests::sample;

    const MEMBER_BYTES: u64 = 24 << 20;

    /// Returns a label with two raid5 disk groups of `width`.
    fn label(width: u8) -> Superblock {
        let layout = Layout::Raid5 { unit_shift: 14 };
        let options = GeometryOptions {
            device_bytes: MEMBER_BYTES,
            fragment_bytes: 4096,
            segment_bytes: None,
            group_bytes: Some(8 << 20),
            journal_bytes: Some(1 << 20),
        };
        let shape = layout.stripe(usize::from(width)).expect("a raid5 lies in stripes");
        let beside = AdditionalDiskGroups { stripe: None, bytes: 1 << 30 };
        let geometry = Geometry::plan_striped_beside(&options, shape, &beside).expect("it fits");
        let mut superblock = Superblock { geometry, layout, ..sample() };
        let count = usize::from(width);
        superblock.members =
            (1..=2 * width).map(|id| Member::new([id; 16], MEMBER_BYTES)).collect();
        superblock.slots = (0..count).collect();
        let slots: Slots = (count..2 * count).collect();
        let plan = superblock.geometry.group_layout().plan_added(
            1,
            (layout, DiskGroupRoles::DATA),
            slots,
            MEMBER_BYTES,
        );
        let state = DiskGroupState::Online;
        superblock.added = vec![DiskGroup { state, ..plan.expect("there is room") }];
        superblock.place_added().expect("as it was planned");
        superblock
    }

    fn decoded(superblock: &Superblock) -> Superblock {
        let found = Superblock::decode(&superblock.encode(0), 0).expect("it is one");
        assert_eq!(&found, superblock);
        found
    }

    /// Goal: a removal leaves a plain disk group that fits the other members, and every label on
    /// the way decodes.
    #[test]
    fn a_raid5_can_have_a_member_less() {
        for (width, number, member) in [(4, 0, 3), (4, 1, 0), (5, 0, 0), (6, 1, 4), (7, 0, 3)] {
            let what = format!("{width} {number} {member}");
            let mut superblock = label(width);
            let slot = usize::from(number) * usize::from(width) + member;
            let before = superblock.geometry.clone();
            let all = before.group_layout().numbers_of(number);
            let staying = before.staying_without_one(number, superblock.member_bytes(slot));
            let staying = staying.expect("there is room for one");
            assert!(staying > all.start && staying < all.end, "{what}: {staying}");

            superblock.begin_giving_up(slot, staying);
            let superblock = &mut decoded(&superblock);
            assert!(!superblock.geometry.leaves(staying - 1), "{what}");
            assert!((staying..all.end).all(|group| superblock.geometry.leaves(group)), "{what}");
            assert_eq!(superblock.geometry.staying_in(number), staying, "{what}");
            assert_eq!(superblock.geometry.group_layout().numbers_of(number), all, "{what}");
            let other = superblock.geometry.group_layout().numbers_of(1 - number);
            assert!(!other.into_iter().any(|group| superblock.geometry.leaves(group)), "{what}");

            superblock.begin_narrowing().expect("there is room");
            let superblock = &mut decoded(superblock);
            let geometry = &superblock.geometry;
            assert_eq!(geometry.group_layout().numbers_of(number), all.start..staying, "{what}");
            for group in all.start..staying {
                assert_eq!(geometry.fragments_of(group), before.fragments_of(group), "{what}");
                assert_eq!(geometry.group_offset(group), before.group_offset(group), "{what}");
            }
            let reshape = geometry.reshape.expect("it is reshaped");
            assert_eq!(reshape.moved, geometry.segments_in(number), "{what}");
            let lay = geometry.lay_of(number).expect("it lies in stripes");
            assert!(lay.is_reshaped() && lay.gains(), "{what}");
            assert_eq!(lay.wide.shape.members, width, "{what}");
            let used = superblock.member_bytes(slot);
            assert!(used <= MEMBER_BYTES, "{what}: {used}");

            let reshape = Reshape { moved: 0, ..reshape };
            superblock.geometry.reshape = Some(reshape);
            let superblock = &mut decoded(superblock);
            assert_eq!(superblock.end_narrowing(), Some(slot), "{what}");
            if slot > 0 {
                let superblock = decoded(superblock);
                assert_eq!(superblock.group_of_slot(slot), None, "{what}");
                assert!(superblock.geometry.reshape.is_none(), "{what}");
            }
        }
    }

    /// Goal: an invalid set of groups to empty is refused.
    #[test]
    fn what_cannot_be_given_up_is_refused() {
        let superblock = label(4);
        let all = superblock.geometry.group_layout().numbers_of(0);
        let refused_of = |superblock: &Superblock, last: EvacuatingGroups, what: &str| {
            let geometry = Geometry { last_groups: Some(last), ..superblock.geometry.clone() };
            let first = (superblock.layout, &superblock.slots);
            let verified = verify_reshape(&geometry, (first, &superblock.added));
            assert_eq!(verified, Err("reshape"), "{what}");
        };
        let refused = |last, what| refused_of(&superblock, last, what);
        let last = EvacuatingGroups { disk_group: 0, member: 1, first: all.end };
        refused(EvacuatingGroups { first: 0, ..last }, "all of them");
        refused(EvacuatingGroups { first: all.end + 1, ..last }, "what is not there");
        refused(EvacuatingGroups { member: 4, ..last }, "a member that is not there");
        refused(EvacuatingGroups { disk_group: 2, ..last }, "another disk group");
        refused_of(&label(3), EvacuatingGroups { first: 1, ..last }, "a raid5 of two");
    }
}
