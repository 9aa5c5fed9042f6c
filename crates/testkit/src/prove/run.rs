//! A workload, done on the engine over a recording device: what was asked, what was acknowledged,
//! and where the recording stood.

use std::collections::BTreeSet;
use std::sync::Arc;

use engine::vnode::api::{Caller, FileKind, FileSystem, FsError, FsResult};
use engine::{CreateOptions, OpenOptions, Pool};
use storage::clock::ManualClock;
use storage::device::SharedDevice;
use storage::device::sim::{Image, SimDevice, SimOptions};

use super::workload::{Action, Name, Workload};
use crate::canon::Times;
use crate::ops::{Applied, FILL_ZEROS, Op, Outcome, Place, Route, Session, Step};

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

/// One operation, and where the recording stood when it began and when it was acknowledged.
#[derive(Debug)]
pub(super) struct Recorded {
    pub(super) step: Step,
    pub(super) began: usize,
    pub(super) ended: Option<(usize, Applied)>,
}

/// What was done.
#[derive(Debug)]
pub(super) struct Run {
    pub(super) device: Arc<SimDevice>,
    pub(super) recorded: Vec<Recorded>,
    /// Where each checkpoint of the workload stands in the recording.
    pub(super) checkpoints: Vec<(usize, u64)>,
    /// Operations that the engine does not have.
    pub(super) unsupported: BTreeSet<&'static str>,
}

/// Returns the image of a new pool.
pub(super) fn new_pool() -> Image {
    let device = SimDevice::new(POOL_BYTES, SimOptions::default());
    let shared: SharedDevice = Arc::<SimDevice>::clone(&device);
    let mut create = CreateOptions::new(POOL_BYTES, [9; 64]);
    create.geometry.journal_bytes = Some(JOURNAL_BYTES);
    create.geometry.segment_bytes = Some(SEGMENT_BYTES);
    create.geometry.group_bytes = Some(GROUP_BYTES);
    Pool::create(&shared, &ManualClock::new(), &create).expect("a pool fits");
    device.durable_image()
}

/// Opens a pool, recovering it where it was cut.
pub(super) fn open(device: &Arc<SimDevice>, clock: Arc<ManualClock>) -> Result<Pool, String> {
    let device: SharedDevice = Arc::<SimDevice>::clone(device);
    let options = OpenOptions { cache_bytes: CACHE_BYTES, ..OpenOptions::default() };
    Pool::open(device, clock, options).map_err(|error| error.to_string())
}

/// A workload at work.
struct Worker<'a> {
    fs: &'a dyn FileSystem,
    session: Session<'a>,
    device: &'a SimDevice,
    run: Vec<Recorded>,
    unsupported: BTreeSet<&'static str>,
    /// So that every write has bytes of its own.
    fill: u32,
}

/// Does `workload` on a copy of `base`, and then what a server does: the background work, and a
/// close.
///
/// # Errors
///
/// An operation was refused that must not be.
pub(super) fn run(base: &Image, workload: &Workload) -> Result<Run, String> {
    let options = SimOptions { is_recorded: true, ..SimOptions::default() };
    let device = SimDevice::open(base.clone(), options);
    let clock = Arc::new(ManualClock::new());
    let pool = open(&device, Arc::clone(&clock))?;
    let session = Session::new(&pool, Times::Ignored);
    let (run, unsupported) = (Vec::new(), BTreeSet::new());
    let mut worker = Worker { fs: &pool, session, device: &device, run, unsupported, fill: 1 };
    let mut checkpoints = Vec::new();
    for &action in &workload.0 {
        clock.advance_ns(ACTION_NS);
        if let Action::Checkpoint(number) = action {
            checkpoints.push((device.position(), number));
            continue;
        }
        worker.act(action).map_err(|error| format!("{action}: {error}"))?;
    }
    worker.session.close_all();
    clock.advance_ns(REST_NS);
    pool.tick().map_err(|error| format!("background work: {error}"))?;
    let began = device.position();
    let closed = pool.close().map(|()| Outcome::Done);
    worker.note(Op::Sync, began, closed).map_err(|error| format!("close: {error}"))?;
    let Worker { run: recorded, unsupported, .. } = worker;
    Ok(Run { device, recorded, checkpoints, unsupported })
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
    fn note(&mut self, op: Op, began: usize, outcome: FsResult<Outcome>) -> FsResult<()> {
        let applied = Applied { outcome: outcome?, made: None };
        let ended = Some((self.device.position(), applied));
        self.run.push(Recorded { step: Step::root(op), began, ended });
        Ok(())
    }

    fn apply(&mut self, op: Op) -> FsResult<()> {
        let began = self.device.position();
        let step = Step::root(op);
        let applied = self.session.apply(&step);
        if let Outcome::Refused(error) = &applied.outcome {
            return Err(error.clone());
        }
        self.run.push(Recorded { step, began, ended: Some((self.device.position(), applied)) });
        Ok(())
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
                let mode = engine::vnode::api::RenameMode::Replace;
                match self.apply(Op::Rename { source: route(old), target: route(new), mode }) {
                    // What came before has filled the target: it stays, and the workload goes on.
                    Err(FsError::NotEmpty) => Ok(()),
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
            Action::Checkpoint(_) => Ok(()),
        }
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
        kind: super::workload::FallocateKind,
        offset: u64,
        length: u64,
    ) -> FsResult<()> {
        use engine::vnode::api::Fallocate;
        let file = Place::Slot(slot(name));
        let Some(attr) = self.session.probe(&file) else { return Err(FsError::NotFound) };
        let began = self.device.position();
        let mode = kind.mode();
        let done = self.fs.fallocate(&Caller::root(), attr.ino, offset, length, mode);
        if !self.supported("falloc", done)? {
            return Ok(());
        }
        let (zeroes, extends) = match mode {
            Fallocate::Allocate { keep_size } => (false, !keep_size),
            Fallocate::ZeroRange { keep_size } => (true, !keep_size),
            Fallocate::PunchHole | Fallocate::CollapseRange | Fallocate::InsertRange => {
                (true, false)
            }
        };
        let end = offset + length;
        if extends && end > attr.size_bytes {
            let op = Op::Truncate { file: file.clone(), size_bytes: end };
            self.note(op, began, Ok(Outcome::Done))?;
        }
        let zero_end = end.min(attr.size_bytes);
        if zeroes && zero_end > offset {
            let length = crate::number::usize_of(zero_end - offset);
            let op = Op::Write { file, offset, length, fill: FILL_ZEROS };
            self.note(op, began, Ok(Outcome::Done))?;
        }
        Ok(())
    }

    fn set_xattr(&mut self, name: Name) -> FsResult<()> {
        let op = Op::SetXattr {
            file: Place::Slot(slot(name)),
            name: XATTR_NAME.to_vec(),
            length: XATTR_VALUE_BYTES,
            fill: 1,
            mode: engine::vnode::api::XattrMode::Set,
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
