//! A raid5 has a member less while the pool is in use, and whatever happens meanwhile.

use engine::api::{Caller, FileSystem};
use engine::{DiskGroupError, Pool, PoolCreateOptions};
use format::members::{Layout, MemberState};
use runtime::clock::ManualClock;
use runtime::prng::Prng;
use storage::device::RequestKind;
use storage::device::sim::{Fault, FaultPlan, Image};
use storage::volume::NarrowError;

use super::groups::{check_all, group_of, groups};
use super::reshape::{
    FILE_BYTES, MEMBER_BYTES, RAID5, Run, Versions, capacity, content, data_of, device, finish,
    moved, scrub, states, verify, versions_of, write,
};
use super::{Devices, cut_at, devices_of, open, put, reopened, shared};

/// Files: they are written when there is no room in front any more.
pub(super) const FILES: usize = 14;

fn filled(width: usize) -> Devices {
    filled_as(RAID5, width)
}

/// Returns the devices of a closed pool on `width` members with files in its last allocation
/// groups.
pub(super) fn filled_as(layout: Layout, width: usize) -> Devices {
    let has_four = data_of(layout, width) == 4;
    let devices = devices_of(vec![Image::blank(MEMBER_BYTES); width]);
    let mut options = PoolCreateOptions::new(MEMBER_BYTES, [5; 64]);
    options.geometry.journal_bytes = Some(1 << 20);
    options.geometry.group_bytes = Some(4 << 20);
    options.geometry.segment_bytes = Some(if has_four { 512 << 10 } else { 480 << 10 });
    Pool::create_on(&shared(&devices), layout, &ManualClock::new(), &options).expect("it fits");
    let pool = open(&devices).expect("a new pool opens");
    let others = if has_four { 58 } else { 42 };
    let name = |number: usize| format!("g{number}");
    for number in 0..others {
        put(&pool, &name(number), &content(number, 0)).expect("there is room");
    }
    (0..FILES).for_each(|name| write(&pool, name, 0));
    for number in 0..others {
        let name = name(number);
        pool.unlink(&Caller::root(), pool.root(), name.as_bytes(), None).expect("it is there");
    }
    pool.close().expect("nothing fails");
    drop(pool);
    reopened(&devices, &(0..width).collect::<Vec<_>>())
}

/// Returns the devices but the one at `out`.
pub(super) fn without(devices: &Devices, out: usize) -> Devices {
    let left: Vec<usize> = (0..devices.len()).filter(|at| *at != out).collect();
    reopened(devices, &left)
}

/// Goal: a raid5 loses any of its members while it is read and written; what was there and what was
/// written meanwhile is all there, it is smaller, and can do without any of those that are left.
#[test]
fn a_raid5_loses_a_member_while_it_is_in_use() {
    for (width, out) in [(4, 0), (4, 2), (4, 3), (5, 1), (5, 4)] {
        let what = format!("a raid5 of {width} without {out}");
        let devices = filled(width);
        let pool = open(&devices).expect("it was closed");
        pool.tick().expect("nothing fails");
        let before = capacity(&pool);
        pool.devices().narrow(out).unwrap_or_else(|error| panic!("{what}: {error}"));
        let during = capacity(&pool);
        assert!(during < before, "{what}: what is given up is no room any more");
        let mut versions = versions_of(FILES);
        let (mut seen, mut was_emptied) = (Vec::new(), false);
        for round in 1..800 {
            if pool.devices().reshaping().is_none() && pool.devices().given_up().is_none() {
                break;
            }
            seen.extend(moved(&pool));
            was_emptied |= pool.devices().given_up().is_some();
            if round % 7 == 0 {
                let name = round / 7 % FILES;
                write(&pool, name, round);
                versions.insert(name, round);
            }
            verify(&pool, &versions, &what);
            pool.tick().expect("nothing fails");
        }
        finish(&pool);
        seen.dedup();
        seen.reverse();
        assert!(seen.len() > 4 && seen.is_sorted(), "{what}: {seen:?}");
        assert!(was_emptied, "{what}: its last allocation groups were given up");
        let online = states(&pool).iter().filter(|state| **state == MemberState::Online).count();
        assert_eq!(online, width - 1, "{what}: {:?}", states(&pool));
        assert_eq!(groups(&pool)[0].slots.len(), width - 1, "{what}");
        let after = capacity(&pool);
        let data = |width: usize| u64::try_from(width - 1).expect("small");
        assert!(after < before * data(width - 1) / data(width) + before / 20, "{what}: {after}");
        assert!(after > before * data(width - 1) / data(width) * 4 / 5, "{what}: {after}");
        verify(&pool, &versions, &what);
        scrub(&pool, &what);
        // All that it has can be used.
        let free = usize::try_from(pool.status().space.available * 4096).expect("small");
        for name in FILES..FILES + free / FILE_BYTES * 9 / 10 {
            write(&pool, name, 1);
            versions.insert(name, 1);
        }
        scrub(&pool, &what);
        pool.close().expect("nothing fails");
        drop(pool);
        let left = without(&devices, out);
        check_all(&left, &what);
        assert!(open(&reopened(&devices, &[out])).is_err(), "{what}: it is of no pool");
        for lost in 0..width - 1 {
            let what = format!("{what} and without {lost}");
            let left = without(&left, lost);
            let pool = open(&left).unwrap_or_else(|error| panic!("{what}: {error}"));
            verify(&pool, &versions, &what);
            pool.close().expect("nothing fails");
            drop(pool);
            check_all(&left, &what);
        }
        // And it can get one more again.
        let again = reopened(&left, &(0..width - 1).collect::<Vec<_>>());
        let pool = open(&again).expect("it was closed");
        let other = devices_of(vec![Image::blank(MEMBER_BYTES)]);
        pool.devices().widen(usize::from(out == 0), device(&other, 0), [78; 16]).expect("it fits");
        finish(&pool);
        verify(&pool, &versions, &what);
        scrub(&pool, &what);
        pool.close().expect("nothing fails");
    }
}

/// Goal: what an allocation group needs for itself is nothing in use, though it fills more than one
/// segment.
#[test]
fn fronts_of_several_segments_are_given_up() {
    let devices = devices_of(vec![Image::blank(2 * MEMBER_BYTES); 4]);
    let mut options = PoolCreateOptions::new(2 * MEMBER_BYTES, [5; 64]);
    options.geometry.journal_bytes = Some(1 << 20);
    options.geometry.group_bytes = Some(24 << 20);
    options.geometry.segment_bytes = Some(96 << 10);
    Pool::create_on(&shared(&devices), RAID5, &ManualClock::new(), &options).expect("it fits");
    let pool = open(&devices).expect("a new pool opens");
    assert!(pool.status().geometry.front_segments(0) > 1);
    let mut files = 0;
    while put(&pool, &format!("f{files}"), &content(files, 0)).is_ok() {
        files += 1;
    }
    for name in (0..files * 4 / 5).chain([files]) {
        let name = format!("f{name}");
        let _ = pool.unlink(&Caller::root(), pool.root(), name.as_bytes(), None);
    }
    pool.close().expect("nothing fails");
    drop(pool);
    let devices = reopened(&devices, &[0, 1, 2, 3]);
    let pool = open(&devices).expect("it was closed");
    pool.tick().expect("nothing fails");
    pool.devices().narrow(2).expect("there is room");
    assert!(left(&pool) > 1 << 20);
    finish(&pool);
    let versions: Versions = (files * 4 / 5..files).map(|name| (name, 0)).collect();
    verify(&pool, &versions, "afterwards");
    scrub(&pool, "afterwards");
    pool.close().expect("nothing fails");
    drop(pool);
    check_all(&without(&devices, 2), "afterwards");
}

/// Returns a pool on `width` members that loses the one in slot `out`, with writes meanwhile.
pub(super) fn narrowed(layout: Layout, width: usize, out: usize) -> Run {
    let devices = filled_as(layout, width);
    let pool = open(&devices).expect("it was closed");
    pool.tick().expect("nothing fails");
    let begun = devices[0].time();
    pool.devices().narrow(out).expect("there is room");
    let mut acknowledged = Vec::new();
    for round in 1..4000 {
        if pool.devices().reshaping().is_none() && pool.devices().given_up().is_none() {
            break;
        }
        if round % 5 == 0 {
            let name = round / 5 % FILES;
            let (caller, root) = (Caller::root(), pool.root());
            if round % 10 == 0 {
                let _ = pool.unlink(&caller, root, format!("f{name}").as_bytes(), None);
            }
            write(&pool, name, round);
            acknowledged.push((devices[0].time(), name, round));
        }
        pool.tick().expect("nothing fails");
    }
    let ended = devices[0].time();
    write(&pool, 0, 5000);
    acknowledged.push((devices[0].time(), 0, 5000));
    drop(pool);
    Run { devices, files: FILES, acknowledged, begun, ended }
}

/// Goal: a cut at any moment leaves all that was acknowledged, whichever member is missing then;
/// the move goes on once all are there, and comes to its end.
#[test]
fn a_cut_at_any_moment_loses_nothing() {
    for (width, out, step) in [(4, 1, 23), (5, 4, 41)] {
        let run = narrowed(RAID5, width, out);
        let recordings: Vec<_> = run.devices.iter().map(|device| device.recording()).collect();
        let mut prng = Prng::from_seed(3);
        let (mut emptied, mut under_way, mut states_seen, mut returned) = (0, 0, 0, 0);
        let mut ended_without = 0;
        let end = run.devices[0].time();
        let first = run.begun..run.begun + 20;
        let last = run.ended - 40..run.ended;
        let times = first.chain((run.begun + 20..run.ended - 40).step_by(step)).chain(last);
        for (turn, time) in times.chain([run.ended, end]).enumerate() {
            let images: Vec<Image> = cut_at(&recordings, time, false, &mut prng);
            let versions = run.versions_at(time);
            // At the end nothing is on the one that goes, and it is not waited for.
            let one = if time + 40 >= run.ended { out } else { turn % images.len() };
            for lost in [None, Some(one)] {
                let what = format!(
                    "{width}: cut at {time} of {} to {}, without {lost:?}",
                    run.begun, run.ended
                );
                let mut found = devices_of(images.clone());
                if let Some(lost) = lost {
                    found.remove(lost);
                }
                let found = super::groups::labelled(&found);
                // As it lies, before anything is written.
                let pool = open(&found).unwrap_or_else(|error| panic!("{what}: {error}"));
                verify(&pool, &versions, &what);
                emptied += usize::from(pool.devices().given_up().is_some());
                under_way += usize::from(moved(&pool).is_some());
                states_seen += 1;
                if lost.is_none() {
                    finish(&pool);
                    verify(&pool, &versions, &what);
                } else if let Some(lost) = lost {
                    if lost == out && moved(&pool) == Some(0) {
                        finish(&pool);
                        assert_eq!(groups(&pool)[0].slots.len(), width - 1, "{what}");
                        ended_without += 1;
                    }
                    (0..3).for_each(|_| pool.tick().expect("nothing fails"));
                    // It comes back with what it had: all that was moved since it has missed.
                    let back = devices_of(vec![images[lost].clone()]);
                    if pool.devices().return_member(device(&back, 0)).is_ok() {
                        while states(&pool).contains(&MemberState::Joining) {
                            pool.tick().expect("nothing fails");
                        }
                        finish(&pool);
                        verify(&pool, &versions, &what);
                        scrub(&pool, &what);
                        returned += 1;
                        drop(pool);
                        continue;
                    }
                }
                let is_narrow = groups(&pool)[0].slots.len() < width;
                pool.close().unwrap_or_else(|error| panic!("{what}: {error}"));
                drop(pool);
                let found = if is_narrow { super::groups::labelled(&found) } else { found };
                check_all(&found, &what);
            }
        }
        println!(
            "{width}: {states_seen} states, {emptied} before, {under_way} in the middle, \
             {returned} returned, {ended_without} ended without it"
        );
        assert!(ended_without > 0, "{width}");
        assert!(emptied > 5 && under_way > 40 && returned > 20, "{width}: {under_way}");
    }
}

/// Goal: a member that fails in the middle stops the move and nothing else; when it has been
/// replaced the move goes on.
#[test]
fn a_member_that_fails_meanwhile_is_waited_for() {
    let mut stood = 0;
    for (lost, nth) in (0..4).flat_map(|lost| [12, 60, 130].map(|nth| (lost, nth))) {
        let what = format!("{lost} fails at its write {nth}");
        let devices = filled(4);
        let pool = open(&devices).expect("it was closed");
        pool.tick().expect("nothing fails");
        let faults = vec![Fault::Fail { kind: RequestKind::Write, nth, persists: true }];
        devices[lost].arm(FaultPlan { faults });
        pool.devices().narrow(1).expect("there is room");
        let is_under_way = |pool: &Pool| {
            pool.devices().reshaping().is_some() || pool.devices().given_up().is_some()
        };
        while is_under_way(&pool) && states(&pool)[lost] != MemberState::Failed {
            pool.tick().expect("nothing fails");
        }
        if !is_under_way(&pool) {
            continue;
        }
        let mut versions = versions_of(FILES);
        for name in 0..3 {
            write(&pool, name, 1);
            versions.insert(name, 1);
            pool.tick().expect("nothing fails");
        }
        for _ in 0..200 {
            pool.tick().expect("nothing fails");
        }
        assert!(pool.jobs().iter().all(|job| job.failure.is_none()), "{what}: {:?}", pool.jobs());
        let stands_at = moved(&pool);
        assert!(is_under_way(&pool), "{what}: nothing moves without it");
        verify(&pool, &versions, &what);
        let other = devices_of(vec![Image::blank(MEMBER_BYTES)]);
        pool.devices().replace_member(lost, device(&other, 0), [78; 16]).expect("it fits");
        stood += usize::from(stands_at.is_some());
        finish(&pool);
        let online = states(&pool).iter().filter(|state| **state == MemberState::Online).count();
        assert_eq!(online, 3, "{what}");
        verify(&pool, &versions, &what);
        scrub(&pool, &what);
        pool.close().expect("nothing fails");
    }
    assert!(stood > 2, "{stood} in the middle");
}

/// Returns how many bytes are in use of what is given up.
fn left(pool: &Pool) -> u64 {
    let jobs = pool.jobs();
    let progress = jobs.first().and_then(|job| job.progress).expect("it is under way");
    progress.total - progress.done
}

/// Returns the devices of a closed pool of a raid5 of three and one of four beside it, with data in
/// the last allocation groups of that; and how many files there are.
fn filled_beside() -> (Devices, usize) {
    let devices = devices_of(vec![Image::blank(MEMBER_BYTES); 7]);
    let mut options = PoolCreateOptions::new(MEMBER_BYTES, [5; 64]);
    options.geometry.journal_bytes = Some(1 << 20);
    options.geometry.group_bytes = Some(4 << 20);
    options.geometry.segment_bytes = Some(512 << 10);
    let first = shared(&devices[..3]);
    Pool::create_on(&first, RAID5, &ManualClock::new(), &options).expect("it fits");
    let pool = open(&devices[..3]).expect("a new pool opens");
    pool.devices().add_disk_group(&group_of(&devices, RAID5, &[3, 4, 5, 6])).expect("it fits");
    let mut files = 0;
    while put(&pool, &format!("f{files}"), &content(files, 0)).is_ok() {
        files += 1;
    }
    // The last of them lie behind, and stay.
    for name in (0..files * 2 / 3).chain([files]) {
        let name = format!("f{name}");
        let _ = pool.unlink(&Caller::root(), pool.root(), name.as_bytes(), None);
    }
    pool.close().expect("nothing fails");
    drop(pool);
    (reopened(&devices, &(0..7).collect::<Vec<_>>()), files)
}

/// Goal: what is written while allocation groups are given up goes to those that stay, names and
/// maps too; and one of a disk group beside the first can go as well.
#[test]
fn what_is_given_up_gets_nothing_new() {
    for out in [0, 3] {
        let (devices, files) = filled_beside();
        let pool = open(&devices).expect("it was closed");
        pool.tick().expect("nothing fails");
        pool.devices().narrow(3 + out).expect("there is room");
        let before = left(&pool);
        assert!(before > 1 << 20, "{before}");
        for name in files..files + 8 {
            write(&pool, name, 0);
        }
        for name in 0..200 {
            put(&pool, &format!("a longer name {name}"), &[7; 9000]).expect("there is room");
        }
        pool.checkpoint().expect("nothing fails");
        assert_eq!(left(&pool), before);
        finish(&pool);
        assert_eq!(groups(&pool)[1].slots.len(), 3, "{:?}", groups(&pool));
        let versions: Versions = (files * 2 / 3..files + 8).map(|name| (name, 0)).collect();
        verify(&pool, &versions, "afterwards");
        scrub(&pool, "afterwards");
        pool.close().expect("nothing fails");
        drop(pool);
        let devices = without(&devices, 3 + out);
        check_all(&devices, "afterwards");
        for lost in [0, 4] {
            let pool = open(&without(&devices, lost)).expect("it can do without one");
            verify(&pool, &versions, "without one");
        }
    }
}

/// Goal: what cannot end is refused before anything is changed, in words that say what to do.
#[test]
fn what_cannot_end_is_refused() {
    let refused = |pool: &Pool, slot: usize| -> DiskGroupError {
        let before = capacity(pool);
        let error = pool.devices().narrow(slot).expect_err("it cannot");
        assert!(
            pool.devices().given_up().is_none()
                && pool.devices().reshaping().is_none()
                && pool.jobs().is_empty()
        );
        assert_eq!(capacity(pool), before);
        error
    };
    let devices = filled(4);
    let pool = open(&devices).expect("it was closed");
    assert!(matches!(refused(&pool, 4), DiskGroupError::Narrow(NarrowError::NoSlot { slot: 4 })));
    let mut name = FILES;
    while put(&pool, &format!("f{name}"), &content(name, 0)).is_ok() {
        name += 1;
    }
    let error = refused(&pool, 1);
    let DiskGroupError::NoRoom { missing_bytes, .. } = error else { panic!("{error}") };
    assert!(missing_bytes > 1 << 20, "{missing_bytes}");
    // What is missing is what must go.
    let mut gone = 0;
    while gone < missing_bytes + (1 << 20) {
        name -= 1;
        let name = format!("f{name}");
        pool.unlink(&Caller::root(), pool.root(), name.as_bytes(), None).expect("it is there");
        gone += u64::try_from(FILE_BYTES).expect("small");
    }
    // Nobody has the files open then.
    pool.close().expect("nothing fails");
    drop(pool);
    let pool = open(&reopened(&devices, &[0, 1, 2, 3])).expect("it was closed");
    pool.tick().expect("nothing fails");
    pool.devices().narrow(1).expect("there is room now");
    let error = pool.devices().narrow(2).expect_err("one after the other");
    assert!(matches!(error, DiskGroupError::Narrow(NarrowError::Reshaped)), "{error}");
    let error = pool.devices().grow_disk_group(0).expect_err("it gets shorter").to_string();
    assert!(error.contains("losing a device"), "{error}");
    verify(&pool, &versions_of(FILES), "meanwhile");
    drop(pool);
    let devices = filled(4);
    let pool = open(&devices).expect("it was closed");
    pool.devices().fail_member(2).expect("the others have all");
    let error = refused(&pool, 1);
    let is_it = matches!(error, DiskGroupError::Narrow(NarrowError::Lacking { slot: 2, .. }));
    assert!(is_it, "{error}");
    drop(pool);
    let devices = devices_of(vec![Image::blank(MEMBER_BYTES); 3]);
    let options = PoolCreateOptions::new(MEMBER_BYTES, [5; 64]);
    Pool::create_on(&shared(&devices), RAID5, &ManualClock::new(), &options).expect("it fits");
    let error = refused(&open(&devices).expect("a new pool opens"), 0).to_string();
    assert!(error.contains("the fewest of a raid5"), "{error}");
}
