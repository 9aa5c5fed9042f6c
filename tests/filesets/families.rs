//! Random histories over several filesets and snapshots, with power cuts, by seed.
//! `HOLDFAST_SOAK=N` runs N times as many, `HOLDFAST_SEED=S` begins at another.

use testkit::families::{Options, run};

/// Seeds here; `holdfast-lab torture --filesets` runs as many as it is told.
const SEEDS: u64 = 100;

fn setting(name: &str) -> Option<u64> {
    std::env::var(name).ok().and_then(|text| text.parse().ok())
}

/// Goal: each node is what the model says, after each life; nothing leaks, nothing is missing.
#[test]
fn filesets_and_snapshots_are_what_whole_trees_say_wherever_the_power_is_cut() {
    let seeds = SEEDS * setting("HOLDFAST_SOAK").unwrap_or(1);
    let first_seed = setting("HOLDFAST_SEED").unwrap_or(0);
    let options = Options { first_seed, seeds, ..Options::default() };
    let report = run(&options, |seed| {
        if let Some(finding) = &seed.finding {
            println!("{finding}");
        }
    });
    println!("{seeds} seeds: {:?}", report.counts);
    if let Some(finding) = report.findings.first() {
        panic!("{} findings, the first: {finding}", report.findings.len());
    }
    let counts = report.counts;
    assert!(counts.node_operations > 10 * seeds, "{counts:?}");
    assert!(counts.snapshots > 2 * seeds, "{counts:?}");
    assert!(counts.crashes_in_node_operations > 0, "{counts:?}");
    assert!(counts.moved_fragments > 0, "{counts:?}");
    assert!(counts.over_limit > seeds / 4, "{counts:?}");
}
