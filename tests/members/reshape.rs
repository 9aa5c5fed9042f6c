//! A raid5 gets a member more while the pool is in use, and whatever happens meanwhile.

use std::collections::BTreeMap;
use std::sync::Arc;

use engine::api::{Caller, FileSystem};
use engine::{Pool, PoolCreateOptions};
use format::members::{Layout, MemberState};
use runtime::clock::ManualClock;
use runtime::prng::Prng;
use storage::device::sim::{Fault, FaultPlan, Image, SimDevice};
use storage::device::{
    AlignedBuffer, Device, DeviceError, IoPurpose, Redundancy, RequestKind, SharedBytes,
    SharedDevice,
};
use storage::volume::{
    AttachError, ReplaceError, SegmentBusyError, SegmentMoveMode, SegmentMoveOutcome, Volume,
    VolumeDevices,
};

use super::groups::{check_all, group_of, groups};
use super::raid5_crash::cut;
use super::{Devices, NOTHING, cut_at, devices_of, get, open, put, reopened, shared, unmended};

pub(super) const RAID5: Layout = Layout::Raid5 { unit_shift: 14 };
pub(super) const MEMBER_BYTES: u64 = 14 << 20;
pub(super) const FILES: usize = 9;
pub(super) const FILE_BYTES: usize = 500 << 10;
/// What the new device is called.
pub(super) const NEW: [u8; 16] = [77; 16];

/// The last version of each file that was acknowledged.
pub(super) type Versions = BTreeMap<usize, usize>;

pub(super) fn content(name: usize, version: usize) -> Vec<u8> {
    format!("file {name} version {version} ").bytes().cycle().take(FILE_BYTES).collect()
}

pub(super) fn write(pool: &Pool, name: usize, version: usize) {
    put(pool, &format!("f{name}"), &content(name, version)).expect("there is room");
}

pub(super) fn verify(pool: &Pool, versions: &Versions, what: &str) {
    for (name, version) in versions {
        let found = get(pool, &format!("f{name}"));
        assert!(found == Some(content(*name, *version)), "{what}: file {name} is another");
    }
}

pub(super) fn states(pool: &Pool) -> Vec<MemberState> {
    pool.devices().members().iter().map(|member| member.member.state).collect()
}

pub(super) fn device(devices: &[Arc<SimDevice>], at: usize) -> SharedDevice {
    Arc::<SimDevice>::clone(&devices[at])
}

pub(super) fn moved(pool: &Pool) -> Option<u64> {
    pool.devices().reshaping().map(|reshaping| reshaping.reshape.moved)
}

/// Lets jobs work until all has moved.
pub(super) fn finish(pool: &Pool) {
    for _ in 0..2000 {
        pool.tick().expect("nothing fails");
        let is_narrowed =
            pool.devices().reshaping().is_none() && pool.devices().given_up().is_none();
        if is_narrowed && pool.jobs().is_empty() {
            return;
        }
        assert!(pool.jobs().iter().all(|job| job.failure.is_none()), "{:?}", pool.jobs());
    }
    panic!("the move does not end: {:?}, {:?}", pool.jobs(), pool.devices().reshaping());
}

fn filled(width: usize) -> Devices {
    filled_as(RAID5, width)
}

/// Returns how many members of a layout of `width` have data of a row.
pub(super) fn data_of(layout: Layout, width: usize) -> usize {
    width - usize::from(layout.stripe(width).is_some_and(|shape| shape.has_parity))
}

/// Returns the devices of a closed pool on `width` members with files in it, and one behind them
/// that is full of junk.
pub(super) fn filled_as(layout: Layout, width: usize) -> Devices {
    let devices = devices_of(vec![Image::blank(MEMBER_BYTES); width + 1]);
    let mut options = PoolCreateOptions::new(MEMBER_BYTES, [5; 64]);
    options.geometry.journal_bytes = Some(1 << 20);
    // Long enough that rows of another width make a difference.
    let is_of_three = data_of(layout, width) == 3;
    options.geometry.segment_bytes = Some(if is_of_three { 480 << 10 } else { 512 << 10 });
    let members = shared(&devices[..width]);
    Pool::create_on(&members, layout, &ManualClock::new(), &options).expect("it fits");
    for offset in (0..MEMBER_BYTES).step_by(1 << 16) {
        let bytes = AlignedBuffer::copy_of(&[0xa5; 4096]);
        devices[width].write(IoPurpose::Data, offset, bytes).expect("in range");
    }
    let pool = open(&devices[..width]).expect("a new pool opens");
    (0..FILES).for_each(|name| write(&pool, name, 0));
    pool.close().expect("nothing fails");
    drop(pool);
    reopened(&devices, &(0..=width).collect::<Vec<_>>())
}

pub(super) fn versions_of(files: usize) -> Versions {
    (0..files).map(|name| (name, 0)).collect()
}

/// Returns what `df` tells of all.
pub(super) fn capacity(pool: &Pool) -> u64 {
    pool.status().space.capacity
}

/// Holds what all members have against each other, and expects nothing that differs but what
/// nothing uses.
pub(super) fn scrub(pool: &Pool, what: &str) {
    assert!(pool.devices().scrub().expect("there are several"));
    for _ in 0..2000 {
        pool.tick().expect("nothing fails");
        let report = pool.devices().scrub_report().expect("it was begun");
        if report.is_done {
            assert_eq!((unmended(&report), report.repaired), (NOTHING, 0), "{what}: {report:?}");
            return;
        }
    }
    panic!("{what}: the scrub does not end");
}

/// Goal: a raid5 gets a member while it is read and written, has more room then, and can do without
/// any of its members; what was there and what was written meanwhile is all there.
#[test]
fn a_raid5_gets_a_member_while_it_is_in_use() {
    for width in [3, 4] {
        let what = format!("a raid5 of {width}");
        let devices = filled(width);
        let pool = open(&devices[..width]).expect("it was closed");
        pool.tick().expect("nothing fails");
        let before = capacity(&pool);
        assert_eq!(pool.devices().widen(0, device(&devices, width), NEW).expect("it fits"), width);
        assert_eq!(capacity(&pool), before, "{what}: not before all has moved");
        let mut versions = versions_of(FILES);
        let mut seen = Vec::new();
        for round in 1..400 {
            if pool.devices().reshaping().is_none() {
                break;
            }
            seen.extend(moved(&pool));
            if round % 7 == 0 {
                write(&pool, round / 7 % FILES, round);
                versions.insert(round / 7 % FILES, round);
            }
            verify(&pool, &versions, &what);
            pool.tick().expect("nothing fails");
        }
        finish(&pool);
        seen.dedup();
        assert!(seen.len() > 4 && seen.is_sorted(), "{what}: {seen:?}");
        assert_eq!(states(&pool), vec![MemberState::Online; width + 1], "{what}");
        assert_eq!(groups(&pool)[0].slots.len(), width + 1, "{what}");
        let after = capacity(&pool);
        assert!(after > before + before / 10, "{what}: {before} and {after}");
        verify(&pool, &versions, &what);
        scrub(&pool, &what);
        // What it has gained can be used.
        let free = usize::try_from(pool.status().space.available * 4096).expect("small");
        for name in FILES..FILES + free / FILE_BYTES * 9 / 10 {
            write(&pool, name, 1);
            versions.insert(name, 1);
        }
        pool.close().expect("nothing fails");
        drop(pool);
        check_all(&devices, &what);
        for lost in 0..=width {
            let what = format!("{what} without {lost}");
            let left: Vec<usize> = (0..=width).filter(|at| *at != lost).collect();
            let left = reopened(&devices, &left);
            let pool = open(&left).unwrap_or_else(|error| panic!("{what}: {error}"));
            verify(&pool, &versions, &what);
            pool.close().expect("nothing fails");
            drop(pool);
            check_all(&left, &what);
        }
    }
}

/// A raid5 that is moved to more members or fewer, with writes meanwhile.
pub(super) struct Run {
    pub(super) devices: Devices,
    /// How many files there were before.
    pub(super) files: usize,
    /// When each version was acknowledged, with its file.
    pub(super) acknowledged: Vec<(u64, usize, usize)>,
    pub(super) begun: u64,
    pub(super) ended: u64,
}

pub(super) fn widened(layout: Layout, width: usize) -> Run {
    let devices = filled_as(layout, width);
    let pool = open(&devices[..width]).expect("it was closed");
    pool.tick().expect("nothing fails");
    let begun = devices[0].time();
    pool.devices().widen(width - 1, device(&devices, width), NEW).expect("it fits");
    let mut acknowledged = Vec::new();
    for round in 1..2000 {
        if pool.devices().reshaping().is_none() {
            break;
        }
        if round % 5 == 0 {
            let name = round / 5 % FILES;
            // Names are metadata: they change as well.
            let (caller, root) = (Caller::root(), pool.root());
            if round % 10 == 0 {
                let _ = pool.unlink(&caller, root, format!("f{name}").as_bytes(), None);
            }
            write(&pool, name, round);
            acknowledged.push((devices[0].time(), name, round));
        }
        pool.tick().expect("nothing fails");
    }
    let ended = devices[0].time();
    write(&pool, 0, 5000);
    acknowledged.push((devices[0].time(), 0, 5000));
    drop(pool);
    Run { devices, files: FILES, acknowledged, begun, ended }
}

impl Run {
    /// Returns what must be there after a cut at `time`.
    pub(super) fn versions_at(&self, time: u64) -> Versions {
        let mut versions = versions_of(self.files);
        for (_, name, round) in self.acknowledged.iter().filter(|(at, ..)| *at <= time) {
            versions.insert(*name, *round);
        }
        // A version that was being written may be there in part.
        if let Some((_, name, _)) = self.acknowledged.iter().find(|(at, ..)| *at > time) {
            versions.remove(name);
        }
        versions
    }
}

/// Gives the pool another in place of the new member if that is missing: it has no label before the
/// others have theirs.
pub(super) fn bring_new(pool: &Pool, new: usize) {
    let away = states(pool).iter().position(|state| *state == MemberState::Missing);
    if let Some(away) = away {
        assert_eq!(away, new, "{:?}", states(pool));
        let other = devices_of(vec![Image::blank(MEMBER_BYTES)]);
        pool.devices().replace_member(away, device(&other, 0), [78; 16]).expect("it fits");
    }
}

/// Goal: a cut at any moment leaves all that was acknowledged, whichever member is missing then;
/// the move goes on once all are there, and comes to its end.
#[test]
fn a_cut_at_any_moment_of_a_move_loses_nothing() {
    for (width, step) in [(3, 17), (4, 61)] {
        let run = widened(RAID5, width);
        let recordings: Vec<_> = run.devices.iter().map(|device| device.recording()).collect();
        let mut prng = Prng::from_seed(3);
        let (mut under_way, mut states_seen, mut returned) = (0, 0, 0);
        let end = run.devices[0].time();
        let times = (run.begun..run.begun + 20).chain((run.begun + 20..run.ended).step_by(step));
        for (turn, time) in times.chain([run.ended, end]).enumerate() {
            let images: Vec<Image> = cut_at(&recordings, time, false, &mut prng);
            let versions = run.versions_at(time);
            for lost in [None, Some(turn % images.len())] {
                let what = format!(
                    "{width}: cut at {time} of {} to {}, without {lost:?}",
                    run.begun, run.ended
                );
                let mut found = devices_of(images.clone());
                if let Some(lost) = lost {
                    found.remove(lost);
                }
                let found = super::groups::labelled(&found);
                // As it lies, before anything is written.
                let pool = open(&found).unwrap_or_else(|error| panic!("{what}: {error}"));
                verify(&pool, &versions, &what);
                under_way += usize::from(moved(&pool).is_some_and(|moved| moved > 0));
                states_seen += 1;
                if lost.is_none() {
                    bring_new(&pool, width);
                    finish(&pool);
                    verify(&pool, &versions, &what);
                } else if let Some(lost) = lost {
                    (0..3).for_each(|_| pool.tick().expect("nothing fails"));
                    // It comes back with what it had: all that was moved since it has missed.
                    let back = devices_of(vec![images[lost].clone()]);
                    if pool.devices().return_member(device(&back, 0)).is_ok() {
                        while states(&pool).contains(&MemberState::Joining) {
                            pool.tick().expect("nothing fails");
                        }
                        bring_new(&pool, width);
                        finish(&pool);
                        verify(&pool, &versions, &what);
                        scrub(&pool, &what);
                        returned += 1;
                        drop(pool);
                        continue;
                    }
                }
                pool.close().unwrap_or_else(|error| panic!("{what}: {error}"));
                drop(pool);
                check_all(&found, &what);
            }
        }
        println!("{width}: {states_seen} states, {under_way} in the middle, {returned} returned");
        assert!(under_way > 40 && returned > 20, "{width}: {under_way} of {states_seen}");
    }
}

/// Goal: a member that fails in the middle stops the move and nothing else; when it has been
/// replaced the move goes on.
#[test]
fn a_member_that_fails_meanwhile_is_waited_for() {
    let mut stood = 0;
    for (lost, nth) in (0..4).flat_map(|lost| [12, 31, 50].map(|nth| (lost, nth))) {
        let what = format!("{lost} fails at its write {nth}");
        let devices = filled(3);
        let pool = open(&devices[..3]).expect("it was closed");
        pool.tick().expect("nothing fails");
        let faults = vec![Fault::Fail { kind: RequestKind::Write, nth, persists: true }];
        devices[lost].arm(FaultPlan { faults });
        pool.devices().widen(0, device(&devices, 3), NEW).expect("it fits");
        while pool.devices().reshaping().is_some() && states(&pool)[lost] != MemberState::Failed {
            pool.tick().expect("nothing fails");
        }
        let mut versions = versions_of(FILES);
        for name in 0..3 {
            write(&pool, name, 1);
            versions.insert(name, 1);
            pool.tick().expect("nothing fails");
        }
        assert_eq!(states(&pool)[lost], MemberState::Failed, "{what}");
        let stands_at = moved(&pool).expect("it is under way");
        for _ in 0..20 {
            pool.tick().expect("nothing fails");
        }
        assert_eq!(moved(&pool), Some(stands_at), "{what}: nothing moves without it");
        verify(&pool, &versions, &what);
        let other = devices_of(vec![Image::blank(MEMBER_BYTES)]);
        pool.devices().replace_member(lost, device(&other, 0), [78; 16]).expect("it fits");
        stood += usize::from(stands_at > 0);
        finish(&pool);
        assert_eq!(states(&pool), [MemberState::Online; 4], "{what}");
        verify(&pool, &versions, &what);
        scrub(&pool, &what);
        pool.close().expect("nothing fails");
    }
    assert!(stood > 6, "{stood} in the middle");
}

/// Goal: a disk group that leaves while it gets a member is taken out as any other.
#[test]
fn a_disk_group_can_leave_while_it_gets_a_member() {
    let devices = filled(3);
    let pool = open(&devices[..3]).expect("it was closed");
    let others = devices_of(vec![Image::blank(MEMBER_BYTES); 4]);
    pool.devices().add_disk_group(&group_of(&others, RAID5, &[0, 1, 2])).expect("it fits");
    for name in FILES..FILES + 8 {
        write(&pool, name, 0);
    }
    pool.devices().widen(4, device(&others, 3), NEW).expect("it fits");
    pool.devices().remove_disk_group(1).expect("the first has room");
    let error = pool.devices().widen(4, device(&others, 3), [78; 16]).expect_err("it leaves");
    assert!(matches!(error, AttachError::Reshaped | AttachError::Unfit(_)), "{error}");
    for _ in 0..400 {
        pool.tick().expect("nothing fails");
    }
    assert_eq!(groups(&pool).len(), 1, "{:?}", pool.jobs());
    assert!(pool.devices().reshaping().is_none() && pool.jobs().is_empty(), "{:?}", pool.jobs());
    verify(&pool, &versions_of(FILES + 8), "after it");
    pool.close().expect("nothing fails");
    drop(pool);
    let left = reopened(&devices, &[0, 1, 2]);
    check_all(&left, "after it");
    verify(&open(&left).expect("its label names nothing that is gone"), &versions_of(FILES), "");
}

/// Goal: a full disk group gets a member, though it has no free segment to move its first ones by
/// way of.
#[test]
fn a_full_disk_group_gets_a_member() {
    let devices = filled(3);
    let pool = open(&devices[..3]).expect("it was closed");
    let others = devices_of(vec![Image::blank(MEMBER_BYTES); 4]);
    pool.devices().add_disk_group(&group_of(&others, RAID5, &[0, 1, 2])).expect("it fits");
    let mut name = FILES;
    while put(&pool, &format!("f{name}"), &content(name, 0)).is_ok() {
        name += 1;
    }
    let caller = Caller::root();
    let _ = pool.unlink(&caller, pool.root(), format!("f{name}").as_bytes(), None);
    pool.tick().expect("nothing fails");
    pool.devices().widen(4, device(&others, 3), NEW).expect("it fits");
    finish(&pool);
    verify(&pool, &versions_of(name), "after it");
    write(&pool, name, 0);
    scrub(&pool, "after it");
    pool.close().expect("nothing fails");
}

/// Goal: one that fails before anything is moved, and comes back, is one of those that the others
/// can do without.
#[test]
fn a_new_member_that_comes_back_can_be_lost_again() {
    let devices = filled(3);
    let opening = VolumeDevices { devices: shared(&devices[..3]), accepts_missing: false };
    let (volume, mut superblock) = Volume::open_members(opening).expect("it was closed");
    let slot = volume.membership().changing().widen(&mut superblock, 0, device(&devices, 3), NEW);
    let slot = slot.expect("it fits");
    let set = volume.members().expect("there are several");
    for _ in 0..2 {
        let stay = volume.membership().stay_in(slot).expect("it is there");
        volume.membership().end_join(slot, &stay).expect("nothing fails");
        let view = set.view();
        assert!((0..4).all(|at| set.can_lose(&view[at])), "one of four can be lost");
        let error = DeviceError::Failed { device: "d3".to_owned() };
        set.fail(slot, &view[slot], error).expect("the others have all");
        volume.membership().begin_return_of(slot).expect("it is there");
    }
}

/// Goal: a device that was added by mistake is taken back before anything is moved, whatever became
/// of it, also while another is away, which can be replaced then; it can be added again. Method: it
/// is joining, has all there is, or has failed; alone, or with an old one. Each member is lost in
/// the end.
#[test]
fn a_new_member_is_taken_back_before_anything_is_moved() {
    for (at, is_other_away) in [(0, false), (2, false), (0, true), (1, true), (2, true)] {
        let what = format!("at {at}, another away: {is_other_away}");
        let devices = filled(3);
        let pool = open(&devices[..3]).expect("it was closed");
        pool.tick().expect("nothing fails");
        let before = capacity(&pool);
        let slot = pool.devices().widen(0, device(&devices, 3), NEW).expect("it fits");
        if is_other_away {
            pool.devices().fail_member(1).unwrap_or_else(|error| panic!("{what}: {error}"));
        }
        if at == 1 {
            // Nothing is moved while one is away.
            while states(&pool)[slot] == MemberState::Joining {
                pool.tick().expect("nothing fails");
            }
            assert_eq!(moved(&pool), Some(0), "{what}");
        }
        if at == 2 {
            pool.devices().fail_member(slot).unwrap_or_else(|error| panic!("{what}: {error}"));
        }
        write(&pool, 1, 7);
        let taken = pool.devices().take_member_back(slot).expect("nothing fails");
        let taken = taken.unwrap_or_else(|| panic!("{what}: it is not taken back"));
        taken.blank().expect("it is there");
        drop(taken);
        assert!(pool.devices().reshaping().is_none() && capacity(&pool) == before, "{what}");
        let mut versions = versions_of(FILES);
        versions.insert(1, 7);
        verify(&pool, &versions, &what);
        if is_other_away {
            let other = devices_of(vec![Image::blank(MEMBER_BYTES)]);
            pool.devices()
                .replace_member(1, device(&other, 0), [78; 16])
                .expect("the others have all");
            while states(&pool).contains(&MemberState::Joining) {
                pool.tick().unwrap_or_else(|error| panic!("{what}: {error}"));
            }
            pool.close().expect("nothing fails");
            continue;
        }
        assert!(
            pool.devices().take_member_back(slot).expect("nothing fails").is_none(),
            "{what}: it is gone"
        );
        for round in 0..20 {
            write(&pool, round % FILES, round);
            versions.insert(round % FILES, round);
            pool.tick().unwrap_or_else(|error| panic!("{what}: {error}"));
        }
        pool.close().expect("nothing fails");
        drop(pool);
        for lost in 0..3 {
            let left: Vec<usize> = (0..3).filter(|own| *own != lost).collect();
            let pool = open(&reopened(&devices, &left)).expect("parity has what it has");
            verify(&pool, &versions, &what);
        }
        let pool = open(&devices[..3]).unwrap_or_else(|error| panic!("{what}: {error}"));
        pool.tick().expect("nothing fails");
        pool.devices().widen(0, device(&devices, 3), [81; 16]).expect("it is added after all");
        finish(&pool);
        verify(&pool, &versions, &what);
        assert!(
            pool.devices().take_member_back(3).expect("nothing fails").is_none(),
            "{what}: it has a share now"
        );
        assert!(capacity(&pool) > before, "{what}");
    }
}

/// Goal: a cut at any moment while it is taken back leaves it in or out, and all that was
/// acknowledged, whether its device is there then or not.
#[test]
fn a_cut_while_a_new_member_is_taken_back_loses_nothing() {
    let (mut taken_out, mut left_in) = (0, 0);
    let devices = filled(3);
    let pool = open(&devices[..3]).expect("it was closed");
    pool.tick().expect("nothing fails");
    let slot = pool.devices().widen(0, device(&devices, 3), NEW).expect("it fits");
    write(&pool, 1, 7);
    let mut versions = versions_of(FILES);
    versions.insert(1, 7);
    let begun = devices[0].time();
    let taken =
        pool.devices().take_member_back(slot).expect("nothing fails").expect("nothing was moved");
    taken.blank().expect("it is there");
    let ended = devices[0].time();
    drop((taken, pool));
    let mut prng = Prng::from_seed(11);
    for time in begun..=ended {
        for with in [3, 4] {
            let what = format!("cut at {time} of {begun} to {ended}, {with} devices");
            let devices = devices_of(cut(&devices, time, &mut prng));
            let opened = open(&devices[..with]);
            // Of one that is out and not blanked yet the label says what it is of.
            let opened = if with == 4 { opened.or_else(|_| open(&devices[..3])) } else { opened };
            let pool = opened.unwrap_or_else(|error| panic!("{what}: {error}"));
            verify(&pool, &versions, &what);
            match pool.devices().reshaping() {
                Some(_) if with == 4 => {
                    left_in += 1;
                    finish(&pool);
                }
                Some(_) => left_in += 1,
                None => taken_out += 1,
            }
            verify(&pool, &versions, &what);
            pool.close().unwrap_or_else(|error| panic!("{what}: {error}"));
        }
    }
    println!("{taken_out} out, {left_in} in");
    assert!(taken_out > 4 && left_in > 4, "{taken_out}, {left_in}");
}

/// Goal: nothing is moved that somebody writes to, and who comes later waits for the move (RP2).
#[test]
fn a_segment_that_is_written_to_is_not_moved() {
    let devices = filled(3);
    let opening = VolumeDevices { devices: shared(&devices[..3]), accepts_missing: false };
    let (volume, mut superblock) = Volume::open_members(opening).expect("it was closed");
    let changing = volume.membership().changing();
    let slot = changing.widen(&mut superblock, 0, device(&devices, 3), NEW).expect("it fits");
    let stay = volume.membership().stay_in(slot).expect("it is there");
    volume.membership().end_join(slot, &stay).expect("nothing fails");
    let place = superblock.geometry.group_layout().root_place();
    let page = || vec![SharedBytes::from(AlignedBuffer::copy_of(&[9; 4096]))];
    volume.submit_write(IoPurpose::Home, place, page()).wait().expect("nothing fails");
    let offset = superblock.geometry.device_offset(place, 1).expect("in a group");
    let (set, _) = volume.members().expect("several").of_slot(0).expect("it is there");
    let under_way = set.begin_write(offset..offset + 4096);
    let kind_of = |_| Ok(Some(Redundancy::Copies));
    let moved = changing
        .move_segments(0..1, SegmentMoveMode::Segment(40), &kind_of)
        .expect("nothing fails");
    assert_eq!(moved, SegmentMoveOutcome::Busy);
    drop(under_way);
    let moved = changing
        .move_segments(0..1, SegmentMoveMode::Segment(40), &kind_of)
        .expect("nothing fails");
    assert_eq!(moved, SegmentMoveOutcome::All);
    let found = volume.read(IoPurpose::Home, place, 4096).expect("it can be read");
    assert!(found[..] == page()[0][..], "what was written before it moved");
    volume.submit_write(IoPurpose::Home, place, page()).wait().expect("nothing fails");
    let moved = changing
        .move_segments(1..2, SegmentMoveMode::Segment(40), &|_| Err(SegmentBusyError))
        .expect("nothing fails");
    assert_eq!(moved, SegmentMoveOutcome::Busy, "what it is cannot be told");
}

/// Goal: a disk group that was added gets a member as the first does.
#[test]
fn a_disk_group_that_was_added_gets_a_member() {
    let devices = filled(3);
    let pool = open(&devices[..3]).expect("it was closed");
    let others = devices_of(vec![Image::blank(MEMBER_BYTES); 4]);
    pool.devices().add_disk_group(&group_of(&others, RAID5, &[0, 1, 2])).expect("it fits");
    let mut versions = versions_of(FILES);
    for name in FILES..FILES * 3 {
        write(&pool, name, 1);
        versions.insert(name, 1);
    }
    let before: Vec<u64> = groups(&pool).iter().map(|group| group.total_bytes).collect();
    pool.tick().expect("nothing fails");
    assert_eq!(pool.devices().widen(4, device(&others, 3), NEW).expect("it fits"), 6);
    finish(&pool);
    let after: Vec<u64> = groups(&pool).iter().map(|group| group.total_bytes).collect();
    assert!(after[0] == before[0] && after[1] > before[1], "{before:?} {after:?}");
    verify(&pool, &versions, "after it");
    scrub(&pool, "after it");
    pool.close().expect("nothing fails");
    drop(pool);
    let images = devices[..3].iter().chain(&others).map(|device| device.image()).collect();
    let all = devices_of(images);
    check_all(&all, "after it");
    for lost in 3..7 {
        let left: Vec<usize> = (0..7).filter(|at| *at != lost).collect();
        let pool = open(&reopened(&all, &left)).expect("one may be away");
        verify(&pool, &versions, "without one");
    }
}

/// Goal: what cannot be is refused before anything changes.
#[test]
fn what_cannot_get_a_member_is_refused() {
    let devices = filled(3);
    let pool = open(&devices[..3]).expect("it was closed");
    pool.tick().expect("nothing fails");
    let blank = |bytes: u64| device(&devices_of(vec![Image::blank(bytes)]), 0);
    let error =
        pool.devices().widen(0, blank(MEMBER_BYTES - (1 << 20)), NEW).expect_err("too small");
    assert!(matches!(error, AttachError::Unfit(ReplaceError::TooSmall { .. })), "{error}");
    let error = pool.devices().widen(7, blank(MEMBER_BYTES), NEW).expect_err("nobody is there");
    assert!(matches!(error, AttachError::Unfit(ReplaceError::NoSlot { slot: 7 })), "{error}");
    let mirror = devices_of(vec![Image::blank(MEMBER_BYTES); 2]);
    pool.devices().add_disk_group(&group_of(&mirror, Layout::Mirror, &[0, 1])).expect("it fits");
    let error = pool.devices().widen(3, blank(MEMBER_BYTES), NEW).expect_err("a mirror");
    assert!(matches!(error, AttachError::NoStripes { number: 1, kind: "mirror" }), "{error}");
    pool.devices().fail_member(1).expect("parity has what it has");
    let error = pool.devices().widen(0, blank(MEMBER_BYTES), NEW).expect_err("one is away");
    assert!(matches!(error, AttachError::Lacking { slot: 1, .. }), "{error}");
    pool.devices().replace_member(1, blank(MEMBER_BYTES), [79; 16]).expect("it fits");
    while states(&pool).contains(&MemberState::Joining) {
        pool.tick().expect("nothing fails");
    }
    pool.devices().widen(0, blank(MEMBER_BYTES), NEW).expect("all are there");
    let error = pool.devices().widen(0, blank(MEMBER_BYTES), [80; 16]).expect_err("one at a time");
    assert!(matches!(error, AttachError::Reshaped), "{error}");
    finish(&pool);
    // As they are made by default, segments are long enough.
    let wide = devices_of(vec![Image::blank(256 << 20); 8]);
    let options = PoolCreateOptions::new(256 << 20, [5; 64]);
    Pool::create_on(&shared(&wide), RAID5, &ManualClock::new(), &options).expect("it fits");
    let pool = open(&wide).expect("it was made");
    pool.devices().widen(0, blank(256 << 20), NEW).expect("eight and one");
    drop(pool);
    // Short segments have as many rows in one width as in the other.
    let small = devices_of(vec![Image::blank(10 << 20); 3]);
    let mut options = PoolCreateOptions::new(10 << 20, [5; 64]);
    options.geometry.journal_bytes = Some(1 << 20);
    Pool::create_on(&shared(&small), RAID5, &ManualClock::new(), &options).expect("it fits");
    let pool = open(&small).expect("it was made");
    let error = pool.devices().widen(0, blank(10 << 20), NEW).expect_err("nothing is gained");
    assert!(matches!(error, AttachError::NoGain { number: 0, .. }), "{error}");
}
