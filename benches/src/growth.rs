//! Whether names cost more in a pool that has many: one thread, in memory, without a transport.
//!
//! `growth [FILES_MAX]`: fills a pool up to 10^4, 10^5 and so on to `FILES_MAX` files (10^6 unless
//! told) in directories of 10,000. At each it makes, looks up and removes 10,000 names in a new
//! directory, and prints the best of several rounds in names a second of processor time (other
//! work on the machine would else hide what is looked for), their ratios to the first row, and how
//! many pages were read from the device by it all.
#![expect(clippy::as_conversions, reason = "rates are printed as floating point")]

use std::sync::Arc;

use engine::api::{Caller, FileKind, FileSystem, Ino, NewInode};
use engine::{Pool, PoolCreateOptions, PoolOpenOptions};
use runtime::clock::SystemClock;
use rustix::time::{ClockId, clock_gettime};
use storage::device::{CountingDevice, MemoryDevice, SharedDevice};

/// Bytes of the pool; memory holds what is written.
const POOL_BYTES: u64 = 64 << 30;
/// Names in a directory: those that fill the pool and those that are measured.
const NAMES: u64 = 10_000;
/// Bytes of a name that is measured.
const NAME_BYTES: usize = 13;
const ROUNDS: usize = 7;
/// Lookups of each name in a round: one is over too soon to time.
const LOOKUPS: u64 = 5;

fn make(pool: &Pool, parent: Ino, name: &[u8], kind: FileKind) -> Ino {
    let new = NewInode::new(kind, 0o755);
    let made = pool.create(&Caller::root(), parent, name, new, None).expect("there is room");
    pool.forget(made.ino, 1);
    made.ino
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

/// Makes, looks up and removes names in a new directory; returns the rates.
fn round(pool: &Pool) -> [f64; 3] {
    let (root, caller) = (pool.root(), Caller::root());
    let directory = make(pool, root, b"measured", FileKind::Directory);
    // Side by side, as a message brings each where the last one was: strings of their own would lie
    // farther apart the more memory is in use, and waiting for them would be measured.
    let text: String = (0..NAMES).map(|number| format!("name-{number:08}")).collect();
    let names = || text.as_bytes().chunks_exact(NAME_BYTES);
    // What is dirty by now is no part of it.
    let settle = || pool.checkpoint().expect("memory does not fail");
    settle();
    let create = rate(NAMES, || {
        for name in names() {
            make(pool, directory, name, FileKind::Regular);
        }
    });
    settle();
    let lookup = rate(LOOKUPS * NAMES, || {
        for name in (0..LOOKUPS).flat_map(|_| names()) {
            let found = pool.lookup(&caller, directory, name).expect("it is there");
            pool.forget(found.ino, 1);
        }
    });
    let unlink = rate(NAMES, || {
        for name in names() {
            pool.unlink(&caller, directory, name, None).expect("it is there");
        }
    });
    pool.rmdir(&caller, root, b"measured", None).expect("it is empty");
    settle();
    [create, lookup, unlink]
}

fn main() {
    let files_max = std::env::args().nth(1).and_then(|text| text.parse().ok());
    let files_max: u64 = files_max.unwrap_or(1_000_000);
    let counting = CountingDevice::new(MemoryDevice::new("memory", POOL_BYTES));
    let device: SharedDevice = Arc::<CountingDevice>::clone(&counting);
    let clock = Arc::new(SystemClock::new());
    Pool::create(&device, clock.as_ref(), &PoolCreateOptions::new(POOL_BYTES, [1; 64]))
        .expect("a pool fits");
    let pool = Pool::open(device, clock, PoolOpenOptions::default()).expect("a new pool opens");
    let mut files = 0;
    let mut first = None;
    println!("| files | create | lookup, warm | unlink | ratios | pages read |");
    println!("|---:|---:|---:|---:|---|---:|");
    let sizes = (4..).map(|power| 10_u64.pow(power));
    for target in sizes.take_while(|target| *target <= files_max) {
        while files < target {
            let number = files / NAMES;
            let directory =
                make(&pool, pool.root(), format!("d{number}").as_bytes(), FileKind::Directory);
            for name in 0..NAMES {
                let name = format!("name-{name:08}");
                make(&pool, directory, name.as_bytes(), FileKind::Regular);
            }
            files += NAMES;
        }
        let reads_before = counting.counts().reads();
        let rounds: Vec<[f64; 3]> = (0..ROUNDS).map(|_| round(&pool)).collect();
        let rates =
            [0, 1, 2].map(|kind| rounds.iter().map(|rates| rates[kind]).fold(0.0, f64::max));
        let base = *first.get_or_insert(rates);
        println!(
            "| {files} | {:.0} | {:.0} | {:.0} | {:.2}, {:.2}, {:.2} | {} |",
            rates[0],
            rates[1],
            rates[2],
            rates[0] / base[0],
            rates[1] / base[1],
            rates[2] / base[2],
            counting.counts().reads() - reads_before
        );
    }
}
