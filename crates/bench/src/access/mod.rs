//! How a target is asked: by system calls, or by the vnode interface.

mod kernel;
mod process;

use std::fmt::Debug;
use std::io;
use std::os::fd::OwnedFd;

use engine::vnode::api::Ino;

pub use kernel::KernelAccess;
pub use process::ProcessAccess;

/// Alignment of what O_DIRECT transfers: no device asks for more.
pub const DIRECT_ALIGN_BYTES: usize = 4096;

/// An open file or directory of the target that opened it.
#[derive(Debug)]
pub enum Handle {
    /// Of a directory of this machine.
    Descriptor(OwnedFd),
    /// Of a file system in this process: a reference is held on it.
    Inode(Ino),
    /// Of a target that is out of use.
    Closed,
}

/// What a file is opened for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpenFor {
    /// Reading, through the cache.
    Read,
    /// Writing, through the cache.
    Write,
    /// Reading, past the cache.
    ReadDirect,
}

/// Memory for one transfer, aligned for O_DIRECT.
#[derive(Debug)]
pub struct Buffer {
    bytes: Vec<u8>,
    start: usize,
    length: usize,
    /// What an in-process read appends to.
    read: Vec<u8>,
}

impl Buffer {
    /// Returns `length` bytes that are not all alike.
    #[must_use]
    pub fn new(length: usize) -> Buffer {
        let bytes: Vec<u8> = (0_u8..=250).cycle().take(length + DIRECT_ALIGN_BYTES).collect();
        // Never more than the padding; a platform that cannot tell gets the start.
        let start = bytes.as_ptr().align_offset(DIRECT_ALIGN_BYTES) % DIRECT_ALIGN_BYTES;
        Buffer { bytes, start, length, read: Vec::with_capacity(length) }
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

/// How a target is taken out of use, with all that caches of this machine hold of it, and comes
/// back. Nothing of it is open meanwhile.
pub trait Offline: Send + Sync + Debug {
    /// Takes it out of use.
    fn close(&self) -> io::Result<()>;
    /// Whether [`Offline::check`] can be called.
    fn has_checker(&self) -> bool;
    /// Looks for defects in it, which is out of use. Fails if there is one.
    fn check(&self) -> io::Result<()>;
    /// Takes it into use again.
    fn open(&self) -> io::Result<()>;
}

/// A file system, as a workload sees it. Names are single ones, below an open directory.
///
/// # Concurrency
///
/// Called by many threads at once.
pub trait Access: Send + Sync + Debug {
    /// Opens the directory that workloads may use.
    fn root(&self) -> io::Result<Handle>;
    /// Makes a directory.
    fn make_dir(&self, at: &Handle, name: &str) -> io::Result<()>;
    /// Opens a directory.
    fn open_dir(&self, at: &Handle, name: &str) -> io::Result<Handle>;
    /// Makes and opens a regular file that is not there yet.
    fn create(&self, at: &Handle, name: &str, is_direct: bool) -> io::Result<Handle>;
    /// Opens a regular file.
    fn open(&self, at: &Handle, name: &str, what_for: OpenFor) -> io::Result<Handle>;
    /// Closes a file or directory.
    fn close(&self, handle: Handle);
    /// Reads until the buffer is full or the file ends; returns how many bytes there were.
    fn read(&self, file: &Handle, offset: u64, into: &mut Buffer) -> io::Result<usize>;
    /// Writes all of `data`.
    fn write(&self, file: &Handle, offset: u64, data: &[u8]) -> io::Result<()>;
    /// Makes a file's content durable.
    fn sync_file(&self, file: &Handle) -> io::Result<()>;
    /// Returns the size of what a name stands for, without following a link.
    fn stat(&self, at: &Handle, name: &str) -> io::Result<u64>;
    /// Returns the size of an open file.
    fn stat_file(&self, file: &Handle) -> io::Result<u64>;
    /// Removes the name of a file.
    fn unlink(&self, at: &Handle, name: &str) -> io::Result<()>;
    /// Removes an empty directory.
    fn remove_dir(&self, at: &Handle, name: &str) -> io::Result<()>;
    /// Renames within a directory.
    fn rename(&self, at: &Handle, from: &str, to: &str) -> io::Result<()>;
    /// Gives a file one more name in the same directory.
    fn link(&self, at: &Handle, from: &str, to: &str) -> io::Result<()>;
    /// Makes a symbolic link.
    fn symlink(&self, at: &Handle, name: &str, target: &str) -> io::Result<()>;
    /// Returns the length of a symbolic link's target.
    fn read_link(&self, at: &Handle, name: &str) -> io::Result<usize>;
    /// Sets the permission bits of what a name stands for.
    fn set_mode(&self, at: &Handle, name: &str, mode: u16) -> io::Result<()>;
    /// Sets the times of an open file, as an archiver does.
    fn set_times(&self, file: &Handle, seconds: i64) -> io::Result<()>;
    /// Calls `each` with every name but `.` and `..`, and whether it is a directory's.
    fn list(&self, dir: &Handle, each: &mut dyn FnMut(&str, bool)) -> io::Result<()>;
    /// Returns the bytes that can still be written.
    fn free_bytes(&self) -> io::Result<u64>;
    /// Drops what a cache of this machine holds of a file's content. The file is synced.
    fn forget_content(&self, file: &Handle) -> io::Result<()>;
    /// Makes durable what was accepted, as far as one may ask for it, so that the next workload
    /// does not pay for this one.
    fn settle(&self) -> io::Result<()>;
    /// Returns how it is taken out of use, if it can be.
    fn offline(&self) -> Option<&dyn Offline> {
        None
    }
}
