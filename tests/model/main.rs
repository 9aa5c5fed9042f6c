//! Random operations: does every ground answer as the reference does?

use testkit::ops::{Generator, LockstepOptions, Profile, run_lockstep, shrink};
use whole_system::grounds::{LOCKSTEP_GROUNDS, Lockstep};

const STEPS: usize = 1500;
const WALK_EVERY: usize = 250;

fn runs_alike(profile: &Profile, seeds: std::ops::Range<u64>) {
    for (name, ground) in LOCKSTEP_GROUNDS {
        for seed in seeds.clone() {
            let history = Generator::history(seed, profile.clone(), STEPS);
            let run = |history: &[testkit::ops::Step]| {
                let mut result = Ok(());
                ground(&mut |pair: Lockstep<'_>| {
                    let options =
                        LockstepOptions { clock: Some(pair.clock), walk_every: WALK_EVERY };
                    result = run_lockstep(pair.model, pair.fs, history, options);
                });
                result
            };
            let Err(divergence) = run(&history) else { continue };
            let short = shrink(&history[..divergence.step_count()], |steps| run(steps).is_err());
            let divergence = run(&short).expect_err("the short history fails as well");
            panic!("{name}, seed {seed}: {}", divergence.report(&short));
        }
    }
}

#[test]
fn a_bit_of_everything_gives_the_same_answers() {
    runs_alike(&Profile::everyday(), 0..4);
}

#[test]
fn names_above_all_give_the_same_answers() {
    runs_alike(&Profile::names(), 10..14);
}

#[test]
fn content_above_all_gives_the_same_answers() {
    runs_alike(&Profile::data(), 20..24);
}
