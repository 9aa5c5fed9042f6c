//! The journal of a pool in use moves to devices of its own and back, and what a power cut leaves.

use engine::DiskGroupError;
use format::disk_group::DiskGroupRoles;
use format::geometry::POOL_BYTES_MIN;
use format::members::Layout;
use format::stripes::UNIT_SHIFT_DEFAULT;
use runtime::prng::Prng;
use storage::device::sim::{Fault, FaultPlan, Image, SimDevice, SimOptions};
use storage::device::{IoPurpose, RequestKind};
use storage::volume::{AddGroupError, DiskGroupSpec};

use super::groups::{check_all, content, goes_on, group_of, groups, labelled, new_pool};
use super::{Devices, POOL_BYTES, cut_at, devices_of, get, open, put};

const RAID5: Layout = Layout::Raid5 { unit_shift: UNIT_SHIFT_DEFAULT };

fn for_journal(devices: &Devices, layout: Layout, which: &[usize]) -> DiskGroupSpec {
    DiskGroupSpec { roles: DiskGroupRoles::JOURNAL, ..group_of(devices, layout, which) }
}

/// Goal: a cut at any moment while the journal moves to devices of its own, or back, leaves it in
/// one place with all that was acknowledged; the pool goes on, and a check finds nothing. Method: a
/// cut at each event of both moves, in several states, and at some of the writes before, between
/// and behind them; the devices to come have had an earlier use.
#[test]
fn a_cut_while_the_journal_moves_loses_nothing() {
    let cases = [
        (Layout::Single, 1, Layout::Single, 1),
        (Layout::Mirror, 2, Layout::Mirror, 2),
        (RAID5, 3, Layout::Mirror, 2),
    ];
    let mut states = [0; 2];
    for (first, width, layout, more) in cases {
        let devices = new_pool(first, width, more, POOL_BYTES);
        let pool = open(&devices[..width]).expect("it was closed");
        let now = || devices.iter().map(|device| device.time()).max().expect("there are devices");
        let mut acknowledged = Vec::new();
        let write = |names: std::ops::Range<usize>, acknowledged: &mut Vec<(u64, usize)>| {
            for name in names {
                put(&pool, &format!("f{name}"), &content(name, 1, 50_000)).expect("it fits");
                acknowledged.push((now(), name));
            }
        };
        write(0..3, &mut acknowledged);
        let begun = now();
        let which: Vec<usize> = (width..width + more).collect();
        let number =
            pool.devices().add_disk_group(&for_journal(&devices, layout, &which)).expect("it fits");
        let is_there = now();
        write(3..6, &mut acknowledged);
        let leaves = now();
        pool.devices().remove_disk_group(number).expect("the first has room for it");
        let is_back = now();
        assert_eq!(groups(&pool).len(), 1);
        write(6..9, &mut acknowledged);
        let end = now();
        drop(pool);
        let recordings: Vec<_> = devices.iter().map(|device| device.recording()).collect();
        let mut prng = Prng::from_seed(12);
        for time in begun..=end {
            let is_moving = time <= is_there || (leaves..=is_back).contains(&time);
            let tries = if is_moving { 4 } else { u64::from(time.is_multiple_of(5)) };
            for state in 0..tries {
                let images = cut_at(&recordings, time, state == 0, &mut prng);
                let what = format!("{}: cut at {time} of {begun} to {end}, {state}", first.word());
                let left = labelled(&devices_of(images));
                let pool = open(&left).unwrap_or_else(|error| panic!("{what}: {error}"));
                let found = groups(&pool);
                let is_apart = found.iter().any(|it| it.has_journal && !it.has_metadata);
                assert_eq!(is_apart, found.len() == 2, "{what}: {found:?}");
                assert!(is_apart || !(is_there..leaves).contains(&time), "{what}");
                assert!(!is_apart || time < is_back, "{what}");
                states[usize::from(is_apart)] += 1;
                for (_, name) in acknowledged.iter().filter(|(at, _)| *at <= time) {
                    let found = get(&pool, &format!("f{name}"));
                    assert!(found == Some(content(*name, 1, 50_000)), "{what}: file {name}");
                }
                put(&pool, "after", &content(9, 9, 90_000)).expect("it goes on");
                goes_on(pool, &left, &content(9, 9, 90_000), &what);
            }
        }
    }
    println!("{states:?} states with the journal on the first disk group, and apart");
    assert!(states.iter().all(|count| *count > 50), "{states:?}");
}

/// Goal: the journal is where the labels say, and a pool goes on after a crash in both places. What
/// cannot have it is refused in words, and nothing is written there. Method: writes by purpose.
#[test]
fn the_journal_moves_there_and_back() {
    let mut devices = new_pool(Layout::Mirror, 2, 3, POOL_BYTES);
    devices.extend(devices_of(vec![Image::blank(1 << 20)]));
    let pool = open(&devices[..2]).expect("it was closed");
    let journal = |at: usize| devices[at].counts().of(IoPurpose::Journal, RequestKind::Write).bytes;
    let refused = |layout, which: &[usize]| {
        let error =
            pool.devices().add_disk_group(&for_journal(&devices, layout, which)).expect_err("no");
        let written: u64 = which.iter().map(|at| devices[*at].counts().writes()).sum();
        assert_eq!(written, 0, "{error}");
        error
    };
    let error = refused(RAID5, &[2, 3, 4]).to_string();
    assert!(error.contains("the journal cannot lie on a raid5"), "{error}");
    let error = refused(Layout::Single, &[5]).to_string();
    assert!(error.contains("give a larger one"), "{error}");

    put(&pool, "before", &content(1, 1, 50_000)).expect("there is room");
    let group = for_journal(&devices, Layout::Mirror, &[2, 3]);
    let number = pool.devices().add_disk_group(&group).expect("it fits");
    let error = refused(Layout::Single, &[4]);
    let is_second = matches!(&error, DiskGroupError::Add(AddGroupError::Journal { number: 1 }));
    assert!(is_second, "{error}");
    let before: Vec<u64> = (0..4).map(journal).collect();
    put(&pool, "there", &content(2, 1, 50_000)).expect("there is room");
    let after: Vec<u64> = (0..4).map(journal).collect();
    assert_eq!(before[..2], after[..2], "the first has none of it any more");
    assert!(after[2] > before[2] && after[3] > before[3], "{before:?}, {after:?}");

    pool.devices().remove_disk_group(number).expect("the first has room for it");
    let moved: Vec<u64> = (2..4).map(journal).collect();
    put(&pool, "back", &content(3, 1, 50_000)).expect("there is room");
    assert_eq!((2..4).map(journal).collect::<Vec<_>>(), moved, "nothing goes there any more");
    // CRASH: the log is on the first disk group alone.
    drop(pool);
    let left = devices_of(devices[..2].iter().map(|device| device.image()).collect());
    check_all(&left, "back");
    let pool = open(&left).expect("it has its journal");
    for (name, nth) in [("before", 1), ("there", 2), ("back", 3)] {
        assert!(get(&pool, name) == Some(content(nth, 1, 50_000)), "{name}");
    }
}

/// Goal: a device that is taken for the journal is one that an open takes, in size and
/// sectors.
/// Method: sizes around what is needed; of a mirror the longer device has the longer sectors.
#[test]
fn what_is_taken_for_the_journal_is_opened_again() {
    let least = POOL_BYTES_MIN;
    for (bytes, fits) in [(least - 4096, false), (least, true), (least + 4096, true)] {
        let devices = new_pool(Layout::Single, 1, 1, bytes);
        let pool = open(&devices[..1]).expect("it was closed");
        let added = pool.devices().add_disk_group(&for_journal(&devices, Layout::Single, &[1]));
        assert_eq!(added.is_ok(), fits, "{bytes}: {added:?}");
        put(&pool, "f", &content(1, 1, 50_000)).expect("there is room");
        pool.close().expect("nothing fails");
        drop(pool);
        let pool = open(&devices[..if fits { 2 } else { 1 }]).expect("it was closed");
        assert!(get(&pool, "f") == Some(content(1, 1, 50_000)), "{bytes}");
    }
    let mut devices = new_pool(Layout::Mirror, 2, 1, POOL_BYTES);
    let options = SimOptions { sector_bytes: 4096, ..SimOptions::default() };
    devices.push(SimDevice::new(2 * POOL_BYTES, options));
    let pool = open(&devices[..2]).expect("it was closed");
    let group = for_journal(&devices, Layout::Mirror, &[2, 3]);
    let error = pool.devices().add_disk_group(&group).expect_err("the log ends at sectors of 512");
    assert!(error.to_string().contains("in sectors of 512"), "{error}");
    assert_eq!(devices[2].counts().writes() + devices[3].counts().writes(), 0);
    put(&pool, "f", &content(1, 1, 50_000)).expect("it goes on");
}

/// Goal: what cannot be read of the journal leaves it where it is, and the pool goes on; what lies
/// behind its end need not be read.
#[test]
fn a_journal_that_cannot_be_read_stays() {
    let devices = new_pool(Layout::Single, 1, 1, POOL_BYTES);
    let pool = open(&devices[..1]).expect("it was closed");
    let group = for_journal(&devices, Layout::Single, &[1]);
    let number = pool.devices().add_disk_group(&group).expect("it fits");
    put(&pool, "f", &content(1, 1, 50_000)).expect("there is room");
    let journal_offset = pool.status().geometry.journal_offset;
    let bad = |offset| FaultPlan::none().with(Fault::BadSector { offset });
    devices[1].arm(bad(journal_offset));
    let error = pool.devices().remove_disk_group(number).expect_err("a head cannot be read");
    assert!(error.to_string().contains("the journal is where it was"), "{error}");
    put(&pool, "g", &content(2, 1, 50_000)).expect("it goes on");
    // Some of them behind the end, and none in the few pages before it.
    let far = (1..16).map(|nth| Fault::BadSector { offset: journal_offset + nth * (64 << 10) });
    devices[1].arm(far.fold(FaultPlan::none(), FaultPlan::with));
    pool.devices().remove_disk_group(number).expect("nobody needs it");
    put(&pool, "h", &content(3, 1, 50_000)).expect("it goes on");
    pool.close().expect("nothing fails");
    drop(pool);
    check_all(&devices_of(vec![devices[0].image()]), "back");
}
