//! Disk groups: the devices of a pool, in groups of which each lies in its own way on its members.
//!
//! One of them is the main one: it carries the fixed regions, and new metadata but for the fronts
//! of others; and data, unless the pool was made with data elsewhere. It is described by the fields
//! of the superblock. It is the first of a pool that is made, with the number 0, until another
//! takes its place. The others hold data, and the front of each of their allocation groups; one
//! that was the main one, pages of before; or one of them holds the journal, and nothing else.
//!
//! # Layout
//!
//! Allocation groups of all disk groups have numbers of one kind. A disk group has one range of
//! them, and group `n` begins at byte `groups_offset + n * group_bytes` of the pool whatever disk
//! group it belongs to. On the members of another than the main disk group its range begins behind
//! the two superblocks at their front, or behind room for the fixed regions (DG5):
//!
//! ```text
//!   pool     | fixed | groups 0 .. a of disk group 0 | (none) | groups b .. c of disk group 1 |
//!   member of disk group 1:        | copy 0 | copy 1 | groups b .. c | copy 2 | copy 3 |
//! ```
//!
//! Each member of the disk group with the journal has all of it, at the bytes that it has in the
//! pool. The bytes of the main disk group there are not used then:
//!
//! ```text
//!   pool                 | copy 0 | copy 1 | journal | double-write area | ...
//!   member of that group | copy 0 | copy 1 | journal | copy 2 | copy 3 |
//! ```
//!
//! # Invariants
//!
//! - DG1: Ranges do not overlap, and lie in what the group table has room for. Those of one disk
//!   group need not follow each other ([`crate::lanes`]).
//! - DG2: Each member is of one disk group, which names its slot once; no disk group names a free
//!   slot.
//! - DG3: A disk group that is being added has no range yet: nothing can lie there.
//! - DG4: At most one disk group is for the journal, it is a single or a mirror, and it has no
//!   allocation groups. The journal lies there as long as it is online.
//! - DG5: A disk group with the role metadata has room for the fixed regions in front of its
//!   allocation groups, and for the pool's root behind the front of its first. One of those is the
//!   main one: they lie there, and nothing in that room of the others means anything.

use std::ops::Range;

use crate::geometry::{Geometry, POOL_BYTES_MAX, POOL_BYTES_MIN, SUPERBLOCK_AREA_BYTES};
use crate::group::GROUPS_PER_TABLE_PAGE;
use crate::ids::Place;
use crate::lanes::Lanes;
use crate::members::Layout;
use crate::slots::Slots;
use crate::stripes::{StripeShape, Stripes, Without};

/// Byte of a member of an added disk group at which its allocation groups begin.
pub const ADDED_GROUPS_OFFSET: u64 = 2 * SUPERBLOCK_AREA_BYTES;
/// A last group with fewer segments is not made: too short for its front and a few more.
pub(crate) const LAST_SEGMENTS_MIN: u64 = 8;
const PAGE_BYTES_WIDE: u64 = 4096;
/// A disk group for data has room for the fixed regions if that is at most one part in so many of a
/// member.
const ROOM_SHARE: u64 = 64;

/// Whether the journal may lie in a disk group of that kind: all of it is on each member.
#[must_use]
pub fn may_have_journal(layout: Layout) -> bool {
    matches!(layout, Layout::Single | Layout::Mirror)
}

/// What an added disk group is to the pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DiskGroupState {
    /// Data goes there.
    Online,
    /// It is being added: an open that finds this takes it out again.
    Adding,
    /// What lies there moves elsewhere, and then it is taken out.
    Leaving,
}

impl DiskGroupState {
    /// Returns the word for it.
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

/// What may lie on a disk group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Roles {
    /// Blocks of files.
    pub data: bool,
    /// Metadata, and the fixed regions. Of several that have it one is the main disk group.
    pub metadata: bool,
    /// The journal: of the main one where no other has it.
    pub journal: bool,
}

impl Roles {
    /// Data alone.
    pub const DATA: Roles = Roles { data: true, metadata: false, journal: false };
    /// The journal alone.
    pub const JOURNAL: Roles = Roles { data: false, metadata: false, journal: true };
    /// Nothing.
    pub const NONE: Roles = Roles { data: false, metadata: false, journal: false };
}

/// A disk group that was added.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiskGroup {
    /// Its number, from 1 on.
    pub number: u8,
    /// How it lies on its members.
    pub layout: Layout,
    /// What it is to the pool.
    pub state: DiskGroupState,
    /// Whether it is for the journal alone (DG4).
    pub has_journal: bool,
    /// Whether blocks of files may lie there.
    pub has_data: bool,
    /// Whether its members have room for the fixed regions in front of its allocation groups, as
    /// those of the main disk group have (DG5).
    pub has_metadata: bool,
    /// Slots of its members (DG2).
    pub slots: Slots,
    /// Number of its first allocation group; of a round-robin, of the first range that a member of
    /// it can have.
    pub first_group: u32,
    /// Bytes that it uses of each member.
    pub member_bytes: u64,
    /// Which range each of its members has, where each has one of its own.
    pub lanes: Lanes,
}

/// The allocation groups of an added disk group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupRange {
    /// Number of the disk group.
    pub disk_group: u8,
    /// Byte of its members, or of the space that their stripes are, at which they begin.
    pub offset: u64,
    /// The first of them.
    pub first: u32,
    /// How many.
    pub count: u32,
    /// Fragments of the last.
    pub last_fragments: u32,
    /// How they lie in stripes; `None`: they do not.
    pub stripe: Option<StripeShape>,
    /// Which part of their disk group they are, where each of its members has allocation groups of
    /// its own: that member, counted from the first; `None`: they lie on all.
    pub lane: Option<u8>,
    /// Whether blocks of files may lie there.
    pub has_data: bool,
    /// Whether their disk group leaves: nothing new goes there.
    pub is_leaving: bool,
}

impl GroupRange {
    /// Returns the numbers.
    #[must_use]
    pub fn numbers(&self) -> Range<u32> {
        self.first..self.first.saturating_add(self.count)
    }

    /// How many numbers behind them no other may have. Where they begin with 0, and can be of the
    /// main disk group, its members are the pool up to their ends then
    /// ([`Geometry::taken_by_main`]).
    pub(crate) fn kept_behind(&self) -> u32 {
        u32::from(self.first == 0 && self.offset != ADDED_GROUPS_OFFSET)
    }

    /// Returns the numbers with those.
    pub(crate) fn taken(&self) -> Range<u32> {
        self.first..self.numbers().end.saturating_add(self.kept_behind())
    }
}

impl Geometry {
    /// Returns the allocation groups that fit on members of which `member_bytes` are used, from
    /// number `first` on; `None`: not even one.
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

    /// Returns the ranges of `group`, of whose members `members` have segments: one, or one for
    /// each member. `None`: there is no room for any.
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

    /// Returns the lowest number from which `range` fits beside all others, and as much of it as
    /// the group table has room for; `None`: there is no room.
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

    /// Returns a disk group that is being added: as large as its members, of which each has
    /// `member_bytes`, and the group table have room for. `None`: they have none.
    #[must_use]
    pub fn plan_added(
        &self,
        number: u8,
        (layout, roles): (Layout, Roles),
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

    /// Returns a disk group for the journal that is being added, on members of which each has
    /// `member_bytes`; `None`: they are too small, or the journal cannot lie in that layout.
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

    /// Returns how many bytes a member of a disk group for the journal has: the journal, and the
    /// superblocks at both ends; as many as any device of a pool at least.
    #[must_use]
    pub fn journal_member_bytes(&self) -> u64 {
        (self.journal_range().end + 2 * SUPERBLOCK_AREA_BYTES).max(POOL_BYTES_MIN)
    }

    /// Returns the bytes of the pool that have the journal, its heads first.
    #[must_use]
    pub fn journal_range(&self) -> Range<u64> {
        self.journal_offset..self.journal_offset + self.journal_bytes
    }

    /// Whether blocks of files may lie in an allocation group: all but those of a disk group
    /// without that role have them.
    #[must_use]
    pub fn may_have_data(&self, group: u32) -> bool {
        self.range_of(group).map_or(self.main_has_data, |range| range.has_data)
    }

    /// Returns the numbers of the allocation groups of the main disk group.
    #[must_use]
    pub fn main_numbers(&self) -> Range<u32> {
        self.main_first..self.main_first.saturating_add(self.group_count)
    }

    /// Returns the numbers that no other disk group may have for the main one. Where it begins with
    /// 0 its members are the pool up to their ends, so no other begins in front of those.
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

    /// Returns the byte at which the allocation groups of a disk group begin on its members: behind
    /// the superblocks, or behind room for the fixed regions (DG5).
    #[must_use]
    pub fn offset_in(&self, group: &DiskGroup) -> u64 {
        self.offset_with(group.has_metadata)
    }

    /// Returns what a new disk group that is to have `roles` gets: with data it has room for the
    /// metadata too where that is little, so that the main disk group can go some day.
    #[must_use]
    pub fn with_room(&self, roles: Roles, layout: Layout, member_bytes: u64) -> Roles {
        let is_little = self.groups_offset.saturating_mul(ROOM_SHARE) <= member_bytes;
        let has_room = roles.data && is_little && layout != Layout::RoundRobin;
        Roles { metadata: roles.metadata || has_room, ..roles }
    }

    /// Returns the same of one that has `roles`.
    #[must_use]
    pub fn offset_for(&self, roles: Roles) -> u64 {
        self.offset_with(roles.metadata)
    }

    fn offset_with(&self, has_metadata: bool) -> u64 {
        if has_metadata { self.groups_offset } else { ADDED_GROUPS_OFFSET }
    }

    /// Whether the page behind the front of allocation group `number` is kept for the pool's root:
    /// so it is in the first of each disk group that has room for the fixed regions, wherever these
    /// are (DG5).
    #[must_use]
    pub fn has_root_page(&self, number: u32) -> bool {
        let is_first =
            |range: &GroupRange| range.first == number && range.offset != ADDED_GROUPS_OFFSET;
        number == self.main_first || self.range_of(number).is_some_and(is_first)
    }

    /// Returns the place of the pool's root page: an anode page behind the front of the first group
    /// of the main disk group.
    #[must_use]
    pub fn root_place(&self) -> Place {
        self.root_place_in(self.main_first)
    }

    /// Returns where it is if `group` is the first of that (DG5).
    #[must_use]
    pub fn root_place_in(&self, group: u32) -> Place {
        self.page_place(group, self.front_pages())
    }

    /// Returns how many pages an allocation group keeps in front of all others: its front, and
    /// perhaps the pool's root.
    #[must_use]
    pub fn kept_pages(&self, number: u32) -> u32 {
        self.front_pages() + u32::from(self.has_root_page(number))
    }

    /// Returns how many numbers of allocation groups the group table has room for, and the space of
    /// a pool.
    #[must_use]
    pub fn group_numbers_max(&self) -> u64 {
        let in_table = self.group_table_pages() * GROUPS_PER_TABLE_PAGE;
        let group_bytes = u64::from(self.group_fragments) << self.fragment_shift;
        in_table.min((POOL_BYTES_MAX - self.groups_offset) / group_bytes.max(1))
    }

    /// Returns one more than the highest number of an allocation group. Not each number below has
    /// one: see [`Geometry::has_group`].
    #[must_use]
    pub fn group_numbers(&self) -> u32 {
        let ends = self.added.iter().map(|range| range.numbers().end);
        ends.max().unwrap_or(0).max(self.main_numbers().end)
    }

    /// Returns the numbers of all allocation groups, in order.
    pub fn groups(&self) -> impl Iterator<Item = u32> + '_ {
        (0..self.group_numbers()).filter(|group| self.has_group(*group))
    }

    /// Whether there is an allocation group `number`.
    #[must_use]
    pub fn has_group(&self, number: u32) -> bool {
        self.main_numbers().contains(&number) || self.range_of(number).is_some()
    }

    /// Returns the range of an added disk group that has allocation group `number`.
    #[must_use]
    pub fn range_of(&self, number: u32) -> Option<&GroupRange> {
        self.added.iter().find(|range| range.numbers().contains(&number))
    }

    /// Returns the numbers of the allocation groups of a disk group, in order of its ranges.
    pub fn groups_of(&self, disk_group: u8) -> impl Iterator<Item = u32> + Clone + '_ {
        let of_main = if disk_group == self.main { self.main_numbers() } else { 0..0 };
        let added = self.added.iter().filter(move |range| range.disk_group == disk_group);
        of_main.chain(added.flat_map(GroupRange::numbers))
    }

    /// Returns the numbers of the allocation groups of a disk group, where they follow each other:
    /// of a round-robin there may be others between them ([`Geometry::groups_of`]).
    #[must_use]
    pub fn numbers_of(&self, disk_group: u8) -> Range<u32> {
        if disk_group == self.main {
            return self.main_numbers();
        }
        let own = || self.added.iter().filter(|range| range.disk_group == disk_group);
        let first = own().map(|range| range.first).min().unwrap_or(0);
        first..own().map(|range| range.numbers().end).max().unwrap_or(first)
    }

    /// Returns the number of the disk group that has allocation group `number`.
    #[must_use]
    pub fn disk_group_of(&self, number: u32) -> Option<u8> {
        if self.main_numbers().contains(&number) {
            return Some(self.main);
        }
        self.range_of(number).map(|range| range.disk_group)
    }

    /// Returns how allocation group `number` lies in stripes; `None`: it does not.
    #[must_use]
    pub fn stripe_of(&self, number: u32) -> Option<StripeShape> {
        self.range_of(number).map_or(self.main_stripe, |range| range.stripe)
    }

    /// Whether allocation group `number` lies in stripes.
    #[must_use]
    pub fn is_striped(&self, number: u32) -> bool {
        self.stripe_of(number).is_some()
    }

    /// Returns the bytes of the pool from the first to behind the last allocation group of an added
    /// disk group.
    #[must_use]
    pub fn bytes_of(&self, range: &GroupRange) -> Range<u64> {
        let start = self.group_offset(range.first);
        let last = range.numbers().end.saturating_sub(1);
        start..self.group_offset(last) + (u64::from(range.last_fragments) << self.fragment_shift)
    }

    /// Returns where the space of the pool ends: behind the main disk group, superblocks included,
    /// and every allocation group.
    #[must_use]
    pub fn space_end(&self) -> u64 {
        let ends = self.added.iter().map(|range| self.bytes_of(range).end);
        let main = if self.main_first == 0 { self.device_bytes } else { self.main_bytes().end };
        ends.max().unwrap_or(0).max(main)
    }

    /// Returns the bytes of the pool that the allocation groups of the main disk group have.
    #[must_use]
    pub fn main_bytes(&self) -> Range<u64> {
        let numbers = self.main_numbers();
        let start = self.group_offset(numbers.start);
        let last = numbers.end.saturating_sub(1);
        start..self.group_offset(last) + (u64::from(self.fragments_of(last)) << self.fragment_shift)
    }

    /// Returns where the allocation groups of an added disk group in stripes of `shape` lie, which
    /// begin at byte `groups_offset` of its members.
    #[must_use]
    pub fn added_stripes(&self, shape: StripeShape, groups_offset: u64) -> Stripes {
        let segment_bytes = self.segment_bytes();
        Stripes { shape, groups_offset, segment_bytes, without: Without::NONE }
    }

    /// Checks what was added (DG1): names what is wrong.
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

    /// Goal: groups that were added lie behind all others, have the places that their numbers say,
    /// and none where there is none.
    #[test]
    fn added_groups_have_places_of_their_own() {
        let mut geometry = geometry();
        for (disk_group, bytes) in [(1, 33 << 20), (2, 100 << 20), (3, 9 << 20)] {
            let range = geometry
                .range_on((disk_group, 0), (ADDED_GROUPS_OFFSET, bytes), None)
                .expect("one fits");
            let placed = geometry.place_range(range).expect("the table has room");
            assert_eq!(placed.count, range.count);
            geometry.added.push(placed);
            assert_eq!(geometry.verify(), Ok(()), "{geometry:?}");
        }
        let (mut end, mut seen) = (0, 0);
        for number in geometry.groups() {
            let offset = geometry.group_offset(number);
            assert!(offset >= end, "{number}");
            let last = Place::new(0, number, geometry.fragments_of(number) - 1);
            let at = geometry.device_offset(last, 1).expect("inside");
            assert_eq!(geometry.place_at(at), Some(last));
            assert_eq!(geometry.device_offset(last, 2), None);
            end = at + 4096;
            seen += 1;
            assert_eq!(geometry.disk_group_of(number) == Some(0), number < geometry.group_count);
        }
        let added: u32 = geometry.added.iter().map(|range| range.count).sum();
        assert_eq!(seen, geometry.group_count + added);
        assert!(end <= geometry.space_end());
        assert!(!geometry.has_group(geometry.group_numbers()));
        assert_eq!(geometry.fragments_of(geometry.group_numbers()), 0);
    }

    /// Goal: what a group leaves is given to the next one that fits there, and never to two.
    #[test]
    fn numbers_that_became_free_are_given_out_again() {
        let mut geometry = geometry();
        for disk_group in 1..=3 {
            let range = geometry
                .range_on((disk_group, 0), (ADDED_GROUPS_OFFSET, 40 << 20), None)
                .expect("one fits");
            geometry.added.push(geometry.place_range(range).expect("room"));
        }
        let free = geometry.added.remove(1);
        let small =
            geometry.range_on((4, 0), (ADDED_GROUPS_OFFSET, 20 << 20), None).expect("one fits");
        let placed = geometry.place_range(small).expect("room");
        assert_eq!(placed.first, free.first);
        geometry.added.push(placed);
        assert_eq!(geometry.verify(), Ok(()));
        let large =
            geometry.range_on((5, 0), (ADDED_GROUPS_OFFSET, 64 << 20), None).expect("it fits");
        let placed = geometry.place_range(large).expect("room");
        assert!(placed.first >= geometry.group_numbers(), "behind all others");
        geometry.added.push(GroupRange { first: free.first, ..placed });
        assert_eq!(geometry.verify(), Err("disk_groups"), "two have one number");
    }

    /// Goal: a plan says of each member what it uses, and its range comes back from that.
    #[test]
    fn a_plan_gives_the_range_that_it_was_made_of() {
        let geometry = geometry();
        for bytes in [20 << 20, 1 << 30, 1 << 45] {
            let plan = geometry
                .plan_added(1, (Layout::Mirror, Roles::DATA), (1..3).into(), bytes)
                .expect("it fits");
            let range = geometry.range_on(
                (1, plan.first_group),
                (ADDED_GROUPS_OFFSET, plan.member_bytes),
                None,
            );
            let range = range.expect("it was planned so");
            assert_eq!(geometry.place_range(range), Some(range), "{bytes}");
            assert!(plan.member_bytes <= bytes);
        }
        assert_eq!(
            geometry.plan_added(1, (Layout::Single, Roles::DATA), (1..2).into(), 1 << 20),
            None
        );
    }

    #[test]
    fn no_more_groups_than_the_table_has_room_for() {
        let mut geometry = geometry();
        let range =
            geometry.range_on((1, 0), (ADDED_GROUPS_OFFSET, 1 << 45), None).expect("many fit");
        let placed = geometry.place_range(range).expect("some have room");
        assert!(placed.count < range.count);
        geometry.added.push(placed);
        assert_eq!(geometry.verify(), Ok(()));
        assert_eq!(u64::from(geometry.group_numbers()), geometry.group_numbers_max());
        assert_eq!(geometry.place_range(range), None, "it is full");
        assert_eq!(
            geometry.range_on((2, 0), (ADDED_GROUPS_OFFSET, 1 << 20), None),
            None,
            "too small for one"
        );
    }
}
