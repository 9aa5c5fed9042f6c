//! Free segments go back to the devices: on every layout that may, and nothing that is in use does.

use std::sync::Arc;
use std::time::Duration;

use engine::api::{Caller, FileKind, FileSystem, FsError, NewInode};
use engine::{DiscardOptions, DiscardScope, Pool, PoolCreateOptions, PoolOpenOptions, TrimError};
use format::members::Layout;
use format::stripes::UNIT_SHIFT_DEFAULT;
use runtime::clock::ManualClock;
use runtime::prng::Prng;
use storage::device::sim::{
    Fault, FaultPlan, Image, PowerSupply, Recording, SimDevice, SimOptions, Timeline,
};
use storage::device::{Device, IoPurpose, RequestKind};
use storage::volume::{Volume, VolumeDevices};

use super::roles::make;
use super::{Devices, NOTHING, POOL_BYTES, cut_at, shared, unmended};

const LAYOUTS: [(Layout, usize); 3] =
    [(Layout::Single, 1), (Layout::Mirror, 2), (Layout::RoundRobin, 3)];
const FILE_BYTES: usize = 300_000;
/// How often a file that is written slowly has the content of another: more than is written late.
const SLOW_TIMES: usize = 3;
const PIECE_BYTES: usize = 60_000;

fn devices_with(images: Vec<Image>, seed: u64, has_discard: impl Fn(usize) -> bool) -> Devices {
    let (power, timeline) = (PowerSupply::new(), Timeline::default());
    let device = |(number, image): (usize, Image)| {
        let options = SimOptions {
            name: format!("/sim/d{number}"),
            power: power.clone(),
            timeline: timeline.clone(),
            has_discard: has_discard(number),
            is_recorded: true,
            seed: seed * 100 + u64::try_from(number).expect("a few"),
            ..SimOptions::default()
        };
        SimDevice::open(image, options)
    };
    images.into_iter().enumerate().map(device).collect()
}

fn new_pool(layout: Layout, count: usize, seed: u64) -> Devices {
    if layout == Layout::RoundRobin {
        let specs = [(Layout::Single, 1, false), (Layout::RoundRobin, count - 1, true)];
        let (devices, made) = make(&specs, 2 * POOL_BYTES);
        made.expect("it fits");
        return devices_with(devices.iter().map(|it| it.image()).collect(), seed, |_| true);
    }
    let devices = devices_with(vec![Image::blank(POOL_BYTES); count], seed, |_| true);
    let mut options = PoolCreateOptions::new(POOL_BYTES, [5; 64]);
    options.geometry.journal_bytes = Some(1 << 20);
    options.geometry.segment_bytes = Some(128 << 10);
    options.geometry.group_bytes = Some(2 << 20);
    let made = match count {
        1 => Pool::create(&shared(&devices)[0], &ManualClock::new(), &options).map(drop),
        _ => Pool::create_on(&shared(&devices), layout, &ManualClock::new(), &options).map(drop),
    };
    made.expect("a pool fits");
    devices
}

fn open_with(devices: &Devices, discard: DiscardOptions) -> (Pool, Arc<ManualClock>) {
    let options = PoolOpenOptions { cache_bytes: 1 << 20, discard, ..PoolOpenOptions::default() };
    let clock = Arc::new(ManualClock::new());
    let opening = VolumeDevices { devices: shared(devices), accepts_missing: false };
    let pool = Pool::open_members(opening, Arc::<ManualClock>::clone(&clock), options);
    (pool.expect("a pool opens"), clock)
}

fn content(nth: u64) -> Vec<u8> {
    let mut prng = Prng::from_seed(nth);
    (0..FILE_BYTES / 8).flat_map(|_| prng.next_u64().to_le_bytes()).collect()
}

fn put(pool: &Pool, nth: u64) -> Result<(), FsError> {
    let (caller, name) = (Caller::root(), format!("f{nth}"));
    let done = super::put(pool, &name, &content(nth));
    // That has looked it up, as this does: a file that a front end holds is not freed.
    if let Ok(found) = pool.lookup(&caller, pool.root(), name.as_bytes()) {
        pool.forget(found.ino, 2);
    }
    done
}

/// Writes a file piece by piece, with background work between: what is written is in no map yet.
fn put_slowly(pool: &Pool, nth: u64) {
    let (caller, root) = (Caller::root(), pool.root());
    let new = NewInode::new(FileKind::Regular, 0o644);
    let made = pool.create(&caller, root, format!("f{nth}").as_bytes(), new, None);
    let (ino, bytes) = (made.expect("there is room").ino, content(nth).repeat(SLOW_TIMES));
    for (piece, at) in bytes.chunks(PIECE_BYTES).zip((0..).step_by(PIECE_BYTES)) {
        pool.write(&caller, ino, at, piece).expect("there is room");
        pool.tick().expect("nothing fails");
    }
    pool.fsync(&caller, ino, false).expect("nothing fails");
    pool.forget(ino, 1);
}

/// Removes a file and frees what it has; a crash may bring it back.
fn unlink(pool: &Pool, nth: u64) {
    let (caller, root) = (Caller::root(), pool.root());
    pool.unlink(&caller, root, format!("f{nth}").as_bytes(), None).expect("it is there");
    // `df` frees what waits for it first.
    pool.statfs(&caller, pool.main_fileset()).expect("nothing fails");
}

fn remove(pool: &Pool, nth: u64) {
    unlink(pool, nth);
    pool.sync().expect("nothing fails");
}

/// Lets what is due in the background be done.
fn settle(pool: &Pool) {
    for _ in 0..4 {
        pool.checkpoint().expect("nothing fails");
        (0..40).for_each(|_| pool.tick().expect("nothing fails"));
    }
}

fn is_there(pool: &Pool, nth: u64) -> Result<(), String> {
    let (caller, root) = (Caller::root(), pool.root());
    let name = format!("f{nth}");
    let found = pool.lookup(&caller, root, name.as_bytes()).map_err(|_| "not there".to_owned())?;
    let mut bytes = Vec::new();
    let read = pool.read(&caller, found.ino, 0, SLOW_TIMES * FILE_BYTES, &mut bytes);
    pool.forget(found.ino, 1);
    read.map_err(|error| format!("{name}: {error}"))?;
    let expected = content(nth);
    let is_it = !bytes.is_empty() && bytes.chunks(FILE_BYTES).all(|chunk| chunk == expected);
    if is_it { Ok(()) } else { Err(format!("{name}: wrong content")) }
}

fn discarded(device: &SimDevice) -> u64 {
    device.counts().of_kind(RequestKind::Discard).requests
}

/// Returns the devices that data lies on.
fn of_data(layout: Layout, devices: &Devices) -> &[Arc<SimDevice>] {
    &devices[usize::from(layout == Layout::RoundRobin)..]
}

fn check(devices: &Devices) -> Result<(), String> {
    let opening = VolumeDevices { devices: shared(devices), accepts_missing: false };
    let (volume, _) = Volume::open_members(opening).map_err(|error| error.to_string())?;
    let report =
        check::run(Arc::clone(volume.device()), check::CheckOptions::default(), &mut |_| ());
    if report.is_clean() { Ok(()) } else { Err(report.to_text()) }
}

/// Goal: room that is freed is discarded on every member, and what is left is whole: for readers, a
/// scrub, a check and the next open. Method: files come and go, so that segments are discarded and
/// used again.
#[test]
fn freed_room_is_discarded_on_every_member_and_the_rest_is_whole() {
    for ((layout, count), seed) in LAYOUTS.into_iter().zip(1..) {
        let devices = new_pool(layout, count, seed);
        let (pool, _) = open_with(&devices, DiscardOptions::at_once());
        for round in 0..3 {
            (0..7).for_each(|nth| put(&pool, round * 100 + nth).expect("there is room"));
            put_slowly(&pool, round * 100 + 11);
            (0..7).for_each(|nth| remove(&pool, round * 100 + nth));
            settle(&pool);
        }
        let counts = pool.devices().discard_counts();
        assert!(counts.bytes > 4 << 20, "{layout:?}: {counts:?}");
        assert_eq!((counts.failed, counts.refused), (0, 0), "{layout:?}");
        assert!(of_data(layout, &devices).iter().all(|it| discarded(it) > 1), "{layout:?}");
        (0..3).for_each(|round| is_there(&pool, round * 100 + 11).expect("it was kept"));
        if layout == Layout::Mirror {
            pool.devices().scrub().expect("there are two");
            settle(&pool);
            let report = pool.devices().scrub_report().expect("it was begun");
            assert!(report.is_done, "{report:?}");
            assert_eq!(unmended(&report), NOTHING, "{report:?}");
        }
        pool.close().expect("nothing fails");
        drop(pool);
        check(&devices).expect("nothing that is in use was discarded");
        let (pool, _) = open_with(&devices, DiscardOptions::default());
        (0..3).for_each(|round| is_there(&pool, round * 100 + 11).expect("it was kept"));
    }
}

/// Files that the work makes.
const FILES: u64 = 14;

/// What was acknowledged at a time: which files are there, and whose removal was not begun.
type Told = (u64, Vec<u64>);

/// Does some work, in which segments are discarded and used again at once; returns what was
/// acknowledged when, and at which times a removal was begun and something else flushed.
fn work(devices: &Devices) -> (Vec<Told>, Vec<u64>) {
    let (pool, _) = open_with(devices, DiscardOptions::at_once());
    let (mut told, mut kept, mut flushed) = (Vec::new(), Vec::new(), Vec::new());
    for nth in 0..FILES {
        if nth >= 3 {
            // From here on nobody knows whether it is there.
            let first = kept.remove(0);
            told.push((devices[0].time(), kept.clone()));
            unlink(&pool, first);
            (0..2).for_each(|_| pool.tick().expect("nothing fails"));
            for device in devices {
                device.flush(IoPurpose::Data).expect("nothing fails");
            }
            flushed.push(devices[0].time());
        }
        put(&pool, nth).expect("there is room");
        kept.push(nth);
        told.push((devices[0].time(), kept.clone()));
        if nth % 3 == 2 {
            pool.checkpoint().expect("nothing fails");
        }
        (0..2).for_each(|_| pool.tick().expect("nothing fails"));
    }
    (told, flushed)
}

/// Goal: whenever the power goes, before, in and after discards, all is there that was
/// acknowledged, and the pool checks clean after its recovery (DH1). Method: the work is recorded
/// once, and cut at many times.
#[test]
fn no_cut_beside_discards_takes_what_was_acknowledged() {
    for ((layout, count), seed) in LAYOUTS.into_iter().zip(1..) {
        let devices = new_pool(layout, count, seed);
        let begun = devices.iter().map(|device| device.image()).collect::<Vec<Image>>();
        let devices = devices_with(begun, seed, |_| true);
        let (told, flushed) = work(&devices);
        assert!(of_data(layout, &devices).iter().all(|it| discarded(it) > 1), "{layout:?}");
        let recordings: Vec<Recording> = devices.iter().map(|device| device.recording()).collect();
        let mut prng = Prng::from_seed(seed);
        let end = devices[0].time();
        let step = (end / 60).max(1);
        let often = (told[0].0..end).step_by(usize::try_from(step).expect("a few"));
        let often = often.map(|time| time + prng.below(step)).collect::<Vec<u64>>();
        for time in often.into_iter().chain(flushed) {
            let images = cut_at(&recordings, time, prng.one_in(2), &mut prng);
            let after = devices_with(images, seed + time, |_| true);
            let at = told.partition_point(|(when, _)| *when <= time);
            let (pool, _) = open_with(&after, DiscardOptions::at_once());
            // What was being removed next may be gone; what had been acknowledged may not.
            let kept = told.get(at.saturating_sub(1)).map(|(_, kept)| kept.clone());
            let kept = kept.unwrap_or_default();
            for nth in 0..FILES {
                let found = is_there(&pool, nth);
                let is_acknowledged = kept.contains(&nth);
                let is_whole =
                    found.is_ok() || found == Err("not there".to_owned()) && !is_acknowledged;
                // One that was being written may be there in part.
                let is_new = kept.iter().all(|other| *other < nth);
                assert!(is_whole || is_new, "{layout:?} cut at {time} of {end}: {nth}: {found:?}");
            }
            pool.close().expect("nothing fails");
            drop(pool);
            let found = check(&after);
            assert!(found.is_ok(), "{layout:?} cut at {time} of {end}: {found:?}");
        }
    }
}

/// Goal: after a discard that is not answered in time nothing is written to what it may still
/// change, however full the pool gets; the room is counted as gone, and no member fails (DH1).
/// Method: the discard of one device is late by hours; the pool is filled, and then it comes.
#[test]
fn what_a_late_discard_may_still_change_is_not_used_again() {
    const LATE_NS: u64 = 3_600_000_000_000;
    for ((layout, count), seed) in LAYOUTS.into_iter().zip(1..) {
        let devices = new_pool(layout, count, seed);
        let (pool, _) = open_with(&devices, DiscardOptions::at_once());
        (0..12).for_each(|nth| put(&pool, nth).expect("there is room"));
        let late = Fault::Delay { kind: RequestKind::Discard, nth: 0, delay_ns: LATE_NS };
        devices[count - 1].arm(FaultPlan::none().with(late));
        (0..12).for_each(|nth| remove(&pool, nth));
        settle(&pool);
        let counts = pool.devices().discard_counts();
        assert!(counts.withheld_bytes >= 128 << 10, "{layout:?}: {counts:?}");
        assert_eq!(counts.failed, 1, "{layout:?}: further ones are refused until it has returned");
        assert!(pool.devices().members().iter().all(|member| member.member.is_online()));
        let mut last = 100;
        while put(&pool, last).is_ok() {
            last += 1;
        }
        assert!(last > 103, "{layout:?}: the rest of the pool can be used");
        devices.iter().for_each(|device| device.advance_ns(2 * LATE_NS));
        (100..last).for_each(|nth| {
            let found = is_there(&pool, nth);
            assert!(found.is_ok(), "{layout:?}: {found:?}");
        });
    }
}

/// Goal: a member that does not discard, or fails to, keeps its place and what it holds; the other
/// is discarded all the same (DQ2).
#[test]
fn a_member_that_does_not_discard_is_no_worse_for_it() {
    let devices = new_pool(Layout::Mirror, 2, 1);
    let images = devices.iter().map(|device| device.image()).collect();
    let devices = devices_with(images, 2, |number| number == 0);
    let fails = Fault::Fail { kind: RequestKind::Discard, nth: 0, persists: true };
    for fault in [None, Some(fails)] {
        let (pool, _) = open_with(&devices, DiscardOptions::at_once());
        devices[0].arm(fault.into_iter().fold(FaultPlan::none(), FaultPlan::with));
        (0..8).for_each(|nth| put(&pool, nth).expect("there is room"));
        (0..8).for_each(|nth| remove(&pool, nth));
        settle(&pool);
        assert!(pool.devices().members().iter().all(|member| member.member.is_online()));
        put(&pool, 50).expect("there is room");
        is_there(&pool, 50).expect("just written");
        remove(&pool, 50);
        pool.close().expect("nothing fails");
    }
    assert!(discarded(&devices[0]) > 0);
}

/// Goal: a trim discards all that is free, whatever the mount says of discards, and says how much;
/// a second one does it again.
#[test]
fn a_trim_discards_all_that_is_free() {
    for ((layout, count), seed) in LAYOUTS.into_iter().zip(1..) {
        let devices = new_pool(layout, count, seed);
        let off = DiscardOptions { on: DiscardScope::None, after: Duration::ZERO };
        let (pool, _) = open_with(&devices, off);
        (0..10).for_each(|nth| put(&pool, nth).expect("there is room"));
        (0..9).for_each(|nth| remove(&pool, nth));
        settle(&pool);
        assert_eq!(devices.iter().map(|device| discarded(device)).sum::<u64>(), 0, "{layout:?}");
        for _ in 0..2 {
            assert!(pool.devices().trim().expect("it may"), "{layout:?}");
            settle(&pool);
            let report = pool.devices().trim_report().expect("it was begun");
            assert!(report.is_done, "{layout:?}: {report:?}");
            assert!(report.discarded_bytes > 3 << 20, "{layout:?}: {report:?}");
            assert_eq!((report.failed, report.refused_bytes, report.striped_bytes), (0, 0, 0));
        }
        is_there(&pool, 9).expect("it was kept");
        pool.close().expect("nothing fails");
    }
}

/// Goal: stripes are not discarded, and who asks is told why (DQ4).
#[test]
fn stripes_are_not_discarded() {
    let layout = Layout::Raid5 { unit_shift: UNIT_SHIFT_DEFAULT };
    let devices = devices_with(vec![Image::blank(16 << 20); 3], 1, |_| true);
    let options = PoolCreateOptions::new(16 << 20, [5; 64]);
    Pool::create_on(&shared(&devices), layout, &ManualClock::new(), &options).expect("it fits");
    let (pool, _) = open_with(&devices, DiscardOptions::at_once());
    (0..4).for_each(|nth| put(&pool, nth).expect("there is room"));
    (0..4).for_each(|nth| remove(&pool, nth));
    settle(&pool);
    let refused = pool.devices().trim().expect_err("all of it is stripes");
    assert!(matches!(refused, TrimError::Stripes), "{refused}");
    assert_eq!(devices.iter().map(|device| discarded(device)).sum::<u64>(), 0);
}
