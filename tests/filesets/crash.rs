//! What a crash leaves of changes to filesets. Each is durable when it is answered, and there or
//! not there before: at every write and flush of a workload, and whatever the device kept of them.

use std::collections::BTreeSet;
use std::sync::Arc;

use engine::api::FileSystem;
use engine::{FilesetChange, Pool, PoolCreateOptions, PoolOpenOptions};
use format::fileset::NamePart;
use runtime::clock::ManualClock;
use runtime::prng::Prng;
use storage::device::SharedDevice;
use storage::device::sim::{Image, SimDevice, SimOptions, Strategy};
use testkit::crash::judge_cuts;

use super::{expect_clean, free_all, name, names, new_fileset, work};

const POOL_BYTES: u64 = 24 << 20;
/// Filesets with files in them, which a workload deletes and renames.
const FILLED: u64 = 4;
const SEEDS: u64 = 3;
const OPERATIONS: usize = 24;

type Names = BTreeSet<String>;

fn open(device: &Arc<SimDevice>, fileset: Option<&str>) -> Pool {
    let shared: SharedDevice = Arc::<SimDevice>::clone(device);
    let options = PoolOpenOptions { fileset: fileset.map(name), ..PoolOpenOptions::default() };
    Pool::open(shared, Arc::new(ManualClock::new()), options).expect("the pool opens")
}

/// Returns the image of a pool with filesets that have files in them.
fn filled_pool() -> Image {
    let device = SimDevice::new(POOL_BYTES, SimOptions::default());
    let shared: SharedDevice = Arc::<SimDevice>::clone(&device);
    let create = PoolCreateOptions::new(POOL_BYTES, [9; 64]);
    Pool::create(&shared, &ManualClock::new(), &create).expect("a pool fits");
    for number in 0..FILLED {
        let text = format!("filled{number}");
        let pool = open(&device, None);
        let random = new_fileset(u8::try_from(number).expect("few"));
        pool.fileset_admin().create_fileset(&name(&text), &random).expect("there is room");
        pool.close().expect("nothing fails");
        let pool = open(&device, Some(&text));
        work(&pool, number, 200);
        pool.close().expect("nothing fails");
    }
    device.durable_image()
}

/// A state of the names, and the span of the recording in which it may be found.
struct State {
    names: Names,
    began: usize,
    ended: usize,
}

/// Changes filesets by chance; returns each state of their names.
fn run(device: &Arc<SimDevice>, seed: u64) -> Vec<State> {
    let pool = open(device, None);
    let mut prng = Prng::from_seed(seed);
    let mut now: Names = names(&pool).into_iter().collect();
    let mut states = vec![State { names: now.clone(), began: 0, ended: usize::MAX }];
    for number in 0..OPERATIONS {
        let began = device.position();
        let all: Vec<&String> = now.iter().collect();
        let chosen = all[usize::try_from(prng.next_u64()).expect("64 bits") % all.len()].clone();
        let fresh = format!("n{number}");
        let fresh = if prng.one_in(2) { format!("{chosen}/{fresh}") } else { fresh };
        let below = |text: &str| text.starts_with(&format!("{chosen}/"));
        match prng.below(4) {
            0 => {
                let random = new_fileset(u8::try_from(number).expect("few"));
                pool.fileset_admin().create_fileset(&name(&fresh), &random).expect("there is room");
                now.insert(fresh);
            }
            1 => {
                let change = FilesetChange { name: Some(name(&fresh)), ..FilesetChange::default() };
                if pool.fileset_admin().change_fileset(&name(&chosen), &change).is_ok() {
                    let moved = |text: &String| match text.strip_prefix(&chosen) {
                        Some(rest) if rest.is_empty() || below(text) => format!("{fresh}{rest}"),
                        _ => text.clone(),
                    };
                    now = now.iter().map(moved).collect();
                }
            }
            2 => {
                if pool.fileset_admin().delete_fileset(&name(&chosen)).is_ok() {
                    now.remove(&chosen);
                }
            }
            _ => pool.tick().expect("nothing fails"),
        }
        if prng.one_in(6) {
            pool.checkpoint().expect("nothing fails");
        }
        let last = states.last_mut().expect("there is one");
        last.ended = device.position();
        states.push(State { names: now.clone(), began, ended: usize::MAX });
    }
    states
}

/// Opens an image, holds its names against what they may be, and checks it: as it is, and once all
/// that was deleted is freed.
fn judge(image: &Image, allowed: &[&Names]) -> Result<(), String> {
    let device = SimDevice::open(image.clone(), SimOptions::default());
    let checked = |when: &str| {
        let shared: SharedDevice = Arc::<SimDevice>::clone(&device);
        super::expect_clean(&shared, when)
    };
    checked("before the open")?;
    let pool = open(&device, None);
    let found: Names = names(&pool).into_iter().collect();
    if !allowed.contains(&&found) {
        return Err(format!("found {found:?}, which is none of {allowed:?}"));
    }
    checked("after the open")?;
    pool.tick().map_err(|error| error.to_string())?;
    pool.checkpoint().map_err(|error| error.to_string())?;
    checked("in the middle of freeing")?;
    free_all(&pool);
    pool.close().map_err(|error| error.to_string())?;
    checked("after all is freed")
}

/// Goal: no crash loses or halves a change to filesets, or leaves a fragment that nobody holds.
#[test]
fn a_crash_leaves_each_change_of_filesets_whole_or_undone() {
    let base = filled_pool();
    let mut judged = 0;
    for seed in 0..SEEDS {
        let options = SimOptions { is_recorded: true, ..SimOptions::default() };
        let device = SimDevice::open(base.clone(), options);
        let states = run(&device, seed);
        let strategy =
            Strategy { exhaustive_writes_max: 3, random_subsets: 2, torn_variants: 1, seed };
        let may_be = |at: usize| {
            let is_one = |state: &State| state.began < at.max(1) && at <= state.ended;
            (0..states.len()).filter(|&nth| is_one(&states[nth])).collect::<Vec<usize>>()
        };
        let recording = device.recording();
        judged += judge_cuts(&format!("seed {seed}"), &recording, &strategy, may_be, |cut| {
            let allowed: Vec<&Names> = cut.known.iter().map(|&nth| &states[nth].names).collect();
            judge(&cut.image, &allowed)
        });
    }
    assert!(judged > 500, "{judged} images mean little");
}

/// A pool whose table has two pages of entries: those of a snapshot and of what came of it lie
/// apart.
struct Apart {
    device: Arc<SimDevice>,
    pool: Pool,
    slots: u8,
}

impl Apart {
    fn new() -> Apart {
        let device = SimDevice::new(POOL_BYTES, SimOptions::default());
        let shared: SharedDevice = Arc::<SimDevice>::clone(&device);
        let create = PoolCreateOptions::new(POOL_BYTES, [9; 64]);
        Pool::create(&shared, &ManualClock::new(), &create).expect("a pool fits");
        let pool = open(&device, None);
        work(&pool, 1, 100);
        Apart { device, pool, slots: 1 }
    }

    /// Takes a snapshot of what is there, and changes some of that.
    fn take_snapshot(&mut self, text: &str) {
        let taken =
            self.pool.fileset_admin().create_snapshot(&name("root"), &part(text), [self.slots; 16]);
        taken.expect("there is room");
        self.slots += 1;
        work(&self.pool, u64::from(self.slots), 100);
    }

    /// Fills the first page of the table.
    fn fill_page(&mut self) {
        for number in self.slots..FIRST_PAGE_SLOTS {
            let new = new_fileset(number);
            self.pool
                .fileset_admin()
                .create_fileset(&name(&format!("f{number}")), &new)
                .expect("there is room");
        }
        self.slots = FIRST_PAGE_SLOTS;
    }

    /// Cuts the power at once; holds what is left against the checker, and once all is freed.
    fn cut(self) {
        drop(self.pool);
        let device = SimDevice::open(self.device.durable_image(), SimOptions::default());
        let shared: SharedDevice = Arc::<SimDevice>::clone(&device);
        expect_clean(&shared, "after the crash").expect("it is whole");
        let pool = open(&device, None);
        free_all(&pool);
        pool.close().expect("nothing fails");
        drop(pool);
        expect_clean(&shared, "after all is freed").expect("nothing leaks");
    }
}

/// Entries on a page of the table.
const FIRST_PAGE_SLOTS: u8 = 7;

fn part(text: &str) -> NamePart {
    NamePart::new(text).expect("it is a name")
}

/// Goal: a snapshot whose clone was just freed is deleted, and no crash keeps that and brings the
/// clone back. Method: nobody but who deletes the snapshot makes anything last.
#[test]
fn a_crash_brings_no_clone_back_of_a_snapshot_that_is_deleted() {
    let mut apart = Apart::new();
    apart.take_snapshot("c");
    apart.take_snapshot("d");
    apart.fill_page();
    let from = (&name("root"), &part("c"));
    apart.pool.fileset_admin().create_clone(from, &name("clone"), [8; 16]).expect("there is room");
    apart.pool.sync().expect("nothing fails");
    apart.pool.fileset_admin().delete_fileset(&name("clone")).expect("nobody has it");
    free_all(&apart.pool);
    apart.pool.fileset_admin().delete_snapshot(&name("root"), &part("c")).expect("nobody has it");
    apart.cut();
}
