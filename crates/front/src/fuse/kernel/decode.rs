//! Decoding of messages.
//!
//! # Invariants
//!
//! - RQ1: Any bytes decode to a request or to an error reply. Nothing panics, and no field is
//!   trusted beyond the length of the message.
//! - RQ2: A decoded name has 1 or more bytes without `/` and NUL. It is `.` or `..` only in a
//!   lookup. (The file system checks the longest length.)
//! - RQ3: No decoded byte range ends beyond [`FILE_BYTES_MAX`], and no time has a billion
//!   nanoseconds.

use engine::api::{
    FILE_BYTES_MAX, Fallocate, FileKind, RenameMode, Seek, SetAttr, SetTime, Timestamp, WriteData,
    XattrMode,
};
use rustix::fs::{FallocateFlags, OFlags, RenameFlags, XattrFlags};
use rustix::io::Errno;
use zerocopy::{FromBytes, Immutable, KnownLayout};

use super::fuse_kernel::{
    self as wire, BatchForgetIn, CopyFileRangeIn, CreateIn, FallocateIn, FlushIn, ForgetIn,
    ForgetOne, FsyncIn, GetXattrIn, InHeader, InterruptIn, LinkIn, LockIn, LseekIn, MkdirIn,
    MknodIn, ReadIn, ReleaseIn, Rename2In, RenameIn, SetAttrIn, SetXattrCompatIn, SetXattrIn,
    WriteIn, fattr, opcode,
};
use super::inbox::{Incoming, MessageData};
use crate::fuse::protocol::{
    Declined, FuseRequest, NewNode, NodeId, NodeLock, ReadRequest, Sender,
};
use crate::locks::{LockInterface, LockMode, LockRange};

/// `SEEK_DATA` and `SEEK_HOLE` of `include/uapi/linux/fs.h`.
const SEEK_DATA: u32 = 3;
const SEEK_HOLE: u32 = 4;

/// Kinds of locks of `include/uapi/asm-generic/fcntl.h`.
pub(super) const F_RDLCK: u32 = 0;
pub(super) const F_WRLCK: u32 = 1;
pub(super) const F_UNLCK: u32 = 2;

#[derive(Clone, Copy, Debug)]
pub(super) struct Envelope {
    /// The request's id, repeated in its reply.
    pub(super) unique: u64,
    pub(super) opcode: u32,
    pub(super) node: NodeId,
    pub(super) sender: Sender,
}

pub(super) enum Message<'a> {
    /// A request to execute at once.
    Ask(FuseRequest<'a>),
    /// A read, which may be batched with others.
    Read(ReadRequest),
    /// A sync, with an asynchronous reply.
    Sync { node: NodeId, data_only: bool },
    /// A lock that is waited for, with an asynchronous reply.
    WaitForLock(NodeLock),
    /// Ends the waiting of the request with this id. Has no reply.
    Interrupt(u64),
    /// A directory listing of at most `size_bytes`.
    List { node: NodeId, cookie: u64, with_nodes: bool, keeps_atime: bool, size_bytes: u32 },
    /// References to release.
    Forget(Forgets<'a>),
    /// No action, no reply.
    Ignore,
    /// No action, a success reply.
    Nothing,
    /// No action, an error reply.
    Refuse(Errno),
}

pub(super) enum Forgets<'a> {
    One(NodeId, u64),
    Many(&'a [u8]),
}

impl Iterator for Forgets<'_> {
    type Item = (NodeId, u64);

    fn next(&mut self) -> Option<(NodeId, u64)> {
        match self {
            Forgets::One(node, count) => {
                let item = (*node, *count);
                *self = Forgets::Many(&[]);
                Some(item)
            }
            Forgets::Many(bytes) => {
                let (one, rest) = ForgetOne::read_from_prefix(bytes).ok()?;
                *bytes = rest;
                Some((NodeId(one.nodeid), one.nlookup))
            }
        }
    }
}

/// Negotiated features that affect the format of messages.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Dialect {
    /// SETXATTR has its longer form (`FUSE_SETXATTR_EXT`).
    pub(super) has_long_setxattr: bool,
    /// The server applies the umask (`FUSE_DONT_MASK`), not the kernel.
    pub(super) leaves_umask: bool,
    /// The kernel sends requests by io_uring as soon as each queue has an entry.
    pub(super) has_queues: bool,
    /// The server keeps locks (`FUSE_POSIX_LOCKS` and `FUSE_FLOCK_LOCKS`).
    pub(super) has_locks: bool,
}

impl Envelope {
    /// Decodes the header. `None` if the message is too short, and so cannot be answered.
    pub(super) fn of(message: &[u8]) -> Option<Envelope> {
        let (header, _) = InHeader::read_from_prefix(message).ok()?;
        Some(Envelope {
            unique: header.unique,
            opcode: header.opcode,
            node: NodeId(header.nodeid),
            sender: Sender { uid: header.uid, gid: header.gid, thread: header.pid },
        })
    }

    pub(super) fn is_read(&self) -> bool {
        self.opcode == opcode::READ
    }

    pub(super) fn is_silent(&self) -> bool {
        let silent = [opcode::FORGET, opcode::BATCH_FORGET, opcode::NOTIFY_REPLY];
        silent.contains(&self.opcode)
    }
}

pub(super) fn decode<'a>(
    envelope: &Envelope,
    message: Incoming<'a>,
    dialect: Dialect,
) -> Message<'a> {
    let body = MessageBody::of(message);
    let decoded = body.and_then(|body| decode_body(envelope, body, dialect));
    decoded.unwrap_or_else(|error| {
        if envelope.is_silent() { Message::Ignore } else { Message::Refuse(error) }
    })
}

struct MessageBody<'a> {
    arguments: &'a [u8],
    /// The data of a WRITE, if it was read into a separate buffer.
    data: Option<WriteData<'a>>,
}

impl<'a> MessageBody<'a> {
    /// Returns the arguments without the extensions after them.
    fn of(message: Incoming<'a>) -> Result<MessageBody<'a>, Errno> {
        let (header, rest) = InHeader::read_from_prefix(message.head).map_err(|_| Errno::INVAL)?;
        if usize::try_from(header.len) != Ok(message.length_bytes()) {
            return Err(Errno::INVAL);
        }
        let extension_bytes = usize::from(header.total_extlen) * 8;
        let end_of = |part: &[u8]| part.len().checked_sub(extension_bytes).ok_or(Errno::INVAL);
        let data = match message.data {
            Some(MessageData::Shared(data)) => {
                Some(WriteData::Shared(data.slice(0..end_of(data)?)))
            }
            Some(MessageData::Lent(data)) => {
                Some(WriteData::Lent(data.get(..end_of(data)?).unwrap_or_default()))
            }
            None => None,
        };
        if data.is_some() {
            return Ok(MessageBody { arguments: rest, data });
        }
        let end = end_of(rest)?;
        Ok(MessageBody { arguments: rest.get(..end).unwrap_or_default(), data: None })
    }

    fn take<T: FromBytes + KnownLayout + Immutable>(&mut self) -> Result<T, Errno> {
        let (value, rest) = T::read_from_prefix(self.arguments).map_err(|_| Errno::INVAL)?;
        self.arguments = rest;
        Ok(value)
    }

    fn text(&mut self) -> Result<&'a [u8], Errno> {
        let end = self.arguments.iter().position(|&byte| byte == 0).ok_or(Errno::INVAL)?;
        let (text, rest) = self.arguments.split_at(end);
        self.arguments = rest.get(1..).unwrap_or_default();
        Ok(text)
    }

    /// Takes a name for a lookup (RQ2).
    fn any_name(&mut self) -> Result<&'a [u8], Errno> {
        let name = self.text()?;
        if name.is_empty() || name.contains(&b'/') { Err(Errno::INVAL) } else { Ok(name) }
    }

    /// Takes a name for a change (RQ2).
    fn name(&mut self) -> Result<&'a [u8], Errno> {
        let name = self.any_name()?;
        if name == b"." || name == b".." { Err(Errno::INVAL) } else { Ok(name) }
    }

    fn bytes(&mut self, size: u32) -> Result<&'a [u8], Errno> {
        let size = usize::try_from(size).map_err(|_| Errno::INVAL)?;
        let (bytes, rest) = self.arguments.split_at_checked(size).ok_or(Errno::INVAL)?;
        self.arguments = rest;
        Ok(bytes)
    }

    fn data(&mut self, size: u32) -> Result<WriteData<'a>, Errno> {
        let Some(data) = self.data.take() else { return self.bytes(size).map(WriteData::Lent) };
        let size = usize::try_from(size).map_err(|_| Errno::INVAL)?;
        if !self.arguments.is_empty() {
            return Err(Errno::INVAL);
        }
        match data {
            WriteData::Shared(data) if size <= data.len() => {
                Ok(WriteData::Shared(data.slice(0..size)))
            }
            WriteData::Lent(data) => data.get(..size).map(WriteData::Lent).ok_or(Errno::INVAL),
            WriteData::Shared(_) => Err(Errno::INVAL),
        }
    }
}

fn decode_body<'a>(
    envelope: &Envelope,
    mut body: MessageBody<'a>,
    dialect: Dialect,
) -> Result<Message<'a>, Errno> {
    let node = envelope.node;
    let request = match envelope.opcode {
        opcode::LOOKUP => FuseRequest::Lookup { parent: node, name: body.any_name()? },
        opcode::FORGET => {
            let ForgetIn { nlookup } = body.take()?;
            return Ok(Message::Forget(Forgets::One(node, nlookup)));
        }
        opcode::BATCH_FORGET => return batch_forget(body),
        opcode::GETATTR => FuseRequest::GetAttr { node },
        opcode::STATX => FuseRequest::Statx { node },
        opcode::SETATTR => {
            let sent: SetAttrIn = body.take()?;
            let kills_set_bits = sent.valid & fattr::KILL_SUIDGID != 0;
            FuseRequest::SetAttr { node, change: change(&sent)?, kills_set_bits }
        }
        opcode::READLINK => FuseRequest::ReadLink { node },
        opcode::MKNOD => mknod(node, &mut body, dialect)?,
        opcode::MKDIR => mkdir(node, &mut body, dialect)?,
        opcode::OPEN => FuseRequest::Open { node, is_directory: false },
        opcode::OPENDIR => FuseRequest::Open { node, is_directory: true },
        opcode::CREATE => create(node, &mut body, dialect)?,
        opcode::TMPFILE => tmpfile(node, &mut body, dialect)?,
        opcode::SYMLINK => {
            let name = body.name()?;
            FuseRequest::Symlink { parent: node, name, target: body.text()? }
        }
        opcode::LINK => {
            let LinkIn { oldnodeid } = body.take()?;
            FuseRequest::Link { node: NodeId(oldnodeid), parent: node, name: body.name()? }
        }
        opcode::UNLINK => FuseRequest::Unlink { parent: node, name: body.name()? },
        opcode::RMDIR => FuseRequest::Rmdir { parent: node, name: body.name()? },
        opcode::RENAME => {
            let RenameIn { newdir } = body.take()?;
            rename(node, NodeId(newdir), Some(RenameMode::Replace), &mut body)?
        }
        opcode::RENAME2 => {
            let Rename2In { newdir, flags, .. } = body.take()?;
            rename(node, NodeId(newdir), rename_mode(flags), &mut body)?
        }
        opcode::READ => {
            let ReadIn { offset, size, flags, .. } = body.take()?;
            let keeps_atime = keeps_atime(flags);
            // A read may end beyond the largest file, but must not start beyond it.
            check_offset(offset)?;
            return Ok(Message::Read(ReadRequest {
                node,
                offset,
                length_bytes: size,
                keeps_atime,
            }));
        }
        opcode::WRITE => {
            let WriteIn { offset, size, write_flags, flags, .. } = body.take()?;
            check_range(offset, u64::from(size))?;
            let kills_set_bits = write_flags & wire::WRITE_KILL_SUIDGID != 0;
            let is_of_cache = write_flags & wire::WRITE_CACHE != 0;
            let appends = OFlags::from_bits_retain(flags).contains(OFlags::APPEND);
            let data = body.data(size)?;
            FuseRequest::Write { node, offset, data, kills_set_bits, is_of_cache, appends }
        }
        opcode::READDIR | opcode::READDIRPLUS => {
            let ReadIn { offset, size, flags, .. } = body.take()?;
            let with_nodes = envelope.opcode == opcode::READDIRPLUS;
            let keeps_atime = keeps_atime(flags);
            let (cookie, size_bytes) = (offset, size);
            return Ok(Message::List { node, cookie, with_nodes, keeps_atime, size_bytes });
        }
        opcode::FSYNC | opcode::FSYNCDIR => {
            let FsyncIn { fsync_flags, .. } = body.take()?;
            let data_only = fsync_flags & wire::FSYNC_FDATASYNC != 0;
            return Ok(Message::Sync { node, data_only });
        }
        opcode::STATFS => FuseRequest::StatFs,
        opcode::GETXATTR => {
            let GetXattrIn { size, .. } = body.take()?;
            FuseRequest::GetXattr { node, name: xattr_name(&mut body)?, room_bytes: size }
        }
        opcode::LISTXATTR => {
            let GetXattrIn { size, .. } = body.take()?;
            FuseRequest::ListXattr { node, room_bytes: size }
        }
        opcode::SETXATTR => set_xattr(node, &mut body, dialect)?,
        opcode::REMOVEXATTR => FuseRequest::RemoveXattr { node, name: xattr_name(&mut body)? },
        opcode::FALLOCATE => fallocate(node, &mut body)?,
        opcode::LSEEK => lseek(node, &mut body)?,
        opcode::COPY_FILE_RANGE => copy_file_range(node, false, &mut body)?,
        opcode::COPY_FILE_RANGE_64 => copy_file_range(node, true, &mut body)?,
        other if dialect.has_locks && is_about_locks(other) => return lock(envelope, &mut body),
        other => return without_server(other),
    };
    Ok(Message::Ask(request))
}

fn keeps_atime(flags: u32) -> bool {
    OFlags::from_bits_retain(flags).contains(OFlags::NOATIME)
}

fn without_server<'a>(opcode: u32) -> Result<Message<'a>, Errno> {
    let declined = match opcode {
        opcode::FLUSH => Declined::Flush,
        opcode::ACCESS => Declined::Access,
        opcode::IOCTL => Declined::Ioctl,
        opcode::POLL => Declined::Poll,
        opcode::GETLK | opcode::SETLK | opcode::SETLKW => Declined::Lock,
        opcode::BMAP => Declined::Bmap,
        // The server keeps no open files. After DESTROY the connection ends anyway.
        opcode::RELEASE | opcode::RELEASEDIR | opcode::DESTROY => return Ok(Message::Nothing),
        // The server never requests a retrieval.
        opcode::NOTIFY_REPLY => return Ok(Message::Ignore),
        // The only INIT has been answered before.
        opcode::INIT => return Err(Errno::PROTO),
        // Without locks each request ends in bounded time anyway. After ENOSYS the kernel sends no
        // more INTERRUPT.
        opcode::INTERRUPT => return Err(Errno::NOSYS),
        // After ENOSYS the kernel does without such requests.
        _ => return Err(Errno::NOSYS),
    };
    Ok(Message::Ask(FuseRequest::Decline(declined)))
}

fn is_about_locks(opcode: u32) -> bool {
    let about_locks = [
        opcode::GETLK,
        opcode::SETLK,
        opcode::SETLKW,
        opcode::FLUSH,
        opcode::RELEASE,
        opcode::INTERRUPT,
    ];
    about_locks.contains(&opcode)
}

fn lock<'a>(envelope: &Envelope, body: &mut MessageBody<'a>) -> Result<Message<'a>, Errno> {
    let node = envelope.node;
    let request = match envelope.opcode {
        opcode::INTERRUPT => {
            let InterruptIn { unique } = body.take()?;
            return Ok(Message::Interrupt(unique));
        }
        opcode::FLUSH => {
            let FlushIn { fh, lock_owner, .. } = body.take()?;
            FuseRequest::Flush { node, owner: lock_owner, open_file: fh }
        }
        opcode::RELEASE => {
            let ReleaseIn { fh, .. } = body.take()?;
            FuseRequest::Release { node, open_file: fh }
        }
        opcode => {
            let sent: LockIn = body.take()?;
            let lock = node_lock(node, &sent)?;
            match (opcode, lock.mode) {
                (opcode::GETLK, _) => FuseRequest::GetLock(lock),
                (opcode::SETLKW, Some(_)) => return Ok(Message::WaitForLock(lock)),
                _ => FuseRequest::SetLock(lock),
            }
        }
    };
    Ok(Message::Ask(request))
}

fn node_lock(node: NodeId, sent: &LockIn) -> Result<NodeLock, Errno> {
    let LockIn { fh, owner, lock, lock_flags, .. } = *sent;
    let mode = match lock.kind {
        F_RDLCK => Some(LockMode::Shared),
        F_WRLCK => Some(LockMode::Exclusive),
        F_UNLCK => None,
        _ => return Err(Errno::INVAL),
    };
    if lock.start > lock.end {
        return Err(Errno::INVAL);
    }
    let is_of_flock = lock_flags & wire::LK_FLOCK != 0;
    Ok(NodeLock {
        node,
        owner,
        open_file: fh,
        interface: if is_of_flock { LockInterface::Flock } else { LockInterface::Fcntl },
        mode,
        range: LockRange { first: lock.start, last: lock.end },
        pid: lock.pid,
    })
}

fn batch_forget(mut body: MessageBody<'_>) -> Result<Message<'_>, Errno> {
    let BatchForgetIn { count, .. } = body.take()?;
    let each = u32::try_from(size_of::<ForgetOne>()).map_err(|_| Errno::INVAL)?;
    let bytes = body.bytes(count.checked_mul(each).ok_or(Errno::INVAL)?)?;
    Ok(Message::Forget(Forgets::Many(bytes)))
}

fn check_offset(offset: u64) -> Result<(), Errno> {
    if offset > FILE_BYTES_MAX { Err(Errno::INVAL) } else { Ok(()) }
}

fn check_range(offset: u64, length_bytes: u64) -> Result<(), Errno> {
    check_offset(offset)?;
    match offset.checked_add(length_bytes) {
        Some(end) if end <= FILE_BYTES_MAX => Ok(()),
        Some(_) | None => Err(Errno::FBIG),
    }
}

fn timestamp(seconds: i64, nanoseconds: u32) -> Result<Timestamp, Errno> {
    if nanoseconds < 1_000_000_000 {
        Ok(Timestamp { seconds, nanoseconds })
    } else {
        Err(Errno::INVAL)
    }
}

fn change(sent: &SetAttrIn) -> Result<SetAttr, Errno> {
    let has = |bit: u32| sent.valid & bit != 0;
    let time = |to: u32, now: u32, seconds, nanoseconds| match (has(now), has(to)) {
        (true, _) => Ok(Some(SetTime::Now)),
        (false, true) => timestamp(seconds, nanoseconds).map(|time| Some(SetTime::To(time))),
        (false, false) => Ok(None),
    };
    let size_bytes = has(fattr::SIZE).then_some(sent.size);
    if let Some(size_bytes) = size_bytes {
        check_range(0, size_bytes).map_err(|_| Errno::FBIG)?;
    }
    let ctime = if has(fattr::CTIME) { Some(timestamp(sent.ctime, sent.ctimensec)?) } else { None };
    Ok(SetAttr {
        mode: has(fattr::MODE).then(|| permission_bits(sent.mode)),
        uid: has(fattr::UID).then_some(sent.uid),
        gid: has(fattr::GID).then_some(sent.gid),
        project: None,
        size_bytes,
        atime: time(fattr::ATIME, fattr::ATIME_NOW, sent.atime, sent.atimensec)?,
        mtime: time(fattr::MTIME, fattr::MTIME_NOW, sent.mtime, sent.mtimensec)?,
        ctime,
    })
}

fn permission_bits(mode: u32) -> u16 {
    u16::try_from(mode & 0o7777).expect("12 bits fit in 16")
}

/// Returns the file type for MKNOD. Directories and symbolic links have requests of their own.
fn made_kind(mode: u32) -> Result<FileKind, Errno> {
    match rustix::fs::FileType::from_raw_mode(mode) {
        rustix::fs::FileType::RegularFile => Ok(FileKind::Regular),
        rustix::fs::FileType::BlockDevice => Ok(FileKind::BlockDevice),
        rustix::fs::FileType::CharacterDevice => Ok(FileKind::CharDevice),
        rustix::fs::FileType::Fifo => Ok(FileKind::Fifo),
        rustix::fs::FileType::Socket => Ok(FileKind::Socket),
        rustix::fs::FileType::Directory
        | rustix::fs::FileType::Symlink
        | rustix::fs::FileType::Unknown => Err(Errno::INVAL),
    }
}

fn new_node(mode: u32, umask: u32, dialect: Dialect) -> NewNode {
    let umask = if dialect.leaves_umask { permission_bits(umask & 0o777) } else { 0 };
    NewNode { mode: permission_bits(mode), umask }
}

fn mknod<'a>(
    parent: NodeId,
    body: &mut MessageBody<'a>,
    dialect: Dialect,
) -> Result<FuseRequest<'a>, Errno> {
    let MknodIn { mode, rdev, umask, .. } = body.take()?;
    let (kind, new) = (made_kind(mode)?, new_node(mode, umask, dialect));
    let is_device = matches!(kind, FileKind::BlockDevice | FileKind::CharDevice);
    let rdev = if is_device { rdev } else { 0 };
    Ok(FuseRequest::MakeNode { parent, name: body.name()?, kind, new, rdev })
}

fn mkdir<'a>(
    parent: NodeId,
    body: &mut MessageBody<'a>,
    dialect: Dialect,
) -> Result<FuseRequest<'a>, Errno> {
    let MkdirIn { mode, umask } = body.take()?;
    let new = new_node(mode, umask, dialect);
    let kind = FileKind::Directory;
    Ok(FuseRequest::MakeNode { parent, name: body.name()?, kind, new, rdev: 0 })
}

fn create<'a>(
    parent: NodeId,
    body: &mut MessageBody<'a>,
    dialect: Dialect,
) -> Result<FuseRequest<'a>, Errno> {
    let CreateIn { flags, mode, umask, .. } = body.take()?;
    let is_exclusive = OFlags::from_bits_retain(flags).contains(OFlags::EXCL);
    let new = new_node(mode, umask, dialect);
    Ok(FuseRequest::Create { parent, name: body.name()?, new, is_exclusive })
}

fn tmpfile<'a>(
    parent: NodeId,
    body: &mut MessageBody<'a>,
    dialect: Dialect,
) -> Result<FuseRequest<'a>, Errno> {
    let CreateIn { mode, umask, .. } = body.take()?;
    // The name that follows ("/") is unused.
    Ok(FuseRequest::Tmpfile { parent, new: new_node(mode, umask, dialect) })
}

fn rename<'a>(
    source: NodeId,
    target: NodeId,
    mode: Option<RenameMode>,
    body: &mut MessageBody<'a>,
) -> Result<FuseRequest<'a>, Errno> {
    let mode = mode.ok_or(Errno::INVAL)?;
    let source = (source, body.name()?);
    Ok(FuseRequest::Rename { source, target: (target, body.name()?), mode })
}

fn rename_mode(flags: u32) -> Option<RenameMode> {
    const WHITEOUT_NOREPLACE: RenameFlags = RenameFlags::WHITEOUT.union(RenameFlags::NOREPLACE);
    match RenameFlags::from_bits_retain(flags) {
        RenameFlags::NOREPLACE => Some(RenameMode::NoReplace),
        RenameFlags::EXCHANGE => Some(RenameMode::Exchange),
        RenameFlags::WHITEOUT => Some(RenameMode::Whiteout),
        WHITEOUT_NOREPLACE => Some(RenameMode::WhiteoutNoReplace),
        flags => flags.is_empty().then_some(RenameMode::Replace),
    }
}

fn xattr_name<'a>(body: &mut MessageBody<'a>) -> Result<&'a [u8], Errno> {
    let name = body.text()?;
    if name.is_empty() { Err(Errno::INVAL) } else { Ok(name) }
}

fn set_xattr<'a>(
    node: NodeId,
    body: &mut MessageBody<'a>,
    dialect: Dialect,
) -> Result<FuseRequest<'a>, Errno> {
    let (size, flags, kills_setgid) = if dialect.has_long_setxattr {
        let SetXattrIn { size, flags, setxattr_flags, .. } = body.take()?;
        (size, flags, setxattr_flags & wire::SETXATTR_ACL_KILL_SGID != 0)
    } else {
        let SetXattrCompatIn { size, flags } = body.take()?;
        (size, flags, false)
    };
    let flags = XattrFlags::from_bits_retain(flags);
    let mode = if flags.is_empty() {
        XattrMode::Set
    } else if flags == XattrFlags::CREATE {
        XattrMode::Create
    } else if flags == XattrFlags::REPLACE {
        XattrMode::Replace
    } else if flags == XattrFlags::CREATE | XattrFlags::REPLACE {
        XattrMode::CreateAndReplace
    } else {
        return Err(Errno::INVAL);
    };
    let name = xattr_name(body)?;
    Ok(FuseRequest::SetXattr { node, name, value: body.bytes(size)?, mode, kills_setgid })
}

fn fallocate<'a>(node: NodeId, body: &mut MessageBody<'a>) -> Result<FuseRequest<'a>, Errno> {
    let FallocateIn { offset, length, mode, .. } = body.take()?;
    check_range(offset, length)?;
    let flags = FallocateFlags::from_bits_retain(mode);
    let keep_size = flags.contains(FallocateFlags::KEEP_SIZE);
    let rest = flags.difference(FallocateFlags::KEEP_SIZE);
    let mode = if rest.is_empty() {
        Fallocate::Allocate { keep_size }
    } else if rest == FallocateFlags::ZERO_RANGE {
        Fallocate::ZeroRange { keep_size }
    } else if rest == FallocateFlags::PUNCH_HOLE && keep_size {
        Fallocate::PunchHole
    } else if rest == FallocateFlags::COLLAPSE_RANGE && !keep_size {
        Fallocate::CollapseRange
    } else if rest == FallocateFlags::INSERT_RANGE && !keep_size {
        Fallocate::InsertRange
    } else {
        return Err(Errno::OPNOTSUPP);
    };
    Ok(FuseRequest::Fallocate { node, offset, length_bytes: length, mode })
}

fn lseek<'a>(node: NodeId, body: &mut MessageBody<'a>) -> Result<FuseRequest<'a>, Errno> {
    let LseekIn { offset, whence, .. } = body.take()?;
    if offset > FILE_BYTES_MAX {
        return Err(Errno::NXIO);
    }
    let what = match whence {
        SEEK_DATA => Seek::Data,
        SEEK_HOLE => Seek::Hole,
        // The kernel handles all other values itself.
        _ => return Err(Errno::INVAL),
    };
    Ok(FuseRequest::Seek { node, offset, what })
}

fn copy_file_range<'a>(
    source: NodeId,
    is_long: bool,
    body: &mut MessageBody<'a>,
) -> Result<FuseRequest<'a>, Errno> {
    let CopyFileRangeIn { off_in, nodeid_out, off_out, len, flags, .. } = body.take()?;
    if flags != 0 {
        return Err(Errno::INVAL);
    }
    check_range(off_in, 0)?;
    check_range(off_out, len)?;
    Ok(FuseRequest::CopyRange {
        source: (source, off_in),
        target: (NodeId(nodeid_out), off_out),
        length_bytes: len,
        is_long,
    })
}
