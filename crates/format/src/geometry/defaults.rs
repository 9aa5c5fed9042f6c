//! Default sizes of the parts of a pool.

use super::{GROUP_BYTES_DEFAULT, JOURNAL_BYTES_DEFAULT, JOURNAL_BYTES_MIN, MIB};

pub(super) fn default_segment_bytes(device_bytes: u64) -> u64 {
    if device_bytes >= 256 * MIB { MIB } else { 128 << 10 }
}

pub(super) fn default_group_bytes(device_bytes: u64) -> u64 {
    let largest = if device_bytes > 512 << 40 { 4 << 30 } else { GROUP_BYTES_DEFAULT };
    (device_bytes / 8).next_power_of_two().clamp(2 * MIB, largest)
}

pub(super) fn default_journal_bytes(device_bytes: u64) -> u64 {
    (device_bytes / 64).next_power_of_two().clamp(JOURNAL_BYTES_MIN, JOURNAL_BYTES_DEFAULT)
}
