//! A file system that does as little as a file system can, behind the same transport: what it takes
//! is what the kernel and the transport take, so it is the ceiling for Holdfast on a mount.
//!
//! `null-server DIRECTORY [POLL_MICROSECONDS]`: serves until it is unmounted. Names are kept in one
//! map in memory; content is not kept at all, and reads as zeros.
//! `null-server --nfs ADDRESS:PORT`: the same behind the server of NFS, as `/`, for one client,
//! until it is killed.

use std::collections::HashMap;
use std::net::TcpListener;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use engine::api::{
    AccessRights, Attr, AttributeChange, Caller, DirEntry, Fallocate, FileHandle, FileKind,
    FileSystem, FilesetUuid, FsError, FsResult, Ino, NewInode, RenameMode, Seek, SetAttr, SetTime,
    Stability, StatFs, Timestamp, WriteData, XattrMode,
};
use front::fuse::{MountOptions, StopSignals};
use front::nfs::{Export, HandleKey, NfsServer, ServerOptions, Service};

const ROOT: Ino = Ino(1);
const BORN: Timestamp = Timestamp { seconds: 1_000_000_000, nanoseconds: 0 };
const SIZE_BYTES: u64 = 1 << 40;

#[derive(Default)]
struct State {
    nodes: HashMap<Ino, Attr>,
    names: HashMap<Ino, HashMap<Vec<u8>, Ino>>,
}

struct Null {
    state: Mutex<State>,
    next: AtomicU64,
}

fn attr(ino: Ino, caller: &Caller, new: NewInode) -> Attr {
    Attr {
        ino,
        generation: 1,
        kind: new.kind,
        mode: new.mode,
        nlink: 1,
        uid: caller.uid,
        gid: caller.gid,
        project: 0,
        rdev: new.rdev,
        size_bytes: 0,
        blocks_512: 0,
        blocks_may_change: false,
        atime: BORN,
        mtime: BORN,
        ctime: BORN,
        btime: BORN,
    }
}

impl Null {
    fn new() -> Null {
        let mut state = State::default();
        let new = NewInode::new(FileKind::Directory, 0o777);
        state.nodes.insert(ROOT, attr(ROOT, &Caller::root(), new));
        state.names.insert(ROOT, HashMap::new());
        Null { state: Mutex::new(state), next: AtomicU64::new(2) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("nothing panics while it is held")
    }
}

impl State {
    fn attr(&self, ino: Ino) -> FsResult<Attr> {
        self.nodes.get(&ino).cloned().ok_or(FsError::Stale)
    }

    fn names(&mut self, parent: Ino) -> FsResult<&mut HashMap<Vec<u8>, Ino>> {
        self.names.get_mut(&parent).ok_or(FsError::NotDirectory)
    }

    fn drop_name(&mut self, parent: Ino, name: &[u8]) -> FsResult<()> {
        let ino = self.names(parent)?.remove(name).ok_or(FsError::NotFound)?;
        if let Some(attr) = self.nodes.get_mut(&ino) {
            attr.nlink -= 1;
            if attr.nlink == 0 {
                self.nodes.remove(&ino);
                self.names.remove(&ino);
            }
        }
        Ok(())
    }
}

fn time(wanted: Option<SetTime>, old: Timestamp) -> Timestamp {
    match wanted {
        Some(SetTime::To(time)) => time,
        Some(SetTime::Now) => BORN,
        None => old,
    }
}

impl FileSystem for Null {
    fn main_fileset(&self) -> FilesetUuid {
        FilesetUuid(1)
    }

    fn verifier(&self) -> u64 {
        1
    }

    fn resolve(&self, _: &Caller, handle: FileHandle) -> FsResult<Attr> {
        self.state().attr(handle.ino)
    }

    fn root(&self) -> Ino {
        ROOT
    }

    fn lookup(&self, _: &Caller, parent: Ino, name: &[u8]) -> FsResult<Attr> {
        let mut state = self.state();
        if name == b"." || name == b".." {
            return state.attr(parent);
        }
        let ino = *state.names(parent)?.get(name).ok_or(FsError::NotFound)?;
        state.attr(ino)
    }

    fn forget(&self, _: Ino, _: u64) {}

    fn getattr(&self, _: &Caller, ino: Ino) -> FsResult<Attr> {
        self.state().attr(ino)
    }

    fn access(&self, _: &Caller, _: Ino) -> FsResult<AccessRights> {
        Ok(AccessRights { reads: true, writes: true, executes: true })
    }
    fn setattr(
        &self,
        _: &Caller,
        ino: Ino,
        change: &SetAttr,
        _: Option<&mut AttributeChange>,
    ) -> FsResult<Attr> {
        let mut state = self.state();
        let attr = state.nodes.get_mut(&ino).ok_or(FsError::Stale)?;
        attr.mode = change.mode.unwrap_or(attr.mode);
        attr.uid = change.uid.unwrap_or(attr.uid);
        attr.gid = change.gid.unwrap_or(attr.gid);
        attr.size_bytes = change.size_bytes.unwrap_or(attr.size_bytes);
        attr.atime = time(change.atime, attr.atime);
        attr.mtime = time(change.mtime, attr.mtime);
        Ok(attr.clone())
    }

    fn create(
        &self,
        caller: &Caller,
        parent: Ino,
        name: &[u8],
        new: NewInode,
        _: Option<&mut AttributeChange>,
    ) -> FsResult<Attr> {
        let ino = Ino(self.next.fetch_add(1, Ordering::Relaxed));
        let mut state = self.state();
        let names = state.names(parent)?;
        if names.contains_key(name) {
            return Err(FsError::Exists);
        }
        names.insert(name.to_vec(), ino);
        if new.kind == FileKind::Directory {
            state.names.insert(ino, HashMap::new());
        }
        let attr = attr(ino, caller, new);
        state.nodes.insert(ino, attr.clone());
        Ok(attr)
    }

    fn symlink(
        &self,
        _: &Caller,
        _: Ino,
        _: &[u8],
        _: &[u8],
        _: NewInode,
        _: Option<&mut AttributeChange>,
    ) -> FsResult<Attr> {
        Err(FsError::NotSupported)
    }

    fn readlink(&self, _: &Caller, _: Ino) -> FsResult<Vec<u8>> {
        Err(FsError::Invalid)
    }

    fn link(
        &self,
        _: &Caller,
        ino: Ino,
        parent: Ino,
        name: &[u8],
        _: Option<&mut AttributeChange>,
    ) -> FsResult<Attr> {
        let mut state = self.state();
        state.names(parent)?.insert(name.to_vec(), ino);
        let attr = state.nodes.get_mut(&ino).ok_or(FsError::Stale)?;
        attr.nlink += 1;
        Ok(attr.clone())
    }

    fn unlink(
        &self,
        _: &Caller,
        parent: Ino,
        name: &[u8],
        _: Option<&mut AttributeChange>,
    ) -> FsResult<()> {
        self.state().drop_name(parent, name)
    }

    fn rmdir(
        &self,
        _: &Caller,
        parent: Ino,
        name: &[u8],
        _: Option<&mut AttributeChange>,
    ) -> FsResult<()> {
        let mut state = self.state();
        let ino = *state.names(parent)?.get(name).ok_or(FsError::NotFound)?;
        if !state.names(ino)?.is_empty() {
            return Err(FsError::NotEmpty);
        }
        state.drop_name(parent, name)
    }

    fn rename(
        &self,
        _: &Caller,
        source: (Ino, &[u8]),
        target: (Ino, &[u8]),
        _: RenameMode,
        _: Option<&mut [AttributeChange; 2]>,
    ) -> FsResult<()> {
        let mut state = self.state();
        let ino = state.names(source.0)?.remove(source.1).ok_or(FsError::NotFound)?;
        // What was there stays in memory: this is not meant to run for long.
        state.names(target.0)?.insert(target.1.to_vec(), ino);
        Ok(())
    }

    fn read(
        &self,
        _: &Caller,
        ino: Ino,
        offset: u64,
        length: usize,
        into: &mut Vec<u8>,
    ) -> FsResult<usize> {
        let size_bytes = self.state().attr(ino)?.size_bytes;
        let left = usize::try_from(size_bytes.saturating_sub(offset)).unwrap_or(usize::MAX);
        let count = length.min(left);
        into.resize(into.len() + count, 0);
        Ok(count)
    }

    fn write(&self, _: &Caller, ino: Ino, offset: u64, data: &[u8]) -> FsResult<()> {
        let mut state = self.state();
        let attr = state.nodes.get_mut(&ino).ok_or(FsError::Stale)?;
        let length = u64::try_from(data.len()).map_err(|_| FsError::FileTooLarge)?;
        attr.size_bytes = attr.size_bytes.max(offset.saturating_add(length));
        Ok(())
    }

    fn write_some(
        &self,
        caller: &Caller,
        ino: Ino,
        offset: u64,
        data: &WriteData<'_>,
        _: Stability,
        _: Option<&mut AttributeChange>,
    ) -> FsResult<usize> {
        self.write(caller, ino, offset, data).map(|()| data.len())
    }

    fn cookie_verifier(&self, _: &Caller, ino: Ino) -> FsResult<u64> {
        Ok(ino.0)
    }

    fn readdir(
        &self,
        _: &Caller,
        ino: Ino,
        cookie: u64,
        each: &mut dyn FnMut(&DirEntry) -> bool,
    ) -> FsResult<()> {
        // In no lasting order: enough for what removes everything.
        let mut state = self.state();
        let names: Vec<_> =
            state.names(ino)?.iter().map(|(name, ino)| (name.clone(), *ino)).collect();
        for (position, (name, ino)) in (1..).zip(names) {
            let kind = state.attr(ino)?.kind;
            if position > cookie && !each(&DirEntry { name, ino, kind, cookie: position }) {
                break;
            }
        }
        Ok(())
    }

    fn fsync(&self, _: &Caller, _: Ino, _: bool) -> FsResult<()> {
        Ok(())
    }

    fn sync(&self) -> FsResult<()> {
        Ok(())
    }

    // What the loops do not ask for.
    fn getxattr(&self, _: &Caller, _: Ino, _: &[u8]) -> FsResult<Vec<u8>> {
        Err(FsError::NotSupported)
    }
    fn setxattr(
        &self,
        _: &Caller,
        _: Ino,
        _: &[u8],
        _: &[u8],
        _: XattrMode,
        _: Option<&mut AttributeChange>,
    ) -> FsResult<()> {
        Err(FsError::NotSupported)
    }
    fn listxattr(&self, _: &Caller, _: Ino) -> FsResult<Vec<Vec<u8>>> {
        Err(FsError::NotSupported)
    }
    fn removexattr(
        &self,
        _: &Caller,
        _: Ino,
        _: &[u8],
        _: Option<&mut AttributeChange>,
    ) -> FsResult<()> {
        Err(FsError::NotSupported)
    }
    fn tmpfile(&self, _: &Caller, _: Ino, _: NewInode) -> FsResult<Attr> {
        Err(FsError::NotSupported)
    }
    fn fallocate(&self, _: &Caller, _: Ino, _: u64, _: u64, _: Fallocate) -> FsResult<()> {
        Err(FsError::NotSupported)
    }
    fn seek(&self, _: &Caller, _: Ino, _: u64, _: Seek) -> FsResult<u64> {
        Err(FsError::NotSupported)
    }
    fn copy_range(&self, _: &Caller, _: (Ino, u64), _: (Ino, u64), _: u64) -> FsResult<u64> {
        Err(FsError::NotSupported)
    }

    fn statfs(&self, _: &Caller, _: FilesetUuid) -> FsResult<StatFs> {
        Ok(StatFs {
            block_bytes: 4096,
            fragment_bytes: 4096,
            total_bytes: SIZE_BYTES,
            free_bytes: SIZE_BYTES,
            available_bytes: SIZE_BYTES,
            inode_count: 1,
            inodes_free: SIZE_BYTES,
        })
    }
}

fn serve_nfs(address: &str) {
    let listener = TcpListener::bind(address).expect("nobody listens there");
    let port = listener.local_addr().expect("it has one").port();
    let service = Arc::new(Service::new(HandleKey([1; 16]), port));
    let rules = "/:rw,to=0.0.0.0/0,squash=none,insecure".parse().expect("it is one");
    let fs: Arc<dyn FileSystem> = Arc::new(Null::new());
    service.add(Export::new(rules, fs).expect("it is there")).expect("it is the first");
    let options = ServerOptions::default();
    let _server = NfsServer::start(service, vec![listener], &options).expect("it starts");
    println!("serving {address}");
    loop {
        std::thread::park();
    }
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let usage = "usage: null-server DIRECTORY [POLL_MICROSECONDS] | --nfs ADDRESS:PORT";
    let directory = arguments.next().expect(usage);
    if directory == "--nfs" {
        return serve_nfs(&arguments.next().expect(usage));
    }
    let mut options = MountOptions::new("null");
    if let Some(poll) = arguments.next() {
        options.poll_time = Duration::from_micros(poll.parse().expect("a number of microseconds"));
    }
    let signals = StopSignals::listen().expect("signals can be caught");
    let session = front::fuse::mount(Arc::new(Null::new()), Path::new(&directory), &options, None);
    let session = session.unwrap_or_else(|error| panic!("{error}"));
    println!("serving {directory}");
    front::fuse::run(session, signals).expect("it is served to the end");
}
