//! The heartbeat: shows that a live process has the pool open for writing.
//!
//! It is written every few seconds and never flushed, because only concurrent opens need it. An
//! open reads it before any write, if the pool is marked open.
//!
//! # Layout
//!
//! One page on the first device, between the front superblocks. Only its first sector counts, so a
//! crash can't tear it.

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::checksum::crc32c;
use crate::ids::PoolId;
use crate::page::{PAGE_BYTES, PageBytes};

/// Byte of the heartbeat's page on the first device.
pub const HEARTBEAT_OFFSET: u64 = 32 << 10;
/// Bytes that count: the smallest sector.
pub const HEARTBEAT_BYTES: usize = 512;
/// Bytes of a machine name.
pub const MACHINE_NAME_BYTES: usize = 64;
/// Shortest valid interval.
const INTERVAL_MS_MIN: u32 = 100;
/// Longest valid interval: an open waits for two.
const INTERVAL_MS_MAX: u32 = 60_000;

const MAGIC: [u8; 8] = *b"HFHEARTB";
const CRC_COVERS_FROM: usize = 12;

/// Format: `docs/FORMAT.md#heartbeat`. For fields without comment see [`PoolHolder`] and
/// [`Heartbeat`].
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy)]
#[repr(C)]
struct HeartbeatDisk {
    magic: [u8; 8],
    /// CRC-32C of every byte after this field. Detects rot.
    crc32c: U32,
    interval_ms: U32,
    /// Detects the heartbeat of another pool.
    pool_id: [u8; 16],
    /// Is the holder alive? Rises at each interval.
    counter: U64,
    machine_id: [u8; 16],
    /// Zero: the pool was never opened.
    boot_id: [u8; 16],
    process: U32,
    reserved_a: U32,
    /// Detects a later process with the same number.
    process_started: U64,
    process_namespace: U64,
    /// Zero: no lock.
    lock: [U64; 2],
    machine_name: [u8; MACHINE_NAME_BYTES],
    reserved: [u8; 336],
}

const _: () = assert!(size_of::<HeartbeatDisk>() == HEARTBEAT_BYTES);
const _: () = assert!(std::mem::offset_of!(HeartbeatDisk, crc32c) == 8);

/// A process that has a pool open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolHolder {
    /// Machine id, for messages; copied machines may share it.
    pub machine_id: [u8; 16],
    /// Boot of the machine, unique among all machines.
    pub boot_id: [u8; 16],
    /// Process number in its namespace.
    pub process: u32,
    /// Start of the process, in units of its system.
    pub process_started: u64,
    /// Process namespace.
    pub process_namespace: u64,
    /// Device and inode of the locked file, by the holder's system.
    pub lock: Option<[u64; 2]>,
    /// Host name, padded with zeros.
    pub machine_name: [u8; MACHINE_NAME_BYTES],
}

impl PoolHolder {
    /// Holder in a pool that was never opened.
    pub const NOBODY: PoolHolder = PoolHolder {
        machine_id: [0; 16],
        boot_id: [0; 16],
        process: 0,
        process_started: 0,
        process_namespace: 0,
        lock: None,
        machine_name: [0; MACHINE_NAME_BYTES],
    };

    /// Whether both are one process.
    #[must_use]
    pub fn is_same_process(&self, other: &PoolHolder) -> bool {
        (self.boot_id, self.process, self.process_started, self.process_namespace)
            == (other.boot_id, other.process, other.process_started, other.process_namespace)
    }
}

/// A verified heartbeat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Heartbeat {
    /// Identity of the pool.
    pub pool_id: PoolId,
    /// Process with the pool open.
    pub holder: PoolHolder,
    /// Rises with each heartbeat.
    pub counter: u64,
    /// Milliseconds between heartbeats.
    pub interval_ms: u32,
}

impl Heartbeat {
    /// Verifies `bytes`; `None` without a valid heartbeat of this pool.
    #[must_use]
    pub fn decode(bytes: &[u8], pool_id: PoolId) -> Option<Heartbeat> {
        let bytes = bytes.first_chunk::<HEARTBEAT_BYTES>()?;
        let disk: &HeartbeatDisk = zerocopy::transmute_ref!(bytes);
        let is_whole = disk.magic == MAGIC
            && disk.crc32c.get() == crc32c(&bytes[CRC_COVERS_FROM..])
            && disk.pool_id == pool_id.0;
        let interval_ms = disk.interval_ms.get();
        if !is_whole || !(INTERVAL_MS_MIN..=INTERVAL_MS_MAX).contains(&interval_ms) {
            return None;
        }
        let lock = disk.lock.map(U64::get);
        let holder = PoolHolder {
            machine_id: disk.machine_id,
            boot_id: disk.boot_id,
            process: disk.process.get(),
            process_started: disk.process_started.get(),
            process_namespace: disk.process_namespace.get(),
            lock: (lock != [0; 2]).then_some(lock),
            machine_name: disk.machine_name,
        };
        Some(Heartbeat { pool_id, holder, counter: disk.counter.get(), interval_ms })
    }

    /// Returns the page with the heartbeat.
    ///
    /// # Panics
    ///
    /// If the interval is out of bounds.
    #[must_use]
    pub fn encode(&self) -> PageBytes {
        let holder = &self.holder;
        let mut disk = HeartbeatDisk::new_zeroed();
        disk.magic = MAGIC;
        disk.interval_ms = U32::new(self.interval_ms);
        disk.pool_id = self.pool_id.0;
        disk.counter = U64::new(self.counter);
        disk.machine_id = holder.machine_id;
        disk.boot_id = holder.boot_id;
        disk.process = U32::new(holder.process);
        disk.process_started = U64::new(holder.process_started);
        disk.process_namespace = U64::new(holder.process_namespace);
        disk.lock = holder.lock.unwrap_or_default().map(U64::new);
        disk.machine_name = holder.machine_name;
        let mut sector: [u8; HEARTBEAT_BYTES] = zerocopy::transmute!(disk);
        let crc = crc32c(&sector[CRC_COVERS_FROM..]);
        sector[8..12].copy_from_slice(&crc.to_le_bytes());
        let mut bytes = [0; PAGE_BYTES];
        bytes[..HEARTBEAT_BYTES].copy_from_slice(&sector);
        // Pair assertion: never write what could not be read back.
        assert_eq!(Heartbeat::decode(&bytes, self.pool_id).as_ref(), Some(self));
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const POOL: PoolId = PoolId([4; 16]);

    fn sample() -> Heartbeat {
        let holder = PoolHolder {
            machine_id: [1; 16],
            boot_id: [2; 16],
            process: 3,
            process_started: 4,
            process_namespace: 5,
            lock: Some([6, 7]),
            machine_name: [b'm'; MACHINE_NAME_BYTES],
        };
        Heartbeat { pool_id: POOL, holder, counter: 8, interval_ms: 5000 }
    }

    #[test]
    fn every_flipped_bit_that_counts_is_refused() {
        let mut bytes = sample().encode();
        assert_eq!(Heartbeat::decode(&bytes, POOL), Some(sample()));
        for bit in 0..8 * HEARTBEAT_BYTES {
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(Heartbeat::decode(&bytes, POOL), None, "bit {bit}");
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
    }

    /// Goal: bytes that a crash may tear do not count.
    #[test]
    fn behind_the_first_sector_nothing_counts() {
        let mut bytes = sample().encode();
        bytes[HEARTBEAT_BYTES..].fill(0xff);
        assert_eq!(Heartbeat::decode(&bytes, POOL), Some(sample()));
    }

    #[test]
    fn what_is_no_heartbeat_of_this_pool_is_none() {
        let bytes = sample().encode();
        assert_eq!(Heartbeat::decode(&bytes, PoolId([5; 16])), None);
        assert_eq!(Heartbeat::decode(&bytes[..100], POOL), None);
        assert_eq!(Heartbeat::decode(&[0; PAGE_BYTES], POOL), None);
        for interval_ms in [0, 99, 60_001, u32::MAX] {
            let mut bytes = bytes;
            bytes[12..16].copy_from_slice(&interval_ms.to_le_bytes());
            let crc = crc32c(&bytes[CRC_COVERS_FROM..HEARTBEAT_BYTES]);
            bytes[8..12].copy_from_slice(&crc.to_le_bytes());
            assert_eq!(Heartbeat::decode(&bytes, POOL), None, "{interval_ms}");
        }
    }
}
