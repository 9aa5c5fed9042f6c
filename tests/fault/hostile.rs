//! Images that lie under good checksums: everything ends with a result or an error, never with a
//! panic, a hang or the end of memory.
//!
//! Each seed takes a pool (closed, or crashed with a log; fragments of 4 and of 1 KiB), writes
//! absurd numbers into fields of superblocks, pages, anodes, summaries or log records, makes the
//! checksums good again, and then opens, walks, reads, writes, renames, cuts, cleans, closes,
//! checks and opens again. A failure prints its seed; `HOLDFAST_HOSTILE=first..end` runs those
//! seeds.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use engine::vnode::api::{Attr, Caller, FileKind, FileSystem, Ino, NewInode, RenameMode, SetAttr};
use engine::{CreateOptions, OpenOptions, Pool};
use format::checksum::crc32c;
use format::geometry::JOURNAL_HEADS;
use format::ids::PoolId;
use format::journal::{CHUNK_HEADER_BYTES, ChunkHeader};
use format::page::{PAGE_BYTES, page_lsn, stamp};
use format::superblock::Superblock;
use storage::clock::ManualClock;
use storage::device::SharedDevice;
use storage::device::sim::{Image, SimDevice, SimOptions};
use storage::prng::Prng;

use super::content;

/// Seeds of a run without the variable.
const SEEDS: u64 = 500;
/// Names that a walk looks at.
const WALK_MAX: usize = 300;
/// Bytes of memory that no run of this program may pass.
const MEMORY_BYTES_MAX: u64 = 2 << 30;
/// Seconds after which a seed counts as hanging.
const SECONDS_MAX: u64 = 120;
const POOL_BYTES: u64 = 16 << 20;
/// What counts and positions are tried with.
const ABSURD: [u64; 24] = [
    0,
    1,
    2,
    3,
    7,
    15,
    31,
    62,
    63,
    64,
    127,
    255,
    4095,
    4096,
    0x7fff,
    0xffff,
    0x7fff_ffff,
    0xffff_ffff,
    1 << 40,
    (1 << 48) - 1,
    1 << 62,
    i64::MAX.unsigned_abs(),
    1 << 63,
    u64::MAX,
];

/// An image, and where its parts are.
struct Base {
    image: Image,
    superblock: Superblock,
    /// Offsets of pages with a header.
    pages: Vec<u64>,
    /// Offset and length of the chunks of the log, in order.
    chunks: Vec<(u64, usize)>,
}

fn open_on(device: &SharedDevice) -> Result<Pool, engine::OpenError> {
    Pool::open(Arc::clone(device), Arc::new(ManualClock::new()), OpenOptions::default())
}

fn make(pool: &Pool, parent: Ino, name: &str, kind: FileKind) -> Option<Ino> {
    let new = NewInode { kind, mode: 0o755, umask: 0, rdev: 0 };
    let made = pool.create(&Caller::root(), parent, name.as_bytes(), new).ok()?;
    pool.forget(made.ino, 1);
    Some(made.ino)
}

fn base(fragment_bytes: u32, block_shift: u8, is_closed: bool) -> Base {
    let device = SimDevice::new(POOL_BYTES, SimOptions::default());
    let shared: SharedDevice = Arc::<SimDevice>::clone(&device);
    let mut options = CreateOptions::new(POOL_BYTES, [5; 64]);
    options.geometry.fragment_bytes = fragment_bytes;
    options.block_shift = block_shift;
    Pool::create(&shared, &ManualClock::new(), &options).expect("a pool fits");
    let pool = open_on(&shared).expect("a new pool opens");
    let root = pool.root();
    let directory = make(&pool, root, "directory", FileKind::Directory).expect("room");
    for number in 0..140 {
        let parent = if number % 2 == 0 { root } else { directory };
        let file = make(&pool, parent, &format!("a file of number {number}"), FileKind::Regular);
        let file = file.expect("room");
        if number < 20 {
            let bytes = content(number, 3000 * (1 + usize::try_from(number).expect("small")));
            pool.write(&Caller::root(), file, number % 3 * 5000, &bytes).expect("room");
        }
    }
    let sparse = make(&pool, root, "sparse", FileKind::Regular).expect("room");
    for shift in [0, 15, 20, 30, 40] {
        pool.write(&Caller::root(), sparse, 1 << shift, b"here").expect("room");
    }
    let long = vec![b'x'; 1000];
    pool.symlink(&Caller::root(), root, b"long", &long).expect("room");
    pool.symlink(&Caller::root(), root, b"short", b"directory").expect("room");
    pool.sync().expect("nothing fails");
    pool.checkpoint().expect("nothing fails");
    for number in 0..6 {
        let file = make(&pool, directory, &format!("late {number}"), FileKind::Regular);
        let file = file.expect("room");
        pool.write(&Caller::root(), file, 0, &content(number, 4000)).expect("room");
        pool.fsync(file, false).expect("nothing fails");
    }
    if is_closed {
        pool.close().expect("nothing fails");
    }
    Base::of(device.durable_image())
}

impl Base {
    fn of(image: Image) -> Base {
        let mut bytes = [0; PAGE_BYTES];
        image.read(0, &mut bytes);
        let superblock = Superblock::decode(&bytes, 0).expect("whole");
        let mut pages = Vec::new();
        image.for_each_page(|offset, bytes| {
            pages.extend(bytes.starts_with(b"HFpg").then_some(offset));
        });
        let ring = superblock.geometry.journal_offset + JOURNAL_HEADS * 4096;
        let mut chunks = Vec::new();
        let ring_bytes = superblock.geometry.journal_bytes - JOURNAL_HEADS * 4096;
        let sector = u64::from(superblock.sector_bytes);
        let mut at = 0;
        while at < ring_bytes {
            let length = usize::try_from((ring_bytes - at).min(512 << 10)).expect("small");
            let mut bytes = vec![0; length];
            image.read(ring + at, &mut bytes);
            match ChunkHeader::decode(&bytes, superblock.pool_id) {
                Some((_, header, _)) => {
                    let length = usize::try_from(header.chunk_bytes).expect("small");
                    chunks.push((ring + at, length));
                    at += u64::from(header.chunk_bytes).next_multiple_of(sector);
                }
                None => at += sector,
            }
        }
        Base { image, superblock, pages, chunks }
    }

    /// Returns the image with a few lies in it.
    fn lying(&self, prng: &mut Prng) -> Image {
        let mut image = self.image.clone();
        for _ in 0..=prng.below(3) {
            match prng.below(12) {
                0 => self.lie_in_superblocks(prng, &mut image),
                1..=3 if !self.chunks.is_empty() => self.lie_in_log(prng, &mut image),
                _ => self.lie_in_page(prng, &mut image),
            }
        }
        image
    }

    fn lie_in_superblocks(&self, prng: &mut Prng, image: &mut Image) {
        let mut bytes = self.superblock.encode(0);
        // Most of what is behind the fields is zero, so aim at the fields.
        let end = if prng.below(3) == 0 { PAGE_BYTES } else { 304 };
        lie(prng, &mut bytes[32..end]);
        let size = self.image.size_bytes();
        for copy in 0..4_u16 {
            bytes[40..42].copy_from_slice(&copy.to_le_bytes());
            let crc = crc32c(&bytes[12..]);
            bytes[8..12].copy_from_slice(&crc.to_le_bytes());
            image.write(format::geometry::Geometry::superblock_offset(size, copy), &bytes);
        }
    }

    fn lie_in_page(&self, prng: &mut Prng, image: &mut Image) {
        let offset = self.pages[index_below(prng, self.pages.len())];
        let mut bytes = [0; PAGE_BYTES];
        image.read(offset, &mut bytes);
        let kind = bytes[18];
        match prng.below(4) {
            0 => lie(prng, &mut bytes[80..128]),
            1 => lie(prng, &mut bytes[8..128]),
            2 => lie(prng, &mut bytes[128..]),
            // Where most fields are.
            _ => lie(prng, &mut bytes[128..1024]),
        }
        // Slots of anodes and filesets have checksums of their own.
        if kind == 12 || kind == 13 {
            for slot in bytes[512..].chunks_mut(512) {
                if slot.iter().any(|&byte| byte != 0) {
                    let crc = crc32c(&slot[4..]);
                    slot[..4].copy_from_slice(&crc.to_le_bytes());
                }
            }
        }
        let lsn = page_lsn(&bytes);
        stamp(&mut bytes, lsn);
        image.write(offset, &bytes);
    }

    /// Lies in one chunk and makes the chain of those behind it good again.
    fn lie_in_log(&self, prng: &mut Prng, image: &mut Image) {
        let recent = self.chunks.len().saturating_sub(12);
        let first = recent + index_below(prng, self.chunks.len() - recent);
        let mut previous = None;
        for &(offset, length) in &self.chunks[first..] {
            let mut chunk = vec![0; length.min(512 << 10)];
            image.read(offset, &mut chunk);
            let payload =
                usize::try_from(u32::from_le_bytes(*chunk[20..].first_chunk().expect("a header")))
                    .expect("small");
            let end = (CHUNK_HEADER_BYTES + payload).min(chunk.len());
            match previous {
                None if prng.below(5) == 0 => lie(prng, &mut chunk[8..64]),
                None => lie(prng, &mut chunk[CHUNK_HEADER_BYTES..end]),
                Some(crc) => chunk[24..28].copy_from_slice(&u32::to_le_bytes(crc)),
            }
            let crc = crc32c(&chunk[8..end]);
            chunk[4..8].copy_from_slice(&crc.to_le_bytes());
            image.write(offset, &chunk);
            previous = Some(crc);
        }
    }
}

fn index_below(prng: &mut Prng, end: usize) -> usize {
    usize::try_from(prng.below(u64::try_from(end).expect("small"))).expect("small")
}

/// Writes up to four absurd numbers of 1, 2, 4 or 8 bytes where such numbers are.
fn lie(prng: &mut Prng, bytes: &mut [u8]) {
    if bytes.len() < 16 {
        return;
    }
    for _ in 0..=prng.below(4) {
        let width = 1 << prng.below(4);
        let at = index_below(prng, bytes.len() / width) * width;
        let mut old = [0; 8];
        old[..width].copy_from_slice(&bytes[at..at + width]);
        let old = u64::from_le_bytes(old);
        let absurd = ABSURD[index_below(prng, ABSURD.len())];
        let new = match prng.below(6) {
            0 => old.wrapping_add(1 + prng.below(3)),
            1 => old.wrapping_sub(1 + prng.below(3)),
            2 => old ^ 1 << prng.below(64),
            3 => {
                let from = index_below(prng, bytes.len() / width) * width;
                let mut other = [0; 8];
                other[..width].copy_from_slice(&bytes[from..from + width]);
                u64::from_le_bytes(other)
            }
            4 => old.wrapping_add(absurd),
            _ => absurd,
        };
        bytes[at..at + width].copy_from_slice(&new.to_le_bytes()[..width]);
    }
}

/// Looks at everything, bounded; returns what was found.
fn walk(pool: &Pool) -> Vec<(Ino, Vec<u8>, Attr)> {
    let (mut found, mut directories) = (Vec::new(), vec![pool.root()]);
    while let Some(directory) = directories.pop() {
        let mut names = Vec::new();
        let _ = pool.readdir(directory, 0, &mut |entry| {
            names.push(entry.name.clone());
            names.len() < WALK_MAX
        });
        for name in names {
            if found.len() >= WALK_MAX {
                return found;
            }
            let Ok(attr) = pool.lookup(&Caller::root(), directory, &name) else { continue };
            pool.forget(attr.ino, 1);
            if attr.kind == FileKind::Directory {
                directories.push(attr.ino);
            }
            found.push((directory, name, attr));
        }
    }
    found
}

/// Uses a pool; what it answers does not matter.
fn using(pool: &Pool, prng: &mut Prng) {
    let root = Caller::root();
    let found = walk(pool);
    let mut bytes = Vec::new();
    for (_, _, attr) in &found {
        let ino = attr.ino;
        bytes.clear();
        let _ = pool.read(ino, 0, 40_000, &mut bytes);
        let _ = pool.read(ino, attr.size_bytes.saturating_sub(100), 5000, &mut bytes);
        let _ = pool.readlink(ino);
        let _ = pool.path_of(ino);
    }
    let _ = pool.statfs();
    for number in 0..8 {
        let Some(ino) = make(pool, pool.root(), &format!("new {number}"), FileKind::Regular) else {
            continue;
        };
        let _ = pool.write(&root, ino, number * 9000, &content(number, 20_000));
        let _ = if number % 2 == 0 { pool.fsync(ino, false) } else { pool.sync() };
    }
    for (parent, name, attr) in found.iter().take(60) {
        let ino = attr.ino;
        let _ = match prng.below(8) {
            0 => pool.unlink(&root, *parent, name),
            1 => pool.rmdir(&root, *parent, name),
            2 => {
                let target = (pool.root(), &b"moved"[..]);
                pool.rename(&root, (*parent, name), target, RenameMode::Replace)
            }
            3 => pool.write(&root, ino, prng.below(100_000), &content(9, 10_000)),
            4 => pool.write(&root, ino, attr.size_bytes, &content(8, 100)),
            5 | 6 => {
                let size = if prng.below(2) == 0 { 0 } else { prng.below(1 << 20) };
                let change = SetAttr { size_bytes: Some(size), ..SetAttr::default() };
                pool.setattr(&root, ino, &change).map(drop)
            }
            _ => {
                let _ = pool.link(&root, ino, pool.root(), b"linked");
                pool.fsync(ino, false)
            }
        };
    }
    let _ = pool.sync();
    let _ = pool.checkpoint();
    let _ = pool.tick();
    let _ = pool.status();
}

fn check(device: &SharedDevice) {
    let options = check::Options { memory_bytes_max: 64 << 20, ..check::Options::default() };
    let report = check::run(Arc::clone(device), options, &mut |_| {});
    let _ = report.to_text();
}

/// Returns whether the pool could be opened.
fn examine(image: Image, prng: &mut Prng) -> bool {
    let device = SimDevice::open(image, SimOptions::default());
    let shared: SharedDevice = Arc::<SimDevice>::clone(&device);
    if prng.below(2) == 0 {
        check(&shared);
    }
    let mut was_open = false;
    for _ in 0..=u64::from(prng.below(4) == 0) {
        let Ok(pool) = open_on(&shared) else { break };
        was_open = true;
        using(&pool, prng);
        let _ = pool.close();
    }
    if was_open && prng.below(2) == 0 {
        check(&shared);
    }
    was_open
}

/// Stops the program if one seed takes too long: a hang must not look like a slow machine.
#[expect(clippy::disallowed_methods, reason = "a test of hangs measures real time")]
fn watch(seed: &Arc<AtomicU64>) {
    let seed = Arc::downgrade(seed);
    std::thread::spawn(move || {
        let mut last = (u64::MAX, 0);
        while let Some(now) = seed.upgrade().map(|seed| seed.load(Ordering::Relaxed)) {
            last = if last.0 == now { (now, last.1 + 1) } else { (now, 0) };
            if last.1 > SECONDS_MAX {
                println!("seed {now} hangs");
                std::process::abort();
            }
            std::thread::sleep(std::time::Duration::from_secs(1));
        }
    });
}

fn seeds() -> std::ops::Range<u64> {
    let Ok(text) = std::env::var("HOLDFAST_HOSTILE") else { return 0..SEEDS };
    let number = |text: &str| text.trim().parse().expect("HOLDFAST_HOSTILE=first..end");
    let (first, end) = text.split_once("..").expect("HOLDFAST_HOSTILE=first..end");
    number(first)..number(end)
}

/// Most memory that this program has had.
fn memory_peak() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.and_then(|line| line.trim().trim_end_matches(" kB").parse::<u64>().ok());
    kib.unwrap_or(0) << 10
}

#[test]
fn lies_under_good_checksums_end_in_errors() {
    let bases =
        [base(4096, 14, true), base(4096, 14, false), base(1024, 12, true), base(1024, 14, false)];
    assert!(bases.iter().all(|base| base.superblock.pool_id != PoolId::default()));
    let current = Arc::new(AtomicU64::new(0));
    watch(&current);
    let (mut failed, mut opened, seeds) = (Vec::new(), 0_u64, seeds());
    let count = seeds.end - seeds.start;
    for seed in seeds {
        current.store(seed, Ordering::Relaxed);
        let mut prng = Prng::from_seed(seed);
        let base = &bases[index_below(&mut prng, bases.len())];
        let image = base.lying(&mut prng);
        match catch_unwind(AssertUnwindSafe(|| examine(image, &mut prng))) {
            Ok(was_open) => opened += u64::from(was_open),
            Err(_) => {
                println!("seed {seed} panics");
                failed.push(seed);
            }
        }
        if seed % 10_000 == 9_999 {
            println!(
                "{seed}: {opened} opened, {} failed, {} MiB",
                failed.len(),
                memory_peak() >> 20
            );
        }
    }
    println!("{count} images: {opened} opened, peak of {} MiB", memory_peak() >> 20);
    assert!(failed.is_empty(), "{} seeds fail: {failed:?}", failed.len());
    assert!(
        count < 100 || opened > count / 4,
        "most lies are refused at the open: {opened} of {count}"
    );
    assert!(memory_peak() < MEMORY_BYTES_MAX, "{} bytes of memory", memory_peak());
}
