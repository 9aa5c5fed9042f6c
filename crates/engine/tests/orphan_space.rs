//! Space of files that lost their last name while somebody held them.

use std::sync::Arc;

use engine::api::{Caller, FileKind, FileSystem, NewInode};
use engine::{Pool, PoolCreateOptions, PoolOpenOptions};
use runtime::clock::ManualClock;
use storage::device::{MemoryDevice, SharedDevice};

const POOL_BYTES: u64 = 256 << 20;

/// Goal: what an open frees of files that were held to the end can be written at once, and df says
/// so. Method: a file that fills the pool loses its name while it is held; the pool is closed.
#[test]
fn what_an_open_frees_is_available_at_once() {
    let device: SharedDevice = MemoryDevice::new("memory", POOL_BYTES);
    let clock = Arc::new(ManualClock::new());
    Pool::create(&device, clock.as_ref(), &PoolCreateOptions::new(POOL_BYTES, [7; 64]))
        .expect("fits");
    let open = || Pool::open(Arc::clone(&device), clock.clone(), PoolOpenOptions::default());
    let pool = open().expect("it opens");
    let caller = Caller::root();
    let available = |pool: &Pool| {
        pool.statfs(&Caller::root(), pool.main_fileset()).expect("it counts").available_bytes
    };
    let before = available(&pool);
    let new = NewInode::new(FileKind::Regular, 0o644);
    let file = pool.create(&caller, pool.root(), b"f", new, None).expect("there is room").ino;
    let data = vec![7; 1 << 20];
    let mut at = 0;
    while pool.write(&caller, file, at, &data).is_ok() {
        at += 1 << 20;
    }
    pool.unlink(&caller, pool.root(), b"f", None).expect("it frees");
    pool.close().expect("nothing fails");
    drop(pool);
    let pool = open().expect("it opens");
    let missing = before.saturating_sub(available(&pool));
    assert!(missing <= 1 << 20, "{missing} bytes of {at} are not back");
}
