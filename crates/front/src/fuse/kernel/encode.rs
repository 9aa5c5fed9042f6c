//! Encoding of replies.
//!
//! A reply is a head, built here, and data in the file system's own buffers. One call writes both.

use std::time::Duration;

use engine::api::{Attr, FileKind, NAME_BYTES_MAX, StatFs, Timestamp};
use rustix::fs::StatxFlags;
use rustix::io::Errno;
use zerocopy::{FromZeros, Immutable, IntoBytes};

use super::decode::{F_RDLCK, F_UNLCK, F_WRLCK};
use super::fuse_kernel::{
    self as wire, AttrOut, CopyFileRangeOut, Dirent, EntryOut, FileLock, GetXattrOut, LseekOut,
    NotifyInvalInodeOut, OpenOut, OutHeader, StatFsOut, Statx, StatxOut, SxTime, WriteOut,
};
use crate::fuse::protocol::{FuseNode, ListedName, Listing, NodeId, OpenedFile, Reply};
use crate::locks::{Lock, LockMode};

#[derive(Clone, Copy, Debug)]
pub(super) struct CacheTimes {
    /// Lifetime of names and attributes in the kernel's cache.
    known: Duration,
    /// Lifetime of negative entries.
    absent: Duration,
    open_flags: u32,
}

impl CacheTimes {
    /// For mounts that are not shared: practically unlimited, across opens (FU1).
    pub(super) const ALONE: CacheTimes = CacheTimes {
        known: Duration::from_secs(86_400 * 365),
        absent: Duration::from_secs(86_400 * 365),
        open_flags: wire::FOPEN_KEEP_CACHE | wire::FOPEN_NOFLUSH,
    };
    /// For shared filesets (FU7). Negative entries are not cached, as no open would revalidate
    /// them.
    pub(super) const SHARED: CacheTimes =
        CacheTimes { known: Duration::from_secs(1), absent: Duration::ZERO, open_flags: 0 };
}

const SET_BITS: u16 = 0o6000;

pub(super) const HEAD_BYTES_MAX: usize = size_of::<OutHeader>() + size_of::<StatxOut>();

#[derive(Clone, Copy, Debug)]
struct EncoderSettings {
    block_bytes: u32,
    times: CacheTimes,
}

#[derive(Debug)]
pub(super) struct Encoder {
    told: EncoderSettings,
    head: Vec<u8>,
}

impl Encoder {
    pub(super) fn new(block_bytes: u32, times: CacheTimes) -> Encoder {
        let told = EncoderSettings { block_bytes, times };
        Encoder { told, head: Vec::with_capacity(HEAD_BYTES_MAX) }
    }

    /// Returns the head and data of `reply` to request `unique`, or `None` if no reply is sent.
    pub(super) fn encode<'r>(
        &'r mut self,
        unique: u64,
        reply: &Reply<'r>,
    ) -> Option<(&'r [u8], &'r [u8])> {
        self.head.clear();
        let (mut error, mut data): (i32, &[u8]) = (0, &[]);
        self.add(&OutHeader { len: 0, error, unique });
        match reply {
            Reply::Silence => return None,
            Reply::Done => {}
            Reply::Error(errno) => error = -errno.raw_os_error(),
            Reply::Absent => self.add(&absent(self.told)),
            Reply::Entry(node) => self.add(&entry(node, self.told)),
            Reply::Created { node, opened: file } => {
                self.add(&entry(node, self.told));
                self.add(&opened(self.told, *file));
            }
            Reply::Opened(file) => self.add(&opened(self.told, *file)),
            Reply::Lock(lock) => self.add(&file_lock(lock.as_ref())),
            Reply::Attr(node) => self.add(&AttrOut {
                attr_valid: time_of_attributes(node, self.told).as_secs(),
                attr_valid_nsec: 0,
                dummy: 0,
                attr: attr(node, self.told.block_bytes),
            }),
            Reply::Statx(node) => self.add(&StatxOut {
                attr_valid: time_of_attributes(node, self.told).as_secs(),
                attr_valid_nsec: 0,
                flags: 0,
                spare: [0; 2],
                stat: statx(node, self.told.block_bytes),
            }),
            Reply::Data(bytes) => data = bytes,
            Reply::Written(count) => self.add(&WriteOut { size: *count, padding: 0 }),
            Reply::Copied(count) => self.add(&CopyFileRangeOut { bytes_copied: *count }),
            Reply::Room(size) => self.add(&GetXattrOut { size: *size, padding: 0 }),
            Reply::Offset(offset) => self.add(&LseekOut { offset: *offset }),
            Reply::StatFs(told) => self.add(&stat_fs(told)),
        }
        let length = u32::try_from(self.head.len() + data.len())
            .expect("a reply is a head and at most REQUEST_BYTES_MAX");
        let header = OutHeader { len: length, error, unique };
        self.head[..size_of::<OutHeader>()].copy_from_slice(header.as_bytes());
        Some((&self.head, data))
    }

    pub(super) fn head_of_data(&mut self, unique: u64, length: usize) -> &[u8] {
        self.head.clear();
        let length = u32::try_from(size_of::<OutHeader>() + length)
            .expect("what is read is at most REQUEST_BYTES_MAX");
        self.add(&OutHeader { len: length, error: 0, unique });
        &self.head
    }

    fn add<T: IntoBytes + Immutable>(&mut self, part: &T) {
        self.head.extend_from_slice(part.as_bytes());
    }
}

/// Returns the lifetime of `node`'s attributes. Zero if they may change without the kernel's
/// knowledge (FU5).
fn time_of_attributes(node: &FuseNode, told: EncoderSettings) -> Duration {
    let Attr { kind, mode, blocks_may_change, .. } = node.attr;
    // A write clears these bits without the kernel's knowledge.
    let has_set_bits = kind == FileKind::Regular && mode & SET_BITS != 0;
    if has_set_bits || blocks_may_change { Duration::ZERO } else { told.times.known }
}

fn kind_bits(kind: FileKind) -> u32 {
    let kind = match kind {
        FileKind::Regular => rustix::fs::FileType::RegularFile,
        FileKind::Directory => rustix::fs::FileType::Directory,
        FileKind::Symlink => rustix::fs::FileType::Symlink,
        FileKind::BlockDevice => rustix::fs::FileType::BlockDevice,
        FileKind::CharDevice => rustix::fs::FileType::CharacterDevice,
        FileKind::Fifo => rustix::fs::FileType::Fifo,
        FileKind::Socket => rustix::fs::FileType::Socket,
    };
    kind.as_raw_mode()
}

fn attr(node: &FuseNode, block_bytes: u32) -> wire::Attr {
    let Attr { kind, mode, nlink, uid, gid, rdev, size_bytes, blocks_512, .. } = node.attr;
    let Attr { atime, mtime, ctime, .. } = node.attr;
    wire::Attr {
        ino: node.id.0,
        size: size_bytes,
        blocks: blocks_512,
        atime: atime.seconds,
        mtime: mtime.seconds,
        ctime: ctime.seconds,
        atimensec: atime.nanoseconds,
        mtimensec: mtime.nanoseconds,
        ctimensec: ctime.nanoseconds,
        mode: kind_bits(kind) | u32::from(mode),
        nlink,
        uid,
        gid,
        rdev,
        blksize: block_bytes,
        flags: 0,
    }
}

fn statx(node: &FuseNode, block_bytes: u32) -> Statx {
    let sent = attr(node, block_bytes);
    let time =
        |time: Timestamp| SxTime { tv_sec: time.seconds, tv_nsec: time.nanoseconds, reserved: 0 };
    let mask = StatxFlags::BASIC_STATS | StatxFlags::BTIME;
    Statx {
        mask: mask.bits(),
        blksize: sent.blksize,
        attributes: 0,
        nlink: sent.nlink,
        uid: sent.uid,
        gid: sent.gid,
        mode: u16::try_from(sent.mode).expect("kind and permissions are 16 bits"),
        spare0: 0,
        ino: sent.ino,
        size: sent.size,
        blocks: sent.blocks,
        attributes_mask: 0,
        atime: time(node.attr.atime),
        btime: time(node.attr.btime),
        ctime: time(node.attr.ctime),
        mtime: time(node.attr.mtime),
        rdev_major: rustix::fs::major(sent.rdev.into()),
        rdev_minor: rustix::fs::minor(sent.rdev.into()),
        dev_major: 0,
        dev_minor: 0,
        spare2: [0; 14],
    }
}

fn entry(node: &FuseNode, told: EncoderSettings) -> EntryOut {
    EntryOut {
        nodeid: node.id.0,
        generation: node.attr.generation,
        entry_valid: time_of_entry(node, told).as_secs(),
        attr_valid: time_of_attributes(node, told).as_secs(),
        entry_valid_nsec: 0,
        attr_valid_nsec: 0,
        attr: attr(node, told.block_bytes),
    }
}

fn opened(told: EncoderSettings, file: OpenedFile) -> OpenOut {
    let kept = told.times.open_flags;
    // Without KEEP_CACHE the kernel writes back and drops its old pages at open.
    let open_flags = match file.is_direct {
        true => {
            kept & !wire::FOPEN_KEEP_CACHE
                | wire::FOPEN_DIRECT_IO
                | wire::FOPEN_PARALLEL_DIRECT_WRITES
        }
        false => kept,
    };
    OpenOut { fh: file.number, open_flags, backing_id: 0 }
}

fn file_lock(lock: Option<&Lock>) -> FileLock {
    let Some(lock) = lock else {
        return FileLock { start: 0, end: 0, kind: F_UNLCK, pid: 0 };
    };
    let kind = match lock.mode {
        LockMode::Shared => F_RDLCK,
        LockMode::Exclusive => F_WRLCK,
    };
    FileLock { start: lock.range.first, end: lock.range.last, kind, pid: lock.pid }
}

/// Returns the lifetime of a name. Zero for directories with `blocks_may_change`: `.snapshots` and
/// its entries, which come and go without the kernel's knowledge.
fn time_of_entry(node: &FuseNode, told: EncoderSettings) -> Duration {
    let is_of_snapshots = node.attr.kind == FileKind::Directory && node.attr.blocks_may_change;
    if is_of_snapshots { Duration::ZERO } else { told.times.known }
}

fn absent(told: EncoderSettings) -> EntryOut {
    EntryOut { entry_valid: told.times.absent.as_secs(), ..EntryOut::new_zeroed() }
}

fn stat_fs(told: &StatFs) -> StatFsOut {
    let unit = u64::from(told.fragment_bytes.max(1));
    StatFsOut {
        blocks: told.total_bytes / unit,
        bfree: told.free_bytes / unit,
        bavail: told.available_bytes / unit,
        files: told.inode_count.saturating_add(told.inodes_free),
        ffree: told.inodes_free,
        // `bsize` equals `frsize`, since some programs multiply by the wrong one.
        bsize: told.fragment_bytes,
        namelen: u32::try_from(NAME_BYTES_MAX).expect("255 fits"),
        frsize: told.fragment_bytes,
        padding: 0,
        spare: [0; 6],
    }
}

/// A directory listing of bounded size, in the kernel's format.
pub(super) struct DirentBuffer<'b> {
    bytes: &'b mut Vec<u8>,
    bytes_max: usize,
    with_nodes: bool,
    told: EncoderSettings,
}

impl<'b> DirentBuffer<'b> {
    pub(super) fn new(
        bytes: &'b mut Vec<u8>,
        bytes_max: usize,
        with_nodes: bool,
        encoder: &Encoder,
    ) -> DirentBuffer<'b> {
        bytes.clear();
        DirentBuffer { bytes, bytes_max, with_nodes, told: encoder.told }
    }
}

impl Listing for DirentBuffer<'_> {
    fn add(&mut self, name: ListedName<'_>, node: Option<&FuseNode>) -> bool {
        let entry_bytes = if self.with_nodes { size_of::<EntryOut>() } else { 0 };
        let end = self.bytes.len() + entry_bytes + size_of::<Dirent>() + name.name.len();
        // Entries are padded to a multiple of 8.
        let end = end.next_multiple_of(8);
        let Ok(namelen) = u32::try_from(name.name.len()) else { return false };
        if end > self.bytes_max {
            return false;
        }
        if self.with_nodes {
            // Node id 0: the entry carries no attributes and no reference.
            let entry = node.map_or_else(EntryOut::new_zeroed, |n| entry(n, self.told));
            self.bytes.extend_from_slice(entry.as_bytes());
        }
        let dirent =
            Dirent { ino: name.id.0, off: name.cookie, namelen, kind: kind_bits(name.kind) >> 12 };
        self.bytes.extend_from_slice(dirent.as_bytes());
        self.bytes.extend_from_slice(name.name);
        self.bytes.resize(end, 0);
        true
    }
}

/// Returns a notice that invalidates the kernel's cached attributes of `node`.
pub(super) fn attributes_notice(node: NodeId) -> Vec<u8> {
    let body = NotifyInvalInodeOut { ino: node.0, off: -1, len: 0 };
    let len = u32::try_from(size_of::<OutHeader>() + size_of_val(&body)).expect("40 fits");
    let head = OutHeader { len, error: wire::NOTIFY_INVAL_INODE, unique: 0 };
    [head.as_bytes(), body.as_bytes()].concat()
}

pub(super) fn error_reply(unique: u64, errno: Errno) -> OutHeader {
    OutHeader { error: -errno.raw_os_error(), ..done_reply(unique) }
}

pub(super) fn done_reply(unique: u64) -> OutHeader {
    let len = u32::try_from(size_of::<OutHeader>()).expect("16 fits");
    OutHeader { len, error: 0, unique }
}
