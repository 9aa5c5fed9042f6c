//! A front's way to a fileset that may move to another pool while it is in use (decision 0082).
//!
//! ```text
//!   mount, export --> Relay --> pool that has the fileset
//!                       |  numbers of inodes: the same for ever to the front,
//!                       |                     those of the pool that has it below
//!                       `- requests wait here while the last difference is sent
//! ```
//!
//! # Invariants
//!
//! - RY1: A front sees one number of an inode for as long as it is there, in whatever pool, and
//!   whenever it asks. Of a clone it does as long as the fileset stays.
//! - RY2: From [`Relay::stop`] until what it returns is dropped no request is under way in a pool,
//!   nor a commit that somebody waits for. References that are given back meanwhile are kept.
//! - RY3: A number that was never shown of the pool that has the fileset now leads nowhere: not to
//!   a file of another fileset.
//! - RY4: Nobody waits here with a lock of a pool, nor from a completion: [`FileSystem::forget`]
//!   never waits.
//!
//! # Concurrency
//!
//! A request holds the lock of where the fileset is, shared, for as long as it takes; whoever stops
//! requests holds it alone. A commit that is answered later is counted, and holds no lock: the
//! thread that leads it may be kept for the commits of others.

mod numbers;
#[cfg(test)]
mod tests;

use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::time::Duration;

use engine::vnode::api::{
    Access, Around, Attr, Caller, Completion, Data, DirEntry, Fallocate, FileKind, FileSystem,
    FilesetUuid, FsError, FsResult, Handle, Ino, NewInode, ReadAsked, ReadTold, RenameMode, Seek,
    SetAttr, Stability, StatFs, XattrMode,
};
use parking_lot::{Condvar, Mutex, RwLock, RwLockReadGuard, RwLockWriteGuard};

use self::numbers::Numbers;

/// How long requests that are under way may take before nobody waits for them any more: others
/// wait meanwhile.
const STOP_TIME: Duration = Duration::from_millis(80);
/// And commits, of which the slowest waits for a device.
const COMMITS_TIME: Duration = Duration::from_millis(80);

/// Where a fileset is.
struct At {
    fs: Arc<dyn FileSystem>,
    numbers: Numbers,
    /// Whether nobody knows whether it is there still.
    is_refused: bool,
}

/// The same for one request, which keeps others from moving it away.
struct Here<'r>(RwLockReadGuard<'r, At>);

impl Deref for Here<'_> {
    type Target = At;

    fn deref(&self) -> &At {
        &self.0
    }
}

/// The files of one fileset, wherever it is.
pub struct Relay {
    fileset: FilesetUuid,
    /// The first pool's: what moves is durable where it arrives, so nothing was lost by then.
    verifier: u64,
    at: RwLock<At>,
    commits: Arc<Commits>,
    late: Mutex<Late>,
    /// The next slot that was never shown (RY3).
    unshown: Arc<AtomicU32>,
}

/// References that were given back while requests wait.
#[derive(Default)]
struct Late {
    is_kept: bool,
    given_back: Vec<(Ino, u64)>,
}

/// Commits that are under way.
#[derive(Default)]
struct Commits {
    count: Mutex<usize>,
    ended: Condvar,
}

/// One of them, until it is dropped.
struct Commit(Arc<Commits>);

impl Commit {
    fn begin(commits: &Arc<Commits>) -> Commit {
        *commits.count.lock() += 1;
        Commit(Arc::clone(commits))
    }
}

impl Drop for Commit {
    fn drop(&mut self) {
        let mut count = self.0.count.lock();
        *count -= 1;
        if *count == 0 {
            self.0.ended.notify_all();
        }
    }
}

impl Commits {
    /// Waits until none is under way. `false`: that takes too long.
    fn wait(&self) -> bool {
        let mut count = self.count.lock();
        let is_any = |count: &mut usize| *count > 0;
        !self.ended.wait_while_for(&mut count, is_any, COMMITS_TIME).timed_out() || *count == 0
    }
}

/// Requests wait until this is dropped.
pub struct Stopped<'r> {
    relay: &'r Relay,
    at: Option<RwLockWriteGuard<'r, At>>,
}

impl Stopped<'_> {
    /// Gives references back that fronts have given back since requests wait.
    pub fn give_back(&self) {
        let all = std::mem::take(&mut self.relay.late.lock().given_back);
        if let Some(at) = &self.at {
            at.give_back(all);
        }
    }

    /// The fileset is in slot `slot` of `fs` from now on, held, with all references that fronts had
    /// where it was.
    pub fn move_to(&mut self, fs: Arc<dyn FileSystem>, slot: u32) {
        let numbers = Numbers::moved(slot, &self.relay.unshown);
        if let Some(at) = &mut self.at {
            **at = At { fs, numbers, is_refused: false };
        }
    }

    /// Requests are refused from now on, until [`Relay::go_on`]: nobody knows where the fileset is.
    pub fn refuse(&mut self) {
        if let Some(at) = &mut self.at {
            at.is_refused = true;
        }
    }
}

impl Drop for Stopped<'_> {
    fn drop(&mut self) {
        self.at = None;
        self.relay.give_back_late();
    }
}

impl std::fmt::Debug for Stopped<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Stopped").field("relay", self.relay).finish_non_exhaustive()
    }
}

impl std::fmt::Debug for Relay {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Relay").field("fileset", &self.fileset).finish_non_exhaustive()
    }
}

impl At {
    fn give_back(&self, all: Vec<(Ino, u64)>) {
        for (ino, count) in all {
            if let Ok(ino) = self.numbers.below(ino) {
                self.fs.forget(ino, count);
            }
        }
    }

    fn attr(&self, found: FsResult<Attr>) -> FsResult<Attr> {
        let mut attr = found?;
        attr.ino = self.numbers.shown(attr.ino);
        Ok(attr)
    }

    fn around(&self, around: &mut Around) {
        let attrs = [&mut around.before, &mut around.after].into_iter().flatten();
        attrs.for_each(|attr| attr.ino = self.numbers.shown(attr.ino));
    }

    /// Does what tells attributes around it.
    fn with_around<T>(
        &self,
        mut around: Option<&mut Around>,
        work: impl FnOnce(Option<&mut Around>) -> T,
    ) -> T {
        let done = work(around.as_deref_mut());
        if let Some(around) = around {
            self.around(around);
        }
        done
    }

    /// Puts an entry as fronts see it into `into`, which keeps its room for names.
    fn put_entry<'e>(&self, entry: &DirEntry, into: &'e mut DirEntry) -> &'e DirEntry {
        into.name.clear();
        into.name.extend_from_slice(&entry.name);
        (into.ino, into.kind) = (self.numbers.shown(entry.ino), entry.kind);
        into.cookie = entry.cookie;
        into
    }
}

impl Relay {
    /// Returns the way to a fileset of `fs`, which is held.
    pub fn new(fs: Arc<dyn FileSystem>, fileset: FilesetUuid) -> FsResult<Arc<Relay>> {
        let slot = fs.root_of(fileset)?.slot();
        let verifier = fs.verifier();
        let unshown = Arc::new(AtomicU32::new(numbers::FIRST_UNSHOWN));
        let numbers = Numbers::first(slot, &unshown);
        let at = RwLock::new(At { fs, numbers, is_refused: false });
        let (commits, late) = (Arc::default(), Mutex::default());
        Ok(Arc::new(Relay { fileset, verifier, at, commits, late, unshown }))
    }

    /// RY2: keeps requests waiting. `None`: those under way take too long, and none waits any more.
    #[must_use]
    pub fn stop(&self) -> Option<Stopped<'_>> {
        self.late.lock().is_kept = true;
        let Some(at) = self.at.try_write_for(STOP_TIME) else {
            self.give_back_late();
            return None;
        };
        let stopped = Stopped { relay: self, at: Some(at) };
        self.commits.wait().then_some(stopped)
    }

    /// Returns the number that an inode has in the pool that the fileset is in.
    pub fn below(&self, ino: Ino) -> FsResult<Ino> {
        self.at.read().numbers.below(ino)
    }

    /// Requests that are refused go on where the fileset was: it is there.
    pub fn go_on(&self) {
        // To wait for who writes would keep all others waiting, behind whatever is under way.
        if self.at.read().is_refused {
            self.at.write().is_refused = false;
        }
    }

    /// Nothing is kept any more of what is given back.
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

    fn here(&self) -> FsResult<Here<'_>> {
        let at = self.at.read();
        if at.is_refused { Err(FsError::TryLater) } else { Ok(Here(at)) }
    }

    /// Returns the file system and a number in it for a commit, which is counted.
    fn begin_commit(&self, ino: Ino) -> FsResult<(Arc<dyn FileSystem>, Ino, Commit)> {
        let here = self.here()?;
        let ino = here.numbers.below(ino)?;
        Ok((Arc::clone(&here.fs), ino, Commit::begin(&self.commits)))
    }
}

impl FileSystem for Relay {
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

    fn resolve(&self, caller: &Caller, handle: Handle) -> FsResult<Attr> {
        let here = self.here()?;
        let ino = here.numbers.below(handle.ino)?;
        here.attr(here.fs.resolve(caller, Handle { ino, ..handle }))
    }

    /// LOCK: from within another request of the same thread, so whoever stops requests and waits
    /// for that one is not waited for.
    fn handle_of(&self, attr: &Attr, fileset: FilesetUuid) -> Handle {
        let at = self.at.read_recursive();
        match at.numbers.below(attr.ino) {
            Ok(ino) => {
                let below = Attr { ino, ..attr.clone() };
                Handle { ino: attr.ino, ..at.fs.handle_of(&below, fileset) }
            }
            Err(_) => attr.handle(fileset),
        }
    }

    fn lookup(&self, caller: &Caller, parent: Ino, name: &[u8]) -> FsResult<Attr> {
        let here = self.here()?;
        here.attr(here.fs.lookup(caller, here.numbers.below(parent)?, name))
    }

    fn parent_of(&self, ino: Ino) -> FsResult<(Ino, FileKind)> {
        let here = self.here()?;
        let (parent, kind) = here.fs.parent_of(here.numbers.below(ino)?)?;
        Ok((here.numbers.shown(parent), kind))
    }

    fn name_in(&self, directory: Ino, ino: Ino) -> FsResult<Vec<u8>> {
        let here = self.here()?;
        here.fs.name_in(here.numbers.below(directory)?, here.numbers.below(ino)?)
    }

    /// RY4.
    fn forget(&self, ino: Ino, count: u64) {
        loop {
            if let Some(at) = self.at.try_read() {
                return at.give_back(vec![(ino, count)]);
            }
            // Somebody stops requests, or has just let them go on.
            let mut late = self.late.lock();
            if late.is_kept {
                return late.given_back.push((ino, count));
            }
            drop(late);
            // LOCK: `go_on` waits for requests that are under way, and may for long.
            if let Some(at) = self.at.try_read_recursive() {
                return at.give_back(vec![(ino, count)]);
            }
            // It is written for a moment: by `go_on`, or behind a stop.
            std::thread::yield_now();
        }
    }

    fn getattr(&self, caller: &Caller, ino: Ino) -> FsResult<Attr> {
        let here = self.here()?;
        here.attr(here.fs.getattr(caller, here.numbers.below(ino)?))
    }

    fn access(&self, caller: &Caller, ino: Ino) -> FsResult<Access> {
        let here = self.here()?;
        here.fs.access(caller, here.numbers.below(ino)?)
    }

    fn setattr(
        &self,
        caller: &Caller,
        ino: Ino,
        change: &SetAttr,
        around: Option<&mut Around>,
    ) -> FsResult<Attr> {
        let here = self.here()?;
        let ino = here.numbers.below(ino)?;
        here.attr(here.with_around(around, |it| here.fs.setattr(caller, ino, change, it)))
    }

    fn create(
        &self,
        caller: &Caller,
        parent: Ino,
        name: &[u8],
        new: NewInode,
        around: Option<&mut Around>,
    ) -> FsResult<Attr> {
        let here = self.here()?;
        let parent = here.numbers.below(parent)?;
        here.attr(here.with_around(around, |it| here.fs.create(caller, parent, name, new, it)))
    }

    fn symlink(
        &self,
        caller: &Caller,
        parent: Ino,
        name: &[u8],
        target: &[u8],
        new: NewInode,
        around: Option<&mut Around>,
    ) -> FsResult<Attr> {
        let here = self.here()?;
        let parent = here.numbers.below(parent)?;
        let make = |it: Option<&mut Around>| here.fs.symlink(caller, parent, name, target, new, it);
        here.attr(here.with_around(around, make))
    }

    fn readlink(&self, caller: &Caller, ino: Ino) -> FsResult<Vec<u8>> {
        let here = self.here()?;
        here.fs.readlink(caller, here.numbers.below(ino)?)
    }

    fn link(
        &self,
        caller: &Caller,
        ino: Ino,
        parent: Ino,
        name: &[u8],
        around: Option<&mut Around>,
    ) -> FsResult<Attr> {
        let here = self.here()?;
        let (ino, parent) = (here.numbers.below(ino)?, here.numbers.below(parent)?);
        here.attr(here.with_around(around, |it| here.fs.link(caller, ino, parent, name, it)))
    }

    fn link_over(&self, caller: &Caller, ino: Ino, parent: Ino, name: &[u8]) -> FsResult<Attr> {
        let here = self.here()?;
        let (ino, parent) = (here.numbers.below(ino)?, here.numbers.below(parent)?);
        here.attr(here.fs.link_over(caller, ino, parent, name))
    }

    fn unlink(
        &self,
        caller: &Caller,
        parent: Ino,
        name: &[u8],
        around: Option<&mut Around>,
    ) -> FsResult<()> {
        let here = self.here()?;
        let parent = here.numbers.below(parent)?;
        here.with_around(around, |it| here.fs.unlink(caller, parent, name, it))
    }

    fn rmdir(
        &self,
        caller: &Caller,
        parent: Ino,
        name: &[u8],
        around: Option<&mut Around>,
    ) -> FsResult<()> {
        let here = self.here()?;
        let parent = here.numbers.below(parent)?;
        here.with_around(around, |it| here.fs.rmdir(caller, parent, name, it))
    }

    fn rename(
        &self,
        caller: &Caller,
        source: (Ino, &[u8]),
        target: (Ino, &[u8]),
        mode: RenameMode,
        mut around: Option<&mut [Around; 2]>,
    ) -> FsResult<()> {
        let here = self.here()?;
        let source = (here.numbers.below(source.0)?, source.1);
        let target = (here.numbers.below(target.0)?, target.1);
        let done = here.fs.rename(caller, source, target, mode, around.as_deref_mut());
        around.into_iter().flatten().for_each(|around| here.around(around));
        done
    }

    fn read(
        &self,
        caller: &Caller,
        ino: Ino,
        offset: u64,
        length_bytes: usize,
        into: &mut Vec<u8>,
    ) -> FsResult<usize> {
        let here = self.here()?;
        here.fs.read(caller, here.numbers.below(ino)?, offset, length_bytes, into)
    }

    fn read_each(&self, asked: &[ReadAsked<'_>], told: &mut ReadTold<'_>) {
        let refuse_all = |error: &FsError, told: &mut ReadTold<'_>| {
            (0..asked.len()).for_each(|index| told(index, Err(error.clone())));
        };
        let here = match self.here() {
            Ok(here) => here,
            Err(error) => return refuse_all(&error, told),
        };
        let below = asked
            .iter()
            .map(|asked| here.numbers.below(asked.ino).map(|ino| ReadAsked { ino, ..*asked }));
        match below.collect::<FsResult<Vec<_>>>() {
            Ok(below) => here.fs.read_each(&below, told),
            // Of several files one that is not there makes the others wait for no other answer.
            Err(_) => {
                for (index, asked) in asked.iter().enumerate() {
                    let ReadAsked { caller, ino, offset, length_bytes } = asked;
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

    fn write(&self, caller: &Caller, ino: Ino, offset: u64, data: &[u8]) -> FsResult<()> {
        let here = self.here()?;
        here.fs.write(caller, here.numbers.below(ino)?, offset, data)
    }

    fn write_some(
        &self,
        caller: &Caller,
        ino: Ino,
        offset: u64,
        data: &Data<'_>,
        stability: Stability,
        around: Option<&mut Around>,
    ) -> FsResult<usize> {
        let here = self.here()?;
        let ino = here.numbers.below(ino)?;
        let write =
            |it: Option<&mut Around>| here.fs.write_some(caller, ino, offset, data, stability, it);
        here.with_around(around, write)
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

    fn cookie_verifier(&self, caller: &Caller, ino: Ino) -> FsResult<u64> {
        let here = self.here()?;
        here.fs.cookie_verifier(caller, here.numbers.below(ino)?)
    }

    fn getxattr(&self, caller: &Caller, ino: Ino, name: &[u8]) -> FsResult<Vec<u8>> {
        let here = self.here()?;
        here.fs.getxattr(caller, here.numbers.below(ino)?, name)
    }

    fn setxattr(
        &self,
        caller: &Caller,
        ino: Ino,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
        around: Option<&mut Around>,
    ) -> FsResult<()> {
        let here = self.here()?;
        let ino = here.numbers.below(ino)?;
        let set = |it: Option<&mut Around>| here.fs.setxattr(caller, ino, name, value, mode, it);
        here.with_around(around, set)
    }

    fn listxattr(&self, caller: &Caller, ino: Ino) -> FsResult<Vec<Vec<u8>>> {
        let here = self.here()?;
        here.fs.listxattr(caller, here.numbers.below(ino)?)
    }

    fn removexattr(
        &self,
        caller: &Caller,
        ino: Ino,
        name: &[u8],
        around: Option<&mut Around>,
    ) -> FsResult<()> {
        let here = self.here()?;
        let ino = here.numbers.below(ino)?;
        here.with_around(around, |it| here.fs.removexattr(caller, ino, name, it))
    }

    fn tmpfile(&self, caller: &Caller, parent: Ino, new: NewInode) -> FsResult<Attr> {
        let here = self.here()?;
        here.attr(here.fs.tmpfile(caller, here.numbers.below(parent)?, new))
    }

    fn fallocate(
        &self,
        caller: &Caller,
        ino: Ino,
        offset: u64,
        length_bytes: u64,
        mode: Fallocate,
    ) -> FsResult<()> {
        let here = self.here()?;
        here.fs.fallocate(caller, here.numbers.below(ino)?, offset, length_bytes, mode)
    }

    fn seek(&self, caller: &Caller, ino: Ino, offset: u64, what: Seek) -> FsResult<u64> {
        let here = self.here()?;
        here.fs.seek(caller, here.numbers.below(ino)?, offset, what)
    }

    fn copy_range(
        &self,
        caller: &Caller,
        source: (Ino, u64),
        target: (Ino, u64),
        length_bytes: u64,
    ) -> FsResult<u64> {
        let here = self.here()?;
        let source = (here.numbers.below(source.0)?, source.1);
        let target = (here.numbers.below(target.0)?, target.1);
        here.fs.copy_range(caller, source, target, length_bytes)
    }

    fn fsync(&self, caller: &Caller, ino: Ino, data_only: bool) -> FsResult<()> {
        let here = self.here()?;
        here.fs.fsync(caller, here.numbers.below(ino)?, data_only)
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
                    Ok(ino) => below.push((ino, counted(Commit::begin(&self.commits), completion))),
                    Err(error) => refused.push((error, completion)),
                }
            }
            to = here.ok().map(|here| Arc::clone(&here.fs)).or(to);
        }
        refused.into_iter().for_each(|(error, completion)| completion(Err(error)));
        // No lock is held: the thread may be kept for the commits of others.
        if let Some(fs) = to.filter(|_| !below.is_empty()) {
            fs.commit_each(caller, below);
        }
    }

    fn sync(&self) -> FsResult<()> {
        self.here()?.fs.sync()
    }

    fn statfs(&self, caller: &Caller, fileset: FilesetUuid) -> FsResult<StatFs> {
        self.here()?.fs.statfs(caller, fileset)
    }
}

fn empty_entry() -> DirEntry {
    DirEntry { name: Vec::new(), ino: Ino(0), kind: FileKind::Regular, cookie: 0 }
}

/// Returns what calls `completion`, and then counts the commit no more.
fn counted(commit: Commit, completion: Completion) -> Completion {
    Box::new(move |done| {
        completion(done);
        drop(commit);
    })
}
