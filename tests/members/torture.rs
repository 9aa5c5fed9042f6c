//! Torture of pools with members: several clients at once, power cuts, and a weak member that
//! fails, is away, rots, is replaced or brought back, and disk groups that come and go, get members
//! and lose them, by seed.
//! `holdfast torture --pools KIND` does the same.

use testkit::torture::{Options, PoolGround, PoolKind, Pools, Report, run, run_seed};

/// Seeds of each kind, times `HOLDFAST_SOAK`.
const SEEDS: u64 = 4;

#[test]
fn pools_with_members_stand_torture() {
    stand(|kind| kind != PoolKind::SINGLE && !kind.has_groups());
}

/// Goal: nothing is lost where disk groups come and go beside clients, get members and lose them,
/// while members fail and the power is cut; what was begun is begun, and ends.
#[test]
fn pools_of_disk_groups_that_come_and_go_stand_torture() {
    let report = stand(PoolKind::has_groups);
    let Report { groups_added, groups_leaving, groups_gone, placements, .. } = report;
    println!("{groups_added} added, {groups_leaving} left, {groups_gone} gone, {placements} set");
    println!("{} members attached, {} taken out", report.attached, report.detached);
    assert!(report.attached > 0 && report.detached > 0, "{report:?}");
    assert!(placements > 20, "{report:?}");
    assert!(groups_added > 10 && groups_leaving > 5 && groups_gone > 2, "{report:?}");
}

/// Runs seeds of the kinds that `is_meant` names; returns what all of them did.
fn stand(is_meant: impl Fn(PoolKind) -> bool) -> Report {
    let soak = std::env::var("HOLDFAST_SOAK").ok().and_then(|text| text.parse().ok());
    let mut all = Report::default();
    for kind in PoolKind::all().filter(|kind| is_meant(*kind)) {
        let options = Options { seeds: SEEDS * soak.unwrap_or(1_u64), ..Options::default() };
        let report = run(&PoolGround { pools: Pools::Of(kind) }, &options, |_| {});
        let findings: Vec<String> = report.findings.iter().map(ToString::to_string).collect();
        println!("{kind}: {} crashes, {} operations", report.crashes, report.operations);
        assert!(findings.is_empty(), "{kind}: {findings:#?}");
        assert!(report.crashes > 0);
        all.groups_added += report.groups_added;
        all.groups_leaving += report.groups_leaving;
        all.groups_gone += report.groups_gone;
        all.placements += report.placements;
        all.attached += report.attached;
        all.detached += report.detached;
    }
    all
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
