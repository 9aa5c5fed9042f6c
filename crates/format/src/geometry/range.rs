//! Ranges of allocation groups behind those of the main disk group.

use std::ops::Range;

use super::SUPERBLOCK_AREA_BYTES;
use crate::stripes::StripeShape;

/// First byte of allocation groups on a member without room for the fixed regions.
pub const ADDED_GROUPS_OFFSET: u64 = 2 * SUPERBLOCK_AREA_BYTES;
/// Fewest segments of a last group: its front and a few more.
pub(crate) const LAST_SEGMENTS_MIN: u64 = 8;

/// A range of allocation groups of an added disk group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupRange {
    /// Number of the disk group.
    pub disk_group: u8,
    /// First byte on members; in stripes, in the space of the stripes.
    pub offset: u64,
    /// First group.
    pub first: u32,
    /// Number of groups.
    pub count: u32,
    /// Fragments of the last group.
    pub last_fragments: u32,
    /// Stripes of the disk group, if any.
    pub stripe: Option<StripeShape>,
    /// Index of the only member with this range, in a round-robin.
    pub lane: Option<u8>,
    /// Whether it may hold blocks of files.
    pub has_data: bool,
    /// Whether the disk group is being emptied: no allocation here.
    pub is_leaving: bool,
}

impl GroupRange {
    /// Returns the group numbers.
    #[must_use]
    pub fn numbers(&self) -> Range<u32> {
        self.first..self.first.saturating_add(self.count)
    }

    /// Returns how many numbers are reserved behind the range: one if the range begins with 0 and
    /// its disk group can become the main one
    /// ([`GroupLayout::taken_by_main`](crate::geometry::GroupLayout::taken_by_main)).
    pub(crate) fn kept_behind(&self) -> u32 {
        u32::from(self.first == 0 && self.offset != ADDED_GROUPS_OFFSET)
    }

    pub(crate) fn taken(&self) -> Range<u32> {
        self.first..self.numbers().end.saturating_add(self.kept_behind())
    }
}
