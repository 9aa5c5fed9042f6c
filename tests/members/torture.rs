//! Torture of pools with members: several clients at once, power cuts, and a weak member that
//! fails, is away, rots, is replaced or brought back, by seed. `holdfast torture --pools KIND` does
//! the same.

use testkit::torture::{Options, PoolGround, PoolKind, Pools, run, run_seed};

/// Seeds of each kind, times `HOLDFAST_SOAK`.
const SEEDS: u64 = 4;

#[test]
fn pools_with_members_stand_torture() {
    let soak = std::env::var("HOLDFAST_SOAK").ok().and_then(|text| text.parse().ok());
    for kind in PoolKind::ALL.into_iter().filter(|kind| *kind != PoolKind::Single) {
        let options = Options { seeds: SEEDS * soak.unwrap_or(1_u64), ..Options::default() };
        let report = run(&PoolGround { pools: Pools::Of(kind) }, &options, |_| {});
        let findings: Vec<String> = report.findings.iter().map(ToString::to_string).collect();
        println!("{kind}: {} crashes, {} operations", report.crashes, report.operations);
        assert!(findings.is_empty(), "{kind}: {findings:#?}");
        assert!(report.crashes > 0);
    }
}

/// Goal: a finding can be repeated: the same seed gives the same run.
#[test]
fn a_seed_with_members_gives_the_same_run() {
    let ground = PoolGround { pools: Pools::Any };
    let options = Options { crashes: 3, steps_max: 60, ..Options::default() };
    for seed in 0..3 {
        let [one, other] = [0, 1].map(|_| run_seed(&ground, &options, seed));
        assert_eq!((one.trace_hash, one.operations), (other.trace_hash, other.operations));
    }
}
