//! What each FUSE request means: one vnode operation, seldom two.
//!
//! A [`Server`] holds the file system and the translation of node ids, both constant, and what a
//! remount changes. So any thread may answer any request, and nothing here outlives or survives a
//! crash.
//!
//! # Concurrency
//!
//! [`Server::answer`] may be called from any number of threads; order is the file system's affair.
//!
//! Not here: bytes of the protocol (`kernel.rs`); permissions: the kernel has checked them (FU4),
//! or the file system does, of a mount whose every request is of one user ([`Server::acting_as`]).

mod listing;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use engine::vnode::api::{
    Attr, Caller, Data, FileKind, FileSystem, FilesetUuid, FsError, FsResult, Ino, NewInode,
    ReadAsked, SetAttr, Stability, StatFs, XattrMode,
};
use rustix::io::Errno;

use super::counts::FuseCounts;
use super::given::Given;
use super::options::{DIRECT_IO_MARK, DirectIo};
use super::protocol::{
    Declined, NewNode, Node, NodeId, NodeNumbers, ReadRequest, Reply, Request, Sender,
};
use super::small;
use super::switches::Switches;
use crate::failure::log_failure;
use crate::shared::Viewer;

/// Most data one READ or WRITE moves: the kernel's own limit without raising a sysctl
/// (256 pages of 4 KiB).
pub(super) const REQUEST_BYTES_MAX: u32 = 1 << 20;

/// Most bytes one copy reports where the reply has 32 bits, a multiple of every block size.
const COPIED_BYTES_MAX: u32 = 1 << 31;

/// The name of the access list that says who may do what (acl(5)).
const ACCESS_LIST: &[u8] = b"system.posix_acl_access";

/// For whom the kernel reads and syncs: many of its users at once, all of whom it has checked.
static KERNEL: Caller = Caller::checked_by_kernel(0, 0);

/// The same where a program asks that what it reads does not tell.
static KERNEL_UNSEEN: Caller = {
    let mut caller = Caller::checked_by_kernel(0, 0);
    caller.keeps_atime = true;
    caller
};

/// The bits by which a program runs as the owner of its file, or in its group.
const SET_BITS: u16 = 0o6000;

/// As whom all is done on a mount of somebody who is not to choose as whom.
struct Acting {
    caller: Caller,
    /// The same where what is read does not tell.
    unseen: Caller,
    /// What its kernel may ask about.
    given: Given,
}

/// Is told what came of a read: its number, and the bytes as pieces that follow one another, or the
/// error.
pub type Told<'t> = dyn FnMut(usize, Result<&[&[u8]], Errno>) + 't;

/// Answers requests from a [`FileSystem`].
pub struct Server {
    fs: Arc<dyn FileSystem>,
    fileset: FilesetUuid,
    numbers: NodeNumbers,
    has_xattrs: bool,
    has_acls: bool,
    /// Messages that were answered, or are about to be.
    answered: AtomicU64,
    counts: Arc<FuseCounts>,
    /// Of which files the kernel keeps nothing.
    direct_io: DirectIo,
    /// What others change; `None`: the mount is alone.
    viewer: Option<Arc<Viewer>>,
    /// `None`: as whoever the kernel says.
    acting: Option<Acting>,
    /// What a remount changes.
    switches: Arc<Switches>,
    /// Whether a number of more than 32 bits is refused (SN1).
    has_small_numbers: bool,
}

impl Server {
    /// Returns a server of `fs`.
    #[must_use]
    pub fn new(fs: Arc<dyn FileSystem>) -> Server {
        let (fileset, root) = (fs.main_fileset(), fs.root());
        Server::at(fs, fileset, root)
    }

    /// Returns a server of a fileset of `fs`, which is held.
    pub fn of(fs: Arc<dyn FileSystem>, fileset: FilesetUuid) -> Result<Server, FsError> {
        let root = fs.root_of(fileset)?;
        Ok(Server::at(fs, fileset, root))
    }

    fn at(fs: Arc<dyn FileSystem>, fileset: FilesetUuid, root: Ino) -> Server {
        let is_there = |error| error != FsError::NotSupported;
        let has_xattrs = fs.listxattr(&Caller::root(), root).err().is_none_or(is_there);
        let asked = fs.getxattr(&Caller::root(), root, ACCESS_LIST);
        let has_acls = has_xattrs && asked.err().is_none_or(is_there);
        let (numbers, answered) = (NodeNumbers::new(root), AtomicU64::new(0));
        let (viewer, acting) = (None, None);
        let direct_io = DirectIo::Asked;
        let counts = Arc::default();
        Server {
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
            switches: Arc::default(),
            has_small_numbers: false,
        }
    }

    /// Returns a server that does all as one user, and checks what that one may do: who mounts in a
    /// user namespace says as whom the kernel asks. It makes no device, and no program that runs as
    /// another. It answers for what it has named alone, for whoever has mounted may say any number.
    #[must_use]
    pub fn acting_as(self, uid: u32, gid: u32, groups: Vec<u32>) -> Server {
        let caller = Caller::checked(uid, gid, groups);
        let mut unseen = caller.clone();
        unseen.keeps_atime = true;
        let given = Given::new(&self.fs, self.numbers);
        Server { acting: Some(Acting { caller, unseen, given }), ..self }
    }

    /// Returns a server of a fileset that others change too (FU7), as `viewer` hears.
    #[must_use]
    pub fn shared(self, viewer: Arc<Viewer>) -> Server {
        Server { viewer: Some(viewer), ..self }
    }

    /// Returns what others change; `None`: the mount is alone.
    #[must_use]
    pub fn viewer(&self) -> Option<&Arc<Viewer>> {
        self.viewer.as_ref()
    }

    /// Returns the number of an inode in the protocol.
    #[must_use]
    pub fn node_id(&self, ino: Ino) -> NodeId {
        self.numbers.node_of(ino)
    }

    /// Returns the same, which tells the kernel of which files it keeps nothing.
    #[must_use]
    pub fn with_direct_io(self, direct_io: DirectIo) -> Server {
        Server { direct_io, ..self }
    }

    /// Returns a server for programs whose numbers of inodes have 32 bits, and whose places in
    /// directories have 31 (SN1, SN2).
    #[must_use]
    pub fn with_small_numbers(self) -> Server {
        Server { has_small_numbers: true, ..self }
    }

    /// Returns a server that has no extended attributes, whatever the file system has, and so no
    /// access lists. The kernel then asks for none.
    #[must_use]
    pub fn without_xattrs(self) -> Server {
        Server { has_xattrs: false, has_acls: false, ..self }
    }

    /// Returns a server by which nothing that is read has its access time renewed (`of_all`), or no
    /// directory that is listed.
    #[must_use]
    pub fn keeping_atime(self, of_all: bool, of_directories: bool) -> Server {
        self.switches.set_atime(of_all, of_directories);
        self
    }

    /// Returns whether the file system has POSIX access lists.
    pub(super) fn has_acls(&self) -> bool {
        self.has_acls
    }

    /// Counts messages that are answered.
    pub(super) fn count_answered(&self, messages: u64) {
        self.answered.fetch_add(messages, Ordering::Relaxed);
    }

    /// Returns how many messages were answered.
    pub(super) fn answered(&self) -> u64 {
        self.answered.load(Ordering::Relaxed)
    }

    /// Returns what was answered, by operation.
    #[must_use]
    pub fn counts(&self) -> &Arc<FuseCounts> {
        &self.counts
    }

    /// Returns what a remount changes.
    pub(super) fn switches(&self) -> &Arc<Switches> {
        &self.switches
    }

    /// Does what requests have put off; nobody waits for it.
    pub(super) fn run_deferred_work(&self) {
        self.fs.run_deferred_work();
    }

    /// Returns whether requests have put anything off.
    pub(super) fn has_deferred_work(&self) -> bool {
        self.fs.has_deferred_work()
    }

    /// Returns the sizes and counts of the whole.
    pub(super) fn stat_fs(&self) -> Result<StatFs, FsError> {
        self.fs.statfs(&KERNEL, self.fileset)
    }

    /// Answers `request`. What has no fixed size is put in `scratch`, whose old content is dropped.
    pub fn answer<'s>(
        &self,
        sender: Sender,
        request: Request<'_>,
        scratch: &'s mut Vec<u8>,
    ) -> Reply<'s> {
        // Whether it loses setuid and setgid the kernel says of a write and of a truncate, and not
        // of fallocate(2) and copy_file_range(2).
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

    /// SN1: Refuses a file whose number is too large, and gives its reference back.
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

    /// Returns what its kernel may ask about; `None`: whatever it likes.
    fn given(&self) -> Option<&Given> {
        self.acting.as_ref().map(|acting| &acting.given)
    }

    /// Whether all is done as one user.
    pub(super) fn is_of_one_user(&self) -> bool {
        self.acting.is_some()
    }

    /// Whether what is asked for makes a device, or a program that runs as another.
    #[allow(clippy::wildcard_enum_match_arm, reason = "no other request makes or sets a mode")]
    fn gives_rights(&self, acting: &Acting, request: &Request<'_>) -> bool {
        match request {
            Request::MakeNode { kind, new, .. } => match kind {
                FileKind::CharDevice | FileKind::BlockDevice => true,
                FileKind::Directory => false,
                _ => new.mode & SET_BITS != 0,
            },
            Request::Create { new, .. } | Request::Tmpfile { new, .. } => new.mode & SET_BITS != 0,
            Request::SetAttr { node, change, .. } => {
                let is_set = change.mode.is_some_and(|mode| mode & SET_BITS != 0);
                // Of a directory they say whose what is made in it is.
                is_set && {
                    let found = self.fs.getattr(&acting.caller, self.numbers.ino_of(*node));
                    !found.is_ok_and(|attr| attr.kind == FileKind::Directory)
                }
            }
            _ => false,
        }
    }

    /// Whether a change takes setuid and setgid away: of a mount that acts as one user always.
    fn loses_set_bits(&self, kills_set_bits: bool) -> bool {
        kills_set_bits || self.acting.is_some()
    }

    /// Reads what each of `asked` says, and tells once what came of it.
    pub fn read(&self, asked: &[ReadRequest], told: &mut Told<'_>) {
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

    fn read_known(&self, asked: &[ReadRequest], told: &mut Told<'_>) {
        let keeps_atime = self.switches.keeps_atime();
        let reads: Vec<ReadAsked<'_>> = asked
            .iter()
            .map(|asked| ReadAsked {
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

    /// Makes durable what was done to a file, and tells `told` how that ended: now, or later from
    /// the thread of another request.
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
        request: Request<'_>,
        scratch: &'s mut Vec<u8>,
    ) -> Result<Reply<'s>, Errno> {
        match request {
            Request::Lookup { parent, name } => self.lookup((caller, thread), parent, name),
            Request::Forget { node, count } => {
                let count = self.given().map_or(count, |given| given.take(node, count));
                if count > 0 {
                    self.fs.forget(self.numbers.ino_of(node), count);
                }
                Ok(Reply::Silence)
            }
            Request::GetAttr { node } => self.get_attr(caller, node).map(Reply::Attr),
            Request::Statx { node } => self.get_attr(caller, node).map(Reply::Statx),
            Request::SetAttr { node, change, kills_set_bits } => self.set_attr(
                &Caller { loses_set_bits: self.loses_set_bits(kills_set_bits), ..caller.clone() },
                node,
                &change,
            ),
            Request::ReadLink { node } => self.read_link(caller, node, scratch),
            Request::MakeNode { parent, name, kind, new, rdev } => {
                self.make(caller, parent, name, new_inode(kind, new, rdev)).map(Reply::Entry)
            }
            Request::Open { node, is_directory } => self.open(thread, node, is_directory),
            Request::Create { parent, name, new, is_exclusive } => {
                self.make_opened((caller, thread), (parent, name), new, is_exclusive)
            }
            Request::Tmpfile { parent, new } => {
                let parent = self.numbers.ino_of(parent);
                let made = self.fs.tmpfile(caller, parent, new_inode(FileKind::Regular, new, 0));
                // The kernel learns not to ask again.
                let made = made.map_err(|e| no_system("tmpfile", parent, &e))?;
                Ok(self.created(self.node_of(made)))
            }
            Request::Symlink { parent, name, target } => {
                let parent = self.numbers.ino_of(parent);
                let made = self.fs.symlink(caller, parent, name, target, NewInode::SYMLINK, None);
                self.entry("symlink", parent, made)
            }
            Request::Link { node, parent, name } => {
                let (ino, parent) = (self.numbers.ino_of(node), self.numbers.ino_of(parent));
                self.entry("link", ino, self.fs.link(caller, ino, parent, name, None))
            }
            Request::Unlink { parent, name } => {
                let parent = self.numbers.ino_of(parent);
                done("unlink", parent, self.fs.unlink(caller, parent, name, None))
            }
            Request::Rmdir { parent, name } => {
                let parent = self.numbers.ino_of(parent);
                done("rmdir", parent, self.fs.rmdir(caller, parent, name, None))
            }
            Request::Rename { source, target, mode } => {
                let source = (self.numbers.ino_of(source.0), source.1);
                let target = (self.numbers.ino_of(target.0), target.1);
                done("rename", source.0, self.fs.rename(caller, source, target, mode, None))
            }
            Request::Write { node, offset, data, kills_set_bits, is_of_cache } => {
                let caller = Caller {
                    loses_set_bits: self.loses_set_bits(kills_set_bits),
                    writes_back: is_of_cache,
                    ..caller.clone()
                };
                let ino = self.numbers.ino_of(node);
                let written = match is_of_cache {
                    true => self.write_back(&caller, ino, offset, &data),
                    false => self.write(&caller, ino, offset, &data),
                };
                let count = written.map_err(|e| errno("write", ino, &e))?;
                u32::try_from(count).map(Reply::Written).map_err(|_| Errno::INVAL)
            }
            Request::ReadDir { node, cookie, with_nodes, keeps_atime, listing } => {
                let keeps_atime = keeps_atime || self.switches.keeps_atime_of_directories();
                let caller = &Caller { keeps_atime, ..caller.clone() };
                self.read_dir(caller, node, cookie, with_nodes, listing)
            }
            Request::GetXattr { node, name, room_bytes } => {
                self.get_xattr(caller, node, name, room_bytes, scratch)
            }
            Request::ListXattr { node, room_bytes } => {
                self.list_xattr(caller, node, room_bytes, scratch)
            }
            Request::SetXattr { node, name, value, mode, kills_setgid } => {
                let loses_set_bits = self.loses_set_bits(kills_setgid);
                let caller = Caller { loses_set_bits, ..caller.clone() };
                self.set_xattr(&caller, node, (name, value), mode)
            }
            Request::RemoveXattr { node, name } => self.remove_xattr(caller, node, name),
            Request::Fallocate { node, offset, length_bytes, mode } => {
                let ino = self.numbers.ino_of(node);
                let result = self.fs.fallocate(caller, ino, offset, length_bytes, mode);
                done("fallocate", ino, result)
            }
            Request::Seek { node, offset, what } => {
                let ino = self.numbers.ino_of(node);
                let found = self.fs.seek(caller, ino, offset, what);
                // The kernel then takes every file to be data.
                found.map(Reply::Offset).map_err(|e| no_system("seek", ino, &e))
            }
            Request::CopyRange { source, target, length_bytes, is_long } => {
                self.copy_range(caller, source, target, length_bytes, is_long)
            }
            Request::StatFs => self
                .fs
                .statfs(caller, self.fileset)
                .map(Reply::StatFs)
                .map_err(|e| errno("statfs", self.fs.root(), &e)),
            Request::Decline(what) => Err(refusal_of(what)),
        }
    }

    /// Finds a name. `.` is the file itself, whatever its kind: so the kernel resolves a handle of
    /// open_by_handle_at(2) or of its own NFS server.
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
            // Clones come behind the kernel's back: it is not to remember that there is none.
            Err(FsError::NotFound) if !parent.is_clones_directory() => Ok(Reply::Absent),
            found => self.entry("lookup", parent, found),
        }
    }

    fn get_attr(&self, caller: &Caller, node: NodeId) -> Result<Node, Errno> {
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
    ) -> Result<Node, Errno> {
        let parent = self.numbers.ino_of(parent);
        self.node("create", parent, self.fs.create(caller, parent, name, new, None))
    }

    /// Opens a file. What others have changed of late is to be looked up again first: the kernel
    /// does so when a file is stale, and has its size and where the name leads then.
    fn open(&self, thread: u32, node: NodeId, is_directory: bool) -> Result<Reply<'static>, Errno> {
        let ino = self.numbers.ino_of(node);
        match &self.viewer {
            Some(viewer) if !viewer.lets_open(ino, thread) => return Err(Errno::STALE),
            // The kernel asks no more then.
            None if is_directory || self.direct_io == DirectIo::Asked => return Err(Errno::NOSYS),
            Some(_) | None => {}
        }
        let is_direct = !is_directory && self.is_direct(ino);
        Ok(Reply::Opened { is_direct })
    }

    /// A new file has no mark.
    fn created(&self, node: Node) -> Reply<'static> {
        Reply::Created { node, is_direct: self.direct_io == DirectIo::All }
    }

    /// Whether the kernel is to keep nothing of a file that is opened.
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
            // Somebody was faster: the kernel looks the name up again, and opens what is there.
            Err(Errno::EXIST) if !is_exclusive => {
                viewer.send_back(thread, self.numbers.ino_of(parent));
                Err(Errno::STALE)
            }
            made => made.map(|node| self.created(node)),
        }
    }

    fn write(&self, caller: &Caller, ino: Ino, offset: u64, data: &Data<'_>) -> FsResult<usize> {
        self.fs.write_some(caller, ino, offset, data, Stability::Unstable, None)
    }

    /// FU8: writes all of `data`, or says why not, though the front of it may be written.
    fn write_back(
        &self,
        caller: &Caller,
        ino: Ino,
        offset: u64,
        data: &Data<'_>,
    ) -> FsResult<usize> {
        let mut done = self.write(caller, ino, offset, data)?;
        while done < data.len() {
            let rest = match data {
                Data::Lent(bytes) => Data::Lent(&bytes[done..]),
                Data::Shared(bytes) => Data::Shared(bytes.slice(done..bytes.len())),
            };
            let at = u64::try_from(done).ok().and_then(|done| offset.checked_add(done));
            match self.write(caller, ino, at.ok_or(FsError::FileTooLarge)?, &rest)? {
                // No file system does so. Its files must not lose what the kernel gave away.
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
        // The kernel then reads and writes.
        let copied = copied.map_err(|e| no_system("copy_file_range", source.0, &e))?;
        if is_long {
            return Ok(Reply::Copied(copied));
        }
        u32::try_from(copied).map(Reply::Written).map_err(|_| Errno::IO)
    }

    /// Refuses what asks for extended attributes where there are none at all: the kernel learns not
    /// to ask again, as it would before each write.
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

    fn node_of(&self, attr: Attr) -> Node {
        Node { id: self.numbers.node_of(attr.ino), attr }
    }

    fn node(
        &self,
        operation: &'static str,
        ino: Ino,
        result: Result<Attr, FsError>,
    ) -> Result<Node, Errno> {
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

impl std::fmt::Debug for Server {
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

/// Returns what the program sees, and logs what the administrator must see.
fn errno(operation: &'static str, ino: Ino, error: &FsError) -> Errno {
    log_failure("fuse", operation, Some(ino), error);
    Errno::from_raw_os_error(error.errno())
}

/// Returns what fits in the room that the kernel has; where that is none, how much it must be.
fn data_or_room(data: &[u8], room_bytes: u32) -> Result<Reply<'_>, Errno> {
    let bytes = u32::try_from(data.len()).map_err(|_| Errno::TOOBIG)?;
    match room_bytes {
        0 => Ok(Reply::Room(bytes)),
        room_bytes if bytes > room_bytes => Err(Errno::RANGE),
        _ => Ok(Reply::Data(data)),
    }
}

/// As [`errno`], but what this file system does not have at all is `ENOSYS`: the kernel then never
/// asks again, and does what it does for any file system without.
fn no_system(operation: &'static str, ino: Ino, error: &FsError) -> Errno {
    if *error == FsError::NotSupported { Errno::NOSYS } else { errno(operation, ino, error) }
}

/// Returns what a file is born with.
fn new_inode(kind: FileKind, new: NewNode, rdev: u32) -> NewInode {
    NewInode { umask: new.umask, rdev, ..NewInode::new(kind, new.mode) }
}

/// Returns how each declined operation is answered. `ENOSYS` tells the kernel never to ask again
/// and to do what it does for a file system without the operation.
fn refusal_of(declined: Declined) -> Errno {
    match declined {
        // The kernel translates ENOSYS for all other ioctls, but not for reading file flags.
        Declined::Ioctl => Errno::NOTTY,
        Declined::Flush | Declined::Access | Declined::Poll | Declined::Lock | Declined::Bmap => {
            Errno::NOSYS
        }
    }
}
