//! Devices that fail, lie, fill up or hold something else.

mod ahead;
mod allocation;
mod around;
mod closing;
mod crashes;
mod damage;
mod deadline;
mod full;
mod hostile;
mod io;
mod journal;
mod label;
mod places;
mod sector;
mod split;
mod stale;
mod unread;
mod unwritable;

use std::sync::Arc;

use engine::api::{Caller, FileKind, FileSystem, FsResult, Ino, NewInode};
use engine::{Pool, PoolCreateOptions, PoolOpenError, PoolOpenOptions};
use format::page::{PAGE_HEADER_BYTES, PageBytes, PageHeader, PageKind, page_lsn, stamp};
use runtime::clock::ManualClock;
use storage::device::sim::{Image, SimDevice, SimOptions};
use storage::device::{MemoryDevice, SharedDevice};

/// How a page of metadata begins.
const PAGE_MAGIC: &[u8] = b"HFpg";
/// Bytes of the pools under test.
const POOL_BYTES: u64 = 16 << 20;

/// Returns the image of a new pool.
fn new_pool() -> Image {
    let device = SimDevice::new(POOL_BYTES, SimOptions::default());
    let shared: SharedDevice = Arc::<SimDevice>::clone(&device);
    create(&shared, POOL_BYTES);
    device.durable_image()
}

fn create(device: &SharedDevice, bytes: u64) {
    let options = PoolCreateOptions::new(bytes, [5; 64]);
    Pool::create(device, &ManualClock::new(), &options).expect("a pool fits");
}

fn open(device: &SharedDevice) -> Result<Pool, PoolOpenError> {
    Pool::open(Arc::clone(device), Arc::new(ManualClock::new()), PoolOpenOptions::default())
}

fn device_of(image: &Image) -> SharedDevice {
    SimDevice::open(image.clone(), SimOptions::default())
}

fn pool_in_memory(bytes: u64) -> (SharedDevice, Pool) {
    let device: SharedDevice = MemoryDevice::new("memory", bytes);
    create(&device, bytes);
    let pool = open(&device).expect("a new pool opens");
    (device, pool)
}

fn make(pool: &Pool, name: &str) -> FsResult<Ino> {
    let new = NewInode::new(FileKind::Regular, 0o644);
    let made = pool.create(&Caller::root(), pool.root(), name.as_bytes(), new, None)?;
    pool.forget(made.ino, 1);
    Ok(made.ino)
}

fn find(pool: &Pool, name: &str) -> FsResult<Ino> {
    let found = pool.lookup(&Caller::root(), pool.root(), name.as_bytes())?;
    pool.forget(found.ino, 1);
    Ok(found.ino)
}

fn read(pool: &Pool, name: &str) -> FsResult<Vec<u8>> {
    let ino = find(pool, name)?;
    let length = usize::try_from(pool.getattr(&Caller::root(), ino)?.size_bytes)
        .expect("a test's file is small");
    let mut bytes = Vec::new();
    pool.read(&Caller::root(), ino, 0, length, &mut bytes)?;
    Ok(bytes)
}

/// Bytes that differ from block to block and from `seed` to `seed`.
fn content(seed: u64, length: usize) -> Vec<u8> {
    let mut prng = runtime::prng::Prng::from_seed(seed);
    (0..length).map(|_| prng.next_u64().to_le_bytes()[0]).collect()
}

/// Empties every LSN page, so that nothing tells one version of a page from another.
fn forget_lsns(image: &mut Image) {
    let mut lsn_pages: Vec<(u64, PageBytes)> = Vec::new();
    image.for_each_page(|offset, bytes| {
        let bytes: &PageBytes = bytes.first_chunk().expect("a page");
        let header = PageHeader::parse(bytes).filter(|_| bytes.starts_with(PAGE_MAGIC));
        if header.is_some_and(|header| header.kind == PageKind::LsnPage) {
            lsn_pages.push((offset, *bytes));
        }
    });
    for (offset, mut bytes) in lsn_pages {
        bytes[PAGE_HEADER_BYTES..].fill(0);
        let lsn = page_lsn(&bytes);
        stamp(&mut bytes, lsn);
        image.write(offset, &bytes);
    }
}

fn defects(device: &SharedDevice) -> Option<String> {
    let report = check::run(Arc::clone(device), check::CheckOptions::default(), &mut |_| ());
    (!report.is_clean()).then(|| report.to_text())
}
