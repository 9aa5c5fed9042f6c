//! Where a policy puts things, in the time of a simulated disk.

use std::sync::Arc;

use engine::alloc::policy::placement;
use engine::api::{Caller, FileKind, FileSystem, Ino, NewInode};
use engine::{Pool, PoolCreateOptions, PoolOpenOptions};
use runtime::clock::ManualClock;
use storage::device::SharedDevice;
use storage::device::sim::{DiskModel, Image, SimDevice, SimOptions};

const POOL_BYTES: u64 = 192 << 20;
const DIRECTORIES: usize = 6;
/// Rounds of writing: each adds a file to every directory.
const ROUNDS: usize = 60;
const FILE_BYTES: usize = 40 << 10;

fn disk(image: Option<Image>) -> Arc<SimDevice> {
    let options = SimOptions { model: DiskModel::hdd(), ..SimOptions::default() };
    match image {
        Some(image) => SimDevice::open(image, options),
        None => SimDevice::new(POOL_BYTES, options),
    }
}

fn open(device: &Arc<SimDevice>, policy: &str) -> Pool {
    let shared: SharedDevice = Arc::<SimDevice>::clone(device);
    let placement = placement(policy).expect("it has a name");
    let options = PoolOpenOptions { placement, ..PoolOpenOptions::default() };
    Pool::open(shared, Arc::new(ManualClock::new()), options).expect("it opens")
}

fn make(pool: &Pool, parent: Ino, name: &str, kind: FileKind) -> Ino {
    let new = NewInode::new(kind, 0o755);
    let made = pool.create(&Caller::root(), parent, name.as_bytes(), new, None).expect("room");
    pool.forget(made.ino, 1);
    made.ino
}

fn find(pool: &Pool, parent: Ino, name: &str) -> Ino {
    let found = pool.lookup(&Caller::root(), parent, name.as_bytes()).expect("it is there");
    pool.forget(found.ino, 1);
    found.ino
}

/// Fills directories in turn, so that their files come interleaved; deletes every third file and
/// fills the gaps again.
fn aged(policy: &str) -> Image {
    let device = disk(None);
    let shared: SharedDevice = Arc::<SimDevice>::clone(&device);
    let options = PoolCreateOptions::new(POOL_BYTES, [5; 64]);
    Pool::create(&shared, &ManualClock::new(), &options).expect("a pool fits");
    let pool = open(&device, policy);
    let name = |number: usize| format!("d{number}");
    let directories: Vec<Ino> = (0..DIRECTORIES)
        .map(|number| make(&pool, pool.root(), &name(number), FileKind::Directory))
        .collect();
    let add = |round: usize, generation: usize| {
        for &directory in &directories {
            let file = make(&pool, directory, &format!("f{round}"), FileKind::Regular);
            let bytes = vec![u8::try_from(generation).expect("small"); FILE_BYTES];
            pool.write(&Caller::root(), file, 0, &bytes).expect("room");
        }
        if round % 10 == 9 {
            pool.sync().expect("nothing fails");
        }
    };
    (0..ROUNDS).for_each(|round| add(round, 1));
    for round in (0..ROUNDS).step_by(3) {
        for &directory in &directories {
            let name = format!("f{round}");
            pool.unlink(&Caller::root(), directory, name.as_bytes(), None).expect("it is there");
        }
    }
    (0..ROUNDS).step_by(3).for_each(|round| add(round, 2));
    pool.close().expect("it closes");
    device.durable_image()
}

/// Returns the milliseconds that reading the data of every file of one directory takes, in order of
/// their names. Names and anodes are read before: anodes lie in the order of their making, whatever
/// the policy.
fn read_directory(image: &Image, policy: &str, number: usize) -> u64 {
    let device = disk(Some(image.clone()));
    let pool = open(&device, policy);
    let directory = find(&pool, pool.root(), &format!("d{number}"));
    let files: Vec<Ino> =
        (0..ROUNDS).map(|round| find(&pool, directory, &format!("f{round}"))).collect();
    let start = device.now_ns();
    for (round, file) in files.into_iter().enumerate() {
        let mut bytes = Vec::new();
        pool.read(&Caller::root(), file, 0, FILE_BYTES, &mut bytes).expect("it is there");
        let expected = if round % 3 == 0 { 2 } else { 1 };
        assert!(bytes.len() == FILE_BYTES && bytes.iter().all(|&byte| byte == expected));
    }
    (device.now_ns() - start) / 1_000_000
}

/// Goal: `ffs` keeps the files of a directory together where `log` keeps together what was written
/// together.
#[test]
fn ffs_reads_a_directory_faster_than_log() {
    let time = |policy: &str| {
        let image = aged(policy);
        let total = (0..DIRECTORIES).map(|number| read_directory(&image, policy, number));
        total.sum::<u64>() / u64::try_from(DIRECTORIES).expect("few")
    };
    let (log, ffs, hotspot) = (time("log"), time("ffs"), time("hotspot"));
    println!("ms to read a directory, simulated disk: log {log}, ffs {ffs}, hotspot {hotspot}");
    assert!(ffs * 5 < log * 4, "ffs {ffs} ms, log {log} ms");
}
