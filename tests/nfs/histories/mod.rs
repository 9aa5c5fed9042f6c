//! Clients that have several requests on their way, on the same few names, over a net that loses,
//! repeats and reorders, to a server that dies: what they are told is what one tree would tell.
//!
//! Chance, from a seed, delivers, drops and repeats messages, runs commits in any order, breaks
//! connections, starts clients anew with the numbers they had, and ends the server. The history of
//! what was asked and answered is then looked through for an order ([`linear`]).

mod linear;
mod model;
mod net;

use whole_system::soak::{Soak, seeds};

use net::World;

/// Seeds of the usual run.
const SEEDS: u64 = 600;

/// Goal: see the module. `HOLDFAST_NFS_SEEDS=first..end` are the seeds to do.
#[test]
fn what_clients_are_told_is_a_history_of_one_tree() {
    let range = seeds("HOLDFAST_NFS_SEEDS", SEEDS);
    let is_whole = range.end - range.start >= SEEDS;
    let mut soak = Soak::of("histories");
    let mut all = net::Counts::default();
    for seed in range {
        soak.begin(seed);
        let counts = World::new(seed).run();
        all.add(&counts);
        soak.add(1, || format!("{all:?}"));
    }
    println!("{}", soak.line(&format!("{all:?}")));
    let least = [all.repeated, all.lost, all.reordered, all.unanswered];
    assert!(!is_whole || least.iter().all(|&count| count > 200), "too little happened: {all:?}");
    assert!(!is_whole || (all.deaths > 50 && all.anew > 20), "too little happened: {all:?}");
}
