//! A pool against the reference, step by step, whatever the pool was made and opened with.
//!
//! What a pool answers is no function of its options, of when background work is done, or of how
//! often it was closed or lost its memory: so all of that comes from the seed.

use std::cell::RefCell;
use std::sync::Arc;

use engine::alloc::policy::placement;
use engine::api::{Caller, FileKind, FileSystem, FsError, FsResult, Ino, NewInode};
use engine::{DiscardOptions, FilesOptions, Pool, PoolCreateOptions, PoolOpenOptions};
use runtime::clock::ManualClock;
use runtime::prng::Prng;
use storage::device::{MemoryDevice, SharedDevice};
use testkit::canon::{Times, walk};
use testkit::model::Model;
use testkit::ops::{LockstepOptions, Op, Outcome, Session, Step, run_lockstep};

/// Bytes of the pools: small, so that the maps, the journal and the segments run full.
pub(crate) const POOL_BYTES: u64 = 64 << 20;
/// Whole trees are compared each time so many steps were done.
const WALK_EVERY: usize = 250;
/// Background work is done before one in so many steps; a checkpoint before fewer.
const TICK_ONE_IN: u64 = 16;
const CHECKPOINT_ONE_IN: u64 = 64;

/// What is compared with the reference.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subject {
    /// The reference against itself: tells whether the comparison is fair.
    Model,
    /// A pool with the default options.
    Plain,
    /// A pool with options from the seed, and background work between the steps.
    Options,
    /// Such a pool, closed and opened again after each `sync`, with other options.
    Closed,
    /// Such a pool, lost after each `sync` and recovered.
    Lost,
}

/// Every subject.
pub const SUBJECTS: [Subject; 5] =
    [Subject::Model, Subject::Plain, Subject::Options, Subject::Closed, Subject::Lost];

/// How a run failed.
#[derive(Clone, Debug)]
pub struct Failure {
    /// After how many steps.
    pub step_count: usize,
    /// What a person wants to know.
    pub text: String,
}

/// Does `history` on the subject and on the reference, and compares them.
///
/// # Errors
///
/// Where they go apart, or what the checker found.
pub fn run(subject: Subject, seed: u64, history: &[Step]) -> Result<(), Failure> {
    let clock = Arc::new(ManualClock::new());
    let model = Model::new(clock.clone());
    if subject == Subject::Model {
        let other = Model::new(clock.clone());
        return lockstep(&model, &other, &clock, &|| (), (0, history));
    }
    let random = RefCell::new(Prng::from_seed(seed));
    let is_plain = subject == Subject::Plain;
    let create = if is_plain {
        PoolCreateOptions::new(POOL_BYTES, [7; 64])
    } else {
        create_options(&mut random.borrow_mut())
    };
    let device: SharedDevice = MemoryDevice::new("memory", POOL_BYTES);
    Pool::create(&device, clock.as_ref(), &create).expect("a pool fits");
    let mut done = 0;
    for life in lives(subject, history) {
        let options = if is_plain {
            PoolOpenOptions::default()
        } else {
            open_options(&mut random.borrow_mut())
        };
        let step_count = done + life.len();
        let fail = |text: String| Failure { step_count, text };
        let pool = Pool::open(Arc::clone(&device), clock.clone(), options)
            .map_err(|error| fail(format!("does not open: {error}")))?;
        // What was there before is there again.
        lockstep(&model, &pool, &clock, &|| (), (done, &[]))?;
        let background = || background(&pool, &mut random.borrow_mut());
        let background: &dyn Fn() = if is_plain { &|| () } else { &background };
        lockstep(&model, &pool, &clock, background, (done, life))?;
        done = step_count;
        end_life(subject, &device, &pool, &model).map_err(fail)?;
    }
    Ok(())
}

/// The parts of `history` between two openings: whatever shrinks a history keeps them.
fn lives(subject: Subject, history: &[Step]) -> Vec<&[Step]> {
    if matches!(subject, Subject::Closed | Subject::Lost) {
        return history.split_inclusive(|step| step.op == Op::Sync).collect();
    }
    vec![history]
}

fn lockstep(
    model: &dyn FileSystem,
    fs: &dyn FileSystem,
    clock: &ManualClock,
    background: &dyn Fn(),
    (done, steps): (usize, &[Step]),
) -> Result<(), Failure> {
    let options = LockstepOptions { clock: Some(clock), walk_every: WALK_EVERY, background };
    run_lockstep(model, fs, steps, options).map_err(|divergence| Failure {
        step_count: done + divergence.step_count().min(steps.len()),
        text: format!("{done} steps, then {divergence}"),
    })
}

pub(crate) fn background(pool: &Pool, random: &mut Prng) {
    if random.one_in(TICK_ONE_IN) {
        pool.tick().expect("a memory device does not fail");
    }
    if random.one_in(CHECKPOINT_ONE_IN) {
        pool.checkpoint().expect("a memory device does not fail");
    }
}

/// Ends a life of the pool: the checker finds nothing before and after.
fn end_life(
    subject: Subject,
    device: &SharedDevice,
    pool: &Pool,
    model: &dyn FileSystem,
) -> Result<(), String> {
    expect_clean("open", device)?;
    if subject == Subject::Lost {
        leave_orphan(model);
        leave_orphan(pool);
        pool.sync().map_err(|error| format!("sync: {error}"))?;
        return expect_clean("lost", device);
    }
    pool.close().map_err(|error| format!("close: {error}"))?;
    expect_clean("closed", device)
}

fn expect_clean(what: &str, device: &SharedDevice) -> Result<(), String> {
    let report = check::run(Arc::clone(device), check::CheckOptions::default(), &mut |_| ());
    if report.is_clean() { Ok(()) } else { Err(format!("{what} pool: {}", report.to_text())) }
}

/// Leaves a file without a name, which somebody holds: the next opening frees it.
fn leave_orphan(fs: &dyn FileSystem) {
    let (root, name) = (Caller::root(), b"left without a name");
    let new = NewInode::new(FileKind::Regular, 0o600);
    let attr = fs.create(&root, fs.root(), name, new, None).expect("there is room");
    fs.write(&root, attr.ino, 0, &[1; 40_000]).expect("there is room");
    fs.unlink(&root, fs.root(), name, None).expect("it is there");
}

fn choose<T: Copy>(random: &mut Prng, from: &[T]) -> T {
    let count = u64::try_from(from.len()).expect("a few");
    from[usize::try_from(random.below(count)).expect("a few")]
}

pub(crate) fn create_options(random: &mut Prng) -> PoolCreateOptions {
    let mut options = PoolCreateOptions::new(POOL_BYTES, [7; 64]);
    options.geometry.fragment_bytes = choose(random, &[1024, 2048, 4096]);
    options.geometry.segment_bytes = Some(choose(random, &[256 << 10, 512 << 10, 1 << 20]));
    options.geometry.group_bytes = Some(choose(random, &[16 << 20, 32 << 20]));
    options.geometry.journal_bytes = choose(random, &[None, Some(1 << 20), Some(2 << 20)]);
    options.block_shift = choose(random, &[12, 14, 16]);
    options
}

pub(crate) fn open_options(random: &mut Prng) -> PoolOpenOptions {
    let name = choose(random, &["log", "ffs", "hotspot"]);
    let default = PoolOpenOptions::default();
    PoolOpenOptions {
        cache_bytes: choose(random, &[1 << 20, 2 << 20, 64 << 20]),
        placement: placement(name).expect("there are these three"),
        files: FilesOptions {
            log_data_bytes_max: choose(random, &[0, 4 << 10, 32 << 10]),
            commit_interval_ns: choose(random, &[0, 100_000_000, 5_000_000_000]),
            ..FilesOptions::default()
        },
        active_log_bytes: choose(random, &[512 << 10, 4 << 20, default.active_log_bytes]),
        dirty_pages: choose(random, &[64, 512, default.dirty_pages]),
        discard: choose(random, &[DiscardOptions::at_once(), default.discard]),
        ..default
    }
}

/// Bytes of a pool that is full most of the time.
const FULL_POOL_BYTES: u64 = 12 << 20;
/// Names that one listing of a directory takes away.
const NAMES_PER_LISTING: usize = 64;

/// Does `history` on a pool too small for it, whatever it answers; then empties the pool. Returns
/// how many steps found no room.
///
/// # Errors
///
/// What the checker found, what could not be deleted, or that the space did not come back.
pub fn run_full(seed: u64, history: &[Step]) -> Result<u64, Failure> {
    let mut refused = 0;
    let clock = Arc::new(ManualClock::new());
    let mut random = Prng::from_seed(seed);
    let fail = |text: String| Failure { step_count: history.len(), text };
    let device: SharedDevice = MemoryDevice::new("memory", FULL_POOL_BYTES);
    let mut create = PoolCreateOptions::new(FULL_POOL_BYTES, [7; 64]);
    create.geometry.fragment_bytes = choose(&mut random, &[1024, 2048, 4096]);
    Pool::create(&device, clock.as_ref(), &create).expect("a pool fits");
    let open = |random: &mut Prng| {
        Pool::open(Arc::clone(&device), clock.clone(), open_options(random))
            .map_err(|error| fail(format!("does not open: {error}")))
    };
    let mut pool = open(&mut random)?;
    let empty = pool
        .statfs(&Caller::root(), pool.main_fileset())
        .map_err(|error| fail(format!("statfs: {error}")))?;
    for life in lives(Subject::Lost, history) {
        let mut session = Session::new(&pool, Times::Ignored);
        for step in life {
            clock.advance_ns(1_000_000);
            let outcome = session.apply(step).outcome;
            refused += u64::from(outcome == Outcome::Refused(FsError::NoSpace));
        }
        session.close_all();
        walk(&pool, Times::Ignored).map_err(|error| fail(format!("walk: {error}")))?;
        pool.sync().map_err(|error| fail(format!("sync: {error}")))?;
        expect_clean("full", &device).map_err(fail)?;
        drop(pool);
        pool = open(&mut random)?;
    }
    remove_all(&pool, pool.root()).map_err(|error| fail(format!("remove: {error}")))?;
    pool.close().map_err(|error| fail(format!("close: {error}")))?;
    expect_clean("emptied", &device).map_err(fail)?;
    let pool = open(&mut random)?;
    let emptied = pool
        .statfs(&Caller::root(), pool.main_fileset())
        .map_err(|error| fail(format!("statfs: {error}")))?;
    let kept = empty.available_bytes.saturating_sub(emptied.available_bytes);
    if emptied.inode_count != empty.inode_count || kept > KEPT_BYTES_MAX {
        return Err(fail(format!("{kept} bytes did not come back: {empty:?}, then {emptied:?}")));
    }
    Ok(refused)
}

/// Pages that an emptied pool may keep: those of the root directory and of tables that grew.
const KEPT_BYTES_MAX: u64 = 256 << 10;

fn remove_all(fs: &dyn FileSystem, directory: Ino) -> FsResult<()> {
    let root = Caller::root();
    loop {
        let mut entries = Vec::new();
        fs.readdir(&Caller::root(), directory, 0, &mut |entry| {
            if entry.name != b"." && entry.name != b".." {
                entries.push(entry.clone());
            }
            entries.len() < NAMES_PER_LISTING
        })?;
        if entries.is_empty() {
            return Ok(());
        }
        for entry in entries {
            if entry.kind == FileKind::Directory {
                remove_all(fs, entry.ino)?;
                fs.rmdir(&root, directory, &entry.name, None)?;
            } else {
                fs.unlink(&root, directory, &entry.name, None)?;
            }
        }
    }
}
