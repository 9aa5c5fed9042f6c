//! A raid5 or stripe has several members less, and more again, while the pool stays open.

use engine::Pool;
use format::members::{Layout, MemberState};
use runtime::prng::Prng;
use storage::device::sim::{Image, Recording};

use super::groups::{check_all, groups, labelled};
use super::narrow::{FILES, filled_as, without};
use super::reshape::{
    MEMBER_BYTES, RAID5, Versions, device, finish, scrub, states, verify, versions_of, write,
};
use super::{Devices, cut_at, devices_of, open, reopened};

const STRIPE: Layout = Layout::Stripe { unit_shift: 14 };

/// Takes the member in `slot` out, with writes meanwhile.
fn narrow(pool: &Pool, slot: usize, versions: &mut Versions, what: &str) {
    pool.devices().narrow(slot).unwrap_or_else(|error| panic!("{what}, slot {slot}: {error}"));
    for round in 1..2000 {
        if pool.devices().reshaping().is_none() && pool.devices().given_up().is_none() {
            break;
        }
        if round % 9 == 0 {
            let (name, version) = (round / 9 % FILES, 100 * slot + round);
            write(pool, name, version);
            versions.insert(name, version);
        }
        if round % 4 == 0 {
            verify(pool, versions, what);
        }
        pool.tick().expect("nothing fails");
    }
    finish(pool);
    verify(pool, versions, what);
}

/// Goal: members go one after the other in one opening, in front of the last that went or behind
/// it, and another comes then; all that was written is there at each moment and after an open, and
/// a raid5 can do without any of those that are left.
#[test]
fn members_go_one_after_the_other_and_another_comes() {
    let cases = [
        (RAID5, 5, [1, 3]),
        (RAID5, 5, [3, 1]),
        (RAID5, 5, [0, 4]),
        (STRIPE, 4, [0, 2]),
        (STRIPE, 4, [3, 1]),
    ];
    for (layout, width, out) in cases {
        let what = format!("{} of {width} without {out:?}", layout.word());
        let devices = filled_as(layout, width);
        let pool = open(&devices).expect("it was closed");
        pool.tick().expect("nothing fails");
        let mut versions = versions_of(FILES);
        for slot in out {
            narrow(&pool, slot, &mut versions, &what);
        }
        let left: Vec<usize> = (0..width).filter(|slot| !out.contains(slot)).collect();
        assert_eq!(groups(&pool)[0].slots, left.iter().copied().collect(), "{what}");
        scrub(&pool, &what);
        for name in 0..FILES {
            write(&pool, name, 7000 + name);
            versions.insert(name, 7000 + name);
        }
        let new = devices_of(vec![Image::blank(MEMBER_BYTES)]);
        let slot = pool.devices().widen(left[0], device(&new, 0), [78; 16]).expect("it fits");
        finish(&pool);
        verify(&pool, &versions, &what);
        scrub(&pool, &what);
        let online = states(&pool).iter().filter(|state| **state == MemberState::Online).count();
        assert_eq!(online, left.len() + 1, "{what}");
        // The one that came goes as any other.
        narrow(&pool, slot, &mut versions, &what);
        pool.close().expect("nothing fails");
        drop(pool);
        let rest = reopened(&devices, &left);
        check_all(&rest, &what);
        let pool = open(&rest).unwrap_or_else(|error| panic!("{what}: {error}"));
        verify(&pool, &versions, &what);
        scrub(&pool, &what);
        drop(pool);
        let losable = if layout == RAID5 { left.len() } else { 0 };
        for lost in 0..losable {
            let what = format!("{what} and without {lost}");
            let rest = without(&reopened(&devices, &left), lost);
            let pool = open(&rest).unwrap_or_else(|error| panic!("{what}: {error}"));
            verify(&pool, &versions, &what);
        }
    }
}

/// Goal: a cut at any moment of a second removal in one opening loses nothing, and it goes on.
#[test]
fn a_cut_while_a_second_member_goes_loses_nothing() {
    let devices = filled_as(RAID5, 5);
    let pool = open(&devices).expect("it was closed");
    pool.tick().expect("nothing fails");
    let mut versions = versions_of(FILES);
    narrow(&pool, 1, &mut versions, "the first");
    let begun = devices[0].time();
    pool.devices().narrow(3).expect("there is room");
    let mut rounds = 0;
    while pool.devices().reshaping().is_some() || pool.devices().given_up().is_some() {
        pool.tick().expect("nothing fails");
        rounds += 1;
        assert!(rounds < 3000, "it does not end");
    }
    let ended = devices[0].time();
    drop(pool);
    let recordings: Vec<Recording> = devices.iter().map(|device| device.recording()).collect();
    let mut prng = Prng::from_seed(5);
    let (mut seen, mut under_way) = (0, 0);
    let step = usize::try_from((ended - begun) / 60).expect("small").max(1);
    for time in (begun..ended).step_by(step).chain(ended - 12..=ended) {
        let what = format!("cut at {time} of {begun} to {ended}");
        let images: Vec<Image> = cut_at(&recordings, time, false, &mut prng);
        let found: Devices = labelled(&devices_of(images));
        let pool = open(&found).unwrap_or_else(|error| panic!("{what}: {error}"));
        verify(&pool, &versions, &what);
        under_way += usize::from(pool.devices().reshaping().is_some());
        finish(&pool);
        verify(&pool, &versions, &what);
        scrub(&pool, &what);
        pool.close().unwrap_or_else(|error| panic!("{what}: {error}"));
        check_all(&labelled(&found), &what);
        seen += 1;
    }
    println!("{seen} cuts, {under_way} in the middle");
    assert!(under_way > 20, "{under_way} of {seen}");
}
