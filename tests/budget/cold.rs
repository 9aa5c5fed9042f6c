//! What reading a tree of small files costs that nobody has read since the pool was opened.

use engine::api::{Caller, FileKind, FileSystem, Ino};
use runtime::prng::Prng;
use storage::counters::IoCounts;
use storage::device::{IoPurpose, RequestKind};

use super::{Counted, open};

const POOL_BYTES: u64 = 1 << 30;
const DIRECTORIES: u64 = 150;
const FILES: u64 = 40;
/// Bytes of the large file: as many segments as a cache of 32 MiB holds, and three times more.
const LARGE_BYTES: u64 = 128 << 20;

/// A pool with a tree of small files in it, 1 to 8 KB each, and a large file; just opened.
fn cold_tree() -> (Counted, Ino) {
    let counted = Counted::new(POOL_BYTES, 14);
    let mut random = Prng::from_seed(9);
    let pool = &counted.pool;
    for directory in 0..DIRECTORIES {
        let name = format!("directory {directory}");
        let parent = counted.make(pool.root(), &name, FileKind::Directory);
        for file in 0..FILES {
            let ino = counted.make(parent, &format!("file {file}"), FileKind::Regular);
            let length = usize::try_from(1_000 + random.below(7_000)).expect("small");
            pool.write(&Caller::root(), ino, 0, &vec![7; length]).expect("there is room");
        }
    }
    let large = counted.make(pool.root(), "large", FileKind::Regular);
    let piece = vec![9; 1 << 20];
    for at in (0..LARGE_BYTES).step_by(1 << 20) {
        pool.write(&Caller::root(), large, at, &piece).expect("there is room");
    }
    (open(&counted.close()), large)
}

/// Reads every file below `at` in the order in which it is listed, as `find | xargs cat` does.
/// Returns how many files.
fn read_tree(counted: &Counted, at: Ino) -> u64 {
    let pool = &counted.pool;
    let mut listed = Vec::new();
    let mut cookie = 0;
    loop {
        let before = listed.len();
        let caller = Caller::root();
        let told = pool.readdir_plus(&caller, at, cookie, &mut |entry, attr| {
            cookie = entry.cookie;
            listed.extend(attr.map(|attr| (attr.ino, attr.kind, attr.size_bytes)));
            listed.len() - before < 100
        });
        told.expect("it lists");
        if listed.len() == before {
            break;
        }
    }
    let mut files = 0;
    for (ino, kind, size_bytes) in listed {
        if kind == FileKind::Directory {
            files += read_tree(counted, ino);
        } else if size_bytes <= 8_000 {
            let mut bytes = Vec::new();
            pool.read(&Caller::root(), ino, 0, 128 << 10, &mut bytes).expect("it reads");
            assert_eq!(bytes.len(), usize::try_from(size_bytes).expect("small"));
            files += 1;
        }
        pool.forget(ino, 1);
    }
    files
}

/// Returns requests and bytes of the reads of file data.
fn data_reads(counts: &IoCounts) -> (u64, u64) {
    let count = counts.of(IoPurpose::Data, RequestKind::Read);
    (count.requests, count.bytes)
}

/// Goal: a tree of small files is read with a tenth as many device reads as it has files, those of
/// metadata among them, and at most twice its bytes.
#[test]
fn a_cold_tree_takes_a_device_read_for_ten_files() {
    let (counted, _) = cold_tree();
    let mut files = 0;
    let cost = counted.cost(|| files = read_tree(&counted, counted.pool.root()));
    let status = counted.pool.status();
    println!("{files} files: {cost:?}, {:?}, {:?}", status.segment_cache, status.cache);
    assert_eq!(files, DIRECTORIES * FILES);
    assert!(cost.reads() * 10 <= files, "{} reads", cost.reads());
    let stored = counted.pool.status().space.used << status.geometry.fragment_shift;
    let read = cost.of_kind(RequestKind::Read).bytes;
    assert!(read <= 2 * (stored - LARGE_BYTES), "{read} bytes of {stored}");
    assert_eq!(status.segment_cache.refused, 0);
}

/// Goal: random reads of a large file bring in what they ask for, and a stream what it asks for:
/// not a byte more, and what is in memory of small files stays.
#[test]
fn large_files_read_what_they_ask_for() {
    const READS: u64 = 4_000;
    let (counted, large) = cold_tree();
    let mut random = Prng::from_seed(5);
    // So that the map is in memory.
    let mut bytes = Vec::new();
    let mut read = |at: u64, length: usize| {
        bytes.clear();
        let count = counted.pool.read(&Caller::root(), large, at, length, &mut bytes);
        assert_eq!(count.expect("it reads"), length);
    };
    let before = counted.pool.status().segment_cache;
    let cost = counted.cost(|| {
        for _ in 0..READS {
            read(random.below(LARGE_BYTES >> 12) << 12, 4096);
        }
    });
    assert_eq!(data_reads(&cost), (READS, READS * 4096));
    let cost = counted.cost(|| (0..LARGE_BYTES).step_by(1 << 20).for_each(|at| read(at, 1 << 20)));
    let (requests, bytes) = data_reads(&cost);
    println!("a stream of {LARGE_BYTES} bytes: {requests} reads, {bytes} bytes");
    assert_eq!(bytes, LARGE_BYTES);
    assert_eq!(counted.pool.status().segment_cache, before);
}

/// Goal: who reads few of many small files, here and there, reads little more than those. Method:
/// one of 40 files of each directory, in no order, again and again.
#[test]
fn small_files_here_and_there_bring_little_else() {
    let (counted, _) = cold_tree();
    let pool = &counted.pool;
    let look = |parent: Ino, name: &str| {
        let found = pool.lookup(&Caller::root(), parent, name.as_bytes()).expect("it is there");
        pool.forget(found.ino, 1);
        found.ino
    };
    let mut random = Prng::from_seed(3);
    let mut asked = 0;
    let cost = counted.cost(|| {
        for _ in 0..150 {
            let directory = look(pool.root(), &format!("directory {}", random.below(DIRECTORIES)));
            let ino = look(directory, &format!("file {}", random.below(FILES)));
            let mut bytes = Vec::new();
            pool.read(&Caller::root(), ino, 0, 128 << 10, &mut bytes).expect("it reads");
            asked += 1;
        }
    });
    let (requests, bytes) = data_reads(&cost);
    println!("{asked} files: {requests} reads, {bytes} bytes, {:?}", pool.status().segment_cache);
    assert!(requests <= asked, "{requests} reads of {asked} files");
    assert!(bytes <= asked * (128 << 10), "{bytes} bytes");
}
