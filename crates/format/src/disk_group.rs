//! Disk groups: the devices of a pool, in groups with one layout each.
//!
//! The main disk group has the fixed regions and new metadata, and may hold data. The fields of the
//! superblock describe it. It is number 0 until another disk group takes its role. Each other disk
//! group holds either only the journal, or data with the front of each of its allocation groups,
//! and older metadata if it was the main one.
//!
//! # Layout
//!
//! Allocation groups are numbered across all disk groups. Group `n` begins at byte `groups_offset +
//! n * group_bytes` of the pool. On members of other disk groups than the main one they begin
//! behind two superblocks, or behind room for the fixed regions (DG5):
//!
//! ```text
//!   pool     | fixed | groups 0 .. a of disk group 0 | (none) | groups b .. c of disk group 1 |
//!   member of disk group 1:        | copy 0 | copy 1 | groups b .. c | copy 2 | copy 3 |
//! ```
//!
//! Each member of a disk group for the journal has the whole journal, at its bytes in the pool. In
//! the main disk group these bytes are then unused:
//!
//! ```text
//!   pool                 | copy 0 | copy 1 | journal | double-write area | ...
//!   member of that group | copy 0 | copy 1 | journal | copy 2 | copy 3 |
//! ```
//!
//! # Invariants
//!
//! - DG1: Ranges do not overlap, and fit the group table. Those of one disk group need not be
//!   adjacent ([`crate::lanes`]).
//! - DG2: Each member is in one disk group, which lists its slot once; no disk group lists a free
//!   slot.
//! - DG3: A disk group in state adding has no range, so it holds no blocks.
//! - DG4: At most one disk group is for the journal. It is a single or a mirror, without allocation
//!   groups, and has the journal as long as it is online.
//! - DG5: A disk group with the role metadata has room for the fixed regions before its allocation
//!   groups, and for the pool's root page behind the front of the first of these. Only the main one
//!   uses that room.

use crate::geometry::GroupLayout;
use std::ops::Range;

pub use crate::geometry::{ADDED_GROUPS_OFFSET, GroupRange};
use crate::geometry::{
    Geometry, GrowthLimit, LAST_SEGMENTS_MIN, POOL_BYTES_MAX, POOL_BYTES_MIN, SUPERBLOCK_AREA_BYTES,
};
use crate::group::GROUPS_PER_TABLE_PAGE;
use crate::ids::Place;
use crate::lanes::Lanes;
use crate::layout::Layout;
use crate::slots::Slots;
use crate::stripes::{ExcludedMembers, StripeShape, Stripes};

const PAGE_BYTES_WIDE: u64 = 4096;
/// Smallest ratio of a member to the fixed regions at which a disk group for data gets room for
/// them.
const ROOM_SHARE: u64 = 64;

/// Whether the layout can hold the journal: each member then has all of it.
#[must_use]
pub fn may_have_journal(layout: Layout) -> bool {
    matches!(layout, Layout::Single | Layout::Mirror)
}

/// State of an added disk group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DiskGroupState {
    /// Takes new data.
    Online,
    /// Being added; an open removes it again.
    Adding,
    /// Being emptied before removal.
    Leaving,
}

impl DiskGroupState {
    /// Returns the word in messages.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            DiskGroupState::Online => "online",
            DiskGroupState::Adding => "adding",
            DiskGroupState::Leaving => "leaving",
        }
    }

    pub(crate) fn number(self) -> u8 {
        match self {
            DiskGroupState::Online => 1,
            DiskGroupState::Adding => 2,
            DiskGroupState::Leaving => 3,
        }
    }

    pub(crate) fn of_number(number: u8) -> Option<DiskGroupState> {
        match number {
            1 => Some(DiskGroupState::Online),
            2 => Some(DiskGroupState::Adding),
            3 => Some(DiskGroupState::Leaving),
            _ => None,
        }
    }
}

/// Permitted contents of a disk group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiskGroupRoles {
    /// Blocks of files.
    pub data: bool,
    /// Metadata and the fixed regions. One such disk group is the main one.
    pub metadata: bool,
    /// The journal, in the main disk group by default.
    pub journal: bool,
}

impl DiskGroupRoles {
    /// Only data.
    pub const DATA: DiskGroupRoles = DiskGroupRoles { data: true, metadata: false, journal: false };
    /// Only the journal.
    pub const JOURNAL: DiskGroupRoles =
        DiskGroupRoles { data: false, metadata: false, journal: true };
    /// No role.
    pub const NONE: DiskGroupRoles =
        DiskGroupRoles { data: false, metadata: false, journal: false };
}

/// An added disk group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiskGroup {
    /// Number in the pool, from 1.
    pub number: u8,
    /// Layout on the members.
    pub layout: Layout,
    /// State.
    pub state: DiskGroupState,
    /// Whether it is for the journal alone (DG4).
    pub has_journal: bool,
    /// Whether it may hold blocks of files.
    pub has_data: bool,
    /// Whether members have room for the fixed regions (DG5).
    pub has_metadata: bool,
    /// Slots of the members (DG2).
    pub slots: Slots,
    /// First allocation group; of a round-robin, first number of its lowest possible range.
    pub first_group: u32,
    /// Bytes used of each member.
    pub member_bytes: u64,
    /// Range of each member of a round-robin.
    pub lanes: Lanes,
}

impl<'a> GroupLayout<'a> {
    /// Returns the range from group `first` that fits on members of `member_bytes`.
    #[must_use]
    pub fn range_on(
        &self,
        (disk_group, first): (u8, u32),
        (offset, member_bytes): (u64, u64),
        stripe: Option<StripeShape>,
    ) -> Option<GroupRange> {
        let room = member_bytes.checked_sub(offset + 2 * SUPERBLOCK_AREA_BYTES)?;
        let room = match stripe {
            Some(shape) => shape.bytes_of_rows(room >> shape.unit_shift, self.segment_bytes()),
            None => room,
        };
        let group_segments = u64::from(self.group_fragments / self.segment_fragments.max(1));
        let segments = room / self.segment_bytes().max(1);
        let (mut count, rest) = (segments / group_segments.max(1), segments % group_segments);
        let mut last = group_segments;
        if rest >= LAST_SEGMENTS_MIN.max(u64::from(self.front_segments_in(stripe)) + 1) {
            count += 1;
            last = rest;
        }
        let last_fragments = u32::try_from(last).ok()?.checked_mul(self.segment_fragments)?;
        let count = u32::try_from(count).ok().filter(|count| *count > 0)?;
        Some(GroupRange {
            disk_group,
            offset,
            first,
            count,
            last_fragments,
            stripe,
            lane: None,
            has_data: true,
            is_leaving: false,
        })
    }

    /// Returns the ranges of `group`, whose segments span `members` members: one for each lane.
    #[must_use]
    pub fn ranges_of(&self, group: &DiskGroup, members: usize) -> Option<Vec<GroupRange>> {
        let stripe = group.layout.stripe(members);
        let on = (self.offset_in(group), group.member_bytes);
        let one = self.range_on((group.number, group.first_group), on, stripe)?;
        let one = GroupRange { has_data: group.has_data, ..one };
        if group.layout.lanes(members) == 1 {
            return Some(vec![one]);
        }
        let of = |(lane, at): (u8, u8)| {
            let first = Geometry::first_of_lane(one.first, at, one.count)?;
            Some(GroupRange { first, lane: Some(lane), ..one })
        };
        (0..).zip(group.lanes.iter()).map(of).collect()
    }

    /// Moves `range` to the lowest gap of group numbers with room, or shortens it to the widest
    /// gap. `None` if the group table is full.
    #[must_use]
    pub fn place_range(&self, range: GroupRange) -> Option<GroupRange> {
        let end = u32::try_from(self.group_numbers_max()).unwrap_or(u32::MAX);
        let others = self.added.iter().map(GroupRange::taken);
        let taken: Vec<Range<u32>> = others.chain([self.taken_by_main()]).collect();
        let mut starts: Vec<u32> = taken.iter().map(|other| other.end).chain([0]).collect();
        starts.sort_unstable();
        let room_from = |start: u32| {
            let inside = taken.iter().any(|other| other.contains(&start));
            let next = taken.iter().map(|other| other.start).filter(|first| *first >= start);
            let room = next.min().unwrap_or(end).min(end).saturating_sub(start);
            let room = room.saturating_sub(GroupRange { first: start, ..range }.kept_behind());
            if inside { 0 } else { room }
        };
        let fits = starts.iter().copied().find(|start| room_from(*start) >= range.count);
        let widest = || starts.iter().copied().max_by_key(|start| room_from(*start));
        let first = fits.or_else(widest)?;
        let room = room_from(first);
        if room == 0 {
            return None;
        }
        let is_whole = room >= range.count;
        let last_fragments = if is_whole { range.last_fragments } else { self.group_fragments };
        Some(GroupRange { first, count: range.count.min(room), last_fragments, ..range })
    }

    /// Returns the bytes used of members grown to `member_bytes`, never less than before, and the
    /// reason for using less than all.
    #[must_use]
    pub fn grown_added(&self, group: &DiskGroup, member_bytes: u64) -> (u64, Option<GrowthLimit>) {
        let narrower = usize::from(self.is_reshaped(group.number));
        let stripe = group.layout.stripe(group.slots.len() - narrower);
        let offset = self.offset_in(group);
        let range =
            |bytes| self.range_on((group.number, group.first_group), (offset, bytes), stripe);
        let wanted = member_bytes / PAGE_BYTES_WIDE * PAGE_BYTES_WIDE;
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

    /// Plans a disk group in state adding, as large as its members and the group table permit.
    #[must_use]
    pub fn plan_added(
        &self,
        number: u8,
        (layout, roles): (Layout, DiskGroupRoles),
        slots: Slots,
        member_bytes: u64,
    ) -> Option<DiskGroup> {
        let stripe = layout.stripe(slots.len());
        let mut member_bytes = member_bytes / PAGE_BYTES_WIDE * PAGE_BYTES_WIDE;
        let offset = self.offset_with(roles.metadata);
        let range = self.range_on((number, 0), (offset, member_bytes), stripe)?;
        let lanes = u32::from(layout.lanes(slots.len()));
        let count = range.count.checked_mul(lanes)?;
        let placed = self.place_range(GroupRange { count, ..range })?;
        let of_each = placed.count / lanes;
        if of_each == 0 {
            return None;
        }
        if of_each < range.count {
            let group_bytes = u64::from(self.group_fragments) << self.fragment_shift;
            let bytes = u64::from(of_each) * group_bytes;
            let share = |shape: StripeShape| {
                shape.rows_of_bytes(bytes, self.segment_bytes()) << shape.unit_shift
            };
            member_bytes = offset + 2 * SUPERBLOCK_AREA_BYTES + stripe.map_or(bytes, share);
        }
        let state = DiskGroupState::Adding;
        let first_group = placed.first;
        let lanes = Lanes::of_new(layout, slots.len());
        Some(DiskGroup {
            number,
            layout,
            state,
            has_journal: false,
            has_data: roles.data,
            has_metadata: roles.metadata,
            slots,
            first_group,
            member_bytes,
            lanes,
        })
    }

    /// Plans a disk group for the journal; `None` for small members or an unsuitable layout.
    #[must_use]
    pub fn plan_journal(
        &self,
        number: u8,
        layout: Layout,
        slots: Slots,
        member_bytes: u64,
    ) -> Option<DiskGroup> {
        let needed = self.journal_member_bytes();
        if !may_have_journal(layout) || member_bytes < needed {
            return None;
        }
        Some(DiskGroup {
            number,
            layout,
            state: DiskGroupState::Adding,
            has_journal: true,
            has_data: false,
            has_metadata: false,
            slots,
            first_group: 0,
            member_bytes: needed,
            lanes: Lanes::of_new(layout, 1),
        })
    }

    /// Returns the bytes of a member for the journal, at least the minimum of a device.
    #[must_use]
    pub fn journal_member_bytes(&self) -> u64 {
        (self.journal_range().end + 2 * SUPERBLOCK_AREA_BYTES).max(POOL_BYTES_MIN)
    }

    /// Returns the bytes of the pool with the journal, head pages included.
    #[must_use]
    pub fn journal_range(&self) -> Range<u64> {
        self.journal_offset..self.journal_offset + self.journal_bytes
    }

    /// Whether `group` may hold blocks of files.
    #[must_use]
    pub fn may_have_data(&self, group: u32) -> bool {
        self.range_of(group).map_or(self.main_has_data, |range| range.has_data)
    }

    /// Returns the group numbers of the main disk group.
    #[must_use]
    pub fn main_numbers(&self) -> Range<u32> {
        self.main_first..self.main_first.saturating_add(self.group_count)
    }

    /// Returns the numbers reserved for the main disk group. If it begins at 0, its members give
    /// the pool its bytes up to their ends, and all numbers there are reserved.
    #[must_use]
    pub fn taken_by_main(&self) -> Range<u32> {
        let own = self.main_numbers();
        if own.start > 0 {
            return own;
        }
        let behind = self.device_bytes.saturating_sub(self.groups_offset);
        let behind = behind.div_ceil(self.group_bytes().max(1));
        0..u32::try_from(behind).unwrap_or(u32::MAX).max(own.end)
    }

    /// Returns the first byte of allocation groups on a member of `group` (DG5).
    #[must_use]
    pub fn offset_in(&self, group: &DiskGroup) -> u64 {
        self.offset_with(group.has_metadata)
    }

    /// Returns the roles of a new disk group. One for data also gets room for metadata if that
    /// costs little, so that it can become the main one.
    #[must_use]
    pub fn with_room(
        &self,
        roles: DiskGroupRoles,
        layout: Layout,
        member_bytes: u64,
    ) -> DiskGroupRoles {
        let is_little = self.groups_offset.saturating_mul(ROOM_SHARE) <= member_bytes;
        let has_room = roles.data && is_little && layout != Layout::RoundRobin;
        DiskGroupRoles { metadata: roles.metadata || has_room, ..roles }
    }

    /// Returns the first byte of allocation groups on a member with `roles`.
    #[must_use]
    pub fn offset_for(&self, roles: DiskGroupRoles) -> u64 {
        self.offset_with(roles.metadata)
    }

    fn offset_with(&self, has_metadata: bool) -> u64 {
        if has_metadata { self.groups_offset } else { ADDED_GROUPS_OFFSET }
    }

    /// Whether the page behind the front of `number` is reserved for the root page (DG5).
    #[must_use]
    pub fn has_root_page(&self, number: u32) -> bool {
        let is_first =
            |range: &GroupRange| range.first == number && range.offset != ADDED_GROUPS_OFFSET;
        number == self.main_first || self.range_of(number).is_some_and(is_first)
    }

    /// Returns the place of the root page, behind the front of the main disk group's first group.
    #[must_use]
    pub fn root_place(&self) -> Place {
        self.root_place_in(self.main_first)
    }

    /// Returns the place of the root page if `group` is the first of the main disk group (DG5).
    #[must_use]
    pub fn root_place_in(&self, group: u32) -> Place {
        self.page_place(group, self.front_pages())
    }

    /// Returns the pages reserved in a group: its front, and perhaps the root page.
    #[must_use]
    pub fn kept_pages(&self, number: u32) -> u32 {
        self.front_pages() + u32::from(self.has_root_page(number))
    }

    /// Returns the bound on group numbers.
    #[must_use]
    pub fn group_numbers_max(&self) -> u64 {
        let in_table = self.group_table_pages() * GROUPS_PER_TABLE_PAGE;
        let group_bytes = u64::from(self.group_fragments) << self.fragment_shift;
        in_table.min((POOL_BYTES_MAX - self.groups_offset) / group_bytes.max(1))
    }

    /// Returns one more than the highest group number. Not all lower ones exist
    /// ([`GroupLayout::has_group`](crate::geometry::GroupLayout::has_group)).
    #[must_use]
    pub fn group_numbers(&self) -> u32 {
        let ends = self.added.iter().map(|range| range.numbers().end);
        ends.max().unwrap_or(0).max(self.main_numbers().end)
    }

    /// Returns all group numbers, in order.
    pub fn groups(&self) -> impl Iterator<Item = u32> + use<'a> {
        let layout = *self;
        (0..self.group_numbers()).filter(move |group| layout.has_group(*group))
    }

    /// Whether group `number` exists.
    #[must_use]
    pub fn has_group(&self, number: u32) -> bool {
        self.main_numbers().contains(&number) || self.range_of(number).is_some()
    }

    /// Returns the added range with group `number`.
    #[must_use]
    pub fn range_of(&self, number: u32) -> Option<&'a GroupRange> {
        self.0.added.iter().find(|range| range.numbers().contains(&number))
    }

    /// Returns the group numbers of a disk group, range by range.
    pub fn groups_of(&self, disk_group: u8) -> impl Iterator<Item = u32> + Clone + use<'a> {
        let of_main = if disk_group == self.0.main { self.main_numbers() } else { 0..0 };
        let added = self.0.added.iter().filter(move |range| range.disk_group == disk_group);
        of_main.chain(added.flat_map(GroupRange::numbers))
    }

    /// Returns the span of group numbers. A round-robin may have gaps
    /// ([`GroupLayout::groups_of`](crate::geometry::GroupLayout::groups_of)).
    #[must_use]
    pub fn numbers_of(&self, disk_group: u8) -> Range<u32> {
        if disk_group == self.main {
            return self.main_numbers();
        }
        let own = || self.added.iter().filter(|range| range.disk_group == disk_group);
        let first = own().map(|range| range.first).min().unwrap_or(0);
        first..own().map(|range| range.numbers().end).max().unwrap_or(first)
    }

    /// Returns the disk group of group `number`.
    #[must_use]
    pub fn disk_group_of(&self, number: u32) -> Option<u8> {
        if self.main_numbers().contains(&number) {
            return Some(self.main);
        }
        self.range_of(number).map(|range| range.disk_group)
    }

    /// Returns the stripes of group `number`, if any.
    #[must_use]
    pub fn stripe_of(&self, number: u32) -> Option<StripeShape> {
        self.range_of(number).map_or(self.main_stripe, |range| range.stripe)
    }

    /// Whether group `number` is in stripes.
    #[must_use]
    pub fn is_striped(&self, number: u32) -> bool {
        self.stripe_of(number).is_some()
    }

    /// Returns the bytes of `range` in the pool.
    #[must_use]
    pub fn bytes_of(&self, range: &GroupRange) -> Range<u64> {
        let start = self.group_offset(range.first);
        let last = range.numbers().end.saturating_sub(1);
        start..self.group_offset(last) + (u64::from(range.last_fragments) << self.fragment_shift)
    }

    /// Returns the end of every group and of the main disk group's superblocks.
    #[must_use]
    pub fn space_end(&self) -> u64 {
        let ends = self.added.iter().map(|range| self.bytes_of(range).end);
        let main = if self.main_first == 0 { self.device_bytes } else { self.main_bytes().end };
        ends.max().unwrap_or(0).max(main)
    }

    /// Returns the bytes of the main disk group's groups in the pool.
    #[must_use]
    pub fn main_bytes(&self) -> Range<u64> {
        let numbers = self.main_numbers();
        let start = self.group_offset(numbers.start);
        let last = numbers.end.saturating_sub(1);
        start..self.group_offset(last) + (u64::from(self.fragments_of(last)) << self.fragment_shift)
    }

    /// Returns the stripe mapping of an added disk group with groups from `groups_offset`.
    #[must_use]
    pub fn added_stripes(&self, shape: StripeShape, groups_offset: u64) -> Stripes {
        let segment_bytes = self.segment_bytes();
        Stripes { shape, groups_offset, segment_bytes, without: ExcludedMembers::NONE }
    }

    /// Checks that the ranges of allocation groups fit the group table and do not overlap (DG1).
    /// The error is the name of the wrong field.
    pub(crate) fn verify_added(&self) -> Result<(), &'static str> {
        let numbers_max = self.group_numbers_max();
        if u64::from(self.main_first) + u64::from(self.group_count) > numbers_max
            && self.main_first > 0
        {
            return Err("main_first");
        }
        for (at, range) in self.added.iter().enumerate() {
            let end = u64::from(range.first) + u64::from(range.count);
            let others = self.added.iter().take(at).map(GroupRange::numbers);
            let overlaps =
                |other: Range<u32>| range.first < other.end && other.start < range.numbers().end;
            if range.count == 0
                || end > numbers_max
                || others.chain([self.taken_by_main()]).any(overlaps)
            {
                return Err("disk_groups");
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::geometry::GeometryOptions;

    fn geometry() -> Geometry {
        let options = GeometryOptions {
            device_bytes: 64 << 20,
            fragment_bytes: 4096,
            segment_bytes: None,
            group_bytes: None,
            journal_bytes: None,
        };
        Geometry::plan(&options).expect("64 MiB are enough")
    }

    /// Goal: added groups lie behind all others, at the places that their numbers give.
    #[test]
    fn added_groups_have_places_of_their_own() {
        let mut geometry = geometry();
        for (disk_group, bytes) in [(1, 33 << 20), (2, 100 << 20), (3, 9 << 20)] {
            let range = geometry
                .group_layout()
                .range_on((disk_group, 0), (ADDED_GROUPS_OFFSET, bytes), None)
                .expect("one fits");
            let placed = geometry.group_layout().place_range(range).expect("the table has room");
            assert_eq!(placed.count, range.count);
            geometry.added.push(placed);
            assert_eq!(geometry.verify(), Ok(()), "{geometry:?}");
        }
        let (mut end, mut seen) = (0, 0);
        for number in geometry.group_layout().groups() {
            let offset = geometry.group_offset(number);
            assert!(offset >= end, "{number}");
            let last = Place::new(0, number, geometry.fragments_of(number) - 1);
            let at = geometry.device_offset(last, 1).expect("inside");
            assert_eq!(geometry.place_at(at), Some(last));
            assert_eq!(geometry.device_offset(last, 2), None);
            end = at + 4096;
            seen += 1;
            assert_eq!(
                geometry.group_layout().disk_group_of(number) == Some(0),
                number < geometry.group_count
            );
        }
        let added: u32 = geometry.added.iter().map(|range| range.count).sum();
        assert_eq!(seen, geometry.group_count + added);
        assert!(end <= geometry.group_layout().space_end());
        assert!(!geometry.group_layout().has_group(geometry.group_layout().group_numbers()));
        assert_eq!(geometry.fragments_of(geometry.group_layout().group_numbers()), 0);
    }

    /// Goal: numbers of a removed disk group are reused, never twice.
    #[test]
    fn numbers_that_became_free_are_given_out_again() {
        let mut geometry = geometry();
        for disk_group in 1..=3 {
            let range = geometry
                .group_layout()
                .range_on((disk_group, 0), (ADDED_GROUPS_OFFSET, 40 << 20), None)
                .expect("one fits");
            geometry.added.push(geometry.group_layout().place_range(range).expect("room"));
        }
        let free = geometry.added.remove(1);
        let small = geometry
            .group_layout()
            .range_on((4, 0), (ADDED_GROUPS_OFFSET, 20 << 20), None)
            .expect("one fits");
        let placed = geometry.group_layout().place_range(small).expect("room");
        assert_eq!(placed.first, free.first);
        geometry.added.push(placed);
        assert_eq!(geometry.verify(), Ok(()));
        let large = geometry
            .group_layout()
            .range_on((5, 0), (ADDED_GROUPS_OFFSET, 64 << 20), None)
            .expect("it fits");
        let placed = geometry.group_layout().place_range(large).expect("room");
        assert!(placed.first >= geometry.group_layout().group_numbers(), "behind all others");
        geometry.added.push(GroupRange { first: free.first, ..placed });
        assert_eq!(geometry.verify(), Err("disk_groups"), "two have one number");
    }

    /// Goal: the member bytes of a plan yield the planned range.
    #[test]
    fn a_plan_gives_the_range_that_it_was_made_of() {
        let geometry = geometry();
        for bytes in [20 << 20, 1 << 30, 1 << 45] {
            let plan = geometry
                .group_layout()
                .plan_added(1, (Layout::Mirror, DiskGroupRoles::DATA), (1..3).into(), bytes)
                .expect("it fits");
            let range = geometry.group_layout().range_on(
                (1, plan.first_group),
                (ADDED_GROUPS_OFFSET, plan.member_bytes),
                None,
            );
            let range = range.expect("it was planned so");
            assert_eq!(geometry.group_layout().place_range(range), Some(range), "{bytes}");
            assert!(plan.member_bytes <= bytes);
        }
        assert_eq!(
            geometry.group_layout().plan_added(
                1,
                (Layout::Single, DiskGroupRoles::DATA),
                (1..2).into(),
                1 << 20
            ),
            None
        );
    }

    #[test]
    fn no_more_groups_than_the_table_has_room_for() {
        let mut geometry = geometry();
        let range = geometry
            .group_layout()
            .range_on((1, 0), (ADDED_GROUPS_OFFSET, 1 << 45), None)
            .expect("many fit");
        let placed = geometry.group_layout().place_range(range).expect("some have room");
        assert!(placed.count < range.count);
        geometry.added.push(placed);
        assert_eq!(geometry.verify(), Ok(()));
        assert_eq!(
            u64::from(geometry.group_layout().group_numbers()),
            geometry.group_layout().group_numbers_max()
        );
        assert_eq!(geometry.group_layout().place_range(range), None, "it is full");
        assert_eq!(
            geometry.group_layout().range_on((2, 0), (ADDED_GROUPS_OFFSET, 1 << 20), None),
            None,
            "too small for one"
        );
    }
}
