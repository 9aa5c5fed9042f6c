//! What deleting a snapshot reads: what it differs in, and not what is there.

use engine::api::{Caller, FileKind, FileSystem, Ino};
use format::fileset::NamePart;
use runtime::prng::Prng;
use storage::device::RequestKind;

use super::{Counted, open};

const POOL_BYTES: u64 = 512 << 20;
const DIRECTORIES: usize = 300;
const FILES: usize = 200;
/// Small enough to lie in the inode, so that all that a snapshot shares are pages.
const CONTENT_BYTES: usize = 40;
/// Steps of the background within which a deletion has to end.
const TICKS_MAX: usize = 1000;

fn write(counted: &Counted, ino: Ino, byte: u8) {
    let written = counted.pool.write(&Caller::root(), ino, 0, &[byte; CONTENT_BYTES]);
    written.expect("there is room");
}

/// Closes the pool, and returns how many pages are in use, what several share once.
fn pages(counted: Counted) -> (Counted, u64) {
    let device = counted.close();
    let shared: storage::device::SharedDevice = device.clone();
    let report = check::run(shared, check::CheckOptions::default(), &mut |_| ());
    assert!(report.is_clean(), "{}", report.to_text());
    let counted = open(&device);
    let bytes = report.totals.fragments << counted.pool.status().geometry.fragment_shift;
    (counted, bytes / 4096)
}

/// Takes a snapshot, changes files, and deletes the snapshot with nothing in memory; returns how
/// many pages there are, how many of them differ, of both, and how many are read.
fn deleted_after(counted: Counted, changed: &[Ino]) -> (Counted, [u64; 3]) {
    let (root, snapshot) = ("root".parse().expect("a name"), NamePart::new("c").expect("a name"));
    counted.pool.fileset_admin().create_snapshot(&root, &snapshot, [1; 16]).expect("there is room");
    changed.iter().for_each(|ino| write(&counted, *ino, 2));
    let (counted, before) = pages(counted);
    let cost = counted.cost(|| {
        counted.pool.fileset_admin().delete_snapshot(&root, &snapshot).expect("nobody holds it");
        let is_freeing = || counted.pool.fileset_admin().is_freeing().expect("it can be read");
        let ticks = (0..TICKS_MAX).take_while(|_| is_freeing());
        ticks.for_each(|_| counted.pool.tick().expect("nothing fails"));
        assert!(!is_freeing(), "a deletion does not end");
    });
    let read = cost.of_kind(RequestKind::Read).bytes / 4096;
    let (counted, after) = pages(counted);
    (counted, [before, 2 * (before - after), read])
}

/// Goal: after all files in one directory of a hundred have changed, a deletion reads at most 3
/// parts in a hundred of the metadata; after one file of a hundred has, at random, at most 1.1
/// times the pages that differ, those of the snapshot and of what came after it.
#[test]
fn a_deletion_reads_what_differs() {
    let counted = Counted::new(POOL_BYTES, 14);
    let mut directories = Vec::new();
    for directory in 0..DIRECTORIES {
        let name = format!("directory {directory}");
        let parent = counted.make(counted.pool.root(), &name, FileKind::Directory);
        let files = (0..FILES).map(|file| {
            let ino = counted.make(parent, &format!("file {file}"), FileKind::Regular);
            write(&counted, ino, 1);
            ino
        });
        directories.push(files.collect::<Vec<Ino>>());
    }
    let some: Vec<Ino> = directories.iter().step_by(100).flatten().copied().collect();
    let all = directories.concat();
    let mut random = Prng::from_seed(5);
    let count = u64::try_from(all.len()).expect("few");
    let mut any = || all[usize::try_from(random.below(count)).expect("few")];
    let at_random: Vec<Ino> = (0..all.len() / 100).map(|_| any()).collect();
    let (counted, [pages, differ, read]) = deleted_after(counted, &some);
    println!("of 3 directories of 300: {pages} pages, {differ} differ, {read} read");
    assert!(read * 100 <= pages * 3, "{read} of {pages} pages are read");
    let (counted, [pages, differ, read]) = deleted_after(counted, &at_random);
    println!("one file of 100: {pages} pages, {differ} differ, {read} read");
    assert!(read * 10 <= differ * 11, "{read} pages are read, and {differ} differ");
    counted.close();
}
