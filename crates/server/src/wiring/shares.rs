//! Converts a position of a walk, or stale ranges, from bytes of the pool to bytes of one device.
//!
//! A disk group's bytes in the pool are not contiguous. The fixed regions precede all allocation
//! groups, and allocation groups of other disk groups may lie between its own.

use std::ops::Range;

use engine::DiskGroupStatus;
use format::geometry::Geometry;
use format::missed::{PARTS, StaleParts, part_bytes};

/// The ranges of the pool that lie, at least in part, on one device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct DevicePoolRanges {
    ranges: Vec<Range<u64>>,
    pub(super) device_bytes: u64,
}

impl DevicePoolRanges {
    pub(super) fn of(
        geometry: &Geometry,
        group: &DiskGroupStatus,
        slot: usize,
    ) -> DevicePoolRanges {
        let is_for_journal = group.has_journal && !group.is_main;
        let ranges = if is_for_journal {
            vec![geometry.group_layout().journal_range()]
        } else if group.is_main {
            vec![0..geometry.groups_offset, geometry.group_layout().main_bytes()]
        } else {
            let at = group.slots.position(slot);
            let own = geometry.added.iter().filter(|range| {
                let is_own_lane = range.lane.is_none_or(|lane| at == Some(usize::from(lane)));
                range.disk_group == group.number && is_own_lane
            });
            own.map(|range| geometry.group_layout().bytes_of(range)).collect()
        };
        DevicePoolRanges { ranges, device_bytes: group.member_bytes }
    }

    pub(super) fn walked(&self, cursor: u64) -> u64 {
        self.on_device(self.within(&(0..cursor)))
    }

    pub(super) fn missed(&self, geometry: &Geometry, missed: StaleParts) -> u64 {
        let (bytes, first) = (part_bytes(geometry), geometry.groups_offset);
        let starts = (0..PARTS).filter(|part| missed.has(*part)).map(|part| first + part * bytes);
        let mut all = 0;
        for start in starts {
            // The last part extends to the end of the pool.
            let is_last = start == first + (PARTS - 1) * bytes;
            let end = if is_last { u64::MAX } else { start + bytes };
            all += self.within(&(start..end));
        }
        self.on_device(all)
    }

    fn within(&self, of: &Range<u64>) -> u64 {
        let part = |own: &Range<u64>| own.end.min(of.end).saturating_sub(own.start.max(of.start));
        self.ranges.iter().map(part).sum()
    }

    /// Scales bytes of the pool to bytes of the device, which has only a part of each stripe.
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

    /// Goal: the progress of a walk counts only ranges of the device, and never exceeds the
    /// device's used bytes.
    #[test]
    fn a_walk_counts_what_the_device_has_of_it() {
        // The main disk group lies behind another group, and each of its 100 MiB devices has half
        // of it.
        let ranges = vec![0..8 * MIB, 600 * MIB..792 * MIB];
        let share = DevicePoolRanges { ranges, device_bytes: 100 * MIB };
        for (cursor, expected) in [(0, 0), (8, 4), (300, 4), (600, 4), (696, 52), (792, 100)] {
            assert_eq!(share.walked(cursor * MIB), expected * MIB, "{cursor}");
        }
        assert_eq!(share.walked(u64::MAX), 100 * MIB);
        let journal = DevicePoolRanges {
            ranges: vec![MIB..2 * MIB, 2 * MIB..3 * MIB],
            device_bytes: 2 * MIB,
        };
        assert_eq!((journal.walked(MIB), journal.walked(2 * MIB)), (0, MIB));
        let nothing = DevicePoolRanges { ranges: Vec::new(), device_bytes: 64 * MIB };
        assert_eq!(nothing.walked(u64::MAX), 0);
    }
}
