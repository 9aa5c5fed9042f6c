//! The vnode interface: the file operations that the engine and the reference model of the tests
//! provide, and that front ends call.
//!
//! An operation is atomic over a crash, except [`FileSystem::write`], whose bytes may survive block
//! by block until an fsync.
//!
//! Names are bytes (1 to 255, no `/`, no NUL). `.` and `..` are never names to change.
//!
//! A caller with [`PermissionChecks::Here`] is checked at each call, under the locks of the
//! operation: permissions are not kept in an open file. Names and attributes need the permissions
//! of path_resolution(7) and of the system call's manual page. Content needs the permission that
//! open(2) would need: read for [`FileSystem::read`], [`FileSystem::readdir`], [`FileSystem::seek`]
//! and the source of [`FileSystem::copy_range`], write for [`FileSystem::write`],
//! [`FileSystem::fallocate`] and the target of a copy, read or write for [`FileSystem::fsync`]. A
//! call checks first the kind of the file, then the permission, then the arguments.
//!
//! Long: one interface, with the contract of each operation.

pub mod forward;

use std::ops::Deref;

pub use crate::error::{Completion, FilePart, FsError, FsResult};
pub use format::hash::siphash24;
pub use runtime::clock::Timestamp;
pub use storage::device::{AlignedBuffer, SharedBytes};

use crate::fileset_table::FILE_NUMBERS_END;

/// Longest name, in bytes.
pub const NAME_BYTES_MAX: usize = 255;
/// Error text for the deletion of a snapshot while another one of its family is being freed.
pub const ANOTHER_IS_FREED: &str = "another one is being freed: try again when that is done";
/// Most names of a file. A directory with more links reports a link count of 1.
pub const LINKS_MAX: u32 = 65_535;
/// Longest target of a symbolic link, in bytes (PATH_MAX with its NUL).
pub const SYMLINK_BYTES_MAX: usize = 4095;
/// Most bytes copied by one [`FileSystem::copy_range`].
pub const COPY_BYTES_MAX: u64 = 8 << 20;
const LISTED_TOGETHER: usize = 64;
/// Largest file, in bytes.
pub const FILE_BYTES_MAX: u64 = i64::MAX.unsigned_abs();

/// Bits of an inode number for the anode number.
pub(super) const ANODE_BITS: u32 = 40;

/// Inode number, unique in the pool and stable: fileset slot (24 bits), anode number (40 bits).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ino(pub u64);

/// Anode number of the virtual directory of a fileset's snapshots; no file has it.
const SNAPSHOTS_NUMBER: u64 = (1 << ANODE_BITS) - 1;
const _: () = assert!(format::ids::ANODES_MAX - 1 == SNAPSHOTS_NUMBER);
/// Anode number of the virtual symbolic link to the snapshot directory; no file has it.
const SNAPSHOTS_LINK_NUMBER: u64 = SNAPSHOTS_NUMBER - 1;
const _: () = assert!(FILE_NUMBERS_END == SNAPSHOTS_LINK_NUMBER);

impl Ino {
    /// Whether the inode is the snapshot directory, or the link to it.
    #[must_use]
    pub fn is_virtual(self) -> bool {
        self.0 & SNAPSHOTS_NUMBER >= FILE_NUMBERS_END
    }

    pub(crate) fn is_snapshots_link(self) -> bool {
        self.0 & SNAPSHOTS_NUMBER == SNAPSHOTS_LINK_NUMBER
    }

    pub(crate) fn snapshots_link_of_slot(slot: u32) -> Ino {
        Ino(u64::from(slot) << ANODE_BITS | SNAPSHOTS_LINK_NUMBER)
    }

    /// Whether the inode is the snapshot directory.
    #[must_use]
    pub fn is_snapshots_directory(self) -> bool {
        self.0 & SNAPSHOTS_NUMBER == SNAPSHOTS_NUMBER
    }

    pub(crate) fn snapshots_of_slot(slot: u32) -> Ino {
        Ino(u64::from(slot) << ANODE_BITS | SNAPSHOTS_NUMBER)
    }

    /// Returns the root directory of a fileset.
    #[must_use]
    pub fn root_of_slot(slot: u32) -> Ino {
        Ino(u64::from(slot) << ANODE_BITS | format::anode::ROOT_ANODE.0)
    }

    /// Returns the inode with this anode number in the fileset of `slot`.
    #[must_use]
    pub fn in_slot(self, slot: u32) -> Ino {
        Ino(u64::from(slot) << ANODE_BITS | self.0 & SNAPSHOTS_NUMBER)
    }

    pub(crate) fn anode(self) -> format::ids::AnodeNo {
        format::ids::AnodeNo(self.0 & SNAPSHOTS_NUMBER)
    }

    /// Returns the fileset's slot.
    #[must_use]
    pub fn slot(self) -> u32 {
        u32::try_from(self.0 >> ANODE_BITS).expect("24 bits are left")
    }
}

/// Identity of a fileset, unique over all pools.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FilesetUuid(pub u128);

/// A permanent name of an inode. The number of an [`Ino`] may be reused once no reference is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FileHandle {
    /// Fileset.
    pub fileset: FilesetUuid,
    /// Inode number.
    pub ino: Ino,
    /// As in [`Attr::generation`].
    pub generation: u64,
}

/// Kind of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FileKind {
    /// Regular file.
    Regular,
    /// Directory.
    Directory,
    /// Symbolic link.
    Symlink,
    /// Block device.
    BlockDevice,
    /// Character device.
    CharDevice,
    /// Named pipe.
    Fifo,
    /// Socket.
    Socket,
}

/// Data of a write.
#[derive(Clone, Debug)]
pub enum WriteData<'d> {
    /// Borrowed for the call.
    Lent(&'d [u8]),
    /// Immutable, so the file system may keep aligned blocks without a copy.
    Shared(SharedBytes),
}

impl Deref for WriteData<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            WriteData::Lent(bytes) => bytes,
            WriteData::Shared(bytes) => bytes,
        }
    }
}

/// Attributes of stat(2).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attr {
    /// Inode number.
    pub ino: Ino,
    /// Differs when a number is reused.
    pub generation: u64,
    /// Kind of file.
    pub kind: FileKind,
    /// 12 permission bits.
    pub mode: u16,
    /// Number of names.
    pub nlink: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Project account; 0 for none.
    pub project: u32,
    /// Device number, as Linux packs it.
    pub rdev: u32,
    /// Size in bytes: of a file's content, a directory's pages, or a link's target.
    pub size_bytes: u64,
    /// Used space in units of 512 bytes.
    pub blocks_512: u64,
    /// Whether `blocks_512` may still change, since dirty blocks may need map pages.
    pub blocks_may_change: bool,
    /// Last read.
    pub atime: Timestamp,
    /// Last change of content.
    pub mtime: Timestamp,
    /// Last change of content or attributes.
    pub ctime: Timestamp,
    /// Creation.
    pub btime: Timestamp,
}

impl Attr {
    /// Returns the handle of an inode in `fileset`; for snapshots use [`FileSystem::handle_of`].
    #[must_use]
    pub fn handle(&self, fileset: FilesetUuid) -> FileHandle {
        FileHandle { fileset, ino: self.ino, generation: self.generation }
    }
}

/// Which side checks permissions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PermissionChecks {
    /// The file system, at each call.
    Here,
    /// The kernel, as in a FUSE mount with `default_permissions`. Nothing is refused for lack of
    /// permission.
    ByKernel,
}

/// The identity of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caller {
    /// File-system user id.
    pub uid: u32,
    /// File-system group id.
    pub gid: u32,
    /// Supplementary groups.
    pub groups: Vec<u32>,
    /// Which side checks permissions.
    pub checks: PermissionChecks,
    /// Whether the caller lacks `CAP_FSETID`, so that its writes clear setuid and setgid. With
    /// [`PermissionChecks::ByKernel`] it is also set for an access list, if the caller is not in
    /// the file's group.
    pub loses_set_bits: bool,
    /// Whether reads keep the access time (`O_NOATIME`).
    pub keeps_atime: bool,
    /// Page-cache write-back: the writer is unknown, so limits apply unless root owns the file.
    pub writes_back: bool,
}

impl Caller {
    /// Returns a caller with [`PermissionChecks::Here`].
    #[must_use]
    pub const fn checked(uid: u32, gid: u32, groups: Vec<u32>) -> Caller {
        let (checks, loses_set_bits) = (PermissionChecks::Here, uid != 0);
        Caller { uid, gid, groups, checks, loses_set_bits, keeps_atime: false, writes_back: false }
    }

    /// Returns a caller with [`PermissionChecks::ByKernel`].
    #[must_use]
    pub const fn checked_by_kernel(uid: u32, gid: u32) -> Caller {
        let mut caller = Caller::checked(uid, gid, Vec::new());
        caller.checks = PermissionChecks::ByKernel;
        caller
    }

    /// The superuser.
    #[must_use]
    pub const fn root() -> Caller {
        Caller::checked(0, 0, Vec::new())
    }
}

/// Permissions on a file; see [`FileSystem::access`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct AccessRights {
    /// Read it, or list its names.
    pub reads: bool,
    /// Change it. A sticky directory may still refuse single files.
    pub writes: bool,
    /// Execute it, or search it.
    pub executes: bool,
}

/// Attributes before and after a change, taken under its locks. Undefined after an error, or a
/// change without effect.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AttributeChange {
    /// Before.
    pub before: Option<Attr>,
    /// After.
    pub after: Option<Attr>,
}

/// When a write is durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stability {
    /// With the next sync, or after the commit interval.
    Unstable,
    /// On return. To avoid blocking, use [`FileSystem::commit_then`].
    Durable,
}

/// Initial attributes of an inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NewInode {
    /// Kind; symbolic links only through [`FileSystem::symlink`].
    pub kind: FileKind,
    /// 12 permission bits.
    pub mode: u16,
    /// Umask, ignored if the directory has a default access list. 0 if applied already.
    pub umask: u16,
    /// Device number; else 0.
    pub rdev: u32,
    /// Owner; `None` for the caller. Needs the permission of chown(2).
    pub uid: Option<u32>,
    /// Group; `None` for the caller's group, or in a setgid directory the directory's.
    pub gid: Option<u32>,
    /// Access time; `None` for now.
    pub atime: Option<SetTime>,
    /// Modification time; `None` for now.
    pub mtime: Option<SetTime>,
    /// Verifier of an exclusive creation, chosen by the client. If the name exists with the same
    /// verifier and no change since, the request is a retransmission and succeeds. Only for
    /// [`FileKind::Regular`]; kept in both times, which must be `None`.
    pub verifier: Option<u64>,
}

impl NewInode {
    /// A symbolic link.
    pub const SYMLINK: NewInode = NewInode::new(FileKind::Symlink, 0o777);

    /// Returns a new inode of the caller.
    #[must_use]
    pub const fn new(kind: FileKind, mode: u16) -> NewInode {
        NewInode {
            kind,
            mode,
            umask: 0,
            rdev: 0,
            uid: None,
            gid: None,
            atime: None,
            mtime: None,
            verifier: None,
        }
    }

    /// Returns the times that store `verifier`.
    #[must_use]
    pub fn times_of(verifier: u64) -> [Timestamp; 2] {
        let half = |seconds: u64| Timestamp {
            seconds: i64::try_from(seconds & u64::from(u32::MAX)).expect("32 bits"),
            nanoseconds: 0,
        };
        [half(verifier), half(verifier >> 32)]
    }
}

/// A time to set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetTime {
    /// Current time.
    Now,
    /// This time.
    To(Timestamp),
}

/// Attributes to change; `None` leaves one unchanged. An empty change is Linux's chown(2) without
/// owner and group: it sets ctime, and clears setuid and setgid for the owner or superuser.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SetAttr {
    /// 12 permission bits.
    pub mode: Option<u16>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Project account; new files inherit it from the directory. Set only by callers exempt from
    /// account limits.
    pub project: Option<u32>,
    /// Truncate, or extend with a hole.
    pub size_bytes: Option<u64>,
    /// Access time.
    pub atime: Option<SetTime>,
    /// Modification time.
    pub mtime: Option<SetTime>,
    /// Change time; set only by kernels that cache writes.
    pub ctime: Option<Timestamp>,
}

/// How rename(2) treats an existing target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RenameMode {
    /// Replace it.
    Replace,
    /// Fail with [`FsError::Exists`] (`RENAME_NOREPLACE`).
    NoReplace,
    /// Swap both (`RENAME_EXCHANGE`).
    Exchange,
    /// Replace it, and leave a whiteout at the source (`RENAME_WHITEOUT`): a character device of
    /// number 0 and mode 0, by which an overlay hides a lower name.
    Whiteout,
    /// Leave a whiteout, but fail with [`FsError::Exists`] if the target exists.
    WhiteoutNoReplace,
}

impl RenameMode {
    /// Whether an existing target makes the rename fail.
    #[must_use]
    pub fn keeps_target(self) -> bool {
        matches!(self, RenameMode::NoReplace | RenameMode::WhiteoutNoReplace)
    }

    /// Whether the source name becomes a whiteout.
    #[must_use]
    pub fn leaves_whiteout(self) -> bool {
        matches!(self, RenameMode::Whiteout | RenameMode::WhiteoutNoReplace)
    }
}

/// A whiteout.
pub const WHITEOUT: NewInode = NewInode::new(FileKind::CharDevice, 0);

/// Flags of setxattr(2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum XattrMode {
    /// Create or replace.
    Set,
    /// Fail with [`FsError::Exists`] if it exists (`XATTR_CREATE`).
    Create,
    /// Fail with [`FsError::NoAttribute`] if it does not (`XATTR_REPLACE`).
    Replace,
    /// Always fails, except for access lists, for which Linux drops the flags.
    CreateAndReplace,
}

/// Modes of fallocate(2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fallocate {
    /// Reserves space for later writes. Extends the file unless `keep_size`.
    Allocate {
        /// `FALLOC_FL_KEEP_SIZE`.
        keep_size: bool,
    },
    /// Frees the space, which reads as zeros. Keeps the size.
    PunchHole,
    /// Zeroes the range. Extends the file unless `keep_size`.
    ZeroRange {
        /// `FALLOC_FL_KEEP_SIZE`.
        keep_size: bool,
    },
    /// Removes whole blocks, and closes the gap.
    CollapseRange,
    /// Inserts a hole of whole blocks.
    InsertRange,
}

/// A read of [`FileSystem::read_each`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileReadRequest<'c> {
    /// Identity.
    pub caller: &'c Caller,
    /// The file.
    pub ino: Ino,
    /// First byte.
    pub offset: u64,
    /// Most bytes.
    pub length_bytes: usize,
}

/// Callback for one read: the index of the request, and the bytes read as consecutive slices.
pub type ReadCallback<'t> = dyn FnMut(usize, FsResult<&[&[u8]]>) + 't;

/// Target of lseek(2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seek {
    /// A byte not in a hole (`SEEK_DATA`).
    Data,
    /// A byte in a hole, or the end of the file (`SEEK_HOLE`).
    Hole,
}

/// An entry of a listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirEntry {
    /// The name.
    pub name: Vec<u8>,
    /// Inode of the name.
    pub ino: Ino,
    /// Kind.
    pub kind: FileKind,
    /// Position after this entry, valid over other changes and restarts. Never 0; fits in 63 bits.
    pub cookie: u64,
}

/// Result of statfs(2), in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StatFs {
    /// Preferred unit of I/O.
    pub block_bytes: u32,
    /// Unit of allocation, of which all totals are multiples.
    pub fragment_bytes: u32,
    /// Total space for data.
    pub total_bytes: u64,
    /// Unused space.
    pub free_bytes: u64,
    /// Space available to writers.
    pub available_bytes: u64,
    /// Inodes in use.
    pub inode_count: u64,
    /// Inodes that can still be created.
    pub inodes_free: u64,
}

/// The operations of a file system.
///
/// A call that changes names or content reports its [`AttributeChange`] if the caller passes one:
/// the directory's if it changes a name, else the file's.
///
/// `lookup`, `resolve`, `create`, `symlink`, `link` and `tmpfile` take one *reference* on the
/// returned inode, to be dropped by [`FileSystem::forget`]. An unlinked inode lives until its last
/// reference is dropped.
pub trait FileSystem: Send + Sync {
    /// Returns the fileset that is served by default.
    fn main_fileset(&self) -> FilesetUuid;

    /// Returns the main root directory. It has no references.
    fn root(&self) -> Ino;

    /// Returns a fileset's root directory, or [`FsError::Stale`].
    fn root_of(&self, fileset: FilesetUuid) -> FsResult<Ino> {
        if fileset == self.main_fileset() { Ok(self.root()) } else { Err(FsError::Stale) }
    }

    /// Returns NFS's write verifier: a random number for each opening of the pool. When it differs
    /// from an earlier reply's, writes accepted before may be lost unless they were durable.
    fn verifier(&self) -> u64;

    /// Returns the inode of a handle, with a reference. [`FsError::Stale`] if it is gone, even if
    /// its number is reused, or if it is unlinked without references.
    fn resolve(&self, caller: &Caller, handle: FileHandle) -> FsResult<Attr>;

    /// Returns the handle of an inode that was reached through `fileset`. May be called within
    /// callbacks.
    fn handle_of(&self, attr: &Attr, fileset: FilesetUuid) -> FileHandle {
        attr.handle(fileset)
    }

    /// Finds `name` in `parent`; `.` and `..` are valid. Takes a reference. If the name is removed
    /// during the lookup, the returned link count may exclude it.
    ///
    /// `.` in a file of any kind is the file itself. A front uses it after a restart to take the
    /// reference of a handle again.
    fn lookup(&self, caller: &Caller, parent: Ino, name: &[u8]) -> FsResult<Attr>;

    /// Returns a directory that has or had a name of the file, and the file's kind. A root is its
    /// own directory. For display only; an error if unknown.
    fn parent_of(&self, ino: Ino) -> FsResult<(Ino, FileKind)> {
        let kind = self.getattr(&Caller::root(), ino)?.kind;
        if kind != FileKind::Directory {
            return Err(FsError::NotSupported);
        }
        let above = self.lookup(&Caller::root(), ino, b"..")?.ino;
        self.forget(above, 1);
        Ok((above, kind))
    }

    /// Returns the name of a file, by a scan of its directory that keeps the access time.
    fn name_in(&self, directory: Ino, ino: Ino) -> FsResult<Vec<u8>> {
        let caller = Caller { keeps_atime: true, ..Caller::root() };
        let mut found = None;
        self.readdir(&caller, directory, 0, &mut |entry| {
            let is_it = entry.ino == ino && entry.name != b"." && entry.name != b"..";
            found = is_it.then(|| entry.name.clone());
            found.is_none()
        })?;
        found.ok_or(FsError::NotFound)
    }

    /// Drops `count` references.
    fn forget(&self, ino: Ino, count: u64);

    /// Returns the attributes.
    fn getattr(&self, caller: &Caller, ino: Ino) -> FsResult<Attr>;

    /// Returns permissions, as access(2) does. Read-only files and directories are not writable.
    /// The superuser may execute a file with any execute bit. With [`PermissionChecks::ByKernel`]
    /// all permissions are granted, as far as the fileset is writable.
    fn access(&self, caller: &Caller, ino: Ino) -> FsResult<AccessRights>;

    /// Changes attributes, and returns them.
    fn setattr(
        &self,
        caller: &Caller,
        ino: Ino,
        change: &SetAttr,
        around: Option<&mut AttributeChange>,
    ) -> FsResult<Attr>;

    /// Creates a file, directory, device node, fifo or socket. Takes a reference.
    fn create(
        &self,
        caller: &Caller,
        parent: Ino,
        name: &[u8],
        new: NewInode,
        around: Option<&mut AttributeChange>,
    ) -> FsResult<Attr>;

    /// Creates a symbolic link to `target` (1 to [`SYMLINK_BYTES_MAX`] bytes). Takes a reference.
    fn symlink(
        &self,
        caller: &Caller,
        parent: Ino,
        name: &[u8],
        target: &[u8],
        new: NewInode,
        around: Option<&mut AttributeChange>,
    ) -> FsResult<Attr>;

    /// Returns the target of a symbolic link.
    fn readlink(&self, caller: &Caller, ino: Ino) -> FsResult<Vec<u8>>;

    /// Gives a file one more name. Takes a reference. A caller with [`PermissionChecks::Here`]
    /// needs ownership, or a regular file that it may read and write, without setuid, or setgid
    /// with group execute (`protected_hardlinks`).
    fn link(
        &self,
        caller: &Caller,
        ino: Ino,
        parent: Ino,
        name: &[u8],
        around: Option<&mut AttributeChange>,
    ) -> FsResult<Attr>;

    /// Removes a name of a file other than a directory.
    fn unlink(
        &self,
        caller: &Caller,
        parent: Ino,
        name: &[u8],
        around: Option<&mut AttributeChange>,
    ) -> FsResult<()>;

    /// Removes an empty directory.
    fn rmdir(
        &self,
        caller: &Caller,
        parent: Ino,
        name: &[u8],
        around: Option<&mut AttributeChange>,
    ) -> FsResult<()>;

    /// Moves a name. `around` is filled in for the source and the target directory.
    fn rename(
        &self,
        caller: &Caller,
        source: (Ino, &[u8]),
        target: (Ino, &[u8]),
        mode: RenameMode,
        around: Option<&mut [AttributeChange; 2]>,
    ) -> FsResult<()>;

    /// Appends up to `length_bytes` from `offset` to `into`. Returns the count: less only at the
    /// end of the file.
    fn read(
        &self,
        caller: &Caller,
        ino: Ino,
        offset: u64,
        length_bytes: usize,
        into: &mut Vec<u8>,
    ) -> FsResult<usize>;

    /// Performs several reads, and calls `told` once for each, with its index. Device reads are
    /// issued together, and each reported as soon as possible.
    fn read_each(&self, asked: &[FileReadRequest<'_>], told: &mut ReadCallback<'_>) {
        for (index, asked) in asked.iter().enumerate() {
            let FileReadRequest { caller, ino, offset, length_bytes } = asked;
            let mut bytes = Vec::new();
            let read = self.read(caller, *ino, *offset, *length_bytes, &mut bytes);
            let whole = [&bytes[..]];
            told(index, read.map(|_| &whole[..]));
        }
    }

    /// Writes all of `data` at `offset`. After an error a prefix of `data` may be written.
    fn write(&self, caller: &Caller, ino: Ino, offset: u64, data: &[u8]) -> FsResult<()> {
        let (mut at, mut rest) = (offset, data);
        loop {
            let lent = WriteData::Lent(rest);
            let count = self.write_some(caller, ino, at, &lent, Stability::Unstable, None)?;
            rest = &rest[count..];
            at = at.saturating_add(u64::try_from(count).expect("64 bits"));
            if rest.is_empty() {
                return Ok(());
            }
        }
    }

    /// Writes `data` at `offset`, and returns the count, above 0 unless `data` is empty. If fewer
    /// bytes are written than given, a call for the others returns the error. Clears setuid and
    /// setgid if [`Caller::loses_set_bits`].
    fn write_some(
        &self,
        caller: &Caller,
        ino: Ino,
        offset: u64,
        data: &WriteData<'_>,
        stability: Stability,
        around: Option<&mut AttributeChange>,
    ) -> FsResult<usize>;

    /// Runs deferred work, to be called after a reply. Optional; the next request reports errors.
    fn run_deferred_work(&self) {}

    /// Whether there is deferred work, by a cheap check.
    fn has_deferred_work(&self) -> bool {
        false
    }

    /// Calls `each` for the names after `cookie` (0 for all, beginning with `.` and `..`), by
    /// rising cookie, until it returns `false`. Not an atomic view.
    fn readdir(
        &self,
        caller: &Caller,
        ino: Ino,
        cookie: u64,
        each: &mut dyn FnMut(&DirEntry) -> bool,
    ) -> FsResult<()>;

    /// [`FileSystem::readdir`] with the attributes and references of [`FileSystem::lookup`], but no
    /// reference if `each` returns `false`. There are no attributes for `.`, `..`, names that may
    /// not be looked up, and unreadable files: a lookup returns the error.
    fn readdir_plus(
        &self,
        caller: &Caller,
        ino: Ino,
        cookie: u64,
        each: &mut dyn FnMut(&DirEntry, Option<&Attr>) -> bool,
    ) -> FsResult<()> {
        let mut after = cookie;
        loop {
            let mut names = Vec::with_capacity(LISTED_TOGETHER);
            self.readdir(caller, ino, after, &mut |entry| {
                names.push(entry.clone());
                names.len() < LISTED_TOGETHER
            })?;
            let is_end = names.len() < LISTED_TOGETHER;
            // Not within the callback: `readdir` may hold a lock that a lookup needs.
            for entry in names {
                after = entry.cookie;
                let is_dot = entry.name == b"." || entry.name == b"..";
                let found = (!is_dot).then(|| self.lookup(caller, ino, &entry.name).ok()).flatten();
                if !each(&entry, found.as_ref()) {
                    found.inspect(|attr| self.forget(attr.ino, 1));
                    return Ok(());
                }
            }
            if is_end {
                return Ok(());
            }
        }
    }

    /// Returns a number that is constant while cookies are valid. A caller compares it before it
    /// uses a cookie that it has saved.
    fn cookie_verifier(&self, caller: &Caller, ino: Ino) -> FsResult<u64>;

    /// Returns an extended attribute; `name` has its prefix (`user.`, `trusted.`, `security.`,
    /// `system.posix_acl_access`, `system.posix_acl_default`).
    fn getxattr(&self, caller: &Caller, ino: Ino, name: &[u8]) -> FsResult<Vec<u8>>;

    /// Sets an extended attribute. Access lists have the form of `linux/posix_acl_xattr.h`.
    fn setxattr(
        &self,
        caller: &Caller,
        ino: Ino,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
        around: Option<&mut AttributeChange>,
    ) -> FsResult<()>;

    /// Returns the visible extended attributes.
    fn listxattr(&self, caller: &Caller, ino: Ino) -> FsResult<Vec<Vec<u8>>>;

    /// Removes an extended attribute.
    fn removexattr(
        &self,
        caller: &Caller,
        ino: Ino,
        name: &[u8],
        around: Option<&mut AttributeChange>,
    ) -> FsResult<()>;

    /// Links a file at `name` in place of an existing file, atomically also over a crash. Without
    /// an existing file it is [`FileSystem::link`]. Never replaces a directory. Takes a reference.
    fn link_over(&self, _caller: &Caller, _ino: Ino, _parent: Ino, _name: &[u8]) -> FsResult<Attr> {
        Err(FsError::NotSupported)
    }

    /// Creates an unlinked regular file (`O_TMPFILE`), to which [`FileSystem::link`] may give a
    /// name. Takes a reference.
    fn tmpfile(&self, caller: &Caller, parent: Ino, new: NewInode) -> FsResult<Attr>;

    /// Reserves, frees or shifts the space of `length_bytes` from `offset`.
    fn fallocate(
        &self,
        caller: &Caller,
        ino: Ino,
        offset: u64,
        length_bytes: u64,
        mode: Fallocate,
    ) -> FsResult<()>;

    /// Returns the first offset from `offset` on that is data or a hole, as `what` requests.
    /// [`FsError::NoSuchOffset`] past the end, and for [`Seek::Data`] if only holes follow.
    fn seek(&self, caller: &Caller, ino: Ino, offset: u64, what: Seek) -> FsResult<u64>;

    /// Copies up to `length_bytes` from `source` to `target` (inode, offset) inside the server.
    /// Returns the count: less at the end of the source, after [`COPY_BYTES_MAX`], or before an
    /// error.
    fn copy_range(
        &self,
        caller: &Caller,
        source: (Ino, u64),
        target: (Ino, u64),
        length_bytes: u64,
    ) -> FsResult<u64>;

    /// Makes earlier changes of the inode durable: content, attributes, and all its names.
    fn fsync(&self, caller: &Caller, ino: Ino, data_only: bool) -> FsResult<()>;

    /// [`FileSystem::fsync`] with a completion callback, called before the return, or later by
    /// another call's thread. So a server does not block a thread per sync; but one thread may be
    /// kept as commit leader.
    fn commit_then(&self, caller: &Caller, ino: Ino, data_only: bool, completion: Completion) {
        completion(self.fsync(caller, ino, data_only));
    }

    /// [`FileSystem::commit_then`] for several files, in shared log writes where possible. All of
    /// them are submitted before this thread may become commit leader.
    fn commit_each(&self, caller: &Caller, files: Vec<(Ino, Completion)>) {
        for (ino, completion) in files {
            completion(self.fsync(caller, ino, false));
        }
    }

    /// Makes all accepted changes durable.
    fn sync(&self) -> FsResult<()>;

    /// Returns sizes and counts of a fileset, or [`FsError::Stale`].
    fn statfs(&self, caller: &Caller, fileset: FilesetUuid) -> FsResult<StatFs>;
}
