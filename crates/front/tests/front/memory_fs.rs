//! A small file system in memory: enough of one to see what a front makes of it.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use engine::api::{
    AccessRights, Attr, AttributeChange, Caller, Completion, DirEntry, Fallocate, FileHandle,
    FileKind, FileSystem, FilesetUuid, FsError, FsResult, Ino, NewInode, RenameMode, Seek, SetAttr,
    SetTime, Stability, StatFs, Timestamp, WHITEOUT, WriteData, XattrMode,
};
use engine::error::DefectCode;
use parking_lot::Mutex;

/// Number of the root: not 1, so that the translation of node ids shows.
pub(crate) const ROOT: Ino = Ino(1 << 40 | 2);
/// A name whose lookup fails as a damaged inode's would.
pub(crate) const DAMAGED: &[u8] = b"damaged";
/// A name whose look-up takes so long once it has found what is there, as before a slow device.
pub(crate) const SLOW: &[u8] = b"slow";
/// A name whose look-up does not end while a test holds a gate, as before a device that hangs.
pub(crate) const HANGING: &[u8] = b"hanging";
pub(crate) const SLOW_TIME: Duration = Duration::from_millis(200);
/// A file whose reading panics, as a bug would.
pub(crate) const PANICKING: &[u8] = b"panicking";
/// The setuid and setgid bits of a mode.
const SET_BITS: u16 = 0o6000;
/// What the clock says.
pub(crate) const NOW: Timestamp = Timestamp { seconds: 1_000_000_000, nanoseconds: 123_456_789 };

#[derive(Debug)]
struct File {
    attr: Attr,
    data: Vec<u8>,
    names: BTreeMap<Vec<u8>, Ino>,
    parent: Ino,
    references: u64,
    panics: bool,
}

#[derive(Debug, Default)]
struct State {
    files: BTreeMap<Ino, File>,
    next_ino: u64,
}

/// The file system.
#[derive(Debug)]
pub(crate) struct MemoryFs {
    state: Mutex<State>,
    pub(crate) fsync_count: AtomicU64,
    pub(crate) sync_count: AtomicU64,
    /// Where the farthest read ended: bytes.
    pub(crate) read_end: AtomicU64,
    /// How long a file may be: behind that there is no space.
    pub(crate) size_bytes_max: AtomicU64,
    /// While a test holds it, no fsync ends.
    pub(crate) gate: Mutex<()>,
    pub(crate) later: Later,
    pub(crate) deferred: Deferred,
    /// While a test holds it, no look-up of [`HANGING`] ends.
    pub(crate) hangs: Mutex<()>,
    /// While it is set, nobody is told what a file is.
    pub(crate) hides_attributes: AtomicBool,
}

/// What is put off: nothing, until a test says so, and then always something.
#[derive(Debug, Default)]
pub(crate) struct Deferred {
    pub(crate) is_there: AtomicBool,
    /// How often somebody has begun to do it.
    pub(crate) begun: AtomicU64,
    /// While a test holds it, nobody gets it done.
    pub(crate) gate: Mutex<()>,
}

/// Whom a sync tells, and how it ended.
type Ended = (Completion, FsResult<()>);

/// The syncs that were not told of, once a test wants to do that.
#[derive(Default)]
pub(crate) struct Later(Mutex<Option<Vec<Ended>>>);

impl Later {
    /// From now on syncs are told of when the test does so.
    pub(crate) fn begin(&self) {
        self.0.lock().get_or_insert_default();
    }

    /// Returns how many were not taken.
    pub(crate) fn count(&self) -> usize {
        self.0.lock().as_ref().map_or(0, Vec::len)
    }

    /// Returns the oldest that was not taken.
    pub(crate) fn take(&self) -> Option<Ended> {
        let mut kept = self.0.lock();
        let kept = kept.as_mut()?;
        (!kept.is_empty()).then(|| kept.remove(0))
    }
}

impl std::fmt::Debug for Later {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Later").finish_non_exhaustive()
    }
}

impl MemoryFs {
    pub(crate) fn new() -> MemoryFs {
        let mut state = State { files: BTreeMap::new(), next_ino: 1 };
        // For whoever runs the tests.
        let new = NewInode::new(FileKind::Directory, 0o777);
        let root = new_file(ROOT, ROOT, &Caller::root(), new);
        state.files.insert(ROOT, root);
        MemoryFs {
            state: Mutex::new(state),
            fsync_count: AtomicU64::new(0),
            sync_count: AtomicU64::new(0),
            read_end: AtomicU64::new(0),
            size_bytes_max: AtomicU64::new(u64::MAX),
            gate: Mutex::new(()),
            later: Later::default(),
            deferred: Deferred::default(),
            hangs: Mutex::new(()),
            hides_attributes: AtomicBool::new(false),
        }
    }

    /// Returns the references held on `ino`; `None` where it is gone.
    pub(crate) fn references(&self, ino: Ino) -> Option<u64> {
        self.state.lock().files.get(&ino).map(|file| file.references)
    }
}

fn new_file(ino: Ino, parent: Ino, caller: &Caller, new: NewInode) -> File {
    let nlink = if new.kind == FileKind::Directory { 2 } else { 1 };
    let attr = Attr {
        ino,
        generation: ino.0 + 7,
        kind: new.kind,
        mode: new.mode,
        nlink,
        uid: caller.uid,
        gid: caller.gid,
        project: 0,
        rdev: new.rdev,
        size_bytes: 0,
        blocks_512: 0,
        blocks_may_change: false,
        atime: NOW,
        mtime: NOW,
        ctime: NOW,
        btime: NOW,
    };
    File { attr, data: Vec::new(), names: BTreeMap::new(), parent, references: 0, panics: false }
}

impl State {
    fn file(&mut self, ino: Ino) -> FsResult<&mut File> {
        self.files.get_mut(&ino).ok_or(FsError::Stale)
    }

    fn directory(&mut self, ino: Ino) -> FsResult<&mut File> {
        let file = self.file(ino)?;
        if file.attr.kind == FileKind::Directory { Ok(file) } else { Err(FsError::NotDirectory) }
    }

    fn child(&mut self, parent: Ino, name: &[u8]) -> FsResult<Ino> {
        self.directory(parent)?.names.get(name).copied().ok_or(FsError::NotFound)
    }

    fn referenced(&mut self, ino: Ino) -> FsResult<Attr> {
        let file = self.file(ino)?;
        file.references += 1;
        Ok(file.attr.clone())
    }

    fn add(&mut self, caller: &Caller, parent: Ino, name: &[u8], new: NewInode) -> FsResult<Ino> {
        if name.len() > 255 {
            return Err(FsError::NameTooLong);
        }
        if self.directory(parent)?.names.contains_key(name) {
            return Err(FsError::Exists);
        }
        // The first number is 1, which is the root's node id.
        let ino = Ino(self.next_ino);
        self.next_ino += 1;
        let mut file = new_file(ino, parent, caller, new);
        file.panics = name == PANICKING;
        self.files.insert(ino, file);
        self.directory(parent)?.names.insert(name.to_vec(), ino);
        Ok(ino)
    }

    fn drop_name(&mut self, parent: Ino, name: &[u8]) -> FsResult<()> {
        let ino = self.child(parent, name)?;
        self.directory(parent)?.names.remove(name);
        let file = self.file(ino)?;
        file.attr.nlink =
            if file.attr.kind == FileKind::Directory { 0 } else { file.attr.nlink - 1 };
        self.reap(ino);
        Ok(())
    }

    fn reap(&mut self, ino: Ino) {
        let is_gone = |file: &File| file.attr.nlink == 0 && file.references == 0;
        if self.files.get(&ino).is_some_and(is_gone) {
            self.files.remove(&ino);
        }
    }
}

fn time(wanted: SetTime) -> Timestamp {
    match wanted {
        SetTime::Now => NOW,
        SetTime::To(time) => time,
    }
}

/// Longest file here.
const SIZE_BYTES_MAX: u64 = 16 << 20;

fn index(offset: u64) -> FsResult<usize> {
    if offset > SIZE_BYTES_MAX {
        return Err(FsError::FileTooLarge);
    }
    Ok(usize::try_from(offset).expect("it is small"))
}

impl FileSystem for MemoryFs {
    fn main_fileset(&self) -> FilesetUuid {
        FilesetUuid(1)
    }

    fn verifier(&self) -> u64 {
        1
    }

    fn resolve(&self, _: &Caller, handle: FileHandle) -> FsResult<Attr> {
        self.state.lock().referenced(handle.ino)
    }

    fn has_deferred_work(&self) -> bool {
        self.deferred.is_there.load(Ordering::SeqCst)
    }

    fn run_deferred_work(&self) {
        self.deferred.begun.fetch_add(1, Ordering::SeqCst);
        drop(self.deferred.gate.lock());
    }

    fn root(&self) -> Ino {
        ROOT
    }

    fn lookup(&self, _: &Caller, parent: Ino, name: &[u8]) -> FsResult<Attr> {
        let mut state = self.state.lock();
        match name {
            b"." => state.referenced(parent),
            b".." => {
                let parent = state.directory(parent)?.parent;
                state.referenced(parent)
            }
            HANGING => {
                drop(state);
                drop(self.hangs.lock());
                Err(FsError::NotFound)
            }
            DAMAGED => Err(FsError::from(DefectCode::MP005.found("a test"))),
            name => {
                let found = state.child(parent, name).and_then(|ino| state.referenced(ino));
                drop(state);
                if name == SLOW {
                    std::thread::park_timeout(SLOW_TIME);
                }
                found
            }
        }
    }

    fn forget(&self, ino: Ino, count: u64) {
        let mut state = self.state.lock();
        // A kernel that counts wrongly is no reason to fail.
        let Ok(file) = state.file(ino) else { return };
        file.references = file.references.saturating_sub(count);
        state.reap(ino);
    }

    fn getattr(&self, _: &Caller, ino: Ino) -> FsResult<Attr> {
        if self.hides_attributes.load(Ordering::Relaxed) {
            return Err(FsError::io("as a test says"));
        }
        self.state.lock().file(ino).map(|file| file.attr.clone())
    }

    fn access(&self, _: &Caller, ino: Ino) -> FsResult<AccessRights> {
        self.state.lock().file(ino)?;
        Ok(AccessRights { reads: true, writes: true, executes: true })
    }

    fn setattr(
        &self,
        caller: &Caller,
        ino: Ino,
        change: &SetAttr,
        _: Option<&mut AttributeChange>,
    ) -> FsResult<Attr> {
        let mut state = self.state.lock();
        let file = state.file(ino)?;
        let has_room = change.size_bytes <= Some(self.size_bytes_max.load(Ordering::SeqCst));
        if let Some(size) = change.size_bytes.filter(|_| has_room) {
            file.data.resize(index(size)?, 0);
            file.attr.size_bytes = size;
            file.attr.mode &= if caller.loses_set_bits { !SET_BITS } else { !0 };
        }
        file.attr.mode = change.mode.unwrap_or(file.attr.mode);
        file.attr.uid = change.uid.unwrap_or(file.attr.uid);
        file.attr.gid = change.gid.unwrap_or(file.attr.gid);
        file.attr.atime = change.atime.map_or(file.attr.atime, time);
        file.attr.mtime = change.mtime.map_or(file.attr.mtime, time);
        if has_room { Ok(file.attr.clone()) } else { Err(FsError::NoSpace) }
    }

    fn create(
        &self,
        caller: &Caller,
        parent: Ino,
        name: &[u8],
        new: NewInode,
        _: Option<&mut AttributeChange>,
    ) -> FsResult<Attr> {
        let mut state = self.state.lock();
        let ino = state.add(caller, parent, name, new)?;
        state.referenced(ino)
    }

    fn symlink(
        &self,
        caller: &Caller,
        parent: Ino,
        name: &[u8],
        to: &[u8],
        _: NewInode,
        _: Option<&mut AttributeChange>,
    ) -> FsResult<Attr> {
        let mut state = self.state.lock();
        let new = NewInode::new(FileKind::Symlink, 0o777);
        let ino = state.add(caller, parent, name, new)?;
        let file = state.file(ino)?;
        file.data = to.to_vec();
        file.attr.size_bytes = u64::try_from(to.len()).expect("a target is short");
        state.referenced(ino)
    }

    fn readlink(&self, _: &Caller, ino: Ino) -> FsResult<Vec<u8>> {
        let mut state = self.state.lock();
        let file = state.file(ino)?;
        if file.attr.kind == FileKind::Symlink {
            Ok(file.data.clone())
        } else {
            Err(FsError::Invalid)
        }
    }

    fn link(
        &self,
        _: &Caller,
        ino: Ino,
        parent: Ino,
        name: &[u8],
        _: Option<&mut AttributeChange>,
    ) -> FsResult<Attr> {
        let mut state = self.state.lock();
        if state.directory(parent)?.names.contains_key(name) {
            return Err(FsError::Exists);
        }
        state.file(ino)?.attr.nlink += 1;
        state.directory(parent)?.names.insert(name.to_vec(), ino);
        state.referenced(ino)
    }

    fn unlink(
        &self,
        _: &Caller,
        parent: Ino,
        name: &[u8],
        _: Option<&mut AttributeChange>,
    ) -> FsResult<()> {
        self.state.lock().drop_name(parent, name)
    }

    fn rmdir(
        &self,
        _: &Caller,
        parent: Ino,
        name: &[u8],
        _: Option<&mut AttributeChange>,
    ) -> FsResult<()> {
        let mut state = self.state.lock();
        let ino = state.child(parent, name)?;
        if !state.directory(ino)?.names.is_empty() {
            return Err(FsError::NotEmpty);
        }
        state.drop_name(parent, name)
    }

    fn rename(
        &self,
        caller: &Caller,
        source: (Ino, &[u8]),
        target: (Ino, &[u8]),
        mode: RenameMode,
        _: Option<&mut [AttributeChange; 2]>,
    ) -> FsResult<()> {
        let mut state = self.state.lock();
        let moved = state.child(source.0, source.1)?;
        let there = state.child(target.0, target.1).ok();
        match (mode, there) {
            (_, Some(_)) if mode.keeps_target() => return Err(FsError::Exists),
            (RenameMode::Exchange, None) => return Err(FsError::NotFound),
            (RenameMode::Exchange, Some(other)) => {
                state.directory(source.0)?.names.insert(source.1.to_vec(), other);
            }
            (_, there) => {
                if there.is_some() {
                    state.drop_name(target.0, target.1)?;
                }
                state.directory(source.0)?.names.remove(source.1);
            }
        }
        if mode.leaves_whiteout() {
            state.add(caller, source.0, source.1, WHITEOUT)?;
        }
        state.directory(target.0)?.names.insert(target.1.to_vec(), moved);
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
        let mut state = self.state.lock();
        let file = state.file(ino)?;
        if file.panics {
            drop(state);
            panic!("a bug, as the test wants it");
        }
        let start = index(offset)?.min(file.data.len());
        let end = start.saturating_add(length).min(file.data.len());
        into.extend_from_slice(&file.data[start..end]);
        let read_end = u64::try_from(end).expect("test files are small");
        self.read_end.fetch_max(read_end, Ordering::SeqCst);
        Ok(end - start)
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
        let room = self.size_bytes_max.load(Ordering::SeqCst).saturating_sub(offset);
        let count = usize::try_from(room).map_or(data.len(), |room| room.min(data.len()));
        if count == 0 && !data.is_empty() {
            return Err(FsError::NoSpace);
        }
        let mut state = self.state.lock();
        let file = state.file(ino)?;
        let start = index(offset)?;
        let end = start + count;
        if file.data.len() < end {
            file.data.resize(end, 0);
        }
        file.data[start..end].copy_from_slice(&data[..count]);
        file.attr.size_bytes = u64::try_from(file.data.len()).expect("test files are small");
        file.attr.mode &= if caller.loses_set_bits { !SET_BITS } else { !0 };
        Ok(count)
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
        let mut state = self.state.lock();
        let directory = state.directory(ino)?;
        let mut all = vec![(b".".to_vec(), ino), (b"..".to_vec(), directory.parent)];
        all.extend(directory.names.iter().map(|(name, &ino)| (name.clone(), ino)));
        for (position, (name, ino)) in (1..).zip(all) {
            let kind = state.file(ino)?.attr.kind;
            if position > cookie && !each(&DirEntry { name, ino, kind, cookie: position }) {
                break;
            }
        }
        Ok(())
    }

    fn fsync(&self, caller: &Caller, ino: Ino, _: bool) -> FsResult<()> {
        self.fsync_count.fetch_add(1, Ordering::SeqCst);
        let _passed = self.gate.lock();
        self.getattr(caller, ino).map(|_| ())
    }

    fn commit_then(&self, caller: &Caller, ino: Ino, data_only: bool, told: Completion) {
        let panics = self.state.lock().file(ino).is_ok_and(|file| file.panics);
        assert!(!panics, "a bug, as the test wants it");
        let done = self.fsync(caller, ino, data_only);
        match &mut *self.later.0.lock() {
            Some(kept) => kept.push((told, done)),
            None => told(done),
        }
    }

    fn sync(&self) -> FsResult<()> {
        self.sync_count.fetch_add(1, Ordering::SeqCst);
        Ok(())
    }

    // What these tests do not ask for.
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
            block_bytes: 16_384,
            fragment_bytes: 4096,
            total_bytes: 1 << 30,
            free_bytes: 1 << 29,
            available_bytes: 1 << 28,
            inode_count: 10,
            inodes_free: 90,
        })
    }
}
