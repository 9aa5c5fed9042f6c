//! Pools that are full.

use engine::Pool;
use engine::api::{Caller, FileSystem, FsError, SetAttr};
use runtime::clock::ManualClock;
use runtime::prng::Prng;
use std::sync::Arc;
use storage::device::{CountingDevice, MemoryDevice, SharedDevice};

use engine::PoolOpenOptions;

use super::{content, create, defects, find, make, pool_in_memory};

const POOL_BYTES: u64 = 12 << 20;
const ROUNDS: usize = 3;
/// More files than a pool of this size holds.
const FILES_MAX: u64 = 100_000;

fn available(pool: &Pool) -> u64 {
    pool.sync().expect("a sync needs no room");
    pool.checkpoint().expect("a checkpoint needs no room");
    pool.tick().expect("background work needs no room");
    pool.statfs(&Caller::root(), pool.main_fileset()).expect("it is in memory").available_bytes
}

/// Makes files of `length` bytes until there is no room; returns how many.
fn fill(pool: &Pool, length: usize) -> u64 {
    let bytes = content(1, length);
    for number in 0..FILES_MAX {
        let made = make(pool, &format!("f{number}"))
            .and_then(|ino| pool.write(&Caller::root(), ino, 0, &bytes));
        match made {
            Ok(()) => {}
            Err(FsError::NoSpace) => return number,
            Err(error) => panic!("file {number}: {error}"),
        }
    }
    panic!("the pool never runs full")
}

fn empty(pool: &Pool, count: u64) {
    for number in 0..=count {
        let name = format!("f{number}");
        match pool.unlink(&Caller::root(), pool.root(), name.as_bytes(), None) {
            Ok(()) => {}
            // The last may not have been made.
            Err(FsError::NotFound) if number == count => {}
            Err(error) => panic!("delete of {name} in a full pool: {error}"),
        }
    }
}

/// Fills and empties a pool again and again; returns how many files fitted and how many bytes were
/// free afterwards, each time.
fn cycles(length: usize) -> (Vec<u64>, Vec<u64>) {
    let (device, pool) = pool_in_memory(POOL_BYTES);
    let (mut counts, mut rooms) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let count = fill(&pool, length);
        assert!(pool.sync().is_ok(), "sync of a full pool");
        empty(&pool, count);
        counts.push(count);
        rooms.push(available(&pool));
    }
    println!("files of {length} bytes: {counts:?}, then {rooms:?} bytes free");
    pool.close().expect("a pool closes");
    assert_eq!(defects(&device), None);
    (counts, rooms)
}

/// Goal: deleting always works, and gives everything back. Method: full of files of one size, then
/// empty, again and again.
#[test]
fn a_full_pool_can_be_emptied_and_filled_again() {
    for length in [100, 5000, 70_000, 3 << 20] {
        let (counts, rooms) = cycles(length);
        let least = counts.iter().min().copied().unwrap_or(0);
        let most = counts.iter().max().copied().unwrap_or(0);
        assert!(least > 1 && most - least <= most / 8 + 1, "{length}: {counts:?}");
        assert!(rooms[ROUNDS - 1] + POOL_BYTES / 16 >= rooms[0], "{length}: {rooms:?}");
    }
}

/// Goal: what empty files take, which is metadata alone, is given back too.
#[test]
fn a_pool_full_of_empty_files_can_be_used_again() {
    let (counts, rooms) = cycles(0);
    assert!(counts.iter().all(|&count| count > 1000), "{counts:?} {rooms:?}");
}

/// Goal: a pool that is nearly full can be overwritten for ever. Method: random blocks, twenty
/// times the pool.
#[test]
fn overwriting_at_ninety_percent_goes_on() {
    const BYTES: u64 = 32 << 20;
    const BLOCK: u64 = 16 << 10;
    const BLOCK_LENGTH: usize = 16 << 10;
    let counting = CountingDevice::new(MemoryDevice::new("memory", BYTES));
    let device: SharedDevice = counting.clone();
    create(&device, BYTES);
    let clock = Arc::new(ManualClock::new());
    let pool = Pool::open(Arc::clone(&device), clock.clone(), PoolOpenOptions::default())
        .expect("a new pool opens");
    make(&pool, "file").expect("there is room");
    let ino = find(&pool, "file").expect("it was made");
    let caller = Caller::root();
    let mut fitting = 0;
    while pool.write(&caller, ino, fitting * BLOCK, &content(fitting, BLOCK_LENGTH)).is_ok() {
        fitting += 1;
        assert!(fitting * BLOCK < BYTES, "the pool never runs full");
    }
    let blocks = fitting / 10 * 9;
    let size_bytes = Some(blocks * BLOCK);
    let change = SetAttr { size_bytes, ..SetAttr::default() };
    pool.setattr(&caller, ino, &change, None).expect("a full pool can be cut");
    pool.sync().expect("there is room");
    let before = counting.counts();
    let mut prng = Prng::from_seed(4);
    let writes = 20 * BYTES / BLOCK;
    let mut seeds: Vec<u64> = (0..blocks).collect();
    for number in 0..writes {
        let block = prng.below(blocks);
        let seed = blocks + number;
        pool.write(&caller, ino, block * BLOCK, &content(seed, BLOCK_LENGTH))
            .unwrap_or_else(|error| panic!("overwrite {number} of {writes}: {error}"));
        seeds[usize::try_from(block).expect("an index")] = seed;
        clock.advance_ns(1_000_000);
        if number % 64 == 0 {
            pool.tick().expect("nothing fails");
        }
    }
    pool.sync().expect("there is room");
    let counts = counting.counts() - before;
    let written = counts.of_kind(storage::device::RequestKind::Write).bytes;
    let hundredths = written * 100 / (writes * BLOCK);
    println!(
        "{writes} overwrites of 16 KiB at 90 %: write amplification {}.{:02}, cleaned {} \
         (of {fitting} blocks)",
        hundredths / 100,
        hundredths % 100,
        pool.status().cleaner.since_mount.segments
    );
    for (block, seed) in (0..).zip(&seeds) {
        let mut found = Vec::new();
        pool.read(&Caller::root(), ino, block * BLOCK, BLOCK_LENGTH, &mut found).expect("it reads");
        assert!(found == content(*seed, BLOCK_LENGTH), "block {block}");
    }
    pool.close().expect("a pool closes");
    assert_eq!(defects(&device), None);
}
