//! How fast the engine is without a transport: names and data on a memory device, one thread.
//!
//! `in-process [FILES [create]]`: prints a table of operations a second and of bytes of log each.
#![expect(clippy::as_conversions, reason = "rates are printed as floating point")]

use std::sync::Arc;
use std::time::Instant;

use engine::api::{Caller, FileKind, FileSystem, NewInode};
use engine::{Pool, PoolCreateOptions, PoolOpenOptions};
use runtime::clock::SystemClock;
use storage::device::{MemoryDevice, SharedDevice};

/// Bytes of the pool.
const POOL_BYTES: u64 = 64 << 30;
/// Bytes of the file that is streamed.
const STREAM_BYTES: u64 = 1 << 30;

fn time(pool: &Pool, name: &str, count: u64, body: impl FnOnce()) {
    let log_before = pool.status().journal.record_bytes;
    let start = Instant::now();
    body();
    let seconds = start.elapsed().as_secs_f64();
    let log = pool.status().journal.record_bytes - log_before;
    println!(
        "{name:<24} {:>12.0} /s {:>9.2} us {:>9.0} B of log each",
        count as f64 / seconds,
        seconds * 1e6 / count as f64,
        log as f64 / count as f64
    );
}

fn main() {
    let files: u64 = std::env::args().nth(1).and_then(|text| text.parse().ok()).unwrap_or(200_000);
    let device: SharedDevice = MemoryDevice::new("memory", POOL_BYTES);
    let clock = Arc::new(SystemClock::new());
    Pool::create(&device, clock.as_ref(), &PoolCreateOptions::new(POOL_BYTES, [1; 64]))
        .expect("a pool fits");
    let pool = Pool::open(device, clock, PoolOpenOptions::default()).expect("a new pool opens");
    let (root, caller) = (pool.root(), Caller::root());
    let new = NewInode::new(FileKind::Regular, 0o644);
    let name = |number: u64| format!("file-{number:08}").into_bytes();

    time(&pool, "create", files, || {
        for number in 0..files {
            let attr = pool.create(&caller, root, &name(number), new, None).expect("creates");
            pool.forget(attr.ino, 1);
        }
    });
    if std::env::args().nth(2).is_some() {
        return;
    }
    time(&pool, "lookup, warm", files, || {
        for number in 0..files {
            let attr = pool.lookup(&caller, root, &name(number)).expect("is there");
            pool.forget(attr.ino, 1);
        }
    });
    time(&pool, "readdir", files, || {
        let mut count = 0;
        pool.readdir(&Caller::root(), root, 0, &mut |_| {
            count += 1;
            true
        })
        .expect("lists");
        assert_eq!(count, files + 2);
    });
    time(&pool, "write 4 KiB each", files, || {
        let data = vec![7; 4096];
        for number in 0..files {
            let attr = pool.lookup(&caller, root, &name(number)).expect("is there");
            pool.write(&caller, attr.ino, 0, &data).expect("writes");
            pool.forget(attr.ino, 1);
        }
    });
    time(&pool, "sync", 1, || pool.sync().expect("syncs"));
    time(&pool, "write 4 KiB + fsync", files / 10, || {
        let data = vec![8; 4096];
        for number in 0..files / 10 {
            let attr = pool.lookup(&caller, root, &name(number)).expect("is there");
            pool.write(&caller, attr.ino, 0, &data).expect("writes");
            pool.fsync(&Caller::root(), attr.ino, false).expect("syncs");
            pool.forget(attr.ino, 1);
        }
    });
    time(&pool, "unlink", files, || {
        for number in 0..files {
            pool.unlink(&caller, root, &name(number), None).expect("unlinks");
        }
    });
    let attr = pool.create(&caller, root, b"stream", new, None).expect("creates");
    let chunk = vec![9; 1 << 20];
    time(&pool, "stream write, MiB", STREAM_BYTES >> 20, || {
        for at in (0..STREAM_BYTES).step_by(1 << 20) {
            pool.write(&caller, attr.ino, at, &chunk).expect("writes");
        }
        pool.fsync(&Caller::root(), attr.ino, false).expect("syncs");
    });
    time(&pool, "stream read, MiB", STREAM_BYTES >> 20, || {
        let mut into = Vec::new();
        for at in (0..STREAM_BYTES).step_by(1 << 20) {
            into.clear();
            pool.read(&Caller::root(), attr.ino, at, 1 << 20, &mut into).expect("reads");
            assert_eq!(into[12345], 9);
        }
    });
}
