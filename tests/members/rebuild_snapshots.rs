//! A rebuild of a pool with fifty snapshots: what only they hold is rebuilt too, once, whoever
//! shares it.

use engine::api::{Caller, FileSystem};
use engine::{Pool, RebuildReport};
use format::members::MemberState;
use storage::device::sim::Image;
use storage::device::{IoPurpose, RequestKind};

use super::raid5::{MEMBER_BYTES, all_but, content, new_raid5};
use super::rebuild::{begin, finish, open, states};
use super::removal::take_snapshot;
use super::{devices_of, get, put, reopened};

const SNAPSHOTS: u8 = 50;
const FILES: u8 = 6;
const FILE_BYTES: usize = 50_000;

/// Returns the version that a snapshot has of a file: each snapshot is taken after one file was
/// written.
fn version_in(snapshot: u8, file: u8) -> u8 {
    let rounds = snapshot / FILES;
    if snapshot % FILES >= file { rounds + 1 } else { rounds }
}

fn judge(pool: &Pool, what: &str) {
    let caller = Caller::root();
    let snapshots = pool.lookup(&caller, pool.root(), b".snapshots").expect("it is always there");
    for snapshot in 0..SNAPSHOTS {
        let name = format!("c{snapshot}");
        let root = pool.lookup(&caller, snapshots.ino, name.as_bytes()).expect("it was taken");
        for file in 0..FILES {
            let name = format!("file{file}");
            let expected = content(version_in(snapshot, file), FILE_BYTES);
            let found = pool.lookup(&caller, root.ino, name.as_bytes());
            let Ok(attr) = found else {
                assert_eq!(version_in(snapshot, file), 0, "{what}: c{snapshot} lacks {name}");
                continue;
            };
            let mut bytes = Vec::new();
            pool.read(&caller, attr.ino, 0, FILE_BYTES, &mut bytes).expect("it can be read");
            assert!(bytes == expected, "{what}: {name} of c{snapshot} is another");
        }
    }
}

/// Goal: all fifty snapshots are whole when any other member is lost after a rebuild; the rebuild
/// reads and writes segments in use alone, each once. Method: one file is written over before each
/// snapshot, so that each holds blocks that no other has and shares the rest.
#[test]
fn a_rebuild_makes_what_fifty_snapshots_hold_and_each_segment_once() {
    let (count, slot) = (4, 2);
    let devices = new_raid5(count);
    let mut images: Vec<Image> = devices.iter().map(|device| device.image()).collect();
    images.push(Image::blank(MEMBER_BYTES));
    let devices = devices_of(images);
    let pool = open(&devices[..count].to_vec()).expect("all are there");
    for snapshot in 0..SNAPSHOTS {
        let file = snapshot % FILES;
        let version = content(version_in(snapshot, file), FILE_BYTES);
        put(&pool, &format!("file{file}"), &version).expect("there is room");
        take_snapshot(&pool, &format!("c{snapshot}"));
    }
    pool.checkpoint().expect("nothing fails");
    judge(&pool, "before");
    let read = |at: usize| devices[at].counts().of(IoPurpose::Cleaner, RequestKind::Read).bytes;
    let before: u64 = all_but(count, slot).into_iter().map(read).sum();
    begin(&pool, slot, &devices[count]);
    finish(&pool);
    assert_eq!(states(&pool), [MemberState::Online; 4]);
    let report = pool.devices().rebuild_report().expect("there was one");
    let RebuildReport { made_bytes, passed_over_bytes, lost, .. } = report;
    assert_eq!(lost, 0);
    let geometry = pool.status().geometry;
    let made = made_bytes - geometry.groups_offset;
    let groups = geometry.device_bytes - geometry.groups_offset - (128 << 10);
    assert!(made + passed_over_bytes <= groups, "each piece once");
    let superblock = u64::try_from(format::superblock::SUPERBLOCK_BYTES).expect("small");
    let fixed = geometry.groups_offset - 2 * superblock;
    let written = devices[count].counts().of(IoPurpose::Cleaner, RequestKind::Write).bytes;
    assert_eq!(written, fixed + made / 3, "its share of what is in use");
    let after: u64 = all_but(count, slot).into_iter().map(read).sum();
    // Of the fixed regions each of the others has a copy, and all are compared.
    assert_eq!(after - before, 3 * fixed + made, "one share of each of the others");
    println!("{written} bytes written, {} read, {passed_over_bytes} passed over", after - before);
    judge(&pool, "after");
    pool.close().expect("nothing fails");
    drop(pool);
    let whole = [&devices[..2], &devices[4..], &devices[3..4]].concat();
    for lost in 0..count {
        let left = reopened(&whole, &all_but(count, lost));
        let pool = open(&left).expect("all but one are enough");
        judge(&pool, &format!("without {lost}"));
        assert!(get(&pool, "file0").is_some());
    }
}
