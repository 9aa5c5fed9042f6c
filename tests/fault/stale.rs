//! Pages of metadata whose last write the device has lost, sent elsewhere, or exchanged with
//! another: every kind of page, mounted read-only and read-write.
//!
//! The judge: what is read is right or an error, never other bytes; nothing that a file has on the
//! device is written over, whatever is made afterwards; and `check` tells each.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use engine::api::{Caller, FileKind, FileSystem, NewInode, SetAttr, XattrMode};
use engine::{FilesOptions, Pool, PoolCreateOptions, PoolOpenOptions};
use format::bitmap;
use format::geometry::{FIXED_DISK_GROUP, Geometry};
use format::ids::Place;
use format::page::{PageBytes, PageHeader, PageKind};
use format::superblock::{SUPERBLOCK_BYTES, Superblock};
use runtime::clock::ManualClock;
use storage::device::SharedDevice;
use storage::device::sim::{Image, SimDevice, SimOptions};

use super::{content, defects, device_of, find, make, open, read};

/// Several groups, so that some come into being late.
const POOL_BYTES: u64 = 48 << 20;
const GROUP_BYTES: u64 = 2 << 20;
const FILES: u64 = 40;
const FILE_BYTES: usize = 50_000;
/// What is made on a pool with a page that is not the one that went home last.
const NEW_FILES: u64 = 30;

/// A pool at two moments, closed at both, and what is in it at the second.
struct History {
    older: Image,
    newer: Image,
    files: BTreeMap<String, Vec<u8>>,
    geometry: Geometry,
}

fn at(directory: bool, number: u64) -> String {
    let stem =
        "a name that is long enough for a directory to have more than a page of them, number";
    if directory { format!("{stem} {number} directory") } else { format!("{stem} {number}") }
}

fn history() -> History {
    let device = SimDevice::new(POOL_BYTES, SimOptions::default());
    let shared: SharedDevice = Arc::<SimDevice>::clone(&device);
    let mut options = PoolCreateOptions::new(POOL_BYTES, [5; 64]);
    options.geometry.group_bytes = Some(GROUP_BYTES);
    Pool::create(&shared, &ManualClock::new(), &options).expect("a pool fits");
    let mut files = BTreeMap::new();
    let life = |from: u64, to: u64, files: &mut BTreeMap<String, Vec<u8>>| {
        let pool = open(&shared).expect("it was closed");
        for number in from..to {
            let name = at(false, number);
            let ino = make(&pool, &name).expect("there is room");
            let bytes = content(number, FILE_BYTES);
            pool.write(&Caller::root(), ino, 0, &bytes).expect("there is room");
            // A leaf of its own, and attributes that don't fit in an anode.
            pool.sync().expect("there is room");
            pool.write(&Caller::root(), ino, 4096, &bytes[4096..9000]).expect("there is room");
            let value = content(number, 1500);
            pool.setxattr(&Caller::root(), ino, b"user.large", &value, XattrMode::Set, None)
                .expect("there is room");
            let new = NewInode::new(FileKind::Directory, 0o755);
            let name_of = at(true, number);
            let made = pool.create(&Caller::root(), pool.root(), name_of.as_bytes(), new, None);
            pool.forget(made.expect("there is room").ino, 1);
            files.insert(name, bytes);
        }
        for number in (from / 2..from).step_by(3) {
            let name = at(false, number);
            pool.unlink(&Caller::root(), pool.root(), name.as_bytes(), None).expect("it is there");
            files.remove(&name);
        }
        for (number, (name, bytes)) in (0..).zip(files.iter_mut()).step_by(4) {
            let ino = find(&pool, name).expect("it is there");
            *bytes = content(1000 + number, FILE_BYTES);
            pool.write(&Caller::root(), ino, 0, bytes).expect("there is room");
            let owner = SetAttr { mode: Some(0o600), ..SetAttr::default() };
            pool.setattr(&Caller::root(), ino, &owner, None).expect("it is there");
            let value = content(2000 + number, 1700);
            pool.setxattr(&Caller::root(), ino, b"user.large", &value, XattrMode::Set, None)
                .expect("there is room");
        }
        pool.close().expect("nothing fails");
        device.durable_image()
    };
    let older = life(0, FILES / 2, &mut files);
    let newer = life(FILES / 2, FILES, &mut files);
    let geometry = superblock(&newer).geometry;
    History { older, newer, files, geometry }
}

fn superblock(image: &Image) -> Superblock {
    let mut bytes = [0; SUPERBLOCK_BYTES];
    image.read(0, &mut bytes);
    Superblock::decode(&bytes, 0).expect("it was closed")
}

/// Returns the pages of metadata in `image` that lie where they say, by their offset.
fn pages(image: &Image, geometry: &Geometry) -> BTreeMap<u64, (PageHeader, PageBytes)> {
    let pool_id = superblock(image).pool_id;
    let mut pages = BTreeMap::new();
    image.for_each_page(|offset, bytes| {
        let bytes: &PageBytes = bytes.first_chunk().expect("a page");
        let place = if offset < geometry.groups_offset {
            Geometry::fixed_place(offset)
        } else if let Some(place) = geometry.place_at(offset) {
            place
        } else {
            return;
        };
        if let Ok(header) = PageHeader::decode(bytes, pool_id, place) {
            pages.insert(offset, (header, *bytes));
        }
    });
    pages
}

/// Whether LSN pages tell of a lost write of such a page: what else does is in SEMANTICS.
fn is_listed(geometry: &Geometry, place: Place) -> bool {
    geometry.lsn_entry(place).is_some()
}

/// A pool of which the device has one page wrong.
struct Case {
    what: String,
    image: Image,
}

/// Returns the cases of one sort of fault, for each page that it can hit.
fn cases(history: &History, fault: &str) -> Vec<Case> {
    let geometry = &history.geometry;
    let (older, newer) = (pages(&history.older, geometry), pages(&history.newer, geometry));
    let is_live = |header: &PageHeader| {
        is_listed(geometry, header.place)
            && !matches!(header.kind, PageKind::Tombstone | PageKind::Summary)
    };
    let mut cases = Vec::new();
    for (offset, (header, bytes)) in newer.iter().filter(|(_, (header, _))| is_live(header)) {
        let what = format!("{fault}: {:?} at {}", header.kind, header.place);
        let mut image = history.newer.clone();
        match fault {
            "stale" => {
                let old = older.get(offset).filter(|(_, old)| old != bytes);
                let Some((_, old)) = old else { continue };
                image.write(*offset, old);
            }
            "misdirected" => {
                let of_kind = |(_, (other, _)): &(&u64, &(PageHeader, PageBytes))| {
                    other.kind == header.kind && other.place != header.place
                };
                let Some((_, (_, other))) = newer.iter().find(of_kind) else { continue };
                image.write(*offset, other);
            }
            _ => {
                let of_kind = |(_, (other, _)): &(&u64, &(PageHeader, PageBytes))| {
                    other.kind == header.kind && other.place > header.place
                };
                let Some((there, (_, other))) = newer.iter().find(of_kind) else { continue };
                image.write(*offset, other);
                image.write(*there, bytes);
            }
        }
        cases.push(Case { what, image });
    }
    cases
}

/// Reads every file: right bytes, or an error. Returns how many are right.
fn read_all(pool: &Pool, history: &History, what: &str) -> usize {
    let mut right = 0;
    for (name, bytes) in &history.files {
        if let Ok(found) = read(pool, name) {
            assert!(found == *bytes, "{what}: {name} reads as something else");
            right += 1;
        }
    }
    right
}

/// Writes as somebody does who does not know: new files, each synced.
fn use_it(pool: &Pool) {
    for number in 0..NEW_FILES {
        let Ok(ino) = make(pool, &format!("new {number}")) else { continue };
        let _ = pool.write(&Caller::root(), ino, 0, &content(number, FILE_BYTES));
        let _ = pool.fsync(&Caller::root(), ino, false);
    }
    let _ = pool.checkpoint();
    let _ = pool.close();
}

/// Holds what is on the device against what files had there before anything was made: returns how
/// many pages of data are gone.
fn destroyed(history: &History, after: &Image) -> usize {
    let (geometry, before) = (&history.geometry, &history.newer);
    let metadata: BTreeSet<u64> = pages(before, geometry).into_keys().collect();
    let mut gone = 0;
    for (header, map) in pages(before, geometry).into_values() {
        if header.kind != PageKind::FreeMap {
            continue;
        }
        for fragment in geometry.front_fragments(header.place.group())
            ..geometry.fragments_of(header.place.group())
        {
            let place = Place::new(0, header.place.group(), fragment);
            let offset = geometry.device_offset(place, 1).expect("it is in the group");
            if !bitmap::is_set(&map, fragment) || metadata.contains(&offset) {
                continue;
            }
            let (mut old, mut new) = ([0; 4096], [0; 4096]);
            before.read(offset, &mut old);
            after.read(offset, &mut new);
            gone += usize::from(old != new);
        }
    }
    gone
}

fn judge(fault: &str) {
    let history = history();
    assert_eq!(defects(&device_of(&history.newer)), None, "the pool is whole");
    assert_eq!(history.geometry.fragment_bytes(), 4096, "a fragment is a page in this suite");
    let cases = cases(&history, fault);
    let mut kinds: BTreeMap<String, usize> = BTreeMap::new();
    let mut right = 0;
    for Case { what, image } in &cases {
        let told = defects(&device_of(image));
        assert!(told.is_some(), "{what}: the check sees nothing");
        let files = FilesOptions { is_read_only: true, ..FilesOptions::default() };
        let options = PoolOpenOptions { files, ..PoolOpenOptions::default() };
        if let Ok(pool) = Pool::open(device_of(image), Arc::new(ManualClock::new()), options) {
            right += read_all(&pool, &history, what);
        }
        let device = SimDevice::open(image.clone(), SimOptions::default());
        let shared: SharedDevice = Arc::<SimDevice>::clone(&device);
        if let Ok(pool) = open(&shared) {
            use_it(&pool);
        }
        assert_eq!(destroyed(&history, &device.image()), 0, "{what}: data is written over");
        if let Ok(pool) = open(&shared) {
            read_all(&pool, &history, what);
        }
        let kind = what.split(' ').nth(1).unwrap_or("").to_owned();
        *kinds.entry(kind).or_default() += 1;
    }
    println!("{fault}: {} pages, {right} files read, by kind {kinds:?}", cases.len());
    let expected: &[&str] = match fault {
        // Of the other kinds this pool has one page.
        "stale" => &[
            "GroupTableRoot",
            "GroupTable",
            "GroupDescriptor",
            "FreeMap",
            "SegmentUsage",
            "FilesetTable",
            "Anode",
            "Map",
            "Directory",
            "AnodeMap",
            "Attributes",
        ],
        _ => &[
            "GroupDescriptor",
            "FreeMap",
            "SegmentUsage",
            "Anode",
            "Map",
            "Directory",
            "Attributes",
        ],
    };
    for kind in expected {
        assert!(kinds.contains_key(*kind), "no {kind} in {kinds:?}");
    }
}

/// Goal: a page whose last write was lost destroys nothing and is never served.
#[test]
fn a_page_that_is_stale_is_told_and_destroys_nothing() {
    judge("stale");
}

/// Goal: so does one over which the device has put another.
#[test]
fn a_page_that_was_written_over_is_told_and_destroys_nothing() {
    judge("misdirected");
}

/// Goal: and so do two that the device has exchanged.
#[test]
fn pages_that_were_exchanged_are_told_and_destroy_nothing() {
    judge("exchanged");
}

/// Goal: an LSN page whose last write was lost makes no page look lost: it is rebuilt. Method:
/// each stale LSN page in turn; every file reads, also after a checkpoint and another open.
#[test]
fn an_lsn_page_that_is_stale_is_rebuilt() {
    let history = history();
    let geometry = &history.geometry;
    let (older, newer) = (pages(&history.older, geometry), pages(&history.newer, geometry));
    let mut count = 0;
    for (offset, (header, bytes)) in &newer {
        let old = older.get(offset).filter(|(_, old)| old != bytes);
        let Some((_, old)) = old.filter(|_| header.kind == PageKind::LsnPage) else { continue };
        assert!(header.place.disk_group() == FIXED_DISK_GROUP || header.place.disk_group() == 0);
        let mut image = history.newer.clone();
        image.write(*offset, old);
        let device = device_of(&image);
        let told = defects(&device).unwrap_or_default();
        assert!(told.contains("AG011"), "{}: {told}", header.place);
        for _ in 0..2 {
            let pool = open(&device).expect("the pages are whole");
            assert_eq!(read_all(&pool, &history, "LSN page"), history.files.len());
            make(&pool, &format!("new {count}")).expect("nothing is contradicted");
            count += 1;
            pool.close().expect("nothing fails");
        }
        assert_eq!(defects(&device), None, "{}", header.place);
    }
    assert!(count >= 4, "{count}");
}
