//! Models of the disks in the papers.

use storage::device::sim::DiskModel;

/// The IBM 0661 of RAID-II (Shirriff 1995, table 6-1): 4316 rpm, 12 ms average seek, 1.679 MB/s
/// peak, of which its string leaves 1.6 (section 6.1.1). No write cache. Rotation and seek yield
/// the 20 ms of table 6-2.
pub(crate) const fn ibm_0661() -> DiskModel {
    DiskModel {
        name: "IBM 0661",
        request_ns: 500_000,
        seek_ns_min: 2_000_000,
        seek_ns_max: 20_750_000,
        rotation_ns: 13_901_567,
        media_bytes_per_second: 1_600_000,
        cache_bytes_per_second: 1_600_000,
        cache_bytes: 0,
        flush_ns: 0,
        channels: 1,
    }
}

/// A disk of the QFS paper (table 3): 36 MB/s. Other figures from data sheets of 10,000 rpm disks.
pub(crate) const fn of_qfs() -> DiskModel {
    DiskModel {
        name: "36 MB/s, 10,000 turns a minute",
        request_ns: 200_000,
        seek_ns_min: 600_000,
        seek_ns_max: 10_000_000,
        rotation_ns: 6_000_000,
        media_bytes_per_second: 36_000_000,
        cache_bytes_per_second: 36_000_000,
        cache_bytes: 0,
        flush_ns: 0,
        channels: 1,
    }
}
