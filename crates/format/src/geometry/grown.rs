//! What disk groups can use of members that have become longer.
//!
//! Growth moves nothing. A disk group keeps the allocation groups that it has, with their numbers
//! and their places, the last of them becomes as long as the others if it was shorter, and new ones
//! come behind it. So a disk group grows as far as its range of numbers can: up to the next range
//! (DG1), and to what the group table has room for.

use super::{Geometry, PAGE, SUPERBLOCK_AREA_BYTES};
use crate::disk_group::{DiskGroup, LAST_SEGMENTS_MIN};

/// Why a disk group does not use all of its members.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GrowthLimit {
    /// The numbers behind its allocation groups are those of this disk group.
    Range {
        /// Its number.
        disk_group: u8,
    },
    /// The group table, or the space of a pool, has no room for more allocation groups.
    Table,
    /// Its members have ranges of their own, one behind the other.
    Lanes,
}

impl Geometry {
    /// Returns what the geometry is when the main disk group uses `member_bytes` of each of its
    /// members, or as much of that as there is room for, and why not all. It never uses less than
    /// it does.
    #[must_use]
    pub fn grown(&self, member_bytes: u64) -> (Geometry, Option<GrowthLimit>) {
        let wanted = (member_bytes / PAGE * PAGE).max(self.member_bytes());
        let mut bytes = match self.main_stripe {
            Some(shape) => self.striped_bytes(wanted, self.groups_offset, shape),
            None => wanted,
        };
        let (end, limit) = self.numbers_until(None, self.main_numbers().end);
        let numbers = end.saturating_sub(self.main_first);
        let ceiling = self
            .groups_offset
            .saturating_add(u64::from(numbers).saturating_mul(self.group_bytes()));
        let limit = (bytes > ceiling).then_some(limit);
        if limit.is_some() {
            let ends = self.groups_offset + 2 * SUPERBLOCK_AREA_BYTES;
            let room = ceiling.saturating_sub(ends);
            bytes = ends
                + self.main_stripe.map_or(room / PAGE * PAGE, |shape| {
                    let rows = shape.rows_of_bytes(room, self.segment_bytes());
                    shape.bytes_of_rows(rows, self.segment_bytes())
                });
        }
        let mut grown = self.clone();
        grown.device_bytes = bytes.max(self.device_bytes);
        let groups_bytes = grown.groups_end().saturating_sub(grown.groups_offset);
        let count = self.groups_in(groups_bytes);
        let count = u32::try_from(count).unwrap_or(u32::MAX).min(numbers);
        grown.group_count = count.max(self.group_count);
        (grown, limit)
    }

    /// Returns how much of each member a disk group that was added uses if each has `member_bytes`,
    /// and why not all of that. It never uses less than it does.
    #[must_use]
    pub fn grown_added(&self, group: &DiskGroup, member_bytes: u64) -> (u64, Option<GrowthLimit>) {
        let narrower = usize::from(self.is_reshaped(group.number));
        let stripe = group.layout.stripe(group.slots.len() - narrower);
        let offset = self.offset_in(group);
        let range =
            |bytes| self.range_on((group.number, group.first_group), (offset, bytes), stripe);
        let wanted = member_bytes / PAGE * PAGE;
        let (Some(now), Some(whole)) = (range(group.member_bytes), range(wanted)) else {
            return (group.member_bytes, None);
        };
        let (room, limit) = if group.layout.lanes(group.slots.len()) > 1 {
            (now.count, GrowthLimit::Lanes)
        } else {
            let (end, limit) = self.numbers_until(Some(group.number), now.numbers().end);
            (end.saturating_sub(group.first_group + now.kept_behind()), limit)
        };
        if whole.count <= room {
            return (wanted.max(group.member_bytes), None);
        }
        let bytes = u64::from(room).saturating_mul(self.group_bytes());
        let used = stripe.map_or(bytes, |shape| {
            shape.rows_of_bytes(bytes, self.segment_bytes()) << shape.unit_shift
        });
        let ends = offset + 2 * SUPERBLOCK_AREA_BYTES;
        (used.saturating_add(ends).max(group.member_bytes), Some(limit))
    }

    /// Returns up to which number of an allocation group a disk group whose own end at `from` can
    /// have them, and what is there.
    fn numbers_until(&self, own: Option<u8>, from: u32) -> (u32, GrowthLimit) {
        let others = self.added.iter().filter(|range| Some(range.disk_group) != own);
        let others = others.map(|range| (range.first, range.disk_group));
        let main = own.map(|_| (self.main_first, self.main));
        let next = others.chain(main).filter(|(first, _)| *first >= from).min();
        let end = u32::try_from(self.group_numbers_max()).unwrap_or(u32::MAX);
        match next.filter(|(first, _)| *first < end) {
            Some((first, disk_group)) => (first, GrowthLimit::Range { disk_group }),
            None => (end, GrowthLimit::Table),
        }
    }

    /// Returns the bytes of an allocation group that is as long as it can be.
    #[must_use]
    pub fn group_bytes(&self) -> u64 {
        u64::from(self.group_fragments) << self.fragment_shift
    }

    /// Returns how many allocation groups `bytes` have room for. A last one that is too short for
    /// its own front and a few segments is not made.
    pub(super) fn groups_in(&self, bytes: u64) -> u64 {
        let segments = bytes / self.segment_bytes().max(1);
        let of_group = u64::from(self.group_fragments / self.segment_fragments.max(1)).max(1);
        segments / of_group + u64::from(segments % of_group >= LAST_SEGMENTS_MIN)
    }

    /// Returns how many fragments all allocation groups have.
    #[must_use]
    pub fn fragments_in_all(&self) -> u64 {
        self.groups().map(|group| u64::from(self.fragments_of(group))).sum()
    }

    /// Whether group `number` can have had `fragments` at some time: as many as it has, or fewer
    /// while it was the last of its disk group. Its descriptor may say so until it is used again.
    #[must_use]
    pub fn can_have_had(&self, number: u32, fragments: u32) -> bool {
        let least = u32::try_from(LAST_SEGMENTS_MIN).unwrap_or(u32::MAX);
        let least = least.saturating_mul(self.segment_fragments);
        let now = self.fragments_of(number);
        let is_shorter = fragments.is_multiple_of(self.segment_fragments.max(1))
            && (least..now).contains(&fragments);
        fragments == now || is_shorter
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::options;
    use super::super::{GeometryOptions, POOL_BYTES_MIN};
    use super::*;
    use crate::disk_group::{ADDED_GROUPS_OFFSET, DiskGroupState, Roles};
    use crate::members::Layout;
    use crate::slots::Slots;
    use crate::stripes::StripeShape;

    const MIB: u64 = 1 << 20;

    fn small(device_bytes: u64) -> GeometryOptions {
        GeometryOptions {
            segment_bytes: Some(128 << 10),
            group_bytes: Some(2 << 20),
            journal_bytes: Some(1 << 20),
            ..options(device_bytes, 4096)
        }
    }

    /// Goal: what was there keeps its place and its number, whatever the lengths are; nothing but
    /// the last group becomes longer, and a second growth gives what one would have given.
    #[test]
    fn what_was_there_stays_where_it_was() {
        for before in [POOL_BYTES_MIN, 10 * MIB, 10 * MIB + 12_345, 11 * MIB + 4096] {
            let old = Geometry::plan(&small(before)).expect("it fits");
            for after in (0..40).map(|step| before + step * 700_001) {
                let (grown, limit) = old.grown(after);
                assert_eq!((grown.verify(), limit), (Ok(()), None), "{before} {after}");
                assert_eq!(grown.device_bytes, after / PAGE * PAGE, "{before} {after}");
                let end = |geometry: &Geometry, group| {
                    geometry.group_offset(group)
                        + (u64::from(geometry.fragments_of(group)) << geometry.fragment_shift)
                };
                for group in 0..old.group_count {
                    assert_eq!(old.group_offset(group), grown.group_offset(group));
                    let is_last = group + 1 == old.group_count;
                    let is_same = old.fragments_of(group) == grown.fragments_of(group);
                    assert!(is_same || is_last, "{before} {after} {group}");
                    assert!(grown.can_have_had(group, old.fragments_of(group)));
                }
                let last = end(&grown, grown.group_count - 1);
                assert!(last <= grown.device_bytes - 2 * SUPERBLOCK_AREA_BYTES);
                let rest = grown.device_bytes - 2 * SUPERBLOCK_AREA_BYTES - last;
                assert!(rest < 9 * grown.segment_bytes(), "{before} {after}: {rest} unused");
                let (half, _) = old.grown(before.midpoint(after));
                assert_eq!(half.grown(after).0, grown, "{before} {after}: in two steps");
                assert_eq!(grown.grown(before).0, grown, "it never becomes less");
            }
        }
    }

    /// Goal: in stripes too, and as a pool that is made so long has it.
    #[test]
    fn pools_in_stripes_grow_by_whole_rows() {
        for (members, has_parity) in [(3, true), (5, true), (2, false), (4, false)] {
            let shape = StripeShape { members, unit_shift: 14, has_parity };
            let old = Geometry::plan_striped(&options(40 * MIB, 4096), shape).expect("it fits");
            for after in (0..30).map(|step| 40 * MIB + step * 1_234_567) {
                let (grown, limit) = old.grown(after);
                assert_eq!((grown.verify(), limit), (Ok(()), None), "{members} {after}");
                let used = grown.member_bytes();
                assert!(used <= after && after - used < 2 << 14, "{members} {after} {used}");
                let again = grown.striped_bytes(used, grown.groups_offset, shape);
                assert_eq!(again, grown.device_bytes, "{members} {after}");
                let stripes = (old.stripes(), grown.stripes());
                assert_eq!(stripes.0, stripes.1, "rows stay where they are");
            }
        }
    }

    /// Goal: a disk group grows up to the next one, and to the end of the group table, and says
    /// which of them it was.
    #[test]
    fn growth_ends_where_numbers_do() {
        let mut geometry = Geometry::plan(&small(10 * MIB)).expect("it fits");
        let (all, limit) = geometry.grown(1 << 40);
        assert_eq!((all.verify(), limit), (Ok(()), Some(GrowthLimit::Table)));
        assert_eq!(u64::from(all.group_count), geometry.group_numbers_max());
        let mut added = Vec::new();
        for number in 1..=2 {
            let slots = Slots::from(usize::from(number)..usize::from(number) + 1);
            let plan = geometry.plan_added(number, (Layout::Single, Roles::DATA), slots, 11 * MIB);
            let plan = DiskGroup { state: DiskGroupState::Online, ..plan.expect("it fits") };
            let range = geometry.range_on(
                (number, plan.first_group),
                (ADDED_GROUPS_OFFSET, plan.member_bytes),
                None,
            );
            geometry.added.push(range.expect("it fits"));
            added.push(plan);
        }
        assert_eq!(geometry.verify(), Ok(()));
        let (first, limit) = geometry.grown(1 << 40);
        assert_eq!(limit, Some(GrowthLimit::Range { disk_group: 1 }));
        assert_eq!(first.verify(), Ok(()), "{first:?}");
        assert!(first.group_count <= added[0].first_group);

        let regrown = |geometry: &Geometry, at: usize, bytes| {
            let (used, limit) = geometry.grown_added(&added[at], bytes);
            let mut after = geometry.clone();
            let group = &added[at];
            let range = geometry.range_on(
                (group.number, group.first_group),
                (ADDED_GROUPS_OFFSET, used),
                None,
            );
            after.added[at] = range.expect("it fits");
            (after, used, limit)
        };
        let (one, _, limit) = regrown(&geometry, 0, 1 << 40);
        assert_eq!(limit, Some(GrowthLimit::Range { disk_group: 2 }));
        assert_eq!(one.verify(), Ok(()), "{one:?}");
        let (two, _, limit) = regrown(&geometry, 1, 1 << 40);
        assert_eq!((two.verify(), limit), (Ok(()), Some(GrowthLimit::Table)));
        assert_eq!(u64::from(two.group_numbers()), geometry.group_numbers_max());
        let (some, used, limit) = regrown(&geometry, 1, 20 * MIB + 5);
        assert_eq!((some.verify(), used, limit), (Ok(()), 20 * MIB, None));
        assert_eq!(geometry.grown_added(&added[1], MIB), (added[1].member_bytes, None));
    }

    /// Goal: the ranges of a round-robin's members stay apart: only their last groups become
    /// longer.
    #[test]
    fn a_round_robin_grows_to_whole_groups_alone() {
        let mut geometry = Geometry::plan(&small(10 * MIB)).expect("it fits");
        let plan = geometry.plan_added(
            1,
            (Layout::RoundRobin, Roles::DATA),
            (1..3).into(),
            11 * MIB + MIB / 4,
        );
        let plan = DiskGroup { state: DiskGroupState::Online, ..plan.expect("it fits") };
        let (used, limit) = geometry.grown_added(&plan, 64 * MIB);
        assert_eq!(limit, Some(GrowthLimit::Lanes));
        let before = geometry.ranges_of(&plan, 2).expect("two");
        let longer = DiskGroup { member_bytes: used, ..plan };
        geometry.added = geometry.ranges_of(&longer, 2).expect("two");
        assert_eq!(geometry.verify(), Ok(()));
        for (before, after) in before.iter().zip(&geometry.added) {
            assert_eq!(before.numbers(), after.numbers());
            assert!(before.last_fragments <= after.last_fragments);
            assert_eq!(after.last_fragments, geometry.group_fragments);
        }
    }

    #[test]
    fn what_a_group_can_have_had_is_whole_segments_and_room_for_its_front() {
        let geometry = Geometry::plan(&small(10 * MIB)).expect("it fits");
        let (now, segment) = (geometry.fragments_of(0), geometry.segment_fragments);
        for (fragments, is_so) in [
            (now, true),
            (now - segment, true),
            (8 * segment, true),
            (7 * segment, false),
            (now - 1, false),
            (now + segment, false),
            (0, false),
        ] {
            assert_eq!(geometry.can_have_had(0, fragments), is_so, "{fragments}");
        }
        assert!(!geometry.can_have_had(9999, segment * 8), "there is no such group");
    }
}
