//! Scrub of pools that are whole: what an earlier life of a segment left there is no damage, and
//! nothing is written over it.

use std::collections::BTreeSet;

use engine::api::{Caller, FileKind, FileSystem, NewInode, SetAttr};
use engine::{Pool, PoolCreateOptions, ScrubReport};
use format::members::Layout;
use runtime::clock::ManualClock;
use runtime::prng::Prng;
use storage::device::sim::Image;

use super::raid5::{MEMBER_BYTES, all_but, content, new_raid5};
use super::rebuild::open;
use super::{Devices, NOTHING, devices_of, put, reopened, shared, unmended};

/// Rounds of each load, over all pools.
const ROUNDS: usize = 100;
/// Pools that these are spread over, each of a seed of its own.
const POOLS: usize = 10;
/// Names that are made in a round: enough that segments that had data become metadata.
const NAMES: usize = 400;

/// What a load does to a pool.
struct Load {
    pool: Pool,
    prng: Prng,
    /// Files that are there.
    files: BTreeSet<String>,
}

impl Load {
    fn new(pool: Pool, seed: u64) -> Load {
        Load { pool, prng: Prng::from_seed(seed), files: BTreeSet::new() }
    }

    fn checkpoint(&mut self) {
        self.pool.checkpoint().expect("nothing fails");
    }

    fn below(&mut self, end: usize) -> usize {
        let end = u64::try_from(end).expect("small");
        usize::try_from(self.prng.below(end)).expect("small")
    }

    /// Writes a file, durably: its segment gets a summary.
    fn put(&mut self, name: &str, version: u8) {
        let length = 5_000 + self.below(40_000);
        put(&self.pool, name, &content(version, length)).expect("there is room");
        self.files.insert(name.to_owned());
    }

    fn make(&mut self, name: &str) {
        let new = NewInode::new(FileKind::Regular, 0o644);
        let made = self.pool.create(&Caller::root(), self.pool.root(), name.as_bytes(), new, None);
        self.pool.forget(made.expect("there is room").ino, 1);
        self.files.insert(name.to_owned());
    }

    fn remove(&mut self, starts_with: &str) {
        let (caller, root) = (Caller::root(), self.pool.root());
        let names = self.files.iter().filter(|name| name.starts_with(starts_with));
        for name in names.cloned().collect::<Vec<_>>() {
            let ino = self.pool.lookup(&caller, root, name.as_bytes()).expect("it is there").ino;
            self.pool.unlink(&caller, root, name.as_bytes(), None).expect("it is there");
            self.pool.forget(ino, 2);
            self.files.remove(&name);
        }
    }

    /// Cuts a file somewhere, or makes it longer, and writes some bytes somewhere in it.
    fn truncate_and_write(&mut self, name: &str) {
        let (caller, root) = (Caller::root(), self.pool.root());
        if !self.files.contains(name) {
            self.make(name);
        }
        let ino = self.pool.lookup(&caller, root, name.as_bytes()).expect("it is there").ino;
        let size_bytes = u64::try_from(self.below(32_768) * 30).expect("small");
        let change = SetAttr { size_bytes: Some(size_bytes), ..SetAttr::default() };
        self.pool.setattr(&caller, ino, &change, None).expect("there is room");
        let offset = u64::try_from(self.below(50) * 20_000).expect("small");
        let bytes = content(3, 20_000);
        self.pool.write(&caller, ino, offset, &bytes).expect("there is room");
        self.pool.forget(ino, 1);
    }

    /// Scrubs the pool, and does something between its steps.
    fn scrub(&mut self, mut between: impl FnMut(&mut Load)) -> ScrubReport {
        assert!(self.pool.devices().scrub().expect("all members are online"));
        for _ in 0..2000 {
            self.pool.tick().expect("nothing fails");
            let report = self.pool.devices().scrub_report().expect("one was begun");
            if report.is_done {
                return report;
            }
            between(self);
        }
        panic!("the scrub does not end: {:?}", self.pool.jobs());
    }
}

fn assert_whole(found: &ScrubReport, what: &str) {
    let written = (found.repaired, found.parities);
    assert_eq!((written, unmended(found)), ((0, 0), NOTHING), "{what}: {found:?}");
}

/// Many files with summaries come and go, then many names, so that segments that were data become
/// metadata, and data again; scrubs are beside that, at rest, and after a clean close.
fn lives(devices: &Devices, count: usize, seed: u64) {
    let mut devices = reopened(devices, &all_but(count, count));
    let mut files = BTreeSet::new();
    for round in 0..ROUNDS / POOLS {
        let what = |when: &str| format!("seed {seed}, round {round}, {when}");
        let mut load = Load::new(open(&devices).expect("it was closed"), seed + 1000);
        load.files = files;
        load.prng = Prng::from_seed(seed * 1000 + u64::try_from(round).expect("few"));
        for number in 0..60 {
            load.put(&format!("data{number}"), 1);
        }
        load.remove("data");
        load.pool.checkpoint().expect("nothing fails");
        load.pool.tick().expect("nothing fails");
        let mut made = 0;
        let found = load.scrub(|load| {
            for number in made..(made + 8).min(NAMES) {
                load.make(&format!("name{round}-{number}-{}", "x".repeat(100)));
            }
            made += 8;
            load.put(&format!("kept{}", made % 7), 2);
        });
        assert_whole(&found, &what("busy"));
        for number in made..NAMES {
            load.make(&format!("name{round}-{number}-{}", "x".repeat(100)));
        }
        let found = load.scrub(|load| {
            let number = load.below(7);
            load.put(&format!("kept{number}"), 3);
        });
        assert_whole(&found, &what("busy again"));
        let found = load.scrub(Load::checkpoint);
        assert_whole(&found, &what("at rest"));
        load.pool.close().expect("nothing fails");
        files = load.files;
        devices = reopened(&devices, &all_but(count, count));
        let mut load = Load::new(open(&devices).expect("it was closed"), seed);
        load.files = files;
        let found = load.scrub(|_| ());
        assert_whole(&found, &what("after a clean close"));
        if round % 3 == 2 {
            load.remove("name");
        }
        load.pool.close().expect("nothing fails");
        files = load.files;
        devices = reopened(&devices, &all_but(count, count));
    }
}

/// Goal: a scrub of a raid5 without a fault writes nothing again and misses nothing, whatever its
/// segments held before.
#[test]
fn what_segments_held_before_is_no_damage_of_a_raid5() {
    for seed in 0..POOLS {
        let count = 3 + seed % 3;
        lives(&new_raid5(count), count, u64::try_from(seed).expect("few"));
    }
}

/// Goal: the same of a mirror.
#[test]
fn what_segments_held_before_is_no_damage_of_a_mirror() {
    for seed in 0..POOLS {
        let count = 2 + seed % 2;
        let devices = devices_of(vec![Image::blank(2 * MEMBER_BYTES); count]);
        let mut options = PoolCreateOptions::new(2 * MEMBER_BYTES, [5; 64]);
        options.geometry.journal_bytes = Some(1 << 20);
        let clock = ManualClock::new();
        Pool::create_on(&shared(&devices), Layout::Mirror, &clock, &options).expect("it fits");
        lives(&devices, count, u64::try_from(seed).expect("few"));
    }
}

/// Goal: the same beside files that are cut and written to in the middle.
#[test]
fn files_that_are_cut_and_written_are_no_damage() {
    for seed in 0..POOLS {
        let count = 4;
        let devices = reopened(&new_raid5(count), &all_but(count, count));
        let seed = u64::try_from(seed).expect("few");
        let mut load = Load::new(open(&devices).expect("it was closed"), seed);
        for number in 0..200 {
            load.put(&format!("data{number}"), 1);
        }
        load.remove("data");
        load.pool.checkpoint().expect("nothing fails");
        for round in 0..ROUNDS / POOLS {
            let found = load.scrub(|load| {
                let number = load.below(6);
                load.truncate_and_write(&format!("f{number}"));
            });
            assert_whole(&found, &format!("seed {seed}, round {round}"));
            let found = load.scrub(Load::checkpoint);
            assert_whole(&found, &format!("seed {seed}, round {round}, at rest"));
        }
    }
}
