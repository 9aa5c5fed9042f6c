//! Torture of a ground that is right, and of the same with one fault each.

use std::collections::BTreeSet;

use super::{Fault, Options, ReferenceGround, SeedReport, Wrong, replay_line, run, run_seed};

/// Seeds in which each fault must show.
const SEEDS_MAX: u64 = 500;
const OPTIONS: Options = Options {
    first_seed: 0,
    seeds: 1,
    crashes: 3,
    clients_max: 3,
    steps_max: 60,
    has_snapshots: false,
};

fn tortured(wrong: Wrong, seeds: u64) -> Vec<SeedReport> {
    let ground = ReferenceGround::new(wrong);
    (0..seeds).map(|seed| run_seed(&ground, &OPTIONS, seed)).collect()
}

#[test]
fn a_ground_that_is_right_passes_and_operations_were_in_flight() {
    let ground = ReferenceGround::new(Wrong::Nothing);
    let mut told = 0;
    let report = run(&ground, &Options { seeds: 30, ..OPTIONS }, |_| told += 1);
    if let Some(finding) = report.findings.first() {
        panic!("{finding}");
    }
    assert_eq!((report.seeds, told, report.crashes + report.lives_of_lies), (30, 30, 90));
    assert!(report.seeds_apart < 6, "{report:?}");
    // Where one client in three syncs nearly all it writes, fewer than half are in between.
    assert!(report.concurrent_crashes > 30, "{report:?}");
    assert!(report.device_errors > 1, "{report:?}");
    assert!(report.recovery_cuts > 5, "{report:?}");
    assert!(report.operations > 1000, "{report:?}");
}

#[test]
fn the_same_seed_gives_the_same_run() {
    let hashes = || -> Vec<(u64, u64)> {
        let reports = tortured(Wrong::Nothing, 5);
        reports.iter().map(|report| (report.trace_hash, report.operations)).collect()
    };
    let (first, second) = (hashes(), hashes());
    assert_eq!(first, second);
    // What the cuts leave of this ground is always alike; who went on when is not.
    let distinct: BTreeSet<u64> = first.iter().map(|&(hash, _)| hash).collect();
    assert_eq!(distinct.len(), first.len());
}

/// Goal: each sort of fault is found, with the line that repeats it. Method: a ground with it.
#[test]
fn each_fault_is_found_and_found_again_by_its_seed() {
    type Is = fn(&Fault) -> bool;
    let cases: [(Wrong, Is); 10] = [
        (Wrong::SyncLies, |fault| matches!(fault, Fault::Survivor(_))),
        (Wrong::OlderSyncWins, |fault| matches!(fault, Fault::Survivor(_))),
        (Wrong::Stranger, |fault| matches!(fault, Fault::Survivor(_))),
        (Wrong::ShortReads, |fault| matches!(fault, Fault::Answer { .. })),
        (Wrong::Panics, |fault| matches!(fault, Fault::Panic(why) if why.contains("a bug"))),
        (Wrong::OpensOnce, |fault| matches!(fault, Fault::Unusable(_))),
        (Wrong::CheckComplains, |fault| matches!(fault, Fault::Check(_))),
        (Wrong::IgnoresErrors, |fault| {
            matches!(fault, Fault::Answer { expected, .. }
            if expected.contains("an error"))
        }),
        (Wrong::GoesOn, |fault| {
            matches!(fault, Fault::Answer { expected, .. }
            if expected.contains("an error"))
        }),
        (Wrong::Deadlocks, |fault| matches!(fault, Fault::Panic(why) if why.contains("deadlock"))),
    ];
    for (wrong, is_expected) in cases {
        let ground = ReferenceGround::new(wrong);
        let found = (0..SEEDS_MAX).find_map(|seed| run_seed(&ground, &OPTIONS, seed).finding);
        let finding = found.unwrap_or_else(|| panic!("{wrong:?} is not found"));
        assert!(is_expected(&finding.fault), "{wrong:?}: {finding}");
        assert!(finding.to_string().ends_with(&replay_line(finding.seed, false)));
        let again = run_seed(&ReferenceGround::new(wrong), &OPTIONS, finding.seed);
        assert_eq!(again.finding, Some(finding), "{wrong:?}");
    }
}
