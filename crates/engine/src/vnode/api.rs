//! The vnode interface: every operation a front end may ask for.
//!
//! Front ends and the reference model of the tests speak only this. An operation is atomic: after
//! a crash it happened or it did not, but for [`FileSystem::write`], whose bytes may survive block
//! by block until an fsync.
//!
//! Names are bytes (1 to 255, no `/`, no NUL); `.` and `..` are never passed as names to change.
//!
//! Whatever reads or changes a file says for whom ([`Caller`]), and a caller who is to be checked
//! is checked at each call, under the lock of what the call does: there is no open file that would
//! remember a permission. Names and attributes need what path_resolution(7) and the manual of each
//! system call say. Content needs what open(2) would ask: permission to read for
//! [`FileSystem::read`], [`FileSystem::readdir`], [`FileSystem::seek`] and the source of
//! [`FileSystem::copy_range`], to write for [`FileSystem::write`], [`FileSystem::fallocate`] and
//! the target of a copy, and either for [`FileSystem::fsync`]. As at an open, the kind of the file
//! comes first (a directory is no file to read), then the permission, then what is asked.
//!
//! Long: it is one interface, and each operation says what it promises.

use std::ops::Deref;

pub use crate::error::{Completion, FilePart, FsError, FsResult};
pub use format::hash::siphash24;
pub use runtime::clock::Timestamp;
pub use storage::device::{AlignedBuffer, SharedBytes};

/// Longest name of a dirent, in bytes.
pub const NAME_BYTES_MAX: usize = 255;
/// Why a clone is not deleted while another of its family is being freed.
pub const ANOTHER_IS_FREED: &str = "another one is being freed: try again when that is done";
/// Most names a file may have (`EMLINK` at the next); directories past it report 1.
pub const LINKS_MAX: u32 = 65_535;
/// Longest target of a symbolic link, in bytes (Linux: PATH_MAX with its NUL).
pub const SYMLINK_BYTES_MAX: usize = 4095;
/// Most bytes that one [`FileSystem::copy_range`] copies.
pub const COPY_BYTES_MAX: u64 = 8 << 20;
/// Names that [`FileSystem::readdir_plus`] fetches before it looks them up, where a file system has
/// nothing better.
const LISTED_TOGETHER: usize = 64;
/// Largest file, in bytes.
pub const FILE_BYTES_MAX: u64 = i64::MAX.unsigned_abs();

/// Bits of an inode number that are the anode's.
pub(super) const ANODE_BITS: u32 = 40;

/// Number of an inode, unique in the pool and the same after every restart: slot (24 bits) and
/// anode number (40 bits).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ino(pub u64);

/// Anode number that no file is given, the last: that of the directory of a fileset's clones.
const CLONES_NUMBER: u64 = (1 << ANODE_BITS) - 1;
const _: () = assert!(format::ids::ANODES_MAX - 1 == CLONES_NUMBER);

impl Ino {
    /// Whether it is the directory of a fileset's clones.
    #[must_use]
    pub fn is_clones_directory(self) -> bool {
        self.0 & CLONES_NUMBER == CLONES_NUMBER
    }

    /// Returns the directory of the clones of the fileset in a slot.
    pub(crate) fn clones_of_slot(slot: u32) -> Ino {
        Ino(u64::from(slot) << ANODE_BITS | CLONES_NUMBER)
    }

    /// Returns the root directory of the fileset in a slot.
    #[must_use]
    pub fn root_of_slot(slot: u32) -> Ino {
        Ino(u64::from(slot) << ANODE_BITS | format::anode::ROOT_ANODE.0)
    }

    /// Returns the inode that has the same number in the fileset in another slot.
    #[must_use]
    pub fn in_slot(self, slot: u32) -> Ino {
        Ino(u64::from(slot) << ANODE_BITS | self.0 & CLONES_NUMBER)
    }

    /// Returns its number in its fileset.
    pub(crate) fn anode(self) -> format::ids::AnodeNo {
        format::ids::AnodeNo(self.0 & CLONES_NUMBER)
    }

    /// Returns the slot of the fileset that the inode is in.
    #[must_use]
    pub fn slot(self) -> u32 {
        u32::try_from(self.0 >> ANODE_BITS).expect("24 bits are left")
    }
}

/// Identity of a fileset: 128 bits that no other fileset has, of this pool or of another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FilesetUuid(pub u128);

/// Names an inode for ever, over restarts and to whoever kept it: an [`Ino`] does so only while
/// somebody holds a reference, for numbers are used again. [`FileSystem::resolve`] makes an inode
/// of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Handle {
    /// The fileset that the inode is in.
    pub fileset: FilesetUuid,
    /// Its number.
    pub ino: Ino,
    /// Its age, as [`Attr::generation`] tells it.
    pub generation: u64,
}

/// What sort of file an inode is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FileKind {
    /// Bytes.
    Regular,
    /// Names.
    Directory,
    /// A path to follow.
    Symlink,
    /// A block device.
    BlockDevice,
    /// A character device.
    CharDevice,
    /// A named pipe.
    Fifo,
    /// A socket.
    Socket,
}

/// What a write brings.
#[derive(Clone, Debug)]
pub enum Data<'d> {
    /// Bytes for as long as the call takes.
    Lent(&'d [u8]),
    /// Bytes that the file system may keep as long as it likes and in which nobody changes
    /// anything: it saves a copy of what is long and lies at blocks of the file.
    Shared(SharedBytes),
}

impl Deref for Data<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Data::Lent(bytes) => bytes,
            Data::Shared(bytes) => bytes,
        }
    }
}

/// What stat(2) tells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attr {
    /// Number of the inode.
    pub ino: Ino,
    /// Age of the inode: differs when a number is used again.
    pub generation: u64,
    /// What sort of file.
    pub kind: FileKind,
    /// Permission bits with setuid, setgid and sticky: 12 bits.
    pub mode: u16,
    /// Names.
    pub nlink: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// The project that it counts for, where projects are counted; 0: none.
    pub project: u32,
    /// Device number of a device node, as Linux packs it.
    pub rdev: u32,
    /// Bytes; of a directory, bytes of its pages; of a symbolic link, bytes of its target.
    pub size_bytes: u64,
    /// Space taken, in units of 512 bytes.
    pub blocks_512: u64,
    /// Whether `blocks_512` may change though nobody asks for anything: what is not stored yet may
    /// turn out to need pages of the map.
    pub blocks_may_change: bool,
    /// Last read.
    pub atime: Timestamp,
    /// Last change of content.
    pub mtime: Timestamp,
    /// Last change of anything.
    pub ctime: Timestamp,
    /// Creation.
    pub btime: Timestamp,
}

impl Attr {
    /// Returns what names this inode, which is in `fileset` and in no clone of it, for ever; of
    /// others [`FileSystem::handle_of`] knows.
    #[must_use]
    pub fn handle(&self, fileset: FilesetUuid) -> Handle {
        Handle { fileset, ino: self.ino, generation: self.generation }
    }
}

/// Who checks what a [`Caller`] may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Checks {
    /// The file system, at each call and for everything.
    Here,
    /// The kernel, before it asked: a FUSE mount with `default_permissions`. Nothing is refused
    /// here for want of permission.
    ByKernel,
}

/// Who asks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caller {
    /// File-system user id.
    pub uid: u32,
    /// File-system group id.
    pub gid: u32,
    /// Supplementary groups.
    pub groups: Vec<u32>,
    /// Who sees to it that this caller does only what it may.
    pub checks: Checks,
    /// Whether a write or a truncate takes setuid and setgid away: it has no `CAP_FSETID`. Of one
    /// that a kernel has checked, also whether an access list does: it is not of the file's group.
    pub loses_set_bits: bool,
    /// Whether what it reads and lists keeps its access time (`O_NOATIME`).
    pub keeps_atime: bool,
    /// Whether a kernel writes back, of nobody knows whom: limits hold unless root owns the file.
    pub writes_back: bool,
}

impl Caller {
    /// Returns a caller whose permissions are checked here.
    #[must_use]
    pub const fn checked(uid: u32, gid: u32, groups: Vec<u32>) -> Caller {
        let (checks, loses_set_bits) = (Checks::Here, uid != 0);
        Caller { uid, gid, groups, checks, loses_set_bits, keeps_atime: false, writes_back: false }
    }

    /// Returns a caller whose permissions a kernel has checked before it asked.
    #[must_use]
    pub const fn checked_by_kernel(uid: u32, gid: u32) -> Caller {
        let mut caller = Caller::checked(uid, gid, Vec::new());
        caller.checks = Checks::ByKernel;
        caller
    }

    /// The superuser, to whom no file is closed.
    #[must_use]
    pub const fn root() -> Caller {
        Caller::checked(0, 0, Vec::new())
    }
}

/// What a caller may do with a file; see [`FileSystem::access`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Access {
    /// Read its content, or list its names.
    pub reads: bool,
    /// Change its content, or add and remove names. In a sticky directory the file may say no.
    pub writes: bool,
    /// Execute it, or look names up in it.
    pub executes: bool,
}

/// Attributes around a change, taken under the locks of the change: nobody else's change is between
/// them. A caller who wants them hands one in; who does not pays nothing. After an error, and of a
/// change that had nothing to do, they are not to be used.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Around {
    /// As they were before.
    pub before: Option<Attr>,
    /// As the change has left them.
    pub after: Option<Attr>,
}

/// When a write is to be durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stability {
    /// With the next sync, or by age.
    Unstable,
    /// When the call returns, as by [`FileSystem::fsync`]. Whoever must not wait writes unstably
    /// and asks for [`FileSystem::commit_then`].
    Durable,
}

/// What a new inode is born with, in the transaction that makes it. [`NewInode::new`] says only
/// what must be said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NewInode {
    /// What sort of file; [`FileKind::Symlink`] only through [`FileSystem::symlink`].
    pub kind: FileKind,
    /// Permission bits as they are asked for: 12 bits.
    pub mode: u16,
    /// Permission bits that the caller withholds: taken off `mode`, unless the directory has a
    /// default access list, which decides in its place. 0 where somebody above has applied it.
    pub umask: u16,
    /// Device number, for device nodes; else 0.
    pub rdev: u32,
    /// Owner; `None`: the caller. A caller who is checked may say what chown(2) would let him.
    pub uid: Option<u32>,
    /// Group; `None`: the caller's, or the directory's if that hands it down.
    pub gid: Option<u32>,
    /// Access time; `None`: now.
    pub atime: Option<SetTime>,
    /// Modification time; `None`: now.
    pub mtime: Option<SetTime>,
    /// Of an exclusive creation: a number that the asker has made up for this one request. Where
    /// the name is there already, as a file that was made with the same number and not changed
    /// since, the request is one that was asked twice, and is answered as it was the first time.
    /// Only for [`FileKind::Regular`], and kept in both times, which can't be given with it.
    pub verifier: Option<u64>,
}

impl NewInode {
    /// A symbolic link.
    pub const SYMLINK: NewInode = NewInode::new(FileKind::Symlink, 0o777);

    /// Returns a new inode of the caller, made now.
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

    /// Returns access and modification time of a file that is made with `verifier`.
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
    /// The time of the server's clock.
    Now,
    /// This time.
    To(Timestamp),
}

/// Attributes to change; `None` leaves one as it is. A change of none is what Linux makes of a
/// chown(2) that names neither owner nor group: it sets ctime, and takes setuid and setgid away
/// where the owner or the superuser asks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SetAttr {
    /// Permission bits: 12 bits.
    pub mode: Option<u16>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// The project that it counts for: only who is exempt from limits may set it. A directory
    /// hands it to what is made in it.
    pub project: Option<u32>,
    /// Truncate, or extend with a hole.
    pub size_bytes: Option<u64>,
    /// Access time.
    pub atime: Option<SetTime>,
    /// Modification time.
    pub mtime: Option<SetTime>,
    /// Change time, when a kernel that caches writes says it; normally `None`: now.
    pub ctime: Option<Timestamp>,
}

/// How rename(2) treats a target that is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RenameMode {
    /// Replace it.
    Replace,
    /// Fail with [`FsError::Exists`] (`RENAME_NOREPLACE`).
    NoReplace,
    /// Both must exist and change places (`RENAME_EXCHANGE`).
    Exchange,
    /// Replace it, and leave a whiteout at the source (`RENAME_WHITEOUT`): a character device of
    /// number 0 and mode 0, by which a layered file system says that nothing below shows through.
    Whiteout,
    /// Leave a whiteout, but fail with [`FsError::Exists`] (both flags).
    WhiteoutNoReplace,
}

impl RenameMode {
    /// Whether a target that is there makes the rename fail.
    #[must_use]
    pub fn keeps_target(self) -> bool {
        matches!(self, RenameMode::NoReplace | RenameMode::WhiteoutNoReplace)
    }

    /// Whether the source name stays, and leads to a whiteout.
    #[must_use]
    pub fn leaves_whiteout(self) -> bool {
        matches!(self, RenameMode::Whiteout | RenameMode::WhiteoutNoReplace)
    }
}

/// What [`RenameMode::Whiteout`] leaves behind.
pub const WHITEOUT: NewInode = NewInode::new(FileKind::CharDevice, 0);

/// Whether setxattr(2) may make an attribute, or replace one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum XattrMode {
    /// Either.
    Set,
    /// Fail with [`FsError::Exists`] where it is there (`XATTR_CREATE`).
    Create,
    /// Fail with [`FsError::NoAttribute`] where it is not there (`XATTR_REPLACE`).
    Replace,
    /// Fail as the one or as the other: nothing can be both new and replaced. An access list is
    /// set, for Linux passes no flags on with one.
    CreateAndReplace,
}

/// What fallocate(2) does with a range of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fallocate {
    /// Takes space, so that a later write there finds some; extends the file unless `keep_size`.
    Allocate {
        /// `FALLOC_FL_KEEP_SIZE`.
        keep_size: bool,
    },
    /// Gives the space back; reads as zeros. Never changes the size.
    PunchHole,
    /// Reads as zeros; extends the file unless `keep_size`.
    ZeroRange {
        /// `FALLOC_FL_KEEP_SIZE`.
        keep_size: bool,
    },
    /// Takes whole blocks out of the file, and closes the gap.
    CollapseRange,
    /// Makes a hole of whole blocks, and moves what is behind it.
    InsertRange,
}

/// One of several reads that are asked for at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadAsked<'c> {
    /// For whom.
    pub caller: &'c Caller,
    /// The file.
    pub ino: Ino,
    /// First byte.
    pub offset: u64,
    /// Most bytes.
    pub length_bytes: usize,
}

/// Is told what came of a read: its number, and the bytes as pieces that follow one another, or why
/// there are none.
pub type ReadTold<'t> = dyn FnMut(usize, FsResult<&[&[u8]]>) + 't;

/// What lseek(2) looks for from an offset on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seek {
    /// The next byte that is no hole (`SEEK_DATA`).
    Data,
    /// The next byte of a hole; the end of the file is one (`SEEK_HOLE`).
    Hole,
}

/// One name that readdir returns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirEntry {
    /// The name.
    pub name: Vec<u8>,
    /// What it names.
    pub ino: Ino,
    /// Its kind.
    pub kind: FileKind,
    /// Where to go on: pass it to [`FileSystem::readdir`] to get what comes after this entry. Stays
    /// valid while other entries come and go, and after a restart. Never 0; fits in 63 bits.
    pub cookie: u64,
}

/// What statfs(2) tells, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StatFs {
    /// Preferred unit of I/O.
    pub block_bytes: u32,
    /// Unit of allocation; every total below is a multiple.
    pub fragment_bytes: u32,
    /// Space for data altogether.
    pub total_bytes: u64,
    /// Space not used.
    pub free_bytes: u64,
    /// Space that can really be written.
    pub available_bytes: u64,
    /// Inodes in use.
    pub inode_count: u64,
    /// Inodes that could still be made.
    pub inodes_free: u64,
}

/// Every operation a front end may ask for.
///
/// What is one transaction, and a write, tells attributes around it ([`Around`]) to whoever asks:
/// of a name, those of its directory; else those of the file.
///
/// `lookup`, `resolve`, `create`, `symlink`, `link` and `tmpfile` each give the caller one
/// *reference* on the inode they return; [`FileSystem::forget`] gives references back. An inode
/// without a name lives as long as somebody holds a reference.
pub trait FileSystem: Send + Sync {
    /// The fileset that a front end serves unless it is told of another.
    fn main_fileset(&self) -> FilesetUuid;

    /// Number of the main fileset's root directory, on which no references are counted.
    fn root(&self) -> Ino;

    /// Number of the root directory of a fileset; [`FsError::Stale`] if there is none.
    fn root_of(&self, fileset: FilesetUuid) -> FsResult<Ino> {
        if fileset == self.main_fileset() { Ok(self.root()) } else { Err(FsError::Stale) }
    }

    /// A number that differs between any two openings of the pool, drawn at random. What was
    /// accepted and not made durable may be lost when it changes (NFS's write verifier).
    fn verifier(&self) -> u64;

    /// Returns the attributes of the inode that a handle names, and takes a reference on it.
    /// [`FsError::Stale`] if that inode is gone, whatever has its number now, and for one without
    /// a name that nobody holds.
    fn resolve(&self, caller: &Caller, handle: Handle) -> FsResult<Attr>;

    /// Returns the handle by which [`FileSystem::resolve`] finds an inode again that was reached
    /// from `fileset`. May be called from within any call that tells of files.
    fn handle_of(&self, attr: &Attr, fileset: FilesetUuid) -> Handle {
        attr.handle(fileset)
    }

    /// Finds `name` in `parent`. `.` and `..` are names here. Takes a reference. The attributes may
    /// be younger than the name: where it was removed meanwhile, they count one less.
    ///
    /// `.` is found in a file of any kind and is the file itself: so a handle from before a restart
    /// gets its reference.
    fn lookup(&self, caller: &Caller, parent: Ino, name: &[u8]) -> FsResult<Attr>;

    /// Returns the directory that a name of a file is in or was, of a file with many names one of
    /// them, and the file's kind; of a root itself. For who looks on: nothing else is to depend on
    /// it, and where it is not known it is an error.
    fn parent_of(&self, ino: Ino) -> FsResult<(Ino, FileKind)> {
        let kind = self.getattr(&Caller::root(), ino)?.kind;
        if kind != FileKind::Directory {
            return Err(FsError::NotSupported);
        }
        let above = self.lookup(&Caller::root(), ino, b"..")?.ino;
        self.forget(above, 1);
        Ok((above, kind))
    }

    /// Returns the name of a file in a directory. It looks through all of that, and leaves no
    /// trace.
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

    /// Gives back `count` references.
    fn forget(&self, ino: Ino, count: u64);

    /// Returns the attributes.
    fn getattr(&self, caller: &Caller, ino: Ino) -> FsResult<Attr>;

    /// Returns what the caller may do with a file, as access(2) tells it: also that nothing can be
    /// written to files and directories of a file system that takes no changes. The superuser may
    /// execute a file that anybody may. All of it where a kernel does the checks.
    fn access(&self, caller: &Caller, ino: Ino) -> FsResult<Access>;

    /// Changes attributes, and returns them.
    fn setattr(
        &self,
        caller: &Caller,
        ino: Ino,
        change: &SetAttr,
        around: Option<&mut Around>,
    ) -> FsResult<Attr>;

    /// Makes a file, directory, device node, fifo or socket. Takes a reference.
    fn create(
        &self,
        caller: &Caller,
        parent: Ino,
        name: &[u8],
        new: NewInode,
        around: Option<&mut Around>,
    ) -> FsResult<Attr>;

    /// Makes a symbolic link to `target` (1 to [`SYMLINK_BYTES_MAX`] bytes). Takes a reference.
    fn symlink(
        &self,
        caller: &Caller,
        parent: Ino,
        name: &[u8],
        target: &[u8],
        new: NewInode,
        around: Option<&mut Around>,
    ) -> FsResult<Attr>;

    /// Returns the target of a symbolic link.
    fn readlink(&self, caller: &Caller, ino: Ino) -> FsResult<Vec<u8>>;

    /// Gives a file one more name. Takes a reference. A caller that is checked here may link its
    /// own files, and of others regular ones that it may read and write and that have no setuid and
    /// no setgid with group execute: as Linux with `protected_hardlinks`.
    fn link(
        &self,
        caller: &Caller,
        ino: Ino,
        parent: Ino,
        name: &[u8],
        around: Option<&mut Around>,
    ) -> FsResult<Attr>;

    /// Removes a name that is no directory.
    fn unlink(
        &self,
        caller: &Caller,
        parent: Ino,
        name: &[u8],
        around: Option<&mut Around>,
    ) -> FsResult<()>;

    /// Removes an empty directory.
    fn rmdir(
        &self,
        caller: &Caller,
        parent: Ino,
        name: &[u8],
        around: Option<&mut Around>,
    ) -> FsResult<()>;

    /// Moves a name. `around` is of the directory that it leaves and of the one that it goes to.
    fn rename(
        &self,
        caller: &Caller,
        source: (Ino, &[u8]),
        target: (Ino, &[u8]),
        mode: RenameMode,
        around: Option<&mut [Around; 2]>,
    ) -> FsResult<()>;

    /// Reads up to `length_bytes` from `offset` and appends them to `into`; fewer only at the end
    /// of the file. Returns how many.
    fn read(
        &self,
        caller: &Caller,
        ino: Ino,
        offset: u64,
        length_bytes: usize,
        into: &mut Vec<u8>,
    ) -> FsResult<usize>;

    /// Reads what each of `asked` says, as [`FileSystem::read`] does, and tells what came of it,
    /// each by its number in `asked` and once. A file system that waits for a device waits for all
    /// at once, and tells each as soon as it can.
    fn read_each(&self, asked: &[ReadAsked<'_>], told: &mut ReadTold<'_>) {
        for (index, asked) in asked.iter().enumerate() {
            let ReadAsked { caller, ino, offset, length_bytes } = asked;
            let mut bytes = Vec::new();
            let read = self.read(caller, *ino, *offset, *length_bytes, &mut bytes);
            let whole = [&bytes[..]];
            told(index, read.map(|_| &whole[..]));
        }
    }

    /// Writes all of `data` at `offset`, extending the file. Clears setuid and setgid where POSIX
    /// asks for it of this caller ([`Caller::loses_set_bits`]). After an error the front of `data`
    /// may be written.
    fn write(&self, caller: &Caller, ino: Ino, offset: u64, data: &[u8]) -> FsResult<()>;

    /// Writes as [`FileSystem::write`] does, but returns how many bytes of `data` are written if
    /// any are: fewer than all where space ran out behind them. Whoever wants the rest written asks
    /// again, and is told why it is not.
    fn write_some(
        &self,
        caller: &Caller,
        ino: Ino,
        offset: u64,
        data: &Data<'_>,
        stability: Stability,
        around: Option<&mut Around>,
    ) -> FsResult<usize>;

    /// Does what writes and listings have put off: called after an answer has gone out, it makes
    /// the next one faster. Nothing depends on it; what fails is told to who asks next.
    fn run_deferred_work(&self) {}

    /// Returns whether [`FileSystem::run_deferred_work`] has anything to do, as far as that is
    /// known at once.
    fn has_deferred_work(&self) -> bool {
        false
    }

    /// Calls `each` for the names after `cookie` (0: from the first, which is `.`, then `..`), in
    /// order of cookies, until it returns `false` or there are no more. They are not those of one
    /// moment, while others change the directory.
    fn readdir(
        &self,
        caller: &Caller,
        ino: Ino,
        cookie: u64,
        each: &mut dyn FnMut(&DirEntry) -> bool,
    ) -> FsResult<()>;

    /// Lists as [`FileSystem::readdir`] does, with the attributes that [`FileSystem::lookup`] gives
    /// of each name, and takes a reference as that does; none for a name at which `each` returns
    /// `false`. There are no attributes of `.` and `..`, of names that the caller may not look up,
    /// and of files that can't be read: who needs them looks the name up, and learns why.
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
            // A lookup can't be made from within `readdir`, which may hold a lock.
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

    /// A number that a directory keeps as long as its cookies mean what they mean. Whoever goes on
    /// with a cookie that it kept for a client compares the number that it kept with it.
    fn cookie_verifier(&self, caller: &Caller, ino: Ino) -> FsResult<u64>;

    /// Returns the value of an extended attribute; `name` with its prefix (`user.`, `trusted.`,
    /// `security.`, `system.posix_acl_access`, `system.posix_acl_default`).
    fn getxattr(&self, caller: &Caller, ino: Ino, name: &[u8]) -> FsResult<Vec<u8>>;

    /// Sets an extended attribute. Access lists come in the form of `linux/posix_acl_xattr.h`.
    fn setxattr(
        &self,
        caller: &Caller,
        ino: Ino,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
        around: Option<&mut Around>,
    ) -> FsResult<()>;

    /// Returns the names of all extended attributes that the caller may see.
    fn listxattr(&self, caller: &Caller, ino: Ino) -> FsResult<Vec<Vec<u8>>>;

    /// Removes an extended attribute.
    fn removexattr(
        &self,
        caller: &Caller,
        ino: Ino,
        name: &[u8],
        around: Option<&mut Around>,
    ) -> FsResult<()>;

    /// Gives a file a name in the place of what has it, in one transaction: whoever looks sees one
    /// or the other, and so does the open after a crash. Where nothing has the name it is
    /// [`FileSystem::link`]; a directory is never replaced. Takes a reference.
    fn link_over(&self, _caller: &Caller, _ino: Ino, _parent: Ino, _name: &[u8]) -> FsResult<Attr> {
        Err(FsError::NotSupported)
    }

    /// Makes a regular file without a name (`O_TMPFILE`), which [`FileSystem::link`] may give its
    /// first. Takes a reference.
    fn tmpfile(&self, caller: &Caller, parent: Ino, new: NewInode) -> FsResult<Attr>;

    /// Takes or gives back the space of `length_bytes` from `offset`.
    fn fallocate(
        &self,
        caller: &Caller,
        ino: Ino,
        offset: u64,
        length_bytes: u64,
        mode: Fallocate,
    ) -> FsResult<()>;

    /// Returns the offset of what is sought, at `offset` or after it. At or past the end of the
    /// file, and for [`Seek::Data`] where only holes follow: [`FsError::NoSuchOffset`].
    fn seek(&self, caller: &Caller, ino: Ino, offset: u64, what: Seek) -> FsResult<u64>;

    /// Copies up to `length_bytes` from `source` to `target` (inode, offset) inside the server.
    /// Returns how many; fewer at the end of the source, and whenever it took long enough.
    fn copy_range(
        &self,
        caller: &Caller,
        source: (Ino, u64),
        target: (Ino, u64),
        length_bytes: u64,
    ) -> FsResult<u64>;

    /// Makes what was done to this inode durable: its content, its attributes, and, for what was
    /// done before through any name, its names.
    fn fsync(&self, caller: &Caller, ino: Ino, data_only: bool) -> FsResult<()>;

    /// Makes durable what [`FileSystem::fsync`] does, and tells `completion` how that ended: before
    /// this returns, or later, from the thread of another call. So whoever serves many need not
    /// wait; one of its threads may be kept for the syncs of all, as long as there are any.
    fn commit_then(&self, caller: &Caller, ino: Ino, data_only: bool, completion: Completion) {
        completion(self.fsync(caller, ino, data_only));
    }

    /// Does what [`FileSystem::commit_then`] does for each of `files`. Those that can share a write
    /// do, and none waits for the thread that this one may be kept as.
    fn commit_each(&self, caller: &Caller, files: Vec<(Ino, Completion)>) {
        for (ino, completion) in files {
            completion(self.fsync(caller, ino, false));
        }
    }

    /// Makes everything accepted so far durable.
    fn sync(&self) -> FsResult<()>;

    /// Returns sizes and counts of a fileset; [`FsError::Stale`] if there is none.
    fn statfs(&self, caller: &Caller, fileset: FilesetUuid) -> FsResult<StatFs>;
}
