//! A mirror gets a member more, or one less, while the pool is in use, and whatever happens
//! meanwhile.

use std::collections::BTreeMap;
use std::sync::Arc;

use engine::Pool;
use format::members::{Layout, MemberState};
use runtime::prng::Prng;
use storage::device::sim::{Fault, FaultPlan, Image, SimDevice};
use storage::device::{
    AlignedBuffer, Device, DeviceOperation, IoPurpose, Redundancy, RequestKind, SharedBytes,
    SharedDevice,
};
use storage::pool::read_superblock;
use storage::volume::{
    AttachError, DetachError, RebuildRequest, ReplaceError, Volume, VolumeDevices,
};

use super::groups::{check_all, group_of, groups, labelled, new_pool};
use super::{Devices, POOL_BYTES, cut_at, devices_of, first_copy, get, open, put, reopened};

const FILES: usize = 5;
const FILE_BYTES: usize = 300 << 10;
/// What the attached device is called.
const NEW: [u8; 16] = [77; 16];

/// The last version of each file that was acknowledged.
type Versions = BTreeMap<usize, usize>;

fn content(name: usize, version: usize) -> Vec<u8> {
    format!("file {name} version {version} ").bytes().cycle().take(FILE_BYTES).collect()
}

fn write(pool: &Pool, name: usize, version: usize) {
    put(pool, &format!("f{name}"), &content(name, version)).expect("there is room");
}

fn verify(pool: &Pool, versions: &Versions, what: &str) {
    for (name, version) in versions {
        let found = get(pool, &format!("f{name}"));
        assert!(found == Some(content(*name, *version)), "{what}: file {name} is another");
    }
}

fn states(pool: &Pool) -> Vec<MemberState> {
    pool.devices().members().iter().map(|member| member.member.state).collect()
}

fn slots(pool: &Pool) -> Vec<usize> {
    pool.devices().members().iter().map(|member| member.slot).collect()
}

fn device(devices: &[Arc<SimDevice>], at: usize) -> SharedDevice {
    Arc::<SimDevice>::clone(&devices[at])
}

/// Lets jobs work until no member is joining.
fn finish(pool: &Pool) {
    for _ in 0..1000 {
        pool.tick().expect("nothing fails");
        if !states(pool).contains(&MemberState::Joining) {
            return;
        }
    }
    panic!("the copy does not end: {:?}", pool.jobs());
}

/// Returns the devices of a closed pool of `width` members with files in it, and one behind them
/// that is full of junk.
fn filled(layout: Layout, width: usize) -> Devices {
    let devices = new_pool(layout, width, 1, POOL_BYTES);
    for offset in (0..POOL_BYTES).step_by(1 << 16) {
        let bytes = AlignedBuffer::copy_of(&[0xa5; 4096]);
        devices[width].write(IoPurpose::Data, offset, bytes).expect("in range");
    }
    let pool = open(&devices[..width]).expect("a new pool opens");
    (0..FILES).for_each(|name| write(&pool, name, 0));
    pool.close().expect("nothing fails");
    drop(pool);
    reopened(&devices, &(0..=width).collect::<Vec<_>>())
}

/// Goal: a member that is attached gets what was there and what is written meanwhile, and the pool
/// can do without any other then.
#[test]
fn a_mirror_gets_a_member_while_it_is_in_use() {
    let devices = filled(Layout::Mirror, 2);
    let pool = open(&devices[..2]).expect("it was closed");
    pool.tick().expect("nothing fails");
    assert_eq!(pool.devices().attach_member(0, device(&devices, 2), NEW).expect("it fits"), 2);
    let [online, joining] = [MemberState::Online, MemberState::Joining];
    assert_eq!(states(&pool), [online, online, joining]);
    let mut versions: Versions = (0..FILES).map(|name| (name, 0)).collect();
    for round in 1..100 {
        if !states(&pool).contains(&joining) {
            break;
        }
        write(&pool, round % FILES, round);
        versions.insert(round % FILES, round);
        verify(&pool, &versions, "while it joins");
        pool.tick().expect("nothing fails");
    }
    assert_eq!(states(&pool), [online; 3]);
    assert!(pool.jobs().is_empty());
    pool.close().expect("nothing fails");
    drop(pool);
    check_all(&devices, "after it joined");
    for (left, what) in [([0, 2], "without the second"), ([1, 2], "without the first")] {
        let left = reopened(&devices, &left);
        let pool = open(&left).unwrap_or_else(|error| panic!("{what}: {error}"));
        verify(&pool, &versions, what);
        pool.close().expect("nothing fails");
        drop(pool);
        check_all(&left, what);
    }
    let alone = reopened(&devices, &[2]);
    let opening =
        storage::volume::VolumeDevices { devices: super::shared(&alone), accepts_missing: true };
    let clock = Arc::new(runtime::clock::ManualClock::new());
    let pool = Pool::open_members(opening, clock, engine::PoolOpenOptions::default());
    verify(&pool.expect("it has all"), &versions, "the new one alone");
}

/// Goal: a member that is removed is of no pool any more, its label is gone, and the others have
/// all; if its label could not be blanked, it is refused by name.
#[test]
fn a_member_that_is_removed_is_of_no_pool() {
    for out in 0..3 {
        let what = format!("without {out}");
        let devices = filled(Layout::Mirror, 3);
        let pool = open(&devices[..3]).expect("it was closed");
        let detached = pool.devices().detach_member(out, false).expect("two have all");
        assert_eq!(detached.name(), Some(format!("/sim/d{out}").as_str()));
        assert_eq!(detached.unanswered(), 0);
        let kept: Vec<usize> = (0..3).filter(|at| *at != out).collect();
        assert_eq!(slots(&pool), kept, "{what}: slots keep their numbers");
        let before = devices[out].position();
        write(&pool, 0, 1);
        assert_eq!(devices[out].position(), before, "{what}: it gets nothing more");
        let versions: Versions = [(0, 1), (1, 0), (4, 0)].into();
        verify(&pool, &versions, &what);
        pool.close().expect("nothing fails");
        drop(pool);
        let with_old = reopened(&devices, &[0, 1, 2]);
        let error = open(&with_old).expect_err("it is no member").to_string();
        assert!(error.contains(&format!("/sim/d{out}")) && error.contains("no member"), "{error}");
        detached.blank().expect("it takes writes");
        assert!(read_superblock(devices[out].as_ref()).is_err(), "{what}");
        let left = reopened(&devices, &kept);
        check_all(&left, &what);
        for alone in 0..2 {
            let alone = reopened(&left, &[alone]);
            let pool = open(&alone).unwrap_or_else(|error| panic!("{what}: {error}"));
            verify(&pool, &versions, &what);
        }
        let pool = open(&left).expect("both are there");
        // The slot that is free is the one that the next gets.
        assert_eq!(
            pool.devices().attach_member(kept[0], device(&devices, 3), NEW).expect("it fits"),
            out
        );
        finish(&pool);
        assert_eq!(states(&pool), [MemberState::Online; 3]);
        verify(&pool, &versions, &what);
    }
}

/// An attach to a pool of `width` members in `layout`, and then the removal of its first, with
/// writes meanwhile.
struct Run {
    devices: Devices,
    /// When each version was acknowledged, with its file.
    acknowledged: Vec<(u64, usize, usize)>,
    begun: u64,
    /// When the new member had all.
    whole: u64,
    leaving: u64,
    left: u64,
}

fn attach_and_remove(layout: Layout, width: usize) -> Run {
    let devices = filled(layout, width);
    let pool = open(&devices[..width]).expect("it was closed");
    pool.tick().expect("nothing fails");
    let begun = devices[0].time();
    pool.devices().attach_member(width - 1, device(&devices, width), NEW).expect("it fits");
    let mut acknowledged: Vec<(u64, usize, usize)> = Vec::new();
    let mut note = |pool: &Pool, round: usize| {
        write(pool, round % FILES, round);
        acknowledged.push((devices[0].time(), round % FILES, round));
    };
    for round in 1..6 {
        note(&pool, round);
        pool.tick().expect("nothing fails");
    }
    finish(&pool);
    let whole = devices[0].time();
    note(&pool, 6);
    let leaving = devices[0].time();
    let detached = pool.devices().detach_member(0, width == 1).expect("the others have all");
    detached.blank().expect("it takes writes");
    let left = devices[0].time();
    note(&pool, 7);
    drop(pool);
    Run { devices, acknowledged, begun, whole, leaving, left }
}

impl Run {
    /// Returns what must be there after a cut at `time`.
    fn versions_at(&self, time: u64) -> Versions {
        let mut versions: Versions = (0..FILES).map(|name| (name, 0)).collect();
        for (_, name, round) in self.acknowledged.iter().filter(|(at, ..)| *at <= time) {
            versions.insert(*name, *round);
        }
        // A version that was being written may be there in part.
        if let Some((_, name, _)) = self.acknowledged.iter().find(|(at, ..)| *at > time) {
            versions.remove(name);
        }
        versions
    }

    /// Whether the pool can do without device `lost` after a cut at `time`: of two that are to be a
    /// mirror each has all once the new one is whole, until the first goes.
    fn does_without(&self, lost: usize, time: u64) -> bool {
        match self.devices.len() {
            2 if time < self.whole => lost == 1,
            2 if time < self.leaving => true,
            2 => lost == 0,
            _ => true,
        }
    }
}

/// Goal: a cut at any moment of an attach and of a removal leaves a pool that has the member or has
/// it not, and all that was acknowledged on it, whichever member is missing then.
#[test]
fn a_cut_at_any_moment_leaves_it_in_or_out() {
    for (layout, width) in [(Layout::Mirror, 2), (Layout::Single, 1)] {
        let run = attach_and_remove(layout, width);
        let (begun, leaving, left) = (run.begun, run.leaving, run.left);
        let recordings: Vec<_> = run.devices.iter().map(|device| device.recording()).collect();
        let mut prng = Prng::from_seed(1);
        let (mut joined, mut out) = (0, 0);
        let copying = (begun + 24..leaving).step_by(29);
        let end = [left, run.devices[0].time()];
        let times = (begun..begun + 24).chain(copying).chain(leaving..left).chain(end);
        for (turn, time) in times.enumerate() {
            let images: Vec<Image> = cut_at(&recordings, time, false, &mut prng);
            let versions = run.versions_at(time);
            let lost = Some(turn % images.len()).filter(|lost| run.does_without(*lost, time));
            for lost in [None, lost] {
                let what =
                    format!("{width}: cut at {time} of {begun}, {leaving}, without {lost:?}");
                let mut found = devices_of(images.clone());
                if let Some(lost) = lost {
                    found.remove(lost);
                }
                let found = labelled(&found);
                let pool = open(&found).unwrap_or_else(|error| panic!("{what}: {error}"));
                finish(&pool);
                verify(&pool, &versions, &what);
                for member in pool.devices().members() {
                    let is_new = member.member.id == NEW;
                    let is_online = member.member.state == MemberState::Online;
                    // The new one has no label before the others have theirs.
                    assert!(lost.is_some() || is_new || is_online, "{what}: {member:?}");
                    joined += usize::from(is_new && is_online);
                }
                let kept: Vec<usize> = (1..=width).collect();
                out += usize::from(slots(&pool) == kept);
                pool.close().unwrap_or_else(|error| panic!("{what}: {error}"));
                drop(pool);
                check_all(&found, &what);
            }
        }
        assert!(joined > 10 && out > 2, "{width}: {joined} {out}");
    }
}

/// Goal: a pool of one device becomes a mirror while it is in use, and either device has all then;
/// one that it lost since is replaced as any other.
#[test]
fn a_pool_of_one_device_becomes_a_mirror() {
    let devices = filled(Layout::Single, 1);
    let pool = open(&devices[..1]).expect("it was closed");
    pool.tick().expect("nothing fails");
    assert!(pool.devices().members().is_empty());
    assert_eq!(pool.devices().attach_member(0, device(&devices, 1), NEW).expect("it fits"), 1);
    write(&pool, 0, 1);
    finish(&pool);
    assert_eq!(states(&pool), [MemberState::Online; 2]);
    assert_eq!(pool.status().layout, Layout::Mirror);
    let paths: Vec<Vec<u8>> =
        pool.devices().members().into_iter().map(|it| it.member.path).collect();
    assert_eq!(paths, [b"/sim/d0".to_vec(), b"/sim/d1".to_vec()], "each leads to the other");
    write(&pool, 1, 2);
    let versions: Versions = [(0, 1), (1, 2), (2, 0), (3, 0), (4, 0)].into();
    pool.close().expect("nothing fails");
    drop(pool);
    for at in 0..2 {
        let what = format!("device {at} alone");
        let alone = reopened(&devices, &[at]);
        let pool = open(&alone).unwrap_or_else(|error| panic!("{what}: {error}"));
        verify(&pool, &versions, &what);
        pool.close().expect("nothing fails");
        drop(pool);
        check_all(&alone, &what);
    }
    let both = reopened(&devices, &[0, 1]);
    let pool = open(&both).expect("both are there");
    assert_eq!(states(&pool), [MemberState::Online; 2]);
    // And a disk group beside it, as in any pool.
    let other = devices_of(vec![Image::blank(2 * POOL_BYTES)]);
    pool.devices().add_disk_group(&group_of(&other, Layout::Single, &[0])).expect("it fits");
    assert_eq!(groups(&pool)[1].slots.iter().collect::<Vec<_>>(), [2]);
    verify(&pool, &versions, "beside a disk group");
}

/// Goal: who kept the one device of a pool, and who was writing to it, is no danger to another that
/// comes (LN1): a copy waits for the write of before that is under way, though its caller does not
/// collect the answer, and what is written later goes to both. Method: the write lands late, so
/// that what a copy reads before is another page.
#[test]
fn writes_of_before_and_of_those_who_kept_the_device_reach_both() {
    let devices = filled(Layout::Single, 1);
    let opening = VolumeDevices { devices: super::shared(&devices[..1]), accepts_missing: false };
    let (volume, mut superblock) = Volume::open_members(opening).expect("a pool of one device");
    let kept = Arc::clone(volume.device());
    let place = superblock.geometry.group_layout().root_place();
    let offset = superblock.geometry.device_offset(place, 1).expect("in a group");
    let page = |byte: u8| AlignedBuffer::copy_of(&[byte; 4096]);
    let write =
        |byte: u8| DeviceOperation::Write { offset, data: vec![SharedBytes::from(page(byte))] };
    let delay_ns = 1_000_000_000;
    let faults = vec![Fault::Delay { kind: RequestKind::Write, nth: 0, delay_ns }];
    devices[0].arm(FaultPlan { faults });
    let under_way = kept.submit(IoPurpose::Home, write(1));
    let changing = volume.membership().changing();
    let slot = changing.attach(&mut superblock, 0, device(&devices, 1), NEW).expect("it fits");
    assert_eq!((slot, superblock.slots.len(), superblock.layout), (1, 2, Layout::Mirror));
    let mut at = 0;
    let walk = |at: &mut u64| {
        while let Some(piece) = volume.membership().piece_at(*at) {
            let (end, keeps) = (piece.end, std::collections::BTreeSet::new());
            let wanted = RebuildRequest { piece, kept: Redundancy::Copies, keeps };
            if volume
                .membership()
                .rebuild_pieces(1, &[wanted], &first_copy(), |_, _| {})
                .expect("nothing fails")
                == 0
            {
                return;
            }
            *at = end;
        }
    };
    walk(&mut at);
    assert!(volume.membership().piece_at(at).is_none(), "it goes on: {at}");
    let on_both = |byte: u8, what: &str| {
        for device in &devices {
            let found = device.read(IoPurpose::Home, offset, 4096).expect("it can be read");
            assert!(found[..] == page(byte)[..], "{what}: {}", device.info().name);
        }
    };
    on_both(1, "what was under way");
    under_way.wait().expect("nothing fails");
    kept.submit(IoPurpose::Home, write(2)).wait().expect("nothing fails");
    on_both(2, "what is written by who kept it");
    volume
        .membership()
        .end_join(1, &volume.membership().stay_in(1).expect("it is there"))
        .expect("nothing fails");
    kept.submit_all(IoPurpose::Home, vec![write(3), DeviceOperation::Flush])
        .into_iter()
        .for_each(|ticket| drop(ticket.wait().expect("nothing fails")));
    on_both(3, "what is written when both are online");
    assert!(kept.read(IoPurpose::Home, offset, 4096).expect("it can be read")[..] == page(3)[..]);
}

/// Goal: a member that has failed, or does not have all yet, can be taken out, whatever it says.
#[test]
fn a_member_that_is_away_or_joining_can_be_removed() {
    let devices = filled(Layout::Mirror, 2);
    let pool = open(&devices[..2]).expect("it was closed");
    pool.tick().expect("nothing fails");
    pool.devices().attach_member(0, device(&devices, 2), NEW).expect("it fits");
    let error = pool.devices().detach_member(0, false).expect_err("the new one does not have all");
    assert!(matches!(error, DetachError::Others { other: 2, .. }), "{error}");
    pool.devices()
        .detach_member(2, false)
        .expect("the others have all")
        .blank()
        .expect("it is there");
    finish(&pool);
    assert!(pool.jobs().is_empty());
    assert_eq!(slots(&pool), [0, 1]);
    // One that fails while it joins.
    pool.devices().attach_member(0, device(&devices, 2), [78; 16]).expect("it fits");
    let faults = vec![Fault::Fail { kind: RequestKind::Write, nth: 6, persists: true }];
    devices[2].arm(FaultPlan { faults });
    finish(&pool);
    let [online, failed] = [MemberState::Online, MemberState::Failed];
    assert_eq!(states(&pool), [online, online, failed]);
    let detached = pool.devices().detach_member(2, false).expect("the others have all");
    detached.blank().expect_err("it takes no writes");
    pool.devices().fail_member(1).expect("the first has all");
    let error = pool.devices().detach_member(0, true).expect_err("only it has all");
    assert!(matches!(error, DetachError::Others { other: 1, state: "failed" }), "{error}");
    let error = pool.devices().detach_member(1, false).expect_err("one copy is left");
    assert!(matches!(error, DetachError::NoRedundancy), "{error}");
    pool.devices().detach_member(1, true).expect("that is said").blank().expect("it takes writes");
    assert_eq!(groups(&pool)[0].layout, Layout::Single);
    write(&pool, 0, 1);
    pool.close().expect("nothing fails");
    drop(pool);
    let alone = reopened(&devices, &[0]);
    check_all(&alone, "a single");
    let pool = open(&alone).expect("a pool of one device");
    verify(&pool, &[(0, 1), (1, 0)].into(), "a single");
}

/// Goal: what cannot be is refused before anything changes.
#[test]
fn what_cannot_be_attached_or_removed_is_refused() {
    let devices = filled(Layout::Mirror, 3);
    let blank = |bytes: u64| device(&devices_of(vec![Image::blank(bytes)]), 0);
    let pool = open(&devices[..3]).expect("it was closed");
    let error =
        pool.devices().attach_member(0, blank(POOL_BYTES), NEW).expect_err("three are most");
    assert!(matches!(error, AttachError::Full { number: 0 }), "{error}");
    pool.devices().detach_member(2, false).expect("two have all").blank().expect("it takes writes");
    let error =
        pool.devices().attach_member(0, blank(POOL_BYTES - 4096), NEW).expect_err("too small");
    assert!(matches!(error, AttachError::Unfit(ReplaceError::TooSmall { .. })), "{error}");
    let error =
        pool.devices().attach_member(2, blank(POOL_BYTES), NEW).expect_err("nobody is there");
    assert!(matches!(error, AttachError::Unfit(ReplaceError::NoSlot { slot: 2 })), "{error}");
    let error = pool.devices().detach_member(2, false).expect_err("nobody is there");
    assert!(matches!(error, DetachError::NoSlot { slot: 2 }), "{error}");
    pool.devices().attach_member(1, blank(POOL_BYTES), NEW).expect("it fits");
    let error =
        pool.devices().attach_member(0, blank(POOL_BYTES), [78; 16]).expect_err("three are most");
    assert!(matches!(error, AttachError::Full { .. }), "{error}");
    for layout in [Layout::Raid5 { unit_shift: 14 }, Layout::Stripe { unit_shift: 14 }] {
        let devices = filled(layout, 3);
        let pool = open(&devices[..3]).expect("it was closed");
        let error =
            pool.devices().attach_member(0, blank(POOL_BYTES), NEW).expect_err("it is no mirror");
        assert!(error.to_string().contains("group add"), "{error}");
        let error = pool.devices().detach_member(0, true).expect_err("it is no mirror").to_string();
        assert!(error.contains("device remove"), "{error}");
        assert_eq!(states(&pool), [MemberState::Online; 3]);
    }
}

/// Goal: a disk group that was added gets and loses members as the first does, between whose slots
/// its own may lie.
#[test]
fn a_disk_group_that_was_added_gets_and_loses_members() {
    let devices = new_pool(Layout::Mirror, 2, 3, 2 * POOL_BYTES);
    let pool = open(&devices[..2]).expect("it was closed");
    pool.tick().expect("nothing fails");
    let group = group_of(&devices, Layout::Single, &[2]);
    assert_eq!(pool.devices().add_disk_group(&group).expect("it fits"), 1);
    let mut versions = Versions::new();
    let mut write_some = |pool: &Pool, version: usize| {
        for name in 0..14 {
            write(pool, name, version);
            versions.insert(name, version);
        }
        versions.clone()
    };
    write_some(&pool, 0);
    // A single becomes a mirror, then the first group gets a slot behind it.
    assert_eq!(pool.devices().attach_member(2, device(&devices, 3), NEW).expect("it fits"), 3);
    let versions = write_some(&pool, 1);
    finish(&pool);
    assert_eq!(groups(&pool)[1].layout, Layout::Mirror);
    let first = device(&devices_of(vec![Image::blank(POOL_BYTES)]), 0);
    assert_eq!(pool.devices().attach_member(1, first, [79; 16]).expect("it fits"), 4);
    finish(&pool);
    let own = |pool: &Pool, at: usize| groups(pool)[at].slots.iter().collect::<Vec<usize>>();
    assert_eq!((own(&pool, 0), own(&pool, 1)), (vec![0, 1, 4], vec![2, 3]));
    pool.devices().detach_member(0, false).expect("two have all").blank().expect("it takes writes");
    pool.devices()
        .detach_member(2, true)
        .expect("the other has all")
        .blank()
        .expect("it takes writes");
    assert_eq!((own(&pool, 0), own(&pool, 1)), (vec![1, 4], vec![3]));
    verify(&pool, &versions, "in use");
    pool.devices()
        .detach_member(4, true)
        .expect("the other has all")
        .blank()
        .expect("it takes writes");
    pool.close().expect("nothing fails");
    drop(pool);
    let left = reopened(&devices, &[1, 3]);
    check_all(&left, "two that are left");
    let pool = open(&left).expect("both are there");
    assert_eq!((own(&pool, 0), own(&pool, 1)), (vec![1], vec![3]));
    verify(&pool, &versions, "opened again");
    // The disk group is removed as any other.
    pool.devices().remove_disk_group(1).expect("its data fits");
    for _ in 0..1000 {
        pool.tick().expect("nothing fails");
        if groups(&pool).len() == 1 {
            break;
        }
    }
    assert_eq!(groups(&pool).len(), 1);
    verify(&pool, &versions, "moved");
}

/// Goal: a power cut while a disk group is added in a slot between others leaves the pool with it
/// or without, and no trace of it in the slot.
#[test]
fn a_cut_while_a_disk_group_comes_into_a_free_slot_leaves_a_pool() {
    let devices = filled(Layout::Mirror, 3);
    let pool = open(&devices[..3]).expect("it was closed");
    pool.devices().detach_member(1, false).expect("two have all").blank().expect("it takes writes");
    let begun = devices[0].time();
    pool.devices().add_disk_group(&group_of(&devices, Layout::Single, &[3])).expect("it fits");
    assert_eq!(slots(&pool), [0, 1, 2], "it has the slot that was free");
    let end = devices[0].time();
    drop(pool);
    let recordings: Vec<_> = devices.iter().map(|device| device.recording()).collect();
    let (mut prng, mut with, mut without) = (Prng::from_seed(1), 0, 0);
    let versions: Versions = (0..FILES).map(|name| (name, 0)).collect();
    for time in begun..=end {
        let what = format!("cut at {time} of {begun} to {end}");
        let found = labelled(&devices_of(cut_at(&recordings, time, false, &mut prng)));
        let pool = open(&found).unwrap_or_else(|error| panic!("{what}: {error}"));
        verify(&pool, &versions, &what);
        match slots(&pool).as_slice() {
            [0, 1, 2] => with += 1,
            [0, 2] => without += 1,
            other => panic!("{what}: {other:?}"),
        }
        pool.close().unwrap_or_else(|error| panic!("{what}: {error}"));
        drop(pool);
        check_all(&labelled(&found), &what);
    }
    assert!(with > 3 && without > 3, "{with} {without}");
}
