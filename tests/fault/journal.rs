//! Damage to the journal: what was acknowledged comes back, or the open refuses and says why.

use std::sync::Arc;

use engine::api::{Caller, FileSystem};
use format::geometry::{JOURNAL_HEAD_COPIES, JOURNAL_HEADS};
use format::journal::JournalHead;
use format::superblock::{SUPERBLOCK_BYTES, Superblock};
use storage::device::SharedDevice;
use storage::device::sim::{Image, SimDevice, SimOptions, Strategy};

use super::{content, defects, device_of, find, forget_lsns, make, new_pool, open, read};

const FILE_BYTES: usize = 20_000;

fn superblock(image: &Image) -> Superblock {
    let mut bytes = [0; SUPERBLOCK_BYTES];
    image.read(0, &mut bytes);
    Superblock::decode(&bytes, 0).expect("the first copy is whole")
}

/// Returns the slots of the heads' copies that verify, with their sequences.
fn heads(image: &Image) -> Vec<(u64, u64)> {
    let superblock = superblock(image);
    let decode = |slot: u64| {
        let mut bytes = [0; 4096];
        image.read(superblock.geometry.journal_offset + slot * 4096, &mut bytes);
        JournalHead::decode(&bytes, superblock.pool_id, &superblock.geometry, slot).ok()
    };
    (0..JOURNAL_HEADS).filter_map(|slot| Some((slot, decode(slot)?.sequence))).collect()
}

/// Damages `copies` copies of the newest head.
fn damage_newest(image: &Image, copies: u64) -> Image {
    let newest = heads(image).into_iter().map(|(_, sequence)| sequence).max().expect("whole");
    let journal_offset = superblock(image).geometry.journal_offset;
    let mut damaged = image.clone();
    let slots = heads(image).into_iter().filter(|(_, sequence)| *sequence == newest);
    for (slot, _) in slots.take(usize::try_from(copies).expect("few")) {
        damaged.flip(journal_offset + slot * 4096 + 200, 1);
    }
    damaged
}

/// What a crash left: names and contents that were synced.
struct Left {
    image: Image,
    synced: Vec<(String, u64)>,
}

/// Makes and syncs files over `checkpoints` checkpoints, frees some, and, if `goes_on`, syncs more
/// behind the last one.
fn crashed(checkpoints: u64, goes_on: bool) -> Left {
    let device = SimDevice::open(new_pool(), SimOptions::default());
    let shared: SharedDevice = Arc::<SimDevice>::clone(&device);
    let pool = open(&shared).expect("a new pool opens");
    let mut synced = Vec::new();
    let add = |synced: &mut Vec<(String, u64)>, number: u64| {
        let name = format!("file{number}");
        let ino = make(&pool, &name).expect("there is room");
        pool.write(&Caller::root(), ino, 0, &content(number, FILE_BYTES)).expect("there is room");
        pool.fsync(&Caller::root(), ino, false).expect("nothing fails");
        synced.push((name, number));
    };
    for round in 0..checkpoints {
        for number in 0..30 {
            add(&mut synced, round * 100 + number);
        }
        // Space that this life uses again.
        for (name, _) in synced.drain(..20) {
            pool.unlink(&Caller::root(), pool.root(), name.as_bytes(), None).expect("it is there");
        }
        pool.sync().expect("nothing fails");
        pool.checkpoint().expect("nothing fails");
    }
    if goes_on {
        (10_000..10_030).for_each(|number| add(&mut synced, number));
    }
    Left { image: device.durable_image(), synced }
}

/// Whether all that was synced is there, and the check finds nothing.
fn is_whole(image: &Image, left: &Left) -> Result<(), String> {
    let device = device_of(image);
    let pool = open(&device).map_err(|error| error.to_string())?;
    for (name, number) in &left.synced {
        let found = read(&pool, name).map_err(|error| format!("{name}: {error}"))?;
        if found != content(*number, FILE_BYTES) {
            return Err(format!("{name} has other bytes"));
        }
    }
    pool.close().map_err(|error| error.to_string())?;
    defects(&device).map_or(Ok(()), Err)
}

/// One rotten page does not hide the newest head.
#[test]
fn one_damaged_copy_of_the_newest_head_costs_nothing() {
    for (checkpoints, goes_on) in [(1, true), (5, true), (9, true), (5, false)] {
        let left = crashed(checkpoints, goes_on);
        let damaged = damage_newest(&left.image, 1);
        assert_eq!(heads(&damaged).len(), heads(&left.image).len() - 1);
        assert_eq!(is_whole(&damaged, &left), Ok(()), "{checkpoints} {goes_on}");
    }
}

/// Goal: no history but the newest is ever served. Method: both copies of the newest head rot, when
/// the log was used behind it and when it was not, and when the ring came round.
#[test]
fn a_lost_head_is_refused_or_costs_nothing() {
    let (mut refused, mut recovered) = (0, 0);
    for checkpoints in 1..=12 {
        for goes_on in [true, false] {
            let left = crashed(checkpoints, goes_on);
            let damaged = damage_newest(&left.image, JOURNAL_HEAD_COPIES);
            let before = damaged.content_hash();
            match is_whole(&damaged, &left) {
                Ok(()) => recovered += 1,
                Err(error) => {
                    assert!(error.contains("JR006"), "{checkpoints} {goes_on}: {error}");
                    assert!(goes_on, "{checkpoints}: nothing came behind the head: {error}");
                    let found = defects(&device_of(&damaged)).expect("the check tells too");
                    assert!(found.contains("JR006"), "{found}");
                    refused += 1;
                }
            }
            assert_eq!(damaged.content_hash(), before);
        }
    }
    println!("{refused} refused, {recovered} recovered");
    assert!(refused >= 12 && recovered >= 12, "{refused} {recovered}");
}

/// A pool that was closed goes on from its newest head or not at all: LSNs and epochs never repeat.
#[test]
fn a_closed_pool_with_a_lost_head_repeats_no_position() {
    let left = crashed(3, true);
    let device = SimDevice::open(left.image.clone(), SimOptions::default());
    let shared: SharedDevice = Arc::<SimDevice>::clone(&device);
    let pool = open(&shared).expect("it opens");
    make(&pool, "last").expect("there is room");
    pool.close().expect("it closes");
    let closed = device.durable_image();
    let newest_tail = |image: &Image| {
        let superblock = superblock(image);
        let tail = |(slot, _): &(u64, u64)| {
            let mut bytes = [0; 4096];
            image.read(superblock.geometry.journal_offset + slot * 4096, &mut bytes);
            let geometry = &superblock.geometry;
            let head = JournalHead::decode(&bytes, superblock.pool_id, geometry, *slot);
            head.expect("it verifies").tail
        };
        heads(image).iter().map(tail).max().expect("there are heads")
    };
    let end = newest_tail(&closed);
    let damaged = damage_newest(&closed, JOURNAL_HEAD_COPIES);
    assert!(newest_tail(&damaged) < end, "the older head is older");
    let device = SimDevice::open(damaged, SimOptions::default());
    let shared: SharedDevice = Arc::<SimDevice>::clone(&device);
    let pool = open(&shared).expect("all that was committed is home and in the log");
    find(&pool, "last").expect("it was made");
    for (name, number) in &left.synced {
        assert!(read(&pool, name).expect("it is there") == content(*number, FILE_BYTES), "{name}");
    }
    pool.close().expect("it closes");
    assert!(superblock(&device.durable_image()).lsn_base >= end, "positions repeat");
}

/// Goal: the home state alone never loses a name, even when the log is lost too. Method: names are
/// home; then their directory's page splits, or is joined again, and the power goes at every moment
/// of the checkpoint, with any subset of the writes under way, and the whole ring with it.
#[test]
fn a_split_and_a_join_lose_no_name_without_the_log() {
    const NAMES: u64 = 60;
    let device =
        SimDevice::open(new_pool(), SimOptions { is_recorded: true, ..SimOptions::default() });
    let shared: SharedDevice = Arc::<SimDevice>::clone(&device);
    let pool = open(&shared).expect("a new pool opens");
    let old = |number: u64| format!("a name of middling length {number}");
    let new = |number: u64| format!("another name of such length {number}");
    for number in 0..NAMES {
        make(&pool, &old(number)).expect("there is room");
    }
    let checkpoint = || pool.checkpoint().expect("nothing fails");
    let mut rounds = Vec::new();
    for round in 0..2 {
        checkpoint();
        for number in 0..NAMES {
            if round == 0 {
                make(&pool, &new(number)).expect("there is room");
            } else {
                let name = new(number);
                pool.unlink(&Caller::root(), pool.root(), name.as_bytes(), None)
                    .expect("it is there");
            }
        }
        pool.sync().expect("nothing fails");
        let start = device.position();
        checkpoint();
        rounds.push(start..device.position());
    }
    let superblock = superblock(&device.durable_image());
    let ring = superblock.geometry.journal_offset + JOURNAL_HEADS * 4096;
    let zeros = vec![0; 4096];
    let strategy =
        Strategy { exhaustive_writes_max: 6, random_subsets: 48, torn_variants: 0, seed: 1 };
    let recording = device.recording();
    let mut count = 0;
    for point in recording.points() {
        if !rounds.iter().any(|round| round.contains(&point.position())) {
            continue;
        }
        for mut crash in point.images(&strategy) {
            let end = superblock.geometry.journal_offset + superblock.geometry.journal_bytes;
            (ring..end).step_by(4096).for_each(|offset| crash.image.write(offset, &zeros));
            // Without its log the pages at home are of different moments, which LSN pages tell.
            forget_lsns(&mut crash.image);
            let pool = open(&device_of(&crash.image)).expect("it opens without its log");
            for number in 0..NAMES {
                let found = find(&pool, &old(number));
                assert!(found.is_ok(), "{}: {found:?} at {}", old(number), point.position());
            }
            count += 1;
        }
    }
    println!("{count} images");
    assert!(count > 50, "{count}");
}
