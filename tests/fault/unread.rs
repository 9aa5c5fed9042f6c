//! Sectors that cannot be read when a pool is opened after a crash: one that nobody needs does not
//! stop the open, and one in which the log may go on is never taken for its end.

use std::sync::Arc;

use engine::api::{Caller, FileKind, FileSystem, NewInode};
use engine::{Pool, PoolCreateOptions};
use format::defect::DefectCode;
use format::geometry::JOURNAL_HEADS;
use format::ids::AnodeNo;
use format::page::{PAGE_BYTES, PageBytes, PageHeader, PageKind, PageOwner};
use format::superblock::{SUPERBLOCK_BYTES, Superblock};
use runtime::clock::ManualClock;
use storage::device::SharedDevice;
use storage::device::sim::{Fault, FaultPlan, Image, SimDevice, SimOptions};

use super::{POOL_BYTES, content, make, new_pool, open, read};

/// What was synced behind the last checkpoint: in the log alone, and large enough to be elsewhere.
const LATE: [(u64, usize); 6] =
    [(900, 3_000), (901, 60_000), (902, 3_000), (903, 9_000), (904, 50_000), (905, 700)];

/// Returns a pool that was cut off, of which the log has gone on for a while.
fn cut_off() -> (Image, Superblock) {
    cut_off_after(80, new_pool())
}

/// The same of a pool that was made on `image`, of which the log has gone on for so many files.
fn cut_off_after(files: u64, image: Image) -> (Image, Superblock) {
    let device = SimDevice::open(image, SimOptions::default());
    let shared: SharedDevice = Arc::<SimDevice>::clone(&device);
    let pool = open(&shared).expect("a new pool opens");
    let add = |number: u64, length: usize| {
        let ino = make(&pool, &format!("file{number}")).expect("there is room");
        pool.write(&Caller::root(), ino, 0, &content(number, length)).expect("there is room");
        pool.fsync(&Caller::root(), ino, false).expect("nothing fails");
    };
    for number in 0..files {
        add(number, 12_000);
        if number % 20 == 19 || number + 1 == files {
            pool.checkpoint().expect("nothing fails");
        }
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

/// Returns the codes of what a check finds with a bad sector.
fn found_with_bad(image: &Image, offset: u64) -> Vec<DefectCode> {
    let device = SimDevice::open(image.clone(), SimOptions::default());
    device.arm(FaultPlan { faults: vec![Fault::BadSector { offset }] });
    let report = check::run(device, check::CheckOptions::default(), &mut |_| ());
    report.counts.into_keys().collect()
}

/// Goal: a sector of the ring that cannot be read stops the open where the log may go on in it, and
/// nowhere else; the log never ends there. A check says the same, and concludes nothing from a log
/// that it has not got. Method: each page of the ring, one after the other.
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
                assert_eq!(found_with_bad(&image, offset), [], "{offset}");
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
                assert_eq!(found_with_bad(&image, offset), [DefectCode::IO001], "{offset}");
            }
        }
    }
    println!("{refused} refused, {opened} opened");
    assert!((2..40).contains(&refused), "{refused} pages have the live log");
    assert!(opened > refused, "{opened}");
}

/// Goal: a chunk that has rotted is never taken for the end of the log while one behind it says
/// that more was durable, wherever in the ring that lies. Method: the front of each page of the
/// ring, of logs that end elsewhere each.
#[test]
fn a_rotten_chunk_is_never_the_end_of_the_log() {
    let (mut refused, mut last) = (0, 0);
    for files in (56..100).step_by(3) {
        // Longer than what is read at a time.
        let device = SimDevice::new(POOL_BYTES, SimOptions::default());
        let shared: SharedDevice = Arc::<SimDevice>::clone(&device);
        let mut options = PoolCreateOptions::new(POOL_BYTES, [5; 64]);
        options.geometry.journal_bytes = Some(4 << 20);
        Pool::create(&shared, &ManualClock::new(), &options).expect("a pool fits");
        let (image, superblock) = cut_off_after(files, device.durable_image());
        let ring = superblock.geometry.journal_offset + JOURNAL_HEADS * 4096;
        for offset in (ring + (700 << 10)..ring + (1500 << 10)).step_by(PAGE_BYTES) {
            let mut rotten = image.clone();
            rotten.write(offset, &[0; 64]);
            let device = SimDevice::open(rotten, SimOptions::default());
            let shared: SharedDevice = device;
            let pool = match open(&shared) {
                Ok(pool) => pool,
                Err(error) => {
                    assert!(error.to_string().contains("JR002"), "{files} {offset}: {error}");
                    refused += 1;
                    continue;
                }
            };
            for (number, length) in LATE {
                let found = read(&pool, &format!("file{number}")).ok();
                let is_it = found == Some(content(number, length));
                // Nothing is behind the last chunk that could tell of it.
                last += usize::from(!is_it);
                let is_last = Some(number) == LATE.last().map(|(number, _)| *number);
                assert!(is_it || is_last, "{files} {offset}: file{number} is lost");
            }
        }
    }
    println!("{refused} refused, {last} the last");
    assert!(refused > 60 && last < 40, "{refused} refused, {last} the last");
}

/// Goal: a bad sector below inline log data stops no open where a fragment is less than a page
/// either, and a check names what of it nobody has. Method: each page of the first segments, one
/// after the other.
#[test]
fn a_bad_sector_below_small_fragments_stops_no_open() {
    let device = SimDevice::new(POOL_BYTES, SimOptions::default());
    let shared: SharedDevice = Arc::<SimDevice>::clone(&device);
    let mut options = PoolCreateOptions::new(POOL_BYTES, [5; 64]);
    options.geometry.fragment_bytes = 1024;
    Pool::create(&shared, &ManualClock::new(), &options).expect("a pool fits");
    let (image, superblock) = cut_off_after(0, device.durable_image());
    let geometry = &superblock.geometry;
    let end = geometry.device_bytes - (128 << 10);
    let mut found_bad = 0;
    for offset in (geometry.groups_offset..end).step_by(PAGE_BYTES) {
        let mut page: PageBytes = [0; PAGE_BYTES];
        image.read(offset, &mut page);
        let Some(place) = geometry.place_at(offset) else { continue };
        // What is in use is in the log, or a page of metadata.
        if PageHeader::decode(&page, superblock.pool_id, place).is_ok() {
            continue;
        }
        let segment = u64::from(geometry.segment_of(place));
        if segment > 12 || place.group() > 0 {
            continue;
        }
        let found = open_with_bad(&image, offset);
        let found = found.unwrap_or_else(|error| panic!("the page at {offset}: {error}"));
        let mut bad = 0;
        for ((number, length), found) in LATE.into_iter().zip(found) {
            let is_it = found == Some(content(number, length));
            bad += usize::from(!is_it);
        }
        let codes = found_with_bad(&image, offset);
        assert!(codes.is_empty() || codes == [DefectCode::IO001], "{offset}: {codes:?}");
        assert!(
            bad == 0 || !codes.is_empty(),
            "{offset}: {bad} files are lost, and nobody says so"
        );
        found_bad += bad;
    }
    assert!(found_bad < 40, "{found_bad}: the log has what was acknowledged");
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
        let codes = found_with_bad(&image, offset);
        assert!(codes.is_empty() || codes == [DefectCode::IO001], "{offset}: {codes:?}");
        assert!(
            bad == 0 || !codes.is_empty(),
            "{offset}: {bad} files are lost, and nobody says so"
        );
    }
    println!("{judged} pages");
    assert!(judged > 40, "{judged}");
}

/// Goal: a copy of a head, the double-write area and LSN pages, of which the log or another copy
/// has all, stop no open and lose nothing if they cannot be read, and a check calls no more damaged
/// than an LSN page. Method: each page of these, of a pool that was cut off and of one that was
/// closed.
#[test]
fn a_bad_sector_of_what_there_is_twice_stops_no_open() {
    let (cut, superblock) = cut_off();
    let closed = {
        let device = SimDevice::open(cut.clone(), SimOptions::default());
        let shared: SharedDevice = Arc::<SimDevice>::clone(&device);
        open(&shared).expect("it recovers").close().expect("nothing fails");
        device.durable_image()
    };
    let geometry = &superblock.geometry;
    let heads = geometry.journal_offset..geometry.journal_offset + JOURNAL_HEADS * 4096;
    let area = geometry.double_write_offset..geometry.group_table_offset;
    let lsn_pages = geometry.group_layout().groups().flat_map(|group| {
        let place = move |index| geometry.lsn_page_place(group, index);
        (0..geometry.lsn_pages()).map(place)
    });
    let lsn_pages = lsn_pages.filter_map(|place| geometry.device_offset(place, 1));
    let lsn_pages: Vec<u64> = lsn_pages.collect();
    let fixed = heads.step_by(PAGE_BYTES).chain(area.step_by(PAGE_BYTES));
    for offset in fixed.chain(lsn_pages.iter().copied()) {
        for (image, what) in [(&cut, "cut off"), (&closed, "closed")] {
            let codes = found_with_bad(image, offset);
            let may_be = lsn_pages.contains(&offset) && codes == [DefectCode::AG011];
            assert!(codes.is_empty() || may_be, "{what}, page at {offset}: {codes:?}");
            let found = open_with_bad(image, offset);
            let found = found.unwrap_or_else(|error| panic!("{what}, page at {offset}: {error}"));
            for ((number, length), found) in LATE.into_iter().zip(found) {
                let is_it = found == Some(content(number, length));
                assert!(is_it, "{what}, page at {offset}: file{number} is lost");
            }
        }
    }
}

/// Goal: of a page of metadata that cannot be read a check says what a mount meets: nothing of one
/// that the log has whole, and of any other that it can't be read, and no more that follows from
/// that. Method: each page of metadata that is at home, one after the other.
#[test]
fn a_bad_sector_of_metadata_is_what_a_mount_makes_of_it() {
    let (image, superblock) = cut_off();
    let geometry = &superblock.geometry;
    let (mut healed, mut bad) = (0, 0);
    for offset in (geometry.groups_offset..geometry.device_bytes - (128 << 10)).step_by(PAGE_BYTES)
    {
        let mut page: PageBytes = [0; PAGE_BYTES];
        image.read(offset, &mut page);
        let Some(place) = geometry.place_at(offset) else { continue };
        let header = PageHeader::decode(&page, superblock.pool_id, place);
        if header.is_err() || geometry.is_lsn_page(place) {
            continue;
        }
        let before = found_with_bad(&image, offset);
        let only_follows =
            |code: &DefectCode| [DefectCode::IO001, DefectCode::AG001].contains(code);
        assert!(before.iter().all(only_follows), "{header:?} at {offset}: {before:?}");
        match before.is_empty() {
            true => {
                let found = open_with_bad(&image, offset);
                let found = found.unwrap_or_else(|error| panic!("{header:?}: {error}"));
                for ((number, length), found) in LATE.into_iter().zip(found) {
                    assert!(found == Some(content(number, length)), "{header:?}: file{number}");
                }
                healed += 1;
            }
            false => bad += 1,
        }
    }
    println!("{healed} healed, {bad} bad");
    assert!(healed > 0 && bad > 0, "{healed} healed, {bad} bad");
}

/// Leaves of the map of the file that [`nameless`] leaves.
const LEAVES: u64 = 40;
const LEAF_BYTES: u64 = 124 * (16 << 10);

/// Returns a pool that was cut off while a file without a name was open, whose map is long.
fn nameless() -> (Image, Superblock, AnodeNo) {
    let device = SimDevice::open(new_pool(), SimOptions::default());
    let shared: SharedDevice = Arc::<SimDevice>::clone(&device);
    let pool = open(&shared).expect("a new pool opens");
    for (number, length) in LATE {
        let ino = make(&pool, &format!("file{number}")).expect("there is room");
        pool.write(&Caller::root(), ino, 0, &content(number, length)).expect("there is room");
        pool.fsync(&Caller::root(), ino, false).expect("nothing fails");
    }
    // Its anode lies in a page of its own.
    (0..200).for_each(|number| drop(make(&pool, &format!("other{number}"))));
    let (caller, new) = (Caller::root(), NewInode::new(FileKind::Regular, 0o644));
    // Whoever has it open keeps it.
    let ino = pool.create(&caller, pool.root(), b"long", new, None).expect("there is room").ino;
    for leaf in 0..LEAVES {
        pool.write(&caller, ino, leaf * LEAF_BYTES, &[1; 4096]).expect("there is room");
    }
    pool.fsync(&caller, ino, false).expect("nothing fails");
    pool.unlink(&caller, pool.root(), b"long", None).expect("it is there");
    pool.checkpoint().expect("nothing fails");
    let image = device.durable_image();
    let mut bytes = [0; SUPERBLOCK_BYTES];
    image.read(0, &mut bytes);
    (
        image,
        Superblock::decode(&bytes, 0).expect("the first copy is whole"),
        AnodeNo(ino.in_slot(0).0),
    )
}

/// Goal: a file without a name that cannot be freed, for a sector that cannot be read, keeps no
/// pool closed, and nothing else is lost by it. Method: each page of its map, of anodes but the
/// first, and of the orphan list.
#[test]
fn a_bad_sector_under_a_file_without_a_name_stops_no_open() {
    let (image, superblock, long) = nameless();
    let geometry = &superblock.geometry;
    let mut judged = [0_u32; 3];
    for offset in (geometry.groups_offset..geometry.device_bytes - (128 << 10)).step_by(PAGE_BYTES)
    {
        let mut page: PageBytes = [0; PAGE_BYTES];
        image.read(offset, &mut page);
        let Some(place) = geometry.place_at(offset) else { continue };
        let Ok(header) = PageHeader::decode(&page, superblock.pool_id, place) else { continue };
        let PageOwner { anode, index, .. } = header.owner;
        let kinds = [
            header.kind == PageKind::Map && anode == long,
            header.kind == PageKind::Anode && index > 4,
            header.kind == PageKind::OrphanList,
        ];
        let Some(which) = kinds.iter().position(|is_it| *is_it) else { continue };
        judged[which] += 1;
        let found = open_with_bad(&image, offset);
        let found = found.unwrap_or_else(|error| panic!("{header:?} at {offset}: {error}"));
        for ((number, length), found) in LATE.into_iter().zip(found) {
            // Its own anode may lie there.
            let is_gone = found.is_none() && which == 1;
            let is_it = found == Some(content(number, length));
            assert!(is_it || is_gone, "file{number}: {header:?}");
        }
    }
    println!("{judged:?}");
    assert!(judged.iter().all(|count| *count > 0), "{judged:?}");
}
