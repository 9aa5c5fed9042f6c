//! Targets of a load: raw disks, a striped RAID with updates in place, or a Holdfast file.

use engine::Pool;
use engine::api::{Caller, FileSystem, Ino};
use runtime::prng::Prng;
use storage::device::{
    AlignedBuffer, DeviceError, DeviceOperation, IoPurpose, SharedBytes, SharedDevice, Ticket,
};

use crate::LabError;
use crate::report::{to_u64, to_usize};

/// Stripe unit of Sawmill's array (section 6.1.2).
pub(crate) const UNIT_BYTES: u64 = 64 << 10;
const SECTOR_BYTES: u64 = 512;
/// The I/O purpose that aligns to sectors, not to pages.
const SECTORS: IoPurpose = IoPurpose::Journal;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    Read,
    Write,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct RandomLoad {
    pub(crate) direction: Direction,
    pub(crate) request_bytes: u64,
    /// Threads, each with one request at a time.
    pub(crate) streams: usize,
    /// Total over all streams.
    pub(crate) requests: u64,
}

pub(crate) trait LoadTarget: Sync {
    /// Executes one request at a random offset.
    fn request(&self, load: &RandomLoad, stream: usize, prng: &mut Prng) -> Result<(), LabError>;

    /// Writes back all writes.
    fn settle(&self) -> Result<(), LabError>;
}

fn read(disk: &SharedDevice, offset: u64, bytes: u64) -> Ticket {
    let buffer = AlignedBuffer::for_reading(to_usize(bytes));
    disk.submit(SECTORS, DeviceOperation::Read { offset, buffer })
}

fn write(disk: &SharedDevice, offset: u64, bytes: u64) -> Ticket {
    let data = vec![SharedBytes::from(AlignedBuffer::zeroed(to_usize(bytes)))];
    disk.submit(SECTORS, DeviceOperation::Write { offset, data })
}

fn wait(tickets: Vec<Ticket>) -> Result<(), DeviceError> {
    tickets.into_iter().try_for_each(|ticket| ticket.wait().map(drop))
}

fn ask(disk: &SharedDevice, direction: Direction, offset: u64, bytes: u64) -> Ticket {
    match direction {
        Direction::Read => read(disk, offset, bytes),
        Direction::Write => write(disk, offset, bytes),
    }
}

/// Returns a random offset for `bytes` within `span`, a multiple of `step`.
fn random_place(prng: &mut Prng, span: u64, bytes: u64, step: u64) -> u64 {
    prng.below((span - bytes) / step + 1) * step
}

/// Independent disks, without parity.
///
/// A request of a single stream uses as many disks as a stripe would ("scaled", section 6.1.2): one
/// per stripe unit, at most all. Each of several streams has its own disk.
pub(crate) struct RawDisks<'a> {
    pub(crate) disks: &'a [SharedDevice],
}

impl LoadTarget for RawDisks<'_> {
    fn request(&self, load: &RandomLoad, stream: usize, prng: &mut Prng) -> Result<(), LabError> {
        let count = to_u64(self.disks.len());
        let (first, width) = if load.streams > 1 {
            (to_u64(stream) % count, 1)
        } else {
            (prng.below(count), load.request_bytes.div_ceil(UNIT_BYTES).clamp(1, count))
        };
        let bytes = (load.request_bytes / width).next_multiple_of(SECTOR_BYTES);
        let tickets = (0..width).map(|nth| {
            let disk = &self.disks[to_usize((first + nth) % count)];
            let at = random_place(prng, disk.info().size_bytes, bytes, SECTOR_BYTES);
            ask(disk, load.direction, at, bytes)
        });
        Ok(wait(tickets.collect())?)
    }

    fn settle(&self) -> Result<(), LabError> {
        flush(self.disks)
    }
}

fn flush(disks: &[SharedDevice]) -> Result<(), LabError> {
    let flush = |disk: &SharedDevice| disk.submit(SECTORS, DeviceOperation::Flush);
    Ok(wait(disks.iter().map(flush).collect())?)
}

/// A RAID-5 with updates in place, without a file system. A write of less than a stripe reads old
/// data and parity, and writes both.
pub(crate) struct StripedRaid<'a> {
    pub(crate) disks: &'a [SharedDevice],
}

/// The part of a request in one stripe unit.
struct StripePart {
    stripe: u64,
    disk: u64,
    from: u64,
    bytes: u64,
}

impl StripedRaid<'_> {
    fn width(&self) -> u64 {
        to_u64(self.disks.len())
    }

    fn span(&self) -> u64 {
        let stripes = self.disks[0].info().size_bytes / UNIT_BYTES;
        stripes * UNIT_BYTES * (self.width() - 1)
    }

    /// Parity rotates with the stripes, from the last disk down.
    fn parity_of(&self, stripe: u64) -> u64 {
        self.width() - 1 - stripe % self.width()
    }

    fn parts(&self, offset: u64, bytes: u64) -> Vec<StripePart> {
        let (mut at, end) = (offset, offset + bytes);
        let mut parts = Vec::new();
        while at < end {
            let (unit, from) = (at / UNIT_BYTES, at % UNIT_BYTES);
            let stripe = unit / (self.width() - 1);
            let disk = (self.parity_of(stripe) + 1 + unit % (self.width() - 1)) % self.width();
            let bytes = (UNIT_BYTES - from).min(end - at);
            parts.push(StripePart { stripe, disk, from, bytes });
            at += bytes;
        }
        parts
    }

    fn ask(&self, direction: Direction, part: &StripePart) -> Ticket {
        let at = part.stripe * UNIT_BYTES + part.from;
        ask(&self.disks[to_usize(part.disk)], direction, at, part.bytes)
    }

    fn write(&self, parts: &[StripePart]) -> Result<(), LabError> {
        let stripe = parts[0].stripe;
        let from = parts.iter().map(|part| part.from).min().unwrap_or(0);
        let end = parts.iter().map(|part| part.from + part.bytes).max().unwrap_or(UNIT_BYTES);
        let parity = StripePart { stripe, disk: self.parity_of(stripe), from, bytes: end - from };
        let touched = || parts.iter().chain([&parity]);
        let written: u64 = parts.iter().map(|part| part.bytes).sum();
        if written < UNIT_BYTES * (self.width() - 1) {
            wait(touched().map(|part| self.ask(Direction::Read, part)).collect())?;
        }
        Ok(wait(touched().map(|part| self.ask(Direction::Write, part)).collect())?)
    }
}

impl LoadTarget for StripedRaid<'_> {
    fn request(&self, load: &RandomLoad, _: usize, prng: &mut Prng) -> Result<(), LabError> {
        // Whole stripes are aligned, as by a file system.
        let stripe_bytes = UNIT_BYTES * (self.width() - 1);
        let is_whole = load.request_bytes.is_multiple_of(stripe_bytes);
        let step = if is_whole { stripe_bytes } else { load.request_bytes.min(UNIT_BYTES) };
        let at = random_place(prng, self.span(), load.request_bytes, step);
        let parts = self.parts(at, load.request_bytes);
        match load.direction {
            Direction::Read => {
                Ok(wait(parts.iter().map(|part| self.ask(Direction::Read, part)).collect())?)
            }
            Direction::Write => {
                parts.chunk_by(|a, b| a.stripe == b.stripe).try_for_each(|parts| self.write(parts))
            }
        }
    }

    fn settle(&self) -> Result<(), LabError> {
        flush(self.disks)
    }
}

pub(crate) struct PoolFile<'a> {
    pub(crate) pool: &'a Pool,
    pub(crate) file: Ino,
    pub(crate) file_bytes: u64,
}

impl LoadTarget for PoolFile<'_> {
    fn request(&self, load: &RandomLoad, _: usize, prng: &mut Prng) -> Result<(), LabError> {
        let (caller, length) = (Caller::root(), to_usize(load.request_bytes));
        let step = load.request_bytes.min(UNIT_BYTES);
        let at = random_place(prng, self.file_bytes, load.request_bytes, step);
        match load.direction {
            Direction::Read => {
                let mut bytes = Vec::with_capacity(length);
                self.pool.read(&caller, self.file, at, length, &mut bytes)?;
            }
            Direction::Write => {
                // Zeros would be stored as holes.
                self.pool.write(
                    &caller,
                    self.file,
                    at,
                    &vec![prng.next_u64().to_le_bytes()[0] | 1; length],
                )?;
            }
        }
        Ok(())
    }

    fn settle(&self) -> Result<(), LabError> {
        Ok(self.pool.sync()?)
    }
}
