//! A stripe gets a member more, and loses one, while the pool is in use, and whatever happens
//! meanwhile. Data is there once: what a device does not give is written nowhere as if it had.

use engine::api::{Caller, FileSystem, FsError};
use engine::{DiskGroupError, Pool};
use format::members::{Layout, MemberState};
use runtime::prng::Prng;
use storage::device::sim::{Fault, FaultPlan, Image};
use storage::device::{AlignedBuffer, Device, IoPurpose, Redundancy, RequestKind};
use storage::volume::{
    AttachError, NarrowError, SegmentMoveMode, SegmentMoveOutcome, Volume, VolumeDevices,
};

use super::groups::{check_all, group_of, groups};
use super::reshape::{
    FILES, MEMBER_BYTES, NEW, Run, Versions, bring_new, capacity, content, device, filled_as,
    finish, moved, states, verify, versions_of, widened, write,
};
use super::unread::pages_of;
use super::{cut_at, devices_of, get, narrow, open, put, reopened, shared};

const STRIPE: Layout = Layout::Stripe { unit_shift: 14 };

/// Lets jobs work while files are written, until all has moved; returns where the border was.
fn moved_beside_writers(pool: &Pool, versions: &mut Versions, what: &str) -> Vec<u64> {
    let mut seen = Vec::new();
    for round in 1..800 {
        if pool.devices().reshaping().is_none() && pool.devices().given_up().is_none() {
            break;
        }
        seen.extend(moved(pool));
        if round % 7 == 0 {
            let name = round / 7 % versions.len();
            write(pool, name, round);
            versions.insert(name, round);
        }
        verify(pool, versions, what);
        pool.tick().expect("nothing fails");
    }
    finish(pool);
    seen.dedup();
    seen
}

/// Goal: a stripe gets a member and loses another while it is read and written, has more room and
/// less, and all that was there and was written meanwhile is there. Method: the device that goes is
/// another than the one that came, so that each byte has moved.
#[test]
fn a_stripe_gets_a_member_and_loses_another_while_it_is_in_use() {
    for (width, out) in [(2, 0), (2, 1), (3, 1)] {
        let what = format!("a stripe of {width}, and {out} leaves");
        let devices = filled_as(STRIPE, width);
        let pool = open(&devices[..width]).expect("it was closed");
        pool.tick().expect("nothing fails");
        let before = capacity(&pool);
        assert_eq!(pool.devices().widen(0, device(&devices, width), NEW).expect("it fits"), width);
        let mut versions = versions_of(FILES);
        let seen = moved_beside_writers(&pool, &mut versions, &what);
        assert!(seen.len() > 4 && seen.is_sorted(), "{what}: {seen:?}");
        assert_eq!(states(&pool), vec![MemberState::Online; width + 1], "{what}");
        let wide = capacity(&pool);
        assert!(wide > before + before / 10, "{what}: {before} and {wide}");
        pool.close().expect("nothing fails");
        drop(pool);
        check_all(&devices, &what);

        let devices = reopened(&devices, &(0..=width).collect::<Vec<_>>());
        let pool = open(&devices).expect("it was closed");
        pool.tick().expect("nothing fails");
        pool.devices().narrow(out).unwrap_or_else(|error| panic!("{what}: {error}"));
        let mut seen = moved_beside_writers(&pool, &mut versions, &what);
        seen.reverse();
        assert!(seen.len() > 4 && seen.is_sorted(), "{what}: {seen:?}");
        assert_eq!(groups(&pool)[0].slots.len(), width, "{what}");
        write(&pool, 1, 9000);
        versions.insert(1, 9000);
        assert!(capacity(&pool) < wide, "{what}");
        pool.close().expect("nothing fails");
        drop(pool);
        let left = narrow::without(&devices, out);
        check_all(&left, &what);
        assert!(open(&reopened(&devices, &[out])).is_err(), "{what}: it is of no pool");
        let pool = open(&left).expect("it was closed");
        verify(&pool, &versions, &what);
    }
}

/// Cuts a run at moments of its move, opens what is left with all members, and lets the move end.
fn survives_cuts(run: &Run, what: &str, step: usize) {
    let recordings: Vec<_> = run.devices.iter().map(|device| device.recording()).collect();
    let mut prng = Prng::from_seed(5);
    let (mut states_seen, mut under_way) = (0, 0);
    let end = run.devices[0].time();
    let times = (run.begun..run.begun + 20).chain((run.begun + 20..run.ended).step_by(step));
    for time in times.chain([run.ended, end]) {
        let what = format!("{what}: cut at {time} of {} to {}", run.begun, run.ended);
        let images = cut_at(&recordings, time, false, &mut prng);
        let (versions, images_count) = (run.versions_at(time), images.len());
        let found = super::groups::labelled(&devices_of(images));
        let pool = open(&found).unwrap_or_else(|error| panic!("{what}: {error}"));
        verify(&pool, &versions, &what);
        states_seen += 1;
        under_way += usize::from(moved(&pool).is_some_and(|moved| moved > 0));
        let is_replaced = states(&pool).contains(&MemberState::Missing);
        bring_new(&pool, images_count - 1);
        finish(&pool);
        verify(&pool, &versions, &what);
        pool.close().unwrap_or_else(|error| panic!("{what}: {error}"));
        drop(pool);
        if !is_replaced {
            check_all(&super::groups::labelled(&found), &what);
        }
    }
    println!("{what}: {states_seen} states, {under_way} in the middle");
    assert!(under_way > 40, "{what}: {under_way} of {states_seen}");
}

/// Goal: a cut at any moment while a stripe gets a member loses nothing, and the move ends.
#[test]
fn a_cut_while_a_stripe_gets_a_member_loses_nothing() {
    survives_cuts(&widened(STRIPE, 2), "2 and one", 11);
    survives_cuts(&widened(STRIPE, 3), "3 and one", 23);
}

/// Goal: the same while it loses one.
#[test]
fn a_cut_while_a_stripe_loses_a_member_loses_nothing() {
    survives_cuts(&narrow::narrowed(STRIPE, 3, 1), "3 without 1", 11);
}

/// Goal: a member that a stripe is getting, and on which no segment lies, is needed by nobody: the
/// pool goes on when it fails, and opens after a cut while it fails, or without it; it is taken
/// back. Method: each of its writes and flushes in turn is the first that fails.
#[test]
fn a_new_member_on_which_nothing_lies_is_not_needed() {
    let mut prng = Prng::from_seed(3);
    let mut failed = 0;
    for kind in [RequestKind::Flush, RequestKind::Write] {
        for nth in 0.. {
            let what = format!("{kind:?} {nth}");
            let devices = filled_as(STRIPE, 2);
            let pool = open(&devices[..2]).expect("it was closed");
            pool.tick().expect("nothing fails");
            let slot = pool.devices().widen(0, device(&devices, 2), NEW).expect("it fits");
            let faults = vec![Fault::Fail { kind, nth, persists: true }];
            devices[2].arm(FaultPlan { faults });
            let mut has_begun = false;
            while !has_begun && states(&pool)[slot] != MemberState::Failed {
                // Once a segment is on its way the member is needed as any other.
                let ticked = pool.tick();
                let reshape = pool.devices().reshaping().expect("it is not done").reshape;
                has_begun = ticked.is_err() || reshape.moved > 0 || reshape.kept.is_some();
                let has_failed = states(&pool)[slot] == MemberState::Failed;
                assert!(
                    ticked.is_err() || !has_begun || !has_failed,
                    "{what}: a segment is said to lie on what has failed: {reshape:?}"
                );
            }
            if has_begun {
                break;
            }
            failed += 1;
            let mut versions = versions_of(FILES);
            write(&pool, 1, 7);
            versions.insert(1, 7);
            verify(&pool, &versions, &what);
            assert_eq!(pool.status().read_only, None, "{what}");
            let images: Vec<Image> = devices.iter().map(|it| it.crash_image(&mut prng)).collect();
            drop(pool);
            opens_without(images, slot, &versions, &what);
        }
    }
    println!("{failed} moments");
    assert!(failed > 8, "{failed} moments");
}

/// A pool opens while its last device fails, and without it, and gives it up.
fn opens_without(images: Vec<Image>, slot: usize, versions: &Versions, what: &str) {
    for with in [images.len(), images.len() - 1] {
        let what = format!("{what}, {with} devices");
        let devices = devices_of(images.clone());
        let faults = vec![Fault::Fail { kind: RequestKind::Write, nth: 0, persists: true }];
        devices[images.len() - 1].arm(FaultPlan { faults });
        let pool = open(&devices[..with]).unwrap_or_else(|error| panic!("{what}: {error}"));
        verify(&pool, versions, &what);
        write(&pool, 2, 8);
        let taken = pool.devices().take_member_back(slot).expect("nothing fails");
        assert!(taken.is_some(), "{what}: nothing lies on it");
        finish(&pool);
        verify(&pool, &Versions::from([(2, 8)]), &what);
        pool.close().unwrap_or_else(|error| panic!("{what}: {error}"));
        drop(pool);
        check_all(&devices[..images.len() - 1].to_vec(), &what);
    }
}

/// Goal: a cut at any moment before a segment lies on the new member leaves a pool that opens while
/// that member fails every write.
#[test]
fn a_cut_before_anything_lies_on_a_failing_member_loses_nothing() {
    let run = widened(STRIPE, 2);
    let recordings: Vec<_> = run.devices.iter().map(|device| device.recording()).collect();
    let mut prng = Prng::from_seed(9);
    let (mut seen, mut online) = (0, 0);
    for time in (run.begun..run.ended).step_by(5) {
        let images = cut_at(&recordings, time, false, &mut prng);
        let found = super::groups::labelled(&devices_of(images));
        let opening = VolumeDevices { devices: shared(&found), accepts_missing: false };
        let (_, label) = Volume::open_members(opening).expect("it was cut");
        let Some((_, slot)) = label.coming_slot() else {
            if seen > 0 {
                break;
            }
            continue;
        };
        seen += 1;
        online += usize::from(label.members[slot].state == MemberState::Online);
        let images = found.iter().map(|device| device.image()).collect();
        if found.len() == 3 {
            opens_without(images, slot, &run.versions_at(time), &format!("cut at {time}"));
        }
    }
    println!("{seen} cuts, {online} with all there is on it");
    assert!(seen > 10 && online > 0, "{seen} cuts, {online} with all there is on it");
}

/// Lets jobs work until one stops, and returns what it says; `None`: all has moved.
fn stopped(pool: &Pool) -> Option<String> {
    for _ in 0..2000 {
        pool.tick().expect("the pool goes on");
        if let Some(failure) = pool.jobs().into_iter().find_map(|job| job.failure) {
            return Some(failure);
        }
        if pool.devices().reshaping().is_none() && pool.jobs().is_empty() {
            return None;
        }
    }
    panic!("it neither stops nor ends: {:?}", pool.jobs());
}

/// Goal: what one member does not give is not moved as something else: the job stops and names the
/// file, and all is there when the device gives it again; or the file is removed, and the job ends.
#[test]
fn what_a_member_does_not_give_is_not_moved() {
    for is_removed in [false, true] {
        let what = format!("removed: {is_removed}");
        let devices = filled_as(STRIPE, 2);
        let bad = pages_of(&devices, 1, &content(4, 0));
        assert!(bad.len() > 10, "{what}: {bad:?}");
        let faults = bad.iter().step_by(3).map(|&offset| Fault::BadSector { offset }).collect();
        let pool = open(&devices[..2]).expect("it was closed");
        pool.devices().widen(0, device(&devices, 2), NEW).expect("it fits");
        devices[1].arm(FaultPlan { faults });
        let why = stopped(&pool).expect("what is bad is in the way");
        assert!(why.contains("/f4, bytes") && why.contains("cannot be read"), "{what}: {why}");
        assert!(pool.devices().reshaping().is_some(), "{what}");
        let mut versions = versions_of(FILES);
        versions.remove(&4);
        verify(&pool, &versions, &what);
        if is_removed {
            let (caller, root) = (Caller::root(), pool.root());
            pool.unlink(&caller, root, b"f4", None).expect("it can be removed");
        } else {
            devices[1].arm(FaultPlan::none());
        }
        let job = pool.jobs().first().expect("it has stopped").id;
        assert!(pool.pause_job(job, false), "{what}");
        assert_eq!(stopped(&pool), None, "{what}");
        verify(&pool, &versions, &what);
        assert_eq!(get(&pool, "f4"), (!is_removed).then(|| content(4, 0)), "{what}");
        pool.close().expect("nothing fails");
        drop(pool);
        devices[1].arm(FaultPlan::none());
        check_all(&devices, &what);
    }
}

/// Goal: the same of what cannot be read any more when it is moved, though it was a moment before:
/// data on one member, or pages of metadata in both of their copies.
#[test]
fn what_is_not_read_when_it_is_moved_stays() {
    for (kind, bad) in [(Redundancy::Parity, &[1][..]), (Redundancy::Copies, &[0, 1])] {
        is_not_moved(kind, bad);
    }
}

fn is_not_moved(kind: Redundancy, bad: &[usize]) {
    let devices = filled_as(STRIPE, 2);
    let opening = VolumeDevices { devices: shared(&devices[..2]), accepts_missing: false };
    let (volume, mut superblock) = Volume::open_members(opening).expect("it was closed");
    let changing = volume.membership().changing();
    let slot = changing.widen(&mut superblock, 0, device(&devices, 2), NEW).expect("it fits");
    let stay = volume.membership().stay_in(slot).expect("it is there");
    volume.membership().end_join(slot, &stay).expect("nothing fails");
    let offsets = (superblock.geometry.groups_offset..MEMBER_BYTES - (1 << 20)).step_by(4096);
    let faults: Vec<Fault> = offsets.map(|offset| Fault::BadSector { offset }).collect();
    for &at in bad {
        devices[at].arm(FaultPlan { faults: faults.clone() });
    }
    let kind_of = |_| Ok(Some(kind));
    let moved = changing
        .move_segments(0..1, SegmentMoveMode::Segment(40), &kind_of)
        .expect("nothing fails");
    assert!(matches!(moved, SegmentMoveOutcome::Unread { .. }), "{kind:?}: {moved:?}");
    assert_eq!(volume.membership().reshaping().map(|it| it.reshape.moved), Some(0));
}

/// Goal: rot is told as rot, and counted where it is, whatever cannot be read on a member that has
/// no part of the block. Method: a file of one unit that has rotted, and bad sectors beside it.
#[test]
fn rot_is_no_error_of_another_member() {
    let devices = filled_as(STRIPE, 2);
    let pool = open(&devices[..2]).expect("it was closed");
    let one: Vec<u8> =
        (0..1 << 10).flat_map(|at: u64| (0x0e_5eed << 40 | at).to_le_bytes()).collect();
    put(&pool, "one", &one).expect("there is room");
    pool.close().expect("nothing fails");
    drop(pool);
    let devices = reopened(&devices, &[0, 1]);
    let found: Vec<(usize, u64)> = (0..2)
        .flat_map(|at| pages_of(&devices, at, &one).into_iter().map(move |it| (at, it)))
        .collect();
    let (own, _) = found[0];
    for (at, offset) in &found {
        assert_eq!(*at, own, "it is of one unit");
        let page = AlignedBuffer::zeroed(4096);
        devices[own].write(IoPurpose::Check, *offset, page).expect("nothing fails yet");
    }
    let faults = found.iter().map(|(_, offset)| Fault::BadSector { offset: *offset }).collect();
    devices[1 - own].arm(FaultPlan { faults });
    let pool = open(&devices).expect("it was closed");
    let file = pool.lookup(&Caller::root(), pool.root(), b"one").expect("it is there");
    let read = pool.read(&Caller::root(), file.ino, 0, one.len(), &mut Vec::new());
    assert!(matches!(read, Err(FsError::Corrupt { .. })), "{read:?}");
    assert!(pool.devices().members()[own].counts.checksum_errors > 0);
    pool.forget(file.ino, 1);
}

/// Goal: what cannot be is refused before anything changes.
#[test]
fn what_a_stripe_cannot_do_is_refused() {
    let devices = filled_as(STRIPE, 2);
    let pool = open(&devices[..2]).expect("it was closed");
    let error = pool.devices().narrow(1).expect_err("two are the fewest");
    let DiskGroupError::Narrow(NarrowError::Few { number: 0, kind: "stripe", members: 2 }) = error
    else {
        panic!("{error}");
    };
    let others = devices_of(vec![Image::blank(MEMBER_BYTES); 3]);
    pool.devices()
        .add_disk_group(&group_of(&others, Layout::RoundRobin, &[0, 1]))
        .expect("it fits");
    let error = pool.devices().widen(2, device(&others, 2), NEW).expect_err("a round-robin");
    assert!(matches!(error, AttachError::NoStripes { number: 1, kind: "round-robin" }), "{error}");
    let error = pool.devices().narrow(2).expect_err("a round-robin");
    assert!(error.to_string().contains("round-robin"), "{error}");
}
