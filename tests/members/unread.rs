//! What one member does not give is read from the others, and written to it again; one that does
//! not give much is left behind.

use std::sync::Arc;

use engine::api::{Caller, FileSystem, FsError};
use engine::{FilesOptions, Pool, PoolOpenOptions};
use format::members::MemberState;
use runtime::clock::ManualClock;
use storage::device::sim::{Fault, FaultPlan, Image};
use storage::device::{AlignedBuffer, Device, IoPurpose, RequestKind};
use storage::pool::read_superblock;
use storage::volume::{Volume, VolumeDevices};

use super::rebuild::{open, states};
use super::returns::grounds;
use super::{Devices, devices_of, get, new_mirror, put, reopened, shared};

const PAGE: usize = 4096;

/// Returns content no two pages of which are alike, nor like anything else.
fn content(bytes: usize) -> Vec<u8> {
    (0..bytes / 8)
        .flat_map(|word| (0x5eed_0000_0000_u64 + u64::try_from(word).expect("small")).to_le_bytes())
        .collect()
}

/// Returns the bytes of a device at which pages of `content` lie.
pub(super) fn pages_of(devices: &Devices, at: usize, content: &[u8]) -> Vec<u64> {
    let device = &devices[at];
    let wanted: std::collections::BTreeSet<&[u8]> = content.chunks_exact(PAGE).collect();
    let offsets = (0..device.info().size_bytes).step_by(PAGE);
    offsets
        .filter(|offset| {
            let bytes = device.read(IoPurpose::Check, *offset, PAGE).expect("nothing fails yet");
            wanted.contains(&bytes[..])
        })
        .collect()
}

/// Returns the devices of a closed pool like `base`, of `count` members, in which a file `f` has
/// this content.
fn with_file(base: &Devices, count: usize, content: &[u8]) -> Devices {
    let all: Vec<usize> = (0..count).collect();
    let devices = reopened(base, &all);
    let pool = open(&devices).expect("it is new");
    put(&pool, "f", content).expect("there is room");
    pool.close().expect("nothing fails");
    drop(pool);
    reopened(&devices, &all)
}

fn bad(offsets: &[u64]) -> FaultPlan {
    FaultPlan { faults: offsets.iter().map(|&offset| Fault::BadSector { offset }).collect() }
}

/// Goal: a bad sector of one member, of data or of metadata, is good again once somebody has read
/// what lies there. Method: sectors of a file, and of the root page; whatever a read of the file
/// found bad can be read afterwards.
#[test]
fn what_one_member_does_not_give_is_written_to_it_again() {
    for (count, base) in grounds() {
        let mut found = 0;
        for at in 0..count {
            let what = format!("{count} members, bad on {at}");
            let content = content(96 << 10);
            let devices = with_file(&base, count, &content);
            let offsets = pages_of(&devices, at, &content);
            let opening = VolumeDevices { devices: shared(&devices), accepts_missing: false };
            let (volume, superblock) = Volume::open_members(opening).expect("all are there");
            let root =
                volume.read_page(IoPurpose::Home, superblock.geometry.group_layout().root_place());
            let root: AlignedBuffer = root.expect("nothing fails yet");
            let roots = pages_of(&devices, at, &root);
            drop(volume);
            devices[at].arm(bad(&[offsets, roots].concat()));
            let pool = open(&devices).unwrap_or_else(|error| panic!("{what}: {error}"));
            assert!(get(&pool, "f").as_deref() == Some(&content[..]), "{what}");
            let counts = pool.devices().members()[at].counts;
            found += counts.read_errors;
            assert_eq!(counts.repaired > 0, counts.read_errors > 0, "{what}: {counts:?}");
            let errors = counts.read_errors;
            pool.close().expect("nothing fails");
            drop(pool);
            // Whoever reads it again finds nothing bad; but for parity that is read with a row: of
            // one that ends early it is what the data is.
            let pool = open(&devices).unwrap_or_else(|error| panic!("{what}: {error}"));
            assert!(get(&pool, "f").as_deref() == Some(&content[..]), "{what}");
            let again = pool.devices().members()[at].counts.read_errors;
            let is_mended = if count < 4 { again == 0 } else { again < errors };
            assert!(is_mended || errors == 0, "{what}: {again} reads fail again, of {errors}");
        }
        assert!(found > 0, "{count} members: nothing bad was read");
    }
}

/// Goal: what a read mends is named by its file and the bytes there, a little later. Method: one
/// block of a file has rotted on each member in turn.
#[test]
fn what_a_read_mends_is_named() {
    for (count, base) in grounds() {
        let mut named = 0;
        for at in 0..count {
            let what = format!("{count} members, bad on {at}");
            let content = content(96 << 10);
            let devices = with_file(&base, count, &content);
            for offset in pages_of(&devices, at, &content[32 << 10..48 << 10]) {
                let page = AlignedBuffer::zeroed(PAGE);
                devices[at].write(IoPurpose::Check, offset, page).expect("nothing fails yet");
            }
            let pool = open(&devices).unwrap_or_else(|error| panic!("{what}: {error}"));
            assert!(get(&pool, "f").as_deref() == Some(&content[..]), "{what}");
            assert!(pool.status().mended.is_empty(), "{what}: a path takes locks of its own");
            let is_mended = pool.devices().members()[at].counts.repaired > 0;
            pool.tick().expect("nothing fails");
            let mended = pool.status().mended;
            assert_eq!(!mended.is_empty(), is_mended, "{what}: {mended:?}");
            for file in mended {
                let (first, last) = file.bytes.expect("it is a block");
                assert!(file.path == "/f" && file.fileset.as_deref() == Some("root"), "{file:?}");
                assert!(first <= 32 << 10 && last < 64 << 10, "{file:?}");
                named += 1;
            }
        }
        assert!(named > 0, "{count} members");
    }
}

/// Goal: a block that nobody gives while a member could not be read is an error of that device, and
/// no damage: it may be there when the device answers again. Method: a file of which all members
/// have bad sectors, then one of which one has and another has rotted.
#[test]
fn what_could_not_be_read_is_no_damage() {
    for (count, base) in grounds() {
        for rotten in [None, Some(0)] {
            let what = format!("{count} members, rotten: {rotten:?}");
            let content = content(96 << 10);
            let devices = with_file(&base, count, &content);
            for at in 0..count {
                let offsets = pages_of(&devices, at, &content);
                if rotten != Some(at) {
                    devices[at].arm(bad(&offsets));
                    continue;
                }
                for offset in offsets {
                    let page = AlignedBuffer::zeroed(PAGE);
                    devices[at].write(IoPurpose::Check, offset, page).expect("nothing fails yet");
                }
            }
            let pool = open(&devices).unwrap_or_else(|error| panic!("{what}: {error}"));
            let found = pool.lookup(&Caller::root(), pool.root(), b"f").expect("it is there");
            let read = pool.read(&Caller::root(), found.ino, 0, content.len(), &mut Vec::new());
            assert!(matches!(read, Err(FsError::Io { .. })), "{what}: {read:?}");
            pool.forget(found.ino, 1);
            if rotten.is_none() {
                let damaged = pool
                    .devices()
                    .members()
                    .iter()
                    .map(|it| it.counts.checksum_errors)
                    .sum::<u64>();
                assert_eq!(damaged, 0, "{what}");
            }
        }
    }
}

/// Reads a file in even steps, as a program does that reads it once; each but the first few finds
/// what was read ahead.
fn read_by_steps(pool: &Pool, name: &str) -> Vec<u8> {
    const STEP: usize = 16 << 10;
    let (caller, mut all) = (Caller::root(), Vec::new());
    let found = pool.lookup(&caller, pool.root(), name.as_bytes()).expect("it is there");
    loop {
        let offset = u64::try_from(all.len()).expect("small");
        let count = pool.read(&caller, found.ino, offset, STEP, &mut all).expect("it can be read");
        pool.run_deferred_work();
        if count < STEP {
            break;
        }
    }
    pool.forget(found.ino, 1);
    all
}

/// Goal: the same of what is read ahead of whoever reads in even steps. Method: bad sectors in the
/// middle of a file that is read so, twice.
#[test]
fn what_a_member_does_not_give_ahead_is_written_to_it_again() {
    for (count, base) in grounds() {
        let mut found = 0;
        for at in 0..count {
            let what = format!("{count} members, bad on {at}");
            let content = content(512 << 10);
            let devices = with_file(&base, count, &content);
            let offsets = pages_of(&devices, at, &content[256 << 10..384 << 10]);
            devices[at].arm(bad(&offsets));
            let pool = open(&devices).unwrap_or_else(|error| panic!("{what}: {error}"));
            assert!(read_by_steps(&pool, "f") == content, "{what}");
            assert!(pool.status().readahead.used_bytes > 0, "{what}: nothing was read ahead");
            let first = pool.devices().members()[at].counts;
            assert_eq!(first.repaired > 0, first.read_errors > 0, "{what}: {first:?}");
            found += first.read_errors;
            assert!(read_by_steps(&pool, "f") == content, "{what}");
            let again = pool.devices().members()[at].counts.read_errors - first.read_errors;
            let is_mended = if count < 4 { again == 0 } else { again < first.read_errors };
            assert!(is_mended || first.read_errors == 0, "{what}: {again} again, {first:?}");
        }
        assert!(found > 0, "{count} members: nothing bad was read");
    }
}

/// Goal: a member that fails reads again and again is left behind, if the others have all; one that
/// the layout needs never is.
#[test]
fn a_member_that_fails_too_many_reads_is_failed() {
    for (count, base) in grounds() {
        let what = format!("{count} members");
        let devices = reopened(&base, &(0..count).collect::<Vec<_>>());
        let content = content(3 << 20);
        let pool = open(&devices).expect("it is new");
        put(&pool, "f", &content).expect("there is room");
        pool.close().expect("nothing fails");
        drop(pool);
        let devices = reopened(&devices, &(0..count).collect::<Vec<_>>());
        let clock = Arc::new(ManualClock::new());
        let opening = VolumeDevices { devices: shared(&devices), accepts_missing: false };
        let options = PoolOpenOptions { cache_bytes: 1 << 20, ..PoolOpenOptions::default() };
        let own = Arc::<ManualClock>::clone(&clock);
        let pool = Pool::open_members(opening, own, options).expect("all are there");
        let faults = vec![Fault::Fail { kind: RequestKind::Read, nth: 0, persists: true }];
        devices[1].arm(FaultPlan { faults });
        for round in 0.. {
            assert!(get(&pool, "f").as_deref() == Some(&content[..]), "{what}");
            clock.advance_ns(1_000_000_000);
            pool.tick().expect("nothing fails");
            if states(&pool)[1] != MemberState::Online {
                assert!(round >= 60, "{what}: after {round} seconds");
                break;
            }
            assert!(round <= 61, "{what}: round {round}");
        }
        assert_eq!(states(&pool)[1], MemberState::Failed, "{what}");
        assert!(get(&pool, "f").as_deref() == Some(&content[..]), "{what}");
    }
}

/// What is wrong with the pages of a file on one member.
#[derive(Clone, Copy, Debug)]
enum Wrong {
    Unread,
    Rotted,
}

impl Wrong {
    fn on(self, devices: &Devices, at: usize, content: &[u8], mut faults: Vec<Fault>) {
        let offsets = pages_of(devices, at, content);
        match self {
            Wrong::Unread => faults.extend(bad(&offsets).faults),
            Wrong::Rotted => offsets.iter().for_each(|offset| devices[at].rot(*offset, 1)),
        }
        devices[at].arm(FaultPlan { faults });
    }
}

/// Reads a file again and again, of which one member does not give what was written: nothing is
/// written to any, and what is wrong is told once. Returns how often a member had not what it
/// should.
fn read_without_mending(pool: &Pool, devices: &Devices, content: &[u8], what: &str) -> u64 {
    let writes = || devices.iter().map(|device| device.counts().writes()).sum::<u64>();
    let of_all = |count: fn(&storage::volume::MemberCounts) -> u64| {
        pool.devices().members().iter().map(|member| count(&member.counts)).sum::<u64>()
    };
    let (before, repaired) = (writes(), of_all(|counts| counts.repaired));
    let mut told = Vec::new();
    for _ in 0..3 {
        assert!(get(pool, "f").as_deref() == Some(content), "{what}");
        told.push(of_all(|counts| counts.checksum_errors));
    }
    assert_eq!(writes(), before, "{what}: something was written");
    assert_eq!(of_all(|counts| counts.repaired), repaired, "{what}");
    assert!(told.iter().all(|count| *count == told[0]), "{what}: told {told:?} times");
    told[0] + of_all(|counts| counts.read_errors)
}

/// Goal: a pool that is mounted read-only writes nothing to its members once its log is replayed,
/// whatever a read finds, and the read is answered. Method: it was not closed; then a file cannot
/// be read on one member, or has rotted there.
#[test]
fn a_read_only_pool_mends_nothing_after_its_replay() {
    for (count, base) in grounds() {
        let mut found = 0;
        for (at, wrong) in (0..count).flat_map(|at| [(at, Wrong::Unread), (at, Wrong::Rotted)]) {
            let what = format!("{count} members, {wrong:?} on {at}");
            let all: Vec<usize> = (0..count).collect();
            let devices = reopened(&base, &all);
            let content = content(1 << 20);
            let pool = open(&devices).expect("it is new");
            put(&pool, "f", &content).expect("there is room");
            let devices = reopened(&devices, &all);
            let opening = VolumeDevices { devices: shared(&devices), accepts_missing: false };
            let files = FilesOptions { is_read_only: true, ..FilesOptions::default() };
            let options =
                PoolOpenOptions { files, cache_bytes: 1 << 20, ..PoolOpenOptions::default() };
            let pool = Pool::open_members(opening, Arc::new(ManualClock::new()), options);
            let pool = pool.unwrap_or_else(|error| panic!("{what}: {error}"));
            assert!(pool.status().recovery.was_needed, "{what}");
            wrong.on(&devices, at, &content, Vec::new());
            found += read_without_mending(&pool, &devices, &content, &what);
        }
        assert!(found > 0, "{count} members: nothing bad was read");
    }
}

/// Goal: a pool that has stopped tries to write nothing again, and reads are answered. Method: all
/// members fail every write, and one of them does not give a file, or has something else.
#[test]
fn a_pool_that_has_stopped_mends_nothing() {
    for (count, base) in grounds() {
        let mut found = 0;
        for (at, wrong) in (0..count).flat_map(|at| [(at, Wrong::Unread), (at, Wrong::Rotted)]) {
            let what = format!("{count} members, {wrong:?} on {at}");
            let devices = reopened(&base, &(0..count).collect::<Vec<_>>());
            let content = content(1 << 20);
            let pool = open(&devices).expect("it is new");
            put(&pool, "f", &content).expect("there is room");
            let writes_fail = || Fault::Fail { kind: RequestKind::Write, nth: 0, persists: true };
            for device in &devices {
                device.arm(FaultPlan { faults: vec![writes_fail()] });
            }
            put(&pool, "g", &content).expect_err("no write is done");
            let stopped = put(&pool, "h", &content);
            assert!(matches!(stopped, Err(FsError::ReadOnly { .. })), "{what}: {stopped:?}");
            wrong.on(&devices, at, &content, vec![writes_fail()]);
            found += read_without_mending(&pool, &devices, &content, &what);
        }
        assert!(found > 0, "{count} members: nothing bad was read");
    }
}

/// Goal: a scrub tells apart what no device gives now from what is lost, and names both. Method:
/// the same pages of a file have bad sectors, or have rotted, on as many members as the pool cannot
/// do without.
#[test]
fn a_scrub_tells_what_it_cannot_read_from_what_is_lost() {
    for (count, base) in grounds() {
        for is_unread in [true, false] {
            let what = format!("{count} members, unread: {is_unread}");
            let content = content(96 << 10);
            let devices = with_file(&base, count, &content);
            let members = if count == 4 { 2 } else { count };
            for at in 0..members {
                let offsets = pages_of(&devices, at, &content);
                if is_unread {
                    devices[at].arm(bad(&offsets));
                    continue;
                }
                for offset in offsets {
                    // Not the same on all: that is seen by reads alone.
                    let junk = [u8::try_from(at + 1).expect("few"); PAGE];
                    let page = AlignedBuffer::copy_of(&junk);
                    devices[at].write(IoPurpose::Check, offset, page).expect("nothing fails yet");
                }
            }
            let pool = open(&devices).unwrap_or_else(|error| panic!("{what}: {error}"));
            assert!(pool.devices().scrub().expect("there is something to compare"), "{what}");
            let report = (0..1000).find_map(|_| {
                pool.tick().unwrap_or_else(|error| panic!("{what}: {error}"));
                pool.devices().scrub_report().filter(|report| report.is_done)
            });
            let report = report.unwrap_or_else(|| panic!("{what}: {:?}", pool.jobs()));
            assert_eq!((report.unread > 0, report.lost > 0), (is_unread, !is_unread), "{report:?}");
            assert!(report.names.iter().any(|name| name.contains("/f")), "{what}: {report:?}");
        }
    }
}

/// Goal: a pool that was not closed is not opened without a member whose log is needed, for nobody
/// would read that log afterwards; the labels stay as they were, and with the member it opens.
/// Method: each page of the journal of one member of a mirror is bad while the other is away.
#[test]
fn a_log_that_the_absent_one_has_is_not_given_up() {
    let devices = reopened(&new_mirror(2), &[0, 1]);
    let pool = super::open(&devices).expect("just made");
    put(&pool, "f", b"acknowledged").expect("there is room");
    drop(pool);
    let images: Vec<Image> = devices.iter().map(|device| device.durable_image()).collect();
    let geometry = read_superblock(devices[0].as_ref()).expect("a label").current.geometry;
    let journal = geometry.journal_offset..geometry.journal_offset + geometry.journal_bytes;
    let mut pages = Vec::new();
    images[0].for_each_page(|offset, bytes| {
        if journal.contains(&offset) && bytes.iter().any(|byte| *byte != 0) {
            pages.push(offset);
        }
    });
    let mut refused = 0;
    for page in pages {
        let alone = devices_of(images[..1].to_vec());
        alone[0].arm(bad(&[page]));
        let before = read_superblock(alone[0].as_ref()).expect("a label").current;
        let Err(error) = super::open(&alone) else { continue };
        // The heartbeat is looked at before.
        let text = error.to_string();
        refused += u32::from(text.contains("attach /sim/d1"));
        let after = read_superblock(alone[0].as_ref()).expect("a label").current;
        assert_eq!(after, before, "{page}");
        let both = devices_of(vec![alone[0].image(), images[1].clone()]);
        both[0].arm(bad(&[page]));
        let pool = super::open(&both).unwrap_or_else(|error| panic!("{page}: {error}"));
        assert_eq!(get(&pool, "f").as_deref(), Some(&b"acknowledged"[..]), "{page}");
    }
    assert!(refused > 0, "no page was needed");
}
