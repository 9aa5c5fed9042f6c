//! Goal: what is read ahead of a listing harms nobody, whatever becomes of it, and a listing tells
//! what is so when it tells it, not when it read.
//!
//! Method: in virtual time, on a device of which the reads behind an answer fail, or are answered
//! with an error after a long time. Meanwhile another client works in the directory, and the
//! listing goes on. Then on a device during whose reads for a listing files are changed.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use engine::api::{Caller, FileSystem, SetAttr};
use engine::{Pool, PoolOpenOptions};
use runtime::clock::{ManualClock, SimClock};
use runtime::sync::Mutex;
use runtime::sync::sim::{Scheduler, SimThreadTask, current, sleep_until};
use storage::device::{
    Device, DeviceCompletion, DeviceError, DeviceInfo, DeviceOperation, IoPurpose, MemoryDevice,
    PendingRequest, SharedDevice, Ticket,
};

use super::{create, find, make, open};

const POOL_BYTES: u64 = 32 << 20;
const FILES: usize = 3000;
const ANSWER_NAMES: usize = 190;
const DEADLINE_NS: u64 = 30_000_000_000;
const SECOND_NS: u64 = 1_000_000_000;

/// A device that answers no read with success while it is ill, and how long it takes over that.
#[derive(Debug)]
struct IllDevice {
    inner: SharedDevice,
    is_ill: AtomicBool,
    delay_ns: u64,
    refused: AtomicU64,
}

struct Refused(String, u64);

impl PendingRequest for Refused {
    fn wait(self: Box<Self>) -> Result<DeviceCompletion, DeviceError> {
        // All that were asked for at once end at once.
        if current().is_some_and(|scheduler| scheduler.now_ns() < self.1) {
            sleep_until(self.1);
        }
        Err(DeviceError::Failed { device: self.0 })
    }
}

impl Device for IllDevice {
    fn info(&self) -> &DeviceInfo {
        self.inner.info()
    }

    fn submit(&self, purpose: IoPurpose, operation: DeviceOperation) -> Ticket {
        if !self.is_ill.load(Ordering::Relaxed) {
            return self.inner.submit(purpose, operation);
        }
        self.refused.fetch_add(1, Ordering::Relaxed);
        let now_ns = current().map_or(0, |scheduler| scheduler.now_ns());
        let refused = Refused(self.info().name.clone(), now_ns + self.delay_ns);
        Ticket::new(Box::new(refused))
    }
}

/// Returns one answer of a listing of the root from `cookie` on: how many of its names have
/// attributes, how many have none, and the last cookie. Takes no reference that it keeps.
fn answer(pool: &Pool, cookie: u64) -> (usize, usize, u64) {
    let (mut with, mut without, mut last) = (Vec::new(), 0, cookie);
    let listed = pool.readdir_plus(&Caller::root(), pool.root(), cookie, &mut |entry, attr| {
        let fits = with.len() + without < ANSWER_NAMES;
        if fits {
            last = entry.cookie;
            with.extend(attr.map(|attr| attr.ino));
            without += usize::from(attr.is_none());
        }
        fits
    });
    listed.expect("it lists");
    with.iter().for_each(|ino| pool.forget(*ino, 1));
    (with.len(), without, last)
}

/// Reads behind the second answer while the device is ill, and lets others work meanwhile. Returns
/// how long that reading took.
fn read_ahead_of_an_ill_device(delay_ns: u64) -> u64 {
    let device: SharedDevice = MemoryDevice::new("memory", POOL_BYTES);
    create(&device, POOL_BYTES);
    let pool = open(&device).expect("it was just made");
    for file in 0..FILES {
        make(&pool, &format!("f{file}")).expect("there is room");
    }
    pool.close().expect("memory does not fail");
    let ill = Arc::new(IllDevice {
        inner: device,
        is_ill: AtomicBool::new(false),
        delay_ns,
        refused: AtomicU64::new(0),
    });
    let scheduler = Scheduler::new(1);
    let clock = Arc::new(SimClock::new(Arc::clone(&scheduler)));
    let shared: SharedDevice = Arc::<IllDevice>::clone(&ill);
    let pool = Pool::open(shared, clock, PoolOpenOptions::default()).expect("it was closed");
    pool.readdir(&Caller::root(), pool.root(), 0, &mut |_| true).expect("it lists");
    let (_, _, cookie) = answer(&pool, 0);
    let (_, _, cookie) = answer(&pool, cookie);
    let times = Mutex::new((0, 0, 0));
    let (pool, scheduler, times) = (&pool, &scheduler, &times);
    let reads = || {
        ill.is_ill.store(true, Ordering::Relaxed);
        pool.run_deferred_work();
        times.lock().0 = scheduler.now_ns();
    };
    let works = || {
        sleep_until(SECOND_NS);
        ill.is_ill.store(false, Ordering::Relaxed);
        make(pool, "new").expect("nobody keeps it from the directory");
        find(pool, "f0").expect("it is there");
        times.lock().1 = scheduler.now_ns();
    };
    let lists = || {
        sleep_until(2 * SECOND_NS);
        let (with, without, _) = answer(pool, cookie);
        assert_eq!((with, without), (ANSWER_NAMES, 0), "the listing reads them itself");
        times.lock().2 = scheduler.now_ns();
    };
    let jobs: Vec<SimThreadTask<'_>> = vec![
        ("reads ahead".to_owned(), Box::new(reads)),
        ("works".to_owned(), Box::new(works)),
        ("lists".to_owned(), Box::new(lists)),
    ];
    scheduler.run(jobs);
    let (read_ns, worked_ns, listed_ns) = *times.lock();
    assert!(ill.refused.load(Ordering::Relaxed) > 0, "something was read ahead");
    assert!(worked_ns < 2 * SECOND_NS, "who worked in the directory waited: {worked_ns} ns");
    let begun_ns = read_ns.max(2 * SECOND_NS);
    let is_in_time = (begun_ns..begun_ns + SECOND_NS).contains(&listed_ns);
    assert!(is_in_time, "the listing goes on when that has ended: {read_ns}, {listed_ns} ns");
    pool.run_deferred_work();
    read_ns
}

#[test]
fn reading_ahead_of_a_device_that_fails_harms_nobody() {
    let read_ns = read_ahead_of_an_ill_device(0);
    assert!(read_ns < SECOND_NS, "{read_ns} ns");
}

#[test]
fn reading_ahead_of_a_device_that_hangs_keeps_nobody_but_its_listing() {
    let read_ns = read_ahead_of_an_ill_device(DEADLINE_NS);
    assert!((DEADLINE_NS..2 * DEADLINE_NS).contains(&read_ns), "{read_ns} ns");
}

/// A device that does some work when it is next handed requests together.
struct Meanwhile {
    inner: SharedDevice,
    work: std::sync::Mutex<Option<Box<dyn FnOnce() + Send>>>,
}

impl std::fmt::Debug for Meanwhile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Meanwhile")
    }
}

impl Device for Meanwhile {
    fn info(&self) -> &DeviceInfo {
        self.inner.info()
    }

    fn submit(&self, purpose: IoPurpose, operation: DeviceOperation) -> Ticket {
        self.inner.submit(purpose, operation)
    }

    fn submit_all(&self, purpose: IoPurpose, operations: Vec<DeviceOperation>) -> Vec<Ticket> {
        let tickets = self.inner.submit_all(purpose, operations);
        let work = self.work.lock().expect("nobody panics with it").take();
        if let Some(work) = work {
            work();
        }
        tickets
    }
}

#[test]
fn what_changes_while_inodes_are_read_is_told_as_it_is() {
    const COUNT: usize = 100;
    let device: SharedDevice = MemoryDevice::new("memory", POOL_BYTES);
    create(&device, POOL_BYTES);
    let pool = open(&device).expect("it was just made");
    for file in 0..COUNT {
        make(&pool, &format!("f{file}")).expect("there is room");
    }
    pool.close().expect("memory does not fail");
    let meanwhile = Arc::new(Meanwhile { inner: device, work: std::sync::Mutex::new(None) });
    let shared: SharedDevice = Arc::<Meanwhile>::clone(&meanwhile);
    let clock = Arc::new(ManualClock::new());
    let pool = Pool::open(shared, clock, PoolOpenOptions::default()).expect("it was closed");
    let pool = Arc::new(pool);
    let others = Arc::clone(&pool);
    let work = move || {
        for file in 0..COUNT {
            let ino = find(&others, &format!("f{file}")).expect("it is there");
            let mode = SetAttr { mode: Some(0o600), ..SetAttr::default() };
            others.setattr(&Caller::root(), ino, &mode, None).expect("there is room");
            others.write(&Caller::root(), ino, 0, &[7; 5000]).expect("there is room");
        }
    };
    *meanwhile.work.lock().expect("nobody panics with it") = Some(Box::new(work));
    let mut told = Vec::new();
    let listed = pool.readdir_plus(&Caller::root(), pool.root(), 2, &mut |_, attr| {
        told.extend(attr.map(|attr| (attr.ino, attr.mode, attr.size_bytes)));
        true
    });
    listed.expect("it lists");
    assert_eq!(told.len(), COUNT);
    assert!(told.iter().all(|(_, mode, bytes)| (*mode, *bytes) == (0o600, 5000)), "{told:?}");
    told.iter().for_each(|(ino, ..)| pool.forget(*ino, 1));
}
