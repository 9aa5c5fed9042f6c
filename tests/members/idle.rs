//! Jobs on an idle pool: none waits for what only a later request would do. A write that the
//! devices have answered, and whose answer was not collected, keeps no range and no member.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use engine::api::{Caller, FileKind, FileSystem, NewInode};
use engine::{Pool, PoolOpenOptions};
use format::disk_group::DiskGroupRoles;
use format::ids::Place;
use format::members::{Layout, MemberState};
use format::missed::StaleParts;
use format::stripes::Stripes;
use format::superblock::Superblock;
use runtime::clock::ManualClock;
use storage::device::sim::{Fault, FaultPlan, Image};
use storage::device::{
    AlignedBuffer, DEADLINE_DEFAULT, DeviceError, IoPurpose, Redundancy, RequestKind, SharedBytes,
    Ticket,
};
use storage::pool::read_superblock;
use storage::volume::{DiskGroupSpec, RebuildRequest, Volume, VolumeDevices};

use super::groups::{content, group_of, groups, new_pool};
use super::raid5::{MEMBER_BYTES, all_but, new_raid5};
use super::reshape::{self, NEW, RAID5, device, states};
use super::{
    Devices, POOL_BYTES, devices_of, first_copy, narrow, new_mirror, open, put, reopened, shared,
};

/// Ticks in which each of the jobs here ends: fewer than those after which a job that waits for an
/// answer goes on without it.
const TICKS_MAX: usize = 32;
/// More than a segment of any of these pools, so that data is on its way to the devices.
const MUCH: usize = 1100 << 10;

fn volume_of(devices: &Devices) -> (Volume, Superblock) {
    let opening = VolumeDevices { devices: shared(devices), accepts_missing: false };
    Volume::open_members(opening).expect("all are there")
}

fn fail_writes(nth: u64, persists: bool) -> FaultPlan {
    FaultPlan { faults: vec![Fault::Fail { kind: RequestKind::Write, nth, persists }] }
}

/// A raid5 of three and a device for the second of them, with a write in its last segment whose
/// answer is not collected.
struct Uncollected {
    devices: Devices,
    volume: Volume,
    stripes: Stripes,
    place: Place,
    offset: u64,
    bytes: Vec<u8>,
}

const JOINS: usize = 1;
const MEMBERS: usize = 3;

impl Uncollected {
    fn new() -> Uncollected {
        let images = new_raid5(MEMBERS).iter().map(|device| device.image()).collect::<Vec<_>>();
        let devices = devices_of([images, vec![Image::blank(MEMBER_BYTES)]].concat());
        let (volume, superblock) = volume_of(&devices[..MEMBERS].to_vec());
        let geometry = &superblock.geometry;
        let place = geometry.segment_place(0, geometry.segments_of(0) - 1);
        let offset = geometry.device_offset(place, 1).expect("it is there");
        let length = usize::try_from(geometry.segment_bytes()).expect("small");
        let stripes = geometry.stripes().expect("it has stripes");
        volume
            .membership()
            .begin_replace(JOINS, device(&devices, MEMBERS), NEW)
            .expect("the others have all");
        Uncollected { devices, volume, stripes, place, offset, bytes: content(3, 1, length) }
    }

    fn submit(&self) -> Ticket {
        let pieces = vec![SharedBytes::from(AlignedBuffer::copy_of(&self.bytes))];
        self.volume.submit_write(IoPurpose::Data, self.place, pieces)
    }

    /// Makes the segment anew on the joining member; returns whether it could.
    fn rebuild(&self) -> bool {
        let piece = self.volume.membership().piece_at(self.offset).expect("in the pool");
        let (kept, keeps) = (Redundancy::Parity, BTreeSet::new());
        let wanted = RebuildRequest { piece, kept, keeps };
        self.volume
            .membership()
            .rebuild_pieces(JOINS, &[wanted], &first_copy(), |_, _| {})
            .expect("nothing fails")
            == 1
    }

    /// Calls the joining member online; returns whether the data is there and its rows agree.
    fn is_whole(&self) -> bool {
        let stay = self.volume.membership().stay_in(JOINS).expect("it is there");
        self.volume.membership().end_join(JOINS, &stay).expect("nothing fails");
        let length = self.bytes.len();
        let read = self.volume.read(IoPurpose::Data, self.place, length).expect("it can be read");
        read[..] == self.bytes[..] && self.volume.agrees(IoPurpose::Data, self.place, length)
    }
}

/// Goal: a rebuild goes on at a segment whose write is answered and not collected, or is late on
/// one member: it waits for the devices, and the rows agree afterwards, whatever the write and the
/// rebuild have put where. Method: each member in turn is late, that of the parity of a row too,
/// within the deadline; nobody waits for the ticket before the rebuild is through.
#[test]
fn a_rebuild_waits_for_the_devices_and_not_for_the_caller_of_a_write() {
    let delay_ns = u64::try_from((DEADLINE_DEFAULT / 4).as_nanos()).expect("seconds");
    for late in [None, Some(0), Some(2), Some(MEMBERS)] {
        let it = Uncollected::new();
        let row = it.stripes.locate(it.offset).expect("in the groups").row;
        let parities: BTreeSet<_> =
            (row..row + 3).filter_map(|row| it.stripes.parity_member(row)).collect();
        assert_eq!(parities.len(), MEMBERS, "each member has parity of a row");
        if let Some(late) = late {
            let faults = vec![Fault::Delay { kind: RequestKind::Write, nth: 0, delay_ns }];
            it.devices[late].arm(FaultPlan { faults });
        }
        let begun_ns = it.devices[0].now_ns();
        let write = it.submit();
        assert!(it.rebuild(), "{late:?}: the rebuild stands still");
        let took = Duration::from_nanos(it.devices[0].now_ns() - begun_ns);
        assert!(took < DEADLINE_DEFAULT, "{late:?}: {took:?}");
        assert!(it.is_whole(), "{late:?}: a row does not agree");
        write.wait().expect("the caller hears what the rebuild has collected");
    }
}

/// Goal: a job that wants the range of a write of which a part has failed settles that first, also
/// where the caller never collects the answer: the member has failed by the labels, which say what
/// it has missed. Method: a mirror of three, one of which joins and one fails the write.
#[test]
fn a_part_that_failed_is_settled_before_a_job_has_its_range() {
    let images = new_mirror(3).iter().map(|device| device.image()).collect::<Vec<_>>();
    let devices = devices_of([images, vec![Image::blank(POOL_BYTES)]].concat());
    let (volume, superblock) = volume_of(&devices[..3].to_vec());
    volume
        .membership()
        .begin_replace(JOINS, device(&devices, 3), NEW)
        .expect("the others have all");
    let place = superblock.geometry.group_layout().root_place();
    let offset = superblock.geometry.device_offset(place, 1).expect("in a group");
    let bytes = volume.read_page(IoPurpose::Home, place).expect("it can be read");
    devices[2].arm(fail_writes(0, true));
    let write = volume.submit_write(IoPurpose::Home, place, vec![SharedBytes::from(bytes)]);
    let piece = volume.membership().piece_at(offset).expect("in the pool");
    let (kept, keeps) = (Redundancy::Copies, BTreeSet::new());
    let wanted = RebuildRequest { piece, kept, keeps };
    let made = volume
        .membership()
        .rebuild_pieces(JOINS, &[wanted], &first_copy(), |_, _| {})
        .expect("the first has all");
    assert_eq!(made, 1, "the rebuild stands still");
    let label = read_superblock(devices[0].as_ref()).expect("a label").current;
    assert_eq!(label.members[2].state, MemberState::Failed, "durable before the range was held");
    let written = StaleParts::of(&superblock.geometry, &(offset..offset + 4096));
    let missed = label.members[2].missed.expect("it was whole when it went");
    assert!(missed.has_all(&written), "{missed:?}");
    write.wait().expect("the caller hears that the others have it");
}

/// Goal: a member whose answers only have to be collected comes back, and its device is let go of.
#[test]
fn a_member_with_answers_to_collect_comes_back() {
    for is_let_go in [false, true] {
        let devices = reopened(&new_mirror(2), &[0, 1]);
        let (volume, superblock) = volume_of(&devices);
        let place = superblock.geometry.group_layout().root_place();
        let bytes = volume.read_page(IoPurpose::Home, place).expect("it can be read");
        let write = volume.submit_write(IoPurpose::Home, place, vec![SharedBytes::from(bytes)]);
        let members = volume.members().expect("there are two");
        let error = DeviceError::Failed { device: "d1".to_owned() };
        members.fail(1, &members.view()[1], error).expect("the other has all");
        match is_let_go {
            true => _ = members.let_go(1).expect("nothing of it is on its way"),
            false => volume.membership().begin_return_of(1).expect("nothing of it is on its way"),
        }
        write.wait().expect("the other has it");
    }
}

/// Writes more than a segment and collects nothing: no fsync, no close, and no time passes.
fn write_much(pool: &Pool) {
    let (caller, root) = (Caller::root(), pool.root());
    let new = NewInode::new(FileKind::Regular, 0o644);
    let ino = pool.create(&caller, root, b"much", new, None).expect("there is room").ino;
    pool.write(&caller, ino, 0, &content(9, 9, MUCH)).expect("there is room");
}

/// A job: on which pool it is begun, and how.
type Idle = (&'static str, fn() -> (Devices, Pool), fn(&Pool, &Devices));

fn on(devices: Devices, width: usize) -> (Devices, Pool) {
    let clock = Arc::new(ManualClock::new());
    // What is written now must not count as written long ago.
    clock.advance_ns(3_600_000_000_000);
    let options = PoolOpenOptions { cache_bytes: 1 << 20, ..PoolOpenOptions::default() };
    let opening = VolumeDevices { devices: shared(&devices[..width]), accepts_missing: false };
    let pool = Pool::open_members(opening, clock, options).expect("it was closed");
    pool.tick().expect("nothing fails");
    (devices, pool)
}

fn raid5() -> (Devices, Pool) {
    on(reshape::filled_as(RAID5, 3), 3)
}

fn to_narrow() -> (Devices, Pool) {
    on(narrow::filled_as(RAID5, 4), 4)
}

fn mirror() -> (Devices, Pool) {
    on(new_pool(Layout::Mirror, 2, 1, POOL_BYTES), 2)
}

fn single() -> (Devices, Pool) {
    on(new_pool(Layout::Single, 1, 1, POOL_BYTES), 1)
}

fn two_groups() -> (Devices, Pool) {
    let (devices, pool) = on(new_pool(RAID5, 3, 3, 3 * POOL_BYTES), 3);
    pool.devices().add_disk_group(&group_of(&devices, RAID5, &[3, 4, 5])).expect("it fits");
    for name in 0..8 {
        put(&pool, &format!("f{name}"), &content(name, 1, 200_000)).expect("there is room");
    }
    (devices, pool)
}

fn two_mains() -> (Devices, Pool) {
    let (devices, pool) = on(new_pool(RAID5, 3, 3, 3 * POOL_BYTES), 3);
    let roles = DiskGroupRoles { data: true, metadata: true, journal: true };
    let new = DiskGroupSpec { roles, ..group_of(&devices, RAID5, &[3, 4, 5]) };
    pool.devices().add_disk_group(&new).expect("it fits");
    (devices, pool)
}

const SCRUB: fn(&Pool, &Devices) =
    |pool, _| assert!(pool.devices().scrub().expect("there are several"));
const REPLACE: fn(&Pool, &Devices) = |pool, devices| {
    pool.devices().fail_member(1).expect("the others have all");
    let new = device(devices, devices.len() - 1);
    pool.devices().replace_member(1, new, NEW).expect("it fits");
};
const RETURN: fn(&Pool, &Devices) = |pool, _| {
    pool.devices().fail_member(1).expect("the others have all");
    write_at(pool, "meanwhile");
    pool.devices().return_member_in(1).expect("it is there");
};

fn write_at(pool: &Pool, name: &str) {
    put(pool, name, &content(1, 1, 100_000)).expect("there is room");
}

const TABLE: &[Idle] = &[
    ("a scrub of a raid5", raid5, SCRUB),
    ("a scrub of a mirror", mirror, SCRUB),
    ("a scrub of several disk groups", two_groups, SCRUB),
    ("a rebuild of a raid5", raid5, REPLACE),
    ("a rebuild of a mirror", mirror, REPLACE),
    ("the return to a raid5", raid5, RETURN),
    ("the return to a mirror", mirror, RETURN),
    ("a raid5 that gets wider", raid5, |pool, devices| {
        pool.devices().widen(0, device(devices, 3), NEW).expect("it fits");
    }),
    ("a raid5 that gets narrower", to_narrow, |pool, _| pool.devices().narrow(2).expect("it fits")),
    ("a member for one device", single, |pool, devices| {
        pool.devices().attach_member(0, device(devices, 1), NEW).expect("it fits");
    }),
    ("a member more for a mirror", mirror, |pool, devices| {
        pool.devices().attach_member(0, device(devices, 2), NEW).expect("it fits");
    }),
    ("a member less for a mirror", mirror, |pool, _| {
        let detached = pool.devices().detach_member(1, true).expect("the other has all");
        (0..8).for_each(|_| pool.tick().expect("nothing fails"));
        assert_eq!(detached.unanswered(), 0, "nothing of it is on its way");
    }),
    ("a disk group that goes", two_groups, |pool, _| {
        pool.devices().remove_disk_group(1).expect("it fits elsewhere");
    }),
    ("metadata that moves", two_mains, |pool, _| {
        pool.devices().remove_disk_group(0).expect("it fits elsewhere");
    }),
    ("a fileset that is freed", raid5, |pool, _| {
        let name = "gone".parse().expect("a name");
        pool.fileset_admin()
            .create_fileset(&name, &engine::NewFileset::default())
            .expect("there is room");
        pool.fileset_admin().delete_fileset(&name).expect("it is there");
    }),
];

fn is_settled(pool: &Pool) -> bool {
    pool.jobs().is_empty()
        && !states(pool).contains(&MemberState::Joining)
        && !pool.fileset_admin().is_freeing().expect("the table is whole")
}

/// Goal: each job ends on a pool of which nothing is asked any more. Method: data is on its way to
/// the devices and its answers are not collected; the job is begun, and there are ticks alone,
/// while the clock stands, so that nothing is committed for its age.
#[test]
fn every_job_ends_on_an_idle_pool() {
    for (what, new, begin) in TABLE {
        let (devices, pool) = new();
        write_much(&pool);
        begin(&pool, &devices);
        let mut ticks = 0;
        while ticks < 2 || !is_settled(&pool) {
            ticks += 1;
            pool.tick().unwrap_or_else(|error| panic!("{what}: {error}"));
            let jobs = pool.jobs();
            assert!(ticks < TICKS_MAX, "{what} stands still: {jobs:?}");
            assert!(jobs.iter().all(|job| job.failure.is_none()), "{what}: {jobs:?}");
        }
        println!("{what}: {ticks} ticks, {} disk groups", groups(&pool).len());
    }
}

/// Goal: a member that fails a write is left out, and a spare takes its place, on a pool of which
/// nothing is asked any more. Method: the answers of data are not collected; there are ticks alone.
#[test]
fn a_member_that_failed_a_write_is_left_out_without_a_further_request() {
    for new in [raid5, mirror] {
        let (devices, pool) = new();
        let width = devices.len() - 1;
        pool.devices().add_spare(device(&devices, width), NEW).expect("it fits");
        devices[1].arm(fail_writes(0, true));
        write_much(&pool);
        for _ in 0..TICKS_MAX {
            pool.tick().expect("the others have all");
            if pool.devices().spares().is_empty() && is_settled(&pool) {
                break;
            }
        }
        let states = states(&pool);
        assert!(
            pool.devices().spares().is_empty() && is_settled(&pool),
            "{states:?}: {:?}",
            pool.jobs()
        );
        assert_eq!(states, vec![MemberState::Online; width], "the spare has all");
        let kept: Devices =
            all_but(width, 1).into_iter().chain([width]).map(|at| devices[at].clone()).collect();
        pool.close().expect("nothing fails");
        drop(pool);
        let again = reopened(&kept, &(0..width).collect::<Vec<_>>());
        open(&again).expect("the spare is a member");
    }
}
