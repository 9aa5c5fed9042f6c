//! How long it takes to empty a disk group, on simulated disks, in virtual time.

use std::sync::Arc;

use engine::api::{Caller, FileSystem};
use engine::{Pool, PoolCreateOptions, PoolOpenOptions};
use format::members::Layout;
use runtime::clock::{Clock, ManualClock, SimClock};
use runtime::sync::sim::{Scheduler, SimThreadTask, sleep_until};
use storage::device::sim::{DiskModel, Image, PowerSupply, SimDevice, SimOptions, Timeline};
use storage::device::{Device, DeviceOperation, IoPurpose};
use storage::volume::VolumeDevices;

use super::groups::{content, group_of, groups};
use super::{Devices, devices_of, get, open, put, shared};

const DEVICE_BYTES: u64 = 320 << 20;
const FILE_BYTES: usize = 1 << 20;
const FILES: usize = 220;
/// How often background work is done, as a server does it.
const TICK_NS: u64 = 100_000_000;

/// Returns the images of a pool with two disk groups of one device each, and what is live on the
/// second. Of `removed` in 12 files nothing is left.
fn filled(removed: usize) -> (Vec<Image>, u64) {
    let devices = devices_of(vec![Image::blank(DEVICE_BYTES); 2]);
    let options = PoolCreateOptions::new(DEVICE_BYTES, [5; 64]);
    Pool::create_on(&shared(&devices[..1]), Layout::Single, &ManualClock::new(), &options)
        .expect("it fits");
    let pool = open(&devices[..1]).expect("it was closed");
    pool.devices().add_disk_group(&group_of(&devices, Layout::Single, &[1])).expect("it fits");
    for file in 0..FILES {
        put(&pool, &format!("f{file}"), &content(file, 1, FILE_BYTES)).expect("there is room");
    }
    for file in (0..FILES).filter(|file| file % 12 < removed) {
        let name = format!("f{file}");
        pool.unlink(&Caller::root(), pool.root(), name.as_bytes(), None).expect("it is there");
    }
    pool.sync().expect("nothing fails");
    pool.close().expect("nothing fails");
    drop(pool);
    let pool = open(&devices).expect("it was closed");
    (0..20).for_each(|_| pool.tick().expect("nothing fails"));
    pool.checkpoint().expect("nothing fails");
    let live = groups(&pool)[1].used_bytes;
    pool.close().expect("nothing fails");
    (devices.iter().map(|device| device.image()).collect(), live)
}

/// Returns how long it takes until the second disk group is gone, in virtual nanoseconds.
fn emptied(images: &[Image], model: DiskModel) -> (u64, Devices) {
    let scheduler = Scheduler::new(1);
    let clock = Arc::new(SimClock::new(Arc::clone(&scheduler)));
    let (power, timeline) = (PowerSupply::new(), Timeline::default());
    let device = |(number, image): (usize, &Image)| {
        let (name, power) = (format!("/sim/d{number}"), power.clone());
        let timeline = timeline.clone();
        let options = SimOptions { name, model, power, timeline, ..SimOptions::default() };
        SimDevice::open(image.clone(), options)
    };
    let devices: Devices = images.iter().enumerate().map(device).collect();
    let mut took = 0;
    let work: SimThreadTask<'_> = (
        "emptying".to_owned(),
        Box::new(|| {
            let opening = VolumeDevices { devices: shared(&devices), accepts_missing: false };
            let options = PoolOpenOptions::default();
            let its_clock: Arc<dyn Clock> = Arc::<SimClock>::clone(&clock);
            let pool = Pool::open_members(opening, its_clock, options).expect("all are there");
            let begun = clock.monotonic_ns();
            pool.devices().remove_disk_group(1).expect("it fits elsewhere");
            while groups(&pool).len() > 1 {
                let next_in = pool.tick_paced().expect("nothing fails");
                let rest = next_in
                    .map_or(TICK_NS, |it| u64::try_from(it.as_nanos()).expect("soon").min(TICK_NS));
                sleep_until(clock.monotonic_ns() + rest);
                assert!(clock.monotonic_ns() - begun < 600_000_000_000, "{:?}", pool.jobs());
            }
            took = clock.monotonic_ns() - begun;
            for file in (0..FILES).filter(|file| file % 12 == 11) {
                let found = get(&pool, &format!("f{file}"));
                assert!(found == Some(content(file, 1, FILE_BYTES)), "{file}");
            }
            pool.close().expect("nothing fails");
        }),
    );
    scheduler.run(vec![work]);
    (took, devices)
}

/// Returns how long it takes to copy `bytes` from one disk to another, in virtual nanoseconds: what
/// is read of a part while the part before it is written, in requests of a MiB, and a flush.
fn copied(bytes: u64, model: DiskModel) -> u64 {
    const PART_BYTES: usize = 1 << 20;
    let scheduler = Scheduler::new(1);
    let clock = Arc::new(SimClock::new(Arc::clone(&scheduler)));
    let device = |name: &str| {
        let options = SimOptions { name: name.to_owned(), model, ..SimOptions::default() };
        SimDevice::open(Image::blank(DEVICE_BYTES), options)
    };
    let (from, to) = (device("from"), device("to"));
    let mut took = 0;
    let work: SimThreadTask<'_> = (
        "copying".to_owned(),
        Box::new(|| {
            let mut writes = Vec::new();
            for offset in (0..bytes).step_by(PART_BYTES) {
                let read = from.read(IoPurpose::Data, offset, PART_BYTES).expect("in range");
                let write = DeviceOperation::Write { offset, data: vec![read.into()] };
                writes.push(to.submit(IoPurpose::Data, write));
            }
            writes.into_iter().for_each(|it| drop(it.wait().expect("in range")));
            to.flush(IoPurpose::Data).expect("nothing fails");
            took = clock.monotonic_ns();
        }),
    );
    scheduler.run(vec![work]);
    took
}

/// Goal: a disk group is empty within 1.3 times what a copy of its live bytes takes on disks that
/// do not turn, and 2.6 times on those that do, where checkpoints seek. Method: one group full, and
/// one of which a third of the files is gone.
#[test]
fn a_disk_group_is_emptied_at_the_speed_of_its_disks() {
    for removed in [0, 4] {
        let (images, live) = filled(removed);
        for (model, most) in [(DiskModel::hdd(), 260), (DiskModel::ssd(), 130)] {
            let (took, _) = emptied(&images, model);
            let least = copied(live, model);
            println!(
                "{}, {removed} of 12 files gone: {live} bytes in {} ms, a copy in {} ms: {} %",
                model.name,
                took / 1_000_000,
                least / 1_000_000,
                took * 100 / least,
            );
            assert!(took * 100 <= least * most, "{}, {removed} of 12 files gone", model.name);
        }
    }
}
