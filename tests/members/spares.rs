//! Spares: a device that waits takes the place of a member that fails or is missing, by itself, and
//! whatever is cut off meanwhile.

use std::sync::Arc;

use engine::Pool;
use engine::api::FsError;
use format::members::MemberState;
use format::superblock::Superblock;
use runtime::prng::Prng;
use storage::device::sim::{Fault, FaultPlan, Image, SimDevice};
use storage::device::{DeviceError, IoPurpose, RequestKind, SharedDevice};
use storage::members::{LabelledDevice, MembersError, judge};
use storage::pool::{read_superblock, write_superblock_copy};
use storage::volume::{ReplaceError, ReturnError, SpareError};

use super::raid5::{MEMBER_BYTES, all_but, content, new_raid5};
use super::rebuild::{begin, finish, states};
use super::{Devices, POOL_BYTES, devices_of, get, new_mirror, open, put, reopened};

const SPARE: [u8; 16] = [81; 16];
const OTHER: [u8; 16] = [82; 16];
/// Length of a file: some segments of a small pool.
const FILE_BYTES: usize = 150_000;

fn name_of(number: u8) -> String {
    format!("f{number}")
}

fn write(pool: &Pool, number: u8) {
    put(pool, &name_of(number), &content(number, FILE_BYTES)).expect("there is room");
}

fn verify(pool: &Pool, numbers: std::ops::Range<u8>, what: &str) {
    for number in numbers {
        let found = get(pool, &name_of(number));
        assert!(found == Some(content(number, FILE_BYTES)), "{what}: file {number} is another");
    }
}

/// The members of a new pool, and behind them blank devices.
fn with_blank(members: &Devices, sizes: &[u64]) -> Devices {
    let images = members.iter().map(|device| device.image());
    devices_of(images.chain(sizes.iter().map(|size| Image::blank(*size))).collect())
}

fn add(pool: &Pool, device: &Arc<SimDevice>, id: [u8; 16]) -> Result<(), SpareError> {
    let device: SharedDevice = Arc::<SimDevice>::clone(device);
    pool.devices().add_spare(device, id)
}

fn listed(pool: &Pool) -> Vec<([u8; 16], bool)> {
    pool.devices().spares().into_iter().map(|status| (status.spare.id, status.is_there)).collect()
}

fn break_writes(device: &SimDevice, nth: u64) {
    let faults = vec![Fault::Fail { kind: RequestKind::Write, nth, persists: true }];
    device.arm(FaultPlan { faults });
}

fn label_of(device: &SimDevice) -> Option<Superblock> {
    read_superblock(device).ok().map(|read| read.current)
}

/// Returns those of `devices` that the newest label of a member knows, as whoever looks for the
/// devices of a pool does.
fn known(devices: &Devices) -> Devices {
    let labels: Vec<Option<Superblock>> = devices.iter().map(|device| label_of(device)).collect();
    let age = |label: &&Superblock| (label.membership().number, label.sequence);
    let of_members = labels.iter().flatten().filter(|label| !label.is_of_spare());
    let newest = of_members.max_by_key(age).expect("a member has a label");
    let members = newest.members.iter().map(|member| member.id);
    let ids: Vec<[u8; 16]> = members.chain(newest.spares.iter().map(|spare| spare.id)).collect();
    let is_known = |label: &Option<Superblock>| {
        label.as_ref().is_some_and(|label| ids.contains(&label.device_id()))
    };
    let both = devices.iter().zip(&labels).filter(|(_, label)| is_known(label));
    both.map(|(device, _)| Arc::clone(device)).collect()
}

/// Goal: a spare takes the place of a member that fails, by itself, and has everything then, in
/// each layout.
#[test]
fn a_spare_takes_the_place_of_a_member_that_fails() {
    for (count, base) in [(2, new_mirror(2)), (3, new_mirror(3)), (4, new_raid5(4))] {
        let devices = with_blank(&base, &[POOL_BYTES]);
        let pool = open(&devices[..count]).expect("it is new");
        write(&pool, 1);
        add(&pool, &devices[count], SPARE).expect("it is blank");
        pool.tick().expect("nothing fails");
        assert_eq!(listed(&pool), [(SPARE, true)], "nobody is away");
        break_writes(&devices[1], 0);
        write(&pool, 2);
        assert_eq!(states(&pool)[1], MemberState::Failed);
        pool.tick().expect("a spare is taken");
        assert!(listed(&pool).is_empty());
        write(&pool, 3);
        finish(&pool);
        assert_eq!(states(&pool), vec![MemberState::Online; count]);
        assert_eq!(pool.devices().members()[1].member.id, SPARE);
        pool.close().expect("nothing fails");
        drop(pool);
        let new: Vec<usize> = (0..=count).filter(|at| *at != 1).collect();
        let new = reopened(&devices, &new);
        for lost in 0..count - 1 {
            let left = reopened(&new, &all_but(count, lost));
            let pool = open(&left).expect("one may be lost");
            verify(&pool, 1..4, &format!("{count} members, without {lost}"));
        }
    }
}

/// Goal: a pool knows its spares when it is opened again, whichever device is named first, and one
/// takes the place of a member that is missing.
#[test]
fn a_spare_takes_the_place_of_a_member_that_is_missing_at_an_open() {
    let devices = with_blank(&new_raid5(3), &[MEMBER_BYTES]);
    let pool = open(&devices[..3]).expect("it is new");
    add(&pool, &devices[3], SPARE).expect("it is blank");
    write(&pool, 1);
    pool.close().expect("nothing fails");
    drop(pool);
    let away = reopened(&devices, &[0, 1, 2]);
    let pool = open(&away).expect("all members are there");
    assert_eq!(listed(&pool), [(SPARE, false)], "it is listed, and not there");
    pool.close().expect("nothing fails");
    drop(pool);
    // The spare first: its label is older than those of the members.
    let images = [devices[3].image(), away[2].image(), away[0].image()];
    let devices = devices_of(images.to_vec());
    let pool = open(&devices).expect("two of three");
    assert_eq!(states(&pool)[1], MemberState::Missing);
    finish(&pool);
    assert_eq!(states(&pool), [MemberState::Online; 3]);
    verify(&pool, 1..2, "on the spare");
    drop(pool);
    let pool = open(&reopened(&devices, &[0, 2])).expect("two of three");
    verify(&pool, 1..2, "the spare and one other");
}

/// Goal: the smallest that fits is taken, and where it fails the next.
#[test]
fn the_smallest_spare_is_taken_and_after_it_the_next() {
    let sizes = [4 * POOL_BYTES, 2 * POOL_BYTES, 3 * POOL_BYTES];
    let devices = with_blank(&new_mirror(2), &sizes);
    let pool = open(&devices[..2]).expect("it is new");
    for (at, id) in [(2, 1), (3, 2), (4, 3)] {
        add(&pool, &devices[at], [id; 16]).expect("it is blank");
    }
    pool.devices().fail_member(0).expect("the other has all");
    pool.tick().expect("nothing fails");
    assert_eq!(pool.devices().members()[0].member.id, [2; 16]);
    assert_eq!(listed(&pool), [([1; 16], true), ([3; 16], true)]);
    pool.devices().fail_member(0).expect("it is joining");
    // This one dies at once.
    break_writes(&devices[4], 0);
    write(&pool, 1);
    for _ in 0..3 {
        pool.tick().expect("nothing fails");
    }
    finish(&pool);
    assert_eq!(pool.devices().members()[0].member.id, [1; 16]);
    assert_eq!(states(&pool), [MemberState::Online; 2]);
    assert!(listed(&pool).is_empty());
    verify(&pool, 1..2, "after two spares");
}

/// Goal: what is of no use as a spare is refused before anything changes, and a removed one is of
/// no pool.
#[test]
fn what_cannot_be_a_spare_is_refused_and_a_removed_one_is_blank() {
    let sizes = [vec![POOL_BYTES - 4096], vec![POOL_BYTES; 9]].concat();
    let devices = with_blank(&new_mirror(2), &sizes);
    let pool = open(&devices[..2]).expect("it is new");
    let small = add(&pool, &devices[2], SPARE).expect_err("it is too small");
    assert!(matches!(small, SpareError::Unfit(ReplaceError::TooSmall { .. })), "{small}");
    for id in 0..8 {
        add(&pool, &devices[3 + usize::from(id)], [id + 20; 16]).expect("there is room");
    }
    let ninth = add(&pool, &devices[11], SPARE).expect_err("there are eight");
    assert!(matches!(ninth, SpareError::TooMany), "{ninth}");
    assert!(label_of(&devices[11]).is_none(), "nothing was written to it");
    assert!(matches!(pool.devices().remove_spare(SPARE), Err(SpareError::NotListed)));
    pool.devices().remove_spare([25; 16]).expect("it is listed");
    assert!(label_of(&devices[8]).is_none(), "its label is gone");
    assert_eq!(listed(&pool).len(), 7);
    add(&pool, &devices[11], SPARE).expect("there is room again");
    pool.close().expect("nothing fails");
    drop(pool);
    let alone = label_of(&devices[3]).expect("it has a label");
    let settled = alone.sequence;
    let found = LabelledDevice { name: "s".to_owned(), label: alone, settled, before: None };
    assert!(matches!(judge(&[found]), Err(MembersError::OnlySpares { .. })));
    let single = devices_of(vec![Image::blank(POOL_BYTES)]);
    let one: SharedDevice = single[0].clone();
    let create = engine::PoolCreateOptions::new(POOL_BYTES, [4; 64]);
    let clock = Arc::new(runtime::clock::ManualClock::new());
    Pool::create(&one, clock.as_ref(), &create).expect("a pool fits");
    let pool = Pool::open(one, clock, engine::PoolOpenOptions::default()).expect("just made");
    let refused = add(&pool, &devices[9], [9; 16]);
    assert!(matches!(refused, Err(SpareError::Unfit(ReplaceError::NotSeveral))));
}

/// Goal: of two members that are away, in two disk groups, the one gets the spare that it fits,
/// though another comes first that it does not fit; and one that fits a smaller disk group alone
/// may be a spare. Who asks for what is refused writes nothing.
#[test]
fn a_spare_stands_for_whichever_member_it_fits() {
    let small = 8 << 20;
    let devices = with_blank(&new_mirror(2), &[small, small, small]);
    let pool = open(&devices[..2]).expect("it is new");
    let group = super::groups::group_of(&devices, format::members::Layout::Mirror, &[2, 3]);
    pool.devices().add_disk_group(&group).expect("it fits");
    add(&pool, &devices[4], SPARE).expect("it fits the second disk group");
    pool.devices().fail_member(0).expect("the other has all");
    let written = devices[1].time();
    pool.tick().expect("nothing fails");
    let too_small: SharedDevice = Arc::<SimDevice>::clone(&devices[4]);
    pool.devices().replace_member(1, too_small, [1; 16]).expect_err("it is too small");
    let labels = |device: &SimDevice| device.counts().of_purpose(IoPurpose::Superblock);
    let before = labels(&devices[1]);
    let other: SharedDevice = Arc::<SimDevice>::clone(&devices[4]);
    pool.devices().replace_member(9, other, [1; 16]).expect_err("there is no such slot");
    pool.tick().expect("nothing fails");
    assert_eq!(labels(&devices[1]), before, "a refusal writes labels");
    assert!(devices[1].time() >= written);
    assert_eq!(listed(&pool), [(SPARE, true)], "it is too small for slot 0");
    pool.devices().fail_member(3).expect("the other has all");
    pool.tick().expect("a spare is taken");
    assert!(listed(&pool).is_empty(), "it was not taken for slot 3");
    finish(&pool);
    assert_eq!(pool.devices().members()[3].member.id, SPARE);
    assert_eq!(states(&pool)[0], MemberState::Failed);
}

/// Goal: where no member can be done without a spare is of no use.
#[test]
fn a_pool_of_singles_takes_no_spare() {
    let devices = super::groups::new_pool(format::members::Layout::Single, 1, 2, POOL_BYTES);
    let pool = open(&devices[..1]).expect("it was closed");
    let group = super::groups::group_of(&devices, format::members::Layout::Single, &[1]);
    pool.devices().add_disk_group(&group).expect("it fits");
    let refused = add(&pool, &devices[2], SPARE);
    assert!(matches!(refused, Err(SpareError::NoUse)), "{refused:?}");
}

/// Goal: a label whose numbers have come to their end is refused in words.
#[test]
fn labels_that_cannot_rise_are_refused() {
    let end = format::ids::SEQUENCE_MAX;
    for field in ["sequence", "mount_count", "writer_term", "memberships"] {
        let devices = reopened(&new_mirror(2), &[0, 1]);
        for device in &devices {
            let mut label = label_of(device).expect("it has one");
            match field {
                "sequence" => label.sequence = end,
                "mount_count" => label.mount_count = end,
                "writer_term" => label.writer_term = u32::MAX - 1,
                _ => label.memberships.last_mut().expect("one").number = end - 1,
            }
            for copy in 0..4 {
                write_superblock_copy(device.as_ref(), &label, copy).expect("it is written");
            }
        }
        let error = open(&devices).expect_err(field).to_string();
        assert!(error.contains(field) && error.contains("/sim/d"), "{error}");
    }
}

/// Goal: who replaces a member by hand, and a spare that is busy elsewhere, are not mixed up.
#[test]
fn a_replacement_by_hand_leaves_spares_alone() {
    let devices = with_blank(&new_mirror(2), &[POOL_BYTES, POOL_BYTES]);
    let pool = open(&devices[..2]).expect("it is new");
    add(&pool, &devices[2], SPARE).expect("it is blank");
    pool.tick().expect("nothing fails");
    begin(&pool, 1, &devices[3]);
    pool.tick().expect("nothing fails");
    assert_eq!(listed(&pool), [(SPARE, true)]);
    finish(&pool);
    assert_eq!(listed(&pool), [(SPARE, true)]);
    assert_eq!(states(&pool), [MemberState::Online; 2]);
}

/// What a cut left, opened as it would be: what was acknowledged is there, a spare that is listed
/// has a label, and where one is needed and there it takes the place.
fn survive(images: &[Image], acknowledged: u8, is_added: bool, what: &str) -> bool {
    let all = devices_of(images.to_vec());
    let devices = known(&all);
    let pool = open(&devices).unwrap_or_else(|error| panic!("{what}: {error}"));
    let spares = listed(&pool);
    assert!(spares.iter().all(|(_, is_there)| *is_there), "{what}: a spare has no label (HS1)");
    let is_member = pool.devices().members().iter().any(|member| member.member.id == SPARE);
    assert!(!is_added || is_member || spares.len() == 1, "{what}: the spare is forgotten");
    assert!(!is_member || spares.is_empty(), "{what}: a member, and a spare too (HS2)");
    let was_away = states(&pool).iter().any(|state| *state != MemberState::Online);
    finish_if_any(&pool);
    if is_added {
        assert_eq!(states(&pool), vec![MemberState::Online; states(&pool).len()], "{what}");
    }
    verify(&pool, 1..acknowledged + 1, what);
    pool.close().unwrap_or_else(|error| panic!("{what}: {error}"));
    was_away && is_added
}

fn finish_if_any(pool: &Pool) {
    pool.tick().expect("nothing fails");
    finish(pool);
}

/// Goal: a cut at any event of an addition, of a failure and of the taking that follows leaves a
/// pool that has all, and whose spare is one, or a member, or neither before it was added.
#[test]
fn a_cut_at_any_moment_leaves_a_spare_or_a_member() {
    let (mut judged, mut taken) = (0, 0);
    for (count, base) in [(2, new_mirror(2)), (3, new_raid5(3))] {
        let devices = with_blank(&base, &[POOL_BYTES]);
        let pool = open(&devices[..count]).expect("it is new");
        let mut acknowledged = Vec::new();
        let now = || devices[0].time();
        write(&pool, 1);
        acknowledged.push(now());
        let begun = now();
        add(&pool, &devices[count], SPARE).expect("it is blank");
        let added = now();
        write(&pool, 2);
        acknowledged.push(now());
        pool.devices().fail_member(1).expect("the others have all");
        let failed = now();
        pool.tick().expect("nothing fails");
        let (end_of_taking, mut number) = (now(), 2);
        while states(&pool).contains(&MemberState::Joining) && number < 6 {
            number += 1;
            write(&pool, number);
            acknowledged.push(now());
            pool.tick().expect("nothing fails");
        }
        finish(&pool);
        drop(pool);
        let recordings: Vec<_> = devices.iter().map(|device| device.recording()).collect();
        let mut prng = Prng::from_seed(3);
        let near = begun..=added + 2;
        let later = failed.saturating_sub(2)..=end_of_taking.max(failed + 20);
        let rest = (end_of_taking..=devices[0].time()).step_by(23);
        for time in near.chain(later).chain(rest) {
            for state in 0..3 {
                let image = |at: usize, prng: &mut Prng| match state {
                    0 => recordings[at].point_at(time).durable().clone(),
                    _ => recordings[at].point_at(time).image(prng).image,
                };
                let images: Vec<Image> = (0..=count).map(|at| image(at, &mut prng)).collect();
                let last = acknowledged.iter().filter(|at| **at <= time).count();
                let last = u8::try_from(last).expect("few");
                let what = format!("{count} members, cut at {time}, state {state}");
                taken += u32::from(survive(&images, last, time >= added, &what));
                judged += 1;
                if state == 1 && (time >= added) {
                    // The member that is about to fail is away too.
                    let left: Vec<Image> =
                        (0..=count).filter(|at| *at != 1).map(|at| images[at].clone()).collect();
                    let what = format!("{what}, without the second");
                    taken += u32::from(survive(&left, last, true, &what));
                    judged += 1;
                }
            }
        }
    }
    println!("{judged} states, in {taken} the spare was needed");
    assert!(judged > 300 && taken > 100, "{judged} {taken}");
}

/// Goal: whoever asks for a change of members that the labels cannot tell of gets an error, and
/// nothing is acknowledged from then on. Method: the last member fails while its label is written,
/// and is well again afterwards.
#[test]
fn a_change_that_no_label_tells_of_stops_the_pool() {
    type Ask = fn(&Pool, &Devices) -> Option<DeviceError>;
    let asks: [(&str, Ask); 5] = [
        ("a spare", |pool, devices| match add(pool, &devices[4], OTHER) {
            Err(SpareError::Device(error)) => Some(error),
            Err(_) | Ok(()) => None,
        }),
        ("no spare", |pool, _| match pool.devices().remove_spare(SPARE) {
            Err(SpareError::Device(error)) => Some(error),
            Err(_) | Ok(()) => None,
        }),
        ("a replacement", |pool, devices| {
            let device: SharedDevice = Arc::<SimDevice>::clone(&devices[4]);
            match pool.devices().replace_member(1, device, OTHER) {
                Err(ReplaceError::Device(error)) => Some(error),
                Err(_) | Ok(()) => None,
            }
        }),
        ("a return", |pool, _| match pool.devices().return_member_in(1) {
            Err(ReturnError::Device(error)) => Some(error),
            Err(_) | Ok(()) => None,
        }),
        ("a failure", |pool, _| match pool.devices().fail_member(1) {
            Err(ReplaceError::Device(error)) => Some(error),
            Err(_) | Ok(()) => None,
        }),
    ];
    for (what, ask) in asks {
        let devices = with_blank(&new_mirror(3), &[POOL_BYTES, POOL_BYTES]);
        let pool = open(&devices[..3]).expect("it is new");
        write(&pool, 1);
        add(&pool, &devices[3], SPARE).expect("it is blank");
        pool.devices().fail_member(2).expect("two are left");
        if what != "a failure" {
            pool.devices().fail_member(1).expect("one is left");
        }
        break_writes(&devices[0], 0);
        let error = ask(&pool, &devices).unwrap_or_else(|| panic!("{what}: no error"));
        assert!(error.to_string().contains("/sim/d0"), "{what}: {error}");
        devices[0].arm(FaultPlan { faults: Vec::new() });
        assert!(pool.status().read_only.is_some(), "{what}: it goes on");
        let refused = super::put(&pool, "new", b"new").expect_err("nothing is acknowledged");
        assert!(matches!(refused, FsError::ReadOnly { .. }), "{what}: {refused}");
    }
}

/// Goal: a device that fails is told with why, and with the spare that took its place, also when
/// that has all and the pool is whole again; until an administrator clears it.
#[test]
fn a_device_that_failed_is_told_after_a_spare_has_its_place() {
    let devices = with_blank(&new_raid5(4), &[MEMBER_BYTES]);
    let pool = open(&devices[..4]).expect("all are there");
    add(&pool, &devices[4], SPARE).expect("it fits");
    assert_eq!(pool.status().failures, []);
    break_writes(&devices[1], 0);
    write(&pool, 1);
    pool.checkpoint().expect("the others take it");
    for _ in 0..200 {
        pool.tick().expect("nothing fails");
    }
    assert_eq!(states(&pool), [MemberState::Online; 4]);
    let failures = pool.status().failures;
    let [failure] = &failures[..] else { panic!("{failures:?}") };
    assert_eq!((failure.slot, &*failure.device), (1, "/sim/d1"));
    assert_eq!(failure.replaced_by.as_deref(), Some("/sim/d4"));
    assert!(failure.cause.contains("/sim/d1"), "{failure:?}");
    pool.devices().clear_errors(Some(1));
    assert_eq!(pool.status().failures, []);
}
