//! Lanes: the ranges of allocation groups of a round-robin's members.
//!
//! Each member has one range. Ranges are equally long, at multiples of their length from the first
//! number of the disk group. A member's range never changes, because it determines the place of its
//! contents. A removed member's range becomes free; an added one gets the lowest free range.
//!
//! # Invariants
//!
//! - LS1: No two members have the same range.

use crate::geometry::{Geometry, GroupRange};
use crate::layout::{
    KIND_ROUND_ROBIN_APART, LAYOUT_SLOTS_MAX, Layout, LayoutDisk, ROUND_ROBIN_WIDTH_MAX,
};
use crate::slots::Slots;
use crate::superblock_error::SuperblockError;

/// Range index of each member. Other layouts have one range.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lanes(Vec<u8>);

const _: () = assert!(2 * ROUND_ROBIN_WIDTH_MAX <= LAYOUT_SLOTS_MAX);

impl Lanes {
    /// Returns `count` adjacent ranges.
    #[must_use]
    pub fn in_a_row(count: u8) -> Lanes {
        Lanes((0..count).collect())
    }

    /// Returns the ranges of a new disk group.
    #[must_use]
    pub fn of_new(layout: Layout, members: usize) -> Lanes {
        Lanes::in_a_row(layout.lanes(members))
    }

    /// Decodes explicit range indexes. `None` if two are equal (LS1), or if all are in a row: the
    /// layout kind without explicit ranges is for these.
    pub(crate) fn of_disk(named: &[u8]) -> Option<Lanes> {
        let is_twice = |(at, of): (usize, &u8)| named.iter().take(at).any(|other| other == of);
        let lanes = Lanes(named.to_vec());
        (!named.iter().enumerate().any(is_twice) && !lanes.are_in_a_row()).then_some(lanes)
    }

    /// Whether the ranges are adjacent, in member order.
    #[must_use]
    pub fn are_in_a_row(&self) -> bool {
        self.iter().zip(0..).all(|(own, at)| own == at)
    }

    /// Iterates over the range indexes, in member order.
    pub fn iter(&self) -> impl Iterator<Item = u8> + '_ {
        self.0.iter().copied()
    }

    /// Returns the range index of the `at`-th member.
    #[must_use]
    pub fn get(&self, at: usize) -> Option<u8> {
        self.0.get(at).copied()
    }

    pub(crate) fn push(&mut self, lane: u8) {
        self.0.push(lane);
    }

    pub(crate) fn remove(&mut self, at: usize) {
        let mut position = 0..;
        self.0.retain(|_| position.next() != Some(at));
    }
}

impl Layout {
    /// Encodes the layout with explicit ranges.
    pub(crate) fn to_disk_with(self, slots: &Slots, lanes: &Lanes) -> LayoutDisk {
        let mut disk = self.to_disk(slots);
        if self == Layout::RoundRobin && !lanes.are_in_a_row() {
            disk.kind = KIND_ROUND_ROBIN_APART;
            let named = disk.slots.iter_mut().skip(ROUND_ROBIN_WIDTH_MAX);
            named.zip(lanes.iter()).for_each(|(to, lane)| *to = lane);
        }
        disk
    }
}

/// Decodes the ranges of the members.
pub(crate) fn lanes_of(
    disk: &LayoutDisk,
    (layout, members): (Layout, usize),
) -> Result<Lanes, SuperblockError> {
    if disk.kind != KIND_ROUND_ROBIN_APART {
        return Ok(Lanes::of_new(layout, members));
    }
    let named = disk.slots.get(ROUND_ROBIN_WIDTH_MAX..).and_then(|rest| rest.get(..members));
    let lanes = named.and_then(Lanes::of_disk);
    lanes.ok_or(SuperblockError::BadField { field: "layout" })
}

impl Geometry {
    /// Returns the first group number of range `lane`; `None` on overflow.
    #[must_use]
    pub fn first_of_lane(first: u32, lane: u8, count: u32) -> Option<u32> {
        count.checked_mul(lane.into())?.checked_add(first)
    }

    /// Returns the lowest free range with its index; `one` is range 0.
    #[must_use]
    pub fn free_lane(&self, one: &GroupRange) -> Option<(u8, GroupRange)> {
        let end = u32::try_from(self.group_layout().group_numbers_max()).unwrap_or(u32::MAX);
        let at = |lane: u8| {
            let first = Geometry::first_of_lane(one.first, lane, one.count)?;
            Some((lane, GroupRange { first, ..*one }))
        };
        let is_free = |(_, range): &(u8, GroupRange)| {
            let overlaps = |other: std::ops::Range<u32>| {
                range.first < other.end && other.start < range.numbers().end
            };
            // The main disk group may occupy a range of numbers before this one.
            let mut others = self.added.iter().map(GroupRange::taken);
            range.first.checked_add(range.count).is_some_and(|behind| behind <= end)
                && !overlaps(self.group_layout().taken_by_main())
                && !others.any(overlaps)
        };
        (0..=u8::MAX).filter_map(at).find(is_free)
    }
}
