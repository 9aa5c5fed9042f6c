//! Leaves of 16 KiB blocks that are split into blocks of 4 KiB, and what is damaged in them.

use engine::Pool;
use engine::api::{Caller, FileSystem, Ino, SetAttr};
use format::ids::{Epoch, Place};
use format::map::{is_split, set_pointer};
use format::page::{PAGE_BYTES, PageBytes, PageHeader, PageKind, stamp};
use format::pointer::BlockPointer;
use runtime::prng::Prng;
use storage::device::{AlignedBuffer, IoPurpose, SharedDevice};

use super::{content, defects, find, make, open, pool_in_memory, read};

const POOL_BYTES: u64 = 64 << 20;
/// Blocks of 16 KiB: two leaves and a bit.
const FILE_BYTES: usize = 260 * 16384 + 5000;

fn put(pool: &Pool, ino: Ino, bytes: &mut Vec<u8>, offset: usize, piece: &[u8]) {
    let at = u64::try_from(offset).expect("small");
    pool.write(&Caller::root(), ino, at, piece).expect("there is room");
    bytes.resize(bytes.len().max(offset + piece.len()), 0);
    bytes[offset..offset + piece.len()].copy_from_slice(piece);
}

fn cut(pool: &Pool, ino: Ino, bytes: &mut Vec<u8>, length: usize) {
    let size_bytes = Some(u64::try_from(length).expect("small"));
    let set = SetAttr { size_bytes, ..SetAttr::default() };
    pool.setattr(&Caller::root(), ino, &set, None).expect("it may");
    bytes.resize(length, 0);
}

/// Returns a pool with a file whose leaves are split, and the content of that.
fn split_file() -> (SharedDevice, Pool, Vec<u8>) {
    let (device, pool) = pool_in_memory(POOL_BYTES);
    let ino = make(&pool, "file").expect("there is room");
    let mut bytes = Vec::new();
    put(&pool, ino, &mut bytes, 0, &content(1, FILE_BYTES));
    pool.sync().expect("there is room");
    for block in [3_usize, 130, 255] {
        put(&pool, ino, &mut bytes, block * 16384 + 8192, &content(2, 4096));
    }
    (device, pool, bytes)
}

fn settle(device: &SharedDevice, pool: Pool) -> Pool {
    pool.close().expect("nothing fails");
    assert_eq!(defects(device), None);
    open(device).expect("it was closed")
}

fn fragments(pool: &Pool) -> u64 {
    pool.getattr(&Caller::root(), find(pool, "file").expect("it was made"))
        .expect("it is there")
        .blocks_512
        / 8
}

/// Goal: whatever was written is read, before and after the blocks are in the map, and all space
/// comes back. Method: pieces of all sizes over, across and behind split leaves; cuts through them.
#[test]
fn a_split_leaf_holds_what_is_written_cut_and_grown() {
    let (device, pool, mut bytes) = split_file();
    let ino = find(&pool, "file").expect("it was made");
    let data = u64::try_from(FILE_BYTES.div_ceil(4096)).expect("small");
    // Three leaves of one level; the split makes four pages more below each but the last.
    pool.sync().expect("there is room");
    assert_eq!(fragments(&pool), data + 3 + 4 + 4 + 1);
    let mut pool = settle(&device, pool);
    let mut prng = Prng::from_seed(5);
    for round in 0..60 {
        let piece = content(100 + round, usize::try_from(1 + prng.below(40_000)).expect("small"));
        let offset = usize::try_from(prng.below(4 << 20)).expect("small");
        let offset = if prng.one_in(2) { offset / 4096 * 4096 } else { offset };
        put(&pool, ino, &mut bytes, offset, &piece);
        match prng.below(6) {
            0 => pool.fsync(&Caller::root(), ino, false).expect("there is room"),
            1 => pool.sync().expect("there is room"),
            2 => {
                let length = usize::try_from(prng.below(4 << 20)).expect("small");
                cut(&pool, ino, &mut bytes, length);
            }
            _ => {}
        }
        assert!(read(&pool, "file").expect("it reads") == bytes, "round {round}");
        if round % 10 == 9 {
            pool = settle(&device, pool);
            assert!(read(&pool, "file").expect("it reads") == bytes, "round {round}, reopened");
        }
    }
    cut(&pool, ino, &mut bytes, 0);
    assert_eq!(fragments(&pool), 0);
    drop(settle(&device, pool));
}

/// A cut through a block of 16 KiB leaves all of it; as blocks of 4 KiB most of it would lie past
/// the end.
#[test]
fn a_split_drops_what_a_cut_has_left_past_the_end() {
    let (device, pool) = pool_in_memory(POOL_BYTES);
    let ino = make(&pool, "file").expect("there is room");
    let mut bytes = Vec::new();
    put(&pool, ino, &mut bytes, 0, &content(1, 60 * 16384));
    pool.sync().expect("there is room");
    cut(&pool, ino, &mut bytes, 50 * 16384 + 100);
    put(&pool, ino, &mut bytes, 3 * 16384, &content(2, 4096));
    let pool = settle(&device, pool);
    cut(&pool, ino, &mut bytes, 60 * 16384);
    assert!(read(&pool, "file").expect("it reads") == bytes);
    drop(settle(&device, pool));
}

/// The same where the block still waits and its leaf is split already.
#[test]
fn a_block_that_is_cut_while_it_waits_is_divided_up_to_the_end() {
    let (device, pool, mut bytes) = split_file();
    pool.sync().expect("there is room");
    let ino = find(&pool, "file").expect("it was made");
    put(&pool, ino, &mut bytes, 3 * 16384, &content(4, 16384));
    cut(&pool, ino, &mut bytes, 3 * 16384 + 40);
    let pool = settle(&device, pool);
    assert!(read(&pool, "file").expect("it reads") == bytes);
    cut(&pool, ino, &mut bytes, 0);
    assert_eq!(fragments(&pool), 0);
    drop(settle(&device, pool));
}

fn pages(device: &SharedDevice) -> impl Iterator<Item = (u64, PageBytes)> {
    (0..POOL_BYTES / 4096).filter_map(move |number| {
        let bytes = device.read(IoPurpose::Home, number * 4096, PAGE_BYTES).expect("in range");
        Some((number * 4096, *bytes.first_chunk()?))
    })
}

/// Returns where on the device the pages are that `wanted` says, of the map of the file.
fn map_pages(device: &SharedDevice, wanted: impl Fn(&PageBytes) -> bool) -> Vec<u64> {
    let pages = pages(device).filter(|(_, bytes)| {
        let header = PageHeader::parse(bytes).filter(|_| bytes.starts_with(b"HFpg"));
        header.is_some_and(|header| header.kind == PageKind::Map) && wanted(bytes)
    });
    pages.map(|(offset, _)| offset).collect()
}

fn change(device: &SharedDevice, offset: u64, change: impl FnOnce(&mut PageBytes)) {
    let bytes = device.read(IoPurpose::Home, offset, PAGE_BYTES).expect("in range");
    let mut bytes: PageBytes = *bytes.first_chunk().expect("a page");
    let lsn = PageHeader::parse(&bytes).expect("a page").lsn;
    change(&mut bytes);
    stamp(&mut bytes, lsn);
    device.write(IoPurpose::Home, offset, AlignedBuffer::copy_of(&bytes)).expect("in range");
}

/// A split leaf has four pointers and no fifth.
#[test]
fn a_split_leaf_that_cannot_be_is_a_defect() {
    let (device, pool, _) = split_file();
    pool.close().expect("nothing fails");
    // What lies before the groups are copies in the double-write area.
    let split = *map_pages(&device, is_split).last().expect("leaves are split");
    change(&device, split, |bytes| {
        let fifth = BlockPointer::to_page(Place::new(0, 0, 900), 1, Epoch(3));
        set_pointer(bytes, 4, Some(&fifth));
    });
    let found = defects(&device).expect("it is damaged");
    assert!(found.contains("MP003"), "{found}");
}

#[test]
fn explain_shows_the_blocks_of_a_split_leaf() {
    let (device, pool, _) = split_file();
    pool.close().expect("nothing fails");
    let range = 3 * 16384 + 8192..3 * 16384 + 8200;
    let there = inspect::explain::explain_path(
        &device,
        inspect::explain::FilesetSelector::First,
        b"/file",
        Some(range),
    )
    .expect("it is there");
    let text = there.to_text();
    assert!(text.contains("split into leaves of 4 KiB blocks"), "{text}");
    assert!(text.contains("14 of 4 KiB: 4096 bytes"), "{text}");
    let block = there.layers.iter().find(|layer| layer.layer == "block").expect("it is shown");
    let offset = block.device_offset.expect("it has a place");
    let back =
        inspect::explain::explain_offset(&device, offset + 9).expect("it is in the pool").to_text();
    assert!(back.contains("/file") && back.contains("14 of 4 KiB"), "{back}");
}
