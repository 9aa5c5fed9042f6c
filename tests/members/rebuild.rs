//! A device takes the place of a member of a pool in stripes: what is rebuilt, beside writers,
//! and what is said of what nobody gives.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use engine::api::{Caller, FileSystem};
use engine::{Pool, PoolCreateOptions, RebuildReport};
use format::members::MemberState;
use runtime::clock::{Clock, ManualClock, Timestamp};
use storage::device::sim::{Fault, FaultPlan, Image, SimDevice};
use storage::device::{IoPurpose, RequestKind, SharedDevice};
use storage::pool::read_superblock;
use storage::volume::{Volume, VolumeDevices};

use super::raid5::{LAYOUT, MEMBER_BYTES, all_but, content, new_raid5};
use super::raid5_crash::open_by;
use super::{Devices, devices_of, get, put, reopened, shared};

/// Files enough that a rebuild takes several steps.
const FILES: u8 = 50;
/// Steps of a job before its device fails.
const STEPS_BEFORE: usize = 2;

/// A clock that goes on by a tenth of a second whenever somebody looks: one step of a job is all
/// that a tick has time for.
#[derive(Debug, Default)]
pub(crate) struct Hurrying(AtomicU64);

impl Clock for Hurrying {
    fn now(&self) -> Timestamp {
        Timestamp { seconds: 1, nanoseconds: 0 }
    }

    fn monotonic_ns(&self) -> u64 {
        self.0.fetch_add(100_000_000, Ordering::Relaxed)
    }
}

pub(crate) fn open(devices: &Devices) -> Result<Pool, String> {
    open_by(devices, Arc::new(Hurrying::default()))
}

pub(crate) fn states(pool: &Pool) -> Vec<MemberState> {
    pool.devices().members().iter().map(|member| member.member.state).collect()
}

pub(crate) fn begin(pool: &Pool, slot: usize, new: &Arc<SimDevice>) {
    let new: SharedDevice = Arc::<SimDevice>::clone(new);
    pool.devices().replace_member(slot, new, [77; 16]).expect("the others have all");
}

/// Lets jobs work until no member is joining.
pub(crate) fn finish(pool: &Pool) {
    for _ in 0..1000 {
        pool.tick().expect("nothing fails");
        if !states(pool).contains(&MemberState::Joining) {
            return;
        }
    }
    panic!("the rebuild does not end: {:?}", pool.jobs());
}

/// The spare is a device with pages of this very pool, as old as its creation.
fn with_spare(count: usize, slot: usize) -> Devices {
    let old = new_raid5(count);
    let images = old.iter().chain([&old[slot]]).map(|device| device.image());
    devices_of(images.collect())
}

fn check(devices: &Devices, what: &str) {
    let opening = VolumeDevices { devices: shared(devices), accepts_missing: false };
    let (volume, _) = Volume::open_members(opening).expect("enough are there");
    let report =
        check::run(Arc::clone(volume.device()), check::CheckOptions::default(), &mut |_| ());
    assert!(report.is_clean(), "{what}: {}", report.to_text());
}

fn verify(pool: &Pool, files: &BTreeMap<String, Vec<u8>>, what: &str) {
    for (name, content) in files {
        assert!(get(pool, name).as_ref() == Some(content), "{what}: {name} is another");
    }
}

/// Goal: with any other member lost afterwards everything is there, what was written before and
/// what was written meanwhile. Method: the spare has pages of the same pool that are out of date;
/// between the steps of the job files are written, overwritten and removed.
#[test]
fn a_new_device_is_made_whole_beside_writers() {
    for (count, slot) in [(3, 0), (3, 2), (4, 1), (5, 3)] {
        let devices = with_spare(count, slot);
        let members: Devices = all_but(count, slot).iter().map(|&at| devices[at].clone()).collect();
        let mut files = BTreeMap::new();
        let pool = open(&devices[..count].to_vec()).expect("all are there");
        let mut write = |pool: &Pool, name: String, version: u8, length: usize| {
            put(pool, &name, &content(version, length)).expect("there is room");
            files.insert(name, content(version, length));
        };
        for number in 0..20 {
            write(&pool, format!("before{number}"), number, 90_000);
        }
        begin(&pool, slot, &devices[count]);
        let mut round = 0;
        while states(&pool).contains(&MemberState::Joining) {
            round += 1;
            assert!(round < 100, "the rebuild does not end");
            write(&pool, format!("before{}", round % 20), round, 90_000);
            write(&pool, format!("during{round}"), round, 20_000);
            pool.tick().expect("nothing fails");
            if round % 3 == 0 {
                pool.checkpoint().expect("nothing fails");
            }
        }
        assert!(round > 3, "beside {round} rounds of writes");
        assert!(pool.jobs().is_empty());
        let report = pool.devices().rebuild_report().expect("there was one");
        assert_eq!((report.lost, report.names.len()), (0, 0), "{report:?}");
        pool.close().expect("nothing fails");
        drop(pool);
        let whole = [members.clone(), vec![devices[count].clone()]].concat();
        for lost in 0..count {
            let what = format!("{count} members, {slot} replaced, then without {lost}");
            let left = reopened(&whole, &all_but(count, lost));
            check(&left, &what);
            let pool = open(&left).expect("all but one are enough");
            verify(&pool, &files, &what);
        }
        let old = [members, vec![devices[slot].clone()]].concat();
        let old = reopened(&old, &(0..count).collect::<Vec<_>>());
        let error = open(&old).expect_err("the old one is no member");
        assert!(error.contains("no member of the pool any more"), "{error}");
    }
}

/// Goal: only what is in use is read and written, and no write reads parity meanwhile.
#[test]
fn a_rebuild_reads_and_writes_live_segments_alone() {
    let count = 4;
    let devices = with_spare(count, 2);
    let pool = open(&devices[..count].to_vec()).expect("all are there");
    for number in 0..6 {
        put(&pool, &format!("file{number}"), &content(number, 90_000)).expect("there is room");
    }
    pool.checkpoint().expect("nothing fails");
    put(&pool, "open", &content(9, 60_000)).expect("there is room");
    let geometry = pool.status().geometry;
    let read = |kind| -> u64 {
        let of = |device: &Arc<SimDevice>| device.counts().of(IoPurpose::Cleaner, kind).bytes;
        all_but(count, 2).iter().map(|&at| of(&devices[at])).sum()
    };
    let before = read(RequestKind::Read);
    begin(&pool, 2, &devices[count]);
    finish(&pool);
    let RebuildReport { made_bytes, passed_over_bytes, .. } =
        pool.devices().rebuild_report().expect("one");
    let groups = geometry.device_bytes - geometry.groups_offset - (128 << 10);
    let made = made_bytes - geometry.groups_offset;
    assert!(passed_over_bytes > groups / 2, "{passed_over_bytes} of {groups} are of no use");
    assert!(made + passed_over_bytes <= groups, "each piece once");
    let written = devices[count].counts().of(IoPurpose::Cleaner, RequestKind::Write).bytes;
    let superblock = u64::try_from(format::superblock::SUPERBLOCK_BYTES).expect("small");
    let fixed = geometry.groups_offset - 2 * superblock;
    assert_eq!(written, fixed + made / 3, "its share of what is in use");
    let read = read(RequestKind::Read) - before;
    // Of the fixed regions each of the others has a copy, and all are compared.
    assert_eq!(read, 3 * fixed + made, "one share of each of the others");
    println!("{written} bytes written, {read} read, of a member of {MEMBER_BYTES}");
    // The segment that is open has what was written before, and nobody writes to it again.
    let whole = [&devices[..2], &devices[4..], &devices[3..4]].concat();
    for lost in 0..count {
        let left = reopened(&whole, &all_but(count, lost));
        let pool = open(&left).expect("all but one are enough");
        for number in 0..6 {
            let found = get(&pool, &format!("file{number}"));
            assert!(found == Some(content(number, 90_000)), "file{number} without {lost}");
        }
        assert!(get(&pool, "open") == Some(content(9, 60_000)), "the last one without {lost}");
    }
    for number in 0..6 {
        put(&pool, &format!("file{number}"), &content(number + 7, 90_000)).expect("room");
    }
    let of_data = |device: &Arc<SimDevice>| {
        let counts = device.counts();
        counts.of(IoPurpose::Data, RequestKind::Read).requests
            + counts.of(IoPurpose::Summary, RequestKind::Read).requests
    };
    assert_eq!(devices.iter().map(of_data).sum::<u64>(), 0, "no write reads");
}

/// Where the first block of a file lies: the member, and the byte of it.
pub(super) fn place_of(pool: &Pool, devices: &Devices, bytes: &[u8]) -> (usize, u64) {
    let groups = pool.status().geometry.groups_offset;
    for (member, device) in devices.iter().enumerate() {
        let (image, mut page) = (device.image(), [0; 4096]);
        for offset in (groups..MEMBER_BYTES - (128 << 10)).step_by(4096) {
            image.read(offset, &mut page);
            if page[..] == bytes[..4096] {
                return (member, offset);
            }
        }
    }
    panic!("the block is on no member");
}

/// Goal: what has rotted elsewhere, or cannot be read there, is told by its path; the rest is made
/// whole and the job ends; nothing wrong is ever read.
#[test]
fn what_no_other_member_gives_is_told_by_its_path() {
    for is_unreadable in [false, true] {
        let count = 4;
        let devices = with_spare(count, 1);
        let pool = open(&devices[..count].to_vec()).expect("all are there");
        for number in 0..8 {
            put(&pool, &format!("file{number}"), &content(number, 60_000)).expect("room");
        }
        pool.checkpoint().expect("nothing fails");
        let victim = content(3, 60_000);
        let (member, offset) = (0..3)
            .map(|block| place_of(&pool, &devices[..count].to_vec(), &victim[block * 16384..]))
            .find(|(member, _)| *member != 1)
            .expect("one of its blocks is on another member");
        if is_unreadable {
            let faults = vec![Fault::BadSector { offset }];
            devices[member].arm(FaultPlan { faults });
        } else {
            devices[member].rot(offset + 5, 0x40);
        }
        begin(&pool, 1, &devices[count]);
        finish(&pool);
        assert_eq!(states(&pool), [MemberState::Online; 4]);
        let report = pool.devices().rebuild_report().expect("there was one");
        assert!(report.names.iter().any(|name| name.contains("/file3, bytes")), "{report:?}");
        for number in 0..8 {
            let name = format!("file{number}");
            let is_lost = report.names.iter().any(|lost| lost.contains(&name));
            match std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| get(&pool, &name))) {
                Ok(found) => assert!(found == Some(content(number, 60_000)), "{name}"),
                Err(_) => assert!(is_lost, "{name} cannot be read, and nobody said so: {report:?}"),
            }
        }
    }
}

/// Goal: a member of which nothing can be read stops the job, and no zeros are written for all that
/// it has; when it is back the job goes on.
#[test]
fn a_member_that_gives_nothing_stops_the_rebuild() {
    let count = 3;
    let devices = with_spare(count, 0);
    let pool = open(&devices[..count].to_vec()).expect("all are there");
    for number in 0..FILES {
        put(&pool, &format!("file{number}"), &content(number, 60_000)).expect("room");
    }
    pool.checkpoint().expect("nothing fails");
    begin(&pool, 0, &devices[count]);
    pool.tick().expect("nothing fails");
    let faults = vec![Fault::Fail { kind: RequestKind::Read, nth: 0, persists: true }];
    devices[1].arm(FaultPlan { faults });
    for _ in 0..100 {
        pool.tick().expect("the pool goes on");
    }
    assert_eq!(states(&pool)[0], MemberState::Joining);
    let jobs = pool.jobs();
    assert!(jobs[0].failure.is_some(), "{jobs:?}");
    devices[1].arm(FaultPlan::none());
    assert!(pool.pause_job(jobs[0].id, false), "it goes on");
    finish(&pool);
    assert_eq!(pool.devices().rebuild_report().expect("there was one").lost, 0);
    pool.close().expect("nothing fails");
    drop(pool);
    let left = reopened(&devices, &[1, 3]);
    let pool = open(&left).expect("two of three are enough");
    for number in 0..FILES {
        assert!(get(&pool, &format!("file{number}")) == Some(content(number, 60_000)));
    }
}

/// Returns where page `bytes` lies: members, and the byte of each.
fn copies_of(devices: &[Arc<SimDevice>], bytes: &[u8]) -> Vec<(usize, u64)> {
    let mut copies = Vec::new();
    for (member, device) in devices.iter().enumerate() {
        let (image, mut page) = (device.image(), [0; 4096]);
        for offset in (0..MEMBER_BYTES).step_by(4096) {
            image.read(offset, &mut page);
            if page[..] == *bytes {
                copies.push((member, offset));
            }
        }
    }
    copies
}

/// Goal: a rebuild neither makes nor passes over what it does not know how to make: where the maps
/// of an allocation group can be read nowhere it stops, the member stays joining, and nothing is
/// told as lost. Once they are well it goes on to its end.
#[test]
fn a_rebuild_stops_before_a_group_whose_maps_cannot_be_read() {
    let (count, slot) = (3, 1);
    let devices = devices_of(vec![Image::blank(MEMBER_BYTES); count]);
    let mut options = PoolCreateOptions::new(MEMBER_BYTES, [6; 64]);
    options.geometry.journal_bytes = Some(1 << 20);
    options.geometry.segment_bytes = Some(128 << 10);
    options.geometry.group_bytes = Some(2 << 20);
    Pool::create_on(&shared(&devices), LAYOUT, &ManualClock::new(), &options).expect("it fits");
    let pool = open(&devices).expect("it is new");
    let name = |number: u8| format!("file{number}");
    for number in 0..FILES {
        put(&pool, &name(number), &content(number, 160_000)).expect("room");
    }
    // The first groups have room again, so nobody but the rebuild needs those behind them.
    for number in 0..FILES / 2 {
        let (caller, root) = (Caller::root(), pool.root());
        pool.unlink(&caller, root, name(number).as_bytes(), None).expect("it is there");
    }
    pool.close().expect("nothing fails");
    drop(pool);
    let images = devices.iter().map(|device| device.image());
    let devices = devices_of(images.chain([Image::blank(MEMBER_BYTES)]).collect());
    let opening = VolumeDevices { devices: shared(&devices[..count]), accepts_missing: false };
    let (volume, superblock) = Volume::open_members(opening).expect("all are there");
    let place = superblock.geometry.free_map_place(4, 0);
    let map = volume.read(IoPurpose::Home, place, 4096).expect("it is there");
    let copies = copies_of(&devices[..count], &map);
    assert_eq!(copies.len(), 2, "a map has two copies");
    drop(volume);
    let turn = || copies.iter().for_each(|(member, at)| devices[*member].rot(at + 200, 1));
    turn();
    let pool = open(&devices[..count].to_vec()).expect("the maps are not asked for yet");
    begin(&pool, slot, &devices[count]);
    for _ in 0..100 {
        pool.tick().unwrap_or_else(|error| panic!("the pool goes on: {error}"));
    }
    let (jobs, report) = (pool.jobs(), pool.devices().rebuild_report().expect("there is one"));
    assert_eq!(states(&pool)[slot], MemberState::Joining, "{jobs:?} {report:?}");
    let failure = jobs.first().and_then(|job| job.failure.clone()).expect("it has stopped");
    assert!(failure.contains("how they are kept is not known"), "{failure}");
    assert_eq!(report.lost, 0, "{report:?}");
    turn();
    assert!(pool.pause_job(jobs[0].id, false), "it goes on");
    finish(&pool);
    assert_eq!(pool.devices().rebuild_report().expect("there is one").lost, 0);
    pool.close().expect("nothing fails");
    drop(pool);
    for lost in [0, 2] {
        let left: Vec<usize> = [0, 2, count].into_iter().filter(|at| *at != lost).collect();
        let pool = open(&reopened(&devices, &left)).expect("two of three are enough");
        for number in FILES / 2..FILES {
            let found = get(&pool, &name(number));
            assert!(found == Some(content(number, 160_000)), "file{number} without {lost}");
        }
    }
}

/// Goal: recovery writes inline log data to a joining member, though all others have it already:
/// it asks whether rows agree, and of those in which one may not be looked at nobody knows.
#[test]
fn rows_with_a_joining_member_do_not_count_as_agreed() {
    let (count, slot) = (4, 2);
    let devices = with_spare(count, slot);
    let opening = VolumeDevices { devices: shared(&devices[..count]), accepts_missing: false };
    let (volume, superblock) = Volume::open_members(opening).expect("all are there");
    let geometry = &superblock.geometry;
    let place = geometry.segment_place(0, geometry.segments_of(0) - 1);
    let stripe = usize::try_from(geometry.stripe_fragments(0)).expect("small") * 4096;
    let agrees = || volume.agrees(IoPurpose::Cleaner, place, stripe);
    assert!(agrees(), "zeros agree");
    let new: SharedDevice = Arc::<SimDevice>::clone(&devices[count]);
    volume.membership().begin_replace(slot, new, [77; 16]).expect("the others have all");
    assert!(!agrees(), "nobody knows what the new one has");
}

/// Goal: a second member that fails while one joins stops the pool and loses nothing; with it back
/// the rebuild goes on. One that joins and fails costs nothing.
#[test]
fn a_failure_during_a_rebuild_loses_nothing() {
    let count = 4;
    for dying in [0, count] {
        let devices = with_spare(count, 2);
        let pool = open(&devices[..count].to_vec()).expect("all are there");
        for number in 0..FILES {
            put(&pool, &format!("file{number}"), &content(number, 60_000)).expect("room");
        }
        begin(&pool, 2, &devices[count]);
        pool.tick().expect("nothing fails");
        let faults = vec![Fault::Fail { kind: RequestKind::Write, nth: 3, persists: true }];
        devices[dying].arm(FaultPlan { faults });
        let mut failed = false;
        for number in 0..6 {
            let is_written = put(&pool, &format!("late{number}"), &content(number, 60_000)).is_ok();
            failed |= !is_written || pool.tick().is_err();
        }
        assert_eq!(failed, dying == 0, "a second member is needed, the joining one is not");
        for number in 0..FILES {
            assert!(get(&pool, &format!("file{number}")) == Some(content(number, 60_000)));
        }
        drop(pool);
        let label = read_superblock(devices[1].as_ref()).expect("a label").current;
        let state = if dying == 0 { MemberState::Joining } else { MemberState::Failed };
        assert_eq!(label.members[2].state, state);
        let left = match dying {
            0 => reopened(&devices, &[0, 1, 3, 4]),
            _ => reopened(&devices, &[0, 1, 3]),
        };
        let pool = open(&left).expect("the one that failed is back");
        finish(&pool);
        for number in 0..FILES {
            assert!(get(&pool, &format!("file{number}")) == Some(content(number, 60_000)));
        }
        if dying == count {
            let another = devices_of(vec![Image::blank(MEMBER_BYTES)]);
            begin(&pool, 2, &another[0]);
            finish(&pool);
        }
        assert_eq!(states(&pool), [MemberState::Online; 4]);
    }
}

/// Goal: the job of a new device that failed does not end for the next one in its place, which it
/// has given less. Method: the first fails between two steps of its job, and the next is there
/// before the job looks again; then each other member is lost.
#[test]
fn the_job_of_a_device_that_failed_makes_no_other_whole() {
    let (count, slot) = (4, 1);
    let old = new_raid5(count);
    let images = old.iter().chain([&old[slot], &old[slot]]).map(|device| device.image());
    let devices = devices_of(images.collect());
    let pool = open(&devices[..count].to_vec()).expect("all are there");
    let mut files = BTreeMap::new();
    for number in 0..20 {
        let (name, bytes) = (format!("file{number}"), content(number, 90_000));
        put(&pool, &name, &bytes).expect("there is room");
        files.insert(name, bytes);
    }
    pool.checkpoint().expect("nothing fails");
    begin(&pool, slot, &devices[count]);
    (0..STEPS_BEFORE).for_each(|_| pool.tick().expect("nothing fails"));
    assert_eq!(states(&pool)[slot], MemberState::Joining, "its job has begun, and has not ended");
    pool.devices().fail_member(slot).expect("the others have all");
    let next: SharedDevice = Arc::<SimDevice>::clone(&devices[count + 1]);
    pool.devices().replace_member(slot, next, [78; 16]).expect("the others have all");
    finish(&pool);
    pool.close().expect("nothing fails");
    drop(pool);
    for lost in all_but(count, slot) {
        let is_left = |at: &usize| *at != lost;
        let left = (0..count).filter(is_left).map(|at| if at == slot { count + 1 } else { at });
        let left = reopened(&devices, &left.collect::<Vec<_>>());
        let pool = open(&left).expect("all but one are there");
        verify(&pool, &files, &format!("without {lost}"));
        pool.close().expect("nothing fails");
        drop(pool);
        check(&left, &format!("without {lost}"));
    }
}
