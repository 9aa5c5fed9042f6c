//! Directories that move one below the other, each by a transaction of its own.

use std::sync::Arc;

use engine::api::{Caller, FileKind, FileSystem, Ino, NewInode, RenameMode};
use engine::{Pool, PoolCreateOptions, PoolOpenOptions};
use runtime::clock::ManualClock;
use storage::device::SharedDevice;
use storage::device::sim::{SimDevice, SimOptions};

const POOL_BYTES: u64 = 48 << 20;

fn open(device: &Arc<SimDevice>) -> Pool {
    let shared: SharedDevice = Arc::<SimDevice>::clone(device);
    let clock = Arc::new(ManualClock::new());
    Pool::open(shared, clock, PoolOpenOptions::default()).expect("the pool opens")
}

/// Makes a directory with a name in it, so that it has a page with room for more, and so many files
/// that the inode of the next directory lies on another page.
fn directory(pool: &Pool, above: Ino, name: &str) -> Ino {
    let caller = Caller::root();
    let made = |above, name: &str, kind| {
        let new = NewInode::new(kind, 0o755);
        pool.create(&caller, above, name.as_bytes(), new, None).expect("there is room").ino
    };
    let directory = made(above, name, FileKind::Directory);
    for number in 0..10 {
        made(directory, &format!("{number}"), FileKind::Regular);
    }
    directory
}

/// Goal: a crash never keeps the move of a directory and undoes the one that made it possible, or
/// the directory would lie below itself. Method: two moves that have no page in common; who asks
/// makes the second one last.
#[test]
fn a_crash_undoes_no_move_that_another_relies_on() {
    let device = SimDevice::new(POOL_BYTES, SimOptions::default());
    let shared: SharedDevice = Arc::<SimDevice>::clone(&device);
    let create = PoolCreateOptions::new(POOL_BYTES, [3; 64]);
    Pool::create(&shared, &ManualClock::new(), &create).expect("a pool fits");
    let (pool, caller) = (open(&device), Caller::root());
    let p = directory(&pool, pool.root(), "p");
    let q = directory(&pool, pool.root(), "q");
    let x = directory(&pool, p, "x");
    let d1 = directory(&pool, x, "d1");
    let y = directory(&pool, d1, "y");
    let d2 = directory(&pool, y, "d2");
    pool.sync().expect("nothing fails");
    let moved = |source: (Ino, &[u8]), target: (Ino, &[u8])| {
        let done = pool.rename(&caller, source, target, RenameMode::Replace, None);
        done.expect("there is no loop");
    };
    moved((d1, b"y"), (q, b"y"));
    moved((p, b"x"), (d2, b"x"));
    pool.fsync(&caller, p, false).expect("nothing fails");
    drop(pool);
    let left = SimDevice::open(device.durable_image(), SimOptions::default());
    let shared: SharedDevice = Arc::<SimDevice>::clone(&left);
    let report = check::run(shared, check::CheckOptions::default(), &mut |_| ());
    assert!(report.is_clean(), "{}", report.to_text());
    let pool = open(&left);
    let found = pool.lookup(&caller, d2, b"x").expect("what was made to last is there");
    assert_eq!(found.ino, x);
}
