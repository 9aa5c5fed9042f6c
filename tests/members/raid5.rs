//! A pool in stripes from end to end: made, opened, written, with any one member lost and without
//! it.

use std::sync::Arc;

use engine::api::{Caller, FileSystem};
use engine::{Pool, PoolCreateOptions};
use format::members::{Layout, MemberState};
use runtime::clock::ManualClock;
use storage::device::sim::{Fault, FaultPlan, Image};
use storage::device::{AlignedBuffer, IoPurpose, RequestKind, SharedBytes};
use storage::pool::read_superblock;
use storage::volume::{Volume, VolumeDevices};

use super::{Devices, devices_of, get, open, put, reopened, shared};

/// Bytes of a member: as few as make a pool of three.
pub(crate) const MEMBER_BYTES: u64 = 8 << 20;
/// The stripe unit in these pools: small, so that few bytes are many rows.
pub(crate) const LAYOUT: Layout = Layout::Raid5 { unit_shift: 13 };

pub(crate) fn new_raid5(count: usize) -> Devices {
    let devices = devices_of(vec![Image::blank(MEMBER_BYTES); count]);
    let mut options = PoolCreateOptions::new(MEMBER_BYTES, [6; 64]);
    options.geometry.journal_bytes = Some(1 << 20);
    Pool::create_on(&shared(&devices), LAYOUT, &ManualClock::new(), &options)
        .expect("a pool in stripes fits");
    devices
}

pub(crate) fn all_but(count: usize, lost: usize) -> Vec<usize> {
    (0..count).filter(|at| *at != lost).collect()
}

/// Bytes that tell where they are and in which version.
pub(crate) fn content(version: u8, length: usize) -> Vec<u8> {
    (0..length).map(|at| u8::try_from(at / 97 % 251).expect("small") ^ version).collect()
}

/// Goal: a check finds nothing wrong with a block that has rotted on one member, for the others
/// give it. Method: a byte of a block, wherever it lies.
#[test]
fn a_block_that_parity_gives_is_no_defect() {
    let devices = new_raid5(4);
    let pool = open(&devices).expect("all are there");
    put(&pool, "file", &content(1, 300_000)).expect("there is room");
    pool.close().expect("they take it");
    drop(pool);
    let mut rotten = 0;
    for (at, start) in (0..4).flat_map(|at| (0..12).map(move |part| (at, part * 24_000))) {
        let bytes = content(1, 300_000);
        let wanted = &bytes[start..start + 2000];
        let image = devices[at].image();
        let mut found = None;
        image.for_each_page(|offset, page| {
            let at = page.windows(wanted.len()).position(|window| window == wanted);
            if let Some(at) = at {
                found.get_or_insert(offset + u64::try_from(at).expect("small"));
            }
        });
        let Some(found) = found else { continue };
        let mut images: Vec<Image> = devices.iter().map(|device| device.image()).collect();
        images[at].flip(found + 100, 0x20);
        super::groups::check_all(&devices_of(images), &format!("{start} on {at}"));
        rotten += 1;
    }
    assert!(rotten > 6, "{rotten}");
}

#[test]
fn everything_is_there_with_any_member_lost() {
    for count in [3, 4, 5] {
        let devices = reopened(&new_raid5(count), &all_but(count, count));
        let pool = open(&devices).expect("all are there");
        for (number, length) in (1..).zip([100, 5_000, 70_000, 400_000]) {
            put(&pool, &format!("file{number}"), &content(number, length)).expect("there is room");
        }
        pool.close().expect("they take it");
        drop(pool);
        for lost in 0..count {
            let left = reopened(&devices, &all_but(count, lost));
            let pool = open(&left).expect("all but one are enough");
            for (number, length) in (1..).zip([100, 5_000, 70_000, 400_000]) {
                let found = get(&pool, &format!("file{number}"));
                assert!(found == Some(content(number, length)), "file{number}, {lost} of {count}");
            }
            put(&pool, "later", &content(9, 200_000)).expect("it takes writes");
            pool.close().expect("it can be written");
            drop(pool);
            let again = reopened(&left, &(0..count - 1).collect::<Vec<_>>());
            let pool = open(&again).expect("the same are there");
            assert!(get(&pool, "later") == Some(content(9, 200_000)), "{lost} of {count}");
        }
    }
}

/// Goal: whatever of one member has rotted, all is read, and what was read is written again.
/// Method: every page of one member turns over a bit, fixed regions and labels apart.
#[test]
fn what_has_rotted_on_a_member_is_read_from_the_others_and_written_again() {
    let count = 4;
    let devices = reopened(&new_raid5(count), &all_but(count, count));
    let pool = open(&devices).expect("all are there");
    for number in 0..12 {
        put(&pool, &format!("file{number}"), &content(number, 60_000)).expect("there is room");
    }
    pool.close().expect("they take it");
    drop(pool);
    let groups = read_superblock(devices[0].as_ref()).expect("a label").current.geometry;
    let end = groups.member_bytes() - (128 << 10);
    for rotten in 0..count {
        let devices = reopened(&devices, &all_but(count, count));
        for offset in (groups.groups_offset..end).step_by(4096) {
            devices[rotten].rot(offset + 77, 0x20);
        }
        let pool = open(&devices).expect("one copy of each page is good");
        for number in 0..12 {
            let found = get(&pool, &format!("file{number}"));
            assert!(found == Some(content(number, 60_000)), "file{number}, {rotten} rotten");
        }
        assert!(devices[rotten].counts().of(IoPurpose::Data, RequestKind::Write).requests > 0);
        drop(pool);
        // What was read was written again: the next who reads finds nothing. (Parity that has
        // rotted nobody has read: that is for a scrub.)
        let again = reopened(&devices, &all_but(count, count));
        let pool = open(&again).expect("all are there");
        for number in 0..12 {
            let found = get(&pool, &format!("file{number}"));
            assert!(found == Some(content(number, 60_000)), "file{number} again");
        }
        assert_eq!(again[rotten].counts().of(IoPurpose::Data, RequestKind::Write).requests, 0);
    }
}

/// Goal: a member that fails several requests of one write is one member, and the pool does without
/// it. Method: pages of metadata that lie on all members, so that each gets several of them.
#[test]
fn a_member_that_fails_several_parts_of_one_write_is_left_out() {
    let devices = reopened(&new_raid5(3), &[0, 1, 2]);
    let opening = VolumeDevices { devices: shared(&devices), accepts_missing: false };
    let (volume, superblock) = Volume::open_members(opening).expect("all are there");
    let faults = vec![Fault::Fail { kind: RequestKind::Write, nth: 0, persists: true }];
    devices[2].arm(FaultPlan { faults });
    let geometry = &superblock.geometry;
    let place = geometry.segment_place(0, geometry.segments_of(0) - 1);
    let pages = (1..9).map(|page| SharedBytes::from(AlignedBuffer::copy_of(&[page; 4096])));
    volume.submit_write(IoPurpose::Home, place, pages.collect()).wait().expect("one may fail");
    let members = volume.members().expect("there are three");
    let states: Vec<MemberState> = members.view().iter().map(|slot| slot.state).collect();
    assert_eq!(states, [MemberState::Online, MemberState::Online, MemberState::Failed]);
    for (page, byte) in (1_u8..9).enumerate() {
        let place = place.advance(u32::try_from(page).expect("few"));
        let found = volume.read_page(IoPurpose::Home, place).expect("the other copy is there");
        assert_eq!(found[..], [byte; 4096]);
    }
}

/// Goal: a member that fails in the midst costs nothing that was acknowledged; a second one stops
/// the pool, and nothing wrong is read then.
#[test]
fn a_member_that_fails_at_any_write_costs_nothing() {
    let count = 4;
    for nth in [0, 1, 2, 5, 9, 14, 20, 33, 47] {
        let devices = reopened(&new_raid5(count), &all_but(count, count));
        let pool = open(&devices).expect("all are there");
        put(&pool, "first", &content(1, 30_000)).expect("there is room");
        let lost = usize::try_from(nth).expect("few") % count;
        let kind = if nth % 2 == 0 { RequestKind::Write } else { RequestKind::Flush };
        let faults = vec![Fault::Fail { kind, nth: nth / 2, persists: true }];
        devices[lost].arm(FaultPlan { faults });
        for number in 0..20 {
            put(&pool, &format!("file{number}"), &content(number, 9_000)).expect("one may fail");
        }
        let label = read_superblock(devices[(lost + 1) % count].as_ref()).expect("a label").current;
        let is_hit = devices[lost].harm().failed_writes > 0;
        let state = if is_hit { MemberState::Failed } else { MemberState::Online };
        assert_eq!(label.members[lost].state, state, "{nth}");
        // The power goes; the member that failed is away, or is back with what it had.
        drop(pool);
        for which in [all_but(count, lost), all_but(count, count)] {
            let left = reopened(&devices, &which);
            let pool = open(&left).expect("the others have all");
            assert!(get(&pool, "first") == Some(content(1, 30_000)), "{nth}");
            for number in 0..20 {
                let found = get(&pool, &format!("file{number}"));
                assert!(found == Some(content(number, 9_000)), "file{number} of {nth}");
            }
        }
        let left = reopened(&devices, &all_but(count, lost));
        let pool = open(&left).expect("the others have all");
        let faults = vec![Fault::Fail { kind: RequestKind::Write, nth: 0, persists: true }];
        left[0].arm(FaultPlan { faults });
        put(&pool, "second", &content(2, 9_000)).expect_err("a second member is needed");
        assert!(get(&pool, "first") == Some(content(1, 30_000)), "{nth}");
    }
}

/// Bytes written to members as file data and summaries, by users' bytes, of 4 KiB overwrites with
/// an fsync after every `sync_every` of them; and what was read for it.
fn overwrites(count: usize, sync_every: usize) -> (f64, u64) {
    const BLOCK: usize = 4096;
    let devices = reopened(&new_raid5(count), &all_but(count, count));
    let pool = open(&devices).expect("all are there");
    put(&pool, "file", &content(1, 256 * BLOCK)).expect("there is room");
    pool.checkpoint().expect("nothing fails");
    let (caller, root) = (Caller::root(), pool.root());
    let ino = pool.lookup(&caller, root, b"file").expect("it is there").ino;
    let sum = |kind| -> u64 {
        let of = |device: &Arc<storage::device::sim::SimDevice>| {
            let counts = device.counts();
            let data = counts.of(IoPurpose::Data, kind).bytes;
            data + counts.of(IoPurpose::Summary, kind).bytes
        };
        devices.iter().map(of).sum()
    };
    let (written, read) = (sum(RequestKind::Write), sum(RequestKind::Read));
    let blocks = 192;
    for number in 0..blocks {
        let at = number * 37 % 256;
        let data = content(u8::try_from(number).expect("few"), BLOCK);
        let offset = u64::try_from(at * BLOCK).expect("small");
        pool.write(&caller, ino, offset, &data).expect("there is room");
        if (number + 1) % sync_every == 0 {
            pool.fsync(&caller, ino, false).expect("nothing fails");
        }
    }
    let user = f64::from(u32::try_from(blocks * BLOCK).expect("small"));
    let written = f64::from(u32::try_from(sum(RequestKind::Write) - written).expect("small"));
    (written / user, sum(RequestKind::Read) - read)
}

/// Goal: nothing is read for a write, and what padding to the stripe costs has a bound. With all
/// stripes full it would be N / (N - 1), and a summary a flush.
#[test]
fn overwrites_read_nothing_and_padding_costs_less_than_a_stripe_a_flush() {
    for (count, sync_every) in [(3, 1), (3, 32), (4, 32), (5, 32), (5, 192)] {
        let (written, read) = overwrites(count, sync_every);
        println!("{count} members, fsync every {sync_every}: {written:.2} bytes a byte");
        assert_eq!(read, 0, "{count} members, fsync every {sync_every}");
        let stripe = f64::from(u32::try_from(count - 1).expect("few")) * 8192.0;
        let flush = f64::from(u32::try_from(sync_every * 4096).expect("small"));
        let members = f64::from(u32::try_from(count).expect("few"));
        let bound = (flush + 8192.0 + stripe) / flush * members / (members - 1.0);
        assert!(written <= bound, "{count} members, fsync every {sync_every}: {written} > {bound}");
    }
}

/// Goal: the checker finds nothing wrong in a pool in stripes, whole or without any member, and
/// tells of damage that is there.
#[test]
fn a_check_of_a_pool_in_stripes_is_clean_with_any_member_away() {
    let count = 4;
    let devices = reopened(&new_raid5(count), &all_but(count, count));
    let pool = open(&devices).expect("all are there");
    for number in 0..30 {
        put(&pool, &format!("file{number}"), &content(number, 20_000)).expect("there is room");
    }
    pool.close().expect("they take it");
    drop(pool);
    let report_of = |devices: &Devices| {
        let opening = VolumeDevices { devices: shared(devices), accepts_missing: false };
        let (volume, _) = Volume::open_members(opening).expect("enough are there");
        check::run(Arc::clone(volume.device()), check::CheckOptions::default(), &mut |_| ())
    };
    for lost in 0..=count {
        let left = reopened(&devices, &all_but(count, lost));
        let report = report_of(&left);
        assert!(report.is_clean(), "without {lost}: {}", report.to_text());
        assert!(report.totals.data_bytes >= 30 * 20_000, "{}", report.totals.data_bytes);
    }
    let left = reopened(&devices, &all_but(count, 0));
    let geometry = read_superblock(left[0].as_ref()).expect("a label").current.geometry;
    for offset in (geometry.groups_offset..geometry.member_bytes() - (128 << 10)).step_by(4096) {
        left[1].rot(offset + 5, 1);
    }
    assert!(!report_of(&left).is_clean(), "one is away, and another has rotted");
}
