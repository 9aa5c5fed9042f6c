//! A member that was away comes back and gets what it missed, and nothing else: whatever was not
//! durable on it when it went, whenever the power goes, and if it goes again meanwhile.

use std::sync::Arc;

use engine::Pool;
use engine::api::FileSystem;
use format::members::MemberState;
use format::missed::{StaleParts, part_bytes};
use runtime::prng::Prng;
use storage::device::sim::{Fault, FaultPlan, Image, SimDevice, SimOptions};
use storage::device::{DeviceError, IoPurpose, RequestKind, SharedBytes, SharedDevice};
use storage::volume::{MemberSlot, ReturnError, Volume, VolumeDevices};

use super::raid5::{all_but, content, new_raid5};
use super::rebuild::{open, place_of, states};
use super::{Devices, devices_of, get, new_mirror, put, reopened, shared};

/// The slot of the member that goes and comes back.
pub(super) const AWAY: usize = 1;

/// Small ones lie in the log for a while, large ones are written in stripes at once.
fn length_of(number: u8) -> usize {
    if number.is_multiple_of(2) { 3_000 } else { 90_000 }
}

pub(super) fn write(pool: &Pool, number: u8) {
    let content = content(number, length_of(number));
    put(pool, &format!("f{number}"), &content).expect("there is room");
}

pub(super) fn verify(pool: &Pool, numbers: std::ops::Range<u8>, what: &str) {
    for number in numbers {
        let found = get(pool, &format!("f{number}"));
        let is_it = found == Some(content(number, length_of(number)));
        assert!(is_it, "{what}: file {number} is another");
    }
}

pub(super) fn grounds() -> [(usize, Devices); 3] {
    [(2, new_mirror(2)), (3, new_mirror(3)), (4, new_raid5(4))]
}

fn again(devices: &Devices) -> Devices {
    reopened(devices, &(0..devices.len()).collect::<Vec<_>>())
}

/// Lets jobs work until all members are online; one that has failed is brought back.
pub(super) fn finish(pool: &Pool, what: &str) {
    for _ in 0..1000 {
        pool.tick().unwrap_or_else(|error| panic!("{what}: {error}"));
        let states = states(pool);
        let failed = states.iter().position(|state| *state == MemberState::Failed);
        match failed {
            Some(slot) if !states.contains(&MemberState::Joining) => {
                pool.devices()
                    .return_member_in(slot)
                    .unwrap_or_else(|error| panic!("{what}: {error}"));
            }
            Some(_) | None => {}
        }
        if states.iter().all(|state| *state == MemberState::Online) {
            return;
        }
    }
    panic!("{what}: it does not end: {:?} {:?}", states(pool), pool.jobs());
}

/// Verifies what `devices`, which were closed or cut off, hold without any one of them.
pub(super) fn verify_each(devices: &Devices, numbers: std::ops::Range<u8>, what: &str) {
    for lost in 0..devices.len() {
        let what = format!("{what}, without {lost}");
        let left = reopened(devices, &all_but(devices.len(), lost));
        let pool = open(&left).unwrap_or_else(|error| panic!("{what}: {error}"));
        verify(&pool, numbers.clone(), &what);
        pool.close().unwrap_or_else(|error| panic!("{what}: {error}"));
        drop(pool);
        let opening = VolumeDevices { devices: shared(&left), accepts_missing: false };
        let (volume, _) = Volume::open_members(opening).expect("it was open a moment ago");
        let report =
            check::run(Arc::clone(volume.device()), check::CheckOptions::default(), &mut |_| ());
        assert!(report.is_clean(), "{what}: {}", report.to_text());
    }
}

fn set_paused(pool: &Pool, is_paused: bool) {
    for job in pool.jobs() {
        pool.pause_job(job.id, is_paused);
    }
}

fn missed(pool: &Pool) -> StaleParts {
    pool.devices().members()[AWAY].member.missed.expect("it was whole when it went")
}

/// Goal: what is rebuilt is the fixed regions and the pieces that have a part which was written
/// while the member was away, and that is all of them.
#[test]
fn only_changes_are_rebuilt() {
    for (count, base) in grounds() {
        let what = format!("{count} members");
        let devices = again(&base);
        let pool = open(&devices).expect("it is new");
        (1..6).for_each(|number| write(&pool, number));
        pool.checkpoint().expect("nothing fails");
        pool.devices().fail_member(AWAY).expect("the others have all");
        assert_eq!(missed(&pool), StaleParts::NONE, "{what}: all was durable on it");
        (6..8).for_each(|number| write(&pool, number));
        let parts = missed(&pool);
        let geometry = pool.status().geometry;
        assert!(parts.count() > 0);
        pool.devices().return_member_in(AWAY).expect("it is there");
        finish(&pool, &what);
        let report = pool.devices().rebuild_report().expect("there was one");
        let fixed = geometry.groups_offset;
        let largest = (1 << 20).max(geometry.segment_bytes());
        // Each part may touch one piece more than it fills.
        let most = fixed + (u64::from(parts.count()) + 1) * (part_bytes(&geometry) + 2 * largest);
        assert!(report.made_bytes <= most, "{what}: {report:?}, {} parts", parts.count());
        assert!(report.passed_over_bytes > 0, "{what}: {report:?}");
        assert!(report.made_bytes < geometry.device_bytes * 3 / 4, "{what}: {report:?}");
        assert_eq!(pool.devices().members()[AWAY].member.missed, None);
        verify(&pool, 1..8, &what);
        pool.close().expect("nothing fails");
        drop(pool);
        verify_each(&devices, 1..8, &what);
    }
}

/// Goal: what a member had answered and lost, for it was not flushed, is rebuilt too. Method: its
/// flush fails, and what comes back has what was durable alone.
#[test]
fn what_was_not_durable_on_it_when_it_went_is_rebuilt() {
    for (count, base) in grounds() {
        for nth in 0..4 {
            let what = format!("{count} members, flush {nth}");
            let devices = again(&base);
            let pool = open(&devices).expect("it is new");
            write(&pool, 1);
            let faults = vec![Fault::Fail { kind: RequestKind::Flush, nth, persists: true }];
            devices[AWAY].arm(FaultPlan { faults });
            let mut number = 1;
            while states(&pool)[AWAY] == MemberState::Online {
                number += 1;
                write(&pool, number);
                assert!(number < 40, "{what}: it does not fail");
                if number.is_multiple_of(3) {
                    pool.checkpoint().expect("the others take it");
                }
            }
            let durable = devices[AWAY].recording().point_at(u64::MAX).durable().clone();
            let options = SimOptions { name: "/sim/back".to_owned(), ..SimOptions::default() };
            let back = SimDevice::open(durable, options);
            let shared_back: SharedDevice = Arc::<SimDevice>::clone(&back);
            pool.devices()
                .return_member(shared_back)
                .unwrap_or_else(|error| panic!("{what}: {error}"));
            finish(&pool, &what);
            verify(&pool, 1..number + 1, &what);
            pool.close().expect("nothing fails");
            drop(pool);
            for lost in (0..count).filter(|lost| *lost != AWAY) {
                let what = format!("{what}, without {lost}");
                let others = (0..count).filter(|at| *at != lost && *at != AWAY);
                let mut left: Vec<Image> = others.map(|at| devices[at].image()).collect();
                left.push(back.image());
                let pool = open(&devices_of(left));
                let pool = pool.unwrap_or_else(|error| panic!("{what}: {error}"));
                verify(&pool, 1..number + 1, &what);
            }
        }
    }
}

/// Goal: nobody reads a member that has come back before it has what it missed.
#[test]
fn a_member_that_comes_back_is_not_believed_before_it_has_all() {
    for (count, base) in grounds() {
        let what = format!("{count} members");
        let devices = again(&base);
        let pool = open(&devices).expect("it is new");
        (1..6).for_each(|number| write(&pool, number));
        pool.tick().expect("nothing fails");
        pool.devices().fail_member(AWAY).expect("the others have all");
        (1..6).for_each(|number| write(&pool, number + 10));
        pool.close().expect("nothing fails");
        drop(pool);
        // It is there at the open, and nothing of it may be read before it is whole.
        let devices = again(&devices);
        let pool = open(&devices).expect("the others have all");
        pool.devices().return_member_in(AWAY).expect("it is there");
        pool.tick().expect("nothing fails");
        set_paused(&pool, true);
        if states(&pool)[AWAY] == MemberState::Joining {
            let before = devices[AWAY].counts().reads();
            verify(&pool, 1..6, &what);
            verify(&pool, 11..16, &what);
            assert_eq!(devices[AWAY].counts().reads(), before, "{what}: it was read");
        }
        set_paused(&pool, false);
        finish(&pool, &what);
        verify(&pool, 1..6, &what);
        drop(pool);
        verify_each(&again(&devices), 11..16, &what);
    }
}

/// Goal: a member that goes again while it comes back has missed what it missed before, too.
#[test]
fn one_that_goes_again_meanwhile_forgets_nothing() {
    for (count, base) in grounds() {
        for steps in 0..5 {
            let what = format!("{count} members, {steps} steps");
            let devices = again(&base);
            let pool = open(&devices).expect("it is new");
            pool.tick().expect("nothing fails");
            (1..4).for_each(|number| write(&pool, number));
            pool.devices().fail_member(AWAY).expect("the others have all");
            (4..7).for_each(|number| write(&pool, number));
            let first = missed(&pool);
            pool.devices().return_member_in(AWAY).expect("it is there");
            for _ in 0..steps {
                pool.tick().expect("nothing fails");
            }
            let was_joining = states(&pool)[AWAY] == MemberState::Joining;
            pool.devices().fail_member(AWAY).expect("the others have all");
            if was_joining {
                assert!(missed(&pool).has_all(&first), "{what}: what it missed is forgotten");
            }
            write(&pool, 7);
            // And once more, by an end and an open without it.
            pool.close().expect("nothing fails");
            drop(pool);
            let others = reopened(&devices, &all_but(count, AWAY));
            let pool = open(&others).expect("the others have all");
            write(&pool, 8);
            pool.close().expect("nothing fails");
            drop(pool);
            let mut images: Vec<Image> = others.iter().map(|device| device.image()).collect();
            images.insert(AWAY, devices[AWAY].image());
            let devices = devices_of(images);
            let pool = open(&devices).expect("all are there");
            finish(&pool, &what);
            verify(&pool, 1..9, &what);
            pool.close().expect("nothing fails");
            drop(pool);
            verify_each(&devices, 1..9, &what);
        }
    }
}

/// Goal: a member that was missing, and is there at an open, comes back by itself.
#[test]
fn a_member_that_was_missing_comes_back_at_an_open() {
    for (count, base) in grounds() {
        let what = format!("{count} members");
        let devices = again(&base);
        let pool = open(&devices).expect("it is new");
        (1..4).for_each(|number| write(&pool, number));
        pool.close().expect("nothing fails");
        drop(pool);
        let others = reopened(&devices, &all_but(count, AWAY));
        let pool = open(&others).expect("the others have all");
        assert_eq!(states(&pool)[AWAY], MemberState::Missing);
        (4..7).for_each(|number| write(&pool, number));
        pool.close().expect("nothing fails");
        drop(pool);
        let mut images: Vec<Image> = others.iter().map(|device| device.image()).collect();
        images.insert(AWAY, devices[AWAY].image());
        let devices = devices_of(images);
        let pool = open(&devices).expect("all are there");
        assert_eq!(states(&pool)[AWAY], MemberState::Missing, "{what}: it is not believed");
        for _ in 0..200 {
            pool.tick().expect("nothing fails");
        }
        assert_eq!(states(&pool), vec![MemberState::Online; count], "{what}");
        let report = pool.devices().rebuild_report().expect("there was one");
        assert!(report.passed_over_bytes > 0, "{what}: {report:?}");
        pool.close().expect("nothing fails");
        drop(pool);
        verify_each(&devices, 1..7, &what);
    }
}

/// Goal: what is not the member that went, or may have its own writes, is refused, and nothing is
/// written to it.
#[test]
fn what_does_not_belong_is_refused() {
    let devices = again(&new_mirror(2));
    let pool = open(&devices).expect("it is new");
    write(&pool, 1);
    assert!(matches!(
        pool.devices().return_member_in(AWAY),
        Err(ReturnError::NotAway { slot: AWAY })
    ));
    pool.close().expect("nothing fails");
    drop(pool);
    // Each half is opened alone, and goes on.
    let halves = [reopened(&devices, &[0]), reopened(&devices, &[1])];
    for half in &halves {
        let pool = open(half).expect("one of two is enough");
        write(&pool, 2);
        pool.close().expect("nothing fails");
    }
    let pool = open(&halves[0]).expect("one of two is enough");
    let device = |devices: &Devices| -> SharedDevice { Arc::<SimDevice>::clone(&devices[0]) };
    let refused = |other: SharedDevice| {
        let error = pool.devices().return_member(other).expect_err("it does not belong");
        error.to_string()
    };
    let before = halves[1][0].counts().writes();
    let apart = refused(device(&halves[1]));
    assert!(apart.contains("opened apart"), "{apart}");
    assert_eq!(halves[1][0].counts().writes(), before, "nothing is written to it");
    let blank = refused(device(&devices_of(vec![Image::blank(super::POOL_BYTES)])));
    assert!(blank.contains("not a pool"), "{blank}");
    let raid5 = refused(device(&new_raid5(3)));
    assert!(raid5.contains("different pools") || raid5.contains("larger"), "{raid5}");
    assert!(matches!(
        pool.devices().return_member_in(AWAY),
        Err(ReturnError::NotThere { slot: AWAY })
    ));
    assert!(matches!(pool.devices().return_member_in(0), Err(ReturnError::NotAway { slot: 0 })));
}

/// Goal: a write that began while a member was away, and ends when it has come back, did not go to
/// it, and is among what it missed.
#[test]
fn a_write_in_flight_is_missed_too() {
    let devices = again(&new_mirror(2));
    let opening = VolumeDevices { devices: shared(&devices), accepts_missing: false };
    let (volume, superblock) = Volume::open_members(opening).expect("a mirror");
    let members = volume.members().expect("there are two");
    let error = DeviceError::Failed { device: "d1".to_owned() };
    members.fail(AWAY, &members.view()[AWAY], error).expect("the other has all");
    let place = superblock.geometry.group_layout().root_place();
    let offset = superblock.geometry.device_offset(place, 1).expect("in a group");
    let piece = volume.membership().piece_at(offset).expect("in the pool");
    let bytes = volume.read_page(IoPurpose::Home, place).expect("it can be read");
    let before = devices[AWAY].counts().writes();
    let write = volume.submit_write(IoPurpose::Home, place, vec![SharedBytes::from(bytes)]);
    assert_eq!(devices[AWAY].counts().writes(), before, "it does not go to it");
    volume.membership().begin_return_of(AWAY).expect("it is there");
    write.wait().expect("nothing fails");
    assert!(volume.membership().must_rebuild(AWAY, &piece), "it is rebuilt");
}

/// Goal: the answer to a write from before a member went away, collected when the member is back,
/// does not fail it again: the write is in the map of what the member has missed.
#[test]
fn an_answer_of_before_it_went_fails_no_member_that_is_back() {
    let devices = again(&new_mirror(2));
    let opening = VolumeDevices { devices: shared(&devices), accepts_missing: false };
    let (volume, _) = Volume::open_members(opening).expect("a mirror");
    let members = volume.members().expect("there are two");
    let before = members.view();
    let fail = |seen: &MemberSlot| {
        let error = DeviceError::Failed { device: "d1".to_owned() };
        members.fail(AWAY, seen, error).expect("the other has all");
    };
    fail(&before[AWAY]);
    assert_eq!(members.view()[AWAY].state, MemberState::Failed);
    volume.membership().begin_return_of(AWAY).expect("it is there");
    fail(&before[AWAY]);
    assert_eq!(members.view()[AWAY].state, MemberState::Joining, "it gets its writes");
    fail(&members.view()[AWAY]);
    assert_eq!(members.view()[AWAY].state, MemberState::Failed);
}

/// What a cut left, with the member that was away or without it for another life; it comes back,
/// and everything is there without any one.
fn survive(images: &[Image], last: u8, is_away_first: bool, what: &str) {
    let mut images = images.to_vec();
    if is_away_first {
        let others: Vec<Image> =
            (0..images.len()).filter(|at| *at != AWAY).map(|at| images[at].clone()).collect();
        let others = devices_of(others);
        let pool = open(&others).unwrap_or_else(|error| panic!("{what}, degraded: {error}"));
        verify(&pool, 1..last + 1, what);
        write(&pool, 40);
        drop(pool);
        let mut left: Vec<Image> = others.iter().map(|device| device.image()).collect();
        left.insert(AWAY, images[AWAY].clone());
        images = left;
    }
    let devices = devices_of(images);
    let pool = open(&devices).unwrap_or_else(|error| panic!("{what}: {error}"));
    finish(&pool, what);
    verify(&pool, 1..last + 1, what);
    if is_away_first {
        verify(&pool, 40..41, what);
    }
    pool.close().unwrap_or_else(|error| panic!("{what}: {error}"));
    drop(pool);
    verify_each(&devices, 1..last + 1, what);
}

/// Goal: a cut at any event, before the member goes, while it is away, while it comes back and
/// afterwards, each member keeping any subset of what it had not flushed, loses nothing; nor if the
/// member is away for a life more.
#[test]
fn a_cut_at_any_moment_loses_nothing() {
    let mut judged = 0;
    for (count, base) in [(2, new_mirror(2)), (3, new_raid5(3))] {
        let devices = again(&base);
        let pool = open(&devices).expect("it is new");
        pool.tick().expect("nothing fails");
        let mut acknowledged = Vec::new();
        let now = || devices[0].time();
        let step = |number: u8, acknowledged: &mut Vec<u64>| {
            write(&pool, number);
            acknowledged.push(now());
        };
        let begun = now();
        (1..4).for_each(|number| step(number, &mut acknowledged));
        pool.devices().fail_member(AWAY).expect("the others have all");
        (4..7).for_each(|number| step(number, &mut acknowledged));
        pool.checkpoint().expect("nothing fails");
        pool.devices().return_member_in(AWAY).expect("it is there");
        for number in 7..10 {
            pool.tick().expect("nothing fails");
            step(number, &mut acknowledged);
        }
        finish(&pool, "the run");
        step(10, &mut acknowledged);
        drop(pool);
        let recordings: Vec<_> = devices.iter().map(|device| device.recording()).collect();
        let mut prng = Prng::from_seed(9);
        for (turn, time) in (begun..=devices[0].time()).enumerate() {
            let state = turn % 4;
            let image = |at: usize, prng: &mut Prng| match state {
                0 => recordings[at].point_at(time).durable().clone(),
                _ => recordings[at].point_at(time).image(prng).image,
            };
            let images: Vec<Image> = (0..count).map(|at| image(at, &mut prng)).collect();
            let last = acknowledged.iter().filter(|at| **at <= time).count();
            let last = u8::try_from(last).expect("few");
            let what = format!("{count} members, cut at {time}, state {state}");
            survive(&images, last, turn % 2 == 1, &what);
            judged += 1;
        }
    }
    println!("{judged} cuts");
    assert!(judged > 200, "{judged}");
}

/// Goal: what no other member gives, a member that was away may have itself, and keeps. Method: it
/// goes, a sector goes bad elsewhere, something else is written to the same segment, and it is
/// back.
#[test]
fn what_it_alone_has_is_kept() {
    let devices = new_raid5(4);
    let pool = open(&devices).expect("it is new");
    (1..3).for_each(|number| write(&pool, number));
    pool.sync().expect("nothing fails");
    let blocks = content(1, length_of(1));
    let elsewhere = blocks.chunks_exact(16 << 10).map(|block| place_of(&pool, &devices, block));
    let elsewhere: Vec<_> = elsewhere.filter(|(member, _)| *member != AWAY).collect();
    let (member, offset) = *elsewhere.first().expect("most blocks are on others");
    pool.devices().fail_member(AWAY).expect("the others have all");
    let faults = vec![Fault::BadSector { offset }];
    devices[member].arm(FaultPlan { faults });
    (3..9).for_each(|number| write(&pool, number));
    pool.sync().expect("nothing fails");
    pool.devices().return_member_in(AWAY).expect("it is there");
    finish(&pool, "a bad sector elsewhere");
    let report = pool.devices().rebuild_report().expect("there was one");
    assert_eq!(report.lost, 0, "{report:?}");
    verify(&pool, 1..9, "a bad sector elsewhere");
}
