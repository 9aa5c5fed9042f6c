//! Whole images: a pool of which bits turned over is refused, or serves what it can; the checker
//! ends; nothing panics, and no answer is larger than the pool.
//!
//! An image is a seed: `HOLDFAST_FLIPS=first..end` tries those.

use std::sync::Arc;

use engine::api::{Caller, FileKind, FileSystem, NewInode};
use engine::{Pool, PoolCreateOptions, PoolOpenOptions};
use runtime::clock::ManualClock;
use runtime::prng::Prng;
use storage::device::SharedDevice;
use storage::device::sim::{Image, SimDevice, SimOptions};
use whole_system::soak;

const POOL_BYTES: u64 = 8 << 20;
/// Names that a walk of a damaged pool may see: more than the pool has room for.
const NAMES_MAX: usize = 1 << 20;
/// Seeds of a run without the variable.
const SEEDS: u64 = 300;
/// Most bits of an image that turn over.
const FLIPS_MAX: u64 = 8;
/// Bytes of memory that no run of this program may pass.
const MEMORY_BYTES_MAX: u64 = 1 << 30;

fn open(device: SharedDevice) -> Option<Pool> {
    let options = PoolOpenOptions { cache_bytes: 1 << 20, ..PoolOpenOptions::default() };
    Pool::open(device, Arc::new(ManualClock::new()), options).ok()
}

/// A pool with a few files, and with a log that is to be replayed.
fn base() -> Image {
    let device = SimDevice::new(POOL_BYTES, SimOptions::default());
    let shared: SharedDevice = Arc::<SimDevice>::clone(&device);
    let options = PoolCreateOptions::new(POOL_BYTES, [7; 64]);
    Pool::create(&shared, &ManualClock::new(), &options).expect("a pool fits");
    let pool = open(shared).expect("a new pool opens");
    for (number, kind) in
        [FileKind::Regular, FileKind::Directory].iter().cycle().take(20).enumerate()
    {
        let new = NewInode::new(*kind, 0o755);
        let name = format!("n{number}");
        let made = pool.create(&Caller::root(), pool.root(), name.as_bytes(), new, None);
        let ino = made.expect("there is room").ino;
        if *kind == FileKind::Regular {
            pool.write(&Caller::root(), ino, 0, &[9; 30_000]).expect("there is room");
        }
        if number == 10 {
            pool.checkpoint().expect("nothing fails");
        }
    }
    pool.sync().expect("there is room");
    device.image()
}

/// Reads what a pool has, makes a file, and removes one.
fn use_pool(pool: &Pool) {
    let caller = Caller::root();
    let mut names = Vec::new();
    let _ = pool.readdir(&Caller::root(), pool.root(), 0, &mut |entry| {
        names.push((entry.name.clone(), entry.ino));
        names.len() < NAMES_MAX
    });
    assert!(names.len() < NAMES_MAX, "a listing has no end");
    for (_, ino) in &names {
        let mut bytes = Vec::new();
        let _ = pool.getattr(&Caller::root(), *ino);
        let _ = pool.read(&Caller::root(), *ino, 0, 64 << 10, &mut bytes);
    }
    let new = NewInode::new(FileKind::Regular, 0o644);
    let _ = pool.create(&caller, pool.root(), b"new", new, None);
    if let Some((name, _)) = names.iter().find(|(name, _)| name.starts_with(b"n")) {
        let _ = pool.unlink(&caller, pool.root(), name, None);
    }
    let _ = pool.sync();
}

/// Returns the image with a few bits of the pages at `pages` turned over.
fn flipped(base: &Image, pages: &[u64], prng: &mut Prng) -> Image {
    let mut image = base.clone();
    let count = u64::try_from(pages.len()).expect("a small pool");
    for _ in 0..=prng.below(FLIPS_MAX) {
        let page = pages[usize::try_from(prng.below(count)).expect("below a usize")];
        image.flip(page + prng.below(4096), 1 << prng.below(8));
    }
    image
}

/// Checks, opens and uses what is in `image`; returns whether it could be opened.
fn examine(image: Image) -> bool {
    let device: SharedDevice = SimDevice::open(image, SimOptions::default());
    let _ = check::run(Arc::clone(&device), check::CheckOptions::default(), &mut |_| ());
    let pool = open(device);
    if let Some(pool) = &pool {
        use_pool(pool);
    }
    pool.is_some()
}

/// Goal: no image makes the program panic or run without end. Method: up to eight bits of what was
/// written turn over; the pool is checked, opened, and used.
#[test]
fn images_with_bits_turned_over_are_served_or_refused() {
    let base = base();
    let mut pages = Vec::new();
    base.for_each_page(|offset, bytes| {
        if bytes.iter().any(|&byte| byte != 0) {
            pages.push(offset);
        }
    });
    soak::examine_images("HOLDFAST_FLIPS", SEEDS, MEMORY_BYTES_MAX, |seed| {
        let image = flipped(&base, &pages, &mut Prng::from_seed(seed));
        || examine(image)
    });
}
