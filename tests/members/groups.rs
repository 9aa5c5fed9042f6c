//! Disk groups that are added to a pool in use: what they hold, and what a power cut leaves.

use std::sync::Arc;

use engine::api::{Caller, FileKind, FileSystem, FsError, NewInode};
use engine::{DiskGroupStatus, NewFileset, Pool, PoolCreateOptions};
use format::disk_group::{DiskGroupRoles, DiskGroupState};
use format::fileset::{FilesetName, NamePart};
use format::members::Layout;
use format::placement::Placement;
use format::stripes::UNIT_SHIFT_DEFAULT;
use runtime::clock::ManualClock;
use runtime::prng::Prng;
use storage::device::sim::{Fault, FaultPlan, Image, SimDevice};
use storage::device::{
    AlignedBuffer, Device, DeviceOperation, IoPurpose, RequestKind, SharedDevice,
};
use storage::pool::{SuperblockReport, read_superblock};
use storage::volume::{DiskGroupSpec, Volume, VolumeDevices};

use super::{Devices, POOL_BYTES, cut_at, devices_of, get, new_mirror, open, put, shared};

const MIB: usize = 1 << 20;
const RAID5: Layout = Layout::Raid5 { unit_shift: UNIT_SHIFT_DEFAULT };
const STRIPE: Layout = Layout::Stripe { unit_shift: UNIT_SHIFT_DEFAULT };

pub(super) fn content(name: usize, version: usize, bytes: usize) -> Vec<u8> {
    format!("file {name} version {version} ").bytes().cycle().take(bytes).collect()
}

/// Returns the devices of a new pool that has `width` members in `layout`, and `further` blank ones
/// of `further_bytes`.
pub(super) fn new_pool(
    layout: Layout,
    width: usize,
    further: usize,
    further_bytes: u64,
) -> Devices {
    let images = match layout {
        Layout::Mirror => new_mirror(width).iter().map(|device| device.image()).collect(),
        Layout::Single | Layout::RoundRobin | Layout::Stripe { .. } | Layout::Raid5 { .. } => {
            let devices = devices_of(vec![Image::blank(POOL_BYTES); width]);
            let mut options = PoolCreateOptions::new(POOL_BYTES, [5; 64]);
            options.geometry.journal_bytes = Some(1 << 20);
            let members = shared(&devices);
            Pool::create_on(&members, layout, &ManualClock::new(), &options).expect("it fits");
            devices.iter().map(|device| device.image()).collect::<Vec<Image>>()
        }
    };
    devices_of([images, vec![Image::blank(further_bytes); further]].concat())
}

/// Returns the group of the devices in `which`.
pub(super) fn group_of(devices: &Devices, layout: Layout, which: &[usize]) -> DiskGroupSpec {
    let device = |at: &usize| -> (SharedDevice, [u8; 16]) {
        let id = u8::try_from(100 + at).expect("small");
        (Arc::<storage::device::sim::SimDevice>::clone(&devices[*at]), [id; 16])
    };
    DiskGroupSpec {
        layout,
        devices: which.iter().map(device).collect(),
        roles: DiskGroupRoles::DATA,
    }
}

pub(super) fn groups(pool: &Pool) -> Vec<DiskGroupStatus> {
    pool.devices().disk_groups().expect("the maps are whole")
}

/// Returns what `df` tells: all, and what is left.
fn space(pool: &Pool) -> (u64, u64) {
    let space = pool.status().space;
    (space.capacity, space.available)
}

pub(super) fn check_all(devices: &Devices, what: &str) {
    let opening = VolumeDevices { devices: shared(devices), accepts_missing: false };
    let (volume, _) = Volume::open_members(opening).expect("it was open a moment ago");
    let report =
        check::run(Arc::clone(volume.device()), check::CheckOptions::default(), &mut |_| {});
    assert!(report.findings.is_empty(), "{what}: {:?}", report.findings);
    assert!(report.stopped.is_none(), "{what}: {:?}", report.stopped);
}

/// Goal: a group of each kind added to a pool of each kind takes data, and all of it is there after
/// the pool was opened again; more fits than on the first group alone.
#[test]
fn what_is_written_after_a_group_was_added_lies_on_all_groups() {
    let cases = [
        (Layout::Single, 1, Layout::Single, 1),
        (Layout::Single, 1, Layout::Mirror, 2),
        (Layout::Mirror, 2, Layout::Single, 1),
        (Layout::Mirror, 2, Layout::Mirror, 3),
        (RAID5, 3, RAID5, 3),
        (RAID5, 3, Layout::Mirror, 2),
        (RAID5, 3, Layout::Single, 1),
        (RAID5, 3, STRIPE, 2),
        (RAID5, 3, RAID5, 4),
        (RAID5, 4, RAID5, 3),
        (RAID5, 3, STRIPE, 5),
        (STRIPE, 3, RAID5, 6),
        (STRIPE, 2, STRIPE, 2),
        (STRIPE, 2, RAID5, 3),
        (Layout::Mirror, 2, Layout::RoundRobin, 2),
        (Layout::Single, 1, RAID5, 3),
        (Layout::Single, 1, RAID5, 10),
        (Layout::Single, 1, STRIPE, 2),
        (Layout::Mirror, 2, RAID5, 4),
    ];
    for (first, width, added, more) in cases {
        let what = format!("{} and {}", first.word(), added.word());
        let devices = new_pool(first, width, more, 3 * POOL_BYTES);
        let pool = open(&devices[..width]).expect("it was closed");
        put(&pool, "before", &content(0, 0, MIB)).expect("there is room");
        let (capacity, available) = space(&pool);
        let which: Vec<usize> = (width..width + more).collect();
        let number =
            pool.devices().add_disk_group(&group_of(&devices, added, &which)).expect("it fits");
        assert_eq!(number, 1, "{what}");
        let after = space(&pool);
        assert!(after.0 > capacity && after.1 > available, "{what}: {after:?}");
        // More than the first group had room for.
        let files = usize::try_from(available * 4096).expect("small") / MIB + 6;
        for name in 0..files {
            put(&pool, &format!("f{name}"), &content(name, 1, MIB))
                .unwrap_or_else(|error| panic!("{what}: file {name}: {error}"));
        }
        let used: Vec<u64> = groups(&pool).iter().map(|group| group.used_bytes).collect();
        assert!(used.iter().all(|used| *used > 3 << 19), "{what}: {used:?}");
        pool.close().expect("nothing fails");
        drop(pool);
        check_all(&devices, &what);
        let pool = open(&devices).expect("all are there");
        assert_eq!(space(&pool).0, after.0, "{what}");
        assert!(get(&pool, "before") == Some(content(0, 0, MIB)), "{what}");
        for name in 0..files {
            assert!(
                get(&pool, &format!("f{name}")) == Some(content(name, 1, MIB)),
                "{what} {name}"
            );
        }
        let states: Vec<DiskGroupState> = groups(&pool).iter().map(|group| group.state).collect();
        assert_eq!(states, [DiskGroupState::Online; 2], "{what}");
        let caller = Caller::root();
        for name in 0..files {
            let name = format!("f{name}");
            pool.unlink(&caller, pool.root(), name.as_bytes(), None).expect("it is there");
        }
        pool.close().expect("nothing fails");
        drop(pool);
        check_all(&devices, &what);
    }
}

/// Goal: a disk group that is added to a full pool is of use, though all metadata goes to the
/// first: data moves away from there (G8). Method: files until there is no space, a group, and a
/// file of which every block has a page of the map; what is accepted is installed.
#[test]
fn a_full_pool_that_is_added_to_has_room_for_maps() {
    let leaf_bytes = 124 * (16 << 10);
    let devices = new_pool(Layout::Single, 1, 1, 8 * POOL_BYTES);
    let pool = open(&devices[..1]).expect("it was closed");
    let filled = (0..100)
        .take_while(|name| put(&pool, &format!("f{name}"), &content(*name, 0, 200 << 10)).is_ok());
    let filled = filled.count();
    assert!((10..90).contains(&filled), "{filled}");
    pool.devices().add_disk_group(&group_of(&devices, Layout::Single, &[1])).expect("it fits");
    let (caller, new) = (Caller::root(), NewInode::new(FileKind::Regular, 0o644));
    let ino = pool.create(&caller, pool.root(), b"long", new, None).expect("there is room").ino;
    for leaf in 0..1000 {
        let block = content(leaf, 1, 16 << 10);
        let at = u64::try_from(leaf).expect("small") * leaf_bytes;
        pool.write(&caller, ino, at, &block).unwrap_or_else(|error| panic!("{leaf}: {error}"));
    }
    pool.fsync(&caller, ino, false).expect("what was accepted has room");
    let used = groups(&pool)[0].used_bytes;
    assert!(used > 4 << 20, "{used} bytes: the pages are there");
    pool.close().expect("nothing fails");
    drop(pool);
    check_all(&devices, "added to");
    let pool = open(&devices).expect("all are there");
    for name in 0..filled {
        assert!(get(&pool, &format!("f{name}")) == Some(content(name, 0, 200 << 10)), "{name}");
    }
    for leaf in (0..1000).step_by(13) {
        let (at, mut found) = (u64::try_from(leaf).expect("small") * leaf_bytes, Vec::new());
        let ino = pool.lookup(&caller, pool.root(), b"long").expect("it is there").ino;
        pool.read(&caller, ino, at, 16 << 10, &mut found).expect("it can be read");
        assert!(found == content(leaf, 1, 16 << 10), "leaf {leaf}");
    }
}

/// Goal: room that lies in holes is found, where the first disk group keeps more segments for
/// metadata than the cleaner waits for (G8). Method: both disk groups are filled, and every second
/// file goes.
#[test]
fn holes_of_a_pool_of_two_groups_are_found() {
    let bytes = 72 << 20;
    let devices = devices_of(vec![Image::blank(bytes); 2]);
    let mut options = PoolCreateOptions::new(bytes, [5; 64]);
    options.geometry.journal_bytes = Some(1 << 20);
    options.geometry.segment_bytes = Some(128 << 10);
    let first = shared(&devices[..1]);
    Pool::create_on(&first, Layout::Single, &ManualClock::new(), &options).expect("it fits");
    let devices = devices_of(devices.iter().map(|device| device.image()).collect());
    let pool = open(&devices[..1]).expect("it was closed");
    pool.devices().add_disk_group(&group_of(&devices, Layout::Single, &[1])).expect("it fits");
    let (caller, bytes) = (Caller::root(), 48 << 10);
    let name = |number: usize| format!("f{number}");
    let fits = |number: &usize| put(&pool, &name(*number), &content(*number, 0, bytes)).is_ok();
    let filled = (0..5000).take_while(fits).count();
    assert!((1000..4000).contains(&filled), "{filled}");
    for number in (0..filled).step_by(2) {
        let name = name(number);
        let ino = pool.lookup(&caller, pool.root(), name.as_bytes()).expect("it is there").ino;
        pool.unlink(&caller, pool.root(), name.as_bytes(), None).expect("it is there");
        pool.forget(ino, 3);
    }
    pool.checkpoint().expect("nothing fails");
    let (_, available) = space(&pool);
    let more = usize::try_from(available).expect("small") * 4096 / bytes / 3;
    assert!(more > 200, "{more}");
    for number in 10_000..10_000 + more {
        put(&pool, &name(number), &content(number, 0, bytes))
            .unwrap_or_else(|error| panic!("file {number} of {more}: {error}"));
    }
    pool.close().expect("nothing fails");
    drop(pool);
    check_all(&devices, "holes");
}

/// Goal: pages of a group in stripes lie where their second copies leave room, though the pool was
/// made without stripes and fronts there are shorter. Method: fronts that fill more than the half
/// of a segment; each member of the raid5 away in turn.
#[test]
fn stripes_beside_a_single_have_fronts_of_their_own() {
    let devices = devices_of(vec![Image::blank(16 * POOL_BYTES); 4]);
    let mut options = PoolCreateOptions::new(16 * POOL_BYTES, [5; 64]);
    options.geometry.journal_bytes = Some(1 << 20);
    options.geometry.group_bytes = Some(120 << 20);
    options.geometry.segment_bytes = Some(128 << 10);
    let first = shared(&devices[..1]);
    Pool::create_on(&first, Layout::Single, &ManualClock::new(), &options).expect("it fits");
    let pool = open(&devices[..1]).expect("a new pool opens");
    pool.devices().add_disk_group(&group_of(&devices, RAID5, &[1, 2, 3])).expect("it fits");
    let geometry = pool.status().geometry;
    let added = geometry.added[0].first;
    assert!(geometry.front_segments(added) > geometry.front_segments(0), "{geometry:?}");
    let files = 40;
    for name in 0..files {
        put(&pool, &format!("f{name}"), &content(name, 1, MIB)).expect("there is room");
    }
    assert!(groups(&pool)[1].used_bytes > 8 << 20, "{:?}", groups(&pool));
    pool.close().expect("nothing fails");
    drop(pool);
    check_all(&devices, "all");
    let images: Vec<Image> = devices.iter().map(|device| device.image()).collect();
    for away in 1..4 {
        let mut left = images.clone();
        left.remove(away);
        let pool = open(&devices_of(left)).expect("one may be away");
        for name in 0..files {
            let found = get(&pool, &format!("f{name}"));
            assert!(found == Some(content(name, 1, MIB)), "without {away}: {name}");
        }
        // The maps of the group are read and written without it.
        put(&pool, "more", &content(99, 1, 4 * MIB)).expect("there is room");
        pool.close().expect("nothing fails");
    }
}

/// Goal: what cannot be added is refused, and nothing is written for it.
#[test]
fn what_cannot_be_added_is_refused() {
    let devices = new_pool(Layout::Single, 1, 3, POOL_BYTES);
    let small = devices_of(vec![Image::blank(2 << 20)]);
    let pool = open(&devices[..1]).expect("it was closed");
    let written = devices[0].time();
    let cases = [
        (group_of(&devices, Layout::Single, &[1, 2]), "a single of 2"),
        (group_of(&devices, Layout::Mirror, &[1]), "a mirror of 1"),
        (group_of(&devices, RAID5, &[1, 2]), "a raid5 of 2"),
        (group_of(&small, Layout::Single, &[0]), "too few"),
    ];
    for (group, words) in cases {
        let error = pool.devices().add_disk_group(&group).expect_err(words).to_string();
        assert!(error.contains(words), "{error}");
    }
    assert_eq!(devices[0].time(), written, "nothing was written");
    assert_eq!(groups(&pool).len(), 1);
}

/// Goal: a device that fails while it is added, at whichever of its requests, leaves the pool as it
/// was, and it goes on; it opens later without that device.
#[test]
fn a_device_that_fails_while_it_is_added_is_left_out() {
    for (kind, least) in [(RequestKind::Write, 10), (RequestKind::Flush, 5)] {
        for (layout, width) in [(Layout::Single, 1), (Layout::Mirror, 2)] {
            let failed = (0..).take_while(|nth| is_left_out(kind, *nth, layout, width)).count();
            assert!(failed >= least, "{kind:?}: only {failed} requests fail");
        }
    }
}

/// Whether a disk group is not added whose device fails its request number `nth`.
fn is_left_out(kind: RequestKind, nth: u64, layout: Layout, width: usize) -> bool {
    let what = format!("{} of {width}, {kind:?} {nth}", layout.word());
    let devices = new_pool(layout, width, 1, POOL_BYTES);
    let pool = open(&devices[..width]).expect("it was closed");
    let faults = vec![Fault::Fail { kind, nth, persists: true }];
    devices[width].arm(FaultPlan { faults });
    let error = pool.devices().add_disk_group(&group_of(&devices, Layout::Single, &[width]));
    let Err(error) = error.map_err(|error| error.to_string()) else { return false };
    let name = format!("/sim/d{width}");
    assert!(error.contains(&name) && error.contains("nothing was added"), "{what}: {error}");
    assert_eq!(groups(&pool).len(), 1, "{what}");
    put(&pool, "f", b"it goes on").expect("the first devices have not failed");
    pool.close().expect("nothing fails");
    drop(pool);
    let alone = devices_of(devices[..width].iter().map(|device| device.image()).collect());
    let pool = open(&alone).unwrap_or_else(|error| panic!("{what}: {error}"));
    assert_eq!(groups(&pool).len(), 1, "{what}");
    assert_eq!(get(&pool, "f").as_deref(), Some(&b"it goes on"[..]), "{what}");
    true
}

/// Goal: a power cut at any moment of what takes a disk group out of the labels again, when its
/// device has failed as they came to tell of it, leaves no two histories. Method: whatever does not
/// open asks for the device that failed, because the labels still tell of it.
#[test]
fn a_cut_while_a_failed_addition_is_taken_back_leaves_one_history() {
    let devices = new_pool(Layout::Mirror, 2, 1, POOL_BYTES);
    let pool = open(&devices[..2]).expect("it was closed");
    let begun = devices[0].time();
    let faults = vec![Fault::Fail { kind: RequestKind::Flush, nth: 4, persists: true }];
    devices[2].arm(FaultPlan { faults });
    let error = pool.devices().add_disk_group(&group_of(&devices, Layout::Single, &[2]));
    assert!(error.expect_err("it fails").to_string().contains("nothing was added"));
    let recordings: Vec<_> = devices[..2].iter().map(|device| device.recording()).collect();
    let mut prng = Prng::from_seed(3);
    for time in begun..=devices[0].time() {
        for _ in 0..4 {
            let image =
                |at: usize, prng: &mut Prng| recordings[at].point_at(time).image(prng).image;
            let cut = devices_of(vec![image(0, &mut prng), image(1, &mut prng)]);
            match open(&cut) {
                Ok(pool) => assert_eq!(groups(&pool).len(), 1, "cut at {time}"),
                Err(error) => {
                    let error = error.to_string();
                    assert!(error.contains("/sim/d2"), "cut at {time}: {error}");
                }
            }
        }
    }
}

/// Goal: a member of a mirror that misses one write while its disk group is added is found out: it
/// has no label yet by which it could be marked, so nothing is added.
#[test]
fn a_member_that_misses_one_write_while_it_is_added_is_found_out() {
    for (kind, ends) in [(RequestKind::Write, 5), (RequestKind::Flush, 3)] {
        for nth in 0..ends {
            let devices = new_pool(Layout::Single, 1, 4, POOL_BYTES);
            let pool = open(&devices[..1]).expect("it was closed");
            let faults = vec![Fault::Fail { kind, nth, persists: false }];
            devices[2].arm(FaultPlan { faults });
            let error = pool.devices().add_disk_group(&group_of(&devices, Layout::Mirror, &[1, 2]));
            let error = error.expect_err("one of them has not all").to_string();
            assert!(error.contains("/sim/d2") && error.contains("nothing was added"), "{error}");
            assert_eq!(groups(&pool).len(), 1, "{kind:?} {nth}");
            put(&pool, "f", b"it goes on").expect("the first device has not failed");
            let others = group_of(&devices, Layout::Mirror, &[3, 4]);
            pool.devices().add_disk_group(&others).expect("these are well");
            assert!(
                pool.devices().members().iter().all(|it| it.member.is_online()),
                "{kind:?} {nth}"
            );
        }
    }
}

/// Goal: a group table that cannot be read while a disk group is added leaves the pool as it was,
/// running and after a restart, and the new devices blank; the same devices are added once it can.
/// Method: the numbers of the new groups are in a second page of the table, which has been in use;
/// it is not in memory after an open, and then no read is answered.
#[test]
fn what_cannot_be_read_while_a_group_is_added_leaves_nothing_behind() {
    for (layout, width) in [(Layout::Single, 1), (Layout::Mirror, 2)] {
        let images = [vec![Image::blank(120 << 20)], vec![Image::blank(20 << 20); width]];
        let devices = devices_of(images.concat());
        let mut options = PoolCreateOptions::new(120 << 20, [5; 64]);
        options.geometry.journal_bytes = Some(1 << 20);
        options.geometry.segment_bytes = Some(128 << 10);
        options.geometry.group_bytes = Some(2 << 20);
        let first = shared(&devices[..1]);
        Pool::create_on(&first, Layout::Single, &ManualClock::new(), &options).expect("it fits");
        let pool = open(&devices[..1]).expect("it is new");
        let which: Vec<usize> = (1..=width).collect();
        let group = group_of(&devices, layout, &which);
        pool.devices().add_disk_group(&group).expect("it fits");
        let root: FilesetName = "root".parse().expect("a name");
        pool.set_placement(&root, &[], (Placement::Group(1), false)).expect("it is there");
        for name in 0..15 {
            put(&pool, &format!("f{name}"), &content(name, 0, MIB)).expect("there is room");
        }
        pool.devices().remove_disk_group(1).expect("it fits elsewhere");
        for round in 0.. {
            pool.tick().expect("nothing fails");
            if groups(&pool).len() == 1 {
                break;
            }
            assert!(round < 2000, "the removal does not end");
        }
        pool.close().expect("nothing fails");
        drop(pool);

        let pool = open(&devices[..1]).expect("it was closed");
        let fault = Fault::Fail { kind: RequestKind::Read, nth: 0, persists: true };
        devices[0].arm(FaultPlan { faults: vec![fault] });
        let which: Vec<usize> = (1..=width).collect();
        let group = group_of(&devices, layout, &which);
        let error = pool.devices().add_disk_group(&group).expect_err("the table cannot be read");
        assert!(error.to_string().contains("/sim/d0"), "{error}");
        devices[0].arm(FaultPlan::none());
        assert_eq!(groups(&pool).len(), 1, "{}", layout.word());
        for device in &devices[1..] {
            assert!(read_superblock(device.as_ref()).is_err(), "it still has a label");
        }
        put(&pool, "f", b"it goes on").expect("nothing has failed");
        let left = open(&devices_of(vec![devices[0].image()])).expect("it needs no other");
        assert_eq!(groups(&left).len(), 1, "{}", layout.word());
        assert_eq!(get(&left, "f").as_deref(), Some(&b"it goes on"[..]));
        drop(left);

        pool.devices().add_disk_group(&group).expect("now it can be read");
        let (capacity, _) = space(&pool);
        for name in 0..12 {
            put(&pool, &format!("f{name}"), &content(name, 1, MIB)).expect("there is room");
        }
        pool.close().expect("nothing fails");
        drop(pool);
        check_all(&devices, layout.word());
        let pool = open(&devices).expect("all are there");
        assert_eq!((groups(&pool).len(), space(&pool).0), (2, capacity));
        assert!(get(&pool, "f7") == Some(content(7, 1, MIB)));
    }
}

/// Goal: what a device says of its last requests when its disk group was taken out stops nobody.
#[test]
fn a_member_that_has_left_fails_nothing() {
    for (layout, width) in [(Layout::Single, 1), (Layout::Mirror, 2)] {
        let devices = new_pool(Layout::Single, 1, width, POOL_BYTES);
        let pool = open(&devices[..1]).expect("it was closed");
        let which: Vec<usize> = (1..=width).collect();
        pool.devices().add_disk_group(&group_of(&devices, layout, &which)).expect("it fits");
        pool.close().expect("nothing fails");
        drop(pool);
        let opening = VolumeDevices { devices: shared(&devices), accepts_missing: false };
        let (volume, _) = Volume::open_members(opening).expect("all are there");
        let before = volume.device();
        for device in &devices[1..] {
            let faults = vec![Fault::Fail { kind: RequestKind::Flush, nth: 0, persists: false }];
            device.arm(FaultPlan { faults });
        }
        let ticket = before.submit(IoPurpose::Data, DeviceOperation::Flush);
        volume.membership().take_group_out(1).expect("the others have the label");
        ticket.wait().unwrap_or_else(|error| panic!("{}: {error}", layout.word()));
    }
}

/// Goal: a device that was in the pool before, with descriptors of it, can be added.
#[test]
fn what_lay_on_a_device_is_no_group_of_the_pool() {
    let devices = new_pool(Layout::Single, 1, 1, 3 * POOL_BYTES);
    let pool = open(&devices[..1]).expect("it was closed");
    pool.devices().add_disk_group(&group_of(&devices, Layout::Single, &[1])).expect("it fits");
    for name in 0..12 {
        put(&pool, &format!("f{name}"), &content(name, 1, MIB)).expect("there is room");
    }
    pool.close().expect("nothing fails");
    let old = devices[1].image();
    // The same pool as it was before, and the device with all that it had.
    let first = new_pool(Layout::Single, 1, 0, 0)[0].image();
    let devices = devices_of(vec![first, old]);
    let pool = open(&devices[..1]).expect("it is new");
    pool.devices().add_disk_group(&group_of(&devices, Layout::Single, &[1])).expect("it fits");
    for name in 0..12 {
        put(&pool, &format!("f{name}"), &content(name, 2, MIB)).expect("there is room");
    }
    pool.close().expect("nothing fails");
    drop(pool);
    check_all(&devices, "added again");
}

/// Panics unless `pool`, which wrote the file "after" on what a power cut left, is whole when it is
/// cut off once more, and has that.
pub(super) fn goes_on(pool: Pool, left: &Devices, after: &[u8], what: &str) {
    drop(pool);
    let left = labelled(left);
    check_all(&left, what);
    let pool = open(&left).unwrap_or_else(|error| panic!("{what}: again: {error}"));
    assert!(get(&pool, "after").as_deref() == Some(after), "{what}");
}

/// Returns of `devices` those that a user's command finds: which the newest label names.
pub(super) fn labelled(devices: &Devices) -> Devices {
    let read = |device: &Arc<SimDevice>| read_superblock(device.as_ref()).ok();
    let newest = devices.iter().filter_map(read).max_by_key(SuperblockReport::age);
    let newest = newest.expect("the first has one").current;
    let is_named = |device: &&Arc<SimDevice>| {
        let own = read(device).map(|read| read.current.device_id());
        own.is_some_and(|own| newest.members.iter().any(|member| member.id == own))
    };
    devices_of(devices.iter().filter(is_named).map(|device| device.image()).collect())
}

/// Goal: a power cut at any event of an addition leaves the pool with the group or without, and
/// what was acknowledged; what was acknowledged afterwards, on both, is there.
#[test]
fn a_cut_while_a_group_is_added_leaves_all_of_it_or_nothing() {
    let cases = [
        (Layout::Single, 1, Layout::Single, 1),
        (Layout::Mirror, 2, Layout::Mirror, 2),
        (Layout::Single, 1, RAID5, 3),
    ];
    let mut states = [0; 2];
    for (first, width, added, more) in cases {
        let devices = new_pool(first, width, more, POOL_BYTES);
        // What is there before is of an earlier use.
        let junk = AlignedBuffer::copy_of(&[0xa5; 4096]);
        for device in &devices[width..] {
            device.write(IoPurpose::Data, 3 << 20, junk.clone()).expect("in range");
        }
        let devices = devices_of(devices.iter().map(|device| device.image()).collect());
        let pool = open(&devices[..width]).expect("it was closed");
        put(&pool, "before", &content(0, 0, 300_000)).expect("there is room");
        let now = || devices.iter().map(|device| device.time()).max().expect("there are devices");
        let begun = now();
        let which: Vec<usize> = (width..width + more).collect();
        pool.devices().add_disk_group(&group_of(&devices, added, &which)).expect("it fits");
        let is_added = now();
        let mut acknowledged = Vec::new();
        for name in 0..6 {
            put(&pool, &format!("f{name}"), &content(name, 1, 200_000)).expect("there is room");
            acknowledged.push((now(), name));
        }
        let end = now();
        drop(pool);
        let recordings: Vec<_> = devices.iter().map(|device| device.recording()).collect();
        let mut prng = Prng::from_seed(11);
        for time in begun..=end {
            // Each moment of the addition, some of the rest.
            let tries = if time <= is_added { 6 } else { u64::from(time.is_multiple_of(5)) };
            for state in 0..tries {
                let images = cut_at(&recordings, time, state == 0, &mut prng);
                let what = format!("{}: cut at {time} of {begun}, state {state}", first.word());
                let left = labelled(&devices_of(images));
                let pool = open(&left).unwrap_or_else(|error| panic!("{what}: {error}"));
                let count = groups(&pool).len();
                assert!(time < is_added || count == 2, "{what}: {count} groups");
                states[count - 1] += 1;
                assert!(get(&pool, "before") == Some(content(0, 0, 300_000)), "{what}");
                for (_, name) in acknowledged.iter().filter(|(at, _)| *at <= time) {
                    let found = get(&pool, &format!("f{name}"));
                    assert!(found == Some(content(*name, 1, 200_000)), "{what}: file {name}");
                }
                put(&pool, "after", &content(9, 9, 300_000)).expect("it goes on");
                pool.close().expect("nothing fails");
                drop(pool);
                let left = labelled(&left);
                check_all(&left, &what);
                let pool = open(&left).unwrap_or_else(|error| panic!("{what}: again: {error}"));
                assert!(get(&pool, "after") == Some(content(9, 9, 300_000)), "{what}");
                assert_eq!(groups(&pool).len(), count, "{what}");
            }
        }
    }
    println!("{states:?} states without and with the group");
    assert!(states.iter().all(|count| *count > 20), "{states:?}");
}

/// Goal: a pool whose data lies on two groups is refused without one of them, by name.
#[test]
fn a_pool_is_not_opened_without_one_of_its_groups() {
    let devices = new_pool(Layout::Single, 1, 2, POOL_BYTES);
    let pool = open(&devices[..1]).expect("it was closed");
    pool.devices().add_disk_group(&group_of(&devices, Layout::Mirror, &[1, 2])).expect("it fits");
    pool.close().expect("nothing fails");
    drop(pool);
    let images: Vec<Image> = devices.iter().map(|device| device.image()).collect();
    let error = open(&devices_of(images[..1].to_vec())).expect_err("its mirror is away");
    assert!(error.to_string().contains("/sim/d1"), "{error}");
    let degraded = open(&devices_of(images[..2].to_vec())).expect("one of the mirror is enough");
    put(&degraded, "f", b"degraded").expect("it goes on");
    degraded.close().expect("nothing fails");
    drop(degraded);
    let alone = open(&devices_of(images[1..].to_vec())).expect_err("the first is away");
    assert!(alone.to_string().contains("missing"), "{alone}");
}

/// Goal: a member of a group that was added is replaced as one of the first is, by a spare too; it
/// has everything of its own group afterwards.
#[test]
fn a_member_of_an_added_group_is_replaced() {
    for (layout, width, is_by_spare) in
        [(Layout::Mirror, 2, false), (Layout::Mirror, 2, true), (RAID5, 3, false)]
    {
        let what = format!("{}, by a spare: {is_by_spare}", layout.word());
        let devices = new_pool(layout, width, width + 1, POOL_BYTES);
        let pool = open(&devices[..width]).expect("it was closed");
        pool.tick().expect("nothing fails");
        let which: Vec<usize> = (width..2 * width).collect();
        pool.devices().add_disk_group(&group_of(&devices, layout, &which)).expect("it fits");
        for name in 0..8 {
            put(&pool, &format!("f{name}"), &content(name, 1, MIB / 2)).expect("there is room");
        }
        let new: SharedDevice = Arc::<SimDevice>::clone(&devices[2 * width]);
        let slot = 2 * width - 1;
        if is_by_spare {
            pool.devices().add_spare(new, [9; 16]).expect("it fits");
            pool.devices().fail_member(slot).expect("the other has all");
        } else {
            pool.devices().replace_member(slot, new, [9; 16]).expect("the others have all");
        }
        let is_whole =
            |pool: &Pool| pool.devices().members().iter().all(|it| it.member.is_online());
        for round in 0.. {
            pool.tick().expect("nothing fails");
            put(&pool, "meanwhile", &content(0, round, 100_000)).expect("there is room");
            if is_whole(&pool) {
                break;
            }
            assert!(round < 200, "{what}: the rebuild does not end");
        }
        pool.close().expect("nothing fails");
        drop(pool);
        // The old one is away, and another of the same group too.
        let there = (0..2 * width + 1).filter(|at| *at != slot && *at != width);
        let left = devices_of(there.map(|at| devices[at].image()).collect());
        let pool = open(&left).unwrap_or_else(|error| panic!("{what}: {error}"));
        for name in 0..8 {
            let found = get(&pool, &format!("f{name}"));
            assert!(found == Some(content(name, 1, MIB / 2)), "{what}: file {name}");
        }
    }
}

/// Goal: a fileset is made with the placement that is asked for, whatever the one above has, and
/// what is made in it has that; it can be set elsewhere, snapshots and clones keep it, and one that
/// no disk group serves is refused with nothing made. All of it is so after a power cut.
#[test]
fn a_fileset_has_the_placement_that_is_asked_for() {
    let devices = new_pool(Layout::Single, 1, 1, POOL_BYTES);
    let pool = open(&devices[..1]).expect("it was closed");
    pool.devices().add_disk_group(&group_of(&devices, Layout::Single, &[1])).expect("it fits");
    let named = |name: &str| -> FilesetName { name.parse().expect("a name") };
    let make = |name: &str, placement| {
        let number = u8::try_from(name.len()).expect("short");
        let new = NewFileset { random: [number; 32], placement, ..NewFileset::default() };
        pool.fileset_admin().create_fileset(&named(name), &new)
    };
    let of_root = |pool: &Pool, name: &str| {
        let all = pool.fileset_admin().filesets_from(0, 100).expect("the table is whole");
        let slot = all.iter().find(|it| it.name == name).expect("it was made").slot;
        pool.placement_of_root(slot).expect("its pages are whole")
    };
    make("a", Some(Placement::Group(1))).expect("there is room");
    make("a/b", Some(Placement::Group(0))).expect("there is room");
    make("a/b/c", Some(Placement::Any)).expect("there is room");
    make("a/b/c/d", None).expect("there is room");
    assert_eq!(make("none", Some(Placement::Group(2))).err(), Some(FsError::Invalid));
    assert_eq!(make("none", Some(Placement::Striped)).err(), Some(FsError::Invalid));
    make("none", None).expect("nothing of it is there");
    let snapshot = NamePart::new("monday").expect("a name");
    pool.fileset_admin().create_snapshot(&named("a"), &snapshot, [1; 16]).expect("there is room");
    let set = (Placement::Group(0), false);
    pool.set_placement(&named("a"), &[], set).expect("it is there");
    pool.fileset_admin()
        .create_clone((&named("a"), &snapshot), &named("clone"), [77; 16])
        .expect("there is room");

    let uuid = pool.fileset_admin().hold_fileset(&named("a/b")).expect("it is there");
    let (root, new) = (pool.root_of(uuid).expect("held"), NewInode::new(FileKind::Regular, 0o644));
    pool.create(&Caller::root(), root, b"file", new, None).expect("there is room");
    assert_eq!(pool.placement(&named("a/b"), &[b"file"]), Ok(Placement::Group(0)));

    let left = devices_of(devices.iter().map(|device| device.image()).collect());
    let after = open(&left).expect("all are there");
    for pool in [&pool, &after] {
        for (name, placement) in [
            ("a", Placement::Group(0)),
            ("a@monday", Placement::Group(1)),
            ("clone", Placement::Group(1)),
            ("a/b", Placement::Group(0)),
            ("a/b/c", Placement::Any),
            ("a/b/c/d", Placement::Any),
            ("none", Placement::Any),
        ] {
            assert_eq!(of_root(pool, name), Some(placement), "{name}");
        }
    }
    drop(pool);
    after.close().expect("nothing fails");
    drop(after);
    check_all(&left, "placements of filesets");
}

/// Goal: a new fileset prefers the disk group that the root directory of the one above it does, or
/// that of the first fileset.
#[test]
fn a_new_fileset_begins_with_the_placement_of_the_one_above() {
    let devices = new_pool(Layout::Single, 1, 1, POOL_BYTES);
    let pool = open(&devices[..1]).expect("it was closed");
    pool.devices().add_disk_group(&group_of(&devices, Layout::Single, &[1])).expect("it fits");
    let make = |name: &str, number: u8| {
        let name: FilesetName = name.parse().expect("a name");
        let new = NewFileset { random: [number; 32], ..NewFileset::default() };
        pool.fileset_admin().create_fileset(&name, &new).expect("there is room");
        pool.placement(&name, &[]).expect("it was made")
    };
    assert_eq!(make("a", 1), Placement::Any);
    let set = |name: &str, placement| {
        let name: FilesetName = name.parse().expect("a name");
        pool.set_placement(&name, &[], (placement, false)).expect("it is there");
    };
    set("a", Placement::Group(1));
    assert_eq!(make("a/b", 2), Placement::Group(1));
    assert_eq!(make("a/b/c", 3), Placement::Group(1));
    set("root", Placement::Group(0));
    assert_eq!(make("d", 4), Placement::Group(0));
    pool.close().expect("nothing fails");
    drop(pool);
    check_all(&devices, "filesets with a placement");
}
