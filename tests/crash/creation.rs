//! A pool that is being made, and a cut at each of its writes.

use std::sync::Arc;

use engine::{Pool, PoolCreateOptions, PoolOpenOptions};
use runtime::clock::ManualClock;
use storage::device::SharedDevice;
use storage::device::sim::{SimDevice, SimOptions, Strategy};
use storage::pool::{PoolError, read_superblock};

const POOL_BYTES: u64 = 32 << 20;
/// Most copies of the superblock that a cut may leave for the next close to write anew: the one
/// that was being written.
const COPIES_TORN_MAX: usize = 1;

/// Goal: a cut in the middle of a creation leaves no pool, or one in which nothing is missing.
/// Method: each state that a cut can leave, torn writes among them: the superblock is refused, or
/// the check is clean and the pool opens. Both must be seen.
#[test]
fn a_creation_that_was_cut_off_leaves_no_pool_or_a_whole_one() {
    let options = SimOptions { is_recorded: true, ..SimOptions::default() };
    let device = SimDevice::new(POOL_BYTES, options);
    let shared: SharedDevice = device.clone();
    Pool::create(&shared, &ManualClock::new(), &PoolCreateOptions::new(POOL_BYTES, [3; 64]))
        .expect("a pool fits");
    let strategy =
        Strategy { exhaustive_writes_max: 4, random_subsets: 16, torn_variants: 4, seed: 1 };
    let (mut whole, mut torn, mut unfinished, mut none) = (0, 0, 0, 0);
    for point in device.recording().points() {
        for crash in point.images(&strategy) {
            let left: SharedDevice = SimDevice::open(crash.image.clone(), SimOptions::default());
            match read_superblock(left.as_ref()) {
                Err(PoolError::Unfinished { .. }) => unfinished += 1,
                Err(_) => none += 1,
                Ok(_) => {
                    let report =
                        check::run(Arc::clone(&left), check::CheckOptions::default(), &mut |_| {});
                    assert!(report.is_clean(), "{}", report.to_text());
                    assert!(report.noted.len() <= COPIES_TORN_MAX, "{}", report.to_text());
                    torn += usize::from(!report.noted.is_empty());
                    let clock = Arc::new(ManualClock::new());
                    let pool = Pool::open(left, clock, PoolOpenOptions::default());
                    pool.expect("what is clean opens").close().expect("it closes");
                    whole += 1;
                }
            }
        }
    }
    println!("{whole} whole ({torn} with a torn copy), {unfinished} unfinished, {none} none");
    assert!(whole > 0 && unfinished > 0 && none > 0);
}
