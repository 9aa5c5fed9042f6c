//! Whole images: a pool of which bits turned over is refused, or serves what it can; the checker
//! ends; nothing panics, and no answer is larger than the pool.

use std::sync::Arc;

use engine::vnode::api::{Caller, FileKind, FileSystem, NewInode};
use engine::{CreateOptions, OpenOptions, Pool};
use storage::clock::ManualClock;
use storage::device::SharedDevice;
use storage::device::sim::{Image, SimDevice, SimOptions};

use super::iterations;

const POOL_BYTES: u64 = 8 << 20;
/// Names that a walk of a damaged pool may see: more than the pool has room for.
const NAMES_MAX: usize = 1 << 20;
/// An image costs more than a page: so many pages stand for one.
const PAGES_PER_IMAGE: usize = 20;

fn open(device: SharedDevice) -> Option<Pool> {
    let options = OpenOptions { cache_bytes: 1 << 20, ..OpenOptions::default() };
    Pool::open(device, Arc::new(ManualClock::new()), options).ok()
}

/// A pool with a few files, and with a log that is to be replayed.
fn base() -> Image {
    let device = SimDevice::new(POOL_BYTES, SimOptions::default());
    let shared: SharedDevice = Arc::<SimDevice>::clone(&device);
    let options = CreateOptions::new(POOL_BYTES, [7; 64]);
    Pool::create(&shared, &ManualClock::new(), &options).expect("a pool fits");
    let pool = open(shared).expect("a new pool opens");
    for (number, kind) in
        [FileKind::Regular, FileKind::Directory].iter().cycle().take(20).enumerate()
    {
        let new = NewInode { kind: *kind, mode: 0o755, rdev: 0, umask: 0 };
        let name = format!("n{number}");
        let made = pool.create(&Caller::root(), pool.root(), name.as_bytes(), new);
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
    let _ = pool.readdir(pool.root(), 0, &mut |entry| {
        names.push((entry.name.clone(), entry.ino));
        names.len() < NAMES_MAX
    });
    assert!(names.len() < NAMES_MAX, "a listing has no end");
    for (_, ino) in &names {
        let mut bytes = Vec::new();
        let _ = pool.getattr(*ino);
        let _ = pool.read(*ino, 0, 64 << 10, &mut bytes);
    }
    let new = NewInode { kind: FileKind::Regular, mode: 0o644, rdev: 0, umask: 0 };
    let _ = pool.create(&caller, pool.root(), b"new", new);
    if let Some((name, _)) = names.iter().find(|(name, _)| name.starts_with(b"n")) {
        let _ = pool.unlink(&caller, pool.root(), name);
    }
    let _ = pool.sync();
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
    let count = iterations() / PAGES_PER_IMAGE;
    bolero::check!().with_iterations(count).for_each(|bytes: &[u8]| {
        let mut image = base.clone();
        for flip in bytes.as_chunks::<5>().0.iter().take(8) {
            let page = usize::from(u16::from_le_bytes([flip[0], flip[1]])) % pages.len();
            let offset = u64::from(u16::from_le_bytes([flip[2], flip[3]])) % 4096;
            image.flip(pages[page] + offset, 1 << (flip[4] % 8));
        }
        let device: SharedDevice = SimDevice::open(image, SimOptions::default());
        let _ = check::run(Arc::clone(&device), check::Options::default(), &mut |_| ());
        if let Some(pool) = open(device) {
            use_pool(&pool);
        }
    });
}
