//! Full pools with snapshots: which of them hold most, and that whatever is deleted comes free.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use engine::api::{
    Caller, FileKind, FileSystem, FsError, FsResult, Ino, NewInode, SetAttr, Stability, WriteData,
};
use engine::{Pool, PoolCreateOptions, PoolOpenOptions};
use format::fileset::NamePart;
use runtime::clock::{Clock, ManualClock, Timestamp, VIRTUAL_EPOCH};
use runtime::prng::Prng;
use storage::device::SharedDevice;
use storage::device::sim::{SimDevice, SimOptions};
use whole_system::soak::Soak;

use super::{Ground, Shape};

const SHAPE: Shape = Shape::new(48, 4096, 256, 16);
const BLOCK: usize = 4096;

/// Operations of a run in CI; `HOLDFAST_FULL_SNAPSHOT_OPERATIONS` says otherwise.
const OPERATIONS: u64 = 2_000;
/// Operations between two power cuts.
const OPERATIONS_PER_LIFE: u64 = 500;
/// Names of files, and blocks of one at most.
const NAMES: u64 = 40;
const BLOCKS: u64 = 160;
const SNAPSHOTS_MAX: usize = 10;
/// Ticks after which a deletion has ended.
const TICKS_MAX: usize = 400;

fn wide(count: usize) -> u64 {
    u64::try_from(count).expect("a test counts little")
}

fn part(text: &str) -> NamePart {
    NamePart::new(text).expect("a test writes a name")
}

fn snapshot_of_root(pool: &Pool, name: &str) -> FsResult<()> {
    pool.fileset_admin()
        .create_snapshot(&"root".parse().expect("a name"), &part(name), [1; 16])
        .map(drop)
}

fn delete_snapshot(pool: &Pool, name: &str) -> FsResult<()> {
    pool.fileset_admin().delete_snapshot(&"root".parse().expect("a name"), &part(name))?;
    free_all(pool);
    Ok(())
}

fn free_all(pool: &Pool) {
    for _ in 0..TICKS_MAX {
        pool.tick().expect("background work needs no room");
        if !pool.fileset_admin().is_freeing().expect("the table can be read") {
            return;
        }
    }
    panic!("a deletion does not end: {:?}", pool.jobs());
}

fn file(pool: &Pool, name: &str) -> FsResult<Ino> {
    let (caller, root) = (Caller::root(), pool.root());
    let found = match pool.lookup(&caller, root, name.as_bytes()) {
        Err(FsError::NotFound) => {
            let new = NewInode::new(FileKind::Regular, 0o644);
            pool.create(&caller, root, name.as_bytes(), new, None)
        }
        found => found,
    }?;
    pool.forget(found.ino, 1);
    Ok(found.ino)
}

fn write(pool: &Pool, name: &str, bytes: usize) -> FsResult<()> {
    let ino = file(pool, name)?;
    for offset in (0..bytes).step_by(64 << 10) {
        let length = (bytes - offset).min(64 << 10);
        pool.write(&Caller::root(), ino, wide(offset), &vec![7; length])?;
    }
    pool.sync()
}

fn unlink(pool: &Pool, name: &str) -> FsResult<()> {
    pool.unlink(&Caller::root(), pool.root(), name.as_bytes(), None)
}

/// Writes until there is no space.
fn fill(pool: &Pool, name: &str) {
    let filled = write(pool, name, 1 << 30);
    assert_eq!(filled, Err(FsError::NoSpace), "it is larger than the pool");
}

/// Goal: a full pool names the snapshots that hold most alone, whatever they reference, and none
/// that is gone. Method: three snapshots that reference much and hold little alone, and two that
/// reference less and hold more; the pool is filled, and snapshots are deleted as it says.
#[test]
fn a_full_pool_names_the_snapshots_that_hold_most() {
    let ground = Ground::new(&SHAPE);
    let pool = &ground.pool;
    write(pool, "base", 12 << 20).expect("there is room");
    for (name, bytes) in [("p1", 64 << 10), ("p2", 192 << 10), ("p3", 128 << 10)] {
        write(pool, "small", bytes).expect("there is room");
        snapshot_of_root(pool, name).expect("there is room");
        unlink(pool, "small").expect("there is room");
    }
    unlink(pool, "base").expect("there is room");
    for (name, bytes) in [("c1", 2 << 20), ("c2", 5 << 20)] {
        write(pool, "other", bytes).expect("there is room");
        snapshot_of_root(pool, name).expect("there is room");
        unlink(pool, "other").expect("there is room");
    }
    assert_eq!(pool.status().full, None, "there is room");
    fill(pool, "fill");
    let full = pool.status().full.expect("somebody was refused");
    assert_eq!((full.snapshots, full.heaviest), (5, None), "nobody has counted yet");
    let heaviest = || {
        for _ in 0..TICKS_MAX {
            pool.tick().expect("background work needs no room");
            let full = pool.status().full.expect("it is full");
            if let Some(heaviest) = full.heaviest {
                assert!(heaviest.is_all, "there are few");
                return heaviest.snapshots;
            }
        }
        panic!("nobody counts");
    };
    let names = |named: &[engine::HeavySnapshot]| {
        named.iter().map(|snapshot| snapshot.name.clone()).collect::<Vec<_>>()
    };
    let named = heaviest();
    assert_eq!(names(&named), ["root@c2", "root@c1", "root@p2"]);
    for snapshot in &named {
        let (_, own) = snapshot.name.split_once('@').expect("a snapshot's name");
        let unique =
            pool.fileset_admin().unique_bytes(&"root".parse().expect("a name"), &part(own));
        assert_eq!(unique, Ok(snapshot.bytes), "{}", snapshot.name);
    }
    let told = pool.status().full.expect("it is full").to_string();
    assert!(told.contains("root@c2 holds 5.") && told.contains(" MiB, root@c1 holds"), "{told}");
    // It is asked for at once, as a command is refused, and tells the same.
    let asked =
        pool.fileset_admin().weigh_snapshots().expect("it can be read").expect("it is full");
    assert_eq!(asked.heaviest.map(|heaviest| heaviest.snapshots), Some(named));
    delete_snapshot(pool, "c2").expect("deleting a snapshot always goes well");
    pool.checkpoint().expect("a checkpoint needs no room");
    assert_eq!(pool.status().full, None, "there is room again");
    fill(pool, "more");
    assert_eq!(names(&heaviest()), ["root@c1", "root@p2", "root@p3"], "what is gone is not named");
    for name in ["p1", "p2", "p3", "c1"] {
        delete_snapshot(pool, name).unwrap_or_else(|error| panic!("{name}: {error}"));
    }
    unlink(pool, "fill").expect("no snapshot has it");
    unlink(pool, "more").expect("no snapshot has it");
    assert!(ground.available() > 30 << 20, "all is free again");
    assert_eq!(ground.defects(), None);
}

/// A clock that goes on by a step at each look at it.
#[derive(Debug, Default)]
struct Striding {
    elapsed_ns: AtomicU64,
    stride_ns: AtomicU64,
}

impl Clock for Striding {
    fn now(&self) -> Timestamp {
        VIRTUAL_EPOCH.plus_ns(self.monotonic_ns())
    }

    fn monotonic_ns(&self) -> u64 {
        let stride_ns = self.stride_ns.load(Ordering::Relaxed);
        self.elapsed_ns.fetch_add(stride_ns, Ordering::Relaxed) + stride_ns
    }
}

/// Goal: whoever is refused space learns within about a second which snapshots hold most, as far as
/// they are counted by then, and that they are not all; who asks again is told more. Method: a
/// clock that goes on by a third of a second at each look at it.
#[test]
fn who_waits_for_a_weighing_waits_a_second() {
    const STRIDE_NS: u64 = 333_000_000;
    const SNAPSHOTS: usize = 12;
    let device: SharedDevice = SimDevice::new(SHAPE.pool_bytes, SimOptions::default());
    let mut options = PoolCreateOptions::new(SHAPE.pool_bytes, [5; 64]);
    options.geometry.segment_bytes = Some(SHAPE.segment_bytes);
    Pool::create(&device, &ManualClock::new(), &options).expect("the shape is possible");
    let clock = Arc::new(Striding::default());
    let pool = Pool::open(device, clock.clone(), PoolOpenOptions::default()).expect("it opens");
    write(&pool, "base", 1 << 20).expect("there is room");
    for number in 0..SNAPSHOTS {
        write(&pool, "own", (2 << 20) - (number << 16)).expect("there is room");
        snapshot_of_root(&pool, &format!("c{number}")).expect("there is room");
        unlink(&pool, "own").expect("there is room");
    }
    fill(&pool, "fill");
    clock.stride_ns.store(STRIDE_NS, Ordering::Relaxed);
    let mut asked = Vec::new();
    for _ in 0..SNAPSHOTS {
        let before = clock.elapsed_ns.load(Ordering::Relaxed);
        let full =
            pool.fileset_admin().weigh_snapshots().expect("it can be read").expect("it is full");
        let waited = clock.elapsed_ns.load(Ordering::Relaxed) - before;
        assert!(waited < 3_000_000_000, "{waited} ns");
        let told = full.to_string();
        let heaviest = full.heaviest.expect("some are counted");
        let is_all = heaviest.is_all;
        let names: Vec<_> = heaviest.snapshots.into_iter().map(|snapshot| snapshot.name).collect();
        assert!(names.contains(&"root@c0".to_owned()), "most is counted first: {told}");
        assert_eq!(told.contains("as far as they are counted"), !is_all, "{told}");
        asked.push(names);
        if is_all {
            break;
        }
    }
    assert!(asked.len() > 1, "the first answer is of all: {asked:?}");
    assert_eq!(
        asked.last().map(Vec::as_slice),
        Some(&["root@c0", "root@c1", "root@c2"].map(str::to_owned)[..])
    );
}

/// A file by the byte that each of its blocks is full of.
type Files = BTreeMap<String, Vec<u8>>;

/// A pool on a simulated device, and what is to be in it: whole trees.
struct World {
    device: Arc<SimDevice>,
    pool: Pool,
    prng: Prng,
    files: Files,
    snapshots: BTreeMap<String, Files>,
    taken: u64,
    done: u64,
    refused: u64,
}

fn open(device: &Arc<SimDevice>) -> Pool {
    let device: SharedDevice = Arc::<SimDevice>::clone(device);
    let options = PoolOpenOptions { cache_bytes: SHAPE.cache_bytes, ..PoolOpenOptions::default() };
    let pool = Pool::open(device, Arc::new(ManualClock::new()), options).expect("a pool opens");
    pool.tick().expect("background work needs no room");
    pool
}

fn content(pool: &Pool, root: Ino) -> Files {
    let caller = Caller::root();
    let mut names = Vec::new();
    let listed = pool.readdir(&caller, root, 0, &mut |entry| {
        names.push(entry.name.clone());
        true
    });
    listed.expect("a root can be listed");
    names.retain(|name| !name.starts_with(b"."));
    let blocks_of = |name: Vec<u8>| {
        let attr = pool.lookup(&caller, root, &name).expect("it is listed");
        let (mut bytes, size) = (Vec::new(), attr.size_bytes);
        let length = usize::try_from(size).expect("a test's files are short");
        pool.read(&caller, attr.ino, 0, length, &mut bytes).expect("it can be read");
        pool.forget(attr.ino, 1);
        assert_eq!(bytes.len(), length, "all of it");
        let blocks = bytes.chunks(BLOCK).map(|block| {
            assert!(block.iter().all(|byte| *byte == block[0]), "each block is of one write");
            block[0]
        });
        (String::from_utf8(name).expect("a test writes names"), blocks.collect())
    };
    names.into_iter().map(blocks_of).collect()
}

impl World {
    fn new(seed: u64) -> World {
        let device = SimDevice::new(SHAPE.pool_bytes, SimOptions { seed, ..SimOptions::default() });
        let mut options = PoolCreateOptions::new(SHAPE.pool_bytes, [5; 64]);
        options.geometry.segment_bytes = Some(SHAPE.segment_bytes);
        options.block_shift = SHAPE.block_shift;
        let shared: SharedDevice = Arc::<SimDevice>::clone(&device);
        Pool::create(&shared, &ManualClock::new(), &options).expect("the shape is possible");
        let pool = open(&device);
        World {
            device,
            pool,
            prng: Prng::from_seed(seed),
            files: Files::new(),
            snapshots: BTreeMap::new(),
            taken: 0,
            done: 0,
            refused: 0,
        }
    }

    /// Counts how an operation ended; returns whether it was done.
    fn count<T>(&mut self, result: FsResult<T>) -> Option<T> {
        match result {
            Ok(done) => {
                self.done += 1;
                Some(done)
            }
            Err(FsError::NoSpace) => {
                self.refused += 1;
                None
            }
            Err(error) => panic!("operation {}: {error}", self.done + self.refused),
        }
    }

    fn a_name(&mut self) -> String {
        format!("f{}", self.prng.below(NAMES))
    }

    fn write(&mut self) {
        let name = self.a_name();
        let made = file(&self.pool, &name);
        let Some(ino) = self.count(made) else { return };
        let blocks = self.files.entry(name).or_default();
        let (first, count) = (self.prng.below(BLOCKS), 1 + self.prng.below(40));
        let first = usize::try_from(first).expect("few");
        let count = usize::try_from(count).expect("few");
        let byte = self.prng.next_u64().to_le_bytes()[0];
        let data = vec![byte; count * BLOCK];
        let offset = wide(first * BLOCK);
        let data = WriteData::Lent(&data);
        let caller = Caller::root();
        let written = self.pool.write_some(&caller, ino, offset, &data, Stability::Unstable, None);
        let written = *written.as_ref().unwrap_or(&0);
        assert_eq!(written % BLOCK, 0, "a block is written or not");
        if written > 0 {
            let end = first + written / BLOCK;
            blocks.resize(blocks.len().max(end), 0);
            blocks[first..end].fill(byte);
        }
        let all = if written < count * BLOCK { Err(FsError::NoSpace) } else { Ok(()) };
        self.count(all);
    }

    fn remove(&mut self) {
        let name = self.a_name();
        if self.files.contains_key(&name) {
            let removed = unlink(&self.pool, &name);
            if self.count(removed).is_some() {
                self.files.remove(&name);
            }
        }
    }

    fn cut(&mut self) {
        let name = self.a_name();
        let Some(length) = self.files.get(&name).map(Vec::len) else { return };
        let left = self.prng.below(1 + wide(length));
        let set = SetAttr { size_bytes: Some(left * wide(BLOCK)), ..SetAttr::default() };
        let ino = file(&self.pool, &name).expect("it is there");
        let cut = self.pool.setattr(&Caller::root(), ino, &set, None);
        if self.count(cut).is_some() {
            let blocks = self.files.get_mut(&name).expect("it is there");
            blocks.truncate(usize::try_from(left).expect("few"));
        }
    }

    fn take_snapshot(&mut self) {
        if self.snapshots.len() == SNAPSHOTS_MAX {
            return self.delete_snapshot();
        }
        self.taken += 1;
        let name = format!("c{}", self.taken);
        let made = snapshot_of_root(&self.pool, &name);
        if self.count(made).is_some() {
            self.snapshots.insert(name, self.files.clone());
        }
    }

    /// Deleting a snapshot always goes well.
    fn delete_snapshot(&mut self) {
        let count = wide(self.snapshots.len());
        if count == 0 {
            return;
        }
        let chosen = usize::try_from(self.prng.below(count)).expect("few");
        let name = self.snapshots.keys().nth(chosen).cloned().expect("one of them");
        delete_snapshot(&self.pool, &name).unwrap_or_else(|error| panic!("{name}: {error}"));
        self.snapshots.remove(&name);
        self.done += 1;
    }

    fn step(&mut self) {
        match self.prng.below(100) {
            0..60 => self.write(),
            60..70 => self.remove(),
            70..78 => self.cut(),
            78..84 => self.take_snapshot(),
            84..86 => self.delete_snapshot(),
            86..98 => self.pool.tick().expect("background work needs no room"),
            _ => {
                let synced = self.pool.sync();
                self.count(synced);
            }
        }
    }

    /// Compares what the pool has with what is to be in it.
    fn compare(&self) {
        assert!(content(&self.pool, self.pool.root()) == self.files, "the fileset is another");
        for (name, files) in &self.snapshots {
            let root = "root".parse().expect("a name");
            let held =
                self.pool.fileset_admin().hold_snapshot(&root, &part(name)).expect("it is there");
            let found = content(&self.pool, self.pool.root_of(held).expect("it is held"));
            assert!(found == *files, "the snapshot {name} is another");
            self.pool.fileset_admin().release_fileset(held);
        }
    }

    /// Syncs, cuts the power, and goes on from what is left, which is all that was.
    fn live_on(mut self) -> World {
        self.pool.sync().expect("a sync needs no room");
        let device = self.device.reboot(&mut self.prng);
        let World { pool, prng, files, snapshots, taken, done, refused, .. } = self;
        drop(pool);
        let pool = open(&device);
        let world = World { device, pool, prng, files, snapshots, taken, done, refused };
        world.compare();
        // What was looked into is another opening's.
        let World { device, pool, prng, files, snapshots, taken, done, refused } = world;
        pool.close().expect("a pool closes");
        drop(pool);
        let shared: SharedDevice = Arc::<SimDevice>::clone(&device);
        let report = check::run(shared, check::CheckOptions::default(), &mut |_| ());
        assert!(report.is_clean(), "{}", report.to_text());
        let pool = open(&device);
        World { device, pool, prng, files, snapshots, taken, done, refused }
    }
}

/// Goal: in a pool that is always full, beside snapshots that come and go, what is accepted stays,
/// snapshots stay what they were, deleting one always goes well, and nothing leaks. Method: random
/// operations on a simulated device, held against whole trees after a power cut each
/// [`OPERATIONS_PER_LIFE`]; at the end all is deleted.
#[test]
fn a_full_pool_with_snapshots_goes_on() {
    let operations = std::env::var("HOLDFAST_FULL_SNAPSHOT_OPERATIONS").ok();
    let operations = operations.and_then(|text| text.parse().ok()).unwrap_or(OPERATIONS);
    let (mut world, mut soak) = (World::new(1), Soak::of("operations"));
    for life in 0..operations / OPERATIONS_PER_LIFE {
        soak.begin(life);
        for _ in 0..OPERATIONS_PER_LIFE {
            world.step();
        }
        world = world.live_on();
        soak.add(OPERATIONS_PER_LIFE, || format!("{} refused", world.refused));
    }
    println!("{}", soak.line(&format!("{} done, {} refused", world.done, world.refused)));
    assert!(world.refused * 10 > operations, "it is not full: {} refused", world.refused);
    assert!(world.done * 5 > operations, "nothing goes on: {} done", world.done);
    while !world.snapshots.is_empty() {
        world.delete_snapshot();
    }
    let names: Vec<String> = world.files.keys().cloned().collect();
    for name in names {
        unlink(&world.pool, &name).unwrap_or_else(|error| panic!("{name}: {error}"));
    }
    world.pool.checkpoint().expect("a checkpoint needs no room");
    let space = world.pool.status().space;
    assert!(space.used < space.capacity / 10, "{space:?}");
    world.pool.close().expect("a pool closes");
}
