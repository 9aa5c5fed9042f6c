//! Access to a target, by system calls or by the vnode interface.

mod kernel;
mod process;

use std::fmt::Debug;
use std::io;
use std::os::fd::OwnedFd;

use engine::api::Ino;

pub use kernel::KernelAccess;
pub use process::ProcessAccess;

/// Alignment for O_DIRECT on any device.
pub const DIRECT_ALIGN_BYTES: usize = 4096;

/// An open file or directory of a target.
#[derive(Debug)]
pub enum BenchHandle {
    /// Descriptor of the kernel.
    Descriptor(OwnedFd),
    /// Inode of a file system in this process, with a reference held.
    Inode(Ino),
    /// Nothing, while the target is closed.
    Closed,
}

/// Open mode of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpenMode {
    /// Buffered reads.
    Read,
    /// Buffered writes.
    Write,
    /// Direct reads.
    ReadDirect,
}

/// Buffer for one transfer, aligned for O_DIRECT.
#[derive(Debug)]
pub struct TransferBuffer {
    bytes: Vec<u8>,
    start: usize,
    length: usize,
    /// Destination of in-process reads.
    read: Vec<u8>,
}

impl TransferBuffer {
    /// Returns a buffer of `length` bytes with varying values.
    #[must_use]
    pub fn new(length: usize) -> TransferBuffer {
        let bytes: Vec<u8> = (0_u8..=250).cycle().take(length + DIRECT_ALIGN_BYTES).collect();
        // At most the padding, even if `align_offset` fails with `usize::MAX`.
        let start = bytes.as_ptr().align_offset(DIRECT_ALIGN_BYTES) % DIRECT_ALIGN_BYTES;
        TransferBuffer { bytes, start, length, read: Vec::with_capacity(length) }
    }

    /// Returns the bytes.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[self.start..self.start + self.length]
    }

    /// Returns the first `count` bytes, or all.
    #[must_use]
    pub fn first(&self, count: usize) -> &[u8] {
        &self.bytes[self.start..self.start + count.min(self.length)]
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[self.start..self.start + self.length]
    }
}

/// Closes and reopens a target, which empties all caches. No handle may be open.
pub trait TargetReopener: Send + Sync + Debug {
    /// Closes the target.
    fn close(&self) -> io::Result<()>;
    /// Whether [`TargetReopener::check`] is supported.
    fn has_checker(&self) -> bool;
    /// Checks the closed target. Fails if it has a defect.
    fn check(&self) -> io::Result<()>;
    /// Reopens the target.
    fn open(&self) -> io::Result<()>;
}

/// A file system under a workload. Names are single components in an open directory.
///
/// # Concurrency
///
/// Called by many threads.
pub trait TargetAccess: Send + Sync + Debug {
    /// Opens the directory for workloads.
    fn root(&self) -> io::Result<BenchHandle>;
    /// Creates a directory.
    fn make_dir(&self, at: &BenchHandle, name: &str) -> io::Result<()>;
    /// Opens a directory.
    fn open_dir(&self, at: &BenchHandle, name: &str) -> io::Result<BenchHandle>;
    /// Creates and opens a regular file, which must not exist.
    fn create(&self, at: &BenchHandle, name: &str, is_direct: bool) -> io::Result<BenchHandle>;
    /// Opens a regular file.
    fn open(&self, at: &BenchHandle, name: &str, what_for: OpenMode) -> io::Result<BenchHandle>;
    /// Closes a handle.
    fn close(&self, handle: BenchHandle);
    /// Reads up to the buffer's length or the end of file, and returns the bytes read.
    fn read(&self, file: &BenchHandle, offset: u64, into: &mut TransferBuffer)
    -> io::Result<usize>;
    /// Writes all of `data`.
    fn write(&self, file: &BenchHandle, offset: u64, data: &[u8]) -> io::Result<()>;
    /// Syncs a file.
    fn sync_file(&self, file: &BenchHandle) -> io::Result<()>;
    /// Returns the size of a file, without following a symbolic link.
    fn stat(&self, at: &BenchHandle, name: &str) -> io::Result<u64>;
    /// Returns the size of an open file.
    fn stat_file(&self, file: &BenchHandle) -> io::Result<u64>;
    /// Removes a file.
    fn unlink(&self, at: &BenchHandle, name: &str) -> io::Result<()>;
    /// Removes an empty directory.
    fn remove_dir(&self, at: &BenchHandle, name: &str) -> io::Result<()>;
    /// Renames within a directory.
    fn rename(&self, at: &BenchHandle, from: &str, to: &str) -> io::Result<()>;
    /// Creates a hard link in the same directory.
    fn link(&self, at: &BenchHandle, from: &str, to: &str) -> io::Result<()>;
    /// Creates a symbolic link.
    fn symlink(&self, at: &BenchHandle, name: &str, target: &str) -> io::Result<()>;
    /// Returns the length of a symbolic link's target.
    fn read_link(&self, at: &BenchHandle, name: &str) -> io::Result<usize>;
    /// Sets permission bits.
    fn set_mode(&self, at: &BenchHandle, name: &str, mode: u16) -> io::Result<()>;
    /// Sets the times of an open file.
    fn set_times(&self, file: &BenchHandle, seconds: i64) -> io::Result<()>;
    /// Calls `each` with every name but `.` and `..`, and whether it is a directory.
    fn list(&self, dir: &BenchHandle, each: &mut dyn FnMut(&str, bool)) -> io::Result<()>;
    /// Returns the free space.
    fn free_bytes(&self) -> io::Result<u64>;
    /// Drops cached pages of a synced file.
    fn forget_content(&self, file: &BenchHandle) -> io::Result<()>;
    /// Makes all writes durable, so that the next workload does not pay for them.
    fn settle(&self) -> io::Result<()>;
    /// Returns the means to close and reopen the target, if supported.
    fn offline(&self) -> Option<&dyn TargetReopener> {
        None
    }
}
