//! A [`FileSystem`] wrapper through which a front reaches a fileset that may move to another pool
//! while in use (decision 0082).
//!
//! ```text
//!   mount, export --> Relay --> current pool of the fileset
//!                       |  inode numbers: constant above, the current pool's below
//!                       `- requests wait here while the last difference is sent
//! ```
//!
//! # Invariants
//!
//! - RY1: A front sees one number for an inode during the inode's life, in every pool. For an inode
//!   of a snapshot this holds as long as the fileset stays in its pool.
//! - RY2: From [`Relay::stop`] until the drop of its result, no request and no awaited commit is in
//!   progress in a pool. References released in this time are queued.
//! - RY3: An inode number that was never shown for the current pool gives `Stale`, never a file of
//!   another fileset.
//! - RY4: No thread waits here with a lock of a pool, or inside a completion.
//!   [`FileSystem::forget`] never waits.
//!
//! # Concurrency
//!
//! Each request holds the location lock shared, a stop holds it exclusively. An asynchronous commit
//! is counted and holds no lock, since its thread may stay as the leader for other commits.

mod numbers;
#[cfg(test)]
mod tests;

use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::time::Duration;

use engine::api::forward::ForwardTarget;
use engine::api::{
    AccessRights, Attr, AttributeChange, Caller, Completion, DirEntry, Fallocate, FileHandle,
    FileKind, FileReadRequest, FileSystem, FilesetUuid, FsError, FsResult, Ino, NewInode,
    ReadCallback, RenameMode, Seek, SetAttr, Stability, StatFs, WriteData, XattrMode,
};
use parking_lot::{Condvar, Mutex, RwLock, RwLockReadGuard, RwLockWriteGuard};

use self::numbers::RelayNumbers;

/// Longest time that a stop waits for running requests. New requests wait as long.
const STOP_TIME: Duration = Duration::from_millis(80);
/// Longest time that a stop waits for commits, the slowest of which waits for a device.
const COMMITS_TIME: Duration = Duration::from_millis(80);

struct RelayTarget {
    fs: Arc<dyn FileSystem>,
    numbers: RelayNumbers,
    /// Requests are refused: the location of the fileset is uncertain.
    is_refused: bool,
}

/// The location, locked during one request.
struct RelayTargetGuard<'r>(RwLockReadGuard<'r, RelayTarget>);

impl Deref for RelayTargetGuard<'_> {
    type Target = RelayTarget;

    fn deref(&self) -> &RelayTarget {
        &self.0
    }
}

impl ForwardTarget for RelayTargetGuard<'_> {
    fn fs(&self) -> &dyn FileSystem {
        self.fs.as_ref()
    }

    fn below(&self, ino: Ino) -> FsResult<Ino> {
        self.numbers.below(ino)
    }

    fn shown(&self, ino: Ino) -> Ino {
        self.numbers.shown(ino)
    }
}

/// The files of one fileset, in whatever pool.
pub struct Relay {
    fileset: FilesetUuid,
    /// Write verifier of the first pool. Constant, as a move loses no data.
    verifier: u64,
    at: RwLock<RelayTarget>,
    commits: Arc<RelayCommits>,
    late: Mutex<DeferredReleases>,
    /// The next slot that was never shown to a front (RY3).
    unshown: Arc<AtomicU32>,
}

/// References released while requests are stopped.
#[derive(Default)]
struct DeferredReleases {
    is_kept: bool,
    given_back: Vec<(Ino, u64)>,
}

#[derive(Default)]
struct RelayCommits {
    count: Mutex<usize>,
    ended: Condvar,
}

struct RelayCommit(Arc<RelayCommits>);

impl RelayCommit {
    fn begin(commits: &Arc<RelayCommits>) -> RelayCommit {
        *commits.count.lock() += 1;
        RelayCommit(Arc::clone(commits))
    }
}

impl Drop for RelayCommit {
    fn drop(&mut self) {
        let mut count = self.0.count.lock();
        *count -= 1;
        if *count == 0 {
            self.0.ended.notify_all();
        }
    }
}

impl RelayCommits {
    /// Waits for the end of all commits. Returns `false` after [`COMMITS_TIME`].
    fn wait(&self) -> bool {
        let mut count = self.count.lock();
        let is_any = |count: &mut usize| *count > 0;
        !self.ended.wait_while_for(&mut count, is_any, COMMITS_TIME).timed_out() || *count == 0
    }
}

/// Guard that keeps requests waiting until it is dropped.
pub struct StoppedRelay<'r> {
    relay: &'r Relay,
    at: Option<RwLockWriteGuard<'r, RelayTarget>>,
}

impl StoppedRelay<'_> {
    /// Releases, in the current pool, the references that fronts have released since the stop.
    pub fn give_back(&self) {
        let all = std::mem::take(&mut self.relay.late.lock().given_back);
        if let Some(at) = &self.at {
            at.give_back(all);
        }
    }

    /// Sets the location to slot `slot` of `fs`. The fileset is held there, with all references of
    /// fronts.
    pub fn move_to(&mut self, fs: Arc<dyn FileSystem>, slot: u32) {
        let numbers = RelayNumbers::moved(slot, &self.relay.unshown);
        if let Some(at) = &mut self.at {
            **at = RelayTarget { fs, numbers, is_refused: false };
        }
    }

    /// Refuses requests until [`Relay::go_on`], because the location of the fileset is uncertain.
    pub fn refuse(&mut self) {
        if let Some(at) = &mut self.at {
            at.is_refused = true;
        }
    }
}

impl Drop for StoppedRelay<'_> {
    fn drop(&mut self) {
        self.at = None;
        self.relay.give_back_late();
    }
}

impl std::fmt::Debug for StoppedRelay<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Stopped").field("relay", self.relay).finish_non_exhaustive()
    }
}

impl std::fmt::Debug for Relay {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Relay").field("fileset", &self.fileset).finish_non_exhaustive()
    }
}

impl RelayTarget {
    fn give_back(&self, all: Vec<(Ino, u64)>) {
        for (ino, count) in all {
            if let Ok(ino) = self.numbers.below(ino) {
                self.fs.forget(ino, count);
            }
        }
    }

    /// Copies an entry into `into` with the front's inode number, reusing the name's buffer.
    fn put_entry<'e>(&self, entry: &DirEntry, into: &'e mut DirEntry) -> &'e DirEntry {
        into.name.clear();
        into.name.extend_from_slice(&entry.name);
        (into.ino, into.kind) = (self.numbers.shown(entry.ino), entry.kind);
        into.cookie = entry.cookie;
        into
    }
}

impl Relay {
    /// Creates a relay to a fileset of `fs`. The caller holds the fileset.
    pub fn new(fs: Arc<dyn FileSystem>, fileset: FilesetUuid) -> FsResult<Arc<Relay>> {
        let slot = fs.root_of(fileset)?.slot();
        let verifier = fs.verifier();
        let unshown = Arc::new(AtomicU32::new(numbers::FIRST_UNSHOWN));
        let numbers = RelayNumbers::first(slot, &unshown);
        let at = RwLock::new(RelayTarget { fs, numbers, is_refused: false });
        let (commits, late) = (Arc::default(), Mutex::default());
        Ok(Arc::new(Relay { fileset, verifier, at, commits, late, unshown }))
    }

    /// Stops requests (RY2). If those in progress take too long, returns `None` and lets requests
    /// run again.
    #[must_use]
    pub fn stop(&self) -> Option<StoppedRelay<'_>> {
        self.late.lock().is_kept = true;
        let Some(at) = self.at.try_write_for(STOP_TIME) else {
            self.give_back_late();
            return None;
        };
        let stopped = StoppedRelay { relay: self, at: Some(at) };
        self.commits.wait().then_some(stopped)
    }

    /// Returns the inode number in the current pool.
    pub fn below(&self, ino: Ino) -> FsResult<Ino> {
        self.at.read().numbers.below(ino)
    }

    /// Ends the refusal of requests. The fileset must be in the current location.
    pub fn go_on(&self) {
        // Locks exclusively only if needed: new requests would wait until the running ones end.
        if self.at.read().is_refused {
            self.at.write().is_refused = false;
        }
    }

    /// Stops queueing released references, and releases those queued.
    fn give_back_late(&self) {
        let all = {
            let mut late = self.late.lock();
            late.is_kept = false;
            std::mem::take(&mut late.given_back)
        };
        if !all.is_empty() {
            self.at.read().give_back(all);
        }
    }

    /// Runs a request in the current pool.
    fn request<T>(&self, run: impl FnOnce(&RelayTargetGuard<'_>) -> FsResult<T>) -> FsResult<T> {
        run(&self.here()?)
    }

    fn here(&self) -> FsResult<RelayTargetGuard<'_>> {
        let at = self.at.read();
        if at.is_refused { Err(FsError::TryLater) } else { Ok(RelayTargetGuard(at)) }
    }

    fn begin_commit(&self, ino: Ino) -> FsResult<(Arc<dyn FileSystem>, Ino, RelayCommit)> {
        let here = self.here()?;
        let ino = here.numbers.below(ino)?;
        Ok((Arc::clone(&here.fs), ino, RelayCommit::begin(&self.commits)))
    }
}

impl FileSystem for Relay {
    engine::forward! { request:
        resolve lookup getattr access parent_of name_in setattr create symlink readlink link
        link_over unlink rmdir read write_some cookie_verifier getxattr setxattr listxattr
        removexattr tmpfile fallocate seek copy_range fsync rename sync
    }

    fn main_fileset(&self) -> FilesetUuid {
        self.fileset
    }

    fn root(&self) -> Ino {
        Ino::root_of_slot(numbers::OWN)
    }

    fn root_of(&self, fileset: FilesetUuid) -> FsResult<Ino> {
        let here = self.here()?;
        Ok(here.numbers.shown(here.fs.root_of(fileset)?))
    }

    fn verifier(&self) -> u64 {
        self.verifier
    }

    /// LOCK: recursive. This thread may be inside another request: a plain read would wait behind a
    /// stop, and the stop waits for that request.
    fn handle_of(&self, attr: &Attr, fileset: FilesetUuid) -> FileHandle {
        let at = self.at.read_recursive();
        match at.numbers.below(attr.ino) {
            Ok(ino) => {
                let below = Attr { ino, ..attr.clone() };
                FileHandle { ino: attr.ino, ..at.fs.handle_of(&below, fileset) }
            }
            Err(_) => attr.handle(fileset),
        }
    }

    /// Never waits (RY4).
    fn forget(&self, ino: Ino, count: u64) {
        loop {
            if let Some(at) = self.at.try_read() {
                return at.give_back(vec![(ino, count)]);
            }
            // During a stop, queues the references.
            let mut late = self.late.lock();
            if late.is_kept {
                return late.given_back.push((ino, count));
            }
            drop(late);
            // LOCK: recursive, since a plain read fails while `go_on` waits, maybe for long.
            if let Some(at) = self.at.try_read_recursive() {
                return at.give_back(vec![(ino, count)]);
            }
            // The lock is held exclusively, but only for a moment: by `go_on`, or after a stop.
            std::thread::yield_now();
        }
    }

    fn read_each(&self, asked: &[FileReadRequest<'_>], told: &mut ReadCallback<'_>) {
        let refuse_all = |error: &FsError, told: &mut ReadCallback<'_>| {
            (0..asked.len()).for_each(|index| told(index, Err(error.clone())));
        };
        let here = match self.here() {
            Ok(here) => here,
            Err(error) => return refuse_all(&error, told),
        };
        let below = asked.iter().map(|asked| {
            here.numbers.below(asked.ino).map(|ino| FileReadRequest { ino, ..*asked })
        });
        match below.collect::<FsResult<Vec<_>>>() {
            Ok(below) => here.fs.read_each(&below, told),
            // One stale file must not fail the reads of the others.
            Err(_) => {
                for (index, asked) in asked.iter().enumerate() {
                    let FileReadRequest { caller, ino, offset, length_bytes } = asked;
                    let mut bytes = Vec::new();
                    let below = here.numbers.below(*ino);
                    let read = below.and_then(|ino| {
                        here.fs.read(caller, ino, *offset, *length_bytes, &mut bytes)
                    });
                    let whole = [&bytes[..]];
                    told(index, read.map(|_| &whole[..]));
                }
            }
        }
    }

    fn run_deferred_work(&self) {
        if let Some(at) = self.at.try_read() {
            at.fs.run_deferred_work();
        }
    }

    fn has_deferred_work(&self) -> bool {
        self.at.try_read().is_some_and(|at| at.fs.has_deferred_work())
    }

    fn readdir(
        &self,
        caller: &Caller,
        ino: Ino,
        cookie: u64,
        each: &mut dyn FnMut(&DirEntry) -> bool,
    ) -> FsResult<()> {
        let here = self.here()?;
        let ino = here.numbers.below(ino)?;
        let mut shown = empty_entry();
        here.fs.readdir(caller, ino, cookie, &mut |entry| each(here.put_entry(entry, &mut shown)))
    }

    fn readdir_plus(
        &self,
        caller: &Caller,
        ino: Ino,
        cookie: u64,
        each: &mut dyn FnMut(&DirEntry, Option<&Attr>) -> bool,
    ) -> FsResult<()> {
        let here = self.here()?;
        let ino = here.numbers.below(ino)?;
        let mut shown = empty_entry();
        here.fs.readdir_plus(caller, ino, cookie, &mut |entry, attr| {
            let attr = attr.map(|attr| Attr { ino: here.numbers.shown(attr.ino), ..attr.clone() });
            each(here.put_entry(entry, &mut shown), attr.as_ref())
        })
    }

    fn commit_then(&self, caller: &Caller, ino: Ino, data_only: bool, completion: Completion) {
        match self.begin_commit(ino) {
            Ok((fs, ino, commit)) => {
                fs.commit_then(caller, ino, data_only, counted(commit, completion));
            }
            Err(error) => completion(Err(error)),
        }
    }

    fn commit_each(&self, caller: &Caller, files: Vec<(Ino, Completion)>) {
        let (mut below, mut to) = (Vec::with_capacity(files.len()), None);
        let mut refused = Vec::new();
        {
            let here = self.here();
            for (ino, completion) in files {
                match here.as_ref().map_err(FsError::clone).and_then(|it| it.numbers.below(ino)) {
                    Ok(ino) => {
                        below.push((ino, counted(RelayCommit::begin(&self.commits), completion)))
                    }
                    Err(error) => refused.push((error, completion)),
                }
            }
            to = here.ok().map(|here| Arc::clone(&here.fs)).or(to);
        }
        refused.into_iter().for_each(|(error, completion)| completion(Err(error)));
        // Without a lock: this thread may become the leader for other commits.
        if let Some(fs) = to.filter(|_| !below.is_empty()) {
            fs.commit_each(caller, below);
        }
    }

    fn statfs(&self, caller: &Caller, fileset: FilesetUuid) -> FsResult<StatFs> {
        self.here()?.fs.statfs(caller, fileset)
    }
}

fn empty_entry() -> DirEntry {
    DirEntry { name: Vec::new(), ino: Ino(0), kind: FileKind::Regular, cookie: 0 }
}

fn counted(commit: RelayCommit, completion: Completion) -> Completion {
    Box::new(move |done| {
        completion(done);
        drop(commit);
    })
}
