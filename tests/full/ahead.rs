//! What a program took ahead with fallocate(2) it can write, however full the pool has become.

use engine::api::{Caller, Fallocate, FileKind, FileSystem, FsError, Ino, SetAttr};
use runtime::prng::Prng;
use testkit::ops::bytes_of;

use super::freeing::number_of;
use super::{Ground, Shape};

/// Cases of a run in CI; `HOLDFAST_FULL_CASES` says otherwise.
const CASES: u64 = 10;
/// Most bytes of one write.
const WRITE_BYTES_MAX: u64 = 100_000;

pub(super) const SHAPES: &[Shape] = &[
    Shape::new(16, 4096, 128, 14),
    Shape::new(16, 1024, 128, 14),
    Shape::new(24, 2048, 128, 12),
    Shape::new(48, 4096, 256, 16),
];

/// A file of which a range was taken ahead, and what it must hold.
pub(super) struct Ahead {
    ino: Ino,
    content: Vec<u8>,
    range: std::ops::Range<u64>,
}

pub(super) fn index(value: u64) -> usize {
    usize::try_from(value).expect("a test's file fits in memory")
}

/// Fills the pool until neither data nor names find room.
pub(super) fn fill(ground: &Ground, prefix: &str, length: usize) {
    let (pool, root) = (&ground.pool, ground.pool.root());
    for number in 0.. {
        let made = ground.make(root, &format!("{prefix}{number}"), FileKind::Regular);
        let Ok(ino) = made else { return };
        if pool.write(&Caller::root(), ino, 0, &vec![1; length]).is_err() {
            return;
        }
    }
}

impl Ahead {
    /// A file with some content, holes among it, and a range taken ahead over all of it, which
    /// ends at `share`.
    pub(super) fn new(ground: &Ground, prng: &mut Prng, name: &str, share: u64) -> Ahead {
        let ino = ground.make(ground.pool.root(), name, FileKind::Regular).expect("it is new");
        let mut file = Ahead { ino, content: Vec::new(), range: 0..0 };
        for fill in 0..u32::try_from(prng.below(4)).expect("below 4") {
            let length = prng.below(WRITE_BYTES_MAX);
            file.write(ground, prng.below(share - WRITE_BYTES_MAX), length, fill);
            if prng.one_in(2) {
                ground.pool.fsync(&Caller::root(), ino, false).expect("there is room");
            }
        }
        let start = prng.below(20_000);
        file.range = start..share;
        let keep_size = prng.one_in(2);
        let mode = Fallocate::Allocate { keep_size };
        let taken = ground.pool.fallocate(&Caller::root(), ino, start, share - start, mode);
        taken.expect("there is room");
        if !keep_size && file.content.len() < index(share) {
            file.content.resize(index(share), 0);
        }
        file
    }

    fn write(&mut self, ground: &Ground, offset: u64, length: u64, fill: u32) {
        let data = bytes_of(fill + 1, index(length));
        let written = ground.pool.write(&Caller::root(), self.ino, offset, &data);
        assert_eq!(written, Ok(()), "{length} at {offset} of {:?}", self.range);
        let end = index(offset + length);
        if length > 0 {
            self.content.resize(self.content.len().max(end), 0);
            self.content[index(offset)..end].copy_from_slice(&data);
        }
    }

    /// Writes all over the range.
    pub(super) fn write_all(&mut self, ground: &Ground) {
        let (start, end) = (self.range.start, self.range.end);
        self.write(ground, start, end - start, 7);
    }

    /// Writes at random places of the range, `count` times.
    pub(super) fn write_about(&mut self, ground: &Ground, prng: &mut Prng, count: u32) {
        for fill in 0..count {
            let room = self.range.end - self.range.start;
            let most = if prng.one_in(3) { WRITE_BYTES_MAX } else { 6000 };
            let length = 1 + prng.below(most.min(room));
            let offset = self.range.start + prng.below(room - length + 1);
            self.write(ground, offset, length, fill);
            match prng.below(60) {
                0 => ground
                    .pool
                    .fsync(&Caller::root(), self.ino, false)
                    .expect("a sync needs no room"),
                1 => ground.pool.tick().expect("background work needs no room"),
                _ => {}
            }
        }
    }

    pub(super) fn expect_content(&self, ground: &Ground) {
        let mut found = Vec::new();
        let length = self.content.len() + 1;
        let count =
            ground.pool.read(&Caller::root(), self.ino, 0, length, &mut found).expect("it reads");
        assert_eq!(count, self.content.len());
        assert!(found == self.content, "what was written is not what is read");
    }
}

fn taken_ahead_is_there(seed: u64) {
    let mut prng = Prng::from_seed(seed);
    let shapes = u64::try_from(SHAPES.len()).expect("a few");
    let shape = &SHAPES[index(prng.below(shapes))];
    let mut ground = Ground::new(shape);
    let share = ground.available() * (2 + prng.below(4)) / 8;
    let mut file = Ahead::new(&ground, &mut prng, "ahead", share);
    fill(&ground, "f", index(1 + prng.below(50_000)));
    fill(&ground, "g", 300);
    fill(&ground, "h", 0);
    if prng.one_in(2) {
        ground = ground.reopened();
    }
    file.write_about(&ground, &mut prng, 300);
    fill(&ground, "i", 300);
    file.write_about(&ground, &mut prng, 300);
    file.write_all(&ground);
    file.write_about(&ground, &mut prng, 300);
    file.expect_content(&ground);
    ground.pool.sync().expect("what was accepted finds room");
    assert_eq!(ground.reopened().defects(), None, "{shape:?}");
}

/// Goal: a write into a range that was taken ahead never finds the pool full, not even the second
/// one to the same place, and whatever came to the pool between.
///
/// Method: a file with some content, a range of it taken ahead; then data, small files and names
/// until nothing is accepted; then writes of all lengths all over the range, and over all of it.
#[test]
fn what_was_taken_ahead_can_be_written_in_a_full_pool() {
    for seed in 0..number_of("HOLDFAST_FULL_CASES", CASES) {
        println!("seed {seed}");
        taken_ahead_is_there(seed);
    }
}

/// Goal: what is taken ahead is not available to others, and is again when it is given up.
#[test]
fn what_is_taken_ahead_counts_until_it_is_given_up() {
    let ground = Ground::new(&SHAPES[0]);
    let (pool, caller) = (&ground.pool, Caller::root());
    let ino = ground.make(pool.root(), "a", FileKind::Regular).expect("it is new");
    let at_first = ground.available();
    let length = 4 << 20;
    let take = |keep_size| {
        let mode = Fallocate::Allocate { keep_size };
        pool.fallocate(&caller, ino, 0, length, mode)
    };
    let cut = |size_bytes| {
        let set = SetAttr { size_bytes: Some(size_bytes), ..SetAttr::default() };
        pool.setattr(&caller, ino, &set, None).expect("it is cut");
    };
    let punch = || pool.fallocate(&caller, ino, 0, length, Fallocate::PunchHole);
    let give_up: [(&str, &dyn Fn()); 3] = [
        ("punched", &|| punch().expect("a hole needs no room")),
        ("cut", &|| cut(0)),
        ("cut at its end", &|| {
            cut(pool.getattr(&Caller::root(), ino).expect("it is there").size_bytes)
        }),
    ];
    for (how, give_up) in give_up {
        for _ in 0..2 {
            // The second time everything is there already.
            take(true).expect("there is room");
            let left = ground.available();
            let pages = 64 << 10;
            assert!(left + length <= at_first, "{how}: {at_first}, then {left}");
            assert!(left + length + 128 * 1024 + pages >= at_first, "{how}: {at_first}, {left}");
            assert!(
                pool.getattr(&Caller::root(), ino).expect("it is there").blocks_512 * 512 >= length,
                "{how}"
            );
        }
        give_up();
        let left = ground.available();
        // Map pages stay behind a hole.
        assert!(left + 128 * 1024 >= at_first, "{how}: {at_first} at first, then {left}");
    }
    take(false).expect("there is room");
    assert_eq!(pool.getattr(&Caller::root(), ino).expect("it is there").size_bytes, length);
    let mode = Fallocate::Allocate { keep_size: true };
    let too_much = pool.fallocate(&caller, ino, 0, 1 << 40, mode);
    assert_eq!(too_much, Err(FsError::NoSpace));
    pool.unlink(&caller, pool.root(), b"a", None).expect("it goes");
    let left = ground.available();
    assert!(left + 128 * 1024 >= at_first, "deleted: {at_first} at first, then {left}");
    assert_eq!(ground.defects(), None);
}

/// Goal: a fallocate that fails for want of room keeps nothing that it has reserved, and loses
/// nothing that was reserved before; what it was refused, others can have.
///
/// Method: files that are empty, inline, stored, sparse with some of it taken ahead, and open for
/// writing behind; each asks for as much as would fit if all that it has lay in the range.
#[test]
fn a_fallocate_that_fails_gives_back_what_it_had_reserved() {
    for shape in SHAPES {
        for keep_size in [true, false] {
            for kind in 0..6 {
                fails_and_gives_back(shape, keep_size, kind);
            }
        }
    }
}

fn fails_and_gives_back(shape: &Shape, keep_size: bool, kind: u32) {
    let ground = Ground::new(shape);
    let (pool, caller) = (&ground.pool, Caller::root());
    let ino = ground.make(pool.root(), "a", FileKind::Regular).expect("it is new");
    let write = |offset: u64, length: usize| {
        pool.write(&caller, ino, offset, &vec![7; length]).expect("there is room");
    };
    let take = |offset, length, keep_size| {
        pool.fallocate(&caller, ino, offset, length, Fallocate::Allocate { keep_size })
    };
    match kind {
        0 => {}
        1 => write(0, 100),
        2 => write(0, 3_000_000),
        3 => {
            // Every other part of the range that is asked for then is there.
            for part in (0..1 << 22).step_by(1 << 18) {
                take(part, 1 << 17, true).expect("there is room");
            }
            write(300_000, 100_000);
            take(1 << 31, 3 << 20, true).expect("there is room");
        }
        4 => {
            write(3_000_000, 2_000_000);
            pool.fsync(&caller, ino, false).expect("there is room");
            // Splits a leaf of blocks of 16 KiB.
            write(3_300_000, 5000);
            write(0, 5000);
        }
        _ => take(5_000_000, 2_000_000, false).expect("there is room"),
    }
    let before = (ground.available(), pool.getattr(&caller, ino).expect("it is there"));
    // What it has lies partly outside of the range, so what would fit by the count does not.
    let most = before.0 + before.1.blocks_512 * 512;
    let lengths = [most + (1 << 20), most - (1 << 16), before.0 + (1 << 17)];
    let mut asked = lengths.map(|length| (1 << 30, length)).to_vec();
    if kind == 3 {
        // Over what is there in parts, and past it by more than there is.
        asked.push((0, before.0 + (3 << 20)));
    }
    asked.retain(|(_, length)| *length > before.0);
    for (at, length) in asked {
        let refused = take(at, length, keep_size);
        let what = format!("{shape:?}, kind {kind}, {length} bytes at {at}");
        assert_eq!(refused, Err(FsError::NoSpace), "{what}");
        let after = (ground.available(), pool.getattr(&caller, ino).expect("it is there"));
        assert!(after.0 + 128 * 1024 >= before.0, "{what}: {} bytes, then {}", before.0, after.0);
        // A map that was raised stays so: three levels at most.
        let more = after.1.blocks_512 - before.1.blocks_512;
        assert!(more * 512 <= 3 * 4096, "{what}: {more} blocks");
        assert_eq!(after.1.size_bytes, before.1.size_bytes, "{what}");
    }
    take(1 << 30, before.0 / 2, true).expect("there is room for that");
    assert_eq!(ground.defects(), None, "{shape:?}, kind {kind}");
}

/// Goal: a fallocate that fails leaves a file of holes as it was, whose size is not on disk yet.
/// Method: a file that was written in what it had reserved, and punched, before anything of it was
/// in its map.
#[test]
fn a_fallocate_that_fails_leaves_a_file_of_holes_as_it_was() {
    for shape in SHAPES {
        for is_written_first in [false, true] {
            let ground = Ground::new(shape);
            let (pool, caller) = (&ground.pool, Caller::root());
            let ino = ground.make(pool.root(), "a", FileKind::Regular).expect("it is new");
            let available = ground.available();
            let mut content = vec![0; 48 << 10];
            let length = 48 << 10;
            let ask = |at, length, mode| pool.fallocate(&caller, ino, at, length, mode);
            let ahead = Fallocate::Allocate { keep_size: true };
            ask(0, length, ahead).expect("there is room");
            pool.write(&caller, ino, 0, &[7; 48 << 10]).expect("there is room");
            ask(0, length, Fallocate::PunchHole).expect("a hole needs no room");
            // It fits by the count, and touches a block more than there is room for.
            let block = 1 << shape.block_shift;
            let refused = ask((1 << 30) + block / 2, available / block * block, ahead);
            assert_eq!(refused, Err(FsError::NoSpace), "{shape:?}");
            if is_written_first {
                pool.write(&caller, ino, 5, b"later").expect("there is room");
                content[5..10].copy_from_slice(b"later");
            }
            pool.fsync(&caller, ino, false).expect("there is room");
            let ground = ground.reopened();
            let file = Ahead { ino, content, range: 0..0 };
            file.expect_content(&ground);
            assert_eq!(ground.defects(), None, "{shape:?}");
        }
    }
}
