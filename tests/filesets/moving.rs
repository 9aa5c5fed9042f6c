//! Blocks that snapshots hold are moved: each who holds one finds it where it is then, and a pool
//! with snapshots is cleaned as one without.

use std::collections::BTreeMap;
use std::sync::Arc;

use engine::api::{Caller, FileKind, FileSystem, Ino, NewInode, SetAttr};
use engine::{Pool, PoolCreateOptions, PoolOpenOptions};
use format::fileset::NamePart;
use runtime::clock::{Clock, ManualClock, SimClock, Timestamp};
use runtime::prng::Prng;
use runtime::sync::Mutex;
use runtime::sync::sim::Scheduler;
use storage::device::sim::{Image, SimDevice, SimOptions, Strategy};
use storage::device::{MemoryDevice, SharedDevice};
use testkit::crash::judge_cuts;

use super::{assert_clean, free_all, name};

const POOL_BYTES: u64 = 64 << 20;
const CRASH_POOL_BYTES: u64 = 32 << 20;
/// Bytes of the large files of a pool that crashes, of which many images are looked at.
const CRASH_LARGE: u64 = 200_000;
const FILES: u64 = 14;
/// Bytes of the large files, which have a leaf.
const LARGE: u64 = 1_500_000;

type Contents = BTreeMap<String, Vec<u8>>;

fn part(text: &str) -> NamePart {
    NamePart::new(text).expect("a test writes a name")
}

fn open(device: &SharedDevice) -> Pool {
    let clock = Arc::new(ManualClock::new());
    Pool::open(Arc::clone(device), clock, PoolOpenOptions::default()).expect("the pool opens")
}

fn new_pool(bytes: u64) -> SharedDevice {
    let device: SharedDevice = MemoryDevice::new("memory", bytes);
    let create = PoolCreateOptions::new(bytes, [3; 64]);
    Pool::create(&device, &ManualClock::new(), &create).expect("a pool fits");
    device
}

/// Returns what the files of a root hold.
fn contents(pool: &Pool, root: Ino) -> Contents {
    let mut all = Contents::new();
    for number in 0..FILES {
        let text = format!("f{number}");
        let Ok(found) = pool.lookup(&Caller::root(), root, text.as_bytes()) else { continue };
        let mut bytes = Vec::new();
        let length = found.size_bytes.try_into().expect("small");
        pool.read(&Caller::root(), found.ino, 0, length, &mut bytes).expect("it can be read");
        pool.forget(found.ino, 1);
        all.insert(text, bytes);
    }
    all
}

fn contents_of_snapshot(pool: &Pool, snapshot: &str) -> Contents {
    let uuid =
        pool.fileset_admin().hold_snapshot(&name("root"), &part(snapshot)).expect("it is there");
    contents(pool, pool.root_of(uuid).expect("it is held"))
}

fn take(pool: &Pool, number: u8) -> String {
    let text = format!("c{number}");
    pool.fileset_admin()
        .create_snapshot(&name("root"), &part(&text), [number; 16])
        .expect("there is room");
    text
}

/// Writes to one of a few files, small and large: whole blocks, parts of one, and ends.
fn change(pool: &Pool, prng: &mut Prng, large: u64) {
    let (caller, root) = (Caller::root(), pool.root());
    let number = prng.below(FILES);
    let text = format!("f{number}");
    let found = pool.lookup(&caller, root, text.as_bytes()).map(|found| found.ino);
    let ino = found.unwrap_or_else(|_| {
        let new = NewInode::new(FileKind::Regular, 0o644);
        pool.create(&caller, root, text.as_bytes(), new, None).expect("there is room").ino
    });
    // Some have their map in the anode, some a leaf.
    let most = if number < FILES / 2 { 60_000 } else { large };
    let (offset, length) = match prng.below(8) {
        0 => (prng.below(most), 100 + prng.below(3_000)),
        1..=3 => (prng.below(most) & !4095, 4096),
        4..=5 => (prng.below(most) & !16383, 16384),
        _ => (prng.below(most) & !16383, prng.below(most)),
    };
    let length = length.min(most - offset);
    let mut data = vec![0; length.try_into().expect("small")];
    data.fill_with(|| prng.next_u64().to_le_bytes()[0]);
    pool.write(&caller, ino, offset, &data).expect("there is room");
    match prng.below(40) {
        0 => pool.unlink(&caller, root, text.as_bytes(), None).expect("it is there"),
        1 => {
            let size_bytes = Some(prng.below(most));
            let set = SetAttr { size_bytes, ..SetAttr::default() };
            pool.setattr(&caller, ino, &set, None).expect("nothing fails");
        }
        2..=8 => pool.fsync(&caller, ino, false).expect("nothing fails"),
        _ => {}
    }
    pool.forget(ino, 1);
}

/// Writes over whatever is free, so that nobody finds what was there.
fn overwrite_free_space(pool: &Pool) {
    let (caller, root) = (Caller::root(), pool.root());
    let new = NewInode::new(FileKind::Regular, 0o644);
    let made = pool.create(&caller, root, b"filler", new, None).expect("there is room");
    let mut written = 0;
    while pool.write(&caller, made.ino, written, &vec![0xee; 1 << 20]).is_ok() {
        written += 1 << 20;
    }
    pool.sync().expect("nothing fails");
    pool.unlink(&caller, root, b"filler", None).expect("it is there");
    pool.forget(made.ino, 1);
    pool.sync().expect("nothing fails");
    pool.checkpoint().expect("nothing fails");
}

fn moved(pool: &Pool) -> u64 {
    pool.status().cleaner.since_mount.moved_fragments
}

/// Goal: whoever holds a block that is moved reads it as it was: the fileset, whose files are in
/// memory, snapshots that are served, and those that are not. Method: random changes with snapshots
/// between them; segments are emptied, and all that is free is written over.
#[test]
fn whoever_holds_a_block_finds_it_where_it_was_moved() {
    for seed in 0..5 {
        let device = new_pool(POOL_BYTES);
        let mut prng = Prng::from_seed(seed);
        let mut kept: Vec<(String, Contents)> = Vec::new();
        for round in 0..4_u8 {
            let pool = open(&device);
            for (snapshot, _) in kept.iter().step_by(2) {
                contents_of_snapshot(&pool, snapshot);
            }
            for _ in 0..60 {
                change(&pool, &mut prng, LARGE);
            }
            let before = contents(&pool, pool.root());
            kept.push((take(&pool, round), before));
            for _ in 0..40 {
                change(&pool, &mut prng, LARGE);
            }
            let now = contents(&pool, pool.root());
            let count = moved(&pool);
            pool.clean().expect("nothing fails");
            assert!(moved(&pool) > count, "seed {seed}: nothing was moved in round {round}");
            overwrite_free_space(&pool);
            assert!(contents(&pool, pool.root()) == now, "seed {seed}: round {round}");
            for (snapshot, contents) in &kept {
                let found = contents_of_snapshot(&pool, snapshot);
                assert!(found == *contents, "seed {seed}: {snapshot} in round {round}");
            }
            pool.close().expect("nothing fails");
            drop(pool);
            assert_clean(&device);
        }
        let pool = open(&device);
        for (snapshot, contents) in &kept {
            assert!(
                contents_of_snapshot(&pool, snapshot) == *contents,
                "seed {seed}: {snapshot} again"
            );
        }
        pool.close().expect("nothing fails");
        drop(pool);
        let pool = open(&device);
        for (snapshot, _) in kept {
            pool.fileset_admin()
                .delete_snapshot(&name("root"), &part(&snapshot))
                .expect("nobody holds it");
            free_all(&pool);
        }
        pool.close().expect("nothing fails");
        assert_clean(&device);
    }
}

/// A clock that goes on each time that somebody looks, so that a tick is one turn of each job.
#[derive(Debug, Default)]
struct Hasty(Mutex<u64>);

impl Clock for Hasty {
    fn monotonic_ns(&self) -> u64 {
        let mut now = self.0.lock();
        *now += 1_000_000_000;
        *now
    }

    fn now(&self) -> Timestamp {
        Timestamp { seconds: 1, nanoseconds: 0 }
    }
}

/// Goal: a snapshot that is half freed loses and keeps what it should when blocks are moved beside
/// it. Method: of each second 4 KiB of several files, a snapshot has versions of its own, so that
/// many steps free one of them; segments are emptied between the steps.
#[test]
fn a_snapshot_that_is_being_freed_follows_what_is_moved() {
    let device = new_pool(2 * POOL_BYTES);
    let pool = open(&device);
    let mut prng = Prng::from_seed(1);
    let (caller, root) = (Caller::root(), pool.root());
    let overwrite = |pool: &Pool, prng: &mut Prng, one_in: u64| {
        for number in 0..FILES {
            let text = format!("f{number}");
            let found = pool.lookup(&caller, root, text.as_bytes()).expect("it is there");
            // Neighbours in the file are none in the segment: so each is freed by itself.
            for block in (0..500).map(|nth| nth * 97 % 500) {
                let byte = prng.next_u64().to_le_bytes()[0];
                if !prng.one_in(one_in) {
                    continue;
                }
                pool.write(&caller, found.ino, block * 4096, &[byte; 4096]).expect("room");
            }
            pool.forget(found.ino, 1);
        }
        pool.sync().expect("nothing fails");
    };
    for number in 0..FILES {
        let new = NewInode::new(FileKind::Regular, 0o644);
        let text = format!("f{number}");
        let made = pool.create(&caller, root, text.as_bytes(), new, None).expect("room");
        let data = vec![number.to_le_bytes()[0]; 2 << 20];
        pool.write(&caller, made.ino, 0, &data).expect("there is room");
        pool.forget(made.ino, 1);
    }
    let mut kept = Vec::new();
    for number in 0..3 {
        kept.push((take(&pool, number), contents(&pool, root)));
        overwrite(&pool, &mut prng, 2);
    }
    pool.close().expect("nothing fails");
    drop(pool);
    let options = PoolOpenOptions::default();
    let pool = Pool::open(Arc::clone(&device), Arc::new(Hasty::default()), options);
    let pool = pool.expect("the pool opens");
    pool.fileset_admin().delete_snapshot(&name("root"), &part("c1")).expect("nobody holds it");
    kept.remove(1);
    let mut steps = 0;
    while pool.fileset_admin().is_freeing().expect("the table can be read") {
        overwrite(&pool, &mut prng, 20);
        pool.clean().expect("nothing fails");
        pool.sync().expect("nothing fails");
        pool.checkpoint().expect("nothing fails");
        assert_clean(&device);
        pool.tick().expect("nothing fails");
        steps += 1;
    }
    assert!(steps > 2, "{steps} steps are too few");
    let now = contents(&pool, root);
    pool.clean().expect("nothing fails");
    overwrite_free_space(&pool);
    assert!(contents(&pool, root) == now);
    for (snapshot, contents) in &kept {
        assert!(contents_of_snapshot(&pool, snapshot) == *contents, "{snapshot}");
    }
    pool.close().expect("nothing fails");
    assert_clean(&device);
}

/// Goal: a fileset that copies what it shares with a snapshot misses no move. Method: one thread
/// empties segments, another writes a little to each file for the first time since the snapshot, in
/// the order of a seed.
#[test]
fn what_is_copied_for_a_fileset_beside_a_move_leads_to_the_new_place() {
    let mut all_moved = 0;
    for seed in 0..12 {
        let device = new_pool(POOL_BYTES);
        let shared = Arc::clone(&device);
        let scheduler = Scheduler::new(seed);
        let clock = Arc::new(SimClock::new(Arc::clone(&scheduler)));
        let opened = Mutex::new(None);
        let prepare = || {
            let pool = Pool::open(shared, clock, PoolOpenOptions::default()).expect("it opens");
            let (caller, root) = (Caller::root(), pool.root());
            let new = NewInode::new(FileKind::Regular, 0o644);
            for number in 0..2 * FILES {
                let text = format!("{}{}", if number % 2 == 0 { "f" } else { "g" }, number / 2);
                let made = pool.create(&caller, root, text.as_bytes(), new, None).expect("room");
                let data = vec![number.to_le_bytes()[0]; 60_000];
                pool.write(&caller, made.ino, 0, &data).expect("there is room");
                pool.forget(made.ino, 1);
            }
            pool.sync().expect("nothing fails");
            for number in 0..FILES {
                let text = format!("g{number}");
                pool.unlink(&caller, root, text.as_bytes(), None).expect("it is there");
            }
            pool.sync().expect("nothing fails");
            take(&pool, 0);
            *opened.lock() = Some(pool);
        };
        scheduler.run(vec![("open".to_owned(), Box::new(prepare))]);
        let pool = opened.into_inner().expect("the pool opens");
        let clean = || pool.clean().expect("nothing fails");
        let write = || {
            let (caller, root) = (Caller::root(), pool.root());
            for number in 0..FILES {
                let text = format!("f{number}");
                let found = pool.lookup(&caller, root, text.as_bytes()).expect("it is there");
                pool.write(&caller, found.ino, 20_000, &[0xaa; 10]).expect("there is room");
                pool.fsync(&caller, found.ino, false).expect("nothing fails");
                pool.forget(found.ino, 1);
            }
        };
        scheduler.run(vec![
            ("clean".to_owned(), Box::new(clean)),
            ("write".to_owned(), Box::new(write)),
        ]);
        all_moved += moved(&pool);
        pool.sync().expect("nothing fails");
        overwrite_free_space(&pool);
        let whole = |number: u64| vec![(2 * number).to_le_bytes()[0]; 60_000];
        for (is_snapshot, found) in
            [(true, contents_of_snapshot(&pool, "c0")), (false, contents(&pool, pool.root()))]
        {
            for number in 0..FILES {
                let mut expected = whole(number);
                if !is_snapshot {
                    expected[20_000..20_010].fill(0xaa);
                }
                assert!(found[&format!("f{number}")] == expected, "seed {seed}: {number}");
            }
        }
        pool.close().expect("nothing fails");
        assert_clean(&device);
    }
    assert!(all_moved > 100, "{all_moved} fragments were moved");
}

/// Goal: a block that as many hold as may is moved for all of them, and one more is refused with
/// the number. Method: between snapshots a file changes whose inode lies beside that of another, so
/// each snapshot has a page of its own that leads to the blocks of the other.
#[test]
fn a_block_is_moved_for_as_many_as_may_hold_it() {
    for (bytes, most) in [(48 << 20, 64), (1 << 30, 256)] {
        let device = new_pool(bytes);
        let pool = open(&device);
        let (caller, root) = (Caller::root(), pool.root());
        let make = |text: &str| {
            let new = NewInode::new(FileKind::Regular, 0o644);
            pool.create(&caller, root, text.as_bytes(), new, None).expect("there is room").ino
        };
        let (file, beside, garbage) = (make("f0"), make("f1"), make("garbage"));
        for offset in (0..60_000).step_by(10_000) {
            pool.write(&caller, file, offset, &[7; 10_000]).expect("there is room");
            // More than a segment.
            let much = vec![8; 2 << 20];
            pool.write(&caller, garbage, offset << 10, &much).expect("there is room");
            pool.sync().expect("nothing fails");
        }
        pool.unlink(&caller, root, b"garbage", None).expect("it is there");
        pool.forget(garbage, 1);
        let mut taken: u16 = 0;
        let refused = loop {
            pool.write(&caller, beside, 0, format!("{taken}").as_bytes()).expect("there is room");
            let snapshot = part(&format!("c{taken}"));
            let random = [taken.to_le_bytes()[0]; 16];
            if let Err(error) =
                pool.fileset_admin().create_snapshot(&name("root"), &snapshot, random)
            {
                break error.to_string();
            }
            taken += 1;
        };
        assert_eq!(taken + 1, most, "{refused}");
        assert!(refused.contains(&format!("{most} snapshots and filesets")), "{refused}");
        let kept = contents(&pool, root);
        let before = moved(&pool);
        pool.clean().expect("nothing fails");
        assert!(moved(&pool) > before);
        if bytes < 100 << 20 {
            overwrite_free_space(&pool);
        }
        assert!(contents(&pool, root) == kept);
        for number in (0..taken).step_by(9) {
            let found = contents_of_snapshot(&pool, &format!("c{number}"));
            assert_eq!(found["f0"], kept["f0"], "c{number} of {taken}");
            assert_eq!(found["f1"], format!("{number}").as_bytes(), "c{number} of {taken}");
        }
        pool.close().expect("nothing fails");
        assert_clean(&device);
    }
}

/// What must be there at a cut from one position of the recording to another.
struct There {
    /// `None`: the fileset itself.
    snapshot: Option<String>,
    contents: Contents,
    since: usize,
    until: usize,
}

fn judge(image: &Image, there: &[&There], is_cleaned_again: bool) -> Result<(), String> {
    let device = SimDevice::open(image.clone(), SimOptions::default());
    let shared: SharedDevice = Arc::<SimDevice>::clone(&device);
    let checked = |when: &str| super::expect_clean(&shared, when);
    checked("before the open")?;
    let pool = open(&shared);
    let same = |when: &str| {
        for it in there {
            let found = match &it.snapshot {
                Some(snapshot) => contents_of_snapshot(&pool, snapshot),
                None => contents(&pool, pool.root()),
            };
            if found != it.contents {
                return Err(format!("{when}: {:?}", it.snapshot));
            }
        }
        Ok(())
    };
    same("after the open")?;
    if is_cleaned_again {
        pool.clean().map_err(|error| error.to_string())?;
        same("after it was cleaned again")?;
        pool.close().map_err(|error| error.to_string())?;
        checked("after it was cleaned again")?;
    }
    Ok(())
}

/// Goal: no crash leaves a pointer to where a block is no more, or a fragment that nobody holds.
/// Method: cut at every write while segments are emptied of which snapshots hold blocks, beside
/// changes and a deletion.
#[test]
fn a_crash_beside_moves_leaves_whoever_holds_a_block_what_he_had() {
    let mut judged = 0;
    for seed in 0..2 {
        let device = SimDevice::new(CRASH_POOL_BYTES, SimOptions::default());
        let shared: SharedDevice = Arc::<SimDevice>::clone(&device);
        let create = PoolCreateOptions::new(CRASH_POOL_BYTES, [9; 64]);
        Pool::create(&shared, &ManualClock::new(), &create).expect("a pool fits");
        let pool = open(&shared);
        let mut prng = Prng::from_seed(seed);
        let mut there = Vec::new();
        for number in 0..3 {
            (0..25).for_each(|_| change(&pool, &mut prng, CRASH_LARGE));
            let contents = contents(&pool, pool.root());
            let snapshot = Some(take(&pool, number));
            there.push(There { snapshot, contents, since: 0, until: usize::MAX });
        }
        (0..10).for_each(|_| change(&pool, &mut prng, CRASH_LARGE));
        pool.close().expect("nothing fails");
        drop(pool);
        let options = SimOptions { is_recorded: true, ..SimOptions::default() };
        let device = SimDevice::open(device.durable_image(), options);
        let shared: SharedDevice = Arc::<SimDevice>::clone(&device);
        let pool = open(&shared);
        for round in 0..2 {
            let contents = contents(&pool, pool.root());
            let since = device.position();
            pool.clean().expect("nothing fails");
            there.push(There { snapshot: None, contents, since, until: device.position() });
            if round == 0 {
                there[1].until = device.position();
                pool.fileset_admin()
                    .delete_snapshot(&name("root"), &part("c1"))
                    .expect("nobody holds it");
                free_all(&pool);
            }
            (0..4).for_each(|_| change(&pool, &mut prng, CRASH_LARGE));
            pool.sync().expect("nothing fails");
        }
        assert!(moved(&pool) > 20, "{} fragments were moved", moved(&pool));
        drop(pool);
        let strategy =
            Strategy { exhaustive_writes_max: 1, random_subsets: 1, torn_variants: 0, seed };
        let there_at = |at: usize| {
            let is_there = |it: &There| (it.since..=it.until).contains(&at);
            (0..there.len()).filter(|&nth| is_there(&there[nth])).collect::<Vec<usize>>()
        };
        let recording = device.recording();
        judged += judge_cuts(&format!("seed {seed}"), &recording, &strategy, there_at, |cut| {
            let there: Vec<&There> = cut.known.iter().map(|&nth| &there[nth]).collect();
            judge(&cut.image, &there, cut.number.is_multiple_of(4))
        });
    }
    assert!(judged > 50, "{judged} images mean little");
}
