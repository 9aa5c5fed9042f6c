//! Power cuts of a mirror: at every event of a workload, whatever each member kept of what it had
//! not flushed, and whichever of them is missing afterwards.

mod logs;

use std::collections::BTreeMap;
use std::sync::Arc;

use engine::Pool;
use runtime::prng::Prng;
use storage::device::sim::{Fault, FaultPlan, Image, SimDevice};
use storage::device::{RequestKind, SharedDevice};
use storage::volume::{Volume, VolumeDevices};

use super::{Devices, cut_at, devices_of, get, new_mirror, open, put, reopened, shared};

/// States of the members that are tried at each moment, besides none and all.
const STATES: u64 = 2;

/// What was acknowledged, and when: the content of a file from a time of the timeline on.
type Acknowledged = Vec<(u64, String, Vec<u8>)>;

/// Returns content that no other version of a file has; all versions of one are equally long.
fn content(version: u64) -> Vec<u8> {
    let length = 300 + usize::try_from(version % 5 * 5_000).expect("small");
    let text = format!("version {version} ");
    text.bytes().cycle().take(length).collect()
}

/// The time of the recordings of `devices`.
fn now(devices: &Devices) -> u64 {
    devices.iter().map(|device| device.time()).max().expect("there are devices")
}

/// Writes files over and over; with checkpoints, so that pages go home.
fn work(pool: &Pool, devices: &Devices, rounds: u64) -> Acknowledged {
    let mut acknowledged = Vec::new();
    for version in 0..rounds {
        let name = format!("file{}", version % 5);
        if put(pool, &name, &content(version)).is_err() {
            break;
        }
        acknowledged.push((now(devices), name, content(version)));
        if version % 4 == 3 && pool.checkpoint().is_err() {
            break;
        }
    }
    acknowledged
}

/// What must be found after a cut at `time`: for each file the versions that it may hold.
fn promised(acknowledged: &Acknowledged, time: u64) -> BTreeMap<&str, Vec<&[u8]>> {
    let mut files: BTreeMap<&str, Vec<&[u8]>> = BTreeMap::new();
    for (at, name, content) in acknowledged {
        let versions = files.entry(name.as_str()).or_default();
        if *at <= time {
            versions.clear();
        }
        versions.push(content.as_slice());
    }
    files.retain(|name, _| acknowledged.iter().any(|(at, own, _)| own == name && *at <= time));
    files
}

/// Judges what `pool` holds.
fn judge(pool: &Pool, promised: &BTreeMap<&str, Vec<&[u8]>>, what: &str) {
    for (name, versions) in promised {
        let found = get(pool, name);
        let found = found.unwrap_or_else(|| panic!("{what}: {name} is not there"));
        // A version that was not acknowledged may be there in part: one that was is the front.
        let is_one = versions.iter().any(|version| found == *version)
            || versions.len() > 1 && found.starts_with(b"version ");
        assert!(is_one, "{what}: {name} holds {} bytes of no version", found.len());
    }
}

/// Checks the pool on `devices`, which was closed.
fn check(devices: &Devices, what: &str) {
    let opening = VolumeDevices { devices: shared(devices), accepts_missing: false };
    let (volume, _) = Volume::open_members(opening).expect("it was open a moment ago");
    let device: SharedDevice = Arc::clone(volume.device());
    let report = check::run(device, check::CheckOptions::default(), &mut |_| {});
    assert!(report.findings.is_empty(), "{what}: {:?}", report.findings);
    assert!(report.stopped.is_none(), "{what}: {:?}", report.stopped);
}

/// Opens what is left on the members `there`; judges it, uses it, closes and checks it, and opens
/// it with the others alone, as far as the labels let them.
fn survive(left: &Devices, promised: &BTreeMap<&str, Vec<&[u8]>>, what: &str) {
    let pool = open(left).unwrap_or_else(|error| panic!("{what}: {error}"));
    judge(&pool, promised, what);
    put(&pool, "afterwards", b"it goes on").unwrap_or_else(|error| panic!("{what}: {error}"));
    pool.close().unwrap_or_else(|error| panic!("{what}: {error}"));
    drop(pool);
    check(left, what);
}

fn explore(count: usize, seed: u64, stride: u64) -> u64 {
    let devices = reopened(&new_mirror(count), &[0, 1, 2][..count]);
    let pool = open(&devices).expect("a new mirror opens");
    let acknowledged = work(&pool, &devices, 12);
    pool.close().expect("nothing fails");
    drop(pool);
    let recordings: Vec<_> = devices.iter().map(|device| device.recording()).collect();
    let end = now(&devices);
    let (mut prng, mut states) = (Prng::from_seed(seed), 0);
    for time in (seed % stride..=end).step_by(usize::try_from(stride).expect("small")) {
        let promised = promised(&acknowledged, time);
        for state in 0..STATES + 2 {
            let images = cut_at(&recordings, time, state == 0, &mut prng);
            for missing in [None, Some(0), Some(count - 1)] {
                let there = (0..count).filter(|at| Some(*at) != missing);
                let left = devices_of(there.map(|at| images[at].clone()).collect());
                let what = format!("cut at {time}, state {state}, without {missing:?}");
                survive(&left, &promised, &what);
                states += 1;
            }
        }
    }
    states
}

/// Goal: nothing acknowledged is lost, whichever member is missing after the cut.
#[test]
fn what_was_acknowledged_is_there_after_a_cut_whichever_member_is_missing() {
    let states = explore(2, 1, 3) + explore(3, 2, 17);
    println!("{states} states");
    assert!(states > 500, "{states}");
}

/// Goal: a second cut, in the middle of a recovery, and another member missing than at the first,
/// lose nothing: what one member gave is on all before anything is written home.
#[test]
fn a_cut_in_a_recovery_and_another_member_missing_lose_nothing() {
    let devices = reopened(&new_mirror(2), &[0, 1]);
    let pool = open(&devices).expect("a new mirror opens");
    let acknowledged = work(&pool, &devices, 12);
    drop(pool);
    let recordings: Vec<_> = devices.iter().map(|device| device.recording()).collect();
    let (end, mut prng, mut states) = (now(&devices), Prng::from_seed(5), 0);
    for time in (0..=end).step_by(11) {
        let promised = promised(&acknowledged, time);
        let first = devices_of(cut_at(&recordings, time, false, &mut prng));
        let Ok(pool) = open(&first) else { panic!("cut at {time}: it does not open") };
        let versions: BTreeMap<String, Option<Vec<u8>>> =
            promised.keys().map(|name| ((*name).to_owned(), get(&pool, name))).collect();
        drop(pool);
        let again: Vec<_> = first.iter().map(|device| device.recording()).collect();
        for second in (0..=now(&first)).step_by(3) {
            let images = cut_at(&again, second, false, &mut prng);
            for missing in [None, Some(0), Some(1)] {
                let there = (0..2).filter(|at| Some(*at) != missing);
                let left = devices_of(there.map(|at| images[at].clone()).collect());
                let what = format!("cut at {time} and {second}, without {missing:?}");
                survive(&left, &promised, &what);
                states += 1;
            }
        }
        // What an open has shown is there for good once it is home.
        for missing in [0, 1] {
            let left = devices_of(vec![again[1 - missing].point_at(u64::MAX).durable().clone()]);
            let Ok(pool) = open(&left) else { panic!("cut at {time}: one is not enough") };
            for (name, content) in &versions {
                assert_eq!(&get(&pool, name), content, "cut at {time}: {name} went back");
            }
        }
    }
    println!("{states} states");
}

/// Goal: a member that dies in the middle of the workload, at any of its requests, costs nothing;
/// nor does the power cut that follows, with the dead member back or away.
#[test]
fn a_member_that_dies_under_the_workload_costs_nothing() {
    for dead in [0, 1] {
        for kind in [RequestKind::Write, RequestKind::Flush] {
            for nth in (0..120).step_by(7) {
                let devices = reopened(&new_mirror(2), &[0, 1]);
                let pool = open(&devices).expect("a new mirror opens");
                let faults = vec![Fault::Fail { kind, nth, persists: true }];
                devices[dead].arm(FaultPlan { faults });
                let acknowledged = work(&pool, &devices, 8);
                assert_eq!(acknowledged.len(), 8, "one member is enough");
                drop(pool);
                let promised = promised(&acknowledged, u64::MAX);
                let mut prng = Prng::from_seed(nth);
                let cut = |device: &Arc<SimDevice>, prng: &mut Prng| device.crash_image(prng);
                let images: Vec<Image> =
                    devices.iter().map(|device| cut(device, &mut prng)).collect();
                let what = format!("{dead} dies at {kind} {nth}");
                survive(&devices_of(images.clone()), &promised, &what);
                survive(&devices_of(vec![images[1 - dead].clone()]), &promised, &what);
            }
        }
    }
}

/// Goal: a member that dies in a recovery is left out, and the recovery ends.
#[test]
fn a_member_that_dies_under_a_recovery_is_left_out() {
    let devices = reopened(&new_mirror(2), &[0, 1]);
    let pool = open(&devices).expect("a new mirror opens");
    let acknowledged = work(&pool, &devices, 11);
    drop(pool);
    let promised = promised(&acknowledged, u64::MAX);
    for dead in [0, 1] {
        for kind in [RequestKind::Read, RequestKind::Write, RequestKind::Flush] {
            for nth in 0..40 {
                let left = devices_of(devices.iter().map(|device| device.image()).collect());
                let faults = vec![Fault::Fail { kind, nth, persists: true }];
                left[dead].arm(FaultPlan { faults });
                let what = format!("{dead} dies at {kind} {nth}");
                match open(&left) {
                    Ok(pool) => judge(&pool, &promised, &what),
                    // Its label could not be read: nobody knows what it is.
                    Err(error) if kind == RequestKind::Read && nth < 10 => drop(error),
                    Err(error) => panic!("{what}: {error}"),
                }
            }
        }
    }
}

/// Goal: a bad sector anywhere on one member costs nothing, in a recovery either.
#[test]
fn rot_on_one_member_costs_nothing() {
    let devices = reopened(&new_mirror(2), &[0, 1]);
    let pool = open(&devices).expect("a new mirror opens");
    let acknowledged = work(&pool, &devices, 11);
    drop(pool);
    let promised = promised(&acknowledged, u64::MAX);
    let mut prng = Prng::from_seed(3);
    for round in 0..60 {
        let images: Vec<Image> = devices.iter().map(|device| device.image()).collect();
        let left = devices_of(images);
        let bad = usize::try_from(prng.below(2)).expect("small");
        // Behind the labels: of a member without one nobody knows what it is.
        for _ in 0..200 {
            let offset = (128 << 10) + prng.below(super::POOL_BYTES - (256 << 10));
            left[bad].rot(offset, 1 << prng.below(8));
        }
        survive(&left, &promised, &format!("round {round}, rot on {bad}"));
    }
}

/// The error of a device whose power is cut is no failure of a member.
#[test]
fn a_power_cut_fails_nobody() {
    let devices = reopened(&new_mirror(2), &[0, 1]);
    let pool = open(&devices).expect("a new mirror opens");
    devices[0].arm(FaultPlan { faults: vec![Fault::CutPower { nth: 5 }] });
    let acknowledged = work(&pool, &devices, 8);
    assert!(acknowledged.len() < 8, "the power is cut");
    drop(pool);
    let label = storage::pool::read_superblock(reopened(&devices, &[0])[0].as_ref());
    let label = label.expect("it has a label").current;
    assert!(label.members.iter().all(format::members::Member::is_online));
}

/// Goal: a sector of the log's ring that no member gives stops the open where the log may go on in
/// it, and nowhere else; nothing acknowledged is lost by it, whichever member is lost afterwards.
/// Method: after a cut each page of the ring goes bad on both members of a mirror.
#[test]
fn a_bad_sector_in_the_ring_of_all_stops_the_open_where_the_log_may_go_on() {
    let devices = new_mirror(2);
    let pool = open(&devices).expect("it is new");
    let content = |number: usize| vec![u8::try_from(number).expect("few"); 3_000];
    for number in 0..40 {
        put(&pool, &format!("f{number}"), &content(number)).expect("there is room");
        if number == 30 {
            pool.checkpoint().expect("nothing fails");
        }
    }
    let geometry = pool.status().geometry;
    let images: Vec<Image> = devices.iter().map(|device| device.durable_image()).collect();
    let ring = geometry.journal_offset + format::geometry::JOURNAL_HEADS * 4096
        ..geometry.journal_offset + geometry.journal_bytes;
    let (mut refused, mut opened) = (0, 0);
    for offset in ring.step_by(4096) {
        let bad = devices_of(images.clone());
        for device in &bad {
            device.arm(FaultPlan { faults: vec![Fault::BadSector { offset }] });
        }
        let Ok(pool) = open(&bad) else {
            refused += 1;
            continue;
        };
        opened += 1;
        drop(pool);
        let pool = open(&reopened(&bad, &[opened % 2])).expect("one of two is enough");
        for number in 0..40 {
            let found = get(&pool, &format!("f{number}"));
            assert!(found == Some(content(number)), "file {number}, the page at {offset}");
        }
    }
    println!("{refused} refused, {opened} opened");
    assert!((2..40).contains(&refused) && opened > refused, "{refused} {opened}");
}
