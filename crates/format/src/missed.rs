//! What a member has missed while it was away: a map of the parts of the pool that were written.
//!
//! # Invariants
//!
//! - MP1: A part of which any byte in groups was written while a member was away, and that write
//!   was answered, is set in the map of that member; so is each that was written before and may not
//!   have been durable on it when it went.
//!
//! Fixed regions are in no part: a member that comes back gets them whole.

use std::ops::Range;

use zerocopy::little_endian::U16;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::geometry::{Geometry, SUPERBLOCK_AREA_BYTES};
use crate::members::{MIRROR_WIDTH_MAX, Member, MemberState};
use crate::superblock::{DISK_GROUPS_MAX, SuperblockError};

/// Parts that the groups of a pool are cut into.
pub const PARTS: u64 = 256;
/// A part is a multiple of this, so that small pools have fewer.
pub const PART_BYTES_MIN: u64 = 64 << 10;
/// Most members that may be away with a map: of each disk group all but one of the widest mirror.
pub const MISSED_MAX: usize = 16;

const _: () = assert!(DISK_GROUPS_MAX * (MIRROR_WIDTH_MAX - 1) <= MISSED_MAX);

/// What a member has missed. Format: `docs/FORMAT.md#missed`.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct MissedDisk {
    /// Slot of the member.
    pub slot: U16,
    /// Zero.
    pub reserved: [u8; 6],
    /// A bit for each part, from the first: bit p mod 8 of byte p / 8.
    pub parts: [u8; 32],
}

/// Some of the parts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Parts([u8; 32]);

impl Parts {
    /// None of them.
    pub const NONE: Parts = Parts([0; 32]);
    /// All of them, and whatever lies behind the main disk group.
    pub const ALL: Parts = Parts([0xff; 32]);

    /// Returns those that `range`, in bytes of the pool, lies in.
    #[must_use]
    pub fn of(geometry: &Geometry, range: &Range<u64>) -> Parts {
        Parts::of_size(part_bytes(geometry), geometry.groups_offset, range)
    }

    /// Returns those that `range` lies in where each part has `size` bytes, from the first group
    /// on.
    #[must_use]
    pub fn of_size(size: u64, groups_offset: u64, range: &Range<u64>) -> Parts {
        let mut parts = Parts::NONE;
        let Some(last) = range.end.checked_sub(groups_offset + 1) else { return parts };
        let first = range.start.saturating_sub(groups_offset) / size;
        if range.start < range.end {
            (first..(last / size + 1).min(PARTS)).for_each(|part| parts.add(part));
        }
        parts
    }

    fn bit(part: u64) -> (usize, u8) {
        (usize::try_from(part / 8).unwrap_or(usize::MAX), 1 << (part % 8))
    }

    /// Adds part number `part`; one past the last is none.
    pub fn add(&mut self, part: u64) {
        let (at, bit) = Parts::bit(part);
        if let Some(byte) = self.0.get_mut(at) {
            *byte |= bit;
        }
    }

    /// Whether part number `part` is among them.
    #[must_use]
    pub fn has(&self, part: u64) -> bool {
        let (at, bit) = Parts::bit(part);
        self.0.get(at).is_some_and(|byte| byte & bit != 0)
    }

    /// Returns these and the others.
    #[must_use]
    pub fn with(self, others: Parts) -> Parts {
        let mut both = self;
        both.0.iter_mut().zip(others.0).for_each(|(own, other)| *own |= other);
        both
    }

    /// Whether all of the others are among these.
    #[must_use]
    pub fn has_all(&self, others: &Parts) -> bool {
        self.with(*others) == *self
    }

    /// Whether any of the others is among these.
    #[must_use]
    pub fn has_any(&self, others: &Parts) -> bool {
        self.0.iter().zip(others.0).any(|(own, other)| own & other != 0)
    }

    /// Returns how many there are.
    #[must_use]
    pub fn count(&self) -> u32 {
        self.0.iter().map(|byte| byte.count_ones()).sum()
    }

    /// Returns the highest; `None`: there is none.
    #[must_use]
    pub fn last(&self) -> Option<u64> {
        (0..PARTS).rev().find(|part| self.has(*part))
    }
}

/// Returns how many bytes of the pool a part has.
#[must_use]
pub fn part_bytes(geometry: &Geometry) -> u64 {
    let end = geometry.device_bytes.saturating_sub(2 * SUPERBLOCK_AREA_BYTES);
    let bytes = end.saturating_sub(geometry.groups_offset);
    bytes.div_ceil(PARTS).next_multiple_of(PART_BYTES_MIN).max(PART_BYTES_MIN)
}

/// Returns the entries of those of `members` that have missed something, or may have.
pub(crate) fn missed_to_disk(members: &[Member]) -> Vec<MissedDisk> {
    let entry = |(slot, member): (u16, &Member)| {
        let parts = member.missed?.0;
        Some(MissedDisk { slot: U16::new(slot), reserved: [0; 6], parts })
    };
    // Whoever finds no room gets all when it comes back, and what it has counts as nothing.
    (0..).zip(members).filter_map(entry).take(MISSED_MAX).collect()
}

/// Puts what `disk` lists into the members: each of them once, and none that is online.
pub(crate) fn note_missed(
    disk: &[MissedDisk],
    members: &mut [Member],
) -> Result<(), SuperblockError> {
    for found in disk {
        let member = members.get_mut(usize::from(found.slot.get()));
        let is_away = |member: &&mut Member| match member.state {
            MemberState::Missing | MemberState::Failed | MemberState::Joining => {
                member.missed.is_none()
            }
            MemberState::Online | MemberState::Gone => false,
        };
        let Some(member) = member.filter(is_away) else {
            return Err(SuperblockError::BadField { field: "missed" });
        };
        member.missed = Some(Parts(found.parts));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::geometry::GeometryOptions;

    fn geometry(device_bytes: u64) -> Geometry {
        let options = GeometryOptions {
            device_bytes,
            fragment_bytes: 4096,
            segment_bytes: None,
            group_bytes: None,
            journal_bytes: None,
        };
        Geometry::plan(&options).expect("it fits")
    }

    /// Goal: each byte of the groups is in one part, of any pool, and no byte before them.
    #[test]
    fn every_byte_of_the_groups_is_in_one_part_and_a_range_in_all_that_it_touches() {
        for device_bytes in [16 << 20, 1 << 30, 17 << 40] {
            let geometry = geometry(device_bytes);
            let (start, size) = (geometry.groups_offset, part_bytes(&geometry));
            let end = device_bytes - 2 * SUPERBLOCK_AREA_BYTES;
            assert!(size * PARTS >= end - start);
            let of = |range: Range<u64>| Parts::of(&geometry, &range);
            assert_eq!(of(0..start), Parts::NONE);
            assert_eq!(of(start..start), Parts::NONE);
            let (first, last) = (of(start..start + 1), of(end - 1..end));
            assert!(first.has(0) && first.count() == 1);
            assert_eq!(last.count(), 1);
            assert_eq!(last.last(), Some((end - 1 - start) / size));
            let both = of(start + size - 1..start + size + 1);
            assert!(both.has(0) && both.has(1) && both.count() == 2);
            assert_eq!(of(start + size..start + 2 * size).count(), 1);
            assert_eq!(of(0..start + 1), first, "from before the groups");
            let all = of(0..u64::MAX);
            assert!(all.has_all(&last) && all.has_all(&both) && all.count() == 256);
            assert!(both.has_any(&first) && !both.has_all(&all) && !Parts::NONE.has_any(&all));
            assert_eq!(first.with(last).count(), 2);
        }
    }

    #[test]
    fn maps_come_back_as_they_were_written_and_only_of_members_that_are_away() {
        let mut members: Vec<Member> = (1..4).map(|id| Member::new([id; 16], 1 << 30)).collect();
        members[1].state = MemberState::Missing;
        members[2].state = MemberState::Joining;
        let plain = members.clone();
        let mut parts = Parts::NONE;
        parts.add(0);
        parts.add(255);
        parts.add(256);
        members[1].missed = Some(parts);
        members[2].missed = Some(Parts::NONE);
        let disk = missed_to_disk(&members);
        let mut found = plain.clone();
        assert_eq!(note_missed(&disk, &mut found), Ok(()));
        assert_eq!(found, members);
        let of_slot = |slot| [MissedDisk { slot: U16::new(slot), ..MissedDisk::default() }];
        for bad in [&of_slot(0)[..], &of_slot(3), &[disk[0], disk[0]]] {
            assert!(note_missed(bad, &mut plain.clone()).is_err(), "{bad:?}");
        }
    }
}
