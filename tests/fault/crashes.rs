//! Many crashes in a row: nothing that a crash leaves behind piles up, and nothing is forgotten.

use std::sync::Arc;

use engine::api::{Caller, FileSystem};
use format::superblock::{SUPERBLOCK_BYTES, Superblock, VOID_INTERVALS_MAX, VoidInterval};
use storage::device::SharedDevice;
use storage::device::sim::{Image, SimDevice, SimOptions};

use super::{POOL_BYTES, content, defects, device_of, find, make, new_pool, open, read};

fn superblock(image: &Image) -> Superblock {
    let mut bytes = [0; SUPERBLOCK_BYTES];
    image.read(0, &mut bytes);
    Superblock::decode(&bytes, 0).expect("the first copy is whole")
}

/// Opens the pool of `image`, does `work`, and loses power.
fn one_life(image: Image, work: impl FnOnce(&engine::Pool)) -> Image {
    let device = SimDevice::open(image, SimOptions::default());
    let shared: SharedDevice = Arc::<SimDevice>::clone(&device);
    let pool = open(&shared).expect("it opens after a crash");
    work(&pool);
    device.durable_image()
}

fn covers(outer: &VoidInterval, inner: &VoidInterval) -> bool {
    outer.lsn_first <= inner.lsn_first
        && inner.lsn_end <= outer.lsn_end
        && outer.epoch_first <= inner.epoch_first
        && inner.epoch_end <= outer.epoch_end
}

/// Whatever was void once stays void, and the running life is not.
#[test]
fn forty_crashes_in_a_row_forget_no_void_interval() {
    let mut image = new_pool();
    let mut noted: Vec<VoidInterval> = Vec::new();
    for life in 0..40 {
        image = one_life(image, |pool| {
            let ino = make(pool, &format!("f{life}")).expect("there is room");
            pool.write(&Caller::root(), ino, 0, &content(life, 5000)).expect("there is room");
            pool.fsync(&Caller::root(), ino, false).expect("nothing fails");
        });
        let superblock = superblock(&image);
        if life > 0 {
            noted.push(*superblock.voids.last().expect("the open after a crash notes one"));
        }
        assert!(superblock.voids.len() <= VOID_INTERVALS_MAX);
        for void in &noted {
            let is_known = superblock.voids.iter().any(|known| covers(known, void));
            assert!(is_known, "life {life}: {void:?} is forgotten: {:?}", superblock.voids);
        }
        let is_live = |void: &VoidInterval| {
            void.lsn_end <= superblock.lsn_base && void.epoch_end <= superblock.epoch_base
        };
        assert!(superblock.voids.iter().all(is_live), "the running life is void");
    }
    assert_eq!(noted.len(), 39);
    let device = device_of(&image);
    let pool = open(&device).expect("it opens");
    for life in 0..40 {
        assert_eq!(read(&pool, &format!("f{life}")), Ok(content(life, 5000)));
    }
    pool.close().expect("it closes");
    assert_eq!(defects(&device), None);
}

/// Each life syncs one small file that goes into the log, and crashes before its partial segment
/// is written. The blocks must not pin their segments for ever.
#[test]
fn blocks_that_rode_into_a_crash_can_be_cleaned() {
    let mut image = new_pool();
    let geometry = superblock(&image).geometry;
    let segments = (0..geometry.group_count).map(|group| geometry.segments_of(group)).sum::<u32>();
    let lives = u64::from(segments) + 20;
    for life in 0..lives {
        image = one_life(image, |pool| {
            let ino = make(pool, &format!("f{life}")).expect("there is room");
            pool.write(&Caller::root(), ino, 0, &content(life, 4096)).expect("there is room");
            pool.fsync(&Caller::root(), ino, false).expect("nothing fails");
        });
    }
    let device = device_of(&image);
    let pool = open(&device).expect("it opens");
    // Half of the pool, in a file of its own: it needs the segments that the crashes touched.
    let length = usize::try_from(POOL_BYTES / 2).expect("small");
    let ino = make(&pool, "large").expect("there is room");
    for (number, part) in content(7, length).chunks(256 << 10).enumerate() {
        let offset = u64::try_from(number).expect("small") * (256 << 10);
        pool.write(&Caller::root(), ino, offset, part).expect("cleaning makes room");
    }
    pool.sync().expect("nothing fails");
    for life in 0..lives {
        assert!(read(&pool, &format!("f{life}")) == Ok(content(life, 4096)), "f{life}");
    }
    find(&pool, "large").expect("it is there");
    assert!(pool.status().cleaner.since_mount.segments > 0, "nothing had to be cleaned");
    pool.close().expect("it closes");
    assert_eq!(defects(&device), None);
}

/// Goal: V3, the size on disk covers only what is in the map. Method: a file is cut to a size that
/// is on disk neither before nor in its blocks, what is committed is the cut alone, and the power
/// goes.
#[test]
fn a_cut_over_blocks_that_are_not_installed_shows_no_holes() {
    for (first, length, cut) in
        [(0, 100_000, 50_000), (0, 100_000, 65_536), (20_000, 200_000, 30_001), (5, 16_384, 16_000)]
    {
        let bytes = content(3, length);
        let image = one_life(new_pool(), |pool| {
            let ino = make(pool, "file").expect("there is room");
            if first > 0 {
                pool.write(&Caller::root(), ino, 0, &bytes[..first]).expect("there is room");
                pool.fsync(&Caller::root(), ino, false).expect("nothing fails");
            }
            let offset = u64::try_from(first).expect("small");
            pool.write(&Caller::root(), ino, offset, &bytes[first..]).expect("there is room");
            let size_bytes = Some(u64::try_from(cut).expect("small"));
            let change = engine::api::SetAttr { size_bytes, ..Default::default() };
            pool.setattr(&Caller::root(), ino, &change, None).expect("it may");
            pool.checkpoint().expect("nothing fails");
        });
        let pool = open(&device_of(&image)).expect("it opens");
        let found = read(&pool, "file").expect("it is there");
        let states = [first, length, cut];
        assert!(states.contains(&found.len()), "{} bytes, none of {states:?}", found.len());
        assert!(found == bytes[..found.len()], "{first} {length} {cut}: zeros that nobody wrote");
    }
}
