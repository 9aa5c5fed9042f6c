//! How much memory a pool with many files takes beside its cache.
//!
//! `memory DIRECTORY FILES [OPEN [FILES_PER_DIRECTORY]]`: makes a pool in a sparse file in
//! DIRECTORY, FILES empty files in it, then holds OPEN of them (10,000) as a kernel does and writes
//! to each. Prints the resident memory at every tenth of the way, its peak, and the peak less the
//! cache. Exits with 1 if that is more than 256 MiB.
#![expect(clippy::as_conversions, reason = "shares are printed as floating point")]

use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

use engine::api::{Caller, FileKind, FileSystem, Ino, NewInode};
use engine::{Pool, PoolCreateOptions, PoolOpenOptions};
use runtime::clock::SystemClock;
use storage::device::{FileDevice, FileOptions, SharedDevice};

/// Bytes of the pool; the file is sparse.
const POOL_BYTES: u64 = 64 << 30;
/// Memory beside the cache that the engine may take.
const BESIDE_CACHE_BYTES_MAX: u64 = 256 << 20;
/// Files held, unless said otherwise.
const OPEN_FILES: u64 = 10_000;
/// Files of a directory, unless said otherwise.
const FILES_PER_DIRECTORY: u64 = 10_000;

/// Returns what the kernel says of this process, in bytes.
fn memory_of(field: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("Linux has it");
    let line = status.lines().find(|line| line.starts_with(field)).expect("Linux has it");
    let kib = line.split_whitespace().nth(1).and_then(|text| text.parse::<u64>().ok());
    kib.expect("a number of KiB") << 10
}

fn mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

fn report(what: &str, pool: &Pool, start: Instant) {
    let status = pool.status();
    println!(
        "{what:<24} {:>7.1} s  resident {:>7.1} MiB, peak {:>7.1}; {} pages in memory, {} dirty",
        start.elapsed().as_secs_f64(),
        mib(memory_of("VmRSS")),
        mib(memory_of("VmHWM")),
        status.cache.pages,
        status.journal.dirty_pages,
    );
}

fn name(number: u64) -> Vec<u8> {
    format!("name-{number:09}").into_bytes()
}

fn make(pool: &Pool, parent: Ino, kind: FileKind, number: u64) -> Ino {
    let new = NewInode::new(kind, 0o755);
    let attr = pool.create(&Caller::root(), parent, &name(number), new, None);
    attr.expect("there is room").ino
}

fn find(pool: &Pool, parent: Ino, number: u64) -> Ino {
    pool.lookup(&Caller::root(), parent, &name(number)).expect("it is there").ino
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().collect();
    let directory = arguments.get(1).expect("a directory for the pool is the first argument");
    let number =
        |at: usize, or: u64| arguments.get(at).map_or(or, |text| text.parse().expect("a number"));
    let files = number(2, 1_000_000);
    let (open_files, per_directory) = (number(3, OPEN_FILES), number(4, FILES_PER_DIRECTORY));

    let path = Path::new(directory).join("memory.hf");
    let device: SharedDevice =
        FileDevice::create(&path, POOL_BYTES, FileOptions::default()).expect("a new file");
    let clock = Arc::new(SystemClock::new());
    Pool::create(&device, clock.as_ref(), &PoolCreateOptions::new(POOL_BYTES, [1; 64]))
        .expect("a pool fits");
    let options = PoolOpenOptions::default();
    let cache_bytes = u64::try_from(options.cache_bytes).expect("64 bits");
    let pool = Pool::open(device, clock, options).expect("a new pool opens");

    let start = Instant::now();
    let mut parent = pool.root();
    for nth in 0..files {
        if nth % per_directory == 0 {
            parent = make(&pool, pool.root(), FileKind::Directory, nth / per_directory);
            pool.forget(parent, 1);
        }
        let ino = make(&pool, parent, FileKind::Regular, nth);
        pool.forget(ino, 1);
        if nth % 10_000 == 0 {
            pool.tick().expect("the disk works");
        }
        if (nth + 1) % (files / 10).max(1) == 0 {
            report(&format!("{} files", nth + 1), &pool, start);
        }
    }
    for nth in 0..open_files.min(files) {
        // A kernel holds what it has looked up, wherever it is.
        let nth = nth * (files / open_files.min(files));
        let directory = find(&pool, pool.root(), nth / per_directory);
        let ino = find(&pool, directory, nth);
        pool.forget(directory, 1);
        pool.write(&Caller::root(), ino, 0, &[7; 4096]).expect("there is room");
    }
    report(&format!("{open_files} held and written"), &pool, start);
    report("synced", &pool, start);
    pool.close().expect("the disk works");
    report("closed", &pool, start);
    drop(pool);
    std::fs::remove_file(&path).expect("it was made here");

    let beside = memory_of("VmHWM").saturating_sub(cache_bytes);
    println!("peak beside the cache of {:.0} MiB: {:.1} MiB", mib(cache_bytes), mib(beside));
    if beside > BESIDE_CACHE_BYTES_MAX {
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}
