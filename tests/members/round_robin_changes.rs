//! Devices come to a round-robin in use, and leave it: what it holds, and what a power cut leaves.

use std::sync::Arc;

use engine::api::{Caller, FileSystem};
use engine::{DiskGroupError, Pool};
use format::disk_group::DiskGroupState;
use format::members::Layout;
use runtime::prng::Prng;
use storage::device::sim::{Fault, FaultPlan, Image, Recording, SimDevice};
use storage::device::{Device, IoPurpose, RequestKind, SharedDevice};
use storage::members::{self, LabelledDevice};
use storage::pool::read_superblock;
use storage::volume::{LabelChange, LaneError, Volume, VolumeDevices};

use super::groups::{check_all, content, group_of, groups, labelled};
use super::removal::{finish, take_snapshot};
use super::roles::make;
use super::{Devices, POOL_BYTES, cut_at, devices_of, get, open, put, shared};

const FILE_BYTES: usize = 200_000;
const FILES: usize = 24;
/// Members of the round-robin: those behind the first device.
const WIDTH: usize = 3;

fn name(file: usize) -> String {
    format!("f{file}")
}

fn lane(devices: &Devices, at: usize) -> (SharedDevice, [u8; 16]) {
    let id = [u8::try_from(150 + at).expect("small"); 16];
    (Arc::<SimDevice>::clone(&devices[at]), id)
}

fn add(pool: &Pool, beside: usize, devices: &Devices, at: usize) -> Result<(), DiskGroupError> {
    let (device, id) = lane(devices, at);
    pool.devices().add_lane(beside, device, id)
}

/// Returns a pool with metadata on one device and files, some of which a snapshot shares, on three
/// in turn; and blank devices behind those.
fn filled(further: usize) -> (Devices, Pool) {
    let specs = [(Layout::Single, 1, false), (Layout::RoundRobin, WIDTH, true)];
    let (devices, made) = make(&specs, 2 * POOL_BYTES);
    made.expect("it fits");
    let mut images: Vec<Image> = devices.iter().map(|device| device.image()).collect();
    images.extend(vec![Image::blank(3 * POOL_BYTES); further]);
    let devices = devices_of(images);
    let pool = open(&devices[..=WIDTH]).expect("it was made");
    pool.tick().expect("nothing fails");
    for file in 0..FILES {
        put(&pool, &name(file), &content(file, 1, FILE_BYTES)).expect("there is room");
    }
    take_snapshot(&pool, "c");
    for file in 0..FILES / 2 {
        put(&pool, &name(file), &content(file, 2, FILE_BYTES / 2)).expect("there is room");
    }
    pool.sync().expect("nothing fails");
    (devices, pool)
}

fn judge(pool: &Pool, what: &str) {
    let caller = Caller::root();
    let snapshots = pool.lookup(&caller, pool.root(), b".snapshots").expect("it is always there");
    let snapshot = pool.lookup(&caller, snapshots.ino, b"c").expect("it was taken");
    for file in 0..FILES {
        let old = content(file, 1, FILE_BYTES);
        let mut expected = old.clone();
        if file < FILES / 2 {
            expected[..FILE_BYTES / 2].copy_from_slice(&content(file, 2, FILE_BYTES / 2));
        }
        assert!(get(pool, &name(file)) == Some(expected), "{what}: file {file}");
        let attr = pool.lookup(&caller, snapshot.ino, name(file).as_bytes()).expect("it is there");
        let mut bytes = Vec::new();
        pool.read(&caller, attr.ino, 0, FILE_BYTES, &mut bytes).expect("it can be read");
        assert!(bytes == old, "{what}: file {file} of the snapshot");
    }
}

fn close(pool: Pool) {
    pool.close().expect("nothing fails");
}

fn round_robin(pool: &Pool) -> engine::DiskGroupStatus {
    groups(pool).into_iter().find(|group| group.number == 1).expect("it is there")
}

fn is_blank(device: &SimDevice) -> bool {
    let head = device.read(IoPurpose::Data, 0, 4096).expect("in range");
    head.iter().all(|byte| *byte == 0)
}

fn data_written(device: &SimDevice) -> u64 {
    device.counts().of(IoPurpose::Data, RequestKind::Write).bytes
}

/// Goal: what lies on a device of a round-robin is on the others when it is gone, in snapshots too;
/// nothing goes to it meanwhile; it is blank then. Another comes in its range, and files go to all
/// in turn; so do they after an open.
#[test]
fn a_device_leaves_a_round_robin_and_another_comes() {
    let (devices, pool) = filled(1);
    let before = pool.status().space;
    let moved = |pool: &Pool| pool.status().cleaner.since_mount.moved_fragments * 4096;
    let (live, already) = (round_robin(&pool).used_bytes, moved(&pool));
    let number = pool.devices().remove_lane(2).expect("it fits on the others");
    let leaving = groups(&pool).into_iter().find(|group| group.number == number);
    let leaving = leaving.expect("it is told of");
    assert_eq!(
        (leaving.state, leaving.layout, leaving.slots.clone()),
        (DiskGroupState::Leaving, Layout::Single, (2..3).into())
    );
    assert_eq!(round_robin(&pool).slots, [1, 3].into_iter().collect());
    assert!(pool.status().space.capacity < before.capacity);
    // The segments that are open there are closed by the first step.
    pool.tick().expect("nothing fails");
    let written = data_written(&devices[2]);
    for file in FILES..FILES + 9 {
        put(&pool, &name(file), &content(file, 1, FILE_BYTES)).expect("there is room");
    }
    finish(&pool, 2, "one of three");
    assert_eq!(data_written(&devices[2]), written, "something new went to it");
    assert!(is_blank(&devices[2]), "a label is there");
    let cost = moved(&pool) - already;
    assert!(cost < live / 2, "{cost} bytes were moved of {live} on three devices");
    judge(&pool, "without one");
    close(pool);
    let left = labelled(&devices);
    assert_eq!(left.len(), WIDTH);
    check_all(&left, "without one");
    let images = left.iter().map(|it| it.image()).chain([Image::blank(3 * POOL_BYTES)]);
    let devices = devices_of(images.collect());
    let pool = open(&devices[..WIDTH]).expect("the others are there");
    judge(&pool, "without one, opened again");
    let room = round_robin(&pool).total_bytes;
    add(&pool, 1, &devices, WIDTH).expect("it is large enough");
    let now = round_robin(&pool);
    assert_eq!((now.slots.len(), now.allocation_groups % 3), (3, 0));
    assert_eq!(now.total_bytes, room / 2 * 3);
    for again in 0..2 {
        let counts = || devices[1..].iter().map(|it| data_written(it)).collect::<Vec<u64>>();
        let mut turns = vec![0; WIDTH];
        for file in 0..12 {
            let before = counts();
            put(&pool, &format!("t{again}-{file}"), &content(file, 3, FILE_BYTES)).expect("room");
            let to = counts().iter().zip(&before).map(|(now, old)| now > old).collect::<Vec<_>>();
            assert_eq!(to.iter().filter(|is_it| **is_it).count(), 1, "{to:?}");
            turns[to.iter().position(|is_it| *is_it).expect("one")] += 1;
        }
        assert!(turns.iter().all(|turns| *turns >= 3), "{turns:?}");
    }
    judge(&pool, "with another");
    close(pool);
    check_all(&devices, "with another");
    let pool = open(&devices).expect("all are there");
    judge(&pool, "with another, opened again");
}

/// Goal: of a round-robin of two one leaves, and the other is a single; that becomes a round-robin
/// again with one that comes, though other disk groups lie behind it; and what lies between the
/// ranges of a round-robin stays when that leaves as a whole.
#[test]
fn the_last_two_and_what_comes_between() {
    let (devices, pool) = filled(3);
    pool.devices().remove_lane(2).expect("it fits");
    finish(&pool, 2, "one of three");
    pool.devices().remove_lane(3).expect("it fits");
    assert_eq!(round_robin(&pool).layout, Layout::Single);
    finish(&pool, 2, "one of two");
    judge(&pool, "on one");
    let error = pool.devices().remove_lane(1).expect_err("it is alone");
    assert!(matches!(error, DiskGroupError::Lane(LaneError::Kind { .. })), "{error}");
    // Between the ranges of the round-robin that the single becomes.
    let number =
        pool.devices().add_disk_group(&group_of(&devices, Layout::Single, &[4])).expect("it fits");
    assert_eq!(number, 2);
    add(&pool, 1, &devices, 5).expect("it fits");
    add(&pool, 1, &devices, 6).expect("it fits");
    let now = round_robin(&pool);
    assert_eq!((now.layout, now.slots.len()), (Layout::RoundRobin, 3));
    judge(&pool, "on three and one between");
    for file in FILES..FILES + 24 {
        put(&pool, &name(file), &content(file, 1, FILE_BYTES)).expect("there is room");
    }
    close(pool);
    let left = labelled(&devices);
    assert_eq!(left.len(), 5);
    check_all(&left, "on three and one between");
    let pool = open(&left).expect("all are there");
    judge(&pool, "opened again");
    for file in FILES..FILES + 24 {
        pool.unlink(&Caller::root(), pool.root(), name(file).as_bytes(), None).expect("there");
    }
    pool.devices().remove_disk_group(1).expect("the other has room");
    finish(&pool, 2, "all of it");
    judge(&pool, "on the one between");
    close(pool);
    let left = labelled(&left);
    assert_eq!(left.len(), 2);
    check_all(&left, "on the one between");
    judge(&open(&left).expect("both are there"), "at last");
}

/// Goal: what cannot come or go is refused before anything is written.
#[test]
fn what_cannot_come_or_go_is_refused() {
    let (devices, pool) = filled(2);
    let lane_error = |error: DiskGroupError| -> LaneError {
        let DiskGroupError::Lane(error) = error else { panic!("{error}") };
        error
    };
    let error = lane_error(add(&pool, 0, &devices, 4).expect_err("it has metadata"));
    assert!(matches!(error, LaneError::Kind { number: 0, .. }), "{error}");
    let error = lane_error(pool.devices().remove_lane(0).expect_err("it has metadata"));
    assert!(matches!(error, LaneError::Kind { number: 0, .. }), "{error}");
    let error = lane_error(pool.devices().remove_lane(9).expect_err("nobody is there"));
    assert!(matches!(error, LaneError::NoSlot { slot: 9 }), "{error}");
    let small: SharedDevice = devices_of(vec![Image::blank(POOL_BYTES)]).remove(0);
    let error =
        pool.devices().add_lane(1, small, [77; 16]).expect_err("it is shorter than the others");
    assert!(matches!(lane_error(error), LaneError::Small { .. }));
    assert_eq!(groups(&pool).len(), 2);
    // Full: what one holds fits on no others.
    let mut file = FILES;
    while put(&pool, &name(file), &content(file, 1, FILE_BYTES)).is_ok() {
        file += 1;
    }
    let _ = pool.sync();
    let error = pool.devices().remove_lane(2).expect_err("it does not fit");
    let DiskGroupError::NoRoomForLane { slot: 2, missing_bytes: missing } = error else {
        panic!("{error}")
    };
    assert!(missing > 4 << 20, "{missing}");
    assert_eq!((groups(&pool).len(), round_robin(&pool).slots.len()), (2, WIDTH));
    add(&pool, 1, &devices, 4).expect("there is room then");
    let number = pool.devices().remove_lane(2).expect("it fits on the one that came");
    finish(&pool, 2, "with another");
    assert_eq!(number, 2);
    for file in FILES..file {
        assert!(get(&pool, &name(file)) == Some(content(file, 1, FILE_BYTES)), "file {file}");
    }
    judge(&pool, "with another");
    close(pool);
    check_all(&labelled(&devices), "with another");
}

/// Goal: a device that fails as it comes, at whichever of its requests, leaves the round-robin as
/// it was; the pool goes on, and opens later without it.
#[test]
fn a_device_that_fails_as_it_comes_is_left_out() {
    let mut refused = 0;
    for (kind, nth) in
        (0..40).flat_map(|nth| [(RequestKind::Write, nth), (RequestKind::Flush, nth)])
    {
        let (devices, pool) = filled(1);
        let what = format!("{kind:?} {nth}");
        let faults = vec![Fault::Fail { kind, nth, persists: true }];
        devices[4].arm(FaultPlan { faults });
        if add(&pool, 1, &devices, 4).is_ok() {
            continue;
        }
        refused += 1;
        assert_eq!((groups(&pool).len(), round_robin(&pool).slots.len()), (2, WIDTH), "{what}");
        put(&pool, "after", &content(1, 9, FILE_BYTES)).expect("it goes on");
        judge(&pool, &what);
        close(pool);
        let alone = devices_of(devices[..4].iter().map(|device| device.image()).collect());
        check_all(&alone, &what);
        judge(&open(&alone).unwrap_or_else(|error| panic!("{what}: {error}")), &what);
    }
    assert!(refused > 12, "{refused}");
}

/// Goal: a power cut at any event of a change leaves one history: what was acknowledged is there,
/// and a device that leaves goes on to leave. Method: each member keeps any part of what it had not
/// flushed.
#[test]
fn a_cut_at_any_event_of_a_change_loses_nothing() {
    let (devices, pool) = filled(1);
    let now = || devices.iter().map(|device| device.time()).max().expect("there are devices");
    let begun = now();
    add(&pool, 1, &devices, 4).expect("it is large enough");
    let has_come = now();
    put(&pool, "meanwhile", &content(3, 3, FILE_BYTES)).expect("there is room");
    let is_put = now();
    pool.devices().remove_lane(2).expect("it fits on the others");
    let leaves = now();
    put(&pool, "later", &content(4, 4, FILE_BYTES)).expect("there is room");
    let is_put_too = now();
    finish(&pool, 2, "without a cut");
    let end = now();
    drop(pool);
    let recordings: Vec<Recording> = devices.iter().map(|device| device.recording()).collect();
    let mut prng = Prng::from_seed(6);
    let (mut states, mut resumed, mut come) = (0, 0, [0; 2]);
    // Each moment at which labels change, and some of the move.
    let around = |time: &u64| {
        *time <= has_come
            || (is_put..=leaves).contains(time)
            || time.is_multiple_of(31)
            || *time + 60 >= end
    };
    for time in (begun..=end).filter(around) {
        for state in 0..2 {
            let images = cut_at(&recordings, time, state == 0, &mut prng);
            let what = format!("cut at {time} of {begun}, {has_come}, {leaves}, state {state}");
            let left = labelled(&devices_of(images));
            let pool = open(&left).unwrap_or_else(|error| panic!("{what}: {error}"));
            judge(&pool, &what);
            let width = round_robin(&pool).slots.len();
            let is_leaving = groups(&pool).len() == 3;
            if time < leaves && !is_leaving {
                come[usize::from(width == 4)] += usize::from(time < has_come);
                assert!(time < has_come || width == 4, "{what}: {width}");
            }
            for (at, file, version) in [(is_put, "meanwhile", 3), (is_put_too, "later", 4)] {
                let expected = content(version, version, FILE_BYTES);
                assert!(time < at || get(&pool, file) == Some(expected), "{what}: {file}");
            }
            put(&pool, "after", &content(9, 9, FILE_BYTES)).expect("it goes on");
            if time >= leaves || is_leaving {
                resumed += usize::from(is_leaving);
                finish(&pool, 2, &what);
                assert_eq!(round_robin(&pool).slots, [1, 3, 4].into_iter().collect(), "{what}");
                judge(&pool, &what);
            }
            pool.close().unwrap_or_else(|error| panic!("{what}: {error}"));
            let left = labelled(&left);
            check_all(&left, &what);
            let pool = open(&left).unwrap_or_else(|error| panic!("{what}: again: {error}"));
            assert!(get(&pool, "after") == Some(content(9, 9, FILE_BYTES)), "{what}");
            judge(&pool, &what);
            states += 1;
        }
    }
    println!("{states} states, {resumed} went on to leave; {come:?} without and with the device");
    assert!(resumed > 40 && come.iter().all(|count| *count > 3), "{resumed} {come:?}");
}

/// Goal: whoever writes labels while a device comes, as a scrub does that notes how far it is,
/// leaves nothing behind that keeps the pool from opening. Method: labels are written between the
/// second and the third update of a coming; then a cut at each event.
#[test]
fn labels_that_change_while_a_device_comes_are_in_nobodys_way() {
    let (devices, pool) = filled(1);
    close(pool);
    let devices = devices_of(devices.iter().map(|device| device.image()).collect());
    let now = || devices.iter().map(|device| device.time()).max().expect("there are devices");
    let opening = VolumeDevices { devices: shared(&devices[..=WIDTH]), accepts_missing: false };
    let (volume, mut label) = Volume::open_members(opening).expect("it was closed");
    let begun = now();
    let changing = volume.membership().changing();
    let come = changing.add_lane(&mut label, 1, lane(&devices, WIDTH + 1), |_| {
        let members = volume.members().expect("there are several");
        members.change(|_, _| LabelChange::Table).expect("nothing fails");
        Ok::<(), DiskGroupError>(())
    });
    come.expect("it is large enough");
    let end = now();
    let recordings: Vec<Recording> = devices.iter().map(|device| device.recording()).collect();
    let mut prng = Prng::from_seed(7);
    let mut widths = [0; 2];
    for time in begun..=end {
        for state in 0..12 {
            let images = cut_at(&recordings, time, state == 0, &mut prng);
            let what = format!("cut at {time} of {begun} to {end}, state {state}");
            let left = labelled(&devices_of(images));
            // The newest label is enough, though it was only begun (MJ11).
            let found: Vec<LabelledDevice> = left.iter().map(found_on).collect();
            members::judge(&found).unwrap_or_else(|error| panic!("{what}: {error}"));
            let pool = open(&left).unwrap_or_else(|error| panic!("{what}: {error}"));
            judge(&pool, &what);
            widths[usize::from(round_robin(&pool).slots.len() > WIDTH)] += 1;
        }
    }
    println!("{widths:?} states without and with the device");
    assert!(widths.iter().all(|count| *count > 10), "{widths:?}");
}

fn found_on(device: &Arc<SimDevice>) -> LabelledDevice {
    let read = read_superblock(device.as_ref()).expect("it has a label");
    LabelledDevice::new(device.info().name.clone(), read)
}
