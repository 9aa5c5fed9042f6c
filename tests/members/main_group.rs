//! The metadata of a pool in use moves to another disk group, the one that had it is removed, and
//! what a power cut leaves.

use std::sync::Arc;

use engine::api::FileSystem;
use engine::{DiskGroupError, Pool};
use format::disk_group::{DiskGroupRoles, DiskGroupState};
use format::members::Layout;
use format::stripes::UNIT_SHIFT_DEFAULT;
use runtime::prng::Prng;
use storage::device::sim::{Image, SimDevice, SimOptions};
use storage::volume::DiskGroupSpec;

use super::groups::{check_all, content, goes_on, group_of, groups, labelled, new_pool};
use super::removal::{finish, take_snapshot};
use super::{Devices, POOL_BYTES, cut_at, devices_of, get, open, put};

const RAID5: Layout = Layout::Raid5 { unit_shift: UNIT_SHIFT_DEFAULT };
const STRIPE: Layout = Layout::Stripe { unit_shift: UNIT_SHIFT_DEFAULT };
const ALL: DiskGroupRoles = DiskGroupRoles { data: true, metadata: true, journal: true };
const WITHOUT_DATA: DiskGroupRoles = DiskGroupRoles { data: false, ..ALL };
const FILE_BYTES: usize = 60_000;

fn for_all(
    devices: &Devices,
    (layout, roles): (Layout, DiskGroupRoles),
    which: &[usize],
) -> DiskGroupSpec {
    DiskGroupSpec { roles, ..group_of(devices, layout, which) }
}

fn write(pool: &Pool, names: std::ops::Range<usize>) {
    for name in names {
        let put = put(pool, &format!("f{name}"), &content(name, 1, FILE_BYTES));
        put.unwrap_or_else(|error| panic!("file {name}: {error}: {:?}", pool.status().space));
    }
}

fn judge(pool: &Pool, names: std::ops::Range<usize>, what: &str) {
    for name in names {
        let found = get(pool, &format!("f{name}"));
        assert!(found == Some(content(name, 1, FILE_BYTES)), "{what}: file {name}");
    }
}

fn main_of(pool: &Pool) -> u8 {
    groups(pool).iter().find(|group| group.is_main).expect("one is").number
}

/// Goal: the metadata moves to a disk group of any kind beside one of any kind, and the one that
/// had it goes, with all its devices: the pool is opened without them, and is whole. What comes
/// next is added to it as to any pool.
#[test]
fn the_disk_group_that_had_the_metadata_goes() {
    let cases = [
        ((Layout::Single, 1), (Layout::Single, ALL), 1),
        ((Layout::Single, 1), (RAID5, ALL), 3),
        ((Layout::Mirror, 2), (Layout::Mirror, ALL), 2),
        ((Layout::Mirror, 2), (STRIPE, ALL), 2),
        ((RAID5, 3), (Layout::Mirror, ALL), 2),
        ((RAID5, 4), (RAID5, ALL), 3),
        ((STRIPE, 2), (Layout::Single, ALL), 1),
    ];
    for ((first, width), kind, more) in cases {
        let what = format!("{} of {width} to {} of {more}", first.word(), kind.0.word());
        let devices = new_pool(first, width, more + 1, 4 * POOL_BYTES);
        let pool = open(&devices[..width]).unwrap_or_else(|error| panic!("{what}: {error}"));
        pool.tick().expect("nothing fails");
        write(&pool, 0..6);
        take_snapshot(&pool, "c");
        write(&pool, 3..9);
        let which: Vec<usize> = (width..width + more).collect();
        let number = pool
            .devices()
            .add_disk_group(&for_all(&devices, kind, &which))
            .unwrap_or_else(|error| panic!("{what}: {error}"));
        assert_eq!((number, main_of(&pool)), (1, 1), "{what}");
        write(&pool, 9..12);
        judge(&pool, 0..12, &what);
        let space = pool.status().space;
        assert!(space.used <= space.capacity, "{what}: {space:?}");
        pool.devices().remove_disk_group(0).unwrap_or_else(|error| panic!("{what}: {error}"));
        finish(&pool, 1, &what);
        write(&pool, 12..15);
        judge(&pool, 0..15, &what);
        pool.close().expect("nothing fails");
        drop(pool);
        let left = devices_of(which.iter().map(|at| devices[*at].image()).collect());
        check_all(&left, &what);
        let pool = open(&left).unwrap_or_else(|error| panic!("{what}: {error}"));
        judge(&pool, 0..15, &what);
        // What the first has left is given out again, its number too.
        let mut both = left.clone();
        both.extend(devices_of(vec![Image::blank(4 * POOL_BYTES)]));
        let mut group = group_of(&both, Layout::Single, &[more]);
        group.devices.iter_mut().for_each(|(_, id)| *id = [200; 16]);
        let number =
            pool.devices().add_disk_group(&group).unwrap_or_else(|error| panic!("{what}: {error}"));
        assert_eq!(number, 0, "{what}");
        write(&pool, 15..20);
        pool.close().expect("nothing fails");
        drop(pool);
        check_all(&both, &what);
        let pool = open(&both).unwrap_or_else(|error| panic!("{what}: {error}"));
        judge(&pool, 0..20, &what);
    }
}

/// Goal: a large disk group that is added for data has room for the metadata, whatever becomes of
/// it: so the one that the pool was made with can go, and its devices with it. Method: one that
/// gets a device in turn, and loses the one that it had.
#[test]
fn what_is_added_for_data_has_room_for_the_metadata() {
    let devices = new_pool(Layout::Single, 1, 2, 10 * POOL_BYTES);
    let pool = open(&devices[..1]).expect("it was closed");
    pool.tick().expect("nothing fails");
    write(&pool, 0..6);
    let number =
        pool.devices().add_disk_group(&group_of(&devices, Layout::Single, &[1])).expect("it fits");
    assert_eq!((number, main_of(&pool)), (1, 0));
    pool.devices().add_lane(1, Arc::<SimDevice>::clone(&devices[2]), [77; 16]).expect("it fits");
    write(&pool, 6..12);
    let error = pool.devices().remove_disk_group(0).expect_err("a round-robin has no metadata");
    assert!(matches!(error, DiskGroupError::Main { number: 0 }), "{error}");
    pool.devices().remove_lane(1).expect("it fits elsewhere");
    finish(&pool, 2, "the first of a round-robin");
    pool.devices().remove_disk_group(0).expect("there is room");
    finish(&pool, 1, "the first");
    write(&pool, 12..18);
    judge(&pool, 0..18, "alone");
    pool.close().expect("nothing fails");
    drop(pool);
    let left = devices_of(vec![devices[2].image()]);
    check_all(&left, "alone");
    judge(&open(&left).expect("it was closed"), 0..18, "again");
}

/// Goal: a disk group without data can have the metadata, and give it to another; names and data go
/// where they should.
#[test]
fn metadata_apart_moves_to_others_apart() {
    let devices = new_pool(Layout::Mirror, 2, 4, 2 * POOL_BYTES);
    let pool = open(&devices[..2]).expect("it was closed");
    write(&pool, 0..6);
    let kind = (Layout::Mirror, WITHOUT_DATA);
    let number = pool.devices().add_disk_group(&for_all(&devices, kind, &[2, 3])).expect("it fits");
    assert_eq!(main_of(&pool), number);
    let used = || groups(&pool)[usize::from(number)].used_bytes;
    write(&pool, 6..12);
    pool.sync().expect("nothing fails");
    assert!(used() < 1 << 20, "it has metadata alone: {} bytes", used());
    let other = pool.devices().add_disk_group(&for_all(&devices, kind, &[4, 5])).expect("it fits");
    assert_eq!(main_of(&pool), other);
    pool.devices().remove_disk_group(number).expect("the pages find room");
    finish(&pool, 2, "the one in between");
    write(&pool, 12..18);
    // And back to the first, which has had it.
    pool.devices().make_main(0).expect("it has room still");
    write(&pool, 18..20);
    pool.devices().remove_disk_group(other).expect("the pages find room");
    finish(&pool, 1, "back");
    judge(&pool, 0..20, "back");
    pool.close().expect("nothing fails");
    drop(pool);
    let left = devices_of(devices[..2].iter().map(|device| device.image()).collect());
    check_all(&left, "back");
    judge(&open(&left).expect("it was closed"), 0..20, "again");
}

/// Goal: a cut at any moment while the metadata moves, and while the disk group that had it is
/// emptied, loses nothing that was acknowledged; the pool goes on with what was begun, and a check
/// finds nothing. Method: a cut at each event of the move in several states, and at some of the
/// events of the rest; the devices to come have had an earlier use.
#[test]
fn a_cut_while_the_metadata_moves_loses_nothing() {
    let cases = [
        ((Layout::Single, 1), (Layout::Single, ALL), 1),
        ((Layout::Mirror, 2), (Layout::Mirror, WITHOUT_DATA), 2),
        ((RAID5, 3), (Layout::Mirror, ALL), 2),
        ((Layout::Mirror, 2), (RAID5, ALL), 3),
    ];
    let mut states = [0; 3];
    for ((first, width), kind, more) in cases {
        let devices = new_pool(first, width, more, 3 * POOL_BYTES);
        let pool = open(&devices[..width]).expect("it was closed");
        pool.tick().expect("nothing fails");
        let now = || devices.iter().map(|device| device.time()).max().expect("there are devices");
        let mut acknowledged = Vec::new();
        let put_some = |names: std::ops::Range<usize>, acknowledged: &mut Vec<(u64, usize)>| {
            for name in names {
                write(&pool, name..name + 1);
                acknowledged.push((now(), name));
            }
        };
        put_some(0..4, &mut acknowledged);
        let begun = now();
        let which: Vec<usize> = (width..width + more).collect();
        pool.devices().add_disk_group(&for_all(&devices, kind, &which)).expect("it fits");
        let is_main = now();
        put_some(4..7, &mut acknowledged);
        let can_go = kind.1.data;
        if can_go {
            pool.devices().remove_disk_group(0).expect("it fits elsewhere");
            finish(&pool, 1, "emptied");
        }
        let is_gone = now();
        put_some(7..9, &mut acknowledged);
        let end = now();
        drop(pool);
        let recordings: Vec<_> = devices.iter().map(|device| device.recording()).collect();
        let mut prng = Prng::from_seed(13);
        for time in begun..=end {
            let tries = match time {
                _ if time <= is_main => 3,
                _ => u64::from(time.is_multiple_of(3)),
            };
            for state in 0..tries {
                let images = cut_at(&recordings, time, state == 0, &mut prng);
                let what = format!("{}: cut at {time} of {begun} to {end}, {state}", first.word());
                let left = labelled(&devices_of(images));
                let pool = open(&left).unwrap_or_else(|error| panic!("{what}: {error}"));
                let (main, found) = (main_of(&pool), groups(&pool));
                let count = found.len();
                let leaves = found.iter().any(|it| it.state == DiskGroupState::Leaving);
                assert!(main == 1 || time < is_main, "{what}");
                assert!(main == 0 || time > begun, "{what}");
                assert!(!can_go || count == 1 || time < is_gone, "{what}");
                states[usize::from(main) + usize::from(main == 1 && count == 1)] += 1;
                for (_, name) in acknowledged.iter().filter(|(at, _)| *at <= time) {
                    judge(&pool, *name..*name + 1, &what);
                }
                put(&pool, "after", &content(9, 9, 90_000)).expect("it goes on");
                if leaves && time.is_multiple_of(4) {
                    finish(&pool, 1, &what);
                }
                goes_on(pool, &left, &content(9, 9, 90_000), &what);
            }
        }
    }
    println!("{states:?} states: metadata on the first, on the other, and there alone");
    assert!(states.iter().all(|count| *count > 20), "{states:?}");
}

/// Goal: what cannot have the metadata is refused in words, and all is where it was.
#[test]
fn what_cannot_have_the_metadata_is_refused() {
    let mut devices = new_pool(Layout::Mirror, 2, 4, 3 * POOL_BYTES);
    let options = SimOptions { sector_bytes: 4096, ..SimOptions::default() };
    devices.push(SimDevice::new(3 * POOL_BYTES, options));
    let pool = open(&devices[..2]).expect("it was closed");
    write(&pool, 0..3);
    let error = pool.devices().remove_disk_group(0).expect_err("there is no other");
    assert!(matches!(error, DiskGroupError::Main { number: 0 }), "{error}");
    let error = pool
        .devices()
        .add_disk_group(&for_all(&devices, (Layout::RoundRobin, ALL), &[2, 3]))
        .expect_err("of a round-robin nothing is twice");
    assert!(error.to_string().contains("metadata cannot lie on a round-robin"), "{error}");
    let error = pool
        .devices()
        .add_disk_group(&for_all(&devices, (Layout::Single, ALL), &[6]))
        .expect_err("the log ends at sectors of 512");
    assert!(error.to_string().contains("in sectors of 512"), "{error}");
    let number =
        pool.devices().add_disk_group(&group_of(&devices, Layout::Single, &[2])).expect("it fits");
    let error = pool.devices().make_main(number).expect_err("it has no room for it");
    assert!(error.to_string().contains("no room for the metadata"), "{error}");
    assert!(pool.devices().make_main(9).is_err(), "there is none");
    let error = pool.devices().remove_disk_group(0).expect_err("the other has no room for it");
    assert!(matches!(error, DiskGroupError::Main { number: 0 }), "{error}");
    pool.devices().fail_member(1).expect("the other goes on");
    let error = pool
        .devices()
        .add_disk_group(&for_all(&devices, (Layout::Single, ALL), &[3]))
        .expect_err("a device is away");
    assert!(error.to_string().contains("bring it back (`holdfast device online`)"), "{error}");
    let found = groups(&pool);
    assert_eq!((main_of(&pool), found.len()), (0, 3), "it was added, and is not the main one");
    pool.devices().remove_disk_group(2).expect("it is empty");
    finish(&pool, 2, "taken back");
    judge(&pool, 0..3, "as before");
}

/// Goal: a member of a main disk group that is not in front comes back with all that it has missed,
/// and is the same as the others: the pool is whole without any one of them.
#[test]
fn a_member_that_was_away_has_all_after_the_metadata_has_moved() {
    for (kind, more) in [((Layout::Mirror, ALL), 2), ((RAID5, ALL), 3)] {
        let what = kind.0.word();
        let devices = new_pool(Layout::Mirror, 2, more, POOL_BYTES);
        let pool = open(&devices[..2]).expect("it was closed");
        pool.tick().expect("nothing fails");
        write(&pool, 0..4);
        let which: Vec<usize> = (2..2 + more).collect();
        pool.devices().add_disk_group(&for_all(&devices, kind, &which)).expect("it fits");
        write(&pool, 4..8);
        pool.checkpoint().expect("nothing fails");
        pool.devices().fail_member(3).expect("the others have all");
        write(&pool, 2..12);
        pool.checkpoint().expect("nothing fails");
        super::returns::finish(&pool, what);
        pool.devices().remove_disk_group(0).expect("there is room");
        finish(&pool, 1, what);
        write(&pool, 12..14);
        pool.close().expect("nothing fails");
        drop(pool);
        for lost in &which {
            let what = format!("{what} without {lost}");
            let left = which.iter().filter(|at| *at != lost).map(|at| devices[*at].image());
            let left = devices_of(left.collect());
            let pool = open(&left).unwrap_or_else(|error| panic!("{what}: {error}"));
            judge(&pool, 0..14, &what);
            pool.close().expect("nothing fails");
            drop(pool);
            check_all(&left, &what);
        }
    }
}
