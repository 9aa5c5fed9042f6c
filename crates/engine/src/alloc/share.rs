//! What of an allocator's state is of one disk group, or of a part of one that has allocation
//! groups of its own: which it has, what of them is in use, and whether data, or pages, may lie
//! there.
//!
//! Not here: which of them gives the next segment (`disk_groups`).

use std::ops::Range;

use format::disk_group::{ADDED_GROUPS_OFFSET, GroupRange};
use format::geometry::Geometry;

use super::preference::Kind;
use super::spare::{Free, Spare};
use super::{Allocator, SegmentId, State};

/// Of how many segments of the main disk group one is kept for metadata.
const KEPT_SHARE: u32 = 16;
/// Fewest that are kept, and most.
const KEPT_MIN: u32 = 4;
const KEPT_MAX: u32 = 256;

/// A disk group, or a part of one that has allocation groups of its own, as far as it gives
/// segments.
#[derive(Clone, Debug)]
pub(super) struct Share {
    /// Its number.
    pub(super) disk_group: u8,
    /// Which part of its disk group it is: see [`format::disk_group::GroupRange::lane`].
    pub(super) lane: Option<u8>,
    /// What files may want it for.
    pub(super) kind: Kind,
    /// Numbers of its allocation groups.
    pub(super) numbers: Range<u32>,
    /// Where the last data segment was taken.
    pub(super) cursor: SegmentId,
    /// Its allocation groups that are not in use.
    pub(super) unused: u32,
    /// Whether it is that of the main disk group, and not what is given up of that.
    pub(super) is_main: bool,
    /// Whether it may have pages besides fronts: the main one, and one that was it or can be.
    has_pages: bool,
    /// Whether data may lie there.
    pub(super) has_data: bool,
    /// Free pages of its metadata segments, where it may have any.
    pub(super) spare: Spare,
    /// GR2.
    pub(super) is_leaving: bool,
    pub(super) credit: i64,
}

impl Share {
    /// Returns that of the main disk group.
    pub(super) fn main(geometry: &Geometry) -> Share {
        let kind = Kind::new(geometry.main, None, geometry.main_stripe);
        let share = Share::new((geometry.main, None, kind), main_of(geometry));
        let has_data = geometry.main_has_data;
        Share { is_main: true, has_pages: true, has_data, ..share }
    }

    /// So many of its allocation groups are in use, and nothing is known of those.
    pub(super) fn note_in_use(&mut self, used: u64) {
        let all = u64::from(self.numbers.end.saturating_sub(self.numbers.start));
        self.unused = u32::try_from(all.saturating_sub(used)).unwrap_or(u32::MAX);
        self.spare = Spare::new(self.numbers.clone(), if self.has_pages { used } else { 0 });
    }

    /// An allocation group of it is in memory from now on.
    pub(super) fn note_loaded(&mut self, number: u32, free: Free) {
        if self.has_pages {
            self.spare.forget(number);
            self.spare.change(Free::default(), free);
        }
    }

    /// Whether it may have pages besides fronts.
    pub(super) fn has_pages(&self) -> bool {
        self.has_pages
    }

    /// Whether what is free there counts as room: data may lie there, or new metadata.
    pub(super) fn gives_room(&self) -> bool {
        !self.is_leaving && (self.is_main || self.has_data)
    }

    /// Whether it is that of `range`: the same allocation groups. A device of a round-robin may
    /// have become a disk group of its own with them, and another disk group may have the number of
    /// one that went.
    pub(super) fn is_of(&self, range: &GroupRange) -> bool {
        self.numbers == range.numbers()
    }

    pub(super) fn added(range: &GroupRange) -> Share {
        let kind = Kind::new(range.disk_group, range.lane, range.stripe);
        let share = Share::new((range.disk_group, range.lane, kind), range.numbers());
        let (has_pages, has_data) = (may_have_pages(range), range.has_data);
        Share { has_pages, has_data, is_leaving: range.is_leaving, ..share }
    }

    /// It is what `range` says from now on, with what it has.
    pub(super) fn become_part(&mut self, range: &GroupRange) {
        (self.disk_group, self.lane) = (range.disk_group, range.lane);
        (self.has_pages, self.has_data) = (may_have_pages(range), range.has_data);
        self.kind = Kind::new(range.disk_group, range.lane, range.stripe);
        self.is_leaving = range.is_leaving;
    }

    fn new((disk_group, lane, kind): (u8, Option<u8>, Kind), numbers: Range<u32>) -> Share {
        let cursor = SegmentId { group: numbers.start, segment: 0 };
        Share {
            disk_group,
            lane,
            kind,
            cursor,
            unused: 0,
            is_main: false,
            has_pages: false,
            has_data: true,
            spare: Spare::new(numbers.clone(), 0),
            numbers,
            is_leaving: false,
            credit: 0,
        }
    }
}

/// Whether what is free of an allocation group's disk group counts as room.
pub(super) fn gives_room(geometry: &Geometry, number: u32) -> bool {
    let of = |range: &GroupRange| range.has_data;
    !geometry.leaves(number) && geometry.range_of(number).is_none_or(of)
}

/// Whether a disk group may have pages besides fronts: it was the main one, or can be.
pub(super) fn may_have_pages(range: &GroupRange) -> bool {
    range.offset != ADDED_GROUPS_OFFSET
}

/// Returns what an allocation group can give to data and metadata; of one that has no pages to
/// data, and its front.
pub(super) fn capacity_of(geometry: &Geometry, number: u32) -> u64 {
    let fragments = geometry.fragments_of(number);
    if geometry.range_of(number).is_none_or(may_have_pages) {
        return fragments.into();
    }
    // What is behind its front in the same segments nobody can have (GR1).
    let rest = geometry.front_segments(number) * geometry.segment_fragments;
    u64::from(fragments.saturating_sub(rest - front_of(geometry, number)))
}

/// Returns how many fragments an allocation group keeps in front of all others.
pub(super) fn front_of(geometry: &Geometry, number: u32) -> u32 {
    geometry.kept_pages(number) * geometry.page_fragments()
}

/// Returns the segments of the main disk group that no data takes while another has room (GR1).
pub(super) fn kept_of(geometry: &Geometry) -> u32 {
    // Asked for each promise: all groups but the last have as many.
    let numbers = geometry.main_numbers();
    let last = numbers.end.saturating_sub(1);
    let of_others = (last - numbers.start) * geometry.segments_of(numbers.start);
    ((of_others + geometry.segments_of(last)) / KEPT_SHARE).clamp(KEPT_MIN, KEPT_MAX)
}

/// Makes `shares` as long as `geometry` says; what a disk group has more is not in use.
pub(super) fn lengthen(shares: &mut [Share], geometry: &Geometry) {
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

/// Returns the numbers of the allocation groups of the main disk group that stay.
pub(super) fn main_of(geometry: &Geometry) -> Range<u32> {
    geometry.main_first..geometry.staying_in(geometry.main)
}

/// Returns the parts that the allocation groups beside those of the main disk group are of: each
/// other disk group, or its lanes; and what is given up of one, which leaves, apart from the rest.
pub(super) fn parts_of(geometry: &Geometry) -> Vec<GroupRange> {
    let mut parts = geometry.added.clone();
    let Some(last) = geometry.last_groups else { return parts };
    let end = geometry.numbers_of(last.disk_group).end;
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
    /// Returns the share that has an allocation group.
    pub(super) fn share_of(state: &mut State, number: u32) -> Option<&mut Share> {
        state.shares.iter_mut().find(|share| share.numbers.contains(&number))
    }
}
