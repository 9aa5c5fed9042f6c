//! A stripe from end to end: made, opened, written, cut, and without one of its devices. Data is
//! there once, so what a device takes with it is named, and nothing else is lost.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use engine::api::{Caller, FileKind, FileSystem, FsError, Ino};
use engine::{Pool, PoolCreateOptions, PoolOpenError, PoolOpenOptions};
use format::members::{Layout, MemberState};
use runtime::clock::ManualClock;
use runtime::prng::Prng;
use storage::device::sim::{Fault, FaultPlan, Image, SimDevice};
use storage::device::{AlignedBuffer, Device, IoPurpose, RequestKind, SharedBytes};
use storage::pool::read_superblock;
use storage::volume::{Volume, VolumeDevices};
use testkit::canon::{Data, Path, Times, Tree, walk};

use super::raid5::{MEMBER_BYTES, all_but, content};
use super::raid5_crash::{cut, history_at, judged, judged_again, setting, without, work};
use super::{Devices, devices_of, get, open, put, reopened, shared, unmended};

/// The stripe unit in these pools: small, so that few bytes are many rows.
const LAYOUT: Layout = Layout::Stripe { unit_shift: 13 };
/// Bytes of files: some have a unit, others lie on all members.
const LENGTHS: [usize; 4] = [100, 5_000, 70_000, 400_000];

fn new_stripe(count: usize) -> Devices {
    let devices = devices_of(vec![Image::blank(MEMBER_BYTES); count]);
    let mut options = PoolCreateOptions::new(MEMBER_BYTES, [6; 64]);
    options.geometry.journal_bytes = Some(1 << 20);
    Pool::create_on(&shared(&devices), LAYOUT, &ManualClock::new(), &options)
        .expect("a stripe fits");
    devices
}

/// Opens what is left of a pool, with data missing, as a user would who says so.
fn open_lacking(devices: &Devices, is_read_only: bool) -> Result<Pool, PoolOpenError> {
    let mut options = PoolOpenOptions { cache_bytes: 1 << 20, ..PoolOpenOptions::default() };
    options.files.is_read_only = is_read_only;
    let opening = VolumeDevices { devices: shared(devices), accepts_missing: true };
    Pool::open_members(opening, Arc::new(ManualClock::new()), options)
}

/// Returns how many writes and flushes devices have seen.
fn changes_to(devices: &Devices) -> u64 {
    let kinds = [RequestKind::Write, RequestKind::Flush, RequestKind::Discard];
    let of = |device: &Arc<storage::device::sim::SimDevice>| -> u64 {
        let counts = device.counts();
        let of_purpose = |purpose| kinds.map(|kind| counts.of(purpose, kind).requests);
        IoPurpose::ALL.into_iter().flat_map(of_purpose).sum()
    };
    devices.iter().map(of).sum()
}

/// Reads a file page by page; `None`: a page that cannot be read.
fn pages_of(pool: &Pool, ino: Ino, length: usize) -> Vec<Option<Vec<u8>>> {
    let read = |at: usize| {
        let (mut page, offset) = (Vec::new(), u64::try_from(at).expect("small"));
        let wanted = (length - at).min(4096);
        match pool.read(&Caller::root(), ino, offset, wanted, &mut page) {
            Ok(_) => Some(page),
            Err(FsError::ReadOnly { reason }) => panic!("{reason}"),
            Err(_) => None,
        }
    };
    (0..length).step_by(4096).map(read).collect()
}

#[test]
fn everything_comes_back_closed_or_not() {
    for count in [2, 3, 5] {
        for is_closed in [true, false] {
            let devices = reopened(&new_stripe(count), &all_but(count, count));
            let pool = open(&devices).expect("all are there");
            let status = pool.status();
            assert_eq!(status.layout, LAYOUT);
            let bytes = status.space.capacity << status.geometry.fragment_shift;
            let all = MEMBER_BYTES * u64::try_from(count).expect("few");
            assert!(bytes > all / 2, "{count}: {bytes} of {all} bytes");
            for (number, length) in (1..).zip(LENGTHS) {
                put(&pool, &format!("file{number}"), &content(number, length)).expect("room");
            }
            if is_closed {
                pool.close().expect("they take it");
            }
            drop(pool);
            let again = reopened(&devices, &all_but(count, count));
            let pool = open(&again).expect("all are there");
            for (number, length) in (1..).zip(LENGTHS) {
                let found = get(&pool, &format!("file{number}"));
                assert!(found == Some(content(number, length)), "file{number} of {count}");
            }
            let data = again
                .iter()
                .filter(|device| device.counts().of(IoPurpose::Data, RequestKind::Read).bytes > 0);
            assert_eq!(data.count(), count, "data lies on all of them");
        }
    }
}

/// Goal: without one member the pool is refused, until the user says that data may be missing; then
/// it is read as far as it is there, nothing is written, and with the member back all is there.
/// Method: closed, and with the power cut while the log has what is nowhere else.
#[test]
fn a_lost_member_takes_its_data_alone_and_only_where_the_user_says_so() {
    let (count, files) = (3, 24);
    for is_closed in [true, false] {
        let devices = reopened(&new_stripe(count), &all_but(count, count));
        let pool = open(&devices).expect("all are there");
        for number in 0..files {
            put(&pool, &format!("file{number}"), &content(number, 8_192)).expect("there is room");
        }
        put(&pool, "large", &content(99, 300_000)).expect("there is room");
        pool.checkpoint().expect("nothing fails");
        put(&pool, "logged", &content(98, 600)).expect("there is room");
        if is_closed {
            pool.close().expect("they take it");
        }
        drop(pool);
        for lost in 0..count {
            let left = reopened(&devices, &all_but(count, lost));
            let error = open(&left).expect_err("data is missing").to_string();
            assert!(error.contains(&format!("/sim/d{lost}")), "{error}");
            assert!(error.contains("--accept-missing"), "{error}");
            let error = open_lacking(&left, false).expect_err("it is to be written").to_string();
            assert!(error.contains("-o ro"), "{error}");
            let pool = open_lacking(&left, true).expect("what is left can be read");
            let missing = pool.status().lost_with.expect("it says so");
            assert!(missing.contains(&format!("/sim/d{lost}")), "{missing}");
            let (mut whole, mut broken) = (0, 0);
            let names = (0..files).map(|number| (format!("file{number}"), content(number, 8_192)));
            for (name, expected) in names.chain([("large".to_owned(), content(99, 300_000))]) {
                let attr = pool.lookup(&Caller::root(), pool.root(), name.as_bytes());
                let ino = attr.expect("names are all there").ino;
                let pages = pages_of(&pool, ino, expected.len());
                let there = pages.iter().zip(expected.chunks(4096)).filter(|(page, expected)| {
                    page.as_ref().is_none_or(|page| page == expected) && page.is_some()
                });
                let is_right = |(page, expected): (&Option<Vec<u8>>, &[u8])| {
                    page.as_ref().is_none_or(|page| page == expected)
                };
                assert!(pages.iter().zip(expected.chunks(4096)).all(is_right), "{name} is another");
                if there.count() == pages.len() {
                    whole += 1
                } else {
                    broken += 1
                }
                if name == "large" {
                    let lost = pages.iter().filter(|page| page.is_none()).count();
                    assert!((10..50).contains(&lost), "{lost} of {} pages", pages.len());
                }
            }
            assert!(whole > 2 && broken > 2, "without {lost}: {whole} whole, {broken} broken");
            if !is_closed {
                let found = get(&pool, "logged");
                assert!(found == Some(content(98, 600)), "the log has it, without {lost}");
            }
            put(&pool, "new", b"x").expect_err("nothing can be written");
            pool.close().expect("there is nothing to write");
            drop(pool);
            assert_eq!(changes_to(&left), 0, "something was written, without {lost}");
        }
        let back = reopened(&devices, &all_but(count, count));
        let pool = open(&back).expect("all are there again");
        for number in 0..files {
            let found = get(&pool, &format!("file{number}"));
            assert!(found == Some(content(number, 8_192)), "file{number}");
        }
        put(&pool, "new", &content(1, 9_000)).expect("it takes writes");
        pool.close().expect("they take it");
    }
}

/// Goal: in what is left without a member, a page of metadata whose first copy is bad is read from
/// its second, beside a log that is replayed as well; and nothing is written, be it to repair.
/// Method: rot in each page of one member that another has too, the lost one apart.
#[test]
fn what_is_left_without_a_member_is_read_from_second_copies() {
    let (count, files) = (4, 30);
    for is_closed in [true, false] {
        let devices = reopened(&new_stripe(count), &all_but(count, count));
        let pool = open(&devices).expect("all are there");
        for number in 0..files {
            put(&pool, &format!("file{number}"), &content(number, 200)).expect("there is room");
        }
        pool.checkpoint().expect("nothing fails");
        for number in 0..files / 2 {
            put(&pool, &format!("file{number}"), &content(number, 220)).expect("there is room");
        }
        if is_closed {
            pool.close().expect("they take it");
        }
        drop(pool);
        let left = reopened(&devices, &all_but(count, count - 1));
        let label = read_superblock(left[0].as_ref()).expect("it is a member").current;
        let start = label.geometry.groups_offset;
        let page_of = |device: &SimDevice, offset| {
            device.read(IoPurpose::Check, offset, 4096).expect("in range").to_vec()
        };
        let offsets = || (start..MEMBER_BYTES - (256 << 10)).step_by(4096);
        let others: BTreeSet<Vec<u8>> = left[1..]
            .iter()
            .flat_map(|device| offsets().map(|offset| page_of(device, offset)))
            .collect();
        let mut rotten = 0;
        for offset in offsets() {
            let page = page_of(&left[0], offset);
            if page.iter().any(|byte| *byte != 0) && others.contains(&page) {
                left[0].rot(offset + 2000, 1);
                rotten += 1;
            }
        }
        assert!(rotten > 5, "{rotten} pages have a copy on another member");
        let left = reopened(&left, &[0, 1, 2]);
        let pool = open_lacking(&left, true).expect("second copies are there");
        for number in 0..files {
            let length = if number < files / 2 { 220 } else { 200 };
            let found = get(&pool, &format!("file{number}"));
            assert!(found == Some(content(number, length)), "file{number}, closed: {is_closed}");
        }
        pool.close().expect("there is nothing to write");
        drop(pool);
        assert_eq!(changes_to(&left), 0, "something was written, closed: {is_closed}");
    }
}

/// Goal: two members away are more than the copies of metadata are for.
#[test]
fn without_two_members_a_stripe_is_refused_by_their_paths() {
    let devices = reopened(&new_stripe(4), &all_but(4, 4));
    open(&devices).expect("all are there").close().expect("they take it");
    let left = reopened(&devices, &[0, 2]);
    for refused in [open(&left), open_lacking(&left, true)] {
        let error = refused.expect_err("metadata is missing").to_string();
        assert!(error.contains("/sim/d1, /sim/d3"), "{error}");
    }
}

/// Goal: a member that fails costs nothing that was acknowledged, for it is not done without: the
/// pool stops, and goes on when the member is back.
#[test]
fn a_member_that_fails_at_any_write_stops_the_pool_and_nothing_is_lost() {
    let count = 3;
    let mut stopped = 0;
    for nth in [0, 1, 2, 5, 9, 14, 20, 33, 47] {
        let devices = reopened(&new_stripe(count), &all_but(count, count));
        let pool = open(&devices).expect("all are there");
        put(&pool, "first", &content(1, 30_000)).expect("there is room");
        let bad = usize::try_from(nth).expect("few") % count;
        let kind = if nth % 2 == 0 { RequestKind::Write } else { RequestKind::Flush };
        let faults = vec![Fault::Fail { kind, nth: nth / 2, persists: true }];
        devices[bad].arm(FaultPlan { faults });
        let mut acknowledged = Vec::new();
        for number in 0..20 {
            match put(&pool, &format!("file{number}"), &content(number, 40_000)) {
                Ok(()) => acknowledged.push(number),
                Err(_) => break,
            }
        }
        stopped += u64::from(acknowledged.len() < 20);
        drop(pool);
        let again = reopened(&devices, &all_but(count, count));
        let label = read_superblock(again[0].as_ref()).expect("a label").current;
        let online = label.members.iter().all(|member| member.state == MemberState::Online);
        assert!(online, "{nth}: none is left out");
        let pool = open(&again).expect("the member is back");
        assert!(get(&pool, "first") == Some(content(1, 30_000)), "{nth}");
        for number in acknowledged {
            let found = get(&pool, &format!("file{number}"));
            assert!(found == Some(content(number, 40_000)), "file{number} of {nth}");
        }
    }
    assert!(stopped > 4, "{stopped}");
}

/// Goal: what is nowhere is an error, never zeros or what lay there before; pages come from their
/// other copy. Method: beneath the engine, whose checksums would find it too.
#[test]
fn a_unit_of_a_lost_member_is_an_error_and_a_page_has_another_copy() {
    let count = 3;
    let devices = reopened(&new_stripe(count), &all_but(count, count));
    let opening = VolumeDevices { devices: shared(&devices), accepts_missing: false };
    let (volume, superblock) = Volume::open_members(opening).expect("all are there");
    let geometry = &superblock.geometry;
    let last = geometry.segments_of(0) - 1;
    let (data, pages) = (geometry.segment_place(0, last - 1), geometry.segment_place(0, last));
    let stripe = usize::try_from(geometry.stripe_fragments(0)).expect("small") * 4096;
    let written = AlignedBuffer::copy_of(&content(7, stripe));
    let write = |purpose, place, bytes: AlignedBuffer| {
        let data = vec![SharedBytes::from(bytes)];
        volume.submit_write(purpose, place, data).wait().expect("it takes it");
    };
    write(IoPurpose::Data, data, AlignedBuffer::clone(&written));
    write(IoPurpose::Home, pages, AlignedBuffer::copy_of(&written[..4096]));
    for lost in 0..count {
        let left = reopened(&devices, &all_but(count, lost));
        let opening = VolumeDevices { devices: shared(&left), accepts_missing: true };
        let (volume, _) = Volume::open_members(opening).expect("one may be missing");
        let page = volume.read_page(IoPurpose::Home, pages).expect("the other copy is there");
        assert_eq!(page[..], written[..4096], "without {lost}");
        for unit in 0..count {
            let place = data.advance(u32::try_from(unit).expect("few") * 2);
            let expected = &written[unit * 8192..(unit + 1) * 8192];
            let found = volume.read(IoPurpose::Data, place, 8192);
            match found {
                Ok(found) => assert!(unit != lost && found[..] == *expected, "{unit} {lost}"),
                Err(_) => assert_eq!(unit, lost, "unit {unit} is there"),
            }
            let never = volume.heal(IoPurpose::Data, place, 8192, &|_| false);
            assert!(never.is_err() || never.is_ok_and(|healed| healed.bytes.is_none()));
        }
        let data = vec![SharedBytes::from(AlignedBuffer::clone(&written))];
        volume
            .submit_write(IoPurpose::Data, place_of(&volume), data)
            .wait()
            .expect_err("no writes");
    }
}

fn place_of(volume: &Volume) -> format::ids::Place {
    volume.geometry().segment_place(0, volume.geometry().segments_of(0) - 1)
}

/// Goal: the checker finds nothing in a stripe that is whole, and names by path the files that have
/// lost something, and no others, where a member is away.
#[test]
fn a_check_names_the_files_that_a_lost_member_has_taken() {
    let (count, files) = (4, 30);
    let devices = reopened(&new_stripe(count), &all_but(count, count));
    let pool = open(&devices).expect("all are there");
    for number in 0..files {
        put(&pool, &format!("file{number}"), &content(number, 8_192)).expect("there is room");
    }
    pool.close().expect("they take it");
    drop(pool);
    let report_of = |devices: &Devices| {
        let opening = VolumeDevices { devices: shared(devices), accepts_missing: true };
        let (volume, _) = Volume::open_members(opening).expect("enough are there");
        check::run(Arc::clone(volume.device()), check::CheckOptions::default(), &mut |_| ())
    };
    let whole = report_of(&reopened(&devices, &all_but(count, count)));
    assert!(whole.is_clean(), "{}", whole.to_text());
    let mut named = 0;
    for lost in 0..count {
        let left = reopened(&devices, &all_but(count, lost));
        let text = report_of(&left).to_text();
        let pool = open_lacking(&left, true).expect("what is left can be read");
        for number in 0..files {
            let name = format!("file{number}");
            let attr = pool.lookup(&Caller::root(), pool.root(), name.as_bytes());
            let pages = pages_of(&pool, attr.expect("it is there").ino, 8_192);
            let is_broken = pages.iter().any(Option::is_none);
            let is_named = text.lines().any(|line| {
                line.contains(&format!("/{name}")) && {
                    let behind = line.split(&format!("/{name}")).nth(1).unwrap_or_default();
                    !behind.starts_with(|next: char| next.is_ascii_digit())
                }
            });
            assert_eq!(is_named, is_broken, "{name} without {lost}: {text}");
            named += u64::from(is_named);
        }
    }
    assert!(named >= 20, "{named}");
}

/// Goal: a scrub mends a page from its other copy, and names what has rotted where it lies once.
#[test]
fn a_scrub_mends_pages_and_names_files_that_have_rotted() {
    let count = 3;
    let devices = reopened(&new_stripe(count), &all_but(count, count));
    let pool = open(&devices).expect("all are there");
    for number in 0..20 {
        put(&pool, &format!("file{number}"), &content(number, 8_192)).expect("there is room");
    }
    pool.close().expect("they take it");
    drop(pool);
    let devices = reopened(&devices, &all_but(count, count));
    let geometry = read_superblock(devices[0].as_ref()).expect("a label").current.geometry;
    for offset in (geometry.groups_offset..MEMBER_BYTES - (128 << 10)).step_by(4096) {
        devices[1].rot(offset + 77, 0x20);
    }
    let pool = open(&devices).expect("the other copies are good");
    assert!(pool.devices().scrub().expect("there is something to compare"));
    let report = (0..1000).find_map(|_| {
        pool.tick().expect("nothing fails");
        pool.devices().scrub_report().filter(|report| report.is_done)
    });
    let report = report.expect("it ends");
    assert!(report.repaired > 4 && report.lost > 2, "{report:?}");
    assert_eq!(unmended(&report), (report.lost, 0, 0), "all could be read, and written");
    assert_eq!(report.parities, 0, "there are none");
    assert!(report.names.iter().all(|name| name.contains("file")), "{report:?}");
    pool.close().expect("nothing fails");
    drop(pool);
    let again = reopened(&devices, &all_but(count, count));
    let pool = open(&again).expect("all are there");
    let mut broken = 0;
    for number in 0..20 {
        let name = format!("file{number}");
        let attr = pool.lookup(&Caller::root(), pool.root(), name.as_bytes()).expect("there");
        broken += u64::from(pages_of(&pool, attr.ino, 8_192).iter().any(Option::is_none));
    }
    assert_eq!(broken, report.lost, "as many files as the scrub has named");
}

/// Compares what is left of a tree with all of it: names and attributes are there, and of content
/// what is there is right. Returns how many pages are there, and how many are lost.
fn compare(whole: &Tree, left: &Pool) -> Result<(u64, u64), String> {
    let (caller, mut inos) = (Caller::root(), BTreeMap::new());
    inos.insert(Path::default(), left.root());
    let (mut there, mut lost) = (0, 0);
    for (path, &index) in &whole.names {
        let Some((parent, name)) = path.split() else { continue };
        let inode = &whole.inodes[index];
        let parent = inos.get(&parent).copied().ok_or_else(|| format!("{path}: no parent"))?;
        let attr =
            left.lookup(&caller, parent, name).map_err(|error| format!("{path}: {error}"))?;
        if attr.kind == FileKind::Directory {
            inos.insert(path.clone(), attr.ino);
        }
        let found = testkit::canon::CanonAttr::of(&attr, Times::Ignored);
        if found != inode.attr {
            return Err(format!("{path}: {found:?}, not {:?}", inode.attr));
        }
        let Data::Pages(expected) = &inode.data else { continue };
        let length = usize::try_from(attr.size_bytes).expect("files are small");
        for (number, page) in (0..).zip(pages_of(left, attr.ino, length)) {
            let Some(mut page) = page else {
                lost += 1;
                continue;
            };
            page.resize(4096, 0);
            let is_right = match expected.get(&number) {
                Some(expected) => page == expected[..],
                None => page.iter().all(|byte| *byte == 0),
            };
            if !is_right {
                return Err(format!("{path}: page {number} is another"));
            }
            there += 1;
        }
    }
    Ok((there, lost))
}

/// Returns the members with the fixed regions of one of them on all: what is not acknowledged may
/// be in the log of another alone.
fn with_the_log_of(images: &[Image], source: usize) -> Devices {
    let devices = without(images, None);
    let geometry = read_superblock(devices[source].as_ref()).expect("a label").current.geometry;
    let (start, end) = (geometry.journal_offset, geometry.groups_offset);
    let length = usize::try_from(end - start).expect("small");
    let fixed = devices[source].read(IoPurpose::Journal, start, length).expect("in range");
    for device in &devices {
        let fixed = AlignedBuffer::clone(&fixed);
        device.write(IoPurpose::Journal, start, fixed).expect("in range");
    }
    devices
}

/// Goal: no cut takes what was acknowledged; and without any one member all names are there, and
/// what is read of files is right or an error. Method: cuts at events of a workload, with whatever
/// each member kept, a second cut in the recovery, and the same images without a member.
/// `HOLDFAST_SOAK=N` runs N times as many seeds.
#[test]
fn no_cut_takes_what_was_acknowledged_and_a_lost_member_its_data_alone() {
    let seeds = setting("HOLDFAST_SOAK").unwrap_or(1) * 10;
    let (mut cuts, mut second_cuts, mut there, mut lost) = (0_u64, 0_u64, 0, 0);
    for seed in 0..seeds {
        let count = 2 + usize::try_from(seed % 3).expect("few");
        let base = new_stripe(count);
        let all: Vec<usize> = (0..count).collect();
        let base_pool = open(&reopened(&base, &all)).expect("it opens");
        let devices = reopened(&base, &all);
        let pool = open(&devices).expect("a new pool opens");
        let recorded = work(&pool, devices[0].timeline(), (seed, 40), |_, _| ());
        drop(pool);
        let (mut prng, end) = (Prng::from_seed(!seed), devices[0].timeline().now());
        for time in 0..=end {
            if !prng.one_in(14) {
                continue;
            }
            cuts += 1;
            let context = format!("seed {seed}, cut at {time} of {end}, {count} members");
            let history = history_at(&base_pool, &recorded, time);
            let images = cut(&devices, time, &mut prng);
            judged(&without(&images, None), &history)
                .unwrap_or_else(|finding| panic!("{context}: {finding}"));
            if prng.one_in(8) {
                second_cuts += 1;
                judged_again(&images, &history, &mut prng)
                    .unwrap_or_else(|finding| panic!("{context}, {finding}"));
            }
            let missing = usize::try_from(prng.below(u64::try_from(count).expect("few")));
            let missing = missing.expect("few");
            let left = open_lacking(&without(&images, Some(missing)), true)
                .unwrap_or_else(|error| panic!("{context}, without {missing}: {error}"));
            // The longest log of those that are left is taken, and what is in it alone was not
            // acknowledged.
            let compared = all_but(count, missing).into_iter().map(|source| {
                let whole = open(&with_the_log_of(&images, source));
                let tree = walk(&whole.expect("one log is as good as another"), Times::Ignored);
                compare(&tree.expect("names are whole"), &left)
            });
            let compared: Vec<Result<(u64, u64), String>> = compared.collect();
            let found = compared.iter().find_map(|found| found.as_ref().ok());
            let found =
                found.unwrap_or_else(|| panic!("{context}, without {missing}: {compared:?}"));
            there += found.0;
            lost += found.1;
        }
    }
    println!("{cuts} cuts, {second_cuts} second ones; pages: {there} there, {lost} lost");
    assert!(cuts > 60 && second_cuts > 4 && there > 100 && lost > 20, "{cuts} {there} {lost}");
}
