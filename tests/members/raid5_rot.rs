//! A member of a pool in stripes that has bad sectors and rot at once: the others have all that it
//! has.

use engine::{CreateOptions, Pool};
use format::ids::Place;
use runtime::clock::ManualClock;
use storage::device::sim::{Fault, FaultPlan, Image};
use storage::device::{AlignedBuffer, Device, Operation, Purpose, SharedBytes};
use storage::volume::{Opening, Volume};

use super::raid5::{LAYOUT, MEMBER_BYTES};
use super::raid5_known::content;
use super::{Devices, devices_of, shared};

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
        let mut options = CreateOptions::new(MEMBER_BYTES, [6; 64]);
        options.geometry.journal_bytes = Some(1 << 20);
        options.geometry.segment_bytes = Some(ROWS * units * 8192);
        Pool::create_on(&shared(&devices), LAYOUT, &ManualClock::new(), &options)
            .expect("a pool in stripes fits");
        let opening = Opening { devices: shared(&devices), accepts_missing: false };
        let (volume, superblock) = Volume::open_members(opening).expect("all are there");
        let geometry = &superblock.geometry;
        let stripes = geometry.stripes().expect("it has stripes");
        let start = geometry.segment_place(0, geometry.segments_of(0) - 1);
        let offset = geometry.device_offset(start, 1).expect("it is there");
        let row = stripes.locate(offset).expect("it is in the groups").row;
        let length = stripes.row_start(row + ROWS) - offset;
        let all = content(count, usize::try_from(length).expect("small"));
        let pieces = vec![SharedBytes::from(AlignedBuffer::copy_of(&all))];
        volume.submit_write(Purpose::Data, start, pieces).wait().expect("nothing fails");
        // All but the first page and the last two.
        let bytes = all[PAGE..all.len() - 2 * PAGE].to_vec();
        let at = (offset + PAGE_WIDE..).step_by(PAGE).take(bytes.len() / PAGE);
        let located = at.map(|at| stripes.locate(at).expect("it is in the groups"));
        let pages = located.map(|place| (place.member, place.member_offset)).collect();
        Block { devices, volume, place: start.advance(geometry.page_fragments()), bytes, pages }
    }

    /// Makes a page unreadable and lets others rot, and holds that the block is given, and that all
    /// of it is on the members then.
    fn harm(&self, bad: (usize, u64), rotten: &[(usize, u64)]) {
        let what = format!("{} members, {bad:?} bad, {rotten:?} rotten", self.devices.len());
        self.devices[bad.0].arm(FaultPlan { faults: vec![Fault::BadSector { offset: bad.1 }] });
        rotten.iter().for_each(|(member, offset)| self.devices[*member].rot(offset + 99, 4));
        let is_it = |bytes: &[u8]| bytes == self.bytes;
        let healed = self.volume.heal(Purpose::Data, self.place, self.bytes.len(), &is_it);
        let healed = healed.expect("the others give it");
        assert!(healed.bytes.is_some_and(|bytes| bytes[..] == self.bytes), "{what}");
        assert_eq!(healed.bad, healed.repaired, "{what}");
        for (&(member, offset), expected) in self.pages.iter().zip(self.bytes.chunks(PAGE)) {
            let read = Operation::Read { offset, buffer: AlignedBuffer::for_reading(PAGE) };
            let found = self.devices[member].submit(Purpose::Data, read).wait();
            let found = found.expect("it was written again").buffer.expect("it was read");
            assert!(found[..] == *expected, "{what}: {offset} of {member}");
        }
    }
}

/// Goal: whatever of one member cannot be read, and whatever has rotted there besides, a block
/// comes from the others, and the member has it again. Method: each page of a block is bad in turn,
/// and one or two others of its member have rotted.
#[test]
fn what_one_member_has_bad_and_rotten_comes_from_the_others() {
    for count in [3, 4, 5] {
        let block = Block::new(count);
        for &bad in &block.pages {
            let is_beside = |page: &&(usize, u64)| page.0 == bad.0 && **page != bad;
            let others: Vec<(usize, u64)> = block.pages.iter().filter(is_beside).copied().collect();
            for (at, &one) in others.iter().enumerate() {
                block.harm(bad, &[one]);
                others[at + 1..].iter().for_each(|&two| block.harm(bad, &[one, two]));
            }
        }
    }
}
