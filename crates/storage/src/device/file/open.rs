//! Opening, creating and resizing the file of a file device.

use std::fs::{File, FileType};
use std::io;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{AtFlags, FlockOperation, Mode, OFlags, SeekFrom, StatxFlags};
use rustix::io::Errno;

use super::{FileTarget, backing, block};
use crate::convert::to_u64;
use crate::device::{DEADLINE_DEFAULT, DeviceInfo, IO_ALIGN_BYTES};

/// Mode of a created file. A pool holds files of all users, so only its owner may read it, or lock
/// it (DF1).
const FILE_MODE: u32 = 0o600;

/// File system magic numbers, from linux/magic.h.
const EXT4: i64 = 0xef53;
const XFS: i64 = 0x5846_5342;

/// Unit of `stx_blocks` on every file system.
const STATX_BLOCK_BYTES: u64 = 512;

/// Access mode of a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DeviceAccess {
    /// Exclusive, for reading and writing.
    #[default]
    ReadWrite,
    /// Shared with other readers, without writers.
    ReadOnly,
    /// Exclusive, for reading only.
    ReadAlone,
}

/// Choice of the transport.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FileTransportChoice {
    /// io_uring, or `pread` if io_uring is refused or its submission may block.
    #[default]
    Automatic,
    /// io_uring, or failure.
    Uring,
    /// `pread` and `pwrite`.
    Pread,
}

/// Options of a file device.
#[derive(Clone, Copy, Debug)]
pub struct FileOptions {
    /// Access mode.
    pub access: DeviceAccess,
    /// Transport.
    pub transport: FileTransportChoice,
    /// Whether to bypass O_DIRECT and use the page cache.
    pub is_buffered: bool,
    /// Request deadline, by default [`crate::device::DEADLINE_DEFAULT`].
    pub deadline: Duration,
}

impl Default for FileOptions {
    fn default() -> FileOptions {
        FileOptions {
            access: DeviceAccess::default(),
            transport: FileTransportChoice::default(),
            is_buffered: false,
            deadline: DEADLINE_DEFAULT,
        }
    }
}

/// Why a device could not be opened or created.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DeviceOpenError {
    /// No such file.
    #[error("{}: not found; check the path, or create the pool first", path.display())]
    NotFound {
        /// Path.
        path: PathBuf,
    },
    /// The file exists already.
    #[error("{}: exists already; choose another name, or remove it first", path.display())]
    Exists {
        /// Path.
        path: PathBuf,
    },
    /// Permission denied.
    #[error("{}: permission denied; run as its owner, or change its mode", path.display())]
    NotPermitted {
        /// Path.
        path: PathBuf,
    },
    /// The file system of the file is read-only.
    #[error("{}: the file system that holds it is read-only; remount that for writing, or copy the \
        file to where it can be written", path.display())]
    ReadOnlyFileSystem {
        /// Path.
        path: PathBuf,
    },
    /// Another process has it open: a mounted pool, a file system, or a check.
    #[error("{}: in use; unmount the pool or stop the program that has it open", path.display())]
    InUse {
        /// Path.
        path: PathBuf,
    },
    /// Neither a regular file nor a block device.
    #[error("{}: neither a file nor a block device; name one of these", path.display())]
    NotADevice {
        /// Path.
        path: PathBuf,
    },
    /// Smaller than one page.
    #[error("{}: {size_bytes} bytes; a device has {IO_ALIGN_BYTES} at least", path.display())]
    TooSmall {
        /// Path.
        path: PathBuf,
        /// Size found.
        size_bytes: u64,
    },
    /// The file system cannot hold a file of that size.
    #[error("{}: the file system there holds no file of {size_bytes} bytes; choose a smaller size \
        (ext4 ends just below 16 TiB), another file system, or a block device", path.display())]
    TooLarge {
        /// Path.
        path: PathBuf,
        /// Size requested.
        size_bytes: u64,
    },
    /// io_uring was requested and is unavailable.
    #[error("{name}: io_uring is refused ({source}); allow it or choose the transport pread")]
    NoUring {
        /// Device name.
        name: String,
        /// System error.
        source: io::Error,
    },
    /// Any other error.
    #[error("{}: {source}", path.display())]
    Io {
        /// Path.
        path: PathBuf,
        /// System error.
        source: io::Error,
    },
}

impl DeviceOpenError {
    fn new(path: &Path, source: io::Error) -> DeviceOpenError {
        let path = path.to_owned();
        match Errno::from_io_error(&source) {
            Some(Errno::NOENT) => DeviceOpenError::NotFound { path },
            Some(Errno::EXIST) => DeviceOpenError::Exists { path },
            Some(Errno::ACCESS | Errno::PERM) => DeviceOpenError::NotPermitted { path },
            Some(Errno::ROFS) => DeviceOpenError::ReadOnlyFileSystem { path },
            Some(Errno::BUSY | Errno::WOULDBLOCK) => DeviceOpenError::InUse { path },
            Some(_) | None => DeviceOpenError::Io { path, source },
        }
    }
}

#[derive(Debug)]
pub(super) struct OpenedFile {
    pub(super) file: OwnedFd,
    /// Locked backing files.
    pub(super) backing: Vec<OwnedFd>,
    pub(super) is_block_device: bool,
    pub(super) info: DeviceInfo,
    pub(super) is_direct: bool,
}

pub(super) fn open(path: &Path, options: FileOptions) -> Result<OpenedFile, DeviceOpenError> {
    let failed = |source: io::Error| DeviceOpenError::new(path, source);
    let kind = std::fs::metadata(path).map_err(failed)?.file_type();
    if !kind.is_file() && !kind.is_block_device() {
        return Err(DeviceOpenError::NotADevice { path: path.to_owned() });
    }
    let (file, is_direct) = open_direct(path, kind, options).map_err(|e| failed(e.into()))?;
    // One writer (DF1). On block devices the lock also keeps udev from probing.
    let lock = match options.access {
        DeviceAccess::ReadWrite | DeviceAccess::ReadAlone => {
            FlockOperation::NonBlockingLockExclusive
        }
        DeviceAccess::ReadOnly => FlockOperation::NonBlockingLockShared,
    };
    rustix::fs::flock(&file, lock).map_err(|errno| failed(errno.into()))?;
    let backing = backing::lock(&file, lock)
        .map_err(|(behind, errno)| DeviceOpenError::new(&behind, errno.into()))?;

    let is_block_device = kind.is_block_device();
    let end = end_bytes(&file, is_block_device).map_err(|errno| failed(errno.into()))?;
    let size_bytes = end - end % to_u64(IO_ALIGN_BYTES);
    if size_bytes == 0 {
        return Err(DeviceOpenError::TooSmall { path: path.to_owned(), size_bytes: end });
    }
    let sector_bytes = sector_bytes(&file, kind, is_direct).map_err(|e| failed(e.into()))?;
    let name = path.display().to_string();
    let is_read_only = options.access != DeviceAccess::ReadWrite
        || is_block_device && block::is_read_only(&file).map_err(|e| failed(e.into()))?;
    let has_write_through = is_direct && keeps_write_through(&file, is_block_device);
    let info = DeviceInfo {
        name,
        size_bytes,
        sector_bytes,
        is_read_only,
        has_write_through,
        is_sparse: !is_block_device && has_holes(&file, end),
        transport: "",
    };
    Ok(OpenedFile { file, backing, is_block_device, info, is_direct })
}

/// Whether submission never blocks: on block devices and known file systems. On others, such as
/// FUSE, a submitter may wait in the kernel beyond every deadline.
pub(super) fn is_submitted_at_once(file: &OwnedFd, is_block_device: bool) -> bool {
    const BTRFS: i64 = 0x9123_683e;
    const F2FS: i64 = 0xf2f5_2010;
    const OVERLAY: i64 = 0x794c_7630;
    const TMPFS: i64 = 0x0102_1994;
    const KNOWN: [i64; 6] = [EXT4, XFS, BTRFS, F2FS, OVERLAY, TMPFS];
    is_block_device || rustix::fs::fstatfs(file).is_ok_and(|stat| KNOWN.contains(&stat.f_type))
}

/// Whether a completed direct `RWF_DSYNC` write is known to be durable: on block devices, ext4 and
/// XFS. FUSE drops the flag, and btrfs once lost the sync of nonblocking writes.
fn keeps_write_through(file: &OwnedFd, is_block_device: bool) -> bool {
    is_block_device
        || rustix::fs::fstatfs(file).is_ok_and(|stat| [EXT4, XFS].contains(&stat.f_type))
}

/// Returns the length without blocking on a network server or a device lock.
pub(super) fn end_bytes(file: &OwnedFd, is_block_device: bool) -> Result<u64, Errno> {
    if is_block_device {
        return block::size_bytes(file);
    }
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    Ok(rustix::fs::statx(file, "", flags, StatxFlags::SIZE)?.stx_size)
}

/// Whether the file has holes, that is, fewer allocated bytes than `end`.
fn has_holes(file: &OwnedFd, end: u64) -> bool {
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    let found = rustix::fs::statx(file, "", flags, StatxFlags::BLOCKS);
    found.is_ok_and(|found| found.stx_blocks.saturating_mul(STATX_BLOCK_BYTES) < end)
}

/// Returns link count and mode, without blocking.
pub(super) fn links_and_mode(file: &OwnedFd) -> Result<(u32, u16), Errno> {
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    let asked = StatxFlags::NLINK | StatxFlags::MODE;
    let stat = rustix::fs::statx(file, "", flags, asked)?;
    // Without a reported link count, assume that the file is linked.
    let links = if stat.stx_mask & StatxFlags::NLINK.bits() != 0 { stat.stx_nlink } else { 1 };
    Ok((links, stat.stx_mode))
}

fn open_direct(
    path: &Path,
    kind: FileType,
    options: FileOptions,
) -> Result<(OwnedFd, bool), Errno> {
    let mut flags = OFlags::CLOEXEC;
    flags |= match options.access {
        DeviceAccess::ReadOnly | DeviceAccess::ReadAlone => OFlags::RDONLY,
        DeviceAccess::ReadWrite => OFlags::RDWR,
    };
    if kind.is_block_device() && options.access != DeviceAccess::ReadOnly {
        flags |= OFlags::EXCL;
    }
    if !options.is_buffered {
        match rustix::fs::open(path, flags | OFlags::DIRECT, Mode::empty()) {
            Err(Errno::INVAL) => {}
            outcome => return Ok((outcome?, true)),
        }
    }
    Ok((rustix::fs::open(path, flags, Mode::empty())?, false))
}

/// Returns the sector size, or a page if the alignment for O_DIRECT is unknown.
fn sector_bytes(file: &OwnedFd, kind: FileType, is_direct: bool) -> Result<u32, Errno> {
    const SMALLEST: u32 = 512;
    let largest = u32::try_from(IO_ALIGN_BYTES).expect("4096");
    let found = if kind.is_block_device() {
        rustix::fs::ioctl_blksszget(file)?
    } else if is_direct {
        let stat = rustix::fs::statx(file, "", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN)?;
        let says = stat.stx_mask & StatxFlags::DIOALIGN.bits() != 0;
        if says { stat.stx_dio_offset_align.max(stat.stx_dio_mem_align) } else { largest }
    } else {
        SMALLEST
    };
    Ok(found.clamp(SMALLEST, largest))
}

pub(super) fn create(path: &Path, size_bytes: u64) -> Result<(), DeviceOpenError> {
    if size_bytes < to_u64(IO_ALIGN_BYTES) {
        return Err(DeviceOpenError::TooSmall { path: path.to_owned(), size_bytes });
    }
    let failed = |source: io::Error| DeviceOpenError::new(path, source);
    let file =
        File::options().write(true).create_new(true).mode(FILE_MODE).open(path).map_err(failed)?;
    let sized = file.set_len(size_bytes).and_then(|()| file.sync_all());
    // The name must survive a power cut too.
    let sized = sized.and_then(|()| sync_parent(path));
    sized.map_err(|source| {
        remove(path);
        not_sized(path, size_bytes, source)
    })
}

fn not_sized(path: &Path, size_bytes: u64, source: io::Error) -> DeviceOpenError {
    // By kind, because a size beyond the range of file offsets never reaches the kernel.
    if matches!(source.kind(), io::ErrorKind::FileTooLarge | io::ErrorKind::InvalidInput) {
        return DeviceOpenError::TooLarge { path: path.to_owned(), size_bytes };
    }
    DeviceOpenError::new(path, source)
}

/// Resizes an open file. The duplicated descriptor shares the lock (DF1).
pub(super) fn resize(target: &FileTarget, size_bytes: u64) -> Result<OpenedFile, DeviceOpenError> {
    let path = Path::new(&target.info().name);
    if size_bytes < to_u64(IO_ALIGN_BYTES) {
        return Err(DeviceOpenError::TooSmall { path: path.to_owned(), size_bytes });
    }
    let failed = |source: io::Error| not_sized(path, size_bytes, source);
    let file = File::from(target.file.try_clone().map_err(failed)?);
    file.set_len(size_bytes).and_then(|()| file.sync_all()).map_err(failed)?;
    let size_bytes = size_bytes - size_bytes % to_u64(IO_ALIGN_BYTES);
    let info = DeviceInfo { size_bytes, ..target.info().clone() };
    let file = OwnedFd::from(file);
    let is_direct =
        rustix::fs::fcntl_getfl(&file).is_ok_and(|flags| flags.contains(OFlags::DIRECT));
    let backing = target.backing.iter().map(OwnedFd::try_clone);
    let backing = backing.collect::<io::Result<_>>().map_err(failed)?;
    Ok(OpenedFile { file, backing, is_block_device: target.is_block_device, info, is_direct })
}

pub(super) fn extend(target: &FileTarget, size_bytes: u64) -> Result<(), DeviceOpenError> {
    let failed = |source: io::Error| not_sized(Path::new(&target.info().name), size_bytes, source);
    let file = File::from(target.file.try_clone().map_err(failed)?);
    if file.metadata().map_err(failed)?.len() < size_bytes {
        file.set_len(size_bytes).and_then(|()| file.sync_all()).map_err(failed)?;
    }
    Ok(())
}

pub(super) fn written_ranges(
    file: &OwnedFd,
    size_bytes: u64,
    ranges_max: usize,
) -> Result<Option<Vec<Range<u64>>>, Errno> {
    let mut ranges = Vec::new();
    let mut at = 0;
    while at < size_bytes {
        let start = match rustix::fs::seek(file, SeekFrom::Data(at)) {
            Ok(start) => start,
            // Only a hole remains.
            Err(Errno::NXIO) => break,
            // A file system without holes.
            Err(Errno::INVAL | Errno::OPNOTSUPP) => return Ok(None),
            Err(errno) => return Err(errno),
        };
        let end = rustix::fs::seek(file, SeekFrom::Hole(start))?.min(size_bytes);
        if ranges.len() == ranges_max || end <= start {
            return Ok(None);
        }
        ranges.push(start..end);
        at = end;
    }
    Ok(Some(ranges))
}

fn sync_parent(path: &Path) -> io::Result<()> {
    let parent = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        Some(_) | None => Path::new("."),
    };
    File::open(parent)?.sync_all()
}

/// Removes a file after a failed creation, whose error matters more.
pub(super) fn remove(path: &Path) {
    let _ = std::fs::remove_file(path);
}
