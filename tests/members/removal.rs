//! Disk groups that are taken out of a pool in use: everything moves, and whatever a power cut
//! leaves goes on.

use engine::api::{Caller, FileSystem};
use engine::{DiskGroupError, Pool};
use format::disk_group::ADDED_GROUPS_OFFSET;
use format::fileset::{FilesetName, NamePart};
use format::members::Layout;
use runtime::prng::Prng;
use runtime::sync::Mutex;
use runtime::sync::sim::{Scheduler, current, sleep_until};
use storage::device::sim::{Fault, FaultPlan, Recording};
use storage::device::{AlignedBuffer, Device, IoPurpose, RequestKind};
use storage::pool::read_superblock;

use super::groups::{check_all, content, group_of, groups, labelled, new_pool};
use super::{Devices, POOL_BYTES, cut_at, devices_of, get, open, put};

const FILE_BYTES: usize = 300_000;
const FILES: usize = 10;

fn name(file: usize) -> String {
    format!("f{file}")
}

pub(super) fn take_snapshot(pool: &Pool, snapshot: &str) {
    let part = |text: &str| NamePart::new(text).expect("a name");
    let fileset: FilesetName = "root".parse().expect("a name");
    pool.fileset_admin()
        .create_snapshot(&fileset, &part(snapshot), [9; 16])
        .expect("there is room");
}

/// Returns a pool with two disk groups and files, some of which a snapshot shares, on both.
fn filled(layout: Layout, width: usize) -> (Devices, Pool) {
    let devices = new_pool(layout, width, width, 3 * POOL_BYTES);
    let pool = open(&devices[..width]).expect("it was closed");
    pool.tick().expect("nothing fails");
    let which: Vec<usize> = (width..2 * width).collect();
    pool.devices().add_disk_group(&group_of(&devices, layout, &which)).expect("it fits");
    for file in 0..FILES {
        put(&pool, &name(file), &content(file, 1, FILE_BYTES)).expect("there is room");
    }
    take_snapshot(&pool, "c");
    for file in 0..FILES / 2 {
        put(&pool, &name(file), &content(file, 2, FILE_BYTES / 2)).expect("there is room");
    }
    pool.sync().expect("nothing fails");
    let used: Vec<u64> = groups(&pool).iter().map(|group| group.used_bytes).collect();
    assert!(used[1] > 1 << 20, "{used:?}");
    (devices, pool)
}

fn expected(file: usize) -> Vec<u8> {
    let mut bytes = content(file, 1, FILE_BYTES);
    if file < FILES / 2 {
        bytes[..FILE_BYTES / 2].copy_from_slice(&content(file, 2, FILE_BYTES / 2));
    }
    bytes
}

/// Lets jobs work until the pool has `count` disk groups.
pub(super) fn finish(pool: &Pool, count: usize, what: &str) {
    for _ in 0..500 {
        pool.tick().unwrap_or_else(|error| panic!("{what}: {error}"));
        if groups(pool).len() == count {
            return;
        }
    }
    panic!("{what}: it does not end: {:?} {:?}", pool.jobs(), groups(pool));
}

fn judge(pool: &Pool, what: &str) {
    for file in 0..FILES {
        assert!(get(pool, &name(file)) == Some(expected(file)), "{what}: file {file}");
    }
    let caller = Caller::root();
    let snapshots = pool.lookup(&caller, pool.root(), b".snapshots").expect("it is always there");
    let snapshot = pool.lookup(&caller, snapshots.ino, b"c").expect("it was taken");
    for file in 0..FILES {
        let attr = pool.lookup(&caller, snapshot.ino, name(file).as_bytes()).expect("it is there");
        let mut bytes = Vec::new();
        pool.read(&caller, attr.ino, 0, FILE_BYTES, &mut bytes).expect("it can be read");
        assert!(bytes == content(file, 1, FILE_BYTES), "{what}: file {file} of the snapshot");
    }
}

/// Goal: what lies on a disk group, also what a snapshot shares, is elsewhere when it is gone; its
/// devices are blank, and the pool is what it was without it. It can be added again at once.
#[test]
fn a_disk_group_is_emptied_and_taken_out_and_can_come_back() {
    let stripe = Layout::Stripe { unit_shift: 14 };
    for (layout, width) in [(Layout::Single, 1), (Layout::Mirror, 2), (stripe, 2)] {
        let what = layout.word();
        let (devices, pool) = filled(layout, width);
        let with = pool.status().space.capacity;
        let live = groups(&pool)[1].used_bytes;
        let moved = |pool: &Pool| pool.status().cleaner.since_mount.moved_fragments * 4096;
        let before = moved(&pool);
        pool.devices().remove_disk_group(1).expect("it fits elsewhere");
        // Writers go on.
        put(&pool, "meanwhile", &content(3, 3, FILE_BYTES)).expect("there is room");
        finish(&pool, 1, what);
        let cost = moved(&pool) - before;
        assert!(cost * 10 <= live * 13, "{what}: {cost} bytes were moved of {live}");
        println!("{what}: {cost} bytes were moved of {live}");
        assert!(pool.status().space.capacity < with, "{what}");
        assert!(pool.jobs().is_empty(), "{what}: {:?}", pool.jobs());
        judge(&pool, what);
        let head = devices[width].read(IoPurpose::Data, 0, 4096).expect("in range");
        assert!(head.iter().all(|byte| *byte == 0), "{what}: its label is there");
        // In the same opening, on the same numbers.
        let which: Vec<usize> = (width..2 * width).collect();
        pool.devices().add_disk_group(&group_of(&devices, layout, &which)).expect("it fits again");
        for file in FILES..FILES + 6 {
            put(&pool, &name(file), &content(file, 1, FILE_BYTES)).expect("there is room");
        }
        judge(&pool, what);
        pool.close().expect("nothing fails");
        drop(pool);
        check_all(&devices, what);
        let pool = open(&devices).expect("all are there");
        let caller = Caller::root();
        for file in FILES..FILES + 6 {
            pool.unlink(&caller, pool.root(), name(file).as_bytes(), None).expect("it is there");
        }
        pool.devices().remove_disk_group(1).expect("it fits elsewhere");
        finish(&pool, 1, what);
        assert!(get(&pool, "meanwhile") == Some(content(3, 3, FILE_BYTES)), "{what}");
        pool.close().expect("nothing fails");
        drop(pool);
        let left = devices_of(devices[..width].iter().map(|device| device.image()).collect());
        check_all(&left, what);
        let pool = open(&left).expect("the first group is all");
        judge(&pool, what);
    }
}

/// Goal: while a disk group leaves, one that is added counts with its own room alone; when the
/// first is gone the pool has as much as after an open.
#[test]
fn an_addition_gives_no_room_of_what_leaves() {
    let devices = new_pool(Layout::Single, 1, 2, 2 * POOL_BYTES);
    let pool = open(&devices[..1]).expect("it was closed");
    pool.devices().add_disk_group(&group_of(&devices, Layout::Single, &[1])).expect("it fits");
    for file in 0..4 {
        put(&pool, &name(file), &content(file, 1, FILE_BYTES)).expect("there is room");
    }
    let capacity = |pool: &Pool| pool.status().space.capacity;
    pool.devices().remove_disk_group(1).expect("it fits elsewhere");
    let leaving = capacity(&pool);
    pool.devices().add_disk_group(&group_of(&devices, Layout::Single, &[2])).expect("it fits");
    let added =
        groups(&pool).iter().find(|group| group.number == 2).expect("it is there").total_bytes;
    assert_eq!(capacity(&pool), leaving + added / 4096);
    finish(&pool, 2, "the first that was added");
    let rest = capacity(&pool);
    assert!(rest <= leaving + added / 4096, "{rest}");
    pool.close().expect("nothing fails");
    drop(pool);
    let left = labelled(&devices);
    check_all(&left, "one goes, one comes");
    let pool = open(&left).expect("all are there");
    assert_eq!(capacity(&pool), rest);
    for file in 0..4 {
        assert!(get(&pool, &name(file)) == Some(content(file, 1, FILE_BYTES)), "{file}");
    }
}

/// Goal: of three disk groups the one in the middle goes, and the others are as they were.
#[test]
fn a_disk_group_between_others_goes() {
    let devices = new_pool(Layout::Single, 1, 2, 2 * POOL_BYTES);
    let pool = open(&devices[..1]).expect("it was closed");
    for at in [1, 2] {
        pool.devices().add_disk_group(&group_of(&devices, Layout::Single, &[at])).expect("it fits");
    }
    for file in 0..20 {
        put(&pool, &name(file), &content(file, 1, FILE_BYTES)).expect("there is room");
    }
    pool.devices().remove_disk_group(1).expect("it fits elsewhere");
    finish(&pool, 2, "the middle");
    let numbers: Vec<u8> = groups(&pool).iter().map(|group| group.number).collect();
    assert_eq!(numbers, [0, 2]);
    // In the slot between the others another can be added, while the rest is at work.
    let again = group_of(&devices, Layout::Single, &[1]);
    pool.devices().add_disk_group(&again).expect("there is a slot");
    put(&pool, "later", &content(1, 2, FILE_BYTES)).expect("there is room");
    assert_eq!(groups(&pool).len(), 3);
    pool.close().expect("nothing fails");
    drop(pool);
    let left = labelled(&devices);
    assert_eq!(left.len(), 3);
    check_all(&left, "the middle");
    let pool = open(&left).expect("all are there");
    for file in 0..20 {
        assert!(get(&pool, &name(file)) == Some(content(file, 1, FILE_BYTES)), "file {file}");
    }
    assert!(get(&pool, "later") == Some(content(1, 2, FILE_BYTES)), "what was written later");
}

/// Goal: of a disk group on a disk that rots all that can be read is moved, however many segments
/// have something that cannot; the job stops then and says so.
#[test]
fn segments_that_cannot_be_emptied_keep_no_others() {
    const ROTTEN: usize = 36;
    const BLOCK: usize = 16 << 10;
    let devices = new_pool(Layout::Single, 1, 1, 3 * POOL_BYTES);
    let pool = open(&devices[..1]).expect("it was closed");
    pool.tick().expect("nothing fails");
    pool.devices().add_disk_group(&group_of(&devices, Layout::Single, &[1])).expect("it fits");
    for file in 0..4 * FILES {
        put(&pool, &name(file), &content(file, 1, FILE_BYTES)).expect("there is room");
    }
    pool.close().expect("nothing fails");
    drop(pool);
    let pool = open(&devices).expect("it was closed");
    let label = read_superblock(devices[0].as_ref()).expect("it has one").current;
    let geometry = label.geometry;
    let front = u64::from(geometry.front_segments(geometry.added[0].first));
    let of_group = geometry.group_bytes() / geometry.segment_bytes();
    let data = (0..).filter(|segment| segment % of_group >= front);
    for segment in data.take(ROTTEN) {
        let at = ADDED_GROUPS_OFFSET + segment * geometry.segment_bytes();
        devices[1].write(IoPurpose::Data, at, AlignedBuffer::zeroed(4096)).expect("in range");
    }
    let before = groups(&pool)[1].used_bytes;
    assert!(before > 3 << 20, "{before}");
    for file in (0..4 * FILES).filter(|file| file % 3 > 0) {
        // Room for what moves.
        let _ = pool.unlink(&Caller::root(), pool.root(), name(file).as_bytes(), None);
    }
    (0..8).for_each(|_| pool.tick().expect("nothing fails"));
    pool.devices().remove_disk_group(1).expect("the first has room");
    for _ in 0..500 {
        pool.tick().expect("nothing fails");
        if pool.jobs().iter().any(|job| job.failure.is_some()) {
            break;
        }
    }
    let jobs = pool.jobs();
    let failure = jobs.iter().find_map(|job| job.failure.clone()).expect("it stops, and says so");
    assert!(failure.contains("cannot be moved"), "{failure}");
    let left: usize = failure.split(' ').find_map(|word| word.parse().ok()).expect("a number");
    println!("{before} bytes in use, {left} left: {failure}");
    assert!(left > 8 * BLOCK && left <= ROTTEN * BLOCK, "{left} bytes are left of {before}");
    // It names whose they are; without these files it comes to its end.
    assert!(
        failure.contains("cannot be read: root:/") && failure.contains(", bytes "),
        "{failure}"
    );
    let mut rounds = 0;
    loop {
        let jobs = pool.jobs();
        let Some(job) = jobs.first() else { break };
        let failure = job.failure.clone().expect("it stops, and says so");
        let names = failure.split_once("cannot be read: ").map_or("", |(_, names)| names);
        let paths: Vec<&str> =
            names.split("; ").filter_map(|it| it.strip_prefix("root:/")).collect();
        assert!(!paths.is_empty(), "{failure}");
        for path in paths {
            let name = path.split(',').next().expect("a name").as_bytes();
            let _ = pool.unlink(&Caller::root(), pool.root(), name, None);
        }
        assert!(pool.pause_job(job.id, false), "it is there");
        for _ in 0..500 {
            pool.tick().expect("nothing fails");
            if pool.jobs().first().is_none_or(|job| job.failure.is_some()) {
                break;
            }
        }
        rounds += 1;
        assert!(rounds < 20, "{failure}");
    }
    assert_eq!(groups(&pool).len(), 1, "it is gone");
    for file in (0..4 * FILES).filter(|file| file % 3 == 0) {
        let found = get(&pool, &name(file));
        assert!(found.is_none_or(|found| found == content(file, 1, FILE_BYTES)), "{file}");
    }
}

/// Goal: what does not fit elsewhere, the first disk group and none are refused before anything
/// changes.
#[test]
fn what_cannot_go_is_refused() {
    let devices = new_pool(Layout::Single, 1, 1, 3 * POOL_BYTES);
    let pool = open(&devices[..1]).expect("it was closed");
    pool.devices().add_disk_group(&group_of(&devices, Layout::Single, &[1])).expect("it fits");
    for file in 0..50 {
        put(&pool, &name(file), &content(file, 1, FILE_BYTES)).expect("there is room");
    }
    let error = pool.devices().remove_disk_group(1).expect_err("it does not fit");
    let DiskGroupError::NoRoom { missing_bytes, .. } = error else { panic!("{error}") };
    assert!((1 << 20..40 << 20).contains(&missing_bytes), "{missing_bytes}");
    assert!(
        pool.devices()
            .remove_disk_group(0)
            .is_err_and(|error| error.to_string().contains("metadata"))
    );
    assert!(
        pool.devices()
            .remove_disk_group(7)
            .is_err_and(|error| error.to_string().contains("no disk"))
    );
    assert!(pool.jobs().is_empty());
    // More than was missing is removed, and it goes.
    let caller = Caller::root();
    let gone = usize::try_from(missing_bytes).expect("small") / FILE_BYTES + 8;
    for file in 0..gone {
        pool.unlink(&caller, pool.root(), name(file).as_bytes(), None).expect("it is there");
    }
    pool.close().expect("nothing fails");
    drop(pool);
    let pool = open(&devices).expect("all are there");
    pool.devices().remove_disk_group(1).expect("it fits now");
    finish(&pool, 1, "after some were removed");
    for file in gone..50 {
        assert!(get(&pool, &name(file)) == Some(content(file, 1, FILE_BYTES)), "{file}");
    }
}

/// Goal: what a removal was admitted with holds until it ends: writers that take all they can get
/// meanwhile are refused, and it ends. Method: files until none fits, in all that is left.
#[test]
fn writers_get_no_room_that_a_removal_needs() {
    let devices = new_pool(Layout::Single, 1, 2, 3 * POOL_BYTES);
    let pool = open(&devices[..1]).expect("it was closed");
    for at in [1, 2] {
        pool.devices().add_disk_group(&group_of(&devices, Layout::Single, &[at])).expect("it fits");
    }
    let fill = |from: usize, to: usize| {
        let put = |file: &usize| put(&pool, &name(*file), &content(*file, 1, FILE_BYTES)).is_ok();
        from + (from..to).take_while(put).count()
    };
    let before = fill(0, 85);
    assert_eq!(before, 85, "there is room");
    pool.devices().remove_disk_group(2).expect("it fits elsewhere");
    let room = pool.status().space;
    let all = fill(before, usize::MAX);
    assert!(all - before < 60, "{all} files, and {room:?}");
    finish(&pool, 2, "beside writers");
    for file in 0..all {
        assert!(get(&pool, &name(file)) == Some(content(file, 1, FILE_BYTES)), "file {file}");
    }
    println!("{} files found room beside the removal", all - before);
    assert!(all > before, "there was room: {room:?}");
}

/// Goal: the cleaner makes no segment of a disk group that leaves its own work.
#[test]
fn the_cleaner_leaves_what_leaves_to_the_removal() {
    let (_devices, pool) = filled(Layout::Single, 1);
    let caller = Caller::root();
    for file in FILES..2 * FILES {
        put(&pool, &name(file), &content(file, 1, FILE_BYTES / 4)).expect("there is room");
    }
    // Segments that are half empty: what a cleaner likes best.
    for file in (FILES..2 * FILES).step_by(2) {
        pool.unlink(&caller, pool.root(), name(file).as_bytes(), None).expect("it is there");
    }
    pool.sync().expect("nothing fails");
    pool.devices().remove_disk_group(1).expect("it fits elsewhere");
    let before = groups(&pool)[1].used_bytes;
    pool.clean().expect("nothing fails");
    assert_eq!(groups(&pool)[1].used_bytes, before, "the cleaner has emptied what leaves");
    finish(&pool, 1, "after a cleaning");
    judge(&pool, "after a cleaning");
}

/// Goal: disk groups can change as often as an administrator wants in one opening. The 120 changes
/// here leave 180 layouts in memory.
#[test]
fn disk_groups_change_as_often_as_wanted() {
    let devices = new_pool(Layout::Single, 1, 3, POOL_BYTES);
    let pool = open(&devices[..1]).expect("it was closed");
    pool.tick().expect("nothing fails");
    for round in 0..20 {
        let what = format!("round {round}");
        for at in [1, 2, 3] {
            let added = pool.devices().add_disk_group(&group_of(&devices, Layout::Single, &[at]));
            added.unwrap_or_else(|error| panic!("{what}: {error}"));
        }
        put(&pool, &name(round), &content(round, 1, 10_000)).expect("there is room");
        // All at one time.
        for group in [1, 2, 3] {
            pool.devices()
                .remove_disk_group(group)
                .unwrap_or_else(|error| panic!("{what}: {error}"));
        }
        finish(&pool, 1, &what);
    }
    for round in 0..20 {
        assert!(get(&pool, &name(round)) == Some(content(round, 1, 10_000)), "round {round}");
    }
    pool.close().expect("nothing fails");
    drop(pool);
    let left = labelled(&devices);
    assert_eq!(left.len(), 1);
    check_all(&left, "the last");
}

/// Goal: a power cut at any moment of a removal loses nothing, and the removal goes on.
#[test]
fn a_cut_while_a_group_is_removed_loses_nothing_and_it_goes_on() {
    let (devices, pool) = filled(Layout::Single, 1);
    let now = || devices.iter().map(|device| device.time()).max().expect("there are devices");
    let begun = now();
    pool.devices().remove_disk_group(1).expect("it fits elsewhere");
    let is_begun = now();
    put(&pool, "meanwhile", &content(3, 3, FILE_BYTES)).expect("there is room");
    let is_put = now();
    finish(&pool, 1, "without a cut");
    let end = now();
    drop(pool);
    let recordings: Vec<Recording> = devices.iter().map(|device| device.recording()).collect();
    let mut prng = Prng::from_seed(4);
    let (mut states, mut resumed) = (0, 0);
    // The end of it at each moment: there it is taken out.
    let times = (begun..end.saturating_sub(60)).step_by(7).chain(end.saturating_sub(60)..=end);
    for time in times {
        for state in 0..2 {
            let images = cut_at(&recordings, time, state == 0, &mut prng);
            let what = format!("cut at {time} of {begun} to {end}, state {state}");
            let left = labelled(&devices_of(images));
            let pool = open(&left).unwrap_or_else(|error| panic!("{what}: {error}"));
            judge(&pool, &what);
            if time >= is_put {
                assert!(get(&pool, "meanwhile") == Some(content(3, 3, FILE_BYTES)), "{what}");
            }
            if time >= is_begun {
                resumed += usize::from(groups(&pool).len() == 2);
                finish(&pool, 1, &what);
                judge(&pool, &what);
            }
            pool.close().unwrap_or_else(|error| panic!("{what}: {error}"));
            drop(pool);
            check_all(&labelled(&left), &what);
            states += 1;
        }
    }
    println!("{states} states, {resumed} of them went on");
    assert!(resumed > 20, "{resumed} of {states}");
}

/// Goal: who waits for a change of the disk groups that is under way keeps no writer waiting.
/// Method: the device that is added answers its first write after ten seconds of virtual time.
#[test]
fn writers_go_on_while_a_removal_waits_for_an_addition() {
    const DELAY_NS: u64 = 10_000_000_000;
    let devices = new_pool(Layout::Single, 1, 2, 3 * POOL_BYTES);
    let pool = open(&devices[..1]).expect("it was closed");
    pool.devices().add_disk_group(&group_of(&devices, Layout::Single, &[1])).expect("it fits");
    let fault = Fault::Delay { kind: RequestKind::Write, nth: 0, delay_ns: DELAY_NS };
    devices[2].arm(FaultPlan { faults: vec![fault] });
    let (scheduler, ended) = (Scheduler::new(1), Mutex::new(Vec::new()));
    let (pool, devices, ended) = (&pool, &devices, &ended);
    let note = |what: &'static str| {
        let now_ns = current().expect("within a run").now_ns();
        ended.lock().push((what, now_ns));
    };
    let add = move || {
        pool.devices().add_disk_group(&group_of(devices, Layout::Single, &[2])).expect("it fits");
        note("added");
    };
    let remove = move || {
        sleep_until(1_000_000);
        pool.devices().remove_disk_group(1).expect("it fits elsewhere");
        note("leaving");
    };
    let write = move || {
        sleep_until(1_000_000_000);
        for file in 0..4 {
            put(pool, &name(file), &content(file, 1, 1 << 20)).expect("there is room");
        }
        note("written");
    };
    scheduler.run(vec![
        ("add".to_owned(), Box::new(add)),
        ("remove".to_owned(), Box::new(remove)),
        ("write".to_owned(), Box::new(write)),
    ]);
    let ended = ended.lock().clone();
    let at = |what| ended.iter().find(|it| it.0 == what).expect("it ended").1;
    assert!(at("written") < DELAY_NS, "a writer waited: {ended:?}");
    assert!(at("added") >= DELAY_NS && at("leaving") >= DELAY_NS, "{ended:?}");
    finish(pool, 2, "behind an addition");
}
