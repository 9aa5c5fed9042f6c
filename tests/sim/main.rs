//! Clients and jobs together, in virtual time, with power cuts, by seed.

use testkit::torture::{Options, PoolGround, run};
use whole_system::grounds::TORTURE_GROUNDS;

/// Seeds of each ground here, times `HOLDFAST_SOAK`; `holdfast-lab torture` runs as many as it is
/// told.
const SEEDS: u64 = 40;
/// Seeds with snapshots.
const SNAPSHOT_SEEDS: u64 = 30;

#[test]
fn nothing_acknowledged_is_lost_and_what_survives_is_a_state_between_operations() {
    let soak = std::env::var("HOLDFAST_SOAK").ok().and_then(|text| text.parse().ok());
    let seeds = SEEDS * soak.unwrap_or(1_u64);
    for (name, ground) in TORTURE_GROUNDS {
        let ground = ground();
        let options = Options { seeds, ..Options::default() };
        let report = run(&*ground, &options, |_| ());
        if let Some(finding) = report.findings.first() {
            panic!("{name}: {} findings, the first: {finding}", report.findings.len());
        }
        assert_eq!(report.crashes + report.lives_of_lies, seeds * options.crashes);
        assert!(report.device_errors > seeds / 4, "{name}: {report:?}");
        assert!(report.lives_of_lies > seeds / 20, "{name}: {report:?}");
        assert!(report.seeds_apart < seeds / 2, "{name}: {report:?}");
    }
}

/// Goal: a snapshot that is taken beside clients at work is one moment between asking and answer,
/// and stays so, whatever is done since and wherever the power is cut.
#[test]
fn snapshots_taken_beside_clients_are_of_one_moment_and_stay_so() {
    let setting = |name: &str| std::env::var(name).ok().and_then(|text| text.parse().ok());
    let seeds = SNAPSHOT_SEEDS * setting("HOLDFAST_SOAK").unwrap_or(1_u64);
    let first_seed = setting("HOLDFAST_SEED").unwrap_or(0);
    let options = Options { first_seed, seeds, has_snapshots: true, ..Options::default() };
    let report = run(&PoolGround::default(), &options, |seed| {
        if let Some(finding) = &seed.finding {
            println!("{finding}");
        }
    });
    println!("{report:?}");
    if let Some(finding) = report.findings.first() {
        panic!("{} findings, the first: {finding}", report.findings.len());
    }
    assert!(report.snapshots_judged > seeds, "{report:?}");
}

#[test]
fn a_seed_repeats_to_the_byte() {
    for (name, ground) in TORTURE_GROUNDS {
        let hashes = || {
            let mut hashes = Vec::new();
            let options = Options { first_seed: 1000, seeds: 4, ..Options::default() };
            run(&*ground(), &options, |seed| hashes.push(seed.trace_hash));
            hashes
        };
        assert_eq!(hashes(), hashes(), "{name}");
    }
}
