//! Shares: the allocator's state for a disk group, or for a part with its own allocation groups.
//!
//! Not here: the choice of a share for the next segment (`disk_groups`).

use std::ops::Range;

use format::disk_group::{ADDED_GROUPS_OFFSET, GroupRange};
use format::geometry::Geometry;

use super::preference::PlacementProperties;
use super::spare::{GroupSpareSpace, SpareSpace};
use super::{Allocator, AllocatorState, SegmentId};

/// One in this many segments of the main disk group is kept for metadata.
const KEPT_SHARE: u32 = 16;
/// Limits of the segments kept for metadata.
const KEPT_MIN: u32 = 4;
const KEPT_MAX: u32 = 256;

/// A disk group, or a part of one, as a source of segments.
#[derive(Clone, Debug)]
pub(super) struct SegmentSource {
    pub(super) disk_group: u8,
    /// See [`format::disk_group::GroupRange::lane`].
    pub(super) lane: Option<u8>,
    pub(super) kind: PlacementProperties,
    pub(super) numbers: Range<u32>,
    /// The last data segment taken.
    pub(super) cursor: SegmentId,
    pub(super) unused: u32,
    /// The main disk group, without groups being given up.
    pub(super) is_main: bool,
    /// May hold pages other than fronts (GR1): a present, former or possible main disk group.
    has_pages: bool,
    pub(super) has_data: bool,
    /// Free pages, if `has_pages`.
    pub(super) spare: SpareSpace,
    /// Whether it is being removed (GR2).
    pub(super) is_leaving: bool,
    pub(super) credit: i64,
}

impl SegmentSource {
    pub(super) fn main(geometry: &Geometry) -> SegmentSource {
        let kind = PlacementProperties::new(geometry.main, None, geometry.main_stripe);
        let share = SegmentSource::new((geometry.main, None, kind), main_of(geometry));
        let has_data = geometry.main_has_data;
        SegmentSource { is_main: true, has_pages: true, has_data, ..share }
    }

    /// Sets the number of groups in use.
    pub(super) fn note_in_use(&mut self, used: u64) {
        let all = u64::from(self.numbers.end.saturating_sub(self.numbers.start));
        self.unused = u32::try_from(all.saturating_sub(used)).unwrap_or(u32::MAX);
        self.spare = SpareSpace::new(self.numbers.clone(), if self.has_pages { used } else { 0 });
    }

    pub(super) fn note_loaded(&mut self, number: u32, free: GroupSpareSpace) {
        if self.has_pages {
            self.spare.forget(number);
            self.spare.change(GroupSpareSpace::default(), free);
        }
    }

    pub(super) fn has_pages(&self) -> bool {
        self.has_pages
    }

    /// Returns whether its free space counts as capacity (GR3).
    pub(super) fn gives_room(&self) -> bool {
        !self.is_leaving && (self.is_main || self.has_data)
    }

    /// Returns whether it stands for `range`. The disk group's number does not suffice: numbers are
    /// reused, and a device of a round-robin group may become a disk group of its own.
    pub(super) fn is_of(&self, range: &GroupRange) -> bool {
        self.numbers == range.numbers()
    }

    pub(super) fn added(range: &GroupRange) -> SegmentSource {
        let kind = PlacementProperties::new(range.disk_group, range.lane, range.stripe);
        let share = SegmentSource::new((range.disk_group, range.lane, kind), range.numbers());
        let (has_pages, has_data) = (may_have_pages(range), range.has_data);
        SegmentSource { has_pages, has_data, is_leaving: range.is_leaving, ..share }
    }

    /// Adopts the properties of `range`, and keeps the counts.
    pub(super) fn become_part(&mut self, range: &GroupRange) {
        (self.disk_group, self.lane) = (range.disk_group, range.lane);
        (self.has_pages, self.has_data) = (may_have_pages(range), range.has_data);
        self.kind = PlacementProperties::new(range.disk_group, range.lane, range.stripe);
        self.is_leaving = range.is_leaving;
    }

    fn new(
        (disk_group, lane, kind): (u8, Option<u8>, PlacementProperties),
        numbers: Range<u32>,
    ) -> SegmentSource {
        let cursor = SegmentId { group: numbers.start, segment: 0 };
        SegmentSource {
            disk_group,
            lane,
            kind,
            cursor,
            unused: 0,
            is_main: false,
            has_pages: false,
            has_data: true,
            spare: SpareSpace::new(numbers.clone(), 0),
            numbers,
            is_leaving: false,
            credit: 0,
        }
    }
}

pub(super) fn gives_room(geometry: &Geometry, number: u32) -> bool {
    let of = |range: &GroupRange| range.has_data;
    !geometry.leaves(number) && geometry.group_layout().range_of(number).is_none_or(of)
}

/// Returns whether a disk group may hold pages besides fronts, as a former or possible main one.
pub(super) fn may_have_pages(range: &GroupRange) -> bool {
    range.offset != ADDED_GROUPS_OFFSET
}

/// Returns the usable fragments of a group.
pub(super) fn capacity_of(geometry: &Geometry, number: u32) -> u64 {
    let fragments = geometry.fragments_of(number);
    if geometry.group_layout().range_of(number).is_none_or(may_have_pages) {
        return fragments.into();
    }
    // Without other pages, the rest of the front's segments is unusable (GR1).
    let rest = geometry.front_segments(number) * geometry.segment_fragments;
    u64::from(fragments.saturating_sub(rest - front_of(geometry, number)))
}

/// Returns the fragments of a group's front.
pub(super) fn front_of(geometry: &Geometry, number: u32) -> u32 {
    geometry.group_layout().kept_pages(number) * geometry.page_fragments()
}

/// Returns how many segments of the main disk group are kept for metadata (GR1).
pub(super) fn kept_of(geometry: &Geometry) -> u32 {
    // Called for each promise, so no loop: all groups but the last are equal.
    let numbers = geometry.group_layout().main_numbers();
    let last = numbers.end.saturating_sub(1);
    let of_others = (last - numbers.start) * geometry.segments_of(numbers.start);
    ((of_others + geometry.segments_of(last)) / KEPT_SHARE).clamp(KEPT_MIN, KEPT_MAX)
}

/// Extends shares by the unused groups that `geometry` adds.
pub(super) fn lengthen(shares: &mut [SegmentSource], geometry: &Geometry) {
    let parts = parts_of(geometry);
    for share in shares {
        let is_it = |part: &&GroupRange| {
            (part.disk_group, part.lane, part.first)
                == (share.disk_group, share.lane, share.numbers.start)
        };
        let numbers = match parts.iter().find(is_it) {
            _ if share.is_main => main_of(geometry),
            Some(part) => part.numbers(),
            None => share.numbers.clone(),
        };
        let more = numbers.end.saturating_sub(share.numbers.end);
        share.unused += more;
        share.numbers = numbers;
    }
}

/// Returns the groups of the main disk group, without those being given up.
pub(super) fn main_of(geometry: &Geometry) -> Range<u32> {
    geometry.main_first..geometry.staying_in(geometry.main)
}

/// Returns the other shares: other disk groups or their round-robin members, and groups that are
/// being given up.
pub(super) fn parts_of(geometry: &Geometry) -> Vec<GroupRange> {
    let mut parts = geometry.added.clone();
    let Some(last) = geometry.last_groups else { return parts };
    let end = geometry.group_layout().numbers_of(last.disk_group).end;
    let given_up = |of: GroupRange| {
        let count = end.saturating_sub(last.first);
        GroupRange { first: last.first, count, is_leaving: true, ..of }
    };
    let of_main = || GroupRange {
        disk_group: geometry.main,
        offset: geometry.groups_offset,
        first: geometry.main_first,
        count: end.saturating_sub(geometry.main_first),
        last_fragments: geometry.fragments_of(end.saturating_sub(1)),
        stripe: geometry.main_stripe,
        lane: None,
        has_data: geometry.main_has_data,
        is_leaving: false,
    };
    let own = parts.iter_mut().find(|range| range.disk_group == last.disk_group);
    let part = given_up(own.as_deref().copied().unwrap_or_else(of_main));
    if let Some(own) = own.filter(|_| part.count > 0) {
        own.count = last.first.saturating_sub(own.first);
        own.last_fragments = geometry.group_fragments;
    }
    parts.extend(Some(part).filter(|part| part.count > 0));
    parts
}

impl Allocator {
    pub(super) fn share_of(state: &mut AllocatorState, number: u32) -> Option<&mut SegmentSource> {
        state.shares.iter_mut().find(|share| share.numbers.contains(&number))
    }
}
