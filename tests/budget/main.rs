//! What operations may cost, counted in requests to the device, so that it never flickers.

mod ahead;
mod appends;
mod bounds;
mod checking;
mod cleaning;
mod cold;
mod deleting;
mod listing;
mod looks;
mod lsn;
mod placement;
mod sending;
mod stalls;
mod striped;
mod together;
mod touch;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use engine::api::{Caller, FileKind, FileSystem, Ino, NewInode, RenameMode, SetAttr, XattrMode};
use engine::{Pool, PoolCreateOptions, PoolOpenOptions};
use runtime::clock::ManualClock;
use runtime::prng::Prng;
use storage::counters::IoCounts;
use storage::device::{
    CountingDevice, Device, DeviceInfo, DeviceOperation, IoPurpose, MemoryDevice, RequestKind,
    SharedDevice, Ticket,
};

/// A pool whose requests are counted.
struct Counted {
    device: Arc<CountingDevice>,
    clock: Arc<ManualClock>,
    pool: Pool,
}

fn counting(bytes: u64) -> Arc<CountingDevice> {
    CountingDevice::new(MemoryDevice::new("memory", bytes))
}

fn create(device: &Arc<CountingDevice>, bytes: u64, block_shift: u8) {
    let mut options = PoolCreateOptions::new(bytes, [3; 64]);
    options.block_shift = block_shift;
    let shared: SharedDevice = Arc::<CountingDevice>::clone(device);
    Pool::create(&shared, &ManualClock::new(), &options).expect("a pool fits");
}

fn open(device: &Arc<CountingDevice>) -> Counted {
    let clock = Arc::new(ManualClock::new());
    let shared: SharedDevice = Arc::<CountingDevice>::clone(device);
    let pool = Pool::open(shared, clock.clone(), PoolOpenOptions::default()).expect("a pool opens");
    Counted { device: Arc::clone(device), clock, pool }
}

impl Counted {
    fn new(bytes: u64, block_shift: u8) -> Counted {
        let device = counting(bytes);
        create(&device, bytes, block_shift);
        open(&device)
    }

    fn make(&self, parent: Ino, name: &str, kind: FileKind) -> Ino {
        let new = NewInode::new(kind, 0o755);
        let made = self.pool.create(&Caller::root(), parent, name.as_bytes(), new, None);
        let made = made.expect("there is room");
        self.pool.forget(made.ino, 1);
        made.ino
    }

    /// Returns what `work` asks of the device.
    fn cost(&self, work: impl FnOnce()) -> IoCounts {
        let before = self.device.counts();
        work();
        self.device.counts() - before
    }

    fn close(self) -> Arc<CountingDevice> {
        self.pool.close().expect("a pool closes");
        self.device
    }
}

#[test]
fn creating_sixteen_tebibytes_writes_at_most_64_pages() {
    let device = counting(16 << 40);
    create(&device, 16 << 40, 14);
    let written = device.counts().of_kind(RequestKind::Write);
    println!("{} requests, {} pages", written.requests, written.bytes / 4096);
    assert!(written.bytes <= 64 * 4096, "{written:?}");
}

/// Operations on names ask nothing of the device, and take few bytes of log.
#[test]
fn names_cost_no_requests_and_little_log() {
    const COUNT: u64 = 1000;
    let counted = Counted::new(1 << 30, 14);
    let (pool, caller, root) = (&counted.pool, Caller::root(), counted.pool.root());
    let top = counted.make(root, "top", FileKind::Directory);
    let run = |what: &str, work: &dyn Fn(u64)| {
        let log_before = pool.status().journal.record_bytes;
        let cost = counted.cost(|| (0..COUNT).for_each(work));
        let log = (pool.status().journal.record_bytes - log_before) / COUNT;
        println!("{what}: {log} bytes of log each, {cost:?}");
        assert_eq!(cost.writes() + cost.flushes(), 0, "{what}: {cost:?}");
        assert_eq!(cost.reads(), 0, "{what}: {cost:?}");
        assert!(log <= 600, "{what}: {log} bytes of log each");
    };
    run("create", &|number| {
        counted.make(top, &format!("file-{number:06}"), FileKind::Regular);
    });
    let find = |number: u64| {
        let name = format!("file-{number:06}");
        let found = pool.lookup(&caller, top, name.as_bytes()).expect("it was made");
        pool.forget(found.ino, 1);
        found.ino
    };
    run("chmod", &|number| {
        let change = SetAttr { mode: Some(0o600), ..SetAttr::default() };
        pool.setattr(&caller, find(number), &change, None).expect("it may");
    });
    run("setxattr of a security label", &|number| {
        let label = b"system_u:object_r:user_home_t:s0";
        let set =
            pool.setxattr(&caller, find(number), b"security.selinux", label, XattrMode::Set, None);
        set.expect("it may");
    });
    run("rename", &|number| {
        let (from, to) = (format!("file-{number:06}"), format!("name-{number:06}"));
        let names = ((top, from.as_bytes()), (top, to.as_bytes()));
        pool.rename(&caller, names.0, names.1, RenameMode::Replace, None).expect("it may");
    });
    let before = pool.status().journal.transactions;
    run("unlink", &|number| {
        let name = format!("name-{number:06}");
        pool.unlink(&caller, top, name.as_bytes(), None).expect("it may");
    });
    // One takes the name away; one frees eight files.
    let transactions = pool.status().journal.transactions - before;
    assert!(transactions <= COUNT * 9 / 8 + 1, "{transactions} transactions for {COUNT} files");
}

#[test]
fn a_small_fsync_is_one_write_that_is_durable() {
    let counted = Counted::new(256 << 20, 14);
    let root = counted.pool.root();
    for length in [1_usize, 4096, 10_000, 16 << 10, 32 << 10] {
        for round in 0..10 {
            let ino = counted.make(root, &format!("f{length}-{round}"), FileKind::Regular);
            let data = vec![7; length];
            counted.pool.write(&Caller::root(), ino, 0, &data).expect("there is room");
            let cost = counted
                .cost(|| counted.pool.fsync(&Caller::root(), ino, false).expect("nothing fails"));
            let asked = (cost.writes(), cost.write_throughs(), cost.flushes(), cost.reads());
            assert_eq!(asked, (1, 1, 0, 0), "{length} bytes, round {round}: {cost:?}");
        }
    }
}

/// Goal: a full segment is sealed when nobody waits for it; a writer seals one only when two wait.
/// Method: data writes are counted, of writers that others clear up behind and of some that nobody
/// does.
#[test]
fn full_segments_are_sealed_when_nobody_waits() {
    const WAITING_MAX: u64 = 2;
    let counted = Counted::new(256 << 20, 14);
    let ino = counted.make(counted.pool.root(), "f", FileKind::Regular);
    let data = vec![7; 1 << 20];
    let write = |mebibytes: std::ops::Range<u64>| {
        let cost = counted.cost(|| {
            for at in mebibytes {
                let written = counted.pool.write(&Caller::root(), ino, at << 20, &data);
                written.expect("there is room");
            }
        });
        cost.of(IoPurpose::Data, RequestKind::Write).requests
    };
    let sealed = |cost: IoCounts| cost.of(IoPurpose::Data, RequestKind::Write).requests;
    for at in 0..8 {
        assert_eq!(write(at..at + 1), 0, "the writer waited for mebibyte {at}");
        assert_eq!(sealed(counted.cost(|| counted.pool.run_deferred_work())), 1, "mebibyte {at}");
    }
    // A segment has room for 63 blocks.
    let full = (18 * 64) / 63 - 8;
    assert_eq!(write(8..18), full - WAITING_MAX);
    let rest = sealed(
        counted.cost(|| counted.pool.fsync(&Caller::root(), ino, false).expect("nothing fails")),
    );
    assert_eq!(rest, WAITING_MAX + 1, "and what fills");
}

/// Writes files with `contents`, syncs, and reads them again after a crash; returns how many
/// transactions that took, beside those that made the files.
fn transactions_to_install(contents: &[Vec<u8>]) -> u64 {
    let counted = Counted::new(256 << 20, 14);
    let (root, pool, caller) = (counted.pool.root(), &counted.pool, Caller::root());
    let names = (0..contents.len()).map(|number| format!("f{number}"));
    let files: Vec<Ino> = names.map(|name| counted.make(root, &name, FileKind::Regular)).collect();
    let before = pool.status().journal.transactions;
    for (ino, content) in files.iter().zip(contents) {
        pool.write(&caller, *ino, 0, content).expect("there is room");
        pool.run_deferred_work();
    }
    pool.sync().expect("nothing fails");
    let transactions = pool.status().journal.transactions - before;
    let device = Arc::clone(&counted.device);
    std::mem::forget(counted);
    let again = open(&device);
    for (ino, content) in files.iter().zip(contents) {
        let mut read = Vec::new();
        again.pool.read(&Caller::root(), *ino, 0, 400_000, &mut read).expect("nothing fails");
        assert!(read == *content, "{ino:?}");
    }
    transactions
}

/// Goal: small files that wait together go into their inodes together, 32 at most in a
/// transaction; larger ones among them, and each file's content, are as they would be alone.
/// Method: transactions are counted, and the pool is read again after a crash.
#[test]
fn small_files_are_installed_together() {
    const TOGETHER_MAX: u64 = 32;
    let bytes = |number: u64, length: u64| (0..length).map(move |at| at ^ number);
    let content = |number: u64, length: u64| {
        bytes(number, length).map(|byte| u8::try_from(byte % 251).expect("small")).collect()
    };
    let mut contents: Vec<Vec<u8>> =
        (0..250).map(|number| content(number, 2000 + number)).collect();
    let transactions = transactions_to_install(&contents);
    let fewest = 250 / TOGETHER_MAX + 1;
    assert!((fewest..fewest + 3).contains(&transactions), "{transactions} transactions");
    for (number, length) in [(10, 20_000), (100, 300_000), (200, 40_000)] {
        contents.insert(number, content(7, length));
    }
    let transactions = transactions_to_install(&contents);
    assert!((fewest..3 * fewest).contains(&transactions), "{transactions}, larger ones among them");
}

/// A file of at most 256 bytes is in its anode: no block is written, not even later.
#[test]
fn a_tiny_file_writes_no_block() {
    let counted = Counted::new(256 << 20, 14);
    let root = counted.pool.root();
    let cost = counted.cost(|| {
        for number in 0..100 {
            let ino = counted.make(root, &format!("f{number}"), FileKind::Regular);
            counted.pool.write(&Caller::root(), ino, 0, &[7; 100]).expect("there is room");
            counted.pool.fsync(&Caller::root(), ino, false).expect("nothing fails");
        }
        counted.pool.sync().expect("nothing fails");
    });
    let data = cost.of(IoPurpose::Data, RequestKind::Write);
    let log = cost.of(IoPurpose::Journal, RequestKind::Write);
    println!("100 files of 100 bytes, each synced: {} bytes of log", log.bytes);
    let asked = (data.requests, log.requests, cost.write_throughs());
    assert_eq!(asked, (0, 100, 100), "{cost:?}");
    assert!(log.bytes <= 100 * 8192, "{cost:?}");
}

/// A cold lookup with getattr reads at most four pages, a warm one none.
#[test]
fn a_lookup_reads_few_pages() {
    const DIRECTORIES: u64 = 20;
    const FILES: u64 = 1500;
    let counted = Counted::new(1 << 30, 14);
    let root = counted.pool.root();
    for directory in 0..DIRECTORIES {
        let at = counted.make(root, &format!("d{directory}"), FileKind::Directory);
        for file in 0..FILES {
            counted.make(at, &format!("f{file}"), FileKind::Regular);
        }
    }
    let counted = open(&counted.close());
    let caller = Caller::root();
    let find = |parent: Ino, name: &str| {
        let found = counted.pool.lookup(&caller, parent, name.as_bytes()).expect("it is there");
        counted.pool.getattr(&Caller::root(), found.ino).expect("it is there");
        counted.pool.forget(found.ino, 1);
        found.ino
    };
    // What is above: the root, the maps.
    find(root, "d0");
    let mut most = 0;
    let mut sum = 0;
    for directory in 0..DIRECTORIES {
        let at = find(root, &format!("d{directory}"));
        // The interior of the directory's own map.
        find(at, "f0");
        for file in [700, 1400, 33] {
            let cold = counted
                .cost(|| {
                    find(at, &format!("f{file}"));
                })
                .reads();
            most = most.max(cold);
            sum += cold;
            let warm = counted.cost(|| {
                find(at, &format!("f{file}"));
            });
            assert_eq!(warm.request_count(), 0, "{warm:?}");
        }
    }
    println!("cold lookup and getattr: at most {most} pages, {sum} in {}", DIRECTORIES * 3);
    assert!(most <= 4, "{most}");
}

/// A device that notes how many requests it was handed at once, and how many alone.
#[derive(Debug)]
struct Handed {
    inner: SharedDevice,
    together: AtomicUsize,
    alone: AtomicUsize,
}

impl Device for Handed {
    fn info(&self) -> &DeviceInfo {
        self.inner.info()
    }

    fn submit(&self, purpose: IoPurpose, operation: DeviceOperation) -> Ticket {
        self.alone.fetch_add(1, Ordering::Relaxed);
        self.inner.submit(purpose, operation)
    }

    fn submit_all(&self, purpose: IoPurpose, operations: Vec<DeviceOperation>) -> Vec<Ticket> {
        self.together.fetch_max(operations.len(), Ordering::Relaxed);
        self.inner.submit_all(purpose, operations)
    }
}

/// Goal: a listing with attributes reads the inodes of a page of names by one call. Method: a pool
/// that was just opened, a directory of which the names are in memory.
#[test]
fn a_listing_reads_the_inodes_of_a_page_together() {
    const FILES: u64 = 3000;
    let counted = Counted::new(1 << 30, 14);
    let at = counted.make(counted.pool.root(), "d", FileKind::Directory);
    for file in 0..FILES {
        counted.make(at, &format!("f{file}"), FileKind::Regular);
    }
    let inner: SharedDevice = counted.close();
    let (together, alone) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let device = Arc::new(Handed { inner, together, alone });
    let shared: SharedDevice = Arc::<Handed>::clone(&device);
    let clock = Arc::new(ManualClock::new());
    let pool = Pool::open(shared, clock, PoolOpenOptions::default()).expect("a pool opens");
    pool.readdir(&Caller::root(), at, 0, &mut |_| true).expect("it lists");
    device.together.store(0, Ordering::Relaxed);
    device.alone.store(0, Ordering::Relaxed);
    let mut files = Vec::new();
    let listed = pool.readdir_plus(&Caller::root(), at, 0, &mut |_, attr| {
        files.extend(attr.map(|attr| attr.ino));
        files.len() < 20
    });
    listed.expect("it lists");
    let together = device.together.load(Ordering::Relaxed);
    let maps = device.alone.load(Ordering::Relaxed);
    println!("inodes of {} files: {together} pages by one call, {maps} of the map", files.len());
    assert!(together > files.len() / 2 && maps <= 3, "{together} pages at once, {maps} alone");
    // It took no reference at the last.
    files.pop();
    files.into_iter().for_each(|file| pool.forget(file, 1));
}

/// Goal: the same in one directory of ten million names. Method: names in no order, the interior
/// map pages cached by those looked up before.
#[test]
#[ignore = "a soak: ten million names"]
fn a_lookup_in_a_huge_directory_reads_few_pages() {
    const LOOKUPS: u64 = 3000;
    let files = std::env::var("HOLDFAST_FILES").ok().and_then(|text| text.parse().ok());
    let files: u64 = files.unwrap_or(10_000_000);
    let counted = Counted::new(64 << 30, 14);
    let root = counted.pool.root();
    for file in 0..files {
        counted.make(root, &format!("f{file}"), FileKind::Regular);
    }
    let counted = open(&counted.close());
    let caller = Caller::root();
    let mut prng = runtime::prng::Prng::from_seed(1);
    let mut costs: Vec<u64> = (0..LOOKUPS)
        .map(|_| {
            let name = format!("f{}", prng.below(files));
            let cost = counted.cost(|| {
                let found = counted.pool.lookup(&caller, root, name.as_bytes());
                counted.pool.forget(found.expect("it is there").ino, 1);
            });
            cost.reads()
        })
        .skip(1000)
        .collect();
    costs.sort_unstable();
    let sum: u64 = costs.iter().sum();
    let share = |of: usize| costs[costs.len() * of / 1000];
    println!(
        "{files} names: {sum} pages in {} lookups, median {}, 99 % {}, most {}",
        costs.len(),
        share(500),
        share(990),
        share(999)
    );
    // A page that split twice more than the number of pages lets expect costs a map page more.
    assert!(share(990) <= 4, "one lookup of a hundred reads more than four pages");
}

#[test]
fn a_sequential_read_is_one_request_for_a_piece() {
    const BYTES: u64 = 32 << 20;
    let counted = Counted::new(1 << 30, 14);
    let ino = counted.make(counted.pool.root(), "file", FileKind::Regular);
    let data = vec![9; 1 << 20];
    for at in 0..BYTES >> 20 {
        counted.pool.write(&Caller::root(), ino, at << 20, &data).expect("there is room");
    }
    let counted = open(&counted.close());
    let cost = counted.cost(|| {
        for at in 0..BYTES >> 20 {
            let mut bytes = Vec::new();
            counted
                .pool
                .read(&Caller::root(), ino, at << 20, 1 << 20, &mut bytes)
                .expect("it reads");
            assert_eq!(bytes.len(), 1 << 20);
        }
    });
    let reads = cost.of(IoPurpose::Data, RequestKind::Read);
    println!("32 MiB in reads of 1 MiB: {} requests, {} bytes", reads.requests, reads.bytes);
    // A segment of 1 MiB ends with its summary, so a read of 1 MiB meets two pieces.
    assert!(reads.requests <= 2 * (BYTES >> 20) + 1, "{cost:?}");
    assert!(reads.bytes <= BYTES * 102 / 100, "{cost:?}");
}

/// Overwrites pieces of `1 << piece_shift` bytes of a file in blocks of `1 << block_shift`.
fn overwrite(block_shift: u8, piece_shift: u8, log_hundredths: u64) {
    const BYTES: u64 = 64 << 20;
    let counted = Counted::new(1 << 30, block_shift);
    let ino = counted.make(counted.pool.root(), "file", FileKind::Regular);
    let data = vec![9; 1 << 20];
    for at in 0..BYTES >> 20 {
        counted.pool.write(&Caller::root(), ino, at << 20, &data).expect("there is room");
    }
    counted.pool.sync().expect("there is room");
    counted.pool.checkpoint().expect("nothing fails");
    let block = 1_u64 << piece_shift;
    let data = vec![5; 1 << piece_shift];
    let log_before = counted.pool.status().journal.record_bytes;
    let mut prng = Prng::from_seed(6);
    let cost = counted.cost(|| {
        for _ in 0..BYTES / block {
            let at = prng.below(BYTES / block) * block;
            counted.pool.write(&Caller::root(), ino, at, &data).expect("there is room");
            counted.clock.advance_ns(100_000);
        }
        counted.pool.sync().expect("there is room");
    });
    let log = counted.pool.status().journal.record_bytes - log_before;
    let reads = cost.of(IoPurpose::Data, RequestKind::Read).requests;
    let written = cost.of(IoPurpose::Data, RequestKind::Write).bytes
        + cost.of(IoPurpose::Summary, RequestKind::Write).bytes;
    let chunks = cost.of(IoPurpose::Journal, RequestKind::Write).bytes;
    println!(
        "{block} of blocks of {}: data {} thousandths, records {}, log written {} of {BYTES} bytes",
        1 << block_shift,
        written * 1000 / BYTES,
        log * 1000 / BYTES,
        chunks * 1000 / BYTES
    );
    assert_eq!(reads, 0, "{cost:?}");
    assert!(written * 100 <= BYTES * 105, "data: {cost:?}");
    assert!(log * 100 <= BYTES * log_hundredths, "log: {log}");
    assert!(chunks * 100 <= BYTES * log_hundredths, "log: {cost:?}");
}

#[test]
fn overwriting_blocks_of_16_kib_costs_their_bytes() {
    overwrite(14, 14, 5);
}

#[test]
fn overwriting_blocks_of_4_kib_costs_their_bytes() {
    overwrite(12, 12, 15);
}

/// The leaves of the map are split, and nothing of the old blocks is read or written again.
#[test]
fn overwriting_4_kib_of_blocks_of_16_kib_costs_their_bytes() {
    overwrite(14, 12, 15);
}

/// Returns the requests that an open after a crash makes in a pool with so many files.
fn open_after_crash(files: u64) -> IoCounts {
    const PER_DIRECTORY: u64 = 1000;
    const LAST: u64 = 500;
    let counted = Counted::new(4 << 30, 14);
    let root = counted.pool.root();
    let mut at = root;
    for file in 0..files {
        if file % PER_DIRECTORY == 0 {
            at = counted.make(root, &format!("d{}", file / PER_DIRECTORY), FileKind::Directory);
        }
        counted.make(at, &format!("f{file}"), FileKind::Regular);
    }
    counted.pool.sync().expect("there is room");
    counted.pool.checkpoint().expect("nothing fails");
    // The same work whatever was there before.
    for file in 0..LAST {
        counted.make(at, &format!("last{file}"), FileKind::Regular);
    }
    counted.pool.sync().expect("there is room");
    let device = Arc::clone(&counted.device);
    drop(counted.pool);
    let before = device.counts();
    let counted = open(&device);
    assert!(counted.pool.status().recovery.was_needed);
    device.counts() - before
}

#[test]
fn an_open_after_a_crash_costs_the_same_however_many_files() {
    let (few, many) = (open_after_crash(1000), open_after_crash(100_000));
    let bytes = |counts: &IoCounts| counts.of_kind(RequestKind::Read).bytes;
    println!("1,000 files: {} reads, {} bytes", few.reads(), bytes(&few));
    println!("100,000 files: {} reads, {} bytes", many.reads(), bytes(&many));
    assert!(bytes(&many) * 10 <= bytes(&few) * 12, "{few:?} {many:?}");
    assert!(many.reads() * 10 <= few.reads() * 12 + 20, "{few:?} {many:?}");
}

#[test]
#[ignore = "a soak: a million files"]
fn an_open_after_a_crash_costs_the_same_with_a_million_files() {
    let (few, many) = (open_after_crash(1000), open_after_crash(1_000_000));
    let bytes = |counts: &IoCounts| counts.of_kind(RequestKind::Read).bytes;
    assert!(bytes(&many) * 10 <= bytes(&few) * 12, "{few:?} {many:?}");
}
