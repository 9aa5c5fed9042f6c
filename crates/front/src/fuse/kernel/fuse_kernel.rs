//! Constants and structures of the FUSE protocol, in the kernel's layout.
//!
//! Source: `include/uapi/linux/fuse.h` of Linux 6.18 (protocol 7.45). Names are the kernel's
//! without `fuse_`. Fields that this front does not read are called `unused`. Byte order is the
//! machine's.
//!
//! Structures are copied from any offset, so buffers need no alignment. Every bit pattern is a
//! valid value, which `decode.rs` then checks.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Major version of the protocol. Others are incompatible.
pub(super) const MAJOR: u32 = 7;
pub(super) const MINOR: u32 = 45;
/// The oldest minor version served (Linux 5.4). Since then all structures below have their size.
pub(super) const MINOR_MIN: u32 = 31;

/// The `ioctl` group and number of `FUSE_DEV_IOC_CLONE`, which reads a `u32`.
pub(super) const IOCTL_CLONE: (u8, u8) = (229, 0);

/// Notice code, in place of an error. [`NotifyInvalInodeOut`] follows.
pub(super) const NOTIFY_INVAL_INODE: i32 = 2;

pub(crate) mod opcode {
    pub(crate) const LOOKUP: u32 = 1;
    pub(crate) const FORGET: u32 = 2;
    pub(crate) const GETATTR: u32 = 3;
    pub(crate) const SETATTR: u32 = 4;
    pub(crate) const READLINK: u32 = 5;
    pub(crate) const SYMLINK: u32 = 6;
    pub(crate) const MKNOD: u32 = 8;
    pub(crate) const MKDIR: u32 = 9;
    pub(crate) const UNLINK: u32 = 10;
    pub(crate) const RMDIR: u32 = 11;
    pub(crate) const RENAME: u32 = 12;
    pub(crate) const LINK: u32 = 13;
    pub(crate) const OPEN: u32 = 14;
    pub(crate) const READ: u32 = 15;
    pub(crate) const WRITE: u32 = 16;
    pub(crate) const STATFS: u32 = 17;
    pub(crate) const RELEASE: u32 = 18;
    pub(crate) const FSYNC: u32 = 20;
    pub(crate) const SETXATTR: u32 = 21;
    pub(crate) const GETXATTR: u32 = 22;
    pub(crate) const LISTXATTR: u32 = 23;
    pub(crate) const REMOVEXATTR: u32 = 24;
    pub(crate) const FLUSH: u32 = 25;
    pub(crate) const INIT: u32 = 26;
    pub(crate) const OPENDIR: u32 = 27;
    pub(crate) const READDIR: u32 = 28;
    pub(crate) const RELEASEDIR: u32 = 29;
    pub(crate) const FSYNCDIR: u32 = 30;
    pub(crate) const GETLK: u32 = 31;
    pub(crate) const SETLK: u32 = 32;
    pub(crate) const SETLKW: u32 = 33;
    pub(crate) const ACCESS: u32 = 34;
    pub(crate) const CREATE: u32 = 35;
    pub(crate) const INTERRUPT: u32 = 36;
    pub(crate) const BMAP: u32 = 37;
    pub(crate) const DESTROY: u32 = 38;
    pub(crate) const IOCTL: u32 = 39;
    pub(crate) const POLL: u32 = 40;
    pub(crate) const NOTIFY_REPLY: u32 = 41;
    pub(crate) const BATCH_FORGET: u32 = 42;
    pub(crate) const FALLOCATE: u32 = 43;
    pub(crate) const READDIRPLUS: u32 = 44;
    pub(crate) const RENAME2: u32 = 45;
    pub(crate) const LSEEK: u32 = 46;
    pub(crate) const COPY_FILE_RANGE: u32 = 47;
    pub(crate) const TMPFILE: u32 = 51;
    pub(crate) const STATX: u32 = 52;
    pub(crate) const COPY_FILE_RANGE_64: u32 = 53;
}

/// Flags of INIT, the second word shifted up by 32.
pub(super) mod init {
    pub(crate) const ASYNC_READ: u64 = 1 << 0;
    pub(crate) const POSIX_LOCKS: u64 = 1 << 1;
    pub(crate) const EXPORT_SUPPORT: u64 = 1 << 4;
    pub(crate) const BIG_WRITES: u64 = 1 << 5;
    pub(crate) const DONT_MASK: u64 = 1 << 6;
    pub(crate) const FLOCK_LOCKS: u64 = 1 << 10;
    pub(crate) const AUTO_INVAL_DATA: u64 = 1 << 12;
    pub(crate) const DO_READDIRPLUS: u64 = 1 << 13;
    pub(crate) const READDIRPLUS_AUTO: u64 = 1 << 14;
    pub(crate) const WRITEBACK_CACHE: u64 = 1 << 16;
    pub(crate) const NO_OPEN_SUPPORT: u64 = 1 << 17;
    pub(crate) const PARALLEL_DIROPS: u64 = 1 << 18;
    pub(crate) const POSIX_ACL: u64 = 1 << 20;
    pub(crate) const MAX_PAGES: u64 = 1 << 22;
    pub(crate) const CACHE_SYMLINKS: u64 = 1 << 23;
    pub(crate) const NO_OPENDIR_SUPPORT: u64 = 1 << 24;
    pub(crate) const EXPLICIT_INVAL_DATA: u64 = 1 << 25;
    pub(crate) const HANDLE_KILLPRIV_V2: u64 = 1 << 28;
    pub(crate) const SETXATTR_EXT: u64 = 1 << 29;
    pub(crate) const INIT_EXT: u64 = 1 << 30;
    pub(crate) const DIRECT_IO_ALLOW_MMAP: u64 = 1 << 36;
    pub(crate) const OVER_IO_URING: u64 = 1 << 41;
}

pub(super) mod uring_command {
    /// Registers an entry, and receives a request in it.
    pub(crate) const REGISTER: u32 = 1;
    /// Sends the reply in an entry, and receives the next request in it.
    pub(crate) const COMMIT_AND_FETCH: u32 = 2;
}

/// Valid fields of [`SetAttrIn`].
pub(super) mod fattr {
    pub(crate) const MODE: u32 = 1 << 0;
    pub(crate) const UID: u32 = 1 << 1;
    pub(crate) const GID: u32 = 1 << 2;
    pub(crate) const SIZE: u32 = 1 << 3;
    pub(crate) const ATIME: u32 = 1 << 4;
    pub(crate) const MTIME: u32 = 1 << 5;
    pub(crate) const ATIME_NOW: u32 = 1 << 7;
    pub(crate) const MTIME_NOW: u32 = 1 << 8;
    pub(crate) const CTIME: u32 = 1 << 10;
    pub(crate) const KILL_SUIDGID: u32 = 1 << 11;
}

/// [`OpenOut::open_flags`]: direct I/O, each read and write is a request.
pub(super) const FOPEN_DIRECT_IO: u32 = 1 << 0;
/// [`OpenOut::open_flags`]: direct writes to a file may run in parallel.
pub(super) const FOPEN_PARALLEL_DIRECT_WRITES: u32 = 1 << 6;
/// [`OpenOut::open_flags`]: cached pages stay valid across opens.
pub(super) const FOPEN_KEEP_CACHE: u32 = 1 << 1;
/// [`OpenOut::open_flags`]: no FLUSH at close(2).
pub(super) const FOPEN_NOFLUSH: u32 = 1 << 5;
/// [`WriteIn::write_flags`]: write-back of cached pages. They stay dirty only after an error.
pub(super) const WRITE_CACHE: u32 = 1 << 0;
/// [`WriteIn::write_flags`]: clear setuid and setgid, as the writer lacks `CAP_FSETID`.
pub(super) const WRITE_KILL_SUIDGID: u32 = 1 << 2;
/// [`FsyncIn::fsync_flags`]: fdatasync(2).
pub(super) const FSYNC_FDATASYNC: u32 = 1 << 0;
/// [`LockIn::lock_flags`]: flock(2), not fcntl(2).
pub(super) const LK_FLOCK: u32 = 1 << 0;
/// [`SetXattrIn::setxattr_flags`]: clear setgid, as the ACL being set denies it to the caller.
pub(super) const SETXATTR_ACL_KILL_SGID: u32 = 1 << 0;

macro_rules! wire {
    ($($(#[$meta:meta])* $name:ident: $size:literal { $($field:ident: $type:ty,)* })*) => {$(
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
        #[repr(C)]
        pub(super) struct $name { $(pub(super) $field: $type,)* }

        const _: () = assert!(size_of::<$name>() == $size);
    )*};
}

wire! {
    InHeader: 40 {
        len: u32,
        opcode: u32,
        unique: u64,
        nodeid: u64,
        uid: u32,
        gid: u32,
        pid: u32,
        // Length of the extensions after the arguments, in units of 8 bytes.
        total_extlen: u16,
        padding: u16,
    }
    OutHeader: 16 {
        len: u32,
        // 0 or a negated errno.
        error: i32,
        unique: u64,
    }
    InitIn: 16 {
        major: u32,
        minor: u32,
        max_readahead: u32,
        flags: u32,
    }
    InitOut: 64 {
        major: u32,
        minor: u32,
        max_readahead: u32,
        flags: u32,
        max_background: u16,
        congestion_threshold: u16,
        max_write: u32,
        time_gran: u32,
        max_pages: u16,
        map_alignment: u16,
        flags2: u32,
        max_stack_depth: u32,
        request_timeout: u16,
        unused: [u16; 11],
    }
    Attr: 88 {
        ino: u64,
        size: u64,
        blocks: u64,
        atime: i64,
        mtime: i64,
        ctime: i64,
        atimensec: u32,
        mtimensec: u32,
        ctimensec: u32,
        mode: u32,
        nlink: u32,
        uid: u32,
        gid: u32,
        rdev: u32,
        blksize: u32,
        flags: u32,
    }
    EntryOut: 128 {
        nodeid: u64,
        generation: u64,
        entry_valid: u64,
        attr_valid: u64,
        entry_valid_nsec: u32,
        attr_valid_nsec: u32,
        attr: Attr,
    }
    AttrOut: 104 {
        attr_valid: u64,
        attr_valid_nsec: u32,
        dummy: u32,
        attr: Attr,
    }
    OpenOut: 16 {
        fh: u64,
        open_flags: u32,
        backing_id: i32,
    }
    SxTime: 16 {
        tv_sec: i64,
        tv_nsec: u32,
        reserved: i32,
    }
    Statx: 256 {
        mask: u32,
        blksize: u32,
        attributes: u64,
        nlink: u32,
        uid: u32,
        gid: u32,
        mode: u16,
        spare0: u16,
        ino: u64,
        size: u64,
        blocks: u64,
        attributes_mask: u64,
        atime: SxTime,
        btime: SxTime,
        ctime: SxTime,
        mtime: SxTime,
        rdev_major: u32,
        rdev_minor: u32,
        dev_major: u32,
        dev_minor: u32,
        spare2: [u64; 14],
    }
    StatxOut: 288 {
        attr_valid: u64,
        attr_valid_nsec: u32,
        flags: u32,
        spare: [u64; 2],
        stat: Statx,
    }
    StatFsOut: 80 {
        blocks: u64,
        bfree: u64,
        bavail: u64,
        files: u64,
        ffree: u64,
        bsize: u32,
        namelen: u32,
        frsize: u32,
        padding: u32,
        spare: [u32; 6],
    }
    ForgetIn: 8 {
        nlookup: u64,
    }
    ForgetOne: 16 {
        nodeid: u64,
        nlookup: u64,
    }
    BatchForgetIn: 8 {
        count: u32,
        dummy: u32,
    }
    SetAttrIn: 88 {
        valid: u32,
        padding: u32,
        fh: u64,
        size: u64,
        lock_owner: u64,
        atime: i64,
        mtime: i64,
        ctime: i64,
        atimensec: u32,
        mtimensec: u32,
        ctimensec: u32,
        mode: u32,
        unused4: u32,
        uid: u32,
        gid: u32,
        unused5: u32,
    }
    MknodIn: 16 {
        mode: u32,
        rdev: u32,
        umask: u32,
        padding: u32,
    }
    MkdirIn: 8 {
        mode: u32,
        umask: u32,
    }
    RenameIn: 8 {
        newdir: u64,
    }
    Rename2In: 16 {
        newdir: u64,
        flags: u32,
        padding: u32,
    }
    LinkIn: 8 {
        oldnodeid: u64,
    }
    /// For CREATE and TMPFILE.
    CreateIn: 16 {
        flags: u32,
        mode: u32,
        umask: u32,
        open_flags: u32,
    }
    /// For READ, READDIR and READDIRPLUS.
    ReadIn: 40 {
        fh: u64,
        offset: u64,
        size: u32,
        read_flags: u32,
        lock_owner: u64,
        flags: u32,
        padding: u32,
    }
    WriteIn: 40 {
        fh: u64,
        offset: u64,
        size: u32,
        write_flags: u32,
        lock_owner: u64,
        flags: u32,
        padding: u32,
    }
    /// For WRITE and COPY_FILE_RANGE.
    WriteOut: 8 {
        size: u32,
        padding: u32,
    }
    FsyncIn: 16 {
        fh: u64,
        fsync_flags: u32,
        padding: u32,
    }
    FlushIn: 24 {
        fh: u64,
        unused: u32,
        padding: u32,
        lock_owner: u64,
    }
    ReleaseIn: 24 {
        fh: u64,
        flags: u32,
        release_flags: u32,
        lock_owner: u64,
    }
    /// Of GETLK's answer too. The last byte is included.
    FileLock: 24 {
        start: u64,
        end: u64,
        // F_RDLCK, F_WRLCK or F_UNLCK.
        kind: u32,
        pid: u32,
    }
    /// For GETLK, SETLK and SETLKW.
    LockIn: 48 {
        fh: u64,
        owner: u64,
        lock: FileLock,
        lock_flags: u32,
        padding: u32,
    }
    InterruptIn: 8 {
        unique: u64,
    }
    /// With `SETXATTR_EXT`.
    SetXattrIn: 16 {
        size: u32,
        flags: u32,
        setxattr_flags: u32,
        padding: u32,
    }
    /// Without `SETXATTR_EXT`.
    SetXattrCompatIn: 8 {
        size: u32,
        flags: u32,
    }
    /// For GETXATTR and LISTXATTR.
    GetXattrIn: 8 {
        size: u32,
        padding: u32,
    }
    GetXattrOut: 8 {
        size: u32,
        padding: u32,
    }
    FallocateIn: 32 {
        fh: u64,
        offset: u64,
        length: u64,
        mode: u32,
        padding: u32,
    }
    LseekIn: 24 {
        fh: u64,
        offset: u64,
        whence: u32,
        padding: u32,
    }
    LseekOut: 8 {
        offset: u64,
    }
    /// With [`NOTIFY_INVAL_INODE`]: invalidates an inode. A negative offset means attributes only.
    NotifyInvalInodeOut: 24 {
        ino: u64,
        off: i64,
        len: i64,
    }
    CopyFileRangeIn: 56 {
        fh_in: u64,
        off_in: u64,
        nodeid_out: u64,
        fh_out: u64,
        off_out: u64,
        len: u64,
        flags: u64,
    }
    CopyFileRangeOut: 8 {
        bytes_copied: u64,
    }
    /// Precedes each name of READDIR. Zeros pad the name to a multiple of 8.
    Dirent: 24 {
        ino: u64,
        off: u64,
        namelen: u32,
        // The file type bits of a mode, shifted down by 12.
        kind: u32,
    }
    /// Header part of a ring entry, beside the payload.
    UringHeader: 288 {
        // InHeader of a request, OutHeader of a reply.
        in_out: [u8; 128],
        // The first argument of a request. The rest is in the payload, as is the reply.
        op_in: [u8; 128],
        flags: u64,
        commit_id: u64,
        payload_bytes: u32,
        padding: u32,
        reserved: u64,
    }
    UringCommand: 24 {
        flags: u64,
        commit_id: u64,
        queue: u16,
        padding: [u16; 3],
    }
}

impl UringCommand {
    pub(super) fn as_room(&self) -> [u8; 80] {
        let mut room = [0; 80];
        room[..size_of::<UringCommand>()].copy_from_slice(self.as_bytes());
        room
    }
}
