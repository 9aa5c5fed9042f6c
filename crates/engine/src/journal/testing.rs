//! Helpers for the journal's tests.

use std::sync::Arc;

use runtime::clock::ManualClock;
use storage::device::{MemoryDevice, SharedDevice};

use crate::{Pool, PoolCreateOptions, PoolOpenOptions};

/// Returns an empty pool of 16 MiB in memory.
pub(super) fn new_pool() -> Pool {
    const POOL_BYTES: u64 = 16 << 20;
    let (clock, device) = (Arc::new(ManualClock::new()), MemoryDevice::new("m", POOL_BYTES));
    let device: SharedDevice = device;
    let options = PoolCreateOptions::new(POOL_BYTES, [7; 64]);
    Pool::create(&device, clock.as_ref(), &options).expect("a pool fits");
    Pool::open(device, clock, PoolOpenOptions::default()).expect("just made")
}
