//! What of the log, of its heads and of pages that it changes has rotted on one member: a check of
//! a pool that was cut off sees what a mount makes of it, from the members that are good.

use std::sync::Arc;

use check::report::ConsistencyReport;
use format::geometry::{Geometry, JOURNAL_HEADS};
use storage::device::sim::Image;
use storage::pool::read_superblock;
use storage::volume::{Volume, VolumeDevices};

use crate::raid5::{content, new_raid5};
use crate::{Devices, devices_of, get, new_mirror, open, put, reopened, shared};

const PAGE: u64 = 4096;
/// Files that are in the log alone.
const LATE: [(&str, u8, usize); 3] = [("x", 1, 3_000), ("y", 2, 40_000), ("z", 3, 900)];

/// Returns what the members of a pool hold that was cut off, and where everything lies in it.
fn cut_off(devices: &Devices) -> (Vec<Image>, Geometry) {
    let devices = reopened(devices, &(0..devices.len()).collect::<Vec<_>>());
    let pool = open(&devices).expect("all are there");
    for number in 0..12 {
        put(&pool, &format!("file{number}"), &content(number, 9_000)).expect("there is room");
    }
    pool.checkpoint().expect("nothing fails");
    for (name, version, length) in LATE {
        put(&pool, name, &content(version, length)).expect("there is room");
    }
    let images = devices.iter().map(|device| device.durable_image()).collect();
    (images, read_superblock(devices[0].as_ref()).expect("a label").current.geometry)
}

fn report_of(images: &[Image]) -> ConsistencyReport {
    let devices = devices_of(images.to_vec());
    let opening = VolumeDevices { devices: shared(&devices), accepts_missing: false };
    let (volume, _) = Volume::open_members(opening).expect("enough are there");
    check::run(Arc::clone(volume.device()), check::CheckOptions::default(), &mut |_| ())
}

/// A check finds what it finds in the whole pool, and a mount has all.
fn judge(images: &[Image], whole: &ConsistencyReport, what: &str) -> ConsistencyReport {
    let report = report_of(images);
    assert!(report.is_clean(), "{what}: {}", report.to_text());
    assert_eq!(report.totals, whole.totals, "{what}: {}", report.to_text());
    let pool = open(&devices_of(images.to_vec()));
    let pool = pool.unwrap_or_else(|error| panic!("{what}: {error}"));
    for (name, version, length) in LATE {
        assert!(get(&pool, name) == Some(content(version, length)), "{what}: {name}");
    }
    report
}

/// Goal: a check takes the log that goes furthest, as a mount does. Method: each page of the ring,
/// and the copies of the heads, of one member after the other.
#[test]
fn a_check_takes_the_log_that_goes_furthest() {
    for base in [new_mirror(2), new_raid5(3)] {
        let (images, geometry) = cut_off(&base);
        let whole = report_of(&images);
        assert!(whole.is_clean(), "{}", whole.to_text());
        let heads = geometry.journal_offset;
        let ring = heads + JOURNAL_HEADS * PAGE..heads + geometry.journal_bytes;
        let mut cases: Vec<Vec<u64>> = ring.step_by(4096).map(|page| vec![page]).collect();
        cases.extend([0..2, 2..4, 0..4].map(|slots| slots.map(|at| heads + at * PAGE).collect()));
        let mut told = 0;
        for (at, pages) in (0..images.len()).flat_map(|at| cases.iter().map(move |it| (at, it))) {
            let mut rotten = images.clone();
            let is_used = |page: &u64| {
                let mut bytes = [0; 64];
                images[at].read(*page, &mut bytes);
                bytes != [0; 64]
            };
            if !pages.iter().any(is_used) {
                continue;
            }
            pages.iter().for_each(|page| rotten[at].write(*page, &[0; 64]));
            let report =
                judge(&rotten, &whole, &format!("{} members, {pages:?} of {at}", images.len()));
            told += usize::from(report.note_lines().count() > whole.note_lines().count());
        }
        println!("{} members: {told} told", images.len());
        assert!(told > 10, "{told}");
    }
}

/// Goal: a page that the log changes in part begins as the member has it on which it is good.
/// Method: each page of metadata of one member turns over a bit.
#[test]
fn a_check_begins_pages_as_a_member_has_them_that_is_good() {
    for base in [new_mirror(2), new_raid5(3)] {
        let (images, geometry) = cut_off(&base);
        let whole = report_of(&images);
        for at in 0..images.len() {
            let mut rotten = images.clone();
            let end = geometry.member_bytes() - (128 << 10);
            for offset in (geometry.groups_offset..end).step_by(4096) {
                let mut magic = [0; 4];
                images[at].read(offset, &mut magic);
                if magic == *b"HFpg" {
                    rotten[at].flip(offset + 1500, 0x20);
                }
            }
            judge(&rotten, &whole, &format!("{} members, {at} has rotted", images.len()));
        }
    }
}

/// Goal: what has rotted on one member, data, summaries and metadata alike, is taken from the
/// others by whoever puts what the log has beside it, and by whoever reads it then. Method: every
/// page of one member behind the log turns over a bit.
#[test]
fn a_mount_takes_what_has_rotted_from_the_rest_of_its_rows() {
    for base in [new_mirror(2), new_raid5(3), new_raid5(5)] {
        let (images, geometry) = cut_off(&base);
        let whole = report_of(&images);
        for at in 0..images.len() {
            let mut rotten = images.clone();
            let end = geometry.member_bytes() - (128 << 10);
            for offset in (geometry.groups_offset..end).step_by(4096) {
                rotten[at].flip(offset + 1500, 0x20);
            }
            judge(&rotten, &whole, &format!("{} members, {at} has rotted", images.len()));
        }
    }
}
