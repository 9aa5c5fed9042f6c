//! What a listing with attributes of a long directory asks for, and when.

use super::looks::looks;
use super::*;

/// Names of an answer to the kernel, where names are short.
const ANSWER_NAMES: usize = 190;
const FILES: usize = 20_000;

/// Returns a pool that was just opened, with a cache of `cache_bytes`, and a directory of `files`
/// files in it.
fn long_directory(files: usize, cache_bytes: usize) -> (Counted, Ino) {
    let counted = Counted::new(1 << 30, 14);
    let at = counted.make(counted.pool.root(), "d", FileKind::Directory);
    for file in 0..files {
        counted.make(at, &format!("f{file}"), FileKind::Regular);
    }
    let device = counted.close();
    let clock = Arc::new(ManualClock::new());
    let shared: SharedDevice = Arc::<CountingDevice>::clone(&device);
    let options = PoolOpenOptions { cache_bytes, ..PoolOpenOptions::default() };
    let pool = Pool::open(shared, clock.clone(), options).expect("a pool opens");
    (Counted { device, clock, pool }, at)
}

/// Lists a directory as the kernel does, an answer at a time, and gives back each reference; does
/// `behind` after each answer, as long as it says to go on. Returns how many names it was told.
fn list_by_answers(pool: &Pool, at: Ino, mut behind: impl FnMut() -> bool) -> usize {
    let (mut cookie, mut count) = (0, 0);
    loop {
        let mut told = Vec::with_capacity(ANSWER_NAMES);
        let listed = pool.readdir_plus(&Caller::root(), at, cookie, &mut |entry, attr| {
            let fits = told.len() < ANSWER_NAMES;
            if fits {
                told.push((entry.cookie, attr.map(|attr| attr.ino)));
            }
            fits
        });
        listed.expect("it lists");
        count += told.len();
        told.iter().filter_map(|(_, ino)| *ino).for_each(|ino| pool.forget(ino, 1));
        match told.last() {
            Some((last, _)) if behind() => cookie = *last,
            _ => return count,
        }
    }
}

/// Returns the pages that a whole listing reads, and those of them that it reads behind answers.
fn pages_read(files: usize, cache_bytes: usize, is_caught_up: bool) -> (u64, u64) {
    let (counted, at) = long_directory(files, cache_bytes);
    let mut behind = 0;
    let all = counted.cost(|| {
        let count = list_by_answers(&counted.pool, at, || {
            behind += counted
                .cost(|| {
                    if is_caught_up {
                        counted.pool.run_deferred_work()
                    }
                })
                .reads();
            true
        });
        assert_eq!(count, files + 2, "each name and the two dots");
    });
    (all.reads(), behind)
}

/// Goal: a listing with attributes looks for each inode's page, and seldom for what leads there.
/// Method: a long directory of a pool that was just opened, names in no order.
#[test]
fn a_listing_with_attributes_looks_at_few_pages() {
    let (counted, at) = long_directory(FILES, 256 << 20);
    let before = looks(&counted.pool);
    assert_eq!(list_by_answers(&counted.pool, at, || true), FILES + 2);
    let looks = looks(&counted.pool) - before;
    println!("{FILES} names listed with attributes: {looks} looks");
    assert!(looks <= 40_000, "{looks} looks");
}

/// Goal: a long listing waits for the device in its first answers alone, and asks for next to
/// nothing more for that: pages next to each other are one request, and which are asked for
/// together differs. Method: requests in answers and behind them.
#[test]
fn a_listing_finds_its_inodes_read_behind_the_last_answer() {
    let (alone, _) = pages_read(FILES, 256 << 20, false);
    let (all, behind) = pages_read(FILES, 256 << 20, true);
    println!("{FILES} names: {all} pages, {behind} of them behind answers; {alone} without");
    assert!(all <= alone + alone / 100, "{all} requests, without {alone}");
    // Those of the first two, and of the names of a page that did not fit in them.
    assert!(all - behind <= 600, "{} in answers", all - behind);
}

/// Goal: in a cache that holds few inodes, what is read ahead is still there when it is told.
#[test]
fn what_is_read_ahead_fits_in_a_small_cache() {
    let (alone, _) = pages_read(FILES, 1 << 20, false);
    let (all, behind) = pages_read(FILES, 1 << 20, true);
    println!("{FILES} names, 256 pages: {all} pages, {behind} behind answers; {alone} without");
    assert!(all <= alone + alone / 20, "{all} pages, without {alone}");
}

/// Goal: nothing is read for who does not come back. Method: a directory of two answers; a long one
/// of which somebody wants one.
#[test]
fn nothing_is_read_ahead_of_a_short_listing() {
    let (_, behind) = pages_read(ANSWER_NAMES * 3 / 2, 256 << 20, true);
    assert_eq!(behind, 0, "a short directory");
    let (counted, at) = long_directory(FILES, 256 << 20);
    list_by_answers(&counted.pool, at, || false);
    assert_eq!(counted.cost(|| counted.pool.run_deferred_work()).reads(), 0, "one answer");
}

/// Goal: names are read ahead once, and not where the listing came first. Method: a listing that is
/// caught up with for the first time at its end, or when it has noted the next names.
#[test]
fn names_that_were_listed_are_not_read_ahead() {
    let (counted, at) = long_directory(FILES, 256 << 20);
    let looks_behind = || {
        let before = looks(&counted.pool);
        counted.pool.run_deferred_work();
        looks(&counted.pool) - before
    };
    list_by_answers(&counted.pool, at, || true);
    assert_eq!(looks_behind(), 0, "all were listed");
    let mut answers = 0;
    list_by_answers(&counted.pool, at, || {
        answers += 1;
        answers < 4
    });
    assert!(looks_behind() > 0, "what the fourth answer noted");
    assert_eq!(looks_behind(), 0, "once");
}

/// Goal: reading ahead asks the device for pages together, those of names too. Method: requests
/// that were handed to the device alone in a whole listing.
#[test]
fn pages_are_read_ahead_together() {
    let (counted, at) = long_directory(FILES, 256 << 20);
    let inner: SharedDevice = counted.close();
    let (together, alone) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let device = Arc::new(Handed { inner, together, alone });
    let shared: SharedDevice = Arc::<Handed>::clone(&device);
    let clock = Arc::new(ManualClock::new());
    let pool = Pool::open(shared, clock, PoolOpenOptions::default()).expect("a pool opens");
    device.alone.store(0, Ordering::Relaxed);
    let count = list_by_answers(&pool, at, || {
        pool.run_deferred_work();
        true
    });
    let alone = device.alone.load(Ordering::Relaxed);
    println!("{count} names: {alone} pages read alone");
    assert!(alone <= 100, "{alone} pages");
}
