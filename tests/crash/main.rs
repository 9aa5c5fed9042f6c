//! At every write and flush: is what was acknowledged there, and is what is there a state between
//! operations?

mod creation;
mod explorer;
mod moves;
mod orphans;
mod tail;
mod tiny;

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use explorer::{Plan, explore};
use storage::device::sim::Strategy;

/// The plan of `seed`, at the size for every commit; a soak sets `HOLDFAST_SOAK` to a multiple.
fn plan(seed: u64) -> Plan {
    Plan {
        seed,
        steps: 400,
        strategy: Strategy { exhaustive_writes_max: 4, random_subsets: 4, torn_variants: 1, seed },
        second_cut_one_in: 60,
        tick_one_in: 8,
        checkpoint_one_in: 40,
        is_beside_checkpoints: false,
        whiteout_one_in: 0,
    }
}

/// Explores `count` plans, times `HOLDFAST_SOAK`, from `HOLDFAST_SEED` on.
fn explore_all(count: u64, plan: impl Fn(u64) -> Plan + Sync) {
    let number = |name| std::env::var(name).ok().and_then(|text| text.parse().ok());
    let first = number("HOLDFAST_SEED").unwrap_or(0_u64);
    let count = count * number("HOLDFAST_SOAK").unwrap_or(1_u64);
    let next = AtomicU64::new(first);
    let total = Mutex::new(explorer::Explored::default());
    // A workload is its seed's, whichever thread explores it.
    let worker = || {
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= first + count {
                return;
            }
            let explored = explore(&plan(seed));
            let mut total = total.lock().expect("no other thread has panicked");
            total.points += explored.points;
            total.images += explored.images;
            total.second_images += explored.second_images;
        }
    };
    let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    std::thread::scope(|scope| (0..threads).for_each(|_| drop(scope.spawn(worker))));
    let total = total.into_inner().expect("no thread has panicked");
    println!("{count} workloads: {total:?}");
    assert!(total.images > count * 50, "too few images to mean anything: {total:?}");
}

/// Goal: no crash loses what was acknowledged or leaves a state that was never there.
///
/// Method: see [`explorer`]. One client, random operations, background work in between.
#[test]
fn every_crash_leaves_a_state_between_operations() {
    explore_all(4, plan);
}

/// Goal: the same where a checkpoint meets every moment of an operation.
///
/// Method: one client, most of whose small writes are synced, and so go into the log, while pages
/// are taken home.
#[test]
fn a_crash_beside_a_checkpoint_loses_nothing_that_was_synced() {
    explore_all(24, |seed| Plan {
        steps: 120,
        second_cut_one_in: 200,
        is_beside_checkpoints: true,
        ..plan(seed)
    });
}

/// Goal: a rename that leaves a whiteout does both or neither.
///
/// Method: as above, where every second rename that may leave one does.
#[test]
fn a_crash_leaves_the_name_or_the_whiteout() {
    explore_all(2, |seed| Plan { steps: 200, whiteout_one_in: 2, ..plan(seed) });
}
