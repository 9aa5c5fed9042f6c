//! A device takes the place of a member while the pool is in use, and whatever happens meanwhile.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use engine::{Pool, PoolOpenOptions};
use format::members::MemberState;
use runtime::clock::ManualClock;
use runtime::prng::Prng;
use storage::device::sim::{Fault, FaultPlan, Image, SimDevice, SimOptions};
use storage::device::{AlignedBuffer, Device, IoPurpose, Redundancy, RequestKind, SharedDevice};
use storage::volume::{RebuildRequest, ReplaceError, Volume, VolumeDevices};

use super::{
    Devices, POOL_BYTES, cut_at, devices_of, first_copy, get, new_mirror, open, put, reopened,
    shared,
};

/// Content that fills many MiB of the pool, so that a copy takes many steps.
const FILES: usize = 5;
const FILE_BYTES: usize = 400 << 10;

fn content(name: usize, version: usize) -> Vec<u8> {
    format!("file {name} version {version} ").bytes().cycle().take(FILE_BYTES).collect()
}

fn states(pool: &Pool) -> Vec<MemberState> {
    pool.devices().members().iter().map(|member| member.member.state).collect()
}

/// Lets jobs work until no member is joining.
fn finish(pool: &Pool) {
    for _ in 0..1000 {
        pool.tick().expect("nothing fails");
        if !states(pool).contains(&MemberState::Joining) {
            return;
        }
    }
    panic!("the copy does not end: {:?}", pool.jobs());
}

/// A mirror of two whose second is to be replaced by a third device, with files in it.
fn filled() -> Devices {
    let images: Vec<Image> = new_mirror(2).iter().map(|device| device.image()).collect();
    let junk = devices_of(vec![Image::blank(POOL_BYTES)]);
    for offset in (0..POOL_BYTES).step_by(1 << 20) {
        let bytes = AlignedBuffer::copy_of(&[0xa5; 4096]);
        junk[0].write(IoPurpose::Data, offset, bytes).expect("in range");
    }
    let devices = devices_of([images, vec![junk[0].image()]].concat());
    let pool = open(&devices[..2]).expect("a new mirror opens");
    for name in 0..FILES {
        put(&pool, &format!("f{name}"), &content(name, 0)).expect("there is room");
    }
    pool.close().expect("nothing fails");
    devices
}

fn begin(pool: &Pool, devices: &Devices) {
    let new: SharedDevice = devices[2].clone();
    pool.devices().replace_member(1, new, [77; 16]).expect("the first has all");
    assert_eq!(states(pool), [MemberState::Online, MemberState::Joining]);
}

fn verify(pool: &Pool, versions: &BTreeMap<usize, usize>, what: &str) {
    for (name, version) in versions {
        let found = get(pool, &format!("f{name}"));
        assert!(found == Some(content(*name, *version)), "{what}: file {name} is another");
    }
}

fn check_alone(devices: &Devices, what: &str) {
    let (volume, _) =
        Volume::open_members(VolumeDevices { devices: shared(devices), accepts_missing: false })
            .expect("it is a member");
    let report =
        check::run(Arc::clone(volume.device()), check::CheckOptions::default(), &mut |_| {});
    assert!(report.findings.is_empty(), "{what}: {:?}", report.findings);
}

/// Goal: a device that has joined has everything, also what was written while it was copied to.
#[test]
fn a_new_device_gets_what_was_there_and_what_is_written_meanwhile() {
    let devices = filled();
    let pool = open(&devices[..2]).expect("it was closed");
    pool.tick().expect("nothing fails");
    begin(&pool, &devices);
    let mut versions = BTreeMap::new();
    let mut round = 0;
    while states(&pool).contains(&MemberState::Joining) {
        round += 1;
        assert!(round < 100, "the copy does not end");
        put(&pool, &format!("f{}", round % FILES), &content(round % FILES, round)).expect("room");
        versions.insert(round % FILES, round);
        pool.tick().expect("nothing fails");
    }
    assert!(pool.jobs().is_empty());
    pool.close().expect("nothing fails");
    drop(pool);
    let new = reopened(&devices, &[2]);
    let pool = open(&new).expect("it has all");
    verify(&pool, &versions, "the new device alone");
    pool.close().expect("it can be written");
    drop(pool);
    check_alone(&new, "the new device alone");
    let old = devices_of(vec![devices[0].image(), devices[1].image()]);
    let error = open(&old).expect_err("the old one is no member").to_string();
    assert!(error.contains("/sim/d1") && error.contains("no member"), "{error}");
}

/// Goal: a cut at any moment of the copy loses nothing, and the copy goes on afterwards.
#[test]
fn a_copy_goes_on_after_a_cut_and_misses_nothing() {
    let devices = filled();
    let pool = open(&devices[..2]).expect("it was closed");
    pool.tick().expect("nothing fails");
    let begun = devices[0].time();
    begin(&pool, &devices);
    let mut acknowledged: Vec<(u64, usize, usize)> = Vec::new();
    for round in 1..8 {
        let name = round % FILES;
        put(&pool, &format!("f{name}"), &content(name, round)).expect("there is room");
        acknowledged.push((devices[0].time(), name, round));
        pool.tick().expect("nothing fails");
    }
    finish(&pool);
    drop(pool);
    let recordings: Vec<_> = devices.iter().map(|device| device.recording()).collect();
    let (end, mut prng) = (devices[0].time(), Prng::from_seed(1));
    let mut resumed = 0;
    for time in (begun..=end).step_by(19) {
        let images: Vec<Image> = cut_at(&recordings, time, false, &mut prng);
        let what = format!("cut at {time} of {begun} to {end}");
        let mut all = devices_of(images);
        // Before the label of the first tells of it, the old one is the member.
        let label = storage::pool::read_superblock(all[0].as_ref()).expect("a label").current;
        let new = label.members[1].id == [77; 16];
        all.remove(if new { 1 } else { 2 });
        let Ok(pool) = open(&all) else { panic!("{what}: it does not open") };
        resumed += usize::from(states(&pool).contains(&MemberState::Joining));
        finish(&pool);
        pool.close().expect("nothing fails");
        drop(pool);
        let mut versions = BTreeMap::new();
        for (_, name, round) in acknowledged.iter().filter(|(at, ..)| *at <= time) {
            versions.insert(*name, *round);
        }
        // A version that was being written may be there in part.
        if let Some((_, name, _)) = acknowledged.iter().find(|(at, ..)| *at > time) {
            versions.remove(name);
        }
        if new {
            let alone = reopened(&all, &[1]);
            let pool = open(&alone).unwrap_or_else(|error| panic!("{what}: {error}"));
            verify(&pool, &versions, &what);
            drop(pool);
        }
        check_alone(&all, &what);
    }
    assert!(resumed > 3, "{resumed}");
}

/// Goal: a joining device that dies costs nothing, and another can be taken.
#[test]
fn a_new_device_that_dies_is_left_out_and_another_can_join() {
    let devices = filled();
    let pool = open(&devices[..2]).expect("it was closed");
    pool.tick().expect("nothing fails");
    begin(&pool, &devices);
    let faults = vec![Fault::Fail { kind: RequestKind::Write, nth: 6, persists: true }];
    devices[2].arm(FaultPlan { faults });
    finish(&pool);
    assert_eq!(states(&pool), [MemberState::Online, MemberState::Failed]);
    assert!(pool.jobs().is_empty());
    put(&pool, "f0", &content(0, 9)).expect("one is enough");
    let another = devices_of(vec![Image::blank(POOL_BYTES)]);
    let new: SharedDevice = another[0].clone();
    pool.devices().replace_member(1, new, [78; 16]).expect("the first has all");
    finish(&pool);
    assert_eq!(states(&pool), [MemberState::Online; 2]);
    drop(pool);
    let pool = open(&another).expect("it has all");
    assert!(get(&pool, "f0") == Some(content(0, 9)));
}

/// Goal: what cannot end is refused before anything changes.
#[test]
fn what_cannot_be_replaced_is_refused() {
    let devices = filled();
    let pool = open(&devices[..2]).expect("it was closed");
    let device = |bytes: u64| -> SharedDevice { devices_of(vec![Image::blank(bytes)])[0].clone() };
    let refused = |slot, bytes| {
        let error = pool.devices().replace_member(slot, device(bytes), [8; 16]);
        error.expect_err("it is refused")
    };
    assert!(matches!(refused(1, POOL_BYTES - 4096), ReplaceError::TooSmall { .. }));
    assert!(matches!(refused(2, POOL_BYTES), ReplaceError::NoSlot { slot: 2 }));
    begin(&pool, &devices);
    assert!(matches!(refused(1, POOL_BYTES), ReplaceError::Joins { slot: 1 }));
    assert!(matches!(pool.devices().fail_member(0), Err(ReplaceError::Joins { slot: 1 })));
    pool.devices().fail_member(1).expect("the first has all");
    assert!(matches!(refused(0, POOL_BYTES), ReplaceError::Needed { slot: 0, .. }));
    let single = devices_of(vec![Image::blank(POOL_BYTES)]);
    let one: SharedDevice = single[0].clone();
    let create = engine::PoolCreateOptions::new(POOL_BYTES, [4; 64]);
    Pool::create(&one, &ManualClock::new(), &create).expect("a pool fits");
    let options = PoolOpenOptions::default();
    let pool = Pool::open(one, Arc::new(ManualClock::new()), options).expect("just made");
    let error = pool.devices().replace_member(0, device(POOL_BYTES), [8; 16]);
    assert!(matches!(error, Err(ReplaceError::NotSeveral)));
}

/// Goal: no piece is copied while a write is at it (JN1): what was read before would undo it.
/// Method: a write has told its range, and is not handed to the members yet.
#[test]
fn a_piece_waits_for_the_write_that_is_at_it() {
    let devices = filled();
    let opening = VolumeDevices { devices: shared(&devices[..2]), accepts_missing: false };
    let (volume, superblock) = Volume::open_members(opening).expect("a mirror");
    let new: SharedDevice = devices[2].clone();
    volume.membership().begin_replace(1, new, [77; 16]).expect("the first has all");
    let place = superblock.geometry.group_layout().root_place();
    let offset = superblock.geometry.device_offset(place, 1).expect("in a group");
    let piece = u32::try_from(offset >> 20).expect("small");
    let members = volume.members().expect("there are two");
    let write = members.begin_write(offset..offset + 4096);
    let mut at = 0;
    let walk = |at: &mut u64| {
        while let Some(range) = volume.membership().piece_at(*at) {
            let end = range.end;
            let (kept, keeps) = (Redundancy::Copies, BTreeSet::new());
            let wanted = RebuildRequest { piece: range, kept, keeps };
            let made = volume.membership().rebuild_pieces(1, &[wanted], &first_copy(), |_, _| {});
            if made.expect("nothing fails") == 0 {
                return;
            }
            *at = end;
        }
        let stay = volume.membership().stay_in(1).expect("it is there");
        volume.membership().end_join(1, &stay).expect("nothing fails");
    };
    walk(&mut at);
    assert_eq!(at >> 20, u64::from(piece), "it stands before the write");
    drop(write);
    walk(&mut at);
    assert!(volume.membership().joining().is_none(), "it goes on: {at}");
}

/// Goal: where labels cannot be written the pool stops, for memory knows of a member what they do
/// not (MS3, T5). Method: each write to the only member that has all fails once.
#[test]
fn a_label_that_cannot_be_written_during_a_copy_stops_the_pool() {
    let (mut ended, mut stopped) = (0, 0);
    for nth in 0..40 {
        let devices = filled();
        let pool = open(&devices[..2]).expect("it was closed");
        begin(&pool, &devices);
        let faults = vec![Fault::Fail { kind: RequestKind::Write, nth, persists: false }];
        devices[0].arm(FaultPlan { faults });
        let failure = |pool: &Pool| pool.jobs().into_iter().find_map(|job| job.failure);
        let is_whole = |pool: &Pool| states(pool)[1] == MemberState::Online;
        let goes_on = |_: &u32| !is_whole(&pool) && failure(&pool).is_none();
        let _ = (0..200).take_while(goes_on).try_for_each(|_| pool.tick());
        devices[0].arm(FaultPlan::default());
        match is_whole(&pool) {
            true => ended += 1,
            false => {
                let error = put(&pool, "f0", b"new");
                assert!(error.is_err(), "write {nth}: it goes on, and {:?}", failure(&pool));
                stopped += 1;
            }
        }
    }
    assert!(ended > 0 && stopped > 3, "{ended} ended, {stopped} stopped");
}

/// Goal: what a commit waits for is as the members are now: a device that joins and has no
/// write-through is flushed.
#[test]
fn a_device_without_write_through_is_flushed_by_each_commit() {
    let devices = filled();
    let options = SimOptions {
        name: "/sim/slow".to_owned(),
        has_write_through: false,
        ..SimOptions::default()
    };
    let slow = SimDevice::open(Image::blank(POOL_BYTES), options);
    let pool = open(&devices[..2]).expect("it was closed");
    put(&pool, "new", b"before").expect("there is room");
    assert!(devices[0].counts().write_throughs() > 0);
    let new: SharedDevice = Arc::<SimDevice>::clone(&slow);
    pool.devices().replace_member(1, new, [77; 16]).expect("the first has all");
    finish(&pool);
    let before = devices[0].counts().write_throughs();
    put(&pool, "new", b"behind").expect("there is room");
    assert_eq!(devices[0].counts().write_throughs(), before, "each waits for a flush of both");
    let alone = devices_of(vec![slow.durable_image()]);
    let pool = open(&alone).expect("it has all");
    assert_eq!(get(&pool, "new").as_deref(), Some(&b"behind"[..]));
}
