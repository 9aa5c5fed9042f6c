//! Many clients that read a few files in even steps, beside some that write them: what each is told
//! is what was there while it asked, and nobody's reading ahead harms another.
//!
//! Each file has one writer, who writes whole blocks, each of one version all over. So a block is a
//! register, and the judge of a read of it is short: the version it finds is none older than the
//! last that was acknowledged before it asked, none newer than the last that was begun before it
//! was told, and none older than what the same client was told of it before. Chance, from a seed,
//! says how many read and by which steps, how threads take turns, and when one does what the
//! server's threads do behind an answer.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use engine::api::FileSystem;
use engine::{Pool, PoolOpenOptions};
use front::nfs::{DeferredReply, Service};
use runtime::clock::SimClock;
use runtime::prng::Prng;
use runtime::sync::sim::{Scheduler, SimThreadTask, sleep_until};
use storage::device::SharedDevice;
use storage::device::sim::{DiskModel, Image, SimDevice, SimOptions};
use whole_system::soak::{Soak, seeds};

use super::client::{Client, Direct, FILE_SYNC, UNSTABLE, Wire};
use super::{POOL_BYTES, loopback, make_pool, service_of};

/// Seeds of the usual run.
const SEEDS: u64 = 12;
const FILES: usize = 3;
const BLOCKS: u64 = 96;
const BLOCK_BYTES: usize = 16 << 10;
const READERS: std::ops::RangeInclusive<u64> = 8..=32;
/// What each reader asks for, and each writer does.
const READS: u64 = 60;
const WRITES: u64 = 30;
/// Too little for what is read: the device is asked.
const CACHE_BYTES: usize = 4 << 20;
/// How often an answer is looked for, and for how long: many times what a commit takes.
const POLL_NS: u64 = 1_000_000;
const POLLS_MAX: usize = 60_000;

/// What is known of the blocks of one file: versions that were begun, and acknowledged.
#[derive(Debug, Default)]
struct Blocks {
    begun: Vec<AtomicU64>,
    acknowledged: Vec<AtomicU64>,
}

struct World {
    service: Arc<Service>,
    pool: Arc<Pool>,
    scheduler: Arc<Scheduler>,
    files: Vec<(Vec<u8>, Blocks)>,
    reads: AtomicUsize,
    /// Blocks that were found as they were being written, or had just been.
    changing: AtomicUsize,
}

/// Waits for an answer that another's commit gives.
struct Patient {
    direct: Direct,
    scheduler: Arc<Scheduler>,
}

impl Wire for Patient {
    fn exchange(&mut self, record: &[u8]) -> Vec<u8> {
        let (mut reply, commit) = self.direct.start(record);
        commit.into_iter().for_each(DeferredReply::run);
        for _ in 0..POLLS_MAX {
            reply = reply.or_else(|| self.direct.told());
            if let Some(reply) = reply {
                return reply;
            }
            sleep_until(self.scheduler.now_ns() + POLL_NS);
        }
        panic!("there is no answer");
    }
}

fn wide(number: usize) -> u64 {
    u64::try_from(number).expect("it is short")
}

fn index(number: u64) -> usize {
    usize::try_from(number).expect("it is short")
}

fn content(version: u64) -> Vec<u8> {
    version.to_le_bytes().repeat(BLOCK_BYTES / 8)
}

/// Returns the version that a block has all over.
fn version_of(bytes: &[u8], what: &str) -> u64 {
    assert_eq!(bytes.len(), BLOCK_BYTES, "{what}");
    let version = u64::from_le_bytes(*bytes.first_chunk().expect("it is longer"));
    assert!(bytes == content(version), "{what}: parts of a block are of several versions");
    version
}

impl World {
    /// Returns files, the last block of each written, on a disk that takes its time.
    fn new(seed: u64) -> World {
        let device = SimDevice::open(Image::blank(POOL_BYTES), SimOptions::default());
        let shared: SharedDevice = Arc::<SimDevice>::clone(&device);
        make_pool(&shared, POOL_BYTES);
        let pool = super::open_pool(&shared, 1);
        let service = service_of(&pool, &["/:rw,squash=none"]);
        let mut client = Client::new(Direct::new(&service, loopback(900)));
        let root = client.mount("/").expect("it is exported");
        for file in 0..FILES {
            let handle = client.create(&root, &format!("f{file}")).expect("there is room");
            for block in 0..BLOCKS {
                let offset = block * wide(BLOCK_BYTES);
                client.write(&handle, offset, &content(1), UNSTABLE).expect("there is room");
            }
            client.commit(&handle).expect("nothing fails");
        }
        drop((client, service));
        pool.close().expect("nothing fails");
        drop(pool);

        let scheduler = Scheduler::new(seed);
        let options = SimOptions { model: DiskModel::hdd(), ..SimOptions::default() };
        let disk: SharedDevice = SimDevice::open(device.image(), options);
        let clock = Arc::new(SimClock::new(Arc::clone(&scheduler)));
        let options =
            PoolOpenOptions { random: 2, cache_bytes: CACHE_BYTES, ..PoolOpenOptions::default() };
        let pool = Arc::new(Pool::open(disk, clock, options).expect("it was closed"));
        let service = service_of(&pool, &["/:rw,squash=none"]);
        let mut client = Client::new(Direct::new(&service, loopback(900)));
        let root = client.mount("/").expect("it is exported");
        let known = |_| {
            let of = || (0..BLOCKS).map(|_| AtomicU64::new(1)).collect();
            Blocks { begun: of(), acknowledged: of() }
        };
        let file = |file| client.lookup(&root, &format!("f{file}")).expect("it was made").0;
        let files = (0..FILES).map(file).collect::<Vec<_>>().into_iter();
        let files = files.zip((0..FILES).map(known)).collect();
        let (reads, changing) = (AtomicUsize::new(0), AtomicUsize::new(0));
        World { service, pool, scheduler, files, reads, changing }
    }

    fn client(&self, port: u16) -> Client<Patient> {
        let direct = Direct::new(&self.service, loopback(port));
        Client::new(Patient { direct, scheduler: Arc::clone(&self.scheduler) })
    }

    /// Does what a thread of the server does behind an answer.
    fn behind_an_answer(&self) {
        if self.pool.has_deferred_work() {
            self.pool.run_deferred_work();
        }
    }

    /// Reads a file in even steps from somewhere, again and again.
    fn read(&self, number: u16, mut prng: Prng) {
        let mut client = self.client(950 + number);
        let (handle, blocks) = &self.files[index(prng.below(wide(FILES)))];
        let (step, back) = (1 + prng.below(3), prng.one_in(4));
        let mut at = prng.below(BLOCKS);
        let mut told = vec![0; index(BLOCKS)];
        for _ in 0..READS {
            let what = format!("reader {number}, block {at}, step {step}, back {back}");
            let least = blocks.acknowledged[index(at)].load(Ordering::SeqCst);
            let offset = at * wide(BLOCK_BYTES);
            let count = u32::try_from(BLOCK_BYTES).expect("it is short");
            let (bytes, _) = client.read(handle, offset, count).expect("nothing fails");
            let most = blocks.begun[index(at)].load(Ordering::SeqCst);
            let version = version_of(&bytes, &what);
            assert!((least..=most).contains(&version), "{what}: {version} of {least} to {most}");
            let before = std::mem::replace(&mut told[index(at)], version);
            assert!(before <= version, "{what}: {version} after {before}");
            self.reads.fetch_add(1, Ordering::SeqCst);
            self.changing.fetch_add(usize::from(least < most), Ordering::SeqCst);
            if !prng.one_in(3) {
                self.behind_an_answer();
            }
            at = (if back { at + BLOCKS - step } else { at + step }) % BLOCKS;
        }
    }

    /// Writes blocks of one file, in even steps or anywhere.
    fn write(&self, file: usize, mut prng: Prng) {
        let mut client = self.client(900 + u16::try_from(file).expect("there are few"));
        let (handle, blocks) = &self.files[file];
        let mut at = prng.below(BLOCKS);
        for _ in 0..WRITES {
            sleep_until(self.scheduler.now_ns() + prng.below(40_000_000));
            let version = blocks.begun[index(at)].fetch_add(1, Ordering::SeqCst) + 1;
            let stable = if prng.one_in(4) { FILE_SYNC } else { UNSTABLE };
            let written = client.write(handle, at * wide(BLOCK_BYTES), &content(version), stable);
            written.expect("there is room");
            blocks.acknowledged[index(at)].store(version, Ordering::SeqCst);
            if prng.one_in(8) {
                client.commit(handle).expect("nothing fails");
            }
            self.behind_an_answer();
            at = if prng.one_in(3) { prng.below(BLOCKS) } else { (at + 1) % BLOCKS };
        }
    }
}

/// Goal: see the module. `HOLDFAST_READERS_SEEDS=first..end` are the seeds to do.
#[test]
fn many_readers_in_steps_are_told_what_is_there() {
    let mut soak = Soak::of("readers");
    let (mut reads, mut changing) = (0, 0);
    for seed in seeds("HOLDFAST_READERS_SEEDS", SEEDS) {
        soak.begin(seed);
        let world = &World::new(seed);
        let mut prng = Prng::from_seed(seed);
        let count = READERS.start() + prng.below(READERS.end() - READERS.start() + 1);
        let count = u16::try_from(count).expect("there are few");
        let mut jobs: Vec<SimThreadTask<'_>> = Vec::new();
        for number in 0..count {
            let own = Prng::from_seed(prng.next_u64());
            let job = move || world.read(number, own);
            jobs.push((format!("reader {number}"), Box::new(job)));
        }
        for file in 0..FILES {
            let own = Prng::from_seed(prng.next_u64());
            jobs.push((format!("writer {file}"), Box::new(move || world.write(file, own))));
        }
        world.scheduler.run(jobs);
        reads += world.reads.load(Ordering::SeqCst);
        changing += world.changing.load(Ordering::SeqCst);
        soak.add(1, || format!("{reads} reads, {changing} of what changed"));
    }
    println!("{}", soak.line(&format!("{reads} reads, {changing} of what changed")));
    assert!(reads > 0 && changing > 0, "{reads} reads, {changing} of what changed");
}
