//! How often pages in memory are looked at: what a stream costs the processor, counted.

use super::*;

/// Returns how often a page was asked for so far.
fn looks(pool: &Pool) -> u64 {
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
            pool.catch_up();
        }
        pool.fsync(ino, false).expect("nothing fails");
        let looks = (looks(pool) - before) / MEBIBYTES;
        println!("a stream over {what}: {looks} looks a MiB");
        assert!(looks <= most, "over {what}: {looks} looks a MiB");
    };
    stream("nothing", 12);
    stream("a file", 24);
    for mebibyte in 0..MEBIBYTES {
        pool.write(&caller, ino, mebibyte << 20, &data[..4096]).expect("there is room");
    }
    pool.fsync(ino, false).expect("nothing fails");
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
    pool.fsync(ino, false).expect("nothing fails");
    let mut prng = Prng::from_seed(1);
    let before = looks(pool);
    for _ in 0..BATCHES {
        for _ in 0..32 {
            let at = prng.below(FILE_BYTES / 4096) * 4096;
            pool.write(&caller, ino, at, &data[..4096]).expect("there is room");
        }
        pool.fsync(ino, false).expect("nothing fails");
    }
    let looks = (looks(pool) - before) / (32 * BATCHES);
    println!("a random overwrite among 32: {looks} looks");
    assert!(looks <= 6, "{looks} looks each");
}

/// Lists a directory with attributes as the kernel does, at most 190 names an answer, and gives
/// back each reference; does `behind` after each answer that was full. Returns how many names.
pub(super) fn list_by_answers(pool: &Pool, at: Ino, mut behind: impl FnMut(usize)) -> usize {
    const NAMES: usize = 190;
    let (mut cookie, mut count) = (0, 0);
    loop {
        let mut told = Vec::with_capacity(NAMES);
        let listed = pool.readdir_plus(&Caller::root(), at, cookie, &mut |entry, attr| {
            let fits = told.len() < NAMES;
            if fits {
                told.push((entry.cookie, attr.map(|attr| attr.ino)));
            }
            fits
        });
        listed.expect("it lists");
        count += told.len();
        let Some((last, _)) = told.last() else { return count };
        cookie = *last;
        told.iter().filter_map(|(_, ino)| *ino).for_each(|ino| pool.forget(ino, 1));
        if told.len() == NAMES {
            behind(count);
        }
    }
}

/// Goal: a listing with attributes looks for each inode's page, and seldom for what leads there.
/// Method: a long directory of a pool that was just opened, names in no order.
#[test]
fn a_listing_with_attributes_looks_at_few_pages() {
    const FILES: usize = 20_000;
    let counted = Counted::new(1 << 30, 14);
    let at = counted.make(counted.pool.root(), "d", FileKind::Directory);
    for file in 0..FILES {
        counted.make(at, &format!("f{file}"), FileKind::Regular);
    }
    let counted = open(&counted.close());
    let before = looks(&counted.pool);
    assert_eq!(list_by_answers(&counted.pool, at, |_| ()), FILES + 2);
    let looks = looks(&counted.pool) - before;
    println!("{FILES} names listed with attributes: {looks} looks");
    assert!(looks <= 40_000, "{looks} looks");
}
