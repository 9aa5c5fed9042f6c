//! Pool labels: reading, judging and updating the superblock copies of a device.
//!
//! # Crashes
//!
//! An update writes one copy of the front pair and one of the end pair, flushes, writes the other
//! two, and flushes. So some copy always verifies (S1), the highest sequence is current, and a
//! finished update leaves no older copy behind.
//!
//! A copy of the second step proves that the first step is durable on all members that got the
//! update ([`SuperblockReport::settled`]). So a member that later shows an older label is an
//! outdated copy of the member, or has lost writes. If both copies of the second step are older,
//! the update did not finish, and nothing that waited for it was acknowledged
//! ([`SuperblockReport::epoch`]).
//!
//! One write creates a pool: the first copy, after a flush of the others. So a pool that was never
//! mounted ([`SEQUENCE_OF_CREATION`]) must have all copies (S3). If one is blank, the creation was
//! cut off and the device may hold anything.

use format::geometry::{Geometry, POOL_BYTES_MIN, SUPERBLOCK_COPIES};
use format::members::Membership;
use format::superblock::{
    SUPERBLOCK_BYTES, SUPERBLOCK_HEAD_BYTES, Superblock, SuperblockError, bytes_in_use,
};

use crate::convert::to_u64;
use crate::device::{
    AlignedBuffer, Device, DeviceError, DeviceOperation, IoPurpose, SharedBytes, SharedDevice,
    Ticket,
};
use crate::members::{LabelledDevice, MembersError};

/// Sequence of the copies that a creation writes. Mounts write higher ones.
pub(crate) const SEQUENCE_OF_CREATION: u64 = 1;

/// The superblock copies read from one device.
#[derive(Debug)]
pub struct SuperblockReport {
    /// The copy with the highest sequence.
    pub current: Superblock,
    /// The error of each copy, or `None` if it verifies.
    pub copies: Vec<Option<SuperblockError>>,
    /// Newest update known to be durable on all members that got it, from a copy of its second
    /// step.
    pub settled: u64,
    /// The label before `current`, if the update to `current` was only begun.
    pub before: Option<Box<Superblock>>,
}

impl SuperblockReport {
    /// Returns the newest epoch of membership in which a request may have been acknowledged.
    #[must_use]
    pub fn epoch(&self) -> Membership {
        self.before.as_deref().unwrap_or(&self.current).membership()
    }

    /// Returns the sort key of labels. If the update to the label's epoch was only begun, the label
    /// sorts under the epoch before.
    #[must_use]
    pub fn age(&self) -> (u64, u64) {
        (self.epoch().number, self.current.sequence)
    }
}

impl LabelledDevice {
    /// Combines a device name and the report on its labels.
    #[must_use]
    pub fn new(name: String, read: SuperblockReport) -> LabelledDevice {
        let SuperblockReport { current, settled, before, .. } = read;
        LabelledDevice { name, label: current, settled, before }
    }
}

/// Why a device could not be opened as part of a pool.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PoolError {
    /// No copy verifies. `cause` is the most informative of the errors of the copies.
    #[error("{device}: {cause}")]
    Superblock {
        /// Device name.
        device: String,
        /// Copy error.
        cause: SuperblockError,
    },
    /// The creation was cut off. There is no pool, and nothing is lost.
    #[error(
        "{device}: the creation of the pool was cut off, so there is none: make it again with \
         `holdfast create {device} --force`"
    )]
    Unfinished {
        /// Device name.
        device: String,
    },
    /// A counter in the label is at its maximum, which normal use never reaches. Restore the label.
    #[error(
        "{device}: {field} in the label is as high as it can be, which no use of a pool brings \
         about: the label was changed by something else, and nothing is written to it; leave the \
         device out if others of the pool are there, else restore it from a copy"
    )]
    Worn {
        /// Device name.
        device: String,
        /// Counter name.
        field: &'static str,
    },
    /// The devices do not form a pool.
    #[error(transparent)]
    Members(#[from] MembersError),
    /// A read or write failed.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// Another process has the pool open for writing.
    #[error(
        "{device}: the pool is in use {by}: unmount it there; if that machine is known to be off, \
         mount with --force"
    )]
    InUse {
        /// Device name.
        device: String,
        /// Owner, as `by process 5 of this machine`.
        by: String,
    },
    /// The device is shorter than its label requires.
    #[error(
        "{device}: {found_bytes} bytes, but the pool was made for {expected_bytes}: the device was \
         truncated; make it as long again (a file: truncate -s {expected_bytes} {device}) and \
         check it; only if that finds damage restore it from a copy"
    )]
    Truncated {
        /// Device name.
        device: String,
        /// Actual size.
        found_bytes: u64,
        /// Size by the label.
        expected_bytes: u64,
    },
}

/// Refuses a device known to be read-only, before the first write.
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

/// Reads every copy of the superblock and selects the current one.
///
/// # Errors
///
/// [`PoolError::Superblock`] if no copy verifies ([`SuperblockError::BadMagic`] on a device without
/// a pool), or another [`PoolError`] if the current copy is unusable.
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

/// Returns the label before the update to `current`, if that was only begun.
///
/// A finished update wrote all copies, among them the two of the second step of `current`. So the
/// newer of these two is of the last finished update, even if the other was lost, or dates from
/// before the device grew.
fn before_begun<'c>(
    current: &Superblock,
    copies: &'c [Result<Superblock, SuperblockError>],
) -> Option<&'c Superblock> {
    // A copy that does not verify may be a torn write of the second step.
    let of_copy = |copy: u16| {
        let label = copies.get(usize::from(copy))?.as_ref().ok()?;
        let is_before = label.sequence < current.sequence;
        (is_before && label.pool_id == current.pool_id).then_some(label)
    };
    let [front, end] = steps_of(current.sequence)[1];
    let (front, end) = of_copy(front).zip(of_copy(end))?;
    Some(if front.sequence > end.sequence { front } else { end })
}

/// Returns the copies that each step of update `sequence` writes.
pub(crate) fn steps_of(sequence: u64) -> [[u16; 2]; 2] {
    let turn = u16::from(!sequence.is_multiple_of(2));
    [[turn, 2], [1 - turn, 3]]
}

/// Whether the creation was cut off after some copies (S3). A torn or rotten copy counts as
/// written, because the first mount tears copies too.
fn is_unfinished(current: &Superblock, copies: &[Option<SuperblockError>]) -> bool {
    let blank = [0; 8];
    let mut errors = copies.iter().flatten();
    current.sequence == SEQUENCE_OF_CREATION
        && errors.any(|error| *error == SuperblockError::BadMagic { found: blank })
}

/// Whether the device has grown since a finished creation: both end copies are at its former end.
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

/// Distinguishes, by the front copies, a truncated pool from a foreign device. Returns the error
/// for it.
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

/// Reads copy `copy` without verifying it, padded with zeros, and returns its offset too.
///
/// # Errors
///
/// The device's error.
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
    head.copy_from_slice(&device.read(IoPurpose::Superblock, offset, head.len())?);
    if bytes_in_use(head) > head.len() {
        let offset = offset + to_u64(head.len());
        rest.copy_from_slice(&device.read(IoPurpose::Superblock, offset, rest.len())?);
    }
    Ok(bytes)
}

fn read_copy(device: &dyn Device, offset: u64, copy: u16) -> Result<Superblock, SuperblockError> {
    let unreadable = |_| SuperblockError::BadField { field: "copy can't be read" };
    Superblock::decode(&read_bytes(device, offset).map_err(unreadable)?, copy)
}

/// A version error outranks a bad field, a bad checksum, and a foreign magic, in this order.
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

pub(crate) fn submit_superblock_copy(
    device: &dyn Device,
    superblock: &Superblock,
    copy: u16,
) -> Ticket {
    let offset = Geometry::superblock_offset(device.info().size_bytes, copy);
    let bytes = superblock.encode(copy);
    let data = vec![SharedBytes::from(AlignedBuffer::copy_of(&bytes[..bytes_in_use(&bytes)]))];
    device.submit(IoPurpose::Superblock, DeviceOperation::Write { offset, data })
}

/// Writes one copy, without a flush.
///
/// # Errors
///
/// The device's error.
pub fn write_superblock_copy(
    device: &dyn Device,
    superblock: &Superblock,
    copy: u16,
) -> Result<(), DeviceError> {
    let offset = Geometry::superblock_offset(device.info().size_bytes, copy);
    let bytes = superblock.encode(copy);
    let bytes = AlignedBuffer::copy_of(&bytes[..bytes_in_use(&bytes)]);
    device.write(IoPurpose::Superblock, offset, bytes)
}

/// Writes the first `superblock` of a pool to all copies (S3).
///
/// # Errors
///
/// The device's error. No pool exists then.
pub fn write_first_superblocks(
    device: &SharedDevice,
    superblock: &mut Superblock,
) -> Result<(), DeviceError> {
    superblock.sequence = SEQUENCE_OF_CREATION;
    for copy in 1..SUPERBLOCK_COPIES {
        write_superblock_copy(device.as_ref(), superblock, copy)?;
    }
    device.flush(IoPurpose::Superblock)?;
    // CRASH: the pool exists only once this copy is written.
    write_superblock_copy(device.as_ref(), superblock, 0)?;
    device.flush(IoPurpose::Superblock)
}

/// Increments the sequence of `superblock` and writes all copies, in two flushed steps.
///
/// # Errors
///
/// The device's error. The pool must stop writing.
pub fn update_all_superblocks(
    device: &SharedDevice,
    superblock: &mut Superblock,
) -> Result<(), DeviceError> {
    superblock.sequence += 1;
    for copies in steps_of(superblock.sequence) {
        for copy in copies {
            write_superblock_copy(device.as_ref(), superblock, copy)?;
        }
        device.flush(IoPurpose::Superblock)?;
    }
    Ok(())
}
