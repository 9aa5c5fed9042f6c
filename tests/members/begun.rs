//! A change of the members that a power cut left only begun: who has its label, and was away when
//! the pool was used next, has missed writes and is no half of the pool.

use std::ops::RangeInclusive;
use std::sync::Arc;

use format::disk_group::DiskGroupRoles;
use format::geometry::Geometry;
use format::members::Layout;
use runtime::prng::Prng;
use storage::device::sim::{Fault, FaultPlan, Image, Recording, SimDevice};
use storage::device::{AlignedBuffer, Device, IoPurpose, RequestKind, SharedDevice};
use storage::pool::read_superblock;
use storage::volume::DiskGroupSpec;

use super::groups::labelled;
use super::raid5::new_raid5;
use super::returns::finish;
use super::{Devices, cut_at, devices_of, get, new_mirror, open, put, reopened};

const MEMBERS: usize = 3;

/// What is done to a mirror of two; a third device is there for it.
#[derive(Clone, Copy, Debug)]
enum Deed {
    AddGroup,
    Fail,
    /// It fails the first write of a commit.
    FailInWrite,
    Attach,
    /// A member fails the first write of it, so one epoch is begun after another.
    AttachAndFail,
    Replace,
}

impl Deed {
    /// Whether one of the mirror goes.
    fn takes_one_out(self) -> bool {
        !matches!(self, Deed::AddGroup | Deed::Attach)
    }

    /// Does it to a pool of so many members.
    fn make(self, devices: &Devices, width: usize) {
        let pool = open(&devices[..width]).expect("it was closed");
        let third: SharedDevice = devices[2].clone();
        if matches!(self, Deed::AttachAndFail | Deed::FailInWrite) {
            let fault = Fault::Fail { kind: RequestKind::Write, nth: 0, persists: true };
            devices[1].arm(FaultPlan { faults: vec![fault] });
        }
        match self {
            Deed::AddGroup => {
                let devices = vec![(third, [9; 16])];
                let group =
                    DiskGroupSpec { layout: Layout::Single, devices, roles: DiskGroupRoles::DATA };
                pool.devices().add_disk_group(&group).map(|_| ()).expect("it fits");
            }
            Deed::FailInWrite => put(&pool, "commit", &[7; 60_000]).expect("the other has all"),
            Deed::Fail => pool.devices().fail_member(1).expect("the other has all"),
            Deed::Attach | Deed::AttachAndFail => {
                pool.devices().attach_member(0, third, [9; 16]).map(|_| ()).expect("it fits");
            }
            Deed::Replace => {
                pool.devices().replace_member(1, third, [9; 16]).expect("the other has all")
            }
        }
    }
}

/// Returns what was recorded of a mirror of so many members, two or three, that are changed, and
/// the times between which that was done.
fn recorded(deed: Deed, width: usize) -> (Vec<Recording>, RangeInclusive<u64>) {
    let mirror = new_mirror(width);
    let images = mirror.iter().map(|device| device.image());
    let blank = std::iter::repeat_n(Image::blank(super::POOL_BYTES), MEMBERS - width);
    let devices = devices_of(images.chain(blank).collect());
    let pool = open(&devices[..width]).expect("just made");
    put(&pool, "before", b"before").expect("there is room");
    pool.close().expect("nothing fails");
    drop(pool);
    let now = || devices.iter().map(|device| device.time()).max().expect("there are devices");
    let begun = now();
    deed.make(&devices, width);
    let time = begun..=now();
    (devices.iter().map(|device| device.recording()).collect(), time)
}

/// Returns devices that hold what these do now.
fn copies<'d>(devices: impl Iterator<Item = &'d Arc<SimDevice>>) -> Devices {
    devices_of(devices.map(|device| device.image()).collect())
}

/// Uses the pool on those of `images` that `which` says, and returns what they are afterwards;
/// `None`: it is refused.
fn used(images: &[Image], which: &[usize], name: &str) -> Option<Devices> {
    let devices = devices_of(which.iter().map(|at| images[*at].clone()).collect());
    let devices = labelled(&devices);
    let pool = open(&devices).ok()?;
    put(&pool, name, name.as_bytes()).expect("it goes on");
    pool.close().expect("nothing fails");
    drop(pool);
    Some(copies(devices.iter()))
}

/// Whether the newest epoch that a device has was not only begun.
fn is_settled(image: &Image) -> bool {
    let device = &devices_of(vec![image.clone()])[0];
    read_superblock(device.as_ref()).is_ok_and(|read| read.epoch() == read.current.membership())
}

/// Calls `judge` with what a power cut at each event of each change leaves.
fn each_cut<const N: usize>(deeds: [Deed; N], mut judge: impl FnMut(Deed, &[Image], &str)) {
    for deed in deeds {
        let (recordings, time) = recorded(deed, 2);
        let mut prng = Prng::from_seed(3);
        for (at, state) in time.flat_map(|at| (0..6).map(move |state| (at, state))) {
            let images = cut_at(&recordings, at, state == 0, &mut prng);
            judge(deed, &images, &format!("{deed:?}: cut at {at}, state {state}"));
        }
    }
}

/// Goal: after a cut at any event of a change of the members, a pool that is used without one of
/// them is used with it again.
#[test]
fn one_that_only_began_a_change_is_no_half() {
    let mut returned = 0;
    // After two that were begun one after the other nobody knows.
    let deeds = [Deed::AddGroup, Deed::Attach, Deed::Replace];
    each_cut(deeds, |deed, images, what| {
        for which in [&[0][..], &[1], &[0, 1], &[0, 2], &[1, 2]] {
            if deed.takes_one_out() && which == [1] && is_settled(&images[0]) {
                continue; // It was told to go, and did not know.
            }
            let Some(others) = used(images, which, "alone") else { continue };
            // Of a new device whose label was begun nobody knows: it has no label before.
            let members = if deed.takes_one_out() { 0..2 } else { 0..MEMBERS };
            let away = members.filter(|at| !which.contains(at));
            let away = devices_of(away.map(|at| images[at].clone()).collect());
            let all = labelled(&copies(others.iter().chain(&away)));
            let what = format!("{what}, used with {which:?}");
            let pool = open(&all).unwrap_or_else(|error| panic!("{what}: {error}"));
            for name in ["before", "alone"] {
                let found = get(&pool, name);
                assert_eq!(found.as_deref(), Some(name.as_bytes()), "{what}: {name}");
            }
            returned += u32::from(all.len() > others.len());
        }
    });
    println!("{returned} came back");
    assert!(returned > 100, "{returned}");
}

/// Goal: an open ends a change that was only begun before it writes anything else, so nobody who
/// was not there is taken for one that has it. Method: the pool is opened with the member that
/// began the change, and cut at each event of that: while the change is only begun, all but labels
/// and the heartbeat is as it was.
#[test]
fn an_open_ends_what_was_begun_before_it_writes() {
    let mut states = [0; 2];
    for (deed, width) in [(Deed::Fail, 2), (Deed::FailInWrite, 2), (Deed::FailInWrite, 3)] {
        let (recordings, time) = recorded(deed, width);
        let mut prng = Prng::from_seed(5);
        for (at, with) in time.flat_map(|at| [(at, 1..2), (at, 1..width)]) {
            let images = cut_at(&recordings, at, true, &mut prng);
            if is_settled(&images[0]) {
                continue;
            }
            let others = with.map(|at| images[at].clone());
            let devices = devices_of(std::iter::once(images[0].clone()).chain(others).collect());
            drop(open(&devices).expect("the first has all"));
            let events = devices.iter().map(|device| device.time()).max().unwrap_or_default();
            let begun = [devices[0].recording()];
            for event in 0..=events {
                let now = cut_at(&begun, event, false, &mut prng);
                let is_ended = is_settled(&now[0]);
                states[usize::from(is_ended)] += 1;
                let is_same = is_ended || content_of(&now[0]) == content_of(&images[0]);
                assert!(is_same, "{deed:?} of {width}: cut at {at}, opened, cut at {event}");
            }
        }
    }
    println!("{states:?} states in which it was only begun, and ended");
    assert!(states.iter().all(|count| *count > 100), "{states:?}");
}

/// Returns what a device holds between its heartbeat and the labels at its end.
fn content_of(image: &Image) -> Vec<u8> {
    let device = &devices_of(vec![image.clone()])[0];
    let size_bytes = device.info().size_bytes;
    let label = read_superblock(device.as_ref()).expect("it has a label").current;
    let (start, end) = (label.geometry.journal_offset, Geometry::superblock_offset(size_bytes, 2));
    let length = usize::try_from(end - start).expect("small");
    device.read(IoPurpose::Data, start, length).expect("in range").to_vec()
}

/// Goal: a change that a member only began refuses no pool whose devices have all. Method: a raid5
/// is opened without the last member, and cut at each event of that; then the first is gone, and
/// the last is back. When all are there again the pool goes on.
#[test]
fn a_change_that_was_only_begun_refuses_no_pool() {
    let (mut opened, mut refused) = (0, 0);
    let devices = reopened(&new_raid5(3), &[0, 1, 2]);
    let pool = open(&devices).expect("just made");
    put(&pool, "before", b"before").expect("there is room");
    for is_closed in [false, true] {
        if is_closed {
            pool.close().expect("nothing fails");
        }
        let last = devices[2].durable_image();
        let first = devices_of(devices[..2].iter().map(|device| device.durable_image()).collect());
        drop(open(&first).expect("one may be away"));
        let recordings: Vec<Recording> = first.iter().map(|device| device.recording()).collect();
        let end = first.iter().map(|device| device.time()).max().expect("there are devices");
        let mut prng = Prng::from_seed(7);
        for (at, state) in (0..=end).flat_map(|at| (0..6).map(move |state| (at, state))) {
            let mut images = cut_at(&recordings, at, state == 0, &mut prng);
            images.push(last.clone());
            let what = format!("closed: {is_closed}, cut at {at}, state {state}");
            let Some(mut left) = used(&images, &[1, 2], "without the first") else {
                assert!(is_settled(&images[1]), "{what}");
                refused += 1;
                continue;
            };
            opened += 1;
            left.insert(0, devices_of(images[..1].to_vec()).remove(0));
            let all = labelled(&copies(left.iter()));
            // It may have been told that the last is missing, and have ended that.
            let Ok(pool) = open(&all) else {
                assert!(is_settled(&images[0]), "{what}");
                continue;
            };
            for name in ["before", "without the first"] {
                let found = get(&pool, name);
                assert_eq!(found.as_deref(), Some(name.as_bytes()), "{what}: {name}");
            }
            finish(&pool, &what);
        }
    }
    println!("{opened} opened, {refused} refused");
    assert!(opened > 50 && refused > 50, "{opened}, {refused}");
}

/// Goal: where a copy of the second step does not verify nobody knows whether it was written.
#[test]
fn a_copy_that_does_not_verify_may_have_been_of_the_second_step() {
    let mut begun = 0;
    each_cut([Deed::Attach, Deed::AddGroup, Deed::Fail, Deed::Replace], |_, images, what| {
        if is_settled(&images[0]) {
            return;
        }
        begun += 1;
        let device = &devices_of(vec![images[0].clone()])[0];
        let read = read_superblock(device.as_ref()).expect("its copies verify");
        for copy in [u16::from(read.current.sequence.is_multiple_of(2)), 3] {
            let at = Geometry::superblock_offset(device.info().size_bytes, copy);
            let device = &devices_of(vec![images[0].clone()])[0];
            let junk = AlignedBuffer::copy_of(&[0xa5; 4096]);
            device.write(IoPurpose::Superblock, at, junk).expect("in range");
            assert!(is_settled(&device.image()), "{what}: copy {copy}");
        }
    });
    assert!(begun > 20, "{begun}");
}

/// Goal: two halves that were both used are refused, whatever had been begun before.
#[test]
fn halves_that_were_used_after_a_change_was_begun_are_refused() {
    let mut refused = 0;
    // One that was replaced is no half any more.
    let deeds = [Deed::AddGroup, Deed::Attach, Deed::AttachAndFail, Deed::Fail];
    each_cut(deeds, |_, images, what| {
        let halves = [used(images, &[0, 2], "left"), used(images, &[1], "right")];
        let [Some(left), Some(right)] = halves else { return };
        let both = labelled(&copies(left.iter().chain(&right)));
        let error = open(&both).expect_err(what).to_string();
        assert!(error.contains("opened apart"), "{what}: {error}");
        refused += 1;
    });
    println!("{refused} were refused");
    assert!(refused > 100, "{refused}");
}
