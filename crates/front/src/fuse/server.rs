//! Execution of FUSE requests, each usually as one vnode operation.
//!
//! A [`FuseServer`] holds the file system, the translation of node ids, and the settings that a
//! remount changes. There is no other state, so any thread may answer any request.
//!
//! # Concurrency
//!
//! [`FuseServer::answer`] may be called from any number of threads. The file system orders
//! operations.
//!
//! Not here: the wire format (`kernel.rs`), and permission checks. The kernel does them (FU4), or
//! the file system for a per-user mount ([`FuseServer::acting_as`]).

mod listing;
mod locks;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use engine::api::{
    Attr, Caller, FileKind, FileReadRequest, FileSystem, FilesetUuid, FsError, FsResult, Ino,
    NewInode, SetAttr, Stability, StatFs, WriteData, XattrMode,
};
use rustix::io::Errno;

pub(super) use self::locks::LockNotice;
use self::locks::MountLocks;
use super::counts::FuseCounts;
use super::given::ReferencedInodes;
use super::options::{DIRECT_IO_MARK, DirectIo};
use super::protocol::{
    Declined, FuseNode, FuseRequest, NewNode, NodeId, NodeNumbers, ReadRequest, Reply, Sender,
};
use super::small;
use super::switches::Switches;
use crate::failure::log_failure;
use crate::shared::Viewer;

/// Most data of one READ or WRITE: the kernel's limit at the default sysctl (256 pages of 4 KiB).
pub(super) const REQUEST_BYTES_MAX: u32 = 1 << 20;

/// Most bytes per copy with a 32-bit count, a multiple of every block size.
const COPIED_BYTES_MAX: u32 = 1 << 31;

/// The access ACL (acl(5)).
const ACCESS_LIST: &[u8] = b"system.posix_acl_access";

/// Credentials for reads and syncs. The kernel has checked permissions, and may combine requests of
/// several users.
static KERNEL: Caller = Caller::checked_by_kernel(0, 0);

/// [`KERNEL`] without updates of access times.
static KERNEL_UNSEEN: Caller = {
    let mut caller = Caller::checked_by_kernel(0, 0);
    caller.keeps_atime = true;
    caller
};

const SET_BITS: u16 = 0o6000;

struct ActingUser {
    caller: Caller,
    unseen: Caller,
    given: ReferencedInodes,
}

/// Receiver of read results: the index of the read, and its data in consecutive pieces or an error.
pub type ReadReceiver<'t> = dyn FnMut(usize, Result<&[&[u8]], Errno>) + 't;

/// Executes requests on a [`FileSystem`].
pub struct FuseServer {
    fs: Arc<dyn FileSystem>,
    fileset: FilesetUuid,
    numbers: NodeNumbers,
    has_xattrs: bool,
    has_acls: bool,
    answered: AtomicU64,
    counts: Arc<FuseCounts>,
    direct_io: DirectIo,
    /// Changes by other fronts. `None` if the mount is not shared.
    viewer: Option<Arc<Viewer>>,
    /// Credentials of a per-user mount. `None` for the kernel's.
    acting: Option<ActingUser>,
    /// Locks of a shared mount. `None` if the kernel keeps them.
    locks: Option<MountLocks>,
    switches: Arc<Switches>,
    has_small_numbers: bool,
}

impl FuseServer {
    /// Returns a server of the main fileset of `fs`.
    #[must_use]
    pub fn new(fs: Arc<dyn FileSystem>) -> FuseServer {
        let (fileset, root) = (fs.main_fileset(), fs.root());
        FuseServer::at(fs, fileset, root)
    }

    /// Returns a server of a fileset of `fs`. The caller holds the fileset.
    pub fn of(fs: Arc<dyn FileSystem>, fileset: FilesetUuid) -> Result<FuseServer, FsError> {
        let root = fs.root_of(fileset)?;
        Ok(FuseServer::at(fs, fileset, root))
    }

    fn at(fs: Arc<dyn FileSystem>, fileset: FilesetUuid, root: Ino) -> FuseServer {
        let is_there = |error| error != FsError::NotSupported;
        let has_xattrs = fs.listxattr(&Caller::root(), root).err().is_none_or(is_there);
        let asked = fs.getxattr(&Caller::root(), root, ACCESS_LIST);
        let has_acls = has_xattrs && asked.err().is_none_or(is_there);
        let (numbers, answered) = (NodeNumbers::new(root), AtomicU64::new(0));
        let (viewer, acting) = (None, None);
        let direct_io = DirectIo::Asked;
        let counts = Arc::default();
        FuseServer {
            numbers,
            fs,
            fileset,
            has_xattrs,
            has_acls,
            answered,
            counts,
            direct_io,
            viewer,
            acting,
            locks: None,
            switches: Arc::default(),
            has_small_numbers: false,
        }
    }

    /// Makes this a per-user mount. A mounter in a user namespace controls the credentials in
    /// requests, so all run as one user with checked permissions. Device nodes, setuid and setgid
    /// programs are refused, and only named inodes are served (GN1).
    #[must_use]
    pub fn acting_as(self, uid: u32, gid: u32, groups: Vec<u32>) -> FuseServer {
        let caller = Caller::checked(uid, gid, groups);
        let mut unseen = caller.clone();
        unseen.keeps_atime = true;
        let given = ReferencedInodes::new(&self.fs, self.numbers);
        FuseServer { acting: Some(ActingUser { caller, unseen, given }), ..self }
    }

    /// Makes this a shared mount (FU7). `viewer` gets the changes by other fronts.
    #[must_use]
    pub fn shared(self, viewer: Arc<Viewer>) -> FuseServer {
        FuseServer { viewer: Some(viewer), ..self }
    }

    /// Returns the viewer of changes by other fronts. `None` if the mount is not shared.
    #[must_use]
    pub fn viewer(&self) -> Option<&Arc<Viewer>> {
        self.viewer.as_ref()
    }

    /// Returns the node id of an inode.
    #[must_use]
    pub fn node_id(&self, ino: Ino) -> NodeId {
        self.numbers.node_of(ino)
    }

    /// Sets which files use direct I/O.
    #[must_use]
    pub fn with_direct_io(self, direct_io: DirectIo) -> FuseServer {
        FuseServer { direct_io, ..self }
    }

    /// Limits inode numbers to 32 bits and cookies to 31 (SN1, SN2).
    #[must_use]
    pub fn with_small_numbers(self) -> FuseServer {
        FuseServer { has_small_numbers: true, ..self }
    }

    /// Disables extended attributes, and so ACLs, whatever the file system has.
    #[must_use]
    pub fn without_xattrs(self) -> FuseServer {
        FuseServer { has_xattrs: false, has_acls: false, ..self }
    }

    /// Keeps reads from updating access times: all (`of_all`), or listings of directories only.
    #[must_use]
    pub fn keeping_atime(self, of_all: bool, of_directories: bool) -> FuseServer {
        self.switches.set_atime(of_all, of_directories);
        self
    }

    pub(super) fn has_acls(&self) -> bool {
        self.has_acls
    }

    pub(super) fn count_answered(&self, messages: u64) {
        self.answered.fetch_add(messages, Ordering::Relaxed);
    }

    pub(super) fn answered(&self) -> u64 {
        self.answered.load(Ordering::Relaxed)
    }

    /// Returns the request counters.
    #[must_use]
    pub fn counts(&self) -> &Arc<FuseCounts> {
        &self.counts
    }

    pub(super) fn switches(&self) -> &Arc<Switches> {
        &self.switches
    }

    pub(super) fn run_deferred_work(&self) {
        self.fs.run_deferred_work();
    }

    pub(super) fn has_deferred_work(&self) -> bool {
        self.fs.has_deferred_work()
    }

    pub(super) fn stat_fs(&self) -> Result<StatFs, FsError> {
        self.fs.statfs(&KERNEL, self.fileset)
    }

    /// Executes `request`. Data of variable size is put into `scratch`, after clearing it.
    pub fn answer<'s>(
        &self,
        sender: Sender,
        request: FuseRequest<'_>,
        scratch: &'s mut Vec<u8>,
    ) -> Reply<'s> {
        // The kernel requests clearing of setuid and setgid with writes and truncates, but not with
        // fallocate(2) and copy_file_range(2).
        let mut caller = match &self.acting {
            None => Caller::checked_by_kernel(sender.uid, sender.gid),
            Some(acting) if !acting.given.has_all_of(&request) => {
                return Reply::Error(Errno::STALE);
            }
            Some(acting) if request.takes_reference() && acting.given.is_full() => {
                return Reply::Error(Errno::NFILE);
            }
            Some(acting) if self.gives_rights(acting, &request) => {
                return Reply::Error(Errno::PERM);
            }
            Some(acting) => acting.caller.clone(),
        };
        if self.switches.refuses(&request) {
            return Reply::Error(Errno::ROFS);
        }
        caller.keeps_atime = self.switches.keeps_atime();
        let reply = self.dispatch(&caller, sender.thread, request, scratch);
        let reply = if self.has_small_numbers { self.with_small_number(reply) } else { reply };
        if let (Some(given), Ok(Reply::Entry(node) | Reply::Created { node, .. })) =
            (self.given(), &reply)
        {
            given.add(node.id);
        }
        reply.unwrap_or_else(Reply::Error)
    }

    /// SN1: refuses a file with a large number, and releases its reference.
    fn with_small_number<'s>(&self, reply: Result<Reply<'s>, Errno>) -> Result<Reply<'s>, Errno> {
        let Ok(Reply::Entry(node) | Reply::Created { node, .. }) = &reply else { return reply };
        if small::is_small(node.id) {
            return reply;
        }
        let ino = self.numbers.ino_of(node.id);
        tracing::warn!(number = node.id.0, "a mount with -o inode32 has no number for a file");
        self.fs.forget(ino, 1);
        Err(Errno::OVERFLOW)
    }

    fn given(&self) -> Option<&ReferencedInodes> {
        self.acting.as_ref().map(|acting| &acting.given)
    }

    pub(super) fn is_of_one_user(&self) -> bool {
        self.acting.is_some()
    }

    /// Returns whether the request would create a device node, or a setuid or setgid program.
    #[allow(clippy::wildcard_enum_match_arm, reason = "no other request makes or sets a mode")]
    fn gives_rights(&self, acting: &ActingUser, request: &FuseRequest<'_>) -> bool {
        match request {
            FuseRequest::MakeNode { kind, new, .. } => match kind {
                FileKind::CharDevice | FileKind::BlockDevice => true,
                FileKind::Directory => false,
                _ => new.mode & SET_BITS != 0,
            },
            FuseRequest::Create { new, .. } | FuseRequest::Tmpfile { new, .. } => {
                new.mode & SET_BITS != 0
            }
            FuseRequest::SetAttr { node, change, .. } => {
                let is_set = change.mode.is_some_and(|mode| mode & SET_BITS != 0);
                // On a directory, setgid only sets the group of files created in it.
                is_set && {
                    let found = self.fs.getattr(&acting.caller, self.numbers.ino_of(*node));
                    !found.is_ok_and(|attr| attr.kind == FileKind::Directory)
                }
            }
            _ => false,
        }
    }

    /// Returns whether a change clears setuid and setgid. True for all changes on a per-user mount.
    fn loses_set_bits(&self, kills_set_bits: bool) -> bool {
        kills_set_bits || self.acting.is_some()
    }

    /// Executes the reads of `asked`. Calls `told` once for each.
    pub fn read(&self, asked: &[ReadRequest], told: &mut ReadReceiver<'_>) {
        let is_known = |it: &ReadRequest| self.given().is_none_or(|given| given.has(it.node));
        if asked.iter().all(is_known) {
            return self.read_known(asked, told);
        }
        for (index, one) in asked.iter().enumerate() {
            if is_known(one) {
                self.read_known(std::slice::from_ref(one), &mut |_, read| told(index, read));
            } else {
                told(index, Err(Errno::STALE));
            }
        }
    }

    fn read_known(&self, asked: &[ReadRequest], told: &mut ReadReceiver<'_>) {
        let keeps_atime = self.switches.keeps_atime();
        let reads: Vec<FileReadRequest<'_>> = asked
            .iter()
            .map(|asked| FileReadRequest {
                caller: match (&self.acting, asked.keeps_atime || keeps_atime) {
                    (None, true) => &KERNEL_UNSEEN,
                    (None, false) => &KERNEL,
                    (Some(acting), true) => &acting.unseen,
                    (Some(acting), false) => &acting.caller,
                },
                ino: self.numbers.ino_of(asked.node),
                offset: asked.offset,
                length_bytes: usize::try_from(asked.length_bytes.min(REQUEST_BYTES_MAX))
                    .expect("REQUEST_BYTES_MAX fits in a usize"),
            })
            .collect();
        self.fs.read_each(&reads, &mut |index, read| {
            told(index, read.map_err(|e| errno("read", reads[index].ino, &e)));
        });
    }

    /// Makes changes of a file durable, and then calls `told`: before returning, or later on
    /// another thread.
    pub fn sync(
        &self,
        node: NodeId,
        data_only: bool,
        told: impl FnOnce(Result<(), Errno>) + Send + 'static,
    ) {
        if self.given().is_some_and(|given| !given.has(node)) {
            return told(Err(Errno::STALE));
        }
        let ino = self.numbers.ino_of(node);
        let told = move |done: FsResult<()>| told(done.map_err(|e| errno("fsync", ino, &e)));
        let caller = self.acting.as_ref().map_or(&KERNEL, |acting| &acting.caller);
        self.fs.commit_then(caller, ino, data_only, Box::new(told));
    }

    fn dispatch<'s>(
        &self,
        caller: &Caller,
        thread: u32,
        request: FuseRequest<'_>,
        scratch: &'s mut Vec<u8>,
    ) -> Result<Reply<'s>, Errno> {
        match request {
            FuseRequest::Lookup { parent, name } => self.lookup((caller, thread), parent, name),
            FuseRequest::Forget { node, count } => {
                let count = self.given().map_or(count, |given| given.take(node, count));
                if count > 0 {
                    self.fs.forget(self.numbers.ino_of(node), count);
                }
                Ok(Reply::Silence)
            }
            FuseRequest::GetAttr { node } => self.get_attr(caller, node).map(Reply::Attr),
            FuseRequest::Statx { node } => self.get_attr(caller, node).map(Reply::Statx),
            FuseRequest::SetAttr { node, change, kills_set_bits } => self.set_attr(
                &Caller { loses_set_bits: self.loses_set_bits(kills_set_bits), ..caller.clone() },
                node,
                &change,
            ),
            FuseRequest::ReadLink { node } => self.read_link(caller, node, scratch),
            FuseRequest::MakeNode { parent, name, kind, new, rdev } => {
                self.make(caller, parent, name, new_inode(kind, new, rdev)).map(Reply::Entry)
            }
            FuseRequest::Open { node, is_directory } => self.open(thread, node, is_directory),
            FuseRequest::Create { parent, name, new, is_exclusive } => {
                self.make_opened((caller, thread), (parent, name), new, is_exclusive)
            }
            FuseRequest::Tmpfile { parent, new } => {
                let parent = self.numbers.ino_of(parent);
                let made = self.fs.tmpfile(caller, parent, new_inode(FileKind::Regular, new, 0));
                // ENOSYS stops further TMPFILE requests.
                let made = made.map_err(|e| no_system("tmpfile", parent, &e))?;
                Ok(self.created(self.node_of(made)))
            }
            FuseRequest::Symlink { parent, name, target } => {
                let parent = self.numbers.ino_of(parent);
                let made = self.fs.symlink(caller, parent, name, target, NewInode::SYMLINK, None);
                self.entry("symlink", parent, made)
            }
            FuseRequest::Link { node, parent, name } => {
                let (ino, parent) = (self.numbers.ino_of(node), self.numbers.ino_of(parent));
                self.entry("link", ino, self.fs.link(caller, ino, parent, name, None))
            }
            FuseRequest::Unlink { parent, name } => {
                let parent = self.numbers.ino_of(parent);
                done("unlink", parent, self.fs.unlink(caller, parent, name, None))
            }
            FuseRequest::Rmdir { parent, name } => {
                let parent = self.numbers.ino_of(parent);
                done("rmdir", parent, self.fs.rmdir(caller, parent, name, None))
            }
            FuseRequest::Rename { source, target, mode } => {
                let source = (self.numbers.ino_of(source.0), source.1);
                let target = (self.numbers.ino_of(target.0), target.1);
                done("rename", source.0, self.fs.rename(caller, source, target, mode, None))
            }
            FuseRequest::Write { node, offset, data, kills_set_bits, is_of_cache, appends } => {
                let caller = Caller {
                    loses_set_bits: self.loses_set_bits(kills_set_bits),
                    writes_back: is_of_cache,
                    ..caller.clone()
                };
                let ino = self.numbers.ino_of(node);
                let written = match (is_of_cache, appends) {
                    (true, _) => self.write_back(&caller, ino, offset, &data),
                    (false, false) => self.write(&caller, ino, offset, &data),
                    (false, true) => self.append(&caller, ino, offset, &data),
                };
                let count = written.map_err(|e| errno("write", ino, &e))?;
                u32::try_from(count).map(Reply::Written).map_err(|_| Errno::INVAL)
            }
            FuseRequest::ReadDir { node, cookie, with_nodes, keeps_atime, listing } => {
                let keeps_atime = keeps_atime || self.switches.keeps_atime_of_directories();
                let caller = &Caller { keeps_atime, ..caller.clone() };
                self.read_dir(caller, node, cookie, with_nodes, listing)
            }
            FuseRequest::GetXattr { node, name, room_bytes } => {
                self.get_xattr(caller, node, name, room_bytes, scratch)
            }
            FuseRequest::ListXattr { node, room_bytes } => {
                self.list_xattr(caller, node, room_bytes, scratch)
            }
            FuseRequest::SetXattr { node, name, value, mode, kills_setgid } => {
                let loses_set_bits = self.loses_set_bits(kills_setgid);
                let caller = Caller { loses_set_bits, ..caller.clone() };
                self.set_xattr(&caller, node, (name, value), mode)
            }
            FuseRequest::RemoveXattr { node, name } => self.remove_xattr(caller, node, name),
            FuseRequest::Fallocate { node, offset, length_bytes, mode } => {
                let ino = self.numbers.ino_of(node);
                let result = self.fs.fallocate(caller, ino, offset, length_bytes, mode);
                done("fallocate", ino, result)
            }
            FuseRequest::Seek { node, offset, what } => {
                let ino = self.numbers.ino_of(node);
                let found = self.fs.seek(caller, ino, offset, what);
                // ENOSYS makes the kernel treat all files as data.
                found.map(Reply::Offset).map_err(|e| no_system("seek", ino, &e))
            }
            FuseRequest::CopyRange { source, target, length_bytes, is_long } => {
                self.copy_range(caller, source, target, length_bytes, is_long)
            }
            FuseRequest::GetLock(lock) => self.conflicting_lock(caller, &lock).map(Reply::Lock),
            FuseRequest::SetLock(lock) => self.set_lock(caller, &lock),
            FuseRequest::Flush { node, owner, open_file } => {
                Ok(self.flush_locks(node, owner, open_file))
            }
            FuseRequest::Release { node, open_file } => Ok(self.release_locks(node, open_file)),
            FuseRequest::StatFs => self
                .fs
                .statfs(caller, self.fileset)
                .map(Reply::StatFs)
                .map_err(|e| errno("statfs", self.fs.root(), &e)),
            FuseRequest::Decline(what) => Err(refusal_of(what)),
        }
    }

    /// Looks a name up. The kernel uses `.`, for any kind of file, to resolve handles of
    /// open_by_handle_at(2) and of its NFS server.
    fn lookup(
        &self,
        (caller, thread): (&Caller, u32),
        parent: NodeId,
        name: &[u8],
    ) -> Result<Reply<'static>, Errno> {
        let parent = self.numbers.ino_of(parent);
        let found = self.fs.lookup(caller, parent, name);
        if let Some(viewer) = &self.viewer {
            viewer.looked_up(thread, found.as_ref().ok().map(|attr| attr.ino));
        }
        match found {
            // Snapshots appear without the kernel's knowledge, so it must not cache their absence.
            Err(FsError::NotFound) if !parent.is_snapshots_directory() => Ok(Reply::Absent),
            found => self.entry("lookup", parent, found),
        }
    }

    fn get_attr(&self, caller: &Caller, node: NodeId) -> Result<FuseNode, Errno> {
        let ino = self.numbers.ino_of(node);
        self.node("getattr", ino, self.fs.getattr(caller, ino))
    }

    fn set_attr(
        &self,
        caller: &Caller,
        node: NodeId,
        change: &SetAttr,
    ) -> Result<Reply<'static>, Errno> {
        let ino = self.numbers.ino_of(node);
        self.node("setattr", ino, self.fs.setattr(caller, ino, change, None)).map(Reply::Attr)
    }

    fn read_link<'s>(
        &self,
        caller: &Caller,
        node: NodeId,
        scratch: &'s mut Vec<u8>,
    ) -> Result<Reply<'s>, Errno> {
        let ino = self.numbers.ino_of(node);
        *scratch = self.fs.readlink(caller, ino).map_err(|e| errno("readlink", ino, &e))?;
        Ok(Reply::Data(scratch))
    }

    fn make(
        &self,
        caller: &Caller,
        parent: NodeId,
        name: &[u8],
        new: NewInode,
    ) -> Result<FuseNode, Errno> {
        let parent = self.numbers.ino_of(parent);
        self.node("create", parent, self.fs.create(caller, parent, name, new, None))
    }

    /// Opens a file. After a recent change by another front, the first open gets ESTALE. The kernel
    /// then repeats the lookup, with the current size and target.
    fn open(&self, thread: u32, node: NodeId, is_directory: bool) -> Result<Reply<'static>, Errno> {
        let ino = self.numbers.ino_of(node);
        match &self.viewer {
            Some(viewer) if !viewer.lets_open(ino, thread) => return Err(Errno::STALE),
            // ENOSYS stops further OPEN requests.
            None if is_directory || self.direct_io == DirectIo::Asked => return Err(Errno::NOSYS),
            Some(_) | None => {}
        }
        let is_direct = !is_directory && self.is_direct(ino);
        Ok(Reply::Opened(self.opened(is_direct)))
    }

    /// Returns the reply for a created file, which cannot have a [`DIRECT_IO_MARK`] yet.
    fn created(&self, node: FuseNode) -> Reply<'static> {
        Reply::Created { node, opened: self.opened(self.direct_io == DirectIo::All) }
    }

    fn is_direct(&self, ino: Ino) -> bool {
        match self.direct_io {
            DirectIo::Asked => false,
            DirectIo::Marked => {
                let caller = self.acting.as_ref().map_or(&KERNEL, |acting| &acting.caller);
                let mark = self.fs.getxattr(caller, ino, DIRECT_IO_MARK);
                self.has_xattrs && mark.is_ok_and(|mark| mark == b"on")
            }
            DirectIo::All => true,
        }
    }

    fn make_opened(
        &self,
        (caller, thread): (&Caller, u32),
        (parent, name): (NodeId, &[u8]),
        new: NewNode,
        is_exclusive: bool,
    ) -> Result<Reply<'static>, Errno> {
        let viewer = self.viewer.as_ref().ok_or(Errno::NOSYS)?;
        let made = self.make(caller, parent, name, new_inode(FileKind::Regular, new, 0));
        match made {
            // Another front created the name first. ESTALE makes the kernel look it up and open it.
            Err(Errno::EXIST) if !is_exclusive => {
                viewer.send_back(thread, self.numbers.ino_of(parent));
                Err(Errno::STALE)
            }
            made => made.map(|node| self.created(node)),
        }
    }

    fn write(
        &self,
        caller: &Caller,
        ino: Ino,
        offset: u64,
        data: &WriteData<'_>,
    ) -> FsResult<usize> {
        self.fs.write_some(caller, ino, offset, data, Stability::Unstable, None)
    }

    /// FU8: writes all of `data` or returns an error, even if a part was written.
    fn write_back(
        &self,
        caller: &Caller,
        ino: Ino,
        offset: u64,
        data: &WriteData<'_>,
    ) -> FsResult<usize> {
        let mut done = self.write(caller, ino, offset, data)?;
        while done < data.len() {
            let rest = rest_of(data, done);
            let at = u64::try_from(done).ok().and_then(|done| offset.checked_add(done));
            match self.write(caller, ino, at.ok_or(FsError::FileTooLarge)?, &rest)? {
                // No progress, which no file system reports. An error keeps the kernel from
                // discarding the pages.
                0 => return Err(FsError::NoSpace),
                more => done += more,
            }
        }
        Ok(done)
    }

    fn copy_range(
        &self,
        caller: &Caller,
        source: (NodeId, u64),
        target: (NodeId, u64),
        length_bytes: u64,
        is_long: bool,
    ) -> Result<Reply<'static>, Errno> {
        let source = (self.numbers.ino_of(source.0), source.1);
        let target = (self.numbers.ino_of(target.0), target.1);
        let length_bytes =
            if is_long { length_bytes } else { length_bytes.min(u64::from(COPIED_BYTES_MAX)) };
        let copied = self.fs.copy_range(caller, source, target, length_bytes);
        // ENOSYS makes the kernel copy by reads and writes.
        let copied = copied.map_err(|e| no_system("copy_file_range", source.0, &e))?;
        if is_long {
            return Ok(Reply::Copied(copied));
        }
        u32::try_from(copied).map(Reply::Written).map_err(|_| Errno::IO)
    }

    /// Fails with ENOSYS without extended attributes, so that the kernel stops requesting one
    /// before each write.
    fn check_xattrs(&self) -> Result<(), Errno> {
        if self.has_xattrs { Ok(()) } else { Err(Errno::NOSYS) }
    }

    fn get_xattr<'s>(
        &self,
        caller: &Caller,
        node: NodeId,
        name: &[u8],
        room_bytes: u32,
        scratch: &'s mut Vec<u8>,
    ) -> Result<Reply<'s>, Errno> {
        self.check_xattrs()?;
        let ino = self.numbers.ino_of(node);
        let value = self.fs.getxattr(caller, ino, name);
        *scratch = value.map_err(|e| errno("getxattr", ino, &e))?;
        data_or_room(scratch, room_bytes)
    }

    fn list_xattr<'s>(
        &self,
        caller: &Caller,
        node: NodeId,
        room_bytes: u32,
        scratch: &'s mut Vec<u8>,
    ) -> Result<Reply<'s>, Errno> {
        self.check_xattrs()?;
        let ino = self.numbers.ino_of(node);
        let names = self.fs.listxattr(caller, ino).map_err(|e| errno("listxattr", ino, &e))?;
        scratch.clear();
        for name in names {
            scratch.extend_from_slice(&name);
            scratch.push(0);
        }
        data_or_room(scratch, room_bytes)
    }

    fn remove_xattr(
        &self,
        caller: &Caller,
        node: NodeId,
        name: &[u8],
    ) -> Result<Reply<'static>, Errno> {
        self.check_xattrs()?;
        let ino = self.numbers.ino_of(node);
        done("removexattr", ino, self.fs.removexattr(caller, ino, name, None))
    }

    fn set_xattr(
        &self,
        caller: &Caller,
        node: NodeId,
        (name, value): (&[u8], &[u8]),
        mode: XattrMode,
    ) -> Result<Reply<'static>, Errno> {
        self.check_xattrs()?;
        let ino = self.numbers.ino_of(node);
        done("setxattr", ino, self.fs.setxattr(caller, ino, name, value, mode, None))
    }

    fn node_of(&self, attr: Attr) -> FuseNode {
        FuseNode { id: self.numbers.node_of(attr.ino), attr }
    }

    fn node(
        &self,
        operation: &'static str,
        ino: Ino,
        result: Result<Attr, FsError>,
    ) -> Result<FuseNode, Errno> {
        result.map(|attr| self.node_of(attr)).map_err(|e| errno(operation, ino, &e))
    }

    fn entry(
        &self,
        operation: &'static str,
        ino: Ino,
        result: Result<Attr, FsError>,
    ) -> Result<Reply<'static>, Errno> {
        self.node(operation, ino, result).map(Reply::Entry)
    }
}

impl std::fmt::Debug for FuseServer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Server").field("numbers", &self.numbers).finish_non_exhaustive()
    }
}

fn done(
    operation: &'static str,
    ino: Ino,
    result: Result<(), FsError>,
) -> Result<Reply<'static>, Errno> {
    result.map(|()| Reply::Done).map_err(|e| errno(operation, ino, &e))
}

/// Returns the error number, and logs errors for the administrator.
fn errno(operation: &'static str, ino: Ino, error: &FsError) -> Errno {
    log_failure("fuse", operation, Some(ino), error);
    Errno::from_raw_os_error(error.errno())
}

fn rest_of<'d>(data: &'d WriteData<'_>, done: usize) -> WriteData<'d> {
    match data {
        WriteData::Lent(bytes) => WriteData::Lent(&bytes[done..]),
        WriteData::Shared(bytes) => WriteData::Shared(bytes.slice(done..bytes.len())),
    }
}

/// Returns `data` if a buffer of `room_bytes` holds it, or its size if `room_bytes` is 0.
fn data_or_room(data: &[u8], room_bytes: u32) -> Result<Reply<'_>, Errno> {
    let bytes = u32::try_from(data.len()).map_err(|_| Errno::TOOBIG)?;
    match room_bytes {
        0 => Ok(Reply::Room(bytes)),
        room_bytes if bytes > room_bytes => Err(Errno::RANGE),
        _ => Ok(Reply::Data(data)),
    }
}

/// As [`errno`], but ENOSYS for an unsupported operation, which ends such requests.
fn no_system(operation: &'static str, ino: Ino, error: &FsError) -> Errno {
    if *error == FsError::NotSupported { Errno::NOSYS } else { errno(operation, ino, error) }
}

fn new_inode(kind: FileKind, new: NewNode, rdev: u32) -> NewInode {
    NewInode { umask: new.umask, rdev, ..NewInode::new(kind, new.mode) }
}

/// Returns the error for a declined operation. `ENOSYS` ends such requests.
fn refusal_of(declined: Declined) -> Errno {
    match declined {
        // The kernel translates ENOSYS for all ioctls but those that read file flags.
        Declined::Ioctl => Errno::NOTTY,
        Declined::Flush | Declined::Access | Declined::Poll | Declined::Lock | Declined::Bmap => {
            Errno::NOSYS
        }
    }
}
