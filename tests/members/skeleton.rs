//! A mirror from end to end: made, opened, written, with a member lost and without it.

use engine::{Pool, PoolOpenError};
use format::members::{Layout, MemberState};
use runtime::clock::ManualClock;
use storage::device::sim::{Fault, FaultPlan, Image};
use storage::device::{RequestKind, SharedDevice};
use storage::members::MembersError;
use storage::pool::{PoolError, read_superblock};
use storage::volume::{Volume, VolumeDevices};

use super::{Devices, POOL_BYTES, devices_of, get, new_mirror, open, put, reopened};

fn members_error(error: PoolOpenError) -> MembersError {
    let PoolOpenError::Pool(PoolError::Members(error)) = error else { panic!("{error}") };
    error
}

fn fail_writes(devices: &Devices, at: usize) {
    let kind = RequestKind::Write;
    devices[at].arm(FaultPlan { faults: vec![Fault::Fail { kind, nth: 0, persists: true }] });
}

#[test]
fn a_mirror_is_written_loses_a_member_and_goes_on_with_the_other() {
    for count in [2, 3] {
        let devices = reopened(&new_mirror(count), &[0, 1, 2][..count]);
        let pool = open(&devices).expect("all are there");
        put(&pool, "before", b"written to all").expect("all take it");
        fail_writes(&devices, 0);
        put(&pool, "after", b"written to those that remain").expect("one is enough");
        assert_eq!(get(&pool, "before").as_deref(), Some(&b"written to all"[..]));
        pool.close().expect("the others take it");
        drop(pool);
        let others: Vec<usize> = (1..count).collect();
        let left = reopened(&devices, &others);
        let pool = open(&left).expect("a member is enough");
        assert_eq!(get(&pool, "after").as_deref(), Some(&b"written to those that remain"[..]));
        put(&pool, "later", b"degraded").expect("it takes writes");
        pool.close().expect("it can be written");
    }
}

/// Goal: a member that missed writes is not believed when it comes back, whoever saw it go: the
/// pool that lost it, or the open that did not find it.
#[test]
fn a_member_that_missed_writes_is_not_read_when_it_comes_back() {
    let devices = reopened(&new_mirror(2), &[0, 1]);
    open(&devices).expect("both").close().expect("both");
    let alone = reopened(&devices, &[1]);
    let pool = open(&alone).expect("one is enough");
    put(&pool, "new", b"only here").expect("it takes writes");
    pool.close().expect("it can be written");
    drop(pool);
    let both = devices_of(vec![devices[0].image(), alone[0].image()]);
    let pool = open(&both).expect("one has all");
    assert_eq!(get(&pool, "new").as_deref(), Some(&b"only here"[..]));
    let label = read_superblock(both[1].as_ref()).expect("a label").current;
    assert_eq!(label.members[0].state, MemberState::Missing);
    let before = both[0].counts();
    put(&pool, "newer", b"only here too").expect("it takes writes");
    assert_eq!(both[0].counts().request_count(), before.request_count());
    drop(pool);
    let old = reopened(&devices, &[0]);
    let pool = open(&old).expect("it cannot know");
    put(&pool, "other", b"another history").expect("it takes writes");
    pool.close().expect("it can be written");
    drop(pool);
    let both = devices_of(vec![old[0].image(), alone[0].image()]);
    let images = [both[0].image(), both[1].image()].map(|image| image.content_hash());
    let error = members_error(open(&both).expect_err("opened apart"));
    assert!(matches!(error, MembersError::Apart { .. }), "{error}");
    let after = [both[0].image(), both[1].image()].map(|image| image.content_hash());
    assert_eq!(images, after, "nothing was changed");
}

#[test]
fn fewer_than_half_of_the_members_are_refused_unless_the_user_says_so() {
    let devices = new_mirror(3);
    let alone = reopened(&devices, &[2]);
    let error = members_error(open(&alone).expect_err("one of three"));
    assert!(matches!(error, MembersError::TooFew { .. }), "{error}");
    let text = error.to_string();
    assert!(text.contains("/sim/d0") && text.contains("--accept-missing"), "{text}");
    open(&reopened(&devices, &[0, 2])).expect("two of three").close().expect("written");
    let device: SharedDevice = alone[0].clone();
    let opening = VolumeDevices { devices: vec![device], accepts_missing: true };
    Volume::open_members(opening).expect("the user has said so");
}

#[test]
fn what_cannot_be_a_mirror_is_refused_before_anything_is_written() {
    let sizes = [POOL_BYTES, POOL_BYTES - 4096];
    let devices = devices_of(sizes.map(Image::blank).to_vec());
    let create = |options: &engine::PoolCreateOptions, count: usize| {
        let devices = super::shared(&devices);
        engine::Pool::create_on(&devices[..count], Layout::Mirror, &ManualClock::new(), options)
            .expect_err("it is refused")
            .to_string()
    };
    let mut options = engine::PoolCreateOptions::new(POOL_BYTES, [1; 64]);
    let error = create(&options, 2);
    assert!(error.contains("/sim/d1"), "{error}");
    let error = create(&options, 1);
    assert!(error.contains("2 to 3"), "{error}");
    options.geometry.device_bytes = POOL_BYTES - 4096;
    options.geometry.fragment_bytes = 1024;
    let error = create(&options, 2);
    assert!(error.contains("4 KiB"), "{error}");
    assert_eq!(devices[0].counts().writes() + devices[1].counts().writes(), 0);
}

/// Goal: members of different sizes make a pool as large as the smallest.
#[test]
fn a_larger_member_is_used_as_far_as_the_smallest_goes() {
    let sizes = [POOL_BYTES, POOL_BYTES + (3 << 20)];
    let devices = devices_of(sizes.map(Image::blank).to_vec());
    let options = engine::PoolCreateOptions::new(POOL_BYTES, [1; 64]);
    let shared = super::shared(&devices);
    engine::Pool::create_on(&shared, Layout::Mirror, &ManualClock::new(), &options)
        .expect("a mirror fits");
    put(&open(&devices).expect("both"), "file", b"content").expect("both take it");
    let larger = reopened(&devices, &[1]);
    let pool = open(&larger).expect("it has its own labels at its own end");
    assert_eq!(get(&pool, "file").as_deref(), Some(&b"content"[..]));
}

/// Goal: a member that is not there is known by no path at which others are, as whoever opens the
/// pool says; one that is there keeps its own, and what the labels keep says so too.
#[test]
fn one_that_is_not_there_has_no_path_of_another() {
    let paths = |pool: &Pool| -> Vec<String> {
        let members = pool.devices().members().into_iter();
        members.map(|it| String::from_utf8_lossy(&it.member.path).into_owned()).collect()
    };
    let devices = reopened(&new_mirror(3), &[0, 1]);
    let pool = open(&devices).expect("two of three");
    assert_eq!(paths(&pool), ["/sim/d0", "/sim/d1", "/sim/d2"]);
    let others = ["/sim/d2", "/sim/d1", "/sim/d9"].map(|path| path.as_bytes().to_vec());
    pool.forget_paths(&others).expect("the labels are written");
    assert_eq!(paths(&pool), ["/sim/d0", "/sim/d1", ""]);
    let label = read_superblock(devices[0].as_ref()).expect("it has one").current;
    assert_eq!(label.members[2].path, b"");
}
