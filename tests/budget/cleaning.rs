//! What cleaning costs, with nine of ten writes going to a tenth of the blocks, and with all blocks
//! alike.

use engine::api::{Caller, FileKind, FileSystem, Ino, SetAttr};
use runtime::prng::Prng;
use storage::device::{IoPurpose, RequestKind};

use super::Counted;

/// Bytes of the pool: a few hundred segments of the usual size.
const POOL_BYTES: u64 = 512 << 20;
const BLOCK_BYTES: u64 = 16 << 10;
/// Overwrites before anything is counted, and while it is, as parts of what the file has.
const ROUNDS_BEFORE: u64 = 6;
const ROUNDS: u64 = 4;

/// Snapshots that are taken while the file is overwritten once.
const SNAPSHOTS: u8 = 50;

/// A file of as many blocks as fill `percent` of the data space.
fn filled(counted: &Counted, percent: u64) -> (Ino, u64) {
    let pool = &counted.pool;
    let ino = counted.make(pool.root(), "file", FileKind::Regular);
    let data = vec![1; 1 << 20];
    let mut end = 0;
    while pool.write(&Caller::root(), ino, end, &data).is_ok() {
        end += 1 << 20;
        assert!(end < POOL_BYTES, "the pool never runs full");
    }
    let blocks = end / BLOCK_BYTES * percent / 100;
    let cut = SetAttr { size_bytes: Some(blocks * BLOCK_BYTES), ..SetAttr::default() };
    pool.setattr(&Caller::root(), ino, &cut, None).expect("a full pool can be cut");
    pool.sync().expect("nothing fails");
    (ino, blocks)
}

/// Which blocks are overwritten.
#[derive(Clone, Copy, Debug)]
enum Pattern {
    /// Nine in ten writes go to the first tenth of the file.
    HotTenth,
    /// All blocks are alike.
    Uniform,
}

impl Pattern {
    fn block(self, blocks: u64, prng: &mut Prng) -> u64 {
        let hot = blocks / 10;
        match self {
            Pattern::HotTenth if prng.below(10) < 9 => prng.below(hot),
            Pattern::HotTenth => hot + prng.below(blocks - hot),
            Pattern::Uniform => prng.below(blocks),
        }
    }
}

/// Overwrites random blocks.
fn overwrite(
    counted: &Counted,
    ino: Ino,
    (pattern, blocks): (Pattern, u64),
    writes: u64,
    prng: &mut Prng,
) {
    for number in 0..writes {
        let block = pattern.block(blocks, prng);
        let data = vec![u8::try_from(number % 251).expect("small"); 16 << 10];
        let written = counted.pool.write(&Caller::root(), ino, block * BLOCK_BYTES, &data);
        written.unwrap_or_else(|error| panic!("overwrite {number} of {writes}: {error}"));
        counted.clock.advance_ns(1_000_000);
        if number % 64 == 0 {
            counted.pool.tick().expect("nothing fails");
        }
    }
    counted.pool.sync().expect("nothing fails");
}

/// Bytes of data written, and read by the cleaner, in hundredths of the bytes that were given.
fn amplification(pattern: Pattern, percent: u64) -> (u64, u64) {
    let counted = Counted::new(POOL_BYTES, 14);
    let (ino, blocks) = filled(&counted, percent);
    let mut prng = Prng::from_seed(percent);
    let part = (pattern, blocks);
    overwrite(&counted, ino, part, ROUNDS_BEFORE * blocks, &mut prng);
    let writes = ROUNDS * blocks;
    let before = counted.pool.status().cleaner.since_mount;
    let cost = counted.cost(|| overwrite(&counted, ino, part, writes, &mut prng));
    let written = cost.of(IoPurpose::Data, RequestKind::Write).bytes;
    let read = cost.of(IoPurpose::Cleaner, RequestKind::Read).bytes;
    // The gauge says what the device saw.
    let status = counted.pool.status();
    let after = status.cleaner.since_mount;
    let bytes = |fragments: u64| fragments << status.geometry.fragment_shift;
    assert_eq!(bytes(after.written_fragments - before.written_fragments), written);
    assert_eq!(bytes(after.read_fragments - before.read_fragments), read);
    // What is rewritten before it is sealed is written once.
    let user = bytes(after.user_fragments - before.user_fragments);
    assert!(user <= writes * BLOCK_BYTES && user * 100 >= writes * BLOCK_BYTES * 95, "{user}");
    let hundredths = |bytes: u64| bytes * 100 / (writes * BLOCK_BYTES);
    let (written, read) = (hundredths(written), hundredths(read));
    println!("{pattern:?}, {percent} % full, {blocks} blocks: written {written}, read {read} %");
    (written, read)
}

#[test]
fn cleaning_costs_little_where_most_writes_go_to_few_blocks() {
    let pattern = Pattern::HotTenth;
    let (three_quarters, nine_tenths) = (amplification(pattern, 75), amplification(pattern, 90));
    assert!(three_quarters.0 <= 160, "{three_quarters:?}");
    assert!(nine_tenths.0 <= 250, "{nine_tenths:?}");
    // A segment is read once, whole.
    assert!(three_quarters.1 <= 160 && nine_tenths.1 <= 260, "{three_quarters:?} {nine_tenths:?}");
}

/// Levels have nothing to tell apart here: what they cost then is little.
#[test]
fn cleaning_costs_no_more_where_all_blocks_are_alike() {
    let three_quarters = amplification(Pattern::Uniform, 75);
    assert!(three_quarters.0 <= 225, "{three_quarters:?}");
}

/// As the pool fills up it costs what it must.
#[test]
#[ignore = "minutes: for the record"]
fn cleaning_at_nine_tenths_where_all_blocks_are_alike() {
    let nine_tenths = amplification(Pattern::Uniform, 90);
    assert!(nine_tenths.0 <= 500, "{nine_tenths:?}");
}

/// Overwrites random blocks of 27 % of the data space while snapshots hold versions of them that
/// take twice as much: data written in hundredths of what was given. Without snapshots the others
/// are blocks of the same file that nobody overwrites.
fn beside_snapshots(snapshots: u8) -> u64 {
    let counted = Counted::new(POOL_BYTES / 2, 14);
    let (percent, step) = if snapshots > 0 { (27, 1) } else { (81, 3) };
    let (ino, blocks) = filled(&counted, percent);
    let overwritten = blocks / step;
    let mut prng = Prng::from_seed(7);
    let mut overwrite = |writes: u64| {
        for number in 0..writes {
            let data = vec![u8::try_from(number % 251).expect("small"); 16 << 10];
            let offset = prng.below(overwritten) * step * BLOCK_BYTES;
            let written = counted.pool.write(&Caller::root(), ino, offset, &data);
            written.unwrap_or_else(|error| panic!("overwrite {number} of {writes}: {error}"));
            counted.clock.advance_ns(1_000_000);
            if number % 64 == 0 {
                counted.pool.tick().expect("nothing fails");
            }
        }
        counted.pool.sync().expect("nothing fails");
    };
    for number in 0..snapshots {
        overwrite(overwritten / u64::from(SNAPSHOTS));
        let name = format::fileset::NamePart::new(&format!("c{number}")).expect("a name");
        let root = "root".parse().expect("a name");
        counted
            .pool
            .fileset_admin()
            .create_snapshot(&root, &name, [number; 16])
            .expect("there is room");
    }
    overwrite(ROUNDS_BEFORE * overwritten);
    let writes = 2 * ROUNDS * overwritten;
    let before = counted.pool.status().cleaner.since_mount.moved_fragments;
    let cost = counted.cost(|| overwrite(writes));
    let written = cost.of(IoPurpose::Data, RequestKind::Write).bytes * 100 / (writes * BLOCK_BYTES);
    // Of the pool: what snapshots hold is in no fileset's `df`.
    let space = counted.pool.status().space;
    let used = 100 * (space.used + space.promised) / space.capacity;
    let moved = counted.pool.status().cleaner.since_mount.moved_fragments - before;
    println!("{snapshots} snapshots, {used} % used: written {written} %, {moved} fragments moved");
    assert!((60..=85).contains(&used) && moved > 1000, "{used} % used, {moved} moved");
    written
}

/// Goal: a pool of which snapshots hold two thirds goes on, and cleaning costs about as much as
/// without snapshots in a pool that is as full.
#[test]
fn cleaning_beside_snapshots_costs_about_what_it_costs_without() {
    let (without, beside) = (beside_snapshots(0), beside_snapshots(SNAPSHOTS));
    assert!(beside <= without * 5 / 4, "{beside} beside snapshots, {without} without");
}
