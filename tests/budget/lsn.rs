//! What listing the LSNs of pages costs.

use std::sync::Arc;

use engine::api::{Caller, FileKind, FileSystem, Ino, NewInode};
use engine::{Pool, PoolCreateOptions, PoolOpenOptions};
use runtime::clock::ManualClock;
use storage::device::{MemoryDevice, SharedDevice};

const POOL_BYTES: u64 = 2 << 30;
/// A tree of the size of a large source archive: directories, and files in each.
const DIRECTORIES: u64 = 400;
const FILES: u64 = 50;
/// Bytes of the files, in turn.
const FILE_BYTES: [usize; 5] = [700, 3_000, 9_000, 14_000, 40_000];

fn make(pool: &Pool, parent: Ino, name: &str, kind: FileKind) -> Ino {
    let new = NewInode::new(kind, 0o755);
    let made = pool.create(&Caller::root(), parent, name.as_bytes(), new, None).expect("room");
    pool.forget(made.ino, 1);
    made.ino
}

/// Goal: a checkpoint writes at most 3 % more pages for the LSN pages, where a tree is extracted,
/// and never more than one for each 4 MiB that it touches.
#[test]
fn lsn_pages_cost_a_tree_three_percent() {
    let device: SharedDevice = MemoryDevice::new("memory", POOL_BYTES);
    let clock = Arc::new(ManualClock::new());
    let options = PoolCreateOptions::new(POOL_BYTES, [5; 64]);
    Pool::create(&device, clock.as_ref(), &options).expect("a pool fits");
    let pool = Pool::open(device, clock, PoolOpenOptions::default()).expect("it opens");
    for directory in 0..DIRECTORIES {
        let parent =
            make(&pool, pool.root(), &format!("directory {directory}"), FileKind::Directory);
        for (file, bytes) in (0..FILES).zip(FILE_BYTES.iter().cycle()) {
            let ino = make(&pool, parent, &format!("file number {file}"), FileKind::Regular);
            pool.write(&Caller::root(), ino, 0, &vec![7; *bytes]).expect("room");
        }
    }
    pool.sync().expect("nothing fails");
    pool.checkpoint().expect("nothing fails");
    let counts = pool.status().journal;
    let others = counts.home_pages - counts.lsn_pages;
    println!(
        "{} files: {} checkpoints, {others} pages, {} LSN pages, {} bytes of records",
        DIRECTORIES * FILES,
        counts.checkpoints,
        counts.lsn_pages,
        counts.record_bytes
    );
    assert!(counts.lsn_pages > 0);
    assert!(counts.lsn_pages * 100 <= others * 3, "{} of {others}", counts.lsn_pages);
}
