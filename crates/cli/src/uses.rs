//! Who uses which fileset of an open pool, so that nobody does who must not.
//!
//! The kernel keeps for ever what it knows of a fileset that is mounted alone, so nobody else may
//! change what is in it (decision 0075). A fileset that is exported over the network may have an
//! import, for its clients ask again. One that is mounted to be shared may have more mounts of that
//! kind, exports and imports: they tell each other (decision 0077).
//!
//! A fileset may move to another pool of the server while it is used (decision 0082). Then its uses
//! go along: they are those of a *seat*, which knows where it is. A clone, and the fileset that a
//! pool was opened with, do not move, and have none.
//!
//! # Invariants
//!
//! - UF1: A fileset that is mounted alone has one use.
//! - UF2: A fileset is held in the engine as long as it has a use, and given back behind the last
//!   request of that: a [`Claim`] is dropped when its threads have ended.
//! - UF3: A fileset that is used has one seat, which the pool knows that it is in, and the one that
//!   it is about to be in: whoever claims it there has the same seat.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use engine::Fronts;
use engine::vnode::api::{FileSystem, FilesetUuid, FsResult, Ino};
use format::fileset::{FilesetName, NamePart};
use front::relay::{Relay, Stopped};
use front::shared::{Shares, Teller};
use runtime::clock::SystemClock;

use crate::backend::{BackendError, OpenPool};
use crate::control::{Answer, Request, UseFacts};

/// What a fileset is used for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Use {
    /// Its files are below this directory, and the kernel takes itself to be alone with them.
    Mount(PathBuf),
    /// Its files are below this directory, and others may change them.
    SharedMount(PathBuf),
    /// Clients of a network reach it by this name.
    Export(String),
    /// A tree is written into it.
    Import,
}

impl Use {
    /// Whether a fileset may have both.
    fn goes_with(&self, other: &Use) -> bool {
        match (self, other) {
            (Use::Mount(_), _) | (_, Use::Mount(_)) => false,
            (Use::SharedMount(_) | Use::Export(_) | Use::Import, _) => true,
        }
    }

    fn facts(&self) -> UseFacts {
        let (kind, at) = match self {
            Use::Mount(directory) | Use::SharedMount(directory) => {
                ("mount", directory.display().to_string())
            }
            Use::Export(name) => ("export", name.clone()),
            Use::Import => ("import", String::new()),
        };
        UseFacts { kind: kind.to_owned(), at }
    }

    fn words(&self) -> String {
        match self {
            Use::Mount(directory) => {
                let directory = directory.display();
                format!(
                    "it is mounted on {directory}, and the kernel would not see what changes \
                     elsewhere: `holdfast unmount {directory}` first, and mount it with --shared \
                     where it was; or name another fileset"
                )
            }
            Use::SharedMount(directory) => {
                let directory = directory.display();
                format!(
                    "it is mounted on {directory} to be shared: mount it with --shared here too"
                )
            }
            Use::Export(name) => format!(
                "it is exported as {name}, and a mount would not see what its clients change: \
                 mount it with --shared, or remove the export first"
            ),
            Use::Import => {
                "a tree is being imported into it: wait until that has ended, or mount it with \
                 --shared"
                    .to_owned()
            }
        }
    }
}

/// The uses of a pool's filesets.
pub(crate) struct Uses {
    path: PathBuf,
    pool: Arc<dyn OpenPool>,
    /// Who is told what others change.
    shares: Arc<Shares>,
    /// The files for whoever is told nothing: exports.
    outside: Arc<dyn FileSystem>,
    /// Of what does not move.
    table: Mutex<Table>,
    seats: Mutex<BTreeMap<FilesetUuid, Weak<Seat>>>,
}

#[derive(Default)]
struct Table {
    next: u64,
    uses: BTreeMap<u64, (FilesetUuid, Use)>,
}

impl Table {
    /// Enters a use, unless another does not go with it.
    fn enter(&mut self, fileset: FilesetUuid, how: Use) -> Result<u64, Use> {
        let goes_not = |(it, other): &&(FilesetUuid, Use)| *it == fileset && !how.goes_with(other);
        if let Some((_, other)) = self.uses.values().find(goes_not) {
            return Err(other.clone());
        }
        self.next += 1;
        self.uses.insert(self.next, (fileset, how));
        Ok(self.next)
    }
}

/// A fileset that is used, wherever it is.
pub(crate) struct Seat {
    fileset: FilesetUuid,
    relay: Arc<Relay>,
    shares: Arc<Shares>,
    outside: Arc<dyn FileSystem>,
    table: Mutex<Table>,
    /// Where it is, held once.
    at: Mutex<Arc<Uses>>,
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.at().pool.release_fileset(self.fileset);
    }
}

/// A use, until it is dropped.
pub(crate) struct Claim {
    fileset: FilesetUuid,
    number: u64,
    of: Of,
}

/// Whose a claim is.
enum Of {
    Seat(Arc<Seat>),
    Pool(Arc<Uses>),
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Uses {
    /// Returns the uses of `pool`, which was opened at `path`: none. From here on nobody asks for
    /// its files but who uses them (UF2), so the hold that came with the opening is given back.
    pub(crate) fn new(path: &Path, pool: &Arc<dyn OpenPool>) -> Arc<Uses> {
        pool.release_fileset(pool.file_system().main_fileset());
        let shares = Shares::new(Arc::new(SystemClock::new()));
        Arc::new(Uses {
            path: path.to_owned(),
            pool: Arc::clone(pool),
            outside: Teller::of(pool.file_system(), &shares),
            shares,
            table: Mutex::default(),
            seats: Mutex::default(),
        })
    }

    /// Uses a fileset, or a clone of it; `None`: the one that the pool was opened with.
    pub(crate) fn claim(
        self: &Arc<Uses>,
        name: Option<&FilesetName>,
        clone: Option<&NamePart>,
        how: Use,
    ) -> Result<Claim, BackendError> {
        let main = self.pool.file_system().main_fileset();
        let fileset = self.pool.hold_fileset(name, clone)?;
        // From here on it is given back, whatever comes.
        let of = if clone.is_none() && fileset != main {
            Of::Seat(self.take_seat(fileset)?)
        } else {
            Of::Pool(Arc::clone(self))
        };
        let mut claim = Claim { fileset, number: 0, of };
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

    /// Returns the seat of a fileset, which takes a hold over from whoever calls.
    fn take_seat(self: &Arc<Uses>, fileset: FilesetUuid) -> Result<Arc<Seat>, BackendError> {
        let mut seats = lock(&self.seats);
        seats.retain(|_, seat| seat.strong_count() > 0);
        if let Some(seat) = seats.get(&fileset).and_then(Weak::upgrade) {
            // It holds the fileset itself.
            self.pool.release_fileset(fileset);
            return Ok(seat);
        }
        let relay = Relay::new(self.pool.file_system(), fileset).map_err(|error| {
            self.pool.release_fileset(fileset);
            BackendError::Failed { device: self.path.clone(), cause: error.to_string() }
        })?;
        let fs: Arc<dyn FileSystem> = Arc::<Relay>::clone(&relay);
        let seat = Arc::new(Seat {
            fileset,
            relay,
            shares: Arc::clone(&self.shares),
            outside: Teller::of(fs, &self.shares),
            table: Mutex::default(),
            at: Mutex::new(Arc::clone(self)),
        });
        seats.insert(fileset, Arc::downgrade(&seat));
        Ok(seat)
    }

    /// Returns the seat of the fileset of this name, if it is used.
    pub(crate) fn seat_of(&self, name: &str) -> Option<Arc<Seat>> {
        let seats: Vec<_> = lock(&self.seats).values().filter_map(Weak::upgrade).collect();
        let is_it = |seat: &Arc<Seat>| {
            self.pool.fileset_name(seat.fileset).is_some_and(|found| found == name)
        };
        seats.into_iter().find(is_it)
    }

    /// UF3: whoever claims the fileset of `seat` in this pool has that seat.
    fn expect(&self, seat: &Arc<Seat>) {
        lock(&self.seats).insert(seat.fileset, Arc::downgrade(seat));
    }

    fn expect_no_more(&self, seat: &Seat) {
        lock(&self.seats).remove(&seat.fileset);
    }
}

impl Seat {
    /// Returns the uses of the pool that it is in.
    fn at(&self) -> Arc<Uses> {
        Arc::clone(&lock(&self.at))
    }

    /// Requests that are refused go on: the fileset is where it was.
    pub(crate) fn go_on(&self) {
        self.relay.go_on();
    }

    /// Returns its fronts for a move from a pool to another; `moved` is told when it is there.
    pub(crate) fn fronts<'s>(
        self: &'s Arc<Seat>,
        from: &'s Arc<Uses>,
        to: &'s Arc<Uses>,
        moved: &'s dyn Fn(FilesetUuid),
    ) -> SeatFronts<'s> {
        let (stopped, pauses) = (RefCell::default(), RefCell::default());
        SeatFronts { seat: self, from, to, moved, stopped, pauses }
    }
}

/// The fronts of a fileset that moves.
pub(crate) struct SeatFronts<'s> {
    seat: &'s Arc<Seat>,
    from: &'s Arc<Uses>,
    to: &'s Arc<Uses>,
    moved: &'s dyn Fn(FilesetUuid),
    /// Requests that wait, and since when.
    stopped: RefCell<Option<(Stopped<'s>, Instant)>>,
    /// How long they have waited, each time.
    pauses: RefCell<Vec<Duration>>,
}

impl SeatFronts<'_> {
    /// Returns for how many milliseconds requests have waited, each time that they had to.
    pub(crate) fn pauses_ms(&self) -> Vec<u64> {
        let milliseconds = |pause: &Duration| u64::try_from(pause.as_millis()).unwrap_or(u64::MAX);
        self.pauses.borrow().iter().map(milliseconds).collect()
    }

    /// Whether requests wait.
    pub(crate) fn is_stopped(&self) -> bool {
        self.stopped.borrow().is_some()
    }

    /// Requests go on.
    fn release(&self, stopped: Option<(Stopped<'_>, Instant)>) {
        let Some((stopped, since)) = stopped else { return };
        drop(stopped);
        self.pauses.borrow_mut().push(since.elapsed());
    }
}

impl Fronts for SeatFronts<'_> {
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
            // They are refused since an earlier try: none takes long.
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
            "a fileset that is used moves, and nobody knows in which pool it is: its requests are \
             refused until its move goes on"
        );
        let mut stopped = self.stopped.borrow_mut().take();
        if let Some((stopped, _)) = &mut stopped {
            stopped.refuse();
        }
        self.release(stopped);
    }
}

impl Uses {
    /// Refuses to delete a fileset or a clone that is used, and to put another content in its
    /// place, by what uses it. Another request may go on.
    pub(crate) fn check(&self, request: &Request) -> Result<(), BackendError> {
        if let Request::CloneDelete { fileset, clone, .. } = request {
            self.check_unused("clone", &format!("{fileset}@{clone}"), "")
        } else if let Request::FilesetDelete { name } = request {
            self.check_unused("fileset", name, "")
        } else if let Request::FilesetRestore { fileset, .. } = request {
            self.check_replaced(fileset)
        } else {
            Ok(())
        }
    }

    /// Refuses to replace what a fileset holds as a whole while it is used (decision 0102).
    pub(crate) fn check_replaced(&self, name: &str) -> Result<(), BackendError> {
        let why = ", and what is open there would become other files, with --shared too";
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

    /// Returns the uses of what is in this pool.
    fn all(&self) -> Vec<(FilesetUuid, Use)> {
        let seats: Vec<_> = lock(&self.seats).values().filter_map(Weak::upgrade).collect();
        let mut all: Vec<_> = lock(&self.table).uses.values().cloned().collect();
        // Those that are about to come are in another yet.
        for seat in seats.iter().filter(|seat| std::ptr::eq(Arc::as_ptr(&seat.at()), self)) {
            all.extend(lock(&seat.table).uses.values().cloned());
        }
        all
    }

    /// Says of the filesets in an answer what they are used for.
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

impl Claim {
    /// Returns what is used.
    pub(crate) fn fileset(&self) -> FilesetUuid {
        self.fileset
    }

    fn table(&self) -> &Mutex<Table> {
        match &self.of {
            Of::Seat(seat) => &seat.table,
            Of::Pool(uses) => &uses.table,
        }
    }

    /// Returns the uses of the pool that the fileset is in.
    fn at(&self) -> Arc<Uses> {
        match &self.of {
            Of::Seat(seat) => seat.at(),
            Of::Pool(uses) => Arc::clone(uses),
        }
    }

    /// Returns the files, wherever they are.
    pub(crate) fn file_system(&self) -> Arc<dyn FileSystem> {
        match &self.of {
            Of::Seat(seat) => Arc::<Relay>::clone(&seat.relay),
            Of::Pool(uses) => uses.pool.file_system(),
        }
    }

    /// Returns the files as an export reaches them: what its clients change is told to the mounts.
    pub(crate) fn outside(&self) -> Arc<dyn FileSystem> {
        match &self.of {
            Of::Seat(seat) => Arc::clone(&seat.outside),
            Of::Pool(uses) => Arc::clone(&uses.outside),
        }
    }

    /// Returns who is told of changes by a mount that is not alone, and of whose it is told.
    pub(crate) fn shares(&self) -> &Arc<Shares> {
        match &self.of {
            Of::Seat(seat) => &seat.shares,
            Of::Pool(uses) => &uses.shares,
        }
    }

    /// Returns the path of the pool that the fileset is in, and its name there.
    pub(crate) fn place(&self) -> (PathBuf, Option<String>) {
        let at = self.at();
        (at.path.clone(), at.pool.fileset_name(self.fileset))
    }

    /// Returns the pool that an inode of the mount is in, and its number there.
    pub(crate) fn inode(&self, ino: Ino) -> FsResult<(Arc<dyn OpenPool>, Ino)> {
        let ino = match &self.of {
            Of::Seat(seat) => seat.relay.below(ino)?,
            Of::Pool(_) => ino,
        };
        Ok((Arc::clone(&self.at().pool), ino))
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        lock(self.table()).uses.remove(&self.number);
        if let Of::Pool(uses) = &self.of {
            uses.pool.release_fileset(self.fileset);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};

    use engine::vnode::api::Caller;

    use super::*;
    use crate::backend::Backend;
    use crate::control::{Peer, Properties};
    use crate::transfer::{Transfer, TreeSpec};
    use crate::wiring::EngineBackend;

    /// Goal: what an import changes the mounts of its fileset are told, and no others (SH1): of the
    /// fileset that the pool was opened with, and of one that may move. Method: a file is imported,
    /// and another in its place.
    #[test]
    fn an_import_tells_the_mounts_of_its_fileset() {
        let pool = EngineBackend.open_in_memory(16 << 20).expect("there is memory");
        let properties = Properties::default();
        let create = Request::FilesetCreate { name: "a".to_owned(), properties };
        pool.control(&create, Peer::own()).expect("there is room");
        let uses = Uses::new(Path::new("pool"), &pool);
        let tree = std::env::temp_dir().join(format!("holdfast-tells-{}", std::process::id()));
        fs::create_dir_all(&tree).expect("it can be made");
        for (fileset, other) in [("root", "a"), ("a", "root")] {
            let claim = |name: &str, how: Use| {
                let name = name.parse().expect("a name");
                uses.claim(Some(&name), None, how).expect("they go with each other")
            };
            let mounts = [fileset, other].map(|it| claim(it, Use::SharedMount("/mnt".into())));
            let viewers = mounts.each_ref().map(|mount| {
                let root = mount.file_system().root_of(mount.fileset()).expect("it is held");
                mount.shares().join(root)
            });
            let import = |content: &str| {
                fs::write(tree.join("file"), content).expect("there is room");
                let spec = TreeSpec {
                    fileset: fileset.to_owned(),
                    clone: None,
                    path: b"/".to_vec(),
                    is_archive: false,
                    threads: 1,
                    verifies: true,
                    rules: crate::tree::Rules::default(),
                };
                let claim = claim(fileset, Use::Import);
                let mut file = File::open(&tree).expect("it is there");
                let request = Transfer::Import { tree: spec };
                let fronts = Some(claim.outside());
                let done =
                    pool.transfer(&request, Peer::own(), &mut file, fronts, &mut |_, _| true);
                done.expect("there is room");
            };
            import("one");
            let fs = mounts[0].file_system();
            let root = fs.root_of(mounts[0].fileset()).expect("it is held");
            let found = fs.lookup(&Caller::root(), root, b"file").expect("it was imported");
            fs.forget(found.ino, 1);
            let before = viewers[0].told().waiting;
            assert!(before >= 2, "{fileset}: the directory and the file have changed: {before}");
            import("another");
            assert!(!viewers[0].lets_open(found.ino, 7), "{fileset}: the name leads elsewhere");
            assert!(!viewers[0].lets_open(root, 8), "{fileset}: a name is new");
            assert_eq!(viewers[1].told().waiting, 0, "{other} is not imported into");
        }
        fs::remove_dir_all(&tree).expect("it is ours");
        pool.close().expect("memory does not fail");
    }
}
