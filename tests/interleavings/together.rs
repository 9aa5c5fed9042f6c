//! Reads of several files at once, beside a writer of the same files.
//!
//! Goal: each read is told once, with what some whole writes left; nobody waits for ever for files
//! that others have asked for in another order.
//!
//! Method: a file's block is written whole, each time with another byte, and freed, and its place
//! given to others behind checkpoints. So a block that is not all of one byte was read where it no
//! longer was.

use std::sync::Arc;

use engine::api::{
    Caller, FileKind, FileReadRequest, FileSystem, Ino, NewInode, RenameMode, SetAttr,
};
use engine::{Pool, PoolOpenOptions};
use runtime::clock::ManualClock;
use runtime::prng::Prng;

use super::new_pool;
use super::sealing::{BLOCK_BYTES, offset_of};
use super::threads::{self, Threads, Work};

static ROOT: Caller = Caller::root();

const FILES: u64 = 3;
const BLOCKS: u64 = 2;
const READERS: u64 = 2;
/// Calls of each reader and of the writer, and how often pages are taken home.
const CALLS: u8 = 40;
/// What is free when they begin: so little that what is freed is soon given to others.
const FREE_BYTES: u64 = 512 << 10;
/// Most reads at once.
const READS_MAX: u64 = 5;

fn one_of(files: &[Ino], random: &mut Prng) -> Ino {
    files[usize::try_from(random.below(FILES)).expect("small")]
}

fn write_some(pool: &Pool, files: &[Ino], mut random: Prng) {
    for fill in 1..=CALLS {
        let file = one_of(files, &mut random);
        let offset = offset_of(random.below(BLOCKS));
        match random.below(8) {
            0 => {
                let change = SetAttr { size_bytes: Some(offset), ..SetAttr::default() };
                pool.setattr(&Caller::root(), file, &change, None).map(drop)
            }
            1 => pool.fsync(&Caller::root(), file, false),
            // Takes the locks of both files.
            2 => {
                let root = pool.root();
                pool.rename(
                    &Caller::root(),
                    (root, b"f0"),
                    (root, b"f2"),
                    RenameMode::Exchange,
                    None,
                )
            }
            _ => pool.write(&Caller::root(), file, offset, &[fill; BLOCK_BYTES]),
        }
        .expect("there is room");
    }
}

fn read_some(pool: &Pool, files: &[Ino], mut random: Prng) {
    for _ in 0..CALLS {
        let one = |random: &mut Prng| FileReadRequest {
            caller: &ROOT,
            ino: one_of(files, random),
            offset: offset_of(random.below(BLOCKS)),
            length_bytes: BLOCK_BYTES * usize::try_from(1 + random.below(2)).expect("small"),
        };
        let asked: Vec<_> = (0..=random.below(READS_MAX)).map(|_| one(&mut random)).collect();
        let mut times = vec![0; asked.len()];
        pool.read_each(&asked, &mut |index, read| {
            times[index] += 1;
            let bytes = read.expect("the device does not fail").concat();
            assert!(bytes.len() <= asked[index].length_bytes);
            for block in bytes.chunks(BLOCK_BYTES) {
                assert!(block.iter().all(|byte| *byte == block[0]), "two writes in {asked:?}");
            }
        });
        assert!(times.iter().all(|told| *told == 1), "{times:?}");
    }
}

fn judge(threads: &Threads, seed: u64) {
    let clock = Arc::new(ManualClock::new());
    let device = new_pool(threads, &clock);
    let pool = Arc::new(Pool::open(device, clock, PoolOpenOptions::default()).expect("just made"));
    let new = NewInode::new(FileKind::Regular, 0o600);
    let make = |number: u64| {
        let name = format!("f{number}");
        pool.create(&Caller::root(), pool.root(), name.as_bytes(), new, None)
            .expect("it is new")
            .ino
    };
    let files: Vec<Ino> = (0..FILES).map(make).collect();
    let others = make(FILES);
    let free =
        pool.statfs(&Caller::root(), pool.main_fileset()).expect("it is open").available_bytes;
    for offset in (0..free - FREE_BYTES).step_by(BLOCK_BYTES) {
        let written = pool.write(&Caller::root(), others, offset, &[0xff; BLOCK_BYTES]);
        written.expect("there is room");
    }
    pool.checkpoint().expect("the device does not fail");

    let mut random = Prng::from_seed(seed);
    let mut works: Vec<Work> = Vec::new();
    for number in 0..=READERS {
        let (pool, files, random) = (Arc::clone(&pool), files.clone(), random.fork());
        let work = if number == 0 { write_some } else { read_some };
        works.push(Box::new(move || work(&pool, &files, random)));
    }
    let taken = Arc::clone(&pool);
    works.push(Box::new(move || {
        for _ in 0..CALLS {
            taken.tick().expect("the device does not fail");
            taken.checkpoint().expect("the device does not fail");
        }
    }));
    threads.run(works);
    files.iter().chain([&others]).for_each(|file| pool.forget(*file, 1));
    pool.close().expect("the device does not fail");
}

#[test]
fn reads_together_bring_what_whole_writes_left() {
    for seed in 0..threads::programs().div_ceil(4) {
        println!("seed {seed}");
        threads::explore(seed, move |threads| judge(threads, seed));
    }
}
