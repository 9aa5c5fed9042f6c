//! Free maps and totals that lie under good checksums.

use std::sync::Arc;

use engine::api::{Caller, FileSystem, FsError, FsResult};
use engine::{Pool, PoolCreateOptions};
use format::bitmap;
use format::defect::DefectCode;
use format::group::{DescriptorDisk, SegmentUsage, TOTAL_GROUPS_USED_OFFSET, USAGE_BYTES};
use format::page::{PageBytes, PageHeader, PageKind, page_lsn, stamp};
use runtime::clock::ManualClock;
use storage::device::SharedDevice;
use storage::device::sim::{Fault, FaultPlan, Image, SimDevice, SimOptions};

use super::{content, defects, device_of, make, open, read};

const POOL_BYTES: u64 = 48 << 20;
const GROUP_BYTES: u64 = 8 << 20;
/// As many names of the longest as nearly fill one page of a directory, and one page of anodes
/// less.
const NAMES: u64 = 13;
/// Operations after which at the latest the lie shows.
const STEPS: u64 = 100;
const FILE_BYTES: usize = 1 << 20;

fn long_name(number: u64) -> String {
    format!("{number:0255}")
}

/// A pool of several groups, of which the first alone is in use.
fn image() -> Image {
    let device = SimDevice::new(POOL_BYTES, SimOptions::default());
    let shared: SharedDevice = Arc::<SimDevice>::clone(&device);
    let mut options = PoolCreateOptions::new(POOL_BYTES, [5; 64]);
    options.geometry.group_bytes = Some(GROUP_BYTES);
    Pool::create(&shared, &ManualClock::new(), &options).expect("a pool fits");
    let pool = open(&shared).expect("a new pool opens");
    for number in 0..NAMES {
        make(&pool, &long_name(number)).expect("there is room");
    }
    pool.close().expect("nothing fails");
    device.durable_image()
}

/// Returns the last page of `kind`, with its header; what lies before the groups are copies.
fn page_of_kind(image: &Image, kind: PageKind) -> (u64, PageHeader, PageBytes) {
    let mut found = None;
    image.for_each_page(|offset, bytes| {
        let bytes: &PageBytes = bytes.first_chunk().expect("a page");
        let header = PageHeader::parse(bytes).filter(|_| bytes.starts_with(b"HFpg"));
        if let Some(header) = header.filter(|header| header.kind == kind) {
            found = Some((offset, header, *bytes));
        }
    });
    found.expect("every pool has one")
}

fn put(image: &mut Image, offset: u64, mut page: PageBytes) {
    let lsn = page_lsn(&page);
    stamp(&mut page, lsn);
    image.write(offset, &page);
}

/// Opens the pool and fills it until something is refused; returns with what.
fn refusal(image: &Image, step: impl Fn(&Pool, u64) -> FsResult<()>) -> FsError {
    let device = device_of(image);
    assert!(defects(&device).is_some(), "the check sees nothing");
    let pool = open(&device).expect("the lie is not read yet");
    (0..STEPS).find_map(|number| step(&pool, number).err()).expect("the lie is believed")
}

/// Goal: a page that the free map gives out while the transaction changes it is a defect. Method:
/// the page of the root directory is marked free; the directory grows until it is split.
#[test]
fn a_page_in_use_that_is_marked_free_is_told() {
    let mut image = image();
    let (_, directory, _) = page_of_kind(&image, PageKind::Directory);
    let (offset, _, mut map) = page_of_kind(&image, PageKind::FreeMap);
    bitmap::set(&mut map, directory.place.fragment(), false);
    put(&mut image, offset, map);
    // Usage and descriptor tell the same lie, or the group would not be loaded.
    let (offset, _, mut usages) = page_of_kind(&image, PageKind::SegmentUsage);
    let usage = SegmentUsage::of(&usages, 0).expect("it is of a known kind");
    let usage = SegmentUsage { live: usage.live - 1, ..usage };
    usages[SegmentUsage::offset(0)..][..USAGE_BYTES].copy_from_slice(&usage.encode());
    put(&mut image, offset, usages);
    let (offset, _, mut descriptor) = page_of_kind(&image, PageKind::GroupDescriptor);
    let mut counts = DescriptorDisk::of(&descriptor);
    counts.fragments_used.set(counts.fragments_used.get() - 1);
    counts.store(&mut descriptor);
    put(&mut image, offset, descriptor);
    let told = refusal(&image, |pool, number| make(pool, &long_name(NAMES + number)).map(drop));
    assert!(
        matches!(&told, FsError::Corrupt { defect, .. } if defect.code == DefectCode::AG003),
        "{told}"
    );
}

/// Goal: a group that is not in use, of a pool that says that all are, is a defect. Method: the
/// total says so; files fill the first group.
#[test]
fn a_group_too_many_is_told() {
    let mut image = image();
    let (offset, _, mut root) = page_of_kind(&image, PageKind::GroupTableRoot);
    let field = TOTAL_GROUPS_USED_OFFSET..TOTAL_GROUPS_USED_OFFSET + 8;
    root[field].copy_from_slice(&(POOL_BYTES / GROUP_BYTES).to_le_bytes());
    put(&mut image, offset, root);
    let told = refusal(&image, |pool, number| {
        let ino = make(pool, &format!("file {number}"))?;
        pool.write(&Caller::root(), ino, 0, &content(number, FILE_BYTES))
    });
    assert!(
        matches!(&told, FsError::Corrupt { defect, .. } if defect.code == DefectCode::AG007),
        "{told}"
    );
}

/// Goal: an allocation group that cannot be read gives nothing, and keeps nobody from the others.
/// Method: a bad sector on each page of what describes a group in the middle, of a pool that is
/// half full; names and data go on, and what lies in other groups is there.
#[test]
fn a_group_that_cannot_be_read_keeps_nobody_from_the_others() {
    let device = SimDevice::open(image(), SimOptions::default());
    let shared: SharedDevice = Arc::<SimDevice>::clone(&device);
    let pool = open(&shared).expect("it was closed");
    let geometry = pool.status().geometry;
    let put = |pool: &Pool, number: u64| -> FsResult<()> {
        let ino = make(pool, &format!("data{number}"))?;
        pool.write(&Caller::root(), ino, 0, &content(number, FILE_BYTES))?;
        pool.fsync(&Caller::root(), ino, false)
    };
    (0..20).for_each(|number| put(&pool, number).expect("there is room"));
    pool.close().expect("nothing fails");
    drop(pool);
    let whole = device.durable_image();
    let front = 0..geometry.front_pages();
    for place in front.map(|index| geometry.page_place(1, index)) {
        let device = SimDevice::open(whole.clone(), SimOptions::default());
        let offset = geometry.device_offset(place, 1).expect("in a group");
        device.arm(FaultPlan { faults: vec![Fault::BadSector { offset }] });
        let shared: SharedDevice = device;
        let pool = open(&shared).unwrap_or_else(|error| panic!("{place}: {error}"));
        // More than the first group has, and less than all others.
        for number in 20..32 {
            put(&pool, number).unwrap_or_else(|error| panic!("{place}: file {number}: {error}"));
        }
        for number in 1000..1400 {
            make(&pool, &long_name(number)).expect("there is room");
        }
        for number in 20..32 {
            let found = read(&pool, &format!("data{number}")).expect("it can be read");
            assert!(found == content(number, FILE_BYTES), "{place}: file {number}");
        }
    }
}
