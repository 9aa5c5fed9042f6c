//! What a device has of the pool, and how much of that a walk over the pool has done, or the device
//! has missed.
//!
//! Places of a walk are bytes of the pool. Those of a disk group need not follow each other: the
//! fixed regions lie in front of all allocation groups, and those of others may lie between.

use std::ops::Range;

use engine::DiskGroupStatus;
use format::geometry::Geometry;
use format::missed::{PARTS, Parts, part_bytes};

/// The bytes of the pool of which a device has a share.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Share {
    /// Where they are, in order.
    ranges: Vec<Range<u64>>,
    /// How many bytes of the device they are.
    pub(super) device_bytes: u64,
}

impl Share {
    /// Returns that of the device in `slot`, which is of `group`.
    pub(super) fn of(geometry: &Geometry, group: &DiskGroupStatus, slot: usize) -> Share {
        let is_for_journal = group.has_journal && !group.is_main;
        let ranges = if is_for_journal {
            vec![geometry.journal_range()]
        } else if group.is_main {
            vec![0..geometry.groups_offset, geometry.main_bytes()]
        } else {
            let at = group.slots.position(slot);
            let own = geometry.added.iter().filter(|range| {
                let is_own_lane = range.lane.is_none_or(|lane| at == Some(usize::from(lane)));
                range.disk_group == group.number && is_own_lane
            });
            own.map(|range| geometry.bytes_of(range)).collect()
        };
        Share { ranges, device_bytes: group.member_bytes }
    }

    /// Returns how many bytes of the device a walk has done that is at byte `cursor` of the pool.
    pub(super) fn walked(&self, cursor: u64) -> u64 {
        self.on_device(self.within(&(0..cursor)))
    }

    /// Returns how many bytes of the device lie in parts that it has missed.
    pub(super) fn missed(&self, geometry: &Geometry, missed: Parts) -> u64 {
        let (bytes, first) = (part_bytes(geometry), geometry.groups_offset);
        let starts = (0..PARTS).filter(|part| missed.has(*part)).map(|part| first + part * bytes);
        let mut all = 0;
        for start in starts {
            // Whatever lies behind the last part is of it.
            let is_last = start == first + (PARTS - 1) * bytes;
            let end = if is_last { u64::MAX } else { start + bytes };
            all += self.within(&(start..end));
        }
        self.on_device(all)
    }

    /// Returns how many bytes of the pool it has in `of`.
    fn within(&self, of: &Range<u64>) -> u64 {
        let part = |own: &Range<u64>| own.end.min(of.end).saturating_sub(own.start.max(of.start));
        self.ranges.iter().map(part).sum()
    }

    /// Returns how many bytes of the device so many of the pool are: in stripes a part of them.
    fn on_device(&self, of_pool: u64) -> u64 {
        let total = self.within(&(0..u64::MAX)).max(1);
        let share = u128::from(of_pool) * u128::from(self.device_bytes) / u128::from(total);
        u64::try_from(share).unwrap_or(self.device_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    /// Goal: a walk is told by what of it is the device's, whatever lies in front of that and
    /// between, and never as more than the pool uses of the device.
    #[test]
    fn a_walk_counts_what_the_device_has_of_it() {
        // The main disk group behind another, on devices of 100 MiB, of which each has half.
        let ranges = vec![0..8 * MIB, 600 * MIB..792 * MIB];
        let share = Share { ranges, device_bytes: 100 * MIB };
        for (cursor, expected) in [(0, 0), (8, 4), (300, 4), (600, 4), (696, 52), (792, 100)] {
            assert_eq!(share.walked(cursor * MIB), expected * MIB, "{cursor}");
        }
        assert_eq!(share.walked(u64::MAX), 100 * MIB);
        let journal = Share { ranges: vec![MIB..2 * MIB, 2 * MIB..3 * MIB], device_bytes: 2 * MIB };
        assert_eq!((journal.walked(MIB), journal.walked(2 * MIB)), (0, MIB));
        let nothing = Share { ranges: Vec::new(), device_bytes: 64 * MIB };
        assert_eq!(nothing.walked(u64::MAX), 0);
    }
}
