//! Goal: a file whose changes cannot be put into the journal keeps nothing else from the disk, and
//! whoever syncs it is told.
//!
//! Method: in a pool of many small groups the descriptor of one rots that was not read yet. A block
//! that lies there is overwritten, which is accepted: only when the new version is entered in the
//! map is the old one freed, and the descriptor read.

use std::sync::Arc;

use engine::api::{Caller, FileSystem, FsError, FsResult, Ino};
use engine::{PENDING_BYTES_MAX, Pool, PoolCreateOptions, PoolOpenOptions};
use format::defect::Defect;
use runtime::clock::ManualClock;
use runtime::prng::Prng;
use storage::device::SharedDevice;
use storage::device::sim::{Image, SimDevice, SimOptions};

use super::{content, device_of, find, make, open, read};

const POOL_BYTES: u64 = 64 << 20;
const FILES: u64 = 24;
/// One that lies in none of the groups that are read for a new segment.
const VICTIM: u64 = 6;
const FILE_BYTES: usize = 1 << 20;
const BLOCK_BYTES: usize = 16 << 10;
const HALF_SECOND_NS: u64 = 500_000_000;
/// Enough for changes to age, and for what was freed to be due.
const TICKS: usize = 40;

fn name_of(number: u64) -> String {
    format!("f{number}")
}

/// A pool that was closed, with files in many groups.
fn full_image() -> Image {
    let device = SimDevice::new(POOL_BYTES, SimOptions::default());
    let shared: SharedDevice = Arc::<SimDevice>::clone(&device);
    let mut create = PoolCreateOptions::new(POOL_BYTES, [7; 64]);
    create.geometry.journal_bytes = Some(1 << 20);
    create.geometry.segment_bytes = Some(128 << 10);
    create.geometry.group_bytes = Some(2 << 20);
    Pool::create(&shared, &ManualClock::new(), &create).expect("a pool fits");
    let pool = open(&shared).expect("a new pool opens");
    for number in 0..FILES {
        let ino = make(&pool, &name_of(number)).expect("there is room");
        let written = pool.write(&Caller::root(), ino, 0, &content(number, FILE_BYTES));
        written.expect("there is room");
    }
    // Whoever looks for free segments finds some before the groups of the others.
    pool.unlink(&Caller::root(), pool.root(), name_of(0).as_bytes(), None).expect("it is there");
    pool.close().expect("nothing fails");
    device.image()
}

/// Returns where on the device the first block of a file is.
fn offset_of(image: &Image, number: u64) -> u64 {
    let bytes = content(number, FILE_BYTES);
    let mut found = None;
    image.for_each_page(|offset, page| {
        if page == &bytes[..page.len()] {
            found = Some(offset);
        }
    });
    found.expect("its first block is stored as it is")
}

struct Broken {
    device: Arc<SimDevice>,
    clock: Arc<ManualClock>,
    pool: Pool,
    /// Has a block that waits, and that cannot be entered in its map.
    victim: Ino,
    /// Was written, and not synced.
    other: Ino,
}

fn broken() -> Broken {
    let image = full_image();
    let offset = offset_of(&image, VICTIM);
    let device = SimDevice::open(image, SimOptions::default());
    let shared: SharedDevice = Arc::<SimDevice>::clone(&device);
    let clock = Arc::new(ManualClock::new());
    let pool =
        Pool::open(shared, clock.clone(), PoolOpenOptions::default()).expect("it was closed");
    let (caller, block) = (Caller::root(), content(100, BLOCK_BYTES));
    // Segments are open for what is new and for what is overwritten, before the descriptor rots.
    let other = make(&pool, "other").expect("there is room");
    pool.write(&caller, other, 0, &block).expect("there is room");
    let first = find(&pool, &name_of(1)).expect("it is there");
    pool.write(&caller, first, 0, &content(1, BLOCK_BYTES)).expect("there is room");
    let geometry = pool.status().geometry;
    let group = geometry.place_at(offset).expect("it is in a group").group();
    let descriptor = geometry.device_offset(geometry.descriptor_place(group), 1);
    device.rot(descriptor.expect("a group has one"), 1);
    let victim = find(&pool, &name_of(VICTIM)).expect("it is there");
    pool.write(&caller, victim, 0, &block).expect("what lies there is not read yet");
    Broken { device, clock, pool, victim, other }
}

fn is_told<T: std::fmt::Debug>(result: &FsResult<T>) {
    assert!(matches!(result, Err(FsError::Corrupt { .. })), "{result:?}");
}

/// What is in the pool when power is cut, once it is opened again.
fn after_a_cut(device: &SimDevice) -> Pool {
    let image = device.crash_image(&mut Prng::from_seed(1));
    open(&device_of(&image)).expect("a crash loses no more than what was not durable")
}

#[test]
fn a_file_that_cannot_be_flushed_keeps_no_other_from_the_disk() {
    let Broken { device, clock, pool, victim, .. } = broken();
    let removed = name_of(2);
    pool.unlink(&Caller::root(), pool.root(), removed.as_bytes(), None).expect("it is there");
    let mut failures = 0;
    for _ in 0..TICKS {
        clock.advance_ns(HALF_SECOND_NS);
        let ticked = pool.tick();
        if ticked.is_err() {
            is_told(&ticked);
            failures += 1;
        }
    }
    assert!(failures > TICKS / 2, "{failures} ticks have told of it");
    assert_eq!(pool.status().space.pending, 0, "what was freed can be given out again");
    let again = after_a_cut(&device);
    let found = read(&again, "other").expect("written before");
    assert!(found == content(100, BLOCK_BYTES));
    assert_eq!(find(&again, &removed), Err(FsError::NotFound), "removed before");
    is_told(&pool.fsync(&Caller::root(), victim, false));
}

#[test]
fn a_file_that_cannot_be_flushed_refuses_no_write_to_another() {
    let Broken { pool, victim, other, .. } = broken();
    let caller = Caller::root();
    for block in 1..32_u64 {
        let offset = block * u64::try_from(BLOCK_BYTES).expect("small");
        pool.write(&caller, other, offset, &content(block, BLOCK_BYTES)).expect("there is room");
    }
    pool.fsync(&caller, other, false).expect("nothing of it is damaged");
    is_told(&pool.fsync(&caller, victim, false));
    // Once it is gone, so is what there was to tell; what it had is kept, for nobody can free it.
    pool.unlink(&caller, pool.root(), name_of(VICTIM).as_bytes(), None).expect("a name goes");
}

/// Writes block after block of a file, twice as much as may wait; returns how many bytes were taken
/// before the first error, and that.
fn write_on(pool: &Pool, ino: Ino) -> (usize, FsResult<()>) {
    let mut taken = 0;
    while taken < 2 * PENDING_BYTES_MAX {
        let offset = u64::try_from(BLOCK_BYTES + taken).expect("small");
        let written = pool.write(&Caller::root(), ino, offset, &content(7, BLOCK_BYTES));
        if written.is_err() {
            return (taken, written);
        }
        taken += BLOCK_BYTES;
    }
    (taken, Ok(()))
}

/// Returns the damage that an answer tells of, and the path of its file.
fn damage_of(answer: &FsResult<()>) -> (Defect, String) {
    match answer {
        Err(FsError::Corrupt { defect, file: Some(file) }) => {
            (Defect::clone(defect), file.path.clone())
        }
        other => panic!("no damage of a file: {other:?}"),
    }
}

/// Goal: a file of which nothing can be installed does not fill the memory. Method: it is written
/// on without a sync, and so is another.
#[test]
fn a_file_that_cannot_be_flushed_takes_so_much_and_no_more() {
    let Broken { pool, victim, other, .. } = broken();
    let (taken, refused) = write_on(&pool, victim);
    is_told(&refused);
    let synced = pool.fsync(&Caller::root(), victim, false);
    assert_eq!(damage_of(&refused), damage_of(&synced), "what a sync says, but for the bytes");
    assert!((PENDING_BYTES_MAX / 2..=PENDING_BYTES_MAX).contains(&taken), "{taken} bytes taken");
    let zeroed = pool.write(&Caller::root(), victim, 0, &content(8, BLOCK_BYTES));
    is_told(&zeroed);
    assert_eq!(write_on(&pool, other), (2 * PENDING_BYTES_MAX, Ok(())));
    pool.fsync(&Caller::root(), other, false).expect("nothing of it is damaged");
    let written = read(&pool, &name_of(VICTIM)).expect("what waits is in memory");
    assert!(written[..BLOCK_BYTES] == content(100, BLOCK_BYTES), "what was refused");
}

#[test]
fn a_sync_and_a_close_make_durable_what_can_be() {
    let is_there = |pool: &Pool| {
        assert!(read(pool, "other").is_ok_and(|found| found == content(100, BLOCK_BYTES)));
        let old = read(pool, &name_of(VICTIM)).expect("its map is whole");
        assert!(old == content(VICTIM, FILE_BYTES), "what could not be entered");
    };
    let Broken { device, pool, .. } = broken();
    is_told(&pool.sync());
    is_there(&after_a_cut(&device));
    let Broken { device, pool, .. } = broken();
    is_told(&pool.close());
    is_there(&after_a_cut(&device));
    is_there(&open(&device_of(&device.image())).expect("its log is replayed"));
}
