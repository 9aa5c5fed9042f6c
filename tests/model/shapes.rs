//! One history on pools of many shapes: what comes of it is no function of the shape.
//!
//! Goal: every answer, the tree with its contents, attributes and times, and the number of inodes
//! are the same on every pool, while it lives, after a recovery and after a close; what `df` says
//! is used is what the files have, and little more.
//!
//! Method: a table of shapes, each far from the others in one way or in several; the first is the
//! default. `HOLDFAST_SOAK=N` runs N times as many histories, `HOLDFAST_SEED=S` begins at another.

use std::sync::Arc;

use engine::alloc::policy::placement;
use engine::api::{Caller, FileSystem};
use engine::{Pool, PoolCreateOptions, PoolOpenOptions};
use runtime::clock::ManualClock;
use storage::device::{MemoryDevice, SharedDevice};
use testkit::canon::{Data, Times, Tree, walk};
use testkit::ops::{Generator, Outcome, Place, Profile, Route, Session, Step};

use super::setting;

const POOL_BYTES: u64 = 64 << 20;
const STEPS: usize = 300;
const SEEDS: u64 = 2;
/// Time between two steps.
const STEP_NS: u64 = 20_000_000;
/// What may be used besides what the files have: the pages of directories, maps and anodes that the
/// histories need, and what a metadata segment takes at once.
const METADATA_BYTES_MAX: u64 = 4 << 20;

/// How a pool is made, opened and kept busy.
struct Shape {
    name: &'static str,
    create: fn(&mut PoolCreateOptions),
    open: fn(&mut PoolOpenOptions),
    /// Steps from one tick to the next, and from one checkpoint; 0: none.
    tick_every: usize,
    checkpoint_every: usize,
}

const DEFAULT: Shape =
    Shape { name: "default", create: |_| (), open: |_| (), tick_every: 0, checkpoint_every: 0 };

const fn made(name: &'static str, create: fn(&mut PoolCreateOptions)) -> Shape {
    Shape { name, create, ..DEFAULT }
}

const fn opened(name: &'static str, open: fn(&mut PoolOpenOptions)) -> Shape {
    Shape { name, open, ..DEFAULT }
}

const fn paced(name: &'static str, tick_every: usize, checkpoint_every: usize) -> Shape {
    Shape { name, tick_every, checkpoint_every, ..DEFAULT }
}

fn place(open: &mut PoolOpenOptions, name: &str) {
    open.placement = placement(name).expect("the names are known");
}

const SHAPES: [Shape; 24] = [
    DEFAULT,
    made("fragments of 1 KiB", |create| create.geometry.fragment_bytes = 1024),
    made("fragments of 2 KiB", |create| create.geometry.fragment_bytes = 2048),
    made("blocks of 4 KiB", |create| create.block_shift = 12),
    made("blocks of 8 KiB", |create| create.block_shift = 13),
    made("blocks of 64 KiB", |create| {
        create.block_shift = 16;
        create.geometry.segment_bytes = Some(256 << 10);
    }),
    made("blocks of 256 KiB", |create| {
        create.block_shift = 18;
        create.geometry.segment_bytes = Some(1 << 20);
        create.geometry.group_bytes = Some(32 << 20);
    }),
    made("small fragments, large blocks", |create| {
        create.geometry.fragment_bytes = 1024;
        create.geometry.segment_bytes = Some(512 << 10);
        create.block_shift = 17;
    }),
    made("segments of 256 KiB", |create| create.geometry.segment_bytes = Some(256 << 10)),
    made("segments of 1 MiB", |create| {
        create.geometry.segment_bytes = Some(1 << 20);
        create.geometry.group_bytes = Some(16 << 20);
    }),
    made("small groups", |create| {
        create.geometry.segment_bytes = Some(256 << 10);
        create.geometry.group_bytes = Some(4 << 20);
    }),
    made("the smallest journal", |create| create.geometry.journal_bytes = Some(1 << 20)),
    made("a large journal", |create| create.geometry.journal_bytes = Some(16 << 20)),
    made("another device", |create| create.random = [0xa5; 64]),
    opened("data near its inode", |open| place(open, "ffs")),
    opened("one group at a time", |open| place(open, "hotspot")),
    opened("the smallest cache", |open| open.cache_bytes = 1 << 20),
    opened("no inline log data", |open| open.files.log_data_bytes_max = 0),
    opened("committed at once", |open| open.files.commit_interval_ns = 0),
    opened("a short active log", |open| open.active_log_bytes = 512 << 10),
    opened("few dirty pages", |open| open.dirty_pages = 64),
    paced("ticks and checkpoints all the time", 1, 2),
    paced("checkpoints now and then", 7, 40),
    Shape {
        name: "small everything",
        create: |create| {
            create.geometry.fragment_bytes = 1024;
            create.geometry.segment_bytes = Some(128 << 10);
            create.geometry.group_bytes = Some(4 << 20);
            create.geometry.journal_bytes = Some(1 << 20);
            create.block_shift = 12;
        },
        open: |open| {
            open.cache_bytes = 1 << 20;
            open.active_log_bytes = 256 << 10;
            open.dirty_pages = 64;
            open.files.log_data_bytes_max = 4 << 10;
            place(open, "ffs");
        },
        tick_every: 3,
        checkpoint_every: 11,
    },
];

/// What came of a history.
#[derive(Debug, PartialEq)]
struct Results {
    answers: Vec<Outcome>,
    tree: Tree,
    inode_count: u64,
}

impl Shape {
    fn open_pool(&self, device: &SharedDevice, clock: &Arc<ManualClock>) -> Pool {
        let mut options = PoolOpenOptions::default();
        (self.open)(&mut options);
        let clock = Arc::<ManualClock>::clone(clock);
        let opened = Pool::open(Arc::clone(device), clock, options);
        opened.unwrap_or_else(|error| panic!("{}: does not open: {error}", self.name))
    }

    /// Does `history`, loses the memory of the pool, closes it, and asks of the same things each
    /// time.
    fn results(&self, history: &[Step]) -> Results {
        let (name, clock) = (self.name, Arc::new(ManualClock::new()));
        let device: SharedDevice = MemoryDevice::new("memory", POOL_BYTES);
        let mut create = PoolCreateOptions::new(POOL_BYTES, [7; 64]);
        (self.create)(&mut create);
        Pool::create(&device, clock.as_ref(), &create).expect("a pool fits");
        let pool = self.open_pool(&device, &clock);
        let used_before = used_bytes(&pool);
        let answers = self.answers(&pool, &clock, history);
        pool.sync().expect("a memory device does not fail");
        let tree = tree_of(&pool, name);
        let inode_count =
            pool.statfs(&Caller::root(), pool.main_fileset()).expect("it is open").inode_count;
        drop(pool);
        let pool = self.open_pool(&device, &clock);
        assert!(tree_of(&pool, name) == tree, "{name}: another tree after a recovery");
        pool.close().expect("a memory device does not fail");
        drop(pool);
        let pool = self.open_pool(&device, &clock);
        assert!(tree_of(&pool, name) == tree, "{name}: another tree after a close");
        assert_eq!(
            pool.statfs(&Caller::root(), pool.main_fileset()).expect("it is open").inode_count,
            inode_count,
            "{name}"
        );
        let (content, held) = (content_bytes(&tree), held_bytes(&pool, &tree));
        let used = used_bytes(&pool) - used_before;
        assert!(held >= content, "{name}: {content} bytes of content in {held}");
        assert!(
            (held..held + METADATA_BYTES_MAX).contains(&used),
            "{name}: {used} bytes more are used, the files have {held}"
        );
        drop(pool);
        let report = check::run(device, check::CheckOptions::default(), &mut |_| ());
        assert!(report.is_clean(), "{name}: {}", report.to_text());
        Results { answers, tree, inode_count }
    }

    fn answers(&self, pool: &Pool, clock: &ManualClock, history: &[Step]) -> Vec<Outcome> {
        let is_due = |every: usize, index: usize| every > 0 && index % every == every - 1;
        let mut session = Session::new(pool, Times::Changes);
        let mut answers = Vec::new();
        for (index, step) in history.iter().enumerate() {
            clock.advance_ns(STEP_NS);
            if is_due(self.tick_every, index) {
                pool.tick().expect("a memory device does not fail");
            }
            if is_due(self.checkpoint_every, index) {
                pool.checkpoint().expect("a memory device does not fail");
            }
            answers.push(session.apply(step).outcome);
        }
        session.close_all();
        answers
    }
}

fn tree_of(pool: &Pool, name: &str) -> Tree {
    walk(pool, Times::Changes).unwrap_or_else(|error| panic!("{name}: {error}"))
}

fn used_bytes(pool: &Pool) -> u64 {
    let space = pool.statfs(&Caller::root(), pool.main_fileset()).expect("it is open");
    space.total_bytes - space.free_bytes
}

/// Returns how many bytes the pages that are not zeros have; of files that are kept in their
/// inodes none.
fn content_bytes(tree: &Tree) -> u64 {
    let of_inode = |inode: &testkit::canon::Inode| match &inode.data {
        Data::Pages(pages) if inode.attr.size_bytes > 256 => {
            let size_bytes = inode.attr.size_bytes;
            pages.keys().map(|page| (size_bytes - page * 4096).min(4096)).sum()
        }
        Data::Pages(_) | Data::Target(_) | Data::Nothing => 0,
    };
    tree.inodes.iter().map(of_inode).sum()
}

/// Returns how many bytes the files have by their attributes, each file once.
fn held_bytes(pool: &Pool, tree: &Tree) -> u64 {
    let session = Session::new(pool, Times::Ignored);
    let mut of_inode = vec![0; tree.inodes.len()];
    for (path, &index) in &tree.names {
        let names = path.0.split(|&byte| byte == b'/').filter(|name| !name.is_empty());
        let route = Route(names.map(<[u8]>::to_vec).collect());
        let attr = session.probe(&Place::At(route)).expect("it was walked");
        if matches!(tree.inodes[index].data, Data::Pages(_)) {
            of_inode[index] = attr.blocks_512 * 512;
        }
    }
    of_inode.iter().sum()
}

fn compared(profile: &Profile, first: u64) {
    let first = setting("HOLDFAST_SEED").unwrap_or(first);
    for seed in first..first + SEEDS * setting("HOLDFAST_SOAK").unwrap_or(1) {
        let history = Generator::history(seed, profile.clone(), STEPS);
        let expected = SHAPES[0].results(&history);
        for shape in &SHAPES[1..] {
            let found = shape.results(&history);
            let context = format!("HOLDFAST_SEED={seed}, {}", shape.name);
            let answers = expected.answers.iter().zip(&found.answers).enumerate();
            for (index, (expected, found)) in answers {
                assert!(
                    expected.agrees(found),
                    "{context}: step {index}, {}: {expected:?}, here {found:?}",
                    history[index]
                );
            }
            assert!(expected.tree == found.tree, "{context}: another tree");
            assert_eq!(expected.inode_count, found.inode_count, "{context}: inodes");
        }
    }
}

#[test]
fn pools_of_every_shape_make_the_same_of_a_bit_of_everything() {
    compared(&Profile::everyday(), 4000);
}

#[test]
fn pools_of_every_shape_make_the_same_of_names() {
    compared(&Profile::names(), 5000);
}

#[test]
fn pools_of_every_shape_make_the_same_of_contents() {
    compared(&Profile::data(), 6000);
}
