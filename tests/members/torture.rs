//! Torture of pools with members: several clients at once, power cuts, and a weak member that
//! fails, is away, rots, is replaced or brought back, and disk groups that come and go, get members
//! and lose them, by seed.
//! `holdfast-lab torture --pools KIND` does the same.

use testkit::torture::{Event, Options, PoolGround, PoolKind, Pools, Report, run, run_seed};

/// Seeds of each kind, times `HOLDFAST_SOAK`. `HOLDFAST_POOLS` names the one kind that is run.
const SEEDS: u64 = 4;
/// Seeds of each kind of pool whose members change, which takes longer.
const SEEDS_MORE: u64 = 8;
/// Seeds of each kind of pool that is scrubbed: in one seed of five a scrub repairs something.
const SEEDS_SCRUBBED: u64 = 24;
const STEPS_MORE: u64 = 400;
/// Power cuts of a pool whose metadata moves: what leaves then does so in one life or several.
const CRASHES_MOVED: u64 = 8;

#[test]
fn pools_with_members_stand_torture() {
    stand(|kind| kind != PoolKind::SINGLE && !kind.has_groups() && !kind.has_more());
}

/// Goal: nothing is lost where disk groups come and go beside clients, get members and lose them,
/// while members fail and the power is cut; what was begun is begun, and ends.
#[test]
fn pools_of_disk_groups_that_come_and_go_stand_torture() {
    let report = stand(|kind| kind.has_groups() && !kind.has_more() && !kind.moves_metadata());
    let Report { groups_added, groups_leaving, groups_gone, placements, .. } = report;
    println!("{groups_added} added, {groups_leaving} left, {groups_gone} gone, {placements} set");
    println!("{} members attached, {} taken out", report.attached, report.detached);
    assert!(report.attached > 0 && report.detached > 0, "{report:?}");
    assert!(placements > 20, "{report:?}");
    assert!(groups_added > 10 && groups_leaving > 5 && groups_gone > 2, "{report:?}");
}

/// Goal: nothing is lost where the metadata moves to disk groups that come, and those that had it
/// leave, that which the pool was made with too, and the weak member with its own.
#[test]
fn pools_whose_metadata_moves_stand_torture() {
    let report = stand(PoolKind::moves_metadata);
    let (moved, left) = (report.events.of(Event::MainMoved), report.events.of(Event::FirstLeft));
    println!("metadata moved {moved} times, the first disk group left {left} times");
    assert!(report.crashes == 0 || (moved > 5 && left > 0), "{report:?}");
}

/// Goal: nothing is lost where spares take places, devices become longer, a scrub mends what rots,
/// a member does not answer, a raid5 or round-robin gets members and loses them, two members are
/// weak, or all devices of the journal fail, while clients write and the power is cut.
#[test]
fn pools_whose_members_come_and_go_stand_torture() {
    let events = stand(PoolKind::has_more).events;
    println!("{events:?}");
    let least = [
        (Event::SpareAdded, 5),
        (Event::SpareTaken, 3),
        (Event::Lengthened, 5),
        (Event::ScrubBegun, 10),
        (Event::ScrubEnded, 3),
        (Event::Mended, 1),
        (Event::Stalled, 5),
        (Event::Widening, 2),
        (Event::Narrowing, 2),
        (Event::Reshaped, 1),
        (Event::LaneAdded, 3),
        (Event::LaneLeaving, 3),
        (Event::JournalLost, 3),
    ];
    for (event, least) in least {
        assert!(events.of(event) >= least, "{event:?}: {events:?}");
    }
}

/// Goal: a scrub takes no page for lost that a checkpoint has listed and not yet taken home, and no
/// block that a crash has left and no map leads to. Method: the seeds in which it did.
#[test]
fn a_scrub_takes_nothing_for_lost_that_is_there_or_dead() {
    let mirrors = [21, 24, 25, 26, 132, 208];
    for (kind, seeds) in [("raid5-4-scrubs", &[11, 12][..]), ("mirror2-scrubs", &mirrors)] {
        let pools = kind.parse().expect("it is a kind");
        let options = Options { steps_max: STEPS_MORE, ..Options::default() };
        let mut ended = 0;
        for &seed in seeds {
            let report = run_seed(&PoolGround { pools }, &options, seed);
            assert_eq!(report.finding, None, "{kind}, seed {seed}");
            ended += report.events.of(Event::ScrubEnded);
        }
        assert!(ended > 0, "{kind}: no scrub came to its end");
    }
}

/// Goal: a survivor is judged by what a pool with power gives. Method: a seed in which a read mends
/// what a member does not give, and that write meets a cut which recovery did not come to.
#[test]
fn a_cut_while_survivors_are_read_is_no_loss() {
    let pools = "mirror2-stalls".parse().expect("it is a kind");
    let options = Options { steps_max: STEPS_MORE, ..Options::default() };
    let report = run_seed(&PoolGround { pools }, &options, 114);
    assert_eq!(report.finding, None);
}

/// Runs seeds of the kinds that `is_meant` names; returns what all of them did.
fn stand(is_meant: impl Fn(PoolKind) -> bool) -> Report {
    let soak = std::env::var("HOLDFAST_SOAK").ok().and_then(|text| text.parse().ok());
    let only = std::env::var("HOLDFAST_POOLS").ok();
    let mut all = Report::default();
    for kind in PoolKind::all().filter(|kind| is_meant(*kind)) {
        if only.as_ref().is_some_and(|only| *only != kind.to_string()) {
            continue;
        }
        let default = Options::default();
        let is_scrubbed = kind.to_string().ends_with("-scrubs");
        let (seeds, steps_max) = match kind.has_more() || kind.moves_metadata() {
            true if is_scrubbed => (SEEDS_SCRUBBED, STEPS_MORE),
            true => (SEEDS_MORE, STEPS_MORE),
            false => (SEEDS, default.steps_max),
        };
        let crashes = if kind.moves_metadata() { CRASHES_MOVED } else { default.crashes };
        let seeds = seeds * soak.unwrap_or(1_u64);
        let options = Options { seeds, crashes, steps_max, ..default };
        let report = run(&PoolGround { pools: Pools::Of(kind) }, &options, |_| {});
        let findings: Vec<String> = report.findings.iter().map(ToString::to_string).collect();
        println!("{kind}: {} crashes, {} operations", report.crashes, report.operations);
        assert!(findings.is_empty(), "{kind}: {findings:#?}");
        assert!(report.crashes > 0);
        all.crashes += report.crashes;
        all.groups_added += report.groups_added;
        all.groups_leaving += report.groups_leaving;
        all.groups_gone += report.groups_gone;
        all.placements += report.placements;
        all.attached += report.attached;
        all.detached += report.detached;
        all.events.add(&report.events);
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
