//! Pools so small that every bound is near.

use std::sync::Arc;

use engine::api::{Attr, Caller, FileKind, FileSystem, FsError, Ino, NewInode, RenameMode};
use engine::{Pool, PoolCreateOptions, PoolOpenOptions};
use runtime::clock::ManualClock;
use storage::device::{MemoryDevice, SharedDevice};

const POOL_BYTES: u64 = 16 << 20;

fn open(device: &SharedDevice, clock: &Arc<ManualClock>) -> Pool {
    Pool::open(Arc::clone(device), clock.clone(), PoolOpenOptions::default()).expect("it opens")
}

fn new_pool() -> (SharedDevice, Arc<ManualClock>, Pool) {
    let clock = Arc::new(ManualClock::new());
    let device: SharedDevice = MemoryDevice::new("memory", POOL_BYTES);
    let options = PoolCreateOptions::new(POOL_BYTES, [7; 64]);
    Pool::create(&device, clock.as_ref(), &options).expect("a pool fits");
    let pool = open(&device, &clock);
    (device, clock, pool)
}

fn make(pool: &Pool, parent: Ino, name: &str, kind: FileKind) -> Result<Attr, FsError> {
    let new = NewInode::new(kind, 0o755);
    pool.create(&Caller::root(), parent, name.as_bytes(), new, None)
}

/// More pages exchange names between two checkpoints than the double-write area of a small pool
/// has: nothing behind the area may be written over.
#[test]
fn names_move_between_many_directories() {
    const DIRECTORIES: u64 = 160;
    let (device, clock, pool) = new_pool();
    let mut directories = Vec::new();
    for number in 0..DIRECTORIES {
        let made = make(&pool, pool.root(), &format!("d{number}"), FileKind::Directory);
        let directory = made.expect("there is room").ino;
        make(&pool, directory, "f", FileKind::Regular).expect("there is room");
        directories.push(directory);
    }
    pool.checkpoint().expect("a checkpoint");
    for pair in directories.chunks(2) {
        let rename = pool.rename(
            &Caller::root(),
            (pair[0], b"f"),
            (pair[1], b"g"),
            RenameMode::Replace,
            None,
        );
        rename.expect("it is moved");
    }
    pool.close().expect("it closes");
    drop(pool);
    let pool = open(&device, &clock);
    for number in (1..DIRECTORIES).step_by(2) {
        let name = format!("d{number}");
        let directory = pool.lookup(&Caller::root(), pool.root(), name.as_bytes());
        let directory = directory.expect("it is there").ino;
        pool.lookup(&Caller::root(), directory, b"g").expect("it was moved there");
        make(&pool, directory, "new", FileKind::Regular).expect("there is room");
    }
    pool.close().expect("it closes");
}

/// Half of every segment is free, and nobody but makers of files comes: they must not use up what
/// the cleaner needs to make that half useful.
#[test]
fn names_alone_do_not_starve_the_cleaner() {
    const BLOCK_BYTES: usize = 16 << 10;
    let (_device, _clock, pool) = new_pool();
    let data = vec![7; BLOCK_BYTES];
    let mut count = 0;
    while let Ok(file) = make(&pool, pool.root(), &format!("f{count}"), FileKind::Regular) {
        count += 1;
        if pool.write(&Caller::root(), file.ino, 0, &data).is_err() {
            break;
        }
    }
    pool.sync().expect("it is synced");
    for number in (0..count).step_by(2) {
        let name = format!("f{number}");
        let file = pool.lookup(&Caller::root(), pool.root(), name.as_bytes()).expect("there").ino;
        pool.unlink(&Caller::root(), pool.root(), name.as_bytes(), None)
            .expect("a full pool is emptied");
        pool.forget(file, 2);
    }
    pool.checkpoint().expect("a checkpoint");
    let mut made = 0;
    while make(&pool, pool.root(), &format!("g{made}"), FileKind::Regular).is_ok() {
        made += 1;
        assert!(made < 1_000_000, "a pool is bounded");
    }
    // Each takes an anode, 7 to a page, and some 48 bytes in a directory page.
    let half_fragments = count / 2 * 4;
    assert!(made > half_fragments * 2, "{made} files in {half_fragments} free fragments");
    pool.close().expect("it closes");
}
