//! The uses of the filesets of an open pool (mounts, exports, copy-ins), and which of them may be
//! combined.
//!
//! The kernel caches a fileset that is mounted alone without limit, so nothing else may change it
//! (decision 0075). An export may be combined with a copy-in, because NFS clients revalidate.
//! Shared mounts may be combined with each other, with exports and with copy-ins: they notify each
//! other of changes (decision 0077).
//!
//! A fileset may move to another pool of the server while it is in use (decision 0082). Its uses
//! therefore belong to a *seat* ([`ActiveFileset`]), which records the fileset's current pool.
//! Snapshots, and the fileset that a pool was opened with, do not move and have no seat.
//!
//! # Invariants
//!
//! - UF1: A fileset that is mounted alone has no other use.
//! - UF2: A fileset is held in the engine as long as it has a use, and is released after the last
//!   request of that use. A [`FilesetUseGuard`] is therefore dropped only when the use's threads
//!   have ended.
//! - UF3: A fileset in use has exactly one seat. The fileset's pool and, during a move, the target
//!   pool both map the fileset to that seat, so a claim in either pool gets the same seat.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use engine::Fronts;
use engine::api::{FileSystem, FilesetUuid, FsResult, Ino};
use format::fileset::{FilesetName, NamePart};
use front::relay::{Relay, StoppedRelay};
use front::shared::{NotifyingFileSystem, SharedFilesets};
use runtime::clock::SystemClock;

use crate::backend::{BackendError, OpenPool};
use control::{Answer, Request, UseFacts};

/// How a fileset is used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FilesetUse {
    /// Mounted alone below this directory: the kernel caches without revalidation.
    Mount(PathBuf),
    /// Mounted shared below this directory: others may change the files.
    SharedMount(PathBuf),
    /// Exported to network clients under this name.
    Export(String),
    /// A tree is being copied into it.
    CopyIn,
}

impl FilesetUse {
    fn goes_with(&self, other: &FilesetUse) -> bool {
        match (self, other) {
            (FilesetUse::Mount(_), _) | (_, FilesetUse::Mount(_)) => false,
            (FilesetUse::SharedMount(_) | FilesetUse::Export(_) | FilesetUse::CopyIn, _) => true,
        }
    }

    fn facts(&self) -> UseFacts {
        let (kind, at) = match self {
            FilesetUse::Mount(directory) | FilesetUse::SharedMount(directory) => {
                ("mount", directory.display().to_string())
            }
            FilesetUse::Export(name) => ("export", name.clone()),
            FilesetUse::CopyIn => ("copy-in", String::new()),
        };
        UseFacts { kind: kind.to_owned(), at }
    }

    fn words(&self) -> String {
        match self {
            FilesetUse::Mount(directory) => {
                let directory = directory.display();
                format!(
                    "it is mounted on {directory} without --shared: `holdfast unmount \
                     {directory}`, then mount it with --shared in both places; or name another \
                     fileset"
                )
            }
            FilesetUse::SharedMount(directory) => {
                let directory = directory.display();
                format!(
                    "it is mounted on {directory} with --shared: mount it with --shared here too"
                )
            }
            FilesetUse::Export(name) => format!(
                "it is exported as {name}, and a mount would not see what its clients change: \
                 mount it with --shared, or remove the export first"
            ),
            FilesetUse::CopyIn => {
                "a tree is being copied into it: wait until that has ended, or mount it with \
                 --shared"
                    .to_owned()
            }
        }
    }
}

/// The uses of a pool's filesets.
pub struct FilesetUses {
    path: PathBuf,
    pool: Arc<dyn OpenPool>,
    shares: Arc<SharedFilesets>,
    /// File system for exports and copy-ins. Changes through it notify the shared mounts.
    outside: Arc<dyn FileSystem>,
    table: Mutex<FilesetUseTable>,
    seats: Mutex<BTreeMap<FilesetUuid, Weak<ActiveFileset>>>,
}

#[derive(Default)]
struct FilesetUseTable {
    next: u64,
    uses: BTreeMap<u64, (FilesetUuid, FilesetUse)>,
}

impl FilesetUseTable {
    fn enter(&mut self, fileset: FilesetUuid, how: FilesetUse) -> Result<u64, FilesetUse> {
        let goes_not =
            |(it, other): &&(FilesetUuid, FilesetUse)| *it == fileset && !how.goes_with(other);
        if let Some((_, other)) = self.uses.values().find(goes_not) {
            return Err(other.clone());
        }
        self.next += 1;
        self.uses.insert(self.next, (fileset, how));
        Ok(self.next)
    }
}

pub(crate) struct ActiveFileset {
    fileset: FilesetUuid,
    relay: Arc<Relay>,
    shares: Arc<SharedFilesets>,
    outside: Arc<dyn FileSystem>,
    table: Mutex<FilesetUseTable>,
    /// The pool that contains the fileset, and has one hold of the seat on it.
    at: Mutex<Arc<FilesetUses>>,
}

impl Drop for ActiveFileset {
    fn drop(&mut self) {
        self.at().pool.release_fileset(self.fileset);
    }
}

/// A use of a fileset, ended by drop.
pub struct FilesetUseGuard {
    fileset: FilesetUuid,
    number: u64,
    of: FilesetUseOwner,
}

enum FilesetUseOwner {
    Seat(Arc<ActiveFileset>),
    Pool(Arc<FilesetUses>),
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl FilesetUses {
    /// Returns an empty table of uses of `pool`, opened at `path`. Releases the hold that the
    /// opening took, because every use takes its own (UF2).
    pub(crate) fn new(path: &Path, pool: &Arc<dyn OpenPool>) -> Arc<FilesetUses> {
        pool.release_fileset(pool.file_system().main_fileset());
        let shares = SharedFilesets::new(Arc::new(SystemClock::new()));
        Arc::new(FilesetUses {
            path: path.to_owned(),
            pool: Arc::clone(pool),
            outside: NotifyingFileSystem::of(pool.file_system(), &shares),
            shares,
            table: Mutex::default(),
            seats: Mutex::default(),
        })
    }

    /// Claims a fileset or a snapshot of it. With `name` `None` it claims the fileset that the pool
    /// was opened with.
    pub fn claim(
        self: &Arc<FilesetUses>,
        name: Option<&FilesetName>,
        snapshot: Option<&NamePart>,
        how: FilesetUse,
    ) -> Result<FilesetUseGuard, BackendError> {
        let main = self.pool.file_system().main_fileset();
        let fileset = self.pool.hold_fileset(name, snapshot)?;
        // From here on, dropping the claim or its seat releases the hold.
        let of = if snapshot.is_none() && fileset != main {
            FilesetUseOwner::Seat(self.take_seat(fileset)?)
        } else {
            FilesetUseOwner::Pool(Arc::clone(self))
        };
        let mut claim = FilesetUseGuard { fileset, number: 0, of };
        let entered = lock(claim.table()).enter(fileset, how);
        match entered {
            Ok(number) => claim.number = number,
            Err(other) => {
                let shown = self.pool.fileset_name(fileset).unwrap_or_default();
                let cause = format!("fileset {shown}: {}", other.words());
                return Err(BackendError::Failed { device: self.path.clone(), cause });
            }
        }
        Ok(claim)
    }

    /// Returns the seat of a fileset. The caller passes one hold to the seat.
    fn take_seat(
        self: &Arc<FilesetUses>,
        fileset: FilesetUuid,
    ) -> Result<Arc<ActiveFileset>, BackendError> {
        let mut seats = lock(&self.seats);
        seats.retain(|_, seat| seat.strong_count() > 0);
        if let Some(seat) = seats.get(&fileset).and_then(Weak::upgrade) {
            // An existing seat has its own hold, so the caller's is not needed.
            self.pool.release_fileset(fileset);
            return Ok(seat);
        }
        let relay = Relay::new(self.pool.file_system(), fileset).map_err(|error| {
            self.pool.release_fileset(fileset);
            BackendError::Failed { device: self.path.clone(), cause: error.to_string() }
        })?;
        let fs: Arc<dyn FileSystem> = Arc::<Relay>::clone(&relay);
        let seat = Arc::new(ActiveFileset {
            fileset,
            relay,
            shares: Arc::clone(&self.shares),
            outside: NotifyingFileSystem::of(fs, &self.shares),
            table: Mutex::default(),
            at: Mutex::new(Arc::clone(self)),
        });
        seats.insert(fileset, Arc::downgrade(&seat));
        Ok(seat)
    }

    pub(crate) fn seat_of(&self, name: &str) -> Option<Arc<ActiveFileset>> {
        let seats: Vec<_> = lock(&self.seats).values().filter_map(Weak::upgrade).collect();
        let is_it = |seat: &Arc<ActiveFileset>| {
            self.pool.fileset_name(seat.fileset).is_some_and(|found| found == name)
        };
        seats.into_iter().find(is_it)
    }

    /// Makes claims in this pool, the target of a move, return the moving fileset's seat (UF3).
    fn expect(&self, seat: &Arc<ActiveFileset>) {
        lock(&self.seats).insert(seat.fileset, Arc::downgrade(seat));
    }

    fn expect_no_more(&self, seat: &ActiveFileset) {
        lock(&self.seats).remove(&seat.fileset);
    }
}

impl ActiveFileset {
    fn at(&self) -> Arc<FilesetUses> {
        Arc::clone(&lock(&self.at))
    }

    /// Resumes requests that the relay refused during a move, after the fileset has stayed in its
    /// pool.
    pub(crate) fn go_on(&self) {
        self.relay.go_on();
    }

    /// Returns the fronts of the fileset for a move between two pools. `moved` is called after the
    /// switch to the target pool.
    pub(crate) fn fronts<'s>(
        self: &'s Arc<ActiveFileset>,
        from: &'s Arc<FilesetUses>,
        to: &'s Arc<FilesetUses>,
        moved: &'s dyn Fn(FilesetUuid),
    ) -> ActiveFilesetFronts<'s> {
        let (stopped, pauses) = (RefCell::default(), RefCell::default());
        ActiveFilesetFronts { seat: self, from, to, moved, stopped, pauses }
    }
}

pub(crate) struct ActiveFilesetFronts<'s> {
    seat: &'s Arc<ActiveFileset>,
    from: &'s Arc<FilesetUses>,
    to: &'s Arc<FilesetUses>,
    moved: &'s dyn Fn(FilesetUuid),
    /// The stopped relay of the fileset, and the time of the stop.
    stopped: RefCell<Option<(StoppedRelay<'s>, Instant)>>,
    pauses: RefCell<Vec<Duration>>,
}

impl ActiveFilesetFronts<'_> {
    pub(crate) fn pauses_ms(&self) -> Vec<u64> {
        let milliseconds = |pause: &Duration| u64::try_from(pause.as_millis()).unwrap_or(u64::MAX);
        self.pauses.borrow().iter().map(milliseconds).collect()
    }

    pub(crate) fn is_stopped(&self) -> bool {
        self.stopped.borrow().is_some()
    }

    fn release(&self, stopped: Option<(StoppedRelay<'_>, Instant)>) {
        let Some((stopped, since)) = stopped else { return };
        drop(stopped);
        self.pauses.borrow_mut().push(since.elapsed());
    }
}

impl Fronts for ActiveFilesetFronts<'_> {
    fn fileset(&self) -> FilesetUuid {
        self.seat.fileset
    }

    fn stop(&self) -> bool {
        self.to.expect(self.seat);
        let since = Instant::now();
        let stopped = self.seat.relay.stop();
        if stopped.is_none() {
            self.to.expect_no_more(self.seat);
            self.pauses.borrow_mut().push(since.elapsed());
        }
        *self.stopped.borrow_mut() = stopped.map(|stopped| (stopped, since));
        self.stopped.borrow().is_some()
    }

    fn give_back(&self) {
        if let Some((stopped, _)) = &*self.stopped.borrow() {
            stopped.give_back();
        }
    }

    fn go_on(&self) {
        let stopped = self.stopped.borrow_mut().take();
        if stopped.is_some() {
            self.to.expect_no_more(self.seat);
        }
        self.release(stopped);
        self.seat.go_on();
    }

    fn go_there(&self, slot: u32) {
        let mut stopped = self.stopped.borrow_mut().take();
        while stopped.is_none() {
            // Requests are refused since an earlier attempt, so those in flight end soon and the
            // loop ends.
            self.to.expect(self.seat);
            stopped = self.seat.relay.stop().map(|stopped| (stopped, Instant::now()));
        }
        if let Some((stopped, _)) = &mut stopped {
            stopped.move_to(self.to.pool.file_system(), slot);
        }
        *lock(&self.seat.at) = Arc::clone(self.to);
        self.from.expect_no_more(self.seat);
        self.release(stopped);
        (self.moved)(self.seat.fileset);
    }

    fn refuse(&self, why: &str) {
        tracing::error!(
            from = %self.from.path.display(),
            to = %self.to.path.display(),
            why,
            "the move of a fileset in use stopped, and its pool is not known: its requests are \
             refused until the move is resumed"
        );
        let mut stopped = self.stopped.borrow_mut().take();
        if let Some((stopped, _)) = &mut stopped {
            stopped.refuse();
        }
        self.release(stopped);
    }
}

impl FilesetUses {
    /// Refuses a request that would delete a fileset or snapshot in use, or replace the contents of
    /// a fileset in use. Accepts all other requests.
    pub(crate) fn check(&self, request: &Request) -> Result<(), BackendError> {
        if let Request::SnapshotDelete { fileset, snapshot, .. } = request {
            self.check_unused("snapshot", &format!("{fileset}@{snapshot}"), "")
        } else if let Request::FilesetDelete { name } = request {
            self.check_unused("fileset", name, "")
        } else if let Request::FilesetRestore { fileset, .. } = request {
            self.check_replaced(fileset)
        } else {
            Ok(())
        }
    }

    pub(crate) fn check_replaced(&self, name: &str) -> Result<(), BackendError> {
        let why = "; open files would become other files, even with --shared";
        self.check_unused("fileset", name, why)
    }

    fn check_unused(&self, what: &str, name: &str, why: &str) -> Result<(), BackendError> {
        let uses = self.all();
        let is_it = |fileset: &FilesetUuid| {
            self.pool.fileset_name(*fileset).is_some_and(|found| found == name)
        };
        let Some((_, how)) = uses.iter().find(|(fileset, _)| is_it(fileset)) else { return Ok(()) };
        let (facts, pool) = (how.facts(), self.path.display().to_string());
        let (words, advice) = (facts.words(), facts.advice(&pool));
        let cause = format!("{what} {name}: it is {words}{why}: {advice}");
        Err(BackendError::Failed { device: self.path.clone(), cause })
    }

    fn all(&self) -> Vec<(FilesetUuid, FilesetUse)> {
        let seats: Vec<_> = lock(&self.seats).values().filter_map(Weak::upgrade).collect();
        let mut all: Vec<_> = lock(&self.table).uses.values().cloned().collect();
        // A fileset about to arrive has an entry here, but its seat still belongs to the source
        // pool.
        for seat in seats.iter().filter(|seat| std::ptr::eq(Arc::as_ptr(&seat.at()), self)) {
            all.extend(lock(&seat.table).uses.values().cloned());
        }
        all
    }

    /// Fills in the uses of the filesets listed in `answer`.
    pub(crate) fn tell(&self, answer: &mut Answer) {
        let Answer::Filesets { list, .. } = answer else { return };
        let mut used: BTreeMap<String, Vec<UseFacts>> = BTreeMap::new();
        for (fileset, how) in self.all() {
            used.entry(format!("{:032x}", fileset.0)).or_default().push(how.facts());
        }
        for facts in list {
            facts.used_by = used.get(&facts.uuid).cloned().unwrap_or_default();
            facts.is_mounted = facts.used_by.iter().any(|it| it.kind == "mount");
        }
    }
}

impl FilesetUseGuard {
    pub(crate) fn fileset(&self) -> FilesetUuid {
        self.fileset
    }

    fn table(&self) -> &Mutex<FilesetUseTable> {
        match &self.of {
            FilesetUseOwner::Seat(seat) => &seat.table,
            FilesetUseOwner::Pool(uses) => &uses.table,
        }
    }

    fn at(&self) -> Arc<FilesetUses> {
        match &self.of {
            FilesetUseOwner::Seat(seat) => seat.at(),
            FilesetUseOwner::Pool(uses) => Arc::clone(uses),
        }
    }

    pub(crate) fn file_system(&self) -> Arc<dyn FileSystem> {
        match &self.of {
            FilesetUseOwner::Seat(seat) => Arc::<Relay>::clone(&seat.relay),
            FilesetUseOwner::Pool(uses) => uses.pool.file_system(),
        }
    }

    pub(crate) fn outside(&self) -> Arc<dyn FileSystem> {
        match &self.of {
            FilesetUseOwner::Seat(seat) => Arc::clone(&seat.outside),
            FilesetUseOwner::Pool(uses) => Arc::clone(&uses.outside),
        }
    }

    pub(crate) fn shares(&self) -> &Arc<SharedFilesets> {
        match &self.of {
            FilesetUseOwner::Seat(seat) => &seat.shares,
            FilesetUseOwner::Pool(uses) => &uses.shares,
        }
    }

    pub(crate) fn place(&self) -> (PathBuf, Option<String>) {
        let at = self.at();
        (at.path.clone(), at.pool.fileset_name(self.fileset))
    }

    pub(crate) fn inode(&self, ino: Ino) -> FsResult<(Arc<dyn OpenPool>, Ino)> {
        let ino = match &self.of {
            FilesetUseOwner::Seat(seat) => seat.relay.below(ino)?,
            FilesetUseOwner::Pool(_) => ino,
        };
        Ok((Arc::clone(&self.at().pool), ino))
    }
}

impl Drop for FilesetUseGuard {
    fn drop(&mut self) {
        lock(self.table()).uses.remove(&self.number);
        if let FilesetUseOwner::Pool(uses) = &self.of {
            uses.pool.release_fileset(self.fileset);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};

    use engine::api::Caller;

    use super::*;
    use crate::backend::Backend;
    use crate::peer::Peer;
    use crate::wiring::EngineBackend;
    use control::{Properties, Transfer, TreeSpec};

    /// Goal: a copy-in notifies the mounts of its fileset and no others (SH1), both for the fileset
    /// that the pool was opened with and for one that may move. Method: copy a file in, then
    /// another in its place.
    #[test]
    fn a_copy_in_tells_the_mounts_of_its_fileset() {
        let pool = EngineBackend.open_in_memory(16 << 20).expect("there is memory");
        let properties = Properties::default();
        let create = Request::FilesetCreate { name: "a".to_owned(), properties };
        pool.control(&create, Peer::own()).expect("there is room");
        let uses = FilesetUses::new(Path::new("pool"), &pool);
        let tree = std::env::temp_dir().join(format!("holdfast-tells-{}", std::process::id()));
        fs::create_dir_all(&tree).expect("it can be made");
        for (fileset, other) in [("root", "a"), ("a", "root")] {
            let claim = |name: &str, how: FilesetUse| {
                let name = name.parse().expect("a name");
                uses.claim(Some(&name), None, how).expect("they go with each other")
            };
            let mounts =
                [fileset, other].map(|it| claim(it, FilesetUse::SharedMount("/mnt".into())));
            let viewers = mounts.each_ref().map(|mount| {
                let root = mount.file_system().root_of(mount.fileset()).expect("it is held");
                mount.shares().join(root)
            });
            let copying = |content: &str| {
                fs::write(tree.join("file"), content).expect("there is room");
                let spec = TreeSpec {
                    fileset: fileset.to_owned(),
                    snapshot: None,
                    path: b"/".to_vec(),
                    is_archive: false,
                    threads: 1,
                    verifies: true,
                    counts_work: false,
                    rules: control::TreeCopyRules::default(),
                };
                let claim = claim(fileset, FilesetUse::CopyIn);
                let mut file = File::open(&tree).expect("it is there");
                let request = Transfer::CopyIn { tree: spec };
                let fronts = Some(claim.outside());
                let done = pool.transfer(&request, Peer::own(), &mut file, fronts, &mut |_| true);
                done.expect("there is room");
            };
            copying("one");
            let fs = mounts[0].file_system();
            let root = fs.root_of(mounts[0].fileset()).expect("it is held");
            let found = fs.lookup(&Caller::root(), root, b"file").expect("it was copied in");
            fs.forget(found.ino, 1);
            let before = viewers[0].told().waiting;
            assert!(before >= 2, "{fileset}: the directory and the file have changed: {before}");
            copying("another");
            assert!(!viewers[0].lets_open(found.ino, 7), "{fileset}: the name leads elsewhere");
            assert!(!viewers[0].lets_open(root, 8), "{fileset}: a name is new");
            assert_eq!(viewers[1].told().waiting, 0, "{other} is not copied into");
        }
        fs::remove_dir_all(&tree).expect("it is ours");
        pool.close().expect("memory does not fail");
    }
}
