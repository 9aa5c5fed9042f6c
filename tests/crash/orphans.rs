//! Files that lost their last name while somebody held them: after a crash nobody does.

use std::sync::Arc;

use engine::api::{Caller, FileKind, FileSystem, NewInode};
use engine::{Pool, PoolCreateOptions, PoolOpenOptions};
use runtime::clock::ManualClock;
use storage::device::{MemoryDevice, SharedDevice};

const POOL_BYTES: u64 = 48 << 20;

fn open(device: &SharedDevice) -> Pool {
    let clock = Arc::new(ManualClock::new());
    Pool::open(Arc::clone(device), clock, PoolOpenOptions::default()).expect("the pool opens")
}

fn used_bytes(pool: &Pool) -> u64 {
    pool.checkpoint().expect("nothing fails");
    let sizes = pool.statfs(&Caller::root(), pool.main_fileset()).expect("there are sizes");
    sizes.total_bytes - sizes.free_bytes
}

/// Goal: a crash leaves no file without a name, nor its space. Method: hold a file, take its name
/// away, sync, and open the device again as it is.
#[test]
fn a_held_file_without_a_name_is_freed_by_the_open_after_a_crash() {
    let device: SharedDevice = MemoryDevice::new("memory", POOL_BYTES);
    let create = PoolCreateOptions::new(POOL_BYTES, [3; 64]);
    Pool::create(&device, &ManualClock::new(), &create).expect("a pool fits");
    let caller = Caller::root();
    let new = NewInode::new(FileKind::Regular, 0o644);
    let (inodes_before, used_before) = {
        let pool = open(&device);
        pool.create(&caller, pool.root(), b"kept", new, None).expect("there is room");
        pool.sync().expect("nothing fails");
        let before = (
            pool.statfs(&Caller::root(), pool.main_fileset()).expect("there are sizes").inode_count,
            used_bytes(&pool),
        );
        let held = pool.create(&caller, pool.root(), b"held", new, None).expect("there is room");
        pool.write(&caller, held.ino, 0, &vec![5; 3 << 20]).expect("there is room");
        pool.unlink(&caller, pool.root(), b"held", None).expect("it is there");
        pool.sync().expect("nothing fails");
        assert_eq!(
            pool.statfs(&Caller::root(), pool.main_fileset()).expect("there are sizes").inode_count,
            before.0 + 1
        );
        before
    };
    let pool = open(&device);
    assert_eq!(
        pool.statfs(&Caller::root(), pool.main_fileset()).expect("there are sizes").inode_count,
        inodes_before
    );
    // One page of the orphan list stays for the next.
    assert!(used_bytes(&pool) <= used_before + 8192, "its space is not given back");
    let report = check::run(Arc::clone(&device), check::CheckOptions::default(), &mut |_| ());
    assert!(report.is_clean(), "{}", report.to_text());
}

/// Goal: a crash takes a file that was born without a name, unless it got one.
#[test]
fn a_file_born_without_a_name_is_freed_by_the_open_after_a_crash_unless_it_got_one() {
    let device: SharedDevice = MemoryDevice::new("memory", POOL_BYTES);
    let create = PoolCreateOptions::new(POOL_BYTES, [3; 64]);
    Pool::create(&device, &ManualClock::new(), &create).expect("a pool fits");
    let caller = Caller::root();
    let new = NewInode::new(FileKind::Regular, 0o644);
    let inodes_before = {
        let pool = open(&device);
        let before =
            pool.statfs(&Caller::root(), pool.main_fileset()).expect("there are sizes").inode_count;
        let [lost, named] = [b"lost", b"kept"].map(|data| {
            let made = pool.tmpfile(&caller, pool.root(), new).expect("there is room");
            pool.write(&caller, made.ino, 0, data).expect("there is room");
            made.ino
        });
        pool.fsync(&Caller::root(), lost, false).expect("nothing fails");
        pool.link(&caller, named, pool.root(), b"named", None).expect("it never had a name");
        pool.fsync(&Caller::root(), named, false).expect("nothing fails");
        before
    };
    let pool = open(&device);
    assert_eq!(
        pool.statfs(&Caller::root(), pool.main_fileset()).expect("there are sizes").inode_count,
        inodes_before + 1
    );
    let named = pool.lookup(&caller, pool.root(), b"named").expect("its name was made durable");
    let mut bytes = Vec::new();
    pool.read(&Caller::root(), named.ino, 0, 10, &mut bytes).expect("it is readable");
    assert_eq!((named.nlink, &bytes[..]), (1, &b"kept"[..]));
    let report = check::run(Arc::clone(&device), check::CheckOptions::default(), &mut |_| ());
    assert!(report.is_clean(), "{}", report.to_text());
}
