//! Stale parts of absent members: a bitmap of the written parts of the pool.
//!
//! # Invariants
//!
//! - MP1: A part is set for an absent member if an acknowledged write to groups in it came after
//!   the member left, or came before and may not be durable on the member.
//!
//! The fixed regions are in no part: a returning member gets them whole.

use std::ops::Range;

use zerocopy::little_endian::U16;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::geometry::{Geometry, SUPERBLOCK_AREA_BYTES};

/// Parts of a pool's groups.
pub const PARTS: u64 = 256;
/// Parts are multiples of this, so small pools have fewer.
pub const PART_BYTES_MIN: u64 = 64 << 10;
/// Most absent members with a map: in each disk group all members but one of the widest mirror.
pub const MISSED_MAX: usize = 16;

/// Stale parts of one member. Format: `docs/FORMAT.md#missed`.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct StalePartsDisk {
    /// Slot of the member.
    pub slot: U16,
    /// Zero.
    pub reserved: [u8; 6],
    /// One bit a part: bit p mod 8 of byte p / 8.
    pub parts: [u8; 32],
}

/// A set of parts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StaleParts(pub(crate) [u8; 32]);

impl StaleParts {
    /// The empty set.
    pub const NONE: StaleParts = StaleParts([0; 32]);
    /// All parts, and everything behind the main disk group.
    pub const ALL: StaleParts = StaleParts([0xff; 32]);

    /// Returns the parts that `range`, in bytes of the pool, touches.
    #[must_use]
    pub fn of(geometry: &Geometry, range: &Range<u64>) -> StaleParts {
        StaleParts::of_size(part_bytes(geometry), geometry.groups_offset, range)
    }

    /// Returns the parts that `range` touches, with parts of `size` bytes.
    #[must_use]
    pub fn of_size(size: u64, groups_offset: u64, range: &Range<u64>) -> StaleParts {
        let mut parts = StaleParts::NONE;
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

    /// Adds a part. Numbers past the last are ignored.
    pub fn add(&mut self, part: u64) {
        let (at, bit) = StaleParts::bit(part);
        if let Some(byte) = self.0.get_mut(at) {
            *byte |= bit;
        }
    }

    /// Whether the set has `part`.
    #[must_use]
    pub fn has(&self, part: u64) -> bool {
        let (at, bit) = StaleParts::bit(part);
        self.0.get(at).is_some_and(|byte| byte & bit != 0)
    }

    /// Returns the union.
    #[must_use]
    pub fn with(self, others: StaleParts) -> StaleParts {
        let mut both = self;
        both.0.iter_mut().zip(others.0).for_each(|(own, other)| *own |= other);
        both
    }

    /// Whether `others` is a subset.
    #[must_use]
    pub fn has_all(&self, others: &StaleParts) -> bool {
        self.with(*others) == *self
    }

    /// Whether the sets intersect.
    #[must_use]
    pub fn has_any(&self, others: &StaleParts) -> bool {
        self.0.iter().zip(others.0).any(|(own, other)| own & other != 0)
    }

    /// Returns the number of parts.
    #[must_use]
    pub fn count(&self) -> u32 {
        self.0.iter().map(|byte| byte.count_ones()).sum()
    }
}

/// Returns the bytes of a part.
#[must_use]
pub fn part_bytes(geometry: &Geometry) -> u64 {
    let end = geometry.device_bytes.saturating_sub(2 * SUPERBLOCK_AREA_BYTES);
    let bytes = end.saturating_sub(geometry.groups_offset);
    bytes.div_ceil(PARTS).next_multiple_of(PART_BYTES_MIN).max(PART_BYTES_MIN)
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

    /// Goal: each byte of the groups is in one part, others in none.
    #[test]
    fn every_byte_of_the_groups_is_in_one_part_and_a_range_in_all_that_it_touches() {
        for device_bytes in [16 << 20, 1 << 30, 17 << 40] {
            let geometry = geometry(device_bytes);
            let (start, size) = (geometry.groups_offset, part_bytes(&geometry));
            let end = device_bytes - 2 * SUPERBLOCK_AREA_BYTES;
            assert!(size * PARTS >= end - start);
            let of = |range: Range<u64>| StaleParts::of(&geometry, &range);
            assert_eq!(of(0..start), StaleParts::NONE);
            assert_eq!(of(start..start), StaleParts::NONE);
            let (first, last) = (of(start..start + 1), of(end - 1..end));
            assert!(first.has(0) && first.count() == 1);
            assert_eq!(last.count(), 1);
            assert!(last.has((end - 1 - start) / size));
            let both = of(start + size - 1..start + size + 1);
            assert!(both.has(0) && both.has(1) && both.count() == 2);
            assert_eq!(of(start + size..start + 2 * size).count(), 1);
            assert_eq!(of(0..start + 1), first, "from before the groups");
            let all = of(0..u64::MAX);
            assert!(all.has_all(&last) && all.has_all(&both) && all.count() == 256);
            assert!(both.has_any(&first) && !both.has_all(&all) && !StaleParts::NONE.has_any(&all));
            assert_eq!(first.with(last).count(), 2);
        }
    }
}
