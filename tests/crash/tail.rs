//! A file that was cut off and grows again, and a crash before its last block is installed.

use std::sync::Arc;

use engine::api::{Caller, FileKind, FileSystem, Ino, NewInode, SetAttr};
use engine::{Pool, PoolCreateOptions, PoolOpenOptions};
use runtime::clock::ManualClock;
use storage::device::{MemoryDevice, SharedDevice};

const BLOCK_BYTES: u64 = 16 << 10;
/// Seven blocks fill one.
const SEGMENT_BYTES: u64 = 8 * BLOCK_BYTES;
const POOL_BYTES: u64 = 32 << 20;
const WRITTEN_BYTES: u64 = 40 * BLOCK_BYTES + 3000;
const CUT_BYTES: u64 = 40 * BLOCK_BYTES + 300;

fn open(device: &SharedDevice) -> Pool {
    let clock = Arc::new(ManualClock::new());
    Pool::open(Arc::clone(device), clock, PoolOpenOptions::default()).expect("a pool opens")
}

fn make(pool: &Pool, name: &str) -> Ino {
    let new = NewInode::new(FileKind::Regular, 0o644);
    let made = pool.create(&Caller::root(), pool.root(), name.as_bytes(), new, None);
    made.expect("there is room").ino
}

fn write(pool: &Pool, ino: Ino, offset: u64, length: u64) {
    let data = vec![7; usize::try_from(length).expect("small")];
    pool.write(&Caller::root(), ino, offset, &data).expect("there is room");
}

/// Goal (V4): what was cut off is not seen again because blocks in the middle bring the size of the
/// file as it is by now to the disk. Method: the file is cut, grows by a write far behind, and is
/// overwritten from its front to the last block of before: that waits in a segment that still fills
/// when the full ones are sealed, installed, and committed with another file.
#[test]
fn what_was_cut_off_stays_gone_when_blocks_before_it_are_installed() {
    let device: SharedDevice = MemoryDevice::new("memory", POOL_BYTES);
    let mut options = PoolCreateOptions::new(POOL_BYTES, [3; 64]);
    options.geometry.segment_bytes = Some(SEGMENT_BYTES);
    options.geometry.group_bytes = Some(16 * SEGMENT_BYTES);
    Pool::create(&device, &ManualClock::new(), &options).expect("a pool fits");
    let pool = open(&device);
    let (file, other) = (make(&pool, "file"), make(&pool, "other"));
    write(&pool, file, 0, WRITTEN_BYTES);
    pool.fsync(&Caller::root(), file, false).expect("nothing fails");
    let cut = SetAttr { size_bytes: Some(CUT_BYTES), ..SetAttr::default() };
    pool.setattr(&Caller::root(), file, &cut, None).expect("it frees");
    pool.fsync(&Caller::root(), file, false).expect("nothing fails");

    write(&pool, file, 60 * BLOCK_BYTES, BLOCK_BYTES);
    write(&pool, file, 0, CUT_BYTES - 100);
    pool.run_deferred_work();
    write(&pool, other, 0, 100);
    pool.fsync(&Caller::root(), other, false).expect("nothing fails");

    drop(pool);
    let pool = open(&device);
    let size_bytes = pool.getattr(&Caller::root(), file).expect("it was synced").size_bytes;
    let mut bytes = Vec::new();
    let length = usize::try_from(WRITTEN_BYTES - CUT_BYTES).expect("small");
    pool.read(&Caller::root(), file, CUT_BYTES, length, &mut bytes).expect("it reads");
    assert!(bytes.iter().all(|byte| *byte == 0), "{size_bytes} bytes, those of before among them");
    assert!(size_bytes >= CUT_BYTES);
}
