//! Random operations: does a pool answer as the reference does?
//!
//! `HOLDFAST_SOAK=N` runs N times as many seeds, `HOLDFAST_SEED=S` begins at another,
//! `HOLDFAST_STEPS=N` sets the length of each history.

use std::panic::{AssertUnwindSafe, catch_unwind};

use testkit::ops::{Generator, Profile, Step, history_to_text, shrink};
use whole_system::lockstep::{Failure, SUBJECTS, Subject, run};

const STEPS: u64 = 800;
const SEEDS: u64 = 3;

fn setting(name: &str) -> Option<u64> {
    std::env::var(name).ok().and_then(|text| text.parse().ok())
}

/// Runs; a panic is a failure too, so that its history can be made short.
fn run_caught(subject: Subject, seed: u64, history: &[Step]) -> Result<(), Failure> {
    catch_unwind(AssertUnwindSafe(|| run(subject, seed, history))).unwrap_or_else(|payload| {
        let text = payload.downcast_ref::<String>().cloned();
        let text = text.unwrap_or_else(|| "a panic, see above".to_owned());
        Err(Failure { step_count: history.len(), text })
    })
}

fn runs_alike(profile: &Profile, first: u64) {
    let steps = setting("HOLDFAST_STEPS").unwrap_or(STEPS);
    let steps = usize::try_from(steps).expect("a history fits in memory");
    let first = setting("HOLDFAST_SEED").unwrap_or(first);
    let count = SEEDS * setting("HOLDFAST_SOAK").unwrap_or(1);
    for seed in first..first + count {
        let history = Generator::history(seed, profile.clone(), steps);
        for subject in SUBJECTS {
            let Err(failure) = run_caught(subject, seed, &history) else { continue };
            eprintln!("{subject:?}, seed {seed}: {}\nmaking it short...", failure.text);
            let fails = |steps: &[Step]| run_caught(subject, seed, steps).is_err();
            let short = shrink(&history[..failure.step_count], fails);
            let failure = run_caught(subject, seed, &short).expect_err("the short one fails too");
            let text = history_to_text(&short);
            panic!("{subject:?}, seed {seed}: {}\nhistory:\n{text}", failure.text);
        }
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
fn content_above_all_gives_the_same_answers() {
    runs_alike(&Profile::data(), 2000);
}
