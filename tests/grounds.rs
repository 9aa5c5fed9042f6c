//! What behaviours are run on.

use std::sync::Arc;

use engine::{Pool, PoolCreateOptions, PoolOpenOptions};
use runtime::clock::ManualClock;
use storage::device::{MemoryDevice, SharedDevice};
use testkit::canon::{Times, walk};
use testkit::model::Model;
use testkit::torture::{self, PoolGround, ReferenceGround, Wrong};

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
    ("pool", || Box::new(PoolGround::default())),
];

/// Bytes of the pools under test: small, so that the maps, the journal and the segments run full.
const POOL_BYTES: u64 = 48 << 20;

/// Makes a pool in memory and opens it.
fn new_pool(clock: &Arc<ManualClock>) -> (SharedDevice, Pool) {
    let device: SharedDevice = MemoryDevice::new("memory", POOL_BYTES);
    let options = PoolCreateOptions::new(POOL_BYTES, [7; 64]);
    Pool::create(&device, clock.as_ref(), &options).expect("a pool fits");
    let pool = Pool::open(Arc::clone(&device), clock.clone(), PoolOpenOptions::default());
    (device, pool.expect("a new pool opens"))
}

/// The checker finds nothing, in the pool as it is after a crash and as it is after a close.
fn expect_clean(device: &SharedDevice, pool: &Pool) {
    for what in ["open", "closed"] {
        if what == "closed" {
            pool.close().expect("the pool closes");
        }
        let report = check::run(Arc::clone(device), check::CheckOptions::default(), &mut |_| ());
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
