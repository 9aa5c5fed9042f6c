//! From a reply to the bytes that the kernel takes.
//!
//! A reply is two parts, written at once: a head that is built here, and data that stays where the
//! file system put it.

use std::time::Duration;

use engine::vnode::api::{Attr, FileKind, NAME_BYTES_MAX, StatFs, Timestamp};
use rustix::fs::StatxFlags;
use rustix::io::Errno;
use zerocopy::{FromZeros, Immutable, IntoBytes};

use super::fuse_kernel::{
    self as wire, AttrOut, CopyFileRangeOut, Dirent, EntryOut, GetXattrOut, LseekOut,
    NotifyInvalInodeOut, OpenOut, OutHeader, StatFsOut, Statx, StatxOut, SxTime, WriteOut,
};
use crate::fuse::protocol::{ListedName, Listing, Node, NodeId, Reply};

/// How long the kernel may keep what it was told.
#[derive(Clone, Copy, Debug)]
pub(super) struct KeepTimes {
    /// Names and attributes.
    known: Duration,
    /// That there is no such name.
    absent: Duration,
    /// Of a file that is opened.
    open_flags: u32,
}

impl KeepTimes {
    /// As good as for ever, and from one open to the next (FU1).
    pub(super) const ALONE: KeepTimes = KeepTimes {
        known: Duration::from_secs(86_400 * 365),
        absent: Duration::from_secs(86_400 * 365),
        open_flags: wire::FOPEN_KEEP_CACHE | wire::FOPEN_NOFLUSH,
    };
    /// Where others change files (FU7). A name that is not there is looked for by whoever opens it.
    pub(super) const SHARED: KeepTimes =
        KeepTimes { known: Duration::from_secs(1), absent: Duration::ZERO, open_flags: 0 };
}

/// Setuid and setgid.
const SET_BITS: u16 = 0o6000;

/// Most bytes of a reply's head: an entry that was opened is the longest but for `statx`.
pub(super) const HEAD_BYTES_MAX: usize = size_of::<OutHeader>() + size_of::<StatxOut>();

/// How files are told.
#[derive(Clone, Copy, Debug)]
struct Manner {
    /// Preferred unit of I/O, which stat(2) tells.
    block_bytes: u32,
    times: KeepTimes,
}

/// Makes the heads of replies.
#[derive(Debug)]
pub(super) struct Encoder {
    told: Manner,
    head: Vec<u8>,
}

impl Encoder {
    pub(super) fn new(block_bytes: u32, times: KeepTimes) -> Encoder {
        let told = Manner { block_bytes, times };
        Encoder { told, head: Vec::with_capacity(HEAD_BYTES_MAX) }
    }

    /// Returns both parts of `reply` to the request `unique`; `None` where it has none.
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
            Reply::Created { node, is_direct } => {
                self.add(&entry(node, self.told));
                self.add(&opened(self.told, *is_direct));
            }
            Reply::Opened { is_direct } => self.add(&opened(self.told, *is_direct)),
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

    /// Returns the head of the reply to the request `unique` that `length` bytes of data follow.
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

/// Returns how long the kernel may keep the attributes of `node`: not at all where they may change
/// and it would not know (FU5).
fn time_of_attributes(node: &Node, told: Manner) -> Duration {
    let Attr { kind, mode, blocks_may_change, .. } = node.attr;
    // A change of content takes these bits away, and the kernel does not learn that it has.
    let has_set_bits = kind == FileKind::Regular && mode & SET_BITS != 0;
    if has_set_bits || blocks_may_change { Duration::ZERO } else { told.times.known }
}

/// The bits of a mode that say what sort of file it is.
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

fn attr(node: &Node, block_bytes: u32) -> wire::Attr {
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

fn statx(node: &Node, block_bytes: u32) -> Statx {
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

fn entry(node: &Node, told: Manner) -> EntryOut {
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

fn opened(told: Manner, is_direct: bool) -> OpenOut {
    let kept = told.times.open_flags;
    // Without KEEP_CACHE the kernel writes back and drops what it has of before.
    let open_flags = match is_direct {
        true => {
            kept & !wire::FOPEN_KEEP_CACHE
                | wire::FOPEN_DIRECT_IO
                | wire::FOPEN_PARALLEL_DIRECT_WRITES
        }
        false => kept,
    };
    OpenOut { fh: 0, open_flags, backing_id: 0 }
}

/// For how long the kernel may take a name to lead where it does. Directories of which anything
/// may change behind its back are those of clones.
fn time_of_entry(node: &Node, told: Manner) -> Duration {
    let is_of_clones = node.attr.kind == FileKind::Directory && node.attr.blocks_may_change;
    if is_of_clones { Duration::ZERO } else { told.times.known }
}

/// Node id 0: there is no such name, and the kernel may remember it for a while.
fn absent(told: Manner) -> EntryOut {
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
        // Both units the same: programs that multiply by the wrong one are still right.
        bsize: told.fragment_bytes,
        namelen: u32::try_from(NAME_BYTES_MAX).expect("255 fits"),
        frsize: told.fragment_bytes,
        padding: 0,
        spare: [0; 6],
    }
}

/// A listing as the kernel takes it, of bounded size.
pub(super) struct DirentBuffer<'b> {
    bytes: &'b mut Vec<u8>,
    bytes_max: usize,
    with_nodes: bool,
    told: Manner,
}

impl<'b> DirentBuffer<'b> {
    /// Lists into `bytes`, whose old content is dropped.
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
    fn add(&mut self, name: ListedName<'_>, node: Option<&Node>) -> bool {
        let entry_bytes = if self.with_nodes { size_of::<EntryOut>() } else { 0 };
        let end = self.bytes.len() + entry_bytes + size_of::<Dirent>() + name.name.len();
        // The next one begins at a multiple of 8.
        let end = end.next_multiple_of(8);
        let Ok(namelen) = u32::try_from(name.name.len()) else { return false };
        if end > self.bytes_max {
            return false;
        }
        if self.with_nodes {
            // Node id 0: attributes are not told, and no reference goes with the name.
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

/// Returns the bytes that tell the kernel to ask for the attributes of `node` again.
pub(super) fn attributes_notice(node: NodeId) -> Vec<u8> {
    let body = NotifyInvalInodeOut { ino: node.0, off: -1, len: 0 };
    let len = u32::try_from(size_of::<OutHeader>() + size_of_val(&body)).expect("40 fits");
    let head = OutHeader { len, error: wire::NOTIFY_INVAL_INODE, unique: 0 };
    [head.as_bytes(), body.as_bytes()].concat()
}

/// Returns the bytes of an error's reply.
pub(super) fn error_reply(unique: u64, errno: Errno) -> OutHeader {
    OutHeader { error: -errno.raw_os_error(), ..done_reply(unique) }
}

/// Returns the bytes of the reply to what is done and says no more.
pub(super) fn done_reply(unique: u64) -> OutHeader {
    let len = u32::try_from(size_of::<OutHeader>()).expect("16 fits");
    OutHeader { len, error: 0, unique }
}
