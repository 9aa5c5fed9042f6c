//! Fixed scenarios whose cost is recorded: instructions, counted by valgrind, and requests to
//! the device, counted by the device.
//!
//! ```text
//!   guard --list           the scenarios
//!   guard SCENARIO         prepares it, runs it in `guard_measured`, prints what it asked for
//! ```
//!
//! `cargo run -p xtask -- guard` runs each under callgrind, which counts only what happens inside
//! [`guard_measured`], and compares with `benches/guard/`. One thread, a device in memory, a clock
//! that stands still, a pool whose identity is fixed: two runs differ by what the standard
//! library's hash maps draw at random, and by nothing else that a commit did not change.
//!
//! Not here: how long anything takes (`holdfast-lab bench`), promised budgets (`tests/budget`).

use std::process::ExitCode;
use std::sync::Arc;

use engine::api::{Caller, FileKind, FileSystem, Ino, NewInode, RenameMode, Stability, WriteData};
use engine::{Pool, PoolCreateOptions, PoolOpenOptions};
use runtime::clock::ManualClock;
use runtime::prng::Prng;
use storage::device::{AlignedBuffer, CountingDevice, MemoryDevice, RequestKind, SharedDevice};

/// Bytes of the pool: so many that its journal holds what a scenario logs.
const POOL_BYTES: u64 = 4 << 30;
/// Names that most scenarios work on.
const NAMES: u64 = 2000;
/// Files of 4 KiB.
const SMALL_FILES: u64 = 1000;
/// Writes of 16 KiB: more than a segment, so that sealing is among what is counted.
const WRITES: u64 = 256;
/// Writes of 1 MiB, each in a buffer that the file system may keep.
const LONG_WRITES: u64 = 32;
/// Random reads of 4 KiB.
const READS: u64 = 1000;
/// Bytes of the file that is read and overwritten.
const FILE_BYTES: u64 = 8 << 20;
/// Overwrites, each synced.
const OVERWRITES: u64 = 200;
/// Overwrites that are synced together, and how often.
const BATCH: u64 = 32;
const BATCHES: u64 = 20;
/// Directories of the cold lookups, and files of each.
const COLD_DIRS: u64 = 20;
const COLD_FILES: u64 = 100;

type Prepared = Box<dyn FnOnce()>;

/// A name, how many operations it does, and how it is prepared: what is returned is measured.
struct Scenario {
    name: &'static str,
    operations: u64,
    prepare: fn(&Ground) -> Prepared,
}

const SCENARIOS: [Scenario; 17] = [
    Scenario { name: "create", operations: NAMES, prepare: create },
    Scenario { name: "lookup-warm", operations: NAMES, prepare: lookup_warm },
    Scenario { name: "lookup-cold", operations: COLD_DIRS * COLD_FILES, prepare: lookup_cold },
    Scenario { name: "unlink", operations: NAMES, prepare: unlink },
    Scenario { name: "rename", operations: NAMES, prepare: rename },
    Scenario { name: "small-file", operations: SMALL_FILES, prepare: small_file },
    Scenario { name: "small-file-fsync", operations: SMALL_FILES, prepare: small_file_fsync },
    Scenario { name: "small-file-remove", operations: SMALL_FILES, prepare: small_file_remove },
    Scenario { name: "write-16k", operations: WRITES, prepare: write_16k },
    Scenario { name: "write-1m", operations: LONG_WRITES, prepare: write_1m },
    Scenario { name: "rewrite-1m", operations: LONG_WRITES, prepare: rewrite_1m },
    Scenario { name: "overwrite-4k-fsync", operations: OVERWRITES, prepare: overwrite },
    Scenario { name: "overwrite-4k-32", operations: BATCH * BATCHES, prepare: overwrite_batches },
    Scenario { name: "read-4k", operations: READS, prepare: read_4k },
    Scenario { name: "readdir", operations: NAMES, prepare: readdir },
    Scenario { name: "checkpoint", operations: 1, prepare: checkpoint },
    Scenario { name: "open-after-crash", operations: 1, prepare: open_after_crash },
];

/// A new pool on a device that counts.
struct Ground {
    device: Arc<CountingDevice>,
}

impl Ground {
    fn new() -> Ground {
        let device = CountingDevice::new(MemoryDevice::new("memory", POOL_BYTES));
        let ground = Ground { device };
        let options = PoolCreateOptions::new(POOL_BYTES, [7; 64]);
        Pool::create(&ground.shared(), &ManualClock::new(), &options).expect("a pool fits");
        ground
    }

    fn shared(&self) -> SharedDevice {
        Arc::<CountingDevice>::clone(&self.device)
    }

    fn open(&self) -> Pool {
        open(self.shared())
    }
}

fn open(device: SharedDevice) -> Pool {
    let clock = Arc::new(ManualClock::new());
    Pool::open(device, clock, PoolOpenOptions::default()).expect("the pool opens")
}

/// The one function in which instructions are counted. Its name is known to `xtask`.
#[inline(never)]
fn guard_measured(work: Prepared) {
    work();
}

fn new_inode(kind: FileKind) -> NewInode {
    NewInode::new(kind, 0o644)
}

fn make(pool: &Pool, parent: Ino, name: &str, kind: FileKind) -> Ino {
    let new = new_inode(kind);
    let made =
        pool.create(&Caller::root(), parent, name.as_bytes(), new, None).expect("there is room");
    pool.forget(made.ino, 1);
    made.ino
}

fn find(pool: &Pool, parent: Ino, name: &str) -> Ino {
    let found = pool.lookup(&Caller::root(), parent, name.as_bytes()).expect("it is there");
    pool.getattr(&Caller::root(), found.ino).expect("it is there");
    pool.forget(found.ino, 1);
    found.ino
}

fn names(prefix: &str, count: u64) -> Vec<String> {
    (0..count).map(|number| format!("{prefix}-{number:06}")).collect()
}

/// Returns a pool with [`NAMES`] files in its root, and their names.
fn filled(ground: &Ground) -> (Pool, Vec<String>) {
    let (pool, names) = (ground.open(), names("file", NAMES));
    for name in &names {
        make(&pool, pool.root(), name, FileKind::Regular);
    }
    (pool, names)
}

fn create(ground: &Ground) -> Prepared {
    let (pool, _) = filled(ground);
    let new = names("new", NAMES);
    Box::new(move || {
        for name in &new {
            make(&pool, pool.root(), name, FileKind::Regular);
        }
    })
}

fn lookup_warm(ground: &Ground) -> Prepared {
    let (pool, names) = filled(ground);
    Box::new(move || {
        for name in &names {
            find(&pool, pool.root(), name);
        }
    })
}

fn lookup_cold(ground: &Ground) -> Prepared {
    let pool = ground.open();
    let (dirs, files) = (names("dir", COLD_DIRS), names("file", COLD_FILES));
    for dir in &dirs {
        let at = make(&pool, pool.root(), dir, FileKind::Directory);
        for file in &files {
            make(&pool, at, file, FileKind::Regular);
        }
    }
    pool.close().expect("nothing fails");
    let pool = ground.open();
    Box::new(move || {
        for dir in &dirs {
            let at = find(&pool, pool.root(), dir);
            for file in &files {
                find(&pool, at, file);
            }
        }
    })
}

fn unlink(ground: &Ground) -> Prepared {
    let (pool, names) = filled(ground);
    Box::new(move || {
        for name in &names {
            pool.unlink(&Caller::root(), pool.root(), name.as_bytes(), None).expect("it is there");
        }
    })
}

fn rename(ground: &Ground) -> Prepared {
    let (pool, old) = filled(ground);
    let new = names("name", NAMES);
    Box::new(move || {
        let root = pool.root();
        for (from, to) in old.iter().zip(&new) {
            let (from, to) = ((root, from.as_bytes()), (root, to.as_bytes()));
            pool.rename(&Caller::root(), from, to, RenameMode::Replace, None).expect("it is there");
        }
    })
}

/// Makes files of 4 KiB in the root, each as `cp` does, and calls `made` behind each.
fn fill_small(pool: &Pool, names: &[String], made: impl Fn(Ino)) {
    let (caller, new) = (Caller::root(), new_inode(FileKind::Regular));
    let data = [7; 4096];
    for name in names {
        let ino = pool
            .create(&caller, pool.root(), name.as_bytes(), new, None)
            .expect("there is room")
            .ino;
        pool.write(&caller, ino, 0, &data).expect("there is room");
        made(ino);
        pool.forget(ino, 1);
        pool.run_deferred_work();
    }
}

/// Makes small files, and stores them at the end.
fn small_file(ground: &Ground) -> Prepared {
    let (pool, names) = (ground.open(), names("file", SMALL_FILES));
    Box::new(move || {
        fill_small(&pool, &names, |_| {});
        pool.sync().expect("nothing fails");
    })
}

/// Makes small files, each synced.
fn small_file_fsync(ground: &Ground) -> Prepared {
    let (pool, names) = (ground.open(), names("file", SMALL_FILES));
    Box::new(move || {
        fill_small(&pool, &names, |ino| {
            pool.fsync(&Caller::root(), ino, false).expect("nothing fails")
        });
    })
}

/// Removes small files that are stored.
fn small_file_remove(ground: &Ground) -> Prepared {
    let (pool, names) = (ground.open(), names("file", SMALL_FILES));
    fill_small(&pool, &names, |_| {});
    pool.sync().expect("nothing fails");
    Box::new(move || {
        for name in &names {
            let (caller, root) = (Caller::root(), pool.root());
            let ino = pool.lookup(&caller, root, name.as_bytes()).expect("it is there").ino;
            pool.unlink(&caller, root, name.as_bytes(), None).expect("it is there");
            pool.forget(ino, 1);
            pool.run_deferred_work();
        }
    })
}

fn write_16k(ground: &Ground) -> Prepared {
    let pool = ground.open();
    let ino = make(&pool, pool.root(), "file", FileKind::Regular);
    let data = vec![7; 16 << 10];
    Box::new(move || {
        for number in 0..WRITES {
            pool.write(&Caller::root(), ino, number * (16 << 10), &data).expect("there is room");
            // As a front does when it has answered.
            pool.run_deferred_work();
        }
    })
}

/// Writes the file from its front to [`LONG_WRITES`] MiB, as a stream, and syncs it.
fn write_long(pool: &Pool, ino: Ino) {
    for number in 0..LONG_WRITES {
        let data = WriteData::Shared(AlignedBuffer::zeroed(1 << 20).into());
        let written =
            pool.write_some(&Caller::root(), ino, number << 20, &data, Stability::Unstable, None);
        assert_eq!(written, Ok(data.len()), "there is room");
        pool.run_deferred_work();
    }
    pool.fsync(&Caller::root(), ino, false).expect("nothing fails");
}

fn write_1m(ground: &Ground) -> Prepared {
    let pool = ground.open();
    let ino = make(&pool, pool.root(), "file", FileKind::Regular);
    Box::new(move || write_long(&pool, ino))
}

fn rewrite_1m(ground: &Ground) -> Prepared {
    let pool = ground.open();
    let ino = make(&pool, pool.root(), "file", FileKind::Regular);
    write_long(&pool, ino);
    Box::new(move || write_long(&pool, ino))
}

/// Makes a file of [`FILE_BYTES`] that is on the device.
fn stored_file(pool: &Pool) -> Ino {
    let ino = make(pool, pool.root(), "file", FileKind::Regular);
    let data = vec![7; 1 << 20];
    for at in (0..FILE_BYTES).step_by(1 << 20) {
        pool.write(&Caller::root(), ino, at, &data).expect("there is room");
    }
    pool.fsync(&Caller::root(), ino, false).expect("nothing fails");
    ino
}

fn read_4k(ground: &Ground) -> Prepared {
    let pool = ground.open();
    let ino = stored_file(&pool);
    Box::new(move || {
        let (mut prng, mut bytes) = (Prng::from_seed(1), Vec::with_capacity(4096));
        for _ in 0..READS {
            bytes.clear();
            let at = prng.below(FILE_BYTES / 4096) * 4096;
            pool.read(&Caller::root(), ino, at, 4096, &mut bytes).expect("nothing fails");
        }
    })
}

fn overwrite(ground: &Ground) -> Prepared {
    let pool = ground.open();
    let ino = stored_file(&pool);
    let data = vec![7; 4096];
    Box::new(move || {
        let mut prng = Prng::from_seed(1);
        for _ in 0..OVERWRITES {
            let at = prng.below(FILE_BYTES / 4096) * 4096;
            pool.write(&Caller::root(), ino, at, &data).expect("there is room");
            pool.fsync(&Caller::root(), ino, false).expect("nothing fails");
        }
    })
}

fn overwrite_batches(ground: &Ground) -> Prepared {
    let pool = ground.open();
    let ino = stored_file(&pool);
    let data = vec![7; 4096];
    Box::new(move || {
        let mut prng = Prng::from_seed(1);
        for _ in 0..BATCHES {
            for _ in 0..BATCH {
                let at = prng.below(FILE_BYTES / 4096) * 4096;
                pool.write(&Caller::root(), ino, at, &data).expect("there is room");
            }
            pool.fsync(&Caller::root(), ino, false).expect("nothing fails");
        }
    })
}

fn readdir(ground: &Ground) -> Prepared {
    let (pool, _) = filled(ground);
    Box::new(move || {
        let mut count = 0;
        let listed = pool.readdir(&Caller::root(), pool.root(), 0, &mut |_| {
            count += 1;
            true
        });
        listed.expect("it lists");
        assert_eq!(count, NAMES + 2);
    })
}

fn checkpoint(ground: &Ground) -> Prepared {
    let (pool, _) = filled(ground);
    Box::new(move || pool.checkpoint().expect("nothing fails"))
}

fn open_after_crash(ground: &Ground) -> Prepared {
    let (pool, _) = filled(ground);
    pool.sync().expect("nothing fails");
    // Not closed: what is in the log is replayed.
    drop(pool);
    let device = ground.shared();
    Box::new(move || {
        let pool = open(device);
        assert!(pool.status().recovery.was_needed);
        // What closing or dropping costs is not the open's.
        std::mem::forget(pool);
    })
}

fn main() -> ExitCode {
    let argument = std::env::args().nth(1).unwrap_or_default();
    if argument == "--list" {
        SCENARIOS.iter().for_each(|scenario| println!("{}", scenario.name));
        return ExitCode::SUCCESS;
    }
    let Some(scenario) = SCENARIOS.iter().find(|scenario| scenario.name == argument) else {
        eprintln!("usage: guard --list | guard SCENARIO");
        return ExitCode::from(2);
    };
    let ground = Ground::new();
    let work = (scenario.prepare)(&ground);
    let before = ground.device.counts();
    guard_measured(work);
    let counts = ground.device.counts() - before;
    println!("operations = {}", scenario.operations);
    println!("reads = {}", counts.reads());
    println!("read_bytes = {}", counts.of_kind(RequestKind::Read).bytes);
    println!("writes = {}", counts.writes());
    println!("written_bytes = {}", counts.of_kind(RequestKind::Write).bytes);
    println!("flushes = {}", counts.flushes());
    println!("write_throughs = {}", counts.write_throughs());
    ExitCode::SUCCESS
}
