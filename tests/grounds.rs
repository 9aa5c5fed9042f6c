//! What behaviours are run on.

use std::sync::Arc;

use engine::{CreateOptions, OpenOptions, Pool};
use storage::clock::ManualClock;
use storage::device::{MemoryDevice, SharedDevice};
use testkit::canon::{Times, walk};
use testkit::model::Model;
use testkit::torture::{self, ReferenceGround, Wrong};

use crate::Ground;

/// Longer than any resolution of times.
const LATER_NS: u64 = 1_000_000_000;

/// The reference model.
pub fn model(body: impl FnOnce(&mut Ground<'_>)) {
    let clock = Arc::new(ManualClock::new());
    let model = Model::new(clock.clone());
    let pass_time = || clock.advance_ns(LATER_NS);
    let mut ground = Ground::new(&model, &pass_time);
    body(&mut ground);
    ground.close_all();
    walk(&model, Times::Ignored).expect("the tree is sound after the test");
}

/// Makes what is tortured.
pub type TortureGround = fn() -> Box<dyn torture::Ground>;

/// What is tortured; one line each.
pub const TORTURE_GROUNDS: &[(&str, TortureGround)] = &[
    ("reference", || Box::new(ReferenceGround::new(Wrong::Nothing))),
    ("pool", || Box::new(PoolGround)),
];

/// Pools on the simulated device.
struct PoolGround;

/// How often the background work of a pool is done, in virtual time.
const TICK_NS: u64 = 2_000_000;

impl torture::Ground for PoolGround {
    fn device_bytes(&self) -> u64 {
        POOL_BYTES
    }

    fn format(&self, start: &torture::Start) -> Result<(), String> {
        let options = CreateOptions::new(POOL_BYTES, [7; 64]);
        let made = Pool::create(&start.device, &*start.clock, &options);
        made.map(drop).map_err(|error| error.to_string())
    }

    fn open(&self, start: &torture::Start) -> Result<torture::Opened, String> {
        let (device, clock) = (Arc::clone(&start.device), Arc::clone(&start.clock));
        let pool = Pool::open(device, clock, OpenOptions::default());
        let pool = Arc::new(pool.map_err(|error| error.to_string())?);
        let worker = Arc::clone(&pool);
        let tick = move || worker.tick().ok().map(|()| TICK_NS);
        Ok(torture::Opened { fs: pool, jobs: vec![("tick".to_owned(), Box::new(tick))] })
    }

    fn check(&self, start: &torture::Start) -> Vec<String> {
        let device = Arc::clone(&start.device);
        let report = check::run(device, check::Options::default(), &mut |_| ());
        if report.is_clean() { Vec::new() } else { vec![report.to_text()] }
    }
}

/// Bytes of the pools under test: small, so that the maps, the journal and the segments run full.
const POOL_BYTES: u64 = 48 << 20;

/// Makes a pool in memory and opens it.
fn new_pool(clock: &Arc<ManualClock>) -> (SharedDevice, Pool) {
    let device: SharedDevice = MemoryDevice::new("memory", POOL_BYTES);
    let options = CreateOptions::new(POOL_BYTES, [7; 64]);
    Pool::create(&device, clock.as_ref(), &options).expect("a pool fits");
    let pool = Pool::open(Arc::clone(&device), clock.clone(), OpenOptions::default());
    (device, pool.expect("a new pool opens"))
}

/// The checker finds nothing, in the pool as it is after a crash and as it is after a close.
fn expect_clean(device: &SharedDevice, pool: &Pool) {
    for what in ["open", "closed"] {
        if what == "closed" {
            pool.close().expect("the pool closes");
        }
        let report = check::run(Arc::clone(device), check::Options::default(), &mut |_| ());
        assert!(report.is_clean(), "{what} pool: {}", report.to_text());
    }
}

/// A pool on a memory device, checked afterwards.
pub fn pool(body: impl FnOnce(&mut Ground<'_>)) {
    let clock = Arc::new(ManualClock::new());
    let (device, pool) = new_pool(&clock);
    {
        let pass_time = || clock.advance_ns(LATER_NS);
        let mut ground = Ground::new(&pool, &pass_time);
        body(&mut ground);
        ground.close_all();
    }
    walk(&pool, Times::Ignored).expect("the tree is sound after the test");
    expect_clean(&device, &pool);
}
