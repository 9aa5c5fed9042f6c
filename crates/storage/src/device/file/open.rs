//! Opening and creating what a file device is on, and refusing what it must not be on.

use std::fs::{File, FileType};
use std::io;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{AtFlags, FlockOperation, Mode, OFlags, SeekFrom, StatxFlags};
use rustix::io::Errno;

use super::{Target, backing, block};
use crate::convert::to_u64;
use crate::device::{DEADLINE_DEFAULT, DeviceInfo, IO_ALIGN_BYTES};

/// Permissions of a new file. A pool holds files of everybody, so nobody but its owner may read it;
/// and nobody else can lock what they cannot open (DF1).
const FILE_MODE: u32 = 0o600;

/// Numbers of file systems, from linux/magic.h.
const EXT4: i64 = 0xef53;
const XFS: i64 = 0x5846_5342;

/// Unit of `stx_blocks`, whatever the file system's own is.
const STATX_BLOCK_BYTES: u64 = 512;

/// What the device is opened for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Access {
    /// Alone, to change it.
    #[default]
    ReadWrite,
    /// With other readers, and with no writer.
    ReadOnly,
    /// Alone, and never to change it.
    ReadAlone,
}

/// How requests are to travel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TransportChoice {
    /// By io_uring, or by `pread` where it is refused or where to submit a request may take as long
    /// as the request.
    #[default]
    Automatic,
    /// By io_uring or not at all.
    Uring,
    /// By `pread` and `pwrite`.
    Pread,
}

/// How a file device is opened.
#[derive(Clone, Copy, Debug)]
pub struct FileOptions {
    /// What for.
    pub access: Access,
    /// How requests travel.
    pub transport: TransportChoice,
    /// Whether to go through the page cache even where O_DIRECT would do.
    pub is_buffered: bool,
    /// How long the device may take to answer: see [`crate::device::DEADLINE_DEFAULT`].
    pub deadline: Duration,
}

impl Default for FileOptions {
    fn default() -> FileOptions {
        FileOptions {
            access: Access::default(),
            transport: TransportChoice::default(),
            is_buffered: false,
            deadline: DEADLINE_DEFAULT,
        }
    }
}

/// Why a device could not be opened or created. Each message says what to do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// Nothing is there.
    #[error("{}: not found; check the path, or create the pool first", path.display())]
    NotFound {
        /// What was asked for.
        path: PathBuf,
    },
    /// Something is there already.
    #[error("{}: exists already; choose another name, or remove it first", path.display())]
    Exists {
        /// What was asked for.
        path: PathBuf,
    },
    /// The system does not let this user.
    #[error("{}: permission denied; run as its owner, or change its mode", path.display())]
    NotPermitted {
        /// What was asked for.
        path: PathBuf,
    },
    /// It is a file where nobody may write.
    #[error("{}: the file system that holds it is read-only; remount that for writing, or copy the \
        file to where it can be written", path.display())]
    ReadOnlyFileSystem {
        /// What was asked for.
        path: PathBuf,
    },
    /// Another process has it: a mounted pool, a file system, another check.
    #[error("{}: in use; unmount the pool or stop the program that has it open", path.display())]
    InUse {
        /// What was asked for.
        path: PathBuf,
    },
    /// Neither a regular file nor a block device.
    #[error("{}: neither a file nor a block device; name one of these", path.display())]
    NotADevice {
        /// What was asked for.
        path: PathBuf,
    },
    /// Too small to hold one page.
    #[error("{}: {size_bytes} bytes; a device has {IO_ALIGN_BYTES} at least", path.display())]
    TooSmall {
        /// What was asked for.
        path: PathBuf,
        /// Its size.
        size_bytes: u64,
    },
    /// The file system below cannot hold a file of that size.
    #[error("{}: the file system there holds no file of {size_bytes} bytes; choose a smaller size \
        (ext4 ends just below 16 TiB), another file system, or a block device", path.display())]
    TooLarge {
        /// What was asked for.
        path: PathBuf,
        /// How large it should have been.
        size_bytes: u64,
    },
    /// io_uring was demanded and is refused.
    #[error("{name}: io_uring is refused ({source}); allow it or choose the transport pread")]
    NoUring {
        /// Name of the device.
        name: String,
        /// What the system said.
        source: io::Error,
    },
    /// Something else.
    #[error("{}: {source}", path.display())]
    Io {
        /// What was asked for.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

impl OpenError {
    fn new(path: &Path, source: io::Error) -> OpenError {
        let path = path.to_owned();
        match Errno::from_io_error(&source) {
            Some(Errno::NOENT) => OpenError::NotFound { path },
            Some(Errno::EXIST) => OpenError::Exists { path },
            Some(Errno::ACCESS | Errno::PERM) => OpenError::NotPermitted { path },
            Some(Errno::ROFS) => OpenError::ReadOnlyFileSystem { path },
            Some(Errno::BUSY | Errno::WOULDBLOCK) => OpenError::InUse { path },
            Some(_) | None => OpenError::Io { path, source },
        }
    }
}

/// A file that is open, locked and measured.
#[derive(Debug)]
pub(super) struct Opened {
    pub(super) file: OwnedFd,
    /// What lies behind it, locked too.
    pub(super) backing: Vec<OwnedFd>,
    pub(super) is_block_device: bool,
    pub(super) info: DeviceInfo,
    pub(super) is_direct: bool,
}

pub(super) fn open(path: &Path, options: FileOptions) -> Result<Opened, OpenError> {
    let failed = |source: io::Error| OpenError::new(path, source);
    let kind = std::fs::metadata(path).map_err(failed)?.file_type();
    if !kind.is_file() && !kind.is_block_device() {
        return Err(OpenError::NotADevice { path: path.to_owned() });
    }
    let (file, is_direct) = open_direct(path, kind, options).map_err(|e| failed(e.into()))?;
    // DF1. On block devices as well: it also keeps udev from probing under us.
    let lock = match options.access {
        Access::ReadWrite | Access::ReadAlone => FlockOperation::NonBlockingLockExclusive,
        Access::ReadOnly => FlockOperation::NonBlockingLockShared,
    };
    rustix::fs::flock(&file, lock).map_err(|errno| failed(errno.into()))?;
    let backing = backing::lock(&file, lock)
        .map_err(|(behind, errno)| OpenError::new(&behind, errno.into()))?;

    let is_block_device = kind.is_block_device();
    let end = end_bytes(&file, is_block_device).map_err(|errno| failed(errno.into()))?;
    let size_bytes = end - end % to_u64(IO_ALIGN_BYTES);
    if size_bytes == 0 {
        return Err(OpenError::TooSmall { path: path.to_owned(), size_bytes: end });
    }
    let sector_bytes = sector_bytes(&file, kind, is_direct).map_err(|e| failed(e.into()))?;
    let name = path.display().to_string();
    let is_read_only = options.access != Access::ReadWrite
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
    Ok(Opened { file, backing, is_block_device, info, is_direct })
}

/// Whether a request is handed over without waiting for it: on a block device, and on file systems
/// of which that was looked up. Of a file on another the kernel may believe that it never blocks,
/// as of one on FUSE that is always ready by poll(2), and then whoever submits a request waits in
/// the kernel until it is answered, past every deadline.
pub(super) fn is_submitted_at_once(file: &OwnedFd, is_block_device: bool) -> bool {
    const BTRFS: i64 = 0x9123_683e;
    const F2FS: i64 = 0xf2f5_2010;
    const OVERLAY: i64 = 0x794c_7630;
    const TMPFS: i64 = 0x0102_1994;
    const KNOWN: [i64; 6] = [EXT4, XFS, BTRFS, F2FS, OVERLAY, TMPFS];
    is_block_device || rustix::fs::fstatfs(file).is_ok_and(|stat| KNOWN.contains(&stat.f_type))
}

/// Whether a direct write with `RWF_DSYNC` is known to be durable when it is answered: on a block
/// device, and on the file systems of which that was looked up. Others may leave the flag out: FUSE
/// does, and btrfs once lost the sync of a write that was submitted not to wait.
fn keeps_write_through(file: &OwnedFd, is_block_device: bool) -> bool {
    is_block_device
        || rustix::fs::fstatfs(file).is_ok_and(|stat| [EXT4, XFS].contains(&stat.f_type))
}

/// Returns where the file or the block device ends now, without waiting for either: a server that
/// keeps the file is not asked, and no lock of the device is taken, as a seek would.
pub(super) fn end_bytes(file: &OwnedFd, is_block_device: bool) -> Result<u64, Errno> {
    if is_block_device {
        return block::size_bytes(file);
    }
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    Ok(rustix::fs::statx(file, "", flags, StatxFlags::SIZE)?.stx_size)
}

/// Whether the file system has given a file of `end` bytes less room than that: there are holes in
/// it. A file that somebody has preallocated has none.
fn has_holes(file: &OwnedFd, end: u64) -> bool {
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    let found = rustix::fs::statx(file, "", flags, StatxFlags::BLOCKS);
    found.is_ok_and(|found| found.stx_blocks.saturating_mul(STATX_BLOCK_BYTES) < end)
}

/// Returns how many names the file has, and its mode, as [`end_bytes`] returns its end.
pub(super) fn links_and_mode(file: &OwnedFd) -> Result<(u32, u16), Errno> {
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    let asked = StatxFlags::NLINK | StatxFlags::MODE;
    let stat = rustix::fs::statx(file, "", flags, asked)?;
    // Who does not tell has not lost it.
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
        Access::ReadOnly | Access::ReadAlone => OFlags::RDONLY,
        Access::ReadWrite => OFlags::RDWR,
    };
    if kind.is_block_device() && options.access != Access::ReadOnly {
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

/// Returns the unit in which the device takes requests.
///
/// Where the kernel does not say what O_DIRECT needs on a file, a page: that is always enough.
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

pub(super) fn create(path: &Path, size_bytes: u64) -> Result<(), OpenError> {
    if size_bytes < to_u64(IO_ALIGN_BYTES) {
        return Err(OpenError::TooSmall { path: path.to_owned(), size_bytes });
    }
    let failed = |source: io::Error| OpenError::new(path, source);
    let file =
        File::options().write(true).create_new(true).mode(FILE_MODE).open(path).map_err(failed)?;
    let sized = file.set_len(size_bytes).and_then(|()| file.sync_all());
    // The name must outlive a power cut as the contents do.
    let sized = sized.and_then(|()| sync_parent(path));
    sized.map_err(|source| {
        remove(path);
        not_sized(path, size_bytes, source)
    })
}

/// Says why a file did not get its length.
fn not_sized(path: &Path, size_bytes: u64, source: io::Error) -> OpenError {
    // By kind, because a size past what a file offset can say never reaches the kernel.
    if matches!(source.kind(), io::ErrorKind::FileTooLarge | io::ErrorKind::InvalidInput) {
        return OpenError::TooLarge { path: path.to_owned(), size_bytes };
    }
    OpenError::new(path, source)
}

/// Gives an open file another length. The descriptor is copied, and the lock (DF1) goes with it.
pub(super) fn resize(target: &Target, size_bytes: u64) -> Result<Opened, OpenError> {
    let path = Path::new(&target.info().name);
    if size_bytes < to_u64(IO_ALIGN_BYTES) {
        return Err(OpenError::TooSmall { path: path.to_owned(), size_bytes });
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
    Ok(Opened { file, backing, is_block_device: target.is_block_device, info, is_direct })
}

/// See [`super::FileDevice::extend`].
pub(super) fn extend(target: &Target, size_bytes: u64) -> Result<(), OpenError> {
    let failed = |source: io::Error| not_sized(Path::new(&target.info().name), size_bytes, source);
    let file = File::from(target.file.try_clone().map_err(failed)?);
    if file.metadata().map_err(failed)?.len() < size_bytes {
        file.set_len(size_bytes).and_then(|()| file.sync_all()).map_err(failed)?;
    }
    Ok(())
}

/// See [`super::FileDevice::written_ranges`].
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
            // Nothing but a hole is left.
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

/// Takes back what was created. It failed already, so another failure adds nothing.
pub(super) fn remove(path: &Path) {
    let _ = std::fs::remove_file(path);
}
