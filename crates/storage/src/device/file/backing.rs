//! The file behind a loop device: whoever opens one of the two has the other.
//!
//! A lock on `/dev/loop0` says nothing about the file behind it, nor about `/dev/loop1` on the same
//! file. So the inode of the file is locked too, as if the file had been opened, down to what is no
//! loop device any more.
//!
//! The kernel tells device and inode of the file, and what it was called when it was attached. That
//! name may be cut off, and both it and the one in sysfs may be of another mount namespace; so a
//! name counts only if it leads to that inode. Where none does, or where this user may not open the
//! file, there is no lock: then only the heartbeat tells (`storage::heartbeat`). So it is where a
//! loop device shows a part of its file: other parts are other devices.

use std::os::fd::OwnedFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, Mode, OFlags, Stat};
use rustix::io::Errno;

use super::block::{self, LoopInfo};

/// Major number of loop devices, from the kernel's list of devices.
const LOOP_MAJOR: u32 = 7;
/// Loop devices on loop devices: more is a mistake, or a circle.
const DEPTH_MAX: usize = 8;

/// What a loop device shows, as the kernel says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoopBacking {
    /// File system and inode of the file.
    file: (u64, u64),
    /// The block device that it is, if it is one.
    block_device: Option<u64>,
    /// First byte that it shows of it.
    pub start: u64,
    /// How many; 0: all behind that.
    pub length: u64,
}

impl LoopBacking {
    /// Returns what the loop device at `path` shows; `None`: it is none, shows nothing, or may not
    /// be opened.
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

    /// Returns what a loop device shows of the file at `path`, as sysfs tells it to whoever may not
    /// open the device: which file that is goes by its name.
    #[must_use]
    pub fn named(path: &Path, start: u64, length: u64) -> Option<LoopBacking> {
        let stat = rustix::fs::stat(path).ok()?;
        let is_block_device = rustix::fs::FileType::from_raw_mode(stat.st_mode).is_block_device();
        let block_device = Some(stat.st_rdev).filter(|_| is_block_device);
        let file = (kernel_encoding(stat.st_dev), stat.st_ino);
        Some(LoopBacking { file, block_device, start, length })
    }

    /// Whether it shows the file with this inode, on the file system with this number.
    #[must_use]
    pub fn is_file(&self, file_system: u64, inode: u64) -> bool {
        self.file == (kernel_encoding(file_system), inode)
    }

    /// Returns the number of the block device that it shows, if it shows one.
    #[must_use]
    pub fn block_device(&self) -> Option<u64> {
        self.block_device
    }

    /// Whether it shows a part of what somebody has locked, or has for himself, as a pool does
    /// with its devices. `path` is where that is; if it is another by now, nothing is known.
    #[must_use]
    pub fn is_part_of_locked(&self, path: &Path) -> bool {
        if (self.start, self.length) == (0, 0) {
            // Whoever opens it locks all of it, and is told.
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

    /// Whether both show the same file or device.
    #[must_use]
    pub fn is_of_same(&self, other: &LoopBacking) -> bool {
        match (self.block_device, other.block_device) {
            (None, None) => self.file == other.file,
            (own, other) => own == other,
        }
    }
}

/// Returns what is attached to a loop device; `None`: it is none.
fn loop_info_of(device: &OwnedFd, stat: &Stat) -> Option<LoopInfo> {
    let is_block_device = rustix::fs::FileType::from_raw_mode(stat.st_mode).is_block_device();
    if !is_block_device || rustix::fs::major(stat.st_rdev) != LOOP_MAJOR {
        return None;
    }
    block::loop_info(device).ok()
}

/// Locks what lies behind `device`, if that is a loop device. The locks last as long as what is
/// returned.
///
/// # Errors
///
/// The name of the file and `EWOULDBLOCK`, if another has it.
pub(super) fn lock(
    device: &OwnedFd,
    lock: FlockOperation,
) -> Result<Vec<OwnedFd>, (PathBuf, Errno)> {
    let mut held: Vec<OwnedFd> = Vec::new();
    while held.len() < DEPTH_MAX {
        let Some((path, file)) = behind(held.last().unwrap_or(device)) else { break };
        match rustix::fs::flock(&file, lock) {
            Ok(()) => held.push(file),
            // A file system without locks: the heartbeat tells.
            Err(Errno::NOLCK | Errno::OPNOTSUPP | Errno::BADF) => break,
            Err(errno) => return Err((path, errno)),
        }
    }
    Ok(held)
}

/// Returns the numbers of a file that is locked, or of a block device that is open for one alone.
pub(super) fn identity_of(file: &OwnedFd) -> Option<[u64; 2]> {
    /// No device has such a number: they have 32 bits.
    const BLOCK_DEVICE: u64 = 1 << 63;
    let stat = rustix::fs::fstat(file).ok()?;
    let kind = rustix::fs::FileType::from_raw_mode(stat.st_mode);
    let is_block_device = kind.is_block_device();
    // A block device has many names, and the kernel gives it to one whatever he calls it.
    Some(if is_block_device { [BLOCK_DEVICE, stat.st_rdev] } else { [stat.st_dev, stat.st_ino] })
}

/// Returns the file behind a loop device, and what it is called here.
fn behind(device: &OwnedFd) -> Option<(PathBuf, OwnedFd)> {
    let stat = rustix::fs::fstat(device).ok()?;
    let info = loop_info_of(device, &stat)?;
    if info.offset != 0 || info.size_limit != 0 {
        return None;
    }
    names_of(&info, &stat).into_iter().find_map(|path| Some((path.clone(), open(&path, &info)?)))
}

/// Returns what the file behind a loop device may be called, the likeliest first.
fn names_of(info: &LoopInfo, stat: &Stat) -> Vec<PathBuf> {
    let minor = rustix::fs::minor(stat.st_rdev);
    let told = std::fs::read(format!("/sys/dev/block/{LOOP_MAJOR}:{minor}/loop/backing_file"));
    let told = told.ok().map(|mut name| {
        // One line; a name may have others.
        name.pop_if(|last| *last == b'\n');
        PathBuf::from(std::ffi::OsString::from_vec(name))
    });
    let kept = info.name.split(|&byte| byte == 0).next().unwrap_or_default();
    let kept = Path::new(std::ffi::OsStr::from_bytes(kept)).to_owned();
    told.into_iter().chain([kept]).filter(|name| name.is_absolute()).collect()
}

/// Opens `path` if it leads to what the kernel says is behind the loop device.
fn open(path: &Path, info: &LoopInfo) -> Option<OwnedFd> {
    // To hold a lock is all it is for. Not to wait for whatever else may have that name by now.
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let is_same =
        |stat: &Stat| stat.st_ino == info.inode && kernel_encoding(stat.st_dev) == info.device;
    // Looked at before it is opened, for to open a device can do something to it.
    rustix::fs::stat(path).ok().filter(is_same)?;
    let file = rustix::fs::open(path, flags, Mode::empty()).ok()?;
    rustix::fs::fstat(&file).ok().filter(is_same)?;
    Some(file)
}

/// Returns a number of a device as `loop_info64` has it (`new_encode_dev` of linux/kdev_t.h).
fn kernel_encoding(device: u64) -> u64 {
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    u64::from((minor & 0xff) | major << 8 | (minor & !0xff) << 12)
}

/// The other way round.
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
