//! Growth of disk groups onto longer members.
//!
//! Groups keep their numbers and places. A short last group is lengthened, and more groups follow
//! it. The limits are the next range of numbers (DG1) and the group table.

use super::{Geometry, LAST_SEGMENTS_MIN, PAGE, SUPERBLOCK_AREA_BYTES};

/// Reason why a disk group leaves a part of its members unused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GrowthLimit {
    /// The next numbers belong to another disk group.
    Range {
        /// Number of the other disk group.
        disk_group: u8,
    },
    /// The group table, or the space of a pool, is full.
    Table,
    /// The members of a round-robin have adjacent ranges.
    Lanes,
}

impl Geometry {
    /// Returns the geometry with the main disk group grown to `member_bytes` of each member, never
    /// smaller, and the reason for using less than all.
    #[must_use]
    pub fn grown(&self, member_bytes: u64) -> (Geometry, Option<GrowthLimit>) {
        let wanted = (member_bytes / PAGE * PAGE).max(self.member_bytes());
        let mut bytes = match self.main_stripe {
            Some(shape) => self.striped_bytes(wanted, self.groups_offset, shape),
            None => wanted,
        };
        let (end, limit) = self.numbers_until(None, self.group_layout().main_numbers().end);
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

    /// Returns the bound on the group numbers of a disk group that ends at `from`, and the reason.
    pub(crate) fn numbers_until(&self, own: Option<u8>, from: u32) -> (u32, GrowthLimit) {
        let others = self.added.iter().filter(|range| Some(range.disk_group) != own);
        let others = others.map(|range| (range.first, range.disk_group));
        let main = own.map(|_| (self.main_first, self.main));
        let next = others.chain(main).filter(|(first, _)| *first >= from).min();
        let end = u32::try_from(self.group_layout().group_numbers_max()).unwrap_or(u32::MAX);
        match next.filter(|(first, _)| *first < end) {
            Some((first, disk_group)) => (first, GrowthLimit::Range { disk_group }),
            None => (end, GrowthLimit::Table),
        }
    }

    /// Returns the bytes of a full group.
    #[must_use]
    pub fn group_bytes(&self) -> u64 {
        u64::from(self.group_fragments) << self.fragment_shift
    }

    /// Returns the number of groups in `bytes`, without a last one too short for its front.
    pub(super) fn groups_in(&self, bytes: u64) -> u64 {
        let segments = bytes / self.segment_bytes().max(1);
        let of_group = u64::from(self.group_fragments / self.segment_fragments.max(1)).max(1);
        segments / of_group + u64::from(segments % of_group >= LAST_SEGMENTS_MIN)
    }

    /// Returns the fragments of all groups.
    #[must_use]
    pub fn fragments_in_all(&self) -> u64 {
        self.group_layout().groups().map(|group| u64::from(self.fragments_of(group))).sum()
    }

    /// Whether a descriptor may have `fragments`: the length of the group, or a shorter one from
    /// before growth.
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
    use crate::disk_group::{ADDED_GROUPS_OFFSET, DiskGroup, DiskGroupRoles, DiskGroupState};
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

    /// Goal: growth keeps places and lengthens only the last group, and two steps equal one.
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

    /// Goal: growth in stripes equals creation at that length.
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

    /// Goal: growth ends at the next disk group or the end of the table.
    #[test]
    fn growth_ends_where_numbers_do() {
        let mut geometry = Geometry::plan(&small(10 * MIB)).expect("it fits");
        let (all, limit) = geometry.grown(1 << 40);
        assert_eq!((all.verify(), limit), (Ok(()), Some(GrowthLimit::Table)));
        assert_eq!(u64::from(all.group_count), geometry.group_layout().group_numbers_max());
        let mut added = Vec::new();
        for number in 1..=2 {
            let slots = Slots::from(usize::from(number)..usize::from(number) + 1);
            let plan = geometry.group_layout().plan_added(
                number,
                (Layout::Single, DiskGroupRoles::DATA),
                slots,
                11 * MIB,
            );
            let plan = DiskGroup { state: DiskGroupState::Online, ..plan.expect("it fits") };
            let range = geometry.group_layout().range_on(
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
            let (used, limit) = geometry.group_layout().grown_added(&added[at], bytes);
            let mut after = geometry.clone();
            let group = &added[at];
            let range = geometry.group_layout().range_on(
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
        assert_eq!(
            u64::from(two.group_layout().group_numbers()),
            geometry.group_layout().group_numbers_max()
        );
        let (some, used, limit) = regrown(&geometry, 1, 20 * MIB + 5);
        assert_eq!((some.verify(), used, limit), (Ok(()), 20 * MIB, None));
        assert_eq!(
            geometry.group_layout().grown_added(&added[1], MIB),
            (added[1].member_bytes, None)
        );
    }

    /// Goal: when a round-robin grows, its ranges do not overlap.
    #[test]
    fn a_round_robin_grows_to_whole_groups_alone() {
        let mut geometry = Geometry::plan(&small(10 * MIB)).expect("it fits");
        let plan = geometry.group_layout().plan_added(
            1,
            (Layout::RoundRobin, DiskGroupRoles::DATA),
            (1..3).into(),
            11 * MIB + MIB / 4,
        );
        let plan = DiskGroup { state: DiskGroupState::Online, ..plan.expect("it fits") };
        let (used, limit) = geometry.group_layout().grown_added(&plan, 64 * MIB);
        assert_eq!(limit, Some(GrowthLimit::Lanes));
        let before = geometry.group_layout().ranges_of(&plan, 2).expect("two");
        let longer = DiskGroup { member_bytes: used, ..plan };
        geometry.added = geometry.group_layout().ranges_of(&longer, 2).expect("two");
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
