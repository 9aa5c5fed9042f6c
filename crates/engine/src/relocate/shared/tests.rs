//! Tests of moves of shared blocks.

use format::fileset::{FilesetName, NamePart};
use format::summary::SummaryKind;
use runtime::clock::ManualClock;
use storage::device::{IoPurpose, MemoryDevice, SharedDevice};

use super::*;
use crate::api::{Caller, FileKind, FileSystem, NewInode, SetAttr};
use crate::fileset_table::deletion::DeletionProgress;
use crate::{Pool, PoolCreateOptions, PoolOpenOptions};

const POOL_BYTES: u64 = 48 << 20;
const BLOCK_BYTES: u64 = 16 << 10;
const QUARTER_BYTES: u64 = BLOCK_BYTES / 4;
/// Enough for several leaves, and several steps of a deletion.
const BLOCKS: u64 = 400;

fn root() -> FilesetName {
    "root".parse().expect("a name")
}

fn part(text: &str) -> NamePart {
    NamePart::new(text).expect("a name")
}

fn new_pool() -> (Pool, Ino) {
    let device: SharedDevice = MemoryDevice::new("memory", POOL_BYTES);
    let options = PoolCreateOptions::new(POOL_BYTES, [7; 64]);
    Pool::create(&device, &ManualClock::new(), &options).expect("a pool fits");
    let clock = Arc::new(ManualClock::new());
    let pool = Pool::open(device, clock, PoolOpenOptions::default()).expect("it opens");
    let new = NewInode::new(FileKind::Regular, 0o644);
    let made = pool.create(&Caller::root(), pool.root(), b"file", new, None).expect("room");
    let data: Vec<u8> = (0..BLOCKS * BLOCK_BYTES).map(byte_at).collect();
    pool.write(&Caller::root(), made.ino, 0, &data).expect("there is room");
    pool.sync().expect("nothing fails");
    (pool, made.ino)
}

fn byte_at(offset: u64) -> u8 {
    (offset / QUARTER_BYTES % 251).to_le_bytes()[0]
}

/// Overwrites some quarters of each block, scattered over the segments.
fn overwrite(pool: &Pool, ino: Ino, is_written: fn(u64) -> bool) {
    for nth in 0..BLOCKS {
        let block = nth * 97 % BLOCKS;
        for quarter in (0..4).filter(|quarter| is_written(*quarter)) {
            let offset = block * BLOCK_BYTES + quarter * QUARTER_BYTES;
            let data = vec![0xee; index_wide(QUARTER_BYTES)];
            pool.write(&Caller::root(), ino, offset, &data).expect("there is room");
        }
    }
    pool.sync().expect("nothing fails");
}

fn take(pool: &Pool, snapshot: &str) -> u32 {
    let taken = pool.fileset_admin().create_snapshot(&root(), &part(snapshot), [1; 16]);
    taken.expect("there is room").slot
}

/// Returns the places of the quarters that were never overwritten.
fn places(core: &Core, ino: Ino, is_written: fn(u64) -> bool) -> BTreeMap<u64, Place> {
    let vnode = core.table.find(ino).expect("it is in use");
    let state = vnode.state.read();
    let anode = state.anode.as_ref().expect("it is there");
    let units = core.store.units(anode, 0, BLOCKS * BLOCK_BYTES).expect("nothing fails");
    let is_old = |start: u64| !is_written(start % BLOCK_BYTES / QUARTER_BYTES);
    let pointers = units.iter().filter(|unit| is_old(unit.start));
    pointers.filter_map(|unit| Some((unit.start, unit.pointer?.place))).collect()
}

#[track_caller]
fn assert_content(pool: &Pool, root: Ino, is_written: fn(u64) -> bool) {
    let found = pool.lookup(&Caller::root(), root, b"file").expect("it is there");
    let mut bytes = Vec::new();
    let length = index_wide(BLOCKS * BLOCK_BYTES);
    pool.read(&Caller::root(), found.ino, 0, length, &mut bytes).expect("it is whole");
    assert_eq!(bytes.len(), length);
    for (offset, byte) in (0..).zip(bytes) {
        let is_new = is_written(offset % BLOCK_BYTES / QUARTER_BYTES);
        assert_eq!(byte, if is_new { 0xee } else { byte_at(offset) }, "at {offset}");
    }
}

/// Empties segments, and returns how many quarters of `before` have moved.
fn moved(
    core: &Core,
    ino: Ino,
    before: &BTreeMap<u64, Place>,
    is_written: fn(u64) -> bool,
) -> usize {
    core.emptier.empty_thoroughly(core, u32::MAX).expect("nothing fails");
    let after = places(core, ino, is_written);
    assert_eq!(after.len(), before.len());
    before.iter().filter(|(start, place)| after.get(start) != Some(place)).count()
}

/// MV5. Method: a snapshot holds whole blocks, and its fileset and a later snapshot hold all but a
/// quarter of each. The first snapshot is freed before the move.
#[test]
fn a_block_of_which_nobody_holds_a_part_any_more_is_moved() {
    let (pool, ino) = new_pool();
    let is_written = |quarter: u64| quarter == 1;
    take(&pool, "a");
    overwrite(&pool, ino, is_written);
    take(&pool, "b");
    pool.fileset_admin().delete_snapshot(&root(), &part("a")).expect("nobody holds it");
    while pool.fileset_admin().is_freeing().expect("the table can be read") {
        pool.tick().expect("nothing fails");
    }
    pool.checkpoint().expect("nothing fails");
    let before = places(pool.core(), ino, is_written);
    assert_eq!(before.len(), index_wide(3 * BLOCKS));
    // Open segments are not emptied.
    let moved = moved(pool.core(), ino, &before, is_written);
    assert!(moved > before.len() * 9 / 10, "{moved} of {}", before.len());
    let snapshot = pool.fileset_admin().hold_snapshot(&root(), &part("b")).expect("it is there");
    assert_content(&pool, pool.root(), is_written);
    assert_content(&pool, pool.root_of(snapshot).expect("it is held"), is_written);
}

/// Goal: a copied block is dropped if its old place was reused. Method: blocks of a snapshot are
/// copied, and the snapshot is freed. Blocks of the fileset with the same ranges stand for the
/// reuse.
#[test]
fn a_place_that_was_used_again_since_a_copy_is_left_alone() {
    let (pool, ino) = new_pool();
    let core = pool.core();
    let pointers = || {
        let vnode = core.table.find(ino).expect("it is in use");
        let state = vnode.state.read();
        let anode = state.anode.as_ref().expect("it is there");
        let units = core.store.units(anode, 0, 32 * BLOCK_BYTES).expect("nothing fails");
        let pointers = units.iter().filter_map(|unit| Some((unit.start, unit.pointer?)));
        (pointers.collect::<BTreeMap<u64, BlockPointer>>(), anode.clone())
    };
    let (old, anode) = pointers();
    take(&pool, "a");
    let data = vec![0xee; index_wide(BLOCKS * BLOCK_BYTES)];
    pool.write(&Caller::root(), ino, 0, &data).expect("there is room");
    pool.sync().expect("nothing fails");
    let geometry = core.store.geometry();
    let mut moves = BlockMoves::default();
    for (start, pointer) in &old {
        let segment = geometry.segment_of(pointer.place);
        let begin = geometry.segment_place(pointer.place.group(), segment);
        let length = core.reader().stored_bytes(geometry.segment_fragments);
        let bytes = core.store.volume.read(IoPurpose::Cleaner, begin, length);
        let content = SegmentContent { start: begin, bytes: bytes.expect("nothing fails") };
        let entry = SummaryEntry {
            kind: SummaryKind::Block,
            block_shift: 14,
            fragments: pointer.fragments,
            offset: pointer.place.fragment() - begin.fragment(),
            fileset: anode.fileset,
            anode: anode.number,
            generation: anode.generation,
            index: start / BLOCK_BYTES,
            birth: pointer.birth,
            check: pointer.check,
        };
        core.mover().copy_held(&content, &[entry], &mut moves).expect("it is whole");
    }
    assert_eq!(moves.waiting.len(), old.len(), "the snapshot has all");
    pool.fileset_admin().delete_snapshot(&root(), &part("a")).expect("nobody holds it");
    while pool.fileset_admin().is_freeing().expect("the table can be read") {
        pool.tick().expect("nothing fails");
    }
    pool.checkpoint().expect("nothing fails");
    let (new, _) = pointers();
    for moving in &mut moves.waiting {
        moving.from = new[&(moving.entry.index * BLOCK_BYTES)].place;
    }
    core.mover().settle_held(&mut moves).expect("nothing fails");
    pool.sync().expect("nothing fails");
    assert_content(&pool, pool.root(), |_| true);
}

/// MV2. Method: a snapshot holds whole blocks, and its fileset and a later snapshot hold a quarter
/// of each. Segments are emptied after the first step of the snapshot's deletion.
#[test]
fn a_block_is_moved_whatever_a_walk_has_left_behind() {
    let (pool, ino) = new_pool();
    let core = pool.core();
    let is_written = |quarter: u64| quarter != 1;
    let slot = take(&pool, "a");
    overwrite(&pool, ino, is_written);
    take(&pool, "b");
    pool.fileset_admin().delete_snapshot(&root(), &part("a")).expect("nobody holds it");
    let free_some = || core.filesets.table.free_some(&core.store, slot).expect("it is whole");
    assert_eq!(free_some(), DeletionProgress::More, "one step is too few");
    pool.checkpoint().expect("nothing fails");
    let before = places(core, ino, is_written);
    assert_eq!(before.len(), index_wide(BLOCKS));
    // The deletion has not reached these blocks, so they are still whole.
    let moved = moved(core, ino, &before, is_written);
    assert!(moved > before.len() / 8, "{moved} of {}", before.len());
    while pool.fileset_admin().is_freeing().expect("the table can be read") {
        pool.tick().expect("nothing fails");
    }
    let snapshot = pool.fileset_admin().hold_snapshot(&root(), &part("b")).expect("it is there");
    assert_content(&pool, pool.root(), is_written);
    assert_content(&pool, pool.root_of(snapshot).expect("it is held"), is_written);
}

/// Method: the first block of each file ends before its range does. The rest of the range is
/// written later, to the place where the block would have continued.
#[test]
fn a_block_is_moved_beside_another_of_its_range() {
    let (pool, big) = new_pool();
    let core = pool.core();
    let new = || NewInode::new(FileKind::Regular, 0o644);
    let (mut files, mut beside) = (Vec::new(), 0);
    for number in 0..8 {
        let name = format!("small{number}");
        let made = pool.create(&Caller::root(), pool.root(), name.as_bytes(), new(), None);
        let ino = made.expect("room").ino;
        let write = |offset: u64, length: u64| {
            let data = vec![7; index_wide(length)];
            pool.write(&Caller::root(), ino, offset, &data).expect("there is room");
            pool.sync().expect("nothing fails");
        };
        write(0, 2 * QUARTER_BYTES);
        let size = SetAttr { size_bytes: Some(4 * BLOCK_BYTES), ..SetAttr::default() };
        pool.setattr(&Caller::root(), ino, &size, None).expect("nothing fails");
        take(&pool, &format!("c{number}"));
        write(3 * QUARTER_BYTES, QUARTER_BYTES);
        let vnode = core.table.find(ino).expect("it is in use");
        let state = vnode.state.read();
        let anode = state.anode.as_ref().expect("it is there");
        let units = core.store.units(anode, 0, BLOCK_BYTES).expect("nothing fails");
        let place = |start: u64| {
            let unit = units.iter().find(|unit| unit.start == start);
            unit.and_then(|unit| unit.pointer).map(|pointer| pointer.place)
        };
        let first = place(0).expect("it was written");
        beside += u32::from(place(3 * QUARTER_BYTES) == Some(first.advance(3)));
        files.push(ino);
    }
    assert!(beside > 0, "none lies as it is to");
    take(&pool, "last");
    // Fills the segment, and frees a part of it.
    overwrite(&pool, big, |quarter| quarter == 1);
    pool.checkpoint().expect("nothing fails");
    core.emptier.empty_thoroughly(core, u32::MAX).expect("nothing fails");
    for ino in files {
        let mut bytes = Vec::new();
        let length = index_wide(BLOCK_BYTES);
        pool.read(&Caller::root(), ino, 0, length, &mut bytes).expect("it is whole");
        let quarters: Vec<u8> = bytes.chunks(index_wide(QUARTER_BYTES)).map(|q| q[0]).collect();
        assert_eq!(quarters, [7, 7, 0, 7]);
    }
    pool.close().expect("nothing fails");
}

/// PO1. Method: the snapshot is shut out between the lookup of the family and the lock.
#[test]
fn who_moves_blocks_loads_no_file_of_a_snapshot_that_was_just_deleted() {
    let (pool, _) = new_pool();
    let core = pool.core();
    let slots = ["a", "b"].map(|snapshot| {
        let slot = take(&pool, snapshot);
        let held =
            pool.fileset_admin().hold_snapshot(&root(), &part(snapshot)).expect("it is there");
        pool.fileset_admin().release_fileset(held);
        slot
    });
    let family = core.filesets.main.anodes.family;
    let index = core.filesets.table.lock(&core.store).expect("it can be read");
    let wanted = Family::of(&index, family);
    drop(index);
    let opened = || {
        let mover = core.mover();
        let opened = mover.opened_in(&wanted).expect("the table can be read");
        opened.iter().map(|fileset| fileset.anodes.slot).collect::<Vec<_>>()
    };
    let main = core.filesets.main_slot();
    assert_eq!(opened(), [main, slots[0], slots[1]]);
    pool.fileset_admin().delete_snapshot(&root(), &part("a")).expect("nobody holds it");
    assert_eq!(opened(), [main, slots[1]]);
}
