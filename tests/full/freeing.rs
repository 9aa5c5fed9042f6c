//! At 100 % everything that frees works, and afterwards all of the pool can be used again.
//!
//! A case is a seed. It chooses the sizes of a pool and what fills it, and steps: fill the pool to
//! the brim, free something, let background work go on. A step takes its chances from its own
//! number, so that steps can be left out: a case that fails is shortened so, and printed as one
//! line, `HOLDFAST_FULL=seed:steps`, that repeats it.
//!
//! The first step fills a pool, the others only what was freed; so a soak has more steps, with
//! `HOLDFAST_FULL_STEPS`, rather than more cases.

use std::panic::{AssertUnwindSafe, catch_unwind};

use engine::api::{
    Caller, FileKind, FileSystem, FsError, FsResult, Ino, NewInode, RenameMode, SetAttr,
};
use runtime::prng::Prng;
use whole_system::soak::Soak;

use super::promise::{PAGES_LEFT, expect_promise_kept};
use super::{Ground, Shape};

/// Cases of a run in CI; `HOLDFAST_FULL_CASES` says otherwise.
const CASES: u64 = 12;
/// Steps of a case in CI; `HOLDFAST_FULL_STEPS` says otherwise.
const STEPS: u64 = 48;
/// Most operations that one step fills a pool with: more than fit.
const FILL_MAX: u64 = 40_000;
/// Operations of different kinds that are refused in a row before a pool counts as full.
const REFUSALS: u64 = 6;

const SHAPES: &[Shape] = &[
    Shape::new(8, 4096, 128, 14),
    Shape::new(8, 1024, 128, 12),
    Shape::new(10, 2048, 128, 13),
    Shape::new(36, 4096, 256, 16),
    Shape::new(16, 4096, 128, 15),
];

/// A name: in a directory, by its index, with what it leads to.
#[derive(Clone, Debug)]
struct Name {
    directory: usize,
    name: String,
    ino: Ino,
}

#[derive(Clone, Debug)]
struct Directory {
    ino: Ino,
    /// `None`: the root.
    name: Option<Name>,
    entries: usize,
}

/// What fills the pool, as the case knows it.
struct Tree {
    directories: Vec<Directory>,
    files: Vec<Name>,
    named: u64,
}

/// What a case is full of, in eighths.
#[derive(Clone, Copy, Debug)]
struct Mix {
    large: u64,
    sparse: u64,
    rewrites: u64,
    directories: u64,
    links: u64,
    symlinks: u64,
}

struct Case {
    ground: Ground,
    shape: Shape,
    tree: Tree,
    mix: Mix,
    /// Operations that freed something or moved a name.
    freed: u64,
}

fn shape_of(seed: u64) -> (Shape, Mix) {
    let mut prng = Prng::from_seed(seed);
    let shapes = u64::try_from(SHAPES.len()).expect("a few");
    let mut shape = SHAPES[usize::try_from(prng.below(shapes)).expect("a few")];
    if prng.one_in(3) {
        // A log that is nearly full all the time.
        shape.active_log_bytes = 0;
        shape.dirty_pages = 0;
    }
    if prng.one_in(3) {
        shape.cache_bytes = 0;
    }
    let mut share = || if prng.one_in(2) { prng.below(8) } else { 0 };
    let mix = Mix {
        large: share(),
        sparse: share(),
        rewrites: share(),
        directories: share(),
        links: share(),
        symlinks: share(),
    };
    (shape, mix)
}

fn pick<T>(prng: &mut Prng, from: &[T]) -> Option<usize> {
    let count = u64::try_from(from.len()).expect("a test's lists are short");
    (count > 0).then(|| usize::try_from(prng.below(count)).expect("below a usize"))
}

impl Case {
    fn new(seed: u64) -> Case {
        let (shape, mix) = shape_of(seed);
        let ground = Ground::new(&shape);
        let root = Directory { ino: ground.pool.root(), name: None, entries: 0 };
        let tree = Tree { directories: vec![root], files: Vec::new(), named: 0 };
        Case { ground, shape, tree, mix, freed: 0 }
    }

    fn fresh_name(&mut self, prng: &mut Prng) -> String {
        self.tree.named += 1;
        let tail = if prng.one_in(8) { "x".repeat(200) } else { String::new() };
        format!("n{}{tail}", self.tree.named)
    }

    /// A directory, the newest more often than others: so they get deep.
    fn some_directory(&self, prng: &mut Prng) -> usize {
        let newest = self.tree.directories.len() - 1;
        if prng.one_in(2) { newest } else { pick(prng, &self.tree.directories).unwrap_or(newest) }
    }

    fn add(&mut self, directory: usize, name: String, kind: FileKind) -> FsResult<Ino> {
        let parent = self.tree.directories[directory].ino;
        let ino = self.ground.make(parent, &name, kind)?;
        self.tree.directories[directory].entries += 1;
        let name = Name { directory, name, ino };
        if kind == FileKind::Directory {
            self.tree.directories.push(Directory { ino, name: Some(name), entries: 0 });
        } else {
            self.tree.files.push(name);
        }
        Ok(ino)
    }

    fn write(&self, ino: Ino, offset: u64, length: u64) -> FsResult<()> {
        let data = vec![7; usize::try_from(length).expect("it fits in memory")];
        self.ground.pool.write(&Caller::root(), ino, offset, &data)
    }

    /// One operation that takes room.
    fn take(&mut self, prng: &mut Prng) -> FsResult<()> {
        let mix = self.mix;
        let is = |prng: &mut Prng, share: u64| prng.below(8) < share;
        if is(prng, mix.directories) {
            let directory = self.some_directory(prng);
            let name = self.fresh_name(prng);
            return self.add(directory, name, FileKind::Directory).map(|_| ());
        }
        if is(prng, mix.rewrites)
            && let Some(file) = pick(prng, &self.tree.files)
        {
            let result =
                self.write(self.tree.files[file].ino, prng.below(1 << 18), prng.below(50_000));
            // A symbolic link is not written to.
            return if result == Err(FsError::Invalid) { Ok(()) } else { result };
        }
        if is(prng, mix.links)
            && let Some(file) = pick(prng, &self.tree.files)
        {
            let ino = self.tree.files[file].ino;
            let (directory, name) = (self.some_directory(prng), self.fresh_name(prng));
            let parent = self.tree.directories[directory].ino;
            pool_link(&self.ground, ino, parent, &name)?;
            self.tree.directories[directory].entries += 1;
            self.tree.files.push(Name { directory, name, ino });
            return Ok(());
        }
        if is(prng, mix.symlinks) {
            let (directory, name) = (self.some_directory(prng), self.fresh_name(prng));
            let parent = self.tree.directories[directory].ino;
            let target = vec![b'a'; usize::try_from(1 + prng.below(4000)).expect("small")];
            let made = self.ground.pool.symlink(
                &Caller::root(),
                parent,
                name.as_bytes(),
                &target,
                NewInode::SYMLINK,
                None,
            )?;
            self.ground.pool.forget(made.ino, 1);
            self.tree.directories[directory].entries += 1;
            self.tree.files.push(Name { directory, name, ino: made.ino });
            return Ok(());
        }
        let directory = self.some_directory(prng);
        let name = self.fresh_name(prng);
        let ino = self.add(directory, name, FileKind::Regular)?;
        if is(prng, mix.sparse) {
            for _ in 0..4 {
                let power = prng.below(50);
                self.write(ino, prng.below(1 << power), 1 + prng.below(5000))?;
            }
            return Ok(());
        }
        let most = if is(prng, mix.large) { 1 << 20 } else { 6000 };
        self.write(ino, 0, prng.below(most))
    }

    /// Fills the pool until nothing fits any more.
    fn fill(&mut self, prng: &mut Prng) {
        let mut refused = 0;
        for _ in 0..FILL_MAX {
            match self.take(prng) {
                Ok(()) => refused = 0,
                Err(FsError::NoSpace) => refused += 1,
                Err(error) => panic!("an operation of a pool that fills: {error}"),
            }
            if refused == REFUSALS {
                return;
            }
            if prng.one_in(64) {
                self.background(prng);
            }
        }
    }

    fn background(&mut self, prng: &mut Prng) {
        let pool = &self.ground.pool;
        match prng.below(5) {
            0 => pool.sync().expect("what was accepted finds room"),
            1 => pool.checkpoint().expect("a checkpoint needs no room"),
            2 => self.ground.clock.advance_ns(6_000_000_000),
            // Often it stops with blocks that the cleaner has moved and not yet installed.
            _ => pool.tick().expect("background work needs no room"),
        }
    }

    /// One operation that frees something, or moves a name; it must work.
    fn free(&mut self, prng: &mut Prng) {
        match prng.below(8) {
            0 | 1 => self.cut(prng),
            2 => self.move_name(prng, false),
            3 => self.move_name(prng, true),
            4 => self.remove_directory(),
            _ => self.remove_file(prng),
        }
    }

    fn cut(&mut self, prng: &mut Prng) {
        let Some(file) = pick(prng, &self.tree.files) else { return };
        let (pool, ino) = (&self.ground.pool, self.tree.files[file].ino);
        let attr = pool.getattr(&Caller::root(), ino).expect("it is there");
        if attr.kind != FileKind::Regular || attr.size_bytes == 0 {
            return;
        }
        let to = if prng.one_in(2) { 0 } else { prng.below(attr.size_bytes) };
        let change = SetAttr { size_bytes: Some(to), ..SetAttr::default() };
        let done = pool.setattr(&Caller::root(), ino, &change, None);
        done.unwrap_or_else(|error| panic!("a cut from {} to {to}: {error}", attr.size_bytes));
        self.freed += 1;
    }

    /// Gives a file a name as long as it has, or that of another file of its directory.
    fn move_name(&mut self, prng: &mut Prng, replaces: bool) {
        let Some(moved) = pick(prng, &self.tree.files) else { return };
        let source = self.tree.files[moved].clone();
        let parent = self.tree.directories[source.directory].ino;
        let is_other = |name: &Name| name.directory == source.directory && name.ino != source.ino;
        let other = self.tree.files.iter().position(is_other).filter(|_| replaces);
        let name = match other {
            Some(other) => self.tree.files[other].name.clone(),
            None => {
                self.tree.named += 1;
                let mut name = format!("r{}", self.tree.named);
                name.truncate(source.name.len().max(2));
                if self.tree.files.iter().any(|file| file.name == name) {
                    return;
                }
                name
            }
        };
        let done = self.ground.pool.rename(
            &Caller::root(),
            (parent, source.name.as_bytes()),
            (parent, name.as_bytes()),
            RenameMode::Replace,
            None,
        );
        done.unwrap_or_else(|error| panic!("rename of {} to {name}: {error}", source.name));
        self.freed += 1;
        self.tree.files[moved].name = name;
        if let Some(other) = other {
            self.tree.files.swap_remove(other);
            self.tree.directories[source.directory].entries -= 1;
        }
    }

    fn remove_file(&mut self, prng: &mut Prng) {
        let Some(file) = pick(prng, &self.tree.files) else { return };
        let Name { directory, name, .. } = self.tree.files.swap_remove(file);
        let parent = self.tree.directories[directory].ino;
        let done = self.ground.pool.unlink(&Caller::root(), parent, name.as_bytes(), None);
        done.unwrap_or_else(|error| panic!("unlink of {name}: {error}"));
        self.freed += 1;
        self.tree.directories[directory].entries -= 1;
    }

    /// Removes the newest directory, if it is empty.
    fn remove_directory(&mut self) {
        let is_empty = self.tree.directories.last().is_some_and(|last| last.entries == 0);
        if !is_empty || self.tree.directories.len() == 1 {
            return;
        }
        let Some(Directory { name: Some(Name { directory, name, .. }), .. }) =
            self.tree.directories.pop()
        else {
            return;
        };
        let parent = self.tree.directories[directory].ino;
        let done = self.ground.pool.rmdir(&Caller::root(), parent, name.as_bytes(), None);
        done.unwrap_or_else(|error| panic!("rmdir of {name}: {error}"));
        self.freed += 1;
        self.tree.directories[directory].entries -= 1;
    }

    fn step(&mut self, seed: u64, number: u64) {
        let mut prng = Prng::from_seed(seed.rotate_left(32) ^ number);
        self.fill(&mut prng);
        if prng.one_in(4) {
            self.background(&mut prng);
        }
        self.free(&mut prng);
    }

    /// Removes everything; each removal must work.
    fn empty(&mut self) {
        let mut prng = Prng::from_seed(0);
        while !self.tree.files.is_empty() {
            self.remove_file(&mut prng);
        }
        while self.tree.directories.len() > 1 {
            self.remove_directory();
        }
    }
}

fn pool_link(ground: &Ground, ino: Ino, parent: Ino, name: &str) -> FsResult<()> {
    let linked = ground.pool.link(&Caller::root(), ino, parent, name.as_bytes(), None)?;
    ground.pool.forget(linked.ino, 1);
    Ok(())
}

/// Runs the steps of a case. Calls `each` behind each with its number, and how many operations have
/// freed something in a full pool.
fn run(seed: u64, steps: &[u64], each: &mut dyn FnMut(u64, u64)) {
    let mut case = Case::new(seed);
    let first = case.ground.available();
    for &number in steps {
        let before = case.freed;
        case.step(seed, number);
        each(number, case.freed - before);
    }
    case.empty();
    let again = case.ground.available();
    let kept = PAGES_LEFT * case.shape.segment_bytes;
    assert!(again + kept >= first, "{first} bytes at first, {again} when all is deleted");
    if seed.is_multiple_of(4) {
        expect_promise_kept(&case.ground, "emptied", &case.shape);
    }
    assert_eq!(case.ground.defects(), None);
}

fn fails(seed: u64, steps: &[u64]) -> bool {
    catch_unwind(AssertUnwindSafe(|| run(seed, steps, &mut |_, _| ()))).is_err()
}

/// Returns as few of `steps` as still fail.
fn shrunk(seed: u64, mut steps: Vec<u64>) -> Vec<u64> {
    let mut length = steps.len() / 2;
    while length > 0 {
        let mut at = 0;
        while at < steps.len() {
            let mut fewer = steps.clone();
            fewer.drain(at..(at + length).min(steps.len()));
            if fails(seed, &fewer) {
                steps = fewer;
            } else {
                at += length;
            }
        }
        length /= 2;
    }
    steps
}

fn replay_line(seed: u64, steps: &[u64]) -> String {
    let steps: Vec<String> = steps.iter().map(u64::to_string).collect();
    format!("HOLDFAST_FULL={seed}:{} cargo test -p whole-system --test full", steps.join(","))
}

pub(super) fn number_of(variable: &str, default: u64) -> u64 {
    match std::env::var(variable) {
        Ok(text) => text.parse().unwrap_or_else(|_| panic!("{variable} is a number")),
        Err(_) => default,
    }
}

/// Goal: whatever a pool is full of, each operation that frees works, and when all is deleted the
/// pool is as it was. Method: see the module.
#[test]
fn a_full_pool_can_always_be_emptied() {
    if let Ok(line) = std::env::var("HOLDFAST_FULL") {
        let (seed, steps) = line.split_once(':').expect("seed:steps");
        let number = |text: &str| text.parse().expect("a number");
        let steps: Vec<u64> =
            steps.split(',').filter(|text| !text.is_empty()).map(number).collect();
        run(number(seed), &steps, &mut |_, _| ());
        return;
    }
    let first = number_of("HOLDFAST_SEED", 0);
    let cases = number_of("HOLDFAST_FULL_CASES", CASES);
    let steps: Vec<u64> = (0..number_of("HOLDFAST_FULL_STEPS", STEPS)).collect();
    let mut soak = Soak::of("operations that freed something in a full pool");
    for seed in first..first + cases {
        let mut each = |number, freed| {
            soak.begin(seed << 32 | number);
            soak.add(freed, || format!("pool {seed}, step {number}"));
        };
        if catch_unwind(AssertUnwindSafe(|| run(seed, &steps, &mut each))).is_err() {
            soak.pause();
            let line = replay_line(seed, &shrunk(seed, steps));
            panic!("{:?}: again with\n{line}", shape_of(seed));
        }
    }
    println!("{}", soak.line(&format!("{cases} pools")));
}
