//! A round-robin: each file on one device of several, the next file on the next.

use std::sync::Arc;

use engine::api::{Caller, FileSystem};
use engine::{Pool, PoolOpenError};
use format::members::Layout;
use runtime::prng::Prng;
use storage::device::sim::{Image, SimDevice};
use storage::device::{IoPurpose, RequestKind};

use super::groups::{check_all, content, group_of, groups};
use super::raid5_crash::{cut, history_at, judged, judged_again, without, work};
use super::removal::finish;
use super::roles::{Spec, make};
use super::{Devices, POOL_BYTES, devices_of, get, open, put, reopened};

/// Members of the round-robin.
const WIDTH: usize = 3;
/// Metadata on one device, data on three in turn.
const SPECS: [Spec; 2] = [(Layout::Single, 1, false), (Layout::RoundRobin, WIDTH, true)];
const ALL: [usize; 1 + WIDTH] = [0, 1, 2, 3];
/// More than goes into the log.
const FILE_BYTES: usize = 200_000;

fn new_pool() -> Devices {
    let (devices, made) = make(&SPECS, 2 * POOL_BYTES);
    made.expect("it fits");
    reopened(&devices, &ALL)
}

/// Returns the members of the round-robin that have had requests of this kind, for data, since
/// `before`; and how many they all have had.
fn since(devices: &[Arc<SimDevice>], kind: RequestKind, before: &mut [u64]) -> Vec<usize> {
    let mut members = Vec::new();
    for (member, device) in devices.iter().enumerate().skip(1) {
        let bytes = device.counts().of(IoPurpose::Data, kind).bytes;
        if bytes > before[member] {
            members.push(member);
        }
        before[member] = bytes;
    }
    members
}

/// Goal: all of a file lies on one member, whenever it is written and after the pool was opened
/// again; files made one after the other go to one member after the other.
#[test]
fn each_file_lies_on_one_member_and_files_take_them_in_turn() {
    let devices = new_pool();
    let pool = open(&devices).expect("it was made");
    let (mut before, mut turns) = ([0; 1 + WIDTH], Vec::new());
    for file in 0..24 {
        put(&pool, &format!("f{file}"), &content(file, 1, FILE_BYTES)).expect("there is room");
        let members = since(&devices, RequestKind::Write, &mut before);
        assert_eq!(members.len(), 1, "file {file} lies on {members:?}");
        turns.push(members[0]);
    }
    for member in 1..=WIDTH {
        let count = turns.iter().filter(|turn| **turn == member).count();
        assert!((6..=10).contains(&count), "{turns:?}");
    }
    assert!(turns.windows(2).filter(|pair| pair[0] == pair[1]).count() < 3, "{turns:?}");
    for file in [3, 4, 5, 11] {
        put(&pool, &format!("f{file}"), &content(file, 2, FILE_BYTES)).expect("there is room");
        let members = since(&devices, RequestKind::Write, &mut before);
        assert_eq!(members, [turns[file]], "file {file}, overwritten");
    }
    pool.close().expect("nothing fails");
    drop(pool);
    check_all(&devices, "after a close");
    let devices = reopened(&devices, &ALL);
    let (pool, mut before) = (open(&devices).expect("it was closed"), [0; 1 + WIDTH]);
    for (file, turn) in turns.iter().enumerate() {
        let version = if [3, 4, 5, 11].contains(&file) { 2 } else { 1 };
        let found = get(&pool, &format!("f{file}"));
        assert!(found == Some(content(file, version, FILE_BYTES)), "file {file}");
        let members = since(&devices, RequestKind::Read, &mut before);
        assert!(members.iter().all(|member| member == turn), "file {file}: {members:?}");
    }
    let mut before = [0; 1 + WIDTH];
    put(&pool, "f7", &content(7, 3, FILE_BYTES)).expect("there is room");
    let members = since(&devices, RequestKind::Write, &mut before);
    assert_eq!(members, [turns[7]], "in another life");
}

/// Goal: room on any member is room: a file that has filled its own goes on elsewhere, and what
/// `df` promises fits.
#[test]
fn a_file_whose_member_is_full_goes_on_elsewhere() {
    let devices = new_pool();
    let pool = open(&devices).expect("it was made");
    let statfs = pool.statfs(&Caller::root(), pool.main_fileset()).expect("it is open");
    let wanted = usize::try_from(statfs.available_bytes).expect("small") * 9 / 10;
    assert!(wanted > 30 << 20, "{statfs:?}: three members of 20 MiB");
    let large = content(1, 1, wanted);
    put(&pool, "large", &large).expect("there is room");
    assert!(get(&pool, "large") == Some(large));
    pool.close().expect("nothing fails");
    drop(pool);
    check_all(&devices, "one large file");
}

/// Goal: whatever is acknowledged is there after a power cut at any moment, and a second one in the
/// recovery.
#[test]
fn a_cut_at_any_moment_loses_nothing() {
    let (mut cuts, mut second_cuts) = (0, 0);
    for seed in 0..6 {
        let base = new_pool();
        let base_pool = open(&reopened(&base, &ALL)).expect("it opens");
        let devices = reopened(&base, &ALL);
        let pool = open(&devices).expect("a new pool opens");
        let recorded = work(&pool, devices[0].timeline(), (seed, 40), |_, _| ());
        drop(pool);
        let (mut prng, end) = (Prng::from_seed(!seed), devices[0].timeline().now());
        for time in 0..=end {
            if !prng.one_in(14) {
                continue;
            }
            cuts += 1;
            let context = format!("seed {seed}, cut at {time} of {end}");
            let history = history_at(&base_pool, &recorded, time);
            let images = cut(&devices, time, &mut prng);
            judged(&without(&images, None), &history)
                .unwrap_or_else(|finding| panic!("{context}: {finding}"));
            if prng.one_in(6) {
                second_cuts += 1;
                judged_again(&images, &history, &mut prng)
                    .unwrap_or_else(|finding| panic!("{context}, {finding}"));
            }
        }
    }
    println!("{cuts} cuts, {second_cuts} second ones");
    assert!(cuts > 40 && second_cuts > 4, "{cuts} {second_cuts}");
}

/// Goal: a round-robin is added, emptied and taken out as any other, and its devices are blank
/// then.
#[test]
fn a_round_robin_is_added_emptied_and_taken_out() {
    let (devices, made) = make(&[(Layout::Single, 1, true)], 4 * POOL_BYTES);
    made.expect("it fits");
    let blank = vec![Image::blank(2 * POOL_BYTES); WIDTH];
    let devices = devices_of([vec![devices[0].image()], blank].concat());
    let pool = open(&devices[..1]).expect("it was made");
    pool.devices()
        .add_disk_group(&group_of(&devices, Layout::RoundRobin, &[1, 2, 3]))
        .expect("it fits");
    let added = groups(&pool).remove(1);
    assert_eq!(added.slots, (1..4).into());
    assert!(added.total_bytes > 4 * POOL_BYTES, "{added:?}");
    for file in 0..60 {
        put(&pool, &format!("f{file}"), &content(file, 1, FILE_BYTES)).expect("there is room");
    }
    pool.sync().expect("nothing fails");
    let used = groups(&pool)[1].used_bytes;
    assert!(used > 4 << 20, "{used}");
    pool.close().expect("nothing fails");
    drop(pool);
    check_all(&devices, "with a round-robin");
    let pool = open(&devices).expect("all are there");
    pool.devices().remove_disk_group(1).expect("it fits elsewhere");
    put(&pool, "meanwhile", &content(99, 1, FILE_BYTES)).expect("there is room");
    finish(&pool, 1, "a round-robin");
    for file in 0..60 {
        let found = get(&pool, &format!("f{file}"));
        assert!(found == Some(content(file, 1, FILE_BYTES)), "file {file}");
    }
    for device in &devices[1..] {
        let head = storage::device::Device::read(device.as_ref(), IoPurpose::Data, 0, 4096);
        assert!(head.expect("in range").iter().all(|byte| *byte == 0), "a label is there");
    }
    pool.close().expect("nothing fails");
    drop(pool);
    check_all(&devices[..1].to_vec(), "without it");
}

/// Goal: a round-robin that lacks a device is refused by its path; metadata cannot lie on one.
#[test]
fn what_a_round_robin_cannot_be_is_refused() {
    let devices = new_pool();
    let close = |pool: Pool| pool.close().expect("nothing fails");
    close(open(&devices).expect("it was made"));
    let error = open(&reopened(&devices, &[0, 1, 3])).expect_err("one is away").to_string();
    assert!(error.contains("/sim/d2"), "{error}");
    let (devices, made) = make(&[(Layout::RoundRobin, WIDTH, true)], POOL_BYTES);
    let error = made.expect_err("it holds data alone");
    assert!(matches!(error, PoolOpenError::NoMetadata { .. }), "{error}");
    assert!(devices.iter().all(|device| device.counts().writes() == 0));
    let wide = [(Layout::Single, 1, false), (Layout::RoundRobin, 17, true)];
    let (_, made) = make(&wide, POOL_BYTES);
    assert!(made.expect_err("too many").to_string().contains("2 to 16"));
}
