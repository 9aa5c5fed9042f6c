//! The last device of a journal that is apart fails while the pool is in use: it goes on, and what
//! was acknowledged is there without that device (`docs/decisions/0105`).

use std::sync::Arc;

use engine::Pool;
use engine::api::{Caller, FileKind, FileSystem, NewInode};
use format::disk_group::DiskGroupRoles;
use format::members::Layout;
use format::stripes::UNIT_SHIFT_DEFAULT;
use runtime::prng::Prng;
use storage::device::sim::{Fault, FaultPlan, Image, PowerSupply, SimDevice, SimOptions, Timeline};
use storage::device::{RequestKind, SharedDevice};
use storage::volume::DiskGroupSpec;

use super::groups::{check_all, content, group_of, groups, labelled, new_pool};
use super::{Devices, POOL_BYTES, devices_of, get, open, put};

const RAID5: Layout = Layout::Raid5 { unit_shift: UNIT_SHIFT_DEFAULT };

/// What the first disk group is, and the one with the journal.
#[derive(Clone, Copy, Debug)]
struct Shape {
    first: (Layout, usize),
    journal: (Layout, usize),
    goes_through: bool,
}

const SHAPES: [Shape; 4] = [
    Shape { first: (Layout::Single, 1), journal: (Layout::Single, 1), goes_through: true },
    Shape { first: (Layout::Mirror, 2), journal: (Layout::Mirror, 2), goes_through: false },
    Shape { first: (RAID5, 3), journal: (Layout::Single, 1), goes_through: true },
    Shape { first: (Layout::Single, 1), journal: (Layout::Mirror, 2), goes_through: false },
];

impl Shape {
    fn width(&self) -> usize {
        self.first.1
    }

    /// Which devices the journal is on.
    fn journal(&self) -> std::ops::Range<usize> {
        self.width()..self.width() + self.journal.1
    }

    /// Returns the images of a closed pool whose journal is apart, and of a blank device.
    fn images(&self) -> Vec<Image> {
        let (layout, width) = self.first;
        let devices = new_pool(layout, width, self.journal.1 + 1, POOL_BYTES);
        let pool = open(&devices[..width]).expect("it was closed");
        let which: Vec<usize> = self.journal().collect();
        let group = DiskGroupSpec {
            roles: DiskGroupRoles::JOURNAL,
            ..group_of(&devices, self.journal.0, &which)
        };
        pool.devices().add_disk_group(&group).expect("it fits");
        put(&pool, "early", &content(99, 0, 30_000)).expect("there is room");
        pool.close().expect("nothing fails");
        drop(pool);
        devices.iter().map(|device| device.image()).collect()
    }

    /// Returns what is left of the pool, with the devices of its journal if they are to be there
    /// and still are members.
    fn left(&self, images: Vec<Image>, is_with_it: bool) -> Devices {
        let journal = images[self.journal()].to_vec();
        let others = devices_of(images).into_iter().enumerate();
        let others = others.filter(|(at, _)| !self.journal().contains(at));
        let others = labelled(&others.map(|(_, device)| device).collect());
        let others: Vec<Image> = others.iter().map(|device| device.image()).collect();
        if is_with_it {
            let all = [others.clone(), journal].concat();
            let opened = open(&devices_of(all.clone())).map_err(|error| error.to_string());
            if !opened.is_err_and(|error| error.contains("no member of the pool any more")) {
                return devices_of(all);
            }
        }
        devices_of(others)
    }

    fn devices(&self, images: &[Image]) -> Devices {
        let (power, timeline) = (PowerSupply::new(), Timeline::default());
        let device = |(number, image): (usize, &Image)| {
            let options = SimOptions {
                name: format!("/sim/d{number}"),
                power: power.clone(),
                timeline: timeline.clone(),
                has_write_through: self.goes_through,
                is_recorded: true,
                ..SimOptions::default()
            };
            SimDevice::open(image.clone(), options)
        };
        images.iter().enumerate().map(device).collect()
    }
}

/// A pool in use, and what it has acknowledged.
struct Life {
    devices: Devices,
    /// When, which file, which version of it.
    acknowledged: Vec<(u64, usize, usize)>,
    /// When something was acknowledged first that no device of the journal has.
    acknowledged_without: Option<u64>,
}

impl Life {
    fn of(devices: &Devices) -> Life {
        let (devices, acknowledged) = (devices.clone(), Vec::new());
        Life { devices, acknowledged, acknowledged_without: None }
    }

    fn now(&self) -> u64 {
        self.devices.iter().map(|device| device.time()).max().expect("there are devices")
    }

    fn put(&mut self, pool: &Pool, name: usize, version: usize, what: &str) {
        let bytes = content(name, version, [3_000, 20_000, 70_000][name % 3]);
        put(pool, &format!("f{name}"), &bytes).unwrap_or_else(|error| panic!("{what}: {error}"));
        self.acknowledged.push((self.now(), name, version));
        if pool.status().lost_journal.is_some() {
            self.acknowledged_without.get_or_insert(self.now());
        }
    }

    /// Uses the pool: small and large files, names without a sync, checkpoints, labels, ticks.
    fn live(&mut self, pool: &Pool, what: &str) {
        let expected = |done: Result<(), _>| {
            done.unwrap_or_else(|error: engine::api::FsError| panic!("{what}: {error}"));
        };
        for name in 0..4 {
            self.put(pool, name, 1, what);
        }
        expected(pool.checkpoint());
        for name in 4..6 {
            self.put(pool, name, 1, what);
        }
        self.put(pool, 0, 2, what);
        let more = group_of(&self.devices, Layout::Single, &[self.devices.len() - 1]);
        pool.devices().add_disk_group(&more).unwrap_or_else(|error| panic!("{what}: {error}"));
        let new = NewInode::new(FileKind::Regular, 0o600);
        for name in 0..12 {
            let name = format!("nameless-{name}");
            pool.create(&Caller::root(), pool.root(), name.as_bytes(), new, None)
                .unwrap_or_else(|error| panic!("{what}: {error}"));
        }
        expected(pool.tick());
        self.put(pool, 1, 2, what);
        expected(pool.checkpoint());
        self.put(pool, 6, 1, what);
        expected(pool.tick());
        expected(pool.sync());
        self.put(pool, 2, 2, what);
    }

    /// Panics unless all is there that was acknowledged by `time`; a later version of it may be.
    fn verify(&self, pool: &Pool, time: u64, what: &str) {
        assert!(get(pool, "early") == Some(content(99, 0, 30_000)), "{what}: early");
        for (at, name, version) in self.acknowledged.iter().filter(|(at, ..)| *at <= time) {
            let bytes = [3_000, 20_000, 70_000][name % 3];
            let found = get(pool, &format!("f{name}"));
            let is_later = |later: &(u64, usize, usize)| later.1 == *name && later.2 > *version;
            let may_be_later = self.acknowledged.iter().any(is_later);
            let is_there = found == Some(content(*name, *version, bytes));
            assert!(is_there || may_be_later && found.is_some(), "{what}: f{name} of {at}");
        }
    }
}

/// How a device fails, for good.
#[derive(Clone, Copy, Debug)]
enum Death {
    /// From a write or flush on each of that kind is an error, and each read.
    Fails(RequestKind, u64),
    /// None is answered from that one on, and each takes effect, or none does.
    Hangs(RequestKind, u64, bool),
}

impl Death {
    fn plan(self) -> FaultPlan {
        match self {
            Death::Fails(kind, nth) => dies_at(kind, nth),
            Death::Hangs(kind, nth, takes_effect) => {
                FaultPlan::none().with(Fault::Hang { kind, nth, takes_effect, persists: true })
            }
        }
    }
}

fn dies_at(kind: RequestKind, nth: u64) -> FaultPlan {
    let plan = FaultPlan::none().with(Fault::Fail { kind, nth, persists: true });
    plan.with(Fault::Fail { kind: RequestKind::Read, nth: 0, persists: true })
}

/// Returns how the devices of the journal can fail: in each write, and in each flush.
fn deaths(shape: &Shape, images: &[Image]) -> Vec<Death> {
    let devices = shape.devices(images);
    let pool = open(&devices[..shape.journal().end]).expect("it was closed");
    let journal = &devices[shape.journal().start];
    let before = journal.counts();
    let mut life = Life::of(&devices);
    life.live(&pool, "nothing fails");
    let after = journal.counts();
    let writes = (0..after.writes() - before.writes()).map(|nth| (RequestKind::Write, nth));
    let flushes = (0..after.flushes() - before.flushes()).map(|nth| (RequestKind::Flush, nth));
    let ways = |(kind, nth): (RequestKind, u64)| {
        let hangs = (nth % 3 == 0).then_some(Death::Hangs(kind, nth, nth % 2 == 0));
        [Some(Death::Fails(kind, nth)), hangs].into_iter().flatten()
    };
    writes.chain(flushes).flat_map(ways).collect()
}

/// Uses the pool on these images; all devices of the journal fail at `death`. Returns what it has
/// acknowledged, and when the last device of the journal was lost, or a little before.
fn use_until_lost(shape: &Shape, images: &[Image], death: Death, what: &str) -> Life {
    let devices = shape.devices(images);
    let pool = open(&devices[..shape.journal().end]).expect("it was closed");
    let mut life = Life::of(&devices);
    for at in shape.journal() {
        devices[at].arm(death.plan());
    }
    life.live(&pool, what);
    let left = groups(&pool);
    assert!(left.len() == 2 && left[0].has_journal, "{what}: {left:?}");
    let told = pool.status().lost_journal.expect("it is told");
    assert!(told.contains(&format!("/sim/d{}", shape.journal().end - 1)), "{what}: {told}");
    assert!(pool.status().read_only.is_none(), "{what}");
    life
}

/// Goal: the last device of the journal may fail in any of its writes and flushes: the pool goes
/// on, and what it has acknowledged is there without the device, and with it as it was left.
/// Method: a power cut at the end, in two states; the pool is opened without, and with the device.
#[test]
fn the_last_device_of_the_journal_may_fail_at_any_moment() {
    let mut count = 0;
    for shape in SHAPES {
        let images = shape.images();
        for death in deaths(&shape, &images) {
            let what = format!("{shape:?}: {death:?}");
            let life = use_until_lost(&shape, &images, death, &what);
            let mut prng = Prng::from_seed(count);
            for (is_with_it, is_durable) in [(false, true), (true, false)] {
                let mut image = |device: &Arc<SimDevice>| match is_durable {
                    true => device.durable_image(),
                    false => device.crash_image(&mut prng),
                };
                let images = life.devices.iter().map(&mut image).collect();
                let left = shape.left(images, is_with_it);
                let pool = open(&left).unwrap_or_else(|error| panic!("{what}: {error}"));
                life.verify(&pool, u64::MAX, &what);
                put(&pool, "after", &content(9, 9, 50_000)).expect("it goes on");
                drop(pool);
                if count % 7 == 0 {
                    check_all(&labelled(&left), &what);
                }
            }
            count += 1;
        }
    }
    println!("{count} deaths");
    assert!(count > 100, "{count}");
}

/// Goal: a power cut while a lost journal is rebuilt leaves a pool that is refused, as one whose
/// journal is away, or one that has all that was acknowledged. From the first acknowledgement after
/// the failure on it has. Method: a cut at each event after the failure, for some of the failures,
/// in several states; the pool is opened without the devices of the journal, and with them.
#[test]
fn a_cut_while_a_lost_journal_is_made_anew_loses_nothing() {
    let (mut opened, mut refused, mut refused_with) = (0, 0, 0);
    for (nth_shape, shape) in SHAPES.iter().enumerate() {
        let images = shape.images();
        let deaths = deaths(shape, &images);
        for death in deaths.iter().skip(nth_shape).step_by(9) {
            let what = format!("{shape:?}: {death:?}");
            let life = use_until_lost(shape, &images, *death, &what);
            let recordings: Vec<_> = life.devices.iter().map(|device| device.recording()).collect();
            // Nothing happens on its devices after that.
            let last = shape.journal().map(|at| recordings[at].events().len()).max();
            let end = life.now();
            let failed = (0..=end)
                .find(|time| {
                    let at = |at: usize| recordings[at].point_at(*time).position();
                    shape.journal().map(at).max() == last
                })
                .expect("there was a last event");
            let first_after = life.acknowledged_without.unwrap_or(end);
            let mut prng = Prng::from_seed(5);
            for time in failed..=(first_after + 3).min(end) {
                for state in 0..4 {
                    let is_with_it = state % 2 == 1;
                    let mut image = |at: usize| {
                        let point = recordings[at].point_at(time);
                        if state < 2 {
                            point.durable().clone()
                        } else {
                            point.image(&mut prng).image
                        }
                    };
                    let images = (0..life.devices.len()).map(&mut image).collect();
                    let left = shape.left(images, is_with_it);
                    let what = format!("{what}: cut at {time} of {failed} to {end}, {state}");
                    match open(&left) {
                        Ok(pool) => {
                            life.verify(&pool, time, &what);
                            put(&pool, "after", &content(9, 9, 50_000)).expect("it goes on");
                            opened += 1;
                        }
                        Err(error) => {
                            assert!(time < first_after, "{what}: {error}");
                            *(if is_with_it { &mut refused_with } else { &mut refused }) += 1;
                        }
                    }
                }
            }
        }
    }
    println!("{opened} opened, {refused} refused without the journal, {refused_with} with it");
    assert!(opened > 200 && refused > 50, "{opened}, {refused}");
    assert_eq!(refused_with, 0, "what was acknowledged is there");
}

/// Panics unless the pool on what a power cut leaves has all, without the devices of the journal.
fn verify_without(shape: &Shape, life: &Life, what: &str) -> Pool {
    let images = life.devices.iter().map(|device| device.durable_image()).collect();
    let left = shape.left(images, false);
    let pool = open(&left).unwrap_or_else(|error| panic!("{what}: {error}"));
    life.verify(&pool, u64::MAX, what);
    pool
}

/// Goal: where nobody commits, who writes a label finds that the journal is lost, and goes on; a
/// tick makes it anew. Until then the device is believed if it comes back: it has all.
#[test]
fn a_label_finds_that_the_journal_is_lost_and_a_tick_makes_it_anew() {
    for shape in SHAPES {
        let what = format!("{shape:?}");
        let images = shape.images();
        let devices = shape.devices(&images);
        let pool = open(&devices[..shape.journal().end]).expect("it was closed");
        let mut life = Life::of(&devices);
        life.put(&pool, 0, 1, &what);
        shape.journal().for_each(|at| devices[at].arm(dies_at(RequestKind::Write, 0)));
        let more = group_of(&devices, Layout::Single, &[devices.len() - 1]);
        pool.devices().add_disk_group(&more).expect("the others do as they are told");
        assert_eq!(groups(&pool).len(), 3, "{what}: nobody has looked");
        assert!(pool.status().lost_journal.is_none(), "{what}");
        let images = devices.iter().map(|device| device.durable_image()).collect();
        let left = shape.left(images, true);
        let back = open(&left).unwrap_or_else(|error| panic!("{what}: {error}"));
        life.verify(&back, u64::MAX, &what);
        pool.tick().expect("it goes on");
        assert_eq!(groups(&pool).len(), 2, "{what}");
        drop(pool);
        verify_without(&shape, &life, &what);
    }
}

/// Goal: a pool that is closed while the last device of its journal fails can be opened without it.
/// Method: it fails in each write and flush of the close.
#[test]
fn the_journal_may_be_lost_while_the_pool_is_closed() {
    for shape in SHAPES {
        let images = shape.images();
        let close = |death: Option<(RequestKind, u64)>| {
            let what = format!("{shape:?}: {death:?}");
            let devices = shape.devices(&images);
            let pool = open(&devices[..shape.journal().end]).expect("it was closed");
            let mut life = Life::of(&devices);
            life.put(&pool, 0, 1, &what);
            let journal = &devices[shape.journal().start];
            let before = journal.counts();
            if let Some((kind, nth)) = death {
                shape.journal().for_each(|at| devices[at].arm(dies_at(kind, nth)));
            }
            pool.close().unwrap_or_else(|error| panic!("{what}: {error}"));
            drop(pool);
            let after = journal.counts();
            if death.is_some() {
                let pool = verify_without(&shape, &life, &what);
                assert!(!pool.status().recovery.was_needed, "{what}: it was closed");
            }
            (after.writes() - before.writes(), after.flushes() - before.flushes())
        };
        let (writes, flushes) = close(None);
        assert!(writes > 4 && flushes > 2, "{writes}, {flushes}");
        (0..writes).for_each(|nth| _ = close(Some((RequestKind::Write, nth))));
        (0..flushes).for_each(|nth| _ = close(Some((RequestKind::Flush, nth))));
    }
}

/// Goal: of a second failure while a lost journal is rebuilt nobody is told that something is
/// durable which is not: the pool turns read-only where it needs the device, and else goes on.
/// Method: a device of the first disk group fails in each of its writes and flushes from the loss
/// on.
#[test]
fn a_second_failure_while_a_lost_journal_is_made_anew_is_told() {
    let (mut went_on, mut stopped) = (0, 0);
    for shape in SHAPES {
        let images = shape.images();
        for nth in 0..40 {
            let what = format!("{shape:?}: {nth}");
            let devices = shape.devices(&images);
            let pool = open(&devices[..shape.journal().end]).expect("it was closed");
            let mut life = Life::of(&devices);
            life.put(&pool, 0, 1, &what);
            shape.journal().for_each(|at| devices[at].arm(dies_at(RequestKind::Write, 0)));
            let kind = if nth % 2 == 0 { RequestKind::Write } else { RequestKind::Flush };
            devices[0].arm(dies_at(kind, nth / 2));
            for name in 1..4 {
                if put(
                    &pool,
                    &format!("f{name}"),
                    &content(name, 1, [3_000, 20_000, 70_000][name % 3]),
                )
                .is_ok()
                {
                    life.acknowledged.push((life.now(), name, 1));
                }
            }
            let needs_it = shape.first.0 == Layout::Single;
            let read_only = pool.status().read_only;
            assert!(read_only.is_none() || needs_it, "{what}: {read_only:?}");
            *(if read_only.is_none() { &mut went_on } else { &mut stopped }) += 1;
            drop(pool);
            // The devices come back: what they have is whole, and with them all that is needed.
            let images = devices.iter().map(|device| device.durable_image()).collect();
            let left = shape.left(images, true);
            let pool = open(&left).unwrap_or_else(|error| panic!("{what}: {error}"));
            life.verify(&pool, u64::MAX, &what);
        }
    }
    println!("{went_on} went on, {stopped} stopped");
    assert!(went_on > 80 && stopped > 10, "{went_on}, {stopped}");
}

/// Goal: a journal that has only just moved there may be lost, and one that gets devices once more
/// too; nothing is told of the loss then.
#[test]
fn a_journal_that_has_just_moved_may_be_lost_again_and_again() {
    let devices = new_pool(Layout::Mirror, 2, 3, POOL_BYTES);
    let pool = open(&devices[..2]).expect("it was closed");
    let mut life = Life::of(&devices);
    put(&pool, "early", &content(99, 0, 30_000)).expect("there is room");
    life.put(&pool, 0, 1, "before");
    for at in 2..5 {
        let what = format!("{at}");
        life.put(&pool, 1, at, &what);
        let group = group_of(&devices, Layout::Single, &[at]);
        let number = pool
            .devices()
            .add_disk_group(&DiskGroupSpec { roles: DiskGroupRoles::JOURNAL, ..group });
        number.unwrap_or_else(|error| panic!("{what}: {error}"));
        assert_eq!(pool.status().lost_journal, None, "{what}");
        // What was never checked in since it moved, and what was.
        for name in 2..at {
            life.put(&pool, name, at, &what);
        }
        devices[at].arm(dies_at(RequestKind::Flush, 0));
        devices[at].arm(dies_at(RequestKind::Write, 0));
        life.put(&pool, 4, at, &what);
        assert_eq!(pool.status().lost_journal, Some(format!("/sim/d{at}")), "{what}");
        assert_eq!(groups(&pool).len(), 1, "{what}");
    }
    drop(pool);
    let left = devices_of(devices[..2].iter().map(|device| device.durable_image()).collect());
    let pool = open(&left).expect("it has its journal");
    life.verify(&pool, u64::MAX, "at the end");
    drop(pool);
    check_all(&left, "at the end");
}

/// Goal: the last device of the journal fails while another is made whole from it: the job ends,
/// and the pool goes on.
#[test]
fn the_journal_may_be_lost_while_a_member_of_it_is_made_whole() {
    let shape = SHAPES[1];
    let images = shape.images();
    for ticks in [0, 1, 2, 5] {
        let what = format!("after {ticks} ticks");
        let devices = shape.devices(&images);
        let pool = open(&devices[..4]).expect("it was closed");
        let mut life = Life::of(&devices);
        life.put(&pool, 0, 1, &what);
        let new: SharedDevice = Arc::<SimDevice>::clone(&devices[4]);
        pool.devices().replace_member(2, new, [77; 16]).expect("the other has all");
        (0..ticks).for_each(|_| pool.tick().expect("nothing fails"));
        for at in [3, 4] {
            devices[at].arm(dies_at(RequestKind::Write, 0));
        }
        life.put(&pool, 1, 1, &what);
        for _ in 0..20 {
            pool.tick().expect("it goes on");
        }
        assert_eq!(groups(&pool).len(), 1, "{what}");
        life.put(&pool, 2, 1, &what);
        assert!(pool.jobs().iter().all(|job| job.failure.is_none()), "{what}: {:?}", pool.jobs());
        drop(pool);
        let left = devices_of(devices[..2].iter().map(|device| device.durable_image()).collect());
        let pool = open(&left).unwrap_or_else(|error| panic!("{what}: {error}"));
        life.verify(&pool, u64::MAX, &what);
    }
}
