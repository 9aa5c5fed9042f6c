//! An older copy of a member is in its place: an image that was put back, a snapshot, a device that
//! lost what it had answered. It is not believed, and what the others have is not overwritten.

use engine::{PoolOpenError, RebuildReport};
use format::members::{MEMBERSHIPS_MAX, MemberState};
use storage::device::sim::Image;
use storage::members::MembersError;
use storage::pool::PoolError;
use storage::volume::{LabelChange, Volume, VolumeDevices};

use super::raid5::all_but;
use super::rebuild::{begin, open, states};
use super::returns::{AWAY, finish, grounds, verify, verify_each, write};
use super::{Devices, POOL_BYTES, devices_of, reopened, shared};

/// Opens the pool, writes a file, and closes it.
fn session(devices: &Devices, number: u8) -> Devices {
    let devices = reopened(devices, &(0..devices.len()).collect::<Vec<_>>());
    let pool = open(&devices).expect("enough are there");
    write(&pool, number);
    pool.close().expect("nothing fails");
    devices
}

/// Returns the devices with `image` in the place of one.
fn with_older(devices: &Devices, image: &Image) -> Devices {
    let mut images: Vec<Image> = devices.iter().map(|device| device.image()).collect();
    images[AWAY] = image.clone();
    devices_of(images)
}

/// Nothing that is in use is passed over: in stripes free segments are.
fn assert_all_rebuilt(report: &RebuildReport, count: usize, what: &str) {
    let is_mirror = count < 4;
    assert!(!is_mirror || report.passed_over_bytes == 0, "{what}: {report:?}");
}

/// Goal: of a member that is older than the others nothing is read, and it gets everything. Method:
/// its image of a closed pool, or of one that is in use, is put back after further sessions, or
/// after the one alone; then each other member is lost.
#[test]
fn an_older_copy_is_not_read_and_gets_all() {
    for (count, base) in grounds() {
        for sessions in 1..4 {
            for is_in_use in [false, true] {
                let what = format!("{count} members, {sessions} sessions, in use: {is_in_use}");
                let first = session(&base, 0);
                let older = if is_in_use {
                    let used = reopened(&first, &(0..count).collect::<Vec<_>>());
                    let pool = open(&used).expect("all are there");
                    write(&pool, 1);
                    used[AWAY].image()
                } else {
                    first[AWAY].image()
                };
                let last = (0..sessions).fold(first, |devices, at| session(&devices, at + 1));
                let devices = with_older(&last, &older);
                let pool = open(&devices).unwrap_or_else(|error| panic!("{what}: {error}"));
                assert_eq!(states(&pool)[AWAY], MemberState::Missing, "{what}");
                verify(&pool, 0..sessions + 1, &what);
                assert_eq!(pool.devices().members()[AWAY].counts.io.reads(), 0, "{what}");
                finish(&pool, &what);
                let report = pool.devices().rebuild_report().expect("there was one");
                assert_all_rebuilt(&report, count, &what);
                pool.close().unwrap_or_else(|error| panic!("{what}: {error}"));
                drop(pool);
                verify_each(&devices, 0..sessions + 1, &what);
            }
        }
    }
}

/// Goal: an older copy that was opened without the others, which went on meanwhile, and they are
/// two halves: nothing is written to either.
#[test]
fn an_older_copy_that_was_used_alone_is_another_half() {
    let base = super::new_mirror(2);
    for (sessions, alone) in [(1, 1), (1, 4), (3, 1)] {
        let what = format!("{sessions} sessions, then {alone} of the copy");
        let first = session(&base, 0);
        let older = devices_of(vec![first[AWAY].image()]);
        let last = (0..sessions).fold(first, |devices, at| session(&devices, at + 1));
        let used = (0..alone).fold(older, |devices, at| session(&devices, 100 + at));
        let devices = with_older(&last, &used[0].image());
        let before = [devices[0].image(), devices[1].image()].map(|image| image.content_hash());
        let error = super::open(&devices).expect_err("they went on apart");
        let PoolOpenError::Pool(PoolError::Members(MembersError::Apart { .. })) = error else {
            panic!("{what}: {error}")
        };
        let after = [devices[0].image(), devices[1].image()].map(|image| image.content_hash());
        assert_eq!(before, after, "{what}: nothing was changed");
    }
}

/// Goal: a member that comes back as an older copy than what went gets everything: what it missed
/// before it went is in no map.
#[test]
fn one_that_comes_back_older_than_it_went_gets_all() {
    for (count, base) in grounds() {
        for is_found_at_open in [true, false] {
            let what = format!("{count} members, at an open: {is_found_at_open}");
            let first = session(&base, 0);
            let older = first[AWAY].image();
            let whole = session(&first, 1);
            let left = session(&reopened(&whole, &all_but(count, AWAY)), 2);
            let mut images: Vec<Image> = left.iter().map(|device| device.image()).collect();
            images.insert(AWAY, older);
            let devices = devices_of(images);
            let pool = if is_found_at_open {
                open(&devices).unwrap_or_else(|error| panic!("{what}: {error}"))
            } else {
                let others: Devices =
                    all_but(count, AWAY).iter().map(|at| devices[*at].clone()).collect();
                let pool = open(&others).unwrap_or_else(|error| panic!("{what}: {error}"));
                pool.devices().return_member(devices[AWAY].clone()).expect("it is the member");
                pool
            };
            finish(&pool, &what);
            let report = pool.devices().rebuild_report().expect("there was one");
            assert_all_rebuilt(&report, count, &what);
            pool.close().unwrap_or_else(|error| panic!("{what}: {error}"));
            drop(pool);
            verify_each(&devices, 0..3, &what);
        }
    }
}

/// Lets the members that there are go through more epochs than labels remember.
fn pass_epochs(devices: &Devices) -> Devices {
    let devices = reopened(devices, &(0..devices.len()).collect::<Vec<_>>());
    let opening = VolumeDevices { devices: shared(&devices), accepts_missing: false };
    let (volume, _) = Volume::open_members(opening).expect("enough are there");
    let members = volume.members().expect("there were several");
    for _ in 0..=MEMBERSHIPS_MAX {
        members.change(|_, _| LabelChange::States).expect("the labels are written");
    }
    devices
}

/// Goal: a member that was away for more epochs than labels remember keeps no pool closed, and gets
/// everything when it comes back, at an open or later.
#[test]
fn one_that_was_away_for_long_gets_all() {
    for (count, base) in grounds() {
        for is_found_at_open in [true, false] {
            let what = format!("{count} members, at an open: {is_found_at_open}");
            let whole = session(&base, 0);
            let left = session(&reopened(&whole, &all_but(count, AWAY)), 1);
            let left = pass_epochs(&left);
            let mut images: Vec<Image> = left.iter().map(|device| device.image()).collect();
            images.insert(AWAY, whole[AWAY].image());
            let devices = devices_of(images);
            let pool = if is_found_at_open {
                open(&devices).unwrap_or_else(|error| panic!("{what}: {error}"))
            } else {
                let others: Devices =
                    all_but(count, AWAY).iter().map(|at| devices[*at].clone()).collect();
                let pool = open(&others).unwrap_or_else(|error| panic!("{what}: {error}"));
                let returned = pool.devices().return_member(devices[AWAY].clone());
                returned.unwrap_or_else(|error| panic!("{what}: {error}"));
                pool
            };
            finish(&pool, &what);
            let report = pool.devices().rebuild_report().expect("there was one");
            assert_all_rebuilt(&report, count, &what);
            pool.close().unwrap_or_else(|error| panic!("{what}: {error}"));
            drop(pool);
            verify_each(&devices, 0..2, &what);
        }
    }
}

/// Goal: one that was used alone long ago is a half all the same, and nothing is written to it.
#[test]
fn one_that_was_used_alone_long_ago_is_another_half() {
    let whole = session(&super::new_mirror(2), 0);
    let left = pass_epochs(&session(&reopened(&whole, &all_but(2, AWAY)), 1));
    let alone = session(&reopened(&whole, &[AWAY]), 2);
    let devices = devices_of(vec![left[0].image(), alone[0].image()]);
    let before = devices[1].image().content_hash();
    let error = open(&devices).expect_err("they went on apart");
    assert!(error.contains("opened apart"), "{error}");
    assert_eq!(devices[1].image().content_hash(), before, "nothing was changed");
}

/// Goal: a half that has forgotten the other, which was removed from it or replaced, is a half all
/// the same: what it was given since is on it alone. Method: each of two goes on without the other,
/// one for longer than labels remember.
#[test]
fn one_that_has_forgotten_the_other_is_another_half() {
    for is_replaced in [false, true] {
        let what = format!("replaced: {is_replaced}");
        let whole = session(&super::new_mirror(2), 0);
        let left = pass_epochs(&session(&reopened(&whole, &all_but(2, AWAY)), 1));
        let mut images = vec![whole[AWAY].image()];
        images.resize(1 + usize::from(is_replaced), Image::blank(POOL_BYTES));
        let alone = devices_of(images);
        let pool = open(&alone[..1].to_vec()).unwrap_or_else(|error| panic!("{what}: {error}"));
        let other = 1 - AWAY;
        match alone.get(1) {
            Some(new) => {
                begin(&pool, other, new);
                finish(&pool, &what);
            }
            None => drop(pool.devices().detach_member(other, true).expect("it is missing")),
        }
        write(&pool, 2);
        pool.close().unwrap_or_else(|error| panic!("{what}: {error}"));
        drop(pool);
        let devices = devices_of(vec![left[0].image(), alone[0].image()]);
        let before = devices[1].image().content_hash();
        let opened = open(&devices);
        let error = opened.err().unwrap_or_else(|| panic!("{what}: they went on apart"));
        assert!(error.contains("opened apart"), "{what}: {error}");
        assert_eq!(devices[1].image().content_hash(), before, "{what}: nothing was changed");
    }
}
