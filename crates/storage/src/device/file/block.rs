//! What only an ioctl tells of a block device.
#![allow(unsafe_code)]

use std::os::fd::OwnedFd;

use rustix::io::Errno;
use rustix::ioctl::{Getter, Opcode, Setter, ioctl, opcode};

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

/// `BLKDISCARD` of linux/fs.h, which takes two `u64`: where it begins, and how many bytes.
const BLKDISCARD: Opcode = opcode::none(0x12, 119);

/// Discards a range of the block device: what it reads as then is the device's to choose.
pub(super) fn discard(device: &OwnedFd, offset: u64, length_bytes: u64) -> Result<(), Errno> {
    let range = [offset, length_bytes];
    // SAFETY: the kernel reads two `u64` where the setter has them, and keeps nothing.
    unsafe { ioctl(device, Setter::<BLKDISCARD, [u64; 2]>::new(range)) }
}

/// `LOOP_GET_STATUS64` of linux/loop.h, a number from before there was a scheme for them.
const LOOP_GET_STATUS64: Opcode = 0x4c05;

/// `struct loop_info64` of linux/loop.h.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(super) struct LoopInfo {
    /// Device of the file system that the backing file is on, as the kernel encodes it.
    pub(super) device: u64,
    /// Inode of the backing file.
    pub(super) inode: u64,
    /// The backing block device, if it is one.
    pub(super) backing_device: u64,
    /// First byte of the file that the loop device shows.
    pub(super) offset: u64,
    /// How many it shows; 0: all.
    pub(super) size_limit: u64,
    number: u32,
    encrypt_type: u32,
    encrypt_key_size: u32,
    flags: u32,
    /// What the file was called when it was attached, cut off at 63 bytes.
    pub(super) name: [u8; 64],
    crypt_name: [u8; 64],
    encrypt_key: [u8; 32],
    init: [u64; 2],
}

const _: () = assert!(size_of::<LoopInfo>() == 232);

/// Returns what is attached to a loop device; fails with `ENXIO` where nothing is.
pub(super) fn loop_info(device: &OwnedFd) -> Result<LoopInfo, Errno> {
    // SAFETY: the caller has made sure that it is a loop device; its kernel writes one
    // `loop_info64` where the getter has room for one, all of whose bytes are plain numbers.
    unsafe { ioctl(device, Getter::<LOOP_GET_STATUS64, LoopInfo>::new()) }
}
