//! Full segments that are sealed by others, while a writer rewrites their blocks.
//!
//! Goal: what was written last is read, from memory and from the device, where each block verifies.
//!
//! Method: a file grows block by block, and between that one of its last blocks is written again,
//! some of them in memory that is shared. Another thread does what the writer puts off.

use std::sync::Arc;

use engine::api::{
    AlignedBuffer, Caller, FileKind, FileSystem, Ino, NewInode, Stability, WriteData,
};
use engine::{Pool, PoolOpenOptions};
use runtime::clock::ManualClock;
use runtime::prng::Prng;
use storage::device::SharedDevice;

use super::new_pool;
use super::threads::{self, Threads, Work};

pub(super) const BLOCK_BYTES: usize = 16 << 10;
const BLOCKS: u64 = 24;
/// More than a segment has, so that most rewrites meet one that is full or about to be.
const REWRITTEN_MAX: u64 = 9;

/// Returns where a block begins.
pub(super) fn offset_of(block: u64) -> u64 {
    block * u64::try_from(BLOCK_BYTES).expect("small")
}

/// Returns what the file holds in the end, a byte for each block.
fn write_all(pool: &Pool, file: Ino, mut random: Prng) -> Vec<u8> {
    let mut expected: Vec<u8> = Vec::new();
    let mut fill = 0;
    let mut write = |block: u64, is_shared: bool| {
        fill += 1;
        let data = AlignedBuffer::copy_of(&[fill; BLOCK_BYTES]);
        let (caller, offset) = (Caller::root(), offset_of(block));
        let data = if is_shared { WriteData::Shared(data.into()) } else { WriteData::Lent(&data) };
        let written = pool.write_some(&caller, file, offset, &data, Stability::Unstable, None);
        assert_eq!(written.expect("there is room"), BLOCK_BYTES);
        fill
    };
    for block in 0..BLOCKS {
        expected.push(write(block, random.one_in(2)));
        let again = block - random.below(REWRITTEN_MAX.min(block + 1));
        let index = usize::try_from(again).expect("small");
        expected[index] = write(again, random.one_in(2));
    }
    expected
}

fn expect_content(pool: &Pool, file: Ino, expected: &[u8], when: &str) {
    let mut bytes = Vec::new();
    let length = expected.len() * BLOCK_BYTES;
    assert_eq!(pool.read(&Caller::root(), file, 0, length, &mut bytes), Ok(length), "{when}");
    for (block, fill) in bytes.chunks(BLOCK_BYTES).zip(expected) {
        assert!(block.iter().all(|byte| byte == fill), "not what was written, {when}");
    }
}

fn open(device: &SharedDevice, clock: &Arc<ManualClock>) -> Arc<Pool> {
    let pool = Pool::open(
        Arc::clone(device),
        Arc::<ManualClock>::clone(clock),
        PoolOpenOptions::default(),
    );
    Arc::new(pool.expect("it opens"))
}

fn judge(threads: &Threads, seed: u64) {
    let clock = Arc::new(ManualClock::new());
    let device = new_pool(threads, &clock);
    let pool = open(&device, &clock);
    let new = NewInode::new(FileKind::Regular, 0o600);
    let file = pool.create(&Caller::root(), pool.root(), b"f", new, None).expect("it is new").ino;

    let behind = Arc::clone(&pool);
    let (writer, expected) = (Arc::clone(&pool), Arc::new(std::sync::OnceLock::new()));
    let (told, is_over) = (Arc::clone(&expected), Arc::clone(&expected));
    let works: Vec<Work> = vec![
        Box::new(move || {
            let written = write_all(&writer, file, Prng::from_seed(seed));
            told.set(written).expect("there is one writer");
        }),
        Box::new(move || {
            while is_over.get().is_none() {
                behind.run_deferred_work();
            }
        }),
    ];
    threads.run(works);
    let expected = expected.get().expect("the writer has ended");
    expect_content(&pool, file, expected, "in memory");
    pool.close().expect("the device does not fail");
    let pool = open(&device, &clock);
    expect_content(&pool, file, expected, "on the device");
    pool.close().expect("the device does not fail");
}

#[test]
fn blocks_that_others_seal_hold_what_was_written_last() {
    for seed in 0..threads::programs().div_ceil(4) {
        println!("seed {seed}");
        threads::explore(seed, move |threads| judge(threads, seed));
    }
}
