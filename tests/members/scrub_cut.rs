//! A scrub that a crash or a close interrupts goes on where it was, passes over nothing, and
//! repeats little.

use engine::{Pool, PoolCreateOptions, ScrubError};
use format::members::{Layout, MemberState};
use runtime::clock::ManualClock;
use runtime::prng::Prng;
use storage::device::sim::Image;
use storage::device::{IoPurpose, RequestKind};

use super::raid5::{all_but, content};
use super::raid5_crash::cut;
use super::rebuild::{begin, open, states};
use super::{Devices, NOTHING, devices_of, get, put, reopened, shared, unmended};

/// Bytes of a member: pieces enough that a step is a small part of them.
const MEMBER_BYTES: u64 = 160 << 20;
const FILES: u8 = 60;
const FILE_BYTES: usize = 200_000;
/// Bytes of files of which a segment is less than a hundredth.
const MANY_BYTES: usize = 4_000_000;

fn filled((layout, members): (Layout, usize), length: usize) -> Devices {
    let devices = devices_of(vec![Image::blank(MEMBER_BYTES); members]);
    let mut options = PoolCreateOptions::new(MEMBER_BYTES, [8; 64]);
    options.geometry.journal_bytes = Some(1 << 20);
    let is_striped = matches!(layout, Layout::Raid5 { .. });
    options.geometry.segment_bytes = is_striped.then_some(384 << 10);
    Pool::create_on(&shared(&devices), layout, &ManualClock::new(), &options).expect("it fits");
    let pool = open(&devices).expect("all are there");
    for number in 0..FILES {
        put(&pool, &format!("file{number}"), &content(number, length)).expect("there is room");
    }
    pool.close().expect("nothing fails");
    drop(pool);
    reopened(&devices, &(0..members).collect::<Vec<_>>())
}

const MIRROR: (Layout, usize) = (Layout::Mirror, 2);
const RAID5: (Layout, usize) = (Layout::Raid5 { unit_shift: 16 }, 4);

fn both() -> [(Devices, Layout); 2] {
    [MIRROR, RAID5].map(|kind| (filled(kind, FILE_BYTES), kind.0))
}

fn is_done(pool: &Pool) -> bool {
    pool.devices().scrub_report().expect("one is under way").is_done
}

fn finish(pool: &Pool) -> usize {
    for ticks in 1..2000 {
        pool.tick().expect("nothing fails");
        if is_done(pool) {
            return ticks;
        }
    }
    panic!("the scrub does not end: {:?}", pool.jobs());
}

/// Returns what jobs have read of the devices.
fn read_bytes(devices: &Devices) -> u64 {
    let of = |device: &std::sync::Arc<storage::device::sim::SimDevice>| {
        device.counts().of(IoPurpose::Cleaner, RequestKind::Read).bytes
    };
    devices.iter().map(of).sum()
}

/// Goal: closed anywhere in a scrub, the next mount goes on with it by itself, and both together
/// read a hundredth more than one that nobody interrupts, at most; progress does not go back by
/// more. Method: one close at each tick.
#[test]
fn a_scrub_goes_on_after_a_close_and_repeats_little() {
    for (kind, length) in [(MIRROR, FILE_BYTES), (RAID5, MANY_BYTES)] {
        let (devices, layout) = (filled(kind, length), kind.0);
        let whole = reopened(&devices, &(0..devices.len()).collect::<Vec<_>>());
        let pool = open(&whole).expect("it was closed");
        assert!(pool.devices().scrub().expect("there are several"));
        let ticks = finish(&pool);
        let (all, total) =
            (read_bytes(&whole), pool.devices().scrub_report().expect("one").read_bytes);
        pool.close().expect("nothing fails");
        assert!(ticks > 10, "{layout:?}: {ticks} ticks are too few to be cut");
        let mut most = 0;
        for stop in (1..ticks).step_by(ticks / 10) {
            let first = reopened(&devices, &(0..devices.len()).collect::<Vec<_>>());
            let pool = open(&first).expect("it was closed");
            pool.devices().scrub().expect("there are several");
            for _ in 0..stop {
                pool.tick().expect("nothing fails");
            }
            let done = pool.devices().scrub_report().expect("one").read_bytes;
            pool.close().expect("nothing fails");
            drop(pool);
            let second = reopened(&first, &(0..devices.len()).collect::<Vec<_>>());
            let pool = open(&second).expect("it was closed");
            pool.tick().expect("nothing fails");
            let report = pool.devices().scrub_report().expect("it goes on by itself");
            assert!(report.read_before <= done && done - report.read_before <= total / 100);
            let is_begun = report.is_done || pool.devices().scrub().expect("it is under way");
            assert_eq!(is_begun, report.is_done, "it is not begun again");
            finish(&pool);
            assert_eq!(pool.devices().scrub_report().expect("one").read_bytes, total, "{layout:?}");
            let repeated = (read_bytes(&first) + read_bytes(&second)).saturating_sub(all);
            assert!(repeated <= all / 100, "{layout:?}, tick {stop}: {repeated} of {all} again");
            most = most.max(repeated);
            pool.close().expect("nothing fails");
            drop(pool);
            let third = reopened(&second, &(0..devices.len()).collect::<Vec<_>>());
            let pool = open(&third).expect("it was closed");
            pool.tick().expect("nothing fails");
            assert_eq!(pool.devices().scrub_report(), None, "it has come to its end");
        }
        println!("{layout:?}: {most} of {all} bytes read again at most, in {ticks} ticks");
    }
}

/// Goal: progress is in proportion to what a scrub reads, and ends at its total. Method: a raid5
/// that is used in part; at each tick its progress is compared with the reads of the devices.
#[test]
fn the_progress_of_a_scrub_is_what_it_has_read() {
    let devices = filled(RAID5, MANY_BYTES);
    let pool = open(&devices).expect("it was closed");
    let before = read_bytes(&devices);
    assert!(pool.devices().scrub().expect("there are several"));
    let mut seen = Vec::new();
    while !is_done(&pool) {
        let jobs = pool.jobs();
        let at = jobs.iter().find(|job| job.name == "scrub").and_then(|job| job.progress);
        let at = at.expect("it is under way");
        seen.push((read_bytes(&devices) - before, at.done * 100 / at.total));
        pool.tick().expect("nothing fails");
    }
    let all = read_bytes(&devices) - before;
    assert!(seen.len() > 10, "{} ticks are too few", seen.len());
    for (read, percent) in &seen {
        let expected = read * 100 / all;
        assert!(percent.abs_diff(expected) <= 10, "{percent} % at {read} of {all}: {seen:?}");
    }
}

/// Goal: a rebuild that is closed anywhere goes on, and both together read a hundredth more than
/// one that nobody interrupts, at most.
#[test]
fn a_rebuild_goes_on_after_a_close_and_repeats_little() {
    let devices = filled(RAID5, MANY_BYTES);
    let with_new = |devices: &Devices| {
        let mut images: Vec<Image> = devices.iter().map(|device| device.image()).collect();
        images.push(Image::blank(MEMBER_BYTES));
        devices_of(images)
    };
    let ticks = |pool: &Pool, most: usize| {
        for ticks in 0..most {
            if !states(pool).contains(&MemberState::Joining) {
                return ticks;
            }
            pool.tick().expect("nothing fails");
        }
        most
    };
    let whole = with_new(&devices);
    let pool = open(&whole[..4].to_vec()).expect("all are there");
    begin(&pool, 2, &whole[4]);
    let needed = ticks(&pool, 2000);
    let all = read_bytes(&whole);
    assert!((10..2000).contains(&needed), "{needed} ticks");
    let mut most = 0;
    for stop in (1..needed).step_by(needed / 10) {
        let first = with_new(&devices);
        let pool = open(&first[..4].to_vec()).expect("all are there");
        begin(&pool, 2, &first[4]);
        ticks(&pool, stop);
        pool.close().expect("nothing fails");
        drop(pool);
        let second = reopened(&first, &[0, 1, 4, 3]);
        let pool = open(&second).expect("all are there");
        ticks(&pool, 2000);
        assert_eq!(states(&pool), [MemberState::Online; 4]);
        let repeated = (read_bytes(&first) + read_bytes(&second)).saturating_sub(all);
        assert!(repeated <= all / 100, "tick {stop}: {repeated} of {all} again");
        most = most.max(repeated);
    }
    println!("{most} of {all} bytes read again at most, in {needed} ticks");
}

/// Goal: wherever the power is cut, whatever had rotted on one member is mended once the scrub has
/// gone on to its end: nothing was passed over. Method: cuts at drawn events, each member with any
/// subset of what it had not flushed; then a scrub from the start finds nothing, and each other
/// member can be lost.
#[test]
fn no_cut_makes_a_scrub_pass_over_anything() {
    let (mut cuts, mut went_on) = (0, 0);
    for (devices, layout) in both() {
        let mut prng = Prng::from_seed(11);
        let bad = devices.len() - 1;
        for _ in 0..4000 {
            let groups = 4 << 20;
            devices[bad].rot(groups + prng.below(40 << 20), 1 << prng.below(8));
        }
        let all: Vec<usize> = (0..devices.len()).collect();
        let first = reopened(&devices, &all);
        let pool = open(&first).expect("it was closed");
        pool.devices().scrub().expect("there are several");
        finish(&pool);
        assert!(pool.devices().scrub_report().expect("one").repaired > 10);
        let end = first[0].timeline().now();
        drop(pool);
        for _ in 0..80 {
            let second = devices_of(cut(&first, prng.below(end + 1), &mut prng));
            let pool = open(&second).expect("it opens after a cut");
            pool.tick().expect("nothing fails");
            cuts += 1;
            match pool.devices().scrub_report() {
                Some(report) => went_on += usize::from(report.read_before > 0),
                None => _ = pool.devices().scrub().expect("there are several"),
            }
            finish(&pool);
            assert_eq!(
                unmended(&pool.devices().scrub_report().expect("one")),
                NOTHING,
                "{layout:?}"
            );
            pool.devices().scrub().expect("there are several");
            finish(&pool);
            let again = pool.devices().scrub_report().expect("one");
            assert_eq!((again.repaired, unmended(&again)), (0, NOTHING), "{layout:?}: {again:?}");
            pool.close().expect("nothing fails");
            drop(pool);
            let left = reopened(&second, &all_but(devices.len(), 0));
            let pool = open(&left).expect("all but one are enough");
            for number in 0..FILES {
                let found = get(&pool, &format!("file{number}"));
                assert!(found == Some(content(number, FILE_BYTES)), "{layout:?}: file{number}");
            }
        }
    }
    assert!(went_on > 20, "{went_on} of {cuts} went on");
    println!("{cuts} cuts, {went_on} went on behind the start");
}

/// Goal: a scrub that was interrupted does not go on without the member that it needs, tells why
/// when it is asked to, and begins by itself once that is back.
#[test]
fn a_scrub_waits_for_a_member_that_is_away() {
    for (devices, layout) in both() {
        let pool = open(&devices).expect("all are there");
        pool.devices().scrub().expect("there are several");
        for _ in 0..8 {
            pool.tick().expect("nothing fails");
        }
        pool.close().expect("nothing fails");
        drop(pool);
        let left = reopened(&devices, &all_but(devices.len(), 1));
        let pool = open(&left).expect("all but one are enough");
        pool.tick().expect("nothing fails");
        assert_eq!(pool.devices().scrub_report(), None, "{layout:?}");
        if layout == Layout::Mirror {
            let refused = pool.devices().scrub().expect_err("a member is away");
            assert!(matches!(refused, ScrubError::Alone), "{refused}");
        }
        put(&pool, "file0", &content(9, 3000)).expect("there is room");
        pool.close().expect("nothing fails");
        drop(pool);
        let mut back = reopened(&left, &(0..left.len()).collect::<Vec<_>>());
        back.insert(1, reopened(&devices, &[1]).remove(0));
        let images = back.iter().map(|device| device.image()).collect();
        let back = devices_of(images);
        let pool = open(&back).expect("all are there");
        for _ in 0..200 {
            pool.tick().expect("nothing fails");
            if states(&pool).iter().all(|state| *state == MemberState::Online) {
                break;
            }
        }
        pool.tick().expect("nothing fails");
        let report = pool.devices().scrub_report().expect("it begins by itself");
        // What came back was not held against the others.
        assert_eq!(report.read_before, 0, "{layout:?}: {report:?}");
        finish(&pool);
    }
}

/// Goal: while a member is away a scrub that is under way compares nothing with nothing: it waits,
/// says why, and goes on by itself; what has come back is held against the others from the start.
/// Method: a member fails in the middle and returns, having missed a little; bits in front of where
/// the scrub was turn over on it meanwhile.
#[test]
fn a_member_that_goes_in_a_scrub_is_held_against_the_others_when_it_is_back() {
    for (devices, layout) in both() {
        let pool = open(&devices).expect("all are there");
        pool.devices().scrub().expect("there are several");
        for _ in 0..4 {
            pool.tick().expect("nothing fails");
        }
        let before = pool.devices().scrub_report().expect("one").read_bytes;
        assert!(!is_done(&pool) && before > 8 << 20, "{layout:?}: {before}");
        pool.devices().fail_member(1).expect("the others have all");
        for _ in 0..50 {
            pool.tick().expect("nothing fails");
        }
        let report = pool.devices().scrub_report().expect("one");
        assert!(!report.is_done && report.waits.is_some(), "{layout:?}: {report:?}");
        assert_eq!(report.read_bytes, before, "{layout:?}");
        put(&pool, "meanwhile", &content(3, 5000)).expect("there is room");
        let groups = pool.status().geometry.groups_offset;
        for page in 0..1500 {
            devices[1].rot(groups + page * 4096 + 100, 8);
        }
        pool.devices().return_member_in(1).expect("it is there");
        finish(&pool);
        let report = pool.devices().scrub_report().expect("one");
        assert!(report.waits.is_none() && unmended(&report) == NOTHING, "{layout:?}: {report:?}");
        pool.devices().scrub().expect("all are there");
        finish(&pool);
        let again = pool.devices().scrub_report().expect("one");
        assert_eq!((again.repaired, unmended(&again)), (0, NOTHING), "{layout:?}: {again:?}");
    }
}
