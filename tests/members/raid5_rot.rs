//! A member of a pool in stripes that has bad sectors and rot at once: the others have all that it
//! has, and a check says of each block what a mount makes of it.

use std::sync::Arc;

use engine::api::{Caller, FileSystem};
use engine::{Pool, PoolCreateOptions};
use format::defect::DefectCode;
use format::ids::Place;
use format::members::Layout;
use runtime::clock::ManualClock;
use storage::device::sim::{Fault, FaultPlan, Image, SimDevice};
use storage::device::{
    AlignedBuffer, Device, DeviceOperation, IoPurpose, RequestKind, SharedBytes,
};
use storage::volume::{Volume, VolumeDevices};

use super::raid5::{LAYOUT, MEMBER_BYTES};
use super::raid5_both::{BLOCK_PAGES, Closed, FILE_BYTES, closed, name};
use super::raid5_known::{content, with_bad};
use super::rebuild::open;
use super::{Devices, devices_of, put, shared};

const PAGE: usize = 4096;
const PAGE_WIDE: u64 = 4096;

/// A block over several rows that begins within a unit.
struct Block {
    devices: Devices,
    volume: Volume,
    place: Place,
    bytes: Vec<u8>,
    /// Where each page of it lies: member, and byte of it.
    pages: Vec<(usize, u64)>,
}

impl Block {
    fn new(count: usize) -> Block {
        const ROWS: u64 = 4;
        let units = u64::try_from(count - 1).expect("few");
        let devices = devices_of(vec![Image::blank(MEMBER_BYTES); count]);
        let mut options = PoolCreateOptions::new(MEMBER_BYTES, [6; 64]);
        options.geometry.journal_bytes = Some(1 << 20);
        options.geometry.segment_bytes = Some(ROWS * units * 8192);
        Pool::create_on(&shared(&devices), LAYOUT, &ManualClock::new(), &options)
            .expect("a pool in stripes fits");
        let opening = VolumeDevices { devices: shared(&devices), accepts_missing: false };
        let (volume, superblock) = Volume::open_members(opening).expect("all are there");
        let geometry = &superblock.geometry;
        let stripes = geometry.stripes().expect("it has stripes");
        let start = geometry.segment_place(0, geometry.segments_of(0) - 1);
        let offset = geometry.device_offset(start, 1).expect("it is there");
        let row = stripes.locate(offset).expect("it is in the groups").row;
        let length = stripes.row_start(row + ROWS) - offset;
        let all = content(count, usize::try_from(length).expect("small"));
        let pieces = vec![SharedBytes::from(AlignedBuffer::copy_of(&all))];
        volume.submit_write(IoPurpose::Data, start, pieces).wait().expect("nothing fails");
        // All but the first page and the last two.
        let bytes = all[PAGE..all.len() - 2 * PAGE].to_vec();
        let at = (offset + PAGE_WIDE..).step_by(PAGE).take(bytes.len() / PAGE);
        let located = at.map(|at| stripes.locate(at).expect("it is in the groups"));
        let pages = located.map(|place| (place.member, place.member_offset)).collect();
        Block { devices, volume, place: start.advance(geometry.page_fragments()), bytes, pages }
    }

    /// Makes pages unreadable and lets others rot, and holds that the block is given, and that all
    /// of it is on the members then.
    fn harm(&self, bad: &[(usize, u64)], rotten: &[(usize, u64)]) {
        let what = format!("{} members, {bad:?} bad, {rotten:?} rotten", self.devices.len());
        for &(member, offset) in bad {
            let faults = vec![Fault::BadSector { offset }];
            self.devices[member].arm(FaultPlan { faults });
        }
        rotten.iter().for_each(|(member, offset)| self.devices[*member].rot(offset + 99, 4));
        let is_it = |bytes: &[u8]| bytes == self.bytes;
        let healed = self.volume.heal(IoPurpose::Data, self.place, self.bytes.len(), &is_it);
        let healed = healed.expect("the others give it");
        assert!(healed.bytes.is_some_and(|bytes| bytes[..] == self.bytes), "{what}");
        assert_eq!(healed.bad, healed.repaired, "{what}");
        for (&(member, offset), expected) in self.pages.iter().zip(self.bytes.chunks(PAGE)) {
            let read = DeviceOperation::Read { offset, buffer: AlignedBuffer::for_reading(PAGE) };
            let found = self.devices[member].submit(IoPurpose::Data, read).wait();
            let found = found.expect("it was written again").buffer.expect("it was read");
            assert!(found[..] == *expected, "{what}: {offset} of {member}");
        }
    }
}

/// Goal: whatever of one member cannot be read, and whatever has rotted there besides, a block
/// comes from the others, and the member has it again. Method: each page of a block is bad in turn,
/// and one or two others of its member have rotted; another member can't read a page of another
/// column.
#[test]
fn what_one_member_has_bad_and_rotten_comes_from_the_others() {
    for count in [3, 4, 5] {
        let block = Block::new(count);
        for &bad in &block.pages {
            let is_beside = |page: &&(usize, u64)| page.0 == bad.0 && **page != bad;
            let others: Vec<(usize, u64)> = block.pages.iter().filter(is_beside).copied().collect();
            for (at, &one) in others.iter().enumerate() {
                block.harm(&[bad], &[one]);
                // Of another member too, so that the rows do not come from the rest at once.
                let is_apart =
                    |page: &&(usize, u64)| page.0 != bad.0 && page.1 != bad.1 && page.1 != one.1;
                let apart = block.pages.iter().filter(is_apart);
                apart.for_each(|&other| block.harm(&[bad, other], &[one]));
                others[at + 1..].iter().for_each(|&two| block.harm(&[bad], &[one, two]));
            }
        }
    }
}

/// Goal: what has rotted on one member comes from the others, whatever page of the same rows
/// another cannot read, if it is none of the same column. Method: each two pages of a block.
#[test]
fn rot_on_one_member_beside_a_bad_sector_of_another_comes_from_the_others() {
    for count in [3, 4, 5] {
        let block = Block::new(count);
        for &bad in &block.pages {
            let is_apart = |page: &&(usize, u64)| page.0 != bad.0 && page.1 != bad.1;
            block.pages.iter().filter(is_apart).for_each(|&rotten| block.harm(&[bad], &[rotten]));
        }
    }
}

/// Goal: a sector that cannot be read costs few requests while the others are there, not one for
/// each page of the rows; and where it lies beside a block nothing of that is written again.
#[test]
fn a_bad_sector_is_looked_around_with_few_requests() {
    for count in [3, 4, 5] {
        let block = Block::new(count);
        let first = block.pages[0];
        let beside = (first.0, first.1 - PAGE_WIDE);
        let reads = || -> u64 {
            let of =
                |device: &Arc<SimDevice>| device.counts().of(IoPurpose::Data, RequestKind::Read);
            block.devices.iter().map(|device| of(device).requests).sum()
        };
        for &bad in block.pages.iter().chain([&beside]) {
            let faults = vec![Fault::BadSector { offset: bad.1 }];
            block.devices[bad.0].arm(FaultPlan { faults });
            let (before, is_it) = (reads(), |bytes: &[u8]| bytes == block.bytes);
            let healed = block.volume.heal(IoPurpose::Data, block.place, block.bytes.len(), &is_it);
            let healed = healed.expect("the others give it");
            let is_hit = u64::from(bad != beside);
            assert_eq!((healed.bad, healed.repaired), (is_hit, is_hit), "{count}, {bad:?}");
            // One a member, and one for each unit that the bad one has in four rows.
            let requests = reads() - before;
            let most = u64::try_from(count).expect("few") + 4;
            assert!(requests <= most, "{count}, {bad:?}: {requests}");
        }
    }
}

/// Returns which blocks of the files a pool gives; none as what it is not.
fn given(devices: &Devices, closed: &Closed, what: &str) -> Vec<bool> {
    let pool = open(devices).expect("it was closed");
    let mut given = Vec::new();
    for (file, bytes) in closed.files.iter().enumerate() {
        let attr = pool.lookup(&Caller::root(), pool.root(), name(file).as_bytes());
        let ino = attr.expect("it is there").ino;
        for (block, bytes) in bytes.chunks(BLOCK_PAGES * PAGE).enumerate() {
            let start = u64::try_from(block * BLOCK_PAGES * PAGE).expect("small");
            let mut found = Vec::new();
            let read = pool.read(&Caller::root(), ino, start, bytes.len(), &mut found);
            assert!(read.is_err() || found == bytes, "{what}: {file}, {block} is another");
            given.push(read.is_ok());
        }
    }
    given
}

/// Returns how many blocks a check finds lost; it finds nothing else.
fn told(devices: &Devices, what: &str) -> usize {
    let opening = VolumeDevices { devices: shared(devices), accepts_missing: false };
    let (volume, _) = Volume::open_members(opening).expect("it was closed");
    let report = check::run(volume.device().clone(), check::CheckOptions::default(), &mut |_| ());
    let is_block = |code: &DefectCode| matches!(code, DefectCode::IO001 | DefectCode::MP005);
    assert!(report.counts.keys().all(is_block), "{what}: {}", report.to_text());
    usize::try_from(report.defect_count()).expect("few")
}

/// Goal: a check calls those blocks lost that a mount cannot read, no more and no less. Method: a
/// member is away, or none, and each page of the files is bad in turn; without a member away a
/// second one is bad, or has rotted.
#[test]
fn a_check_finds_lost_what_a_mount_cannot_read() {
    let (mut whole, mut harmed) = (0, 0);
    let closed = closed(3);
    let pages = closed.pages();
    let mut cases = Vec::new();
    for away in 0..3 {
        let others = pages.iter().filter(|(member, _)| *member != away);
        cases.extend(others.map(|bad| (Some(away), vec![*bad], vec![])));
    }
    for (at, &one) in pages.iter().enumerate() {
        for &two in pages.iter().skip(at + 1).take(7) {
            cases.push((None, vec![one, two], vec![]));
            cases.push((None, vec![one], vec![two]));
        }
    }
    for (away, bad, rotten) in cases {
        let what = format!("{away:?} away, {bad:?} bad, {rotten:?} rotten");
        let mut images = closed.images.clone();
        rotten.iter().for_each(|(member, offset)| images[*member].flip(offset + 9, 2));
        let lost = told(&with_bad(&images, away, &bad), &what);
        let given = given(&with_bad(&images, away, &bad), &closed, &what);
        assert_eq!(lost, given.iter().filter(|given| !**given).count(), "{what}");
        (whole, harmed) = (whole + usize::from(lost == 0), harmed + usize::from(lost > 0));
    }
    println!("{whole} whole, {harmed} harmed");
    assert!(whole > 100 && harmed > 20, "{whole} {harmed}");
}

/// Goal: a block of which all units of one member have rotted is no defect. Method: units of one
/// page, so that a block lies in several rows.
#[test]
fn rot_in_all_units_of_a_member_is_no_defect() {
    let count = 3;
    let devices = devices_of(vec![Image::blank(MEMBER_BYTES); count]);
    let mut options = PoolCreateOptions::new(MEMBER_BYTES, [6; 64]);
    options.geometry.journal_bytes = Some(1 << 20);
    let layout = Layout::Raid5 { unit_shift: 12 };
    Pool::create_on(&shared(&devices), layout, &ManualClock::new(), &options)
        .expect("a pool in stripes fits");
    let bytes = content(1, FILE_BYTES);
    let pool = open(&devices).expect("it is new");
    put(&pool, "file0", &bytes).expect("there is room");
    pool.close().expect("nothing fails");
    drop(pool);
    let images: Vec<Image> = devices.iter().map(|device| device.image()).collect();
    for member in 0..count {
        let mut rotten = images.clone();
        let mut pages = 0;
        images[member].for_each_page(|offset, found| {
            if bytes.chunks(PAGE).any(|page| page == found) {
                rotten[member].flip(offset + 5, 1);
                pages += 1;
            }
        });
        assert!(pages > 2, "{pages}");
        let what = format!("all of {member} has rotted");
        assert_eq!(told(&devices_of(rotten.clone()), &what), 0, "{what}");
        let pool = open(&devices_of(rotten)).expect("it was closed");
        assert!(super::get(&pool, "file0").is_some_and(|found| found == bytes), "{what}");
    }
}
