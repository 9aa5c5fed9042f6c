//! Random operations: does a pool answer as the reference does?
//!
//! `HOLDFAST_SOAK=N` runs N times as many seeds, `HOLDFAST_SEED=S` begins at another,
//! `HOLDFAST_STEPS=N` sets the length of each history.

mod shapes;
mod snapshots;

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};

use testkit::ops::{Generator, Profile, Step, history_to_text, shrink};
use whole_system::lockstep::{Failure, SUBJECTS, run, run_full};

const STEPS: u64 = 800;
const SEEDS: u64 = 3;

fn setting(name: &str) -> Option<u64> {
    std::env::var(name).ok().and_then(|text| text.parse().ok())
}

/// Runs; a panic is a failure too, so that its history can be made short.
fn caught(steps: usize, run: impl FnOnce() -> Result<(), Failure>) -> Result<(), Failure> {
    catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|payload| {
        let text = payload.downcast_ref::<String>().cloned();
        let text = text.unwrap_or_else(|| "a panic, see above".to_owned());
        Err(Failure { step_count: steps, text })
    })
}

/// Runs histories from `first` on; panics at the first that fails, with a short one that does.
fn run_histories(
    profile: &Profile,
    first: u64,
    name: &str,
    run: impl Fn(u64, &[Step]) -> Result<(), Failure>,
) {
    let steps = setting("HOLDFAST_STEPS").unwrap_or(STEPS);
    let steps = usize::try_from(steps).expect("a history fits in memory");
    let first = setting("HOLDFAST_SEED").unwrap_or(first);
    let count = SEEDS * setting("HOLDFAST_SOAK").unwrap_or(1);
    for seed in first..first + count {
        let history = Generator::history(seed, profile.clone(), steps);
        let run = |steps: &[Step]| caught(steps.len(), || run(seed, steps));
        let Err(failure) = run(&history) else { continue };
        eprintln!("{name}, seed {seed}: {}\nmaking it short...", failure.text);
        let short = shrink(&history[..failure.step_count], |steps| run(steps).is_err());
        let failure = run(&short).expect_err("the short one fails too");
        let text = history_to_text(&short);
        panic!("{name}, seed {seed}: {}\nhistory:\n{text}", failure.text);
    }
}

fn runs_alike(profile: &Profile, first: u64) {
    for subject in SUBJECTS {
        let run = |seed: u64, history: &[Step]| run(subject, seed, history);
        run_histories(profile, first, &format!("{subject:?}"), run);
    }
}

#[test]
fn a_bit_of_everything_gives_the_same_answers() {
    runs_alike(&Profile::everyday(), 0);
}

#[test]
fn names_above_all_give_the_same_answers() {
    runs_alike(&Profile::names(), 1000);
}

#[test]
fn names_that_leave_whiteouts_give_the_same_answers() {
    runs_alike(&Profile { whiteout_one_in: 3, ..Profile::names() }, 7000);
}

#[test]
fn content_above_all_gives_the_same_answers() {
    runs_alike(&Profile::data(), 2000);
}

/// Goal: a full pool refuses what it has no room for, and nothing else: it can be emptied.
///
/// Method: histories that need more than there is; the checker after each `sync`, each life lost.
#[test]
fn a_full_pool_stays_sound_and_can_be_emptied() {
    let mut profile = Profile::data();
    profile.names = Profile::everyday().names;
    profile.depth_max = 2;
    profile.weights.create = 30;
    profile.weights.truncate = 2;
    profile.io_bytes_max = 512 << 10;
    profile.far_one_in = 0;
    profile.uids = vec![0];
    let refused = Cell::new(0);
    run_histories(&profile, 3000, "full", |seed, history| {
        run_full(seed, history).map(|count| refused.set(refused.get() + count))
    });
    assert!(refused.get() > 0, "the pool was never full");
}
