//! Goal: nothing waits for ever. Whichever request a device does not answer, answers late or fails,
//! each operation ends within two deadlines (three behind others) and says which file, which device
//! and what to do; nothing acknowledged is lost, what is late harms nobody, and the pool is closed
//! and opened again.
//!
//! Method: a fixed workload in virtual time, once for each request that it makes and each way to
//! miss the answer; then clients at once, by seed, so that they wait for each other too; then
//! threads of the machine on a device that blocks.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use engine::api::{Caller, FileSystem, FsError, FsResult};
use engine::{Pool, PoolOpenOptions};
use runtime::clock::{ManualClock, SimClock};
use runtime::prng::Prng;
use runtime::sync::Mutex;
use runtime::sync::sim::{Scheduler, SimThreadTask};
use storage::device::sim::{DiskModel, Fault, FaultPlan, Image, SimDevice, SimOptions};
use storage::device::{DEADLINE_MIN, DeadlineDevice, MemoryDevice, RequestKind, SharedDevice};
use testkit::ops::sync;
use whole_system::gate::{Gate, GateDevice};

use super::{POOL_BYTES, content, create, defects, device_of, make, new_pool, open, read};

/// No workload here makes more requests of one kind.
const REQUESTS_MAX: u64 = 2000;
const DEADLINE: Duration = Duration::from_secs(7);
const DEADLINE_NS: u64 = 7_000_000_000;

/// What the workload has been promised: content by name.
type Promised = BTreeMap<String, Vec<u8>>;

/// How a request misses its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Miss {
    Hangs { takes_effect: bool, persists: bool },
    IsLate { delay_ns: u64 },
    Fails,
}

const MISSES: [Miss; 6] = [
    Miss::Hangs { takes_effect: false, persists: false },
    Miss::Hangs { takes_effect: true, persists: false },
    Miss::Hangs { takes_effect: false, persists: true },
    Miss::IsLate { delay_ns: DEADLINE_NS / 2 },
    Miss::IsLate { delay_ns: DEADLINE_NS + 1 },
    Miss::Fails,
];

impl Miss {
    fn plan(self, kind: RequestKind, nth: u64) -> FaultPlan {
        FaultPlan::none().with(match self {
            Miss::Hangs { takes_effect, persists } => {
                Fault::Hang { kind, nth, takes_effect, persists }
            }
            Miss::IsLate { delay_ns } => Fault::Delay { kind, nth, delay_ns },
            Miss::Fails => Fault::Fail { kind, nth, persists: false },
        })
    }

    /// Whether every answer comes in time.
    fn is_harmless(self) -> bool {
        matches!(self, Miss::IsLate { delay_ns } if delay_ns <= DEADLINE_NS)
    }
}

/// One run of the workload on one device.
struct Run<'a> {
    device: &'a SimDevice,
    pool: &'a Pool,
    promised: Promised,
    /// Written and not yet synced: in the pool, if not on the device.
    accepted: Promised,
    context: String,
}

impl Run<'_> {
    /// Does one operation, which must end in time and say what went wrong with which file.
    fn timed<T>(&self, path: &str, work: impl FnOnce(&Pool) -> FsResult<T>) -> FsResult<T> {
        let begun_ns = self.device.now_ns();
        let result = work(self.pool);
        let spent_ns = self.device.now_ns() - begun_ns;
        assert!(spent_ns <= 2 * DEADLINE_NS, "{}: {path}: {spent_ns} ns", self.context);
        if let Err(error) = &result {
            self.is_told(path, error);
        }
        result
    }

    fn is_told(&self, path: &str, error: &FsError) {
        let text = error.to_string();
        assert!(matches!(error, FsError::Io { .. } | FsError::ReadOnly { .. }), "{text}");
        let says = |what: &str| text.contains(what);
        assert!(says("sim:0"), "{}: which device: {text}", self.context);
        assert!(says("unmount") || says("kernel's log"), "what to do: {text}");
        if matches!(error, FsError::Io { .. }) && !path.is_empty() {
            assert!(says(path), "{}: which file: {text}", self.context);
        }
    }

    fn put(&mut self, name: &str, seed: u64, length: usize) -> FsResult<()> {
        let path = format!("/{name}");
        let ino = self.timed(&path, |pool| make(pool, name))?;
        let bytes = content(seed, length);
        self.timed(&path, |pool| pool.write(&Caller::root(), ino, 0, &bytes))?;
        self.accepted = Promised::from([(name.to_owned(), bytes)]);
        self.timed(&path, |pool| sync(pool, &Caller::root(), ino, false, seed % 2 == 1))?;
        self.promised.append(&mut self.accepted);
        Ok(())
    }

    /// Works until something fails.
    fn work(&mut self) -> FsResult<()> {
        for round in 0..3 {
            self.put(&format!("small{round}"), round, 3000)?;
            self.put(&format!("large{round}"), 100 + round, 100_000)?;
            let (gone, path) = (format!("small{round}"), format!("/small{round}"));
            self.promised.remove(&gone);
            let root = self.pool.root();
            self.timed(&path, |pool| pool.unlink(&Caller::root(), root, gone.as_bytes(), None))?;
            self.timed("", Pool::sync)?;
            self.timed("", Pool::checkpoint)?;
            self.timed("", Pool::tick)?;
            self.reads()?;
        }
        Ok(())
    }

    fn reads(&self) -> FsResult<()> {
        for (name, bytes) in self.promised.iter().chain(&self.accepted) {
            let found = self.timed(&format!("/{name}"), |pool| read(pool, name))?;
            assert!(found == *bytes, "{}: {name}", self.context);
        }
        Ok(())
    }

    /// The pool after a request missed its answer: reads are served, changes only where they last,
    /// and the end comes.
    fn after(&self, kind: RequestKind) {
        let is_change = kind == RequestKind::Write || kind == RequestKind::Flush;
        if is_change {
            let error = self.timed("", |pool| make(pool, "late")).expect_err("a change is taken");
            assert!(matches!(error, FsError::ReadOnly { .. }), "{}: {error}", self.context);
            assert!(self.pool.status().read_only.is_some());
            self.reads().unwrap_or_else(|error| panic!("{}: {error}", self.context));
        }
        let _ = self.timed("", Pool::sync);
        let _ = self.timed("", Pool::tick);
        // What is late takes effect now.
        self.device.advance_ns(3 * DEADLINE_NS);
        if is_change {
            self.reads().unwrap_or_else(|error| panic!("{}: late: {error}", self.context));
        }
        let _ = self.timed("", Pool::close);
    }
}

fn is_whole(image: &Image, promised: &Promised, context: &str) {
    let again = device_of(image);
    let pool = open(&again).unwrap_or_else(|error| panic!("{context}: reopen: {error}"));
    for (name, bytes) in promised {
        let found = read(&pool, name).unwrap_or_else(|error| panic!("{context}: {error}"));
        assert!(found == *bytes, "{context}: {name}");
    }
    pool.close().expect("nothing fails any more");
    assert_eq!(defects(&again), None, "{context}");
}

/// Returns whether the fault was met, judged by the answers and by the time that passed.
fn work_with(base: &Image, kind: RequestKind, nth: u64, miss: Miss) -> bool {
    let options = SimOptions {
        faults: miss.plan(kind, nth),
        deadline: DEADLINE,
        // Flushes are missed where commits need them.
        has_write_through: kind != RequestKind::Flush,
        ..SimOptions::default()
    };
    let device = SimDevice::open(base.clone(), options);
    let shared: SharedDevice = Arc::<SimDevice>::clone(&device);
    let context = format!("{kind} {nth} {miss:?}");
    let opened = open(&shared);
    assert!(device.now_ns() <= 2 * DEADLINE_NS, "{context}: an open takes {}", device.now_ns());
    let mut promised = Promised::new();
    let mut failed = opened.is_err();
    match opened {
        Err(error) => {
            assert!(!miss.is_harmless(), "{context}: {error}");
            assert!(error.to_string().contains("sim:0"), "does not say where: {error}");
        }
        Ok(pool) => {
            let mut run = Run {
                device: &device,
                pool: &pool,
                promised,
                accepted: Promised::new(),
                context: context.clone(),
            };
            let worked = run.work();
            if worked.is_err() {
                failed = true;
                assert!(!miss.is_harmless(), "{context}: {worked:?}");
                run.after(kind);
            } else if let Err(error) = run.timed("", Pool::close) {
                failed = true;
                assert!(!miss.is_harmless(), "{context}: {error}");
            }
            promised = run.promised;
        }
    }
    let before = [device.image(), device.crash_image(&mut Prng::from_seed(nth))];
    // What is still late may take effect before the next open, or not.
    device.advance_ns(3 * DEADLINE_NS);
    for image in before.into_iter().chain([device.image()]) {
        is_whole(&image, &promised, &context);
    }
    failed || device.now_ns() > 3 * DEADLINE_NS
}

/// Does it for each request of `kind`; returns how many there are.
fn each_request(kind: RequestKind) -> u64 {
    let base = new_pool();
    for nth in 0..REQUESTS_MAX {
        let hits = MISSES.iter().filter(|&&miss| work_with(&base, kind, nth, miss)).count();
        // Copies of the superblock that can't be read are made up for.
        if hits == 0 && nth > 3 {
            return nth;
        }
    }
    panic!("the workload never succeeds")
}

#[test]
fn a_write_that_misses_its_answer_ends_and_loses_nothing() {
    let count = each_request(RequestKind::Write);
    assert!(count > 40, "{count}");
}

#[test]
fn a_flush_that_misses_its_answer_ends_and_loses_nothing() {
    let count = each_request(RequestKind::Flush);
    assert!(count > 20, "{count}");
}

#[test]
fn a_read_that_misses_its_answer_is_told_and_harms_nothing() {
    let count = each_request(RequestKind::Read);
    assert!(count > 5, "{count}");
}

/// Clients at once.
const CLIENTS: u64 = 3;
const FILES_PER_CLIENT: u64 = 6;
const SEEDS: u64 = 150;
/// What a disk and scheduling points take beside the deadlines.
const WORK_NS: u64 = 1_000_000_000;

/// A log and a cache so small that clients wait for checkpoints, and these for pages.
fn small_options() -> PoolOpenOptions {
    PoolOpenOptions {
        cache_bytes: 1 << 20,
        active_log_bytes: 320 << 10,
        dirty_pages: 256,
        ..PoolOpenOptions::default()
    }
}

/// Does one operation and sees to it that it ends in time.
type Timed<'a> = &'a dyn Fn(&mut dyn FnMut() -> FsResult<()>) -> FsResult<()>;

/// Works as one client until something fails; returns what it was promised, and why it ended.
fn client(pool: &Pool, me: u64, timed: Timed<'_>) -> (Promised, FsResult<()>) {
    let mut promised = Promised::new();
    let mut work = || -> FsResult<()> {
        for number in 0..FILES_PER_CLIENT {
            let name = format!("c{me}-{number}");
            let bytes = content(me * 100 + number, if number % 2 == 0 { 2000 } else { 100_000 });
            timed(&mut || make(pool, &name).map(drop))?;
            let ino = super::find(pool, &name)?;
            timed(&mut || pool.write(&Caller::root(), ino, 0, &bytes))?;
            timed(&mut || sync(pool, &Caller::root(), ino, false, number % 4 >= 2))?;
            timed(&mut || read(pool, &name).map(|found| assert!(found == bytes)))?;
            promised.insert(name, bytes);
        }
        Ok(())
    };
    let ended = work();
    (promised, ended)
}

/// Runs clients, a ticker and a checkpointer by one seed; returns whether the fault was met.
fn clients_with(base: &Image, seed: u64) -> bool {
    let mut prng = Prng::from_seed(seed);
    let kind = [RequestKind::Read, RequestKind::Write, RequestKind::Flush]
        [usize::try_from(prng.below(3)).expect("few")];
    let miss = MISSES[usize::try_from(prng.below(6)).expect("few")];
    let nth = prng.below(if kind == RequestKind::Read { 20 } else { 60 });
    let context = format!("seed {seed}: {kind} {nth} {miss:?}");
    let options = SimOptions {
        faults: miss.plan(kind, nth),
        deadline: DEADLINE,
        has_write_through: kind != RequestKind::Flush,
        model: DiskModel::ssd(),
        seed,
        ..SimOptions::default()
    };
    let device = SimDevice::open(base.clone(), options);
    let shared: SharedDevice = Arc::<SimDevice>::clone(&device);
    let scheduler = Scheduler::new(seed);
    let clock = Arc::new(SimClock::new(Arc::clone(&scheduler)));
    let pool = Mutex::new(None);
    scheduler.run(vec![(
        "open".to_owned(),
        Box::new(|| *pool.lock() = Pool::open(shared, clock, small_options()).ok()),
    )]);
    let Some(pool) = pool.into_inner() else {
        assert!(!miss.is_harmless(), "{context}");
        is_whole(&device.image(), &Promised::new(), &context);
        return true;
    };
    let pool = &pool;
    let timed = |work: &mut dyn FnMut() -> FsResult<()>| {
        let begun_ns = scheduler.now_ns();
        let result = work();
        let spent_ns = scheduler.now_ns() - begun_ns;
        assert!(spent_ns <= 3 * DEADLINE_NS + WORK_NS, "{context}: {spent_ns} ns, {result:?}");
        result
    };
    let (timed, context) = (&timed, &context);
    let all = &Mutex::new((Promised::new(), false));
    let mut jobs: Vec<SimThreadTask<'_>> = Vec::new();
    for me in 0..CLIENTS {
        let work = move || {
            let (promised, ended) = client(pool, me, timed);
            let mut all = all.lock();
            all.0.extend(promised);
            if let Err(error) = ended {
                assert!(!miss.is_harmless(), "{context}: {error}");
                all.1 = true;
            }
        };
        jobs.push((format!("client {me}"), Box::new(work)));
    }
    let background = move || {
        for _ in 0..8 {
            let _ = timed(&mut || pool.tick());
            let _ = timed(&mut || pool.checkpoint());
        }
    };
    jobs.push(("background".to_owned(), Box::new(background)));
    scheduler.run(jobs);
    let close = || {
        let _ = timed(&mut || pool.close());
    };
    scheduler.run(vec![("close".to_owned(), Box::new(close))]);
    let all = all.lock();
    let before = device.crash_image(&mut prng);
    device.advance_ns(scheduler.now_ns() + 3 * DEADLINE_NS);
    for image in [before, device.image()] {
        is_whole(&image, &all.0, context);
    }
    all.1
}

#[test]
fn clients_that_wait_for_each_other_all_end() {
    let base = new_pool();
    let ended = (0..SEEDS).filter(|&seed| clients_with(&base, seed)).count();
    assert!(ended > 60, "{ended} of {SEEDS} seeds met their fault");
}

/// Goal: with threads of the machine too everybody is let go. Method: the gate is shut while they
/// work, and opened when the pool is gone.
#[test]
fn threads_on_a_device_that_blocks_all_end() {
    let inner = MemoryDevice::new("memory", POOL_BYTES);
    let raw: SharedDevice = Arc::<MemoryDevice>::clone(&inner);
    create(&raw, POOL_BYTES);
    let gate = Arc::new(Gate::default());
    let gated = GateDevice::new(inner, &gate);
    // Beside overdue calls a read gets a sixteenth of it, which a busy machine must not use up.
    let device: SharedDevice = DeadlineDevice::new(gated, 60 * DEADLINE_MIN);
    let clock = Arc::new(ManualClock::new());
    let pool = Pool::open(Arc::clone(&device), clock, small_options()).expect("it opens");
    make(&pool, "first").expect("the gate is open");
    pool.sync().expect("the gate is open");
    let (pool, gate) = (&pool, &gate);
    let mut promised = Promised::new();
    std::thread::scope(|scope| {
        let clients: Vec<_> =
            (0..4).map(|me| scope.spawn(move || client(pool, me, &|work| work()))).collect();
        let work = || while pool.tick().is_ok() && pool.checkpoint().is_ok() {};
        let background = scope.spawn(work);
        while pool.lookup(&Caller::root(), pool.root(), b"c0-1").is_err() {
            std::thread::yield_now();
        }
        gate.shut(true);
        for client in clients {
            let (kept, ended) = client.join().expect("no panic");
            promised.extend(kept);
            if let Err(error) = ended {
                assert!(error.to_string().contains("memory"), "{error}");
            }
        }
        background.join().expect("no panic");
    });
    let error = make(pool, "late").expect_err("a change is taken");
    assert!(matches!(error, FsError::ReadOnly { .. }), "{error}");
    for (name, bytes) in &promised {
        assert!(read(pool, name).expect("reads are served") == *bytes, "{name}");
    }
    pool.close().expect_err("it can't be marked closed");
    // The last holder: it ends although calls are overdue.
    drop(device);
    gate.shut(false);
    is_there(&raw, &promised);
}

fn is_there(device: &SharedDevice, promised: &Promised) {
    let pool = open(device).expect("it opens again");
    for (name, bytes) in promised {
        assert!(read(&pool, name).expect("it was promised") == *bytes, "{name}");
    }
    pool.close().expect("the gate is open");
    assert_eq!(defects(device), None);
}
