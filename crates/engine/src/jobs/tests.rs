//! Tests of walks: turns, pauses, paces, failures, and estimates of the remaining time.

use std::sync::atomic::{AtomicU64, Ordering};

use runtime::clock::ManualClock;
use storage::counters::IoCounts;
use storage::device::{CountingDevice, IoPurpose, MemoryDevice, RequestKind, SharedDevice};

use super::*;
use crate::alloc::LOW_SEGMENTS;
use crate::api::{Caller, FileKind, FileSystem, FsError, Ino, NewInode};
use crate::convert::wide;
use crate::{Pool, PoolCreateOptions, PoolOpenOptions};

const POOL_BYTES: u64 = 16 << 20;
const SECOND_NS: u64 = 1_000_000_000;

#[derive(Debug)]
struct CountingJob {
    total: u64,
    done: AtomicU64,
    fails_at: u64,
    is_slow: bool,
    takes: Option<(Arc<ManualClock>, u64)>,
}

impl CountingJob {
    fn new(total: u64, fails_at: u64, is_slow: bool) -> Arc<CountingJob> {
        Arc::new(CountingJob { total, done: AtomicU64::new(0), fails_at, is_slow, takes: None })
    }
}

impl Job for CountingJob {
    fn name(&self) -> &str {
        "counting"
    }

    fn step(&self, _core: &Core, _now_ns: u64, budget: StepBudget) -> FsResult<StepOutcome> {
        if let Some((clock, takes_ns)) = &self.takes {
            clock.advance_ns(*takes_ns);
        }
        let done = self.done.fetch_add(u64::from(budget.units), Ordering::Relaxed);
        let done = done + u64::from(budget.units);
        if done == self.fails_at {
            return Err(FsError::Invalid);
        }
        let rest = if self.is_slow { StepOutcome::Wait } else { StepOutcome::Again };
        Ok(if done < self.total { rest } else { StepOutcome::Done })
    }

    fn progress(&self, _core: &Core) -> Option<JobProgress> {
        Some(JobProgress { done: self.done.load(Ordering::Relaxed), total: self.total })
    }
}

fn new_pool() -> (Arc<ManualClock>, Pool) {
    let clock = Arc::new(ManualClock::new());
    let device: SharedDevice = MemoryDevice::new("memory", POOL_BYTES);
    let options = PoolCreateOptions::new(POOL_BYTES, [7; 64]);
    Pool::create(&device, clock.as_ref(), &options).expect("a pool fits");
    let pool = Pool::open(device, clock.clone(), PoolOpenOptions::default()).expect("it opens");
    (clock, pool)
}

fn done_of(pool: &Pool) -> Vec<u64> {
    pool.jobs().iter().map(|job| job.progress.expect("it counts").done).collect()
}

#[test]
fn walks_take_turns_and_go_when_they_are_done() {
    let (_clock, pool) = new_pool();
    let (step, turns) = (u64::from(UNITS_PER_STEP), wide(TURNS_MAX));
    pool.add_job(CountingJob::new(3 * step, 0, false));
    pool.add_job(CountingJob::new(2 * step, 0, true));
    // The clock stands still.
    pool.add_job(CountingJob::new(2 * turns * step, 0, false));
    pool.tick().expect("a tick");
    assert_eq!(done_of(&pool), [step, turns * step], "one is done, one waits, one goes on");
    pool.tick().expect("a tick");
    assert_eq!(pool.jobs(), []);
}

#[test]
fn a_paused_walk_does_nothing_and_its_time_does_not_count() {
    let (clock, pool) = new_pool();
    let step = u64::from(UNITS_PER_STEP);
    let id = pool.add_job(CountingJob::new(10 * step, 0, true));
    let tick = || {
        clock.advance_ns(SECOND_NS);
        pool.tick().expect("a tick");
    };
    tick();
    assert_eq!(pool.jobs()[0].ends_in_ns, Some(0), "it has not run for any time");
    tick();
    assert_eq!(pool.jobs()[0].ends_in_ns, Some(4 * SECOND_NS), "two steps in a second");
    assert!(pool.pause_job(id, true));
    (0..5).for_each(|_| tick());
    assert_eq!((done_of(&pool), pool.jobs()[0].is_paused), (vec![2 * step], true));
    assert_eq!(pool.jobs()[0].ends_in_ns, Some(4 * SECOND_NS));
    assert!(pool.pause_job(id, false));
    tick();
    assert_eq!(done_of(&pool), [3 * step]);
    assert!(!pool.pause_job(id + 1, true), "there is no other");
}

/// Goal: JP1, JP2. A job works all of the time in an idle pool, half of it beside requests, and
/// otherwise its fixed share.
#[test]
fn a_walk_keeps_its_pace() {
    let (clock, pool) = new_pool();
    let step = u64::from(UNITS_PER_STEP);
    let took_ns = 30_000_000;
    let id = pool.add_job(Arc::new(CountingJob {
        total: 1000 * step,
        done: AtomicU64::new(0),
        fails_at: 0,
        is_slow: false,
        takes: Some((Arc::clone(&clock), took_ns)),
    }));
    let percent = |percent| Pace::Percent(Percent::new(percent).expect("it is one"));
    let done = || done_of(&pool)[0] / step;
    pool.getattr(&Caller::root(), pool.root()).expect("it is there");
    assert_eq!(pool.tick_paced(), Ok(Some(Duration::from_nanos(took_ns))), "somebody asked");
    assert_eq!(done(), 1, "one step, and as long a rest");
    assert_eq!(pool.tick_paced(), Ok(Some(Duration::ZERO)), "nobody asked since");
    assert_eq!(done(), 5, "four steps are 120 ms");

    assert!(pool.pace_job(id, percent(25)));
    assert_eq!(pool.tick_paced(), Ok(Some(Duration::from_nanos(3 * took_ns))));
    assert_eq!(done(), 6);
    clock.advance_ns(3 * took_ns - 1);
    assert_eq!(pool.tick_paced(), Ok(Some(Duration::from_nanos(1))), "whoever asks for a tick");
    clock.advance_ns(1);
    pool.getattr(&Caller::root(), pool.root()).expect("it is there");
    assert_eq!(pool.tick_paced(), Ok(Some(Duration::from_nanos(3 * took_ns))));
    assert_eq!((done(), pool.jobs()[0].pace), (7, percent(25)));

    assert!(pool.pace_job(id, percent(100)));
    pool.getattr(&Caller::root(), pool.root()).expect("it is there");
    assert_eq!(pool.tick_paced(), Ok(Some(Duration::ZERO)), "whoever asks");
    assert_eq!(done(), 11);
    assert!(pool.pause_job(id, true));
    assert_eq!(pool.tick_paced(), Ok(None));
    assert!(!pool.pace_job(id + 1, Pace::Auto), "there is no other");
}

/// Goal: if a paced job has nothing to do until the next tick, it does not ask for an earlier one,
/// so that a full pool is not examined thousands of times a second. If the rest of a paced job ends
/// during the turns of others, it continues at once.
#[test]
fn a_walk_at_a_pace_neither_spins_nor_stalls() {
    let (clock, pool) = new_pool();
    let step = u64::from(UNITS_PER_STEP);
    let job = |is_slow, takes_ns| {
        Arc::new(CountingJob {
            total: 1000 * step,
            done: AtomicU64::new(0),
            fails_at: 0,
            is_slow,
            takes: Some((Arc::clone(&clock), takes_ns)),
        })
    };
    let percent = |percent| Pace::Percent(Percent::new(percent).expect("it is one"));
    let slow = pool.add_job(job(true, 1_000));
    assert!(pool.pace_job(slow, percent(50)));
    assert_eq!(pool.tick_paced(), Ok(None), "it waits for the next tick");
    assert!(pool.pause_job(slow, true));
    let paced = pool.add_job(job(false, 20_000_000));
    assert!(pool.pace_job(paced, percent(90)));
    assert_eq!(pool.tick_paced(), Ok(Some(Duration::from_nanos(2_222_222))));
    clock.advance_ns(2_222_222);
    // This job takes longer than the first one rests.
    pool.add_job(job(true, 3_000_000));
    assert_eq!(pool.tick_paced(), Ok(Some(Duration::ZERO)), "its rest is over");
}

#[test]
fn a_walk_that_fails_stops_alone_and_goes_on_when_told() {
    let (_clock, pool) = new_pool();
    let step = u64::from(UNITS_PER_STEP);
    let id = pool.add_job(CountingJob::new(4 * step, 2 * step, false));
    pool.add_job(CountingJob::new(9 * step, 0, true));
    pool.tick().expect("the pool goes on");
    pool.tick().expect("the pool goes on");
    let jobs = pool.jobs();
    assert_eq!(jobs[0].failure.as_deref(), Some("invalid argument"));
    assert_eq!(done_of(&pool), [2 * step, 2 * step]);
    assert!(pool.pause_job(id, false));
    pool.tick().expect("a tick");
    assert_eq!(done_of(&pool), [3 * step], "the first is done");
}

#[test]
fn how_long_a_job_takes_is_told_once_it_has_done_something() {
    let at = |done, total| JobProgress { done, total };
    assert_eq!(ends_in_ns(at(5, 10), 5, 100), None, "nothing since it was added");
    assert_eq!(ends_in_ns(at(6, 10), 5, 100), Some(400));
    assert_eq!(ends_in_ns(at(12, 10), 5, 100), Some(0));
    assert_eq!(ends_in_ns(at(1, u64::MAX), 0, u64::MAX), None, "longer than can be told");
}

const LARGER_BYTES: u64 = 64 << 20;
const BLOCK_BYTES: usize = 16 << 10;
const TICK_NS: u64 = 250_000_000;
const TICKS: usize = 100;

struct NearlyFullPool {
    device: Arc<CountingDevice>,
    clock: Arc<ManualClock>,
    pool: Pool,
}

impl NearlyFullPool {
    fn new() -> NearlyFullPool {
        let device = CountingDevice::new(MemoryDevice::new("memory", LARGER_BYTES));
        let shared: SharedDevice = Arc::<CountingDevice>::clone(&device);
        let clock = Arc::new(ManualClock::new());
        let mut options = PoolCreateOptions::new(LARGER_BYTES, [7; 64]);
        options.geometry.segment_bytes = Some(128 << 10);
        Pool::create(&shared, clock.as_ref(), &options).expect("a pool fits");
        let pool = Pool::open(shared, clock.clone(), PoolOpenOptions::default()).expect("it opens");
        NearlyFullPool { device, clock, pool }
    }

    fn free_segments(&self) -> u32 {
        self.pool.core().store.alloc.free_segments(2 * LOW_SEGMENTS).expect("nothing is damaged")
    }

    fn make(&self, name: &str) -> FsResult<Ino> {
        let new = NewInode::new(FileKind::Regular, 0o644);
        let made =
            self.pool.create(&Caller::root(), self.pool.root(), name.as_bytes(), new, None)?;
        self.pool.forget(made.ino, 1);
        Ok(made.ino)
    }

    fn tick(&self, count: usize) -> IoCounts {
        let before = self.device.counts();
        for _ in 0..count {
            self.clock.advance_ns(TICK_NS);
            self.pool.tick().expect("nothing fails");
        }
        self.device.counts() - before
    }

    /// Ticks write nothing except the heartbeat.
    fn assert_rests(&self) {
        let cost = self.tick(TICKS);
        let beats = cost.of(IoPurpose::Superblock, RequestKind::Write).requests;
        assert_eq!((cost.writes() - beats, cost.flushes()), (0, 0), "{cost:?}");
    }
}

/// Goal: a full pool with nothing worth cleaning stays idle. Method: one file takes all space.
/// Writes by ticks are counted, and counted again after a change.
#[test]
fn a_full_pool_in_which_there_is_nothing_to_clean_rests() {
    let short = NearlyFullPool::new();
    let ino = short.make("file").expect("there is room");
    let data = vec![1; BLOCK_BYTES];
    let mut end = 0;
    while short.pool.write(&Caller::root(), ino, end, &data).is_ok() {
        end += wide(BLOCK_BYTES);
    }
    short.tick(TICKS);
    assert!(short.free_segments() < 2 * LOW_SEGMENTS, "it is not full");
    short.assert_rests();
    short.pool.write(&Caller::root(), ino, 0, &data).expect("what it has may be written again");
    assert!(short.tick(TICKS).writes() > 0, "a change is written");
    short.assert_rests();
}

/// Goal: the cleaner starts before writers need a segment, and stops at its target. Method: two
/// files fill the pool with alternating blocks, and one is removed.
#[test]
fn a_pool_with_few_free_segments_is_cleaned_before_writers_want_them() {
    let short = NearlyFullPool::new();
    let files = ["stays", "goes"].map(|name| short.make(name).expect("there is room"));
    let data = vec![1; BLOCK_BYTES];
    let write = |number: u64| {
        let (file, block) = (files[usize::from(number % 2 == 1)], number / 2);
        short.pool.write(&Caller::root(), file, block * wide(BLOCK_BYTES), &data)
    };
    (0..).find(|number| write(*number).is_err()).expect("it is full once");
    short.pool.unlink(&Caller::root(), short.pool.root(), b"goes", None).expect("it is there");
    short.pool.sync().expect("nothing fails");
    short.pool.checkpoint().expect("nothing fails");
    let free = short.free_segments();
    assert!((LOW_SEGMENTS..2 * LOW_SEGMENTS).contains(&free), "{free} segments are free");
    short.tick(TICKS);
    assert_eq!(short.free_segments(), 2 * LOW_SEGMENTS);
    short.assert_rests();
}
