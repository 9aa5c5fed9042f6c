//! The transport to the kernel, by way of `fuser`. The one file that knows this library.
//!
//! # What is negotiated
//!
//! | capability | asked | why |
//! |---|---|---|
//! | `READDIRPLUS` with `AUTO` | yes | a listing that is stat'ed costs no lookups |
//! | `PARALLEL_DIROPS`, `ASYNC_READ`, `ASYNC_DIO` | yes | the server is multi-threaded |
//! | `EXPORT_SUPPORT` | yes | handles survive a restart (F2) |
//! | `CACHE_SYMLINKS`, `EXPLICIT_INVAL_DATA` | yes | only the kernel changes things (F1) |
//! | `NO_OPEN_SUPPORT`, `NO_OPENDIR_SUPPORT` | offered by the kernel | `ENOSYS` then ends opens |
//! | `WRITEBACK_CACHE` | by option | writes are then lost by `kill -9` until fsync |
//! | `ATOMIC_O_TRUNC` | no | OPEN would truncate, and OPEN is not sent |
//! | `AUTO_INVAL_DATA` | no | would drop cached data at each change of mtime |
//! | `HANDLE_KILLPRIV`, `_V2` | no | the kernel clears setuid by SETATTR; the library hides when |
//! | `DONT_MASK`, `POSIX_ACL` | no | the kernel applies the umask (F4) |
//!
//! # Concurrency
//!
//! The library runs one thread per cloned descriptor (`FUSE_DEV_IOC_CLONE`). A panic in the file
//! system costs the request (`EIO`), not the thread: the library answers for a reply that is
//! dropped. A panic of the library's own ends the mount (`guard.rs`).

mod convert;
mod guard;

use std::cell::RefCell;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime};

use engine::vnode::api::{FileKind, SetAttr, StatFs};
use fuser::{
    AccessFlags, CopyFileRangeFlags, Errno, FileAttr, FileHandle, Filesystem, FopenFlags,
    Generation, INodeNo, InitFlags, IoctlFlags, KernelConfig, LockOwner, OpenFlags, RenameFlags,
    ReplyAttr, ReplyBmap, ReplyCreate, ReplyData, ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty,
    ReplyEntry, ReplyIoctl, ReplyLock, ReplyLseek, ReplyOpen, ReplyStatfs, ReplyWrite, ReplyXattr,
    TimeOrNow, WriteFlags,
};

pub(super) use self::guard::Guard;

use self::convert::{
    error_of, error_unless_done, file_attr, file_type, made_kind, name_only_attr, permission_bits,
    rename_mode, set_time, timestamp_from_library,
};
use super::protocol::{
    CreateFlags, Declined, ListedName, Listing, Node, NodeId, Reply, Request, Sender,
};
use super::server::REQUEST_BYTES_MAX;
use super::transport::{Transport, TransportError};
use super::{MountOptions, Server};

/// How long the kernel may keep names and attributes: as good as for ever (F1).
const CACHE_TIME: Duration = Duration::from_secs(86_400 * 365);

/// Requests the kernel may have under way that no process waits for (read-ahead, write-back).
/// Its own default, 12, keeps one disk busy but not several threads.
const BACKGROUND_REQUESTS_MAX: u16 = 64;

/// The unit that stat(2) reports where the file system does not say.
const BLOCK_BYTES_DEFAULT: u32 = 4096;

thread_local! {
    /// Where this thread reads data to; grows to [`REQUEST_BYTES_MAX`] and stays.
    static SCRATCH: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// A mounted directory: a session of the library, whose server is given when it is served.
pub(super) struct KernelTransport {
    session: fuser::Session<Adapter>,
    server: Arc<OnceLock<Arc<Server>>>,
}

impl KernelTransport {
    /// Mounts `directory` and shakes hands with the kernel. Requests wait until
    /// [`Transport::serve`].
    pub(super) fn mount(
        directory: &Path,
        options: &MountOptions,
    ) -> std::io::Result<KernelTransport> {
        let server = Arc::new(OnceLock::new());
        let adapter = Adapter {
            server: Arc::clone(&server),
            has_writeback_cache: options.has_writeback_cache,
            block_bytes: OnceLock::new(),
        };
        let session = fuser::Session::new(adapter, directory, &options.to_fuser())?;
        Ok(KernelTransport { session, server })
    }
}

impl Transport for KernelTransport {
    fn serve(self: Box<Self>, server: Arc<Server>) -> Result<(), TransportError> {
        let KernelTransport { session, server: slot } = *self;
        slot.set(server).expect("a transport is served once, for serving consumes it");
        Ok(session.run()?)
    }
}

/// The library's callbacks, each of which becomes one [`Request`].
struct Adapter {
    server: Arc<OnceLock<Arc<Server>>>,
    has_writeback_cache: bool,
    /// Preferred unit of I/O, asked once.
    block_bytes: OnceLock<u32>,
}

impl Adapter {
    /// Asks the server and hands its answer to `send`. Where the server panics, `send` is dropped
    /// with the reply in it, which then says `EIO`.
    fn ask(&self, request: &fuser::Request, what: Request<'_>, send: impl FnOnce(Reply<'_>)) {
        let Some(server) = self.server.get() else { return };
        let sender = Sender { uid: request.uid(), gid: request.gid() };
        let outcome = SCRATCH.with_borrow_mut(|scratch| {
            let answer = || guard::caught(|| server.answer(sender, what, scratch));
            catch_unwind(AssertUnwindSafe(answer)).map(send)
        });
        if outcome.is_err() {
            guard::after_panic();
            tracing::error!(pid = request.pid(), "a request failed by a bug; it got EIO");
        }
    }

    fn block_bytes(&self) -> u32 {
        *self.block_bytes.get_or_init(|| {
            let told = self.server.get().and_then(|server| server.stat_fs().ok());
            told.map_or(BLOCK_BYTES_DEFAULT, |s| s.block_bytes)
        })
    }

    fn attr_of(&self, node: &Node) -> FileAttr {
        file_attr(node, self.block_bytes())
    }

    fn send_entry(&self, answer: Reply<'_>, reply: ReplyEntry) {
        let Reply::Entry(node) = answer else { return reply.error(error_of(&answer)) };
        reply.entry(&CACHE_TIME, &self.attr_of(&node), Generation(node.attr.generation));
    }

    fn send_attr(&self, answer: Reply<'_>, reply: ReplyAttr) {
        let Reply::Attr(node) = answer else { return reply.error(error_of(&answer)) };
        reply.attr(&CACHE_TIME, &self.attr_of(&node));
    }

    fn send_created(&self, answer: Reply<'_>, reply: ReplyCreate) {
        let Reply::Created(node) = answer else { return reply.error(error_of(&answer)) };
        reply.created(
            &CACHE_TIME,
            &self.attr_of(&node),
            Generation(node.attr.generation),
            FileHandle(0),
            // F1: what is cached stays good from one open to the next.
            FopenFlags::FOPEN_KEEP_CACHE | FopenFlags::FOPEN_NOFLUSH,
        );
    }

    fn send_empty(answer: &Reply<'_>, reply: ReplyEmpty) {
        match error_unless_done(answer) {
            None => reply.ok(),
            Some(error) => reply.error(error),
        }
    }

    fn send_data(answer: &Reply<'_>, reply: ReplyData) {
        let Reply::Data(data) = answer else { return reply.error(error_of(answer)) };
        reply.data(data);
    }

    /// Declines, and returns the error to send.
    fn decline(&self, request: &fuser::Request, what: Declined) -> Errno {
        let mut error = Errno::EIO;
        self.ask(request, Request::Decline(what), |answer| error = error_of(&answer));
        error
    }
}

impl std::fmt::Debug for Adapter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Adapter").finish_non_exhaustive()
    }
}

impl Filesystem for Adapter {
    fn init(&mut self, _: &fuser::Request, config: &mut KernelConfig) -> std::io::Result<()> {
        let mut wanted = vec![
            InitFlags::FUSE_DO_READDIRPLUS,
            InitFlags::FUSE_READDIRPLUS_AUTO,
            InitFlags::FUSE_PARALLEL_DIROPS,
            InitFlags::FUSE_ASYNC_DIO,
            InitFlags::FUSE_EXPORT_SUPPORT,
            InitFlags::FUSE_CACHE_SYMLINKS,
            InitFlags::FUSE_EXPLICIT_INVAL_DATA,
            InitFlags::FUSE_NO_OPEN_SUPPORT,
            InitFlags::FUSE_NO_OPENDIR_SUPPORT,
        ];
        if self.has_writeback_cache {
            wanted.push(InitFlags::FUSE_WRITEBACK_CACHE);
        }
        for capability in wanted {
            // A kernel without one of these is slower, not wrong.
            if config.add_capabilities(capability).is_err() {
                tracing::info!(?capability, "the kernel does not have this");
            }
        }
        // Each refusal names the nearest value that is possible.
        let _ = config.set_max_write(REQUEST_BYTES_MAX).or_else(|near| config.set_max_write(near));
        let _ = config
            .set_max_readahead(REQUEST_BYTES_MAX)
            .or_else(|near| config.set_max_readahead(near));
        let _ = config.set_max_background(BACKGROUND_REQUESTS_MAX);
        Ok(())
    }

    fn lookup(&self, req: &fuser::Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let what = Request::Lookup { parent: NodeId(parent.0), name: name.as_bytes() };
        self.ask(req, what, |answer| self.send_entry(answer, reply));
    }

    // BATCH_FORGET comes here too, one by one.
    fn forget(&self, req: &fuser::Request, ino: INodeNo, nlookup: u64) {
        self.ask(req, Request::Forget { node: NodeId(ino.0), count: nlookup }, |_| {});
    }

    fn getattr(&self, req: &fuser::Request, ino: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        let what = Request::GetAttr { node: NodeId(ino.0) };
        self.ask(req, what, |answer| self.send_attr(answer, reply));
    }

    fn setattr(
        &self,
        req: &fuser::Request,
        ino: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        atime: Option<TimeOrNow>,
        mtime: Option<TimeOrNow>,
        ctime: Option<SystemTime>,
        _fh: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<fuser::BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let change = SetAttr {
            mode: mode.map(permission_bits),
            uid,
            gid,
            size_bytes: size,
            atime: atime.map(set_time),
            mtime: mtime.map(set_time),
            ctime: ctime.map(timestamp_from_library),
        };
        let what = Request::SetAttr { node: NodeId(ino.0), change };
        self.ask(req, what, |answer| self.send_attr(answer, reply));
    }

    fn readlink(&self, req: &fuser::Request, ino: INodeNo, reply: ReplyData) {
        let what = Request::ReadLink { node: NodeId(ino.0) };
        self.ask(req, what, |answer| Adapter::send_data(&answer, reply));
    }

    fn mknod(
        &self,
        req: &fuser::Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _umask: u32,
        rdev: u32,
        reply: ReplyEntry,
    ) {
        let Some(kind) = made_kind(mode) else { return reply.error(Errno::EINVAL) };
        let what = Request::MakeNode {
            parent: NodeId(parent.0),
            name: name.as_bytes(),
            kind,
            mode: permission_bits(mode),
            rdev,
        };
        self.ask(req, what, |answer| self.send_entry(answer, reply));
    }

    fn mkdir(
        &self,
        req: &fuser::Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _umask: u32,
        reply: ReplyEntry,
    ) {
        let what = Request::MakeNode {
            parent: NodeId(parent.0),
            name: name.as_bytes(),
            kind: FileKind::Directory,
            mode: permission_bits(mode),
            rdev: 0,
        };
        self.ask(req, what, |answer| self.send_entry(answer, reply));
    }

    fn unlink(&self, req: &fuser::Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let what = Request::Unlink { parent: NodeId(parent.0), name: name.as_bytes() };
        self.ask(req, what, |answer| Adapter::send_empty(&answer, reply));
    }

    fn rmdir(&self, req: &fuser::Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let what = Request::Rmdir { parent: NodeId(parent.0), name: name.as_bytes() };
        self.ask(req, what, |answer| Adapter::send_empty(&answer, reply));
    }

    fn symlink(
        &self,
        req: &fuser::Request,
        parent: INodeNo,
        link_name: &OsStr,
        target: &Path,
        reply: ReplyEntry,
    ) {
        let what = Request::Symlink {
            parent: NodeId(parent.0),
            name: link_name.as_bytes(),
            target: target.as_os_str().as_bytes(),
        };
        self.ask(req, what, |answer| self.send_entry(answer, reply));
    }

    fn rename(
        &self,
        req: &fuser::Request,
        parent: INodeNo,
        name: &OsStr,
        newparent: INodeNo,
        newname: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let what = Request::Rename {
            source: (NodeId(parent.0), name.as_bytes()),
            target: (NodeId(newparent.0), newname.as_bytes()),
            mode: rename_mode(flags),
        };
        self.ask(req, what, |answer| Adapter::send_empty(&answer, reply));
    }

    fn link(
        &self,
        req: &fuser::Request,
        ino: INodeNo,
        newparent: INodeNo,
        newname: &OsStr,
        reply: ReplyEntry,
    ) {
        let what = Request::Link {
            node: NodeId(ino.0),
            parent: NodeId(newparent.0),
            name: newname.as_bytes(),
        };
        self.ask(req, what, |answer| self.send_entry(answer, reply));
    }

    fn open(&self, req: &fuser::Request, _: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        reply.error(self.decline(req, Declined::Open));
    }

    fn read(
        &self,
        req: &fuser::Request,
        ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let what = Request::Read { node: NodeId(ino.0), offset, length_bytes: size };
        self.ask(req, what, |answer| Adapter::send_data(&answer, reply));
    }

    fn write(
        &self,
        req: &fuser::Request,
        ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        data: &[u8],
        _write_flags: WriteFlags,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let what = Request::Write { node: NodeId(ino.0), offset, data };
        self.ask(req, what, |answer| {
            let Reply::Written(written_bytes) = answer else {
                return reply.error(error_of(&answer));
            };
            reply.written(written_bytes);
        });
    }

    fn flush(
        &self,
        req: &fuser::Request,
        _: INodeNo,
        _: FileHandle,
        _: LockOwner,
        reply: ReplyEmpty,
    ) {
        reply.error(self.decline(req, Declined::Flush));
    }

    fn fsync(
        &self,
        req: &fuser::Request,
        ino: INodeNo,
        _: FileHandle,
        datasync: bool,
        reply: ReplyEmpty,
    ) {
        let what = Request::Fsync { node: NodeId(ino.0), data_only: datasync };
        self.ask(req, what, |answer| Adapter::send_empty(&answer, reply));
    }

    fn opendir(&self, req: &fuser::Request, _: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        reply.error(self.decline(req, Declined::Open));
    }

    fn readdir(
        &self,
        req: &fuser::Request,
        ino: INodeNo,
        _: FileHandle,
        offset: u64,
        reply: ReplyDirectory,
    ) {
        let mut names = Names(reply);
        let (node, mut answer) = (NodeId(ino.0), None);
        let what =
            Request::ReadDir { node, cookie: offset, with_nodes: false, listing: &mut names };
        self.ask(req, what, |a| answer = Some(error_unless_done(&a)));
        match answer {
            Some(None) => names.0.ok(),
            Some(Some(error)) => names.0.error(error),
            None => names.0.error(Errno::EIO),
        }
    }

    fn readdirplus(
        &self,
        req: &fuser::Request,
        ino: INodeNo,
        _: FileHandle,
        offset: u64,
        reply: ReplyDirectoryPlus,
    ) {
        let mut names = NamesWithNodes { reply, block_bytes: self.block_bytes() };
        let (node, mut answer) = (NodeId(ino.0), None);
        let what = Request::ReadDir { node, cookie: offset, with_nodes: true, listing: &mut names };
        self.ask(req, what, |a| answer = Some(error_unless_done(&a)));
        match answer {
            Some(None) => names.reply.ok(),
            Some(Some(error)) => names.reply.error(error),
            None => names.reply.error(Errno::EIO),
        }
    }

    fn fsyncdir(
        &self,
        req: &fuser::Request,
        ino: INodeNo,
        fh: FileHandle,
        datasync: bool,
        reply: ReplyEmpty,
    ) {
        self.fsync(req, ino, fh, datasync, reply);
    }

    fn statfs(&self, req: &fuser::Request, _: INodeNo, reply: ReplyStatfs) {
        self.ask(req, Request::StatFs, |answer| {
            let Reply::StatFs(told) = answer else { return reply.error(error_of(&answer)) };
            send_stat_fs(&told, reply);
        });
    }

    fn setxattr(
        &self,
        req: &fuser::Request,
        _: INodeNo,
        _: &OsStr,
        _: &[u8],
        _: i32,
        _: u32,
        reply: ReplyEmpty,
    ) {
        reply.error(self.decline(req, Declined::Xattr));
    }

    fn getxattr(&self, req: &fuser::Request, _: INodeNo, _: &OsStr, _: u32, reply: ReplyXattr) {
        reply.error(self.decline(req, Declined::Xattr));
    }

    fn listxattr(&self, req: &fuser::Request, _: INodeNo, _: u32, reply: ReplyXattr) {
        reply.error(self.decline(req, Declined::Xattr));
    }

    fn removexattr(&self, req: &fuser::Request, _: INodeNo, _: &OsStr, reply: ReplyEmpty) {
        reply.error(self.decline(req, Declined::Xattr));
    }

    fn access(&self, req: &fuser::Request, _: INodeNo, _: AccessFlags, reply: ReplyEmpty) {
        reply.error(self.decline(req, Declined::Access));
    }

    fn create(
        &self,
        req: &fuser::Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _umask: u32,
        flags: i32,
        reply: ReplyCreate,
    ) {
        let flags = rustix::fs::OFlags::from_bits_retain(flags.cast_unsigned());
        let what = Request::Create {
            parent: NodeId(parent.0),
            name: name.as_bytes(),
            mode: permission_bits(mode),
            flags: CreateFlags {
                is_exclusive: flags.contains(rustix::fs::OFlags::EXCL),
                truncates: flags.contains(rustix::fs::OFlags::TRUNC),
            },
        };
        self.ask(req, what, |answer| self.send_created(answer, reply));
    }

    fn getlk(
        &self,
        req: &fuser::Request,
        _: INodeNo,
        _: FileHandle,
        _: LockOwner,
        _: u64,
        _: u64,
        _: i32,
        _: u32,
        reply: ReplyLock,
    ) {
        reply.error(self.decline(req, Declined::Lock));
    }

    fn setlk(
        &self,
        req: &fuser::Request,
        _: INodeNo,
        _: FileHandle,
        _: LockOwner,
        _: u64,
        _: u64,
        _: i32,
        _: u32,
        _: bool,
        reply: ReplyEmpty,
    ) {
        reply.error(self.decline(req, Declined::Lock));
    }

    fn bmap(&self, req: &fuser::Request, _: INodeNo, _: u32, _: u64, reply: ReplyBmap) {
        reply.error(self.decline(req, Declined::Bmap));
    }

    fn ioctl(
        &self,
        req: &fuser::Request,
        _: INodeNo,
        _: FileHandle,
        _: IoctlFlags,
        _: u32,
        _: &[u8],
        _: u32,
        reply: ReplyIoctl,
    ) {
        reply.error(self.decline(req, Declined::Ioctl));
    }

    fn poll(
        &self,
        req: &fuser::Request,
        _: INodeNo,
        _: FileHandle,
        _: fuser::PollNotifier,
        _: fuser::PollEvents,
        _: fuser::PollFlags,
        reply: fuser::ReplyPoll,
    ) {
        reply.error(self.decline(req, Declined::Poll));
    }

    fn fallocate(
        &self,
        req: &fuser::Request,
        _: INodeNo,
        _: FileHandle,
        _: u64,
        _: u64,
        _: i32,
        reply: ReplyEmpty,
    ) {
        reply.error(self.decline(req, Declined::Fallocate));
    }

    fn lseek(
        &self,
        req: &fuser::Request,
        _: INodeNo,
        _: FileHandle,
        _: i64,
        _: i32,
        reply: ReplyLseek,
    ) {
        reply.error(self.decline(req, Declined::Seek));
    }

    fn copy_file_range(
        &self,
        req: &fuser::Request,
        _: INodeNo,
        _: FileHandle,
        _: u64,
        _: INodeNo,
        _: FileHandle,
        _: u64,
        _: u64,
        _: CopyFileRangeFlags,
        reply: ReplyWrite,
    ) {
        reply.error(self.decline(req, Declined::CopyFileRange));
    }
}

/// A listing of names alone.
struct Names(ReplyDirectory);

impl Listing for Names {
    fn add(&mut self, name: ListedName<'_>) -> bool {
        let (id, kind) = (INodeNo(name.id.0), file_type(name.kind));
        !self.0.add(id, name.cookie, kind, OsStr::from_bytes(name.name))
    }

    fn add_with_node(&mut self, name: ListedName<'_>, _: Option<&Node>) -> bool {
        self.add(name)
    }
}

/// A listing of names with attributes.
struct NamesWithNodes {
    reply: ReplyDirectoryPlus,
    block_bytes: u32,
}

impl Listing for NamesWithNodes {
    fn add(&mut self, name: ListedName<'_>) -> bool {
        self.add_with_node(name, None)
    }

    fn add_with_node(&mut self, name: ListedName<'_>, node: Option<&Node>) -> bool {
        let (attr, generation) = match node {
            Some(node) => (file_attr(node, self.block_bytes), Generation(node.attr.generation)),
            None => (name_only_attr(&name), Generation(0)),
        };
        let text = OsStr::from_bytes(name.name);
        !self.reply.add(attr.ino, name.cookie, text, &CACHE_TIME, &attr, generation)
    }
}

fn send_stat_fs(told: &StatFs, reply: ReplyStatfs) {
    let unit = u64::from(told.fragment_bytes.max(1));
    reply.statfs(
        told.total_bytes / unit,
        told.free_bytes / unit,
        told.available_bytes / unit,
        told.inode_count.saturating_add(told.inodes_free),
        told.inodes_free,
        // Both units the same: programs that multiply by the wrong one are still right.
        told.fragment_bytes,
        u32::try_from(engine::vnode::api::NAME_BYTES_MAX).expect("255 fits"),
        told.fragment_bytes,
    );
}
