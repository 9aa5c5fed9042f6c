//! What the log has of a stripe counts when a member is away and another has a bad sector: what
//! lies beside it is put together with it, and nothing is written over that could be had.

use std::collections::{BTreeMap, BTreeSet};

use engine::Pool;
use engine::api::{Caller, FileKind, FileSystem, NewInode};
use format::members::MemberState;
use format::missed::StaleParts;
use storage::device::sim::{Fault, FaultPlan, Image, SimDevice};
use storage::pool::{read_superblock, write_superblock_copy};
use storage::volume::{Volume, VolumeDevices};

use super::raid5::{all_but, new_raid5};
use super::raid5_crash::without;
use super::rebuild::open;
use super::returns::finish;
use super::{Devices, devices_of, put, reopened, shared};

const PAGE: usize = 4096;
/// Bytes of a file that goes into the log.
const SMALL: usize = 3_000;

/// Returns content no two pages of which are alike.
pub(crate) fn content(number: usize, length: usize) -> Vec<u8> {
    let word = |at: usize| u64::try_from(number << 32 | at).expect("small") ^ 0x5eed << 48;
    (0..length.div_ceil(8)).flat_map(|at| word(at).to_le_bytes()).take(length).collect()
}

/// What is in the pool, and where the pages of it lie: member, byte, and whether the log has it.
struct Grounds {
    images: Vec<Image>,
    files: Vec<(String, Vec<u8>)>,
    pages: Vec<(usize, u64, bool)>,
}

/// Returns members that were cut off: `small` files went into the log, and lie, durable, in stripes
/// that others share which it does not have.
fn cut_off(count: usize, small: usize, large_bytes: usize) -> Grounds {
    let devices = reopened(&new_raid5(count), &(0..count).collect::<Vec<_>>());
    let pool = open(&devices).expect("it is new");
    pool.checkpoint().expect("nothing fails");
    let mut files: Vec<(String, Vec<u8>)> =
        (0..small).map(|number| (format!("small{number}"), content(number + 1, SMALL))).collect();
    for (name, content) in &files {
        put(&pool, name, content).expect("there is room");
    }
    let large = ("large".to_owned(), content(99, large_bytes));
    let (caller, new) = (Caller::root(), NewInode::new(FileKind::Regular, 0o644));
    let ino = pool.create(&caller, pool.root(), b"large", new, None).expect("there is room").ino;
    pool.write(&caller, ino, 0, &large.1).expect("there is room");
    pool.sync().expect("nothing fails");
    let mut wanted: BTreeMap<Vec<u8>, bool> = BTreeMap::new();
    for (_, content) in &files {
        let mut page = content.clone();
        page.resize(PAGE, 0);
        wanted.insert(page, true);
    }
    wanted.extend(large.1.chunks_exact(PAGE).map(|page| (page.to_vec(), false)));
    files.push(large);
    drop(pool);
    let images: Vec<Image> = devices.iter().map(|device| device.durable_image()).collect();
    let mut pages = Vec::new();
    for (member, image) in images.iter().enumerate() {
        image.for_each_page(|offset, bytes| {
            if let Some(is_logged) = wanted.get(bytes) {
                pages.push((member, offset, *is_logged));
            }
        });
    }
    Grounds { images, files, pages }
}

pub(crate) fn with_bad(images: &[Image], away: Option<usize>, bad: &[(usize, u64)]) -> Devices {
    let devices = without(images, away);
    for member in bad.iter().map(|(member, _)| *member).collect::<BTreeSet<usize>>() {
        let own = bad.iter().filter(|(of, _)| *of == member);
        let faults = own.map(|&(_, offset)| Fault::BadSector { offset }).collect();
        let at = member - usize::from(away.is_some_and(|away| away < member));
        devices[at].arm(FaultPlan { faults });
    }
    devices
}

/// Returns the names of files that cannot be read; none is read as what it is not.
fn unread(pool: &Pool, grounds: &Grounds, what: &str) -> Vec<String> {
    let caller = Caller::root();
    let mut unread = Vec::new();
    for (name, content) in &grounds.files {
        let attr = pool.lookup(&caller, pool.root(), name.as_bytes()).expect("it was synced");
        let mut found = Vec::new();
        match pool.read(&caller, attr.ino, 0, content.len(), &mut found) {
            Ok(_) => assert!(found == *content, "{what}: {name} is another"),
            Err(_) => unread.push(name.clone()),
        }
    }
    unread
}

/// Closes the pool on `devices`: all is there without one of them, `lost`, too.
fn close_and_lose(pool: Pool, devices: &Devices, lost: usize, (grounds, what): (&Grounds, &str)) {
    pool.close().unwrap_or_else(|error| panic!("{what}: {error}"));
    drop(pool);
    let left = reopened(devices, &all_but(devices.len(), lost));
    let pool = open(&left).unwrap_or_else(|error| panic!("{what}: {error}"));
    let unread = unread(&pool, grounds, what);
    assert!(unread.is_empty(), "{what}, then without {lost}: {unread:?}");
}

/// Goal: with a member away and a bad sector on another, what lies beside logged blocks is there
/// after the recovery, and later on whichever member is lost. Method: each member is away; each
/// page of the files is bad, where it or what the one that is away has of the same bytes is logged.
#[test]
fn a_neighbour_of_logged_blocks_is_put_together_with_them() {
    let mut judged = 0;
    for (count, small) in
        [(3, 1), (3, 2), (3, 3), (3, 5), (4, 1), (4, 3), (4, 5), (5, 2), (5, 6), (5, 9)]
    {
        let grounds = cut_off(count, small, 60_000);
        for away in 0..count {
            for &(bad, offset, is_logged) in &grounds.pages {
                let beside = grounds.pages.iter().find(|page| (page.0, page.1) == (away, offset));
                if bad == away || !is_logged && beside.is_none_or(|beside| !beside.2) {
                    continue;
                }
                judged += 1;
                let what = format!("{count}, {small} small, {away} away, {bad} bad at {offset}");
                let devices = with_bad(&grounds.images, Some(away), &[(bad, offset)]);
                let pool = open(&devices).unwrap_or_else(|error| panic!("{what}: {error}"));
                assert_eq!(pool.status().recovery.lost_blocks, 0, "{what}");
                let lost = unread(&pool, &grounds, &what);
                assert!(lost.is_empty(), "{what}: {lost:?}");
                pool.close().unwrap_or_else(|error| panic!("{what}: {error}"));
                drop(pool);
                // It comes back with what it had, and another is lost.
                let mut images: Vec<Image> = devices.iter().map(|device| device.image()).collect();
                images.insert(away, grounds.images[away].clone());
                let devices = devices_of(images);
                let pool = open(&devices).unwrap_or_else(|error| panic!("{what}: {error}"));
                finish(&pool, &what);
                close_and_lose(pool, &devices, bad, (&grounds, &what));
            }
        }
    }
    println!("{judged} judged");
    assert!(judged > 100, "{judged}");
}

/// Goal: so is a neighbour that has rotted while the logged block cannot be read. Method: no member
/// is away; of each column with a page that the log has that one is bad, and another rots.
#[test]
fn a_neighbour_that_has_rotted_is_put_together_with_what_the_log_has() {
    let mut judged = 0;
    for (count, small) in [(3, 1), (3, 3), (4, 1), (4, 5), (5, 3)] {
        let grounds = cut_off(count, small, 60_000);
        for &(bad, offset, _) in grounds.pages.iter().filter(|page| page.2) {
            for &(rotted, _, _) in grounds.pages.iter().filter(|page| page.1 == offset && !page.2) {
                judged += 1;
                let what = format!("{count}, {small} small, {bad} bad at {offset}, {rotted} rots");
                let devices = with_bad(&grounds.images, None, &[(bad, offset)]);
                devices[rotted].rot(offset + 99, 0x21);
                let pool = open(&devices).unwrap_or_else(|error| panic!("{what}: {error}"));
                let lost = unread(&pool, &grounds, &what);
                assert!(lost.is_empty(), "{what}: {lost:?}");
            }
        }
    }
    println!("{judged} judged");
    assert!(judged > 10, "{judged}");
}

/// Goal: what nobody gives during a recovery is there once the member that is away comes back: it
/// is not lost for good by what the recovery wrote. Method: beside a bad sector under a logged
/// block, so that the stripe must be written, another page of its column is bad, and the third is
/// of the member that is away; then that comes back.
#[test]
fn what_nobody_gives_comes_back_with_the_member_that_is_away() {
    let (mut judged, mut named) = (0, 0);
    for (count, small) in [(4, 1), (4, 2), (5, 1), (5, 3)] {
        let grounds = cut_off(count, small, 90_000);
        let logged = grounds.pages.iter().filter(|page| page.2);
        for &(first, offset, _) in logged {
            let others = grounds.pages.iter().filter(|page| page.1 == offset && !page.2);
            let others: Vec<usize> = others.map(|page| page.0).collect();
            for (&second, &away) in others.iter().flat_map(|second| {
                others.iter().filter(move |away| *away != second).map(move |away| (second, away))
            }) {
                judged += 1;
                let what = format!("{count}, {small}: {first}, {second} bad at {offset}, {away}");
                let bad = [(first, offset), (second, offset)];
                let devices = with_bad(&grounds.images, Some(away), &bad);
                let pool = open(&devices).unwrap_or_else(|error| panic!("{what}: {error}"));
                named += pool.status().recovery.lost_blocks;
                let lost = unread(&pool, &grounds, &what);
                assert_eq!(lost, ["large"], "{what}");
                pool.close().expect("nothing fails");
                drop(pool);
                let mut images: Vec<Image> = devices.iter().map(|device| device.image()).collect();
                images.insert(away, grounds.images[away].clone());
                let devices = devices_of(images);
                let pool = open(&devices).unwrap_or_else(|error| panic!("{what}: {error}"));
                finish(&pool, &what);
                let lost = unread(&pool, &grounds, &what);
                assert!(lost.is_empty(), "{what}: {lost:?}");
                drop(pool);
            }
        }
    }
    println!("{judged} judged, {named} named");
    assert!(judged > 10 && named >= judged, "{judged}, {named}");
}

/// Says in all labels that a member joins which has everything, as it does once a job has made it
/// again and has not ended.
fn joining(images: &[Image], slot: usize) -> Vec<Image> {
    let devices = devices_of(images.to_vec());
    for device in &devices {
        let mut label = read_superblock(device.as_ref()).expect("it has a label").current;
        label.members[slot].state = MemberState::Joining;
        label.add_membership();
        label.sequence += 1;
        for copy in 0..4 {
            write_superblock_copy(device.as_ref(), &label, copy).expect("in range");
        }
    }
    devices.iter().map(|device| device.image()).collect()
}

/// Goal: what a member that joins has is not written over with what recovery makes up, nor is what
/// it gives lost. Method: each member joins, and has everything; each page of the files is bad, so
/// that two of its column are not read.
#[test]
fn what_a_member_that_joins_has_is_there_after_the_recovery() {
    let mut judged = 0;
    for (count, small) in [(3, 1), (3, 3), (4, 1), (4, 3), (5, 2)] {
        let grounds = cut_off(count, small, 60_000);
        for slot in 0..count {
            let images = joining(&grounds.images, slot);
            for &(bad, offset, _) in grounds.pages.iter().filter(|page| page.0 != slot) {
                judged += 1;
                let what = format!("{count}, {small} small, {slot} joins, {bad} bad at {offset}");
                let devices = with_bad(&images, None, &[(bad, offset)]);
                let pool = open(&devices).unwrap_or_else(|error| panic!("{what}: {error}"));
                assert_eq!(pool.status().recovery.lost_blocks, 0, "{what}");
                finish(&pool, &what);
                let lost = unread(&pool, &grounds, &what);
                assert!(lost.is_empty(), "{what}: {lost:?}");
                close_and_lose(pool, &devices, bad, (&grounds, &what));
            }
        }
    }
    println!("{judged} judged");
    assert!(judged > 100, "{judged}");
}

/// Goal: what recovery leaves as it is of a stripe counts as missed by the member that is away.
/// Method: a segment in which nothing was written is told so.
#[test]
fn what_is_left_as_it_is_counts_as_missed() {
    let devices = new_raid5(4);
    let left = reopened(&devices, &[0, 1, 2]);
    let opening = VolumeDevices { devices: shared(&left), accepts_missing: false };
    let (volume, mut label) = Volume::open_members(opening).expect("one may be away");
    volume.begin_writing(&mut label).expect("nothing fails");
    let missed = |device: &SimDevice| {
        let label = read_superblock(device).expect("it has a label").current;
        label.members[3].missed.expect("it has a map")
    };
    assert_eq!(missed(&left[0]), StaleParts::NONE);
    let place = label.geometry.segment_place(0, 5);
    volume.note_missed(place, PAGE).expect("nothing fails");
    let geometry = &label.geometry;
    let offset = geometry.groups_offset + (u64::from(place.fragment()) << geometry.fragment_shift);
    let parts = StaleParts::of(geometry, &(offset..offset + 1));
    for device in &left {
        assert!(missed(device).has_all(&parts) && parts != StaleParts::NONE);
    }
}
