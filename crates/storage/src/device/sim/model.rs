//! Timing model of a simulated disk.
//!
//! Only the proportions matter: seek to transfer, flush to cached write, and queueing. The figures
//! are from data sheets.

use crate::convert::to_usize;

const NS_PER_SECOND: u128 = 1_000_000_000;

/// Costs of a disk.
#[derive(Clone, Copy, Debug)]
pub struct DiskModel {
    /// Name for reports.
    pub name: &'static str,
    /// Overhead per request: interface and firmware.
    pub request_ns: u64,
    /// Shortest seek, to the next track, or 0.
    pub seek_ns_min: u64,
    /// Longest seek, over the whole device. Seek time grows with the square root of the distance.
    pub seek_ns_max: u64,
    /// Time of a revolution, or 0.
    pub rotation_ns: u64,
    /// Transfer rate of the medium.
    pub media_bytes_per_second: u64,
    /// Transfer rate of the cache.
    pub cache_bytes_per_second: u64,
    /// Capacity of the cache. Writes beyond it wait for the medium.
    pub cache_bytes: u64,
    /// Overhead of a flush.
    pub flush_ns: u64,
    /// Concurrent requests, 1 for a single arm. At most [`CHANNELS_MAX`].
    pub channels: u32,
}

/// More channels have no effect at the queue depths in use.
pub const CHANNELS_MAX: usize = 16;

/// Bytes per revolution.
const TRACK_BYTES: u64 = 1 << 20;

impl DiskModel {
    /// A 7200 rpm disk.
    #[must_use]
    pub const fn hdd() -> DiskModel {
        DiskModel {
            name: "hdd",
            request_ns: 50_000,
            seek_ns_min: 1_000_000,
            seek_ns_max: 16_000_000,
            rotation_ns: 8_333_333,
            media_bytes_per_second: 200_000_000,
            cache_bytes_per_second: 500_000_000,
            cache_bytes: 64 << 20,
            flush_ns: 100_000,
            channels: 1,
        }
    }

    /// A solid-state disk with a volatile cache.
    #[must_use]
    pub const fn ssd() -> DiskModel {
        DiskModel {
            name: "ssd",
            request_ns: 60_000,
            seek_ns_min: 0,
            seek_ns_max: 0,
            rotation_ns: 0,
            media_bytes_per_second: 1_000_000_000,
            cache_bytes_per_second: 3_000_000_000,
            cache_bytes: 256 << 20,
            flush_ns: 500_000,
            channels: 8,
        }
    }

    /// A disk that takes no time, for tests of function only.
    #[must_use]
    pub const fn instant() -> DiskModel {
        DiskModel {
            name: "instant",
            request_ns: 0,
            seek_ns_min: 0,
            seek_ns_max: 0,
            rotation_ns: 0,
            media_bytes_per_second: u64::MAX,
            cache_bytes_per_second: u64::MAX,
            cache_bytes: u64::MAX,
            flush_ns: 0,
            channels: 1,
        }
    }
}

#[derive(Clone, Debug)]
pub(super) struct Disk {
    model: DiskModel,
    size_bytes: u64,
    /// Time when each channel becomes idle.
    busy_until_ns: [u64; CHANNELS_MAX],
    head: u64,
    cached_bytes: u64,
    /// Runs of adjacent writes in the cache. Each costs a seek when flushed.
    cached_runs: u64,
    last_write_end: u64,
}

impl Disk {
    pub(super) fn new(model: DiskModel, size_bytes: u64) -> Disk {
        assert!(model.channels > 0);
        assert!(to_usize(u64::from(model.channels)) <= CHANNELS_MAX);
        let busy_until_ns = [0; CHANNELS_MAX];
        let (head, cached_bytes, cached_runs, last_write_end) = (0, 0, 0, u64::MAX);
        Disk { model, size_bytes, busy_until_ns, head, cached_bytes, cached_runs, last_write_end }
    }

    pub(super) fn read(&mut self, now_ns: u64, offset: u64, length_bytes: u64) -> u64 {
        let channel = self.next_channel();
        let begin = self.busy_until_ns[channel].max(now_ns) + self.model.request_ns;
        let end = self.access(begin, offset, length_bytes);
        self.busy_until_ns[channel] = end;
        end
    }

    /// Returns the completion time of a write, which is cached if the cache has room.
    pub(super) fn write(&mut self, now_ns: u64, offset: u64, length_bytes: u64) -> u64 {
        let channel = self.next_channel();
        let begin = self.busy_until_ns[channel].max(now_ns) + self.model.request_ns;
        let end = if self.cached_bytes.saturating_add(length_bytes) <= self.model.cache_bytes {
            self.cached_bytes += length_bytes;
            self.cached_runs += u64::from(offset != self.last_write_end);
            begin + duration_ns(length_bytes, self.model.cache_bytes_per_second)
        } else {
            self.access(begin, offset, length_bytes)
        };
        self.last_write_end = offset + length_bytes;
        self.busy_until_ns[channel] = end;
        end
    }

    /// Returns the completion time of a flush, which waits for all channels.
    pub(super) fn flush(&mut self, now_ns: u64) -> u64 {
        let idle = self.busy_until_ns.iter().copied().max().expect("CHANNELS_MAX is above 0");
        // Sorted by offset: short seeks, and half a revolution each.
        let per_run = self.model.seek_ns_min + self.model.rotation_ns / 2;
        let writing = duration_ns(self.cached_bytes, self.model.media_bytes_per_second)
            + per_run * self.cached_runs;
        let end = idle.max(now_ns) + self.model.request_ns + self.model.flush_ns + writing;
        self.busy_until_ns = [end; CHANNELS_MAX];
        self.cached_bytes = 0;
        self.cached_runs = 0;
        end
    }

    fn next_channel(&self) -> usize {
        let channels = &self.busy_until_ns[..to_usize(u64::from(self.model.channels))];
        let earliest = channels.iter().enumerate().min_by_key(|&(_, until)| until);
        earliest.expect("a model has a channel").0
    }

    /// Seeks, waits for the rotation, and transfers.
    fn access(&mut self, begin_ns: u64, offset: u64, length_bytes: u64) -> u64 {
        let mut at = begin_ns;
        if offset != self.head {
            at += self.seek_ns(self.head.abs_diff(offset)) + self.rotation_wait_ns(at, offset);
        }
        self.head = offset + length_bytes;
        at + duration_ns(length_bytes, self.model.media_bytes_per_second)
    }

    fn seek_ns(&self, distance: u64) -> u64 {
        const SCALE: u64 = 1 << 10;
        let share = u128::from(distance) * u128::from(SCALE * SCALE) / u128::from(self.size_bytes);
        let root = u64::try_from(share).expect("the distance is below the size").isqrt();
        let range = self.model.seek_ns_max - self.model.seek_ns_min;
        self.model.seek_ns_min + range * root / SCALE
    }

    fn rotation_wait_ns(&self, now_ns: u64, offset: u64) -> u64 {
        let rotation_ns = self.model.rotation_ns;
        if rotation_ns == 0 {
            return 0;
        }
        let target = u128::from(offset % TRACK_BYTES) * u128::from(rotation_ns);
        let target = u64::try_from(target / u128::from(TRACK_BYTES)).expect("below a revolution");
        (target + rotation_ns - now_ns % rotation_ns) % rotation_ns
    }
}

fn duration_ns(bytes: u64, bytes_per_second: u64) -> u64 {
    let duration = u128::from(bytes) * NS_PER_SECOND / u128::from(bytes_per_second);
    u64::try_from(duration).expect("a request takes less than 584 years")
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: u64 = 1 << 40;

    /// Time of `count` successive 4 KiB reads at offsets `step` bytes apart.
    fn reads_ns(model: DiskModel, count: u64, step: u64) -> u64 {
        let mut disk = Disk::new(model, SIZE);
        (0..count).fold(0, |now, nth| disk.read(now, nth * step % SIZE, 4096))
    }

    #[test]
    fn hdd_reads_in_sequence_much_faster_than_at_random() {
        let sequential = reads_ns(DiskModel::hdd(), 100, 4096);
        let random = reads_ns(DiskModel::hdd(), 100, 4096 * 97_656_251);
        assert!(random > 50 * sequential, "{random} {sequential}");
        let per_read_ms = random / 100 / 1_000_000;
        assert!((4..20).contains(&per_read_ms), "{per_read_ms} ms");
        let far = reads_ns(DiskModel::hdd(), 2, SIZE - 8192);
        assert!(far > 15_900_000, "{far}");
        assert_eq!(reads_ns(DiskModel::instant(), 100, 4096), 0);
    }

    #[test]
    fn ssd_serves_eight_requests_in_the_time_of_one() {
        let mut disk = Disk::new(DiskModel::ssd(), SIZE);
        let ends: Vec<u64> = (0..9).map(|nth| disk.read(0, nth << 20, 4096)).collect();
        assert_eq!(ends[0], ends[7]);
        assert_eq!(ends[8], 2 * ends[0]);
    }

    #[test]
    fn writes_are_cheap_until_flushed_or_until_the_cache_is_full() {
        let mut disk = Disk::new(DiskModel::hdd(), SIZE);
        let mut now = 0;
        for nth in 0..10 {
            now = disk.write(now, nth * (1 << 30), 4096);
        }
        assert!(now < 2_000_000, "{now}");
        let flushed = disk.flush(now);
        assert!(flushed - now > 10 * 5_000_000, "ten runs, ten revolutions: {}", flushed - now);
        assert!(disk.flush(flushed) - flushed < 1_000_000, "nothing left to write");

        let model = DiskModel { cache_bytes: 8192, ..DiskModel::hdd() };
        let mut disk = Disk::new(model, SIZE);
        let cached = disk.write(0, 1 << 30, 8192);
        assert!(disk.write(cached, 1 << 35, 4096) - cached > 1_000_000);
    }
}
