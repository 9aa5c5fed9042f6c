//! The heartbeat: who has the pool open to write to it, and that he lives.
//!
//! It is written every few seconds while the pool is open, and never flushed: it tells others that
//! look, not a later life. Whoever finds a pool open looks at it before he writes anything; a pool
//! that was closed belongs to nobody, whatever is here.
//!
//! # Layout
//!
//! One page on the first device, between the front copies of the superblock. All that counts is in
//! its first sector, so that no crash tears it.

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::checksum::crc32c;
use crate::ids::PoolId;
use crate::page::{PAGE_BYTES, PageBytes};

/// First byte of the heartbeat's page on the first device.
pub const HEARTBEAT_OFFSET: u64 = 32 << 10;
/// Bytes that count: the smallest sector.
pub const HEARTBEAT_BYTES: usize = 512;
/// Bytes of the name of a machine.
pub const MACHINE_NAME_BYTES: usize = 64;
/// Shortest interval that is believed.
const INTERVAL_MS_MIN: u32 = 100;
/// Longest interval that is believed: whoever finds the pool open waits for two.
const INTERVAL_MS_MAX: u32 = 60_000;

const MAGIC: [u8; 8] = *b"HFHEARTB";
const CRC_COVERS_FROM: usize = 12;

/// The heartbeat, byte for byte. Format: `docs/FORMAT.md#heartbeat`.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy)]
#[repr(C)]
struct HeartbeatDisk {
    /// [`MAGIC`].
    magic: [u8; 8],
    /// CRC-32C of every byte after this field. Detects rot.
    crc32c: U32,
    /// Milliseconds from one to the next.
    interval_ms: U32,
    /// Detects what another pool left here.
    pool_id: [u8; 16],
    /// Rises with each: one that moves is of somebody who lives.
    counter: U64,
    /// The machine, for messages.
    machine_id: [u8; 16],
    /// The run of the machine's system. Zero: nobody has opened the pool yet.
    boot_id: [u8; 16],
    /// The process, as it is numbered in its namespace.
    process: U32,
    /// Zero.
    reserved_a: U32,
    /// When the process began: tells it from a later one with its number.
    process_started: U64,
    /// The namespace in which the number counts.
    process_namespace: U64,
    /// Device and inode of what the process has locked; zero: nothing.
    lock: [U64; 2],
    /// What the machine is called, padded with zeros.
    machine_name: [u8; MACHINE_NAME_BYTES],
    /// Zero.
    reserved: [u8; 336],
}

const _: () = assert!(size_of::<HeartbeatDisk>() == HEARTBEAT_BYTES);
const _: () = assert!(std::mem::offset_of!(HeartbeatDisk, crc32c) == 8);

/// A process on a machine that has a pool open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Holder {
    /// The machine; two that were copied from each other may have the same.
    pub machine_id: [u8; 16],
    /// The run of its system, unlike any other run of any machine.
    pub boot_id: [u8; 16],
    /// The process, as it is numbered in its namespace.
    pub process: u32,
    /// When the process began, in units of its system.
    pub process_started: u64,
    /// The namespace in which the number counts.
    pub process_namespace: u64,
    /// Device and inode of what it has locked, as its system numbers them.
    pub lock: Option<[u64; 2]>,
    /// What the machine is called, padded with zeros.
    pub machine_name: [u8; MACHINE_NAME_BYTES],
}

impl Holder {
    /// What a new pool has: nobody has opened it yet.
    pub const NOBODY: Holder = Holder {
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
    pub fn is_same_process(&self, other: &Holder) -> bool {
        (self.boot_id, self.process, self.process_started, self.process_namespace)
            == (other.boot_id, other.process, other.process_started, other.process_namespace)
    }
}

/// A verified heartbeat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Heartbeat {
    /// Identity of the pool.
    pub pool_id: PoolId,
    /// Who has it open.
    pub holder: Holder,
    /// Rises with each.
    pub counter: u64,
    /// Milliseconds from one to the next.
    pub interval_ms: u32,
}

impl Heartbeat {
    /// Returns the heartbeat in `bytes`; `None` if there is none of this pool that verifies.
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
        let holder = Holder {
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

    /// Returns the page that holds it.
    ///
    /// # Panics
    ///
    /// If the interval is out of bounds: a bug in the caller.
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
        let holder = Holder {
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

    /// Goal: what a crash may tear apart does not count.
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
