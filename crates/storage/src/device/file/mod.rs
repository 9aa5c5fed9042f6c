//! Real devices: regular files and block devices, with direct I/O.
//!
//! # Transports
//!
//! io_uring if permitted and if submission does not block, else `pread` and `pwrite` on a few
//! threads (`DeviceInfo::transport`). Callers make no blocking system call on the device
//! themselves, because they could not leave it at the deadline. A file system without O_DIRECT gets
//! buffered I/O, which `fdatasync` makes as durable.
//!
//! # Invariants
//!
//! - DF1: One writer, with an exclusive `flock` until the device is dropped, and O_EXCL on a block
//!   device, which excludes mounted file systems too.
//! - DF2: The size in use is durable before the first request beyond the former size, so
//!   `fdatasync` suffices. Each flush first checks the size, and a short read also reveals
//!   truncation (D5).
//! - DF3: A call that is overdue when the device is dropped keeps its memory until the process
//!   ends, and the file open and locked (DF1) until it returns.
//! - DF4: Block device discards, an ioctl that io_uring lacks, run on separate threads, so the
//!   caller can return at the deadline.

mod backing;
mod block;
mod open;
#[cfg(test)]
mod tests;
mod transfer;
mod uring;

pub use backing::LoopBacking;
pub use open::{DeviceAccess, DeviceOpenError, FileOptions, FileTransportChoice};

use std::ops::Range;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use rustix::fs::FallocateFlags;
use rustix::io::{Errno, ReadWriteFlags};

use super::health::{Health, TimedRequest};
use super::length::{DeviceLengths, END_BYTES};
use super::range::check_request;
use super::threads::{BlockingDevice, Threads};
use super::{
    AlignedBuffer, Device, DeviceCompletion, DeviceError, DeviceInfo, DeviceOperation,
    IO_ALIGN_BYTES, IoPurpose, RequestKind, SharedBytes, Ticket,
};
use crate::convert::to_u64;
use transfer::{TransferError, slices_after, transfer};
use uring::{Rings, Uring};

/// Requests in flight per ring, or in all with threads. Four times what saturates known disks, and
/// a bound on pinned memory.
pub const QUEUE_DEPTH: usize = 128;
/// Rings per device: the default number of mount threads.
pub(super) const RINGS_MAX: usize = 4;

/// A file or block device.
#[derive(Debug)]
pub struct FileDevice {
    target: Arc<FileTarget>,
    transport: FileTransport,
    /// Threads for block device discards (DF4), started by the first.
    discards: Threads,
}

#[derive(Debug)]
enum FileTransport {
    Uring(Rings),
    Threads(Threads),
}

/// The open file and its health, shared by all transports.
#[derive(Debug)]
struct FileTarget {
    file: OwnedFd,
    /// Kept open only for the locks (DF1, DF3).
    backing: Vec<OwnedFd>,
    lock: Option<[u64; 2]>,
    is_block_device: bool,
    lengths: DeviceLengths,
    health: Health,
    /// Whether a discard failed as unsupported (D6).
    has_no_discard: AtomicBool,
    /// Deadline for dropping all rings.
    ends_at: OnceLock<Instant>,
}

impl BlockingDevice for FileTarget {
    fn execute(
        &self,
        _: IoPurpose,
        operation: DeviceOperation,
    ) -> Result<DeviceCompletion, DeviceError> {
        FileTarget::execute(self, operation)
    }

    fn info(&self) -> &DeviceInfo {
        FileTarget::info(self)
    }

    fn health(&self) -> &Health {
        &self.health
    }
}

impl FileDevice {
    /// Opens the file or block device at `path`.
    ///
    /// # Errors
    ///
    /// [`DeviceOpenError`]. Nothing was changed.
    pub fn open(path: &Path, options: FileOptions) -> Result<Arc<FileDevice>, DeviceOpenError> {
        FileDevice::start(open::open(path, options)?, options)
    }

    /// Creates a sparse file at `path`, where none may exist, and opens it.
    ///
    /// # Errors
    ///
    /// [`DeviceOpenError`]. No file is left behind.
    pub fn create(
        path: &Path,
        size_bytes: u64,
        options: FileOptions,
    ) -> Result<Arc<FileDevice>, DeviceOpenError> {
        open::create(path, size_bytes)?;
        FileDevice::open(path, options).inspect_err(|_| open::remove(path))
    }

    /// Changes the file's length and returns it as another device, with the lock kept. Do not use
    /// the old one after that.
    ///
    /// # Errors
    ///
    /// [`DeviceOpenError`]. The length is unchanged.
    pub fn resize(
        &self,
        size_bytes: u64,
        options: FileOptions,
    ) -> Result<Arc<FileDevice>, DeviceOpenError> {
        FileDevice::start(open::resize(&self.target, size_bytes)?, options)
    }

    /// Whether this is a block device, whose length is fixed here.
    #[must_use]
    pub fn is_block_device(&self) -> bool {
        self.target.is_block_device
    }

    /// Makes the file durably at least `size_bytes` long. The device uses the rest only after
    /// [`Device::lengthen`].
    ///
    /// # Errors
    ///
    /// [`DeviceOpenError`]. The length is unchanged.
    pub fn extend(&self, size_bytes: u64) -> Result<(), DeviceOpenError> {
        open::extend(&self.target, size_bytes)
    }

    /// Whether the file is unlinked. Does not wait for a network file system.
    #[must_use]
    pub fn is_removed(&self) -> bool {
        !self.target.is_block_device
            && open::links_and_mode(&self.target.file).is_ok_and(|(links, _)| links == 0)
    }

    /// Returns the mode of the file if group or others may access it. Does not wait for a network
    /// file system.
    #[must_use]
    pub fn permissions_of_others(&self) -> Option<u16> {
        let (_, mode) = open::links_and_mode(&self.target.file).ok()?;
        let mode = mode & 0o7777;
        (!self.target.is_block_device && mode & 0o077 != 0).then_some(mode)
    }

    /// Returns the ranges that are not holes, in order. `None` if unknown, as on a block device, or
    /// if more than `ranges_max`.
    ///
    /// # Errors
    ///
    /// The system's error.
    pub fn written_ranges(&self, ranges_max: usize) -> std::io::Result<Option<Vec<Range<u64>>>> {
        if self.target.is_block_device {
            return Ok(None);
        }
        Ok(open::written_ranges(&self.target.file, self.target.info().size_bytes, ranges_max)?)
    }

    fn start(
        opened: open::OpenedFile,
        options: FileOptions,
    ) -> Result<Arc<FileDevice>, DeviceOpenError> {
        let open::OpenedFile { file, backing, is_block_device, mut info, is_direct } = opened;
        let ring = match options.transport {
            FileTransportChoice::Pread => None,
            FileTransportChoice::Automatic => open::is_submitted_at_once(&file, is_block_device)
                .then(Uring::ring)
                .and_then(Result::ok),
            FileTransportChoice::Uring => {
                Some(Uring::ring().map_err(|source| DeviceOpenError::NoUring {
                    name: info.name.clone(),
                    source,
                })?)
            }
        };
        info.transport = match (ring.is_some(), is_direct) {
            (true, true) => "io_uring",
            (true, false) => "io_uring, buffered",
            (false, true) => "pread",
            (false, false) => "pread, buffered",
        };
        let health = Health::new(options.deadline);
        let target = Arc::new(FileTarget::new(file, backing, is_block_device, info, health));
        let transport = match ring {
            Some(ring) => FileTransport::Uring(Rings::new(ring, Arc::clone(&target))),
            None => FileTransport::Threads(Threads::new(Arc::<FileTarget>::clone(&target))),
        };
        let discards = Threads::new(Arc::<FileTarget>::clone(&target));
        Ok(Arc::new(FileDevice { target, transport, discards }))
    }
}

impl FileDevice {
    /// Submits a request, by `ring` if the transport is io_uring.
    fn start_call(
        &self,
        purpose: IoPurpose,
        operation: DeviceOperation,
        ring: impl FnOnce(&Arc<Uring>, DeviceOperation, TimedRequest) -> Ticket,
    ) -> Ticket {
        if let FileTransport::Uring(rings) = &self.transport {
            rings.welcome_late_answers();
        }
        let asked = match self.target.admit(purpose, &operation) {
            Ok(asked) => asked,
            Err(error) => return Ticket::ready(Err(error)),
        };
        if self.target.is_block_device && operation.kind() == RequestKind::Discard {
            return self.discards.submit(purpose, operation, asked);
        }
        match &self.transport {
            FileTransport::Uring(rings) => ring(rings.of_thread(), operation, asked),
            FileTransport::Threads(threads) => threads.submit(purpose, operation, asked),
        }
    }

    /// Executes a request. With io_uring, one system call both submits and waits.
    fn call(
        &self,
        purpose: IoPurpose,
        operation: DeviceOperation,
    ) -> Result<DeviceCompletion, DeviceError> {
        self.start_call(purpose, operation, Uring::prepare).wait()
    }
}

impl FileTarget {
    fn new(
        file: OwnedFd,
        backing: Vec<OwnedFd>,
        is_block_device: bool,
        info: DeviceInfo,
        health: Health,
    ) -> FileTarget {
        let ends_at = OnceLock::new();
        let lock = backing::identity_of(backing.last().unwrap_or(&file));
        let (lengths, has_no_discard) = (DeviceLengths::new(info), AtomicBool::new(false));
        FileTarget {
            file,
            backing,
            lock,
            is_block_device,
            lengths,
            health,
            has_no_discard,
            ends_at,
        }
    }

    fn info(&self) -> &DeviceInfo {
        self.lengths.now()
    }

    fn length_now(&self) -> Result<u64, DeviceError> {
        let end = open::end_bytes(&self.file, self.is_block_device).map_err(|errno| {
            let (device, cause) = (self.info().name.clone(), errno.to_string());
            DeviceError::Io { device, kind: RequestKind::Read, offset: 0, length_bytes: 0, cause }
        })?;
        Ok(end - end % to_u64(IO_ALIGN_BYTES))
    }

    fn lengthen(&self) -> Result<(), DeviceError> {
        let size_bytes = self.length_now()?;
        if size_bytes > self.info().size_bytes {
            self.reserve_end(size_bytes)?;
            // CRASH: the labels will rely on the added length, which may not be durable yet (DF2).
            let synced = rustix::fs::fsync(&self.file).map_err(TransferError::System);
            self.answer(RequestKind::Flush, 0, 0, synced)?;
        }
        self.lengths.lengthen(size_bytes)
    }

    /// Preallocates the end of a file of `size_bytes`, if the file system supports that.
    fn reserve_end(&self, size_bytes: u64) -> Result<(), DeviceError> {
        if self.is_block_device {
            return Ok(());
        }
        let offset = size_bytes.saturating_sub(END_BYTES);
        let mode = FallocateFlags::empty();
        let length_bytes = size_bytes - offset;
        match rustix::fs::fallocate(&self.file, mode, offset, length_bytes) {
            Ok(()) => Ok(()),
            Err(errno) if is_unsupported(errno) => Ok(()),
            Err(errno) => {
                let failed = Err(TransferError::System(errno));
                self.answer(RequestKind::Write, offset, length_bytes, failed)
            }
        }
    }

    fn admit(
        &self,
        purpose: IoPurpose,
        operation: &DeviceOperation,
    ) -> Result<TimedRequest, DeviceError> {
        check_request(self.info(), purpose, operation)?;
        let is_discard = operation.kind() == RequestKind::Discard;
        if is_discard && self.has_no_discard.load(Ordering::Relaxed) {
            return Err(DeviceError::NoDiscard { device: self.info().name.clone() });
        }
        let asked = self.health.admit(self.info(), operation)?;
        if operation.makes_durable() {
            self.check_end()?;
        }
        Ok(asked)
    }

    /// Checks the length before a flush (D5). A later truncation is found by the next flush.
    fn check_end(&self) -> Result<(), DeviceError> {
        let result = match open::end_bytes(&self.file, self.is_block_device) {
            Ok(end_bytes) if end_bytes >= self.info().size_bytes => Ok(()),
            Ok(_) => Err(TransferError::Truncated),
            Err(errno) => Err(TransferError::System(errno)),
        };
        self.answer(RequestKind::Flush, 0, 0, result)
    }

    /// Converts a system result and updates the device's health.
    fn answer(
        &self,
        kind: RequestKind,
        offset: u64,
        length_bytes: u64,
        result: Result<(), TransferError>,
    ) -> Result<(), DeviceError> {
        let Err(failure) = result else {
            return Ok(());
        };
        if failure == TransferError::Truncated {
            return Err(self.health.shorten(self.info()));
        }
        if kind == RequestKind::Flush {
            // The device fails (D3).
            self.health.fail();
        }
        let device = self.info().name.clone();
        if let (RequestKind::Discard, TransferError::System(errno)) = (kind, failure)
            && is_unsupported(errno)
        {
            if !self.has_no_discard.swap(true, Ordering::Relaxed) {
                tracing::info!(device, %errno, "the device does not support discard");
            }
            return Err(DeviceError::NoDiscard { device });
        }
        let is_full = matches!(failure, TransferError::System(Errno::NOSPC | Errno::DQUOT));
        if is_full && kind == RequestKind::Write {
            return Err(DeviceError::NoSpace { device, offset });
        }
        let is_refused =
            matches!(failure, TransferError::System(Errno::PERM | Errno::ROFS | Errno::ACCESS));
        if is_refused && kind == RequestKind::Write {
            return Err(DeviceError::ReadOnly { device });
        }
        Err(DeviceError::Io { device, kind, offset, length_bytes, cause: failure.to_string() })
    }

    fn read(&self, offset: u64, buffer: &mut [u8]) -> Result<(), DeviceError> {
        let length = buffer.len();
        let result = transfer(length, |done| {
            rustix::io::pread(&self.file, &mut buffer[done..], offset + to_u64(done))
        });
        self.answer(RequestKind::Read, offset, to_u64(length), result)
    }

    fn write(&self, offset: u64, data: &[SharedBytes]) -> Result<(), DeviceError> {
        let (length, result) = self.transfer_out(offset, data, ReadWriteFlags::empty());
        self.answer(RequestKind::Write, offset, length, result)
    }

    fn write_through(&self, offset: u64, data: &[SharedBytes]) -> Result<(), DeviceError> {
        let (length, result) = self.transfer_out(offset, data, ReadWriteFlags::DSYNC);
        self.answer_through(self.answer(RequestKind::Write, offset, length, result))
    }

    /// Fails the device after a failed write-through: the kernel may have dropped its pages, and
    /// reports that only once (D3).
    fn answer_through(&self, answer: Result<(), DeviceError>) -> Result<(), DeviceError> {
        answer.inspect_err(|_| self.health.fail())
    }

    fn transfer_out(
        &self,
        offset: u64,
        data: &[SharedBytes],
        flags: ReadWriteFlags,
    ) -> (u64, Result<(), TransferError>) {
        let length: usize = data.iter().map(|piece| piece.len()).sum();
        let result = transfer(length, |done| {
            let slices = slices_after(data, done);
            rustix::io::pwritev2(&self.file, &slices, offset + to_u64(done), flags)
        });
        (to_u64(length), result)
    }

    fn flush(&self) -> Result<(), DeviceError> {
        // Not retried after EINTR: earlier write errors may have been reported and dropped (D3).
        let result = rustix::fs::fdatasync(&self.file).map_err(TransferError::System);
        self.answer(RequestKind::Flush, 0, 0, result)
    }

    /// Punches a hole in a file, or discards a range of a block device.
    fn discard(&self, offset: u64, length_bytes: u64) -> Result<(), DeviceError> {
        let mode = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        let result = match self.is_block_device {
            true => block::discard(&self.file, offset, length_bytes),
            false => rustix::fs::fallocate(&self.file, mode, offset, length_bytes),
        };
        self.answer(
            RequestKind::Discard,
            offset,
            length_bytes,
            result.map_err(TransferError::System),
        )
    }

    /// Executes a request in the calling thread.
    fn execute(&self, operation: DeviceOperation) -> Result<DeviceCompletion, DeviceError> {
        match operation {
            DeviceOperation::Read { offset, mut buffer } => {
                self.read(offset, &mut buffer)?;
                return Ok(DeviceCompletion { buffer: Some(buffer) });
            }
            DeviceOperation::Write { offset, data } => self.write(offset, &data)?,
            DeviceOperation::WriteThrough { offset, data } => self.write_through(offset, &data)?,
            DeviceOperation::Flush => self.flush()?,
            DeviceOperation::Discard { offset, length_bytes } => {
                self.discard(offset, length_bytes)?
            }
        }
        Ok(DeviceCompletion::default())
    }
}

fn is_unsupported(errno: Errno) -> bool {
    matches!(errno, Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL | Errno::NODEV | Errno::NOTTY)
}

impl Device for FileDevice {
    fn info(&self) -> &DeviceInfo {
        self.target.info()
    }

    fn check_end(&self) -> Result<(), DeviceError> {
        match self.target.check_end() {
            Err(error @ DeviceError::Shortened { .. }) => Err(error),
            // An error of the system call itself is left to the next flush.
            Ok(()) | Err(_) => self.target.health.check_end(self.target.info()),
        }
    }

    fn length_now(&self) -> Result<u64, DeviceError> {
        self.target.length_now()
    }

    fn lengthen(&self) -> Result<(), DeviceError> {
        self.target.lengthen()
    }

    fn overdue(&self) -> usize {
        self.target.health.overdue()
    }

    fn lock_identity(&self) -> Option<[u64; 2]> {
        self.target.lock
    }

    fn submit(&self, purpose: IoPurpose, operation: DeviceOperation) -> Ticket {
        self.start_call(purpose, operation, Uring::submit)
    }

    fn submit_all(&self, purpose: IoPurpose, operations: Vec<DeviceOperation>) -> Vec<Ticket> {
        let prepare = |operation| self.start_call(purpose, operation, Uring::prepare);
        operations.into_iter().map(prepare).collect()
    }

    fn read(
        &self,
        purpose: IoPurpose,
        offset: u64,
        length_bytes: usize,
    ) -> Result<AlignedBuffer, DeviceError> {
        let buffer = AlignedBuffer::for_reading(length_bytes);
        let completion = self.call(purpose, DeviceOperation::Read { offset, buffer })?;
        Ok(completion.buffer.expect("a read returns its buffer"))
    }

    fn write(
        &self,
        purpose: IoPurpose,
        offset: u64,
        data: AlignedBuffer,
    ) -> Result<(), DeviceError> {
        let data = vec![SharedBytes::from(data)];
        self.call(purpose, DeviceOperation::Write { offset, data }).map(drop)
    }

    fn flush(&self, purpose: IoPurpose) -> Result<(), DeviceError> {
        self.call(purpose, DeviceOperation::Flush).map(drop)
    }
}
