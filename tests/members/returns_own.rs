//! What has rotted on the others while a member was away, or cannot be read there, is taken from it
//! when it comes back, unless it may be of before.

use std::collections::BTreeSet;

use engine::Pool;
use engine::api::FileSystem;
use format::members::Layout;
use format::page::{PAGE_BYTES, PageBytes, PageHeader, PageKind};
use storage::device::sim::{Fault, FaultPlan};
use storage::pool::read_superblock;

use super::groups::{group_of, new_pool};
use super::raid5::{all_but, content};
use super::rebuild::{open, place_of};
use super::returns::{AWAY, finish, grounds, verify_each, write};
use super::{Devices, POOL_BYTES, get, put, reopened};

fn again(devices: &Devices) -> Devices {
    reopened(devices, &(0..devices.len()).collect::<Vec<_>>())
}

/// Goal: a block that is bad on another member, or whose row is, and that the member which comes
/// back makes whole, is whole afterwards, with any one member lost. Method: each unit of a file
/// that was written before it went is made bad; where the member has it itself, what else its row
/// has.
#[test]
fn what_is_bad_elsewhere_is_taken_from_it() {
    let mut of_its_own = 0;
    for (count, base) in grounds() {
        for unit in 0..4 {
            // The same bytes of all members are of one row.
            for turn in 0..all_but(count, AWAY).len() {
                for is_unreadable in [false, true] {
                    let is_own = rot_and_return(&again(&base), unit, turn, is_unreadable);
                    of_its_own += usize::from(is_own);
                }
            }
        }
    }
    println!("{of_its_own} of its own");
    assert!(of_its_own >= 6, "a unit of its own, and each other of its row");
}

/// A member goes, a unit of a file, or where that is on the member itself another of its row, rots
/// on another member or cannot be read there, and the member comes back. Returns whether the unit
/// was on it.
fn rot_and_return(devices: &Devices, unit: usize, turn: usize, is_unreadable: bool) -> bool {
    let pool = open(devices).expect("it is new");
    let own = content(99, 40_000);
    put(&pool, "own", &own).expect("there is room");
    pool.sync().expect("nothing fails");
    let (member, offset) = place_of(&pool, devices, &own[unit * 8192..]);
    let bad = if member == AWAY { all_but(devices.len(), AWAY)[turn] } else { member };
    let what = format!("{} members, unit {unit} of {bad}, {is_unreadable}", devices.len());
    pool.devices().fail_member(AWAY).expect("the others have all");
    // Something is written to the same segment, so it is rebuilt.
    (1..9).for_each(|number| write(&pool, number));
    pool.checkpoint().expect("nothing fails");
    match is_unreadable {
        true => devices[bad].arm(FaultPlan { faults: vec![Fault::BadSector { offset }] }),
        false => devices[bad].rot(offset + 77, 0x41),
    }
    if devices.len() == 3 {
        // A mirror of three: both.
        devices[2 - bad].rot(offset + 5, 0x40);
    }
    pool.devices().return_member_in(AWAY).expect("it is there");
    finish(&pool, &what);
    let report = pool.devices().rebuild_report().expect("there was one");
    assert_eq!(report.lost, 0, "{what}: {report:?}");
    pool.close().expect("nothing fails");
    drop(pool);
    verify_each(devices, 1..9, &what);
    for lost in 0..devices.len() {
        let pool = open(&reopened(devices, &all_but(devices.len(), lost))).expect("enough");
        assert!(get(&pool, "own") == Some(own.clone()), "{what}, without {lost}");
    }
    member == AWAY
}

/// Returns the pages of metadata in groups that all of `devices` have alike and may be compared
/// with what went home last: offsets on the members, and kinds.
fn alike(pool: &Pool, devices: &Devices) -> Vec<(u64, PageKind)> {
    let geometry = pool.status().geometry;
    let pool_id = read_superblock(devices[0].as_ref()).expect("a label").current.pool_id;
    let mut found = Vec::new();
    for offset in (geometry.groups_offset..geometry.device_bytes).step_by(PAGE_BYTES) {
        let Some(place) = geometry.place_at(offset) else { continue };
        let read = |device: &std::sync::Arc<storage::device::sim::SimDevice>| {
            let mut page: PageBytes = [0; PAGE_BYTES];
            device.image().read(offset, &mut page);
            page
        };
        let first = read(&devices[0]);
        let Ok(header) = PageHeader::decode(&first, pool_id, place) else { continue };
        let is_kept = geometry.lsn_entry(place).is_some();
        if is_kept && devices.iter().all(|device| read(device) == first) {
            found.push((offset, header.kind));
        }
    }
    found
}

/// Goal: pages of metadata that rot on the other member are taken from the one that comes back
/// where they are what went home last. Method: all that it has as the other rot there; then each
/// member is lost, and a check is clean.
#[test]
fn pages_of_metadata_are_taken_from_it() {
    let devices = again(&super::new_mirror(2));
    let pool = open(&devices).expect("it is new");
    (1..9).for_each(|number| write(&pool, number));
    pool.checkpoint().expect("nothing fails");
    pool.devices().fail_member(AWAY).expect("the other has all");
    (9..12).for_each(|number| write(&pool, number));
    pool.checkpoint().expect("nothing fails");
    let pages = alike(&pool, &devices);
    let kinds: BTreeSet<String> = pages.iter().map(|(_, kind)| format!("{kind:?}")).collect();
    println!("{} pages: {kinds:?}", pages.len());
    assert!(pages.len() > 3, "{kinds:?}");
    pages.iter().for_each(|(offset, _)| devices[0].rot(offset + 100, 4));
    pool.devices().return_member_in(AWAY).expect("it is there");
    finish(&pool, "metadata");
    assert_eq!(pool.devices().rebuild_report().expect("there was one").lost, 0);
    pool.close().expect("nothing fails");
    drop(pool);
    verify_each(&devices, 1..12, "metadata");
}

/// Goal: a page of metadata that is of before is never taken from a member that comes back, though
/// it verifies. Method: each page that went home again while the member was away rots on the other.
#[test]
fn pages_of_before_are_not_taken() {
    let devices = again(&super::new_mirror(2));
    let pool = open(&devices).expect("it is new");
    (1..9).for_each(|number| write(&pool, number));
    pool.checkpoint().expect("nothing fails");
    let before = alike(&pool, &devices);
    pool.devices().fail_member(AWAY).expect("the other has all");
    (1..12).for_each(|number| write(&pool, number));
    pool.checkpoint().expect("nothing fails");
    let now: BTreeSet<u64> = alike(&pool, &devices).into_iter().map(|(at, _)| at).collect();
    let mut old: Vec<(u64, PageKind)> = before;
    old.retain(|(offset, _)| !now.contains(offset));
    assert!(old.len() > 2, "{old:?}");
    let page_of = |member: usize, offset: u64| {
        let mut page: PageBytes = [0; PAGE_BYTES];
        devices[member].image().read(offset, &mut page);
        page
    };
    let of_before: Vec<PageBytes> = old.iter().map(|(at, _)| page_of(AWAY, *at)).collect();
    old.iter().for_each(|(offset, _)| devices[0].rot(offset + 100, 4));
    pool.devices().return_member_in(AWAY).expect("it is there");
    finish(&pool, "of before");
    for ((offset, kind), before) in old.iter().zip(&of_before) {
        for member in all_but(2, 2) {
            let is_of_before = page_of(member, *offset) == *before;
            assert!(!is_of_before, "{kind:?} at {offset} of member {member} is of before");
        }
    }
}

/// Goal: the same of a member of a disk group that was added. Method: a block that is on it rots on
/// the other, or cannot be read there, while it is away.
#[test]
fn what_is_bad_elsewhere_is_taken_from_a_member_of_an_added_group() {
    for is_unreadable in [false, true] {
        let devices = new_pool(Layout::Mirror, 2, 2, 3 * POOL_BYTES);
        let pool = open(&devices[..2].to_vec()).expect("it was closed");
        let group = group_of(&devices, Layout::Mirror, &[2, 3]);
        pool.devices().add_disk_group(&group).expect("it fits");
        let offset_of = |block: &[u8]| {
            let mut found = None;
            devices[2].image().for_each_page(|offset, bytes| {
                let is_it = bytes == &block[..bytes.len()];
                found = found.or(is_it.then_some(offset));
            });
            found
        };
        // Both disk groups get files.
        let on_added = (1..60).find_map(|number| {
            put(&pool, &format!("own{number}"), &content(number, 40_000)).expect("there is room");
            Some((number, offset_of(&content(number, 40_000)[8192..])?))
        });
        let (number, offset) = on_added.expect("some lie there");
        pool.checkpoint().expect("nothing fails");
        pool.devices().fail_member(3).expect("the other has all");
        match is_unreadable {
            true => devices[2].arm(FaultPlan { faults: vec![Fault::BadSector { offset }] }),
            false => devices[2].rot(offset + 77, 0x41),
        }
        pool.devices().return_member_in(3).expect("it is there");
        finish(&pool, "added");
        let report = pool.devices().rebuild_report().expect("there was one");
        assert_eq!(report.lost, 0, "{is_unreadable}: {report:?}");
        pool.close().expect("nothing fails");
        drop(pool);
        for lost in [2, 3] {
            let pool = open(&reopened(&devices, &all_but(4, lost))).expect("enough");
            let found = get(&pool, &format!("own{number}"));
            assert!(found == Some(content(number, 40_000)), "without {lost}");
        }
    }
}
