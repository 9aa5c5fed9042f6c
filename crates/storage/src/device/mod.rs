//! Devices: byte ranges that can be read, written and flushed, and that fail.
//!
//! Everything Holdfast keeps is on a [`Device`]. A device takes requests ([`Device::submit`]) and
//! answers them later ([`Ticket::wait`]), so that a caller submits many and waits for many: at
//! depth 1 io_uring gains nothing over `pread`, at depth 32 it triples the rate.
//!
//! Buffers belong to the device from `submit` until the answer: a late answer can therefore never
//! land in memory that has been reused for something else.
//!
//! # Invariants
//!
//! - D1: A write that was answered `Ok` is durable only after a later flush was answered `Ok`.
//! - D2: Requests that are in flight together may take effect in any order. Only a wait orders.
//! - D3: A device whose flush failed answers every later write and flush with
//!   [`DeviceError::Failed`]: the kernel may have dropped the pages, so a second flush proves
//!   nothing.
//! - D4: So does one with a write or a flush that was not answered by its deadline.
//! - D5: A device that was found to be shorter than it was when it was opened answers every later
//!   write and flush with [`DeviceError::Shortened`]: what was past its end is lost, and a write
//!   there would only hide it.
//! - D6: A discard changes its range at any time from when it is submitted until it is answered,
//!   and not after that. One that was not answered by its deadline may change it at any later time,
//!   and does not fail the device: whoever asked leaves the range unused for as long as it is open.
//!   Until it has returned the device answers further discards with [`DeviceError::Stalled`].
//!   A device that cannot discard answers [`DeviceError::NoDiscard`], to all further ones at once.
//!
//! # Deadlines
//!
//! Every request is answered: by the device, or at its deadline with [`DeviceError::Expired`]. What
//! becomes of the call then is in `health.rs`.
//!
//! # Concurrency
//!
//! A `Device` is shared by every thread. Tickets may be waited for in any order.
//!
//! Not here: what is where on a device (`format`), and which device holds a place (`volume`).

mod buffer;
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
    Access, FileDevice, FileOptions, LoopBacking, OpenError, QUEUE_DEPTH, TransportChoice,
};
pub use health::{DEADLINE_DEFAULT, DEADLINE_MIN, OVERDUE_MAX, STALLED_SHARE};
pub use memory::MemoryDevice;
pub use overlay::OverlayDevice;
pub(crate) use range::check_request;
pub use threads::POOL_THREADS;

use std::fmt;
use std::sync::Arc;

use crate::convert::to_u64;
use crate::volume::Composite;

/// Alignment, in bytes, of every buffer, offset and length that reaches a device.
///
/// A page of memory: what O_DIRECT asks for on every device with sectors of up to 4 KiB.
pub const IO_ALIGN_BYTES: usize = 4096;

/// What a device is, fixed while it is open; its length may become more ([`Device::lengthen`]).
#[derive(Clone, Debug)]
pub struct DeviceInfo {
    /// What the user calls it: a path, or `memory`, or `sim:0`.
    pub name: String,
    /// Usable bytes; a multiple of [`IO_ALIGN_BYTES`].
    pub size_bytes: u64,
    /// Unit of atomicity and of addressing: 512 to 4096.
    pub sector_bytes: u32,
    /// Whether every write is known to be refused: by the device, which may be open for writing all
    /// the same, or because it was opened for reading alone.
    pub is_read_only: bool,
    /// Whether [`Operation::WriteThrough`] may be asked for; where not, a write and a flush do.
    pub has_write_through: bool,
    /// Whether it is a file that had holes when it was opened: what is discarded becomes free in
    /// the file system below.
    pub is_sparse: bool,
    /// How requests travel: `io_uring`, `pread`, `memory`, `simulated`; said by `status`.
    pub transport: &'static str,
}

/// Which layer asked, so that I/O can be counted by layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Purpose {
    /// Superblocks and labels.
    Superblock,
    /// Log writes, and log reads by recovery.
    Journal,
    /// The double-write area.
    DoubleWrite,
    /// Metadata pages at their home places.
    Home,
    /// Blocks of file data.
    Data,
    /// Segment summaries.
    Summary,
    /// Reads and writes of the cleaner.
    Cleaner,
    /// Reads of a check: pages, and fixed regions.
    Check,
    /// Reads of a check: blocks of file data, and their summaries.
    CheckData,
}

impl Purpose {
    /// Every purpose, in the order of the counters.
    pub const ALL: [Purpose; 9] = [
        Purpose::Superblock,
        Purpose::Journal,
        Purpose::DoubleWrite,
        Purpose::Home,
        Purpose::Data,
        Purpose::Summary,
        Purpose::Cleaner,
        Purpose::Check,
        Purpose::CheckData,
    ];

    /// Returns how a layout that has both ways keeps what is read or written for this.
    #[must_use]
    pub fn redundancy(self) -> Redundancy {
        match self {
            Purpose::Data | Purpose::Summary | Purpose::Cleaner | Purpose::CheckData => {
                Redundancy::Parity
            }
            Purpose::Superblock
            | Purpose::Journal
            | Purpose::DoubleWrite
            | Purpose::Home
            | Purpose::Check => Redundancy::Copies,
        }
    }

    /// Position in [`Purpose::ALL`].
    #[must_use]
    pub fn index(self) -> usize {
        Purpose::ALL.iter().position(|&purpose| purpose == self).expect("ALL lists every purpose")
    }
}

/// How what lies at a place is kept safe, where a layout has both ways: pages of metadata and fixed
/// regions in copies, blocks of data and their summaries under parity. A mirror knows copies alone,
/// and a stripe has no parity: what would be under it is there once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Redundancy {
    /// The same bytes on several members.
    Copies,
    /// Once, and a parity over it.
    Parity,
}

/// One request to a device.
///
/// Offsets and lengths are bytes; both are multiples of [`IO_ALIGN_BYTES`] but for writes and reads
/// with [`Purpose::Journal`], which are multiples of the device's sector.
#[derive(Debug)]
pub enum Operation {
    /// Fill the whole of `buffer` from `offset`.
    Read {
        /// First byte on the device.
        offset: u64,
        /// Memory to fill; comes back in [`Completion::buffer`].
        buffer: AlignedBuffer,
    },
    /// Write the pieces of `data` one after the other, beginning at `offset`.
    Write {
        /// First byte on the device.
        offset: u64,
        /// At most [`WRITE_PIECES_MAX`] pieces.
        data: Vec<SharedBytes>,
    },
    /// Write as [`Operation::Write`] does, and make this write, and no other, durable before the
    /// answer. It is counted, planned and refused as a write, and when it fails as a flush that
    /// failed (D3). Only where [`DeviceInfo::has_write_through`].
    WriteThrough {
        /// First byte on the device.
        offset: u64,
        /// At most [`WRITE_PIECES_MAX`] pieces.
        data: Vec<SharedBytes>,
    },
    /// Make durable every write answered before this was submitted.
    Flush,
    /// Say that a range holds nothing of value. What it reads as from now on is undefined, and may
    /// change, until it is written again (D6).
    Discard {
        /// First byte on the device.
        offset: u64,
        /// How many bytes.
        length_bytes: u64,
    },
}

impl Operation {
    /// Returns what is asked.
    #[must_use]
    pub fn kind(&self) -> RequestKind {
        match self {
            Operation::Read { .. } => RequestKind::Read,
            Operation::Write { .. } | Operation::WriteThrough { .. } => RequestKind::Write,
            Operation::Flush => RequestKind::Flush,
            Operation::Discard { .. } => RequestKind::Discard,
        }
    }

    /// Whether the answer says that something is durable.
    #[must_use]
    pub fn makes_durable(&self) -> bool {
        matches!(self, Operation::WriteThrough { .. } | Operation::Flush)
    }

    /// Returns the first byte on the device; a flush has none.
    #[must_use]
    pub fn offset(&self) -> Option<u64> {
        match self {
            Operation::Read { offset, .. }
            | Operation::Write { offset, .. }
            | Operation::WriteThrough { offset, .. }
            | Operation::Discard { offset, .. } => Some(*offset),
            Operation::Flush => None,
        }
    }

    /// Returns how many bytes of the device are meant; 0 for a flush.
    #[must_use]
    pub fn length_bytes(&self) -> u64 {
        match self {
            Operation::Read { buffer, .. } => to_u64(buffer.len()),
            Operation::Write { data, .. } | Operation::WriteThrough { data, .. } => {
                data.iter().map(|piece| to_u64(piece.len())).sum()
            }
            Operation::Flush => 0,
            Operation::Discard { length_bytes, .. } => *length_bytes,
        }
    }
}

/// Most pieces in one write: `IOV_MAX` of Linux.
pub const WRITE_PIECES_MAX: usize = 1024;

/// The answer to a request that succeeded.
#[derive(Debug, Default)]
pub struct Completion {
    /// The buffer of a read, filled.
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

/// What a device keeps of a request in flight.
pub trait PendingRequest: Send {
    /// Blocks until the request is answered or its deadline has passed.
    fn wait(self: Box<Self>) -> Result<Completion, DeviceError>;
}

impl Ticket {
    /// Wraps what a device knows of a request.
    #[must_use]
    pub fn new(pending: Box<dyn PendingRequest>) -> Ticket {
        Ticket(pending)
    }

    /// A ticket that is already answered.
    #[must_use]
    pub fn ready(answer: Result<Completion, DeviceError>) -> Ticket {
        struct Ready(Result<Completion, DeviceError>);
        impl PendingRequest for Ready {
            fn wait(self: Box<Self>) -> Result<Completion, DeviceError> {
                self.0
            }
        }
        Ticket(Box::new(Ready(answer)))
    }

    /// Blocks until the request is answered, for no longer than the device's deadline.
    ///
    /// # Errors
    ///
    /// What the device said: see [`DeviceError`].
    pub fn wait(self) -> Result<Completion, DeviceError> {
        self.0.wait()
    }
}

/// Which kind of request failed.
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
    /// Every kind, in the order of the counters.
    pub const ALL: [RequestKind; 4] =
        [RequestKind::Read, RequestKind::Write, RequestKind::Flush, RequestKind::Discard];

    /// Position in [`RequestKind::ALL`].
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

/// Why a device did not do what it was asked.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DeviceError {
    /// The device answered with an error. A read may be tried from another copy; a write or a
    /// flush must not be tried again.
    #[error(
        "{device}: {kind} of {length_bytes} bytes at {offset} failed: {cause}; look for the device \
         in the kernel's log"
    )]
    Io {
        /// Name of the device.
        device: String,
        /// What was asked.
        kind: RequestKind,
        /// First byte.
        offset: u64,
        /// How many bytes.
        length_bytes: u64,
        /// What the system said.
        cause: String,
    },
    /// The device has no room (a sparse file on a full file system): free space below, then mount
    /// again.
    #[error("{device}: no space left below the device for a write at {offset}")]
    NoSpace {
        /// Name of the device.
        device: String,
        /// First byte.
        offset: u64,
    },
    /// The device takes no writes at all: have it made writable, or use another.
    #[error(
        "{device}: the device is read-only; make it writable (blockdev --setrw, or losetup without \
         -r), or use a copy of it that can be written"
    )]
    ReadOnly {
        /// Name of the device.
        device: String,
    },
    /// The deadline passed. The call goes on with its memory; what it was to change may still
    /// change. A read may be tried from another copy; a write or a flush must not be tried again.
    #[error(
        "{device}: {kind} of {length_bytes} bytes at {offset} was not answered within {waited_ms} \
         ms; look for the device in the kernel's log, unmount, and mount when it answers again"
    )]
    Expired {
        /// Name of the device.
        device: String,
        /// What was asked.
        kind: RequestKind,
        /// First byte.
        offset: u64,
        /// How many bytes.
        length_bytes: u64,
        /// How long it was waited for.
        waited_ms: u64,
    },
    /// Too many calls are overdue: try again when one has returned.
    #[error(
        "{device}: {overdue} calls are not answered, and until one is no more are made; look for \
         the device in the kernel's log"
    )]
    Stalled {
        /// Name of the device.
        device: String,
        /// How many.
        overdue: usize,
    },
    /// An earlier flush failed or a change expired, so nothing written since can be trusted to last
    /// (D3, D4).
    #[error(
        "{device}: an earlier write or flush failed, and no more are taken; unmount, check, and \
         mount again"
    )]
    Failed {
        /// Name of the device.
        device: String,
    },
    /// The device is shorter than it was when it was opened, so what was past its end is lost (D5).
    #[error(
        "{device}: it became shorter than {size_bytes} bytes while it was open, and no more writes \
         are taken; unmount, make it as long again (a file: truncate -s {size_bytes} {device}), \
         check, and mount again"
    )]
    Shortened {
        /// Name of the device.
        device: String,
        /// How long it was.
        size_bytes: u64,
    },
    /// The device has become longer too often while it was open: close the pool and open it again.
    #[error(
        "{device}: it has become longer too often since it was opened: unmount the pool and mount \
         it again"
    )]
    OftenLonger {
        /// Name of the device.
        device: String,
    },
    /// The request lies outside the device or is not aligned: a bug, or a damaged pointer.
    #[error("{device}: {kind} of {length_bytes} bytes at {offset} is outside or not aligned")]
    OutOfRange {
        /// Name of the device.
        device: String,
        /// What was asked.
        kind: RequestKind,
        /// First byte.
        offset: u64,
        /// How many bytes.
        length_bytes: u64,
    },
    /// The device does not discard. Nothing was changed; do not ask again.
    #[error("{device}: the device does not support discard")]
    NoDiscard {
        /// Name of the device.
        device: String,
    },
    /// Another has taken the pool on the device.
    #[error(
        "{device}: the pool was taken {by} while it was mounted here, and nothing more is written; \
         unmount it in both places, check, and mount it in one"
    )]
    Taken {
        /// Name of the device.
        device: String,
        /// Who: `by process 5 of this machine`.
        by: String,
    },
    /// The power of a simulated device is cut: nothing more happens in this life.
    #[error("{device}: power is cut")]
    PowerCut {
        /// Name of the device.
        device: String,
    },
}

/// A byte range that outlives the process.
pub trait Device: Send + Sync + fmt::Debug {
    /// Returns what the device is.
    fn info(&self) -> &DeviceInfo;

    /// Looks whether the device has lost its end (D5), which takes no request: somebody who asks
    /// nothing of it learns of that too. Most devices cannot.
    ///
    /// # Errors
    ///
    /// [`DeviceError::Shortened`].
    fn check_end(&self) -> Result<(), DeviceError> {
        Ok(())
    }

    /// Returns how many bytes the device has now, of which [`DeviceInfo::size_bytes`] are in use:
    /// somebody may have made it longer since it was opened. Takes no request.
    ///
    /// # Errors
    ///
    /// What the system said.
    fn length_now(&self) -> Result<u64, DeviceError> {
        Ok(self.info().size_bytes)
    }

    /// Uses all that the device has become longer by: [`Device::info`] says so from now on, and a
    /// crash of the machine does not make it shorter again. For its new end there is room below it
    /// then. Most devices stay as they are.
    ///
    /// # Errors
    ///
    /// What the system said: it is as long as it was.
    fn lengthen(&self) -> Result<(), DeviceError> {
        Ok(())
    }

    /// Returns how many calls are overdue: what they are to change may still change. Most devices
    /// have none.
    fn overdue(&self) -> usize {
        0
    }

    /// Returns the layout over several devices that this device is, if it is one.
    fn composite(self: Arc<Self>) -> Option<Arc<dyn Composite>> {
        None
    }

    /// Returns device and inode, as the system numbers them, of what is locked while the device is
    /// open for writing; `None`: nothing.
    fn lock_identity(&self) -> Option<[u64; 2]> {
        None
    }

    /// Hands a request to the device and returns at once, or after the queue had room.
    fn submit(&self, purpose: Purpose, operation: Operation) -> Ticket;

    /// Hands several requests to the device for a caller that then waits for all: with io_uring by
    /// one system call, when the first is waited for. Returns their tickets in order.
    fn submit_all(&self, purpose: Purpose, operations: Vec<Operation>) -> Vec<Ticket> {
        operations.into_iter().map(|operation| self.submit(purpose, operation)).collect()
    }

    /// Reads `length_bytes` from `offset`.
    ///
    /// # Errors
    ///
    /// As [`Ticket::wait`].
    fn read(
        &self,
        purpose: Purpose,
        offset: u64,
        length_bytes: usize,
    ) -> Result<AlignedBuffer, DeviceError> {
        let buffer = AlignedBuffer::for_reading(length_bytes);
        let completion = self.submit(purpose, Operation::Read { offset, buffer }).wait()?;
        Ok(completion.buffer.expect("a read returns its buffer"))
    }

    /// Writes `data` at `offset`. Not durable before a flush (D1).
    ///
    /// # Errors
    ///
    /// As [`Ticket::wait`].
    fn write(&self, purpose: Purpose, offset: u64, data: AlignedBuffer) -> Result<(), DeviceError> {
        let data = vec![SharedBytes::from(data)];
        self.submit(purpose, Operation::Write { offset, data }).wait().map(drop)
    }

    /// Makes every write answered so far durable.
    ///
    /// # Errors
    ///
    /// As [`Ticket::wait`]. Never try again (D3).
    fn flush(&self, purpose: Purpose) -> Result<(), DeviceError> {
        self.submit(purpose, Operation::Flush).wait().map(drop)
    }
}

/// A device shared by all that use it.
pub type SharedDevice = Arc<dyn Device>;
