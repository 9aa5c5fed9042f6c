//! At every write and flush: is what was acknowledged there, and is what is there a state between
//! operations?

mod creation;
mod explorer;
mod orphans;
mod tail;
mod tiny;

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
fn explore_all(count: u64, plan: impl Fn(u64) -> Plan) {
    let number = |name| std::env::var(name).ok().and_then(|text| text.parse().ok());
    let first = number("HOLDFAST_SEED").unwrap_or(0_u64);
    let count = count * number("HOLDFAST_SOAK").unwrap_or(1_u64);
    let mut total = explorer::Explored::default();
    for seed in first..first + count {
        let explored = explore(&plan(seed));
        total.points += explored.points;
        total.images += explored.images;
        total.second_images += explored.second_images;
    }
    println!("{count} workloads: {total:?}");
    assert!(total.images > count * 50, "too few images to mean anything: {total:?}");
}

/// Goal: no crash loses what was acknowledged or leaves a state that was never there.
///
/// Method: see [`explorer`]. One client, random operations, background work in between.
#[test]
fn every_crash_leaves_a_state_between_operations() {
    explore_all(6, plan);
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
