//! What is in memory stays within its bounds, whatever is asked. The bounds are listed in
//! BOUNDS.md, with the tests of those that are not here.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use engine::api::{Caller, FileKind, FileSystem, Ino, NewInode};
use engine::{DIRTY_FILES_MAX, Pool, PoolCreateOptions, PoolOpenOptions, WRITES_IN_FLIGHT_MAX};
use runtime::clock::ManualClock;
use storage::device::{
    Device, DeviceCompletion, DeviceError, DeviceInfo, DeviceOperation, IoPurpose, MemoryDevice,
    PendingRequest, RequestKind, SharedDevice, Ticket,
};

const PAGE_BYTES: usize = 4096;
/// The fewest pages that a cache may have.
const CACHE_PAGES: usize = 256;
const DIRTY_PAGES: usize = 512;
const ACTIVE_LOG_BYTES: u64 = 1 << 20;
/// Pages that one operation and one checkpoint hold beside those that count.
const PAGES_IN_USE: usize = 64;

fn pool_on(device: &SharedDevice, bytes: u64, options: PoolOpenOptions) -> Pool {
    Pool::create(device, &ManualClock::new(), &PoolCreateOptions::new(bytes, [3; 64]))
        .expect("a pool fits");
    Pool::open(Arc::clone(device), Arc::new(ManualClock::new()), options).expect("a pool opens")
}

fn small_options() -> PoolOpenOptions {
    PoolOpenOptions {
        cache_bytes: CACHE_PAGES * PAGE_BYTES,
        dirty_pages: DIRTY_PAGES,
        active_log_bytes: ACTIVE_LOG_BYTES,
        ..PoolOpenOptions::default()
    }
}

fn make(pool: &Pool, name: &str) -> Ino {
    let new = NewInode::new(FileKind::Regular, 0o644);
    let made = pool.create(&Caller::root(), pool.root(), name.as_bytes(), new, None);
    let ino = made.expect("there is room").ino;
    pool.forget(ino, 1);
    ino
}

/// Goal: pages, dirty pages and the active log never pass their bounds. Method: many more names
/// than the cache has pages, made and looked up, with a look after each.
#[test]
fn pages_and_log_stay_within_their_bounds() {
    const FILES: u64 = 20_000;
    let device: SharedDevice = MemoryDevice::new("memory", 1 << 30);
    let pool = pool_on(&device, 1 << 30, small_options());
    let mut most = (0, 0, 0);
    let mut look = || {
        let status = pool.status();
        let (cache, journal) = (status.cache, status.journal);
        assert!(journal.dirty_pages <= journal.dirty_pages_max, "{journal:?}");
        assert!(journal.active_bytes <= journal.active_bytes_max, "{journal:?}");
        assert!(cache.pages <= CACHE_PAGES + journal.dirty_pages_max + PAGES_IN_USE, "{cache:?}");
        let (pages, dirty, active) = most;
        most = (
            pages.max(cache.pages),
            dirty.max(journal.dirty_pages),
            active.max(journal.active_bytes),
        );
    };
    for number in 0..FILES {
        make(&pool, &format!("file{number}"));
        look();
    }
    for number in (0..FILES).step_by(7) {
        let name = format!("file{number}");
        let found = pool.lookup(&Caller::root(), pool.root(), name.as_bytes());
        pool.forget(found.expect("it was made").ino, 1);
        look();
    }
    println!("at most {most:?} pages, dirty pages and bytes of log");
    // The bounds were reached, or nothing was shown.
    assert!(most.0 >= CACHE_PAGES && most.1 > DIRTY_PAGES / 2, "{most:?}");
    assert!(most.2 > ACTIVE_LOG_BYTES / 2, "{most:?}");
    assert_eq!(pool.status().referenced_files, 0);
    pool.close().expect("a pool closes");
}

/// Goal: a reader of many files does not fill the memory with access times. Method: twice as many
/// files as may wait, read while nobody ticks.
#[test]
fn access_times_in_memory_are_bounded() {
    let device: SharedDevice = MemoryDevice::new("memory", 1 << 30);
    let pool = pool_on(&device, 1 << 30, PoolOpenOptions::default());
    let mut into = Vec::new();
    for number in 0..2 * DIRTY_FILES_MAX {
        let ino = make(&pool, &format!("file{number}"));
        pool.read(&Caller::root(), ino, 0, 4096, &mut into).expect("it reads");
        let waiting = pool.status().dirty_files;
        assert!(waiting <= DIRTY_FILES_MAX, "{number}: {waiting}");
    }
    assert_eq!(pool.status().dirty_files, DIRTY_FILES_MAX, "the bound was not reached");
    pool.sync().expect("nothing fails");
    assert_eq!(pool.status().dirty_files, 0);
}

/// A device that counts the writes of data that nobody has waited for.
#[derive(Debug)]
struct Waited {
    inner: Arc<MemoryDevice>,
    counts: Arc<Counts>,
}

#[derive(Debug, Default)]
struct Counts {
    now: AtomicUsize,
    most: AtomicUsize,
}

struct Counted(Arc<Counts>, Ticket);

impl PendingRequest for Counted {
    fn wait(self: Box<Self>) -> Result<DeviceCompletion, DeviceError> {
        self.0.now.fetch_sub(1, Ordering::SeqCst);
        self.1.wait()
    }
}

impl Device for Waited {
    fn info(&self) -> &DeviceInfo {
        self.inner.info()
    }

    fn submit(&self, purpose: IoPurpose, operation: DeviceOperation) -> Ticket {
        if (purpose, operation.kind()) != (IoPurpose::Data, RequestKind::Write) {
            return self.inner.submit(purpose, operation);
        }
        let now = self.counts.now.fetch_add(1, Ordering::SeqCst) + 1;
        self.counts.most.fetch_max(now, Ordering::SeqCst);
        let ticket = self.inner.submit(purpose, operation);
        Ticket::new(Box::new(Counted(Arc::clone(&self.counts), ticket)))
    }
}

/// Goal: writers wait for the device. Method: a stream much longer than may be in flight.
#[test]
fn data_writes_in_flight_are_bounded() {
    const STREAM_BYTES: u64 = 100 << 20;
    let counts = Arc::new(Counts::default());
    let inner = MemoryDevice::new("memory", 1 << 30);
    let device: SharedDevice = Arc::new(Waited { inner, counts: Arc::clone(&counts) });
    let pool = pool_on(&device, 1 << 30, PoolOpenOptions::default());
    let ino = make(&pool, "stream");
    let chunk = vec![9; 1 << 20];
    for offset in (0..STREAM_BYTES).step_by(chunk.len()) {
        pool.write(&Caller::root(), ino, offset, &chunk).expect("there is room");
    }
    let most = counts.most.load(Ordering::SeqCst);
    // One write may fill what is left of a segment and a whole one behind it.
    assert!((WRITES_IN_FLIGHT_MAX..=WRITES_IN_FLIGHT_MAX + 2).contains(&most), "{most}");
    pool.close().expect("a pool closes");
}
