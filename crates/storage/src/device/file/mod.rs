//! Real devices: a regular file or a block device, read and written past the page cache.
//!
//! # Transports
//!
//! Requests travel by io_uring where the kernel lets us and takes them without waiting, else by
//! `pread` and `pwrite` on a small pool of threads; `DeviceInfo::transport` says which. No caller
//! makes a system call that may block on the device itself: it could not leave at the deadline.
//!
//! A file system that refuses O_DIRECT gets buffered I/O; `fdatasync` makes it as durable.
//!
//! # Invariants
//!
//! - DF1: One writer: whoever opens for writing holds an exclusive `flock` (and O_EXCL on a block
//!   device, which a mounted file system has too) until the device is dropped.
//! - DF3: A call that is overdue when the device is dropped keeps its memory for as long as the
//!   process lives, and the open file, and so the lock of DF1, until it returns: nobody else opens
//!   the file before.
//! - DF4: A discard of a block device is an ioctl, which no ring takes: threads of its own make it,
//!   so whoever asked can leave at the deadline all the same.
//! - DF2: The size in use is durable before the first request past what it was, so `fdatasync`
//!   leaves out nothing that a read needs. Each flush asks for the size first, and a short read
//!   tells too: somebody may cut the file (D5).
//!
//! Not here: what a device is for (`mod.rs` above), and whether it belongs to a pool (labels).

mod backing;
mod block;
mod open;
#[cfg(test)]
mod tests;
mod transfer;
mod uring;

pub use backing::LoopBacking;
pub use open::{Access, FileOptions, OpenError, TransportChoice};

use std::ops::Range;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use rustix::fs::FallocateFlags;
use rustix::io::{Errno, ReadWriteFlags};

use super::health::{Asked, Health};
use super::length::{END_BYTES, Lengths};
use super::range::check_request;
use super::threads::{Blocking, Threads};
use super::{
    AlignedBuffer, Completion, Device, DeviceError, DeviceInfo, IO_ALIGN_BYTES, Operation, Purpose,
    RequestKind, SharedBytes, Ticket,
};
use crate::convert::to_u64;
use transfer::{Failure, slices_after, transfer};
use uring::{Rings, Uring};

/// Requests that a device takes of those who share a ring, or of all with a pool of threads, before
/// a submitter waits for room. Four times what saturates the disks we know, and a bound on the
/// memory that requests in flight hold.
pub const QUEUE_DEPTH: usize = 128;
/// Rings of one device at most: as many as a mount has threads by default.
pub(super) const RINGS_MAX: usize = 4;

/// A file or a block device. See the module's header.
#[derive(Debug)]
pub struct FileDevice {
    target: Arc<Target>,
    transport: Transport,
    /// Of a block device (DF4): they start with the first discard.
    discards: Threads,
}

#[derive(Debug)]
enum Transport {
    Uring(Rings),
    Threads(Threads),
}

/// What requests go to: the open file, and whether it can still be trusted.
#[derive(Debug)]
struct Target {
    file: OwnedFd,
    /// Kept for its locks alone (DF1, DF3).
    backing: Vec<OwnedFd>,
    lock: Option<[u64; 2]>,
    is_block_device: bool,
    lengths: Lengths,
    health: Health,
    /// Whether it has answered that it does not discard (D6).
    has_no_discard: AtomicBool,
    /// Until when the end of the device waits for requests; set when that begins.
    ends_at: OnceLock<Instant>,
}

impl Blocking for Target {
    fn execute(&self, _: Purpose, operation: Operation) -> Result<Completion, DeviceError> {
        Target::execute(self, operation)
    }

    fn info(&self) -> &DeviceInfo {
        Target::info(self)
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
    /// See [`OpenError`]; nothing was changed.
    pub fn open(path: &Path, options: FileOptions) -> Result<Arc<FileDevice>, OpenError> {
        FileDevice::start(open::open(path, options)?, options)
    }

    /// Creates a sparse file of `size_bytes` at `path`, where there must be nothing, and opens it.
    ///
    /// # Errors
    ///
    /// See [`OpenError`]; no file is left behind.
    pub fn create(
        path: &Path,
        size_bytes: u64,
        options: FileOptions,
    ) -> Result<Arc<FileDevice>, OpenError> {
        open::create(path, size_bytes)?;
        FileDevice::open(path, options).inspect_err(|_| open::remove(path))
    }

    /// Gives the file another length and returns it as a device of that length. The name, the mode,
    /// the owner and the lock stay. This device is not used any more.
    ///
    /// # Errors
    ///
    /// See [`OpenError`]; the file has its old length then.
    pub fn resize(
        &self,
        size_bytes: u64,
        options: FileOptions,
    ) -> Result<Arc<FileDevice>, OpenError> {
        FileDevice::start(open::resize(&self.target, size_bytes)?, options)
    }

    /// Whether it is a block device, whose length is nobody's to change here.
    #[must_use]
    pub fn is_block_device(&self) -> bool {
        self.target.is_block_device
    }

    /// Makes the file `size_bytes` long, durably, if it is shorter; the device uses no more of it
    /// than before ([`Device::lengthen`]).
    ///
    /// # Errors
    ///
    /// See [`OpenError`]; the file is as long as it was.
    pub fn extend(&self, size_bytes: u64) -> Result<(), OpenError> {
        open::extend(&self.target, size_bytes)
    }

    /// Returns whether the file has lost its last name: it is gone when the device is dropped. Does
    /// not wait for whoever keeps the file.
    #[must_use]
    pub fn is_removed(&self) -> bool {
        !self.target.is_block_device
            && open::links_and_mode(&self.target.file).is_ok_and(|(links, _)| links == 0)
    }

    /// Returns the mode of a file that others than its owner may open; `None`: they may not, or it
    /// is a block device, whose node says nothing of who looks after it. Does not wait either.
    #[must_use]
    pub fn permissions_of_others(&self) -> Option<u16> {
        let (_, mode) = open::links_and_mode(&self.target.file).ok()?;
        let mode = mode & 0o7777;
        (!self.target.is_block_device && mode & 0o077 != 0).then_some(mode)
    }

    /// Returns where the file may hold anything but zeros, in order: holes are left out. `None`:
    /// nobody can tell, as on a block device, or there are more than `ranges_max` ranges.
    ///
    /// # Errors
    ///
    /// What the system says.
    pub fn written_ranges(&self, ranges_max: usize) -> std::io::Result<Option<Vec<Range<u64>>>> {
        if self.target.is_block_device {
            return Ok(None);
        }
        Ok(open::written_ranges(&self.target.file, self.target.info().size_bytes, ranges_max)?)
    }

    fn start(opened: open::Opened, options: FileOptions) -> Result<Arc<FileDevice>, OpenError> {
        let open::Opened { file, backing, is_block_device, mut info, is_direct } = opened;
        let ring = match options.transport {
            TransportChoice::Pread => None,
            TransportChoice::Automatic => open::is_submitted_at_once(&file, is_block_device)
                .then(Uring::ring)
                .and_then(Result::ok),
            TransportChoice::Uring => Some(
                Uring::ring()
                    .map_err(|source| OpenError::NoUring { name: info.name.clone(), source })?,
            ),
        };
        info.transport = match (ring.is_some(), is_direct) {
            (true, true) => "io_uring",
            (true, false) => "io_uring, buffered",
            (false, true) => "pread",
            (false, false) => "pread, buffered",
        };
        let health = Health::new(options.deadline);
        let target = Arc::new(Target::new(file, backing, is_block_device, info, health));
        let transport = match ring {
            Some(ring) => Transport::Uring(Rings::new(ring, Arc::clone(&target))),
            None => Transport::Threads(Threads::new(Arc::<Target>::clone(&target))),
        };
        let discards = Threads::new(Arc::<Target>::clone(&target));
        Ok(Arc::new(FileDevice { target, transport, discards }))
    }
}

impl FileDevice {
    /// Starts a request by `ring`, where there is one.
    fn start_call(
        &self,
        purpose: Purpose,
        operation: Operation,
        ring: impl FnOnce(&Arc<Uring>, Operation, Asked) -> Ticket,
    ) -> Ticket {
        if let Transport::Uring(rings) = &self.transport {
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
            Transport::Uring(rings) => ring(rings.of_thread(), operation, asked),
            Transport::Threads(threads) => threads.submit(purpose, operation, asked),
        }
    }

    /// Starts a request that is waited for at once: with a ring, one system call does both.
    fn call(&self, purpose: Purpose, operation: Operation) -> Result<Completion, DeviceError> {
        self.start_call(purpose, operation, Uring::prepare).wait()
    }
}

impl Target {
    fn new(
        file: OwnedFd,
        backing: Vec<OwnedFd>,
        is_block_device: bool,
        info: DeviceInfo,
        health: Health,
    ) -> Target {
        let ends_at = OnceLock::new();
        let lock = backing::identity_of(backing.last().unwrap_or(&file));
        let (lengths, has_no_discard) = (Lengths::new(info), AtomicBool::new(false));
        Target { file, backing, lock, is_block_device, lengths, health, has_no_discard, ends_at }
    }

    fn info(&self) -> &DeviceInfo {
        self.lengths.now()
    }

    /// Returns how many bytes there are now.
    fn length_now(&self) -> Result<u64, DeviceError> {
        let end = open::end_bytes(&self.file, self.is_block_device).map_err(|errno| {
            let (device, cause) = (self.info().name.clone(), errno.to_string());
            DeviceError::Io { device, kind: RequestKind::Read, offset: 0, length_bytes: 0, cause }
        })?;
        Ok(end - end % to_u64(IO_ALIGN_BYTES))
    }

    /// See [`Device::lengthen`].
    fn lengthen(&self) -> Result<(), DeviceError> {
        let size_bytes = self.length_now()?;
        if size_bytes > self.info().size_bytes {
            self.reserve_end(size_bytes)?;
            // CRASH: whoever made the file longer has perhaps not made that durable, and the
            // labels will say that the pool has all of it (DF2).
            let synced = rustix::fs::fsync(&self.file).map_err(Failure::System);
            self.answer(RequestKind::Flush, 0, 0, synced)?;
        }
        self.lengths.lengthen(size_bytes)
    }

    /// Sees to it that the file system below has room for the end of a file of `size_bytes`; one
    /// that cannot be asked is not.
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
                let failed = Err(Failure::System(errno));
                self.answer(RequestKind::Write, offset, length_bytes, failed)
            }
        }
    }

    /// Refuses what must not reach the file.
    fn admit(&self, purpose: Purpose, operation: &Operation) -> Result<Asked, DeviceError> {
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

    /// D5: what a file that was cut has lost is not called durable. A file that is cut after this
    /// and before the flush ends is found by the next one, as if it had been cut after both.
    fn check_end(&self) -> Result<(), DeviceError> {
        let result = match open::end_bytes(&self.file, self.is_block_device) {
            Ok(end_bytes) if end_bytes >= self.info().size_bytes => Ok(()),
            Ok(_) => Err(Failure::Truncated),
            Err(errno) => Err(Failure::System(errno)),
        };
        self.answer(RequestKind::Flush, 0, 0, result)
    }

    /// Turns what the system said into an answer.
    fn answer(
        &self,
        kind: RequestKind,
        offset: u64,
        length_bytes: u64,
        result: Result<(), Failure>,
    ) -> Result<(), DeviceError> {
        let Err(failure) = result else {
            return Ok(());
        };
        if failure == Failure::Truncated {
            return Err(self.health.shorten(self.info()));
        }
        if kind == RequestKind::Flush {
            // D3.
            self.health.fail();
        }
        let device = self.info().name.clone();
        if let (RequestKind::Discard, Failure::System(errno)) = (kind, failure)
            && is_unsupported(errno)
        {
            if !self.has_no_discard.swap(true, Ordering::Relaxed) {
                tracing::info!(device, %errno, "the device does not support discard");
            }
            return Err(DeviceError::NoDiscard { device });
        }
        let is_full = matches!(failure, Failure::System(Errno::NOSPC | Errno::DQUOT));
        if is_full && kind == RequestKind::Write {
            return Err(DeviceError::NoSpace { device, offset });
        }
        let is_refused =
            matches!(failure, Failure::System(Errno::PERM | Errno::ROFS | Errno::ACCESS));
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

    /// D3: what of a write that failed was to be durable may be forgotten below, and reported no
    /// more.
    fn answer_through(&self, answer: Result<(), DeviceError>) -> Result<(), DeviceError> {
        answer.inspect_err(|_| self.health.fail())
    }

    fn transfer_out(
        &self,
        offset: u64,
        data: &[SharedBytes],
        flags: ReadWriteFlags,
    ) -> (u64, Result<(), Failure>) {
        let length: usize = data.iter().map(|piece| piece.len()).sum();
        let result = transfer(length, |done| {
            let slices = slices_after(data, done);
            rustix::io::pwritev2(&self.file, &slices, offset + to_u64(done), flags)
        });
        (to_u64(length), result)
    }

    fn flush(&self) -> Result<(), DeviceError> {
        // Never again after an interruption: what was written before it may have been reported
        // and forgotten (D3).
        let result = rustix::fs::fdatasync(&self.file).map_err(Failure::System);
        self.answer(RequestKind::Flush, 0, 0, result)
    }

    /// Punches a hole into a file; of a block device the range is discarded, whatever it reads as
    /// then.
    fn discard(&self, offset: u64, length_bytes: u64) -> Result<(), DeviceError> {
        let mode = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        let result = match self.is_block_device {
            true => block::discard(&self.file, offset, length_bytes),
            false => rustix::fs::fallocate(&self.file, mode, offset, length_bytes),
        };
        self.answer(RequestKind::Discard, offset, length_bytes, result.map_err(Failure::System))
    }

    /// Does what is asked, in the calling thread.
    fn execute(&self, operation: Operation) -> Result<Completion, DeviceError> {
        match operation {
            Operation::Read { offset, mut buffer } => {
                self.read(offset, &mut buffer)?;
                return Ok(Completion { buffer: Some(buffer) });
            }
            Operation::Write { offset, data } => self.write(offset, &data)?,
            Operation::WriteThrough { offset, data } => self.write_through(offset, &data)?,
            Operation::Flush => self.flush()?,
            Operation::Discard { offset, length_bytes } => self.discard(offset, length_bytes)?,
        }
        Ok(Completion::default())
    }
}

/// Whether the system says that it cannot do this to such a file or device at all.
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
            // Whether it can be asked is the next flush's affair.
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

    fn submit(&self, purpose: Purpose, operation: Operation) -> Ticket {
        self.start_call(purpose, operation, Uring::submit)
    }

    fn submit_all(&self, purpose: Purpose, operations: Vec<Operation>) -> Vec<Ticket> {
        let prepare = |operation| self.start_call(purpose, operation, Uring::prepare);
        operations.into_iter().map(prepare).collect()
    }

    fn read(
        &self,
        purpose: Purpose,
        offset: u64,
        length_bytes: usize,
    ) -> Result<AlignedBuffer, DeviceError> {
        let buffer = AlignedBuffer::for_reading(length_bytes);
        let completion = self.call(purpose, Operation::Read { offset, buffer })?;
        Ok(completion.buffer.expect("a read returns its buffer"))
    }

    fn write(&self, purpose: Purpose, offset: u64, data: AlignedBuffer) -> Result<(), DeviceError> {
        let data = vec![SharedBytes::from(data)];
        self.call(purpose, Operation::Write { offset, data }).map(drop)
    }

    fn flush(&self, purpose: Purpose) -> Result<(), DeviceError> {
        self.call(purpose, Operation::Flush).map(drop)
    }
}
