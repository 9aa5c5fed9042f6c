//! A workload, done on the engine over a recording device: what was asked, what was acknowledged,
//! and where the recording stood; or over one that fails, see [`super::failure`].

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;

use engine::api::{Caller, Fallocate, FileKind, FileSystem, FsError, FsResult};
use engine::{DiscardOptions, Pool, PoolCreateOptions, PoolOpenOptions, Shortage};
use format::fileset::{FilesetName, NamePart, ROOT_NAME};
use runtime::clock::ManualClock;
use storage::device::sim::{Image, SimDevice, SimOptions};
use storage::device::{RequestKind, SharedDevice};

use super::failure::{Failing, Failure, Target};
use super::workload::{Action, FallocateKind, Name, Workload};
use crate::canon::{Times, Tree};
use crate::ops::{Applied, FILL_ZEROS, Op, Outcome, Place, Route, Session, Step};
use crate::torture::{is_chain, is_change};

/// Bytes of the pools: as few as are laid out well, so that a state is cheap.
const POOL_BYTES: u64 = 10 << 20;
const JOURNAL_BYTES: u64 = 1 << 20;
const SEGMENT_BYTES: u64 = 128 << 10;
const GROUP_BYTES: u64 = 2 << 20;
/// Fewest pages that a cache may have.
const CACHE_BYTES: usize = 1 << 20;
/// The attribute that is set and removed.
const XATTR_NAME: &[u8] = b"user.xattr1";
const XATTR_VALUE_BYTES: usize = 4;
/// Time between two actions.
const ACTION_NS: u64 = 1_000_000;
/// Time after the last until the background work is done: past the commit interval.
const REST_NS: u64 = 10_000_000_000;

/// One operation, and where the recording stood when it began and when it was acknowledged; never,
/// if nobody can tell what became of it.
#[derive(Debug)]
pub(super) struct Recorded {
    pub(super) step: Step,
    pub(super) began: usize,
    pub(super) ended: Option<(usize, Applied)>,
}

/// A snapshot that was taken, and what it must be.
#[derive(Debug)]
pub(super) struct SnapshotTaken {
    pub(super) name: String,
    pub(super) tree: Tree,
    /// Where the recording stood when it was answered.
    pub(super) answered: usize,
    /// Where it stood when somebody began to delete it.
    pub(super) deleted: Option<usize>,
}

impl SnapshotTaken {
    /// Whether it must be there after a cut at `position`.
    pub(super) fn is_at(&self, position: usize) -> bool {
        self.answered <= position && self.deleted.is_none_or(|deleted| position <= deleted)
    }
}

/// What was done.
#[derive(Debug)]
pub(super) struct Run {
    pub(super) device: Arc<SimDevice>,
    pub(super) recorded: Vec<Recorded>,
    pub(super) snapshots: Vec<SnapshotTaken>,
    /// Where each checkpoint of the workload stands in the recording.
    pub(super) checkpoints: Vec<(usize, u64)>,
    /// Operations that the engine does not have.
    pub(super) unsupported: BTreeSet<&'static str>,
    /// Whether something failed that was meant to.
    pub(super) has_failed: bool,
}

/// Returns the image of a new pool.
pub(super) fn new_pool() -> Image {
    let device = SimDevice::new(POOL_BYTES, SimOptions::default());
    let shared: SharedDevice = Arc::<SimDevice>::clone(&device);
    let mut create = PoolCreateOptions::new(POOL_BYTES, [9; 64]);
    create.geometry.journal_bytes = Some(JOURNAL_BYTES);
    create.geometry.segment_bytes = Some(SEGMENT_BYTES);
    create.geometry.group_bytes = Some(GROUP_BYTES);
    Pool::create(&shared, &ManualClock::new(), &create).expect("a pool fits");
    device.durable_image()
}

/// Opens a pool, recovering it where it was cut.
pub(super) fn open(device: &Arc<SimDevice>, clock: Arc<ManualClock>) -> Result<Pool, String> {
    open_with(device, clock, None)
}

fn open_with(
    device: &Arc<SimDevice>,
    clock: Arc<ManualClock>,
    shortage: Option<Arc<Shortage>>,
) -> Result<Pool, String> {
    let device: SharedDevice = Arc::<SimDevice>::clone(device);
    let discard = DiscardOptions::at_once();
    let options = PoolOpenOptions {
        cache_bytes: CACHE_BYTES,
        shortage,
        discard,
        ..PoolOpenOptions::default()
    };
    Pool::open(device, clock, options).map_err(|error| error.to_string())
}

/// A workload at work.
struct Worker<'a> {
    pool: &'a Pool,
    failing: &'a Failing,
    session: Session<'a>,
    device: &'a SimDevice,
    run: Vec<Recorded>,
    snapshots: Vec<SnapshotTaken>,
    unsupported: BTreeSet<&'static str>,
    /// So that every write has bytes of its own.
    fill: u32,
    /// Whether a rename found its target not empty: what it should have moved is still there.
    has_full_target: bool,
    /// Whether an operation was refused for what failed: what comes later may lack what it needs.
    was_refused: bool,
    /// Whether nobody can tell what became of the last operation.
    is_uncertain: bool,
}

/// Does `workload` on a copy of `base`, and then what a server does: the background work, and a
/// close.
///
/// # Errors
///
/// An operation was refused that must not be.
pub(super) fn run(base: &Image, workload: &Workload) -> Result<Run, String> {
    let options = SimOptions { is_recorded: true, ..SimOptions::default() };
    work(SimDevice::open(base.clone(), options), workload, None)
}

/// As [`run`], while something fails; not recorded.
///
/// # Errors
///
/// An operation was refused, and not for what failed.
pub(super) fn run_failing(
    base: &Image,
    workload: &Workload,
    failure: Failure,
) -> Result<Run, String> {
    // Flushes fail where commits need them.
    let has_write_through = failure.target != Target::Request(RequestKind::Flush);
    let options = SimOptions { seed: failure.seed, has_write_through, ..SimOptions::default() };
    work(SimDevice::open(base.clone(), options), workload, Some(failure))
}

fn work(
    device: Arc<SimDevice>,
    workload: &Workload,
    failure: Option<Failure>,
) -> Result<Run, String> {
    let clock = Arc::new(ManualClock::new());
    let failing = Failing::new(Arc::clone(&device));
    let pool = open_with(&device, Arc::clone(&clock), failing.shortage())?;
    let session = Session::new(&pool, Times::Ignored);
    let (run, unsupported) = (Vec::new(), BTreeSet::new());
    let mut worker = Worker {
        pool: &pool,
        failing: &failing,
        session,
        device: &device,
        run,
        snapshots: Vec::new(),
        unsupported,
        fill: 1,
        has_full_target: false,
        was_refused: false,
        is_uncertain: false,
    };
    if let Some(failure) = failure {
        failing.begin(failure);
    }
    let mut checkpoints = Vec::new();
    for &action in &workload.0 {
        clock.advance_ns(ACTION_NS);
        if let Action::Checkpoint(number) = action {
            checkpoints.push((device.position(), number));
            continue;
        }
        match worker.act(action) {
            Err(error) if !worker.was_refused => return Err(format!("{action}: {error}")),
            Err(_) | Ok(()) => {}
        }
        if worker.is_uncertain {
            break;
        }
    }
    worker.session.close_all();
    clock.advance_ns(REST_NS);
    let ticked = pool.tick();
    failing.excused(ticked).map_err(|error| format!("background work: {error}"))?;
    worker.close().map_err(|error| format!("close: {error}"))?;
    let Worker { run: recorded, snapshots, unsupported, .. } = worker;
    let has_failed = failing.has_failed();
    Ok(Run { has_failed, device, recorded, snapshots, checkpoints, unsupported })
}

fn main_name() -> FilesetName {
    ROOT_NAME.parse().expect("it is the name of the first fileset")
}

fn part(text: &str) -> NamePart {
    NamePart::new(text).expect("a letter and a number")
}

/// Opens what a snapshot of the first fileset is.
pub(super) fn open_snapshot(device: &Arc<SimDevice>, name: &str) -> Result<Pool, String> {
    let shared: SharedDevice = Arc::<SimDevice>::clone(device);
    let (fileset, snapshot) = (Some(main_name()), Some(part(name)));
    let options = PoolOpenOptions {
        cache_bytes: CACHE_BYTES,
        fileset,
        snapshot,
        ..PoolOpenOptions::default()
    };
    Pool::open(shared, Arc::new(ManualClock::new()), options).map_err(|error| error.to_string())
}

pub(super) fn route(name: Name) -> Route {
    Route(name.route().iter().map(|part| part.as_bytes().to_vec()).collect())
}

/// The slot that an open file or directory is held in.
fn slot(name: Name) -> usize {
    match name {
        Name::Test => 0,
        Name::A => 1,
        Name::B => 2,
        Name::Foo => 3,
        Name::Bar => 4,
        Name::AFoo => 5,
        Name::ABar => 6,
    }
}

impl Worker<'_> {
    fn note(&mut self, op: Op, began: usize, applied: Option<Applied>) {
        let ended = applied.map(|applied| (self.device.position(), applied));
        self.run.push(Recorded { step: Step::root(op), began, ended });
    }

    fn apply(&mut self, op: Op) -> FsResult<()> {
        let (began, was_alive) = (self.device.position(), !self.failing.is_pool_dead(self.pool));
        let applied = self.session.apply(&Step::root(op.clone()));
        if let Outcome::Refused(error) = &applied.outcome {
            self.refused(vec![op], began, was_alive, error);
            return Err(error.clone());
        }
        self.note(op, began, Some(applied));
        Ok(())
    }

    /// Takes note of what may have become of operations that were refused: of one that is a chain,
    /// or that the pool died of, nobody can tell. The others did not happen.
    fn refused(&mut self, ops: Vec<Op>, began: usize, was_alive: bool, error: &FsError) {
        if !self.failing.excuses(error) {
            return;
        }
        self.was_refused = true;
        let died = was_alive && self.failing.is_pool_dead(self.pool);
        for op in ops.into_iter().filter(is_change) {
            if was_alive && is_chain(&op) || died {
                self.is_uncertain = true;
                self.note(op, began, None);
            }
        }
    }

    /// Closes the pool, which makes everything durable.
    fn close(&mut self) -> FsResult<()> {
        let began = self.device.position();
        let closed = self.pool.close();
        if closed.is_ok() {
            let outcome = Outcome::Done;
            self.note(Op::Sync, began, Some(Applied { outcome, made: None }));
        }
        self.failing.excused(closed)
    }

    fn is_there(&self, name: Name) -> bool {
        self.session.probe(&Place::At(route(name))).is_some()
    }

    fn size_bytes(&self, name: Name) -> u64 {
        self.session.probe(&Place::Slot(slot(name))).map_or(0, |attr| attr.size_bytes)
    }

    fn write(&mut self, name: Name, offset: u64, length: u64) -> FsResult<()> {
        self.fill += 1;
        let length = crate::number::usize_of(length);
        let file = Place::Slot(slot(name));
        self.apply(Op::Write { file, offset, length, fill: self.fill })
    }

    fn make(&mut self, name: Name, kind: FileKind) -> FsResult<()> {
        self.apply(Op::Create { at: route(name), kind, mode: 0o777 })
    }

    fn act(&mut self, action: Action) -> FsResult<()> {
        let at = |name| Place::At(route(name));
        let held = |name| Place::Slot(slot(name));
        match action {
            Action::Mkdir(name) if self.has_full_target && self.is_there(name) => Ok(()),
            Action::Mkdir(name) => self.make(name, FileKind::Directory),
            Action::Open(name) => {
                if !self.is_there(name) {
                    self.make(name, FileKind::Regular)?;
                }
                self.apply(Op::Open { slot: slot(name), at: route(name) })
            }
            Action::OpenDir(name) => self.apply(Op::Open { slot: slot(name), at: route(name) }),
            Action::Close(name) => self.apply(Op::Close { slot: slot(name) }),
            Action::Write(name, offset, length) => self.write(name, offset, length),
            Action::WriteDirect(name, offset, length) => {
                self.write(name, offset, length)?;
                self.apply(Op::Close { slot: slot(name) })
            }
            Action::WriteMapped(name, offset, length) => {
                if self.size_bytes(name) < offset + length {
                    self.apply(Op::Truncate { file: held(name), size_bytes: offset + length })?;
                }
                self.write(name, offset, length)?;
                self.apply(Op::Fsync { file: held(name), data_only: true })
            }
            Action::Fallocate(name, kind, offset, length) => {
                self.fallocate(name, kind, offset, length)
            }
            Action::Truncate(name, size_bytes) => {
                self.apply(Op::Truncate { file: held(name), size_bytes })
            }
            Action::Link(old, new) => self.apply(Op::Link { file: at(old), at: route(new) }),
            Action::Rename(old, new) => {
                let mode = engine::api::RenameMode::Replace;
                match self.apply(Op::Rename { source: route(old), target: route(new), mode }) {
                    // What came before has filled the target: it stays, and the workload goes on.
                    Err(FsError::NotEmpty) => {
                        self.has_full_target = true;
                        Ok(())
                    }
                    other => other,
                }
            }
            Action::Unlink(name) | Action::Remove(name) => {
                self.apply(Op::Unlink { at: route(name) })
            }
            Action::SetXattr(name) => self.set_xattr(name),
            Action::RemoveXattr(name) => self.remove_xattr(name),
            Action::Fsync(name) => self.apply(Op::Fsync { file: held(name), data_only: false }),
            Action::Sync => self.apply(Op::Sync),
            Action::Snapshot => self.take_snapshot(),
            Action::DeleteSnapshot => self.delete_snapshot(),
            Action::Checkpoint(_) => Ok(()),
        }
    }

    /// For the judge of the fileset it is a sync.
    fn take_snapshot(&mut self) -> FsResult<()> {
        let (began, was_alive) = (self.device.position(), !self.failing.is_pool_dead(self.pool));
        let tree = crate::canon::walk(self.pool, Times::Ignored);
        let number = self.snapshots.len();
        let (name, random) = (format!("c{number}"), [u8::try_from(number).unwrap_or(0); 16]);
        let done = self.pool.fileset_admin().create_snapshot(&main_name(), &part(&name), random);
        if let Err(error) = done {
            self.refused(Vec::new(), began, was_alive, &error);
            return Err(error);
        }
        self.note(Op::Sync, began, Some(Applied { outcome: Outcome::Done, made: None }));
        // What can't be read is found when the fileset is judged.
        if let Ok(tree) = tree {
            let answered = self.device.position();
            self.snapshots.push(SnapshotTaken { name, tree, answered, deleted: None });
        }
        Ok(())
    }

    fn delete_snapshot(&mut self) -> FsResult<()> {
        let (began, was_alive) = (self.device.position(), !self.failing.is_pool_dead(self.pool));
        let oldest = self.snapshots.iter_mut().find(|snapshot| snapshot.deleted.is_none());
        let Some(oldest) = oldest else { return Ok(()) };
        oldest.deleted = Some(began);
        let name = part(&oldest.name);
        let done = self.pool.fileset_admin().delete_snapshot(&main_name(), &name);
        if let Err(error) = &done {
            self.refused(Vec::new(), began, was_alive, error);
        }
        done
    }

    /// What the engine does not have is noted and left out.
    fn supported(&mut self, what: &'static str, done: FsResult<()>) -> FsResult<bool> {
        match done {
            Err(FsError::NotSupported) => {
                self.unsupported.insert(what);
                Ok(false)
            }
            other => other.map(|()| true),
        }
    }

    /// For the judge it is a truncation that extends the file, and a write of zeros.
    fn fallocate(
        &mut self,
        name: Name,
        kind: FallocateKind,
        offset: u64,
        length: u64,
    ) -> FsResult<()> {
        let Some(attr) = self.session.probe(&Place::Slot(slot(name))) else {
            return Err(FsError::NotFound);
        };
        let (began, was_alive) = (self.device.position(), !self.failing.is_pool_dead(self.pool));
        let mode = kind.mode();
        let done = self.pool.fallocate(&Caller::root(), attr.ino, offset, length, mode);
        let ops = fallocated(name, mode, offset..offset + length, attr.size_bytes);
        if let Err(error) = &done {
            self.refused(ops, began, was_alive, error);
        } else {
            for op in ops {
                let outcome = Outcome::Done;
                self.note(op, began, Some(Applied { outcome, made: None }));
            }
        }
        self.supported("falloc", done).map(drop)
    }

    fn set_xattr(&mut self, name: Name) -> FsResult<()> {
        let op = Op::SetXattr {
            file: Place::Slot(slot(name)),
            name: XATTR_NAME.to_vec(),
            length: XATTR_VALUE_BYTES,
            fill: 1,
            mode: engine::api::XattrMode::Set,
        };
        let done = self.apply(op);
        self.supported("fsetxattr", done).map(drop)
    }

    fn remove_xattr(&mut self, name: Name) -> FsResult<()> {
        let file = Place::Slot(slot(name));
        let done = self.apply(Op::RemoveXattr { file, name: XATTR_NAME.to_vec() });
        self.supported("removexattr", done).map(drop)
    }
}

/// What a fallocate of `range` comes to for the judge, in a file of `size_bytes`.
fn fallocated(name: Name, mode: Fallocate, range: Range<u64>, size_bytes: u64) -> Vec<Op> {
    let file = Place::Slot(slot(name));
    let (zeroes, extends) = match mode {
        Fallocate::Allocate { keep_size } => (false, !keep_size),
        Fallocate::ZeroRange { keep_size } => (true, !keep_size),
        Fallocate::PunchHole | Fallocate::CollapseRange | Fallocate::InsertRange => (true, false),
    };
    let mut ops = Vec::new();
    if extends && range.end > size_bytes {
        ops.push(Op::Truncate { file: file.clone(), size_bytes: range.end });
    }
    let zero_end = range.end.min(size_bytes);
    if zeroes && zero_end > range.start {
        let length = crate::number::usize_of(zero_end - range.start);
        ops.push(Op::Write { file, offset: range.start, length, fill: FILL_ZEROS });
    }
    ops
}
