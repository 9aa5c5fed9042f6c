//! Is what is written in the order that the crash arguments need?
//!
//! Most rules of order guard each other: with the log whole, a recovery mends what a home write
//! broke, so that no crash image shows a rule that is not kept. Here the requests themselves are
//! looked at: what was written, for what purpose, and where the flushes were. What syncs is looked
//! at on a device of which writes can be durable by themselves, and on one that has flushes alone.

mod members;

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use engine::api::{Caller, FileKind, FileSystem, Ino, NewInode, RenameMode};
use engine::{Pool, PoolCreateOptions, PoolOpenOptions};
use format::heartbeat::HEARTBEAT_OFFSET;
use runtime::clock::ManualClock;
use storage::device::{
    Device, DeviceInfo, DeviceOperation, IoPurpose, MemoryDevice, SharedDevice, Ticket,
};

const POOL_BYTES: u64 = 16 << 20;
/// Files that are made, removed and made again.
const FILES: u64 = 60;

/// A write or a flush, and for what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Request {
    Write(IoPurpose),
    WriteThrough(IoPurpose),
    Flush,
}

/// Notes every write and flush in the order in which they were asked for.
#[derive(Debug)]
struct NotingDevice {
    inner: SharedDevice,
    info: DeviceInfo,
    requests: Mutex<Vec<Request>>,
}

impl NotingDevice {
    fn note(&self, request: Request) {
        self.requests.lock().expect("no test panics with it").push(request);
    }

    /// Returns what was asked since the last call.
    fn taken(&self) -> Vec<Request> {
        std::mem::take(&mut *self.requests.lock().expect("no test panics with it"))
    }
}

impl Device for NotingDevice {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn submit(&self, purpose: IoPurpose, operation: DeviceOperation) -> Ticket {
        match operation {
            // The heartbeat orders nothing, and nothing waits for it.
            DeviceOperation::Write { offset: HEARTBEAT_OFFSET, .. } => {}
            DeviceOperation::Write { .. } => self.note(Request::Write(purpose)),
            DeviceOperation::WriteThrough { .. } => self.note(Request::WriteThrough(purpose)),
            DeviceOperation::Flush => self.note(Request::Flush),
            DeviceOperation::Read { .. } | DeviceOperation::Discard { .. } => {}
        }
        self.inner.submit(purpose, operation)
    }
}

struct Ground {
    device: Arc<NotingDevice>,
    clock: Arc<ManualClock>,
    pool: Pool,
}

impl Ground {
    fn new() -> Ground {
        Ground::with_write_through(true)
    }

    /// Returns one on each sort of device.
    fn both() -> [Ground; 2] {
        [true, false].map(Ground::with_write_through)
    }

    fn with_write_through(has_write_through: bool) -> Ground {
        let inner: SharedDevice = MemoryDevice::new("memory", POOL_BYTES);
        let clock = Arc::new(ManualClock::new());
        let options = PoolCreateOptions::new(POOL_BYTES, [7; 64]);
        Pool::create(&inner, clock.as_ref(), &options).expect("a pool fits");
        let info = DeviceInfo { has_write_through, ..inner.info().clone() };
        let device = Arc::new(NotingDevice { inner, info, requests: Mutex::default() });
        let shared: SharedDevice = device.clone();
        let pool = Pool::open(shared, clock.clone(), PoolOpenOptions::default());
        Ground { device, clock, pool: pool.expect("a new pool opens") }
    }

    fn make(&self, parent: Ino, name: &str, kind: FileKind) -> Ino {
        let new = NewInode::new(kind, 0o755);
        let made = self.pool.create(&Caller::root(), parent, name.as_bytes(), new, None);
        made.expect("there is room").ino
    }

    /// Returns the writes and flushes of a checkpoint.
    fn checkpoint(&self) -> Vec<Request> {
        self.device.taken();
        self.pool.checkpoint().expect("memory does not fail");
        self.device.taken()
    }
}

fn first(requests: &[Request], wanted: Request) -> Option<usize> {
    requests.iter().position(|request| *request == wanted)
}

fn last(requests: &[Request], wanted: Request) -> Option<usize> {
    requests.iter().rposition(|request| *request == wanted)
}

/// Whether a request is durable before another: it is by itself, or a flush lies between them.
fn is_flushed_between(requests: &[Request], from: usize, to: usize) -> bool {
    matches!(requests[from], Request::WriteThrough(_))
        || requests[from..to].contains(&Request::Flush)
}

/// Whether the log was written, and all of it is durable behind the last request.
fn ends_with_a_durable_log(requests: &[Request]) -> bool {
    match requests.last() {
        Some(Request::Flush) => requests.contains(&LOG),
        Some(&last) => last == LOG_THROUGH && !requests.contains(&LOG),
        None => false,
    }
}

/// The same behind data, which a flush makes durable: also that of a member which has none.
fn ends_with_a_durable_log_of_data(requests: &[Request]) -> bool {
    let is_log = |request: &Request| [LOG, LOG_THROUGH].contains(request);
    let log = requests.iter().position(is_log);
    log.is_some_and(|log| ends_with_a_durable_log(&requests[log..]))
}

const HOME: Request = Request::Write(IoPurpose::Home);
const LOG: Request = Request::Write(IoPurpose::Journal);
const LOG_THROUGH: Request = Request::WriteThrough(IoPurpose::Journal);

/// J1: what is synced is behind a flush, and that is the last request.
#[test]
fn a_sync_ends_with_a_flush() {
    for ground in Ground::both() {
        let ino = ground.make(ground.pool.root(), "f", FileKind::Regular);
        ground.device.taken();
        ground.pool.fsync(&Caller::root(), ino, false).expect("memory does not fail");
        let requests = ground.device.taken();
        assert!(ends_with_a_durable_log(&requests), "{requests:?}");
        let has_write_through = ground.device.info().has_write_through;
        let expected: &[Request] =
            if has_write_through { &[LOG_THROUGH] } else { &[LOG, Request::Flush] };
        assert_eq!(requests, expected, "one request if one is enough");
    }
}

/// Several chunks of log are durable together only by a flush: one might be without those before.
#[test]
fn several_chunks_of_log_end_with_a_flush() {
    const MORE_THAN_A_CHUNK: u64 = 4000;
    for ground in Ground::both() {
        let root = ground.pool.root();
        (0..MORE_THAN_A_CHUNK).for_each(|number| {
            ground.make(root, &format!("f{number}"), FileKind::Regular);
        });
        ground.device.taken();
        ground.pool.sync().expect("memory does not fail");
        let requests = ground.device.taken();
        let chunks = requests.iter().filter(|request| **request == LOG).count();
        assert!(chunks > 1 && requests.last() == Some(&Request::Flush), "{requests:?}");
    }
}

/// What nobody syncs is durable after the interval all the same.
#[test]
fn what_is_old_enough_is_committed_by_itself() {
    let ground = Ground::new();
    ground.clock.advance_ns(60_000_000_000);
    let ino = ground.make(ground.pool.root(), "f", FileKind::Regular);
    ground.pool.write(&Caller::root(), ino, 0, &[1; 100]).expect("there is room");
    ground.device.taken();
    ground.pool.tick().expect("memory does not fail");
    assert_eq!(ground.device.taken(), [], "it is young");
    ground.clock.advance_ns(6_000_000_000);
    ground.pool.tick().expect("memory does not fail");
    let requests = ground.device.taken();
    assert!(ends_with_a_durable_log(&requests), "{requests:?}");
}

/// What is written over is durable after the interval, and not after two of them.
#[test]
fn what_is_written_over_is_committed_at_the_age_of_the_write() {
    let ground = Ground::new();
    let ino = ground.make(ground.pool.root(), "f", FileKind::Regular);
    ground.clock.advance_ns(60_000_000_000);
    // The segment that it goes to is open, and known to be.
    for content in [1, 2] {
        ground.pool.write(&Caller::root(), ino, 0, &[content; 4000]).expect("there is room");
        ground.pool.sync().expect("memory does not fail");
    }
    ground.pool.write(&Caller::root(), ino, 0, &[3; 4000]).expect("there is room");
    ground.device.taken();
    ground.clock.advance_ns(6_000_000_000);
    ground.pool.tick().expect("memory does not fail");
    let requests = ground.device.taken();
    assert!(ends_with_a_durable_log(&requests), "{requests:?}");
}

/// What is made in a directory is durable once the directory was synced.
#[test]
fn a_sync_of_a_directory_writes_the_log() {
    let ground = Ground::new();
    let directory = ground.make(ground.pool.root(), "d", FileKind::Directory);
    ground.pool.sync().expect("memory does not fail");
    ground.make(directory, "f", FileKind::Regular);
    ground.device.taken();
    ground.pool.fsync(&Caller::root(), directory, false).expect("memory does not fail");
    let requests = ground.device.taken();
    assert!(ends_with_a_durable_log(&requests), "{requests:?}");
}

/// Data is durable before the commit that points to it is in the log.
#[test]
fn data_is_flushed_before_the_log_points_to_it() {
    for ground in Ground::both() {
        let ino = ground.make(ground.pool.root(), "f", FileKind::Regular);
        ground.pool.write(&Caller::root(), ino, 0, &vec![1; 1 << 20]).expect("there is room");
        ground.device.taken();
        ground.pool.fsync(&Caller::root(), ino, false).expect("memory does not fail");
        let requests = ground.device.taken();
        let data = last(&requests, Request::Write(IoPurpose::Data)).expect("a segment was sealed");
        let log = last(&requests, LOG).or(last(&requests, LOG_THROUGH));
        let log = log.expect("a commit was written");
        assert!(data < log && is_flushed_between(&requests, data, log), "{requests:?}");
    }
}

/// K1: no page goes home before its records are durable. The head: only after the pages are.
#[test]
fn pages_go_home_behind_the_log_and_before_the_head() {
    for ground in Ground::both() {
        ground.pool.checkpoint().expect("memory does not fail");
        ground.make(ground.pool.root(), "f", FileKind::Regular);
        let requests = ground.checkpoint();
        let home = first(&requests, HOME).expect("pages went home");
        let log = last(&requests[..home], LOG).or(last(&requests[..home], LOG_THROUGH));
        let log = log.expect("K1: the log was written before");
        assert!(is_flushed_between(&requests, log, home), "K1: {requests:?}");
        let (home, head) = (last(&requests, HOME), last(&requests, LOG));
        let (home, head) = (home.expect("pages went home"), head.expect("a head was written"));
        assert!(home < head && is_flushed_between(&requests, home, head), "the head: {requests:?}");
        assert_eq!(requests.last(), Some(&Request::Flush), "the head: {requests:?}");
    }
}

/// K2: a page that nothing points to yet is durable before the page that points to it goes home.
#[test]
fn new_pages_are_durable_before_what_points_to_them() {
    let ground = Ground::new();
    ground.pool.checkpoint().expect("memory does not fail");
    let directory = ground.make(ground.pool.root(), "d", FileKind::Directory);
    ground.make(directory, "f", FileKind::Regular);
    let requests = ground.checkpoint();
    let (new, old) = (first(&requests, HOME), last(&requests, HOME));
    let (new, old) = (new.expect("pages went home"), old.expect("pages went home"));
    assert!(is_flushed_between(&requests, new, old), "{requests:?}");
}

/// K2: pages between which a name moved are in the double-write area before they go home.
#[test]
fn pages_between_which_a_name_moved_go_through_the_double_write_area() {
    let ground = Ground::new();
    let (root, pool) = (ground.pool.root(), &ground.pool);
    let source = ground.make(root, "a", FileKind::Directory);
    let target = ground.make(root, "b", FileKind::Directory);
    for directory in [source, target] {
        ground.make(directory, "f", FileKind::Regular);
    }
    pool.checkpoint().expect("memory does not fail");
    pool.rename(&Caller::root(), (source, b"f"), (target, b"g"), RenameMode::Replace, None)
        .expect("it is moved");
    let requests = ground.checkpoint();
    let copies = last(&requests, Request::Write(IoPurpose::DoubleWrite));
    let copies = copies.expect("K2: nothing went to the double-write area");
    let home = first(&requests, HOME).expect("pages went home");
    assert!(copies < home && is_flushed_between(&requests, copies, home), "K2: {requests:?}");
}

/// Goal: F3, for with the log lost a home page still leads to what had the number before. Method:
/// every other file is removed before a checkpoint, the rest behind it; whose numbers come again?
#[test]
fn the_number_of_a_removed_file_comes_again_only_after_a_checkpoint() {
    let ground = Ground::new();
    let (pool, root) = (&ground.pool, ground.pool.root());
    let make = |name: &str| {
        let ino = ground.make(root, name, FileKind::Regular);
        pool.forget(ino, 1);
        ino
    };
    let names: Vec<String> = (0..FILES).map(|number| format!("f{number}")).collect();
    let made: Vec<Ino> = names.iter().map(|name| make(name)).collect();
    let remove = |parity: usize| {
        let numbers = (0..names.len()).filter(|number| number % 2 == parity);
        let remove = |number: usize| {
            let removed = pool.unlink(&Caller::root(), root, names[number].as_bytes(), None);
            removed.expect("it was made");
            made[number]
        };
        numbers.map(remove).collect::<BTreeSet<Ino>>()
    };
    let home = remove(0);
    pool.checkpoint().expect("memory does not fail");
    let waiting = remove(1);
    let again: BTreeSet<Ino> = (0..FILES).map(|number| make(&format!("g{number}"))).collect();
    assert!(again.is_superset(&home), "numbers that are free are left out");
    assert!(again.is_disjoint(&waiting), "F3: a number came again before a checkpoint");
    pool.checkpoint().expect("memory does not fail");
    let then: BTreeSet<Ino> = (0..FILES).map(|number| make(&format!("h{number}"))).collect();
    assert!(then.is_superset(&waiting), "numbers that are free are left out");
}

/// What a recovery takes home is durable before the head that gives the log up.
#[test]
fn a_recovery_flushes_what_it_takes_home_before_its_head() {
    let ground = Ground::new();
    ground.make(ground.pool.root(), "f", FileKind::Regular);
    ground.pool.sync().expect("memory does not fail");
    ground.device.taken();
    let device: SharedDevice = Arc::<NotingDevice>::clone(&ground.device);
    Pool::open(device, ground.clock.clone(), PoolOpenOptions::default()).expect("it recovers");
    let requests = ground.device.taken();
    let home = last(&requests, HOME).expect("pages went home");
    let head = first(&requests, LOG).expect("a head was written");
    assert!(home < head && is_flushed_between(&requests, home, head), "{requests:?}");
}
