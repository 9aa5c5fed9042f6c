//! Tests of the simulated device: its outcomes are legal, and all legal ones occur.

use std::collections::BTreeSet;

use super::discard::DISCARDED_BYTE;
use super::*;
use runtime::sync::sim::{Scheduler, SimThreadTask, Statistics};

const SECTOR: usize = 512;
const SIZE: u64 = 1 << 20;

fn device_with(faults: FaultPlan) -> Arc<SimDevice> {
    SimDevice::new(SIZE, SimOptions { faults, ..SimOptions::default() })
}

fn recorded(seed: u64) -> SimOptions {
    SimOptions { is_recorded: true, seed, ..SimOptions::default() }
}

/// A write of `count` sectors from sector `first`, each beginning with `stamp`.
fn stamped(first: u64, count: usize, stamp: u64) -> DeviceOperation {
    let mut buffer = AlignedBuffer::zeroed(count * SECTOR);
    for sector in buffer.chunks_exact_mut(SECTOR) {
        sector[..8].copy_from_slice(&stamp.to_le_bytes());
    }
    DeviceOperation::Write { offset: first * to_u64(SECTOR), data: vec![SharedBytes::from(buffer)] }
}

fn put(device: &SimDevice, first: u64, count: usize, stamp: u64) -> Result<(), DeviceError> {
    device.submit(IoPurpose::Journal, stamped(first, count, stamp)).wait().map(drop)
}

fn stamp_in(image: &Image, sector: u64) -> u64 {
    let mut bytes = [0; 8];
    image.read(sector * to_u64(SECTOR), &mut bytes);
    u64::from_le_bytes(bytes)
}

fn stamps_in(image: &Image, count: u64) -> Vec<u64> {
    (0..count).map(|sector| stamp_in(image, sector)).collect()
}

#[test]
fn flushed_survives_and_unflushed_is_kept_lost_torn_and_reordered() {
    let (mut kept, mut lost, mut torn, mut reordered) = (0, 0, 0, 0);
    for seed in 0..300 {
        let device = device_with(FaultPlan::none());
        put(&device, 0, 4, 1).expect("no faults");
        device.flush(IoPurpose::Journal).expect("no faults");
        put(&device, 4, 4, 2).expect("no faults");
        put(&device, 8, 1, 3).expect("no faults");
        let image = device.crash_image(&mut Prng::from_seed(seed));
        let stamps = stamps_in(&image, 9);
        assert_eq!(stamps[..4], [1; 4], "flushed data lost: seed={seed}");
        let survivors = stamps[4..8].iter().filter(|&&stamp| stamp == 2).count();
        assert!(stamps[4..8].iter().all(|&stamp| stamp == 0 || stamp == 2), "seed={seed}");
        kept += usize::from(survivors == 4);
        lost += usize::from(survivors == 0);
        torn += usize::from((1..4).contains(&survivors));
        reordered += usize::from(survivors == 0 && stamps[8] == 3);
    }
    assert!(kept > 10 && lost > 10 && torn > 10 && reordered > 10, "{kept} {lost} {torn}");
}

#[test]
fn sector_written_twice_holds_any_version_and_nothing_else() {
    let mut seen = BTreeSet::new();
    for seed in 0..100 {
        let device = device_with(FaultPlan::none());
        put(&device, 0, 1, 1).expect("no faults");
        device.flush(IoPurpose::Journal).expect("no faults");
        put(&device, 0, 1, 2).expect("no faults");
        put(&device, 0, 1, 3).expect("no faults");
        seen.insert(stamp_in(&device.crash_image(&mut Prng::from_seed(seed)), 0));
    }
    assert_eq!(seen, BTreeSet::from([1, 2, 3]));
}

/// Goal: a flush covers exactly the writes completed before its submission (D1).
#[test]
fn flush_covers_only_what_was_answered_before_it() {
    let mut lost = [0; 3];
    for seed in 0..100 {
        let device = device_with(FaultPlan::none());
        let early = device.submit(IoPurpose::Journal, stamped(0, 1, 1));
        let flush = device.submit(IoPurpose::Journal, DeviceOperation::Flush);
        early.wait().expect("no faults");
        put(&device, 1, 1, 1).expect("no faults");
        flush.wait().expect("no faults");
        drop(device.submit(IoPurpose::Journal, stamped(2, 1, 1)));
        let image = device.crash_image(&mut Prng::from_seed(seed));
        for (sector, count) in (0..).zip(&mut lost) {
            *count += u64::from(stamp_in(&image, sector) == 0);
        }
    }
    assert!(lost.iter().all(|&count| count > 0), "a flush did too much: {lost:?}");
}

/// Goal: a write-through survives every power cut after its completion (D1), together with older
/// writes to the same place, and makes no others durable.
#[test]
fn a_write_through_is_durable_and_nothing_else_is() {
    let mut lost = 0;
    for seed in 0..100 {
        let device = device_with(FaultPlan::none());
        put(&device, 0, 1, 1).expect("no faults");
        put(&device, 1, 1, 1).expect("no faults");
        let DeviceOperation::Write { offset, data } = stamped(1, 2, 2) else {
            unreachable!("a write")
        };
        let through = DeviceOperation::WriteThrough { offset, data };
        device.submit(IoPurpose::Journal, through).wait().expect("no faults");
        let image = device.crash_image(&mut Prng::from_seed(seed));
        assert_eq!([1, 2].map(|sector| stamp_in(&image, sector)), [2, 2], "seed {seed}");
        lost += u64::from(stamp_in(&image, 0) == 0);
    }
    assert!((1..100).contains(&lost), "{lost} times the write beside it was lost");
}

/// Goal: a failed write-through has the effect of a failed flush (D3).
#[test]
fn after_a_failed_write_through_the_device_takes_no_more_writes() {
    let fault = Fault::Fail { kind: RequestKind::Write, nth: 0, persists: false };
    let device = device_with(FaultPlan::none().with(fault));
    let DeviceOperation::Write { offset, data } = stamped(1, 1, 1) else { unreachable!("a write") };
    let through = DeviceOperation::WriteThrough { offset, data };
    device.submit(IoPurpose::Journal, through).wait().expect_err("it is planned");
    assert!(device.has_failed());
    put(&device, 2, 1, 1).expect_err("the device has failed");
}

/// Legal sector contents after a power cut, tracked independently of the code under test.
#[derive(Clone, Default)]
struct SectorModel {
    durable: u64,
    unflushed: Vec<(u64, bool)>,
}

impl SectorModel {
    fn flush(&mut self) {
        for &(stamp, is_answered) in &self.unflushed {
            if is_answered {
                self.durable = stamp;
            }
        }
        self.unflushed.retain(|&(_, is_answered)| !is_answered);
    }

    fn allows(&self, stamp: u64) -> bool {
        stamp == self.durable || self.unflushed.iter().any(|&(version, _)| version == stamp)
    }
}

/// Goal: every crash image of every point is legal sector by sector.
///
/// Method: random writes of 1 to 4 sectors, some never waited for, and flushes, with a history of
/// the legal sets by recording position.
#[test]
fn every_sector_of_every_crash_image_is_legal() {
    const SECTORS: u64 = 12;
    let mut image_count = 0;
    for seed in 0..60 {
        let mut prng = Prng::from_seed(seed);
        let device = SimDevice::new(SIZE, recorded(seed));
        let mut model = vec![SectorModel::default(); to_usize(SECTORS)];
        let mut history = vec![(0, model.clone())];
        for stamp in 1..20 {
            if prng.one_in(5) {
                device.flush(IoPurpose::Journal).expect("no faults");
                model.iter_mut().for_each(SectorModel::flush);
            } else {
                let (count, is_waited) = (1 + prng.below(4), !prng.one_in(6));
                let first = prng.below(SECTORS - count + 1);
                let write = stamped(first, to_usize(count), stamp);
                let ticket = device.submit(IoPurpose::Journal, write);
                if is_waited {
                    ticket.wait().expect("no faults");
                }
                for sector in &mut model[to_usize(first)..to_usize(first + count)] {
                    sector.unflushed.push((stamp, is_waited));
                }
            }
            history.push((device.position(), model.clone()));
        }
        let check = |image: &Image, position: usize| {
            let at = history.partition_point(|&(known, _)| known <= position);
            for (sector, model) in (0..).zip(&history[at - 1].1) {
                let stamp = stamp_in(image, sector);
                assert!(model.allows(stamp), "{stamp} in {sector}: {seed} at {position}");
            }
        };
        for _ in 0..20 {
            check(&device.crash_image(&mut prng), device.position());
        }
        for point in device.recording().points() {
            // Within an operation the model does not define the legal set.
            if history.iter().any(|&(known, _)| known == point.position()) {
                let strategy = Strategy { exhaustive_writes_max: 5, ..Strategy::default() };
                for crash in point.images(&strategy) {
                    check(&crash.image, point.position());
                    image_count += 1;
                }
            }
        }
    }
    assert!(image_count > 10_000, "{image_count}");
}

#[test]
fn power_cut_at_each_request_in_turn_ends_everything_after_it() {
    for nth in 0..6 {
        let device = device_with(FaultPlan::none().with(Fault::CutPower { nth }));
        let mut answered = 0;
        for stamp in 1..4 {
            answered += u64::from(put(&device, stamp, 1, stamp).is_ok());
            answered += u64::from(device.flush(IoPurpose::Journal).is_ok());
        }
        assert_eq!(answered, nth);
        let refused = device.read(IoPurpose::Journal, 0, SECTOR);
        assert!(matches!(refused, Err(DeviceError::PowerCut { .. })));
        let again = device.reboot(&mut Prng::from_seed(nth));
        let survivors = stamps_in(&again.image(), 4);
        for stamp in 1..=3 {
            let expected: &[u64] = match stamp * 2 {
                end if end <= nth => &[stamp],
                end if end - 2 <= nth => &[0, stamp],
                _ => &[0],
            };
            assert!(expected.contains(&survivors[to_usize(stamp)]), "{nth}: {survivors:?}");
        }
        put(&again, 0, 1, 9).expect("the power is back");
    }
}

#[test]
fn device_whose_flush_failed_takes_no_more_writes() {
    let fault = Fault::Fail { kind: RequestKind::Flush, nth: 1, persists: false };
    let device = device_with(FaultPlan::none().with(fault));
    put(&device, 0, 1, 1).expect("no fault yet");
    device.flush(IoPurpose::Journal).expect("no fault yet");
    put(&device, 1, 1, 1).expect("no fault yet");
    let failed = device.flush(IoPurpose::Journal);
    assert!(matches!(failed, Err(DeviceError::Io { kind: RequestKind::Flush, .. })));
    assert!(matches!(put(&device, 2, 1, 1), Err(DeviceError::Failed { .. })));
    assert!(matches!(device.flush(IoPurpose::Journal), Err(DeviceError::Failed { .. })));
    device.read(IoPurpose::Journal, 0, SECTOR).expect("reads go on");
    assert_eq!(stamps_in(&device.durable_image(), 3), [1, 0, 0]);
    put(&device.reboot(&mut Prng::from_seed(0)), 2, 1, 1).expect("a new life has no fault");
}

#[test]
fn read_errors_come_once_or_for_good() {
    for persists in [false, true] {
        let fault = Fault::Fail { kind: RequestKind::Read, nth: 1, persists };
        let device = device_with(FaultPlan::none().with(fault));
        let reads: Vec<bool> =
            (0..3).map(|_| device.read(IoPurpose::Data, 0, 4096).is_ok()).collect();
        assert_eq!(reads, [true, false, !persists]);
        put(&device, 0, 1, 1).expect("only reads fail");
    }
}

#[test]
fn failed_write_lands_or_not_and_fails_nothing_else() {
    let mut landed = BTreeSet::new();
    for seed in 0..20 {
        let fault = Fault::Fail { kind: RequestKind::Write, nth: 0, persists: false };
        let faults = FaultPlan::none().with(fault);
        let device = SimDevice::new(SIZE, SimOptions { faults, seed, ..SimOptions::default() });
        assert!(matches!(put(&device, 0, 1, 1), Err(DeviceError::Io { .. })));
        landed.insert(stamp_in(&device.image(), 0));
        put(&device, 0, 1, 2).expect("the second write has no fault");
        device.flush(IoPurpose::Journal).expect("no fault");
        assert_eq!(stamp_in(&device.crash_image(&mut Prng::from_seed(seed)), 0), 2);
    }
    assert_eq!(landed, BTreeSet::from([0, 1]));
}

#[test]
fn lost_and_misdirected_writes_and_rot_are_answered_ok() {
    let faults = FaultPlan::none()
        .with(Fault::LoseWrite { purpose: None, nth: 0 })
        .with(Fault::MisdirectWrite { purpose: None, nth: 1, offset: 5 * to_u64(SECTOR) })
        .with(Fault::Rot { nth: 3, offset: 3 * to_u64(SECTOR), mask: 0x80 });
    let device = device_with(faults);
    for stamp in 1..4 {
        put(&device, stamp, 1, stamp).expect("a silent fault");
    }
    assert_eq!(stamps_in(&device.image(), 6), [0, 0, 0, 3, 0, 2]);
    device.flush(IoPurpose::Journal).expect("a silent fault");
    assert_eq!(stamps_in(&device.durable_image(), 6), [0, 0, 0, 3, 0, 2]);
    device.rot(5 * to_u64(SECTOR), 1);
    assert_eq!(stamp_in(&device.durable_image(), 5), 3);
}

#[test]
fn rot_turns_over_what_is_on_the_medium_before_the_nth_request() {
    let fault = Fault::Rot { nth: 2, offset: 0, mask: 0x80 };
    let device = device_with(FaultPlan::none().with(fault));
    put(&device, 0, 1, 3).expect("a silent fault");
    device.flush(IoPurpose::Journal).expect("a silent fault");
    assert_eq!(stamp_in(&device.image(), 0), 3);
    let read = device.read(IoPurpose::Journal, 0, SECTOR).expect("a silent fault");
    assert_eq!(read[0], 0x83);
    assert_eq!(stamp_in(&device.durable_image(), 0), 0x83);
}

#[test]
fn full_device_refuses_new_pages_and_takes_old_ones() {
    let device = device_with(FaultPlan::none().with(Fault::Full { allocated_bytes: 8192 }));
    let page = || AlignedBuffer::zeroed(4096);
    device.write(IoPurpose::Data, 0, page()).expect("room for two");
    device.write(IoPurpose::Data, 8192, page()).expect("room for two");
    let refused = device.write(IoPurpose::Data, 4096, page());
    assert!(matches!(refused, Err(DeviceError::NoSpace { offset: 4096, .. })));
    device.write(IoPurpose::Data, 8192, page()).expect("allocated before");
    device.flush(IoPurpose::Data).expect("a full device is not a failed one");
}

#[test]
fn a_write_for_which_there_is_no_room_leaves_nothing_and_the_plan_can_be_replaced() {
    let device = device_with(FaultPlan::none());
    put(&device, 0, 1, 1).expect("no fault yet");
    // The counts restart, so the write above does not count.
    device.arm(FaultPlan::none().with(Fault::NoRoom { nth: 0, persists: false }));
    assert!(matches!(put(&device, 0, 1, 2), Err(DeviceError::NoSpace { .. })));
    device.flush(IoPurpose::Journal).expect("only writes fail");
    assert_eq!(stamp_in(&device.durable_image(), 0), 1);
    assert_eq!(device.harm(), FaultEffects { failed_writes: 1, ..FaultEffects::default() });
    device.arm(FaultPlan::none());
    put(&device, 0, 1, 2).expect("no fault any more");
    assert_eq!(stamp_in(&device.image(), 0), 2);
}

#[test]
fn lies_about_one_purpose_spare_the_others() {
    let purpose = Some(IoPurpose::Data);
    let device = device_with(FaultPlan::none().with(Fault::LoseWrite { purpose, nth: 1 }));
    for (stamp, purpose) in (1..).zip([IoPurpose::Data, IoPurpose::Home, IoPurpose::Data]) {
        let mut page = AlignedBuffer::zeroed(4096);
        page.fill(stamp);
        device.write(purpose, u64::from(stamp) * 4096, page).expect("a silent fault");
    }
    let mut found = [9; 3];
    for (nth, byte) in (1..).zip(&mut found) {
        device.image().read(nth * 4096, std::slice::from_mut(byte));
    }
    assert_eq!(found, [1, 2, 0]);
    assert_eq!(device.harm().lies, 1);
}

#[test]
fn random_plans_reach_every_kind_of_fault() {
    let mut kinds = BTreeSet::new();
    for seed in 0..100 {
        let plan = FaultPlan::random(&mut Prng::from_seed(seed), 50, SIZE);
        assert_eq!(plan, FaultPlan::random(&mut Prng::from_seed(seed), 50, SIZE));
        let text = format!("{:?}", plan.faults[0]);
        kinds.insert(text.split("nth").next().expect("split gives one").to_owned());
    }
    let full_count = kinds.iter().filter(|kind| kind.starts_with("Full")).count();
    assert!(full_count > 1);
    assert_eq!(kinds.len() - full_count, 6, "{kinds:?}");
}

/// Goal: three unflushed writes of a sector each yield all eight subsets, each once.
#[test]
fn few_unflushed_writes_give_every_subset_once() {
    let device = SimDevice::new(SIZE, recorded(0));
    put(&device, 0, 1, 7).expect("no faults");
    device.flush(IoPurpose::Journal).expect("no faults");
    for sector in 1..4 {
        put(&device, sector, 1, 7).expect("no faults");
    }
    let recording = device.recording();
    let points: Vec<CrashPoint> = recording.points().collect();
    // Before each of the four writes, before the flush, and at the end.
    let positions: Vec<usize> = points.iter().map(CrashPoint::position).collect();
    assert_eq!(positions, [0, 2, 3, 5, 7, 9]);
    assert_eq!(recording.position(), 9);
    let strategy = Strategy::default();
    let counts: Vec<usize> = points.iter().map(|point| point.images(&strategy).count()).collect();
    assert_eq!(counts, [1, 2, 1, 2, 4, 8]);
    let images = points[5].images(&strategy).map(|crash| stamps_in(&crash.image, 4));
    let images: BTreeSet<Vec<u64>> = images.collect();
    assert_eq!(images.len(), 8);
    assert!(images.iter().all(|stamps| stamps[0] == 7), "flushed data lost");
}

#[test]
fn many_unflushed_writes_give_prefixes_holes_and_tears() {
    let device = SimDevice::new(SIZE, recorded(0));
    for write in 0..12 {
        put(&device, write * 2, 2, 1).expect("no faults");
    }
    let recording = device.recording();
    let point = recording.points().last().expect("the end is a point");
    assert_eq!(point.unflushed_count(), 12);
    let images: BTreeSet<Vec<u64>> =
        point.images(&Strategy::default()).map(|crash| stamps_in(&crash.image, 24)).collect();
    let expanded = |survives: &dyn Fn(usize) -> bool| -> Vec<u64> {
        (0..24).map(|sector| u64::from(survives(sector / 2))).collect()
    };
    for nth in 0..12 {
        assert!(images.contains(&expanded(&|write| write < nth)), "prefix {nth}");
        assert!(images.contains(&expanded(&|write| write != nth)), "all but {nth}");
        assert!(images.contains(&expanded(&|write| write == nth)), "{nth} alone");
    }
    let is_torn = |stamps: &&Vec<u64>| stamps.chunks(2).any(|pair| pair[0] != pair[1]);
    let torn_count = images.iter().filter(is_torn).count();
    assert!(torn_count > 30, "{torn_count} of {}", images.len());
    let again: Vec<u64> =
        point.images(&Strategy::default()).map(|crash| crash.image.content_hash()).collect();
    let third = point.images(&Strategy::default()).map(|crash| crash.image.content_hash());
    assert_eq!(again, third.collect::<Vec<_>>(), "the order is not fixed");
}

#[test]
fn crash_image_is_a_device_that_can_crash_again() {
    let device = SimDevice::new(SIZE, recorded(0));
    put(&device, 0, 1, 1).expect("no faults");
    let recording = device.recording();
    let point = recording.points().last().expect("the end is a point");
    for crash in point.images(&Strategy::default()) {
        let second = SimDevice::open(crash.image.clone(), recorded(1));
        let found = stamp_in(&second.image(), 0);
        put(&second, 1, 1, found + 10).expect("no faults");
        let recording = second.recording();
        let last = recording.points().last().expect("the end is a point");
        let images = last.images(&Strategy::default());
        let outcomes: BTreeSet<Vec<u64>> = images.map(|c| stamps_in(&c.image, 2)).collect();
        assert_eq!(outcomes, BTreeSet::from([vec![found, 0], vec![found, found + 10]]));
        assert_eq!(stamp_in(&crash.image, 1), 0, "the image was shared with its device");
    }
}

#[test]
fn requests_are_counted_by_purpose() {
    let device = device_with(FaultPlan::none());
    put(&device, 0, 3, 1).expect("no faults");
    device.flush(IoPurpose::Superblock).expect("no faults");
    let counts = device.counts();
    assert_eq!(counts.of(IoPurpose::Journal, RequestKind::Write).bytes, 1536);
    assert_eq!(counts.of(IoPurpose::Superblock, RequestKind::Flush).requests, 1);
    assert_eq!(counts.request_count(), 2);
}

/// Clients that write and flush on a slow disk until a power cut.
fn cut_run(seed: u64) -> (Statistics, u64, u64, Vec<u64>) {
    let scheduler = Scheduler::new(seed);
    let faults = FaultPlan::none().with(Fault::CutPower { nth: 17 });
    let options = SimOptions { model: DiskModel::ssd(), faults, seed, ..SimOptions::default() };
    let device = SimDevice::new(SIZE, options);
    let acknowledged = runtime::sync::Mutex::new(Vec::new());
    let client = |me: u64| {
        for round in 1.. {
            let _operation = scheduler.operation();
            let written = put(&device, me * 100 + round, 1, round);
            if written.and_then(|()| device.flush(IoPurpose::Journal)).is_err() {
                return;
            }
            acknowledged.lock().push(me * 100 + round);
        }
    };
    let client = &client;
    let job =
        |me: u64| -> SimThreadTask<'_> { ("client".to_owned(), Box::new(move || client(me))) };
    scheduler.run((0..3).map(job).collect());
    let image = device.crash_image(&mut Prng::from_seed(seed));
    (scheduler.statistics(), scheduler.now_ns(), image.content_hash(), acknowledged.into_inner())
}

#[test]
fn concurrent_clients_lose_nothing_acknowledged_and_repeat_by_seed() {
    let mut concurrent_count = 0;
    let mut acknowledged_count = 0;
    for seed in 0..50 {
        let first = cut_run(seed);
        assert_eq!(first, cut_run(seed), "seed={seed}");
        let (statistics, now_ns, _, acknowledged) = first;
        assert!(now_ns > 500_000, "virtual time passed: {now_ns}");
        concurrent_count += u64::from(statistics.in_flight_at_cut.expect("was cut") >= 2);
        acknowledged_count += acknowledged.len();
    }
    assert!(concurrent_count > 40, "{concurrent_count} of 50 seeds count");
    assert!(acknowledged_count > 100, "{acknowledged_count}");
}

#[test]
fn waits_move_the_time_of_the_device_and_discards_leave_anything() {
    let options = SimOptions { model: DiskModel::hdd(), ..SimOptions::default() };
    let device = SimDevice::new(1 << 40, options);
    device.read(IoPurpose::Data, 1 << 39, 4096).expect("no faults");
    assert!(device.now_ns() > 1_000_000);

    let mut found = BTreeSet::new();
    for seed in 0..40 {
        let device = SimDevice::new(SIZE, SimOptions { seed, ..SimOptions::default() });
        device.write(IoPurpose::Data, 4096, AlignedBuffer::zeroed(8192)).expect("no faults");
        device.submit(IoPurpose::Data, discard_of(4096, 8192)).wait().expect("no faults");
        let read = device.read(IoPurpose::Data, 0, 16384).expect("no faults");
        assert_eq!((read[0], read[12288]), (0, 0), "outside the range");
        found.insert((read[4096], read[12287]));
    }
    let whole = [(0, 0), (DISCARDED_BYTE, DISCARDED_BYTE)];
    assert!(whole.iter().all(|both| found.contains(both)), "{found:?}");
    assert!(found.iter().any(|(one, other)| one != other), "{found:?}");
}

fn discard_of(offset: u64, length_bytes: u64) -> DeviceOperation {
    DeviceOperation::Discard { offset, length_bytes }
}

/// Goal: an abandoned discard may change later writes at any request, so that a missing wait is
/// found. A completed one may not (D6).
#[test]
fn a_discard_takes_effect_before_it_is_answered_or_at_any_time_if_nobody_waits() {
    let ones = || AlignedBuffer::copy_of(&[1; 4096]);
    let run = |seed: u64, is_awaited: bool| {
        let device = SimDevice::new(SIZE, SimOptions { seed, ..SimOptions::default() });
        let ticket = device.submit(IoPurpose::Data, discard_of(0, 4096));
        if is_awaited {
            ticket.wait().expect("no faults");
        }
        device.write(IoPurpose::Data, 0, ones()).expect("no faults");
        device.flush(IoPurpose::Data).expect("no faults");
        (0..8).for_each(|_| drop(device.read(IoPurpose::Data, 8192, 4096)));
        let read = device.read(IoPurpose::Data, 0, 4096).expect("no faults");
        let mut prng = Prng::from_seed(seed);
        let crashed = SimDevice::open(device.crash_image(&mut prng), SimOptions::default());
        let after = crashed.read(IoPurpose::Data, 0, 4096).expect("no faults");
        read[..] == [1; 4096] && after[..] == [1; 4096]
    };
    assert!((0..50).all(|seed| run(seed, true)));
    assert!((0..50).any(|seed| !run(seed, false)));
}

/// Goal: a device without discard support refuses it and changes nothing.
#[test]
fn a_device_without_discards_refuses_them() {
    let device = SimDevice::new(SIZE, SimOptions { has_discard: false, ..SimOptions::default() });
    let refused = device.submit(IoPurpose::Data, discard_of(0, 4096)).wait();
    assert!(matches!(refused, Err(DeviceError::NoDiscard { .. })), "{refused:?}");
}

/// Goal: requests before a scheduler takes over do not make later ones expire. Method: over 30 s of
/// reads, then a scheduled write, for which the clock begins at 0.
#[test]
fn a_scheduler_that_takes_over_waits_for_what_came_before() {
    let options = SimOptions { model: DiskModel::hdd(), ..SimOptions::default() };
    let device = SimDevice::new(1 << 40, options);
    for nth in 0_u64.. {
        device.read(IoPurpose::Data, nth % 2 * (1 << 39), 4096).expect("no faults");
        if device.now_ns() > 31_000_000_000 {
            break;
        }
    }
    let scheduler = Scheduler::new(1);
    let work = || {
        let _operation = scheduler.operation();
        put(&device, 0, 1, 1).expect("no faults");
    };
    let job: SimThreadTask<'_> = ("writer".to_owned(), Box::new(work));
    scheduler.run(vec![job]);
    assert!(!device.has_failed());
}

#[test]
fn submission_alone_lets_other_threads_in() {
    let mut mixed_count = 0;
    for seed in 0..50 {
        let scheduler = Scheduler::new(seed);
        let device = SimDevice::new(SIZE, recorded(seed));
        let submit = |me: u64| -> SimThreadTask<'_> {
            let device = &device;
            let work = move || {
                for nth in 0..8 {
                    drop(device.submit(IoPurpose::Journal, stamped(me * 100 + nth, 1, 1)));
                }
            };
            ("submitter".to_owned(), Box::new(work))
        };
        scheduler.run((0..2).map(submit).collect());
        let recording = device.recording();
        let owner = |event: &RecordedEvent| match event {
            RecordedEvent::Submitted(write) => write.offset / to_u64(SECTOR) / 100,
            RecordedEvent::Answered(_)
            | RecordedEvent::Flushed(_)
            | RecordedEvent::Rotted { .. } => u64::MAX,
        };
        let owners: Vec<u64> = recording.events().iter().map(owner).collect();
        let changes = owners.windows(2).filter(|pair| pair[0] != pair[1]).count();
        mixed_count += usize::from(changes > 1);
    }
    assert!(mixed_count > 10, "{mixed_count} of 50 seeds");
}

/// Goal: a waiter leaves at the deadline, and its request still takes effect.
#[test]
fn late_and_hanging_requests_expire_and_late_ones_take_effect() {
    const DELAY_NS: u64 = 40_000_000_000;
    let late = |kind| FaultPlan::none().with(Fault::Delay { kind, nth: 0, delay_ns: DELAY_NS });
    let open = |faults| SimDevice::new(SIZE, SimOptions { faults, ..SimOptions::default() });
    let ones = || AlignedBuffer::copy_of(&[1; 4096]);
    let first_byte = |device: &SimDevice| {
        device.read(IoPurpose::Data, 0, 4096).expect("reads are not planned to fail")[0]
    };

    let device = open(late(RequestKind::Write));
    let error = device.write(IoPurpose::Data, 0, ones()).expect_err("it expires");
    assert!(matches!(error, DeviceError::Expired { waited_ms: 30_000, .. }), "{error}");
    assert_eq!((device.now_ns(), device.overdue()), (30_000_000_000, 1));
    assert_eq!(first_byte(&device), 0, "it took effect before its time");
    let refused = device.flush(IoPurpose::Data).expect_err("D4");
    assert!(matches!(refused, DeviceError::Failed { .. }), "{refused}");
    device.advance_ns(DELAY_NS);
    assert_eq!((first_byte(&device), device.overdue()), (1, 0));

    let within = Fault::Delay { kind: RequestKind::Write, nth: 0, delay_ns: 1_000_000_000 };
    let device = open(FaultPlan::none().with(within));
    device.write(IoPurpose::Data, 0, ones()).expect("in time");
    assert_eq!((device.now_ns(), first_byte(&device)), (1_000_000_000, 1));
    device.flush(IoPurpose::Data).expect("nothing failed");
    assert_eq!(device.durable_image().content_hash(), device.image().content_hash());

    for takes_effect in [false, true] {
        let (kind, nth, persists) = (RequestKind::Write, 0, false);
        let hang = Fault::Hang { kind, nth, takes_effect, persists };
        let device = open(FaultPlan::none().with(hang));
        device.write(IoPurpose::Data, 0, ones()).expect_err("it expires");
        device.advance_ns(DELAY_NS);
        assert_eq!((first_byte(&device), device.overdue()), (u8::from(takes_effect), 1));
    }

    let device = open(late(RequestKind::Flush));
    device.write(IoPurpose::Data, 0, ones()).expect("no fault");
    device.flush(IoPurpose::Data).expect_err("it expires");
    assert_ne!(device.durable_image().content_hash(), device.image().content_hash());
    device.advance_ns(DELAY_NS);
    assert_eq!(device.durable_image().content_hash(), device.image().content_hash());
}

/// A device with eight pages of 1, which stops storing `extent` from the second write on.
fn stops(extent: StoppedExtent, reads: StoppedReads) -> Arc<SimDevice> {
    let mut image = Image::blank(SIZE);
    (0..8).for_each(|page| image.write(page * 4096, &[1; 4096]));
    let faults = FaultPlan::none().with(Fault::StopsStoring { nth: 1, extent, reads });
    SimDevice::open(image, SimOptions { faults, is_recorded: true, ..SimOptions::default() })
}

fn first_bytes(image: &Image) -> Vec<u8> {
    let byte = |page: u64| {
        let mut byte = [0];
        image.read(page * 4096, &mut byte);
        byte[0]
    };
    (0..8).map(byte).collect()
}

fn read_bytes(device: &SimDevice) -> Vec<u8> {
    let read = |page: u64| device.read(IoPurpose::Data, page * 4096, 4096).expect("it reads")[0];
    (0..8).map(read).collect()
}

/// Goal: an extent is no longer stored in spite of flushes, the rest is, and reads are as
/// configured.
#[test]
fn a_device_that_stopped_storing_answers_and_keeps_what_it_had() {
    let cases = [
        (StoppedExtent::All, IoPurpose::Home, [2, 1, 1, 1, 1, 1, 1, 1]),
        (StoppedExtent::Metadata, IoPurpose::Home, [2, 1, 1, 1, 1, 1, 1, 1]),
        (StoppedExtent::Metadata, IoPurpose::Superblock, [2, 1, 3, 3, 3, 3, 3, 1]),
        (StoppedExtent::Range(3 * 4096..5 * 4096), IoPurpose::Data, [2, 1, 3, 1, 1, 3, 3, 1]),
    ];
    for (extent, purpose, left) in cases {
        for reads in [StoppedReads::Old, StoppedReads::Written] {
            let what = format!("{extent:?} {purpose:?} {reads:?}");
            let device = stops(extent.clone(), reads);
            let ones = |value, pages: usize| AlignedBuffer::copy_of(&vec![value; pages * 4096]);
            device.write(purpose, 0, ones(2, 1)).expect("it stores yet");
            device.write(purpose, 2 * 4096, ones(3, 5)).expect("it answers");
            let written = vec![2, 1, 3, 3, 3, 3, 3, 1];
            let shown = if reads == StoppedReads::Old { left.to_vec() } else { written.clone() };
            for is_flushed in [false, true] {
                assert_eq!(read_bytes(&device), shown, "{what}");
                assert_eq!(first_bytes(&device.image()), left, "{what}");
                if !is_flushed {
                    device.flush(purpose).expect("it answers");
                }
            }
            assert_eq!(first_bytes(&device.durable_image()), left, "{what}");
            let recorded = device.recording().point_at(u64::MAX).durable().clone();
            assert_eq!(first_bytes(&recorded), left, "{what}");
            assert_eq!(device.harm().lies, u64::from(left != written[..]), "{what}");

            let again = device.reboot(&mut Prng::from_seed(1));
            assert_eq!(read_bytes(&again), left, "{what}: it goes on");
            again.write(purpose, 3 * 4096, ones(4, 1)).expect("it answers");
            again.flush(purpose).expect("it answers");
            let is_stored = left[3] == 3;
            assert_eq!(first_bytes(&again.image())[3] == 4, is_stored, "{what}");
        }
    }
}

/// Goal: only the stored part of a partly stored write is torn by a power cut.
#[test]
fn what_is_not_stored_is_in_no_image_of_a_power_cut() {
    let mut torn = 0;
    for seed in 0..200 {
        let device = stops(StoppedExtent::Range(3 * 4096..5 * 4096), StoppedReads::Written);
        device.write(IoPurpose::Data, 0, AlignedBuffer::copy_of(&[1; 4096])).expect("it answers");
        let data = AlignedBuffer::copy_of(&[2; 5 * 4096]);
        device.write(IoPurpose::Data, 2 * 4096, data).expect("it answers");
        let left = first_bytes(&device.crash_image(&mut Prng::from_seed(seed)));
        assert_eq!((left[3], left[4]), (1, 1), "seed {seed}");
        torn += u64::from(left[2] != left[6]);
    }
    assert!(torn > 10, "{torn}");
}

/// Goal: a discard is not stored either.
#[test]
fn a_discard_is_not_stored_either() {
    for seed in 0..20 {
        let device = stops(StoppedExtent::All, StoppedReads::Old);
        device.write(IoPurpose::Data, 0, AlignedBuffer::copy_of(&[1; 4096])).expect("it answers");
        let before = device.image().content_hash();
        for _ in 0..=seed {
            let discard = DeviceOperation::Discard { offset: 4096, length_bytes: 4096 };
            device.submit(IoPurpose::Data, discard).wait().expect("it answers");
        }
        assert_eq!(device.image().content_hash(), before, "seed {seed}");
    }
}
