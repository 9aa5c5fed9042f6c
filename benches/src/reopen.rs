//! How long an open after a crash takes: a pool with as much active log as its bounds allow.
//!
//! `reopen [FILE]`: on a memory device, and on FILE if one is named (made, 8 GiB sparse, removed).
#![expect(clippy::as_conversions, reason = "times are printed as floating point")]

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use engine::api::{Caller, FileKind, FileSystem, NewInode};
use engine::{Pool, PoolCreateOptions, PoolOpenOptions};
use runtime::clock::SystemClock;
use storage::device::{FileDevice, FileOptions, MemoryDevice, SharedDevice};

/// Bytes of the pool.
const POOL_BYTES: u64 = 8 << 30;
/// Times that the pool crashes.
const ROUNDS: usize = 7;

fn open(device: &SharedDevice) -> Pool {
    let clock = Arc::new(SystemClock::new());
    Pool::open(Arc::clone(device), clock, PoolOpenOptions::default()).expect("the pool opens")
}

fn measure(name: &str, device: &SharedDevice) {
    let create = PoolCreateOptions::new(POOL_BYTES, [1; 64]);
    Pool::create(device, &SystemClock::new(), &create).expect("a pool fits");
    let new = NewInode::new(FileKind::Regular, 0o644);
    let mut number = 0;
    for round in 0..ROUNDS {
        let pool = open(device);
        // So many that the bounds on log and dirty pages are reached again and again.
        for _ in 0..60_000 + 7_000 * round {
            let name = format!("file-{number:08}");
            let attr = pool.create(&Caller::root(), pool.root(), name.as_bytes(), new, None);
            pool.forget(attr.expect("there is room").ino, 1);
            number += 1;
        }
        pool.sync().expect("nothing fails");
        drop(pool);
        let start = Instant::now();
        let pool = open(device);
        let milliseconds = start.elapsed().as_secs_f64() * 1e3;
        let recovery = pool.status().recovery;
        println!(
            "{name}: {milliseconds:>7.1} ms, {:>8} bytes of log, {:>5} pages",
            recovery.log_bytes, recovery.pages
        );
        pool.close().expect("nothing fails");
    }
}

fn main() {
    measure("memory", &(MemoryDevice::new("memory", POOL_BYTES) as SharedDevice));
    if let Some(path) = std::env::args().nth(1) {
        let file = FileDevice::create(Path::new(&path), POOL_BYTES, FileOptions::default());
        measure("file", &(file.expect("the file can be made") as SharedDevice));
        std::fs::remove_file(&path).expect("it was just made");
    }
}
