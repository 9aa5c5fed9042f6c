//! What `df` promises.

use engine::api::{Caller, Fallocate, FileKind, FileSystem, FsError, Ino};
use runtime::prng::Prng;

use super::{Ground, Shape};

const REQUEST_BYTES: usize = 1 << 20;
/// What was written may differ from what was promised by one part in so many.
const TOLERANCE: u64 = 1000;

/// Ticks after which the background has looked at every group of a pool here.
const PROMISE_TICKS: u32 = 16;

/// Pages of metadata in an empty pool, the fronts of groups apart: each may hold a segment.
pub(crate) const PAGES_LEFT: u64 = 8;

/// Writes one file until there is no room; returns its size.
fn written(ground: &Ground) -> u64 {
    let pool = &ground.pool;
    let ino = ground.make(pool.root(), "big", FileKind::Regular).expect("there is room for a name");
    let data = vec![7; REQUEST_BYTES];
    let mut offset = 0;
    loop {
        match pool.write(&Caller::root(), ino, offset, &data) {
            Ok(()) => offset += 1 << 20,
            Err(FsError::NoSpace) => break,
            Err(error) => panic!("write at {offset}: {error}"),
        }
        if (offset >> 20) % 16 == 0 {
            pool.tick().expect("background work needs no room");
        }
    }
    pool.sync().expect("what was accepted finds room");
    pool.getattr(&Caller::root(), ino).expect("it is there").size_bytes
}

pub(crate) fn expect_promise_kept(ground: &Ground, what: &str, shape: &Shape) {
    let promised = ground.available();
    let size = written(ground);
    println!("{what}: {promised} bytes promised, {size} written; {shape:?}");
    let (least, most) = (promised - promised / TOLERANCE, promised + promised / TOLERANCE);
    // Less than a block more or less is no promise that a file system of blocks can make.
    let block = 1 << shape.block_shift;
    assert!(size + block > least, "{what}: {promised} promised, {size} written; {shape:?}");
    assert!(size < most + block, "{what}: {promised} promised, {size} written; {shape:?}");
    let space =
        ground.pool.statfs(&Caller::root(), ground.pool.main_fileset()).expect("it is in memory");
    // A block may need a page of the map too.
    assert!(space.available_bytes < block + 4096, "{what}: full, and yet {space:?}");
    remove(ground, "big");
}

fn remove(ground: &Ground, name: &str) {
    let root: Ino = ground.pool.root();
    let removed = ground.pool.unlink(&Caller::root(), root, name.as_bytes(), None);
    removed.unwrap_or_else(|error| panic!("{name} can't be removed: {error}"));
}

/// Fills the pool with files of `length` bytes; returns how many there are.
fn fill(ground: &Ground, length: usize) -> u64 {
    let (pool, root) = (&ground.pool, ground.pool.root());
    let data = vec![1; length];
    let mut count = 0;
    while let Ok(ino) = ground.make(root, &format!("f{count}"), FileKind::Regular) {
        count += 1;
        if length > 0 && pool.write(&Caller::root(), ino, 0, &data).is_err() {
            break;
        }
    }
    count
}

fn what_is_promised_is_kept(shape: &Shape) {
    let mut ground = Ground::new(shape);
    let first = ground.available();
    expect_promise_kept(&ground, "new", shape);
    for (number, length) in [20_000, 300, 0, 150_000, 4000].into_iter().enumerate() {
        let count = fill(&ground, length);
        let mut prng = Prng::from_seed(5);
        let mut is_first_to_go = |file: u64| match number % 3 {
            0 => file.is_multiple_of(3),
            1 => !file.is_multiple_of(3),
            _ => prng.one_in(2),
        };
        let (gone, left): (Vec<u64>, Vec<u64>) = (0..count).partition(|file| is_first_to_go(*file));
        gone.iter().for_each(|file| remove(&ground, &format!("f{file}")));
        if number % 2 == 1 {
            // With no group in memory.
            ground = ground.reopened();
        }
        expect_promise_kept(&ground, &format!("holes of {length}"), shape);
        left.iter().for_each(|file| remove(&ground, &format!("f{file}")));
        let again = ground.available();
        let kept = PAGES_LEFT * shape.segment_bytes;
        assert!(again + kept >= first, "{first} bytes at first, then {again}; {shape:?}");
    }
    assert_eq!(ground.defects(), None, "{shape:?}");
}

/// Goal: what `df` says can be written, no less and no more, whatever the pool has been through;
/// and when all is deleted it says what it said at first.
///
/// Method: one file in requests of 1 MiB, in a new pool and in pools of which every third file, or
/// all but every third, or a random half was deleted, so that the room is in holes everywhere.
#[test]
fn what_df_promises_can_be_written() {
    what_is_promised_is_kept(&Shape::new(16, 4096, 128, 14));
    what_is_promised_is_kept(&Shape::new(24, 4096, 128, 12));
    what_is_promised_is_kept(&Shape::new(24, 1024, 128, 13));
    what_is_promised_is_kept(&Shape::new(48, 2048, 256, 16));
}

/// Makes `count` files in each of a few directories, and removes them.
fn make_and_remove(ground: &Ground, count: u64, length: usize) {
    let (pool, root, caller) = (&ground.pool, ground.pool.root(), Caller::root());
    let directories: Vec<String> = (0..8).map(|number| format!("d{number}")).collect();
    for name in &directories {
        let parent = ground.make(root, name, FileKind::Directory).expect("there is room");
        for number in 0..count {
            let ino = ground.make(parent, &number.to_string(), FileKind::Regular);
            let ino = ino.expect("there is room");
            pool.write(&caller, ino, 0, &vec![1; length]).expect("there is room");
        }
        for number in 0..count {
            pool.unlink(&caller, parent, number.to_string().as_bytes(), None).expect("it goes");
        }
    }
    for name in &directories {
        pool.rmdir(&caller, root, name.as_bytes(), None).expect("it is empty");
    }
}

fn what_is_promised_at_a_mount_is_kept(shape: &Shape, group_bytes: Option<u64>) {
    let ground = Ground::with_groups(shape, group_bytes);
    expect_promise_kept(&ground, "new", shape);
    let mut ground = ground.reopened();
    expect_promise_kept(&ground, "full once", shape);
    for length in [100, 4096] {
        make_and_remove(&ground, 2500, length);
        ground = ground.reopened();
        for _ in 0..PROMISE_TICKS {
            ground.pool.tick().expect("background work needs no room");
        }
        expect_promise_kept(&ground, &format!("tiny files of {length}"), shape);
        ground = ground.reopened();
    }
    assert_eq!(ground.defects(), None, "{shape:?}");
}

/// Goal: `df` is as true right after a mount, when nothing was written yet, as later.
///
/// Method: pools as anybody makes them, opened again each time: new, full once, and after tiny
/// files have left metadata in every group. One has more groups than are looked at in an open.
#[test]
fn what_df_promises_right_after_a_mount_can_be_written() {
    what_is_promised_at_a_mount_is_kept(&Shape::new(256, 4096, 1024, 14), None);
    what_is_promised_at_a_mount_is_kept(&Shape::new(128, 4096, 128, 14), Some(4 << 20));
}

/// Goal: on a pool that nobody writes to any more `df` soon tells of what a delete gave back, and
/// the device is left in peace then.
///
/// Method: a file of a third of the pool, then one of a few blocks, each deleted; ticks as a server
/// has them, by the clock.
#[test]
fn df_tells_of_a_delete_on_an_idle_pool() {
    let ground = Ground::new(&Shape::new(64, 4096, 128, 14));
    let pool = &ground.pool;
    let first = ground.available();
    let ticks = |seconds: u64| {
        for _ in 0..seconds * 4 {
            ground.clock.advance_ns(250_000_000);
            pool.tick().expect("background work needs no room");
        }
        let space = pool.statfs(&Caller::root(), pool.main_fileset());
        space.expect("it is in memory").available_bytes
    };
    for (length, seconds) in [(20 << 20, 2), (50_000, 8)] {
        let ino = ground.make(pool.root(), "f", FileKind::Regular).expect("there is room");
        pool.write(&Caller::root(), ino, 0, &vec![7; length]).expect("there is room");
        pool.sync().expect("what was accepted finds room");
        remove(&ground, "f");
        let found = ticks(seconds);
        assert_eq!(found, first, "{length} bytes, {seconds} s later");
        let checkpoints = pool.status().journal.checkpoints;
        ticks(100);
        assert_eq!(pool.status().journal.checkpoints, checkpoints, "nothing waits");
    }
}

/// Goal: one fallocate(2) has all that `df` calls available, in a new pool and in one that was
/// full, and nothing but what it took is gone then; what it took can be written.
#[test]
fn one_fallocate_has_what_df_promises() {
    for shape in [
        Shape::new(64, 4096, 128, 14),
        Shape::new(64, 4096, 128, 12),
        Shape::new(48, 4096, 256, 16),
        Shape::new(24, 2048, 128, 12),
    ] {
        let ground = Ground::new(&shape);
        take_all(&ground, &format!("new, {shape:?}"), &shape);
        let count = fill(&ground, 20_000);
        for number in (0..count).filter(|number| number % 3 > 0) {
            remove(&ground, &format!("f{number}"));
        }
        ground.pool.checkpoint().expect("it needs no room");
        take_all(&ground, &format!("after others, {shape:?}"), &shape);
        assert_eq!(ground.defects(), None, "{shape:?}");
    }
}

fn take_all(ground: &Ground, what: &str, shape: &Shape) {
    let (pool, caller, block) = (&ground.pool, Caller::root(), 1_u64 << shape.block_shift);
    let ino = ground.make(pool.root(), "ahead", FileKind::Regular).expect("there is room");
    let length = ground.available() / block * block;
    let mode = Fallocate::Allocate { keep_size: false };
    let taken = pool.fallocate(&caller, ino, 0, length, mode);
    assert_eq!(taken, Ok(()), "{what}: {length} bytes");
    pool.write(&caller, ino, length / 2, &vec![7; 3 << 20]).expect("it was taken ahead");
    pool.sync().expect("what was accepted finds room");
    remove(ground, "ahead");
    pool.checkpoint().expect("it needs no room");
}

/// The same in larger pools.
#[test]
#[ignore = "a soak"]
fn what_df_promises_can_be_written_in_larger_pools() {
    what_is_promised_is_kept(&Shape::new(64, 4096, 128, 14));
    what_is_promised_is_kept(&Shape::new(256, 4096, 1024, 14));
    what_is_promised_is_kept(&Shape::new(512, 4096, 1024, 12));
    what_is_promised_is_kept(&Shape::new(1024, 4096, 1024, 14));
}
