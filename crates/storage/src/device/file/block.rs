//! What only an ioctl tells of a block device.
#![allow(unsafe_code)]

use std::os::fd::OwnedFd;

use rustix::io::Errno;
use rustix::ioctl::{Getter, Opcode, ioctl, opcode};

/// `BLKGETSIZE64` of linux/fs.h, which gives a `u64` in spite of the type in its number.
const BLKGETSIZE64: Opcode = opcode::read::<usize>(0x12, 114);

/// `BLKROGET` of linux/fs.h, which gives an `int`.
const BLKROGET: Opcode = opcode::none(0x12, 94);

/// Returns whether the block device refuses every write.
pub(super) fn is_read_only(device: &OwnedFd) -> Result<bool, Errno> {
    // SAFETY: the kernel writes one `int` where the getter has room for one, and keeps nothing.
    let found = unsafe { ioctl(device, Getter::<BLKROGET, libc::c_int>::new()) }?;
    Ok(found != 0)
}

/// Returns how many bytes the block device has now.
pub(super) fn size_bytes(device: &OwnedFd) -> Result<u64, Errno> {
    // SAFETY: the kernel writes one `u64` where the getter has room for one, and keeps nothing.
    unsafe { ioctl(device, Getter::<BLKGETSIZE64, u64>::new()) }
}
