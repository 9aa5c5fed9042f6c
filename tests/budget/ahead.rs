//! What reading a long file costs that nobody has read since the pool was opened: what is read
//! ahead of its reader, and what is read together.

use engine::ReadaheadCounts;
use engine::api::{Caller, FileKind, FileSystem, Ino};
use runtime::prng::Prng;
use storage::counters::IoCounts;
use storage::device::{IoPurpose, RequestKind};

use super::{Counted, open};

const POOL_BYTES: u64 = 1 << 30;
const FILE_BYTES: u64 = 64 << 20;
const MIB: u64 = 1 << 20;
/// Most that is read ahead of one reader.
const WINDOW_BYTES: u64 = 8 << 20;

/// Device reads of file data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct DataReads {
    requests: u64,
    bytes: u64,
}

fn data_reads(counts: &IoCounts) -> DataReads {
    let count = counts.of(IoPurpose::Data, RequestKind::Read);
    DataReads { requests: count.requests, bytes: count.bytes }
}

/// What somebody waited for, and what was read behind his answers.
#[derive(Clone, Copy, Debug, Default)]
struct Told {
    waited: DataReads,
    behind: DataReads,
}

/// Returns a pool that was just opened with a file of [`FILE_BYTES`] in it, each word of which
/// tells its offset.
fn long_file() -> (Counted, Ino) {
    long_file_of(14)
}

/// As [`long_file`], with blocks of another length.
fn long_file_of(block_shift: u8) -> (Counted, Ino) {
    let counted = Counted::new(POOL_BYTES, block_shift);
    let ino = counted.make(counted.pool.root(), "f", FileKind::Regular);
    for at in (0..FILE_BYTES).step_by(1 << 20) {
        let data = words(at, MIB);
        counted.pool.write(&Caller::root(), ino, at, &data).expect("there is room");
    }
    (open(&counted.close()), ino)
}

fn words(from: u64, length: u64) -> Vec<u8> {
    (from..from + length).step_by(8).flat_map(u64::to_le_bytes).collect()
}

/// Reads `length` bytes at each of `offsets`, and does behind each answer what waits.
fn read_at(counted: &Counted, ino: Ino, offsets: &[u64], length: u64) -> Told {
    let mut told = Told::default();
    let add = |all: &mut DataReads, cost: IoCounts| {
        let more = data_reads(&cost);
        all.requests += more.requests;
        all.bytes += more.bytes;
    };
    for offset in offsets {
        let mut bytes = Vec::new();
        let asked = usize::try_from(length).expect("small");
        let cost = counted.cost(|| {
            let read = counted.pool.read(&Caller::root(), ino, *offset, asked, &mut bytes);
            read.expect("it reads");
        });
        let there = length.min(FILE_BYTES.saturating_sub(*offset));
        assert!(bytes == words(*offset, there), "what lies at {offset}");
        add(&mut told.waited, cost);
        add(&mut told.behind, counted.cost(|| counted.pool.run_deferred_work()));
    }
    told
}

fn readahead(counted: &Counted) -> ReadaheadCounts {
    let counts = counted.pool.status().readahead;
    assert_eq!(counts.refused, 0, "{counts:?}");
    assert!(counts.held_bytes <= counts.limit_bytes, "{counts:?}");
    counts
}

fn offsets(step: u64) -> Vec<u64> {
    (0..FILE_BYTES).step_by(usize::try_from(step).expect("small")).collect()
}

/// Goal: who reads a file in even steps waits for the device three times, and next to no byte is
/// read that he does not ask for. Method: bytes in answers and behind them, of whoever reads one
/// behind the other, with gaps, backwards, and of two who take turns.
#[test]
fn who_reads_in_even_steps_waits_for_his_first_reads_alone() {
    let turns = |offsets: Vec<u64>| {
        let (first, second) = offsets.split_at(offsets.len() / 2);
        first.iter().zip(second).flat_map(|(one, other)| [*one, *other]).collect::<Vec<u64>>()
    };
    let backwards = |mut offsets: Vec<u64>| {
        offsets.reverse();
        offsets
    };
    let cases = [
        ("one behind the other", offsets(64 << 10), 64 << 10, 3),
        ("one behind the other, 1 MiB", offsets(MIB), MIB, 3),
        ("each fourth", offsets(256 << 10), 64 << 10, 3),
        ("each eighth page", offsets(32 << 10), 4 << 10, 3),
        ("backwards", backwards(offsets(64 << 10)), 64 << 10, 3),
        ("each fourth, backwards", backwards(offsets(256 << 10)), 64 << 10, 3),
        ("two who take turns", turns(offsets(64 << 10)), 64 << 10, 6),
    ];
    for (what, offsets, length, waits) in cases {
        let (counted, ino) = long_file();
        let asked = offsets.iter().map(|offset| length.min(FILE_BYTES - offset)).sum::<u64>();
        let told = read_at(&counted, ino, &offsets, length);
        println!("{what}: {asked} bytes in {} reads, {told:?}", offsets.len());
        assert!(told.waited.bytes <= waits * length, "{what}: {told:?}");
        let all = told.waited.bytes + told.behind.bytes;
        // Of two in one file the first stops in its middle.
        let in_vain = if waits > 3 { WINDOW_BYTES } else { 0 };
        assert!(all <= asked + asked / 50 + in_vain, "{what}: {all} bytes for {asked}");
        let counts = readahead(&counted);
        // The last few chunks stay, with what was handed out of them.
        assert!(counts.held_bytes <= in_vain + 8 * MIB, "{what}: all of it was asked for");
    }
}

/// Goal: the same where a read is a part of a block, or ends in the middle of one: no block is read
/// twice. Method: blocks of 16, 128 and 256 KiB, short reads, and reads of no even length.
#[test]
fn no_block_is_read_twice_ahead() {
    for (block_shift, length) in [(17, 4 << 10), (17, 64 << 10), (18, 64 << 10), (14, 100_000)] {
        let (counted, ino) = long_file_of(block_shift);
        let most = (FILE_BYTES / 4) / length * length;
        let offsets: Vec<u64> = (0..most / length).map(|step| step * length).collect();
        let cost = counted.cost(|| {
            for offset in offsets {
                let mut bytes = Vec::new();
                let asked = usize::try_from(length).expect("small");
                let read = counted.pool.read(&Caller::root(), ino, offset, asked, &mut bytes);
                read.expect("it reads");
                assert!(bytes == words(offset, length), "what lies at {offset}");
                counted.pool.run_deferred_work();
            }
        });
        let all = data_reads(&cost);
        let what = format!("blocks of 2^{block_shift}, reads of {length}");
        println!("{what}: {all:?} for {most} bytes");
        // And a window that nobody asks for.
        assert!(all.bytes <= most + most / 10 + WINDOW_BYTES, "{what}: {all:?} for {most}");
        let counts = readahead(&counted);
        assert!(counts.used_bytes <= counts.read_bytes, "{what}: {counts:?}");
    }
}

/// Goal: many who read in turn each find what was read ahead for them. Method: twelve streams.
#[test]
fn many_readers_take_turns() {
    const READERS: u64 = 12;
    let counted = Counted::new(POOL_BYTES, 14);
    let part = 4 * MIB;
    let files: Vec<Ino> = (0..READERS)
        .map(|file| {
            let name = format!("f{file}");
            let ino = counted.make(counted.pool.root(), &name, FileKind::Regular);
            for at in (0..part).step_by(1 << 20) {
                let data = words(at, MIB);
                counted.pool.write(&Caller::root(), ino, at, &data).expect("there is room");
            }
            ino
        })
        .collect();
    let counted = open(&counted.close());
    let cost = counted.cost(|| {
        for offset in (0..part).step_by(64 << 10) {
            for ino in &files {
                let mut bytes = Vec::new();
                let read = counted.pool.read(&Caller::root(), *ino, offset, 64 << 10, &mut bytes);
                read.expect("it reads");
                assert!(bytes == words(offset, 64 << 10));
                counted.pool.run_deferred_work();
            }
        }
    });
    let read = data_reads(&cost);
    println!("{READERS} streams of {part} bytes: {read:?}");
    // The widest windows of all are more than may be held.
    assert!(read.bytes <= READERS * part * 11 / 10, "{read:?}");
    assert!(read.requests <= READERS * 20, "{read:?}");
    readahead(&counted);
}

/// Goal: nothing is read for who reads here and there. Method: bytes that random reads ask for.
#[test]
fn nothing_is_read_ahead_of_random_reads() {
    let (counted, ino) = long_file();
    let mut random = Prng::from_seed(5);
    let offsets: Vec<u64> = (0..4_000).map(|_| random.below(FILE_BYTES >> 12) << 12).collect();
    let told = read_at(&counted, ino, &offsets, 4 << 10);
    println!("{told:?}");
    assert_eq!(told.behind, DataReads::default());
    assert_eq!(told.waited.bytes, 4_000 << 12);
}

/// Goal: what is read ahead and not asked for is bounded, and who ends early costs a window.
/// Method: more readers than there is room for, each of whom stops.
#[test]
fn who_stops_has_cost_a_window() {
    let (counted, ino) = long_file();
    for start in 0..60 {
        let offsets: Vec<u64> = (0..8).map(|step| (start << 20) + (step << 16)).collect();
        read_at(&counted, ino, &offsets, 64 << 10);
        readahead(&counted);
    }
    let counts = readahead(&counted);
    println!("{counts:?}");
    assert!(counts.read_bytes <= counts.used_bytes * 3, "{counts:?}");
}

/// Goal: blocks that were written over are read together with what lies between them, while that is
/// little; what lies far apart is read by itself. Method: requests of one read of 1 MiB, some of
/// whose blocks lie elsewhere.
#[test]
fn what_lies_near_to_each_other_is_read_in_one_request() {
    const BLOCK: u64 = 16 << 10;
    let cases = [("each fourth", 4, 3), ("each second", 2, 3), ("each eighth of 16", 16, 6)];
    for (what, step, most) in cases {
        let counted = Counted::new(POOL_BYTES, 14);
        let ino = counted.make(counted.pool.root(), "f", FileKind::Regular);
        let write = |offset: u64, length: u64| {
            let data = words(offset, length);
            counted.pool.write(&Caller::root(), ino, offset, &data).expect("there is room");
        };
        for at in 0..8 {
            write(at << 20, MIB);
        }
        counted.pool.fsync(&Caller::root(), ino, false).expect("nothing fails");
        for block in (0..8 * MIB / BLOCK).step_by(step) {
            write(block * BLOCK, BLOCK);
        }
        let counted = open(&counted.close());
        let mut bytes = Vec::new();
        let cost = counted.cost(|| {
            let read = counted.pool.read(&Caller::root(), ino, 2 * MIB, 1 << 20, &mut bytes);
            read.expect("it reads");
        });
        assert!(bytes == words(2 * MIB, MIB), "{what}");
        let read = data_reads(&cost);
        println!("{what}: {read:?}");
        assert!(read.requests <= most, "{what}: {read:?}");
        assert!(read.bytes <= 2 * MIB + MIB / 2, "{what}: {read:?}");
    }
}

/// Goal: blocks with more than three others between them are read by themselves, unless they are
/// most of their segment.
#[test]
fn what_lies_far_apart_is_read_by_itself() {
    const BLOCK: u64 = 16 << 10;
    let counted = Counted::new(POOL_BYTES, 14);
    let root = counted.pool.root();
    let files = ["a", "b"].map(|name| counted.make(root, name, FileKind::Regular));
    let write = |ino: Ino, offset: u64, length: u64| {
        let data = words(offset, length);
        counted.pool.write(&Caller::root(), ino, offset, &data).expect("there is room");
    };
    // Of each five blocks on the device one is of the first file.
    for block in 0..64 {
        write(files[0], block * BLOCK, BLOCK);
        write(files[1], block * 4 * BLOCK, 4 * BLOCK);
        counted.pool.sync().expect("nothing fails");
    }
    let counted = open(&counted.close());
    let read = |ino: Ino, length: u64| {
        let mut bytes = Vec::new();
        let asked = usize::try_from(length).expect("small");
        let cost = counted.cost(|| {
            counted.pool.read(&Caller::root(), ino, 0, asked, &mut bytes).expect("it reads");
        });
        assert!(bytes == words(0, length));
        data_reads(&cost)
    };
    let (few, most) = (read(files[0], 64 * BLOCK), read(files[1], 64 * BLOCK));
    println!("{few:?}, {most:?}");
    assert_eq!((few.requests, few.bytes), (64, 64 * BLOCK), "four blocks lie between");
    assert!(most.requests <= 3 && most.bytes <= 64 * BLOCK * 3 / 2, "one lies between: {most:?}");
}
