//! Block device ioctls.
#![allow(unsafe_code)]

use std::os::fd::OwnedFd;

use rustix::io::Errno;
use rustix::ioctl::{Getter, Opcode, Setter, ioctl, opcode};

/// `BLKGETSIZE64` of linux/fs.h. Returns a `u64`, despite the type in its number.
const BLKGETSIZE64: Opcode = opcode::read::<usize>(0x12, 114);

/// `BLKROGET` of linux/fs.h. Returns an `int`.
const BLKROGET: Opcode = opcode::none(0x12, 94);

pub(super) fn is_read_only(device: &OwnedFd) -> Result<bool, Errno> {
    // SAFETY: the kernel writes one `int` where the getter has room for one, and keeps nothing.
    let found = unsafe { ioctl(device, Getter::<BLKROGET, libc::c_int>::new()) }?;
    Ok(found != 0)
}

pub(super) fn size_bytes(device: &OwnedFd) -> Result<u64, Errno> {
    // SAFETY: the kernel writes one `u64` where the getter has room for one, and keeps nothing.
    unsafe { ioctl(device, Getter::<BLKGETSIZE64, u64>::new()) }
}

/// `BLKDISCARD` of linux/fs.h. Takes offset and length as `u64`.
const BLKDISCARD: Opcode = opcode::none(0x12, 119);

/// Discards a range. Its contents are undefined then.
pub(super) fn discard(device: &OwnedFd, offset: u64, length_bytes: u64) -> Result<(), Errno> {
    let range = [offset, length_bytes];
    // SAFETY: the kernel reads two `u64` where the setter has them, and keeps nothing.
    unsafe { ioctl(device, Setter::<BLKDISCARD, [u64; 2]>::new(range)) }
}

/// `LOOP_GET_STATUS64` of linux/loop.h, older than the numbering scheme.
const LOOP_GET_STATUS64: Opcode = 0x4c05;

/// `struct loop_info64` of linux/loop.h.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(super) struct LoopInfo {
    /// Device of the backing file's file system, in kernel encoding.
    pub(super) device: u64,
    pub(super) inode: u64,
    /// The backing block device, if it is one.
    pub(super) backing_device: u64,
    pub(super) offset: u64,
    /// Length, or 0 for all.
    pub(super) size_limit: u64,
    number: u32,
    encrypt_type: u32,
    encrypt_key_size: u32,
    flags: u32,
    /// Name at attach time, truncated to 63 bytes.
    pub(super) name: [u8; 64],
    crypt_name: [u8; 64],
    encrypt_key: [u8; 32],
    init: [u64; 2],
}

const _: () = assert!(size_of::<LoopInfo>() == 232);

/// Returns the status of a loop device, or `ENXIO` if unattached.
pub(super) fn loop_info(device: &OwnedFd) -> Result<LoopInfo, Errno> {
    // SAFETY: the caller has checked that it is a loop device, so the kernel writes one
    // `loop_info64`, whose bytes are plain numbers, where the getter has room for one.
    unsafe { ioctl(device, Getter::<LOOP_GET_STATUS64, LoopInfo>::new()) }
}
