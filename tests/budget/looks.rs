//! How often pages in memory are looked at: what a stream costs the processor, counted.

use super::*;

/// Returns how often a page was asked for so far.
pub(super) fn looks(pool: &Pool) -> u64 {
    let cache = pool.status().cache;
    cache.hits + cache.misses
}

/// Goal: the blocks of a long write are placed and installed together, so that a stream looks at
/// few pages for each MiB of 64 blocks, whether it makes the file or overwrites it. Method: a file
/// in blocks of its own size, then one that small overwrites have split.
#[test]
fn a_stream_looks_at_few_pages() {
    const MEBIBYTES: u64 = 64;
    let counted = Counted::new(1 << 30, 14);
    let (pool, caller) = (&counted.pool, Caller::root());
    let ino = counted.make(pool.root(), "f", FileKind::Regular);
    let data = vec![7; 1 << 20];
    let stream = |what: &str, most: u64| {
        let before = looks(pool);
        for mebibyte in 0..MEBIBYTES {
            pool.write(&caller, ino, mebibyte << 20, &data).expect("there is room");
            pool.run_deferred_work();
        }
        pool.fsync(&Caller::root(), ino, false).expect("nothing fails");
        let looks = (looks(pool) - before) / MEBIBYTES;
        println!("a stream over {what}: {looks} looks a MiB");
        assert!(looks <= most, "over {what}: {looks} looks a MiB");
    };
    stream("nothing", 12);
    stream("a file", 24);
    for mebibyte in 0..MEBIBYTES {
        pool.write(&caller, ino, mebibyte << 20, &data[..4096]).expect("there is room");
    }
    pool.fsync(&Caller::root(), ino, false).expect("nothing fails");
    stream("a file in blocks of 4 KiB", 28);
}

/// Goal: small overwrites that are synced together look at each page of the maps of free fragments
/// and of usages once. Method: 32 of them at random, many times.
#[test]
fn a_batch_of_random_overwrites_looks_at_few_pages() {
    const FILE_BYTES: u64 = 64 << 20;
    const BATCHES: u64 = 20;
    let counted = Counted::new(1 << 30, 14);
    let (pool, caller) = (&counted.pool, Caller::root());
    let ino = counted.make(pool.root(), "f", FileKind::Regular);
    let data = vec![7; 1 << 20];
    for mebibyte in 0..FILE_BYTES >> 20 {
        pool.write(&caller, ino, mebibyte << 20, &data).expect("there is room");
        pool.write(&caller, ino, mebibyte << 20, &data[..4096]).expect("there is room");
    }
    pool.fsync(&Caller::root(), ino, false).expect("nothing fails");
    let mut prng = Prng::from_seed(1);
    let before = looks(pool);
    for _ in 0..BATCHES {
        for _ in 0..32 {
            let at = prng.below(FILE_BYTES / 4096) * 4096;
            pool.write(&caller, ino, at, &data[..4096]).expect("there is room");
        }
        pool.fsync(&Caller::root(), ino, false).expect("nothing fails");
    }
    let looks = (looks(pool) - before) / (32 * BATCHES);
    println!("a random overwrite among 32: {looks} looks");
    assert!(looks <= 6, "{looks} looks each");
}
