//! What the syncs of several clients cost together.

use std::sync::{Arc, Mutex, PoisonError};

use engine::vnode::api::{Caller, FileKind, FileSystem, NewInode};
use engine::{CreateOptions, OpenOptions, Pool};
use storage::clock::{Clock, SimClock};
use storage::counters::IoCounts;
use storage::device::sim::{DiskModel, Image, SimDevice, SimOptions};
use storage::device::{CountingDevice, Purpose, RequestKind, SharedDevice};
use storage::sync::sim::{Job, Scheduler};
use testkit::ops::sync;

const POOL_BYTES: u64 = 256 << 20;
const FILES: u64 = 50;

/// Makes files of 4 KiB, each synced, and drops them. Waits for a sync, or is told.
fn make_and_sync(pool: &Pool, client: u64, files: u64, is_told: bool) {
    let new = NewInode { kind: FileKind::Regular, mode: 0o644, umask: 0, rdev: 0 };
    for number in 0..files {
        let name = format!("c{client}-{number}");
        let made = pool.create(&Caller::root(), pool.root(), name.as_bytes(), new);
        let ino = made.expect("there is room").ino;
        pool.write(&Caller::root(), ino, 0, &[7; 4096]).expect("there is room");
        sync(pool, ino, false, is_told).expect("nothing fails");
        pool.forget(ino, 1);
    }
}

/// Returns what the work of clients that make so many files each asks of a disk, and how long it
/// takes: nanoseconds of virtual time.
fn cost_of(model: DiskModel, clients: &[u64], is_told: bool) -> (IoCounts, u64) {
    let scheduler = Scheduler::new(1);
    let clock = Arc::new(SimClock::new(Arc::clone(&scheduler)));
    let options = SimOptions { model, ..SimOptions::default() };
    let counting = CountingDevice::new(SimDevice::open(Image::blank(POOL_BYTES), options));
    let device: SharedDevice = Arc::<CountingDevice>::clone(&counting);
    let opened = Mutex::new(None);
    let open = || {
        let options = CreateOptions::new(POOL_BYTES, [3; 64]);
        Pool::create(&device, &*clock, &options).expect("a pool fits");
        let pool = Pool::open(Arc::clone(&device), clock.clone(), OpenOptions::default());
        let pool = pool.expect("a new pool opens");
        opened.lock().unwrap_or_else(PoisonError::into_inner).replace(pool);
    };
    scheduler.run(vec![("open".to_owned(), Box::new(open))]);
    let pool = opened.into_inner().unwrap_or_else(PoisonError::into_inner).expect("it was opened");
    let (before, begun_ns) = (counting.snapshot(), clock.monotonic_ns());
    let pool = &pool;
    let job = |(client, files): (u64, &u64)| -> Job<'_> {
        let files = *files;
        let work = move || make_and_sync(pool, client, files, is_told);
        (format!("client {client}"), Box::new(work))
    };
    scheduler.run((0..).zip(clients).map(job).collect());
    (counting.snapshot() - before, clock.monotonic_ns() - begun_ns)
}

/// Goal: who waits while the log is written is served by the next write, all together: one chunk,
/// durable by itself, however many they are. So eight clients take turns by fours, for nobody waits
/// for others to come. And nobody takes a checkpoint because others have reserved what is free.
#[test]
fn those_who_wait_share_one_write() {
    for (clients, is_told) in [(1, false), (2, false), (8, false), (1, true), (8, true)] {
        let each = vec![FILES; clients];
        let (cost, _) = cost_of(DiskModel::ssd(), &each, is_told);
        let syncs: u64 = each.iter().sum();
        let log = cost.of(Purpose::Journal, RequestKind::Write).requests;
        println!("{clients} clients, {FILES} files each, told {is_told}: {cost:?}");
        // Who is told goes on sooner, so that fewer have come when the next write begins.
        let most = if is_told { syncs * 2 / 5 } else { syncs * 2 / 7 };
        assert!(log <= if clients == 8 { most } else { syncs }, "{clients}: {log}");
        // The pool is so small that its log is half full once, and a checkpoint taken.
        assert!(cost.write_throughs() + 1 >= log && cost.flushes() <= 4, "{clients}: {cost:?}");
        let home = cost.of(Purpose::Home, RequestKind::Write).requests;
        assert!(home <= 10, "{clients}: {cost:?}");
    }
}

/// Goal: on a disk whose flush takes long, the next write waits a moment for those who were just
/// told, and so serves all clients and not a part of them; who is alone waits for nobody, and who
/// does not come back is waited for once.
#[test]
fn on_a_slow_disk_those_who_were_told_are_waited_for() {
    let turning = DiskModel { flush_ns: 8_000_000, ..DiskModel::hdd() };
    let cost_of = |clients: &[u64], is_told| {
        let (cost, took_ns) = cost_of(turning, clients, is_told);
        let log = cost.of(Purpose::Journal, RequestKind::Write).requests;
        println!("{clients:?}, told {is_told}: {log} writes of log, {} ms", took_ns / 1_000_000);
        (log, took_ns)
    };
    let (alone, alone_ns) = cost_of(&[FILES], false);
    let (log, told_ns) = cost_of(&[FILES], true);
    assert!(log == alone && told_ns <= alone_ns * 101 / 100, "{log} writes, {told_ns} ns");
    for clients in [2, 4, 8, 16] {
        let (log, _) = cost_of(&vec![FILES; clients], true);
        assert!(log <= FILES * 3 / 2, "{clients} clients: {log}");
    }
    let (_, with_others_ns) = cost_of(&[FILES, 1, 1, 1], true);
    assert!(with_others_ns <= alone_ns * 11 / 10, "{with_others_ns} beside {alone_ns}");
}
