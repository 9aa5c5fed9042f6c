//! At every write and flush: is what was acknowledged there, and is what is there a state between
//! operations?

mod explorer;
mod orphans;
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
    }
}

/// Goal: no crash loses what was acknowledged or leaves a state that was never there.
///
/// Method: see [`explorer`]. One client, random operations, background work in between.
#[test]
fn every_crash_leaves_a_state_between_operations() {
    let soak = std::env::var("HOLDFAST_SOAK").ok().and_then(|text| text.parse().ok());
    let first = std::env::var("HOLDFAST_SEED").ok().and_then(|text| text.parse().ok());
    let (first, count) = (first.unwrap_or(0_u64), soak.unwrap_or(1_u64) * 6);
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
