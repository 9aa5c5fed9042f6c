//! Many filesets in one pool: made, named, changed, deleted, and what a crash leaves of that.

mod clones;
mod crash;
mod diff;
mod families;
mod full;
mod holds;
mod hostile;
mod in_use;
mod long;
mod many;
mod moved_along;
mod moving;
mod owners;
mod pages;
mod quota;
mod receiving;
mod resumed;
mod send;
mod snapshots;
mod snapshots_dir;
mod to_other_pool;

use std::sync::Arc;

use engine::api::{Caller, FileKind, FileSystem, FsError, NewInode};
use engine::{
    FilesOptions, FilesetChange, NewFileset, Pool, PoolCreateOptions, PoolOpenError,
    PoolOpenOptions,
};
use format::fileset::FilesetName;
use runtime::clock::{ManualClock, SimClock};
use runtime::sync::Mutex;
use runtime::sync::sim::Scheduler;
use storage::device::{MemoryDevice, SharedDevice};
use testkit::canon::Times;
use testkit::ops::{Generator, Profile, Session};

/// Bytes of the pools under test.
const POOL_BYTES: u64 = 48 << 20;
/// Ticks after which a deletion of a test has ended.
const TICKS_MAX: usize = 200;

fn name(text: &str) -> FilesetName {
    text.parse().expect("a test writes a name")
}

fn new_pool() -> SharedDevice {
    let device: SharedDevice = MemoryDevice::new("memory", POOL_BYTES);
    let create = PoolCreateOptions::new(POOL_BYTES, [3; 64]);
    Pool::create(&device, &ManualClock::new(), &create).expect("a pool fits");
    device
}

fn open_at(device: &SharedDevice, fileset: Option<&str>) -> Result<Pool, PoolOpenError> {
    let options = PoolOpenOptions { fileset: fileset.map(name), ..PoolOpenOptions::default() };
    Pool::open(Arc::clone(device), Arc::new(ManualClock::new()), options)
}

fn open(device: &SharedDevice, fileset: Option<&str>) -> Pool {
    open_at(device, fileset).expect("the pool opens")
}

/// Returns what a new fileset is like whose random bits are all `random`.
fn new_fileset(random: u8) -> NewFileset {
    NewFileset { random: [random; 32], ..NewFileset::default() }
}

fn names(pool: &Pool) -> Vec<String> {
    let all = pool.fileset_admin().filesets().expect("the table can be read");
    let is_shown = |it: &engine::FilesetInfo| it.freed_permille.is_none() && !it.is_receiving;
    let mut names: Vec<String> = all.into_iter().filter(is_shown).map(|it| it.name).collect();
    names.sort();
    names
}

/// Does random operations on the files of the fileset that `pool` serves.
fn work(pool: &Pool, seed: u64, steps: usize) {
    let mut session = Session::new(pool, Times::Ignored);
    for step in Generator::history(seed, Profile::crash(), steps) {
        session.apply(&step);
    }
}

/// Ticks until no deleted fileset is left.
fn free_all(pool: &Pool) {
    for _ in 0..TICKS_MAX {
        pool.tick().expect("nothing fails");
        if !pool.fileset_admin().is_freeing().expect("the table can be read") {
            return;
        }
    }
    panic!("a deletion does not end: {:?}", pool.jobs());
}

fn used_bytes(pool: &Pool) -> u64 {
    pool.checkpoint().expect("nothing fails");
    let status = pool.status();
    (status.space.used + status.space.promised) << status.geometry.fragment_shift
}

/// Returns what the checker finds, if it finds anything, and `when` that was.
fn expect_clean(device: &SharedDevice, when: &str) -> Result<(), String> {
    let report = check::run(Arc::clone(device), check::CheckOptions::default(), &mut |_| ());
    if report.is_clean() { Ok(()) } else { Err(format!("{when}: {}", report.to_text())) }
}

#[track_caller]
fn assert_clean(device: &SharedDevice) {
    expect_clean(device, "now").unwrap_or_else(|found| panic!("{found}"));
}

/// Goal: filesets have names in a tree, and files of their own; all is there after a close.
#[test]
fn filesets_have_names_in_a_tree_and_files_of_their_own() {
    let device = new_pool();
    let pool = open(&device, None);
    assert_eq!(names(&pool), ["root"]);
    for (number, text) in (1..).zip(["home", "home/ann", "home/ben", "root/var"]) {
        pool.fileset_admin()
            .create_fileset(&name(text), &new_fileset(number))
            .expect("there is room");
    }
    work(&pool, 1, 40);
    pool.close().expect("nothing fails");
    let mut roots = Vec::new();
    for (seed, text) in (2..).zip(["home/ann", "home/ben"]) {
        let pool = open(&device, Some(text));
        let new = NewInode::new(FileKind::Regular, 0o644);
        let made = pool.create(&Caller::root(), pool.root(), &text.as_bytes()[5..], new, None);
        made.expect("there is room");
        work(&pool, seed, 40);
        roots.push((pool.root(), pool.main_fileset()));
        pool.close().expect("nothing fails");
    }
    assert_ne!(roots[0], roots[1]);
    let pool = open(&device, Some("home/ann"));
    assert_eq!(names(&pool), ["home", "home/ann", "home/ben", "root", "root/var"]);
    let look = |name: &[u8]| pool.lookup(&Caller::root(), pool.root(), name);
    assert!(look(b"ann").is_ok() && look(b"ben").is_err());
    pool.close().expect("nothing fails");
    assert_clean(&device);
}

/// Goal: what can't be done to a fileset is refused, with the reason.
#[test]
fn what_cannot_be_done_to_a_fileset_is_refused() {
    let device = new_pool();
    let pool = open(&device, None);
    for (number, text) in (1..).zip(["a", "a/b", "c"]) {
        pool.fileset_admin()
            .create_fileset(&name(text), &new_fileset(number))
            .expect("there is room");
    }
    let create =
        |text| pool.fileset_admin().create_fileset(&name(text), &new_fileset(9)).map(|_| ());
    let rename = |from, to| {
        let change = FilesetChange { name: Some(name(to)), ..FilesetChange::default() };
        pool.fileset_admin().change_fileset(&name(from), &change)
    };
    let delete = |text| pool.fileset_admin().delete_fileset(&name(text));
    assert!(matches!(create("a/b"), Err(FsError::FilesetExists { .. })));
    assert!(matches!(create("x/y"), Err(FsError::NoFileset { name }) if name == "x"));
    assert!(matches!(rename("c", "a/b"), Err(FsError::FilesetExists { .. })));
    assert!(matches!(rename("a", "a/b/c"), Err(FsError::FilesetInUse { .. })));
    assert!(matches!(rename("x", "y"), Err(FsError::NoFileset { .. })));
    assert!(matches!(delete("root"), Err(FsError::FilesetInUse { .. })));
    assert!(matches!(delete("x"), Err(FsError::NoFileset { .. })));
    let told = delete("a").expect_err("one is below it").to_string();
    assert!(told.contains("a/b"), "{told}");
    rename("a/b", "c/d").expect("the name is free");
    delete("a").expect("none is below it");
    assert_eq!(names(&pool), ["c", "c/d", "root"]);
    free_all(&pool);
    pool.close().expect("nothing fails");
    assert!(matches!(open_at(&device, Some("a")), Err(PoolOpenError::Files(_))));
    let pool = open(&device, Some("c/d"));
    let told =
        pool.fileset_admin().delete_fileset(&name("c/d")).expect_err("it is served").to_string();
    assert!(told.contains("mounted"), "{told}");
    assert_clean(&device);
}

/// Goal: no fileset is left below one that was deleted.
///
/// Method: one thread deletes, another makes one below it, in the order of a seed.
#[test]
fn one_below_a_fileset_is_made_or_the_fileset_deleted_and_never_both() {
    let (mut made, mut deleted) = (0, 0);
    for seed in 0..60 {
        let device = new_pool();
        let shared = Arc::clone(&device);
        let scheduler = Scheduler::new(seed);
        let clock = Arc::new(SimClock::new(Arc::clone(&scheduler)));
        let opened = Mutex::new(None);
        let prepare =
            || *opened.lock() = Pool::open(shared, clock, PoolOpenOptions::default()).ok();
        scheduler.run(vec![("open".to_owned(), Box::new(prepare))]);
        let pool = opened.into_inner().expect("the pool opens");
        pool.fileset_admin().create_fileset(&name("a"), &new_fileset(1)).expect("there is room");
        let (is_made, is_deleted) = (Mutex::new(false), Mutex::new(false));
        let create = || {
            *is_made.lock() =
                pool.fileset_admin().create_fileset(&name("a/b"), &new_fileset(2)).is_ok();
        };
        let delete =
            || *is_deleted.lock() = pool.fileset_admin().delete_fileset(&name("a")).is_ok();
        scheduler.run(vec![
            ("create".to_owned(), Box::new(create)),
            ("delete".to_owned(), Box::new(delete)),
        ]);
        let (is_made, is_deleted) = (is_made.into_inner(), is_deleted.into_inner());
        assert_ne!(is_made, is_deleted, "seed {seed}");
        (made, deleted) = (made + u32::from(is_made), deleted + u32::from(is_deleted));
        pool.close().expect("nothing fails");
        assert_clean(&device);
    }
    assert!(made > 0 && deleted > 0, "{made} made, {deleted} deleted");
}

/// Goal: blocks that no file can have are refused before anything is written.
#[test]
fn blocks_that_no_file_can_have_are_refused() {
    let device = new_pool();
    let pool = open(&device, None);
    for shift in [0, 11, 21, 63, 64, 255] {
        let new = NewFileset { block_shift: Some(shift), ..new_fileset(1) };
        assert!(matches!(
            pool.fileset_admin().create_fileset(&name("a"), &new),
            Err(FsError::Invalid)
        ));
        let change = FilesetChange { block_shift: Some(shift), ..FilesetChange::default() };
        assert!(matches!(
            pool.fileset_admin().change_fileset(&name("root"), &change),
            Err(FsError::Invalid)
        ));
    }
    pool.close().expect("nothing fails");
    assert_clean(&device);
}

/// Goal: a read-only fileset refuses changes, one below it is born so, and neither is for ever.
#[test]
fn a_read_only_fileset_refuses_changes_until_it_is_not() {
    let device = new_pool();
    let pool = open(&device, None);
    let read_only = |is| FilesetChange { is_read_only: Some(is), ..FilesetChange::default() };
    pool.fileset_admin().create_fileset(&name("a"), &new_fileset(1)).expect("there is room");
    pool.fileset_admin().change_fileset(&name("a"), &read_only(true)).expect("it is there");
    let made =
        pool.fileset_admin().create_fileset(&name("a/b"), &new_fileset(2)).expect("there is room");
    assert!(made.is_read_only);
    pool.close().expect("nothing fails");
    let pool = open(&device, Some("a/b"));
    let create = || {
        let new = NewInode::new(FileKind::Regular, 0o644);
        pool.create(&Caller::root(), pool.root(), b"new", new, None)
    };
    assert!(matches!(create(), Err(FsError::ReadOnly { .. })));
    pool.fileset_admin().change_fileset(&name("a/b"), &read_only(false)).expect("it is there");
    create().expect("nothing forbids it");
    let is_shown = pool
        .fileset_admin()
        .filesets()
        .expect("there")
        .iter()
        .any(|it| it.name == "a" && it.is_read_only);
    assert!(is_shown);
    pool.close().expect("nothing fails");
    assert_clean(&device);
}

/// Goal: a deletion gives back all that the fileset held, whatever was in it.
#[test]
fn a_deletion_gives_back_all_that_the_fileset_held() {
    let device = new_pool();
    // The first life of it leaves LSN pages in the groups that it was in.
    let before = fill_and_delete(&device);
    assert_eq!(fill_and_delete(&device), before);
}

/// Makes a fileset, fills it and deletes it. Returns how much of the pool is used then.
fn fill_and_delete(device: &SharedDevice) -> u64 {
    let pool = open(device, None);
    let before = used_bytes(&pool);
    pool.fileset_admin().create_fileset(&name("big"), &new_fileset(3)).expect("there is room");
    pool.close().expect("nothing fails");
    let pool = open(device, Some("big"));
    work(&pool, 7, 2000);
    let new = NewInode::new(FileKind::Regular, 0o644);
    for number in 0..300_u64 {
        let file = format!("file{number}");
        let made = pool.create(&Caller::root(), pool.root(), file.as_bytes(), new, None);
        let ino = made.expect("there is room").ino;
        let offset = (number % 7) << (number % 30);
        pool.write(&Caller::root(), ino, offset, &vec![1; 5000]).expect("there is room");
    }
    pool.close().expect("nothing fails");
    assert_clean(device);
    let pool = open(device, None);
    assert!(used_bytes(&pool) > before + (1 << 20));
    pool.fileset_admin().delete_fileset(&name("big")).expect("nobody serves it");
    pool.tick().expect("nothing fails");
    free_all(&pool);
    let used = used_bytes(&pool);
    assert!(pool.jobs().is_empty(), "{:?}", pool.jobs());
    pool.close().expect("nothing fails");
    assert_clean(device);
    used
}

/// Goal: the cleaner moves blocks of filesets that nobody serves, and leaves alone one that was
/// deleted.
#[test]
fn a_pool_full_of_other_filesets_blocks_is_cleaned() {
    let device = new_pool();
    let pool = open(&device, None);
    pool.fileset_admin().create_fileset(&name("other"), &new_fileset(1)).expect("there is room");
    pool.close().expect("nothing fails");
    let pool = open(&device, Some("other"));
    let new = NewInode::new(FileKind::Regular, 0o644);
    for number in 0..600_u64 {
        let file = format!("f{number}");
        let made = pool.create(&Caller::root(), pool.root(), file.as_bytes(), new, None);
        let ino = made.expect("there is room").ino;
        pool.write(&Caller::root(), ino, 0, &vec![number.to_le_bytes()[0]; 40_000]).expect("room");
    }
    // Each segment keeps a part of what it had.
    for number in (0..600_u64).filter(|number| number % 3 != 0) {
        let file = format!("f{number}");
        pool.unlink(&Caller::root(), pool.root(), file.as_bytes(), None).expect("it is there");
    }
    pool.close().expect("nothing fails");
    let pool = open(&device, None);
    let available =
        pool.statfs(&Caller::root(), pool.main_fileset()).expect("sizes").available_bytes;
    let made = pool.create(&Caller::root(), pool.root(), b"large", new, None).expect("room");
    let mut written = 0;
    while pool.write(&Caller::root(), made.ino, written, &vec![9; 1 << 20]).is_ok() {
        written += 1 << 20;
    }
    assert!(written + (2 << 20) > available, "{written} of {available} bytes found room");
    pool.close().expect("nothing fails");
    assert_clean(&device);
    let pool = open(&device, Some("other"));
    for number in (0..600_u64).filter(|number| number % 3 == 0) {
        let file = format!("f{number}");
        let found = pool.lookup(&Caller::root(), pool.root(), file.as_bytes()).expect("there");
        let mut bytes = Vec::new();
        pool.read(&Caller::root(), found.ino, 0, 40_000, &mut bytes).expect("it is whole");
        assert!(bytes.iter().all(|&byte| byte == number.to_le_bytes()[0]) && bytes.len() == 40_000);
    }
}

/// Goal: a read-only open changes nothing, deletions included.
#[test]
fn a_read_only_open_leaves_deletions_alone() {
    let device = new_pool();
    let pool = open(&device, None);
    pool.fileset_admin().create_fileset(&name("a"), &new_fileset(1)).expect("there is room");
    pool.fileset_admin().delete_fileset(&name("a")).expect("nothing is below it");
    pool.close().expect("nothing fails");
    let files = FilesOptions { is_read_only: true, ..FilesOptions::default() };
    let options = PoolOpenOptions { files, ..PoolOpenOptions::default() };
    let pool = Pool::open(Arc::clone(&device), Arc::new(ManualClock::new()), options);
    let pool = pool.expect("the pool opens");
    pool.tick().expect("nothing fails");
    assert!(pool.fileset_admin().is_freeing().expect("the table can be read"));
    assert!(pool.fileset_admin().create_fileset(&name("b"), &new_fileset(2)).is_err());
    drop(pool);
    assert_clean(&device);
}
