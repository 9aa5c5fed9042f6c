//! What snapshots cost as filesets grow, counted on a device in memory, and what they leave of
//! speed.
//!
//! `snapshots [FILES [SNAPSHOTS]]`, 10^6 and 200 unless told:
//!
//! - what a snapshot asks of the device when its fileset has 10 files, and `FILES`;
//! - what the deletion of a snapshot reads after every file in one directory of a hundred changed,
//!   and after one file of a hundred did, beside all metadata and beside the pages that differ;
//! - of a fileset of a tenth as many files: open, look up, create and overwrite without snapshots,
//!   and beside so many, once the paths were copied. In processor time, the best of several rounds.
#![expect(clippy::as_conversions, reason = "rates are printed as floating point")]

use std::sync::Arc;

use engine::api::{Caller, FileKind, FileSystem, Ino, NewInode};
use engine::{Pool, PoolCreateOptions, PoolOpenOptions};
use format::fileset::{FilesetName, NamePart};
use runtime::clock::SystemClock;
use runtime::prng::Prng;
use rustix::time::{ClockId, clock_gettime};
use storage::counters::IoCounts;
use storage::device::{CountingDevice, MemoryDevice, RequestKind, SharedDevice};

/// Bytes of the pool; memory holds what is written.
const POOL_BYTES: u64 = 64 << 30;
const PAGE_BYTES: u64 = 4096;
const FILES_PER_DIRECTORY: u64 = 1000;
/// Small enough to lie in the inode, so that all that a snapshot shares are pages.
const CONTENT_BYTES: usize = 40;
/// One of so many directories, or files, changes between a snapshot and its deletion.
const CHANGED_SHARE: u64 = 100;
/// Steps of the background within which a deletion has to end.
const TICKS_MAX: u32 = 10_000_000;
/// Names that a round makes, looks up and overwrites.
const NAMES: u64 = 10_000;
const ROUNDS: usize = 5;
/// Overwrites of each file in a round: one is over too soon to time.
const OVERWRITES: u64 = 5;

struct Bench {
    device: Arc<CountingDevice>,
    pool: Pool,
}

fn part(text: &str) -> NamePart {
    NamePart::new(text).expect("a name of a few letters")
}

fn root_fileset() -> FilesetName {
    "root".parse().expect("the name of the first fileset")
}

impl Bench {
    fn new() -> Bench {
        let device = CountingDevice::new(MemoryDevice::new("memory", POOL_BYTES));
        let shared: SharedDevice = Arc::<CountingDevice>::clone(&device);
        let options = PoolCreateOptions::new(POOL_BYTES, [1; 64]);
        Pool::create(&shared, &SystemClock::new(), &options).expect("a pool fits");
        Self::open(device)
    }

    fn open(device: Arc<CountingDevice>) -> Bench {
        let shared: SharedDevice = Arc::<CountingDevice>::clone(&device);
        let clock = Arc::new(SystemClock::new());
        let pool = Pool::open(shared, clock, PoolOpenOptions::default()).expect("a pool opens");
        Bench { device, pool }
    }

    /// Closes the pool and opens it with nothing in memory.
    fn reopened(self) -> Bench {
        self.pool.close().expect("memory does not fail");
        Self::open(self.device)
    }

    /// Returns what `work` asks of the device.
    fn cost(&self, work: impl FnOnce(&Pool)) -> IoCounts {
        let before = self.device.counts();
        work(&self.pool);
        self.device.counts() - before
    }

    fn make(&self, parent: Ino, name: &str, kind: FileKind) -> Ino {
        let new = NewInode::new(kind, 0o755);
        let made = self.pool.create(&Caller::root(), parent, name.as_bytes(), new, None);
        let made = made.expect("there is room");
        self.pool.forget(made.ino, 1);
        made.ino
    }

    fn write(&self, ino: Ino, byte: u8) {
        let written = self.pool.write(&Caller::root(), ino, 0, &[byte; CONTENT_BYTES]);
        written.expect("there is room");
    }

    /// Makes files until there are `count`; returns them in the order of their directories.
    fn fill(&self, count: u64) -> Vec<Ino> {
        let mut files = Vec::new();
        let mut directory = self.pool.root();
        for number in 0..count {
            if number % FILES_PER_DIRECTORY == 0 {
                let name = format!("directory {}", number / FILES_PER_DIRECTORY);
                directory = self.make(self.pool.root(), &name, FileKind::Directory);
            }
            let ino = self.make(directory, &format!("file {number}"), FileKind::Regular);
            self.write(ino, 1);
            files.push(ino);
        }
        self.pool.sync().expect("memory does not fail");
        self.pool.checkpoint().expect("memory does not fail");
        files
    }

    fn take(&self, snapshot: &str) {
        let taken =
            self.pool.fileset_admin().create_snapshot(&root_fileset(), &part(snapshot), [1; 16]);
        taken.expect("there is room");
    }

    fn delete(&self, snapshot: &str) {
        self.pool
            .fileset_admin()
            .delete_snapshot(&root_fileset(), &part(snapshot))
            .expect("nobody holds it");
        for _ in 0..TICKS_MAX {
            self.pool.tick().expect("memory does not fail");
            if !self.pool.fileset_admin().is_freeing().expect("memory does not fail") {
                return;
            }
        }
        panic!("a deletion does not end: {:?}", self.pool.jobs());
    }

    /// Closes the pool, and returns how many pages are in use, what several share once. All of them
    /// are metadata: what files hold lies in their inodes.
    fn pages(self) -> (Bench, u64) {
        self.pool.close().expect("memory does not fail");
        let shared: SharedDevice = Arc::<CountingDevice>::clone(&self.device);
        let report = check::run(shared, check::CheckOptions::default(), &mut |_| ());
        assert!(report.is_clean(), "{}", report.to_text());
        let bench = Self::open(self.device);
        let bytes = report.totals.fragments << bench.pool.status().geometry.fragment_shift;
        (bench, bytes / PAGE_BYTES)
    }
}

/// What a snapshot costs, whatever there is.
fn constant(files: u64) {
    println!("| files | writes of a snapshot | flushes | reads | bytes written |");
    println!("|---:|---:|---:|---:|---:|");
    for count in [10, files] {
        let bench = Bench::new();
        bench.fill(count);
        let cost = bench.cost(|_| bench.take("a"));
        let written = cost.of_kind(RequestKind::Write).bytes;
        println!(
            "| {count} | {} | {} | {} | {written} |",
            cost.writes(),
            cost.flushes(),
            cost.reads()
        );
    }
}

/// What deletions read.
fn deletion(files: u64) {
    let bench = Bench::new();
    let inos = bench.fill(files);
    println!("\n| changed since it | pages in all | differ, of both | read | of all | of those |");
    println!("|---|---:|---:|---:|---:|---:|");
    let mut random = Prng::from_seed(5);
    let directories = files.div_ceil(FILES_PER_DIRECTORY);
    let per_directory = usize::try_from(FILES_PER_DIRECTORY).expect("small");
    let in_directories: Vec<Ino> = inos
        .chunks(per_directory)
        .enumerate()
        .filter(|(number, _)| (*number as u64).is_multiple_of(CHANGED_SHARE))
        .flat_map(|(_, files)| files.to_vec())
        .collect();
    let at_random = (0..files / CHANGED_SHARE)
        .map(|_| inos[usize::try_from(random.below(files)).expect("small")])
        .collect();
    let of_directories =
        format!("{} of {directories} directories", directories.div_ceil(CHANGED_SHARE));
    let of_files = format!("{} of {files} files, at random", files / CHANGED_SHARE);
    let cases = [(of_directories, in_directories), (of_files, at_random)];
    let mut bench = bench;
    for (what, changed) in cases {
        bench.take("c");
        for ino in changed {
            bench.write(ino, 2);
        }
        let (with, before) = bench.pages();
        let cost = with.cost(|_| with.delete("c"));
        let read = cost.of_kind(RequestKind::Read).bytes / PAGE_BYTES;
        let (without, after) = with.pages();
        // Each page that the snapshot alone had was changed in the fileset: there are two of it.
        let differ = 2 * (before - after);
        println!(
            "| {what} | {before} | {differ} | {read} | {:.2} % | {:.2} |",
            100.0 * read as f64 / before as f64,
            read as f64 / differ as f64
        );
        bench = without;
    }
}

/// Returns the processor time of this thread so far, in seconds.
fn processor_seconds() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// Returns how many of `count` things `work` does in a second of processor time.
fn rate(count: u64, work: impl FnOnce()) -> f64 {
    let start = processor_seconds();
    work();
    count as f64 / (processor_seconds() - start)
}

/// Opens again, looks up, makes and overwrites; returns the rates, the first as opens a second.
fn round(bench: Bench, number: usize, names: u64) -> (Bench, [f64; 4]) {
    bench.pool.close().expect("memory does not fail");
    let device = bench.device;
    let mut opened = None;
    let open = rate(1, || opened = Some(Bench::open(Arc::clone(&device))));
    let bench = opened.expect("opened");
    let caller = Caller::root();
    let directories = |name: u64| format!("directory {}", name / FILES_PER_DIRECTORY);
    let count = usize::try_from(names).expect("small");
    let mut found = Vec::new();
    let mut look = || {
        for name in 0..names {
            let directory =
                bench.pool.lookup(&caller, bench.pool.root(), directories(name).as_bytes());
            let directory = directory.expect("it is there").ino;
            let file = bench.pool.lookup(&caller, directory, format!("file {name}").as_bytes());
            let file = file.expect("it is there").ino;
            bench.pool.forget(directory, 1);
            bench.pool.forget(file, 1);
            found.push(file);
        }
    };
    look();
    let lookup = rate(names, look);
    let parent = bench.make(bench.pool.root(), &format!("round {number}"), FileKind::Directory);
    let create = rate(names, || {
        for name in 0..names {
            bench.make(parent, &format!("name {name}"), FileKind::Regular);
        }
    });
    // With what takes them to the device: each by itself only changes memory.
    let overwrite = |byte| {
        found.iter().take(count).for_each(|file| bench.write(*file, byte));
        bench.pool.sync().expect("memory does not fail");
    };
    // Once the paths were copied: what the first touch pays is counted by itself.
    overwrite(3);
    bench.pool.checkpoint().expect("memory does not fail");
    let overwrite = rate(OVERWRITES * names, || (0..OVERWRITES).for_each(|_| overwrite(4)));
    bench.pool.checkpoint().expect("memory does not fail");
    (bench, [open, lookup, create, overwrite])
}

/// What is left of speed beside snapshots.
fn beside(files: u64, snapshots: u64) {
    let mut bench = Bench::new();
    bench.fill(files);
    println!("\n| snapshots of {files} files | opens/s | lookups/s | creates/s | overwrites/s |");
    println!("|---:|---:|---:|---:|---:|");
    let mut first = None;
    let mut rounds = 0;
    for count in [0, snapshots] {
        for number in 0..count {
            bench.take(&format!("snapshot {number}"));
            let ino = bench.make(bench.pool.root(), &format!("after {number}"), FileKind::Regular);
            bench.write(ino, 5);
        }
        bench = bench.reopened();
        let mut best = [0.0_f64; 4];
        for _ in 0..ROUNDS {
            let (next, rates) = round(bench, rounds, files.min(NAMES));
            bench = next;
            rounds += 1;
            best = [0, 1, 2, 3].map(|kind| best[kind].max(rates[kind]));
        }
        let base = *first.get_or_insert(best);
        let column = |kind: usize| format!("{:.0} ({:.2})", best[kind], best[kind] / base[kind]);
        println!("| {count} | {} | {} | {} | {} |", column(0), column(1), column(2), column(3));
    }
}

fn main() {
    let mut told = std::env::args().skip(1).map(|text| text.parse().ok());
    let files = told.next().flatten().unwrap_or(1_000_000);
    let snapshots = told.next().flatten().unwrap_or(200);
    constant(files);
    deletion(files);
    beside(files / 10, snapshots);
}
