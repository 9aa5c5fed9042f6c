//! The torture itself: it repeats to the byte.

use super::{Options, run_seed};

#[test]
fn a_seed_gives_the_same_run() {
    let options = Options { lives: 2, steps_max: 40, ..Options::default() };
    for seed in 0..2 {
        let (first, second) = (run_seed(&options, seed), run_seed(&options, seed));
        assert_eq!(first.finding, None, "{}", first.finding.as_ref().expect("a finding"));
        assert_eq!((first.trace_hash, first.counts), (second.trace_hash, second.counts));
    }
}
