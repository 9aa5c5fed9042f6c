//! Locks the file behind a loop device.
//!
//! A lock on `/dev/loop0` covers neither its backing file nor `/dev/loop1` on the same file. So the
//! backing file is locked too, through nested loop devices.
//!
//! The kernel reports device, inode and name of the file. The name may be truncated or from another
//! mount namespace, so it is used only if it leads to that inode. Without a usable name or
//! permission, or for a loop device on a part of the file, only the heartbeat
//! (`storage::heartbeat`) protects the pool.

use std::os::fd::OwnedFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, Mode, OFlags, Stat};
use rustix::io::Errno;

use super::block::{self, LoopInfo};

const LOOP_MAJOR: u32 = 7;
/// Nested loop devices. More is a mistake, or a cycle.
const DEPTH_MAX: usize = 8;

/// The backing of a loop device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoopBacking {
    /// File system and inode of the backing file.
    file: (u64, u64),
    block_device: Option<u64>,
    /// Offset in the backing file.
    pub start: u64,
    /// Length, or 0 to the end.
    pub length: u64,
}

impl LoopBacking {
    /// Returns the backing of the loop device at `path`. `None` if it is not an accessible,
    /// attached loop device.
    #[must_use]
    pub fn of(path: &Path) -> Option<LoopBacking> {
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let device = rustix::fs::open(path, flags, Mode::empty()).ok()?;
        let stat = rustix::fs::fstat(&device).ok()?;
        let info = loop_info_of(&device, &stat)?;
        Some(LoopBacking {
            file: (info.device, info.inode),
            block_device: Some(info.backing_device).filter(|it| *it != 0).map(decoded),
            start: info.offset,
            length: info.size_limit,
        })
    }

    /// Returns a backing from the name in sysfs, for users without permission to open the loop
    /// device.
    #[must_use]
    pub fn named(path: &Path, start: u64, length: u64) -> Option<LoopBacking> {
        let stat = rustix::fs::stat(path).ok()?;
        let is_block_device = rustix::fs::FileType::from_raw_mode(stat.st_mode).is_block_device();
        let block_device = Some(stat.st_rdev).filter(|_| is_block_device);
        let file = (kernel_encoding(stat.st_dev), stat.st_ino);
        Some(LoopBacking { file, block_device, start, length })
    }

    /// Whether the backing is this inode of this file system.
    #[must_use]
    pub fn is_file(&self, file_system: u64, inode: u64) -> bool {
        self.file == (kernel_encoding(file_system), inode)
    }

    /// Returns the backing block device, if it is one.
    #[must_use]
    pub fn block_device(&self) -> Option<u64> {
        self.block_device
    }

    /// Whether this is part of a file or device at `path` that is locked or exclusively open, as in
    /// a pool. False if `path` now leads elsewhere.
    #[must_use]
    pub fn is_part_of_locked(&self, path: &Path) -> bool {
        if (self.start, self.length) == (0, 0) {
            // A loop device on the whole file fails its own lock when opened.
            return false;
        }
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        if let Some(own) = self.block_device {
            let is_it = rustix::fs::stat(path).is_ok_and(|stat| stat.st_rdev == own);
            let opened = || rustix::fs::open(path, flags | OFlags::EXCL, Mode::empty());
            return is_it && matches!(opened(), Err(Errno::BUSY));
        }
        let is_it = |stat: &Stat| self.is_file(stat.st_dev, stat.st_ino);
        if !rustix::fs::stat(path).is_ok_and(|stat| is_it(&stat)) {
            return false;
        }
        let Ok(file) = rustix::fs::open(path, flags, Mode::empty()) else { return false };
        let locked = rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive);
        matches!(locked, Err(Errno::WOULDBLOCK))
    }

    /// Whether both have the same backing.
    #[must_use]
    pub fn is_of_same(&self, other: &LoopBacking) -> bool {
        match (self.block_device, other.block_device) {
            (None, None) => self.file == other.file,
            (own, other) => own == other,
        }
    }
}

/// Returns the status of a loop device. `None` for any other device.
fn loop_info_of(device: &OwnedFd, stat: &Stat) -> Option<LoopInfo> {
    let is_block_device = rustix::fs::FileType::from_raw_mode(stat.st_mode).is_block_device();
    if !is_block_device || rustix::fs::major(stat.st_rdev) != LOOP_MAJOR {
        return None;
    }
    block::loop_info(device).ok()
}

/// Locks the backing of `device`, if that is a loop device. Dropping the result releases the locks.
///
/// # Errors
///
/// The path of the backing file and `EWOULDBLOCK`, if it is in use.
pub(super) fn lock(
    device: &OwnedFd,
    lock: FlockOperation,
) -> Result<Vec<OwnedFd>, (PathBuf, Errno)> {
    let mut held: Vec<OwnedFd> = Vec::new();
    while held.len() < DEPTH_MAX {
        let Some((path, file)) = behind(held.last().unwrap_or(device)) else { break };
        match rustix::fs::flock(&file, lock) {
            Ok(()) => held.push(file),
            // The file system has no locks: only the heartbeat protects the pool.
            Err(Errno::NOLCK | Errno::OPNOTSUPP | Errno::BADF) => break,
            Err(errno) => return Err((path, errno)),
        }
    }
    Ok(held)
}

/// Returns the identity of a locked file, or of an exclusively open block device.
pub(super) fn identity_of(file: &OwnedFd) -> Option<[u64; 2]> {
    /// Outside the range of device numbers, which have 32 bits.
    const BLOCK_DEVICE: u64 = 1 << 63;
    let stat = rustix::fs::fstat(file).ok()?;
    let kind = rustix::fs::FileType::from_raw_mode(stat.st_mode);
    let is_block_device = kind.is_block_device();
    // A block device has many names, but one exclusive owner for all of them.
    Some(if is_block_device { [BLOCK_DEVICE, stat.st_rdev] } else { [stat.st_dev, stat.st_ino] })
}

/// Opens the backing file, and returns its path too.
fn behind(device: &OwnedFd) -> Option<(PathBuf, OwnedFd)> {
    let stat = rustix::fs::fstat(device).ok()?;
    let info = loop_info_of(device, &stat)?;
    if info.offset != 0 || info.size_limit != 0 {
        return None;
    }
    names_of(&info, &stat).into_iter().find_map(|path| Some((path.clone(), open(&path, &info)?)))
}

/// Returns candidate paths of the backing file, the likeliest first.
fn names_of(info: &LoopInfo, stat: &Stat) -> Vec<PathBuf> {
    let minor = rustix::fs::minor(stat.st_rdev);
    let told = std::fs::read(format!("/sys/dev/block/{LOOP_MAJOR}:{minor}/loop/backing_file"));
    let told = told.ok().map(|mut name| {
        // Strip only the last newline: a name may contain others.
        name.pop_if(|last| *last == b'\n');
        PathBuf::from(std::ffi::OsString::from_vec(name))
    });
    let kept = info.name.split(|&byte| byte == 0).next().unwrap_or_default();
    let kept = Path::new(std::ffi::OsStr::from_bytes(kept)).to_owned();
    told.into_iter().chain([kept]).filter(|name| name.is_absolute()).collect()
}

/// Opens `path` if it is the backing file by the kernel's numbers.
fn open(path: &Path, info: &LoopInfo) -> Option<OwnedFd> {
    // The descriptor only holds a lock. A fifo of that name must not block the open.
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let is_same =
        |stat: &Stat| stat.st_ino == info.inode && kernel_encoding(stat.st_dev) == info.device;
    // Checked before opening, because opening a device can have side effects.
    rustix::fs::stat(path).ok().filter(is_same)?;
    let file = rustix::fs::open(path, flags, Mode::empty()).ok()?;
    rustix::fs::fstat(&file).ok().filter(is_same)?;
    Some(file)
}

/// Encodes a device number as in `loop_info64` (`new_encode_dev` of linux/kdev_t.h).
fn kernel_encoding(device: u64) -> u64 {
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    u64::from((minor & 0xff) | major << 8 | (minor & !0xff) << 12)
}

/// Inverse of [`kernel_encoding`].
fn decoded(encoded: u64) -> u64 {
    let bits = |shift: u32, mask: u64| u32::try_from(encoded >> shift & mask).unwrap_or(0);
    rustix::fs::makedev(bits(8, 0xfff), bits(0, 0xff) | bits(12, 0xfff_ff00))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_devices_are_told_as_the_kernel_does() {
        assert_eq!(kernel_encoding(rustix::fs::makedev(254, 3)), 0xfe03);
        assert_eq!(kernel_encoding(rustix::fs::makedev(8, 0x1_2345)), 0x1230_0845);
        for (major, minor) in [(7, 0), (254, 3), (8, 0x1_2345), (259, 0xf_ffff)] {
            let device = rustix::fs::makedev(major, minor);
            assert_eq!(decoded(kernel_encoding(device)), device);
        }
    }
}
