//! A file that leaves its anode, and a crash before its blocks are installed.

use std::sync::Arc;

use engine::api::{Caller, FileKind, FileSystem, NewInode, RenameMode};
use engine::{Pool, PoolCreateOptions, PoolOpenOptions};
use runtime::clock::ManualClock;
use storage::device::{MemoryDevice, SharedDevice};

fn open(device: &SharedDevice) -> Pool {
    let clock = Arc::new(ManualClock::new());
    Pool::open(Arc::clone(device), clock, PoolOpenOptions::default()).expect("a pool opens")
}

/// Goal: what was synced is not given up for blocks that nothing points to yet. Method: the anode
/// is committed by a rename while the blocks wait.
#[test]
fn a_tiny_file_that_grows_keeps_what_was_synced() {
    let device: SharedDevice = MemoryDevice::new("memory", 32 << 20);
    let options = PoolCreateOptions::new(32 << 20, [3; 64]);
    Pool::create(&device, &ManualClock::new(), &options).expect("a pool fits");
    let pool = open(&device);
    let (caller, root) = (Caller::root(), pool.root());
    let new = NewInode::new(FileKind::Regular, 0o644);
    let ino = pool.create(&caller, root, b"a", new, None).expect("there is room").ino;
    pool.write(&caller, ino, 0, &[7; 200]).expect("there is room");
    pool.fsync(&Caller::root(), ino, false).expect("nothing fails");
    pool.write(&caller, ino, 300, &[8; 40_000]).expect("there is room");
    let names = ((root, &b"a"[..]), (root, &b"b"[..]));
    pool.rename(&caller, names.0, names.1, RenameMode::Replace, None).expect("it may");
    pool.fsync(&Caller::root(), root, false).expect("nothing fails");
    drop(pool);
    let pool = open(&device);
    let found = pool.lookup(&caller, root, b"b").expect("its name was synced");
    let mut bytes = Vec::new();
    pool.read(&Caller::root(), found.ino, 0, 200, &mut bytes).expect("it reads");
    assert_eq!(bytes, [7; 200]);
}
