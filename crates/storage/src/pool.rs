//! Which devices make a pool: labels and the copies of the superblock.
//!
//! # Crashes
//!
//! An update writes the copies in two steps with a flush after each: one of the front pair and one
//! of the pair at the end, then the others. So some copy always verifies (S1), the one with the
//! highest sequence is current, and after an update no copy says anything older: one that rots
//! later costs nothing.
//!
//! A copy of the second step therefore tells that all members that got this update have the first
//! ([`SuperblockReport::settled`]): whoever shows an older label later is not what it was. And
//! where both copies of the second step are those of updates before, nothing was acknowledged
//! that waited for this one ([`SuperblockReport::epoch`]).
//!
//! A pool comes into being with one write: a creation writes all copies but the first, flushes, and
//! then writes the first. Of a pool that was never mounted, whose copies are those of its creation
//! ([`SEQUENCE_OF_CREATION`]), every copy must therefore be there (S3): if one was never written
//! the creation was cut off, and what lies below may be anything.

use format::geometry::{Geometry, POOL_BYTES_MIN, SUPERBLOCK_COPIES};
use format::members::Membership;
use format::superblock::{
    SUPERBLOCK_BYTES, SUPERBLOCK_HEAD_BYTES, Superblock, SuperblockError, bytes_in_use,
};

use crate::convert::to_u64;
use crate::device::{
    AlignedBuffer, Device, DeviceError, Operation, Purpose, SharedBytes, SharedDevice, Ticket,
};
use crate::members::MembersError;

/// Sequence of the copies that a creation writes; the first mount writes higher ones.
pub(crate) const SEQUENCE_OF_CREATION: u64 = 1;

/// What became of each copy of the superblock on one device.
#[derive(Debug)]
pub struct SuperblockReport {
    /// The current superblock.
    pub current: Superblock,
    /// What was wrong with each copy; `None`: it verifies.
    pub copies: Vec<Option<SuperblockError>>,
    /// The newest update, by its sequence, that all members have that got it: a copy of its second
    /// step is here.
    pub settled: u64,
    /// The label before `current`, where the update to that was only begun.
    pub before: Option<Box<Superblock>>,
}

impl SuperblockReport {
    /// Returns the newest epoch of membership in which anything may have been acknowledged with the
    /// device: an update of it may have come to its end there.
    #[must_use]
    pub fn epoch(&self) -> Membership {
        self.before.as_deref().unwrap_or(&self.current).membership()
    }

    /// Returns by what the newest of several labels is known: an epoch that was only begun decides
    /// less than one in which something may have been acknowledged.
    #[must_use]
    pub fn age(&self) -> (u64, u64) {
        (self.epoch().number, self.current.sequence)
    }
}

/// Why a device could not be opened as part of a pool.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PoolError {
    /// No copy verifies. The error of the copy that says most.
    #[error("{device}: {cause}")]
    Superblock {
        /// Name of the device.
        device: String,
        /// What is wrong with it.
        cause: SuperblockError,
    },
    /// The creation of the pool was cut off: there is no pool, and nothing is lost.
    #[error(
        "{device}: the creation of the pool was cut off, so there is none: make it again with \
         holdfast create --force"
    )]
    Unfinished {
        /// Name of the device.
        device: String,
    },
    /// A number in the label has come to its end. Its bytes were made up: restore them.
    #[error(
        "{device}: {field} in the label is as high as it can be, which no use of a pool brings \
         about: the label was changed by something else, and nothing is written to it; leave the \
         device out if others of the pool are there, else restore it from a copy"
    )]
    Worn {
        /// Name of the device.
        device: String,
        /// Which number.
        field: &'static str,
    },
    /// The devices do not make a pool together.
    #[error(transparent)]
    Members(#[from] MembersError),
    /// The device could not be read or written.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// Another has it open to write to it.
    #[error(
        "{device}: the pool is in use {by}: unmount it there; if that machine is known to be off, \
         mount with --force"
    )]
    InUse {
        /// Name of the device.
        device: String,
        /// `by process 5 of this machine`.
        by: String,
    },
    /// The device is shorter than the pool was made for: it was truncated.
    #[error(
        "{device}: {found_bytes} bytes, but the pool was made for {expected_bytes}: the device was \
         truncated; make it as long again (a file: truncate -s {expected_bytes} {device}) and \
         check it; only if that finds damage restore it from a copy"
    )]
    Truncated {
        /// Name of the device.
        device: String,
        /// What there is.
        found_bytes: u64,
        /// What there should be.
        expected_bytes: u64,
    },
}

/// Refuses a device that is known to take no writes, before the first is tried.
///
/// # Errors
///
/// [`DeviceError::ReadOnly`].
pub fn check_writable(device: &dyn Device) -> Result<(), PoolError> {
    let info = device.info();
    if info.is_read_only {
        return Err(DeviceError::ReadOnly { device: info.name.clone() }.into());
    }
    Ok(())
}

/// Reads every copy of the superblock and returns the current one.
///
/// # Errors
///
/// [`PoolError::Superblock`] when no copy verifies: [`SuperblockError::BadMagic`] for a device that
/// was never part of a pool.
pub fn read_superblock(device: &dyn Device) -> Result<SuperblockReport, PoolError> {
    let name = device.info().name.clone();
    let size_bytes = device.info().size_bytes;
    if size_bytes < POOL_BYTES_MIN {
        let cause = SuperblockError::BadField { field: "device size" };
        return front_copies_only(device, name, cause);
    }
    let mut copies = Vec::new();
    let mut settled = 0;
    for copy in 0..SUPERBLOCK_COPIES {
        let decoded = read_copy(device, Geometry::superblock_offset(size_bytes, copy), copy);
        if let Ok(label) = &decoded
            && steps_of(label.sequence)[1].contains(&copy)
        {
            settled = settled.max(label.sequence);
        }
        copies.push(decoded);
    }
    let Some(current) = copies.iter().flatten().max_by_key(|label| label.sequence).cloned() else {
        let copies: Vec<_> = copies.into_iter().map(Result::err).collect();
        return Err(PoolError::Superblock { device: name, cause: most_telling(&copies) });
    };
    let before = before_begun(&current, &copies).cloned().map(Box::new);
    let copies: Vec<_> = copies.into_iter().map(Result::err).collect();
    if let Some(field) = current.worn() {
        return Err(PoolError::Worn { device: name, field });
    }
    if is_unfinished(&current, &copies) && !was_finished_shorter(device, &current, &copies) {
        return Err(PoolError::Unfinished { device: name });
    }
    if current.own_bytes() > size_bytes {
        return Err(PoolError::Truncated {
            device: name,
            found_bytes: size_bytes,
            expected_bytes: current.own_bytes(),
        });
    }
    Ok(SuperblockReport { current, copies, settled, before })
}

/// Returns the label that a device had before the update to `current`, where that was only begun.
///
/// Each update that came to its end wrote both of the copies that the second step of the newest one
/// writes, in its first step or its second. So none has ended that is newer than both, though one
/// of them should be lost, or of a time when the device was longer.
fn before_begun<'c>(
    current: &Superblock,
    copies: &'c [Result<Superblock, SuperblockError>],
) -> Option<&'c Superblock> {
    // One that does not verify may have been of the second step.
    let of_copy = |copy: u16| {
        let label = copies.get(usize::from(copy))?.as_ref().ok()?;
        let is_before = label.sequence < current.sequence;
        (is_before && label.pool_id == current.pool_id).then_some(label)
    };
    let [front, end] = steps_of(current.sequence)[1];
    let (front, end) = of_copy(front).zip(of_copy(end))?;
    Some(if front.sequence > end.sequence { front } else { end })
}

/// Returns the copies that the two steps of update number `sequence` write.
pub(crate) fn steps_of(sequence: u64) -> [[u16; 2]; 2] {
    let turn = u16::from(!sequence.is_multiple_of(2));
    [[turn, 2], [1 - turn, 3]]
}

/// Whether the creation of the pool has written some copies and not yet all (S3). One that is torn
/// or rotten was written: the first mount tears copies as well.
fn is_unfinished(current: &Superblock, copies: &[Option<SuperblockError>]) -> bool {
    let blank = [0; 8];
    let mut errors = copies.iter().flatten();
    current.sequence == SEQUENCE_OF_CREATION
        && errors.any(|error| *error == SuperblockError::BadMagic { found: blank })
}

/// Whether the device was made longer since the pool was made on it, which was finished: the last
/// copies are where it ended then.
fn was_finished_shorter(
    device: &dyn Device,
    current: &Superblock,
    copies: &[Option<SuperblockError>],
) -> bool {
    let own = current.members.get(usize::from(current.device_index));
    let was = own.map_or(0, |member| member.size_bytes);
    let is_longer = (POOL_BYTES_MIN..device.info().size_bytes).contains(&was);
    let is_there = |copy| {
        let found = read_copy(device, Geometry::superblock_offset(was, copy), copy);
        found.is_ok_and(|label| label.sequence == current.sequence)
    };
    is_longer && !is_unfinished(current, &copies[..2]) && (2..SUPERBLOCK_COPIES).all(is_there)
}

/// Tells a truncated pool from a device that never was one, by the copies that lie at the front.
fn front_copies_only(
    device: &dyn Device,
    name: String,
    cause: SuperblockError,
) -> Result<SuperblockReport, PoolError> {
    let size_bytes = device.info().size_bytes;
    let offset_of = |copy| Geometry::superblock_offset(POOL_BYTES_MIN, copy);
    let is_there = |copy: &u16| offset_of(*copy) + to_u64(SUPERBLOCK_HEAD_BYTES) <= size_bytes;
    let copies = (0..2).filter(is_there).map(|copy| read_copy(device, offset_of(copy), copy));
    let copies: Vec<Result<Superblock, SuperblockError>> = copies.collect();
    if let Some(superblock) = copies.iter().flatten().max_by_key(|label| label.sequence) {
        return Err(PoolError::Truncated {
            device: name,
            found_bytes: size_bytes,
            expected_bytes: superblock.own_bytes(),
        });
    }
    let is_foreign = |error: &SuperblockError| matches!(error, SuperblockError::BadMagic { .. });
    let first = copies.into_iter().next().and_then(Result::err).filter(is_foreign);
    Err(PoolError::Superblock { device: name, cause: first.unwrap_or(cause) })
}

/// Reads one copy of the superblock, whatever it holds: as much as says anything, and zeros for the
/// rest. Returns where it lies as well.
///
/// # Errors
///
/// What the device said.
pub fn read_superblock_bytes(
    device: &dyn Device,
    copy: u16,
) -> Result<(u64, [u8; SUPERBLOCK_BYTES]), DeviceError> {
    let offset = Geometry::superblock_offset(device.info().size_bytes, copy);
    Ok((offset, read_bytes(device, offset)?))
}

fn read_bytes(device: &dyn Device, offset: u64) -> Result<[u8; SUPERBLOCK_BYTES], DeviceError> {
    let mut bytes = [0; SUPERBLOCK_BYTES];
    let (head, rest) = bytes.split_at_mut(SUPERBLOCK_HEAD_BYTES);
    head.copy_from_slice(&device.read(Purpose::Superblock, offset, head.len())?);
    if bytes_in_use(head) > head.len() {
        let offset = offset + to_u64(head.len());
        rest.copy_from_slice(&device.read(Purpose::Superblock, offset, rest.len())?);
    }
    Ok(bytes)
}

fn read_copy(device: &dyn Device, offset: u64, copy: u16) -> Result<Superblock, SuperblockError> {
    let unreadable = |_| SuperblockError::BadField { field: "copy can't be read" };
    Superblock::decode(&read_bytes(device, offset).map_err(unreadable)?, copy)
}

/// A newer version says more than a bad checksum, and that more than a foreign magic.
fn most_telling(copies: &[Option<SuperblockError>]) -> SuperblockError {
    let weight = |error: &SuperblockError| match error {
        SuperblockError::UnsupportedVersion { .. }
        | SuperblockError::OldVersion { .. }
        | SuperblockError::UnsupportedFeatures { .. }
        | SuperblockError::NotImplemented { .. } => 3,
        SuperblockError::BadField { .. } | SuperblockError::Misplaced { .. } => 2,
        SuperblockError::BadChecksum { .. } => 1,
        SuperblockError::BadMagic { .. } | _ => 0,
    };
    copies
        .iter()
        .flatten()
        .max_by_key(|error| weight(error))
        .cloned()
        .unwrap_or(SuperblockError::BadMagic { found: [0; 8] })
}

/// Starts to write one copy.
pub(crate) fn submit_superblock_copy(
    device: &dyn Device,
    superblock: &Superblock,
    copy: u16,
) -> Ticket {
    let offset = Geometry::superblock_offset(device.info().size_bytes, copy);
    let bytes = superblock.encode(copy);
    let data = vec![SharedBytes::from(AlignedBuffer::copy_of(&bytes[..bytes_in_use(&bytes)]))];
    device.submit(Purpose::Superblock, Operation::Write { offset, data })
}

/// Writes one copy, not yet durable.
///
/// # Errors
///
/// What the device said.
pub fn write_superblock_copy(
    device: &dyn Device,
    superblock: &Superblock,
    copy: u16,
) -> Result<(), DeviceError> {
    let offset = Geometry::superblock_offset(device.info().size_bytes, copy);
    let bytes = superblock.encode(copy);
    let bytes = AlignedBuffer::copy_of(&bytes[..bytes_in_use(&bytes)]);
    device.write(Purpose::Superblock, offset, bytes)
}

/// Writes the first `superblock` of a pool to all copies, so that the last write makes the pool
/// (S3).
///
/// # Errors
///
/// What the device said: there is no pool.
pub fn write_first_superblocks(
    device: &SharedDevice,
    superblock: &mut Superblock,
) -> Result<(), DeviceError> {
    superblock.sequence = SEQUENCE_OF_CREATION;
    for copy in 1..SUPERBLOCK_COPIES {
        write_superblock_copy(device.as_ref(), superblock, copy)?;
    }
    device.flush(Purpose::Superblock)?;
    // CRASH: only the write of this copy makes a pool of what is there.
    write_superblock_copy(device.as_ref(), superblock, 0)?;
    device.flush(Purpose::Superblock)
}

/// Writes `superblock` to all copies, the front pair and the pair at the end each between two
/// flushes.
///
/// # Errors
///
/// What the device said: the pool must stop writing.
pub fn update_all_superblocks(
    device: &SharedDevice,
    superblock: &mut Superblock,
) -> Result<(), DeviceError> {
    superblock.sequence += 1;
    for copies in steps_of(superblock.sequence) {
        for copy in copies {
            write_superblock_copy(device.as_ref(), superblock, copy)?;
        }
        device.flush(Purpose::Superblock)?;
    }
    Ok(())
}
