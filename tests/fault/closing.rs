//! A pool that is closed while clients still work, as that of a mount whose users are cut off.

use std::collections::BTreeSet;
use std::sync::Arc;

use engine::api::Caller;
use engine::{Pool, PoolOpenOptions};
use runtime::clock::SimClock;
use runtime::prng::Prng;
use runtime::sync::Mutex;
use runtime::sync::sim::{Scheduler, SimThreadTask, sleep_until};
use storage::device::SharedDevice;
use storage::device::sim::{DiskModel, Image, SimDevice, SimOptions};
use testkit::ops::sync;

use super::{defects, device_of, find, make, new_pool, open};

const CLIENTS: u64 = 4;
/// Files that a client makes.
const FILES: u64 = 30;
/// The pool is closed at some moment before.
const CLOSED_NS_MAX: u64 = 20_000_000;
const SEEDS: u64 = 100;

/// Makes and syncs files; returns which.
fn client(pool: &Pool, me: u64) -> BTreeSet<String> {
    let mut synced = BTreeSet::new();
    for number in 0..FILES {
        let name = format!("c{me}-{number}");
        let ino = make(pool, &name).expect("nothing fails");
        sync(pool, &Caller::root(), ino, false, number % 2 == 1).expect("nothing fails");
        synced.insert(name);
    }
    synced
}

/// Closes a pool under clients by one seed; returns whether its log must be replayed.
fn closed_under_clients(base: &Image, seed: u64) -> bool {
    let mut prng = Prng::from_seed(seed);
    let options = SimOptions { model: DiskModel::ssd(), seed, ..SimOptions::default() };
    let device = SimDevice::open(base.clone(), options);
    let shared: SharedDevice = Arc::<SimDevice>::clone(&device);
    let scheduler = Scheduler::new(seed);
    let clock = Arc::new(SimClock::new(Arc::clone(&scheduler)));
    let opened = Mutex::new(None);
    let prepare = || *opened.lock() = Pool::open(shared, clock, PoolOpenOptions::default()).ok();
    scheduler.run(vec![("open".to_owned(), Box::new(prepare))]);
    let pool = &opened.into_inner().expect("nothing fails");
    let all = &Mutex::new(BTreeSet::new());
    let close_ns = scheduler.now_ns() + prng.below(CLOSED_NS_MAX);
    let close = move || {
        sleep_until(close_ns);
        pool.close().expect("nothing fails");
    };
    let mut jobs: Vec<SimThreadTask<'_>> = vec![("close".to_owned(), Box::new(close))];
    for me in 0..CLIENTS {
        let work = move || {
            let synced = client(pool, me);
            all.lock().extend(synced);
        };
        jobs.push((format!("client {me}"), Box::new(work)));
    }
    scheduler.run(jobs);
    let again = device_of(&device.crash_image(&mut prng));
    let pool = open(&again).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
    let was_needed = pool.status().recovery.was_needed;
    for name in all.lock().iter() {
        find(&pool, name).unwrap_or_else(|error| panic!("seed {seed}: {name}: {error}"));
    }
    pool.close().expect("nothing fails");
    assert_eq!(defects(&again), None, "seed {seed}");
    was_needed
}

/// Goal: what is synced while a pool is closed, and after, is there when it is opened again.
#[test]
fn what_is_synced_while_a_pool_is_closed_is_not_lost() {
    let base = new_pool();
    let replayed = (0..SEEDS).filter(|&seed| closed_under_clients(&base, seed)).count();
    assert!(replayed > 20, "{replayed} logs went on behind the close");
}
