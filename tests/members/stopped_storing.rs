//! A member that from a moment on answers and stores nothing: of all, of all but its labels, of its
//! pages of metadata, or of one region. Its labels may still be equal to those of the others. What
//! the others have is right, is served, and is what all have afterwards.
//!
//! A seed is one case of an extent: a pool, a member, an end, and the operations of a client. The
//! pool is closed, or its power is cut; some are recovered while the member still stores nothing,
//! and cut again. Then the member stores again, and the model judges what is read. A scrub follows,
//! and the model judges once more, each member away in turn.
//!
//! `HOLDFAST_SOAK=N` runs N times as many seeds, `HOLDFAST_STOPPED=first..end` those.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use engine::{Pool, ScrubReport};
use format::disk_group::DiskGroupRoles;
use format::geometry::{POOL_BYTES_MIN, SUPERBLOCK_AREA_BYTES};
use format::members::{Layout, MemberState};
use format::page::PAGE_BYTES;
use format::stripes::UNIT_SHIFT_DEFAULT;
use runtime::prng::Prng;
use storage::device::sim::{Fault, FaultPlan, Image, StoppedExtent, StoppedReads};
use storage::volume::{DiskGroupSpec, Volume, VolumeDevices};
use testkit::canon::Times;
use testkit::crash::{History, judge};
use testkit::ops::{Op, Session, Step};
use whole_system::soak::{Soak, seeds};

use super::groups::group_of;
use super::raid5::{all_but, new_raid5};
use super::raid5_crash::{Recorded, cut, history_at, setting, work};
use super::rebuild::{open, states};
use super::roles::make;
use super::{Devices, NOTHING, POOL_BYTES, devices_of, new_mirror, reopened, shared, unmended};

/// Seeds of each case for every commit.
const SEEDS: u64 = 2;
/// Operations of a client.
const STEPS: usize = 50;
/// Bytes of a page.
const PAGE: u64 = 4096;
const _: () = assert!(PAGE_BYTES == 4096);
/// Ticks in which the jobs of such a small pool end.
const TICKS_MAX: usize = 1000;
/// The longest region that is not stored.
const REGION_BYTES_MAX: u64 = 2 << 20;

const RAID5: Layout = Layout::Raid5 { unit_shift: UNIT_SHIFT_DEFAULT };

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Mirror(usize),
    Raid5(usize),
    /// Metadata on a mirror, data on a raid5.
    Roles,
    /// A mirror, and the journal on another.
    JournalApart,
}

const KINDS: [Kind; 6] = [
    Kind::Mirror(2),
    Kind::Mirror(3),
    Kind::Raid5(3),
    Kind::Raid5(4),
    Kind::Roles,
    Kind::JournalApart,
];

impl Kind {
    fn members(self) -> usize {
        match self {
            Kind::Mirror(count) | Kind::Raid5(count) => count,
            Kind::Roles => 5,
            Kind::JournalApart => 4,
        }
    }

    /// Returns the devices of a new pool.
    fn make(self) -> Devices {
        match self {
            Kind::Mirror(count) => new_mirror(count),
            Kind::Raid5(count) => new_raid5(count),
            Kind::Roles => {
                let (devices, made) =
                    make(&[(Layout::Mirror, 2, false), (RAID5, 3, true)], 2 * POOL_BYTES);
                made.expect("it fits");
                devices
            }
            Kind::JournalApart => {
                let images = new_mirror(2).iter().map(|device| device.image()).collect();
                let journal = vec![Image::blank(POOL_BYTES_MIN.max(POOL_BYTES)); 2];
                let devices = devices_of([images, journal].concat());
                let pool = open(&devices[..2].to_vec()).expect("it is new");
                let group = group_of(&devices, Layout::Mirror, &[2, 3]);
                let group = DiskGroupSpec { roles: DiskGroupRoles::JOURNAL, ..group };
                pool.devices().add_disk_group(&group).expect("it fits");
                pool.close().expect("nothing fails");
                devices
            }
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Extent {
    All,
    /// All but the labels, which are equal to those of the others.
    Contents,
    Metadata,
    Region,
}

impl Extent {
    fn of(self, image: &Image, prng: &mut Prng) -> StoppedExtent {
        match self {
            Extent::All => StoppedExtent::All,
            Extent::Contents => {
                let labels = 2 * SUPERBLOCK_AREA_BYTES;
                StoppedExtent::Range(labels..image.size_bytes() - labels)
            }
            Extent::Metadata => StoppedExtent::Metadata,
            Extent::Region => {
                let page = |bytes: u64| bytes / PAGE * PAGE;
                // What is written lies in front.
                let shift = prng.below(4);
                let start = page(prng.below(image.size_bytes() >> shift));
                let length = page(prng.below(REGION_BYTES_MAX)) + PAGE;
                StoppedExtent::Range(start..start + length)
            }
        }
    }
}

/// How the pool ends that the member was in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Closed,
    /// The power is cut at any moment.
    Cut,
    /// As `Cut`, and again in or after the recovery, by which nothing is stored either.
    CutTwice,
}

#[derive(Clone, Copy, Debug)]
struct Case {
    seed: u64,
    kind: Kind,
    member: usize,
    end: End,
}

/// What was seen in all runs of an extent.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    runs: u64,
    /// Runs in which something was not stored.
    hit: u64,
    /// Runs whose pool has counted something that it mended, or made the member anew.
    told: u64,
}

/// Returns the members of all kinds, which is the number of cases with one end.
fn cases() -> Vec<(Kind, usize)> {
    KINDS.iter().flat_map(|kind| (0..kind.members()).map(|at| (*kind, at))).collect()
}

impl Case {
    fn of(seed: u64) -> Case {
        let cases = cases();
        let count = count_of(cases.len());
        let (kind, member) = cases[usize::try_from(seed % count).expect("few")];
        let end = [End::Closed, End::Cut, End::Closed, End::CutTwice];
        let end = end[usize::try_from(seed / count % 4).expect("few")];
        Case { seed, kind, member, end }
    }
}

fn again(devices: &Devices) -> Devices {
    reopened(devices, &(0..devices.len()).collect::<Vec<_>>())
}

/// Acknowledges all that was done: what a close promises.
fn sync(session: &mut Session<'_>, devices: &Devices, recorded: &mut Vec<Recorded>) {
    let (step, timeline) = (Step::root(Op::Sync), devices[0].timeline());
    let began = timeline.now();
    let applied = session.apply(&step);
    recorded.push(Recorded { step, began, ended: timeline.now(), applied });
}

fn judged(pool: &Pool, history: &History, what: &str) {
    if let Err(findings) = judge(history, pool) {
        let lines: Vec<String> = findings.iter().map(ToString::to_string).collect();
        panic!("{what}: {}", lines.join("\n"));
    }
}

fn assert_clean(devices: &Devices, what: &str) {
    let opening = VolumeDevices { devices: shared(devices), accepts_missing: false };
    let (volume, _) =
        Volume::open_members(opening).unwrap_or_else(|error| panic!("{what}: a check: {error}"));
    let report =
        check::run(Arc::clone(volume.device()), check::CheckOptions::default(), &mut |_| ());
    assert!(report.is_clean(), "{what}: {}", report.to_text());
}

/// Lets jobs work until `is_done`.
fn tick_until(pool: &Pool, is_done: impl Fn() -> bool, what: &str) {
    for _ in 0..TICKS_MAX {
        if is_done() {
            return;
        }
        pool.tick().unwrap_or_else(|error| panic!("{what}: {error}"));
    }
    panic!("{what}: it does not end: {:?} {:?}", states(pool), pool.jobs());
}

fn scrub(pool: &Pool, what: &str) -> ScrubReport {
    pool.devices().scrub().unwrap_or_else(|error| panic!("{what}: {error}"));
    tick_until(pool, || pool.devices().scrub_report().is_some_and(|report| report.is_done), what);
    let report = pool.devices().scrub_report().expect("it was begun");
    assert_eq!(unmended(&report), NOTHING, "{what}: {report:?}");
    report
}

fn are_online(pool: &Pool) -> bool {
    states(pool).iter().all(|state| *state == MemberState::Online)
}

/// Opens, judges, scrubs and judges; then nothing is left to be mended, and each member can go.
/// Returns whether the pool has counted what was wrong.
fn mend_and_judge(devices: &Devices, history: &History, what: &str) -> bool {
    let pool = open(devices).unwrap_or_else(|error| panic!("{what}: {error}"));
    judged(&pool, history, what);
    let was_online = are_online(&pool);
    tick_until(&pool, || are_online(&pool), what);
    let report = scrub(&pool, what);
    judged(&pool, history, &format!("{what}, scrubbed"));
    let counted: u64 = pool
        .devices()
        .members()
        .iter()
        .map(|member| member.counts.checksum_errors + member.counts.repaired)
        .sum();
    let second = scrub(&pool, what);
    let left = (second.repaired, second.parities);
    assert_eq!(left, (0, 0), "{what}: a second scrub: {second:?} after {report:?}");
    pool.close().unwrap_or_else(|error| panic!("{what}: {error}"));
    drop(pool);
    assert_clean(devices, what);
    for away in 0..devices.len() {
        let what = format!("{what}, without {away}");
        let left = reopened(devices, &all_but(devices.len(), away));
        let pool = open(&left).unwrap_or_else(|error| panic!("{what}: {error}"));
        judged(&pool, history, &what);
        pool.close().unwrap_or_else(|error| panic!("{what}: {error}"));
        drop(pool);
        assert_clean(&left, &what);
    }
    !was_online || counted + report.repaired + report.parities > 0
}

/// Recovers what a cut left while the member stores nothing, goes on, and cuts the power again.
/// What the second client does is not judged: the first has had all acknowledged before.
fn recover_and_cut(images: Vec<Image>, case: &Case, plan: &FaultPlan, prng: &mut Prng) -> Devices {
    let devices = devices_of(images);
    devices[case.member].arm(plan.clone());
    let pool = open(&devices).unwrap_or_else(|error| panic!("{case:?}, stopped: {error}"));
    if prng.one_in(2) {
        pool.checkpoint().unwrap_or_else(|error| panic!("{case:?}, stopped: {error}"));
    }
    drop(pool);
    let time = prng.below(devices[0].timeline().now() + 1);
    devices_of(cut(&devices, time, prng))
}

fn run(base: &Devices, extent: Extent, case: &Case) -> (bool, bool) {
    let mut prng = Prng::from_seed(case.seed);
    let devices = again(base);
    let base_pool = open(&again(base)).expect("it is new");
    let pool = open(&devices).unwrap_or_else(|error| panic!("{case:?}: {error}"));
    let extent = extent.of(&devices[case.member].image(), &mut prng);
    let reads = if prng.one_in(2) { StoppedReads::Old } else { StoppedReads::Written };
    let plan = FaultPlan::none().with(Fault::StopsStoring { nth: 0, extent, reads });
    let stops_at = usize::try_from(prng.below(count_of(STEPS))).expect("few");
    let mut stopped = 0;
    let timeline = devices[0].timeline().clone();
    let mut recorded = work(&pool, &timeline, (case.seed, STEPS), |_, number| {
        if number == stops_at {
            devices[case.member].arm(plan.clone());
            stopped = timeline.now();
        }
    });
    let (left, time) = match case.end {
        End::Closed => {
            sync(&mut Session::new(&pool, Times::Ignored), &devices, &mut recorded);
            pool.close().unwrap_or_else(|error| panic!("{case:?}: {error}"));
            (again(&devices), u64::MAX)
        }
        End::Cut | End::CutTwice => {
            let time = stopped + prng.below(timeline.now() + 1 - stopped);
            let images = cut(&devices, time, &mut prng);
            let is_twice = case.end == End::CutTwice;
            let left = match is_twice {
                true => recover_and_cut(images, case, &plan, &mut prng),
                false => devices_of(images),
            };
            (left, time)
        }
    };
    drop(pool);
    let history = history_at(&base_pool, &recorded, time);
    let what = format!("{case:?} {plan:?} from step {stops_at} at {stopped}, {time}");
    let told = mend_and_judge(&left, &history, &what);
    (devices[case.member].harm().lies > 0, told)
}

fn count_of(count: usize) -> u64 {
    u64::try_from(count).expect("64 bits")
}

/// Runs the seeds of an extent that the environment asks for, or those for every commit.
fn explore(extent: Extent) -> Seen {
    let usual = SEEDS * count_of(cases().len()) * setting("HOLDFAST_SOAK").unwrap_or(1);
    explore_seeds(extent, seeds("HOLDFAST_STOPPED", usual))
}

/// Runs seeds of an extent; panics at the end if one has failed.
fn explore_seeds(extent: Extent, seeds: impl Iterator<Item = u64>) -> Seen {
    let bases: Vec<(Kind, Devices)> = KINDS.iter().map(|kind| (*kind, kind.make())).collect();
    let (mut seen, mut failed, mut soak) = (Seen::default(), Vec::new(), Soak::of("runs"));
    for seed in seeds {
        soak.begin(seed);
        let case = Case::of(seed);
        let (_, base) = bases.iter().find(|(kind, _)| *kind == case.kind).expect("all are made");
        match catch_unwind(AssertUnwindSafe(|| run(base, extent, &case))) {
            Ok((hit, told)) => {
                seen.hit += u64::from(hit);
                seen.told += u64::from(hit && told);
            }
            Err(_) => failed.push(case),
        }
        seen.runs += 1;
        soak.add(1, || format!("{extent:?}, {} failed", failed.len()));
    }
    println!("{}", soak.line(&format!("{extent:?} {seen:?}, {} failed", failed.len())));
    for case in &failed {
        println!("failed: {extent:?} {case:?}");
    }
    assert!(failed.is_empty(), "{extent:?}: {} of {} fail", failed.len(), seen.runs);
    seen
}

/// Goal: LSN pages of a member that stored no metadata are not believed over those of the others,
/// closed and cut, in each kind of pool. Method: seeds in which they were.
#[test]
fn lsn_pages_that_were_not_stored_are_not_believed() {
    const BELIEVED: [u64; 16] = [0, 1, 2, 7, 8, 9, 10, 12, 13, 15, 17, 18, 28, 29, 34, 36];
    let seen = explore_seeds(Extent::Metadata, BELIEVED.into_iter());
    assert_eq!((seen.hit, seen.runs), (16, 16), "{seen:?}");
}

/// Goal: what a member has as creation left it is not taken for what the first chunk of the log has
/// made of it. Method: seeds in which both had one LSN, in the group table, the anode map and the
/// root directory.
#[test]
fn pages_of_creation_are_older_than_all_others() {
    const TAKEN: [u64; 10] = [3, 5, 33, 47, 55, 64, 65, 69, 71, 81];
    let seen = explore_seeds(Extent::Metadata, TAKEN.into_iter());
    assert_eq!((seen.hit, seen.runs), (10, 10), "{seen:?}");
}

/// Goal: a member that stored nothing at all costs nothing, is told of and gets everything.
#[test]
fn a_member_that_stores_nothing_costs_nothing() {
    let seen = explore(Extent::All);
    assert!(seen.told * 2 > seen.hit, "{seen:?}");
}

/// Goal: a member that stored nothing but labels, as one that was put back to a snapshot while the
/// pool was open, costs nothing, is told of and gets everything.
#[test]
fn a_member_that_stores_labels_alone_costs_nothing() {
    let seen = explore(Extent::Contents);
    assert!(seen.told * 2 > seen.hit, "{seen:?}");
}

/// Goal: a member that stored no page of metadata costs nothing, is told of and gets all of them.
#[test]
fn a_member_that_stores_no_metadata_costs_nothing() {
    let seen = explore(Extent::Metadata);
    assert!(seen.told * 2 > seen.hit, "{seen:?}");
}

/// Goal: a member that stored nothing in one region costs nothing. The region may be free.
#[test]
fn a_member_that_stores_nothing_of_a_region_costs_nothing() {
    let seen = explore(Extent::Region);
    assert!(seen.hit * 5 > seen.runs && seen.told > 0, "{seen:?}");
}
