//! Where the allocation groups of each member of a round-robin are: one range of numbers a member,
//! all of the same length, at whole multiples of it from the first number of the disk group on.
//!
//! A member keeps its range for as long as it is there: what lies on it has its place by that. So
//! one that goes leaves a range that is nobody's, in which another disk group may come to be, and
//! one that comes gets the lowest that is free.
//!
//! # Invariants
//!
//! - LS1: No two members have one range.

use crate::disk_group::GroupRange;
use crate::geometry::Geometry;
use crate::members::{LAYOUT_SLOTS_MAX, Layout, ROUND_ROBIN_WIDTH_MAX};

/// Which range each member has, counted from that which begins at the first number of the disk
/// group, in the order of the members. A disk group whose members have none of their own has one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lanes(Vec<u8>);

const _: () = assert!(2 * ROUND_ROBIN_WIDTH_MAX <= LAYOUT_SLOTS_MAX);

impl Lanes {
    /// Returns `count` ranges, one behind the other.
    #[must_use]
    pub fn in_a_row(count: u8) -> Lanes {
        Lanes((0..count).collect())
    }

    /// Returns those of a disk group that is made, of `members` members.
    #[must_use]
    pub fn of_new(layout: Layout, members: usize) -> Lanes {
        Lanes::in_a_row(layout.lanes(members))
    }

    /// Returns what bytes behind the slots of a layout say; `None`: two are one (LS1), or a layout
    /// of ranges in a row would say so by its kind.
    pub(crate) fn of_disk(named: &[u8]) -> Option<Lanes> {
        let is_twice = |(at, of): (usize, &u8)| named.iter().take(at).any(|other| other == of);
        let lanes = Lanes(named.to_vec());
        (!named.iter().enumerate().any(is_twice) && !lanes.are_in_a_row()).then_some(lanes)
    }

    /// Whether they are one behind the other, in the order of the members.
    #[must_use]
    pub fn are_in_a_row(&self) -> bool {
        self.iter().zip(0..).all(|(own, at)| own == at)
    }

    /// Returns them, in the order of the members.
    pub fn iter(&self) -> impl Iterator<Item = u8> + '_ {
        self.0.iter().copied()
    }

    /// Returns that of the member that is the `at`-th of its disk group.
    #[must_use]
    pub fn get(&self, at: usize) -> Option<u8> {
        self.0.get(at).copied()
    }

    /// Adds that of a further member, behind those of the others.
    pub(crate) fn push(&mut self, lane: u8) {
        self.0.push(lane);
    }

    /// Takes that of the `at`-th member out.
    pub(crate) fn remove(&mut self, at: usize) {
        let mut position = 0..;
        self.0.retain(|_| position.next() != Some(at));
    }
}

impl Geometry {
    /// Returns the first number of range `lane` of a disk group whose first number is `first`, and
    /// whose ranges have `count` each; `None`: there is no such number.
    #[must_use]
    pub fn first_of_lane(first: u32, lane: u8, count: u32) -> Option<u32> {
        count.checked_mul(lane.into())?.checked_add(first)
    }

    /// Returns the lowest range of those of `one`, the first, that nobody has: it lies beside all
    /// others, and in what the group table has room for. `None`: there is none.
    #[must_use]
    pub fn free_lane(&self, one: &GroupRange) -> Option<(u8, GroupRange)> {
        let end = u32::try_from(self.group_numbers_max()).unwrap_or(u32::MAX);
        let at = |lane: u8| {
            let first = Geometry::first_of_lane(one.first, lane, one.count)?;
            Some((lane, GroupRange { first, ..*one }))
        };
        let is_free = |(_, range): &(u8, GroupRange)| {
            let overlaps = |other: std::ops::Range<u32>| {
                range.first < other.end && other.start < range.numbers().end
            };
            // What is free in front may have become the main disk group's.
            let mut others = self.added.iter().map(GroupRange::taken);
            range.first.checked_add(range.count).is_some_and(|behind| behind <= end)
                && !overlaps(self.taken_by_main())
                && !others.any(overlaps)
        };
        (0..=u8::MAX).filter_map(at).find(is_free)
    }
}
