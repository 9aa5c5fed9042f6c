//! Sectors that cannot be read when a pool is opened after a crash: one that nobody needs does not
//! stop the open, and one in which the log may go on is never taken for its end.

use std::sync::Arc;

use engine::vnode::api::{Caller, FileSystem};
use format::geometry::JOURNAL_HEADS;
use format::page::{PAGE_BYTES, PageBytes, PageHeader};
use format::superblock::{SUPERBLOCK_BYTES, Superblock};
use storage::device::SharedDevice;
use storage::device::sim::{Fault, FaultPlan, Image, SimDevice, SimOptions};

use super::{content, make, new_pool, open, read};

/// What was synced behind the last checkpoint: in the log alone, and large enough to be elsewhere.
const LATE: [(u64, usize); 6] =
    [(900, 3_000), (901, 60_000), (902, 3_000), (903, 9_000), (904, 50_000), (905, 700)];

/// Returns a pool that was cut off, of which the log has gone on for a while.
fn cut_off() -> (Image, Superblock) {
    let device = SimDevice::open(new_pool(), SimOptions::default());
    let shared: SharedDevice = Arc::<SimDevice>::clone(&device);
    let pool = open(&shared).expect("a new pool opens");
    let add = |number: u64, length: usize| {
        let ino = make(&pool, &format!("file{number}")).expect("there is room");
        pool.write(&Caller::root(), ino, 0, &content(number, length)).expect("there is room");
        pool.fsync(&Caller::root(), ino, false).expect("nothing fails");
    };
    for round in 0..4 {
        (0..20).for_each(|number| add(round * 20 + number, 12_000));
        pool.checkpoint().expect("nothing fails");
    }
    LATE.into_iter().for_each(|(number, length)| add(number, length));
    let image = device.durable_image();
    let mut bytes = [0; SUPERBLOCK_BYTES];
    image.read(0, &mut bytes);
    (image, Superblock::decode(&bytes, 0).expect("the first copy is whole"))
}

/// Opens the pool with a bad sector. Returns what each of [`LATE`] is read as.
fn open_with_bad(image: &Image, offset: u64) -> Result<Vec<Option<Vec<u8>>>, String> {
    let device = SimDevice::open(image.clone(), SimOptions::default());
    device.arm(FaultPlan { faults: vec![Fault::BadSector { offset }] });
    let shared: SharedDevice = device;
    let pool = open(&shared).map_err(|error| error.to_string())?;
    let found = |(number, _): (u64, usize)| read(&pool, &format!("file{number}")).ok();
    Ok(LATE.into_iter().map(found).collect())
}

/// Goal: a sector of the ring that cannot be read stops the open where the log may go on in it, and
/// nowhere else; the log never ends there. Method: each page of the ring, one after the other.
#[test]
fn a_bad_sector_in_the_ring_stops_the_open_where_the_log_may_go_on() {
    let (image, superblock) = cut_off();
    let geometry = &superblock.geometry;
    let ring = geometry.journal_offset + JOURNAL_HEADS * 4096
        ..geometry.journal_offset + geometry.journal_bytes;
    let (mut refused, mut opened) = (0, 0);
    for offset in ring.step_by(PAGE_BYTES) {
        match open_with_bad(&image, offset) {
            Ok(found) => {
                opened += 1;
                for ((number, length), found) in LATE.into_iter().zip(found) {
                    let is_it = found == Some(content(number, length));
                    assert!(
                        is_it,
                        "file{number} was synced, and is lost with the page at {offset}"
                    );
                }
            }
            Err(error) => {
                refused += 1;
                assert!(error.contains("the log may go on there"), "{offset}: {error}");
            }
        }
    }
    println!("{refused} refused, {opened} opened");
    assert!((2..40).contains(&refused), "{refused} pages have the live log");
    assert!(opened > refused, "{opened}");
}

/// Goal: a sector of a data segment that cannot be read stops no open, though inline log data goes
/// to its segment then. Method: each page of data that is there, one after the other.
#[test]
fn a_bad_sector_in_a_data_segment_stops_no_open() {
    let (image, superblock) = cut_off();
    let geometry = &superblock.geometry;
    let mut judged = 0;
    for offset in (geometry.groups_offset..geometry.device_bytes - (128 << 10)).step_by(PAGE_BYTES)
    {
        let mut page: PageBytes = [0; PAGE_BYTES];
        image.read(offset, &mut page);
        let Some(place) = geometry.place_at(offset) else { continue };
        let is_page = PageHeader::decode(&page, superblock.pool_id, place).is_ok();
        if is_page || page.iter().all(|byte| *byte == 0) {
            continue;
        }
        judged += 1;
        let found = open_with_bad(&image, offset);
        let found = found.unwrap_or_else(|error| panic!("the page at {offset}: {error}"));
        let mut bad = 0;
        for ((number, length), found) in LATE.into_iter().zip(found) {
            let is_it = found == Some(content(number, length));
            assert!(is_it || found.is_none(), "file{number} is another");
            bad += usize::from(!is_it);
        }
        assert!(bad <= 1, "{bad} files for one sector");
    }
    println!("{judged} pages");
    assert!(judged > 40, "{judged}");
}
