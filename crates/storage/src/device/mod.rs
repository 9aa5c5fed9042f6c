//! Devices: byte ranges that can be read, written and flushed, and that can fail.
//!
//! Requests ([`Device::submit`]) complete asynchronously ([`Ticket::wait`]), so that many can be in
//! flight: io_uring gains nothing over `pread` at depth 1, and triples the rate at depth 32. A
//! request owns its buffer until it completes, so a late completion never overwrites reused memory.
//!
//! # Invariants
//!
//! - D1: A write that returned `Ok` is durable only after a later flush returned `Ok`.
//! - D2: Requests in flight together may take effect in any order. Only a wait orders them.
//! - D3: After a failed flush all writes and flushes fail with [`DeviceError::Failed`]: the kernel
//!   may have dropped the dirty pages, so a second flush proves nothing.
//! - D4: An expired write or flush has the same effect as a failed flush.
//! - D5: Once a device is found to be shorter than when opened, all writes and flushes fail with
//!   [`DeviceError::Shortened`]: data past its end is lost, and a write there would only hide that.
//! - D6: A discard changes its range only between its submission and its completion. An expired one
//!   does not fail the device, but may change the range at any later time, so the caller leaves the
//!   range unused while the device is open. Until the overdue call returns, further discards fail
//!   with [`DeviceError::Stalled`]. Without discard support they all fail with
//!   [`DeviceError::NoDiscard`].
//!
//! # Deadlines
//!
//! Every request completes, at the latest with [`DeviceError::Expired`] (see `health.rs`).
//!
//! # Concurrency
//!
//! All threads share a `Device`. Tickets may be waited for in any order.

mod buffer;
pub mod counters;
mod counting;
mod deadline;
mod file;
mod health;
pub(crate) mod length;
mod long;
mod memory;
mod overlay;
mod range;
#[cfg(feature = "sim")]
pub mod sim;
mod threads;

pub use buffer::{AlignedBuffer, SharedBytes};
pub use counting::CountingDevice;
pub use deadline::DeadlineDevice;
pub use file::{
    DeviceAccess, DeviceOpenError, FileDevice, FileOptions, FileTransportChoice, LoopBacking,
    QUEUE_DEPTH,
};
pub use health::{DEADLINE_DEFAULT, DEADLINE_MIN, OVERDUE_MAX, STALLED_SHARE};
pub use memory::MemoryDevice;
pub use overlay::OverlayDevice;
pub(crate) use range::check_request;
pub use threads::POOL_THREADS;

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use crate::convert::to_u64;

/// Alignment of every buffer, offset and length: a memory page, which suffices for O_DIRECT with
/// sectors of up to 4 KiB.
pub const IO_ALIGN_BYTES: usize = 4096;

/// Properties of an open device. Only the length can change ([`Device::lengthen`]).
#[derive(Clone, Debug)]
pub struct DeviceInfo {
    /// Name for messages: a path, `memory`, or `sim:0`.
    pub name: String,
    /// Usable bytes, a multiple of [`IO_ALIGN_BYTES`].
    pub size_bytes: u64,
    /// Unit of atomicity and addressing: 512 to 4096.
    pub sector_bytes: u32,
    /// Whether writes are known to be refused, by the device or by the open mode.
    pub is_read_only: bool,
    /// Whether [`DeviceOperation::WriteThrough`] is supported. If not, use a write and a flush.
    pub has_write_through: bool,
    /// Whether the device is a file that had holes when opened. Discards then free space in its
    /// file system.
    pub is_sparse: bool,
    /// Transport for `status`: `io_uring`, `pread`, `memory` or `simulated`.
    pub transport: &'static str,
}

/// The layer that issues a request, for I/O counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum IoPurpose {
    /// Superblocks and labels.
    Superblock,
    /// Log writes, and reads by recovery.
    Journal,
    /// The double-write area.
    DoubleWrite,
    /// Metadata pages at their home locations.
    Home,
    /// File data.
    Data,
    /// Segment summaries.
    Summary,
    /// Reads and writes by the cleaner.
    Cleaner,
    /// Metadata reads by a check.
    Check,
    /// File data and summary reads by a check.
    CheckData,
}

impl IoPurpose {
    /// All purposes, in counter order.
    pub const ALL: [IoPurpose; 9] = [
        IoPurpose::Superblock,
        IoPurpose::Journal,
        IoPurpose::DoubleWrite,
        IoPurpose::Home,
        IoPurpose::Data,
        IoPurpose::Summary,
        IoPurpose::Cleaner,
        IoPurpose::Check,
        IoPurpose::CheckData,
    ];

    /// Returns the redundancy of such data in a layout with both kinds.
    #[must_use]
    pub fn redundancy(self) -> Redundancy {
        match self {
            IoPurpose::Data | IoPurpose::Summary | IoPurpose::Cleaner | IoPurpose::CheckData => {
                Redundancy::Parity
            }
            IoPurpose::Superblock
            | IoPurpose::Journal
            | IoPurpose::DoubleWrite
            | IoPurpose::Home
            | IoPurpose::Check => Redundancy::Copies,
        }
    }

    /// Returns the position in [`IoPurpose::ALL`].
    #[must_use]
    pub fn index(self) -> usize {
        IoPurpose::ALL.iter().position(|&purpose| purpose == self).expect("ALL lists every purpose")
    }
}

/// Protection of data in a layout with both kinds: metadata by copies, file data and summaries by
/// parity. A mirror has copies only, and file data of a stripe exists once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Redundancy {
    /// Identical copies on several members.
    Copies,
    /// A single copy, covered by parity.
    Parity,
}

/// A request to a device.
///
/// Offsets and lengths are multiples of [`IO_ALIGN_BYTES`], or of the sector for
/// [`IoPurpose::Journal`].
#[derive(Debug)]
pub enum DeviceOperation {
    /// Fills `buffer` from `offset`.
    Read {
        /// Offset in bytes.
        offset: u64,
        /// Destination, returned in [`DeviceCompletion::buffer`].
        buffer: AlignedBuffer,
    },
    /// Writes the pieces of `data` in order from `offset`.
    Write {
        /// Offset in bytes.
        offset: u64,
        /// At most [`WRITE_PIECES_MAX`] pieces.
        data: Vec<SharedBytes>,
    },
    /// Writes like [`DeviceOperation::Write`], and makes this write alone durable before
    /// completion. Counts as a write, but fails as a flush (D3). Needs
    /// [`DeviceInfo::has_write_through`].
    WriteThrough {
        /// Offset in bytes.
        offset: u64,
        /// At most [`WRITE_PIECES_MAX`] pieces.
        data: Vec<SharedBytes>,
    },
    /// Makes durable every write completed before submission.
    Flush,
    /// Marks a range unused. Its contents are undefined until rewritten (D6).
    Discard {
        /// Offset in bytes.
        offset: u64,
        /// Length in bytes.
        length_bytes: u64,
    },
}

impl DeviceOperation {
    /// Returns the request kind.
    #[must_use]
    pub fn kind(&self) -> RequestKind {
        match self {
            DeviceOperation::Read { .. } => RequestKind::Read,
            DeviceOperation::Write { .. } | DeviceOperation::WriteThrough { .. } => {
                RequestKind::Write
            }
            DeviceOperation::Flush => RequestKind::Flush,
            DeviceOperation::Discard { .. } => RequestKind::Discard,
        }
    }

    /// Whether success implies durability.
    #[must_use]
    pub fn makes_durable(&self) -> bool {
        matches!(self, DeviceOperation::WriteThrough { .. } | DeviceOperation::Flush)
    }

    /// Returns the offset. `None` for a flush.
    #[must_use]
    pub fn offset(&self) -> Option<u64> {
        match self {
            DeviceOperation::Read { offset, .. }
            | DeviceOperation::Write { offset, .. }
            | DeviceOperation::WriteThrough { offset, .. }
            | DeviceOperation::Discard { offset, .. } => Some(*offset),
            DeviceOperation::Flush => None,
        }
    }

    /// Returns the length. 0 for a flush.
    #[must_use]
    pub fn length_bytes(&self) -> u64 {
        match self {
            DeviceOperation::Read { buffer, .. } => to_u64(buffer.len()),
            DeviceOperation::Write { data, .. } | DeviceOperation::WriteThrough { data, .. } => {
                data.iter().map(|piece| to_u64(piece.len())).sum()
            }
            DeviceOperation::Flush => 0,
            DeviceOperation::Discard { length_bytes, .. } => *length_bytes,
        }
    }
}

/// Maximum pieces in one write: `IOV_MAX` of Linux.
pub const WRITE_PIECES_MAX: usize = 1024;

/// Result of a successful request.
#[derive(Debug, Default)]
pub struct DeviceCompletion {
    /// The filled buffer of a read.
    pub buffer: Option<AlignedBuffer>,
}

/// A request in flight.
///
/// Dropping a ticket does not cancel the request.
pub struct Ticket(Box<dyn PendingRequest>);

impl fmt::Debug for Ticket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Ticket")
    }
}

/// Device-side state of a request in flight.
pub trait PendingRequest: Send {
    /// Blocks until completion or the deadline.
    fn wait(self: Box<Self>) -> Result<DeviceCompletion, DeviceError>;
}

impl Ticket {
    /// Wraps a pending request.
    #[must_use]
    pub fn new(pending: Box<dyn PendingRequest>) -> Ticket {
        Ticket(pending)
    }

    /// Returns a completed ticket.
    #[must_use]
    pub fn ready(answer: Result<DeviceCompletion, DeviceError>) -> Ticket {
        struct CompletedRequest(Result<DeviceCompletion, DeviceError>);
        impl PendingRequest for CompletedRequest {
            fn wait(self: Box<Self>) -> Result<DeviceCompletion, DeviceError> {
                self.0
            }
        }
        Ticket(Box::new(CompletedRequest(answer)))
    }

    /// Blocks until completion, at most until the deadline.
    ///
    /// # Errors
    ///
    /// [`DeviceError`].
    pub fn wait(self) -> Result<DeviceCompletion, DeviceError> {
        self.0.wait()
    }
}

/// Kind of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestKind {
    /// A read.
    Read,
    /// A write.
    Write,
    /// A flush.
    Flush,
    /// A discard.
    Discard,
}

impl RequestKind {
    /// All kinds, in counter order.
    pub const ALL: [RequestKind; 4] =
        [RequestKind::Read, RequestKind::Write, RequestKind::Flush, RequestKind::Discard];

    /// Returns the position in [`RequestKind::ALL`].
    #[must_use]
    pub fn index(self) -> usize {
        match self {
            RequestKind::Read => 0,
            RequestKind::Write => 1,
            RequestKind::Flush => 2,
            RequestKind::Discard => 3,
        }
    }
}

impl fmt::Display for RequestKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            RequestKind::Read => "read",
            RequestKind::Write => "write",
            RequestKind::Flush => "flush",
            RequestKind::Discard => "discard",
        })
    }
}

/// Why a request failed.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DeviceError {
    /// The device returned an error. Retry a read on another copy. Do not retry a write or a flush.
    #[error(
        "{device}: {kind} of {length_bytes} bytes at {offset} failed: {cause}; look for the device \
         in the kernel's log"
    )]
    Io {
        /// Device name.
        device: String,
        /// Request kind.
        kind: RequestKind,
        /// Offset in bytes.
        offset: u64,
        /// Length in bytes.
        length_bytes: u64,
        /// System error.
        cause: String,
    },
    /// No space below the device (a sparse file on a full file system). Free space, then remount.
    #[error("{device}: no space left below the device for a write at {offset}")]
    NoSpace {
        /// Device name.
        device: String,
        /// Offset in bytes.
        offset: u64,
    },
    /// The device takes no writes.
    #[error(
        "{device}: the device is read-only; make it writable (blockdev --setrw, or losetup without \
         -r), or use a copy of it that can be written"
    )]
    ReadOnly {
        /// Device name.
        device: String,
    },
    /// The deadline passed, but the call goes on and may still take effect. Retry a read on another
    /// copy. Do not retry a write or a flush.
    #[error(
        "{device}: {kind} of {length_bytes} bytes at {offset} was not answered within {waited_ms} \
         ms; look for the device in the kernel's log, unmount, and mount when it answers again"
    )]
    Expired {
        /// Device name.
        device: String,
        /// Request kind.
        kind: RequestKind,
        /// Offset in bytes.
        offset: u64,
        /// Length in bytes.
        length_bytes: u64,
        /// Time waited.
        waited_ms: u64,
    },
    /// Too many calls are overdue. Retry after one returns.
    #[error(
        "{device}: {overdue} calls are not answered, and until one is no more are made; look for \
         the device in the kernel's log"
    )]
    Stalled {
        /// Device name.
        device: String,
        /// Overdue calls.
        overdue: usize,
    },
    /// An earlier write or flush failed or expired, so later writes may not be durable (D3, D4).
    #[error(
        "{device}: an earlier write or flush failed, and no more are taken; unmount, check, and \
         mount again"
    )]
    Failed {
        /// Device name.
        device: String,
    },
    /// The device is shorter than when opened, so data past its end is lost (D5).
    #[error(
        "{device}: it became shorter than {size_bytes} bytes while it was open, and no more writes \
         are taken; unmount, make it as long again (a file: truncate -s {size_bytes} {device}), \
         check, and mount again"
    )]
    Shortened {
        /// Device name.
        device: String,
        /// Original size.
        size_bytes: u64,
    },
    /// The device grew too often while open. Reopen the pool.
    #[error(
        "{device}: it has become longer too often since it was opened: unmount the pool and mount \
         it again"
    )]
    OftenLonger {
        /// Device name.
        device: String,
    },
    /// The request is misaligned or outside the device: a bug, or a damaged pointer.
    #[error("{device}: {kind} of {length_bytes} bytes at {offset} is outside or not aligned")]
    OutOfRange {
        /// Device name.
        device: String,
        /// Request kind.
        kind: RequestKind,
        /// Offset in bytes.
        offset: u64,
        /// Length in bytes.
        length_bytes: u64,
    },
    /// Discard is unsupported. Nothing changed, and a retry is pointless.
    #[error("{device}: the device does not support discard")]
    NoDiscard {
        /// Device name.
        device: String,
    },
    /// Another server has taken the pool.
    #[error(
        "{device}: the pool was taken {by} while it was mounted here, and nothing more is written; \
         unmount it in both places, check, and mount it in one"
    )]
    Taken {
        /// Device name.
        device: String,
        /// Owner, as `by process 5 of this machine`.
        by: String,
    },
    /// The power of a simulated device is cut.
    #[error("{device}: power is cut")]
    PowerCut {
        /// Device name.
        device: String,
    },
}

/// A byte range that outlives the process.
pub trait Device: Send + Sync + fmt::Debug {
    /// Returns the device's properties.
    fn info(&self) -> &DeviceInfo;

    /// Checks for a lost end (D5) without a request, for idle pools. The default does nothing.
    ///
    /// # Errors
    ///
    /// [`DeviceError::Shortened`].
    fn check_end(&self) -> Result<(), DeviceError> {
        Ok(())
    }

    /// Returns the length, without a request. More than [`DeviceInfo::size_bytes`] if the device
    /// has grown since its opening.
    ///
    /// # Errors
    ///
    /// The system's error.
    fn length_now(&self) -> Result<u64, DeviceError> {
        Ok(self.info().size_bytes)
    }

    /// Takes a grown length into use durably, with space for the new end preallocated. The default
    /// does nothing.
    ///
    /// # Errors
    ///
    /// The system's error. The length is unchanged then.
    fn lengthen(&self) -> Result<(), DeviceError> {
        Ok(())
    }

    /// Returns the number of overdue calls, which may still change their ranges.
    fn overdue(&self) -> usize {
        0
    }

    /// Returns the layout over several devices, if this device is one. The value is the volume's
    /// `Arc<dyn Composite>`, a type that the device layer does not know.
    fn composite(self: Arc<Self>) -> Option<Box<dyn Any>> {
        None
    }

    /// Returns device and inode number of the file locked for writing, if any.
    fn lock_identity(&self) -> Option<[u64; 2]> {
        None
    }

    /// Submits a request. Blocks only while the queue is full.
    fn submit(&self, purpose: IoPurpose, operation: DeviceOperation) -> Ticket;

    /// Submits several requests for a caller that waits for all, with one system call for io_uring.
    /// Returns the tickets in order.
    fn submit_all(&self, purpose: IoPurpose, operations: Vec<DeviceOperation>) -> Vec<Ticket> {
        operations.into_iter().map(|operation| self.submit(purpose, operation)).collect()
    }

    /// Reads `length_bytes` from `offset`.
    ///
    /// # Errors
    ///
    /// See [`Ticket::wait`].
    fn read(
        &self,
        purpose: IoPurpose,
        offset: u64,
        length_bytes: usize,
    ) -> Result<AlignedBuffer, DeviceError> {
        let buffer = AlignedBuffer::for_reading(length_bytes);
        let completion = self.submit(purpose, DeviceOperation::Read { offset, buffer }).wait()?;
        Ok(completion.buffer.expect("a read returns its buffer"))
    }

    /// Writes `data` at `offset`. Not durable before a flush (D1).
    ///
    /// # Errors
    ///
    /// See [`Ticket::wait`].
    fn write(
        &self,
        purpose: IoPurpose,
        offset: u64,
        data: AlignedBuffer,
    ) -> Result<(), DeviceError> {
        let data = vec![SharedBytes::from(data)];
        self.submit(purpose, DeviceOperation::Write { offset, data }).wait().map(drop)
    }

    /// Makes every completed write durable.
    ///
    /// # Errors
    ///
    /// See [`Ticket::wait`]. Do not retry (D3).
    fn flush(&self, purpose: IoPurpose) -> Result<(), DeviceError> {
        self.submit(purpose, DeviceOperation::Flush).wait().map(drop)
    }
}

/// A device in shared use.
pub type SharedDevice = Arc<dyn Device>;
