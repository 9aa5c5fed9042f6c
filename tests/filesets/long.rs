//! Files with long maps that a snapshot holds too: they can be removed, cut and punched, whatever
//! it takes, and for what goes as a whole nothing is copied.

use std::sync::Arc;

use engine::api::{Caller, Fallocate, FileKind, FileSystem, Ino, NewInode, SetAttr};
use engine::{Pool, PoolCreateOptions, PoolOpenOptions};
use format::fileset::NamePart;
use runtime::clock::ManualClock;
use storage::device::sim::{Image, SimDevice, SimOptions};
use storage::device::{IoPurpose, RequestKind, SharedDevice};

use super::{assert_clean, free_all, name};

const POOL_BYTES: u64 = 96 << 20;
/// Bytes of a file that one leaf of its map leads to.
const LEAF_BYTES: u64 = 124 * (16 << 10);
/// More than any operation is begun again for one page.
const LEAVES: u64 = 1_200;

fn part(text: &str) -> NamePart {
    NamePart::new(text).expect("a test writes a name")
}

fn open(device: &Arc<SimDevice>) -> Pool {
    let shared: SharedDevice = Arc::<SimDevice>::clone(device);
    Pool::open(shared, Arc::new(ManualClock::new()), PoolOpenOptions::default()).expect("it opens")
}

/// Returns a pool with a file of which each leaf leads to one block, and which a snapshot holds.
fn with_snapshot() -> (Arc<SimDevice>, Pool, Ino) {
    let device = SimDevice::open(Image::blank(POOL_BYTES), SimOptions::default());
    let shared: SharedDevice = Arc::<SimDevice>::clone(&device);
    let create = PoolCreateOptions::new(POOL_BYTES, [3; 64]);
    Pool::create(&shared, &ManualClock::new(), &create).expect("a pool fits");
    let pool = open(&device);
    let (caller, new) = (Caller::root(), NewInode::new(FileKind::Regular, 0o644));
    let ino = pool.create(&caller, pool.root(), b"long", new, None).expect("there is room").ino;
    for leaf in 0..LEAVES {
        pool.write(&caller, ino, leaf * LEAF_BYTES, &block(leaf)).expect("there is room");
    }
    pool.fsync(&caller, ino, false).expect("nothing fails");
    pool.fileset_admin()
        .create_snapshot(&name("root"), &part("c"), [7; 16])
        .expect("there is room");
    pool.checkpoint().expect("nothing fails");
    (device, pool, ino)
}

fn block(leaf: u64) -> Vec<u8> {
    leaf.to_le_bytes().repeat((16 << 10) / 8)
}

/// Judges that the pool is whole, and that the snapshot has all.
fn judge(device: &Arc<SimDevice>, pool: Pool) {
    pool.close().expect("nothing fails");
    drop(pool);
    let shared: SharedDevice = Arc::<SimDevice>::clone(device);
    assert_clean(&shared);
    let options = PoolOpenOptions {
        fileset: Some(name("root")),
        snapshot: Some(part("c")),
        ..PoolOpenOptions::default()
    };
    let pool = Pool::open(shared, Arc::new(ManualClock::new()), options).expect("it opens");
    let caller = Caller::root();
    let ino = pool.lookup(&caller, pool.root(), b"long").expect("the snapshot has it").ino;
    for leaf in (0..LEAVES).step_by(37).chain([LEAVES - 1]) {
        let mut found = Vec::new();
        pool.read(&caller, ino, leaf * LEAF_BYTES, 16 << 10, &mut found).expect("it can be read");
        assert!(found == block(leaf), "block of leaf {leaf}");
    }
}

fn journal_bytes(device: &Arc<SimDevice>) -> u64 {
    device.counts().of(IoPurpose::Journal, RequestKind::Write).bytes
}

/// Goal: what goes as a whole is given up leaf by leaf and none is copied for it. Method: the bytes
/// of the log that removing the file takes, and cutting it.
#[test]
fn a_file_that_a_snapshot_holds_is_removed_without_a_copy_of_its_map() {
    for is_cut in [false, true] {
        let (device, pool, ino) = with_snapshot();
        let (caller, before) = (Caller::root(), journal_bytes(&device));
        if is_cut {
            let set = SetAttr { size_bytes: Some(0), ..SetAttr::default() };
            pool.setattr(&caller, ino, &set, None).expect("it is cut");
        } else {
            pool.unlink(&caller, pool.root(), b"long", None).expect("it is there");
            pool.forget(ino, 1);
        }
        pool.checkpoint().expect("nothing fails");
        let logged = journal_bytes(&device) - before;
        println!("{logged} bytes logged");
        // With a copy of each leaf it is more than twice as much.
        assert!(logged < LEAVES * 256, "{logged} bytes for {LEAVES} leaves");
        judge(&device, pool);
    }
}

/// Goal: an operation that comes to more shared pages than it is begun again for one goes on, for
/// it gets further. Method: a hole as long as the file.
#[test]
fn a_hole_is_made_in_all_of_a_file_that_a_snapshot_holds() {
    let (device, pool, ino) = with_snapshot();
    let bytes = LEAVES * LEAF_BYTES;
    let made = pool.fallocate(&Caller::root(), ino, 0, bytes, Fallocate::PunchHole);
    made.expect("it takes long, and is made");
    free_all(&pool);
    judge(&device, pool);
}
