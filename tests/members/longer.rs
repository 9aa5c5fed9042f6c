//! Disk groups that use more of their members while the pool is in use: what they hold, and what a
//! power cut leaves.

use std::sync::Arc;

use engine::api::{Caller, FileSystem};
use engine::{Pool, PoolCreateOptions};
use format::geometry::{Geometry, GrowthLimit};
use format::members::Layout;
use format::stripes::UNIT_SHIFT_DEFAULT;
use runtime::clock::ManualClock;
use runtime::prng::Prng;
use storage::device::sim::{
    Fault, FaultPlan, Image, PowerSupply, Recording, SimDevice, SimOptions, Timeline,
};
use storage::device::{RequestKind, SharedDevice};
use storage::pool::read_superblock;
use storage::volume::{GrowError, Volume, VolumeDevices};

use super::groups::{check_all, content, group_of};
use super::{Devices, POOL_BYTES, cut_at, devices_of, get, open, put, shared};

const MIB: u64 = 1 << 20;
const RAID5: Layout = Layout::Raid5 { unit_shift: UNIT_SHIFT_DEFAULT };
const STRIPE: Layout = Layout::Stripe { unit_shift: UNIT_SHIFT_DEFAULT };
/// What devices are in the end.
const LONG_BYTES: u64 = 30 * MIB;
/// As a pool is made: its last allocation group is shorter than the others.
const SHORT_BYTES: u64 = POOL_BYTES + 300 * 4096;

/// Returns devices that hold `images`, and end at `end_bytes` until somebody makes them longer.
fn devices_ending_at(images: Vec<Image>, end_bytes: u64) -> Devices {
    let (power, timeline) = (PowerSupply::new(), Timeline::default());
    let device = |(number, image): (usize, Image)| {
        let options = SimOptions {
            name: format!("/sim/d{number}"),
            power: power.clone(),
            timeline: timeline.clone(),
            is_recorded: true,
            end_bytes: Some(end_bytes),
            ..SimOptions::default()
        };
        SimDevice::open(image, options)
    };
    images.into_iter().enumerate().map(device).collect()
}

/// Returns the devices of a new pool, which end at [`SHORT_BYTES`] and can become longer.
fn new_pool(layout: Layout, width: usize) -> Devices {
    let devices = devices_ending_at(vec![Image::blank(LONG_BYTES); width], SHORT_BYTES);
    let mut options = PoolCreateOptions::new(SHORT_BYTES, [5; 64]);
    options.geometry.journal_bytes = Some(MIB);
    if layout.stripe(width).is_none() {
        options.geometry.segment_bytes = Some(128 << 10);
        options.geometry.group_bytes = Some(2 * MIB);
    }
    Pool::create_on(&shared(&devices), layout, &ManualClock::new(), &options).expect("it fits");
    devices
}

fn extend(devices: &[Arc<SimDevice>], end_bytes: u64) {
    devices.iter().for_each(|device| device.extend(end_bytes));
}

/// Returns what `df` tells: all, and what is left.
fn space(pool: &Pool) -> (u64, u64) {
    let space = pool.status().space;
    (space.capacity, space.available)
}

/// Writes files until the pool is full; returns how many there are.
fn fill(pool: &Pool, from: usize) -> usize {
    (from..)
        .find(|name| put(pool, &format!("f{name}"), &content(*name, 1, 200_000)).is_err())
        .expect("it is full some time")
}

fn verify(pool: &Pool, files: usize, what: &str) {
    for name in 0..files {
        let found = get(pool, &format!("f{name}"));
        assert!(found == Some(content(name, 1, 200_000)), "{what}: file {name}");
    }
}

/// Goal: a full pool whose device was made longer takes files again once it has grown, and all of
/// them are there after it was opened again; what it says of its space is so at once. Method: it
/// grows three times: within its last allocation group, past it, and with the last group not in
/// use.
#[test]
fn a_full_pool_grows_while_it_is_in_use() {
    let devices = new_pool(Layout::Single, 1);
    let pool = open(&devices).expect("it is new");
    let geometry = pool.status().geometry;
    let last = geometry.fragments_of(geometry.group_count - 1);
    assert!(last < geometry.group_fragments, "the last one has room to become longer");
    let mut files = fill(&pool, 0);
    let mut capacity = space(&pool).0;
    for (round, end) in [SHORT_BYTES + MIB / 2, 20 * MIB, LONG_BYTES].into_iter().enumerate() {
        let error =
            pool.devices().grow_disk_group(0).expect_err("it is as long as it was").to_string();
        assert!(error.contains("/sim/d0") && error.contains("truncate"), "{error}");
        extend(&devices, end);
        assert_eq!(space(&pool).0, capacity, "nobody has asked for it");
        let offered = pool.devices().rooms();
        let offered = offered[0].as_ref().expect("all is there");
        let room = pool.devices().grow_disk_group(0).expect("it is longer");
        assert_eq!((&room, room.limit), (offered, None));
        assert_eq!(room.usable_bytes, end);
        let now = space(&pool).0;
        assert_eq!((now - capacity) * 4096, room.more_bytes, "round {round}");
        capacity = now;
        let before = files;
        files = fill(&pool, files);
        let added = u64::try_from(files - before).expect("small") * 200_000;
        assert!(added > room.more_bytes * 7 / 10, "round {round}: {added} of {room:?}");
        verify(&pool, files, "before it is closed");
    }
    let caller = Caller::root();
    pool.unlink(&caller, pool.root(), b"f3", None).expect("there is room for that");
    pool.close().expect("nothing fails");
    drop(pool);
    check_all(&devices, "grown");
    let pool = open(&devices).expect("it was closed");
    assert_eq!(space(&pool).0, capacity);
    put(&pool, "f3", &content(3, 1, 200_000)).expect("there is room");
    verify(&pool, files, "opened again");
    let error = pool.devices().grow_disk_group(0).expect_err("it has all").to_string();
    assert!(error.contains("uses all"), "{error}");
}

/// Goal: a device that was made longer and not grown is opened as it was, whether the pool was ever
/// mounted or not; and grows then.
#[test]
fn a_longer_device_is_opened_as_before() {
    for was_mounted in [false, true] {
        let devices = new_pool(Layout::Single, 1);
        let capacity = was_mounted.then(|| {
            let pool = open(&devices).expect("it is new");
            put(&pool, "f0", &content(0, 1, 200_000)).expect("there is room");
            pool.close().expect("nothing fails");
            space(&pool).0
        });
        let longer = devices_ending_at(vec![devices[0].image()], LONG_BYTES);
        check_all(&longer, "longer");
        let pool = open(&longer).unwrap_or_else(|error| panic!("{was_mounted}: {error}"));
        assert!(capacity.is_none_or(|capacity| space(&pool).0 == capacity));
        pool.devices().grow_disk_group(0).expect("it is longer");
        put(&pool, "f1", &content(1, 1, 200_000)).expect("there is room");
        pool.close().expect("nothing fails");
        drop(pool);
        check_all(&longer, "grown");
        let pool = open(&longer).expect("it was closed");
        assert!(capacity.is_none_or(|capacity| space(&pool).0 > capacity));
        if was_mounted {
            verify(&pool, 2, "opened again");
        }
    }
}

/// Returns `image` with its first `bytes` as `front` has them.
fn with_front(mut image: Image, front: &Image, bytes: u64) -> Image {
    let mut piece = vec![0; 1 << 16];
    let mut at = 0;
    while at < bytes {
        let length = piece.len().min(usize::try_from(bytes - at).expect("small"));
        front.read(at, &mut piece[..length]);
        image.write(at, &piece[..length]);
        at += u64::try_from(length).expect("small");
    }
    image
}

/// Goal: what an earlier use of the pool left behind its end is overwritten. Method: the pool has
/// grown and holds files there, and then the front of the device is as it was before.
#[test]
fn what_lay_behind_the_end_is_no_group_of_the_pool() {
    let devices = new_pool(Layout::Single, 1);
    let before = devices[0].image();
    let pool = open(&devices).expect("it is new");
    extend(&devices, LONG_BYTES);
    pool.devices().grow_disk_group(0).expect("it is longer");
    fill(&pool, 0);
    pool.close().expect("nothing fails");
    drop(pool);
    let mixed = with_front(devices[0].image(), &before, SHORT_BYTES);
    let devices = devices_ending_at(vec![mixed], SHORT_BYTES);
    let pool = open(&devices).expect("it is as it was made");
    extend(&devices, LONG_BYTES);
    pool.devices().grow_disk_group(0).expect("it is longer");
    let files = fill(&pool, 0);
    verify(&pool, files, "on what was there");
    pool.close().expect("nothing fails");
    drop(pool);
    check_all(&devices, "grown again");
}

/// Goal: a device that is cut to its old length after its pool has grown is refused in words, and
/// as no pool if its front is lost too: the labels that lay there are not believed.
#[test]
fn a_device_that_is_cut_again_is_refused() {
    let devices = new_pool(Layout::Single, 1);
    let pool = open(&devices).expect("it is new");
    put(&pool, "f0", &content(0, 1, 200_000)).expect("there is room");
    extend(&devices, LONG_BYTES);
    pool.devices().grow_disk_group(0).expect("it is longer");
    pool.close().expect("nothing fails");
    drop(pool);
    let image = devices[0].image();
    let cut = devices_ending_at(vec![image.clone()], SHORT_BYTES);
    let error = open(&cut).expect_err("it lacks what it has gained").to_string();
    assert!(error.contains("truncated") && error.contains(&LONG_BYTES.to_string()), "{error}");
    let mut lost = image;
    for copy in 0..2 {
        lost.write(Geometry::superblock_offset(SHORT_BYTES, copy), &[0; 4096]);
    }
    let cut = devices_ending_at(vec![lost], SHORT_BYTES);
    let error = read_superblock(cut[0].as_ref()).expect_err("no copy is left").to_string();
    assert!(error.contains("not a pool device"), "{error}");
}

/// Goal: a power cut at any event of a growth leaves the pool as long as it was, or longer, with
/// what was acknowledged; and it grows then, or has grown. Method: the devices are longer before
/// the first event, and files are written that fill the last allocation group and then others.
#[test]
fn a_cut_while_a_pool_grows_leaves_it_as_it_was_or_longer() {
    for (layout, width, tries) in [(Layout::Single, 1, 4), (Layout::Mirror, 2, 1), (RAID5, 3, 1)] {
        let states = cut_at_each_event(layout, width, tries);
        println!("{}: {states:?} states as it was and longer", layout.word());
        assert!(states.iter().all(|count| *count > 10), "{}: {states:?}", layout.word());
    }
}

fn cut_at_each_event(layout: Layout, width: usize, tries_max: u64) -> [u64; 2] {
    let mut states = [0; 2];
    let devices = new_pool(layout, width);
    let pool = open(&devices).expect("it is new");
    let before = fill(&pool, 0);
    let short = space(&pool).0;
    pool.close().expect("nothing fails");
    drop(pool);
    let images = devices.iter().map(|device| device.image()).collect();
    let devices = devices_ending_at(images, SHORT_BYTES);
    let pool = open(&devices).expect("it was closed");
    extend(&devices, LONG_BYTES);
    let now = || devices.iter().map(|device| device.time()).max().expect("there are devices");
    let begun = now();
    pool.devices().grow_disk_group(0).expect("it is longer");
    let (has_grown, long) = (now(), space(&pool).0);
    let mut acknowledged = Vec::new();
    for name in before..before + 14 {
        put(&pool, &format!("f{name}"), &content(name, 1, 200_000)).expect("there is room");
        acknowledged.push((now(), name));
    }
    let end = now();
    drop(pool);
    let recordings: Vec<Recording> = devices.iter().map(|device| device.recording()).collect();
    let mut prng = Prng::from_seed(21);
    for time in begun..=end {
        // Each moment of the growth, some of the rest.
        let tries = if time <= has_grown { tries_max } else { u64::from(time.is_multiple_of(20)) };
        for state in 0..tries {
            let is_durable = state == 0 && (tries_max > 1 || time.is_multiple_of(2));
            let images = cut_at(&recordings, time, is_durable, &mut prng);
            let kind = layout.word();
            let what = format!("{kind}: cut at {time} of {begun} to {has_grown}, state {state}");
            let left = devices_ending_at(images, LONG_BYTES);
            let pool = open(&left).unwrap_or_else(|error| panic!("{what}: {error}"));
            let is_longer = space(&pool).0 == long;
            assert!(is_longer || space(&pool).0 == short, "{what}: {:?}", space(&pool));
            assert!(is_longer || time < has_grown, "{what}: it was acknowledged");
            states[usize::from(is_longer)] += 1;
            verify(&pool, before, &what);
            for (_, name) in acknowledged.iter().filter(|(at, _)| *at <= time) {
                let found = get(&pool, &format!("f{name}"));
                assert!(found == Some(content(*name, 1, 200_000)), "{what}: file {name}");
            }
            if !is_longer {
                pool.devices().grow_disk_group(0).unwrap_or_else(|error| panic!("{what}: {error}"));
            }
            assert_eq!(space(&pool).0, long, "{what}");
            put(&pool, "after", &content(9, 9, 3_000_000)).expect("there is room");
            pool.close().expect("nothing fails");
            drop(pool);
            check_all(&left, &what);
            let pool = open(&left).unwrap_or_else(|error| panic!("{what}: again: {error}"));
            assert!(get(&pool, "after") == Some(content(9, 9, 3_000_000)), "{what}");
            verify(&pool, before, &what);
        }
    }
    states
}

/// Goal: a pool of each kind grows when all of its devices are longer, and not before; all that it
/// holds is there afterwards, without each device that it can do without too.
#[test]
fn a_pool_of_each_kind_grows_with_the_smallest_of_its_devices() {
    for (layout, width) in [(Layout::Mirror, 3), (RAID5, 3), (RAID5, 4), (STRIPE, 2)] {
        let what = format!("{} of {width}", layout.word());
        let devices = new_pool(layout, width);
        let pool = open(&devices).expect("it is new");
        let mut files = fill(&pool, 0);
        let capacity = space(&pool).0;
        extend(&devices[1..], LONG_BYTES);
        let error = pool.devices().grow_disk_group(0).expect_err("one is as it was").to_string();
        assert!(error.contains("the smallest, /sim/d0"), "{what}: {error}");
        extend(&devices, 20 * MIB);
        let room = pool.devices().grow_disk_group(0).expect("all are longer");
        assert!(room.usable_bytes <= 20 * MIB && room.usable_bytes > 19 * MIB, "{what}: {room:?}");
        assert_eq!((space(&pool).0 - capacity) * 4096, room.more_bytes, "{what}");
        files = fill(&pool, files);
        extend(&devices, LONG_BYTES);
        pool.devices().grow_disk_group(0).expect("all are longer");
        files = fill(&pool, files);
        verify(&pool, files, &what);
        pool.close().expect("nothing fails");
        drop(pool);
        check_all(&devices, &what);
        let images: Vec<Image> = devices.iter().map(|device| device.image()).collect();
        let lost = if layout == STRIPE { 0 } else { width };
        for away in 0..lost {
            let mut left = images.clone();
            left.remove(away);
            let left = devices_ending_at(left, LONG_BYTES);
            let pool = open(&left).unwrap_or_else(|error| panic!("{what}: {error}"));
            verify(&pool, files, &format!("{what}, without {away}"));
        }
    }
}

/// Goal: a disk group that was added grows as the first does, and that as far as the next one lets
/// it; what is in the way is said.
#[test]
fn disk_groups_that_were_added_grow_too() {
    let cases = [(Layout::Single, 1), (Layout::Mirror, 2), (Layout::RoundRobin, 2)];
    for (layout, width) in cases {
        let what = layout.word();
        let first = new_pool(Layout::Single, 1)[0].image();
        let blank = vec![Image::blank(LONG_BYTES); width + 1];
        // The last group of each device is a short one.
        let images = [vec![first], blank].concat();
        let devices = devices_ending_at(images, SHORT_BYTES + MIB / 2);
        let pool = open(&devices[..1]).expect("it is new");
        let which: Vec<usize> = (1..=width).collect();
        pool.devices().add_disk_group(&group_of(&devices, layout, &which)).expect("it fits");
        let mut files = fill(&pool, 0);
        extend(&devices, LONG_BYTES);
        let room = pool.devices().grow_disk_group(1).expect("its devices are longer");
        assert_eq!(room.limit.is_some(), layout == Layout::RoundRobin, "{what}: {room:?}");
        let offered = pool.devices().rooms();
        let offered = offered[0].as_ref().expect("it is there");
        assert_eq!(offered.limit, Some(GrowthLimit::Range { disk_group: 1 }), "{what}");
        let capacity = space(&pool).0;
        let room = pool.devices().grow_disk_group(0).expect("its last group becomes longer");
        assert_eq!((space(&pool).0 - capacity) * 4096, room.more_bytes, "{what}");
        let error = pool.devices().grow_disk_group(0).expect_err("the next one begins").to_string();
        assert!(error.contains("those of disk group 1"), "{what}: {error}");
        let error = pool.devices().grow_disk_group(2).expect_err("there is none").to_string();
        assert!(error.contains("no disk group 2"), "{what}: {error}");
        let before = files;
        files = fill(&pool, files);
        assert!(files > before + 2, "{what}: {before} {files}");
        // One more behind it, and then it has no numbers left.
        pool.devices()
            .add_disk_group(&group_of(&devices, Layout::Single, &[width + 1]))
            .expect("it fits");
        pool.close().expect("nothing fails");
        drop(pool);
        check_all(&devices, what);
        let pool = open(&devices).expect("all are there");
        verify(&pool, files, what);
        pool.devices().remove_disk_group(2).expect("nothing is on it");
        let error = pool.devices().grow_disk_group(2).expect_err("it goes").to_string();
        assert!(error.contains("leaves"), "{what}: {error}");
    }
}

/// Goal: a mirror whose devices were replaced by larger ones has their room, when both are whole
/// and not before; a member that is away refuses it in words.
#[test]
fn a_mirror_grows_when_both_have_been_replaced() {
    let old = new_pool(Layout::Mirror, 2);
    let pool = open(&old).expect("it is new");
    let files = fill(&pool, 0);
    pool.tick().expect("nothing fails");
    let large = devices_of(vec![Image::blank(LONG_BYTES); 2]);
    for (slot, new) in large.iter().enumerate() {
        let error =
            pool.devices().grow_disk_group(0).expect_err("one is as small as before").to_string();
        assert!(error.contains("uses all"), "{error}");
        let new: SharedDevice = Arc::<SimDevice>::clone(new);
        let id = u8::try_from(slot + 40).expect("small");
        pool.devices().replace_member(slot, new, [id; 16]).expect("the other has all");
        let error = pool.devices().grow_disk_group(0).expect_err("one is joining").to_string();
        assert!(error.contains("is joining"), "{error}");
        let is_whole =
            |pool: &Pool| pool.devices().members().iter().all(|it| it.member.is_online());
        for round in 0.. {
            pool.tick().expect("nothing fails");
            if is_whole(&pool) {
                break;
            }
            assert!(round < 200, "the rebuild does not end");
        }
    }
    pool.devices().fail_member(1).expect("the other has all");
    let error = pool.devices().grow_disk_group(0).expect_err("one has failed").to_string();
    assert!(error.contains("is failed") && error.contains("device online"), "{error}");
    pool.devices().return_member_in(1).expect("it has all but what was written");
    while !pool.devices().members().iter().all(|it| it.member.is_online()) {
        pool.tick().expect("nothing fails");
    }
    let room = pool.devices().grow_disk_group(0).expect("both are larger");
    assert_eq!(room.usable_bytes, LONG_BYTES);
    let more = fill(&pool, files);
    assert!(more > files + 60, "{files} {more}");
    verify(&pool, more, "grown");
    pool.close().expect("nothing fails");
    drop(pool);
    for left in &large {
        let pool = open(&devices_of(vec![left.image()])).expect("one is enough");
        verify(&pool, more, "one of both");
    }
}

/// Goal: a member that goes after its pool has grown, and comes back, gets what was written
/// meanwhile, wherever it lies now. Method: the other one is away afterwards.
#[test]
fn a_member_that_comes_back_to_a_longer_pool_has_all() {
    for (layout, width) in [(Layout::Mirror, 2), (RAID5, 3)] {
        let devices = new_pool(layout, width);
        let pool = open(&devices).expect("it is new");
        pool.tick().expect("nothing fails");
        let mut files = fill(&pool, 0);
        extend(&devices, LONG_BYTES);
        pool.devices().grow_disk_group(0).expect("all are longer");
        pool.devices().fail_member(1).expect("it can do without");
        files = fill(&pool, files);
        pool.devices().return_member_in(1).expect("it has what it had");
        for round in 0.. {
            pool.tick().expect("nothing fails");
            if pool.devices().members().iter().all(|it| it.member.is_online()) {
                break;
            }
            assert!(round < 500, "{}: it does not end", layout.word());
        }
        pool.close().expect("nothing fails");
        drop(pool);
        check_all(&devices, layout.word());
        let mut images: Vec<Image> = devices.iter().map(|device| device.image()).collect();
        images.remove(0);
        let left = devices_ending_at(images, LONG_BYTES);
        let pool = open(&left).expect("it can do without");
        verify(&pool, files, layout.word());
    }
}

/// Goal: a device that does not write at its new end changes nothing: the pool goes on, and grows
/// when it can; one whose labels cannot be written stops the pool, which has all when it is opened
/// again.
#[test]
fn a_write_that_fails_while_a_pool_grows_loses_nothing() {
    let mut outcomes = [0; 3];
    for nth in 0..24 {
        let devices = new_pool(Layout::Single, 1);
        let pool = open(&devices).expect("it is new");
        put(&pool, "f0", &content(0, 1, 200_000)).expect("there is room");
        extend(&devices, LONG_BYTES);
        let fault = Fault::Fail { kind: RequestKind::Write, nth, persists: false };
        devices[0].arm(FaultPlan { faults: vec![fault] });
        let grown = pool.devices().grow_disk_group(0).map_err(|error| error.to_string());
        devices[0].arm(FaultPlan::none());
        let stopped = put(&pool, "f1", &content(1, 1, 200_000)).is_err();
        let outcome = match (&grown, stopped) {
            (Err(error), false) => {
                assert!(error.contains("nothing was changed"), "{nth}: {error}");
                pool.devices().grow_disk_group(0).unwrap_or_else(|error| panic!("{nth}: {error}"));
                0
            }
            (Err(error), true) => {
                assert!(!error.contains("nothing was changed"), "{nth}: {error}");
                1
            }
            (Ok(_), stopped) => {
                assert!(!stopped, "{nth}");
                2
            }
        };
        outcomes[outcome] += 1;
        if outcome != 1 {
            pool.close().expect("nothing fails");
        }
        drop(pool);
        let left = devices_ending_at(vec![devices[0].image()], LONG_BYTES);
        let pool = open(&left).unwrap_or_else(|error| panic!("{nth}: {error}"));
        verify(&pool, if outcome == 1 { 1 } else { 2 }, &format!("{nth}"));
        if outcome == 1 {
            let _ = pool.devices().grow_disk_group(0);
        }
        assert_eq!(pool.devices().rooms()[0].as_ref().expect("it is there").more_bytes, 0, "{nth}");
        pool.close().expect("nothing fails");
        drop(pool);
        check_all(&left, &format!("write {nth} failed"));
    }
    println!("{outcomes:?}: nothing was changed, the pool stopped, it has grown");
    assert!(outcomes.iter().all(|count| *count > 2), "{outcomes:?}");
}

/// Goal: a single that has grown becomes a mirror with all that it has, and grows as one. Method:
/// the first device is away afterwards.
#[test]
fn a_pool_that_has_grown_becomes_a_mirror() {
    let images = vec![new_pool(Layout::Single, 1)[0].image(), Image::blank(LONG_BYTES)];
    let devices = devices_ending_at(images, SHORT_BYTES);
    let pool = open(&devices[..1]).expect("it is new");
    pool.tick().expect("nothing fails");
    extend(&devices, 20 * MIB);
    pool.devices().grow_disk_group(0).expect("it is longer");
    let mut files = fill(&pool, 0);
    let attach = || {
        let new: SharedDevice = Arc::<SimDevice>::clone(&devices[1]);
        pool.devices().attach_member(0, new, [77; 16])
    };
    let error = attach().expect_err("it was opened as it was").to_string();
    assert!(error.contains("give a larger device"), "{error}");
    storage::device::Device::lengthen(devices[1].as_ref()).expect("it is longer");
    attach().expect("it is as long");
    let error = pool.devices().grow_disk_group(0).expect_err("one is joining").to_string();
    assert!(error.contains("is joining"), "{error}");
    let is_whole = |pool: &Pool| pool.devices().members().iter().all(|it| it.member.is_online());
    for round in 0.. {
        pool.tick().expect("nothing fails");
        if is_whole(&pool) {
            break;
        }
        assert!(round < 200, "it does not end");
    }
    extend(&devices, LONG_BYTES);
    pool.devices().grow_disk_group(0).expect("both are longer");
    files = fill(&pool, files);
    pool.close().expect("nothing fails");
    drop(pool);
    check_all(&devices, "a mirror");
    let left = devices_ending_at(vec![devices[1].image()], LONG_BYTES);
    let pool = open(&left).expect("one is enough");
    verify(&pool, files, "the one that came later");
}

/// Goal: where the file system below has no room for the new end of a device, the device stays as
/// long as it was: else its labels would be written there from then on, and stop the pool.
#[test]
fn a_device_without_room_for_its_new_end_stays_as_it_was() {
    let devices = new_pool(Layout::Single, 1);
    let pool = open(&devices).expect("it is new");
    put(&pool, "f0", &content(0, 1, 200_000)).expect("there is room");
    pool.checkpoint().expect("nothing fails");
    extend(&devices, LONG_BYTES);
    let allocated_bytes = devices[0].image().allocated_bytes();
    devices[0].arm(FaultPlan { faults: vec![Fault::Full { allocated_bytes }] });
    let error = pool.devices().grow_disk_group(0).expect_err("there is no room").to_string();
    assert!(error.contains("nothing was changed") && error.contains("no space"), "{error}");
    assert_eq!(storage::device::Device::info(devices[0].as_ref()).size_bytes, SHORT_BYTES);
    devices[0].arm(FaultPlan::none());
    pool.devices().grow_disk_group(0).expect("now there is");
    pool.close().expect("nothing fails");
    drop(pool);
    check_all(&devices_ending_at(vec![devices[0].image()], LONG_BYTES), "no room at first");
}

/// Goal: a device that takes the place of a longer one while a disk group is about to grow, and is
/// whole before the labels are written, is not grown over.
#[test]
fn a_device_replaced_meanwhile_is_not_grown_over() {
    let devices = new_pool(Layout::Mirror, 2);
    extend(&devices, LONG_BYTES);
    let opening = VolumeDevices { devices: shared(&devices), accepts_missing: false };
    let (volume, mut superblock) = Volume::open_members(opening).expect("both are there");
    let changing = volume.membership().changing();
    let growing = changing.begin_growth(&superblock, 0).expect("they are longer");
    let short = devices_ending_at(vec![Image::blank(LONG_BYTES)], SHORT_BYTES).remove(0);
    volume.membership().begin_replace(1, short, [9; 16]).expect("the other has all");
    volume
        .membership()
        .end_join(1, &volume.membership().stay_in(1).expect("it is there"))
        .expect("nothing fails");
    let ended = changing.end_growth(growing, &mut superblock);
    assert!(matches!(ended, Err(GrowError::Replaced { disk_group: 0 })), "{ended:?}");
    let label = volume.members().and_then(|members| members.label()).expect("there is one");
    assert_eq!(label.geometry.device_bytes, SHORT_BYTES);
}
